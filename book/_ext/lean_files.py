"""Leave out of the site what no page needs: half of what each page would load.

The theme draws its icons twice, by a web font and by a script of 1.5 MB; of the font,
pages show some thirty of 1 400. Source maps are for those who debug the theme.
Pictures are loaded when they come into view; till then their sizes keep their places.
One that is too wide for a phone gets a frame that scrolls.
A page asks for one style in place of a dozen, without the rules that no page calls up,
and shows before its scripts are there.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx
from used_rules import keep_used, words_of

SCRIPT = re.compile(r'<script src="[^"]*/fontawesome\.js[^"]*"></script>\n?')
PICTURE = re.compile(r'<img (?![^>]*\bloading=)([^>]*?src="([^"]+\.png)")')
SIZED = re.compile(r'<img loading="lazy"[^>]*? width="(\d+)"[^>]*>')
WIDE = 960  # pixels; letters of a wider one are some 5 high on a phone
# Where code reads no page before it is drawn: all but what sets the scheme.
EARLY = re.compile(r"<script (?![^>]*\b(?:defer|async|data-cfasync)\b)(?=[^>]*src=)")
SETTING = re.compile(r' *<script defer src="[^"]*_static/inline/[^"]*"></script>\n?')
LATE = re.compile(r' *<script defer="defer" src="[^"]*"></script>\n?')
OPTIONS = "documentation_options.js"
STYLE = re.compile(
    r' *<link (?=[^>]*rel="stylesheet")[^>]*href="([^"?]+\.css)[^>]*>\n?'
)
IMPORT = re.compile(r'@import "([^"]+)";')
ADDRESS = re.compile(r"url\((['\"]?)(?!data:|https?:|#)([^)'\"]+)\1\)")
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
    joined = cache(partial(join_styles, out, words_of(out)))
    for path in (p for p in out.rglob("*.html") if out / "_static" not in p.parents):

        def later(found: re.Match[str], page: Path = path) -> str:
            width, height = size((page.parent / found[2]).resolve())
            is_sized = 'width="' in found[1]  # the word may stand in the description
            sizes = "" if is_sized else f'width="{width}" height="{height}" '
            return f'<img loading="lazy" {sizes}{found[1]}'

        text = path.read_text(encoding="utf-8")
        lean = SIZED.sub(framed, PICTURE.sub(later, SCRIPT.sub("", text)))
        lean = with_one_style(with_late_scripts(lean), path, joined)
        if lean != text:
            path.write_text(lean, encoding="utf-8")


def framed(found: re.Match[str]) -> str:
    """Return the tag of a picture, in a frame that scrolls if it is wide."""
    is_wide = int(found[1]) >= WIDE
    return f'<div class="wide-picture">{found[0]}</div>' if is_wide else found[0]


def with_late_scripts(text: str) -> str:
    """Return a page that is drawn before its scripts come, in the order they had.

    Settings come before who reads them, and what came late comes last.
    """
    late = "".join(LATE.findall(text))
    text = EARLY.sub("<script defer ", LATE.sub("", text))
    settings = "".join(SETTING.findall(text))
    before, options, after = SETTING.sub("", text).partition(OPTIONS)
    after = after.replace("</script>\n", "</script>\n" + settings, 1)
    head, end, body = (before + options + after).partition("</head>")
    return head + late + end + body


def with_one_style(
    text: str, page: Path, joined: Callable[[tuple[Path, ...]], Path]
) -> str:
    """Return a page that asks for one style in place of those that it asked for."""
    links = list(STYLE.finditer(text))
    if not links:
        return text
    one = joined(tuple((page.parent / link[1]).resolve() for link in links))
    address = os.path.relpath(one, page.parent)
    link = f'    <link rel="stylesheet" href="{address}" />\n'
    first = links[0]
    return text[: first.start()] + link + STYLE.sub("", text[first.end() :])


def join_styles(out: Path, words: set[str], styles: tuple[Path, ...]) -> Path:
    """Write one style of several, with the rules for these words; return its place."""
    folder = out / "_static/styles"
    text = "\n".join(read_style(style, folder) for style in styles)
    text = keep_used(text, words)
    path = folder / f"all-{sha256(text.encode()).hexdigest()[:16]}.css"
    path.write_text(text, encoding="utf-8")
    return path


def read_style(style: Path, folder: Path) -> str:
    """Return a style with those that it imports, as it has to stand in a folder."""

    def moved(found: re.Match[str]) -> str:
        place = os.path.relpath(style.parent / found[2], folder)
        return f"url({found[1]}{place}{found[1]})"

    def imported(found: re.Match[str]) -> str:
        return read_style((style.parent / found[1]).resolve(), folder)

    text = ADDRESS.sub(moved, style.read_text(encoding="utf-8"))
    return IMPORT.sub(imported, text).replace('@charset "UTF-8";', "")


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
    # After code that stood within pages has got files.
    app.connect("build-finished", leave_out, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
