"""Statistics of activations and of their gradients, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.diagnostics.undisturbed import Loss, eager, undisturbed

Inputs = list[tuple[str, torch.Tensor]]


class Moments(NamedTuple):
    """Distribution of each unit over the examples (and positions)."""

    mean: NDArray[np.float64]  # (D,)
    std: NDArray[np.float64]  # (D,), biased
    quantiles: NDArray[np.float64]  # (Q, D)


class LayerStatistics(NamedTuple):
    """What enters a layer, and the gradient of the loss by that, in nats per unit."""

    name: str
    inputs: Moments
    input_gradients: Moments


def layer_inputs(
    model: nn.Module, loss: Loss, layers: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Return what enters some layers, as tensors of shape (N, D).

    For images, each position of each image is a row. Unlike the other measures it runs
    the model as it is: running statistics move and random numbers are drawn, unless it
    is called inside :func:`normbook.diagnostics.undisturbed.undisturbed`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU())
    >>> x = torch.zeros(5, 1, 4, 4)
    >>> layer_inputs(model, lambda m: m(x).sum(), ["1"])["1"].shape
    torch.Size([45, 3])
    """
    seen: Inputs = []

    def keep(name: str, x: torch.Tensor) -> torch.Tensor:
        seen.append((name, _rows(x.detach().clone()).T))
        return x

    model = eager(model)
    with _watched(model, layers, keep), torch.no_grad():
        loss(model)
    _check_once([name for name, _ in seen], layers)
    return dict(seen)


def layer_statistics(
    model: nn.Module,
    loss: Loss,
    layers: Sequence[str] | None = None,
    quantiles: Sequence[float] = (0.15, 0.5, 0.85),
) -> list[LayerStatistics]:
    """Distribution of the inputs of layers and of the gradients that reach them.

    By default of every module without children that the loss runs through once, in the
    order in which they are applied. Units are axis 1 of (N, D, ...), all other axes
    count as examples; inputs of another shape or without gradient are left out. The
    quantiles are those of Ioffe and Szegedy (2015), Fig. 1(b, c).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
    >>> x = torch.randn(8, 2)
    >>> (of_sigmoid,) = layer_statistics(model, lambda m: m(x).sum(), layers=["1"])
    >>> of_sigmoid.name, of_sigmoid.inputs.quantiles.shape
    ('1', (3, 2))
    """
    model = eager(model)
    modules = model.named_modules()
    leaves = [name for name, m in modules if name and not any(m.children())]
    seen: Inputs = []

    def keep(name: str, x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:  # the data, at the lowest layer
            x = x.detach().requires_grad_()
        seen.append((name, x))
        return x

    watched = _watched(model, leaves if layers is None else layers, keep)
    with watched, undisturbed(model), torch.enable_grad():
        value = loss(model)
        names = [name for name, _ in seen]
        if layers is not None:
            _check_once(names, layers)
        inputs = [x for _, x in seen]
        gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    return [
        LayerStatistics(name, _moments(x, quantiles), _moments(g, quantiles))
        for (name, x), g in zip(seen, gradients, strict=True)
        if names.count(name) == 1 and x.dim() >= 2 and g is not None
    ]


@contextmanager
def _watched(
    model: nn.Module,
    layers: Sequence[str],
    keep: Callable[[str, torch.Tensor], torch.Tensor],
) -> Iterator[None]:
    """Show what enters each layer, which then takes what ``keep`` returns.

    Compiled code does not run hooks: the model must be the eager one.
    """
    known = dict(model.named_modules())
    if unknown := [name for name in layers if name not in known]:
        raise ValueError(
            f"layers must name modules of the model, got {unknown}; "
            f"known are {[name for name in known if name]}."
        )

    def take(name: str, _: nn.Module, arguments: tuple[Any, ...]) -> Any:
        if arguments and isinstance(arguments[0], torch.Tensor):
            return (keep(name, arguments[0]), *arguments[1:])
        return None

    with ExitStack() as hooks:
        for name in layers:
            handle = known[name].register_forward_pre_hook(partial(take, name))
            hooks.enter_context(handle)
        yield


def _check_once(names: Sequence[str], wanted: Sequence[str]) -> None:
    if sorted(names) != sorted(wanted):
        raise ValueError(
            f"each layer must be applied once to a tensor, got {names} for "
            f"{list(wanted)}; name layers that the loss runs through exactly once."
        )


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return x in shape (D, values of a unit)."""
    return x.transpose(0, 1).flatten(1)


def _moments(x: torch.Tensor, quantiles: Sequence[float]) -> Moments:
    rows = _rows(x.detach().double())
    levels = torch.tensor(quantiles, dtype=torch.float64, device=rows.device)
    return Moments(
        rows.mean(1).cpu().numpy(),
        rows.std(1, correction=0).cpu().numpy(),
        torch.quantile(rows, levels, dim=1).cpu().numpy(),
    )
