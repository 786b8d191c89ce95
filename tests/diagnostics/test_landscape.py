"""Slices through the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.diagnostics.landscape import landscape, random_direction
from normbook.gradient_check import survivors


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Linear(5, 2)
    ).double()


def check(function: Any) -> None:
    net = model()
    direction = function(net, seeded())
    for p, d in zip(net.parameters(), direction, strict=True):
        if p.dim() < 2:
            assert not d.any()
            continue
        torch.testing.assert_close(d.flatten(1).norm(dim=1), p.flatten(1).norm(dim=1))


def test_each_filter_has_the_norm_of_the_filter_that_it_moves() -> None:
    check(random_direction)


def test_every_mutant_is_caught() -> None:
    # the smallest matrix has two axes: "dim < 2" and "range(1, ...)" matter, and
    # drawing in float64 does not change a norm
    assert survivors(random_direction, check) == []


def test_equal_seeds_give_equal_directions() -> None:
    net = model()
    a, b = random_direction(net, seeded(1)), random_direction(net, seeded(1))
    assert all(map(torch.equal, a, b))
    assert not torch.equal(a[0], random_direction(net, seeded(2))[0])


def test_a_plane_is_the_loss_at_each_point() -> None:
    net = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    e = torch.eye(2, dtype=torch.float64)
    slope = torch.tensor([1.0, 10.0], dtype=torch.float64)
    values = landscape(
        net, lambda m: m.weight[0] @ slope, [[e[:1]], [e[1:]]], [-1, 0, 2]
    )
    a = np.array([-1, 0, 2])
    np.testing.assert_allclose(values, a[:, None] + 10 * a[None, :])


def test_scaling_weights_before_batch_norm_leaves_the_slice_as_it_is() -> None:
    x = torch.randn(20, 6, dtype=torch.float64, generator=seeded())
    slices = []
    for scale in (1.0, 7.0):
        linear = nn.Linear(6, 3, bias=False).double()
        with torch.no_grad():
            linear.weight.copy_(scale * torch.linspace(-1, 1, 18).reshape(3, 6))
        net = nn.Sequential(linear, nn.BatchNorm1d(3, affine=False, eps=1e-14).double())
        direction = random_direction(net, seeded())
        slices.append(
            landscape(net, lambda m: m(x)[:5].sum(), [direction], [-0.5, 0.3])
        )
    # the direction is drawn in float64 and the weights differ by a factor: what is
    # left is the eps of the layer
    np.testing.assert_allclose(slices[0], slices[1], rtol=1e-6)


def test_bad_directions_are_refused() -> None:
    net = model()
    with pytest.raises(ValueError, match="directions must be one or two, got 0"):
        landscape(net, lambda m: torch.zeros(()), [], [1])
    with pytest.raises(ValueError, match="one tensor in the shape of each parameter"):
        landscape(net, lambda m: torch.zeros(()), [[torch.ones(1)]], [1])
