"""Folding: batch norm layers disappear into the linear layers beside them.

:mod:`normbook.folding` has the formulas. Which layer follows which is read from traces
(``folding_traces``, ``folding_code``), and what goes where decided in
``folding_routes``; what stands against it is in ``folding_obstacles``. What is edited
is a copy of the model, so its class, its attributes and its ``forward`` stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from normbook.comparison import relative_error
from normbook.errors import NormbookError
from normbook.folding import fold_into_next, fold_into_previous
from normbook.layers import folding_obstacles as against
from normbook.layers import folding_traces as traces
from normbook.layers.folding_apart import (
    NORM,
    Opened,
    put,
    subclasses,
    take_apart,
    whole_name,
)
from normbook.layers.folding_copies import copied, with_the_same_tensors
from normbook.layers.folding_obstacles import first
from normbook.layers.folding_routes import FoldedBatchNorm, Folding, Layers, planned

__all__ = [
    "FoldedBatchNorm",
    "Folding",
    "FoldingError",
    "Opened",
    "fold_batch_norm",
    "folding_plan",
]

# Of the largest output, in float64. A wrong folding is wrong in the first digits, and
# rounding in the last. Halfway between leaves room for what a deep network amplifies;
# one that amplifies more is given more room, but never the first digits.
_TOLERANCE = torch.finfo(torch.float64).eps ** 0.5
_ROUNDING = 4 * torch.finfo(torch.float64).eps
_AMPLIFIED, _FIRST_DIGITS = 100, 1e-3


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
    ``Linear`` and all convolutions; identity and dropout may stand between. A subclass
    of a convolution that pads by itself takes in what is behind it, if a trial shows
    that its outputs are linear in its weights. In place of a batch norm stays
    :class:`FoldedBatchNorm`, so the names in a ``state_dict`` stay.
    A subclass whose ``forward`` is its batch norm and then modules that it holds, such
    as an activation, is taken apart, and :class:`Opened` stays in its place. Behind a
    ``torch.cat`` of outputs of linear layers along the channels, each layer takes in
    its share. A batch norm that the model in evaluation mode never calls, as in a
    second head, stays as it is. Parameters keep dtype, device and ``requires_grad``. A
    layer without a bias gets one. The folded model is for inference.

    What cannot be traced, as it goes by the shape of its input, is taken for one step,
    and folding goes on around it; within, in each child that its code calls and uses in
    no other way. With ``strict=False`` it may be the whole model.

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
    folded, plan = _fold(model, strict=strict)
    if example is not None:
        _compare(model, example, strict=strict)
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
    return _fold(model, strict=False)[1]


def _fold(model: nn.Module, *, strict: bool) -> tuple[nn.Module, tuple[Folding, ...]]:
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
        folded = copied(model)
    except Exception as error:
        its = [first(against.ANY_LAYER, repr(k), m) for k, m in model.named_modules()]
        causes = [", ".join(it) for it in its if it and it.cure != against.KEEP]
        cure = "; ".join(causes) or "keep results of computations out of the model"
        raise FoldingError(
            f"model must be such that copy.deepcopy copies it, got {error}; {cure}."
        ) from error
    opened = subclasses(model)
    try:
        return _folded(model, folded, opened, strict)
    except _AnotherWayError:
        if not opened:
            raise
        # It asks for what it is that would be taken apart.
        return _folded(model, copied(model), {}, strict)


def _folded(
    model: nn.Module,
    folded: nn.Module,
    opened: Mapping[str, Sequence[str]],
    strict: bool,
) -> tuple[nn.Module, tuple[Folding, ...]]:
    """Fold into the layers of a copy."""
    traced = traces.traced(model, opened)
    if strict and "" in traced.boxes:
        raise _untraced(traced.boxes[""])
    closed = take_apart(folded, opened)
    # Looked at are the tensors of the model: copies share no memory where these do.
    looked_at = with_the_same_tensors(model)
    take_apart(looked_at, opened)
    layers = Layers(looked_at)
    plan = planned(traced, layers)
    with torch.no_grad():
        _take_in(folded, plan.values())
    _check_same_way(traced, folded)
    stays = [name for name in opened if plan[f"{name}.{NORM}"].layer is None]
    put(folded, {folded.get_submodule(name): closed[name] for name in stays})
    named = (plan[name] for name in dict.fromkeys((*layers.norms, *plan)))
    return folded, tuple(f._replace(norm=whole_name(f.norm, opened)) for f in named)


def _untraced(error: Exception) -> FoldingError:
    """Say why a whole model cannot be traced."""
    if isinstance(error, traces.OptionsError):
        return FoldingError(str(error))
    found = FoldingError(
        "model must be such that torch.fx can trace it, so that it is known which "
        f"layer follows which, got {error!r}; fold its parts, for example "
        "model.features = fold_batch_norm(model.features), as strict=False does, or a "
        "module around it whose forward fixes the optional arguments."
    )
    found.__cause__ = error
    return found


def _take_in(model: nn.Module, plan: Iterable[Folding]) -> None:
    """Change the weights of the linear layers, and take the batch norms out."""
    modules: dict[str, Any] = dict(model.named_modules())
    gone: dict[nn.Module, nn.Module] = {}
    for folding in plan:
        start = 0
        for name in folding.layers:
            layer, norm = modules[name], modules[folding.norm]
            is_one = len(folding.layers) == 1
            channels = None if is_one else against.width(layer, "previous")
            end = None if channels is None else start + channels
            _change(name, layer, norm, folding.side, slice(start, end))
            start = end or 0
            gone[norm] = FoldedBatchNorm(layer.weight.dim()).eval()
    put(model, gone)


def _change(name: str, layer: Any, norm: Any, side: Any, channels: slice) -> None:
    """Change the weights of a linear layer by some channels of a batch norm."""
    *values, eps = against.statistics(norm)
    some = [None if value is None else value[channels] for value in values]
    fold: Any = fold_into_previous if side == "previous" else fold_into_next
    w, b = fold(
        against.exact(layer.weight),
        against.exact(layer.bias),
        *some,
        eps,
        is_transposed=isinstance(layer, against.TRANSPOSED),
        groups=getattr(layer, "groups", 1),
    )
    w, b = w.to(layer.weight), b.to(layer.weight)
    if not bool(w.isfinite().all() & b.isfinite().all()):
        raise FoldingError(
            f"the folded weights of {name!r} must be finite in "
            f"{w.dtype}, got infinity or NaN; fold in float32 and convert the "
            "folded model, and see that the weights themselves are finite."
        )
    layer.weight.copy_(w)
    if layer.bias is None:
        layer.bias = nn.Parameter(b, requires_grad=layer.weight.requires_grad)
    else:
        layer.bias.copy_(b)


class _AnotherWayError(FoldingError):
    """A model that asks for what folding changes."""


def _check_same_way(first: traces.Traced, folded: nn.Module) -> None:
    """Refuse a model that goes another way through its layers once it is folded."""
    cause: Exception | None = None
    try:
        pairs = zip(first.parts, traces.again(folded, first), strict=True)
        is_same = all(part.is_same(other) for part, other in pairs)
    except Exception as error:  # noqa: BLE001  # the layer is gone
        is_same, cause = False, error
    if not is_same:
        raise _AnotherWayError(
            "model must go the same way once it is folded, got a forward that asks for "
            "what folding changes, such as the kind of a layer, its weights, eps, or "
            "whether it has a bias; fold its parts."
        ) from cause


def _compare(model: nn.Module, example: Any, *, strict: bool) -> None:
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

    original = copied(model).to("cpu", torch.float64)
    folded, _ = _fold(original, strict=strict)
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
