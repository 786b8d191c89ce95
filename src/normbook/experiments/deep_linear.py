r"""A deep linear network with several normalizations (Santurkar et al. 2018).

Twenty-five square matrices learn one: gradient descent on
:math:`\sum_n \lVert W_k \cdots W_1 x_n - A x_n \rVert^2`. The data are Gaussian, so
the problem has no structure but its depth.

The *sum* over the 1 000 examples matters: a learning rate of 1e-6 acts on it, not on
the mean. The paper does not give the scale of A and x; ours are unit Gaussians.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.experiments import measures
from normbook.experiments.published import DEEP_LINEAR_LOSS
from normbook.lab.experiment import (
    Batches,
    Experiment,
    Measurement,
    Run,
    Scale,
    Settings,
    generator,
)
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.lp_norm import LpNorm1d
from normbook.looks import LOOKS as ALL_LOOKS
from normbook.looks import looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.figures import Line

__all__ = ["EXPERIMENT", "build"]

SOURCE = "Santurkar et al. (2018), Figs. 5 and 10"
ORDERS = {"l1": 1.0, "l2": 2.0, "linf": math.inf}


def build(
    depth: int, size: int, norm: str, weights: torch.Generator, device: torch.device
) -> nn.Sequential:
    """Stack ``depth`` square linear layers, each with a normalization after it.

    The norm is "none", "batch_norm", "l1", "l2" or "linf". Weights (float64) are normal
    after Glorot, variance 1 / size, from a CPU generator.
    """
    modules: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(size, size, bias=False, dtype=torch.float64)
        nn.init.xavier_normal_(layer.weight, generator=weights)
        modules.append(layer)
        if norm == "batch_norm":
            modules.append(BatchNorm1d(size, dtype=torch.float64))
        elif norm != "none":
            modules.append(LpNorm1d(size, ORDERS[norm], dtype=torch.float64))
    return nn.Sequential(*modules).to(device)


def begin(
    settings: Settings, seed: int, _: Dataset | None, device: torch.device
) -> Run:
    """Make one network, its data and its measurements."""
    n, size = settings["examples"], settings["size"]
    draw = generator(seed, "data")
    x = torch.randn(n, size, dtype=torch.float64, generator=draw)
    a = torch.randn(size, size, dtype=torch.float64, generator=draw)
    model = build(
        settings["depth"], size, settings["norm"], generator(seed, "weights"), device
    )
    rate = settings["learning_rate"]

    return Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=_sum_of_squares,
        batches=Batches(
            x.to(device), (x @ a.T).to(device), n, generator(seed, "batches")
        ),
        measurements={
            "landscape": Measurement(
                settings["landscape_every"], partial(measures.landscape, rate=rate)
            ),
            "shift": Measurement(
                settings["shift_every"], partial(measures.shift, rate=rate)
            ),
        },
        every=settings["average_over"],
    )


def _sum_of_squares(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"loss": (model(x) - y).square().sum()}


LOOKS = looks("none", "batch_norm") | dict.fromkeys(ORDERS, ALL_LOOKS["lp_norm"])
PANELS = {
    "batch_norm": "batch norm",
    "l1": "$\\ell_1$ norm",
    "l2": "$\\ell_2$ norm",
    "linf": "$\\ell_\\infty$ norm",
}
PUBLISHED = "published"
# The paper's rate: its Fig. 5(b) stands beside no other.
PUBLISHED_RATE = 1e-6
LEVEL = "$1 / \\eta_{\\min}$"


def figures(record: Record) -> dict[str, Figure]:
    r"""Draw a record of this experiment: rows for the rates, columns for the norms.

    The network without normalization stands in every panel. "loss", divided by that at
    the start, beside published points at the rate of the paper; "gradient_change" along
    the gradient; "smoothness", with :math:`1 / \eta_{\min}`; "shift", the cosine of the
    gradient of the layer at two thirds of the depth before and after the update of the
    layers below. The range of the loss is not drawn: on a plateau it is below the last
    digit that a record keeps of a loss.
    """
    from normbook.figures import curve_grid, points

    record.require(EXPERIMENT.name)
    names = {
        (v["norm"], v["learning_rate"]): name
        for name, v in record.settings["variants"].items()
    }
    rates = list(dict.fromkeys(rate for _, rate in names))
    layer = 2 * record.settings["depth"] // 3

    def compare(
        ylabel: str,
        measurement: str,
        curve: Callable[[str], NDArray[np.float64]],
        *,
        has_level: bool = False,
    ) -> Figure:
        rows: dict[str, dict[str, dict[str, Line]]] = {}
        for rate in rates:
            row = rows.setdefault(f"{ylabel}\nrate {rate:g}", {})
            for norm, panel in PANELS.items():
                lines = row.setdefault(f"training steps\n\n{panel}", {})
                for one in ("none", norm):
                    kind, label = LOOKS[one]
                    steps = record.steps(measurement, names[one, rate])
                    lines[label] = (kind, steps, curve(names[one, rate]))
                if has_level:
                    height = np.full((1, len(steps)), 1 / measures.step_sizes(rate)[0])
                    lines[LEVEL] = ("reference", steps, height)
        is_log = measurement == "landscape"
        return curve_grid(rows, yscale="log" if is_log else "linear")[0]

    def along(quantity: str) -> Callable[[str], NDArray[np.float64]]:
        return lambda variant: record.values(variant, "landscape", quantity)

    def relative_loss(variant: str) -> NDArray[np.float64]:
        losses = along("loss")(variant)
        return losses / losses[:, :1]

    def cosine(variant: str) -> NDArray[np.float64]:
        return record.values(variant, "shift", "cosine")[:, :, layer]

    change, smoothness = along("most_change"), along("beta")
    drawn = {
        "loss": compare("loss / first loss", "landscape", relative_loss),
        "gradient_change": compare("change of the gradient", "landscape", change),
        "smoothness": compare(
            "effective smoothness", "landscape", smoothness, has_level=True
        ),
        "shift": compare(f"cosine in layer {layer + 1}", "shift", cosine),
    }
    panels = [(rate, norm) for rate in rates for norm in PANELS]
    for ax, (rate, norm) in zip(drawn["loss"].axes, panels, strict=True):
        for one in ("none", norm) if rate == PUBLISHED_RATE else ():
            there = DEEP_LINEAR_LOSS[one]
            relative = np.array(there.y) / there.y[0]
            points(ax, there.x, relative, kind=LOOKS[one][0], label=PUBLISHED)
    if PUBLISHED_RATE in rates:
        first = drawn["loss"].axes[len(PANELS) * rates.index(PUBLISHED_RATE)]
        first.legend(handles=first.lines[-1:], loc="upper right")
    return drawn


def _variants(*rates: float) -> dict[str, Settings]:
    return {
        f"{norm} rate={rate:g}": {"norm": norm, "learning_rate": rate}
        for rate in rates
        for norm in LOOKS
    }


COMMON: dict[str, Any] = {
    "dtype": "float64",
    "depth": 25,
    "size": 10,
    "examples": 1000,
    "variants": _variants(1e-6, 1e-7),
}
LIVE: dict[str, Any] = {
    **COMMON, "steps": 200, "average_over": 10, "landscape_every": 20,
    "shift_every": 100, "variants": _variants(1e-7),
}  # fmt: skip
PAPER: dict[str, Any] = {
    **COMMON, "steps": 10_000, "average_over": 50, "landscape_every": 100,
    "shift_every": 500,
}  # fmt: skip
EXPERIMENT = Experiment(
    name="deep_linear",
    title="Twenty-five linear layers with batch norm and with lp norms",
    source=SOURCE,
    scales={
        "live": Scale(
            LIVE,
            seeds=(0, 1),
            data="",
            about="the first 200 steps at the rate 1e-7",
        ),
        "paper": Scale(
            PAPER,
            seeds=(0, 1, 2),
            data="",
            about="10 000 steps at two rates, as in the paper",
        ),
    },
    begin=begin,
    figures=figures,
)
