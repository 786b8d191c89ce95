"""The directive ``list-of-exercises``: every exercise with its solution, by chapter.

It reads the notebooks in the order of the table of contents. So the page cannot lack
an exercise, and no list is kept by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import notebook_rules
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles


def chapter_lines(document: str, notebook: notebook_rules.Notebook) -> list[str]:
    """Return the text of one chapter: a heading and a line for each exercise."""
    exercises = notebook_rules.exercises(notebook)
    if not exercises:
        return []
    return [
        f"### {{doc}}`{notebook_rules.titles(notebook)[0]} </{document}>`",
        "",
        *(
            f"- {{ref}}`{label}`: {title} ({{ref}}`solution <{solution_of(label)}>`)"
            for title, label in exercises
        ),
        "",
    ]


def solution_of(label: str) -> str:
    """Return the label that the solution of an exercise has by the book's rules."""
    return "sol-" + label.removeprefix("ex-")


def pages(site_map: Any, tree: Any) -> Iterator[str]:
    """Yield the pages of a part, those under a page behind it."""
    for document in tree.items:
        yield document
        for under in site_map[document].subtrees:
            yield from pages(site_map, under)


def book_lines(env: Any) -> Iterator[str]:
    """Yield the text of all chapters under their parts, and note what it is from."""
    for part in env.external_site_map.root.subtrees:
        found = []
        for document in pages(env.external_site_map, part):
            path = Path(env.doc2path(document))
            if path.suffix == ".ipynb":
                env.note_dependency(str(path))
                found += chapter_lines(document, nbformat.read(path, as_version=4))
        if found:
            yield from (f"## {part.caption}", "", *found)


class ListOfExercises(SphinxDirective):
    """Lists the exercises of the whole book under the captions of its parts."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the list."""
        result = nodes.Element()
        text = StringList(list(book_lines(self.env)), source="")
        nested_parse_with_titles(self.state, text, result)
        return list(result.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("list-of-exercises", ListOfExercises)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
