"""Recurrent batch norm: an LSTM with batch statistics for each time step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from normbook.arrays import check_eps
from normbook.layer_norm_lstm import LayerNormLSTMParameters
from normbook.layers.base import NormLayer, check_size, is_autocast
from normbook.layers.function import Statistics, normalize, normalize_by
from normbook.layers.lstm import (
    States,
    backwards,
    check_shapes,
    check_switch,
    first_states,
)
from normbook.layers.native import NativeSequence, can_run, has_tangents
from normbook.layers.sequences import PerStepBatchNorm1d
from normbook.normalize import METHODS

__all__ = ["BatchNormLSTM"]

ROWS = METHODS["batch norm"].of(2)
GAIN = 0.1  # at the start; with 1, tanh would be too flat for a gradient to last


class BatchNormLSTM(NormLayer):
    r"""LSTM with batch norm of both terms and of c, with statistics for each step t.

    .. math::

        a_t &= \gamma_h\,\widehat{W_h h_{t-1}} + \gamma_x\,\widehat{W_x x_t} + b, \\
        f, i, o &= \sigma(a_f), \sigma(a_i), \sigma(a_o), \qquad g = \tanh(a_g), \\
        c_t &= f\,c_{t-1} + i\,g, \qquad
        h_t = o\,\tanh(\gamma_c\,\hat c_t + \beta_c)

    A hat is that of :class:`~normbook.layers.sequences.PerStepBatchNorm1d` with
    ``max_steps``; the raw c goes on to the next step.

    For the gates f, i, o, g in turn there are the rows of ``w_x_l0``, ``w_h_l0`` and
    ``b_l0``, shapes (4H, D), (4H, H) and (4H,). ``norm_h_l0``, ``norm_x_l0`` and
    ``norm_c_l0`` have as ``weight`` the gain, which begins at 0.1; ``norm_c_l0.bias``
    is :math:`\beta_c`. The other direction, if there is one, has ``_l0_reverse`` for
    ``_l0``; its step 0 is the last of each sequence.

    Call, ``batch_first`` and ``bidirectional`` are as in :class:`torch.nn.LSTM`, packed
    sequences too, but there is one layer, one bias, no projection and no single
    sequence without the axis N. ``native`` is that of
    :class:`~normbook.layers.lstm.LayerNormLSTM`. Other options and errors are those of
    :mod:`normbook.layers.base`, but eps may not be 0, input and layer must have one
    dtype, and a size below 1 and a call without a step are a ValueError.

    Steps are counted from the start of each call: carried states meet the statistics of
    first steps. Where training began with ``h_0`` = 0, the first :math:`W_h h` had no
    spread, and evaluation with another ``h_0`` divides by :math:`\sqrt\epsilon`.

    Source: Cooijmans et al. (2016), section 3; book, chapter *Reading*.

    >>> layer = BatchNormLSTM(3, 2, max_steps=5)
    >>> layer(torch.ones(5, 4, 3))[0].shape
    torch.Size([5, 4, 2])
    >>> layer.eval()(torch.ones(9, 1, 3))[0].shape  # longer than max_steps, and alone
    torch.Size([9, 1, 2])
    """

    w_x_l0: nn.Parameter
    norm_c_l0: PerStepBatchNorm1d

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        max_steps: int,
        *,
        batch_first: bool = False,
        bidirectional: bool = False,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        native: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        counts = "it is the number of"
        self.input_size = check_size("input_size", input_size, f"{counts} features, D")
        self.hidden_size = check_size("hidden_size", hidden_size, f"{counts} units, H")
        self.batch_first = check_switch("batch_first", batch_first)
        self.bidirectional = check_switch("bidirectional", bidirectional)
        self.native = check_switch("native", native)
        if check_eps(eps) == 0:
            raise ValueError(
                "eps must be positive, got 0; with h_0 = 0 the first W_h h has no "
                "spread and would be divided by 0; 1e-5 is usual."
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        features, units = self.input_size, self.hidden_size
        sizes = {"norm_h": 4 * units, "norm_x": 4 * units, "norm_c": units}
        for suffix in self._suffixes():
            for name, *columns in ("w_x", features), ("w_h", units), ("b",):
                shape = 4 * units, *columns
                self._add_parameters(shape, device, dtype, **{name + suffix: True})
            for name, size in sizes.items():
                args = size, max_steps, eps, momentum
                has_bias = name == "norm_c"  # b is bias enough for both terms
                norm = PerStepBatchNorm1d(*args, **factory, bias=has_bias)
                self.add_module(name + suffix, norm)
        self.max_steps: int = self.norm_c_l0.max_steps
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin again: weights as torch.nn.LSTM's, gains 0.1, no batch seen."""
        for module in self.children():
            if isinstance(module, PerStepBatchNorm1d):
                module.reset_parameters()
                module.weight.fill_(GAIN)
        bound = self.hidden_size**-0.5
        for parameter in self.parameters(recurse=False):
            parameter.uniform_(-bound, bound)

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        text = f"{self.input_size}, {self.hidden_size}, max_steps={self.max_steps}"
        for name in ("batch_first", "bidirectional"):
            text += f", {name}=True" if getattr(self, name) else ""
        return text

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        """Run over sequences, in each direction there is."""
        order = None
        if isinstance(input, PackedSequence):
            x, sizes, order, back = input
            batch_sizes = sizes.tolist()
            self._check_input(x, "packed data", 2)
        else:
            self._check_input(input, "input", 3)
            steps_first = input.transpose(0, 1) if self.batch_first else input
            batch_sizes = [steps_first.shape[1]] * steps_first.shape[0]
            x = steps_first.flatten(0, 1)
        self._check_steps(batch_sizes, len(x))
        lengths = {"directions": len(self._suffixes()), "N": batch_sizes[0]}
        h_0, c_0 = first_states(x, hx, lengths | {"H": self.hidden_size})
        if order is not None:
            h_0, c_0 = h_0[:, order], c_0[:, order]
        turned = backwards(batch_sizes, x.device)
        hs, h_n, c_n = [], [], []
        for k, suffix in enumerate(self._suffixes()):
            rows = slice(None) if k == 0 else turned
            h, h_last, c_last = self._run(x[rows], batch_sizes, h_0[k], c_0[k], suffix)
            hs.append(h[rows])  # back and forth is the same
            h_n.append(h_last)
            c_n.append(c_last)
        output, last = torch.cat(hs, 1), (torch.stack(h_n), torch.stack(c_n))
        if isinstance(input, PackedSequence):
            if back is not None:
                last = last[0][:, back], last[1][:, back]
            return PackedSequence(output, sizes, order, back), last
        output = output.reshape(*steps_first.shape[:2], output.shape[1])
        return output.transpose(0, 1) if self.batch_first else output, last

    def _run(
        self, x: Tensor, batch_sizes: list[int], h: Tensor, c: Tensor, suffix: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run over packed steps; return h of each, and the last h and c."""
        w_x, w_h, b = (getattr(self, name + suffix) for name in ("w_x", "w_h", "b"))
        names = "norm_h", "norm_x", "norm_c"
        norms: list[Any] = [getattr(self, name + suffix) for name in names]
        gamma_h, gamma_x, gamma_c = (norm.weight for norm in norms)
        weights = w_x, w_h, b, gamma_h, None, gamma_x, None, gamma_c, norms[2].bias
        for norm in norms:
            norm._check_numbers()
        eps = tuple(float(norm.eps) for norm in norms)
        learning = [norm.training or norm.running_mean is None for norm in norms]
        # One live example has no variance; it comes last, as sizes never grow.
        together = sum(size > 1 for size in batch_sizes) if any(learning) else 0
        hs, h_last, c_last = [], [], []
        for first, sizes in (
            (0, batch_sizes[:together]),
            (together, batch_sizes[together:]),
        ):
            if not sizes:
                continue
            alive = sizes[0]
            h_last.append(h[alive:])
            c_last.append(c[alive:])
            given = [
                None if learns and first < together else norm.known(first, len(sizes))
                for learns, norm in zip(learning, norms, strict=True)
            ]
            cell = _Cell(eps, tuple(sizes), given, self.native)
            rows, x = x[: sum(sizes)], x[sum(sizes) :]
            h_rows, h, c, *moments = cell.run(rows, h[:alive], c[:alive], *weights)
            for norm, known, of_steps in zip(norms, given, moments, strict=True):
                if known is None:
                    norm.take_in(*of_steps.unbind(1)[:2], sizes)
            hs.append(h_rows)
        h_last, c_last = [h, *h_last[::-1]], [c, *c_last[::-1]]
        return torch.cat(hs), torch.cat(h_last), torch.cat(c_last)

    def _suffixes(self) -> tuple[str, ...]:
        return ("_l0", "_l0_reverse") if self.bidirectional else ("_l0",)

    def _check_input(self, x: Any, name: str, ndim: int) -> None:
        self._check_tensor(x)
        self._check_float(x)
        if x.ndim != ndim:
            axes = "(N, T, D)" if self.batch_first else "(T, N, D)"
            raise ValueError(
                f"{name} must have shape {axes if ndim == 3 else '(M, D)'}, got "
                f"{tuple(x.shape)}; a single sequence has no batch to go by, in "
                "evaluation give it the axis N."
            )
        w_x = self.w_x_l0
        if (x.dtype, x.device) != (w_x.dtype, w_x.device):
            raise RuntimeError(
                f"{name} must have dtype and device of the layer, {w_x.dtype} on "
                f"{w_x.device}, got {x.dtype} on {x.device}; convert one of them with "
                ".to(...)."
            )
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{name} must have input_size = {self.input_size} features on its last "
                f"axis, got shape {tuple(x.shape)}; make the layer with input_size="
                f"{x.shape[-1]}, or move the features there."
            )

    def _check_steps(self, batch_sizes: list[int], rows: int) -> None:
        steps = len(batch_sizes)
        is_falling = batch_sizes == sorted(batch_sizes, reverse=True)
        if (
            not is_falling
            or sum(batch_sizes) != rows
            or min(batch_sizes, default=0) < 0
        ):
            raise ValueError(
                "batch_sizes must never grow, nor be negative, and add to the rows, "
                f"{rows}, got {batch_sizes}; pack_padded_sequence makes them."
            )
        if steps == 0:
            raise ValueError(
                "input must hold at least one step, got none; leave empty sequences "
                "out."
            )
        is_training = any(module.training for module in self.modules())
        if is_training and steps > self.max_steps:
            raise ValueError(
                f"input must have at most max_steps = {self.max_steps} steps in "
                f"training, got {steps}; make the layer with max_steps of the longest "
                "sequence."
            )


@dataclasses.dataclass(frozen=True)
class _Cell:
    """Some steps, each with statistics of its own."""

    eps: tuple[float, ...]  # of the norms of p, q and c
    batch_sizes: tuple[int, ...]
    # Mean and variance at each step of p, q and c, or None: those of the batch.
    given: Sequence[tuple[Tensor, Tensor] | None]
    is_native: bool  # by the compiled loop, where it can run

    has_norm = True
    has_one_slope = False

    @property
    def mode(self) -> tuple[bool, ...]:
        return self.uses_batch

    @property
    def uses_batch(self) -> tuple[bool, ...]:
        return tuple(known is None for known in self.given)

    def run(
        self, x: Tensor, h_0: Tensor, c_0: Tensor, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return h of all steps, the last h and c, and the statistics of p, q and c."""
        inputs = x, h_0, c_0, *parameters
        check_shapes(x, c_0, parameters)
        tensors = [v for v in inputs if v is not None]
        statistics = [v for known in self.given for v in known or ()]
        is_usual = not (is_autocast(x) or has_tangents())
        if self.is_native and is_usual and can_run(tensors + statistics):
            is_kept = torch.is_grad_enabled() and any(v.requires_grad for v in tensors)
            return NativeSequence.apply(self, is_kept, *inputs)  # type: ignore[no-any-return, no-untyped-call]
        return self.forward(*inputs)

    def forward(self, x: Any, h: Any, c: Any, *parameters: Any) -> tuple[Tensor, ...]:
        """Do so by the formulas."""
        w_x, w_h, b, gamma_h, _, gamma_x, _, gamma_c, beta_c = parameters
        of_norms: list[list[Statistics]] = [[], [], []]

        def norm(k: int, x: Tensor, t: int, gamma: Tensor, beta: Any) -> Tensor:
            known = self.given[k]
            if known is None:
                y, moments = normalize(x, gamma, beta, **ROWS, eps=self.eps[k])
            else:
                mean, var = (v[t] for v in known)
                moments = Statistics(mean, var)
                y = normalize_by(x, mean, var, gamma, beta, self.eps[k])
            of_norms[k].append(moments)
            return y

        hs, h_last, c_last = [], [], []
        # W_x x waits for no h: all steps at once.
        for t, q in enumerate((x @ w_x.T).split(self.batch_sizes)):
            alive = len(q)
            if alive < len(h):  # those behind have ended
                h_last.append(h[alive:])
                c_last.append(c[alive:])
                h, c = h[:alive], c[:alive]
            a = norm(0, h @ w_h.T, t, gamma_h, None) + norm(1, q, t, gamma_x, None) + b
            fio, g = a.split([3 * h.shape[1], h.shape[1]], 1)
            f, i, o = fio.sigmoid().chunk(3, 1)
            c = f * c + i * g.tanh()
            h = o * norm(2, c, t, gamma_c, beta_c).tanh()
            hs.append(h)
        moments = (torch.stack([torch.stack(pair) for pair in m]) for m in of_norms)
        last = ([h, *h_last[::-1]], [c, *c_last[::-1]])
        return torch.cat(hs), *map(torch.cat, last), *moments

    def full(self, parameters: Sequence[Any]) -> Any:
        """Name the parameters."""
        return LayerNormLSTMParameters(*parameters)

    def moments(self, q: Tensor, _: int) -> list[Tensor]:
        """Memory for mean, variance and 1 / s of each step, with what is given."""
        rows, steps = q.shape[1], len(self.batch_sizes)
        moments = [q.new_empty(steps, 3, size) for size in (rows, rows, rows // 4)]
        for of_norm, known in zip(moments, self.given, strict=True):
            if known is not None:
                of_norm[:, 0], of_norm[:, 1] = known
        return moments

    def gradients(self, arriving: Sequence[Any], *inputs: Any) -> list[Tensor | None]:
        """Differentiate the formulas, so that it can be done again."""
        x, h_0, c_0, parameters = inputs
        leaves = [x, h_0, c_0, *parameters]
        asked = [v for v in leaves if v is not None and v.requires_grad]
        with torch.enable_grad():
            outputs = self.forward(*leaves)[:3]
        pairs = [p for p in zip(outputs, arriving, strict=True) if p[1] is not None]
        values, slopes = zip(*pairs, strict=True)
        options = {"create_graph": torch.is_grad_enabled(), "allow_unused": True}
        found = iter(torch.autograd.grad(values, asked, slopes, **options))
        is_asked = (v is not None and v.requires_grad for v in leaves)
        return [next(found) if is_one else None for is_one in is_asked]
