"""Run notebooks and store their outputs: the only way in which outputs change.

    python tools/execute.py                    # every notebook of the book
    python tools/execute.py book/batch_norm.ipynb

A notebook that fails keeps its old file. The exit status is 1 if any failed.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from kernels import Watch, prepare_environment, unix_socket
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from notebook_rules import CELL_METADATA, dumps, normalize, source_digest
from PIL import Image

from normbook import atomic_file

ROOT = Path(__file__).resolve().parent.parent


class UnixSocketKernel(AsyncKernelManager):  # type: ignore[misc]
    """A kernel that is reached through a Unix socket."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**(unix_socket() | kwargs))


class ExecutionFailedError(Exception):
    """A notebook could not be run to its end; says which cell and why."""


def execute(path: Path) -> list[str]:
    """Run one notebook, replace its file at once, and return remarks."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise ExecutionFailedError(f"cannot be read: {error}") from error
    remarks = dropped_metadata(notebook)
    running: dict[str, Any] = {"cell": -1, "watch": None, "complaint": ""}

    def start(cell: Any, cell_index: int) -> None:
        pid = client.km.provisioner.pid
        running.update(cell=cell_index, watch=Watch(pid))

    client = NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=UnixSocketKernel,
        timeout=None,  # by the clock; `watched` counts processor time
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=start,
    )
    try:
        with watched(running):
            client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        number = running["cell"]
        first = (notebook.cells[number].source.splitlines() or [""])[0]
        why = running["complaint"] or error
        raise ExecutionFailedError(f"cell {number} ({first!r}): {why}") from error
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        kinds = [output.output_type for output in cell.outputs]
        if "raises-exception" in cell.metadata.get("tags", []) and "error" not in kinds:
            raise ExecutionFailedError(
                f"cell {number} is tagged raises-exception but raised nothing"
            )
        remarks += [
            f"cell {number} wrote to stderr: {output.text.strip()[:200]}"
            for output in cell.outputs
            if output.output_type == "stream" and output.name == "stderr"
        ]
        for output in cell.outputs:
            if png := output.get("data", {}).get("image/png"):
                output.data["image/png"] = packed(png)
    notebook.metadata["normbook"] = {"source_sha256": source_digest(notebook)}
    result = normalize(notebook, path.stem)
    nbformat.validate(result)
    atomic_file.write(path, dumps(result).encode())
    return remarks


def packed(png: str) -> str:
    """Return a picture in fewer bytes with the same pixels.

    What is opaque everywhere needs no channel that says so: an eighth of the bytes.
    """
    image: Image.Image = Image.open(io.BytesIO(base64.b64decode(png)))
    dpi = image.info.get("dpi")
    if image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")
    result = io.BytesIO()
    image.save(result, "PNG", optimize=True, dpi=dpi)
    return base64.b64encode(result.getvalue()).decode()


@contextlib.contextmanager
def watched(running: dict[str, Any]) -> Iterator[None]:
    """Kill the kernel of the running cell when its watch gives it up."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(1.0):
            watch = running["watch"]
            if watch is not None and not running["complaint"] and watch.complaint():
                running["complaint"] = watch.complaint()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(watch.pid, signal.SIGKILL)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def dropped_metadata(notebook: Any) -> list[str]:
    """Name what the normal form leaves out, but for an editor's usual marks."""
    usual = {"collapsed", "editable", "execution", "scrolled", "slideshow", "trusted"}
    return [
        f"cell {number}: metadata {key!r} dropped"
        for number, cell in enumerate(notebook.cells)
        for key in cell.metadata
        if key not in CELL_METADATA and key not in usual
    ]


def main(arguments: list[str]) -> int:
    """Run the notebooks named, or all; return the exit status."""
    prepare_environment()
    paths = [Path(name) for name in arguments]
    paths = paths or sorted((ROOT / "book").glob("*.ipynb"))
    failed = 0
    for path in paths:
        if path.suffix != ".ipynb":
            print(f"{path}: not a notebook (.ipynb)", file=sys.stderr)
            failed += 1
            continue
        try:
            remarks = execute(path.resolve())
        except ExecutionFailedError as error:
            print(f"{path}: FAILED, file unchanged: {error}", file=sys.stderr)
            failed += 1
            continue
        for remark in remarks:
            print(f"{path}: {remark}", file=sys.stderr)
        print(f"{path}: stored")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
