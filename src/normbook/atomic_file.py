"""Write a file so that under its name there is the old or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from pathlib import Path

# No writing takes as long; what is older belongs to a process that was killed.
ABANDONED_AFTER = 3600.0
# Other programs, browsers for one, end the names of their temporary files in .part too.
OURS = re.compile(r".*\.[0-9a-f]{32}\.part", re.DOTALL)


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, even if the machine fails in between.

    The folder must exist; a file of that name is replaced, and left as it was if an
    ``OSError`` says that the new one cannot be written.

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


def is_temporary(path: Path) -> bool:
    """Whether this is the name of a temporary file of :func:`write`."""
    return OURS.fullmatch(path.name) is not None


def remove_abandoned(folder: Path) -> None:
    """Remove what processes killed in :func:`write` left behind, after an hour."""
    for part in filter(is_temporary, folder.glob("*.part")):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours
            if time.time() - part.stat().st_mtime > ABANDONED_AFTER:
                part.unlink()
