"""The record of audited models: the sound ones are quiet, the broken ones are not."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parents[1] / "benchmarks/recorded/audit_models.json"
MODELS = {one["name"]: one for one in json.loads(FILE.read_text())["models"]}


def test_ten_models_of_public_libraries_have_nothing_wrong_or_at_risk() -> None:
    sound = [name for name in MODELS if ":" not in name and name[0] != "3"]
    assert len(sound) == 10
    assert all(MODELS[name]["passed"] for name in sound)


def test_what_is_noted_of_sound_models_is_true_of_them() -> None:
    notes = {
        (harm["what"], harm["cure"].partition(",")[0])
        for name, one in MODELS.items()
        if ":" not in name
        for harm in one["harms"]
    }
    assert notes == {
        ("running statistics that saw no batch", "Train"),
        ("gains near 0", "Nothing"),  # a branch that begins at 0
        ("what a norm returns is multiplied by 0", "Nothing"),  # the norm before it
        # In Swin the first block's norm gets what that of the patches returned.
        ("normalizes what a norm has just normalized", "Take one of the two out."),
    }


def test_what_was_broken_is_found_at_its_place() -> None:
    found = {
        name: [(harm["what"], harm["place"]) for harm in one["harms"]]
        for name, one in MODELS.items()
    }
    drifted = dict(found["broken: drifted"])
    assert "frozen, but in training mode" in drifted
    assert "evaluation differs from training" in drifted
    assert found["broken: positions"] == [  # and behind it is a mean over positions
        ("normalizes positions, not features", "norm"),
        ("what follows undoes all that a norm lets through", "norm"),
    ]
    assert ("an example depends on its neighbours in evaluation", "1") in found[
        "broken: own norm"
    ]


def test_300_norms_take_less_than_a_minute() -> None:
    many = MODELS["300 batch norms"]
    assert many["layers"] == 300
    assert many["cpu_seconds"] < 60
