"""Fold the code that a reader can do without, and say in a line what is folded.

A figure says what it shows, an experiment what it measured, a check that it held; their
code is one click away. What derives a formula or shows it at work is not folded. A cell
keeps its code in view with the tag ``show-input``. ``_static/folds.js`` opens all.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode, depart_HideCellInput
from sphinx.application import Sphinx

FIGURE = "Code of the figure"
SETUP = "Set-up"
RUN = "Code of the experiment"
CHECK = "Code of the check"
CODE = "Code"
IMPORTS = "Imports"
# Sections whose numbers and figures count, not how they were computed.
RUNS = ("The problem, seen", "Experiment")
FORMULA = ast.FunctionDef | ast.ClassDef


def label(code: str, section: str, has_picture: bool, has_output: bool) -> str | None:
    """Return what is written on a fold, or None where the code stays in view."""
    body: list[ast.stmt] = []
    with suppress(SyntaxError):  # a magic command
        body = ast.parse(code).body
    if body and all(isinstance(s, ast.Import | ast.ImportFrom) for s in body):
        return IMPORTS
    role = section.partition(":")[0]
    if role == "Setup":
        return SETUP
    if role == "Exercises":  # solutions are folded as a whole
        return None
    if has_picture:
        return FIGURE
    if role in RUNS:
        return RUN
    if any(isinstance(statement, FORMULA) for statement in body):
        return None
    is_assert = any(isinstance(node, ast.Assert) for s in body for node in ast.walk(s))
    is_check = role == "Checks" or (is_assert and not has_output)
    return CHECK if is_check else None


def section_of(node: nodes.Node) -> str:
    """Return the title of the section of a page that a node stands in."""
    sections = []
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.section):
            sections.append(node)
    return str(sections[-2][0].astext()) if len(sections) > 1 else ""


def fold(app: Sphinx, doctree: nodes.document) -> None:
    """Mark the cells of a page that are folded, with what is written on the fold."""
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") != "cell_code" or "tag_show-input" in cell["classes"]:
            continue
        code = cell.next_node(nodes.literal_block)
        if cell.children[0].get("nb_element") != "cell_code_source" or code is None:
            continue
        has_picture = cell.next_node(nodes.image) is not None
        text = label(code.astext(), section_of(cell), has_picture, len(cell) > 1)
        if text is None and cell.get("hide_mode") == "input":
            text = CODE
        if text is not None:
            cell["hide_mode"] = "input"
            cell["prompt_show"] = cell["prompt_hide"] = text


def begin(self: Any, node: HideCodeCellNode) -> None:
    """Write the beginning of a fold; its name is what stands on it."""
    self.body.append(
        f'<details class="hide {" ".join(node["classes"])}">'
        f"<summary>{self.encode(node['prompt_show'])}</summary>\n"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    html = begin, depart_HideCellInput
    app.add_node(HideCodeCellNode, override=True, html=html)
    app.connect("doctree-read", fold)
    app.add_js_file("folds.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
