"""What the four gates may be made of: W_x x and W_h h, and a norm somewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Norm = Callable[[Tensor], Tensor]
Cut = Callable[[Tensor], Sequence[Tensor]]


def layer_norm(a: Tensor) -> Tensor:
    """Return x_hat over the last axis, without eps."""
    return (a - a.mean(-1, keepdim=True)) / a.std(-1, correction=0, keepdim=True)


NORMS: dict[str, Norm] = {
    "layer norm": layer_norm,
    "layer norm by the unbiased variance, over n - 1": lambda a: (
        (a - a.mean(-1, keepdim=True)) / a.std(-1, keepdim=True)
    ),
    "RMS norm": lambda a: a / a.square().mean(-1, keepdim=True).sqrt(),
}


CUTS: tuple[Cut, ...] = (
    lambda a: a.chunk(4, -1),
    lambda a: [a[..., k::4] for k in range(4)],
)


class Gates(NamedTuple):
    """Numbers (N, 4H) from which the gates are made, and how they were made."""

    kind: str
    a: Tensor
    used: tuple[int, ...]  # the matrices, by their place
    q_x: Tensor  # W_x x
    q_h: Tensor  # W_h h


def pre_activations(
    x: Tensor, h: Tensor, matrices: Sequence[Tensor], rows: int
) -> Iterator[Gates]:
    """Yield a (N, 4H) for each way to find and to normalize both terms."""
    for q_x, q_h, used in _terms(x, h, matrices, rows):
        for kind, a in sums(q_x, q_h):
            yield Gates(kind, a, used, q_x, q_h)
    if min(x.shape[1], h.shape[1]) < 3:  # of two values x_hat is 1 and -1
        return
    for name, norm in NORMS.items():
        for q_x, q_h, used in _terms(norm(x), norm(h), matrices, rows):
            kind = f"{name} of x and of h, before the matrices"
            yield Gates(kind, q_x + q_h, used, q_x, q_h)
        for q_x, q_h, used in _terms(norm(x), h, matrices, rows):
            yield Gates(f"{name} of x, before W_x alone", q_x + q_h, used, q_x, q_h)
        for q_x, q_h, used in _terms(x, norm(h), matrices, rows):
            kind = f"{name} of W_x x, and W_h times {name} of h"
            yield Gates(kind, norm(q_x) + q_h, used, q_x, q_h)


def sums(q_x: Tensor, q_h: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what the gates may be made of, and how: right and wrong norms of both."""
    yield "no norm of W_x x + W_h h", q_x + q_h
    for name, norm in NORMS.items():

        def each(q: Tensor, norm: Norm = norm) -> Tensor:
            return torch.cat([norm(part) for part in q.chunk(4, -1)], -1)

        yield f"{name} of W_x x and of W_h h", norm(q_x) + norm(q_h)
        yield f"{name} of W_x x + W_h h", norm(q_x + q_h)
        yield f"{name} of W_x x alone", norm(q_x) + q_h
        yield f"{name} of W_h h alone", q_x + norm(q_h)
        yield f"{name} of each gate, of both terms", each(q_x) + each(q_h)
        yield f"{name} of each gate, of the sum", each(q_x + q_h)

        if min(q_x.shape[1], q_h.shape[1]) < 8:  # of few numbers many ways are alike
            continue

        def across(q: Tensor, norm: Norm = norm) -> Tensor:
            parts = q.reshape(*q.shape[:-1], 4, -1).transpose(-1, -2)
            return norm(parts).transpose(-1, -2).reshape(q.shape)

        yield f"{name} of W_x x times that of W_h h", norm(q_x) * norm(q_h)
        yield (
            f"{name} over the four gates of a unit, of both terms",
            (across(q_x) + across(q_h)),
        )
        yield f"{name} over the four gates of a unit, of the sum", across(q_x + q_h)
        yield f"{name} of W_x x, without W_h h", norm(q_x)
        yield f"{name} of W_h h, without W_x x", norm(q_h)
    if min(q_x.shape[1], q_h.shape[1]) >= 8:
        yield "W_x x alone, without W_h h and any norm", q_x
        yield "W_h h alone, without W_x x and any norm", q_h


def _terms(
    x: Tensor, h: Tensor, matrices: Sequence[Tensor], rows: int
) -> Iterator[tuple[Tensor, Tensor, tuple[int, ...]]]:
    """Yield W_x x and W_h h for the ways in which a layer may hold the matrices."""
    n_x, n_h = x.shape[1], h.shape[1]
    Held = tuple[Tensor, tuple[int, ...]]  # a matrix, and which of those given it is
    of: dict[int, list[Held]] = {}
    of_gates: dict[int, list[Held]] = {}
    for k, matrix in enumerate(matrices):
        for w in (matrix, matrix.T):
            if w.shape[0] == rows:
                of.setdefault(w.shape[1], []).append((w, (k,)))
        for w in (matrix, matrix.T)[: 1 + (matrix.shape[0] != matrix.shape[1])]:
            if w.shape[0] == rows // 4:  # a matrix for each gate
                of_gates.setdefault(w.shape[1], []).append((w, (k,)))
    for size, parts in of_gates.items():
        if len(parts) in (4, 8):
            for k in range(0, len(parts), 4):
                ws, ks = zip(*parts[k : k + 4], strict=True)
                of.setdefault(size, []).append((torch.cat(ws), sum(ks, ())))
    for (w_x, k_x), (w_h, k_h) in itertools.product(of.get(n_x, []), of.get(n_h, [])):
        if w_x is not w_h:
            yield x @ w_x.T, h @ w_h.T, (*k_x, *k_h)
    for w, one in of.get(n_x + n_h, []):
        yield x @ w[:, :n_x].T, h @ w[:, n_x:].T, one
        yield x @ w[:, n_h:].T, h @ w[:, :n_h].T, one
