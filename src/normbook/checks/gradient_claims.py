"""Claims about the backward pass in training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normbook.checks.calls import backward, call
from normbook.checks.claim import Claim, DoesNotApply, Fault, claim
from normbook.checks.output_claims import affine, need_right_statistics, no_affine
from normbook.checks.subject import TOLERANCE, Subject, draw, largest, normal
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
    if seen.shape == x.shape:
        for name, (wrong, cure) in _wrong_gradients(subject, x, dl_dy).items():
            if relative_error(seen, wrong) < left:
                return Fault(f"{name}: {reason}.", cure)
    factor = ((seen * expected).sum() / expected.square().sum()).item()
    if factor and relative_error(seen, factor * expected) < left:
        return Fault(
            f"the gradient is {factor:.5g} times the right one: {reason}. A check "
            "with two examples or with y.sum() as the loss passes whatever the "
            "factor, since every gradient is 0 there.",
            "Take the factor out; check with three examples or more and a random "
            "upstream gradient.",
        )
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


def _wrong_gradients(
    subject: Subject, x: Tensor, dl_dy: Tensor
) -> dict[str, tuple[Tensor, str]]:
    """Return what known bugs give for the gradient, and their cures."""
    a, _ = subject.affine
    gained = dl_dy * a
    mean, (_, var) = subject.definition.mean, subject.definition.moments(x)
    z = subject.x_hat(x)

    def closed(v: Tensor, by_mean: float = 1, by_variance: float = 1) -> Tensor:
        """Return the closed form with its two sums weighted."""
        by_mean = 0 if subject.kind == "rms" else by_mean
        inner = v - by_mean * mean(v) - by_variance * z * mean(v * z)
        return inner / (var + subject.eps).sqrt()

    n = subject.definition.size(tuple(x.shape))
    root, bessel = math.sqrt(n), n / max(n - 1, 1)
    here = "in the backward pass"
    return {
        f"mean and variance are constants {here}": (closed(gained, 0, 0), DETACHED),
        f"the variance is a constant {here}": (closed(gained, 1, 0), DETACHED),
        f"the mean is a constant {here}": (closed(gained, 0, 1), DETACHED),
        "the closed form has sqrt(m) in place of m": (
            closed(gained, root, root),
            "Divide both sums by m, the number of values that share one mean.",
        ),
        "the closed form has m - 1 in place of m": (
            closed(gained, bessel, bessel),
            "Divide both sums by m, as the forward pass does.",
        ),
        "the gain is missing": (
            closed(dl_dy),
            "Multiply the upstream gradient by the gain first.",
        ),
        "the gain multiplies the result, not the upstream gradient": (
            a * closed(dl_dy),
            "Multiply the upstream gradient by the gain before the means are taken.",
        ),
    }


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
        if fault := _sum_fault(subject, name, seen.double(), integrand):
            return fault
    return None


def _sum_fault(
    subject: Subject, name: str, seen: Tensor, integrand: Tensor
) -> Fault | None:
    along = subject.definition.parameter_axes(integrand.dim())
    rest = tuple(axis for axis in range(integrand.dim()) if axis not in along)
    expected = integrand.sum(rest).flatten()
    if seen.numel() == 1:
        expected = expected.sum().reshape(1)
    seen = seen.flatten()
    error = relative_error(seen, expected)
    if error < TOLERANCE:
        return None
    reason = f"the gradient of {name} is off by {_percent(error)} of its largest value"
    count = integrand.numel() / expected.numel()
    if relative_error(seen, expected / count) < 10 * TOLERANCE:
        reason = f"{reason}: it is a mean, not a sum, over the batch"
    return Fault(
        f"{reason}.", "Sum dl_dy * x_hat (gain) and dl_dy (bias) over all examples."
    )
