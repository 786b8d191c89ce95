"""Slips in a layer above the first, in what it gets, and in its states, are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.checks.recurrent import claims as recurrent
from normbook.checks.recurrent import gradients
from normbook.checks.recurrent.claims import recurrent_findings

D, H = 4, 6
State = tuple[Tensor, Tensor]


class Cell(nn.Module):
    """The cell of Ba et al."""

    def __init__(self, inputs: int, units: int = H) -> None:
        super().__init__()
        self.ih = nn.Linear(inputs, 4 * units, bias=False)
        self.hh = nn.Linear(units, 4 * units, bias=False)
        self.norm_x, self.norm_h = nn.LayerNorm(4 * units), nn.LayerNorm(4 * units)
        self.norm_c = nn.LayerNorm(units)

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        a: Tensor = self.norm_x(self.ih(x)) + self.norm_h(self.hh(h))
        return a

    def read(self, c: Tensor) -> Tensor:
        return torch.tanh(self.norm_c(c))

    def kept(self, c: Tensor) -> Tensor:
        return c

    def forward(self, x: Tensor, state: State) -> State:
        i, f, g, o = self.gates(x, state[0]).chunk(4, 1)
        c = self.kept(f.sigmoid() * state[1] + i.sigmoid() * g.tanh())
        return o.sigmoid() * self.read(c), c


class Plain(Cell):
    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        a: Tensor = self.ih(x) + self.hh(h)
        return a


class Late(Cell):
    def read(self, c: Tensor) -> Tensor:
        y: Tensor = self.norm_c(c.tanh())
        return y


class Carried(Cell):
    def kept(self, c: Tensor) -> Tensor:
        y: Tensor = self.norm_c(c)
        return y


class OneNorm(Cell):
    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        a: Tensor = self.norm_x(self.ih(x)) + self.norm_x(self.hh(h))
        return a


class Stack(nn.Module):
    """Cells one above the other; the parts below are those that slip."""

    def __init__(self, *cells: Cell) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = D, H, len(cells)
        self.cells = nn.ModuleList(cells)

    def start(self, state: State, k: int) -> State:
        return state[0][k], state[1][k]

    def carried(self, given: State, now: State) -> State:
        return now

    def above(self, out: Tensor, x: Tensor, k: int) -> Tensor:
        return out

    def last(self, h: Tensor, c: Tensor) -> State:
        return h, c

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        zeros = x.new_zeros(self.num_layers, x.shape[1], H)
        state, ends = state or (zeros, zeros), []
        for k, cell in enumerate(self.cells):
            given, outs = self.start(state, k), []
            now = given
            for x_t in x:
                now = cell(x_t, self.carried(given, now))
                outs.append(now[0])
            x = self.above(torch.stack(outs), x, k)
            ends.append(now)
        h, c = zip(*ends, strict=True)
        return x, self.last(torch.stack(h), torch.stack(c))


def slipping(**slips: Callable[..., Any]) -> type[Stack]:
    return type("Slipping", (Stack,), slips)


def reasons(layer: nn.Module) -> dict[str, str]:
    found = recurrent_findings(layer)
    return {f.name: f.reason for f in found if f.verdict in ("wrong", "other")} | {
        f"{f.name}, other": f.reason for f in found if f.verdict == "other"
    }


def test_right_layers_have_no_fault() -> None:
    for layer in (Stack(Cell(D)), Stack(Cell(D), Cell(H), Cell(H))):
        assert set(reasons(layer)) <= {gradients.BIASES, f"{gradients.BIASES}, other"}


@pytest.mark.parametrize(
    ("upper", "text"),
    [
        (Plain, "a by no norm of W_x x + W_h h"),
        (Late, "In the layer number 1 of 2, from 0 (layer 1): tanh stands before"),
        (Carried, "its normalized form is stored as the state"),
    ],
)
def test_a_slip_in_the_second_layer_is_named(upper: type[Cell], text: str) -> None:
    assert text in reasons(Stack(Cell(D), upper(H)))[recurrent.UPPER]


def test_one_cell_for_two_layers_is_named() -> None:
    cell = Cell(H)
    found = reasons(Stack(Cell(D), cell, cell))
    assert "has the same weights as number 1" in found[recurrent.UPPER]


def test_a_cell_that_is_made_and_not_used_is_named() -> None:
    found = reasons(Stack(OneNorm(D)))
    assert "share one gain, cells.0.norm_x.weight" in found[recurrent.CELL]
    assert "cells.0.norm_h.weight" in found[gradients.USED]


@pytest.mark.parametrize(
    ("layer", "claim", "text"),
    [
        (
            slipping(above=lambda self, out, x, k: out + x if k else out),
            recurrent.UPPER,
            "a residual",
        ),
        (
            slipping(last=lambda self, h, c: (h.flip(0), c.flip(0))),
            recurrent.UPPER,
            "in another order of the layers",
        ),
        (
            slipping(start=lambda self, s, k: (s[0][k], 0 * s[1][k])),
            recurrent.PIECES,
            "c_0 that is given, changes nothing",
        ),
        (
            slipping(start=lambda self, s, k: (s[1][k], s[0][k])),
            recurrent.PIECES,
            "h and c are exchanged in what is given",
        ),
        (
            slipping(last=lambda self, h, c: (c, h)),
            recurrent.PIECES,
            "h and c are exchanged in what is returned",
        ),
        (
            slipping(carried=lambda self, given, now: given),
            recurrent.PIECES,
            "none is carried on",
        ),
        (
            slipping(carried=lambda self, given, now: (now[0].detach(), now[1])),
            gradients.GRADIENTS,
            "",
        ),
    ],
)
def test_a_slip_around_the_cells_is_named(
    layer: type[Stack], claim: str, text: str
) -> None:
    count = 3 if claim == recurrent.UPPER else 1
    cells = [Cell(D), *(Cell(H) for _ in range(count - 1))]
    assert text in reasons(layer(*cells))[claim]


@pytest.mark.parametrize("count", [1, 2])
def test_states_with_c_first_are_a_convention(count: int) -> None:
    layer = slipping(
        start=lambda self, s, k: (s[1][k], s[0][k]),
        last=lambda self, h, c: (c, h),
    )
    found = reasons(layer(*(Cell(H if k else D) for k in range(count))))
    name = "the states are (h, c), in the order of torch"
    assert "All other tests exchange them back" in found.pop(f"{name}, other")
    assert set(found) <= {name, gradients.BIASES, f"{gradients.BIASES}, other"}


class Projected(nn.Module):
    """A cell with a projection to two units behind it, and a learned first state."""

    def __init__(self, is_square: bool = False) -> None:
        super().__init__()
        self.input_size, self.is_square = D, is_square
        self.cell, self.project = Cell(D), nn.Linear(H, 2, bias=False)
        self.cell.hh = nn.Linear(2, 4 * H, bias=False)
        self.first_h = nn.Parameter(torch.randn(1, 2))
        self.first_c = nn.Parameter(torch.randn(1, H))

    def forward(self, x: Tensor, states: State | None = None) -> tuple[Tensor, State]:
        given = states or (self.first_h[None], self.first_c[None])
        h, c = (s[0].expand(x.shape[1], -1) for s in given)
        out = []
        for x_t in x:
            i, f, g, o = self.cell.gates(x_t, h).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            h = self.project(h.square() if self.is_square else h)
            out.append(h)
        return torch.stack(out), (h[None], c[None])


def test_what_h_is_a_projection_of_is_compared() -> None:
    layer = Projected()
    layer.cell.norm_c = nn.LayerNorm(H, elementwise_affine=False)
    report = check_norm_layer(layer, kind="lstm", quiet=True)
    assert report.failed == ()
    assert {*report.others} == {"no norm of c", "other start"}


def test_of_an_unknown_projection_c_is_compared_alone() -> None:
    found = recurrent_findings(Projected(is_square=True))
    (step,) = (f for f in found if f.name == recurrent.CELL)
    assert step.passed
    assert "h_1, a projection to other units, is not compared" in step.reason
