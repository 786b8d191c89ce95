"""What stands at the head of a page and of its sections.

Under the title: how long the page takes, and how hard it is. A section that plays a
part in the plan of chapters has its name as a class; in "Derivation: three terms" it
becomes a label, and the address ``#derivation`` stays. The role ``{minutes}`` tells the
time of pages, one after the other, elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

import notebook_rules
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

WORDS = 200  # of prose, a minute
LINES = 12  # of code that is in view, a minute
ROUND = 5  # minutes
LEVELS = {1: "an introduction", 2: "some algebra", 3: "in depth"}


def minutes_of(doctree: nodes.document) -> float:
    """Return how long it takes to read what is in view on a page."""
    words = lines = 0
    for text in doctree.findall(nodes.Text):
        owner = text.parent
        is_code = isinstance(owner, nodes.literal_block)
        if is_folded(owner):
            continue
        if is_code:
            lines += len(text.splitlines())
        elif not isinstance(owner, nodes.raw):
            words += len(text.split())
    return words / WORDS + lines / LINES


def is_folded(node: nodes.Node | None) -> bool:
    """Return whether one has to click to see a node."""
    while node is not None:
        if isinstance(node, nodes.container) and node.get("hide_mode") == "input":
            return bool(node.get("nb_element") == "cell_code")
        is_element = isinstance(node, nodes.Element)
        if is_element and {"dropdown", "sd-dropdown"} & set(node.get("classes", [])):
            return True
        node = node.parent
    return False


def in_words(minutes: float) -> str:
    """Return a time in minutes, or hours where it is long."""
    rounded = max(ROUND, round(minutes / ROUND) * ROUND)
    if rounded < 100:
        return f"{rounded} minutes"
    hours = round(minutes / 30) / 2
    return f"{hours:g} hours"


def add_heads(app: Sphinx, doctree: nodes.document) -> None:
    """Add the line under the title, and the roles of the sections."""
    page = app.env.docname
    minutes = minutes_of(doctree)
    app.env.metadata[page]["minutes"] = minutes
    title = next(doctree.findall(nodes.title), None)
    if title is not None and (level := app.config.chapter_levels.get(page)):
        text = f"About {in_words(minutes)} · {LEVELS[level]}"
        line = nodes.paragraph("", text, classes=["at-a-glance"])
        title.parent.insert(title.parent.index(title) + 1, line)
    for section in doctree.findall(nodes.section):
        name_role(section)


def capitalized(text: str) -> str:
    """Return the text with a capital, but where a symbol begins it: ε stays ε."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def name_role(section: nodes.section) -> None:
    """Mark a section that plays a part in the plan of chapters."""
    title = section[0]
    if not isinstance(title, nodes.title):
        return
    role, colon, _ = title.astext().partition(": ")
    if role not in notebook_rules.SECTIONS:
        return
    identity = nodes.make_id(role)
    section["classes"].append(f"role-{identity}")
    if not colon or not isinstance(title[0], nodes.Text):
        return
    first = title[0].removeprefix(role + ": ")
    label = nodes.inline("", role + ": ", classes=["role"])
    title[:1] = [label, nodes.Text(capitalized(first))]
    document = section.document
    if identity not in document.ids:
        document.ids[identity] = section
        section["ids"].append(identity)


class Minutes(SphinxRole):
    """The time that pages take, by their names: ``{minutes}`batch_norm, folding```."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a place for it; all pages must have been read before."""
        return [nodes.inline(minutes=re.split(r",\s*", self.text))], []


def add_minutes(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Fill the places with the times of the pages."""
    folder = page.rpartition("/")[0]
    for place in doctree.findall(nodes.inline):
        if "minutes" in place:
            pages = [f"{folder}/{name}" for name in place.attributes.pop("minutes")]
            total = sum(app.env.metadata[name]["minutes"] for name in pages)
            place += nodes.Text(in_words(total))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("chapter_levels", {}, "env", dict)
    app.add_role("minutes", Minutes())
    app.connect("doctree-read", add_heads, priority=600)  # after cells are folded
    app.connect("doctree-resolved", add_minutes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
