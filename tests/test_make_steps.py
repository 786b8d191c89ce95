"""The checks are shown to fail: each planted defect turns the real command red."""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import execute as execute_notebook
import kernels
import matplotlib.pyplot as plt
import nbformat
import notebook_rules as rules
import numpy as np
import pytest
from IPython.core.pylabtools import print_figure
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from normbook import drawn, figures

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
HANG = 2  # seconds a cell may compute, or wait without; 100 in the real run


def run(command: list[str], cwd: Path, **environment: str) -> tuple[int, str]:
    """Run a command; return its exit status and all that it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,  # seconds; ten times what a free machine needs
        check=False,
    )
    return done.returncode, done.stdout


# --- a project of one small chapter, under the settings of the real one


def chapter(*cells: tuple[str, list[Any]], text: str = "Prose.") -> Any:
    """Return a notebook of code cells with their stored outputs."""
    notebook = new_notebook(metadata={"kernelspec": dict(rules.KERNEL)})
    notebook.cells = [new_markdown_cell(f"# A small chapter\n\n{text}")]
    for count, (source, outputs) in enumerate(cells, start=1):
        cell = new_code_cell(source, outputs=outputs, execution_count=count)
        notebook.cells.append(cell)
    notebook.metadata["normbook"] = {"source_sha256": rules.source_digest(notebook)}
    return notebook


def value(text: str) -> list[Any]:
    return [new_output("execute_result", {"text/plain": text}, execution_count=1)]


DRAW = """import matplotlib.pyplot as plt
from normbook import figures
figures.use_style()
plt.plot([1, 2])
plt.show()"""


def picture(*values: int, is_recorded: bool = True, shows: Any = ()) -> list[Any]:
    """Return the output of `DRAW`, with the record of such a line.

    What the picture `shows` can be another line.
    """
    with plt.rc_context():
        figures.use_style()
        figure, axes = plt.subplots()
        (line,) = axes.plot(values)
        data: dict[str, Any] = {"text/plain": repr(figure)}
        if is_recorded:
            data[drawn.MIME] = drawn.record(figure)
        line.set_ydata(shows or values)
        data["image/png"] = print_figure(figure, base64=True)  # type: ignore[no-untyped-call]
    plt.close(figure)
    return [new_output("display_data", data)]


def error(name: str) -> list[Any]:
    return [new_output("error", ename=name, evalue="", traceback=[name])]


def stripped() -> Any:
    notebook = chapter(("1 + 2", value("3")))
    notebook.cells[1].update(outputs=[], execution_count=None)
    return notebook


def project(folder: Path, notebooks: dict[str, Any]) -> Path:
    """Make a project that holds these notebooks and the real checks."""
    for name in ("_config.yml", "conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("tools", "book/_ext", "book/_static"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "tests").mkdir()
    for name in ("sanitize.cfg", "compilers.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    book = folder / "book"
    shutil.copy(ROOT / "book/references.bib", book)
    (book / "index.md").write_text("# A small book\n", encoding="utf-8")
    toc = {
        "format": "jb-book",
        "root": "book/index",
        "chapters": [{"file": f"book/{name}"} for name in notebooks],
    }
    (folder / "_toc.yml").write_text(json.dumps(toc), encoding="utf-8")
    for name, notebook in notebooks.items():
        text = rules.dumps(rules.normalize(notebook, name))
        (book / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return folder


# --- outputs


# Twice as long by the clock as a cell may compute or wait, now computing, now waiting.
SLOW = f"""import time
for _ in range({4 * HANG}):
    start = time.process_time()
    while time.process_time() < start + 0.1:
        pass
    time.sleep(0.5)
'done'"""
NOTEBOOKS = {
    "sound": chapter(("import os", []), ("1 + 2", value("3"))),
    "wrong_number": chapter(("1 + 2", value("4"))),
    "wrong_print": chapter(
        ("print(1 / 3)", [new_output("stream", name="stdout", text="0.333\n")])
    ),
    "output_lost": chapter(("1 + 2", [])),
    "figure": chapter((DRAW, picture(1, 2))),
    "wrong_figure": chapter((DRAW, picture(1, 3))),
    "another_picture": chapter((DRAW, picture(1, 2, shows=(2, 1)))),
    "unrecorded_figure": chapter((DRAW, picture(1, 2, is_recorded=False))),
    "raises": chapter(("1 / 0", [])),
    "warns": chapter(("import warnings\nwarnings.warn('careful')", [])),
    "killed": chapter(("import os\nos.kill(os.getpid(), 9)", []), ("1", value("1"))),
    "spins": chapter(("while True:\n    pass", [])),
    "waits": chapter(("import time\ntime.sleep(3000)", [])),
    "stopped": chapter(("import os\nos.kill(os.getpid(), 19)", [])),
    "slow": chapter((SLOW, value("'done'"))),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run nbval once over all notebooks; return what it found, '' where nothing."""
    folder = project(tmp_path_factory.mktemp("nbval"), NOTEBOOKS)
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "book"]
    # Most of the time they wait, and can do so together.
    options = ["-n3", "--dist=loadfile", "--junitxml=found.xml"]
    options += [f"--nbval-cell-timeout={HANG}"]
    status, printed = run([*command, *options], folder)
    assert status == 1, printed  # some failed; none was left out
    found = dict.fromkeys(NOTEBOOKS, "")
    seen = set()
    for case in ET.parse(folder / "found.xml").iter("testcase"):  # noqa: S314 - our own
        name = case.attrib["classname"].removesuffix(".ipynb").split(".")[-1]
        seen.add(name)
        for failure in case.iter("failure"):
            found[name] += failure.attrib["message"] + (failure.text or "")
    assert seen == set(NOTEBOOKS)
    return found


@pytest.mark.parametrize("name", ["sound", "figure", "slow"])
def test_nbval_is_green(name: str, verdicts: dict[str, str]) -> None:
    assert verdicts[name] == ""


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("wrong_number", "outputs differ"),
        ("wrong_print", "outputs differ"),
        ("output_lost", "output"),
        ("wrong_figure", "limits stored '0.9 3.1', drawn '0.95 2.05'"),
        ("another_picture", "of the stored picture look otherwise"),
        ("unrecorded_figure", "0 records of figures are stored, 1 drawn"),
        ("raises", "ZeroDivisionError"),
        ("warns", "careful"),
        ("killed", "the kernel died"),
        ("spins", f"Timeout of {HANG} seconds"),
        ("waits", f"Timeout of {HANG} seconds"),
        ("stopped", f"Timeout of {HANG} seconds"),
    ],
)
def test_nbval_is_red(name: str, complaint: str, verdicts: dict[str, str]) -> None:
    assert complaint in verdicts[name]


@pytest.mark.parametrize("how", [["-O"], []], ids=["option", "variable"])
def test_nothing_is_run_with_asserts_switched_off(how: list[str]) -> None:
    code = "import kernels; kernels.prepare_environment(); print('ran')"
    given = {"PYTHONPATH": str(ROOT / "tools")}
    off = {} if how else {"PYTHONOPTIMIZE": "1"}
    status, printed = run([sys.executable, *how, "-c", code], ROOT, **given, **off)
    assert (status, printed.count("asserts are switched off")) == (1, 1)
    assert "ran" not in printed


def test_the_real_timeout_is_below_two_minutes(pytestconfig: pytest.Config) -> None:
    assert 10 < float(pytestconfig.getoption("nbval_cell_timeout")) < 120


# --- the site


def build(folder: Path) -> tuple[int, str]:
    """Build the site with the command of the Makefile."""
    command = [str(BIN / "jupyter-book"), "build", ".", "-W", "-n", "--keep-going"]
    return run(command, folder)


def test_a_sound_project_builds(tmp_path: Path) -> None:
    status, printed = build(project(tmp_path, {"sound": NOTEBOOKS["sound"]}))
    assert status == 0, printed
    assert (tmp_path / "_build/html/book/sound.html").exists()


def test_a_raising_cell_makes_the_build_red_twice(tmp_path: Path) -> None:
    raising = chapter(("1 / 0", error("ZeroDivisionError")))
    edited = chapter(("1 + 2", value("3")))
    edited.cells[1].source = "1 / 0"  # written after the last run
    found = {"raising": raising, "stripped": stripped(), "edited": edited}
    folder = project(tmp_path, found)
    for _ in ("first", "second"):
        status, printed = build(folder)
        assert status != 0
        assert "raising.ipynb: cell 1: an error is stored" in printed
        assert "stripped.ipynb: cell 1: execution count is None" in printed
        assert "edited.ipynb: the code was changed after" in printed


def test_a_reference_to_nothing_is_red(tmp_path: Path) -> None:
    notebook = chapter(("1 + 2", value("3")), text="By {eq}`eq-nowhere`.")
    status, printed = build(project(tmp_path, {"small": notebook}))
    assert status != 0
    assert "eq-nowhere" in printed


# --- the mathematics


def weaken(source: str) -> str:
    """Halve the last term of what `through` returns, the way back of all layers."""
    tree = ast.parse(source)
    (through,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "through"
    )
    differences = [
        node
        for node in ast.walk(through)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
    ]
    outer = differences[0]  # ast.walk begins at the root
    outer.right = ast.BinOp(ast.Constant(0.5), ast.Mult(), outer.right)
    return ast.unparse(ast.fix_missing_locations(tree))


def test_a_wrong_coefficient_in_the_backward_is_red(tmp_path: Path) -> None:
    copied = tmp_path / "normbook"
    shutil.copytree(ROOT / "src/normbook", copied)
    wrong = copied / "normalize.py"
    wrong.write_text(weaken(wrong.read_text(encoding="utf-8")), encoding="utf-8")
    tests = ["tests/test_formulas.py", "tests/test_methods.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-k", "gradient_agrees or gradients_agree", *tests]
    status, printed = run(command, ROOT, PYTHONPATH=str(tmp_path))
    assert status == 1, printed
    for name in tests:
        assert f"FAILED {name}" in printed


# --- storing outputs


def execute(folder: Path, *names: str) -> tuple[int, str]:
    return run([sys.executable, "tools/execute.py", *names], folder)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """Execute a sound and a failing notebook in one go."""
    good = chapter(("import sys", []), ("print(1); print(2)\n1 + 2", []))
    good.cells[1].metadata["vscode"] = {"languageId": "python"}
    folder = project(
        tmp_path_factory.mktemp("execute"),
        {
            "good": good,
            "fails": chapter(("x = 1", []), ("x / 0", [])),
            "warns": chapter(("import sys\nprint('hm', file=sys.stderr)", [])),
        },
    )
    text = (folder / "book/good.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    notebook["cells"][1]["metadata"]["vscode"] = {"languageId": "python"}
    (folder / "book/good.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    before = (folder / "book/fails.ipynb").read_bytes()
    status, printed = execute(folder)
    assert (folder / "book/fails.ipynb").read_bytes() == before
    return folder, status, printed


def test_a_failing_notebook_is_named_with_its_cell(
    executed: tuple[Path, int, str],
) -> None:
    folder, status, printed = executed
    assert status == 1
    assert "fails.ipynb: FAILED, file unchanged: cell 2 ('x / 0')" in printed
    assert "ZeroDivisionError" in printed
    assert not list((folder / "book").glob("*.part"))


def test_what_is_stored_is_in_normal_form_and_green(
    executed: tuple[Path, int, str],
) -> None:
    path = executed[0] / "book/good.ipynb"
    assert list(rules.file_rules(path)) == []
    notebook = nbformat.read(path, as_version=4)
    assert [v for rule in rules.STORED_AS_RUN for v in rule(notebook)] == []
    assert notebook.cells[2].outputs[0].text == "1\n2\n"


def test_what_is_dropped_or_printed_to_stderr_is_said(
    executed: tuple[Path, int, str],
) -> None:
    assert "good.ipynb: cell 1: metadata 'vscode' dropped" in executed[2]
    assert "warns.ipynb: cell 1 wrote to stderr: hm" in executed[2]


def test_executing_again_changes_nothing_and_refuses_what_is_no_notebook(
    executed: tuple[Path, int, str],
) -> None:
    folder = executed[0]
    before = (folder / "book/good.ipynb").read_bytes()
    names = ("book/good.ipynb", "book/gone.ipynb", "book/index.md")
    status, printed = execute(folder, *names)
    assert (folder / "book/good.ipynb").read_bytes() == before
    assert "book/good.ipynb: stored" in printed
    assert status == 1
    assert "book/gone.ipynb: FAILED, file unchanged: cannot be read" in printed
    assert "book/index.md: not a notebook" in printed


@pytest.mark.parametrize(("alpha", "mode"), [(255, "RGB"), (254, "RGBA")])
def test_a_picture_is_packed_without_another_pixel(alpha: int, mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (9, 9, 4)).astype(np.uint8)
    pixels[..., 3] = alpha
    stored = io.BytesIO()
    Image.fromarray(pixels).save(stored, "PNG", dpi=(144, 144))
    packed = execute_notebook.packed(base64.b64encode(stored.getvalue()).decode())
    image = Image.open(io.BytesIO(base64.b64decode(packed)))
    assert image.mode == mode
    assert image.info["dpi"] == pytest.approx((144, 144), abs=0.1)
    np.testing.assert_array_equal(np.asarray(image.convert("RGBA")), pixels)


# --- the commands


STUB = """#!/bin/sh
# Stands for python and jupyter-book: notes its arguments, fails where it is told to.
echo "$*" >> "$LOG"
case "$*" in *"$FAIL"*) exit 1;; esac
"""
STEPS = [
    "-m ruff check .",
    "-m ruff format --check .",
    "-m mypy",
    "build .",
    "-m pytest -q --nbval",
    "-m pytest -q tests/test_pages.py",
    "tests in a browser",
]


@pytest.fixture
def commands(tmp_path: Path) -> Callable[[str, str], tuple[int, str, str]]:
    """Return a function that runs a command with stubs in the place of the tools."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    shutil.copytree(ROOT / "tools", folder / "tools")
    for name in ("Makefile", "requirements.txt", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("python", "jupyter-book"):
        stub = folder / ".venv/bin" / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(STUB, encoding="utf-8")
        stub.chmod(0o755)
    browser = STUB.replace('"$*"', '"tests in a browser"')
    (folder / "tools/test_site.sh").write_text(browser, encoding="utf-8")
    summed = "cat requirements.txt constraints.txt pyproject.toml | cksum"
    key = run(["bash", "-c", f'echo "pinned in $PWD: $({summed})"'], folder)[1]
    (folder / ".venv/.installed").write_text(key, encoding="utf-8")

    def call(command: str, fail: str) -> tuple[int, str, str]:
        log = tmp_path / "log"
        log.write_text("", encoding="utf-8")
        status, printed = run(
            ["bash", "-c", command], folder, LOG=str(log), FAIL=fail or "nothing"
        )
        return status, printed, log.read_text(encoding="utf-8")

    return call


@pytest.mark.parametrize("command", ["make test", ".ci/run"])
def test_the_test_command_runs_every_step(
    command: str, commands: Callable[[str, str], tuple[int, str, str]]
) -> None:
    status, printed, log = commands(command, "")
    assert status == 0, printed
    assert all(step in log for step in STEPS)
    assert "build . -W -n --keep-going" in log
    # All tests, those of the site behind its build.
    pages = ("tests/test_pages.py", "tests/test_solutions.py")
    ignored = " ".join(f"--ignore={name}" for name in pages)
    assert f"-m pytest -q --nbval -n 3 --dist loadfile {ignored}\n" in log
    checked = log.partition("build . -W -n --keep-going")[2]
    assert f"-m pytest -q {' '.join(pages)}\n" in checked


@pytest.mark.parametrize("step", STEPS)
def test_a_failing_step_fails_the_test_command(
    step: str, commands: Callable[[str, str], tuple[int, str, str]]
) -> None:
    assert commands(".ci/run", step)[0] != 0


FULL = """#!/bin/sh
mkdir -p _build/html
seq 70
echo "OSError: [Errno 28] No space left on device: '/a/page.html'"
exit 2
"""


@pytest.mark.parametrize(
    ("stub", "lines", "said", "is_left"),
    [
        (FULL, 1, "could not be written to .*_build: No space left on device", False),
        (FULL.replace("Errno 28", "warning"), 71, "No space left on device", True),
    ],
    ids=["full", "another fault"],
)
def test_a_build_that_cannot_write_ends_in_one_line(
    stub: str, lines: int, said: str, is_left: bool, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    (tmp_path / "jupyter-book").write_text(stub, encoding="utf-8")
    (tmp_path / "jupyter-book").chmod(0o755)
    status, printed = run(["tools/book.sh", str(tmp_path / "python")], tmp_path)
    assert (status, len(printed.splitlines())) == (1, lines)
    assert re.search(said, printed)
    assert (tmp_path / "_build").exists() is is_left


@pytest.mark.parametrize(
    ("python", "complaint"),
    [
        ("no-such-python", "no Python found as 'no-such-python'; install Python 3.11"),
        ("exit 1", "Python 3.11 or newer is needed"),
        ('case "$2" in *venv*) exit 1;; esac', "sudo apt install python3-venv"),
        ('case "$1 $2" in *"m venv"*) exit 1;; esac', "could not make .venv"),
    ],
    ids=["missing", "old", "without venv", "disk full"],
)
def test_setup_says_what_is_wrong(python: str, complaint: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    if python != "no-such-python":
        (tmp_path / "python").write_text(f"#!/bin/sh\n{python}\n", encoding="utf-8")
        (tmp_path / "python").chmod(0o755)
        python = str(tmp_path / "python")
    status, printed = run(["tools/setup.sh"], tmp_path, PYTHON=python)
    assert status == 1
    assert complaint in printed.splitlines()[-1]
    assert not (tmp_path / ".venv/.installed").exists()


def setup_project(folder: Path) -> Path:
    """Make a project that needs no package, so that its set-up is quick."""
    (folder / "project/tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/setup.sh", folder / "project/tools")
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        (folder / "project" / name).touch()
    return folder / "project"


def contents(folder: Path) -> dict[str, str]:
    """Return the text of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in files}


OTHERS = {
    "a thesis": {"thesis.tex": "years of work", ".installed": "not ours"},
    "a broken environment": {"pyvenv.cfg": "home = /usr/bin\n", "bin/tool": "ours"},
    "a mark alone": {".made-by-normbook": "elsewhere", "thesis.tex": "years of work"},
}


@pytest.mark.parametrize("found", OTHERS.values(), ids=OTHERS)
def test_setup_leaves_a_folder_alone_that_it_did_not_make(
    found: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other folder"
    for name, text in found.items():
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(text, encoding="utf-8")
    status, printed = run(
        ["tools/setup.sh"], setup_project(tmp_path), VENV=str(other), PYTHON="python3"
    )
    assert status == 1
    assert "was left as it is; name another: make VENV=FOLDER" in printed
    assert contents(other) == found


def test_setup_leaves_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work", encoding="utf-8")
    venv = str(tmp_path / "thesis")
    status, printed = run(["tools/setup.sh"], setup_project(tmp_path), VENV=venv)
    assert status == 1
    assert "is a file" in printed
    assert (tmp_path / "thesis").read_text(encoding="utf-8") == "years of work"


def test_setup_makes_its_own_environment_anew(tmp_path: Path) -> None:
    folder = setup_project(tmp_path)
    venv.create(folder / ".venv", with_pip=False)
    before = folder.with_name("the place before")  # its scripts name that
    (folder / ".venv/.made-by-normbook").write_text(f"{before}\n", encoding="utf-8")
    (folder / ".venv/left-over").touch()
    status, printed = run(["tools/setup.sh"], folder)
    assert status == 0, printed
    assert not (folder / ".venv/left-over").exists()
    assert (folder / ".venv/.made-by-normbook").read_text().strip() == str(folder)
    made = (folder / ".venv/.installed").stat().st_mtime_ns
    assert run(["tools/setup.sh"], folder) == (0, "")  # it is there: nothing to do
    assert (folder / ".venv/.installed").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("while True: pass", "has used 2 seconds of processor time"),
        ("import time; time.sleep(3000)", "has waited for 2 seconds without"),
    ],
    ids=["spins", "waits"],
)
def test_a_hanging_kernel_is_killed_when_outputs_are_stored(
    code: str, complaint: str
) -> None:
    process = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(1)  # until it has started, which takes processor time
    running: dict[str, Any] = {"watch": kernels.Watch(process.pid, 2), "complaint": ""}
    with execute_notebook.watched(running):
        assert process.wait(60) == -9
    assert complaint in running["complaint"]
