"""The benchmarks: they refuse what computes something else, and their records hold."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
RECORDS = {
    name: json.loads((FOLDER / f"recorded/{name}.json").read_text())
    for name in (
        "sync_batch_norm",
        "folding",
        "small_inputs",
        "first_call",
        "norms",
        "lstm",
        "lstm_2_threads",
    )
}
RECORD, FOLDING, SMALL, FIRST, NORMS, *LSTMS = RECORDS.values()


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark, folding = load("sync_batch_norm"), load("folding")
lstm, small, first_call = map(load, ("lstm", "small_inputs", "first_call"))
norms = load("norms")
SIZE = lstm.Size(steps=4, examples=8, features=2, units=5)


def test_a_summary_takes_the_slower_process_of_each_round() -> None:
    def process(sync: list[float]) -> list[dict[str, Any]]:
        seconds = {"all_reduce": [1.0] * 3, "local": [2.0] * 3, "sync": sync}
        return [{"size": 5, "channels": 7, "seconds": seconds}]

    (row,) = benchmark.summary([process([3, 4, 9]), process([4, 2, 8])])
    assert row["sync"]["median"] == 4
    assert row["sync_over_local"] == 2
    assert row["extra_in_all_reduces"] == 2


def test_a_layer_that_is_not_batch_norm_of_the_whole_batch_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a single process a shard is half of the batch, and nothing is exchanged.
    monkeypatch.setattr(benchmark.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(benchmark.distributed, "all_reduce", lambda _: None)
    with pytest.raises(ValueError, match="nothing is timed"):
        benchmark.check(6, 3)


@pytest.mark.parametrize("name", RECORDS)
def test_the_record_was_made_from_committed_sources(name: str) -> None:
    assert RECORDS[name]["commit"] is not None
    assert not RECORDS[name]["is_modified"]


def test_the_record_has_every_shape_of_the_benchmark() -> None:
    rows = RECORD["rows"]
    assert [(row["size"], row["channels"]) for row in rows] == benchmark.SHAPES
    assert RECORD["rounds"] >= 15


@pytest.mark.parametrize("name", ["all_reduce", "local", "sync"])
def test_medians_lie_between_the_quartiles(name: str) -> None:
    for row in RECORD["rows"]:
        low, median, high = (
            row[name][k] for k in ("lower_quartile", "median", "upper_quartile")
        )
        assert 0 < low <= median <= high


# --- the LSTM


def test_each_variant_of_the_lstm_computes_its_formula() -> None:
    for name, variant in lstm.variants(SIZE).items():
        lstm.check(name, variant, SIZE)


@pytest.mark.parametrize(
    "name", ["nn_lstm", "layer_norm", "batch_norm", "scripted", "hoisted", "packed"]
)
def test_a_variant_of_the_lstm_that_computes_something_else_is_not_timed(
    name: str,
) -> None:
    right = lstm.variants(SIZE)[name]
    for run in (
        lambda x: right.run(x) * 1.01,
        lambda x: right.run(x + 0.01 * (x - x.detach())),  # the gradient of x alone
    ):
        with pytest.raises(ValueError, match=f"of {name} must .*; nothing is timed"):
            lstm.check(name, right._replace(run=run), SIZE)


def test_what_the_usual_code_carries_on_is_not_what_the_layer_does() -> None:
    all_variants = lstm.variants(SIZE)
    wrong = all_variants["layer_norm"]._replace(run=all_variants["scripted"].run)
    with pytest.raises(ValueError, match="h of layer_norm must be that of the formula"):
        lstm.check("layer_norm", wrong, SIZE)


def test_speeds_of_the_lstm_are_medians_over_rounds_beside_the_yardstick() -> None:
    row = lstm.summary({"nn_lstm": [1.0, 2.0, 9.0], "plain": [2.0, 8.0, 9.0]})
    assert row["plain"]["median"] == 8
    assert row["plain"]["speed_over_nn_lstm"] == 0.5
    assert row["nn_lstm"]["speed_over_nn_lstm"] == 1


@pytest.mark.parametrize("of", LSTMS, ids=["1", "2"])
def test_the_records_of_the_lstm_have_its_sizes_and_variants(of: Any) -> None:
    names = [row["size"] for row in of["rows"]]
    assert names == list(lstm.SIZES)[: 4 if of["threads"] == 2 else None]
    assert of["rounds"] >= 15
    for row in of["rows"]:
        size = lstm.Size(*(row[name] for name in lstm.Size._fields))
        assert size == lstm.SIZES[row["size"]]
        small_one = lstm.Size(2, size.examples, 2, 2)
        for kind in ("forward", "both"):
            found, known = row[kind].keys(), lstm.variants(small_one).keys()
            assert found - {"jax_scan"} == known - {"jax_scan"}


# --- folding


@pytest.mark.parametrize("name", ["dense", "convolutional", "separable"])
def test_each_network_is_folded_whole_and_computes_the_same(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    network = folding.stir(folding.NETWORKS[name].build(4), generator)
    folded = folding.fold_batch_norm(network)
    shape = (3, 4) if name == "dense" else (3, 4, 5, 6)
    x = torch.randn(shape, generator=generator)
    folding.check(network, folded, x)
    assert folding.sizes(folded, x)["buffers"] == 0


def test_a_folded_network_that_computes_something_else_is_not_timed() -> None:
    network = folding.stir(folding.dense(4), torch.Generator().manual_seed(0))
    folded = folding.fold_batch_norm(network)
    with torch.no_grad():
        folded[0][0].bias += 0.1
    with pytest.raises(ValueError, match=r"the folded network must .*nothing is timed"):
        folding.check(network, folded, torch.ones(3, 4))


def test_sizes_count_what_the_layers_hold_and_write() -> None:
    network = folding.dense(4).eval()  # 8 blocks: 4 x 4 + 4, gain and bias, statistics
    assert folding.sizes(network, torch.ones(3, 4)) == {
        "parameters": 8 * (20 + 8),
        "buffers": 8 * (4 + 4 + 1),
        "activation_bytes": 8 * 3 * (3 * 4) * 4,
    }


def test_the_speed_of_a_folded_network_is_the_median_over_pairs() -> None:
    row = folding.summary({"network": [2.0, 6.0, 9.0], "folded": [1.0, 6.0, 3.0]})
    assert row["speed_of_folded"]["median"] == 2
    assert row["network"]["median"] == 6


def test_the_record_of_folding_counts_what_is_counted_now() -> None:
    rows = {(row["network"], row["batch"]): row for row in FOLDING["rows"]}
    assert list(rows) == [(n, b) for n in folding.NETWORKS for b in folding.BATCHES]
    assert FOLDING["rounds"] >= 15
    for name, (build, shape) in folding.NETWORKS.items():
        network = build().eval()
        pair = {"network": network, "folded": folding.fold_batch_norm(network)}
        x = torch.ones(1, *shape)
        counted = {key: folding.sizes(model, x) for key, model in pair.items()}
        assert rows[name, 1]["sizes"] == counted


# --- small inputs


def test_both_of_a_pair_on_small_inputs_compute_the_same() -> None:
    for name, (ours, bare) in small.pairs((6, 5)).items():
        small.check(name, ours, bare)


def test_a_pair_of_which_one_computes_something_else_is_not_timed() -> None:
    for name, (ours, bare) in small.pairs((6, 5)).items():
        for place in range(len(ours())):

            def wrong(place: int = place, ours: Any = ours) -> tuple[Any, ...]:
                return tuple(
                    v * (1.01 if k == place else 1) for k, v in enumerate(ours())
                )

            with pytest.raises(ValueError, match="must compute what the bare formula"):
                small.check(name, wrong, bare)


def test_the_record_of_small_inputs_has_every_pair() -> None:
    names = list(small.pairs((6, 5)))
    rows = [(tuple(row["shape"]), row["name"]) for row in SMALL["rows"]]
    assert rows == [(shape, name) for shape in small.SHAPES for name in names]
    assert SMALL["rounds"] >= 15


# --- the first call


def test_each_case_of_the_first_call_runs_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    size = dict(zip(first_call.SIZE, (3, 2, 2, 4), strict=True))
    first_call.check(
        {
            case: first_call.run(case, tmp_path, size)["found"]
            for case in ("empty", "filled")
        }
    )
    with pytest.raises(ValueError, match="must run the case 'empty', got 'filled'"):
        first_call.run("empty", tmp_path, size)


def test_cases_of_the_first_call_that_compute_something_else_are_not_timed() -> None:
    with pytest.raises(ValueError, match="must compute the same"):
        first_call.check({"empty": 1.0, "filled": 1.001})


def test_the_record_of_the_first_call_has_every_case() -> None:
    assert list(FIRST["cases"]) == list(first_call.CASES)
    assert FIRST["rounds"] >= 5
    for parts in FIRST["cases"].values():
        assert list(parts) == list(first_call.PARTS)
        for part in parts.values():
            low, median, high = part.values()
            assert 0 < low <= median <= high


# --- norms


@pytest.fixture(scope="module")
def tiny() -> dict[str, tuple[int, ...]]:
    return {
        method: (3, 64, 2, 5) if method == "group norm" else (6, 5)
        for method in norms.SHAPES
    }


def test_each_variant_of_a_norm_computes_its_definition(tiny: Any) -> None:
    for method, shape in {**tiny, "batch norm": (3, 4, 2, 5)}.items():
        for name, variant in norms.variants(method, shape).items():
            norms.check(name, variant, method, shape)


@pytest.mark.parametrize("method", norms.SHAPES)
def test_a_variant_of_a_norm_that_computes_something_else_is_not_timed(
    method: str, tiny: Any
) -> None:
    shape = tiny[method]
    for name, right in norms.variants(method, shape).items():
        wrong: list[Any] = [
            lambda x, right=right: right.run(x) * 1.01,
            lambda x, right=right: right.run(x + 0.01 * (x - x.detach())),
        ]
        for gain in right.parameters:  # the gradient of a gain alone
            wrong.append(
                lambda x, right=right, gain=gain: (
                    right.run(x) + (gain - gain.detach()).sum()
                )
            )
        for run in wrong:
            with pytest.raises(ValueError, match=f"of {name} must .*nothing is timed"):
                norms.check(name, right._replace(run=run), method, shape)


def test_bandwidths_of_norms_are_shares_of_that_of_the_copy() -> None:
    both = {"functional": [2.0, 2.0, 2.0], "layer": [1.0, 4.0, 1.0]}
    beside = {"copy": [0.2, 0.2, 0.2], "product": [1.0, 1.0, 1.0]}
    seconds = {"forward": both, "both": both, "beside": beside}
    row = norms.summary(seconds, size=10**9)
    assert row["beside"]["copy"]["gigabytes_per_second"] == pytest.approx(10)
    layer = row["both"]["layer"]
    assert layer["speed_over_functional"] == 2
    assert layer["gigabytes_per_second"] == pytest.approx(5)
    assert layer["share_of_copy_bandwidth"] == pytest.approx(0.5)
    assert row["forward"]["layer"]["share_of_copy_bandwidth"] == pytest.approx(0.2)


def test_the_record_of_norms_has_every_shape_and_variant(tiny: Any) -> None:
    rows = [(row["method"], tuple(row["shape"])) for row in NORMS["rows"]]
    assert rows == [
        (m, shape) for m, shapes in norms.SHAPES.items() for shape in shapes
    ]
    assert NORMS["rounds"] >= 15
    for row in NORMS["rows"]:
        names = norms.variants(row["method"], tiny[row["method"]]).keys()
        assert row["forward"].keys() == row["both"].keys() == names
