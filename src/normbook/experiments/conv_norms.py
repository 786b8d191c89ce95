r"""A small convolutional network: each normalization, with small and large batches.

Batch norm takes its statistics from the batch, the others from one image. Wu and He
compare them on ImageNet with ResNet-50; here it is a network of four convolutions on
small images, trained for as many images whatever the batch size. Each normalization
stands before each ReLU, with a gain and a bias for every channel. "Layer norm" is said
of two things: of all channels and places of an image together, which is group norm with
one group, and of the channels of each place by themselves.

Instance norm sets mean and variance of each channel of each image to fixed values.
Were the mean over all places taken right after it, every image would give the bias:
nothing would be left. The ReLU between them lets the *shape* of the distribution of a
channel through, but not its mean and not its contrast.

The learning rate rises during a ninth of the run and then falls to 0; without the rise,
rounding errors in the first steps of a large batch grow so fast that another machine
does not repeat them.

In ``CONV_NORMS_TUNED`` every normalization has its own best rate at every batch size
(:mod:`normbook.lab.tuning`): that with the least loss at the end on the last 5000
training images, which are not trained on. All see 50 688 different images once. What
this leaves open: one small network without skips, one pass, one seed for the tuning,
one schedule.

``CONV_NORMS_BORDER`` tests the reason that Ba et al. (2016, section 6.7) give for batch
norm being ahead: "The large number of the hidden units whose receptive fields lie near
the boundary of the image are rarely turned on and thus have very different statistics
from the rest of the hidden units within the same layer." ``by_distance`` measures
whether it is so, and two changes take the reason away. Cropped and reflected images
have no empty margin (of all pixels at the rim of Fashion-MNIST 16 % are not black, of
those at the rim of the middle 20 x 20 it is 52 %), and their convolutions do not see
zeros beyond the rim, but the image once more. And the mean and the variance of layer
norm are those of the places "inside" alone, without the outermost; beside it, of as
many that are "drawn". If the border kept layer norm behind, these would bring it nearer
to batch norm, each at its own best rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.diagnostics.undisturbed import undisturbed
from normbook.experiments import measures
from normbook.experiments.published import GROUP_NORM_ERROR
from normbook.experiments.vgg import images, tested
from normbook.lab import experiment as lab
from normbook.lab.digits_mlp import split
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm2d
from normbook.layers.group_norm import GroupNorm, InstanceNorm2d
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.weight_norm import WeightStandardization
from normbook.looks import STYLES, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = "Wu and He (2018), Tables 1 and 2"
# Training images whose statistics take the place of the running ones, in batches.
PROBE, PROBE_BATCH = 10_000, 1000
# Training images on which loss and error are measured, beside the test.
TRAINED = 5000
# A unit is rarely on if fewer images than this share turn it on.
RARELY = 0.05


class ChannelLayerNorm(LayerNorm):
    """Layer norm over the channels of each place of an image by itself."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize a tensor (N, C, H, W)."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


def distances(height: int, width: int) -> Tensor:
    """Return how far each place of a map is from its border, (H, W): 0 is there."""
    rows, columns = (
        torch.minimum(torch.arange(size), size - 1 - torch.arange(size))
        for size in (height, width)
    )
    return torch.minimum(rows[:, None], columns)


Where = Literal["inside", "drawn"]


@cache
def places(where: Where, height: int, width: int) -> Tensor:
    """Return the numbers, row by row, of places of a map: without its border, or drawn.

    As many are drawn as there are without the border, once for all maps of a size.
    """
    inside = torch.nonzero(distances(height, width).flatten())[:, 0]
    if where == "inside":
        return inside
    order = torch.randperm(height * width, generator=lab.generator(0, "places"))
    return order[: len(inside)]


class LayerNormOfPlaces(GroupNorm):
    """Layer norm over an image, with mean and variance of some of its :func:`places`.

    All places are normalized.
    """

    def __init__(self, channels: int, where: Where) -> None:
        super().__init__(1, channels)
        self.where = where

    def forward(self, input: Tensor) -> Tensor:
        """Normalize a tensor (N, C, H, W)."""
        chosen = places(self.where, *input.shape[2:]).to(input.device)
        var, mean = torch.var_mean(
            input.flatten(2)[..., chosen], (1, 2), correction=0, keepdim=True
        )
        x_hat = (input - mean[..., None]) * (var[..., None] + self.eps).rsqrt()
        return self.weight[:, None, None] * x_hat + self.bias[:, None, None]


def build(
    layers: Sequence[tuple[int, int]],
    *,
    norm: str,
    groups: int,
    generator: torch.Generator,
    classes: int = 10,
    where: Where | None = None,
    padding: Literal["zeros", "reflect"] = "zeros",
) -> nn.Sequential:
    """Stack convolutions, the mean over all places, and a linear read-out (float32).

    ``layers`` are channels and stride of each 3 x 3 convolution of images (N, 1, H, W).
    Before each ReLU stands the norm, a key of ``LOOKS``, else ValueError; groups are of
    group norm. The statistics of layer norm are of the places ``where``, by default of
    all. Weights, from a CPU generator, are normal after He; biases begin at 0, gains
    at 1.
    """
    makers: dict[str, Callable[[int], list[nn.Module]]] = {
        "none": lambda size: [],
        "batch_norm": lambda size: [BatchNorm2d(size)],
        "layer_norm": lambda size: [
            LayerNormOfPlaces(size, where) if where else GroupNorm(1, size)
        ],
        "layer_norm_per_place": lambda size: [ChannelLayerNorm(size)],
        "instance_norm": lambda size: [InstanceNorm2d(size, affine=True)],
        "group_norm": lambda size: [GroupNorm(groups, size)],
        "group_norm_ws": lambda size: [GroupNorm(groups, size)],
    }
    if norm not in makers:
        raise ValueError(f"norm must be one of {', '.join(makers)}, got {norm!r}.")
    modules: list[nn.Module] = []
    channels = 1
    for size, stride in layers:
        # The bias of the normalization does what that of the convolution would do.
        has_bias = norm == "none"
        convolution = nn.Conv2d(
            channels, size, 3, stride, padding=1, bias=has_bias, padding_mode=padding
        )
        modules += [convolution, *makers[norm](size), nn.ReLU()]
        channels = size
    modules += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    for module in modules:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(
                module.weight, nonlinearity="relu", generator=generator
            )
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Conv2d) and norm == "group_norm_ws":
            nn.utils.parametrize.register_parametrization(
                module, "weight", WeightStandardization()
            )
    return nn.Sequential(*modules)


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    data = lab.required(data)
    dtype = getattr(torch, settings["dtype"])
    standardized: Standardized = Standardized.of(
        data, device, dtype, settings["validated"], settings.get("crop", 0)
    )
    x, y = standardized.train
    model = build(
        settings["layers"],
        norm=settings["norm"],
        groups=settings["groups"],
        generator=lab.generator(seed, "weights"),
        where=settings.get("where"),
        padding=settings.get("padding", "zeros"),
    ).to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate, size = settings["learning_rate"], settings["batch_size"]
    steps, warm_up = settings["steps"], settings["warm_up"]

    measurements = judged(standardized, settings["measure_every"])
    if settings["norm"] == "batch_norm":
        recalibrated = partial(
            measures.recalibrated,
            test=measurements["test"].measure,
            x=x[:PROBE],
            size=PROBE_BATCH,
        )
        measurements["recalibrated"] = lab.Measurement(steps, recalibrated)
    if "probed" in settings:
        seen = standardized.validation[0][: settings["probed"]]

        def units(run: lab.Run) -> lab.Values:
            return by_distance(run.model, seen)

        measurements["units"] = lab.Measurement(steps, units)
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)
    return lab.Run(
        model=model,
        optimizer=sgd,
        objective=lab.classification,
        batches=lab.Batches(x, y, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=settings["average_over"],
        schedule=rising_and_falling(rate, steps, warm_up),
        shared=standardized,
    )


def judged(images: Standardized, every: int) -> dict[str, lab.Measurement]:
    """Measure loss and error, on test and on validation images, every few steps.

    With those of test images comes what the first ``TRAINED`` training images give.
    """
    x, y = (values[:TRAINED] for values in images.train)

    def at(run: lab.Run, x: Tensor, y: Tensor) -> lab.Values:
        means = tested(run.model, x, y)
        return {"loss": means["loss"], "error": 1 - means["accuracy"]}

    def test(run: lab.Run) -> lab.Values:
        trained = {f"train_{name}": value for name, value in at(run, x, y).items()}
        return {**at(run, *images.test), **trained}

    def validate(run: lab.Run) -> lab.Values:
        return at(run, *images.validation)

    return {
        "test": lab.Measurement(every, test),
        "validation": lab.Measurement(every, validate),
    }


def rising_and_falling(rate: float, steps: int, warm_up: int) -> Callable[[int], float]:
    """Return the learning rate of each step: up in a warm-up, then down to 0."""

    def schedule(step: int) -> float:
        falling = (steps - step) / (steps - warm_up)
        return float(rate * min((step + 1) / warm_up, falling))

    return schedule


@dataclass(frozen=True)
class Standardized:
    """Images and labels: over all pixels of training, mean 0, variance 1.

    The last ``validated`` training images are not trained on; ``crop`` pixels at each
    side are taken away.
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @staticmethod
    @lab.shared_by_runs
    def of(
        data: Dataset,
        device: torch.device,
        dtype: torch.dtype,
        validated: int,
        crop: int,
    ) -> Standardized:
        """Standardize a data set by its training images, once for all runs."""
        x, y, x_test, y_test = split(data, device)
        x, x_test = (_cropped(images(some, dtype), crop) for some in (x, x_test))
        count = len(x) - validated
        mean, std = x[:count].mean(), x[:count].std()
        x, x_test = (x - mean) / std, (x_test - mean) / std
        return Standardized(
            (x[:count], y[:count]), (x[count:], y[count:]), (x_test, y_test)
        )


def _cropped(x: Tensor, pixels: int) -> Tensor:
    height, width = x.shape[2:]
    return x[..., pixels : height - pixels, pixels : width - pixels]


@torch.no_grad()
def by_distance(model: nn.Module, x: Tensor) -> lab.Values:
    """Measure the units of each layer in groups, by their distance from the border.

    A unit is a channel at a place; a list has a value for each distance, from 0 on.
    "on_1" is the share of the images x that turn a unit of the first layer on (its ReLU
    gives more than 0), on the mean of the units; "rarely_1" the share of units that
    less than ``RARELY`` of the images turn on; "mean_1" and "std_1" are of the summed
    inputs, before the normalization, over units and images. Layer 0 are the pixels,
    which are on where they are not black. In training mode: all images are one batch.
    """
    values = _in_groups(0, x, x > x.min())
    layer = 0
    with undisturbed(model):
        model.train()
        for module in model.children():
            x = module(x)
            if isinstance(module, nn.Conv2d):
                layer, summed = layer + 1, x
            elif isinstance(module, nn.ReLU):
                values |= _in_groups(layer, summed, x > 0)
    return values


def _in_groups(layer: int, summed: Tensor, is_on: Tensor) -> lab.Values:
    groups = distances(*summed.shape[2:])
    on = is_on.double().mean(0)
    values: dict[str, list[float]] = {}
    for distance in range(int(groups.max()) + 1):
        here = groups == distance
        of_units = {
            "on": on[:, here].mean(),
            "rarely": (on[:, here] < RARELY).double().mean(),
            "mean": summed[..., here].double().mean(),
            "std": summed[..., here].double().std(correction=0),
        }
        for name, value in of_units.items():
            values.setdefault(f"{name}_{layer}", []).append(float(value))
    return dict(values)


LOOKS = looks(
    "none", "batch_norm", "layer_norm", "layer_norm_per_place", "instance_norm",
    "group_norm", "group_norm_ws",
)  # fmt: skip


def at_end(
    record: Record, norm: str, measurement: str = "test", quantity: str = "error"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what was measured at the end of all runs with one normalization.

    First come the batch sizes, growing, shape (B,), then what was measured, (S, B), one
    row for each seed.
    """
    names = dict(sorted(_by_size(record, norm).items()))
    ends = [record.values(v, measurement, quantity)[:, -1] for v in names.values()]
    return np.array(list(names), dtype=np.float64), np.stack(ends, axis=1)


def _by_size(record: Record, norm: str) -> dict[int, str]:
    """Names of the variants with one normalization, by their batch size."""
    return {
        own["batch_size"]: variant
        for variant, own in record.settings["variants"].items()
        if own["norm"] == norm
    }


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``conv_norms_tuned``, each normalization at its best rate.

    "error": at the end, on the test set, against the batch size; "grid_2" and so on,
    the loss on validation images against the learning rate with batches of 2, with dots
    at the best. These have a panel for each normalization, with batch norm in all.
    "published", unless the scale is "live": the errors above published ones.
    """
    record.require(CONV_NORMS_TUNED.name)
    sizes = sorted({v["batch_size"] for v in record.settings["variants"].values()})
    drawn = {
        "error": _errors(record),
        **{f"grid_{size}": _grid(record, size) for size in sizes},
    }
    if record.scale != "live":
        drawn["published"] = _published(record)
    return drawn


OTHERS = [norm for norm in LOOKS if norm != "batch_norm"]


def _errors(record: Record) -> Figure:
    from normbook.figures import panels, tick

    fig, axes = panels(len(OTHERS), rows=2, sharey=True)
    fig.set_size_inches(8.4, 6.2)
    for ax, norm in zip(axes, OTHERS, strict=True):
        sizes = _beside_batch_norm(ax, record, norm)
        ax.set(title=LOOKS[norm][1], xscale="log")
        tick(ax, sizes, digits=3)
    for ax in axes[3:]:
        ax.set(xlabel="batch size")
    for ax in axes[::3]:
        ax.set(ylabel="test error")
    _name_first(fig, axes[0])
    return fig


def _beside_batch_norm(ax: Axes, record: Record, norm: str) -> NDArray[np.float64]:
    """Draw the errors of batch norm and of another; return the batch sizes."""
    from normbook.figures import band

    for one in ("batch_norm", norm):
        sizes, errors = at_end(record, one)
        kind, label = LOOKS[one]
        band(ax, sizes, errors, kind=kind, label=label)
    return sizes


def _name_first(fig: Figure, ax: Axes) -> None:
    """Say what the line is that all panels share; the others are named below."""
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles[:1], labels[:1], loc="outside upper center")


def _grid(record: Record, batch_size: int) -> Figure:
    from normbook.figures import tick

    names = {norm: _by_size(record, norm)[batch_size] for norm in LOOKS}
    batch = {names["batch_norm"]: LOOKS["batch_norm"]}  # is named above all panels
    shown: dict[str, tuple[str, measures.Looks]] = {}
    for norm in OTHERS:
        kind, label = LOOKS[norm]
        both = {**batch, names[norm]: (kind, f"_{label}")}
        shown[f"learning rate\n\n{label}"] = ("learning_rate", both)
    fig = measures.draw_grid(record, shown, ylabel="validation loss (nats)", rows=2)
    tried = {rate for v in names.values() for rate in record.grid(v)["learning_rate"]}
    for ax in fig.axes:
        tick(ax, sorted(tried)[1:-1:2], digits=2)
    return fig


def _published(record: Record) -> Figure:
    """Our errors above, published ones below; the data sets differ."""
    from normbook.figures import panels, points, tick

    compared = [norm for norm in GROUP_NORM_ERROR if norm != "batch_norm"]
    count = len(compared)
    fig, axes = panels(2 * count, rows=2, sharex=True)
    fig.set_size_inches(8.4, 6.2)
    axes[0].set(ylabel="test error, ours")
    axes[count].set(ylabel="published error, ImageNet")
    for place, ax in enumerate(axes):
        if place % count:
            ax.sharey(axes[place - place % count])
    for above, below, norm in zip(axes[:count], axes[count:], compared, strict=True):
        sizes = _beside_batch_norm(above, record, norm)
        for one in ("batch_norm", norm):
            points(below, *GROUP_NORM_ERROR[one][1:], kind=LOOKS[one][0])
        below.set(xlabel=f"batch size\n\n{LOOKS[norm][1]}", xscale="log")
        tick(below, sizes, digits=3)
    _name_first(fig, axes[0])
    return fig


def border_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``conv_norms_border``.

    "error": at the end, on training images and on the test set, a row for each variant,
    a point for each seed.
    """
    from normbook.figures import panels

    record.require(CONV_NORMS_BORDER.name)
    shown = {"train_error": "training images", "error": "test set"}
    fig, axes = panels(len(shown), sharey=True)
    for ax, (quantity, title) in zip(axes, shown.items(), strict=True):
        for row, (variant, own) in enumerate(record.settings["variants"].items()):
            ends = record.values(variant, "test", quantity)[:, -1]
            colour = STYLES[LOOKS[own["norm"]][0]]["color"]
            rows = np.full(len(ends), row)
            ax.plot(ends, rows, "o", color=colour, fillstyle="none")
        ax.set(xlabel=f"error at the end\n\n{title}")
    axes[0].set_yticks(range(len(BORDER)), [v.replace("_", " ") for v in BORDER])
    axes[0].invert_yaxis()
    return {"error": fig}


LARGE = 128
# Averages of the training loss in a run: they are whole steps of every batch size.
AVERAGES = 36
# The learning rate rises in the first ninth of the steps, then falls to 0.
WARM_UP = 9


def _tuned(
    sizes: Sequence[int], rates: Sequence[float], examples: int
) -> dict[str, dict[str, Any]]:
    """Return variants: each normalization with each batch size, its rate tuned.

    All see the same number of images. The rates, which are tried first, are said for
    batches of ``LARGE``, and are in proportion to the batch.
    """
    variants: dict[str, dict[str, Any]] = {}
    for size in sizes:
        steps = examples // size
        values = [float(f"{rate * size / LARGE:.6g}") for rate in rates]
        rate = {"values": values, "factor": 2.0, "limits": [1e-6, 100.0]}
        for norm in LOOKS:
            variants[f"{norm} batch={size}"] = {
                "norm": norm,
                "batch_size": size,
                "steps": steps,
                "warm_up": steps // WARM_UP,
                "measure_every": steps,
                "average_over": steps // AVERAGES,
                "tuning": {
                    "seeds": [100],
                    "criterion": {"measurement": "validation", "quantity": "loss"},
                    "grid": {"learning_rate": rate},
                },
            }
    return variants


def _digits(variants: lab.Settings, **others: Any) -> lab.Scale:
    layers = {"dtype": "float64", "layers": [[8, 1], [16, 2]], "groups": 4}
    settings = {**layers, "variants": variants, "validated": 200, **others}
    return lab.Scale(settings, (0, 1), "digits", "embedded digits, two convolutions")


def _fashion(variants: lab.Settings, about: str, **others: Any) -> lab.Scale:
    channels = [[16, 2], [32, 2], [32, 1], [64, 2]]
    layers = {"dtype": "float32", "layers": channels, "groups": 4}
    settings = {**layers, "variants": variants, "validated": 5000, **others}
    return lab.Scale(settings, (0, 1, 2), "fashion-mnist", about)


LIVE_RATES, LIVE_EXAMPLES = (3.0, 6.0), 72 * 32
# Images of one pass over those that are not held out, less what fills no average of
# batches of 128.
RATES, PASS = (0.2, 0.4, 0.8), 396 * LARGE
CONV_NORMS_TUNED = lab.Experiment(
    name="conv_norms_tuned",
    title="A convolutional network with each normalization, each at its own best rate",
    source=SOURCE,
    scales={
        "live": _digits(_tuned((32, 2), LIVE_RATES, LIVE_EXAMPLES)),
        "cpu": _fashion(
            _tuned((128, 32, 8, 2), RATES, PASS), "Fashion-MNIST, one pass"
        ),
    },
    begin=begin,
    figures=figures,
)


# What each variant adds to its normalization, with batches of 32.
BORDER: dict[str, dict[str, Any]] = {
    "batch_norm": {},
    "layer_norm": {},
    "layer_norm inside": {"where": "inside"},
    "layer_norm drawn": {"where": "drawn"},
    "batch_norm cropped": {"padding": "reflect"},
    "layer_norm cropped": {"padding": "reflect"},
}


def _border(
    rates: Sequence[float], examples: int, crop: int
) -> dict[str, dict[str, Any]]:
    tuned = _tuned((32,), rates, examples)
    return {
        name: tuned[f"{name.partition(' ')[0]} batch=32"]
        | added
        | ({"crop": crop} if "padding" in added else {})
        for name, added in BORDER.items()
    }


CONV_NORMS_BORDER = lab.Experiment(
    name="conv_norms_border",
    title="Do units at the border keep layer norm behind?",
    source="Ba et al. (2016), section 6.7",
    scales={
        "live": _digits(_border(LIVE_RATES, LIVE_EXAMPLES, crop=1), probed=200),
        "cpu": _fashion(
            _border(RATES, PASS, crop=4),
            "Fashion-MNIST, one pass, batches of 32",
            probed=1000,
        ),
    },
    begin=begin,
    figures=border_figures,
)
