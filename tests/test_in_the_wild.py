"""The table of public norm layers: every row can be read, and the record is of it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
spec = importlib.util.spec_from_file_location("run", FOLDER / "in_the_wild/run.py")
assert spec is not None
assert spec.loader is not None
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

ROWS = run.expected((FOLDER / "in_the_wild/expected.txt").read_text())
RECORD = json.loads((FOLDER / "recorded/in_the_wild.json").read_text())
PINS = dict(
    line.strip().split("==")
    for name in ("requirements.txt", "alone.txt")
    for line in (FOLDER / "in_the_wild" / name).read_text().splitlines()
    if "==" in line
)


def test_there_are_many_layers_of_many_packages() -> None:
    assert len(ROWS) >= 100
    assert len({row.package for row in ROWS}) >= 12
    assert len({row.package for row in ROWS if row.is_new}) >= 3


def test_every_row_says_where_it_is_read() -> None:
    for row in ROWS:
        assert row.wrong <= {*run.TESTS}, row
        assert len(row.source) >= 8, row
        compile(f"kind({row.arguments})", "arguments", "eval")
        compile(f"dict({row.settings})", "settings", "eval")


def test_the_record_is_of_the_table_and_of_the_releases_that_are_pinned() -> None:
    recorded = [(r["layer"], r["source"], r["expected"]) for r in RECORD["layers"]]
    assert recorded == [
        (
            f"{row.path}({row.arguments})",
            row.source,
            {
                "kind": row.kind,
                "other": sorted(row.other),
                "wrong": sorted(row.wrong),
            },
        )
        for row in ROWS
    ]
    names = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in PINS.items()}
    for package, version in RECORD["versions"].items():
        name = re.sub(r"[-_.]+", "-", package).lower()
        assert version.partition("+")[0] == names[name], package


def test_the_record_is_right_and_no_layer_takes_long() -> None:
    assert {r["verdict"] for r in RECORD["layers"]} == {"right"}
    assert max(r["seconds"] for r in RECORD["layers"]) < 5


def test_the_first_verdicts_are_of_the_same_layers() -> None:
    first = json.loads((FOLDER / "recorded/in_the_wild_first.json").read_text())
    packages = Counter(row.package for row in ROWS)
    for when in ("before", "first"):
        assert Counter(r["package"] for r in first[when]) == packages


class Double(run.torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer norm, and half of one."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.norm, self.share = run.torch.nn.LayerNorm(8), share

    def forward(self, x: Any) -> Any:
        return self.share * self.norm(x)


@pytest.mark.parametrize(
    ("arguments", "wrong", "source", "verdict"),
    [
        ("", "", "self.share * self.norm(x)", "right"),
        ("0.5", "", "self.share * self.norm(x)", "wrong"),
        ("0.5", "factor", "self.share * self.norm(x)", "right"),
        ("", "factor", "self.share * self.norm(x)", "wrong"),
        ("", "", "a line that " + "is not there", "not judged"),
        ("1, 2, 3", "", "self.share * self.norm(x)", "not judged"),
    ],
)
def test_a_verdict_is_right_only_if_all_is_as_expected(
    arguments: str, wrong: str, source: str, verdict: str
) -> None:
    table = f"[here, new]\n{__name__}.Double | {arguments} | | layer norm | | {wrong}"
    (row,) = run.expected(f"{table} | {source}\n")
    assert row.is_new
    assert run.judged(row)["verdict"] == verdict
