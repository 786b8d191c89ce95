"""Under an exercise: its hints, folded one by one, and how to have an answer checked.

What they say stands in `normbook.exercises`, so that a page and the package agree.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from normbook import exercises

# W_h is a letter with an index; norm_g is a name, and an answer is typed as it stands.
INDEX = re.compile(r"(?<!\w)'[^']*'|\b(\w)_(\w)\b")


def shown(text: str) -> str:
    """Return the HTML of a text, with an index where one is meant."""

    def lowered(found: re.Match[str]) -> str:
        return f"{found[1]}<sub>{found[2]}</sub>" if found[1] else found[0]

    return INDEX.sub(lowered, escape(text, quote=False))


def help_for(name: str) -> str:
    """Return the HTML for one exercise."""
    exercise = exercises._EXERCISES[name]
    folds = "".join(
        f'<details class="hint"><summary>Hint {k}</summary>'
        f"<p>{shown(text)}</p></details>"
        for k, text in enumerate(exercise.hints, start=1)
    )
    if exercise.answer is None:
        return folds
    call = escape(f'exercises.check("{name}", ...)', quote=False)
    form = shown(exercise.answer.form)
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
