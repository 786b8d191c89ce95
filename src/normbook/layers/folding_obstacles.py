"""What may be against folding a batch norm: tables of condition, reason and cure."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from normbook.folding import scale_and_shift
from normbook.layers.base import DTYPES
from normbook.layers.batch_norm import _BatchNorm

_CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
LINEAR: tuple[type[Any], ...] = (nn.Linear, *_CONVOLUTIONS, *TRANSPOSED)
KNOWN: tuple[type[Any], ...] = (TorchBatchNorm, *LINEAR)  # they call no others
# What the layers do that are looked at: in evaluation, a scale and a shift for each
# channel, or a linear map. A layer with a method of its own may do anything.
_METHODS = {
    TorchBatchNorm.forward,
    nn.SyncBatchNorm.forward,
    _BatchNorm.forward,
    *(layer.forward for layer in LINEAR),
    *(getattr(layer, "_conv_forward", None) for layer in LINEAR),
}
_HOOKS = tuple(
    f"_{way}{when}_hooks" for way in ("forward", "backward") for when in ("", "_pre")
)


def exact(value: Tensor | None) -> Any:
    """Return it in double precision, to be rounded once; not all devices can."""
    return None if value is None else value.detach().to("cpu", torch.float64)


def statistics(norm: Any) -> tuple[Any, ...]:
    """Return running statistics, gain, bias and eps, as the formulas take them."""
    values = norm.running_mean, norm.running_var, norm.weight, norm.bias
    return *map(exact, values), float(norm.eps)


class Obstacle(NamedTuple):
    """Why not, and what to do; no cure where nothing but keeping the layer helps."""

    reason: str
    cure: str = ""


KEEP = "keep it"

# In a reason {it} is the layer, and {got} what the condition returned.
Rows = tuple[tuple[Callable[..., Any], str, str], ...]


def first(rows: Rows, it: str, *args: Any) -> Obstacle | None:
    """Return the first obstacle whose condition holds for the arguments."""
    for condition, reason, cure in rows:
        got = condition(*args)
        if got:
            return Obstacle(reason.format(it=it, got=got), cure)
    return None


def joined(name: str, path: str) -> str:
    """Return the name in a model of what has a name in a part of it."""
    return f"{name}.{path}" if name and path else name or path


class Beside(NamedTuple):
    """A linear layer that may take in a batch norm."""

    layer: Any
    norm: Any
    side: str
    channels: int  # of the batch norm that it takes in
    is_shared: bool


def _kind(*kinds: Any) -> Callable[[Any], Any]:
    return lambda module: isinstance(module, kinds) and type(module).__name__


def has_hooks(module: nn.Module) -> bool:
    """Return whether functions of others are called with it."""
    return any(getattr(module, hooks) for hooks in _HOOKS)


def _hooked_holders(model: nn.Module) -> str:
    return ", ".join(
        repr(part) if part else "the model"
        for part, module in model.named_modules()
        if has_hooks(module) and any(True for _ in module.children())
    )


def _with_own_method(module: nn.Module) -> Any:
    methods = "forward", "_conv_forward"
    known = {getattr(type(module), method, None) for method in methods} <= _METHODS
    return (not known or "forward" in vars(module)) and type(module).__name__


def computes_its_own(module: nn.Module) -> bool:
    """Return whether a batch norm has a ``forward`` that torch's do not have."""
    return bool(_with_own_method(module)) and "forward" not in vars(module)


_STATE = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
_CHECKS = {
    kind._check_input_dim for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}


def _base(module: nn.Module) -> type[Any] | None:
    """Return the batch norm of torch that a subclass begins with."""
    known = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return next((kind for kind in type(module).__mro__ if kind in known), None)


def plain(module: nn.Module) -> nn.Module:
    """Return the batch norm of torch with the tensors of a subclass, no children."""
    base, norm = _base(module), copy.copy(module)
    norm.__class__, norm._modules = base, {}  # type: ignore[assignment]
    return norm


def forget_check(module: nn.Module) -> None:
    """Let a copy take any number of axes, where torch's own check is all there is."""
    if type(module)._check_input_dim in _CHECKS:  # type: ignore[attr-defined]
        vars(module)["_check_input_dim"] = lambda input: None


def width(layer: Any, side: str) -> int:
    """Count the channels between a linear layer and what is folded from a side."""
    end = "out" if side == "previous" else "in"
    kind = "features" if isinstance(layer, nn.Linear) else "channels"
    return int(getattr(layer, f"{end}_{kind}"))


def is_linear_map(layer: Any) -> bool:
    """Try whether each output channel is linear in its weights and its bias.

    So it is of a convolution that first pads its input in its own way, whatever the
    rest of its ``forward`` does. Weights that it standardizes or rounds fail, and so
    does an activation behind.
    """
    if isinstance(layer, nn.Linear) or first(OF_ITS_OWN, "it", layer):
        return False
    draw, exponents = torch.Generator().manual_seed(0), torch.tensor([-2.0, 2.0])
    try:
        whole = copy.deepcopy(layer).to("cpu", torch.float64)
        w, channels = whole.weight.detach(), width(layer, "previous")
        sizes = width(layer, "next"), *(1 + 2 * k for k in whole.kernel_size)
        x = torch.randn(2, *sizes, generator=draw, dtype=w.dtype)
        k, b = torch.randn(2, channels, generator=draw, dtype=w.dtype)
        k = k * 10 ** exponents[torch.arange(channels) % 2].to(w)
        by_channel = k.reshape(-1, *[1] * len(whole.kernel_size))
        axes = by_channel if isinstance(layer, TRANSPOSED) else by_channel.unsqueeze(1)
        if isinstance(layer, TRANSPOSED) and whole.groups > 1:
            return False
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            whole.bias = nn.Parameter(torch.zeros_like(b))
            y = whole(x.clone())
            whole.weight, whole.bias = nn.Parameter(w * axes), nn.Parameter(b)
            z = whole(x.clone())
        expected = y * by_channel + b.reshape_as(by_channel)
        scale = expected.abs().amax((0, *range(2, x.dim())), keepdim=True)
        return bool(((z - expected).abs() <= 1e-10 * scale).all())
    except Exception:  # noqa: BLE001  # whatever it is, it stays
        return False


def _fits(beside: Beside) -> bool:
    """Return whether channels of the one are channels of the other."""
    layer, norm, side, channels, _ = beside
    axes = 2 if isinstance(layer, nn.Linear) else layer.weight.dim()
    try:
        norm._check_input_dim(torch.empty((1,) * axes, device="meta"))
    except (ValueError, NotImplementedError):
        return False
    return width(layer, side) == channels


def _pads_with_zeros(layer: Any) -> bool:
    if not isinstance(layer, _CONVOLUTIONS) or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and any(k > 1 for k in layer.kernel_size)
    return any(layer.padding)


def _has_a_border(layer: Any) -> bool:
    """Return whether some outputs of a transposed convolution meet fewer weights."""
    if not isinstance(layer, TRANSPOSED):
        return False
    axes: Any = layer.padding, layer.output_padding, layer.dilation, layer.kernel_size
    # With stride 1, the outermost dilation (kernel - 1) of each side do, less padding.
    is_cut = all(
        padding - more >= dilation * (kernel - 1)
        for padding, more, dilation, kernel in zip(*axes, strict=True)
    )
    return not is_cut or any(stride != 1 for stride in layer.stride)


# fmt: off
# Of a whole model: it cannot be folded at all.
MODEL: Rows = (
    (_kind(torch.jit.ScriptModule),
     "model must be Python code to be folded, got a {got}",
     "fold first, and script the folded model"),
    (_kind(nn.DataParallel, nn.parallel.DistributedDataParallel),
     "model must be the model itself, got a {got} around it",
     "fold model.module, and wrap the folded one"),
    (lambda model: "_orig_mod" in model._modules and type(model).__name__,
     "model must be the model itself, got a {got} of torch.compile",
     "fold model._orig_mod, and compile the folded one"),
    (_kind(TorchBatchNorm),
     "model must hold linear layers, got a {got} alone",
     "fold the model that it belongs to"),
    (lambda model: model.training,
     "model must be in evaluation mode, got training mode, in which batch norm uses "
     "the statistics of each batch and not those that are folded",
     "call model.eval() first"),
    (lambda model: "forward" in vars(model),
     "model must compute what the forward method of its class does, got one that was "
     "given another",
     "restore it with del model.forward"),
    (_hooked_holders,
     "model must have no hooks on modules that hold others, as a hook may read or "
     "change what folding changes, got some on {got}",
     "remove them, and register them on the folded model"),
)

# Of a layer that has anything beside its class.
OF_ITS_OWN: Rows = (
    (lambda layer: _kind(LazyModuleMixin)(layer) and layer.has_uninitialized_params(),
     "{it} is lazy and has no size yet",
     "run the model once on an example"),
    (parametrize.is_parametrized,
     "{it} is parametrized",
     "make the weights plain with "
     "torch.nn.utils.parametrize.remove_parametrizations"),
    (has_hooks,
     "{it} has hooks, as weight norm and pruning use them",
     "remove them"),
)
_OWN = "{it}, a {got}, computes something of its own"

# Of a layer that computes anything but what its class in torch does.
ANY_LAYER: Rows = (*OF_ITS_OWN, (_with_own_method, _OWN, KEEP))

# The same of a linear layer, which may do something to its input first.
ANY_LINEAR: Rows = (
    *OF_ITS_OWN,
    (lambda layer: _with_own_method(layer) and not is_linear_map(layer)
     and type(layer).__name__, _OWN, KEEP),
)
NO_VALUES = (
    lambda layer: any(v.is_meta for v in (*layer.parameters(), *layer.buffers())),
    "{it} is on the meta device and has no values",
    "load the weights first")

# Of a batch norm that is no constant scale and shift.
NORM: Rows = (
    *ANY_LAYER,
    (lambda norm: norm.training,
     "it is in training mode and uses the statistics of each batch",
     "call eval() on the whole model"),
    (lambda norm: norm.running_mean is None or norm.running_var is None,
     "it has no running statistics (track_running_stats=False) and uses those of each "
     "batch",
     "train with track_running_stats=True"),
    NO_VALUES,
    # Where the scale is infinite, so is the shift, or it is NaN.
    (lambda norm: not scale_and_shift(*statistics(norm)).shift.isfinite().all(),
     "its statistics, gain or bias are not finite, or its variance + eps is not "
     "positive",
     "train or recalibrate it before you fold"),
)

# Of a subclass that is not taken apart, whatever its forward is.
NORM_APART: Rows = (
    (lambda norm: _base(norm) is None, "{it} is of no kind of torch's", KEEP),
    (has_hooks, "{it} has hooks", KEEP),
    (parametrize.is_parametrized, "{it} is parametrized", KEEP),
    (lambda norm: norm.training, "{it} is in training mode", KEEP),
    (lambda norm: not {*norm._parameters, *norm._buffers} <= _STATE,
     "{it} has more parameters or buffers than a batch norm", KEEP),
    (lambda norm: "batch_norm" in norm._modules, "{it} has a child of that name", KEEP),
)

# Of a linear layer that cannot take in the batch norm beside it.
TAKING_IN: Rows = (
    (lambda beside: beside.is_shared,
     "{it} shares its weights with another layer",
     "give it weights of its own, as in layer.weight = "
     "nn.Parameter(layer.weight.detach().clone())"),
    (lambda beside: next(
        (v.dtype for v in beside.layer.parameters() if v.dtype not in DTYPES), None),
     "the weights of {it} have dtype {got}",
     "fold in floating point"),
    (lambda beside: not _fits(beside),
     "{it} has its channels elsewhere or another number of them",
     "keep it: it normalizes along another axis"),
    (lambda beside: beside.side == "next" and _with_own_method(beside.layer),
     "{it}, a {got}, may pad its input, which batch norm does not shift",
     KEEP),
    (lambda beside: beside.side == "next" and _has_a_border(beside.layer),
     "{it} is transposed, and not all of its outputs meet all of its weights",
     "keep it: only with a stride of 1 and, along each axis, padding - output_padding "
     ">= dilation * (kernel_size - 1) is the shift the same at each output"),
    (lambda beside: beside.side == "next" and _pads_with_zeros(beside.layer),
     "{it} pads with zeros, which batch norm does not shift",
     "keep it: the interior would be right and the border wrong"),
)

# Of any layer, by the way in which the model uses it.
CALLS: Rows = (
    (lambda route, name: name not in route.calls,
     "the model does not call {it}, or inside of a layer that is not looked into",
     "remove it, or keep it"),
    (lambda route, name: len(route.calls[name]) > 1 and len(route.calls[name]),
     "{it} is called {got} times",
     "make a layer for each call (copy.deepcopy keeps the weights)"),
    (lambda route, name: route.reads(name),
     "the model also reads the weights of {it} by itself, or inside of a layer that is "
     "not looked into",
     "keep it: what they are used for would change"),
)
# fmt: on
