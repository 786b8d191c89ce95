r"""Formulas of what stands in a norm's place: batches tell whether a layer has them.

A formula leaves a gain and a bias for each channel free: y = rest + a z(x) + b. Each
function yields what is left of the outputs when the formula is taken away, for each way
in which the formula may be meant.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from normbook.checks.calls import call
from normbook.checks.claim import NotTested
from normbook.checks.copies import moved, tensors_of
from normbook.checks.layer.recognition import eps_of
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import (
    LARGE,
    TOLERANCE,
    Axes,
    Formula,
    draw,
    fit,
    largest,
    other_axes,
)

Sized = Callable[[Tensor, Axes], Tensor]  # a size along axes


class Misfit(NamedTuple):
    """What a formula leaves of the outputs, with the best gain, and that gain."""

    error: float  # as a share of the largest output
    gain: Tensor = torch.ones(())
    what: str = ""  # of several ways the one that this is


Misfits = Callable[[Subject], Iterator[Misfit]]


def _channels_and_positions(dims: int) -> Iterator[tuple[int, Axes]]:
    """Yield where the channels may be, with the axes of the positions."""
    for channel in dict.fromkeys((1, dims - 1)):
        yield channel, other_axes(dims, 0, channel)


def _draws(subject: Subject, count: int = 3, scale: float = 1.0) -> list[Tensor]:
    """Draw inputs of scale 1, 2 and 3, where no eps shows and no tanh is flat."""
    return [draw(subject.shape, seed, scale * (seed + 1)) for seed in range(count)]


def _error(seen: Tensor, expected: Tensor) -> float:
    error = (largest(seen - expected)) / largest(seen)
    return error if math.isfinite(error) else math.inf


def misfit(
    subject: Subject,
    z: Formula,
    along: Axes,
    *,
    view: Formula = lambda y: y,
    scale: float = 1.0,
    has_rest: bool = False,
    what: str = "",
) -> Misfit:
    """Find gain and bias along axes on one batch, and demand them on two others.

    The rest is x; ``view`` gives the output the shape of z.
    """
    first, *others = _draws(subject, scale=scale)

    def output(x: Tensor) -> Tensor:
        y = subject.output(x)
        return view(y - x if has_rest else y)

    a, b = fit(output(first), z(first), along)
    return Misfit(max(_error(output(x), a * z(x) + b) for x in others), a, what)


def _misfit_of_matrix(inputs: list[Tensor], seen: Formula, known: Formula) -> float:
    """Find a matrix of gains and biases on one batch, and demand it on others."""

    def with_one(x: Tensor) -> Tensor:
        return functional.pad(known(x), (0, 1), value=1.0)

    first, *others = inputs
    gains = torch.linalg.lstsq(with_one(first), seen(first)).solution
    return max(_error(seen(x), with_one(x) @ gains) for x in others)


def _size(x: Tensor, axes: Axes) -> Tensor:
    """Return the root mean square."""
    return x.square().mean(axes, keepdim=True).sqrt()


def over_size(x: Tensor, axes: Axes) -> Tensor:
    """Return x over its root mean square."""
    return x / _size(x, axes)


def _standard(x: Tensor, axes: Axes) -> Tensor:
    """Return x without its mean, over its deviation."""
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / var.sqrt()


def along_channels(z: Callable[[int, Tensor], Tensor]) -> Misfits:
    """Return the misfits of a formula that is told where the channels are."""

    def misfits(subject: Subject) -> Iterator[Misfit]:
        for axis, _ in _channels_and_positions(len(subject.shape)):
            yield misfit(subject, partial(z, axis), (axis,))

    return misfits


def scale_alone(subject: Subject) -> Iterator[Misfit]:
    """Divide by the deviation of the features, or of the positions of each channel."""

    def z(x: Tensor, axes: Axes) -> Tensor:
        return x / x.std(axes, keepdim=True)

    for channel, positions in _channels_and_positions(len(subject.shape)):
        for axes in filter(None, ((channel,), positions)):
            yield misfit(subject, partial(z, axes=axes), (channel,))


def thresholded(
    subject: Subject, z: Formula, channel: int, what: str = ""
) -> Iterator[Misfit]:
    """A threshold behind is the least output of a channel, where several are it."""
    first, *others = _draws(subject)
    rest, y = other_axes(len(subject.shape), channel), subject.output(first)
    inside = z(first)
    least = y.amin(rest, keepdim=True)
    is_held = (y == least).sum(rest, keepdim=True) > 1
    threshold = least.where(is_held, -math.inf)
    free = (y > threshold).double()
    count = free.sum(rest, keepdim=True)
    deviation = free * (inside - (free * inside).sum(rest, keepdim=True) / count)
    a = (deviation * y).sum(rest, keepdim=True)
    a = a / deviation.square().sum(rest, keepdim=True)
    b = (free * (y - a * inside)).sum(rest, keepdim=True) / count
    pairs = ((subject.output(x), a * z(x) + b) for x in others)
    yield Misfit(max(_error(y, line.maximum(threshold)) for y, line in pairs), a, what)


def filter_response(subject: Subject) -> Iterator[Misfit]:
    """Divide by the root mean square of the positions."""
    for channel, positions in _channels_and_positions(len(subject.shape)):
        yield from thresholded(subject, partial(over_size, axes=positions), channel)


def global_response(subject: Subject) -> Iterator[Misfit]:
    """Each channel by its share of the size of all, with x added or not."""

    def z(x: Tensor, channel: int, positions: Axes) -> Tensor:
        size = _size(x, positions)
        return x * size / size.mean(channel, keepdim=True)

    for at in _channels_and_positions(len(subject.shape)):
        of = partial(z, channel=at[0], positions=at[1])
        for has_rest in (True, False):
            yield misfit(subject, of, at[:1], has_rest=has_rest)


def bounded(curve: Formula, inverse: Formula, *, is_shifted: bool = True) -> Misfits:
    """Find gain and bias far out, alpha and s of curve(alpha x + s) by one batch.

    Without a shift s is 0.
    """

    def misfits(subject: Subject) -> Iterator[Misfit]:
        far = torch.full(subject.shape, 1e6, dtype=torch.float64)
        high, low = subject.output(far), subject.output(-far)
        a, b = (high - low) / 2, (high + low) / 2
        first, *others = (x / 3 for x in _draws(subject))
        share = (subject.output(first) - b) / a
        is_steep = share.abs() < 0.9  # elsewhere rounding decides
        x, z = first[is_steep], inverse(share[is_steep])
        at = x.mean() if is_shifted else 0.0
        alpha = ((x - at) * z).sum() / (x - at).square().sum()
        s = z.mean() - alpha * x.mean() if is_shifted else 0.0
        outputs = ((subject.output(x), a * curve(alpha * x + s) + b) for x in others)
        yield Misfit(max(_error(y, z) for y, z in outputs), a)

    return misfits


def plain(*formulas: Formula) -> Misfits:
    """Return the misfits of formulas, with gain and bias along the last axis."""
    return lambda subject: (misfit(subject, z, (-1,)) for z in formulas)


def message_norm(subject: Subject) -> Iterator[Misfit]:
    """Each row as a direction, with a length that is not of x, or a length alone."""
    length = partial(_size, axes=(-1,))
    what = "x is the node"
    yield misfit(subject, lambda x: length(x).expand_as(x), (-1,), what=what)
    yield misfit(subject, lambda x: functional.normalize(x, dim=-1), (0,))


def over_nodes(subject: Subject) -> Iterator[Misfit]:
    """All that a graph holds by one mean, or each channel, less a share of its mean."""
    every = tuple(range(len(subject.shape)))
    by_all = partial(_standard, axes=every)
    what = "one mean and one variance for all that a graph holds"
    yield misfit(subject, by_all, (-1,), scale=LARGE, what=what)
    what = "each channel by the nodes of its graph, less a share of their mean"
    yield from estimated(subject, every[-1], what)


def _lines(
    subject: Subject, inputs: list[Tensor], channel: int = 1
) -> list[tuple[Tensor, ...]]:
    """Return slopes and heights, variances and means of x; none if one is no line."""
    lines: list[tuple[Tensor, ...]] = []
    rest = other_axes(len(subject.shape), channel)
    for x in inputs:
        y = subject.output(x)
        s, h = fit(y, x, (channel,))
        if _error(y, s * x + h) > 1e-6:
            return []
        lines.append((s.flatten(), h.flatten(), *torch.var_mean(x, rest, correction=0)))
    return lines


def estimated(
    subject: Subject, channel: int = 1, what: str = "", scale: float = 1.0
) -> Iterator[Misfit]:
    """Demand that x meets a line, which mean and variance of the batch move.

    With y = s x + h, 1 / s^2 must be a sum of 1, the variance and the squared mean, and
    h one of 1, s and s times the mean: with fixed shares, in more batches than shares.
    """
    terms, squares, heights = [], [], []
    for s, h, var, mean in _lines(subject, _draws(subject, 8, scale), channel):
        one = torch.ones_like(mean)
        terms.append(torch.stack((one, var, mean.square(), one, s, s * mean)))
        squares.append(s.square().reciprocal())
        heights.append(h)
    if not terms:
        yield Misfit(math.inf)
        return
    worst, table = 0.0, torch.stack(terms).permute(2, 0, 1)
    for columns, values in ((table[..., :3], squares), (table[..., 3:], heights)):
        wanted = torch.stack(values, 1).unsqueeze(-1)
        shares = torch.linalg.lstsq(columns, wanted).solution
        worst = max(worst, _error(wanted, columns @ shares))
    yield Misfit(worst, what=what)


def pooled(subject: Subject) -> Iterator[Misfit]:
    """Mean and variance of all batches so far, this one with them or without it."""
    inputs = [draw(subject.shape, seed, 1.0) + 0.3 * seed for seed in range(5)]
    for _, positions in _channels_and_positions(len(subject.shape)):
        layer, axes = subject.fresh(), (0, *positions)
        outputs = [call(layer, x.to(subject.dtype)).detach() for x in inputs]
        for count, correction in itertools.product((5, 4), (0, 1)):
            seen = torch.cat(inputs[:count])
            var, mean = torch.var_mean(seen, axes, correction=correction, keepdim=True)
            error = _error(outputs[-1].double(), (inputs[-1] - mean) / var.sqrt())
            what = "" if count == 5 else "a batch counts from the next one on"
            yield Misfit(error, what=what)


def by_what_was_seen(subject: Subject) -> Iterator[Misfit]:
    """Statistics of all batches, or averages that each batch moves, from the start.

    Outputs are often clipped: inputs far from what a layer has seen would tell nothing.
    """
    for name, held in subject.layer.named_buffers():
        if re.search("mean|count|num_|var|std", name):
            held.fill_(1 if re.search("var|std", name) else 0)
    found = [*pooled(subject)]
    yield from found
    if min(one.error for one in found) < TOLERANCE:
        return
    for channel, _ in _channels_and_positions(len(subject.shape)):
        yield from estimated(subject, channel, "averages that each batch moves", 0.2)


def by_parts(subject: Subject) -> Iterator[Misfit]:
    """Parts of the batch, each by its own mean and variance, gain and bias perhaps."""
    positions, n = tuple(range(3, len(subject.shape) + 1)), subject.shape[0]

    def parts(x: Tensor, size: int) -> Tensor:
        return x.reshape(-1, size, *x.shape[1:])

    def spread(x: Tensor, size: int) -> Tensor:
        return x.reshape(size, -1, *x.shape[1:]).transpose(0, 1)

    for size in (size for size in range(2, n) if n % size == 0):
        for way, what in ((parts, "side by side"), (spread, "dealt out in turn")):
            view = partial(way, size=size)

            def z(x: Tensor, view: Formula = view) -> Tensor:
                return _standard(view(x), (1, *positions))

            what = f"parts of {size} examples, {what}"
            yield misfit(subject, z, (0, 2), view=view, scale=LARGE, what=what)


def white(subject: Subject) -> Iterator[Misfit]:
    """Outputs of which no two channels go together, whatever matrix makes them so."""
    errors = []
    for x in _draws(subject):
        y = torch.cov(subject.output(x).transpose(0, 1).flatten(1), correction=0)
        errors.append(_error(y / y.diagonal().mean(), torch.eye(len(y)).to(y)))
    yield Misfit(max(errors))


_EVONORMS = ("s0", "s1", "s2", "b0", "b1", "b2")


def evonorm(subject: Subject) -> Iterator[Misfit]:
    """S0 to B2 (Liu et al. 2020), with each parameter in turn for v.

    A form that the class names is the only one that it may be.
    """
    sizes, dim = subject.shape, len(subject.shape)
    if dim < 3:
        return
    name = type(subject.layer).__name__.lower()
    forms = [form for form in _EVONORMS if form in name] or _EVONORMS
    positions = tuple(range(2, dim))
    held = [p.detach().double() for p in subject.layer.parameters()]
    held = [p.reshape(-1, *[1] * (dim - 2)) for p in held if p.numel() == sizes[1]]

    deviation = partial(torch.std, correction=0, keepdim=True)

    def by_batch(right: Formula) -> Formula:
        return lambda x: x / deviation(x, (0, *positions)).maximum(right(x))

    def b0(v: Tensor) -> Formula:
        return by_batch(lambda x: v * x + deviation(x, positions))

    def in_groups(n: int, of: Sized, v: Tensor) -> Formula:
        def z(x: Tensor) -> Tensor:
            parts = x.reshape(len(x), n, -1, *x.shape[2:])
            over = of(parts, tuple(range(2, dim + 1))).squeeze(2)
            return x * (v * x).sigmoid() / over.repeat_interleave(sizes[1] // n, 1)

        return z

    one: list[tuple[str, Formula]] = [
        ("b1", by_batch(lambda x: (x + 1) * _size(x, positions))),
        ("b2", by_batch(lambda x: _size(x, positions) - x)),
        *(("b0", b0(v)) for v in held),
    ]
    for n in (n for n in range(1, sizes[1] + 1) if sizes[1] % n == 0):
        plain = torch.ones(())
        one += [(f"s1 in {n} groups", in_groups(n, deviation, plain))]
        one += [(f"s2 in {n} groups", in_groups(n, _size, plain))]
        one += [(f"s0 in {n} groups", in_groups(n, deviation, v)) for v in held]
    for form, z in one:
        if form[:2] in forms:
            what = f"EvoNorm-{form[:2].upper()}{form[2:]}"
            yield misfit(subject, z, (1,), what=what)


def renormalized(subject: Subject) -> Iterator[Misfit]:
    """Batch renormalization (Ioffe 2017): y = gain (r x_hat + d) + bias.

    r is the deviation of the batch over the running one, d how far its mean is from
    the running one, over the same, both within limits. So the slope times the deviation
    of the batch, and the output at its mean, are lines that are cut off, and have one
    slope. Where all is cut off at the same value it is a batch norm.
    """
    eps = eps_of(subject.layer, subject.dtype) or 0.0
    inputs = [
        draw(subject.shape, seed, scale) + offset
        for seed, scale in enumerate((0.05, 0.3, 0.6, 1.0, 1.5, 3.0, 20.0))
        for offset in (-20.0, -0.4, 0.0, 0.7, 20.0)
    ]
    inputs += _near_what_is_held(subject)
    if not (lines := _lines(subject, inputs)):
        yield Misfit(math.inf)
        return
    s, h, var, mean = (torch.stack(values) for values in zip(*lines, strict=True))
    sigma = (var + eps).sqrt()
    u, v = s * sigma, h + s * mean

    def cut(seen: Tensor, line: Tensor) -> tuple[Tensor, Tensor]:
        """Return where what is seen is not at its limits, and the line within them."""
        low, high = seen.amin(0), seen.amax(0)
        room = 1e-6 * (high - low)
        return (seen > low + room) & (seen < high - room), line.clamp(low, high)

    free, _ = cut(u, u)
    slope = (u / sigma).where(free, torch.nan).nanmedian(0).values.nan_to_num()
    free, _ = cut(v, v)
    start = (v - slope * mean).where(free, torch.nan).nanmedian(0).values
    error_u = _error(u, cut(u, slope * sigma)[1])
    error_v = _error(v, cut(v, start + slope * mean)[1])
    still_u, still_v = (
        largest(line.amax(0) - line.amin(0)) < TOLERANCE * largest(u) for line in (u, v)
    )
    if still_u or still_v:  # r is held at 1, and d at 0, or neither is
        what = "its limits hold r at 1 and d at 0, and it is a batch norm"
        yield Misfit(0.0 if still_u and still_v else math.inf, what=what)
        return
    yield Misfit(max(error_u, error_v), slope)


def _near_what_is_held(subject: Subject) -> list[Tensor]:
    """Draw batches near running statistics, where narrow limits cut nothing off.

    Any pair of tensors that a batch moves may be mean and variance, or deviation.
    """
    after, sizes = subject.fresh(), [1, -1, *(1 for _ in subject.shape[2:])]
    call(after, draw(subject.shape, 0).to(subject.dtype))
    held = dict(tensors_of(subject.layer))
    names = moved(subject.layer, after, subject.shape[1])
    found = []
    for mean, spread in itertools.permutations(names, 2):
        m, s = (held[n].detach().double().reshape(sizes) for n in (mean, spread))
        if not (s > 0).all():
            continue
        for sigma, seed in itertools.product((s, s.sqrt()), range(4)):
            z = _standard(draw(subject.shape, seed), other_axes(len(subject.shape), 1))
            found.append(m + sigma * ((0.8 + 0.15 * seed) * z + 0.15 * (seed - 1)))
    return found


def soft_groups(subject: Subject) -> Iterator[Misfit]:
    """Batch norms of x times its share in each of some groups (Zhou et al. 2020).

    Shares are the softmax of a linear map that the layer holds; what comes is added to
    x. A gain for each feature of each group is found on one batch.
    """
    features = subject.shape[-1]
    # Of a group that hardly any node has a share in, the variance is as small as it.
    eps = eps_of(subject.layer, subject.dtype) or 0.0
    if len(subject.shape) != 2:
        return

    def known(x: Tensor, w: Tensor) -> Tensor:
        parts = (x @ w.T).softmax(-1).unsqueeze(-1) * x.unsqueeze(-2)
        var, mean = torch.var_mean(parts, 0, correction=0)
        return ((parts - mean) / (var + eps).sqrt()).permute(2, 0, 1)  # (D, N, groups)

    def seen(x: Tensor) -> Tensor:
        return (subject.output(x) - x).T.unsqueeze(-1)

    for p in subject.layer.parameters():
        if p.dim() != 2 or p.shape[1] != features:
            continue
        w = p.detach().double()
        error = _misfit_of_matrix(_draws(subject), seen, partial(known, w=w))
        yield Misfit(error, what=f"{len(w)} groups")


def equivariant(subject: Subject) -> Iterator[Misfit]:
    """Vectors over their root mean square length, scalars as in batch norm.

    The layer says in ``irreps`` how many there are of which size; a gain for each.
    """
    irreps = getattr(subject.layer, "irreps", ())
    if isinstance(irreps, str):
        raise NotTested("irreps is a text, which is not read here", "Give it as pairs.")
    blocks = [(int(mul), ir) for mul, ir in irreps]
    if sum(mul * ir.dim for mul, ir in blocks) != subject.shape[-1]:
        return
    if all(ir.is_scalar() for _, ir in blocks):  # a batch norm, then
        return

    def part(x: Tensor, start: int, stop: int, n: int) -> Tensor:
        return x[..., start:stop].reshape(-1, n, (stop - start) // n)

    def z(x: Tensor, part: Formula, is_scalar: bool) -> Tensor:
        v = part(x)
        v = v - v.mean(0) if is_scalar else v
        return v / v.square().sum(-1, keepdim=True).mean(0).sqrt()

    worst, start = 0.0, 0
    for mul, ir in blocks:
        stop, is_scalar = start + mul * ir.dim, bool(ir.is_scalar())
        view = partial(part, start=start, stop=stop, n=mul)
        of = partial(z, part=view, is_scalar=is_scalar)
        found = misfit(subject, of, (1,), view=view, scale=LARGE)
        worst, start = max(worst, found.error), stop
    yield Misfit(worst)


def cumulative(subject: Subject) -> Iterator[Misfit]:
    """Mean and variance of the steps so far; time on axis 1 or the last.

    The variance is that of the steps, or of each step from the mean at that step.
    """
    dim = len(subject.shape)
    if dim < 3:
        return

    def so_far(x: Tensor, time: int) -> Tensor:
        rest = other_axes(dim, 0, time)
        steps = torch.ones_like(x).cumsum(time)
        return x.mean(rest, keepdim=True).cumsum(time).expand_as(x) / steps

    def exact(x: Tensor, time: int) -> Tensor:
        mean = so_far(x, time)
        return (x - mean) / (so_far(x.square(), time) - mean.square()).sqrt()

    def each(x: Tensor, time: int) -> Tensor:
        centred = x - so_far(x, time)
        return centred / so_far(centred.square(), time).sqrt()

    for time, channel in ((1, dim - 1), (dim - 1, 1)):
        yield misfit(subject, partial(exact, time=time), (channel,), scale=LARGE)
        what = "the variance takes each step from the mean up to that step"
        of = partial(each, time=time)
        yield misfit(subject, of, (channel,), scale=LARGE, what=what)


def complex_norm(subject: Subject) -> Iterator[Misfit]:
    """Pairs of real and imaginary part, made white by their 2 x 2 covariance.

    A matrix of gains for each channel is found on one batch and demanded on others.
    """
    dim = len(subject.shape)
    if subject.shape[-1] % 2:
        return

    def paired(x: Tensor) -> Tensor:
        return torch.stack(x.chunk(2, -1), -1)

    def white(x: Tensor, axes: Axes) -> Tensor:
        pair = paired(x) - paired(x).mean(axes, keepdim=True)
        outer = (pair.unsqueeze(-1) * pair.unsqueeze(-2)).mean(axes, keepdim=True)
        values, vectors = torch.linalg.eigh(outer)
        root = vectors * values.rsqrt().unsqueeze(-2) @ vectors.mT
        return by_channel((root @ pair.unsqueeze(-1)).squeeze(-1))

    def by_channel(pairs: Tensor) -> Tensor:
        return pairs.flatten(0, -3).movedim(0, 1)  # (C, places, 2)

    def seen(x: Tensor) -> Tensor:
        return by_channel(paired(subject.output(x)))

    inputs = _draws(subject, scale=LARGE)
    for axes in _parts_of_the_axes(dim):
        yield Misfit(_misfit_of_matrix(inputs, seen, partial(white, axes=axes)))


def quaternion_norm(subject: Subject) -> Iterator[Misfit]:
    """Four parts of a number, by the mean of each and one variance of all."""
    dim = len(subject.shape)
    if subject.shape[-1] % 4:
        return

    def z(x: Tensor, axes: Axes) -> Tensor:
        parts = torch.stack(x.chunk(4, -1), -1)
        centred = parts - parts.mean(axes, keepdim=True)
        square = centred.square().sum(-1, keepdim=True).mean(axes, keepdim=True)
        return torch.cat((centred * square.rsqrt()).unbind(-1), -1)

    for axes in _parts_of_the_axes(dim):
        yield misfit(subject, partial(z, axes=axes), (-1,), scale=LARGE)


def _parts_of_the_axes(dim: int) -> Iterator[Axes]:
    """Yield the batch, the batch with all positions, the positions, and features."""
    axes = [(0,), tuple(range(dim - 1)), tuple(range(1, dim - 1)), (dim - 1,)]
    axes.append(tuple(range(1, dim)))
    yield from dict.fromkeys(filter(None, axes))
