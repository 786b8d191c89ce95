r"""Folding: batch norm layers disappear into the linear layers beside them.

In evaluation batch norm is a scale and a shift for each channel. A linear layer in
front of it or behind it can take both in, and the layer is gone. The formulas are
:func:`normbook.batch_norm.fold_into_previous` and
:func:`normbook.batch_norm.fold_into_next`; here whole models are folded.

Which layer follows which is read from a trace (:mod:`torch.fx`). What is edited is a
copy of the model, so its class, its attributes and its ``forward`` stay.
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
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves, tree_map

from normbook.comparison import relative_error
from normbook.errors import NormbookError
from normbook.folding import fold_into_next, fold_into_previous, scale_and_shift
from normbook.layers.base import DTYPES
from normbook.layers.batch_norm import _BatchNorm

__all__ = [
    "FoldedBatchNorm",
    "Folding",
    "FoldingError",
    "fold_batch_norm",
    "folding_plan",
]

_CONVOLUTIONS: tuple[type[Any], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: tuple[type[Any], ...] = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_LINEAR: tuple[type[Any], ...] = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)
_KNOWN: tuple[type[Any], ...] = (TorchBatchNorm, *_LINEAR)  # they call no others
_DROPOUT: tuple[type[Any], ...] = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
# What the layers do that are looked at: in evaluation, a scale and a shift for each
# channel, or a linear map. A layer with a method of its own may do anything.
_METHODS = {
    TorchBatchNorm.forward,
    nn.SyncBatchNorm.forward,
    _BatchNorm.forward,
    *(layer.forward for layer in _LINEAR),
    *(getattr(layer, "_conv_forward", None) for layer in _LINEAR),
}
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_SIZES = ("shape", "size", "dim", "ndim", "dtype", "device")
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
# Every combination of optional arguments is traced: 64 for six of them.
_MOST_OPTIONS = 6
# Of the largest output, in float64. A wrong folding is wrong in the first digits, and
# rounding in the last. Halfway between leaves room for what a deep network amplifies.
_TOLERANCE = torch.finfo(torch.float64).eps ** 0.5


class FoldedBatchNorm(nn.Identity):
    """What stays in the place of a folded batch norm: it checks the number of axes.

    ``BatchNorm1d`` and ``Linear`` both take (N, D) and (N, L, D), but only in (N, D) do
    they mean the same axis by their channels. A trace knows no shapes.

    Parameters
    ----------
    ndim : int
        Axes of the inputs for which it was folded: 2 beside a ``Linear``, 3 to 5 beside
        a convolution.
    """

    def __init__(self, ndim: int) -> None:
        super().__init__()
        self.ndim = ndim

    def forward(self, input: Tensor) -> Tensor:
        """Give the input; raise AssertionError if it has another number of axes."""
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
    """What becomes of one batch norm.

    Attributes
    ----------
    norm : str
        Its name in the model.
    layer : str or None
        The linear layer that takes it in; None if none can.
    side : "previous", "next" or None
        Where that layer stands, seen from the batch norm.
    reason, cure : str
        Why none can, and what to do about it.
    """

    norm: str
    layer: str | None = None
    side: str | None = None
    reason: str = ""
    cure: str = ""

    def __str__(self) -> str:
        """Say it in a sentence."""
        if self.layer is None:
            return f"{self.norm}: {self.reason}; cure: {self.cure}"
        return f"{self.norm}: into {self.layer}, the {self.side} layer"


class FoldingError(NormbookError, ValueError):
    """A model that cannot be folded as it is. The model is as it was.

    Attributes
    ----------
    refused : tuple of Folding
        Every batch norm that cannot be folded; empty if the whole model cannot.
    """

    def __init__(self, message: str, refused: tuple[Folding, ...] = ()) -> None:
        super().__init__(message)
        self.refused = refused


_KEEP = "keep it"


class _Obstacle(NamedTuple):
    """Why not, and what to do; no cure where nothing but keeping the layer helps."""

    reason: str
    cure: str = ""


def fold_batch_norm(
    model: nn.Module, example: Any = None, *, strict: bool = True
) -> nn.Module:
    r"""Give a copy of a trained model without batch norm that computes the same.

    Each batch norm is folded into the linear layer whose output it normalizes,

    .. math::

        W' = k W, \qquad b' = k (b - m) + \beta, \qquad
        k = \frac{\gamma}{\sqrt{v + \epsilon}},

    or, failing that, into the one that takes its own output and nothing else:
    :math:`W' = W k`, :math:`b' = b + W(\beta - k m)`, if all of its outputs meet all
    of its weights: a convolution may not pad with zeros, and a transposed one must have
    a stride of 1 and padding - output_padding >= dilation (kernel - 1). In its place
    stays :class:`FoldedBatchNorm`, so the names in a ``state_dict`` stay, too.
    Parameters keep dtype, device and ``requires_grad``. A layer without a bias gets
    one.

    Linear layers are ``Linear``, ``Conv1d`` to ``Conv3d`` and ``ConvTranspose1d`` to
    ``ConvTranspose3d``; in front of a batch norm they may have any stride, dilation,
    groups and padding. Batch norm is that of ``torch.nn`` and of this package;
    synchronized, ghost, renormalized and unbiased batch norm are the same layer in
    evaluation. Identity and dropout may stand between. Other normalizations are not
    touched.

    Parameters
    ----------
    model : Module
        In evaluation mode.
    example : Tensor or tuple, optional
        An input of the model, or its positional arguments. With it, both models are
        run in float64 on the CPU, which a model that casts to float32 does not allow,
        and outputs that differ by more than rounding are refused.
    strict : bool
        If False, what cannot be folded stays as it is instead of raising.
        :func:`folding_plan` tells what that is.

    Returns
    -------
    Module
        Of the class of ``model``, which is not touched.

    Raises
    ------
    TypeError
        If ``model`` is no module.
    FoldingError
        If the model is in training mode, cannot be copied or traced, is wrapped or
        scripted, looks at what folding changes, gives another output for ``example``,
        or the folded weights do not fit their dtype; with ``strict``, also if some
        batch norm cannot be folded. All of them are listed, with reasons.

    Notes
    -----
    A ``Linear`` before a ``BatchNorm1d`` is taken to give (N, D), as a trace knows no
    shapes. Given (N, L, D) batch norm would act on axis L, so there the folded model
    raises. Neither does a trace see whether the model asks for the mode of autograd, or
    for attributes that are changed later. An ``example`` shows what it can.

    Optional arguments of ``forward`` may have any values, ``None`` and booleans both.
    Where the model decides by others, such as ``mode="full"``, it is not folded. While
    it is traced, an argument without default is neither a ``list`` nor ``True``.

    Folded models are for inference: training goes other ways without batch norm.

    Source: Ioffe and Szegedy (2015), Algorithm 2, step 11; Jacob et al. (2018), section
    3.2; book, chapter *Folding*.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)).eval()
    >>> _ = model.load_state_dict(
    ...     {
    ...         "0.weight": torch.tensor([[2.0]]),
    ...         "0.bias": torch.tensor([5.0]),
    ...         "1.running_mean": torch.tensor([3.0]),
    ...         "1.running_var": torch.tensor([4.0]),
    ...         "1.weight": torch.tensor([6.0]),  # k = 6 / 2
    ...         "1.bias": torch.tensor([1.0]),
    ...     }
    ... )
    >>> folded = fold_batch_norm(model)
    >>> folded
    Sequential(
      (0): Linear(in_features=1, out_features=1, bias=True)
      (1): FoldedBatchNorm(ndim=2)
    )
    >>> folded[0].weight.item(), folded[0].bias.item()  # 3 * 2 and 3 * (5 - 3) + 1
    (6.0, 7.0)
    """
    folded, plan = _fold(model)
    if example is not None:
        _compare(model, example)
    refused = tuple(folding for folding in plan if folding.layer is None)
    if refused and strict:
        raise FoldingError(
            "every batch norm must be taken in by a linear layer beside it, got "
            f"{len(refused)} of {len(plan)} that cannot be; with strict=False these "
            "stay, and the others are folded:\n  " + "\n  ".join(map(str, refused)),
            refused,
        )
    return folded


def folding_plan(model: nn.Module) -> tuple[Folding, ...]:
    r"""Tell where each batch norm of a model would go, or why it cannot be folded.

    Parameters
    ----------
    model : Module
        In evaluation mode.

    Returns
    -------
    tuple of Folding
        In the order in which the model names them; then calls of
        ``torch.nn.functional.batch_norm``, which are never folded.

    Raises
    ------
    TypeError, FoldingError
        As :func:`fold_batch_norm` with ``strict=False``.

    Examples
    --------
    >>> model = nn.Sequential(
    ...     nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.BatchNorm2d(5)
    ... )
    >>> print(*folding_plan(model.eval()), sep="\n")
    1: into 0, the previous layer
    3: in front: ReLU '2', no linear layer; behind: the end of the model;
    cure: keep it
    """
    return _fold(model)[1]


def _fold(model: nn.Module) -> tuple[nn.Module, tuple[Folding, ...]]:
    _check_model(model)
    try:
        # A model may keep what it computes, so that a trace is left in it.
        folded, traced = copy.deepcopy(model), copy.deepcopy(model)
    except Exception as error:
        found = [_changed(m, repr(name)) for name, m in model.named_modules()]
        causes = [f"{it.reason}, {it.cure}" for it in found if it and it.cure != _KEEP]
        raise FoldingError(
            f"model must be such that copy.deepcopy copies it, got {error}; "
            + ("; ".join(causes) or "keep results of computations out of the model")
            + "."
        ) from error
    layers = _Layers(model, folded)
    graphs = _traces(traced)
    plan = _agreed([_Route(graph, layers) for graph in graphs], layers)
    with torch.no_grad():
        for folding in plan.values():
            if folding.layer is not None:
                layers.take_in(folding)
    _check_same_way(traced, graphs, copy.deepcopy(folded))
    return folded, tuple(plan[name] for name in dict.fromkeys((*layers.norms, *plan)))


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; pass the "
            "trained model."
        )
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise FoldingError(
            f"model must be Python code to be folded, got a {name}; fold first, and "
            "script the folded model."
        )
    if isinstance(model, _WRAPPERS):
        raise FoldingError(
            f"model must be the model itself, got a {name} around it; fold "
            "model.module, and wrap the folded one."
        )
    if "_orig_mod" in model._modules:
        raise FoldingError(
            f"model must be the model itself, got a {name} of torch.compile; fold "
            "model._orig_mod, and compile the folded one."
        )
    if isinstance(model, TorchBatchNorm):
        raise FoldingError(
            f"model must hold linear layers, got a {name} alone; fold the model that "
            "it belongs to."
        )
    if model.training:
        raise FoldingError(
            "model must be in evaluation mode, got training mode, in which batch norm "
            "uses the statistics of each batch and not those that are folded; call "
            "model.eval() first."
        )
    if "forward" in vars(model):
        raise FoldingError(
            "model must compute what the forward method of its class does, got one "
            "that was given another; restore it with del model.forward."
        )
    holders = [
        repr(part) if part else "the model"
        for part, module in model.named_modules()
        if _has_hooks(module) and any(True for _ in module.children())
    ]
    if holders:
        raise FoldingError(
            "model must have no hooks on modules that hold others, as a hook may read "
            f"or change what folding changes, got some on {', '.join(holders)}; "
            "remove them, and register them on the folded model."
        )


class _Tracer(fx.Tracer):
    """Follow the data from one layer to the next, without looking into layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_ours = m.__module__.startswith("normbook.layers.")
        is_known = is_ours or isinstance(m, _KNOWN)
        return is_known or super().is_leaf_module(m, module_qualified_name)


def _traces(model: nn.Module) -> list[fx.Graph]:
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
            return [_Tracer().trace(model, concrete_args=way or None) for way in ways]
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


def _has_values(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() > 0


def _constants(model: nn.Module) -> list[Tensor]:
    """Give the tensors that are no parameters and that a trace has met."""
    return [v for k, v in vars(model).items() if k.startswith("_tensor_constant")]


def _compare(model: nn.Module, example: Any) -> None:
    """Refuse to fold what gives another output for an example.

    Both run in float64, so that what differs is not due to rounding.
    """

    def exact(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        dtype = torch.float64 if value.is_floating_point() else None
        return value.detach().to("cpu", dtype, copy=True)

    args = example if isinstance(example, tuple) else (example,)
    original = copy.deepcopy(model).to("cpu", torch.float64)
    folded, _ = _fold(original)
    with torch.no_grad():
        try:
            y = tree_leaves(original(*tree_map(exact, args)))
        except Exception as error:
            raise FoldingError(
                f"example must be an input of the model, in float64, got {error!r}; "
                "pass a tensor, or a tuple of all positional arguments."
            ) from error
        try:
            z = tree_leaves(folded(*tree_map(exact, args)))
        except Exception as error:
            raise FoldingError(
                "the folded model must take the example, as the model does, got "
                f"{error!r}; keep the model, or fold its parts."
            ) from error
    pairs = zip(z, y, strict=True)
    found = [relative_error(a, b) for a, b in pairs if _has_values(a)]
    if not (found and all(off < _TOLERANCE for off in found)):
        differences = ", ".join(f"{off:.1g}" for off in found) or "no output"
        raise FoldingError(
            "the folded model must give the same output for the example, got "
            f"{differences} as the difference, as a share of the largest value; fold "
            "parts of the model."
        )


class _Layers:
    """The modules of a model by their names, what each is good for, and their copies.

    Looked at is the model itself: copies share no memory where the originals do.
    """

    def __init__(self, model: nn.Module, folded: nn.Module) -> None:
        self.model = model
        self.copies: dict[str, Any] = dict(folded.named_modules())
        self.modules: dict[str, Any] = dict(model.named_modules())
        self.norms: dict[str, Any] = {
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

    def take_in(self, folding: Folding) -> None:
        """Change the weights of the linear layer, and take the batch norm out."""
        norm, layer = self.copies[folding.norm], self.copies[str(folding.layer)]
        bias = None if layer.bias is None else _exact(layer.bias)
        is_behind = folding.side == "previous"
        w, b = (fold_into_previous if is_behind else fold_into_next)(
            _exact(layer.weight),
            bias,
            *_statistics(norm),
            is_transposed=isinstance(layer, _TRANSPOSED),
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
        left = FoldedBatchNorm(layer.weight.dim()).eval()
        for parent in self.copies.values():
            for key, child in parent._modules.items():
                if child is norm:
                    setattr(parent, key, left)

    def of_norm(self, name: str) -> _Obstacle | None:
        """Tell why a batch norm is no constant scale and shift, if it is not."""
        norm = self.norms[name]
        found = _changed(norm, "it")
        if found is not None:
            return found
        if norm.training:
            return _Obstacle(
                "it is in training mode and uses the statistics of each batch",
                "call eval() on the whole model",
            )
        if norm.running_mean is None or norm.running_var is None:
            return _Obstacle(
                "it has no running statistics (track_running_stats=False) and uses "
                "those of each batch",
                "train with track_running_stats=True",
            )
        if norm.running_mean.is_meta:
            return _no_values("it")
        # Where the scale is infinite, so is the shift, or it is NaN.
        if not bool(scale_and_shift(*_statistics(norm)).shift.isfinite().all()):
            return _Obstacle(
                "its statistics, gain or bias are not finite, or its variance + eps is "
                "not positive",
                "train or recalibrate it before you fold",
            )
        return None

    def of_linear(self, name: str) -> _Obstacle | None:
        """Tell why the weights of a linear layer must not be changed, if so."""
        layer = self.modules[name]
        found = _changed(layer, repr(name))
        if found is not None:
            return found
        for value in layer.parameters():
            if self.owners[_place(value)] > 1:
                return _Obstacle(
                    f"{name!r} shares its weights with another layer",
                    "give it weights of its own, as in layer.weight = "
                    "nn.Parameter(layer.weight.detach().clone())",
                )
            if value.dtype not in DTYPES:
                return _Obstacle(
                    f"the weights of {name!r} have dtype {value.dtype}",
                    "fold in floating point",
                )
            if value.is_meta:
                return _no_values(repr(name))
        return None

    def fits(self, norm: str, layer: str, side: str) -> bool:
        """Tell whether channels of the one are channels of the other."""
        linear, batch_norm = self.modules[layer], self.norms[norm]
        is_dense = isinstance(linear, nn.Linear)
        axes = 2 if is_dense else linear.weight.dim()
        try:
            batch_norm._check_input_dim(torch.empty((1,) * axes, device="meta"))
        except (ValueError, NotImplementedError):
            return False
        end = "out" if side == "previous" else "in"
        width = getattr(linear, f"{end}_{'features' if is_dense else 'channels'}")
        return bool(width == batch_norm.num_features)


class _Route:
    """One trace of a model: what stands in front of a layer, and what behind."""

    def __init__(self, graph: fx.Graph, layers: _Layers) -> None:
        self.layers = layers
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.calls: dict[str, list[fx.Node]] = {}
        self.read: set[int] = set()  # tensors that the model reads by itself
        self.inside: set[nn.Module] = set()  # what layers call that are not looked into
        self.functions = []
        for node in graph.nodes:
            if node.op == "call_module":
                self.calls.setdefault(str(node.target), []).append(node)
                called = layers.modules[str(node.target)]
                if not isinstance(called, _KNOWN):
                    self.inside.update(m for m in called.modules() if m is not called)
            elif node.op == "get_attr":
                self.read.add(_place(_attribute(layers.model, str(node.target))))
            elif node.target is functional.batch_norm:
                self.functions.append(node.name)

    def plan(self, excluded: Mapping[str, _Obstacle]) -> dict[str, Folding]:
        """Decide for each batch norm, in the order in which they are to be folded."""
        found: dict[str, Folding] = {}
        nodes: dict[str, fx.Node] = {}
        for name in self.layers.norms:
            obstacle = excluded.get(name) or self._of_calls(name, "it")
            if obstacle is None:
                nodes[name] = self.calls[name][0]
            else:
                found[name] = Folding(name, None, None, *obstacle)
        in_front: dict[str, _Obstacle] = {}
        for name in sorted(nodes, key=lambda name: self.order[nodes[name]]):
            target = self._previous(name, nodes[name], found)
            if isinstance(target, _Obstacle):
                in_front[name] = target
            else:
                found[name] = Folding(name, target, "previous")
        for name, front in reversed(in_front.items()):
            target = self._next(name, nodes[name], found)
            if isinstance(target, _Obstacle):
                reason = f"in front: {front.reason}; behind: {target.reason}"
                cure = front.cure or target.cure or _KEEP
                found[name] = Folding(name, None, None, reason, cure)
            else:
                found[name] = Folding(name, target, "next")
        for name in self.functions:
            reason = "it is a call of torch.nn.functional.batch_norm"
            found[name] = Folding(name, None, None, reason, "use a batch norm layer")
        return found

    def _previous(
        self, name: str, node: fx.Node, found: Mapping[str, Folding]
    ) -> str | _Obstacle:
        """Go towards the input to a linear layer whose output is used here only."""
        while True:
            source = _source(node)
            if source is None:
                return _Obstacle("no tensor of the model")
            others = [user for user in source.users if not _reads_size(user)]
            is_linear = self._is_linear(source)
            if not (is_linear or self._does_nothing(source, found)):
                return _Obstacle(self._describe(source))
            if len(others) > 1:
                where = ", ".join(
                    self._name(user) for user in others if user is not node
                )
                return _Obstacle(
                    f"the output of {self._name(source)} is used elsewhere, too, by "
                    f"{where}",
                    "keep it: the other branch needs the output as it is",
                )
            if is_linear:
                return self._checked(name, str(source.target), "previous")
            node = source

    def _next(
        self, name: str, node: fx.Node, found: Mapping[str, Folding]
    ) -> str | _Obstacle:
        """Go towards the output to a linear layer that takes this and nothing else."""
        start, chain = node, {node}
        while True:
            users = [user for user in node.users if not _reads_size(user)]
            if len(users) != 1:
                where = ", ".join(self._name(user) for user in users) or "nothing"
                return _Obstacle(f"its output is used by {where}")
            (user,) = users
            if self._is_linear(user):
                return self._runs_between(start, user, chain) or self._checked(
                    name, str(user.target), "next"
                )
            if not self._does_nothing(user, found):
                return _Obstacle(self._describe(user))
            node = user
            chain.add(node)

    def _checked(self, norm: str, layer: str, side: str) -> str | _Obstacle:
        """Give the linear layer back, or what is against it."""
        obstacle = self._of_calls(layer, repr(layer)) or self.layers.of_linear(layer)
        if obstacle is None and not self.layers.fits(norm, layer, side):
            obstacle = _Obstacle(
                f"{layer!r} has its channels elsewhere or another number of them",
                "keep it: it normalizes along another axis",
            )
        if obstacle is None and side == "next":
            obstacle = _border(self.layers.modules[layer], repr(layer))
        return obstacle or layer

    def _of_calls(self, name: str, subject: str) -> _Obstacle | None:
        """Tell what is against a layer in the way in which the model uses it."""
        calls = len(self.calls.get(name, ()))
        if calls == 0:
            return _Obstacle(
                f"the model does not call {subject}, or inside of a layer that is not "
                "looked into",
                "remove it, or keep it",
            )
        if calls > 1:
            return _Obstacle(
                f"{subject} is called {calls} times",
                "make a layer for each call (copy.deepcopy keeps the weights)",
            )
        layer = self.layers.modules[name]
        is_read = any(_place(value) in self.read for value in layer.parameters())
        if is_read or layer in self.inside:
            return _Obstacle(
                f"the model also reads the weights of {subject} by itself, or inside "
                "of a layer that is not looked into",
                "keep it: what they are used for would change",
            )
        return None

    def _is_linear(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(
            self.layers.modules[str(node.target)], _LINEAR
        )

    def _does_nothing(self, node: fx.Node, found: Mapping[str, Folding]) -> bool:
        """Tell whether it gives its input: by nature, in evaluation, or once folded."""
        if node.op != "call_module":
            return False
        name = str(node.target)
        module = self.layers.modules[name]
        if name in found and found[name].layer is not None:
            return True
        if _has_hooks(module):
            return False
        is_off = type(module) in _DROPOUT and not module.training
        return type(module) in (nn.Identity, FoldedBatchNorm) or is_off

    def _runs_between(
        self, norm: fx.Node, layer: fx.Node, chain: set[fx.Node]
    ) -> _Obstacle | None:
        """Tell whether the input of a batch norm may change before it is needed.

        Identity gives no copy, and a trace tells neither x += 1 from x = x + 1 nor
        which tensors are views of x.
        """
        for node, place in self.order.items():
            is_between = self.order[norm] < place < self.order[layer]
            if is_between and node not in chain and not _is_size(node):
                return _Obstacle(
                    f"{self._name(node)} runs between the batch norm and "
                    f"{self._name(layer)}, and may change the input in place",
                    "call it before the batch norm, or later",
                )
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
        if node.op == "output":
            return "the end of the model"
        return f"{node.name}, a function and no layer"


def _agreed(routes: Sequence[_Route], layers: _Layers) -> dict[str, Folding]:
    """Decide for each batch norm what is right whichever arguments the model gets."""
    excluded = {}
    for name in layers.norms:
        obstacle = layers.of_norm(name)
        if obstacle is not None:
            excluded[name] = obstacle
    while True:
        plans = [route.plan(excluded) for route in routes]
        differing = [
            name
            for name in layers.norms
            if len({(plan[name].layer, plan[name].side) for plan in plans}) > 1
        ]
        if not differing:
            return plans[0] | {k: v for k, v in plans[-1].items() if k not in plans[0]}
        for name in differing:
            excluded[name] = _Obstacle(
                "what stands beside it depends on the optional arguments of the model",
                "keep it, or give the model no optional arguments",
            )


def _border(layer: nn.Module, name: str) -> _Obstacle | None:
    """Tell whether some outputs meet fewer weights than others."""
    if isinstance(layer, _TRANSPOSED):
        # With stride 1, the outermost dilation (kernel - 1) outputs of each side meet
        # some of the weights only. Padding cuts outputs off, and output padding adds
        # some at the end.
        cut = zip(layer.padding, layer.output_padding, strict=True)
        reach = zip(layer.dilation, layer.kernel_size, strict=True)
        is_cut = all(
            padding - more >= dilation * (kernel - 1)
            for (padding, more), (dilation, kernel) in zip(cut, reach, strict=True)
        )
        if is_cut and all(stride == 1 for stride in layer.stride):
            return None
        return _Obstacle(
            f"{name} is transposed, and not all of its outputs meet all of its weights",
            "keep it: only with a stride of 1 and, along each axis, padding - "
            "output_padding >= dilation * (kernel_size - 1) is the shift the same at "
            "each output",
        )
    if not isinstance(layer, _CONVOLUTIONS):
        return None
    if isinstance(layer.padding, str):
        is_padded = layer.padding == "same" and any(k > 1 for k in layer.kernel_size)
    else:
        is_padded = any(layer.padding)
    if is_padded and layer.padding_mode == "zeros":
        return _Obstacle(
            f"{name} pads with zeros, which batch norm does not shift",
            "keep it: the interior would be right and the border wrong",
        )
    return None


def _changed(module: nn.Module, subject: str) -> _Obstacle | None:
    """Tell whether a layer computes anything but what its class in torch does."""
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return _Obstacle(
            f"{subject} is lazy and has no size yet",
            "run the model once on an example",
        )
    if parametrize.is_parametrized(module):
        return _Obstacle(
            f"{subject} is parametrized",
            "make the weights plain with "
            "torch.nn.utils.parametrize.remove_parametrizations",
        )
    if _has_hooks(module):
        return _Obstacle(
            f"{subject} has hooks, as weight norm and pruning use them",
            "remove them",
        )
    methods = "forward", "_conv_forward"
    own = {getattr(type(module), method, None) for method in methods}
    if not own <= _METHODS or "forward" in vars(module):
        return _Obstacle(
            f"{subject}, a {type(module).__name__}, computes something of its own",
            _KEEP,
        )
    return None


def _no_values(subject: str) -> _Obstacle:
    return _Obstacle(
        f"{subject} is on the meta device and has no values", "load the weights first"
    )


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, hooks) for hooks in _HOOKS)


def _source(node: fx.Node) -> fx.Node | None:
    """Give where the input of a layer comes from."""
    given = node.args[0] if node.args else next(iter(node.kwargs.values()), None)
    return given if isinstance(given, fx.Node) else None


def _reads_size(node: fx.Node) -> bool:
    """Tell whether a node asks for the shape of a tensor, not for its values."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _SIZES
    return node.op == "call_method" and node.target in _SIZES


def _is_size(node: fx.Node) -> bool:
    """Tell whether a node gives a size, or something that follows from sizes alone."""
    inputs = node.all_input_nodes
    return _reads_size(node) or (bool(inputs) and all(map(_is_size, inputs)))


def _attribute(model: nn.Module, target: str) -> Any:
    """Give a tensor of the model; None for one that the trace added."""
    module, _, name = target.rpartition(".")
    return getattr(model.get_submodule(module), name, None)


def _place(value: Any) -> int:
    """Tell tensors apart, but not two that begin at one place in memory."""
    has_place = isinstance(value, Tensor) and not (is_lazy(value) or value.is_meta)
    return value.data_ptr() if has_place and value.numel() else id(value)


def _exact(value: Tensor) -> Tensor:
    """Give it in double precision, so that it is rounded once; not all devices can."""
    return value.detach().to("cpu", torch.float64)


def _statistics(norm: Any) -> tuple[Any, ...]:
    """Running statistics, gain, bias and eps, as the formulas take them."""
    names = "running_mean", "running_var", "weight", "bias"
    values = (getattr(norm, name) for name in names)
    return *(None if v is None else _exact(v) for v in values), float(norm.eps)
