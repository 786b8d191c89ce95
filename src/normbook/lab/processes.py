"""Several processes on this machine that compute together.

``torchrun`` starts them for programs, :func:`run` for a function of a notebook, say.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normbook import atomic_file
from normbook.arguments import whole_number
from normbook.errors import ProcessError
from normbook.extra import of_the_book

with of_the_book():
    import cloudpickle

# Seconds.
START = 600.0  # to import torch takes long where many processes do so at once
GLANCE = 0.01  # between two looks for an answer
LAST_WORDS = 1.0  # after one process has failed, the others may say what they saw
FAREWELL = 10.0  # when all have answered, each may end by itself

# A new interpreter finds its modules where this one does. The program that runs here
# is not imported there: it would start processes in its turn.
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from normbook.lab import processes; processes._work(*sys.argv[2:])"
)


def run(
    function: Callable[..., Any], count: int, *arguments: Any, timeout: float = 60.0
) -> list[Any]:
    """Call a function in so many new processes at once; list what it returned in each.

    Inside, ``torch.distributed`` is initialized with the backend gloo, and each process
    computes with one thread. The function, its arguments, the same in all, and its
    result must be picklable. What it prints is printed here at the end. It may take
    ``timeout`` seconds, and a collective operation may wait so long.

    ProcessError if a process raises, dies or does not answer in time: all are ended
    then, and the message holds the traceback, or where the silent process was.

    Examples
    --------
    >>> def add_ranks(start):
    ...     import torch
    ...     total = torch.tensor(start + torch.distributed.get_rank())
    ...     torch.distributed.all_reduce(total)
    ...     return total.item()
    >>> run(add_ranks, 2, 10.0)  # 10 and 11, added
    [21.0, 21.0]
    """
    _check(function, count, timeout)
    with TemporaryDirectory(prefix="normbook-") as name:
        (Path(name) / "work").write_bytes(cloudpickle.dumps((function, arguments)))
        processes: list[_Process] = []
        try:
            for rank in range(count):
                processes.append(_Process(Path(name), rank, count, timeout))
            _wait(processes, timeout)
            failures = [process.failure() for process in processes]
            results = [process.result() for process in processes if not any(failures)]
        finally:
            _end(processes)
        print(*(process.read("printed") for process in processes), sep="", end="")
    if any(failures):
        raise ProcessError("\n".join(filter(None, failures)))
    return results


class _Process:
    """One process, seen from here; it answers in files, and ends with this one."""

    def __init__(self, folder: Path, rank: int, count: int, timeout: float) -> None:
        self.name = f"process {rank} of {count}"
        self.files = folder / str(rank)
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
        with open(f"{self.files}.log", "wb") as log:
            self.popen = subprocess.Popen(  # noqa: S603 - our own arguments
                [*command, str(folder), str(rank), str(count), str(timeout)],
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def has(self, kind: str) -> bool:
        return os.path.exists(f"{self.files}.{kind}")

    def read(self, kind: str) -> str:
        path = Path(f"{self.files}.{kind}")
        return path.read_text(errors="replace") if path.exists() else ""

    def has_answered(self) -> bool:
        return self.has("result") or self.has("error")

    def has_failed(self) -> bool:
        # In this order: whoever answers lives on until _end.
        is_dead = self.popen.poll() is not None
        return self.has("error") or (is_dead and not self.has("result"))

    def failure(self) -> str | None:
        if self.has("result"):
            return None
        if self.has("error"):
            return f"{self.name} raised:\n{self.read('error')}"
        code, log = self.popen.poll(), self.read("log")
        if code is None:
            return f"{self.name} had not answered when all were ended. {log}"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"{self.name} ended {how} before it answered. {log}"

    def result(self) -> Any:
        return pickle.loads(Path(f"{self.files}.result").read_bytes())  # noqa: S301 - ours


def _wait(processes: list[_Process], timeout: float) -> None:
    """Wait until all have answered; after a failure, for a moment only."""
    deadline = time.monotonic() + START
    have_joined = has_failed = False
    while time.monotonic() < deadline:
        if all(p.has_answered() or p.has_failed() for p in processes):
            return
        if not have_joined and all(p.has("joined") for p in processes):
            have_joined = True
            deadline = time.monotonic() + timeout + LAST_WORDS
        if not has_failed and any(p.has_failed() for p in processes):
            has_failed = True
            deadline = min(deadline, time.monotonic() + LAST_WORDS)
        time.sleep(GLANCE)


def _end(processes: list[_Process]) -> None:
    """End all processes: by themselves where they have answered, else at once."""
    for process in processes:
        if not process.has_answered():
            process.popen.kill()
        assert process.popen.stdin is not None  # noqa: S101 - for mypy
        process.popen.stdin.close()
    for process in processes:
        try:
            process.popen.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()


def _environment() -> dict[str, str]:
    """Set what torch reads at its start: one thread, and nothing leaves the machine."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _, name in socket.if_nameindex():
        if name.startswith("lo"):  # lo, or lo0 on a Mac
            environment.setdefault("GLOO_SOCKET_IFNAME", name)
    return environment


# --- in the new process


def _work(folder: str, rank: str, count: str, timeout: str) -> None:
    """Compute in a new process, and answer."""
    has_answered = threading.Event()
    parent = threading.Thread(target=_end_with_parent, args=[has_answered], daemon=True)
    parent.start()
    files = os.path.join(folder, rank)
    with (
        open(f"{files}.printed", "w", buffering=1) as printed,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            result = _call(Path(folder), int(rank), int(count), float(timeout))
            kind, answer = "result", cloudpickle.dumps(result)
        except BaseException:  # noqa: BLE001 - SystemExit too: it is told there
            kind, answer = "error", traceback.format_exc().encode()
    atomic_file.write(Path(f"{files}.{kind}"), answer)
    # Whoever ended now would cut the connections that the others still use.
    has_answered.set()
    parent.join()


def _call(folder: Path, rank: int, count: int, timeout: float) -> Any:
    import torch  # takes seconds
    from torch import distributed

    torch.set_num_threads(1)
    function, arguments = pickle.loads((folder / "work").read_bytes())  # noqa: S301 - ours
    store = distributed.FileStore(str(folder / "store"), count)  # type: ignore[attr-defined]
    # The clock starts when all are there.
    store.set(f"here {rank}", "")
    store.wait([f"here {other}" for other in range(count)], timedelta(seconds=START))
    (folder / f"{rank}.joined").touch()
    # Where it is then goes to its log.
    faulthandler.dump_traceback_later(timeout, file=sys.__stderr__)  # type: ignore[arg-type]
    longest = timedelta(seconds=timeout)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=count, timeout=longest
    )
    return function(*arguments)


def _end_with_parent(has_answered: threading.Event) -> None:
    os.read(0, 1)  # nothing comes to the standard input; it ends with the parent
    if not has_answered.is_set():
        os._exit(1)


def _check(function: Any, count: Any, timeout: Any) -> None:
    if not callable(function):
        raise TypeError(
            f"function must be callable, got {type(function).__name__}; the order is "
            "run(function, count, *arguments)."
        )
    whole_number("count", count, "it is the number of processes")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}; 2 is usual.")
    if not isinstance(timeout, Real) or not 0 < float(timeout) < math.inf:
        raise ValueError(
            f"timeout must be a positive number of seconds, got {timeout!r}; 60 is "
            "usual."
        )
