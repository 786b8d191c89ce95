r"""Smoothness with and without batch norm, over learning rates and at equal distance.

Santurkar et al. (2018) compare at one rate. Here a small convolutional network is
trained with and without batch norm over a sweep of rates, and each with its own best
one (:mod:`normbook.lab.tuning`): that with the least loss at the end on validation
images, the last training images, which are not trained on, with seeds of its own.

Along the gradient of the next batch are measured, from half to four times the rate, the
quantities of the paper; the same at given *distances*, shares of the length of all
matrices and filters together, so that neither the rate nor the length of the gradient
decides how far is walked; and the curvature of the loss of this batch, along the
gradient and the largest one (:mod:`normbook.diagnostics.sharpness`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.data import Dataset
from normbook.diagnostics.sharpness import curvature
from normbook.diagnostics.smoothness import along_gradient
from normbook.experiments import measures
from normbook.experiments.vgg import POOL, build, images, tested
from normbook.lab import experiment as lab
from normbook.lab.digits_mlp import split
from normbook.lab.record import Record
from normbook.looks import looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.figures import Line

# Training images on which loss and accuracy are measured, beside the test.
PROBE = 5000
# Distances along the gradient, as shares of the length of the weights.
SHARES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    x, y, x_test, y_test = split(lab.required(data), device)
    x, x_test = images(x), images(x_test)
    count = len(y) - settings["validated"]
    (x, x_held_out), (y, y_held_out) = ((z[:count], z[count:]) for z in (x, y))
    weights = lab.generator(seed, "weights")
    model = build(
        settings["layers"],
        settings["hidden"],
        images=(x.shape[1], x.shape[2], x.shape[3]),
        norm=settings["norm"],
        weights=weights,
        noise=weights,  # never drawn from
    )
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate = settings["learning_rate"]

    def test(run: lab.Run) -> lab.Values:
        values = dict(tested(run.model, x_test, y_test))
        trained = tested(run.model, x[:PROBE], y[:PROBE])
        return values | {f"train_{name}": value for name, value in trained.items()}

    def validate(run: lab.Run) -> lab.Values:
        return dict(tested(run.model, x_held_out, y_held_out))

    def along(run: lab.Run) -> lab.Values:
        values = measures.landscape(run, rate)
        length, slope = weight_norm(run.model), values["gradient_norm"]
        found: dict[str, Any] = {"weight_norm": length}
        losses = changes = [float("nan")] * len(SHARES)
        if np.isfinite(slope):
            steps = [share * length / slope for share in SHARES]
            path = along_gradient(run.model, run.loss, steps)
            losses, changes = path.losses.tolist(), path.gradient_changes.tolist()
        return values | found | {"losses": losses, "changes": changes}

    def curved(run: lab.Run) -> lab.Values:
        return dict(curvature(run.model, run.loss)._asdict())

    measurements = {
        "test": lab.Measurement(settings["steps"], test),
        "validation": lab.Measurement(settings["steps"], validate),
    }
    if settings["is_diagnosed"]:
        every = settings["measure_every"]
        measurements["landscape"] = lab.Measurement(every, along)
        measurements["curvature"] = lab.Measurement(every, curved)
    return lab.Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=lab.classification,
        batches=lab.Batches(
            x, y, settings["batch_size"], lab.generator(seed, "batches")
        ),
        measurements=measurements,
        every=settings["average_over"],
    )


def weight_norm(model: nn.Module) -> float:
    """Return the length of all matrices and filters together."""
    filters = (p.detach().double() for p in model.parameters() if p.ndim > 1)
    return float(sum(p.square().sum().item() for p in filters) ** 0.5)


def name(norm: str, rate: float) -> str:
    """Return the name of a network with a given rate."""
    return f"{norm} rate={rate:g}"


LOOKS = looks("none", "batch_norm")
# Where training is under way: what is measured before is left out of a summary.
LATE = 0.5
EDGE = 2.0  # of the rate times the curvature: beyond it the loss need not fall


def rates(record: Record) -> list[float]:
    """Return the rates of the sweep, growing."""
    variants = record.settings["variants"].values()
    return sorted({v["learning_rate"] for v in variants if "learning_rate" in v})


def late(record: Record, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the medians over the second half of training, of (S, T, ...): (S, ...)."""
    steps = record.steps("landscape", name("none", rates(record)[0]))
    found: NDArray[np.float64] = np.median(values[:, steps >= LATE * steps[-1]], axis=1)
    return found


def figures(record: Record) -> dict[str, Figure]:
    r"""Draw a record of this experiment.

    "grid": the validation loss at the end against the rate. "edge": the rate times the
    sharpness during training, and times the curvature along the gradient below, a
    column for every second rate of the sweep and for the last; what is above 5 is not
    seen. "sweep": the quantities of the paper against the rate. "distance", each
    network at its own best rate, against the distance as a share of the length of the
    weights: the loss range up to there, and the change of the gradient per distance,
    times the squared length. Both are medians over the second half of training.
    """
    from normbook.figures import tick

    record.require(EXPERIMENT.name)
    grid = measures.draw_grid(
        record,
        {"learning rate": ("learning_rate", LOOKS)},
        ylabel="validation loss (nats)",
    )
    tick(grid.axes[0], record.grid("none")["learning_rate"])
    return {
        "grid": grid,
        "edge": _draw_edge(record),
        "sweep": _draw_sweep(record),
        "distance": _draw_distance(record),
    }


def _draw_edge(record: Record) -> Figure:
    from normbook.figures import curve_grid

    rows: dict[str, dict[str, dict[str, Line]]] = {}
    for quantity, label in CURVATURES.items():
        row = rows.setdefault(label, {})
        for rate in sorted({*rates(record)[::2], rates(record)[-1]}):
            panel: dict[str, Line] = {}
            for norm, (kind, title) in LOOKS.items():
                variant = name(norm, rate)
                steps = record.steps("curvature", variant)
                values = rate * record.values(variant, "curvature", quantity)
                panel[title] = (kind, steps, values)
            level = np.full((1, len(steps)), EDGE)
            panel["2"] = ("reference", steps, level)
            row[f"training steps\n\nrate {rate:g}"] = panel
    fig, axes = curve_grid(rows)
    for row_axes in axes:
        row_axes[0].set_ylim(0.0, 2.5 * EDGE)  # a row shares its scale
    return fig


CURVATURES = {
    "sharpness": "rate × sharpness",
    "along_gradient": "rate × curvature\nalong the gradient",
}


def _draw_sweep(record: Record) -> Figure:
    from normbook.figures import band, legend_above, panels, tick

    fig, axes = panels(3)
    fig.set_size_inches(7.2, 3.0)
    for norm, (kind, title) in LOOKS.items():
        runs = np.stack([summary(record, name(norm, r)) for r in rates(record)], axis=2)
        for ax, values in zip(axes, runs, strict=True):
            band(ax, rates(record), values, kind=kind, label=title)
    for ax, label in zip(axes, WIDTHS, strict=True):
        ax.set(xlabel="learning rate", ylabel=label, xscale="log", yscale="log")
        tick(ax, rates(record)[::2])
    legend_above(fig, axes[0])
    return fig


WIDTHS = "loss range (nats)", "gradient change", "effective smoothness"


def summary(record: Record, variant: str) -> NDArray[np.float64]:
    """Return loss range, gradient change and smoothness, (3, S), late in training."""
    high, low, change, smooth = (
        record.values(variant, "landscape", quantity)
        for quantity in ("highest", "lowest", "most_change", "beta")
    )
    return np.stack([late(record, v) for v in (high - low, change, smooth)])


def at_distances(
    record: Record, variant: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two curves over the distances, (S, D): medians over late training.

    The loss range from the start to there, in nats, and the change of the gradient per
    distance times the squared length of the weights, in nats too.
    """
    start, losses, changes, length = (
        record.values(variant, "landscape", quantity)
        for quantity in ("loss", "losses", "changes", "weight_norm")
    )
    way = np.concatenate([start[..., None], losses], axis=2)
    top, bottom = (f.accumulate(way, axis=2) for f in (np.maximum, np.minimum))
    relative = changes * length[..., None] / np.array(SHARES)
    return late(record, (top - bottom)[..., 1:]), late(record, relative)


def _draw_distance(record: Record) -> Figure:
    from normbook.figures import band, legend_above, panels, tick

    fig, axes = panels(2)
    for norm, (kind, title) in LOOKS.items():
        best = name(norm, record.chosen(norm)["learning_rate"])
        for ax, runs in zip(axes, at_distances(record, best), strict=True):
            band(ax, SHARES, runs, kind=kind, label=title)
    for ax, label in zip(axes, ALONG, strict=True):
        ax.set(xlabel="distance / length of the weights", ylabel=label)
        ax.set(xscale="log", yscale="log")
        tick(ax, SHARES[::2])
    legend_above(fig, axes[0])
    return fig


ALONG = "loss range (nats)", "change / distance,\ntimes squared length (nats)"


def _variants(tuning: lab.Settings, *sweep: float) -> dict[str, lab.Settings]:
    """Return both networks, each with its rate tuned, and with each of these rates."""
    chosen: dict[str, lab.Settings] = {
        norm: {"norm": norm, "is_diagnosed": False, "tuning": tuning} for norm in LOOKS
    }
    return chosen | {
        name(norm, rate): {"norm": norm, "is_diagnosed": True, "learning_rate": rate}
        for rate in sweep
        for norm in LOOKS
    }


CRITERION = {"measurement": "validation", "quantity": "loss"}
COMMON: dict[str, Any] = {"dtype": "float32", "batch_size": 64, "hidden": 32}
LIVE_TUNING: dict[str, Any] = {
    "seeds": [100], "criterion": CRITERION,
    "grid": {"learning_rate": {"values": [0.1, 0.4]}},
}  # fmt: skip
TUNING: dict[str, Any] = {
    "seeds": [100, 101], "criterion": CRITERION,
    "grid": {"learning_rate": {
        "values": [0.1, 0.2, 0.4], "factor": 2.0, "limits": [1e-4, 10.0],
    }},
}  # fmt: skip
EXPERIMENT = lab.Experiment(
    name="smoothness_rates",
    title="A small convolutional network over a sweep of rates: smoothness, sharpness",
    source="Santurkar et al. (2018), Fig. 4; Cohen et al. (2021)",
    scales={
        "live": lab.Scale({
            **COMMON, "steps": 60, "average_over": 10, "measure_every": 20,
            "validated": 200, "layers": [8, POOL, 16],
            "variants": _variants(LIVE_TUNING, 0.1, 0.4),
        }, (0, 1), "digits", "embedded digits, two rates"),
        "cpu": lab.Scale({
            **COMMON, "steps": 600, "average_over": 50, "measure_every": 60,
            "validated": 5000, "layers": [POOL, 8, POOL, 16, POOL, 16],
            "variants": _variants(TUNING, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
        }, (0, 1, 2), "fashion-mnist",
            "Fashion-MNIST at half its size, six rates, two thirds of a pass"),
    },
    begin=begin,
    figures=figures,
    is_steady=False,
)  # fmt: skip
