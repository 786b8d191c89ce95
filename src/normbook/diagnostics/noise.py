r"""Noise that makes distributions shift on purpose.

Santurkar et al. (2018) put it *after* each batch norm: the next layer then sees
inputs whose mean and variance differ from unit to unit and from step to step, which
is what batch norm is said to prevent. If training hardly suffers, stable
distributions are not necessary for its speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class DistributionNoise(nn.Module):
    r"""Shift and scale each unit by random amounts that change at every step.

    In training, for unit j and example i (for images, each position is an example):

    .. math::

        \mu_j &\sim U(-n_\mu, n_\mu), & \sigma_j &\sim U(1, n_\sigma)
            &&\text{once a step} \\
        m_{ij} &\sim U(\mu_j - r_\mu, \mu_j + r_\mu), &
        s_{ij} &\sim N(\sigma_j, r_\sigma^2) &&\text{for each value} \\
        y_{ij} &= s_{ij} x_{ij} + m_{ij}

    In evaluation mode it passes its input on. The defaults are the paper's; negative
    widths and ``n_sigma`` below 1 are a ``ValueError``. The numbers are drawn where the
    ``generator`` is, by default the global one of the CPU.

    Source: Santurkar et al. (2018), Appendix A, Algorithm 1. The printed loop gives
    :math:`\mu` and :math:`\sigma` no unit index; the text says that units differ. It
    does not say whether :math:`r_\sigma` is a deviation or a variance; here it is the
    standard deviation.

    Examples
    --------
    >>> noise = DistributionNoise(generator=torch.Generator().manual_seed(0))
    >>> y = noise(torch.zeros(10_000, 2, dtype=torch.float64))
    >>> bool((y.mean(0).abs() > 0.01).all()), noise.eval()(torch.ones(1, 2)).tolist()
    (True, [[1.0, 1.0]])
    """

    def __init__(
        self,
        n_mu: float = 0.5,
        n_sigma: float = 1.25,
        r_mu: float = 0.1,
        r_sigma: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(n_mu, r_mu, r_sigma) < 0 or n_sigma < 1:
            raise ValueError(
                "widths must be >= 0 and n_sigma >= 1, got "
                f"n_mu={n_mu}, n_sigma={n_sigma}, r_mu={r_mu}, r_sigma={r_sigma}; "
                "the paper takes 0.5, 1.25, 0.1 and 0.1."
            )
        self.n_mu, self.n_sigma = n_mu, n_sigma
        self.r_mu, self.r_sigma = r_mu, r_sigma
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the noise; ``x`` has shape (N, D) or (N, C, ...)."""
        if not self.training:
            return x
        per_unit = (1, x.shape[1], *(1,) * (x.dim() - 2))
        mu = self.n_mu * (2 * self._draw(torch.rand, per_unit, x) - 1)
        sigma = 1 + (self.n_sigma - 1) * self._draw(torch.rand, per_unit, x)
        m = mu + self.r_mu * (2 * self._draw(torch.rand, x.shape, x) - 1)
        s = sigma + self.r_sigma * self._draw(torch.randn, x.shape, x)
        return s * x + m

    def extra_repr(self) -> str:
        """The four widths."""
        return (
            f"n_mu={self.n_mu}, n_sigma={self.n_sigma}, "
            f"r_mu={self.r_mu}, r_sigma={self.r_sigma}"
        )

    def _draw(self, random: Any, shape: Sequence[int], x: torch.Tensor) -> torch.Tensor:
        # From a generator of the CPU, a CPU and a GPU see the same noise.
        place = "cpu" if self.generator is None else self.generator.device
        how = {"generator": self.generator, "device": place, "dtype": x.dtype}
        drawn: torch.Tensor = random(shape, **how)
        return drawn.to(x.device)
