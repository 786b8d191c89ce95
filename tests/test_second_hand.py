"""The second blind trial: its record is as judged, and what was named is named."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FOLDER = BENCHMARKS / "second_hand"
OPEN = {"conditional batch norm", "fast instance norm", "deep lstm"}


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    """Import the script, whose name others bear, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        for name in ("run", "layers"):
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module("run")
        for name in ("run", "layers"):
            sys.modules.pop(name, None)


def test_the_record_has_the_verdicts_by_hand() -> None:
    record = json.loads((BENCHMARKS / "recorded/second_hand.json").read_text())
    rows = [(r["layer"], r["verdict"], r["because"]) for r in record["layers"]]
    text = (FOLDER / "verdicts.txt").read_text()
    assert [tuple(row.split(" | ")) for row in text.splitlines()] == rows
    bugs = Counter(r["verdict"] for r in record["layers"] if r["group"] == "bugs")
    assert bugs == {"right": 14, "wrong reason": 7, "missed": 4}


def test_what_was_named_is_named_still(run: Any) -> None:
    words = run.words()
    assert words.keys() >= {case.name for case in run.layers.BUGS}
    assert {name for name, text in words.items() if text == run.OPEN} == OPEN
    wrong = {c.name for c in run.layers.BUGS if not run.is_right(c)}
    assert wrong == OPEN


def test_sound_layers_pass(run: Any) -> None:
    assert [c.name for c in run.layers.CONTROLS if not run.is_right(c)] == []


def test_a_report_without_the_words_is_not_right(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (*run.layers.BUGS, *run.layers.CONTROLS)
    monkeypatch.setattr(run, "said", lambda case: "FAILS  another test\nfor a reason")
    assert [case.name for case in cases if run.is_right(case)] == []
    monkeypatch.setattr(run, "said", lambda case: "all 31 tests pass.")
    assert [c for c in run.layers.BUGS if run.is_right(c)] == []
