"""In the relatives of the norms slips are named: other axes, one threshold, no eps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.checks.report import Report


def words(report: Report) -> str:
    return " ".join(str(report).split())


class GlobalResponseNorm(nn.Module):
    """Global response norm of (N, H, W, C), by the axes of its size and its mean."""

    def __init__(self, axes: tuple[int, ...], over: tuple[int, ...]) -> None:
        super().__init__()
        self.axes, self.over = axes, over
        self.gamma = nn.Parameter(torch.zeros(6))
        self.beta = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(p=2, dim=self.axes, keepdim=True)
        share = size / (size.mean(self.over, keepdim=True) + 1e-6)
        y: Tensor = self.gamma * (x * share) + self.beta + x
        return y


@pytest.mark.parametrize(
    ("axes", "over", "text"),
    [
        ((1, 2), (-1,), "The formula holds"),
        ((0, 1, 2), (-1,), "taken over batch and positions: the examples of a batch"),
        ((-1,), (1, 2), "over channels; it is compared with its mean over positions"),
        ((1, 2), (0,), "compared with its mean over the batch, not over channels"),
    ],
)
def test_axes_of_a_global_response_norm(
    axes: tuple[int, ...], over: tuple[int, ...], text: str
) -> None:
    layer = GlobalResponseNorm(axes, over)
    report = check_norm_layer(layer, (4, 5, 5, 6), channel_axis=-1, quiet=True)
    assert text in words(report)


class FilterResponseNorm(nn.Module):
    """Filter response norm, by the axes of its mean square and its thresholds."""

    def __init__(self, axes: tuple[int, ...], thresholds: int) -> None:
        super().__init__()
        self.axes = axes
        self.gamma = nn.Parameter(torch.ones(1, 4, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, 4, 1, 1))
        self.level = nn.Parameter(torch.zeros(1, thresholds, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean(self.axes, keepdim=True) + 1e-6)
        return torch.maximum(self.gamma * x + self.beta, self.level)


@pytest.mark.parametrize(
    ("axes", "thresholds", "text"),
    [
        ((2, 3), 4, "The formula holds"),
        ((2, 3), 1, "level is one threshold for all 4 channels"),
        ((1,), 4, "the mean square is taken over channels"),
        ((0, 2, 3), 4, "the mean square is taken over batch and positions"),
    ],
)
def test_axes_and_thresholds_of_a_filter_response_norm(
    axes: tuple[int, ...], thresholds: int, text: str
) -> None:
    layer = FilterResponseNorm(axes, thresholds)
    report = check_norm_layer(layer, (8, 4, 5, 5), quiet=True)
    assert text in words(report)
    assert ("one threshold" in report.others) == (thresholds == 1)


class FrozenBatchNorm(nn.Module):
    """Batch norm by fixed statistics, with or without eps."""

    mean: Tensor
    var: Tensor

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(1, -1)
        y: Tensor = (x - self.mean) * (self.var + self.eps).rsqrt()
        return y.movedim(-1, 1)


@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_eps_of_a_frozen_batch_norm(eps: float) -> None:
    report = check_norm_layer(FrozenBatchNorm(eps), (8, 4, 5, 5), quiet=True)
    name = "a running variance of 0 leaves the output finite"
    assert (name in report.failed) == (eps == 0)
    assert ("no eps is under the root: where var is 0" in words(report)) == (eps == 0)
