"""Words that lead the search to a section, though no title holds them.

They are the names in code of the notation's tables; what stands behind a link to an
entry in the index of symptoms; and ``search_words`` in ``_config.yml``: a word, and a
label or an entry of the glossary.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

NOTATION = "book/notation"
SYMPTOMS = "symptom-index"  # the class of its tables


def mark_rows(app: Sphinx, doctree: nodes.document) -> None:
    """Give each row of the notation with names in code an address, and lead there."""
    if app.env.docname != NOTATION or app.builder.format != "html":
        return  # the index of a book on paper would list them
    for number, row in enumerate(doctree.findall(nodes.row)):
        cells = list(row.findall(nodes.entry))[:2]
        names = [c.astext() for cell in cells for c in cell.findall(nodes.literal)]
        if names:
            row["ids"].append(f"row-{number}")
            doctree += entries(names, f"row-{number}")


def keep_symptoms(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the words of each row of the index of symptoms, with the label beside it."""
    found = {}
    for table in doctree.findall(nodes.table):
        for row in table.findall(nodes.row) if SYMPTOMS in table["classes"] else ():
            link = next(row.findall(addnodes.pending_xref), None)
            if link is not None and link["reftype"] == "ref":
                words = row[-1].astext().split(";")
                found[link["reftarget"]] = [word.strip() for word in words]
    if found:
        app.env.metadata[app.env.docname]["symptoms"] = found


def entries(words: list[str], address: str) -> addnodes.index:
    """Return a node that the search reads, and no reader sees."""
    found = [("single", word, address, "main", None) for word in words]
    return addnodes.index(entries=found)


def place_of(env: BuildEnvironment, label: str) -> tuple[str, str] | None:
    """Return the page and the address of a label, or of an entry of the glossary."""
    labels = env.domaindata["std"]["labels"]
    if label in labels:
        page, address, _ = labels[label]
        return page, address
    terms: dict[tuple[str, str], tuple[str, str]] = env.domaindata["std"]["objects"]
    return terms.get(("term", label))


def add_words(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Add to a page the words that lead there."""
    if app.builder.format != "html":
        return
    found = [(label, [word]) for word, label in app.config.search_words.items()]
    for metadata in app.env.metadata.values():
        found += metadata.get("symptoms", {}).items()
    for label, words in found:
        place = place_of(app.env, label)
        if place and place[0] == page:
            doctree += entries(words, place[1])


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
    app.connect("doctree-read", keep_symptoms)
    app.connect("doctree-resolved", add_words)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
