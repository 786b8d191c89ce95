"""How pytest runs the notebooks (nbval), for every folder of tests."""

from __future__ import annotations

import time
from queue import Empty
from typing import Any

import nbval.kernel
import nbval.plugin
from jupyter_client.manager import KernelManager
from kernels import prepare_environment, unix_socket

prepare_environment()


class UnixSocketKernel(KernelManager):  # type: ignore[misc]
    """A kernel that is reached through a Unix socket."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**(unix_socket() | kwargs))


class WatchedKernel(nbval.kernel.RunningKernel):  # type: ignore[misc]
    """A kernel whose death is noticed when it happens.

    nbval waits for a reply as long as a cell may take, and a kernel that was killed
    (out of memory, say) never replies. Here the wait is cut into seconds, after each
    of which the kernel must still be alive.
    """

    def get_message(self, stream: str, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            try:
                return super().get_message(stream, timeout=max(0.0, min(left, 1.0)))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError(
                        "the kernel died: killed, or out of memory"
                    ) from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise


nbval.kernel.KernelManager = UnixSocketKernel
nbval.plugin.RunningKernel = WatchedKernel
