"""The slips of another hand: each is found for its reason, and the record says so."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def recorded(name: str) -> Any:
    return json.loads((FOLDER / f"recorded/{name}.json").read_text())


# Table, record of its first run, record now; and of the first run, as judged by hand,
# how many were right, found for a wrong reason, and missed.
TABLES = [
    ("expected.txt", "other_hand_first", "other_hand", (11, 9, 5)),
    ("second.txt", "other_hand_second_first", "other_hand_second", (4, 4, 2)),
    ("third.txt", "other_hand_third_first", "other_hand_third", (6, 4, 0)),
]


@pytest.fixture(scope="module")
def run() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER / "other_hand"))
        patch.delitem(importlib.sys.modules, "run", raising=False)  # type: ignore[attr-defined]
        return importlib.import_module("run")


@pytest.mark.parametrize(("table", "first", "last", "counts"), TABLES)
def test_the_records_are_of_the_tables(
    run: Any, table: str, first: str, last: str, counts: tuple[int, ...]
) -> None:
    rows = run.expected((FOLDER / "other_hand" / table).read_text())
    now = [(row.name, row.issue) for row in rows]
    for name in (first, last):
        assert [(r["name"], r["issue"]) for r in recorded(name)["layers"]] == now
    assert len([row for row in rows if row.words[0] != "-"]) == sum(counts)


def test_many_slips_are_of_issues(run: Any) -> None:
    rows = run.expected((FOLDER / "other_hand/expected.txt").read_text())
    assert len([row for row in rows if row.words[0] == "-"]) == 10
    assert len({row.issue for row in rows if "/issues/" in row.issue}) >= 10


@pytest.mark.parametrize(("table", "first", "last", "counts"), TABLES)
def test_the_first_runs_are_kept_with_what_was_judged_by_hand(
    table: str, first: str, last: str, counts: tuple[int, ...]
) -> None:
    record = recorded(first)
    verdicts = {r["name"]: r["verdict"] for r in record["layers"]}
    verdicts |= {name: verdict for name, (verdict, _) in record["by_hand"].items()}
    seen = Counter(verdicts.values())
    assert (seen["right"], seen["wrong reason"], seen["missed"]) == counts
    assert seen["false alarm"] == 0


@pytest.mark.parametrize(("table", "first", "last", "counts"), TABLES)
def test_each_slip_is_found_for_its_reason(
    run: Any, table: str, first: str, last: str, counts: tuple[int, ...]
) -> None:
    rows = run.expected((FOLDER / "other_hand" / table).read_text())
    seen = {r["name"]: r["verdict"] for r in map(run.judged, rows)}
    assert {n: v for n, v in seen.items() if v not in run.GOOD} == {}
    assert seen == {r["name"]: r["verdict"] for r in recorded(last)["layers"]}
