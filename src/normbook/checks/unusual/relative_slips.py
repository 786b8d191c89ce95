"""Slips in the relatives of the norms: which other formula it is, and what it lacks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import normbook.checks.unusual.relative_formulas as formulas
from normbook.checks.calls import LayerError, call, evaluating
from normbook.checks.claim import Claim, Fault, NotTested, claim
from normbook.checks.copies import copy_of, tensors_of
from normbook.checks.layer.recognition import BIASES, GAINS
from normbook.checks.layer.subject import Given, Subject
from normbook.checks.slips.renorm import renormalization
from normbook.checks.tensors import (
    TOLERANCE,
    Axes,
    draw,
    fit,
    largest,
    other_axes,
)
from normbook.checks.unusual.any_layer import modes

LEARNED = re.compile("|".join((*GAINS, *BIASES, "tau", "threshold", "t")))
# A running average by momentum .01 is still after some 1 100 passes.
PASSES, FEW, STILL = 3000, 20, 1e-7
SCALE, MUCH = 4.0, 0.05
# Their examples are the nodes of one graph, in evaluation too.
OF_NODES = ("graph norm", "pair norm", "mean subtraction", "differentiable group norm")
SHARED = "the examples of a batch share it"


def _other_sizes(dims: int, channel: int) -> Iterator[tuple[Axes, str]]:
    """Yield axes over which a size may be taken by mistake, and their names."""
    positions = other_axes(dims, 0, channel)
    yield (0, *positions), f"batch and positions: {SHARED}"
    yield (channel,), "channels"
    yield (channel, *positions), "channels and positions"
    yield (0,), f"batch: {SHARED}"
    yield (0, channel, *positions), f"all values: {SHARED}"
    if len(positions) > 1:
        for axis in positions:
            yield (axis,), "a part of the positions"


def global_response(subject: Subject) -> Iterator[formulas.Misfit]:
    """Take the size, or the mean that it is compared with, over other axes."""

    def z(x: Tensor, axes: Axes, over: Axes) -> Tensor:
        size = x.square().mean(axes, keepdim=True).sqrt()
        return x * size / (size.mean(over, keepdim=True) if over else 1)

    dims = len(subject.shape)
    for channel in dict.fromkeys((1, dims - 1)):
        positions = other_axes(dims, 0, channel)
        right = (positions, "positions, as it should be")
        means = (
            ((channel,), ""),
            (positions, "; it is compared with its mean over positions, not channels"),
            ((0, channel), "; it is compared with its mean over batch and channels"),
            ((0,), "; it is compared with its mean over the batch, not over channels"),
            ((), "; it is not divided by its mean over channels"),
        )
        tries = itertools.product((right, *_other_sizes(dims, channel)), means)
        for (axes, name), (over, more) in tries:
            what = f"the size is taken over {name}{more}"
            for has_rest in (True, False):
                yield formulas.misfit(
                    subject,
                    partial(z, axes=axes, over=over),
                    (channel,),
                    has_rest=has_rest,
                    what=what,
                )


def filter_response(subject: Subject) -> Iterator[formulas.Misfit]:
    """Take the mean square over other axes, without its root, or without the mean."""
    dims = len(subject.shape)

    for axes, name in _other_sizes(dims, 1):
        what = f"the mean square is taken over {name}"
        of = partial(formulas.over_size, axes=axes)
        yield from formulas.thresholded(subject, of, 1, what)
    positions = other_axes(dims, 0, 1)
    what = "x is divided by the mean square, not by its root"
    yield from formulas.thresholded(
        subject, lambda x: x / x.square().mean(positions, keepdim=True), 1, what
    )
    what = "the mean is subtracted, and x is divided by its standard deviation"
    yield from formulas.thresholded(
        subject,
        lambda x: (
            (x - x.mean(positions, keepdim=True))
            / x.std(positions, correction=0, keepdim=True)
        ),
        1,
        what,
    )


@claim("there is one threshold for each channel")
def _thresholds(subject: Subject) -> Fault | None:
    """Put each parameter of one value far up; a threshold holds every output there."""
    for name, p in subject.layer.named_parameters():
        if p.numel() > 1 or subject.shape[1] == 1:
            continue
        layer = subject.fresh()
        with torch.no_grad():
            layer.get_parameter(name).fill_(1e4)
            y = call(layer, draw(subject.shape, 0, 1.0).to(subject.dtype))
        if (y == 1e4).all():
            return Fault(
                f"{name} is one threshold for all {subject.shape[1]} channels; by the "
                "definition (Singh and Krishnan 2020) each channel learns its own.",
                f"Give {name} one value for each channel.",
                "one threshold",
            )
    return None


@claim("a running variance of 0 leaves the output finite")
def _no_variance(subject: Subject) -> Fault | None:
    """Set each buffer that is a variance to 0, as of a channel that never moved."""
    for name, _ in subject.layer.named_buffers():
        layer = subject.fresh()
        buffer = layer.get_buffer(name)
        if "var" not in name.rpartition(".")[2] or not buffer.is_floating_point():
            continue
        with torch.no_grad():
            buffer.zero_()
            y = call(layer, draw(subject.shape, 0, 1.0).to(subject.dtype))
        if not y.isfinite().all():
            return Fault(
                f"no eps is under the root: where {name} is 0, as of a channel that "
                "is always 0, the output is NaN or infinite. With eps = 0 it differs "
                "from batch norm in evaluation, too.",
                "Multiply by (running_var + eps).rsqrt().",
            )
    return None


@claim("gain, bias and threshold are held as parameters")
def _learned(subject: Subject) -> Fault | None:
    """Change tensors that are no parameters, and have the name of what learns."""
    x = draw(subject.shape, 0, 1.0).to(subject.dtype)
    fixed = [
        name
        for name, value in tensors_of(subject.layer)
        if not isinstance(value, nn.Parameter) and value.is_floating_point()
        if LEARNED.fullmatch(name.rpartition(".")[2].lower())
    ]
    names = []
    for name in fixed:
        layer = subject.fresh()
        dict(tensors_of(layer))[name].data += 10
        if largest(call(layer, x).detach() - subject.output(x)) > TOLERANCE:
            names.append(name)
    if not names:
        return None
    return Fault(
        f"{' and '.join(names)} act{'s' * (len(names) == 1)} on the output, and "
        f"{'is no parameter' if len(names) == 1 else 'are no parameters'}: no "
        "optimizer moves what begins as it is.",
        "Make each an nn.Parameter, unless it is to stay as it is.",
        "fixed gain",
    )


@claim("evaluation takes batches of any size")
def _any_batch(subject: Subject) -> Fault | None:
    """Feed one example, and three, to what has seen a batch."""
    layer = subject.fresh()
    x = draw(subject.shape, 0, 1.0).to(subject.dtype)
    call(layer, x)
    for count in (1, 3):
        try:
            call(evaluating(copy_of(layer)), x[:count])
        except LayerError as error:
            return Fault(
                f"after eval() a batch of {len(x)} works, and one of {count} fails: "
                f"{error}. Evaluation needs no statistics of the batch.",
                "In evaluation, normalize by the running statistics as they are.",
            )
    return None


@claim("after many passes evaluation forgets the scale of the input")
def _forgets(subject: Subject) -> Fault | None:
    """Train on one batch, and on one four times as large, until averages stand still.

    Where the running variance is one, evaluation divides each by its own sigma.
    """
    x = draw(subject.shape, 0, 2.0).to(subject.dtype)
    first, second = (_evaluated(subject, s * x) for s in (1, SCALE))
    slope, _ = fit(second, first, (1,))
    factor = slope.median().item()
    if largest(slope - 1) < MUCH:
        return None
    what = {1: "a standard deviation", 4: "a square of the variance", -1: "1 / sigma"}
    fits = [
        f": the running variance holds {text}"
        for power, text in what.items()
        if abs(factor / SCALE ** (1 - power / 2) - 1) < MUCH
    ]
    return Fault(
        "when the running statistics of two batches move no more, one of them "
        f"{SCALE:g} times the other, evaluation of the larger gives {factor:.3g} times "
        f"that of the other, expected the same{''.join(fits)}.",
        "Average the variance of each batch, and take its root where x is divided.",
    )


def _evaluated(subject: Subject, x: Tensor) -> Tensor:
    """Return the evaluation of a batch on which a copy was trained."""
    layer = subject.fresh()
    now = [x]
    for passes in range(PASSES):
        before = now
        y = call(layer, x).detach()
        # What training gives may hang on no average, and an average be in no buffer.
        now = [y, *(t.clone() for _, t in tensors_of(layer) if t.is_floating_point())]
        if passes > FEW and all(
            largest(a - b) <= STILL * largest(a)
            for a, b in zip(now, before, strict=False)
        ):
            return call(evaluating(layer), x).detach().double()
    raise NotTested("the running statistics move slowly", "Set momentum to 0.1.")


@claim("r and d are constants in the backward pass")
def _constants(subject: Subject) -> Fault | None:
    """Look for what is wrong in a batch renormalization but its outputs."""
    seen = renormalization(Subject(subject.fresh(), Given(subject.shape, "batch")))
    return None if seen is None or seen.other else seen


@claim("evaluation leaves the running statistics as they are")
def _keeps(subject: Subject) -> Fault | None:
    """Evaluate other data; what is held must stay."""
    layer = subject.fresh()
    x = subject.draw(0).to(subject.dtype)
    call(layer, x)
    before = {name: value.detach().clone() for name, value in tensors_of(layer)}
    call(evaluating(layer), 3 * x)
    moved = [n for n, t in tensors_of(layer) if n in before and not t.equal(before[n])]
    if not moved:
        return None
    return Fault(
        f"a call in evaluation mode changes {' and '.join(moved)}: what is measured "
        "leaks into the model, and an example is normalized by those beside it.",
        "Update only if self.training.",
    )


@claim("state_dict carries the running statistics")
def _saved(subject: Subject) -> Fault | None:
    """Load the state of a layer that saw batches into a fresh one; evaluate both."""
    layer, fresh = subject.fresh(), subject.fresh()
    for seed in range(4):
        call(layer, (draw(subject.shape, seed) + seed).to(subject.dtype))
    state = layer.state_dict()
    fresh.load_state_dict(state)
    x = draw(subject.shape, 9, 1.0).to(subject.dtype)
    expected, loaded = (call(evaluating(of), x).detach() for of in (layer, fresh))
    if torch.allclose(expected, loaded, equal_nan=True):
        return None
    return Fault(
        "a fresh layer with the state_dict of one that saw batches evaluates "
        f"differently; the state_dict has {', '.join(state) or 'nothing'}: the moving "
        "statistics are no buffers.",
        'Use self.register_buffer("running_mean", ...), and write to it in place or '
        "by assignment.",
    )


@claim("train() and eval() return the layer")
def _modes(subject: Subject) -> Fault | None:
    """Call both."""
    text = modes(subject.fresh(), draw(subject.shape, 0, 1.0))
    return Fault(f"{text}.", "Return self.") if text else None


# By the name of the relative.
_CLAIMS: dict[str, list[Claim[Subject]]] = {
    "FRN": [_thresholds],
    "frozen batch norm": [_no_variance],
    "batch renormalization": [_forgets, _constants, _saved],
    "running normalization": [_keeps, _saved],
    "batch norm by running statistics": [_keeps, _saved],
}


def claims_of(name: str) -> list[Claim[Subject]]:
    """Return what a relative is held to, by its name."""
    learns = [] if name == "frozen batch norm" else [_learned]
    sizes = [] if name in OF_NODES else [_any_batch]
    return [*learns, *sizes, *_CLAIMS.get(name, []), _modes]
