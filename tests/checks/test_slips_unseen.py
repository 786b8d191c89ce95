"""Slips that no report named, of kinds that several hands made, are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_bugs import HandBatchNorm
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer


def said(layer: nn.Module, **settings: Any) -> str:
    return " ".join(str(check_norm_layer(layer, quiet=True, **settings)).split())


class ByRule(nn.Module):
    """A gain, eps and a rule."""

    def __init__(
        self, rule: Callable[[Tensor], Tensor], sizes: tuple[int, ...] = (8,)
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sizes))
        self.rule = rule

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(x) * self.weight


def over_root(x: Tensor, size: Tensor) -> Tensor:
    return x * torch.rsqrt(size + 1e-6).to(x.dtype)


def by_a_part(x: Tensor, count: int) -> Tensor:
    """Return x over the root mean square of its first half, of so many values."""
    return over_root(x, x[..., :4].square().sum(-1, keepdim=True) / count)


def in_few_digits(x: Tensor) -> Tensor:
    return over_root(x, x.bfloat16().square().mean(-1, keepdim=True))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda x: by_a_part(x, 8), "x is divided by 0.707 times the root mean square"),
        (lambda x: by_a_part(x, 4), "normalized by their own statistics"),
        (in_few_digits, "always a number of torch.bfloat16: the statistics are round"),
    ],
)
def test_what_counts_and_in_which_digits_is_measured(
    rule: Callable[[Tensor], Tensor], text: str
) -> None:
    assert text in said(ByRule(rule), shape=(4, 5, 8), kind="rms")


def test_a_gain_along_the_channels_tells_the_axis() -> None:
    layer = ByRule(lambda x: over_root(x, x.square().mean(-1, True)), (4, 1, 1))
    text = said(layer, shape=(8, 4, 5, 6), kind="rms")
    assert "the statistics run over axis 3, expected axis 1" in text


def test_the_root_of_another_length_is_named() -> None:
    layer = ByRule(lambda x: functional.normalize(x, dim=1) * 5**0.5, (4, 1, 1))
    text = said(layer, shape=(8, 4, 6, 5), kind="rms")
    assert (
        "times the root of 5, the length of axis 3, which is not the number of" in text
    )


class OtherGroups(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        count = self.num_channels // self.num_groups
        return functional.group_norm(x, count, self.weight, self.bias, self.eps)


def test_a_number_of_groups_taken_for_their_size_is_named() -> None:
    text = said(OtherGroups(2, 6), shape=(8, 6, 4, 5))
    assert "the layer says 2 groups, and has statistics of 3, of 2 channels" in text
    assert "it takes the number of groups for their size" in text
    assert "another number of groups" not in said(nn.GroupNorm(3, 6))


class TrainedEps(nn.LayerNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.eps = nn.Parameter(torch.tensor(1e-5))  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


def test_an_eps_that_is_trained_or_large_is_told() -> None:
    text = said(TrainedEps(8))
    assert "eps is a parameter with a gradient" in text
    assert "a gain is not known" not in text
    assert "eps is 1: where sigma is 1" in said(nn.LayerNorm(8, eps=1.0))
    assert "large eps" not in said(nn.LayerNorm(8, eps=1e-2))


class PerExample(nn.Module):
    """A batch norm with a gain for each example of a batch of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.gains = nn.Parameter(torch.ones(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x) * self.gains
        return y


def test_a_size_of_the_batch_that_is_held_is_named() -> None:
    text = "takes 8 and fails for another batch size, 16.*gains has shape \\(8, 6\\)"
    with pytest.raises(ValueError, match=text):
        check_norm_layer(PerExample(), (8, 6))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda x: x * x.square().mean(-1, True).sqrt(), "multiplied by its size"),
        (lambda x: over_root(x, x.square().mean(0, True)), "16 values, all 16 along"),
    ],
)
def test_what_is_refused_is_measured(
    rule: Callable[[Tensor], Tensor], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        check_norm_layer(ByRule(rule), (8, 8))


class Masked(HandBatchNorm):
    """A batch norm with a mask that may be left away."""

    def __init__(self, slip: str = "") -> None:
        super().__init__(4)
        self.slip = slip

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(x[:, :1]) if mask is None else mask.to(x.dtype)
        kept = torch.ones_like(mask) if self.slip == "all" else mask
        count = mask.numel() if self.slip == "count" else kept.sum()
        mean = (x * kept).sum((0, 2), keepdim=True) / count
        centred = (x - mean) * kept if self.slip != "zeros" else x * kept - mean
        var = centred.square().sum((0, 2), keepdim=True) / count
        x_hat = (x - mean) / (var + 1e-5).sqrt()
        return (x_hat * self.gamma[:, None] + self.beta[:, None]) * mask


PART = "the values of what is left out have a part in the statistics"
STILL = "places that are left out still count, by zeros or in a number of values"


@pytest.mark.parametrize(
    ("slip", "text"),
    [("all", PART), ("zeros", STILL), ("count", STILL), ("", "")],
)
def test_an_optional_mask_must_leave_nothing_of_what_it_leaves_out(
    slip: str, text: str
) -> None:
    report = check_norm_layer(Masked(slip), (8, 4, 6), quiet=True)
    (finding,) = [f for f in report.findings if f.name.startswith("what a mask")]
    assert finding.passed is (not slip)
    assert text in finding.reason


class MaskedAlways(Masked):
    """The same where there must be a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, mask)


@pytest.mark.parametrize("slip", ["zeros", ""])
def test_a_mask_that_must_be_given_is_tried_too(slip: str) -> None:
    report = check_norm_layer(MaskedAlways(slip), (8, 4, 6), quiet=True)
    assert ("what a mask leaves out counts for nothing" in report.failed) == bool(slip)


def half(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, (torch.arange(6) < 4).to(x.dtype).expand(len(x), 1, 6))


@pytest.mark.parametrize(
    ("slip", "text"),
    [
        ("zeros", "0.5 zeros for each value, counted in it, do that"),
        ("", "normalized by their own statistics"),
    ],
)
def test_statistics_under_a_mask_are_measured(slip: str, text: str) -> None:
    assert text in said(Masked(slip), shape=(8, 4, 6), kind="batch", call=half)


class OneOfTwo(nn.Module):
    """An instance norm that makes its bias of what its gain is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4)
        self.style = nn.Linear(3, 8)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gain, _ = self.style(style)[:, :, None].chunk(2, 1)
        y: Tensor = self.norm(x) * (1 + gain) + gain
        return y


class AddedFirst(nn.Module):
    """A layer norm of a sum, and a tensor that is looked at alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, residual: Tensor, like: Tensor) -> Tensor:
        y: Tensor = self.norm(x + residual).to(like.dtype)
        return y


def test_what_is_added_is_taken_for_no_condition_where_the_call_is_given() -> None:
    def call(layer: nn.Module, x: Tensor) -> Any:
        return layer(x, torch.zeros_like(x), x)

    report = check_norm_layer(AddedFirst(), (4, 5, 8), call=call, quiet=True)
    assert report.passed, report


def test_slips_of_a_condition_are_told_where_the_call_is_given() -> None:
    def call(layer: nn.Module, x: Tensor) -> Any:
        return layer(x, x.new_ones(len(x), 3))

    text = said(OneOfTwo(), shape=(8, 4, 6), call=call)
    assert "changes gain and bias by the same numbers" in text
    assert "made from a condition" not in text


class ScaleNorm(nn.Module):
    """Unit length by a floor (Nguyen and Salazar 2019), times one gain."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.g = 1e-5, nn.Parameter(torch.tensor(4.0))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        size = wide.norm(dim=-1, keepdim=True).clamp(min=self.eps)
        y: Tensor = (wide / size * self.g).to(x.dtype)
        return y


def test_a_norm_of_the_length_has_one_gain_and_a_floor() -> None:
    report = check_norm_layer(ScaleNorm(), (4, 7, 16), quiet=True)
    assert not report.failed
    assert [*report.others] == ["unit length", "one gain", "floor of the length"]


class MoreThanTheVariance(HandBatchNorm):
    """A batch norm that averages the variance and some eps."""

    def __init__(self, times: float) -> None:
        super().__init__(4, eps=1e-3)
        self.times = times

    def average(self, mean: Tensor, var: Tensor) -> None:
        super().average(mean, var + self.times * self.eps)


@pytest.mark.parametrize(
    ("times", "text"),
    [(1, "eps is averaged"), (2, " 2 eps is averaged"), (-3, "-3 eps")],
)
def test_what_is_added_to_the_variance_is_told(times: float, text: str) -> None:
    assert text in said(MoreThanTheVariance(times), shape=(8, 4, 6))


def signed(x: Tensor) -> Tensor:
    """Return layer norm, by way of the largest value."""
    most = x.amax(-1, keepdim=True)
    return functional.layer_norm(x / most, x.shape[-1:], eps=0.0)


def test_rows_that_come_out_with_the_other_sign_are_told() -> None:
    layer = ByRule(signed, (16,))
    text = said(layer, shape=(4, 7, 16), kind="layer", channel_axis=-1)
    assert "those whose values are all negative" in text
    assert "expected (7,)" not in text


class ActNorm(nn.Module):
    """Gain and bias of the first batch, which a buffer may remember."""

    begun: Tensor

    def __init__(self, *, is_kept: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.shift = nn.Parameter(torch.zeros(4, 1, 1))
        self.register_buffer("begun", torch.tensor(False), persistent=is_kept)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.begun:
            with torch.no_grad():
                var, mean = torch.var_mean(x, (0, 2, 3), keepdim=True)
                self.scale.copy_(var[0].rsqrt())
                self.shift.copy_(-mean[0])
                self.begun.fill_(1)
        return (x + self.shift) * self.scale


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_start_that_loading_forgets_is_told(is_kept: bool) -> None:
    with pytest.raises(ValueError, match="as in ActNorm") as caught:
        check_norm_layer(ActNorm(is_kept=is_kept), (8, 4, 5, 5))
    text = "what it has become in training is not all in the state"
    assert (text in str(caught.value)) != is_kept


class Conditional(nn.Module):
    """A layer norm with gain and bias of a condition, or of the first example's."""

    def __init__(self, *, is_right: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, elementwise_affine=False)
        self.style, self.is_right = nn.Linear(8, 16), is_right

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        styles = self.style(style if self.is_right else style[:1])
        gain, bias = styles[:, None].chunk(2, -1)
        y: Tensor = self.norm(x) * (1 + gain) + bias
        return y


def from_x(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, x[:, 0])


def by_place(layer: nn.Module, x: Tensor) -> Any:
    places = torch.arange(len(x)).to(x)[:, None]
    return layer(x, (places - places.mean()).expand(-1, 8))


@pytest.mark.parametrize("call", [from_x, by_place])
@pytest.mark.parametrize("is_right", [True, False])
def test_a_call_may_take_a_condition_of_each_example(
    call: Callable[[nn.Module, Tensor], Any], is_right: bool
) -> None:
    report = check_norm_layer(
        Conditional(is_right=is_right), (4, 5, 8), call=call, quiet=True
    )
    name = "each example has the gain and bias of its own condition"
    assert [*report.failed] == [name] * (not is_right)


class Late(nn.LayerNorm):
    """Layer norm that multiplies by the gain behind the cast."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__(8)
        self.is_last = is_last

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        y = functional.layer_norm(wide, (8,), eps=self.eps).to(x.dtype)
        y = y * self.weight + self.bias
        return y if self.is_last else y.to(x.dtype)


@pytest.mark.parametrize("is_last", [True, False])
def test_another_dtype_under_mixed_precision_is_remarked(is_last: bool) -> None:
    text = "an input in torch.bfloat16 comes out as torch.float32"
    assert (text in said(Late(is_last=is_last), shape=(4, 5, 8))) == is_last


def test_layer_norm_of_images_may_have_a_gain_per_channel() -> None:
    def over_all(x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[1:])

    layer = ByRule(over_all, (6,))
    report = check_norm_layer(
        layer, (8, 4, 6), kind="layer", channel_axis=2, quiet=True
    )
    assert not report.failed
    assert "gain per channel" in report.others


def test_a_gain_of_another_length_is_none_per_channel() -> None:
    layer = ByRule(lambda x: functional.layer_norm(x, x.shape[-1:]), (3, 1))
    report = check_norm_layer(layer, (8, 5, 3, 6), kind="layer", quiet=True)
    assert "gain per channel" not in report.others


def test_a_shape_of_one_axis_is_refused_with_the_rule() -> None:
    with pytest.raises(ValueError, match=r"two or more positive .*, got \(8,\)"):
        check_norm_layer(ByRule(torch.clone), (8,), quiet=True)
