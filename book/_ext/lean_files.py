"""Leave out of the site what no page needs: half of what each page would load.

The theme draws its icons twice, by a web font and by a script of 1.5 MB; of the font,
pages show some thirty of 1 400. Source maps are for those who debug the theme.
Pictures are loaded when they come into view; till then their sizes keep their places.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx

SCRIPT = re.compile(r'<script src="[^"]*/fontawesome\.js[^"]*"></script>\n?')
PICTURE = re.compile(r'<img (?![^>]*\bloading=)([^>]*?src="([^"]+\.png)")')
SPARE = ("scripts/fontawesome.js*", "**/*.map", "vendor/**/*.ttf")
ICONS = Path("_static/vendor/fontawesome/webfonts/fa-solid-900")
SOURCES_OF_ICONS = re.compile(r"(src:)[^;}]*?(url\([^)]*fa-solid-900)\.woff2\)[^;}]*")
RULE = re.compile(r"([^{}]*)\{([^{}]*)\}")  # of a style
NAME = re.compile(r"\bfa-[\w-]+")
SIGN = re.compile(r'"\\([ef][0-9a-f]{3})"|([\ue000-\uf8ff])')


def leave_out(app: Sphinx, exception: Exception | None) -> None:
    """Delete these files, and the tag that would load one."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    if ICONS.with_suffix(".ttf").name in {p.name for p in out.glob("**/*.ttf")}:
        keep_icons(out)
    for pattern in SPARE:
        for path in [*(out / "_static").glob(pattern)]:
            path.unlink()
    for path in out.rglob("*.html"):

        def later(found: re.Match[str], page: Path = path) -> str:
            width, height = size((page.parent / found[2]).resolve())
            is_sized = 'width="' in found[1]  # the word may stand in the description
            sizes = "" if is_sized else f'width="{width}" height="{height}" '
            return f'<img loading="lazy" {sizes}{found[1]}'

        text = path.read_text(encoding="utf-8")
        lean = PICTURE.sub(later, SCRIPT.sub("", text))
        if lean != text:
            path.write_text(lean, encoding="utf-8")


def icons_of(out: Path) -> set[int]:
    """Return the signs that pages, scripts and styles of a site use, as code points."""
    names: set[str] = set()
    for path in (p for end in ("html", "js") for p in out.rglob(f"*.{end}")):
        if path.name != "fontawesome.js":
            names |= {*NAME.findall(path.read_text(encoding="utf-8"))}
    signs: set[int] = set()
    for path in out.rglob("*.css"):
        for where, what in RULE.findall(path.read_text(encoding="utf-8")):
            icons = {*NAME.findall(where)}
            if not icons or icons & names:
                for escaped, sign in SIGN.findall(what):
                    signs.add(int(escaped, 16) if escaped else ord(sign))
    return signs


def keep_icons(out: Path) -> None:
    """Write the font anew with the icons that are used, and tell the style of it."""
    path = out / ICONS
    font = TTFont(path.with_suffix(".ttf"))
    choice = subset.Subsetter(subset.Options(layout_features=[]))
    choice.populate(unicodes=icons_of(out))
    choice.subset(font)
    font.flavor = "woff"  # woff2 needs a packer that is no part of Python
    font.save(path.with_suffix(".woff"))
    path.with_suffix(".woff2").unlink()
    for style in out.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        lean = SOURCES_OF_ICONS.sub(r'\1\2.woff) format("woff")', text)
        if lean != text:
            style.write_text(lean, encoding="utf-8")


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
