r"""Normalization of the rows or the columns of a matrix, by kernels written in Triton.

``x`` is a contiguous matrix of shape (M, D) in float32, bfloat16 or float16.
:func:`normalize_rows` is layer norm or RMSNorm. :func:`normalize_columns` is batch norm
by the statistics of the batch; images come to it with their channels last, as
(N H W, C). Statistics and gradients of gain and bias are float32, y and ``dl_dx`` have
the dtype of x. The formulas are those of :mod:`normbook.normalize`.

Kernels run on a GPU, or on a CPU under the interpreter of Triton (with
``TRITON_INTERPRET=1`` in the environment before Triton is imported). Nothing is
checked. Sums are taken in the same order each time.

- A *tile*, some rows times some columns, stays in registers. One of rows holds them
  whole, which is why rows have at most :data:`WIDEST` numbers.
- Sums over M: each of some *programs* adds up every so many tiles, then what all of
  them leave is added.
- Mean and variance of a column are put together from those of tiles without a
  difference of large numbers, by the rule of Chan, Golub and LeVeque (1979).

Needs Triton 3.6 or later.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "WIDEST",
    "column_tile",
    "launch",
    "normalize_columns",
    "normalize_columns_backward",
    "normalize_rows",
    "normalize_rows_backward",
    "row_tile",
]

WIDEST = 8192  # columns that one program can hold
PARTS = 64  # at most so many programs share a column

kernel: Any = triton.jit


# --- rows -----------------------------------------------------------------------------


@kernel
def rows_of_tile(number, m, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a tile, its columns, their places in x, and what lies within x."""
    row = number * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    mask = (row < m)[:, None] & (column < D)[None, :]
    return row, column, row.to(tl.int64)[:, None] * D + column[None, :], mask


@kernel
def rows_forward(
    x,
    gamma,  # or None, as beta
    beta,
    y,
    mean,  # None: it is not taken off
    inv_std,
    eps,
    m,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalize the rows of one tile."""
    row, column, place, mask = rows_of_tile(tl.program_id(0), m, D, ROWS, BLOCK)
    v = tl.load(x + place, mask, other=0.0).to(tl.float32)
    if mean is not None:
        mu = tl.sum(v, 1) / D
        v = tl.where(mask, v - mu[:, None], 0.0)
        rest = tl.sum(v, 1) / D  # what rounding left of the mean
        v = tl.where(mask, v - rest[:, None], 0.0)
        tl.store(mean + row, mu + rest, row < m)
    r = tl.rsqrt(tl.sum(v * v, 1) / D + eps)
    tl.store(inv_std + row, r, row < m)
    v *= r[:, None]
    if gamma is not None:
        v *= tl.load(gamma + column, column < D, other=0.0).to(tl.float32)[None, :]
    if beta is not None:
        v += tl.load(beta + column, column < D, other=0.0).to(tl.float32)[None, :]
    tl.store(y + place, v.to(y.dtype.element_ty), mask)


@kernel
def rows_backward(
    dl_dy,
    x,
    gamma,
    mean,
    inv_std,
    dl_dx,  # None: only the sums are wanted
    dl_dgamma,  # (programs, D)
    dl_dbeta,
    m,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Go back through some tiles, and add up what gain and bias receive."""
    column = tl.arange(0, BLOCK)
    gain = tl.full((BLOCK,), 1.0, tl.float32)
    if gamma is not None:
        gain = tl.load(gamma + column, column < D, other=0.0).to(tl.float32)
    of_gamma = tl.zeros((ROWS, BLOCK), tl.float32)
    of_beta = tl.zeros((ROWS, BLOCK), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0)):
        row, column, place, mask = rows_of_tile(number, m, D, ROWS, BLOCK)
        g = tl.load(dl_dy + place, mask, other=0.0).to(tl.float32)
        hat = tl.load(x + place, mask, other=0.0).to(tl.float32)
        if mean is not None:
            hat -= tl.load(mean + row, row < m, other=0.0)[:, None]
        r = tl.load(inv_std + row, row < m, other=0.0)[:, None]
        hat *= r  # beyond x it is not 0, but g is
        of_gamma += g * hat
        of_beta += g
        if dl_dx is not None:
            g *= gain[None, :]
            slope = g - hat * (tl.sum(g * hat, 1) / D)[:, None]
            if mean is not None:
                slope -= (tl.sum(g, 1) / D)[:, None]
            tl.store(dl_dx + place, (r * slope).to(dl_dx.dtype.element_ty), mask)
    place = tl.program_id(0) * D + column
    tl.store(dl_dgamma + place, tl.sum(of_gamma, 0), column < D)
    tl.store(dl_dbeta + place, tl.sum(of_beta, 0), column < D)


def row_tile(width: int) -> dict[str, int]:
    """Return how the kernels of rows take rows of this width."""
    block = triton.next_power_of_2(width)
    rows = max(1, 1024 // block)
    warps = min(max(rows * block // 256, 4), 32)
    return {"D": width, "ROWS": rows, "BLOCK": block, "num_warps": warps}


def normalize_rows(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    eps: float = 1e-5,
    *,
    is_centred: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Normalize each row; return y, and mean (None if not centred) and 1 / s, (M,)."""
    m, tile = len(x), row_tile(x.shape[1])
    y, inv_std = torch.empty_like(x), _statistic(x, m)
    mean = _statistic(x, m) if is_centred else None
    programs = (triton.cdiv(m, tile["ROWS"]),)
    launch(rows_forward, programs, x, gamma, beta, y, mean, inv_std, eps, m, **tile)
    return y, mean, inv_std


def normalize_rows_backward(
    dl_dy: Tensor,
    x: Tensor,
    gamma: Tensor | None,
    mean: Tensor | None,
    inv_std: Tensor,
    *,
    needs_dx: bool = True,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of x, of gain and of bias; without ``needs_dx`` None first.

    ``mean`` and ``inv_std`` are those that :func:`normalize_rows` returned.
    """
    m, tile = len(x), row_tile(x.shape[1])
    dl_dx = torch.empty_like(x) if needs_dx else None
    programs = min(triton.cdiv(m, tile["ROWS"]), _programs(x))
    sums = _statistic(x, 2, programs, x.shape[1])
    arrays = dl_dy, x, gamma, mean, inv_std, dl_dx, *sums
    launch(rows_backward, (programs,), *arrays, m, **tile)
    return dl_dx, *sums.sum(1)


# --- columns --------------------------------------------------------------------------


@kernel
def columns_of_tile(first, m, d, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns of a tile, their places in x, and what lies within x."""
    row = first + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < m)[:, None] & (column < d)[None, :]
    return column, row.to(tl.int64)[:, None] * d + column[None, :], mask


@kernel
def moments_of_parts(
    x,
    means,  # (programs, D)
    squares,  # of the distances from the mean, added
    counts,  # (programs,)
    m,
    d,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Mean and squares of some tiles, one after the other put together."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.full((), 0.0, tl.float32)
    mu = tl.zeros((COLUMNS,), tl.float32)
    square = tl.zeros((COLUMNS,), tl.float32)
    for first in range(part * ROWS, m, parts * ROWS):
        column, place, mask = columns_of_tile(first, m, d, ROWS, COLUMNS)
        v = tl.load(x + place, mask, other=0.0).to(tl.float32)
        n = tl.minimum(m - first, ROWS).to(tl.float32)
        mu_n = tl.sum(v, 0) / n
        v = tl.where(mask, v - mu_n[None, :], 0.0)
        distance, total = mu_n - mu, count + n
        mu += distance * (n / total)
        square += tl.sum(v * v, 0) + distance * distance * (count * n / total)
        count = total
    tl.store(means + part * d + column, mu, column < d)
    tl.store(squares + part * d + column, square, column < d)
    tl.store(counts + part, count)


@kernel
def moments_of_columns(
    means,
    squares,
    counts,
    mean,  # (D,), as var and inv_std
    var,
    inv_std,
    eps,
    m,
    d,
    parts,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Put the parts together."""
    part = tl.arange(0, ROWS)
    column, place, mask = columns_of_tile(0, parts, d, ROWS, COLUMNS)
    n = tl.load(counts + part, part < parts, other=0.0)[:, None]
    mu_n = tl.load(means + place, mask, other=0.0)
    mu = tl.sum(n * mu_n, 0) / m
    distance = tl.where(mask, mu_n - mu[None, :], 0.0)
    square = tl.load(squares + place, mask, other=0.0) + n * distance * distance
    sigma2 = tl.sum(square, 0) / m
    tl.store(mean + column, mu + tl.sum(n * distance, 0) / m, column < d)
    tl.store(var + column, sigma2, column < d)
    tl.store(inv_std + column, tl.rsqrt(sigma2 + eps), column < d)


@kernel
def columns_forward(
    x,
    gamma,
    beta,
    y,
    mean,
    inv_std,
    m,
    d,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Normalize the columns of one tile."""
    first = tl.program_id(1) * ROWS
    column, place, mask = columns_of_tile(first, m, d, ROWS, COLUMNS)
    v = tl.load(x + place, mask, other=0.0).to(tl.float32)
    v -= tl.load(mean + column, column < d, other=0.0)[None, :]
    v *= tl.load(inv_std + column, column < d, other=0.0)[None, :]
    if gamma is not None:
        v *= tl.load(gamma + column, column < d, other=0.0).to(tl.float32)[None, :]
    if beta is not None:
        v += tl.load(beta + column, column < d, other=0.0).to(tl.float32)[None, :]
    tl.store(y + place, v.to(y.dtype.element_ty), mask)


@kernel
def sums_of_parts(
    dl_dy,
    x,
    mean,
    inv_std,
    dl_dgamma,  # (programs, D)
    dl_dbeta,
    m,
    d,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up what gain and bias receive in some tiles."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mu = tl.load(mean + column, column < d, other=0.0)
    r = tl.load(inv_std + column, column < d, other=0.0)
    of_gamma = tl.zeros((COLUMNS,), tl.float32)
    of_beta = tl.zeros((COLUMNS,), tl.float32)
    for first in range(part * ROWS, m, parts * ROWS):
        column, place, mask = columns_of_tile(first, m, d, ROWS, COLUMNS)
        g = tl.load(dl_dy + place, mask, other=0.0).to(tl.float32)
        v = tl.load(x + place, mask, other=0.0).to(tl.float32)
        of_gamma += tl.sum(g * (v - mu[None, :]), 0)
        of_beta += tl.sum(g, 0)
    tl.store(dl_dgamma + part * d + column, r * of_gamma, column < d)
    tl.store(dl_dbeta + part * d + column, of_beta, column < d)


@kernel
def columns_backward(
    dl_dy,
    x,
    gamma,
    mean,
    inv_std,
    dl_dgamma,  # (D,): sums over all rows
    dl_dbeta,
    dl_dx,
    m,
    d,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Go back through one tile."""
    first = tl.program_id(1) * ROWS
    column, place, mask = columns_of_tile(first, m, d, ROWS, COLUMNS)
    r = tl.load(inv_std + column, column < d, other=0.0)
    gain = r
    if gamma is not None:
        gain *= tl.load(gamma + column, column < d, other=0.0).to(tl.float32)
    of_gamma = tl.load(dl_dgamma + column, column < d, other=0.0) / m
    of_beta = tl.load(dl_dbeta + column, column < d, other=0.0) / m
    mu = tl.load(mean + column, column < d, other=0.0)
    g = tl.load(dl_dy + place, mask, other=0.0).to(tl.float32)
    v = tl.load(x + place, mask, other=0.0).to(tl.float32)
    hat = (v - mu[None, :]) * r[None, :]
    slope = gain[None, :] * (g - of_beta[None, :] - hat * of_gamma[None, :])
    tl.store(dl_dx + place, slope.to(dl_dx.dtype.element_ty), mask)


def column_tile(width: int) -> dict[str, int]:
    """Return how the kernels of columns take a matrix of this width."""
    columns = min(max(triton.next_power_of_2(width), 16), 64)
    return {"ROWS": 2048 // columns, "COLUMNS": columns, "num_warps": 4}


def normalize_columns(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize each column; return y, and mean, biased variance and 1 / s, (D,)."""
    (m, d), tile = x.shape, column_tile(x.shape[1])
    blocks, tiles, parts = _grid(x, tile)
    means, squares = _statistic(x, 2, parts, d)
    counts, (mean, var, inv_std) = _statistic(x, parts), _statistic(x, 3, d)
    y = torch.empty_like(x)
    launch(moments_of_parts, (blocks, parts), x, means, squares, counts, m, d, **tile)
    moments = means, squares, counts, mean, var, inv_std
    of_parts = tile | {"ROWS": triton.next_power_of_2(parts), "COLUMNS": 16}
    merges = (triton.cdiv(d, 16),)
    launch(moments_of_columns, merges, *moments, eps, m, d, parts, **of_parts)
    arrays = x, gamma, beta, y, mean, inv_std
    launch(columns_forward, (blocks, tiles), *arrays, m, d, **tile)
    return y, mean, var, inv_std


def normalize_columns_backward(
    dl_dy: Tensor, x: Tensor, gamma: Tensor | None, mean: Tensor, inv_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of gain and of bias.

    ``mean`` and ``inv_std`` are those that :func:`normalize_columns` returned.
    """
    (m, d), tile = x.shape, column_tile(x.shape[1])
    blocks, tiles, parts = _grid(x, tile)
    of_parts = _statistic(x, 2, parts, d)
    arrays = dl_dy, x, mean, inv_std, *of_parts
    launch(sums_of_parts, (blocks, parts), *arrays, m, d, **tile)
    sums, dl_dx = of_parts.sum(1), torch.empty_like(x)
    arrays = dl_dy, x, gamma, mean, inv_std, *sums, dl_dx
    launch(columns_backward, (blocks, tiles), *arrays, m, d, **tile)
    return dl_dx, *sums


# --- both -----------------------------------------------------------------------------


def launch(
    kernel: Any, programs: tuple[int, ...], *values: Any, **options: Any
) -> None:
    """Run a kernel where its tensors are: on their GPU, or under the interpreter."""
    device = next(v.device for v in values if isinstance(v, Tensor))
    is_gpu = device.type == "cuda"
    with torch.cuda.device(device) if is_gpu else contextlib.nullcontext():
        kernel[programs](*values, **options)


def _statistic(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _programs(x: Tensor) -> int:
    """Return how many keep a GPU busy; few where none is, so that each loops."""
    if x.device.type != "cuda":
        return 4
    properties = torch.cuda.get_device_properties(x.device)
    return 4 * int(properties.multi_processor_count)


def _grid(x: Tensor, tile: dict[str, int]) -> tuple[int, int, int]:
    """Tiles across and down, and how many programs share those of a column."""
    blocks = triton.cdiv(x.shape[1], tile["COLUMNS"])
    tiles = triton.cdiv(len(x), tile["ROWS"])
    parts = max(_programs(x) // blocks, 1)
    return blocks, tiles, min(tiles, parts, PARTS)
