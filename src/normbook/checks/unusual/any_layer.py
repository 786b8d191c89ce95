"""What must hold of any layer, for those that are neither norm nor LSTM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, called, evaluating, of_the_layer, run
from normbook.checks.copies import copy_of
from normbook.checks.layer.recognition import further
from normbook.checks.report import Finding
from normbook.checks.tensors import draw, largest

EXACT = 1e-6
STEP = 1e-6  # of a central difference in float64; over it few ReLU have a kink


def besides(layer: nn.Module, shape: tuple[int, ...] | None, way: Any) -> str:
    """Say what else is wrong with a layer that no other test is made for."""
    if shape is None:
        return ""
    with called(way):
        made, x = _made(layer, shape)
        found = [
            *_told(made, x, modes, _overwrites, _differs, _forgets, _gradient, _states)
        ]
    return f" But {'; '.join(found)}." if found else ""


def one_state(layer: nn.Module, shape: tuple[int, ...]) -> list[Finding]:
    """Test the state of a recurrent layer that has one, as a GRU."""
    try:
        text = _fault_of_state(*_made(layer, shape))
    except LayerError:
        return []
    name = "it begins with zeros, and goes on from the state that it returns"
    cure = "Begin with zeros where no state is given, and return the state as it is."
    return (
        [] if text is None else [Finding(name, not text, f"{text}." * bool(text), cure)]
    )


def _made(layer: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    """Return a copy and an input, in float64 if the layer can compute in it."""
    made, x = copy_of(layer).double(), draw(shape, 0, 1.0)
    try:
        run(copy_of(made), x.clone())
    except LayerError:
        return copy_of(layer), x.to(next(layer.parameters(), x).dtype)
    return made, x


def _told(
    layer: nn.Module, x: Tensor, *tests: Callable[[nn.Module, Tensor], str]
) -> Iterator[str]:
    for test in tests:
        text = ""
        with suppress(LayerError), of_the_layer():  # the refusal is told in any case
            text = test(copy_of(layer), x)
        if text:
            yield text


def _tensors(made: Any) -> list[Tensor]:
    """Return the floating-point tensors of an output, in order."""
    if isinstance(made, Tensor):
        return [made] if made.is_floating_point() else []
    parts = made.values() if isinstance(made, dict) else made
    is_held = isinstance(made, dict | list | tuple)
    return [t for part in parts for t in _tensors(part)] if is_held else []


def _change(first: Any, second: Any) -> float:
    pairs = [*zip(_tensors(first), _tensors(second), strict=True)]
    same = [(a, b) for a, b in pairs if a.shape == b.shape and a.numel()]
    return max((largest(a - b) / max(largest(a), EXACT) for a, b in same), default=0.0)


def _seeded(layer: nn.Module, x: Tensor) -> Any:
    torch.manual_seed(0)
    return run(layer, x.clone())


def _in_mode(layer: nn.Module, *, is_training: bool) -> nn.Module:
    layer = copy_of(layer)
    layer.train(is_training)  # which may return nothing
    return layer


def modes(layer: nn.Module, x: Tensor) -> str:
    """Say which mode returns no layer."""
    for name in ("train", "eval"):
        with of_the_layer():
            if getattr(layer, name)() is not layer:
                return f"{name}() returns no layer, so that a chain of calls ends there"
    return ""


def _overwrites(layer: nn.Module, x: Tensor) -> str:
    for is_recorded in (True, False):
        given = x.clone()
        with torch.set_grad_enabled(is_recorded):
            run(copy_of(layer), given)
        if not given.equal(x):
            return "it writes into its input, which others may still need"
    return ""


def _differs(layer: nn.Module, x: Tensor) -> str:
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    evaluating(layer)
    change = _change(run(layer, x.clone()), run(layer, x.clone()))
    held = dict(layer.named_parameters())
    moved = [n for n, p in before.items() if n in held and not held[n].equal(p)]
    if moved:
        return f"a call in evaluation overwrites {' and '.join(moved)}"
    if not change > EXACT:
        return ""
    return (
        f"after eval() two calls with one x differ by {change:.2g} of the largest "
        "output: something is drawn, or kept from call to call"
    )


def _forgets(layer: nn.Module, x: Tensor) -> str:
    fresh, trained = copy_of(layer), _in_mode(layer, is_training=True)
    _seeded(trained, x)
    with of_the_layer():
        fresh.load_state_dict(trained.state_dict())
    for mode in ("training", "evaluation"):
        is_training = mode == "training"
        both = [_in_mode(one, is_training=is_training) for one in (trained, fresh)]
        change = _change(*(_seeded(one, 2 * x) for one in both))
        if change > EXACT:
            return (
                f"loaded from its state_dict() it gives another output in {mode}, by "
                f"{change:.2g} of the largest: what it has become in training is not "
                "all in the state"
            )
    return ""


def _gradient(layer: nn.Module, x: Tensor) -> str:
    if x.dtype != torch.float64:
        return ""
    evaluating(layer)
    held = {"x": x.clone()} | dict(layer.named_parameters())
    w = [draw(tuple(y.shape), 5, 1.0) for y in _tensors(run(layer, x.clone()))]

    def loss() -> Tensor:
        made = _tensors(run(layer, held["x"]))
        return torch.stack([(a * b).sum() for a, b in zip(made, w, strict=True)]).sum()

    for value in held.values():
        value.requires_grad_()
    start = loss()
    has_graph = start.requires_grad
    slopes: list[Tensor | None] = [None] * len(held)
    if has_graph:
        slopes = [*torch.autograd.grad(start, [*held.values()], allow_unused=True)]
    wrong = []
    for (name, value), slope in zip(held.items(), slopes, strict=True):
        way = draw(tuple(value.shape), 6, 1.0)
        ends = []
        with torch.no_grad():
            for sign in (1, -2, 1):
                value += sign * STEP * way
                ends.append(loss())
        measured = float(ends[0] - ends[1]) / (2 * STEP)
        told = 0.0 if slope is None else float((slope * way).sum())
        if abs(told - measured) > 1e-3 * max(abs(measured), abs(told), 1e-3):
            wrong.append(f"{name}: {told:.4g} for {measured:.4g}")
    if not wrong:
        return ""
    if not has_graph:
        return "its output has no derivative: it is detached, or made without a graph"
    return (
        "along a random direction its gradients are not what central differences of "
        f"the output give ({', '.join(wrong)})"
    )


def _states(layer: nn.Module, x: Tensor) -> str:
    return _fault_of_state(layer, x) or ""


def _fault_of_state(layer: nn.Module, x: Tensor) -> str | None:
    """Compare the start without a state, two pieces, and the state that is returned.

    "" where all is right; None where the layer has no state of this form.
    """
    evaluating(layer)
    made = run(layer, x.clone())
    if not isinstance(made, tuple) or len(made) != 2 or x.dim() != 3:
        return None
    out, state = made
    states = _tensors(state)
    is_run = isinstance(out, Tensor) and out.shape[:2] == x.shape[:2]
    if not is_run or not states or not further(layer) or x.shape[0] == x.shape[1]:
        return None
    examples = states[0].shape[-2] if states[0].dim() > 1 else 0
    if examples not in x.shape[:2]:
        return None
    time = 1 - x.shape[:2].index(examples)

    def begun(x: Tensor, state: Any) -> Any:
        with of_the_layer():
            return layer(x, state)

    zeros = begun(x, _map(state, torch.zeros_like))[0]
    if (change := _change(out, zeros)) > EXACT:
        return (
            f"without a state its output differs by {change:.2g} of the largest from "
            "that with a state of zeros: its first step, without one, is another"
        )
    if out.shape[-1] != states[0].shape[-1]:  # two directions, say
        return ""
    early, late = x.tensor_split([x.shape[time] // 2], time)
    first, middle = begun(early, _map(state, torch.zeros_like))
    pieces = torch.cat([first, begun(late, middle)[0]], time)
    if (change := _change(out, pieces)) > EXACT:
        return (
            "in two pieces, the second begun with the state of the first, its output "
            f"differs by {change:.2g} of the largest: what it returns is not its state"
        )
    last = out.select(time, -1)
    rows = [row for s in states for row in s.reshape(-1, *last.shape)]
    if min(_change(last, row) for row in rows) > EXACT:
        return "no state that it returns is its last output"
    return ""


def _map(state: Any, of: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(state, Tensor):
        return of(state)
    return type(state)(_map(part, of) for part in state)
