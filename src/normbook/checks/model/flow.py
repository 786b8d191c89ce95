"""What becomes of the output of each norm: by gradients, confirmed by noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, equal
from normbook.checks.model.runs import is_own, parts_of, run_on, tensors_in
from normbook.checks.model.subject import Subject

# Shares of what should be there: none of a gradient, and none of a change.
NO_GRADIENT, NO_CHANGE = 1e-4, 1e-3
TINY = 1e-30  # a gradient that may be 0 a few layers further on
MOST = 100  # norms at which noise is added, one run each
OURS = 760_531  # a seed of nobody's data: noise that is x moves no norm
STILL = 1e-3  # deviations of an output that does not depend on its input


class Call(NamedTuple):
    """A call of a norm, with gradients of all outputs by what went in and came out.

    A gradient is None where no path of autograd leads to an output.
    """

    name: str
    x: Tensor
    y: Tensor
    by_x: Tensor | None
    by_y: Tensor | None
    passed_on: Tensor  # what came out, as what follows gets it


class Steps(NamedTuple):
    """What a forward and a backward pass of a model did."""

    calls: list[Call]
    model: nn.Module
    between: dict[str, Tensor]  # floating-point buffers after the forward pass


def steps_of(subject: Subject, model: nn.Module, *, cut: bool = False) -> Steps | None:
    """Run a model forward and backward; with ``cut`` gradients end at each norm."""
    met: list[tuple[str, Tensor, Tensor, Tensor]] = []

    def note(name: str) -> Any:
        def hook(norm: nn.Module, inputs: Any, y: Any) -> Any:
            x = inputs[0] if inputs else None
            if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
                return None
            if not y.is_floating_point():
                return None
            y = y.detach() if cut else y
            y = y if y.requires_grad or cut else y.detach().requires_grad_()
            met.append((name, x, y, y.clone()))
            return met[-1][-1]  # what comes next may write into it

        return hook

    def watch(norm: nn.Module, inputs: Any) -> Any:
        first, *rest = inputs or (None,)
        if not (isinstance(first, Tensor) and first.is_floating_point()):
            return None
        is_known = first.requires_grad
        return (first if is_known else first.detach().requires_grad_(), *rest)

    parts = parts_of(model)
    for name in subject.names:
        parts[name].register_forward_pre_hook(watch)
        parts[name].register_forward_hook(note(name))
    with suppress(LayerError, RuntimeError), torch.enable_grad():
        made = [t for t in tensors_in(run_on(model, subject.x)) if t.requires_grad]
        between = {n: b.clone() for n, b in model.named_buffers()}
        draw = torch.Generator().manual_seed(OURS)
        loss = sum(
            (t * torch.randn(t.shape, generator=draw).to(t)).sum()
            for t in made
            if t.is_floating_point()
        )
        if not met or not isinstance(loss, Tensor):
            return None
        of = [t for _, x, y, _ in met for t in (x, y)]
        asked = [t for t in of if t.requires_grad]
        if not asked:
            return None
        found = torch.autograd.grad(loss, asked, allow_unused=True)
        by = {id(t): grad for t, grad in zip(asked, found, strict=True)}
        calls = [
            Call(name, x.detach(), y.detach(), by.get(id(x)), by.get(id(y)), out)
            for name, x, y, out in met
        ]
        return Steps(calls, model, between)
    return None


def _in_evaluation(subject: Subject) -> Steps | None:
    """Return the steps of a pass in evaluation, which is made once."""
    if not subject.steps:
        subject.steps.append(steps_of(subject, copy_of(subject.model)))
    steps: Steps | None = subject.steps[0]
    return steps


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
    far = [float((a - b).abs().max()) for a, b in pairs if a.shape == b.shape]
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
    steps = _in_evaluation(subject)
    if steps is None:
        subject.untested.append("what becomes of outputs: no gradient by the norms.")
        return
    by_name: dict[str, list[Call]] = {}
    sizes = [float(c.by_y.abs().max()) for c in steps.calls if c.by_y is not None]
    if any(0 < size < TINY for size in sizes):
        subject.untested.append("what becomes of outputs: gradients underflow.")
        return
    for call in steps.calls:
        by_name.setdefault(call.name, []).append(call)
    for name, calls in by_name.items():
        if all(call.by_y is None for call in calls):
            if not changed(subject, name, at_input=False):
                yield Harm(
                    RISK,
                    "what a norm returns is not used",
                    len(calls),
                    name,
                    "it is called, and noise of its size on what it returns changes "
                    "no output of the model.",
                    "Pass on what it returns: x = norm(x), or take it out.",
                )
            continue
        yield from _without_effect(subject, name, calls)


def _without_effect(subject: Subject, name: str, calls: list[Call]) -> Iterator[Harm]:
    """Look for what makes the output of one norm, or its input, of no effect."""
    if any(call.y.dim() and call.y.std(0).max() < STILL for call in calls):
        return  # told as gains of 0, or a mean over one value
    size = sum(float(c.by_y.norm() * c.y.std()) for c in calls if c.by_y is not None)
    if size == 0:
        yield Harm(
            NOTE,
            "what a norm returns is multiplied by 0",
            len(calls),
            name,
            "no output of the model changes with it, as a factor behind it is 0.",
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
    model = copy_of(subject.original)
    model.train()
    steps = steps_of(subject, model)
    if steps is None:
        return
    yield from _twice(subject, steps)
    reached = {call.name for call in steps.calls if call.by_y is not None}
    parts = parts_of(subject.original)
    for name in dict.fromkeys(call.name for call in steps.calls):
        own = [*parts[name].parameters()]
        if name in reached or not any(p.requires_grad for p in own):
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
            f"them to it: torch.no_grad() or detach() is between.{also}",
            "Freeze it in full, with requires_grad=False and eval(), or let the "
            "gradient through.",
        )


def _twice(subject: Subject, steps: Steps) -> Iterator[Harm]:
    """Look for running statistics that the backward pass moved again."""
    after = dict(steps.model.named_buffers())
    for name in subject.names:
        key = f"{name}.running_mean"
        if key not in after or steps.between[key].equal(after[key]):
            continue
        momentum = getattr(parts_of(steps.model)[name], "momentum", None)
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
    steps = _in_evaluation(subject)
    calls = steps.calls if steps else []
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
    steps = steps_of(subject, copy_of(subject.model), cut=True)
    counts: dict[str, int] = {}
    for call in steps.calls if steps else []:
        counts[call.name] = counts.get(call.name, 0) + 1
    kinds = {seen.name: seen.kind for seen in subject.seen}
    calls = [
        call
        for call in (steps.calls if steps else [])
        if call.by_x is not None and call.by_x.any()
        if counts[call.name] == 1 and kinds.get(call.name) in ("layer", "rms")
    ]
    if len(calls) < 3 or len({call.x.shape for call in calls}) > 1:
        return
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
    model = copy_of(subject.model)
    parts = parts_of(model)
    paths = dict.fromkeys(n.rpartition(".")[0] for n in subject.names if "." in n)
    if "" in parts and any("." not in n and n for n in subject.names):
        paths[""] = None
    runs: dict[str, tuple[Any, Any, Any]] = {}
    own: dict[str, Tensor] = {}
    for path in paths:
        parts[path].register_forward_hook(_keeping(runs, path), with_kwargs=True)
    for name in subject.names:
        parts[name].register_forward_hook(_returned(own, name))
    with suppress(LayerError):
        run_on(model, subject.x)
    found: list[tuple[str, list[str]]] = []
    for path, (args, named, made) in runs.items():
        block = copy_of(parts[path])
        inside = [n.removeprefix(f"{path}.") for n in subject.names if _in(n, path)]
        mine = [n for n in inside if "." not in n]
        skip = _skip_of(block, mine, inside, args, named)
        if skip is None:
            continue
        last, chain = skip
        y = own.get(f"{path}.{last}".strip("."))
        if y is None or y.shape != made.shape or equal(y, made):
            continue  # the block ends with a norm
        branch = made - y
        if float((branch - branch[:1]).abs().max()) > STILL:  # no constant is added
            found.append((path, [f"{path}.{n}".strip(".") for n in chain]))
    names = [name for _, chain in found for name in chain]
    for _, chain in found:
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


def _in(name: str, path: str) -> bool:
    return name.startswith(f"{path}.") if path else bool(name)


def _keeping(runs: dict[str, tuple[Any, Any, Any]], path: str) -> Any:
    def hook(part: nn.Module, args: Any, named: Any, made: Any) -> None:
        made = made[0] if isinstance(made, tuple) and made else made
        if path in runs or not (args and isinstance(args[0], Tensor)):
            return
        if isinstance(made, Tensor) and made.shape == args[0].shape:
            first = args[0].detach().clone()
            runs[path] = (first, *args[1:]), named, made.detach().clone()

    return hook


def _returned(held: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(norm: nn.Module, inputs: Any, y: Any) -> None:
        if isinstance(y, Tensor):
            held[name] = y.detach().clone()

    return hook


def _skip_of(
    block: nn.Module, mine: list[str], inside: list[str], args: Any, named: Any
) -> tuple[str, list[str]] | None:
    """Return the norm that a block's skip path ends with, and those in front of it."""
    parts = parts_of(block)
    spared = {id(p) for n in inside for p in parts[n].parameters()}
    for p in block.parameters():
        if id(p) not in spared:
            p.zero_()
    x = args[0].clone()
    got: dict[str, Tensor] = {}
    held: dict[str, Tensor] = {}
    blocks: dict[str, tuple[Any, Any, Any]] = {}
    for n in mine:
        parts[n].register_forward_pre_hook(_given(got, n))
        parts[n].register_forward_hook(_returned(held, n))
    for path in {n.rpartition(".")[0] for n in inside if "." in n}:
        parts[path].register_forward_hook(_keeping(blocks, path), with_kwargs=True)
    try:
        made = block(*args, **named)
    except Exception as error:
        if is_own(error):
            raise
        return None  # by itself, or with zeros, it does not run
    made = made[0] if isinstance(made, tuple) else made
    if any(equal(of[0], result) for of, _, result in blocks.values()):
        return None  # a stack of blocks, looked at one by one
    if not isinstance(made, Tensor) or made.shape != x.shape:
        return None
    if float((made - x).norm()) < 0.01 * float(x.norm()):
        return None  # the path leads round, or x is normalized already
    last = next((n for n, y in reversed(held.items()) if equal(y, made)), None)
    if last is None or float((made - made[:1]).abs().max()) < STILL:
        return None
    chain = [last]
    while before := [
        n for n, y in held.items() if n not in chain and equal(y, got[chain[0]])
    ]:
        chain.insert(0, before[0])
    return last, chain


def _given(held: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(norm: nn.Module, inputs: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            held[name] = inputs[0].detach().clone()

    return hook
