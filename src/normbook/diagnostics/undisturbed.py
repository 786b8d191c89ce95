"""Evaluate a model as often as needed, and leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["Loss", "eager", "gradients", "undisturbed"]

Loss = Callable[[Any], torch.Tensor]
"""Takes the model, returns the loss on one fixed batch, a scalar in nats.

The batch is part of the function, for example ``lambda m: cross_entropy(m(x), y)``:
so one measurement cannot mix two batches.
"""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Undo, at the end, whatever happens to the model inside.

    Parameters, buffers, ``.grad``, the training mode of every module and the states
    of the random number generators (CPU, every device of the model, and those that a
    module holds as an attribute) are, bit for bit, what they were before, also after
    an error. Yields a function that puts everything back at once, for another
    evaluation from the same state: dropout, say, then draws the same mask.
    """
    gradients = [(p, p.grad) for p in model.parameters()]
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [gradient for _, gradient in gradients if gradient is not None]
    values = [t.detach().clone() for t in tensors]
    modes = [(m, m.training) for m in model.modules()]
    states = [(g, g.get_state()) for g in _generators(model, tensors)]

    def reset() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        for generator, state in states:
            generator.set_state(state)

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
    """Loss (nats) and its gradient by some parameters, by default all that are trained.

    It is zero by a parameter on which the loss does not depend. A loss that is no
    scalar, and a model that trains nothing, are a ``ValueError``.
    """
    if parameters is None:
        parameters = [p for p in model.parameters() if p.requires_grad]
    check_trained(parameters)
    with torch.enable_grad():
        value = loss(model)
        if value.dim() != 0:
            raise ValueError(
                f"loss must return a scalar, got shape {tuple(value.shape)}; take the "
                "mean or the sum over the batch."
            )
        slopes = torch.autograd.grad(
            value, list(parameters), allow_unused=True, materialize_grads=True
        )
    return value.item(), list(slopes)


def check_trained(parameters: Collection[object]) -> None:
    """Refuse a model of which no parameter, or layer, is trained."""
    if not parameters:
        raise ValueError(
            "model must have a parameter that requires a gradient, got none; "
            "unfreeze one with requires_grad_()."
        )


def _generators(
    model: nn.Module, tensors: Sequence[torch.Tensor]
) -> Iterator[torch.Generator]:
    yield torch.default_generator
    for index in {t.device.index for t in tensors if t.device.type == "cuda"}:
        yield torch.cuda.default_generators[index]
    held = (v for m in model.modules() for v in vars(m).values())
    yield from {id(v): v for v in held if isinstance(v, torch.Generator)}.values()
