"""Claims about the output in training: statistics, gain and bias, eps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from normbook.checks.calls import backward, call
from normbook.checks.claim import (
    Claim,
    DoesNotApply,
    Fault,
    Note,
    NotTested,
    claim,
    named,
    once,
)
from normbook.checks.layer.definitions import ACTIVATIONS, DIVISORS
from normbook.checks.layer.recognition import affordable, further, is_eps
from normbook.checks.layer.subject import Subject
from normbook.checks.slips.affine_values import acting
from normbook.checks.slips.diagnosis import diagnosis, precision
from normbook.checks.slips.explanations import UNEXPLAINED, Seen
from normbook.checks.slips.renorm import renormalization
from normbook.checks.slips.start import at_the_start
from normbook.checks.tensors import TOLERANCE, Formula, draw, largest

OUTPUT_CLAIMS: list[Claim[Subject]] = []

# Beyond all that are usual; it takes half a % of a sigma of 1.
LARGE_EPS = 0.011

NO_AFFINE = "no parameter has the name of a gain or a bias"
NAME_THEM = "Call them weight and bias, or gamma and beta."
POSITIVE_SIGMA = "Divide by sigma, which is positive, and by nothing that has a sign."
PLAIN_AFFINE = "Return gain * x_hat + bias."
WHERE = {
    "batch": "each channel by the mean and variance over the batch and all positions",
    "layer": "each example by the mean and variance over its features",
    "rms": "each example by the mean square of its features",
    "group": "each group of channels of each example by its mean and variance",
    "instance": "each channel of each example by its mean and variance",
}


def no_affine(subject: Subject) -> DoesNotApply:
    """Return why gain and bias are not tested."""
    if any(True for _ in subject.layer.parameters()):
        return NotTested(NO_AFFINE, NAME_THEM)
    return DoesNotApply(NO_AFFINE)


def need_right_statistics(subject: Subject) -> None:
    """Leave a claim that compares with the definition, where that does not hold."""
    if not subject.is_right_up_to_scale:
        why = "the statistics are not those of the definition"
        raise NotTested(why, "Mend that first, or pass the kind.")


@claim("the output is x normalized over the right axes", OUTPUT_CLAIMS)
def statistics(subject: Subject) -> Fault | None:
    """Compare up to a fixed gain and bias, found on one batch, with other batches."""
    if subject.is_random:
        return Fault(
            "two calls on one input differ, the layer is random; the other tests need "
            "one that is not.",
            "Take noise and dropout out of it, into a layer of their own.",
        )
    if not subject.is_finite:
        return Fault(
            "the output for a plain input holds NaN or infinity; the other tests need "
            "numbers.",
            f"Return {_formula(subject)}.",
        )
    if subject.is_right_up_to_scale:
        return _clipping(subject)
    reason = (
        f"expected {WHERE[subject.kind]}; the output differs from that by "
        f"{subject.misfit_of_definition:.2g} of its largest value, whatever fixed "
        "gain and bias are allowed."
    )
    x = subject.draw(1)
    y = subject.output(x)
    if largest(y - subject.output(-x)) < TOLERANCE:
        return Fault(
            f"the sign is lost, the layer gives the same for x and -x: {reason}",
            POSITIVE_SIGMA,
        )
    for seed in range(1, 9):
        if text := _turned(subject, x := subject.draw(seed), subject.output(x)):
            return Fault(f"{text} {reason}", POSITIVE_SIGMA)
    x = subject.draw(1)
    later = subject.fresh()
    call(later, subject.draw(17).to(subject.dtype))
    if largest(call(later, x.to(subject.dtype)) - y) > TOLERANCE:
        return renormalization(subject) or Fault(
            "the running statistics take part in training, as in batch "
            f"renormalization: after another batch the output is another. {reason}",
            "In training, normalize by the batch alone.",
        )

    if name := named(_swapped(subject), lambda z: subject.misfit(z) < TOLERANCE):
        return Fault(f"{name}{reason}", "Move each axis back to its place.")
    if name := _activation(subject, x, y):
        return Fault(
            f"{name} follows the norm: the output is {name}(gain * x_hat + bias). What "
            "compares with a norm alone is not tested.",
            "Leave the activation to a layer of its own.",
            "activation",
        )
    cure = f"Compare it with {_formula(subject)}; if it is another norm, pass its kind."
    seen = diagnosis(subject) or Seen("", "", UNEXPLAINED)
    if seen.other != UNEXPLAINED:
        return Fault(f"{seen.text} {reason}", seen.cure or cure, seen.other)
    other = "" if subject.is_kind_given else UNEXPLAINED
    why = "no norm and no slip that is known here explains it"
    return Fault(f"{why}: {f'{seen.text} ' * bool(seen.text)}{reason}", cure, other)


def _turned(subject: Subject, x: Tensor, y: Tensor) -> str:
    """Say in which sets of values x_hat has the wrong sign, if that is all."""
    z, affine = subject.x_hat(x), subject.affine
    gain, bias = (value.expand_as(y) for value in affine)
    sign = subject.definition.mean((y - bias) * z * gain).sign()
    off = largest(y - bias - sign * gain * z)
    turned = sign < 0
    if not turned.any() or turned.all() or off > 0.01 * largest(y):
        return ""
    share = turned.double().mean().item()
    negative = subject.definition.mean((x < 0).double()) == 1
    of = {
        "those whose values are all negative": negative,
        "those whose mean is negative": subject.definition.mean(x) < 0,
    }
    which = next((name for name, sets in of.items() if sets.equal(turned)), "")
    which = f", {which}" if which else ""
    return f"x_hat has the wrong sign in {share:.0%} of the sets of values{which}:"


def _activation(subject: Subject, x: Tensor, y: Tensor) -> str:
    """Name the activation behind the norm, with gain and bias as they are set."""
    gain, bias = (1.0, 0.0) if subject.as_set is None else subject.as_set
    z = gain * subject.x_hat(x) + bias
    known = {name: f(z) for name, f in ACTIVATIONS.items()}
    return named(known, lambda value: largest(value - y) < TOLERANCE).rstrip(": ")


def _clipping(subject: Subject) -> Fault | None:
    """Put one value far from all others; x_hat goes up to sqrt(n - 1) there."""
    shape = affordable(subject.batch_of(64))
    plain, x = draw(shape, 0), draw(shape, 1)
    a, b = subject.acting(plain)
    x.view(-1)[0] += 100 * x.abs().max()
    x_hat = subject.x_hat(x)
    error = share_of_error(subject.output(x), a * x_hat + b)
    if error < TOLERANCE:
        return None
    return Fault(
        "large x_hat is clipped: with one value far from all others, where x_hat goes "
        f"up to {x_hat.max():.3g}, the output is off by {error:.2g} of its largest "
        "value.",
        f"Return {_formula(subject)}, whatever its size.",
    )


def share_of_error(y: Tensor, expected: Tensor) -> float:
    """Return the largest error, as a share of the largest value."""
    return largest(y - expected) / largest(expected)


def _formula(subject: Subject) -> str:
    if subject.kind == "rms":
        return "x / ((x ** 2).mean(..., keepdim=True) + eps).sqrt()"
    return "(x - mean) / (((x - mean) ** 2).mean(...) + eps).sqrt()"


def _swapped(subject: Subject) -> dict[str, Formula]:
    """Name two axes of one length that are not back at their places."""

    def swapped(a: int, b: int) -> Formula:
        return lambda x: subject.x_hat(x).transpose(a, b)

    return {
        f"axes {a} and {b} of the output are swapped": swapped(a, b)
        for a, b in itertools.combinations(range(1, len(subject.shape)), 2)
        if subject.shape[a] == subject.shape[b]
    }


@claim("gain and bias act on the output as they are", OUTPUT_CLAIMS)
def affine(subject: Subject) -> Fault | Note | None:
    """Set both to other values twice and find them again in the output."""
    need_right_statistics(subject)
    start = at_the_start(subject)
    if not (subject.names or subject.has_known_affine):
        if start is None:
            raise no_affine(subject)
        return start
    if subject.has_other_gain:
        raise DoesNotApply("the gain is a function of what is held for each head")
    for name in subject.names:
        if subject.spread(name) is None:
            raise DoesNotApply(f"{name} has not one value for each channel")
    a, b, gain, bias = two_settings(subject)
    ratio = a / gain
    if largest(ratio / ratio.mean() - 1) > 0.01:
        return _gain_fault(a, b, gain, bias)
    # The factor of the unbiased variance is the fault of a claim of its own.
    is_one = abs(subject.factor - 1) < TOLERANCE or subject.takes_unbiased
    if subject.as_set is not None and not is_one:
        return _factor_fault(subject)
    if largest(b - bias) > 0.01:
        expected, seen = _few(bias, b)
        name = acting(b / subject.factor, gain, bias, "bias")
        name += ": " * bool(name)
        reason = f"{name}expected {expected} to be added, seen {seen}."
        return Fault(reason, PLAIN_AFFINE)
    if isinstance(start, Fault):
        return start
    if subject.gain_offset:
        return Fault(
            f"x_hat is multiplied by 1 + {subject.gain}: a weight of 0 is a gain of 1, "
            "and weight decay pulls the gain to 1. Weights of a layer that multiplies "
            "by the weight itself are larger by 1.",
            PLAIN_AFFINE,
            "1 + gain",
        )
    return start


def two_settings(subject: Subject) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gains and biases as found and as set, with seeds 1 and 2 one below the other."""
    x = subject.draw(1, subject.large)
    z = subject.x_hat(x)
    rows = []
    try:
        for seed in (1, 2):
            subject.set_affine(seed)
            a, b = subject.fit(subject.output(x), z)
            gain, bias = subject.spread(subject.gain), subject.spread(subject.bias)
            # What has no known name may be anything that is fixed.
            none = (1, 0) if subject.has_known_affine else (a, b)
            gain = (none[0] if gain is None else gain) + 0 * a
            bias = (none[1] if bias is None else bias) + 0 * b
            rows.append((a, b, gain, bias))
    finally:
        subject.set_affine(0)
    a, b, gain, bias = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return a, b, gain, bias


def _gain_fault(a: Tensor, b: Tensor, gain: Tensor, bias: Tensor) -> Fault:
    expected, seen = _few(gain, a)
    reason = f"expected x_hat times {expected}, seen times {seen}."
    names = [acting(a, gain, bias, "gain")]
    if largest(b - bias) > 0.01:
        names.append(acting(b, gain, bias, "bias"))
    what = "; ".join(dict.fromkeys(filter(None, names)))
    return Fault(f"{what}{': ' * bool(what)}{reason}", PLAIN_AFFINE)


def _factor_fault(subject: Subject) -> Fault:
    root = math.sqrt(subject.definition.size(subject.shape))
    known = {
        "the sign is the wrong one": -1.0,
        "divided by the root of the sum of squares, not of their mean": 1 / root,
    }
    known |= {
        f"times the root of {n}, the length of axis {axis}, which is not the number "
        "of values that are normalized": math.sqrt(n) / root
        for axis, n in enumerate(subject.shape)
        if axis
    }
    name = named(known, lambda factor: abs(subject.factor / factor - 1) < 0.01)
    return Fault(
        f"{name}x_hat comes out multiplied by {subject.factor:.3g}.",
        f"Return gain * x_hat + bias, where x_hat = {_formula(subject)}.",
        "unit length" if _is_unit_length(subject) else "",
    )


def _is_unit_length(subject: Subject) -> bool:
    root = math.sqrt(subject.definition.size(subject.shape))
    return subject.kind == "rms" and abs(subject.factor * root - 1) < 0.01


def _few(expected: Tensor, seen: Tensor) -> Iterator[str]:
    """Show both where they differ most."""
    differences = (seen - expected).abs().flatten()
    places = differences.topk(min(3, len(differences))).indices.sort().values
    for values in (expected, seen):
        shown = [f"{value:.3g}" for value in values.flatten()[places].tolist()]
        yield ", ".join(shown) + (" and more" if values.numel() > 3 else "")


@claim("there is one gain and one bias for each channel", OUTPUT_CLAIMS)
def parameter_shapes(subject: Subject) -> Fault | None:
    """Look at the shapes of the parameters."""
    if not subject.names:
        raise no_affine(subject)
    sizes = subject.definition.parameter_shape(subject.shape)
    for name in subject.names:
        shape = tuple(subject.layer.get_parameter(name).shape)
        if (count := math.prod(shape)) == math.prod(sizes):
            continue
        single, what, other = "", "", ""
        if count == 1:
            single = "one scalar for the whole layer: "
            is_size = not subject.eps or _is_unit_length(subject)
            is_size = is_size or eps_place(subject).other.startswith("floor of")
            other = "one gain" if subject.kind == "rms" and is_size else ""
        elif subject.kind == "group" and count == subject.definition.groups:
            what, other = ": one value for each group", "gain per group"
        elif count == math.prod(subject.shape[a] for a in subject.definition.further):
            what, other = ": one value for each head", "one gain"
        elif shape[1:] == sizes and further(subject.layer):
            what = ": one row for each value of what the layer takes besides x"
            other = "gain per type"
        elif subject.kind == "layer" and count == subject.shape[1]:
            other = "gain per channel"
            what = (
                ": statistics are of all positions of an example together, as in group "
                "norm of one group, and not of the features of each position"
            )
        return Fault(
            f"{single}{name} has shape {shape}, expected {sizes}{what}.",
            f"Make it a Parameter of shape {sizes}.",
            other,
        )
    return None


@claim("the variance divides by n, not by n - 1", OUTPUT_CLAIMS)
def biased(subject: Subject) -> Fault | None:
    """Compare the scale of the output at few values with sigma of n values."""
    need_right_statistics(subject)
    shape = subject.batch_of(4)
    n = subject.definition.size(shape)
    x = draw(shape, 4, subject.large)
    a, _ = subject.acting(x)
    factor = (a / subject.affine[0]).mean().item()
    if not subject.has_known_affine and subject.kind != "batch":
        raise NotTested("a gain is not known, and so no scale", NAME_THEM)
    if abs(factor - 1) < max(1e-6, min(TOLERANCE, 0.1 / n)):
        return None
    bessel = math.sqrt((n - 1) / n)
    seen = (
        f"with n = {n} values the output is {factor:.4g} times what the variance over "
        "n gives"
    )
    if abs(factor / bessel - 1) < 0.2 / n:
        return Fault(
            f"{seen}, which is sqrt((n - 1) / n): the unbiased variance normalizes. "
            "The definition, and torch, take the biased one in training.",
            "Use var(unbiased=False), or ((x - mean) ** 2).mean().",
        )
    few = subject.kind == "batch" and not 0.5 < factor < 2
    why = f"a batch of {shape[0]} examples is treated in another way: " if few else ""
    return Fault(f"{why}{seen}.", "Divide by sqrt(mean((x - mean) ** 2) + eps).")


def _no_eps(subject: Subject) -> DoesNotApply:
    if subject.is_eps_told:
        return DoesNotApply("eps is 0")
    why = "no eps is told, and none shows for sigma down to 1e-6"
    return NotTested(why, "Pass eps.")


@claim("eps is added to the variance, inside the root", OUTPUT_CLAIMS)
@once
def eps_place(subject: Subject) -> Fault | Note | None:
    """Feed inputs with sigma near sqrt(eps), where the place of eps decides."""
    trained = [name for name in subject.learned if is_eps(name)]
    if trained and subject.is_eps_told:
        return Fault(
            f"{trained[0]} is a parameter with a gradient: an optimizer moves eps, "
            "also below 0, where the root of a small variance is NaN.",
            "Keep eps as a number, or as a buffer.",
            "trained eps",
        )
    need_right_statistics(subject)
    eps = subject.eps
    if eps <= 0:
        raise _no_eps(subject)
    # Below eps the wrong places that look alike elsewhere come apart.
    sigmas = [0.3 * math.sqrt(eps), math.sqrt(eps), 3 * math.sqrt(eps), 0.3 * eps]
    seen = subject.shrinkage(sigmas)
    var = torch.tensor(sigmas, dtype=torch.float64).square()
    # What the layer takes for the variance, if the factor comes from there.
    taken = var / subject.factor**2
    expected = {name: taken.sqrt() / by(taken, eps) for name, by in DIVISORS.items()}
    right = expected["sqrt(variance + eps)"]
    plain = (var / (var + eps)).sqrt()
    if min(largest(seen - right), largest(seen - plain)) < 0.01:
        return None if eps < LARGE_EPS else _large_eps(eps)
    reason = (
        f"at sigma = sqrt(eps) = {sigmas[1]:.2g} the output has standard deviation "
        f"{seen[1]:.3g}, expected {right[1]:.3g}"
    )
    if largest(seen - 1) < 0.01 and eps < 1e-8 and constant_channel(subject).passed:
        why = "eps is a floor that sigma = 1e-8 and more do not feel, as in normalize"
        raise NotTested(why, "Pass eps=0.")
    root = math.sqrt(subject.definition.size(subject.shape))
    at_half = subject.shrinkage([0.5 * eps / root]).item()
    if abs(at_half - 1 / 3) < 0.01:
        return Fault(
            f"{reason}: eps is added to the length that divides, outside of the root.",
            "Divide by (var + eps).sqrt().",
        )
    if abs(at_half - 0.5) < 0.01:
        return Fault(
            f"{reason}: x is divided by its length, or by eps where that is more, as "
            "in normalize.",
            "Divide by (var + eps).sqrt(), unless it is to be as normalize does.",
            "floor of the length",
        )
    other = ""
    for name, values in expected.items():
        if largest(seen - values) < 0.01:
            reason += f"; {name} gives {values[1]:.3g}: that is the divisor here"
            if "max(variance" in name:
                other = "floor of the variance"
            elif "max(" in name and subject.kind != "batch":
                other = "floor of the deviation"
            if "eps^2" in name:
                reason += ", or a second norm behind the first, which gives the same"
            break
    else:
        reason += _acting_eps(subject, var, seen)
    if text := precision(subject):
        reason = f"{text}: {reason}"
    return Fault(f"{reason}.", "Divide by (var + eps).sqrt().", other)


def _large_eps(eps: float) -> Note:
    return Note(
        f"eps is {eps:g}: where sigma is 1 the output has standard deviation "
        f"{(1 + eps) ** -0.5:.3g}. The usual eps is 1e-5; another number may stand in "
        "its place.",
        "large eps",
    )


def _acting_eps(subject: Subject, var: Tensor, seen: Tensor) -> str:
    """Name the one eps that explains the output, if another than that told does."""
    below = var / seen.square()
    floor = below.mean().item()
    at = math.sqrt(floor)
    if largest(below / floor - 1) < 0.01 and subject.shrinkage([at]).item() > 0.9:
        return f"; the divisor is sqrt(max(variance, {floor:.3g})), a floor"
    acting = (below - var).mean().item()
    if not (acting > 0 and largest((below - var) / acting - 1) < 0.01):
        return ""
    text = f"; the eps that acts is {acting:.3g}"
    if abs(acting / subject.eps / 2 - 1) < 0.01:
        return f"{text}: eps is added twice"
    momentum = getattr(subject.layer, "momentum", None)
    if isinstance(momentum, float) and abs(acting / momentum - 1) < 0.01:
        text += ", the value of momentum: the two may be swapped"
    return text


@claim("a constant channel stays finite, output and gradient")
def constant_channel(subject: Subject) -> Fault | None:
    """Let one set of statistics see a single value."""
    if subject.eps <= 0 and subject.is_eps_told:
        raise _no_eps(subject)
    # Means of the one are rounded, of the other exact, and its variance is 0.
    values = (0.0,) if subject.kind == "rms" else (0.1, 0.5)
    return next(filter(None, (_of_one_value(subject, value) for value in values)), None)


def _of_one_value(subject: Subject, value: float) -> Fault | None:
    x = subject.draw(6, 1.0)
    one = x[:, 0] if subject.kind == "batch" else x[0]
    one.fill_(value)
    where = "a channel with one value throughout"
    where = "an input of zeros" if subject.kind == "rms" else where
    x = x.to(subject.dtype).requires_grad_()
    y = call(subject.fresh(), x)
    if not y.isfinite().all():
        return Fault(
            f"for {where} the output is not finite.",
            "Divide by (var + eps).sqrt(), with eps > 0.",
        )
    if not y.requires_grad:
        raise DoesNotApply("the output is cut off from the input")
    backward(y, y.detach())
    if x.grad is not None and not x.grad.isfinite().all():
        return Fault(
            f"for {where} the output is finite, its gradient is not: the root of a "
            "variance of 0 has no derivative.",
            "Add eps before the root, (var + eps).sqrt().",
        )
    return None
