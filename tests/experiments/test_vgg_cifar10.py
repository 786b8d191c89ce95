"""The VGG-like network on colour pictures, as in the paper; nothing is downloaded."""

from __future__ import annotations

import numpy as np
import pytest
import small
import torch

from normbook.data import Dataset
from normbook.data.catalogue import SOURCES
from normbook.experiments import vgg
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.lab import runner
from normbook.lab.experiment import generator

SCALE = vgg.EXPERIMENT.scales["cifar10"]
# Layers of a size for a test; all else as in the scale.
SMALL = {"layers": [5, vgg.POOL, 6], "hidden": 4, "followed": [0, 1], "batch_size": 12}


@pytest.fixture
def colours() -> Dataset:
    """Pictures of the form of CIFAR-10, a few of them."""
    rng = np.random.default_rng(0)
    x = rng.random((28, 3, 32, 32), dtype=np.float32)
    y = rng.integers(10, size=28)
    return Dataset(x[:20], y[:20], x[20:], y[20:])


def test_a_run_takes_colour_pictures_as_they_are(colours: Dataset) -> None:
    settings = {**runner.variant_settings(SCALE, "batch_norm"), **SMALL}
    run = vgg.begin(settings, 0, colours, small.CPU)
    x, y = run.batch
    assert x.shape == (12, 3, 32, 32)
    for picture, label in zip(x.numpy(), y.tolist(), strict=True):
        same = (colours.x_train == picture).all(axis=(1, 2, 3))
        assert colours.y_train[same].tolist() == [label]


@pytest.mark.parametrize("variant", SCALE.settings["variants"])
def test_every_variant_learns_and_measures(colours: Dataset, variant: str) -> None:
    settings = {**runner.variant_settings(SCALE, variant), **SMALL}
    run = vgg.begin(settings, 0, colours, small.CPU)
    run.measure(SCALE.settings["steps"])
    assert np.isfinite(run.update())
    assert set(run.curves) == {"test", "inputs", "landscape", "shift"}
    assert 0 <= run.curves["test"]["accuracy"][0] <= 1


def test_the_scale_differs_from_that_of_the_paper_in_the_data_alone() -> None:
    paper = vgg.EXPERIMENT.scales["paper"]
    assert SCALE.settings == paper.settings
    assert SCALE.seeds == paper.seeds
    assert (SCALE.data, paper.data) == ("cifar-10", "fashion-mnist")


def test_the_layers_of_the_scale_fit_the_pictures(colours: Dataset) -> None:
    model = vgg.build(
        SCALE.settings["layers"],
        SCALE.settings["hidden"],
        images=(3, 32, 32),
        norm="none",
        weights=generator(0, "weights"),
        noise=generator(0, "noise"),
    )
    with torch.no_grad():
        assert model(torch.as_tensor(colours.x_test[:2])).shape == (2, 10)
    sizes = [m.in_features for m in model if isinstance(m, torch.nn.Linear)]
    assert sizes == [512 * 4 * 4, 512]  # 32 x 32, halved three times


def test_the_data_of_every_scale_can_be_loaded() -> None:
    scales = [s for e in EXPERIMENTS.values() for s in e.scales.values() if s.data]
    assert {scale.data for scale in scales} <= set(runner.LOADERS)
    assert set(runner.LOADERS) == set(SOURCES)
