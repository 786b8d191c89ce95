"""Claims about the backward pass in training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from normbook.checks.calls import backward, call
from normbook.checks.claim import Claim, DoesNotApply, Fault, claim
from normbook.checks.claims.output import affine, need_right_statistics, no_affine
from normbook.checks.layer.subject import Subject
from normbook.checks.slips.backward import (
    TAKE_OUT,
    UNSEEN,
    backward_fault,
    over_other_axes,
    times_right,
)
from normbook.checks.tensors import TOLERANCE, draw, largest, normal, other_axes
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
    if seen.shape == x.shape:
        fault = backward_fault(subject, x, dl_dy, seen, expected)
    else:
        fault = times_right(seen, expected)
    if fault:
        unseen = f" {UNSEEN}" if fault.cure == TAKE_OUT else ""
        return fault._replace(reason=f"{fault.reason}: {reason}.{unseen}")
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
    (grad,) = torch.autograd.grad((y * dl_dy).sum(), x)
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
        if name is None or subject.spread(name) is None or subject.has_other_gain:
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
            "dl_dy * x_hat^2": dl_dy * x_hat.square(),
            "dl_dy * |x_hat|": dl_dy * x_hat.abs(),
        }
        # Made one by one, where all others fail: of a large input they are large.
        elsewhere = (
            (f"dl_dy * x_hat with the statistics over {where}", dl_dy * z)
            for where, _, z, _ in over_other_axes(subject, x)
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
    along = subject.axes_of(seen.numel()) or ()
    rest = other_axes(integrand.dim(), *along)

    def summed(values: Tensor) -> Tensor:
        return values.sum(rest).flatten()

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
    if not seen.any():
        return Fault(f"{reason}: it is 0.", cure)
    if what := _some_rows(integrand, rest, along, seen):
        return Fault(f"{reason}: {what}.", cure)
    for what, values in others:
        sums = summed(values)
        factor = ((seen * sums).sum() / sums.square().sum()).item()
        if not factor or relative_error(seen, factor * sums) > 10 * TOLERANCE:
            continue
        rough = f"{factor:.3g} times the sum"
        how = next((t for f, t in factors if abs(f / factor - 1) < 0.02), rough)
        return Fault(f"{reason}: it is {how} of {what}.", cure)
    return Fault(f"{reason}.", cure)


def _some_rows(
    integrand: Tensor, rest: tuple[int, ...], along: tuple[int, ...], seen: Tensor
) -> str:
    """Say which rows alone are summed, where they are the first, the last or one."""
    rows = integrand.permute(*rest, *along).reshape(-1, seen.numel())
    if len(rows) == seen.numel() or len(rows) < 3:
        return ""
    sums = torch.cat([torch.zeros_like(rows[:1]), rows.cumsum(0)])
    size = largest(seen)
    count = len(rows)

    def first(values: Tensor) -> int | None:
        fits = ((values - seen).abs().amax(1) < TOLERANCE * size).nonzero()
        return int(fits[0]) if len(fits) else None

    if (k := first(rows)) is not None:
        return f"it is that of row {k} alone, from 0, not the sum over all {count}"
    if (k := first(sums[1:-1])) is not None:
        return f"it is summed over the first {k + 1} rows of {count} alone"
    if (k := first(sums[-1] - sums[1:-1])) is not None:
        return f"the first {k + 1} rows of {count} are left out of the sum"
    return ""
