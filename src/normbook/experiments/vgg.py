"""A VGG-like network with and without batch norm (Santurkar et al. 2018).

Figures 1, 2 and 4 of the paper: training with the rates 0.1 and 0.5, batch norm with
noise after it, and the loss and its gradient along the gradient.

The paper does not give the layers of its network. Ours is a stack of 3 x 3
convolutions with max pooling between, and one hidden fully connected layer.

In ``vgg_tuned`` each network has its own best learning rate
(:mod:`normbook.lab.tuning`): that with the least error at the end on validation images,
the last training images, which are not trained on. There batch norm has statistics that
are recalibrated without the noise, so that the choice does not depend on how the noisy
network is tested. The test is made in three ways: as usual, without noise and with
running statistics, which were gathered with it; "recalibrated"; and "as_trained", with
the noise and the statistics of each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.diagnostics.activations import layer_statistics
from normbook.diagnostics.internal_covariate_shift import input_shift_of_update
from normbook.diagnostics.noise import DistributionNoise
from normbook.diagnostics.undisturbed import undisturbed
from normbook.experiments import measures
from normbook.experiments.published import VGG_TRAIN_ACCURACY
from normbook.lab import experiment as lab
from normbook.lab.digits_mlp import evaluate, split
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.looks import Kind, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.figures import Line

POOL = "pool"
# Units of a layer whose input is followed.
UNITS = 5
# Examples that go through the network at once in a test: a matter of memory only, of
# which more would be taken and given back for each layer.
CHUNK = 500
# Training images on which loss and accuracy are measured, and statistics recalibrated,
# where the network is tuned.
PROBE = 5000


def build(
    layers: Sequence[int | str],
    hidden: int,
    *,
    images: tuple[int, int, int],
    norm: str,
    weights: torch.Generator,
    noise: torch.Generator,
    classes: int = 10,
) -> nn.Sequential:
    """Stack convolutions, pooling, one hidden layer and a linear read-out (float32).

    ``layers`` are the channels of each 3 x 3 convolution of ``images`` (C, H, W), and
    "pool" where the sides are halved; ``norm``, which stands before each ReLU, is
    "none", "batch_norm" or "noisy_batch_norm". The ``weights`` are drawn on the CPU,
    uniform after Glorot, biases are 0.
    """

    def normalization(layer: nn.Module) -> list[nn.Module]:
        if norm == "none":
            return []
        return [layer, DistributionNoise(generator=noise)][: 1 + (norm != "batch_norm")]

    channels, height, width = images
    modules: list[nn.Module] = []
    for size in layers:
        if isinstance(size, str):
            modules.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
            continue
        modules.append(nn.Conv2d(channels, size, 3, padding=1))
        modules += [*normalization(BatchNorm2d(size)), nn.ReLU()]
        channels = size
    modules += [nn.Flatten(), nn.Linear(channels * height * width, hidden)]
    modules += [*normalization(BatchNorm1d(hidden)), nn.ReLU()]
    modules.append(nn.Linear(hidden, classes))
    for module in modules:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=weights)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return nn.Sequential(*modules)


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    x, y, x_test, y_test = split(lab.required(data), device)
    x, x_test = images(x), images(x_test)
    count = len(y) - settings.get("validated", 0)
    (x, x_held_out), (y, y_held_out) = ((z[:count], z[count:]) for z in (x, y))
    noise_on = device if settings.get("noise_on") == "device" else "cpu"
    noise = lab.generator(seed, "noise", noise_on)
    model = build(
        settings["layers"],
        settings["hidden"],
        images=(x.shape[1], x.shape[2], x.shape[3]),
        norm=settings["norm"],
        weights=lab.generator(seed, "weights"),
        noise=noise,
    )
    # The order of the numbers in memory that convolutions are fastest with.
    model = model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate, size = settings["learning_rate"], settings["batch_size"]
    relus = [name for name, m in model.named_modules() if isinstance(m, nn.ReLU)]
    followed = [relus[i] for i in settings.get("followed", [])]

    def test(run: lab.Run) -> lab.Values:
        values = dict(tested(run.model, x_test, y_test))
        if len(y_held_out):
            trained = tested(run.model, x[:PROBE], y[:PROBE])
            values |= {f"train_{name}": value for name, value in trained.items()}
        return values

    def validate(run: lab.Run) -> lab.Values:
        means = tested(run.model, x_held_out, y_held_out)
        return {"loss": means["loss"], "error": 1 - means["accuracy"]}

    def as_trained(run: lab.Run) -> lab.Values:
        return tested_as_trained(run.model, x_test, y_test, size)

    def inputs(run: lab.Run) -> lab.Values:
        layers = layer_statistics(run.model, run.loss, followed)
        return {
            "mean": [layer.inputs.mean[:UNITS].tolist() for layer in layers],
            "std": [layer.inputs.std[:UNITS].tolist() for layer in layers],
        }

    def shift(run: lab.Run) -> lab.Values:
        moved = input_shift_of_update(run.model, run.loss, rate, relus)
        inputs = [_mean(moved[name]) for name in relus]
        return {"inputs": inputs, **measures.shift(run, rate)}

    every = settings["test_every"]
    measurements = {
        "test": lab.Measurement(every, test),
        "shift": lab.Measurement(settings["shift_every"], shift),
    }
    if "landscape_every" in settings:
        often = settings["landscape_every"]
        landscape = partial(measures.landscape, rate=rate)
        measurements["inputs"] = lab.Measurement(often, inputs)
        measurements["landscape"] = lab.Measurement(often, landscape)
    if len(y_held_out):
        if settings["norm"] != "none":
            again = partial(measures.recalibrated, x=x[:PROBE], size=CHUNK)
            measurements["recalibrated"] = lab.Measurement(
                every, partial(again, test=test)
            )
            measurements["as_trained"] = lab.Measurement(every, as_trained)
            validate = partial(again, test=validate)
        measurements["validation"] = lab.Measurement(every, validate)
    return lab.Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=lab.classification,
        batches=lab.Batches(x, y, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=settings["average_over"],
        generators={"noise": noise},
    )


def _mean(values: NDArray[np.float64]) -> float:
    """Mean over the units whose input is not constant; NaN if there is none."""
    moving = values[~np.isnan(values)]
    return float(moving.mean()) if moving.size else float("nan")


def tested(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return loss (nats) and accuracy in evaluation mode, a chunk at a time."""
    loss = accuracy = 0.0
    for k in range(0, len(x), CHUNK):
        part = x[k : k + CHUNK]
        means = evaluate(model, part, y[k : k + CHUNK])
        loss += means[0] * len(part) / len(x)
        accuracy += means[1] * len(part) / len(x)
    return {"loss": loss, "accuracy": accuracy}


def tested_as_trained(
    model: nn.Module, x: Tensor, y: Tensor, size: int
) -> dict[str, float]:
    """Return loss (nats) and accuracy in training mode, in whole batches of a size.

    Batch norm has the statistics of the batch, and noise is on. What is left over is
    not tested; the model remains as it was.
    """
    count = len(x) // size * size
    with undisturbed(model), torch.no_grad():
        model.train()
        scores = torch.cat([model(part) for part in torch.split(x[:count], size)])
        losses, wrong = measures.judge(scores, y[:count])
    return {"loss": losses.mean().item(), "accuracy": 1 - wrong.mean().item()}


def images(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images as (N, C, H, W); digits come as rows of 64."""
    if x.dim() == 2:
        x = x.reshape(-1, 8, 8)
    if x.dim() == 3:
        x = x[:, None]
    return x.to(dtype, memory_format=torch.channels_last)


LOOKS = looks("none", "batch_norm", "noisy_batch_norm")
# Digits of 8 x 8 pixels are another task than the published one.
COMPARABLE = ("cpu", "paper", "cifar10")
PUBLISHED = "published, CIFAR-10"
SHIFTS = ("moved inputs (σ)", "change / gradient", "cosine")


def figures(record: Record) -> dict[str, Figure]:
    r"""Draw a record of this experiment.

    "accuracy" in training, with published points unless the scale is "live"; the three
    measures along the gradient, "loss_range", "gradient_change" and "beta" (with
    :math:`1 / \eta_{\min}`); "shift", layer by layer, and "inputs" of the followed
    units, at the lowest learning rate.
    """
    from normbook.figures import curve_grid, points

    record.require(EXPERIMENT.name)
    by_rate: dict[float, dict[str, tuple[Kind, str]]] = {}
    for variant, settings in record.settings["variants"].items():
        look = LOOKS[settings["norm"]]
        by_rate.setdefault(settings["learning_rate"], {})[variant] = look
    columns = {f"learning rate {rate:g}": shown for rate, shown in by_rate.items()}
    slow = by_rate[min(by_rate)]

    def width(variant: str) -> NDArray[np.float64]:
        highest = record.values(variant, "landscape", "highest")
        return highest - record.values(variant, "landscape", "lowest")

    def along(ylabel: str, curve: str | measures.Curve) -> Figure:
        row = measures.row(record, columns, "landscape", curve)
        return curve_grid({ylabel: row}, yscale="log")[0]

    accuracy = measures.row(record, columns, "training", "accuracy")
    drawn = {
        "accuracy": curve_grid({"training accuracy": accuracy})[0],
        "loss_range": along("range of the loss (nats)", width),
        "gradient_change": along("change of the gradient", "most_change"),
        "beta": along("effective smoothness", "beta"),
        "shift": _draw_shift(record, slow),
        "inputs": curve_grid(_inputs(record, slow))[0],
    }
    if record.scale in COMPARABLE:
        for ax, shown in zip(drawn["accuracy"].axes, by_rate.values(), strict=True):
            for variant, (kind, _) in shown.items():
                there = VGG_TRAIN_ACCURACY[variant]
                points(ax, there.x, there.y, kind=kind, label=PUBLISHED)
        first = drawn["accuracy"].axes[0]
        first.legend(handles=first.lines[-1:])
    return drawn


def _draw_shift(record: Record, shown: measures.Looks) -> Figure:
    """Medians over training, step 0 left out; the first layer has nothing below it."""
    from normbook.figures import band, legend_above, panels

    fig, axes = panels(3)
    fig.set_size_inches(8.4, fig.get_size_inches()[1])
    for variant, (kind, label) in shown.items():
        inputs, l2, cosine, norm = (
            record.values(variant, "shift", name)  # (S, T, layers)
            for name in ("inputs", "l2", "cosine", "gradient_norm")
        )
        shifts = (inputs, l2 / np.where(norm > 0, norm, np.nan), cosine)
        for ax, shift in zip(axes, shifts, strict=True):
            layers = np.arange(2, shift.shape[2] + 1)
            middle = np.nanmedian(shift[:, 1:, 1:], axis=1)
            band(ax, layers, middle, kind=kind, label=label)
            ax.set(xlabel="layer", xticks=layers[::2])
    for ax, name in zip(axes, SHIFTS, strict=True):
        ax.set(ylabel=name)
    legend_above(fig, axes[0])
    return fig


def _inputs(
    record: Record, shown: measures.Looks
) -> dict[str, dict[str, dict[str, Line]]]:
    """The units of the deepest layer that was followed, of the first seed."""
    rows: dict[str, dict[str, dict[str, Line]]] = {}
    for quantity in ("mean", "std"):
        row = rows.setdefault(f"{quantity} of an input", {})
        for variant, (kind, label) in shown.items():
            units = record.values(variant, "inputs", quantity)[0, :, -1].T
            steps = record.steps("inputs", variant)
            row[f"training steps\n\n{label}"] = {
                f"_{k}": (kind, steps, unit[None]) for k, unit in enumerate(units)
            }
    return rows


# What is done with the noise, and with statistics, in a test.
WAYS: dict[str, tuple[Kind, str]] = {
    "test": ("none", "as usual"),
    "recalibrated": ("batch", "recalibrated"),
    "as_trained": ("other", "as in training"),
}


def tuned_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``vgg_tuned``.

    "grid": the error at the end, on validation images, against the learning rate.
    "error" on training images and on the test set. "ways": the error on the test set as
    usual, with recalibrated statistics, and as in training. "shift", layer by layer, as
    of ``vgg``.
    """
    record.require(TUNED.name)
    return {
        "grid": measures.draw_grid(
            record,
            {"learning rate": ("learning_rate", LOOKS)},
            ylabel="validation error",
            yscale="log",
        ),
        "error": measures.draw_errors(record, LOOKS),
        "ways": _draw_ways(record),
        "shift": _draw_shift(record, LOOKS),
    }


def _draw_ways(record: Record) -> Figure:
    from normbook.figures import curve_grid

    def line(variant: str, way: str, kind: Kind) -> Line:
        errors = 1 - record.values(variant, way, "accuracy")
        return kind, record.steps(way, variant), errors

    row = {
        f"training steps\n\n{LOOKS[variant][1]}": {
            label: line(variant, way, kind) for way, (kind, label) in WAYS.items()
        }
        for variant in ("batch_norm", "noisy_batch_norm")
    }
    return curve_grid({"test error": row}, yscale="log")[0]


COMMON: dict[str, Any] = {
    "dtype": "float32", "batch_size": 128, "variants": {
        "none": {"norm": "none", "learning_rate": 0.1},
        "batch_norm": {"norm": "batch_norm", "learning_rate": 0.1},
        "noisy_batch_norm": {"norm": "noisy_batch_norm", "learning_rate": 0.1},
        "none_fast": {"norm": "none", "learning_rate": 0.5},
        "batch_norm_fast": {"norm": "batch_norm", "learning_rate": 0.5},
    },
}  # fmt: skip
LONG: dict[str, Any] = {
    **COMMON, "average_over": 50, "landscape_every": 50, "shift_every": 250,
    "test_every": 500, "followed": [2, 8],
}  # fmt: skip
# The widths of VGG, with pooling as far as images of 28 x 28 allow it. They need fifty
# million random numbers a step for the noise, which a CPU would draw for a quarter of a
# second: they are drawn where the network is.
WIDE: dict[str, Any] = {
    "noise_on": "device", "hidden": 512,
    "layers": [64, 64, POOL, 128, 128, POOL, 256, 256, 256, POOL, 512, 512, 512],
}  # fmt: skip
PAPER: dict[str, Any] = {**LONG, **WIDE, "steps": 15_000}
EXPERIMENT = lab.Experiment(
    name="vgg",
    title="A VGG-like network: training, noise, and the loss along the gradient",
    source="Santurkar et al. (2018), Figs. 1, 2 and 4",
    scales={
        "live": lab.Scale({
            **COMMON, "steps": 150, "followed": [2, 6], "average_over": 10,
            "landscape_every": 10, "shift_every": 50, "test_every": 50, "hidden": 32,
            "layers": [8, 8, POOL, 16, 16, 16, POOL, 16, 16, 16],
        }, (0, 1), "digits", "embedded digits, a network of 10 layers"),
        "cpu": lab.Scale({
            **LONG, "steps": 5000, "hidden": 64,
            "layers": [8, 8, POOL, 16, 16, POOL, 32, 32, 32, POOL, 32, 32, 32],
        }, (0, 1, 2), "fashion-mnist",
            "Fashion-MNIST, an eighth of the widths of VGG, a third of the steps"),
        "paper": lab.Scale(PAPER, (0, 1, 2), "fashion-mnist",
            "Fashion-MNIST, the widths of VGG and the steps of the paper (GPU)"),
        "cifar10": lab.Scale(PAPER, (0, 1, 2), "cifar-10",
            "CIFAR-10 as in the paper (GPU, 170 MB to download)"),
    },
    begin=begin,
    figures=figures,
    is_steady=False,
)  # fmt: skip

TUNED_COMMON: dict[str, Any] = {
    "dtype": "float32", "batch_size": 128,
    "variants": {norm: {"norm": norm} for norm in LOOKS},
}  # fmt: skip
CRITERION = {"measurement": "validation", "quantity": "error"}
TUNED_LONG: dict[str, Any] = {
    **TUNED_COMMON, "steps": 4000, "average_over": 50, "shift_every": 500,
    "test_every": 1000, "validated": 5000,
}  # fmt: skip


def _tuning(*rates: float) -> dict[str, Any]:
    """The rates to begin with; more follow until the best lies between others."""
    rate = {"values": list(rates), "factor": 2.0, "limits": [1e-4, 10.0]}
    return {"seeds": [100], "criterion": CRITERION, "grid": {"learning_rate": rate}}


TUNED = lab.Experiment(
    name="vgg_tuned",
    title="The VGG-like networks, each with its own best learning rate",
    source="Santurkar et al. (2018), Figs. 1 and 2",
    scales={
        "live": lab.Scale({
            **TUNED_COMMON, "steps": 60, "average_over": 10, "shift_every": 30,
            "test_every": 30, "hidden": 32, "validated": 200,
            "layers": EXPERIMENT.scales["live"].settings["layers"],
            "tuning": {
                "seeds": [100], "criterion": CRITERION,
                "grid": {"learning_rate": {"values": [0.05, 0.2]}},
            },
        }, (0, 1), "digits", "embedded digits, a network of 10 layers"),
        "cpu": lab.Scale({
            **TUNED_LONG, "hidden": 64, "tuning": _tuning(0.1, 0.2),
            "layers": EXPERIMENT.scales["cpu"].settings["layers"],
        }, (0, 1, 2), "fashion-mnist",
            "Fashion-MNIST, an eighth of the widths of VGG, 9 passes, constant rates"),
        "wide": lab.Scale({
            **TUNED_LONG, **WIDE, "tuning": _tuning(0.05, 0.1, 0.2),
        }, (0, 1, 2), "fashion-mnist",
            "Fashion-MNIST, the widths of VGG, 9 passes, constant rates (GPU)"),
    },
    begin=begin,
    figures=tuned_figures,
    is_steady=False,
)  # fmt: skip
