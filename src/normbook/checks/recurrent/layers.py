"""Layers one above the other, and two directions: each must be a cell of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from normbook.checks.claim import Fault
from normbook.checks.copies import copy_of
from normbook.checks.recurrent.probe import EXACT, Probe, is_affine, relative_change
from normbook.checks.recurrent.step import Found, Step, step_fault
from normbook.checks.recurrent.terms import layer_norm

# A normalization forgets the scale of what it takes up to eps, and up to a bias that is
# added inside it: INVARIANT lies far above that and far below what another scale does
# without a normalization, about 0.5.
INVARIANT = 0.15


def plain_copy(probe: Probe) -> Probe:
    """Return a probe with gains of 1 and biases of 0, so that the matrices say all."""
    plain = probe._replace(layer=copy_of(probe.layer))
    for name, value in plain.layer.named_parameters():
        if value.ndim < 2 or min(value.shape) == 1 or is_affine(value):
            is_gain = re.search("weight|gamma|gain|scale", name.lower())
            value.fill_(1.0 if is_gain or bool((value == 1).all()) else 0.0)
    forget_statistics(plain.layer)
    return plain


def forget_statistics(layer: nn.Module) -> None:
    """Set running statistics to a mean of 0 and a variance of 1."""
    for name, value in layer.named_buffers():
        if value.is_floating_point() and re.search("mean|var", name):
            value.fill_(1.0 if "var" in name else 0.0)


def _matrices(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return matrices; of a kernel (D, 4, H), or (4, D, H), that of all gates."""
    found = []
    for p in parameters:
        if p.ndim == 3 and 4 in p.shape:
            p = p.movedim(p.shape.index(4), -2).flatten(1)
        if p.ndim == 2 and min(p.shape) > 1 and not is_affine(p):
            found.append(p)  # no (1, n) gains
    return found


def compared(probe: Probe, order: str = "") -> list[tuple[str, Found] | None]:
    """Compare one step of each layer and direction with the cells that are known.

    Of each return what it gets from below, and what was found; None without a fit.
    """
    plain = plain_copy(probe)
    stack = Stack(plain, plain.units[1] + 8)
    rows, matrices = 4 * probe.units[1], _matrices(plain.layer.parameters())
    biases = [p for p in probe.layer.parameters() if p.shape == (rows,)]
    x, h, c = 3 * stack.x[:1], stack.h, stack.c
    _, h_1, c_1 = stack.run(x, h, c)
    results: list[tuple[str, Found] | None] = []
    for k in range(stack.count):
        written, f = stack.written_and_kept(x, k)
        results.append(None)
        for what, below in _inputs_of(stack, k, x[0], h_1, c_1):
            step = Step(below, h[k], c[k], f, written, c_1[k], h_1[k], biases)
            if found := step_fault(step, matrices, order):
                results[-1] = what, found
                break
    return results


H_BELOW = "h of the layer below"


def _inputs_of(
    stack: Stack, k: int, x: Tensor, h_1: Tensor, c_1: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield what a layer may get: what it should, and then others."""
    layer = k // stack.ways

    def joined(states: Tensor, number: int) -> Tensor:
        ways = range(number * stack.ways, (number + 1) * stack.ways)
        return torch.cat([states[way] for way in ways], -1)

    if layer == 0:
        yield "x", x
        yield "x with its features in reversed order", x.flip(-1)
        return
    below = joined(h_1, layer - 1)
    yield H_BELOW, below
    yield "c of the layer below", joined(c_1, layer - 1)
    yield "x, as the first", x
    source = x if layer == 1 else joined(h_1, layer - 2)
    if source.shape == below.shape:
        yield (
            "h of the layer below plus what that one gets, a residual",
            below + source,
        )
    yield "h of the layer below, normalized once more", layer_norm(below)
    if stack.ways == 2:
        alone = h_1[(layer - 1) * 2 : layer * 2]
        yield "h of the first direction alone", alone[0]
        yield "h of the other direction alone", alone[1]
        yield "the sum of h of both directions", alone.sum(0)
        yield "h of both directions, exchanged", torch.cat([*alone.flip(0)], -1)


def upper_fault(stack: Stack, found: list[tuple[str, Found] | None]) -> Fault | None:
    """Name what is wrong in a layer above the first, or in the other direction."""
    if found[0] is None:
        return None
    first = found[0][1]
    matrices: dict[tuple[int, ...], int] = {}
    for k, one in enumerate(found):
        place = f"number {k} of {stack.count}, from 0 (layer {k // stack.ways}"
        place += f", direction {k % stack.ways})" if stack.ways > 1 else ")"
        if one is None:
            return Fault(
                f"The layer {place} is no known cell of h of the layer below, though "
                "the first is a known one of x.",
                "Make it the same cell, with matrices of its own.",
            )
        what, cell = one
        earlier = matrices.setdefault(cell.matrices, k)
        if earlier != k:
            return Fault(
                f"Layer or direction {place} has the same weights as number {earlier}: "
                "one cell, one object, is used for both; what one learns changes the "
                "other.",
                "Make a new cell for each: [Cell() for _ in ...], not [cell] * n.",
                "shared weights",
            )
        if k < stack.ways and what != "x":
            return Fault(
                f"The layer {place} gets {what}, not x: a flip of the wrong axis?",
                "Turn the time alone, x.flip(0).",
            )
        if k >= stack.ways and what != H_BELOW:
            return Fault(
                f"The layer {place} gets {what}, not h alone of the layer below.",
                "Give the next layer the outputs h of the one below.",
                "residual" if "residual" in what else "",
            )
        if k and isinstance(cell.outcome, Fault) and cell.outcome != first.outcome:
            reason = f"In the layer {place}: {cell.outcome.reason}"
            return cell.outcome._replace(reason=reason)
        if k and cell.outcome != first.outcome:
            return Fault(
                f"The layer {place} is another cell than the first. It is: "
                f"{cell.outcome} The first is: {first.outcome}",
                "Make all layers of one class.",
            )
    return None


def own_fault(stack: Stack) -> Fault | None:
    """Find faults of the whole that need no known cell."""
    for look in (
        _turned_back,
        order_of_states,
        returned_twice,
        last_outputs,
        _own_states,
        _linear_states,
        _passed_on,
    ):
        if fault := look(stack):
            return fault
    return None


def _linear_states(stack: Stack) -> Fault | None:
    """Look whether each c above the first is carried as it is, and grows with c_0."""
    x, h = stack.x[:1], stack.h
    for k in range(1, stack.count):
        runs = []
        for times in (0, 1, 2, 1000):
            c = stack.c.clone()
            c[k] *= times
            runs.append(stack.run(x, h, c)[2][k])
        zero, once, twice, many = runs
        if relative_change(2 * (once - zero), twice - zero) < EXACT:
            continue
        is_bounded = float(many.abs().max()) < 10 * max(float(once.abs().max()), 1.0)
        is_it = ": its normalized form is stored as the state" if is_bounded else ""
        return Fault(
            f"In the layer or direction number {k}, from 0, c_1 is not linear in c_0: "
            f"what is carried is not c{is_it}.",
            "Normalize c only on its way to h, and carry c itself.",
        )
    return None


def order_of_states(stack: Stack) -> Fault | None:
    """Look which c that is returned belongs to which c that is given.

    A c moves itself and those above: the layer on top tells its own place, and so on.
    """
    x, h = stack.x[:1], stack.h
    before = stack.run(x, h, stack.c)[2]
    if len(before) != stack.count:
        return None
    place: dict[int, int] = {}
    for layer in reversed(range(stack.count // stack.ways)):
        found = {}
        for k in range(layer * stack.ways, (layer + 1) * stack.ways):
            after = stack.run(x, h, stack.with_another(stack.c, k))[2]
            pairs = enumerate(zip(before, after, strict=True))
            moved = {j for j, (a, b) in pairs if relative_change(a, b) > EXACT}
            own = moved - {*place.values()}
            if len(own) != 1:
                return None
            found[k] = own.pop()
        place |= found
    wrong = [k for k in sorted(place) if place[k] != k]
    if not wrong:
        return None
    k = wrong[-1]
    return Fault(
        f"c_0 number {k} of {stack.count}, from 0, is that of the c that is returned "
        f"as number {place[k]}: the states are returned in another order of the layers "
        "and directions than they are taken in.",
        "Return the states of the first layer first, forward before backward, as "
        "torch does.",
    )


def returned_twice(stack: Stack) -> Fault | None:
    """Look for states that are returned for two layers."""
    _, *states = stack.run(stack.x, stack.h, stack.c)
    for name, values in zip(("h", "c"), states, strict=True):
        for j, k in itertools.combinations(range(len(values)), 2):
            if values[j].equal(values[k]):
                return Fault(
                    f"The {name} that are returned as number {j} and number {k}, from "
                    "0, are one: that of one layer stands for both.",
                    "Return the last state of each layer and direction.",
                )
    return None


def last_outputs(stack: Stack) -> Fault | None:
    """Look which output the h of the layer on top is, where it is another one."""
    out, h, c = stack.run(stack.x, stack.h, stack.c)
    halves = out.chunk(stack.ways, -1)
    for way, half in enumerate(halves):
        k = len(h) - stack.ways + way
        end = -1 if way == 0 else 0
        if half.shape[-1] != h.shape[-1] or relative_change(half[end], h[k]) < EXACT:
            continue
        told = (
            f"The last output{f' of direction {way}' * (stack.ways > 1)} is not h[{k}]"
        )
        told += ", which should be the state of the layer on top"
        values = [(f"h[{j}]", v) for j, v in enumerate(h)]
        values += [(f"c[{j}]", v) for j, v in enumerate(c) if v.shape == h[k].shape]
        for name, value in values:
            if relative_change(half[end], value) < EXACT:
                return Fault(
                    f"{told}: it is {name} of the states that are returned.",
                    "Return h and c of the first layer first, each with its own.",
                )
        for t, value in enumerate(half):
            if relative_change(value, h[k]) < EXACT:
                return Fault(
                    f"{told}: that h is the output of step {t}, from 0.",
                    "Return the states with which the loop ends.",
                )
    return None


class Stack:
    """Layers one above the other, each with states of its own."""

    def __init__(self, probe: Probe, examples: int | None = None) -> None:
        self.probe, self.count = probe, probe.stacked or 1
        n = examples or probe.sizes[1]
        self.x = probe.draw(probe.sizes[0], n, probe.sizes[2])
        self.h = probe.draw(self.count, n, probe.units[0])
        self.c = probe.draw(self.count, n, probe.units[1])
        out = self.run(self.x, self.h, self.c)[0]
        self.ways = max(out.shape[-1] // probe.units[0], 1)

    def run(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x (T, N, D), from states (L, N, H)."""
        if self.probe.is_single:
            out, h, c = self.probe.run(x, h[0], c[0])
            return out, h[None], c[None]
        return self.probe.run_stack(x, (h, c))

    def written_and_kept(self, x: Tensor, of: int | slice) -> tuple[Tensor, Tensor]:
        """Return what c_1 of some layers is for a c_0 of 0, and their forget gate."""
        c_1 = []
        for value in (0, 1):
            c = self.c.clone()
            c[of] = value
            c_1.append(self.run(x, self.h, c)[2][of])
        return c_1[0], c_1[1] - c_1[0]

    def with_another(self, states: Tensor, k: int) -> Tensor:
        """Return states, of which those of one layer are drawn anew."""
        states = states.clone()
        states[k] = self.probe.draw(*states[k].shape)
        return states


def _turned_back(stack: Stack) -> Fault | None:
    """Find the last h of the other direction among the outputs: at the first step."""
    if stack.ways != 2:
        return None
    out, h, _ = stack.run(stack.x, stack.h, stack.c)
    back = out[..., stack.probe.units[0] :]
    if back.shape != (*out.shape[:2], h.shape[-1]):
        return None
    moved = stack.probe.with_another_end(stack.x)
    after = stack.run(moved, stack.h, stack.c)[0]
    last = after[-1:, :, stack.probe.units[0] :]
    if relative_change(back[-1:], last) < EXACT:
        return Fault(
            "Another x at the last step leaves the output of the other direction there "
            "as it is: it runs forward, as the first, and its outputs are turned.",
            "Give the other direction x.flip(0), and turn its outputs back.",
        )
    if (
        relative_change(back[0], h[-1]) < EXACT
        or relative_change(back[-1], h[-1]) > EXACT
    ):
        return None
    if relative_change(out[:-1], after[:-1]) < EXACT:
        return Fault(
            "Another x at the last step changes no output before it: both directions "
            "run forward.",
            "Give the other direction x.flip(0), and turn its outputs back.",
        )
    # The last step alone, with the first direction, from below, where it was before.
    _, *before = stack.run(stack.x[:-1], stack.h, stack.c)
    h_0, c_0 = stack.h.clone(), stack.c.clone()
    h_0[0], c_0[0] = before[0][0], before[1][0]
    alone = stack.run(stack.x[-1:], h_0, c_0)[0][..., stack.probe.units[0] :]
    if relative_change(back[-1:], alone) < EXACT:
        return Fault(
            "The last h of the other direction is its output at the last step of x, "
            "where it has seen that step alone: it ends at the first step.",
            "Return the h with which its loop ends: that of out[0], not of out[-1].",
        )
    return Fault(
        "The other direction ends at the first step of x, and its last h stands at the "
        "last step of the output: its outputs are in reversed order, beside those of "
        "other steps.",
        "Turn the outputs of the other direction back, flip(0), before joining them.",
    )


def _own_states(stack: Stack) -> Fault | None:
    """Give each layer another state, one after the other."""
    x, h, c = stack.x, stack.h, stack.c
    before = stack.run(x, h, c)[2]
    for k in range(stack.count):
        for name in ("h_0", "c_0"):
            is_h = name == "h_0"
            other = stack.with_another(h if is_h else c, k)
            after = stack.run(x, *((other, c) if is_h else (h, other)))[2]
            if not relative_change(before[k], after[k]) > EXACT:
                return Fault(
                    f"Another {name}[{k}] changes nothing in the layer or direction "
                    f"that it is for, number {k}.",
                    "Begin each layer and direction with its own h_0[k] and c_0[k].",
                )
    return None


def _passed_on(stack: Stack) -> Fault | None:
    """Move c_1 of the first layer so that its h_1 stays: nothing above may change.

    The norm between c and h forgets scale and shift, as in the test of h.
    """
    if stack.count == stack.ways:
        return None
    first = slice(0, stack.ways)
    x, h, c = stack.x[:1], stack.h, stack.c
    rest, f = stack.written_and_kept(x, first)
    out, h_1, c_1 = stack.run(x, h, c)
    moved = c.clone()
    moved[first] = (3 * c_1[first] + 2 - rest) / f.clamp_min(1e-12)
    after, h_2, _ = stack.run(x, h, moved)
    below, above = relative_change(h_1[first], h_2[first]), relative_change(out, after)
    if below > 0.01 or above < INVARIANT:
        return None
    return Fault(
        f"From c_1 to 3 c_1 + 2 in the first layer its h changes by {below:.1%}, and "
        f"the output of the layer above by {above:.0%}: the cell state c is passed on "
        "to it, not h.",
        "Give the next layer the outputs h of the one below.",
    )
