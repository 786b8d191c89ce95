"""What a layer says that it is, without running it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from normbook.checks.layer.recognition import (
    GAINS,
    affordable,
    definitions_of,
    eps_of,
    has_fixed_affine,
    kind_of,
    only_parameter,
    shapes_like,
    shapes_of,
)


class MyBatchNorm(nn.Module):
    pass


class LlamaRMSNorm(nn.Module):
    pass


class Averaged(nn.Module):
    moving_mean = 0


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (nn.SyncBatchNorm(3), "batch"),
        (nn.InstanceNorm2d(3), "instance"),
        (MyBatchNorm(), "batch"),
        (LlamaRMSNorm(), "rms"),
        (Averaged(), "batch"),
        (nn.Linear(3, 3), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_kind_is_told_by_type_name_or_statistics(
    layer: nn.Module, kind: str | None
) -> None:
    assert kind_of(layer) == kind


def test_eps_is_told_under_its_usual_names() -> None:
    layer: Any = LlamaRMSNorm()
    assert eps_of(layer, torch.float64) is None
    layer.variance_epsilon = 1e-6
    assert eps_of(layer, torch.float64) == 1e-6


def test_an_eps_of_none_is_that_of_the_dtype() -> None:
    assert eps_of(nn.RMSNorm(3), torch.float32) == torch.finfo(torch.float32).eps


def test_two_parameters_of_one_name_are_not_told_apart() -> None:
    one = nn.Sequential(nn.LayerNorm(3))
    two = nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3))
    adaptive = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3))
    assert only_parameter(one, GAINS) == "0.weight"
    assert only_parameter(two, GAINS) is None
    assert only_parameter(adaptive, GAINS) == "0.weight"


def test_a_gain_in_a_buffer_is_a_fixed_one_and_a_parameter_is_not() -> None:
    layer = nn.LayerNorm(3)
    assert not has_fixed_affine(layer)
    layer.register_buffer("scale", torch.ones(3))
    assert has_fixed_affine(layer)


def choices(shape: tuple[int, ...]) -> list[tuple[int, bool]]:
    found = definitions_of(nn.LayerNorm(6), shape, "layer")
    return [(definition.last, is_told) for definition, is_told in found]


def test_a_layer_norm_of_images_is_told_by_the_length_of_axis_1() -> None:
    assert choices((2, 5, 6)) == [(1, True), (0, False)]
    assert choices((2, 6, 3, 4)) == [(0, True)]
    assert choices((2, 6)) == [(1, True)]


@pytest.mark.parametrize("features", [6, 16, 24])
def test_no_shape_has_as_many_examples_as_features(features: int) -> None:
    shapes = list(shapes_of(nn.LayerNorm(features), "layer"))
    assert shapes
    assert all(shape[0] != features for shape in shapes)


class ImagesByAncestor(nn.BatchNorm2d):
    pass


def test_the_number_of_axes_is_told_by_the_name_of_an_ancestor() -> None:
    assert next(shapes_of(ImagesByAncestor(3), "batch")) == (16, 3, 3, 4)


def test_very_many_channels_get_few_positions() -> None:
    assert next(shapes_of(nn.BatchNorm2d(5000), "batch")) == (16, 5000, 2, 2)


def test_a_large_shape_is_made_smaller_where_the_layer_may_allow_it() -> None:
    assert list(shapes_like((8, 64, 56, 55))) == [
        (16, 64, 4, 4),
        (16, 4, 4, 55),
        (16, 64, 56, 55),
    ]


def test_very_many_values_cost_examples_but_four() -> None:
    assert affordable((16, 100)) == (16, 100)
    assert affordable((16, 2**15)) == (8, 2**15)
    assert affordable((16, 2**20)) == (4, 2**20)
