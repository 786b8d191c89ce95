"""In which mode norms are called, and what a pass changes that it should not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm, place_of
from normbook.checks.model.passes import Pass
from normbook.checks.model.runs import batch_in, narrowed, parts_of
from normbook.checks.model.subject import Subject, is_frozen


def unreached(subject: Subject) -> Iterator[Harm]:
    """Compare the modes of norms with that of the model."""
    parts = parts_of(subject.original)
    both = [n for n in subject.names if recognition.kind_of(parts[n]) == "batch"]
    left, called = subject.still.modes, subject.still.called
    for name in both:
        if not called.get(name, left[name]):
            continue
        how = (
            "model.eval() leaves it in training mode: a train() of the model's own "
            "does not call those of its parts"
            if left[name]
            else "a pass of the model puts it into training mode, after eval()"
        )
        yield Harm(
            WRONG,
            "in training mode while the model evaluates",
            1,
            name,
            f"{how}. It normalizes by the batch, and its running statistics move.",
            "Call super().train(mode) in train(), return self, and change the mode of "
            "dropout alone where dropout is to stay.",
        )
    begin, called = subject.training.modes, subject.training.called
    for name in both:
        norm: Any = parts[name]
        if called.get(name, True) or is_frozen(norm):
            continue
        if not isinstance(getattr(norm, "running_mean", None), Tensor):
            continue
        mean, var = norm.running_mean, norm.running_var
        fresh = isinstance(var, Tensor) and bool((var == 1).all() and not mean.any())
        how = (
            "a pass of the model puts it into evaluation mode, after train()"
            if begin[name]
            else "train() of the model does not reach it"
        )
        also = ", and are those of the start: nothing is normalized" if fresh else ""
        yield Harm(
            RISK if fresh else NOTE,
            "in evaluation mode while the model trains",
            1,
            name,
            f"{how}. Its gain and bias are not frozen; its running statistics never "
            f"move{also}.",
            "Leave it in training mode, or freeze gain and bias, too.",
        )


def moved(subject: Subject) -> Iterator[Harm]:
    """Look for parameters that a forward pass changes."""
    old = dict(subject.original.named_parameters())
    new = dict(subject.training.model.named_parameters())
    changed = [name for name, p in new.items() if not p.equal(old[name].to(p))]
    found = [name for name in changed if new[name].requires_grad]
    if not found and changed and _are_set_once(subject, changed):
        found = changed  # what is updated in each pass is not learnt on purpose
    if found and _are_set_once(subject, found):
        is_set_again = _are_set_after_loading(subject, found)
        yield Harm(
            RISK if is_set_again else NOTE,
            "parameters that the first pass in training sets"
            + ", after loading, too" * is_set_again,
            len(found),
            place_of(found),
            "they begin with the statistics of the first batch; a second pass leaves "
            "them. "
            + (
                "The state does not hold that it is done: in a model that has loaded "
                "them a pass in training sets them anew."
                if is_set_again
                else "Until then evaluation runs without them."
            ),
            "Register the flag as a buffer."
            if is_set_again
            else "Run a batch in training mode before what is evaluated.",
            "Scale invariance",
        )
    elif found:
        yield Harm(
            RISK,
            "parameters that a forward pass changes",
            len(found),
            place_of(found),
            "a pass without an optimizer writes into them: what is standardized in "
            "place has no gradient through its statistics, and another pass gives "
            "another output.",
            "Compute the standardized weight from the parameter in each pass.",
            "Scale invariance",
        )


def _values_of(model: nn.Module, names: list[str]) -> list[Tensor]:
    parameters = dict(model.named_parameters())
    return [parameters[name].detach().clone() for name in names]


def _is_moved(model: nn.Module, x: Any, names: list[str]) -> bool | None:
    """Return whether a pass in training changes parameters, None if it raises."""
    model.train()
    before = _values_of(model, names)
    one = Pass(model, []).run(x)
    if one.error:
        return None
    return not all(map(torch.equal, before, _values_of(model, names)))


def _are_set_once(subject: Subject, names: list[str]) -> bool:
    """Return whether another pass in training leaves what the first one has set."""
    return _is_moved(copy_of(subject.training.model), subject.x, names) is False


def _are_set_after_loading(subject: Subject, names: list[str]) -> bool:
    """Return whether a model that loads them sets them again, by another batch."""
    whole, loaded = batch_in(subject.x), copy_of(subject.original)
    if whole is None or len(whole) < 4:
        return False
    loaded.load_state_dict(subject.training.model.state_dict())
    half = narrowed(subject.x, 0, len(whole) // 2)
    return bool(_is_moved(loaded, half, names))


def named_twice(subject: Subject) -> Iterator[Harm]:
    """Look for one norm under several names, and gains that norms share."""
    names: dict[nn.Module, list[str]] = {}
    for name, part in subject.original.named_modules(remove_duplicate=False):
        names.setdefault(part, []).append(name)
    parts = parts_of(subject.original)
    for name in subject.names:
        held, calls = names[parts[name]], 1 + len(subject.again.get(name, ()))
        if len(held) > 1 and calls > 1 and any(True for _ in parts[name].parameters()):
            yield Harm(
                NOTE,
                "one norm under several names",
                len(held),
                name,
                f"{', '.join(held):.120} are one module, called {calls} times: they "
                "share gain and bias, as [block] * n shares all.",
                "Make each anew, as [make() for _ in range(n)], unless they are to be "
                "tied.",
            )
    owners: dict[Tensor, list[str]] = {}
    for name in subject.names:
        for key, p in parts[name].named_parameters():
            owners.setdefault(p, []).append(f"{name}.{key}")
    tied = [paths for paths in owners.values() if len(paths) > 1]
    for paths in tied:
        yield Harm(
            NOTE,
            "gains or biases that norms share",
            len(paths),
            paths[0].rpartition(".")[0],
            f"{', '.join(paths):.160} are one parameter.",
            "Give each norm parameters of its own, unless they are to be tied.",
        )
