"""Threads that compute together: torch's own, or new ones."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from normbook.layers import threads
from normbook.layers.threads import has_pool, together


@pytest.fixture(params=["in the pool", "new"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "new":
        monkeypatch.setattr(threads, "has_pool", lambda: False)
    elif not has_pool():
        pytest.skip("this torch has another OpenMP")
    return str(request.param)


class Waiting:
    """Members that wait for each other, as the loop of the LSTM does."""

    def __init__(self, members: int, broken: int | None = None) -> None:
        self.members, self.broken, self.is_free = members, broken, False
        self.arrived: list[int] = []

    def run(self, me: int, count: int) -> None:
        assert count == self.members
        if me == self.broken:
            raise KeyError(me)
        self.arrived.append(me)
        while len(self.arrived) < count and not self.is_free:
            time.sleep(0.001)

    def let_go(self) -> None:
        self.is_free = True


@pytest.mark.parametrize("members", [1, 2, 3])
def test_all_run_once_and_at_a_time(members: int) -> None:
    waiting = Waiting(members)
    together(waiting.run, members, waiting.let_go)
    assert sorted(waiting.arrived) == [*range(members)]
    assert not waiting.is_free


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_an_error_is_raised_when_the_others_have_been_let_go(broken: int) -> None:
    waiting = Waiting(3, broken)
    with pytest.raises(KeyError, match=str(broken)):
        together(waiting.run, 3, waiting.let_go)
    assert sorted({*waiting.arrived, broken}) == [0, 1, 2]
    again = Waiting(2)
    together(again.run, 2, again.let_go)  # nothing is left of it
    assert sorted(again.arrived) == [0, 1]


def test_ctrl_c_at_any_time_leaves_nobody_waiting() -> None:
    is_inside, caught, main = False, 0, threading.get_ident()
    is_over = threading.Event()

    def interrupt(*_: Any) -> None:
        nonlocal is_inside
        if is_inside:
            is_inside = False
            raise KeyboardInterrupt

    def send() -> None:
        for k in itertools.count():
            if is_over.wait(0.0005 + 0.0001 * (k % 7)):
                break
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    while caught < 100:
        waiting = Waiting(2)
        try:
            is_inside = True
            together(waiting.run, 2, waiting.let_go)
            is_inside = False
        except KeyboardInterrupt:
            caught += 1
    is_over.set()
    sender.join()
    signal.signal(signal.SIGINT, before)
    together(Waiting(2).run, 2)


def test_a_thread_that_cannot_start(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "new":
        pytest.skip("torch's threads have started already")
    begun: list[Any] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            if begun:
                raise RuntimeError("no more")
            begun.append(self)
            super().start()

    monkeypatch.setattr(threads, "Thread", Thread)
    waiting = Waiting(3)
    with pytest.raises(RuntimeError, match="no more"):
        together(waiting.run, 3, waiting.let_go)
    begun[0].join(timeout=20)
    assert not begun[0].is_alive()


# Python warns of a fork beside threads from 3.12 on: this is what is tested.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    together(lambda *_: None, 2)
    child = os.fork()
    if child == 0:
        waiting = Waiting(2)
        together(waiting.run, 2, waiting.let_go)
        os._exit(len(waiting.arrived) if not has_pool() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2


def test_torch_computes_as_before() -> None:
    x = torch.arange(2.0**16).reshape(256, 256)
    before = x @ x
    together(lambda *_: None, 3)
    assert torch.equal(x @ x, before)
