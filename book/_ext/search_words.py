"""Words that lead the search to a section, though no title holds them.

They are the names in code of the notation's tables, and ``search_words`` in
``_config.yml``: a word, and a label or an entry of the glossary.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
NOTATION = "book/notation"


def mark_rows(app: Sphinx, doctree: nodes.document) -> None:
    """Give each row of the notation with names in code an address, and an entry."""
    if app.env.docname != NOTATION:
        return
    for number, row in enumerate(doctree.findall(nodes.row)):
        cells = list(row.findall(nodes.entry))[:2]
        names = [c.astext() for cell in cells for c in cell.findall(nodes.literal)]
        if names:
            address = f"row-{number}"
            row["ids"].append(address)
            for name in names:
                add(app.env, name, NOTATION, address)


def add(env: BuildEnvironment, word: str, page: str, address: str) -> None:
    """Let a word lead to an address of a page."""
    entries = env.domaindata["index"]["entries"].setdefault(page, [])
    entry = ("single", word, address, "main", None)
    if entry not in entries:
        entries.append(entry)


def add_words(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Add the words of the configuration."""
    labels = env.domaindata["std"]["labels"]
    terms = env.domaindata["std"]["objects"]
    for word, label in app.config.search_words.items():
        if label in labels:
            page, address, _ = labels[label]
        elif ("term", label) in terms:
            page, address = terms["term", label]
        else:
            LOGGER.warning("search_words: %r leads to %r, no label", word, label)
            continue
        add(env, word, page, address)
    return []


def add_script(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Load on the page of the search what names sections there."""
    if page == "search":
        app.add_js_file("search_results.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("search_words", {}, "env", dict)
    app.connect("doctree-read", mark_rows)
    app.connect("env-updated", add_words)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
