"""What norms let outputs see that the model itself hides: later steps, other graphs."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import RISK, Harm, place_of, share_of
from normbook.checks.model.passes import Pass
from normbook.checks.model.runs import (
    Seen,
    batch_in,
    narrowed,
    noting,
    over_tensors,
    parts_of,
    run_on,
    tensors_in,
)
from normbook.checks.model.subject import Subject

SEEN, EQUAL = 1e-3, 1e-6  # of the largest output


class _Held:
    """A copy of a model whose norms add to what they gave once what their input adds.

    So no value of an input reaches another but through the model itself. What the norms
    would give is compared with what they gave, at the first places of an axis.
    """

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self.model = copy_of(model)
        self.first: list[tuple[Tensor, Tensor]] = []
        self.calls = 0
        self.is_first = True
        self.length = 0  # of the axis of the places
        self.looking: dict[str, float] = {}  # norms that see what is behind
        for name in names:
            parts_of(self.model)[name].register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def hook(_: nn.Module, given: Any, y: Any) -> Any:
            if not (given and isinstance(given[0], Tensor) and isinstance(y, Tensor)):
                return None
            x = given[0]
            if self.is_first:
                self.first.append((x.detach().clone(), y.detach().clone()))
                return None
            old_x, old_y = self.first[self.calls]
            self.calls += 1
            if old_x.shape != x.shape or x.shape != y.shape:
                return None
            for axis in (k for k, n in enumerate(x.shape) if k and n == self.length):
                was_x, now_x = (_early(t, axis) for t in (old_x, x))
                was_y, now_y = (_early(t, axis) for t in (old_y, y))
                if share_of(now_x - was_x, old_x) < EQUAL:
                    change = share_of(now_y - was_y, old_y)
                    if change > SEEN:
                        self.looking.setdefault(name, change)
            return old_y + (x - old_x)

        return hook

    def outputs(self, x: Any, *, is_first: bool = False) -> Tensor:
        self.is_first, self.calls = is_first, 0
        made: Tensor = tensors_in(run_on(self.model, x))[0]
        return made


def _early(t: Tensor, axis: int) -> Tensor:
    return t.narrow(axis, 0, t.shape[axis] // 2)  # without the middle one


def _with_others(x: Any, axis: int, *, is_late: bool) -> Any:
    """Take the last half of an axis, or the first, from another example."""
    first = batch_in(x)

    def moved(t: Tensor) -> Tensor:
        if first is None:
            return t
        if t.shape[: axis + 1] != first.shape[: axis + 1] or t.dtype == torch.bool:
            return t
        count = t.shape[axis] // 2
        part = t.narrow(axis, t.shape[axis] - count if is_late else 0, count)
        made = t.clone()
        made.narrow(axis, t.shape[axis] - count if is_late else 0, count).copy_(
            part.roll(1, 0)
        )
        return made

    return over_tensors(x, moved)


def ahead(subject: Subject) -> Iterator[Harm]:
    """Change the last steps of x: early outputs of a causal model must not see it."""
    whole = batch_in(subject.x)
    if whole is None or len(whole) < 2 or subject.still.is_random:
        return
    if not any(map(_runs_over_steps, subject.seen)):
        return
    for axis in range(1, min(whole.dim(), 3)):
        length = whole.shape[axis]
        if length < 8:
            continue
        held = _Held(subject.model, subject.names)
        held.length = length
        try:
            before = held.outputs(subject.x, is_first=True)
            late, first = (
                held.outputs(_with_others(subject.x, axis, is_late=is_late))
                for is_late in (True, False)
            )
        except (LayerError, IndexError):
            continue
        places = [k for k, n in enumerate(before.shape) if k and n == length]
        if len(places) != 1 or not before.is_floating_point():
            continue
        now, was = (_early(t, places[0]) for t in (late, before))
        early = share_of(now - was, before)
        behind = (first - before).narrow(places[0], length // 2, length // 2)
        # Forward alone, and not merely each step by itself.
        if early > EQUAL or share_of(behind, before) < SEEN:
            continue
        # What the first call looked at with other first steps is none of it.
        if names := held.looking:
            place = place_of([*names])
            yield Harm(
                RISK,
                "sees later steps, where the model sees none",
                max(names.values()),
                place,
                f"with other values at the end of axis {axis} of x, what comes to this "
                "norm at the first half is as before, and what it makes of it is not, "
                "by this share: its statistics run over the steps. But for its norms "
                "no output of the model depends on later steps.",
                "Normalize the features of each step by themselves, or the steps so "
                "far.",
                "Choosing axes",
            )
            return


def _runs_over_steps(seen: Seen) -> bool:
    """Return whether statistics are those of several positions, in evaluation."""
    if seen.kind in ("layer", "rms"):
        return seen.definition.last > 1
    return seen.kind in ("instance", "group") and seen.x.dim() > 2


def graphs(subject: Subject) -> Iterator[Harm]:
    """Look for norms of graphs that are not told which nodes make one."""
    given = {"batch"} & (
        {*subject.x} if isinstance(subject.x, dict) else _names_of(subject.model)
    )
    names = [*subject.names, *subject.unknown]
    parts = parts_of(subject.model)
    takes = [name for name in names if "batch" in _names_of(parts[name])]
    if not given or not takes:
        return
    model = copy_of(subject.model)
    events = noting(model, takes)
    run_on(model, subject.x)
    found = [
        e.name
        for e in events
        if all(v is None for v in (*e.more[0], e.more[1].get("batch")))
    ]
    if found := [*dict.fromkeys(found)]:
        yield Harm(
            RISK,
            "all graphs of a batch are normalized as one",
            len(found),
            place_of(found),
            "the model gets the graph of each node as batch, and calls the norm "
            "without it: its statistics are those of all nodes, and what a graph gets "
            "depends on those beside it, in evaluation, too.",
            "Pass batch to the norm.",
            "Choosing axes",
        )


def _names_of(part: nn.Module) -> set[str]:
    return {*signature(part.forward).parameters}


def lengths(subject: Subject) -> Iterator[Harm]:
    """Look for functional.normalize along axis 1, its default, of positions."""
    whole, full = batch_in(subject.x), subject.still.unit
    if whole is None or not full:
        return
    for axis in range(1, whole.dim()):
        if whole.shape[axis] < 4:
            continue
        of = Pass(copy_of(subject.model), subject.names)
        of.run(narrowed(subject.x, axis, whole.shape[axis] // 2))
        for (place, shape), (other, less) in zip(full, of.unit, strict=False):
            if place != other or len(shape) < 3 or len(less) != len(shape):
                continue
            alike = [a == b for a, b in zip(shape, less, strict=True)]
            if shape[1] == whole.shape[axis] and not alike[1] and all(alike[2:]):
                yield Harm(
                    RISK,
                    "unit length along positions, not features",
                    shape[1],
                    place or "the whole model",
                    f"functional.normalize runs along axis 1 of {shape}, its default, "
                    "and the axis changes with the number of positions in x.",
                    "Pass dim=-1, or the axis of the features.",
                    "Choosing axes",
                )
                return
