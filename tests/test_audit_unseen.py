"""The record of models that nobody had looked at: what was said first, and now."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "benchmarks"
RECORD = json.loads((FOLDER / "recorded/audit_unseen.json").read_text())
FIRST, NOW = ({one["name"]: one for one in RECORD[run]} for run in ("first", "now"))
UNTRUE = {(name, what) for name, one in FIRST.items() for what in one["untrue"]}
REWORDED = ("repvgg_a0", "running statistics that saw no batch, far from those of x")


def harms(run: dict[str, Any], level: str) -> list[tuple[str, str]]:
    return [
        (name, harm["what"])
        for name, one in run.items()
        for harm in one["harms"]
        if harm["level"] == level
    ]


def test_the_first_run_of_41_models_said_what_it_said() -> None:
    assert len(RECORD["first"]) == len(FIRST) == 41
    wrong, at_risk, notes = (harms(FIRST, level) for level in ("WRONG", "RISK", "NOTE"))
    assert (len(wrong), sum(said in UNTRUE for said in wrong)) == (5, 3)
    assert (len(at_risk), sum(said in UNTRUE for said in at_risk)) == (7, 2)
    assert not UNTRUE & {*notes}
    assert len({name for name, _ in UNTRUE}) == 3


def test_what_was_untrue_is_said_no_more_or_with_another_reason() -> None:
    said = {(name, harm["what"]) for name, one in NOW.items() for harm in one["harms"]}
    assert said & UNTRUE == {REWORDED}
    name, what = REWORDED
    (reason,) = (h["reason"] for h in NOW[name]["harms"] if h["what"] == what)
    assert "learnt, loaded or drawn" in reason


def test_the_record_has_the_models_of_the_script() -> None:
    script = ast.parse((FOLDER / "audit_unseen.py").read_text())
    (models,) = (
        node.value
        for node in script.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "MODELS"
    )
    assert isinstance(models, ast.Dict)
    keys = [key.value for key in models.keys if isinstance(key, ast.Constant)]
    assert [one["name"] for one in RECORD["now"]] == keys
    assert FIRST.keys() >= {*keys}
