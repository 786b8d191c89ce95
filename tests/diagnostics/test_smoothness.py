"""Along the gradient: quantities of a net that can be computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.diagnostics.smoothness import along_gradient
from normbook.gradient_check import survivors

ETAS = [0.05, 0.1, 0.4]
H = np.diag([1.0, 4.0, 9.0])
W = np.array([3.0, -1.0, 0.5])


class Quadratic(nn.Module):
    """ℓ(w) = ½ wᵀHw: loss, gradient and curvature are known."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(W))

    def forward(self) -> torch.Tensor:
        return self.w @ torch.tensor(H) @ self.w / 2


def check(function: Any) -> None:
    found = function(Quadratic(), lambda m: m(), ETAS)
    g = H @ W
    moved = [W - eta * g for eta in ETAS]
    losses = [w @ H @ w / 2 for w in moved]
    changes = [np.linalg.norm(H @ w - g) for w in moved]
    np.testing.assert_allclose(found.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(found.gradient_changes, changes, rtol=1e-12)
    assert found.loss == pytest.approx(W @ H @ W / 2)
    assert found.gradient_norm == pytest.approx(np.linalg.norm(g))
    assert found.loss_range == pytest.approx((min(losses), max(losses)))
    assert found.gradient_predictiveness == pytest.approx((min(changes), max(changes)))


def test_every_quantity_of_a_quadratic_is_the_one_on_paper() -> None:
    check(along_gradient)


def test_every_mutant_is_caught() -> None:
    assert survivors(along_gradient, check) == []


def test_the_effective_smoothness_of_a_quadratic_is_its_curvature_along_g() -> None:
    g = H @ W
    found = along_gradient(Quadratic(), lambda m: m(), ETAS)
    expected = np.linalg.norm(H @ g) / np.linalg.norm(g)
    assert found.effective_smoothness == pytest.approx(expected)
    assert found.effective_smoothness < 9  # the largest eigenvalue


def test_the_floor_is_reached_when_the_first_step_removes_the_gradient() -> None:
    # max(w, 2) has slope 1 at w = 3, and none after any of these steps
    found = along_gradient(Quadratic(), lambda m: m.w.clamp(min=2).sum(), [2.0, 4.0])
    assert found.effective_smoothness == found.floor == 0.5


def test_the_gradient_goes_through_the_statistics_of_the_batch() -> None:
    x = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    norm = nn.BatchNorm1d(1, affine=False, eps=1e-12)
    model = nn.Sequential(nn.Linear(1, 1, bias=False), norm).double()

    def loss(m: Any) -> torch.Tensor:
        total: torch.Tensor = m(x)[0, 0] + m[0].weight.sum()
        return total

    # the output does not depend on the weight, only on its sign
    assert along_gradient(model, loss, [0.01]).gradient_norm == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [[], [0.0], [-1.0], [np.nan], [[1.0]], [np.inf]])
def test_bad_step_sizes_are_refused(steps: Any) -> None:
    with pytest.raises(
        ValueError, match="step_sizes must be a non-empty sequence of pos"
    ):
        along_gradient(Quadratic(), lambda m: m(), steps)


def test_a_zero_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient must not be zero"):
        along_gradient(Quadratic(), lambda m: 0 * m(), ETAS)
