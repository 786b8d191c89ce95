"""Kernels and programs that are copies of one process run and end as others do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_kernels import Template, imported_by
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PROGRAM = """
import json, os, sys
names = ["json", "torch", "wave"]
seen = {
    "arguments": sys.argv[1:],
    "loaded": [name for name in names if name in sys.modules],
    "folder": os.getcwd(),
    "variable": os.environ.get("VARIABLE"),
    "is_leader": os.getpgid(0) == os.getpid(),
    "children": os.waitstatus_to_exitcode(os.system("exit 3")),
}
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
sys.stdin.read()
if sys.argv[2:] == ["stay"]:
    import time
    time.sleep(100)
"""


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    template = Template(["wave", "no_such_module"])
    yield template
    template.close()


def test_what_two_notebooks_import_is_imported_beforehand_but_not_the_package() -> None:
    sources = [
        ["import numpy as np\nfrom normbook import axes", "def f():\n    import wave"],
        ["%matplotlib inline", "import numpy, torch.nn\nimport normbook.axes"],
        ["from torch.nn import functional", "import wave"],
    ]
    notebooks = [
        new_notebook(cells=[new_markdown_cell("*"), *map(new_code_cell, cells)])
        for cells in sources
    ]
    assert imported_by(notebooks) == ["numpy", "torch.nn"]


def test_a_copy_is_what_a_new_interpreter_would_be(
    template: Template, tmp_path: Path
) -> None:
    folder = tmp_path / "book"
    folder.mkdir()
    environment = {**os.environ, "VARIABLE": "1"}
    command = [sys.executable, "-m", "program", str(tmp_path / "forked")]
    kernel = template.launch(command, env=environment, cwd=str(folder))
    assert kernel.wait(60) == 0
    plain = [*command[:-1], str(tmp_path / "plain")]
    subprocess.run(
        plain,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )
    forked, fresh = ((tmp_path / n).read_text("utf-8") for n in ("forked", "plain"))
    expected = fresh.replace(str(tmp_path / "plain"), str(tmp_path / "forked"))
    assert '["json", "wave"]' in forked
    assert forked.replace('["json", "wave"]', '["json"]') == expected
    assert '"children": 3' in forked


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_a_copy_can_be_ended_and_its_end_is_seen(
    how: str, template: Template, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "program", str(tmp_path / "seen"), "stay"]
    kernels = [template.launch(command) for _ in range(2)]
    assert [kernel.poll() for kernel in kernels] == [None, None]
    getattr(kernels[0], how)()
    assert kernels[0].wait(60) == 0
    assert not psutil.pid_exists(kernels[0].pid)
    assert kernels[1].poll() is None
    kernels[1].kill()


def test_a_template_that_has_ended_is_told(template: Template, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "program", str(tmp_path / "seen"), "stay"]
    template.launch(command).kill()
    template.process.kill()
    template.process.wait()
    with pytest.raises(RuntimeError, match="copies of has ended"):
        template.launch(command)


def test_one_name_is_one_process_that_ends_with_the_last_who_gave_it() -> None:
    one, other = (Template(["wave"], f"shared {os.getpid()}") for _ in range(2))
    program = "import sys; sys.exit('wave' in sys.modules)"
    for template in (one, other):
        assert template.popen([sys.executable, "-c", program]).wait(60) == 1
    assert "process" not in vars(other)
    one._socket.close()
    assert other.popen([sys.executable, "-c", program]).wait(60) == 1
    assert one.process.poll() is None
    other.close()
    one.close()
    assert one.process.returncode == 0


CODE = """
import json, os, sys
def annotated(x: int): pass
seen = {
    "arguments": sys.argv,
    "read": sys.stdin.read(),
    "name": __name__,
    "folder": os.getcwd(),
    "variable": os.environ.get("VARIABLE"),
    "path": sys.path,
    "streams": [s.fileno() for s in (sys.stdin, sys.stdout, sys.stderr)],
    "children": os.waitstatus_to_exitcode(os.system("exit 3")),
    "annotations": str(annotated.__annotations__),
}
sys.stdout.reconfigure(errors="backslashreplace")
print(json.dumps(seen))
print("complaint", file=sys.stderr)
if sys.argv[1] == "fail":
    raise ValueError("no")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("end", ["0", "3", "fail"])
@pytest.mark.parametrize("has_file", [True, False], ids=["file", "code"])
def test_a_program_is_what_a_new_interpreter_would_run(
    has_file: bool, end: str, template: Template, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(CODE, encoding="utf-8")
    program = ["script.py"] if has_file else ["-c", CODE]
    seen = []
    for start in (template.popen, subprocess.Popen):
        process = start(
            [sys.executable, *program, end],
            env={**os.environ, "VARIABLE": "1"},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, complaint = process.communicate("input", timeout=60)
        lines = complaint.splitlines()
        seen.append((json.loads(out), lines[0], lines[-1], process.returncode))
        assert getattr(process, "_status", -1) >= 0 or len(seen) == 2  # a copy
    assert seen[0] == seen[1]


def test_a_program_in_another_environment_is_started_anew(template: Template) -> None:
    code = "import sys; sys.exit('json' in sys.modules)"
    for variable in ({}, {"OMP_NUM_THREADS": "7"}):
        command = [sys.executable, "-c", code]
        process = template.popen(command, env={**os.environ, **variable})
        assert process.wait(60) == (not variable)


def test_an_interpreter_without_a_program_is_none_that_a_copy_can_be(
    template: Template,
) -> None:
    for command in ([], [sys.executable], sys.executable, Path(sys.executable)):
        assert not template.can_run(command, None)


@pytest.mark.parametrize(
    "option",
    [
        {"preexec_fn": int},
        {"pass_fds": [1]},
        {"start_new_session": True},
        {"umask": 0o77},
        {"executable": sys.executable},
    ],
    ids=lambda option: next(iter(option)),
)
def test_a_program_with_an_option_that_no_copy_has_is_started_anew(
    option: dict[str, Any], template: Template
) -> None:
    code = "import sys; sys.exit('json' in sys.modules)"
    assert template.popen([sys.executable, "-c", code]).wait(60) == 1
    assert template.popen([sys.executable, "-c", code], **option).wait(60) == 0


def test_copies_do_not_draw_the_same_unseeded_numbers() -> None:
    command = [sys.executable, "-c", "import numpy; print(numpy.random.random())"]
    with contextlib.closing(Template(["numpy.random"])) as template:
        programs = [template.popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        one, other = (program.communicate(timeout=60)[0] for program in programs)
    assert one != other


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_how_a_program_was_ended_is_told(
    number: signal.Signals, template: Template
) -> None:
    code = "import time; print(flush=True); time.sleep(100)"
    with template.popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as it:
        assert it.stdout.readline() == b"\n"
        assert it.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            it.wait(0.01)
        it.send_signal(number)
        assert it.wait(60) == it.poll() == -number
        assert not psutil.pid_exists(it.pid)
