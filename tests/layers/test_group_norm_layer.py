"""Group and instance norm as layers: their settings, and the formulas of the book."""

from __future__ import annotations

import pytest
import torch
from layer_pairs import EXACT, GROUPS, INSTANCES, assert_alike, distance, draw, twins

from normbook.group_norm import group_norm, instance_norm
from normbook.layers.native import NATIVE

PAIR = GROUPS[2]


@pytest.mark.parametrize("num_groups", [1, 2, 3, 6])
@pytest.mark.parametrize("eps", [1e-3, 0.0])
@pytest.mark.parametrize(
    ("affine", "bias"), [(True, True), (True, False), (False, True)]
)
def test_every_combination_of_settings_agrees_with_torch(
    affine: bool, bias: bool, eps: float, num_groups: int
) -> None:
    x, dl_dy = draw(2, 6, 4, 5), draw(2, 6, 4, 5, seed=1)
    layers = twins(PAIR, num_groups, 6, eps, affine, bias=bias)
    assert_alike(layers, x, dl_dy)


def test_without_parameters_other_channels_will_do_as_in_torch() -> None:
    x, dl_dy = draw(2, 8, 5), draw(2, 8, 5, seed=1)
    assert_alike(twins(PAIR, 2, 6, affine=False), x, dl_dy)


@pytest.mark.parametrize("num_groups", [1, 3, 6])
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (7, 6)])
def test_the_layers_compute_what_the_formulas_of_the_book_compute(
    shape: tuple[int, ...], num_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE, "0")
    x, layer = draw(*shape), twins(PAIR, num_groups, 6)[0]
    expected = group_norm(x, num_groups, layer.weight, layer.bias, layer.eps)
    assert torch.equal(layer(x), expected)
    x, layer = draw(7, 3, 5), twins(INSTANCES[1])[0]
    assert torch.equal(layer(x), instance_norm(x, layer.weight, layer.bias, layer.eps))


def test_wrong_channels_are_warned_of_where_nothing_depends_on_them() -> None:
    ours, theirs = twins(INSTANCES[1], 3)
    x = draw(7, 4, 5)
    with pytest.warns(UserWarning, match="num_features"):
        expected = theirs(x)
    with pytest.warns(UserWarning, match=r"num_features = 3 .*\(7, 4, 5\)"):
        y = ours(x)
    assert distance(y, expected) < EXACT
