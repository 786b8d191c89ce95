"""The notebooks for Colab fetch the book, once, and go where they are sent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import colab
import nbformat
import pytest
import repository_links
from IPython.core.inputtransformer2 import TransformerManager

ADDRESS = "https://github.com/someone/a-book"
NAMES = sorted(path.name for path in (colab.ROOT / "book").glob("*.ipynb"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder") / "colab"
    assert colab.write(folder, ADDRESS, "main") == len(NAMES)
    return folder


def test_every_notebook_is_there_and_valid_with_one_cell_more(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "book").iterdir()) == NAMES
    for name in NAMES:
        here = nbformat.read(colab.ROOT / "book" / name, as_version=4)
        there = nbformat.read(folder / "book" / name, as_version=4)
        nbformat.validate(there)
        assert there.cells[1:] == here.cells
        assert there.cells[0].metadata == colab.FOLDED


class Shell:
    """What the cell runs, noted in place of run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def system(self, command: str) -> None:
        self.ran.append(command)

    def run_line_magic(self, name: str, rest: str) -> None:
        self.ran.append(f"{name} {rest}")


@pytest.mark.parametrize("is_there", [True, False])
def test_the_cell_does_nothing_where_the_package_is(
    is_there: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = object() if is_there else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    cell = nbformat.read(folder / "book" / NAMES[0], as_version=4).cells[0]
    shell = Shell()
    manager: Any = TransformerManager  # carries no types
    code = manager().transform_cell(cell.source)
    exec(code, {"get_ipython": lambda: shell})  # noqa: S102 - what a reader would run
    if is_there:
        assert shell.ran == []
    else:
        clone, install, enter = shell.ran
        assert f"--branch main {ADDRESS} " in clone
        assert install == 'pip install -q "/content/normbook[book]"'
        assert enter == "cd -q /content/normbook/book"


def test_the_branch_of_a_repository_is_replaced(tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)
    for branch in ("main", "other"):
        colab.write(tmp_path / "out", ADDRESS, branch)
        colab.send(tmp_path / "out", str(remote))
    ask = ["git", "-C", str(remote)]
    log = subprocess.check_output([*ask, "log", "--oneline", "colab"], text=True)
    assert len(log.splitlines()) == 1
    path = f"colab:book/{NAMES[0]}"
    assert "--branch other" in subprocess.check_output([*ask, "show", path], text=True)


def test_a_refusal_is_told_and_ends_it(tmp_path: Path) -> None:
    colab.write(tmp_path / "out", ADDRESS, "main")
    with pytest.raises(SystemExit, match="git push failed"):
        colab.send(tmp_path / "out", str(tmp_path / "nowhere.git"))


def test_without_an_address_the_cure_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repository_links, "repository_url", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["colab.py"])
    with pytest.raises(SystemExit, match="GITHUB_REPOSITORY=owner/name"):
        colab.main()
