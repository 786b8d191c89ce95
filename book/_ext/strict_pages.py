"""Rewrite the built pages so that a strict content security policy holds on them.

The theme writes scripts and click handlers into the pages. Here each script becomes a
file of the site, each handler an attribute that one such file reads; then every page
says in its head that nothing but the site's own files may run or be loaded. The one
id that exercises and proofs give to all of their boxes goes: an id stands once.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# `file:` is for a site that is opened from a disk, where 'self' is not defined.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' file:",
        "style-src 'self' file: 'unsafe-inline'",
        "img-src 'self' file: data:",
        "font-src 'self' file:",
        "connect-src 'self' file:",
        "base-uri 'none'",
        "form-action 'self' file:",
    )
)
META = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
FOLDER = "_static/inline"

SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<code>.*?)</script>", re.S)
IS_JAVASCRIPT = re.compile(r"""type=["']?(text/javascript|module)""")
HANDLER = re.compile(r'''\son(?P<event>[a-z]+)="(?P<code>[^"]*)"''')
KNOWN_HANDLERS = {
    ("click", "toggleFullScreen()"): "toggleFullScreen",
    ("click", "window.print()"): "print",
}
CLICKS = """\
// Calls the function that a button names; stands for handlers inside the page.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-calls]");
  if (button) window[button.dataset.calls]();
});
"""
REPEATED_ID = re.compile(r'\sid="(?:proof|(?:exercise|solution|proof)-content)"')
# Outside scripts only: a script's text may hold what looks like markup.
MARKUP = re.compile(r"(<script.*?</script>)", re.S)


def strict(page: str, root: str) -> tuple[str, dict[str, str]]:
    """Return a page without inline scripts, and those scripts by file name.

    `root` is the way from the page to the top of the site, as in ``../``.
    """
    files: dict[str, str] = {}

    def to_file(code: str) -> str:
        name = hashlib.sha256(code.encode()).hexdigest()[:16] + ".js"
        files[name] = code
        return f"{root}{FOLDER}/{name}"

    def move(found: re.Match[str]) -> str:
        attributes, code = found["attributes"], found["code"]
        if re.search(r"\bsrc\s*=", attributes) or not code.strip():
            return found[0]
        if "type=" in attributes and not IS_JAVASCRIPT.search(attributes):
            return found[0]  # data, which nothing runs
        return f'<script{attributes} src="{to_file(code.strip())}"></script>'

    def name_handler(found: re.Match[str]) -> str:
        known = KNOWN_HANDLERS.get((found["event"], found["code"]))
        if known is None:
            raise ExtensionError(
                f"a page has the inline handler on{found['event']}={found['code']!r}, "
                "which its policy forbids; put the code into a file, or add the "
                "handler to KNOWN_HANDLERS in book/_ext/strict_pages.py"
            )
        return f' data-calls="{known}"'

    parts = MARKUP.split(SCRIPT.sub(move, page))
    for place in range(0, len(parts), 2):  # every second part is a script
        tags = re.split(r"(<[a-zA-Z][^>]*>)", parts[place])
        for odd in range(1, len(tags), 2):
            tags[odd] = HANDLER.sub(name_handler, tags[odd])
        parts[place] = REPEATED_ID.sub("", "".join(tags))
    page = "".join(parts)
    if "data-calls=" in page:
        script = f'<script src="{to_file(CLICKS)}"></script>'
        page = page.replace("</head>", f"{script}\n</head>")
    charset = re.search(r"<meta charset=[^>]*>", page, re.I)
    if charset is None:
        raise ExtensionError("a page has no <meta charset> to put its policy after")
    return page[: charset.end()] + "\n" + META + page[charset.end() :], files


def rewrite(app: Sphinx, exception: Exception | None) -> None:
    """Rewrite every page of an HTML build that went well."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in sorted(out.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        if path.is_relative_to(out / "_static") or META in text:
            continue
        if "<head" not in text and "<script" not in text:
            continue  # the top page is one line, which leads to the first page
        root = os.path.relpath(out, path.parent).replace(os.sep, "/") + "/"
        page, files = strict(text, root.removeprefix("./"))
        for name, code in files.items():
            (out / FOLDER / name).write_text(code, encoding="utf-8")
        path.write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", rewrite, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
