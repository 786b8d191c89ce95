"""Batch norm: inference, what training does to a batch, and broken formulas.

What all methods keep is tested in test_methods.py.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import EXACT, Arrays, assert_gradients, refusals, torch_gradients
from torch.nn.functional import batch_norm as torch_batch_norm

from normbook.batch_norm import (
    batch_axes,
    batch_norm,
    batch_norm_backward,
    batch_norm_forward,
    batch_norm_inference,
    batch_norm_inference_backward,
)
from normbook.gradient_check import relative_error, survivors

SHAPES = [(7, 3), (5, 3, 4), (4, 3, 2, 5), (2, 3, 4, 2, 5)]


def draw(shape: tuple[int, ...], seed: int = 0) -> Arrays:
    """Return x, dl_dy, gamma, beta, running mean and running variance."""
    rng = np.random.default_rng(seed)
    per_channel = [rng.normal(size=shape[1]) for _ in range(3)]
    var = rng.uniform(0.5, 2, shape[1])
    return rng.normal(2, 3, shape), rng.normal(size=shape), *per_channel, var


@pytest.mark.parametrize("shape", SHAPES)
def test_inference_equals_torch(shape: tuple[int, ...]) -> None:
    x, dl_dy, gamma, beta, mean, var = draw(shape)
    y = batch_norm_inference(x, mean, var, gamma, beta, eps=0.1)
    m, v = torch.tensor(mean), torch.tensor(var)
    expected, gradients = torch_gradients(
        lambda x, g, b: torch_batch_norm(x, m, v, g, b, False, 0.1, 0.1),
        dl_dy, x, gamma, beta,
    )  # fmt: skip
    ours = batch_norm_inference_backward(dl_dy, x, mean, var, gamma, eps=0.1)
    assert relative_error(y, expected) < EXACT
    assert_gradients(ours, gradients)


def test_gain_and_bias_default_to_one_and_zero_in_inference() -> None:
    x, *_, mean, var = draw((7, 3))
    y = batch_norm_inference(x, mean, var, np.ones(3), np.zeros(3))
    np.testing.assert_array_equal(batch_norm_inference(x, mean, var), y)


def test_the_usual_eps_of_inference_is_1e_5() -> None:
    x, dl_dy, *_, mean, var = draw((7, 3))
    var /= 1e4  # so small that eps matters
    m, v = torch.tensor(mean), torch.tensor(var)
    y, (dl_dx,) = torch_gradients(
        lambda x: torch_batch_norm(x, m, v, eps=1e-5), dl_dy, x
    )
    assert relative_error(batch_norm_inference(x, mean, var), y) < EXACT
    ours = batch_norm_inference_backward(dl_dy, x, mean, var)
    assert relative_error(ours.dl_dx, dl_dx) < EXACT


def test_the_identity_is_within_reach() -> None:
    x, *_ = draw((7, 3))
    _, cache = batch_norm_forward(x)
    gamma, beta = np.sqrt(cache.var + 1e-5)[0], cache.mu[0]
    np.testing.assert_allclose(batch_norm(x, gamma, beta), x, rtol=1e-12)


def test_inference_with_the_batch_statistics_equals_training() -> None:
    x, _, gamma, beta, *_ = draw((4, 3, 2, 5))
    y, cache = batch_norm_forward(x, gamma, beta)
    again = batch_norm_inference(x, cache.mu.ravel(), cache.var.ravel(), gamma, beta)
    np.testing.assert_allclose(again, y, atol=1e-12)


def test_a_bias_added_to_the_input_gets_no_gradient() -> None:
    x, dl_dy, gamma, *_ = draw((7, 3))
    _, cache = batch_norm_forward(x, gamma)
    np.testing.assert_allclose(
        batch_norm_backward(dl_dy, cache).dl_dx.sum(0), 0, atol=1e-14
    )


def test_inference_takes_an_empty_batch() -> None:
    *_, mean, var = draw((7, 3))
    assert batch_norm_inference(np.zeros((0, 3)), mean, var).shape == (0, 3)


def test_half_precision_inference_keeps_its_dtype() -> None:
    x, _, gamma, beta, mean, var = (torch.tensor(a).float() for a in draw((64, 3)))
    y = batch_norm_inference(x.half(), mean, var, gamma, beta)
    assert y.dtype == torch.float16
    assert torch.equal(
        y, batch_norm_inference(x.half().float(), mean, var, gamma, beta).half()
    )


FORMULAS = "affine affine_gradients broadcast_along _standardized inference_backward"


@pytest.mark.parametrize("name", FORMULAS.split())
def test_every_mutant_of_inference_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["normbook.batch_norm"]

    def check(formula: Any) -> None:
        monkeypatch.setattr(module, name, formula)
        test_inference_equals_torch((5, 3, 4))

    assert survivors(getattr(module, name), check) == []


X = np.ones((4, 3))
D = np.ones(3)
test_bad_input_is_refused = refusals(
    (lambda: batch_norm(D), ValueError, r"\(N, D\) or \(N, C, ...\), got \(3,\)"),
    (lambda: batch_norm_inference(X, D[:2], D), ValueError, "running_mean must have"),
    (lambda: batch_norm_inference(X, D, D[:2]), ValueError, "running_var must have"),
    (lambda: batch_norm_inference(X, D, D, eps=-1), ValueError, "eps must be"),
    (lambda: batch_norm_inference(X, D, D, X), ValueError, "gamma must have"),
    (lambda: batch_norm_inference(X, None, D), TypeError, "running_mean must be"),
    (lambda: batch_norm_inference(D, D, D), ValueError, r"\(N, D\) or"),
    (
        lambda: batch_norm_inference_backward(X[:2], X, D, D),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 3\), got \(2, 3\)",
    ),
)


def test_the_batch_axes_are_all_but_the_channel() -> None:
    axes = [batch_axes(np.zeros(shape)) for shape in SHAPES]
    assert axes == [(0,), (0, 2), (0, 2, 3), (0, 2, 3, 4)]
