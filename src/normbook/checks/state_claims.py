"""Claims about running statistics, modes and copies of a batch norm layer.

What a layer averaged is read from its evaluation, not from its buffers: there the
output is a straight line in x, whose slope and height tell the mean and the variance,
whatever they are called and wherever they are kept.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.averages import explained, in_words, statistics_of
from normbook.checks.calls import LayerError, backward, call, evaluating, of_the_layer
from normbook.checks.claim import (
    Claim,
    DoesNotApply,
    Fault,
    Note,
    NotTested,
    claim,
    named,
)
from normbook.checks.copies import copy_of, graph_nodes, moved, tensors_of
from normbook.checks.corrections import correction
from normbook.checks.evaluation_formula import Lines, formula, wrong_height
from normbook.checks.gradient_claims import STEP as DIFFERENCE
from normbook.checks.gradient_claims import by_parameters, by_x, point
from normbook.checks.loading import changed_by_loading, ignored
from normbook.checks.output_claims import eps_place, need_right_statistics, two_settings
from normbook.checks.recognition import MEANS
from normbook.checks.subject import TOLERANCE, Subject, draw, largest, normal

STATE_CLAIMS: list[Claim[Subject]] = []

# The weight of a new value that leaves nearly nothing of the old one.
FORGETFUL = 0.8

# Batches of 4: there the biased variance is three quarters of the unbiased one.
EXAMPLES = 4
STEPS = 4
SHIFT = 5.0

CORRECTED = (
    "Divide by 1 - (1 - momentum)^k, or begin with 0 and 1 and divide by nothing."
)
AS_SAVED = (
    "Load values as they were saved; convert old ones by the version in the state_dict."
)
NOT_FIXED = "evaluation does not normalize by fixed statistics"
AVERAGE = "running_mean = (1 - momentum) * running_mean + momentum * mean"


def _need_statistics(subject: Subject) -> None:
    """Leave a claim about running statistics where a layer says it has none."""
    if subject.claims_no_statistics:
        raise DoesNotApply("the layer keeps no running statistics")


def _batch(
    subject: Subject, seed: int, scale: float = 1.0, size: int = EXAMPLES
) -> Tensor:
    size = subject.shape[0] if subject.kind == "none" else size
    return draw(subject.sized(size), seed, scale).to(subject.dtype)


def _by_channel(x: Tensor) -> Tensor:
    """Return the mean of each channel."""
    return x.movedim(1, -1).flatten(0, -2).mean(0)


def _evaluate(layer: nn.Module, x: Tensor, *, is_recorded: bool = False) -> Tensor:
    """Return the output of a copy in evaluation mode."""
    with torch.set_grad_enabled(is_recorded):
        return call(evaluating(copy_of(layer)), x).detach().double()


def _trained(subject: Subject, count: int = STEPS) -> nn.Module:
    """Return a copy that has seen some batches, each with a backward pass to come."""
    return _trained_on(subject, subject.fresh(), count)


def _trained_on(subject: Subject, layer: nn.Module, count: int = STEPS) -> nn.Module:
    for k in range(count):
        x = _batch(subject, 20 + k)
        call(layer, x.requires_grad_(torch.is_grad_enabled()))
    return layer


class _Averages(NamedTuple):  # of each channel
    mean: Tensor
    var: Tensor


def _averages(subject: Subject, layer: nn.Module) -> _Averages:
    """Read from evaluation which mean and variance it normalizes by."""
    at_0, slope = _line(subject, layer)
    a, b = (value.flatten() for value in subject.affine)
    if (slope.abs() < 1e-6 * a.abs()).any():
        raise DoesNotApply(NOT_FIXED)
    return _Averages((b - at_0) / slope, (a / slope) ** 2 - subject.eps)


def _line(
    subject: Subject, layer: nn.Module, step: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return height at x = 0 and slope of the evaluation, for each channel."""
    zeros = torch.zeros(subject.sized(EXAMPLES), dtype=subject.dtype)
    at_0, at_step = (_by_channel(_evaluate(layer, x)) for x in (zeros, zeros + step))
    return at_0, (at_step - at_0) / step


class _Step(NamedTuple):
    """One batch of n values a channel, and the averages before and after it."""

    n: int
    batch: _Averages
    before: _Averages
    after: _Averages
    x: Tensor
    held: dict[str, Tensor]  # what is kept of each channel, after it

    @property
    def _way(self) -> Tensor:
        return self.batch.mean - self.before.mean

    @property
    def weight(self) -> float:
        """Return the share of the new mean in the running mean."""
        moved = self.after.mean - self.before.mean
        return ((moved * self._way).sum() / self._way.square().sum()).item()

    @property
    def is_average(self) -> bool:
        """Return whether the running mean moved straight towards the batch's."""
        error = self.after.mean - self.before.mean - self.weight * self._way
        return largest(error) < TOLERANCE * largest(self._way)

    @property
    def taken(self) -> Tensor:
        """Return the variance that the running variance took in."""
        return self.before.var + (self.after.var - self.before.var) / self.weight


def _need_fixed_statistics(subject: Subject) -> None:
    """Leave a claim that reads the statistics from evaluation, where it cannot."""
    _need_statistics(subject)
    need_right_statistics(subject)
    layer = evaluating(_trained(subject))
    x = _batch(subject, 9, size=2 * EXAMPLES)
    with torch.no_grad():
        together = call(layer, x)[:EXAMPLES]
        if largest(together - call(layer, x[:EXAMPLES])) > 1e-4:
            raise DoesNotApply(NOT_FIXED)


def _history(subject: Subject) -> list[_Step]:
    """Train on some batches and look after each, where that can be seen."""
    _need_fixed_statistics(subject)
    if acts_alike(subject).passed is False:
        raise DoesNotApply("gain, bias or eps act in another way in evaluation")
    layer = subject.fresh()
    if callable(reset := getattr(layer, "reset_running_stats", None)):
        with of_the_layer():
            reset()
    try:
        before = _averages(subject, layer)
    except LayerError:  # the claim about evaluation before training tells it
        call(layer, _batch(subject, 19))
        before = _averages(subject, layer)
    steps = []
    n = subject.definition.size(subject.sized(EXAMPLES))
    for k in range(STEPS):
        # Means above 0: taken for variances, they have roots.
        x = _batch(subject, 20 + k) + SHIFT
        call(layer, x)
        batch = _Averages(*map(_by_channel, subject.definition.moments(x.double())))
        held = moved(subject.layer, layer, subject.shape[1])
        steps.append(_Step(n, batch, before, _averages(subject, layer), x, held))
        before = steps[-1].after
    return steps


@claim("gain, bias and eps act in evaluation as in training", STATE_CLAIMS)
def acts_alike(subject: Subject) -> Fault | None:
    """Evaluate one trained layer with two settings of gain and bias, then without var.

    A slope must be as the gain, and the mean that a height tells must be one.
    """
    _need_fixed_statistics(subject)
    if subject.as_set is None:
        raise DoesNotApply("gain and bias are not known by name")
    gains, biases, _, _ = two_settings(subject)
    a, b = gains.reshape(2, -1), biases.reshape(2, -1)
    layer = _trained(subject)
    held = moved(subject.layer, layer, subject.shape[1])
    lines = []
    for seed in (1, 2):
        subject.set_affine(seed, layer)
        lines.append(_line(subject, layer))
    heights, slopes = zip(*lines, strict=True)
    cure = "End both modes with the same gain * x_hat + bias."
    size = max(map(largest, slopes))
    if not size:
        return Fault("in evaluation the output does not depend on the input.", cure)
    gain_off = largest(slopes[0] * a[1] - slopes[1] * a[0]) / (size * largest(a))
    moves = (b[0] - heights[0]) * slopes[1] - (b[1] - heights[1]) * slopes[0]
    seen = Lines(a, b, torch.stack(slopes), torch.stack(heights), subject.eps)
    for error, what in ((gain_off, "gain"), (largest(moves) / size, "bias or mean")):
        if error > 0.01:
            why = formula(seen, held) or f"the {what} acts in another way"
            return Fault(
                f"{why}. With another gain and bias the output of evaluation is off by "
                f"{error:.2g} from what the same change does in training.",
                cure,
            )
    if text := wrong_height(seen, held):
        return Fault(f"{text}.", cure)
    return _eps_fault(subject)


def _eps_fault(subject: Subject) -> Fault | None:
    """Take what training changed almost to 0: a divisor of sqrt(eps) must be left."""
    if subject.eps <= 0 or eps_place(subject).passed is not True:
        return None
    layer = _trained(subject)
    step = math.sqrt(subject.eps)

    def divisor() -> float:
        _, slope = _line(subject, layer, step)
        return (subject.affine[0].flatten() / slope).abs().mean().item()

    usual = divisor()
    before = dict(tensors_of(subject.layer))
    for name, value in tensors_of(layer):
        is_moved = name not in before or not torch.equal(value, before[name])
        # A counter of steps has fewer values.
        if is_moved and value.is_floating_point() and value.numel() >= subject.shape[1]:
            value.data.mul_(1e-20)
    left = divisor()
    # Where the divisor did not fall, no variance was among what training changed.
    if not left < 0.9 * usual or abs(left / step - 1) < 0.02:
        return None
    why = "evaluation has no eps: " if left < 1e-3 * step else ""
    if abs(left / subject.eps - 1) < 0.02:
        why = (
            "evaluation divides by variance + eps, without the root, or by sigma + eps"
        )
        why = f"{why}: "
    return Fault(
        f"{why}with a running variance of 0, evaluation divides by {left:.3g}, expected"
        f" sqrt(eps) = {step:.3g}, as in training.",
        "Divide by (running_var + eps).sqrt(), with the same eps.",
    )


@claim("the running mean averages the means of the batches", STATE_CLAIMS)
def running_mean(subject: Subject) -> Fault | Note | None:
    """Measure the weight of the new value in each step; compare it with momentum."""
    steps = _history(subject)
    momentum = getattr(subject.layer, "momentum", ...)
    if momentum == 0:
        raise DoesNotApply("momentum is 0")
    weights = [step.weight for step in steps]
    if max(map(abs, weights)) < 1e-6:
        if moves_alike(subject).passed is False:
            raise NotTested("they move by the gradients alone", "Mend that first.")
        why = "what is held never moves"
        if moved := _moved_means(subject):
            why = f"{moved} moves, and evaluation does not subtract it"
        return Fault(
            f"after {STEPS} batches evaluation still uses the first mean: {why}.",
            "Update the running statistics in training mode, and evaluate by them.",
        )
    if not all(step.is_average for step in steps):
        if text := _corrected(subject, steps):
            return Fault(f"{text}.", CORRECTED)
        batch, before, after = (of.mean[0].item() for of in steps[-1][1:4])
        why = _taken_in(subject, steps, "mean")
        return Fault(
            f"{why}after a batch the running mean is no average of what it was, "
            f"{before:.3g}, and the mean of the batch, {batch:.3g}: it is {after:.3g} "
            "(first channel).",
            f"{AVERAGE}.",
        )
    seen = ", ".join(f"{weight:.3g}" for weight in weights)
    first, *_, last = weights
    is_constant = abs(last - first) < TOLERANCE
    is_plain = abs(last - first / (1 + (STEPS - 1) * first)) < TOLERANCE
    is_late = is_plain and not is_constant and first < FORGETFUL
    if is_late and not steps[0].before.mean.any():
        return Fault(
            f"the weights of the new mean are {seen}, those of a plain average that "
            "counts what the layer begins with, 0, as a batch: the count of batches is "
            "too large.",
            "Give the first batch the weight 1.",
        )
    if momentum is None and not is_plain:
        return Fault(
            "momentum=None means a plain average of all batches, weights 1, 1/2, "
            f"1/3, ...; seen {seen}.",
            "Give the new value the weight 1 / number of batches so far.",
        )
    if isinstance(momentum, float | int) and not (
        is_constant and abs(first - momentum) < TOLERANCE
    ):
        reason = f"momentum is {momentum:g}, and the weight of the new mean in four "
        reason += f"batches is {seen}"
        debiased = [momentum / (1 - (1 - momentum) ** k) for k in range(1, STEPS + 1)]
        if all(abs(w - d) < TOLERANCE for w, d in zip(weights, debiased, strict=True)):
            reason += (
                ": the average is corrected for its start, as in Adam. This differs "
                "from torch, which lets the start fade"
            )
        if abs(1 - first - (1 - momentum) ** 2) < TOLERANCE:
            reason += ": that of two updates in each call, 1 - (1 - momentum)^2"
        elif abs(first - 1) < TOLERANCE:
            reason += ": the last batch replaces the average"
        if abs(first - (1 - momentum)) < TOLERANCE:
            reason += (
                ": momentum is the weight of the old value here, as in Keras. This "
                "differs from torch, where it is that of the new one"
            )
        return Fault(f"{reason}.", f"{AVERAGE}, or call the attribute decay.")
    if not (is_constant or is_plain):
        return Fault(
            "the weight of the new mean is neither constant nor that of a plain "
            f"average: {seen}.",
            f"{AVERAGE}.",
        )
    if is_constant and last > FORGETFUL:
        return Note(
            f"the last batch alone weighs {last:.3g} in the running statistics. In "
            f"torch momentum is the weight of the new value: Keras's {last:.3g} is "
            f"{1 - last:.3g} here.",
            "only the last batch",
        )
    return None


def _corrected(subject: Subject, steps: list[_Step]) -> str:
    """Say how evaluation corrects what is held for its start, if that is wrong."""
    momentum = getattr(subject.layer, "momentum", None)
    bessel = steps[0].n / (steps[0].n - 1)
    found: dict[str, str] = {}
    for which, name, factor in (("mean", "mean", 1.0), ("var", "variance", bessel)):
        text = correction(
            [getattr(step.after, which) for step in steps],
            [step.held for step in steps],
            [factor * getattr(step.batch, which) for step in steps],
            momentum,
        )
        found |= {f"the {name}": text} if text else {}
    if not found:
        return ""
    return f"Of {' and '.join(found)}: {next(iter(found.values()))}"


def _moved_means(subject: Subject) -> str:
    """Name what is called a mean and is moved by training, if anything is."""
    before = dict(tensors_of(subject.layer))
    return next(
        (
            name
            for name, value in tensors_of(_trained(subject))
            if name.rpartition(".")[2] in MEANS
            and not (name in before and torch.equal(before[name], value))
        ),
        "",
    )


@claim("the running variance averages the unbiased variances", STATE_CLAIMS)
def running_variance(subject: Subject) -> Fault | None:
    """Work out which variance each batch added."""
    steps = _history(subject)
    if not all(step.is_average and abs(step.weight) > 1e-6 for step in steps):
        raise DoesNotApply("the running mean is no average")
    n = steps[0].n
    bessel = n / (n - 1)

    def misfit(factor: float) -> float:
        return max(largest(s.taken / (factor * s.batch.var) - 1) for s in steps)

    if misfit(bessel) < max(TOLERANCE / steps[0].weight * 0.1, 1e-6):
        return None
    if text := _corrected(subject, steps):
        return Fault(f"{text}.", CORRECTED)
    reason = _variance_reason(steps[-1], bessel, subject.eps)
    reason = _taken_in(subject, steps, "var") * (": " not in reason) + reason
    if misfit(1.0) < TOLERANCE:
        reason = (
            f"the biased variance of the batch is averaged: with n = {n} values it "
            f"takes in {(n - 1) / n:.3g} for 1, and evaluation gives standard "
            f"deviation {bessel**0.5:.4g} for 1. This differs from torch; Keras and "
            "Flax do it."
        )
    cure = "running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)."
    return Fault(reason, cure)


def _taken_in(subject: Subject, steps: list[_Step], which: str) -> str:
    """Say of which numbers of the batches a running statistic is made, if it shows."""
    batches = [statistics_of(step.x, step.after.mean) for step in steps]
    sizes = steps[0].n, len(steps[0].x)
    readings: dict[str, Callable[[Tensor], Tensor]] = {"": lambda value: value}
    if which == "var":
        readings |= {
            "evaluation divides by the running variance, not by its root, and ": (
                lambda value: (value + subject.eps).sqrt() - subject.eps
            ),
            "evaluation takes one root too many, and ": torch.square,
        }
    for how, read in readings.items():
        before, after = (
            [read(getattr(at, which)) for at in (getattr(s, time) for s in steps)]
            for time in ("before", "after")
        )
        if (found := explained(before, after, batches)) is None:
            continue
        name = "mean" if which == "mean" else "variance"
        momentum = getattr(subject.layer, "momentum", None)
        return f"{how}{in_words(found, name, momentum, sizes)}: "
    return ""


def _variance_reason(step: _Step, bessel: float, eps: float) -> str:
    w, old = step.weight, step.before.var
    known: dict[str, Tensor] = {}
    for name, factor in (("unbiased", bessel), ("biased", 1.0)):
        new = factor * step.batch.var
        root = (1 - w) * old.sqrt() + w * new.sqrt()
        known |= {
            f"standard deviations are averaged and squared (those of the {name} "
            "variance): too small, since the square of a mean is less than the mean "
            "of squares": root.square(),
            f"old and new value have each other's weight (of the {name} variance)": (
                w * old + (1 - w) * new
            ),
            f"the {name} variance replaces the average": new,
            f"the {name} variance is added to the whole old value": old + w * new,
            "it never changes": old,
            f"standard deviations are kept in place of the {name} variance": (
                (1 - w) * old + w * new.sqrt()
            ),
        }
    seen = step.after.var
    expected = (1 - w) * old + w * bessel * step.batch.var
    in_it = "eps is averaged with the variance, and evaluation adds it again"
    for plus in (eps, bessel * eps):
        # It is small beside the variance, and so is looked for in the difference.
        if largest((seen - expected) / (w * plus) - 1) < 0.1:
            return f"{in_it}: by {w * plus:.3g} a batch it is too large."
    name = named(known, lambda value: largest(value / seen - 1) < TOLERANCE)
    return (
        f"{name}after a batch the running variance is {seen[0]:.3g}, expected "
        f"{expected[0]:.3g} (first channel)."
    )


@claim("the running statistics hold no graph", STATE_CLAIMS)
def no_graph(subject: Subject) -> Fault | None:
    """Look for tensors with a grad_fn after training, and count what hangs on them."""
    if subject.kind != "none":  # that of a relative
        _need_statistics(subject)
    before = dict(subject.fresh().named_parameters())
    after = dict(_trained(subject).named_parameters())
    moved = [n for n in before if not torch.equal(before[n], after.get(n, before[n]))]
    if moved := [name for name in moved if name in subject.learned]:
        return Fault(
            f"training mode writes to {' and '.join(moved)} without an optimizer: "
            "they are running statistics, and parameters with a gradient. An optimizer "
            "moves them as well, by weight decay or by what evaluation gives them.",
            'Use self.register_buffer("running_mean", ...), or requires_grad=False.',
        )
    short, long = (_held(_trained(subject, count)) for count in (STEPS, 2 * STEPS))
    if not long:
        return None
    name, last = next(iter(long.items()))
    first = short.get(name, 0)
    reason = (
        f"the last batch until the next one: {last} operations, and all that they "
        "hold. And"
    )
    if last > first:
        reason = (
            f"every batch it has seen: {first} operations after {STEPS} batches, "
            f"{last} after {2 * STEPS}. Memory grows with every step, and"
        )
    return Fault(
        f"{name} keeps the autograd graph of {reason} deepcopy refuses.",
        "Update under torch.no_grad(), or from mean.detach() and var.detach().",
    )


def _held(layer: nn.Module) -> dict[str, int]:
    return {n: graph_nodes(t) for n, t in tensors_of(layer) if t.grad_fn is not None}


@claim("deepcopy and pickle work after training, and copy the statistics")
def copies(subject: Subject) -> Fault | None:
    """Copy a trained layer both ways and compare evaluations."""
    cure = "Keep only parameters, buffers and plain values as attributes, detached."

    def refused(what: str, error: Exception) -> Fault:
        first = str(error).split(".")[0]
        return Fault(f"{what} raises {type(error).__name__}: {first}.", cure)

    if subject.copy_error is not None:
        return refused("copy.deepcopy of the layer as given", subject.copy_error)
    layer = _trained(subject)
    x = subject.draw(9, 1.0).to(subject.dtype)
    expected = _evaluate(layer, x)
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {"copy.deepcopy": copy.deepcopy}
    with suppress(Exception):  # a class made in a function: no fault of its state
        pickle.dumps(subject.layer)
        ways["pickle"] = lambda layer: pickle.loads(pickle.dumps(layer))  # noqa: S301
    for name, way in ways.items():
        try:
            again = way(layer)
        except Exception as error:  # noqa: BLE001 - whatever the layer raises
            return refused(f"{name} of the trained layer", error)
        if not torch.allclose(_evaluate(again, x), expected):
            return Fault(
                f"after {name} the layer evaluates an input differently.",
                "Keep the statistics in buffers.",
            )
    return None


@claim("state_dict carries the running statistics", STATE_CLAIMS)
def state_dict(subject: Subject) -> Fault | None:
    """Load the state of a trained layer into a fresh one; evaluate, train on."""
    _need_statistics(subject)
    layer, fresh = _trained(subject), subject.fresh()
    x = _batch(subject, 9)
    state, empty = layer.state_dict(), fresh.state_dict()
    cure = 'Use self.register_buffer("running_mean", ...), and write to it in place or '
    cure += "by assignment."
    has = f"the state_dict has {', '.join(state) or 'nothing'}: "
    missing = f"{has}the moving statistics are no buffers"
    values = {key: v for key, v in state.items() if isinstance(v, Tensor)}
    if any(k in empty and not torch.equal(v, empty[k]) for k, v in values.items()):
        missing = f"{has}something else that evaluation uses is no buffer"
    other = "a fresh layer with the state_dict of a trained one"
    if changed := changed_by_loading(layer, fresh, subject.eps):
        return Fault(
            f"load_state_dict changes what it loads: {changed}. So a layer that is "
            "saved and loaded evaluates differently.",
            AS_SAVED,
        )
    expected = _evaluate(layer, x)
    try:
        loaded = _evaluate(fresh, x)
    except LayerError as error:
        return Fault(f"{other} cannot evaluate, it raises {error}; {missing}.", cure)
    if not _alike(expected, loaded):
        return Fault(f"{other} evaluates differently; {missing}.", cure)
    for each in (layer, fresh):
        call(each, _batch(subject, 20 + STEPS))
    if _alike(_evaluate(layer, x), _evaluate(fresh, x)):
        return None
    return Fault(
        f"{other} evaluates the same, but not after one more batch; {has}what weighs "
        "the new batch, a count perhaps, is no buffer.",
        'Use self.register_buffer("num_batches_tracked", torch.tensor(0)).',
    )


def _alike(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)


@claim("evaluation works before any training", STATE_CLAIMS)
def untrained(subject: Subject) -> Fault | None:
    """Evaluate a layer as it was given."""
    _need_statistics(subject)
    cure = "Begin with buffers, a running mean of 0 and a running variance of 1."
    try:
        _evaluate(subject.fresh(), _batch(subject, 9))
    except LayerError as error:
        before = "before the first batch in training mode, evaluation raises"
        return Fault(f"{before} {error}.", cure)
    mean, var = _averages(subject, subject.fresh())
    if largest(mean) < 1e-6 and largest(var) < 1e-3:
        return Fault(
            f"the running variance begins at {var[0].abs():.2g}: before the first "
            f"batch evaluation multiplies x by {(var[0] + subject.eps) ** -0.5:.3g}, "
            "and after few batches by too much.",
            cure,
        )
    return None


@claim("the running statistics move alike without gradients", STATE_CLAIMS)
def moves_alike(subject: Subject) -> Fault | None:
    """Train under no_grad, and with frozen parameters; compare evaluations."""
    _need_statistics(subject)
    x = _batch(subject, 9)
    expected = _evaluate(_trained(subject), x)
    with torch.no_grad():
        without = _evaluate(_trained(subject), x)
    frozen = subject.fresh().requires_grad_(False)
    for where, seen in (
        ("under no_grad", without),
        ("with requires_grad=False", _evaluate(_trained_on(subject, frozen), x)),
    ):
        if not _alike(seen, expected):
            return Fault(
                f"in training mode {where} the running statistics become others, and "
                f"evaluation changes by up to {largest(seen - expected):.2g}.",
                "Let self.training alone decide whether they move, not the gradients.",
            )
    return None


@claim("eval() means the same with gradients on and off", STATE_CLAIMS)
def evaluation_mode(subject: Subject) -> Fault | None:
    """Evaluate one trained layer with grad enabled and disabled."""
    layer = _trained(subject) if subject.kind == "batch" else subject.fresh()
    return _grad_fault(subject, evaluating(layer), "after eval()")


@claim("train() uses the batch, with gradients on and off", STATE_CLAIMS)
def training_mode(subject: Subject) -> Fault | None:
    """Run in training mode with grad enabled and disabled."""
    return _grad_fault(subject, subject.layer, "in training mode")


def _grad_fault(subject: Subject, layer: nn.Module, when: str) -> Fault | None:
    x = _batch(subject, 9)
    with torch.enable_grad():
        on = call(copy_of(layer), x).detach()
    with torch.no_grad():
        off = call(copy_of(layer), x)
    if _alike(on, off):
        return None
    return Fault(
        f"{when} the output depends on whether gradients are recorded, by up to "
        f"{largest(on - off):.2g}: the mode is taken from torch.is_grad_enabled().",
        "Ask self.training.",
    )


def _few(subject: Subject, seed: int) -> Tensor:
    return draw(subject.small, seed, 1.0).to(subject.dtype)


def _need_pure_evaluation(subject: Subject) -> None:
    """Leave a claim where an evaluation depends on more than x and what is held."""
    x, layer = _few(subject, 9), subject.fresh()
    cure = "Mend the evaluation first."
    try:
        expected = _evaluate(layer, x)
        recorded = _evaluate(layer, x, is_recorded=True)
        call(evaluating(layer), _few(subject, 10))
        is_pure = _alike(expected, recorded) and _alike(_evaluate(layer, x), expected)
    except LayerError as error:
        raise NotTested(f"a fresh layer cannot evaluate: {error}", cure) from error
    if not is_pure:
        raise NotTested("an evaluation depends on more than its input", cure)


@claim("the gradient in evaluation is that of the output")
def in_evaluation(subject: Subject) -> Fault | None:
    """Compare with differences along a direction, after a batch in training mode."""
    if subject.dtype not in (torch.float32, torch.float64):
        raise DoesNotApply("differences need more digits")
    if by_x(subject).passed is False:
        raise DoesNotApply("the gradient in training is wrong already")
    if subject.definition.size(subject.shape) < 3:
        raise DoesNotApply("of two values the gradient is rounding")
    _need_pure_evaluation(subject)
    x, dl_dy = point(subject)
    layer = subject.fresh()
    call(layer, x.to(subject.dtype))
    evaluating(layer)
    leaf = x.to(subject.dtype, copy=True).requires_grad_()
    places = {"x": leaf}
    if by_parameters(subject).passed:
        places |= {name: layer.get_parameter(name) for name in subject.names}
    backward(call(layer, leaf), dl_dy)
    grads = {name: place.grad for name, place in places.items()}
    for seed, (name, place) in enumerate(places.items()):
        grad = grads[name]
        if grad is None:
            return Fault(
                f"after eval() {name} gets no gradient.",
                "Compute the output outside no_grad, in evaluation too.",
            )
        direction = normal(tuple(place.shape), 30 + seed).to(place.dtype)
        seen = (grad * direction).sum().item()
        expected = 0.0
        for sign in (1, -1):
            with torch.no_grad():
                place.add_(sign * DIFFERENCE * direction)
                y = call(layer, leaf).double()
                place.sub_(sign * DIFFERENCE * direction)
            expected += sign * (dl_dy * y).sum().item() / (2 * DIFFERENCE)
        size = max(abs(seen), abs(expected), 0.1 * grad.norm().item(), 1e-6)
        rough = 1 if subject.dtype == torch.float64 else 30
        if abs(seen - expected) > 3 * rough * TOLERANCE * size:
            return Fault(
                f"after eval() the gradient of {name} along a direction is "
                f"{seen:.4g}, and the output changes by {expected:.4g} along it.",
                "Let autograd pass through the evaluation, or check its closed form.",
            )
    return None


@claim("evaluation follows what the layer holds")
def follows(subject: Subject) -> Fault | None:
    """Evaluate, then change what the layer holds, in two ways, and evaluate again."""
    _need_pure_evaluation(subject)
    x = _few(subject, 9)
    other = subject.fresh()
    subject.set_affine(1, other)
    call(other, _few(subject, 8))
    changed = changed_by_loading(other, subject.fresh(), subject.eps)
    if changed and subject.claims_no_statistics:  # else a claim of its own tells it
        return Fault(f"load_state_dict changes what it loads: {changed}.", AS_SAVED)
    state = other.state_dict()
    seen, fresh = subject.fresh(), subject.fresh()
    call(evaluating(seen), x)
    with of_the_layer():
        seen.load_state_dict(state)
        fresh.load_state_dict(state)
    after = "after load_state_dict into a layer that has evaluated before"
    if _alike(_evaluate(seen, x), _evaluate(fresh, x)):
        seen, fresh = subject.fresh(), subject.fresh()
        call(evaluating(seen), x)
        for layer in (seen, fresh):
            layer.train()
            call(layer, _few(subject, 8))
        after = "after a batch in training mode behind an evaluation"
        if _alike(_evaluate(seen, x), _evaluate(fresh, x)):
            return None
    old = [*ignored(subject.fresh, state, lambda v: call(evaluating(v), x), _alike)]
    rest = [
        n for n, v in state.items() if isinstance(v, Tensor) and v.is_floating_point()
    ]
    rest = [name for name in rest if name not in old]
    what = f"the {' and '.join(old)} that it held before" if old else ""
    what += f", and {', '.join(rest)} as now" if old and rest else ""
    return Fault(
        f"{after} the layer evaluates by {what or 'what it held before'}: eval() or "
        "the first call keeps a copy.",
        "Compute from parameters and buffers in every call, or drop the copy when they "
        "change.",
    )


@claim("one example with several positions is a batch", STATE_CLAIMS)
def one_example(subject: Subject) -> Fault | None:
    """Train on one example alone; its positions give mean and variance."""
    need_right_statistics(subject)
    if subject.kind != "batch" or len(subject.shape) == 2:
        raise DoesNotApply("an example has no positions")
    x = draw(subject.sized(1), 25)
    if x.numel() == x.shape[1]:
        raise DoesNotApply("an example has one position")
    a, b = subject.affine
    if abs(subject.factor - 1) > TOLERANCE or subject.takes_unbiased:
        raise DoesNotApply("the output has another scale")
    y, expected = subject.output(x), a * subject.x_hat(x) + b
    if largest(y - expected) < TOLERANCE * largest(expected):
        return None
    return Fault(
        f"one example alone, of shape {tuple(x.shape)}, is off by up to "
        f"{largest(y - expected):.2g} in training mode: it is not normalized by the "
        "mean and variance of its positions.",
        "Treat a batch of one like any other: no squeeze, no way of its own.",
    )


@claim("evaluation leaves the running statistics as they are", STATE_CLAIMS)
def evaluation_keeps(subject: Subject) -> Fault | None:
    """Evaluate other data; compare the state of the layer, and what it evaluates."""
    _need_statistics(subject)
    layer = _trained(subject)
    x = _batch(subject, 9)
    expected = _evaluate(layer, x)
    evaluating(layer)
    layer.train()
    if not _alike(_evaluate(layer, x), expected):
        return Fault(
            "after eval() and train() alone, without a batch, evaluation is another: a "
            "change of mode resets or moves the running statistics.",
            "Let eval() and train() set the mode, and nothing else.",
        )
    before = {name: value.detach().clone() for name, value in tensors_of(layer)}
    call(evaluating(layer), _batch(subject, 10, 10.0))
    is_other = not _alike(_evaluate(layer, x), expected)
    for name, value in tensors_of(layer):
        # What is kept elsewhere, the last input, say, may change if nothing uses it.
        is_state = is_other or name in layer.state_dict()
        if is_state and name in before and not torch.equal(before[name], value):
            return Fault(
                f"a call in evaluation mode changes {name}: what is measured leaks "
                "into the model.",
                "Update only if self.training.",
            )
    return None


@claim("evaluation of an example does not depend on the others", STATE_CLAIMS)
def neighbours(subject: Subject) -> Fault | None:
    """Evaluate examples alone, and beside others."""
    _need_statistics(subject)
    layer = _trained(subject)
    x = _batch(subject, 9, size=2 * EXAMPLES)
    first = x[:EXAMPLES]
    together = _evaluate(layer, x, is_recorded=True)[:EXAMPLES]
    alone = _evaluate(layer, first, is_recorded=True)
    change = largest(together - alone)
    if change < 1e-4:
        return _other_numbers(layer, x)
    by_batch = call(layer.train(), first).detach().double()
    why = "the batch gets into what evaluation normalizes by"
    if largest(alone - by_batch) < 1e-4:
        why = "evaluation normalizes by the batch, as training does"
    return Fault(
        f"four examples evaluated beside four others change by up to {change:.2g}: "
        f"{why}.",
        "With self.training False, use the running mean and variance, and no more.",
    )


def _other_numbers(layer: nn.Module, x: Tensor) -> Fault | None:
    """Evaluate the first few of x, which as a whole the layer takes."""
    expected = _evaluate(layer, x)
    for count in (1, 2, 3, 5, 7):
        number = "one example" if count == 1 else f"{count} examples"
        try:
            change = largest(expected[:count] - _evaluate(layer, x[:count]))
        except LayerError as error:
            return Fault(
                f"evaluation of {number} raises {error}; {len(x)} examples are taken.",
                "In evaluation take any number: no parts of a batch, and no statistics "
                "of it.",
            )
        if change > 1e-4:
            return Fault(
                f"{number} evaluated alone change{'s' * (count == 1)} by up to "
                f"{change:.2g}.",
                "Treat a batch of one like any other.",
            )
    return None


@claim("a batch with one value for each channel is refused in training", STATE_CLAIMS)
def single_value(subject: Subject) -> Fault | None:
    """Feed one example with one position: its deviation from its mean is 0."""
    if subject.kind != "batch":
        raise DoesNotApply("only batch norm is meant to refuse")
    shape = (1, subject.shape[1], *(1 for _ in subject.shape[2:]))
    x = torch.ones(shape, dtype=subject.dtype)
    try:
        y, other = (call(subject.fresh(), x * factor) for factor in (1, 2))
    except LayerError:  # the refusal, whatever its type
        return None
    what = "NaN" if y.isnan().any() else "the bias, whatever the input"
    if largest(other - y) > TOLERANCE:
        what = "not normalized: it changes with x"
    return Fault(
        f"for an input of shape {shape} the output is {what}; torch refuses: with "
        "one value the deviation from the mean is 0.",
        "Raise a ValueError if a channel has a single value and self.training.",
    )
