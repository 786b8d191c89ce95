r"""Batch norm of sequences of several lengths: padding does not count.

Sequences that share a tensor are padded to one length. To batch norm the padding is
data like any other: it moves mean and variance, the more the longer it is. This layer
is told which entries are live, and looks at no others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normbook.layers.batch_norm import BatchNorm1d

__all__ = ["MaskedBatchNorm1d"]


class MaskedBatchNorm1d(BatchNorm1d):
    r"""Batch normalization of the live entries of ``(N, C, T)`` or ``(N, D)``.

    .. math::

        \mu = \frac{1}{K}\sum_{n,t} m_{nt}\,x_{nt}, \qquad
        \sigma^2 = \frac{1}{K}\sum_{n,t} m_{nt}\,(x_{nt} - \mu)^2, \qquad
        K = \sum_{n,t} m_{nt}

    in each channel, with :math:`m_{nt}` 1 where the entry is live and 0 where it is
    padding. Live entries are normalized as by
    :class:`~normbook.layers.batch_norm.BatchNorm1d`, in evaluation by the running
    statistics; padding becomes 0. Call it as ``layer(input, mask)``, with a ``mask`` of
    dtype bool, true where live, and shape ``(N, T)`` or ``(N,)``.

    It equals batch norm of the K live entries put together, of shape ``(K, C)``, in
    output, gradient and running statistics. No gradient reaches the padding, and
    nothing leaves it, NaN included.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        As in :class:`~normbook.layers.batch_norm.BatchNorm1d`, and so is the
        ``state_dict``.

    Raises
    ------
    TypeError
        If the mask is no tensor of dtype bool.
    ValueError
        If its shape does not fit that of the input, or a single entry is live in
        training. If none is, the output is 0 and the running statistics stay.
    RuntimeError
        If it is on another device than the input.

    Notes
    -----
    Other errors are those of :class:`~normbook.layers.batch_norm.BatchNorm1d`.

    Source: book, chapter *Variable length*.

    Examples
    --------
    >>> x = torch.tensor([[[1.0, 3.0, 9.0]], [[5.0, 9.0, 9.0]]])  # the 9s are padding
    >>> mask = torch.tensor([[True, True, False], [True, False, False]])
    >>> layer = MaskedBatchNorm1d(1, momentum=1.0)
    >>> y = layer(x, mask)
    >>> layer.running_mean, layer.running_var  # of 1, 3 and 5
    (tensor([3.]), tensor([4.]))
    >>> [round(value, 3) for value in y.flatten().tolist()]
    [-1.225, 0.0, 0.0, 1.225, 0.0, 0.0]
    """

    def forward(self, input: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Normalize the live entries; padding becomes 0."""
        self._check(input, uses_batch=False)
        self._check_mask(input, mask)
        live = input.movedim(1, -1)[mask]  # (K, C)
        if len(live) == 1 and (self.training or self.running_mean is None):
            raise ValueError(
                f"{type(self).__name__} needs more than 1 live entry to normalize by "
                f"the batch, got 1 in a mask of shape {tuple(mask.shape)}; make the "
                "batch larger, or call eval() to use the running statistics."
            )
        y_live = super().forward(live)
        y = y_live.new_zeros(*mask.shape, self.num_features)
        return y.index_put((mask,), y_live).movedim(-1, 1).contiguous()

    def _size(self, input: Tensor, mask: Tensor) -> int:  # type: ignore[override]
        return int(mask.sum())

    def _check_mask(self, input: Tensor, mask: Any) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(
                f"mask must be a torch tensor of dtype bool, got {found}; for lengths "
                "of shape (N,) it is torch.arange(T) < lengths[:, None]."
            )
        expected = (len(input), *input.shape[2:])
        if tuple(mask.shape) != expected:
            raise ValueError(
                f"mask must have the shape of the input without its channels, "
                f"{expected}, got {tuple(mask.shape)}; give one bool for each entry."
            )
        if mask.device != input.device:
            raise RuntimeError(
                f"input and mask must be on one device, got {input.device} and "
                f"{mask.device}; move one of them with .to(...)."
            )
