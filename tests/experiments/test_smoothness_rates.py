"""The sweep of rates: what is measured at equal distances, and what figures show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small
import torch
from small import check_median, circles, lines

from normbook.diagnostics.sharpness import curvature
from normbook.diagnostics.undisturbed import gradients
from normbook.experiments import smoothness_rates as rates
from normbook.lab.record import Record

NAMES = ["none", "batch_norm"]


@pytest.fixture
def record() -> Record:
    return small.record("smoothness_rates")


@pytest.fixture
def drawn(record: Record) -> dict[str, Any]:
    return dict(rates.figures(record))


def begun(norm: str = "batch_norm") -> Any:
    return small.begun("smoothness_rates", rates.name(norm, 0.4))


def test_the_distances_are_shares_of_the_length_of_matrices_and_filters() -> None:
    run = begun()
    run.measure(steps=6)
    found = {k: v[0] for k, v in run.curves["landscape"].items()}
    matrices = [p for p in run.model.parameters() if p.ndim > 1]
    length = torch.cat([p.detach().flatten() for p in matrices]).norm().item()
    assert found["weight_norm"] == pytest.approx(length, rel=1e-6)
    _, slopes = gradients(run.model, run.loss)
    slope = torch.cat([g.flatten() for g in slopes]).norm().item()
    assert found["gradient_norm"] == pytest.approx(slope, rel=1e-5)
    with torch.no_grad():
        for p, g in zip(run.model.parameters(), slopes, strict=True):
            p.sub_(g, alpha=rates.SHARES[2] * length / slope)
    loss, moved = gradients(run.model, run.loss)
    change = [(a - b).flatten() for a, b in zip(moved, slopes, strict=True)]
    assert found["losses"][2] == pytest.approx(loss, rel=1e-5)
    assert found["changes"][2] == pytest.approx(torch.cat(change).norm().item(), 1e-4)


def test_the_curvature_is_that_of_the_batch_of_the_next_update() -> None:
    run = begun()
    run.measure(steps=6)
    expected = curvature(run.model, run.loss)
    assert run.curves["curvature"]["sharpness"] == [expected.sharpness]
    assert run.curves["landscape"]["loss"] == [pytest.approx(run.update(), rel=1e-6)]


def test_a_network_that_has_left_all_bounds_is_measured_as_nan() -> None:
    run = begun("none")
    with torch.no_grad():
        run.model[0].weight.fill_(torch.inf)
    run.measure(steps=6)
    assert np.isnan(run.curves["landscape"]["losses"]).all()
    assert np.isnan(run.curves["curvature"]["sharpness"]).all()


def test_what_is_chosen_by_is_not_diagnosed_and_lies_in_the_sweep() -> None:
    settings = rates.EXPERIMENT.scales["cpu"].settings
    for norm in NAMES:
        grid = settings["variants"][norm]["tuning"]["grid"]["learning_rate"]["values"]
        assert {rates.name(norm, rate) for rate in grid} < {*settings["variants"]}
    run = small.begun("smoothness_rates", "none")
    assert {*run.measurements} == {"test", "validation"}
    assert len(run.batches.x) == len(small.data("smoothness_rates").x_train) - 200


def test_the_rate_is_chosen_by_validation_and_marked_in_the_grid(
    record: Record, drawn: dict[str, Any]
) -> None:
    (ax,) = drawn["grid"].axes
    for norm, (kind, _) in rates.LOOKS.items():
        grid, best = record.grid(norm), record.chosen(norm)["learning_rate"]
        losses = grid["score"][:, 0]
        assert best == grid["learning_rate"][losses.argmin()]
        (dot,) = circles(ax, kind)
        assert (dot.get_xdata(), dot.get_ydata()) == ([best], [losses.min()])


def test_the_edge_is_drawn_at_2_beside_the_rate_times_each_curvature(
    record: Record, drawn: dict[str, Any]
) -> None:
    axes = np.reshape(drawn["edge"].axes, (2, 2))
    for row, quantity in zip(axes, rates.CURVATURES, strict=True):
        for ax, rate in zip(row, (0.1, 0.4), strict=True):
            for norm, (kind, _) in rates.LOOKS.items():
                variant = rates.name(norm, rate)
                values = rate * record.values(variant, "curvature", quantity)
                steps = record.steps("curvature", variant)
                check_median(ax, kind, steps, values)
            (line,) = lines(ax, "reference")
            assert set(line.get_ydata()) == {2.0}


def test_the_sweep_shows_medians_of_the_second_half_against_the_rate(
    record: Record, drawn: dict[str, Any]
) -> None:
    axes = drawn["sweep"].axes
    assert record.steps("landscape", "none rate=0.1").tolist() == [0, 3, 6]
    for norm, (kind, _) in rates.LOOKS.items():
        names = [rates.name(norm, rate) for rate in (0.1, 0.4)]
        for ax, quantity in zip(axes[1:], ("most_change", "beta"), strict=True):
            values = [record.values(v, "landscape", quantity)[:, 1:] for v in names]
            check_median(ax, kind, [0.1, 0.4], np.median(values, axis=2).T)


def test_the_loss_range_grows_with_the_distance_from_the_start_on(
    record: Record, drawn: dict[str, Any]
) -> None:
    for norm, (kind, _) in rates.LOOKS.items():
        best = rates.name(norm, record.chosen(norm)["learning_rate"])
        start, losses, changes, length = (
            record.values(best, "landscape", q)[:, 1:]
            for q in ("loss", "losses", "changes", "weight_norm")
        )
        first = np.abs(losses[..., 0] - start)
        widths, relative = rates.at_distances(record, best)
        np.testing.assert_allclose(widths[:, 0], np.median(first, axis=1))
        assert (np.diff(widths) >= 0).all()
        last = changes[..., -1] / (0.08 * length) * length**2
        np.testing.assert_allclose(relative[:, -1], np.median(last, axis=1))
        for ax, runs in zip(drawn["distance"].axes, (widths, relative), strict=True):
            check_median(ax, kind, rates.SHARES, runs)
