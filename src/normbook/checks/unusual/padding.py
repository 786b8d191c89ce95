"""Whether padding is part of the statistics of a norm, and of which: measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normbook.checks.calls import LayerError
from normbook.checks.layer.definitions import Definition
from normbook.checks.tensors import TOLERANCE, fit, largest

More = tuple[tuple[Any, ...], dict[str, Any]]  # what a norm is given besides x
Run = Callable[[Tensor, More], Tensor]

MOST_EXAMPLES = 8


class Part(NamedTuple):
    """Of what padding is part; ``of`` is empty where it changes nothing."""

    of: tuple[str, ...]  # "mean", "variance"
    change: float  # of the outputs that are kept, as a share of them


def kept_places(x: Tensor, more: More) -> Tensor:
    """Return which positions of x, (N, C, T), are no padding at the end, as (N, T).

    A mask says it, or a tail that repeats its last position.
    """
    places = x.shape[0], x.shape[2]
    for mask in (*more[0], *more[1].values()):
        if not (isinstance(mask, Tensor) and is_choice(mask)):
            continue
        if mask.numel() == places[0] * places[1] and mask.shape[0] == places[0]:
            flat = mask.reshape(places)
            keep = flat == flat[:, :1]
            if bool((keep.long().diff(dim=1) <= 0).all()) and not keep.all():
                return keep
    same = (x == x[..., -1:]).all(1).flip(-1)
    tails = same.long().cumprod(-1).sum(-1, keepdim=True)
    tails = torch.where(tails > 1, tails, 0)
    return torch.arange(places[1]) < places[1] - tails.cpu()


def is_choice(values: Tensor) -> bool:
    """Return whether these are a mask, labels or lengths, and no free numbers."""
    if values.is_floating_point():
        return bool(((values == 0) | (values == 1)).all())
    return not values.is_complex()


def part_of_padding(
    run: Run, definition: Definition, x: Tensor, keep: Tensor, more: More
) -> Part | None:
    """Compare what is kept with its output where there is no padding.

    Where the norm does not take that, the padding is given other values. None if what
    is kept cannot be told apart.
    """
    keep = keep.to(x.device)
    cut = _Cut(keep, is_together=definition.kind == "batch")
    inputs = [*cut.pieces(x)]
    before = [*cut.pieces(run(x, more))]
    try:
        after = [
            run(piece, of)
            for piece, of in zip(inputs, cut.arguments(more), strict=True)
        ]
    except LayerError:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        others = x + x.std() * (3 + noise.to(x))
        changed = torch.where(keep[:, None], x, others)
        after = [*cut.pieces(run(changed, more))]
    rows = [*zip(inputs, before, after, strict=True)]
    rows = [row for row in rows if all(t.shape == row[0].shape for t in row)]
    if not rows or not all(t.isfinite().all() for row in rows for t in row):
        return None
    of, changes = set(), []
    for piece, y, alone in rows:
        piece, y, alone = piece.double(), y.double(), alone.double()
        x_hat = definition.normalize(piece, 1e-5)
        (a, b), (a_0, b_0) = (fit(of_x, x_hat, (0, 1)) for of_x in (y, alone))
        is_told = a_0.isfinite() & a.isfinite() & (piece.std(2, keepdim=True) > 1e-4)
        if not is_told.any():
            continue
        changes.append(largest(y - alone) / max(largest(alone), 1e-12))
        size = TOLERANCE * largest(a_0[is_told])
        if largest((a - a_0)[is_told]) > size:
            of.add("variance")
        if largest((b - b_0)[is_told]) > size:  # x_hat is 0 at the mean of what is kept
            of.add("mean")
    return Part(tuple(sorted(of)), max(changes)) if changes else None


class _Cut(NamedTuple):
    """Takes what is kept: of all examples together, or of some, each by itself."""

    keep: Tensor
    is_together: bool

    def pieces(self, values: Tensor) -> Iterator[Tensor]:
        """Yield what is kept, each piece as (1, C, L)."""
        if self.is_together:
            yield values.movedim(-1, 1)[self.keep].movedim(0, -1)[None]
            return
        for i, length in self._examples():
            yield values[i : i + 1, ..., :length]

    def arguments(self, more: More) -> Iterator[More]:
        """Yield what else the norm is given with each piece."""
        count, positions = self.keep.shape

        def has_positions(t: Any) -> bool:
            return isinstance(t, Tensor) and t.dim() > 1 and t.shape[-1] == positions

        def is_of_examples(t: Any) -> bool:
            return isinstance(t, Tensor) and t.dim() > 0 and len(t) == count

        def together(t: Any) -> Any:
            if is_of_examples(t) and has_positions(t):
                return next(iter(self.pieces(t)))
            if is_of_examples(t):
                raise LayerError from ValueError("an argument for each example")
            return t

        def one(t: Any, i: int, length: int) -> Any:
            t = t[i : i + 1] if is_of_examples(t) else t
            return t[..., :length] if has_positions(t) else t

        ways = [together]
        if not self.is_together:
            ways = [partial(one, i=i, length=n) for i, n in self._examples()]
        args, named = more
        for way in ways:
            yield tuple(map(way, args)), {key: way(t) for key, t in named.items()}

    def _examples(self) -> list[tuple[int, int]]:
        lengths = [int(n) for n in self.keep.sum(1)]
        padded = [(i, n) for i, n in enumerate(lengths) if 1 < n < self.keep.shape[1]]
        return padded[:MOST_EXAMPLES]
