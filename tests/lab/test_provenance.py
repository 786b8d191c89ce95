"""A record says truly where it comes from."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from normbook.__main__ import _parser
from normbook.data import digits
from normbook.data.catalogue import MNIST
from normbook.lab import provenance
from normbook.lab.ranks import Ranks

CPU = torch.device("cpu")
WHO = ["-c", "user.name=A", "-c", "user.email=a@example.org"]


def git(folder: Path, *arguments: str) -> None:
    command = ["git", "-C", str(folder), *WHO, *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one file in a folder of its own, which git does not know."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "project" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "ROOT", folder)
    return folder


def tracked(folder: Path) -> None:
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")


@pytest.mark.parametrize(
    ("name", "is_modified"),
    [(None, False), ("__init__.py", True), ("new.py", True), ("../notes.txt", False)],
)
def test_tracked_sources_have_a_commit_and_are_said_to_differ_from_it(
    name: str | None, is_modified: bool, sources: Path
) -> None:
    tracked(sources.parent)
    if name:
        (sources / name).write_text("x = 2\n")
    found = provenance.commit()
    assert re.fullmatch("[0-9a-f]{40}", found["commit"])
    assert found["is_modified"] == is_modified


def test_sources_outside_of_a_repository_have_no_commit(sources: Path) -> None:
    assert provenance.commit() == {"commit": None, "is_modified": False}


def test_the_commit_of_a_repository_that_only_holds_the_sources_is_not_theirs(
    sources: Path,
) -> None:
    (sources.parent / ".gitignore").write_text("package\n")  # as .venv mostly is
    tracked(sources.parent)
    assert provenance.commit()["commit"] is None


def test_without_git_there_is_no_commit(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked(sources.parent)
    monkeypatch.setenv("PATH", "")
    assert provenance.commit()["commit"] is None


def test_the_hash_of_the_code_is_of_each_file_and_its_name_not_of_the_place(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [provenance.code()]
    (sources / "__init__.py").write_text("x = 2\n")
    seen.append(provenance.code())
    (sources / "a.py").write_text("")
    seen.append(provenance.code())
    (sources / "a.py").rename(sources / "b.py")
    seen.append(provenance.code())
    assert len(set(seen)) == 4
    copy = sources.parent / "copy"
    shutil.copytree(sources, copy)
    monkeypatch.setattr(provenance, "ROOT", copy)
    assert provenance.code() == seen[-1]


def test_versions_are_those_of_what_computes() -> None:
    found = provenance.versions()
    assert found["torch"] == torch.__version__
    assert found.keys() == {"python", *provenance.PACKAGES}


def test_a_package_that_runs_from_its_sources_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(provenance, "version", version)
    assert provenance.versions()["normbook"] == "not installed"


def test_files_are_named_with_the_hash_they_were_compared_with() -> None:
    found = provenance.data_hashes("mnist", digits.load())
    assert found == {"mnist": {file.name: file.sha256 for file in MNIST.files}}


def test_embedded_data_have_the_hash_of_their_numbers() -> None:
    data = digits.load()
    content = b"".join(array.tobytes() for array in data)
    expected = {"digits": {"scikit-learn": hashlib.sha256(content).hexdigest()}}
    assert provenance.data_hashes("digits", data) == expected
    assert provenance.data_hashes("digits", digits.load(seed=1)) != expected
    assert provenance.data_hashes("", None) == {}  # numbers that the run draws itself


@pytest.mark.parametrize(
    ("how", "torchrun", "is_parallel", "is_local"),
    [
        ((Ranks(),), "", False, False),
        ((Ranks(0, 4, 0, 4),), "--nproc-per-node 4", False, False),
        ((Ranks(0, 4, 0, 2),), "--nnodes 2 --nproc-per-node 2", False, False),
        ((Ranks(), "runs"), "", False, False),
        ((Ranks(), "batches"), "", True, False),
        ((Ranks(), "local batches"), "", True, True),
    ],
)
def test_the_command_repeats_the_run_and_says_what_processes_share(
    how: Any, torchrun: str, is_parallel: bool, is_local: bool
) -> None:
    command = provenance.command("vgg", "cpu", [0, 7], CPU, *how)
    start = f"torchrun {torchrun} -m " if torchrun else ""
    assert command.startswith(f"{start}normbook run ")
    words = command.split()
    options = _parser().parse_args(words[words.index("run") :])
    assert (options.name.name, options.scale) == ("vgg", "cpu")
    assert (options.seeds, options.device) == ([0, 7], "cpu")
    shared = options.data_parallel, options.local_statistics
    assert shared == (is_parallel, is_local)


def test_the_device_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    found = provenance.device(torch.device("cuda:1"))
    threads = torch.get_num_threads()
    assert found == {"type": "cuda", "name": "NVIDIA H100", "threads": threads}
    assert provenance.device(CPU)["name"]


def test_the_time_is_that_of_utc() -> None:
    told = datetime.strptime(provenance.now(), "%Y-%m-%dT%H:%M:%S%z")
    assert abs((datetime.now(UTC) - told).total_seconds()) < 60
