"""A column of words is told from columns of marks and numbers."""

from __future__ import annotations

import column_of_words
import pytest
from docutils import nodes

LONG = "a sentence that is longer than that"


def table(rows: list[list[str]]) -> nodes.table:
    """Return a table; what begins with a dollar is a formula."""

    def cell(text: str) -> nodes.entry:
        is_math = text.startswith("$")
        inner = nodes.math("", text[1:]) if is_math else nodes.Text(text)
        return nodes.entry("", nodes.paragraph("", "", inner))

    lines = (nodes.row("", *map(cell, row)) for row in rows)
    group = nodes.tgroup("", nodes.tbody("", *lines), cols=len(rows[0]))
    return nodes.table("", group)


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        ([["a", LONG, "†"], ["b", "short", "‡"]], 1),
        ([["a", "b", "c"], ["d", "e", LONG]], 2),
        ([[LONG, "1"], ["b", "2"]], 0),
        ([["1", "2", "3"]], None),
        ([[LONG]], None),
        ([["a", r"$\operatorname{diag}(\gamma)\, \overline{\hat x^{2}}"]], None),
        ([["a", "$" + "x" * 40], ["b", LONG]], 1),
    ],
)
def test_the_longest_cell_marks_its_column(
    rows: list[list[str]], marked: int | None
) -> None:
    page = nodes.section("", table(rows))
    column_of_words.mark_words(page)
    for row in page.findall(nodes.row):
        found = [k for k, cell in enumerate(row.children) if "words" in cell["classes"]]
        assert found == ([] if marked is None else [marked])


def test_a_head_is_not_marked() -> None:
    page = table([["a", LONG]])
    head = nodes.row("", nodes.entry("", nodes.Text(LONG)), nodes.entry())
    page.next_node(nodes.tgroup).insert(0, nodes.thead("", head))
    column_of_words.mark_words(page)
    assert all("words" not in cell["classes"] for cell in head.findall(nodes.entry))
