"""A copy of a recurrent layer with one interface, whatever its own is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, evaluating, of_the_layer
from normbook.checks.claim import DoesNotApply
from normbook.checks.copies import copy_of
from normbook.checks.recurrent.forms import takes_states
from normbook.checks.registration import plain_tensors

STEPS, EXAMPLES = 6, 5

# In float64 rounding stays below it.
EXACT = 1e-9


class Probe(NamedTuple):
    """A copy of the layer with one interface: time first, states (N, H)."""

    layer: nn.Module
    given: nn.Module  # the layer itself, as the user gave it
    eps: float | None
    sizes: tuple[int, int, int]  # T, N, D
    is_cell: bool
    is_batch_first: bool
    stacked: int | None  # L of states (L, N, H), None for states (N, H)
    units: tuple[int, int]  # features of h and of c
    generator: torch.Generator
    misled: bool | None = None  # what batch_first says, where the layout is the other
    leaves_turned: bool = False  # x and the output differ in which axis is the time
    kept: tuple[float, float] = (0.0, 0.0)  # shares of the old h and c in the new
    takes_states: bool = True
    is_batched: bool = False  # in training its statistics are those of the batch

    def inputs_of_the_layer(self, examples: int | None = None) -> tuple[Tensor, ...]:
        """Draw x and states as the layer itself takes them."""
        steps, n, features = self.sizes
        n = examples or n
        x = self.draw(n, features) if self.is_cell else self.draw(steps, n, features)
        h, c = self.states(n)
        if self.stacked is not None:
            h, c = (self.draw(self.stacked, *s.shape) for s in (h, c))
        return (x if self.is_cell else self.turned(x)), h, c

    @property
    def is_single(self) -> bool:
        """Return whether it is one layer of one direction."""
        return self.stacked in (None, 1)

    def draw(self, *shape: int) -> Tensor:
        """Return standard normal numbers, others at each call."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def states(self, examples: int) -> tuple[Tensor, Tensor]:
        """Return h and c for some examples."""
        h, c = (self.draw(examples, units) for units in self.units)
        return h, c

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw x (T, N, D), h and c."""
        return (self.draw(*self.sizes), *self.states(self.sizes[1]))

    def point(self, examples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw x (N, D), h and c of one step."""
        return (self.draw(examples, self.sizes[2]), *self.states(examples))

    def with_another_end(self, x: Tensor) -> Tensor:
        """Return x, of which the last step is drawn anew."""
        return torch.cat([x[:-1], self.draw(*x[-1:].shape)])

    def run(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x (T, N, D); all layers begin with h and c of shape (N, H)."""
        if not self.takes_states:
            out, *last = self.run_stack(x)
            h, c = (s if s.ndim == 2 else s[0] for s in last)
            return out, h, c
        if self.is_cell:
            outputs = []
            with of_the_layer():
                for x_t in x:
                    h, c = self.layer(x_t.clone(), (h.clone(), c.clone()))
                    outputs.append(h)
            return torch.stack(outputs), h, c
        if self.stacked is not None:
            h, c = (s.expand(self.stacked, *s.shape).contiguous() for s in (h, c))
        out, h, c = self.run_stack(x, (h, c))
        return (out, h, c) if self.stacked is None else (out, h[0], c[0])

    def run_stack(self, x: Tensor, *states: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x (T, N, D), from states as the layer takes them, or from none."""
        # What a layer writes into is told by a claim of its own.
        given = ([s.clone() for s in pair] for pair in states)
        with of_the_layer():
            out, (h, c) = self.layer(self.turned(x).clone(), *map(tuple, given))
            return self.steps_first(out), h, c

    def steps_first(self, out: Tensor) -> Tensor:
        """Return outputs with the time first."""
        is_turned = self.leaves_turned != self.is_batch_first
        return out.transpose(0, 1) if is_turned else out

    def turned(self, x: Tensor) -> Tensor:
        """Exchange time and batch, where the layer has the batch first."""
        return x.transpose(0, 1) if self.is_batch_first else x

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Run the first layer one step on; what is kept of h and c is taken out."""
        _, *made = self.run(x[None], h, c)
        h_1, c_1 = (
            (new - kept * old) / (1 - kept) if kept else new
            for new, old, kept in zip(made, (h, c), self.kept, strict=True)
        )
        return h_1, c_1

    def forget_gate(self, x: Tensor, h: Tensor) -> Tensor:
        """Return what of c is in c_1, which is linear in it."""
        zeros = x.new_zeros(len(x), self.units[1])
        return self.step(x, h, zeros + 1)[1] - self.step(x, h, zeros)[1]

    def change_by_the_first(self) -> float:
        """Return how another first example, in input and states, changes the others."""
        x, h, c = self.inputs()
        signs = torch.ones_like(x[0, :, :1])
        signs[0] = -1
        before, after = (self.run(s * x, s * h, s * c)[0] for s in (1, signs))
        return relative_change(before[:, 1:], after[:, 1:])

    def is_batch_norm(self) -> bool:
        """Return whether examples are apart in evaluation alone."""
        if not self.layer.training or self.change_by_the_first() < EXACT:
            return self.is_batched
        other = self._replace(layer=evaluating(copy_of(self.layer)))
        return other.change_by_the_first() < EXACT

    def early_change(
        self, states: Sequence[Tensor], x: Tensor, other: Tensor, why: str
    ) -> float:
        """Return how two inputs change h at all steps but the last.

        Where every part of the output looks ahead, ``why`` says why that is no fault.
        """
        last = self.sizes[0] - 1
        before, after = (self.run(v, *states)[0][:last] for v in (x, other))
        units = self.units[0]
        # With more layers each direction sees both below it.
        if before.shape[-1] != units and self.stacked != 2:
            raise DoesNotApply(why)
        return relative_change(before[..., :units], after[..., :units])


def probe_of(layer: nn.Module, sizes: Sequence[int] | None, eps: float | None) -> Probe:
    """Find out how a layer is called, and make a copy that is called so."""
    is_batch_first = bool(getattr(layer, "batch_first", False))
    if sizes is None:
        features = getattr(layer, "input_size", None)
        if not isinstance(features, int):
            raise ValueError(
                "the shape of one input is needed, as the layer has no input_size; "
                "pass (T, N, D)."
            )
        pair = (EXAMPLES, STEPS) if is_batch_first else (STEPS, EXAMPLES)
        sizes = (*pair, features)
    if len(sizes) not in (2, 3):
        raise ValueError(
            "the shape of one input must be (T, N, D), or (N, D) for a cell, got "
            f"{tuple(sizes)}; leave no axis out."
        )
    shape = (*(max(size, 2) for size in sizes[:-1]), sizes[-1])
    twin = copy_of(layer).train().requires_grad_()
    set_dropout(twin, 0.0)
    is_cell, (h, c) = _call(twin, shape)
    steps, examples = shape[:2] if len(shape) == 3 else (STEPS, shape[0])
    n = h.shape[-2]
    said = getattr(layer, "batch_first", None)
    if not is_cell and steps != examples and n in (steps, examples):
        is_batch_first = n == steps  # whatever batch_first says
    if is_batch_first:
        steps, examples = examples, steps
    probe = Probe(
        twin.double(),  # rounding would hide slips
        layer,
        getattr(layer, "eps", None) if eps is None else eps,
        (steps, examples, shape[-1]),
        is_cell,
        is_batch_first,
        len(h) if h.ndim == 3 else None,
        (h.shape[-1], c.shape[-1]),
        torch.Generator().manual_seed(0),
        None if is_cell or said is None or said == is_batch_first else bool(said),
        takes_states=takes_states(layer),
    )
    with torch.no_grad():
        for parameter in twin.parameters():
            if (
                parameter.ndim > 1
                and min(parameter.shape) > 1
                and not is_affine(parameter)
            ):
                columns = parameter.shape[1] if parameter.ndim == 2 else len(parameter)
                parameter.copy_(probe.draw(*parameter.shape) * columns**-0.5)
        inputs = probe.inputs()
        try:
            first = probe.run(*inputs)[0]
        except LayerError as error:
            raise TypeError(_why_it_fails(probe, twin, inputs, error)) from error
        if first.shape[:2] == (examples, steps) != (steps, examples):
            probe = probe._replace(leaves_turned=True)
        if not torch.equal(first, probe.run(*inputs)[0]):
            evaluating(twin)
    return probe


def _why_it_fails(
    probe: Probe, twin: nn.Module, inputs: tuple[Tensor, ...], error: LayerError
) -> str:
    """Say whether it is the dtype, or the shapes, that a layer does not take."""
    single = probe._replace(layer=copy_of(twin).float())
    try:
        single.run(*(value.float() for value in inputs))
    except LayerError:
        of = [tuple(value.shape) for value in inputs]
        layout = "(N, T, D)" if probe.is_batch_first else "(T, N, D)"
        x = (of[0][1], of[0][0], of[0][2]) if probe.is_batch_first else of[0]
        states = f"{of[1]} and {of[2]}"
        if probe.stacked is not None:
            states += (
                f", stacked {probe.stacked} times along axis 0, as it returns them"
            )
        return (
            f"layer must take an input {layout} with states, x of shape {x} and h_0, "
            f"c_0 of shape {states}, got {error}; make it take the states that it "
            "returns."
        )
    names = ", ".join(plain_tensors(twin)[:6])
    cure = f"register as buffers: {names}" if names else ""
    return (
        f"layer must run in float64, got {error}, and it runs in float32; "
        f"{cure or 'make constants with the dtype of the input'}."
    )


def is_affine(parameter: Tensor) -> bool:
    """Return whether all is one number, as of a gain or bias (4, H)."""
    return len(parameter) == 4 and bool((parameter == parameter.flatten()[0]).all())


def set_dropout(layer: nn.Module, share: float, *, also_none: bool = True) -> bool:
    """Set all dropout, as nn.LSTM has it too; return whether there is any."""
    is_there = False
    for module in layer.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p, is_there = share, True
        old = getattr(module, "dropout", None)
        if isinstance(old, float) and (old or also_none):
            vars(module)["dropout"], is_there = share, True
    return is_there


def _call(layer: nn.Module, shape: Sequence[int]) -> tuple[bool, tuple[Tensor, Tensor]]:
    """Find out how the layer is called: whether it is a cell, and its states."""
    like = next(layer.parameters(), torch.zeros(()))
    ways: list[tuple[Any, ...]] = []
    units = getattr(layer, "hidden_size", None)
    for is_cell in (False, True) if len(shape) == 3 else (True,):
        x = like.new_zeros(shape[-2:] if is_cell else shape)
        ways.append((x,))
        if isinstance(units, int):
            n = shape[0] if getattr(layer, "batch_first", False) else shape[-2]
            zeros = like.new_zeros(n, units)
            states = [zeros] if is_cell else [zeros[None], zeros]
            ways += [(x, (zero, zero)) for zero in states]
    problems = []
    for arguments in ways:
        try:
            with torch.no_grad():
                made = layer(*arguments)
        except Exception as error:  # noqa: BLE001 - the next way may fit
            problems.append(f"{type(error).__name__}: {error}")
            continue
        match made:
            case (Tensor(), (Tensor() as h, Tensor() as c)) if arguments[0].ndim == 3:
                return False, (h, c)
            case (Tensor() as h, Tensor() as c) if arguments[0].ndim == 2:
                if h.shape == c.shape:
                    return True, (h, c)
        values = made if isinstance(made, tuple) else (made,)
        problems.append(f"({', '.join(type(v).__name__ for v in values)})")
    raise TypeError(
        "layer must be called as torch.nn.LSTM, h, (h_last, c_last) = layer(x, (h_0, "
        "c_0)), or as torch.nn.LSTMCell, h, c = layer(x_t, (h, c)), got "
        f"{problems[0]} for an input of shape {tuple(shape)}; check the shape, or wrap "
        "the layer."
    )


def relative_change(
    before: Tensor, after: Tensor, centre: Tensor | float = 0.0
) -> float:
    """Return the size of a change, as a share of what is there; 0 if nothing is."""
    size = float((before - centre).norm())
    moved = float((after - before).norm())
    return moved / size if size else moved
