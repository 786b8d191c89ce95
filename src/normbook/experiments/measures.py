"""What several experiments measure, and how their figures take it from a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.diagnostics.internal_covariate_shift import gradient_shift
from normbook.diagnostics.smoothness import along_gradient
from normbook.diagnostics.undisturbed import undisturbed
from normbook.lab.experiment import Run, Values
from normbook.lab.record import Record
from normbook.layers.recalibrate import recalibrate
from normbook.looks import STYLES, Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.figures import Line

Looks = Mapping[str, tuple[Kind, str]]
Curve = Callable[[str], NDArray[np.float64]]  # of a variant, shape (S, T)


def step_sizes(rate: float) -> list[float]:
    """Return half to four times the learning rate, as Santurkar et al. (2018) do."""
    return [rate * k / 2 for k in range(1, 9)]


def landscape(run: Run, rate: float) -> Values:
    """Measure loss and gradient along the gradient of the next batch."""
    path = along_gradient(run.model, run.loss, step_sizes(rate))
    return {
        "loss": path.loss,
        "lowest": path.loss_range[0],
        "highest": path.loss_range[1],
        "gradient_norm": path.gradient_norm,
        "least_change": path.gradient_predictiveness[0],
        "most_change": path.gradient_predictiveness[1],
        "beta": path.effective_smoothness,
    }


def shift(run: Run, rate: float) -> Values:
    """Measure how the update of the layers below moves the gradient of each layer."""
    moved = gradient_shift(run.model, run.loss, rate)
    return {
        "l2": moved.l2.tolist(),
        "cosine": moved.cosine.tolist(),
        "gradient_norm": moved.gradient_norm.tolist(),
    }


def recalibrated(
    run: Run, test: Callable[[Run], Values], x: Tensor, size: int
) -> Values:
    """Test with the statistics of these examples, in batches, for the running ones."""
    with undisturbed(run.model):
        recalibrate(run.model, torch.split(x, size))
        return test(run)


def judge(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy (nats) of each example, and 1 where it is wrong."""
    losses = nn.functional.cross_entropy(scores, labels, reduction="none")
    return losses, (scores.detach().argmax(1) != labels).double()


def errors(scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return what :func:`judge` finds, as means: "loss" and "error"."""
    losses, wrong = judge(scores, labels)
    return {"loss": losses.mean(), "error": wrong.mean()}


def lines(
    record: Record, looks: Looks, measurement: str, curve: str | Curve
) -> dict[str, Line]:
    r"""Return curves of variants against steps, by the labels of their looks.

    The curve is a quantity of the measurement, or takes the name of a variant. Beside
    the smoothness "beta" stands :math:`1 / \eta_{\min}`, of the smallest step size.
    """

    def values(variant: str) -> NDArray[np.float64]:
        if callable(curve):
            return curve(variant)
        return record.values(variant, measurement, curve)

    panel: dict[str, Line] = {
        label: (kind, record.steps(measurement, variant), values(variant))
        for variant, (kind, label) in looks.items()
    }
    if curve == "beta":
        variant = next(iter(looks))
        steps = record.steps(measurement, variant)
        rate = record.settings["variants"][variant]["learning_rate"]
        height = np.full((1, len(steps)), 1 / step_sizes(rate)[0])
        panel["$1 / \\eta_{\\min}$"] = ("reference", steps, height)
    return panel


def row(
    record: Record, columns: Mapping[str, Looks], measurement: str, curve: str | Curve
) -> dict[str, dict[str, Line]]:
    """Return :func:`lines` for a panel of each column, by what stands below it."""
    return {
        f"training steps\n\n{title}": lines(record, looks, measurement, curve)
        for title, looks in columns.items()
    }


def through_best(
    record: Record, variant: str, setting: str = "learning_rate"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of a tuned setting that were tried, (P,), and their scores.

    These are the points at which the others are at their best, with growing values.
    Scores, (S, P), have a row for each seed of the tuning: less is better.
    """
    best, grid = record.chosen(variant), record.grid(variant)
    shown = [
        k
        for k in np.argsort(grid[setting])
        if all(grid[name][k] == best[name] for name in best if name != setting)
    ]
    return grid[setting][shown], grid["score"][shown].T


def draw_grid(
    record: Record,
    panels: Mapping[str, tuple[str, Looks]],
    *,
    ylabel: str,
    yscale: Literal["linear", "log"] = "linear",
    rows: int = 1,
) -> Figure:
    """Draw the scores of a tuning along one setting, with a dot where it is best.

    A panel has the label of its horizontal axis, with a name of its own behind an empty
    line, and of variants with their looks.
    """
    from normbook import figures

    fig, axes = figures.panels(len(panels), rows=rows, sharey=True)
    for ax, (xlabel, (setting, looks)) in zip(axes, panels.items(), strict=True):
        for variant, (kind, label) in looks.items():
            values, scores = through_best(record, variant, setting)
            figures.band(ax, values, scores, kind=kind, label=label)
            dot = values == record.chosen(variant)[setting]
            colour = STYLES[kind]["color"]
            ax.plot(values[dot], np.median(scores[:, dot], axis=0), "o", color=colour)
        ax.set(xlabel=xlabel, xscale="log", yscale=yscale)
    for ax in axes[:: len(axes) // rows]:
        ax.set(ylabel=ylabel)
    if rows > 1:  # a name between two rows would be taken for the lower one's
        for ax in axes:
            setting, _, name = ax.get_xlabel().partition("\n\n")
            is_lowest = ax in axes[-(len(axes) // rows) :]
            ax.set(title=name, xlabel=setting if is_lowest else "")
    figures.legend_above(fig, axes[0])
    return fig


def draw_errors(record: Record, looks: Looks) -> Figure:
    """Draw the share of wrong answers during training: on training images, in test."""
    from normbook import figures

    names = {"train_accuracy": "training images", "accuracy": "test set"}
    fig, axes = figures.panels(len(names), sharey=True)
    for ax, (quantity, title) in zip(axes, names.items(), strict=True):

        def error(variant: str, quantity: str = quantity) -> NDArray[np.float64]:
            return 1 - record.values(variant, "test", quantity)

        figures.bands(ax, lines(record, looks, "test", error))
        ax.set(xlabel=f"training steps\n\n{title}", yscale="log")
    axes[0].set(ylabel="error")
    figures.legend_above(fig, axes[0])
    return fig
