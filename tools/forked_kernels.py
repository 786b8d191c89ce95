"""Kernels that begin as copies of one process, which has imported what they import.

To start a kernel and to import torch and matplotlib takes seconds of a processor, for
each notebook anew. Here one process does it, and every kernel is a fork of it: it has
the modules, and ran nothing else. Modules of the package are not imported beforehand.

A submodule that only other notebooks import is therefore there too, and a notebook that
forgot to import it passes. `make execute`, which stores outputs, starts fresh kernels.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); import forked_kernels; "
    "del sys.path[0]; forked_kernels.serve(*sys.argv[2:])"
)


def imported_by(notebooks: Iterable[Any]) -> list[str]:
    """Return the installed modules that at least two notebooks import at their top."""
    counts: Counter[str] = Counter()
    for notebook in notebooks:
        names = set()
        for cell in notebook.cells:
            with contextlib.suppress(SyntaxError):  # a magic
                source = cell.source if cell.cell_type == "code" else ""
                for node in ast.parse(source).body:
                    if isinstance(node, ast.Import):
                        names |= {alias.name for alias in node.names}
                    elif isinstance(node, ast.ImportFrom) and not node.level:
                        names.add(node.module or "")
        counts.update(names)
    return sorted(
        name
        for name, count in counts.items()
        if count > 1 and name.split(".")[0] != "normbook"
    )


class Forked:
    """A kernel, as a ``subprocess.Popen``: it is a child of the process it copies."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._process)

    def poll(self) -> int | None:
        """Return 0 if it has ended; its exit status is not known here."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended."""
        return 0 if select.select([self._process], [], [], timeout)[0] else None

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        signal.pidfd_send_signal(self._process, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that kernels are copies of: begun for the first, it ends with us."""

    def __init__(self, modules: list[str]) -> None:
        self.modules = modules

    @cached_property
    def _socket(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        tools, number = str(Path(__file__).parent), str(theirs.fileno())
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, tools, number, *self.modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return ours

    def launch(self, command: list[str], **how: Any) -> Forked:
        """Start a kernel: in the place of ``jupyter_client.launcher.launch_kernel``."""
        order = {
            "arguments": command[command.index("-m") + 1 :],
            "environment": how.get("env") or dict(os.environ),
            "folder": how.get("cwd") or os.getcwd(),
        }
        line = ""
        with contextlib.suppress(OSError), self._socket.makefile() as answer:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            line = answer.readline()
        if not line:
            raise RuntimeError("the process that kernels are copies of has ended")
        return Forked(int(line))

    def close(self) -> None:
        """End the process; what it started goes with it."""
        if "_socket" in vars(self):
            self._socket.close()
            self.process.wait()


def serve(number: str, *modules: str) -> None:
    """Import modules, then fork a kernel for each order that comes."""
    import ipykernel.kernelapp  # noqa: F401 - every kernel imports it

    for name in modules:
        with contextlib.suppress(ImportError):  # the notebook will say so
            importlib.import_module(name)
    if "torch" in modules:
        importlib.import_module("torch._dynamo")  # the first optimizer imports it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    with socket.socket(fileno=int(number)) as orders, orders.makefile() as lines:
        for line in lines:
            if os.fork() == 0:
                order = json.loads(line)
                os.setsid()  # before anybody may end the group that it is in
                orders.sendall(f"{os.getpid()}\n".encode())
                break
        else:
            return
    become_kernel(order["arguments"], order["environment"], order["folder"])


def become_kernel(
    arguments: list[str], environment: dict[str, str], folder: str
) -> None:
    """Be what ``python -m MODULE ...`` would be in this folder and environment."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment | {"JPY_PARENT_PID": str(os.getppid())})
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
