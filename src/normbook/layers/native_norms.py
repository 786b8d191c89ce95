"""Normalization on a CPU: in compiled loops where they can run, else by the formulas.

Taken is what :func:`normbook.layers.function.normalize` takes, and given what it gives,
but for rounding. The loops run where :func:`normbook.layers.native.can_run` says so;
derivatives of derivatives, and of what is mapped, come from the formulas.
"""

from __future__ import annotations

import functools
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import normbook.normalize as formulas
from normbook.arrays import check_eps
from normbook.layers import function
from normbook.layers.function import Slopes, Statistics, as_needed, bind_by_position
from normbook.layers.native import can_run, has_tangents, loop
from normbook.layers.threads import together

__all__ = ["normalize", "normalize_with_statistics"]

LOOPS = "compiled_norms"
LEAST = 2**18  # numbers for each thread
NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def normalize(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, **layout: Any
) -> Tensor:
    """Normalize x along some axes.

    >>> x = torch.tensor([[1.0, 3.0], [10.0, 50.0]])
    >>> normalize(x, None, None, axes=(1,), parameter_axes=(1,), eps=1e-12)
    tensor([[-1.,  1.],
            [-1.,  1.]])
    """
    if _can_run(x, gamma, beta):
        return _native(x, gamma, beta, **layout)[0]
    return function.normalize(x, gamma, beta, **layout)[0]


def normalize_with_statistics(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, **layout: Any
) -> tuple[Tensor, Statistics]:
    """Return y and the statistics that x has along the axes."""
    if not _can_run(x, gamma, beta):
        return function.normalize(x, gamma, beta, **layout)
    y, moments = _native(x, gamma, beta, **layout)
    mean, var, *_ = moments.unbind()
    return y, Statistics(mean, var)


def _can_run(*tensors: Tensor | None) -> bool:
    # torch.compile follows no further.
    if torch.compiler.is_compiling() or has_tangents():
        return False
    return can_run([v for v in tensors if v is not None], LOOPS)


def _native(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    *,
    axes: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    eps: float,
    is_centred: bool = True,
) -> tuple[Tensor, Tensor]:
    layout = axes, parameter_axes, check_eps(eps), is_centred
    found: tuple[Tensor, Tensor]
    found = _NativeNormalize.apply(x, gamma, beta, *layout)  # type: ignore[no-untyped-call]
    return found


class _NativeNormalize(torch.autograd.Function):
    """Normalization by the statistics of x itself, forward and back in the loops."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        x, gamma, beta, axes, parameter_axes, eps, is_centred = inputs
        place = arrange(x, axes, parameter_axes)
        values = place.dense(x)
        y, moments = torch.empty_like(values), values.new_empty(4, place.groups)
        gains = place.gain(gamma, x, 1), place.gain(beta, x, 0)
        given = values, *gains, y, moments
        share(place, 0, place.members(), is_centred, eps, *given)
        ctx.mark_non_differentiable(moments)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gamma, moments)
        ctx.layout = axes, parameter_axes, eps, is_centred
        return y, moments

    @staticmethod
    def backward(ctx: Any, dl_dy: Tensor | None, _: None) -> Slopes:
        # Unpacked once: torch.utils.checkpoint allows no more.
        x, gamma, moments = ctx.saved_tensors
        axes, parameter_axes, eps, is_centred = ctx.layout
        if dl_dy is None:
            return (None,) * 7
        # saved_tensors_hooks may bring back what is of another kind.
        came = [v for v in (dl_dy, x, gamma, moments) if v is not None]
        if torch.is_grad_enabled() or has_tangents() or not can_run(came, LOOPS):
            # Gradients that are differentiated in turn: those of the formulas.
            _, cache = formulas.forward(x, gamma, None, *ctx.layout)
            return as_needed(ctx, *formulas.backward(dl_dy, cache))
        place = arrange(x, axes, parameter_axes)
        dl_dy, values, gain = (
            place.dense(dl_dy),
            place.dense(x),
            place.gain(gamma, x, 1),
        )
        dl_dx = torch.empty_like(values)
        members, shape = place.members(), [x.shape[axis] for axis in parameter_axes]
        by_gains = values.new_zeros(*((members,) if members > 1 else ()), 2, *shape)
        given = dl_dy, values, gain, moments, dl_dx, by_gains
        share(place, 1, members, is_centred, eps, *given)
        if members > 1:
            by_gains = by_gains.sum(0)
        return as_needed(ctx, dl_dx, *by_gains.unbind())


bind_by_position(_NativeNormalize)


class Place(NamedTuple):
    """How x lies in memory, in the words of :mod:`normbook.layers.compiled_norms`."""

    shape: tuple[int, int]
    gains: tuple[int, ...]  # the shape of gamma and beta there
    groups: int
    steps: tuple[int, ...] = ()  # count and step; of segments alone
    layout: torch.memory_format = torch.contiguous_format

    def dense(self, value: Tensor) -> Tensor:
        """Return x, or what is like it, in the order that the loops expect."""
        return value.detach().contiguous(memory_format=self.layout)

    def gain(self, value: Tensor | None, x: Tensor, default: float) -> Tensor:
        """Return a gain or a bias, or what stands for one that is missing."""
        if value is None:
            return _constant(self.gains, default, x.dtype)
        return value.detach().contiguous()

    def members(self) -> int:
        """Count the threads that are worth their start."""
        threads = torch.get_num_threads()
        if threads == 1:
            return 1
        return max(1, min(threads, prod(self.shape) // LEAST, self.groups))


@functools.lru_cache(maxsize=64)
def _constant(shape: tuple[int, ...], value: float, dtype: torch.dtype) -> Tensor:
    # Not on the default device: the loops read its memory.
    return torch.full(shape, value, dtype=dtype, device="cpu")


def arrange(x: Tensor, axes: tuple[int, ...], parameter_axes: tuple[int, ...]) -> Place:
    """Find the place of x."""
    layout = torch.contiguous_format
    if axes[0] == 0 and x.ndim in LAYOUTS and not x.is_contiguous():
        last = LAYOUTS[x.ndim]
        layout = last if x.is_contiguous(memory_format=last) else layout
    return _arrange(x.shape, axes, parameter_axes, layout)


@functools.lru_cache(maxsize=1024)
def _arrange(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    layout: torch.memory_format,
) -> Place:
    first, size = axes[0], prod(shape)
    if axes != (*range(first, len(shape)),):  # batch norm: all axes but that of gains
        (axis,) = parameter_axes
        channels = shape[axis]
        length = prod(shape[axis + 1 :])
        if length == 1 or layout != torch.contiguous_format:
            matrix = size // channels, channels
            return Place(matrix, (channels,), channels, (), layout)
        matrix = size // length, length
        return Place(matrix, (channels, 1), channels, (shape[0], channels))
    # The last axes: each row is a group, of some channels.
    row = prod(shape[first:])
    channels = prod(shape[axis] for axis in parameter_axes)
    length = prod(shape[max((*parameter_axes, first - 1)) + 1 :])
    if length == 1:  # each number has a gain
        matrix = size // row, row
        return Place(matrix, (channels // row, row), size // row, (1, 1))
    matrix = size // length, length
    return Place(matrix, (channels, 1), size // row, (row // length, 1))


def share(
    place: Place,
    way: int,
    members: int,
    is_centred: bool,
    eps: float,
    *tensors: Tensor,
) -> None:
    """Go forward, way 0, or back, in so many threads, each with some of the groups.

    On the way back each fills its own row of the last tensor.
    """
    compiled: Any = loop(LOOPS)
    *addresses, last = (value.data_ptr() for value in tensors)
    given: tuple[Any, ...]
    number = NUMBERS[tensors[0].dtype](eps)
    if place.steps:
        function = compiled.backward if way else compiled.forward
        given = *place.steps, is_centred, number, *addresses
    else:
        function = compiled.columns_backward if way else compiled.columns_forward
        given = number, *addresses
    given = place.shape, place.gains, *given
    if members == 1:
        function(*given, last, 0, place.groups)
        return
    step = tensors[-1].stride(0) * tensors[-1].element_size() if way else 0
    ends = [place.groups * k // members for k in range(members + 1)]

    # Holds the tensors: Ctrl-C may end the wait for a thread, but not the thread.
    def run(me: int, count: int) -> None:
        for k in range(me, members, count):
            to = tensors[-1].data_ptr() + k * step
            function(*given, to, ends[k], ends[k + 1])

    together(run, members)
