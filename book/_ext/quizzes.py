"""Mark the options of a quiz, so that ``_static/quiz.js`` can say which is right.

A quiz is a section of that name. A paragraph asks, and each option behind it is a
folded box that says why it is right or not. The text of the right one begins with one
of `RIGHT`. Without the script, the boxes are boxes.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

TITLE = "Quiz"
RIGHT = ("Right", "Yes")  # what the text of a right option begins with
OPTION = "quiz-option"
IS_RIGHT = "quiz-right"


def is_right(text: str) -> bool:
    """Return whether the text of an option says that it is the right one."""
    return text.lstrip().startswith(RIGHT)


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Give the options of the quizzes of a page their classes."""
    for section in doctree.findall(nodes.section):
        if section[0].astext() != TITLE:
            continue
        for box in section.findall(nodes.container):
            if box.get("design_component") == "dropdown":
                text = "\n".join(child.astext() for child in box.children[1:])
                right = [IS_RIGHT] if is_right(text) else []
                box["container_classes"] = [*box["container_classes"], OPTION, *right]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-read", mark)
    app.add_js_file("quiz.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
