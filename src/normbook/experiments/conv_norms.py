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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from normbook.data import Dataset
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
from normbook.looks import Kind, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = "Wu and He (2018), Tables 1 and 2"
# Training images whose statistics take the place of the running ones, in batches.
PROBE, PROBE_BATCH = 10_000, 1000


class ChannelLayerNorm(LayerNorm):
    """Layer norm over the channels of each place of an image by itself."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize a tensor (N, C, H, W)."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


def build(
    layers: Sequence[tuple[int, int]],
    *,
    norm: str,
    groups: int,
    generator: torch.Generator,
    classes: int = 10,
) -> nn.Sequential:
    """Stack convolutions, the mean over all places, and a linear read-out (float32).

    ``layers`` are channels and stride of each 3 x 3 convolution of images (N, 1, H, W).
    Before each ReLU stands the norm, a key of ``LOOKS``, else ValueError; groups are of
    group norm. Weights, from a CPU generator, are normal after He; biases begin at 0,
    gains at 1.
    """
    makers: dict[str, Callable[[int], list[nn.Module]]] = {
        "none": lambda size: [],
        "batch_norm": lambda size: [BatchNorm2d(size)],
        "layer_norm": lambda size: [GroupNorm(1, size)],
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
        convolution = nn.Conv2d(channels, size, 3, stride, padding=1, bias=has_bias)
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
    standardized: _Standardized = _Standardized.of(data, device, dtype)
    x = standardized.x
    y, y_test = (torch.as_tensor(y).to(device) for y in (data.y_train, data.y_test))
    model = build(
        settings["layers"],
        norm=settings["norm"],
        groups=settings["groups"],
        generator=lab.generator(seed, "weights"),
    ).to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate, size = settings["learning_rate"], settings["batch_size"]
    steps, warm_up = settings["steps"], settings["warm_up"]

    def test(run: lab.Run) -> lab.Values:
        means = tested(run.model, standardized.x_test, y_test)
        return {"loss": means["loss"], "error": 1 - means["accuracy"]}

    def schedule(step: int) -> float:
        falling = (steps - step) / (steps - warm_up)
        return float(rate * min((step + 1) / warm_up, falling))

    measurements = {"test": lab.Measurement(settings["measure_every"], test)}
    if settings["norm"] == "batch_norm":
        recalibrated = partial(
            measures.recalibrated, test=test, x=x[:PROBE], size=PROBE_BATCH
        )
        measurements["recalibrated"] = lab.Measurement(steps, recalibrated)
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
    """Images for training and test: over all training pixels, mean 0, variance 1."""

    x: Tensor
    x_test: Tensor

    @staticmethod
    @lab.shared_by_runs
    def of(data: Dataset, device: torch.device, dtype: torch.dtype) -> _Standardized:
        x, _, x_test, _ = split(data, device)
        x, x_test = images(x, dtype), images(x_test, dtype)
        mean, std = x.mean(), x.std()
        return _Standardized((x - mean) / std, (x_test - mean) / std)


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
    """Draw a record of ``conv_norms`` or ``conv_norms_rates``.

    Of ``conv_norms_rates``: "error_2" and "error_32", the test error at the end with
    such batches against the learning rate, a panel for each normalization, with batch
    norm in all. Of ``conv_norms``: "error", the same against the batch size;
    "training", the loss of the smallest batches; "recalibrated", batch norm with
    running statistics and with those of many training images; unless the scale is
    "live", "published".
    """
    record.require(CONV_NORMS.name, CONV_NORMS_RATES.name)
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


def _errors(record: Record, along: Setting, batch_size: int | None = None) -> Figure:
    def curve(norm: str) -> tuple[ArrayLike, ArrayLike]:
        return at_end(record, norm, along, batch_size=batch_size)

    xlabel = along.replace("_", " ")
    return _beside_batch_norm(
        record, curve, xlabel, "test error", batch_size, xscale="log"
    )


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


def _variants(
    sizes: Sequence[int],
    rates: Sequence[float],
    *,
    examples: int,
    parts: int,
    norms: Sequence[str] = tuple(LOOKS),
) -> dict[str, lab.Settings]:
    """Return variants: each normalization with each batch size and rate.

    All see the same number of images. The learning rate is said for batches of
    ``LARGE``, and is in proportion to the batch. Tests stand after each of ``parts``
    equal parts of the run.
    """
    variants: dict[str, lab.Settings] = {}
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


def _digits(variants: dict[str, lab.Settings]) -> lab.Scale:
    layers = {"dtype": "float64", "layers": [[8, 1], [16, 2]], "groups": 4}
    about = "embedded digits, two convolutions"
    return lab.Scale({**layers, "variants": variants}, (0, 1), "digits", about)


def _fashion(variants: dict[str, lab.Settings], seeds: int, about: str) -> lab.Scale:
    channels = [[16, 2], [32, 2], [32, 1], [64, 2]]
    settings = {"dtype": "float32", "layers": channels, "groups": 4}
    settings["variants"] = variants
    return lab.Scale(settings, tuple(range(seeds)), "fashion-mnist", about)


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


def _rates(rates: Sequence[float], examples: int) -> dict[str, lab.Settings]:
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
