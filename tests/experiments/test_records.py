"""The recorded results: complete, of this code, and repeated in their first steps.

Of each record every variant is repeated with its first seed: the first five losses and
of two variants the measurements that fall into these steps, at least those before the
first; of all variants with ``NORMBOOK_REPLAY=all``, as `make data` does, once for all,
of all records, that begin alike. Of the runs with other seeds every third is repeated,
for three losses, and of those of a tuning every tenth. How exactly is said at
``runner.PRECISIONS``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import nn

from normbook.__main__ import _parser
from normbook.data.catalogue import SOURCES
from normbook.data.files import whereabouts
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.lab import record
from normbook.lab.experiment import (
    OPENING,
    Experiment,
    Measurement,
    Run,
    Scale,
    Settings,
)
from normbook.lab.record import Record, RunRecord
from normbook.lab.runner import load_data, replay, variant_settings

RECORDED = Path(__file__).parents[2] / "book" / "recorded"
OTHER = "reliability"  # of no experiment: tools/reliability.py writes it
FOUND = [p for p in sorted(RECORDED.glob("*.json")) if p.stem != OTHER]
PATHS = [pytest.param(p, id=p.stem) for p in FOUND]

ALL = os.environ.get("NORMBOOK_REPLAY") == "all"  # minutes more

read = cache(record.load)


@pytest.fixture(scope="module", params=PATHS)
def path(request: pytest.FixtureRequest) -> Path:
    """One record after the other: all tests of it, then those of the next."""
    return Path(request.param)


@cache
def load_once(name: str) -> Any:
    return load_data(Scale({}, (), name, ""))


def data(of: Record) -> Any:
    """Load the data set of a record, or skip: tests download nothing."""
    name = EXPERIMENTS[of.name].scales[of.scale].data
    if name:
        is_here, where = whereabouts(SOURCES[name])
        if not is_here:
            pytest.skip(
                f"{of.name} needs the data set {name} ({where}), or the name of its "
                "folder in NORMBOOK_DATA"
            )
    return load_once(name)


@pytest.fixture(scope="module")
def experiment(path: Path) -> Iterator[Experiment]:
    """What a record is of; its data are prepared once, and each network measured once.

    A replay that begins and measures what another one has, to the last bit of all
    weights and with the same settings, is given the same numbers. What only training
    depends on does not count in a test of the network.
    """
    of = read(path)
    experiment, examples = EXPERIMENTS[of.name], data(of)
    settings = variant_settings(experiment.scales[of.scale], of.variants[0])
    settings |= of.chosen(of.variants[0])
    one = experiment.begin(settings, 0, examples, torch.device("cpu"))
    yield replace(experiment, begin=partial(begin, experiment))
    del one  # it has held what runs share


TRAINING = {
    "learning_rate",
    "tuning",
    "batch_size",
    "steps",
    "warm_up",
    "measure_every",
}
MEASURED: dict[str, Any] = {}


def begin(experiment: Experiment, settings: Settings, *others: Any) -> Run:
    run = experiment.begin(settings, *others)
    last = {k: v for k, v in settings.items() if k not in TRAINING}
    source = experiment.begin.__module__

    def once(name: str, measurement: Measurement) -> Measurement:
        counts = last if name == "test" else settings

        def measure(run: Run) -> Any:
            key = json.dumps([source, name, counts, run.step, digest(run.model)])
            if key not in MEASURED:
                MEASURED[key] = measurement.measure(run)
            return MEASURED[key]

        return measurement._replace(measure=measure)

    run.measurements = {name: once(name, m) for name, m in run.measurements.items()}
    return run


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of a network: all its modules, weights and statistics."""
    found = hashlib.sha256(repr(model).encode())
    for tensor in model.state_dict().values():
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def test_every_file_beside_the_chapters_is_looked_at_here() -> None:
    assert {path.suffix for path in RECORDED.iterdir()} == {".json"}
    assert {path.stem for path in RECORDED.iterdir()} <= {*EXPERIMENTS, OTHER}


def test_a_record_is_of_an_experiment_of_its_name_with_the_settings_of_the_code(
    path: Path,
) -> None:
    of = read(path)
    assert of.name == path.stem
    scale = EXPERIMENTS[of.name].scales[of.scale]
    assert of.settings == json.loads(json.dumps(scale.settings))
    assert of.seeds == list(scale.seeds)
    assert of.data.keys() == ({scale.data} if scale.data else set())


def test_a_record_was_made_from_committed_sources(path: Path) -> None:
    of = read(path)
    assert of.commit is not None
    assert not of.is_modified


def test_the_command_in_a_record_repeats_it(path: Path) -> None:
    of = read(path)
    words = of.command.split()
    options = _parser().parse_args(words[words.index("run") :])
    assert options.name.name == of.name
    assert (options.scale, options.seeds) == (of.scale, of.seeds)
    if of.device["ranks"] > 1:
        count = f"--nproc-per-node {of.device['ranks']} -m normbook run"
        assert of.command.startswith(f"torchrun {count}")


def test_a_record_has_the_hashes_of_its_data(path: Path) -> None:
    for name, hashes in read(path).data.items():
        if files := SOURCES[name].files:
            assert hashes == {file.name: file.sha256 for file in files}


def test_a_record_goes_to_the_last_step(path: Path) -> None:
    of = read(path)
    for kept in of.runs + of.tuning:
        last = {**of.settings, **of.settings["variants"][kept.variant]}["steps"]
        assert len(kept.opening) == OPENING
        assert all(c["step"][-1] == last for c in kept.curves.values())


def test_the_first_steps_of_a_record_repeat(path: Path, experiment: Experiment) -> None:
    of, examples = read(path), data(read(path))
    first = with_first_seed(of)
    here = {at_the_start(kept): kept for kept in reversed(first)}
    measured = [kept for start, kept in here.items() if start not in before(path)]
    measured = measured[: None if ALL else 2]
    others = [kept for kept in first if kept not in measured]
    seeds = [kept for kept in of.runs if kept not in first][::3] + of.tuning[::10]

    def repeat(runs: list[RunRecord], losses: int, is_measured: bool) -> list[str]:
        some = replace(of, runs=runs, tuning=[])
        return replay(
            some, experiment, examples, at_most=losses, is_measured=is_measured
        )

    assert repeat(measured, 5, is_measured=True) == []
    assert repeat(others, 5, is_measured=False) == []
    assert repeat(seeds, 3, is_measured=False) == []


def with_first_seed(of: Record) -> list[RunRecord]:
    return [kept for kept in of.runs if kept.seed == of.seeds[0]]


def before(path: Path) -> set[str]:
    """What records before this one measured first, and is repeated there if at all."""
    earlier = [other for other in FOUND if other < path]
    return {at_the_start(kept) for p in earlier for kept in with_first_seed(read(p))}


def test_what_another_record_measured_first_is_repeated_there() -> None:
    path = RECORDED / "batch_4.json"
    without = [r for r in with_first_seed(read(path)) if "batch_norm" not in r.variant]
    assert {at_the_start(kept) for kept in without} <= before(path)
    assert before(RECORDED / "batch_128.json") == set()


def at_the_start(kept: RunRecord) -> str:
    """What was measured first; networks that differ in the rate alone share it."""
    measured = {n: c for n, c in kept.curves.items() if c["step"][0] == 0}
    return json.dumps({n: [v[0] for v in c.values()] for n, c in measured.items()})


# --- a false record is found out


def false(of: Record, **changes: Any) -> Record:
    """Take the second variant with the first seed alone, and change it."""
    run = next(r for r in of.runs if r.variant == of.variants[1])
    return replace(of, runs=[replace(run, **changes)], tuning=[])


def test_another_seed_would_be_found(path: Path, experiment: Experiment) -> None:
    of = read(path)
    other = false(of, seed=of.seeds[0] + 1)
    assert replay(other, experiment, data(of), steps=1, is_measured=False)


def test_a_changed_loss_and_each_changed_measurement_would_be_found(
    path: Path, experiment: Experiment
) -> None:
    of, run = read(path), false(read(path)).runs[0]
    opening = [1.0001 * run.opening[0], *run.opening[1:]]
    curves = {
        name: {q: v if q == "step" else moved(v) for q, v in c.items()}
        for name, c in run.curves.items()
    }
    changed = false(of, opening=opening, curves=curves)
    found = replay(changed, experiment, data(of), steps=1)
    measured = {n: c for n, c in run.curves.items() if c["step"][0] == 0}
    expected = {f"{n} / {q}" for n, c in measured.items() for q in c if q != "step"}
    expected.add("losses of the first 1 steps")
    assert {line.partition(": ")[2] for line in found} == expected


def test_another_learning_rate_would_be_found(
    path: Path, experiment: Experiment
) -> None:
    of = read(path)
    # What rounding hides: of an unsteady network 20 % in the second loss, its last that
    # counts; in float32, on some CPUs, 1 %.
    exact = of.settings["dtype"] == "float64"
    factor = 2.0 if not experiment.is_steady else 1.01 if exact else 1.1
    faster = tiny.faster(experiment, factor)
    # What two losses show, five show, too; not all records need more. Some networks
    # make so much of a moved start that it excuses the rate; not all of a record do.
    assert any(
        replay(
            replace(of, runs=[kept], tuning=[]),
            faster,
            data(of),
            at_most=count,
            is_measured=False,
        )
        for kept in with_first_seed(of)[1:]
        for count in (2, 5)
    )


def moved(value: Any) -> Any:
    """Add a twentieth: behind a batch norm, means are 0 and no factor moves them."""
    if isinstance(value, list):
        return [moved(inner) for inner in value]
    if isinstance(value, str):
        return f"{value}."
    return None if value is None else 1.05 * value + 0.05
