"""Which inputs have a part in one output, by its gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, backward, call
from normbook.checks.copies import copy_of
from normbook.checks.tensors import other_axes

# Of a gradient, beside its largest value: what float64 leaves of 0.
NOTHING = 1e-9

ORDINALS = {2: "second", 3: "third", 4: "fourth"}


def has_a_part(layer: nn.Module, x: Tensor, place: tuple[int, ...]) -> Tensor | None:
    """Return which inputs one output depends on, as a mask; None without a graph."""
    x = x.clone().requires_grad_()
    try:
        y = call(copy_of(layer), x)
        if not y.requires_grad:
            return None
        dl_dy = torch.zeros_like(y)
        dl_dy[place] = 1
        backward(y, dl_dy)
    except LayerError:
        return None
    if x.grad is None or not x.grad.isfinite().all():
        return None
    return x.grad.abs() > NOTHING * x.grad.abs().max()


def along_axes(with_it: Tensor) -> str:
    """Describe values that are those of some places along each axis."""
    several = [a for a in range(with_it.dim()) if len(places_along(with_it, a)) > 1]
    parts = [f"{_numbers(with_it, axis)} along axis {axis}" for axis in several]
    return ", ".join(parts) or "itself alone"


def places_along(with_it: Tensor, axis: int) -> list[int]:
    """Return which places along an axis have a part."""
    rest = other_axes(with_it.dim(), axis)
    return [int(place) for place in with_it.any(rest).nonzero()]


def _numbers(with_it: Tensor, axis: int) -> str:
    """Say which places along an axis have a part: all, or their numbers."""
    places, size = places_along(with_it, axis), with_it.shape[axis]
    if len(places) == size:
        return f"all {size}"
    step = places[1] - places[0]
    if step > 1 and places == [*range(places[0], places[-1] + 1, step)]:
        which = ORDINALS.get(step, f"{step}th")
        return f"every {which} of {size}, not those side by side,"
    return f"{len(places)} of {size}"
