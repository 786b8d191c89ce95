"""Group norm as a layer: its settings, edge cases, reductions and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    GROUPS,
    assert_alike,
    assert_equal,
    assert_refused_alike,
    distance,
    draw,
    run,
    twins,
    zeros,
)
from torch import nn

from normbook.group_norm import group_norm
from normbook.layers.group_norm import GroupNorm, InstanceNorm2d
from normbook.layers.layer_norm import LayerNorm

PAIR = GROUPS[2]


@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
@pytest.mark.parametrize("eps", [1e-3, 0.0])
@pytest.mark.parametrize("affine", [True, False])
def test_every_combination_of_settings_agrees_with_torch(
    affine: bool, eps: float, num_groups: int
) -> None:
    x, dl_dy = draw(2, 6, 4, 5), draw(2, 6, 4, 5, seed=1)
    layers = twins(PAIR, num_groups, 6, eps, affine)
    assert_alike(layers, x, dl_dy)


def test_the_bias_may_be_left_out() -> None:
    layer, whole = GroupNorm(2, 6, bias=False), twins(PAIR, 2, 6)[0]
    assert layer.bias is None
    assert "bias=False" in repr(layer)
    assert list(layer.state_dict()) == ["weight"]
    whole.bias.data.zero_()
    layer.weight.data = whole.weight.data
    x = draw(2, 6, 4, 5)
    assert torch.equal(layer(x), whole(x))


def test_the_constructor_takes_torch_s_arguments_in_torch_s_order() -> None:
    args = (2, 6, 0.5, True, "meta", torch.float64)
    ours, theirs = GroupNorm(*args), nn.GroupNorm(*args)
    assert repr(ours) == repr(theirs)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (a.device, a.dtype, a.shape) == (b.device, b.dtype, b.shape)


def test_the_layer_computes_what_the_formula_of_the_book_computes() -> None:
    x = draw(2, 6, 4, 5)
    layer = twins(PAIR, 3, 6)[0]
    assert torch.equal(layer(x), group_norm(x, 3, layer.weight, layer.bias, layer.eps))


def test_without_parameters_other_channels_will_do_as_in_torch() -> None:
    x, dl_dy = draw(2, 8, 5), draw(2, 8, 5, seed=1)
    layers = twins(PAIR, 2, 6, affine=False)
    assert_alike(layers, x, dl_dy)


def test_groups_of_one_value_become_0_and_pass_no_gradient() -> None:
    layer = twins(PAIR, 6, 6)[0]
    found = run(layer, draw(7, 6), draw(7, 6, seed=1))
    assert torch.equal(found["y"], layer.bias.detach().expand(7, 6))
    assert not found["dl_dx"].any()


def test_groups_of_two_values_pass_a_gradient_of_the_size_of_eps() -> None:
    x, dl_dy = draw(7, 6), draw(7, 6, seed=1)
    layers = twins(PAIR, 3, 6, eps=1e-12)
    ours, theirs = (run(layer, x, dl_dy) for layer in layers)
    assert distance(ours["y"], theirs["y"]) < EXACT
    # Beside gradients of the size 1 that arrive.
    assert ours["dl_dx"].abs().max() < 1e-9
    assert (ours["dl_dx"] - theirs["dl_dx"]).abs().max() < 1e-12


# --- reductions


def test_one_group_is_layer_norm_of_the_whole_image() -> None:
    x, dl_dy = draw(2, 6, 4, 5), draw(2, 6, 4, 5, seed=1)
    layer = GroupNorm(1, 6, affine=False)
    whole = LayerNorm((6, 4, 5), elementwise_affine=False)
    assert_equal(run(layer, x, dl_dy), run(whole, x, dl_dy))


def test_a_group_for_each_channel_is_instance_norm() -> None:
    x, dl_dy = draw(2, 6, 4, 5), draw(2, 6, 4, 5, seed=1)
    layer = twins(PAIR, 6, 6)[0]
    instance = InstanceNorm2d(6, affine=True, dtype=x.dtype)
    instance.load_state_dict(layer.state_dict())
    assert_equal(run(layer, x, dl_dy), run(instance, x, dl_dy))


def test_the_other_examples_do_not_matter() -> None:
    x, layer = draw(7, 6, 5), twins(PAIR)[0]
    assert torch.equal(layer(x)[:2], layer(x[:2]))


# --- refusals


@pytest.mark.parametrize(
    ("args", "shape", "match"),
    [
        ((1, 6), (2, 4), r"num_channels = 6 .*got shape \(2, 4\).*num_channels=4"),
        ((3, 6, 1e-5, False), (2, 4), r"num_groups = 3 must divide.*\(2, 4\)"),
        ((1, 6), (6,), r"must have shape \(N, C\).*got \(6,\)"),
        ((1, 6), (), r"must have shape \(N, C\).*got \(\)"),
        ((6, 6), (1, 6), r"more than 1 value in a group.*\(1, 6\).*num_groups=6"),
        ((6, 6), (1, 6, 1), r"more than 1 value in a group.*\(1, 6, 1\)"),
    ],
)
def test_what_torch_refuses_is_refused_alike(
    args: tuple[Any, ...], shape: tuple[int, ...], match: str
) -> None:
    for is_training in (True, False):
        pair = PAIR._replace(args=args)
        assert_refused_alike(pair, {}, zeros(*shape), match, is_training)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((2, 3), "num_groups must be a divisor of num_channels = 3, got 2"),
        (("2", 4), "num_groups must be a whole number, got '2'"),
        ((2, "4"), "num_channels must be a whole number, got '4'"),
        ((2, 4.0), "num_channels must be a whole number, got 4.0"),
        ((1, -2), "num_channels must not be negative, got -2"),
    ],
)
def test_bad_arguments_are_refused_with_torch_s_type(
    args: tuple[Any, Any], match: str
) -> None:
    with pytest.raises(Exception) as torch_s:  # noqa: PT011 - its type is the question
        nn.GroupNorm(*args)
    with pytest.raises(torch_s.type, match=match):
        GroupNorm(*args)


@pytest.mark.parametrize("num_groups", [0, -1])
def test_fewer_than_one_group_are_refused_at_once(num_groups: int) -> None:
    with pytest.raises(ValueError, match=f"divisor .*got {num_groups}"):
        GroupNorm(num_groups, 3)
