"""Which layer follows which in a model: read from traces of it, or of its parts.

What :mod:`torch.fx` cannot trace is taken for one step, and its children are traced by
themselves if its code does nothing with them but call them.
"""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from normbook.errors import NormbookError
from normbook.layers.folding_apart import NORM, Opened
from normbook.layers.folding_code import called_whole
from normbook.layers.folding_copies import copied
from normbook.layers.folding_obstacles import KNOWN, joined

# Every combination of optional arguments is traced: 64 for six of them.
MOST_OPTIONS = 6


class OptionsError(NormbookError, ValueError):
    """Too many ways through a model."""


class Part(NamedTuple):
    """A module that is traced by itself: the whole model, or what lies in a black box.

    The nodes of its graphs, one for each way through it, name modules of the model.
    """

    name: str
    graphs: list[fx.Graph]
    constants: list[Tensor]  # that are no parameters and that a trace has met

    def is_same(self, other: Part) -> bool:
        """Return whether they go the same way."""
        pairs = zip(self.constants, other.constants, strict=False)
        return (
            list(map(str, self.graphs)) == list(map(str, other.graphs))
            and len(self.constants) == len(other.constants)
            and all(torch.equal(a, b) for a, b in pairs)
        )


class Traced(NamedTuple):
    """The parts of a model, and what cannot be traced, with the errors, by name."""

    parts: list[Part]
    boxes: dict[str, Exception]


class _Tracer(fx.Tracer):
    """Follow the data from one layer to the next, without looking into layers."""

    def __init__(
        self,
        name: str,
        opened: Mapping[str, Sequence[str]],
        boxes: dict[str, Exception],
        is_exact: bool,
    ) -> None:
        super().__init__()
        self.name, self.opened, self.boxes = name, opened, boxes
        self.is_exact = is_exact

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_ours = m.__module__.startswith("normbook.layers.")
        is_ours = is_ours and not isinstance(m, Opened)
        is_known = is_ours or isinstance(m, KNOWN)
        is_box = joined(self.name, module_qualified_name) in self.boxes
        is_known = is_known or is_box
        return is_known or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = self.path_of_module(m)
        name = joined(self.name, path)
        if name in self.opened:  # as if it were apart already
            y = self.create_proxy("call_module", f"{path}.{NORM}", args, kwargs)
            for key in self.opened[name]:
                y = m._modules[key](y)  # type: ignore[misc]
            return y
        stack = dict(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            if self.is_exact or name in self.boxes:
                raise
            self.boxes[name] = error
            self.module_stack.clear()
            self.module_stack.update(stack)
            return self.create_proxy("call_module", path, args, kwargs)


def traced(model: nn.Module, opened: Mapping[str, Sequence[str]]) -> Traced:
    """Trace a copy of a model, and what lies in boxes that cannot be traced."""
    boxes: dict[str, Exception] = {}
    while True:
        before = len(boxes)
        found = _parts(copied(model), opened, boxes)
        # A trace that met a new box has tried to look into it.
        if len(boxes) == before:
            return Traced(found, boxes)


def again(model: nn.Module, first: Traced) -> list[Part]:
    """Trace a copy of a model that should have the same parts."""
    model = copied(model)
    return [
        _part(model, part.name, {}, dict(first.boxes), is_exact=True)
        for part in first.parts
    ]


def _parts(
    model: nn.Module,
    opened: Mapping[str, Sequence[str]],
    boxes: dict[str, Exception],
) -> list[Part]:
    parts, names = [], [""]
    for name in names:
        try:
            part = _part(model, name, opened, boxes, is_exact=False)
        except Exception as error:  # noqa: BLE001
            boxes[name] = error
            part = Part(name, [], [])
        parts.append(part)
        nodes = [n for graph in part.graphs for n in graph.nodes]
        targets = dict.fromkeys(str(n.target) for n in nodes if n.op == "call_module")
        for box in [name] if name in boxes else targets:
            if box in boxes:
                names += [key for key in called_whole(model, box) if key not in names]
    return parts


def _part(
    model: nn.Module,
    name: str,
    opened: Mapping[str, Sequence[str]],
    boxes: dict[str, Exception],
    *,
    is_exact: bool,
) -> Part:
    if name in boxes:
        return Part(name, [], [])
    module = model.get_submodule(name)
    # Random numbers that forward draws are the same in all traces, and the state of
    # the generator is put back.
    with torch.random.fork_rng(devices=[]):
        graphs = [
            _Tracer(name, opened, boxes, is_exact).trace(module, concrete_args=way)
            for way in _ways(module)
        ]
    for graph in graphs:
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = joined(name, str(node.target))
    values = vars(module).items()
    return Part(name, graphs, [v for k, v in values if k.startswith("_tensor_consta")])


def _ways(module: nn.Module) -> list[dict[str, Any] | None]:
    """Take each optional argument at its default, and at any other value."""
    choices: list[list[dict[str, Any]]] = []
    for name, parameter in inspect.signature(module.forward).parameters.items():
        value = parameter.default
        if isinstance(value, bool):
            choices.append([{name: value}, {name: not value}])
        elif value is None or isinstance(value, (int, float, str)):
            choices.append([{name: value}, {}])  # left open, it is any value
    if len(choices) > MOST_OPTIONS:
        raise OptionsError(
            f"forward must have at most {MOST_OPTIONS} optional arguments, as each "
            f"combination is traced, got {len(choices)}; fold a module around the "
            "model whose forward fixes those that you do not use."
        )
    return [dict(ChainMap(*choice)) or None for choice in product(*choices)]
