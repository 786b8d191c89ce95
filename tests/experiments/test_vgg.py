"""The VGG-like network: its layers, a small run, and figures that show the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small
import torch
from small import check_circles, check_median, circles, lines
from torch import nn

from normbook.data import Dataset
from normbook.diagnostics.noise import DistributionNoise
from normbook.diagnostics.undisturbed import undisturbed
from normbook.experiments import vgg
from normbook.experiments.published import VGG_TRAIN_ACCURACY
from normbook.lab.experiment import classification, generator
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.layers.recalibrate import recalibrate


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
    cosine = record.values("batch_norm", "shift", "cosine")[:, 1:, 1:]
    check_median(axes[2], "batch", [2, 3, 4], np.nanmedian(cosine, axis=1))


def test_the_inputs_are_those_of_the_deepest_layer_that_is_followed(
    record: Record, figures: dict[str, Any]
) -> None:
    axes = figures["inputs"].axes
    found = record.values("noisy_batch_norm", "inputs", "std")[0, :, -1].T
    for line, unit in zip(axes[5].lines, found, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), unit)
    assert axes[3].get_ylabel() == "std of an input"


# --- each network at its own best


def test_the_test_as_trained_has_the_noise_and_the_statistics_of_the_batch() -> None:
    run = small.begun("vgg_tuned", "noisy_batch_norm")
    # In float64: the mean of all and that of two means differ in the last digits.
    model = run.model.double()
    x, y = run.batches.x[:40].double(), run.batches.y[:40]
    values = vgg.tested_as_trained(model, x, y, 16)
    with undisturbed(model):
        model.train()
        means = [classification(model, x[k : k + 16], y[k : k + 16]) for k in (0, 16)]
    for name, value in values.items():
        small.same(value, float(np.mean([m[name].item() for m in means])))
    assert values["loss"] != vgg.tested(model, x[:32], y[:32])["loss"]


def test_statistics_are_recalibrated_on_training_images_without_noise() -> None:
    run = small.begun("vgg_tuned", "noisy_batch_norm")
    for _ in range(3):
        run.update()
    run.measure(steps=run.step)
    usual, recalibrated = (run.curves[k]["loss"] for k in ("test", "recalibrated"))
    data, x = small.data("vgg_tuned"), run.batches.x
    recalibrate(run.model, torch.split(x[: vgg.PROBE], vgg.CHUNK))
    test = vgg.images(torch.tensor(data.x_test)), torch.tensor(data.y_test)
    assert recalibrated == [vgg.tested(run.model, *test)["loss"]] != usual
    last = vgg.images(torch.tensor(data.x_train[-200:]))
    validation = vgg.tested(run.model, last, torch.tensor(data.y_train[-200:]))
    assert run.curves["validation"]["loss"] == [validation["loss"]]
    assert len(x) == len(data.x_train) - 200


def test_a_network_without_statistics_is_tested_in_one_way() -> None:
    tuned = small.record("vgg_tuned")
    for run in tuned.runs:
        assert ({"recalibrated", "as_trained"} <= {*run.curves}) == (
            run.variant != "none"
        )


def test_the_rate_is_chosen_by_validation_and_marked_in_the_grid() -> None:
    tuned = small.record("vgg_tuned")
    (ax,) = vgg.tuned_figures(tuned)["grid"].axes
    for variant, (kind, _) in vgg.LOOKS.items():
        grid, best = tuned.grid(variant), tuned.chosen(variant)["learning_rate"]
        errors = grid["score"][:, 0]
        assert best == grid["learning_rate"][errors.argmin()]
        check_median(ax, kind, grid["learning_rate"], errors[None])
        (dot,) = circles(ax, kind)
        assert (dot.get_xdata(), dot.get_ydata()) == ([best], [errors.min()])


def test_the_three_ways_of_a_test_are_drawn_side_by_side() -> None:
    tuned = small.record("vgg_tuned")
    axes = vgg.tuned_figures(tuned)["ways"].axes
    for ax, variant in zip(axes, ("batch_norm", "noisy_batch_norm"), strict=True):
        for way, (kind, _) in vgg.WAYS.items():
            errors = 1 - tuned.values(variant, way, "accuracy")
            check_median(ax, kind, tuned.steps(way, variant), errors)


@pytest.mark.parametrize("scale", ["live", "cpu", "wide"])
def test_what_is_measured_at_intervals_is_measured_at_the_end(scale: str) -> None:
    of = vgg.TUNED.scales[scale]
    often = {k: v for k, v in of.settings.items() if k.endswith("_every")}
    assert often.keys() == {"shift_every", "test_every"}
    assert not any(of.settings["steps"] % every for every in often.values())
    assert of.seeds == ((0, 1) if scale == "live" else (0, 1, 2))
    assert not {*of.seeds} & {*of.settings["tuning"]["seeds"]}
