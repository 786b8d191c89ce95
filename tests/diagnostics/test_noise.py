"""Noise after batch norm: its distribution, at each of its two levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from normbook.diagnostics.noise import DistributionNoise
from normbook.gradient_check import survivors

N, D = 2_000, 200


def noisy(x: torch.Tensor, **widths: float) -> Any:
    noise = DistributionNoise(**widths, generator=torch.Generator().manual_seed(0))
    return noise(x).numpy()


def check_widths(forward: Any) -> None:
    """Shift and scale of each unit, told apart by inputs 0 and 1."""
    # First, for a wrong shape grows with the input.
    assert forward(DistributionNoise(), torch.ones(4, 3)).shape == (4, 3)
    noise = DistributionNoise(0.5, 1.25, 0.1, 0.2, torch.Generator().manual_seed(0))
    m = forward(noise, torch.zeros(N, D, dtype=torch.float64)).numpy()
    mu = m.mean(0)
    # U(-r, r) has the deviation r / √3: over units, and within each unit
    assert np.abs(mu).max() <= 0.51
    np.testing.assert_allclose(mu.std(), 0.5 / 3**0.5, rtol=0.15)
    np.testing.assert_allclose(mu.mean(), 0, atol=0.1)
    np.testing.assert_allclose(m.std(0).mean(), 0.1 / 3**0.5, rtol=0.01)
    big = forward(noise, torch.full((N, D), 1e6, dtype=torch.float64)).numpy() / 1e6
    sigma = big.mean(0)
    assert 0.99 <= sigma.min() <= 1.03
    assert 1.22 <= sigma.max() <= 1.26
    np.testing.assert_allclose(sigma.std(), 0.25 / 12**0.5, rtol=0.15)
    np.testing.assert_allclose(big.std(0).mean(), 0.2, rtol=0.01)
    images = forward(noise, torch.zeros(2, 3, 40, 40)).numpy()
    assert images.shape == (2, 3, 40, 40)
    assert np.ptp(images.mean((0, 2, 3))) > 0.05  # one shift for each channel
    assert np.ptp(images.mean((2, 3)), axis=0).max() < 0.02  # and none for an image
    x = torch.ones(1, 1)
    assert forward(noise.eval(), x) is x


def test_shift_and_scale_have_the_stated_widths() -> None:
    check_widths(DistributionNoise.forward)


def test_every_mutant_is_caught_but_those_that_mirror_the_noise() -> None:
    passed = survivors(DistributionNoise.forward, check_widths)
    # These draw from the same distribution, which is symmetric about its middle.
    assert passed == [
        "mu + self.r_mu * (2 * self._draw(torch.rand, x.shape, x) - 1) -> "
        "mu - self.r_mu * (2 * self._draw(torch.rand, x.shape, x) - 1)",
        "sigma + self.r_sigma * self._draw(torch.randn, x.shape, x) -> "
        "sigma - self.r_sigma * self._draw(torch.randn, x.shape, x)",
        "s * x + m -> s * x - m",
    ]


def test_units_differ_and_steps_differ() -> None:
    noise = DistributionNoise(generator=torch.Generator().manual_seed(0))
    first, second = (noise(torch.zeros(500, 3)).mean(0) for _ in range(2))
    assert (first - second).abs().min() > 0.02
    assert (first - first.roll(1)).abs().min() > 0.02


def test_positions_of_an_image_share_the_shift_of_their_channel() -> None:
    y = noisy(torch.zeros(8, 3, 10, 10), r_mu=0.0)
    assert np.ptp(y.transpose(1, 0, 2, 3).reshape(3, -1), axis=1).max() == 0
    assert np.ptp(y[0, :, 0, 0]) > 0


def test_without_widths_nothing_changes() -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    y = noisy(x, n_mu=0.0, n_sigma=1.0, r_mu=0.0, r_sigma=0.0)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "widths", [{"n_mu": -1}, {"r_mu": -1}, {"r_sigma": -1}, {"n_sigma": 0.5}]
)
def test_bad_widths_are_refused(widths: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="widths must be >= 0 and n_sigma >= 1, got"):
        DistributionNoise(**widths)  # type: ignore[arg-type]
