"""The records of five sets of models: what was said first, judged, and said now."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SETS = ("third", "fourth", "fifth", "sixth", "seventh")
Runs = dict[str, dict[str, Any]]


def runs(which: str) -> list[Runs]:
    record = json.loads((FOLDER / f"recorded/audit_{which}.json").read_text())
    return [{one["name"]: one for one in record[run]} for run in ("first", "now")]


def judged(first: Runs, verdict: str) -> set[tuple[str, str]]:
    return {
        (name, what)
        for name, one in first.items()
        for what in one.get("judged", {}).get(verdict, ())
    }


def levels(run: Runs, among: set[tuple[str, str]] | None = None) -> Any:
    return Counter(
        harm["level"]
        for name, one in run.items()
        for harm in one.get("harms", ())
        if among is None or (name, harm["what"]) in among
    )


def refused(run: Runs) -> list[str]:
    return [name for name, one in run.items() if "refused" in one]


FOUND = {  # models; lines; untrue or misleading; too high; refused
    "third": (64, (6, 8, 72), (3, 3, 6), (3, 0), 2),
    "fourth": (69, (4, 5, 62), (1, 2, 3), (1, 2), 2),
    "fifth": (61, (15, 28, 45), (7, 3, 12), (4, 3), 0),
    "sixth": (53, (6, 4, 25), (3, 1, 3), (2, 0), 9),
    "seventh": (37, (1, 6, 36), (0, 2, 3), (1, 1), 1),
}


@pytest.mark.parametrize("which", SETS)
def test_the_first_run_said_what_the_page_tells(which: str) -> None:
    first, now = runs(which)
    off = judged(first, "untrue") | judged(first, "misleading")
    high = judged(first, "too high")
    every = ("WRONG", "RISK", "NOTE")
    pairs = ((None, every), (off, every), (high, every[:2]))
    found = [tuple(levels(first, of)[k] for k in keys) for of, keys in pairs]
    assert FOUND[which] == (len(first), *found, len(refused(first)))
    assert len(now) == len(first)


# Mended in part: of open_clip_RN the number alone was untrue.
STILL = {"third": {"open_clip_RN"}}
# The warm-up of torchrl was told as another fault, and is named now.
STILL_HIGH = {"fifth": {"torchrl_BatchRenorm"}}
# No norm, no known one, or what cannot be copied.
REFUSED = [
    *("mimicry_SSGAN_discriminator", "skrl_RunningStandardScaler", "rl_games_A2C"),
    *("hypll_HBatchNorm2d", "keras_Sequential", "bitorch_QuickNet"),
    "diffusers_AutoencoderOobleck",
]


def _is_still_high(first: Runs, name: str, one: dict[str, Any]) -> bool:
    """Return whether a risk or fault is told that was judged to be neither."""
    high = judged(first, "too high")
    return any(
        (name, harm["what"]) in high and harm["level"] != "NOTE"
        for harm in one.get("harms", ())
    )


@pytest.mark.parametrize(
    ("which", "wrong", "left"),
    [
        ("third", 0, ["compressai_ScaleHyperprior"]),
        ("fourth", 6, ["ngpt"]),
        ("fifth", 4, []),
        ("sixth", 4, REFUSED),
        ("seventh", 0, []),
    ],
)
def test_what_was_untrue_or_too_high_is_said_no_more(
    which: str, wrong: int, left: list[str]
) -> None:
    first, now = runs(which)
    said = {
        (name, text)
        for name, one in now.items()
        for text in (
            *(h["what"] for h in one.get("harms", ())),
            *one.get("untested", ()),
        )
    }
    still = judged(first, "untrue") & said
    assert {name for name, _ in still} == STILL.get(which, set())
    high = {name for name, one in now.items() if _is_still_high(first, name, one)}
    assert high == STILL_HIGH.get(which, set())
    assert levels(now)["WRONG"] == wrong
    assert refused(now) == left


def test_what_was_counted_too_low_is_counted() -> None:
    (place,) = (
        harm["place"]
        for harm in runs("third")[1]["open_clip_RN"]["harms"]
        if "multiplied by 0" in harm["what"]
    )
    assert place.endswith(" and 7 more")


@pytest.mark.parametrize("which", SETS)
def test_the_record_has_the_models_of_the_script(which: str) -> None:
    script = (FOLDER / f"audit_{which}.py").read_text()
    models = script[script.index("\nMODELS") :]
    names = re.findall(r'^    "(\w+)": ', models, re.MULTILINE)
    first, now = runs(which)
    assert [*now] == [*first] == names
