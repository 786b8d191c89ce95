import hashlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from normbook import exercises
from normbook.__main__ import main
from normbook.data import catalogue, files
from normbook.data.catalogue import DataFile, Source

# Nobody listens at this port, and connecting to this machine fails at once.
CLOSED = "http://127.0.0.1:9/"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for NORMBOOK_DATA, and one more data set: `two-files`."""
    contents = {"one.gz": b"1", "two.gz": b"22"}
    made = (
        DataFile(name, len(content), hashlib.sha256(content).hexdigest(), (CLOSED,))
        for name, content in contents.items()
    )
    source = Source("two-files", "Two Files", "CC0", "Somebody (2000)", tuple(made))
    monkeypatch.setitem(catalogue.SOURCES, "two-files", source)
    folder = tmp_path / "data"
    (folder / "two-files").mkdir(parents=True)
    for name, content in contents.items():
        (folder / "two-files" / name).write_bytes(content)
    monkeypatch.setenv(files.DATA, str(folder))
    monkeypatch.setenv(files.CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(files, "_is_watched", lambda: False)
    return folder


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The last line that a wrong usage prints, after checking its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err.splitlines()[-1]


# --- usage


def test_help_and_version_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--help", "--version"):
        with pytest.raises(SystemExit) as caught:
            main([argument])
        assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "list, fetch and verify the data sets" in shown
    assert shown.endswith(f"normbook {metadata.version('normbook')}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["data"], "the following arguments are required: ACTION"),
        (["data", "fetch"], "the following arguments are required: NAME"),
        (["dance"], "invalid choice: 'dance'"),
        (["data", "fetch", "mnits"], "must be one of digits, mnist, .*got 'mnits'"),
        (["data", "verify", "mnits"], "must be one of digits, mnist, .*got 'mnits'"),
        (["doctor", "--now"], "unrecognized arguments: --now"),
        (["run", "vg"], "must be one of sigmoid_net, .*got 'vg'; see: normbook exp"),
        (["run", "vgg", "--seeds", "one"], "invalid int value: 'one'"),
        (["run", "vgg", "--seeds"], "expected at least one argument"),
        (["run"], "arguments are required: NAME"),
        (["plot", "vg"], "must be one of sigmoid_net, .*got 'vg'"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, usage_error(arguments, capsys))


@pytest.mark.parametrize("words", [["--help"], ["run", "wrong"], ["plot", "wrong"]])
def test_help_and_errors_come_at_once_since_nothing_heavy_is_imported(
    words: list[str],
) -> None:
    code = (
        "import sys, normbook.__main__ as m\n"
        f"try: m.main({words})\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'torch', 'sklearn', 'requests', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_python_dash_m_is_the_same_command() -> None:
    command = [sys.executable, "-m", "normbook", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"normbook {metadata.version('normbook')}\n"


# --- list


def test_the_list_is_aligned_and_says_where_each_data_set_is(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == list(catalogue.SOURCES)
    column = head.index("where")
    assert all(row[column - 2 : column] == "  " for row in rows)
    where = {row.split()[0]: row[column:] for row in rows}
    assert where["two-files"] == str(data / "two-files")
    assert where["mnist"] == "missing: normbook data fetch mnist"
    assert where["digits"].startswith("in scikit-learn ")
    assert any("11.6 MB  CC BY-SA 3.0" in row for row in rows)


# --- fetch


def test_fetching_what_is_here_tells_where_and_on_what_terms(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", "two_files", "TWO-FILES", "digits"]) == 0
    shown = capsys.readouterr().out
    where = data / "two-files"
    assert shown.count(f"two-files: 2 files, 0.0 MB, verified, in {where}\n") == 1
    assert "licence  CC0" in shown
    assert "cite     Somebody (2000)" in shown
    assert "digits: embedded in scikit-learn, nothing to fetch" in shown


def test_fetching_what_cannot_be_had_fails_and_goes_on_with_the_next(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "two-files" / "one.gz").unlink()
    assert main(["data", "fetch", "two-files", "digits"]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("normbook: Two Files: one.gz is not on this machine")
    assert f"{CLOSED}: " in shown.err
    assert "digits: embedded" in shown.out


def test_all_stands_for_every_data_set(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(catalogue.SOURCES):
        if name not in ("digits", "two-files"):  # not to be asked for here
            monkeypatch.delitem(catalogue.SOURCES, name)
    assert main(["data", "fetch", "all"]) == 0
    shown = capsys.readouterr().out
    assert "digits: " in shown
    assert "two-files: " in shown


# --- verify


def test_verify_names_each_file_that_is_good(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("one.gz", "two.gz"):
        assert f"ok        {data / 'two-files' / name}" in lines
    assert "embedded  digits in scikit-learn" in lines
    assert "missing   mnist/train-images-idx3-ubyte.gz" in lines


def test_verify_names_the_file_that_differs_and_fails(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "two-files" / "two.gz").write_bytes(b"2!")
    assert main(["data", "verify"]) == 1
    shown = capsys.readouterr()
    assert f"DIFFERS   {data / 'two-files' / 'two.gz'}: its SHA-256 is" in shown.out
    assert f"ok        {data / 'two-files' / 'one.gz'}" in shown.out
    assert "normbook data fetch NAME" in shown.err


@pytest.mark.parametrize("name", ["one.gz", "two.gz"])
def test_verify_tells_a_file_that_may_not_be_read_from_one_that_differs(
    name: str,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, real = data / "two-files" / name, Path.stat

    def stat(self: Path, **options: Any) -> os.stat_result:
        if self == path:  # permissions do not stop root
            raise PermissionError(13, "Permission denied")
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert main(["data", "verify"]) == 1
    shown = capsys.readouterr()
    assert f"FORBIDDEN {path}: the permissions of the file or" in shown.out
    assert "DIFFERS" not in shown.out
    assert shown.err.startswith("normbook: files may not be read; change the perm")


def test_verify_looks_into_the_cache_too(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cache" / "two-files" / "one.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"!")
    assert main(["data", "verify", "two-files"]) == 1
    assert f"DIFFERS   {path}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missing", "names", "code"),
    [
        (["one.gz"], [], 1),  # a part of a data set
        (["one.gz", "two.gz"], [], 0),  # a data set that nobody has asked for
        (["one.gz", "two.gz"], ["two-files"], 1),
        (["one.gz", "two.gz"], ["all"], 1),
    ],
)
def test_verify_fails_where_files_that_should_be_there_are_missing(
    missing: list[str], names: list[str], code: int, data: Path
) -> None:
    for name in missing:
        (data / "two-files" / name).unlink()
    assert main(["data", "verify", *names]) == code


def test_verify_tells_of_a_wrong_setting(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(files.DATA, str(data / "no-such"))
    assert main(["data", "verify"]) == 1
    assert "normbook: NORMBOOK_DATA must name a folder" in capsys.readouterr().err


# --- doctor


def test_doctor_prints_its_report_and_fails_where_the_book_cannot_run(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for device, code, verdict in (("cpu", 0, "can run"), ("x", 1, "cannot yet run")):
        monkeypatch.setenv("NORMBOOK_DEVICE", device)
        assert main(["doctor"]) == code
        assert capsys.readouterr().out.endswith(f"\nThe book {verdict} here.\n")


# --- odd ends


def test_ctrl_c_gives_130_and_one_line(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: Source) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "fetch", interrupt)
    assert main(["data", "fetch", "two-files"]) == 130
    assert capsys.readouterr().err == "normbook: interrupted\n"


def test_a_reader_that_stops_reading_causes_no_traceback(data: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "normbook", "data", "list"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "data list", "data verify", "data fetch digits", "doctor"],
)
@pytest.mark.parametrize(
    ("output", "message"),
    [(">&-", "standard output is closed"), (">/dev/full", "No space left on device")],
)
def test_an_output_that_cannot_be_written_is_told_in_one_line(
    output: str,
    message: str,
    arguments: str,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Unbuffered, the help would fail inside argparse, which keeps it to itself.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if output == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m normbook {arguments} {output}', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert re.fullmatch(f"normbook: .*{message}.*\n", done.stderr)


def test_a_path_with_letters_that_the_terminal_lacks_is_printed(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "größe"
    folder.mkdir()
    for file in (data / "two-files").iterdir():
        file.rename(folder / file.name)
    done = subprocess.run(
        [sys.executable, "-m", "normbook", "doctor"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", files.DATA: str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert r"gr\xf6\xdfe" in done.stdout


# --- exercise


def test_exercise_shows_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "bn-bound", "--hint", "2"]) == 0
    assert capsys.readouterr().out == exercises.hint("bn-bound", 2) + "\n"
    assert main(["exercise", "bn-bound", "--hint", "4"]) == 2
    assert "from 1 to 3" in capsys.readouterr().err
    assert main(["exercise", "bn-bond"]) == 2
    assert "near it are bn-bound" in capsys.readouterr().err


# --- audit


FACTORIES = """
import torch
from torch import nn

def right():
    return nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8)), torch.ones(4, 3).cumsum(0)

def wrong():
    return nn.GroupNorm(4, 4), torch.ones(4, 4)

def no_pair():
    return nn.LayerNorm(8)

def no_norm():
    return nn.Linear(3, 8), torch.ones(4, 3)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories_of_a_test.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "factories_of_a_test", raising=False)


@pytest.mark.usefixtures("factories")
def test_audit_tells_by_its_exit_code_what_it_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["audit", "factories_of_a_test:right"]) == 0
    assert capsys.readouterr().out.startswith("Sequential: 1 norm; 0 wrong")
    assert main(["audit", "factories_of_a_test:wrong", "--json"]) == 1
    assert '"a mean over one value"' in capsys.readouterr().out
    assert main(["audit", "factories_of_a_test:no_pair"]) == 2
    assert "must return (model, x), got LayerNorm" in capsys.readouterr().err
    assert main(["audit", "factories_of_a_test:no_norm"]) == 2
    assert "the model must hold a norm" in capsys.readouterr().err


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("right", "must be MODULE:FACTORY, got 'right'"),
        ("no_such_module:right", "is not found: No module named"),
        ("factories_of_a_test:left", "has no attribute 'left'"),
    ],
)
def test_audit_refuses_what_is_no_factory(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(["audit", name], capsys)
