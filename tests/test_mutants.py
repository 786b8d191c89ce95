"""Each change that `make mutants` makes is one, and none touches what does not run."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import mutants
import pytest

SOURCE = '''\
"""Text of 3 words."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
def function(x: int = 4) -> Literal[5]:
    if x < 2 and x != 3:
        print(x)
    return x + True
'''


def changed(source: str) -> list[str]:
    """Return what each change makes of a source."""
    found = []
    for place in range(len(list(mutants.changes(ast.parse(source))))):
        tree = ast.parse(source)
        _, _, change = list(mutants.changes(tree))[place]
        change()
        found.append(ast.unparse(ast.fix_missing_locations(tree)))
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x: int=4", "x: int=5"),
        ("x < 2 and x != 3", "not (x < 2 and x != 3)"),
        ("x < 2 and x != 3", "x < 2 or x != 3"),
        ("x < 2", "x <= 2"),
        ("x < 2", "x < 3"),
        ("x != 3", "x == 3"),
        ("x != 3", "x != 4"),
        ("print(x)", "None"),
        ("return x + True", "return"),
        ("x + True", "x - True"),
        ("x + True", "x + False"),
    ],
)
def test_each_change_is_made_once(old: str, new: str) -> None:
    whole = ast.unparse(ast.parse(SOURCE))
    assert old in whole
    assert changed(SOURCE).count(whole.replace(old, new)) == 1


def test_there_are_no_other_changes() -> None:
    assert len(changed(SOURCE)) == 11


def test_an_endless_loop_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (tmp_path / "test_it.py").write_text("def test_it():\n    while True: pass\n")
    monkeypatch.setattr(mutants, "LOOP", 4)
    assert mutants.verdict(tmp_path / "normbook", ["test_it.py"], 0) == "noticed"


def test_a_wait_without_an_end_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "WAIT", 4)
    waits = "import time\n\ndef test_it():\n    time.sleep(600)\n"
    (tmp_path / "test_it.py").write_text(waits)
    assert mutants.verdict(tmp_path / "normbook", ["test_it.py"], 0) == "too slow"


# --- the record


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a package have two modules, whose tests notice all but a truth value."""
    package, tests = tmp_path / "package", tmp_path / "tests"
    for folder in (package, tests):
        folder.mkdir()
    for name in ("one", "two"):
        (package / f"{name}.py").write_text("x = 1 + 2\ny = True\n")
        (tests / f"test_{name}.py").write_text("")
    seen = list[str]()

    def verdict(copy: Path, tests: list[str], took: float = 0) -> str:
        source = (copy / tests[0].replace("tests/test_", "")).read_text()
        seen.append(tests[0])
        return "LIVES" if source.startswith("x = 1 + 2") else "noticed"

    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "PACKAGE", package)
    monkeypatch.setattr(
        mutants, "TESTS", {name: [f"tests/test_{name}.py"] for name in ("one", "two")}
    )
    monkeypatch.setattr(mutants, "verdict", verdict)
    monkeypatch.setattr(mutants, "REASONS", tmp_path / "reasons.txt")
    return seen


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    command = ["mutants", "one", "two", "--record", "found.json", *words]
    monkeypatch.chdir(mutants.ROOT)
    monkeypatch.setattr("sys.argv", [str(word) for word in command])
    return mutants.main()


@pytest.mark.parametrize("changed", ["package/one.py", "tests/test_one.py", "count"])
def test_a_module_is_tried_again_only_after_a_change(
    changed: str, tried: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(monkeypatch) == 1  # 3 of 4 noticed, each
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["one"]["lives"] == ["one.py, line 2, True becomes False"]
    assert found["one"]["tried"] == 4
    first = len(tried)
    assert run(monkeypatch) == 1
    assert len(tried) == first
    if changed == "count":
        run(monkeypatch, "--count", 2)
        assert len(tried) == first + 6
    else:
        with (tmp_path / changed).open("a") as file:
            file.write("# another line\n")
        run(monkeypatch)
        assert tried[first:] == ["tests/test_one.py"] * 5


def test_changes_of_a_folder_are_drawn_from_all_its_modules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "package/part/inner"
    folder.mkdir(parents=True)
    for name in ("part/one", "part/inner/two"):
        (tmp_path / f"package/{name}.py").write_text("x = 1 + 2\n")
    seen = list[str]()

    def verdict(copy: Path, tests: list[str], took: float = 0) -> str:
        parts = [copy / "part/one.py", copy / "part/inner/two.py"]
        seen.append(" and ".join(part.read_text().strip() for part in parts))
        return "LIVES" if seen[-1].count("1 + 2") == 2 else "noticed"

    monkeypatch.setattr(mutants, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(mutants, "TESTS", {"part": ["tests/part"]})
    monkeypatch.setattr(mutants, "verdict", verdict)
    assert mutants.try_module("part", 2, 0) == {"tried": 4, "lives": []}  # of 6
    assert len({*seen}) == len(seen) == 5
    assert all("x = 1 + 2" in source for source in seen)  # one is as it was


@pytest.mark.parametrize(
    ("reasons", "text", "is_enough"),
    [
        ("", "6 of 8 noticed, 0 cannot be, 2 live without a reason", False),
        ("{0} | same: nobody reads y", "6 of 8 noticed, 1 cannot be, 1 live", False),
        ("{0} | same: so\n{1} | same: so", "6 of 8 noticed, 2 cannot be, seed", True),
        ("{0} | same: so\n{1} | a word of a text", "6 of 8 noticed, 1 cannot", False),
        ("# {0} | same: so\n{1} | same: so", "1 cannot be, 1 live without", False),
    ],
)
def test_what_lives_needs_a_reason(
    reasons: str,
    text: str,
    is_enough: bool,
    tried: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = [f"{name}.py, line 2, True becomes False" for name in ("one", "two")]
    (tmp_path / "reasons.txt").write_text(reasons.format(*places))
    assert run(monkeypatch) == int(not is_enough)
    assert text in capsys.readouterr().out


def test_all_tests_that_are_named_are_there() -> None:
    named = {test for tests in mutants.TESTS.values() for test in tests}
    files = [test.split("::")[0] for test in named if test.startswith("tests/")]
    assert files
    assert [file for file in files if not (mutants.ROOT / file).exists()] == []


def test_changes_of_the_record_that_live_have_a_reason_and_no_others() -> None:
    record = mutants.ROOT / "benchmarks/recorded/mutants.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    lives = [place for module in found.values() for place in module["lives"]]
    assert sorted(mutants.reasons()) == sorted(lives)


def test_readers_are_told_what_the_record_holds() -> None:
    record = mutants.ROOT / "benchmarks/recorded/mutants.json"
    found = json.loads(record.read_text(encoding="utf-8"))
    tried = sum(module["tried"] for module in found.values())
    lives = sum(len(module["lives"]) for module in found.values())
    same = sum(reason.startswith("same: ") for reason in mutants.reasons().values())
    page = (mutants.ROOT / "book/how_it_is_checked.md").read_text("utf-8")
    told = " ".join(page.split())
    assert f"of {tried} changes of the {len(found)} parts of the package" in told
    assert f"the tests noticed {tried - lives}, and {same} change nothing" in told
    assert f"The other {lives - same} live" in told
    assert mutants.TESTS.keys() == found.keys()
