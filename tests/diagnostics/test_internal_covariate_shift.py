"""Both definitions, on nets that can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.diagnostics.internal_covariate_shift import (
    gradient_shift,
    input_shift,
    trained_layers,
)
from normbook.gradient_check import survivors

A, B, C, X, STEP = 1.5, -2.0, 0.7, 1.2, 0.05


class Product(nn.Module):
    """ℓ = (a b c x)² / 2: three scalar layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(3)))
        self.double()
        for layer, value in zip(self.layers, (A, B, C), strict=True):
            nn.init.constant_(layer.weight, value)  # type: ignore[arg-type]

    def forward(self) -> torch.Tensor:
        x = torch.full((1, 1), X, dtype=torch.float64)
        y: torch.Tensor = self.layers(x)
        return (y**2).sum() / 2


def by_hand() -> tuple[Any, Any]:
    """Give G and G' of the three layers: ∂ℓ/∂a = a b² c² x², and so on."""
    g = np.array([A * B**2 * C**2, A**2 * B * C**2, A**2 * B**2 * C]) * X**2
    a, b = A - STEP * g[0], B - STEP * g[1]
    after = np.array([A * B**2 * C**2, a**2 * B * C**2, a**2 * b**2 * C]) * X**2
    return g, after


def check(function: Any) -> None:
    shift = function(Product(), lambda m: m(), STEP)
    g, after = by_hand()
    np.testing.assert_allclose(shift.gradient_norm, np.abs(g), rtol=1e-12)
    np.testing.assert_allclose(shift.l2, np.abs(g - after), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(shift.cosine, np.sign(g * after))
    assert len(shift.names) == 3


def test_the_gradient_shift_is_the_one_on_paper() -> None:
    check(gradient_shift)


def test_every_mutant_is_caught() -> None:
    assert survivors(gradient_shift, check) == []


def test_a_step_of_an_optimizer_can_be_given_as_a_function() -> None:
    sign = gradient_shift(Product(), lambda m: m(), lambda p, g: 0.01 * g.sign())
    a, b = A - 0.01, B + 0.01
    expected = abs(A**2 * B**2 * C - a**2 * b**2 * C) * X**2
    assert sign.l2[2] == pytest.approx(expected)


def test_a_reversed_gradient_has_cosine_minus_one() -> None:
    # a step so long that a changes sign leaves b's gradient b a² c² as it was,
    # so look at a loss that is linear in a: ℓ = a b
    model = Product()

    def loss(m: Any) -> torch.Tensor:
        a, b = (layer.weight.sum() for layer in m.layers[:2])
        product: torch.Tensor = a * b
        return product

    groups = {"a": [model.layers[0].weight], "b": [model.layers[1].weight]}
    shift = gradient_shift(model, loss, 10.0, groups)  # type: ignore[arg-type]
    # G_b = a = 1.5; a' = 1.5 - 10 b = 21.5
    np.testing.assert_allclose(shift.l2, [0, 20])
    shift = gradient_shift(model, loss, -1.0, groups)  # type: ignore[arg-type]
    # a' = 1.5 + b = -0.5
    np.testing.assert_allclose(shift.cosine, [1, -1])


def test_the_lowest_layer_has_nothing_below_it() -> None:
    shift = gradient_shift(Product(), lambda m: m(), 100.0)
    assert (shift.l2[0], shift.cosine[0]) == (0, pytest.approx(1))


def test_a_layer_that_gets_no_gradient_has_no_angle() -> None:
    model = Product()
    shift = gradient_shift(model, lambda m: m.layers[0].weight.sum(), 0.1)
    assert shift.l2[1] == 0
    assert np.isnan(shift.cosine[1])


def test_norms_belong_to_the_layer_before_them() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(4),
        nn.Linear(4, 3),
        nn.BatchNorm1d(3),
        nn.ReLU(),
        nn.Linear(3, 2),
    )
    names = {n: len(group) for n, group in trained_layers(model).items()}
    assert names == {"0": 2, "1": 4, "4": 2}


def test_a_frozen_layer_is_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match="must have a parameter that requires"):
        trained_layers(model)
    model[1].requires_grad_()
    assert list(trained_layers(model)) == ["1"]


def moved(scale: float, shift: float) -> Any:
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    return input_shift(x, scale * x + shift)


def test_a_shift_by_one_deviation_counts_as_one() -> None:
    x = torch.tensor([[0.0, 5.0], [2.0, 9.0], [4.0, 1.0]])
    spread = x.std(0, correction=0)
    np.testing.assert_allclose(input_shift(x, x + spread), [1, 1], rtol=1e-6)
    np.testing.assert_allclose(input_shift(x, x - spread), [1, 1], rtol=1e-6)


def test_a_change_of_scale_counts_without_a_change_of_mean() -> None:
    # E|2z - z| = E|z| = 0.798 for a standard normal z
    np.testing.assert_allclose(moved(2.0, 0.0), 0.798, atol=0.05)


def test_the_order_of_the_examples_does_not_matter() -> None:
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(input_shift(x, x.flip(0)), 0)


def test_a_constant_unit_has_no_scale() -> None:
    assert np.isnan(input_shift(torch.ones(3, 1), torch.zeros(3, 1))[0])


@pytest.mark.parametrize(("a", "b"), [((3, 2), (4, 2)), ((3,), (3,)), ((1, 2), (1, 2))])
def test_bad_shapes_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must have one shape \(N, D\) with N >= 2"):
        input_shift(torch.zeros(a), torch.zeros(b))
