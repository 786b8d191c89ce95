"""Scaled weight standardization and spectral norm: against torch, and broken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import (
    EXACT,
    WEIGHTS,
    assert_differences,
    check_scaled_weight_standardization,
    draw_weights,
    refusals,
    torch_gradients,
)

from normbook.gradient_check import relative_error, survivors
from normbook.normalize import normalize_forward
from normbook.weight_norm import (
    RELU_GAIN,
    gain_of_rows,
    power_iteration,
    scaled_weight_standardization,
    scaled_weight_standardization_backward,
    scaled_weight_standardization_forward,
    spectral_norm,
    spectral_norm_backward,
    spectral_norm_forward,
)

EPS = 0.3


def test_scaled_weight_standardization_equals_autograd() -> None:
    for of in (np.asarray, torch.tensor):
        check_scaled_weight_standardization(of=of)


@pytest.mark.parametrize("axes", [0, 1, (0, 1)])
def test_scaled_weight_standardization_over_other_axes_is_caught(axes: Any) -> None:
    def broken(w: Any, g: Any, eps: float) -> Any:
        gain = gain_of_rows(w, g)
        return normalize_forward(w, gain, axes=axes, parameter_axes=0, eps=eps)

    with pytest.raises(AssertionError):
        check_scaled_weight_standardization(broken)


def test_gradients_of_scaled_weight_standardization_agree_with_differences() -> None:
    w, g, dl_dw_hat = draw_weights((3, 5, 4))
    _, cache = scaled_weight_standardization_forward(w, g, EPS)
    slopes = scaled_weight_standardization_backward(dl_dw_hat, cache)
    assert_differences(
        lambda w, g: scaled_weight_standardization(w, g, EPS), (w, g), dl_dw_hat, slopes
    )


def test_its_rows_have_mean_zero_and_the_lengths_g() -> None:
    w, g, _ = draw_weights((3, 5, 4))
    w_hat = scaled_weight_standardization(w, g, 0.0)
    np.testing.assert_allclose(w_hat.mean((1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose((w_hat**2).sum((1, 2)), g**2, rtol=1e-12)


def test_relu_of_normal_numbers_times_its_gain_has_variance_one() -> None:
    x = np.linspace(0, 12, 200_001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    mean, square = (np.trapezoid(x**k * density, x) for k in (1, 2))
    assert RELU_GAIN**2 * (square - mean**2) == pytest.approx(1, rel=1e-8)


# --- spectral norm


def singular(shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return weights and their first singular vectors, by numpy."""
    w = draw_weights(shape)[0]
    u, _, v = np.linalg.svd(w.reshape(shape[0], -1), full_matrices=False)
    return w, u[:, 0].copy(), v[0].copy()


def check_spectral(backward: Any = spectral_norm_backward) -> None:
    """Compare with the definition by torch's singular values, and autograd."""

    def definition(w: torch.Tensor) -> torch.Tensor:
        w_hat: torch.Tensor = w / torch.linalg.matrix_norm(w.flatten(1), ord=2)
        return w_hat

    for shape in WEIGHTS:
        w, u, v = singular(shape)
        dl_dw_hat = draw_weights(shape)[2]
        w_hat, cache = spectral_norm_forward(w, u, v)
        expected, (slope,) = torch_gradients(definition, dl_dw_hat, w)
        assert relative_error(w_hat, expected.detach()) < EXACT
        assert relative_error(backward(dl_dw_hat, cache), slope) < EXACT


def test_spectral_norm_equals_autograd_through_the_largest_singular_value() -> None:
    check_spectral()


def test_every_mutant_of_its_gradient_is_caught() -> None:
    assert survivors(spectral_norm_backward, lambda f: check_spectral(f)) == []


def test_its_gradient_agrees_with_differences() -> None:
    w, u, v = singular((3, 5, 4))
    dl_dw_hat = draw_weights((3, 5, 4))[2]
    slope = spectral_norm_backward(dl_dw_hat, spectral_norm_forward(w, u, v)[1])
    assert_differences(lambda w: spectral_norm(w, u, v), (w,), dl_dw_hat, (slope,))


def test_power_iteration_shrinks_the_second_direction_by_the_stated_factor() -> None:
    w = np.diag([3.0, 2.0])
    _, v = power_iteration(w, np.array([1.0, 1.0]) / 2**0.5, steps=2)
    assert v[1] / v[0] == pytest.approx((2 / 3) ** 4)


def test_many_steps_find_the_largest_singular_value() -> None:
    w, *_ = singular((3, 5, 4))
    start = np.ones(20) / 20**0.5
    w_hat = spectral_norm(w, *power_iteration(w, start, steps=500))
    largest = np.linalg.svd(w_hat.reshape(3, -1), compute_uv=False)[0]
    assert largest == pytest.approx(1, rel=1e-12)


W, U, V = np.ones((4, 3)), np.ones(4), np.ones(3)
test_bad_input_is_refused = refusals(
    (lambda: power_iteration(W, V, 0), ValueError, "steps must be at least 1, got 0"),
    (lambda: power_iteration(W, U), ValueError, "v must have the shape of a row of w"),
    (lambda: spectral_norm(W, V, V), ValueError, "u must have the shape of a column"),
    (lambda: spectral_norm(U, U, V), ValueError, r"got \(4,\); add the missing axis"),
    (lambda: spectral_norm(W, U, torch.ones(3)), TypeError, "v must be of the kind"),
    (
        lambda: spectral_norm_backward(W.T, spectral_norm_forward(W, U, V)[1]),
        ValueError,
        "dl_dw_hat must have the shape of w_hat",
    ),
    (
        lambda: scaled_weight_standardization(W, V),
        ValueError,
        r"g must have shape \(4,\), got \(3,\)",
    ),
)
