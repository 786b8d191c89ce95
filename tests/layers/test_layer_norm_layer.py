"""Layer norm and RMSNorm as layers: their settings, and the formulas of the book."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    FEATURES,
    HALF,
    Pair,
    assert_alike,
    distance,
    draw,
    name,
    twins,
    zeros,
)

from normbook.layer_norm import layer_norm, rms_norm
from normbook.layers.layer_norm import ModelRMSNorm, RMSNorm
from normbook.layers.native import NATIVE

each_pair = pytest.mark.parametrize("pair", [FEATURES[1], FEATURES[5]], ids=name)


@pytest.mark.parametrize("eps", [1e-3, 0.0])
@pytest.mark.parametrize(
    ("affine", "bias"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_every_combination_of_settings_agrees_with_torch(
    affine: bool, bias: bool, eps: float
) -> None:
    x, dl_dy = draw(7, 3, 5), draw(7, 3, 5, seed=1)
    assert_alike(twins(FEATURES[1], (3, 5), eps, affine, bias), x, dl_dy)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [None, 1e-3, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rms_norm_agrees_with_torch_for_every_eps(
    dtype: torch.dtype, eps: float | None, affine: bool
) -> None:
    # So small that the eps for None is seen: 1e-7 beside 2.2e-16 or 1.2e-7.
    x, dl_dy = draw(7, 5, dtype=dtype) * 1e-4, draw(7, 5, seed=1, dtype=dtype)
    tolerance = EXACT if dtype == torch.float64 else 2e-6
    layers = twins(FEATURES[5], 5, eps, affine, dtype=dtype)
    assert_alike(layers, x, dl_dy, tolerance)


@pytest.mark.parametrize("dtype", HALF)
def test_without_an_eps_half_precision_takes_that_of_float32(
    dtype: torch.dtype,
) -> None:
    x = torch.full((1, 4), 2.0**-12, dtype=dtype)
    expected = 2.0**-12 / (2.0**-24 + torch.finfo(torch.float32).eps) ** 0.5
    y = RMSNorm(4, dtype=dtype)(x)
    assert distance(y, torch.full((1, 4), expected)) < torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", [5, [3, 5], (3, 5), torch.Size([3, 5])])
@each_pair
def test_the_shape_may_be_given_in_torch_s_ways(pair: Pair, shape: Any) -> None:
    ours, theirs = pair.ours(shape), pair.theirs(shape)
    assert ours.normalized_shape == theirs.normalized_shape
    assert repr(ours) == repr(theirs)
    assert ours(zeros(2, 3, 5)).shape == (2, 3, 5)


@pytest.mark.parametrize("features", [1, 2, 5])
def test_the_layers_compute_what_the_formulas_of_the_book_compute(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE, "0")
    x = draw(7, 3, features)
    layer, scaled = (twins(FEATURES[k], features)[0] for k in (1, 5))
    assert torch.equal(layer(x), layer_norm(x, layer.weight, layer.bias, layer.eps))
    smallest = torch.finfo(torch.float64).eps
    assert torch.equal(scaled(x), rms_norm(x, scaled.weight, smallest))


@pytest.mark.parametrize("rounds", ["after", "before"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_offset_and_rounds_are_those_of_the_formula(
    dtype: torch.dtype, offset: float, rounds: Any
) -> None:
    options = {"offset": offset, "rounds": rounds}
    x, layer = draw(7, 5).to(dtype), ModelRMSNorm(5, 1e-3, dtype=dtype, **options)
    assert layer.weight.tolist() == [1 - offset] * 5
    with torch.no_grad():
        layer.weight.add_(draw(5, seed=1).to(dtype))
    expected = rms_norm(x, layer.weight, 1e-3, **options)
    assert layer(x).dtype == expected.dtype == dtype
    assert distance(layer(x), expected) <= 4 * torch.finfo(dtype).eps


def test_both_orders_have_the_gradients_of_one_formula() -> None:
    x, dl_dy = draw(7, 5).requires_grad_(), draw(7, 5, seed=1)
    found = []
    for rounds in ("after", "before"):
        layer = ModelRMSNorm(5, offset=1.0, rounds=rounds, dtype=torch.float64)
        found.append(torch.autograd.grad(layer(x), [x, layer.weight], dl_dy))
    for after, before in zip(*found, strict=True):
        torch.testing.assert_close(after, before, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("wrong", [{"offset": "1"}, {"rounds": "first"}])
def test_options_that_do_not_exist_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
        ModelRMSNorm(5, **wrong)
