"""Recurrent layers as one finds them: one that is right, and each slip by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbook.layers.batch_norm_lstm import BatchNormLSTM

States = tuple[Tensor, Tensor]


class Right(nn.Module):
    """The layer-normalized LSTM, written by hand."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.input_size, self.units = features, units
        self.w_x = nn.Linear(features, 4 * units, bias=False)
        self.w_h = nn.Linear(units, 4 * units, bias=False)
        self.norm_x: Any = nn.LayerNorm(4 * units, bias=False)
        self.norm_h: Any = nn.LayerNorm(4 * units)
        self.norm_c: Any = nn.LayerNorm(units)

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        zeros = x.new_zeros(1, x.shape[1], self.units)
        h, c = (zeros, zeros) if states is None else states
        h, c = h[0], c[0]
        outputs = []
        for q in self.project(x):
            h, c = self.step(q, h, c)
            outputs.append(h)
        return torch.stack(outputs), (h[None], c[None])

    def project(self, x: Tensor) -> Any:
        return self.norm_x(self.w_x(x))

    def gates(self, q: Tensor, h: Tensor) -> Any:
        return q + self.norm_h(self.w_h(h))

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class NormalizedStateIsCarried(Right):
    """LN(c) overwrites c."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        c = self.norm_c(f.sigmoid() * c + i.sigmoid() * g.tanh())
        return o.sigmoid() * c.tanh(), c


class ClippedState(Right):
    """The carried state is cut at 1."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        h, c = super().step(q, h, c)
        return h, c.clamp(-1, 1)


class SumIsNormalized(Right):
    """One layer norm around W_h h + W_x x."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__(features, units)
        self.norm_x = nn.Identity()

    def gates(self, q: Tensor, h: Tensor) -> Any:
        return self.norm_h(q + self.w_h(h))


class TimeIsNormalized(Right):
    """The statistics of W_x x run over time too, padding included."""

    axes: tuple[int, ...] = (0, 2)

    def project(self, x: Tensor) -> Any:
        q = self.w_x(x)
        mean = q.mean(self.axes, keepdim=True)
        var = q.var(self.axes, correction=0, keepdim=True)
        return (q - mean) / (var + 1e-5).sqrt() * self.norm_x.weight


class BatchIsNormalized(TimeIsNormalized):
    """The statistics of W_x x are those of a step of the whole batch."""

    axes = (1, 2)


class BiasIsThereThrice(Right):
    """Both layer norms before the gates have a bias, and the sum has one, too."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__(features, units)
        self.norm_x = nn.LayerNorm(4 * units)
        self.bias = nn.Parameter(torch.zeros(4 * units))

    def gates(self, q: Tensor, h: Tensor) -> Any:
        return super().gates(q, h) + self.bias


class BackwardIsWrong(Right):
    """A backward pass by hand, which forgets that mean and variance move."""

    def project(self, x: Tensor) -> Any:
        return Hat.apply(self.w_x(x)) * self.norm_x.weight  # type: ignore[no-untyped-call]


class Hat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor) -> Tensor:
        centred = q - q.mean(-1, keepdim=True)
        inv_std = (centred.square().mean(-1, keepdim=True) + 1e-5) ** -0.5
        ctx.save_for_backward(inv_std)
        return centred * inv_std

    @staticmethod
    def backward(ctx: Any, dl_dy: Tensor) -> Any:
        (inv_std,) = ctx.saved_tensors
        return dl_dy * inv_std


class CandidateWithoutTanh(Right):
    """What is written to c is i g, not i tanh(g)."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g
        return o.sigmoid() * self.norm_c(c).tanh(), c


class InputGateIsTheRest(Right):
    """The input gate is 1 - f, as in a GRU."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, _, o, g = self.gates(q, h).chunk(4, dim=-1)
        c = f.sigmoid() * c + (1 - f.sigmoid()) * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class OutputWithoutTanh(Right):
    """h = o LN(c)."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c), c


class OldStateIsRead(Right):
    """h reads the c from before the step."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        h = o.sigmoid() * self.norm_c(c).tanh()
        return h, f.sigmoid() * c + i.sigmoid() * g.tanh()


class ForgetsWithOne(Right):
    """1 is added inside the forget gate, as in some networks on purpose."""

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        c = (1 + f).sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class StateIsKept(Right):
    """Without states the next call goes on where the last one ended."""

    kept: Any = None

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        out, last = super().forward(x, self.kept if states is None else states)
        self.kept = tuple(state.detach() for state in last)
        return out, last


class StatesAreIgnored(Right):
    """It begins with zeros, whatever is given."""

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        return super().forward(x)


class StatesAreSwapped(Right):
    """It returns c before h."""

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        out, (h, c) = super().forward(x, states)
        return out, (c, h)


class TakesPlainStates(Right):
    """States (N, H) are taken, too, and their first row is used for all."""

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        if states is not None and states[0].ndim == 2:
            h, c = (state[None, :1].expand(1, *state.shape) for state in states)
            out, (h, c) = super().forward(x, (h, c))
            return out, (h[0], c[0])
        return super().forward(x, states)


class Unbiased(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        centred = a - a.mean(-1, keepdim=True)
        return centred / (a.var(-1, keepdim=True) + 1e-5).sqrt()


class PerGate(nn.Module):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(units, bias=False) for _ in range(4))

    def forward(self, a: Tensor) -> Tensor:
        pairs = zip(self.norms, a.chunk(4, dim=-1), strict=True)
        return torch.cat([norm(gate) for norm, gate in pairs], dim=-1)


class Centred(nn.Module):
    def forward(self, c: Tensor) -> Tensor:
        return c - c.mean(-1, keepdim=True)


class Detached(nn.Module):
    def forward(self, c: Tensor) -> Any:
        with torch.no_grad():
            mean, var = c.mean(-1, keepdim=True), c.var(-1, correction=0, keepdim=True)
        return (c - mean) / (var + 1e-5).sqrt()


class BehindTheRoot(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        centred = a - a.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-5)


def right_but(name: str, **norms: Callable[[int], nn.Module]) -> type[Right]:
    """Return the right layer with other norms, each made for a number of units."""

    class Other(Right):
        def __init__(self, features: int, units: int) -> None:
            super().__init__(features, units)
            for attribute, norm in norms.items():
                setattr(self, attribute, norm(units))

    Other.__name__ = name
    return Other


# The statistics before the gates divide by n - 1.
GatesAreUnbiased = right_but(
    "GatesAreUnbiased", norm_x=lambda _: Unbiased(), norm_h=lambda _: Unbiased()
)
# Each term, but gate by gate: nn.LayerNorm(units) after the cut.
EachGateIsNormalized = right_but("EachGateIsNormalized", norm_x=PerGate, norm_h=PerGate)
# W_h h goes in as it is.
OnlyInputIsNormalized = right_but("OnlyInputIsNormalized", norm_h=nn.Identity)
# h = o tanh(c).
OutputIsNotNormalized = right_but("OutputIsNotNormalized", norm_c=nn.Identity)
# RMS norm on the way to h.
OutputIsNotCentred = right_but(
    "OutputIsNotCentred", norm_c=lambda units: nn.RMSNorm(units, eps=1e-5)
)
# c less its mean on the way to h.
OutputIsOnlyCentred = right_but("OutputIsOnlyCentred", norm_c=lambda _: Centred())
# The statistics of c are taken under no_grad.
StatisticsAreDetached = right_but("StatisticsAreDetached", norm_c=lambda _: Detached())
# Nothing keeps the root of W_h h, of W_x x, of c from 0.
EpsIsZero = right_but(
    "EpsIsZero", norm_h=lambda units: nn.LayerNorm(4 * units, eps=0.0)
)
EpsOfInputIsZero = right_but(
    "EpsOfInputIsZero",
    norm_x=lambda units: nn.LayerNorm(4 * units, eps=0.0, bias=False),
)
EpsOfStateIsZero = right_but(
    "EpsOfStateIsZero", norm_c=lambda units: nn.LayerNorm(units, eps=0.0)
)
# The standard deviation plus eps: finite at 0, and with no slope there.
EpsIsBehindTheRoot = right_but("EpsIsBehindTheRoot", norm_h=lambda _: BehindTheRoot())


class Cell(nn.Module):
    """One step of the right layer, called as nn.LSTMCell with both states."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.hidden_size = units
        self.layer = Right(features, units)

    def forward(self, x: Tensor, states: States) -> States:
        return self.layer.step(self.layer.project(x), *states)


class BatchFirst(nn.Module):
    """The right layer, with x of shape (N, T, D), of which no attribute tells."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.layer = Right(features, units)

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        out, states = self.layer(x.transpose(0, 1), states)
        return out.transpose(0, 1), states


class HasDropout(Right):
    """With a dropout of its own making."""

    def project(self, x: Tensor) -> Any:
        return nn.functional.dropout(super().project(x), 0.5, self.training)


class IgnoresTheState(Right):
    """No W_h h in front of the gates; two parameters that nobody needs."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__(features, units)
        self.first = nn.Parameter(torch.zeros(units))
        self.second = nn.Parameter(torch.zeros(units))

    def gates(self, q: Tensor, h: Tensor) -> Any:
        return q


class RemembersModes(BatchIsNormalized):
    """It notes the mode of each call."""

    modes: ClassVar[list[bool]] = []

    def project(self, x: Tensor) -> Any:
        self.modes.append(self.training)
        return super().project(x)


class NormBehindTheSigmoid(Right):
    """The forget gate itself is normalized, and nothing in front of the gates."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__(features, units)
        self.norm_x = self.norm_h = nn.Identity()

    def step(self, q: Tensor, h: Tensor, c: Tensor) -> States:
        f, i, o, g = self.gates(q, h).chunk(4, dim=-1)
        f = nn.functional.layer_norm(f.sigmoid(), f.shape[-1:])
        c = f * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class GoesOverTheExamples(nn.Module):
    """Takes the examples for the steps, and returns states as if it did not."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.input_size, self.lstm = features, nn.LSTM(features, units)

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        h = self.lstm(x.transpose(0, 1))[0].transpose(0, 1)
        return h, (h[-1:], h[-1:] if states is None else states[0])


class PlainStates(nn.Module):
    """The right layer, with states of shape (N, H), which must be given."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.hidden_size = units
        self.layer = Right(features, units)

    def forward(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        h, c = states
        out, (h, c) = self.layer(x, (h[None], c[None]))
        return out, (h[0], c[0])


class SinglePrecision(Right):
    """It can compute in float32 only."""

    def project(self, x: Tensor) -> Any:
        return super().project(x.float())


class BatchNormBehindDropout(nn.Module):
    """Batch norm is there in training mode only, and so is dropout, in two forms."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__()
        self.input_size, self.dropout = features, 0.5
        self.first = nn.Dropout(0.5)
        self.layer = BatchNormLSTM(features, units, max_steps=6)

    def forward(self, x: Tensor, states: States | None = None) -> Any:
        x = nn.functional.dropout(self.first(x), self.dropout, self.training)
        return self.layer(x, states)
