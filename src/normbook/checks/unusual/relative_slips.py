"""Slips in the relatives of the norms: which other formula it is, and what it lacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

import normbook.checks.unusual.relative_formulas as formulas
from normbook.checks.calls import call
from normbook.checks.claim import Claim, Fault, claim
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import Axes, draw, other_axes

SHARED = "the examples of a batch share it"


def _other_sizes(dims: int, channel: int) -> Iterator[tuple[Axes, str]]:
    """Yield axes over which a size may be taken by mistake, and their names."""
    positions = other_axes(dims, 0, channel)
    yield (0, *positions), f"batch and positions: {SHARED}"
    yield (channel,), "channels"
    yield (channel, *positions), "channels and positions"
    yield (0,), f"batch: {SHARED}"
    yield (0, channel, *positions), f"all values: {SHARED}"
    if len(positions) > 1:
        for axis in positions:
            yield (axis,), "a part of the positions"


def global_response(subject: Subject) -> Iterator[formulas.Misfit]:
    """Take the size, or the mean that it is compared with, over other axes."""

    def z(x: Tensor, axes: Axes, over: Axes) -> Tensor:
        size = x.square().mean(axes, keepdim=True).sqrt()
        return x * size / (size.mean(over, keepdim=True) if over else 1)

    dims = len(subject.shape)
    for channel in dict.fromkeys((1, dims - 1)):
        positions = other_axes(dims, 0, channel)
        right = (positions, "positions, as it should be")
        means = (
            ((channel,), ""),
            (positions, "; it is compared with its mean over positions, not channels"),
            ((0, channel), "; it is compared with its mean over batch and channels"),
            ((0,), "; it is compared with its mean over the batch, not over channels"),
            ((), "; it is not divided by its mean over channels"),
        )
        tries = itertools.product((right, *_other_sizes(dims, channel)), means)
        for (axes, name), (over, more) in tries:
            what = f"the size is taken over {name}{more}"
            for has_rest in (True, False):
                yield formulas.misfit(
                    subject,
                    partial(z, axes=axes, over=over),
                    (channel,),
                    has_rest=has_rest,
                    what=what,
                )


def filter_response(subject: Subject) -> Iterator[formulas.Misfit]:
    """Take the mean square over other axes, without its root, or without the mean."""
    dims = len(subject.shape)

    for axes, name in _other_sizes(dims, 1):
        what = f"the mean square is taken over {name}"
        of = partial(formulas.over_size, axes=axes)
        yield from formulas.thresholded(subject, of, 1, what)
    positions = other_axes(dims, 0, 1)
    what = "x is divided by the mean square, not by its root"
    yield from formulas.thresholded(
        subject, lambda x: x / x.square().mean(positions, keepdim=True), 1, what
    )
    what = "the mean is subtracted, and x is divided by its standard deviation"
    yield from formulas.thresholded(
        subject,
        lambda x: (
            (x - x.mean(positions, keepdim=True))
            / x.std(positions, correction=0, keepdim=True)
        ),
        1,
        what,
    )


@claim("there is one threshold for each channel")
def _thresholds(subject: Subject) -> Fault | None:
    """Put each parameter of one value far up; a threshold holds every output there."""
    for name, p in subject.layer.named_parameters():
        if p.numel() > 1 or subject.shape[1] == 1:
            continue
        layer = subject.fresh()
        with torch.no_grad():
            layer.get_parameter(name).fill_(1e4)
            y = call(layer, draw(subject.shape, 0, 1.0).to(subject.dtype))
        if (y == 1e4).all():
            return Fault(
                f"{name} is one threshold for all {subject.shape[1]} channels; by the "
                "definition (Singh and Krishnan 2020) each channel learns its own.",
                f"Give {name} one value for each channel.",
                "one threshold",
            )
    return None


@claim("a running variance of 0 leaves the output finite")
def _no_variance(subject: Subject) -> Fault | None:
    """Set each buffer that is a variance to 0, as of a channel that never moved."""
    for name, _ in subject.layer.named_buffers():
        layer = subject.fresh()
        buffer = layer.get_buffer(name)
        if "var" not in name.rpartition(".")[2] or not buffer.is_floating_point():
            continue
        with torch.no_grad():
            buffer.zero_()
            y = call(layer, draw(subject.shape, 0, 1.0).to(subject.dtype))
        if not y.isfinite().all():
            return Fault(
                f"no eps is under the root: where {name} is 0, as of a channel that "
                "is always 0, the output is NaN or infinite. With eps = 0 it differs "
                "from batch norm in evaluation, too.",
                "Multiply by (running_var + eps).rsqrt().",
            )
    return None


# By the name of the relative.
CLAIMS: dict[str, Claim[Subject]] = {
    "FRN": _thresholds,
    "frozen batch norm": _no_variance,
}
