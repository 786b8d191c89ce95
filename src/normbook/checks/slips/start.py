"""The gain and the bias that act at the start, before any test or training moves them.

The tests set both to other values: what a layer begins with is looked at here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normbook.checks.calls import LayerError, call
from normbook.checks.claim import Fault, Note
from normbook.checks.copies import in_dtype
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, draw, is_near, largest

NEAR = 0.01
# A random start, such as normal(1, 0.02), is near what it is around.
ABOUT = 0.1


def at_the_start(subject: Subject) -> Fault | Note | None:
    """Say which gain and bias a layer begins with, where that is not 1 and 0.

    Values that differ from channel to channel may be learned, and tell nothing.
    """
    found = _acting(subject)
    if found is None:
        return None
    gain, bias = found
    if _is_about(gain, 0.0) and _is_about(bias, 1.0):
        return Fault(
            "from the start the gain that acts is 0 and the bias 1: the output is "
            "about 1, whatever x is. The two are exchanged, where they are made or "
            "where they are taken apart.",
            "Let the gain begin at 1 and the bias at 0.",
        )
    if _is_about(gain, 2.0) and _adds_1(subject):
        name = subject.gain or "the weight"
        return Fault(
            f"from the start all outputs are doubled: x_hat is multiplied by 1 + "
            f"{name}, and {name} begins at 1, so that the gain that acts is 2, "
            "expected 1.",
            "Begin with torch.zeros where 1 is added, or multiply by the weight "
            "itself.",
        )
    notes = []
    if not gain.any():
        name = subject.gain or "the gain"
        notes.append(
            f"{name} is 0 throughout, and x_hat is multiplied by it: the output is the "
            "bias, whatever x is. That is on purpose where a residual branch begins at "
            "0. Weights made for 1 + gain, as those of Gemma, begin at 0, too."
        )
    elif _is_constant(gain) and abs(gain.mean() - 1) > NEAR:
        n = subject.definition.size(subject.shape)
        is_bessel = n > 1 and abs(gain.mean() / (1 - 1 / n) ** 0.5 - 1) < 0.2 / n
        why = ", the root of (n - 1) / n, as where the variance divides by n - 1"
        notes.append(
            f"x_hat is multiplied by {gain.mean():.3g} in every channel"
            f"{why * is_bessel}."
        )
    if _is_constant(bias) and abs(bias.mean()) > NEAR:
        notes.append(f"{bias.mean():.3g} is added in every channel: a bias not of 0.")
    if not notes:
        return None
    other = "gain of 0" if not gain.any() else "start"
    return Note(f"At the start {' '.join(notes)}", other)


def _acting(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """Find gain and bias in the output of the layer as it was given."""
    few = subject.shape if subject.kind == "batch" else subject.sized(2)
    x = draw(few, 4, subject.large)
    layer = in_dtype(subject.given, subject.dtype)
    try:
        y = call(layer, x.to(subject.dtype)).detach().double()
    except LayerError:
        return None
    z = subject.x_hat(x)
    a, b = subject.fit(y, z)
    if not is_near(y, a * z + b, NEAR, 1e-6):
        return None
    if abs(subject.factor - 1) > TOLERANCE and not subject.takes_unbiased:
        return None  # a claim of its own tells it
    return a / subject.factor, b


def _is_constant(values: Tensor) -> bool:
    return largest(values - values.mean()) < 1e-3


def _is_about(values: Tensor, value: float) -> bool:
    off = values - value
    return largest(off) < ABOUT and float(off.mean().abs()) < ABOUT / 2


def _adds_1(subject: Subject) -> bool:
    """Return whether it is 1 + gain that acts, and the gain, or all, begins at 1."""
    if subject.gain:
        values = subject.given.get_parameter(subject.gain)
        return bool(subject.gain_offset) and _is_about(values.double(), 1.0)
    count = torch.Size(subject.along).numel()
    held = [p for p in subject.given.parameters() if p.numel() == count]
    return any(_is_constant(p) and abs(p.mean() - 1) < NEAR for p in held)
