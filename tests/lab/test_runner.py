"""Running: what is computed, what is refused, what is shown."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import results

from normbook.errors import RunError
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.lab import record, runner
from normbook.lab.record import Record
from normbook.lab.runner import check, estimate, run

TINY = tiny.EXPERIMENT
UNEQUAL = tiny.with_settings(
    TINY,
    variants={"plain": {"is_noisy": False}, "longer": {"is_noisy": True, "steps": 45}},
)
WHERE = Path(__file__).parent
Patch = pytest.MonkeyPatch


# --- what a run is


def test_every_variant_is_run_with_every_seed() -> None:
    pairs = [(v, s) for v in ("plain", "noisy, rate=0.1") for s in (0, 3)]
    assert [*results(run(TINY))] == pairs


def test_a_variant_may_have_a_length_of_its_own_and_is_measured_at_both_ends(
    tmp_path: Path,
) -> None:
    found = run(UNEQUAL, out=tmp_path / "tiny.json")
    assert found.steps("weights", "plain").tolist() == [0, 10, 20, 30]
    assert found.steps("weights", "longer").tolist() == [0, 10, 20, 30, 40, 45]
    assert found.steps("training", "longer").tolist() == [10, 20, 30, 40]
    assert found.values("longer", "weights", "each").shape == (2, 6, 3)
    assert runner.replay(record.load(tmp_path / "tiny.json"), UNEQUAL, None) == []


def test_the_estimate_of_a_longer_variant_counts_its_own_steps() -> None:
    two = {"plain": {"is_noisy": False}, "longer": {"is_noisy": False, "steps": 30_000}}
    found = estimate(tiny.with_settings(TINY, variants=two), "live")
    assert found["longer"] > 100 * found["plain"]  # 1000 without the noise of clocks


def test_losses_are_those_of_gradient_descent_by_hand_and_are_averaged() -> None:
    (found,) = run(tiny.with_variants(TINY, "plain"), seeds=[5]).runs
    assert found.opening[:2] == pytest.approx(tiny.losses_by_hand(5, 2), rel=1e-12)
    averages = [sum(found.opening[k : k + 10]) / 10 for k in (0, 10)]
    assert found.curves["training"]["loss"][:2] == pytest.approx(averages, rel=1e-12)


def test_a_variant_has_its_own_settings_over_the_common_ones() -> None:
    settings = runner.variant_settings(TINY.scales["live"], "noisy, rate=0.1")
    common = {"dtype": "float64", "steps": 30, "measure_every": 10}
    assert settings == {**common, "learning_rate": 0.1, "is_noisy": True}


# --- a result depends on nothing but the settings and the seed


def test_a_run_does_not_depend_on_those_before_it() -> None:
    together = results(run(TINY))
    single = tiny.with_variants(TINY, "noisy, rate=0.1")
    assert results(run(TINY, seeds=[3, 0])) == together
    assert results(run(single, seeds=[3])).items() <= together.items()


FEW = {"tiny": TINY, **{name: tiny.few(name) for name in tiny.FEW}}


@pytest.mark.parametrize("name", FEW)
def test_an_experiment_depends_on_its_seed_alone(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        both = results(run(FEW[name], seeds=[4, 5]))
        torch.manual_seed(2)
        assert results(run(FEW[name], seeds=[5])).items() <= both.items()
    assert len(set(both.values())) == len(both)


def test_a_run_works_outside_of_the_main_thread_and_writes_nothing_without_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[Record] = []
    thread = threading.Thread(target=lambda: found.append(run(TINY)))
    thread.start()
    thread.join()
    assert results(found[0]) == results(run(TINY))
    assert list(tmp_path.iterdir()) == []


# --- the record


def test_the_record_on_the_disk_is_the_one_returned(tmp_path: Path) -> None:
    returned = run(TINY, out=tmp_path / "tiny.json")
    loaded = record.load(tmp_path / "tiny.json")
    record.save(returned, tmp_path / "again.json")
    assert record.load(tmp_path / "again.json") == loaded
    assert list(loaded.settings) == list(returned.settings)


def test_the_record_says_where_it_comes_from() -> None:
    found = run(TINY, seeds=range(2))
    assert found.command == ("normbook run tiny --scale live --seeds 0 1 --device cpu")
    assert found.versions["torch"] == torch.__version__
    assert found.device["ranks"] == 1
    assert found.data == {}
    assert found.wall_seconds > 0


def test_the_record_has_the_hash_of_embedded_data() -> None:
    few = tiny.with_settings(EXPERIMENTS["sigmoid_net"], steps=1)
    few = tiny.with_variants(few, "none")
    digest = "".join(run(few).data["digits"]["scikit-learn"])
    assert len(digest) == 64


# --- what is refused


@pytest.mark.parametrize("function", [run, check])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "huge"}, "scale must be one of live, got 'huge'"),
        ({"seeds": []}, r"at least one, got \[\]; try 0 1 2"),
        ({"seeds": [0, -1]}, r"whole numbers from 0 on, .*got \[0, -1\]"),
        ({"seeds": [2, 2]}, r"seeds must be different .*got \[2, 2\]"),
        ({"seeds": [0.5]}, r"whole numbers .*got \[0.5\]"),
        ({"seeds": [True]}, r"whole numbers .*got \[True\]"),
        ({"on": "tpu"}, "cpu, cuda, cuda:NUMBER or mps, got 'tpu'; .*leave it out"),
        ({"on": "cuda:99"}, "there, got 'cuda:99', but torch finds .*; take cpu, or"),
        ({"out": Path("no/a.json")}, "--out must be in a folder that ex.*; make no"),
        ({"out": Path()}, r"must not be there yet, got \.; name another one with --ou"),
        ({"out": Path("a"), "is_resumed": True}, r"in a.partial; leave --resume out"),
    ],
)
def test_bad_options_are_refused_and_leave_nothing(
    options: Any, message: str, function: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=message):
        function(TINY, **{"out": tmp_path / "tiny.json", **options})
    assert list(tmp_path.iterdir()) == []


def test_the_gpu_of_an_apple_lacks_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(RunError, match=r"must have float64, got mps, .*--device cpu"):
        run(TINY, on="mps")


def test_a_check_gives_the_seeds_and_writes_nothing(tmp_path: Path) -> None:
    assert check(TINY, out=tmp_path / "tiny.json") == [0, 3]
    assert list(tmp_path.iterdir()) == []


# --- the estimate


def test_the_estimate_counts_updates_and_measurements() -> None:
    slow = tiny.with_settings(TINY, steps=4, measure_every=2)
    slow = replace(slow, begin=lambda *a: tiny.slowed(TINY.begin(*a)))
    seconds = estimate(slow, "live")
    # 4 updates of 20 ms and 3 measurements of 100 ms
    assert list(seconds) == ["plain", "noisy, rate=0.1"]
    assert all(0.38 <= s < 4 for s in seconds.values())


# --- progress


def shown_on_a_terminal(*arguments: str) -> str:
    """What a run prints where standard error is a terminal."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 120))
    command = [sys.executable, "tiny.py", *arguments]
    with subprocess.Popen(
        command, cwd=WHERE, stderr=slave, stdout=subprocess.DEVNULL
    ) as process:
        os.close(slave)
        pieces = []
        while piece := read(master):
            pieces.append(piece)
    os.close(master)
    assert process.returncode == 0
    return b"".join(pieces).decode()


def read(master: int) -> bytes:
    try:
        return os.read(master, 65_536)
    except OSError:  # Linux says so at the end
        return b""


def test_a_terminal_shows_the_run_its_loss_and_the_time_left(tmp_path: Path) -> None:
    text = shown_on_a_terminal("--slow", "--out", str(tmp_path / "tiny.json"))
    assert tiny.PROGRESS.search(text), text
