"""The running statistics of batch and instance norm, beside torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_pairs import (
    AVERAGED,
    HALF,
    INSTANCES,
    PAIRS,
    Pair,
    assert_alike,
    assert_equal,
    assert_every_mutant_is_caught,
    copy_of,
    draw,
    let_fail,
    name,
    run,
    twins,
)
from torch import Tensor

from normbook.layers import group_norm as module
from normbook.layers.native import NATIVE

TRACKED = [*PAIRS, *AVERAGED]
each_tracked = pytest.mark.parametrize("pair", TRACKED, ids=name)
# One of batch norm, one of instance norm.
BOTH = [PAIRS[1], AVERAGED[1]]
both = pytest.mark.parametrize("pair", BOTH, ids=name)


@both
def test_a_state_can_be_loaded_by_name_as_in_torch(pair: Pair) -> None:
    layer, errors = twins(pair)[0], list[str]()
    state = layer.state_dict()
    layer._load_from_state_dict(
        state, "", {"version": 2}, strict=True, missing_keys=[],
        unexpected_keys=[], error_msgs=errors,
    )  # fmt: skip
    assert errors == []


def assert_trained_alike(layers: tuple[Any, Any], shape: tuple[int, ...]) -> None:
    """Train, evaluate, and train again."""
    for seed, is_training in enumerate((True, True, False, True)):
        for layer in layers:
            layer.train(is_training)
        assert_alike(layers, draw(*shape, seed=seed), draw(*shape, seed=seed + 50))


@pytest.mark.parametrize("momentum", [None, 0.0, 0.1, 1.0])
@pytest.mark.parametrize("is_tracked", [True, False])
@pytest.mark.parametrize(
    ("affine", "bias"), [(True, True), (True, False), (False, True)]
)
@each_tracked
def test_every_combination_of_settings_agrees_with_torch(
    pair: Pair, affine: bool, bias: bool, is_tracked: bool, momentum: float | None
) -> None:
    layers = twins(pair, 3, 0.3, momentum, affine, is_tracked, bias=bias)
    assert_trained_alike(layers, pair.shape)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("pair", [PAIRS[0]._replace(shape=(6, 50)), AVERAGED[1]])
def test_running_statistics_in_half_precision_are_rounded_once(
    pair: Pair, dtype: torch.dtype
) -> None:
    ours, theirs = twins(pair, dtype=dtype)
    exact, x = copy.deepcopy(theirs).double(), draw(*pair.shape, dtype=dtype)
    ours(x), exact(x.double())
    for key in ("running_mean", "running_var"):
        assert getattr(ours, key).dtype == dtype
        a, b = getattr(ours, key).double(), getattr(exact, key)
        # Half a unit in the last place, with 10 % for the float32 arithmetic before.
        assert ((a - b).abs() <= 0.55 * torch.finfo(dtype).eps * b.abs()).all()


@pytest.mark.parametrize(
    "change", ["flag off", "no buffers", "no count", "no weight", "no momentum either"]
)
@both
def test_a_layer_changed_after_it_was_made_does_what_torch_s_does(
    pair: Pair, change: str
) -> None:
    layers = twins(pair)
    for layer in layers:
        if change == "flag off":
            layer.track_running_stats = False
        elif change == "no buffers":
            layer.running_mean = layer.running_var = None
        elif change == "no weight":
            layer.weight = None
        else:
            layer.num_batches_tracked = None
            layer.momentum = 0.1 if change == "no count" else None
    if (pair, change) == (AVERAGED[1], "no buffers"):  # refused in evaluation
        assert_alike(layers, draw(7, 3, 5), draw(7, 3, 5, seed=1))
    else:
        assert_trained_alike(layers, pair.shape)


@both
def test_a_checkpoint_from_before_num_batches_tracked_loads(pair: Pair) -> None:
    ours, theirs = twins(pair)
    old = {k: v + 1 for k, v in theirs.state_dict().items()}  # has no version
    del old["num_batches_tracked"]
    for layer in (ours, theirs):
        layer.num_batches_tracked.fill_(7)
        layer.load_state_dict(old)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 7
    assert_equal(ours.state_dict(), theirs.state_dict(), 0.0)
    assert "num_batches_tracked" not in old


def test_a_layer_without_statistics_takes_an_old_checkpoint_without_them() -> None:
    layer = PAIRS[0].ours(3, track_running_stats=False)
    layer.load_state_dict({"weight": torch.ones(3), "bias": torch.zeros(3)})


def test_a_new_checkpoint_must_have_num_batches_tracked() -> None:
    state = PAIRS[0].ours(3).state_dict()
    del state["num_batches_tracked"]
    with pytest.raises(RuntimeError, match=r"Missing key.*num_batches_tracked"):
        PAIRS[0].ours(3).load_state_dict(state)


def test_loading_into_a_layer_on_meta_counts_from_zero() -> None:
    layer = PAIRS[0].ours(3, device="meta")
    old = {k: v for k, v in PAIRS[0].ours(3).state_dict().items() if "num" not in k}
    layer.load_state_dict(dict(old), assign=True)
    assert torch.equal(layer.state_dict()["num_batches_tracked"], torch.tensor(0))


def test_statistics_of_a_first_checkpoint_are_refused_without_tracking() -> None:
    old = dict(twins(AVERAGED[1])[0].state_dict())  # has no version
    del old["num_batches_tracked"]
    ours, theirs = twins(INSTANCES[1])
    with pytest.raises(RuntimeError, match=r"running_mean.* must not be in the check"):
        ours.load_state_dict(old)
    with pytest.raises(RuntimeError, match="Unexpected"):
        theirs.load_state_dict(old)


def test_reset_running_stats_leaves_the_parameters() -> None:
    layer = twins(PAIRS[0])[0]
    weight = layer.weight.clone()
    layer(draw(7, 3))
    layer.reset_running_stats()
    assert layer.running_mean.tolist() == [0, 0, 0]
    assert layer.running_var.tolist() == [1, 1, 1]
    assert layer.num_batches_tracked == 0
    assert torch.equal(layer.weight, weight)


FAILURES = [
    *((pair, "function.formulas.forward", 1) for pair in BOTH),
    *((pair, "base.corrected", 1) for pair in BOTH),
    *((pair, "base.averaged", 1) for pair in BOTH),
    *((pair, "base.averaged", 2) for pair in BOTH),  # the variance, after the mean
    (BOTH[0], "batch_norm.laid_out", 1),
]


@pytest.mark.parametrize(("pair", "step", "call"), FAILURES)
def test_an_error_in_the_computation_itself_leaves_the_statistics(
    pair: Pair, step: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE, "0")
    layer = twins(pair)[0]
    before = copy_of(layer.state_dict())
    let_fail(monkeypatch, f"normbook.layers.{step}", call)
    with pytest.raises(MemoryError):
        layer(draw(*pair.shape))
    assert_equal(layer.state_dict(), before, 0.0)


def expanded(key: str) -> Tensor:
    return torch.tensor(2.0 if key != "num_batches_tracked" else 2).expand(3)


def of_inference(key: str) -> Tensor:
    with torch.inference_mode():
        return torch.tensor(2) if key == "num_batches_tracked" else torch.ones(3)


UNWRITABLE: list[tuple[Any, ...]] = [
    (pair, key, value, match)
    for value, match in (
        (expanded, "single memory location"),
        (of_inference, "inference tensor"),
    )
    for pair, key in (
        *((pair, "running_mean") for pair in BOTH),
        *((pair, "running_var") for pair in BOTH),
        (BOTH[0], "num_batches_tracked"),  # instance norm counts no batches
    )
]
UNWRITABLE += [
    (BOTH[0], "num_batches_tracked", lambda _: torch.tensor(True), "cast to .*Bool")
]


@pytest.mark.parametrize(("pair", "key", "value", "match"), UNWRITABLE)
def test_a_buffer_that_cannot_be_written_leaves_the_others_as_they_were(
    pair: Pair, key: str, value: Callable[[str], Tensor], match: str
) -> None:
    layer = twins(pair, dtype=torch.float32)[0]
    setattr(layer, key, value(key))
    before = copy_of(dict(layer.named_buffers()))
    with pytest.raises(RuntimeError, match=match):
        layer(draw(*pair.shape, dtype=torch.float32))
    for other, buffer in layer.named_buffers():
        assert torch.equal(buffer, before[other]), other


def test_in_evaluation_one_place_is_enough() -> None:
    ours, theirs = (m.eval() for m in twins(AVERAGED[1]))
    assert_alike((ours, theirs), draw(7, 3, 1), draw(7, 3, 1, seed=1))


@pytest.mark.parametrize("method", ["forward", "_by_input"])
def test_torch_s_numbers_reject_every_changed_layer(method: str) -> None:
    def check() -> None:
        for pair in AVERAGED[:4]:
            for is_tracked in (True, False):
                layers = twins(pair, 3, 0.3, 0.1, True, is_tracked)
                assert_trained_alike(layers, pair.shape)
        layer, empty = twins(AVERAGED[1])[0], draw(0, 3, 5)
        before = copy_of(layer.state_dict())
        assert run(layer, empty, empty)["y"].shape == (0, 3, 5)
        assert_equal(layer.state_dict(), before, 0.0)

    assert_every_mutant_is_caught(module._InstanceNorm, method, check)
