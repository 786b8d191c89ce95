"""Processes that compute together: what they give, and that none is left behind."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from normbook.errors import ProcessError
from normbook.lab.processes import run

# Seconds. No test waits that long; a process that the others must not wait for would.
LONG = 1000.0
SHORT = 2.0
# What a loaded machine may take for work of milliseconds.
SLACK = 30.0


class Outcome(NamedTuple):
    """How a run ended here, and what its processes noted in files of their own."""

    results: list[Any]
    error: str
    seconds: float  # from the moment when process 1 got to its last act
    pids: list[int]
    left: list[Path]  # temporary files


def note(folder: Path) -> tuple[int, int]:
    from torch import distributed

    rank = distributed.get_rank()
    (folder / str(rank)).write_text(str(os.getpid()))
    distributed.barrier()
    return rank, distributed.get_world_size()


def compute(folder: Path, values: list[float]) -> tuple[Any, ...]:
    import torch

    rank, count = note(folder)
    print("printed by", rank)
    warnings.warn(f"warned by {rank}", stacklevel=1)
    os.system("echo noise; echo noise >&2")  # noqa: S605 - as libraries in C do
    total = torch.tensor(values) * rank
    torch.distributed.all_reduce(total)
    return rank, count, total.tolist(), torch.get_num_threads()


def fail(folder: Path, act: Callable[[], None]) -> None:
    from torch import distributed

    rank, _ = note(folder)
    if rank == 1:
        (folder / "last act").touch()
        act()
    distributed.barrier()


def raise_it() -> None:
    raise ValueError("seven is too many")


leave = partial(sys.exit, "good bye")


def strike(number: int) -> None:
    os.kill(os.getpid(), number)


die, stop = partial(strike, signal.SIGKILL), partial(strike, signal.SIGSTOP)


def sleep() -> None:
    time.sleep(LONG)


@cache
def outcome(*work: Any, timeout: float = LONG) -> Outcome:
    results: list[Any] = []
    error = ""
    with (
        tempfile.TemporaryDirectory() as here,
        tempfile.TemporaryDirectory() as there,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(tempfile, "tempdir", there)
        try:
            function, *arguments = work
            results = run(function, 2, Path(here), *arguments, timeout=timeout)
        except ProcessError as caught:
            error = str(caught)
        act = Path(here, "last act")
        seconds = time.time() - act.stat().st_mtime if act.exists() else 0.0
        pids = [int(Path(here, str(rank)).read_text()) for rank in range(2)]
        return Outcome(results, error, seconds, pids, list(Path(there).iterdir()))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_each_process_has_its_number_and_one_thread_and_they_share_what_they_add() -> (
    None
):
    found = outcome(compute, (1.0, 2.5))
    assert found.results == [(rank, 2, [1.0, 2.5], 1) for rank in (0, 1)]
    assert not any(map(is_running, found.pids))
    assert found.left == []


def test_what_processes_print_appears_here_in_order_and_no_noise(
    capfd: pytest.CaptureFixture[str],
) -> None:
    outcome.cache_clear()  # to see it happen
    outcome(compute, (1.0, 2.5))
    out, err = capfd.readouterr()
    assert re.fullmatch(
        r"printed by 0\n.*warned by 0\n.*printed by 1\n.*warned by 1\n.*", out, re.S
    )
    assert "noise" not in out + err
    assert err == ""


@pytest.mark.parametrize(
    ("act", "timeout", "message"),
    [
        (raise_it, LONG, r"1 of 2 raised:\nTrace.*ValueError: seven is too many"),
        (leave, LONG, r"1 of 2 raised:\nTrace.*SystemExit: good bye"),
        (die, LONG, "1 of 2 ended by SIGKILL before it answered"),
        (stop, SHORT, "1 of 2 had not answered when all were ended"),
        (sleep, SHORT, "1 of 2 had not answered when all.*in sleep\n"),
    ],
    ids=["raise", "leave", "die", "stop", "sleep"],
)
def test_a_failure_is_told_with_its_place_nobody_waits_for_it_and_nothing_is_left(
    act: Callable[[], None], timeout: float, message: str
) -> None:
    found = outcome(fail, act, timeout=timeout)
    assert re.search(f"process {message}", found.error, re.S)
    assert found.results == []
    patience = timeout if timeout == SHORT else 0.0
    assert found.seconds < patience + SLACK
    assert not any(map(is_running, found.pids))
    assert found.left == []


def test_a_process_that_waits_in_vain_says_where() -> None:
    error = outcome(fail, stop, timeout=SHORT).error
    assert re.search(r"process 0 of 2 (raised|had not).*barrier", error, re.S)


SCRIPT = """
from normbook.lab import processes

class Counter(dict):
    pass

STEP = 3

def count(start):
    return Counter(steps=start + STEP)

print("once", processes.run(count, 1, 4))
"""


@pytest.mark.parametrize("has_file", [True, False], ids=["file", "no file"])
def test_a_program_needs_no_guard_and_no_file(has_file: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = [str(script)] if has_file else ["-c", SCRIPT]
    command = [sys.executable, "-W", "default", *program]  # so no copy of a process
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("once [{'steps': 7}]\n", "")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose processes have begun a long sleep."""
    code = (
        "import test_processes as t; from pathlib import Path; "
        f"t.run(t.fail, 2, Path({str(tmp_path)!r}), t.sleep, timeout=t.LONG)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parent
    ) as it:
        while not (tmp_path / "last act").exists():
            assert it.poll() is None
            time.sleep(0.01)
        yield it


def test_processes_end_with_the_program_that_was_killed(
    program: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert all(map(is_running, pids))
    program.kill()
    deadline = time.monotonic() + SLACK
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("work", "timeout", "error", "message"),
    [
        ((3, 2), 60, TypeError, "function must be callable, got int"),
        ((print, 2.0), 60, TypeError, r"count must be a whole number, got 2\.0"),
        ((print, True), 60, TypeError, "count must be a whole number, got True"),
        ((print, 0), 60, ValueError, "count must be at least 1, got 0"),
        ((print, 2), 0, ValueError, "timeout must be a positive number .* got 0"),
        ((print, 2), "9", ValueError, "timeout must be a positive number .* got '9'"),
        ((print, 2), float("nan"), ValueError, "timeout must be a positive .* got nan"),
        ((print, 2, sys.stdout), 60, TypeError, "cannot pickle"),
    ],
)
def test_bad_arguments_are_refused_before_any_process_starts(
    work: Any, timeout: Any, error: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(error, match=message):
        run(*work, timeout=timeout)


def sign_off(folder: Path) -> None:
    atexit.register((folder / "ended").touch)
    time.sleep(SHORT)


def test_what_has_answered_ends_by_itself_and_waiting_takes_no_processor(
    tmp_path: Path,
) -> None:
    began = time.process_time()
    run(sign_off, 1, tmp_path)
    assert time.process_time() - began < 1  # of far more that it waited
    assert (tmp_path / "ended").exists()


def test_a_single_process_that_hangs_is_ended_after_the_timeout() -> None:
    # No other one notices: it is the clock of the caller that counts.
    with pytest.raises(ProcessError, match="process 0 of 1 had not answered"):
        run(time.sleep, 1, 40.0, timeout=1.0)
