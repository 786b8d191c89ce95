"""A backward pass by hand: the term that is off is named, and a right one passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.checks.claims.gradient import by_parameters, by_x

Slopes = tuple[Tensor, Tensor, Tensor]
D = 12


def mean(values: Tensor) -> Tensor:
    return values.mean(-1, keepdim=True)


def rows(values: Tensor) -> Tensor:
    return values.reshape(-1, D)


class Pass(torch.autograd.Function):
    """Layer norm, or RMS norm, with the backward pass that is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, layer: Any) -> Tensor:
        centred = x - mean(x) if layer.subtracts else x
        r = (mean(centred.square()) + 1e-5).rsqrt()
        ctx.save_for_backward(x, gain, centred * r, r)
        ctx.layer = layer
        return centred * r * gain

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, gain, z, r = ctx.saved_tensors
        by_x = ctx.layer.by_x(g * gain, x, z, r)
        return by_x, ctx.layer.by_gain(rows(g), rows(z)), None


class ByHand(nn.Module):
    def __init__(self, **slips: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.eps, self.subtracts = 1e-5, True
        for name, value in slips.items():
            setattr(self, name, value)

    def by_x(self, v: Tensor, x: Tensor, z: Tensor, r: Tensor) -> Tensor:
        return r * (v - self.subtracts * mean(v) - z * mean(v * z))

    def by_gain(self, g: Tensor, z: Tensor) -> Tensor:
        return (g * z).sum(0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Pass.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return y


def said(layer: nn.Module, kind: str = "layer") -> dict[str, str]:
    report = check_norm_layer(layer, (4, 5, D), kind=kind, quiet=True)
    names = (by_x.name, by_parameters.name)
    return {
        f.name: f.reason for f in report.findings if f.name in names and not f.passed
    }


@pytest.mark.parametrize(("kind", "subtracts"), [("layer", True), ("rms", False)])
def test_a_right_backward_pass_by_hand_is_not_called_wrong(
    kind: str, subtracts: bool
) -> None:
    assert said(ByHand(subtracts=subtracts), kind) == {}


Rule = Callable[..., Tensor]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda v, x, z, r: r * (v - 2 * mean(v) - z * mean(v * z)), "the factor 2"),
        (
            lambda v, x, z, r: r * (v - mean(v) - x * mean(v * z)),
            "the term of the variance has x in place of x_hat, outside the mean",
        ),
        (
            lambda v, x, z, r: r * (v - mean(v) - z * mean(v * x)),
            "the term of the variance has x in place of x_hat, inside the mean",
        ),
        (
            lambda v, x, z, r: r * (v - mean(v)) - z * mean(v * z),
            "the term of the variance is not divided by sigma",
        ),
        (
            lambda v, x, z, r: r * v - mean(v) - r * z * mean(v * z),
            "the term of the mean is not divided by sigma",
        ),
        (
            lambda v, x, z, r: r * (v - mean(v) - z * mean(v)),
            "the mean of v alone, not that of v x_hat",
        ),
        (lambda v, x, z, r: 0 * v, "it is 0 for every x"),
        (
            lambda v, x, z, r: (r * (v - mean(v) - z * mean(v * z))).clamp(-0.5, 0.5),
            "it is cut off at 0.5",
        ),
    ],
)
def test_the_term_of_a_layer_norm_that_is_off_is_named(rule: Rule, text: str) -> None:
    assert text in said(ByHand(by_x=rule))[by_x.name]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            lambda v, x, z, r: r * v - r * x * mean(v * x),
            "the term of the variance is multiplied by sigma",
        ),
        (
            lambda v, x, z, r: r * (v - mean(v) - z * mean(v * z)),
            "the mean of the upstream gradient is subtracted",
        ),
    ],
)
def test_the_term_of_an_rms_norm_that_is_off_is_named(rule: Rule, text: str) -> None:
    assert text in said(ByHand(by_x=rule, subtracts=False), "rms")[by_x.name]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda g, z: g[-1] * z[-1], "that of row 79 alone"),
        (lambda g, z: (g * z)[:-1].sum(0), "over the first 79 rows of 80 alone"),
        (lambda g, z: (g * z)[3:].sum(0), "the first 3 rows of 80 are left out"),
        (lambda g, z: 0 * g[0], "it is 0"),
        (lambda g, z: (g * z.abs()).sum(0), "the sum of dl_dy * |x_hat|"),
    ],
)
def test_the_rows_that_a_gradient_of_the_gain_lacks_are_named(
    rule: Rule, text: str
) -> None:
    assert text in said(ByHand(by_gain=rule))[by_parameters.name]
