"""Group and instance normalization layers: drop-ins for those of ``torch.nn``."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm as TorchInstanceNorm

from normbook.arguments import whole_number
from normbook.layers.base import (
    ChannelNorm,
    NormLayer,
    Updates,
    as_autocast,
    laid_out,
    write,
)
from normbook.layers.function import normalize_by
from normbook.layers.native_norms import normalize, normalize_with_statistics
from normbook.normalize import METHODS


class GroupNorm(NormLayer, nn.GroupNorm):
    """Group normalization of ``(N, C)`` or ``(N, C, ...)``.

    A drop-in for :class:`torch.nn.GroupNorm`, the same in training and in evaluation.
    ``num_channels`` is C; that ``num_groups`` does not divide it is a ValueError. Other
    options and errors are those of :mod:`normbook.layers.base`. Channels that follow
    each other form a group.

    Source: Wu and He (2018), equations 1, 2, 6 and 7; book, chapter *Choosing the
    axes*.

    >>> layer = GroupNorm(2, 4, eps=1e-12)
    >>> layer(torch.tensor([[1.0, 3.0, 10.0, 50.0]])).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

    _sizes = ("num_groups", "num_channels")
    _settings = ("eps", "affine", "bias")

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        nn.Module.__init__(self)  # past torch's class
        about = "it is a divisor of num_channels"
        groups = whole_number("num_groups", num_groups, about)
        self._check_length("num_channels", num_channels, "the length of axis 1")
        if groups < 1 or num_channels % groups:
            raise ValueError(
                f"num_groups must be a divisor of num_channels = {num_channels}, got "
                f"{num_groups}; groups have equally many channels."
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        is_learned = {"weight": affine, "bias": affine and bias}
        self._add_parameters(num_channels, device, dtype, **is_learned)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each group of channels of each example."""
        self._check(input)
        eps = self._checked_number("eps")
        x, weight, bias = as_autocast(input, self.weight, self.bias)
        self._check_dtypes(x, weight=weight, bias=bias)
        # Without parameters torch takes any number of channels that has the groups.
        split = self.num_groups, input.shape[1] // self.num_groups
        gamma, beta = (None if v is None else v.reshape(split) for v in (weight, bias))
        grouped = x.reshape(x.shape[0], *split, *x.shape[2:])
        layout = METHODS["group norm"].of(grouped.ndim)
        y = normalize(grouped, gamma, beta, **layout, eps=eps)
        return laid_out(y.reshape(input.shape), input)

    def _check(self, input: Tensor) -> None:
        """Refuse bad input, with the types of exception that torch.nn raises."""
        self._check_tensor(input)
        self._check_float(input)
        if input.dim() < 2:
            raise RuntimeError(
                "input of GroupNorm must have shape (N, C) or (N, C, ...), got "
                f"{tuple(input.shape)}; add the missing axis, e.g. input[None]."
            )
        states = {"weight": self.weight, "bias": self.bias}
        has_state = any(value is not None for value in states.values())
        if has_state and input.shape[1] != self.num_channels:
            raise RuntimeError(self._wrong_channels(input, 1, "num_channels"))
        if input.shape[1] % self.num_groups:
            raise RuntimeError(
                f"num_groups = {self.num_groups} must divide the channels on axis 1, "
                f"got shape {tuple(input.shape)}; groups have equally many channels."
            )
        if input.numel() == self.num_groups:
            raise ValueError(
                "GroupNorm needs more than 1 value in a group, or more than one "
                f"example, got shape {tuple(input.shape)} with num_groups="
                f"{self.num_groups}; a value less its mean is 0, so make fewer groups."
            )
        self._check_places(input, (self.num_channels,), "channel", **states)


class _InstanceNorm(ChannelNorm, TorchInstanceNorm):
    """What the three layers share: all but the number of axes."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        args = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*args, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel of each example, or by running statistics in eval."""
        uses_input = self.training or not self.track_running_stats
        self._check(input, uses_input)
        is_single = input.dim() == self._ndims[0]
        x = input[None] if is_single else input
        if uses_input:
            y, updates = self._by_input(x)
        else:
            y, updates = self._by_running_statistics(x), []
        y = (y[0] if is_single else y).contiguous()
        write(updates, None)  # torch counts no batches here
        return y

    def _by_input(self, x: Tensor) -> tuple[Tensor, Updates]:
        """Return y, and what is to be written to the running statistics."""
        layout = METHODS["instance norm"].of(x.ndim)
        eps = float(self.eps)
        y, statistics = normalize_with_statistics(
            x, self.weight, self.bias, **layout, eps=eps
        )
        # Without momentum torch averages nothing here, unlike in batch norm.
        is_frozen = self.running_mean is None or self.momentum is None
        if is_frozen or not x.numel():
            return y, []
        mean, var = (value.reshape(x.shape[:2]).mean(0) for value in statistics)
        return y, self._updates(mean, var, math.prod(x.shape[2:]))

    def _by_running_statistics(self, x: Tensor) -> Tensor:
        if self.running_mean is None or self.running_var is None:
            raise RuntimeError(
                "running_mean and running_var must be tensors in evaluation when "
                "track_running_stats=True, got None; set both, or make the layer "
                "without track_running_stats."
            )
        # Clones: as in batch norm.
        mean, var = self.running_mean.clone(), self.running_var.clone()
        return normalize_by(x, mean, var, self.weight, self.bias, float(self.eps))

    def _check(self, input: Tensor, uses_input: bool) -> None:
        """Refuse bad input, with the types of exception that torch.nn raises."""
        self._check_tensor(input)
        self._check_input_dim(input)
        self._check_float(input)
        self._check_numbers()
        states = self._states()
        has_state = any(value is not None for value in states.values())
        axis = 1 - self._ndims[1] + input.dim()
        if input.shape[axis] != self.num_features:
            message = self._wrong_channels(input, axis, "num_features")
            if self.affine:
                raise ValueError(message)
            if has_state:
                raise RuntimeError(message)
            warnings.warn(f"{message} Nothing depends on it here.", stacklevel=3)
        if uses_input and math.prod(input.shape[axis + 1 :]) == 1:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value in a channel, got "
                f"shape {tuple(input.shape)}; a value less its mean is 0. Take batch "
                "norm, or larger images."
            )
        self._check_places(input, (self.num_features,), "channel", **states)
        self._check_dtypes(input, weight=self.weight, bias=self.bias)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # The first checkpoints had running statistics whether asked for or not.
        keys = [prefix + name for name in ("running_mean", "running_var")]
        kept = [key for key in keys if key in state_dict]
        is_first = local_metadata.get("version") is None
        if is_first and kept and not self.track_running_stats:
            error_msgs.append(
                f"{' and '.join(kept)} must not be in the checkpoint of a layer with "
                "track_running_stats=False; delete what was saved before torch 0.4, or "
                f"make the {type(self).__name__} with track_running_stats=True."
            )
            for key in kept:
                del state_dict[key]
        rest = strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """Instance normalization of ``(N, C, L)``, or of one example ``(C, L)``.

    A drop-in for :class:`torch.nn.InstanceNorm1d`, with the options and errors of
    :mod:`normbook.layers.base`; as in torch, gain, bias and running statistics have to
    be asked for.

    Running statistics are averages over the examples, used in evaluation; without them
    training and evaluation are one function. With ``momentum=None`` they stay as they
    are, and ``num_batches_tracked`` is always 0. Another number of channels is a
    ValueError for an affine layer, and a UserWarning where nothing depends on it.

    Source: Ulyanov, Vedaldi and Lempitsky (2016), equation 3; book, chapter *Choosing
    the axes*.
    """

    _ndims = (2, 3)
    _shapes = "(C, L) or (N, C, L)"


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """Instance normalization of images, ``(N, C, H, W)`` or ``(C, H, W)``."""

    _ndims = (3, 4)
    _shapes = "(C, H, W) or (N, C, H, W)"


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """Instance normalization of volumes or films, ``(N, C, T, H, W)`` or without N."""

    _ndims = (4, 5)
    _shapes = "(C, T, H, W) or (N, C, T, H, W)"
