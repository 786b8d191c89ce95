"""Instance norm as a layer: above all its running statistics, beside torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    INSTANCES,
    Pair,
    assert_alike,
    assert_equal,
    assert_refused_alike,
    distance,
    draw,
    let_fail,
    name,
    run,
    twins,
    zeros,
)
from torch.func import vmap

from normbook.gradient_check import survivors
from normbook.group_norm import instance_norm
from normbook.layers import group_norm as module
from normbook.layers.group_norm import InstanceNorm1d

each_pair = pytest.mark.parametrize("pair", INSTANCES, ids=name)
each_layer = pytest.mark.parametrize("pair", INSTANCES[1::2], ids=name)
PAIR = INSTANCES[1]


def tracked(pair: Pair, momentum: float | None = 0.3) -> tuple[Any, Any]:
    return twins(pair, 3, 1e-5, momentum, True, True)


@each_pair
def test_five_batches_and_then_evaluation_agree_with_torch(pair: Pair) -> None:
    ours, theirs = tracked(pair)
    for seed in range(6):
        if seed == 5:
            ours.eval(), theirs.eval()
        x, dl_dy = draw(*pair.shape, seed=seed), draw(*pair.shape, seed=seed + 50)
        assert_equal(run(ours, x, dl_dy), run(theirs, x, dl_dy))


@pytest.mark.parametrize("momentum", [None, 0.0, 0.1, 1.0])
@pytest.mark.parametrize("is_tracked", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@each_pair
def test_every_combination_of_settings_agrees_with_torch(
    pair: Pair, affine: bool, is_tracked: bool, momentum: float | None
) -> None:
    layers = twins(pair, 3, 0.3, momentum, affine, is_tracked)
    for is_training in (True, True, False, True):
        ours, theirs = (
            run(m.train(is_training), draw(*pair.shape), draw(*pair.shape, seed=1))
            for m in layers
        )
        assert_equal(ours, theirs)


def test_the_bias_may_be_left_out() -> None:
    layer = InstanceNorm1d(3, affine=True, bias=False, dtype=torch.float64)
    assert layer.bias is None
    assert list(layer.state_dict()) == ["weight"]
    x = draw(7, 3, 5)
    assert torch.equal(layer(x), InstanceNorm1d(3)(x))


def test_the_defaults_are_torch_s() -> None:
    for pair in INSTANCES:
        ours, theirs = pair.ours(4), pair.theirs(4)
        assert repr(ours) == repr(theirs)
        assert ours.state_dict() == theirs.state_dict() == {}


def test_the_constructor_takes_torch_s_arguments_in_torch_s_order() -> None:
    args = (4, 0.5, 0.25, True, True, "meta", torch.float64)
    for pair in INSTANCES:
        ours, theirs = pair.ours(*args), pair.theirs(*args)
        assert repr(ours) == repr(theirs)
        mine, its = ours.state_dict(), theirs.state_dict()
        assert list(mine) == list(its)
        for key, value in its.items():
            assert (mine[key].device, mine[key].dtype) == (value.device, value.dtype)


def test_the_layer_computes_what_the_formula_of_the_book_computes() -> None:
    x, layer = draw(7, 3, 5), twins(PAIR)[0]
    expected = instance_norm(x, layer.weight, layer.bias, layer.eps)
    assert torch.equal(layer(x), expected)


@each_layer
def test_a_single_example_is_a_batch_of_one(pair: Pair) -> None:
    x = draw(*pair.shape)
    layer, other = twins(pair, 3, 1e-5, 0.3, True, True)[0], tracked(pair)[0]
    for _ in range(2):
        assert torch.equal(layer(x[0]), other(x[:1])[0])
        assert_equal(layer.state_dict(), other.state_dict(), 0.0)
        layer.eval(), other.eval()


def test_the_running_statistics_average_over_the_examples() -> None:
    layer, x = tracked(PAIR, momentum=1.0)[0], draw(7, 3, 5)
    layer(x)
    assert distance(layer.running_mean, x.mean((0, 2))) < EXACT
    assert distance(layer.running_var, x.var(2).mean(0)) < EXACT
    assert layer.num_batches_tracked == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_running_statistics_in_half_precision_are_rounded_once(
    dtype: torch.dtype,
) -> None:
    layer = tracked(PAIR)[0].to(dtype)
    exact = copy.deepcopy(layer).double()
    x = draw(7, 3, 5, dtype=dtype)
    layer(x), exact(x.double())
    for key in ("running_mean", "running_var"):
        assert getattr(layer, key).dtype == dtype
        # Half a unit in the last place, with 10 % for the float32 arithmetic before.
        allowed = 0.55 * torch.finfo(dtype).eps
        assert distance(getattr(layer, key), getattr(exact, key)) <= allowed


@pytest.mark.parametrize("shape", [(0, 3, 5), (7, 3, 0)])
@pytest.mark.parametrize("is_training", [True, False])
def test_an_empty_batch_leaves_the_statistics(
    shape: tuple[int, ...], is_training: bool
) -> None:
    layer = tracked(PAIR)[0].train(is_training)
    before = copy.deepcopy(layer.state_dict())
    found = run(layer, draw(*shape), draw(*shape))
    assert found["y"].shape == shape
    assert not found["dl_dweight"].any()
    assert_equal(layer.state_dict(), before, 0.0)


def test_in_evaluation_one_place_is_enough() -> None:
    ours, theirs = tracked(PAIR)
    x, dl_dy = draw(7, 3, 1), draw(7, 3, 1, seed=1)
    assert_alike((ours.eval(), theirs.eval()), x, dl_dy)


@pytest.mark.parametrize("change", ["flag off", "no buffers", "no count"])
def test_a_layer_changed_after_it_was_made_does_what_torch_s_does(change: str) -> None:
    layers = tracked(PAIR)
    for layer in layers:
        if change == "flag off":
            layer.track_running_stats = False
        elif change == "no buffers":
            layer.running_mean = layer.running_var = None
        else:
            layer.num_batches_tracked = None
    for is_training in (True, False) if change != "no buffers" else (True,):
        ours, theirs = (
            run(m.train(is_training), draw(7, 3, 5), draw(7, 3, 5, seed=1))
            for m in layers
        )
        assert_equal(ours, theirs)


def test_training_on_before_backward_leaves_an_evaluation_s_gradient_right() -> None:
    layer = InstanceNorm1d(3, track_running_stats=True, dtype=torch.float64).eval()
    x = draw(7, 3, 5).requires_grad_()
    y = layer(x)
    layer.train()(draw(7, 3, 5) * 100)
    (dl_dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert distance(dl_dx, torch.full_like(x, (1 + 1e-5) ** -0.5)) < EXACT


def test_vmap_equals_a_loop_in_evaluation() -> None:
    layer, xs = tracked(PAIR)[0].eval(), draw(4, 7, 3, 5)
    assert distance(vmap(layer)(xs), torch.stack([layer(x) for x in xs])) < EXACT


# --- checkpoints


def test_checkpoints_with_statistics_go_both_ways() -> None:
    first, other = tracked(PAIR)
    first(draw(7, 3, 5)), other(draw(7, 3, 5))
    into_torch, into_ours = tracked(PAIR)[1], tracked(PAIR)[0]
    into_torch.load_state_dict(first.state_dict())
    into_ours.load_state_dict(into_torch.state_dict())
    x, dl_dy = draw(7, 3, 5, seed=3), draw(7, 3, 5, seed=4)
    for layer in (into_torch, into_ours):
        assert_equal(run(layer, x, dl_dy), run(copy.deepcopy(other), x, dl_dy))


def test_a_checkpoint_from_before_num_batches_tracked_loads() -> None:
    ours, theirs = tracked(PAIR)
    old = {k: v + 1 for k, v in theirs.state_dict().items()}  # has no version
    del old["num_batches_tracked"]
    for layer in (ours, theirs):
        layer.load_state_dict(old)
    assert_equal(ours.state_dict(), theirs.state_dict(), 0.0)


def test_statistics_of_a_first_checkpoint_are_refused_without_tracking() -> None:
    old = dict(tracked(PAIR)[0].state_dict())  # has no version
    del old["num_batches_tracked"]
    for layer, match in zip(
        twins(PAIR), ("must not be in the checkpoint", "Unexpected"), strict=True
    ):
        with pytest.raises(RuntimeError, match=f"(?s)running_mean.*{match}|{match}"):
            layer.load_state_dict(old)


# --- refusals


# torch warns of the channels of a layer without parameters before it refuses them.
@pytest.mark.filterwarnings("ignore:input's size:UserWarning")
@pytest.mark.parametrize(
    ("args", "shape", "match"),
    [
        ((3,), (7, 3, 5, 4), r"\(C, L\) or \(N, C, L\), got 4D"),
        ((3,), (3,), r"\(C, L\) or \(N, C, L\), got 1D"),
        ((3,), (7, 3, 1), r"more than 1 value in a channel.*\(7, 3, 1\)"),
        ((3,), (3, 1), r"more than 1 value in a channel.*\(3, 1\)"),
        ((3, 1e-5, 0.1, True), (7, 4, 5), r"num_features = 3 channels on axis 1"),
        ((3, 1e-5, 0.1, True), (4, 5), r"num_features = 3 channels on axis 0"),
        ((3, 1e-5, 0.1, False, True), (7, 4, 5), r"num_features = 3 .*\(7, 4, 5\)"),
        ((3, 1e-5, "1", False, True), (7, 3, 5), "momentum must be a.*got '1'"),
    ],
)
def test_what_torch_refuses_is_refused_alike(
    args: tuple[Any, ...], shape: tuple[int, ...], match: str
) -> None:
    assert_refused_alike(PAIR._replace(args=args), {}, zeros(*shape), match)


def test_wrong_channels_are_warned_of_where_nothing_depends_on_them() -> None:
    ours, theirs = twins(PAIR, 3)
    x = draw(7, 4, 5)
    with pytest.warns(UserWarning, match="num_features"):
        expected = theirs(x)
    with pytest.warns(UserWarning, match=r"num_features = 3 .*\(7, 4, 5\)"):
        y = ours(x)
    assert distance(y, expected) < EXACT


def test_evaluation_without_the_buffers_it_needs_is_refused_as_in_torch() -> None:
    ours, theirs = (m.eval() for m in tracked(PAIR))
    for layer in (ours, theirs):
        layer.running_mean = layer.running_var = None
    with pytest.raises(RuntimeError, match="running_mean and running_var"):
        theirs(draw(7, 3, 5))
    with pytest.raises(RuntimeError, match="must be tensors in evaluation"):
        ours(draw(7, 3, 5))


def test_one_running_statistic_without_the_other_is_refused() -> None:
    for layer in tracked(PAIR):
        layer.running_mean = None
        with pytest.raises(ValueError, match="both"):
            layer(draw(7, 3, 5))


@pytest.mark.parametrize("size", [2.5, "3", None, True, -1])
@each_layer
def test_a_bad_number_of_features_is_refused_with_torch_s_type(
    pair: Pair, size: Any
) -> None:
    with pytest.raises(Exception) as torch_s:  # noqa: PT011 - its type is the question
        pair.theirs(size, affine=True)
    with pytest.raises(torch_s.type, match=f"num_features must.*got {size!r}"):
        pair.ours(size, affine=True)


@pytest.mark.parametrize("momentum", [-0.1, 1.5, float("nan")])
def test_a_momentum_outside_0_to_1_is_refused_and_nothing_is_updated(
    momentum: float,
) -> None:
    layer = tracked(PAIR, momentum)[0]
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=rf"momentum must lie in 0\.\.1.*{momentum}"):
        layer(draw(7, 3, 5))
    assert_equal(layer.state_dict(), before, 0.0)


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("function.formulas.forward", 1),
        ("base.unbiased", 1),
        ("base.averaged", 2),  # the mean is averaged, the variance not yet
    ],
)
def test_an_error_in_the_computation_itself_leaves_the_statistics(
    step: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tracked(PAIR)[0]
    before = copy.deepcopy(layer.state_dict())
    let_fail(monkeypatch, f"normbook.layers.{step}", call)
    with pytest.raises(MemoryError):
        layer(draw(7, 3, 5))
    assert_equal(layer.state_dict(), before, 0.0)


def test_a_buffer_that_cannot_be_written_leaves_the_other_as_it_was() -> None:
    layer = tracked(PAIR)[0]
    layer.running_var = torch.ones(1, dtype=torch.float64).expand(3)
    before = layer.running_mean.clone()
    with pytest.raises(RuntimeError, match="single memory location"):
        layer(draw(7, 3, 5))
    assert torch.equal(layer.running_mean, before)


# --- the checks reject wrong layers


@pytest.mark.parametrize("method", ["forward", "_by_input"])
def test_torch_s_numbers_reject_every_changed_layer(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(function: Callable[..., Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module._InstanceNorm, method, function)
            for pair in INSTANCES[:4]:
                test_five_batches_and_then_evaluation_agree_with_torch(pair)
            test_every_combination_of_settings_agrees_with_torch(PAIR, True, False, 0.1)
            test_an_empty_batch_leaves_the_statistics((0, 3, 5), True)

    assert survivors(getattr(module._InstanceNorm, method), check) == []
