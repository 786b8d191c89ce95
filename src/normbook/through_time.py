"""The way of a sequence through time: the loop over its steps, forward and backward.

T steps of N examples are an array of shape (T, N, ...). Sequences of several lengths
come *packed*: sorted by length, the longest first, the steps one after the other, in
shape (M, ...) with M the number of all steps. ``batch_sizes`` tells how many sequences
are alive at each step: it never grows, begins with N and adds to M. The loop sees
*rows*, (M, ...), in both cases; what a cell does in a step is not known here. Below it
is the door at which what comes into a cell is checked, once.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from array_api_compat import array_namespace, device

from normbook.arrays import Array, check_float_array, check_like, check_same_kind

Arrays = Sequence[Array]
Sizes = tuple[int, ...]
Step = Callable[..., Any]


def over_steps(
    step: Step, rows: Array, states: Arrays, batch_sizes: Sizes
) -> tuple[Arrays, Arrays]:
    """Go from the first step to the last.

    ``step(row, *states)`` takes the rows of one step and the states before it, (N, H)
    each, and returns the next states, and behind them what the way back needs. Returned
    are the states behind the last step of each sequence, and all results as rows.
    """
    alive, results, ended = batch_sizes[0], [], []
    for row, size in zip(split(rows, batch_sizes), batch_sizes, strict=True):
        if size < alive:  # those behind have ended
            ended.append([state[size:, :] for state in states])
            states = [state[:size, :] for state in states]
            alive = size
        results.append(step(row, *states))
        states = results[-1][: len(states)]
    xp = array_namespace(rows)
    last = [xp.concat(parts) for parts in zip(states, *ended[::-1], strict=True)]
    return last, [xp.concat(values) for values in zip(*results, strict=True)]


def back_over_steps(
    step_backward: Step, dl_dh: Array, rows: Arrays, last: Arrays, batch_sizes: Sizes
) -> tuple[Arrays, Arrays]:
    """Go from the last step to the first.

    ``step_backward(dl_dh_t, *arriving, *rows)`` takes all that arrives at h, what
    arrives at the other states, and of ``rows`` those of the step. It returns what goes
    to the states before the step, and behind them the gradients within it. ``last``
    arrives at the states behind the last step of each sequence. Returned are what
    arrives at the first states, and the gradients within, as rows.
    """
    xp = array_namespace(dl_dh)
    alive, within = batch_sizes[-1], []
    arriving = [value[:alive, :] for value in last]
    for of_step in reversed(steps(batch_sizes)):
        size = of_step.stop - of_step.start
        if size > alive:  # here others end
            ends = [value[alive:size, :] for value in last]
            arriving = [xp.concat(pair) for pair in zip(arriving, ends, strict=True)]
            alive = size
        dl_dh_t = dl_dh[of_step, :] + arriving[0]
        of_rows = (value[of_step, ...] for value in rows)
        result = step_backward(dl_dh_t, *arriving[1:], *of_rows)
        arriving = result[: len(last)]
        within.append(result[len(last) :])
    return arriving, [xp.concat(values[::-1]) for values in zip(*within, strict=True)]


def steps(batch_sizes: Sizes) -> list[slice]:
    """Places of the rows of each step in turn."""
    ends = itertools.accumulate(batch_sizes)
    return [slice(end - size, end) for size, end in zip(batch_sizes, ends, strict=True)]


def split(rows: Array, batch_sizes: Sizes) -> Arrays:
    """Rows of each step in turn."""
    if hasattr(rows, "split"):  # torch, whose derivative of slices is slow
        first, last = batch_sizes[0], batch_sizes[-1]
        found: Arrays = rows.split(first if 0 < first == last else batch_sizes)
        return found
    return [rows[of_step, ...] for of_step in steps(batch_sizes)]


def parts(batch_sizes: Sizes, rows: int) -> Iterator[tuple[int, int, slice]]:
    """First step, end and rows of some steps at a time, from the last step on.

    They have at most so many rows, or are one step.
    """
    ends = [0, *itertools.accumulate(batch_sizes)]
    end = len(batch_sizes)
    while end:
        first = min(bisect.bisect_left(ends, ends[end] - rows), end - 1)
        yield first, end, slice(ends[first], ends[end])
        end = first


def ends(batch_sizes: Sizes) -> list[int]:
    """Row of the last step of each sequence."""
    going_on = *batch_sizes[1:], 0
    of_steps = zip(
        itertools.accumulate(batch_sizes), batch_sizes, going_on, strict=True
    )
    return [
        row
        for end, size, later in reversed([*of_steps])
        for row in range(end - size + later, end)
    ]


def before(states: Array, first: Array, batch_sizes: Sizes) -> Array:
    """Rows of the states that each step began with."""
    parts = [first]
    for of_step, alive in zip(steps(batch_sizes), batch_sizes[1:], strict=False):
        parts.append(states[of_step.start : of_step.start + alive, :])
    return array_namespace(states).concat(parts)


def as_rows(x: Array, *values: Array) -> list[Array]:
    """Rows of values that have the leading axes of x."""
    axes = x.ndim - 1
    return [value.reshape((-1, *value.shape[axes:])) for value in values]


def like_steps(x: Array, *rows: Array) -> list[Array]:
    """Rows with the leading axes of x again."""
    return [value.reshape((*x.shape[:-1], *value.shape[1:])) for value in rows]


def complete(parameters: Any) -> Any:
    """Put 1 for a gain and 0 for a bias that was left out."""
    w_h = parameters.w_h
    rows, units = w_h.shape
    like = {"dtype": w_h.dtype, "device": device(w_h)}
    full = {}
    for name, value in parameters._asdict().items():
        if value is None:
            size, number = units if name.endswith("_c") else rows, "gamma" in name
            full[name] = array_namespace(w_h).full((size,), float(number), **like)
    return parameters._replace(**full)


# --- what comes in is checked here, once ----------------------------------------------


def check_inputs(
    x: Array,
    parameters: Any,
    kind: Any,
    batch_sizes: Sequence[int] | None = None,
    **states: Array | None,
) -> tuple[list[Array], Sizes]:
    """Check what goes into a cell; return states, 0 for None, and batch sizes."""
    if not isinstance(parameters, kind):
        raise TypeError(
            f"parameters must be {kind.__name__}, got {type(parameters).__name__}; "
            f"build {kind.__name__}(w_x=..., w_h=...)."
        )
    sizes = checked_sizes(x, batch_sizes)
    w_h = parameters.w_h
    check_float_array("w_h", w_h)
    if w_h.ndim != 2 or w_h.shape[1] == 0:
        raise ValueError(
            "w_h must have two axes, the second with the H >= 1 units, got shape "
            f"{tuple(w_h.shape)}."
        )
    units = w_h.shape[1]
    lengths = {"N": sizes[0], "D": x.shape[-1], "H": units, "4H": 4 * units}
    every = "4H" if "c_0" in states else "H"
    axes_of = {"w_x": (every, "D"), "w_h": (every, "H")}
    axes_of |= dict.fromkeys(states, ("N", "H"))
    for name, value in (parameters._asdict() | states).items():
        if value is None and name != "w_x":
            continue
        check_float_array(name, value)
        check_same_kind(name, value, "x", x)
        check_same_dtype(name, value, "x", x)
        axes = axes_of.get(name, ("H" if name.endswith("_c") else every,))
        shape = tuple(lengths[axis] for axis in axes)
        if tuple(value.shape) != shape:
            meaning = ", ".join(axes) + ("," if len(axes) == 1 else "")
            raise ValueError(
                f"{name} must have shape ({meaning}) = {shape}, got "
                f"{tuple(value.shape)}; w_h has H columns, x has D features."
            )
    zeros = array_namespace(x).zeros((sizes[0], units), dtype=x.dtype, device=device(x))
    return [zeros if value is None else value for value in states.values()], sizes


def checked_sizes(x: Array, batch_sizes: Sequence[int] | None) -> Sizes:
    """Check x; return how many sequences are alive at each of its steps."""
    check_float_array("x", x)
    axes, cure = "(T, N, D)", "a single sequence is x[:, None, :]"
    if batch_sizes is not None:
        axes, cure = "(M, D)", "with batch_sizes the steps come one after the other"
    if x.ndim != axes.count(",") + 1:
        raise ValueError(f"x must have shape {axes}, got {tuple(x.shape)}; {cure}.")
    if batch_sizes is None:
        sizes: Sizes = (x.shape[1],) * x.shape[0]
    else:
        try:
            sizes = tuple(map(operator.index, batch_sizes))
        except TypeError:
            raise TypeError(
                f"batch_sizes must be a sequence of whole numbers, got {batch_sizes!r};"
                " the steps at which each sequence ends are counted."
            ) from None
        if sizes != tuple(sorted(sizes, reverse=True)) or min((*sizes, 1)) < 1:
            raise ValueError(
                f"batch_sizes must not grow and be at least 1, got {sizes}; sort the "
                "sequences by length, the longest first."
            )
        if sum(sizes) != x.shape[0]:
            raise ValueError(
                f"batch_sizes must add to the rows of x, {x.shape[0]}, got {sizes}, "
                f"which adds to {sum(sizes)}; count the sequences alive at each step."
            )
    if not sizes or x.shape[-1] == 0:
        raise ValueError(
            "x must hold at least one step and at least one feature, got shape "
            f"{tuple(x.shape)}; leave empty sequences out."
        )
    return sizes


def as_step(x_t: Array) -> Array:
    """Return one step as a sequence; refuse what has no row for each example."""
    check_float_array("x_t", x_t)
    if x_t.ndim != 2:
        raise ValueError(
            f"x_t must have shape (N, D), got {tuple(x_t.shape)}; a single example is "
            "x_t[None, :]."
        )
    return x_t[None, ...]


def check_gradients(
    cache: Any, kind: Any, dl_dh: Array, **last: Array | None
) -> list[Array]:
    """Check what goes into a backward pass; return the last gradients, 0 for None."""
    if not isinstance(cache, kind):
        raise ValueError(
            f"cache must be {kind.__name__}, got {type(cache).__name__}; take the "
            "backward pass of its cell."
        )
    for name, value in ({"dl_dh": dl_dh} | last).items():
        if name == "dl_dh" or value is not None:
            state = name.removeprefix("dl_d")
            like = cache.h if state == "h" else cache.h_0
            check_like(name, value, state, like)
            check_same_dtype(name, value, state, like)
    zeros = array_namespace(cache.h_0).zeros_like(cache.h_0)
    return [zeros if value is None else value for value in last.values()]


def check_same_dtype(name: str, a: Array, other: str, b: Array) -> None:
    """Refuse two arrays of different dtype, before promotion hides it."""
    if a.dtype != b.dtype:
        raise TypeError(
            f"{name} must have the dtype of {other}, {b.dtype}, got {a.dtype}; convert "
            "one of them."
        )
