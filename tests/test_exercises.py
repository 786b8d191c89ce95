"""Answers to exercises: the right one passes, each slip is named, bad input is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import exercise_help
import numpy as np
import pytest
import torch
import yaml
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

from normbook import exercises
from normbook.exercises.answers import Choice, Exercise, Function, Numbers, Sizes

BOOK = Path(__file__).parents[1] / "book"
TOC = Path(__file__).parents[1] / "_toc.yml"
ALL: dict[str, Exercise] = exercises._EXERCISES
CHECKED = [name for name in exercises.names() if ALL[name].answer is not None]


def test_every_exercise_of_the_book_has_hints_in_its_order() -> None:
    found = []
    for part in yaml.safe_load(TOC.read_text("utf-8"))["parts"]:
        for chapter in part["chapters"]:
            path = BOOK.parent / f"{chapter['file']}.ipynb"
            cells = (
                json.loads(path.read_text("utf-8"))["cells"] if path.exists() else []
            )
            for cell in cells:
                text = "".join(cell["source"])
                found += re.findall(r"^:label: ex-([\w-]+)$", text, re.M)
    assert exercises.names() == found
    assert all(1 <= len(ALL[name].hints) <= 3 for name in found)


def right_and_slips(name: str) -> tuple[Any, list[tuple[Any, str]]]:
    answer = ALL[name].answer
    if isinstance(answer, Choice):
        return answer.right, list(answer.others.items())
    if isinstance(answer, Sizes):
        return set(answer.right), [(set(e), why) for e, _, why in answer.slips]
    assert isinstance(answer, Function | Numbers)
    return answer.right, list(answer.slips)


@pytest.mark.parametrize("name", CHECKED)
def test_the_right_answer_is_right_and_says_why(name: str) -> None:
    right, _ = right_and_slips(name)
    verdict = exercises.check(name, right)
    assert verdict
    assert str(verdict) == f"Right. {ALL[name].answer.why}"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [(name, *slip) for name in CHECKED for slip in right_and_slips(name)[1]],
)
def test_a_slip_is_named(name: str, given: Any, why: str) -> None:
    verdict = exercises.check(name, given)
    assert not verdict
    assert verdict.text == why


@pytest.mark.parametrize("name", CHECKED)
def test_another_wrong_answer_gets_the_first_hint(name: str) -> None:
    answer = ALL[name].answer
    if isinstance(answer, Choice):
        pytest.skip("every other word is refused")
    right, _ = right_and_slips(name)
    given: Any
    if isinstance(answer, Function):
        given = lambda *values: 1.37 * np.asarray(right(*values)) + 0.01  # noqa: E731
    elif isinstance(answer, Sizes):
        given = {7919}
    else:
        given = 1.37 * np.asarray(right)
    verdict = exercises.check(name, given)
    assert not verdict
    assert verdict.text == f"A hint: {ALL[name].hints[0]}"


def raises(n: int) -> float:
    raise ZeroDivisionError("a hole")


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("bn-bund", 1, "near it are bn-bound"),
        (None, 1, "exercises.names"),
        ("bn-gain", 0.2, "cannot be checked"),
        ("bn-bound", raises, "raised ZeroDivisionError: a hole"),
        ("bn-bound", lambda n: float("nan"), "finite"),
        ("bn-bound", lambda n: "much", "finite"),
        ("why-fan", 0.005, "another shape"),
        ("why-fan", (1, float("inf")), "finite"),
        ("why-fan", None, "two variances"),
        ("bn-bug-axes", "x", "one of 'mu', 'var', 'y'"),
        ("bn-last", ["two"], "batch sizes"),
        ("bn-last", [2.5, 4], "whole"),
        ("tr-coin", torch.ones((), requires_grad=True), "finite"),
        ("lstm-carousel", lambda: 1, "raised TypeError"),
    ],
)
def test_bad_input_is_told_with_the_rule(name: Any, given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        exercises.check(name, given)


def test_a_number_in_place_of_a_function_is_told_how_to_write_one() -> None:
    with pytest.raises(TypeError, match="write lambda n:"):
        exercises.check("bn-bound", 3)


def test_a_function_may_write_into_its_arguments() -> None:
    def by_columns(W: Any) -> Any:
        W -= W.mean(0)
        return W

    assert exercises.check("lng-centring", by_columns)


def test_hints_come_in_steps_and_end() -> None:
    hints = [exercises.hint("bn-bound", step) for step in (1, 2, 3)]
    assert len(set(hints)) == 3
    with pytest.raises(ValueError, match="from 1 to 3"):
        exercises.hint("bn-bound", 4)
    with pytest.raises(ValueError, match="near it are"):
        exercises.hint("bn-bond")


# An exercise, as the pages have it.
exercise_enumerable: Any = type("exercise_enumerable", (nodes.Element,), {})


def test_a_page_has_the_hints_and_the_call() -> None:
    document = new_document("a page", get_default_settings())
    document += [
        exercise_enumerable("", label="ex-bn-bound"),
        exercise_enumerable("", label="ex-not-there"),
        nodes.section("", label="ex-bn-bound"),
    ]
    exercise_help.add_help(None, document)  # type: ignore[arg-type]
    helped, without, section = document.children
    (html,) = helped.children
    assert html.astext().count("<summary>") == 3
    assert 'check("bn-bound", ...)</code> with a function of n.' in html.astext()
    assert not without.children
    assert not section.children
