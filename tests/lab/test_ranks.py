"""Several processes share the runs, and none waits for one that has failed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny

from normbook.errors import RunError
from normbook.lab import ranks, record
from normbook.lab.ranks import Ranks
from normbook.lab.record import Record
from normbook.lab.runner import run

WHERE = Path(__file__).parent
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
# What torch says where the name of this machine leads nowhere, as in many containers.
NAMELESS = r"(?m)^\[W.*\[c10d\] The hostname of the client socket cannot be .*\n"
TORCHRUN = [
    *("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
    *("--nproc-per-node", "2"),
]
SCRIPT = """
import os, sys
from normbook.errors import OtherProcessError, RunError
from normbook.lab import ranks, runner

what, rank = sys.argv[1], int(os.environ["RANK"])
try:
    with ranks.join() as joined:
        if what == "share":
            print(joined.first(lambda: rank), joined.gather(rank), joined.machines)
            print(joined.any(rank == 1), joined.any(False))
        elif what == "other code":
            runner._check_same(joined, {"code": f"{rank}", "data": {}})
        elif what == "first fails":
            joined.first(lambda: sys.exit(3))
        elif rank == 1:
            os._exit(4)
        else:
            joined.gather(0)
except OtherProcessError as error:
    print(error)
    sys.exit(5)
except RunError as error:
    print(error)
    sys.exit(1)
"""


def start(*command: str, count: int = 2) -> list[subprocess.Popen[str]]:
    """Start processes as torchrun does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    size = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **size, **LOOPBACK}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **common, "RANK": rank, "LOCAL_RANK": rank},
            cwd=WHERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in map(str, range(count))
    ]


def together(*command: str, count: int = 2) -> list[tuple[int, str]]:
    """Start processes as torchrun does; give their exit codes and outputs."""
    return ended(start(*command, count=count))


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    # gloo would wait for PATIENCE, which is days
    outputs = [
        re.sub(NAMELESS, "", process.communicate(timeout=100)[0])
        for process in processes
    ]
    return [(p.returncode, o) for p, o in zip(processes, outputs, strict=True)]


def test_the_work_is_shared_without_gap_or_overlap() -> None:
    for count in (1, 2, 3, 9):
        shares = [Ranks(rank, count).share(range(7)) for rank in range(count)]
        assert sorted(x for share in shares for x in share) == list(range(7))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.Ranks() == ranks.Ranks(rank=0, count=1, local=0, local_count=1)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with ranks.join() as joined:
        assert joined.first(lambda: 7) == 7
        assert joined.gather("mine") == ["mine"]
        assert joined.any(True) is True


@pytest.mark.parametrize(
    "wrong", [{"RANK": "x"}, {"RANK": "2"}, {"LOCAL_RANK": "-1"}, {"WORLD_SIZE": "two"}]
)
def test_a_rank_that_torchrun_would_not_set_is_told(
    wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**right, **wrong}.items():
        monkeypatch.setenv(name, value)
    ((name, value),) = wrong.items()
    rule = rf"must be ranks from 0 on, .* got .*{name}={value}\b.*; start the processes"
    with pytest.raises(RunError, match=rule):
        run(tiny.EXPERIMENT)
    with pytest.raises(RunError, match=rule):
        ranks.is_first()
    monkeypatch.delenv(name)
    if name != "WORLD_SIZE":
        with pytest.raises(RunError, match=rf"got .*{name}=( |;)"):
            Ranks.started()


def test_what_one_process_has_reaches_the_others() -> None:
    assert together("-c", SCRIPT, "share") == [(0, "0 [0, 1] 1\nTrue False\n")] * 2


@pytest.mark.parametrize(
    ("what", "codes"), [("first fails", [3, 5]), ("one dies", [5, 4])]
)
def test_no_process_waits_for_one_that_has_failed(what: str, codes: list[int]) -> None:
    found = together("-c", SCRIPT, what)
    assert [code for code, _ in found] == codes
    assert "another one has failed; see what it says" in found[codes.index(5)][1]


def test_other_code_or_data_on_another_machine_is_refused() -> None:
    (code, text), (other, _) = together("-c", SCRIPT, "other code")
    assert (code, other) == (1, 5)
    assert "must have the same code and data, but there are others" in text
    assert "code in process 1; install the same on all machines" in text


@pytest.fixture
def records(tmp_path: Path) -> tuple[Record, Record]:
    """The record of two processes of torchrun, and that of one."""
    shared, alone = tmp_path / "shared.json", tmp_path / "alone.json"
    command = [sys.executable, *TORCHRUN, "tiny.py", "--out", str(shared)]
    done = subprocess.run(
        command,
        cwd=WHERE,
        env={**os.environ, **LOOPBACK},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert re.fullmatch(rf"{shared}: 4 runs in \d+ s\n", done.stdout)  # once
    assert list(tmp_path.iterdir()) == [shared]
    run(tiny.EXPERIMENT, out=alone)
    return record.load(shared), record.load(alone)


def test_under_torchrun_the_record_is_that_of_one_process_and_tells_the_processes(
    records: tuple[Record, Record],
) -> None:
    shared, alone = records
    own = {"runs", "command", "device", "started", "wall_seconds"}
    for name in vars(alone).keys() - own:
        assert getattr(shared, name) == getattr(alone, name), name
    for one, other in zip(shared.runs, alone.runs, strict=True):
        assert replace(one, wall_seconds=0) == replace(other, wall_seconds=0)
    assert alone.device["parallel"] == "runs"
    assert shared.device == {**alone.device, "threads": 1, "ranks": 2}
    assert shared.command == f"torchrun --nproc-per-node 2 -m {alone.command}"


def test_a_wrong_option_is_told_once_and_ends_all(tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    out.write_text("precious")
    (code, text), (other_code, silence) = together("tiny.py", "--out", str(out))
    assert (code, other_code) == (1, 1)
    assert text.startswith("normbook: the record must not be there yet")
    assert silence == ""
