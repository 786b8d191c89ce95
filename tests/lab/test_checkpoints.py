"""An interrupted run goes on to the same result, however it was ended."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import results

from normbook.errors import RunError
from normbook.lab import checkpoints, provenance, record, runner
from normbook.lab.experiment import Experiment, Run
from normbook.lab.runner import run

FEW = tiny.with_settings(tiny.EXPERIMENT, steps=3, measure_every=2)
UPDATES = 12  # two variants with two seeds


@pytest.fixture(autouse=True)
def checkpoint_after_each_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do so, and do not ask git each time."""
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", -1.0)
    commit = {"commit": None, "is_modified": False}
    monkeypatch.setattr(provenance, "commit", lambda: commit)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def folder(out: Path) -> Path:
    return Path(f"{out}.partial")


@contextlib.contextmanager
def at_update(
    number: int, action: Callable[[], object] = lambda: None
) -> Iterator[Counter[str]]:
    """Do something in this update, counted from 1 over all runs; count them."""
    original, counts = Run.update, Counter[str]()

    def update(self: Run) -> float:
        counts["updates"] += 1
        if counts["updates"] == number:
            action()
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "update", update)
        yield counts


def interrupt(
    out: Path | None,
    number: int,
    experiment: Experiment = FEW,
    *,
    is_resumed: bool = False,
    action: Callable[[], object] = lambda: signal.raise_signal(signal.SIGINT),
) -> None:
    """Run until Ctrl-C comes in this update."""
    with at_update(number, action), pytest.raises(KeyboardInterrupt):
        run(experiment, out=out, is_resumed=is_resumed)


# --- Ctrl-C


@pytest.mark.parametrize("number", [1, 2, 3, 4, UPDATES])
def test_after_ctrl_c_a_run_goes_on_to_the_same_result(number: int, out: Path) -> None:
    interrupt(out, number)
    assert not out.exists()
    resumed = run(FEW, out=out, is_resumed=True)
    assert results(resumed) == results(run(FEW))
    assert list(out.parent.iterdir()) == [out]


def test_a_run_can_be_interrupted_again_and_again(out: Path) -> None:
    interrupt(out, 2)
    for _ in range(4):
        interrupt(out, 2, is_resumed=True)
    resumed = run(FEW, out=out, is_resumed=True)
    assert results(resumed) == results(run(FEW))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_update_under_way_is_finished_and_saved(
    number: signal.Signals, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 1e9)
    interrupt(out, 2, action=lambda: signal.raise_signal(number))
    content = (folder(out) / "plain-0.pt").read_bytes()[: -checkpoints.DIGEST_BYTES]
    (folder(out) / "content").write_bytes(content)
    kept = torch.load(folder(out) / "content", weights_only=True)
    assert kept["run"]["step"] == 2


def test_a_second_ctrl_c_ends_at_once_and_the_last_checkpoint_is_whole(
    out: Path,
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")

    interrupt(out, 3, action=twice)
    assert results(run(FEW, out=out, is_resumed=True)) == results(run(FEW))


def test_ctrl_c_in_the_last_measurement_begins_no_other_run(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Run.measure

    def measure(self: Run, steps: int) -> None:
        if self.step == steps:
            signal.raise_signal(signal.SIGINT)
        original(self, steps)

    monkeypatch.setattr(Run, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        run(FEW, out=out)
    assert sorted(p.name for p in folder(out).iterdir()) == ["plain-0.pt", "plan.json"]


def test_signals_are_handled_as_before_once_a_run_is_over() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupt(None, 2)  # not kept: it ends, too
    run(FEW)
    after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert after == before


# --- kill -9

KILLED = """
import os, signal, sys
from pathlib import Path

import tiny
import torch

from normbook.lab import provenance, runner

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
TWO_STEPS = tiny.with_settings(tiny.EXPERIMENT, steps=2, measure_every=1)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def before_change(number, folder):
    def hook(event, arguments):
        nonlocal number
        if event in CHANGES and str(folder) in str(arguments[0]):
            number -= 1
            if number == 0:
                die()

    sys.addaudithook(hook)


def within_write(number, folder):
    def fsync(handle):
        nonlocal number
        number -= 1
        if number == 0:
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            die()

    os.fsync = fsync


root = Path(sys.argv[1])
torch.set_num_threads(int(sys.argv[2]))
provenance.commit = lambda: {"commit": None, "is_modified": False}
runner.CHECKPOINT_SECONDS = -1.0
# What is imported at the first use is imported once for all children.
runner.run(TWO_STEPS, out=root / "whole", seeds=[3])
for trap in (before_change, within_write):
    for number in range(1, 1000):
        folder = root / f"{trap.__name__} {number}"
        folder.mkdir()
        child = os.fork()
        if child == 0:
            trap(number, folder)
            runner.run(TWO_STEPS, out=folder / "record.json", seeds=[3])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
    assert status == 0
"""


def test_after_kill_9_at_any_change_of_a_file_a_run_goes_on_to_the_same_result(
    tmp_path: Path,
) -> None:
    arguments = [str(tmp_path), str(torch.get_num_threads())]
    # Where torch has found a GPU, a way back starts threads, which Python warns of.
    allowed = "ignore:This process:DeprecationWarning"
    command = [sys.executable, "-W", "error", "-W", allowed, "-c", KILLED, *arguments]
    subprocess.run(command, check=True, cwd=Path(__file__).parent, timeout=100)
    expected = results(record.load(tmp_path / "whole"))
    moments = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(moments) >= 37
    for moment in moments:
        go_on(moment / "record.json")
        assert results(record.load(moment / "record.json")) == expected
        assert [path.name for path in moment.iterdir()] == ["record.json"]


def go_on(out: Path) -> None:
    """Resume; where nothing was begun yet, begin."""
    two_steps = tiny.with_settings(tiny.EXPERIMENT, steps=2, measure_every=1)
    try:
        run(two_steps, out=out, seeds=[3], is_resumed=True)
    except RunError as error:
        assert "got none in" in str(error)  # noqa: PT017
        run(two_steps, out=out, seeds=[3])


# --- what is refused


def test_a_record_is_never_overwritten(out: Path) -> None:
    out.write_text("precious")
    for is_resumed in (False, True):
        with pytest.raises(RunError, match=r"must not be there yet, got .*name anoth"):
            run(FEW, out=out, is_resumed=is_resumed)
    assert out.read_text() == "precious"
    assert list(out.parent.iterdir()) == [out]


def test_the_record_of_another_run_is_not_taken_for_this_one(out: Path) -> None:
    run(FEW, out=out, seeds=[1])
    with pytest.raises(RunError, match="must not be there yet"):
        run(FEW, out=out, is_resumed=True)


def test_resuming_a_finished_run_gives_its_record(out: Path) -> None:
    finished = run(FEW, out=out)
    folder(out).mkdir()
    (folder(out) / "plan.json").write_text("half a pl")
    resumed = run(FEW, out=out, is_resumed=True)
    assert resumed.started == finished.started
    assert list(out.parent.iterdir()) == [out]


def test_an_unfinished_run_is_not_begun_anew_by_accident(out: Path) -> None:
    interrupt(out, 2)
    with pytest.raises(RunError, match=r"continued or deleted, got .*add --resume, or"):
        run(FEW, out=out)


def test_a_folder_of_somebody_else_is_left_alone(out: Path) -> None:
    folder(out).mkdir()
    (folder(out) / "thesis.pt").write_text("precious")
    with pytest.raises(RunError, match=r"must be new, got .* with other files; name"):
        run(FEW, out=out)
    assert (folder(out) / "thesis.pt").read_text() == "precious"


def test_a_file_of_somebody_else_among_the_checkpoints_is_left_alone(out: Path) -> None:
    interrupt(out, 2)
    (folder(out) / "thesis.pt").write_text("precious")
    run(FEW, out=out, is_resumed=True)
    assert [path.name for path in folder(out).iterdir()] == ["thesis.pt"]


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"seeds": [0]}, r"differ: seeds \(was \[0, 3\], is \[0\]\); restore"),
        ({}, {"scale": "other"}, r"differ: scale \(was live, is other\);"),
        ({"steps": 4}, {}, r"differ: settings \(was"),
    ],
)
def test_a_resumed_run_must_be_the_one_that_was_begun(
    settings: dict[str, Any], options: dict[str, Any], message: str, out: Path
) -> None:
    both = tiny.with_scale(FEW, "other", FEW.scales["live"])
    interrupt(out, 2, both)
    with pytest.raises(RunError, match=message):
        run(tiny.with_settings(both, **settings), out=out, is_resumed=True, **options)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("code", "0" * 64),
        ("versions", {"torch": "1.0"}),
        ("device", {"type": "cuda", "name": "A100", "threads": 1}),
    ],
)
def test_a_run_is_not_resumed_where_its_numbers_would_be_others(
    function: str, value: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(out, 2)
    monkeypatch.setattr(provenance, function, lambda *_: value)
    with pytest.raises(RunError, match=rf"differ: {function} .*or delete .*partial"):
        run(FEW, out=out, is_resumed=True)


def test_another_commit_of_the_same_sources_may_go_on(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(out, 2)
    commit = {"commit": "a" * 40, "is_modified": False}
    monkeypatch.setattr(provenance, "commit", lambda: commit)
    assert run(FEW, out=out, is_resumed=True).commit == "a" * 40


# --- damage


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_a_changed_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [halved, with_a_changed_bit, lambda _: b"", lambda _: b"\x80pickle"]
)
def test_a_damaged_checkpoint_is_named_and_the_others_are_kept(
    damage: Callable[[bytes], bytes], out: Path
) -> None:
    interrupt(out, 5)
    path = folder(out) / "plain-0.pt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"must be readable, got .*plain-0.pt: .*delete"):
        run(FEW, out=out, is_resumed=True)
    path.unlink()
    assert results(run(FEW, out=out, is_resumed=True)) == results(run(FEW))


def test_a_checkpoint_of_another_run_is_refused(out: Path) -> None:
    interrupt(out, 11)
    shutil.copy(folder(out) / "noisy, rate=0.1-3.pt", folder(out) / "plain-0.pt")
    with pytest.raises(RunError, match=r"plain-0.pt: it is of noisy, rate=0.1, seed 3"):
        run(FEW, out=out, is_resumed=True)


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"name": "tiny"}', "\0"])
def test_a_damaged_plan_is_named(content: str, out: Path) -> None:
    interrupt(out, 2)
    (folder(out) / "plan.json").write_text(content)
    with pytest.raises(RunError, match=r"must be readable, got .*plan.json: .*delete"):
        run(FEW, out=out, is_resumed=True)


# --- space


def test_a_run_is_not_begun_where_space_lacks(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(out.parent)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RunError, match=r"at least 200 MB .*got 1 MB in .*; make room"):
        run(FEW, out=out)
    assert list(out.parent.iterdir()) == []


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(out: Path) -> None:
    message = r"plain-0.pt cannot: No space left on device; make room, .*--resume"
    with (
        pytest.MonkeyPatch.context() as patch,
        at_update(3, lambda: patch.setattr("os.fsync", full_disk)),
        pytest.raises(RunError, match=message),
    ):
        run(FEW, out=out)
    assert not list(folder(out).glob("*.part"))
    check_rest(out, UPDATES - 2)


def check_rest(out: Path, updates: int) -> None:
    """Resume: so many updates are left, and lead to the same result."""
    with at_update(0) as counts:
        resumed = run(FEW, out=out, is_resumed=True)
    whole = run(FEW)
    assert counts["updates"] == updates
    assert results(resumed) == results(whole)
    order = [(r.variant, r.seed) for r in whole.runs]
    assert [(r.variant, r.seed) for r in resumed.runs] == order


def test_a_disk_that_is_full_at_the_end_loses_nothing(out: Path) -> None:
    message = r"the record must be written, .*: No space left on device.*--resume"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "save", full_disk)
        with pytest.raises(RunError, match=message):
            run(FEW, out=out)
    assert not out.exists()
    check_rest(out, 0)


def test_a_folder_that_may_not_be_written_to_is_told(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(*_: object, **__: object) -> None:  # permissions do not stop root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(
        RunError, match=r"can be written to, got .*: Permission denied; take"
    ):
        run(FEW, out=out)


# --- what is kept in a checkpoint


def test_a_finished_run_is_not_measured_again(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(out, UPDATES)
    measured: list[int] = []
    original = Run.measure

    def measure(self: Run, steps: int) -> None:
        measured.append(self.step)
        original(self, steps)

    monkeypatch.setattr(Run, "measure", measure)
    run(FEW, out=out, is_resumed=True)
    assert measured == [3]  # the last measurement of the run that was interrupted


def test_the_time_of_all_parts_is_added_up(out: Path) -> None:
    def rest_and_interrupt() -> None:
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)

    for is_resumed in (False, True):
        interrupt(out, 1, is_resumed=is_resumed, action=rest_and_interrupt)
    resumed = run(FEW, out=out, is_resumed=True)
    assert resumed.runs[0].wall_seconds >= 0.4
    assert resumed.wall_seconds >= sum(r.wall_seconds for r in resumed.runs) - 0.001


@pytest.mark.parametrize("name", tiny.FEW)
def test_the_experiments_of_the_book_go_on_to_the_same_result(
    name: str, out: Path
) -> None:
    few = tiny.with_seeds(tiny.few(name), [2])
    interrupt(out, 2, few)
    resumed = run(few, out=out, is_resumed=True)
    assert results(resumed) == results(run(few))
