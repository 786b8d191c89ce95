"""Which mean, which divisor and which gain explain an output that is wrong.

All that a formula with one slip or two may be is tried: it must give the outputs of
three batches, up to a gain and a bias that stay the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from normbook.checks.layer.parts import ORDINALS
from normbook.checks.layer.subject import Subject
from normbook.checks.slips.affine_values import described, nearest
from normbook.checks.tensors import (
    TOLERANCE,
    Axes,
    Formula,
    fit,
    largest,
    other_axes,
)


def _mean(x: Tensor, axes: Axes) -> Tensor:
    return x.mean(axes, keepdim=True)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)


# Of the values of one set of statistics, which lie along the last axis.
CENTRES: dict[str, Formula] = {
    "the mean": lambda rows: rows.mean(-1),
    "nothing": lambda rows: 0 * rows[..., 0],
    "the median": lambda rows: rows.median(-1).values,
    "the smallest value": lambda rows: rows.amin(-1),
    "the largest value": lambda rows: rows.amax(-1),
    "the sum": lambda rows: rows.sum(-1),
    "the first value": lambda rows: rows[..., 0],
    "the root mean square": lambda rows: rows.square().mean(-1).sqrt(),
}
DIVISORS: dict[str, Formula] = {
    "sigma": lambda rows: rows.std(-1, correction=0),
    "the root of sigma": lambda rows: rows.std(-1, correction=0).sqrt(),
    "the root mean square of x": lambda rows: rows.square().mean(-1).sqrt(),
    "the mean of the absolute values of x": lambda rows: rows.abs().mean(-1),
    "the mean absolute deviation": lambda rows: _centred(rows).abs().mean(-1),
    "the absolute value of the mean, or the root of its square": (
        lambda rows: rows.mean(-1).abs()
    ),
    "the mean": lambda rows: rows.mean(-1),
    "the largest absolute value": lambda rows: rows.abs().amax(-1),
    "the largest absolute deviation from the mean": (
        lambda rows: _centred(rows).abs().amax(-1)
    ),
    "the range, the largest value less the smallest": (
        lambda rows: rows.amax(-1) - rows.amin(-1)
    ),
    "the largest value": lambda rows: rows.amax(-1),
    "the sum of the absolute values": lambda rows: rows.abs().sum(-1),
    "nothing": lambda rows: torch.ones_like(rows[..., 0]),
    "the variance, not by its root": lambda rows: rows.var(-1, correction=0),
    "the root of E[x^2] - E[x], in which the mean is not squared": (
        lambda rows: (rows.square().mean(-1) - rows.mean(-1)).clamp_min(0).sqrt()
    ),
}


# What is not known may be wrong, or a norm of another kind.
UNEXPLAINED = "unexplained"


class Seen(NamedTuple):
    """What was found of a wrong output, and a cure where one follows from it."""

    text: str
    cure: str = ""
    other: str = ""  # a convention, where it may be meant


class Candidate(NamedTuple):
    """A formula z, of which the output may be a z + b, and what to say of it then."""

    z: Formula
    text: str | Callable[[], str]
    along: Axes  # along which a and b differ


def explanation(subject: Subject) -> Seen | None:
    """Say which of all formulas the outputs are those of."""
    runs, dim = subject.runs, len(subject.shape)
    for look in (_parts, _orders, _gains, _axes, _formulas):
        for z, text, along in look(subject):
            if runs.holds(z, along):
                cure = subject.definition.axes_cure(dim) if look is _axes else ""
                # A map, as in SPADE, and no matter of the examples.
                is_map = look is _gains and subject.has_condition and 0 not in along
                other = "gain at each place" if is_map else ""
                if look is _orders and subject.kind == "rms" and not subject.bias:
                    other = "gain in front"  # of the norm a weight, on purpose
                said = text if isinstance(text, str) else text()
                return Seen(f"{said}.", cure, other)
    mean_of = subject.definition.mean
    for y in runs.outputs:
        means = 0.0 if subject.kind == "rms" else largest(mean_of(y))
        if not max(largest(mean_of(y.square()) - 1), means) < TOLERANCE:  # NaN is not
            return None
    return Seen(
        "what comes out is itself normalized: gain and bias act before the norm."
    )


def _subsets(dim: int) -> list[Axes]:
    every = range(dim)
    return [s for size in every for s in itertools.combinations(every, size + 1)]


def _parts(subject: Subject) -> Iterator[Candidate]:
    """Yield parts of a batch with statistics of their own, or with a common mean."""
    if subject.kind != "batch":
        return
    along, mean_of = _parameter_axes(subject), subject.definition.mean

    def in_parts(x: Tensor, size: int) -> Tensor:
        return torch.cat([*map(subject.x_hat, torch.split(x, size))])

    def between(x: Tensor, count: int) -> Tensor:
        inside = torch.cat([part - mean_of(part) for part in x.chunk(count)])
        return (x - mean_of(x)) / mean_of(inside.square()).sqrt()

    for n in (2, 4, 8):
        text = f"each {n} examples have statistics of their own, as in ghost batch norm"
        yield Candidate(partial(in_parts, size=n), text, along)
        text = (
            f"what lies between the means of {n} parts of the batch, as on several "
            "devices, is left out of the variance"
        )
        yield Candidate(partial(between, count=n), text, along)


def _orders(subject: Subject) -> Iterator[Candidate]:
    """Yield gain and bias in front of the norm, and a second norm."""
    if subject.as_set is None or not subject.names:
        return
    (gain, bias), along = subject.as_set, _parameter_axes(subject)
    text = "gain and bias act before the normalization, not behind it"
    yield Candidate(lambda x: subject.x_hat(gain * x + bias), text, along)
    text = f"{text}, as 1 + {subject.gain}"
    yield Candidate(lambda x: subject.x_hat((1 + gain) * x + bias), text, along)
    text = "a second norm stands behind gain and bias"
    yield Candidate(
        lambda x: subject.x_hat(gain * subject.x_hat(x) + bias), text, along
    )


def _gains(subject: Subject) -> Iterator[Candidate]:
    """Yield the axes along which gain and bias may differ, where x_hat is right."""
    shape, own = subject.shape, _parameter_axes(subject)

    def text(along: Axes) -> str:
        what = f"x_hat is right, and gain and bias differ along {_named(along)}, not "
        return f"{what}along {_named(own)} alone{_which(subject, along)}"

    for along in _subsets(len(shape)):
        rest = math.prod(shape[axis] for axis in other_axes(len(shape), *along))
        if along != own and rest > 2:
            yield Candidate(subject.x_hat, partial(text, along), along)


def _which(subject: Subject, along: Axes) -> str:
    """Say which gain acts where, if each is one that is held."""
    if subject.gain is None:
        return ""
    seen, held = [], []
    x = subject.draw(1, subject.large)
    try:
        for seed in (1, 2):
            subject.set_affine(seed)
            a, _ = fit(subject.output(x), subject.x_hat(x), along)
            seen.append(a)
            gain = subject.layer.get_parameter(subject.gain)
            held.append(gain.detach().double().clone())
    finally:
        subject.set_affine(0)
    values = torch.stack(held).flatten(1) + subject.gain_offset
    acting = torch.stack(seen)
    order = nearest(acting.flatten(1), values)
    if largest(values[:, order] - acting.flatten(1)) > 0.01 * largest(values):
        return ""
    if along != (0, 1):
        return f": {described(order)}"
    rows = order.reshape(subject.shape[0], -1)
    texts = [
        f"in example {n} channels 0, 1, 2, ... have the gain of channels "
        f"{', '.join(map(str, rows[n][:8].tolist()))}"
        for n in (0, len(rows) // 2)
    ]
    return f": examples exchange them, {' and '.join(texts)}"


class _View(NamedTuple):
    """A view in which the statistics may run over axes."""

    text: str
    of: Formula
    known: dict[Axes, str]  # axes that are a usual slip


def _views(subject: Subject) -> Iterator[_View]:
    """Yield the view of the definition, then others."""
    definition, dim = subject.definition, len(subject.shape)
    if definition.kind != "group":
        yield _View("", lambda x: x, {})
        return
    count, own = definition.groups, definition.axes(dim + 1)
    view = f" of x.reshape(N, {count}, -1, ...)"
    yield _View(view, lambda x: x.reshape(len(x), count, -1, *x.shape[2:]), {})
    if count > 1:
        known = {
            own: f"{count} channels make a group, in place of {count} groups",
            (1, *own[1:]): (
                f"a group is of every {ORDINALS.get(count, f'{count}th')} of "
                f"{subject.shape[1]}, not those side by side, along axis 1: the groups "
                "are interleaved"
            ),
        }
        view = f" of x.reshape(N, -1, {count}, ...)"
        yield _View(view, lambda x: x.reshape(len(x), -1, count, *x.shape[2:]), known)


def _parameter_axes(subject: Subject) -> Axes:
    return subject.definition.parameter_axes(len(subject.shape))


def _own_axes(subject: Subject) -> Axes:
    dim = len(subject.shape)
    return subject.definition.axes(dim + (subject.kind == "group"))


def _axes(subject: Subject) -> Iterator[Candidate]:
    """Yield axes of the mean and those of the variance."""
    own = _own_axes(subject)

    def text(where: str, known: dict[Axes, str], mean_over: Axes, over: Axes) -> str:
        if mean_over == over and over in known:
            return known[over]
        if mean_over == over:
            text = f"the statistics run over {_named(over)}{where}, expected "
            return f"{text}{_named(own)}: {_difference(subject, over, own)}"
        which = "the mean runs" if over == own else "mean and variance run"
        which = "the variance runs" if mean_over == own else which
        return (
            f"{which} over the wrong axes: the mean over {_named(mean_over)}, the "
            f"variance over {_named(over)}{where}; expected {_named(own)}"
        )

    # Gain and bias are on the last axis, too, where a kind has them on axis 1.
    gains = dict.fromkeys((_parameter_axes(subject), (len(subject.shape) - 1,)))
    for where, view, known in _views(subject):
        subsets = _subsets(len(subject.shape) + (subject.kind == "group"))
        alike = [(axes, axes) for axes in subsets]
        others = [] if subject.kind == "rms" else itertools.permutations(subsets, 2)
        pairs = itertools.chain(alike, others)
        for pair, is_about_own in itertools.product(pairs, (False, True)):
            if is_about_own and pair[0] == pair[1]:
                continue
            z = _normalized(subject, view, *pair, is_about_own=is_about_own)
            for along in gains:
                yield Candidate(z, partial(text, where, known, *pair), along)


def _normalized(
    subject: Subject, view: Formula, mean_over: Axes, over: Axes, *, is_about_own: bool
) -> Formula:
    """Return x_hat by a mean and a variance that run over axes of a view.

    The variance is about that mean, or about one over its own axes.
    """

    def z(x: Tensor) -> Tensor:
        parts = view(x)
        rest = parts if subject.kind == "rms" else parts - _mean(parts, mean_over)
        about = parts - _mean(parts, over) if is_about_own else rest
        var = _mean(about.square(), over)
        return (rest / (var + subject.eps).sqrt()).reshape(x.shape)

    return z


def _formulas(subject: Subject) -> Iterator[Candidate]:
    """Yield what may be subtracted and what the rest may be divided by."""
    along = _parameter_axes(subject)
    view, axes = next(iter(_views(subject))).of, _own_axes(subject)

    def by_first(x: Tensor) -> Tensor:
        parts = view(x)
        about = 0 if subject.kind == "rms" else _mean(parts[:1], axes)
        var = _mean((parts[:1] - about).square(), axes)
        return ((parts - about) / (var + subject.eps).sqrt()).reshape(x.shape)

    def by(x: Tensor, c: Formula, d: Formula) -> Tensor:
        parts = view(x)
        rest = other_axes(parts.dim(), *axes)
        rows = parts.permute(*rest, *axes).flatten(len(rest))
        sizes = [1 if axis in axes else n for axis, n in enumerate(parts.shape)]
        z = (parts - c(rows).reshape(sizes)) / d(rows).reshape(sizes)
        return z.reshape(x.shape)

    if 0 not in axes:
        text = "the statistics of the first example are used for all"
        yield Candidate(by_first, text, along)
    pairs = itertools.product(CENTRES.items(), DIVISORS.items())
    for (centre, c), (divisor, d) in pairs:
        text = f"{centre} is subtracted from x, and the rest divided by {divisor}"
        yield Candidate(partial(by, c=c, d=d), text, along)


def _difference(subject: Subject, seen: Axes, expected: Axes) -> str:
    """Say what the axes are that are too many or missing."""
    is_grouped = subject.kind == "group"
    is_last = subject.kind in ("layer", "rms") and subject.definition.last > 0
    dim = len(subject.shape) + is_grouped

    def what(axis: int) -> str:
        if axis == 0:
            return "the examples of the batch"
        if is_grouped and axis in (1, 2):
            return ("the groups", "the channels of a group")[axis - 1]
        is_feature = axis == dim - 1 if is_last else axis == 1
        return "the channels" if is_feature else f"the positions of axis {axis}"

    more = [what(axis) for axis in seen if axis not in expected]
    less = [what(axis) for axis in expected if axis not in seen]
    texts = [f"{' and '.join(more)} share them"] if more else []
    texts += [f"{' and '.join(less)} have statistics of their own each"] if less else []
    return ", ".join(texts)


def _named(axes: Axes) -> str:
    if len(axes) == 1:
        return f"axis {axes[0]}"
    return f"axes {', '.join(map(str, axes[:-1]))} and {axes[-1]}"
