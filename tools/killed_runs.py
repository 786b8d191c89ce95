"""Kill one of two processes that share an experiment, at random, and go on.

    python tools/killed_runs.py [--seed 0]

Three experiments of the book, with few steps, run under torchrun. The record of each
must have the numbers of a run that nobody broke.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil

from normbook.experiments.catalogue import EXPERIMENTS
from normbook.lab import record

# Few steps, of few variants, with measurements in between.
SMALL = {
    "sigmoid_net": {"steps": 200, "measure_every": 50},
    "deep_linear": {"steps": 60, "landscape_every": 20, "shift_every": 20},
    "transformer": {"steps": 40},
}
VARIANTS, SEEDS = 2, ["0", "1"]
TORCHRUN = [
    *("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
    *("--nproc-per-node", "2"),
]


def work(name: str, out: str, *options: str) -> int:
    """Be one of the processes: the command, with the small experiment."""
    from normbook.__main__ import main as command

    experiment = EXPERIMENTS[name]
    scale = experiment.scales["live"]
    variants = dict([*scale.settings["variants"].items()][:VARIANTS])
    settings = {**scale.settings, **SMALL[name], "variants": variants}
    small = {"live": replace(scale, settings=settings)}
    EXPERIMENTS[name] = replace(experiment, scales=small)
    return command(["run", name, "--out", out, "--seeds", *SEEDS, *options])


def start(name: str, out: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start two processes that share the runs."""
    given = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *TORCHRUN, __file__, "--work", name, str(out), *options]
    return subprocess.Popen(
        command,
        env=os.environ | given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def numbers(out: Path) -> list[str]:
    """Return all that was computed; as text, in which NaN equals NaN."""
    runs = record.load(out).runs
    return sorted(repr((r.variant, r.seed, r.opening, r.curves)) for r in runs)


def broken(name: str, out: Path, drawn: random.Random, longest: float) -> None:
    """Kill one of the two processes at a random moment, before the record is there."""
    for tries in range(1, 20):
        running = start(
            name,
            out,
            *(["--resume"] if Path(f"{out}.partial/plan.json").exists() else []),
        )
        folder = Path(f"{out}.partial")
        while not folder.exists() and running.poll() is None:
            time.sleep(0.05)
        time.sleep(drawn.uniform(0, longest / tries))
        workers = (
            psutil.Process(running.pid).children() if running.poll() is None else []
        )
        if workers:
            drawn.choice(workers).kill()
        if running.wait() != 0 and not out.exists():
            return
        out.unlink(missing_ok=True)  # its record was there before the kill
    sys.exit(f"{name}: it was done each time before it could be killed")


def main() -> int:
    """Break each experiment; return the exit status."""
    if sys.argv[1:2] == ["--work"]:
        return work(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    drawn = random.Random(parser.parse_args().seed)  # noqa: S311 - no secret
    equal = 0
    for name in SMALL:
        with tempfile.TemporaryDirectory() as scratch:
            whole, out = Path(scratch, "whole.json"), Path(scratch, "broken.json")
            began = time.monotonic()
            if start(name, whole).wait() != 0:
                sys.exit(f"{name}: it fails without being killed")
            broken(name, out, drawn, (time.monotonic() - began) / 2)
            kept = len(list(Path(f"{out}.partial").glob("*.pt")))
            # Killed before there was anything to go on from: begun again, as it says.
            has_begun = Path(f"{out}.partial/plan.json").exists()
            options = ["--resume"] if has_begun else []
            is_done = start(name, out, *options).wait() == 0
            is_equal = is_done and numbers(out) == numbers(whole)
            equal += is_equal
            how = (
                f"killed with {kept} checkpoints, {'went on' if has_begun else 'begun'}"
            )
            print(f"  {name}: {how}, done: {is_done}, equal: {is_equal}", flush=True)
    print(f"killed runs: {equal} of {len(SMALL)} experiments went on to equal numbers")
    return int(equal < len(SMALL))


if __name__ == "__main__":
    sys.exit(main())
