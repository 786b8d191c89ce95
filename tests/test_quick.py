"""`make quick` runs what the change bears on, the nearest first, and says what not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick

SITE = "ROOT / " + '"_build/html"'
FILES = {
    "src/normbook/__init__.py": "",
    "src/normbook/low.py": "X = 1",
    "src/normbook/high.py": "from normbook import low",
    "src/normbook/rooms/__init__.py": "from . import inner",
    "src/normbook/rooms/inner.py": "from ..high import low",
    "tests/test_low.py": "from normbook.low import X",
    "tests/test_high.py": "def test():\n    import normbook.high",
    "tests/rooms/test_inner.py": "import helper",
    "tests/rooms/helper.py": "from normbook.rooms import inner",
    "tests/test_words.py": "PAGES = 'words.md', '*.ipynb'",
    "tests/test_site.py": f"import normbook.low\nSITE = {SITE}",
    "book/words.md": "",
    "book/uses_high.ipynb": ["%matplotlib inline\n", "import normbook.high\n"],
    "book/uses_none.ipynb": ["1 + 1"],
    "LICENSE": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(text, str):
            text = json.dumps({"cells": [{"cell_type": "code", "source": text}]})
        path.write_text(text, encoding="utf-8")
    return tmp_path


def git(project: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    subprocess.run(["git", "-C", str(project), *who, *words], check=True)


def test_users_of_users_run_too_the_nearest_first(project: Path) -> None:
    choice = quick.choose(project, ["src/normbook/low.py"])
    assert choice.run == {
        "src/normbook/low.py": 0,
        "tests/test_low.py": 1,
        "tests/test_high.py": 2,
        "tests/rooms/test_inner.py": 4,
    }
    assert [*choice.run.values()] == sorted(choice.run.values())
    assert choice.notebooks == ["book/uses_high.ipynb"]
    assert choice.pages == ["tests/test_site.py"]
    assert choice.unknown == []


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        ("tests/rooms/helper.py", ["tests/rooms/test_inner.py"]),
        ("tests/test_low.py", ["tests/test_low.py"]),
        ("book/words.md", ["tests/test_words.py"]),
        ("book/uses_none.ipynb", ["book/uses_none.ipynb", "tests/test_words.py"]),
    ],
)
def test_what_changed_runs_itself_and_what_speaks_of_it(
    project: Path, changed: str, run: list[str]
) -> None:
    assert [*quick.choose(project, [changed]).run] == run


def test_who_uses_a_file_that_is_gone_runs(project: Path) -> None:
    (project / "src/normbook/high.py").unlink()
    assert "tests/test_high.py" in quick.choose(project, ["src/normbook/high.py"]).run


def test_what_no_test_knows_is_named(project: Path) -> None:
    assert quick.choose(project, ["LICENSE"]) == ({}, [], [], [], ["LICENSE"])


def test_of_too_many_files_the_nearest_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "FILES", 2)
    choice = quick.choose(project, ["src/normbook/low.py"])
    assert [*choice.run] == ["src/normbook/low.py", "tests/test_low.py"]
    assert choice.far == ["tests/test_high.py", "tests/rooms/test_inner.py"]


def test_a_file_that_cannot_be_parsed_stops_nothing(project: Path) -> None:
    (project / "tests/test_low.py").write_text("def", encoding="utf-8")
    assert "tests/test_low.py" in quick.choose(project, ["tests/test_low.py"]).run


def test_changed_is_what_the_branch_and_the_work_tree_add_to_main(
    project: Path,
) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "LICENSE")
    git(project, "commit", "-q", "-m", "First")
    everything = sorted([*FILES.keys() - {"LICENSE"}])
    assert quick.changed_files(project)[1] == everything
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "Second")
    assert quick.changed_files(project)[1] == []
    git(project, "switch", "-q", "-c", "work")
    git(project, "rm", "-q", "tests/test_low.py")
    git(project, "commit", "-q", "-m", "Third")
    (project / "LICENSE").write_text("all", encoding="utf-8")
    (project / "new.md").touch()
    base, changed = quick.changed_files(project)
    assert base.endswith(" Second")
    assert changed == ["LICENSE", "new.md", "tests/test_low.py"]


TESTS = """
import time

def test_first():
    time.sleep(0.3)

def test_second():
    raise AssertionError
"""


@pytest.mark.parametrize(("seconds", "code"), [(0.1, 0), (100.0, 1)])
def test_no_test_starts_when_the_time_is_over(
    tmp_path: Path, seconds: float, code: int
) -> None:
    (tmp_path / "test_both.py").write_text(TESTS, encoding="utf-8")
    program = (
        f"import quick, pytest, sys; quick.SECONDS = {seconds}; "
        "sys.exit(pytest.main(['-q', '-c', '/dev/null', 'test_both.py'], [quick]))"
    )
    tools = str(Path(quick.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": tools, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    is_told = "the minute is over, so that 1 tests did not run:\n  test_both.py (1)"
    assert (is_told in done.stdout) == (code == 0)
