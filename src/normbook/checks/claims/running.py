"""Claims about running statistics: how evaluation uses them, and what they average."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from normbook.checks.calls import LayerError, call, of_the_layer
from normbook.checks.claim import (
    Claim,
    DoesNotApply,
    Fault,
    Note,
    NotTested,
    claim,
    once,
)
from normbook.checks.claims.output import eps_place, two_settings
from normbook.checks.claims.trained_layers import (
    EXAMPLES,
    STEPS,
    Averages,
    Step,
    alike,
    averages,
    batch_for,
    by_channel,
    evaluate,
    line_of,
    need_fixed_statistics,
    need_statistics,
    trained,
)
from normbook.checks.copies import moved, tensors_of
from normbook.checks.layer.recognition import MEANS
from normbook.checks.layer.subject import Subject
from normbook.checks.slips.averages import (
    correction,
    explained,
    in_words,
    statistics_of,
)
from normbook.checks.slips.evaluation_formula import Lines, formula, wrong_height
from normbook.checks.tensors import TOLERANCE, largest

RUNNING_CLAIMS: list[Claim[Subject]] = []

# The weight of a new value that leaves nearly nothing of the old one.
FORGETFUL = 0.8

SHIFT = 5.0

CORRECTED = (
    "Divide by 1 - (1 - momentum)^k, or begin with 0 and 1 and divide by nothing."
)
AVERAGE = "running_mean = (1 - momentum) * running_mean + momentum * mean"


@once
def _history(subject: Subject) -> list[Step]:
    """Train on some batches and look after each, where that can be seen."""
    need_fixed_statistics(subject)
    if acts_alike(subject).passed is False:
        raise DoesNotApply("gain, bias or eps act in another way in evaluation")
    layer = subject.fresh()
    if callable(reset := getattr(layer, "reset_running_stats", None)):
        with of_the_layer():
            reset()
    try:
        before = averages(subject, layer)
    except LayerError:  # the claim about evaluation before training tells it
        call(layer, batch_for(subject, 19))
        before = averages(subject, layer)
    steps = []
    n = subject.definition.size(subject.sized(EXAMPLES))
    for k in range(STEPS):
        # Means above 0: taken for variances, they have roots.
        x = batch_for(subject, 20 + k) + SHIFT
        call(layer, x)
        batch = Averages(*map(by_channel, subject.definition.moments(x.double())))
        held = moved(subject.layer, layer, subject.shape[1])
        steps.append(Step(n, batch, before, averages(subject, layer), x, held))
        before = steps[-1].after
    return steps


@claim("gain, bias and eps act in evaluation as in training", RUNNING_CLAIMS)
@once
def acts_alike(subject: Subject) -> Fault | None:
    """Evaluate one trained layer with two settings of gain and bias, then without var.

    A slope must be as the gain, and the mean that a height tells must be one.
    """
    need_fixed_statistics(subject)
    if subject.as_set is None:
        raise DoesNotApply("gain and bias are not known by name")
    gains, biases, _, _ = two_settings(subject)
    a, b = gains.reshape(2, -1), biases.reshape(2, -1)
    layer = trained(subject)
    held = moved(subject.layer, layer, subject.shape[1])
    lines = []
    for seed in (1, 2):
        subject.set_affine(seed, layer)
        lines.append(line_of(subject, layer))
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
    layer = trained(subject)
    step = math.sqrt(subject.eps)

    def divisor() -> float:
        _, slope = line_of(subject, layer, step)
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


@claim("the running mean averages the means of the batches", RUNNING_CLAIMS)
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
        held, why = steps[0].held, "what is held never moves"
        for name, value in steps[-1].held.items():
            is_mean = name.rpartition(".")[2] in MEANS
            if is_mean and not value.equal(held.get(name, value)):
                why = f"{name} moves, and evaluation does not subtract it"
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
        other = ""
        if is_constant and abs(first - (1 - momentum)) < TOLERANCE:
            reason += (
                ": momentum is the weight of the old value here, as in Keras. This "
                "differs from torch, where it is that of the new one"
            )
            # At 0.99 somebody meant it; at 0.1 the last batch is nearly all.
            other = "momentum of Keras" if momentum > FORGETFUL else ""
        cure = f"{AVERAGE}, or call the attribute decay."
        return Fault(f"{reason}.", cure, other)
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


def _corrected(subject: Subject, steps: list[Step]) -> str:
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


@claim("the running variance averages the unbiased variances", RUNNING_CLAIMS)
def running_variance(subject: Subject) -> Fault | Note | None:
    """Work out which variance each batch added."""
    steps = _history(subject)
    if not all(step.is_average and abs(step.weight) > 1e-6 for step in steps):
        raise DoesNotApply("the running mean is no average")
    n = steps[0].n
    bessel = n / (n - 1)

    def misfit(factor: float) -> float:
        return max(largest(s.taken / (factor * s.batch.var) - 1) for s in steps)

    # What float32 loses in a small share must not hide the factor n / (n - 1).
    loss = min(TOLERANCE / steps[0].weight, bessel - 1)
    if misfit(bessel) < max(0.1 * loss, 1e-6):
        return None
    if _is_pooled(steps):
        return Note(
            "evaluation takes the mean and the variance of all values that training "
            "has seen, what lies between the batches with it, and not an average over "
            "batches.",
            "pooled statistics",
        )
    if text := _corrected(subject, steps):
        return Fault(f"{text}.", CORRECTED)
    last = steps[-1]
    expected = last.before.var + last.weight * (
        bessel * last.batch.var - last.before.var
    )
    reason = (
        f"{_taken_in(subject, steps, 'var')}after a batch the running variance is "
        f"{last.after.var[0]:.3g}, expected {expected[0]:.3g} (first channel)."
    )
    # What is small beside the variance is looked for in the difference.
    more = (last.after.var - expected) / (last.weight * (subject.eps or 1.0))
    times = more.mean().item()
    if subject.eps and abs(times) > 0.1 and largest(more / times - 1) < 0.1:
        of = "eps" if abs(times / bessel**0.5 - 1) < 0.1 else f"{times:.3g} eps"
        reason = (
            f"{of} is averaged with the variance, and evaluation adds eps again: by "
            f"{times * last.weight * subject.eps:.3g} a batch it is too large."
        )
    other = ""
    if misfit(1.0) < TOLERANCE:
        reason = (
            f"the biased variance of the batch is averaged: with n = {n} values it "
            f"takes in {(n - 1) / n:.3g} for 1, and evaluation gives standard "
            f"deviation {bessel**0.5:.4g} for 1. This differs from torch; Keras and "
            "Flax do it."
        )
        moving = any("moving" in name for name, _ in subject.layer.named_buffers())
        is_of_keras = moving or running_mean(subject).other
        other = "biased variance of Keras" if is_of_keras else ""
    cure = "running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)."
    return Fault(reason, cure, other)


def _is_pooled(steps: list[Step]) -> bool:
    for k, step in enumerate(steps):
        seen = (
            torch.cat([s.x for s in steps[: k + 1]]).double().movedim(1, 0).flatten(1)
        )
        variances = (seen.var(1, correction=c) for c in (0, 1))
        if not any(largest(step.after.var / v - 1) < TOLERANCE for v in variances):
            return False
    return True


def _taken_in(subject: Subject, steps: list[Step], which: str) -> str:
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
        if how and found.what == "the standard deviation of the batch":
            how = "standard deviations are averaged and squared, and "
        name = "mean" if which == "mean" else "variance"
        momentum = getattr(subject.layer, "momentum", None)
        return f"{how}{in_words(found, name, momentum, sizes)}: "
    return ""


@claim("the running statistics move alike without gradients", RUNNING_CLAIMS)
def moves_alike(subject: Subject) -> Fault | None:
    """Train under no_grad, and with frozen parameters; compare evaluations."""
    need_statistics(subject)
    x = batch_for(subject, 9)
    expected = evaluate(trained(subject), x)
    with torch.no_grad():
        without = evaluate(trained(subject), x)
    frozen = trained(subject, layer=subject.fresh().requires_grad_(False))
    for where, seen in (
        ("under no_grad", without),
        ("with requires_grad=False", evaluate(frozen, x)),
    ):
        if not alike(seen, expected):
            return Fault(
                f"in training mode {where} the running statistics become others, and "
                f"evaluation changes by up to {largest(seen - expected):.2g}.",
                "Let self.training alone decide whether they move, not the gradients.",
            )
    return None
