"""How running statistics came about, and what evaluation makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, place_of, share_of
from normbook.checks.model.runs import (
    Seen,
    batch_in,
    look,
    norms_of,
    output_of,
    seen_in,
)
from normbook.checks.model.subject import Subject, has_learnt, is_frozen

# A gap, or a drift, that the noise of a batch does not explain.
LARGE_GAP, FROZEN_GAP = 0.1, 0.5
MANY_MORE = 4  # times as many batches
START = 0.02  # of running statistics, what they were at the start
STANDARD_ERRORS = 5
CHANCE = 0.01  # that one channel of all is as far without a cause
NO_CAUSE = "its input is finite, and so is what it holds"
# A factor of variances, over channels, that matters; passes with dropout.
MORE, PASSES = 1.1, 4


class _Apart(NamedTuple):
    """How far the channels of several inputs are from each other."""

    means: float  # in deviations
    variances: float  # a ratio
    is_far: bool  # beyond what the noise of a batch explains


def _apart(inputs: list[Tensor]) -> _Apart | None:
    """Compare means and variances; None where there are no channels to compare."""
    if len({x.shape[1] for x in inputs}) != 1 or len(inputs) < 2:
        return None
    moments = [torch.var_mean(x, [0, *range(2, x.dim())]) for x in inputs]
    var, mean = (torch.stack(of) for of in zip(*moments, strict=True))
    var = var + 1e-12
    drift = float(((mean.amax(0) - mean.amin(0)) / var.amin(0).sqrt()).max())
    ratio = float((var.amax(0) / var.amin(0)).max())
    # As many standard errors as a batch may err by, of mean and of variance.
    noise = STANDARD_ERRORS / min(x.numel() / x.shape[1] for x in inputs) ** 0.5
    is_far = drift >= max(LARGE_GAP, noise) or ratio >= 1 + max(LARGE_GAP, 2 * noise)
    first, *others = inputs
    is_far &= any(_is_beyond_noise(first, other) for other in others)
    return _Apart(drift, ratio, is_far)


def _is_beyond_noise(x: Tensor, other: Tensor | tuple[Tensor, Tensor]) -> bool:
    """Return whether a mean or a variance differs by more than the examples explain.

    ``other`` has other values of the examples, or is a mean and a variance. Positions
    of one example are alike: what counts is how many examples there are.
    """
    if len(x) < 2:
        return True
    center = x.mean([0, *range(2, x.dim())])
    own = _by_example(x, center)
    if isinstance(other, tuple):
        mean, var = other
        apart = (
            own - torch.stack((mean - center, var + (mean - center).square()))[:, None]
        )
    elif len(other) == len(x):  # of the same examples, or as many
        apart = own - _by_example(other, center)
    else:
        apart = own - _by_example(other, center).mean(1, keepdim=True)
    errors = apart.std(1) / len(x) ** 0.5 + 1e-12
    # Of few examples the deviation itself is uncertain.
    far = float((apart.mean(1).abs() / errors).max())
    count = errors.numel()
    return far > STANDARD_ERRORS + 16 / len(x) and count * _tail(far, len(x)) < CHANCE


def _tail(t: float, count: int) -> float:
    """Bound how often the mean of a few values of mean 0 is t standard errors from 0.

    That is the tail of Student's distribution: of its density times s / t it is known.
    """
    nu = count - 1
    if nu < 2:
        return 1.0
    log_of = (
        math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - math.log(nu * math.pi) / 2
    )
    log_of -= (nu - 1) / 2 * math.log1p(t * t / nu)
    return 2 / t * nu / (nu - 1) * math.exp(log_of)


def _by_example(x: Tensor, center: Tensor) -> Tensor:
    """Return mean and mean square around a center of each example, (2, N, C)."""
    rows = (x.flatten(2) if x.dim() > 2 else x[..., None]) - center[:, None]
    return torch.stack((rows.mean(2), rows.square().mean(2)))


def unsound(subject: Subject) -> Iterator[Harm]:
    """Look for norms that make NaN or infinity, or the bias alone, of any input."""
    cure = "take running statistics anew with normbook.layers.recalibrate."
    if error := subject.still.error:
        raise ValueError(f"the model must take x, got {error}.") from error
    still = seen_in(subject.still.norms, {})
    for mode, run in (("evaluation", still), ("training", subject.seen)):
        reasons: dict[str, str] = {}
        shares = []
        for seen in (seen for seen in run if seen.name not in subject.unsound):
            state = _fault_of(subject.model.get_submodule(seen.name), seen.x.dtype)
            lost = seen.y.isfinite().logical_not().double().mean().item()
            if lost and (state or seen.x.isfinite().all()):
                if not state and not seen.definition.moments(seen.x)[1].all():
                    state = "a variance of its input is 0, and no eps is added to it"
                reasons[seen.name] = state or NO_CAUSE
                shares.append(lost)
            elif "running_var is infinite" in state:
                subject.unsound.add(seen.name)
                yield Harm(
                    WRONG,
                    "evaluation gives the bias, whatever the input",
                    1,
                    seen.name,
                    f"{state}, as where it was stored in half precision, which ends at "
                    "65504: what is divided by it is 0.",
                    f"Keep buffers in float32, and {cure}",
                    "Moving averages",
                )
        if reasons:
            subject.unsound |= {n for n, why in reasons.items() if why != NO_CAUSE}
            yield Harm(
                WRONG,
                f"{mode} gives NaN or infinity",
                shares[0],
                place_of([*reasons]),
                f"{next(iter(reasons.values()))}. This share of its output is no "
                "number, and what follows gets that.",
                f"Add eps to the variance, keep variances above 0, and {cure}",
                "Moving averages",
            )


def _fault_of(norm: nn.Module, dtype: torch.dtype) -> str:
    """Say what a norm holds that is no mean, variance, gain or bias."""
    eps = recognition.eps_of(norm, dtype) or 0.0
    for key, held in (*norm.named_buffers(), *norm.named_parameters()):
        v = held.detach().double().flatten()
        is_var = key.rpartition(".")[2] == "running_var"
        low = v + eps if is_var else torch.ones_like(v)
        if (v.isfinite() & (low > 0)).all():
            continue
        for what, bad in (
            ("NaN", v.isnan()),
            ("infinite", v.isinf()),
            ("negative, which has no root,", low < 0),
            ("0, and no eps is added to it,", low == 0),
        ):
            if bad.any():
                least = f" (the least is {v.amin():.2g})" if "neg" in what else ""
                return f"{key} is {what} in {bad.sum()} of {len(v)} channels{least}"
    return ""


def mixed(subject: Subject) -> Iterator[Harm]:
    """Look for running statistics into which several norms write."""
    owners: dict[tuple[int, int], list[str]] = {}
    for path, buffer in subject.moved.items():
        key = buffer.untyped_storage().data_ptr(), int(buffer.storage_offset())
        owners.setdefault(key, []).append(path)
    pairs: dict[tuple[str, ...], list[str]] = {}
    for paths in owners.values():
        names = tuple(path.rpartition(".")[0] for path in paths)
        if len(names) > 1:
            pairs.setdefault(names, []).append(paths[0].rpartition(".")[2])
    at = {seen.name: seen for seen in subject.seen}
    for names, buffers in pairs.items():
        apart = _apart([at[name].x for name in names if name in at])
        if apart is None:
            continue
        subject.shared |= {*names}
        differ = (
            f"What comes to them differs: the means by up to {apart.means:.2g} "
            f"sigma, the variances by up to {apart.variances:.3g} times, and "
            "evaluation normalizes neither as training does."
            if apart.is_far
            else "On x the places are alike."
        )
        yield Harm(
            WRONG if apart.is_far else RISK,
            "norms that write into the same running statistics",
            len(names),
            " and ".join(names) if len(names) < 3 else place_of([*names]),
            f"{' and '.join(buffers)} are the same memory in them, a mixture of "
            f"several places. {differ}",
            "Give each norm buffers of its own: register_buffer(name, tensor.clone()).",
            "Moving averages",
        )


def shared(subject: Subject) -> Iterator[Harm]:
    """Compare what comes to a batch norm in several places of one pass."""
    for seen in subject.seen:
        if seen.kind != "batch" or seen.name not in subject.again:
            continue
        if not isinstance(getattr(seen.norm, "running_mean", None), Tensor):
            continue
        inputs = [seen.x, *subject.again[seen.name]]
        apart = _apart(inputs)
        whole, size = batch_in(subject.x), len(seen.x)
        is_parts = whole is not None and sum(map(len, inputs)) == len(whole) > size
        if apart is None or not (apart.is_far or is_parts):
            continue
        subject.shared.add(seen.name)
        if is_parts:
            yield Harm(
                RISK,
                "a batch norm that gets a batch in parts",
                size,
                seen.name,
                f"it is called {len(inputs)} times, with as many examples at a time, "
                f"of {sum(map(len, inputs))}. Training normalizes each part by itself: "
                f"the means differ by up to {apart.means:.2g} sigma, the variances by "
                f"up to {apart.variances:.3g} times. Evaluation normalizes all alike.",
                "Call it on the whole batch, or normalize each example by itself.",
            )
            continue
        yield Harm(
            RISK,
            "one batch norm in several places",
            len(inputs),
            seen.name,
            f"its inputs in {len(inputs)} places differ: the means by up to "
            f"{apart.means:.2g} sigma, "
            f"the variances by up to {apart.variances:.3g} times. The running "
            "statistics mix them, and evaluation normalizes neither as training "
            "does.",
            "Give each place a batch norm of its own; weights around it may be shared.",
        )


def gaps(subject: Subject) -> Iterator[Harm]:
    """Compare evaluation with training at each layer, on the same input."""
    fresh, trained = [], 0
    far: list[tuple[str, float, float, float]] = []
    for seen in subject.seen:
        norm = subject.model.get_submodule(seen.name)
        mean, var = (getattr(norm, f"running_{of}", None) for of in ("mean", "var"))
        if not (isinstance(mean, Tensor) and isinstance(var, Tensor)):
            continue
        if seen.kind != "batch" or mean.numel() != seen.x.shape[1]:
            continue
        # Told by its own harm.
        if seen.name in subject.shared | subject.unsound | subject.misfits:
            continue
        count = getattr(norm, "num_batches_tracked", None)
        has_seen_any = isinstance(count, Tensor) and bool(count > 0)
        is_fresh = not has_seen_any and not mean.any() and bool((var == 1).all())
        y = seen.y
        if not seen.norm.training:  # the model itself put it into evaluation mode
            y = output_of(copy_of(seen.norm).train(), seen.x)
        gap = share_of(output_of(copy_of(norm), seen.x) - y, y, of="norm")
        v, m = torch.var_mean(seen.x, [0, *range(2, seen.x.dim())])
        n = seen.x.numel() / seen.x.shape[1]
        drift = ((mean.double() - m).abs() / (v + 1e-12).sqrt()).max().item()
        ratios = (var.double() + 1e-12) / (v + 1e-12)
        ratio = torch.maximum(ratios, 1 / ratios).max().item()
        is_far = gap >= LARGE_GAP and gap >= STANDARD_ERRORS / n**0.5
        is_far &= _is_beyond_noise(seen.x, (mean.double(), var.double()))
        if is_fresh and count is None and not is_far:
            continue  # it may not use what it holds
        trained += not is_fresh
        if has_seen_any and not mean.any() and bool((var == 1).all()):
            yield Harm(
                RISK,
                "running statistics that never move",
                float(count or 0),
                seen.name,
                f"after this many batches they are the mean 0 and variance 1 of the "
                f"start; momentum is {getattr(norm, 'momentum', None)}. Evaluation "
                "does not normalize.",
                "Take a momentum above 0, 0.1 say, which is the weight of the new "
                "batch.",
                "Moving averages",
            )
            continue
        if is_fresh and getattr(norm, "momentum", None) == 0:
            yield Harm(
                RISK,
                "running statistics that never move",
                0.0,
                seen.name,
                "momentum is 0: no batch will move them from the mean 0 and variance 1 "
                "of the start. Evaluation does not normalize.",
                "Take a momentum above 0, 0.1 say, which is the weight of the new "
                "batch.",
                "Moving averages",
            )
            continue
        if is_fresh:
            fresh.append(seen.name)
            far += [(seen.name, gap, drift, ratio)] * is_far
            continue
        # Frozen in training mode is a harm of its own; a gap may be its effect.
        is_moved_on = is_frozen(norm) and _trains(subject, seen.name)
        if not is_far or (is_moved_on and gap < FROZEN_GAP):
            continue
        if _is_folded(norm, m, v, n):
            yield Harm(
                RISK,
                "normalizes again what is normalized already",
                gap,
                seen.name,
                "its input has the bias for its mean and the square of the gain for "
                "its variance, channel by channel, as if it were folded into the "
                "layer in front. It is applied again, by running statistics that are "
                f"up to {drift:.2g} sigma and {ratio:.3g} times off.",
                "Put nn.Identity() in its place when it is folded.",
                "Moving averages",
            )
            continue
        few = _few_batches(subject, count)
        share = _share_of_the_start(norm, count)
        is_early = isinstance(count, Tensor) and share > START
        if is_early and not few and not has_learnt(norm):
            yield Harm(
                NOTE,
                "running statistics of few batches, far from those of x",
                gap,
                seen.name,
                "its output in evaluation differs by this share from that by the "
                "statistics of what comes to it. The mean 0 and variance 1 of the "
                f"start still weigh {share:.0%} after {int(count or 0)} "
                f"batch{'es' * (count != 1)}.",
                "Train on, load a checkpoint with its buffers, or recalibrate with "
                "normbook.layers.recalibrate.",
                "Moving averages",
            )
            continue
        yield Harm(
            RISK,
            "evaluation differs from training",
            gap,
            seen.name,
            "by this share of the output, on the same input. The running mean is "
            f"up to {drift:.2g} sigma from the mean of x, the variances are up to "
            f"{ratio:.3g} times each other's.{few}",
            "Recalibrate with normbook.layers.recalibrate, or use larger batches.",
            "Moving averages",
        )
    # What is yet to be trained is no risk; what is frozen, or in evaluation mode
    # beside norms that were trained, was forgotten.
    for name, gap, drift, ratio in far:
        norm = subject.original.get_submodule(name)
        is_learnt = _is_learnt(norm)
        if not (is_frozen(norm) or is_learnt or (trained and not norm.training)):
            continue
        fresh.remove(name)
        why = "It is frozen" if is_frozen(norm) else "It is in evaluation mode"
        if is_learnt:
            why = "Its gain and bias differ by the channel: learnt, loaded or drawn"
        why += ", while other norms of the model saw batches" if trained else ""
        yield Harm(
            RISK,
            "running statistics that saw no batch, far from those of x",
            gap,
            name,
            "evaluation normalizes by the mean 0 and variance 1 of the start, and "
            "the output differs by this share from that by the statistics of x: "
            f"means up to {drift:.2g} sigma from 0, variances up to {ratio:.3g} "
            f"times. {why}.",
            "Copy or average buffers as parameters are, where this is a teacher or "
            "a copy; or load them, or recalibrate; or train what is new.",
            "Moving averages",
        )
    if fresh:
        yield Harm(
            NOTE,
            "running statistics that saw no batch",
            len(fresh),
            place_of(fresh),
            "evaluation normalizes by the mean 0 and variance 1 of the start.",
            "Train, load a checkpoint with its buffers, or recalibrate.",
            "Moving averages",
        )


def _share_of_the_start(norm: nn.Module, count: Any) -> float:
    """Return what the first values of running statistics weigh in them."""
    momentum = getattr(norm, "momentum", None)
    if not (isinstance(count, Tensor) and count > 0 and isinstance(momentum, float)):
        return 0.0
    return float((1 - momentum) ** int(count))


def _few_batches(subject: Subject, count: Any) -> str:
    """Say that other norms of the model saw many more batches."""
    most = 0
    for seen in subject.seen:  # what is called more often in a pass saw no more
        other = getattr(
            subject.model.get_submodule(seen.name), "num_batches_tracked", None
        )
        calls = 1 + len(subject.again.get(seen.name, ()))
        most = max(most, int(other) // calls if isinstance(other, Tensor) else 0)
    if not isinstance(count, Tensor) or most < MANY_MORE * max(int(count), 1):
        return ""
    return (
        f" It saw {int(count)} batches, and others of the model {most}: an average of "
        "weights, as a teacher has, must copy or average buffers, too."
    )


def _trains(subject: Subject, name: str) -> bool:
    return subject.original.get_submodule(name).training


def _is_learnt(norm: nn.Module) -> bool:
    """Return whether gain and bias differ by the channel; at the start neither does."""
    held = [p.detach() for p in norm.parameters(recurse=False) if p.numel() > 1]
    return len(held) == 2 and all(float(p.std()) > 1e-3 for p in held)


def _is_folded(norm: nn.Module, mean: Tensor, var: Tensor, count: float) -> bool:
    """Return whether an input has the moments that this norm gives its output."""
    if not _is_learnt(norm):
        return False
    gain, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    if not (isinstance(gain, Tensor) and isinstance(bias, Tensor)):
        return False
    noise = max(LARGE_GAP, STANDARD_ERRORS / count**0.5)
    off = (mean - bias).abs() / var.sqrt()
    return bool(off.max() < noise and (gain.square() / var).log().abs().max() < noise)


def several(subject: Subject) -> Iterator[Harm]:
    """Look for a batch that is put together of inputs of different statistics."""
    whole = batch_in(subject.x)
    if whole is None or len(whole) < 8:
        return
    for seen in subject.seen:
        parts, rest = divmod(len(seen.x), len(whole))
        if seen.kind != "batch" or rest or not 2 <= parts <= 4:
            continue
        # Of each example, as the positions of one are no independent values.
        values = seen.x.flatten(2) if seen.x.dim() > 2 else seen.x[..., None]
        each = torch.stack([values.mean(2), values.square().mean(2)])
        groups = each.reshape(2, parts, len(whole), -1)
        var, mean = torch.var_mean(groups, 2)
        noise = (var.amax(1) / len(whole)).sqrt() * STANDARD_ERRORS * 2
        apart = mean.amax(1) - mean.amin(1)
        inputs = [*seen.x.chunk(parts)]
        drift = _apart(inputs)
        if drift is None or not (apart > noise + 1e-12).any():
            continue
        if drift.means < 0.5 and drift.variances < 2:
            continue
        yield Harm(
            NOTE,
            "one batch of several inputs",
            parts,
            seen.name,
            f"it gets {len(seen.x)} examples, where x has {len(whole)}, and the "
            f"{parts} parts differ: the means by up to {drift.means:.2g} sigma, the "
            f"variances by up to {drift.variances:.3g} times. It normalizes by the "
            "mixture, and each part tells of the other, as real and generated "
            "examples for a discriminator.",
            "Call the model once for each input, or normalize each example by itself.",
        )


def dropped(subject: Subject) -> Iterator[Harm]:
    """Compare the variances at batch norms with dropout and without."""

    def variance(seen: Seen) -> Tensor:
        return seen.x.var([0, *range(2, seen.x.dim())], correction=0) + 1e-12

    still = {seen.name: variance(seen) for seen in subject.seen if seen.kind == "batch"}
    if not (still and (subject.training.is_random or subject.training.error)):
        return
    model, logs = copy_of(subject.model), dict[str, list[Tensor]]()
    model.train()
    for _, norm in norms_of(model):
        norm.train()
    for _ in range(PASSES):
        try:
            met = [*look(copy_of(model), subject.x)]
        except ValueError:  # as one that needs targets in training
            subject.untested.append("dropout: in training the model refuses x.")
            return
        for seen in met:
            if seen.name in still and seen.x.shape[1:2] == still[seen.name].shape:
                log = (variance(seen) / still[seen.name]).log().mean()
                logs.setdefault(seen.name, []).append(log)
        if all(max(of) < math.log(MORE) for of in logs.values()):
            return
    for name, of in logs.items():
        norm = subject.model.get_submodule(name)
        ratio = float(torch.stack(of).mean().exp())
        is_tracked = isinstance(getattr(norm, "running_var", None), Tensor)
        if ratio >= MORE and is_tracked and name not in subject.shared:
            yield Harm(
                NOTE,
                "dropout in front, which makes variances larger",
                ratio,
                name,
                "by this factor, on the same x, and in training alone, as dropout and "
                "branches that are dropped make it. The running variance takes it in, "
                "so that evaluation divides by too much.",
                "Put dropout behind the last batch norm, drop fewer branches, or take "
                "layer norm.",
            )


def tracked(subject: Subject) -> Iterator[Harm]:
    """Compare evaluation with training where instance norm has both."""
    for seen in subject.seen:
        is_tracked = getattr(seen.norm, "track_running_stats", False)
        if seen.kind != "instance" or not is_tracked:
            continue
        y = output_of(copy_of(subject.model.get_submodule(seen.name)), seen.x)
        gap = share_of(y - seen.y, seen.y, of="norm")
        if gap < LARGE_GAP:
            continue
        yield Harm(
            RISK,
            "instance norm that evaluates by running statistics",
            gap,
            seen.name,
            "evaluation normalizes all examples by one mean and variance, as batch "
            "norm does, and differs from training by this share of the output.",
            "Leave track_running_stats=False.",
        )


def frozen(subject: Subject) -> Iterator[Harm]:
    """Look at the model as it is given: what is frozen, and in which mode."""
    norms = ((name, subject.original.get_submodule(name)) for name in subject.names)
    frozen = [
        name
        for name, norm in norms
        if norm.training and is_frozen(norm)
        if subject.training.called.get(name, True)  # or a pass calls eval() on it
        if isinstance(getattr(norm, "running_mean", None), Tensor)
    ]
    if frozen:
        yield Harm(
            RISK,
            "frozen, but in training mode",
            len(frozen),
            place_of(frozen),
            "requires_grad=False stops gain and bias. The running statistics move "
            "on, and the batch normalizes.",
            "Call eval() on these layers after each train().",
        )
    undone = [
        name
        for name in subject.names
        if not (norm := subject.original.get_submodule(name)).training
        if subject.original.training and is_frozen(norm)
        if subject.training.modes[name]
        if isinstance(getattr(norm, "running_mean", None), Tensor)
    ]
    if undone:
        yield Harm(
            NOTE,
            "frozen until the next train()",
            len(undone),
            place_of(undone),
            "gain and bias are frozen, and eval() stops the running statistics; "
            "train() of the model undoes that, and they move on.",
            "Call eval() on these layers after each train(), or in a train() of "
            "the model.",
        )
