"""What normalization layers cost beside torch's own, and beside a copy of the input.

Run it on a machine that does nothing else:

    python benchmarks/norms.py --out norms.json

Timed are the forward pass, and forward and backward with the gradients of x, gamma and
beta, float32, in training, in rounds in which the variants take turns:

- ``functional``: torch's own, as ``torch.nn.functional.layer_norm``; the yardstick.
- ``layer``: our layer, in compiled loops where numba is installed.
- ``formulas``: our layer without them, the closed form in torch's operators.
- ``elementwise``: written from the definition; autograd goes back.
- ``var_mean``: the same with ``torch.var_mean``.

A normalization reads x and writes y; on the way back it reads x and dl_dy and writes
dl_dx. These bytes, the least that must be moved, over the time are the bandwidth, told
as a share of that of ``y.copy_(x)`` in the same rounds, which reads and writes memory
that it has. So does a product of two matrices tell what else the core can do.

With one thread the time is that of the processor, with several that of the clock.
Before anything is timed, the output and every gradient of each variant are compared
with the definition in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from normbook.lab import provenance
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.layers.group_norm import GroupNorm
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.layers.native import NATIVE
from normbook.normalize import METHODS, normalize_backward, normalize_forward

ROUNDS = 15
WARM_UP = 2
EPS = 1e-5
# float32 against float64, as a share of the largest value.
TOLERANCE = 1e-5
GROUPS = 32
LEAST = 2**20  # numbers in a round: one call on few is too short for a clock
SIDE = 512  # of the matrices of the product

IMAGES = (32, 64, 28, 28)
SMALL = ((64, 32), (32, 256))
ROWS = (
    (4096, 1024), (128, 1000), *SMALL, *((4096, d) for d in (32, 128, 512, 2048)),
)  # fmt: skip
SHAPES = {
    "layer norm": ROWS,
    "RMSNorm": ROWS,
    "batch norm": (*ROWS, IMAGES),
    "group norm": (IMAGES,),
}


class Variant(NamedTuple):
    """One way to compute y, and what its gradients are taken in."""

    run: Callable[[Tensor], Tensor]
    parameters: tuple[Tensor, ...]
    is_native: bool = True


class Running:
    """Running statistics, as the layer keeps them."""

    def __init__(self, channels: int) -> None:
        self.mean, self.var = torch.zeros(channels), torch.ones(channels)

    @torch.no_grad()
    def update(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Take in mean and biased variance of so many values."""
        self.mean += 0.1 * (mean.flatten() - self.mean)
        self.var += 0.1 * (var.flatten() * (count / (count - 1)) - self.var)


def definition(method: str, x: Tensor) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the shape to normalize x in, and the axes."""
    shape = tuple(x.shape)
    if method == "group norm":
        shape = (shape[0], GROUPS, shape[1] // GROUPS, *shape[2:])
    return shape, METHODS[method].of(len(shape))


def variants(method: str, shape: tuple[int, ...]) -> dict[str, Variant]:
    """Make all variants with the same fresh parameters."""
    torch.manual_seed(0)
    channels = shape[1]
    layer: Any = {
        "layer norm": lambda: LayerNorm(channels, EPS),
        "RMSNorm": lambda: RMSNorm(channels, EPS),
        "batch norm": lambda: (BatchNorm1d if len(shape) == 2 else BatchNorm2d)(
            channels, EPS
        ),
        "group norm": lambda: GroupNorm(GROUPS, channels, EPS),
    }[method]()
    with torch.no_grad():  # gains of 1 and biases of 0 would hide an exchange
        for value in layer.parameters():
            value.uniform_(0.5, 2)
    parameters = tuple(layer.parameters())
    running = Running(channels)
    own: Any = {
        "layer norm": lambda x: F.layer_norm(x, (channels,), *parameters, EPS),
        "RMSNorm": lambda x: F.rms_norm(x, (channels,), *parameters, EPS),
        "batch norm": lambda x: F.batch_norm(
            x, running.mean, running.var, *parameters, True, 0.1, EPS
        ),
        "group norm": lambda x: F.group_norm(x, GROUPS, *parameters, EPS),
    }[method]
    found = {
        "functional": Variant(own, parameters),
        "layer": Variant(layer, parameters),
        "formulas": Variant(layer, parameters, is_native=False),
    }
    for name in ("elementwise", "var_mean")[: 1 if method == "RMSNorm" else 2]:
        run = partial(from_scratch, method, name, Running(channels), parameters)
        found[name] = Variant(run, parameters)
    return found


def from_scratch(
    method: str, how: str, running: Running, parameters: tuple[Tensor, ...], x: Tensor
) -> Tensor:
    """Normalize as one writes it from a formula, without a check."""
    shape, layout = definition(method, x)
    axes, values = layout["axes"], x.reshape(shape)
    if method == "RMSNorm":
        x_hat = values / torch.sqrt((values * values).mean(axes, keepdim=True) + EPS)
        return x_hat * parameters[0]
    if how == "var_mean":
        var, mu = torch.var_mean(values, axes, correction=0, keepdim=True)
    else:
        mu = values.mean(axes, keepdim=True)
        var = ((values - mu) ** 2).mean(axes, keepdim=True)
    if method == "batch norm":
        running.update(mu, var, x.numel() // x.shape[1])
    x_hat = ((values - mu) / torch.sqrt(var + EPS)).reshape(x.shape)
    along = [1] * x.ndim
    along[1] = -1
    gamma, beta = (value.reshape(along) for value in parameters)
    return x_hat * gamma + beta


def inputs(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Return x and what arrives at y."""
    generator = torch.Generator().manual_seed(seed)
    x, dl_dy = (torch.randn(shape, generator=generator) for _ in range(2))
    return 3 * x + 2, dl_dy


@contextmanager
def allowing(is_native: bool) -> Iterator[None]:
    """Let the compiled loops run, or not."""
    before = os.environ.get(NATIVE)
    os.environ[NATIVE] = "1" if is_native else "0"
    try:
        yield
    finally:
        del os.environ[NATIVE]
        if before is not None:
            os.environ[NATIVE] = before


def step(variant: Variant, x: Tensor, dl_dy: Tensor) -> list[Tensor]:
    """Return y and the gradients."""
    y = variant.run(x)
    return [y, *torch.autograd.grad(y, [x, *variant.parameters], dl_dy)]


def check(name: str, variant: Variant, method: str, shape: tuple[int, ...]) -> None:
    """Refuse, by a ValueError, to time what does not compute the definition.

    Compared are the output and every gradient.
    """
    x, dl_dy = inputs(shape, seed=1)
    with allowing(variant.is_native):
        found = step(variant, x.clone().requires_grad_(), dl_dy)
    split, layout = definition(method, x)
    gains = [split[axis] for axis in layout["parameter_axes"]]
    exact = [v.detach().double().reshape(gains) for v in variant.parameters]
    y, cache = normalize_forward(x.double().reshape(split), *exact, eps=EPS, **layout)
    slopes = normalize_backward(dl_dy.double().reshape(split), cache)
    names = ("y", "dl_dx", "dl_dgamma", "dl_dbeta")
    for key, a, b in zip(names, found, (y, *slopes), strict=False):
        error = float((a.detach() - b.reshape(a.shape)).abs().max() / b.abs().max())
        if not error <= TOLERANCE:
            raise ValueError(
                f"{key} of {name} must be that of the definition of {method} to "
                f"{TOLERANCE}, got an error of {error:.1e} for {shape}; nothing is "
                "timed."
            )


def measure(
    method: str, shape: tuple[int, ...], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Time all variants; return seconds of a call in each round, by kind and name."""
    all_variants = variants(method, shape)
    for name, variant in all_variants.items():
        check(name, variant, method, shape)
    # One thread is charged for its own work alone, whatever else runs beside it.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    calls = max(1, LEAST // prod(shape))
    x, dl_dy = inputs(shape, seed=2)
    leaf, y = x.clone().requires_grad_(), torch.empty_like(x)
    matrix = torch.randn(SIDE, SIDE)
    product = torch.empty_like(matrix)
    seconds: dict[str, dict[str, list[float]]] = {
        "forward": {name: [] for name in all_variants},
        "both": {name: [] for name in all_variants},
        "beside": {"copy": [], "product": []},
    }

    def timed(run: Callable[[], Any], calls: int) -> float:
        start = clock()
        for _ in range(calls):
            run()
        return (clock() - start) / calls

    for number in range(WARM_UP + rounds):
        found = {
            ("beside", "copy"): timed(partial(y.copy_, x), calls),
            ("beside", "product"): timed(
                partial(torch.mm, matrix, matrix, out=product), 1
            ),
        }
        for name, variant in all_variants.items():
            with allowing(variant.is_native):
                with torch.no_grad():
                    found["forward", name] = timed(partial(variant.run, x), calls)
                run = partial(step, variant, leaf, dl_dy)
                found["both", name] = timed(run, calls)
        if number >= WARM_UP:
            for (kind, name), value in found.items():
                seconds[kind][name].append(value)
    return seconds


def summary(
    seconds: dict[str, dict[str, list[float]]], size: int
) -> dict[str, dict[str, Any]]:
    """Return quartiles, speeds as shares of the yardstick's, and bandwidths.

    ``size`` is that of x in bytes. Ratios are medians over the rounds.
    """
    copy = seconds["beside"]["copy"]
    rows: dict[str, dict[str, Any]] = {
        "beside": {name: quartiles(v) for name, v in seconds["beside"].items()}
    }
    rows["beside"]["copy"]["gigabytes_per_second"] = rate(2 * size, copy)
    rows["beside"]["product"]["gigaflop_per_second"] = rate(
        2 * SIDE**3, seconds["beside"]["product"]
    )
    for kind, times in (("forward", 2), ("both", 5)):
        rows[kind] = {}
        for name, values in seconds[kind].items():
            own = zip(seconds[kind]["functional"], values, strict=True)
            of_copy = zip(copy, values, strict=True)
            rows[kind][name] = {
                **quartiles(values),
                "bytes": times * size,
                "gigabytes_per_second": rate(times * size, values),
                "speed_over_functional": statistics.median(a / b for a, b in own),
                "share_of_copy_bandwidth": statistics.median(
                    times / 2 * a / b for a, b in of_copy
                ),
            }
    return rows


def quartiles(values: list[float]) -> dict[str, Any]:
    """Return median, lower and upper quartile."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"lower_quartile": low, "median": median, "upper_quartile": high}


def rate(amount: float, values: list[float]) -> float:
    """Return 10^9 a second, by the median."""
    return amount / statistics.median(values) / 1e9


def main() -> None:
    """Time, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.rounds < 15:
        parser.error(f"--rounds must be at least 15, got {options.rounds}")
    torch.set_num_threads(options.threads)
    started = provenance.now()
    rows = []
    print("median in microseconds; speed / functional's; share of the copy bandwidth")
    for method, shapes in SHAPES.items():
        for shape in shapes:
            size = 4 * prod(shape)
            row = summary(measure(method, shape, options.rounds), size)
            rows.append({"method": method, "shape": shape, **row})
            copy, product = row["beside"]["copy"], row["beside"]["product"]
            print(
                f"{method} {shape}: copy {copy['gigabytes_per_second']:.1f} GB/s, "
                f"product {product['gigaflop_per_second']:.0f} Gflop/s"
            )
            for name in row["both"]:
                cells = [
                    f"{1e6 * part['median']:9.0f} {part['speed_over_functional']:5.2f} "
                    f"{part['share_of_copy_bandwidth']:5.2f}"
                    for part in (row["forward"][name], row["both"][name])
                ]
                print(f"  {name:12}" + " | ".join(cells), flush=True)
    record = {
        "command": f"python benchmarks/norms.py --rounds {options.rounds} "
        f"--threads {options.threads}",
        "started": started,
        "threads": options.threads,
        "dtype": "float32",
        "rounds": options.rounds,
        "capability": torch.backends.cpu.get_cpu_capability(),
        **provenance.origin(torch.device("cpu")),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
