r"""Batch norm that divides by the *unbiased* standard deviation of the batch.

The usual layer normalizes by the variance over N and averages the one over N - 1 for
inference. This one takes the second in training, too, as Ba et al. (2016) do at a
batch of 4.
"""

from __future__ import annotations

from torch import Tensor

from normbook.layers.batch_norm import BatchNorm1d, by_batch

__all__ = ["UnbiasedBatchNorm1d"]


class UnbiasedBatchNorm1d(BatchNorm1d):
    r"""Batch normalization by the unbiased variance.

    .. math::

        y = \gamma\,\frac{x - \mu}{\sqrt{\frac{n}{n-1}\sigma^2 + \epsilon}} + \beta

    with the n values of a channel in the batch. All else, the arguments, the
    ``state_dict`` and evaluation, is as in
    :class:`~normbook.layers.batch_norm.BatchNorm1d`.

    Notes
    -----
    Source: Ba et al. (2016), section 6.6; book, chapter *Small batches*.

    Examples
    --------
    >>> import torch
    >>> layer = UnbiasedBatchNorm1d(1, eps=1e-12)
    >>> y = layer(torch.tensor([[1.0], [3.0]]))  # unbiased variance 2
    >>> [round(value, 4) for value in y.flatten().tolist()]
    [-0.7071, 0.7071]
    """

    def _by_batch(
        self, input: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        # With k**2 = (n - 1) / n, this is k times a batch norm with k**2 eps.
        count = input.numel() // input.shape[1]
        squared = (count - 1) / count
        weight = self.weight
        gain = input.new_ones(self.num_features) if weight is None else weight
        y, mean, var = by_batch(input, gain * squared**0.5, self.bias, squared * eps)
        return y, mean, var, count
