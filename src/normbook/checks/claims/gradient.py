"""Claims about the backward pass in training."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from normbook.checks.calls import backward, call
from normbook.checks.claim import Claim, DoesNotApply, Fault, claim
from normbook.checks.claims.output import affine, need_right_statistics, no_affine
from normbook.checks.layer.subject import TOLERANCE, Subject, draw, largest, normal
from normbook.comparison import relative_error

GRADIENT_CLAIMS: list[Claim[Subject]] = []

# Of central differences in float64: truncation costs STEP**2, and arithmetic in
# single precision inside the layer 1e-7 / STEP; both stay below TOLERANCE.
STEP = 3e-3
MOST_ENTRIES = 40
# Of autograd's gradient of the definition, by a layer that computes in float32 inside.
EXACT = 1e-4
# Of what the gradient is a difference of.
ROUNDING = 1e-6

UNSEEN = (
    "A check with two examples or with y.sum() as the loss passes whatever the factor, "
    "since every gradient is 0 there."
)
TAKE_OUT = (
    "Take the factor out; check with three examples or more and a random upstream "
    "gradient."
)
GAIN_FIRST = "Multiply the upstream gradient by the gain before the means are taken."
GAINS = {  # in a term of the closed form: inside its mean, and outside
    "": (1, 0),
    "the gain once too often": (1, 1),
    "no gain": (0, 0),
    "the gain outside its mean, not inside": (0, 1),
}
ONE_FORWARD = (
    "Take the axes and the statistics of the forward pass in the backward pass."
)
DIVIDE = "Divide both sums by m, the number of values that share one mean."
DIVIDE_BY = "Divide what is left by sigma, once."
DETACHED = "Compute mean and variance with gradient: no no_grad, no detach, no .data."


@claim("the gradient by x is that of the output", GRADIENT_CLAIMS)
def by_x(subject: Subject) -> Fault | None:
    """Compare, for a generic upstream gradient, with the output's own derivative."""
    need_right_statistics(subject)
    x, dl_dy = point(subject)
    leaf = x.to(subject.dtype, copy=True).requires_grad_()
    backward(call(subject.fresh(), leaf), dl_dy)
    if leaf.grad is None:
        return Fault(
            "the output is cut off from the input: x gets no gradient at all.",
            "Compute the output outside no_grad, without detach.",
        )
    seen = leaf.grad.double()
    expected, tolerance = _reference(subject, x, dl_dy), EXACT
    if expected is None:
        (entries, expected), tolerance = _differences(subject, x, dl_dy), TOLERANCE
        if subject.dtype != torch.float64:  # of which differences leave few digits
            tolerance *= 30
        seen = seen.flatten()[entries]
    error = relative_error(seen, expected)
    rounding = ROUNDING * subject.gradient_size(x, dl_dy)
    if error < tolerance or largest(seen - expected) < rounding:
        return None
    reason = f"the gradient is off by {_percent(error)} of its largest value"
    # A formula is named if it leaves little of what was off.
    left = min(10 * TOLERANCE, 0.1 * error)
    if seen.shape == x.shape and (fault := _closed_form(subject, x, dl_dy, seen, left)):
        unseen = f" {UNSEEN}" if fault.cure == TAKE_OUT else ""
        return fault._replace(reason=f"{fault.reason}: {reason}.{unseen}")
    factor = ((seen * expected).sum() / expected.square().sum()).item()
    if factor and relative_error(seen, factor * expected) < left:
        return Fault(f"{_times_right(factor)}: {reason}. {UNSEEN}", TAKE_OUT)
    if seen.shape == x.shape and (fault := _other_form(subject, x, dl_dy, seen, left)):
        return fault._replace(reason=f"{fault.reason}: {reason}.")
    return Fault(
        f"{reason} for a generic upstream gradient.",
        "Let autograd pass through mean and variance, or check the closed form.",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if math.isfinite(share) else "NaN"


def point(subject: Subject) -> tuple[Tensor, Tensor]:
    """Return where gradients are taken, and an upstream gradient."""
    shape = subject.batch_of(6)
    return draw(shape, 7, 1.0), normal(shape, 8)


def _reference(subject: Subject, x: Tensor, dl_dy: Tensor) -> Tensor | None:
    """Autograd's gradient of the definition, if the output is the definition's."""
    a, b = subject.affine
    x = x.clone().requires_grad_()
    y = a * subject.x_hat(x) + b
    if largest(subject.output(x) - y) > 1e-4 * largest(y):
        return None
    (grad,) = torch.autograd.grad(y, x, dl_dy)
    return grad


def _differences(subject: Subject, x: Tensor, dl_dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return central differences of the layer's own output at some entries of x."""
    entries = torch.linspace(0, x.numel() - 1, min(MOST_ENTRIES, x.numel())).long()
    slopes = []
    for entry in entries:
        step = torch.zeros_like(x)
        step.view(-1)[entry] = STEP
        change = subject.output(x + step) - subject.output(x - step)
        slopes.append((dl_dy * change).sum() / (2 * STEP))
    return entries, torch.stack(slopes)


def _times_right(factor: float) -> str:
    return f"the gradient is {factor:.5g} times the right one"


POWERS = {
    0: "it is not divided by sigma",
    1: "it is multiplied by sigma, not divided by it",
    -2: "it is divided by sigma twice, by the variance",
    -3: "it is divided by sigma three times",
}


def _closed_form(
    subject: Subject, x: Tensor, dl_dy: Tensor, seen: Tensor, left: float
) -> Fault | None:
    """Fit the three terms of the closed form, each with a factor; name what is not 1.

    With v = gain dl_dy it is (v - mean(v) - x_hat mean(v x_hat)) / sigma.
    """
    a, _ = subject.affine
    mean, (_, var) = subject.definition.mean, subject.definition.moments(x)
    z, sigma = subject.x_hat(x), (var + subject.eps).sqrt()
    for power, (where, (v, outside)) in itertools.product(
        (-1, 0, -2, 1, -3),
        {
            "": (dl_dy * a, torch.ones(())),
            "the gain is missing": (dl_dy, torch.ones(())),
            "the gain multiplies the result, not the upstream gradient": (dl_dy, a),
        }.items(),
    ):
        terms = [v, -mean(v), -z * mean(v * z)]
        if subject.kind == "rms":
            del terms[1]
        terms = [(term * outside * sigma**power).flatten() for term in terms]
        columns = torch.stack(terms, -1)
        factors = torch.linalg.lstsq(columns, seen.reshape(-1, 1)).solution
        fitted = (columns @ factors).reshape(seen.shape)
        if not relative_error(seen, fitted) < left:
            continue
        first, *rest = factors.flatten().tolist()
        by_mean, by_variance = (rest[0], rest[-1]) if len(rest) > 1 else (first, *rest)
        n, by_power = subject.definition.size(tuple(x.shape)), POWERS.get(power, "")
        form, cure = _factors(first, by_mean, by_variance, n, len(x))
        cure = cure or (GAIN_FIRST if where else DIVIDE_BY if by_power else TAKE_OUT)
        return Fault("; ".join(filter(None, (where, by_power, form))), cure)
    return None


def _other_form(
    subject: Subject, x: Tensor, dl_dy: Tensor, seen: Tensor, left: float
) -> Fault | None:
    """Try the closed form with the gain elsewhere in a term, and over other axes."""
    a, _ = subject.affine
    mean, (_, var) = subject.definition.mean, subject.definition.moments(x)
    z, sigma = subject.x_hat(x), (var + subject.eps).sqrt()
    has_mean = subject.kind != "rms"

    def form(z: Tensor, sigma: Tensor, mean: Any, ways: Any = ((1, 0), (1, 0))) -> bool:
        (u, outer_u), (w, outer_w) = ((dl_dy * a**i, a**o) for i, o in ways)
        terms = outer_w * z * mean(w * z) + has_mean * outer_u * mean(u)
        return relative_error(seen, (dl_dy * a - terms) / sigma) < left

    for texts in itertools.product(GAINS, repeat=2):
        if form(z, sigma, mean, [GAINS[text] for text in texts]):
            wrong = zip(("mean", "variance"), texts, strict=True)
            parts = (f"the term of the {of} has {text}" for of, text in wrong if text)
            return Fault(f"in the closed form {' and '.join(parts)}", GAIN_FIRST)
    for where, axes, other_z, other_sigma in _over_other_axes(subject, x):
        over = functools.partial(torch.mean, dim=axes, keepdim=True)
        for what, forward in (
            ("statistics are", (other_z, other_sigma)),
            ("sums are", (z, sigma)),
        ):
            if form(*forward, over):
                reason = f"in the backward pass the {what} taken over {where}"
                return Fault(f"{reason}, not as in the output", ONE_FORWARD)
    return None


def _over_other_axes(
    subject: Subject, x: Tensor
) -> Iterator[tuple[str, tuple[int, ...], Tensor, Tensor]]:
    """Yield sets of axes, and what x_hat and sigma would be over each."""
    for k in range(1, x.dim() + 1):
        for axes in itertools.combinations(range(x.dim()), k):
            mean = x.mean(axes, keepdim=True) * (subject.kind != "rms")
            square = (x - mean).square().mean(axes, keepdim=True)
            sigma = (square + subject.eps).sqrt()
            where = (
                "axes " + " and ".join(map(str, axes)) if k > 1 else f"axis {axes[0]}"
            )
            yield where, axes, (x - mean) / sigma, sigma


def _factors(
    first: float, by_mean: float, by_variance: float, n: int, examples: int
) -> tuple[str, str]:
    """Say in words which terms of the closed form have a factor, and what to do."""
    names = {
        -1.0: "the wrong sign",
        0.5: "the factor 1/2",
        2.0: "the factor 2",
        n / examples: f"the {examples} examples in place of the m = {n} values",
        math.sqrt(n): "sqrt(m) in place of m",
        n / max(n - 1, 1): "m - 1 in place of m",
        n / (n + 1): "m + 1 in place of m",
        float(n): "sums over m values, not means",
        1 / n: "m^2 in place of m",
    }

    def named_factor(factor: float) -> str:
        known = min(names, key=lambda value: abs(value - factor))
        is_known = abs(known - factor) < 0.01 * max(abs(factor), 0.1)
        return names[known] if is_known else f"the factor {factor:.3g}"

    shares = {"mean": by_mean / first, "variance": by_variance / first}
    wrong = {name: share for name, share in shares.items() if abs(share - 1) >= 0.01}
    if not wrong:
        return "" if abs(first - 1) < 1e-6 else _times_right(first), ""
    parts = [] if abs(first - 1) < 0.01 else [_times_right(first)]
    missing = [name for name, share in wrong.items() if abs(share) < 0.01]
    if len(missing) > 1:
        parts.append("mean and variance are constants in the backward pass")
    elif missing:
        parts.append(f"the {missing[0]} is a constant in the backward pass")
    elif abs(shares["mean"] - shares["variance"]) < 0.01:
        factor = named_factor(shares["mean"])
        return "; ".join([*parts, f"the closed form has {factor}"]), DIVIDE
    parts += [
        f"the term of the {name} in the closed form has {named_factor(share)}"
        for name, share in wrong.items()
        if name not in missing
    ]
    return "; ".join(parts), DETACHED if missing else DIVIDE


@claim("the gradients by gain and bias are those of the output", GRADIENT_CLAIMS)
def by_parameters(subject: Subject) -> Fault | None:
    """Compare with the sums of dl_dy x_hat and of dl_dy, by the layer's own x_hat."""
    need_right_statistics(subject)
    if not subject.names or not subject.has_known_affine:
        raise no_affine(subject)
    if affine(subject).passed is False:
        raise DoesNotApply("gain and bias do not act as they are")
    x, dl_dy = point(subject)
    layer = subject.fresh()
    y = call(layer, x.to(subject.dtype))
    # The layer's own x_hat, with any other factor that acts on it.
    a, b = subject.as_set or subject.affine
    x_hat = (y.detach().double() - b) / a
    backward(y, dl_dy)
    for role, name, integrand in (
        ("gain", subject.gain, dl_dy * x_hat),
        ("bias", subject.bias, dl_dy),
    ):
        if name is None or subject.spread(name) is None:
            continue
        seen = layer.get_parameter(name).grad
        if seen is None:
            return Fault(
                f"{name}, the {role}, gets no gradient.",
                "Use the Parameter itself in the output, and no no_grad around it.",
            )
        integrands = {
            "dl_dy * x_hat" + ", as for the gain" * (role == "bias"): dl_dy * x_hat,
            "dl_dy" + ", as for the bias" * (role == "gain"): dl_dy,
            "dl_dy * (x - mean), not divided by sigma": (
                dl_dy * (x - subject.definition.moments(x)[0])
            ),
            "dl_dy * x": dl_dy * x,
            "dl_dy * gain * x_hat, with the gain once too often": dl_dy * a * x_hat,
            "dl_dy * gain": dl_dy * a,
            "dl_dy * y": dl_dy * y.detach().double(),
        }
        # Made one by one, where all others fail: of a large input they are large.
        elsewhere = (
            (f"dl_dy * x_hat with the statistics over {where}", dl_dy * z)
            for where, _, z, _ in _over_other_axes(subject, x)
        )
        others = itertools.chain(integrands.items(), elsewhere)
        if fault := _sum_fault(subject, name, seen.double(), integrand, others):
            return fault
    return None


def _sum_fault(
    subject: Subject,
    name: str,
    seen: Tensor,
    integrand: Tensor,
    others: Iterable[tuple[str, Tensor]],
) -> Fault | None:
    """Compare with the sum; if it is another, name of what, and its factor."""
    along = subject.definition.parameter_axes(integrand.dim())
    rest = tuple(axis for axis in range(integrand.dim()) if axis not in along)

    def summed(values: Tensor) -> Tensor:
        sums = values.sum(rest).flatten()
        return sums.sum().reshape(1) if seen.numel() == 1 else sums

    expected, seen = summed(integrand), seen.flatten()
    error = relative_error(seen, expected)
    if error < TOLERANCE:
        return None
    reason = f"the gradient of {name} is off by {_percent(error)} of its largest value"
    cure = "Sum dl_dy * x_hat (gain) and dl_dy (bias) over all examples."
    count, n = integrand.numel() / expected.numel(), len(integrand)
    factors = (
        (1.0, "the sum"),
        (1 / count, "a mean, not a sum, over the batch,"),
        (1 / n, f"the sum over the {n} examples, divided by their number,"),
        (n / count, f"the sum, divided by the {count / n:.3g} positions,"),
        (-1.0, "minus the sum"),
    )
    for what, values in others:
        sums = summed(values)
        factor = ((seen * sums).sum() / sums.square().sum()).item()
        if not factor or relative_error(seen, factor * sums) > 10 * TOLERANCE:
            continue
        rough = f"{factor:.3g} times the sum"
        how = next((t for f, t in factors if abs(f / factor - 1) < 0.02), rough)
        return Fault(f"{reason}: it is {how} of {what}.", cure)
    return Fault(f"{reason}.", cure)
