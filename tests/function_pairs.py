"""What tests of the family share: comparison with torch and autograd, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from normbook.gradient_check import check_gradient, relative_error
from normbook.normalize import NormalizeGradients
from normbook.weight_norm import (
    scaled_weight_standardization_backward,
    scaled_weight_standardization_forward,
    weight_norm_backward,
    weight_norm_forward,
    weight_standardization_backward,
    weight_standardization_forward,
)

EXACT = 1e-10  # float64 against torch, which adds in another order
WEIGHTS = [(6, 3, 2, 5), (3, 7), (3, 5, 4), (7, 1)]  # the first tells axes apart
WEIGHTS_EPS = 0.3


Arrays = tuple[np.ndarray[Any, Any], ...]


def draw(shape: tuple[int, ...], seed: int = 0) -> Arrays:
    """Return x, gamma and beta for axis 1, and dl_dy."""
    rng = np.random.default_rng(seed)
    parameters = rng.normal(size=shape[1]), rng.normal(size=shape[1])
    return rng.normal(2, 3, shape), *parameters, rng.normal(size=shape)


def refusals(
    *calls: tuple[Callable[[], object], type[Exception], str],
) -> Callable[..., None]:
    """Return the test that each call raises its error, in these words."""

    @pytest.mark.parametrize(("call", "error", "message"), calls)
    def is_refused(
        call: Callable[[], object], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            call()

    return is_refused


def torch_gradients(
    f: Callable[..., torch.Tensor], dl_dy: np.ndarray[Any, Any], *arrays: Any
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return f of the arrays, and the gradients that autograd finds."""
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = f(*leaves)
    return y, torch.autograd.grad(y, leaves, torch.tensor(dl_dy))


def assert_gradients(ours: NormalizeGradients, theirs: tuple[Any, ...]) -> None:
    """Demand equality of the gradients in x, gain and bias."""
    for name, a, b in zip(ours._fields, ours, theirs, strict=True):
        assert relative_error(a, b) < EXACT, name


def assert_differences(
    f: Callable[..., Any],
    arrays: tuple[Any, ...],
    dl_dy: np.ndarray[Any, Any],
    gradients: tuple[Any, ...],
) -> None:
    """Compare the gradient in each argument of f with central differences."""
    for i, (value, gradient) in enumerate(zip(arrays, gradients, strict=True)):

        def of_one(v: Any, i: int = i) -> Any:
            return f(*arrays[:i], v, *arrays[i + 1 :])

        check_gradient(of_one, value, gradient, dl_dy)


def draw_weights(shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Return v, g and dl_dw."""
    rng = np.random.default_rng(0)
    lengths = rng.normal(size=shape[0])
    return rng.normal(0.3, 1, shape), lengths, rng.normal(size=shape)


def check_weight_norm(
    forward: Any = weight_norm_forward,
    backward: Any = weight_norm_backward,
    of: Callable[..., Any] = np.asarray,
) -> None:
    """Compare weight norm with torch's."""
    for shape in WEIGHTS:
        v, g, dl_dw = draw_weights(shape)
        w, cache = forward(of(v), of(g))
        column = (-1, *(1,) * (v.ndim - 1))
        expected, gradients = torch_gradients(
            lambda v, g, column=column: torch._weight_norm(v, g.reshape(column), 0),
            dl_dw, v, g,
        )  # fmt: skip
        _assert_close((w, *backward(of(dl_dw), cache)), (expected, *gradients))


def check_weight_standardization(
    forward: Any = weight_standardization_forward,
    backward: Any = weight_standardization_backward,
    of: Callable[..., Any] = np.asarray,
) -> None:
    """Compare weight standardization with its definition in torch."""

    def definition(w: torch.Tensor) -> torch.Tensor:
        var, mu = torch.var_mean(w, tuple(range(1, w.ndim)), correction=0, keepdim=True)
        return (w - mu) / torch.sqrt(var + WEIGHTS_EPS)

    for shape in WEIGHTS:
        w, _, dl_dw_hat = draw_weights(shape)
        w_hat, cache = forward(of(w), WEIGHTS_EPS)
        expected, gradients = torch_gradients(definition, dl_dw_hat, w)
        _assert_close((w_hat, backward(of(dl_dw_hat), cache)), (expected, *gradients))


def check_scaled_weight_standardization(
    forward: Any = scaled_weight_standardization_forward,
    backward: Any = scaled_weight_standardization_backward,
    of: Callable[..., Any] = np.asarray,
) -> None:
    """Compare scaled weight standardization with its definition in torch."""

    def definition(w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        axes = tuple(range(1, w.ndim))
        var, mu = torch.var_mean(w, axes, correction=0, keepdim=True)
        gain = g.reshape(-1, *(1,) * len(axes)) / w[0].numel() ** 0.5
        w_hat: torch.Tensor = gain * (w - mu) / torch.sqrt(var + WEIGHTS_EPS)
        return w_hat

    for shape in WEIGHTS:
        w, g, dl_dw_hat = draw_weights(shape)
        w_hat, cache = forward(of(w), of(g), WEIGHTS_EPS)
        expected, gradients = torch_gradients(definition, dl_dw_hat, w, g)
        back = backward(of(dl_dw_hat), cache)
        _assert_close((w_hat, *back), (expected, *gradients))


def _assert_close(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert tuple(a.shape) == tuple(b.shape)
        # Rows of one weight pass nothing back: both are rounding there.
        np.testing.assert_allclose(a, b.detach(), rtol=EXACT, atol=1e-12)
