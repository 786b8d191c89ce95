"""Keep on one line what belongs together: short formulas and code, numbers, dates.

A reader stumbles over a line that begins with a comma, and over 65 | 504.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

MARKS = re.compile(r"[,.;:!?)\]’]+")
OPENINGS = re.compile(r"[(\[‘“]+$")
WORD = re.compile(r"\\[a-zA-Z]+|\\.")  # of a formula's source, drawn as one sign
UNSEEN = re.compile(r"[{}^_&\s]")
TINY = 10  # signs: a cell of a table on a phone holds them
SHORT = 22  # signs: half the width of a phone
OF_A_LINE = 44  # more than half of a line where the window is wider
INSIDE = re.compile(r"(?<=\d) (?=\d{3}(?!\d)|%)")  # of a number or before its unit
DATE = re.compile(r"\b(\d{4}-\d\d-\d\d)\b")  # a line may end behind a hyphen
AS_THEY_ARE = nodes.literal | nodes.FixedTextElement | nodes.math | nodes.raw


def signs(tex: str) -> int:
    """Return how many signs a formula of a line is drawn with, about."""
    return len(UNSEEN.sub("", WORD.sub("x", tex)))


def keep_formulas(doctree: nodes.document) -> None:
    """Keep a short formula in one piece, and the marks around it on its line.

    One that is longer than that is kept where the window is wide. A table on a phone
    breaks what is short, and not what is tiny.
    """
    for formula in [*doctree.findall(nodes.math)]:
        size = signs(formula.astext())
        if size > SHORT:
            if size <= OF_A_LINE:
                formula["classes"].append("kept-if-wide")
            continue
        formula["classes"].append("kept")
        line = formula.parent
        place = line.index(formula)
        before = line[place - 1] if place else nodes.Text("")
        after = line[place + 1] if place + 1 < len(line) else nodes.Text("")
        opening = OPENINGS.search(before) if isinstance(before, nodes.Text) else None
        mark = MARKS.match(after) if isinstance(after, nodes.Text) else None
        if not (opening or mark):
            continue
        kept = nodes.inline("", "", classes=["kept", "tiny"][: 1 + (size <= TINY)])
        line[place] = kept
        if opening:
            line[place - 1] = nodes.Text(before[: opening.start()])
            kept += nodes.Text(opening[0])
        kept += formula
        if mark:
            line[place + 1] = nodes.Text(after[mark.end() :])
            kept += nodes.Text(mark[0])


def keep_numbers(doctree: nodes.document) -> None:
    """Keep the thousands of a number, and its per cent, on its line."""
    for text in [*doctree.findall(nodes.Text)]:
        if not isinstance(text.parent, AS_THEY_ARE) and INSIDE.search(text):
            text.parent.replace(
                text, nodes.Text(INSIDE.sub("\N{NO-BREAK SPACE}", text))
            )


def keep_code(doctree: nodes.document) -> None:
    """Keep a short piece of code in one."""
    for code in doctree.findall(nodes.literal):
        if len(code.astext()) <= SHORT:
            code["classes"].append("kept")


def keep_dates(doctree: nodes.document) -> None:
    """Keep a date on its line."""
    for text in [*doctree.findall(nodes.Text)]:
        if not isinstance(text.parent, AS_THEY_ARE) and DATE.search(text):
            parts = [
                nodes.inline("", part, classes=["kept-date"])
                if DATE.fullmatch(part)
                else nodes.Text(part)
                for part in DATE.split(text)
                if part
            ]
            text.parent.replace(text, parts)


def keep(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Keep together what is on a page."""
    keep_formulas(doctree)
    keep_code(doctree)
    keep_numbers(doctree)
    keep_dates(doctree)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-resolved", keep)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
