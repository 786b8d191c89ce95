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
from normbook.experiments.conv_norms import (
    BORDER,
    CONV_NORMS_BORDER,
    CONV_NORMS_TUNED,
    LOOKS,
    OTHERS,
    LayerNormOfPlaces,
    by_distance,
)
from normbook.experiments.published import GROUP_NORM_ERROR
from normbook.lab import runner, tuning
from normbook.lab.experiment import Experiment
from normbook.lab.record import Record, RunRecord
from normbook.layers.batch_norm import BatchNorm2d
from normbook.layers.group_norm import GroupNorm, InstanceNorm2d
from normbook.layers.recalibrate import recalibrate

SUMS = 1e-10  # float64, sums over 90 000 pixels in another order
every_norm = pytest.mark.parametrize("norm", LOOKS)
EXPERIMENTS = [CONV_NORMS_TUNED, CONV_NORMS_BORDER]
every_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS)
begun = partial(small.begun, "conv_norms_tuned")
DATA = small.data("conv_norms_tuned")
COUNT = len(DATA.x_train) - 200  # the others are held out


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
    assert x.shape == (COUNT, 1, 8, 8)
    assert float(x.mean()) == pytest.approx(0, abs=SUMS)
    assert float(x.var()) == pytest.approx(1, rel=SUMS)


# --- the runs


@every_experiment
def test_a_run_is_one_pass_over_images_that_are_not_held_out(
    experiment: Experiment,
) -> None:
    own = experiment.scales["cpu"].settings
    counts = {v["steps"] * v["batch_size"] for v in own["variants"].values()}
    assert counts == {396 * 128}
    assert max(counts) <= 60_000 - own["validated"]


@every_experiment
def test_measurements_stand_at_the_end_and_averages_at_whole_steps(
    experiment: Experiment,
) -> None:
    for scale in experiment.scales.values():
        for own in scale.settings["variants"].values():
            assert own["measure_every"] == own["steps"]
            assert own["steps"] == conv_norms.AVERAGES * own["average_over"]
            assert own["steps"] == conv_norms.WARM_UP * own["warm_up"]


@every_experiment
def test_rates_begin_in_proportion_to_the_batch(experiment: Experiment) -> None:
    for scale in experiment.scales.values():
        begun = {
            tuple(
                float(f"{rate / own['batch_size']:.5g}")
                for rate in own["tuning"]["grid"]["learning_rate"]["values"]
            )
            for own in scale.settings["variants"].values()
        }
        assert len(begun) == 1
        assert not any(
            "learning_rate" in v for v in scale.settings["variants"].values()
        )


def test_the_last_images_are_held_out_to_choose_by() -> None:
    run = begun("layer_norm batch=2")
    x = torch.as_tensor(DATA.x_train).reshape(-1, 1, 8, 8)
    x = (x - x[:COUNT].mean()) / x[:COUNT].std()
    same(run.batches.x, x[:COUNT])
    for _ in range(5):
        run.update()
    found = run.measurements["test"].measure(run)
    found |= run.measurements["validation"].measure(run)
    for name, some in (("train_", slice(None, COUNT)), ("", slice(COUNT, None))):
        with torch.no_grad():
            wrong = run.model(x[some]).argmax(1).numpy() != DATA.y_train[some]
        assert found[f"{name}error"] == pytest.approx(wrong.mean(), rel=1e-9)


def test_the_rate_rises_and_falls_to_zero() -> None:
    run = begun("none batch=2", learning_rate=0.8, steps=6, warm_up=2)
    rates = []
    for _ in range(6):
        run.update()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.4, 0.8, 0.8, 0.6, 0.4, 0.2])


def test_a_finished_run_leaves_no_images_in_memory() -> None:
    gc.collect()  # torch keeps the frames that made the first optimizer in a cycle
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
    seen = DATA.x_train[:COUNT]
    x = (x - seen.mean()) / seen.std(ddof=1)
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
    scale = CONV_NORMS_TUNED.scales["live"]
    settings = runner.variant_settings(scale, f"{norm} batch=2")
    settings |= tuning.first_point(scale.settings, f"{norm} batch=2")
    run = conv_norms.begin(settings, 0, DATA, small.CPU)
    losses = [run.update() for _ in range(450)]
    assert np.mean(losses[-50:]) < 0.9 * np.mean(losses[:50])


def test_each_normalization_gives_another_network(record: Record) -> None:
    losses = [run.opening[5] for run in record.runs if run.seed == 0]
    assert len(set(losses)) == len(record.variants) == 2 * len(LOOKS)


# --- the figures


def errors(record: Record, norm: str) -> list[float]:
    """Return the median error at the end for batches of 3, then of 6."""
    found = [
        np.median([
            run.curves["test"]["error"][-1]
            for run in record.runs
            if run.variant == f"{norm} batch={size}" and run.seed in record.seeds
        ])
        for size in (2, 32)
    ]  # fmt: skip
    return [float(value) for value in found]


def test_ends_are_sorted_by_the_batch_size_and_have_a_row_for_each_seed(
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
    assert ax.get_title() == label
    is_below = OTHERS.index(norm) >= 3
    assert ax.get_xlabel() == ("batch size" if is_below else "")
    for own, colour in ((norm, kind), ("batch_norm", "batch")):
        check_median(ax, colour, [3, 6], [errors(record, own)])


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
        test = {**run.curves["test"], "error": [2.0] * len(run.curves["test"]["step"])}
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


def test_a_grid_has_its_best_rate_marked(record: Record) -> None:
    figure = conv_norms.figures(record)["grid_3"]
    below = [ax.get_xlabel() for ax in figure.axes]
    assert below == [""] * 3 + ["learning rate"] * 3
    for ax, norm in zip(figure.axes, OTHERS, strict=True):
        assert ax.get_title() == LOOKS[norm][1]
        for own in ("batch_norm", norm):
            grid = record.grid(f"{own} batch=2")
            check_median(ax, LOOKS[own][0], grid["learning_rate"], grid["score"].T)
            dots: Any = small.lines(ax, LOOKS[own][0], marker="o")[0]
            best = record.chosen(f"{own} batch=2")["learning_rate"]
            assert dots.get_xdata().tolist() == [best]
            assert dots.get_ydata().tolist() == [grid["score"].min()]


# --- the border


def test_a_distance_counts_places_from_the_nearest_border() -> None:
    assert conv_norms.distances(4, 5).tolist() == [
        [0, 0, 0, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]


def test_as_many_places_are_drawn_as_there_are_inside() -> None:
    inside, drawn = (conv_norms.places(w, 4, 5).tolist() for w in ("inside", "drawn"))
    assert inside == [6, 7, 8, 11, 12, 13]
    assert len(set(drawn)) == len(inside)
    assert set(drawn) != set(inside)
    assert max(drawn) < 4 * 5


@pytest.mark.parametrize("where", ["inside", "drawn"])
def test_layer_norm_of_places_standardizes_these_and_moves_the_others_along(
    where: Any,
) -> None:
    x = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)).double()
    layer = LayerNormOfPlaces(2, where).double()
    with torch.no_grad():
        y = layer(x)
    chosen = y.flatten(2)[..., conv_norms.places(where, 4, 5)].flatten(1)
    same(chosen.mean(1), torch.zeros(3).double())
    torch.testing.assert_close(
        chosen.var(1, correction=0), torch.ones(3).double(), rtol=1e-4, atol=0
    )
    slopes = (y - y[:, :1, :1, :1]) / (x - x[:, :1, :1, :1])
    same(slopes.flatten(1)[:, 1:].std(1), torch.zeros(3).double())


def test_units_are_sorted_by_their_distance_from_the_border() -> None:
    inside = conv_norms.distances(4, 4) == 1
    x = torch.full((40, 1, 4, 4), -1.0, dtype=torch.float64)
    x[:20, :, inside] = 3.0  # half of the images turn these on
    x[0, :, ~inside] = 2.0  # one of 40 turns the others on: rarely
    convolution = nn.Conv2d(1, 1, 1, bias=False).double()
    nn.init.constant_(convolution.weight, 2.0)
    found = by_distance(nn.Sequential(convolution, nn.ReLU(), nn.Flatten()), x)
    for layer, factor in ((0, 1), (1, 2)):
        assert found[f"on_{layer}"] == pytest.approx([1 / 40, 1 / 2])
        assert found[f"rarely_{layer}"] == [1, 0]
        assert found[f"mean_{layer}"] == pytest.approx([-37 / 40 * factor, factor])
        assert found[f"std_{layer}"][1] == pytest.approx(2 * factor)
    measured = ("on", "rarely", "mean", "std")
    assert found.keys() == {f"{k}_{i}" for k in measured for i in (0, 1)}


def test_cropped_images_are_reflected_and_have_their_middle_alone() -> None:
    run = small.begun("conv_norms_border", "layer_norm cropped")
    whole = small.begun("conv_norms_border", "layer_norm").batches.x[..., 1:-1, 1:-1]
    x = run.batches.x
    assert x.shape[2:] == (6, 6)
    slope = (whole[0] - whole[0].mean()).norm() / (x[0] - x[0].mean()).norm()
    same((x - x.mean()) * slope, whole - whole.mean())
    assert {c.padding_mode for c in layers(run.model, nn.Conv2d)} == {"reflect"}


@pytest.mark.parametrize("variant", BORDER)
def test_a_variant_of_the_border_has_what_its_name_says(variant: str) -> None:
    norm, _, change = variant.partition(" ")
    found = norms(small.begun("conv_norms_border", variant).model)
    where = [getattr(layer, "where", None) for layer in found]
    assert where == [change if change in ("inside", "drawn") else None] * 2
    kinds = {"batch_norm": BatchNorm2d, "layer_norm": GroupNorm}
    assert all(isinstance(layer, kinds[norm]) for layer in found)


def test_the_border_is_measured_before_and_after_training() -> None:
    record = small.record("conv_norms_border")
    for variant in BORDER:
        assert record.steps("units", variant).tolist() == [0, 6]


def test_errors_of_the_border_have_a_point_for_each_seed() -> None:
    record = small.record("conv_norms_border")
    left, right = conv_norms.border_figures(record)["error"].axes
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels == [variant.replace("_", " ") for variant in BORDER]
    for row, (variant, line) in enumerate(
        zip(BORDER, small.lines(right, marker="o"), strict=True)
    ):
        errors = record.values(variant, "test", "error")[:, -1]
        assert line.get_xdata().tolist() == errors.tolist()
        assert line.get_ydata().tolist() == [row] * 2
