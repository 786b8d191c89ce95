"""What the package costs on small inputs, beside code that only computes.

Run it on a machine that does nothing else:

    python benchmarks/small_inputs.py --out small_inputs.json

Forward and backward pass, one thread, float32 for the layers and float64 for NumPy.
Each layer takes turns with one written from plain operators, through which autograd
goes backward; each function of NumPy with the bare formula, which checks nothing. Each
round gives one ratio. Before anything is timed, both must compute the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normbook.batch_norm import batch_norm_backward, batch_norm_forward
from normbook.lab import provenance
from normbook.layer_norm import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.layer_norm import LayerNorm, RMSNorm

ROUNDS = 31
CALLS = 100  # in a round: one call is too short for a clock
SHAPES = ((64, 32), (32, 256))
EPS = 1e-5
TOLERANCE = 1e-4  # float32, of the largest number
Gradients = tuple[Any, ...]
Step = Callable[[], Gradients]


class Scratch(nn.Module):
    """A normalization as one writes it from a formula, without a check."""

    def __init__(self, features: int, axis: int, *, is_centred: bool = True) -> None:
        super().__init__()
        self.axis, self.is_centred = axis, is_centred
        self.weight = nn.Parameter(torch.ones(features))
        if is_centred:
            self.bias = nn.Parameter(torch.zeros(features))
        if axis == 0:
            self.register_buffer("mean", torch.zeros(features))
            self.register_buffer("var", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; batch norm averages its statistics too."""
        if not self.is_centred:
            root = torch.sqrt((x * x).mean(self.axis, keepdim=True) + EPS)
            return self.weight * (x / root)
        mu = x.mean(self.axis, keepdim=True)
        var = ((x - mu) ** 2).mean(self.axis, keepdim=True)
        if self.axis == 0:
            with torch.no_grad():
                unbiased = var[0] * (len(x) / (len(x) - 1))
                self.mean += 0.1 * (mu[0] - self.mean)
                self.var += 0.1 * (unbiased - self.var)
        return self.weight * ((x - mu) / torch.sqrt(var + EPS)) + self.bias


def bare(x: Any, g: Any, gamma: Any, beta: Any, axis: int, is_centred: bool) -> Any:
    """Compute output and gradients with NumPy, and nothing else."""
    centred = x
    if is_centred:
        centred = x - x.mean(axis, keepdims=True)
        centred = centred - centred.mean(axis, keepdims=True)
    inv_std = ((centred * centred).mean(axis, keepdims=True) + EPS) ** -0.5
    x_hat = centred * inv_std
    y = gamma * x_hat + beta if is_centred else gamma * x_hat
    dl_dx_hat = gamma * g
    along = (dl_dx_hat * x_hat).mean(axis, keepdims=True)
    rest = dl_dx_hat - x_hat * along
    if is_centred:
        rest = rest - dl_dx_hat.mean(axis, keepdims=True)
    return y, inv_std * rest, (g * x_hat).sum(0), g.sum(0)


def layer_step(layer: nn.Module, x: Tensor, g: Tensor) -> Step:
    """Return a function that goes forward and backward once."""
    leaf = x.clone().requires_grad_()
    leaves = [leaf, *layer.parameters()]

    def step() -> Gradients:
        y = layer(leaf)
        return y, *torch.autograd.grad(y, leaves, g)

    return step


def pairs(shape: tuple[int, int]) -> dict[str, tuple[Step, Step]]:
    """Return what is compared: ours and the bare one."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(2, 3, shape), rng.normal(size=shape)
    gamma, beta = rng.normal(1, 0.3, (2, shape[1]))
    tensors = torch.tensor(x).float(), torch.tensor(g).float()
    layers = {
        "BatchNorm1d": (BatchNorm1d(shape[1]), Scratch(shape[1], 0)),
        "LayerNorm": (LayerNorm(shape[1]), Scratch(shape[1], -1)),
        "RMSNorm": (RMSNorm(shape[1], EPS), Scratch(shape[1], -1, is_centred=False)),
    }

    def batch() -> Gradients:
        y, cache = batch_norm_forward(x, gamma, beta, EPS)
        return y, *batch_norm_backward(g, cache)

    def layer() -> Gradients:
        y, cache = layer_norm_forward(x, gamma, beta, EPS)
        return y, *layer_norm_backward(g, cache)

    def rms() -> Gradients:
        y, cache = rms_norm_forward(x, gamma, EPS)
        return y, *rms_norm_backward(g, cache)

    def formula(axis: int, is_centred: bool) -> Step:
        return lambda: bare(x, g, gamma, beta, axis, is_centred)

    return {
        name: (layer_step(ours, *tensors), layer_step(theirs, *tensors))
        for name, (ours, theirs) in layers.items()
    } | {
        "batch_norm (NumPy)": (batch, formula(0, True)),
        "layer_norm (NumPy)": (layer, formula(-1, True)),
        "rms_norm (NumPy)": (rms, formula(-1, False)),
    }


def check(name: str, ours: Step, theirs: Step) -> None:
    """Refuse to time a pair of which one computes something else."""
    for a, b in zip(ours(), theirs(), strict=True):
        error = abs(a - b).max() / abs(b).max()
        if not error <= TOLERANCE:
            raise ValueError(
                f"{name} must compute what the bare formula does, got an error of "
                f"{error:.1e}; nothing is timed."
            )


def measure(ours: Step, theirs: Step, rounds: int) -> dict[str, list[float]]:
    """Seconds of a call in each round, in turns; the first round warms up."""
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(rounds + 1):
        for name, step in (("ours", ours), ("bare", theirs)):
            start = time.perf_counter()
            for _ in range(CALLS):
                step()
            if number:
                seconds[name].append((time.perf_counter() - start) / CALLS)
    return seconds


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Median, lower and upper quartile of each, and of the ratio of each round."""
    rounds = zip(seconds["ours"], seconds["bare"], strict=True)
    row = {}
    for name, values in {**seconds, "ratio": [a / b for a, b in rounds]}.items():
        low, median, high = statistics.quantiles(values, n=4)
        row[name] = {"lower_quartile": low, "median": median, "upper_quartile": high}
    return row


def main() -> None:
    """Time, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.rounds < 15:
        parser.error(f"--rounds must be at least 15, got {options.rounds}")
    torch.set_num_threads(1)
    started = provenance.now()
    rows = []
    print("shape, what: microseconds, of the bare formula; ratio (quartiles)")
    for shape in SHAPES:
        for name, pair in pairs(shape).items():
            check(name, *pair)
            row = summary(measure(*pair, options.rounds))
            rows.append({"shape": shape, "name": name, **row})
            times = [1e6 * row[kind]["median"] for kind in ("ours", "bare")]
            ratio = row["ratio"]
            print(
                f"{shape}, {name:18}: {times[0]:6.0f}, {times[1]:6.0f}; "
                f"{ratio['median']:.2f} ({ratio['lower_quartile']:.2f} to "
                f"{ratio['upper_quartile']:.2f})"
            )
    record = {
        "command": f"python benchmarks/small_inputs.py --rounds {options.rounds}",
        "started": started,
        "threads": 1,
        "rounds": options.rounds,
        **provenance.origin(torch.device("cpu")),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
