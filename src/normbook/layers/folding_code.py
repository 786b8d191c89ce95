"""What the code of a module does with its children: read, where no trace can tell."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from normbook.layers.folding_obstacles import KNOWN, joined

# Names by which code reaches what modules hold.
_REACH = {
    *("modules", "children", "parameters", "buffers", "state_dict", "apply"),
    *("named_modules", "named_children", "named_parameters", "named_buffers"),
    *("get_submodule", "get_parameter", "get_buffer", "__dict__", "_modules"),
    *(
        "load_state_dict",
        "_parameters",
        "_buffers",
        "_apply",
        "__getattr__",
        "__getattribute__",
    ),
}
# What may stand above a method: it changes nothing that is looked at.
_MARKS = {
    *("property", "staticmethod", "torch.no_grad()", "torch.jit.export"),
    *("torch.jit.ignore", "torch.jit.ignore()", "torch.jit.unused"),
}

# What a class holds for those who ask for types.
_OF_TYPES = {"__annotations__", "__orig_bases__", "__parameters__"}


class _ReachError(Exception):
    """Code that may reach anything."""


def called_whole(model: nn.Module, box: str) -> Iterator[str]:
    """Name the modules in one of a model that its code calls, and uses in no other way.

    Nothing else holds them, or what they hold.
    """
    module = model.get_submodule(box)
    holders = _holders(model)
    for path in _called(module):
        child: Any = module.get_submodule(path)
        own = _holders(child) + Counter([child])
        is_own = all(holders[m] == own[m] for m in child.modules())
        # A trace of it begins in its forward.
        is_plain = type(child).__call__ is nn.Module.__call__
        is_plain &= "forward" not in vars(child)
        if is_own and is_plain and not isinstance(child, KNOWN):
            yield joined(box, path)


def _holders(model: nn.Module) -> Counter[nn.Module]:
    """Count in how many places each module stands."""
    return Counter(m for part in model.modules() for m in part._modules.values() if m)


def _called(module: nn.Module) -> list[str]:
    """Return the children, and those of lists, that the code of a module only calls."""
    kinds = [k for k in type(module).__mro__ if k not in (nn.Module, object)]
    ways: dict[str, set[str]] = {}
    try:
        _check_attributes(module)
        methods = [m for kind in kinds for m in _methods(kind)]
        named = {name for name, _ in methods}
        # From forward, and from what Python calls by itself, to all that these name.
        by_itself = {name for name in named if name.startswith("__")} - {"__init__"}
        reached = by_itself | {"forward"}
        todo = [code for name, code in methods if name in reached]
        for code in todo:
            names = {n.attr for n in ast.walk(code) if isinstance(n, ast.Attribute)}
            new = names & named - reached
            reached |= new
            todo += [other for name, other in methods if name in new]
            for name, way in _uses(code, names):
                ways.setdefault(name, set()).add(way)
    except (OSError, TypeError, SyntaxError, ValueError, _ReachError):
        return []
    found: list[str] = []
    for name, child in module._modules.items():
        used = {way for way in ways.get(name, ()) if not _is_harmless(way, child)}
        if used == {"called"}:
            found.append(name)
        elif used == {"each called"} and isinstance(child, nn.ModuleList):
            found += [f"{name}.{key}" for key in child._modules]
    return found


def _is_harmless(way: str, child: nn.Module | None) -> bool:
    """Return whether it asks for what folding changes nothing of."""
    value = vars(child).get(way.removeprefix(".")) if child is not None else None
    return way == "is None" or (way[0] == "." and isinstance(value, (int, float, str)))


def _check_attributes(module: nn.Module) -> None:
    """Refuse what its code may call and reading it does not show."""
    held = [value for key, value in vars(module).items() if key != "_modules"]
    for value in tree_leaves(held):
        is_plain = isinstance(value, (type, BuiltinFunctionType))
        is_plain |= isinstance(value, FunctionType) and value.__closure__ is None
        if callable(value) and not is_plain:
            raise _ReachError


def _methods(kind: type[Any]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Read the code of the methods of a class; refuse what else may reach anything."""
    if kind.__module__.startswith("torch."):
        raise _ReachError
    for name, value in vars(kind).items():
        if isinstance(value, property):
            methods = [f for f in (value.fget, value.fset, value.fdel) if f]
        elif isinstance(value, staticmethod | FunctionType):
            methods = [getattr(value, "__func__", value)]
        elif (
            name in _OF_TYPES
            or isinstance(value, GetSetDescriptorType)
            or not any(
                callable(leaf) and not isinstance(leaf, type)
                for leaf in tree_leaves(value)
            )
        ):
            continue
        else:
            raise _ReachError
        for method in methods:
            code = inspect.unwrap(method)
            (read,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
            is_own = {*code.__code__.co_freevars} <= {"__class__"}
            if not (is_own and isinstance(read, ast.FunctionDef)):
                raise _ReachError
            yield name, read


def _uses(method: ast.FunctionDef, names: set[str]) -> Iterator[tuple[str, str]]:
    """Tell how a method uses each attribute of its object."""
    marks = {ast.unparse(mark) for mark in method.decorator_list}
    if not marks <= _MARKS or names & _REACH:
        raise _ReachError
    nodes = [*ast.walk(method)]
    parents = {child: n for n in nodes for child in ast.iter_child_nodes(n)}
    me = [a.arg for a in (*method.args.posonlyargs, *method.args.args)][:1]
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in me:
            attribute: Any = parents[node]
            if not isinstance(attribute, ast.Attribute):  # it is handed on
                raise _ReachError
            yield attribute.attr, _way(attribute, parents, nodes)


def _way(node: Any, parents: Mapping[ast.AST, ast.AST], nodes: list[ast.AST]) -> str:
    """Tell how an attribute is used: called, or each of a list called, or otherwise."""
    if _is_called(node, parents):
        return "called"
    loop: Any = parents[node]
    if isinstance(loop, ast.Attribute) and isinstance(loop.ctx, ast.Load):
        return f".{loop.attr}"
    if isinstance(loop, ast.Compare) and ast.unparse(loop).endswith(
        (" is None", " is not None")
    ):
        return "is None"
    is_counted = isinstance(loop, ast.Call) and ast.unparse(loop.func) == "enumerate"
    if is_counted:
        node, loop = loop, parents[loop]
    if not (isinstance(loop, (ast.For, ast.comprehension)) and loop.iter is node):
        return "used"
    target: Any = loop.target
    if is_counted:
        target = target.elts[-1] if isinstance(target, ast.Tuple) else None
    if not isinstance(target, ast.Name):
        return "used"
    others = [n for n in nodes if isinstance(n, ast.Name) and n.id == target.id]
    are_called = all(_is_called(n, parents) for n in others if n is not target)
    return "each called" if are_called else "used"


def _is_called(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    parent = parents[node]
    return isinstance(parent, ast.Call) and parent.func is node
