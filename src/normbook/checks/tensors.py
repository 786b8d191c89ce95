"""What the tests of norm layers draw, fit and compare."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Formula = Callable[[Tensor], Tensor]
Axes = tuple[int, ...]

# The statistics of an input of this scale do not feel eps.
LARGE = 30.0
# What single precision inside a layer may cost; the bugs cost 1e-2 and more.
TOLERANCE = 1e-3


def largest(values: Tensor) -> float:
    """Return the largest size among values."""
    return values.abs().max().item()


def is_near(
    seen: Tensor, value: Tensor, share: float = TOLERANCE, least: float = 0.0
) -> bool:
    """Return whether they differ by less than a share of the largest that was seen."""
    return largest(seen - value) < share * max(largest(seen), least)


def normal(shape: tuple[int, ...], seed: int | torch.Generator) -> Tensor:
    """Draw standard normal numbers."""
    if isinstance(seed, int):
        seed = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=seed, dtype=torch.float64)


def draw(shape: tuple[int, ...], seed: int, scale: float = LARGE) -> Tensor:
    """Draw an input: every example, channel and position has a mean of its own."""
    return scale * _drawn(shape, seed)


@functools.lru_cache(maxsize=8)
def _drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = normal(shape, generator)
    for axis, length in enumerate(shape):
        along = tuple(length if k == axis else 1 for k in range(len(shape)))
        x = x * (0.3 * normal(along, generator)).exp() + normal(along, generator)
    return x


def other_axes(dim: int, *axes: int) -> Axes:
    """Return the axes that are not among those given."""
    return tuple(axis for axis in range(dim) if axis not in axes)


def rows(x: Tensor) -> Tensor:
    """Return the values of each channel (axis 1) as a column."""
    return x.movedim(1, -1).flatten(0, -2)


def fit(y: Tensor, z: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """Find a and b, which differ along ``axes`` only, with y nearest to a z + b."""
    rest = other_axes(y.dim(), *(axis % y.dim() for axis in axes))
    mean = z.mean(rest, keepdim=True)
    a = ((z - mean) * y).sum(rest, keepdim=True)
    a = a / (z - mean).square().sum(rest, keepdim=True)
    return a, (y - a * z).mean(rest, keepdim=True)


class Runs(NamedTuple):
    """Some batches, and what a layer gives for them."""

    inputs: list[Tensor]
    outputs: list[Tensor]

    def _errors(self, z: Formula, axes: Axes) -> Iterator[float]:
        """Yield what is left of each output, as a share, by one fixed gain and bias."""
        a = b = torch.zeros(())
        for k, (x, y) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            x_hat = z(x)
            if k == 0:
                a, b = fit(y, x_hat, axes)
            left, size = largest(y - a * x_hat - b), largest(y - b)
            error = left / size if size else math.inf
            yield error if math.isfinite(error) else math.inf

    def misfit(self, z: Formula, axes: Axes) -> float:
        """Return what z(x) leaves of the outputs, with the best fixed gain and bias.

        Found on the first batch and demanded on the others. They differ along ``axes``.
        """
        return max([*self._errors(z, axes)][1:])

    def holds(self, z: Formula, axes: Axes) -> bool:
        """Return whether nothing is left; most formulas fail on the first batch."""
        return all(error < TOLERANCE for error in self._errors(z, axes))
