"""Where each batch norm of a model may go, by what stands beside it in the traces."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.parameter import is_lazy

from normbook.layers import folding_obstacles as against
from normbook.layers.folding_apart import is_size, reads_size
from normbook.layers.folding_obstacles import KNOWN, LINEAR, Obstacle, first
from normbook.layers.folding_traces import Traced

_DROPOUT: tuple[type[Any], ...] = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


class FoldedBatchNorm(nn.Identity):
    """What stays in the place of a folded batch norm: it refuses another ``ndim``."""

    def __init__(self, ndim: int) -> None:
        super().__init__()
        self.ndim = ndim

    def forward(self, input: Tensor) -> Tensor:
        """Return the input; raise AssertionError if it has another number of axes."""
        # Unlike raise, it can be traced, scripted and exported.
        torch._assert(  # type: ignore[no-untyped-call]
            input.dim() == self.ndim,
            "a folded batch norm must get inputs of shape (N, D) beside a Linear and "
            "(N, C, ...) beside a convolution, got another number of axes, for which "
            "the model without folding is another function; keep that model.",
        )
        return input

    def extra_repr(self) -> str:
        """Name the number of axes."""
        return f"ndim={self.ndim}"


class Folding(NamedTuple):
    """What becomes of one batch norm: into which layer it goes, or why into none."""

    norm: str  # its name in the model
    layer: str | None = None  # the linear layer that takes it in; with commas: several
    side: str | None = None  # "previous" or "next": where that layer stands
    reason: str = ""  # why none can
    cure: str = ""
    is_idle: bool = False  # the model in evaluation mode never calls it: it may stay

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.layer is None:
            return f"{self.norm}: {self.reason}; cure: {self.cure}"
        layers = "layers" if len(self.layers) > 1 else "layer"
        return f"{self.norm}: into {self.layer}, the {self.side} {layers}"

    @property
    def layers(self) -> tuple[str, ...]:
        """Name the linear layers; several if their outputs are joined behind them."""
        return () if self.layer is None else tuple(self.layer.split(", "))


class Layers:
    """The modules of a model by their names, and which weights they share."""

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, Any] = dict(model.named_modules())
        self.norms = {
            name: module
            for name, module in self.modules.items()
            if isinstance(module, TorchBatchNorm)
        }
        # Weights that are one tensor, or begin at one place in memory.
        self.owners = Counter(
            _place(value)
            for module in self.modules.values()
            for value in module._parameters.values()
            if value is not None
        )


class Route:
    """One trace of a model: what stands in front of a layer, and what behind."""

    def __init__(
        self, graph: fx.Graph, layers: Layers, norms: Sequence[str], boxes: Any
    ) -> None:
        self.layers, self.norms = layers, norms
        self.calls: dict[str, list[fx.Node]] = {}  # in the order of the first
        self.read: set[int] = set()  # tensors that the model reads by itself
        self.inside: set[nn.Module] = set()  # what layers call that are not looked into
        self.functions: list[str] = []
        for node in graph.nodes:
            if node.op == "call_module":
                self.calls.setdefault(str(node.target), []).append(node)
                called = layers.modules[str(node.target)]
                if not isinstance(called, KNOWN) and str(node.target) not in boxes:
                    self.inside.update(m for m in called.modules() if m is not called)
            elif node.op == "get_attr":
                module, _, key = str(node.target).rpartition(".")
                # The trace adds some, which the model has not.
                self.read.add(_place(getattr(layers.modules[module], key, None)))
            elif node.target is functional.batch_norm:
                self.functions.append(node.name)

    def plan(self, excluded: Mapping[str, Obstacle]) -> dict[str, Folding]:
        """Decide for each batch norm, in the order in which they are to be folded."""
        plan: dict[str, Folding] = {}
        for name in self.norms:
            obstacle = excluded.get(name) or first(against.CALLS, "it", self, name)
            if obstacle is not None:
                is_idle = name not in self.calls and not self.reads(name)
                plan[name] = Folding(name, None, None, *obstacle, is_idle)
        in_front: dict[str, Obstacle] = {}
        for name in self.calls:
            if name in self.norms and name not in plan:
                target = self._previous(name, plan)
                if isinstance(target, Obstacle):
                    in_front[name] = target
                else:
                    plan[name] = Folding(name, target, "previous")
        for name, front in reversed(in_front.items()):
            target = self._next(name, plan)
            if isinstance(target, Obstacle):
                reason = f"in front: {front.reason}; behind: {target.reason}"
                cure = front.cure or target.cure or against.KEEP
                plan[name] = Folding(name, None, None, reason, cure)
            else:
                plan[name] = Folding(name, target, "next")
        for name in self.functions:
            reason = "it is a call of torch.nn.functional.batch_norm"
            plan[name] = Folding(name, None, None, reason, "use a batch norm layer")
        return plan

    def _previous(self, name: str, plan: Mapping[str, Folding]) -> str | Obstacle:
        """Go towards the input to linear layers whose outputs are used here only."""
        node = self.calls[name][0]
        found = self._givers(_input(node), node, plan)
        if isinstance(found, Obstacle):
            return found
        modules, norm = self.layers.modules, self.layers.norms[name]
        widths = [norm.num_features]
        if len(found) > 1:
            widths = [against.width(modules[layer], "previous") for layer in found]
        if sum(widths) != norm.num_features or len({*found}) < len(found):
            return Obstacle(f"{', '.join(found)} give other channels than it takes")
        for layer, channels in zip(found, widths, strict=True):
            obstacle = self._against(name, layer, "previous", channels)
            if obstacle is not None:
                return obstacle
        return ", ".join(found)

    def _givers(
        self, source: Any, user: fx.Node, plan: Mapping[str, Folding]
    ) -> list[str] | Obstacle:
        """Return the linear layers whose outputs, joined in order, are a tensor."""
        if not isinstance(source, fx.Node):
            return Obstacle("no tensor of the model")
        is_linear, joint = self._is_linear(source), _joint(source)
        if not (is_linear or joint or self._does_nothing(source, plan)):
            return Obstacle(self._describe(source))
        users = [u for u in source.users if u is not user and not reads_size(u)]
        if users:
            return Obstacle(
                f"the output of {self._name(source)} is used elsewhere, too, by "
                f"{', '.join(map(self._name, users))}",
                "keep it: the other branch needs the output as it is",
            )
        if is_linear:
            return [str(source.target)]
        if joint is None:
            return self._givers(_input(source), source, plan)
        found: list[str] = []
        for piece in joint.pieces:
            given = self._givers(piece, source, plan)
            if isinstance(given, Obstacle):
                where = f"in {self._name(source)}: {given.reason}"
                return given._replace(reason=where)
            found += given
        axes = (self.layers.modules[layer].weight.dim() for layer in found)
        if any(joint.axis % count != 1 for count in axes):
            return Obstacle(f"{self._name(source)} joins along another axis")
        return found

    def _next(self, name: str, plan: Mapping[str, Folding]) -> str | Obstacle:
        """Go towards the output to a linear layer that takes this and nothing else."""
        chain = [self.calls[name][0]]
        while True:
            users = [user for user in chain[-1].users if not reads_size(user)]
            if len(users) != 1:
                names = ", ".join(self._name(user) for user in users) or "nothing"
                return Obstacle(f"its output is used by {names}")
            (user,) = users
            if self._is_linear(user):
                layer, channels = str(user.target), self.layers.norms[name].num_features
                return (
                    self._runs_between(chain, user)
                    or self._against(name, layer, "next", channels)
                    or layer
                )
            if not self._does_nothing(user, plan):
                return Obstacle(self._describe(user))
            chain.append(user)

    def _against(
        self, norm: str, layer: str, side: str, channels: int
    ) -> Obstacle | None:
        """Return what is against a linear layer that should take in channels."""
        it, module, owners = repr(layer), self.layers.modules[layer], self.layers.owners
        is_shared = any(owners[_place(value)] > 1 for value in module.parameters())
        beside = against.Beside(
            module, self.layers.norms[norm], side, channels, is_shared
        )
        return (
            first(against.CALLS, it, self, layer)
            or first((*against.ANY_LINEAR, against.NO_VALUES), it, module)
            or first(against.TAKING_IN, it, beside)
        )

    def reads(self, name: str) -> bool:
        """Return whether the model uses the weights of a layer without calling it."""
        layer = self.layers.modules[name]
        is_read = any(_place(value) in self.read for value in layer.parameters())
        return is_read or layer in self.inside

    def _is_linear(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(
            self.layers.modules[str(node.target)], LINEAR
        )

    def _does_nothing(self, node: fx.Node, plan: Mapping[str, Folding]) -> bool:
        """Return whether it does so by nature, in evaluation, or once folded."""
        if node.op != "call_module":
            return False
        name = str(node.target)
        if name in plan and plan[name].layer is not None:
            return True
        module = self.layers.modules[name]
        is_off = type(module) in _DROPOUT and not module.training
        is_identity = type(module) in (nn.Identity, FoldedBatchNorm)
        return (is_identity or is_off) and not against.has_hooks(module)

    def _runs_between(self, chain: list[fx.Node], layer: fx.Node) -> Obstacle | None:
        """Return what may change the input of a batch norm before it is needed."""
        node = chain[0].next
        # A trace tells neither x += 1 from x = x + 1 nor which tensors are views of x.
        while node is not layer:
            if node not in chain and not is_size(node):
                return Obstacle(
                    f"{self._name(node)} runs between the batch norm and "
                    f"{self._name(layer)}, and may change the input in place",
                    "call it before the batch norm, or later",
                )
            node = node.next
        return None

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return repr(str(node.target))
        return "the end of the model" if node.op == "output" else node.name

    def _describe(self, node: fx.Node) -> str:
        if node.op == "call_module":
            kind = type(self.layers.modules[str(node.target)]).__name__
            return f"{kind} {self._name(node)}, no linear layer"
        if node.op == "placeholder":
            return "the input of the model"
        is_output = node.op == "output"
        return self._name(node) + ("" if is_output else ", a function and no layer")


def planned(traced: Traced, layers: Layers) -> dict[str, Folding]:
    """Decide for each batch norm, in an order in which they can be folded."""
    boxes = traced.boxes
    places = {part.name for part in traced.parts} | {*boxes}
    within: dict[str, list[str]] = {place: [] for place in places}
    for norm in layers.norms:
        steps = norm.split(".")
        holders = (".".join(steps[:count]) for count in range(len(steps))[::-1])
        within[next(holder for holder in holders if holder in places)].append(norm)
    routes = {
        name: [Route(graph, layers, within[name], boxes) for graph in graphs]
        for name, graphs, _ in traced.parts
    }
    read = {place for of_part in routes.values() for r in of_part for place in r.read}
    plan: dict[str, Folding] = {}
    for name, of_part in routes.items():
        for route in of_part:
            route.read = read
        if of_part and not _is_entered(name, routes):
            plan |= _agreed(of_part, layers)
    for box, error in boxes.items():
        cause = str(error).splitlines()[0] if str(error) else repr(error)
        where = f"in {box!r}" if box else "in the model"
        reason = f"it is {where}, which torch.fx cannot trace ({cause})"
        cure = "keep it, or call it and its linear layer there as one module"
        for norm in within[box]:
            plan[norm] = Folding(norm, None, None, reason, cure)
    for norm in layers.norms:
        reason = "the model calls a part of what holds it by itself"
        plan.setdefault(norm, Folding(norm, None, None, reason, against.KEEP))
    return plan


def _is_entered(name: str, routes: Mapping[str, Sequence[Route]]) -> bool:
    """Return whether a part is entered other than by a call of it."""
    return name != "" and any(
        call.startswith(f"{name}.")
        for part, of_part in routes.items()
        if not f"{part}.".startswith(f"{name}.")
        for route in of_part
        for call in route.calls
    )


def _agreed(routes: Sequence[Route], layers: Layers) -> dict[str, Folding]:
    """Decide for each batch norm what is right whichever arguments the model gets."""
    excluded = {
        name: obstacle
        for name in routes[0].norms
        if (obstacle := first(against.NORM, "it", layers.norms[name]))
    }
    while True:
        plans = [route.plan(excluded) for route in routes]
        differing = [
            name
            for name in routes[0].norms
            if len({(plan[name].layer, plan[name].side) for plan in plans}) > 1
        ]
        if not differing:
            agreed = dict(ChainMap(*plans))
            return {
                name: folding._replace(
                    is_idle=all(p.get(name, folding).is_idle for p in plans)
                )
                for name, folding in agreed.items()
            }
        for name in differing:
            excluded[name] = Obstacle(
                "what stands beside it depends on the optional arguments of the model",
                "keep it, or give the model no optional arguments",
            )


class _Joint(NamedTuple):
    """Tensors that are joined along an axis."""

    pieces: Sequence[Any]
    axis: int


def _joint(node: fx.Node) -> _Joint | None:
    if node.target not in (torch.cat, torch.concat, torch.concatenate):
        return None
    pieces: Any
    axis: Any
    pieces, axis, *_ = (*node.args, None, None)
    pieces = node.kwargs.get("tensors", pieces)
    axis = node.kwargs.get("dim", node.kwargs.get("axis", axis))
    is_plain = isinstance(pieces, (list, tuple)) and isinstance(axis, int)
    if not is_plain or "out" in node.kwargs:
        return None
    return _Joint(pieces, axis)


def _input(node: fx.Node) -> Any:
    return node.args[0] if node.args else next(iter(node.kwargs.values()), 0)


def _place(value: Any) -> int:
    """Tell tensors apart, but not two that begin at one place in memory."""
    has_place = isinstance(value, Tensor) and not (is_lazy(value) or value.is_meta)
    return value.data_ptr() if has_place and value.numel() else id(value)
