"""The norms of a model, and what they see when it runs on data."""

from __future__ import annotations

import itertools
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError, of_the_layer
from normbook.checks.copies import copy_of
from normbook.checks.layer.definitions import Definition
from normbook.checks.tensors import fit, largest
from normbook.checks.unusual.padding import More

TORCH, CHECKS = Path(torch.__file__).parent, Path(__file__).parents[1]
# Axes of an input that torch takes for one example of an instance norm, (C, L) say.
OF_ONE_EXAMPLE = (
    (nn.InstanceNorm1d, 2),
    (nn.InstanceNorm2d, 3),
    (nn.InstanceNorm3d, 4),
)


# Names of what is a norm, and of what holds norms, or normalizes weights.
# Also EvoNorm2dS0.
NAMED = re.compile(r"norm(ali[sz](ation|er))?(layer)?_?\d?d?([a-z]\d[a-z]?)?$")
NO_NORM = re.compile("lstm|gru|rnn|cell|block|weight|spectral")
FITS = 0.01  # of the largest output


class Seen(NamedTuple):
    """A norm, and what went in and came out of it when all normalize by the batch."""

    name: str
    norm: nn.Module
    kind: str
    definition: Definition
    x: Tensor
    y: Tensor
    more: More  # what else went in
    is_sure: bool = True  # the definition explains y, or the norm is of torch

    @property
    def is_read_as_one(self) -> bool:
        """Return whether torch takes all examples for the channels of one."""
        dims = (dim for of, dim in OF_ONE_EXAMPLE if isinstance(self.norm, of))
        return self.x.dim() == next(dims, None)


def norms_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the innermost modules that are norms by their type or name."""
    found = {
        name: part
        for name, part in parts_of(model).items()
        if _is_norm(part, name.rpartition(".")[2])
    }
    outer = {name[:k] for name in found for k, sign in enumerate(name) if sign == "."}
    for name, part in found.items():
        if name not in outer and (name or len(found) == 1):
            yield name, part


def _is_norm(part: nn.Module, called: str) -> bool:
    if isinstance(part, torch.jit.ScriptModule):
        return False  # it has no source, and takes no hook
    own, *others = (of.__name__.lower() for of in type(part).__mro__)
    if NO_NORM.search(own):
        return False
    if re.match("norm", own) and not any(True for _ in part.children()):
        return not any(True for _ in part.parameters()) or bool(NAMED.search(own))
    if any("norm" in name for name in (own, *others)):
        return bool(recognition.kind_of(part) or NAMED.search(own))
    # A class of another name, RMS say, that stands where a norm does.
    is_own = not type(part).__module__.startswith("torch.")
    holds = any(True for _ in part.parameters(recurse=False))
    is_leaf = holds and not any(True for _ in part.children())
    return is_own and is_leaf and bool(re.search("norm|grn", called.lower()))


def dotted(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts that stand under a name with a dot, which is no path."""
    return {
        f"{path}.{name}".strip("."): part
        for path, whole in model.named_modules()
        for name, part in whole._modules.items()
        if "." in name and part is not None
    }


def parts_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return all parts by their paths; what has a dot in its name hides none."""
    lost = {*dotted(model).values()}
    return {n: part for n, part in model.named_modules() if part not in lost}


OF_MODULES = {*vars(nn.Module())}  # where nn.Module keeps its own


def hidden_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the norms that stand in lists and dicts, and are not registered."""
    registered, hidden = {*model.modules()}, {}
    for path, part in model.named_modules():
        for name, held in _held_apart(part):
            where = f"{path}.{name}" if path else name
            for inner, norm in norms_of(held):
                if norm not in registered:
                    hidden[f"{where}.{inner}" if inner else where] = norm
    return hidden


def _held_apart(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a module holds in a list, tuple or dict of Python."""
    for name, value in vars(part).items():
        if name in OF_MODULES:
            continue
        items: Any = value.items() if isinstance(value, dict) else ()
        items = enumerate(value) if isinstance(value, list | tuple) else items
        for key, held in items:
            if isinstance(held, nn.Module):
                yield f"{name}[{key!r}]", held


def buffers_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers that norms hold, and do not learn."""
    for name, norm in norms_of(model):
        for key, buffer in norm.named_buffers():
            if buffer.is_floating_point():
                yield f"{name}.{key}", buffer


class OwnError(Exception):
    """What the audit's own hook raised, not the model; it is the ``__cause__``."""


def is_own(error: BaseException | None) -> bool:
    """Return whether a call of a model failed in what the audit put into it."""
    stack = traceback.extract_tb(error.__traceback__) if error else []
    # What a mode passes on to torch is called by the model.
    files = [Path(f.filename) for f in stack if f.name != "__torch_function__"]
    files = [f for f in files if f.parent != Path(traceback.__file__).parent]
    entered = next((k for k, file in enumerate(files) if TORCH in file.parents), None)
    inside = [file for file in files[entered:] if TORCH not in file.parents]
    return entered is not None and bool(inside) and CHECKS in inside[-1].parents


def run_on(model: nn.Module, x: Any) -> Any:
    """Call a model with x as all its arguments, if it is a tuple or a dictionary.

    It gets a copy, which it may write into.
    """
    x = over_tensors(x, torch.clone)
    try:
        with of_the_layer():
            if isinstance(x, dict):
                return model(**x)
            return model(*x) if isinstance(x, tuple) else model(x)
    except LayerError as error:
        if is_own(error.__cause__):
            raise OwnError from error.__cause__
        raise


class Watching(TorchFunctionMode):
    """Show a function what functions of torch a model calls, and with what."""

    def __init__(self, note: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.note(func, args, kwargs or {})
        return func(*args, **kwargs or {})


class Event(NamedTuple):
    """A call of a part: what went in first, and besides, and what came out."""

    name: str
    part: nn.Module
    x: Tensor
    more: More
    y: Tensor


def noting(
    model: nn.Module, names: Iterable[str], *, are_blocks: bool = False
) -> list[Event]:
    """Return a list in which runs of a model put the calls of some of its parts."""
    events: list[Event] = []
    parts = parts_of(model)

    def note(name: str) -> Any:
        def hook(part: nn.Module, given: Any, named: Any, y: Any) -> None:
            y = y[0] if are_blocks and isinstance(y, tuple) and y else y
            if given and is_plain(given[0]) and is_plain(y):
                x, *rest = given
                more, x = (tuple(rest), dict(named)), x.detach().clone()
                events.append(Event(name, part, x, more, y.detach().clone()))

        return hook

    for name in names:
        parts[name].register_forward_hook(note(name), with_kwargs=True)
    return events


def is_plain(t: Any) -> bool:
    """Return whether something is a tensor of one shape, and no nested one."""
    return isinstance(t, Tensor) and not t.is_nested


def look(
    model: nn.Module, x: Any, again: dict[str, list[Tensor]] | None = None
) -> Iterator[Seen]:
    """Run a model and yield what each of its norms saw first, in their order.

    What came to a norm later goes to ``again``.
    """
    events = noting(model, [name for name, _ in norms_of(model)])
    try:
        run_on(model, x)
    except LayerError as error:
        raise ValueError(f"the model must take x, got {error}.") from error
    yield from seen_in(events, {} if again is None else again)


def seen_in(events: list[Event], again: dict[str, list[Tensor]]) -> Iterator[Seen]:
    """Yield the first calls of norms, with what each of these is."""
    first: dict[str, Event] = {}
    for event in events:
        if first.setdefault(event.name, event) is not event:
            again.setdefault(event.name, []).append(event.x.double())
    tried: dict[Any, list[Definition]] = {}  # what explained others of its class
    for name, norm, x_in, more, y in first.values():
        if x_in.dim() < 2 or not x_in.is_floating_point():
            continue
        x, y, of = x_in.double(), y.double(), (type(norm), x_in.dim())
        definition, is_sure = _definition_of(norm, x, y, tried.get(of))
        if of not in tried or is_sure:
            tried[of] = [definition] if definition and is_sure else []
        if definition is not None:
            kind = definition.kind
            yield Seen(name, norm, kind, definition, x, y, more, is_sure)


def _definition_of(
    norm: nn.Module, x: Tensor, y: Tensor, likely: list[Definition] | None
) -> tuple[Definition | None, bool]:
    """Return what explains the output of a norm, or what it says that it is.

    With it comes whether that is sure: it explains the output, or is of torch. Where
    others of its class were looked at, only what they are is tried besides.
    """
    kind, shape = recognition.kind_of(norm), tuple(x.shape)
    told = [of for of, _ in recognition.definitions_of(norm, shape, kind)]
    if kind is None:
        last = (Definition("batch", channel=-1), Definition("instance", channel=-1))
        return next((of for of in (*told, *last) if _fits(of, norm, x, y)), None), True
    groups = getattr(norm, "num_groups", 1)
    has_channels = kind in ("batch", "instance", "group") and x.dim() > 2
    if has_channels and _has_channels_last(norm, x):
        return Definition(kind, groups, channel=-1), True
    said = told[0] if told else Definition(kind, groups)
    if type(norm).forward.__module__.startswith("torch."):
        return said, True
    others = recognition.relatives_of(shape, kind) if likely is None else likely
    both = itertools.chain(told, others)
    fitting = next((of for of in both if _fits(of, norm, x, y)), None)
    return fitting or said, fitting is not None


def _fits(of: Definition, norm: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Return whether a gain and a bias of each feature make y of a definition."""
    if x.shape != y.shape or of.size(tuple(x.shape)) < 2:
        return False
    count = math.prod(of.parameter_shape(tuple(x.shape)))
    if any(p.numel() not in (1, count) for p in norm.parameters()):
        return False
    x_hat = of.normalize(x, recognition.eps_of(norm, x.dtype) or 1e-5)
    along = of.parameter_axes(x.dim())
    a, b = fit(y, x_hat, along)
    # One gain and bias for all, as where one mean is that of all channels.
    held = [p for p in norm.parameters() if p.numel()]
    if held and all(p.numel() == 1 for p in held):
        a, b = a.mean().expand_as(a), b.mean().expand_as(b)
    return largest(y - a * x_hat - b) < FITS * largest(y)


def _has_channels_last(norm: nn.Module, x: Tensor) -> bool:
    """Return whether what a norm holds belongs to the last axis, and not to axis 1.

    Lengths tell it, or where both are alike the places where another bias acts.
    """
    held = {t.numel() for t in (*norm.parameters(), *norm.buffers())} - {1}
    if held != {x.shape[-1]} or x.shape[1] not in held:
        return held == {x.shape[-1]}
    made = copy_of(norm)
    bias = getattr(made, "bias", None)
    if not isinstance(bias, Tensor) or bias.shape != (x.shape[1],):
        return False
    before = output_of(made, x).detach()
    bias.data += torch.arange(len(bias)).to(bias)
    change = output_of(made, x).detach() - before
    return bool(change.std(1).max() < 0.01 < change.std(-1).max())


def linear_behind(model: nn.Module, x: Any, names: list[str]) -> dict[str, str]:
    """Return the linear layer that gets the output of each norm as it is, if any."""
    made: dict[int, str] = {}
    held: list[Tensor] = []  # so that no other tensor gets their place
    found: dict[str, str] = {}
    model = copy_of(model)
    for name, part in parts_of(model).items():

        def hook(_: nn.Module, given: Any, y: Any, name: str = name) -> None:
            made[id(y)] = name
            held.append(y)

        def entered(_: nn.Module, given: Any, name: str = name) -> None:
            if given and id(given[0]) in made:
                found.setdefault(made[id(given[0])], name)

        if name in names:
            part.register_forward_hook(hook)
        elif isinstance(part, nn.Linear):
            part.register_forward_pre_hook(entered)
    if names:
        run_on(model, x)
    return found


def output_of(norm: nn.Module, x: Tensor) -> Tensor:
    """Run a norm on x in its own precision."""
    like = next(norm.parameters(), getattr(norm, "running_mean", x))
    y: Tensor = norm(x.to(like.dtype))
    return y.double()


def lengths_in(
    model: nn.Module, names: list[str]
) -> Callable[[Any], dict[str, tuple[int, ...]]]:
    """Return a function that runs a model, and tells the shapes that norms get of x.

    The norms of the model give back what they get from now on, of any length.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def giving_back(name: str) -> Any:
        def forward(*given: Any, **named: Any) -> Tensor:
            x: Tensor = next(iter((*given, *named.values())))
            shapes.setdefault(name, tuple(x.shape))
            return x

        return forward

    for name in names:  # of a part that stands under several names, at all of them
        vars(model.get_submodule(name))["forward"] = giving_back(name)

    def lengths(x: Any) -> dict[str, tuple[int, ...]]:
        shapes.clear()
        with suppress(LayerError):
            run_on(model, x)
            return {**shapes}
        return {}  # the model refuses x

    return lengths


def tensors_in(made: Any) -> list[Tensor]:
    """Return all tensors in what a model returned."""
    if isinstance(made, Tensor):
        return [made]
    if isinstance(made, dict):
        made = tuple(made.values())
    if is_dataclass(made) and not isinstance(made, type):
        made = tuple(getattr(made, field.name, None) for field in fields(made))
    if isinstance(made, torch.distributions.Distribution):
        made = tuple(vars(made).values())
    if not isinstance(made, list | tuple | set):
        return []  # a cache, say, which may not be read yet
    return [t for value in made for t in tensors_in(value)]


PLAIN = (int, float, str, bool, type(None))  # of no example
NOT_CUT = "x must hold tensors of one length, of two or more, and no lists."


def over_tensors(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the tensors of x, also in tuples, dicts and dataclasses inside of it."""
    if isinstance(x, dict):
        held = copy(x)
        for key, one in x.items():
            held[key] = over_tensors(one, change)
        return held
    if isinstance(x, tuple):
        made = tuple(over_tensors(one, change) for one in x)
        of: Any = type(x)  # a named one has a way past what it does when it is made
        return of._make(made) if hasattr(x, "_fields") else of(made)
    if is_dataclass(x) and not isinstance(x, type):
        made_of = copy(x)
        for field in fields(x):  # a frozen one, too
            if hasattr(x, field.name):
                part = over_tensors(getattr(x, field.name), change)
                object.__setattr__(made_of, field.name, part)
        return made_of
    return change(x) if isinstance(x, Tensor) else x


def _parts_of_input(x: Any) -> Iterator[Any]:
    if is_dataclass(x) and not isinstance(x, type):
        x = tuple(getattr(x, field.name, None) for field in fields(x))
    if isinstance(x, dict | tuple):
        for one in x.values() if isinstance(x, dict) else x:
            yield from _parts_of_input(one)
    elif not isinstance(x, PLAIN):
        yield x


def batch_in(x: Any) -> Tensor | None:
    """Return the first tensor of x, if all have as many examples."""
    tensors = [*_parts_of_input(x)]
    if not tensors or not all(isinstance(t, Tensor) and t.dim() for t in tensors):
        return None
    return tensors[0] if len({len(t) for t in tensors}) == 1 else None


def one_of_many(x: Any) -> tuple[Any, int]:
    """Return the first example alone, and how many rows of the tensors it has.

    Where the named tensor ``batch`` numbers the examples that rows belong to, as of
    clouds of points, it is all rows of number 0.
    """
    first, rows = batch_in(x), 1
    number = x.get("batch") if isinstance(x, dict) else None
    if isinstance(number, Tensor) and not number.is_floating_point():
        is_whole = first is not None and number.shape == first.shape[:1]
        if is_whole and bool((number.diff() >= 0).all()):
            rows = max(1, int((number == 0).sum()))
    return narrowed(x, 0, rows), rows


def narrowed(x: Any, axis: int, length: int) -> Any:
    """Cut an axis of x, and of all its tensors on which it is as long."""
    first = batch_in(x)

    def cut(t: Tensor) -> Tensor:
        is_alike = first is not None and (
            t.shape[: axis + 1] == first.shape[: axis + 1]
        )
        return t.narrow(axis, 0, length) if is_alike else t

    return over_tensors(x, cut)


def cuts_of(x: Any, axis: int, length: int) -> Iterator[Any]:
    """Cut an axis of x, and then all axes that are as long, as those of masks are.

    The first axis is that of the examples.
    """
    first, alike = batch_in(x), narrowed(x, axis, length)

    def cut(t: Tensor) -> Tensor:
        for k in range(1, t.dim()):
            if first is not None and t.shape[k] == first.shape[axis]:
                t = t.narrow(k, 0, length)
        return t

    yield alike
    every = over_tensors(x, cut) if axis else alike
    if [t.shape for t in tensors_in(every)] != [t.shape for t in tensors_in(alike)]:
        yield every
