"""A measure of smoothness of anybody: right ones pass, each slip has its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import planted_measure_bugs as planted
import pytest
import torch

from normbook.checks import measures
from normbook.checks.measures import check_smoothness_measure
from normbook.diagnostics.landscape import landscape
from normbook.diagnostics.smoothness import along_gradient
from normbook.diagnostics.undisturbed import gradients, undisturbed


def failures(measure: Any) -> dict[str, str]:
    report = check_smoothness_measure(measure, quiet=True)
    assert all(f.reason and f.cure for f in report.findings if f.passed is False)
    return {f.name: f.reason for f in report.findings if f.passed is False}


def ours(model: Any, loss: Any, batches: Any, step_sizes: Any) -> Any:
    x, target = batches[0]
    return along_gradient(model, lambda m: loss(m(x), target), step_sizes)


def with_landscape(model: Any, loss: Any, batches: Any, step_sizes: Any) -> Any:
    x, target = batches[0]
    with undisturbed(model):
        _, g = gradients(model, lambda m: loss(m(x), target))
    downhill = [-slope for slope in g]
    losses = landscape(model, lambda m: loss(m(x), target), [downhill], step_sizes)
    _, *rest = planted.right(model, loss, batches, step_sizes)
    return (float(losses.min()), float(losses.max())), *rest


@pytest.mark.parametrize("measure", [ours, with_landscape, planted.right])
def test_a_right_measure_passes(measure: Any) -> None:
    report = check_smoothness_measure(measure, quiet=True)
    assert [f.passed for f in report.findings] == [True] * 7


# Each slip by its name in planted_measure_bugs, and the tests that it fails.
SLIPS = {
    "consecutive_batches": {measures.BATCH: "between different batches"},
    "separate_runs": {
        measures.RANGE: "numbers are separate training runs",
        measures.BATCH: "as that of training runs would",
    },
    "steps_from_other_weights": {
        measures.RANGE: "each begins where the last ended",
        measures.CHANGE: "the change behind steps one after the other",
    },
    "accumulated": {measures.CHANGE: "both were added up in .grad"},
    "norm_of_the_second": {measures.CHANGE: "norm of the gradient after"},
    "same_tensor_twice": {measures.CHANGE: "clone the first"},
    "not_divided": {measures.SMOOTHNESS: "not divided by the distance"},
    "divided_by_the_step_alone": {measures.SMOOTHNESS: "step length alone"},
    "divided_by_the_norm_alone": {measures.SMOOTHNESS: "gradient alone"},
    "divided_twice": {measures.SMOOTHNESS: "the square of the distance"},
    "smallest_ratio": {measures.LARGEST: "the smallest of the ratios"},
    "mean_ratio": {measures.LARGEST: "the mean of the ratios"},
    "largest_over_largest": {measures.LARGEST: "or the largest change"},
    "in_evaluation_mode": {measures.MODE: "those of evaluation mode"},
    "leaves_the_last_step": {measures.UNDISTURBED: "bias, w, weight."},
    "leaves_the_statistics": {measures.UNDISTURBED: "moves the running"},
    "leaves_gradients": {measures.UNDISTURBED: "were: .grad."},
    "leaves_evaluation_mode": {measures.UNDISTURBED: "were: its mode."},
}


@pytest.mark.parametrize("slip", SLIPS)
def test_each_slip_fails_its_own_test_only(slip: str) -> None:
    found, expected = failures(getattr(planted, slip)), SLIPS[slip]
    assert found.keys() == expected.keys()
    for name, reason in expected.items():
        assert reason in found[name]


def ones(*_: Any) -> planted.Quantities:
    return (1.0, 1.0), (1.0, 1.0), 1.0


def test_a_measure_of_nothing_fails_without_a_known_name() -> None:
    found = failures(ones)
    assert list(found) == [measures.RANGE, measures.CHANGE]
    assert found[measures.RANGE] == "(1, 1), where the closed form gives (1.84, 5.191)."


def test_what_follows_from_a_wrong_quantity_is_not_reported_again() -> None:
    report = check_smoothness_measure(ones, quiet=True)
    unclear = [f.name for f in report.findings if f.passed is None]
    assert unclear == [measures.SMOOTHNESS, measures.LARGEST, measures.MODE]


def test_the_rounding_of_single_precision_is_allowed() -> None:
    def single(*given: Any) -> Any:
        *pairs, smoothness = planted.right(*given)
        pair, other = ([np.float32(v).item() for v in ends] for ends in pairs)
        return pair, other, float(np.float32(smoothness))

    assert failures(single) == {}


QUADRATICS = measures._quadratic(0), measures._quadratic(1)


@pytest.mark.parametrize(
    "problem", [*QUADRATICS, measures._quartic(), measures._batch_norm()]
)
def test_the_closed_form_is_the_one_that_autograd_follows(problem: Any) -> None:
    x, target = problem.batch
    value, slope = gradients(problem.model, lambda m: problem.loss(m(x), target))
    g = torch.cat([s.flatten() for s in slope]).numpy()
    assert value == pytest.approx(problem.value(problem.start), rel=1e-12)
    assert g == pytest.approx(problem.slope(problem.start), rel=1e-12)


def test_it_prints_the_report_unless_quiet(capsys: Any) -> None:
    report = check_smoothness_measure(planted.not_divided)
    assert capsys.readouterr().out == f"{report}\n"
    check_smoothness_measure(planted.not_divided, quiet=True)
    assert capsys.readouterr().out == ""


def test_a_measure_without_gradients_around_it_can_take_them() -> None:
    with torch.no_grad():
        assert failures(planted.right) == {}


@pytest.mark.parametrize("made", [None, 1.0, (1.0, 2.0, 3.0), ((1.0,), (1.0, 2.0), 3)])
def test_another_result_is_refused(made: Any) -> None:
    with pytest.raises(TypeError, match=r"measure must return .lowest loss, .* got"):
        check_smoothness_measure(lambda *_: made)
