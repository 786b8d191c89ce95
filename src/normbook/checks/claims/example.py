"""Claims about layers that normalize each example by itself."""

from __future__ import annotations

from normbook.checks.calls import call, evaluating
from normbook.checks.claim import Claim, DoesNotApply, Fault, Note, claim
from normbook.checks.claims.another_way import computed
from normbook.checks.claims.call import LARGE_INPUT
from normbook.checks.claims.output import POSITIVE_SIGMA
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, is_near, largest

EXAMPLE_CLAIMS: list[Claim[Subject]] = []


@claim("training and evaluation give the same", EXAMPLE_CLAIMS)
def same_in_both_modes(subject: Subject) -> Fault | Note | None:
    """Run one input in both modes."""
    x = subject.draw(11, 1.0).to(subject.dtype)
    evaluated = call(evaluating(subject.fresh()), x).detach().double()
    if not subject.claims_no_statistics:
        return Note(
            "after eval() it normalizes by running statistics, as a batch norm does: an"
            " example is no longer normalized by itself.",
            "running statistics",
        )
    change = largest(evaluated - subject.output(x))
    if change < TOLERANCE:
        return None
    what = computed(subject, x, evaluated, is_training=False, records=True)
    return Fault(
        f"after eval() the output changes by up to {change:.2g}"
        f"{f': {what}' if what else ''}; an example has the same statistics in both "
        "modes.",
        "Do the same in both modes; dropout belongs into a layer of its own.",
    )


@claim("an example does not depend on the others in the batch", EXAMPLE_CLAIMS)
def examples_apart(subject: Subject) -> Fault | None:
    """Change every example but the first."""
    return _dependence(subject, (0,), "the other examples")


@claim("a position does not depend on the other positions", EXAMPLE_CLAIMS)
def positions_apart(subject: Subject) -> Fault | None:
    """Change every position but the first."""
    last = subject.definition.last
    between = len(subject.shape) - 1 - max(last, 1)
    if subject.kind not in ("layer", "rms") or between < 1:
        raise DoesNotApply("there is no axis but those of batch and features")
    features = () if last else (slice(None),)
    first = (slice(None), *features, *([0] * between))
    return _dependence(subject, first, "the other positions (time steps, say)")


def _dependence(
    subject: Subject, kept: tuple[slice | int, ...], what: str
) -> Fault | None:
    x, other = subject.draw(12), subject.draw(13)
    other[kept] = x[kept]
    change = largest(subject.output(x)[kept] - subject.output(other)[kept])
    if change < TOLERANCE:
        return None
    return Fault(
        f"with {what} exchanged, the output of what stayed changes by up to "
        f"{change:.2g}: they share its statistics.",
        subject.definition.axes_cure(len(subject.shape)),
    )


@claim("the sign of the input is the sign of x_hat: f(-x) = -f(x)", EXAMPLE_CLAIMS)
def sign(subject: Subject) -> Fault | None:
    """Add the outputs of x and -x: twice the bias is left, whatever x is."""
    (y, opposite), (other, its_opposite) = (
        (subject.output(x), subject.output(-x))
        for x in (subject.draw(14), subject.draw(15))
    )
    if largest((y + opposite) - (other + its_opposite)) < TOLERANCE:
        return None
    if largest(y - opposite) < TOLERANCE:
        return Fault(
            "the output is the same for x and -x. LN(a x) = LN(x) holds for a > 0 "
            "only; for a < 0 the sign flips.",
            POSITIVE_SIGMA,
        )
    return Fault(
        "f(x) + f(-x), less twice the bias, is not 0.",
        "Return gain * (x - mean) / sqrt(var + eps) + bias.",
    )


@claim("a batch of one works, and gives the same", EXAMPLE_CLAIMS)
def batch_of_one(subject: Subject) -> Fault | None:
    """Feed the first example alone, then the first three."""
    x = subject.draw(16)[:4]
    y = subject.output(x)
    counts = (1, 3) if x.numel() < LARGE_INPUT else (1,)
    for count in (n for n in counts if n < len(x)):
        some = subject.output(x[:count])
        rows = (some - y[:count]).abs().flatten(1).amax(1)
        if not largest(rows) > TOLERANCE:
            continue
        what = "the first example of a batch, given alone, changes"
        if count > 1:
            what = f"of the first {count} examples, given alone, number "
            what += f"{int(rows.argmax())} from 0 changes"
        k = int(rows.argmax())
        is_x = is_near(x[k], some[k])
        why = ": it is x itself, not normalized" if is_x else ""
        return Fault(
            f"{what} by up to {largest(rows):.2g}{why}.",
            "Take no statistics over the batch, and treat every number of examples "
            "alike.",
        )
    return None
