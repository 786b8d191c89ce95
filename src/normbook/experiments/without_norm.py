r"""Residual branches without a norm, in a small convolutional network.

All have one skeleton, a *pre-activation* residual network: two convolutions with
strides, then L blocks :math:`x \leftarrow x + F(x)` with two convolutions and two ReLUs
each, one more ReLU, the mean over all places, a linear read-out. They differ in what
takes care of the branch F:

- "batch_norm" stands before each ReLU;
- "dynamic_tanh" does (Zhu et al. 2025), with one slope, and a gain and a bias for each
  channel (an experiment of its own, with two slopes at the start);
- "none": nothing does;
- "weight_norm": each row of a convolution is a length times a direction (Salimans and
  Kingma 2016), the length beginning as it is, so that the start is that of "none";
- "gate": :math:`x + \alpha F(x)` with one number for a branch, trained from 0. This is
  SkipInit (De and Smith 2020) and ReZero (Bachlechner et al. 2021);
- "fixup" (Zhang et al. 2019): the second convolution and the read-out begin at 0, the
  first is multiplied by :math:`L^{-1/2}`, a number is added before each convolution
  and each ReLU, and one multiplies the branch;
- "nf" (Brock et al. 2021): :math:`x + 0.2\, F(x / \beta)` with *scaled weight
  standardization* in F, ReLU with its gain, and :math:`\beta^2 = 1 + 0.04\, l` for
  what variance the block l expects;
- "nf_clipped": the same, with gradients clipped by unit
  (:mod:`normbook.adaptive_clipping`), but not those of the read-out.

Each has its own best learning rate, and the clipped one its own best bound
(:mod:`normbook.lab.tuning`): that with the least loss at the end on training images
that are not trained on. SGD with momentum 0.9; the rate rises during the first ninth of
the updates and falls to 0. All parameters have one rate, also the numbers of Fixup, to
which its authors give a tenth. What this leaves open: one small network, less than one
pass over the images, one seed for the tuning, no augmentation, no weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.adaptive_clipping import clip_by_unit
from normbook.data import Dataset
from normbook.experiments import measures
from normbook.experiments.conv_norms import Standardized, judged, rising_and_falling
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm2d
from normbook.layers.dynamic_tanh import DynamicTanh
from normbook.layers.weight_norm import ScaledWeightStandardization, WeightNorm
from normbook.looks import STYLES, Kind
from normbook.weight_norm import RELU_GAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Zhang et al. (2019); De and Smith (2020); Brock et al. (2021)"
ALPHA = 0.2  # of "nf"
METHODS = (
    "batch_norm", "none", "weight_norm", "gate", "fixup", "nf", "nf_clipped",
)  # fmt: skip
TANH_METHOD = "dynamic_tanh"


class Number(nn.Module):
    """One trained number, which is added or multiplies."""

    def __init__(self, value: float, *, multiplies: bool) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((1,), value))
        self.multiplies = multiplies

    def forward(self, x: Tensor) -> Tensor:
        """Add it, or multiply by it."""
        return x * self.value if self.multiplies else x + self.value


class ChannelTanh(DynamicTanh):
    """Dynamic Tanh of images (N, C, H, W), with a gain and a bias for each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Squash."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ScaledReLU(nn.Module):
    """ReLU times its gain, so that normal numbers come out with variance 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return RELU_GAIN * torch.relu(x)


class Block(nn.Module):
    r"""The identity and a branch: :math:`x + \alpha F(x / \beta)`."""

    def __init__(self, branch: nn.Sequential, alpha: float, beta: float) -> None:
        super().__init__()
        self.branch, self.alpha, self.beta = branch, alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state, (N, C, H, W)."""
        inputs = x if self.beta == 1 else x / self.beta
        changed: Tensor = self.branch(inputs)
        return x + changed if self.alpha == 1 else x + self.alpha * changed


def build(
    method: str,
    *,
    stem: Sequence[tuple[int, int]],
    depth: int,
    generator: torch.Generator,
    classes: int = 10,
    slope: float = 0.5,
) -> nn.Sequential:
    """Make the network of one method (float32).

    That is one of ``METHODS``, or "dynamic_tanh", which begins with ``slope``; else
    ValueError.
    ``stem`` are channels and stride of the first convolutions, 3 x 3 as all are, of
    images (N, 1, H, W); then come ``depth`` blocks. Matrices, from a CPU generator, are
    normal after He, the read-out with half the variance; biases begin at 0.
    """
    known = *METHODS, TANH_METHOD
    if method not in known:
        raise ValueError(f"norm must be one of {', '.join(known)}, got {method!r}.")
    is_nf = method.startswith("nf")

    def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
        has_bias = method not in ("batch_norm", TANH_METHOD, "fixup")
        layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=has_bias)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        return layer

    def number(value: float, *, multiplies: bool = False) -> list[nn.Module]:
        is_here = method == ("gate" if multiplies and value == 0 else "fixup")
        return [Number(value, multiplies=multiplies)] if is_here else []

    def before(size: int) -> list[nn.Module]:
        """Make what stands before a convolution: a ReLU, and what prepares it."""
        norm = number(0.0)
        if method == "batch_norm":
            norm = [BatchNorm2d(size)]
        elif method == TANH_METHOD:
            norm = [ChannelTanh(size, slope)]
        return [*norm, ScaledReLU() if is_nf else nn.ReLU(), *number(0.0)]

    modules: list[nn.Module] = []
    channels = 1
    for k, (size, stride) in enumerate(stem):
        modules += before(channels) if k else []
        modules.append(convolution(channels, size, stride))
        channels = size
    for place in range(depth):
        branch = nn.Sequential(
            *before(channels),
            convolution(channels, channels),
            *before(channels),
            convolution(channels, channels),
            *number(0.0, multiplies=True),
            *number(1.0, multiplies=True),
            *number(0.0),
        )
        alpha, beta = (ALPHA, (1 + ALPHA**2 * place) ** 0.5) if is_nf else (1.0, 1.0)
        modules.append(Block(branch, alpha, beta))
    read_out = nn.Linear(channels, classes)
    nn.init.normal_(read_out.weight, std=channels**-0.5, generator=generator)
    nn.init.zeros_(read_out.bias)
    modules += [*before(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), read_out]
    network = nn.Sequential(*modules)
    _reparametrize(network, method, depth)
    return network


@torch.no_grad()
def _reparametrize(network: nn.Sequential, method: str, depth: int) -> None:
    """Give the convolutions what the method does with their weights."""
    if method == "fixup":
        for block in (m for m in network if isinstance(m, Block)):
            first, second = (m for m in block.branch if isinstance(m, nn.Conv2d))
            first.weight.mul_(depth**-0.5)
            second.weight.zero_()
        network[-1].get_parameter("weight").zero_()
    makers: dict[str, Callable[[], nn.Module]] = {
        "weight_norm": WeightNorm,
        "nf": ScaledWeightStandardization,
        "nf_clipped": ScaledWeightStandardization,
    }
    if method in makers:
        for module in list(network.modules()):
            if isinstance(module, nn.Conv2d):
                nn.utils.parametrize.register_parametrization(
                    module, "weight", makers[method]()
                )


class ClippedSGD(torch.optim.SGD):
    """SGD, with gradients of a group clipped by unit where it has a bound "most"."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Clip and update."""
        for group in self.param_groups:
            for parameter in group["params"] if group["most"] else ():
                self._clip(parameter, parameter.grad, group["most"])
        return super().step(closure)

    @staticmethod
    def _clip(parameter: Tensor, slope: Tensor, most: float) -> None:
        """Clip a gradient; a gain or bias of each unit counts as one vector of all."""
        shape = (-1,) if parameter.numel() == len(parameter) else parameter.shape
        clipped = clip_by_unit(slope.reshape(shape), parameter.reshape(shape), most)
        slope.copy_(clipped.reshape(slope.shape))


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    model = build(
        settings["norm"],
        stem=settings["stem"],
        depth=settings["depth"],
        generator=lab.generator(seed, "weights"),
        slope=settings.get("slope", 0.5),
    )
    dtype = getattr(torch, settings["dtype"])
    model.to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    read_out = list(model[-1].parameters())
    others = [p for p in model.parameters() if all(p is not q for q in read_out)]
    most = settings.get("most", 0.0)
    groups = [{"params": others, "most": most}, {"params": read_out, "most": 0.0}]
    sgd = ClippedSGD(groups, lr=settings["learning_rate"], momentum=0.9)
    return classifier(settings, seed, data, device, model, sgd)


def classifier(
    settings: lab.Settings,
    seed: int,
    data: Dataset | None,
    device: torch.device,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> lab.Run:
    """Train a network on images, with a rate that rises and falls."""
    dtype = getattr(torch, settings["dtype"])
    validated = settings["validated"]
    images: Standardized = Standardized.of(
        lab.required(data), device, dtype, validated, 0
    )
    schedule = (settings[k] for k in ("learning_rate", "steps", "warm_up"))
    size = settings["batch_size"]
    return lab.Run(
        model=model,
        optimizer=optimizer,
        objective=lab.classification,
        batches=lab.Batches(*images.train, size, lab.generator(seed, "batches")),
        measurements=judged(images, settings["measure_every"]),
        every=settings["average_over"],
        schedule=rising_and_falling(*schedule),
    )


# --- records


LOOKS: dict[str, tuple[Kind, str]] = {
    "batch_norm": ("batch", "batch norm"),
    "none": ("none", "nothing"),
    "weight_norm": ("other", "weight norm"),
    "gate": ("other", "gate from 0"),
    "fixup": ("other", "Fixup"),
    "nf": ("other", "NF"),
    "nf_clipped": ("other", "NF, clipped"),
}
TANH_LOOKS: dict[str, tuple[Kind, str]] = {
    "half": ("other", "slope from 0.5"),
    "two": ("layer", "slope from 2"),
}
SHOWN = {"train_loss": "training images", "loss": "test set", "error": "test set"}


def at_end(record: Record, method: str, quantity: str) -> NDArray[np.float64]:
    """Return what was measured at the end of the runs of a method, (S,)."""
    return record.values(method, "test", quantity)[:, -1]


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of this experiment.

    "end": loss and error at the end, a row for each method, a point for each seed;
    "grid": the loss on validation images against the learning rate, with a dot at the
    best, a panel for each method, with the one that has a norm in all.
    """
    record.require(EXPERIMENT.name)
    return drawn(record, LOOKS)


def tanh_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of Dynamic Tanh, as :func:`figures` does."""
    record.require(TANH.name)
    return drawn(record, TANH_LOOKS)


def drawn(record: Record, looks: Mapping[str, tuple[Kind, str]]) -> dict[str, Figure]:
    """Draw :func:`figures`, with these methods."""
    return {"end": _draw_end(record, looks), "grid": _draw_grid(record, looks)}


def _draw_end(record: Record, looks: Mapping[str, tuple[Kind, str]]) -> Figure:
    from matplotlib.ticker import LogLocator, NullFormatter

    from normbook.figures import panels

    fig, axes = panels(len(SHOWN), sharey=True)
    fig.set_size_inches(8.4, 1.4 + 0.32 * len(looks))
    for ax, (quantity, title) in zip(axes, SHOWN.items(), strict=True):
        for row, (method, (kind, _)) in enumerate(looks.items()):
            ends = at_end(record, method, quantity)
            colour = STYLES[kind]["color"]
            ax.plot(ends, np.full(len(ends), row), "o", color=colour, fillstyle="none")
        what = "error" if quantity == "error" else "loss (nats)"
        ax.set(xlabel=f"{what} at the end\n\n{title}")
        ax.locator_params(axis="x", nbins=3)
        least, most = ax.dataLim.intervalx
        if most > 2 * least:
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_yticks(range(len(looks)), [label for _, label in looks.values()])
    axes[0].invert_yaxis()
    return fig


def _draw_grid(record: Record, looks: Mapping[str, tuple[Kind, str]]) -> Figure:
    norm, *others = looks
    panels: dict[str, tuple[str, measures.Looks]] = {}
    for method in others:
        kind, label = looks[method]
        both = {norm: looks[norm], method: (kind, f"_{label}")}
        panels[f"learning rate\n\n{label}"] = ("learning_rate", both)
    rows = 2 if len(others) > 3 else 1
    return measures.draw_grid(record, panels, ylabel="validation loss", rows=rows)


# --- settings


def tuned(
    methods: Sequence[str], rates: Sequence[float], steps: int
) -> dict[str, dict[str, Any]]:
    """Return variants, each with its rate tuned and all with as many updates."""
    rate = {"values": list(rates), "factor": 3.0, "limits": [1e-6, 100.0]}
    variants: dict[str, dict[str, Any]] = {}
    for method in methods:
        grid: dict[str, Any] = {"learning_rate": rate}
        if method == "nf_clipped":
            grid["most"] = {"values": [0.01, 0.1]}
        variants[method] = {
            "norm": method,
            "steps": steps,
            "warm_up": steps // WARM_UP,
            "measure_every": steps,
            "average_over": steps // AVERAGES,
            "tuning": {
                "seeds": [100],
                "criterion": {"measurement": "validation", "quantity": "loss"},
                "grid": grid,
            },
        }
    return variants


def by_slope(rates: Sequence[float], steps: int) -> dict[str, dict[str, Any]]:
    """Return variants of Dynamic Tanh, tuned as the others are."""
    one = tuned([TANH_METHOD], rates, steps)[TANH_METHOD]
    return {"half": {**one, "slope": 0.5}, "two": {**one, "slope": 2.0}}


WARM_UP = 9  # the rate rises in the first ninth
AVERAGES = 20  # of the training loss, in a run
DIGITS: dict[str, Any] = {"dtype": "float64", "validated": 200, "batch_size": 32}
FASHION: dict[str, Any] = {"dtype": "float32", "validated": 5000, "batch_size": 64}
EXPERIMENT = lab.Experiment(
    name="without_norm",
    title="Residual branches without a norm, each way at its own best rate",
    source=SOURCE,
    scales={
        "live": lab.Scale({
            **DIGITS, "stem": [[4, 1], [8, 2]], "depth": 4,
            "variants": tuned(METHODS, (0.03, 0.1), 60),
        }, (0, 1), "digits", "embedded digits, four blocks"),
        "cpu": lab.Scale({
            **FASHION, "stem": [[8, 2], [16, 2]], "depth": 8,
            "variants": tuned(METHODS, (0.01, 0.03, 0.09), 300),
        }, (0, 1, 2), "fashion-mnist", "Fashion-MNIST, eight blocks of 16 channels"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
TANH = lab.Experiment(
    name="without_norm_tanh",
    title="Dynamic Tanh in the place of batch norm, each slope at its own best rate",
    source="Zhu et al. (2025)",
    scales={
        "live": lab.Scale({
            **DIGITS, "stem": [[4, 1], [8, 2]], "depth": 4,
            "variants": by_slope((0.03, 0.1), 60),
        }, (0, 1), "digits", "embedded digits, four blocks"),
        "cpu": lab.Scale({
            **FASHION, "stem": [[8, 2], [16, 2]], "depth": 8,
            "variants": by_slope((0.01, 0.03, 0.09), 300),
        }, (0, 1, 2), "fashion-mnist", "Fashion-MNIST, eight blocks of 16 channels"),
    },
    begin=begin,
    figures=tanh_figures,
)  # fmt: skip
