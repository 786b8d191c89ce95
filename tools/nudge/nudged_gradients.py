"""Gradients a little off, as those of another CPU: what a rounding decides shows.

Instruction sets add the terms of a sum in other orders. Where a training is chaotic, a
difference in the last bit becomes one that can be seen, and no machine can try the
instructions that it lacks. Here the gradient that every backward pass begins with, 1 at
a loss, is 1 and a few units in the last place: all that follows is rounded in other
ways, while what holds up to rounding still holds.

With this folder on ``PYTHONPATH`` and ``NORMBOOK_NUDGE`` a whole number of such units,
every ``import torch`` brings it along, by the entry point beside this file.
``tools/cpus.sh`` runs the book so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

UNITS = int(os.environ.get("NORMBOOK_NUDGE", "0"))  # 0 leaves gradients as they are


def nudged(outputs: Any, gradients: Any) -> Any:
    """Return what a backward pass begins with, for each output that starts at 1."""
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    if not isinstance(outputs, Sequence):  # nodes of a graph, or nonsense: torch's part
        return gradients
    if gradients is None or isinstance(gradients, Tensor):
        gradients = (gradients,) * len(outputs)
    return tuple(
        torch.full_like(one, 1 + UNITS * torch.finfo(one.dtype).eps)
        if begun is None and isinstance(one, Tensor) and one.is_floating_point()
        and one.numel() == 1
        else begun
        for one, begun in zip(outputs, gradients, strict=True)
    )  # fmt: skip


def begins_with_nudged(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return torch's function, given another start: its argument at `place`."""
    name = "grad_tensors" if place == 1 else "grad_outputs"

    @wraps(function)
    def called(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        rest = list(args)
        if len(rest) >= place:
            rest[place - 1] = nudged(outputs, rest[place - 1])
        else:
            kwargs[name] = nudged(outputs, kwargs.get(name))
        return function(outputs, *rest, **kwargs)

    return called


@cache
def register() -> None:
    """Let torch's two doors to a backward pass begin so."""
    if UNITS:
        autograd: Any = torch.autograd
        autograd.backward = begins_with_nudged(autograd.backward, 1)
        autograd.grad = begins_with_nudged(autograd.grad, 2)
