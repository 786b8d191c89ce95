"""A condition for a layer that takes one beside x, from what the layer holds.

Adaptive and conditional norms make gain and bias of it. The same condition is given to
every example, so that gain and bias are fixed, as the tests expect.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.recognition as recognition
from normbook.checks.calls import LayerError, Way, call, called
from normbook.checks.copies import copy_of
from normbook.checks.subject import TOLERANCE, draw, largest

Made = Callable[[Tensor, int], Tensor]  # a condition for x, of a sign


class Conditioned(NamedTuple):
    """A layer with the condition that it takes."""

    layer: nn.Module  # a copy, in which no projection of the condition is 0
    way: Way
    names: str  # of the arguments
    does_matter: bool  # whether another condition gives another output
    other: Way  # with another condition
    mixed: Way  # of every example one of the two
    given: nn.Module  # the layer with projections as they are


def conditioned(
    layer: nn.Module, shape: tuple[int, ...] | None, kind: str | None, axis: int
) -> Conditioned | None:
    """Find a condition with which a layer runs; None if it runs without, or with none.

    ``axis`` is that of the channels.
    """
    said = kind or recognition.kind_of(layer)
    shapes = recognition.shapes_like(shape) if shape else shapes_of(layer, said)
    inputs = [draw(recognition.affordable(sizes), 0, 1.0) for sizes in shapes]
    like = next(layer.parameters(), torch.zeros(()))
    inputs = [x.to(like.dtype) for x in inputs]

    def output(way: Way | None, x: Tensor) -> Tensor | None:
        try:
            with called(way, axis), torch.no_grad():
                return call(copy_of(layer), x)
        except LayerError:
            return None

    if any(output(None, x) is not None for x in inputs):
        return None
    given, layer = layer, _moved(layer)
    for names in _arguments(layer):
        for make in _conditions(layer):
            way, other = _way(names, make, 1), _way(names, make, -1)
            mixed = _way(names, partial(_mixed, make=make), 1)
            for x in inputs:
                if (y := output(way, x)) is None:
                    continue
                z = output(other, x)
                matters = z is not None and largest(y - z) > TOLERANCE * largest(y)
                text = ", ".join(names)
                return Conditioned(layer, way, text, matters, other, mixed, given)
    return None


def needs_more(layer: nn.Module) -> bool:
    """Return whether a layer cannot be called with x alone."""
    return any(p.default is p.empty for p in _further(layer))


def shapes_of(layer: nn.Module, said: str | None) -> Iterator[tuple[int, ...]]:
    """Yield likely shapes: by the norms inside first, then by the whole."""
    for part in layer.modules():
        if part is not layer and (kind := recognition.kind_of(part)):
            yield from recognition.shapes_of(part, kind)
    yield from recognition.shapes_of(layer, said)


def _further(layer: nn.Module) -> list[inspect.Parameter]:
    """Return what a layer takes besides x."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    rest = [*inspect.signature(layer.forward).parameters.values()][1:]
    return [p for p in rest if p.kind not in several]


def _arguments(layer: nn.Module) -> Iterator[list[str]]:
    """Yield the names of what is needed besides x, then of one thing more."""
    rest = _further(layer)
    needed = [p.name for p in rest if p.default is p.empty]
    if needed:
        yield needed
    yield from ([*needed, p.name] for p in rest if p.name not in needed)


def _conditions(layer: nn.Module) -> Iterator[Made]:
    """Yield what a condition may be: of the sizes that projections take, or like x."""
    parts = [*layer.modules()]
    rows = [part.in_features for part in parts if isinstance(part, nn.Linear)]
    maps = [p.in_channels for p in parts if isinstance(p, nn.modules.conv._ConvNd)]
    for size in dict.fromkeys([*rows, *maps]):
        yield partial(_row, sizes=(size,))
        yield partial(_row, sizes=(1, size))
        yield partial(_row, sizes=(size,), is_map=True)
    if any(isinstance(part, nn.Embedding) for part in parts):
        yield lambda x, sign: torch.full((len(x),), int(sign > 0))
    yield lambda x, sign: _row(x, sign, tuple(x.shape[1:]))
    yield lambda x, sign: _row(x, sign, tuple(x.shape[1:2]))
    yield lambda x, sign: _row(x, sign, tuple(x.shape[-1:]))


def is_first(examples: int) -> Tensor:
    """Return which examples of a mixed batch have the first of two conditions."""
    pattern = torch.tensor([1, 0, 0, 1, 0, 1, 1, 1], dtype=torch.bool)
    return pattern.repeat(examples // len(pattern) + 1)[:examples]


def _mixed(x: Tensor, sign: int, make: Made) -> Tensor:
    first, second = make(x, sign), make(x, -sign)
    is_one = is_first(len(x)).reshape(-1, *[1] * (first.dim() - 1))
    return torch.where(is_one, first, second)


def _row(
    x: Tensor, sign: int, sizes: tuple[int, ...], *, is_map: bool = False
) -> Tensor:
    """Return numbers from -1 to 1, shuffled, the same for every example."""
    sizes = (*sizes, *x.shape[2:]) if is_map else sizes
    count = math.prod(sizes)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    row = sign * torch.linspace(-1, 1, count + 1)[1:][order]
    row = row.reshape(1, *sizes).to(x)
    return row.expand(len(x), *sizes).contiguous()


def _way(names: list[str], make: Made, sign: int) -> Way:
    def way(layer: nn.Module, x: Tensor) -> Any:
        given = {}
        for number, name in enumerate(names):
            value = make(x, sign)
            if value.dim() > 1:  # not gain and bias alike, where both are given
                value = value.roll(number, 1)
            given[name] = value
        y = layer(x, **given)
        if isinstance(y, tuple | list):  # a gate behind it, perhaps
            return next((part for part in y if isinstance(part, Tensor)), None)
        return y

    return way


def _moved(layer: nn.Module) -> nn.Module:
    """Return a copy in which no projection is 0, where a condition would be nothing."""
    layer, generator = copy_of(layer), torch.Generator().manual_seed(0)
    for part in layer.modules():
        if isinstance(part, recognition.OWNERS):
            for p in part.parameters(recurse=False):
                noise = torch.randn(p.shape, generator=generator)
                with torch.no_grad():
                    p.add_(0.1 * noise.to(p))
    return layer
