"""Group and instance norm: their relatives, the split into groups, and broken ones.

What all methods keep is tested in test_methods.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from function_pairs import EXACT, assert_gradients, draw, refusals, torch_gradients
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


def test_groups_do_not_act_on_each_other() -> None:
    x, *_ = draw((3, 6, 2, 5))
    changed = x.copy()
    changed[1, 2:4] *= -7.0  # the second of three groups, in one example
    same = np.ones((3, 3), dtype=bool)
    same[1, 1] = False
    a, b = (group_norm(v, 3).reshape(3, 3, -1) for v in (x, changed))
    np.testing.assert_array_equal((a == b).all(-1), same)


@pytest.mark.parametrize("is_affine", [False, True])
def test_one_group_is_layer_norm_whose_gain_is_one_for_each_channel(
    is_affine: bool,
) -> None:
    x, gamma, beta, dl_dy = draw((3, 6, 2, 5))
    each: list[Any] = [None, None]
    if is_affine:
        each = [np.broadcast_to(v[:, None, None], x.shape[1:]) for v in (gamma, beta)]
    one: list[Any] = [gamma, beta] if is_affine else [None, None]
    ours = group_norm_forward(x, 1, one[0], one[1], EPS)
    theirs = layer_norm_forward(x, each[0], each[1], EPS, axes=(1, 2, 3))
    # The gradients of gain and bias are summed over the places of a channel.
    assert_equal_pairs(
        (*ours, group_norm_backward), (*theirs, layer_norm_backward), dl_dy,
        lambda g: g.sum((1, 2)),
    )  # fmt: skip


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


def test_a_constant_image_gives_the_bias() -> None:
    x, gamma, beta, _ = draw((3, 6, 2, 5))
    constant = np.full_like(x, 4.25)
    expected = np.broadcast_to(beta[:, None, None], x.shape)
    np.testing.assert_array_equal(group_norm(constant, 2, gamma, beta), expected)
    np.testing.assert_array_equal(instance_norm(constant, gamma, beta), expected)


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


# Every axis of another length, and a shape without places.
CHECKED = [(5, 6), (3, 6, 2, 5)]


def group_check(forward: Any, backward: Any) -> None:
    for shape in CHECKED:
        x, gamma, beta, dl_dy = draw(shape)
        y, cache = forward(x, 2, gamma, beta, EPS)
        expected, gradients = torch_gradients(
            lambda x, g, b: functional.group_norm(x, 2, g, b, EPS),
            dl_dy, x, gamma, beta,
        )  # fmt: skip
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
test_bad_input_is_refused = refusals(
    (lambda: group_norm(C, 2), ValueError, r"\(N, C\) or \(N, C, ...\), got \(6,\)"),
    (lambda: instance_norm(X[0]), ValueError, r"\(N, C, L\) or more .* got \(6, 5\)"),
    (lambda: group_norm(X, 4), ValueError, "divisor of the number of channels, 6, got"),
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
    (lambda: group_norm(X[:, :, :0], 2), ValueError, r"got x of shape \(4, 6, 0\)"),
    (lambda: group_norm(X[:, :0], 2), ValueError, r"got x of shape \(4, 0, 5\)"),
    (
        lambda: group_norm_backward(X.reshape(4, 2, 3, 5), group_norm_forward(X, 2)[1]),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 6, 5\), got \(4, 2, 3, 5\)",
    ),
)


def test_num_groups_may_be_any_whole_number() -> None:
    x, *_ = draw((3, 6, 2, 5))
    expected = group_norm(x, 2)
    np.testing.assert_array_equal(group_norm(x, np.int64(2)), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("forward", [group_norm, instance_norm])
def test_eps_is_1e_5_if_none_is_given(forward: Callable[..., Any]) -> None:
    x, groups = draw((2, 4, 3))[0], (2,) * (forward is group_norm)
    np.testing.assert_array_equal(forward(x, *groups), forward(x, *groups, eps=1e-5))
