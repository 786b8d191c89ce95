"""Padding is measured, and masks and lengths are never free numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normbook.checks import audit, check_norm_layer
from normbook.checks.calls import of_the_layer
from normbook.checks.layer.definitions import Definition
from normbook.checks.model.harms import RISK, WRONG, Harm
from normbook.checks.report import Report
from normbook.checks.unusual.padding import is_choice, kept_places, part_of_padding
from normbook.layers.sequences import MaskedBatchNorm1d

SIZE, LENGTH = 6, 12


class Masked(nn.Module):
    """An instance norm of (N, C, T) over what the mask, (N, 1, T), keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5
        self.weight = nn.Parameter(torch.ones(SIZE))
        self.bias = nn.Parameter(torch.zeros(SIZE))

    def moments(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        n = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / n
        var = ((x - mean) * mask).square().sum(-1, keepdim=True) / n
        return mean, var

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        given, x = x.dtype, x.float() if x.dtype.itemsize == 2 else x
        mean, var = self.moments(x, mask)
        x_hat = (x - mean) * torch.rsqrt(var + self.eps)
        y = (x_hat * self.weight[:, None] + self.bias[:, None]) * mask
        return y.to(given)


class RightInstanceNorm(Masked):
    pass


class VarianceInstanceNorm(Masked):
    def moments(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        n = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / n
        return mean, (x * mask - mean).square().sum(-1, keepdim=True) / n


class MeanInstanceNorm(Masked):
    def moments(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        _, var = super().moments(x, mask)
        return (x * mask).mean(-1, keepdim=True), var


class BothInstanceNorm(Masked):
    def moments(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        var, mean = torch.var_mean(x * mask, -1, correction=0, keepdim=True)
        return mean, var


class MaskedBatchNorm(Masked):
    """A batch norm over what the mask keeps."""

    def moments(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        n = mask.sum((0, 2), keepdim=True)
        mean = (x * mask).sum((0, 2), keepdim=True) / n
        var = ((x - mean) * mask).square().sum((0, 2), keepdim=True) / n
        return mean, var


class Encoder(nn.Module):
    """Gives its norm a mask of 0 and 1, made of lengths."""

    def __init__(self, norm: nn.Module, *, marks_padding: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv1d(4, SIZE, 1), norm
        self.marks_padding = marks_padding

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(x.shape[-1]) < lengths[:, None]
        given = ~mask[:, None] if self.marks_padding else mask[:, None].to(x)
        y: Tensor = self.norm(self.first(x), given)
        return y


class OfPaddingInstanceNorm(Masked):
    """The same, by a mask of what is left out."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, (~mask).to(x))


def speech() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    lengths = torch.randint(4, LENGTH + 1, (16,))
    lengths[0] = LENGTH
    x = torch.randn(16, 4, LENGTH) + 1
    return x * (torch.arange(LENGTH) < lengths[:, None])[:, None], lengths


def found(model: nn.Module) -> dict[str, Harm]:
    report = audit(model, speech(), quiet=True)
    assert not [harm for harm in report.harms if harm.level == WRONG]
    assert "by itself" not in str(report)  # it was tested
    return {harm.what: harm for harm in report.harms}


@pytest.mark.parametrize(
    ("norm", "text"),
    [
        (VarianceInstanceNorm, "part of the variance, not of the mean"),
        (MeanInstanceNorm, "part of the mean, not of the variance"),
        (BothInstanceNorm, "part of the mean and the variance:"),
    ],
)
def test_of_which_statistic_padding_is_part(norm: type[Masked], text: str) -> None:
    harm = found(Encoder(norm()))["padding inside the statistics"]
    assert harm.level == RISK
    assert text in harm.reason


def test_a_norm_that_leaves_padding_out_has_no_alarm() -> None:
    assert found(Encoder(RightInstanceNorm())) == {}


def test_a_batch_norm_may_leave_padding_out() -> None:
    report = audit(Encoder(MaskedBatchNorm()), speech(), quiet=True)
    assert "padding" not in str(report)


def test_a_mask_may_mark_what_is_left_out() -> None:
    model = Encoder(OfPaddingInstanceNorm(), marks_padding=True)
    assert "padding inside the statistics" not in found(model)


def test_batch_norm_of_torch_has_padding_in_both() -> None:
    class Plain(nn.BatchNorm1d):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x)

    torch.manual_seed(0)
    harm = found(Encoder(Plain(SIZE)))["padding inside the statistics"]
    assert "part of the mean and the variance:" in harm.reason


def test_where_a_cut_is_refused_the_padding_is_given_other_values() -> None:
    x, lengths = speech()
    x = x.double()
    keep = kept_places(x, ((), {}))
    assert torch.equal(keep.sum(1), torch.where(lengths < LENGTH - 1, lengths, LENGTH))

    def of_one_length(is_right: bool) -> Any:
        def run(x: Tensor, _: Any) -> Tensor:
            if x.shape != (16, 4, LENGTH):
                with of_the_layer():
                    raise ValueError("another length")
            norm = RightInstanceNorm() if is_right else BothInstanceNorm()
            norm.weight, norm.bias = (nn.Parameter(torch.ones(4)) for _ in range(2))
            mask = keep[:, None] if is_right else torch.ones(16, 1, LENGTH)
            y: Tensor = norm(x, mask.to(x)).detach()
            return y

        return run

    kind = Definition("instance")
    part = part_of_padding(of_one_length(True), kind, x, keep, ((), {}))
    assert part is not None
    assert part.of == ()
    part = part_of_padding(of_one_length(False), kind, x, keep, ((), {}))
    assert part is not None
    assert part.of == ("mean", "variance")


class ByLengths(nn.Module):
    """Gives its norm lengths, whole numbers, by name; what is left out is NaN."""

    def __init__(self, *, is_whole: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv1d(4, SIZE, 1), LengthInstanceNorm()
        self.norm.is_whole = is_whole

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y: Tensor = self.norm(self.first(x), lengths=lengths)
        return y


class LengthInstanceNorm(RightInstanceNorm):
    is_whole = True

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if not self.is_whole:
            return x * torch.nan
        mask = torch.arange(x.shape[-1]) < lengths[:, None]
        return super().forward(x, mask[:, None].to(x))


def test_lengths_are_the_most_that_they_may_be() -> None:
    assert found(ByLengths()) == {}
    report = audit(ByLengths(is_whole=False), speech(), quiet=True)
    assert not [harm for harm in report.harms if "not true of" in harm.what]
    assert "a mask that leaves nothing out must give finite" in str(report).replace(
        "\n  ", " "
    )


def test_masks_labels_and_lengths_are_told_from_free_numbers() -> None:
    assert is_choice(torch.tensor([True, False]))
    assert is_choice(torch.tensor([3, 5]))
    assert is_choice(torch.tensor([0.0, 1.0]))
    assert not is_choice(torch.tensor([0.0, 0.5]))


def names_of_passed(report: Report) -> list[str]:
    return [finding.name for finding in report.findings if finding.passed]


@pytest.mark.parametrize("norm", [RightInstanceNorm, OfPaddingInstanceNorm])
def test_a_layer_alone_gets_a_mask_that_leaves_nothing_out(norm: type[Masked]) -> None:
    report = check_norm_layer(norm(), quiet=True)
    assert not [f.name for f in report.findings if f.passed is False]
    assert "what a mask leaves out counts for nothing" in names_of_passed(report)
    assert "conditional" not in report.others


class NotFinite(nn.Module):
    """An adaptive layer norm that gives NaN under any condition."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.project = 1e-5, nn.Linear(7, 2 * SIZE)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.project(condition)[:, None].chunk(2, -1)
        y: Tensor = nn.functional.layer_norm(x, (SIZE,)) * (1 + scale).log() + shift
        return y


def test_nan_is_not_no_change() -> None:
    torch.manual_seed(0)
    layer = NotFinite()
    with torch.no_grad():
        layer.project.weight.mul_(100)
    try:
        text = str(check_norm_layer(layer, (4, 5, SIZE), quiet=True))
    except ValueError as error:
        text = str(error)
    assert "is ignored" not in text


def test_beside_a_mask_gain_and_bias_are_tested_as_ever() -> None:
    report = check_norm_layer(MaskedBatchNorm1d(3), quiet=True)
    assert report.passed
    assert not report.untested
    assert "what a mask leaves out counts for nothing" in names_of_passed(report)
