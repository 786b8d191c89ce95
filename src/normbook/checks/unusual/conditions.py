"""A condition for a layer that takes one beside x, from what the layer holds.

Adaptive and conditional norms make gain and bias of it. The same condition is given to
every example, so that gain and bias are fixed, as the tests expect. Masks and lengths
are no conditions: they leave nothing out, and are never free numbers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError, Way, call, called
from normbook.checks.copies import copy_of
from normbook.checks.layer.subject import Given
from normbook.checks.tensors import TOLERANCE, draw, largest
from normbook.checks.unusual.padding import More, is_choice

Made = Callable[[Tensor, int], Tensor]  # a condition for x, of a sign
MASKS = re.compile("mask|valid|padding")  # names of arguments


class Conditioned(NamedTuple):
    """A layer with the condition that it takes."""

    layer: nn.Module  # a copy, in which no projection of the condition is 0
    way: Way
    names: str  # of the arguments
    # Whether another condition gives another output; None where that is not finite.
    does_matter: bool | None
    other: Way  # with another condition
    mixed: Way  # of every example one of the two
    given: nn.Module  # the layer with projections as they are
    is_mask: bool = False  # none of the arguments is more than a mask


def conditioned(layer: nn.Module, given: Given) -> Conditioned | None:
    """Find a condition with which a layer runs; None if it needs none, or none does."""
    said = given.kind or recognition.kind_of(layer)
    likely = recognition.shapes_like(given.shape) if given.shape else None
    shapes = likely or shapes_of(layer, said)
    inputs = [draw(recognition.affordable(sizes), 0, 1.0) for sizes in shapes]
    like = next(layer.parameters(), torch.zeros(()))
    inputs = [x.to(like.dtype) for x in inputs]

    def output(way: Way | None, x: Tensor) -> Tensor | None:
        try:
            with called(way, given.axis), torch.no_grad():
                return call(copy_of(layer), x)
        except LayerError:
            return None

    if any(output(None, x) is not None for x in inputs):
        return None
    as_given, layer = layer, _moved(layer)
    not_finite = None
    for names in _arguments(layer):
        is_mask = all(MASKS.search(name.lower()) for name in names)
        for make in _masks() if is_mask else _conditions(layer):
            found = Conditioned(
                layer,
                _way(names, make, 1),
                ", ".join(names),
                False,
                _way(names, make, -1),
                _way(names, partial(_mixed, make=make), 1),
                as_given,
                is_mask,
            )
            for x in inputs:
                if (y := output(found.way, x)) is None:
                    continue
                z = output(found.other, x)
                if not (y.isfinite().all() and (z is None or z.isfinite().all())):
                    # Of numbers that a projection takes that is the layer's own doing.
                    if not_finite is None and projects(layer) and not is_mask:
                        not_finite = found._replace(does_matter=None)
                    continue
                if is_mask and not y.std() > 0:  # all is left out
                    continue
                matters = z is not None and largest(y - z) > TOLERANCE * largest(y)
                return found._replace(does_matter=matters)
    return not_finite


def undisturbed(norm: nn.Module, x: Tensor, more: More) -> Way | None:
    """Return how to call a norm so that its masks and lengths leave nothing out.

    ``x`` and ``more`` are what a model gave it. None where it needs nothing besides x,
    or something that is no mask.
    """
    values = [v for v in (*more[0], *more[1].values()) if isinstance(v, Tensor)]
    if not needs_more(norm) or projects(norm) or not all(map(is_choice, values)):
        return None
    if not values:  # plain numbers, as the model gives them
        return lambda layer, x: layer(x, *more[0], **more[1])
    like, runs = next(norm.parameters(), torch.zeros(())), False
    for kept in (1, 0):  # 0 where a mask marks what is left out
        way = _filled(more, tuple(x.shape), kept)
        try:
            with torch.no_grad(), called(way):
                y = call(copy_of(norm), x.to(like.dtype))
        except LayerError:
            continue
        runs = True
        if y.isfinite().all() and y.std() > 0:
            return way
    if not runs:
        return None
    raise ValueError(
        "a mask that leaves nothing out must give finite outputs, got a "
        f"{type(norm).__name__} for which neither ones nor zeros do; pass call=."
    )


def _filled(more: More, old: tuple[int, ...], kept: int) -> Way:
    """Fill masks with one value, and counts with the most; fit them to another x."""

    def like(value: Any, x: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        sizes = list(value.shape)
        for k, size in enumerate(sizes):
            same = [k] if len(sizes) == len(old) else [*range(len(old))][::-1]
            axes = [0] if k == 0 else [axis for axis in same if axis]
            axis = next((axis for axis in axes if old[axis] == size), None)
            sizes[k] = size if axis is None else x.shape[axis]
        if value.dtype == torch.bool:
            return torch.full(sizes, bool(kept), device=x.device)
        if value.is_floating_point():
            return torch.full(sizes, float(kept), dtype=x.dtype, device=x.device)
        most = int(value.max()) if value.numel() else 0
        most = x.shape[-1] if most == old[-1] else most
        return torch.full(sizes, most, dtype=value.dtype, device=x.device)

    def way(layer: nn.Module, x: Tensor) -> Any:
        args, named = more
        given = {name: like(value, x) for name, value in named.items()}
        return _first(layer(x, *(like(value, x) for value in args), **given))

    return way


def projects(layer: nn.Module) -> bool:
    """Return whether a layer holds a projection, as of a condition."""
    return any(isinstance(part, recognition.OWNERS) for part in layer.modules())


def needs_more(layer: nn.Module) -> bool:
    """Return whether a layer cannot be called with x alone."""
    return any(p.default is p.empty for p in recognition.further(layer))


def needs_condition(layer: nn.Module) -> bool:
    """Return whether a layer cannot be called with x, and masks, alone."""
    needed = (p for p in recognition.further(layer) if p.default is p.empty)
    return any(not MASKS.search(p.name.lower()) for p in needed)


def masked(
    layer: nn.Module, x: Tensor
) -> Iterator[tuple[str, int, Tensor, Tensor, Tensor]]:
    """Yield what a layer gives with a mask that leaves out the second half of an axis.

    Behind the name of the mask and the axis come the output of what is kept, that with
    other values in the places left out, and that of what is kept, without the rest.
    """
    names = [p.name for p in recognition.further(layer) if MASKS.search(p.name.lower())]
    if not names or needs_condition(layer):
        return
    for make in _masks():
        every, half = (_way(names, make, sign) for sign in (1, -1))
        mask = make(x, -1)
        most = max(range(1, mask.dim()), key=lambda k: mask.shape[k], default=0)
        for axis in (a for a in range(1, x.dim()) if x.shape[a] == mask.shape[most]):
            kept = x.shape[axis] - x.shape[axis] // 2
            other = x.clone()
            other.narrow(axis, kept, x.shape[axis] - kept).add_(100)
            alone = x.narrow(axis, 0, kept).contiguous()
            outputs = []
            try:
                for way, of in ((half, x), (half, other), (every, alone)):
                    with called(way), torch.no_grad():
                        y = call(copy_of(layer), of)
                    outputs.append(y.narrow(axis, 0, kept))
            except LayerError:
                continue
            if all(y.isfinite().all() and y.std() > 0 for y in outputs):
                seen, changed, expected = outputs
                yield ", ".join(names), axis, seen, changed, expected


def shapes_of(layer: nn.Module, said: str | None) -> Iterator[tuple[int, ...]]:
    """Yield likely shapes: by the norms inside first, then by the whole."""
    for part in layer.modules():
        if part is not layer and (kind := recognition.kind_of(part)):
            yield from recognition.shapes_of(part, kind)
    yield from recognition.shapes_of(layer, said)


def _arguments(layer: nn.Module) -> Iterator[list[str]]:
    """Yield the names of what is needed besides x, then of one thing more."""
    rest = recognition.further(layer)
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


def _masks() -> Iterator[Made]:
    """Yield masks of the usual shapes; with sign -1 they leave out the second half."""
    shapes: tuple[Callable[[tuple[int, ...]], tuple[int, ...]], ...] = (
        lambda sizes: (sizes[0], 1, *sizes[2:]),
        lambda sizes: (sizes[0], *sizes[2:]),
        lambda sizes: sizes[:-1],
        lambda sizes: (*sizes[:-1], 1),
        lambda sizes: sizes,
    )

    def mask(x: Tensor, sign: int, kept: float, to_bool: bool, shape: Any) -> Tensor:
        mask = torch.full(shape(tuple(x.shape)), kept, dtype=x.dtype, device=x.device)
        if sign < 0:
            axis = max(range(1, mask.dim()), key=lambda k: mask.shape[k], default=0)
            half = mask.shape[axis] // 2
            mask.narrow(axis, mask.shape[axis] - half, half).fill_(1 - kept)
        return mask.bool() if to_bool else mask

    for kept, to_bool, shape in itertools.product((1.0, 0.0), (False, True), shapes):
        yield partial(mask, kept=kept, to_bool=to_bool, shape=shape)


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
        return _first(layer(x, **given))

    return way


def _first(y: Any) -> Any:
    """Return the first tensor of several; a gate is behind it, perhaps."""
    if isinstance(y, tuple | list):
        return next((part for part in y if isinstance(part, Tensor)), None)
    return y


def _moved(layer: nn.Module) -> nn.Module:
    """Return a copy in which no projection is 0, where a condition would be nothing."""
    layer, generator = copy_of(layer), torch.Generator().manual_seed(0)
    for part in layer.modules():
        if isinstance(part, recognition.OWNERS):
            for p in part.parameters(recurse=False):
                p.data += 0.1 * torch.randn(p.shape, generator=generator).to(p)
    return layer
