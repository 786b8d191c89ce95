"""The largest curvature: of quadratics, and of a network, beside its whole Hessian."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from normbook.diagnostics.sharpness import curvature
from normbook.gradient_check import survivors
from normbook.layers.batch_norm import BatchNorm1d

H = np.array([[2.0, 1.0, 0.0], [1.0, -3.0, 0.5], [0.0, 0.5, 7.0]])
W = np.array([3.0, -1.0, 0.5])
X = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(9) % 2


class Quadratic(nn.Module):
    """ℓ(w) = ½ wᵀHw: the Hessian is H, with eigenvalues of both signs."""

    def __init__(self, hessian: Any = H) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(W))
        self.hessian = torch.tensor(hessian)

    def forward(self) -> torch.Tensor:
        return self.w @ self.hessian @ self.w / 2


def check(function: Any) -> None:
    g = H @ W
    found = function(Quadratic(), lambda m: m(), tolerance=1e-9)
    assert found.along_gradient == pytest.approx(g @ H @ g / (g @ g))
    assert found.sharpness == pytest.approx(np.linalg.eigvalsh(H)[-1])
    assert found.products == 3
    rough = function(Quadratic(), lambda m: m(), tolerance=0.0, most=2)
    basis = np.linalg.qr(np.stack([g, H @ g], axis=1)).Q
    values, vectors = np.linalg.eigh(basis.T @ H @ basis)
    nearly = basis @ vectors[:, -1]
    error = np.linalg.norm(H @ nearly - values[-1] * nearly)
    assert rough.sharpness == pytest.approx(values[-1])
    assert rough.error == pytest.approx(error)
    for factor, products in ((0.99, 3), (1.01, 2)):
        tolerance = factor * error / values[-1]
        enough = function(Quadratic(), lambda m: m(), tolerance=tolerance)
        assert enough.products == products
    nowhere = function(Quadratic(np.full_like(H, np.inf)), lambda m: m())
    assert np.isnan(nowhere[:3]).all()
    assert nowhere.products == 1


def test_the_curvatures_of_a_quadratic_are_those_of_its_matrix() -> None:
    check(curvature)


def test_the_largest_is_meant_not_the_one_of_largest_size() -> None:
    found = curvature(Quadratic(-H), lambda m: m(), tolerance=1e-9)
    assert found.sharpness == pytest.approx(-np.linalg.eigvalsh(H)[0])


def network(norm: bool) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [BatchNorm1d(4)] if norm else []
        layers = [nn.Linear(3, 4), *middle, nn.Tanh(), nn.Linear(4, 2)]
        return nn.Sequential(*layers).double()


def loss(model: Any) -> torch.Tensor:
    return cross_entropy(model(X), Y)


@pytest.mark.parametrize("norm", [False, True])
def test_the_sharpness_of_a_network_is_that_of_its_whole_hessian(norm: bool) -> None:
    model = network(norm)
    names, shapes = zip(
        *((n, p.shape) for n, p in model.named_parameters()), strict=True
    )
    sizes = [shape.numel() for shape in shapes]
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])

    def of(w: torch.Tensor) -> torch.Tensor:
        parts = torch.split(w, sizes)
        values = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return cross_entropy(functional_call(model, values, X), Y)

    whole = hessian(of, flat)  # type: ignore[no-untyped-call]
    expected = torch.linalg.eigvalsh(whole)[-1].item()
    found = curvature(model, loss, tolerance=1e-6)
    assert found.sharpness == pytest.approx(expected, rel=1e-8)
    assert found.error <= 1e-6 * expected


def test_scaled_weights_in_front_of_batch_norm_are_flatter_by_the_square() -> None:
    layers = nn.Linear(3, 4, bias=False), BatchNorm1d(4, eps=1e-12)
    model: Any = nn.Sequential(*layers).double()
    model[1].requires_grad_(False)  # what is left does not depend on the scale

    def of(m: Any) -> torch.Tensor:
        total: torch.Tensor = (m(X)[:5] ** 3).sum()
        return total

    before = curvature(model, of, tolerance=1e-9)
    with torch.no_grad():
        model[0].weight *= 3
    after = curvature(model, of, tolerance=1e-9)
    assert after.sharpness == pytest.approx(before.sharpness / 9)


def test_it_stops_when_the_error_is_within_the_tolerance_or_at_the_most() -> None:
    model = network(norm=True)
    exact = curvature(model, loss, tolerance=1e-9).sharpness
    rough = curvature(model, loss, tolerance=0.1)
    short = curvature(model, loss, tolerance=0.0, most=2)
    assert rough.products < 15
    assert abs(rough.sharpness - exact) <= rough.error <= 0.1 * rough.sharpness
    assert short.products == 2
    assert short.sharpness <= exact


def test_a_linear_loss_has_no_curvature() -> None:
    found = curvature(Quadratic(), lambda m: m.w.sum())
    assert found == (0.0, 0.0, 0.0, 1)


def test_a_zero_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient must not be zero"):
        curvature(Quadratic(), lambda m: 0 * m())


def test_every_mutant_is_caught_but_one_that_changes_nothing() -> None:
    # A third time makes nothing more orthogonal.
    assert survivors(curvature, check) == ["2 -> 4"]
