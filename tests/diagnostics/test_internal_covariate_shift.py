"""Both definitions, on nets that can be worked out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.diagnostics.internal_covariate_shift import (
    gradient_shift,
    input_shift,
    input_shift_of_update,
    trained_layers,
)
from normbook.diagnostics.noise import DistributionNoise
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
    """Return G and G' of the three layers: ∂ℓ/∂a = a b² c² x², and so on."""
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


def test_a_weight_of_two_layers_moves_with_the_lower_one() -> None:
    model = Product()
    model.layers[2].weight = model.layers[0].weight  # ℓ = (a² b x)² / 2
    shift = gradient_shift(model, lambda m: m(), STEP)
    slope_a = 2 * A**3 * B**2 * X**2
    b_before, b_after = (a**4 * B * X**2 for a in (A, A - STEP * slope_a))
    np.testing.assert_allclose(shift.l2[1], abs(b_before - b_after), rtol=1e-12)


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
    model: Any = Product()
    a, b, _ = (layer.weight for layer in model.layers)
    groups = {"a": [a], "b": [b]}
    shift = gradient_shift(model, lambda _: (a * b).sum(), 10.0, groups)
    # G_b = a = 1.5; a' = 1.5 - 10 b = 21.5
    np.testing.assert_allclose(shift.l2, [0, 20])
    shift = gradient_shift(model, lambda _: (a * b).sum(), -1.0, groups)
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


def test_a_shift_by_one_deviation_counts_as_one() -> None:
    x = torch.tensor([[0.0, 5.0], [2.0, 9.0], [4.0, 1.0]])
    spread = x.std(0, correction=0)
    np.testing.assert_allclose(input_shift(x, x + spread), [1, 1], rtol=1e-6)
    np.testing.assert_allclose(input_shift(x, x - spread), [1, 1], rtol=1e-6)


def test_a_change_of_scale_counts_without_a_change_of_mean() -> None:
    # E|2z - z| = E|z| = 0.798 for a standard normal z
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(input_shift(x, 2 * x), 0.798, atol=0.05)


def test_the_order_of_the_examples_does_not_matter() -> None:
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(input_shift(x, x.flip(0)), 0)


def ascending_part(signs: tuple[int, ...]) -> torch.Tensor:
    """Return the ascending list of mean 0 and variance 1 (or 0) most like the signs."""
    n = len(signs)
    total = np.cumsum((0, *signs))
    places = itertools.combinations(range(n + 1), 2)
    mean = {(a, b): (total[b] - total[a]) / (b - a) for a, b in places}
    rise = [
        max(min(mean[a, b] for b in range(i + 1, n + 1)) for a in range(i + 1))
        for i in range(n)
    ]
    found = torch.tensor(rise, dtype=torch.float64)[:, None]
    found = (found - found.mean()).round(decimals=12)
    spread: torch.Tensor = found.std(correction=0).clamp_min(1e-9)
    return found / spread


def test_lists_of_one_mean_and_deviation_are_within_the_bound() -> None:
    # The pair of lists whose differences have given signs is furthest apart where
    # one list is the ascending one most like the signs, the other that most unlike.
    # So to try all signs is to try all pairs.
    shifts = [0.0]
    for signs in itertools.product((-1, 1), repeat=8):
        negative = tuple(-s for s in signs)
        before, after = ascending_part(signs), ascending_part(negative)
        shifts.append(input_shift(before, after)[0])  # NaN for a constant list
    bound = 4 * ((1 + 5**0.5) / 2) ** -2.5
    assert 1.19 < np.nanmax(shifts) < bound


def test_a_constant_unit_has_no_scale() -> None:
    assert np.isnan(input_shift(torch.ones(3, 1), torch.zeros(3, 1))[0])


@pytest.mark.parametrize(("a", "b"), [((3, 2), (4, 2)), ((3,), (3,)), ((1, 2), (1, 2))])
def test_bad_shapes_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must have one shape \(N, D\) with N >= 2"):
        input_shift(torch.zeros(a), torch.zeros(b))


# --- the shift of the inputs by one update


SEEDED = torch.Generator().manual_seed(1)
ROWS = torch.randn(8, 2, dtype=torch.float64, generator=SEEDED)


def chain() -> Any:
    """Return x -> W x -> V (W x): two linear layers, W = diag(1, 2), V = (3, -1)."""
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.diag(torch.tensor([1.0, 2.0])))
        second.weight.copy_(torch.tensor([[3.0, -1.0]]))
    return nn.Sequential(first, second, nn.Identity()).double()


def total(m: nn.Module) -> torch.Tensor:
    value: torch.Tensor = m(ROWS).sum()
    return value


def check_update(function: Any) -> None:
    """By hand: the gradient of the sum by W is V^T s^T, by V it is (W s)^T."""
    found = function(chain(), total, STEP, ["0", "1", "2"])
    x = ROWS.numpy()
    w, v, s = np.diag([1.0, 2.0]), np.array([[3.0, -1.0]]), x.sum(0)
    w_new, v_new = w - STEP * np.outer(v, s), v - STEP * (w @ s)[None]
    before = [x, x @ w.T, x @ w.T @ v.T]
    after = [x, x @ w_new.T, x @ w_new.T @ v_new.T]
    for name, a, b in zip("012", before, after, strict=True):
        expected = input_shift(torch.tensor(a), torch.tensor(b))
        np.testing.assert_allclose(found[name], expected, rtol=1e-10, atol=1e-12)
    assert found["1"].min() > 0.01


def test_the_shift_of_an_update_is_that_of_all_layers_together() -> None:
    check_update(input_shift_of_update)


def test_the_distribution_can_be_that_of_other_examples() -> None:
    five = ROWS[:5]
    found = input_shift_of_update(chain(), total, STEP, ["1"], lambda m: m(five).sum())[
        "1"
    ]
    w_new = np.diag([1.0, 2.0]) - STEP * np.outer([3.0, -1.0], ROWS.numpy().sum(0))
    x = five.numpy()
    before, after = (torch.tensor(x @ w.T) for w in (np.diag([1.0, 2.0]), w_new))
    np.testing.assert_allclose(found, input_shift(before, after), rtol=1e-10)


def test_the_update_of_an_optimizer_can_be_given_as_a_function() -> None:
    by_rate, by_function = (
        input_shift_of_update(chain(), total, step, ["1"])["1"]
        for step in (STEP, lambda _, g: STEP * g)
    )
    np.testing.assert_array_equal(by_rate, by_function)


def test_statistics_that_the_loss_moves_are_put_back_before_the_probe() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    x = torch.randn(8, 2, dtype=torch.float64) + 3

    def shift(momentum: float) -> Any:
        def loss(m: Any) -> Any:
            m[1].momentum = momentum
            return m.train()(x).square().sum()

        def probe(m: nn.Module) -> Any:
            return m.eval()(x).sum()

        return input_shift_of_update(model, loss, 0.1, ["2"], probe)["2"]

    np.testing.assert_array_equal(shift(1.0), shift(0.0))


def test_noise_is_drawn_anew_after_the_update() -> None:
    net = chain()
    generator = torch.Generator().manual_seed(0)
    net.insert(1, DistributionNoise(generator=generator))
    found = input_shift_of_update(net, total, 0.0, ["1", "2"])
    np.testing.assert_array_equal(found["1"], 0)  # before the noise nothing moves
    assert found["2"].min() > 0.01
