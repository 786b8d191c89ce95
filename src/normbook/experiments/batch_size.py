"""MNIST with batches of 128 and of 4: layer norm, batch norm and none (Ba et al.).

The sixth figure of the paper: negative log likelihood on the training set and error
on the test set for a network 784-1000-1000-10. At a batch of 128 batch norm and layer
norm do much the same; at 4 batch norm falls behind.

The paper gives sizes, batches and Adam. It gives neither the learning rate nor the
activation, and it can be read in two ways on batch norm: "applied to all layers", with
or without the ten scores at the top, and with the biased or the unbiased variance at
128 (at 4 it is the unbiased one). Each of the four is a variant.

In ``batch_size_tuned`` each of four networks has its own best learning rate at each
batch size (:mod:`normbook.lab.tuning`), in one pass over 50 000 images: that with the
smallest error at the end on the last 5000 training images, which are not trained on.
(Not the loss: normalized scores are bounded, and have a high one that falls with the
gain.) From which batch size on is batch norm the better one? What this leaves open:
batches of two, other numbers of passes, other networks, and one seed for the tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normbook.data import Dataset
from normbook.errors import RecordError
from normbook.experiments import measures
from normbook.experiments.published import BATCH_SIZE_ERROR, BATCH_SIZE_LOSS, Points
from normbook.lab import experiment as lab
from normbook.lab.digits_mlp import build, evaluate, split
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.small_batches import UnbiasedBatchNorm1d
from normbook.looks import Kind, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Ba et al. (2016), Fig. 6"
# Training examples on which the loss is measured and the statistics are recalibrated,
# unless the settings say how many.
PROBE = 10_000

_BATCH = ("batch_norm", "unbiased_batch_norm")
LAYERS = {
    "batch_norm": BatchNorm1d,
    "unbiased_batch_norm": UnbiasedBatchNorm1d,
    "layer_norm": LayerNorm,
}


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    x, y, x_test, y_test = split(lab.required(data), device)
    dtype = getattr(torch, settings["dtype"])
    x, x_test = (images.flatten(1).to(dtype) for images in (x, x_test))
    held_out = slice(len(x) - settings.get("validated", 0), len(x))
    x_validation, y_validation = x[held_out], y[held_out]
    x, y = x[: settings["examples"]], y[: settings["examples"]]
    norm = LAYERS.get(settings["norm"])
    model = build(
        generator=lab.generator(seed, "weights"),
        norm=norm,
        depth=2,
        width=settings["width"],
        gain=2**0.5,
        features=x.shape[1],
    )
    if norm is not None and settings["is_on_scores"]:
        model.append(norm(10))
    model = model.to(device, dtype)
    rate, size = settings["learning_rate"], settings["batch_size"]
    probed = settings.get("probed", PROBE)
    x_probe, y_probe = x[:probed], y[:probed]

    def test(run: lab.Run) -> lab.Values:
        train_loss, train_accuracy = evaluate(run.model, x_probe, y_probe)
        loss, accuracy = evaluate(run.model, x_test, y_test)
        return {
            "train_loss": train_loss,
            "train_error": 1 - train_accuracy,
            "loss": loss,
            "error": 1 - accuracy,
        }

    def validate(run: lab.Run) -> lab.Values:
        loss, accuracy = evaluate(run.model, x_validation, y_validation)
        return {"loss": loss, "error": 1 - accuracy}

    every = settings["measure_every"]
    measurements = {"test": lab.Measurement(every, test)}
    if settings["norm"] in _BATCH:
        again = partial(measures.recalibrated, test=test, x=x_probe, size=size)
        measurements["recalibrated"] = lab.Measurement(every, again)
    if "validated" in settings:
        measurements["validation"] = lab.Measurement(every, validate)
    return lab.Run(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=rate, fused=True),
        objective=lab.classification,
        batches=lab.Batches(x, y, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=settings.get("average_over", every),
    )


LOOKS = looks("none", "layer_norm", "batch_norm", "unbiased_batch_norm")
# The two readings of "batch norm on all layers"; what has none stands in both.
READINGS = {
    False: "batch norm on the hidden layers",
    True: "batch norm on the scores, too",
}
# Which published curve a variant is compared with.
PUBLISHED = {norm: norm for norm in LOOKS} | {"unbiased_batch_norm": "batch_norm"}


class Distance(NamedTuple):
    """How far a curve of a record lies from the published one, at T points."""

    epochs: NDArray[np.int64]  # of the published points that it reaches; the first is 0
    published: NDArray[np.float64]
    ours: NDArray[np.float64]  # median of the seeds


def epochs(record: Record, variant: str) -> NDArray[np.int64]:
    """Number the measurements as the paper does, shape (T,): 0 after the first epoch.

    The first number is -1, before any training.
    """
    every = record.settings["measure_every"]
    return np.asarray(record.steps("test", variant) // every - 1)


def distance(
    record: Record, variant: str, quantity: Literal["train_loss", "error"]
) -> Distance:
    """Compare a curve with the published one of its method and batch size.

    The quantity is the negative log likelihood on the training set (nats), or the error
    on the test set. The published curves are of MNIST: RecordError for other data.
    """
    if record.scale == "live":
        raise RecordError(
            "a record must be of MNIST to be compared with the published curves, got "
            'one of the scale "live"; take the record of a larger scale.'
        )
    there = _published(record, variant, quantity)
    numbers = epochs(record, variant)
    ours = np.median(record.values(variant, "test", quantity), axis=0)
    reached = [i for i, epoch in enumerate(there.x) if epoch in numbers]
    chosen = [int(np.flatnonzero(numbers == there.x[i])[0]) for i in reached]
    return Distance(
        epochs=numbers[chosen],
        published=np.array([there.y[i] for i in reached]),
        ours=ours[chosen],
    )


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``batch_128`` or ``batch_4``, for each reading of the paper.

    "train_loss": negative log likelihood on the training set. "error": on the test set.
    Both in evaluation mode against epochs, with the published points that the record
    reaches, unless the scale is "live".
    """
    from normbook.figures import curve_grid, points

    record.require(BATCH_128.name, BATCH_4.name)
    drawn = {}
    for quantity, ylabel in (
        ("train_loss", "training loss (nats)"),
        ("error", "test error"),
    ):
        columns: dict[str, dict[str, Any]] = {}
        for is_on_scores, reading in READINGS.items():
            lines = columns.setdefault(f"epoch\n\n{reading}", {})
            for variant, own in record.settings["variants"].items():
                if own["norm"] not in _BATCH or own["is_on_scores"] == is_on_scores:
                    kind, label = LOOKS[own["norm"]]
                    runs = record.values(variant, "test", quantity)[:, 1:]
                    lines[label] = (kind, epochs(record, variant)[1:], runs)
        fig, ((*axes,),) = curve_grid(
            {ylabel: columns}, yscale="log" if quantity == "train_loss" else "linear"
        )
        if record.scale != "live":
            for ax in axes:
                for variant in ("none", "layer_norm", "batch_norm"):
                    there = _published(record, variant, quantity)
                    shown = sum(x <= epochs(record, variant)[-1] for x in there.x)
                    kind = LOOKS[variant][0]
                    points(ax, there.x[:shown], there.y[:shown], kind=kind)
        drawn[quantity] = fig
    return drawn


def _published(record: Record, variant: str, quantity: str) -> Points:
    curves = BATCH_SIZE_LOSS if quantity == "train_loss" else BATCH_SIZE_ERROR
    norm = record.settings["variants"][variant]["norm"]
    return curves[record.settings["batch_size"]][PUBLISHED[norm]]


METHODS: dict[str, tuple[Kind, str]] = {
    "none": LOOKS["none"],
    "layer_norm": LOOKS["layer_norm"],
    "batch_norm": LOOKS["batch_norm"],
    "batch_norm_on_scores": ("reference", "batch norm, scores too"),
}
ENDS: dict[str, tuple[str, str]] = {
    "training loss (nats)": ("test", "train_loss"),
    "training error": ("test", "train_error"),
    "test error": ("test", "error"),
    "test error, recalibrated": ("recalibrated", "error"),
}


def at_end(
    record: Record, method: str, measurement: str = "test", quantity: str = "error"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what was measured at the end of the runs of ``batch_size_tuned``.

    These are of one of the ``METHODS``, at its best learning rates. First come the
    batch sizes, growing, shape (B,), then what was measured, (S, B), one row for each
    seed. What has no batch norm has no statistics to recalibrate: there it is the test.
    """
    record.require(TUNED.name)
    names = _by_size(record, method)
    if not method.startswith(_BATCH) and measurement == "recalibrated":
        measurement = "test"
    ends = [record.values(v, measurement, quantity)[:, -1] for v in names.values()]
    return np.array(list(names), dtype=np.float64), np.stack(ends, axis=1)


def _by_size(record: Record, method: str) -> dict[int, str]:
    """Names of the variants of a method, by their batch size, growing."""
    variants = record.settings["variants"]
    names = {
        own["batch_size"]: variant
        for variant, own in variants.items()
        if variant.partition(" ")[0] == method
    }
    return dict(sorted(names.items()))


def tuned_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``batch_size_tuned``.

    "ends" against the batch size, each method at its best learning rate: loss and error
    on training images, and the error on the test set, with running statistics and with
    those of training images. "grid": the error on validation images against the
    learning rate for each batch size, with a dot at the best.
    """
    from normbook.figures import band, legend_above, panels, tick

    record.require(TUNED.name)
    fig, axes = panels(len(ENDS), rows=2)
    for ax, (ylabel, ends) in zip(axes, ENDS.items(), strict=True):
        for method, (kind, label) in METHODS.items():
            sizes, runs = at_end(record, method, *ends)
            band(ax, sizes, runs, kind=kind, label=label)
        ax.set(xlabel="batch size", ylabel=ylabel, xscale="log")
        tick(ax, sizes)
    marks = (0.05, 0.1, 0.2, 0.5)  # of the loss, which spans a decade
    axes[0].set(yscale="log")
    axes[0].set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes[0].minorticks_off()
    legend_above(fig, axes[0])
    grids: dict[str, tuple[str, measures.Looks]] = {}
    for size in sorted(
        {own["batch_size"] for own in record.settings["variants"].values()}
    ):
        looks = {_by_size(record, m)[size]: look for m, look in METHODS.items()}
        grids[f"learning rate\n\nbatches of {size}"] = ("learning_rate", looks)
    grid = measures.draw_grid(record, grids, ylabel="validation error")
    for ax in grid.axes:
        ax.minorticks_off()
    return {"ends": fig, "grid": grid}


VARIANTS: dict[str, dict[str, Any]] = {
    norm + "_on_scores" * is_on_scores: {"norm": norm, "is_on_scores": is_on_scores}
    for norm in LOOKS
    for is_on_scores in ((False, True) if norm in _BATCH else (False,))
}
COMMON: dict[str, Any] = {
    "dtype": "float32", "learning_rate": 0.001, "width": 1000, "examples": 55_000,
    "variants": VARIANTS,
}  # fmt: skip
LIVE: dict[str, Any] = {**COMMON, "dtype": "float64", "width": 100, "examples": 1280}
# The figure shows 65 epochs. A pass over 55 000 examples is 429 batches of 128 and a
# rest, which is left out, or 13 750 of 4.
EPOCHS = 65


def _settings(
    common: lab.Settings, size: int, epochs: int, **others: Any
) -> lab.Settings:
    every = common["examples"] // size
    sizes = {"batch_size": size, "measure_every": every, "steps": epochs * every}
    return {**common, **sizes, **others}


def _digits(size: int, epochs: int, seeds: int = 3, **others: Any) -> lab.Scale:
    settings = _settings(LIVE, size, epochs, **others)
    about = "embedded digits, a tenth of the width"
    return lab.Scale(settings, tuple(range(seeds)), "digits", about)


def _mnist(size: int, epochs: int, about: str, **others: Any) -> lab.Scale:
    return lab.Scale(_settings(COMMON, size, epochs, **others), (0,), "mnist", about)


BATCH_128 = lab.Experiment(
    name="batch_128",
    title="A net of 784-1000-1000-10 with three normalizations, batches of 128",
    source=SOURCE,
    scales={
        "live": _digits(128, 20),
        "paper": _mnist(128, EPOCHS, "MNIST as in the paper"),
    },
    begin=begin,
    figures=figures,
)
# With 0.001, the rate that repeats the curves at a batch of 128, the first epoch at a
# batch of 4 without normalization ends at 1.4 times the published loss.
LOW_RATE: dict[str, Any] = {"learning_rate": 0.0003}
GPU = "MNIST as in the paper (GPU, or a day on a CPU)"
BATCH_4 = lab.Experiment(
    name="batch_4",
    title="The same net with batches of 4",
    source=SOURCE,
    scales={
        "live": _digits(4, 4, **LOW_RATE),
        "cpu": _mnist(4, 6, "MNIST as in the paper, 6 of its 65 epochs", **LOW_RATE),
        "paper": _mnist(4, EPOCHS, GPU, **LOW_RATE),
    },
    begin=begin,
    figures=figures,
)


# Each at its own best rate, at each batch size. These rates are tried first with
# batches of 128; with others they go with the square root.
_FIRST = (0.0005, 0.001, 0.002)


def _tuned(
    common: lab.Settings, sizes: Sequence[int], steps_of_128: int, averages: int
) -> dict[str, Any]:
    variants = {}
    for method in METHODS:
        for size in sizes:
            steps = steps_of_128 * 128 // size
            rates = [float(f"{r * (size / 128) ** 0.5:.3g}") for r in _FIRST]
            rate = {"values": rates, "factor": 2.0, "limits": [1e-7, 1.0]}
            variants[f"{method} batch={size}"] = VARIANTS[method] | {
                "batch_size": size,
                "steps": steps,
                "measure_every": steps,
                "average_over": steps // averages,
                "tuning": {
                    "seeds": [100],
                    "criterion": {"measurement": "validation", "quantity": "error"},
                    "grid": {"learning_rate": rate},
                },
            }
    fixed = {k: v for k, v in common.items() if k != "learning_rate"}
    return {**fixed, "variants": variants}


TUNED = lab.Experiment(
    name="batch_size_tuned",
    title="The same net over batch sizes, each method at its own best rate",
    source=SOURCE,
    scales={
        "live": lab.Scale(
            {**_tuned(LIVE, (64, 8), 20, 4), "validated": 150, "probed": 200},
            (0, 1),
            "digits",
            "embedded digits, a tenth of the width",
        ),
        "cpu": lab.Scale(
            {
                **_tuned(COMMON, (128, 32, 16, 8, 4), 390, 10),
                "examples": 50_000,
                "validated": 5000,
                "probed": 5000,
            },
            (0, 1, 2),
            "mnist",
            "MNIST, one pass",
        ),
    },
    begin=begin,
    figures=tuned_figures,
)
