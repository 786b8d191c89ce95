"""Layers for networks without norm: beside torch's, copied, and recognized."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_pairs import EXACT, assert_equal, draw, each_copy, run, stirred
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from normbook.checks import check_norm_layer
from normbook.gradient_check import relative_error
from normbook.layers.dynamic_tanh import DynamicTanh
from normbook.layers.weight_norm import ScaledWeightStandardization, SpectralNorm
from normbook.weight_norm import scaled_weight_standardization

KINDS = ["linear", "conv"]


def build(kind: str) -> Any:
    """Return a layer in float64."""
    layer: Any = nn.Linear(5, 3) if kind == "linear" else nn.Conv2d(4, 3, (2, 5))
    layer = layer.double()
    layer.weight.data = draw(*layer.weight.shape, seed=1)
    return layer


def with_spectral_norm(kind: str) -> Any:
    layer = build(kind)
    rand = torch.Generator().manual_seed(0)
    norm = SpectralNorm(layer.weight, generator=rand)
    return parametrize.register_parametrization(layer, "weight", norm)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_training", [True, False])
def test_spectral_norm_equals_torch_from_its_checkpoint(
    kind: str, is_training: bool
) -> None:
    ours, theirs = with_spectral_norm(kind), parametrizations.spectral_norm(build(kind))
    ours.load_state_dict(theirs.state_dict())
    x = draw(7, 5) if kind == "linear" else draw(2, 4, 6, 7)
    for _ in range(2):
        for model in (ours, theirs):
            model.train(is_training)
        dl_dy = draw(*ours(x).shape, seed=2)
        theirs(x)
        assert_equal(run(ours, x, dl_dy), run(theirs, x, dl_dy))


def test_a_weight_used_twice_in_training_can_still_be_differentiated() -> None:
    layer, x = with_spectral_norm("linear"), draw(7, 5)
    loss = layer(x).sum() + layer(x).square().sum()
    found = torch.autograd.grad(loss, layer.parametrizations.weight.original)
    assert found[0].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_with_the_scaled_standardized_weight(kind: str) -> None:
    layer = build(kind)
    expected = scaled_weight_standardization(
        layer.weight.detach(), torch.full((3,), 1.7, dtype=torch.float64)
    )
    parametrize.register_parametrization(
        layer, "weight", ScaledWeightStandardization(1.7)
    )
    assert relative_error(layer.weight.detach(), expected) < EXACT
    shape = layer.parametrizations.weight.original0.shape
    assert shape == (3, *(1,) * (layer.weight.ndim - 1))


def test_second_derivatives_of_the_scaled_weight_agree_with_differences() -> None:
    w, g = draw(3, 5).requires_grad_(), draw(3, 1, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(ScaledWeightStandardization(eps=0.1), (g, w))


@pytest.mark.parametrize("kind", KINDS)
def test_parametrizations_survive_deepcopy(kind: str) -> None:
    layer = with_spectral_norm(kind).eval()
    assert torch.equal(copy.deepcopy(layer).weight, layer.weight)


def test_dynamic_tanh_is_its_formula_with_every_gradient() -> None:
    class Definition(DynamicTanh):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * torch.tanh(self.alpha * x) + self.bias

    ours, theirs = (
        stirred(kind(5, dtype=torch.float64)) for kind in (DynamicTanh, Definition)
    )
    x, dl_dy = draw(7, 5) / 9, draw(7, 5, seed=2)
    assert_equal(run(ours, x, dl_dy), run(theirs, x, dl_dy))


@each_copy
def test_dynamic_tanh_survives_copies(copied: Any) -> None:
    layer, x = stirred(DynamicTanh(5, 0.7, dtype=torch.float64)), draw(7, 5)
    assert torch.equal(copied(layer)(x), layer(x))
    assert sorted(layer.state_dict()) == ["alpha", "bias", "weight"]


def test_the_checker_says_that_dynamic_tanh_is_other_on_purpose() -> None:
    report = check_norm_layer(DynamicTanh(12), quiet=True)
    assert not report.failed
    assert "Dynamic Tanh: other, perhaps on purpose" in str(report)
    allowed = check_norm_layer(DynamicTanh(12), quiet=True, allow="Dynamic Tanh")
    assert allowed.passed, allowed


def test_settings_are_named() -> None:
    assert repr(DynamicTanh(3, 0.7)) == "DynamicTanh(3, alpha_init=0.7)"
    named = repr(ScaledWeightStandardization(2.0))
    assert named == "ScaledWeightStandardization(gain=2.0, eps=1e-10)"
    assert repr(SpectralNorm(torch.ones(2, 3))) == "SpectralNorm(steps=1)"


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="num_features must be"):
        DynamicTanh(0)
    with pytest.raises(ValueError, match="alpha_init must be a finite number"):
        DynamicTanh(3, float("nan"))
    with pytest.raises(ValueError, match=r"weights must have shape .* got \(3,\)"):
        SpectralNorm(torch.ones(3))
