"""What is on this machine, against what the book needs: `normbook doctor`."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from normbook.data import files
from normbook.data.catalogue import SOURCES
from normbook.device import DEVICE, pick
from normbook.errors import DataError

# Needed to run the chapters, besides what the package itself requires.
CHAPTERS = ("torch", "sympy", "ipykernel")
# Only for the notebooks in a browser, for the site and for the checks.
EXTRAS = ("jupyterlab", "jupyter-book", "nbval", "pytest")
SETTINGS = (files.DATA, files.CACHE, DEVICE)

# A line of requirements.txt or of the metadata: name, extras, version range.
REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[.*?\])?\s*([^;#]*)")


@dataclass
class Report:
    """What was found; a fault or a hint comes with its cure."""

    lines: list[str]  # to be printed
    faults: list[str] = field(default_factory=list)  # keep the book from running
    hints: list[str] = field(default_factory=list)  # missing for some purpose only

    @property
    def can_run(self) -> bool:
        """Whether the chapters can be run here."""
        return not self.faults


def examine() -> Report:
    """Look at Python, packages, device, settings and data; change nothing."""
    report = Report([f"normbook {version('normbook') or '(not installed)'}"])
    _examine_python(report)
    _examine_packages(report)
    _examine_device(report)
    is_set_right = _examine_settings(report)
    _examine_data(report)
    _section(report, "could be better", [(hint,) for hint in report.hints])
    _section(report, "to be done", [(fault,) for fault in report.faults])
    verdict = "The book can run here."
    if not report.can_run:
        verdict = "The book cannot yet run here."
    elif not is_set_right:
        verdict = "The chapters can run here, for they need no download; a setting is "
        verdict += "wrong, see above."
    report.lines += ["", verdict]
    return report


def version(package: str) -> str:
    """Return the installed version of a package, empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def checkout() -> Path | None:
    """Return the repository that this package is run from, if it is."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "requirements.txt").is_file() else None


def _section(report: Report, title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Add a title and rows whose columns are aligned; nothing without a row."""
    if rows:
        report.lines += ["", title]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        report.lines.append(("  " + "  ".join(cells)).rstrip())


def _examine_python(report: Report) -> None:
    wanted, here = "", platform.python_version()
    with suppress(metadata.PackageNotFoundError):
        wanted = metadata.metadata("normbook")["Requires-Python"] or ""
    state = "ok"
    if not _is_in(here, wanted):
        state = "NOT SUPPORTED"
        report.faults.append(
            f"Python must be {wanted}, this is {here}; install a newer Python and make "
            "the environment with it"
        )
    rows = [
        ("Python", here, state, f"needs {wanted or 'any'}"),
        ("executable", sys.executable, "", ""),
        ("system", platform.platform(), "", ""),
    ]
    _section(report, "system", rows)


def _examine_packages(report: Report) -> None:
    required = _metadata_requirements()
    needed = [*required, *CHAPTERS]
    ranges = required | {k: v for k, v in _lines_of("requirements.txt").items() if v}
    # The versions with which the book's outputs were made.
    pins = _lines_of("constraints.txt")
    rows = []
    for package in dict.fromkeys((*needed, *EXTRAS)):
        installed, wanted = version(package), ranges.get(package, "")
        pin = pins.get(package, "").removeprefix("==")
        if not installed:
            state = "missing"
        elif not _is_in(installed, wanted):
            state = "NOT SUPPORTED"
        elif pin and installed.partition("+")[0] != pin:  # +cpu, +cu130: a build
            state = "ok, not the pinned one"
        else:
            state = "ok"
        if not state.startswith("ok"):
            cure = _install(package, wanted)
            if package in needed:
                report.faults.append(f"{package}: {cure}")
            else:
                report.hints.append(f"{package} (for the site and the checks): {cure}")
        notes = [f"needs {wanted}"] if wanted else []
        notes += [f"pinned {pin}"] if pin else []
        rows.append((package, installed or "-", state, ", ".join(notes)))
    _section(report, "packages", rows)


def _metadata_requirements() -> dict[str, str]:
    """Return what the package itself requires, with the range of versions."""
    try:
        lines = metadata.requires("normbook") or []
    except metadata.PackageNotFoundError:
        return {}
    return _parse([line for line in lines if _is_of_the_book(line)])


def _is_of_the_book(line: str) -> bool:
    """Whether a line of the metadata is of the package itself or its extra ``book``."""
    return (
        "extra ==" not in line
        or re.search(r"extra == [\"']book[\"']", line) is not None
    )


def _lines_of(name: str) -> dict[str, str]:
    """Return what a file of the repository requires, with the range of versions."""
    folder = checkout()
    if folder is None or not (folder / name).is_file():
        return {}
    return _parse((folder / name).read_text(encoding="utf-8").splitlines())


def _parse(lines: list[str]) -> dict[str, str]:
    matches = (REQUIREMENT.match(line) for line in lines)
    return {m[1]: m[2].strip() for m in matches if m}


def _is_in(installed: str, wanted: str) -> bool:
    """Whether a version is in a range, such as ``>=2.6,<2.14``."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # comes with matplotlib, which is then missing too
        return True
    return SpecifierSet(wanted).contains(installed, prereleases=True)


def _install(package: str, wanted: str) -> str:
    folder = checkout()
    what = f'-r "{folder / "requirements.txt"}"' if folder else f'"{package}{wanted}"'
    return f'"{sys.executable}" -m pip install {what}'


def _examine_device(report: Report) -> None:
    try:
        import torch

        device = str(pick())
    except (ImportError, OSError) as error:
        _section(report, "device", [("unknown", str(error))])
        if version("torch"):  # else a fault already, among the packages
            report.faults.append(
                f"torch is installed but cannot be imported ({error}); remove it and "
                f"install it anew: {_install('torch', '')}"
            )
        return
    except (ValueError, RuntimeError) as error:
        _section(report, "device", [("none", str(error))])
        report.faults.append(str(error))
        return
    cuda = torch.version.cuda
    rows = [
        ("computes on", device),
        ("threads", f"{torch.get_num_threads()} of torch, {os.cpu_count()} cores"),
        ("CUDA", cuda or "this torch is built without it"),
    ]
    if cuda:
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        rows.append(("cuDNN", str(cudnn or "none")))
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for i in range(count):
            gpu = torch.cuda.get_device_properties(i)
            memory = f"{gpu.total_memory / 2**30:.0f} GiB"
            rows.append((f"cuda:{i}", f"{gpu.name}, {memory}"))
        if not count:
            rows.append(("GPU", "none found"))
    _section(report, "device", rows)


def _examine_settings(report: Report) -> bool:
    """Show the settings; return whether those of the data can be used."""
    is_right = True
    for folder in (files.data_folder, files.cache_folder):
        try:
            folder()
        except DataError as error:
            report.hints.append(str(error))
            is_right = False
    unset = dict.fromkeys(SETTINGS, "not set")
    if not os.environ.get(files.CACHE):
        unset[files.CACHE] += f": {files.cache_folder()}"
    rows = [(name, os.environ.get(name) or unset[name]) for name in SETTINGS]
    for name in sorted(os.environ):
        if name.startswith("NORMBOOK_") and name not in SETTINGS:
            rows.append((name, f"{os.environ[name]} (unknown)"))
            report.hints.append(
                f"{name} is no setting of normbook; those are {', '.join(SETTINGS)}"
            )
    _section(report, "settings", rows)
    return is_right


def _examine_data(report: Report) -> None:
    rows = []
    for source in SOURCES.values():
        is_here, text = files.whereabouts(source)
        rows.append((source.name, "ok" if is_here else "-", text))
        if not is_here and text not in report.hints:  # else a wrong setting
            report.hints.append(f"{source.name}: {text}")
    _section(report, "data", rows)
