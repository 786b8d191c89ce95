"""Which term of a backward pass is off.

With v = gain dl_dy the gradient by x is (v - mean(v) - x_hat mean(v x_hat)) / sigma.
Single changes of it are tried, until one leaves next to nothing of what was off.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from normbook.checks.claim import Fault
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, largest
from normbook.comparison import relative_error

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


class Parts(NamedTuple):
    """What the gradient by x is made of, and the one that was seen."""

    seen: Tensor
    expected: Tensor
    left: float  # the share of an error that an explanation may leave
    x: Tensor
    dl_dy: Tensor
    gain: Tensor
    x_hat: Tensor
    sigma: Tensor
    mean: Callable[[Tensor], Tensor]
    has_mean: bool
    n: int  # values of one mean

    def fits(self, gradient: Tensor) -> bool:
        """Return whether a formula gives what was seen."""
        return relative_error(self.seen, gradient) < self.left


def backward_fault(
    subject: Subject, x: Tensor, dl_dy: Tensor, seen: Tensor, expected: Tensor
) -> Fault | None:
    """Name the change of the closed form that gives the gradient that was seen."""
    _, var = subject.definition.moments(x)
    parts = Parts(
        seen,
        expected,
        min(10 * TOLERANCE, 0.1 * relative_error(seen, expected)),
        x,
        dl_dy,
        subject.affine[0],
        subject.x_hat(x),
        (var + subject.eps).sqrt(),
        subject.definition.mean,
        subject.kind != "rms",
        subject.definition.size(tuple(x.shape)),
    )
    if not seen.any():
        return Fault("it is 0 for every x", "Return the gradient by x.")
    for look in (_factors_of_terms, _all_times, _gains, _terms, _places):
        if fault := look(parts):
            return fault
    return _other_axes(subject, parts)


def times_right(seen: Tensor, expected: Tensor) -> Fault | None:
    """Say that the gradient is right but for a factor."""
    factor = ((seen * expected).sum() / expected.square().sum()).item()
    left = min(10 * TOLERANCE, 0.1 * relative_error(seen, expected))
    if not factor or not relative_error(seen, factor * expected) < left:
        return None
    return Fault(_times_right(factor), TAKE_OUT)


def _all_times(parts: Parts) -> Fault | None:
    return times_right(parts.seen, parts.expected)


def _times_right(factor: float) -> str:
    return f"the gradient is {factor:.5g} times the right one"


POWERS = {
    0: "it is not divided by sigma",
    1: "it is multiplied by sigma, not divided by it",
    -2: "it is divided by sigma twice, by the variance",
    -3: "it is divided by sigma three times",
}


def _factors_of_terms(parts: Parts) -> Fault | None:
    """Fit the three terms, each with a factor; name what is not 1."""
    dl_dy, a, mean, z = parts.dl_dy, parts.gain, parts.mean, parts.x_hat
    one = torch.ones(())
    for power, (where, (v, outside)) in itertools.product(
        (-1, 0, -2, 1, -3),
        {
            "": (dl_dy * a, one),
            "the gain is missing": (dl_dy, one),
            "the gain multiplies the result, not the upstream gradient": (dl_dy, a),
        }.items(),
    ):
        terms = [v, -mean(v), -z * mean(v * z)]
        if not parts.has_mean:
            del terms[1]
        terms = [(term * outside * parts.sigma**power).flatten() for term in terms]
        columns = torch.stack(terms, -1)
        factors = torch.linalg.lstsq(columns, parts.seen.reshape(-1, 1)).solution
        first, *rest = factors.flatten().tolist()
        if abs(first) < 0.01 or not parts.fits((columns @ factors).view_as(v)):
            continue
        by_mean, by_variance = (rest[0], rest[-1]) if len(rest) > 1 else (first, *rest)
        by_power = POWERS.get(power, "")
        form, cure = _factors(first, by_mean, by_variance, parts.n, len(v))
        cure = cure or (GAIN_FIRST if where else DIVIDE_BY if by_power else TAKE_OUT)
        return Fault("; ".join(filter(None, (where, by_power, form))), cure)
    return None


def _gains(parts: Parts) -> Fault | None:
    """Try the gain elsewhere in a term."""
    for texts in itertools.product(GAINS, repeat=2):
        if parts.fits(_form(parts, [GAINS[text] for text in texts])):
            wrong = zip(("mean", "variance"), texts, strict=True)
            named = (f"the term of the {of} has {text}" for of, text in wrong if text)
            return Fault(f"in the closed form {' and '.join(named)}", GAIN_FIRST)
    return None


def _form(
    parts: Parts,
    gains: list[tuple[int, int]],
    mean: Callable[..., Tensor] | None = None,
) -> Tensor:
    v, a, z = parts.dl_dy, parts.gain, parts.x_hat
    mean = mean or parts.mean
    (u, outer_u), (w, outer_w) = ((v * a**i, a**o) for i, o in gains)
    terms = outer_w * z * mean(w * z) + parts.has_mean * outer_u * mean(u)
    return (v * a - terms) / parts.sigma


def _terms(parts: Parts) -> Fault | None:
    """Try other values in the term of the variance, and powers of sigma in each."""
    v, mean, z, x = parts.dl_dy * parts.gain, parts.mean, parts.x_hat, parts.x
    y = z * parts.gain
    variances = {
        "": z * mean(v * z),
        "x in place of x_hat, outside the mean": x * mean(v * z),
        "x in place of x_hat, inside the mean": z * mean(v * x),
        "x in place of x_hat, inside the mean and outside": x * mean(v * x),
        "gain * x_hat in place of x_hat, inside the mean": z * mean(v * y),
        "gain * x_hat in place of x_hat, inside the mean and outside": y * mean(v * y),
        "x_hat squared, outside the mean": z.square() * mean(v * z),
        "the mean of v alone, not that of v x_hat": z * mean(v),
        "the sign of x_hat, outside the mean": z.sign() * mean(v * z),
        "no x_hat outside the mean": mean(v * z),
    }
    powers = [parts.sigma**-p for p in (1, 0, 2, 3, -1)]
    ways = sorted(
        itertools.product(range(5), repeat=3), key=lambda way: sum(map(bool, way))
    )
    for has_mean, (text, term) in itertools.product(
        (parts.has_mean, not parts.has_mean), variances.items()
    ):
        for way in ways:
            if way[1] and not has_mean:
                continue
            of_v, of_mean, of_var = (powers[k] for k in way)
            if not parts.fits(v * of_v - has_mean * mean(v) * of_mean - term * of_var):
                continue
            names = ("upstream gradient", "mean", "variance")
            wrong = [
                f"the term of the {name} is {POWERS_OF_A_TERM[k]}"
                for name, k in zip(names, way, strict=True)
                if k
            ]
            wrong += [f"the term of the variance has {text}"] if text else []
            if has_mean != parts.has_mean:
                wrong.append(
                    "the mean of the upstream gradient is subtracted, which RMS norm "
                    "does not"
                    if has_mean
                    else "the term of the mean is missing"
                )
            return Fault(f"in the closed form {' and '.join(wrong)}", CLOSED_FORM)
    return None


POWERS_OF_A_TERM = (
    "divided by sigma",
    "not divided by sigma (or has x - mean in place of x_hat)",
    "divided by sigma twice",
    "divided by sigma three times",
    "multiplied by sigma",
)
CLOSED_FORM = (
    "With v = gain * dl_dy, return (v - mean(v) - x_hat * mean(v * x_hat)) / sigma."
)


def _places(parts: Parts) -> Fault | None:
    """Find the examples, or the sizes, whose gradient is right."""
    seen, off = parts.seen, (parts.seen - parts.expected).abs()
    is_right = off < 0.1 * TOLERANCE * largest(parts.expected)
    limit = largest(seen)
    at_limit = seen.abs() > limit * (1 - 1e-6)
    if at_limit.sum() > 3 and bool((is_right | at_limit).all()):
        return Fault(
            f"it is cut off at {limit:.4g}, and right where it is smaller",
            "Clip gradients outside the layer, if at all.",
        )
    for axis in range(seen.dim()):
        rows = is_right.movedim(axis, 0).flatten(1).all(1)
        if rows.any() and not rows.all():
            wrong = (~rows).nonzero().flatten().tolist()
            of = f"{len(wrong)} of {len(rows)} places along axis {axis}"
            return Fault(
                f"it is wrong for {of}, number {wrong[0]} the first, and right for all "
                "others",
                "Go over every row in the backward pass, those of the last block too.",
            )
    return None


def _other_axes(subject: Subject, parts: Parts) -> Fault | None:
    """Try other axes than those of the forward pass."""
    right = [GAINS[""]] * 2
    for where, axes, z, sigma in over_other_axes(subject, parts.x):
        over = functools.partial(torch.mean, dim=axes, keepdim=True)
        other = parts._replace(x_hat=z, sigma=sigma)
        for what, one in (("statistics are", other), ("sums are", parts)):
            if parts.fits(_form(one, right, over)):
                reason = f"in the backward pass the {what} taken over {where}"
                return Fault(f"{reason}, not as in the output", ONE_FORWARD)
    return None


def over_other_axes(
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
