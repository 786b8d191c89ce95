"""Layer normalization layers: drop-ins for ``torch.nn.LayerNorm`` and ``RMSNorm``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbook.arrays import as_float32
from normbook.layer_norm import Rounds, check_rms_options
from normbook.layers.base import NormLayer, as_autocast, laid_out
from normbook.layers.native_norms import normalize


class _LastAxes(NormLayer):
    """A layer with statistics, gain and bias over the last axes."""

    _sizes = ("normalized_shape",)
    normalized_shape: tuple[int, ...]
    # What torch raises where the input has too few axes.
    _too_short: ClassVar[type[Exception]] = RuntimeError

    def _begin(
        self, normalized_shape: Any, device: Any, dtype: Any, **is_learned: bool
    ) -> None:
        nn.Module.__init__(self)  # past torch's class
        about = "the length of an axis of the input, counted from the last"
        is_sequence = isinstance(normalized_shape, Iterable)
        is_sequence = is_sequence and not isinstance(normalized_shape, str)
        lengths = tuple(normalized_shape) if is_sequence else (normalized_shape,)
        for length in lengths:
            self._check_length("normalized_shape", length, about)
        if not lengths:
            raise RuntimeError(
                "normalized_shape must name at least one axis, got (); pass the length "
                "of the last axis of the input."
            )
        self.normalized_shape = lengths
        self._add_parameters(lengths, device, dtype, **is_learned)
        self.reset_parameters()

    def _axes(self, input: Tensor) -> tuple[int, ...]:
        """Check the shape; give the axes to normalize, counted from 0."""
        self._check_tensor(input)
        self._check_float(input)
        shape = self.normalized_shape
        if input.shape[-len(shape) :] != shape:
            error = self._too_short if input.ndim < len(shape) else RuntimeError
            raise error(
                f"input of {type(self).__name__} must end on the axes of "
                f"normalized_shape = {shape}, got shape {tuple(input.shape)}; make "
                "the layer for this shape, or move the features to the last axes."
            )
        return tuple(range(input.ndim - len(shape), input.ndim))


class LayerNorm(_LastAxes, nn.LayerNorm):
    """Layer normalization over the last axes.

    A drop-in for :class:`torch.nn.LayerNorm`, with the options and errors of
    :mod:`normbook.layers.base`. ``normalized_shape``, also that of gain and bias, has
    the lengths of the last axes: D for input of shape ``(..., D)``, ``(C, H, W)`` for
    images as a whole; ``elementwise_affine`` is ``affine`` of other layers.

    Source: Ba et al. (2016), section 3; book, chapters *Layer normalization* and *The
    gradient of layer normalization*.

    >>> layer = LayerNorm(2, eps=1e-12)
    >>> layer(torch.tensor([[1.0, 3.0], [10.0, 50.0]])).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """

    _settings = ("eps", "elementwise_affine", "bias")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        is_learned = {"weight": elementwise_affine, "bias": elementwise_affine and bias}
        self._begin(normalized_shape, device, dtype, **is_learned)
        self.eps = eps
        self.elementwise_affine = elementwise_affine

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each example by its own mean and variance."""
        axes = self._axes(input)
        eps = self._checked_number("eps")
        states = {"weight": self.weight, "bias": self.bias}
        self._check_places(input, self.normalized_shape, "feature", **states)
        x, weight, bias = as_autocast(input, self.weight, self.bias)
        self._check_dtypes(x, weight=weight, bias=bias)
        y = normalize(x, weight, bias, axes=axes, parameter_axes=axes, eps=eps)
        return y.contiguous()


class RMSNorm(_LastAxes, nn.RMSNorm):
    """Division by the root mean square over the last axes.

    A drop-in for :class:`torch.nn.RMSNorm`, with the options of :class:`LayerNorm`, but
    there is no bias. ``eps=None`` stands for the smallest step from 1: 1.2e-7, and
    2.2e-16 for float64 input. The dtype of the layer may be any, and too few axes are a
    ValueError.

    Source: Zhang and Sennrich (2019), equation 4, there without eps; book, chapter *The
    gradient of layer normalization*.

    >>> layer = RMSNorm(2, eps=0.0)
    >>> layer(torch.tensor([[1.0, 7.0]])).detach()  # the mean of 1 and 49 is 25
    tensor([[0.2000, 1.4000]])
    """

    _settings: ClassVar[tuple[str, ...]] = ("eps", "elementwise_affine")
    _too_short = ValueError

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._begin(normalized_shape, device, dtype, weight=elementwise_affine)
        self.eps = eps
        self.elementwise_affine = elementwise_affine

    def forward(self, x: Tensor) -> Tensor:
        """Divide each example by its own root mean square."""
        axes = self._axes(x)
        self._check_places(x, self.normalized_shape, "feature", weight=self.weight)
        values, weight = as_autocast(x, self.weight)
        if self.eps is None:
            eps = torch.finfo(torch.promote_types(values.dtype, torch.float32)).eps
        else:
            eps = self._checked_number("eps")
        return laid_out(self._of(values, weight, axes, eps), x)

    def _of(
        self, x: Tensor, weight: Tensor | None, axes: tuple[int, ...], eps: float
    ) -> Tensor:
        layout = {"axes": axes, "parameter_axes": axes}
        return normalize(x, weight, None, **layout, eps=eps, is_centred=False)


class ModelRMSNorm(RMSNorm):
    """RMSNorm as language models have it: the gain less 1, or another place to round.

    ``offset`` and ``rounds`` are those of
    :func:`normbook.layer_norm.rms_norm_forward`, all else is :class:`RMSNorm`; with
    offset 1 the weight begins at 0.

    Source: the code of the models in ``normbook.conventions.MODEL_NORM``.

    >>> layer = ModelRMSNorm(2, eps=0.0, offset=1.0)
    >>> layer.weight.tolist()
    [0.0, 0.0]
    >>> layer(torch.tensor([[1.0, 7.0]])).detach()
    tensor([[0.2000, 1.4000]])
    """

    _settings = ("eps", "elementwise_affine", "offset", "rounds")

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
        rounds: Rounds = "after",
    ) -> None:
        self.offset, self.rounds = check_rms_options(offset, rounds)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Begin again: a weight that makes the gain 1."""
        self._fill(weight=1 - self.offset)

    def _of(
        self, x: Tensor, weight: Tensor | None, axes: tuple[int, ...], eps: float
    ) -> Tensor:
        if weight is None:
            return super()._of(x, None, axes, eps)
        gain = as_float32(weight) + self.offset if self.offset else weight
        if self.rounds == "after":
            return super()._of(x, gain, axes, eps)
        y = super()._of(x, None, axes, eps) * gain
        return y.to(torch.promote_types(x.dtype, weight.dtype))
