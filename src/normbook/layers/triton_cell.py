r"""One step of the layer-normalized LSTM, forward and backward, as kernels of Triton.

The formulas are those of :mod:`normbook.layer_norm_lstm`. A *program* takes one row,
one example at one step, and holds it in registers: from the product :math:`p = W_h h`
to h and c, or from what arrives at h and c to what arrives at p. Of the term of x it
takes y, which has its hat, its gain and all biases already. Gates are not kept: to
compute them again costs less than to read them.

All is contiguous. p, y, ``dl_da`` and ``dl_dp`` have shape (N, 4H), the others (N, H);
``moments``, (4, N) with ``m`` numbers from row to row, has mean and 1 / s of p, then of
c. These, c and what arrives at it are float32, the others all of one dtype, float32 or
bfloat16; computed is in float32. How kernels run, and from which version on, is told in
:mod:`normbook.layers.triton_norms`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["WIDEST", "cell_tile", "step_backward", "step_forward"]

WIDEST = 2048  # units of a row that one program can hold

kernel: Any = triton.jit


def cell_tile(units: int) -> dict[str, int]:
    """Return how the kernels take rows of so many units."""
    block = triton.next_power_of_2(units)
    return {"H": units, "BLOCK": block, "num_warps": min(max(block // 128, 1), 16)}


@kernel
def step_forward(
    p,
    y,
    c_prev,
    gamma_h,
    gamma_c,
    beta_c,
    h,
    c,
    moments,
    m,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Go from p to h and c."""
    row, unit, mask, place = places(H, BLOCK)
    p_f, p_i, p_o, p_g = load_4(p, row, unit, mask, H)
    mean_p = tl.sum(p_f + p_i + p_o + p_g, 0) / (4 * H)
    squares = square(p_f - mean_p, mask) + square(p_i - mean_p, mask)
    squares += square(p_o - mean_p, mask) + square(p_g - mean_p, mask)
    r_p = tl.rsqrt(tl.sum(squares, 0) / (4 * H) + eps)
    p_f, p_i = (p_f - mean_p) * r_p, (p_i - mean_p) * r_p
    p_o, p_g = (p_o - mean_p) * r_p, (p_g - mean_p) * r_p
    f, i, o, g = gates(p_f, p_i, p_o, p_g, y, gamma_h, row, unit, mask, H)
    c_t = f * load(c_prev + place, mask) + i * g
    mean_c = tl.sum(tl.where(mask, c_t, 0.0), 0) / H
    r_c = tl.rsqrt(tl.sum(square(c_t - mean_c, mask), 0) / H + eps)
    c_hat = (c_t - mean_c) * r_c
    u = load(gamma_c + unit, mask) * c_hat + load(beta_c + unit, mask)
    tl.store(c + place, c_t, mask)
    tl.store(h + place, (o * tanh(u)).to(h.dtype.element_ty), mask)
    tl.store(moments + row, mean_p)
    tl.store(moments + m + row, r_p)
    tl.store(moments + 2 * m + row, mean_c)
    tl.store(moments + 3 * m + row, r_c)


@kernel
def step_backward(
    dl_dh,  # what arrives from outside,
    at_h,  # and from the next step
    at_c,  # in its place goes what arrives at c_prev
    p,
    y,
    c,
    c_prev,
    moments,
    gamma_h,
    gamma_c,
    beta_c,
    dl_da,
    dl_dp,
    dl_du,
    m,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Go from what arrives at h and c to what arrives at a, p and u."""
    row, unit, mask, place = places(H, BLOCK)
    mean_p, r_p = tl.load(moments + row), tl.load(moments + m + row)
    mean_c, r_c = tl.load(moments + 2 * m + row), tl.load(moments + 3 * m + row)
    p_f, p_i, p_o, p_g = load_4(p, row, unit, mask, H)
    p_f, p_i = (p_f - mean_p) * r_p, (p_i - mean_p) * r_p
    p_o, p_g = (p_o - mean_p) * r_p, (p_g - mean_p) * r_p
    f, i, o, g = gates(p_f, p_i, p_o, p_g, y, gamma_h, row, unit, mask, H)
    c_hat = (load(c + place, mask) - mean_c) * r_c
    gain = load(gamma_c + unit, mask)
    tanh_u = tanh(gain * c_hat + load(beta_c + unit, mask))

    # What lies beyond H is 0 in w, since no gain is there.
    dl_dh_t = load(dl_dh + place, mask) + load(at_h + place, mask)
    of_u = dl_dh_t * o * (1 - tanh_u * tanh_u)
    w = gain * of_u
    mean_w, along = tl.sum(w, 0) / H, tl.sum(w * c_hat, 0) / H
    of_c = load(at_c + place, mask) + r_c * (w - mean_w - c_hat * along)
    a_f = of_c * load(c_prev + place, mask) * f * (1 - f)
    a_i = of_c * g * i * (1 - i)
    a_o = dl_dh_t * tanh_u * o * (1 - o)
    a_g = of_c * i * (1 - g * g)
    w_f, w_i, w_o, w_g = load_4(gamma_h, 0, unit, mask, H)
    w_f, w_i, w_o, w_g = w_f * a_f, w_i * a_i, w_o * a_o, w_g * a_g
    mean_w = tl.sum(w_f + w_i + w_o + w_g, 0) / (4 * H)
    along = tl.sum(w_f * p_f + w_i * p_i + w_o * p_o + w_g * p_g, 0) / (4 * H)
    p_f, p_i = w_f - mean_w - p_f * along, w_i - mean_w - p_i * along
    p_o, p_g = w_o - mean_w - p_o * along, w_g - mean_w - p_g * along
    store_4(dl_dp, row, unit, mask, H, r_p * p_f, r_p * p_i, r_p * p_o, r_p * p_g)
    store_4(dl_da, row, unit, mask, H, a_f, a_i, a_o, a_g)
    tl.store(dl_du + place, of_u.to(dl_du.dtype.element_ty), mask)
    tl.store(at_c + place, of_c * f, mask)


# --- what both share ------------------------------------------------------------------


@kernel
def places(H: tl.constexpr, BLOCK: tl.constexpr):
    """Row of this program, its units, which of them there are, and where they lie."""
    row, unit = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    return row, unit, unit < H, row * H + unit


@kernel
def load(pointers, mask):
    """Read as float32; 0 where there is nothing."""
    return tl.load(pointers, mask, other=0.0).to(tl.float32)


@kernel
def load_4(v, row, unit, mask, H: tl.constexpr):
    """Read the parts of a row that belong to f, i, o and g."""
    v += row * 4 * H + unit
    f, i, o, g = (
        load(v, mask),
        load(v + H, mask),
        load(v + 2 * H, mask),
        load(v + 3 * H, mask),
    )
    return f, i, o, g


@kernel
def store_4(v, row, unit, mask, H: tl.constexpr, f, i, o, g):
    """Write the parts of a row that belong to f, i, o and g."""
    dtype = v.dtype.element_ty
    v += row * 4 * H + unit
    # The last first: a store that went too far would spoil what stands there already.
    tl.store(v + 3 * H, g.to(dtype), mask)
    tl.store(v + 2 * H, o.to(dtype), mask)
    tl.store(v + H, i.to(dtype), mask)
    tl.store(v, f.to(dtype), mask)


@kernel
def square(v, mask):
    """Squares; 0 where there is nothing."""
    return tl.where(mask, v * v, 0.0)


@kernel
def gates(p_f, p_i, p_o, p_g, y, gamma_h, row, unit, mask, H: tl.constexpr):
    """Gates, from the hat of p."""
    y_f, y_i, y_o, y_g = load_4(y, row, unit, mask, H)
    gain_f, gain_i, gain_o, gain_g = load_4(gamma_h, 0, unit, mask, H)
    f, i = tl.sigmoid(gain_f * p_f + y_f), tl.sigmoid(gain_i * p_i + y_i)
    o, g = tl.sigmoid(gain_o * p_o + y_o), tanh(gain_g * p_g + y_g)
    return f, i, o, g


@kernel
def tanh(a):
    """Small a by a series: the difference from 1 has few digits there."""
    z = a * a
    series = z * (-1 / 3 + z * (2 / 15 + z * (-17 / 315 + z * (62 / 2835))))
    return tl.where(z < 0.04, a + a * series, 2 * tl.sigmoid(2 * a) - 1)
