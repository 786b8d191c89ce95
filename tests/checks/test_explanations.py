"""A report names the formula that a wrong layer follows, for each cause searched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import planted_bugs
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer

BATCH, LAST, IMAGES = (8, 6, 5), (4, 7, 12), (4, 6, 5, 5)


def said(layer: nn.Module, shape: tuple[int, ...], kind: str | None = None) -> str:
    return " ".join(str(check_norm_layer(layer, shape, kind=kind, quiet=True)).split())


class Last(nn.Module):
    """A layer whose x_hat, and what follows, are rules."""

    def __init__(self, rule: Callable[[Tensor], Tensor], size: int = 12) -> None:
        super().__init__()
        self.rule, self.eps = rule, 1e-6
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def ended(self, z: Tensor) -> Tensor:
        return z * self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.ended(self.rule(x))


def sigma(x: Tensor, *axes: int) -> Tensor:
    return (x.var(axes, correction=0, keepdim=True) + 1e-6).sqrt()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            lambda x: (x - x.mean((1, 2), keepdim=True)) / sigma(x, 2),
            "the mean runs over the wrong axes: the mean over axes 1 and 2",
        ),
        (
            lambda x: (x - x.mean(2, keepdim=True)) / sigma(x, 1, 2),
            "the variance over axes 1 and 2",
        ),
        (
            lambda x: (x - x.median(2, keepdim=True).values) / sigma(x, 2),
            "the median is subtracted from x, and the rest divided by sigma",
        ),
        (
            lambda x: (x - x.mean(2, keepdim=True)) / x.abs().amax(2, keepdim=True),
            "the rest divided by the largest absolute value",
        ),
        (
            lambda x: functional.layer_norm(x, (12,)).clamp(-2.5, 2.5),
            "large x_hat is clipped",
        ),
        (
            lambda x: functional.layer_norm(x.bfloat16(), (12,)).to(x.dtype),
            "x is rounded to torch.bfloat16",
        ),
        (
            lambda x: (x - x[:1].mean(2, keepdim=True)) / sigma(x[:1], 2),
            "the statistics of the first example are used for all",
        ),
        (
            lambda x: functional.layer_norm(x.transpose(0, 1), (12,)).reshape(x.shape),
            "come out at a wrong place",
        ),
        (
            lambda x: x / (x.square().mean(2, keepdim=True).cumsum(1) + 1e-6).sqrt(),
            "an output depends on the steps so far along axis 1",
        ),
    ],
)
def test_the_statistics_of_a_layer_norm_are_found(rule: Any, text: str) -> None:
    assert text in said(Last(rule), LAST, "layer")


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        (lambda s, z: z * s.weight.flip(0) + s.bias, "in reversed order"),
        (lambda s, z: z * s.weight.roll(1) + s.bias, "shifted by 1"),
        (lambda s, z: (z + s.bias) * s.weight, "the bias is multiplied by the gain"),
        (lambda s, z: z * s.bias + s.weight, "gain and bias are exchanged"),
        (lambda s, z: z * s.weight - s.bias, "the bias has the wrong sign"),
        (lambda s, z: z * s.weight + 2 * s.bias, "the bias acts twice"),
        (lambda s, z: z * s.weight.mean() + s.bias, "the mean of the gain over all"),
    ],
)
def test_how_gain_and_bias_act_is_found(ended: Any, text: str) -> None:
    layer = type("Ended", (Last,), {"ended": ended})
    rule = Last(lambda x: functional.layer_norm(x, (12,))).rule
    assert text in said(layer(rule), LAST, "layer")


def test_gains_of_other_channels_by_example_are_found() -> None:
    def repeated(self: Any, x: Tensor) -> Tensor:
        n, c, *rest = x.shape
        gain, bias = (p.repeat_interleave(n) for p in (self.weight, self.bias))
        y = functional.batch_norm(
            x.reshape(1, n * c, *rest), None, None, gain, bias, training=True
        )
        return y.view_as(x)

    layer = type("Fast", (Last,), {"forward": repeated})(torch.clone, 6)
    text = said(layer, IMAGES, "instance")
    assert "gain and bias differ along axes 0 and 1" in text
    assert "in example 8 channels 0, 1, 2, ... have the gain of channels 3, 3" in text


def test_the_number_of_groups_is_told_from_their_size() -> None:
    def rule(x: Tensor) -> Tensor:
        return functional.group_norm(x, x.shape[1] // 4)

    layer = Last(rule, 8)
    layer.num_groups = 4  # type: ignore[assignment]
    layer.ended = lambda z: z  # type: ignore[method-assign]
    text = said(layer, (4, 8, 5, 5), "group")
    assert "4 channels make a group, in place of 4 groups" in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"average": lambda s, m, v: planted_bugs.HandBatchNorm.average(s, v, m)},
            "mean and variance are exchanged",
        ),
        (
            {"mixed": lambda s, old, new: new + 0.81 * (old - new)},
            "that of two updates in each call",
        ),
        (
            {"mixed": lambda s, old, new: old + s.momentum * new},
            "it is added to the whole old value",
        ),
        (
            {"average": lambda s, m, v: planted_bugs.HandBatchNorm.average(s, -m, v)},
            "with the wrong sign",
        ),
        (
            {"mixed_var": lambda s, old, new: new},
            "replaces the average: the running variance becomes 0 times what it was",
        ),
        ({"mixed_var": lambda s, old, new: old}, "it never changes"),
    ],
)
def test_what_a_running_statistic_takes_in_is_found(changes: Any, text: str) -> None:
    layer = type("Averaging", (planted_bugs.HandBatchNorm,), changes)
    assert text in said(layer(6), BATCH)


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ((0,), "the variance over the examples alone"),
        ((2,), "the variance over the positions alone"),
    ],
)
def test_a_running_variance_of_some_axes_is_found(axes: Any, text: str) -> None:
    def statistics(self: Any, x: Tensor) -> Any:
        self.taken = x.detach().var(axes, correction=0, keepdim=True).mean((0, 2))
        return planted_bugs.HandBatchNorm.statistics(self, x)

    def update(self: Any, mean: Tensor, var: Tensor, n: int) -> None:
        self.average(mean.detach().flatten(), self.taken)

    changes = {"statistics": statistics, "update": update}
    layer = type("Averaging", (planted_bugs.HandBatchNorm,), changes)
    assert text in said(layer(6), (16, 6, 5))


class Backward(torch.autograd.Function):
    """Batch norm with a backward pass by hand, one slip at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, slip: str) -> Tensor:
        divisor = sigma(x, 0, 2)
        z = (x - x.mean((0, 2), keepdim=True)) / divisor
        ctx.save_for_backward(z, divisor, gain)
        ctx.slip = slip
        return z * gain[:, None] + bias[:, None]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        z, divisor, gain = ctx.saved_tensors
        by_gain, by_bias = (dy * z).sum((0, 2)), dy.sum((0, 2))
        v = dy * gain[:, None]
        of_mean = v.mean((0, 2), keepdim=True)
        of_var = (v * z).mean((0, 2), keepdim=True)
        match ctx.slip:
            case "sign":
                of_var = -of_var
            case "examples":
                of_mean, of_var = (of * dy.shape[2] for of in (of_mean, of_var))
            case "twice":
                of_var = of_var * gain[:, None]
            case "bare":
                of_mean = dy.mean((0, 2), keepdim=True)
            case "sums":
                of_mean = v.mean(2, keepdim=True)
                of_var = (v * z).mean(2, keepdim=True)
            case "recomputed":
                x = z * divisor
                divisor = sigma(x, 0)
                z = (x - x.mean(0, keepdim=True)) / divisor
                of_mean, of_var = v.mean(0, True), (v * z).mean(0, True)
            case "sigma":
                divisor = torch.ones_like(divisor)
            case "raw":
                by_gain = (dy * z * divisor).sum((0, 2))
            case "exchanged":
                by_gain, by_bias = by_bias, by_gain
            case "count":
                by_bias = by_bias / len(dy)
        return (v - of_mean - z * of_var) / divisor, by_gain, by_bias, None


@pytest.mark.parametrize(
    ("slip", "text"),
    [
        ("sign", "the term of the variance in the closed form has the wrong sign"),
        ("examples", "the 6 examples in place of the m = 30 values"),
        ("twice", "the term of the variance has the gain once too often"),
        ("bare", "the term of the mean has no gain"),
        ("sums", "in the backward pass the sums are taken over axis 2, not as in"),
        ("recomputed", "in the backward pass the statistics are taken over axis 0"),
        ("sigma", "it is not divided by sigma"),
        ("raw", "the sum of dl_dy * (x - mean), not divided by sigma"),
        ("exchanged", "the sum of dl_dy, as for the bias"),
        ("count", "the sum over the 6 examples, divided by their number"),
    ],
)
def test_a_slip_in_the_backward_pass_is_found(slip: str, text: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = Backward.apply(x, self.weight, self.bias, slip)  # type: ignore[no-untyped-call]
        return y

    layer = type("ByHand", (Last,), {"forward": forward})(torch.clone, 6)
    assert text in said(layer, BATCH, "batch")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda x: x + functional.layer_norm(x, (12,)), "is added to what is normal"),
        (
            lambda x: torch.cat(
                [functional.layer_norm(x[..., :6], (6,)), x[..., 6:]], -1
            ),
            "places 6, 7, 8, 9, 10, 11 of axis 2 are not normalized",
        ),
    ],
)
def test_a_refusal_says_why_the_output_grows(rule: Any, text: str) -> None:
    with pytest.raises(ValueError, match="must normalize in training") as refusal:
        check_norm_layer(Last(rule), LAST, kind="layer", quiet=True)
    assert text in str(refusal.value)


def test_a_change_of_mode_that_resets_is_found() -> None:
    class Resetting(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Any:
            if mode:
                self.reset_running_stats()
            return super().train(mode)

    assert "a change of mode resets or moves" in said(Resetting(6), BATCH)
