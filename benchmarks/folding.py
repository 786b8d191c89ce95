"""What folding batch norm saves at inference: time, memory, operations.

Run it on a machine that does nothing else:

    python benchmarks/folding.py --out folding.json

Each network runs in evaluation mode without gradients, with one thread: as it was
trained, and folded. The two take turns, and each round gives one ratio. Beside the
times stand what can be counted: parameters, buffers, and the bytes that all layers
write. Before anything is timed, both are compared with the network in float64.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.lab import provenance
from normbook.lab.architectures import stir
from normbook.layers.folding import fold_batch_norm

ROUNDS = 31
WARM_UP = 3
BLOCKS = 8
BATCHES = (1, 16)
# float32 against float64, of the largest output.
TOLERANCE = 1e-4


class Network(NamedTuple):
    """How to build it, and the shape of one input."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def dense(width: int = 512) -> nn.Module:
    """Linear, batch norm, ReLU, several times."""
    block = (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
    return nn.Sequential(*(copy.deepcopy(nn.Sequential(*block)) for _ in range(BLOCKS)))


def convolutional(width: int = 32, groups: int = 1) -> nn.Module:
    """3 x 3 convolution, batch norm, ReLU, several times."""
    conv = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
    block = (conv, nn.BatchNorm2d(width), nn.ReLU())
    return nn.Sequential(*(copy.deepcopy(nn.Sequential(*block)) for _ in range(BLOCKS)))


def separable(width: int = 32) -> nn.Module:
    """Depthwise and pointwise convolutions, each with batch norm and ReLU."""
    pointwise = (
        nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
    )  # fmt: skip
    layers: list[nn.Module] = []
    for depthwise in convolutional(width, groups=width).children():
        layers += [depthwise, copy.deepcopy(nn.Sequential(*pointwise))]
    return nn.Sequential(*layers)


NETWORKS = {
    "dense": Network(dense, (512,)),
    "convolutional": Network(convolutional, (32, 32, 32)),
    "separable": Network(separable, (32, 32, 32)),
}


@torch.no_grad()
def check(network: nn.Module, folded: nn.Module, x: Tensor) -> None:
    """Refuse to time a network that computes something else, or nothing."""
    exact = copy.deepcopy(network).double()(x.double())
    for name, model in (("the network", network), ("the folded network", folded)):
        error = float((model(x) - exact).abs().max() / exact.abs().max())
        if not error <= TOLERANCE:
            raise ValueError(
                f"{name} must compute what float64 computes to {TOLERANCE}, got an "
                f"error of {error:.1e}; nothing is timed."
            )


@torch.no_grad()
def sizes(network: nn.Module, x: Tensor) -> dict[str, int]:
    """Count numbers in parameters and buffers, and bytes that layers write."""
    written = 0

    def add(layer: nn.Module, args: Any, y: Tensor) -> None:
        nonlocal written
        if not isinstance(layer, nn.Identity):  # it gives its input
            written += y.numel() * y.element_size()

    leaves = [m for m in network.modules() if not any(True for _ in m.children())]
    hooks = [leaf.register_forward_hook(add) for leaf in leaves]
    try:
        network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        "parameters": sum(value.numel() for value in network.parameters()),
        "buffers": sum(value.numel() for value in network.buffers()),
        "activation_bytes": written,
    }


@torch.no_grad()
def measure(network: nn.Module, folded: nn.Module, x: Tensor, rounds: int) -> Any:
    """Seconds of each round, in turns."""
    seconds: dict[str, list[float]] = {"network": [], "folded": []}
    models = {"network": network, "folded": folded}
    for number in range(WARM_UP + rounds):
        for name, model in models.items():
            start = time.perf_counter()
            model(x)
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Median, lower and upper quartile of each, and of the ratio of each round."""
    pairs = zip(seconds["network"], seconds["folded"], strict=True)
    rounds = {**seconds, "speed_of_folded": [a / b for a, b in pairs]}
    row = {}
    for name, values in rounds.items():
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
    generator = torch.Generator().manual_seed(0)
    rows = []
    print("network, batch: ms, folded ms; speed of the folded one; bytes written")
    for name, (build, shape) in NETWORKS.items():
        for size in BATCHES:
            network = stir(build(), generator)
            folded = fold_batch_norm(network)
            x = torch.randn(size, *shape, generator=generator)
            check(network, folded, x)
            row: dict[str, Any] = {
                "network": name,
                "batch": size,
                "sizes": {
                    "network": sizes(network, x), "folded": sizes(folded, x),
                },
                "seconds": summary(measure(network, folded, x, options.rounds)),
            }  # fmt: skip
            rows.append(row)
            times = [1e3 * row["seconds"][k]["median"] for k in ("network", "folded")]
            speed = row["seconds"]["speed_of_folded"]["median"]
            written = [row["sizes"][k]["activation_bytes"] for k in row["sizes"]]
            print(
                f"{name:13}, {size:2}: {times[0]:8.3f}, {times[1]:8.3f}; {speed:.2f}; "
                f"{written[0]} -> {written[1]}"
            )
    record = {
        "command": f"python benchmarks/folding.py --rounds {options.rounds}",
        "started": started,
        "threads": 1,
        "dtype": "float32",
        "rounds": options.rounds,
        **provenance.origin(torch.device("cpu")),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
