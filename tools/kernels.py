"""How the book's notebooks are run: the same for storing outputs and for checking.

``tools/execute.py`` stores outputs and ``pytest --nbval`` compares them. Both start
their kernels here, so that nothing but the notebook decides what comes out.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import matplotlib.font_manager  # builds the font cache before any cell does

TIMEOUT = 100  # seconds a cell may take; a hang is reported within two minutes

# A Unix socket's path is at most 107 bytes long, whatever TMPDIR says.
_BASE = tempfile.gettempdir()
RUNTIME = Path(
    tempfile.mkdtemp(prefix="normbook-", dir=_BASE if len(_BASE) < 60 else "/tmp")  # noqa: S108
)
atexit.register(shutil.rmtree, RUNTIME, ignore_errors=True)

ENVIRONMENT = {
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
    """Set the variables that every kernel started from this process inherits."""
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
