"""Batch normalization layers: drop-ins for ``torch.nn.BatchNorm1d``, ``2d``, ``3d``.

What is left for a layer is book-keeping: which statistics to use in which mode, when
to update them, what to save.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.layers.base import ChannelNorm, laid_out, write
from normbook.layers.function import normalize_by
from normbook.layers.native_norms import normalize_with_statistics
from normbook.normalize import METHODS

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]

# y, and what the running statistics take in: mean, biased variance, number of values.
Batch = tuple[Tensor, Tensor, Tensor, int]


def by_batch(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, and mean and biased variance of each channel."""
    layout = METHODS["batch norm"].of(x.ndim)
    y, (mean, var) = normalize_with_statistics(x, gamma, beta, **layout, eps=eps)
    return y, mean, var


def _count(x: Tensor) -> int:
    """Count the values of one channel; 0 where there is no channel."""
    return x.numel() // max(x.shape[1], 1)


class _BatchNorm(ChannelNorm, TorchBatchNorm):
    """What the three layers share: all but the number of axes."""

    # What recalibrate sets meanwhile; None: it cannot treat this layer.
    _recalibrating: ClassVar[dict[str, float] | None] = {"momentum": 1.0}

    def forward(self, input: Tensor) -> Tensor:
        """Normalize: by the batch in training, later by running statistics, if any."""
        running_mean, running_var = self.running_mean, self.running_var
        uses_batch = self.training or (running_mean is None and running_var is None)
        self._check(input, uses_batch)
        eps = float(self.eps)
        if not self.training and running_mean is not None and running_var is not None:
            # Clones: should training go on before backward is called, this gradient
            # must still be that of the function which was computed here.
            mean, var = running_mean.clone(), running_var.clone()
            y = normalize_by(input, mean, var, self.weight, self.bias, eps)
            return laid_out(y, input)
        y, mean, var, count = self._by_any_batch(input, eps)
        y = laid_out(y, input)
        if self.training and self.track_running_stats:
            # Nothing to average: the statistics stay; torch counts the batch.
            updates = self._updates(mean, var, count) if count else []
            write(updates, self.num_batches_tracked)
        return y

    def _by_any_batch(self, input: Tensor, eps: float) -> Batch:
        """Return what _by_batch returns, for an empty batch too."""
        if input.numel():
            return self._by_batch(input, eps)
        ones = input.new_ones(input.shape[1])
        y = normalize_by(input, ones, ones, self.weight, self.bias, eps)
        return y, ones, ones, 0

    def _by_batch(self, input: Tensor, eps: float) -> Batch:
        """Normalize by the batch. Other layers of the family change nothing else."""
        return *by_batch(input, self.weight, self.bias, eps), _count(input)

    def _size(self, input: Tensor) -> int:
        """Count what recalibrate weighs a batch by: the values of one channel."""
        return _count(input)

    def _check(self, input: Tensor, uses_batch: bool) -> None:
        """Refuse bad input, with the types of exception that torch.nn raises."""
        self._check_tensor(input)
        self._check_input_dim(input)
        self._check_float(input)
        if uses_batch:
            self._check_count(input)
        self._check_numbers()
        if uses_batch and self.eps <= 0:
            raise ValueError(
                f"eps must be positive to normalize by the batch, got {self.eps}; a "
                "constant channel would be divided by 0; 1e-5 is usual."
            )
        if input.shape[1] != self.num_features:
            raise RuntimeError(self._wrong_channels(input, 1, "num_features"))
        states = self._states()
        self._check_places(input, (self.num_features,), "channel", **states)
        self._check_dtypes(input, **states)

    def _check_count(self, input: Tensor) -> None:
        if input.numel() == input.shape[1]:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value per channel to "
                f"normalize by the batch, got shape {tuple(input.shape)}; make the "
                "batch larger (drop_last=True in a DataLoader), or call eval() to use "
                "the running statistics."
            )


class BatchNorm1d(_BatchNorm):
    r"""Batch normalization of ``(N, D)`` or ``(N, C, L)``.

    .. math::

        y = \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    with :math:`\mu` and the biased variance :math:`\sigma^2` of each channel: in
    training those of the batch, over all axes but axis 1; in evaluation the running
    averages. A drop-in for :class:`torch.nn.BatchNorm1d`; options and errors are those
    of :mod:`normbook.layers.base`.

    Source: Ioffe and Szegedy (2015), Algorithms 1 and 2; book, chapters *Batch
    normalization*, *The gradient of batch normalization* and *Moving averages*.

    >>> import torch
    >>> layer = BatchNorm1d(1, eps=1e-12, momentum=0.5)
    >>> layer(torch.tensor([[1.0], [3.0]])).tolist()  # mean 2, variance 1, unbiased 2
    [[-1.0], [1.0]]
    >>> layer.running_mean, layer.running_var
    (tensor([1.]), tensor([1.5000]))
    """

    _ndims = (2, 3)
    _shapes = "(N, D) or (N, C, L)"


class BatchNorm2d(_BatchNorm):
    """Batch normalization of images, ``(N, C, H, W)``, over all axes but C."""

    _ndims = (4,)
    _shapes = "(N, C, H, W)"


class BatchNorm3d(_BatchNorm):
    """Batch normalization of volumes or films, ``(N, C, T, H, W)``, over all but C."""

    _ndims = (5,)
    _shapes = "(N, C, T, H, W)"
