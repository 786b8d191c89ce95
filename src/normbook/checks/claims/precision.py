"""Claims about numbers: far from 0, alike, and in float32, float16 and bfloat16."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normbook.checks.calls import LayerError, backward, call, evaluating
from normbook.checks.claim import Claim, DoesNotApply, Fault, Note, NotTested, claim
from normbook.checks.claims.output import (
    constant_channel,
    need_right_statistics,
    share_of_error,
)
from normbook.checks.copies import copy_of, in_dtype
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, draw, largest, normal

PRECISION_CLAIMS: list[Claim[Subject]] = []

# Of half precision: the bugs cost everything, and eight bits of bfloat16 a few %.
HALF = 0.1

OTHER_EPS = "eps is"  # so begins the reason where dtypes differ in eps alone

# Of float32, in the gradient at worst; the bugs cost 1e-3 and more.
ROUNDING = 1e-4


@claim("a mean far from 0 costs no precision in float32", PRECISION_CLAIMS)
def two_passes(subject: Subject) -> Fault | None:
    """Compare float32 with float64 on the same numbers, mean / sigma 1e3 and 1e4."""
    need_right_statistics(subject)
    if subject.kind == "rms":
        raise DoesNotApply("no mean is subtracted")
    noise, mean_of = normal(subject.batch_of(32), 5), subject.definition.mean
    z = subject.x_hat(noise.float().double())
    a, b = subject.fit(subject.output(noise, torch.float32), z)

    def off(mean: float) -> tuple[float, float]:
        """Return the errors of the layer and of a variance by one pass."""
        x = (noise + mean).float()
        exact = a * subject.x_hat(x.double()) + b
        var = mean_of(x.square()) - mean_of(x).square()
        z = (x - mean_of(x)) / (var + subject.eps).sqrt()
        by_one_pass = a * z.double() + b
        by_layer = subject.output(x, torch.float32)
        return share_of_error(by_layer, exact), share_of_error(by_one_pass, exact)

    (near, near_by_one), (far, far_by_one) = off(1e3), off(1e4)
    # Two passes lose the rounding of the mean, 5e-4 of sigma at mean 1e4.
    if far < 0.03:
        return None
    return Fault(
        "for mean / sigma = 1e3 and 1e4 the output is off by "
        f"{near:.2g} and {far:.2g} of its largest value; the variance as "
        f"E[x^2] - E[x]^2 gives {near_by_one:.2g} and {far_by_one:.2g}: it subtracts "
        "two large numbers that are nearly equal.",
        "Take the mean first, then the mean of (x - mean) ** 2.",
    )


@claim("a mean far from 0 costs no precision in float32")
def far_from_zero(subject: Subject) -> Fault | None:
    """Compare a layer with itself in float64, at mean / sigma 1e4."""
    x = (subject.draw(5, 1.0) + 1e4).float()
    exact = subject.output(x.double())
    off = share_of_error(subject.output(x, torch.float32), exact)
    if off < 0.03:
        return None
    return Fault(
        f"for mean / sigma = 1e4 the output in float32 is off by {off:.2g} of its "
        "largest value: E[x^2] - E[x]^2 subtracts two large numbers that are nearly "
        "equal.",
        "Take the mean first, then the mean of (x - mean) ** 2.",
    )


PRECISION_CLAIMS.append(constant_channel)


@claim("the output has the dtype of the input", PRECISION_CLAIMS)
def dtype_is_kept(subject: Subject) -> Fault | None:
    """Run in every precision that the layer can take."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        layer = in_dtype(subject.fresh(), dtype)
        try:
            y = call(layer, subject.draw(0, 1.0).to(dtype))
        except LayerError as error:
            if dtype.itemsize == 2:  # not every operation can
                continue
            return Fault(
                f"after .to({dtype}) the layer raises {error}",
                "Let x and what it meets have one dtype: x.to(self.weight.dtype), say, "
                "parameters or buffers, and x.new_zeros for what is made.",
            )
        if y.dtype != dtype:
            reason = f"for {dtype} the output is {y.dtype}."
            return Fault(reason, "Return y.to(x.dtype).")
    return None


@claim("float32 gives what float64 gives, up to rounding", PRECISION_CLAIMS)
def precisions(subject: Subject) -> Fault | None:
    """Compare outputs, gradients and evaluations on inputs of usual and small size."""
    if subject.dtype != torch.float64:
        why = "the layer computes in one precision only"
        raise NotTested(why, "Let .double() reach all that it holds.")
    # Where sigma is that of eps; below, float32 has no such eps.
    small = [math.sqrt(subject.eps)] if subject.eps > 1e-10 else []
    for scale in (1.0, *small):
        single = _in_precision(subject, torch.float32, scale)
        double = _in_precision(subject, torch.float64, scale)
        for what, (value, size) in double.items():
            error = largest(single[what][0] - value)
            is_off = error > ROUNDING * size
            if is_off and what != "evaluation" and (eps := _other_eps(subject)):
                return Fault(
                    f"{OTHER_EPS} {eps:g} in float32 and {subject.eps:.2g} in float64; "
                    "with these the outputs are alike.",
                    "Take one eps for every dtype.",
                )
            if is_off:  # what is 0 everywhere has size 0
                share = error / size if size else math.inf
                return Fault(
                    f"in float32 the {what} differs from that in float64 by "
                    f"{share:.2g} of the largest value, for an input of size "
                    f"{scale:.2g}.",
                    "Compute the same for every dtype.",
                )
    return None


def _other_eps(subject: Subject) -> float | None:
    """Return the eps that explains the outputs in float32, if it is another one."""
    pairs = []
    for scale in (1.0, math.sqrt(max(subject.eps, 1e-10))):
        x = draw(subject.batch_of(6), 6, scale).float()
        exact = subject.output(x.double())
        if not exact.isfinite().all() or not exact.any():
            return None
        a, b = subject.fit(exact, subject.x_hat(x.double()))
        pairs.append((x.double(), subject.output(x, torch.float32), exact, a, b))

    def off(eps: float) -> float:
        z = (subject.definition.normalize(x, eps) for x, *_ in pairs)
        of = (
            (y, a * x_hat + b) for (_, y, _, a, b), x_hat in zip(pairs, z, strict=True)
        )
        return max(share_of_error(*both) for both in of)

    now = max(share_of_error(y, exact) for _, y, exact, *_ in pairs)
    least = min((10.0**-k for k in range(2, 13)), key=off)
    return least if off(least) < ROUNDING and off(least) < now / 100 else None


def _in_precision(
    subject: Subject, dtype: torch.dtype, scale: float
) -> dict[str, tuple[Tensor, float]]:
    """Return what a training call and an evaluation after it give, and their sizes."""
    shape = subject.batch_of(6)
    layer = in_dtype(subject.fresh(), dtype)
    x = draw(shape, 18, scale).float().to(dtype).requires_grad_()
    dl_dy = draw(shape, 19, 1.0).float()
    y = call(layer, x)
    backward(y, dl_dy)
    results = {"output": (y, 0.0)}
    if x.grad is not None:
        results["gradient by x"] = x.grad, subject.gradient_size(x.detach(), dl_dy)
    if scale == 1.0:  # a smaller variance drowns in the rounding of the first 1
        results["evaluation"] = call(evaluating(layer), x.detach()), 0.0
    return {
        what: (value.detach().double(), max(largest(value), size))
        for what, (value, size) in results.items()
    }


@claim("float16 and bfloat16 give what float32 gives")
def half_precisions(subject: Subject) -> Fault | Note | None:
    """Compare outputs on numbers of usual, large and small size, and on zeros.

    Where they are right, note where they are rounded.
    """
    if subject.given_dtype == torch.float64:
        raise DoesNotApply("the layer is given in float64")
    is_run = False
    for dtype in (torch.float16, torch.bfloat16):
        layer = in_dtype(subject.fresh(), dtype)
        seen: dict[str, str] = {}  # by its reason, the first input that shows it
        for scale in (1.0, 300.0, 1e-3, 0.0):
            x = draw(subject.small, 21, scale).to(dtype)
            try:
                y = call(copy_of(layer), x).detach().double()
            except LayerError:  # not every operation can
                continue
            is_run = True
            exact = call(copy_of(layer).float(), x.float()).detach().double()
            error = largest(y - exact)
            if not exact.isfinite().all():
                continue
            # A layer may round each of its steps, and a large mean costs digits.
            if error <= HALF * max(largest(exact), 1e-3):
                continue
            what = f"an input of size {scale:g}" if scale else "an input of zeros"
            why = "a square beyond 65504 is infinite" if scale > 1 else ""
            why = why or "what is below 6e-8 is 0, and so is a small eps"
            because = f": {why}" if dtype == torch.float16 else ""
            seen.setdefault(because, f"{what} gives {_at_worst(y, exact)}{because}")
        if seen:
            return Fault(
                f"in {dtype} {'; '.join(seen.values())}.",
                "Compute in float32: x.float() first, and .to(x.dtype) last.",
            )
    if not is_run:
        why = "the layer does not run in half precision on this CPU"
        raise NotTested(why, "Run it on a device where it does.")
    return _place_of_rounding(subject)


def _place_of_rounding(subject: Subject) -> Note | None:
    """Count the outputs in bfloat16 that each place explains to the last bit."""
    if subject.kind not in ("layer", "rms") or not (subject.gain and subject.as_set):
        return None
    if abs(subject.factor - 1) > TOLERANCE or not subject.is_right_up_to_scale:
        return None
    half = torch.bfloat16
    layer = in_dtype(subject.fresh(), half)
    x = draw(subject.batch_of(6), 26, 1.0).to(half)
    try:
        y = call(layer, x).double()
    except LayerError:
        return None

    def held(name: str | None) -> Tensor:
        values = layer.get_parameter(name) if name else torch.zeros(1)
        values = values.detach().double()
        placed = subject.placed(values)
        return values if placed is None else placed

    x_hat = subject.x_hat(x.double())
    gain, bias = held(subject.gain) + subject.gain_offset, held(subject.bias)

    def rounded(values: Tensor) -> Tensor:
        return values.to(half).double()

    once = rounded(gain * x_hat + bias), rounded(rounded(gain) * x_hat + bias)
    first = rounded(rounded(rounded(gain) * rounded(x_hat)) + bias)
    by_once = max((y == z).double().mean().item() for z in once)
    by_first = (y == first).double().mean().item()
    if by_once > 0.98:
        return None
    if by_first > 0.98:
        return Note(
            "In bfloat16 x_hat is rounded before the gain multiplies it, as in the "
            "code of Llama; torch rounds once, behind the gain. Last bits differ."
            + _dtype_of_the_gain(subject, x),
            "rounds before the gain",
        )
    return Note(
        f"Of the outputs in bfloat16 {by_once:.0%} are those of float32, rounded: the "
        "layer rounds in more places than behind the gain.",
        "rounds inside",
    )


def _dtype_of_the_gain(subject: Subject, x: Tensor) -> str:
    """Tell what comes out where the parameters are in float32 and x is not."""
    try:
        seen = call(subject.fresh().float(), x).dtype
    except LayerError:  # not every layer can
        return ""
    if seen == x.dtype:
        return ""
    return (
        f" With parameters in float32 an input in {x.dtype} comes out as {seen}: "
        "return y.to(x.dtype) behind the gain."
    )


def _at_worst(y: Tensor, exact: Tensor) -> str:
    """Show the output that is furthest from that in float32."""
    if not y.isfinite().all():
        low, high = (value + 0.0 for value in exact.aminmax())  # what was -0 is 0
        return f"NaN or infinity, in float32 {low:.3g} to {high:.3g}"
    k = int((y - exact).abs().argmax())
    seen = y.flatten()[k] + 0.0  # what was -0 is 0
    return f"{seen:.3g} where float32 gives {exact.flatten()[k]:.3g}"
