"""The table of public norm layers: every row can be read, and the record is of it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from normbook.layers.folding import fold_batch_norm

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        name, FOLDER / f"in_the_wild/{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run, fold = load("run"), load("fold")

ROWS = run.expected((FOLDER / "in_the_wild/expected.txt").read_text())
RECORD = json.loads((FOLDER / "recorded/in_the_wild.json").read_text())
UNSEEN_ROWS = run.expected((FOLDER / "in_the_wild/unseen.txt").read_text())
UNSEEN = json.loads((FOLDER / "recorded/in_the_wild_unseen.json").read_text())
# Of each further table: layers, packages, and how many were right at first.
FURTHER = {
    **{"second": (53, 26, 38), "third": (67, 35, 50), "fourth": (60, 32, 50)},
    **{"fifth": (55, 26, 41), "sixth": (35, 23, 29)},
}
FURTHER_ROWS = {
    name: run.expected((FOLDER / f"in_the_wild/{name}_unseen.txt").read_text())
    for name in FURTHER
}
FOLDED = json.loads((FOLDER / "recorded/in_the_wild_folding.json").read_text())
MODELS = fold.models((FOLDER / "in_the_wild/fold_models.txt").read_text())
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
    names = {*run.TESTS, "a second call gives what a first one gives"}
    names |= {"the gradient by x is that of the output"}
    names |= {"a position does not depend on the other positions"}
    names |= {"training and evaluation give the same"}
    names |= {"evaluation takes batches of any size"}
    names |= {"the output is x normalized over the right axes"}
    names |= {"it computes the formula of its name"}
    names |= {"the sign of the input is the sign of x_hat: f(-x) = -f(x)"}
    for row in (*ROWS, *UNSEEN_ROWS, *itertools.chain(*FURTHER_ROWS.values())):
        assert row.wrong <= names, row
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


def test_ten_layers_of_three_packages_were_unseen() -> None:
    packages = {row.package for row in UNSEEN_ROWS}
    assert (len(UNSEEN_ROWS), len(packages)) == (10, 3)
    assert not packages & {row.package for row in ROWS}
    for when in ("first", "now"):
        layers = [f"{row.path}({row.arguments})" for row in UNSEEN_ROWS]
        assert [r["layer"] for r in UNSEEN[when]] == layers
    expected = [{*r["expected"]["wrong"]} for r in UNSEEN["now"]]
    assert expected == [{*row.wrong} for row in UNSEEN_ROWS]


@pytest.mark.parametrize("name", FURTHER)
def test_the_layers_of_further_tables_were_unseen_and_are_right_now(name: str) -> None:
    rows, (layers, packages, right) = FURTHER_ROWS[name], FURTHER[name]
    record = FOLDER / f"recorded/in_the_wild_{name}_unseen.json"
    kept = json.loads(record.read_text())
    own = {row.package for row in rows}
    assert (len(rows), len(own)) == (layers, packages)
    before = itertools.takewhile(lambda one: one != name, FURTHER)
    others = itertools.chain(ROWS, UNSEEN_ROWS, *(FURTHER_ROWS[one] for one in before))
    earlier = [*others]
    new = {row.package for row in rows if row.is_new}
    assert len(new) >= 19
    assert not new & {row.package for row in earlier}
    assert not {row.path for row in rows} & {row.path for row in earlier}
    for when in ("first", "now"):
        listed = [f"{row.path}({row.arguments})" for row in rows]
        assert [r["layer"] for r in kept[when]] == listed
    assert sum(r["verdict"] == "right" for r in kept["first"]) == right
    for row, found in zip(rows, kept["now"], strict=True):
        assert found["verdict"] == "right"
        assert {*found["expected"]["wrong"]} == {*row.wrong}
    pins = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in PINS.items()}
    for package in own:
        pin = pins[re.sub(r"[-_.]+", "-", package).lower()]
        assert kept["versions"][package].partition("+")[0] == pin


def test_the_record_of_folding_is_of_the_models_listed_and_none_is_wrong() -> None:
    listed = [(row.package, row.name) for row in MODELS]
    recorded = [(r["package"], r["model"]) for r in FOLDED["models"]]
    judged = [r for r in FOLDED["models"] if "now" in r]
    assert recorded == listed
    assert len(judged) >= 160
    assert len({r["package"] for r in judged if r["is_new"]}) >= 3
    for r in judged:
        for when in {"first", "now"} & {*r}:
            assert r[when]["outcome"] in ("whole", "partly", "none"), r
            assert r[when]["error"] < r["room"] <= 1e-3, r
        # Where layers folded, a first one that is wrong by one per cent would be seen.
        assert (
            not r["now"]["folded"]
            or r["one_per_cent_of_the_first_variance"] > 100 * r["room"]
        ), r


class Branches(fold.nn.Module):  # type: ignore[misc, name-defined]
    """One batch norm behind a convolution, and one behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        nn = fold.nn
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.act, self.other = nn.ReLU(), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        return self.other(self.act(self.norm(self.conv(x))))


def without_last_digits(model: Any) -> Any:
    """Fold, and get a weight wrong by a millionth."""
    folded: Any = fold_batch_norm(model, strict=False)
    folded.conv.weight.data.mul_(1 + 1e-6)
    return folded


@pytest.mark.parametrize(
    ("tool", "outcome"),
    [
        (lambda model: fold_batch_norm(model, strict=False), "partly"),
        (lambda model: model, "none"),
        (without_last_digits, "wrong"),
        (lambda model: fold.nn.Identity(), "wrong"),
        (lambda model: model.nothing, "refused"),
    ],
)
def test_an_outcome_is_told_by_outputs_and_by_the_batch_norms_that_are_left(
    tool: Any, outcome: str
) -> None:
    model = Branches().double().eval()
    row = fold.Row("here", False, "branches", ("3x8x8",))
    generator = run.torch.Generator().manual_seed(0)
    args = fold.inputs(row, "3x8x8", generator)
    assert len(fold.stir(model, args, generator)) == 2
    y, count = fold.outputs(model, args)
    assert count == 2
    result = fold.tried(tool, model, args, y, count, 1e-8)
    assert result["outcome"] == outcome, result
    if outcome == "partly":
        assert result["folded"] == 1


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


def test_a_record_keeps_what_the_first_run_said(
    tmp_path: Path, monkeypatch: Any
) -> None:
    table, out = tmp_path / "table.txt", tmp_path / "record.json"
    source = "self.share * self.norm(x)"
    table.write_text(f"[torch]\n{__name__}.Double | | | layer norm | | | {source}\n")
    # Neither what stands in for absent packages nor a number of threads may stay.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(run.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(
        sys, "argv", ["run.py", "--table", str(table), "--out", str(out)]
    )
    assert run.main() == 0
    assert [r["verdict"] for r in json.loads(out.read_text())["layers"]] == ["right"]
    out.write_text(json.dumps({"first": [{"verdict": "wrong"}], "now": []}))
    assert run.main() == 0
    record = json.loads(out.read_text())
    assert record["first"] == [{"verdict": "wrong"}]
    assert [r["verdict"] for r in record["now"]] == ["right"]
