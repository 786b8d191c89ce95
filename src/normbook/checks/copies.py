"""Copies of a layer, also where ``copy.deepcopy`` refuses."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

HOOKS = re.compile("_(forward|backward)(_pre)?_hooks")
SHARED = staticmethod, classmethod, ModuleType  # a copy may hold them, too
Layer = TypeVar("Layer", bound=nn.Module)


def tensors_of(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor that a layer holds, by name, in lists and dictionaries too."""
    for path, module in layer.named_modules():
        for key, value in vars(module).items():
            if key != "_modules":
                name = "" if key in ("_parameters", "_buffers") else key
                for label, held in inside(value, name):
                    if isinstance(held, Tensor):
                        yield f"{path}.{label}".strip("."), held


def moved(before: nn.Module, after: nn.Module, size: int) -> dict[str, Tensor]:
    """Return what changed of a layer's floating-point tensors of some size, flat."""
    old = dict(tensors_of(before))
    return {
        name: value.detach().clone().double().flatten()
        for name, value in tensors_of(after)
        if value.is_floating_point() and value.numel() == size
        if name not in old or not value.equal(old[name])
    }


def inside(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what lists, tuples and dictionaries hold, at any depth, with its path."""
    if not isinstance(value, dict | list | tuple):
        yield name, value
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from inside(item, f"{name}.{key}".strip("."))


def check_that_none_waits(layer: nn.Module) -> None:
    """Refuse a layer with a part that has not seen its first input."""
    for part in layer.modules():
        if isinstance(part, LazyModuleMixin) and part.has_uninitialized_params():
            raise ValueError(
                "the layer must know its number of features, got a "
                f"{type(part).__name__} that waits for its first input; give it one."
            )


def in_dtype(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert a layer, in torch's own way where its ``to`` takes another argument."""
    try:
        layer.to(dtype=dtype)  # it may return nothing
    except TypeError:
        nn.Module.to(layer, dtype=dtype)
    return layer


def _hook(made: nn.Module, layer: nn.Module) -> None:
    """Register the forward hooks of a layer that are methods of its parts."""
    parts = dict(zip(layer.modules(), made.modules(), strict=True))
    for part, new in parts.items():
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            hooks: dict[int, Any] = vars(part).get(name, {})
            takes_named = vars(part).get(f"{name}_with_kwargs", {})
            for key, hook in hooks.items():
                of = getattr(hook, "__self__", None)
                if isinstance(of, nn.Module) and of in parts:
                    register = getattr(new, f"register{name.removesuffix('s')}")
                    method = MethodType(hook.__func__, parts[of])
                    register(method, with_kwargs=key in takes_named)


def copy_of(layer: Layer) -> Layer:
    """Copy a layer; a tensor that hangs in a graph becomes a plain one.

    ``copy.deepcopy`` alone refuses such a tensor. The hooks on forward and backward
    stay behind: what they do outside the layer is not for a copy to repeat. Those that
    are methods of a part of it go along. A ``TypeError`` says what else cannot be
    copied.
    """
    plain: dict[int, Any] = {
        id(tensor): tensor.detach().clone()
        for _, tensor in tensors_of(layer)
        if not tensor.is_leaf
    }
    for module in layer.modules():
        for name, value in vars(module).items():
            is_dict = type(value) in (dict, OrderedDict)
            if is_dict and (not value or HOOKS.match(name)):
                plain[id(value)] = type(value)()
        plain |= {id(v): v for v in vars(module).values() if type(v) in SHARED}
    try:
        made = copy.deepcopy(layer, plain)
        own = {*made.modules()}
        if both := [part for part in layer.modules() if part in own]:
            of = type(both[0]).__name__
            raise RuntimeError(f"the copy holds the same {of} as the original")
        _hook(made, layer)
        for module in made.modules():
            for name in [n for n in vars(module) if n.endswith("hooks_installed")]:
                setattr(module, name, False)  # transformers installs them again
        return made
    except Exception as error:
        raise TypeError(
            f"the layer must allow a copy, got a {type(layer).__name__} for which "
            f"copy.deepcopy raises {type(error).__name__}: {error}; give what cannot "
            "be copied a __deepcopy__, or keep it outside the layer."
        ) from error


def _alike(a: Tensor, b: Tensor) -> bool:
    a, b = (t.to_dense() if t.is_sparse else t for t in (a, b))
    return torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


@contextmanager
def unchanged(layer: nn.Module) -> Iterator[None]:
    """Refuse what reaches a layer from its copies, and give back what it held."""
    before = {
        name: (t, t.detach().clone())
        for name, t in layer.named_buffers()
        if not t.is_meta and not t.is_inference()
    }
    slopes = {p: None if p.grad is None else p.grad.clone() for p in layer.parameters()}
    try:
        yield
    finally:
        # By values: not all that writes counts a version.
        changed = [n for n, (t, kept) in before.items() if not _alike(t, kept)]
        with torch.no_grad():
            for name in changed:
                t, kept = before[name]
                t.copy_(kept)
        for p, slope in slopes.items():
            now = p.grad
            if now is None or slope is None:
                is_as_it_was = now is slope
            else:
                is_as_it_was = _alike(now, slope)
            if not is_as_it_was:
                changed += ["a gradient"]
                p.grad = slope
    if changed:
        raise ValueError(
            f"a copy must compute by its own parts, got a {type(layer).__name__} of "
            f"which a copy changes {changed[0]} of the original, as by a closure over "
            "it; call its parts as self.part(x)."
        )


def graph_nodes(tensor: Tensor, ends: Iterable[Any] = ()) -> set[Any]:
    """Return the operations that a tensor remembers, those behind ends left out."""
    seen = {*ends}
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [source for source, _ in node.next_functions]
    return seen.difference(ends)
