"""The ways in which recurrent layers are called, brought into that of ``nn.LSTM``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normbook.checks.calls import Way
from normbook.checks.copies import copy_of
from normbook.checks.layer.recognition import further

NORM = re.compile(r"norm\d?d?$")


def _form_of(made: Any, layer: nn.Module, x: Tensor) -> str:
    """Name the form of what a layer returns; "" where it does not seem recurrent."""
    match made:
        case (Tensor() as out, (Tensor(), Tensor())) if out.ndim == 3:
            return "usual"
        case (Tensor() as h, Tensor() as c) if h.shape == c.shape and h.ndim == 2:
            return "usual"  # a cell
        case (Tensor() as out, (Tensor() as h, Tensor())) if out.shape == h.shape:
            return "cell and output"
        case (Tensor() as out, (list(), list())) if out.ndim == 3:
            return "lists"
        case (Tensor() as out, [(Tensor(), Tensor()), *_]) if out.ndim == 3:
            return "pairs"
        case (Tensor() as out, Tensor() as h, Tensor() as c):
            return "apart" if out.ndim == 3 and h.shape == c.shape else ""
    out = _outputs(made)
    name = type(layer).__name__.lower()
    # RecurrentGemmaRMSNorm is one by what it does alone.
    is_named = re.search("lstm|gru|rnn|recurrent", name) and not NORM.search(name)
    has_name = bool(is_named) or hasattr(layer, "hidden_size")
    if not isinstance(out, Tensor) or out.shape[:2] != x.shape[:2] or out.ndim != 3:
        return ""
    if has_name:
        return "outputs"
    may_be = isinstance(made, tuple) or out.shape[-1] != x.shape[-1]
    return "outputs?" if may_be else ""


def _begun(layer: nn.Module, x: Tensor) -> Any:
    """Run a layer, from zeros if it is a cell that must be given states."""
    units = getattr(layer, "hidden_size", None)
    try:
        return layer(x)
    except TypeError:
        if x.ndim != 2 or not isinstance(units, int):
            raise
    zeros = x.new_zeros(len(x), units)
    return layer(x, (zeros, zeros))


def _outputs(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) and made else made


def _time_of(run: Callable[[Any], Any], x: Tensor) -> int | None:
    """Return along which axis outputs depend on what is before them, and not behind."""
    out, x = _with_numbers(run, x)
    for axis in (0, 1):
        first, last = x.clone(), x.clone()
        first.select(axis, 0).neg_()
        last.select(axis, -1).neg_()
        by_first, by_last = (
            torch.isclose(_outputs(run(v)), out) for v in (first, last)
        )
        if not by_first.select(axis, -1).all() and by_last.select(axis, 0).all():
            return axis
    return None


def _with_numbers(run: Callable[[Any], Any], x: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.linspace(0, 7, x.numel()).sin().view_as(x).to(x)
    return _outputs(run(x)), x


def _time_of_both_directions(run: Callable[[Any], Any], x: Tensor) -> int | None:
    """Return the other axis than that of the examples, each of which moves no other."""
    out, x = _with_numbers(run, x)
    apart = []
    for axis in (0, 1):
        moved = x.clone()
        moved.select(axis, 0).neg_()
        rest = torch.isclose(_outputs(run(moved)), out).narrow(
            axis, 1, x.shape[axis] - 1
        )
        apart.append(bool(rest.all()))
    return apart.index(False) if sum(apart) == 1 else None


class Ragged(ValueError):
    """Raised where the states of the layers are not of the same examples."""


def _usual(form: str, made: Any, time: int) -> Any:
    if form in ("lists", "pairs"):
        shapes = [tuple(s.shape) for pair in made[1] for s in pair]
        if len({shape[:-1] for shape in shapes}) > 1:
            raise Ragged(", ".join(map(str, shapes)))
    if form == "apart":
        return made[0], made[1:]
    if form == "lists":
        return made[0], tuple(map(torch.stack, made[1]))
    if form == "pairs":
        return made[0], tuple(torch.stack(s) for s in zip(*made[1], strict=True))
    if form == "outputs":
        last = _outputs(made).select(time, -1)
        return _outputs(made), (last, last)
    return made[1] if form == "cell and output" else made


def takes_states(layer: nn.Module) -> bool:
    """Return whether a layer, as it is called, can be given states."""
    return getattr(layer, "_takes_states", bool(further(layer)))


def as_recurrent(
    layer: nn.Module, shape: tuple[int, ...] | None, way: Way | None
) -> nn.Module | None:
    """Return a layer that takes x and (h, c) and returns h and (h, c), as nn.LSTM.

    None where it is no recurrent one. What has another form, such as a pair for each
    layer, becomes a copy with a class of its own; all names stay.
    """
    sizes = [getattr(layer, name, None) for name in ("input_size", "hidden_size")]
    is_named = all(isinstance(n, int) for n in sizes)
    if shape is None or len(shape) not in (2, 3):
        return layer if is_named else None
    like = next(layer.parameters(), torch.zeros(()))
    x = torch.ones(shape, dtype=like.dtype, device=like.device)
    form, call, time = "", way, 0
    square = x[:1].expand(len(x), *x.shape[1:])
    if x.ndim == 3:
        square = x[:, :1].expand(len(x), len(x), -1)
    for value, call in ((x, way), (x, None), (x[0], None), (square, None)):
        try:
            with torch.no_grad():
                twin = copy_of(layer)
                run = partial(call, twin) if call else partial(_begun, twin)
                made = run(value)
                form = _form_of(made, layer, value)
                if form.startswith("outputs"):
                    seen = _time_of(run, value)
                    if seen is None and form == "outputs":
                        seen = _time_of_both_directions(run, value)
                    time = int(getattr(layer, "batch_first", False))
                    time = time if seen is None else seen
                    # Where no name says what it is, what it does must.
                    form = "" if seen is None and form == "outputs?" else "outputs"
        except Exception:  # noqa: BLE001, S112 - another way may fit
            continue
        # A norm that returns more than its output is told by its way alone.
        is_norm = call is not None and isinstance(made, Tensor) and not is_named
        if form or (is_norm and made.shape == value.shape):
            break
    if not form and not is_named:
        return None
    if form in ("", "usual") and call is None:
        return layer
    own: Any = type(layer)
    are_apart = len(further(layer)) > 1
    is_inside = False

    def forward(self: Any, x: Tensor, *more: Any, **named: Any) -> Any:
        nonlocal is_inside
        if is_inside:  # the way calls the layer itself
            self._more = [*more, *named.values()]
            return own.forward(self, x, *more, **named)
        (states,) = more or (None,)
        if call:
            is_inside = True
            try:
                return _usual(form, call(self, x), time)
            finally:
                is_inside = False
        given = [] if states is None else [states]
        if given and form in ("lists", "pairs"):
            h, c = ([*s] for s in states)
            given = [(h, c)] if form == "lists" else [[*zip(h, c, strict=True)]]
        elif given and form == "apart" and are_apart:
            given = [*states]
        return _usual(form, own.forward(self, x, *given), time)

    changed = copy_of(layer)
    changed.__class__ = type(own.__name__, (own,), {"forward": forward})
    takes = call is None and form != "outputs" and bool(further(layer))
    vars(changed)["_takes_states"] = takes
    return changed
