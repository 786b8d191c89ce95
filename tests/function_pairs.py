"""Compare the functions of the family with torch, and the gradients with autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from normbook.gradient_check import check_gradient, relative_error
from normbook.normalize import NormalizeGradients

EXACT = 1e-10  # float64 against torch, which adds in another order


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
