"""What each kind of norm is, in plain torch, and the known ways to get it wrong.

A test that sees a difference asks which of the wrong ones it matches. All are written
apart from the package's own formulas, whose layers are checked, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from normbook.checks.tensors import other_axes

KINDS = ("batch", "layer", "group", "instance", "rms")

# What the deviation from the mean is divided by, given the biased variance and eps.
DIVISORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "sqrt(variance + eps)": lambda var, eps: (var + eps).sqrt(),
    "sigma + eps": lambda var, eps: var.sqrt() + eps,
    "sigma, without eps": lambda var, eps: var.sqrt(),
    "sigma + sqrt(eps)": lambda var, eps: var.sqrt() + math.sqrt(eps),
    "sqrt(max(variance, eps))": lambda var, eps: var.clamp_min(eps).sqrt(),
    "max(sigma, eps)": lambda var, eps: var.sqrt().clamp_min(eps),
    "sqrt(variance + eps^2)": lambda var, eps: (var + eps**2).sqrt(),
}

# What may follow a norm in one layer.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": torch.relu,
    "SiLU": functional.silu,
    "GELU": functional.gelu,
    "GELU (tanh)": lambda x: functional.gelu(x, approximate="tanh"),
    "leaky ReLU": functional.leaky_relu,
    "ELU": functional.elu,
    "softplus": functional.softplus,
    "hardswish": functional.hardswish,
    "Mish": functional.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


class Definition(NamedTuple):
    """The norm that a layer should be."""

    kind: str  # one of KINDS
    groups: int = 1  # of the channels, or of the last axis for kinds "layer" and "rms"
    # How many last axes are normalized, for kinds "layer" and "rms". With 0 it is axis
    # 1, at every position, as for images (N, C, H, W) in some networks.
    last: int = 1
    further: tuple[int, ...] = ()  # axes along which gain and bias differ, too
    # Axes of the input, of those normalized, each position of which has statistics of
    # its own, for kinds "group", "layer" and "rms".
    apart: tuple[int, ...] = ()
    # For kinds "batch", "instance" and "group"; -1 where the channels are last.
    channel: int = 1

    @property
    def name(self) -> str:
        """Return what to call it."""
        name = "RMS norm" if self.kind == "rms" else f"{self.kind} norm"
        parts = self.groups if self.kind != "group" else 1
        return f"{name} in {parts} groups" if parts > 1 else name

    def _view(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Return x so that one set of statistics lies along the axes given."""
        if self.kind == "group":
            x = x.movedim(self.channel, 1)
            x = x.reshape(len(x), self.groups, -1, *x.shape[2:])
        elif self.groups > 1:
            x = x.reshape(*x.shape[:-1], self.groups, -1)
        return x, self.axes(x.dim())

    def axes(self, dim: int) -> tuple[int, ...]:
        """Return the axes of the statistics in the view."""
        match self.kind:
            case "batch":
                return other_axes(dim, self.channel % dim)
            case "instance":
                return other_axes(dim, 0, self.channel % dim)
            case "group":  # of a view with one axis more
                return tuple(a for a in range(2, dim) if a - 1 not in self.apart)
        axes = tuple(range(dim - self.last, dim)) if self.last else (1,)
        return tuple(axis for axis in axes if axis not in self.apart)

    def size(self, shape: tuple[int, ...]) -> int:
        """Count the values of one set of statistics."""
        x, axes = self._view(torch.empty(shape, device="meta"))
        return math.prod(x.shape[axis] for axis in axes)

    def parameter_axes(self, dim: int) -> tuple[int, ...]:
        """Return the axes along which gain and bias differ."""
        if self.kind in ("layer", "rms") and self.last:
            return tuple(sorted({*self.further, *self.axes(dim)}))
        return (self.channel % dim, *self.further)

    def parameter_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of gain and bias, for x of a shape."""
        return tuple(shape[axis] for axis in self.parameter_axes(len(shape)))

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of each set of values that share one, spread like x."""
        grouped, axes = self._view(x)
        mean = grouped.mean(axes, keepdim=True).expand_as(grouped)
        if self.kind == "group":
            mean = mean.reshape(x.movedim(self.channel, 1).shape)
            mean = mean.movedim(1, self.channel)
        return mean.reshape(x.shape)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (0 for RMS norm) and biased variance, spread like x."""
        mean = torch.zeros_like(x) if self.kind == "rms" else self.mean(x)
        return mean, self.mean((x - mean).square())

    def normalize(self, x: Tensor, eps: float) -> Tensor:
        """Return x_hat, without gain and bias."""
        mean, var = self.moments(x)
        return (x - mean) / (var + eps).sqrt()

    def axes_cure(self, dim: int) -> str:
        """Say over which axes the statistics run, for an input of dim axes."""
        axes = self.axes(dim)
        of = ""
        if self.kind == "group" and self.apart:
            axes = self.axes(dim + 1)
            of = f" of x.unflatten(1, ({self.groups}, -1))"
        elif self.kind == "group":
            axes, of = (2,), f" of x.reshape(N, {self.groups}, -1)"
        if self.kind in ("layer", "rms") and self.last:
            axes = tuple(axis - dim for axis in axes)
            if self.groups > 1:
                of = f" of x.unflatten(-1, ({self.groups}, -1))"
        return f"Take the statistics over dim={axes}{of}, with keepdim=True."
