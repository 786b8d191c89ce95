"""Normalization in loops compiled by numba: the formulas of `normbook.normalize`.

Memory is what a normalization waits for. So x is read once or twice and never copied,
``x_hat`` is computed again on the way back, and all else happens in the cache.

x lies in memory as one of

- *segments*, an array of shape (segments, length). A *group* of so many segments, each
  ``step`` behind the one before, has one mean and one variance: the row of layer norm;
  the channels that group norm takes together; with a step of C, a channel of batch norm
  in all images. ``gamma`` and ``beta`` have shape (channels, length), or (channels, 1)
  where a segment has one gain; segment s is of channel s modulo channels.
- *columns*, an array of shape (rows, channels): batch norm of (N, D), and of images
  whose channels lie together.

``moments`` of shape (4, groups) are: mean, biased variance, what rounding left of the
mean, and 1 / s. Without the third, half of the digits of ``x_hat`` would be lost where
the mean is 10 000 deviations. Sums of many numbers are sums of sums: of some in the
dtype of x, then of those in float64.

Arrays are C-contiguous and of the dtype of ``eps``, float32 or float64. They come as
addresses: for small ones, to make and unpack NumPy's costs more than to compute. So
whoever calls must hold them, and all must have the shapes that are told. Computed are
the groups from ``first`` to ``end``, so that threads can share them. Nothing is
checked: :mod:`normbook.layers.native_norms` is the door. All of it is one file, since
numba's cache looks at no other when it is changed. A row is an array and a number:
numba counts who uses a slice, which costs more than a short row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

__all__ = ["backward", "columns_backward", "columns_forward", "forward"]

SPAN = 2048  # numbers of a segment that are added in the dtype of the array
BLOCK = 64  # rows that are

# Division by 0 gives infinity, as everywhere in torch.
compiled: Any = partial(njit, error_model="numpy", nogil=True)
inlined = partial(compiled, forceinline=True)
# Sums may be taken in any order, so in vectors; and a product and a sum rounded once.
summed = inlined(fastmath={"reassoc", "nsz", "contract"})
fused = inlined(fastmath={"contract"})


@intrinsic
def pointer(_: Any, address: Any, number: Any) -> Any:
    """Make an address one of numbers of the type of another."""
    result = types.CPointer(number)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(result))

    return result(address, number), generate


@inlined()
def places(first, end):
    """Indices of a type without a sign: numba lets negative ones count from the end.

    To look for them would cost the vectors.
    """
    return range(np.uintp(first), np.uintp(end))


# --- sums over a segment --------------------------------------------------------------


@summed
def total(v, s):
    """Sum of a segment."""
    result = 0.0
    for start in range(0, v.shape[1], SPAN):
        part = v.dtype.type(0)
        for j in places(start, min(start + SPAN, v.shape[1])):
            part += v[s, j]
        result += part
    return result


@summed
def totals_about(v, s, origin):
    """Sums of a segment less the origin, and of the squares."""
    first, second = 0.0, 0.0
    for start in range(0, v.shape[1], SPAN):
        part, squares = v.dtype.type(0), v.dtype.type(0)
        for j in places(start, min(start + SPAN, v.shape[1])):
            d = v[s, j] - origin
            part += d
            squares += d * d
        first += part
        second += squares
    return first, second


@summed
def totals_with(w, v, s, origin):
    """Sums of w, and of w times v less the origin."""
    first, second = 0.0, 0.0
    for start in range(0, v.shape[1], SPAN):
        part, products = v.dtype.type(0), v.dtype.type(0)
        for j in places(start, min(start + SPAN, v.shape[1])):
            part += w[s, j]
            products += w[s, j] * (v[s, j] - origin)
        first += part
        second += products
    return first, second


@summed
def gained_totals_with(w, gamma, k, v, s, origin):
    """Sums of gamma times w, and of that times v less the origin."""
    first, second = 0.0, 0.0
    for start in range(0, v.shape[1], SPAN):
        part, products = v.dtype.type(0), v.dtype.type(0)
        for j in places(start, min(start + SPAN, v.shape[1])):
            g = gamma[k, j] * w[s, j]
            part += g
            products += g * (v[s, j] - origin)
        first += part
        second += products
    return first, second


# --- loops that write: one target and few sources, or else no vectors ----------------


@fused
def put_line(to, s, v, origin, slope, level):
    """Put in a linear function of v."""
    for j in places(0, v.shape[1]):
        to[s, j] = (v[s, j] - origin) * slope + level


@fused
def put_affine(to, s, v, origin, inv_std, left, gamma, beta, k):
    """Put in gamma times a hat, plus beta."""
    for j in places(0, v.shape[1]):
        x_hat = (v[s, j] - origin) * inv_std + left
        to[s, j] = x_hat * gamma[k, j] + beta[k, j]


@fused
def put_slopes(to, s, w, factor, v, origin, slope, level):
    """Put in w times a factor, plus a linear function of v."""
    for j in places(0, v.shape[1]):
        to[s, j] = w[s, j] * factor + ((v[s, j] - origin) * slope + level)


@fused
def put_gained_slopes(to, s, w, factor, gamma, k, v, origin, slope, level):
    """Put in gamma times w times a factor, plus a linear function of v."""
    for j in places(0, v.shape[1]):
        g = gamma[k, j] * w[s, j]
        to[s, j] = g * factor + ((v[s, j] - origin) * slope + level)


@fused
def add_times_hat(to, k, w, v, s, origin, inv_std, left):
    """Add w times a hat."""
    for j in places(0, v.shape[1]):
        to[k, j] += w[s, j] * ((v[s, j] - origin) * inv_std + left)


@fused
def add(to, k, v, s, first, end):
    """Add a part of a row."""
    for j in places(first, end):
        to[k, j] += v[s, j]


# --- segments -------------------------------------------------------------------------


@inlined()
def put_moments(moments, k, origin, rest, var, eps):
    """Put in what is known of a group; the mean is the sum of origin and rest."""
    mean = moments.dtype.type(origin + rest)
    moments[0, k] = mean
    moments[1, k] = var
    moments[2, k] = (origin - mean) + rest
    moments[3, k] = 1 / np.sqrt(var + eps)


@compiled(cache=True)
def forward(
    shape, gains, count, step, is_centred, eps, x, gamma, beta, y, moments, first, end
):
    """Normalize groups of ``count`` segments; y and moments are filled.

    ``shape`` is that of x, ``gains`` that of gamma and beta.
    """
    groups = shape[0] // count
    x, y = carray(pointer(x, eps), shape), carray(pointer(y, eps), shape)
    gamma, beta = carray(pointer(gamma, eps), gains), carray(pointer(beta, eps), gains)
    moments = carray(pointer(moments, eps), (4, groups))
    number, channels = x.dtype.type, len(gamma)
    n = count * x.shape[1]
    for group in range(first, end):
        start = group if step > 1 else group * count
        after = start + count * step
        origin, sums, squares = number(0), 0.0, 0.0
        if is_centred:
            for s in range(start, after, step):
                sums += total(x, s)
            origin = number(sums / n)
            sums = 0.0
        for s in range(start, after, step):
            rest, square = totals_about(x, s, origin)
            sums += rest
            squares += square
        rest = sums / n if is_centred else 0.0
        put_moments(moments, group, origin, rest, squares / n - rest * rest, eps)
        mean, inv_std = moments[0, group], moments[3, group]
        left = -moments[2, group] * inv_std
        for s in range(start, after, step):
            k = s % channels
            if gamma.shape[1] == 1:
                slope = gamma[k, 0] * inv_std
                put_line(y, s, x, mean, slope, gamma[k, 0] * left + beta[k, 0])
            else:
                put_affine(y, s, x, mean, inv_std, left, gamma, beta, k)


@compiled(cache=True)
def backward(
    shape,
    gains,
    count,
    step,
    is_centred,
    eps,
    dl_dy,
    x,
    gamma,
    moments,
    dl_dx,
    of_gains,
    first,
    end,
):
    """Go back; ``dl_dx`` is filled and, for these groups, the gradients of the gains.

    The latter are those of gamma and of beta, of shape (2, *gains).
    """
    groups = shape[0] // count
    x, dl_dy = carray(pointer(x, eps), shape), carray(pointer(dl_dy, eps), shape)
    dl_dx, gamma = (
        carray(pointer(dl_dx, eps), shape),
        carray(pointer(gamma, eps), gains),
    )
    moments = carray(pointer(moments, eps), (4, groups))
    of_gains = carray(pointer(of_gains, eps), (2, gains[0], gains[1]))
    sums = np.zeros(of_gains.shape)
    number, channels = x.dtype.type, len(gamma)
    n = count * x.shape[1]
    has_vectors = gamma.shape[1] > 1
    of_gamma, of_beta = np.zeros_like(gamma), np.zeros_like(gamma)
    for group in range(first, end):
        start = group if step > 1 else group * count
        after = start + count * step
        mean, inv_std = moments[0, group], moments[3, group]
        rest = moments[2, group]
        of_g, along = 0.0, 0.0
        for s in range(start, after, step):
            k = s % channels
            if has_vectors:
                a, b = gained_totals_with(dl_dy, gamma, k, x, s, mean)
                of_g += a
                along += inv_std * (b - rest * a)
            else:
                a, b = totals_with(dl_dy, x, s, mean)
                b = inv_std * (b - rest * a)
                sums[0, k, 0] += b
                sums[1, k, 0] += a
                of_g += gamma[k, 0] * a
                along += gamma[k, 0] * b
        # inv_std (g - g_bar - x_hat along), as a linear function of g and x.
        left = -rest * inv_std
        slope = number(-inv_std * inv_std * along / n)
        level = -slope * rest
        if is_centred:
            level -= inv_std * number(of_g / n)
        for s in range(start, after, step):
            k = s % channels
            if has_vectors:
                put_gained_slopes(
                    dl_dx, s, dl_dy, inv_std, gamma, k, x, mean, slope, level
                )
                add_times_hat(of_gamma, k, dl_dy, x, s, mean, inv_std, left)
                add(of_beta, k, dl_dy, s, 0, x.shape[1])
            else:
                factor = gamma[k, 0] * inv_std
                put_slopes(dl_dx, s, dl_dy, factor, x, mean, slope, level)
        if has_vectors and ((group - first) % BLOCK == BLOCK - 1 or group == end - 1):
            for part, of in enumerate((of_gamma, of_beta)):
                for k in range(channels):
                    for j in places(0, x.shape[1]):
                        sums[part, k, j] += of[k, j]
                        of[k, j] = 0
    of_gains[:] = sums


# --- columns --------------------------------------------------------------------------


@fused
def add_about(to, v, r, origin, first, end):
    """Add a row less the origin."""
    for j in places(first, end):
        to[0, j] += v[r, j] - origin[j]


@fused
def add_squares_about(to, v, r, origin, first, end):
    """Add the squares of a row less the origin."""
    for j in places(first, end):
        d = v[r, j] - origin[j]
        to[1, j] += d * d


@fused
def add_products_about(to, w, v, r, origin, first, end):
    """Add w times a row less the origin."""
    for j in places(first, end):
        to[1, j] += w[r, j] * (v[r, j] - origin[j])


@fused
def put_lines(to, r, v, origin, slope, level, first, end):
    """Put in a linear function of v."""
    for j in places(first, end):
        to[r, j] = (v[r, j] - origin[j]) * slope[j] + level[j]


@fused
def put_column_slopes(to, r, w, factor, v, origin, slope, level, first, end):
    """Put in w times a factor, plus a linear function of v."""
    for j in places(first, end):
        line = (v[r, j] - origin[j]) * slope[j] + level[j]
        to[r, j] = w[r, j] * factor[j] + line


@compiled(cache=True)
def columns_forward(shape, gains, eps, x, gamma, beta, y, moments, first, end):
    """Normalize columns by their own statistics; y and moments are filled.

    Read once, block by block: deviations are those from the mean of all rows before,
    and merge as in Chan, Golub and LeVeque (1983), eq. 2.1.
    """
    rows, columns = shape
    x, y = carray(pointer(x, eps), shape), carray(pointer(y, eps), shape)
    gamma, beta = carray(pointer(gamma, eps), gains), carray(pointer(beta, eps), gains)
    moments = carray(pointer(moments, eps), (4, columns))
    part = np.zeros((2, columns), x.dtype)
    origin = np.zeros(columns, x.dtype)
    mean, squares = np.zeros(columns), np.zeros(columns)
    for r in range(min(BLOCK, rows)):
        add(part, 0, x, r, first, end)
    for j in places(first, end):
        mean[j] = part[0, j] / min(BLOCK, rows)
    for start in range(0, rows, BLOCK):
        after = min(start + BLOCK, rows)
        n = after - start
        for j in places(first, end):
            origin[j] = mean[j]
            part[0, j] = part[1, j] = 0
        for r in range(start, after):
            add_about(part, x, r, origin, first, end)
            add_squares_about(part, x, r, origin, first, end)
        for j in places(first, end):
            own = part[0, j] / n
            rest = (origin[j] - mean[j]) + own
            squares[j] += part[1, j] - n * own * own + rest * rest * (start * n / after)
            mean[j] += rest * (n / after)
    slope, level = np.empty_like(origin), np.empty_like(origin)
    for j in places(first, end):
        put_moments(moments, j, mean[j], 0.0, squares[j] / rows, eps)
        slope[j] = gamma[j] * moments[3, j]
        level[j] = beta[j] - moments[2, j] * slope[j]
    for r in range(rows):
        put_lines(y, r, x, moments[0], slope, level, first, end)


@compiled(cache=True)
def columns_backward(
    shape, gains, eps, dl_dy, x, gamma, moments, dl_dx, of_gains, first, end
):
    """Go back, as `backward` does; ``of_gains`` has shape (2, columns)."""
    rows, columns = shape
    x, dl_dy = carray(pointer(x, eps), shape), carray(pointer(dl_dy, eps), shape)
    dl_dx, gamma = (
        carray(pointer(dl_dx, eps), shape),
        carray(pointer(gamma, eps), gains),
    )
    moments = carray(pointer(moments, eps), (4, columns))
    of_gains = carray(pointer(of_gains, eps), (2, columns))
    sums = np.zeros(of_gains.shape)
    part = np.zeros((2, columns), x.dtype)
    mean = moments[0]
    for start in range(0, rows, BLOCK):
        for r in range(start, min(start + BLOCK, rows)):
            add(part, 0, dl_dy, r, first, end)
            add_products_about(part, dl_dy, x, r, mean, first, end)
        for j in places(first, end):
            sums[1, j] += part[0, j]
            sums[0, j] += part[1, j]
            part[0, j] = part[1, j] = 0
    factor, slope, level = part[0], np.empty_like(mean), part[1]
    for j in places(first, end):
        rest, inv_std = moments[2, j], moments[3, j]
        sums[0, j] = inv_std * (sums[0, j] - rest * sums[1, j])
        of_gains[0, j], of_gains[1, j] = sums[0, j], sums[1, j]
        factor[j] = gamma[j] * inv_std
        slope[j] = -factor[j] * inv_std * (sums[0, j] / rows)
        level[j] = -slope[j] * rest - factor[j] * (sums[1, j] / rows)
    for r in range(rows):
        put_column_slopes(dl_dx, r, dl_dy, factor, x, mean, slope, level, first, end)
