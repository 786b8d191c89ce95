"""Recurrent batch norm: an LSTM with batch statistics for each time step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from normbook.arrays import check_eps
from normbook.layers.base import NormLayer, check_size
from normbook.layers.function import Statistics, normalize
from normbook.layers.lstm import States, backwards, check_switch, first_states
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
    sequence without the axis N. Other options and errors are those of
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
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        counts = "it is the number of"
        self.input_size = check_size("input_size", input_size, f"{counts} features, D")
        self.hidden_size = check_size("hidden_size", hidden_size, f"{counts} units, H")
        self.batch_first = check_switch("batch_first", batch_first)
        self.bidirectional = check_switch("bidirectional", bidirectional)
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
        norms = [
            _InOneCall(getattr(self, name + suffix), batch_sizes)
            for name in ("norm_h", "norm_x", "norm_c")
        ]
        norm_h, norm_x, norm_c = norms
        units = self.hidden_size
        hs, h_last, c_last = [], [], []
        # W_x x waits for no h: all steps at once.
        for t, q in enumerate((x @ w_x.T).split(batch_sizes)):
            alive = len(q)
            if alive < len(h):  # those behind have ended
                h_last.append(h[alive:])
                c_last.append(c[alive:])
                h, c = h[:alive], c[:alive]
            a = norm_h(h @ w_h.T, t) + norm_x(q, t) + b
            fio, g = a.split([3 * units, units], 1)
            f, i, o = fio.sigmoid().chunk(3, 1)
            c = f * c + i * g.tanh()
            h = o * norm_c(c, t).tanh()
            hs.append(h)
        for norm in norms:
            norm.write()
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
        if batch_sizes != sorted(batch_sizes, reverse=True) or sum(batch_sizes) != rows:
            raise ValueError(
                f"batch_sizes must never grow and add to the rows, {rows}, got "
                f"{batch_sizes}; pack_padded_sequence makes them."
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


class _InOneCall:
    """A norm at each step of one call, with checks and statistics done once."""

    def __init__(self, layer: PerStepBatchNorm1d, batch_sizes: list[int]) -> None:
        layer._check_numbers()
        self.layer = layer
        # One live example has no variance; it comes last, as sizes never grow.
        self.sizes = [size for size in batch_sizes if size > 1 and layer.training]
        self.moments: list[Statistics] = []

    def __call__(self, x: Tensor, step: int) -> Tensor:
        if step >= len(self.sizes):
            self.write()
            y: Tensor = self.layer(x, step)
            return y
        weight, bias, eps = self.layer.weight, self.layer.bias, self.layer.eps
        y, moments = normalize(x, weight, bias, **ROWS, eps=eps)
        self.moments.append(moments)
        return y

    def write(self) -> None:
        """Write the running statistics of all steps so far, once."""
        if self.moments:
            with torch.no_grad():
                mean, var = map(torch.stack, zip(*self.moments, strict=True))
            self.layer.take_in(mean, var, self.sizes)
            self.moments = []
