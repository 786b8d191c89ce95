r"""Group and instance normalization layers: drop-ins for those of ``torch.nn``.

The formulas are those of :mod:`normbook.group_norm`, and so is the backward pass.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm as TorchInstanceNorm

from normbook.layers.base import (
    ChannelNorm,
    NormLayer,
    as_autocast,
    check_dtypes,
    check_places,
    laid_out,
    whole_number,
    write,
)
from normbook.layers.function import normalize, normalize_by
from normbook.normalize import METHODS

__all__ = ["GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


# torch's types are inherited and none of their code: the classes of the module base and
# those here have every method that torch's have. Being of the type, the layers are
# found by filters that ask for it, such as those that keep weight decay from gains.
class GroupNorm(NormLayer, nn.GroupNorm):
    r"""Group normalization of ``(N, C)`` or ``(N, C, ...)``.

    .. math::

        y_{nc\cdot} = \gamma_c\,\frac{x_{nc\cdot} - \mu_{ng}}
        {\sqrt{\sigma_{ng}^2 + \epsilon}} + \beta_c

    where channel c lies in group g, with the mean and the biased variance of each group
    of each example, in training and in evaluation alike. Channels-last memory stays
    channels-last. A drop-in for :class:`torch.nn.GroupNorm`: same arguments, same
    ``state_dict``, same numbers up to rounding.

    Parameters
    ----------
    num_groups : int
        G, a divisor of C. Channels that follow each other form a group.
    num_channels : int
        C, the length of axis 1.
    eps : float
        Added to the variance, inside the root; unit of x squared.
    affine : bool
        Whether to learn :math:`\gamma` (``weight``, begins at 1) and
        :math:`\beta` (``bias``, begins at 0).
    device, dtype
        Of the parameters.
    bias : bool
        With ``False`` only :math:`\gamma` is learned.

    Attributes
    ----------
    weight, bias : Parameter, shape (num_channels,), or None

    Raises
    ------
    TypeError
        If an argument or the input is of the wrong kind.
    ValueError
        If ``num_groups`` does not divide ``num_channels``; on a call, if eps is
        negative or not finite, or the input is one example of which each group has a
        single value.
    RuntimeError
        If ``num_channels`` is negative, or input and layer differ in channels, device
        or dtype. Half precision may come with a float32 layer.
    NotImplementedError
        If the input holds no real floating-point numbers.

    Notes
    -----
    Under ``torch.autocast`` on a GPU it runs in float32, as torch's layer does.

    Source: Wu and He (2018), equations 1, 2, 6 and 7; book, chapter *Choosing
    the axes*.

    Examples
    --------
    >>> layer = GroupNorm(2, 4, eps=1e-12)
    >>> layer(torch.tensor([[1.0, 3.0, 10.0, 50.0]])).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

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
        groups = whole_number("num_groups", num_groups, "a divisor of num_channels")
        about = "the length of axis 1"
        if whole_number("num_channels", num_channels, about) < 0:
            raise RuntimeError(
                f"num_channels must not be negative, got {num_channels}; it is {about}."
            )
        if groups < 1 or num_channels % groups:
            raise ValueError(
                f"num_groups must be a divisor of num_channels = {num_channels}, got "
                f"{num_groups}; groups have equally many channels."
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._add_parameters(
            num_channels, device, dtype, weight=affine, bias=affine and bias
        )
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, "
            f"affine={self.affine}, bias={self.bias is not None}"
        )

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each group of channels of each example."""
        self._check(input)
        eps = self._checked_number("eps", "1e-5 is usual")
        x, weight, bias = as_autocast(input, self.weight, self.bias)
        check_dtypes(x, {"weight": weight, "bias": bias})
        # Without parameters torch takes any number of channels that has the groups.
        split = self.num_groups, input.shape[1] // self.num_groups
        gamma, beta = (None if v is None else v.reshape(split) for v in (weight, bias))
        grouped = x.reshape(len(x), *split, *x.shape[2:])
        layout = METHODS["group norm"].of(grouped.ndim)
        y, _ = normalize(grouped, gamma, beta, **layout, eps=eps)
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
        channels = input.shape[1]
        states = {"weight": self.weight, "bias": self.bias}
        has_state = any(value is not None for value in states.values())
        if has_state and channels != self.num_channels:
            raise RuntimeError(
                f"input must have num_channels = {self.num_channels} channels on axis "
                f"1, got shape {tuple(input.shape)}; make the layer with num_channels="
                f"{channels}, or move the channels to axis 1."
            )
        if channels % self.num_groups:
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
        check_places(input, states, (self.num_channels,), "channel")


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
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            bias=bias,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel of each example.

        By its own statistics; in evaluation by the running statistics, if there are.
        """
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

    def _by_input(self, x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return y, and what is to be written to the running statistics."""
        layout = METHODS["instance norm"].of(x.ndim)
        y, statistics = normalize(
            x, self.weight, self.bias, **layout, eps=float(self.eps)
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
        # Clones: should training go on before backward is called, this gradient must
        # still be that of the function which was computed here.
        mean, var = self.running_mean.clone(), self.running_var.clone()
        return normalize_by(x, mean, var, self.weight, self.bias, float(self.eps))

    def _check(self, input: Tensor, uses_input: bool) -> None:
        """Refuse bad input, with the types of exception that torch.nn raises."""
        self._check_tensor(input)
        self._check_input_dim(input)
        self._check_float(input)
        self._check_numbers()
        states = self._states()
        self._check_channels(
            input, has_state=any(v is not None for v in states.values())
        )
        places = input.shape[2 - self._ndims[1] + input.dim() :]
        if uses_input and math.prod(places) == 1:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value in a channel, got "
                f"shape {tuple(input.shape)}; a value less its mean is 0. Take batch "
                "norm, or larger images."
            )
        check_places(input, states, (self.num_features,), "channel")
        check_dtypes(input, {name: states[name] for name in ("weight", "bias")})

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
        found = [key for key in keys if key in state_dict]
        is_first = local_metadata.get("version") is None
        if is_first and found and not self.track_running_stats:
            error_msgs.append(
                f"{' and '.join(found)} must not be in the checkpoint of a layer with "
                "track_running_stats=False; delete what was saved before torch 0.4, or "
                f"make the {type(self).__name__} with track_running_stats=True."
            )
            for key in found:
                del state_dict[key]
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def _check_channels(self, input: Tensor, has_state: bool) -> None:
        axis = 1 - self._ndims[1] + input.dim()
        channels = input.shape[axis]
        if channels == self.num_features:
            return
        message = (
            f"input must have num_features = {self.num_features} channels on axis "
            f"{axis}, got shape {tuple(input.shape)}; make the layer with num_features="
            f"{channels}, or move the channels to axis {axis}."
        )
        if self.affine:
            raise ValueError(message)
        if has_state:
            raise RuntimeError(message)
        warnings.warn(f"{message} Nothing depends on it here.", stacklevel=4)


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    r"""Instance normalization of ``(N, C, L)``, or of one example ``(C, L)``.

    .. math::

        y_{nc\cdot} = \gamma_c\,\frac{x_{nc\cdot} - \mu_{nc}}
        {\sqrt{\sigma_{nc}^2 + \epsilon}} + \beta_c

    with the mean and the biased variance of each channel of each example. A drop-in for
    :class:`torch.nn.InstanceNorm1d`: same arguments, same ``state_dict``, same numbers
    up to rounding. As there, gain, bias and running statistics have to be asked for.

    Parameters
    ----------
    num_features : int
        C.
    eps : float
        Added to the variance, inside the root; unit of x squared.
    momentum : float or None
        Weight of the *new* value in the running averages, 0 to 1. With ``None`` they
        stay as they are.
    affine : bool
        Whether to learn :math:`\gamma` (``weight``, begins at 1) and
        :math:`\beta` (``bias``, begins at 0).
    track_running_stats : bool
        Whether to keep running averages over the examples, and to use them in
        evaluation. Without them training and evaluation are one function.
    device, dtype
        Of parameters and buffers.
    bias : bool
        With ``False`` only :math:`\gamma` is learned.

    Attributes
    ----------
    weight, bias : Parameter, shape (num_features,), or None
    running_mean, running_var : Tensor, shape (num_features,), or None
        ``running_var`` averages *unbiased* variances.
    num_batches_tracked : Tensor, int64, or None
        Always 0: torch does not count here.

    Raises
    ------
    TypeError
        If an argument or the input is of the wrong kind.
    ValueError
        On a call: if the number of axes is wrong, a channel has a single value that is
        to be normalized by itself, an affine layer has another number of channels, eps
        is negative or not finite, or momentum is not in 0..1.
    RuntimeError
        If ``num_features`` is negative, or input and layer differ in device, dtype, or
        the channels of the running statistics. Half precision may come with a float32
        layer.
    NotImplementedError
        If the input holds no real floating-point numbers.

    Warns
    -----
    UserWarning
        If ``num_features`` is wrong and the layer holds nothing that depends on it.

    Notes
    -----
    After an error the running statistics are as before.

    Source: Ulyanov, Vedaldi and Lempitsky (2016), equation 3; book, chapter *Choosing
    the axes*.

    Examples
    --------
    >>> layer = InstanceNorm1d(2, eps=1e-12)
    >>> layer(torch.tensor([[[1.0, 3.0], [10.0, 50.0]]])).tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """

    _ndims = (2, 3)
    _shapes = "(C, L) or (N, C, L)"


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """Instance normalization of images, ``(N, C, H, W)`` or ``(C, H, W)``.

    As :class:`InstanceNorm1d`, with statistics over H and W. A drop-in for
    :class:`torch.nn.InstanceNorm2d`.

    Examples
    --------
    >>> x = torch.arange(8.0).reshape(2, 1, 2, 2)
    >>> InstanceNorm2d(1)(x).sum((2, 3)).abs() < 1e-5
    tensor([[True],
            [True]])
    """

    _ndims = (3, 4)
    _shapes = "(C, H, W) or (N, C, H, W)"


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """Instance normalization of volumes or films, ``(N, C, T, H, W)`` or without N.

    As :class:`InstanceNorm1d`, with statistics over all axes but N and C. A drop-in for
    :class:`torch.nn.InstanceNorm3d`.

    Examples
    --------
    >>> InstanceNorm3d(2)(torch.zeros(2, 4, 5, 6)).shape
    torch.Size([2, 4, 5, 6])
    """

    _ndims = (4, 5)
    _shapes = "(C, T, H, W) or (N, C, T, H, W)"
