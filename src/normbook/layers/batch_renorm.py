r"""Batch renormalization: in training, too, the running statistics set the scale.

Batch norm computes one function in training, with the statistics of the batch, and
another in evaluation, with the running ones. The smaller the batch, the farther they
lie apart. Here a factor r and a shift d take the first to the second, within limits.
"""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from normbook.arrays import as_float32
from normbook.batch_norm import batch_axes
from normbook.layers.batch_norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    _BatchNorm,
    _count,
    by_batch,
)
from normbook.normalize import moments

__all__ = ["BatchRenorm1d", "BatchRenorm2d", "BatchRenorm3d"]


class _BatchRenorm(_BatchNorm):
    """What the three layers share: r and d."""

    # Batch norm meanwhile: the running statistics are being computed anew.
    _recalibrating: ClassVar[dict[str, float] | None] = {
        "momentum": 1.0,
        "r_max": 1.0,
        "d_max": 0.0,
    }

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
        self.r_max = r_max
        self.d_max = d_max
        self._check_limits()

    def extra_repr(self) -> str:
        """Name the settings, as torch does."""
        return f"{super().extra_repr()}, r_max={self.r_max}, d_max={self.d_max}"

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

    def _by_batch(
        self, input: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        running = self.get_buffer("running_mean"), self.get_buffer("running_var")
        r, d = _correction(input.detach(), *running, eps, self.r_max, self.d_max)
        # gamma (r x_hat + d) + beta is a batch norm with another gain and bias.
        weight = self.weight
        gain, shift = (r, d) if weight is None else (weight * r, weight * d)
        bias = shift if self.bias is None else self.bias + shift
        y, mean, var = by_batch(input, gain, bias, eps)
        return y, mean, var, _count(input)


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
    :math:`\sigma` alike of the running statistics as they are *before* this batch.
    The backward pass takes r and d as constants. Where neither is clipped the output
    is :math:`\gamma (x - \mu) / \sigma + \beta`, that of evaluation.

    Evaluation, the ``state_dict`` and all else is as in
    :class:`~normbook.layers.batch_norm.BatchNorm1d`, and with ``r_max = 1`` and
    ``d_max = 0`` training is, too.

    Parameters
    ----------
    num_features : int
        D or C, the length of axis 1.
    eps, momentum, affine, track_running_stats, device, dtype, bias
        As in :class:`~normbook.layers.batch_norm.BatchNorm1d`, but running statistics
        there must be.
    r_max : float, at least 1
        Largest factor, and inverse of the smallest.
    d_max : float, at least 0
        Largest shift, in standard deviations; ``math.inf`` takes the limit away.

    Raises
    ------
    TypeError
        If ``r_max`` or ``d_max`` is no number.
    ValueError
        If one is below its range, or there are no running statistics.

    Notes
    -----
    Other errors are those of :class:`~normbook.layers.batch_norm.BatchNorm1d`.

    ``r_max`` and ``d_max`` are attributes that a schedule may set. The running
    statistics begin at mean 0 and variance 1, which are those of no data. So begin
    with ``r_max = 1`` and ``d_max = 0``, which is batch norm, and relax them once the
    averages have settled. (The paper: after 5000 steps, up to 3 at step 40 000 and 5
    at step 25 000.)

    The paper averages deviations, with eps in them; here the unbiased variance is
    averaged, as in all layers of this family, so that a ``state_dict`` means the same.

    Source: Ioffe (2017), Algorithm 1; book, chapter *Small batches*.

    Examples
    --------
    >>> x = torch.tensor([[1.0], [5.0]])  # mean 3, deviation 2
    >>> layer = BatchRenorm1d(1, eps=1e-12)
    >>> layer(x).flatten().tolist()  # r = 2 and d = 3, by mean 0 and variance 1
    [1.0, 5.0]
    >>> layer = BatchRenorm1d(1, eps=1e-12, r_max=1.5, d_max=0.5)
    >>> layer(x).flatten().tolist()
    [-1.0, 2.0]
    """


class BatchRenorm2d(_BatchRenorm, BatchNorm2d):
    """Batch renormalization of images, ``(N, C, H, W)``.

    As :class:`BatchRenorm1d`, with statistics over N, H and W.

    Examples
    --------
    >>> x = torch.arange(8.0).reshape(2, 1, 2, 2)
    >>> torch.allclose(BatchRenorm2d(1, r_max=9.0)(x), x)  # by mean 0, variance 1
    True
    """


class BatchRenorm3d(_BatchRenorm, BatchNorm3d):
    """Batch renormalization of volumes or films, ``(N, C, T, H, W)``.

    As :class:`BatchRenorm1d`, with statistics over all axes but C.

    Examples
    --------
    >>> BatchRenorm3d(2)(torch.zeros(3, 2, 4, 5, 6)).shape
    torch.Size([3, 2, 4, 5, 6])
    """


def _correction(
    x: Tensor, mean: Tensor, var: Tensor, eps: float, r_max: float, d_max: float
) -> tuple[Tensor, Tensor]:
    """Give r and d, shape (C,): what takes the statistics of x to the given ones."""
    x = as_float32(x)
    mu_batch, var_batch = (value.flatten() for value in moments(x, batch_axes(x)))
    sigma_batch, sigma = (var_batch + eps).sqrt(), (var.to(x.dtype) + eps).sqrt()
    r = (sigma_batch / sigma).clamp(1 / r_max, r_max)
    d = ((mu_batch - mean.to(x.dtype)) / sigma).clamp(-d_max, d_max)
    return r, d
