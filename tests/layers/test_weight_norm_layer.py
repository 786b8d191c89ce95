"""Weight norm and weight standardization as parametrizations, beside torch's."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from layer_pairs import EXACT, assert_equal, assert_every_mutant_is_caught, draw, run
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from normbook.gradient_check import relative_error
from normbook.layers.native import NATIVE
from normbook.layers.weight_norm import WeightNorm, WeightStandardization

KINDS = ["linear", "conv"]


def build(kind: str) -> tuple[Any, Tensor]:
    """Return a layer in float64, and an input of it."""
    layer: Any
    if kind == "linear":
        layer, x = nn.Linear(5, 3, dtype=torch.float64), draw(7, 5)
    else:
        layer, x = nn.Conv2d(4, 3, (2, 5), dtype=torch.float64), draw(2, 4, 6, 7)
    layer.weight.data = draw(*layer.weight.shape, seed=1)
    return layer, x


def with_weight_norm(layer: nn.Module) -> Any:
    return parametrize.register_parametrization(layer, "weight", WeightNorm())


def assert_alike(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    dl_dy = draw(*ours(x).shape, seed=2)
    assert_equal(run(ours, x, dl_dy), run(theirs, x, dl_dy))


@pytest.mark.parametrize("kind", KINDS)
def test_weight_norm_equals_torch(kind: str) -> None:
    layer, x = build(kind)
    ours = with_weight_norm(copy.deepcopy(layer))
    theirs = parametrizations.weight_norm(copy.deepcopy(layer))
    for model in (ours, theirs):  # not those of one weight: the first g is negative
        for parameter in model.parameters():
            parameter.data = draw(*parameter.shape, seed=4)
    assert_alike(ours, theirs, x)


@pytest.mark.parametrize("kind", KINDS)
def test_setting_the_weight_finds_the_lengths_and_directions_of_torch(
    kind: str,
) -> None:
    layer, _ = build(kind)
    ours = with_weight_norm(copy.deepcopy(layer))
    theirs = parametrizations.weight_norm(copy.deepcopy(layer))
    new = draw(*ours.weight.shape, seed=4)
    ours.weight, theirs.weight = new, new
    assert_equal(dict(ours.named_parameters()), dict(theirs.named_parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_torch_is_taken(kind: str) -> None:
    layer, x = build(kind)
    theirs = parametrizations.weight_norm(layer)
    ours = with_weight_norm(build(kind)[0])
    for parameter in theirs.parameters():
        parameter.data = draw(*parameter.shape, seed=5)
    ours.load_state_dict(theirs.state_dict())
    assert_alike(ours, theirs, x)


def test_taking_the_parametrization_off_leaves_the_weight() -> None:
    layer, x = build("conv")
    with_weight_norm(layer)
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert relative_error(layer(x), expected) < EXACT
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight"]


def by_hand(weight: Tensor, eps: float) -> Tensor:
    axes = tuple(range(1, weight.ndim))
    var, mu = torch.var_mean(weight, axes, correction=0, keepdim=True)
    return (weight - mu) / torch.sqrt(var + eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [1e-10, 0.3])
def test_a_layer_computes_with_the_standardized_weight(kind: str, eps: float) -> None:
    layer, x = build(kind)
    before, expected = layer.weight.detach().clone(), copy.deepcopy(layer)
    expected.weight.data = by_hand(layer.weight, eps)
    parametrize.register_parametrization(layer, "weight", WeightStandardization(eps))
    assert relative_error(layer(x), expected(x)) < EXACT
    # What is trained is the weight as it was.
    assert torch.equal(layer.parametrizations.weight.original, before)


# torch itself comes through here, on its way to forward-mode derivatives.
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)
@pytest.mark.parametrize("module", [WeightNorm(), WeightStandardization(0.1)])
def test_second_derivatives_and_tangents_agree_with_differences(module: Any) -> None:
    v, g = draw(3, 5).requires_grad_(), draw(3, 1, seed=1).requires_grad_()
    inputs = (g, v) if isinstance(module, WeightNorm) else (v,)
    assert torch.autograd.gradcheck(module, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(module, inputs)


def test_every_mutant_of_weight_norm_is_caught() -> None:
    check = partial(test_weight_norm_equals_torch, "conv")
    assert_every_mutant_is_caught(WeightNorm, "forward", check)


def test_the_backward_pass_is_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("the closed form was asked")

    monkeypatch.setenv(NATIVE, "0")
    monkeypatch.setattr("normbook.layers.function.formulas.backward", refuse)
    v, g = draw(3, 5).requires_grad_(), draw(3, 1)
    for w in (WeightNorm()(g, v), WeightStandardization()(v)):
        with pytest.raises(RuntimeError, match="the closed form was asked"):
            torch.autograd.grad(w.sum(), v)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_and_half_keep_their_dtype(kind: str) -> None:
    for dtype in (torch.float32, torch.float16):
        layer = with_weight_norm(build(kind)[0].to(dtype))
        parameters = list(layer.parametrizations.weight.parameters())
        slopes = torch.autograd.grad(layer.weight.sum(), parameters)
        assert {layer.weight.dtype, *(slope.dtype for slope in slopes)} == {dtype}


def test_the_setting_is_named() -> None:
    assert repr(WeightStandardization(1e-5)) == "WeightStandardization(eps=1e-05)"


def test_a_weight_without_rows_is_refused() -> None:
    layer, _ = build("linear")
    for module in (WeightNorm(), WeightStandardization()):
        with pytest.raises(ValueError, match=r"weights must have shape .* got \(3,\)"):
            parametrize.register_parametrization(layer, "bias", module)
    assert isinstance(layer.bias, nn.Parameter)
    with pytest.raises(ValueError, match="eps must be"):
        WeightStandardization(-1.0)(draw(3, 5))
