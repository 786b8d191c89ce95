"""Each norm of a model by itself: its class, its eps and its gain."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError
from normbook.checks.claims import example, output, precision, running, state
from normbook.checks.claims.precision import OTHER_EPS, dtype_is_kept, precisions
from normbook.checks.copies import copy_of, tensors_of
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, place_of
from normbook.checks.model.kernels import kernels_of
from normbook.checks.model.runs import Seen, parts_of, run_on, tensors_in
from normbook.checks.model.subject import Subject, gain_of, has_learnt
from normbook.checks.norm_layer import check_norm_layer
from normbook.checks.slips.explanations import UNEXPLAINED
from normbook.checks.unusual.condition_claims import MASKED
from normbook.checks.unusual.conditions import undisturbed

# What these say has no meaning where another definition may be meant.
OF_DEFINITION = {
    claim.name
    for claim in (
        *(output.statistics, output.parameter_shapes, example.positions_apart),
        *(state.in_evaluation, state.single_value),
    )
}
LARGE_EPS = 0.05  # beyond what any variance needs
FEW, MANY = 4, 30  # values of one set of statistics
MANY_BATCHES = 100
FAR = 30  # deviations from 0, of a mean that one pass in float32 bears


def broken(subject: Subject) -> Iterator[Harm]:
    """Check each class with each setting once, the smallest of its layers."""
    groups: dict[str, list[Seen]] = {}
    for seen in subject.seen:
        setting = ""
        if seen.is_read_as_one or seen.name in subject.unsound:
            continue
        if seen.definition.size(tuple(seen.x.shape)) == 1:  # told by its own harm
            continue
        with suppress(Exception):  # its own extra_repr may raise
            setting = re.sub(r"\(\s*\d+\b|\(\(.*?\)|=\d+\b", "", repr(seen.norm))
        held = sorted(name for name, _ in seen.norm.named_parameters())
        key = f"{type(seen.norm)} {setting} {held} {seen.x.dim()}"
        groups.setdefault(key, []).append(seen)
    for group in groups.values():
        least = min(group, key=lambda seen: seen.x[0].numel())
        count = least.definition.size(tuple(least.x.shape))
        place = place_of([seen.name for seen in group], least.name)
        try:
            norm = copy_of(least.norm).float().cpu()
            shape = tuple(least.x.shape)
            way = undisturbed(norm, least.x.cpu(), least.more)
            axis = least.definition.channel
            report = check_norm_layer(
                norm, shape, call=way, channel_axis=axis, quiet=True
            )
        except (TypeError, ValueError, LayerError) as error:
            what = f"{type(least.norm).__name__} at {place}"
            why = textwrap.shorten(str(error), 300, placeholder=" ...")
            subject.untested.append(f"{what} by itself: {why}")
            continue
        of = type(least.norm).__name__
        is_unknown = not least.is_sure and any(
            finding.verdict == "wrong" and finding.name == output.statistics.name
            for finding in report.findings
        )
        if is_unknown:
            subject.untested.append(
                f"{of} at {place} by itself: nothing that an audit knows explains its "
                f"output as a {least.definition.name}; try check_norm_layer."
            )
        for finding in report.findings:
            if is_unknown and finding.name in OF_DEFINITION:
                continue
            if finding.other == UNEXPLAINED:
                subject.untested.append(f"{of} at {place} by itself: {finding.reason}")
            if finding.other == "only the last batch":
                yield Harm(
                    NOTE,
                    f"running statistics of {finding.other}",
                    len(group),
                    place,
                    finding.reason,
                    "Take a small momentum, 0.1 say, unless it is meant so.",
                    "Moving averages",
                )
            # The padding that the model has itself is measured elsewhere.
            if finding.verdict == "wrong" and finding.name != MASKED:
                level = WRONG
                # No risk where it is not used.
                if "float16" in f"{finding.name} {finding.reason[:20]}":
                    level = RISK if _is_half(subject) else NOTE
                if "is refused" in finding.name:  # there is no such batch here
                    level = NOTE
                if finding.name == output.statistics.name:
                    subject.misfits |= {seen.name for seen in group}
                reason = finding.reason
                is_graph = finding.name == state.no_graph.name or "graph le" in reason
                if is_graph and not _holds_graph(subject, least.name):
                    level = NOTE
                    reason += (
                        " Here no gradient is wanted of what comes to it, so that "
                        "there is none to keep."
                    )
                if finding.name == output.biased.name and count >= MANY:
                    level = NOTE  # sqrt((n - 1) / n) is close to 1
                if finding.name == running.running_variance.name and count >= MANY:
                    level = NOTE
                if finding.name == precision.two_passes.name and _offset(group) < FAR:
                    level = NOTE  # its input is not so far from 0 here
                if finding.name == output.constant_channel.name and _varies(group):
                    level = NOTE  # nor is one constant
                is_eps = finding.name == precisions.name
                is_eps &= finding.reason.startswith(OTHER_EPS)
                if finding.name == dtype_is_kept.name or is_eps:
                    level = WRONG if _is_other(subject) else NOTE
                yield Harm(
                    level,
                    f"not true of {type(least.norm).__name__}: {finding.name}",
                    len(group),
                    place,
                    reason,
                    finding.cure,
                )


def _holds_graph(subject: Subject, name: str) -> bool:
    """Return whether a norm keeps a graph where it stands, behind a pass in training.

    What gets no gradient, as the first part of a model, has none to keep.
    """
    model = copy_of(subject.original)
    model.train()
    try:
        with torch.enable_grad():
            run_on(model, subject.x)
    except LayerError:
        return True  # not known
    held = tensors_of(parts_of(model)[name])
    return any(t.grad_fn is not None for _, t in held)


def _offset(group: list[Seen]) -> float:
    """Return how many deviations a mean of what norms got is from 0 at most."""
    pairs = (seen.definition.moments(seen.x) for seen in group)
    shares = (mean.abs() / (var + 1e-12).sqrt() for mean, var in pairs)
    return max(float(share.max()) for share in shares)


def _varies(group: list[Seen]) -> bool:
    """Return whether no set of values that norms got was constant."""
    return all(bool((s.definition.moments(s.x)[1] > 0).all()) for s in group)


def _dtypes(subject: Subject) -> set[torch.dtype]:
    given = (*subject.original.parameters(), *tensors_in(subject.x))
    return {t.dtype for t in given if t.is_floating_point()}


def _is_half(subject: Subject) -> bool:
    """Return whether the model, or x, is in half precision."""
    return bool(_dtypes(subject) & {torch.half, torch.bfloat16})


def _is_other(subject: Subject) -> bool:
    """Return whether the model, or x, is in another dtype than float32."""
    return bool(_dtypes(subject) - {torch.float32})


def kernels(subject: Subject) -> Iterator[Harm]:
    """Look at the weights that convolutions make of their own."""
    kernels = [*kernels_of(subject.still)]
    for kernel in (kernel for kernel in kernels if kernel.is_by_input):
        yield Harm(
            WRONG,
            "weights standardized over the wrong axes",
            kernel.weight.shape[1],
            kernel.name,
            "the convolution gets a weight of mean 0 and one deviation for each "
            "input channel, over axes (0, 2, 3), as activations have it; the "
            "filters, one for each output channel, are not.",
            "Standardize each filter: take mean and variance over axes (1, 2, 3).",
            "Choosing axes",
        )
    for kernel in (kernel for kernel in kernels if kernel.slip):
        yield Harm(
            WRONG,
            "weights that are centred, and not standardized",
            len(kernel.weight),
            kernel.name,
            f"the filters of the convolution are {kernel.slip}: they keep the "
            "mean 0, and get deviations that differ.",
            "Divide each filter by the root of its variance: (w - mean) * "
            "(var + eps).rsqrt().",
            "Scale invariance",
        )


def few_values(subject: Subject) -> Iterator[Harm]:
    """Look for batch norms whose statistics are of very few values."""
    for seen in subject.seen:
        size = seen.definition.size(tuple(seen.x.shape))
        if seen.kind == "batch" and 1 < size <= FEW:
            yield Harm(
                NOTE,
                "batch statistics of very few values",
                size,
                seen.name,
                "in training each channel of x has a mean and a variance of this "
                "many values: of two the output is the same whatever they are.",
                "Train with more examples or larger inputs than x has.",
                "Small batches",
            )


def one_by_one(subject: Subject) -> Iterator[Harm]:
    """Look for group norms with a group for each channel."""
    for seen in subject.seen:
        groups = getattr(seen.norm, "num_groups", 0)
        if seen.kind != "group" or not 1 < groups == seen.x.shape[1]:
            continue
        if seen.definition.size(tuple(seen.x.shape)) > 1:
            yield Harm(
                NOTE,
                "as many groups as channels",
                groups,
                seen.name,
                "each channel of each example is normalized by itself: this is "
                "instance norm, and the sizes of channels are lost.",
                "Take fewer groups, 32 or 16 channels in each say, unless it is "
                "meant so.",
                "Choosing axes",
            )


def _looks_drawn(gain: Tensor) -> bool:
    """Return whether gains are on both sides of 0, as weights at their start."""
    share = (gain < 0).double().mean().item()
    return gain.numel() >= 8 and 0.2 < share < 0.8


def around_zero(subject: Subject) -> Iterator[Harm]:
    """Look for gains that were drawn around 0, as weights are."""
    gains = {}
    for seen in subject.seen:
        name = recognition.only_parameter(seen.norm, recognition.GAINS)
        if name is not None:
            gain = seen.norm.get_parameter(name).double().flatten()
            # Of 1 + weight the output is no smaller for a small weight.
            if float(seen.y.std()) < 0.5 and gain.abs().max() < 0.5:
                gains[seen.name] = gain
    # What draws weights draws all of a class; that of a branch may begin at 0.
    others = {type(seen.norm) for seen in subject.seen if seen.name not in gains}
    of = {seen.name: type(seen.norm) for seen in subject.seen}
    for name, gain in gains.items():
        if of[name] in others:
            continue
        low = (gain < 0).double().mean().item()
        size = gain.square().mean().sqrt().item()
        # Where all norms have such gains no zero at the start of a branch made them.
        if not _looks_drawn(gain):
            continue
        yield Harm(
            RISK if len(gains) == len(subject.seen) else NOTE,
            "gains drawn around 0",
            size,
            name,
            f"{low:.0%} of the gains are below 0, and this is their root mean square: "
            "they look as if an initialization of weights had drawn them. The norm "
            "shrinks what it normalizes, and turns signs.",
            "Begin with gain 1 and bias 0: leave norms out of what draws weights.",
            "Scale invariance",
        )


def small_variances(subject: Subject) -> Iterator[Harm]:
    """Compare the variances of all calls with eps."""
    for seen in subject.seen:
        eps = recognition.eps_of(seen.norm, seen.x.dtype) or 0.0
        if seen.definition.size(tuple(seen.x.shape)) <= FEW or not seen.is_sure:
            continue
        inputs = [seen.x, *subject.again.get(seen.name, [])]
        inputs = [x for x in inputs if x.shape[1:] == seen.x.shape[1:]]
        variances = [seen.definition.moments(x)[1] for x in inputs]
        var = torch.cat([v.flatten() for v in variances])
        if var.any():  # a variance of 0, as of a state that begins so, has no scale
            var = var[var > 0]
        share = (var < eps).double().mean().item()
        of = f", in {len(inputs)} calls," if len(inputs) > 1 else ""
        if eps >= LARGE_EPS:
            yield Harm(
                RISK,
                "an eps as large as a momentum",
                float(eps / (var.median() + eps)),
                seen.name,
                f"eps = {eps:.2g} is added to variances of {var.median():.2g}, and is "
                f"{eps / (var.median() + eps):.0%} of what divides. As arguments by "
                "position, BatchNorm2d(C, 0.8) has eps=0.8, and InstanceNorm2d(C, "
                "True) eps=1.",
                "Name the arguments: momentum=..., affine=True; eps stays 1e-5.",
                "Batch normalization",
            )
        elif share > 0.01:
            is_risk = share > 0.5 and _is_trained(subject)
            yield Harm(
                RISK if is_risk else NOTE,
                "variances below eps",
                share,
                seen.name,
                f"this share of the variances{of} is below eps = {eps:.2g}; the "
                f"least is {var.min():.2g}. There eps divides, not sigma.",
                "If it is so once trained, scale what comes in, or take a smaller eps, "
                "unless the size of x is to come through.",
                "Batch normalization",
            )


def unfilled(subject: Subject) -> Iterator[Harm]:
    """Look for gains and biases that are memory which nobody filled."""
    for name in subject.names:
        held = subject.original.get_submodule(name).named_parameters(recurse=False)
        for key, p in held:
            if _looks_unfilled(p, is_gain=key in recognition.GAINS):
                sizes = p.detach().double().abs()
                sizes = sizes[sizes > 0]
                yield Harm(
                    RISK,
                    "parameters that look as if nobody had filled them",
                    p.numel(),
                    name,
                    f"the sizes of {key} go from {sizes.min():.1g} to "
                    f"{sizes.max():.1g}, as of torch.empty(n) or torch.Tensor(n), "
                    "which hold what was in memory.",
                    "Begin with torch.ones for a gain and torch.zeros for a bias.",
                    "Scale invariance",
                )
                break


def _looks_unfilled(p: Tensor, *, is_gain: bool = True) -> bool:
    """Return whether sizes are those of memory, and no training can have made them.

    Training may leave biases as small, and a few gains that weight decay took.
    """
    sizes = p.detach().double().abs()
    is_usual = (sizes > 1e-3) & (sizes < 1e3)
    is_tiny = ((sizes > 0) & (sizes < 1e-35)).any() and is_usual.double().mean() < 0.5
    return bool((sizes > 1e15).any() or (is_gain and is_tiny))


def _is_trained(subject: Subject) -> bool:
    """Return whether a norm has gains that many steps made, or many batches."""
    for seen in subject.seen:
        norm = subject.original.get_submodule(seen.name)
        count = getattr(norm, "num_batches_tracked", None)
        if isinstance(count, Tensor) and int(count) >= MANY_BATCHES:
            return True
        if has_learnt(norm) and not _looks_drawn(gain_of(norm)):
            return True
    return False


def silent(subject: Subject) -> Iterator[Harm]:
    """Look for gains that let nothing through."""
    for seen in subject.seen:
        name = recognition.only_parameter(seen.norm, recognition.GAINS)
        if name is None:
            continue
        gain = seen.norm.get_parameter(name)
        is_off = gain.abs() < 1e-3
        # Of 1 + weight a weight of 0 is no gain of 0: the output moves.
        of = seen.definition.parameter_axes(seen.y.dim())
        rest = [k for k in range(seen.y.dim()) if k not in of]
        spread = seen.y.amax(rest) - seen.y.amin(rest)
        if spread.numel() == gain.numel():
            is_off &= spread.reshape(gain.shape) < 0.1
        elif float(seen.y.std()) > 0.1:
            continue
        if _looks_drawn(gain) or _looks_unfilled(gain):  # told as such
            continue
        share = is_off.double().mean().item()
        if share <= 0.01:
            continue
        held = subject.original.get_submodule(seen.name).get_parameter(name)
        if not gain.any() and not held.requires_grad and subject.original.training:
            yield Harm(
                RISK,
                "gains of 0 that are frozen",
                gain.numel(),
                seen.name,
                "a branch that begins at 0 is to grow in training, and its gain has "
                "requires_grad=False: it adds its bias, for ever.",
                "Let what begins at 0 learn: freeze by what was loaded, not by name.",
                "Scale invariance",
            )
            continue
        if not gain.any():
            reason = "all gains are 0, and the output is the bias, whatever x is."
            cure = "Nothing, if a branch begins at 0 on purpose; else begin with 1."
        else:
            reason = f"the output of {share:.0%} of the channels is the bias."
            cure = "Prune the channels, or spare gains from weight decay."
        yield Harm(
            NOTE, "gains near 0", share, seen.name, reason, cure, "Scale invariance"
        )
