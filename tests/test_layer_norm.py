"""Layer norm and RMSNorm: axes, what they forget, and what they keep.

What all methods keep is tested in test_methods.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import EXACT, draw, refusals
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from normbook.batch_norm import batch_norm, batch_norm_backward, batch_norm_forward
from normbook.gradient_check import relative_error
from normbook.layer_norm import (
    layer_norm,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
)

EPS = 0.1
ROUNDING = 1e-12


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_the_channels_of_each_pixel_are_those_of_torch_moved_last(name: str) -> None:
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(2, 3, (2, 3, 4, 5)), rng.normal(size=3)
    ours: Any = {"layer_norm": layer_norm, "rms_norm": rms_norm}[name]
    last = torch.tensor(x).movedim(1, -1)
    theirs = getattr(functional, name)(last, (3,), torch.tensor(gamma), eps=EPS)
    y = ours(x, gamma, eps=EPS, axes=1)
    assert relative_error(y, theirs.movedim(-1, 1)) < EXACT


scales = st.one_of(st.floats(0.01, 100), st.floats(-100, -0.01))


@given(scales, st.floats(-50, 50), st.integers(0, 100))
def test_layer_norm_keeps_only_the_sign_of_a_scale_and_forgets_a_shift(
    scale: float, shift: float, seed: int
) -> None:
    x, *_ = draw((7, 3), seed=seed)
    expected = np.sign(scale) * layer_norm(x, eps=0.0)
    # A shift that is large beside the spread costs digits.
    y = layer_norm(scale * x + shift, eps=0.0)
    np.testing.assert_allclose(y, expected, atol=1e-7)


@given(scales, st.integers(0, 100))
def test_rms_norm_keeps_only_the_sign_of_a_scale(scale: float, seed: int) -> None:
    x, *_ = draw((7, 3), seed=seed)
    expected = np.sign(scale) * rms_norm(x, eps=0.0)
    np.testing.assert_allclose(rms_norm(scale * x, eps=0.0), expected, atol=ROUNDING)


def test_rms_norm_does_not_forget_a_shift() -> None:
    x, *_ = draw((7, 3))
    assert abs(rms_norm(x + 1.0) - rms_norm(x)).min() > 1e-3


def test_rms_norm_of_centred_values_is_layer_norm() -> None:
    x, *_ = draw((7, 3))
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(rms_norm(centred), layer_norm(x), atol=ROUNDING)


def test_batch_norm_of_the_transpose_is_layer_norm_without_gain_and_bias() -> None:
    x, _, _, dl_dy = draw((7, 3))
    y, cache = layer_norm_forward(x, eps=EPS)
    turned, turned_cache = batch_norm_forward(x.T, eps=EPS)
    np.testing.assert_allclose(turned.T, y, atol=ROUNDING)
    dl_dx = layer_norm_backward(dl_dy, cache).dl_dx
    turned_dl_dx = batch_norm_backward(dl_dy.T, turned_cache).dl_dx
    np.testing.assert_allclose(turned_dl_dx.T, dl_dx, atol=ROUNDING)


def test_with_gain_and_bias_batch_norm_of_the_transpose_is_another_function() -> None:
    x, gamma, beta, _ = draw((3, 3))  # square: else the gain would not even fit
    turned = batch_norm(x.T, gamma, beta, EPS).T
    assert relative_error(turned, layer_norm(x, gamma, beta, EPS)) > 0.1


def test_equal_features_give_the_bias() -> None:
    _, gamma, beta, _ = draw((7, 3))
    y = layer_norm(np.full((7, 3), 4.25), gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (7, 3)))


def test_a_single_feature_gives_the_bias_and_passes_no_gradient() -> None:
    x, gamma, beta, dl_dy = draw((7, 1))
    y, cache = layer_norm_forward(x, gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (7, 1)))
    np.testing.assert_array_equal(layer_norm_backward(dl_dy, cache).dl_dx, 0)


def test_two_features_give_plus_and_minus_one_and_pass_no_gradient() -> None:
    x, gamma, beta, dl_dy = draw((7, 2))
    x_hat = layer_norm(x, eps=0.0)
    np.testing.assert_allclose(abs(x_hat), 1, rtol=ROUNDING)
    np.testing.assert_array_equal(x_hat[:, 0] > 0, x[:, 0] > x[:, 1])
    _, cache = layer_norm_forward(x, gamma, beta, 0.0)
    dl_dx = layer_norm_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose(dl_dx, 0, atol=ROUNDING)


def test_a_single_feature_gives_its_sign_in_rms_norm() -> None:
    x = np.array([[3.0], [-0.5]])
    np.testing.assert_array_equal(rms_norm(x, eps=0.0), [[1.0], [-1.0]])


HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def draw_half(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x, *_ = draw((64, 300))
    gamma = np.random.default_rng(1).normal(1, 0.3, 300)
    return torch.tensor(x).to(dtype), torch.tensor(gamma).to(dtype)


@HALF
def test_rounded_after_the_gain_it_is_torch_s_to_the_bit(dtype: torch.dtype) -> None:
    x, gamma = draw_half(dtype)
    assert torch.equal(
        rms_norm(x, gamma, 1e-6), functional.rms_norm(x, (300,), gamma, 1e-6)
    )


@HALF
def test_rounded_before_the_gain_one_value_in_four_is_another(
    dtype: torch.dtype,
) -> None:
    x, gamma = draw_half(dtype)
    after, before = (rms_norm(x, gamma, rounds=r) for r in ("after", "before"))
    assert 0.15 < (after != before).float().mean() < 0.35
    assert before.dtype == dtype
    assert relative_error(before.float(), after.float()) < torch.finfo(dtype).eps


@HALF
def test_rounded_before_a_gain_of_float32_it_is_float32(dtype: torch.dtype) -> None:
    x, gamma = draw_half(dtype)
    y = rms_norm(x, gamma.float(), rounds="before")
    x_hat = functional.rms_norm(x, (300,), eps=1e-5)
    assert torch.equal(y, x_hat.float() * gamma.float())
    assert rms_norm(x, gamma.float(), rounds="after").dtype == dtype


@HALF
def test_what_is_stored_less_1_keeps_its_digits(dtype: torch.dtype) -> None:
    x, _ = draw_half(dtype)
    stored = torch.full((300,), 1e-4).to(dtype)
    exact = rms_norm(x.double(), 1 + stored.double())
    y = rms_norm(x.float(), stored.float(), offset=1.0)
    assert (
        relative_error(rms_norm(x, stored, offset=1.0).float(), y)
        < torch.finfo(dtype).eps
    )
    assert relative_error(y, exact) < 1e-6
    _, cache = rms_norm_forward(x, stored, offset=1.0)
    gain: Any = cache.gamma
    assert torch.equal(gain, 1 + stored.float())
    # In half precision 1 + 0.0001 is 1.
    assert relative_error(rms_norm(x.float(), (1 + stored).float()), exact) > 5e-5


def test_an_offset_goes_to_the_gain_and_to_its_gradient() -> None:
    x, gamma, _, dl_dy = draw((3, 7))
    gamma = np.arange(7.0)
    (y, cache), (z, moved) = (
        rms_norm_forward(x, gamma),
        rms_norm_forward(x, gamma - 1, offset=1.0),
    )
    np.testing.assert_array_equal(y, z)
    a, b = rms_norm_backward(dl_dy, cache), rms_norm_backward(dl_dy, moved)
    for theirs, ours in zip(a, b, strict=True):
        np.testing.assert_array_equal(theirs, ours)


X = np.ones((4, 3))
BAD: Any = "first"
test_bad_input_is_refused = refusals(
    (lambda: rms_norm(X, 1.0), TypeError, "gamma must be a NumPy array"),  # eps there
    (lambda: layer_norm(X, axes=2), ValueError, r"^axes must lie in -2\.\.1"),
    (lambda: rms_norm(X, axes=(0, -2)), ValueError, "^axes must be different"),
    (lambda: layer_norm(np.array(1.0)), ValueError, "x must have at least one axis"),
    (lambda: rms_norm(X, offset=BAD), ValueError, "^offset must be a finite number"),
    (lambda: rms_norm(X, offset=np.nan), ValueError, "^offset must be a finite number"),
    (lambda: rms_norm(X, rounds=BAD), ValueError, "^rounds must be 'after' or"),
    (lambda: rms_norm(X, 1.0, offset=1.0), TypeError, "^gamma must be a NumPy array"),
)


@HALF
def test_rounded_before_the_gain_all_of_one_dtype_stays_in_it(
    dtype: torch.dtype,
) -> None:
    x, gamma = draw_half(dtype)
    assert rms_norm(x, gamma, offset=1.0, rounds="before").dtype == dtype
    assert torch.equal(
        rms_norm(x, rounds="before"), functional.rms_norm(x, (300,), eps=1e-5)
    )
