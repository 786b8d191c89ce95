"""How the book's notebooks are run: the same for storing outputs and for checking.

``tools/execute.py`` stores outputs and ``pytest --nbval`` compares them. Both start
their kernels here, so that nothing but the notebook decides what comes out.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

import matplotlib.font_manager  # builds the font cache before any cell does
import psutil

# Seconds of processor time that a cell may take, and seconds that it may wait without
# using any. Not seconds of a clock: on a loaded machine a slow cell is not a hang.
PATIENCE = 100.0
IDLE = 0.02  # a kernel that waits uses less of a processor than this

# A Unix socket's path is at most 107 bytes long, whatever TMPDIR says.
_BASE = tempfile.gettempdir()
RUNTIME = Path(
    tempfile.mkdtemp(prefix="normbook-", dir=_BASE if len(_BASE) < 60 else "/tmp")  # noqa: S108
)
atexit.register(shutil.rmtree, RUNTIME, ignore_errors=True)

ENVIRONMENT = {
    "PYTHONOPTIMIZE": "",  # asserts are never switched off
    "PYTHONHASHSEED": "0",  # sets print in one order
    "PYTHONUTF8": "1",  # whatever LANG says
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "MATPLOTLIBRC": str(Path(matplotlib.get_data_path()) / "matplotlibrc"),
    "IPYTHONDIR": str(RUNTIME / "ipython"),  # nobody's own start-up files
}
DEFAULTS = {
    # The chapters' arrays are small. A second thread brings nothing on a free machine,
    # and where cores are shared the two wait for each other: three times the time.
    "OMP_NUM_THREADS": "1",
    # Read at the first CUDA call; equal sums on every run need it.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def prepare_environment() -> None:
    """Set the variables that every kernel started from this process inherits.

    Where asserts are switched off, nothing is run: all of them would look green.
    """
    if not __debug__:
        sys.exit("asserts are switched off; run without -O and PYTHONOPTIMIZE")
    os.environ.update(ENVIRONMENT)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def unix_socket() -> dict[str, str]:
    """Return a kernel manager's arguments for a connection without a TCP port.

    Two kernels that start at the same moment can pick the same port; the loser dies
    with "Kernel died before replying to kernel_info".
    """
    name = f"{uuid.uuid4().hex[:8]}.json"
    return {"transport": "ipc", "connection_file": str(RUNTIME / name)}


class Watch:
    """Tells a kernel that hangs from one that is slow, by the processor time it uses.

    Counted are the kernel and the processes it started, from when the watch was made.
    """

    def __init__(self, pid: int, patience: float = PATIENCE) -> None:
        self.pid, self.patience = pid, patience
        self.start = self.used = self.marked = cpu_seconds(pid)
        self.since = time.monotonic()

    def complaint(self) -> str:
        """Return why the kernel is given up, or '' while it is not."""
        self.used = max(self.used, cpu_seconds(self.pid))  # less while a child ends
        if self.used - self.start > self.patience:
            return f"has used {self.patience:g} seconds of processor time, the most"
        waited = time.monotonic() - self.since
        if self.used - self.marked > IDLE * max(waited, 1.0):
            self.marked, self.since = self.used, time.monotonic()
        elif waited > self.patience:
            return f"has waited for {self.patience:g} seconds without computing"
        return ""


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of those it started, in seconds."""
    total = 0.0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            try:
                total += sum(one.cpu_times()[:4])  # own and ended children's
            except psutil.NoSuchProcess:
                continue
    except psutil.NoSuchProcess:
        pass  # its end is noticed elsewhere
    return total
