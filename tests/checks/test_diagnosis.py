"""What a layer takes for its statistics is said where no known slip explains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.report import Report

OUTPUT = "the output is x normalized over the right axes"
ALONE = "evaluation of an example does not depend on the others"

Rule = Callable[[Tensor], Tensor]


class ByRule(nn.Module):
    """A layer whose x_hat is a rule, with gain and bias of the last axis, or axis 1."""

    def __init__(self, rule: Rule, size: int, axis: int = -1) -> None:
        super().__init__()
        self.rule, self.axis, self.eps = rule, axis, 1e-6
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rule(x).movedim(self.axis, -1) * self.weight + self.bias
        return y.movedim(-1, self.axis)


def reason(report: Report) -> str:
    return next(f"{f.reason} {f.cure}" for f in report.findings if f.name == OUTPUT)


def over(power: float) -> Rule:
    def rule(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-6) ** (power / 2)

    return rule


@pytest.mark.parametrize(
    ("power", "text"),
    [
        (4, "the rest is divided by the fourth power of sigma"),
        (0.5, "the rest divided by the root of sigma"),
        (-1, "the rest is multiplied by sigma, not divided by it"),
    ],
)
def test_a_wrong_power_of_sigma_is_named(power: float, text: str) -> None:
    report = check_norm_layer(ByRule(over(power), 6), kind="layer", quiet=True)
    assert OUTPUT in report.failed
    assert text in reason(report)


def test_an_rms_norm_that_multiplies_is_named() -> None:
    layer = ByRule(lambda x: x * x.square().mean(-1, keepdim=True).sqrt(), 6)
    report = check_norm_layer(layer, kind="rms", quiet=True)
    assert "x is multiplied by the root mean square" in reason(report)


def test_what_does_not_normalize_is_still_refused() -> None:
    with pytest.raises(ValueError, match="must normalize in training"):
        check_norm_layer(ByRule(lambda x: 3 * x, 6), kind="layer", quiet=True)


def test_a_mean_by_a_wrong_count_is_named() -> None:
    def rule(x: Tensor) -> Tensor:
        mean = x.sum((0, 2), keepdim=True) / len(x)
        var = (x - mean).square().mean((0, 2), keepdim=True)
        return (x - mean) / var.sqrt()

    layer = ByRule(rule, 6, axis=1)
    report = check_norm_layer(layer, (8, 6, 3), kind="batch", quiet=True)
    assert "what is subtracted is 3 times the mean" in reason(report)


def test_a_variance_without_the_part_between_devices_is_named() -> None:
    def rule(x: Tensor) -> Tensor:
        parts = [p.var(0, correction=0, keepdim=True) for p in x.chunk(4)]
        return (x - x.mean(0)) / (torch.stack(parts).mean(0) + 1e-6).sqrt()

    report = check_norm_layer(ByRule(rule, 6), (8, 6), kind="batch", quiet=True)
    assert "between the means of 4 parts of the batch" in reason(report)


def test_statistics_over_the_wrong_axis_are_named_by_where_the_gain_lies() -> None:
    def rule(x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        return (x - mean) / (var + 1e-6).sqrt()

    report = check_norm_layer(ByRule(rule, 12), (4, 7, 12), kind="layer", quiet=True)
    assert "the statistics run over axis 1, expected axis 2" in reason(report)
    assert "there is one gain and one bias for each channel" not in report.failed


def test_a_view_that_cuts_memory_is_told_from_an_axis() -> None:
    def rule(x: Tensor) -> Tensor:  # (N, C, T) taken as (N, T, C)
        y = x.reshape(len(x), x.shape[2], x.shape[1])
        var, mean = torch.var_mean(y, -1, correction=0, keepdim=True)
        return ((y - mean) / (var + 1e-6).sqrt()).view_as(x)

    layer = ByRule(rule, 6, axis=1)
    layer.normalized_shape = (6,)  # type: ignore[assignment]
    report = check_norm_layer(layer, (4, 6, 5), kind="layer", quiet=True)
    assert "6 values that lie one behind the other in memory" in reason(report)
    assert "permute" in reason(report)


def test_groups_that_are_cut_with_the_channels_last_are_named() -> None:
    def rule(x: Tensor) -> Tensor:  # (N, H, W, C)
        y = x.reshape(len(x), 4, -1)
        var, mean = torch.var_mean(y, -1, correction=0, keepdim=True)
        return ((y - mean) / (var + 1e-6).sqrt()).view_as(x)

    layer = ByRule(rule, 8)
    layer.num_groups = 4  # type: ignore[assignment]
    report = check_norm_layer(
        layer, (3, 6, 5, 8), kind="group", channel_axis=-1, quiet=True
    )
    assert "in memory, channels last" in reason(report)


class Pairs(nn.BatchNorm1d):
    """A batch norm that evaluates two examples at a time."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        return torch.cat([super(Pairs, self).forward(p) for p in x.view(-1, 2, 6)])


def test_evaluation_takes_any_number_of_examples() -> None:
    report = check_norm_layer(Pairs(6), (8, 6), quiet=True)
    found = {f.name: f.reason for f in report.findings}
    assert ALONE in report.failed
    assert "evaluation of one example raises RuntimeError" in found[ALONE]
    assert "8 examples are taken" in found[ALONE]


class OneGainForEachGroup(nn.Module):
    """A group norm with a gain of shape (1, G, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.num_groups, self.eps = 4, 1e-6
        self.weight = nn.Parameter(torch.ones(1, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.group_norm(x, 4, eps=self.eps)
        return (y.reshape(len(x), 4, -1) * self.weight).view_as(x)


def test_a_gain_for_each_group_is_named_in_any_shape() -> None:
    report = check_norm_layer(
        OneGainForEachGroup(), (3, 8, 5), kind="group", quiet=True
    )
    assert "gain per group" in report.others
    assert any("one value for each group" in f.reason for f in report.findings)


def test_half_precision_is_shown_where_it_is_furthest_off() -> None:
    class Half(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            var = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
            y = (x - x.mean(-1, keepdim=True)) / (var + self.eps).sqrt()
            return y * self.weight + self.bias

    report = check_norm_layer(Half(6), quiet=True)
    name = "float16 and bfloat16 give what float32 gives"
    text = next(f.reason for f in report.findings if f.name == name)
    assert name in report.failed
    assert " where float32 gives " in text


@pytest.mark.parametrize(
    ("kind", "rule", "text"),
    [
        (
            "rms",
            lambda x: x / x.std(-1, keepdim=True).sqrt(),
            "the rest divided by the root of sigma",
        ),
        ("rms", lambda x: x / x.std(-1, keepdim=True), "the rest divided by sigma"),
        (
            "layer",
            lambda x: (
                (x - x.mean(-1, keepdim=True))
                / (x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True))
                .clamp_min(0)
                .sqrt()
            ),
            "in which the mean is not squared",
        ),
    ],
)
def test_a_wrong_divisor_is_named(kind: str, rule: Rule, text: str) -> None:
    report = check_norm_layer(ByRule(rule, 6), kind=kind, quiet=True)
    assert text in reason(report)


def every_second(x: Tensor) -> Tensor:
    halves = [nn.functional.layer_norm(x[..., k::2], (6,)) for k in (0, 1)]
    return torch.stack(halves, -1).flatten(-2)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (every_second, "every second of 12, not those side by side, along axis 1"),
        (
            lambda x: nn.functional.layer_norm(x, (12,), eps=100.0),
            "the root of the variance and 100, which acts as eps",
        ),
        (
            lambda x: (
                (x - x.mean(-1, keepdim=True))
                / (x.std(-1, correction=0, keepdim=True) + 5)
            ),
            "sigma and 5, which acts as eps",
        ),
    ],
)
def test_values_and_divisors_of_no_known_slip_are_measured(
    rule: Rule, text: str
) -> None:
    report = check_norm_layer(ByRule(rule, 12), (8, 12), kind="layer", quiet=True)
    assert text in reason(report)


def test_channels_that_are_not_side_by_side_are_told() -> None:
    def rule(x: Tensor) -> Tensor:
        y = x.reshape(len(x), 3, 2, -1)
        var, mean = torch.var_mean(y, (1, 3), correction=0, keepdim=True)
        return ((y - mean) / (var + 1e-6).sqrt()).view_as(x)

    layer = ByRule(rule, 6, axis=1)
    layer.num_groups = 2  # type: ignore[assignment]
    report = check_norm_layer(layer, (3, 6, 5), kind="group", quiet=True)
    assert "every second of 6, not those side by side, along axis 1" in reason(report)


class Learned(nn.Module):
    """A batch norm whose running mean is a parameter."""

    def __init__(self, *, requires_grad: bool) -> None:
        super().__init__()
        self.eps, self.momentum = 1e-5, 0.1
        self.weight = nn.Parameter(torch.ones(6))
        self.bias = nn.Parameter(torch.zeros(6))
        self.running_mean = nn.Parameter(torch.zeros(6), requires_grad)
        self.running_var: Tensor
        self.register_buffer("running_var", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            y = (x - self.running_mean) / (self.running_var + self.eps).sqrt()
            return y * self.weight + self.bias
        self.running_mean.data.lerp_(x.detach().mean(0), 0.1)
        self.running_var.lerp_(x.detach().var(0), 0.1)
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_running_statistics_that_an_optimizer_moves_are_found(
    requires_grad: bool,
) -> None:
    report = check_norm_layer(Learned(requires_grad=requires_grad), (8, 6), quiet=True)
    found = {f.name: f.reason for f in report.findings if f.verdict == "wrong"}
    text = found.get("the running statistics hold no graph", "")
    assert ("writes to running_mean without an optimizer" in text) == requires_grad


def test_a_gain_that_begins_at_0_is_noted() -> None:
    layer = nn.RMSNorm(6)
    nn.init.zeros_(layer.weight)
    report = check_norm_layer(layer, quiet=True)
    assert report.passed
    notes = {f.other: f.reason for f in report.findings}
    assert "the output is the bias" in notes["gain of 0"]
    usual = check_norm_layer(nn.RMSNorm(6), quiet=True)
    assert "gain of 0" not in {f.other for f in usual.findings}


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_gain_and_bias_in_front_of_the_norm_are_named(kind: str) -> None:
    class First(ByRule):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.rule(x * self.weight + self.bias)
            return y

    rule = over(1)
    if kind == "rms":
        rule = lambda x: x / x.square().mean(-1, keepdim=True).sqrt()  # noqa: E731
    report = check_norm_layer(First(rule, 6), kind=kind, quiet=True)
    assert "gain and bias act before the normalization" in reason(report)


def test_a_part_of_the_features_is_told_and_no_reshape_is_advised() -> None:
    def rule(x: Tensor) -> Tensor:
        return x / x[..., :2].square().mean(-1, keepdim=True).sqrt()

    report = check_norm_layer(ByRule(rule, 6), kind="rms", quiet=True)
    assert "2 of 6 along axis" in reason(report)
    assert "permute" not in reason(report)


class Swapped(nn.BatchNorm1d):
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        own = self.running_mean, self.running_var, self.weight, self.bias
        return functional.batch_norm(x, *own, self.training, self.eps, self.momentum)


class EpsInVariance(nn.BatchNorm1d):
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training and self.running_var is not None:
            part = self.momentum * self.eps * len(x) / (len(x) - 1)
            self.running_var += part
        return y


class Alone(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return x if len(x) == 1 else super().forward(x)


class InPlaceInSinglePrecision(nn.Module):
    """RMS norm whose float() of a float32 tensor is that tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x.float()
            y *= (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return y.to(x.dtype) * self.weight


def found(layer: nn.Module, name: str, **settings: str) -> str:
    report = check_norm_layer(layer, quiet=True, **settings)  # type: ignore[arg-type]
    return next(f.reason for f in report.findings if f.name == name)


def test_another_eps_is_named_and_where_it_is_from() -> None:
    text = found(Swapped(6), "eps is added to the variance, inside the root")
    assert (
        "the eps that acts is 0.1, the value of momentum: the two may be swapped"
        in text
    )


def test_eps_in_the_running_variance_is_named() -> None:
    name = "the running variance averages the unbiased variances"
    assert "eps is averaged with the variance" in found(EpsInVariance(6, 1e-2), name)


def test_what_a_single_value_gives_in_training_is_said() -> None:
    name = "a batch with one value for each channel is refused in training"
    assert "the output is not normalized: it changes with x" in found(Alone(6), name)

    def rule(x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, 0, correction=0)
        return (x - mean) / (var + 1e-6).sqrt()

    text = found(ByRule(rule, 6), name, kind="batch")
    assert "of one example the output is the same, whatever the input" in text


def test_an_input_that_changes_in_float32_alone_is_found() -> None:
    text = found(InPlaceInSinglePrecision(), "the input is left as it is", kind="rms")
    assert "writes into its input, if that is torch.float32" in text


def test_axes_of_one_length_that_come_out_swapped_are_named() -> None:
    class Images(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 2, 1)

    report = check_norm_layer(Images(6), (4, 6, 5, 5), quiet=True)
    assert "axes 2 and 3 of the output are swapped" in reason(report)


def test_running_statistics_of_the_last_batch_alone_are_noted() -> None:
    name = "the running mean averages the means of the batches"
    layer = nn.BatchNorm1d(6, momentum=0.99)
    assert "the last batch alone weighs 0.99" in found(layer, name)
    assert check_norm_layer(layer, quiet=True).passed
    assert "weighs" not in found(nn.BatchNorm1d(6), name)


def test_zeros_are_told_apart_from_squares_that_overflow_in_half_precision() -> None:
    class Half(nn.Module):
        def __init__(self, eps: float, size: int = 6) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))
            self.eps = eps

        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True)
            var = x.square().mean(-1, keepdim=True)
            return x / (var + self.eps).sqrt() * self.weight

    name = "float16 and bfloat16 give what float32 gives"
    small, usual = found(Half(1e-12), name), found(Half(1e-5), name)
    assert "a square beyond 65504 is infinite" in small
    assert "a square beyond 65504 is infinite" in usual
    assert "an input of zeros gives NaN or infinity" in small
    assert "zeros" not in usual
    # A negative number over infinity is -0.
    assert "gives 0 where float32 gives -" in found(Half(1e-5, 5), name)


def test_it_is_zeros_that_an_rms_norm_must_take() -> None:
    class Scaled(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x / x.abs().amax(-1, keepdim=True))

    name = "a constant channel stays finite, output and gradient"
    assert "for an input of zeros the output is not finite" in found(
        Scaled(6, 1e-6), name
    )


class Overwriting(torch.autograd.Function):
    """An RMS norm without gain, whose backward pass may take no memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, in_place: bool) -> Tensor:
        r = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, r)
        ctx.in_place = in_place
        return x * r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, r = ctx.saved_tensors
        dy = grads[0] if ctx.in_place else grads[0].clone()
        dy.sub_(x * r * (dy * x * r).mean(-1, keepdim=True)).mul_(r)
        return dy, None


@pytest.mark.parametrize("in_place", [True, False])
def test_a_backward_pass_that_overwrites_what_it_is_given_is_told(
    in_place: bool,
) -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = Overwriting.apply(x, in_place)  # type: ignore[no-untyped-call]
            return y

    report = check_norm_layer(Layer(), (4, 5, 6), kind="rms", eps=1e-6, quiet=True)
    assert ("the input is left as it is" in report.failed) == in_place


def test_a_gradient_that_comes_rounded_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "normbook.checks.claims.call.backward",
        lambda y, dl_dy: (y * dl_dy).sum().backward(torch.tensor(1 + 1e-7).to(y)),
    )
    report = check_norm_layer(nn.LayerNorm(6), quiet=True)
    assert "the input is left as it is" not in report.failed
    assert "the gradient by x is that of the output" not in report.failed


@pytest.mark.parametrize("floor", [0, 1])
def test_running_statistics_that_one_value_spoils_are_named(floor: int) -> None:
    class Tracking(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return super().forward(x)
            var, mean = torch.var_mean(x, 0, correction=0)
            count = torch.tensor(float(len(x)))
            with torch.no_grad():
                self.running_mean.lerp_(mean, 0.1)  # type: ignore[union-attr]
                unbiased = var * count / (count - 1).clamp_min(floor)
                self.running_var.lerp_(unbiased, 0.1)  # type: ignore[union-attr]
            return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias

    name = "a batch with one value for each channel is refused in training"
    text = found(Tracking(6), name)
    assert "the output is the same" in text
    assert ("NaN or infinity in running_var" in text) != bool(floor)
    assert ("evaluation after that one batch is NaN" in text) != bool(floor)


@pytest.mark.parametrize("is_masked", [False, True])
def test_zeros_that_count_in_the_variance_are_named(is_masked: bool) -> None:
    def rule(x: Tensor) -> Tensor:
        row = functional.pad(x, (0, 2))
        centred = row - row.sum(-1, keepdim=True) / 6
        centred = centred * (torch.arange(8) < 6) if is_masked else centred
        var = centred.square().sum(-1, keepdim=True) / 6
        return (centred / (var + 1e-6).sqrt())[..., :6]

    text = reason(check_norm_layer(ByRule(rule, 6), kind="layer", quiet=True))
    law = "the root of the variance plus 0.333 times the squared mean"
    assert (law in text) != is_masked
    assert ("0.333 zeros for each value" in text) != is_masked
    assert ("a constant added to x changes the output" in text) != is_masked


def test_which_scale_is_not_forgotten_is_said() -> None:
    def rule(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        var = x.square().mean(-1, keepdim=True)
        return x / (var + 50 * var.sqrt()).sqrt()

    text = reason(check_norm_layer(ByRule(rule, 6), kind="layer", quiet=True))
    assert "x times 2 changes the output by" in text
    assert "a constant added" not in text


class Held(nn.Module):
    """A layer norm whose gain and bias are held in one of three ways."""

    gamma: Tensor
    beta: Tensor

    def __init__(self, how: str, size: int = 8) -> None:
        super().__init__()
        self.eps = 1e-5
        self.last = torch.zeros(size)  # of no use
        for name, value in (("gamma", torch.ones(size)), ("beta", torch.zeros(size))):
            if how == "buffer":
                self.register_buffer(name, value)
            else:
                setattr(self, name, nn.Parameter(value) if how == "learned" else value)

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        y: Tensor = (x - mean) / (var + self.eps).sqrt() * self.gamma + self.beta
        return y.to(x.dtype)


@pytest.mark.parametrize("how", ["plain", "buffer", "learned"])
def test_gain_and_bias_that_are_plain_attributes_are_named(how: str) -> None:
    report = check_norm_layer(Held(how), kind="layer", quiet=True)
    texts = [f.reason for f in report.findings if "held as parameters" in f.name]
    assert bool(texts) == (how == "plain")
    assert all("gamma and beta act on x_hat" in text for text in texts)


def test_statistics_of_the_width_alone_are_noted() -> None:
    def over(axis: int) -> nn.Module:
        class Pixels(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                mean_square = x.square().mean(axis, keepdim=True)
                return x * (mean_square + 1e-5).rsqrt()

        return Pixels()

    def notes(layer: nn.Module, **of: Any) -> str:
        report = check_norm_layer(layer, (4, 5, 6, 7), quiet=True, **of)
        return " ".join(f.reason for f in report.findings if f.verdict == "right")

    assert "over axis 3 alone" in notes(over(-1))
    assert "over axis 3 alone" not in notes(over(1))
    assert "over axis 3 alone" not in notes(over(-1), channel_axis=-1)
    assert "over axis 3 alone" not in notes(nn.RMSNorm(7))
