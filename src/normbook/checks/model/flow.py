"""What becomes of the output of each norm: by gradients, confirmed by noise."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks.calls import LayerError
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, equal
from normbook.checks.model.passes import OURS, Call, Steps, steps_of
from normbook.checks.model.runs import (
    Event,
    Watching,
    is_own,
    noting,
    parts_of,
    run_on,
    tensors_in,
)
from normbook.checks.model.subject import Subject

# Shares of what should be there: none of a gradient, and none of a change.
NO_GRADIENT, NO_CHANGE = 1e-4, 1e-3
SUMMED = 0.99  # of gradients round all norms: a sum leaves them as they are
TINY = 1e-30  # a gradient that may be 0 a few layers further on
MOST = 100  # norms at which noise is added, one run each
STILL = 1e-3  # of an output, where it does not depend on its input


def changed(subject: Subject, name: str, *, at_input: bool) -> float:
    """Return how far noise at what a norm gets, or returns, moves the outputs.

    NaN if that is not known, as of one of very many.
    """
    if subject.plain is None:
        subject.plain = copy_of(subject.model), []
        subject.plain[1].extend(_outputs(subject.plain[0], subject.x))
    model, before = subject.plain
    subject.looks += 1
    if subject.looks > MOST:
        subject.untested += ["further norms by noise: there are too many."] * (
            subject.looks == MOST + 1
        )
        return math.nan

    def noisy(t: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(OURS)
        return t + t.std() * torch.randn(t.shape, generator=draw).to(t)

    norm = parts_of(model)[name]
    if at_input:
        hook = norm.register_forward_pre_hook(lambda _, x: (noisy(x[0]), *x[1:]))
    else:
        hook = norm.register_forward_hook(lambda _, x, y: noisy(y))
    pairs = zip(before, _outputs(model, subject.x), strict=False)
    hook.remove()
    far = [
        float((a - b).abs().max()) if a.shape == b.shape else math.inf
        for a, b in pairs  # another length, as where one is predicted, is a change
    ]
    return max(far, default=math.nan)  # the model refuses the noise


def _outputs(model: nn.Module, x: Any) -> list[Tensor]:
    """Run a model, whose random numbers are the same each time."""
    with suppress(LayerError), torch.random.fork_rng():
        torch.manual_seed(0)
        made = tensors_in(run_on(model, x))
        return [t.double() for t in made if t.is_floating_point()]
    return []


def lost(subject: Subject) -> Iterator[Harm]:
    """Look for norms whose output, or whose input, does not matter."""
    steps = subject.steps
    if steps is None:
        why = "in evaluation no output depends on that of a norm by a gradient."
        if subject.not_back:
            why = f"{subject.not_back[0]}."
        if subject.names:
            subject.untested.append(f"what becomes of outputs: {why}")
        return
    by_name: dict[str, list[Call]] = {}
    used: set[str] | None = None
    sizes = [float(c.by_y.abs().max()) for c in steps.calls if c.by_y is not None]
    if any(0 < size < TINY for size in sizes):
        subject.untested.append("what becomes of outputs: gradients underflow.")
        return
    if not any(sizes) and not any(
        t.numel() for t in _outputs(copy_of(subject.model), subject.x)
    ):  # no box is found, say
        why = "the model returns no number."
        subject.untested.append(f"what becomes of outputs: {why}")
        return
    for call in steps.calls:
        by_name.setdefault(call.name, []).append(call)
    for name, calls in by_name.items():
        if all(call.by_y is None for call in calls):
            if not changed(subject, name, at_input=False):
                used = _going_on(subject) if used is None else used
                yield _without_use(name, len(calls), goes_on=name in used)
            continue
        yield from _without_effect(subject, name, calls)


def _without_use(name: str, count: int, *, goes_on: bool) -> Harm:
    """Say of what a norm returns that it is dropped, or has no effect further on."""
    seen = "noise of its size on what it returns changes no output of the model."
    if goes_on:
        return Harm(
            NOTE,
            "no output changes with what a norm returns",
            count,
            name,
            f"it goes on, and {seen} What follows may be dropped, or make it a code "
            "or an index.",
            "Nothing, if it is meant so.",
        )
    return Harm(
        RISK,
        "what a norm returns is not used",
        count,
        name,
        f"it is called, and {seen}",
        "Pass on what it returns: x = norm(x), or take it out.",
    )


def _going_on(subject: Subject) -> set[str]:
    """Return the names of norms whose outputs go into another function of torch."""
    model = copy_of(subject.model)
    made: list[tuple[str, Tensor]] = []
    used: set[str] = set()

    def note(func: Any, args: Any, kwargs: Any) -> None:
        for t in tensors_in([args, kwargs]):
            used.update(name for name, y in made if y is t)

    def hook(name: str) -> Callable[..., None]:
        return lambda _, x, y: made.extend((name, t) for t in tensors_in(y))

    for name in subject.names:
        parts_of(model)[name].register_forward_hook(hook(name))
    with suppress(LayerError), Watching(note):
        run_on(model, subject.x)
    return used


def _without_effect(subject: Subject, name: str, calls: list[Call]) -> Iterator[Harm]:
    """Look for what makes the output of one norm, or its input, of no effect."""
    if any(c.y.dim() and c.y.std(0).max() <= STILL * c.y.abs().max() for c in calls):
        return  # told as gains of 0, or a mean over one value
    size = sum(float(c.by_y.norm() * c.y.std()) for c in calls if c.by_y is not None)
    if size == 0 and name not in subject.woken:
        yield _without_use(name, len(calls), goes_on=True)
        return
    if size == 0:
        yield Harm(
            NOTE,
            "what a norm returns is multiplied by 0",
            len(calls),
            name,
            "no output of the model changes with it: a factor behind it is 0.",
            "Nothing, if a branch begins at 0 on purpose; a modulation begins with "
            "1 + scale.",
            "Scale invariance",
        )
        return
    through = sum(float(c.by_x.norm() * c.x.std()) for c in calls if c.by_x is not None)
    if through > NO_GRADIENT * size:
        return
    behind = changed(subject, name, at_input=False)
    front = changed(subject, name, at_input=True)
    if behind > 0 and front < NO_CHANGE * behind:
        yield Harm(
            WRONG,
            "what follows undoes all that a norm lets through",
            front / behind,
            name,
            "noise at its output moves the outputs of the model, and noise at its "
            "input moves them by this share of that: a mean over the values that it "
            "has just made of mean 0, as by pooling, leaves the bias alone.",
            "Put an activation between the norm and the mean, or normalize over "
            "other axes.",
            "Choosing axes",
        )


def ungraded(subject: Subject) -> Iterator[Harm]:
    """Look, in training, for norms that no gradient reaches, or a second pass."""
    steps = subject.training.steps
    if steps is None:
        return
    yield from _twice(subject, steps)
    reached = {call.name for call in steps.calls if call.by_y is not None}
    parts = parts_of(subject.original)
    for name in dict.fromkeys(call.name for call in steps.calls):
        own = [*parts[name].parameters()]
        if name in reached or not any(p.requires_grad for p in own):
            continue
        if any(
            f"{name}.{key}" in subject.graded
            for key, _ in parts[name].named_parameters()
        ):
            continue
        if not changed(subject, name, at_input=False) > 0:
            continue  # not used at all
        moves = parts[name].training and hasattr(parts[name], "running_mean")
        also = " Its running statistics move on all the same." if moves else ""
        yield Harm(
            RISK if moves and parts[name].running_mean is not None else NOTE,
            "no gradient reaches gain and bias",
            len(own),
            name,
            "what it returns changes the outputs, and no path of gradients leads from "
            "them to it: torch.no_grad(), detach(), or what has no gradient, as a "
            f"rounding or an index, is between.{also}",
            "Freeze it in full, with requires_grad=False and eval(), or let the "
            "gradient through.",
        )


def _twice(subject: Subject, steps: Steps) -> Iterator[Harm]:
    """Look for running statistics that the backward pass moved again."""
    parts = parts_of(subject.training.model)
    after = dict(subject.training.model.named_buffers())
    for name in subject.names:
        key = f"{name}.running_mean"
        if key not in after or equal(steps.between[key], after[key], rounds=False):
            continue
        momentum = getattr(parts[name], "momentum", None)
        m = momentum if isinstance(momentum, float) else 0.1
        yield Harm(
            NOTE,
            "running statistics that move twice in a step",
            1 - (1 - m) ** 2,
            name,
            "the backward pass runs it again, as checkpoints do, and the batch weighs "
            f"this much, not {m:.3g}.",
            "Keep batch norms out of what is recomputed, or give them "
            f"momentum={1 - (1 - m) ** 0.5:.3g}.",
            "Moving averages",
        )


def doubled(subject: Subject) -> Iterator[Harm]:
    """Look for norms that get what another norm of their kind returned."""
    kinds = {seen.name: seen.kind for seen in subject.seen}
    calls = subject.steps.calls if subject.steps else []
    for k, call in enumerate(calls):
        for other in calls[:k]:
            if kinds.get(call.name) != kinds.get(other.name) or call.name not in kinds:
                continue
            out = other.passed_on  # itself, no sum that happens to be as large
            if call.x.shape != out.shape or call.x.data_ptr() != out.data_ptr():
                continue
            if (call.x < 0).double().mean() < 0.05:  # an activation is in it
                continue
            first = "itself" if other.name == call.name else other.name
            yield Harm(
                NOTE,
                "normalizes what a norm has just normalized",
                1,
                call.name,
                f"its input is what {first} returned. Over the same axes it can only "
                "undo gain and bias.",
                "Take one of the two out.",
                "Scale invariance",
            )
            break


def unbounded(subject: Subject) -> Iterator[Harm]:
    """Look for a residual stream that reaches the output without a norm."""
    kinds = {seen.name: seen.kind for seen in subject.seen}
    names = subject.steps.round_all if subject.steps else subject.names
    names = [name for name in names if kinds.get(name) in ("layer", "rms")]
    if len(names) < 3:
        return
    parts = parts_of(subject.model)
    steps = steps_of(copy_of(subject.model), subject.x, subject.names, cut=True)
    counts = Counter(call.name for call in (steps.calls if steps else []))
    calls = [
        call
        for call in (steps.calls if steps else [])
        if call.by_x is not None and call.by_x.any()
        if counts[call.name] == 1 and call.name in names
    ]
    if len(calls) < 3 or len({call.x.shape for call in calls}) > 1:
        return
    holders = (parts[call.name.rpartition(".")[0]] for call in calls)
    if any("norm" in type(holder).__name__.lower() for holder in holders):
        return  # the path may be one of a norm that uses another
    slopes = [call.by_x.flatten() for call in calls if call.by_x is not None]
    alike = itertools.pairwise(slopes)
    if any(functional.cosine_similarity(a, b, dim=0) < SUMMED for a, b in alike):
        return  # what goes round is no sum: it is changed on its way
    growth = float(calls[-1].x.std() / calls[0].x.std().clamp_min(1e-12))
    yield Harm(
        NOTE,
        "a residual stream without a norm at its end",
        growth,
        calls[-1].name,
        f"a path round all norms leads from {calls[0].name} to the outputs: what the "
        f"blocks add is summed up, here by this factor of sigma over {len(calls)} "
        "norms, and what follows gets the sum as it is.",
        "Put a norm behind the last block, unless the sum is what is wanted.",
        "Scale invariance",
    )


def overwritten(subject: Subject) -> Iterator[Harm]:
    """Look for blocks that add their branch to what they normalized, not to x.

    With weights of 0 in all but its norms a residual block returns its skip path.
    """
    still, blocks = subject.still, dict[str, Event]()
    for event in still.blocks:  # of what is called again the last, as of its norms
        if event.x.shape == event.y.shape:
            blocks[event.name] = event
    last = {event.name: event.y for event in still.norms}
    adding = {path: _adding(path, block.y, last) for path, block in blocks.items()}
    blocks = {path: block for path, block in blocks.items() if adding[path]}
    chains = _skips(subject, blocks) if blocks else ()
    found = [
        chain
        for path, chain in chains
        if chain[-1] in adding[path] and not _modulates(subject, path, chain[-1])
    ]
    still.norms.clear()
    still.blocks.clear()
    names = [name for chain in found for name in chain]
    for chain in found:
        yield Harm(
            RISK if len(names) > 1 else NOTE,
            "a residual path through a norm",
            len(names),
            chain[-1],
            f"the block adds its branch to what {' and '.join(chain)} returned, not "
            "to its own input: no path leads round the norm, as x = norm(x); "
            "x = x + f(x) has none.",
            "Keep x: x = x + f(norm(x)).",
            "Scale invariance",
        )


def _adding(path: str, made: Tensor, last: dict[str, Tensor]) -> list[str]:
    """Return the norms right in a block to whose output it adds what is not fixed."""
    found = []
    for name, y in last.items():
        if name.rpartition(".")[0] == path and y.shape == made.shape:
            branch = made - y
            is_added = float((branch - branch[:1]).abs().max()) > STILL
            if is_added and not equal(y, made):  # or the block ends with the norm
                found.append(name)
    return found


def _modulates(subject: Subject, path: str, name: str) -> bool:
    """Return whether a block does no more to what a norm returned than scale and shift.

    As adaptive norms do: each value of its output hangs on one value of the norm's.
    """
    model, made = copy_of(subject.model), list[Tensor]()
    parts = parts_of(model)

    def keep(_: nn.Module, x: Any, y: Any) -> None:
        made.append(y[0] if isinstance(y, tuple) else y)

    def with_another(_: nn.Module, x: Any, y: Tensor) -> Tensor:
        y = y.clone()
        y.flatten(1)[:, 0] += 1
        return y

    parts[path].register_forward_hook(keep)
    _outputs(model, subject.x)
    count = len(made)
    parts[name].register_forward_hook(with_another)
    _outputs(model, subject.x)
    if not 0 < count < len(made):
        return False
    change = (made[count] - made[0]).flatten(1)
    return bool(change[:, 0].any()) and not change[:, 1:].any()


def _skips(
    subject: Subject, blocks: dict[str, Event]
) -> Iterator[tuple[str, list[str]]]:
    """Yield blocks whose skip path ends with a norm, and it, behind those before it."""
    model = copy_of(subject.model)
    parts = parts_of(model)
    spared = {id(p) for name in subject.names for p in parts[name].parameters()}
    for p in model.parameters():
        if id(p) not in spared:
            p.zero_()
    norms = noting(model, subject.names)
    paths = {block.name for block in subject.still.blocks}
    inner = noting(model, paths, are_blocks=True)
    for path, (_, _, given, (rest, named), _) in blocks.items():
        norms.clear()
        inner.clear()
        x = given.clone()
        try:
            made = parts[path](given, *rest, **named)
        except Exception as error:
            if is_own(error):
                raise
            continue  # by itself, or with zeros, it does not run
        made = made[0] if isinstance(made, tuple) else made
        if any(equal(part.x, part.y) for part in inner if part.name != path):
            continue  # a stack of blocks, looked at one by one
        if not isinstance(made, Tensor) or made.shape != x.shape:
            continue
        if not made.isfinite().all():  # as of weights over their size
            continue
        if float((made - x).norm()) < 0.01 * float(x.norm()):
            continue  # the path leads round, or x is normalized already
        mine = {e.name: e for e in norms if e.name.rpartition(".")[0] == path}
        end = next((n for n, e in reversed(mine.items()) if equal(e.y, made)), None)
        if end is None or float((made - made[:1]).abs().max()) < STILL:
            continue
        chain = [end]
        while before := [
            name
            for name, norm in mine.items()
            if name not in chain and equal(norm.y, mine[chain[0]].x)
        ]:
            chain.insert(0, before[0])
        yield path, chain
