"""Recurrent layers in the forms in which people write them: what is wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.report import Report

D, H, T, N = 6, 8, 7, 5
State = tuple[Tensor, Tensor]
OUTPUT_IS_H = "the last output is the state h that is returned"


class Cell(nn.Module):
    """The cell of Ba et al., or of Cooijmans et al."""

    def __init__(self, features: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.ih = nn.Linear(features, 4 * H, bias=False)
        self.hh = nn.Linear(H, 4 * H, bias=False)
        self.norm_x, self.norm_h, self.norm_c = norm(4 * H), norm(4 * H), norm(H)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> State:
        i, f, g, o = (self.norm_x(self.ih(x)) + self.norm_h(self.hh(h))).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class Layers(nn.Module):
    """Layers and directions of such cells; a slip replaces a method."""

    layers, ways = 1, 1
    norm: Any = nn.LayerNorm

    def __init__(self) -> None:
        super().__init__()
        sizes = [D] * self.ways + [H * self.ways] * (self.ways * (self.layers - 1))
        self.cells = nn.ModuleList(Cell(size, self.norm) for size in sizes)

    def start(self, k: int, zeros: Tensor, ends: list[State]) -> State:
        return zeros, zeros

    def carried(self, h: Tensor, c: Tensor, t: int) -> State:
        return h, c

    def end(self, y: Tensor, h: Tensor, c: Tensor) -> State:
        return h, c

    def below(self, y: Tensor) -> Tensor:
        return y

    def forward(self, x: Tensor, state: State | None = None) -> Any:
        ends: list[State] = []
        for layer in range(self.layers):
            outs = []
            for way in range(self.ways):
                k = len(ends)
                h, c = self.start(k, x.new_zeros(x.shape[1], H), ends)
                if state is not None:
                    h, c = state[0][k], state[1][k]
                steps = []
                for t, x_t in enumerate(x.flip(0) if way else x):
                    h, c = self.cells[k](x_t, *self.carried(h, c, t))
                    steps.append(h)
                y = torch.stack(steps)
                ends.append(self.end(y, h, c))
                outs.append(y.flip(0) if way else y)
            x = torch.cat(outs, -1)
            x = self.below(x) if layer + 1 < self.layers else x
        return self.returned(x, ends)

    def returned(self, x: Tensor, ends: list[State]) -> Any:
        return x, tuple(map(torch.stack, zip(*ends, strict=True)))


def of(base: type[Layers] = Layers, **parts: Any) -> nn.Module:
    made: nn.Module = type("Slip", (base,), parts)()
    return made


def report_of(layer: nn.Module, **settings: Any) -> Report:
    return check_norm_layer(layer, (T, N, D), quiet=True, **settings)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Alone(Layers):
    def returned(self, x: Tensor, ends: list[State]) -> Any:
        return x


class Apart(Layers):
    def forward(self, x: Tensor, h: Any = None, c: Any = None) -> Any:
        out, states = super().forward(x, None if h is None or c is None else (h, c))
        return out, *states


class Pairs(Layers):
    layers = 2

    def forward(self, x: Tensor, states: Any = None) -> Any:
        if states is not None:
            states = [*zip(*states, strict=True)]
        return super().forward(x, states)

    def returned(self, x: Tensor, ends: list[State]) -> Any:
        return x, ends


@pytest.mark.parametrize("layer", [Alone, Apart, Pairs])
def test_a_layer_is_known_as_recurrent_by_what_it_returns(layer: Any) -> None:
    report = report_of(layer())
    assert report.kind == ("recurrent layer" if layer is Alone else "LSTM")
    assert report.passed


@pytest.mark.parametrize("axis", [0, 1])
def test_the_time_of_directions_that_are_added_is_found(axis: int) -> None:
    class AddedLSTM(Layers):
        ways = 2

        def forward(self, x: Tensor, state: State | None = None) -> Any:
            return super().forward(x.transpose(0, axis)).transpose(0, axis)

        def returned(self, x: Tensor, ends: list[State]) -> Any:
            return sum(x.chunk(2, -1))

    report = report_of(AddedLSTM())
    assert report.kind == "LSTM"
    assert report.failed == ()


def test_a_norm_over_all_steps_is_no_sum_of_directions() -> None:
    class OneLSTM(Alone):
        def forward(self, x: Tensor, state: State | None = None) -> Any:
            return super().forward(x / x.square().mean(0).sqrt())

    report = report_of(OneLSTM())
    assert report.failed == ("each output sees the steps of its own sequence alone",)


def own_device(_self: Any, _k: int, zeros: Tensor, _ends: Any) -> State:
    made = torch.zeros(zeros.shape, dtype=zeros.dtype)
    return made, made


FORWARD_OF_THE_OTHER = "begins with h and c in which the one before it ended"
CUT = "cut off (detached) in front of each step"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"carried": lambda _s, h, c, _t: (h.detach(), c.detach())}, CUT),
        ({"carried": lambda _s, h, c, _t: (h, c.detach())}, "c is detached in front"),
        (
            {"layers": 2, "below": lambda _s, y: y.detach()},
            "reaches the first layer from those above",
        ),
        (
            {
                "layers": 3,
                "start": lambda _s, _k, z, ends: ends[-1] if ends else (z, z),
            },
            FORWARD_OF_THE_OTHER,
        ),
        (
            {"ways": 2, "start": lambda _s, _k, z, ends: [(z, z), *ends][-1]},
            FORWARD_OF_THE_OTHER,
        ),
        (
            {
                "layers": 2,
                "start": lambda _s, _k, z, ends: (ends[-1][0], z) if ends else (z, z),
            },
            "begins with the h in which the one before it ended",
        ),
        (
            {"layers": 2, "end": lambda _s, y, _h, c: (y[0], c)},
            "that h is the output of step 0",
        ),
        (
            {"layers": 2, "end": lambda _s, _y, h, c: (h, c / 2)},
            "has other outputs, by",
        ),
        (
            {"layers": 2, "below": lambda _s, y: y.transpose(0, 1)},
            "with 7 steps and as many examples it runs",
        ),
        ({"start": own_device}, "the states that it makes stay on the CPU"),
    ],
)
def test_a_slip_is_named(parts: Any, words: str) -> None:
    report = report_of(of(**parts))
    assert report.failed
    assert words in " ".join(str(report).split())


def test_the_gradient_that_comes_to_the_cells_is_missed() -> None:
    class Pointwise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, o: Tensor, c: Tensor) -> Any:
            ctx.save_for_backward(o, c)
            return o * c.tanh(), c.clone()

        @staticmethod
        def backward(ctx: Any, grad_h: Tensor, _grad_c: Tensor) -> Any:
            o, c = ctx.saved_tensors
            return grad_h * c.tanh(), grad_h * o * (1 - c.tanh() ** 2)

    def forward(self: Any, x: Tensor, h: Tensor, c: Tensor) -> Any:
        i, f, g, o = (self.norm_x(self.ih(x)) + self.norm_h(self.hh(h))).chunk(4, 1)
        new = f.sigmoid() * c + i.sigmoid() * g.tanh()
        fused: Any = Pointwise.apply
        return fused(o.sigmoid(), new)

    layer: Any = Layers()
    for cell in layer.cells:
        cell.__class__ = type("Fused", (Cell,), {"forward": forward})
        del cell.norm_c
    report = report_of(layer)
    assert "the gradient that comes to c_1" in " ".join(str(report).split())
    assert [*report.others] == ["no norm of c"]  # as in nn.LSTM: perhaps on purpose


class Steps(nn.Module):
    """A batch norm with statistics of each step; the layer tells it the time."""

    late = 0

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(features) for _ in range(T))
        self.time = 0

    def forward(self, x: Tensor) -> Any:
        late = 0 if self.training else self.late
        return self.norms[max(min(self.time, T - 1) - late, 0)](x)


def tell_time(self: Any, h: Tensor, c: Tensor, t: int) -> State:
    for norm in self.modules():
        if isinstance(norm, Steps):
            norm.time = t
    return h, c


def tell_some(self: Any, h: Tensor, c: Tensor, t: int) -> State:
    self.cells[0].norm_c.time = t
    return h, c


class Still(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        return functional.batch_norm(x, None, None, self.weight, self.bias, True)


class Deaf(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, self.weight, self.bias, True)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"norm": Steps, "carried": tell_some}, "those of step 0 alone"),
        (
            {"norm": type("Late", (Steps,), {"late": 1}), "carried": tell_time},
            "evaluation differs from training by",
        ),
        ({"norm": Still}, "are never updated"),
        ({"norm": Deaf}, "those of the batch are taken, as in training"),
    ],
)
def test_a_slip_of_the_statistics_is_named(parts: Any, words: str) -> None:
    report = report_of(of(**parts))
    assert report.failed
    assert words in " ".join(str(report).split())


@pytest.mark.parametrize(
    "parts", [{"norm": nn.BatchNorm1d}, {"norm": Steps, "carried": tell_time}]
)
def test_batch_norm_in_the_cell_is_other_on_purpose(parts: Any) -> None:
    report = report_of(of(**parts))
    assert (report.failed, [*report.others]) == ((), ["batch norm"])
    assert "a step is that of a known cell" not in report.untested


def test_a_forget_bias_in_front_of_a_norm_is_lost() -> None:
    layer: Any = of(norm=nn.BatchNorm1d)
    layer.cells[0].ih = nn.Linear(D, 4 * H)
    nn.init.zeros_(layer.cells[0].ih.bias)
    assert report_of(layer).failed == ()
    nn.init.ones_(layer.cells[0].ih.bias[H : 2 * H])
    report = report_of(layer)
    assert report.failed == ("no norm takes away what a bias begins with",)
    assert "cells.0.ih.bias, which begins with 1" in str(report)


class Scrambled(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        rows, features = x.shape
        return super().forward(x.reshape(features, rows).T).T.reshape(rows, features)


def test_features_that_are_mixed_with_examples_are_told() -> None:
    report = report_of(of(norm=Scrambled))
    assert "as by view or reshape in place of transpose" in " ".join(
        str(report).split()
    )


def test_one_norm_for_several_gates_is_told() -> None:
    def forward(self: Any, x: Tensor, h: Tensor, c: Tensor) -> State:
        i, f, g, o = (self.ih(x) + self.hh(h)).chunk(4, 1)
        i, g = self.norm_x(i), self.norm_h(g)
        c = self.norm_o(f).sigmoid() * c + i.sigmoid() * g.tanh()
        return self.norm_o(o).sigmoid() * self.norm_c(c).tanh(), c

    layer: Any = Layers()
    cell = layer.cells[0]
    cell.__class__ = type("Named", (Cell,), {"forward": forward})
    cell.norm_x, cell.norm_h, cell.norm_o = (nn.LayerNorm(H) for _ in range(3))
    reason = report_of(layer).others["one norm for several gates"]
    assert "norm_o.weight moves the forget gate and what is read of it" in reason
    assert "norm_x" not in reason


@pytest.mark.parametrize(
    ("keep", "told"),
    [(lambda s: s.detach(), ("stateful", "")), (lambda s: s, ("", "Its graph is k"))],
)
def test_a_layer_that_goes_on_is_stateful_if_it_keeps_no_graph(
    keep: Any, told: tuple[str, str]
) -> None:
    class Kept(Layers):
        kept: Any = None

        def reset_state(self) -> None:
            self.kept = None

        def forward(self, x: Tensor, state: State | None = None) -> Any:
            if self.kept is not None and self.kept[0].shape[1] == x.shape[1]:
                state = self.kept if state is None else state
            out, state = super().forward(x, state)
            self.kept = tuple(map(keep, state or ()))
            return out, state

    report = report_of(Kept())
    assert [*report.others] == [told[0]] * bool(told[0])
    assert told[1] in " ".join(str(report).split())


class Masked(Layers):
    """Takes lengths; a slip replaces what the mask does."""

    def mixed(self, new: Tensor, old: Tensor, m: Tensor, is_h: bool) -> Tensor:
        return m * new + (1 - m) * old

    def of(self, lengths: Tensor, t: int) -> Tensor:
        return t < lengths

    def turned(self, x: Tensor, _lengths: Tensor) -> Tensor:
        return x.flip(0)

    def forward(self, x: Tensor, lengths: Any = None) -> Any:
        outs, ends = [], []
        for way, cell in enumerate(self.cells):
            h = c = x.new_zeros(x.shape[1], H)
            steps = []
            for t, x_t in enumerate(self.turned(x, lengths) if way else x):
                m = self.of(lengths, t).to(x.dtype)[:, None]
                h_1, c_1 = cell(x_t, h, c)
                h, c = self.mixed(h_1, h, m, True), self.mixed(c_1, c, m, False)
                steps.append(h * m)
            y = torch.stack(steps)
            outs.append(self.turned(y, lengths) if way else y)
            ends.append((h, c))
        return self.returned(torch.cat(outs, -1), ends)


def turned_within(_self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    rows = [
        torch.cat([x[: int(n), k].flip(0), x[int(n) :, k]])
        for k, n in enumerate(lengths)
    ]
    return torch.stack(rows, 1)


def with_lengths(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, torch.tensor([max(1, len(x) - k) for k in range(x.shape[1])]))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"ways": 2}, "the mask or the turn of x does not go by the lengths"),
        ({"of": lambda _s, lengths, t: t >= lengths}, "see no step of x"),
        (
            {"mixed": lambda _s, new, _old, m, _h: new * m},
            "the h that is returned is its output at step",
        ),
        (
            {
                "mixed": lambda _s, new, old, m, is_h: (
                    m * new + (1 - m) * old if is_h else new
                )
            },
            "it goes on in the padding",
        ),
        (
            {
                "returned": lambda s, y, e: Layers.returned(
                    s, y, [(e[0][0].flip(0), e[0][1].flip(0))]
                )
            },
            "the h that is returned is the output of example 4 at step 2, not that "
            "of step 6, its last one. They are in another order of the examples",
        ),
    ],
)
def test_a_slip_of_the_mask_is_named(parts: Any, words: str) -> None:
    report = report_of(of(Masked, **parts), call=with_lengths)
    about = "the states that are returned are those of each sequence's end"
    if "returned" not in words and "goes on" not in words:
        about = "each output sees the steps of its own sequence alone"
    assert report.failed == (about,)
    assert words in " ".join(str(report).split())


@pytest.mark.parametrize("ways", [1, 2])
def test_masks_that_go_by_the_lengths_are_right(ways: int) -> None:
    layer = of(Masked, ways=ways, turned=turned_within)
    assert report_of(layer, call=with_lengths).passed


@pytest.mark.parametrize("last", [D, H])
def test_what_is_not_recurrent_is_not_taken_for_it(last: int) -> None:
    layer = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, last))
    try:
        report = check_norm_layer(layer, (T, N, D), quiet=True)
    except ValueError:
        return
    assert not report.kind.startswith("LSTM")


class Around(nn.Module):
    """Norms around a plain LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(D), nn.LayerNorm(H)
        self.lstm = nn.LSTM(D, H)

    def forward(self, x: Tensor, state: State | None = None) -> Any:
        out, state = self.lstm(self.before(x), state)
        return self.behind(out), state


def test_norms_that_are_made_and_not_used_are_no_purpose() -> None:
    class Forgotten(Around):
        def forward(self, x: Tensor, state: State | None = None) -> Any:
            return self.lstm(x, state)

    report = report_of(Forgotten())
    assert "what enters the gates is normalized" in report.failed
    assert "unused parameters" in report.others


def test_norms_around_a_plain_cell_are_other_on_purpose() -> None:
    report = report_of(Around())
    assert report.failed == ()
    assert {"no norm before the gates", "norm of the outputs"} <= {*report.others}


def test_an_input_that_is_added_to_the_outputs_is_other() -> None:
    class Residual(Layers):
        share: float

        def __init__(self) -> None:
            super().__init__()
            self.cells[0].ih = nn.Linear(H, 4 * H, bias=False)

        def forward(self, x: Tensor, state: State | None = None) -> Any:
            out, state = super().forward(x, state)
            return self.share * x + out, state

    for share in (1, 0.5):
        Residual.share = share
        report = check_norm_layer(Residual(), (T, N, H), quiet=True)
        assert ("residual" in report.others) == (share == 1)
        assert report.failed == (() if share == 1 else (OUTPUT_IS_H,))


@pytest.mark.parametrize(
    ("norms", "is_coupled", "other"),
    [
        (3, True, "coupled gates"),
        (1, True, "one norm for several gates"),
        (1, False, "one norm for several gates"),
    ],
)
def test_coupled_gates_are_not_taken_for_a_shared_norm(
    norms: int, is_coupled: bool, other: str
) -> None:
    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden_size, self.linear = H, nn.Linear(D + H, 4 * H, bias=False)
            self.norms = nn.ModuleList(nn.LayerNorm(H) for _ in range(norms))

        def forward(self, x: Tensor, state: State | None = None) -> Any:
            h, c = state or [x.new_zeros(x.shape[1], H)] * 2
            outs = []
            for x_t in x:
                parts = self.linear(torch.cat([x_t, h], 1)).chunk(4, 1)
                f, i, g, o = (
                    self.norms[k % norms](part).sigmoid()
                    for k, part in zip((0, 0, 1, 2), parts, strict=True)
                )
                c = f * c + (1 - f if is_coupled else i) * (2 * g - 1)
                h = o * c.tanh()
                outs.append(h)
            return torch.stack(outs), (h, c)

    others = report_of(Coupled()).others
    assert other in others
    assert ("coupled gates" in others) == (other == "coupled gates")


@pytest.mark.parametrize(("power", "of_sigma"), [(2, "4"), (1, "2"), (0.25, "0.5")])
def test_a_norm_by_a_wrong_power_of_the_variance_is_no_lack_of_one(
    power: float, of_sigma: str
) -> None:
    class Slipped(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True)
            divisor = (x.square().mean(-1, keepdim=True) + self.eps) ** power
            return x / divisor * self.weight + self.bias

    report = str(report_of(of(norm=Slipped)))
    text = " ".join(report.split())
    words = f"as where sigma to the power {of_sigma} divides"
    assert text.count(words) == 3  # W_x x, W_h h and c
    assert "no normalization was found" not in text
    assert "not normalized there" not in text
