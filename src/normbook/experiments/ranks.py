"""The processes that share an experiment, where ``torchrun`` started several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed

from normbook.experiments.checkpoints import RunError

__all__ = ["OtherProcessError", "Ranks", "is_first", "join"]

T = TypeVar("T")

# Who is done first waits for the others, as long as their last runs take.
PATIENCE = timedelta(days=30)


class OtherProcessError(RunError):
    """Another process has failed, and says itself why."""


@dataclass(frozen=True)
class Ranks:
    """Which process among those that ``torchrun`` started; the only one by default.

    Attributes
    ----------
    rank, count : int
        Number of this process, from 0, and of all.
    local, local_count : int
        The same among those on this machine.
    """

    rank: int = 0
    count: int = 1
    local: int = 0
    local_count: int = 1

    @property
    def machines(self) -> int:
        """How many machines the processes are on."""
        return self.count // self.local_count

    def share(self, work: Sequence[T]) -> list[T]:
        """Give this process its part of the work.

        Parameters
        ----------
        work : sequence

        Returns
        -------
        list

        Examples
        --------
        >>> Ranks(rank=1, count=3).share("abcdefgh")
        ['b', 'e', 'h']
        """
        return list(work[self.rank :: self.count])

    def first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process, and give all what it returns.

        Parameters
        ----------
        function : callable
            Without arguments. If it raises, the first process fails with that, and
            the others with an :class:`OtherProcessError` once it has ended.

        Returns
        -------
        object
        """
        if self.count == 1:
            return function()
        found: list[Any] = [function() if self.rank == 0 else None]
        _together(distributed.broadcast_object_list, found)
        only: T = found[0]
        return only

    def gather(self, own: T) -> list[T]:
        """Give every process what each of them has.

        Parameters
        ----------
        own : object
            What this one has.

        Returns
        -------
        list
            One entry for each process, in their order.
        """
        if self.count == 1:
            return [own]
        gathered: list[Any] = [None] * self.count
        _together(distributed.all_gather_object, gathered, own)
        return gathered


def is_first() -> bool:
    """Whether this process is the one to speak: the first, or the only one.

    Returns
    -------
    bool
    """
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def join() -> Iterator[Ranks]:
    """Join the processes of ``torchrun``, if it started this one.

    Yields
    ------
    Ranks
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    # Only records travel between them, so gloo does on GPUs as well.
    distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Ranks(
            distributed.get_rank(),
            distributed.get_world_size(),
            int(os.environ["LOCAL_RANK"]),
            int(os.environ["LOCAL_WORLD_SIZE"]),
        )
    finally:
        distributed.destroy_process_group()


def _together(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except RuntimeError as error:  # a connection was closed
        raise OtherProcessError(
            "all processes must get to the end, but another one has failed; see what "
            "it says, then go on with --resume."
        ) from error
