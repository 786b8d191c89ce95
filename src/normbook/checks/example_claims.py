"""Claims about layers that normalize each example by itself."""

from __future__ import annotations

import torch

from normbook.checks.calls import call
from normbook.checks.claim import DoesNotApply, Fault, claim
from normbook.checks.subject import TOLERANCE, Subject, draw

__all__ = ["EXAMPLE_CLAIMS"]


@claim("training and evaluation give the same")
def same_in_both_modes(subject: Subject) -> Fault | None:
    """Run one input in both modes."""
    if not subject.claims_no_statistics:
        raise DoesNotApply("the layer evaluates by running statistics")
    x = draw(subject.shape, 11, 1.0).to(subject.dtype)
    layer = subject.fresh().eval()
    change = (call(layer, x).detach().double() - subject.output(x)).abs().max().item()
    if change < TOLERANCE:
        return None
    return Fault(
        f"after eval() the output changes by up to {change:.2g}; an example has the "
        "same statistics in both modes.",
        "Do the same in both modes; dropout belongs into a layer of its own.",
    )


@claim("an example does not depend on the others in the batch")
def examples_apart(subject: Subject) -> Fault | None:
    """Change every example but the first."""
    x = draw(subject.shape, 12)
    other = torch.cat([x[:1], draw(subject.shape, 13)[1:]])
    return _dependence(subject, x, other, (0,), "the other examples")


@claim("a position does not depend on the other positions")
def positions_apart(subject: Subject) -> Fault | None:
    """Change every position but the first."""
    last = subject.definition.last
    between = len(subject.shape) - 1 - max(last, 1)
    if subject.kind not in ("layer", "rms") or between < 1:
        raise DoesNotApply("there is no axis but those of batch and features")
    features = () if last else (slice(None),)
    first = (slice(None), *features, *([0] * between))
    x, other = draw(subject.shape, 12), draw(subject.shape, 13)
    other[first] = x[first]
    return _dependence(
        subject, x, other, first, "the other positions (time steps, say)"
    )


def _dependence(
    subject: Subject,
    x: torch.Tensor,
    other: torch.Tensor,
    kept: tuple[slice | int, ...],
    what: str,
) -> Fault | None:
    change = (subject.output(x)[kept] - subject.output(other)[kept]).abs().max()
    if change < TOLERANCE:
        return None
    return Fault(
        f"with {what} exchanged, the output of what stayed changes by up to "
        f"{change:.2g}: they share its statistics.",
        subject.definition.axes_cure(len(subject.shape)),
    )


@claim("the sign of the input is the sign of x_hat: f(-x) = -f(x)")
def sign(subject: Subject) -> Fault | None:
    """Add the outputs of x and -x: twice the bias is left, whatever x is."""
    left = [
        subject.output(x) + subject.output(-x)
        for x in (draw(subject.shape, 14), draw(subject.shape, 15))
    ]
    if (left[0] - left[1]).abs().max() < TOLERANCE:
        return None
    x = draw(subject.shape, 14)
    if (subject.output(x) - subject.output(-x)).abs().max() < TOLERANCE:
        return Fault(
            "the output is the same for x and -x. LN(a x) = LN(x) holds for a > 0 "
            "only; for a < 0 the sign flips.",
            "Divide by sigma, which is positive, and by nothing that has a sign.",
        )
    return Fault(
        "f(x) + f(-x), less twice the bias, is not 0.",
        "Return gain * (x - mean) / sqrt(var + eps) + bias.",
    )


@claim("a batch of one works, and gives the same")
def batch_of_one(subject: Subject) -> Fault | None:
    """Feed the first example alone."""
    x = draw(subject.shape, 16)
    change = (subject.output(x[:1]) - subject.output(x)[:1]).abs().max().item()
    if change < TOLERANCE:
        return None
    return Fault(
        f"the first example of a batch, given alone, changes by up to {change:.2g}.",
        "Take no statistics over the batch.",
    )


EXAMPLE_CLAIMS = (
    same_in_both_modes,
    examples_apart,
    positions_apart,
    sign,
    batch_of_one,
)
