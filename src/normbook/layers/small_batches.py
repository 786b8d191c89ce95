"""Batch norm for small batches: other statistics in training.

All else, options, errors, ``state_dict`` and evaluation, is as in
:class:`~normbook.layers.batch_norm.BatchNorm1d`.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from normbook.arrays import as_float32
from normbook.batch_norm import batch_axes
from normbook.layers.base import check_size
from normbook.layers.batch_norm import (
    Batch,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    _BatchNorm,
    _count,
    by_batch,
)
from normbook.normalize import moments
from normbook.running_statistics import unbiased


class _GhostBatchNorm(_BatchNorm):
    """What the three layers share: the ghosts."""

    _settings = (*_BatchNorm._settings, "virtual_batch_size")

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
        args = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*args, bias=bias)
        self.virtual_batch_size = virtual_batch_size
        self._check_virtual_batch_size()

    def _check_virtual_batch_size(self) -> None:
        about = "it counts the examples of a ghost, 32 is usual"
        check_size("virtual_batch_size", self.virtual_batch_size, about)

    def _check(self, input: Tensor, uses_batch: bool) -> None:
        super()._check(input, uses_batch)
        self._check_virtual_batch_size()
        if uses_batch and self.virtual_batch_size * _positions(input) == 1:
            raise ValueError(
                f"{type(self).__name__} needs more than 1 value per channel in a "
                f"ghost, got virtual_batch_size=1 and shape {tuple(input.shape)}; "
                "take at least 2."
            )

    def _by_batch(self, input: Tensor, eps: float) -> Batch:
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

    Each example is normalized by mean and biased variance of its ghost: the first
    ``virtual_batch_size`` examples, the next ones, and so on. The last one is smaller
    where the batch does not divide evenly; a single value in a channel joins the ghost
    before. A size of N or more *is* batch norm. One of 1 is instance norm where there
    are several positions L, and else a ValueError. Without running statistics
    evaluation normalizes by ghosts, too.

    The running statistics take in the average over the ghosts, weighted by their size,
    of mean and *unbiased* variance. (The paper takes in one ghost after another, so
    that their order gives them unequal weights, and it averages deviations.)

    Source: Hoffer, Hubara and Soudry (2017), Algorithm 1; book, chapter *Small
    batches*.

    >>> layer = GhostBatchNorm1d(1, virtual_batch_size=2, eps=1e-12, momentum=1.0)
    >>> layer(torch.tensor([[1.0], [3.0], [10.0], [20.0]])).flatten().tolist()
    [-1.0, 1.0, -1.0, 1.0]
    >>> layer.running_mean, layer.running_var  # means 2 and 15, variances 2 and 50
    (tensor([8.5000]), tensor([26.]))
    """


class GhostBatchNorm2d(_GhostBatchNorm, BatchNorm2d):
    """Ghost batch normalization of images, ``(N, C, H, W)``."""


class GhostBatchNorm3d(_GhostBatchNorm, BatchNorm3d):
    """Ghost batch normalization of volumes or films, ``(N, C, T, H, W)``."""


def _positions(x: Tensor) -> int:
    """Count the values that one example has in one channel."""
    return math.prod(x.shape[2:])


class _BatchRenorm(_BatchNorm):
    """What the three layers share: r and d."""

    _settings = (*_BatchNorm._settings, "r_max", "d_max")
    # Batch norm meanwhile: the running statistics are being computed anew.
    _recalibrating = {"momentum": 1.0, "r_max": 1.0, "d_max": 0.0}  # noqa: RUF012 - never changed

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
        r_max: float = 3.0,
        d_max: float = 5.0,
    ) -> None:
        args = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*args, bias=bias)
        self.r_max, self.d_max = r_max, d_max
        self._check_limits()

    def _check(self, input: Tensor, uses_batch: bool) -> None:
        super()._check(input, uses_batch)
        self._check_limits()

    def _check_limits(self) -> None:
        for name, value, least in (("r_max", self.r_max, 1), ("d_max", self.d_max, 0)):
            if not isinstance(value, Real):
                raise TypeError(
                    f"{name} must be a number, got {value!r}; {least} at the start of "
                    "training, more later."
                )
            if not value >= least:  # NaN too
                raise ValueError(
                    f"{name} must be at least {least}, got {value}; r lies between "
                    "1 / r_max and r_max, d between -d_max and d_max, and r_max = 1 "
                    "with d_max = 0 is batch norm."
                )
        if not self.track_running_stats or self.running_mean is None:
            raise ValueError(
                f"{type(self).__name__} needs running statistics, got "
                f"track_running_stats={self.track_running_stats}; r and d compare the "
                "batch with them. Leave it at True, or take batch norm."
            )

    def _by_batch(self, input: Tensor, eps: float) -> Batch:
        running = self.get_buffer("running_mean"), self.get_buffer("running_var")
        r, d = _correction(input.detach(), *running, eps, self.r_max, self.d_max)
        # gamma (r x_hat + d) + beta is a batch norm with another gain and bias.
        weight = self.weight
        gain, shift = (r, d) if weight is None else (weight * r, weight * d)
        bias = shift if self.bias is None else self.bias + shift
        return *by_batch(input, gain, bias, eps), _count(input)


class BatchRenorm1d(_BatchRenorm, BatchNorm1d):
    r"""Batch renormalization of ``(N, D)`` or ``(N, C, L)``.

    In training

    .. math::

        y = \gamma\left(\frac{x - \mu_B}{\sigma_B}\,r + d\right) + \beta, \qquad
        r = \operatorname{clip}\Big(\frac{\sigma_B}{\sigma},
        \frac{1}{r_{\max}}, r_{\max}\Big), \qquad
        d = \operatorname{clip}\Big(\frac{\mu_B - \mu}{\sigma},
        -d_{\max}, d_{\max}\Big)

    with :math:`\sigma_B = \sqrt{\sigma_B^2 + \epsilon}` of the batch, biased, and
    :math:`\sigma` alike of the running statistics, which there must be, as they are
    *before* this batch. The backward pass takes r and d as constants. Where neither is
    clipped (``math.inf`` takes a limit away) the output is that of evaluation.

    ``r_max``, at least 1, and ``d_max``, at least 0, are attributes that a schedule may
    set. The running statistics begin as those of no data. So begin with ``r_max = 1``
    and ``d_max = 0``, which is batch norm, and relax them once the averages have
    settled. (The paper: after 5000 steps, up to 3 at step 40 000 and 5 at step 25 000.
    It averages deviations, with eps in them, and not the unbiased variance.)

    Source: Ioffe (2017), Algorithm 1; book, chapter *Small batches*.

    >>> x = torch.tensor([[1.0], [5.0]])  # mean 3, deviation 2
    >>> layer = BatchRenorm1d(1, eps=1e-12)
    >>> layer(x).flatten().tolist()  # r = 2 and d = 3, by mean 0 and variance 1
    [1.0, 5.0]
    """


class BatchRenorm2d(_BatchRenorm, BatchNorm2d):
    """Batch renormalization of images, ``(N, C, H, W)``."""


class BatchRenorm3d(_BatchRenorm, BatchNorm3d):
    """Batch renormalization of volumes or films, ``(N, C, T, H, W)``."""


def _correction(
    x: Tensor, mean: Tensor, var: Tensor, eps: float, r_max: float, d_max: float
) -> tuple[Tensor, Tensor]:
    """Return r and d, shape (C,): what takes the statistics of x to the given ones."""
    x = as_float32(x)
    mu_batch, var_batch = (value.flatten() for value in moments(x, batch_axes(x)))
    sigma_batch, sigma = (var_batch + eps).sqrt(), (var.to(x.dtype) + eps).sqrt()
    r = (sigma_batch / sigma).clamp(1 / r_max, r_max)
    d = ((mu_batch - mean.to(x.dtype)) / sigma).clamp(-d_max, d_max)
    return r, d


class UnbiasedBatchNorm1d(BatchNorm1d):
    r"""Batch normalization by the unbiased variance, in training as well.

    With n values of a channel in the batch, deviations are divided by
    :math:`\sqrt{\frac{n}{n-1}\sigma^2 + \epsilon}`. Source: Ba et al. (2016), section
    6.6; book, chapter *Small batches*.

    >>> layer = UnbiasedBatchNorm1d(1, affine=False)
    >>> layer(torch.tensor([[1.0], [3.0]])).flatten()  # unbiased variance 2
    tensor([-0.7071,  0.7071])
    """

    def _by_batch(self, input: Tensor, eps: float) -> Batch:
        # With k**2 = (n - 1) / n, this is k times a batch norm with k**2 eps.
        count = _count(input)
        squared = (count - 1) / count
        weight = self.weight
        gain = input.new_ones(self.num_features) if weight is None else weight
        return *by_batch(input, gain * squared**0.5, self.bias, squared * eps), count
