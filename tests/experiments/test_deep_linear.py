"""The deep linear network: its layers, a small run, and figures of its record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import small
import torch
from small import check_median, circles, lines
from torch import nn

from normbook.experiments import deep_linear
from normbook.experiments.published import DEEP_LINEAR_LOSS
from normbook.lab.experiment import generator
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.lp_norm import LpNorm1d

COLUMNS = list(deep_linear.PANELS)


@pytest.fixture
def drawn(record: Record) -> dict[str, Any]:
    return dict(deep_linear.figures(record))


def network(norm: str) -> Any:
    return deep_linear.build(25, 10, norm, generator(0, "weights"), small.CPU)


def test_twenty_five_square_matrices_each_with_its_normalization() -> None:
    kinds = {"batch_norm": BatchNorm1d, **dict.fromkeys(deep_linear.ORDERS, LpNorm1d)}
    for norm, kind in kinds.items():
        modules = list(network(norm))
        assert [type(m) for m in modules] == [nn.Linear, kind] * 25
        assert all(m.weight.shape == (10, 10) for m in modules[::2])
        assert all(m.bias is None for m in modules[::2])
    assert [type(m) for m in network("none")] == [nn.Linear] * 25


def test_each_norm_has_its_order() -> None:
    found = {norm: network(norm)[1].p for norm in ("l1", "l2", "linf")}
    assert found == {"l1": 1.0, "l2": 2.0, "linf": math.inf}


def test_the_first_weights_are_those_of_glorot() -> None:
    weights = torch.cat([m.weight.flatten() for m in network("none")])
    assert weights.std().item() == pytest.approx(10**-0.5, rel=0.05)


def test_the_loss_is_the_sum_over_examples_and_outputs() -> None:
    run = small.begun("deep_linear", "none rate=1e-06")
    x, y = run.batch
    expected = sum(((run.model(x[i]) - y[i]) ** 2).sum() for i in range(20))
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(run.loss(run.model), expected)


def test_the_targets_are_a_linear_function_of_gaussian_inputs() -> None:
    run = small.begun("deep_linear", "none rate=1e-06", examples=1000)
    x, y = run.batch
    assert len(x) == 1000
    assert x.std().item() == pytest.approx(1, rel=0.05)
    solution = torch.linalg.lstsq(x, y).solution
    torch.testing.assert_close(x @ solution, y)


def test_a_run_measures_what_it_says(record: Record) -> None:
    assert len(record.variants) == 10
    for variant in record.variants:
        assert record.values(variant, "training", "loss").shape == (2, 3)
        assert record.values(variant, "landscape", "beta").shape == (2, 4)
        assert record.values(variant, "shift", "cosine").shape == (2, 3, 3)
        first = record.values(variant, "landscape", "loss")[:, 0]
        opening = [run.opening[0] for run in record.runs if run.variant == variant]
        np.testing.assert_allclose(first, opening, rtol=1e-12)


@pytest.mark.parametrize("norm", ["none", *COLUMNS])
@pytest.mark.parametrize("rate", [1e-6, 1e-7])
def test_the_curves_are_the_medians_of_the_record(
    record: Record, drawn: dict[str, Any], norm: str, rate: float
) -> None:
    column = 0 if norm == "none" else COLUMNS.index(norm)
    place = 4 * (rate == 1e-7) + column
    name, kind = f"{norm} rate={rate:g}", deep_linear.LOOKS[norm][0]

    def landscape(quantity: str) -> Any:
        return record.values(name, "landscape", quantity)

    loss = landscape("loss")
    expected = {
        "loss": loss / loss[:, :1],
        "gradient_change": landscape("most_change"),
        "smoothness": landscape("beta"),
        "shift": record.values(name, "shift", "cosine")[:, :, 2],
    }
    assert list(drawn) == list(expected)
    for figure, values in expected.items():
        measurement = "shift" if figure == "shift" else "landscape"
        steps = record.steps(measurement, name)
        check_median(drawn[figure].axes[place], kind, steps, values)


def test_the_smoothness_stands_beside_what_the_smallest_step_allows(
    drawn: dict[str, Any],
) -> None:
    for place, ax in enumerate(drawn["smoothness"].axes):
        level = 2e7 if place >= 4 else 2e6
        (line,) = lines(ax, "reference")
        np.testing.assert_allclose(line.get_ydata(), level)


def test_published_losses_stand_at_the_published_rate_only(
    drawn: dict[str, Any],
) -> None:
    axes = drawn["loss"].axes
    for place, ax in enumerate(axes):
        found = circles(ax)
        assert len(found) == (2 if place < 4 else 0)
        for line, norm in zip(found, ("none", COLUMNS[place % 4]), strict=False):
            published = DEEP_LINEAR_LOSS[norm]
            relative = np.array(published.y) / published.y[0]
            np.testing.assert_array_equal(line.get_xdata(), published.x)
            np.testing.assert_allclose(line.get_ydata(), relative)
            assert line.get_fillstyle() == "none"
    assert [t.get_text() for t in axes[0].get_legend().get_texts()] == ["published"]


def test_a_record_with_one_rate_has_one_row(record: Record) -> None:
    slow = [name for name in record.variants if name.endswith("1e-07")]
    variants = {name: record.settings["variants"][name] for name in slow}
    runs = [run for run in record.runs if run.variant in slow]
    half = replace(record, settings={**record.settings, "variants": variants})
    found = deep_linear.figures(replace(half, runs=runs))
    assert [len(figure.axes) for figure in found.values()] == [4] * 4


def test_the_followed_layer_is_at_two_thirds_of_the_depth(
    drawn: dict[str, Any],
) -> None:
    ax = drawn["shift"].axes[0]
    assert ax.get_ylabel().startswith("cosine in layer 3")
