"""Every question of a quiz has one right option, and a page marks it for the script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import nbformat
import pytest
import quizzes
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from sphinx.application import Sphinx

BOOK = Path(__file__).parents[1] / "book"
HEADING = f"### {quizzes.TITLE}\n"
BOX = re.compile(r"^:::+\{dropdown\} [^\n]+\n(?P<text>.*?)\n:::+$", re.M | re.S)
QUESTION = re.compile(r"^\*\*", re.M)


def quiz(path: Path) -> str:
    """Return the text of the quiz of a notebook, or nothing."""
    cells = nbformat.read(path, as_version=4).cells
    text = "\n\n".join(c.source for c in cells if c.cell_type == "markdown")
    return text.partition(HEADING)[2]


WITH_QUIZ = {p.stem: text for p in sorted(BOOK.glob("*.ipynb")) if (text := quiz(p))}


@pytest.mark.parametrize("name", WITH_QUIZ)
def test_every_question_has_options_and_one_of_them_is_right(name: str) -> None:
    asked = QUESTION.split(WITH_QUIZ[name])[1:]
    assert asked
    for question in asked:
        verdicts = [quizzes.is_right(box["text"]) for box in BOX.finditer(question)]
        assert len(verdicts) > 1, question
        assert verdicts.count(True) == 1, question


def places_of_right_options(options: int) -> list[int]:
    """Return where the right one stands in each question with so many options."""
    found = []
    for text in WITH_QUIZ.values():
        for question in QUESTION.split(text)[1:]:
            verdicts = [quizzes.is_right(box["text"]) for box in BOX.finditer(question)]
            if len(verdicts) == options:
                found.append(verdicts.index(True))
    return found


@pytest.mark.parametrize("options", [2, 3])
def test_the_place_of_an_option_does_not_tell_that_it_is_right(options: int) -> None:
    places = places_of_right_options(options)
    assert len(places) > 10
    for place in range(options):
        assert 0.7 < options * places.count(place) / len(places) < 1.4, place


def test_statements_to_be_judged_are_true_in_part_of_the_cases() -> None:
    judged = {True: 0, False: 0}
    for text in WITH_QUIZ.values():
        for question in QUESTION.split(text)[1:]:
            for box in BOX.finditer(question):
                name = box[0].partition("} ")[2].partition("\n")[0]
                if name in ("True", "False") and quizzes.is_right(box["text"]):
                    judged[name == "True"] += 1
    assert min(judged.values()) >= 2


def test_chapters_have_a_quiz() -> None:
    assert len(WITH_QUIZ) > 20


def page(title: str) -> nodes.document:
    """Return a page with a section of two boxes, of which the first is right."""
    document = new_document("a page", get_default_settings())
    section = nodes.section("", nodes.title(text=title))
    for text in ("Right: it is so.", "No. Right would be another."):
        box = nodes.container("", design_component="dropdown", container_classes=["a"])
        box += [nodes.rubric(text="Right or not"), nodes.paragraph(text=text)]
        section += box
    document += section
    return document


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Quiz", [["a", quizzes.OPTION, quizzes.IS_RIGHT], ["a", quizzes.OPTION]]),
        ("Exercises", [["a"], ["a"]]),
    ],
)
def test_options_are_marked_in_a_quiz_alone(
    title: str, expected: list[list[str]]
) -> None:
    document = page(title)
    quizzes.mark(cast(Sphinx, None), document)
    boxes = document.findall(nodes.container)
    assert [box["container_classes"] for box in boxes] == expected
