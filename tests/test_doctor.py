import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from normbook import doctor
from normbook.data import files
from normbook.device import DEVICE


@pytest.fixture(autouse=True)
def plain_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("NORMBOOK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(files.CACHE, str(tmp_path / "cache"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository to write requirements.txt and constraints.txt into."""
    monkeypatch.setattr(doctor, "checkout", lambda: tmp_path)
    return tmp_path


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let these packages have these versions; an empty one is not installed."""
    real = metadata.version

    def version(package: str) -> str:
        answer = versions.get(package.replace("-", "_"))
        if answer == "":
            raise metadata.PackageNotFoundError(package)
        return answer or real(package)

    monkeypatch.setattr(metadata, "version", version)


def line(report: doctor.Report, name: str) -> str:
    """The first line of the report that begins with the name, spaces squeezed."""
    found = next(x for x in report.lines if x.startswith(f"  {name} "))
    return " ".join(found.split())


def test_this_environment_can_run_the_book() -> None:
    report = doctor.examine()
    assert report.faults == []
    assert report.lines[-1] == "The book can run here."
    assert line(report, "Python").startswith(f"Python {platform.python_version()} ok")
    torch_line = line(report, "torch")
    assert torch_line.startswith(f"torch {metadata.version('torch')} ok")
    assert line(report, "threads").startswith(f"threads {torch.get_num_threads()} of")


def test_what_the_package_requires_is_looked_at() -> None:
    report = doctor.examine()
    for requirement in metadata.requires("normbook") or []:
        if "extra ==" not in requirement or 'extra == "book"' in requirement:
            name = doctor.REQUIREMENT.match(requirement)
            assert name
            assert line(report, name[1])


def test_what_the_package_requires_for_an_extra_only_is_not_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requirements = ["numpy>=2.1", 'no-such-package>=1; extra == "site"']
    monkeypatch.setattr(metadata, "requires", lambda _: requirements)
    assert doctor.examine().faults == []


def test_a_missing_package_is_a_fault_with_its_cure(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "requirements.txt").write_text("sympy>=1.13  # algebra\n")
    install(monkeypatch, sympy="")
    report = doctor.examine()
    (fault,) = report.faults
    assert fault.startswith("sympy: ")
    assert f'pip install -r "{checkout / "requirements.txt"}"' in fault
    assert line(report, "sympy") == "sympy - missing needs >=1.13"
    assert report.lines[-1] == "The book cannot yet run here."
    assert not report.can_run


@pytest.mark.parametrize(
    ("installed", "text", "can_run"),
    [
        ("2.5.1+cu121", "NOT SUPPORTED needs >=2.6,<2.14, pinned 2.13.0", False),
        ("2.12.0+cpu", "ok, not the pinned one needs >=2.6,<2.14, pinned 2.13.0", True),
        ("2.13.0", "ok needs >=2.6,<2.14, pinned 2.13.0", True),
        ("2.13.0+cu130", "ok needs >=2.6,<2.14, pinned 2.13.0", True),  # a build
    ],
)
def test_a_version_out_of_range_is_a_fault_and_one_that_is_not_pinned_is_told(
    installed: str,
    text: str,
    can_run: bool,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (checkout / "requirements.txt").write_text("torch>=2.6,<2.14\n-c constraints.txt\n")
    (checkout / "constraints.txt").write_text("torch==2.13.0\nsympy==1.14.0\n")
    install(monkeypatch, torch=installed, sympy="1.14.0")
    report = doctor.examine()
    assert line(report, "torch") == f"torch {installed} {text}"
    assert line(report, "sympy") == "sympy 1.14.0 ok pinned 1.14.0"
    assert report.can_run == can_run


def test_a_tool_that_is_missing_is_a_hint_only(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, jupyter_book="")
    report = doctor.examine()
    assert report.can_run
    assert any(hint.startswith("jupyter-book (for the site") for hint in report.hints)


def test_without_a_checkout_the_cure_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "checkout", lambda: None)
    install(monkeypatch, numpy="")
    (fault,) = doctor.examine().faults
    assert 'pip install "numpy>=' in fault


def test_a_package_that_is_not_installed_itself_does_not_stop_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    monkeypatch.setattr(metadata, "metadata", missing)
    install(monkeypatch, normbook="")
    report = doctor.examine()
    assert report.lines[0] == "normbook (not installed)"
    assert line(report, "torch")


def test_an_old_python_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.14")
    report = doctor.examine()
    assert "Python must be >=3.11, this is 3.10.14; install" in report.faults[0]
    assert "NOT SUPPORTED" in line(report, "Python")


def test_ranges_are_not_checked_where_packaging_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "packaging.specifiers", None)
    install(monkeypatch, torch="0.1")
    assert "torch 0.1 ok" in line(doctor.examine(), "torch")


def test_without_torch_the_report_says_how_to_get_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "requirements.txt").write_text("torch>=2.6,<2.14\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    install(monkeypatch, torch="")
    report = doctor.examine()
    assert line(report, "torch") == "torch - missing needs >=2.6,<2.14"
    (fault,) = report.faults
    assert fault.startswith("torch: ")
    assert "pip install" in fault


def test_a_torch_that_cannot_be_imported_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (fault,) = doctor.examine().faults
    assert fault.startswith("torch is installed but cannot be imported")


def test_gpus_are_listed_with_cuda_and_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=139 * 2**30)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91400)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    report = doctor.examine()
    assert line(report, "computes on") == "computes on cuda"
    assert line(report, "CUDA") == "CUDA 13.0"
    assert line(report, "cuDNN") == "cuDNN 91400"
    assert line(report, "cuda:0") == "cuda:0 NVIDIA H200, 139 GiB"


def test_a_cuda_torch_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert line(doctor.examine(), "GPU") == "GPU none found"


def test_a_device_that_is_not_there_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE, "quantum")
    report = doctor.examine()
    assert any("NORMBOOK_DEVICE must be" in fault for fault in report.faults)


def test_settings_are_shown_and_an_unknown_one_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(files.DATA, str(tmp_path))
    monkeypatch.setenv("NORMBOOK_DAAT", "x")
    report = doctor.examine()
    assert line(report, files.DATA) == f"{files.DATA} {tmp_path}"
    assert line(report, DEVICE) == f"{DEVICE} not set"
    assert line(report, "NORMBOOK_DAAT") == "NORMBOOK_DAAT x (unknown)"
    assert any("NORMBOOK_DAAT is no setting" in hint for hint in report.hints)


@pytest.mark.parametrize("name", [files.DATA, files.CACHE])
@pytest.mark.parametrize("value", ["~no-such-user/x", "/" + "a" * 5000, "/no/such"])
def test_a_wrong_setting_is_a_hint_once_and_the_chapters_run(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    report = doctor.examine()
    assert report.can_run
    if name == files.CACHE and not value.startswith("~"):  # known when it is made
        assert report.lines[-1] == "The book can run here."
        return
    assert sum(f"{name} must name a folder" in hint for hint in report.hints) == 1
    assert report.lines[-1].startswith("The chapters can run here, for they need no")
    titles = ["settings", "data", "could be better", report.lines[-1]]
    assert sorted(titles, key=report.lines.index) == titles


def test_missing_data_are_a_hint_with_the_command() -> None:
    report = doctor.examine()
    assert "mnist: missing: normbook data fetch mnist" in report.hints
    assert line(report, "digits").startswith("digits ok in scikit-learn")
    assert report.can_run


def test_columns_are_aligned() -> None:
    lines = doctor.examine().lines
    start = lines.index("packages") + 1
    rows = lines[start : lines.index("", start)]
    column = len(max((row.split()[0] for row in rows), key=len)) + 4
    assert all(row[column - 2 : column] == "  " for row in rows)
    assert all(row[column] != " " for row in rows)


def test_a_checkout_is_where_the_requirements_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(__file__).parents[1]
    assert doctor.checkout() == here
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "a" / "b" / "doctor.py"))
    assert doctor.checkout() is None
