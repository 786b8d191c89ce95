"""Leave out of the site what no page needs: half of what each page would load.

The theme draws its icons twice, by a web font and by a script of 1.5 MB. Source maps
are for those who debug the theme, and no browser of today asks for a TrueType font.
Pictures are loaded when they come into view; till then their sizes keep their places.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SCRIPT = re.compile(r'<script src="[^"]*/fontawesome\.js[^"]*"></script>\n?')
PICTURE = re.compile(r'<img (?![^>]*\bloading=)([^>]*?src="([^"]+\.png)")')
SPARE = ("scripts/fontawesome.js*", "**/*.map", "vendor/**/*.ttf")


def leave_out(app: Sphinx, exception: Exception | None) -> None:
    """Delete these files, and the tag that would load one."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for pattern in SPARE:
        for path in [*(out / "_static").glob(pattern)]:
            path.unlink()
    for path in out.rglob("*.html"):

        def later(found: re.Match[str], page: Path = path) -> str:
            width, height = size((page.parent / found[2]).resolve())
            sizes = "" if "width" in found[1] else f'width="{width}" height="{height}" '
            return f'<img loading="lazy" {sizes}{found[1]}'

        text = path.read_text(encoding="utf-8")
        lean = PICTURE.sub(later, SCRIPT.sub("", text))
        if lean != text:
            path.write_text(lean, encoding="utf-8")


@cache
def size(picture: Path) -> tuple[int, int]:
    """Return width and height of a PNG (pixels), from the head of its file."""
    with picture.open("rb") as file:
        width, height = struct.unpack(">II", file.read(24)[16:])
    return width, height


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", leave_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
