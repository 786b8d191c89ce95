"""The record of a third set of models: what was said first, judged, and said now."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "benchmarks"
RECORD = json.loads((FOLDER / "recorded/audit_third.json").read_text())
FIRST, NOW = ({one["name"]: one for one in RECORD[run]} for run in ("first", "now"))


def judged(verdict: str) -> set[tuple[str, str]]:
    return {
        (name, what)
        for name, one in FIRST.items()
        for what in one.get("judged", {}).get(verdict, ())
    }


def levels(run: dict[str, Any], among: set[tuple[str, str]] | None = None) -> Any:
    return Counter(
        harm["level"]
        for name, one in run.items()
        for harm in one.get("harms", ())
        if among is None or (name, harm["what"]) in among
    )


def test_the_first_run_of_64_models_said_what_the_page_tells() -> None:
    assert len(FIRST) == len(NOW) == 64
    assert levels(FIRST) == {"WRONG": 6, "RISK": 8, "NOTE": 72}
    off = judged("untrue") | judged("misleading")
    assert levels(FIRST, off) == {"WRONG": 3, "RISK": 3, "NOTE": 6}
    assert levels(FIRST, judged("too high"))["WRONG"] == 3
    assert sum("refused" in one for one in FIRST.values()) == 2


def test_what_was_untrue_or_too_high_is_said_no_more() -> None:
    said = {
        (name, harm["what"], harm["level"])
        for name, one in NOW.items()
        for harm in one.get("harms", ())
    }
    counted_low = {("open_clip_RN", "what a norm returns is multiplied by 0")}
    for name, what in judged("untrue") - counted_low:
        assert not [one for one in said if one[:2] == (name, what)]
    (low,) = (
        harm["place"]
        for harm in NOW["open_clip_RN"]["harms"]
        if "multiplied by 0" in harm["what"]
    )
    assert low.endswith(" and 7 more")
    assert levels(NOW)["WRONG"] == 0
    assert [name for name, one in NOW.items() if "refused" in one] == [
        "compressai_ScaleHyperprior"
    ]


def test_the_record_has_the_models_of_the_script() -> None:
    script = (FOLDER / "audit_third.py").read_text()
    models = script[script.index("\nMODELS") :]
    names = re.findall(r'^    "(\w+)": ', models, re.MULTILINE)
    assert [*NOW] == [*FIRST] == names
