"""Mend in the built pages what the theme and Sphinx write amiss.

Most of it axe-core complains of; an eye may see the rest.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

MENDS: tuple[tuple[str, str], ...] = (
    # sphinx-book-theme: the name of the button lacks the keys that stand on it.
    (r'(<button class="[^"]*search-button-field[^>]*?) aria-label="Search"', r"\1"),
    # Its side bar with the title of the book is in no landmark.
    (
        '<div (id="pst-primary-sidebar")',
        r'<div role="region" aria-label="Book" \1',
    ),
    # What opens a part of the contents has no name.
    (
        r'<summary>(<span class="toctree-toggle")',
        r'<summary aria-label="Pages of this part">\1',
    ),
    # docutils: a role that ARIA has given up, and lists whose children are no items.
    (r' role="doc-biblioentry"', ""),
    (r'<div role="list" class="citation-list">', '<div class="citation-list">'),
    # sphinx-exercise: a link that begins with a blank, which is underlined.
    (r"(Solution to)(<a [^>]*>) ", r"\1 \2"),
    # A head without a word heads nothing.
    (r"<th class=\"head[^\"]*\">(?:<p>\s*</p>)?</th>", "<td></td>"),
)


def mended(page: str) -> str:
    """Return a page without these barriers."""
    for pattern, better in MENDS:
        page = re.sub(pattern, better, page)
    return page


def mend(app: Sphinx, exception: Exception | None) -> None:
    """Mend every page of an HTML build that went well."""
    if exception is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        if (better := mended(text)) != text:
            path.write_text(better, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
