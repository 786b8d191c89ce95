"""The network of Ioffe and Szegedy: what is measured, and what is drawn of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from small import check_circles, check_median, circles, lines
from torch import nn

from normbook.data import Dataset
from normbook.diagnostics.internal_covariate_shift import input_shift_of_update
from normbook.errors import RecordError
from normbook.experiments import sigmoid_net
from normbook.experiments.published import SIGMOID_NET_ACCURACY
from normbook.lab.experiment import Experiment, classification
from normbook.lab.record import Record, RunRecord

VARIANTS = ("none", "batch_norm", "noisy_batch_norm")
KINDS = ("none", "batch", "other")


def invented(experiment: Experiment, scale: str, quantities: dict[str, Any]) -> Record:
    """Return a record of random numbers, at the steps of a scale, with two seeds."""
    settings = experiment.scales[scale].settings
    steps = list(range(0, settings["steps"] + 1, settings["measure_every"]))
    rng = np.random.default_rng(0)

    def curves() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, shape in quantities.items():
            measurement, quantity = name.split("/")
            values = rng.uniform(0.1, 0.9, (len(steps), *shape)).tolist()
            found.setdefault(measurement, {"step": steps})[quantity] = values
        return found

    runs = [
        RunRecord(variant, seed, 1.0, [], curves())
        for variant in settings["variants"]
        for seed in (0, 1)
    ]
    return replace(small.invented(experiment.name, settings, runs), scale=scale)


SHAPES: dict[str, tuple[int, ...]] = {
    "test/accuracy": (),
    **{f"inputs/{q}": (5,) for q in ("q15", "q50", "q85")},
    "shift/inputs": (3,),
    "shift/l2": (4,),
    "shift/cosine": (4,),
}


@pytest.fixture(scope="module")
def paper() -> Record:
    return invented(sigmoid_net.EXPERIMENT, "paper", SHAPES)


def data(lines: list[Any]) -> list[Any]:
    """Return x and y of lines, each as an array (2, T)."""
    return [np.array(line.get_data()) for line in lines]


def shaded(ax: Any, x: ArrayLike, low: ArrayLike, high: ArrayLike) -> bool:
    """Whether some shade goes from the one to the other."""
    wanted = {*zip(x, low, strict=True), *zip(x, high, strict=True)}  # type: ignore[arg-type]
    shades = [s.get_paths()[0].vertices for s in ax.collections]
    return any(wanted <= {tuple(v) for v in np.asarray(s)} for s in shades)


# --- the runs


def test_a_live_run_measures_what_the_figures_need(record: Record) -> None:
    assert record.variants == list(VARIANTS)
    for variant in VARIANTS:
        for name, shape in SHAPES.items():
            values = record.values(variant, *name.split("/"))
            assert values.shape == (2, 3, *shape)
            assert np.isfinite(values).all()


def test_images_are_made_binary_where_the_paper_has_them_so() -> None:
    grey = np.array([[[0.0, 0.4], [0.6, 1.0]]])
    for is_binary, expected in ((True, [0, 0, 1, 1]), (False, [0, 0.4, 0.6, 1])):
        data = Dataset(grey, np.zeros(1, int), grey, np.zeros(1, int))
        pixels: Any = sigmoid_net._Pixels.of(data, is_binary, small.CPU)
        assert pixels.x.tolist() == pixels.x_test.tolist() == [expected]


def test_the_noise_moves_the_inputs_more_than_batch_norm_alone(record: Record) -> None:
    moved = {v: record.values(v, "shift", "inputs").min() for v in VARIANTS[1:]}
    calm = record.values("batch_norm", "shift", "inputs").max()
    assert moved["noisy_batch_norm"] > 3 * calm


# --- the figures


@pytest.mark.parametrize("which", ["record", "paper"])
def test_the_accuracies_drawn_are_those_of_the_record(
    which: str, request: pytest.FixtureRequest
) -> None:
    record: Record = request.getfixturevalue(which)
    figure = sigmoid_net.figures(record)["accuracy"]
    for ax in figure.axes:
        for variant, kind in zip(VARIANTS, KINDS, strict=True):
            runs = record.values(variant, "test", "accuracy")
            steps = record.steps("test", variant)
            check_median(ax, kind, steps, runs)
            assert shaded(ax, steps, runs.min(0), runs.max(0))


def test_published_points_are_drawn_at_the_scale_of_the_paper_only(
    record: Record, paper: Record
) -> None:
    for ax in sigmoid_net.figures(paper)["accuracy"].axes:
        for variant, kind in (("none", "none"), ("batch_norm", "batch")):
            check_circles(ax, kind, SIGMOID_NET_ACCURACY[variant])
        assert circles(ax, "other") == []
    for ax in sigmoid_net.figures(record)["accuracy"].axes:
        assert circles(ax) == []


def test_the_inputs_drawn_are_the_quantiles_of_the_first_seed(paper: Record) -> None:
    axes = sigmoid_net.figures(paper)["inputs"].axes
    steps = paper.steps("inputs")
    for ax, variant in zip(axes, VARIANTS, strict=True):
        q15, q50, q85 = (
            paper.values(variant, "inputs", q)[0] for q in ("q15", "q50", "q85")
        )
        quantiles = np.stack([q15[:, 0], q50[:, 0], q85[:, 0]])
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), np.median(quantiles, 0))
        assert shaded(ax, steps, quantiles.min(0), quantiles.max(0))
        others = [np.asarray(line.get_ydata()) for line in ax.lines[1:]]
        np.testing.assert_array_equal(np.transpose(others), q50[:, 1:])


def thirds(figure: Figure) -> list[list[Any]]:
    """Rows of three panels."""
    return [figure.axes[k : k + 3] for k in range(0, len(figure.axes), 3)]


@pytest.mark.parametrize(
    ("name", "row", "quantity", "lowest"),
    [
        ("input_shift", 0, "inputs", 0),
        ("gradient_shift", 0, "l2", 1),
        ("gradient_shift", 1, "cosine", 1),
    ],
)
def test_a_shift_is_drawn_in_medians_over_twenty_stretches(
    paper: Record, name: str, row: int, quantity: str, lowest: int
) -> None:
    panels = thirds(sigmoid_net.figures(paper)[name])[row]
    for layer, ax in enumerate(panels, start=lowest):
        for variant, kind in zip(VARIANTS, KINDS, strict=True):
            values = paper.values(variant, "shift", quantity)[:, :, layer]
            (line,) = data(lines(ax, kind))
            assert line.shape == (2, 20)
            # 101 measurements: the first stretch has 6, the others 5
            first = np.median(values[:, :6], axis=1)
            last = np.median(values[:, -5:], axis=1)
            ends = np.median(first), np.median(last)
            np.testing.assert_allclose(line[1, [0, -1]], ends)
            np.testing.assert_allclose(line[0, [0, -1]], [1250, 49_000])


def test_a_short_record_is_drawn_measurement_by_measurement(record: Record) -> None:
    axes = sigmoid_net.figures(record)["input_shift"].axes
    shift = record.values("batch_norm", "shift", "inputs")[:, :, 1]
    check_median(axes[1], "batch", [0, 4, 8], shift)


# --- each network at its own best


@pytest.fixture(scope="module")
def tuned() -> Record:
    return small.record("sigmoid_net_tuned")


def test_validation_images_are_the_last_and_not_trained_on() -> None:
    data: Dataset = small.data("sigmoid_net_tuned")
    run = small.begun("sigmoid_net_tuned", "none", validated=30)
    assert len(run.batches.x) == len(data.x_train) - 30
    last = torch.tensor(data.x_train[-30:]).double()
    labels = torch.tensor(data.y_train[-30:])
    with torch.no_grad():
        accuracy = (run.model(last).argmax(1) == labels).double().mean()
    run.measure(steps=8)
    assert run.curves["validation"]["accuracy"] == [accuracy]


def test_the_input_shift_is_that_of_the_probe_and_that_of_the_batch() -> None:
    run = small.begun("sigmoid_net_tuned", "batch_norm")
    size = sigmoid_net.PROBE
    x, y = run.batches.x[:size], run.batches.y[:size]
    run.measure(steps=8)
    sigmoids = [k for k, m in run.model.named_modules() if isinstance(m, nn.Sigmoid)]
    losses: dict[str, Any] = {
        "inputs": lambda m: classification(m, x, y)["loss"],
        "batch_inputs": run.loss,
    }
    rate = run.optimizer.param_groups[0]["lr"]
    for quantity, seen in losses.items():
        moved = input_shift_of_update(run.model, run.loss, rate, sigmoids, seen)
        (found,) = run.curves["shift"][quantity]
        np.testing.assert_allclose(found, [moved[k].mean() for k in sigmoids])


def test_the_shifts_have_an_accuracy_at_their_steps(tuned: Record) -> None:
    for variant in VARIANTS:
        np.testing.assert_array_equal(
            tuned.steps("shift", variant), tuned.steps("validation", variant)
        )


def test_the_grid_drawn_is_the_tuning_with_a_dot_where_it_is_best(
    tuned: Record,
) -> None:
    rates, stds = sigmoid_net.tuned_figures(tuned)["grid"].axes
    for variant, kind in zip(VARIANTS, KINDS, strict=True):
        grid, best = tuned.grid(variant), tuned.chosen(variant)
        check_median(rates, kind, grid["learning_rate"], grid["score"].T)
        is_best = grid["learning_rate"] == best["learning_rate"]
        for ax, name in ((rates, "learning_rate"), (stds, "std")):
            ((x, y),) = data(lines(ax, kind, marker="o"))
            assert x == best[name]
            assert y == np.median(grid["score"][is_best])


def test_the_errors_drawn_are_those_of_training_and_of_test(tuned: Record) -> None:
    axes = sigmoid_net.tuned_figures(tuned)["error"].axes
    for ax, name in zip(axes, ("train_accuracy", "accuracy"), strict=True):
        for variant, kind in zip(VARIANTS, KINDS, strict=True):
            runs = 1 - tuned.values(variant, "test", name)
            check_median(ax, kind, tuned.steps("test", variant), runs)


def test_the_steps_to_a_level_are_the_first_with_it(
    tuned: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracy = tuned.values("batch_norm", "validation", "accuracy")
    steps = tuned.steps("validation", "batch_norm")
    level = accuracy.max(1).min()  # both runs get there
    found = sigmoid_net.steps_to(tuned, "batch_norm", level)
    for run, step in zip(accuracy, found, strict=True):
        assert step == next(s for s, a in zip(steps, run, strict=True) if a >= level)
    assert np.isnan(sigmoid_net.steps_to(tuned, "batch_norm", 1.1)).all()
    monkeypatch.setattr(sigmoid_net, "LEVELS", (0.0, level))
    (ax,) = sigmoid_net.tuned_figures(tuned)["steps"].axes
    check_median(ax, "batch", (0, level), np.stack([[0, 0], found], axis=1))


# --- what is refused


def test_a_record_of_the_other_experiment_is_refused(
    paper: Record, tuned: Record
) -> None:
    with pytest.raises(RecordError, match="must be of sigmoid_net, got one of sig"):
        sigmoid_net.figures(tuned)
    with pytest.raises(RecordError, match="must be of sigmoid_net_tuned, got one"):
        sigmoid_net.tuned_figures(paper)


@pytest.mark.parametrize("missing", ["test/accuracy", "inputs/q50", "shift/cosine"])
def test_a_record_that_lacks_a_measurement_is_refused(missing: str) -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if name != missing}
    record = invented(sigmoid_net.EXPERIMENT, "live", shapes)
    with pytest.raises(RecordError, match="measurement and quantity must be one of"):
        sigmoid_net.figures(record)
