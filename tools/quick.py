"""Check within a minute what changed: `make quick`.

Changed is what differs from the main branch, or from the last commit on it. Tests are
chosen by the imports of the package, the tests and the notebooks: the nearest to the
change run first, until the time is over. Of notebooks only the changed ones run.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 30.0  # no test starts later than so long after the first
FOLDERS = ("src", "tests", "tools", "book", "benchmarks")
FILES = 20  # no more are read: that takes time, too
LATE = "the minute is over"
SHOWN = 8  # lines of a list; of the others their number

Graph = dict[str, set[str]]


# --- what changed


def changed_files(root: Path) -> tuple[str, list[str]]:
    """Return what is compared with, and the paths that differ from it or are new."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout

    base = "HEAD"
    for branch in ("origin/main", "main"):
        with contextlib.suppress(subprocess.CalledProcessError):
            base = git("merge-base", "HEAD", branch).strip()
            break
    names = git("diff", "--name-only", "-z", base)
    names += git("ls-files", "--others", "--exclude-standard", "-z")
    return git("log", "-1", "--format=%h %s", base).strip(), sorted(
        {name for name in names.split("\0") if name}
    )


# --- who uses whom


def code(path: Path) -> ast.Module:
    """Parse a module or the code cells of a notebook, without its magics."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        lines = "\n".join(sources).splitlines()
        text = "\n".join("pass" if x[:1] in "%!" and x else x for x in lines)
    try:
        return ast.parse(text)
    except SyntaxError:  # its own check will say so
        return ast.Module([], [])


def module_name(path: str) -> str:
    """Return the name by which a file is imported."""
    file = Path(path)
    if file.parts[0] != "src":
        return file.stem
    return ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")


def imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of all modules that may be meant by a file's imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def users(root: Path, changed: list[str]) -> Graph:
    """Map each file to those that import it, or, if it is no module, speak of it."""
    paths = [
        path
        for folder in FOLDERS
        for suffix in ("py", "ipynb")
        for path in sorted((root / folder).rglob(f"*.{suffix}"))
    ]
    trees = {path.relative_to(root).as_posix(): code(path) for path in paths}
    # A changed file that is gone, too: whoever still imports it fails.
    names = {*trees, *changed}
    modules = {module_name(name): name for name in names if name.endswith(".py")}
    graph: Graph = {}
    for name, tree in trees.items():
        package = module_name(name)
        if not name.endswith("__init__.py"):
            package = package.rpartition(".")[0]
        for module in imports(tree, package):
            if module in modules and modules[module] != name:
                graph.setdefault(modules[module], set()).add(name)
    # A page, a workflow, a script: its name or its kind stands in the tests of it.
    texts = {n: strings(tree) for n, tree in trees.items() if is_test(n)}
    for name in changed:
        if not name.endswith(".py"):
            file = Path(name)
            kinds = {file.name, f"*{file.suffix or file.name}"}
            speak = {n for n, text in texts.items() if any(k in text for k in kinds)}
            graph.setdefault(name, set()).update(speak)
    return graph


def strings(tree: ast.Module) -> str:
    """Return all strings of a module, one a line."""
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(value for value in nodes if isinstance(value, str))


def is_test(name: str) -> bool:
    """Whether pytest finds tests in a file: a test module, or doctests."""
    file = Path(name)
    is_module = file.suffix == ".py"
    return is_module and (file.name.startswith("test_") or file.parts[0] == "src")


class Choice(NamedTuple):
    """What runs: each file with its distance from the change; and what does not."""

    run: dict[str, int]
    far: list[str]
    notebooks: list[str]
    pages: list[str]
    unknown: list[str]


def choose(root: Path, changed: list[str]) -> Choice:
    """Choose what to run for changed files, the nearest first."""
    graph = users(root, changed)
    distance = dict.fromkeys(changed, 0)
    rim = list(changed)
    while rim:
        near = {user: distance[n] + 1 for n in rim for user in graph.get(n, ())}
        rim = sorted(near.keys() - distance.keys())
        distance |= {name: near[name] for name in rim}
    there = [
        n for n in sorted(distance, key=distance.__getitem__) if (root / n).is_file()
    ]
    tests = [n for n in there if is_test(n)]
    # The doctests of a module belong to its change, not to those of what it imports.
    tests = [n for n in tests if n.startswith("tests/") or n in changed]
    pages = [n for n in tests if 'ROOT / "_build' in (root / n).read_text("utf-8")]
    notebooks = [n for n in there if n.endswith(".ipynb") and n.startswith("book/")]
    first = [n for n in notebooks if n in changed]
    names = [*first, *(n for n in tests if n not in pages)]
    reached = {user for users_of in graph.values() for user in users_of}
    unknown = [n for n in changed if not graph.get(n) and n not in {*names, *reached}]
    return Choice(
        {n: distance[n] for n in names[:FILES]},
        names[FILES:],
        [n for n in notebooks if n not in changed],
        pages,
        unknown,
    )


# --- as a plugin of pytest: tests stop when the time is over


UNTIL = pytest.StashKey[float]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Set the time at which no test starts any more."""
    session.config.stash[UNTIL] = time.monotonic() + SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that would start too late."""
    if time.monotonic() > item.config.stash[UNTIL]:
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files whose tests were skipped for lack of time."""
    skipped = terminalreporter.stats.get("skipped", [])
    late = Counter(r.nodeid.split("::")[0] for r in skipped if LATE in str(r.longrepr))
    if late:
        show(f"{LATE}, so that {late.total()} tests did not run", [
            f"{name} ({count})" for name, count in late.items()
        ])  # fmt: skip


# --- the command


def show(title: str, lines: list[str]) -> None:
    """Print a list under a title, if it has entries."""
    if lines:
        rest = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        print(f"{title}:", *lines[:SHOWN], *rest, sep="\n  ", flush=True)


def main() -> int:
    """Check what changed; return 1 if something is wrong."""
    base, changed = changed_files(ROOT)
    print(f"quick: what changed since {base}")
    if not changed:
        print("Nothing changed.")
        return 0
    choice = choose(ROOT, changed)
    how = {0: "changed itself", 1: "uses what changed", 2: "uses a user of it"}
    show("changed", changed)
    show("tests, the nearest first", [
        f"{name}: {how.get(far, f'{far} imports away')}"
        for name, far in choice.run.items()
    ])  # fmt: skip
    show("tests too far away for a minute", choice.far)
    show("notebooks that use it and do not run here", choice.notebooks)
    show("tests of the built site, which do not run here", choice.pages)
    show("of which nothing tells what tests it", choice.unknown)

    def python(*words: str) -> subprocess.Popen[str]:
        paths = filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")])
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            stdout=subprocess.PIPE if words[0] == "mypy" else None,
            stderr=subprocess.STDOUT,
        )

    here = [name for name in changed if (ROOT / name).is_file()]
    linted = [name for name in here if name.endswith((".py", ".ipynb"))]
    checks = {}
    if any(name.endswith(".py") for name in here):
        checks["types"] = python("mypy")  # beside the others; all files, with its cache
    failed = []
    for step in (["check"], ["format", "--check"]) if linted else ():
        if python("ruff", *step, "-q", "--force-exclude", *linted).wait():
            failed.append(f"ruff {step[0]}")
    if choice.run:
        options = ["-q", "--nbval", "-n", "2", "--dist", "loadfile", "-p", "quick"]
        if python("pytest", *options, *choice.run).wait() not in (0, 5):
            failed.append("tests")
    for name, check in checks.items():
        printed, _ = check.communicate()
        if check.returncode:
            failed.append(name)
            print(printed, end="")
    print(f"quick: {', '.join(failed)} failed" if failed else "quick: no complaint")
    print("`make test` checks everything.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
