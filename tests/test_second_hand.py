"""The second blind trial: its records are of its layers and verdicts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
COUNTS = {
    "": {"right": 14, "wrong reason": 7, "missed": 4},
    "_mended": {"right": 22, "wrong reason": 1, "missed": 2},
}


@pytest.mark.parametrize("which", COUNTS)
def test_the_record_has_the_verdicts_by_hand(which: str) -> None:
    record = json.loads((FOLDER / f"recorded/second_hand{which}.json").read_text())
    text = (FOLDER / f"second_hand/verdicts{which}.txt").read_text()
    rows = [(r["layer"], r["verdict"], r["because"]) for r in record["layers"]]
    assert [tuple(row.split(" | ")) for row in text.splitlines()] == rows
    bugs = Counter(r["verdict"] for r in record["layers"] if r["group"] == "bugs")
    assert bugs == COUNTS[which]
    expected = (FOLDER / "second_hand/expected.txt").read_text().splitlines()
    names = [row["layer"] for row in record["layers"] if row["group"] == "bugs"]
    assert all(any(line.startswith(n + " ") for line in expected) for n in names)
