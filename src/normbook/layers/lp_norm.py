r"""Normalization by an :math:`\ell_p` norm, to ask what batch norm needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from normbook.layers.base import NormLayer, check_size


class LpNorm1d(NormLayer):
    r"""Subtract the mean of the batch, divide by the batch's average ℓp norm.

    .. math::

        y = \gamma\, \frac{x - \mu}{s + \epsilon} + \beta, \qquad
        s = \Big( \frac1N \sum_n \lvert x_n \rvert^p \Big)^{1/p}

    for each unit over the N examples of the batch, in evaluation, too; for
    :math:`p = \infty`, ``math.inf``, :math:`s = \max_n |x_n|`. The spread of a unit
    stays free, since s is taken before the centring. ``eps`` has the unit of x; other
    options are those of :mod:`normbook.layers.base`. A size or p below 1 and a negative
    eps are a ValueError. The derivative is left to autograd.

    Source: Santurkar et al. (2018), section 3.3 and Appendix A.

    >>> LpNorm1d(1, p=1, eps=0.0)(torch.tensor([[1.0], [3.0]])).tolist()
    [[-0.5], [0.5]]
    """

    _sizes = ("num_features",)
    _settings = ("p", "eps")
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        p: float,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("num_features", num_features, "pass D")
        if not p >= 1:
            raise ValueError(f"p must be at least 1, got {p}; pass 1, 2 or math.inf.")
        if not 0 <= eps < math.inf:
            raise ValueError(
                f"eps must be finite and not negative, got {eps}; 1e-5 is usual."
            )
        self.num_features, self.p, self.eps = num_features, p, eps
        self._add_parameters(num_features, device, dtype, weight=affine, bias=affine)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; ``x`` has shape (N, D)."""
        if x.dim() != 2 or x.shape[1] != self.num_features or x.shape[0] == 0:
            raise ValueError(
                f"x must have shape (N, {self.num_features}) with N >= 1, got "
                f"{tuple(x.shape)}; flatten other axes."
            )
        size = x.abs()
        if self.p == math.inf:
            s = size.amax(dim=0)
        else:
            s = size.pow(self.p).mean(dim=0).pow(1 / self.p)
        y = (x - x.mean(dim=0)) / (s + self.eps)
        if self.weight is not None and self.bias is not None:
            y = y * self.weight + self.bias
        return y
