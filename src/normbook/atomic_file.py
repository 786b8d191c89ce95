"""Write a file so that under its name there is the old or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

__all__ = ["remove_abandoned", "write"]

# No writing takes as long; what is older belongs to a process that was killed.
ABANDONED_AFTER = 3600.0


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, even if the machine fails in between.

    Parameters
    ----------
    path : Path
        In a folder that exists. A file of that name is replaced.
    content : bytes

    Raises
    ------
    OSError
        If it cannot be written; a file that was there before is left as it was.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "numbers.txt")
    ...     write(path, b"1 2 3")
    ...     path.read_bytes()
    b'1 2 3'
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        remove_abandoned(path.parent)
        with part.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())  # else a crash may leave the name, no content
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # also when Ctrl-C comes in between


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of processes that were killed while writing.

    Parameters
    ----------
    folder : Path
        Only files in it that end in ``.part`` and are an hour old are removed.
    """
    for part in folder.glob("*.part"):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours
            if time.time() - part.stat().st_mtime > ABANDONED_AFTER:
                part.unlink()
