r"""A deep linear network with several normalizations (Santurkar et al. 2018).

Twenty-five square matrices learn one: gradient descent on
:math:`\sum_n \lVert W_k \cdots W_1 x_n - A x_n \rVert^2`. The data are Gaussian, so
the problem has no structure but its depth.

The *sum* over the 1 000 examples matters: a learning rate of 1e-6 acts on it, not on
the mean. The paper does not give the scale of A and x; ours are unit Gaussians.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.experiments import measures
from normbook.experiments.published import DEEP_LINEAR_LOSS
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.lp_norm import LpNorm1d
from normbook.looks import LOOKS as ALL_LOOKS
from normbook.looks import looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    settings: lab.Settings, seed: int, _: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    n, size = settings["examples"], settings["size"]
    draw = lab.generator(seed, "data")
    x = torch.randn(n, size, dtype=torch.float64, generator=draw)
    a = torch.randn(size, size, dtype=torch.float64, generator=draw)
    weights = lab.generator(seed, "weights")
    model = build(settings["depth"], size, settings["norm"], weights, device)
    rate = settings["learning_rate"]
    landscape, shift = (
        partial(measure, rate=rate) for measure in (measures.landscape, measures.shift)
    )
    return lab.Run(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        objective=_sum_of_squares,
        batches=lab.Batches(
            x.to(device), (x @ a.T).to(device), n, lab.generator(seed, "batches")
        ),
        measurements={
            "landscape": lab.Measurement(settings["landscape_every"], landscape),
            "shift": lab.Measurement(settings["shift_every"], shift),
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
# The paper's rate: its Fig. 5(b) stands beside no other.
PUBLISHED_RATE = 1e-6


def figures(record: Record) -> dict[str, Figure]:
    r"""Draw a record of this experiment: rows for the rates, columns for the norms.

    "loss", divided by that at the start, with published points at the rate of the
    paper; "gradient_change" along the gradient; "smoothness", with :math:`1 /
    \eta_{\min}`; "shift", the cosine of the gradient of the layer at two thirds of the
    depth before and after the update of the layers below. (The range of the loss, on a
    plateau, is below the last digit that a record keeps.)
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
        curve: str | measures.Curve,
        measurement: str = "landscape",
        yscale: Literal["linear", "log"] = "log",
    ) -> Figure:
        rows = {}
        for rate in rates:
            columns = {
                panel: {names[one, rate]: LOOKS[one] for one in ("none", norm)}
                for norm, panel in PANELS.items()
            }
            row = measures.row(record, columns, measurement, curve)
            rows[f"{ylabel}\nrate {rate:g}"] = row
        fig, grid = curve_grid(rows, yscale=yscale)
        for ax in grid[-1]:  # the last number would touch the first of the next
            ax.set_xticks([0, record.settings["steps"] // 2])
        return fig

    def relative_loss(variant: str) -> NDArray[np.float64]:
        losses = record.values(variant, "landscape", "loss")
        return losses / losses[:, :1]

    def cosine(variant: str) -> NDArray[np.float64]:
        return record.values(variant, "shift", "cosine")[:, :, layer]

    drawn = {
        "loss": compare("loss / first loss", relative_loss),
        "gradient_change": compare("change of the gradient", "most_change"),
        "smoothness": compare("effective smoothness", "beta"),
        "shift": compare(f"cosine in layer {layer + 1}", cosine, "shift", "linear"),
    }
    if PUBLISHED_RATE in rates:
        start = len(PANELS) * rates.index(PUBLISHED_RATE)
        axes = drawn["loss"].axes[start : start + len(PANELS)]
        for ax, norm in zip(axes, PANELS, strict=True):
            for one in ("none", norm):
                there = DEEP_LINEAR_LOSS[one]
                relative = np.array(there.y) / there.y[0]
                kind = LOOKS[one][0]
                points(ax, there.x, relative, kind=kind, label="published")
        axes[0].legend(handles=axes[0].lines[-1:], loc="upper right")
    return drawn


def _variants(*rates: float) -> dict[str, lab.Settings]:
    return {
        f"{norm} rate={rate:g}": {"norm": norm, "learning_rate": rate}
        for rate in rates
        for norm in LOOKS
    }


COMMON: dict[str, Any] = {"dtype": "float64", "depth": 25, "size": 10, "examples": 1000}
EXPERIMENT = lab.Experiment(
    name="deep_linear",
    title="Twenty-five linear layers with batch norm and with lp norms",
    source="Santurkar et al. (2018), Figs. 5 and 10",
    scales={
        "live": lab.Scale({
            **COMMON, "steps": 200, "average_over": 10, "landscape_every": 20,
            "shift_every": 100, "variants": _variants(1e-7),
        }, (0, 1), "", "the first 200 steps at the rate 1e-7"),
        "paper": lab.Scale({
            **COMMON, "steps": 10_000, "average_over": 50, "landscape_every": 100,
            "shift_every": 500, "variants": _variants(1e-6, 1e-7),
        }, (0, 1, 2), "", "10 000 steps at two rates, as in the paper"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
