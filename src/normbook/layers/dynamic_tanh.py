"""Dynamic Tanh as a layer in the place of a layer norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from normbook.dynamic_tanh import dynamic_tanh
from normbook.layers.base import NormLayer, check_size


class DynamicTanh(NormLayer):
    r"""Squash each number: :math:`y = \gamma\,\tanh(\alpha x) + \beta`.

    The last axis of x has ``num_features`` places, each with a gain and a bias;
    ``alpha``, of shape (1,), begins at ``alpha_init``. Other options are those of
    :mod:`normbook.layers.base`. A size below 1 and an ``alpha_init`` that is not finite
    are a ValueError. The derivative is left to autograd; in closed form it is
    :func:`normbook.dynamic_tanh.dynamic_tanh_backward`.

    Source: Zhu et al. (2025), "Transformers without normalization".

    >>> DynamicTanh(2)(torch.tensor([[0.0, 50.0]])).tolist()
    [[0.0, 1.0]]
    """

    _sizes = ("num_features",)
    _settings = ("alpha_init",)
    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(
        self,
        num_features: int,
        alpha_init: float = 0.5,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_size("num_features", num_features, "pass D")
        if not math.isfinite(alpha_init):
            raise ValueError(
                f"alpha_init must be a finite number, got {alpha_init}; 0.5 is usual."
            )
        self.num_features, self.alpha_init = num_features, alpha_init
        self.alpha = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self._add_parameters(num_features, device, dtype, weight=True, bias=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let alpha begin at ``alpha_init``, the gain at 1 and the bias at 0."""
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.alpha_init)

    def forward(self, x: Tensor) -> Tensor:
        """Squash; ``x`` has shape (..., D)."""
        y: Tensor = dynamic_tanh(x, self.alpha, self.weight, self.bias)
        return y
