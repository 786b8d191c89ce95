"""An experiment of milliseconds: a noisy line through a few random points.

As a script it is the command ``normbook run tiny``, also under torchrun.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.diagnostics.noise import DistributionNoise
from normbook.experiments import catalogue
from normbook.lab.experiment import (
    Batches,
    Experiment,
    Measurement,
    Run,
    Scale,
    Settings,
    Values,
    generator,
)
from normbook.lab.record import Record


def begin(settings: Settings, seed: int, _: Dataset | None, on: torch.device) -> Run:
    """Make a run with noise in the model, and a measurement that is first NaN."""
    draw, noise = generator(seed, "data"), generator(seed, "noise")
    x = torch.randn(12, 3, dtype=torch.float64, generator=draw)
    model = nn.Sequential(nn.Linear(3, 1, dtype=torch.float64))
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator(seed, "weights"))
    if settings["is_noisy"]:
        model.append(DistributionNoise(generator=noise))

    def weights(run: Run) -> Values:
        flat = run.model.get_parameter("0.weight").flatten().tolist()
        angle = flat[0] / flat[1] if run.step else float("nan")
        signs = "".join("-" if value < 0 else "+" for value in flat)
        return {"each": flat, "angle": angle, "signs": signs}

    return Run(
        model=model.to(on),
        optimizer=torch.optim.SGD(model.parameters(), settings["learning_rate"], 0.9),
        objective=distance,
        batches=Batches(x.to(on), x.sum(1).to(on), 5, generator(seed, "batches")),
        measurements={"weights": Measurement(settings["measure_every"], weights)},
        every=10,
        generators={"noise": noise},
    )


def distance(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"loss": (model(x)[:, 0] - y).square().mean()}


def figures(record: Record) -> dict[str, Figure]:
    figure = Figure()
    losses = record.values("plain", "training", "loss")
    figure.subplots().plot(record.steps("training"), losses.T)
    return {"loss": figure}


EXPERIMENT = Experiment(
    name="tiny",
    title="A noisy line",
    source="Nobody (2000), Fig. 1",
    scales={
        "live": Scale({
            "dtype": "float64", "steps": 30, "learning_rate": 0.05, "measure_every": 10,
            "variants": {
                "plain": {"is_noisy": False},
                "noisy, rate=0.1": {"is_noisy": True, "learning_rate": 0.1},
            },
        }, (0, 3), "", "twelve points"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip


def with_settings(experiment: Experiment, **settings: Any) -> Experiment:
    """Return the experiment with other settings at the scale "live"."""
    scale = experiment.scales["live"]
    scale = replace(scale, settings={**scale.settings, **settings})
    return with_scale(experiment, "live", scale)


def with_variants(experiment: Experiment, *names: str) -> Experiment:
    """Return the experiment with some of its variants at the scale "live"."""
    known = experiment.scales["live"].settings["variants"]
    return with_settings(experiment, variants={name: known[name] for name in names})


def with_seeds(experiment: Experiment, seeds: Sequence[int]) -> Experiment:
    """Return the experiment with other seeds at the scale "live"."""
    scale = replace(experiment.scales["live"], seeds=tuple(seeds))
    return with_scale(experiment, "live", scale)


def with_scale(experiment: Experiment, name: str, scale: Scale) -> Experiment:
    """Return the experiment with one scale more, or another one of that name."""
    return replace(experiment, scales={**experiment.scales, name: scale})


TUNED = with_settings(
    EXPERIMENT,
    tuning={
        "seeds": [100],
        "criterion": {"measurement": "training", "quantity": "loss"},
        "grid": {
            "learning_rate": {"values": [0.001, 0.003], "factor": 3.0, "limits": [0, 9]}
        },
    },
)


# Settings of the experiments of the book for a run of a second, and a variant each.
FEW: dict[str, tuple[str, dict[str, int]]] = {
    "sigmoid_net": ("noisy_batch_norm", {"measure_every": 2}),
    "vgg": (
        "noisy_batch_norm",
        {"test_every": 3, "landscape_every": 3, "shift_every": 3},
    ),
    "deep_linear": ("linf rate=1e-07", {"landscape_every": 2, "shift_every": 3}),
}


def few(name: str) -> Experiment:
    """Return three steps of one variant of an experiment of the book."""
    variant, settings = FEW[name]
    experiment = with_variants(catalogue.EXPERIMENTS[name], variant)
    return with_settings(experiment, steps=3, **settings)


def results(of: Record) -> dict[tuple[str, int], str]:
    """Return all that each run computed; as text, where NaN is NaN."""
    return {(r.variant, r.seed): repr((r.opening, r.curves)) for r in of.runs}


# What tqdm shows of a run: share, steps, time spent and left, speed, loss.
PROGRESS = re.compile(
    r"seed 3: +\d+%\|.*\| \d+/120 \[\d\d:\d\d<\d\d:\d\d, .*step/s, loss \d"
)


def losses_by_hand(seed: int, steps: int) -> list[float]:
    """Return the first losses of "plain", at most two, in NumPy."""
    weight, bias = (
        torch.empty(size, dtype=torch.float64).normal_(
            generator=generator(seed, "weights")
        ).numpy()
        for size in (3, 1)
    )  # fmt: skip
    draw = generator(seed, "data")
    x = torch.randn(12, 3, dtype=torch.float64, generator=draw).numpy()
    order = torch.randperm(12, generator=generator(seed, "batches")).numpy()
    v_weight, v_bias, losses = 0 * weight, 0 * bias, []
    for k in range(steps):
        batch = x[order[5 * k : 5 * k + 5]]
        residual = batch @ weight + bias - batch.sum(1)
        losses.append((residual**2).mean().item())
        v_weight = 0.9 * v_weight + 2 * residual @ batch / 5
        v_bias = 0.9 * v_bias + 2 * residual.mean()
        weight, bias = weight - 0.05 * v_weight, bias - 0.05 * v_bias
    return losses


def slowed(run: Run) -> Run:
    """Let an update take 20 ms, and a measurement 100 ms."""
    update = run.update

    def slow_update() -> float:
        time.sleep(0.02)
        return update()

    def slow(measurement: Measurement) -> Measurement:
        def measure(run: Run) -> Values:
            time.sleep(0.1)
            return measurement.measure(run)

        return measurement._replace(measure=measure)

    run.update = slow_update  # type: ignore[method-assign]
    run.measurements = {name: slow(m) for name, m in run.measurements.items()}
    return run


def faster(experiment: Experiment, factor: float = 1.01) -> Experiment:
    """Let the code take a rate of 1 % more than the settings say, or another."""

    def begin(settings: Settings, *others: Any) -> Run:
        rate = factor * settings["learning_rate"]
        return experiment.begin({**settings, "learning_rate": rate}, *others)

    return replace(experiment, begin=begin)


def scaled(value: Any, factor: float) -> Any:
    """Multiply a number, or all in nested lists."""
    if isinstance(value, list):
        return [scaled(inner, factor) for inner in value]
    return None if value is None else value * factor


def main() -> int:
    """Run it with the options of the command, slowly if the first is --slow."""
    from normbook.__main__ import main as command

    arguments = sys.argv[1:]
    catalogue.EXPERIMENTS["tiny"] = EXPERIMENT
    if arguments[:1] == ["--tuned"]:
        del arguments[0]
        catalogue.EXPERIMENTS["tiny"] = TUNED
    if arguments[:1] == ["--slow"]:
        del arguments[0]
        slow = replace(EXPERIMENT, begin=lambda *a: slowed(begin(*a)))
        catalogue.EXPERIMENTS["tiny"] = slow
    # A shell starts what is in the background with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return command(["run", "tiny", *arguments])


if __name__ == "__main__":
    sys.exit(main())
