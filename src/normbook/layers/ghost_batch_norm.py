r"""Ghost batch norm: a large batch normalized as several small ones.

The noise of small batches can be wanted: with large ones a net may generalize worse.
So a large batch, which fills the machine, is split into *ghosts* of
``virtual_batch_size`` examples, each normalized by its own mean and variance.
"""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor

from normbook.layers.batch_norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    _BatchNorm,
    _count,
    by_batch,
)
from normbook.running_statistics import unbiased

__all__ = ["GhostBatchNorm1d", "GhostBatchNorm2d", "GhostBatchNorm3d"]


class _GhostBatchNorm(_BatchNorm):
    """What the three layers share: the ghosts."""

    def __init__(
        self,
        num_features: int,
        virtual_batch_size: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
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
        self.virtual_batch_size = virtual_batch_size
        self._check_virtual_batch_size()

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        settings = super().extra_repr()
        return f"{settings}, virtual_batch_size={self.virtual_batch_size}"

    def _check_virtual_batch_size(self) -> None:
        size = self.virtual_batch_size
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(
                f"virtual_batch_size must be a whole number, got {size!r}; it counts "
                "the examples of a ghost, 32 is usual."
            )
        if size < 1:
            raise ValueError(
                f"virtual_batch_size must be at least 1, got {size}; it counts the "
                "examples of a ghost, 32 is usual."
            )

    def _check(self, input: Tensor, uses_batch: bool) -> None:
        super()._check(input, uses_batch)
        self._check_virtual_batch_size()
        if uses_batch and self.virtual_batch_size * _positions(input) == 1:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value per channel in a "
                f"ghost, got virtual_batch_size=1 and shape {tuple(input.shape)}; "
                "take at least 2."
            )

    def _by_batch(
        self, input: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        size, positions = int(self.virtual_batch_size), _positions(input)
        ghosts, rest = divmod(len(input), size)
        if rest * positions == 1:  # one value has no variance: it joins a ghost
            ghosts, rest = ghosts - 1, rest + size
        if not rest:
            return *self._by_ghost(input, ghosts, eps), size * positions
        if not ghosts:
            return *self._by_ghost(input, 1, eps), rest * positions
        split = ghosts * size
        y, mean, var = self._by_ghost(input[:split], ghosts, eps)
        y_rest, mean_rest, var_rest = self._by_ghost(input[split:], 1, eps)
        share = rest / len(input)
        mean = (1 - share) * mean + share * mean_rest
        var = (1 - share) * unbiased(var, size * positions)
        var = var + share * unbiased(var_rest, rest * positions)
        count = _count(input)
        # The caller corrects by count / (count - 1), but var is unbiased already.
        return torch.cat([y, y_rest]), mean, var * ((count - 1) / count), count

    def _by_ghost(
        self, x: Tensor, ghosts: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize equal ghosts at once: each has channels of its own."""
        shape = (ghosts, len(x) // ghosts, *x.shape[1:])
        apart = x.reshape(shape).transpose(0, 1)  # (size, ghosts, C, ...)
        gain, bias = (
            None if value is None else value.repeat(ghosts)
            for value in (self.weight, self.bias)
        )
        y, mean, var = by_batch(apart.flatten(1, 2), gain, bias, eps)
        y = y.reshape(apart.shape).transpose(0, 1).reshape(x.shape)
        mean, var = (value.reshape(ghosts, -1).mean(0) for value in (mean, var))
        return y, mean, var


class GhostBatchNorm1d(_GhostBatchNorm, BatchNorm1d):
    r"""Batch normalization of ``(N, D)`` or ``(N, C, L)``, ghost by ghost.

    .. math::

        y_i = \gamma\,\frac{x_i - \mu_g}{\sqrt{\sigma_g^2 + \epsilon}} + \beta,
        \qquad i \in g

    with mean and biased variance of the ghost g to which example i belongs: the first
    ``virtual_batch_size`` examples, the next ones, and so on. The last ghost is
    smaller where the batch does not divide evenly. If it would have a single value in
    a channel, it joins the ghost before.

    Evaluation uses the running statistics, as
    :class:`~normbook.layers.batch_norm.BatchNorm1d` does; so does everything else,
    the ``state_dict`` included. A ``virtual_batch_size`` of N or more *is* batch norm.
    One of 1 is instance norm, where there are several positions L.

    Parameters
    ----------
    num_features : int
        D or C, the length of axis 1.
    virtual_batch_size : int
        Examples of a ghost, at least 1.
    eps, momentum, affine, track_running_stats, device, dtype, bias
        As in :class:`~normbook.layers.batch_norm.BatchNorm1d`. Without running
        statistics evaluation normalizes by ghosts, too.

    Raises
    ------
    TypeError
        If ``virtual_batch_size`` is no whole number.
    ValueError
        If it is less than 1, or in training leaves one value in a channel.

    Notes
    -----
    Other errors are those of :class:`~normbook.layers.batch_norm.BatchNorm1d`.

    The running statistics take in one value a step: the average over the ghosts,
    weighted by their size, of mean and *unbiased* variance. The paper takes in the
    ghosts one after another, so that their order gives them unequal weights, and it
    averages deviations. Here the order does not matter, and a step has one weight,
    ``momentum``, whatever the number of ghosts.

    Source: Hoffer, Hubara and Soudry (2017), Algorithm 1; book, chapter *Small
    batches*.

    Examples
    --------
    >>> layer = GhostBatchNorm1d(1, virtual_batch_size=2, eps=1e-12, momentum=1.0)
    >>> y = layer(torch.tensor([[1.0], [3.0], [10.0], [20.0]]))
    >>> y.flatten().tolist()
    [-1.0, 1.0, -1.0, 1.0]
    >>> layer.running_mean, layer.running_var  # means 2 and 15, variances 2 and 50
    (tensor([8.5000]), tensor([26.]))
    """


class GhostBatchNorm2d(_GhostBatchNorm, BatchNorm2d):
    """Ghost batch normalization of images, ``(N, C, H, W)``.

    As :class:`GhostBatchNorm1d`, with statistics over the examples of a ghost and
    over H and W.

    Examples
    --------
    >>> x = torch.arange(16.0).reshape(4, 1, 2, 2)
    >>> y = GhostBatchNorm2d(1, virtual_batch_size=2)(x)
    >>> torch.equal(y[:2], y[2:])  # the second ghost is the first plus 8
    True
    """


class GhostBatchNorm3d(_GhostBatchNorm, BatchNorm3d):
    """Ghost batch normalization of volumes or films, ``(N, C, T, H, W)``.

    As :class:`GhostBatchNorm1d`, with statistics over the examples of a ghost and
    over T, H and W.

    Examples
    --------
    >>> GhostBatchNorm3d(2, virtual_batch_size=2)(torch.zeros(3, 2, 4, 5, 6)).shape
    torch.Size([3, 2, 4, 5, 6])
    """


def _positions(x: Tensor) -> int:
    """Count the values that one example has in one channel."""
    return math.prod(x.shape[2:])
