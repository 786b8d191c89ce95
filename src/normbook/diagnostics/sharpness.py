r"""The largest curvature of the loss, and the one along the gradient.

The Hessian H of the loss of one batch by all trained parameters is never built: only
its products with vectors are, by differentiating the gradient once more. For a model
in training mode the statistics of the batch move with the weights, in H too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from normbook.diagnostics.undisturbed import Loss, check_trained, undisturbed

__all__ = ["Curvature", "curvature"]


class Curvature(NamedTuple):
    r"""Curvatures of the loss, in nats per squared unit of the parameters.

    ``along_gradient`` is :math:`g^\top H g / \lVert g \rVert^2`, ``sharpness`` the
    largest eigenvalue of H, from ``products`` of H with a vector; an eigenvalue of H
    lies within ``error`` of it.
    """

    along_gradient: float
    sharpness: float
    error: float
    products: int


def curvature(
    model: nn.Module, loss: Loss, *, tolerance: float = 0.01, most: int = 40
) -> Curvature:
    r"""Measure the curvature of the loss along its gradient, and the largest one.

    The method of Lanczos, from the gradient on: after k products H is known on the
    space of :math:`g, Hg, \dots, H^{k-1} g`. It ends when ``error`` is at most
    ``tolerance`` times the sharpness, or after ``most`` products. What it finds is
    never above the largest eigenvalue; one with no part in the gradient is not seen. A
    gradient of zero is a ``ValueError``; where something is not finite, all is NaN.

    Examples
    --------
    For :math:`\ell = (w_1^2 + 4 w_2^2) / 2` at w = (4, 1) the gradient is (4, 4):

    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> model.weight.data = torch.tensor([[4.0, 1.0]], dtype=torch.float64)
    >>> scales = torch.tensor([[1.0, 4.0]])
    >>> found = curvature(model, lambda m: (scales * m.weight**2).sum() / 2)
    >>> round(found.along_gradient, 6), round(found.sharpness, 6), found.products
    (2.5, 4.0, 2)
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    check_trained(parameters)
    with undisturbed(model), torch.enable_grad():
        slopes = torch.autograd.grad(
            loss(model), parameters, create_graph=True, materialize_grads=True
        )
        slope = _joined(slopes)
        length = slope.detach().double().norm().item()
        if length == 0:
            raise ValueError(
                "the gradient must not be zero, got a norm of 0; there is no "
                "direction to begin with."
            )
        basis = (slope.detach().double() / length)[None]  # (k, P), orthonormal
        projected = basis.new_zeros(most, most)  # H in this basis, its upper triangle
        for k in range(most):
            image = torch.zeros_like(basis[k])
            if slope.requires_grad:  # else it is constant
                products = torch.autograd.grad(
                    slope,
                    parameters,
                    basis[k].to(slope),
                    retain_graph=True,
                    materialize_grads=True,
                )
                image = _joined(products).double()
            projected[: k + 1, k] = basis @ image
            for _ in range(2):  # once leaves what rounding has brought back
                image = image - basis.T @ (basis @ image)
            rest = image.norm().item()
            inside = projected[: k + 1, : k + 1].cpu().numpy()
            if not np.isfinite(inside).all():
                inside = np.array([[np.nan]])
                values, error = inside[0], np.nan
                break
            values, vectors = np.linalg.eigh(inside, UPLO="U")
            error = rest * abs(vectors[-1, -1])
            if error <= tolerance * abs(values[-1]):
                break
            basis = torch.cat([basis, image[None] / rest])
    return Curvature(float(inside[0, 0]), float(values[-1]), float(error), k + 1)


def _joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all entries as one vector, in whatever order they lie in memory."""
    return torch.cat([t.flatten() for t in tensors])
