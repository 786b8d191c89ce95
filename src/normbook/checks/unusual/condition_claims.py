"""Claims about what a condition does: under two conditions, and in a mixed batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError, Way, call, called
from normbook.checks.claim import Claim, DoesNotApply, Fault, Note, NotTested, claim
from normbook.checks.copies import copy_of, in_dtype
from normbook.checks.layer.subject import Given, Subject
from normbook.checks.report import Finding
from normbook.checks.slips.explanations import explanation
from normbook.checks.tensors import TOLERANCE, draw, largest
from normbook.checks.unusual.conditions import (
    Conditioned,
    is_first,
    masked,
    projects,
    shapes_of,
)

MASKED = "what a mask leaves out counts for nothing"

# From the fewest values to the most: what is normalized over few is over many, too.
LIKELY = ("layer", "rms", "instance", "group", "batch")

# Of gains at a condition of 0, as a share of 1: random ones lie around 0.
FAR_FROM_1 = 0.6

SURELY_NOT_1 = 4.0  # standard errors that the mean of gains lies below 1

CLAIMS: list[Claim[_Case]] = []


class _Case(NamedTuple):
    """A layer with conditions, and what it should be."""

    found: Conditioned
    subject: Subject
    x: Tensor
    axis: int

    def run(self, way: Way, layer: nn.Module | None = None) -> Tensor:
        with called(way, self.axis), torch.no_grad():
            return call(copy_of(layer or self.found.layer), self.x).double()

    def affine(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return gain and bias that give an output, if x_hat is right."""
        if not self.subject.is_right_up_to_scale:
            raise DoesNotApply("no x_hat is known")
        return self.subject.fit(y, self.subject.x_hat(self.x.double()))


def condition_findings(found: Conditioned, given: Given) -> list[Finding]:
    """Make the tests of the condition that was found."""
    if found.is_mask:
        what = f"{found.names} leaves nothing out in all other tests"
        cure = "Pass the model, with padded data, to normbook.checks.audit."
        return [Finding(MASKED, None, what, cure)]
    with called(found.way, given.axis):
        kind = given.kind or explained_kind(found.layer, given)
        subject = Subject(found.layer, given._replace(kind=kind), has_condition=True)
        _ = subject.misfit_of_definition  # which is kept from here on
    x = subject.draw(1).to(subject.dtype)
    as_given = in_dtype(copy_of(found.given), x.dtype)
    found = found._replace(layer=in_dtype(found.layer, x.dtype), given=as_given)
    return [claim(_Case(found, subject, x, given.axis)) for claim in CLAIMS]


def slips_of_condition(found: Conditioned, given: Given) -> list[Finding]:
    """Make them where the user tells how to call the layer; only slips are told."""
    if not projects(found.layer):  # what it takes may be no condition: a key, say
        return []
    try:
        findings = condition_findings(found, given)
    except (LayerError, ValueError):
        return []
    told = [f for f in findings if f.passed is False or f.other]
    return [f for f in told if f.name != own.name]


def mask_findings(layer: nn.Module, given: Given) -> list[Finding]:
    """Compare what a mask keeps with the same where there is nothing else."""
    said = given.kind or recognition.kind_of(layer)
    shapes = [given.shape] if given.shape else [*shapes_of(layer, said)]
    like = next(layer.parameters(), torch.zeros(()))
    found: list[tuple[str, int, Tensor, Tensor, Tensor]] = []
    for sizes in shapes:
        x = draw(sizes, 0, 1.0).to(like.dtype)
        with called(None, given.axis):
            found += masked(layer, x)
        if found:
            break
    if not found:
        return []
    off = [largest(y - alone) / largest(alone) for *_, y, _, alone in found]
    best = min(range(len(found)), key=off.__getitem__)
    names, axis, y, other, _ = found[best]
    if off[best] < TOLERANCE:
        return [Finding(MASKED, True)]
    why = "the values of what is left out have a part in the statistics"
    if largest(other - y) < TOLERANCE * largest(y):
        why = "places that are left out still count, by zeros or in a number of values"
    return [
        Finding(
            MASKED,
            False,
            f"with a {names} that leaves out the second half of axis {axis} the output "
            f"of what is kept is off by {off[best]:.2g} from that of the same without "
            f"the rest: {why}.",
            "Mask x and x - mean, and divide both sums by the number of values kept.",
        )
    ]


def explained_kind(layer: nn.Module, given: Given) -> str | None:
    """Return the kind of norm from which an output differs in a way that is known.

    Where no way is known, the likeliest that the layer may be.
    """
    inside, taken = recognition.kind_inside(layer), []
    for kind in (inside,) if inside else LIKELY:
        try:
            subject = Subject(layer, given._replace(kind=kind), has_condition=True)
        except ValueError:
            continue
        first, second = (subject.output(subject.draw(seed)) for seed in range(2))
        if torch.allclose(first, second):  # made of the condition alone
            continue
        if subject.is_right_up_to_scale or explanation(subject):
            return kind
        taken.append(kind)
    return next(iter(taken), None)


def _check_that_it_is_finite(case: _Case) -> None:
    if case.found.does_matter is None:
        raise NotTested("the output holds NaN or infinity", "Mend that first.")


@claim("gain and bias are the layer's own", CLAIMS)
def own(case: _Case) -> Fault | None:
    """Give another condition."""
    _check_that_it_is_finite(case)
    if not case.found.does_matter:
        raise NotTested("the condition changes nothing", "Mend that first.")
    return Fault(
        f"they are made from a condition, {case.found.names}: with another one the "
        "output is another. Other tests are made with one condition for every example.",
        "",
        "conditional",
    )


@claim("another condition gives another gain and bias", CLAIMS)
def does_matter(case: _Case) -> Fault | Note | None:
    """Compare gain and bias under two conditions."""
    names = case.found.names
    _check_that_it_is_finite(case)
    if not case.found.does_matter:
        return Fault(
            f"the condition {names} is ignored: another one changes nothing.",
            "Make gain and bias from it.",
        )
    found = case.found
    (a, b), (a_2, b_2) = (case.affine(case.run(w)) for w in (found.way, found.other))
    by_gain, by_bias = a_2 - a, b_2 - b
    size = max(largest(by_gain), largest(by_bias))
    if largest(by_gain - by_bias) < TOLERANCE * size:
        return Fault(
            "another condition changes gain and bias by the same numbers: both are made"
            " from one output of the projection.",
            "Give each an output of its own, with chunk(2, -1), say.",
        )
    for name, change in (("gain", by_gain), ("bias", by_bias)):
        if largest(change) < TOLERANCE * size:
            other = "bias" if name == "gain" else "gain"
            if name == "bias" and case.subject.kind == "rms":
                return None
            return Note(
                f"the condition makes the {other} alone, and no {name}.",
                f"{other} alone",
            )
    return None


@claim("each example has the gain and bias of its own condition", CLAIMS)
def apart(case: _Case) -> Fault | None:
    """Give some examples one condition, some another: each must be as under its own."""
    if not case.found.does_matter:
        raise DoesNotApply("the condition changes nothing")
    found = case.found
    first, second = case.run(found.way), case.run(found.other)
    try:
        y = case.run(found.mixed)
    except LayerError as error:
        return Fault(
            f"a batch of examples with different conditions raises {error}.",
            "Take a condition for each example.",
        )
    is_one = is_first(len(y))
    rows = is_one.reshape(-1, *[1] * (y.dim() - 1))
    size = max(largest(first), largest(second))
    if largest(y - torch.where(rows, first, second)) < TOLERANCE * size:
        return None

    def near(expected: Tensor) -> Tensor:
        return ((y - expected).abs() < TOLERANCE * size).flatten(1).all(1)

    by_first, by_second = near(first), near(second)
    cure = "Shape gain and bias as (N, 1, C), or (N, C, 1, 1): one for each example."
    what = "in a batch with two conditions "
    if by_first.all() or by_second.all():
        return Fault(f"{what}the condition of the first example acts on all.", cure)
    if (by_first | by_second).all():
        wrong = int((by_first != is_one).nonzero()[0])
        reason = f"{what}examples have the condition of others"
        if is_one.flip(0).equal(by_first):
            reason += ", in reversed order"
        elif any(is_one.roll(by).equal(by_first) for by in (1, -1)):
            reason += ", shifted by one"
        return Fault(f"{reason}: example {wrong} is the first of them.", cure)
    share = is_one.double().mean()
    if largest(y - share * first - (1 - share) * second) < TOLERANCE * size:
        return Fault(f"{what}the mean of both acts on every example.", cure)
    return Fault(
        f"{what}the output of an example is that of neither: gain and bias of several "
        "examples are mixed, or a statistic is of the condition.",
        cure,
    )


@claim("a projection of 0 leaves a gain of 1", CLAIMS)
def around_1(case: _Case) -> Fault | None:
    """Look at the gains of the layer as it was given, at the middle of conditions.

    Random gains of few channels lie anywhere: what is not sure is not told.
    """
    found = case.found
    if not any(isinstance(part, recognition.OWNERS) for part in found.given.modules()):
        raise DoesNotApply("gain and bias are given, and not projected")
    layer = copy_of(found.given)
    for part in layer.modules():
        if isinstance(part, nn.Embedding):  # rows of two classes are no opposites
            part.weight.data[:] = part.weight.data.mean(0)
    first, second = (case.run(way, layer) for way in (found.way, found.other))
    a, b = (
        (one + two) / 2
        for one, two in zip(*map(case.affine, (first, second)), strict=True)
    )
    if largest(b - 1) < FAR_FROM_1 / 2:
        raise DoesNotApply("it is the bias that is 1")
    if a.numel() < 2:
        raise DoesNotApply("one gain alone may lie anywhere")
    mean, error = a.mean().item(), a.std().item() / math.sqrt(a.numel())
    if abs(mean) > FAR_FROM_1 or a.min() > 0 or mean + SURELY_NOT_1 * error > 1:
        return None
    return Fault(
        f"in the middle of conditions the gains are {a.min():.2g} to {a.max():.2g},"
        " around 0: 1 + is missing, and a projection that begins near 0 wipes x out.",
        "Multiply x_hat by 1 + the projection, or let its bias begin at 1.",
        "no 1 +",
    )
