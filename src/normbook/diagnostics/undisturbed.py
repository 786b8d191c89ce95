"""Evaluate a model as often as needed, and leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["Loss", "eager", "gradients", "undisturbed"]

Loss = Callable[[Any], torch.Tensor]
"""Takes the model, returns the loss on one fixed batch: a scalar in nats.

The batch is part of the function, for example ``lambda m: cross_entropy(m(x), y)``:
so one measurement cannot mix two batches.
"""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Undo, at the end, whatever happens to the model inside.

    Parameters, buffers, ``.grad``, the training mode of every module and the states
    of the random number generators (CPU, every device of the model, and those that a
    module holds as an attribute) are, bit for bit, what they were before, also after
    an error.

    Parameters
    ----------
    model : nn.Module

    Yields
    ------
    reset : callable
        Puts everything back at once, for another evaluation from the same state:
        dropout, say, then draws the same mask.
    """
    tensors = [*model.parameters(), *model.buffers()]
    values = [t.detach().clone() for t in tensors]
    gradients = [(p, p.grad, _copy(p.grad)) for p in model.parameters()]
    modes = [(m, m.training) for m in model.modules()]
    devices = sorted(
        {t.device for t in tensors if t.device.type == "cuda"}, key=lambda d: d.index
    )
    own = _generators(model)
    own_states = [g.get_state() for g in own]
    cpu_state = torch.get_rng_state()
    cuda_states = [torch.cuda.get_rng_state(d) for d in devices]

    def reset() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            for parameter, gradient, kept in gradients:
                parameter.grad = gradient
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)
        for module, mode in modes:
            module.training = mode
        for generator, state in zip(own, own_states, strict=True):
            generator.set_state(state)
        torch.set_rng_state(cpu_state)
        for device, state in zip(devices, cuda_states, strict=True):
            torch.cuda.set_rng_state(state, device)

    try:
        yield reset
    finally:
        reset()


def eager(model: nn.Module) -> nn.Module:
    """Return the module behind ``torch.compile``: its names, and a place for hooks."""
    original: nn.Module = getattr(model, "_orig_mod", model)
    return original


def gradients(
    model: nn.Module, loss: Loss, parameters: Sequence[nn.Parameter] | None = None
) -> tuple[float, list[torch.Tensor]]:
    """Loss and its gradient by some of the parameters.

    Parameters
    ----------
    model : nn.Module
    loss : Loss
    parameters : sequence of parameters, optional
        All that require a gradient, if left out.

    Returns
    -------
    value : float
        In nats.
    gradients : list of tensors
        In the order of the parameters; zero where the loss does not depend on one.

    Raises
    ------
    ValueError
        If the loss is no scalar, or no parameter requires a gradient.
    """
    if parameters is None:
        parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(
            "model must have a parameter that requires a gradient, got none; "
            "unfreeze one with requires_grad_()."
        )
    with torch.enable_grad():
        value = loss(model)
        if value.dim() != 0:
            raise ValueError(
                f"loss must return a scalar, got shape {tuple(value.shape)}; take the "
                "mean or the sum over the batch."
            )
        found = torch.autograd.grad(value, list(parameters), allow_unused=True)
    whole = [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, found, strict=True)
    ]
    return value.item(), whole


def _generators(model: nn.Module) -> list[torch.Generator]:
    found = [v for m in model.modules() for v in vars(m).values()]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()
