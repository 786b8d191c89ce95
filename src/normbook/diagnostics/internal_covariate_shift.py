r"""Internal covariate shift, by both of its definitions.

The word was coined for the *inputs* of a layer: their distribution changes because
the layers below train (Ioffe and Szegedy 2015). Santurkar et al. (2018) asked what a
layer would notice of that, and defined it by the *gradients*: how much the gradient
of a layer changes when the layers below take their step first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.diagnostics.activations import layer_inputs
from normbook.diagnostics.undisturbed import (
    Loss,
    check_trained,
    eager,
    gradients,
    undisturbed,
)

__all__ = [
    "GradientShift",
    "gradient_shift",
    "input_shift",
    "input_shift_of_update",
    "trained_layers",
]

Group = Sequence[torch.Tensor]  # the parameters of one layer
Step = Callable[[nn.Parameter, torch.Tensor], torch.Tensor]


class GradientShift(NamedTuple):
    r"""Gradients :math:`G_i` before and :math:`G'_i` after a step of what is below."""

    names: tuple[str, ...]  # of K layers, lowest first
    l2: NDArray[np.float64]  # norm of G_i - G'_i
    cosine: NDArray[np.float64]  # of the angle between both, NaN where one is zero
    gradient_norm: NDArray[np.float64]  # of G_i


def trained_layers(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group the trained parameters by layer, lowest first.

    A module that owns a matrix or a filter bank begins a layer; one that owns vectors
    only, such as a normalization, belongs to the layer before it. Modules must be
    registered in the order in which they are applied. A model that trains nothing is a
    ``ValueError``.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    >>> {name: len(group) for name, group in trained_layers(model).items()}
    {'0': 4, '2': 2}
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for name, module in eager(model).named_modules():
        held = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if held and (not groups or any(p.dim() > 1 for p in held)):
            groups[name] = held
        elif held:
            groups[next(reversed(groups))].extend(held)
    check_trained(groups)
    return groups


def gradient_shift(
    model: nn.Module,
    loss: Loss,
    step: float | Step,
    layers: dict[str, list[nn.Parameter]] | None = None,
) -> GradientShift:
    r"""Internal covariate shift as a change of gradients (Santurkar et al.).

    .. math::

        G_i &= \nabla_{W_i} \ell(W_1, \dots, W_k) \\
        G'_i &= \nabla_{W_i} \ell(W_1', \dots, W_{i-1}', W_i, \dots, W_k)

    with :math:`W_j'` the value after the update, all on one batch; the paper uses
    training mode. Costs one backward pass a layer. The ``step`` is the learning rate of
    plain gradient descent, or a function that takes a parameter and its gradient and
    returns what will be *subtracted* from it. The ``layers`` are those of
    :func:`trained_layers` if left out; for the lowest, which has nothing below it, l2
    is 0 and cosine 1. Source: Santurkar et al. (2018), Definition 2.1.

    Examples
    --------
    Two scalar layers, :math:`\ell = (abx)^2/2` with a = 1, b = 2, x = 1: the
    gradients are 4 and 2. After :math:`a' = 1 - 0.1 \cdot 4 = 0.6` that of b is 0.72.

    >>> model = nn.Sequential(nn.Linear(1, 1, False), nn.Linear(1, 1, False))
    >>> _ = nn.init.constant_(model[0].weight, 1.0)
    >>> _ = nn.init.constant_(model[1].weight, 2.0)
    >>> shift = gradient_shift(model, lambda m: m(torch.ones(1))[0] ** 2 / 2, step=0.1)
    >>> shift.l2.round(6), shift.gradient_norm
    (array([0.  , 1.28]), array([4., 2.]))
    """
    groups = trained_layers(model) if layers is None else layers
    parameters = [*groups.values()]
    with undisturbed(model) as reset:
        W = [[p.detach().clone() for p in group] for group in parameters]
        _, slopes = gradients(model, loss, [p for group in parameters for p in group])
        rest = iter(slopes)
        G = [[next(rest) for _ in group] for group in parameters]
        W_new = [
            [p - _change(step, p, g) for p, g in zip(*both, strict=True)]
            for both in zip(parameters, G, strict=True)
        ]

        def gradient(mixed: Sequence[Group], i: int) -> Group:
            reset()
            below = zip(chain(*parameters[:i]), chain(*mixed[:i]), strict=True)
            with torch.no_grad():
                for p, value in below:
                    p.copy_(value)
            return gradients(model, loss, parameters[i])[1]

        G_after = after_those_below(gradient, W, W_new)
    before, after = ([_flat(group) for group in every] for every in (G, G_after))
    pairs = [*zip(before, after, strict=True)]
    return GradientShift(
        tuple(groups),
        l2=np.array([(g - g_after).norm().item() for g, g_after in pairs]),
        cosine=np.array([_cosine(*pair) for pair in pairs]),
        gradient_norm=np.array([g.norm().item() for g in before]),
    )


def after_those_below(gradient: Any, W: Sequence[Any], W_new: Sequence[Any]) -> Any:
    """Return the gradient of each layer after the step of the layers below it."""
    return [gradient([*W_new[:i], *W[i:]], i) for i in range(len(W))]


def quantile_shift(before: NDArray[np.float64], after: NDArray[np.float64]) -> Any:
    """Mean distance of the sorted columns, in standard deviations of the first."""
    Q, Q_after = np.sort(before, axis=0), np.sort(after, axis=0)
    return np.abs(Q - Q_after).mean(0) / before.std(0)


def input_shift(before: torch.Tensor, after: torch.Tensor) -> NDArray[np.float64]:
    r"""Internal covariate shift as a change of distributions (Ioffe and Szegedy).

    How far the distribution of each unit's input has moved, on the same examples,
    in units of its standard deviation before: the Wasserstein-1 distance

    .. math:: \frac1{\sigma_j} \int_0^1
        \lvert F_j^{-1}(q) - F_j'^{-1}(q) \rvert \, dq .

    The paper leaves the distance open; this one is 1 when a unit moves by one standard
    deviation. Where mean and standard deviation stay, as behind a batch norm whose gain
    and bias do, it is at most :math:`4 \phi^{-5/2} = 1.2011\ldots` with the golden
    ratio :math:`\phi`; the chapter on internal covariate shift proves it.

    ``before`` and ``after`` are inputs of one layer for the same N >= 2 examples, of
    shape (N, D), else a ``ValueError``. A unit that was constant before gives NaN.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [2.0]])
    >>> input_shift(x, x + 3).round(6)
    array([3.])
    """
    if before.shape != after.shape or before.dim() != 2 or len(before) < 2:
        raise ValueError(
            "before and after must have one shape (N, D) with N >= 2, got "
            f"{tuple(before.shape)} and {tuple(after.shape)}; flatten other axes into "
            "N."
        )
    first, second = (v.detach().double().cpu().numpy() for v in (before, after))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = quantile_shift(first, second)
    shift[first.std(0) == 0] = np.nan
    return np.asarray(shift)


def input_shift_of_update(
    model: nn.Module,
    loss: Loss,
    step: float | Step,
    layers: Sequence[str],
    probe: Loss | None = None,
) -> dict[str, NDArray[np.float64]]:
    """How far one update of the whole model moves what enters some layers.

    The ``loss`` gives the update, by a ``step`` as for :func:`gradient_shift`; the
    ``probe``, by default the loss, runs the model on the examples whose distribution is
    compared by :func:`input_shift`. Noise inside the model is drawn anew after the
    update and counts, too, unless the probe sets its generator.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Identity()).double()
    >>> x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    >>> def loss(m):
    ...     return m(x).sum()  # the bias has the gradient 2, the weight 0
    >>> _ = nn.init.ones_(model[0].weight)
    >>> input_shift_of_update(model, loss, 0.1, ["1"])["1"].round(6)
    array([0.2])
    """
    probe = loss if probe is None else probe
    parameters = [p for p in model.parameters() if p.requires_grad]
    with undisturbed(model) as reset:
        _, slopes = gradients(model, loss, parameters)
        reset()
        before = layer_inputs(model, probe, layers)
        changes = [_change(step, p, g) for p, g in zip(parameters, slopes, strict=True)]
        with torch.no_grad():
            for parameter, change in zip(parameters, changes, strict=True):
                parameter.sub_(change)
        after = layer_inputs(model, probe, layers)
    return {name: input_shift(before[name], after[name]) for name in layers}


def _change(
    step: float | Step, parameter: nn.Parameter, gradient: torch.Tensor
) -> torch.Tensor:
    with torch.no_grad():
        if callable(step):
            return step(parameter, gradient).detach().clone()
        return step * gradient


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    lengths = a.norm() * b.norm()
    return (a @ b / lengths).item() if lengths > 0 else float("nan")
