"""Which norms a model calls, holds and reads."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, equal, listed, place_of
from normbook.checks.model.passes import Pass
from normbook.checks.model.runs import dotted as dotted_parts
from normbook.checks.model.runs import hidden_norms, run_on, tensors_in
from normbook.checks.model.subject import Subject


def unregistered(subject: Subject) -> Iterator[Harm]:
    """Look for norms in lists and dicts, and whether the model calls them."""
    hidden = hidden_norms(subject.still.model)
    if not (found := [name for name in hidden if name in subject.still.entered]):
        return
    missed = [hidden[name] for name in found if hidden[name].training]
    by_batch = sum(recognition.kind_of(norm) == "batch" for norm in missed)
    of_them = f"{by_batch} of them normalize{'s' * (by_batch == 1)} by the batch in"
    yield Harm(
        WRONG if missed else NOTE,  # in evaluation mode perhaps on purpose
        "norms that are not registered",
        len(found),
        place_of(found),
        "they stand in a list or dict of Python, where parameters(), state_dict() "
        "and to() do not see them, nor eval()"
        f"{f': {of_them} evaluation' if by_batch else ''}.",
        "Put them into nn.ModuleList or nn.ModuleDict.",
    )


def anew(subject: Subject) -> Iterator[Harm]:
    """Look for norms that each pass makes anew, so that they learn nothing."""
    if not subject.still.anew:
        return
    again = Pass(copy_of(subject.model), subject.names).run(subject.x)
    made = {
        norm: place or "the whole model"
        for norm, place in subject.still.anew.items()
        if norm not in again.anew and any(True for _ in norm.parameters())
    }
    by_batch = [n for n in made if n.training and recognition.kind_of(n) == "batch"]
    if made and again.anew:
        names = sorted({type(norm).__name__ for norm in made})
        yield Harm(
            WRONG if by_batch else RISK,
            "norms that each pass makes anew",
            len(made),
            place_of([*dict.fromkeys(made.values())]),
            f"{' and '.join(names)}, {len(made)} in a pass, are built where they are "
            "called, with gain 1 and bias 0: parameters() does not see them, and they "
            "learn nothing."
            + " Those that normalize by the batch do so in evaluation, too."
            * bool(by_batch),
            "Build them in __init__, as attributes or in nn.ModuleList.",
        )


def dotted(subject: Subject) -> Iterator[Harm]:
    """Look for norms that setattr put under a path, where nothing calls them."""
    held = dotted_parts(subject.original)
    if found := [name for name, part in held.items() if recognition.kind_of(part)]:
        yield Harm(
            RISK,
            "norms under a name with a dot",
            len(found),
            place_of(found),
            f"setattr(model, {found[0]!r}, norm) makes a part of the whole model of "
            "that name, and leaves what stands at that path as it was: the new norm "
            "is never called.",
            "Use model.set_submodule(path, norm), or setattr on the part that holds "
            "it.",
        )


def uncalled(subject: Subject) -> Iterator[Harm]:
    """Name the norms that a pass does not use, in neither mode."""
    met = {seen.name for seen in subject.seen}
    rest = [name for name in subject.names if name not in met]
    if not rest:
        return
    entered = subject.still.entered | subject.training.entered
    if not entered & {*subject.names}:
        subject.untested.append(
            "norms that are never called: a copy of the model calls none at all; "
            "perhaps it runs parts of the original, as of a closure."
        )
        return
    if others := [name for name in rest if name in entered]:
        subject.untested.append(
            "norms called in training only, or that take or return another thing than "
            f"a real tensor of two axes or more: {listed(others)}."
        )
    idle = [name for name in rest if name not in entered]
    some = idle if _is_read(subject, idle) else []
    read = [name for name in some if _is_read(subject, [name])]
    if read:
        subject.untested.append(
            f"norms whose parameters are used without a call: {listed(read)}."
        )
    for name in idle:
        if name not in read:
            yield _idle(subject, name, subject.still.entered)


def _idle(subject: Subject, name: str, entered: set[str]) -> Harm:
    """Say of a norm that nothing calls whether it was mixed up with another."""
    path, _, leaf = name.rpartition(".")
    parts = dict(subject.model.named_modules())

    def sizes(name: str) -> list[Any]:
        held = parts[name].named_parameters()
        return [type(parts[name]), *((key, p.shape) for key, p in held)]

    beside = (one for one in subject.again if one.rpartition(".")[0] == path)
    twice = [one for one in beside if sizes(one) == sizes(name)]
    # Of a list a part may be used on purpose, of a branch perhaps none.
    is_beside = path in entered
    reason = "the model runs on x without it, and it learns nothing."
    is_elsewhere = not twice and _is_in_source(parts[path], leaf)
    if twice:
        reason += (
            f" {twice[0]}, with parameters of the same size, is called "
            f"{1 + len(subject.again[twice[0]])} times: together they look like a "
            "mix-up."
        )
    elif not is_beside and not isinstance(parts[path], nn.ModuleList | nn.ModuleDict):
        reason += " The part that holds it is not called, either."
    elif is_elsewhere:
        reason += (
            f" {type(parts[path]).__name__} uses it in another case: perhaps with "
            "other arguments, or in a method that is not called here."
        )
    return Harm(
        RISK if is_beside and not is_elsewhere else NOTE,
        f"{'it' if leaf.isdigit() else leaf} is never called",
        1,
        name,
        reason,
        "Call it where it belongs, or take it out.",
    )


def _is_in_source(part: nn.Module, leaf: str) -> bool:
    """Return whether a class reads an attribute in a method that does not make it."""
    for of in type(part).__mro__:
        if of.__module__.startswith("torch.nn."):
            continue
        with suppress(OSError, TypeError, SyntaxError):  # it has no source here
            tree = ast.parse(textwrap.dedent(inspect.getsource(of)))
            methods = (m for m in ast.walk(tree) if isinstance(m, ast.FunctionDef))
            others = (m for m in methods if m.name != "__init__")
            if any(_reads(node, leaf) for m in others for node in ast.walk(m)):
                return True
    return False


def _reads(node: ast.AST, leaf: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == leaf
        and isinstance(node.ctx, ast.Load)
    )


def _is_read(subject: Subject, names: list[str]) -> bool:
    """Return whether what norms hold matters, though they are not called."""
    model = copy_of(subject.model)

    def outputs() -> list[Tensor]:
        with suppress(LayerError), torch.random.fork_rng():
            torch.manual_seed(0)  # or what it draws is another
            return tensors_in(run_on(model, subject.x))
        return []

    def is_as(before: list[Tensor]) -> bool:
        after = outputs()
        return len(before) == len(after) and all(map(equal, before, after))

    before = outputs()
    if not is_as(before):  # it keeps a state
        return False
    for name in names:
        norm = model.get_submodule(name)
        for tensor in (*norm.parameters(), *norm.buffers()):
            if tensor.is_floating_point():
                tensor.add_(1 + torch.rand_like(tensor))
    return not is_as(before)
