"""What a layer computes in evaluation, or without gradients, is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer


class PlainLayerNorm(nn.LayerNorm):
    """A layer norm with another way for some inputs."""

    def is_other(self, x: Tensor) -> bool:
        return False

    def other(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) if self.is_other(x) else super().forward(x)


def by_deviation(self: Any, x: Tensor) -> Tensor:
    z = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
    y: Tensor = z * self.weight + self.bias
    return y


def with_eps(self: Any, x: Tensor) -> Tensor:
    return functional.layer_norm(x, (12,), self.weight, self.bias, 0.01)


@pytest.mark.parametrize(
    ("slips", "text"),
    [
        ({"is_other": lambda s, x: not s.training}, "the output is x itself"),
        (
            {"is_other": lambda s, x: not s.training, "other": with_eps},
            "the eps that acts is 0.01",
        ),
        (
            {
                "is_other": lambda s, x: not torch.is_grad_enabled(),
                "other": by_deviation,
            },
            "whether gradients are recorded",
        ),
        (
            {"is_other": lambda s, x: len(x) == 3},
            "of the first 3 examples, given alone, number",
        ),
        ({}, ""),
    ],
)
def test_what_another_way_computes_is_told(slips: Any, text: str) -> None:
    layer = type("OtherLayerNorm", (PlainLayerNorm,), slips)(12)
    report = check_norm_layer(layer, (4, 12), quiet=True)
    found = " ".join(f.reason for f in report.findings if f.passed is False)
    assert text in found
    assert bool(text) != report.passed
