"""Slips of the settings and the arguments: eps, groups, masks, conditions, factors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.report import Report


def words(report: Report) -> str:
    return " ".join(str(report).split())


class Eps(nn.Module):
    """Layer norm with the eps that is given, a number or a tensor."""

    def __init__(self, eps: float | Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.bias = nn.Parameter(torch.zeros(8))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, x.double() if x.dtype == torch.float64 else x.float()
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return (x * self.weight + self.bias).to(dtype)


def test_eps_that_is_trained_is_told() -> None:
    report = check_norm_layer(Eps(nn.Parameter(torch.tensor(1e-5))), quiet=True)
    assert set(report.others) == {"trained eps"}
    assert "eps is a parameter with a gradient" in words(report)


@pytest.mark.parametrize(("eps", "is_told"), [(1e-2, False), (0.1, True)])
def test_a_large_eps_is_told(eps: float, is_told: bool) -> None:
    report = check_norm_layer(Eps(eps), quiet=True)
    assert not report.failed
    assert ("eps is 0.1: where sigma is 1" in words(report)) == is_told


class ForABatch(nn.Module):
    """Batch norm with a gain for each example of a batch."""

    def __init__(self, examples: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.gains = nn.Parameter(torch.ones(examples, channels))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x) * self.gains[:, :, None, None]
        return y


def test_a_layer_of_one_batch_size_is_refused_with_the_size_that_it_takes() -> None:
    text = r"takes 8 and fails for another batch size, .* gains has shape \(8, 4\)"
    with pytest.raises(ValueError, match=text):
        check_norm_layer(ForABatch(8, 4), (8, 4, 5, 5), quiet=True)


class GroupNormOfSize(nn.Module):
    """Group norm that takes the number of groups for their size."""

    def __init__(self, num_groups: int, channels: int) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.shape[1] // self.num_groups
        return functional.group_norm(x, groups, self.weight, self.bias)


def test_another_number_of_groups_is_told() -> None:
    report = check_norm_layer(GroupNormOfSize(2, 8), (4, 8, 5, 5), quiet=True)
    assert "another number of groups" in report.others
    assert "says 2 groups, and has statistics of 4, of 2 channels" in words(report)


class UnitLength(nn.Module):
    """RMS norm over channels by normalize, times the root of the width."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.gain = nn.Parameter(torch.ones(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.normalize(x, dim=1) * x.shape[self.axis] ** 0.5
        z: Tensor = y * self.gain
        return z


@pytest.mark.parametrize(("axis", "is_wrong"), [(1, False), (3, True)])
def test_the_root_of_the_length_of_another_axis_is_named(
    axis: int, is_wrong: bool
) -> None:
    report = check_norm_layer(UnitLength(axis), (8, 4, 5, 7), quiet=True)
    text = "times the root of 7, the length of axis 3, which is not the number of"
    assert (text in words(report)) == is_wrong


class MaskedBatchNorm(nn.Module):
    """Batch norm of padded sequences; what is left out may count by the mean."""

    def __init__(self, *, is_right: bool) -> None:
        super().__init__()
        self.is_right, self.eps = is_right, 1e-5

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = mask[:, None].to(x)
        count = mask.sum()
        mean = (x * mask).sum((0, 2), keepdim=True) / count
        centred = (x - mean) * mask if self.is_right else x * mask - mean
        var = centred.square().sum((0, 2), keepdim=True) / count
        y: Tensor = (x - mean) * (var + self.eps).rsqrt() * mask
        return y


def with_half(layer: nn.Module, x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[2], device=x.device)
    y: Tensor = layer(x, (steps < x.shape[2] // 2).expand(len(x), -1))
    return y


@pytest.mark.parametrize("is_right", [True, False])
def test_what_a_mask_leaves_out_is_tried(is_right: bool) -> None:
    report = check_norm_layer(MaskedBatchNorm(is_right=is_right), (8, 4, 6), quiet=True)
    name = "what a mask leaves out counts for nothing"
    assert (name in report.failed) != is_right
    assert ("places that are left out still count" in words(report)) != is_right


@pytest.mark.parametrize("is_right", [True, False])
def test_statistics_of_a_part_of_the_values_are_measured(is_right: bool) -> None:
    report = check_norm_layer(
        MaskedBatchNorm(is_right=is_right), (8, 4, 6), quiet=True, call=with_half
    )
    text = "values that share statistics 48 count, as by a mask"
    assert text in words(report)
    own = "they are normalized by their own statistics"
    assert (own in words(report)) == is_right
    assert ("some values alone" in report.others) == is_right


class Squares(nn.Module):
    """A layer that multiplies x by its size."""

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x * x.square().mean(-1, keepdim=True).sqrt()


def test_what_grows_as_the_square_of_x_is_said() -> None:
    with pytest.raises(ValueError, match="multiplied by its size, not divided by it"):
        check_norm_layer(Squares(), (8, 12), quiet=True)


class FewDigits(nn.LayerNorm):
    """Layer norm whose factor is a number of half precision."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        factor = (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        y: Tensor = centred * factor.bfloat16().to(x.dtype) * self.weight + self.bias
        return y


def test_statistics_of_few_digits_are_named() -> None:
    report = check_norm_layer(FewDigits(8), (4, 8), quiet=True)
    assert "always a number of torch.bfloat16" in words(report)
