"""What synchronized batch norm costs beside the local layer: two processes, gloo.

Run it on a machine that does nothing else:

    python benchmarks/sync_batch_norm.py --out sync_batch_norm.json

Each process holds half of a batch and computes with one thread. Timed are the
all-reduce of the two vectors of the backward pass alone, the local layer, and the
synchronized one, forward and backward with all gradients, in rounds that take turns.
A round lasts from a barrier until the slower process is done.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from normbook.lab import provenance
from normbook.lab.processes import run
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.sync_batch_norm import SyncBatchNorm

PROCESSES = 2
SHAPES = [(64, 16), (64, 256), (64, 4096), (1024, 16), (1024, 256), (1024, 4096)]
ROUNDS = 101
WARM_UP = 5
# float32 against float64: some roundings.
TOLERANCE = 1e-5


def draw(size: int, channels: int, seed: int) -> Tensor:
    """Give a batch with mean 2 and deviation 3; the same in all processes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, channels, generator=generator) * 3 + 2


def step(layer: torch.nn.Module, x: Tensor, dl_dy: Tensor) -> list[Tensor]:
    """Forward and backward: y, dl_dx, dl_dgamma, dl_dbeta."""
    y: Tensor = layer(x)
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], dl_dy)]


def shard(values: Tensor) -> Tensor:
    """Give the part of this process."""
    return values.chunk(PROCESSES)[distributed.get_rank()]


def check(size: int, channels: int) -> None:
    """Refuse to time what is not batch norm of the whole batch, in float64."""
    x, dl_dy = draw(PROCESSES * size, channels, 2), draw(PROCESSES * size, channels, 3)
    whole = step(
        BatchNorm1d(channels, dtype=torch.float64),
        x.double().requires_grad_(),
        dl_dy.double(),
    )
    own = step(SyncBatchNorm(channels), shard(x).requires_grad_(), shard(dl_dy))
    for gradient in own[2:]:
        distributed.all_reduce(gradient)
    expected = [shard(whole[0]), shard(whole[1]), *whole[2:]]
    for name, a, b in zip(("y", "dx", "dgamma", "dbeta"), own, expected, strict=True):
        error = float((a - b).detach().abs().max() / b.detach().abs().max())
        if not error <= TOLERANCE:
            raise ValueError(
                f"{name} must be that of the whole batch to {TOLERANCE}, got an error "
                f"of {error:.1e} for {size} x {channels}; nothing is timed."
            )


def measure(rounds: int) -> list[dict[str, Any]]:
    """Time all shapes in one process of a group.

    Parameters
    ----------
    rounds : int

    Returns
    -------
    list of dict
        For each shape the seconds of each round.
    """
    found = []
    for size, channels in SHAPES:
        check(size, channels)
        x = draw(size, channels, distributed.get_rank()).requires_grad_()
        dl_dy = draw(size, channels, 10 + distributed.get_rank())
        local, sync = BatchNorm1d(channels), SyncBatchNorm(channels)
        vectors = draw(2, channels, 20)
        variants: dict[str, Callable[[], Any]] = {
            "all_reduce": partial(distributed.all_reduce, vectors),
            "local": partial(step, local, x, dl_dy),
            "sync": partial(step, sync, x, dl_dy),
        }
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(WARM_UP + rounds):
            for name, variant in variants.items():
                distributed.barrier()
                start = time.perf_counter()
                variant()
                if number >= WARM_UP:
                    seconds[name].append(time.perf_counter() - start)
        found.append({"size": size, "channels": channels, "seconds": seconds})
    return found


def summary(results: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Median, lower and upper quartile of the slower process, and the ratios."""
    rows = []
    for of_ranks in zip(*results, strict=True):
        row = {name: of_ranks[0][name] for name in ("size", "channels")}
        rounds = {
            name: [
                max(r)
                for r in zip(*(o["seconds"][name] for o in of_ranks), strict=True)
            ]
            for name in of_ranks[0]["seconds"]
        }
        for name, seconds in rounds.items():
            low, median, high = statistics.quantiles(seconds, n=4)
            row[name] = {
                "lower_quartile": low,
                "median": median,
                "upper_quartile": high,
            }
        ratios = [a / b for a, b in zip(rounds["sync"], rounds["local"], strict=True)]
        row["sync_over_local"] = statistics.median(ratios)
        extra = row["sync"]["median"] - row["local"]["median"]
        row["extra_in_all_reduces"] = extra / row["all_reduce"]["median"]
        rows.append(row)
    return rows


def main() -> None:
    """Time, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.rounds < 15:
        parser.error(f"--rounds must be at least 15, got {options.rounds}")
    started = provenance.now()
    rows = summary(run(measure, PROCESSES, options.rounds, timeout=600.0))
    print("examples a process x channels: all-reduce, local, sync in ms; sync / local")
    for row in rows:
        times = [1e3 * row[name]["median"] for name in ("all_reduce", "local", "sync")]
        print(
            f"{row['size']:5} x {row['channels']:4}: "
            + ", ".join(f"{t:8.3f}" for t in times)
            + f"; {row['sync_over_local']:.2f}"
        )
    record = {
        "command": f"python benchmarks/sync_batch_norm.py --rounds {options.rounds}",
        "started": started,
        "processes": PROCESSES,
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
