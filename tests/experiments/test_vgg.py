"""The VGG-like network: its layers, a small run, and figures that show the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small
from small import check_circles, check_median, circles, lines
from torch import nn

from normbook.data import Dataset
from normbook.diagnostics.noise import DistributionNoise
from normbook.experiments import vgg
from normbook.experiments.published import VGG_TRAIN_ACCURACY
from normbook.lab.experiment import generator
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d


@pytest.fixture
def figures(record: Record) -> dict[str, Any]:
    return dict(vgg.figures(record))


def network(layers: list[int | str], norm: str, size: int = 8) -> Any:
    return vgg.build(
        layers,
        5,
        images=(1, size, size),
        norm=norm,
        weights=generator(0, "weights"),
        noise=generator(0, "noise"),
    )


def kinds(model: nn.Module) -> list[type]:
    return [type(module) for module in model]  # type: ignore[attr-defined]


def test_a_layer_is_a_convolution_its_normalization_and_a_relu() -> None:
    conv, linear = [nn.Conv2d], [nn.Linear]
    between: dict[str, list[type]] = {
        "none": [],
        "batch_norm": [BatchNorm2d],
        "noisy_batch_norm": [BatchNorm2d, DistributionNoise],
    }
    for norm, layers in between.items():
        flat = [BatchNorm1d if kind is BatchNorm2d else kind for kind in layers]
        block, last = [*conv, *layers, nn.ReLU], [*linear, *flat, nn.ReLU]
        assert kinds(network([2, "pool", 3], norm)) == [
            *block, nn.MaxPool2d, *block, nn.Flatten, *last, nn.Linear
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("scale", "size", "convolutions", "channels"),
    [("live", 8, 8, 16), ("cpu", 28, 10, 32), ("paper", 28, 10, 512)],
)
def test_every_scale_has_the_layers_that_it_says(
    scale: str, size: int, convolutions: int, channels: int
) -> None:
    settings = vgg.EXPERIMENT.scales[scale].settings
    model = network(settings["layers"], "none", size)
    found = [m for m in model if isinstance(m, nn.Conv2d)]
    pools = sum(isinstance(m, nn.MaxPool2d) for m in model)
    assert (len(found), found[-1].out_channels) == (convolutions, channels)
    assert {(m.kernel_size, m.padding) for m in found} == {((3, 3), (1, 1))}
    first = next(m for m in model if isinstance(m, nn.Linear))
    assert first.in_features == channels * (size // 2**pools) ** 2


def test_the_cpu_scale_has_an_eighth_of_the_widths_but_for_the_last_three() -> None:
    cpu, paper = (vgg.EXPERIMENT.scales[name].settings for name in ("cpu", "paper"))
    pairs = zip(cpu["layers"], paper["layers"], strict=True)
    widths = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    assert all(8 * a == b for a, b in widths[:-3])


def test_the_first_weights_are_those_of_glorot() -> None:
    first = network([64, 64], "none")[2]
    bound = (6 / (9 * 64 + 9 * 64)) ** 0.5
    assert 0.99 * bound < first.weight.abs().max() <= bound
    assert not first.bias.any()


def test_a_run_measures_what_it_says(record: Record) -> None:
    for variant in record.variants:
        widths = {
            "training": ("accuracy", (2, 3)),
            "test": ("accuracy", (2, 3)),
            "landscape": ("beta", (2, 3)),
            "shift": ("cosine", (2, 3, 4)),
            "inputs": ("std", (2, 3, 2, 5)),
        }
        for measurement, (quantity, shape) in widths.items():
            found = record.values(variant, measurement, quantity)
            assert found.shape[: len(shape)] == shape, measurement
    with_norm = record.values("batch_norm", "inputs", "std")
    np.testing.assert_allclose(with_norm[:, 0], 1, atol=0.02)


def test_the_landscape_is_that_of_the_batch_of_the_next_update() -> None:
    run = small.begun("vgg", "batch_norm")
    run.measure(6)
    loss = run.update()
    assert run.curves["landscape"]["loss"][0] == pytest.approx(loss, rel=1e-6)


def test_images_may_be_rows_of_digits_or_squares() -> None:
    x, y = np.zeros((20, 12, 12), dtype=np.float32), np.zeros(20, dtype=np.int64)
    run = small.begun("vgg", "none", on=Dataset(x, y, x, y))
    assert run.batch[0].shape == (16, 1, 12, 12)


def test_the_curves_are_the_medians_of_the_record(
    record: Record, figures: dict[str, Any]
) -> None:
    def along(variant: str, quantity: str) -> Any:
        return record.values(variant, "landscape", quantity)

    places = {"none": (0, "none"), "batch_norm": (0, "batch")}
    places |= {"noisy_batch_norm": (0, "other"), "batch_norm_fast": (1, "batch")}
    for variant, (panel, kind) in places.items():
        runs = {
            "accuracy": record.values(variant, "training", "accuracy"),
            "gradient_change": along(variant, "most_change"),
            "loss_range": along(variant, "highest") - along(variant, "lowest"),
            "beta": along(variant, "beta"),
        }
        for name, values in runs.items():
            measurement = "training" if name == "accuracy" else "landscape"
            steps = record.steps(measurement, variant)
            check_median(figures[name].axes[panel], kind, steps, values)


def test_the_smoothness_stands_beside_what_the_smallest_step_allows(
    figures: dict[str, Any],
) -> None:
    for ax, level in zip(figures["beta"].axes, (20.0, 4.0), strict=True):
        (line,) = lines(ax, "reference")
        np.testing.assert_allclose(line.get_ydata(), level)


def test_published_points_stand_beside_comparable_scales_only(
    record: Record, figures: dict[str, Any]
) -> None:
    tiny = figures["accuracy"]
    assert not any(circles(ax) for ax in tiny.axes)
    there: Any = vgg.figures(replace(record, scale="cpu"))["accuracy"].axes
    ax, fast = there
    variants = ("none", "batch_norm", "noisy_batch_norm")
    assert len(circles(ax)) == len(variants)
    for variant in variants:
        check_circles(ax, vgg.LOOKS[variant][0], VGG_TRAIN_ACCURACY[variant])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [vgg.PUBLISHED]
    assert len(circles(fast)) == 2


def test_the_shift_is_drawn_from_the_second_layer_on(
    record: Record, figures: dict[str, Any]
) -> None:
    axes = figures["shift"].axes
    assert [ax.get_ylabel() for ax in axes] == list(vgg.SHIFTS)
    cosine = record.values("batch_norm", "shift", "cosine")[..., 1:]
    check_median(axes[2], "batch", [2, 3, 4], np.nanmedian(cosine, axis=1))


def test_the_inputs_are_those_of_the_deepest_layer_that_is_followed(
    record: Record, figures: dict[str, Any]
) -> None:
    axes = figures["inputs"].axes
    found = record.values("noisy_batch_norm", "inputs", "std")[0, :, -1].T
    for line, unit in zip(axes[5].lines, found, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), unit)
    assert axes[3].get_ylabel() == "std of an input"
