"""Batch renormalization, told from a batch norm that uses running statistics in error.

Ioffe (2017): y = gain (r x_hat + d) + bias, where r is the deviation of the batch over
the running one, d how far its mean is from the running one, over the same. For batches
near the running statistics no limit of r and d acts.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, backward, call
from normbook.checks.claim import Fault
from normbook.checks.copies import copy_of, moved, tensors_of
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, fit, is_near, largest, normal, other_axes

NAME = "batch renormalization"
RIGHT = "gain * r", "gain * d + bias"


class _Seen(NamedTuple):
    """Slope and height over x_hat of batches, and what they may be made of."""

    slope: Tensor
    height: Tensor
    gain: Tensor
    bias: Tensor
    r: Tensor
    d: Tensor
    sigma: Tensor  # the running one


def renormalization(subject: Subject) -> Fault | None:
    """Say that it is batch renormalization, or which slip is in it; or nothing."""
    if subject.kind != "batch" or not subject.has_known_affine:
        return None
    after = subject.fresh()
    call(after, subject.draw(0).to(subject.dtype))
    held = moved(subject.layer, after, subject.shape[1])
    for mean, var in itertools.permutations(held, 2):
        if (seen := _seen(subject, mean, var)) is None:
            continue
        if (weight := _weight(seen)) is not None:
            return _weighted(subject, weight, (mean, var))
        for (a, slope), (b, height) in itertools.product(
            _slopes(seen).items(), _heights(seen).items()
        ):
            pairs = (seen.slope, slope), (seen.height, height)
            if all(is_near(*pair, 3 * TOLERANCE, 1e-3) for pair in pairs):
                return _told(subject, a, b, (mean, var))
    return None


def _seen(subject: Subject, mean: str, var: str) -> _Seen | None:
    """Run batches near the running statistics, with two settings of gain and bias."""
    rows = []
    try:
        for seed in (1, 2):
            subject.set_affine(seed)
            layer = subject.fresh()
            gain, bias = subject.spread(subject.gain), subject.spread(subject.bias)
            x, m, sigma = _near(subject, layer, mean, var, seed)
            if not bool(sigma.isfinite().all()):
                return None
            y = call(layer, x.to(subject.dtype)).detach().double()
            x_hat, (mu, variance) = subject.x_hat(x), subject.definition.moments(x)
            slope, height = fit(y, x_hat, (1,))
            if not is_near(y, slope * x_hat + height):
                return None
            batch = (variance + subject.eps).sqrt()
            one = torch.ones_like(slope)
            parts = (
                slope,
                height,
                one if gain is None else gain * one,
                0 * one if bias is None else bias * one,
                batch[:1].mean(_rest(subject), keepdim=True) / sigma,
                (mu[:1].mean(_rest(subject), keepdim=True) - m) / sigma,
                sigma * one,
            )
            rows.append(_Seen(*(part.flatten() for part in parts)))
    except LayerError:
        return None
    finally:
        subject.set_affine(0)
    return _Seen(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def _weight(s: _Seen) -> float | None:
    """Return by what r - 1 and d are multiplied, if that is all, and no 0 or 1."""
    slope, shift = s.slope / s.gain - 1, (s.height - s.bias) / s.gain
    rest = s.r - 1
    weight = float((slope * rest).sum() / rest.square().sum())
    is_plain = any(abs(weight - k) < 1e-2 for k in (0, 1))
    pairs = (slope, weight * rest), (shift, weight * s.d)
    is_it = all(is_near(*pair, 3 * TOLERANCE, 1e-3) for pair in pairs)
    return None if is_plain or not is_it else weight


def _weighted(subject: Subject, weight: float, names: tuple[str, str]) -> Fault:
    """Tell the way from batch norm to batch renormalization, or beyond it."""
    what = (
        f"the output is gain * (r * x_hat + d) + bias of {NAME} (Ioffe 2017), with r "
        f"and d from {names[0]} and {names[1]}, and r - 1 and d are multiplied by "
        f"{weight:.3g}"
    )
    if 0 < weight < 1 and _is_detached(subject, names):
        return Fault(
            f"{what}, as in a warm-up. What compares with a batch norm is not tested.",
            "Give it the name of what it computes.",
            NAME,
        )
    return Fault(
        f"{what}: a warm-up, which brings that factor from 0 to 1, is not stopped "
        "there, and goes on with the batches."
        if weight > 1
        else f"{what}, expected between 0 and 1.",
        "Clamp the factor to 1, as (count / steps).clamp(max=1).",
    )


def _rest(subject: Subject) -> tuple[int, ...]:
    return other_axes(len(subject.shape), 1)


def _near(
    subject: Subject, layer: nn.Module, mean: str, var: str, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a batch whose statistics are near those that are held."""
    held = dict(tensors_of(layer))
    sizes = [1, -1, *(1 for _ in subject.shape[2:])]
    m = held[mean].detach().double().clone().reshape(sizes)
    sigma = (held[var].detach().double().reshape(sizes) + subject.eps).sqrt()
    z = normal(subject.shape, 40 + seed)
    z = (z - z.mean(_rest(subject), keepdim=True)) / z.std(
        _rest(subject), correction=0, keepdim=True
    )
    count = subject.shape[1]
    scale = torch.linspace(0.85, 1.2, count).double().roll(seed).reshape(sizes)
    shift = torch.linspace(-0.3, 0.4, count).double().roll(-seed).reshape(sizes)
    return m + sigma * (scale * z + shift), m, sigma


def _slopes(s: _Seen) -> dict[str, Tensor]:
    return {
        RIGHT[0]: s.gain * s.r,
        "gain / r": s.gain / s.r,
        "gain": s.gain,
        "gain * r^2": s.gain * s.r.square(),
        "r": s.r,
    }


def _heights(s: _Seen) -> dict[str, Tensor]:
    return {
        RIGHT[1]: s.gain * s.d + s.bias,
        "bias * r + d": s.bias * s.r + s.d,
        "d + bias": s.d + s.bias,
        "gain * d + bias * r": s.gain * s.d + s.bias * s.r,
        "bias, without d": s.bias,
        "bias * r, without d": s.bias * s.r,
        "bias - gain * d": s.bias - s.gain * s.d,
        "gain * r * d + bias": s.gain * s.r * s.d + s.bias,
        "gain * d / r + bias, d being over the deviation of the batch": (
            s.gain * s.d / s.r + s.bias
        ),
        "gain * (batch mean - running mean) + bias, d not divided by sigma": (
            s.gain * s.d * s.sigma + s.bias
        ),
    }


def _told(
    subject: Subject, slope: str, height: str, names: tuple[str, str]
) -> Fault | None:
    of = (
        f"of {NAME} (Ioffe 2017), y = gain * (r * x_hat + d) + bias, with r and d from "
        f"{names[0]} and {names[1]}"
    )
    if (slope, height) == ("gain", "bias, without d"):
        return None
    cure = "Take y = gain * (r * x_hat + d) + bias, with r and d detached."
    if (slope, height) == RIGHT:
        if _is_detached(subject, names):
            return Fault(
                f"running statistics take part in training, as those {of}: that holds "
                "for batches near them. What compares with a batch norm is not tested.",
                "Give it the name of what it computes.",
                NAME,
            )
        why = "the gradient goes through r and d, so that it is no batch norm's"
        return Fault(f"the outputs are those {of}, and {why}.", cure)
    why = ""
    if height == "bias * r + d":
        why = (
            "gain and bias act before r and d, so that the bias is multiplied by r, "
            "and d is not multiplied by the gain: "
        )
    elif height == "d + bias":
        why = "d is not multiplied by the gain: "
    elif "bias * r" in height:
        why = "the bias is multiplied by r: "
    slips = [] if slope == RIGHT[0] else [f"x_hat is multiplied by {slope}"]
    slips += [] if height == RIGHT[1] else [f"{height} is added, expected {RIGHT[1]}"]
    return Fault(
        f"{why}running statistics take part in training, much as those {of}; but "
        f"{' and '.join(slips)}.",
        cure,
    )


def _is_detached(subject: Subject, names: tuple[str, str]) -> bool:
    """Return whether the gradient by x sums to 0, as behind the mean of a batch."""
    layer = copy_of(subject.layer)
    x, _, _ = _near(subject, layer, *names, seed=1)
    x = x.to(subject.dtype).requires_grad_()
    y = call(layer, x)
    backward(y, normal(subject.shape, 50))
    if x.grad is None:
        return True
    sums = x.grad.double().sum(_rest(subject))
    return largest(sums) < 0.01 * float(x.grad.double().abs().sum(_rest(subject)).max())
