r"""Slices through the loss, along filter-normalized random directions.

A network computes the same after the weights in front of a batch norm are scaled (but
for ε), so a raw random direction of fixed length says little about how sharp a minimum
is. Li et al. (2018) give each filter of the direction the norm of the filter that it
moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.diagnostics.undisturbed import Loss, undisturbed

Direction = list[torch.Tensor]


def random_direction(model: nn.Module, generator: torch.Generator) -> Direction:
    r"""Draw a Gaussian direction, filter by filter as long as the weights.

    .. math:: d_{ij} \leftarrow \frac{d_{ij}}{\lVert d_{ij} \rVert}\,
        \lVert w_{ij} \rVert

    for filter j of layer i: one output unit of a linear layer, one output channel of
    a convolution. Vectors (biases, gains) do not move. The ``generator`` is one of the
    CPU. Returns one tensor for each parameter, in the order of ``model.parameters()``.
    Source: Li et al. (2018), section 4.

    Examples
    --------
    >>> model = nn.Linear(5, 3)
    >>> weight, bias = random_direction(model, torch.Generator().manual_seed(0))
    >>> torch.allclose(weight.norm(dim=1), model.weight.norm(dim=1)), bias.any().item()
    (True, False)
    """
    direction = []
    for parameter in model.parameters():
        if parameter.dim() < 2:
            direction.append(torch.zeros_like(parameter, requires_grad=False))
            continue
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        weights = parameter.detach().double().cpu()
        axes = tuple(range(1, parameter.dim()))
        length = torch.linalg.vector_norm(drawn, dim=axes, keepdim=True)
        drawn *= torch.linalg.vector_norm(weights, dim=axes, keepdim=True) / length
        direction.append(drawn.to(parameter))
    return direction


def landscape(
    model: nn.Module,
    loss: Loss,
    directions: Sequence[Direction],
    steps: Sequence[float],
) -> NDArray[np.float64]:
    r"""Loss on a line or a plane through the present weights, shape (S,) or (S, S).

    .. math:: \ell(w + a\,d_1 + b\,d_2)

    The one or two ``directions`` are from :func:`random_direction`, or differences of
    two sets of weights; others, or more, are a ``ValueError``. The S ``steps`` are the
    values of a, the first axis, and of b.

    Examples
    --------
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> one = [torch.ones(1, 1)]
    >>> landscape(model, lambda m: (m.weight**2).sum(), [one], [-1, 0, 2])
    array([0., 1., 9.])
    """
    if len(directions) not in (1, 2):
        raise ValueError(
            f"directions must be one or two, got {len(directions)}; a picture has no "
            "more axes."
        )
    shapes = [tuple(p.shape) for p in model.parameters()]
    for direction in directions:
        if [tuple(d.shape) for d in direction] != shapes:
            raise ValueError(
                "a direction must have one tensor in the shape of each parameter, got "
                f"{[tuple(d.shape) for d in direction]} for {shapes}; use "
                "random_direction(model, generator)."
            )
    values = np.empty((len(steps),) * len(directions))
    with undisturbed(model) as reset, torch.no_grad():
        for place in np.ndindex(*values.shape):
            reset()
            for direction, k in zip(directions, place, strict=True):
                for parameter, d in zip(model.parameters(), direction, strict=True):
                    parameter.add_(d, alpha=float(steps[k]))
            values[place] = loss(model).item()
    return values
