r"""Tests for a recurrent layer that should be the layer-normalized LSTM.

The yardstick is the cell of :mod:`normbook.layer_norm_lstm`, by behaviour alone. The
key: :math:`c_1` is linear in :math:`c_0`, so two runs of one step give the forget gate
f of every unit, and :math:`\log f/(1-f)` is the f part of :math:`a_1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, evaluating, of_the_layer
from normbook.checks.claim import DoesNotApply, Fault, NotTested, claim
from normbook.checks.copies import copy_of
from normbook.checks.recurrent_step import Step, step_fault
from normbook.checks.report import Finding

STEPS, EXAMPLES = 6, 5
RAW = "the carried state is c, not its normalized form"
NORMED = "what enters the gates is normalized"
TERMS = "W_h h and W_x x are normalized each on its own"
TOGETHER = "the 4H numbers of all gates are normalized together"
OUTPUT = "h sees the normalized c"
LATER = "h does not depend on later steps"
OTHERS = "h does not depend on the other examples"
PADDING = "h does not depend on padding behind the sequence"
BIASES = "no bias is there twice"
REDUNDANT = "redundant biases"
CELL = "a step is that of a known cell"
CALLS = "a second call begins with zeros, as the first"
PIECES = "a sequence in two pieces gives what it gives in one"
LAYOUTS = "states of either shape are the same states"
UPPER = "the layers above the first, and the other direction"
SAME = "evaluation drops nothing"
REST = "half precision, packed sequences and dropout"
GRADIENTS = "the gradients are those of the outputs"
ZEROS = "a state of zeros gives finite outputs and gradients"

CURE_ONE = "Check one with a single layer and direction, too."
INSIDE_THE_LOOP = (
    "Take the statistics of one example at one step, inside the loop over time."
)

# In float64 rounding stays below EXACT. A normalization forgets the scale of what it
# takes up to eps, and up to a bias that is added inside it: INVARIANT lies far above
# that and far below what another scale does without a normalization, about 0.5.
EXACT = 1e-9
INVARIANT = 0.15

# Central differences of fourth order, in steps: they err by 1e-8 or less.
STEP = 1e-4
DIFFERENCES = ((1, 2 / 3), (-1, -2 / 3), (2, -1 / 12), (-2, 1 / 12))
SLOPES = 1e-5


def recurrent_findings(
    layer: nn.Module, sizes: Sequence[int] | None = None, eps: float | None = None
) -> list[Finding]:
    r"""Test a layer with the interface of ``nn.LSTM`` or ``nn.LSTMCell``.

    Of several layers and directions the gates of the first are looked at. ``sizes`` is
    the shape of one input as the layer takes it; by default D is ``layer.input_size``.
    Fewer than two steps or examples are taken as two. ``eps``, by default that of the
    layer, serves a reason only.

    All runs are those of a copy, in float64 and training mode, without dropout; in
    evaluation mode, if something else in it is random. Its matrices are drawn anew, so
    that weights of 0, or saturated gates, hide nothing.
    """
    with torch.random.fork_rng(devices=[]):
        probe = _probe(layer, sizes, eps)
        with torch.no_grad():
            others, pieces = _other_examples(probe), _pieces(probe)
            raw = _carried(probe)
            if (
                pieces.passed is False and "raises" not in pieces.reason
            ):  # no state is what it seems
                why = "the states that are given or returned are not the states"
                raw = Finding(RAW, None, why, "Mend that first.")
            gates = _gates(probe, raw, others)
            rest = [test(probe) for test in (_later_steps, _padding, _calls)]
            rest += [pieces, _layouts(probe)]
            step = _step(probe) if raw.passed and others.passed else None
            upper, same = _upper(probe), _same_in_evaluation(layer, probe)
        why = "the state is not carried as it is, or the examples not apart"
        step = step or Finding(CELL, None, why, "Mend that first.")
        last = (_redundant_biases, _gradients, _zeros)
        rest += [*(test(probe) for test in last), upper, same, _rest(probe)]
        return [raw, *gates, step, others, *rest]


class _Probe(NamedTuple):
    """A copy of the layer with one interface: time first, states (N, H)."""

    layer: nn.Module
    eps: float | None
    sizes: tuple[int, int, int]  # T, N, D
    is_cell: bool
    is_batch_first: bool
    stacked: int | None  # L of states (L, N, H), None for states (N, H)
    units: tuple[int, int]  # features of h and of c
    generator: torch.Generator

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def states(self, examples: int) -> tuple[Tensor, Tensor]:
        h, c = (self.draw(examples, units) for units in self.units)
        return h, c

    def run(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x (T, N, D); all layers begin with h and c of shape (N, H)."""
        if self.is_cell:
            outputs = []
            with of_the_layer():
                for x_t in x:
                    h, c = self.layer(x_t, (h, c))
                    outputs.append(h)
            return torch.stack(outputs), h, c
        if self.stacked is not None:
            h, c = (s.expand(self.stacked, *s.shape).contiguous() for s in (h, c))
        x = x.transpose(0, 1) if self.is_batch_first else x
        with of_the_layer():
            out, (h, c) = self.layer(x, (h, c))
        out = out.transpose(0, 1) if self.is_batch_first else out
        return (out, h, c) if self.stacked is None else (out, h[0], c[0])

    def start(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x without states; not every layer can."""
        x = x.transpose(0, 1) if self.is_batch_first else x
        try:
            out, (h, c) = self.layer(x)
        except Exception as error:
            raise DoesNotApply("the layer must be given states") from error
        out = out.transpose(0, 1) if self.is_batch_first else out
        return (out, h, c) if self.stacked is None else (out, h[0], c[0])

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Run the first layer one step on."""
        _, h, c = self.run(x[None], h, c)
        return h, c

    def early_change(
        self, states: tuple[Tensor, Tensor], x: Tensor, other: Tensor, why: str
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
        return _change(before[..., :units], after[..., :units])


def _probe(layer: nn.Module, sizes: Sequence[int] | None, eps: float | None) -> _Probe:
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
    twin = _twin(layer)
    is_cell, (h, c) = _call(twin, shape)
    steps, examples = shape[:2] if len(shape) == 3 else (STEPS, shape[0])
    n = h.shape[-2]
    if not is_cell and not hasattr(layer, "batch_first"):
        is_batch_first = n == steps != examples
    if is_batch_first:
        steps, examples = examples, steps
    probe = _Probe(
        twin.double(),  # rounding would hide slips
        getattr(layer, "eps", None) if eps is None else eps,
        (steps, examples, shape[-1]),
        is_cell,
        is_batch_first,
        len(h) if h.ndim == 3 else None,
        (h.shape[-1], c.shape[-1]),
        torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.ndim == 2 and min(parameter.shape) > 1:
                columns = parameter.shape[1]
                parameter.copy_(probe.draw(*parameter.shape) * columns**-0.5)
        inputs = probe.draw(*probe.sizes), *probe.states(examples)
        try:
            first = probe.run(*inputs)[0]
        except LayerError as error:
            raise TypeError(
                f"layer must run in float64, got {error}; make constants with the "
                "dtype of the input."
            ) from error
        if not torch.equal(first, probe.run(*inputs)[0]):
            evaluating(twin)
    return probe


def _twin(layer: nn.Module) -> nn.Module:
    """Copy the layer, in training mode and without dropout."""
    twin = copy_of(layer).train().requires_grad_()
    for module in twin.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            vars(module)["dropout"] = 0.0  # as in nn.LSTM
    return twin


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


@claim(RAW)
def _carried(probe: _Probe) -> Fault | str:
    n = 2 * probe.units[1]
    x, (h, c) = probe.draw(n, probe.sizes[2]), probe.states(n)
    c_1 = {k: probe.step(x, h, k * c)[1] for k in (0, 1, 2, 10, 100)}
    bend = _change(2 * (c_1[1] - c_1[0]), c_1[2] - c_1[0], c_1[0])
    if bend < EXACT:
        return f"c_1 is linear in c_0, to {bend:.0e}."
    small, large = (c_1[k].std(1, correction=0) for k in (10, 100))
    if _change(small, large) < 0.05:
        mean = c_1[100].mean(1).abs().max()
        reason = (
            "A c_0 with a deviation of 10 leaves a c_1 with a deviation of "
            f"{_span(small)} over the units of an example, one of 100 leaves "
            f"{_span(large)}; with c_1 = f c_0 + i g the second is ten times the "
            "first. The mean is at most "
            f"{mean:.2f}. This is LN(c) stored as the state: nothing in it can grow."
        )
    else:
        reason = (
            f"c_1 = f c_0 + i g is linear in c_0; here it is not: when c_0 is doubled, "
            f"what it adds to c_1 misses the double by {100 * bend:.2g} %."
        )
    return Fault(reason, "Normalize c only on its way to h, and carry c itself.")


def _gates(probe: _Probe, raw: Finding, others: Finding) -> list[Finding]:
    """Test what the forget gate tells, of a layer that carries c itself."""
    if not (raw.passed and others.passed):
        why = "the statistics are those of several examples"
        if not raw.passed:
            why = "only a state that is carried as it is shows the gates"
        return [Finding(n, None, why) for n in (NORMED, TERMS, TOGETHER, OUTPUT)]
    n = 2 * max(probe.units) + 8
    x, (h, c) = probe.draw(n, probe.sizes[2]), probe.states(n)
    a = _logit(probe, 5 * x, 5 * h)
    by_x, by_h, by_both = (
        _change(a, _logit(probe, k * x, m * h), a.mean(0))
        for k, m in ((10, 5), (5, 10), (10, 10))
    )
    seen = (
        f"Of the pre-activations of f, another scale of x changes them by {by_x:.0%}, "
        f"of h changes them by {by_h:.0%}, of both together changes them by "
        f"{by_both:.0%}"
    )
    if min(max(by_x, by_h), by_both) < INVARIANT:
        normed, terms = (Finding(name, True, f"{seen}.") for name in (NORMED, TERMS))
        if max(by_x, by_h) >= INVARIANT:
            reason = (
                f"{seen}: it is the sum W_h h + W_x x that is normalized. A cell of "
                "its own right, but not that of Ba et al., equations 20 to 22: with "
                "the same weights it computes something else."
            )
            cure = "Give each term its own layer norm, or give the cell another name."
            terms = Finding(TERMS, False, reason, cure)
        together = _together(probe)
    else:
        rest = "no normalization was found"
        why = "nothing is normalized before the gates"
        for term, change in (("x", by_x), ("h", by_h)):
            if change < INVARIANT:
                rest = why = f"only W_{term} {term} is normalized"
        cure = "Put layer norm around W_h h and around W_x x."
        normed = Finding(NORMED, False, f"{seen}; {rest}.", cure)
        terms, together = (Finding(name, None, why) for name in (TERMS, TOGETHER))
    return [normed, terms, together, _output(probe, x, h, c)]


@claim(TOGETHER)
def _together(probe: _Probe) -> Fault | str:
    """Look for a weighted mean of the pre-activations of f that never moves.

    The H numbers of a gate that is normalized by itself sum to 0; with a gain they
    stay in a plane. The f part of 4H numbers normalized together fills the space.
    """
    n = 2 * max(probe.units) + 8
    x, (h, _) = probe.draw(1, probe.sizes[2]).expand(n, -1), probe.states(n)
    a = _logit(probe, x, h)
    _, spreads, directions = torch.linalg.svd(a - a.mean(0), full_matrices=False)
    if spreads[0] < EXACT:
        raise DoesNotApply("f does not depend on h_0")
    if float(spreads[-1] / spreads[0]) > 1e-7:
        return f"The mean of the f part is {_span(a.mean(1))} over {n} examples."
    weights = directions[-1]
    is_even = float(weights.std() / weights.mean().abs()) < EXACT
    mean = _rounded((a @ (weights / weights.sum())).mean())
    what = "mean" if is_even else "weighted mean (weights 1 / gain)"
    spread = f", and their deviation {_span(a.std(1, correction=0))}" if is_even else ""
    return Fault(
        f"The {what} over the units of the pre-activations of f is {mean} for each of "
        f"{n} examples{spread}. Each gate is normalized on its own, so no input "
        "can open or shut a whole gate; of 4H numbers normalized together the f part "
        "has a mean of its own in every example.",
        "Normalize the 4H numbers first and cut them into gates then.",
    )


def _output(probe: _Probe, x: Tensor, h: Tensor, c: Tensor) -> Finding:
    """Shift and stretch c_1 by the choice of c_0: its hat stays."""
    f = _forget(probe, x, h)
    before, c_1 = probe.step(x, h, c)
    rest = c_1 - f * c
    after, _ = probe.step(x, h, (3 * c_1 + 2 - rest) / f)
    change = _change(before, after)
    seen = f"From c_1 to 3 c_1 + 2, which has the same hat, h changes by {change:.1%}"
    if change < INVARIANT:
        return Finding(OUTPUT, True, f"{seen}.")
    cure = "Take h = o tanh(LN(c))."
    return Finding(OUTPUT, False, f"{seen}: c is not normalized there.", cure)


@claim(LATER)
def _later_steps(probe: _Probe) -> Fault | None:
    x, states = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    moved = torch.cat([x[:-1], probe.draw(*x[-1:].shape)])
    why = "each step sees all others in two directions"
    change = probe.early_change(states, x, moved, why)
    if change < EXACT:
        return None
    return Fault(
        f"Another x at the last step changes h at the steps before it by {change:.1%}; "
        "it must be 0. The statistics run over time as well.",
        INSIDE_THE_LOOP,
    )


@claim(PADDING)
def _padding(probe: _Probe) -> Fault | None:
    if probe.is_cell:
        raise DoesNotApply("a cell sees one step")
    x, states = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    padded = torch.cat([x[:-1], 0 * x[-1:]])
    why = "the other direction begins in the padding"
    change = probe.early_change(states, x[:-1], padded, why)
    if change < EXACT:
        return None
    return Fault(
        f"One step of zeros behind {len(x) - 1} steps changes h before it by "
        f"{change:.1%}; it must be 0. The padding has a part in the statistics: the "
        "answer for a sequence depends on the longest one in its batch.",
        INSIDE_THE_LOOP,
    )


@claim(CALLS)
def _calls(probe: _Probe) -> Fault | None:
    if probe.is_cell:
        raise DoesNotApply("a cell sees one step")
    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    first, second = probe.start(x)[0], probe.start(x)[0]
    change = _change(first, second)
    if change > EXACT:
        return Fault(
            f"A second call without states changes h by {change:.1%}: it goes on with "
            "the state in which the first one, another batch, ended.",
            "Begin with zeros where no states are given, and keep none on self.",
        )
    zeros = probe.run(x, 0 * h, 0 * c)[0]
    change = _change(zeros, first)
    if change < EXACT:
        return None
    return Fault(
        f"Without states h differs by {change:.1%} from h with states of zeros.",
        "Begin with zeros where no states are given.",
        "other start",
    )


@claim(PIECES)
def _pieces(probe: _Probe) -> Fault | None:
    if probe.stacked not in (None, 1):
        raise NotTested("only one layer of one direction is cut", CURE_ONE)
    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    out, h_last, c_last = probe.run(x, h, c)
    middle = len(x) // 2
    early, h_0, c_0 = probe.run(x[:middle], h, c)
    late, h_end, c_end = probe.run(x[middle:], h_0, c_0)
    change = _change(out[-1], h_last)
    if change > EXACT and out[-1].shape == h_last.shape:
        return Fault(
            "The state h that is returned differs from the last output by "
            f"{change:.1%}.",
            "Return (h_T, c_T) of the last step, h first.",
        )
    pairs = ((out, torch.cat([early, late])), (h_last, h_end), (c_last, c_end))
    change = max(_change(before, after) for before, after in pairs)
    if change < EXACT:
        return None
    if _later_steps(probe).passed is False:
        raise NotTested("h depends on later steps", "Mend that first.")
    return Fault(
        f"Cut in two, with the states of the first piece given to the second, the "
        f"sequence has other outputs or states, by {change:.1%}: what is returned is "
        "not the state, or what is given is not used.",
        "Return (h_T, c_T) as they are, and begin with the states that are given.",
    )


@claim(LAYOUTS)
def _layouts(probe: _Probe) -> Fault | None:
    if probe.is_cell or probe.stacked not in (None, 1):
        raise DoesNotApply("there is one shape")
    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    expected = probe.run(x, h, c)[0]
    other = probe._replace(stacked=1 if probe.stacked is None else None)
    try:
        out, *last = other.run(x, h, c)
    except Exception as error:
        raise DoesNotApply("the layer takes states of one shape") from error
    if (
        out.shape != expected.shape or last[0].shape != h.shape
    ):  # it returns others than it was given
        raise DoesNotApply("the layer has states of one shape")
    change = _change(expected, out)
    if change < EXACT:
        return None
    shapes = f"(N, H) = {tuple(h.shape)} and (1, N, H)"
    return Fault(
        f"States of shape {shapes} are both taken, and h differs by {change:.1%}: one "
        "of them is broadcast or cut.",
        "Refuse states of a wrong shape, or bring both into one.",
    )


@claim(CELL)
def _step(probe: _Probe) -> Fault | str:
    """Compare with gains of 1 and biases of 0, so that the matrices say all."""
    if probe.stacked not in (None, 1):
        raise NotTested("only one layer of one direction is compared", CURE_ONE)
    plain = probe._replace(layer=copy_of(probe.layer))
    for name, value in plain.layer.named_parameters():
        if value.ndim < 2 or min(value.shape) == 1:
            is_gain = re.search("weight|gamma|gain|scale", name.lower())
            value.fill_(1.0 if is_gain or bool((value == 1).all()) else 0.0)
    n = probe.units[1] + 8
    x, (h, c) = 3 * probe.draw(n, probe.sizes[2]), probe.states(n)
    h_1, c_1 = plain.step(x, h, c)
    f, written = _forget(plain, x, h), plain.step(x, h, 0 * c)[1]
    matrices = [p for p in plain.layer.parameters() if p.ndim == 2 and min(p.shape) > 1]
    is_torch = isinstance(probe.layer, nn.RNNBase | nn.RNNCellBase)
    order = "ifgo" if is_torch else ""
    return step_fault(Step(x, h, c, f, written, c_1, h_1), matrices, order)


@claim(UPPER)
def _upper(probe: _Probe) -> Fault | None:
    if probe.stacked in (None, 1):
        raise DoesNotApply("there is one layer of one direction")
    stack = _Stack(probe)
    for look in (_turned_back, _own_states, _passed_on):
        if fault := look(stack):
            return fault
    raise NotTested(
        "they begin with states of their own, and get h in the order of time; only the "
        "gates of the first are looked at",
        CURE_ONE,
    )


class _Stack:
    """Layers one above the other, each with states of its own."""

    def __init__(self, probe: _Probe) -> None:
        self.probe, self.count = probe, probe.stacked or 1
        n = probe.sizes[1]
        self.x = probe.draw(*probe.sizes)
        self.h = probe.draw(self.count, n, probe.units[0])
        self.c = probe.draw(self.count, n, probe.units[1])
        out = self.run(self.x, self.h, self.c)[0]
        self.ways = max(out.shape[-1] // probe.units[0], 1)

    def run(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run over x (T, N, D), from states (L, N, H)."""
        is_first = self.probe.is_batch_first
        with of_the_layer():
            out, (h, c) = self.probe.layer(x.transpose(0, 1) if is_first else x, (h, c))
        return out.transpose(0, 1) if is_first else out, h, c


def _turned_back(stack: _Stack) -> Fault | None:
    """Find the last h of the other direction among the outputs: at the first step."""
    if stack.ways != 2:
        return None
    out, h, _ = stack.run(stack.x, stack.h, stack.c)
    back = out[..., stack.probe.units[0] :]
    if back.shape != (*out.shape[:2], h.shape[-1]):
        return None
    if _change(back[0], h[-1]) < EXACT or _change(back[-1], h[-1]) > EXACT:
        return None
    moved = torch.cat([stack.x[:-1], stack.probe.draw(*stack.x[-1:].shape)])
    after = stack.run(moved, stack.h, stack.c)[0]
    if _change(out[:-1], after[:-1]) < EXACT:
        return Fault(
            "Another x at the last step changes no output before it: both directions "
            "run forward.",
            "Give the other direction x.flip(0), and turn its outputs back.",
        )
    return Fault(
        "The other direction ends at the first step of x, and its last h stands at the "
        "last step of the output: its outputs are in reversed order, beside those of "
        "other steps.",
        "Turn the outputs of the other direction back, flip(0), before joining them.",
    )


def _own_states(stack: _Stack) -> Fault | None:
    """Give each layer another state, one after the other."""
    states = {"h_0": stack.h, "c_0": stack.c}
    before = stack.run(stack.x, **_named(states))
    for k in range(stack.count):
        for name, state in states.items():
            other = state.clone()
            other[k] = stack.probe.draw(*other[k].shape)
            after = stack.run(stack.x, **_named(states | {name: other}))
            if _change(before[2][k], after[2][k]) > EXACT:
                continue
            return Fault(
                f"Another {name}[{k}] changes nothing in the layer or direction that "
                f"it is for, number {k}.",
                "Begin each layer and direction with its own h_0[k] and c_0[k].",
            )
    return None


def _named(states: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"h": states["h_0"], "c": states["c_0"]}


def _passed_on(stack: _Stack) -> Fault | None:
    """Move c_1 of the first layer so that its h_1 stays: nothing above may change.

    The norm between c and h forgets scale and shift, as in the test of h.
    """
    if stack.count == stack.ways:
        return None
    first = slice(0, stack.ways)
    x, h, c = stack.x[:1], stack.h, stack.c
    zero, one = c.clone(), c.clone()
    zero[first], one[first] = 0, 1
    rest = stack.run(x, h, zero)[2][first]
    f = (stack.run(x, h, one)[2][first] - rest).clamp_min(1e-12)
    out, h_1, c_1 = stack.run(x, h, c)
    moved = c.clone()
    moved[first] = (3 * c_1[first] + 2 - rest) / f
    after, h_2, _ = stack.run(x, h, moved)
    below, above = _change(h_1[first], h_2[first]), _change(out, after)
    if below > 0.01 or above < INVARIANT:
        return None
    return Fault(
        f"From c_1 to 3 c_1 + 2 in the first layer its h changes by {below:.1%}, and "
        f"the output of the layer above by {above:.0%}: the cell state c is passed on "
        "to it, not h.",
        "Give the next layer the outputs h of the one below.",
    )


def _same_in_evaluation(layer: nn.Module, probe: _Probe) -> Finding:
    """Evaluate twice, with dropout where the layer has a place for it."""
    twin, has_place = evaluating(copy_of(layer)).double(), False
    for module in twin.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p, has_place = 0.5, True
        share = getattr(module, "dropout", None)
        # As in nn.LSTM it may mean nothing to a single layer.
        if isinstance(share, float) and (share or probe.stacked not in (None, 1)):
            vars(module)["dropout"], has_place = 0.5, True
    if not has_place:
        return Finding(SAME, None, "the layer has no dropout that can be set")
    return _evaluated(probe._replace(layer=twin))


@claim(SAME)
def _evaluated(probe: _Probe) -> Fault | None:
    x, states = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    change = _change(*(probe.run(x, *states)[0] for _ in range(2)))
    if change < EXACT:
        return None
    return Fault(
        f"After eval() two calls on one input differ by {change:.0%}: dropout acts in "
        "evaluation, too.",
        "Pass self.training to dropout, or use nn.Dropout.",
    )


@claim(REST)
def _rest(probe: _Probe) -> Fault | None:
    why = "the runs are in float64, over whole sequences, without dropout"
    raise NotTested(why, "Test those by themselves.")


@claim(OTHERS)
def _other_examples(probe: _Probe) -> Fault | None:
    def change() -> float:
        before, after = (probe.run(s * x, s * h, s * c)[0] for s in (1, signs))
        return _change(before[:, 1:], after[:, 1:])

    x, (h, c) = probe.draw(*probe.sizes), probe.states(probe.sizes[1])
    # The first example is another one, in input and states.
    signs = torch.ones_like(x[0, :, :1])
    signs[0] = -1
    in_training = change()
    if in_training < EXACT:
        return None
    mode = probe.layer.training
    evaluating(probe.layer)
    in_evaluation = change()
    probe.layer.train(mode)
    reason = (
        f"Another first example changes h of the others by {in_training:.1%}; it must "
        "be 0."
    )
    if in_evaluation < EXACT:
        reason += (
            " In evaluation mode it is: this is batch norm, with running statistics "
            "there. Its training outputs are those of the whole batch, by design."
        )
    cure = "Take the statistics over the units of one example (the last axis)."
    return Fault(reason, cure)


@claim(BIASES)
def _redundant_biases(probe: _Probe) -> Fault | None:
    values = dict(probe.layer.named_parameters())
    _, slopes = _loss_and_slopes(probe, *_inputs(probe), values.values())
    flat = {name: s.flatten() for name, s in zip(values, slopes, strict=True)}
    groups: list[list[str]] = []
    for name, slope in flat.items():
        for group in groups:
            other = flat[group[0]]
            if other.shape == slope.shape and _change(other, slope) < EXACT:
                group.append(name)
                break
        else:
            groups += [[name]] if slope.any() else []
    twins = [group for group in groups if len(group) > 1]
    if not twins:
        return None
    count = max(map(len, twins))
    return Fault(
        "; ".join(f"{', '.join(g[:-1])} and {g[-1]}" for g in twins) + " have the "
        "same gradient, as they are added to the same place. SGD moves their sum "
        f"{count} times as fast as one alone. (The formula of Ba et al. has b, beta_h "
        "and beta_x; one of them can say all.)",
        f"Keep one of the {count}, or divide its learning rate by {count}.",
        REDUNDANT,
    )


@claim(GRADIENTS)
def _gradients(probe: _Probe) -> Fault | str:
    inputs = _inputs(probe)
    by = dict(zip(("x", "h_0", "c_0"), inputs, strict=True))
    by |= dict(probe.layer.named_parameters())
    _, slopes = _loss_and_slopes(probe, *inputs, by.values())
    wrong, worst = [], 0.0
    for (name, value), slope in zip(by.items(), slopes, strict=True):
        direction = probe.draw(*value.shape).sign()
        start, expected = value.detach().clone(), 0.0
        with torch.no_grad():
            for steps, weight in DIFFERENCES:
                value.copy_(start + steps * STEP * direction)
                expected += weight * float(_loss(probe, *inputs)) / STEP
            value.copy_(start)
        seen = float((slope * direction).sum())
        # An unlucky direction may lie across the gradient.
        scale = max(abs(seen), abs(expected), 1e-3 * float(slope.norm()))
        error = abs(seen - expected) / scale if scale else 0.0
        worst = max(worst, error)
        if not error < SLOPES:
            wrong.append(f"{name}: {seen:.4g} for {expected:.4g}")
    if not wrong:
        return f"Central differences agree to {worst:.0e}."
    by_state = slopes[1:3]
    if not any(bool(slope.any()) for slope in by_state):
        return Fault(
            "No gradient reaches h_0 or c_0, on which the outputs depend: the states "
            "are cut off from the graph, and nothing is learned through time.",
            "Detach states between sequences, if at all, and not inside the loop.",
        )
    return Fault(
        "Along a random direction the gradient and the central differences of the "
        f"loss are: {'; '.join(wrong)}.",
        "Let autograd go through mean and variance, too; test a backward pass that is "
        "written by hand with torch.autograd.gradcheck.",
    )


@claim(ZEROS)
def _zeros(probe: _Probe) -> Fault | str:
    x, h, c = _inputs(probe)
    zero = torch.zeros_like(h).requires_grad_()
    _, (usual,) = _loss_and_slopes(probe, x, h, c, [h])
    _, (steep,) = _loss_and_slopes(probe, x, zero, c, [zero])
    with torch.no_grad():
        x[0] = 0
        c.zero_()
    by = [zero, *probe.layer.parameters()]
    value, slopes = _loss_and_slopes(probe, x, zero, c, by)
    if all(bool(v.isfinite().all()) for v in slopes):
        times = float(steep.norm() / usual.norm())
        scale = f" (1 / sqrt(eps) is {probe.eps**-0.5:.3g}.)" if probe.eps else ""
        return (
            f"An h_0 of 0 gets {times:.3g} times the gradient of one of size 1: mind "
            f"the learning rate if h_0 is learned.{scale}"
        )
    what = "outputs" if not value.isfinite() else "gradients"
    return Fault(
        f"With h_0 = c_0 = 0 and x_1 = 0 the {what} are not finite: what is 0 "
        "for all units has variance 0, and is divided by its root.",
        "Add eps to the variance, inside the root, not behind it; 1e-5 is usual.",
    )


def _inputs(probe: _Probe) -> tuple[Tensor, Tensor, Tensor]:
    h, c = probe.states(probe.sizes[1])
    x = probe.draw(*probe.sizes)
    return x.requires_grad_(), h.requires_grad_(), c.requires_grad_()


def _loss(probe: _Probe, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Weight every output differently: nothing cancels."""
    total = x.new_zeros(())
    for k, value in enumerate(probe.run(x, h, c)):
        places = torch.arange(value.numel(), dtype=x.dtype, device=x.device)
        total = total + (value.flatten() * (1.7 * places + k).cos()).sum()
    return total


def _loss_and_slopes(
    probe: _Probe, x: Tensor, h: Tensor, c: Tensor, by: Iterable[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    value = _loss(probe, x, h, c)
    with of_the_layer():
        slopes = torch.autograd.grad(
            value, tuple(by), allow_unused=True, materialize_grads=True
        )
    return value.detach(), slopes


def _forget(probe: _Probe, x: Tensor, h: Tensor) -> Tensor:
    zeros = x.new_zeros(len(x), probe.units[1])
    f = probe.step(x, h, zeros + 1)[1] - probe.step(x, h, zeros)[1]
    return f.clamp(1e-12, 1 - 1e-12)


def _logit(probe: _Probe, x: Tensor, h: Tensor) -> Tensor:
    return _forget(probe, x, h).logit()


def _change(before: Tensor, after: Tensor, centre: Tensor | float = 0.0) -> float:
    """Return the size of a change, as a share of what is there; 0 if nothing is."""
    size = float((before - centre).norm())
    moved = float((after - before).norm())
    return moved / size if size else moved


def _span(values: Tensor) -> str:
    low, high = _rounded(values.min()), _rounded(values.max())
    return low if low == high else f"{low} to {high}"


def _rounded(value: Tensor) -> str:
    return f"{round(float(value), 2) + 0.0:.2f}"  # no -0.00
