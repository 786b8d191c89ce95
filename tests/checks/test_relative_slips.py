"""In the relatives of the norms slips are named: axes, thresholds, eps, averages."""

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


class Fixed(FilterResponseNorm):
    """Filter response norm whose bias never learns."""

    def __init__(self) -> None:
        super().__init__((2, 3), 4)
        del self.beta
        self.register_buffer("beta", torch.zeros(1, 4, 1, 1))


def test_what_never_learns_in_a_relative_is_told() -> None:
    report = check_norm_layer(Fixed(), (8, 4, 5, 5), quiet=True)
    assert "fixed gain" in report.others
    assert "beta acts on the output, and is no parameter" in words(report)


class GhostBatchNorm(nn.BatchNorm1d):
    """Batch norm of parts of 4 examples, in evaluation by fixed statistics."""

    def __init__(self, *, is_right: bool) -> None:
        super().__init__(5)
        self.is_right = is_right

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.is_right:
            return super().forward(x)
        parts = x.view(len(x) // 4, 4, 5)
        return torch.cat([super(GhostBatchNorm, self).forward(part) for part in parts])


@pytest.mark.parametrize("is_right", [True, False])
def test_evaluation_of_a_ghost_batch_norm_takes_any_batch(is_right: bool) -> None:
    layer = GhostBatchNorm(is_right=is_right)
    report = check_norm_layer(layer, (16, 5), quiet=True)
    name = "evaluation takes batches of any size"
    assert (name in report.failed) != is_right
    assert ("a batch of 16 works, and one of 1 fails" in words(report)) != is_right


class BatchRenorm(nn.BatchNorm1d):
    """Batch renormalization that averages a power of the variance."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, power: float, *, is_warm: bool = True) -> None:
        super().__init__(5)
        self.power, self.is_warm = power, is_warm
        self.share = 0.1 if is_warm else 0.01

    def forward(self, x: Tensor) -> Tensor:
        sigma = (self.running_var + self.eps).sqrt()
        if not self.training:
            return (x - self.running_mean) / sigma * self.weight + self.bias
        var, mean = torch.var_mean(x, 0, correction=0)
        x_hat = (x - mean) / (var + self.eps).sqrt()
        with torch.no_grad():
            r = ((var + self.eps).sqrt() / sigma).clamp(1 / 3, 3)
            d = ((mean - self.running_mean) / sigma).clamp(-5, 5)
            self.running_mean.lerp_(mean, self.share)
            self.running_var.lerp_(var**self.power, self.share)
        x_hat = x_hat * r + d if self.is_warm else x_hat
        return x_hat * self.weight + self.bias


@pytest.mark.parametrize(
    ("power", "holds"),
    [(1, ""), (0.5, "a standard deviation"), (2, "a square"), (-0.5, "1 / sigma")],
)
def test_what_a_batch_renormalization_averages(power: float, holds: str) -> None:
    report = check_norm_layer(BatchRenorm(power), (16, 5), quiet=True)
    name = "after many passes evaluation forgets the scale of the input"
    assert (name in report.failed) == bool(holds)
    assert (f"the running variance holds {holds}" in words(report)) == bool(holds)


def test_a_batch_renormalization_is_waited_for_while_its_output_stands_still() -> None:
    report = check_norm_layer(BatchRenorm(1, is_warm=False), (16, 5), quiet=True)
    assert report.kind.startswith("batch renormalization")
    assert not any("forgets the scale" in name for name in report.failed)


class HeldBatchRenorm(nn.Module):
    """Averages a mean and a deviation, in buffers or in plain tensors."""

    def __init__(self, *, is_plain: bool) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(5)),
            nn.Parameter(torch.zeros(5)),
        )
        of = torch.Tensor if is_plain else nn.Buffer
        self.mean, self.sigma = of(torch.zeros(5)), of(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.mean) / self.sigma * self.weight + self.bias
        var, mean = torch.var_mean(x, 0, correction=0)
        own = (var + 1e-5).sqrt()
        with torch.no_grad():
            r = (own / self.sigma).clamp(1 / 3, 3)
            d = ((mean - self.mean) / self.sigma).clamp(-5, 5)
            self.mean = self.mean + 0.1 * (mean - self.mean)
            self.sigma = self.sigma + 0.1 * (own - self.sigma)
        return ((x - mean) / own * r + d) * self.weight + self.bias


@pytest.mark.parametrize("is_plain", [False, True])
def test_the_averages_of_a_relative_are_saved_with_it(is_plain: bool) -> None:
    report = check_norm_layer(HeldBatchRenorm(is_plain=is_plain), (16, 5), quiet=True)
    assert report.kind.startswith("batch renormalization")
    assert ("state_dict carries the running statistics" in report.failed) == is_plain
    assert ("the moving statistics are no buffers" in words(report)) == is_plain
