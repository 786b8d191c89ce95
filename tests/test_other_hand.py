"""The slips of another hand: each is found for its reason, and the record says so."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
FIRST, LAST = (
    json.loads((FOLDER / f"recorded/{name}.json").read_text())
    for name in ("other_hand_first", "other_hand")
)


@pytest.fixture(scope="module")
def run() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER / "other_hand"))
        patch.delitem(importlib.sys.modules, "run", raising=False)  # type: ignore[attr-defined]
        return importlib.import_module("run")


def test_the_records_are_of_the_table(run: Any) -> None:
    rows = run.expected((FOLDER / "other_hand/expected.txt").read_text())
    now = [(row.name, row.issue) for row in rows]
    assert [(r["name"], r["issue"]) for r in LAST["layers"]] == now
    assert [(r["name"], r["issue"]) for r in FIRST["layers"]] == now
    assert len([row for row in rows if row.words[0] != "-"]) == 25
    assert len([row for row in rows if row.words[0] == "-"]) == 10
    assert len({row.issue for row in rows if "/issues/" in row.issue}) >= 10


def test_the_first_record_is_kept_with_what_was_judged_by_hand() -> None:
    verdicts = {r["name"]: r["verdict"] for r in FIRST["layers"]}
    assert Counter(verdicts.values())["right"] == 12
    by_hand = {name: verdict for name, (verdict, _) in FIRST["by_hand"].items()}
    counts = Counter((verdicts | by_hand).values())
    assert (counts["right"], counts["wrong reason"], counts["missed"]) == (11, 9, 5)
    assert counts["false alarm"] == 0


def test_each_slip_is_found_for_its_reason(run: Any) -> None:
    rows = run.expected((FOLDER / "other_hand/expected.txt").read_text())
    results = [run.judged(row) for row in rows]
    seen = {r["name"]: r["verdict"] for r in results}
    assert {n: v for n, v in seen.items() if v not in run.GOOD} == {}
    assert seen == {r["name"]: r["verdict"] for r in LAST["layers"]}
