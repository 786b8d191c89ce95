"""Over what the norms of a model take their means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, call, called
from normbook.checks.copies import copy_of
from normbook.checks.layer.recognition import OWNERS
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, place_of, share_of
from normbook.checks.model.passes import Pass
from normbook.checks.model.runs import (
    NOT_CUT,
    Event,
    Seen,
    batch_in,
    cuts_of,
    hidden_norms,
    lengths_in,
    linear_behind,
    narrowed,
    noting,
    one_of_many,
    run_on,
    tensors_in,
)
from normbook.checks.model.subject import Subject
from normbook.checks.unusual.padding import More, kept_places, part_of_padding

SMALL = 0.02  # of the largest output


def neighbours(subject: Subject) -> Iterator[Harm]:
    """Evaluate the first example alone, and find where it first differs."""
    whole_x = batch_in(subject.x)
    if subject.is_time_first:
        why = "x has the time first, as batch_first=False of the model says."
        subject.untested.append(f"neighbours in evaluation: {why}")
        return
    if whole_x is None or len(whole_x) < 2:
        why = NOT_CUT
        subject.untested.append(f"neighbours in evaluation: {why}")
        yield from _by_the_batch(subject)
        return
    few, count = one_of_many(subject.x)
    again = Pass(copy_of(subject.model), subject.names)
    try:
        made = again.outputs(few)
    except LayerError as error:
        subject.untested.append(f"one example in evaluation: {error}")
        count = max(2, len(whole_x) // 2, count)
        made, few = None, narrowed(subject.x, 0, count)
    if made and _is_nan_alone(made, subject.still.made):
        yield _of_one(subject, few)
        count = min(2 * count, len(whole_x))
        made, few = None, narrowed(subject.x, 0, count)
    try:
        repeated, made = again.outputs(subject.x), made or again.outputs(few)
    except LayerError as error:
        subject.untested.append(f"neighbours in evaluation: {error}")
        return
    outputs = subject.still.made, repeated, made
    tensors = ((t for t in of if t.dim()) for of in outputs)  # a loss tells nothing
    together, second, alone = (next(of, None) for of in tensors)
    if together is not None and together.isnan().any():
        subject.untested.append("neighbours in evaluation: outputs are NaN.")
        return
    if together is None:
        why = "the model returns no tensor with an axis for the examples."
        subject.untested.append(f"neighbours in evaluation: {why}")
        return
    if second is None or not torch.equal(together, second):
        why = "outputs differ from call to call: it is random, or keeps a state."
        subject.untested.append(f"neighbours in evaluation: {why}")
        return
    axis = _axis_of_examples(together, alone)
    if alone is None or axis is None:
        shape = "none" if alone is None else f"of shape {tuple(alone.shape)}"
        subject.untested.append(
            f"neighbours in evaluation: the output of the first {count} alone is "
            f"{shape}, that of all is of shape {tuple(together.shape)}."
        )
        return
    alone, together = alone.nan_to_num(), together.nan_to_num()  # as of masks
    change = share_of(together.narrow(axis, 0, 1) - alone.narrow(axis, 0, 1), together)
    if change < 1e-3:
        return
    whole = {event.name: event for event in reversed(_events(subject, subject.x))}
    met = (event for event in _events(subject, few) if event.name in whole)
    first = next((s for s in met if _differs(s.y, whole[s.name].y)), None)
    if first is None or _differs(first.x, whole[first.name].x):
        what = f"to {first.name}" if first else "behind all norms"
        why = (
            "the cause is no norm that the model registers, but an axis that is taken "
            "for the batch, as by attention with batch_first=False or a scale and "
            "shift spread over examples, or a norm of another kind."
        )
        cure = (
            "Look at which axis is the batch in front of it, and where outputs of "
            "norms are scaled."
        )
        if _is_known(subject):
            why = "norms that are not registered normalize by the batch."
            cure = "Register them: their own harm tells how."
        # A scale of the whole batch, as where activations are quantized, is no norm's.
        yield Harm(
            WRONG if change > SMALL else NOTE,
            "an example depends on its neighbours in evaluation",
            change,
            first.name if first else "the whole model",
            f"{_first(subject, count)} by this share, and already in what comes "
            f"{what}: {why}",
            cure,
            "Choosing axes",
        )
        return
    norm = subject.model.get_submodule(first.name)
    has_none = getattr(norm, "running_mean", norm) is None
    # Who passes track_running_stats=False asks for it, as in meta-learning.
    is_told = has_none and getattr(norm, "track_running_stats", None) is False
    yield Harm(
        NOTE if is_told else WRONG,
        "an example depends on its neighbours in evaluation",
        change,
        first.name,
        f"{_first(subject, count)} by this share; it begins here."
        + f" The {type(norm).__name__} has no running statistics (running_mean is "
        "None, as for track_running_stats=False): the batch normalizes here, too."
        * has_none,
        "Evaluate by running statistics, or normalize each example by itself.",
    )


def _by_the_batch(subject: Subject) -> Iterator[Harm]:
    """Name batch norms without running statistics, where x cannot be cut."""
    for seen in subject.seen:
        norm = subject.model.get_submodule(seen.name)
        if seen.kind == "batch" and getattr(norm, "running_mean", norm) is None:
            yield Harm(
                NOTE,
                "a batch norm without running statistics",
                1,
                seen.name,
                "running_mean is None, as for track_running_stats=False: the batch "
                "normalizes in evaluation, too, and an example depends on those "
                "beside it.",
                "Evaluate by running statistics, or normalize each example by itself.",
            )


def _is_nan_alone(alone: list[Tensor], together: list[Tensor]) -> bool:
    """Return whether the first example gives NaN alone, and none among others."""
    pairs = zip(alone, together, strict=False)
    both = [(a[:1].isnan().any(), b.isnan().any()) for a, b in pairs if a.dim()]
    return any(a for a, _ in both) and not any(b for _, b in both)


def _of_one(subject: Subject, x: Any) -> Harm:
    """Say where NaN begins in the evaluation of one example."""
    made = (e for e in _events(subject, x) if e.y.isnan().any())
    first = next(made, None)
    is_here = first is not None and not first.x.isnan().any()
    return Harm(
        WRONG,
        "one example alone gives NaN in evaluation",
        1,
        first.name if first and is_here else "the whole model",
        "beside others it gives numbers"
        f"{'; it begins here' if is_here else ''}: a deviation over the examples, say, "
        "that of one does not have.",
        "Evaluate by running statistics, or normalize each example by itself.",
        "Small batches",
    )


def _events(subject: Subject, x: Any) -> list[Event]:
    """Return the calls of all norms, and of what may be one."""
    model = copy_of(subject.model)
    events = noting(model, [*subject.names, *subject.unknown])
    run_on(model, x)
    return events


def _is_known(subject: Subject) -> bool:
    """Return whether norms that are not registered normalize by the batch."""
    hidden = hidden_norms(subject.still.model)
    met = subject.still.entered
    return any(norm.training for name, norm in hidden.items() if name in met)


def not_features(subject: Subject) -> Iterator[Harm]:
    """Give fewer examples and positions; what changes length is no feature."""
    whole_x = batch_in(subject.x)
    if whole_x is None:
        subject.untested.append(f"axes that are no features: {NOT_CUT}")
        return
    if not any(isinstance(part, OWNERS) for part in subject.model.modules()):
        return  # behind norms alone any axis may be the one of the features
    # What is called and returns a tuple, say, cannot give back what it gets.
    lengths = lengths_in(copy_of(subject.model), [s.name for s in subject.seen])
    whole = {seen.name: tuple(seen.x.shape) for seen in subject.seen}
    few = narrowed(subject.x, 0, min(4, len(whole_x)))
    of_few, found, is_tried = lengths(few), {}, False
    for axis, length in enumerate(whole_x.shape):
        if length < 4:
            continue
        # A few examples have all positions.
        x, sizes = (few, of_few) if axis and of_few else (subject.x, whole)
        parts = length // 2, 3 * length // 4
        cut = (less for n in parts for less in cuts_of(x, axis, n))
        others = next(filter(None, map(lengths, cut)), {})
        is_tried |= axis > 0 and bool(others)
        what = "examples" if axis == 0 else "positions"
        for seen in subject.seen:
            if seen.is_read_as_one or not (seen.is_sure and _has_length(seen)):
                continue
            if axis and _is_moved_to(seen.x, subject.x):  # on purpose
                continue
            if (
                axis
                and whole_x.dim() == seen.x.dim() == 2
                and whole_x.is_floating_point()
            ):
                continue  # the features of a table
            own, other = sizes.get(seen.name, ()), others.get(seen.name, ())
            if not len(own) == len(other) == seen.x.dim():
                continue
            along = seen.definition.parameter_axes(seen.x.dim())
            moving = [k for k in along if own[k] != other[k]]
            if moving:
                held = seen.norm.parameters()
                is_told = any(p.dim() == len(along) for p in held)  # of all the axes
                k, has_features = moving[-1], is_told and len(moving) < len(along)
                found[seen.name] = what, k, whole[seen.name][k], has_features
    looked_at = any(seen.is_sure and _has_length(seen) for seen in subject.seen)
    if looked_at and not is_tried and whole_x.dim() > 2:
        subject.untested.append(
            "axes that are no features: the model did not run on x with half of its "
            "positions, nor with three quarters, cut here along axes of one length."
        )
    for name, (what, k, length, has_features) in found.items():
        if has_features:  # as of images of one size
            yield Harm(
                NOTE,
                f"normalizes {what} together with the features",
                length,
                name,
                f"axis {k} of its input changes with the number of {what} in x, and "
                f"gain and bias differ along it: it takes one number of {what}.",
                "Normalize the features alone, or all with nn.GroupNorm(1, channels), "
                "if x may have another size.",
                "Choosing axes",
            )
            continue
        yield Harm(
            WRONG,
            f"normalizes {what}, not features",
            length,
            name,
            f"axis {k} of its input changes with the number of {what} in x, and "
            "gain and bias differ along it.",
            "Move the features to the axis that the norm takes for them.",
            "Choosing axes",
        )


def ambiguous(subject: Subject) -> Iterator[Harm]:
    """Look where the features are, if the axes of a norm are alike."""
    alike = [
        seen.name
        for seen in subject.seen
        if isinstance(seen.norm, nn.BatchNorm1d | nn.InstanceNorm1d)
        if seen.x.dim() == 3 and seen.x.shape[1] == seen.x.shape[2]
    ]
    behind = linear_behind(subject.model, subject.x, alike)
    if behind:
        size = next(s.x.shape[1] for s in subject.seen if s.name in behind)
        name, linear = next(iter(behind.items()))
        yield Harm(
            RISK,
            "the axes have one length, and the last may be the features",
            size,
            place_of([*behind]),
            f"it gets (N, {size}, {size}) and takes axis 1 for the features; {linear}, "
            f"which gets the output of {name} as it is, takes the last axis for them.",
            "Exchange the axes in front of the norm and behind it.",
            "Choosing axes",
        )


def one_value(subject: Subject) -> Iterator[Harm]:
    """Look for norms whose every value is its own mean."""
    for seen in subject.seen:
        if seen.definition.size(tuple(seen.x.shape)) != 1 or seen.is_read_as_one:
            continue
        of = seen.definition.parameter_axes(seen.x.dim())
        rest = [k for k in range(seen.x.dim()) if k not in of]
        spread = seen.y - seen.y.mean(rest, keepdim=True) if rest else 0 * seen.y
        if float(spread.abs().max()) > 0.01:  # not the bias
            subject.untested.append(
                f"{type(seen.norm).__name__} at {seen.name}: a "
                f"{seen.definition.name} of an input of shape "
                f"{tuple(seen.x.shape)} would be its bias, and is not."
            )
            continue
        yield Harm(
            WRONG,
            "a mean over one value",
            1,
            seen.name,
            "each value is its own mean, and the output is the bias, whatever x is.",
            "Normalize over more channels or positions.",
            "Choosing axes",
        )


def read_as_one(subject: Subject) -> Iterator[Harm]:
    """Look for instance norms of torch that take the examples for channels."""
    whole = batch_in(subject.x)
    for seen in subject.seen:
        size = getattr(seen.norm, "num_features", None)
        count, features, *_ = seen.x.shape
        is_batch = whole is not None and len(whole) == count
        if not seen.is_read_as_one or features != size or not is_batch:
            continue
        over = " x ".join(map(str, seen.x.shape[1:]))
        what = "row over its" if seen.x.dim() == 2 else "example over all its"
        yield Harm(
            WRONG,
            "takes the examples for the channels of one",
            count,
            seen.name,
            f"torch reads an input of {seen.x.dim()} axes, "
            f"{tuple(seen.x.shape)}, as one example of {count} channels without a "
            f"batch, and normalizes each {what} {over} values, as layer norm does.",
            f"Use nn.LayerNorm, if that is meant, nn.BatchNorm1d, or give it "
            f"{seen.x.dim() + 1} axes.",
            "Choosing axes",
        )


def padding(subject: Subject) -> Iterator[Harm]:
    """Take padding at the end of sequences away, and compare what is kept."""
    for seen in subject.seen:
        x, whole = seen.x, batch_in(subject.x)
        if seen.kind == "batch" and x.dim() == 2 and whole is not None:
            length, rest = divmod(len(x), len(whole))
            if rest or length < 2:
                continue
            x = x.reshape(len(whole), length, -1).transpose(1, 2)
        if seen.kind not in ("batch", "instance", "group") or x.dim() != 3:
            continue
        keep = kept_places(x, seen.more)
        share = 1 - keep.double().mean().item()
        if not 0.02 < share < 1:
            continue
        norm = copy_of(seen.norm)
        like = next(norm.parameters(), torch.zeros((), device=seen.x.device))

        def run(x: Tensor, more: More, norm: Any = norm, like: Any = like) -> Tensor:
            with called(lambda layer, x: layer(x, *more[0], **more[1])):
                return call(norm, x.to(like.dtype))

        try:
            part = part_of_padding(run, seen.definition, x, keep, seen.more)
        except LayerError:
            part = None
        if part is None:
            subject.untested.append(f"padding of {seen.name}: too little is kept.")
            continue
        if not part.of:
            continue
        others = {"mean", "variance"} - {*part.of}
        but = f", not of the {' or '.join(others)}" if others else ""
        yield Harm(
            RISK,
            "padding inside the statistics",
            share,
            seen.name,
            "this share of all positions is padding, and part of the "
            f"{' and the '.join(part.of)}{but}: without it, what is kept changes "
            f"by {part.change:.2g} of the output.",
            f"Take the {' and the '.join(part.of)} over what is no padding.",
            "Variable length",
        )


def _has_length(seen: Seen) -> bool:
    """Return whether a norm is for one length of the axis of its parameters."""
    held = any(True for _ in (*seen.norm.parameters(), *seen.norm.buffers()))
    return held or seen.kind in ("layer", "rms")


def _is_moved_to(x: Tensor, given: Any) -> bool:
    """Return whether a norm gets an input in another order of its axes.

    Then the model itself puts an axis where the norm has its features.
    """
    own = x.flatten()
    floating = (t for t in tensors_in(given) if t.is_floating_point())
    alike = (t.double().flatten() for t in floating if t.numel() == x.numel())
    return any(
        not own.equal(t) and own.sort().values.equal(t.sort().values) for t in alike
    )


def _axis_of_examples(together: Tensor, alone: Tensor | None) -> int | None:
    """Return the axis on which outputs of fewer examples are shorter, 0 if none is."""
    if alone is None or alone.dim() != together.dim():
        return None
    pairs = zip(together.shape, alone.shape, strict=True)
    shorter = [k for k, (whole, few) in enumerate(pairs) if whole != few]
    return None if len(shorter) > 1 else (shorter or [0])[0]


def _differs(one: Tensor, other: Tensor) -> bool:
    """Return whether the first example differs, where the shapes are alike."""
    is_alike = one.shape[1:] == other.shape[1:]
    return is_alike and share_of(one[:1] - other[:1], one) > 1e-4


def _first(subject: Subject, count: int) -> str:
    if one_of_many(subject.x)[1] == count:
        return "the first example alone has another output than beside the others,"
    return (
        f"the first example has another output among the first {count} alone than "
        "among all,"
    )
