"""Subclasses of batch norm that are one and what comes behind it: taken apart."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.layers import folding_obstacles as against
from normbook.layers.folding_obstacles import first

NORM = "batch_norm"  # the name of the first part of what is taken apart
# What every module has, beside what a subclass keeps.
_OF_MODULES = {*vars(nn.Module())} - {"training"}


class Opened(nn.Module):
    """A batch norm, and the modules behind it, which keep their names."""

    def __init__(self, norm: nn.Module, behind: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.add_module(NORM, norm)
        for key, module in behind.items():
            self.add_module(key, module)

    def forward(self, input: Tensor) -> Tensor:
        """Call one after the other."""
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input


def subclasses(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return what can be taken apart, each with its children behind the batch norm."""
    found: dict[str, tuple[str, ...]] = {}
    orders: dict[Any, tuple[str, ...]] = {}  # one trace for all that are alike
    for name, module in model.named_modules():
        is_one = isinstance(module, TorchBatchNorm) and name
        if not (is_one and against.computes_its_own(module)):
            continue
        if first(against.NORM_APART, "it", module):
            continue
        key = _kind(module)
        if key not in orders:
            orders[key] = _order(module)
        if orders[key] and _parts_agree(module, orders[key]):
            found[name] = orders[key]
    return found


def _kind(module: Any) -> Any:
    """Tell apart what a trace tells apart, numbers in tensors aside."""
    if module is None:
        return None
    hidden = {*_OF_MODULES, "num_features"}  # of the latter the trial of parts knows
    settings = {(k, repr(v)) for k, v in vars(module).items() if k not in hidden}
    tensors = {**module._parameters, **module._buffers}.items()
    is_there = {(key, value is not None) for key, value in tensors}
    children = tuple((key, _kind(child)) for key, child in module._modules.items())
    return type(module), frozenset(settings), frozenset(is_there), children


def _order(module: nn.Module) -> tuple[str, ...]:
    """Return the children that come behind the batch norm, none if more happens."""
    traced: Any = copy.deepcopy(module)
    try:
        # It looks at the axes of its input, which a trace has not; it changes nothing.
        against.forget_check(traced)
        with torch.random.fork_rng(devices=[]):
            return _children_behind(_ChildrenTracer().trace(traced), traced)
    except Exception:  # noqa: BLE001  # whatever it is, it is not taken apart
        return ()


class _ChildrenTracer(fx.Tracer):
    """Follow the data from child to child."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _children_behind(graph: fx.Graph, module: Any) -> tuple[str, ...]:
    """Return the names of the children in a chain behind F.batch_norm, else nothing."""
    nodes = [n for n in graph.nodes if n.op != "get_attr" and not is_size(n)]
    inputs = [n for n in nodes if n.op == "placeholder"]
    if len(inputs) != 1 or len(nodes) < 4:
        return ()
    x, norm, *chain, output = nodes
    if x is not inputs[0] or norm.target is not functional.batch_norm:
        return ()
    given = inspect.signature(functional.batch_norm).bind(*norm.args, **norm.kwargs)
    given.apply_defaults()
    values = given.arguments
    is_its_own = values["input"] is x and values["training"] is False
    is_its_own &= values["eps"] == module.eps
    for key in ("running_mean", "running_var", "weight", "bias"):
        value = values[key]
        has = getattr(module, key) is not None
        got = isinstance(value, fx.Node) and (value.op, value.target) == (
            "get_attr",
            key,
        )
        is_its_own &= got if has else value is None
    before = norm
    for node in chain:
        is_its_own &= node.op == "call_module" and node.args == (before,)
        is_its_own &= not node.kwargs and "." not in str(node.target)
        before = node
    is_its_own &= output.op == "output" and output.args == (before,)
    keys = tuple(str(node.target) for node in chain)
    is_once = len({*keys}) == len(keys)
    return keys if is_its_own and is_once and {*keys} == {*module._modules} else ()


def _parts_agree(module: nn.Module, keys: Sequence[str]) -> bool:
    """Try the parts of a copy on random numbers, in float64."""
    try:
        whole: Any = copy.deepcopy(module).to("cpu", torch.float64)
        apart: Any = copy.deepcopy(whole)
    except Exception:  # noqa: BLE001
        return False
    apart = Opened(against.plain(apart), {key: apart._modules[key] for key in keys})
    draw = torch.Generator().manual_seed(0)
    # Few numbers are enough, but a kernel may be larger.
    for ndim, side in product((4, 3, 5, 2), (2, 8)):
        shape = (2, whole.num_features, *(side,) * (ndim - 2))
        x = torch.randn(shape, generator=draw, dtype=torch.float64)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                y = whole(x.clone())
            except Exception:  # noqa: BLE001, S112  # it wants other axes
                continue
            try:
                return torch.equal(y, apart(x.clone()))
            except Exception:  # noqa: BLE001
                return False
    return False


def take_apart(
    model: nn.Module, opened: Mapping[str, Sequence[str]]
) -> dict[str, nn.Module]:
    """Take modules of a model apart, in place; return what stood there."""
    closed = {name: model.get_submodule(name) for name in opened}
    parts: dict[nn.Module, nn.Module] = {}
    for name, module in closed.items():
        behind: dict[str, Any] = {key: module._modules[key] for key in opened[name]}
        parts[module] = Opened(against.plain(module), behind).eval()
    put(model, parts)
    return closed


def put(model: nn.Module, instead: Mapping[nn.Module, nn.Module]) -> None:
    """Put modules in the place of others, under all names that these have."""
    for parent in [*model.modules(), *instead.values()]:
        for key, child in parent._modules.items():
            if child is not None and child in instead:
                parent._modules[key] = instead[child]


def whole_name(name: str, opened: Mapping[str, Any]) -> str:
    """Return the name of what was taken apart, for that of its batch norm."""
    whole = name.removesuffix(f".{NORM}")
    return whole if whole in opened else name


_SIZES = ("shape", "size", "dim", "ndim", "dtype", "device")


def reads_size(node: fx.Node) -> bool:
    """Return whether a node asks for the shape of a tensor, not for its values."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _SIZES
    return node.op == "call_method" and node.target in _SIZES


def is_size(node: fx.Node) -> bool:
    """Return whether a node gives a size, or what follows from sizes alone."""
    inputs = node.all_input_nodes
    return reads_size(node) or (bool(inputs) and all(map(is_size, inputs)))
