"""Claims about running statistics, modes and copies of a batch norm layer.

What a layer averaged is read from its evaluation, not from its buffers: there the
output is a straight line in x, and its slope and height tell the mean and the variance
that were used, whatever they are called and wherever they are kept.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, call, of_the_layer
from normbook.checks.claim import DoesNotApply, Fault, claim
from normbook.checks.copies import copy_of, graph_nodes, tensors_of
from normbook.checks.definitions import moments
from normbook.checks.output_claims import (
    eps_place,
    need_right_statistics,
    two_settings,
)
from normbook.checks.subject import TOLERANCE, Subject, draw

__all__ = ["COPY_CLAIMS", "STATE_CLAIMS"]

# Batches of 4: there the biased variance is three quarters of the unbiased one.
EXAMPLES = 4
STEPS = 4


class Averages(NamedTuple):
    """What evaluation normalizes by."""

    mean: Tensor
    var: Tensor


def need_statistics(subject: Subject) -> None:
    """Leave a claim about running statistics where a layer says it has none."""
    if subject.claims_no_statistics:
        raise DoesNotApply("the layer keeps no running statistics")


def evaluate(layer: nn.Module, x: Tensor, *, is_recorded: bool = False) -> Tensor:
    """Return the output of a copy in evaluation mode."""
    with torch.set_grad_enabled(is_recorded):
        return call(copy_of(layer).eval(), x).detach().double()


def batches(subject: Subject, count: int = STEPS) -> list[Tensor]:
    """Return small batches for training."""
    shape = subject.sized(EXAMPLES)
    return [draw(shape, 20 + k, 1.0).to(subject.dtype) for k in range(count)]


def trained(subject: Subject, count: int = STEPS) -> nn.Module:
    """Return a copy that has seen some batches, each with a backward pass to come."""
    layer = subject.fresh()
    for x in batches(subject, count):
        call(layer, x.requires_grad_())
    return layer


def averages(subject: Subject, layer: nn.Module) -> Averages:
    """Read from evaluation which mean and variance it normalizes by."""
    at_0, slope = line(subject, layer)
    a, b = (value.flatten() for value in subject.affine)
    if (slope.abs() < 1e-6 * a.abs()).any():
        raise DoesNotApply("evaluation does not normalize by fixed statistics")
    return Averages((b - at_0) / slope, (a / slope) ** 2 - subject.eps)


def line(
    subject: Subject, layer: nn.Module, step: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return height at x = 0 and slope of the evaluation, for each channel."""
    zeros = torch.zeros(subject.sized(EXAMPLES), dtype=subject.dtype)
    at_0 = _by_channel(evaluate(layer, zeros))
    return at_0, (_by_channel(evaluate(layer, zeros + step)) - at_0) / step


def _by_channel(y: Tensor) -> Tensor:
    return y.movedim(1, -1).flatten(0, -2).mean(0)


class Step(NamedTuple):
    """One batch, and the averages before and after it."""

    mean: Tensor
    var: Tensor
    size: int
    before: Averages
    after: Averages

    @property
    def weight(self) -> float:
        """Return the share of the new mean in the running mean."""
        new = self.mean - self.before.mean
        moved = self.after.mean - self.before.mean
        return ((moved * new).sum() / new.square().sum()).item()

    @property
    def is_average(self) -> bool:
        """Return whether the running mean moved straight towards the batch's."""
        new = self.mean - self.before.mean
        error = self.after.mean - self.before.mean - self.weight * new
        return bool(error.abs().max() < TOLERANCE * new.abs().max())

    @property
    def taken(self) -> Tensor:
        """Return the variance that the running variance took in."""
        moved = self.after.var - self.before.var
        return self.before.var + moved / self.weight


def history(subject: Subject) -> list[Step]:
    """Train on some batches and look after each."""
    layer = subject.fresh()
    reset = getattr(layer, "reset_running_stats", None)
    if callable(reset):
        with of_the_layer():
            reset()
    steps = []
    try:
        before = averages(subject, layer)
    except LayerError:  # the claim about evaluation before training tells it
        call(layer, draw(subject.sized(EXAMPLES), 19, 1.0).to(subject.dtype))
        before = averages(subject, layer)
    for x in batches(subject):
        call(layer, x)
        after = averages(subject, layer)
        grouped, axes = subject.definition.view(x.double())
        mean, var = moments(grouped, axes)
        if subject.kind == "instance":
            mean, var = mean.mean(0), var.mean(0)
        size = subject.definition.size(tuple(x.shape))
        steps.append(Step(mean.flatten(), var.flatten(), size, before, after))
        before = after
    return steps


def need_fixed_statistics(subject: Subject) -> None:
    """Leave a claim that reads the statistics from evaluation, where it cannot."""
    need_statistics(subject)
    need_right_statistics(subject)
    layer = trained(subject).eval()
    x = draw(subject.sized(2 * EXAMPLES), 9, 1.0).to(subject.dtype)
    with torch.no_grad():
        together = call(layer, x)[:EXAMPLES]
        if _largest(together - call(layer, x[:EXAMPLES])) > 1e-4:
            raise DoesNotApply("evaluation does not normalize by fixed statistics")


def need_history(subject: Subject) -> list[Step]:
    """Return the history of a layer that can have one."""
    need_fixed_statistics(subject)
    if acts_alike(subject).passed is False:
        raise DoesNotApply("gain, bias or eps act in another way in evaluation")
    return history(subject)


@claim("gain, bias and eps act in evaluation as in training")
def acts_alike(subject: Subject) -> Fault | None:
    """Evaluate one trained layer with two settings of gain and bias, then without var.

    With the same statistics, whatever they are, a slope must be as the gain, and the
    mean that a height tells must be one.
    """
    need_fixed_statistics(subject)
    if subject.as_set is None:
        raise DoesNotApply("gain and bias are not known by name")
    a, b, _, _ = two_settings(subject)
    a, b = a.reshape(2, -1), b.reshape(2, -1)
    layer = trained(subject)
    heights, slopes = [], []
    for seed in (1, 2):
        subject.set_affine(seed, layer)
        height, slope = line(subject, layer)
        heights.append(height)
        slopes.append(slope)
    cure = "End both modes with the same gain * x_hat + bias."
    size = max(map(_largest, slopes))
    error = _largest(slopes[0] * a[1] - slopes[1] * a[0]) / (size * _largest(a))
    if error > 0.01:
        return Fault(
            f"with another gain, the slope in evaluation is off by {error:.2g} of the "
            "largest from what the same change does in training: the gain acts in "
            "another way.",
            cure,
        )
    moved = (b[0] - heights[0]) * slopes[1] - (b[1] - heights[1]) * slopes[0]
    error = _largest(moved) / size
    if error > 0.01:
        return Fault(
            f"with another bias, the output of evaluation is off by {error:.2g} from "
            "what the same change does in training: the bias acts in another way.",
            cure,
        )
    return _eps_fault(subject)


def _eps_fault(subject: Subject) -> Fault | None:
    """Take what training changed almost to 0: a divisor of sqrt(eps) must be left."""
    if subject.eps <= 0 or eps_place(subject).passed is not True:
        return None
    layer = trained(subject)
    step = math.sqrt(subject.eps)
    a = subject.affine[0].flatten()
    usual = (a / line(subject, layer, step)[1]).abs().mean().item()
    before = dict(tensors_of(subject.layer))
    for name, value in tensors_of(layer):
        is_moved = name not in before or not torch.equal(value, before[name])
        # A counter of steps has fewer values.
        if is_moved and value.is_floating_point() and value.numel() >= subject.shape[1]:
            value.data.mul_(1e-20)
    divisor = (a / line(subject, layer, step)[1]).abs().mean().item()
    # Where the divisor did not fall, no variance was among what training changed.
    if not divisor < 0.9 * usual or abs(divisor / step - 1) < 0.02:
        return None
    return Fault(
        f"with a running variance of 0, evaluation divides by {divisor:.3g}, expected "
        f"sqrt(eps) = {step:.3g}, as in training.",
        "Divide by (running_var + eps).sqrt(), with the same eps.",
    )


@claim("the running mean averages the means of the batches")
def running_mean(subject: Subject) -> Fault | None:
    """Measure the weight of the new value in each step."""
    steps = need_history(subject)
    weights = [step.weight for step in steps]
    if getattr(subject.layer, "momentum", None) == 0:
        raise DoesNotApply("momentum is 0")
    if max(abs(weight) for weight in weights) < 1e-6:
        return Fault(
            f"after {STEPS} batches evaluation still uses the first mean.",
            "Update the running statistics in training mode.",
        )
    if not all(step.is_average for step in steps):
        step = steps[-1]
        return Fault(
            "after a batch the running mean is no average of what it was, "
            f"{step.before.mean[0]:.3g}, and the mean of the batch, "
            f"{step.mean[0]:.3g}: it is {step.after.mean[0]:.3g} (first channel).",
            "running_mean = (1 - momentum) * running_mean + momentum * mean.",
        )
    return _weight_fault(subject, weights)


def _listed(weights: list[float]) -> str:
    return ", ".join(f"{weight:.3g}" for weight in weights)


def _weight_fault(subject: Subject, weights: list[float]) -> Fault | None:
    """Compare the weights of the new values with momentum as torch means it."""
    first, last = weights[0], weights[-1]
    is_constant = abs(last - first) < TOLERANCE
    plain = first / (1 + (len(weights) - 1) * first)
    momentum = getattr(subject.layer, "momentum", ...)
    if momentum is None and abs(last - plain) > TOLERANCE:
        return Fault(
            "momentum=None means a plain average of all batches, weights 1, 1/2, "
            f"1/3, ...; seen {_listed(weights)}.",
            "Give the new value the weight 1 / number of batches so far.",
        )
    if isinstance(momentum, float | int) and not (
        is_constant and abs(first - momentum) < TOLERANCE
    ):
        reason = f"momentum is {momentum:g}, and the weight of the new mean in four "
        reason += f"batches is {_listed(weights)}"
        debiased = [momentum / (1 - (1 - momentum) ** k) for k in range(1, STEPS + 1)]
        if max(map(abs, map(float.__sub__, weights, debiased))) < TOLERANCE:
            reason += (
                ": the average is corrected for its start, as in Adam. This differs "
                "from torch, which lets the start fade"
            )
        if abs(first - (1 - momentum)) < TOLERANCE:
            reason += (
                ": momentum is the weight of the old value here, as in Keras. This "
                "differs from torch, where it is that of the new one"
            )
        return Fault(
            f"{reason}.",
            "running_mean = (1 - momentum) * running_mean + momentum * mean, or call "
            "the attribute decay.",
        )
    if not is_constant and abs(last - plain) > TOLERANCE:
        return Fault(
            "the weight of the new mean is neither constant nor that of a plain "
            f"average: {_listed(weights)}.",
            "running_mean = (1 - momentum) * running_mean + momentum * mean.",
        )
    return None


@claim("the running variance averages the unbiased variances")
def running_variance(subject: Subject) -> Fault | None:
    """Work out which variance each batch added."""
    steps = need_history(subject)
    if not all(step.is_average and abs(step.weight) > 1e-6 for step in steps):
        raise DoesNotApply("the running mean is no average")
    bessel = steps[0].size / (steps[0].size - 1)
    error = max(_largest(step.taken / (bessel * step.var) - 1) for step in steps)
    if error < max(TOLERANCE / steps[0].weight * 0.1, 1e-6):
        return None
    n = steps[0].size
    cure = "running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)."
    if max(_largest(step.taken / step.var - 1) for step in steps) < TOLERANCE:
        return Fault(
            "the biased variance of the batch is averaged: with n = "
            f"{n} values it takes in {(n - 1) / n:.3g} for 1, and evaluation "
            f"gives standard deviation {(n / (n - 1)) ** 0.5:.4g} for 1. This differs "
            "from torch; Keras and Flax do it.",
            cure,
        )
    return Fault(_variance_reason(steps, bessel), cure)


def _variance_reason(steps: list[Step], bessel: float) -> str:
    step = steps[-1]
    expected = _moved(step, bessel * step.var)[0]
    reason = (
        f"after a batch the running variance is {step.after.var[0]:.3g}, expected "
        f"{expected:.3g} (first channel)"
    )
    for name, factor in (("unbiased", bessel), ("biased", 1.0)):
        old, new = step.before.var, factor * step.var
        w = step.weight
        known = {
            f"standard deviations are averaged and squared (those of the {name} "
            "variance): too small, since the square of a mean is less than the mean "
            "of squares": ((1 - w) * old.sqrt() + w * new.sqrt()).square(),
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
        for what, value in known.items():
            if _largest(value / step.after.var - 1) < TOLERANCE:
                return f"{what}: {reason}."
    return f"{reason}."


def _moved(step: Step, new: Tensor) -> Tensor:
    return (1 - step.weight) * step.before.var + step.weight * new


def _largest(values: Tensor) -> float:
    return values.abs().max().item()


@claim("the running statistics hold no graph")
def no_graph(subject: Subject) -> Fault | None:
    """Look for tensors with a grad_fn after training, and count what hangs on them."""
    need_statistics(subject)
    short = _held(trained(subject, STEPS))
    long = _held(trained(subject, 2 * STEPS))
    if not long:
        return None
    name = next(iter(long))
    cure = "Update under torch.no_grad(), or from mean.detach() and var.detach()."
    first, last = short.get(name, 0), long[name]
    if last <= first:
        return Fault(
            f"{name} keeps the autograd graph of the last batch until the next one: "
            f"{last} operations, and all that they hold. And deepcopy refuses.",
            cure,
        )
    return Fault(
        f"{name} keeps the autograd graph of every batch it has seen: "
        f"{first} operations after {STEPS} batches, {last} "
        f"after {2 * STEPS}. Memory grows with every step, and deepcopy refuses.",
        cure,
    )


def _held(layer: nn.Module) -> dict[str, int]:
    return {
        name: graph_nodes(tensor)
        for name, tensor in tensors_of(layer)
        if tensor.grad_fn is not None
    }


@claim("deepcopy and pickle work after training, and copy the statistics")
def copies(subject: Subject) -> Fault | None:
    """Copy a trained layer both ways and compare evaluations."""
    cure = "Keep only parameters, buffers and plain values as attributes, detached."
    if subject.copy_error is not None:
        return Fault(
            "copy.deepcopy of the layer as given raises "
            f"{type(subject.copy_error).__name__}: "
            f"{str(subject.copy_error).split('.')[0]}.",
            cure,
        )
    layer = trained(subject)
    x = draw(subject.shape, 9, 1.0).to(subject.dtype)
    expected = evaluate(layer, x)
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {"copy.deepcopy": copy.deepcopy}
    if _can_pickle(subject.layer):
        ways["pickle"] = _pickled
    for name, way in ways.items():
        try:
            again = way(layer)
        except Exception as error:  # noqa: BLE001 - whatever the layer raises
            first = str(error).split(".")[0]
            return Fault(
                f"{name} of the trained layer raises {type(error).__name__}: {first}.",
                cure,
            )
        if not torch.allclose(evaluate(again, x), expected):
            return Fault(
                f"after {name} the layer evaluates an input differently.",
                "Keep the statistics in buffers.",
            )
    return None


def _pickled(layer: nn.Module) -> nn.Module:
    again: nn.Module = pickle.loads(pickle.dumps(layer))  # noqa: S301 - just written
    return again


def _can_pickle(layer: nn.Module) -> bool:
    """Return whether the layer can be pickled before training.

    A class that is defined in a function cannot, and that is no fault of its state.
    """
    try:
        pickle.dumps(layer)
    except Exception:  # noqa: BLE001 - pickle raises several types
        return False
    return True


@claim("state_dict carries the running statistics")
def state_dict(subject: Subject) -> Fault | None:
    """Load the state of a trained layer into a fresh one; evaluate, train on."""
    need_statistics(subject)
    layer, fresh = trained(subject), subject.fresh()
    x = draw(subject.sized(EXAMPLES), 9, 1.0).to(subject.dtype)
    keys = ", ".join(layer.state_dict()) or "nothing"
    cure = 'Use self.register_buffer("running_mean", ...), and write to it in place or '
    cure += "by assignment."
    is_carried = any(
        not torch.equal(value, fresh.state_dict()[key])
        for key, value in layer.state_dict().items()
        if isinstance(value, Tensor) and key in fresh.state_dict()
    )
    missing = f"the state_dict has {keys}: " + (
        "something else that evaluation uses is no buffer"
        if is_carried
        else "the moving statistics are no buffers"
    )
    with of_the_layer():
        fresh.load_state_dict(layer.state_dict())
    expected = evaluate(layer, x)
    try:
        loaded = evaluate(fresh, x)
    except LayerError as error:
        return Fault(
            "a fresh layer with the state_dict of a trained one cannot evaluate, it "
            f"raises {error}; {missing}.",
            cure,
        )
    if not _alike(expected, loaded):
        return Fault(
            "a fresh layer with the state_dict of a trained one evaluates differently; "
            f"{missing}.",
            cure,
        )
    for each in (layer, fresh):
        call(each, batches(subject, STEPS + 1)[-1])
    if _alike(evaluate(layer, x), evaluate(fresh, x)):
        return None
    return Fault(
        "a fresh layer with the state_dict of a trained one evaluates the same, but "
        f"not after one more batch; the state_dict has {keys}: what weighs the new "
        "batch, a count perhaps, is no buffer.",
        'Use self.register_buffer("num_batches_tracked", torch.tensor(0)).',
    )


def _alike(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)


@claim("evaluation works before any training")
def untrained(subject: Subject) -> Fault | None:
    """Evaluate a layer as it was given."""
    need_statistics(subject)
    try:
        evaluate(subject.fresh(), draw(subject.sized(EXAMPLES), 9).to(subject.dtype))
    except LayerError as error:
        return Fault(
            f"before the first batch in training mode, evaluation raises {error}.",
            "Begin with buffers, a running mean of 0 and a running variance of 1.",
        )
    return None


@claim("eval() means the same with gradients on and off")
def evaluation_mode(subject: Subject) -> Fault | None:
    """Evaluate one trained layer with grad enabled and disabled."""
    layer = trained(subject) if subject.kind == "batch" else subject.fresh()
    x = draw(subject.sized(EXAMPLES), 9, 1.0).to(subject.dtype)
    on, off = evaluate(layer, x, is_recorded=True), evaluate(layer, x)
    if _alike(on, off):
        return None
    return Fault(
        "after eval() the output depends on whether gradients are recorded, by up to "
        f"{_largest(on - off):.2g}: the mode is taken from torch.is_grad_enabled().",
        "Ask self.training.",
    )


@claim("train() uses the batch, with gradients on and off")
def training_mode(subject: Subject) -> Fault | None:
    """Run in training mode with grad enabled and disabled."""
    x = draw(subject.sized(EXAMPLES), 9, 1.0).to(subject.dtype)
    with torch.enable_grad():
        on = call(subject.fresh(), x).detach()
    with torch.no_grad():
        off = call(subject.fresh(), x)
    if _alike(on, off):
        return None
    return Fault(
        "in training mode the output depends on whether gradients are recorded, by "
        f"up to {_largest(on - off):.2g}: the mode is taken from "
        "torch.is_grad_enabled().",
        "Ask self.training.",
    )


@claim("evaluation leaves the running statistics as they are")
def evaluation_keeps(subject: Subject) -> Fault | None:
    """Evaluate other data; compare the state of the layer, and what it evaluates."""
    need_statistics(subject)
    layer = trained(subject)
    x = draw(subject.sized(EXAMPLES), 9, 1.0).to(subject.dtype)
    before = {name: value.detach().clone() for name, value in tensors_of(layer)}
    expected = evaluate(layer, x)
    call(layer.eval(), draw(subject.sized(EXAMPLES), 10, 10.0).to(subject.dtype))
    is_other = not _alike(evaluate(layer, x), expected)
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


@claim("evaluation of an example does not depend on the others")
def neighbours(subject: Subject) -> Fault | None:
    """Evaluate examples alone, and beside others."""
    need_statistics(subject)
    layer = trained(subject)
    x = draw(subject.sized(2 * EXAMPLES), 9, 1.0).to(subject.dtype)
    together = evaluate(layer, x, is_recorded=True)[:EXAMPLES]
    change = _largest(together - evaluate(layer, x[:EXAMPLES], is_recorded=True))
    if change < 1e-4:
        return None
    alone = evaluate(layer, x[:EXAMPLES], is_recorded=True)
    by_batch = call(layer.train(), x[:EXAMPLES]).detach().double()
    why = (
        "evaluation normalizes by the batch, as training does"
        if _largest(alone - by_batch) < 1e-4
        else "the batch gets into what evaluation normalizes by"
    )
    return Fault(
        f"four examples evaluated beside four others change by up to {change:.2g}: "
        f"{why}.",
        "With self.training False, use the running mean and variance, and no more.",
    )


@claim("a batch with one value for each channel is refused in training")
def single_value(subject: Subject) -> Fault | None:
    """Feed one example with one position: its deviation from its mean is 0."""
    if subject.kind != "batch":
        raise DoesNotApply("only batch norm is meant to refuse")
    shape = (1, subject.shape[1], *(1 for _ in subject.shape[2:]))
    x = torch.ones(shape, dtype=subject.dtype)
    try:
        y = call(subject.fresh(), x)
    except LayerError:  # the refusal, whatever its type
        return None
    what = "NaN" if y.isnan().any() else "the bias, whatever the input"
    return Fault(
        f"for an input of shape {shape} the output is {what}; torch refuses: with "
        "one value the deviation from the mean is 0.",
        "Raise a ValueError if a channel has a single value and self.training.",
    )


STATE_CLAIMS = (
    acts_alike,
    running_mean,
    running_variance,
    no_graph,
    state_dict,
    untrained,
    evaluation_mode,
    training_mode,
    evaluation_keeps,
    neighbours,
    single_value,
)
COPY_CLAIMS = (copies,)
