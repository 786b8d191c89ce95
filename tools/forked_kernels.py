"""Kernels and programs that begin as copies of one process, with imports behind it.

To start a kernel and to import torch and matplotlib takes seconds of a processor, for
each notebook anew. Here one process does it, and every kernel is a fork of it: it has
the modules, and ran nothing else. Modules of the package are not imported beforehand.
The programs that tests of several processes start are forks of such a process, too.

A submodule that only other notebooks import is therefore there too, and a notebook that
forgot to import it passes. `make execute`, which stores outputs, starts fresh kernels.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
import uuid
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); import forked_kernels; "
    "del sys.path[0]; forked_kernels.serve(*sys.argv[2:])"
)
SOCKET = socket.AF_UNIX, socket.SOCK_SEQPACKET
LONGEST = 150_000  # bytes of an order; a socket takes 200 000
# Options of ``subprocess.Popen`` that a copy can have, too.
STREAMS = {"stdin", "stdout", "stderr", "bufsize"}
TEXT = {"text", "universal_newlines", "encoding", "errors"}
OPTIONS = {"cwd", "env"} | STREAMS | TEXT


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


class Program(Popen[Any]):
    """A Python program, as a ``subprocess.Popen``: forked by what has imported.

    Its parent, a fork as well, tells the exit status. A command that is no plain
    program of this interpreter, in the environment of the template, or has other
    options than `OPTIONS` is started anew.
    """

    def __init__(self, template: Template, args: Any, *others: Any, **how: Any) -> None:
        is_plain = not others and how.keys() <= OPTIONS
        self._is_copy = is_plain and template.can_run(args, how.get("env"))
        self._template, self._status = template, -1
        super().__init__(args, *others, **how)

    def _execute_child(self, *arguments: Any) -> None:
        args, cwd, env = arguments[0], *arguments[5:7]
        handles = arguments[10:16]
        if not self._is_copy:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        read, write = os.pipe()
        weakref.finalize(self, os.close, read)
        ends = [handles[0], handles[3], handles[5]]
        given = [end if end >= 0 else number for number, end in enumerate(ends)]
        try:
            self.pid = self._template.order(args[1:], env, cwd, [*given, write])
        finally:
            os.close(write)
            self._close_pipe_fds(*handles)  # type: ignore[attr-defined]
        self._status, self._child_created = read, True

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._status < 0:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        return self.pid, int(os.read(self._status, 16))

    def _internal_poll(self, *arguments: Any, **others: Any) -> int | None:
        if self._status < 0:
            return super()._internal_poll(*arguments, **others)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


class Template:
    """The process that others are copies of: begun for the first, it ends with us.

    Those who give it the same name, here or elsewhere, share one.
    """

    def __init__(self, modules: list[str], name: str | None = None) -> None:
        self.modules = modules
        self._place = f"\0normbook {name or uuid.uuid4()}"  # no file, and ends with it

    @cached_property
    def _socket(self) -> socket.socket:
        self._environment = start_of_interpreter(os.environ)
        while True:
            with socket.socket(*SOCKET) as door:
                if self._has_claimed(door):
                    tools, number = str(Path(__file__).parent), str(door.fileno())
                    self.process = Popen(
                        [sys.executable, "-c", PROGRAM, tools, number, *self.modules],
                        stdin=DEVNULL,
                        pass_fds=[door.fileno()],
                    )
            ours = socket.socket(*SOCKET)
            is_there = False
            with contextlib.suppress(OSError):  # it is about to begin, or to end
                ours.connect(self._place)
                is_there = bool(ours.recv(1))
            if is_there or "process" in vars(self):
                return ours
            ours.close()

    def _has_claimed(self, door: socket.socket) -> bool:
        try:
            door.bind(self._place)
        except OSError:  # another has
            return False
        door.listen()
        return True

    def launch(self, command: list[str], **how: Any) -> Forked:
        """Start a kernel: in the place of ``jupyter_client.launcher.launch_kernel``."""
        arguments = command[command.index("-m") + 1 :]
        return Forked(self.order(arguments, how.get("env"), how.get("cwd"), []))

    @property
    def popen(self) -> Any:
        """What starts programs: in the place of ``subprocess.Popen``."""
        return partial(Program, self)

    def can_run(self, command: Any, environment: Mapping[str, str] | None) -> bool:
        """Whether a command is a program that a copy of the template can be."""
        words = [] if isinstance(command, str | os.PathLike) else [*command]
        if len(words) < 2 or words[0] != sys.executable:
            return False
        is_program = words[1] == "-c" or str(words[1]).endswith(".py")
        wished = start_of_interpreter(
            os.environ if environment is None else environment
        )
        return is_program and bool(self._socket) and wished == self._environment

    def order(
        self,
        arguments: list[str],
        environment: Mapping[str, str] | None,
        folder: str | os.PathLike[str] | None,
        files: list[int],
    ) -> int:
        """Have a copy made, with these files as its streams; return its number."""
        order = {
            "arguments": [str(word) for word in arguments],
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(folder or os.getcwd()),
        }
        answer = b""
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            answer = self._socket.recv(16)
        if not answer:
            raise RuntimeError("the process that kernels are copies of has ended")
        return int(answer)

    def close(self) -> None:
        """End the process; what it started goes with it."""
        if "_socket" in vars(self):
            self._socket.close()
        if "process" in vars(self):
            self.process.wait()


def start_of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read at the start, and by a copy never again."""
    read = ("PYTHON", "OMP_")
    return {k: v for k, v in environment.items() if k.startswith(read)}


def serve(number: str, *modules: str) -> None:
    """Import modules, then fork a process for each order that comes.

    Nobody looks for garbage in what was imported: a copy that did would copy all of it.
    """
    gc.disable()
    for name in modules:
        with contextlib.suppress(ImportError):  # the notebook will say so
            importlib.import_module(name)
    if "torch" in modules:
        importlib.import_module("torch._dynamo")  # the first optimizer imports it
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    with contextlib.ExitStack() as ends:
        order = next_copy(socket.socket(fileno=int(number)), ends)
        if order is None:
            return
        asker, text, files = order
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if files:
            watch_child(asker, files, ends)
        else:
            os.setsid()  # before anybody may end the group that it is in
            asker.sendall(str(os.getpid()).encode())
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # as at the start of an interpreter
    how = json.loads(text)
    become = become_program if files else become_kernel
    become(how["arguments"], how["environment"], how["folder"], files)


def next_copy(
    door: socket.socket, ends: contextlib.ExitStack
) -> tuple[socket.socket, bytes, list[int]] | None:
    """Fork for each order; return it, and whose it is, in the copy.

    Here return None when all have gone who ever came.
    """
    sockets = [ends.enter_context(door)]
    while True:
        for ready in select.select(sockets, [], [])[0]:
            if ready is door:
                asker = ends.enter_context(door.accept()[0])
                asker.sendall(b"*")
                sockets.append(asker)
                continue
            text, files, _, _ = socket.recv_fds(ready, LONGEST, 4)
            if text:
                if os.fork() == 0:
                    return ready, text, files
                for file in files:
                    os.close(file)
                continue
            sockets.remove(ready)
            ready.close()
            if sockets == [door]:
                return None


def watch_child(
    asker: socket.socket, files: list[int], ends: contextlib.ExitStack
) -> None:
    """Fork once more; return in the child only, and here tell how it ended."""
    child = os.fork()
    if child == 0:
        return
    asker.sendall(str(child).encode())
    ends.close()
    for file in files[:3]:
        os.close(file)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(files[3], str(status).encode())
    os._exit(0)


def become_program(
    arguments: list[str], environment: dict[str, str], folder: str, files: list[int]
) -> None:
    """Be what ``python -c CODE ...`` or ``python FILE ...`` would be."""
    for stream, file in enumerate(files[:3]):
        os.dup2(file, stream)
    for file in files:
        os.close(file)
    how: dict[str, Any] = {"closefd": False, "buffering": 1}
    sys.stdin = open(0, **how)  # noqa: SIM115
    sys.stdout = open(1, "w", **how)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", **how)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        code = compile(arguments[1], "<string>", "exec", dont_inherit=True)
        exec(code, vars(main))  # noqa: S102 - ours
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def become_kernel(
    arguments: list[str], environment: dict[str, str], folder: str, _: list[int]
) -> None:
    """Be what ``python -m MODULE ...`` would be in this folder and environment."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment | {"JPY_PARENT_PID": str(os.getppid())})
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
