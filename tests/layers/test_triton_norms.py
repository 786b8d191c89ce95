"""The kernels of rows and columns: the numbers of the formulas in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_cases import DEVICE, HAS_GPU, WITHOUT, draw, error, marks, quicken

from normbook import normalize as formulas

pytest.importorskip("triton", reason=WITHOUT)
from normbook.layers import triton_norms as norms

pytestmark = marks
# Largest error of y and dl_dx; the interpreter cuts bfloat16 off where a GPU rounds.
TOLERANCES = {torch.float32: 5e-7, torch.bfloat16: 8e-3, torch.float16: 5e-4}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCES)
# Less than a tile; several programs that take several tiles; rows of one tile.
SHAPES = [(3, 5), (11, 33), (130, 100), (9, 1100), (1030, 3)]
if HAS_GPU:
    SHAPES += [(4096, 1024), (100_000, 64), (513, 8192)]


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


def expected(
    x: Any, dl_dy: Any, gamma: Any, beta: Any, axis: int, is_centred: bool = True
) -> tuple[Any, ...]:
    """Return y, statistics and gradients by the formulas in float64."""
    values = x, dl_dy, gamma, beta
    x, dl_dy, gamma, beta = (v if v is None else v.cpu().double() for v in values)
    y, cache = formulas.forward(x, gamma, beta, (axis,), (1,), 1e-5, is_centred)
    return y, cache, formulas.backward(dl_dy, cache)


def values(shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, dl_dy = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)
    return 3 * x + 1, dl_dy, draw(shape[1], seed=2), draw(shape[1], seed=3)


@each_dtype
@pytest.mark.parametrize("shape", [(1, 33), *SHAPES])
@pytest.mark.parametrize("is_centred", [True, False])
def test_rows_are_those_of_the_formulas(
    shape: tuple[int, int], dtype: torch.dtype, is_centred: bool
) -> None:
    x, dl_dy, gamma, beta = values(shape, dtype)
    y, mean, inv_std = norms.normalize_rows(x, gamma, beta, is_centred=is_centred)
    slopes: Any = norms.normalize_rows_backward(dl_dy, x, gamma, mean, inv_std)
    exact, cache, gradients = expected(x, dl_dy, gamma, beta, 1, is_centred)
    assert (mean is None) == (not is_centred)
    assert y.dtype == slopes[0].dtype == dtype
    worst = max(map(error, (y, slopes[0]), (exact, gradients.dl_dx)))
    assert worst <= TOLERANCES[dtype]
    assert error(inv_std, cache.inv_std[:, 0]) <= 5e-7
    assert max(map(error, slopes[1:], gradients[1:])) <= 2e-6


@each_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_columns_are_those_of_the_formulas(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, dl_dy, gamma, beta = values(shape, dtype)
    x = x + draw(shape[1], seed=4).to(dtype)  # each column has a mean of its own
    y, mean, var, inv_std = norms.normalize_columns(x, gamma, beta)
    slopes = norms.normalize_columns_backward(dl_dy, x, gamma, mean, inv_std)
    exact, cache, gradients = expected(x, dl_dy, gamma, beta, 0)
    assert y.dtype == slopes[0].dtype == dtype
    worst = max(map(error, (y, slopes[0]), (exact, gradients.dl_dx)))
    assert worst <= TOLERANCES[dtype]
    statistics = cache.mu[0], cache.var[0], cache.inv_std[0]
    assert max(map(error, (mean, var, inv_std), statistics)) <= 5e-7
    assert max(map(error, slopes[1:], gradients[1:])) <= 2e-6


@pytest.mark.parametrize("axis", [0, 1])
def test_without_gain_and_bias(axis: int) -> None:
    x, dl_dy, _, _ = values((11, 33), torch.float32)
    forward: Any = norms.normalize_rows if axis else norms.normalize_columns
    back: Any = (
        norms.normalize_rows_backward if axis else norms.normalize_columns_backward
    )
    y, mean, *_, inv_std = forward(x)
    slopes = back(dl_dy, x, None, mean, inv_std)
    exact, _, gradients = expected(x, dl_dy, None, None, axis)
    ones = expected(x, dl_dy, torch.ones(33), torch.zeros(33), axis)[2]
    assert error(y, exact) <= 5e-7
    assert error(slopes[0], gradients.dl_dx) <= 5e-7
    assert max(map(error, slopes[1:], ones[1:])) <= 1e-6


def test_sums_alone_are_those_beside_dx() -> None:
    x, dl_dy, gamma, beta = values((70, 33), torch.float32)
    _, mean, inv_std = norms.normalize_rows(x, gamma, beta)
    both = [
        norms.normalize_rows_backward(dl_dy, x, v, mean, inv_std, needs_dx=needs_dx)
        for v, needs_dx in ((gamma, True), (None, False))
    ]
    assert both[1][0] is None
    assert all(map(torch.equal, both[0][1:], both[1][1:]))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mean_of_ten_thousand_deviations(axis: int) -> None:
    """No worse than torch: x itself has four digits of each deviation left."""
    x, dl_dy, gamma, beta = values((256, 256), torch.float32)
    x = x + 3e4
    forward: Any = norms.normalize_rows if axis else norms.normalize_columns
    y, *_ = forward(x, gamma, beta)
    exact, *_ = expected(x, dl_dy, gamma, beta, axis)
    if axis:
        theirs = torch.nn.functional.layer_norm(x, (256,), gamma, beta)
    else:
        theirs = torch.nn.functional.batch_norm(x, None, None, gamma, beta, True)
    assert error(y, exact) <= max(1.1 * error(theirs, exact), 1e-6)


def test_eps_stands_inside_of_the_root() -> None:
    x, _, _, _ = values((5, 33), torch.float32)
    for forward, axis in ((norms.normalize_rows, 1), (norms.normalize_columns, 0)):
        *_, inv_std = forward(x, eps=2.0)
        exact = (x.double().var(axis, correction=0) + 2).rsqrt()
        assert error(inv_std, exact) <= 5e-7


def untouched(*lengths: int) -> list[Tensor]:
    return [torch.full((length,), 7.0, device=DEVICE) for length in lengths]


def is_untouched(array: Tensor, start: int) -> bool:
    """Whether nothing but the first numbers was written, and all of these."""
    return bool((array[start:] == 7).all() and (array[:start] != 7).all())


def test_nothing_is_written_beyond_the_rows() -> None:
    x, dl_dy, gamma, beta = values((16, 33), torch.float32)
    tile = norms.row_tile(33)
    y, mean, inv_std = untouched(16 * 64, 16, 16)
    arrays: Any = x, gamma, beta, y, mean, inv_std
    norms.launch(norms.rows_forward, (1,), *arrays, 1e-5, 5, **tile)
    assert is_untouched(y, 5 * 33)
    assert is_untouched(mean, 5)
    assert is_untouched(inv_std, 5)
    dl_dx, *sums = untouched(16 * 64, 64, 64)
    arrays = dl_dy, x, gamma, mean, inv_std, dl_dx, *sums
    norms.launch(norms.rows_backward, (1,), *arrays, 5, **tile)
    assert is_untouched(dl_dx, 5 * 33)
    assert all(is_untouched(v, 33) for v in sums)


def test_nothing_is_written_beyond_the_columns() -> None:
    x, dl_dy, gamma, beta = values((32, 33), torch.float32)
    tile, sizes = norms.column_tile(33), (5, 33)
    means, squares, counts = parts = untouched(64, 64, 2)
    norms.launch(norms.moments_of_parts, (1, 1), x, *parts, *sizes, **tile)
    assert is_untouched(means, 33)
    assert is_untouched(squares, 33)
    assert is_untouched(counts, 1)
    mean, _, inv_std = moments = untouched(64, 64, 64)
    whole = tile | {"ROWS": 1}
    values_of_parts = *parts, *moments, 1e-5, *sizes, 1
    norms.launch(norms.moments_of_columns, (1,), *values_of_parts, **whole)
    assert all(is_untouched(v, 33) for v in moments)
    y, dl_dx, *sums = untouched(32 * 64, 32 * 64, 64, 64)
    arrays: Any = x, gamma, beta, y, mean, inv_std
    norms.launch(norms.columns_forward, (1, 1), *arrays, *sizes, **tile)
    assert is_untouched(y, 5 * 33)
    arrays = dl_dy, x, mean, inv_std, *sums
    norms.launch(norms.sums_of_parts, (1, 1), *arrays, *sizes, **tile)
    assert all(is_untouched(v, 33) for v in sums)
    arrays = dl_dy, x, gamma, mean, inv_std, *sums, dl_dx
    norms.launch(norms.columns_backward, (1, 1), *arrays, *sizes, **tile)
    assert is_untouched(dl_dx, 5 * 33)
