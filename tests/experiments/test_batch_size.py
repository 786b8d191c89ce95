"""The networks of Ba et al.: their layers, what is drawn, and distances by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small
import torch
from small import check_circles, check_median, circles
from torch import nn

from normbook.errors import RecordError
from normbook.experiments import batch_size
from normbook.experiments.batch_size import BATCH_4, BATCH_128, METHODS, TUNED, VARIANTS
from normbook.experiments.published import (
    BATCH_SIZE_ERROR,
    BATCH_SIZE_LAST_ERROR,
    BATCH_SIZE_LOSS,
)
from normbook.lab.record import Record, RunRecord
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.small_batches import UnbiasedBatchNorm1d

QUANTITIES = ("train_loss", "error")


def model_of(variant: str) -> Any:
    return small.begun("batch_4", variant).model


def by_hand(size: int, epochs: int, values: dict[str, list[float]]) -> Record:
    """Return a record of MNIST with one variant and a seed for each row of values."""
    settings: dict[str, Any] = {
        "batch_size": size,
        "measure_every": 10,
        "variants": {name: VARIANTS[name] for name in values},
    }
    steps = [10 * k for k in range(epochs + 1)]
    runs = []
    for name, factors in values.items():
        for seed, factor in enumerate(factors):
            curve = [factor * (k + 1) for k in range(epochs + 1)]
            test: dict[str, Any] = {"step": steps, "train_loss": curve, "error": curve}
            runs.append(RunRecord(name, seed, 1.0, [], {"test": test}))
    return small.invented(f"batch_{size}", settings, runs)


NORMS: dict[str, list[type[nn.Module]]] = {
    "none": [],
    "layer_norm": [LayerNorm],
    "batch_norm": [BatchNorm1d],
    "unbiased_batch_norm": [UnbiasedBatchNorm1d],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_normalization_stands_before_both_relus_and_where_said_on_the_scores(
    variant: str,
) -> None:
    norm = NORMS[str(VARIANTS[variant]["norm"])]
    hidden = [nn.Linear, *norm, nn.ReLU]
    scores = norm if variant.endswith("_on_scores") else []
    expected = [*hidden, *hidden, nn.Linear, *scores]
    assert [type(layer) for layer in model_of(variant)] == expected


def test_layer_norm_leaves_the_scores_alone() -> None:
    model = model_of("layer_norm")
    shapes = [m.normalized_shape for m in model if isinstance(m, LayerNorm)]
    assert shapes == [(5,), (5,)]


def test_the_scores_are_normalized_over_ten_classes() -> None:
    assert model_of("batch_norm_on_scores")[-1].num_features == 10


@pytest.mark.parametrize("experiment", [BATCH_128, BATCH_4])
def test_a_scale_measures_once_in_each_pass_over_the_examples(experiment: Any) -> None:
    for name, scale in experiment.scales.items():
        own = scale.settings
        assert own["measure_every"] == own["examples"] // own["batch_size"], name
        assert own["steps"] % own["measure_every"] == 0, name


@pytest.mark.parametrize("experiment", [BATCH_128, BATCH_4])
def test_the_paper_scale_is_that_of_the_paper(experiment: Any) -> None:
    own = experiment.scales["paper"].settings
    assert (own["width"], own["examples"]) == (1000, 55_000)
    assert own["steps"] == 65 * own["measure_every"]
    assert f"batch_{own['batch_size']}" == experiment.name


def test_a_measurement_is_that_of_the_trained_network(record: Record) -> None:
    run, data = small.begun("batch_4", "batch_norm", seed=1), small.data("batch_4")
    for _ in range(6):
        run.update()
    with torch.no_grad():
        scores = run.model.eval()(torch.as_tensor(data.x_test))
    wrong = scores.argmax(1).numpy() != data.y_test
    found = record.values("batch_norm", "test", "error")[1, 1]
    assert found == pytest.approx(wrong.mean(), rel=1e-6)


def test_the_first_point_stands_after_the_first_epoch(record: Record) -> None:
    np.testing.assert_array_equal(batch_size.epochs(record, "none"), [-1, 0, 1, 2])


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("is_on_scores", [False, True])
def test_the_curves_of_each_reading_are_the_medians_of_the_record(
    record: Record, quantity: str, is_on_scores: bool
) -> None:
    ax = batch_size.figures(record)[quantity].axes[int(is_on_scores)]
    end = "_on_scores" if is_on_scores else ""
    kinds = {"none": "none", "layer": "layer_norm"}
    kinds |= {"batch": f"batch_norm{end}", "other": f"unbiased_batch_norm{end}"}
    for kind, variant in kinds.items():
        runs = record.values(variant, "test", quantity)[:, 1:]
        check_median(ax, kind, [0, 1, 2], runs)


def test_a_panel_says_which_reading_it_shows(record: Record) -> None:
    axes = batch_size.figures(record)["error"].axes
    for ax, reading in zip(axes, batch_size.READINGS.values(), strict=True):
        assert ax.get_xlabel().endswith(reading)


def test_no_published_points_stand_beside_digits(record: Record) -> None:
    for figure in batch_size.figures(record).values():
        assert not any(circles(ax) for ax in figure.axes)


ALL = {variant: [1e-3] for variant in VARIANTS}


@pytest.mark.parametrize("size", [128, 4])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_the_published_points_of_this_batch_size_stand_beside_mnist(
    size: int, quantity: str
) -> None:
    there = (BATCH_SIZE_LOSS if quantity == "train_loss" else BATCH_SIZE_ERROR)[size]
    for ax in batch_size.figures(by_hand(size, 65, ALL))[quantity].axes:
        assert len(circles(ax)) == 3
        for norm in ("none", "layer_norm", "batch_norm"):
            check_circles(ax, batch_size.LOOKS[norm][0], there[norm])


def test_published_points_beyond_a_short_record_are_left_out() -> None:
    for ax in batch_size.figures(by_hand(4, 11, ALL))["error"].axes:
        for line in circles(ax):
            np.testing.assert_array_equal(line.get_xdata(), [0, 5, 10])


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_distance_pairs_the_median_with_the_published_value(
    variant: str, quantity: Any
) -> None:
    record = by_hand(128, 21, {variant: [1.0, 3.0, 100.0]})
    found = batch_size.distance(record, variant, quantity)
    curves = BATCH_SIZE_LOSS if quantity == "train_loss" else BATCH_SIZE_ERROR
    norm = str(VARIANTS[variant]["norm"])
    there = curves[128][batch_size.PUBLISHED[norm]]
    np.testing.assert_array_equal(found.epochs, [0, 5, 10, 20])
    np.testing.assert_array_equal(found.published, there.y[:4])
    # Epoch e is the measurement number e + 1, whose value is 3 (e + 2).
    np.testing.assert_array_equal(found.ours, [6.0, 21.0, 36.0, 66.0])


@pytest.mark.parametrize("size", [128, 4])
@pytest.mark.parametrize("norm", ["none", "layer_norm", "batch_norm"])
def test_each_published_curve_has_its_epochs_and_its_size(size: int, norm: str) -> None:
    for curves, last in ((BATCH_SIZE_LOSS, 60), (BATCH_SIZE_ERROR, 64)):
        points = curves[size][norm]
        assert points.source == "Ba et al. (2016), Fig. 6"
        assert len(points.x) == len(points.y)
        assert (points.x[0], points.x[-1]) == (0, last)
        assert all(0 < y < 0.3 for y in points.y)
    assert 0.012 < BATCH_SIZE_LAST_ERROR[size][norm] < 0.022


def test_batch_and_unbiased_batch_norm_are_compared_with_one_curve() -> None:
    record = by_hand(4, 6, {"batch_norm": [1.0], "unbiased_batch_norm": [1.0]})
    a, b = (batch_size.distance(record, v, "error") for v in record.variants)
    np.testing.assert_array_equal(a.published, b.published)


def test_no_distance_from_digits_is_given(record: Record) -> None:
    with pytest.raises(RecordError, match=r'of MNIST .* got one of the scale "live"'):
        batch_size.distance(record, "none", "error")


# --- each at its own best


def test_a_tuned_run_is_one_pass_over_images_that_are_not_held_out() -> None:
    own = TUNED.scales["cpu"].settings
    counts = {v["steps"] * v["batch_size"] for v in own["variants"].values()}
    assert counts == {390 * 128}
    assert max(counts) <= own["examples"] <= 60_000 - own["validated"]


@pytest.mark.parametrize("scale", TUNED.scales.values(), ids=TUNED.scales)
def test_each_method_is_tuned_at_each_batch_size(scale: Any) -> None:
    variants = scale.settings["variants"]
    sizes = dict.fromkeys(own["batch_size"] for own in variants.values())
    assert list(variants) == [f"{m} batch={n}" for m in METHODS for n in sizes]
    for variant, own in variants.items():
        assert VARIANTS[variant.partition(" ")[0]].items() <= own.items()
        assert own["steps"] % own["average_over"] == 0
        assert own["measure_every"] == own["steps"]
        assert "learning_rate" not in {**scale.settings, **own}


def test_the_last_images_are_held_out_to_choose_by() -> None:
    run = small.begun("batch_size_tuned", "layer_norm batch=8")
    data = small.data("batch_size_tuned")
    for _ in range(5):
        run.update()
    with torch.no_grad():
        scores = run.model.eval()(torch.as_tensor(data.x_train[-150:]))
    wrong = scores.argmax(1).numpy() != data.y_train[-150:]
    found = run.measurements["validation"].measure(run)
    assert found["error"] == pytest.approx(wrong.mean(), rel=1e-9)
    assert len(run.batches.x) <= len(data.x_train) - 150


def test_ends_are_sorted_by_the_batch_size() -> None:
    record = small.record("batch_size_tuned")
    for method in METHODS:
        sizes, runs = batch_size.at_end(record, method)
        assert sizes.tolist() == [4, 8]
        for column, stored in zip(runs.T, (8, 64), strict=True):
            ends = record.values(f"{method} batch={stored}", "test", "error")[:, -1]
            np.testing.assert_array_equal(column, ends)


def test_recalibrated_is_what_has_statistics() -> None:
    record = small.record("batch_size_tuned")
    for method in METHODS:
        _, running = batch_size.at_end(record, method, quantity="loss")
        _, again = batch_size.at_end(record, method, "recalibrated", "loss")
        assert (running == again).all() == (method in ("none", "layer_norm"))


def test_tuned_figures_are_of_the_record() -> None:
    record = small.record("batch_size_tuned")
    drawn = batch_size.tuned_figures(record)
    for ax, (ylabel, ends) in zip(
        drawn["ends"].axes, batch_size.ENDS.items(), strict=True
    ):
        assert ax.get_ylabel() == ylabel
        assert ylabel.startswith("train") == ends[1].startswith("train")
        assert ylabel.endswith("recalibrated") == (ends[0] == "recalibrated")
        for method, (kind, _) in METHODS.items():
            check_median(ax, kind, *batch_size.at_end(record, method, *ends))
    for ax, size in zip(drawn["grid"].axes, (8, 64), strict=True):
        for method, (kind, _) in METHODS.items():
            grid = record.grid(f"{method} batch={size}")
            check_median(ax, kind, grid["learning_rate"], grid["score"].T)
            (dot,) = small.lines(ax, kind, marker="o")
            best = record.chosen(f"{method} batch={size}")
            assert dot.get_xdata().tolist() == [best["learning_rate"]]


def test_no_ends_are_taken_from_another_experiment(record: Record) -> None:
    with pytest.raises(RecordError, match="must be of batch_size_tuned"):
        batch_size.at_end(record, "none")
