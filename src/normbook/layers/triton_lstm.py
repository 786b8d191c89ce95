"""The layer-normalized LSTM on a GPU: when its kernels run, how, and the way back.

They run where the environment variable ``NORMBOOK_NATIVE=triton`` asks for them, since
no GPU has run them yet, and Triton 3.6 or later is installed, as it is beside torch for
CUDA: on a GPU of NVIDIA from sm_80 on, in float32 or bfloat16, for the cell of the
paper, unless the layer says no. Products follow the
settings of ``torch.backends.cuda.matmul``; statistics and c are float32 always.

Of each step remain one product with W_h and one kernel of
:mod:`normbook.layers.triton_cell`. W_x x with its layer norm is computed before, and
gradients of parameters are summed behind, each over all steps at once. To launch so
small kernels takes longer than to run them: steps that come again with the same shapes
are recorded as a CUDA graph, and replayed.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normbook import through_time
from normbook.layer_norm_lstm import LayerNormLSTMParameters
from normbook.layers.function import Slopes, as_needed
from normbook.layers.native import NATIVE, is_watched

__all__ = ["TritonSequence", "can_run", "kernels", "replay"]

DTYPES = torch.float32, torch.bfloat16
OLDEST = 3, 6  # version of Triton
# What graphs hold is bounded: so many, and so many bytes of the inputs of one.
MOST, LARGEST = 8, 2**28

Steps = Callable[..., Sequence[Tensor]]


@functools.cache
def kernels() -> tuple[ModuleType, ModuleType] | None:
    """Import the kernels of the cell and of rows; None without a Triton that fits."""
    if importlib.util.find_spec("triton") is None:
        return None
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST:
        return None
    from normbook.layers import triton_cell, triton_norms

    return triton_cell, triton_norms


def can_run(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels compute the cell on x, h_0, c_0 and parameters."""
    x, h_0, *_ = tensors
    return (
        x.dtype in DTYPES
        and all(
            type(v) in (Tensor, torch.nn.Parameter)
            and v.dtype == x.dtype
            and v.device == x.device
            for v in tensors
        )
        and x.numel() > 0
        and _has_kernels(x.device)
        and os.environ.get(NATIVE) == "triton"
        and not is_watched()
        and (modules := kernels()) is not None
        and h_0.shape[-1] <= modules[0].WIDEST
    )


@functools.cache
def _has_kernels(device: torch.device) -> bool:
    """Whether they are tested for this device: as compiled code, or interpreted."""
    if device.type == "cuda" and torch.version.hip is None:
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


class TritonSequence(torch.autograd.Function):
    """One layer in one direction over all steps, by kernels of Triton.

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
        _, norms = _needed()
        sizes = _sizes(cell, x)
        with torch.autocast(x.device.type, enabled=False):
            weights = cell.full(parameters)
            (rows,) = through_time.as_rows(x, x)
            q = rows @ weights.w_x.T
            gain, bias = weights.gamma_x.contiguous(), weights.b.contiguous()
            y, mean_q, r_q = norms.normalize_rows(q, gain, bias, cell.eps)
            options = sizes, cell.eps, is_kept
            states = h_0, c_0.to(r_q.dtype)
            results = replay(steps_forward, options, y, *states, *_of_steps(weights))
        h, c, p, moments = results
        ends = through_time.ends(sizes)
        last = h[ends], c[ends].to(x.dtype)
        h.resize_(*x.shape[:-1], h.shape[1])  # a view could not be changed in place
        if is_kept:
            ctx.cell = cell
            ctx.set_materialize_grads(False)
            # h with its graph would hold itself under torch's saved_tensors_hooks.
            kept = h.detach(), q, mean_q, r_q, y, c, p, moments
            ctx.save_for_backward(x, h_0, c_0, *kept, *parameters)
        return h, *last

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, *arriving: Tensor | None
    ) -> Slopes:
        # Unpacked once: torch.utils.checkpoint allows no more.
        x, h_0, c_0, h, q, mean_q, r_q, y, c, p, moments, *parameters = (
            ctx.saved_tensors
        )
        cell = ctx.cell
        dl_dh, *last = arriving
        dl_dh = torch.zeros_like(h) if dl_dh is None else dl_dh
        with torch.autocast(x.device.type, enabled=False):
            if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
                # Gradients that are differentiated in turn: those of the formulas.
                slopes = cell.gradients((dl_dh, *last), x, h_0, c_0, parameters)
                return as_needed(ctx, None, None, *slopes)
            _, norms = _needed()
            sizes, weights = _sizes(cell, x), cell.full(parameters)
            rows, h, dl_dh = through_time.as_rows(x, x, h, dl_dh)
            at_h, at_c = (torch.zeros_like(h_0) if v is None else v for v in last)
            # The steps write to both.
            at = at_h.clone(), at_c.to(r_q.dtype, copy=True)
            arrays = dl_dh, *at, y, c_0.to(r_q.dtype), c, p, moments
            results = replay(steps_backward, (sizes,), *arrays, *_of_steps(weights))
            dl_da, dl_dp, dl_du, dl_dh_0, dl_dc_0 = results
            mean_p, r_p, mean_c, r_c = moments
            back = norms.normalize_rows_backward
            gain = weights.gamma_x.contiguous()
            dl_dq, gamma_x, b = back(dl_da, q, gain, mean_q, r_q)
            _, gamma_h, _ = back(dl_da, p, None, mean_p, r_p, needs_dx=False)
            _, gamma_c, beta_c = back(dl_du, c, None, mean_c, r_c, needs_dx=False)
            dl_dx = None
            if ctx.needs_input_grad[2]:
                (dl_dx,) = through_time.like_steps(x, dl_dq @ weights.w_x)
            by_weights = LayerNormLSTMParameters(
                w_x=dl_dq.T @ rows,
                w_h=dl_dp.T @ through_time.before(h, h_0, sizes),
                b=b,
                gamma_h=gamma_h,
                beta_h=b,
                gamma_x=gamma_x,
                beta_x=b,
                gamma_c=gamma_c,
                beta_c=beta_c,
            )
            others: Any = dl_dh_0, dl_dc_0, *by_weights
            return as_needed(ctx, None, None, dl_dx, *(v.to(x.dtype) for v in others))


# --- the steps ------------------------------------------------------------------------


def steps_forward(
    options: Any,
    y: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    w_h: Tensor,
    gamma_h: Tensor,
    gamma_c: Tensor,
    beta_c: Tensor,
) -> Sequence[Tensor]:
    """Go from the first step to the last; return h, c, p and moments of all rows.

    ``options`` are batch sizes, eps, and whether p is kept of more than one step.
    """
    sizes, eps, is_kept = options
    cell, norms = _needed()
    m, (n, units) = len(y), h_0.shape
    h, c = h_0.new_empty(m, units), c_0.new_empty(m, units)
    p, moments = torch.empty_like(y if is_kept else y[:n]), c_0.new_empty(4, m)
    p_of_steps = torch.split(p, sizes) if is_kept else [p[:size] for size in sizes]
    arrays = *(torch.split(v, sizes) for v in (y, h, c)), torch.split(moments, sizes, 1)
    h_prev, c_prev = h_0, c_0
    for p_t, y_t, h_t, c_t, moments_t in zip(p_of_steps, *arrays, strict=True):
        torch.mm(h_prev[: len(p_t)], w_h.T, out=p_t)
        of_step = p_t, y_t, c_prev, gamma_h, gamma_c, beta_c, h_t, c_t, moments_t
        tile = cell.cell_tile(units)
        norms.launch(cell.step_forward, (len(p_t),), *of_step, m, eps, **tile)
        h_prev, c_prev = h_t, c_t
    return h, c, p, moments


def steps_backward(
    options: Any,
    dl_dh: Tensor,
    at_h: Tensor,
    at_c: Tensor,
    y: Tensor,
    c_0: Tensor,
    c: Tensor,
    p: Tensor,
    moments: Tensor,
    w_h: Tensor,
    *gains: Tensor,
) -> Sequence[Tensor]:
    """Go from the last step to the first.

    ``at_h`` and ``at_c`` begin with what arrives behind the last step of each sequence,
    and end with what arrives at the first states. Returned are ``dl_da``, ``dl_dp``
    and ``dl_du`` of all rows, and these two.
    """
    (sizes,) = options
    cell, norms = _needed()
    m, tile = len(y), cell.cell_tile(c_0.shape[1])
    slopes = torch.empty_like(y), torch.empty_like(y), torch.empty_like(dl_dh)
    arrays = (torch.split(v, sizes) for v in (dl_dh, p, y, c, *slopes))
    c_before = c_0, *torch.split(c, sizes)[:-1]
    steps = zip(*arrays, c_before, torch.split(moments, sizes, 1), strict=True)
    for dl_dh_t, p_t, y_t, c_t, *slopes_t, c_prev, moments_t in reversed([*steps]):
        of_step = dl_dh_t, at_h, at_c, p_t, y_t, c_t, c_prev, moments_t
        arrays_t = *of_step, *gains, *slopes_t
        norms.launch(cell.step_backward, (len(p_t),), *arrays_t, m, **tile)
        torch.mm(slopes_t[1], w_h, out=at_h[: len(p_t)])
    return *slopes, at_h, at_c


def _of_steps(weights: Any) -> tuple[Tensor, ...]:
    return weights.w_h, weights.gamma_h, weights.gamma_c, weights.beta_c


def _sizes(cell: Any, x: Tensor) -> tuple[int, ...]:
    return cell.batch_sizes or (x.shape[1],) * x.shape[0]


def _needed() -> tuple[Any, Any]:
    modules = kernels()
    assert modules is not None  # noqa: S101, can_run has told
    return modules


# --- graphs ---------------------------------------------------------------------------


def replay(
    steps: Steps, options: tuple[Any, ...], *tensors: Tensor
) -> Sequence[Tensor]:
    """Return ``steps(options, *tensors)``, from the second time on by a CUDA graph.

    A graph belongs to shapes, options, settings and stream. The first time is plain,
    since lengths that never come again are not worth a graph. Plain it is too under the
    interpreter, where others record, where inputs have more than :data:`LARGEST` bytes,
    and where it cannot be recorded.
    """
    tensors = tuple(v.detach().contiguous() for v in tensors)
    device = tensors[0].device
    if device.type != "cuda" or sum(v.nbytes for v in tensors) > LARGEST:
        return steps(options, *tensors)
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            return steps(options, *tensors)
        stream = torch.cuda.current_stream().cuda_stream
        shapes = tuple((v.shape, v.dtype) for v in tensors)
        key = steps, options, _settings(), device, stream, shapes
        if next(_calls(key)) == 0:
            return steps(options, *tensors)
        return _graph(key).run(steps, options, tensors)


class _Graph:
    """Steps as they were recorded: they read and write where they did then."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.is_recordable = True

    def run(
        self, steps: Steps, options: tuple[Any, ...], tensors: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Replay; record before, if that was not tried yet."""
        with self.lock:  # until all is launched: the stream keeps the order
            if self.graph is None and self.is_recordable:
                self._record(steps, options, tensors)
            if self.graph is None:
                return steps(options, *tensors)
            torch._foreach_copy_(self.inputs, [*tensors])
            self.graph.replay()
            results = [torch.empty_like(v) for v in self.outputs]
            torch._foreach_copy_(results, self.outputs)
            return results

    def _record(
        self, steps: Steps, options: tuple[Any, ...], tensors: Sequence[Tensor]
    ) -> None:
        self.inputs = [v.clone() for v in tensors]
        graph = torch.cuda.CUDAGraph()
        stream = _stream(self.inputs[0].device)
        recording = torch.cuda.graph(
            graph, stream=stream, capture_error_mode="thread_local"
        )
        try:
            steps(options, *self.inputs)  # compiles what memory laid out so needs
            with recording:
                self.outputs = [*steps(options, *self.inputs)]
        except RuntimeError:  # no memory, or something that cannot be recorded
            self.is_recordable, self.inputs, self.outputs = False, [], []
        else:
            self.graph = graph


@functools.lru_cache(1024)
def _calls(key: Any) -> Iterator[int]:
    """Count how often a key came."""
    return itertools.count()


@functools.lru_cache(MOST)
def _graph(key: Any) -> _Graph:
    """Keep the graphs that were used last."""
    return _Graph()


@functools.cache
def _stream(device: torch.device) -> Any:
    """Record on one stream of a GPU: torch keeps memory of cuBLAS for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _settings() -> tuple[Any, ...]:
    """Return what decides how torch computes a product."""
    matmul = torch.backends.cuda.matmul
    # torch from 2.9 on refuses to name one by the other.
    of_float32 = getattr(matmul, "fp32_precision", None) or matmul.allow_tf32
    return of_float32, matmul.allow_bf16_reduced_precision_reduction
