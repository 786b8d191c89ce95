"""The records of two sets of models: what was said first, judged, and said now."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SETS = ("third", "fourth")
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


@pytest.mark.parametrize(
    ("which", "wrong", "left"),
    [("third", 0, "compressai_ScaleHyperprior"), ("fourth", 3, "ngpt")],
)
def test_what_was_untrue_or_too_high_is_said_no_more(
    which: str, wrong: int, left: str
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
    counted_low = {("open_clip_RN", "what a norm returns is multiplied by 0")}
    assert not (judged(first, "untrue") - counted_low) & said
    high = judged(first, "too high")
    assert not {*levels(now, high)} & {"WRONG", "RISK"}
    assert levels(now)["WRONG"] == wrong
    assert refused(now) == [left]


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
