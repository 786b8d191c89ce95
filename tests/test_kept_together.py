"""What belongs together stays on one line, and nothing else changes."""

from __future__ import annotations

import kept_together
import pytest
from docutils import nodes


@pytest.mark.parametrize(
    ("before", "tex", "after", "kept", "classes"),
    [
        ("as ", "x_i", ", and so on", "x_i,", ["kept", "tiny"]),
        ("as (with ", "x", "). So", "x).", ["kept", "tiny"]),
        ("the carried LN(", "c", ") and", "(c)", ["kept", "tiny"]),
        ("said “", "x", " and", "“x", ["kept", "tiny"]),
        ("in ", "x" * 11, ", and", "x" * 11 + ",", ["kept"]),
        ("as ", "x", " and", "", []),
        ("as (", "x" * 40, "), and", "", []),
    ],
)
def test_marks_stay_on_the_line_of_a_short_formula(
    before: str, tex: str, after: str, kept: str, classes: list[str]
) -> None:
    parts = [nodes.Text(before), nodes.math("", tex), nodes.Text(after)]
    line = nodes.paragraph("", "", *parts)
    page = nodes.section("", line)
    kept_together.keep_formulas(page)
    assert line.astext() == before + tex + after
    found = [(n.astext(), n["classes"]) for n in line.findall(nodes.inline)]
    assert found == ([(kept, classes)] if kept else [])
    assert all(child.parent is line for child in line)


def test_a_formula_alone_on_its_line_is_kept() -> None:
    line = nodes.paragraph("", "", nodes.math("", "x"))
    kept_together.keep_formulas(nodes.section("", line))
    assert not [*line.findall(nodes.inline)]


@pytest.mark.parametrize(
    ("tex", "classes"),
    [
        (r"(\sigma^2 + \epsilon)^{-3/2}", ["kept"]),
        (r"\gamma (x - m) / \sqrt{v + \epsilon}", ["kept"]),
        (
            r"\hat x_i = (x_i - \mu) / \sqrt{\sigma^2 + \epsilon}, \; i = 1, \dots",
            ["kept-if-wide"],
        ),
        ("x" * 44, ["kept-if-wide"]),
        ("x" * 45, []),
    ],
)
def test_a_short_formula_is_not_broken(tex: str, classes: list[str]) -> None:
    formula = nodes.math("", tex)
    kept_together.keep_formulas(nodes.paragraph("", "", formula))
    assert formula["classes"] == classes


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("in 65 504 steps", "in 65~504 steps"),
        ("1 234 567", "1~234~567"),
        ("2.8 % of", "2.8~% of"),
        ("with 4 seeds", "with 4 seeds"),
        ("in 5 12345 and 3 20", "in 5 12345 and 3 20"),
    ],
)
def test_a_number_stays_whole(text: str, kept: str) -> None:
    line = nodes.paragraph("", text)
    kept_together.keep_numbers(nodes.section("", line))
    assert line.astext() == kept.replace("~", "\N{NO-BREAK SPACE}")


def test_code_stays_as_it_is() -> None:
    line = nodes.paragraph("", "", nodes.literal("", "4 096"))
    kept_together.keep_numbers(nodes.section("", line))
    assert line.astext() == "4 096"


@pytest.mark.parametrize(("code", "is_kept"), [("--nnodes", True), ("a " * 20, False)])
def test_a_short_piece_of_code_is_not_broken(code: str, is_kept: bool) -> None:
    literal = nodes.literal("", code)
    kept_together.keep_code(nodes.paragraph("", "", literal))
    assert ("kept" in literal["classes"]) is is_kept


@pytest.mark.parametrize("text", ["seen (2026-11-27)", "2026-11-27, and 2026-12-01"])
def test_a_date_stays_whole(text: str) -> None:
    line = nodes.paragraph("", "", nodes.Text(text))
    kept_together.keep_dates(nodes.section("", line))
    assert line.astext() == text
    kept = [part.astext() for part in line.findall(nodes.inline)]
    assert kept == kept_together.DATE.findall(text)
    assert all(part["classes"] == ["kept-date"] for part in line.findall(nodes.inline))


def test_a_date_in_code_is_left_alone() -> None:
    line = nodes.paragraph("", "", nodes.literal("", "2026-11-27"))
    kept_together.keep_dates(nodes.section("", line))
    assert not [*line.findall(nodes.inline)]
