"""Each experiment of the book in milliseconds, and what its figures show."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tiny
import torch

from normbook.experiments import deep_linear, transformer, which_hat
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.lab import runner, tuning
from normbook.lab.experiment import Experiment, Run
from normbook.lab.record import Record, RunRecord
from normbook.looks import STYLES

CPU = torch.device("cpu")
EXACT = 1e-12  # float64, other orders of sums
COLOURS: dict[str, str] = {kind: style["color"] for kind, style in STYLES.items()}


def untuned(quantity: str, **others: list[float]) -> dict[str, Any]:
    """Tune with choices alone: so soon no rate is better than another."""
    values = {"learning_rate": [0.01], **others}
    tuning = {
        "seeds": [100],
        "criterion": {"measurement": "validation", "quantity": quantity},
        "grid": {name: {"values": of} for name, of in values.items()},
    }
    return {"tuning": tuning}


def _conv_norms(name: str) -> dict[str, Any]:
    """Let batches be of 6 and of 3, and runs of at most 12 steps."""
    variants = {}
    for variant, own in EXPERIMENTS[name].scales["live"].settings["variants"].items():
        size = 6 if own["batch_size"] == 32 else 3
        steps = 36 // size
        short: dict[str, Any] = {"batch_size": size, "steps": steps, "warm_up": 2}
        short |= {"measure_every": steps // 2, "average_over": steps // 3}
        short |= untuned("loss", learning_rate=[0.01, 0.02])
        variants[variant] = {**own, **short}
    return {"variants": variants, "layers": [[4, 2], [8, 1]], "groups": 2}


def _without_norm(name: str, **clipped: list[float]) -> dict[str, Any]:
    """Let runs be of 6 steps, with two rates."""
    live = EXPERIMENTS[name].scales["live"].settings["variants"]
    short: dict[str, Any] = {"steps": 6, "warm_up": 2, "measure_every": 3}
    short |= {"average_over": 2}
    variants = {}
    for variant, own in live.items():
        more = clipped if variant == "nf_clipped" else {}
        rates = {"learning_rate": [0.01, 0.02]}
        variants[variant] = {**own, **short, **untuned("loss", **rates, **more)}
    return {"variants": variants, "depth": 2, "batch_size": 6}


def _batch_size_tuned() -> dict[str, Any]:
    """Let batches be of 8 and of 4, and runs of 6 steps and of 12."""
    variants = {}
    live = EXPERIMENTS["batch_size_tuned"].scales["live"].settings["variants"]
    for variant, own in live.items():
        size = {64: 8, 8: 4}[own["batch_size"]]
        steps = 48 // size
        short: dict[str, Any] = {"batch_size": size, "steps": steps}
        short |= {"measure_every": steps, "average_over": steps}
        short |= untuned("error", learning_rate=[0.001, 0.002])
        variants[variant] = {**own, **short}
    return {"variants": variants, "width": 5, "examples": 48}


SETTINGS: dict[str, dict[str, Any]] = {
    "sigmoid_net": {"steps": 8, "measure_every": 4, "width": 12},
    "sigmoid_net_tuned": {
        "steps": 8, "measure_every": 2, "test_every": 4, "width": 12,
        "tuning": {  # every point is there at once
            "seeds": [100],
            "criterion": {
                "measurement": "validation", "quantity": "accuracy",
                "is_higher_better": True, "level": 0.01,
            },
            "grid": {"learning_rate": {"values": [1.0, 3.0]}, "std": {"values": [0.3]}},
        },
    },
    "vgg": {
        "steps": 6, "batch_size": 16, "layers": [5, "pool", 6], "hidden": 4,
        "followed": [0, 1], "average_over": 2, "landscape_every": 3, "shift_every": 3,
        "test_every": 3,  # a layer has at least the units that are followed
    },
    "vgg_tuned": {
        "steps": 6, "batch_size": 16, "layers": [5, "pool", 6], "hidden": 4,
        "average_over": 2, "shift_every": 3, "test_every": 3,
    },
    "smoothness_rates": {
        "steps": 6, "batch_size": 16, "layers": [5, "pool", 6], "hidden": 4,
        "average_over": 2, "measure_every": 3,
    },
    "deep_linear": {
        "depth": 3, "size": 2, "examples": 20, "steps": 6, "average_over": 2,
        "landscape_every": 2, "shift_every": 3,
        "variants": deep_linear._variants(1e-6, 1e-7),
    },
    "batch_4": {
        "width": 5, "examples": 48, "batch_size": 8, "measure_every": 6, "steps": 18,
    },
    "batch_size_tuned": _batch_size_tuned(),
    "vowels_tuned": {"batch_size": 60, "steps": 2, "measure_every": 2, "hidden": 5}
    | untuned("loss"),
    "vowels_longer_tuned": {
        "batch_size": 60, "steps": 2, "measure_every": 2, "hidden": 5,
    } | untuned("loss"),
    "conv_norms_tuned": _conv_norms("conv_norms_tuned"),
    "conv_norms_border": _conv_norms("conv_norms_border"),
    "without_norm": _without_norm("without_norm", most=[0.01, 0.1])
    | {"stem": [[4, 2], [6, 2]]},
    "without_norm_tanh": _without_norm("without_norm_tanh")
    | {"stem": [[4, 2], [6, 2]]},
    "without_norm_attention": _without_norm("without_norm_attention")
    | {"width": 6, "heads": 2},
    "transformer": {
        "depth": 2, "width": 6, "heads": 2, "batch_size": 7, "steps": 6,
        "average_over": 2, "test_every": 3,
        "variants": transformer._grid([0.01, 0.02, 0.04], warmup=4),
    },
    "handwriting_tuned": {
        "steps": 4, "hidden": 5, "components": 3, "test_every": 2, "average_over": 2,
        "sample_steps": 7, "few_every": 1,
    } | untuned("line"),
    "which_hat_counting": {
        "train": 40, "tested": 10, "letters": 5, "most": 2, "hidden": 6, "steps": 4,
        "batch_size": 8, "average_over": 2, "test_every": 2,
        "variants": which_hat.variants(("", "p", "c", "pqc"), ("pq",), ("pqc",)),
    },
    "which_hat_strokes": {
        "steps": 4, "hidden": 5, "components": 3, "test_every": 2, "average_over": 2,
        "cut": 20,
    },
    "which_hat_qa1": {
        "train": 60, "tested": 30, "validated": 20, "hidden": 6, "embedding": 4,
        "batch_size": 8, "steps": 4, "average_over": 2, "test_every": 2,
    } | untuned("loss", forget_bias=[0, 1]),
    "reading_tuned": {
        "train": 40, "tested": 30, "validated": 10, "seen": 5, "hidden": 6,
        "embedding": 4, "batch_size": 8, "steps": 4, "average_over": 2,
        "test_every": 2,
    } | untuned("error", learning_rate=[0.01, 0.1]),
    "reading": {
        "train": 40, "tested": 30, "hidden": 6, "embedding": 4, "batch_size": 8,
        "steps": 4, "average_over": 2, "test_every": 2,
    },
}  # fmt: skip


def experiment(name: str, **changed: Any) -> Experiment:
    """Return the experiment, small, at the scale "live"."""
    small = {**SETTINGS[name], **changed}
    return tiny.with_seeds(tiny.with_settings(EXPERIMENTS[name], **small), (0, 1))


def variants(name: str) -> list[str]:
    return list(experiment(name).scales["live"].settings["variants"])


@cache
def data(name: str) -> Any:
    return runner.load_data(EXPERIMENTS[name].scales["live"])


@cache
def record(name: str) -> Record:
    """Return the record of all its variants with two seeds."""
    return runner.run(experiment(name), "live")


def begun(
    name: str,
    variant: str,
    *,
    seed: int = 3,
    on: Any = None,
    place: torch.device = CPU,
    **changed: Any,
) -> Run:
    """Begin one of its runs, on other data if there are any."""
    scale = experiment(name).scales["live"]
    settings = runner.variant_settings(scale, variant)
    settings |= tuning.first_point(scale.settings, variant) | changed
    examples = data(name) if on is None else on
    return EXPERIMENTS[name].begin(settings, seed, examples, place)


def invented(name: str, settings: Any, runs: list[RunRecord]) -> Record:
    """Return a record at the scale of the paper."""
    return Record(
        name=name, scale="paper", command="", settings=settings, seeds=[0, 1], data={},
        versions={}, code="", commit=None, is_modified=False, device={}, started="",
        wall_seconds=1.0, runs=runs,
    )  # fmt: skip


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=EXACT, atol=EXACT)


def lines(ax: Any, kind: str | None = None, marker: str = "None") -> list[Any]:
    """Return the lines of a kind, or all, that have no markers, or such ones."""
    own = [line for line in ax.lines if line.get_marker() == marker]
    return [line for line in own if kind is None or line.get_color() == COLOURS[kind]]


def circles(ax: Any, kind: str | None = None) -> list[Any]:
    """Return published points."""
    return lines(ax, kind, marker="o")


def check_median(ax: Any, kind: str, x: Any, runs: Any) -> None:
    """Let the only line of a kind be the median over the seeds."""
    (line,) = lines(ax, kind)
    np.testing.assert_array_equal(line.get_xdata(), x)
    np.testing.assert_array_equal(line.get_ydata(), np.median(runs, axis=0))


def check_circles(ax: Any, kind: str, points: Any) -> None:
    """Let the circles of a kind be these published points."""
    (found,) = circles(ax, kind)
    np.testing.assert_array_equal(found.get_xdata(), points.x)
    np.testing.assert_array_equal(found.get_ydata(), points.y)
    assert found.get_fillstyle() == "none"


def curves(ax: Any) -> dict[str, list[float]]:
    """Return the values of the only line of each kind."""
    found = {kind: lines(ax, kind) for kind in COLOURS}
    only = {kind: own[0].get_ydata() for kind, own in found.items() if own}
    return {kind: np.asarray(values).tolist() for kind, values in only.items()}


def medians(runs: dict[str, Any]) -> dict[str, list[float]]:
    """Return the medians over the seeds of the runs of each kind."""
    return {kind: np.median(values, axis=0).tolist() for kind, values in runs.items()}
