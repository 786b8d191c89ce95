"""Where a result comes from: code, versions, data, device and command."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import normbook
from normbook.data.catalogue import SOURCES
from normbook.lab.ranks import Ranks, Sharing

PACKAGES = ("normbook", "numba", "numpy", "scikit-learn", "torch")
ROOT = Path(normbook.__file__).parent
_OPTIONS: dict[Sharing, str] = {
    "runs": "",
    "batches": " --data-parallel",
    "local batches": " --data-parallel --local-statistics",
}


def command(
    name: str,
    scale: str,
    seeds: Sequence[int],
    place: torch.device,
    ranks: Ranks,
    parallel: Sharing = "runs",
) -> str:
    """Return the command that repeats a run on as many processes."""
    start = ""
    if ranks.count > 1:
        nodes = f"--nnodes {ranks.machines} " if ranks.machines > 1 else ""
        start = f"torchrun {nodes}--nproc-per-node {ranks.local_count} -m "
    numbers = " ".join(map(str, seeds))
    options = f"--scale {scale} --seeds {numbers} --device {place.type}"
    return f"{start}normbook run {name} {options}{_OPTIONS[parallel]}"


def data_hashes(name: str, data: tuple[Any, ...] | None) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of a data set, or of its arrays if a package embeds them."""
    if data is None:
        return {}
    source = SOURCES[name]
    files = {file.name: file.sha256 for file in source.files}
    if not files:
        content = b"".join(array.tobytes() for array in data)
        files = {source.package: hashlib.sha256(content).hexdigest()}
    return {source.name: files}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute."""
    numbers = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:  # run from its sources
            numbers[name] = "not installed"
    return numbers | {
        "torch": str(torch.__version__)
    }  # says for which device it is built


def code() -> str:
    """SHA-256 over the sources of the package."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def commit() -> dict[str, Any]:
    """Commit that tracks the sources, None without; whether they differ from it."""
    try:
        # Installed into somebody's project, the sources lie in its repository and
        # are no part of it.
        _git("ls-files", "--error-unmatch", "__init__.py")
        is_modified = bool(_git("status", "--porcelain", "--", "."))
        return {"commit": _git("rev-parse", "HEAD"), "is_modified": is_modified}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "is_modified": False}


def device(place: torch.device) -> dict[str, Any]:
    """Type and name of a device, and the threads of this process."""
    is_gpu = place.type == "cuda"
    name = torch.cuda.get_device_name(place) if is_gpu else platform.machine()
    return {"type": place.type, "name": name, "threads": torch.get_num_threads()}


def origin(place: torch.device) -> dict[str, Any]:
    """Say what computes, in the words of a record."""
    return {
        "versions": versions(), "code": code(), **commit(), "device": device(place)
    }  # fmt: skip


def now() -> str:
    """Date and time (UTC)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own arguments
        ["git", "-C", str(ROOT), *arguments],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    return done.stdout.strip()
