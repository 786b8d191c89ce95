r"""What stands in a norm's place and is none of a known kind: its name, its formula.

A relative is taken by the name of its class; whether it computes the formula of that
name is tested by what it gives. A formula leaves a gain and a bias for each channel
free: y = rest + a z(x) + b.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.claim import Claim, Fault, NotTested
from normbook.checks.subject import TOLERANCE, Subject, draw

Output = Callable[[Tensor], Tensor]
# What is left of the outputs when the formula is taken away, as a share of the largest,
# for each way in which the formula may be meant.
Misfits = Callable[[Output, tuple[int, ...]], Iterator[float]]


class Relative(NamedTuple):
    """A relative of the norms; ``pattern`` is searched in names of classes."""

    name: str
    pattern: str
    text: str
    misfits: Misfits | None = None


def _channels_and_positions(dims: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield where the channels may be, with the axes of the positions."""
    for channel in (1, dims - 1):
        yield channel, tuple(axis for axis in range(1, dims) if axis != channel)


def _draws(shape: tuple[int, ...]) -> list[Tensor]:
    """Draw inputs of scale 1, 2 and 3, where no eps shows and no tanh is flat."""
    return [draw(shape, seed, seed + 1.0) for seed in range(3)]


def _misfit(
    output: Output,
    shape: tuple[int, ...],
    z: Output,
    channel: int,
    *,
    has_rest: bool = False,
    has_threshold: bool = False,
) -> float:
    """Find gain and bias of each channel on one batch, and demand them on two others.

    The rest is x; a threshold is the least output of a channel, where several are it.
    """
    first, *others = _draws(shape)
    y, inside = output(first) - has_rest * first, z(first)
    rest = tuple(axis for axis in range(len(shape)) if axis != channel)
    least = y.amin(rest, keepdim=True)
    is_held = has_threshold & ((y == least).sum(rest, keepdim=True) > 1)
    threshold = least.where(is_held, -math.inf)
    free = (y > threshold).double()
    count = free.sum(rest, keepdim=True)
    deviation = free * (inside - (free * inside).sum(rest, keepdim=True) / count)
    a = (deviation * y).sum(rest, keepdim=True)
    a = a / deviation.square().sum(rest, keepdim=True)
    b = (free * (y - a * inside)).sum(rest, keepdim=True) / count
    worst = 0.0
    for x in others:
        y = output(x) - has_rest * x
        error = (y - torch.maximum(a * z(x) + b, threshold)).abs().max() / y.abs().max()
        worst = max(worst, error.item() if error.isfinite() else math.inf)
    return worst


def _gain_and_bias(output: Output, shape: tuple[int, ...]) -> Iterator[float]:
    for channel, _ in _channels_and_positions(len(shape)):
        yield _misfit(output, shape, lambda x: x, channel)


def _filter_response(output: Output, shape: tuple[int, ...]) -> Iterator[float]:
    for channel, positions in _channels_and_positions(len(shape)):

        def z(x: Tensor, axes: tuple[int, ...] = positions) -> Tensor:
            return x * x.square().mean(axes, keepdim=True).rsqrt()

        yield _misfit(output, shape, z, channel, has_threshold=True)


def _global_response(output: Output, shape: tuple[int, ...]) -> Iterator[float]:
    for channel, positions in _channels_and_positions(len(shape)):

        def z(
            x: Tensor, axis: int = channel, axes: tuple[int, ...] = positions
        ) -> Tensor:
            size = x.square().sum(axes, keepdim=True).sqrt()
            return x * size / size.mean(axis, keepdim=True)

        for has_rest in (True, False):
            yield _misfit(output, shape, z, channel, has_rest=has_rest)


def _dynamic_tanh(output: Output, shape: tuple[int, ...]) -> Iterator[float]:
    """Find gain and bias far out, where tanh is 1 and -1; alpha by one batch."""
    high, low = (output(torch.full(shape, v).double()) for v in (1e6, -1e6))
    a, b = (high - low) / 2, (high + low) / 2
    first, *others = (x / 3 for x in _draws(shape))
    alpha = (((output(first) - b) / a).clamp(-1, 1).atanh() / first).median()
    yield max(
        ((output(x) - a * (alpha * x).tanh() - b).abs().max() / high.abs().max()).item()
        for x in others
    )


def _pair_norm(output: Output, shape: tuple[int, ...]) -> Iterator[float]:
    """Rows are nodes: with one scale for all, or (SI) with one for each."""

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(0)

    def by_all(x: Tensor) -> Tensor:
        return centred(x) * centred(x).square().sum(-1).mean().rsqrt()

    def by_each(x: Tensor) -> Tensor:
        return centred(x) * centred(x).square().sum(-1, keepdim=True).rsqrt()

    for z in (by_all, by_each):
        yield _misfit(output, shape, z, len(shape) - 1)


def _mean_subtraction(output: Output, shape: tuple[int, ...]) -> Iterator[float]:
    yield _misfit(output, shape, lambda x: x - x.mean(0), len(shape) - 1)


RELATIVES: tuple[Relative, ...] = (
    Relative(
        "frozen batch norm",
        "frozen",
        "it evaluates by fixed statistics in every mode",
        _gain_and_bias,
    ),
    Relative(
        "Dynamic Tanh",
        "dynamictanh|^dyt",
        "gain tanh(alpha x) + bias, no statistics",
        _dynamic_tanh,
    ),
    Relative(
        "FRN",
        "filterresponse|^frn",
        "filter response norm: x over the root mean square of its positions, and a "
        "threshold behind",
        _filter_response,
    ),
    Relative(
        "EvoNorm", "evonorm", "an activation and a norm that were found by search"
    ),
    Relative(
        "GRN",
        "globalresponse|^grn$",
        "global response norm: each channel by its share of the size of all",
        _global_response,
    ),
    Relative(
        "pair norm",
        "pairnorm",
        "nodes without their mean, and over the size of all or of each",
        _pair_norm,
    ),
    Relative(
        "mean subtraction",
        "meansub",
        "nodes without their mean, over nothing",
        _mean_subtraction,
    ),
    Relative(
        "graph norm",
        "messagenorm|msgnorm|groupnorm$|graph",
        "a norm over the nodes of a graph",
    ),
    Relative("cumulative norm", "cumulative", "statistics of the steps so far"),
    Relative(
        "batch-channel norm", "batchchannel", "batch norm and then a norm by channels"
    ),
    Relative(
        "scale alone",
        "simplenorm",
        "x over the deviation from its mean, which is not subtracted",
    ),
)


def relative_of(layer: nn.Module) -> Relative | None:
    """Find a relative by the names of the classes."""
    for ancestor in type(layer).__mro__:
        for relative in RELATIVES:
            if re.search(relative.pattern, ancestor.__name__.lower()):
                return relative
    return None


def formula_of(relative: Relative) -> Claim[Subject]:
    """Return the claim that a layer computes the formula of its name."""

    def fault(subject: Subject) -> Fault | str | None:
        if relative.misfits is None:
            raise NotTested(
                f"no formula of {relative.name} is known here",
                "Compare the layer with its source.",
            )
        misfit = min(relative.misfits(subject.output, subject.shape))
        if not misfit < TOLERANCE:
            return Fault(
                f"{relative.text}: with the best gain and bias of each channel the "
                f"formula is off by {misfit:.2g} of the largest output.",
                "Compare it with the formula, or give it another name.",
            )
        return f"It holds up to {misfit:.1g} of the largest output."

    return Claim("it computes the formula of its name", fault)
