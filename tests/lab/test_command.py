"""``normbook experiments``, ``run`` and ``plot``: words and exit codes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny

from normbook.__main__ import main
from normbook.data import files
from normbook.experiments import catalogue
from normbook.lab import record
from normbook.lab.experiment import Run
from normbook.lab.runner import run

Capture = pytest.CaptureFixture[str]
WHERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with one more experiment and no data."""
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", tiny.EXPERIMENT)
    monkeypatch.setenv(files.DATA, str(tmp_path / "data"))
    monkeypatch.setenv(files.CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv("NORMBOOK_DEVICE", raising=False)
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def said(capsys: Capture, *arguments: str, code: int) -> str:
    """What the command writes to standard error, after a check of its exit code."""
    assert main(arguments) == code
    return capsys.readouterr().err


# --- experiments


def test_the_experiments_are_listed_with_their_source_and_scales(
    capsys: Capture,
) -> None:
    assert main(["experiments"]) == 0
    shown = capsys.readouterr().out
    for experiment in catalogue.EXPERIMENTS.values():
        assert f"{experiment.name}: {experiment.title}\n" in shown
        assert f"  after {experiment.source}\n" in shown
        for name, scale in experiment.scales.items():
            assert f"  --scale {name} " in shown
            assert f"; {scale.about}\n" in shown
    assert "--scale live     4 runs of 30 steps; twelve points" in shown


# --- run


def test_a_run_leaves_its_record_and_nothing_else(place: Path, capsys: Capture) -> None:
    assert main(["run", "tiny"]) == 0
    shown = capsys.readouterr()
    assert re.fullmatch(r"tiny.json: 4 runs in \d+ s\n", shown.out)
    assert shown.err == ""
    assert [path.name for path in place.iterdir()] == ["tiny.json"]
    assert record.load("tiny.json").seeds == [0, 3]


def test_the_options_of_a_run_are_taken(place: Path, capsys: Capture) -> None:
    options = ["--seeds", "7", "2", "--scale", "live", "--device", "cpu"]
    assert main(["run", "tiny", *options, "--out", "other.json"]) == 0
    found = record.load("other.json")
    assert found.seeds == [7, 2]
    words = found.command.split()
    assert words[:3] == ["normbook", "run", "tiny"]
    assert sorted(words[3:]) == sorted(options)


# The others are in test_runner.py.
BAD = [
    (["--scale", "huge"], "scale must be one of live, got 'huge'"),
    (["--seeds", "0", "-1"], r"whole numbers from 0 on, .*got \[0, -1\]"),
    (["--device", ""], "device must be cpu, cuda, .*got ''; .*leave it out"),
    (["--out", "there.json"], "must not be there yet, got there.json; name another"),
    (["--resume"], "got none in tiny.json.partial; leave --resume out to begin"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
@pytest.mark.parametrize("is_dry", [[], ["--dry-run"]])
def test_bad_options_are_refused_in_one_line(
    is_dry: list[str], options: list[str], message: str, place: Path, capsys: Capture
) -> None:
    (place / "there.json").write_text("precious")
    error = said(capsys, "run", "tiny", *options, *is_dry, code=1)
    assert re.search(f"^normbook: .*{message}.*\n$", error)
    assert [path.name for path in place.iterdir()] == ["there.json"]


def test_a_setting_of_the_device_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("NORMBOOK_DEVICE", "quantum")
    error = said(capsys, "run", "tiny", code=1)
    assert "NORMBOOK_DEVICE must be cpu, cuda" in error


def test_without_its_data_set_a_run_says_what_to_do(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(files, "_download", no_network)
    error = said(capsys, "run", "sigmoid_net", "--scale", "paper", code=1)
    assert error.startswith("normbook: MNIST: train-images-idx3-ubyte.gz is not on")
    assert "with a network: normbook data fetch mnist" in error
    assert list(place.iterdir()) == []


def no_network(*_: object) -> bytes:
    raise files._MirrorError("no network")


# --- dry runs


def test_a_dry_run_shows_configuration_steps_and_time_and_leaves_nothing(
    place: Path, capsys: Capture
) -> None:
    assert main(["run", "tiny", "--dry-run", "--seeds", "5", "6", "7"]) == 0
    shown = re.sub(r"about \d+ s", "about 0 s", capsys.readouterr().out)
    lines = shown.splitlines()
    for line in (
        "tiny, --scale live: twelve points",
        "  learning_rate = 0.05",
        "  seeds = 5 6 7, device = cpu",
        "  noisy, rate=0.1: is_noisy = True, learning_rate = 0.1; about 0 s a run",
        "6 runs, 180 steps, about 0 s with one process",
    ):
        assert line in lines
    assert list(place.iterdir()) == []


def test_steps_of_variants_of_several_lengths_are_summed(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    variants = {"a": {"is_noisy": False}, "b": {"is_noisy": False, "steps": 45}}
    unequal = tiny.with_settings(tiny.EXPERIMENT, variants=variants)
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", unequal)
    assert main(["run", "tiny", "--dry-run"]) == 0
    assert "4 runs, 150 steps, about" in capsys.readouterr().out
    assert main(["experiments"]) == 0
    assert "4 runs of 30 to 45 steps; twelve points\n" in capsys.readouterr().out


def test_the_time_of_a_dry_run_is_that_of_all_its_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(
        "normbook.lab.runner.estimate",
        lambda *_, **__: {"plain": 40.0, "noisy, rate=0.1": 4000.0},
    )
    assert main(["run", "tiny", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "is_noisy = False; about 40 s a run\n" in shown
    assert "; about 67 min a run\n" in shown
    assert "4 runs, 120 steps, about 2.2 h with one process\n" in shown


def test_a_dry_run_downloads_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(files, "_download", lambda *_: pytest.fail("it downloads"))
    assert main(["run", "sigmoid_net", "--scale", "paper", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "  std = 0.03\n" in shown
    assert shown.endswith(
        "15 runs, 750000 steps, time unknown without the data set mnist (missing: "
        "normbook data fetch mnist)\n"
    )


# --- interruptions


def test_ctrl_c_gives_130_and_the_way_to_go_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    update = Run.update

    def interrupted(self: Run) -> float:
        signal.raise_signal(signal.SIGINT)
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "update", interrupted)
        error = said(capsys, "run", "tiny", code=130)
    way_on = "the same command with --resume goes on from tiny.json.partial"
    assert error == f"normbook: interrupted; {way_on}\n"
    error = said(capsys, "run", "tiny", code=1)
    assert "unfinished run must be continued or deleted" in error
    assert said(capsys, "run", "tiny", "--resume", code=0) == ""
    assert [path.name for path in place.iterdir()] == ["tiny.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_end_before_the_beginning_leaves_nothing(
    number: signal.Signals,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def loading(_: Any) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("normbook.lab.runner.load_data", loading)
    # A shell that started the tests in the background has Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ends = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    error = said(capsys, "run", "tiny", code=130)
    assert signal.signal(signal.SIGTERM, ends) == signal.SIG_DFL
    signal.signal(signal.SIGINT, before)
    assert error == "normbook: interrupted; nothing was begun\n"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_told_to_end_can_be_resumed(
    number: signal.Signals, place: Path
) -> None:
    out = place / "tiny.json"
    with start("--slow", "--out", str(out)) as process:
        wait_for(place / "tiny.json.partial" / "plain-0.pt")
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.startswith("normbook: interrupted; the same command with --resume")
    assert error.count("\n") == 1
    assert main(["run", "tiny", "--resume"]) == 0
    run(tiny.EXPERIMENT, out=place / "whole.json")
    assert curves(out) == curves(place / "whole.json")


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WHERE / "tiny.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"there never was a {path}"
        time.sleep(0.02)


def curves(path: Path) -> list[Any]:
    return [(r.opening, r.curves) for r in record.load(path).runs]


def test_a_full_disk_is_told_in_one_line(place: Path) -> None:
    limited = f'ulimit -f 4; exec "{sys.executable}" "{WHERE / "tiny.py"}"'
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True)
    assert done.returncode == 1
    message = r"normbook: a checkpoint must be .*plain-0.pt cannot: File too large.*"
    assert re.search(f"^{message}--resume.*\n$", done.stderr)
    names = [path.name for path in (place / "tiny.json.partial").iterdir()]
    assert names == ["plan.json"]
    assert main(["run", "tiny", "--resume"]) == 0


# --- plot


@pytest.fixture
def tiny_json(place: Path) -> Path:
    run(tiny.EXPERIMENT, out=place / "tiny.json")
    return place / "tiny.json"


@pytest.mark.usefixtures("tiny_json")
def test_a_plot_writes_each_figure_and_prints_its_name(
    place: Path, capsys: Capture
) -> None:
    (place / "pictures").mkdir()
    assert main(["plot", "tiny", "--out", "pictures"]) == 0
    assert capsys.readouterr().out == "pictures/tiny-loss.png\n"
    content = (place / "pictures" / "tiny-loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--record", "no.json"], "there is no no.json; make it with normbook run"),
        (["--record", "broken.json"], "must be a JSON file, got broken.json"),
        (["--record", "list.json"], "must follow record.schema.json, got list.json"),
        (["--record", "other.json"], "must be of tiny, got one of vgg in other.json"),
        (["--record", "large.json"], r"at most 1e\+300 to be drawn, got 1e\+308 in l"),
        (["--record", "."], "Is a directory"),
        (["--out", "no"], "--out must be a folder that exists, got no; make it"),
        (["--out", "tiny.json"], "--out must be a folder that exists, got tiny.json"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_told_in_one_line(
    options: list[str],
    message: str,
    tiny_json: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The output is in order: what calls `main` in its own process goes on to use it.
    monkeypatch.setattr("normbook.__main__._give_up_output", pytest.fail)
    other = tiny_json.read_text().replace('"name": "tiny"', '"name": "vgg"')
    tiny_json.with_name("other.json").write_text(other)
    large = re.sub(r'("loss": \[)[^,]*', r"\g<1>-1e308", tiny_json.read_text())
    tiny_json.with_name("large.json").write_text(large)
    tiny_json.with_name("broken.json").write_text("{")
    tiny_json.with_name("list.json").write_text(json.dumps([1]))
    error = said(capsys, "plot", "tiny", *options, code=1)
    assert re.search(f"^normbook: .*{message}.*\n$", error)
    assert not list(tiny_json.parent.glob("*.png"))
