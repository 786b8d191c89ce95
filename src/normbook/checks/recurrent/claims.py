r"""Tests for a recurrent layer that should be the layer-normalized LSTM.

The yardstick is the cell of :mod:`normbook.layer_norm_lstm`, by behaviour alone. The
key: :math:`c_1` is linear in :math:`c_0`, so two runs of one step give the forget gate
f of every unit, and :math:`\log f/(1-f)` is the f part of :math:`a_1`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, evaluating
from normbook.checks.claim import DoesNotApply, Fault, NotTested, claim
from normbook.checks.copies import copy_of
from normbook.checks.recurrent.batch import BATCH_CLAIMS
from normbook.checks.recurrent.forms import Ragged
from normbook.checks.recurrent.gradients import (
    GRADIENT_CLAIMS,
    unused_parameters,
    zeros,
)
from normbook.checks.recurrent.handling import HANDLING_CLAIMS, INPUTS_ARE_KEPT
from normbook.checks.recurrent.layers import (
    INVARIANT,
    Stack,
    compared,
    forget_statistics,
    last_outputs,
    order_of_states,
    own_fault,
    plain_copy,
    returned_twice,
    upper_fault,
)
from normbook.checks.recurrent.probe import (
    EXACT,
    Probe,
    probe_of,
    relative_change,
    set_dropout,
)
from normbook.checks.recurrent.reach import reach, returned
from normbook.checks.recurrent.states import (
    BOTH_EXCHANGED,
    cut_by_memory,
    early_state,
    exchanged,
    goes_from_example_to_example,
    turned_batch,
    unused_states,
    what_it_is,
    with_h_first,
)
from normbook.checks.recurrent.step import READ
from normbook.checks.report import Finding

RAW = "the carried state is c, not its normalized form"
NORMED = "what enters the gates is normalized"
TERMS = "W_h h and W_x x are normalized each on its own"
TOGETHER = "the 4H numbers of all gates are normalized together"
OUTPUT = "h sees the normalized c"
BOUNDED = "the output gate is between 0 and 1"
LATER = "h does not depend on later steps"
OTHERS = "h does not depend on the other examples"
PADDING = "h does not depend on padding behind the sequence"
CELL = "a step is that of a known cell"
CALLS = "a second call begins with zeros, as the first"
LAST = "the last output is the state h that is returned"
PIECES = "a sequence in two pieces gives what it gives in one"
AXES = "batch_first says which axis is the time"
LAYOUTS = "states of either shape are the same states"
UPPER = "the layers above the first, and the other direction"
SAME = "evaluation drops nothing"
REST = "half precision, packed sequences and dropout"

REST_IS_NOT_TESTED = Finding(
    REST,
    None,
    "the runs are in float64, over whole sequences, without dropout",
    "Test those by themselves.",
)

NO_STATES = Finding(
    CELL, None, "no states can be given", "Check it without call=, with states, too."
)

BY_SIGMA = "Divide by sigma, the square root of the variance plus eps."
K, FAR, UNSATURATED = (3, 6, 12), (1e-4, 1e-3, 0.01, 0.1, 1e2, 1e4, 1e6), 12
MEND = "Mend that first."
EXCHANGE = "Exchange axes with transpose(0, 1)."
BY_HAND = "Compare a step with its equation by hand."
CURE_ONE = "Check one with a single layer and direction, too."
INSIDE_THE_LOOP = (
    "Take the statistics of one example at one step, inside the loop over time."
)


def recurrent_findings(
    layer: nn.Module, sizes: Sequence[int] | None = None, eps: float | None = None
) -> list[Finding]:
    r"""Test a layer with the interface of ``nn.LSTM`` or ``nn.LSTMCell``.

    Of several layers and directions the first is looked at closely, the others are
    compared with it. ``sizes`` is the shape of one input as the layer takes it; by
    default D is ``layer.input_size``.
    Fewer than two steps or examples are taken as two. ``eps``, by default that of the
    layer, serves a reason only.

    All runs are those of a copy, in float64 and training mode, without dropout; in
    evaluation mode, if something else in it is random. Its matrices are drawn anew, so
    that weights of 0, or saturated gates, hide nothing.
    """
    with torch.random.fork_rng(devices=[]):
        crossed = []
        try:
            probe = probe_of(layer, sizes, eps)
        except TypeError as error:
            if not (fault := _square_alone(layer, sizes, error)):
                raise
            first, _, features = sizes or (0, 0, 0)
            crossed = [Finding("any number of steps is taken", False, *fault[:2])]
            probe = probe_of(layer, (first, first, features), eps)
        with torch.no_grad():
            if not probe.takes_states:
                told, trained = [_evaluated(probe), _other_examples(probe)], probe
                probe, batched = _without_the_batch(probe)
                told += [test(probe) for test in (reach, returned, *HANDLING_CLAIMS)]
                told += batched
                with torch.enable_grad():
                    told += [
                        test(trained) for test in GRADIENT_CLAIMS if test is not zeros
                    ]
                return [*crossed, *told, NO_STATES]
            is_turned = False
            with suppress(LayerError):  # a claim tells it
                is_turned = exchanged(probe) == BOTH_EXCHANGED
            probe = with_h_first(probe) if is_turned else probe
            # In training mode what is random was put into evaluation mode.
            random = _evaluated(probe)
            if random.passed is False and not probe.layer.training:
                return [random]
            others, trained = _other_examples(probe), probe
            probe, batched = _without_the_batch(probe)
            if others.cure == EXCHANGE:
                crossed = [others]
            if crossed:  # what else is wrong follows from it
                return [*crossed, Finding(CELL, None, "time and batch are mixed", MEND)]
            pieces, raw = _pieces(probe), _carried(probe)
            if why := _why_no_state(probe, pieces):
                raw = Finding(RAW, None, why, MEND)
            is_apart = others.passed or probe.is_batched
            step = _step(probe) if raw.passed and is_apart else None
            found = compared(probe)[0] if step and not probe.layer.training else None
            mixed = probe._replace(kept=found[1].kept) if found else probe
            if step and not probe.is_batched:
                gates = _gates(mixed, step)
            else:
                gates = _no_gates(probe, raw)
            rest = [test(probe) for test in (_later_steps, _padding, _calls)]
            rest += [pieces, _last_output(probe), _layouts(probe)]
            upper, same = _upper(probe), _same_in_evaluation(probe)
        why = "whether the state is carried as it is was not tested"
        if raw.passed is False:
            why = "the state is not carried as it is"
        elif others.passed is False:
            why = "the examples are not apart"
        elif raw.other:
            why = "no cell is known here of which the gates see c"
        step = step or Finding(CELL, None, why, BY_HAND if raw.other else MEND)
        *by_gradient, used = (test(trained) for test in GRADIENT_CLAIMS)
        last = [] if used.passed else [used]
        # What is wrong in the step says more than what h does not see.
        named_first = [step] if step.passed is False else []
        gates += [] if named_first else [step]
        if step.passed is None and others.passed and (raw.passed or raw.other):
            with torch.no_grad():
                bounded = _bounded(probe)
            named_first = [bounded] if bounded.passed is False else []
        axes = [] if probe.misled is None else [_axes(probe)]
        axes += [_turned_output(probe)] if probe.leaves_turned else []
        axes += [_turned_states(probe)] if is_turned else []
        with torch.no_grad():
            handled = [test(probe) for test in HANDLING_CLAIMS]
        wrong = [finding for finding in handled if finding.passed is False]
        handled = [finding for finding in handled if finding.passed is not False]
        if wrong and wrong[0].name == INPUTS_ARE_KEPT:  # it spoils what autograd needs
            why = "the layer writes into what it is given"
            by_gradient, last = (
                [Finding(f.name, None, why) for f in some]
                for some in (by_gradient, last)
            )
        rest += [*by_gradient, upper, same, REST_IS_NOT_TESTED, *last]
        named_first += [finding for finding in batched if finding.passed is False]
        rest += [finding for finding in batched if finding.passed is not False]
        return [*axes, *wrong, raw, *named_first, *gates, others, *rest, *handled]


def _without_the_batch(probe: Probe) -> tuple[Probe, list[Finding]]:
    """Return a probe in evaluation where there is batch norm, and what is said of it.

    What is no norm shows there: each step of an example is apart from the others.
    """
    if probe.is_batch_norm():
        calm = evaluating(copy_of(probe.layer))
        forget_statistics(calm)
        probe = probe._replace(layer=calm, is_batched=True)
        return probe, [test(probe) for test in BATCH_CLAIMS]
    if probe.layer.training:
        return probe, [test(probe) for test in BATCH_CLAIMS[2:]]
    return probe, []


def _square_alone(
    layer: nn.Module, sizes: Sequence[int] | None, error: TypeError
) -> Fault | None:
    """Look whether a layer runs where there are as many steps as examples."""
    if sizes is None or len(sizes) != 3 or sizes[0] == sizes[1]:
        return None
    made = []
    for shape in (tuple(sizes), (sizes[0], sizes[0], sizes[2])):
        x = torch.zeros(shape, dtype=next(layer.parameters(), torch.zeros(())).dtype)
        try:
            with torch.no_grad():
                made.append(copy_of(layer)(x))
        except Exception as problem:  # noqa: BLE001 - it is told
            made.append(problem)
    if isinstance(made[1], Exception) or not isinstance(made[0], Exception):
        return None
    told = f"it raises {type(made[0]).__name__}: {str(made[0]).splitlines()[0]:.160}"
    if isinstance(made[0], Ragged):
        told = f"the states that it returns have the shapes {made[0]}, not one"
    return Fault(
        f"For x of shape {tuple(sizes)} {told}; with {sizes[0]} steps and as many "
        "examples it runs. Somewhere inside time and batch are exchanged, as by a "
        "transpose that is made twice, or in one layer and not in the next: there the "
        "recurrence runs over the examples.",
        "Transpose once in front of the first layer, and once behind the last.",
    )


def _why_no_state(probe: Probe, pieces: Finding) -> str:
    """Say why no state is what it seems, if so."""
    if not probe.is_single:
        stack = Stack(probe)
        with suppress(LayerError):
            if order_of_states(stack) or returned_twice(stack) or last_outputs(stack):
                return "not all states that are returned are those of their layers"
    if pieces.passed is False and "raises" not in pieces.reason:
        return "the states that are given or returned are not the states"
    return ""


@claim(AXES)
def _axes(probe: Probe) -> Fault:
    """Say what the layout is, where the states that are returned show another."""
    x, examples = torch.empty(probe.sizes), probe.sizes[1]
    says, takes = "(T, N, D)", "(N, T, D)"
    why, more = "axis 0 is the batch all the same", ""
    if probe.misled:
        says, takes, why = takes, says, "it is stored and not used"
        more = "The recurrence runs over the examples. "
    return Fault(
        f"batch_first is {probe.misled}, so that x is {says}; for x of shape "
        f"{tuple(probe.turned(x).shape)} the state that is returned has {examples} "
        f"examples, the length of axis {int(not probe.is_batch_first)}, as for "
        f"{takes}: {why}. {more}All other tests are made with x as {takes}.",
        "Transpose x first and the outputs last where batch_first is True.",
    )


@claim("the output has the layout of the input")
def _turned_output(probe: Probe) -> Fault:
    steps, examples, features = probe.sizes
    x, out = "(N, T, D)", "(T, N, H)"
    if not probe.is_batch_first:
        x, out, steps, examples = "(T, N, D)", "(N, T, H)", examples, steps
    return Fault(
        f"x is taken as {x} = {(examples, steps, features)}, and the output "
        f"comes as {out}, {steps} first. All other tests turn it.",
        "Transpose the outputs back into the layout of x.",
    )


@claim("the states are (h, c), in the order of torch")
def _turned_states(probe: Probe) -> Fault:
    return Fault(
        f"{BOTH_EXCHANGED} All other tests exchange them back.",
        "Take and return (h, c), h first.",
        "(c, h)",
    )


@claim(RAW)
def _carried(probe: Probe) -> Fault | str:
    n = 2 * probe.units[1]
    x, h, c = probe.point(n)
    c_1 = {k: probe.step(x, h, k * c)[1] for k in (0, 1, 2, 10, 100)}
    bend = relative_change(2 * (c_1[1] - c_1[0]), c_1[2] - c_1[0], c_1[0])
    if bend < EXACT:
        return f"c_1 is linear in c_0, to {bend:.0e}."
    if text := exchanged(probe):
        return Fault(text, "Take and return (h, c), h first.")
    other = c.clone()
    other[:, 0] += 1
    is_bounded = bool(c_1[100].abs().max() < 3 * c_1[10].abs().max())
    if not is_bounded and torch.equal(c_1[1][:, 1:], probe.step(x, h, other)[1][:, 1:]):
        return Fault(
            "c_1 is not linear in c_0, unit by unit: its gates see c, each unit that "
            "of its own (peephole connections).",
            "Let the gates depend on x and h alone.",
            "peepholes",
        )
    small, large = (c_1[k].std(1, correction=0) for k in (10, 100))
    if relative_change(small, large) < 0.05:
        mean = c_1[100].mean(1).abs().max()
        reason = (
            "A c_0 with a deviation of 10 leaves a c_1 with a deviation of "
            f"{_span(small)} over the units of an example, one of 100 leaves "
            f"{_span(large)}; with c_1 = f c_0 + i g the second is ten times the "
            "first. The mean is at most "
            f"{mean:.2f}. This is LN(c) stored as the state: nothing in it can grow."
        )
        if _normalizes_each_gate(probe):
            reason += (
                " With norms of each gate it is the LayerNormBasicLSTMCell of TF 1."
            )
            return Fault(reason, "Carry c itself.", "normalized c is carried")
    else:
        reason = (
            f"c_1 = f c_0 + i g is linear in c_0; here it is not: when c_0 is doubled, "
            f"what it adds to c_1 misses the double by {100 * bend:.2g} %."
        )
    return Fault(reason, "Normalize c only on its way to h, and carry c itself.")


def _no_gates(probe: Probe, raw: Finding) -> list[Finding]:
    """Say why the gates are not tested."""
    why = "only a state that is carried as it is shows the gates"
    if raw.passed:
        why = "the statistics are those of several examples"
    gates = [Finding(n, None, why) for n in (NORMED, TERMS, TOGETHER)]
    return [
        *gates,
        _norm_of_candidate(probe) if raw.passed else Finding(OUTPUT, None, why),
    ]


def _gates(probe: Probe, step: Finding) -> list[Finding]:
    """Test what the forget gate tells, of a layer that carries c itself."""
    n = 2 * max(probe.units) + 8
    x, h, c = probe.point(n)
    a = _forget(probe, 5 * x, 5 * h).logit()
    by_x, by_h, by_both = (
        relative_change(a, _forget(probe, k * x, m * h).logit(), a.mean(0))
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
            terms = Finding(TERMS, None, reason, cure, "norm of the sum")
        together = _together(probe)
        is_otherwise = "a by " in step.reason and "of each gate" not in step.reason
        if together.other and is_otherwise:
            why = "the gates are normalized in another way"
            together = Finding(TOGETHER, None, why)
    else:
        rest = "no normalization was found"
        why = "nothing is normalized before the gates"
        for term, change in (("x", by_x), ("h", by_h)):
            if change < INVARIANT:
                rest = why = f"only W_{term} {term} is normalized"
        low, high = probe.forget_gate(x, h).aminmax()
        if low < -0.01 or high > 1.01:
            seen += f". The forget gate is {low:.2g} to {high:.2g}, outside 0 to 1"
            rest = "a norm behind the sigmoids, perhaps"
        cure = "Put layer norm around W_h h and around W_x x."
        terms_of = {"x": (x, 0 * h), "h": (0 * x, h)}
        powers = {
            f"W_{name} {name}": _power(
                [_forget(probe, k * v, k * w).logit() for k in K]
            )
            for name, (v, w) in terms_of.items()
        }
        if told := [_by_power(name, p) for name, p in powers.items() if p]:
            rest, cure = " ".join(told), BY_SIGMA
            why = "the norm before the gates does not take the scale away"
        normed = Finding(NORMED, False, f"{seen}; {rest.rstrip('.')}.", cure)
        terms, together = (Finding(name, None, why) for name in (TERMS, TOGETHER))
    output = _output(probe, x, h, c)
    if re.match("h_1 reads the c before the step(?!, not)", step.reason):
        output = Finding(OUTPUT, None, "h reads another c", MEND)
    if (
        normed.passed is False
        and step.passed
        and re.search("no norm of|before W_x", step.reason)
        and _has_a_norm_in_use(probe)
    ):
        is_none = "no normalization" in normed.reason
        nothing = "; no normalization was found" * is_none
        normed = Finding(
            NORMED,
            None,
            f"{seen}{nothing}: {step.reason}",
            "",
            "no norm before the gates",
        )
    is_known = (step.passed or step.other) and READ[1] in step.reason
    if (
        (normed.passed or normed.other)
        and output.passed is False
        and (is_known or (step.passed is None and _reads_tanh(probe, x, h)))
    ):
        output = output._replace(passed=None, other="no norm of c")
    return [normed, terms, together, output]


def _power(values: Sequence[Tensor]) -> float | None:
    """Return p where values for the scales K go with scale^p, as behind a slipped norm.

    None of a norm (0), and of what is linear or grows by more.
    """
    once, twice = (b - a for a, b in itertools.pairwise(values))
    # What eps leaves of a right norm is below 1e-4, and goes with k^-2.
    is_told = (once.abs() > 1e-4) & torch.stack([*values]).isfinite().all(0)
    is_told &= torch.stack([*values]).abs().amax(0) < UNSATURATED
    ratios = (twice / once)[is_told]
    if 2 * len(ratios) < len(once.flatten()):
        return None
    ratio = ratios.median()
    if ratio <= 0 or ((ratios / ratio - 1).abs() > 0.01).double().mean() > 0.1:
        return None
    power = float(ratio.log2())
    return power if power < 0.95 and abs(power) > 0.05 else None


def _by_power(name: str, power: float) -> str:
    return (
        f"{name} is divided by a wrong power of sigma: the norm that is there does not "
        f"take the scale away. From {name} to k {name} what comes out goes with k to "
        f"the power {power:.2g}, as where sigma to the power {1 - power:.2g} divides, "
        "and not sigma."
    )


def _has_a_norm_in_use(probe: Probe) -> bool:
    """Return whether a norm that is held, around the cell say, has a part."""
    unused = unused_parameters(probe)
    return any(
        not any(name.startswith(f"{place}.") for name in unused)
        for place, part in probe.layer.named_modules()
        if place and "norm" in type(part).__name__.lower()
    )


@claim(TOGETHER)
def _together(probe: Probe) -> Fault | str:
    """Look for a weighted mean of the pre-activations of f that never moves.

    The H numbers of a gate that is normalized by itself sum to 0; with a gain they
    stay in a plane. The f part of 4H numbers normalized together fills the space.
    """
    n = 2 * max(probe.units) + 8
    x, (h, _) = probe.draw(1, probe.sizes[2]).expand(n, -1), probe.states(n)
    a = _forget(probe, x, h).logit()
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
        "norm of each gate",
    )


def _normalizes_each_gate(probe: Probe) -> bool:
    """Return whether what is held for each unit is one number, of no gate or of one."""
    parameters = [*probe.layer.parameters()]
    return {len(p) for p in parameters if p.ndim == 1} == {probe.units[1]}


def _output(probe: Probe, x: Tensor, h: Tensor, c: Tensor) -> Finding:
    """Shift and stretch c_1 by the choice of c_0: its hat stays."""
    f = _forget(probe, x, h)
    before, c_1 = probe.step(x, h, c)
    rest = c_1 - f * c
    after, _ = probe.step(x, h, (3 * c_1 + 2 - rest) / f)
    change = relative_change(before, after)
    seen = f"From c_1 to 3 c_1 + 2, which has the same hat, h changes by {change:.1%}"
    if change < INVARIANT:
        return Finding(OUTPUT, True, f"{seen}.")
    if before.shape == c_1.shape:
        by_scale = [probe.step(x, h, (k * c_1 - rest) / f)[0] for k in (*K, *FAR)]
        o = torch.stack(by_scale).abs().amax(0)
        if power := _power([(h_1 / o).atanh() for h_1 in by_scale[:3]]):
            reason = f"{seen}: {_by_power('c', power)}"
            return Finding(OUTPUT, False, reason, BY_SIGMA)
    cure = "Take h = o tanh(LN(c))."
    return Finding(OUTPUT, False, f"{seen}: c is not normalized there.", cure)


@claim(BOUNDED)
def _bounded(probe: Probe) -> Fault | None:
    """Let c grow: o tanh(...) stays below 1, and o c has the sign of c."""
    n = 40
    x, h, c = probe.point(n)
    (some, _), (h_1, c_1) = (probe.step(x, h, k * c) for k in (10, 100))
    if h_1.shape != c_1.shape or not h_1.abs().max() > 3 * some.abs().max() > 3:
        return None
    centred = c_1 - c_1.mean(1, keepdim=True)
    turned = (h_1.abs() > 1) & (h_1 * c_1 < 0) & (h_1 * centred < 0)
    if not turned.any():
        return None
    return Fault(
        f"With a c_0 of size 100 h reaches {h_1.abs().max():.3g}, and in "
        f"{turned.double().mean():.0%} of the units it is beyond 1 and of another sign "
        "than c and c - mean; o tanh(...) is within 1, and has the sign. The output "
        "gate is not between 0 and 1: it grows with c, as where a peephole is added "
        "behind its sigmoid.",
        "Add all that the output gate sees in front of its sigmoid.",
    )


def _reads_tanh(probe: Probe, x: Tensor, h: Tensor) -> bool:
    """Return whether h is linear in the tanh of c_1, projected or not."""
    f = _forget(probe, x, h)
    _, rest = probe.step(x, h, 0 * f)
    first, second = (0.9 * probe.draw(*rest.shape).tanh() for _ in range(2))
    one, two, mean = (
        probe.step(x, h, (t.atanh() - rest) / f)[0]
        for t in (first, second, (first + second) / 2)
    )
    return relative_change((one + two) / 2, mean) < EXACT


@claim(OUTPUT)
def _norm_of_candidate(probe: Probe) -> Fault:
    """Look, in evaluation, what the gain of each batch norm of a batch-norm LSTM moves.

    There g alone is odd: the opposite gain in front of tanh(g) turns what is written.
    """
    if not probe.is_single or not probe.is_batched:
        raise DoesNotApply("the statistics are those of several examples")
    plain = plain_copy(probe._replace(layer=evaluating(copy_of(probe.layer))))
    x, h, c = probe.point(8)
    norms = {
        name: module
        for name, module in plain.layer.named_modules()
        if getattr(module, "running_var", None) is not None
        and isinstance(getattr(module, "weight", None), Tensor)
    }

    for module in norms.values():
        module.running_mean.zero_()

    def step() -> tuple[Tensor, Tensor, Tensor]:
        written = plain.step(x, h, 0 * c)[1]
        return plain.step(x, h, c)[0], written, plain.step(x, h, c)[1] - written

    h_1, written, kept = step()
    at_candidate = ""
    for name, module in norms.items():
        module.weight.neg_()
        h_2, written_2, kept_2 = step()
        module.weight.neg_()
        if relative_change(kept, kept_2) > EXACT:
            continue
        if relative_change(written, written_2) < EXACT < relative_change(h_1, h_2):
            raise DoesNotApply("a batch norm stands between c and h, or behind h")
        if relative_change(-written, written_2) < EXACT:
            at_candidate = name
    if not at_candidate:
        raise DoesNotApply("no batch norm stands at c or at the candidate alone")
    return Fault(
        f"{at_candidate} normalizes the candidate g, tanh of which is written to c "
        "(seen in evaluation), and no batch norm stands between c and h.",
        f"Put {at_candidate} where h is made: h = o tanh(BN(c)).",
    )


@claim(LATER)
def _later_steps(probe: Probe) -> Fault | None:
    x, *states = probe.inputs()
    moved = probe.with_another_end(x)
    why = "each step sees all others in two directions"
    change = probe.early_change(states, x, moved, why)
    if change < EXACT:
        return None
    if text := _why_early(probe):
        return Fault(
            text, "Join the outputs as [forward, backward] along the last axis."
        )
    return Fault(
        f"Another x at the last step changes h at the steps before it by {change:.1%}; "
        "it must be 0. The statistics run over time as well.",
        INSIDE_THE_LOOP,
    )


def _why_early(probe: Probe) -> str:
    """Say that a layer of two directions has its halves exchanged; or leave it."""
    if probe.is_single:
        return ""
    stack = Stack(probe)
    if stack.ways == 2:
        moved = probe.with_another_end(stack.x)
        before, after = (
            stack.run(v, stack.h, stack.c)[0][:-1, :, probe.units[0] :]
            for v in (stack.x, moved)
        )
        if relative_change(before, after) < EXACT:
            return (
                "The second half of the outputs, not the first, sees no later step: the"
                " two directions are joined in the other order, backward first."
            )
    if own_fault(stack):
        raise NotTested("another test tells what is wrong with the layers", MEND)
    return ""


@claim(PADDING)
def _padding(probe: Probe) -> Fault | None:
    if probe.is_cell:
        raise DoesNotApply("a cell sees one step")
    if not probe.is_single and not _later_steps(probe).passed:
        raise DoesNotApply("h depends on later steps")
    x, *states = probe.inputs()
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
def _calls(probe: Probe) -> Fault | None:
    if probe.is_cell:
        raise DoesNotApply("a cell sees one step")
    x, h, c = probe.inputs()
    try:
        first, second = (probe.run_stack(x)[0] for _ in range(2))
    except LayerError as error:
        raise DoesNotApply("the layer must be given states") from error
    change = relative_change(first, second)
    if change > EXACT:
        new = [probe._replace(layer=copy_of(probe.layer)) for _ in range(2)]
        if relative_change(*(one.run_stack(x)[0] for one in new)) > EXACT:
            return Fault(
                "Without states two fresh copies give other outputs for one x: what "
                "they begin with is random.",
                "Begin with zeros where no states are given.",
            )
        return _kept_state(new[0]._replace(layer=copy_of(probe.given).double()), change)
    zeros = probe.run(x, 0 * h, 0 * c)[0]
    if not bool(zeros.isfinite().all()):  # told of zeros by another test
        raise DoesNotApply("from zeros the outputs are not finite")
    change = relative_change(zeros, first)
    if change < EXACT:
        return None
    told = f"Without states h differs by {change:.1%} from h with states of zeros."
    if not probe.is_single:
        stack = Stack(probe)
        x, states = stack.x, (0 * stack.h, 0 * stack.c)
        free, *last = probe.run_stack(x)
        for which, name in (((0, 1), "h and c"), ((0,), "the h"), ((1,), "the c")):
            begins = [s.clone() for s in states]
            for k in which:
                begins[k][1:] = last[k][:-1]
            if relative_change(free, probe.run_stack(x, begins)[0]) > EXACT:
                continue
            return Fault(
                f"{told} Each layer or direction but the first begins with {name} "
                "in which the one before it ended: its first output depends on the "
                "whole sequence, later steps too.",
                "Begin each layer and direction with zeros of its own.",
            )
    return Fault(told, "Begin with zeros where no states are given.", "other start")


def _kept_state(probe: Probe, change: float) -> Fault:
    """Say what a second call goes on with, and whether its graph is kept."""
    cure = "Begin with zeros where no states are given, and keep none on self."
    x = probe.draw(*probe.sizes)
    held = [p for p in probe.layer.parameters() if p.requires_grad]
    graph, is_kept = "", False
    with torch.enable_grad():
        _, *last = probe.run_stack(x)
        second = probe.run_stack(x)[0]
        try:
            for value in (last[0], second):
                torch.autograd.grad(value.sum(), held, allow_unused=True)
        except RuntimeError:
            graph, is_kept = (
                " Its graph is kept, too: a second backward pass raises.",
                True,
            )
    states = [s.detach() for s in last]
    goes_on = relative_change(probe.run_stack(x, states)[0], second.detach()) < EXACT
    names = [
        n
        for n in dir(probe.layer)
        if re.search("reset|init_(hidden|state)|stateful", n)
    ]
    what = "it goes on with the state in which the first one, another batch, ended."
    if not goes_on:
        what = "something is kept from call to call, and is not the last state."
    return Fault(
        f"A second call without states changes h by {change:.1%}: {what}{graph}",
        cure,
        "stateful" if names and goes_on and not is_kept else "",
    )


ON_PURPOSE = {
    "it is h normalized once more.": "norm of the outputs",
    "it is x + h, a residual.": "residual",
}


def _not_the_last_output(probe: Probe) -> str:
    """Say how far the state h is from the last output, and what that is; or nothing."""
    x, h, c = probe.inputs()
    out, h_last, c_last = probe.run(x, h, c)
    change = relative_change(out[-1], h_last)
    if change < EXACT or out[-1].shape != h_last.shape:
        return ""
    why = what_it_is(probe, (x, h, c), (out, h_last, c_last))
    return (
        f"The state h that is returned differs from the last output by {change:.1%}"
        f"{f'. Of the last output: {why}' if why else ''}."
    )


@claim(LAST)
def _last_output(probe: Probe) -> Fault | None:
    """Tell of states that are right that the output is something else."""
    if not probe.is_single:
        raise DoesNotApply("another test looks at the layer on top")
    if _pieces(probe).passed is False or not (text := _not_the_last_output(probe)):
        return None
    return Fault(
        f"{text} The state is the one that is carried: a second piece goes on with it "
        "as one sequence does. It is the output that is another value, as where it is "
        "taken before zoneout, or changed behind the loop.",
        "Return as output the h that is carried.",
        next(
            (other for end, other in ON_PURPOSE.items() if text.endswith(end)),
            "",
        ),
    )


@claim(PIECES)
def _pieces(probe: Probe) -> Fault | None:
    if not probe.is_single:
        return _pieces_of_stack(Stack(probe))
    x, h, c = probe.inputs()
    out, h_last, c_last = probe.run(x, h, c)
    middle = len(x) // 2
    early, h_0, c_0 = probe.run(x[:middle], h, c)
    late, h_end, c_end = probe.run(x[middle:], h_0, c_0)
    pairs = ((out, torch.cat([early, late])), (h_last, h_end), (c_last, c_end))
    change = max(relative_change(before, after) for before, after in pairs)
    if change < EXACT:
        return None
    if text := _not_the_last_output(probe):
        swapped = exchanged(probe)
        return Fault(
            f"{swapped}{' ' * bool(swapped)}{text}",
            "Return (h_T, c_T) of the last step, h first.",
        )
    if _later_steps(probe).passed is False:
        raise NotTested("h depends on later steps", MEND)
    why = exchanged(probe) or unused_states(probe) or early_state(probe, change)
    return Fault(
        f"{why}{' ' * bool(why)}Cut in two, with the states of the first piece given "
        "to the second, the "
        f"sequence has other outputs or states, by {change:.1%}: what is returned is "
        "not the state, or what is given is not used.",
        "Return (h_T, c_T) as they are, and begin with the states that are given.",
    )


def _pieces_of_stack(stack: Stack) -> Fault | None:
    """Cut a sequence; the other direction goes from the second piece to the first."""
    if stack.count > stack.ways > 1:
        raise NotTested("each layer sees all steps of the one below", CURE_ONE)
    if own_fault(stack):
        raise NotTested("another test tells what is wrong with the layers", MEND)
    x, given = stack.x, (stack.h, stack.c)
    out, *last = stack.run(x, *given)
    pieces = x[: len(x) // 2], x[len(x) // 2 :]
    ends = [stack.run(piece, *given)[1:] for piece in pieces]
    outs, lasts = [], []
    for k, piece in enumerate(pieces):
        states = [s.clone() for s in given]
        for state, ahead, back in zip(states, *ends, strict=True):
            if k:
                state[:: stack.ways] = ahead[:: stack.ways]
            elif stack.ways == 2:
                state[1::2] = back[1::2]
        some, *end = stack.run(piece, *states)
        outs.append(some)
        lasts.append(end)
    for late, of_first in zip(lasts[1], lasts[0], strict=True):
        if stack.ways == 2:
            late[1::2] = of_first[1::2]
    names = [f"{n}[{k}]" for n in ("h", "c") for k in range(stack.count)]
    values = (torch.cat([*before]) for before in (last, lasts[1]))
    differ = {
        name: relative_change(a, b)
        for name, a, b in zip(names, *values, strict=True)
        if relative_change(a, b) > EXACT
    }
    change = relative_change(out, torch.cat(outs))
    if not differ and change < EXACT:
        return None
    told = ", ".join(f"{name} by {share:.1%}" for name, share in differ.items())
    return Fault(
        "Cut in two, with the states of the first piece given to the second, the "
        f"sequence has other outputs, by {change:.1%}, or states ({told}): what is "
        "returned is not the state, or what is given is not used.",
        "Return (h_T, c_T) of each layer, and begin with the states that are given.",
    )


@claim(LAYOUTS)
def _layouts(probe: Probe) -> Fault | None:
    if probe.is_cell or not probe.is_single:
        raise DoesNotApply("there is one shape")
    x, h, c = probe.inputs()
    expected = probe.run(x, h, c)[0]
    other = probe._replace(stacked=1 if probe.stacked is None else None)
    try:
        out, *last = other.run(x, h, c)
    except Exception as error:
        raise DoesNotApply("the layer takes states of one shape") from error
    if out.shape != expected.shape or last[0].shape != h.shape:
        raise DoesNotApply("the layer has states of one shape")
    change = relative_change(expected, out)
    if change < EXACT:
        return None
    shapes = f"(N, H) = {tuple(h.shape)} and (1, N, H)"
    return Fault(
        f"States of shape {shapes} are both taken, and h differs by {change:.1%}: one "
        "of them is broadcast or cut.",
        "Refuse states of a wrong shape, or bring both into one.",
    )


@claim(CELL)
def _step(probe: Probe) -> Fault | str:
    """Compare a step of the first layer with the cell that it fits."""
    is_torch = isinstance(probe.layer, nn.RNNBase | nn.RNNCellBase) or any(
        re.search("weight_(ih|hh)(_l0)?$", name) and len(p) == 4 * probe.units[1]
        for name, p in probe.layer.named_parameters()
    )
    first, *_ = compared(probe, "ifgo" if is_torch else "")
    if first is None:
        raise NotTested(
            "no known cell has this forget gate with the matrices in the order of the "
            "layer",
            BY_HAND,
        )
    outcome = first[1].outcome
    if isinstance(outcome, str) and any(first[1].kept) and probe.layer.training:
        return Fault(
            f"a share of the old states stays in the new: {outcome}",
            "Take h and c of the step as they are, or mix them in evaluation alone.",
            "mixed states",
        )
    unused = unused_parameters(probe)
    gains = [
        name
        for name, p in probe.layer.named_parameters()
        if name not in unused and p.numel() == 4 * probe.units[1] and p.ndim == 1
        if re.search("weight|gamma|gain|scale", name.lower())
    ]
    is_each = isinstance(outcome, str) and "of W_x x and of W_h h" in outcome
    if is_each and len(gains) == 1 and probe.is_single:
        return Fault(
            "W_x x and W_h h are normalized each on its own, and share one gain, "
            f"{gains[0]}: one norm is called for both ({outcome})",
            "Give each term a layer norm of its own.",
            "one norm for both terms",
        )
    return outcome


@claim(UPPER)
def _upper(probe: Probe) -> Fault | str:
    if probe.is_single:
        raise DoesNotApply("there is one layer of one direction")
    stack = Stack(probe)
    if fault := own_fault(stack):
        return fault
    if probe.change_by_the_first() > EXACT:
        raise NotTested("the examples are not apart", MEND)
    found = compared(probe)
    if fault := upper_fault(stack, found):
        return fault
    if found[0] is None:
        raise NotTested("no known cell fits the first layer", CURE_ONE)
    return "Each is the same cell with matrices of its own, and gets h from below."


def _same_in_evaluation(probe: Probe) -> Finding:
    """Evaluate twice, with dropout where the layer has a place for it."""
    twin = evaluating(copy_of(probe.given)).double()
    # As in nn.LSTM a share of 0 may mean nothing to a single layer.
    if not set_dropout(twin, 0.5, also_none=not probe.is_single):
        return Finding(SAME, None, "the layer has no dropout that can be set")
    return _evaluated(probe._replace(layer=twin))


@claim(SAME)
def _evaluated(probe: Probe) -> Fault | None:
    x, *states = probe.inputs()
    change = relative_change(*(probe.run(x, *states)[0] for _ in range(2)))
    if change < EXACT:
        return None
    return Fault(
        f"After eval() two calls on one input differ by {change:.0%}: dropout acts in "
        "evaluation, too.",
        "Pass self.training to dropout, or use nn.Dropout.",
    )


@claim(OTHERS)
def _other_examples(probe: Probe) -> Fault | None:
    in_training = probe.change_by_the_first()
    if in_training < EXACT:
        return None
    reason = (
        f"Another first example changes h of the others by {in_training:.1%}; it must "
        "be 0."
    )
    if probe.is_batch_norm():
        reason = (
            f"In training another first example changes h of the others by "
            f"{in_training:.1%}, and in evaluation it does not: this is batch norm, "
            "with running statistics there. Its training outputs are those of the "
            "whole batch, by design."
        )
        return Fault(reason, "Take layer norm.", "batch norm")
    cure = "Take the statistics over the units of one example (the last axis)."
    if any("mean" in name for name, _ in probe.layer.named_buffers()):
        reason = reason.removesuffix(".") + (
            " in evaluation. There it is not either, though running statistics are "
            "held: those of the batch are taken, as in training."
        )
        cure = "In evaluation normalize by the running statistics."
    elif text := turned_batch(probe):
        reason += text
        cure = f"Turn the time alone, x.flip({int(probe.is_batch_first)})."
    elif text := cut_by_memory(probe):
        reason += text
        cure = EXCHANGE
    elif goes_from_example_to_example(probe):
        reason += (
            " Each example goes on from the one in front of it, the last one changes "
            "no other: the recurrence runs over the examples, as where their axis is "
            "taken for the time."
        )
    return Fault(reason, cure)


def _forget(probe: Probe, x: Tensor, h: Tensor) -> Tensor:
    return probe.forget_gate(x, h).clamp(1e-12, 1 - 1e-12)


def _span(values: Tensor) -> str:
    low, high = _rounded(values.min()), _rounded(values.max())
    return low if low == high else f"{low} to {high}"


def _rounded(value: Tensor) -> str:
    return f"{round(float(value), 2) + 0.0:.2f}"  # no -0.00
