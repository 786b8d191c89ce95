"""Derivatives of the layers: of first and second order, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_derivatives import (
    arguments,
    as_function,
    assert_same_derivatives,
    penalty,
    tangent_of,
)
from layer_pairs import EXACT, PAIRS, Pair, distance, draw, name, twins
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap

from normbook.gradient_check import survivors
from normbook.layers import function as module
from normbook.layers.batch_norm import BatchNorm1d

# torch's forward mode loads functions that torch itself still scripts.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=name)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
small = pytest.mark.parametrize(
    "pair",
    [
        Pair(PAIRS[1].ours, PAIRS[1].theirs, (3, 2)),
        Pair(PAIRS[2].ours, PAIRS[2].theirs, (2, 3, 1, 2)),
    ],
    ids=name,
)


@each_mode
@small
def test_first_derivatives_equal_differences_in_every_mode_of_autograd(
    pair: Pair, is_training: bool
) -> None:
    layer = twins(pair)[0].train(is_training)
    assert torch.autograd.gradcheck(
        as_function(layer),
        arguments(layer, draw(*pair.shape)),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@each_mode
@small
def test_second_derivatives_equal_differences_in_every_mode_of_autograd(
    pair: Pair, is_training: bool
) -> None:
    layer = twins(pair)[0].train(is_training)
    assert torch.autograd.gradgradcheck(
        as_function(layer),
        arguments(layer, draw(*pair.shape)),
        check_fwd_over_rev=True,
        check_batched_grad=True,
    )


@each_mode
@each_pair
def test_a_gradient_penalty_has_torch_s_gradients(
    pair: Pair, is_training: bool
) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    ours, theirs = (penalty(m.train(is_training), x, dl_dy) for m in twins(pair))
    for a, b in zip(ours, theirs, strict=True):
        zero = torch.zeros(())
        assert (
            distance(a if a is not None else zero, b if b is not None else zero) < EXACT
        )


def test_backward_twice_needs_retain_graph_and_then_gives_the_same() -> None:
    x = draw(7, 3).requires_grad_()
    y = twins(PAIRS[0])[0](x)
    first, second = (
        torch.autograd.grad(y, x, draw(7, 3, seed=1), retain_graph=keep)[0]
        for keep in (True, False)
    )
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, draw(7, 3, seed=1))


def test_training_on_before_backward_leaves_an_evaluation_s_gradient_right() -> None:
    layer = BatchNorm1d(3, dtype=torch.float64).eval()
    x = draw(7, 3).requires_grad_()
    y = layer(x)
    layer.train()(draw(7, 3) * 100)
    (dl_dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert distance(dl_dx, torch.full_like(x, (1 + 1e-5) ** -0.5)) < EXACT


def test_the_statistics_stay_out_of_the_graph_and_the_graph_does_not_grow() -> None:
    layer = BatchNorm1d(3, dtype=torch.float64)
    for seed in range(3):
        layer(draw(7, 3, seed=seed).requires_grad_()).sum().backward()
    for buffer in layer.buffers():
        assert not buffer.requires_grad
        assert buffer.grad_fn is None


def test_the_statistics_take_no_tangent() -> None:
    layer = BatchNorm1d(3, dtype=torch.float64)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(draw(7, 3), draw(7, 3))  # type: ignore[no-untyped-call]
        seen = [tangent_of(value) for value in (layer(x), *layer.buffers())]
    assert [tangent is not None for tangent in seen] == [True, False, False, False]


@each_mode
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_every_derivative_has_the_dtype_of_its_input(
    dtype: torch.dtype, is_training: bool
) -> None:
    layer = BatchNorm1d(3, dtype=dtype).train(is_training)
    x = draw(7, 3, dtype=dtype)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)  # type: ignore[no-untyped-call]
        direction = tangent_of(layer(dual))
    weights = {k: v.detach() for k, v in layer.named_parameters()}
    buffers = dict(layer.named_buffers())
    slopes = grad(lambda w, b: functional_call(layer, w | b, x).sum())(weights, buffers)
    assert direction is not None
    assert direction.dtype == slopes["weight"].dtype == slopes["bias"].dtype == dtype


def test_a_bias_before_the_layer_gets_no_gradient() -> None:
    linear = nn.Linear(4, 3, dtype=torch.float64)
    y = BatchNorm1d(3, dtype=torch.float64)(linear(draw(7, 4)))
    (y * draw(7, 3, seed=1)).sum().backward()
    assert linear.bias.grad is not None
    assert linear.weight.grad is not None
    # Zero but for rounding, beside a gradient of the weight that is not.
    assert linear.bias.grad.abs().max() < 1e-13
    assert linear.weight.grad.abs().max() > 1e-2


def test_frozen_parameters_get_no_gradient_and_change_none() -> None:
    layer = twins(PAIRS[0])[0]
    x, dl_dy = draw(7, 3).requires_grad_(), draw(7, 3, seed=1)
    expected = torch.autograd.grad(layer(x), x, dl_dy)[0]
    layer.requires_grad_(False)
    layer(x).backward(dl_dy)
    assert torch.equal(x.grad, expected)  # type: ignore[arg-type]
    assert layer.weight.grad is None


@pytest.mark.parametrize("is_tracked", [True, False])
def test_vmap_equals_a_loop_over_batches(is_tracked: bool) -> None:
    pair = PAIRS[2]
    layer = twins(pair, 3, track_running_stats=is_tracked)[0].train(not is_tracked)
    xs = draw(6, *pair.shape)
    expected = torch.stack([layer(x) for x in xs])
    assert distance(vmap(layer)(xs), expected) < EXACT


def test_func_grad_with_buffers_passed_in_updates_those() -> None:
    layer, other = twins(PAIRS[0])
    x, dl_dy = draw(7, 3), draw(7, 3, seed=1)

    def loss(values: dict[str, Tensor]) -> Tensor:
        y: Tensor = functional_call(layer, values, x)
        return (y * dl_dy).sum()

    (other(x) * dl_dy).sum().backward()
    values = {k: v.detach().clone() for k, v in layer.named_parameters()}
    buffers = {k: v.clone() for k, v in layer.named_buffers()}
    found = grad(lambda v, b: loss(v | b))(values, buffers)
    assert distance(found["weight"], other.weight.grad) < EXACT
    assert distance(buffers["running_mean"], other.running_mean) < EXACT


def test_torch_s_derivatives_reject_every_changed_formula_of_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The formulas of training are those of all layers: test_function changes them.
    pair, owner = PAIRS[2], module._NormalizeByWithTangents
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)

    def check(function: Callable[..., Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, "jvp", staticmethod(function))
            assert_same_derivatives([m.eval() for m in twins(pair)], x, dl_dy)

    assert survivors(owner.jvp, check) == []
