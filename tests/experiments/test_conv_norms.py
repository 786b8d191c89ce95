"""The convolutional network with each normalization, over batch sizes."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import small
import torch
from small import check_circles, check_median, same
from torch import nn

from normbook.experiments import conv_norms
from normbook.experiments.conv_norms import CONV_NORMS, CONV_NORMS_RATES, LOOKS
from normbook.experiments.published import GROUP_NORM_ERROR
from normbook.lab import runner
from normbook.lab.experiment import Experiment
from normbook.lab.record import Record, RunRecord
from normbook.layers.batch_norm import BatchNorm2d
from normbook.layers.group_norm import GroupNorm, InstanceNorm2d
from normbook.layers.recalibrate import recalibrate

SUMS = 1e-10  # float64, sums over 90 000 pixels in another order
every_norm = pytest.mark.parametrize("norm", LOOKS)
every_experiment = pytest.mark.parametrize("experiment", [CONV_NORMS, CONV_NORMS_RATES])
begun = partial(small.begun, "conv_norms")
DATA = small.data("conv_norms")


def layers(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def norms(model: nn.Module) -> list[Any]:
    """Return the layers before the ReLUs, which are neither ReLU nor convolution."""
    children = list(model.children())
    before = [children[k - 1] for k, m in enumerate(children) if type(m) is nn.ReLU]
    return [module for module in before if not isinstance(module, nn.Conv2d)]


# --- the network


# Axes of (N, C, H, W) over which the values are standardized, in plain torch.
AXES: dict[str, tuple[int, ...]] = {
    "batch_norm": (0, 2, 3),
    "layer_norm": (1, 2, 3),
    "layer_norm_per_place": (1,),
    "instance_norm": (2, 3),
}


@pytest.mark.parametrize("norm", AXES)
def test_a_normalization_standardizes_over_its_axes(norm: str) -> None:
    x = torch.randn(5, 4, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    axes = AXES[norm]
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    layer = norms(begun(f"{norm} batch=32").model)[0].train()
    same(layer(x), (x - mean) / (var + 1e-5).sqrt())


@pytest.mark.parametrize("norm", ["group_norm", "group_norm_ws"])
def test_group_norm_standardizes_over_the_channels_of_a_group(norm: str) -> None:
    x = torch.randn(5, 4, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    groups = x.reshape(5, 2, 2, 2, 3)
    var, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
    expected = ((groups - mean) / (var + 1e-5).sqrt()).reshape(x.shape)
    same(norms(begun(f"{norm} batch=32").model)[0](x), expected)


@every_norm
def test_a_normalization_stands_before_each_relu(norm: str) -> None:
    types = [type(module) for module in norms(begun(f"{norm} batch=2").model)]
    if norm == "none":
        assert types == []
    else:
        assert len(types) == 2
        assert len(set(types)) == 1


def test_all_normalizations_are_those_of_the_book() -> None:
    kinds = {norm: norms(begun(f"{norm} batch=2").model) for norm in LOOKS}
    for norm, found in kinds.items():
        for layer in found:
            assert type(layer).__module__.startswith("normbook."), norm
    assert type(kinds["batch_norm"][0]) is BatchNorm2d
    assert type(kinds["instance_norm"][0]) is InstanceNorm2d
    assert [layer.num_groups for layer in kinds["layer_norm"]] == [1, 1]
    assert [type(layer) for layer in kinds["group_norm"]] == [GroupNorm] * 2


@every_norm
def test_all_variants_but_none_have_the_same_number_of_parameters(norm: str) -> None:
    model = begun(f"{norm} batch=2").model
    count = sum(p.numel() for p in model.parameters())
    weights = 4 * 9 + 8 * 4 * 9 + 10 * (8 + 1)
    assert count == weights + (4 + 8) * (1 if norm == "none" else 2)


def test_standardized_weights_have_mean_zero_and_fixed_length() -> None:
    for layer in layers(begun("group_norm_ws batch=2").model, nn.Conv2d):
        rows = layer.weight.flatten(1)
        same(rows.mean(1), torch.zeros(len(rows), dtype=torch.float64))
        lengths = rows.square().sum(1)
        torch.testing.assert_close(
            lengths, lengths[:1].expand(len(rows)), rtol=1e-6, atol=0
        )


@every_norm
def test_only_batch_norm_looks_at_other_images_in_training(norm: str) -> None:
    run = begun(f"{norm} batch=32")
    x = run.batch[0]
    with torch.no_grad():
        moved = (run.model.train()(x)[:2] - run.model(x[:2])).abs().max()
    assert (float(moved) > 1e-3) == (norm == "batch_norm")


def test_pixels_have_mean_zero_and_variance_one_over_the_training_set() -> None:
    x = begun("none batch=2").batches.x
    assert x.shape == (len(DATA.x_train), 1, 8, 8)
    assert float(x.mean()) == pytest.approx(0, abs=SUMS)
    assert float(x.var()) == pytest.approx(1, rel=SUMS)


# --- the runs


@every_experiment
def test_every_run_sees_the_same_number_of_images(experiment: Experiment) -> None:
    for scale in experiment.scales.values():
        variants = scale.settings["variants"].values()
        assert len({own["steps"] * own["batch_size"] for own in variants}) == 1


@every_experiment
def test_measurements_and_averages_stand_at_whole_steps(experiment: Experiment) -> None:
    for scale in experiment.scales.values():
        for own in scale.settings["variants"].values():
            assert own["steps"] % own["measure_every"] == 0
            assert own["steps"] == conv_norms.AVERAGES * own["average_over"]
            assert own["steps"] == conv_norms.WARM_UP * own["warm_up"]


@every_experiment
def test_the_rate_is_in_proportion_to_the_batch_and_the_same_for_all_norms(
    experiment: Experiment,
) -> None:
    for scale in experiment.scales.values():
        rates: dict[str, set[float]] = {}
        for own in scale.settings["variants"].values():
            rate = own["learning_rate"] / own["batch_size"]
            rates.setdefault(own["norm"], set()).add(float(f"{rate:.9g}"))
        first = next(iter(rates.values()))
        assert all(own == first for own in rates.values())
        assert (len(first) == 1) == (experiment is CONV_NORMS)


def test_a_pass_is_one_over_fashion_mnist() -> None:
    own = CONV_NORMS.scales["cpu"].settings["variants"]["none batch=2"]
    assert 60_000 - 128 < own["steps"] * 2 <= 60_000


def test_the_rate_rises_and_falls_to_zero() -> None:
    run = begun("none batch=2", learning_rate=0.8, steps=6, warm_up=2)
    rates = []
    for _ in range(6):
        run.update()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.4, 0.8, 0.8, 0.6, 0.4, 0.2])


def test_a_finished_run_leaves_no_images_in_memory() -> None:
    run = begun("batch_norm batch=2")
    run.update()
    images = weakref.ref(run.batches.x)
    gc.disable()
    try:
        del run
        assert images() is None
    finally:
        gc.enable()


@every_norm
def test_measured_errors_are_those_of_the_trained_network(norm: str) -> None:
    run = begun(f"{norm} batch=2")
    for _ in range(5):
        run.update()
    found = run.measurements["test"].measure(run)
    x = torch.as_tensor(DATA.x_test).reshape(-1, 1, 8, 8)
    x = (x - DATA.x_train.mean()) / DATA.x_train.std(ddof=1)
    with torch.no_grad():
        p = run.model.eval()(x).softmax(1).numpy()
    assert found["error"] == pytest.approx(
        (p.argmax(1) != DATA.y_test).mean(), rel=1e-9
    )
    own = p[np.arange(len(p)), DATA.y_test]
    assert found["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-9)


def test_recalibration_takes_statistics_of_the_training_set() -> None:
    run = begun("batch_norm batch=2")
    for _ in range(5):
        run.update()
    found = run.measurements["recalibrated"].measure(run)
    assert found["loss"] != run.measurements["test"].measure(run)["loss"]
    parts = torch.split(run.batches.x, conv_norms.PROBE_BATCH)
    recalibrate(run.model, parts)
    assert run.measurements["test"].measure(run) == pytest.approx(found, rel=1e-9)


@every_norm
def test_the_network_learns(norm: str) -> None:
    scale = CONV_NORMS.scales["live"]
    settings = runner.variant_settings(scale, f"{norm} batch=2")
    run = conv_norms.begin(settings, 0, DATA, small.CPU)
    losses = [run.update() for _ in range(450)]
    assert np.mean(losses[-50:]) < 0.9 * np.mean(losses[:50])


def test_each_normalization_gives_another_network(record: Record) -> None:
    losses = [run.opening[5] for run in record.runs if run.seed == 0]
    assert len(set(losses)) == len(record.variants) == 2 * len(LOOKS)


# --- the figures


OTHERS = [norm for norm in LOOKS if norm != "batch_norm"]


def errors(record: Record, norm: str, measurement: str = "test") -> list[float]:
    """Return the median error at the end for batches of 3, then of 6."""
    found = [
        np.median([
            run.curves[measurement]["error"][-1]
            for run in record.runs
            if run.variant == f"{norm} batch={size}"
        ])
        for size in (2, 32)
    ]  # fmt: skip
    return [float(value) for value in found]


def test_ends_are_sorted_by_the_setting_and_have_a_row_for_each_seed(
    record: Record,
) -> None:
    sizes, found = conv_norms.at_end(record, "group_norm")
    np.testing.assert_array_equal(sizes, [3, 6])
    assert found.shape == (2, 2)
    np.testing.assert_array_equal(
        np.median(found, axis=0), errors(record, "group_norm")
    )


@pytest.mark.parametrize("norm", OTHERS)
def test_each_panel_has_its_normalization_and_batch_norm(
    record: Record, norm: str
) -> None:
    ax: Any = conv_norms.figures(record)["error"].axes[OTHERS.index(norm)]
    kind, label = LOOKS[norm]
    assert ax.get_xlabel() == f"batch size\n\n{label}"
    for own, colour in ((norm, kind), ("batch_norm", "batch")):
        check_median(ax, colour, [3, 6], [errors(record, own)])


def test_training_is_drawn_for_the_smallest_batches(record: Record) -> None:
    ax: Any = conv_norms.figures(record)["training"].axes[OTHERS.index("layer_norm")]
    losses = record.values("layer_norm batch=2", "training", "loss")
    check_median(ax, "layer", [4, 8, 12], losses)


def test_recalibrated_errors_stand_beside_those_with_running_statistics(
    record: Record,
) -> None:
    (ax,) = conv_norms.figures(record)["recalibrated"].axes
    for kind, measurement in (("batch", "test"), ("reference", "recalibrated")):
        check_median(ax, kind, [3, 6], [errors(record, "batch_norm", measurement)])


def test_published_errors_stand_below_ours(record: Record) -> None:
    axes = conv_norms.figures(replace(record, scale="cpu"))["published"].axes
    compared = ("layer_norm", "instance_norm", "group_norm")
    for above, below, norm in zip(axes[:3], axes[3:], compared, strict=True):
        for own in ("batch_norm", norm):
            check_median(above, LOOKS[own][0], [3, 6], [errors(record, own)])
            check_circles(below, LOOKS[own][0], GROUP_NORM_ERROR[own])
    assert axes[3].get_ylabel() == "published error, ImageNet"


def test_a_row_has_one_scale_and_all_of_it_is_in_sight(record: Record) -> None:
    def raised(run: RunRecord) -> RunRecord:
        test = {**run.curves["test"], "error": [2.0] * 3}
        return replace(run, curves={**run.curves, "test": test})

    runs = [raised(r) if r.variant.startswith("instance") else r for r in record.runs]
    of = replace(record, scale="cpu", runs=runs)
    axes = conv_norms.figures(of)["published"].axes
    for row in (axes[:3], axes[3:]):
        values = np.concatenate([line.get_ydata() for ax in row for line in ax.lines])
        assert len({ax.get_ylim() for ax in row}) == 1
        low, high = row[0].get_ylim()
        assert low <= values.min() <= values.max() <= high


def test_nothing_published_stands_beside_digits(record: Record) -> None:
    assert "published" not in conv_norms.figures(record)


@pytest.mark.parametrize(("size", "stored"), [(6, 32), (3, 2)])
def test_rates_are_drawn_against_the_learning_rate(size: int, stored: int) -> None:
    record = small.record("conv_norms_rates")
    figure = conv_norms.figures(record)[f"error_{size}"]
    assert len(figure.axes) == (len(OTHERS) if size == 6 else 1)
    ax: Any = figure.axes[OTHERS.index("group_norm") if size == 6 else 0]
    assert ax.get_xlabel() == "learning rate\n\ngroup norm"
    variants = [f"group_norm batch={stored} rate={rate}" for rate in ("1.5", "3", "6")]
    own = record.settings["variants"]
    rates = [own[variant]["learning_rate"] for variant in variants]
    ends = [record.values(variant, "test", "error")[:, -1] for variant in variants]
    check_median(ax, "other", rates, np.transpose(ends))
