"""The processes that share an experiment, where ``torchrun`` started several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
from torch import distributed

from normbook.errors import OtherProcessError, RunError

T = TypeVar("T")

Sharing = Literal["runs", "batches", "local batches"]  # as told in runner.run

VARIABLES = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
# Who is done first waits for the others, as long as their last runs take.
PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Ranks:
    """Which process among those that ``torchrun`` started; the only one by default."""

    rank: int = 0
    count: int = 1
    local: int = 0  # its rank among those on this machine
    local_count: int = 1

    @property
    def machines(self) -> int:
        """How many machines the processes are on."""
        return self.count // self.local_count

    @classmethod
    def started(cls) -> Ranks:
        """Return which one ``torchrun`` started here, before they have joined."""
        if os.environ.get("WORLD_SIZE", "1") == "1":
            return cls()
        texts = {name: os.environ.get(name, "") for name in VARIABLES}
        with contextlib.suppress(ValueError):  # told below
            ranks = cls(*map(int, texts.values()))
            if 0 <= ranks.rank < ranks.count and 0 <= ranks.local < ranks.local_count:
                return ranks
        pairs = " ".join(f"{name}={text}" for name, text in texts.items())
        raise RunError(
            "what torchrun sets must be ranks from 0 on, each below the number of "
            f"processes, got {pairs}; start the processes with torchrun, or unset "
            "WORLD_SIZE for one alone."
        )

    def share(self, work: Sequence[T]) -> list[T]:
        """Return the part of this process: 1, 4, 7, ... for the second one of three."""
        return list(work[self.rank :: self.count])

    def first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process; return in all what it returns."""
        shared: list[Any] = [function() if self.rank == 0 else None]
        if self.count > 1:
            distributed.broadcast_object_list(shared)
        only: T = shared[0]
        return only

    def gather(self, value: T) -> list[T]:
        """Return in every process what each of them has, in their order."""
        gathered: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(gathered, value)
        return gathered

    def any(self, flag: bool) -> bool:
        """Whether something holds in this or another one of the processes."""
        total = torch.tensor(int(flag))
        if self.count > 1:
            distributed.all_reduce(total, distributed.ReduceOp.MAX)
        return bool(total)


def is_first() -> bool:
    """Whether this process is the one to speak: the first, or the only one."""
    return Ranks.started().rank == 0


@contextlib.contextmanager
def join(*, tensors_on: str = "cpu", timeout: timedelta = PATIENCE) -> Iterator[Ranks]:
    """Join the processes of ``torchrun``, if it started this one.

    RunError where one has waited so long; OtherProcessError if another has ended early.
    """
    ranks = Ranks.started()
    if ranks.count == 1:
        yield ranks
        return
    backend = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}[tensors_on]
    try:
        distributed.init_process_group(backend, timeout=timeout)
        try:
            # Who fails while another is still connecting makes torch speak of a crash.
            ranks.any(False)
            yield ranks
        finally:
            distributed.destroy_process_group()
    except RuntimeError as error:
        # gloo has no type of its own for what fails between processes.
        is_between = isinstance(error, distributed.DistError) or "gloo" in str(error)
        if isinstance(error, RunError) or not is_between:
            raise
        if "timed out" in str(error).lower():
            raise RunError(
                "no process may keep the others waiting for more than "
                f"{timeout.total_seconds():g} s, but one did; see what it does, then "
                "go on with --resume, with a longer --timeout if it was at work."
            ) from error
        raise OtherProcessError(
            "all processes must get to the end, but another one has failed; see what "
            "it says, then go on with --resume."
        ) from error
