"""Layer norm and RMSNorm as layers: their settings, edge cases and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    FEATURES,
    Pair,
    assert_alike,
    assert_equal,
    assert_refused_alike,
    distance,
    draw,
    name,
    run,
    twins,
    zeros,
)
from torch import Tensor, nn

from normbook.layer_norm import layer_norm, rms_norm
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.layer_norm import LayerNorm, RMSNorm

each_pair = pytest.mark.parametrize("pair", [FEATURES[1], FEATURES[5]], ids=name)


@pytest.mark.parametrize("eps", [1e-3, 0.0])
@pytest.mark.parametrize(
    ("affine", "bias"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_every_combination_of_settings_agrees_with_torch(
    affine: bool, bias: bool, eps: float
) -> None:
    x, dl_dy = draw(7, 3, 5), draw(7, 3, 5, seed=1)
    pair = FEATURES[1]._replace(args=((3, 5), eps, affine, bias))
    assert_alike(twins(pair), x, dl_dy)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("eps", [None, 1e-3, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rms_norm_agrees_with_torch_for_every_eps(
    dtype: torch.dtype, eps: float | None, affine: bool
) -> None:
    # So small that the eps for None is seen: 1e-7 beside 2.2e-16 or 1.2e-7.
    x, dl_dy = draw(7, 5, dtype=dtype) * 1e-4, draw(7, 5, seed=1, dtype=dtype)
    pair = FEATURES[5]._replace(args=(5, eps, affine))
    tolerance = EXACT if dtype == torch.float64 else 2e-6
    layers = twins(pair, dtype=dtype)
    assert_alike(layers, x, dl_dy, tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
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


def test_the_constructors_take_torch_s_arguments_in_torch_s_order() -> None:
    for pair, args in (
        (FEATURES[0], (4, 0.5, True, False, "meta", torch.float64)),
        (FEATURES[4], (4, 0.5, True, "meta", torch.float64)),
    ):
        ours, theirs = pair.ours(*args), pair.theirs(*args)
        assert repr(ours) == repr(theirs)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (a.device, a.dtype, a.shape) == (b.device, b.dtype, b.shape)


def test_the_layers_compute_what_the_formulas_of_the_book_compute() -> None:
    x = draw(7, 3, 5)
    layer, scaled = twins(FEATURES[1])[0], twins(FEATURES[5])[0]
    assert torch.equal(layer(x), layer_norm(x, layer.weight, layer.bias, layer.eps))
    smallest = torch.finfo(torch.float64).eps
    assert torch.equal(scaled(x), rms_norm(x, scaled.weight, smallest))


# --- few features


def test_a_single_feature_is_normalized_to_0_and_passes_no_gradient() -> None:
    layer = twins(FEATURES[1]._replace(args=(1,)))[0]
    found = run(layer, draw(7, 1), draw(7, 1, seed=1))
    assert torch.equal(found["y"], layer.bias.detach().expand(7, 1))
    assert not found["dl_dx"].any()
    assert not found["dl_dweight"].any()


def test_two_features_become_1_and_minus_1_and_pass_a_gradient_of_the_size_of_eps() -> (
    None
):
    layers = twins(FEATURES[1]._replace(args=(2, 1e-12)))
    x, dl_dy = draw(7, 2), draw(7, 2, seed=1)
    ours, theirs = (run(layer, x, dl_dy) for layer in layers)
    signs = torch.sign(x - x.mean(1, keepdim=True))
    weight, bias = (p.detach() for p in layers[0].parameters())
    assert distance(ours["y"], weight * signs + bias) < 1e-9
    # Beside gradients of the size 1 that arrive.
    assert ours["dl_dx"].abs().max() < 1e-9
    assert (ours["dl_dx"] - theirs["dl_dx"]).abs().max() < 1e-12


def test_a_single_feature_by_its_root_mean_square_is_its_sign() -> None:
    layer = RMSNorm(1, dtype=torch.float64)
    assert distance(layer(draw(7, 1)), draw(7, 1).sign()) < EXACT


# --- reductions


def transposed(layer: nn.Module, x: Tensor, dl_dy: Tensor) -> dict[str, Tensor]:
    found = run(layer, x.T.contiguous(), dl_dy.T.contiguous())
    return {key: found[key].T for key in ("y", "dl_dx")}


def test_batch_norm_of_the_transposed_input_is_layer_norm() -> None:
    x, dl_dy = draw(7, 5), draw(7, 5, seed=1)
    layer = LayerNorm(5, elementwise_affine=False, dtype=x.dtype)
    by_batch = BatchNorm1d(7, affine=False, dtype=x.dtype)
    assert_equal(run(layer, x, dl_dy), transposed(by_batch, x, dl_dy), EXACT)


def test_rms_norm_of_centred_input_is_layer_norm() -> None:
    x = draw(7, 5)
    x = x - x.mean(1, keepdim=True)
    layer = LayerNorm(5, 1e-3, elementwise_affine=False)
    assert distance(RMSNorm(5, 1e-3, elementwise_affine=False)(x), layer(x)) < EXACT


def test_the_other_examples_do_not_matter() -> None:
    x = draw(7, 3, 5)
    for pair in (FEATURES[2], FEATURES[5]):
        layer = twins(pair)[0]
        assert torch.equal(layer(x)[:2], layer(x[:2]))


# --- refusals


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((2, 4), r"normalized_shape = \(5,\), got shape \(2, 4\)"),
        ((5, 2), r"normalized_shape = \(5,\), got shape \(5, 2\)"),
        ((), r"normalized_shape = \(5,\), got shape \(\)"),
    ],
)
@each_pair
def test_a_wrong_last_axis_is_refused_as_in_torch(
    pair: Pair, shape: tuple[int, ...], match: str
) -> None:
    assert_refused_alike(pair, {}, zeros(*shape), match)


@each_pair
def test_too_few_axes_are_refused_as_in_torch(pair: Pair) -> None:
    pair = pair._replace(args=((3, 5),))
    assert_refused_alike(pair, {}, zeros(5), r"normalized_shape = \(3, 5\), got .*5,")


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        (2.5, "whole number, got 2.5"),
        ((2, 2.5), "whole number, got 2.5"),
        ("5", "whole number, got '5'"),
        (None, "whole number, got None"),
        (True, "whole number, got True"),
        (-1, "not be negative, got -1"),
        ((3, -2), "not be negative, got -2"),
    ],
)
@each_pair
def test_a_bad_normalized_shape_is_refused_with_torch_s_type(
    pair: Pair, shape: Any, match: str
) -> None:
    with pytest.raises(Exception) as torch_s:  # noqa: PT011 - its type is the question
        pair.theirs(shape)
    with pytest.raises(torch_s.type, match=f"normalized_shape must.*{match}"):
        pair.ours(shape)


@each_pair
def test_no_axis_at_all_is_refused(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="1-dimensional"):
        pair.theirs(())(zeros(3))
    with pytest.raises(RuntimeError, match=r"at least one axis, got \(\)"):
        pair.ours(())
