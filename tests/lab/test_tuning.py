"""A grid is extended until the best point is inside, and the record shows all of it."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from test_ranks import LOOPBACK, TORCHRUN

from normbook.__main__ import main
from normbook.errors import RecordError, RunError
from normbook.experiments import catalogue
from normbook.lab import provenance, record, runner, tuning
from normbook.lab.experiment import Experiment, Run
from normbook.lab.record import Record, RunRecord
from normbook.lab.runner import replay, run

SEEDS = (0, 1)
RATE = {"values": [0.1, 0.3], "factor": 3.0}
BIAS = {"values": [0.0, 1.0], "step": 1.0}
CRITERION = {"measurement": "validation", "quantity": "loss"}
Loss = Callable[..., Any]


def settings(seeds: Any = (100,), criterion: Any = None, **grid: Any) -> dict[str, Any]:
    asked = {"seeds": list(seeds), "criterion": criterion or CRITERION, "grid": grid}
    return {"variants": {"one": {}}, "tuning": asked}


def curves(values: Any) -> dict[str, Any]:
    values = values if isinstance(values, list) else [9.0, values]
    loss = {"step": [10 * k for k in range(len(values))], "loss": values}
    return {"validation": loss}


def searched(of: dict[str, Any], loss: Loss) -> list[RunRecord]:
    """Do all that is asked for; the loss is that of a seed and a point."""
    done: list[RunRecord] = []
    while todo := tuning.planned(of, SEEDS, done):
        done += [
            RunRecord(v, seed, 1.0, [], curves(loss(seed, **point)), point)
            for v, seed, point in todo
        ]
        assert len(done) < 100
    return done


def tried(done: list[RunRecord], *names: str) -> list[Any]:
    points = [tuple(r.tuned[n] for n in names) for r in done if r.seed == 100]
    return [p[0] for p in points] if len(names) == 1 else points


def reported(done: list[RunRecord]) -> list[tuple[int, Any]]:
    return [(run.seed, dict(run.tuned)) for run in done if run.seed in SEEDS]


def away(best: float) -> Loss:
    """Return a loss that is least where the rate is best."""
    return lambda _, learning_rate, **others: abs(math.log(learning_rate / best))


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (0.3, [0.1, 0.3, 0.9]),
        (2.7, [0.1, 0.3, 0.9, 2.7, 8.1]),
        (0.011, [0.1, 0.3, 0.0333333, 0.0111111, 0.0037037]),
    ],
)
def test_a_grid_is_extended_until_the_best_point_lies_inside(
    best: float, expected: list[float]
) -> None:
    done = searched(settings(learning_rate=RATE), away(best))
    assert tried(done, "learning_rate") == expected
    point = {"learning_rate": min(expected, key=lambda v: abs(math.log(v / best)))}
    assert reported(done) == [(seed, point) for seed in SEEDS]


def test_a_best_point_inside_asks_for_nothing_more() -> None:
    axis = {"values": [0.1, 0.2, 0.4], "factor": 3.0}
    done = searched(settings(learning_rate=axis), away(0.2))
    assert tried(done, "learning_rate") == [0.1, 0.2, 0.4]


def test_settings_may_grow_by_a_step_and_a_choice_has_no_end() -> None:
    grid = {"forget_bias": BIAS, "depth": {"values": [1, 2]}}

    def loss(_: int, forget_bias: float, depth: int) -> float:
        return abs(forget_bias + 1) - depth

    points = tried(searched(settings(**grid), loss), "forget_bias", "depth")
    assert points[:4] == [(0.0, 1), (0.0, 2), (1.0, 1), (1.0, 2)]
    assert points[4:] == [(-1.0, 2), (-2.0, 2)]


def test_only_what_lies_beside_the_best_point_is_added() -> None:
    of = settings(learning_rate=RATE, forget_bias=BIAS)

    def loss(_: int, learning_rate: float, forget_bias: float) -> float:
        return abs(math.log(learning_rate / 0.9)) + abs(forget_bias - 1)

    points = tried(searched(of, loss), "learning_rate", "forget_bias")
    first = [(0.1, 0.0), (0.1, 1.0), (0.3, 0.0), (0.3, 1.0)]
    # Beside (0.3, 1), then beside (0.9, 1): all four ways.
    assert points[:4] == first
    assert points[4:] == [(0.9, 1.0), (0.3, 2.0), (2.7, 1.0), (0.9, 0.0), (0.9, 2.0)]


@pytest.mark.parametrize(
    ("best", "limits", "message"),
    [
        (99, [0.01, 1.0], "one learning_rate=0.9, and learning_rate = 2.7 is beyond"),
        (1e-9, [0.1, 1.0], "learning_rate = 0.0333333 is beyond the limits 0.1 and 1;"),
    ],
)
def test_a_best_point_at_a_limit_is_refused(
    best: float, limits: list[float], message: str
) -> None:
    of = settings(learning_rate={**RATE, "limits": limits})
    with pytest.raises(RunError, match=f"must lie inside its grid, got .*{message}"):
        searched(of, away(best))


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_what_is_not_finite_is_worse_than_all_else(bad: Any) -> None:
    of = settings(learning_rate=RATE)

    def loss(_: int, learning_rate: float) -> Any:
        return bad if learning_rate > 0.1 else 1 / learning_rate

    done = searched(of, loss)
    assert reported(done)[0][1] == {"learning_rate": 0.1}
    with pytest.raises(
        RunError, match="a finite validation / loss, but none of 2 does"
    ):
        searched(of, lambda _, learning_rate: bad)


def test_of_equal_points_the_first_counts() -> None:
    done = searched(settings(learning_rate=RATE), lambda *_, **__: 1.0)
    assert tried(done, "learning_rate") == [0.1, 0.3, 0.0333333]
    assert reported(done)[0][1] == {"learning_rate": 0.1}


def test_of_several_seeds_the_mean_counts() -> None:
    losses = {(100, 0.1): 0.0, (101, 0.1): 9.0, (100, 0.3): 4.0, (101, 0.3): 4.0}
    of = settings((100, 101), learning_rate=RATE)
    done = searched(
        of, lambda seed, learning_rate: losses.get((seed, learning_rate), 8)
    )
    assert reported(done)[0][1] == {"learning_rate": 0.3}
    assert [r.seed for r in done[:4]] == [100, 101, 100, 101]


@pytest.mark.parametrize(
    ("criterion", "best"),
    [
        ({}, 0.1),  # the last value
        ({"is_higher_better": True}, 0.3),
        ({"level": 4.0}, 0.3),  # steps to it
        ({"level": 2.5}, 0.1),
        ({"level": 8.5, "is_higher_better": True}, 0.1),
    ],
)
def test_the_criterion_is_the_end_or_the_steps_to_a_level(
    criterion: dict[str, Any], best: float
) -> None:
    values = {0.1: [9.0, 5.0, 1.0], 0.3: [8.0, 4.0, 3.0]}
    axis = {"values": [0.1, 0.3]}
    of = settings(criterion=CRITERION | criterion, learning_rate=axis)
    done = searched(of, lambda _, learning_rate: values[learning_rate])
    assert reported(done)[0][1] == {"learning_rate": best}


def test_variants_are_searched_by_themselves() -> None:
    of = settings(learning_rate=RATE)
    other = settings((200,), learning_rate={"values": [7.0]})["tuning"]
    of["variants"] = {"one": {}, "other": {"tuning": other}}
    done = searched(of, away(0.3))
    assert {r.tuned["learning_rate"] for r in done if r.variant == "other"} == {7.0}
    assert len([run for run in done if run.variant == "other"]) == 1 + len(SEEDS)
    assert tuning.at_least(of, SEEDS) == {"one": 4, "other": 3}


# --- with networks


TUNED = tiny.TUNED


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record as it is read from the disk."""
    path = tmp_path_factory.mktemp("record") / "tiny.json"
    run(TUNED, out=path)
    return record.load(path)


def test_a_record_holds_the_whole_grid_and_what_was_chosen(kept: Record) -> None:
    assert [(r.variant, r.seed) for r in kept.runs] == [
        (variant, seed) for variant in kept.variants for seed in (0, 3)
    ]
    for variant in kept.variants:
        grid = kept.grid(variant)
        rates, scores = grid["learning_rate"], grid["score"].mean(1)
        assert len(rates) > 1
        best = rates[scores.argmin()]
        assert kept.chosen(variant) == {"learning_rate": best}
        assert rates.min() < best < rates.max()
        assert rates[0] != best  # so that the grid was extended
        ends = kept.values(variant, "training", "loss")[:, -1]
        assert ends.shape == (2,)
        assert not {*ends} & {*grid["score"].ravel()}


def test_it_repeats_itself_and_a_changed_run_of_the_grid_is_found(
    kept: Record,
) -> None:
    assert replay(kept, TUNED, None) == []
    false = copy.deepcopy(kept)
    false.tuning[1].opening[0] *= 1.001
    title = f"{false.tuning[1].variant}, seed 100"
    assert replay(false, TUNED, None) == [f"{title}: losses of the first 20 steps"]


def other_point(of: Record) -> Record:
    runs = [replace(r, tuned={"learning_rate": 0.01}) for r in of.runs]
    return replace(of, runs=runs)


def one_other_point(of: Record) -> Record:
    last = replace(of.runs[-1], tuned={"learning_rate": 0.01})
    return replace(of, runs=[*of.runs[:-1], last])


def better_elsewhere(of: Record) -> Record:
    of.tuning[0].curves["training"]["loss"][-1] = -1.0
    return of


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda of: replace(of, tuning=of.tuning[1:]), "runs where the search asks"),
        (lambda of: replace(of, tuning=of.tuning + of.tuning[:1]), "the search asks"),
        (lambda of: replace(of, tuning=[]), "it has 0 runs where the search asks for"),
        (other_point, "the best point of plain is"),
        (one_other_point, "the best point of"),
        (better_elsewhere, "runs where the search asks for"),
    ],
)
def test_a_record_with_another_grid_or_choice_is_refused(
    change: Callable[[Record], Record], message: str, kept: Record, tmp_path: Path
) -> None:
    false = change(copy.deepcopy(kept))
    with pytest.raises(RecordError, match=f"the runs of its tuning.*{message}"):
        record.save(false, tmp_path / "tiny.json")


def stop_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """Interrupt a run in this update, counted over all runs."""
    original, counts = Run.update, [0]

    def update(self: Run) -> float:
        counts[0] += 1
        if counts[0] == number:
            raise KeyboardInterrupt
        return original(self)

    patch.setattr(Run, "update", update)


@pytest.mark.parametrize("update", [1, 31, 95, 230])
def test_what_is_interrupted_goes_on_to_the_same_record(
    update: int, kept: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)
    commit = {"commit": None, "is_modified": False}
    monkeypatch.setattr(provenance, "commit", lambda: commit)
    out = tmp_path / "tiny.json"
    with monkeypatch.context() as patch:
        stop_at(update, patch)
        with pytest.raises(KeyboardInterrupt):
            run(TUNED, out=out)
    calls = [0]
    original = Run.update

    def count(self: Run) -> float:
        calls[0] += 1
        return original(self)

    monkeypatch.setattr(Run, "update", count)
    again = run(TUNED, out=out, is_resumed=True)
    assert content(again) == content(kept)
    assert list(tmp_path.iterdir()) == [out]
    assert calls[0] == 30 * len(kept.runs + kept.tuning) - (update - 1)


KILLED = """
import os, signal, sys, tiny, torch
from pathlib import Path
from normbook.lab import runner
from normbook.lab.experiment import Run
update, counts = Run.update, []
def killed(self):
    counts.append(1)
    if len(counts) == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self)
Run.update = killed
runner.CHECKPOINT_SECONDS = -1.0
torch.set_num_threads(int(sys.argv[2]))
runner.run(tiny.TUNED, out=Path(sys.argv[1]))
"""


def test_what_was_killed_goes_on_to_the_same_record(
    kept: Record, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.json"
    arguments = [str(out), str(torch.get_num_threads())]
    command = [sys.executable, "-c", KILLED, *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert content(run(TUNED, out=out, is_resumed=True)) == content(kept)
    assert list(tmp_path.iterdir()) == [out]


def content(of: Record) -> list[Any]:
    """Return what all runs computed, as it is on the disk."""
    return [
        (r.variant, r.seed, dict(r.tuned), repr(record._rounded(r.opening)))
        for r in of.runs + of.tuning
    ]


def test_processes_share_the_grid(kept: Record, tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    command = [sys.executable, *TORCHRUN, "tiny.py", "--tuned", "--out", str(out)]
    env = {**os.environ, **LOOPBACK}
    subprocess.run(command, env=env, cwd=Path(__file__).parent, check=True, timeout=100)
    assert content(record.load(out)) == content(kept)


def test_seeds_of_the_tuning_are_not_reported() -> None:
    with pytest.raises(RunError, match=r"others than those of the tuning, got \[100\]"):
        run(TUNED, seeds=[0, 100])


@pytest.mark.parametrize(
    "axis", [{"factor": 1.0}, {"step": 0}, {"step": 1, "factor": 2}]
)
def test_a_grid_that_never_ends_is_refused(axis: dict[str, Any]) -> None:
    grid = {"learning_rate": {"values": [0.1], **axis}}
    asked = {**TUNED.scales["live"].settings["tuning"], "grid": grid}
    with pytest.raises(RunError, match="the grid of learning_rate must have a factor"):
        run(tiny.with_settings(TUNED, tuning=asked))


@pytest.mark.parametrize("axis", [{"factor": 1.5}, {"step": 0.5}])
def test_a_grid_with_small_steps_is_taken(axis: dict[str, Any]) -> None:
    settings = TUNED.scales["live"].settings
    grid = {"learning_rate": {"values": [0.1], **axis}}
    tuned = {**settings, "tuning": {**settings["tuning"], "grid": grid}}
    tuning.check(tuned, [0])


def test_a_dry_run_counts_the_first_grid(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", TUNED)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "tiny", "--dry-run", "--device", "cpu"]) == 0
    assert "\nat least 8 runs, 240 steps, about " in capsys.readouterr().out


def test_an_experiment_without_tuning_has_no_trace_of_it(tmp_path: Path) -> None:
    plain: Experiment = tiny.with_settings(tiny.EXPERIMENT, steps=3)
    run(plain, out=tmp_path / "tiny.json")
    names = json.loads((tmp_path / "tiny.json").read_text())
    assert "tuning" not in names
    assert all("tuned" not in of for of in names["runs"])
