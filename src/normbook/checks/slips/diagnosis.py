"""What a layer takes for mean and variance, measured where no known slip explains it.

The gradient of one output tells which inputs have a part in it. Where these are the
right ones, the output is a line in x within each set of statistics: its slope tells
what x is divided by, its zero what is subtracted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normbook.checks.layer.parts import along_axes, places_along
from normbook.checks.layer.subject import Subject
from normbook.checks.slips.explanations import UNEXPLAINED, Seen, explanation
from normbook.checks.tensors import TOLERANCE, fit, is_near, largest

PERMUTE = (
    "Move the axes with permute or transpose, then reshape, and move them back: "
    "reshape and view alone cut the values in the order of memory."
)

# By the power of sigma, or of the root mean square, that it is divided by.
POWERS = {
    4: "divided by the fourth power of {}: the square of its square, not the root",
    3: "divided by the third power of {}",
    2: "divided by the square of {}: the root is missing",
    0.5: "divided by the root of {}: by one root too many",
    -1: "multiplied by {}, not divided by it",
    -2: "multiplied by the square of {}, not divided by its root",
}


def diagnosis(subject: Subject) -> Seen | None:
    """Say over which values the statistics run, or what they are."""
    if text := precision(subject):
        return Seen(f"{text}.")
    if seen := explanation(subject) or _clipped(subject):
        return seen
    place = tuple(min(1, size - 1) for size in subject.shape)
    with_it = subject.with_a_part(place)
    if with_it is None:
        return None
    one = torch.zeros(subject.shape, dtype=torch.float64)
    one[place] = 1
    should = subject.definition.mean(one) > 0
    if seen := _so_far(subject, place):
        return seen
    if with_it.equal(should):
        return _line(subject)
    return _of_some(subject, with_it, should) or _values(with_it, should)


def precision(subject: Subject) -> str:
    """Find out whether an input that is rounded first gives the very same."""
    for dtype in (torch.bfloat16, torch.float16):
        if subject.dtype.itemsize == 2:
            break
        x = subject.draw(1, 1.0)
        rounded = x.to(dtype).double()
        if torch.equal(subject.output(rounded), subject.output(x)):
            return f"x is rounded to {dtype}, whatever its dtype, and computed in it"
    return ""


def _clipped(subject: Subject) -> Seen | None:
    """Find out whether all but the largest x_hat are right."""
    if subject.as_set is None:
        return None
    (gain, bias), x = subject.as_set, subject.draw(1)
    x_hat = subject.x_hat(x)
    expected = gain * x_hat + bias
    off = (subject.output(x) - expected).abs() > TOLERANCE * largest(expected)
    if not off.any() or off.double().mean() > 0.5:
        return None
    most, least = x_hat[~off].abs().max(), x_hat[off].abs().min()
    if not least > 0.99 * most:
        return None
    text = (
        f"large x_hat is clipped: what is beyond {most:.3g} is other, the rest right."
    )
    return Seen(text)


def _so_far(subject: Subject, place: tuple[int, ...]) -> Seen | None:
    """Find an axis along which an output depends on no later place, but on earlier."""
    for axis, size in enumerate(subject.shape):
        if size < 3:
            continue
        counts = []
        for at in (0, 1, size - 1):
            mask = subject.with_a_part((*place[:axis], at, *place[axis + 1 :]))
            if mask is None:
                return None
            counts.append(len(places_along(mask, axis)))
        if counts == [1, 2, size]:
            return Seen(
                f"an output depends on the steps so far along axis {axis}, on no later "
                "ones: the statistics are cumulative."
            )
    return None


def _values(with_it: Tensor, should: Tensor) -> Seen:
    """Describe values that are those of some axes, or lie together in memory."""
    count, expected = int(with_it.sum()), int(should.sum())
    if count == expected and not bool((with_it & should).any()):
        text = "an output depends on the values of another place alone: x_hat may be"
        return Seen(f"{text} right, and come out at a wrong place.", PERMUTE)
    of = f"an output depends on {count} values"
    not_on = f"and not on the {expected} that share its statistics by the definition"
    lengths = [len(places_along(with_it, axis)) for axis in range(with_it.dim())]
    if math.prod(lengths) == count:
        several = [a for a, n in enumerate(lengths) if n > 1]
        is_cut = any(lengths[a] < with_it.shape[a] for a in several if a != 1)
        # A part of one axis alone is no matter of reshape.
        cure = PERMUTE if is_cut and lengths[0] == 1 and len(several) > 1 else ""
        other = "" if cure else UNEXPLAINED
        return Seen(f"{of}, {along_axes(with_it)}, {not_on}.", cure, other)
    for layout, mask in (("", with_it), (", channels last", with_it.movedim(1, -1))):
        places = mask.flatten().nonzero()
        if int(places[-1] - places[0]) + 1 == count:
            how = f"that lie one behind the other in memory{layout}, those of no axis"
            return Seen(f"{of} {how}, {not_on}.", PERMUTE)
    return Seen(f"{of} that are those of no axis, {not_on}.", PERMUTE)


def _line(subject: Subject) -> Seen | None:
    """Measure what is subtracted and what x - mean is divided by."""
    if subject.as_set is None:
        return None
    gain, bias = subject.as_set
    mean_of = subject.definition.mean
    shifts, divisors, means, sigmas = [], [], [], []
    for seed in (1, 2):
        x = subject.draw(seed)
        u = (subject.output(x) - bias) / gain
        mean, var = mean_of(x), mean_of((x - mean_of(x)).square())
        slope = mean_of((x - mean) * (u - mean_of(u))) / var
        line = mean_of(u) + slope * (x - mean)
        if not is_near(u, line):
            return None
        shifts.append(mean - mean_of(u) / slope)
        divisors.append(1 / slope)
        means.append(mean)
        sigmas.append((mean_of(x.square()) if subject.kind == "rms" else var).sqrt())
    return Seen(f"{_told(subject, shifts, divisors, means, sigmas)}.")


def _told(subject: Subject, *measured: list[Tensor]) -> str:
    """Say what is subtracted and divided by, beside the right mean and sigma."""
    shift, divisor, mean, sigma = map(torch.cat, measured)
    of = "the root mean square" if subject.kind == "rms" else "sigma"
    parts = [] if subject.kind == "rms" else [_shift(shift, mean, sigma)]
    parts.append(_divisor(divisor, sigma, of))
    if " to " in parts[-1]:  # it varies, and it is no power
        parts[-1] += _few_digits(divisor, subject.eps) or _broken(
            subject, divisor.square() - sigma.square(), mean
        )
    parts[-1] = f"{'x' if subject.kind == 'rms' else 'the rest'} is {parts[-1]}"
    return ", and ".join(parts)


def _few_digits(divisor: Tensor, eps: float) -> str:
    """Say whether what x is divided by is always a number of half precision."""
    for dtype in (torch.bfloat16, torch.float16):
        for number in (1 / divisor, divisor, divisor.square() - eps):
            if torch.allclose(number.to(dtype).double(), number, 1e-6, 0.0):
                return f", always a number of {dtype}: the statistics are rounded to it"
    return ""


def _of_some(subject: Subject, with_it: Tensor, should: Tensor) -> Seen | None:
    """Measure the same where a part of one set of statistics counts, as by a mask."""
    count, expected = int(with_it.sum()), int(should.sum())
    if subject.as_set is None or bool((with_it & ~should).any()) or count < 3:
        return None
    left_out = tuple((should & ~with_it).nonzero()[0].tolist())
    elsewhere = subject.with_a_part(left_out)
    # What is left out by a mask has no statistics of its own, as parts would have.
    if elsewhere is None or (elsewhere.any() and not (elsewhere & with_it).any()):
        return None
    gain, bias = (values.expand(subject.shape)[with_it] for values in subject.as_set)
    rows: list[list[Tensor]] = [[], [], [], []]
    for seed in range(1, 9):
        x = subject.draw(seed)
        u, x = (subject.output(x)[with_it] - bias) / gain, x[with_it]
        mean, var = x.mean(), x.var(correction=0)
        slope = ((x - mean) * u).mean() / var
        if not is_near(u, u.mean() + slope * (x - mean)):
            return None
        size = x.square().mean() if subject.kind == "rms" else var
        numbers = mean - u.mean() / slope, 1 / slope, mean, size.sqrt()
        for row, number in zip(rows, numbers, strict=True):
            row.append(number[None])
    shift, divisor, mean, sigma = map(torch.cat, rows)
    some = f"of the {expected} values that share statistics {count} count, as by a mask"
    is_right = largest(divisor / sigma - 1) < TOLERANCE
    if is_right and (subject.kind == "rms" or is_near(shift, mean)):
        text = f"{some}, and they are normalized by their own statistics."
        return Seen(
            text, "Leave nothing out, for all other tests.", "some values alone"
        )
    return Seen(
        f"{some}: of these {_told(subject, *rows)}.", "Count what is kept alone."
    )


def _broken(subject: Subject, added: Tensor, mean: Tensor) -> str:
    """Say by how much a shift or a stretch of x changes the output, and why it may."""
    x = subject.draw(1)
    y = subject.output(x)
    if subject.kind != "rms":
        change = largest(subject.output(x + x.std()) - y) / largest(y)
        times, constant = fit(added, mean.square(), ())
        law = times * mean.square() + constant
        seen = f": a constant added to x changes the output by {100 * change:.3g} %"
        if is_near(added, law):
            k = times.item()
            zeros = f"; {k:.3g} zeros for each value, counted in it, do that" * (k > 0)
            what = "the root of the variance plus"
            return f", {what} {k:.3g} times the squared mean{seen}{zeros}"
        if change > TOLERANCE:
            return seen
    change = largest(subject.output(2 * x) - y) / largest(y)
    if change < TOLERANCE:
        return ""
    return f": x times 2 changes the output by {100 * change:.3g} %"


def _shift(shift: Tensor, mean: Tensor, sigma: Tensor) -> str:
    if largest((shift - mean) / sigma) < TOLERANCE:
        return "what is subtracted is the mean"
    times = float((shift * mean).sum() / mean.square().sum())
    if largest((shift - times * mean) / sigma) < TOLERANCE:
        count = ": its sum is divided by a wrong count" if times > 1 else ""
        return f"what is subtracted is {times:.3g} times the mean{count}"
    return "what is subtracted is another number than the mean"


def _divisor(divisor: Tensor, sigma: Tensor, of: str) -> str:
    if not bool((divisor > 0).all()):
        return f"divided by what is not {of}, and not positive"
    by, log = divisor.log().flatten(), sigma.log().flatten()
    powers, constant = fit(by, log, ())
    power = powers.item()
    near = min(POWERS, key=lambda known: abs(known - power))
    if largest(by - power * log - constant) < 0.01 and abs(near - power) < 0.01:
        return POWERS[near].format(of)
    for what, added in (
        ("the root of the variance and", divisor.square() - sigma.square()),
        ("sigma and", divisor - sigma),
    ):
        eps = float(added.mean())
        if eps > 0 and largest(added / eps - 1) < 0.01:
            return f"divided by {what} {eps:.3g}, which acts as eps"
    low, high = (divisor / sigma).aminmax()
    if high - low < TOLERANCE * high:
        return f"divided by {low:.3g} times {of}"
    return f"divided by {low:.3g} to {high:.3g} times {of}"
