"""A file is written whole or not at all, and nothing of somebody else is touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from normbook import atomic_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "numbers.txt"


def an_hour_old(path: Path) -> Path:
    path.write_bytes(b"half")
    then = time.time() - atomic_file.ABANDONED_AFTER - 1
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize("content", [b"", b"1 2 3", bytes(1_000_000)])
def test_a_file_has_the_content_and_nothing_lies_beside_it(
    content: bytes, path: Path
) -> None:
    atomic_file.write(path, content)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_an_old_file_is_replaced(path: Path) -> None:
    atomic_file.write(path, b"a long old one")
    atomic_file.write(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("function", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_and_nothing_beside_it(
    error: BaseException, function: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(function, fail)
    with pytest.raises(type(error)):
        atomic_file.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_it_gets_the_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"old")
    seen: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_bytes()))
    atomic_file.write(path, b"new")
    assert seen == [b"old"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_file.write(tmp_path / "no" / "numbers.txt", b"")


def test_what_a_killed_process_left_is_removed_an_hour_later(path: Path) -> None:
    old = an_hour_old(path.with_name(f"other.txt.{'0a' * 16}.part"))
    young = path.with_name(f"other.txt.{'1b' * 16}.part")
    young.write_bytes(b"half")
    atomic_file.write(path, b"")
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize(
    "name", ["film.mkv.part", "a.part", f"x.{'0' * 31}.part", f"x.{'G' * 32}.part"]
)
def test_temporary_files_of_other_programs_are_left_alone(
    name: str, path: Path
) -> None:
    other = an_hour_old(path.with_name(name))
    atomic_file.write(path, b"")
    assert other.exists()


def test_names_of_temporary_files_are_known_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.extend(path.parent.iterdir()))
    atomic_file.write(path.with_name("with\nline\nbreaks"), b"")
    assert list(map(atomic_file.is_temporary, seen)) == [True]


def test_all_of_it_is_with_the_system_before_it_is_called_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    atomic_file.write(path, b"1 2 3")
    assert sizes == [5]
