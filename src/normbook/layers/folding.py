"""Folding: batch norm layers disappear into the linear layers beside them.

:mod:`normbook.folding` has the formulas. Which layer follows which is read from a trace
(:mod:`torch.fx`). What is edited is a copy of the model, so its class, its attributes
and its ``forward`` stay. What stands against it is in ``folding_obstacles``.
"""

from __future__ import annotations

import copy
import inspect
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from normbook.comparison import relative_error
from normbook.errors import NormbookError
from normbook.folding import fold_into_next, fold_into_previous
from normbook.layers import folding_obstacles as against
from normbook.layers.folding_obstacles import LINEAR, Obstacle, first

_KNOWN: tuple[type[Any], ...] = (TorchBatchNorm, *LINEAR)  # they call no others
_DROPOUT: tuple[type[Any], ...] = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_SIZES = ("shape", "size", "dim", "ndim", "dtype", "device")
# Every combination of optional arguments is traced: 64 for six of them.
_MOST_OPTIONS = 6
# Of the largest output, in float64. A wrong folding is wrong in the first digits, and
# rounding in the last. Halfway between leaves room for what a deep network amplifies;
# one that amplifies more is given more room, but never the first digits.
_TOLERANCE = torch.finfo(torch.float64).eps ** 0.5
_ROUNDING = 4 * torch.finfo(torch.float64).eps
_AMPLIFIED, _FIRST_DIGITS = 100, 1e-3


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
    layer: str | None = None  # the linear layer that takes it in
    side: str | None = None  # "previous" or "next": where that layer stands
    reason: str = ""  # why none can
    cure: str = ""
    is_idle: bool = False  # the model in evaluation mode never calls it: it may stay

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.layer is None:
            return f"{self.norm}: {self.reason}; cure: {self.cure}"
        return f"{self.norm}: into {self.layer}, the {self.side} layer"


class FoldingError(NormbookError, ValueError):
    """A model that cannot be folded as it is. The model is as it was.

    ``refused`` holds every batch norm that cannot be, none if the whole model cannot.
    """

    def __init__(self, message: str, refused: tuple[Folding, ...] = ()) -> None:
        super().__init__(message)
        self.refused = refused


def fold_batch_norm(
    model: nn.Module, example: Any = None, *, strict: bool = True
) -> nn.Module:
    r"""Return a copy of a trained model without batch norm that computes the same.

    Each batch norm, of ``torch.nn`` or of this package, is folded into the linear layer
    whose output it normalizes (:func:`~normbook.folding.fold_into_previous`) or,
    failing that, into the one that takes its own output and nothing else
    (:func:`~normbook.folding.fold_into_next`), if all of its outputs meet all of its
    weights: a convolution may not pad with zeros, and a transposed one must have a
    stride of 1 and padding - output_padding >= dilation (kernel - 1). Linear layers are
    ``Linear`` and all convolutions; identity and dropout may stand between. In place of
    a batch norm stays :class:`FoldedBatchNorm`, so the names in a ``state_dict`` stay.
    A subclass whose ``forward`` is its batch norm and then modules that it holds, such
    as an activation, is taken apart, and :class:`Opened` stays in its place. A batch
    norm that the model in evaluation mode never calls, as in a second head, stays as it
    is. Parameters keep dtype, device and ``requires_grad``. A layer without a bias gets
    one. The folded model is for inference.

    The model must be in evaluation mode. With ``example``, an input or a tuple of all
    positional arguments, both models are run in float64 on the CPU, which a model that
    casts to float32 does not allow, and outputs that differ by more than rounding, and
    what the model makes of it, are refused. With ``strict=False``, what cannot be
    folded stays as it is; else a :class:`FoldingError` lists it with reasons, as
    :func:`folding_plan` does. So is a model refused that is in training mode, wrapped
    or scripted, cannot be copied or traced, or looks at what folding changes, and
    weights that no longer fit their dtype.

    A trace knows no shapes: a ``Linear`` before a ``BatchNorm1d`` is taken to give
    (N, D), and given (N, L, D), where they mean other axes by their channels, the
    folded model raises. Nor does it see whether the model asks for the mode of
    autograd, or for attributes that are changed later. Optional arguments of
    ``forward`` may have any values, ``None`` and booleans both; where the model decides
    by others, such as ``mode="full"``, it is not folded. While it is traced, an
    argument without default is neither a ``list`` nor ``True``.

    Source: Ioffe and Szegedy (2015), Algorithm 2, step 11; Jacob et al. (2018), section
    3.2; book, chapter *Folding*.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)).eval()
    >>> values = {"0.weight": [[2.0]], "0.bias": [5.0], "1.running_mean": [3.0]}
    >>> values |= {"1.running_var": [4.0], "1.weight": [6.0], "1.bias": [1.0]}  # k = 3
    >>> _ = model.load_state_dict({k: torch.tensor(v) for k, v in values.items()})
    >>> folded = fold_batch_norm(model)
    >>> folded[0].weight.item(), folded[0].bias.item()  # 3 * 2 and 3 * (5 - 3) + 1
    (6.0, 7.0)
    >>> folded[1]
    FoldedBatchNorm(ndim=2)
    """
    folded, plan = _fold(model)
    if example is not None:
        _compare(model, example)
    refused = tuple(f for f in plan if f.layer is None and not f.is_idle)
    if refused and strict:
        raise FoldingError(
            "every batch norm must be taken in by a linear layer beside it, got "
            f"{len(refused)} of {len(plan)} that cannot be; with strict=False these "
            "stay, and the others are folded:\n  " + "\n  ".join(map(str, refused)),
            refused,
        )
    return folded


def folding_plan(model: nn.Module) -> tuple[Folding, ...]:
    r"""Return where each batch norm of a model would go, or why it cannot be folded.

    They come in the order in which the model names them; then calls of
    ``torch.nn.functional.batch_norm``, which are never folded. Errors are those of
    :func:`fold_batch_norm` with ``strict=False``.

    >>> norm = nn.BatchNorm1d(5)
    >>> model = nn.Sequential(nn.Linear(3, 5), norm, nn.ReLU(), nn.BatchNorm1d(5))
    >>> print(*folding_plan(model.eval()), sep="\n")
    1: into 0, the previous layer
    3: in front: ReLU '2', no linear layer; behind: the end of the model; cure: keep it
    """
    return _fold(model)[1]


def _fold(model: nn.Module) -> tuple[nn.Module, tuple[Folding, ...]]:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; pass the "
            "trained model."
        )
    obstacle = first(against.MODEL, "", model)
    if obstacle is not None:
        raise FoldingError(f"{obstacle.reason}; {obstacle.cure}.")
    try:
        # A model may keep what it computes, so that a trace is left in it.
        folded, traced = copy.deepcopy(model), copy.deepcopy(model)
    except Exception as error:
        its = [first(against.ANY_LAYER, repr(k), m) for k, m in model.named_modules()]
        causes = [", ".join(it) for it in its if it and it.cure != against.KEEP]
        cure = "; ".join(causes) or "keep results of computations out of the model"
        raise FoldingError(
            f"model must be such that copy.deepcopy copies it, got {error}; {cure}."
        ) from error
    graphs = _traces(traced)
    orders = {name: _order(traced, name) for name in _subclasses(traced)}
    opened = {name: keys for name, keys in orders.items() if keys}
    if opened:
        apart = copy.deepcopy(model)
        _open(apart, opened)
        if _goes_the_same_way(apart, graphs):
            traced, graphs = apart, _traces(apart)
        else:  # it asks for what it is that would be taken apart
            opened = {}
    closed = _open(folded, opened)
    # Looked at are the tensors of the model: copies share no memory where these do.
    looked_at = _with_the_same_tensors(model, {})
    _open(looked_at, opened)
    layers = _Layers(looked_at)
    plan = _agreed([_Route(graph, layers) for graph in graphs], layers)
    with torch.no_grad():
        for folding in plan.values():
            if folding.layer is not None:
                _take_in(folded, folding)
    _check_same_way(traced, graphs, copy.deepcopy(folded))
    for name in opened:
        if plan[f"{name}.{_NORM}"].layer is None:
            _put(folded, name, closed[name])
    named = (plan[name] for name in dict.fromkeys((*layers.norms, *plan)))
    return folded, tuple(f._replace(norm=_outside(f.norm, opened)) for f in named)


# --- subclasses that are a batch norm and what comes behind it

_NORM = "batch_norm"  # the name of the first part of what is taken apart


class Opened(nn.Module):
    """A batch norm, and the modules behind it, which keep their names."""

    def __init__(self, norm: nn.Module, behind: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.add_module(_NORM, norm)
        for key, module in behind.items():
            self.add_module(key, module)

    def forward(self, input: Tensor) -> Tensor:
        """Call one after the other."""
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input


def _subclasses(model: nn.Module) -> list[str]:
    """Return the names of the batch norms that have a ``forward`` of their own."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, TorchBatchNorm)
        and name
        and against.computes_its_own(module)
        and not first(against.NORM_APART, "it", module)
    ]


def _order(model: nn.Module, name: str) -> tuple[str, ...]:
    """Return the children that come behind the batch norm, none if more happens.

    Read from a trace, and tried: the parts compute what the module does.
    """
    module: Any = copy.deepcopy(model.get_submodule(name)).to("cpu", torch.float64)
    try:
        # It looks at the axes of its input, which a trace has not; it changes nothing.
        against.forget_check(module)
        with torch.random.fork_rng(devices=[]):
            graph = _ChildrenTracer().trace(module)
            keys = _children_behind(graph, module)
            if keys and _parts_agree(model.get_submodule(name), keys):
                return keys
    except Exception:  # noqa: BLE001  # whatever it is, it is not taken apart
        return ()
    return ()


class _ChildrenTracer(fx.Tracer):
    """Follow the data from child to child."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _children_behind(graph: fx.Graph, module: Any) -> tuple[str, ...]:
    """Return the names of the children in a chain behind F.batch_norm, else nothing."""
    nodes = [n for n in graph.nodes if n.op != "get_attr" and not _is_size(n)]
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
    whole: Any = copy.deepcopy(module).to("cpu", torch.float64)
    apart = copy.deepcopy(whole)
    apart = Opened(against.plain(apart), {key: apart._modules[key] for key in keys})
    draw = torch.Generator().manual_seed(0)
    for ndim in (4, 3, 5, 2):
        shape = (2, whole.num_features, *(8,) * (ndim - 2))
        x = torch.randn(shape, generator=draw, dtype=torch.float64)
        with torch.no_grad():
            try:
                y = whole(x.clone())
            except Exception:  # noqa: BLE001, S112  # it wants other axes
                continue
            return torch.equal(y, apart(x.clone()))
    return False


def _open(
    model: nn.Module, opened: Mapping[str, Sequence[str]]
) -> dict[str, nn.Module]:
    """Take modules of a model apart, in place; return what stood there."""
    closed = {name: model.get_submodule(name) for name in opened}
    for name, module in closed.items():
        behind: dict[str, Any] = {key: module._modules[key] for key in opened[name]}
        _put(model, name, Opened(against.plain(module), behind).eval())
    return closed


def _goes_the_same_way(apart: nn.Module, graphs: Sequence[fx.Graph]) -> bool:
    """Return whether a model does with its parts what it did with the whole."""
    try:
        return list(map(str, _traces(apart, _Closed))) == list(map(str, graphs))
    except FoldingError:
        return False


def _with_the_same_tensors(module: Any, made: dict[int, Any]) -> Any:
    """Copy a tree of modules, and nothing that they hold."""
    if module is not None and id(module) not in made:
        made[id(module)] = new = object.__new__(type(module))
        children = module._modules.items()
        new.__dict__ = dict(vars(module))
        new._modules = {k: _with_the_same_tensors(m, made) for k, m in children}
    return None if module is None else made[id(module)]


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of another one, under all names that this has."""
    before = model.get_submodule(name)
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is before:
                parent._modules[key] = module


def _outside(name: str, opened: Mapping[str, Any]) -> str:
    whole = name.removesuffix(f".{_NORM}")
    return whole if whole in opened else name


def _take_in(model: nn.Module, folding: Folding) -> None:
    """Change the weights of the linear layer, and take the batch norm out."""
    modules: dict[str, Any] = dict(model.named_modules())
    norm, layer = modules[folding.norm], modules[str(folding.layer)]
    fold = fold_into_previous if folding.side == "previous" else fold_into_next
    w, b = fold(
        against.exact(layer.weight),
        against.exact(layer.bias),
        *against.statistics(norm),
        is_transposed=isinstance(layer, against.TRANSPOSED),
        groups=getattr(layer, "groups", 1),
    )
    w, b = w.to(layer.weight), b.to(layer.weight)
    if not bool(w.isfinite().all() & b.isfinite().all()):
        raise FoldingError(
            f"the folded weights of {folding.layer!r} must be finite in "
            f"{w.dtype}, got infinity or NaN; fold in float32 and convert the "
            "folded model, and see that the weights themselves are finite."
        )
    layer.weight.copy_(w)
    if layer.bias is None:
        layer.bias = nn.Parameter(b, requires_grad=layer.weight.requires_grad)
    else:
        layer.bias.copy_(b)
    rest = FoldedBatchNorm(layer.weight.dim()).eval()
    for parent in modules.values():
        for key, child in parent._modules.items():
            if child is norm:
                setattr(parent, key, rest)


class _Tracer(fx.Tracer):
    """Follow the data from one layer to the next, without looking into layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_ours = m.__module__.startswith("normbook.layers.")
        is_ours = is_ours and not isinstance(m, Opened)
        is_known = is_ours or isinstance(m, _KNOWN)
        return is_known or super().is_leaf_module(m, module_qualified_name)


class _Closed(_Tracer):
    """Does not look into what was taken apart."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_apart = isinstance(m, Opened)
        return is_apart or super().is_leaf_module(m, module_qualified_name)


def _traces(model: nn.Module, tracer: type[_Tracer] = _Tracer) -> list[fx.Graph]:
    """Trace with each optional argument at its default, and with any other value."""
    choices: list[list[dict[str, Any]]] = []
    for name, parameter in inspect.signature(model.forward).parameters.items():
        value = parameter.default
        if isinstance(value, bool):
            choices.append([{name: value}, {name: not value}])
        elif value is None or isinstance(value, (int, float, str)):
            choices.append([{name: value}, {}])  # left open, it is any value
    if len(choices) > _MOST_OPTIONS:
        raise FoldingError(
            f"forward must have at most {_MOST_OPTIONS} optional arguments, as each "
            f"combination is traced, got {len(choices)}; fold a module around the "
            "model whose forward fixes those that you do not use."
        )
    ways = [dict(ChainMap(*choice)) for choice in product(*choices)]
    try:
        # Random numbers that forward draws are the same in all traces, and the state
        # of the generator is put back.
        with torch.random.fork_rng(devices=[]):
            return [tracer().trace(model, concrete_args=way or None) for way in ways]
    except Exception as error:
        raise FoldingError(
            "model must be such that torch.fx can trace it, so that it is known which "
            f"layer follows which, got {error!r}; fold its parts, for example "
            "model.features = fold_batch_norm(model.features), or a module around it "
            "whose forward fixes the optional arguments."
        ) from error


def _check_same_way(
    model: nn.Module, graphs: Sequence[fx.Graph], folded: nn.Module
) -> None:
    """Refuse a model that goes another way through its layers once it is folded."""
    cause: FoldingError | None = None
    try:
        is_same = list(map(str, graphs)) == list(map(str, _traces(folded)))
    except FoldingError as error:  # the layer is gone
        is_same, cause = False, error
    pairs = zip(_constants(model), _constants(folded), strict=is_same)
    if not (is_same and all(torch.equal(a, b) for a, b in pairs)):
        raise FoldingError(
            "model must go the same way once it is folded, got a forward that asks for "
            "what folding changes, such as the kind of a layer, its weights, eps, or "
            "whether it has a bias; fold its parts."
        ) from cause


def _constants(model: nn.Module) -> list[Tensor]:
    """Return the tensors that are no parameters and that a trace has met."""
    return [v for k, v in vars(model).items() if k.startswith("_tensor_constant")]


def _compare(model: nn.Module, example: Any) -> None:
    """Refuse to fold what gives another output for an example, in float64."""
    args = example if isinstance(example, tuple) else (example,)

    def doubled(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        dtype = torch.float64 if value.is_floating_point() else None
        return value.detach().to("cpu", dtype, copy=True)

    def run(version: nn.Module, rule: str, cure: str) -> list[Any]:
        try:
            with torch.no_grad():
                return tree_leaves(version(*tree_map(doubled, args)))
        except Exception as error:
            raise FoldingError(f"{rule}, got {error!r}; {cure}.") from error

    original = copy.deepcopy(model).to("cpu", torch.float64)
    folded, _ = _fold(original)
    rule = "example must be an input of the model, in float64"
    cure = "pass a tensor, or a tuple of all positional arguments"
    y = run(original, rule, cure)
    rule = "the folded model must take the example, as the model does"
    z = run(folded, rule, "keep the model, or fold its parts")
    # How far rounding of the input alone moves the outputs.
    args = tree_map(lambda value: _rounded(doubled(value)), args)
    y_moved = run(original, rule, cure)
    pairs = [
        (relative_error(a, b), relative_error(c, b))
        for a, b, c in zip(z, y, y_moved, strict=True)
        if isinstance(a, Tensor) and a.numel() > 0
    ]
    errors = [error for error, _ in pairs]
    if not (errors and all(error < _room(own) for error, own in pairs)):
        differences = ", ".join(f"{error:.1g}" for error in errors) or "no output"
        raise FoldingError(
            "the folded model must give the same output for the example, got "
            f"{differences} as the difference, as a share of the largest value; fold "
            "parts of the model."
        )


def _rounded(value: Any) -> Any:
    """Return a number of the input as another rounding would have it."""
    is_real = isinstance(value, Tensor) and value.is_floating_point()
    return value * (1 + _ROUNDING) if is_real else value


def _room(own: float) -> float:
    """Return what a model may differ by that moves so far when its input is rounded."""
    return float(max(_TOLERANCE, min(_AMPLIFIED * own, _FIRST_DIGITS)))


class _Layers:
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


class _Route:
    """One trace of a model: what stands in front of a layer, and what behind."""

    def __init__(self, graph: fx.Graph, layers: _Layers) -> None:
        self.layers = layers
        self.calls: dict[str, list[fx.Node]] = {}  # in the order of the first
        self.read: set[int] = set()  # tensors that the model reads by itself
        self.inside: set[nn.Module] = set()  # what layers call that are not looked into
        self.functions: list[str] = []
        for node in graph.nodes:
            if node.op == "call_module":
                self.calls.setdefault(str(node.target), []).append(node)
                called = layers.modules[str(node.target)]
                if not isinstance(called, _KNOWN):
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
        for name in self.layers.norms:
            obstacle = excluded.get(name) or first(against.CALLS, "it", self, name)
            if obstacle is not None:
                is_idle = name not in self.calls and not self.reads(name)
                plan[name] = Folding(name, None, None, *obstacle, is_idle)
        in_front: dict[str, Obstacle] = {}
        for name in self.calls:
            if name in self.layers.norms and name not in plan:
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
        """Go towards the input to a linear layer whose output is used here only."""
        node = self.calls[name][0]
        while True:
            source = node.args[0] if node.args else next(iter(node.kwargs.values()), 0)
            if not isinstance(source, fx.Node):
                return Obstacle("no tensor of the model")
            is_linear = self._is_linear(source)
            if not (is_linear or self._does_nothing(source, plan)):
                return Obstacle(self._describe(source))
            users = [user for user in source.users if not _reads_size(user)]
            if len(users) > 1:
                others = ", ".join(self._name(user) for user in users if user != node)
                return Obstacle(
                    f"the output of {self._name(source)} is used elsewhere, too, by "
                    f"{others}",
                    "keep it: the other branch needs the output as it is",
                )
            if is_linear:
                return self._checked(name, str(source.target), "previous")
            node = source

    def _next(self, name: str, plan: Mapping[str, Folding]) -> str | Obstacle:
        """Go towards the output to a linear layer that takes this and nothing else."""
        chain = [self.calls[name][0]]
        while True:
            users = [user for user in chain[-1].users if not _reads_size(user)]
            if len(users) != 1:
                names = ", ".join(self._name(user) for user in users) or "nothing"
                return Obstacle(f"its output is used by {names}")
            (user,) = users
            if self._is_linear(user):
                return self._runs_between(chain, user) or self._checked(
                    name, str(user.target), "next"
                )
            if not self._does_nothing(user, plan):
                return Obstacle(self._describe(user))
            chain.append(user)

    def _checked(self, norm: str, layer: str, side: str) -> str | Obstacle:
        """Return the linear layer, or what is against it."""
        it, module, owners = repr(layer), self.layers.modules[layer], self.layers.owners
        is_shared = any(owners[_place(value)] > 1 for value in module.parameters())
        beside = against.Beside(module, self.layers.norms[norm], side, is_shared)
        return (
            first(against.CALLS, it, self, layer)
            or first((*against.ANY_LAYER, against.NO_VALUES), it, module)
            or first(against.TAKING_IN, it, beside)
            or layer
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
            if node not in chain and not _is_size(node):
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


def _agreed(routes: Sequence[_Route], layers: _Layers) -> dict[str, Folding]:
    """Decide for each batch norm what is right whichever arguments the model gets."""
    excluded = {
        name: obstacle
        for name, norm in layers.norms.items()
        if (obstacle := first(against.NORM, "it", norm))
    }
    while True:
        plans = [route.plan(excluded) for route in routes]
        differing = [
            name
            for name in layers.norms
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


def _reads_size(node: fx.Node) -> bool:
    """Return whether a node asks for the shape of a tensor, not for its values."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _SIZES
    return node.op == "call_method" and node.target in _SIZES


def _is_size(node: fx.Node) -> bool:
    """Return whether a node gives a size, or what follows from sizes alone."""
    inputs = node.all_input_nodes
    return _reads_size(node) or (bool(inputs) and all(map(_is_size, inputs)))


def _place(value: Any) -> int:
    """Tell tensors apart, but not two that begin at one place in memory."""
    has_place = isinstance(value, Tensor) and not (is_lazy(value) or value.is_meta)
    return value.data_ptr() if has_place and value.numel() else id(value)
