"""What the compiled loop of the LSTM costs before it saves anything.

Run it on a machine that does nothing else:

    python benchmarks/first_call.py --out first_call.json

Each process is fresh, and the cases take turns:

- ``without``: numba cannot be imported, operators of torch run the steps;
- ``empty``: numba has compiled nothing yet;
- ``filled``: the loop is in numba's cache, as ``make setup`` leaves it.

Timed by the clock are ``import torch``; the import of the layer after it; the first
call, forward and backward, in which numba is imported; and a later call. Before it is
timed, each case must have run what it says, and computed the same as the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch

from normbook.lab import provenance

ROUNDS = 7
CASES = ("without", "empty", "filled")
PARTS = ("torch", "layer", "first", "later")
TOLERANCE = 1e-4  # float32, of a mean
SIZE = {"steps": 100, "examples": 32, "features": 256, "units": 256}
CHILD = """
import json, statistics, sys, time
if sys.argv[1] == "without":
    sys.modules["numba"] = None
times = [time.perf_counter()]
import torch
times.append(time.perf_counter())
from normbook.layers.lstm import LayerNormLSTM
times.append(time.perf_counter())
torch.set_num_threads(1)
torch.manual_seed(0)
steps, examples, features, units = map(int, sys.argv[2:])
layer = LayerNormLSTM(features, units)
with torch.no_grad():  # with gains of 1 rounding grows from step to step
    for value in (layer.gamma_h_l0, layer.gamma_x_l0):
        value.fill_(0.25)
x = torch.randn(steps, examples, features)
def call():
    start = time.perf_counter()
    layer.zero_grad()
    h, _ = layer(x)
    h.square().mean().backward()
    return time.perf_counter() - start
first = call()
later = statistics.median(call() for _ in range(5))
a, b, c = times
print(json.dumps({
    "torch": b - a, "layer": c - b, "first": first, "later": later,
    "has_numba": sys.modules.get("numba") is not None,
    "found": float(layer.w_h_l0.grad.abs().mean()),
}))
"""


def run(case: str, cache: Path, size: dict[str, int] = SIZE) -> dict[str, Any]:
    """Run one process; refuse one that did not run what the case says."""
    before = entries(cache)
    child = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHILD, case, *map(str, size.values())],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache), "NORMBOOK_NATIVE": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(child.stdout)
    ran = "without"
    if found["has_numba"]:
        ran = "empty" if entries(cache) > before else "filled"
    if ran != case:
        raise ValueError(
            f"a process must run the case {case!r}, got {ran!r}; nothing is timed."
        )
    return found


def entries(cache: Path) -> int:
    """Count what numba has compiled."""
    return len(list(cache.rglob("*.nbc")))


def measure(rounds: int, size: dict[str, int] = SIZE) -> dict[str, dict[str, Any]]:
    """Run all cases in turns; return the seconds of each part."""
    seconds: dict[str, dict[str, Any]] = {c: {p: [] for p in PARTS} for c in CASES}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:  # filled by the case before
            found = {case: run(case, Path(folder), size) for case in CASES}
        check({case: values["found"] for case, values in found.items()})
        for case, values in found.items():
            for name in PARTS:
                seconds[case][name].append(values[name])
    return seconds


def check(found: dict[str, float]) -> None:
    """Refuse cases that compute different numbers."""
    least, most = min(found.values()), max(found.values())
    if not most - least <= TOLERANCE * most:
        raise ValueError(f"all cases must compute the same, got {found}.")


def summary(values: list[float]) -> dict[str, float]:
    """Quartiles of some seconds."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"lower_quartile": low, "median": median, "upper_quartile": high}


def megabytes(package: str) -> float:
    """Size of an installed package, in 10^6 bytes."""
    files = [Path(str(file.locate())) for file in distribution(package).files or ()]
    return sum(file.stat().st_size for file in files if file.exists()) / 1e6


def main() -> None:
    """Time, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.rounds < 5:
        parser.error(f"--rounds must be at least 5, got {options.rounds}")
    started = provenance.now()
    seconds = measure(options.rounds)
    cases = {
        case: {name: summary(values) for name, values in parts.items()}
        for case, parts in seconds.items()
    }
    print("seconds: " + ", ".join(PARTS))
    for case, parts in cases.items():
        medians = (f"{parts[name]['median']:8.3f}" for name in PARTS)
        print(f"{case:8}" + "".join(medians))
    sizes = {name: megabytes(name) for name in ("numba", "llvmlite")}
    print(", ".join(f"{name}: {size:.0f} MB" for name, size in sizes.items()))
    record = {
        "command": f"python benchmarks/first_call.py --rounds {options.rounds}",
        "started": started,
        "threads": 1,
        "rounds": options.rounds,
        "size": SIZE,
        **provenance.origin(torch.device("cpu")),
        "megabytes": sizes,
        "cases": cases,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
