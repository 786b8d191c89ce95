"""Which steps of x the outputs see, where a layer takes lengths or a mask, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from normbook.checks.claim import DoesNotApply, Fault, NotTested, claim
from normbook.checks.recurrent.probe import EXACT, Probe, relative_change


def real_steps(probe: Probe) -> list[set[int]] | None:
    """Return which steps of each example lengths or a mask leave, where given."""
    examples = probe.sizes[1]
    for value in getattr(probe.layer, "_more", ()):
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value) if isinstance(value, list | tuple) else None
        if value is None:
            continue
        if value.shape == (examples,) and not value.is_floating_point():
            return [{*range(int(n))} for n in value]
    return None


def _span(steps: set[int]) -> str:
    if not steps:
        return "no step"
    whole = [*range(min(steps), max(steps) + 1)] == sorted(steps)
    text = (
        f"{min(steps)} to {max(steps)}" if whole else ", ".join(map(str, sorted(steps)))
    )
    return f"step {min(steps)}" if len(steps) == 1 else f"steps {text}"


class _OfStates(Fault):
    """A fault of the states that are returned, not of the outputs."""


@claim("each output sees the steps of its own sequence alone")
def reach(probe: Probe) -> Fault | str:
    """Look which steps the outputs see."""
    faults = (fault for fault in _faults(probe) if not isinstance(fault, _OfStates))
    return next(faults, "Each sees the steps of its own sequence.")


@claim("the states that are returned are those of each sequence's end")
def returned(probe: Probe) -> Fault | None:
    """Look which steps the states see that are returned."""
    if _adds_directions(probe):
        raise DoesNotApply("the outputs of both directions are added")
    fault = next(_faults(probe), None)
    if fault and not isinstance(fault, _OfStates):
        raise NotTested("the outputs see other steps", "Mend that first.")
    return fault


def _adds_directions(probe: Probe) -> bool:
    """Return whether what early and late steps change adds up in the middle.

    So it does of F(x before) + B(x behind), and of no norm over all steps.
    """
    x = probe.inputs()[0]
    middle = len(x) // 2
    if not 0 < middle < len(x) - 1:
        return False
    early, late = x.clone(), x.clone()
    early[0] += probe.draw(*x[0].shape)
    late[-1] += probe.draw(*x[0].shape)
    both = torch.cat([early[:1], late[1:]])
    plain, *outs = (probe.run_stack(v)[0][middle] for v in (x, early, late, both))
    by_early, by_late, by_both = (out - plain for out in outs)
    return bool(by_early.any() and by_late.any()) and (
        relative_change(by_both, by_early + by_late) < EXACT
    )


def _faults(probe: Probe) -> Iterator[Fault]:
    """Move x step by step, and look which outputs and states move."""
    x = probe.inputs()[0]
    made = probe.run_stack(x)
    out, h_n, c_n = made
    ways = 2 if out.shape[-1] == 2 * probe.units[0] else 1
    if ways == 1 and getattr(probe.given, "bidirectional", False):
        raise DoesNotApply("an output of both directions sees all steps")
    is_added = ways == 1 and _adds_directions(probe)
    halves = out.chunk(ways, -1)
    moved = []
    for s in range(len(x)):
        other = x.clone()
        other[s] += probe.draw(*x[s].shape)
        moved.append(probe.run_stack(other))
    names = ("forward", "backward") if ways == 2 else ("",)
    lengths = real_steps(probe)
    for n in range(x.shape[1]):
        sees = [
            [
                {
                    s
                    for s, m in enumerate(moved)
                    if _moves(m[0].chunk(ways, -1)[w][t, n], y[t, n])
                }
                for t in range(len(x))
            ]
            for w, y in enumerate(halves)
        ]
        real = lengths[n] if lengths else {*range(len(x))}
        read = [set[int]().union(*(some[t] for t in real)) for some in sees]
        for w, seen in enumerate(read):
            if lengths and seen != real:
                yield Fault(
                    f"Example {n} has {len(real)} steps of {len(x)} by the lengths "
                    f"given, and its {names[w]} outputs there see {_span(seen)} of "
                    "x, from 0: the padding is read, or steps are left out; the mask "
                    "or the turn of x does not go by the lengths.",
                    "Turn each sequence within its own length, and mask t < length.",
                )
        if ways == 2 and read[0] != read[1]:
            yield Fault(
                f"Of example {n} the forward outputs see {_span(read[0])} of x, from "
                f"0, and the backward ones {_span(read[1])}, of {len(x)} steps: the "
                "other direction reads other steps, with padding among them, as where "
                "x is turned and the mask or the lengths are not.",
                "Turn each sequence within its own length, or the mask with x.",
            )
        for w, y in enumerate(halves):
            called = f"{names[w]} outputs".strip()
            silent = {t for t in range(len(x)) if not y[t, n].any()}
            if silent & read[w] and silent < {*range(len(x))}:
                yield Fault(
                    f"Of example {n} the {called} are 0 at {_span(silent)}, as of "
                    f"padding, and x at {_span(silent & read[w])} changes others: the "
                    "padding is read.",
                    "Leave the state as it is where the mask is 0.",
                )
            if is_added or not read[w]:
                continue
            end = max(read[w]) if w == 0 else min(read[w])
            of = h_n if h_n.ndim == 2 else h_n[w - ways]
            if _moves(of[n], y[end, n]):
                equal = [t for t in range(len(x)) if not _moves(of[n], y[t, n])]
                none = "0" if not of[n].any() else "no output of it"
                what = f"its output at {_span({*equal})}" if equal else none
                cure, order = "Return the state behind the last step of each.", ""
                every = itertools.product(range(x.shape[1]), range(len(x)))
                same = [(m, t) for m, t in every if not _moves(of[n], y[t, m])]
                if same and not equal and of[n].any():
                    what = "the output of example {} at step {}".format(*same[0])
                    order = (
                        " They are in another order of the examples than x, as sorted "
                        "by length."
                    )
                    cure = "Bring the states into the order of x, as the outputs."
                yield _OfStates(
                    f"Of example {n}, of which the {called} see {_span(read[w])}, the "
                    f"h that is returned is {what}, not that of step {end}, its last "
                    f"one.{order}",
                    cure,
                )
            state = c_n if c_n.ndim == 2 else c_n[w - ways]
            late = {
                s
                for s, m in enumerate(moved)
                if _moves((m[2] if m[2].ndim == 2 else m[2][w - ways])[n], state[n])
            } - read[w]
            if late:
                yield _OfStates(
                    f"Of example {n} the {called} see {_span(read[w])}, and the c that "
                    f"is returned {_span(late)}, too: it goes on in the padding.",
                    "Leave h and c both as they are where the mask is 0.",
                )
        ahead = {
            (w, t, s)
            for w, some in enumerate(sees)
            for t, seen in enumerate(some)
            for s in seen
        }
        if ways == 1 and not is_added and any(s > t for _, t, s in ahead):
            t, s = min((t, s) for _, t, s in ahead if s > t)
            yield Fault(
                f"Of example {n} the output of step {t} sees x of step {s}, from 0.",
                "Let each step see those before it alone.",
            )
    if not any(_moves(m[0], out) for m in moved):
        raise DoesNotApply("no x changes an output")


def _moves(after: Tensor, before: Tensor) -> bool:
    return before.shape == after.shape and relative_change(before, after) > EXACT
