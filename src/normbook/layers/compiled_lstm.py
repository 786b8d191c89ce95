r"""The loop of the LSTM over its steps, with layer norm or without, compiled by numba.

These are the formulas of :mod:`normbook.layer_norm_lstm` and :mod:`normbook.lstm` on a
CPU: at each step one product with :math:`W_h`, then each row by itself while it lies in
the cache. What makes it fast:

- ``W_h`` lies in *panels*, columns that fill two vector registers. A *tile*, some rows
  times one panel, stays in registers for the whole sum.
- exp is a polynomial without branches, so that loops over units become vector loops.
- A loop has one target and few sources: numba cannot promise that arrays do not
  overlap, and compiled code that looks whether they do costs more with each.

Arrays are NumPy's, C-contiguous and of one dtype, float32 or float64. ``starts`` and
``sizes`` tell the rows of each step, as in :mod:`normbook.through_time`. ``eps`` and
``moments`` are those of p, q and c: mean and 1 / s of each row, or with batch norm
mean, variance and 1 / s of each step, of shape (T, 3, columns). Nothing is checked:
:mod:`normbook.layers.native` is the door. All of it is one file, since numba's cache
looks at no other when it is changed.
"""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any

import llvmlite.ir as ir
import numpy as np
from llvmlite.binding import get_host_cpu_features
from numba import config, njit, types
from numba.core.cgutils import get_or_insert_function, unpack_tuple
from numba.extending import intrinsic, overload

__all__ = [
    "backward",
    "batch_norm_backward",
    "batch_norm_forward",
    "forward",
    "pack",
    "padded",
]


def _has(feature: str) -> bool:
    """Whether the CPU has it; who names one to numba names its features, too."""
    if config.CPU_NAME:
        return f"+{feature}" in (config.CPU_FEATURES or "")
    return bool(get_host_cpu_features().get(feature))


HAS_AVX512, HAS_AVX2 = _has("avx512f"), _has("avx2")
VECTOR = 64 if HAS_AVX512 else 32 if HAS_AVX2 else 16  # bytes of a vector register
ROWS = 8 if HAS_AVX512 else 6 if HAS_AVX2 else 4  # of the largest tile
BLOCK = 64  # rows whose gradients are added in the dtype of the arrays, not float64

# Division by 0 gives infinity, as everywhere in torch.
compiled: Any = partial(njit, error_model="numpy", nogil=True)
# Sums may be taken in any order, so in vectors; and a product and a sum rounded once.
summed = compiled(fastmath={"reassoc", "nsz", "contract"})
fused = compiled(fastmath={"contract"})


# --- threads that compute together ----------------------------------------------------


@compiled()
def share(count, me, members):
    """First and end of my part of so many."""
    return count * me // members, count * (me + 1) // members


@intrinsic
def arrive(_: Any, arrived: Any) -> Any:
    """Add 1 to the first number, as no other thread can meanwhile."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", array.data, one, "seq_cst")

    return types.int64(arrived), generate


@intrinsic
def count_arrived(_: Any, arrived: Any) -> Any:
    """Read the first number as it is now."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.load_atomic(array.data, "seq_cst", 8)

    return types.int64(arrived), generate


YIELD = "SwitchToThread" if os.name == "nt" else "sched_yield"
let_others_run = types.ExternalFunction(YIELD, types.int32())


@compiled()
def wait(arrived, members, times):
    """Go on when all have come here so many times."""
    if members > 1:
        arrive(arrived)
        looks = 0
        while count_arrived(arrived) < members * times:
            looks += 1
            if looks % 1024 == 0:  # a machine with other work
                let_others_run()


@compiled()
def keep_apart(sizes, members):
    """Whether each member keeps to its rows in all steps, and waits for no other.

    Where they are few, or not the same in all steps, all multiply all rows, each with
    its part of the panels: a tile of fewer rows is slower.
    """
    return sizes[-1] == sizes[0] and sizes[0] >= members * ROWS


# --- the product ----------------------------------------------------------------------


def padded(columns: int, dtype: np.dtype) -> int:
    """Columns of as many whole panels as it takes."""
    width = 2 * VECTOR // dtype.itemsize
    return -(-columns // width) * width


@compiled(cache=True)
def pack(w, is_transposed):
    """Lay w or its transpose, (K, columns), out in panels, the last filled with 0."""
    depth, columns = w.shape[::-1] if is_transposed else w.shape
    width = 2 * VECTOR // w.itemsize
    panels = np.zeros((-(-columns // width), depth, width), w.dtype)
    for first in range(0, columns, width):
        panel = panels[first // width]
        for k in range(depth):
            for j in range(first, min(first + width, columns)):
                panel[k, j - first] = w[j, k] if is_transposed else w[k, j]
    return panels.ravel()


def tile(rows: int) -> Any:
    """Make the product of so many rows of x with one panel.

    Its arguments are x, the first row, all panels, the place where the panel begins,
    the columns of x that count, and where the result goes: array, row and column.
    """

    @intrinsic
    def product_of_tile(
        _: Any,
        x: Any,
        row: Any,
        panels: Any,
        at: Any,
        depth: Any,
        to: Any,
        i: Any,
        j: Any,
    ) -> Any:
        signature = types.void(x, row, panels, at, depth, to, i, j)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def array(k: int) -> Any:
                return context.make_array(signature.args[k])(
                    context, builder, arguments[k]
                )

            def place(array: Any, row: Any, column: Any) -> Any:
                stride = unpack_tuple(builder, array.strides)[0]
                stride = builder.sdiv(stride, whole(size))
                flat = builder.add(builder.mul(row, stride), column)
                return builder.gep(array.data, [flat])

            _, row, _, at, depth, _, i, j = arguments
            whole, integer = partial(ir.Constant, depth.type), ir.IntType(32)
            size = x.dtype.bitwidth // 8
            lanes = VECTOR // size
            vector = ir.VectorType(context.get_value_type(x.dtype), lanes)
            nothing = ir.Constant(vector, ir.Undefined)
            same = ir.Constant(ir.VectorType(integer, lanes), [0] * lanes)
            kind = ir.FunctionType(vector, [vector] * 3)
            multiply_add = get_or_insert_function(
                builder.module, kind, f"llvm.fmuladd.v{lanes}f{8 * size}"
            )
            source, to = array(0), array(5)
            starts = [
                place(source, builder.add(row, whole(r)), whole(0)) for r in range(rows)
            ]
            panel = builder.gep(array(2).data, [at])
            before = builder.block
            loop = builder.append_basic_block("sum")
            after = builder.append_basic_block("summed")
            builder.branch(loop)
            builder.position_at_end(loop)
            k = builder.phi(depth.type)
            k.add_incoming(whole(0), before)
            sums = [builder.phi(vector) for _ in range(2 * rows)]
            columns = builder.gep(panel, [builder.mul(k, whole(2 * lanes))])
            pair = []
            for v in range(2):
                pointer = builder.gep(columns, [whole(v * lanes)])
                pointer = builder.bitcast(pointer, vector.as_pointer())
                pair.append(builder.load(pointer, align=size))
            results = []
            for r in range(rows):
                value = builder.load(builder.gep(starts[r], [k]))
                value = builder.insert_element(nothing, value, integer(0))
                value = builder.shuffle_vector(value, nothing, same)
                for v in range(2):
                    factors = value, pair[v], sums[2 * r + v]
                    results.append(builder.call(multiply_add, factors))
            following = builder.add(k, whole(1))
            k.add_incoming(following, loop)
            for total, result in zip(sums, results, strict=True):
                total.add_incoming(ir.Constant(vector, [0.0] * lanes), before)
                total.add_incoming(result, loop)
            is_more = builder.icmp_signed("<", following, depth)
            builder.cbranch(is_more, loop, after)
            builder.position_at_end(after)
            for r in range(rows):
                for v in range(2):
                    column = builder.add(j, whole(v * lanes))
                    pointer = place(to, builder.add(i, whole(r)), column)
                    pointer = builder.bitcast(pointer, vector.as_pointer())
                    builder.store(results[2 * r + v], pointer, align=size)
            return context.get_dummy_value()

        return signature, generate

    return product_of_tile


largest_tile, tile_of_2, tile_of_1 = tile(ROWS), tile(2), tile(1)


@compiled()
def product(x, row, rows, panels, depth, to, i, me, members):
    """Multiply rows of x with my panels, and put the result in rows of ``to``."""
    width = 2 * VECTOR // panels.itemsize
    first, end = share(panels.size // (depth * width), me, members)
    for j in range(first * width, end * width, width):
        at = j * depth
        r = 0
        while r + ROWS <= rows:
            largest_tile(x, row + r, panels, at, depth, to, i + r, j)
            r += ROWS
        while r + 2 <= rows:
            tile_of_2(x, row + r, panels, at, depth, to, i + r, j)
            r += 2
        if r < rows:
            tile_of_1(x, row + r, panels, at, depth, to, i + r, j)


# --- the functions of the gates -------------------------------------------------------


def cast(theirs: Any) -> Any:
    """Make what reads the bits of a number as one of another type."""

    @intrinsic
    def read(_: Any, x: Any) -> Any:
        result = theirs[x]

        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(result))

        return result(x), generate

    return read


WHOLE = {types.float32: types.uint32, types.float64: types.uint64}
bits, of_bits = cast(WHOLE), cast({whole: x for x, whole in WHOLE.items()})


def expm1(x: Any) -> Any:
    """exp(x) - 1 = 2^n (exp(r) - 1) + 2^n - 1, with x = n log 2 + r; NaN stays NaN."""


@overload(expm1)
def _expm1(x: Any) -> Any:
    is_32 = x == types.float32
    number, whole = (np.float32, np.uint32) if is_32 else (np.float64, np.uint64)
    size, terms = (23, 7) if is_32 else (52, 13)  # of the digits; of the series
    digits, bias = whole(size), whole(127 if is_32 else 1023)
    largest = number(80 if is_32 else 700)
    # log 2 in two parts: a whole n times the first is exact.
    first = number(0.693359375)
    second = number(-2.121944400546905827679e-4)
    # Beside 1.5 * 2^size a number has no digits behind the point: it rounds to n,
    # and its last bits are those of n.
    shift, per_log_2 = number(1.5 * 2.0**size), number(1.4426950408889634)
    one = number(1)
    taylor = tuple(number(1 / math.factorial(k)) for k in range(terms, 1, -1))

    def run(x: Any) -> Any:
        x = largest if x > largest else x
        x = -largest if x < -largest else x
        shifted = x * per_log_2 + shift
        n = shifted - shift
        r = (x - n * first) - n * second
        q = taylor[0]
        for k in range(1, len(taylor)):
            q = q * r + taylor[k]
        q = q * (r * r) + r
        power = of_bits(whole((bits(shifted) + bias) << digits))  # 2^n
        return power * q + (power - one)

    return run


@compiled()
def sigmoid(a):
    """Put in the logistic function of each."""
    one, two = a.dtype.type(1), a.dtype.type(2)
    for j in range(a.size):
        a[j] = one / (two + expm1(-a[j]))


@compiled()
def tanh(a):
    """Put in the hyperbolic tangent of each."""
    two = a.dtype.type(2)
    for j in range(a.size):
        e = expm1(-two * a[j])
        a[j] = -e / (e + two)


# --- loops over a row -----------------------------------------------------------------


@summed
def mean(v):
    """Mean of v."""
    total = v.dtype.type(0)
    for j in range(v.size):
        total += v[j]
    return total / v.dtype.type(v.size)


@summed
def put_moments(moments, v, eps):
    """Put in the mean of v, corrected by what it left, and 1 / s."""
    first = mean(v)
    number = v.dtype.type
    total, squares = number(0), number(0)
    for j in range(v.size):
        d = v[j] - first
        total += d
        squares += d * d
    left = total / v.dtype.type(v.size)
    var = max(squares / number(v.size) - left * left, number(0))
    moments[0] = first + left
    moments[1] = number(1) / np.sqrt(var + eps)


@fused
def put_affine_hat(to, v, moments, gamma, beta):
    """Put in gamma times v standardized, plus beta."""
    mu, inv_std = moments[0], moments[1]
    for j in range(to.size):
        to[j] = gamma[j] * ((v[j] - mu) * inv_std) + beta[j]


@fused
def add_affine_hat(to, v, moments, gamma):
    """Add gamma times v standardized."""
    mu, inv_std = moments[0], moments[1]
    for j in range(to.size):
        to[j] += gamma[j] * ((v[j] - mu) * inv_std)


@fused
def add_product_with_hat(to, w, v, moments):
    """Add w times v standardized."""
    mu, inv_std = moments[0], moments[1]
    for j in range(to.size):
        to[j] += w[j] * ((v[j] - mu) * inv_std)


@summed
def means_through(w, gamma, v, moments):
    """Means of gamma times w, and of that times v standardized."""
    mu, inv_std = moments[0], moments[1]
    number = w.dtype.type
    first, second = number(0), number(0)
    for j in range(w.size):
        of_hat = gamma[j] * w[j]
        first += of_hat
        second += of_hat * ((v[j] - mu) * inv_std)
    return first / number(w.size), second / number(w.size)


@fused
def put_through(to, w, gamma, v, moments):
    """Put in w taken back through gamma times a hat."""
    mu, inv_std = moments[0], moments[1]
    first, second = means_through(w, gamma, v, moments)
    for j in range(to.size):
        v_hat = (v[j] - mu) * inv_std
        to[j] = inv_std * ((gamma[j] * w[j] - first) - v_hat * second)


@fused
def add_through(to, w, gamma, v, moments):
    """Add w taken back through gamma times a hat."""
    mu, inv_std = moments[0], moments[1]
    first, second = means_through(w, gamma, v, moments)
    for j in range(to.size):
        v_hat = (v[j] - mu) * inv_std
        to[j] += inv_std * ((gamma[j] * w[j] - first) - v_hat * second)


@fused
def put_product(to, v, w):
    """Put in v times w."""
    for j in range(to.size):
        to[j] = v[j] * w[j]


@fused
def put_sum(to, v, w):
    """Put in v plus w."""
    for j in range(to.size):
        to[j] = v[j] + w[j]


@fused
def clear(to):
    """Put in 0."""
    for j in range(to.size):
        to[j] = 0


@fused
def put(to, v):
    """Put in v."""
    for j in range(to.size):
        to[j] = v[j]


@fused
def scale(to, factor):
    """Multiply by one number."""
    for j in range(to.size):
        to[j] *= factor


@fused
def add(to, v):
    """Add v."""
    for j in range(to.size):
        to[j] += v[j]


@fused
def put_c(to, f, c_prev, i, g):
    """Put in the next c."""
    for j in range(to.size):
        to[j] = f[j] * c_prev[j] + i[j] * g[j]


@fused
def put_slope_of_u(to, dl_dh, o, tanh_u):
    """Put in what arrives at u."""
    one = to.dtype.type(1)
    for j in range(to.size):
        to[j] = dl_dh[j] * o[j] * (one - tanh_u[j] * tanh_u[j])


@fused
def put_slope_of_gate(to, arriving, factor, gate):
    """Put in what arrives at a, before a sigmoid that multiplies ``factor``."""
    one = to.dtype.type(1)
    for j in range(to.size):
        to[j] = arriving[j] * factor[j] * (gate[j] * (one - gate[j]))


@fused
def put_slope_of_g(to, arriving, i, g):
    """Put in what arrives at a, before the tanh."""
    one = to.dtype.type(1)
    for j in range(to.size):
        to[j] = arriving[j] * i[j] * (one - g[j] * g[j])


# --- batch norm over the rows of a step -----------------------------------------------


@fused
def add_deviation(to, v, mean):
    """Add v less the mean."""
    for j in range(to.size):
        to[j] += v[j] - mean[j]


@fused
def add_square(to, v, mean):
    """Add the square of v less the mean."""
    for j in range(to.size):
        d = v[j] - mean[j]
        to[j] += d * d


@fused
def add_times_hat(to, w, v, mean, inv_std):
    """Add w times v standardized."""
    for j in range(to.size):
        to[j] += w[j] * ((v[j] - mean[j]) * inv_std[j])


@fused
def put_affine_hats(to, v, mean, inv_std, gamma, beta):
    """Put in gamma times v standardized by columns, plus beta."""
    for j in range(to.size):
        to[j] = gamma[j] * ((v[j] - mean[j]) * inv_std[j]) + beta[j]


@fused
def add_affine_hats(to, v, mean, inv_std, gamma):
    """Add gamma times v standardized by columns."""
    for j in range(to.size):
        to[j] += gamma[j] * ((v[j] - mean[j]) * inv_std[j])


@fused
def put_slopes(to, w, v, mean, inv_std, gain, of_mean, of_std):
    """Put in w taken back through a hat and its gain."""
    for j in range(to.size):
        v_hat = (v[j] - mean[j]) * inv_std[j]
        to[j] = gain[j] * ((w[j] - of_mean[j]) - v_hat * of_std[j])


@fused
def put_column_moments(moments, v, first, rows, eps, uses_batch):
    """Put in mean, variance and 1 / s of rows of v, or 1 / s by what is given."""
    mean, var, inv_std = moments[0], moments[1], moments[2]
    count = var.dtype.type(rows)
    if uses_batch:
        for k in range(3):
            clear(moments[k])
        for n in range(rows):
            add(mean, v[first + n, : mean.size])
        for j in range(mean.size):
            mean[j] /= count
        left = inv_std
        for n in range(rows):
            add_deviation(left, v[first + n, : mean.size], mean)
            add_square(var, v[first + n, : mean.size], mean)
        for j in range(mean.size):
            left[j] /= count
            var[j] = max(var[j] / count - left[j] * left[j], var.dtype.type(0))
            mean[j] += left[j]
    for j in range(mean.size):
        inv_std[j] = var.dtype.type(1) / np.sqrt(var[j] + eps)


@fused
def put_column_slopes(to, row, w, v, first, rows, moments, gamma, uses_batch, sums):
    """Put in rows of w taken back, and the sums of w and of w times the hat."""
    mean, inv_std = moments[0], moments[2]
    clear(sums[0])
    clear(sums[1])
    for n in range(rows):
        add(sums[0], w[n])
        add_times_hat(sums[1], w[n], v[first + n, : mean.size], mean, inv_std)
    # What goes through the statistics, where they are those of these rows.
    share, gain = sums.copy(), gamma.copy()
    for k in range(2):
        if uses_batch:
            scale(share[k], sums.dtype.type(1 / rows))
        else:
            clear(share[k])
    put_product(gain, gamma, inv_std)
    for n in range(rows):
        v_n = v[first + n, : mean.size]
        put_slopes(to[row + n], w[n], v_n, mean, inv_std, gain, share[0], share[1])


# --- the loop over the steps ----------------------------------------------------------


@compiled(cache=True)
def forward(
    q,
    w_h,
    gains,
    h_0,
    c_0,
    starts,
    sizes,
    eps,
    mode,
    is_kept,
    moments,
    p,
    gates,
    c,
    tanh_u,
    h,
    me,
    members,
    arrived,
):
    """Run over all steps; c, h and, if kept, p, gates, tanh_u and moments are filled.

    q is W_x x, ``w_h`` are the panels of the transposed W_h, ``gains`` are gamma_h,
    gamma_x, b, gamma_c and beta_c, with the biases in b; those of a hat count where it
    is. The ``mode`` says whether there are hats of p, q and c, whether q is added to p
    before its hat, and whether the next step takes u, the normalized c, for c; ``c`` is
    filled with what has no hat yet. What is not kept needs rows for one step. As many
    threads as there are ``members`` call it at the same time; ``me`` counts them from
    0, ``arrived`` is a 0 of theirs. Each has its columns of p, and its rows of all
    else.
    """
    gamma_h, gamma_x, b, gamma_c, beta_c = gains
    has_p, has_q, has_c, is_sum, is_carried = mode
    of_p, of_q, of_c = moments
    units = h.shape[1]
    u_prev = np.empty(units, q.dtype)
    last_h, last_c, before = h_0, c_0, 0
    are_apart = keep_apart(sizes, members)
    for t in range(sizes.size):
        start = starts[t]
        first = start if is_kept else 0
        mine, end = share(sizes[t], me, members)
        if are_apart:
            rows = end - mine
            product(last_h, before + mine, rows, w_h, units, p, first + mine, 0, 1)
        else:
            product(last_h, before, sizes[t], w_h, units, p, first, me, members)
            wait(arrived, members, 2 * t + 1)
        for n in range(mine, end):
            row, kept = start + n, first + n
            a, p_t, q_t, u = gates[kept], p[kept, : 4 * units], q[row], tanh_u[kept]
            c_t, c_prev = c[row], last_c[before + n]
            if is_sum:
                add(p_t, q_t)
            if has_p:
                put_moments(of_p[kept], p_t, eps[0])
                put_affine_hat(a, p_t, of_p[kept], gamma_h, b)
            else:
                put_sum(a, p_t, b)
            if has_q:
                put_moments(of_q[kept], q_t, eps[1])
                add_affine_hat(a, q_t, of_q[kept], gamma_x)
            elif not is_sum:
                add(a, q_t)
            sigmoid(a[: 3 * units])
            tanh(a[3 * units :])
            if is_carried and t > 0:  # the moments are still those of the step before
                of_prev = of_c[before + n if is_kept else n]
                put_affine_hat(u_prev, c_prev, of_prev, gamma_c, beta_c)
                c_prev = u_prev
            put_c(c_t, a[:units], c_prev, a[units : 2 * units], a[3 * units :])
            if has_c:
                put_moments(of_c[kept], c_t, eps[2])
                put_affine_hat(u, c_t, of_c[kept], gamma_c, beta_c)
            else:
                put(u, c_t)
            tanh(u)
            put_product(h[row], a[2 * units : 3 * units], u)
        last_h, last_c, before = h, c, start
        if not are_apart:
            wait(arrived, members, 2 * t + 2)


@compiled(cache=True)
def backward(
    dl_dh,
    q,
    w_h,
    gains,
    c_0,
    starts,
    sizes,
    first,
    end,
    mode,
    moments,
    p,
    gates,
    c,
    tanh_u,
    dl_dp,
    dl_dq,
    at_h,
    at_c,
    of_4h,
    of_h,
    me,
    members,
    arrived,
):
    """Go back over the steps from ``end``, which is left out, to ``first``.

    ``at_h`` and ``at_c`` come with what arrives behind these steps, and leave with what
    arrives before them; ``at_h`` is as wide as ``w_h``, the panels of W_h. Filled are,
    for the rows of these steps, ``dl_dp`` and, where it is another one, ``dl_dq``.
    Added, in float64, are the gradients of b, gamma_h and gamma_x, ``of_4h``, and of
    beta_c and gamma_c, ``of_h``, in rows of each member.
    """
    gamma_h, gamma_x, _, gamma_c, beta_c = gains
    has_p, has_q, has_c, is_sum, is_carried = mode
    of_p, of_q, of_c = moments
    units = c.shape[1]
    u_prev = np.empty(units, q.dtype)
    dl_da = np.empty(4 * units, q.dtype)
    part_4h = np.zeros((3, 4 * units), q.dtype)
    part_h = np.zeros((2, units), q.dtype)
    waiting, are_apart = 0, keep_apart(sizes, members)
    away = starts[first]  # rows before those of dl_dp
    for t in range(end - 1, first - 1, -1):
        start = starts[t]
        last_c, before = (c_0, 0) if t == 0 else (c, starts[t - 1])
        mine, last = share(sizes[t], me, members)
        for n in range(mine, last):
            row = start + n
            a, u = gates[row], tanh_u[row]
            f, i, o = a[:units], a[units : 2 * units], a[2 * units : 3 * units]
            g, dl_dh_t, dl_dc = a[3 * units :], at_h[n, :units], at_c[n]
            dl_du, c_prev = dl_da[:units], last_c[before + n]
            add(dl_dh_t, dl_dh[row])
            put_slope_of_u(dl_du, dl_dh_t, o, u)
            if is_carried:
                add(dl_du, dl_dc)
                clear(dl_dc)
                if t > 0:
                    put_affine_hat(u_prev, c_prev, of_c[before + n], gamma_c, beta_c)
                    c_prev = u_prev
            if has_c:
                add(part_h[0], dl_du)
                add_product_with_hat(part_h[1], dl_du, c[row], of_c[row])
                add_through(dl_dc, dl_du, gamma_c, c[row], of_c[row])
            else:
                add(dl_dc, dl_du)
            put_slope_of_gate(dl_da[:units], dl_dc, c_prev, f)
            put_slope_of_gate(dl_da[units : 2 * units], dl_dc, g, i)
            put_slope_of_gate(dl_da[2 * units : 3 * units], dl_dh_t, u, o)
            put_slope_of_g(dl_da[3 * units :], dl_dc, i, g)
            add(part_4h[0], dl_da)
            put_product(dl_dc, dl_dc, f)
            if has_p:
                p_t = p[row, : 4 * units]
                add_product_with_hat(part_4h[1], dl_da, p_t, of_p[row])
                put_through(dl_dp[row - away], dl_da, gamma_h, p_t, of_p[row])
            else:
                put(dl_dp[row - away], dl_da)
            if has_q:
                add_product_with_hat(part_4h[2], dl_da, q[row], of_q[row])
                put_through(dl_dq[row - away], dl_da, gamma_x, q[row], of_q[row])
            elif has_p and not is_sum:
                put(dl_dq[row - away], dl_da)
        if are_apart:
            row, rows = start - away + mine, last - mine
            product(dl_dp, row, rows, w_h, 4 * units, at_h, mine, 0, 1)
        else:
            times, rows = 2 * (end - t), sizes[t]
            wait(arrived, members, times - 1)
            product(dl_dp, start - away, rows, w_h, 4 * units, at_h, 0, me, members)
            wait(arrived, members, times)
        waiting += sizes[t]
        if waiting >= BLOCK or t == first:
            for k in range(3):
                add(of_4h[me, k], part_4h[k])
                clear(part_4h[k])
            for k in range(2):
                add(of_h[me, k], part_h[k])
                clear(part_h[k])
            waiting = 0


@compiled(cache=True)
def batch_norm_forward(
    q,
    w_h,
    gains,
    h_0,
    c_0,
    starts,
    sizes,
    eps,
    uses_batch,
    is_kept,
    moments,
    p,
    gates,
    c,
    tanh_u,
    h,
    *_,
):
    """Run over all steps with batch norm; all else is as in `forward`.

    ``uses_batch`` says of p, q and c whether their mean and variance are those of the
    step; else they are given.
    """
    gamma_h, gamma_x, b, gamma_c, beta_c = gains
    of_p, of_q, of_c = moments
    units = h.shape[1]
    last_h, last_c, before = h_0, c_0, 0
    for t in range(sizes.size):
        start, n = starts[t], sizes[t]
        first = start if is_kept else 0
        product(last_h, before, n, w_h, units, p, first, 0, 1)
        put_column_moments(of_p[t], p, first, n, eps[0], uses_batch[0])
        put_column_moments(of_q[t], q, start, n, eps[1], uses_batch[1])
        for k in range(n):
            a, p_k, q_k = gates[first + k], p[first + k, : 4 * units], q[start + k]
            put_affine_hats(a, p_k, of_p[t, 0], of_p[t, 2], gamma_h, b)
            add_affine_hats(a, q_k, of_q[t, 0], of_q[t, 2], gamma_x)
            sigmoid(a[: 3 * units])
            tanh(a[3 * units :])
            f, i, g = a[:units], a[units : 2 * units], a[3 * units :]
            put_c(c[start + k], f, last_c[before + k], i, g)
        put_column_moments(of_c[t], c, start, n, eps[2], uses_batch[2])
        for k in range(n):
            u, c_k = tanh_u[first + k], c[start + k]
            put_affine_hats(u, c_k, of_c[t, 0], of_c[t, 2], gamma_c, beta_c)
            tanh(u)
            put_product(h[start + k], gates[first + k, 2 * units : 3 * units], u)
        last_h, last_c, before = h, c, start


@compiled(cache=True)
def batch_norm_backward(
    dl_dh,
    q,
    w_h,
    gains,
    c_0,
    starts,
    sizes,
    first,
    end,
    uses_batch,
    moments,
    p,
    gates,
    c,
    tanh_u,
    dl_dp,
    dl_dq,
    at_h,
    at_c,
    of_4h,
    of_h,
    *_,
):
    """Go back over all steps with batch norm; all else is as in `backward`."""
    gamma_h, gamma_x, _, gamma_c, _ = gains
    of_p, of_q, of_c = moments
    units, rows = c.shape[1], sizes[0]
    dl_da, dl_du = (
        np.empty((rows, 4 * units), q.dtype),
        np.empty((rows, units), q.dtype),
    )
    through_c = np.empty((rows, units), q.dtype)
    sums_4h, sums_h = np.empty((2, 4 * units), q.dtype), np.empty((2, units), q.dtype)
    away = starts[first]  # rows before those of dl_dp
    for t in range(end - 1, first - 1, -1):
        start, n = starts[t], sizes[t]
        last_c, before = (c_0, 0) if t == 0 else (c, starts[t - 1])
        for k in range(n):
            add(at_h[k, :units], dl_dh[start + k])
            o = gates[start + k, 2 * units : 3 * units]
            put_slope_of_u(dl_du[k], at_h[k, :units], o, tanh_u[start + k])
        put_column_slopes(
            through_c, 0, dl_du, c, start, n, of_c[t], gamma_c, uses_batch[2], sums_h
        )
        add(of_h[0, 0], sums_h[0])
        add(of_h[0, 1], sums_h[1])
        for k in range(n):
            a, u, dl_dc = gates[start + k], tanh_u[start + k], at_c[k]
            f, i, g = a[:units], a[units : 2 * units], a[3 * units :]
            add(dl_dc, through_c[k])
            put_slope_of_gate(dl_da[k, :units], dl_dc, last_c[before + k], f)
            put_slope_of_gate(dl_da[k, units : 2 * units], dl_dc, g, i)
            o, of_o = a[2 * units : 3 * units], dl_da[k, 2 * units : 3 * units]
            put_slope_of_gate(of_o, at_h[k, :units], u, o)
            put_slope_of_g(dl_da[k, 3 * units :], dl_dc, i, g)
            put_product(dl_dc, dl_dc, f)
        put_column_slopes(
            dl_dp,
            start - away,
            dl_da,
            p,
            start,
            n,
            of_p[t],
            gamma_h,
            uses_batch[0],
            sums_4h,
        )
        add(of_4h[0, 0], sums_4h[0])
        add(of_4h[0, 1], sums_4h[1])
        put_column_slopes(
            dl_dq,
            start - away,
            dl_da,
            q,
            start,
            n,
            of_q[t],
            gamma_x,
            uses_batch[1],
            sums_4h,
        )
        add(of_4h[0, 2], sums_4h[1])
        product(dl_dp, start - away, n, w_h, 4 * units, at_h, 0, 0, 1)
