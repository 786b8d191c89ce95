"""What an LSTM computes in a step, and what it does with what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.report import Report

D, H = 4, 6
States = tuple[Tensor, Tensor]


class Cell(nn.Module):
    """The cell of Ba et al., in the order of torch; a slip replaces a method."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * H, features))
        self.weight_hh = nn.Parameter(torch.randn(4 * H, H))
        self.norm_x = nn.LayerNorm(4 * H, bias=False)
        self.norm_h, self.norm_c = nn.LayerNorm(4 * H), nn.LayerNorm(H)

    def terms(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.weight_ih.T, h @ self.weight_hh.T

    def before(self, q_x: Tensor, q_h: Tensor) -> Tensor:
        a: Tensor = self.norm_x(q_x) + self.norm_h(q_h)
        return a

    def gates(self, i: Tensor, f: Tensor, g: Tensor, o: Tensor) -> tuple[Tensor, ...]:
        return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()

    def write(self, c: Tensor, i: Tensor, f: Tensor, g: Tensor) -> Tensor:
        return f * c + i * g

    def read(self, c: Tensor, o: Tensor) -> Tensor:
        h: Tensor = o * self.norm_c(c).tanh()
        return h

    def mixed(self, old: States, new: States) -> States:
        return new

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> States:
        parts = self.before(*self.terms(x, h)).chunk(4, -1)
        i, f, g, o = self.gates(*parts)
        c_1 = self.write(c, i, f, g)
        return self.mixed((h, c), (self.read(c_1, o), c_1))


class Lstm(nn.Module):
    """Layers and directions of such cells."""

    def __init__(
        self, slips: dict[str, Any] | None = None, layers: int = 1, ways: int = 1
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.input_size, self.hidden_size = D, H
        self.layers, self.ways, self.batch_first = layers, ways, False
        kind = type("Slipping", (Cell,), slips or {})
        self.cells = nn.ModuleList(
            kind(D if k < ways else ways * H) for k in range(layers * ways)
        )

    def start(self, x: Tensor) -> States:
        zeros = x.new_zeros(self.layers * self.ways, x.shape[1], H)
        return zeros, zeros

    def run(self, k: int, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, States]:
        out = []
        for x_t in x.flip(0) if k % self.ways else x:
            h, c = self.cells[k](x_t, h, c)
            out.append(h)
        return torch.stack(out[::-1] if k % self.ways else out), (h, c)

    def joined(self, outs: list[Tensor]) -> Tensor:
        return torch.cat(outs, -1)

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        h, c = states or self.start(x)
        ends = []
        for layer in range(self.layers):
            outs = []
            for k in range(layer * self.ways, (layer + 1) * self.ways):
                out, end = self.run(k, x, h[k], c[k])
                outs.append(out)
                ends.append(end)
            x = self.joined(outs)
        h_n, c_n = (torch.stack(values) for values in zip(*ends, strict=True))
        return x, (h_n, c_n)


def report_of(layer: nn.Module) -> Report:
    return check_norm_layer(layer, kind="lstm", quiet=True)


def told(report: Report) -> str:
    found = report.findings
    return " ".join(f.reason for f in found if f.verdict in ("wrong", "other"))


def drawn(share: float, mixed: float) -> Callable[..., States]:
    """Return zoneout that keeps a share, and a share of its own in evaluation."""

    def mix(self: Cell, old: States, new: States) -> States:
        if not self.training:
            h, c = (mixed * a + (1 - mixed) * b for a, b in zip(old, new, strict=True))
            return h, c
        h, c = (
            torch.where(torch.rand_like(a) < share, a, b)
            for a, b in zip(old, new, strict=True)
        )
        return h, c

    return mix


def dropping(scale: float) -> Callable[..., Tensor]:
    def write(self: Cell, c: Tensor, i: Tensor, f: Tensor, g: Tensor) -> Tensor:
        if self.training:
            g = g * (torch.rand_like(g) >= 0.2) * scale
        return f * c + i * g

    return write


@pytest.mark.parametrize(
    "layer",
    [
        Lstm(),
        Lstm(layers=2),
        Lstm(layers=2, ways=2),
        Lstm({"mixed": drawn(0.2, 0.2)}),
        Lstm({"write": dropping(1.25)}),
    ],
)
def test_a_sound_layer_is_called_wrong_nowhere(layer: nn.Module) -> None:
    assert told(report_of(layer)) == ""


def of_each(norm: Cell, q_x: Tensor, q_h: Tensor) -> Tensor:
    """Take the statistics of the four gates of a unit."""

    def across(q: Tensor) -> Tensor:
        parts = q.reshape(len(q), 4, -1)
        var, mean = torch.var_mean(parts, 1, correction=0, keepdim=True)
        return ((parts - mean) / (var + 1e-5).sqrt()).flatten(1)

    return across(q_x) + across(q_h)


@pytest.mark.parametrize(
    ("slips", "text"),
    [
        (
            {"gates": lambda s, i, f, g, o: Cell.gates(s, f, i, g, o)},
            "i and f are exch",
        ),
        (
            {"gates": lambda s, i, f, g, o: Cell.gates(s, o, f, g, o)},
            "i and o are one gate, part 3 of 4 from 0, and part 0 is not used",
        ),
        (
            {"gates": lambda s, i, f, g, o: Cell.gates(s, i, f, g.tanh(), o)},
            "g goes through tanh twice",
        ),
        ({"write": lambda s, c, i, f, g: c + i * g}, "no forget gate multiplies it"),
        ({"write": lambda s, c, i, f, g: f * (c + i * g)}, "f multiplies what is wri"),
        ({"write": lambda s, c, i, f, g: f * c - i * g}, "is subtracted, not added"),
        ({"read": lambda s, c, o: o + s.norm_c(c).tanh()}, "o is added to tanh(LN("),
        ({"read": lambda s, c, o: (o * s.norm_c(c)).tanh()}, "tanh is taken of o LN("),
        ({"read": lambda s, c, o: o * s.norm_c(c).sigmoid()}, "through a sigmoid, not"),
        (
            {
                "read": lambda s, c, o: (
                    o * functional.layer_norm(c, (H,), eps=1.0).tanh()
                )
            },
            "the eps of the norm of c_1 is 1,",
        ),
        (
            {"before": lambda s, q_x, q_h: s.norm_x(q_x) * s.norm_h(q_h)},
            "LN(W_x x) and LN(W_h h) are multiplied, not added",
        ),
        ({"before": of_each}, "those of the four gates of a unit"),
        (
            {
                "before": lambda s, q_x, q_h: torch.cat(
                    [s.norm_x(q_x) + s.norm_h(q_h), q_x + q_h], -1
                )[:, [*range(12), *range(36, 42), *range(18, 24)]]
            },
            "g comes from no norm of W_x x + W_h h",
        ),
        (
            {
                "terms": lambda s, x, h: (
                    x @ s.weight_ih.T,
                    functional.layer_norm(h, (H,)) @ s.weight_hh.T,
                ),
                "before": lambda s, q_x, q_h: s.norm_x(q_x) + q_h,
            },
            "h is normalized before the matrices",
        ),
        (
            {"mixed": lambda s, old, new: (0.1 * old[0] + 0.9 * new[0], new[1])},
            "0.1 of the old h and 0 of the old c stay in the new",
        ),
        ({"mixed": drawn(0.2, 0.0)}, "evaluation takes no average"),
        ({"mixed": drawn(0.2, 0.8)}, "evaluation has the two shares exchanged"),
        ({"write": dropping(1.0)}, "expected 1 / (1 - p) = 1.2"),
        (
            {
                "mixed": lambda s, old, new: (
                    new[0],
                    functional.dropout(new[1], 0.2, s.training),
                )
            },
            "of c itself are set to 0 at each step",
        ),
        (
            {"read": lambda s, c, o: Cell.read(s, c, o) * (1 if s.training else 0.5)},
            "In evaluation it is",
        ),
    ],
)
def test_the_change_that_explains_a_step_is_named(
    slips: dict[str, Any], text: str
) -> None:
    assert text in told(report_of(Lstm(slips)))


def with_slip(name: str, method: Any, **sizes: Any) -> nn.Module:
    return type("Slipping", (Lstm,), {name: method})(**sizes)  # type: ignore[no-any-return]


def halves(self: Any, x: Tensor, states: Any = None) -> Any:
    out, last = Lstm.forward(self, x, states)
    return out * (1 if self.training else 0.5), last


def test_how_much_h_changes_in_evaluation_is_told() -> None:
    text = told(report_of(with_slip("forward", halves)))
    assert "after eval() h changes by 50 %" in text


def writes(self: Any, x: Tensor, states: Any = None) -> Any:
    made = Lstm.forward(self, x, states)
    if states:
        with torch.no_grad():
            states[0].copy_(made[1][0])
    return made


def reuses(self: Any, x: Tensor, states: Any = None) -> Any:
    out, last = Lstm.forward(self, x, states)
    if out.requires_grad:
        return out, last
    if getattr(self, "kept", out[:0]).shape != out.shape:
        self.kept = torch.empty_like(out)
    return self.kept.copy_(out), last


def drops_on_top(self: Any, x: Tensor, states: Any = None) -> Any:
    out, last = Lstm.forward(self, x, states)
    return functional.dropout(out, 0.5, self.training), last


def first_c(self: Any, k: int, x: Tensor, h: Tensor, c: Tensor) -> Any:
    out, (h_n, _) = Lstm.run(self, k, x, h, c)
    return out, (h_n, self.cells[k](x[0], h, c)[1])


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (with_slip("forward", writes), "a call writes into h_0"),
        (
            with_slip("forward", reuses),
            "a second call changes the outputs of the first",
        ),
        (with_slip("forward", drops_on_top, layers=2), "the outputs of the last layer"),
        (
            with_slip("start", lambda s, x: (torch.zeros(s.layers, 5, H).to(x),) * 2),
            "without states, raise",
        ),
        (
            with_slip("start", lambda s, x: (torch.zeros(1, x.shape[1], H),) * 2),
            "the states that it makes have another dtype than x",
        ),
        (
            with_slip("start", lambda s, x: (torch.randn(1, x.shape[1], H).to(x),) * 2),
            "what they begin with is random",
        ),
        (
            with_slip("joined", lambda s, outs: torch.cat(outs[::-1], -1), ways=2),
            "joined in the other order, backward first",
        ),
        (
            with_slip(
                "run",
                lambda s, k, x, h, c: Lstm.run(s, k, x.flip(-1) if k else x, h, c),
                ways=2,
            ),
            "gets x with its features in reversed order, not x",
        ),
        (
            with_slip("run", first_c),
            "The c that is returned is that of step 0",
        ),
    ],
)
def test_what_a_layer_does_with_what_it_is_given_is_told(
    layer: nn.Module, text: str
) -> None:
    assert text in told(report_of(layer))


def test_a_norm_of_two_layers_is_named() -> None:
    layer: Any = Lstm(layers=2)
    layer.cells[1].norm_c = layer.cells[0].norm_c
    assert "shared norm" in report_of(layer).others


def test_states_in_another_order_of_directions_are_named() -> None:
    def exchanged(self: Any, x: Tensor, states: Any = None) -> Any:
        out, (h, c) = Lstm.forward(self, x, states)
        return out, (h[[0, 2, 1, 3]], c[[0, 2, 1, 3]])

    layer = with_slip("forward", exchanged, layers=2, ways=2)
    text = "c_0 number 2 of 4, from 0, is that of the c that is returned as number 1"
    assert text in told(report_of(layer))


def test_an_output_that_is_not_turned_back_is_told() -> None:
    def turned(self: Any, x: Tensor, states: Any = None) -> Any:
        return Lstm.forward(self, x.transpose(0, 1), states)

    layer: Any = with_slip("forward", turned)
    layer.batch_first = True
    assert "the output comes as (T, N, H)" in told(report_of(layer))


class OfBatches(Cell):
    """The cell with batch norms of torch, which refuse one example in training."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.bias = nn.Parameter(torch.zeros(4 * H))  # in front of a norm: no gradient
        for name, size in (("norm_x", 4 * H), ("norm_h", 4 * H), ("norm_c", H)):
            setattr(self, name, nn.BatchNorm1d(size))

    def before(self, q_x: Tensor, q_h: Tensor) -> Tensor:
        return super().before(q_x + self.bias, q_h)


def test_of_batch_norms_neither_one_example_nor_a_gradient_of_0_is_a_fault() -> None:
    layer: Any = Lstm()
    layer.cells[0] = OfBatches(D)
    assert report_of(layer).failed == ()

    def refuses(self: Any, x: Tensor, states: Any = None) -> Any:
        if x.shape[1] == 1:
            raise ValueError("one example")
        return Lstm.forward(self, x, states)

    assert "1 example raise" in told(report_of(with_slip("forward", refuses)))


def test_of_a_batch_that_is_turned_the_cure_is_to_turn_the_time() -> None:
    def turned(self: Any, outs: list[Tensor]) -> Tensor:
        return torch.cat([outs[0], outs[1].flip(0, 1)], -1)

    report = report_of(with_slip("joined", turned, ways=2, layers=2))
    assert report.failed == ("h does not depend on the other examples",)
    (found,) = (f for f in report.findings if f.passed is False)
    assert found.cure == "Turn the time alone, x.flip(0)."
    assert "the layers above the first, and the other direction" in report.untested


@pytest.mark.parametrize("is_cut_back", [True, False])
@pytest.mark.parametrize("is_batch_first", [True, False])
def test_time_and_batch_exchanged_by_reshape_are_told(
    is_batch_first: bool, is_cut_back: bool
) -> None:
    def cut(self: Any, x: Tensor, states: Any = None) -> Any:
        rows, columns, _ = x.shape
        seen = x.reshape(columns, rows, -1)
        seen = seen if is_batch_first else seen.transpose(0, 1)
        out, last = Lstm.forward(self, seen.contiguous(), states)
        if is_batch_first == is_cut_back:
            out = out.transpose(0, 1)
        return (out.reshape(rows, columns, -1) if is_cut_back else out), last

    layer: Any = with_slip("forward", cut)
    layer.batch_first = is_batch_first
    report = report_of(layer)
    assert report.failed == ("h does not depend on the other examples",)
    assert "exchanged by reshape or view" in told(report)


def test_a_cell_may_give_its_output_beside_states_that_it_needs() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden_size, self.cell = H, Cell(D)

        def forward(self, x: Tensor, states: States) -> tuple[Tensor, States]:
            h, c = self.cell(x, *states)
            return h, (h, c)

    report = check_norm_layer(Given(), (5, D), kind="lstm", quiet=True)
    assert report.passed
    assert "a step is that of a known cell" not in report.untested


class Candidate(OfBatches):
    """The same with the norm of c at the candidate."""

    def gates(self, i: Tensor, f: Tensor, g: Tensor, o: Tensor) -> tuple[Tensor, ...]:
        return super().gates(i, f, self.norm_c(g), o)

    def read(self, c: Tensor, o: Tensor) -> Tensor:
        return o * c.tanh()


def test_an_output_that_is_not_the_state_is_told_of_the_output() -> None:
    def run(self: Any, k: int, x: Tensor, h: Tensor, c: Tensor) -> Any:
        out = []
        for x_t in x:
            new_h, new_c = self.cells[k](x_t, h, c)
            h, c = 0.1 * h + 0.9 * new_h, 0.2 * c + 0.8 * new_c
            out.append(new_h)
        return torch.stack(out), (h, c)

    slips = {"read": lambda s, c, o: o * c.tanh()}
    report = report_of(with_slip("run", run, slips=slips))
    assert report.failed == ("the last output is the state h that is returned",)
    text = told(report)
    assert "0.1 of the old h and 0.2 of the old c stay in the new" in text


class Variational(Cell):
    """Dropout of h by one mask, which is drawn again where ``is_old`` says so."""

    dropout = 0.1
    mask: Tensor | None = None

    def is_old(self, mask: Tensor, h: Tensor) -> bool:
        return mask.shape != h.shape

    def terms(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and self.dropout > 0:
            if self.mask is None or self.is_old(self.mask, h):
                self.mask = functional.dropout(torch.ones_like(h), self.dropout)
            h = h * self.mask
        return super().terms(x, h)


@pytest.mark.parametrize(
    ("is_old", "text"),
    [
        (Variational.is_old, "two calls in training drop the same units: the mask is"),
        (lambda *_: False, "calls of another number of examples, one behind the other"),
        (lambda *_: True, ""),
    ],
)
def test_a_mask_that_is_kept_is_told(is_old: Any, text: str) -> None:
    layer: Any = Lstm()
    layer.cells[0] = type("Slipping", (Variational,), {"is_old": is_old})(D)
    found = told(report_of(layer))
    assert text in found if text else not found


@pytest.mark.parametrize("kind", [Candidate, OfBatches])
def test_a_batch_norm_at_the_candidate_is_named(kind: type[Cell]) -> None:
    layer: Any = Lstm()
    layer.cells[0] = kind(D)
    layer(3 * torch.randn(9, 8, D) + 1)  # the running statistics have moved
    text = told(report_of(layer))
    at_candidate = "cells.0.norm_c normalizes the candidate g"
    assert (at_candidate in text) == (kind is Candidate)


class Peephole(Cell):
    """Gates that see c, that of the output in front of its sigmoid or behind it."""

    is_behind, has_tanh = False, True

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.peepholes = nn.Parameter(0.5 * torch.randn(3, H))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> States:
        i, f, g, o = self.before(*self.terms(x, h)).chunk(4, -1)
        p_i, p_f, p_o = self.peepholes
        c = (f + p_f * c).sigmoid() * c + (i + p_i * c).sigmoid() * g.tanh()
        o = o.sigmoid() + p_o * c if self.is_behind else (o + p_o * c).sigmoid()
        return o * (self.norm_c(c).tanh() if self.has_tanh else c), c


@pytest.mark.parametrize(
    ("is_behind", "has_tanh"), [(True, True), (False, True), (False, False)]
)
def test_an_output_gate_beyond_0_and_1_is_told(is_behind: bool, has_tanh: bool) -> None:
    layer: Any = Lstm()
    with torch.no_grad():
        layer.cells[0] = Peephole(D)
    layer.cells[0].is_behind, layer.cells[0].has_tanh = is_behind, has_tanh
    report = report_of(layer)
    name = "the output gate is between 0 and 1"
    assert report.failed == ((name,) if is_behind else ())
    assert "peepholes" in report.others
    why = {f.name: f.reason for f in report.findings}["a step is that of a known cell"]
    assert why == "no cell is known here of which the gates see c"
