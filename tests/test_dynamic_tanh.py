"""Dynamic Tanh: against autograd and differences, broken, and what it does not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from function_pairs import EXACT, assert_differences, draw, refusals, torch_gradients

from normbook.dynamic_tanh import (
    dynamic_tanh,
    dynamic_tanh_backward,
    dynamic_tanh_forward,
)
from normbook.gradient_check import relative_error, survivors

SHAPE = (3, 5)
ALPHA = np.array([0.3])


def definition(x: Any, alpha: Any, gamma: Any, beta: Any) -> Any:
    return gamma * torch.tanh(alpha * x) + beta


def check(backward: Any = dynamic_tanh_backward) -> None:
    """Compare output and every gradient with autograd through the definition."""
    x, gamma, beta, dl_dy = draw(SHAPE)
    y, cache = dynamic_tanh_forward(x, ALPHA, gamma, beta)
    expected, slopes = torch_gradients(definition, dl_dy, x, ALPHA, gamma, beta)
    found = (y, *backward(dl_dy, cache))
    for ours, theirs in zip(found, (expected, *slopes), strict=True):
        assert relative_error(ours, theirs.detach()) < EXACT


def test_it_equals_autograd_through_its_definition() -> None:
    check()


def test_gradients_agree_with_differences() -> None:
    x, gamma, beta, dl_dy = draw(SHAPE)
    arguments = x, ALPHA, gamma, beta
    _, cache = dynamic_tanh_forward(*arguments)
    gradients = dynamic_tanh_backward(dl_dy, cache)
    assert_differences(dynamic_tanh, arguments, dl_dy, gradients)


def test_every_mutant_is_caught() -> None:
    assert survivors(dynamic_tanh_backward, lambda f: check(backward=f)) == []


def test_a_feature_moves_no_other() -> None:
    x, gamma, beta, _ = draw(SHAPE)
    moved = x.copy()
    moved[0, 0] += 1.0
    before, after = (dynamic_tanh(v, ALPHA, gamma, beta) for v in (x, moved))
    is_moved = before != after
    assert is_moved[0, 0]
    assert is_moved.sum() == 1


def test_half_precision_is_rounded_once() -> None:
    x, _, _, dl_dy = (a.astype(np.float16) for a in draw(SHAPE))
    y, cache = dynamic_tanh_forward(x, ALPHA.astype(np.float16))
    exact = dynamic_tanh(x.astype(np.float32), np.float32(ALPHA.astype(np.float16)))
    np.testing.assert_array_equal(y, exact.astype(np.float16))
    assert dynamic_tanh_backward(dl_dy, cache).dl_dx.dtype == np.float16


def test_tensors_give_what_arrays_give() -> None:
    arrays = draw(SHAPE)[0], ALPHA
    found = dynamic_tanh(*map(torch.from_numpy, arrays))
    np.testing.assert_allclose(found, dynamic_tanh(*arrays), rtol=1e-12)


X, ONE = np.ones((2, 3)), np.ones(1)
test_bad_input_is_refused = refusals(
    (lambda: dynamic_tanh([[1.0]], ONE), TypeError, "x must be a NumPy array"),
    (lambda: dynamic_tanh(X, np.ones(3)), ValueError, r"alpha must have shape \(1,\)"),
    (lambda: dynamic_tanh(X, ONE, ONE), ValueError, r"gamma must have shape \(3,\)"),
    (lambda: dynamic_tanh(X, torch.ones(1)), TypeError, "alpha must be of the kind"),
    (
        lambda: dynamic_tanh_backward(X.T, dynamic_tanh_forward(X, ONE)[1]),
        ValueError,
        r"dl_dy must have the shape of y, \(2, 3\), got \(3, 2\)",
    ),
)
