"""Three hidden layers of sigmoids with and without batch norm (Ioffe and Szegedy).

The first figure of the paper: test accuracy during training, and the distribution of
the input of one sigmoid. A third network adds noise after each batch norm, so that
the distributions shift on purpose (Santurkar et al. 2018).

The paper gives the sizes, the batch of 60 and the 50 000 steps. It does not give the
learning rate or the standard deviation of the first weights. In ``sigmoid_net_tuned``
each network has its own best pair of them (:mod:`normbook.lab.tuning`): that with which
it first reaches a level of accuracy on validation images, the last training images,
which are not trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.data import Dataset
from normbook.diagnostics.activations import layer_statistics
from normbook.diagnostics.internal_covariate_shift import input_shift_of_update
from normbook.diagnostics.noise import DistributionNoise
from normbook.experiments import measures
from normbook.experiments.published import SIGMOID_NET_ACCURACY
from normbook.lab import experiment as lab
from normbook.lab.digits_mlp import build, evaluate, split
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d
from normbook.looks import STYLES, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.figures import Line

SOURCE = "Ioffe and Szegedy (2015), Fig. 1"
# Units of the last hidden layer whose input is followed.
UNITS = 5
QUANTILES = ("q15", "q50", "q85")
# Training examples on which the distributions are measured.
PROBE = 1000
# Those on which loss and accuracy are, beside the test.
TRAINED = 10_000


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    noise = lab.generator(seed, "noise")

    def norm(size: int) -> nn.Module:
        layers: list[nn.Module] = [BatchNorm1d(size)]
        if settings["norm"] == "noisy_batch_norm":
            layers.append(DistributionNoise(generator=noise))
        return nn.Sequential(*layers)

    data = lab.required(data)
    _, y, _, y_test = split(data, device)
    pixels: _Pixels = _Pixels.of(data, settings["is_binary"], device)
    count = len(y) - settings.get("validated", 0)
    x, held_out = pixels.x[:count], (pixels.x[count:], y[count:])
    y = y[:count]
    model = build(
        generator=lab.generator(seed, "weights"),
        norm=None if settings["norm"] == "none" else norm,
        activation="sigmoid",
        **{name: settings[name] for name in ("depth", "width", "std")},
        features=x.shape[1],
        device=device,
    )
    sigmoids = [name for name, m in model.named_modules() if isinstance(m, nn.Sigmoid)]
    rate, size = settings["learning_rate"], settings["batch_size"]

    def probe(m: nn.Module) -> torch.Tensor:
        return lab.classification(m, x[:PROBE], y[:PROBE])["loss"]

    def test(run: lab.Run) -> lab.Values:
        loss, accuracy = evaluate(run.model, pixels.x_test, y_test)
        values = {"loss": loss, "accuracy": accuracy}
        if len(held_out[1]):
            loss, accuracy = evaluate(run.model, x[:TRAINED], y[:TRAINED])
            values |= {"train_loss": loss, "train_accuracy": accuracy}
        return values

    def validate(run: lab.Run) -> lab.Values:
        loss, accuracy = evaluate(run.model, *held_out)
        return {"loss": loss, "accuracy": accuracy}

    def inputs(run: lab.Run) -> lab.Values:
        (last,) = layer_statistics(run.model, probe, sigmoids[-1:])
        quantiles = last.inputs.quantiles[:, :UNITS].tolist()
        return dict(zip(QUANTILES, quantiles, strict=True))

    def shift(run: lab.Run) -> lab.Values:
        def of_inputs(probe: Callable[[nn.Module], torch.Tensor]) -> list[float]:
            moved = input_shift_of_update(run.model, run.loss, rate, sigmoids, probe)
            return [float(moved[name].mean()) for name in sigmoids]

        values = {"inputs": of_inputs(probe), **measures.shift(run, rate)}
        if len(held_out[1]):
            values["batch_inputs"] = of_inputs(run.loss)
        return values

    every = settings["measure_every"]
    seldom = settings.get("test_every", every)
    measurements = {"test": lab.Measurement(seldom, test)}
    if len(held_out[1]):
        measurements["validation"] = lab.Measurement(every, validate)
    if settings["is_diagnosed"]:
        measurements["inputs"] = lab.Measurement(seldom, inputs)
        measurements["shift"] = lab.Measurement(every, shift)
    return lab.Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=lab.classification,
        batches=lab.Batches(x, y, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=every,
        generators={"noise": noise},
        shared=pixels,
    )


@dataclass(frozen=True)
class _Pixels:
    """Images as rows of 0 and 1, as in the paper, or of grey values in [0, 1]."""

    x: torch.Tensor
    x_test: torch.Tensor

    @staticmethod
    @lab.shared_by_runs
    def of(data: Dataset, is_binary: bool, device: torch.device) -> _Pixels:
        x, _, x_test, _ = split(data, device)
        both = (images.flatten(1) for images in (x, x_test))
        return _Pixels(*((x > 0.5 if is_binary else x).double() for x in both))


LOOKS = looks("none", "batch_norm", "noisy_batch_norm")
# Points of a curve that is a summary of many single batches.
STRETCHES = 20
# Lines that stand behind a bold one.
THIN_LINE: dict[str, Any] = {"linewidth": 0.7, "linestyle": "-", "alpha": 0.6}


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``sigmoid_net``.

    "accuracy" on the test set, whole and enlarged. "inputs", with the first seed, of
    the sigmoid of some units of the last hidden layer: the 15th, 50th and 85th
    percentile of the first unit, the median of the others. "input_shift" of one update,
    for each sigmoid, mean over its units. "gradient_shift": l2 (above) and cosine
    (below), for each layer but the lowest. Both are medians over at most 20 stretches
    of training.
    """
    record.require(EXPERIMENT.name)
    return {
        "accuracy": _draw_accuracy(record),
        "inputs": _draw_inputs(record),
        "input_shift": _draw_input_shift(record),
        "gradient_shift": _draw_gradient_shift(record),
    }


def _draw_accuracy(record: Record) -> Figure:
    from normbook.figures import bands, legend_above, panels, points

    shown = {variant: LOOKS[variant] for variant in record.variants}
    lines = measures.lines(record, shown, "test", "accuracy")
    fig, axes = panels(2)
    for ax in axes:
        bands(ax, lines)
        if record.scale == "paper":
            for variant, published in SIGMOID_NET_ACCURACY.items():
                said = "published" if variant == "none" else None
                points(ax, published.x, published.y, kind=LOOKS[variant][0], label=said)
        ax.set(xlabel="training steps", ylabel="test accuracy")
    axes[1].set_ylim(0.94, 0.99)
    legend_above(fig, axes[0], columns=2)
    return fig


def _draw_inputs(record: Record) -> Figure:
    # (3 quantiles, times, units), of the first seed
    from normbook.figures import band, panels

    inputs = {
        v: np.array([record.values(v, "inputs", q)[0] for q in QUANTILES])
        for v in record.variants
    }
    fig, axes = panels(len(inputs), sharex=True, sharey=True)
    for ax, (variant, quantiles) in zip(axes, inputs.items(), strict=True):
        kind, label = LOOKS[variant]
        steps = record.steps("inputs", variant)
        # The median and the range of three quantiles are these quantiles.
        band(ax, steps, quantiles[:, :, 0], kind=kind, label=label)
        colour = STYLES[kind]["color"]
        ax.plot(steps, quantiles[1, :, 1:], color=colour, **THIN_LINE)
        ax.set(xlabel=f"training steps\n\n{label}")
    axes[0].set(ylabel="input of the sigmoid")
    return fig


def _draw_input_shift(record: Record) -> Figure:
    from normbook.figures import bands, legend_above, panels

    depth = record.settings["depth"]
    shifts = [_stretches(record, "inputs", layer) for layer in range(depth)]
    fig, axes = panels(depth, sharex=True, sharey=True)
    for layer, (ax, shift) in enumerate(zip(axes, shifts, strict=True), start=1):
        bands(ax, shift)
        ax.set(xlabel=f"training steps\n\nsigmoid {layer}", yscale="log")
    axes[0].set(ylabel="input shift (standard deviations)")
    legend_above(fig, axes[0])
    return fig


def _draw_gradient_shift(record: Record) -> Figure:
    from normbook.figures import band, legend_above, panels

    depth = record.settings["depth"]  # and a layer of scores; nothing below the lowest
    above = range(1, depth + 1)
    shifts = [_stretches(record, q, layer) for q in ("l2", "cosine") for layer in above]
    fig, axes = panels(2 * depth, rows=2, sharex=True, sharey="row")
    for ax, shift in zip(axes, shifts, strict=True):
        for label, (kind, middles, runs) in shift.items():
            # Three bands could not be told apart: of one the median alone.
            shown = np.asarray(runs)
            if kind == "other":
                shown = np.median(shown, axis=0, keepdims=True)
            band(ax, middles, shown, kind=kind, label=label)
    for layer, ax in enumerate(axes[depth:], start=2):
        ax.set(xlabel=f"training steps\n\nlayer {layer}")
    axes[0].set(ylabel="$\\|G - G'\\|$", yscale="log")
    axes[depth].set(ylabel="cosine of $G$ and $G'$")
    legend_above(fig, axes[0])
    return fig


def _stretches(record: Record, quantity: str, layer: int) -> dict[str, Line]:
    """Curves of a shift in one layer, in medians: a single batch scatters widely."""
    panel: dict[str, Line] = {}
    for variant in record.variants:
        kind, label = LOOKS[variant]
        steps = record.steps("shift", variant)
        values = record.values(variant, "shift", quantity)[:, :, layer]
        parts = np.array_split(np.arange(len(steps)), min(STRETCHES, len(steps)))
        medians = [np.median(values[:, part], axis=1) for part in parts]
        middles = [steps[part].mean() for part in parts]
        panel[label] = (kind, middles, np.stack(medians, axis=1))
    return panel


# Accuracies on validation images to which the steps are counted.
LEVELS = (0.93, 0.94, 0.95, 0.96, 0.965, 0.97, 0.975)


def steps_to(record: Record, variant: str, level: float) -> NDArray[np.float64]:
    """Return the steps of each seed, (S,), to an accuracy on validation images, or NaN.

    These are the images by which rate and first weights were chosen, of other seeds.
    """
    is_there = record.values(variant, "validation", "accuracy") >= level
    return record.first_steps(variant, "validation", is_there)


def tuned_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``sigmoid_net_tuned``.

    "grid": the steps to the level of the criterion, on validation images, against the
    learning rate and against the standard deviation of the first weights, with the
    other one at its best; a gap where the level is not reached. "error" on training
    images and on the test set. "steps" to levels of accuracy on validation images.
    "inputs", "input_shift" and "gradient_shift" as of ``sigmoid_net``.
    """
    record.require(TUNED.name)
    settings = {"learning_rate": "learning rate", "std": "std of weights"}
    criterion = record.settings["tuning"]["criterion"]
    return {
        "grid": measures.draw_grid(
            record,
            {label: (name, LOOKS) for name, label in settings.items()},
            ylabel=f"steps to {criterion['level']:g} (validation)",
        ),
        "error": measures.draw_errors(record, LOOKS),
        "inputs": _draw_inputs(record),
        "steps": _draw_steps(record),
        "input_shift": _draw_input_shift(record),
        "gradient_shift": _draw_gradient_shift(record),
    }


def _draw_steps(record: Record) -> Figure:
    from normbook.figures import band, legend_above, panels

    fig, (ax,) = panels(1)
    for variant, (kind, label) in LOOKS.items():
        runs = np.stack([steps_to(record, variant, x) for x in LEVELS], axis=1)
        band(ax, LEVELS, runs, kind=kind, label=label)
    ax.set(xlabel="validation accuracy", ylabel="training steps", yscale="log")
    legend_above(fig, ax)
    return fig


COMMON: dict[str, Any] = {
    "dtype": "float64", "batch_size": 60, "depth": 3, "width": 100,
    "is_diagnosed": True, "variants": {norm: {"norm": norm} for norm in LOOKS},
}  # fmt: skip
DIGITS = "embedded digits of 8 x 8 pixels"
EXPERIMENT = lab.Experiment(
    name="sigmoid_net",
    title="Three sigmoid layers with and without batch norm, and with noise after it",
    source=SOURCE,
    scales={
        "live": lab.Scale({
            **COMMON, "steps": 1500, "measure_every": 50, "learning_rate": 0.3,
            "std": 0.1, "is_binary": False,
        }, (0, 1, 2), "digits", DIGITS),
        "paper": lab.Scale({
            **COMMON, "steps": 50_000, "measure_every": 500, "learning_rate": 0.3,
            "std": 0.03, "is_binary": True,
        }, (0, 1, 2, 3, 4), "mnist", "binary MNIST as in the paper"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip

# Each at its own best. With the noise at the widths of the paper: without it, that
# network is the one with batch norm.
TUNING: dict[str, Any] = {
    "seeds": [100, 101],
    "criterion": {
        "measurement": "validation", "quantity": "accuracy", "is_higher_better": True,
        "level": 0.97,
    },
    "grid": {
        "learning_rate": {"values": [2.0, 4.0], "factor": 2.0, "limits": [1e-3, 1e3]},
        "std": {"values": [0.1, 0.3], "factor": 3.0, "limits": [1e-3, 1e2]},
    },
}  # fmt: skip
LIVE_TUNING: dict[str, Any] = {
    "seeds": [100],
    "criterion": {**TUNING["criterion"], "level": 0.8},
    "grid": {n: {**axis, "values": [1.0]} for n, axis in TUNING["grid"].items()},
}
TUNED = lab.Experiment(
    name="sigmoid_net_tuned",
    title="The same three networks, each with its own best rate and first weights",
    source=SOURCE,
    scales={
        "live": lab.Scale({
            **COMMON, "steps": 100, "measure_every": 10, "test_every": 50,
            "validated": 200, "is_binary": False, "tuning": LIVE_TUNING,
        }, (0, 1), "digits", DIGITS),
        "cpu": lab.Scale({
            **COMMON, "steps": 10_000, "measure_every": 100, "test_every": 500,
            "validated": 5000, "is_binary": True, "tuning": TUNING,
        }, (0, 1, 2, 3, 4), "mnist", "binary MNIST, a fifth of the steps of the paper"),
        "paper": lab.Scale({
            **COMMON, "steps": 50_000, "measure_every": 100, "test_every": 500,
            "validated": 5000, "is_binary": True, "tuning": TUNING,
        }, (0, 1, 2, 3, 4), "mnist", "binary MNIST, the steps of the paper"),
    },
    begin=begin,
    figures=tuned_figures,
)  # fmt: skip
