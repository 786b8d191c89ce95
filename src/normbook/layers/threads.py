"""Threads in which compiled loops compute together.

They are torch's own where its OpenMP lets others in: those wait for work already, and
after a product of theirs busily, so that beside them other threads would get no core.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable
from threading import Thread
from typing import Any

import torch

__all__ = ["has_pool", "together"]

HERE = os.getpid()
MEMBER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _openmp() -> Any:
    """Return the OpenMP that torch has loaded; None if no region can be begun there."""
    libraries = ctypes.CDLL(torch._C.__file__)  # it, and all that it needs
    names = "GOMP_parallel_start", "GOMP_parallel_end", "omp_get_num_threads"
    has_all = all(hasattr(libraries, name) for name in names)
    return libraries if has_all and torch._C.has_openmp else None


def has_pool() -> bool:
    """Whether these are torch's threads. A fork takes none of them along."""
    return os.getpid() == HERE and _openmp() is not None


def together(
    run: Callable[[int, int], None],
    members: int,
    let_go: Callable[[], None] = lambda: None,
) -> None:
    """Call ``run(me, count)`` in so many threads at a time; return when all have ended.

    The count may turn out smaller than ``members``. Where one fails or does not start,
    or Ctrl-C comes, ``let_go`` frees those that wait for it.
    """
    if members == 1:
        run(0, 1)
        return
    errors: list[BaseException] = []

    def other(me: int, count: int) -> None:
        try:
            run(me, count)
        except BaseException as error:  # noqa: BLE001, it is raised below
            errors.append(error)
            let_go()

    begin = _in_pool if has_pool() else _in_new_threads
    begin(run, other, members, let_go)
    if errors:
        raise errors[0]


def _in_pool(run: Any, other: Any, members: int, let_go: Any) -> None:
    openmp, numbers = _openmp(), itertools.count(1)
    member = MEMBER(lambda _: other(next(numbers), openmp.omp_get_num_threads()))
    # Python looks for Ctrl-C when a call returns: once the others have begun, inside.
    try:
        openmp.GOMP_parallel_start(member, None, members)
        run(0, openmp.omp_get_num_threads())
    except BaseException:
        let_go()
        raise
    finally:
        openmp.GOMP_parallel_end()


def _in_new_threads(run: Any, other: Any, members: int, let_go: Any) -> None:
    threads = [Thread(target=other, args=(k, members)) for k in range(1, members)]
    try:
        for thread in threads:
            thread.start()
        run(0, members)
        for thread in threads:
            thread.join()
    except BaseException:
        let_go()
        raise
