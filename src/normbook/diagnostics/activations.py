"""Statistics of activations and of their gradients, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.diagnostics.undisturbed import Loss, eager, undisturbed

__all__ = ["LayerStatistics", "Moments", "layer_inputs", "layer_statistics"]


class Moments(NamedTuple):
    """Distribution of each unit over the examples (and positions).

    Attributes
    ----------
    mean, std : arrays, shape (D,)
        ``std`` is biased.
    quantiles : array, shape (Q, D)
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    quantiles: NDArray[np.float64]


class LayerStatistics(NamedTuple):
    """What enters a layer, and the gradient of the loss by that.

    Attributes
    ----------
    name : str
    inputs : Moments
    input_gradients : Moments
        Unit: nats per unit of input.
    """

    name: str
    inputs: Moments
    input_gradients: Moments


def layer_inputs(
    model: nn.Module, loss: Loss, layers: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Return what enters some layers: one row for each value of a unit.

    Unlike the other measures it runs the model as it is: running statistics move
    and random numbers are drawn, unless it is called inside
    :func:`normbook.diagnostics.undisturbed.undisturbed`.

    Parameters
    ----------
    model : nn.Module
        Measured in its present mode.
    loss : callable
        Takes the model and runs it on one fixed batch.
    layers : sequence of str
        Names from ``model.named_modules()``, each applied once.

    Returns
    -------
    dict from name to tensor, shape (N, D)
        For images, each position of each image is a row.

    Raises
    ------
    ValueError
        If a name is unknown, or a layer is not applied exactly once to a tensor.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU())
    >>> x = torch.zeros(5, 1, 4, 4)
    >>> layer_inputs(model, lambda m: m(x).sum(), ["1"])["1"].shape
    torch.Size([45, 3])
    """
    model = eager(model)  # compiled code does not run hooks
    known = dict(model.named_modules())
    _check_known(layers, known)
    seen: list[tuple[str, torch.Tensor]] = []

    def hook(name: str) -> Any:
        def keep(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if arguments and isinstance(arguments[0], torch.Tensor):
                rows = arguments[0].detach().clone().transpose(0, 1).flatten(1).T
                seen.append((name, rows))

        return known[name].register_forward_pre_hook(keep)

    handles = [hook(name) for name in layers]
    try:
        with torch.no_grad():
            loss(model)
    finally:
        for handle in handles:
            handle.remove()
    _check_once([name for name, _ in seen], layers)
    return dict(seen)


def layer_statistics(
    model: nn.Module,
    loss: Loss,
    layers: Sequence[str] | None = None,
    quantiles: Sequence[float] = (0.15, 0.5, 0.85),
) -> list[LayerStatistics]:
    """Distribution of the inputs of layers and of the gradients that reach them.

    Call it every few steps of training and stack the results.

    Parameters
    ----------
    model : nn.Module
        Measured in its present mode.
    loss : callable
        Takes the model, returns the loss on one fixed batch (scalar, nats).
    layers : sequence of str, optional
        Names from ``model.named_modules()``. Left out: every module without
        children that the loss runs through once.
    quantiles : sequence of float in [0, 1]
        The default is that of Ioffe and Szegedy (2015), Fig. 1.

    Returns
    -------
    list of LayerStatistics
        In the order in which the layers are applied. Units are axis 1; all other
        axes count as examples.

    Raises
    ------
    ValueError
        If a name is unknown, a named layer is not reached or is reached more than
        once, or its input is not a tensor of shape (N, D, ...) with gradients.

    Notes
    -----
    The model is left bit for bit as it was. Source: Ioffe and Szegedy (2015),
    Fig. 1(b, c).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
    >>> x = torch.randn(8, 2)
    >>> found = layer_statistics(model, lambda m: m(x).sum(), layers=["1"])
    >>> found[0].name, found[0].inputs.quantiles.shape
    ('1', (3, 2))
    """
    model = eager(model)  # compiled code does not run hooks
    known = dict(model.named_modules())
    wanted = _leaves(known) if layers is None else list(layers)
    _check_known(wanted, known)
    seen: list[tuple[str, torch.Tensor]] = []

    def hook(name: str) -> Any:
        def keep(_: nn.Module, arguments: tuple[Any, ...]) -> Any:
            if not arguments or not isinstance(arguments[0], torch.Tensor):
                return None
            x = arguments[0]
            if not x.requires_grad:  # the data, at the lowest layer
                x = x.detach().requires_grad_()
            seen.append((name, x))
            return (x, *arguments[1:])

        return known[name].register_forward_pre_hook(keep)

    handles = [hook(name) for name in wanted]
    try:
        with undisturbed(model), torch.enable_grad():
            value = loss(model)
            inputs = [x for _, x in seen]
            found = torch.autograd.grad(value, inputs, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in seen]
    if layers is not None:
        _check_once(names, wanted)
    return [
        LayerStatistics(name, _moments(x, quantiles), _moments(g, quantiles))
        for (name, x), g in zip(seen, found, strict=True)
        if names.count(name) == 1 and x.dim() >= 2 and g is not None
    ]


def _check_known(wanted: Sequence[str], known: dict[str, nn.Module]) -> None:
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(
            f"layers must name modules of the model, got {unknown}; "
            f"known are {[name for name in known if name]}."
        )


def _check_once(names: Sequence[str], wanted: Sequence[str]) -> None:
    if sorted(names) != sorted(wanted):
        raise ValueError(
            f"each layer must be applied once to a tensor, got {names} for "
            f"{list(wanted)}; name layers that the loss runs through exactly once."
        )


def _leaves(modules: dict[str, nn.Module]) -> list[str]:
    return [name for name, m in modules.items() if name and not any(m.children())]


def _moments(x: torch.Tensor, quantiles: Sequence[float]) -> Moments:
    rows = x.detach().double().transpose(0, 1).flatten(1)  # (D, values of a unit)
    levels = torch.tensor(quantiles, dtype=torch.float64, device=rows.device)
    return Moments(
        rows.mean(1).cpu().numpy(),
        rows.std(1, correction=0).cpu().numpy(),
        torch.quantile(rows, levels, dim=1).cpu().numpy(),
    )
