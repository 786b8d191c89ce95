r"""What the layers have in common: options, errors, and the books that they keep.

A normalization layer is book-keeping around :mod:`normbook.layers.function`. One that
``torch.nn`` has, too, is a *drop-in* for it: same arguments, same ``state_dict``, same
numbers up to rounding. Channels-last memory stays channels-last, and under
``torch.autocast`` on a GPU layer, group and RMSNorm run in float32, as torch's do.
Options mean the same in every layer, where it says nothing else:

num_features
    D or C, the length of axis 1.
eps
    Added to the variance, inside the root; unit of x squared.
momentum
    Weight of the *new* value in the running averages, 0 to 1; 0 freezes them. With
    ``None`` they are the plain average of all batches so far.
affine, bias
    Whether to learn :math:`\gamma` (``weight``, begins at 1) and :math:`\beta`
    (``bias``, begins at 0), or with ``bias=False`` only :math:`\gamma`.
track_running_stats
    Whether to keep ``running_mean``, ``running_var`` (of *unbiased* variances) and
    ``num_batches_tracked``. Without them the batch is used in both modes.
device, dtype
    Of parameters and buffers, which have one value for each channel (in layer norm and
    RMSNorm, for each feature).

So do errors, after which the running statistics are as before:

TypeError
    An argument or the input is of the wrong kind.
ValueError
    On a call: the number of axes is wrong, a single value would be normalized by
    itself (but in layer norm), eps is negative or not finite (for statistics of the
    batch, also 0), or momentum is not in 0..1.
RuntimeError
    A length is negative or missing, or input and layer differ in shape, device or
    dtype. Half precision may come with a float32 layer.
NotImplementedError
    The input holds no real floating-point numbers.
"""

from __future__ import annotations

import contextlib
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbook.arguments import whole_number
from normbook.running_statistics import averaged, corrected

Updates = list[tuple[Tensor, Tensor]]  # running statistics and their next values

HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64)
# Where torch.autocast runs layer, group and RMSNorm in float32.
_AUTOCAST = ("cuda", "mps", "xpu")


# The layers inherit the types of torch's drop-ins and none of their code. So they are
# found by who asks for the type: filters that keep weight decay from gains, update_bn,
# torch.func's replace_all_batch_norm_modules_, the conversion to SyncBatchNorm.
class NormLayer(nn.Module):
    """A layer with eps, and with a gain and a bias that may be missing."""

    # Attributes that the repr shows, the second with their names.
    _sizes: ClassVar[tuple[str, ...]]
    _settings: ClassVar[tuple[str, ...]]

    def _add_parameters(
        self,
        shape: int | tuple[int, ...],
        device: torch.types.Device,
        dtype: torch.dtype | None,
        **is_learned: bool,
    ) -> None:
        for name, is_there in is_learned.items():
            value = torch.empty(shape, device=device, dtype=dtype) if is_there else None
            parameter = None if value is None else nn.Parameter(value)
            self.register_parameter(name, parameter)

    @torch.no_grad()
    def _fill(self, **starts: float) -> None:
        for name, start in starts.items():
            value = getattr(self, name, None)  # RMSNorm has no bias at all
            if value is not None:
                value.fill_(start)

    def reset_parameters(self) -> None:
        """Begin again: gain 1, bias 0."""
        self._fill(weight=1, bias=0)

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        values = [str(getattr(self, name)) for name in self._sizes]
        for name in self._settings:
            value = self.bias is not None if name == "bias" else getattr(self, name)
            values.append(f"{name}={value}")
        return ", ".join(values)

    def _check_tensor(self, input: Any) -> None:
        if not isinstance(input, Tensor):
            raise TypeError(
                f"input of {type(self).__name__} must be a torch tensor, got "
                f"{type(input).__name__}; convert it, e.g. torch.as_tensor(input)."
            )

    def _check_float(self, input: Tensor) -> None:
        if input.dtype not in DTYPES:
            raise NotImplementedError(
                f"input of {type(self).__name__} must hold real floating-point "
                f"numbers, got {input.dtype}; convert it, e.g. input.float()."
            )

    def _checked_number(self, name: str, usual: str = "1e-5 is usual") -> float:
        value: Any = getattr(self, name)
        if type(value) is float:  # the usual, and to ask more costs time
            return value
        if not isinstance(value, Real):
            raise TypeError(f"{name} must be a number, got {value!r}; {usual}.")
        try:
            return float(value)
        except OverflowError:  # such as 10**400
            raise ValueError(
                f"{name} must be a finite number, got {type(value).__name__} too large "
                f"for a float; {usual}."
            ) from None

    def _check_length(self, name: str, value: Any, about: str) -> None:
        if whole_number(name, value, f"it is {about}") < 0:
            raise RuntimeError(
                f"{name} must not be negative, got {value}; it is {about}."
            )

    def _wrong_channels(self, input: Tensor, axis: int, name: str) -> str:
        """Say that an axis of the input has not the length that the layer has."""
        return (
            f"input must have {name} = {getattr(self, name)} channels on axis {axis}, "
            f"got shape {tuple(input.shape)}; make the layer with {name}="
            f"{input.shape[axis]}, or move the channels to axis {axis}."
        )

    def _check_places(
        self, input: Tensor, shape: tuple[int, ...], each: str, **states: Tensor | None
    ) -> None:
        """Refuse parameters and buffers of another shape, or on another device."""
        device = input.device
        for name, value in states.items():
            if value is None:
                continue
            if value.shape != shape:
                raise RuntimeError(
                    f"{name} must have shape {shape}, got {tuple(value.shape)}; give "
                    f"one value for each {each}."
                )
            if value.device != device:
                raise other_device(input, name, value)

    def _check_dtypes(self, input: Tensor, **states: Tensor | None) -> None:
        """Refuse another dtype than the input's, but float32 beside half precision."""
        dtype = input.dtype
        if all(value is None or value.dtype == dtype for value in states.values()):
            return
        dtypes = {k: value.dtype for k, value in states.items() if value is not None}
        kinds = set(dtypes.values())
        # Half precision may come with float32 state, as autocast makes it.
        is_mixed = input.dtype in HALF and kinds == {torch.float32}
        if kinds and kinds != {input.dtype} and not is_mixed:
            raise RuntimeError(
                "the layer must have the dtype of its input, or float32 for half "
                f"precision (no mixed dtype otherwise), got input {input.dtype} and "
                f"{', '.join(f'{k} {v}' for k, v in dtypes.items())}; convert one of "
                "them with .to(...)."
            )


class ChannelNorm(NormLayer):
    """A layer with gain, bias and running statistics for each channel."""

    _version = 2  # of the state_dict: num_batches_tracked came with 2
    _sizes = ("num_features",)
    _settings: ClassVar[tuple[str, ...]] = (
        "eps", "momentum", "affine", "bias", "track_running_stats",
    )  # fmt: skip
    _ndims: ClassVar[tuple[int, ...]]
    _shapes: ClassVar[str]

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        nn.Module.__init__(self)  # past torch's class, which the layers inherit, too
        about = "the number of channels, the length of their axis"
        self._check_length("num_features", num_features, about)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        is_learned = {"weight": affine, "bias": affine and bias}
        self._add_parameters(num_features, device, dtype, **is_learned)
        # Buffers, so that state_dict has them and .to() moves them.
        for name in ("running_mean", "running_var"):
            value = torch.empty(num_features, device=device, dtype=dtype)
            self.register_buffer(name, value if track_running_stats else None)
        steps = torch.tensor(0, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", steps)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Begin the running statistics again: mean 0, variance 1, no batch seen."""
        if self.track_running_stats:
            self._fill(running_mean=0, running_var=1, num_batches_tracked=0)

    def reset_parameters(self) -> None:
        """Begin all again: gain 1, bias 0, and the running statistics."""
        self.reset_running_stats()
        NormLayer.reset_parameters(self)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self._ndims:
            raise ValueError(
                f"input of {type(self).__name__} must have shape {self._shapes}, got "
                f"{input.dim()}D input of shape {tuple(input.shape)}; add the missing "
                "axis, e.g. input[None] for a single example, or take the layer for "
                "this number of axes."
            )

    def _check_numbers(self) -> None:
        self._checked_number("eps")
        if self.momentum is not None:
            usual = "it is the weight of the new value, 0.1 is usual"
            self._checked_number("momentum", usual)

    def _states(self) -> dict[str, Tensor | None]:
        """Parameters and running statistics, which are of one shape and device."""
        if (self.running_mean is None) is not (self.running_var is None):
            raise ValueError(
                "running_mean and running_var must both be tensors or both be None, "
                "got one of each; set both."
            )
        names = "weight", "bias", "running_mean", "running_var"
        return {name: getattr(self, name) for name in names}

    def _updates(self, mean: Tensor, var: Tensor, count: Any) -> Updates:
        """Return what to write, by mean and biased variance of ``count`` values.

        Without a count the variance is unbiased already.
        """
        updates: Updates = []
        momentum = None if self.momentum is None else float(self.momentum)
        if momentum is not None and not 0 <= momentum <= 1:
            raise ValueError(
                f"momentum must lie in 0..1, where 0 freezes the running statistics, "
                f"got {self.momentum}; it is the weight of the new value, 0.1 is usual."
            )
        if momentum == 0:  # torch's way to freeze the running statistics
            return updates
        if count is not None:
            is_traced = isinstance(count, Tensor)  # by torch.jit
            var = corrected(var, count.to(var.dtype) if is_traced else count)
        pairs = (self.running_mean, mean), (self.running_var, var)
        for running, new in pairs:
            if running is None:
                continue
            old = running.to(new.dtype)  # half precision is rounded once, at the end
            if momentum is not None:
                updates.append((running, averaged(old, new, 1 - momentum)))
            elif self.num_batches_tracked is not None:
                # A tensor: as a number it would be a constant of an exported graph.
                share = 1 / (self.num_batches_tracked.to(new.dtype) + 1)
                updates.append((running, averaged(old, new, 1 - share)))
        return updates

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        *rest: Any,
        **named: Any,
    ) -> None:
        # Checkpoints older than version 2 have no num_batches_tracked: keep ours.
        key = prefix + "num_batches_tracked"
        is_old = (local_metadata.get("version") or 0) < 2
        if is_old and self.track_running_stats and key not in state_dict:
            steps = self.num_batches_tracked
            if steps is None or steps.is_meta:
                steps = torch.tensor(0)
            state_dict[key] = steps
        nn.Module._load_from_state_dict(
            self, state_dict, prefix, local_metadata, *rest, **named
        )


def check_size(name: str, value: Any, about: str) -> int:
    """Refuse what is no whole number of at least 1."""
    size = whole_number(name, value, about)
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}; {about}.")
    return size


def other_device(input: Tensor, name: str, value: Tensor) -> RuntimeError:
    """Say that something is not where the input is."""
    return RuntimeError(
        f"input and {name} must be on one device, got {input.device} and "
        f"{value.device}; move one of them with .to(...)."
    )


def write(updates: Updates, steps: Tensor | None) -> None:
    """Write the running statistics and count the batch; after an error, neither."""
    buffers = [buffer for buffer, _ in updates] + ([] if steps is None else [steps])
    is_inference = torch.compiler.is_compiling() or torch.is_inference_mode_enabled()
    # torch writes to such a tensor before it refuses to.
    if not is_inference and any(buffer.is_inference() for buffer in buffers):
        raise RuntimeError(
            "the running statistics must be normal tensors to be updated here, got an "
            "inference tensor, made in torch.inference_mode(); clone it, or train in "
            "that mode."
        )
    written: Updates = []
    try:
        # torch refuses some tensors only now: expanded ones, say.
        for buffer, value in updates:
            old = buffer.clone()
            buffer.copy_(value)
            written.append((buffer, old))
        if steps is not None:
            steps.add_(1)
    except BaseException:
        for buffer, old in written:
            buffer.copy_(old)
        raise


def laid_out(y: Tensor, x: Tensor) -> Tensor:
    """Lay y out in memory as torch does: channels-last where x is, else contiguous.

    Arithmetic keeps any order of axes, but who uses torch.nn may call ``view`` on y.
    """
    if x.ndim in (4, 5):
        # Channels-last: axis 1 is the fastest, the others follow in their order.
        order = [1, *range(x.ndim - 1, 1, -1), 0]
        strides = [x.stride(axis) for axis in order]
        if strides == sorted(strides):
            layout = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
            return y.contiguous(memory_format=layout)
    return y.contiguous()


def as_autocast(input: Tensor, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Cast as torch.autocast does, which on GPUs runs these layers in float32."""
    if input.is_cpu:  # sooner known than the type of the device
        return input, *parameters
    device = input.device.type
    if device not in _AUTOCAST or not torch.is_autocast_enabled(device):
        return input, *parameters
    return tuple(as_float32(input, *parameters))


def as_float32(*values: Tensor | None) -> list[Any]:
    """Cast what is not double, as torch.autocast does for layer norm on GPUs."""
    return [v if v is None or v.dtype == torch.float64 else v.float() for v in values]


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on where x is."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def no_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Let products be what they are: half of a step in bfloat16 fits nothing."""
    if is_autocast(x):
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()
