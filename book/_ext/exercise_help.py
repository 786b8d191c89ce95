"""Under an exercise: its hints, folded one by one, and how to have an answer checked.

What they say stands in `normbook.exercises`, so that a page and the package agree.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from normbook import exercises


def help_for(name: str) -> str:
    """Return the HTML for one exercise."""
    exercise = exercises._EXERCISES[name]
    folds = "".join(
        f'<details class="hint"><summary>Hint {k}</summary>'
        f"<p>{escape(text)}</p></details>"
        for k, text in enumerate(exercise.hints, start=1)
    )
    if exercise.answer is None:
        return folds
    call = escape(f'exercises.check("{name}", ...)', quote=False)
    form = escape(exercise.answer.form)
    how = f"In the notebook, check it: <code>{call}</code> with {form}."
    return f'{folds}<p class="check">{how}</p>'


def add_help(app: Sphinx, doctree: nodes.document) -> None:
    """Add the help at the end of each exercise that has some."""
    for box in doctree.findall(nodes.Element):
        name = str(box.get("label") or "").removeprefix("ex-")
        if type(box).__name__.startswith("exercise") and name in exercises.names():
            box += nodes.raw("", help_for(name), format="html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-read", add_help)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
