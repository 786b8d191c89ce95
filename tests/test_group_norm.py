"""Group and instance norm as functions: against torch, differences, and broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from function_pairs import (
    EXACT,
    assert_differences,
    assert_gradients,
    torch_gradients,
)
from torch.nn import functional

from normbook.batch_norm import batch_norm_backward, batch_norm_forward
from normbook.gradient_check import relative_error, survivors
from normbook.group_norm import (
    group_norm,
    group_norm_backward,
    group_norm_forward,
    instance_norm,
    instance_norm_backward,
    instance_norm_forward,
)
from normbook.layer_norm import layer_norm_backward, layer_norm_forward

EPS = 0.1
ROUNDING = 1e-12
SHAPES = [(5, 6), (5, 6, 4), (3, 6, 2, 5), (2, 6, 3, 4, 5)]
GROUPS = [1, 2, 3, 6]
Arrays = tuple[np.ndarray[Any, Any], ...]


class Pair(NamedTuple):
    """A function of the book, its backward pass, and torch's; all of x, gain, bias."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    theirs: Callable[..., torch.Tensor]


def group_pair(num_groups: int) -> Pair:
    def forward(x: Any, gamma: Any, beta: Any) -> Any:
        return group_norm_forward(x, num_groups, gamma, beta, EPS)

    def theirs(x: torch.Tensor, gamma: Any, beta: Any) -> torch.Tensor:
        return functional.group_norm(x, num_groups, gamma, beta, EPS)

    return Pair(forward, group_norm_backward, theirs)


def torch_instance(x: torch.Tensor, gamma: Any, beta: Any) -> torch.Tensor:
    return functional.instance_norm(x, weight=gamma, bias=beta, eps=EPS)


INSTANCE = Pair(
    partial(instance_norm_forward, eps=EPS), instance_norm_backward, torch_instance
)
CASES = [
    *((group_pair(g), shape) for shape in SHAPES for g in GROUPS if shape[2:] or g < 6),
    *((INSTANCE, shape) for shape in SHAPES[1:]),
]
each_case = pytest.mark.parametrize(("pair", "shape"), CASES)
each_pair = pytest.mark.parametrize("pair", [group_pair(2), INSTANCE])


def draw(shape: tuple[int, ...], seed: int = 0) -> Arrays:
    """Give x, gamma, beta and dl_dy."""
    rng = np.random.default_rng(seed)
    parameters = rng.normal(size=shape[1]), rng.normal(size=shape[1])
    return rng.normal(2, 3, shape), *parameters, rng.normal(size=shape)


def assert_equal_pairs(
    a: Any, b: Any, dl_dy: Any, parameters: Callable[[Any], Any] = np.asarray
) -> None:
    """Compare (y, cache, backward) of two functions; parameters maps those of b."""
    np.testing.assert_allclose(a[0], b[0], atol=ROUNDING)
    ours, theirs = a[2](dl_dy, a[1]), b[2](dl_dy, b[1])
    np.testing.assert_allclose(ours.dl_dx, theirs.dl_dx, atol=ROUNDING)
    for name in ("dl_dgamma", "dl_dbeta"):
        expected = parameters(getattr(theirs, name))
        np.testing.assert_allclose(getattr(ours, name), expected, atol=ROUNDING)


@each_case
@pytest.mark.parametrize("of", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_values_and_gradients_equal_torch(
    of: Callable[..., Any], pair: Pair, shape: tuple[int, ...]
) -> None:
    *arrays, dl_dy = draw(shape)
    y, cache = pair.forward(*map(of, arrays))
    expected, gradients = torch_gradients(pair.theirs, dl_dy, *arrays)
    assert relative_error(y, expected) < EXACT
    assert_gradients(pair.backward(of(dl_dy), cache), gradients)


@each_case
def test_gradients_agree_with_central_differences(
    pair: Pair, shape: tuple[int, ...]
) -> None:
    *arrays, dl_dy = draw((2, *shape[1:4]))
    gradients = pair.backward(dl_dy, pair.forward(*arrays)[1])
    assert_differences(
        lambda *given: pair.forward(*given)[0], tuple(arrays), dl_dy, gradients
    )


def test_the_short_form_gives_what_the_long_one_gives() -> None:
    x, gamma, beta, _ = draw((3, 6, 2, 5))
    y, _ = group_norm_forward(x, 2, gamma, beta, EPS)
    np.testing.assert_array_equal(group_norm(x, 2, gamma, beta, EPS), y)
    y, _ = instance_norm_forward(x, gamma, beta, EPS)
    np.testing.assert_array_equal(instance_norm(x, gamma, beta, EPS), y)


def test_the_usual_eps_is_that_of_torch() -> None:
    x = draw((3, 6, 2, 5))[0] / 1000  # so small that eps matters
    expected = functional.group_norm(torch.tensor(x), 2)
    assert relative_error(group_norm(x, 2), expected) < EXACT
    expected = functional.instance_norm(torch.tensor(x))
    assert relative_error(instance_norm(x), expected) < EXACT


def test_a_gain_that_was_left_out_has_a_gradient_of_its_shape() -> None:
    x, *_, dl_dy = draw((3, 6, 2, 5))
    gradients = group_norm_backward(dl_dy, group_norm_forward(x, 2)[1])
    assert gradients.dl_dgamma.shape == gradients.dl_dbeta.shape == (6,)
    gradients = instance_norm_backward(dl_dy, instance_norm_forward(x)[1])
    assert gradients.dl_dgamma.shape == gradients.dl_dbeta.shape == (6,)


@pytest.mark.parametrize("num_groups", GROUPS)
def test_without_eps_the_gradient_has_no_part_along_one_or_x_hat(
    num_groups: int,
) -> None:
    x, gamma, beta, dl_dy = draw((3, 6, 2, 5))
    _, cache = group_norm_forward(x, num_groups, gamma, beta, 0.0)
    dl_dx = group_norm_backward(dl_dy, cache).dl_dx.reshape(3, num_groups, -1)
    x_hat = cache.x_hat.reshape(3, num_groups, -1)
    np.testing.assert_allclose(dl_dx.sum(-1), 0, atol=ROUNDING)
    np.testing.assert_allclose((dl_dx * x_hat).sum(-1), 0, atol=ROUNDING)


def test_groups_do_not_act_on_each_other() -> None:
    x, *_ = draw((3, 6, 2, 5))
    changed = x.copy()
    changed[1, 2:4] *= -7.0  # the second of three groups, in one example
    same = np.ones((3, 3), dtype=bool)
    same[1, 1] = False
    a, b = (group_norm(v, 3).reshape(3, 3, -1) for v in (x, changed))
    np.testing.assert_array_equal((a == b).all(-1), same)


def test_one_group_is_layer_norm_over_the_whole_image() -> None:
    x, *_, dl_dy = draw((3, 6, 2, 5))
    ours = *group_norm_forward(x, 1, eps=EPS), group_norm_backward
    theirs = layer_norm_forward(x, eps=EPS, axes=(1, 2, 3))
    # Without gain and bias; their gradients are summed over the places of a channel.
    assert_equal_pairs(
        ours, (*theirs, layer_norm_backward), dl_dy, lambda g: g.sum((1, 2))
    )


def test_one_group_is_layer_norm_whose_gain_is_one_for_each_channel() -> None:
    x, gamma, beta, dl_dy = draw((3, 6, 2, 5))
    ours = *group_norm_forward(x, 1, gamma, beta, EPS), group_norm_backward
    each = [np.broadcast_to(v[:, None, None], x.shape[1:]) for v in (gamma, beta)]
    theirs = layer_norm_forward(x, each[0], each[1], EPS, axes=(1, 2, 3))
    assert_equal_pairs(
        ours, (*theirs, layer_norm_backward), dl_dy, lambda g: g.sum((1, 2))
    )


def test_a_group_for_each_channel_is_instance_norm() -> None:
    x, gamma, beta, dl_dy = draw((3, 6, 2, 5))
    ours = *group_norm_forward(x, 6, gamma, beta, EPS), group_norm_backward
    theirs = *instance_norm_forward(x, gamma, beta, EPS), instance_norm_backward
    assert_equal_pairs(ours, theirs, dl_dy)


def test_batch_norm_of_a_single_image_is_instance_norm() -> None:
    x, gamma, beta, dl_dy = draw((1, 6, 2, 5))
    ours = *instance_norm_forward(x, gamma, beta, EPS), instance_norm_backward
    theirs = *batch_norm_forward(x, gamma, beta, EPS), batch_norm_backward
    assert_equal_pairs(ours, theirs, dl_dy)


@each_pair
def test_a_constant_image_gives_the_bias(pair: Pair) -> None:
    _, gamma, beta, _ = draw((3, 6, 2, 5))
    y, _ = pair.forward(np.full((3, 6, 2, 5), 4.25), gamma, beta)
    expected = np.broadcast_to(beta[:, None, None], y.shape)
    np.testing.assert_array_equal(y, expected)


def test_a_group_of_one_value_gives_the_bias_and_passes_no_gradient() -> None:
    x, gamma, beta, dl_dy = draw((5, 6))
    y, cache = group_norm_forward(x, 6, gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (5, 6)))
    np.testing.assert_array_equal(group_norm_backward(dl_dy, cache).dl_dx, 0)
    y = instance_norm(x[:, :, None], gamma, beta)
    np.testing.assert_array_equal(y[:, :, 0], np.broadcast_to(beta, (5, 6)))


def test_a_group_of_two_values_gives_plus_and_minus_one() -> None:
    x, *_ = draw((5, 6))
    y = group_norm(x, 3, eps=0.0)
    np.testing.assert_allclose(abs(y), 1, rtol=ROUNDING)
    np.testing.assert_array_equal(y[:, ::2] > 0, x[:, ::2] > x[:, 1::2])


def test_a_large_mean_in_float32_costs_no_more_than_in_torch() -> None:
    x = (draw((5, 6, 8, 16))[0] / 3 + 1e4).astype(np.float32)  # mean / std is 1e4
    exact = group_norm(x.astype(np.float64), 2)
    ours = relative_error(group_norm(x, 2), exact)
    theirs = relative_error(functional.group_norm(torch.tensor(x), 2), exact)
    assert ours <= max(2 * theirs, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_pair
def test_half_precision_is_rounded_once(dtype: torch.dtype, pair: Pair) -> None:
    x, gamma, beta, dl_dy = (torch.tensor(a).float() for a in draw((3, 6, 2, 5)))
    x, dl_dy = x.to(dtype), dl_dy.to(dtype)
    y, cache = pair.forward(x, gamma, beta)
    exact, exact_cache = pair.forward(x.float(), gamma, beta)
    dl_dx = pair.backward(dl_dy, cache).dl_dx
    exact_dl_dx = pair.backward(dl_dy.float(), exact_cache).dl_dx
    assert y.dtype == dl_dx.dtype == dtype
    assert torch.equal(y, exact.to(dtype))
    assert torch.equal(dl_dx, exact_dl_dx.to(dtype))


@each_pair
def test_an_empty_batch_gives_an_empty_result_and_gradients_of_zero(pair: Pair) -> None:
    *arrays, dl_dy = draw((0, 6, 2, 5))
    y, cache = pair.forward(*arrays)
    dl_dx, dl_dgamma, dl_dbeta = pair.backward(dl_dy, cache)
    assert y.shape == dl_dx.shape == (0, 6, 2, 5)
    np.testing.assert_array_equal([dl_dgamma, dl_dbeta], np.zeros((2, 6)))


@each_pair
def test_channels_that_stand_last_in_memory_give_the_same(pair: Pair) -> None:
    x, gamma, beta, dl_dy = map(torch.tensor, draw((3, 6, 2, 5)))
    last = x.to(memory_format=torch.channels_last)
    y, cache = pair.forward(last, gamma, beta)
    expected, dense = pair.forward(x, gamma, beta)
    assert relative_error(y, expected) < ROUNDING
    gap = dl_dy.to(memory_format=torch.channels_last)
    dl_dx = pair.backward(gap, cache).dl_dx
    assert relative_error(dl_dx, pair.backward(dl_dy, dense).dl_dx) < ROUNDING


# Every axis of another length, and a shape without places.
CHECKED = [(5, 6), (3, 6, 2, 5)]


def group_check(forward: Any, backward: Any) -> None:
    for shape in CHECKED:
        x, gamma, beta, dl_dy = draw(shape)
        y, cache = forward(x, 2, gamma, beta, EPS)
        theirs = group_pair(2).theirs
        expected, gradients = torch_gradients(theirs, dl_dy, x, gamma, beta)
        assert relative_error(y, expected) < EXACT
        assert_gradients(backward(dl_dy, cache), gradients)


def test_every_mutant_of_group_norm_is_caught() -> None:
    def forward_check(forward: Any) -> None:
        group_check(forward, group_norm_backward)

    def backward_check(backward: Any) -> None:
        group_check(group_norm_forward, backward)

    assert survivors(group_norm_forward, forward_check) == []
    assert survivors(group_norm_backward, backward_check) == []


def test_every_mutant_of_the_split_into_groups_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = sys.modules["normbook.group_norm"]

    def check(helper: Any) -> None:
        monkeypatch.setattr(module, "_groups", helper)
        group_check(group_norm_forward, group_norm_backward)

    assert survivors(module._groups, check) == []


def test_channels_dealt_out_in_turn_are_caught() -> None:
    def in_turn(x: Any, num_groups: int, *rest: Any) -> Any:
        order = np.arange(x.shape[1]).reshape(num_groups, -1).T.ravel()
        y, cache = group_norm_forward(x[:, order], num_groups, *rest)
        return y[:, np.argsort(order)], cache

    with pytest.raises(AssertionError):
        group_check(in_turn, group_norm_backward)


X, C = np.ones((4, 6, 5)), np.ones(6)
Case = tuple[Callable[[], object], type[Exception], str]
BAD_CALLS: list[Case] = [
    (lambda: group_norm([[1.0]], 1), TypeError, "x must be .* got list"),
    (lambda: group_norm(X.astype(int), 2), TypeError, "x must hold real.* dtype int64"),
    (lambda: instance_norm(X.astype(int)), TypeError, "x must hold real.* dtype int64"),
    (
        lambda: group_norm(C, 2),
        ValueError,
        r"x must have shape \(N, C\) or \(N, C, ...\), got \(6,\)",
    ),
    (
        lambda: instance_norm(X[0]),
        ValueError,
        r"x must have shape \(N, C, L\) or more axes, got \(6, 5\)",
    ),
    (
        lambda: group_norm(X, 4),
        ValueError,
        "num_groups must be a divisor of the number of channels, 6, got 4",
    ),
    (lambda: group_norm(X, 0), ValueError, "must be a divisor .* 6, got 0"),
    (lambda: group_norm(X, -2), ValueError, "must be a divisor .* 6, got -2"),
    (lambda: group_norm(X, 2.0), TypeError, "num_groups must be a whole number"),  # type: ignore[arg-type]
    (lambda: group_norm(X, C), TypeError, "num_groups must be a whole number"),  # type: ignore[arg-type]
    (
        lambda: group_norm(X, 2, np.ones((2, 3))),
        ValueError,
        r"gamma must have shape \(6,\), got \(2, 3\); pass 6 values, one per feature: "
        r"axes \(1,\) of x with shape \(4, 6, 5\)",
    ),
    (lambda: group_norm(X, 2, C, X), ValueError, "beta must have shape"),
    (lambda: instance_norm(X, C[:5]), ValueError, r"gamma must have shape \(6,\)"),
    (lambda: instance_norm(X, torch.ones(6)), TypeError, "gamma must be of the kind"),
    (
        lambda: group_norm(X[:, :, :0], 2),
        ValueError,
        r"at least one value in each group, got x of shape \(4, 6, 0\)",
    ),
    (
        lambda: group_norm(X[:, :0], 2),
        ValueError,
        r"at least one value in each group, got x of shape \(4, 0, 5\)",
    ),
    (lambda: instance_norm(X[:, :, :0]), ValueError, "one value in each group"),
    (lambda: group_norm(X, 2, eps=-1.0), ValueError, "eps must be"),
    (lambda: instance_norm(X, eps=-1.0), ValueError, "eps must be"),
    (
        lambda: group_norm_backward(X[:2], group_norm_forward(X, 2)[1]),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 6, 5\), got \(2, 6, 5\)",
    ),
    (
        lambda: group_norm_backward(X.reshape(4, 2, 3, 5), group_norm_forward(X, 2)[1]),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 6, 5\), got \(4, 2, 3, 5\)",
    ),
    (
        lambda: group_norm_backward(X.astype(int), group_norm_forward(X, 2)[1]),
        TypeError,
        "dl_dy must hold real",
    ),
    (
        lambda: group_norm_backward(torch.tensor(X), group_norm_forward(X, 2)[1]),
        TypeError,
        "dl_dy must be of the kind of y",
    ),
    (
        lambda: instance_norm_backward(X[:2], instance_norm_forward(X)[1]),
        ValueError,
        "dl_dy must have the shape of y",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_num_groups_may_be_any_whole_number() -> None:
    x, *_ = draw((3, 6, 2, 5))
    expected = group_norm(x, 2)
    np.testing.assert_array_equal(group_norm(x, np.int64(2)), expected)  # type: ignore[arg-type]
