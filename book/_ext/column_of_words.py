"""Mark in each table the column that has most to say, so that a phone gives it room.

A browser shares a narrow page among columns by their longest words, and may leave a
sentence a strip of a word's width beside a column of marks. The style is in
``custom.css`` (``td.words``).
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from kept_together import SHORT, signs
from sphinx.application import Sphinx


def length(entry: nodes.entry) -> int:
    """Return how many signs a cell shows, about."""
    return sum(
        signs(text.astext()) if isinstance(text.parent, nodes.math) else len(text)
        for text in entry.findall(nodes.Text)
    )


def mark_words(doctree: nodes.document) -> None:
    """Mark the cells of the column with the longest one, if that is a line or more."""
    for body in doctree.findall(nodes.tbody):
        rows = [list(row.findall(nodes.entry)) for row in body.findall(nodes.row)]
        lengths = (map(length, row) for row in rows)
        columns = [max(column) for column in zip(*lengths, strict=False)]
        if len(columns) > 1 and max(columns) > SHORT:
            widest = columns.index(max(columns))
            for row in rows:
                row[widest]["classes"].append("words")


def mark(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Mark the tables of a page."""
    mark_words(doctree)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-resolved", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
