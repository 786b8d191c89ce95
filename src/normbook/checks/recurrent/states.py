"""What the states are that a layer returns, where they are not those of its end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normbook.checks.claim import named
from normbook.checks.copies import copy_of
from normbook.checks.recurrent.probe import EXACT, Probe, relative_change
from normbook.checks.recurrent.terms import layer_norm


def what_it_is(
    probe: Probe, given: tuple[Tensor, Tensor, Tensor], made: tuple[Tensor, ...]
) -> str:
    """Say what the last output is of the states that are returned."""
    x, h, c = given
    out, h_last, c_last = made
    how = {
        "it is the state c": c_last,
        "it is tanh(c)": c_last.tanh(),
        "it is h normalized once more": layer_norm(h_last),
        "it is c normalized": layer_norm(c_last),
        "it is one step late, the state before the last step": (
            probe.run(x[:-1], h, c)[1]
        ),
    }
    if x.shape == out.shape:
        how["it is x + h, a residual"] = x[-1] + h_last
    if text := named(how, lambda v: relative_change(out[-1], v) < 1e-3).rstrip(": "):
        return text
    if relative_change(layer_norm(out[-1]), h_last) < 1e-3:
        return "it is normalized once more for the state that is returned"
    for t, value in enumerate(out[:-1]):
        if relative_change(value, h_last) < EXACT:
            return f"the state that is returned is the output of step {t}, from 0"
    return ""


def early_state(probe: Probe, change: float) -> str:
    """Say that a state of another step is returned, or one that is rounded."""
    if change < 1e-5:
        return f"The states are rounded, by {change:.0e}, as to float32."
    x, h, c = probe.inputs()
    _, *last = probe.run(x, h, c)
    for name, value, place in (("h", last[0], 1), ("c", last[1], 2)):
        for t in range(1, len(x)):
            if relative_change(probe.run(x[:t], h, c)[place], value) < EXACT:
                return f"The {name} that is returned is that of step {t - 1}, from 0."
    out, *_ = probe.run(x[:2], h, c)
    h_1, c_1 = probe.run(x[:1], h, c)[1:]
    for text, states in (
        ("c is not carried: each step begins with the c_0 that is given.", (h_1, c)),
        ("h is not carried: each step begins with the h_0 that is given.", (h, c_1)),
    ):
        if relative_change(out[1], probe.run(x[1:2], *states)[0][0]) < EXACT:
            return text
    return ""


BOTH_EXCHANGED = "h and c are exchanged in what is given and in what is returned."


def exchanged(probe: Probe) -> str:
    """Look which state that is returned is linear in which that is given."""
    if probe.units[0] != probe.units[1]:
        return ""
    n = 2 * probe.units[1]
    x, *states = probe.point(n)

    def is_linear(taken: int, returned: int) -> bool:
        outs = []
        for k in (0, 1, 2):
            given = [s * (k if j == taken else 1) for j, s in enumerate(states)]
            outs.append(probe.step(x, given[0], given[1])[returned])
        once, twice = outs[1] - outs[0], outs[2] - outs[0]
        return bool(once.any()) and relative_change(2 * once, twice) < EXACT

    known = {
        "": (1, 1),
        "h and c are exchanged in what is returned.": (1, 0),
        "h and c are exchanged in what is given.": (0, 1),
        BOTH_EXCHANGED: (0, 0),
    }
    return next((text for text, pair in known.items() if is_linear(*pair)), "")


def with_h_first(probe: Probe) -> Probe:
    """Return a probe of a layer with states (c, h) that takes and returns (h, c)."""

    def turned(layer: nn.Module) -> nn.Module:
        own: Any = type(layer)

        def forward(self: Any, x: Tensor, *states: Any) -> Any:
            first, last = own.forward(self, x, *(pair[::-1] for pair in states))
            return (last, first) if probe.is_cell else (first, last[::-1])

        layer = copy_of(layer)
        layer.__class__ = type(own.__name__, (own,), {"forward": forward})
        vars(layer)["_takes_states"] = True
        return layer

    return probe._replace(layer=turned(probe.layer), given=turned(probe.given))


def unused_states(probe: Probe) -> str:
    """Name a state that is not used, given or carried."""
    x, h, c = probe.inputs()
    before = torch.cat(probe.run(x[:1], h, c)[1:], -1)
    unused = [
        name
        for name, states in (("h_0", (-h, c)), ("c_0", (h, -c)))
        if torch.equal(before, torch.cat(probe.run(x[:1], *states)[1:], -1))
    ]
    if unused:
        return (
            f"{' and '.join(unused)} that {'are' if unused[1:] else 'is'} given, "
            "changes nothing: it is not used."
        )
    moved = torch.cat([-x[:1], x[1:]])
    if torch.equal(probe.run(x, h, c)[0][1:], probe.run(moved, h, c)[0][1:]):
        return (
            "The first x changes no later output: each step begins with the states "
            "that are given, none is carried on."
        )
    return ""


def turned_batch(probe: Probe) -> str:
    """Say that the first example changes the last alone."""
    x, *states = probe.inputs()
    moved = [value.clone() for value in (x, *states)]
    for value in moved:
        value[..., 0, :] += 1
    before, after = (probe.run(*v)[0] for v in ((x, *states), moved))
    changed = [k for k in range(1, x.shape[1]) if not before[:, k].equal(after[:, k])]
    if changed != [x.shape[1] - 1]:
        return ""
    return (
        f" It changes that of example {changed[0]}, the last, alone: the batch is in "
        "reversed order somewhere, as by flip of the wrong axis."
    )


def cut_by_memory(probe: Probe) -> str:
    """Say that examples are apart once time and batch are exchanged by reshape."""
    x, *states = probe.inputs()
    given = probe.turned(x).contiguous()
    rows, columns, features = given.shape
    batch = int(probe.is_batch_first)  # of x as it is reshaped
    moved = given.reshape(columns, rows, features).clone()
    moved.select(batch, 0).neg_()
    before, after = (
        probe.run(probe.turned(v), *states)[0]
        for v in (given, moved.reshape(rows, columns, features))
    )
    cut = [
        probe.turned(out).reshape(columns, rows, -1).narrow(batch, 1, x.shape[1] - 1)
        for out in (before, after)
    ]
    is_apart = relative_change(before[:, 1:], after[:, 1:]) < EXACT
    if not is_apart and not relative_change(*cut) < EXACT:
        return ""
    return (
        " They are apart where x is cut in the order of memory: time and batch are "
        "exchanged by reshape or view, which mixes them."
    )


def goes_from_example_to_example(probe: Probe) -> bool:
    """Return whether the last example changes no other."""
    x, *states = probe.inputs()
    moved = x.clone()
    moved[:, -1] += 1
    before, after = (probe.run(v, *states)[0][:, :-1] for v in (x, moved))
    return relative_change(before, after) < EXACT
