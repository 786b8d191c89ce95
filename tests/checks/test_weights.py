"""A convolution by standardized weights is no norm layer; a slip in it is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer


class StandardizedConv2d(nn.Conv2d):
    """A convolution whose weight is made anew, by one of several rules."""

    def __init__(self, rule: str) -> None:
        super().__init__(4, 6, 3, padding=1)
        self.rule = rule

    def forward(self, x: Tensor) -> Tensor:
        axes = (0, 1, 2, 3) if self.rule == "all" else (1, 2, 3)
        var, mean = torch.var_mean(self.weight, axes, keepdim=True)
        mean = 0 * mean if self.rule == "no mean" else mean
        sigma = (var + 1e-5).sqrt()
        sigma = torch.ones_like(sigma) if self.rule == "no sigma" else sigma
        sigma = 1 / sigma if self.rule == "times" else sigma
        weight = (self.weight - mean) / sigma
        return functional.conv2d(x, weight, self.bias, padding=1)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("right", ""),
        ("times", "as if it were multiplied by its deviation, not divided by it"),
        ("no sigma", "as if it were not divided by its deviation"),
        ("no mean", "its mean has a part"),
        ("all", "outputs share a mean or a variance"),
    ],
)
def test_a_weight_that_is_not_standardized_is_said(rule: str, text: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="are no norm layers") as raised:
        check_norm_layer(StandardizedConv2d(rule), (8, 4, 5, 5))
    assert text in str(raised.value)
    assert ("is not standardized" in str(raised.value)) == bool(text)
