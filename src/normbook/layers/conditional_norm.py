"""Conditional normalization layers: gain, bias and gate are made from a condition."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbook.layers.base import NormLayer, check_size, laid_out, other_device
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.layers.group_norm import InstanceNorm1d, InstanceNorm2d
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.normalize import affine, broadcast_along

__all__ = [
    "AdaptiveLayerNorm",
    "AdaptiveRMSNorm",
    "ConditionalBatchNorm1d",
    "ConditionalBatchNorm2d",
    "ConditionalInstanceNorm1d",
    "ConditionalInstanceNorm2d",
]


class _Conditional(nn.Module):
    """A norm without parameters, and a projection that makes them of a condition."""

    _axis: ClassVar[int]  # of the features
    _has_shift: ClassVar[bool] = True

    def __init__(
        self,
        norm: NormLayer,
        num_features: int,
        condition_size: int,
        has_gate: bool,
        device: torch.types.Device,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_size("condition_size", condition_size, "it is K of conditions (N, K)")
        self.num_features, self.condition_size = num_features, condition_size
        self.has_gate = has_gate
        self.norm = norm
        size = num_features * (1 + self._has_shift + has_gate)
        self.projection = nn.Linear(condition_size, size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Begin again: scale, shift and gate are 0 for every condition."""
        self.norm.reset_parameters()
        nn.init.zeros_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, input: Tensor, condition: Tensor) -> Any:
        """Normalize, scale and shift; with a gate return that too."""
        self._check(input, condition)
        x_hat = self.norm(input)
        parts = self.projection(condition).unflatten(1, (-1, self.num_features))
        scale, *others = parts.unbind(1)  # (N, D) each
        axes = (0, self._axis % input.ndim)
        shift = others.pop(0) if self._has_shift else None
        y = laid_out(affine(x_hat, 1 + scale, shift, axes), input)
        if not self.has_gate:
            return y
        return y, broadcast_along(others[0], axes, input.ndim)

    def extra_repr(self) -> str:
        """Name the settings."""
        sizes = f"{self.num_features}, {self.condition_size}"
        return f"{sizes}, has_gate={self.has_gate}" if self.has_gate else sizes

    def _check(self, input: Any, condition: Any) -> None:
        """Refuse a condition that does not fit, before anything is averaged."""
        for name, value in {"input": input, "condition": condition}.items():
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"{name} of {type(self).__name__} must be a torch tensor, got "
                    f"{type(value).__name__}; convert it, e.g. torch.as_tensor({name})."
                )
        if input.ndim < 2:
            raise ValueError(
                f"input of {type(self).__name__} must have an axis of examples and one "
                f"of features, got shape {tuple(input.shape)}; add the missing axis, "
                "e.g. input[None]."
            )
        expected = len(input), self.condition_size
        if tuple(condition.shape) != expected:
            raise RuntimeError(
                f"condition must have shape (N, condition_size) = {expected}, got "
                f"{tuple(condition.shape)}; pass one row for each example, of classes "
                "one-hot or from an embedding."
            )
        if condition.device != input.device:
            raise other_device(input, "condition", condition)


class AdaptiveLayerNorm(_Conditional):
    r"""Layer norm whose gain and bias are made from a condition (adaLN).

    .. math:: y = (1 + s(c))\,\hat x + b(c)

    for ``input`` of shape (N, ..., D) and ``condition`` c of shape (N, K). Scale and
    shift, and with ``has_gate=True`` a gate g(c), come from one linear layer that
    begins at zero: at first this is layer norm. With a gate the result is a pair, y and
    g, of shape (N, 1, ..., D), for ``input + g * branch(y)``: adaLN-Zero, in which the
    branch is off at the start. An activation of c is left to the caller.

    Source: Peebles and Xie (2023).

    >>> layer = AdaptiveLayerNorm(2, 3, eps=1e-12, has_gate=True)
    >>> y, gate = layer(torch.tensor([[1.0, 3.0]]), torch.ones(1, 3))
    >>> y.tolist(), gate.tolist()
    ([[-1.0, 1.0]], [[0.0, 0.0]])
    """

    _axis = -1

    def __init__(
        self,
        num_features: int,
        condition_size: int,
        eps: float = 1e-5,
        has_gate: bool = False,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        norm = LayerNorm(num_features, eps, elementwise_affine=False)
        super().__init__(norm, num_features, condition_size, has_gate, device, dtype)


class AdaptiveRMSNorm(_Conditional):
    r"""RMSNorm whose gain is made from a condition: :math:`y = (1 + s(c))\,\hat x`.

    Without a shift, as RMSNorm has no bias; all else is as in
    :class:`AdaptiveLayerNorm`.

    >>> layer = AdaptiveRMSNorm(2, 3, eps=0.0)
    >>> layer(torch.tensor([[1.0, 7.0]]), torch.ones(1, 3)).detach()
    tensor([[0.2000, 1.4000]])
    """

    _axis = -1
    _has_shift = False

    def __init__(
        self,
        num_features: int,
        condition_size: int,
        eps: float | None = None,
        has_gate: bool = False,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        norm = RMSNorm(num_features, eps, elementwise_affine=False)
        super().__init__(norm, num_features, condition_size, has_gate, device, dtype)


class _ConditionalBatchNorm(_Conditional):
    """What the two layers share: all but the number of axes."""

    _axis = 1
    _kind: ClassVar[type[BatchNorm1d] | type[BatchNorm2d]]

    def __init__(
        self,
        num_features: int,
        condition_size: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        track_running_stats: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = eps, momentum, False, track_running_stats, device, dtype
        norm = self._kind(num_features, *options)
        super().__init__(norm, num_features, condition_size, False, device, dtype)


class ConditionalBatchNorm1d(_ConditionalBatchNorm):
    r"""Batch norm of (N, D) or (N, C, L), gain and bias made from a condition.

    .. math:: y = (1 + s(c))\,\hat x + b(c)

    Mean, variance and running statistics are those of all examples together, whatever
    their conditions; options are those of :mod:`normbook.layers.base`. ``condition``
    has shape (N, K).

    Source: de Vries et al. (2017).

    >>> layer = ConditionalBatchNorm1d(1, 2, eps=1e-12)
    >>> layer(torch.tensor([[1.0], [3.0]]), torch.eye(2)).tolist()
    [[-1.0], [1.0]]
    """

    _kind = BatchNorm1d


class ConditionalBatchNorm2d(_ConditionalBatchNorm):
    """Conditional batch norm of images, (N, C, H, W)."""

    _kind = BatchNorm2d


class _ConditionalInstanceNorm(_Conditional):
    """What the two layers share: all but the number of axes."""

    _axis = 1
    _kind: ClassVar[type[InstanceNorm1d] | type[InstanceNorm2d]]

    def __init__(
        self,
        num_features: int,
        condition_size: int,
        eps: float = 1e-5,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        norm = self._kind(num_features, eps)
        super().__init__(norm, num_features, condition_size, False, device, dtype)


class ConditionalInstanceNorm1d(_ConditionalInstanceNorm):
    """Instance norm of (N, C, L), gain and bias made from a condition (N, K).

    Source: Dumoulin, Shlens and Kudlur (2017), there with a gain and a bias for each
    style.
    """

    _kind = InstanceNorm1d


class ConditionalInstanceNorm2d(_ConditionalInstanceNorm):
    """Conditional instance norm of images, (N, C, H, W)."""

    _kind = InstanceNorm2d
