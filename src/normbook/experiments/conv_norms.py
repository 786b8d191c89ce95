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

The learning rate is in proportion to the batch, as in the paper, and the same for all
normalizations: 0.1 for a batch of 128. It rises during a ninth of the run and then
falls to 0; without the rise, rounding errors in the first steps of a large batch grow
so fast that another machine does not repeat them. What another rate would do is
measured by ``CONV_NORMS_RATES``, with batches of 32 (for all) and of 2 (for batch norm
and group norm).

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
from numpy.typing import ArrayLike, NDArray
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
from normbook.looks import STYLES, Kind, looks

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
    standardized: _Standardized = _Standardized.of(
        data, device, dtype, settings.get("validated", 0), settings.get("crop", 0)
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

    def judged(run: lab.Run, x: Tensor, y: Tensor) -> lab.Values:
        means = tested(run.model, x, y)
        return {"loss": means["loss"], "error": 1 - means["accuracy"]}

    def test(run: lab.Run) -> lab.Values:
        values = judged(run, *standardized.test)
        if "validated" in settings:
            trained = judged(run, x[:TRAINED], y[:TRAINED])
            values |= {f"train_{name}": value for name, value in trained.items()}
        return values

    def schedule(step: int) -> float:
        falling = (steps - step) / (steps - warm_up)
        return float(rate * min((step + 1) / warm_up, falling))

    every = settings["measure_every"]
    measurements = {"test": lab.Measurement(every, test)}
    if settings["norm"] == "batch_norm":
        recalibrated = partial(
            measures.recalibrated, test=test, x=x[:PROBE], size=PROBE_BATCH
        )
        measurements["recalibrated"] = lab.Measurement(steps, recalibrated)
    if "validated" in settings:
        held_out = standardized.validation

        def validate(run: lab.Run) -> lab.Values:
            return judged(run, *held_out)

        measurements["validation"] = lab.Measurement(every, validate)
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
        schedule=schedule,
    )


@dataclass(frozen=True)
class _Standardized:
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
    ) -> _Standardized:
        x, y, x_test, y_test = split(data, device)
        x, x_test = (_cropped(images(some, dtype), crop) for some in (x, x_test))
        count = len(x) - validated
        mean, std = x[:count].mean(), x[:count].std()
        x, x_test = (x - mean) / std, (x_test - mean) / std
        return _Standardized(
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
Setting = Literal["batch_size", "learning_rate"]


def at_end(
    record: Record,
    norm: str,
    along: Setting = "batch_size",
    *,
    batch_size: int | None = None,
    measurement: str = "test",
    quantity: str = "error",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what was measured at the end of all runs with one normalization.

    The runs differ in the setting ``along``: "batch_size", or "learning_rate" at the
    ``batch_size`` that is given. First come its values, growing, shape (B,), then what
    was measured, (S, B), one row for each seed.
    """
    names = _with_norm(record, norm, along, batch_size)
    ends = [record.values(v, measurement, quantity)[:, -1] for v in names.values()]
    return np.array(list(names), dtype=np.float64), np.stack(ends, axis=1)


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``conv_norms``, ``conv_norms_rates`` or ``conv_norms_tuned``.

    Of ``conv_norms_tuned``: "error" and "train_error", at the end, on the test set and
    on training images, against the batch size, each at its best; "grid_2" and so on,
    the loss on validation images against the learning rate with batches of 2, with dots
    at the best; "recalibrated" and "published" as of ``conv_norms``.

    Of ``conv_norms_rates``: "error_2" and "error_32", the test error at the end with
    such batches against the learning rate, a panel for each normalization, with batch
    norm in all. Of ``conv_norms``: "error", the same against the batch size;
    "training", the loss of the smallest batches; "recalibrated", batch norm with
    running statistics and with those of many training images; unless the scale is
    "live", "published".
    """
    record.require(CONV_NORMS.name, CONV_NORMS_RATES.name, CONV_NORMS_TUNED.name)
    if record.name == CONV_NORMS_TUNED.name:
        return _tuned_figures(record)
    if record.name == CONV_NORMS_RATES.name:
        sizes = {v["batch_size"] for v in record.settings["variants"].values()}
        return {
            f"error_{size}": _errors(record, "learning_rate", size)
            for size in sorted(sizes)
        }
    drawn = {
        "error": _errors(record, "batch_size"),
        "training": _training(record),
        "recalibrated": _recalibrated(record),
    }
    if record.scale != "live":
        drawn["published"] = _published(record)
    return drawn


def _tuned_figures(record: Record) -> dict[str, Figure]:
    sizes = {v["batch_size"] for v in record.settings["variants"].values()}
    drawn = {
        "error": _errors(record, "batch_size"),
        "train_error": _errors(record, "batch_size", quantity="train_error"),
        "recalibrated": _recalibrated(record),
        **{f"grid_{size}": _grid(record, size) for size in sorted(sizes)},
    }
    if record.scale != "live":
        drawn["published"] = _published(record)
    return drawn


def _grid(record: Record, batch_size: int) -> Figure:
    """Open a panel for each normalization: its grid, and that of batch norm."""
    names = {  # of variants, by their normalization
        own["norm"]: variant
        for variant, own in record.settings["variants"].items()
        if own["batch_size"] == batch_size
    }
    batch = {names.pop("batch_norm"): LOOKS["batch_norm"]}  # is named above all panels
    shown: dict[str, tuple[str, measures.Looks]] = {}
    for norm, variant in names.items():
        kind, label = LOOKS[norm]
        both = {**batch, variant: (kind, f"_{label}")}
        shown[f"learning rate\n\n{label}"] = ("learning_rate", both)
    rows = 2 if len(shown) > 3 else 1
    return measures.draw_grid(
        record, shown, ylabel="validation loss (nats)", yscale="log", rows=rows
    )


def _with_norm(
    record: Record, norm: str, along: Setting, batch_size: int | None = None
) -> dict[float, str]:
    """Names of the variants with one normalization, by their setting, growing."""
    names = {
        settings[along]: name
        for name, settings in record.settings["variants"].items()
        if settings["norm"] == norm and batch_size in (None, settings["batch_size"])
    }
    return dict(sorted(names.items()))


def _beside_batch_norm(
    record: Record,
    curve: Callable[[str], tuple[ArrayLike, ArrayLike]],
    xlabel: str,
    ylabel: str,
    batch_size: int | None = None,
    **axis: Any,
) -> Figure:
    """Open a panel for each normalization: its curve, and that of batch norm."""
    from normbook.figures import band, panels, tick

    variants = record.settings["variants"].values()
    norms = (v["norm"] for v in variants if batch_size in (None, v["batch_size"]))
    others = [norm for norm in dict.fromkeys(norms) if norm != "batch_norm"]
    rows = 2 if len(others) > 3 and len(others) % 2 == 0 else 1
    fig, axes = panels(len(others), rows=rows, sharey=True)
    fig.set_size_inches(8.4, 1 + 2.6 * rows)
    for ax, norm in zip(axes, others, strict=True):
        for one in ("batch_norm", norm):
            x, runs = curve(one)
            kind, label = LOOKS[one]
            band(ax, x, runs, kind=kind, label=label)
        ax.set(xlabel=f"{xlabel}\n\n{label}", **axis)
        if axis.get("xscale") == "log":
            tick(ax, x, digits=3)
    for ax in axes[:: len(others) // rows]:
        ax.set(ylabel=ylabel)
    _name_first(fig, axes[0])
    return fig


def _name_first(fig: Figure, ax: Axes) -> None:
    """Say what the line is that all panels share; the others are named below."""
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles[:1], labels[:1], loc="outside upper center")


def _errors(
    record: Record,
    along: Setting,
    batch_size: int | None = None,
    quantity: Literal["error", "train_error"] = "error",
) -> Figure:
    def curve(norm: str) -> tuple[ArrayLike, ArrayLike]:
        return at_end(record, norm, along, batch_size=batch_size, quantity=quantity)

    xlabel = along.replace("_", " ")
    ylabel = {"error": "test error", "train_error": "training error"}[quantity]
    return _beside_batch_norm(record, curve, xlabel, ylabel, batch_size, xscale="log")


def _training(record: Record) -> Figure:
    """Training loss with the smallest batches."""

    def curve(norm: str) -> tuple[ArrayLike, ArrayLike]:
        variant = next(iter(_with_norm(record, norm, "batch_size").values()))
        losses = record.values(variant, "training", "loss")
        return record.steps("training", variant), losses

    return _beside_batch_norm(
        record, curve, "training steps", "training loss (nats)", yscale="log"
    )


def _recalibrated(record: Record) -> Figure:
    from normbook.figures import sweep

    sizes, running = at_end(record, "batch_norm")
    _, recalibrated = at_end(record, "batch_norm", measurement="recalibrated")
    lines: dict[str, tuple[Kind, ArrayLike]] = {
        "batch norm, running statistics": ("batch", running),
        "recalibrated": ("reference", recalibrated),
    }
    return sweep(sizes, {"test error": lines}, xlabel="batch size")[0]


def _published(record: Record) -> Figure:
    """Our errors above, published ones below; the data sets differ."""
    from normbook.figures import band, panels, points, tick

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
        for one in ("batch_norm", norm):
            kind, label = LOOKS[one]
            sizes, errors = at_end(record, one)
            band(above, sizes, errors, kind=kind, label=label)
            points(below, *GROUP_NORM_ERROR[one][1:], kind=kind)
        below.set(xlabel=f"batch size\n\n{label}", xscale="log")
        tick(below, sizes, digits=3)
    _name_first(fig, axes[0])
    return fig


def border_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``conv_norms_border``.

    "error": at the end, on training images and on the test set, a row for each variant,
    a point for each seed. "start", "end" and "end_cropped": the units by their distance
    from the border, layer by layer, with batch norm and with layer norm: the share of
    images that turn a unit on, the share of units that are rarely on, and mean and
    deviation of the summed inputs.
    """
    record.require(CONV_NORMS_BORDER.name)
    return {
        "error": _border_errors(record),
        "start": _units(record, "", 0),
        "end": _units(record, "", -1),
        "end_cropped": _units(record, " cropped", -1),
    }


def _border_errors(record: Record) -> Figure:
    from normbook.figures import panels

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
    return fig


UNITS = {
    "on": "images that turn\na unit on", "rarely": "units that are\nrarely on",
    "mean": "mean of\nsummed inputs", "std": "their deviation",
}  # fmt: skip


def _units(record: Record, suffix: str, place: int) -> Figure:
    from normbook.figures import curve_grid

    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for quantity, ylabel in UNITS.items():
        for layer in range(1, len(record.settings["layers"]) + 1):
            lines = rows.setdefault(ylabel, {}).setdefault(
                f"distance from the border\n\nlayer {layer}", {}
            )
            for norm in ("batch_norm", "layer_norm"):
                kind, label = LOOKS[norm]
                units = record.values(norm + suffix, "units", f"{quantity}_{layer}")
                runs = units[:, place]
                lines[label] = (kind, np.arange(runs.shape[1]), runs)
    return curve_grid(rows)[0]


def _variants(
    sizes: Sequence[int],
    rates: Sequence[float],
    *,
    examples: int,
    parts: int,
    norms: Sequence[str] = tuple(LOOKS),
) -> dict[str, dict[str, Any]]:
    """Return variants: each normalization with each batch size and rate.

    All see the same number of images. The learning rate is said for batches of
    ``LARGE``, and is in proportion to the batch. Tests stand after each of ``parts``
    equal parts of the run.
    """
    variants: dict[str, dict[str, Any]] = {}
    for size in sizes:
        for norm in norms:
            for rate in rates:
                steps = examples // size
                name = f"{norm} batch={size}"
                variants[name + f" rate={rate:g}" * (len(rates) > 1)] = {
                    "norm": norm,
                    "batch_size": size,
                    "learning_rate": rate * size / LARGE,
                    "steps": steps,
                    "warm_up": steps // WARM_UP,
                    "measure_every": steps // parts,
                    "average_over": steps // AVERAGES,
                }
    return variants


LARGE = 128
# Averages of the training loss in a run; they, and four parts, are whole steps of
# every batch size.
AVERAGES = 36
# The learning rate rises in the first ninth of the steps, then falls to 0.
WARM_UP = 9
# Images of one pass over Fashion-MNIST, less what fills no batch of 128.
PASS = 468 * LARGE
LIVE_EXAMPLES = 72 * 32


def _digits(variants: lab.Settings, **others: Any) -> lab.Scale:
    layers = {"dtype": "float64", "layers": [[8, 1], [16, 2]], "groups": 4}
    settings = {**layers, "variants": variants, **others}
    return lab.Scale(settings, (0, 1), "digits", "embedded digits, two convolutions")


def _fashion(
    variants: lab.Settings, seeds: int, about: str, **others: Any
) -> lab.Scale:
    channels = [[16, 2], [32, 2], [32, 1], [64, 2]]
    layers = {"dtype": "float32", "layers": channels, "groups": 4}
    settings = {**layers, "variants": variants, **others}
    return lab.Scale(settings, tuple(range(seeds)), "fashion-mnist", about)


def _tuned(
    sizes: Sequence[int], rates: Sequence[float], **others: Any
) -> dict[str, dict[str, Any]]:
    """Return variants whose learning rate is tuned; these ones are tried first."""
    variants = _variants(sizes, rates[:1], parts=1, **others)
    for own in variants.values():
        scale = own.pop("learning_rate") / rates[0]
        own["tuning"] = {
            "seeds": [100],
            "criterion": {"measurement": "validation", "quantity": "loss"},
            "grid": {
                "learning_rate": {
                    "values": [float(f"{scale * rate:.6g}") for rate in rates],
                    "factor": 2.0,
                    "limits": [1e-6, 100.0],
                }
            },
        }
    return variants


SIZES = (128, 32, 16, 8, 4, 2)
CONV_NORMS = lab.Experiment(
    name="conv_norms",
    title="A convolutional network with each normalization, over batch sizes",
    source=SOURCE,
    scales={
        "live": _digits(_variants((32, 2), (3.0,), examples=LIVE_EXAMPLES, parts=2)),
        "cpu": _fashion(
            _variants((128, 32, 8, 2), (0.1,), examples=PASS, parts=4),
            seeds=3,
            about="Fashion-MNIST, one pass",
        ),
        "full": _fashion(
            _variants(SIZES, (0.1,), examples=10 * PASS, parts=10),
            seeds=3,
            about="Fashion-MNIST, ten passes and more batch sizes (GPU)",
        ),
    },
    begin=begin,
    figures=figures,
)


# Images of one pass over those that are not held out, less what fills no average of
# batches of 128.
TUNED_PASS = 396 * LARGE
TUNED_RATES, LIVE_RATES = (0.2, 0.4, 0.8), (3.0, 6.0)
FEW = ("none", "batch_norm", "layer_norm")
CONV_NORMS_TUNED = lab.Experiment(
    name="conv_norms_tuned",
    title="The same network, each normalization at its own best learning rate",
    source=SOURCE,
    scales={
        "live": _digits(
            _tuned((32, 2), LIVE_RATES, examples=LIVE_EXAMPLES, norms=FEW),
            validated=200,
        ),
        "cpu": _fashion(
            _tuned((128, 32, 8, 2), TUNED_RATES, examples=TUNED_PASS),
            seeds=3,
            about="Fashion-MNIST, one pass",
            validated=5000,
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
    tuned = _tuned((32,), rates, examples=examples)
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
        "live": _digits(
            _border(LIVE_RATES, LIVE_EXAMPLES, crop=1), validated=200, probed=200
        ),
        "cpu": _fashion(
            _border(TUNED_RATES, TUNED_PASS, crop=4),
            seeds=3,
            about="Fashion-MNIST, one pass, batches of 32",
            validated=5000,
            probed=1000,
        ),
    },
    begin=begin,
    figures=border_figures,
)


def _rates(rates: Sequence[float], examples: int) -> dict[str, dict[str, Any]]:
    """All normalizations with batches of 32, and two of them with batches of 2."""
    two = ("batch_norm", "group_norm")
    return {
        **_variants((32,), rates, examples=examples, parts=1),
        **_variants((2,), rates, examples=examples, parts=1, norms=two),
    }


CONV_NORMS_RATES = lab.Experiment(
    name="conv_norms_rates",
    title="The same network with several learning rates",
    source=SOURCE,
    scales={
        "live": _digits(_rates((6.0, 3.0, 1.5), LIVE_EXAMPLES)),
        "cpu": _fashion(_rates((0.4, 0.2, 0.1), PASS), 1, "Fashion-MNIST, one pass"),
    },
    begin=begin,
    figures=figures,
)
