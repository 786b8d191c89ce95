"""The LSTM behind the layers in few operators of torch, where no compiled loop runs.

To start an operator takes longer than to compute few numbers: what counts is how many
there are. A step forward has ten: the product with W_h, two layer norms, the sum of
both terms, and the gates. W_x x and its layer norm come before, for all steps at once.
A step back has eight, since the slopes within all steps are known before it; gradients
of parameters come behind.

They run on any device in float32 and float64, for the layer-normalized cell of the
paper and the plain one. What looks at single operators, transforms them or
differentiates twice takes the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normbook import through_time
from normbook.layers.base import no_autocast
from normbook.layers.function import Slopes, as_needed
from normbook.layers.native import ROWS, needs_formulas

__all__ = ["TorchSequence"]

FEW = 16  # steps for which it does not pay to lay W_h out transposed

layer_norm: Any = torch.native_layer_norm  # with mean and 1 / s
layer_norm_backward, sigmoid_backward, tanh_backward = (
    getattr(torch.ops.aten, name).default
    for name in ("native_layer_norm_backward", "sigmoid_backward", "tanh_backward")
)
# The slopes that layer_norm_backward returns: of input, gain and bias.
OF_INPUT, OF_GAIN = (True, False, False), (False, True, False)
OF_BOTH, OF_ALL = (False, True, True), (True, True, True)


class _Kept(NamedTuple):
    """What the way back needs, as rows; what a cell has not is None."""

    gates: Tensor  # (M, 4H): f, i, o, g
    c: Tensor  # (M, H)
    tanh_u: Tensor  # (M, H)
    q: Tensor | None = None  # (M, 4H)
    p: Tensor | None = None  # (M, 4H)
    mean_q: Tensor | None = None  # (M, 1)
    r_q: Tensor | None = None  # (M, 1), 1 / s of q
    mean_p: Tensor | None = None
    r_p: Tensor | None = None
    mean_c: Tensor | None = None
    r_c: Tensor | None = None

    def rows(self, part: slice) -> Any:
        """Return some of the rows."""
        return _Kept._make(None if v is None else v[part] for v in self)


class TorchSequence(torch.autograd.Function):
    """One layer in one direction over all steps, with the derived backward pass.

    Arguments are those of :class:`normbook.layers.native.NativeSequence`. Returned are
    h, and h and c behind the last step of each sequence.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        cell: Any,
        is_kept: bool,
        x: Tensor,
        h_0: Tensor,
        c_0: Tensor,
        *parameters: Any,
    ) -> tuple[Tensor, ...]:
        n, units = h_0.shape
        sizes = cell.batch_sizes or (n,) * len(x)
        h = x.new_empty(*x.shape[:-1], units)
        rows, h_rows = through_time.as_rows(x, x, h)
        m = len(rows)
        of_steps = m if is_kept else n  # memory of one step will do
        with no_autocast(x):
            weights = cell.full(parameters)
            q = rows @ weights.w_x.T
            if cell.has_norm:
                gain, bias = weights.gamma_x, weights.b
                gates, *of_q = layer_norm(q, gain.shape, gain, bias, cell.eps)
                others = q, q.new_empty(of_steps, 4 * units), *of_q
            else:
                gates, others = q.add_(weights.b), ()
            c, tanh_u = q.new_empty(m, units), q.new_empty(of_steps, units)
            kept = _Kept(gates, c, tanh_u, *others)
            moments = _steps(cell, weights, sizes, h_0, c_0, h_rows, kept)
        ends = through_time.ends(sizes)
        last = h_rows[ends], c[ends]
        if is_kept:
            ctx.cell, ctx.sizes = cell, sizes
            ctx.set_materialize_grads(False)
            names = _Kept._fields[-4:]
            of_rows = map(torch.cat, zip(*moments, strict=True))
            kept = kept._replace(**dict(zip(names, of_rows, strict=False)))
            # h with its graph would hold itself under torch's saved_tensors_hooks.
            ctx.save_for_backward(x, h_0, c_0, h.detach(), *kept, *parameters)
        return h, *last

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, *arriving: Tensor | None
    ) -> Slopes:
        # Unpacked once: torch.utils.checkpoint allows no more.
        x, h_0, c_0, h, *others = ctx.saved_tensors
        first_parameter = len(_Kept._fields)
        kept = _Kept._make(others[:first_parameter])
        parameters = others[first_parameter:]
        cell, sizes = ctx.cell, ctx.sizes
        dl_dh, *last = arriving
        dl_dh = torch.zeros_like(h) if dl_dh is None else dl_dh
        with no_autocast(x):
            if needs_formulas((dl_dh, *last)):
                arriving = dl_dh, *last
                slopes = cell.gradients(arriving, x, h_0, c_0, parameters)
                return as_needed(ctx, None, None, *slopes)
            rows, h, dl_dh = through_time.as_rows(x, x, h, dl_dh)
            n = len(h_0)
            # What arrives at all states, the first ones included.
            at_h = torch.cat([torch.zeros_like(h_0), dl_dh])
            at_c = torch.zeros_like(c_0)
            dl_dh_last, dl_dc_last = last
            if dl_dh_last is not None:
                at_h[n:][through_time.ends(sizes)] += dl_dh_last
            if dl_dc_last is not None:
                at_c += dl_dc_last
            weights = cell.full(parameters)
            h_prev = through_time.before(h, h_0, sizes)
            c_prev = through_time.before(kept.c, c_0, sizes)
            dl_dx = torch.empty_like(rows) if ctx.needs_input_grad[2] else None
            dl_dw_x, dl_dw_h = map(torch.zeros_like, (weights.w_x, weights.w_h))
            at_steps = through_time.split(at_h, (n, *sizes))
            sums: Sequence[Tensor] = ()
            for first, end, part in through_time.parts(sizes, ROWS):
                of_part = sizes[first:end], kept.rows(part), c_prev[part]
                at = at_steps[first : end + 1], at_c
                dl_dp, dl_dq, found = _part(cell, weights, *of_part, *at)
                dl_dw_x.addmm_(dl_dq.T, rows[part])
                dl_dw_h.addmm_(dl_dp.T, h_prev[part])
                if dl_dx is not None:
                    torch.mm(dl_dq, weights.w_x, out=dl_dx[part])
                both = zip(sums, found, strict=True)
                sums = [a + b for a, b in both] if sums else found
        if dl_dx is not None:
            (dl_dx,) = through_time.like_steps(x, dl_dx)
        b, *others = sums
        by_weights = [dl_dw_x, dl_dw_h, b]
        if cell.has_norm:
            gamma_h, gamma_x, gamma_c, beta_c = others
            by_weights += [gamma_h, b, gamma_x, b, gamma_c, beta_c]
        return as_needed(ctx, None, None, dl_dx, at_h[:n].clone(), at_c, *by_weights)


@torch.inference_mode()
def _steps(
    cell: Any,
    weights: Any,
    sizes: tuple[int, ...],
    h_prev: Tensor,
    c_prev: Tensor,
    h: Tensor,
    to: _Kept,
) -> list[tuple[Tensor, ...]]:
    """Go from the first step to the last; return mean and 1 / s of p and c of each."""
    n, units = h_prev.shape
    w = weights.w_h.T.contiguous() if len(sizes) > FEW else weights.w_h.T
    fio, by_gates = to.gates[:, : 3 * units], to.gates.chunk(4, 1)
    of_all = (through_time.split(v, sizes) for v in (to.gates, fio, *by_gates, to.c, h))

    def of_one(v: Tensor | None) -> Sequence[Any]:
        if v is None or len(v) == len(h):
            return sizes if v is None else through_time.split(v, sizes)
        return [v if size == n else v[:size] for size in sizes]

    of_p = of_c = None
    if cell.has_norm:
        of_p = (4 * units,), weights.gamma_h, None, cell.eps
        of_c = (units,), weights.gamma_c, weights.beta_c, cell.eps
    alive = n
    moments: list[tuple[Tensor, ...]] = []
    for size, a, fio, f, i, o, g, c_t, h_t, p_t, tanh_u in zip(
        sizes, *of_all, of_one(to.p), of_one(to.tanh_u), strict=True
    ):
        if size < alive:  # those behind have ended
            h_prev, c_prev, alive = h_prev[:size], c_prev[:size], size
        if of_p is None:
            a.addmm_(h_prev, w)
        else:
            term, mean_p, r_p = layer_norm(torch.mm(h_prev, w, out=p_t), *of_p)
            a.add_(term)
        fio.sigmoid_()
        g.tanh_()
        u = torch.mul(f, c_prev, out=c_t).addcmul_(i, g)
        if of_c is not None:
            u, mean_c, r_c = layer_norm(c_t, *of_c)
            moments.append((mean_p, r_p, mean_c, r_c))
        torch.mul(o, torch.tanh(u, out=tanh_u), out=h_t)
        h_prev, c_prev = h_t, c_t
    return moments


def _part(
    cell: Any,
    weights: Any,
    sizes: tuple[int, ...],
    s: Any,
    c_prev: Tensor,
    at_h: Sequence[Tensor],
    at_c: Tensor,
) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """Go back through some steps; return dl_dp, dl_dq, and slopes of vectors."""
    f, i, o, g = s.gates.chunk(4, 1)
    slope_u = tanh_backward(o, s.tanh_u)
    slopes = (
        sigmoid_backward(c_prev, f),
        sigmoid_backward(g, i),
        sigmoid_backward(s.tanh_u, o),  # of h by a_o; the others are of c
        tanh_backward(i, g),
    )
    slope_a = torch.stack(slopes, 1)
    dl_da, dl_du = torch.empty_like(slope_a), torch.empty_like(slope_u)
    found = _steps_back(
        cell, weights, sizes, s, slope_u, slope_a, dl_da, dl_du, at_h, at_c
    )
    dl_da = dl_da.flatten(1)
    if not cell.has_norm:
        return dl_da, dl_da, [dl_da.sum(0)]
    dl_dp = torch.cat(found[::-1])

    def back(w: Tensor, v: str, gain: Tensor, bias: Any, asked: Any) -> Any:
        values = (getattr(s, name + v) for name in ("mean_", "r_"))
        return layer_norm_backward(
            w, getattr(s, v), gain.shape, *values, gain, bias, asked
        )

    dl_dq, gamma_x, b = back(dl_da, "q", weights.gamma_x, weights.b, OF_ALL)
    _, gamma_h, _ = back(dl_da, "p", weights.gamma_h, None, OF_GAIN)
    _, gamma_c, beta_c = back(dl_du, "c", weights.gamma_c, weights.beta_c, OF_BOTH)
    return dl_dp, dl_dq, [b, gamma_h, gamma_x, gamma_c, beta_c]


@torch.inference_mode()
def _steps_back(
    cell: Any,
    weights: Any,
    sizes: tuple[int, ...],
    s: Any,
    slope_u: Tensor,
    slope_a: Tensor,
    dl_da: Tensor,
    dl_du: Tensor,
    at_h: Sequence[Tensor],
    at_c: Tensor,
) -> list[Tensor]:
    """Go from the last step to the first; write what arrives, return dl_dp of each."""
    units = slope_u.shape[1]
    of_o = slope_a[:, 2], dl_da[:, 2]
    hats = s.p, s.mean_p, s.r_p, s.c, s.mean_c, s.r_c
    rows = dl_da.flatten(1), slope_u, slope_a, *of_o, dl_da, dl_du, s.gates[:, :units]
    steps = zip(
        sizes,
        at_h,
        at_h[1:],
        *(through_time.split(v, sizes) for v in rows),
        *(sizes if v is None else through_time.split(v, sizes) for v in hats),
        strict=False,
    )
    found, has_norm, n = [], cell.has_norm, len(at_c)
    of_4h, of_h, w_h = (4 * units,), (units,), weights.w_h
    if has_norm:
        gamma_h, gamma_c = weights.gamma_h, weights.gamma_c
    for (
        size, h_prev, h, flat, by_u, by_a, by_o, a_o, a, u, f,
        p, mean_p, r_p, c, mean_c, r_c,
    ) in reversed([*steps]):  # fmt: skip
        dl_dc, dl_dp = at_c, flat
        if size < n:
            dl_dc, h_prev = at_c[:size], h_prev[:size]
        if has_norm:
            torch.mul(h, by_u, out=u)
            dl_dc.add_(
                layer_norm_backward(u, c, of_h, mean_c, r_c, gamma_c, None, OF_INPUT)[0]
            )
        else:
            dl_dc.addcmul_(h, by_u)
        torch.mul(by_a, dl_dc[:, None], out=a)
        torch.mul(by_o, h, out=a_o)
        if has_norm:
            dl_dp, _, _ = layer_norm_backward(
                flat, p, of_4h, mean_p, r_p, gamma_h, None, OF_INPUT
            )
        h_prev.addmm_(dl_dp, w_h)
        dl_dc.mul_(f)
        found.append(dl_dp)
    return found
