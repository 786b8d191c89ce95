"""The compiled loops of the LSTMs behind the layers: when they run, and the way back.

They run where numba is installed, on a CPU in float32 or float64, unless the layer or
the environment variable ``NORMBOOK_NATIVE=0`` says no: for the plain cell, the one with
batch norm, and those with layer norm but for hats of single gates. Everything else
(GPUs, half precision, ``torch.func``, forward-mode derivatives, whatever looks at
single operators) takes operators of torch, with the same results but for rounding. The
same holds for the loops of :mod:`normbook.layers.native_norms`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from normbook import through_time
from normbook.layers.function import Slopes, as_needed
from normbook.layers.threads import has_pool, together

__all__ = [
    "NATIVE",
    "ROWS",
    "NativeSequence",
    "are_plain",
    "can_run",
    "has_tangents",
    "is_watched",
    "loop",
    "needs_formulas",
]

NATIVE = "NORMBOOK_NATIVE"  # environment variable; 0 turns the loop off

ROWS = 256  # at a time, on the way back
KINDS = (Tensor, torch.nn.Parameter)
DTYPES = (torch.float32, torch.float64)
ENOUGH = 2**62  # more than all threads can arrive
LEAST = 2**17  # numbers in the product of a step, for each thread

# Half of a step in bfloat16 fits nothing.
no_autocast = torch.autocast("cpu", enabled=False)

_PANELS: Any = WeakTensorKeyDictionary()  # of weights that were used for inference


@functools.cache
def loop(name: str = "compiled_lstm") -> ModuleType | None:
    """Import compiled loops; None where numba is missing or cannot be used."""
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        return importlib.import_module(f"normbook.layers.{name}")
    except Exception as error:  # noqa: BLE001, numba refuses some versions of NumPy so
        warnings.warn(
            f"the compiled loops of the layers must import numba, got {error!r}; they "
            f"are slower without. Install a fitting numba, or set {NATIVE}=0.",
            stacklevel=2,
        )
        return None


def can_run(tensors: Sequence[Tensor], name: str = "compiled_lstm") -> bool:
    """Whether compiled loops compute on these tensors."""
    return (
        tensors[0].is_cpu
        and are_plain(tensors)
        and os.environ.get(NATIVE, "1") != "0"
        and loop(name) is not None
    )


def are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether they are of one kind and hold numbers, and nothing looks at operators."""
    x, *_ = tensors
    dtype, device, is_cpu = x.dtype, x.device, x.is_cpu
    for v in tensors:
        if type(v) not in KINDS or v.dtype != dtype:
            return False
        if not (v.is_cpu if is_cpu else v.device == device):  # the former is faster
            return False
        if not _is_in_memory(v):
            return False
    return dtype in DTYPES and x.numel() > 0 and not is_watched()


def is_watched() -> bool:
    """Whether a transform, or what looks at operators, would see none."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def has_tangents() -> bool:
    """Whether forward-mode derivatives may be on their way."""
    return forward_ad._current_level >= 0


def needs_formulas(arriving: Sequence[Tensor | None]) -> bool:
    """Whether what arrives on the way back is differentiated in turn, or not there."""
    return (
        torch.is_grad_enabled()
        or has_tangents()
        or torch._C._are_functorch_transforms_active()
        or not all(v is None or _is_in_memory(v) for v in arriving)
    )


def _is_in_memory(v: Tensor) -> bool:
    """Whether its numbers lie in memory, not something else, or nothing."""
    return not (v.is_neg() or v._is_zerotensor() or is_legacy_batchedtensor(v))


class NativeSequence(torch.autograd.Function):
    """One layer in one direction over all steps, in the compiled loop.

    A cell has

    - ``full(parameters)``: weights, one bias and, with norms, gains and ``beta_c``;
    - ``batch_sizes``: None if all sequences have one length;
    - ``eps``, ``has_norm``, and ``uses_batch`` of p, q and c, None without batch norm;
    - ``mode``, which the loop takes, and ``has_one_slope``, of p and q;
    - ``moments(q, rows)``: memory for the statistics of p, q and c;
    - ``gradients(arriving, x, h_0, c_0, parameters)`` by the formulas, as autograd can
      differentiate them in turn.

    Returned are h, h and c behind the last step of each sequence, and the moments.
    """

    @staticmethod
    @no_autocast  # type: ignore[untyped-decorator]
    def forward(  # noqa: D102
        ctx: Any,
        cell: Any,
        is_kept: bool,
        x: Tensor,
        h_0: Tensor,
        c_0: Tensor,
        *parameters: Any,
    ) -> tuple[Tensor, ...]:
        run = _Run(cell, x, h_0, parameters)
        (rows,) = through_time.as_rows(x, x)
        q = rows @ run.weights.w_x.T
        m = len(rows) if is_kept else run.sizes[0]  # of one step, else
        sizes = run.width, 4 * run.units, run.units
        p, gates, tanh_u = (q.new_empty(m, size) for size in sizes)
        c, h = q.new_empty(len(rows), run.units), q.new_empty(*x.shape[:-1], run.units)
        moments = cell.moments(q, m)
        (h_rows,) = through_time.as_rows(x, h)
        run.together(
            run.forward,
            *_numpy(q),
            run.transposed_panels(is_kept),
            run.gains,
            *_numpy(h_0, c_0),
            *run.steps,
            run.eps,
            run.mode,
            is_kept,
            tuple(_numpy(*moments)),
            *_numpy(p, gates, c, tanh_u, h_rows),
        )
        ends = through_time.ends(run.sizes)
        last = [h_rows[ends], c[ends]]
        if run.carries_u:
            gain, bias = run.weights.gamma_c, run.weights.beta_c
            last[1] = functional.layer_norm(
                last[1], [run.units], gain, bias, float(run.eps[2])
            )
        ctx.mark_non_differentiable(*moments)
        if is_kept:
            ctx.cell = cell
            ctx.set_materialize_grads(False)
            # h with its graph would hold itself under torch's saved_tensors_hooks.
            kept = h.detach(), q, p, gates, c, tanh_u, *moments
            ctx.save_for_backward(x, h_0, c_0, *kept, *parameters)
        return h, *last, *moments

    @staticmethod
    @no_autocast  # type: ignore[untyped-decorator]
    def backward(  # noqa: D102
        ctx: Any, *arriving: Tensor | None
    ) -> Slopes:
        # Unpacked once: torch.utils.checkpoint allows no more.
        x, h_0, c_0, h, q, p, gates, c, tanh_u, *others = ctx.saved_tensors
        cell, moments, parameters = ctx.cell, others[:3], others[3:]
        dl_dh, dl_dh_last, dl_dc_last = arriving[:3]
        dl_dh = torch.zeros_like(h) if dl_dh is None else dl_dh
        if needs_formulas((dl_dh, dl_dh_last, dl_dc_last)):
            arriving = dl_dh, dl_dh_last, dl_dc_last
            slopes = cell.gradients(arriving, x, h_0, c_0, parameters)
            return as_needed(ctx, None, None, *slopes)
        run = _Run(cell, x, h_0, parameters)
        n, units = run.sizes[0], run.units
        at_h, at_c = q.new_zeros(n, run.padded_units), q.new_zeros(n, units)
        for at, last in (at_h[:, :units], dl_dh_last), (at_c, dl_dc_last):
            if last is not None:
                at.copy_(last)
        shapes = (run.members, 3, 4 * units), (run.members, 2, units)
        of_4h, of_h = map(np.zeros, shapes)
        rows, dl_dh, h = through_time.as_rows(x, x, dl_dh, h)
        h_prev = through_time.before(h, h_0, run.sizes)
        w_x, w_h = run.weights.w_x, run.weights.w_h
        dl_dx = torch.empty_like(rows) if ctx.needs_input_grad[2] else None
        dl_dw_x, dl_dw_h = torch.empty_like(w_x), torch.empty_like(w_h)
        panels = run.loop.pack(*_numpy(w_h), False)
        arrays = (*_numpy(dl_dh, q), panels, run.gains, *_numpy(c_0), *run.steps)
        kept = tuple(_numpy(*moments)), *_numpy(p, gates, c, tanh_u)
        # As many steps at a time as leave their slopes in the cache.
        for first, end, part in through_time.parts(run.sizes, ROWS):
            dl_dp = q.new_empty(part.stop - part.start, 4 * units)
            dl_dq = torch.empty_like(dl_dp) if not cell.has_one_slope else dl_dp
            run.together(
                run.backward,
                *arrays,
                first,
                end,
                run.mode,
                *kept,
                *_numpy(dl_dp, dl_dq, at_h, at_c),
                of_4h,
                of_h,
            )
            others = float(end < len(run.sizes))  # of the parts before
            dl_dw_x.addmm_(dl_dq.T, rows[part], beta=others)
            dl_dw_h.addmm_(dl_dp.T, h_prev[part], beta=others)
            if dl_dx is not None:
                torch.mm(dl_dq, w_x, out=dl_dx[part])
        b, gamma_h, gamma_x = torch.from_numpy(of_4h.sum(0)).to(q.dtype)
        beta_c, gamma_c = torch.from_numpy(of_h.sum(0)).to(q.dtype)
        by_weights = [dl_dw_x, dl_dw_h, b]
        if cell.has_norm:
            by_weights += [gamma_h, b, gamma_x, b, gamma_c, beta_c]
        if dl_dx is not None:
            (dl_dx,) = through_time.like_steps(x, dl_dx)
        by_states = at_h[:, :units].contiguous(), at_c
        return as_needed(ctx, None, None, dl_dx, *by_states, *by_weights)


class _Run:
    """What forward and backward of one call share."""

    def __init__(
        self, cell: Any, x: Tensor, h_0: Tensor, parameters: Sequence[Any]
    ) -> None:
        compiled = loop()
        assert compiled is not None  # noqa: S101, can_run has told
        self.loop = compiled
        self.weights = weights = cell.full(parameters)
        self.units = units = h_0.shape[1]
        self.sizes = cell.batch_sizes or (x.shape[1],) * x.shape[0]
        sizes = np.array(self.sizes)
        self.steps = np.cumsum(sizes) - sizes, sizes
        self.mode, self.carries_u = cell.mode, False
        if cell.uses_batch is None:
            self.carries_u = cell.mode[-1]
            self.forward, self.backward = compiled.forward, compiled.backward
            # A smaller product is done before another thread has begun. And torch's
            # threads, once they had a large product with W_x, wait busily for more:
            # they leave no core to others than themselves.
            most = 4 * units**2 * min(self.sizes[0], 8) // LEAST
            if 4 * x.shape[-1] > units and not has_pool():
                most = 1
            self.members = max(1, min(torch.get_num_threads(), most))
        else:
            self.members = 1
            self.forward = compiled.batch_norm_forward
            self.backward = compiled.batch_norm_backward
        names = "gamma_h", "gamma_x", "b", "gamma_c", "beta_c"
        self.gains = tuple(_numpy(*(getattr(weights, n, weights.b) for n in names)))
        dtype = self.gains[0].dtype
        eps = cell.eps if isinstance(cell.eps, tuple) else (cell.eps,) * 3
        self.eps = tuple(map(dtype.type, eps))
        self.padded_units, self.width = (
            compiled.padded(size, dtype) for size in (units, 4 * units)
        )

    def together(self, function: Any, *arguments: Any) -> None:
        """Call it in several threads at a time."""
        arrived = np.zeros(1, np.int64)

        def run(me: int, members: int) -> None:
            function(*arguments, me, members, arrived)

        together(run, self.members, let_go=lambda: arrived.fill(ENOUGH))

    def transposed_panels(self, is_training: bool) -> Any:
        """Lay out the transposed W_h; kept for the next call where nothing is learned.

        Whether it is still the same is seen by its values: ``.data`` may be changed
        behind the back of version counters.
        """
        w_h = self.weights.w_h.detach()
        if is_training:
            return self.loop.pack(*_numpy(w_h), True)
        known, panels = _PANELS.get(self.weights.w_h, (None, None))
        # Numbers may be equal in two dtypes.
        if known is None or known.dtype != w_h.dtype or not torch.equal(known, w_h):
            known, panels = w_h.clone(), self.loop.pack(*_numpy(w_h), True)
            _PANELS[self.weights.w_h] = known, panels
        return panels


def _numpy(*tensors: Tensor) -> list[Any]:
    return [v.detach().contiguous().numpy() for v in tensors]
