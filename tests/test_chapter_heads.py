"""Pages tell how long they take, and sections which part they play."""

from __future__ import annotations

import chapter_heads as heads
import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document


def page(*children: nodes.Node) -> nodes.document:
    document = new_document("a page", get_default_settings())
    document += nodes.section("", nodes.title("", "Title"), *children)
    return document


def test_a_page_takes_the_longer_the_more_of_it_is_in_view() -> None:
    prose = nodes.paragraph("", "word " * 5 * heads.WORDS)
    code = nodes.literal_block("", "line\n" * 2 * heads.LINES)
    assert heads.minutes_of(page(prose, code)) == pytest.approx(7, abs=0.01)
    folded = nodes.container("", code, nb_element="cell_code", hide_mode="input")
    box = nodes.container("", prose.deepcopy(), classes=["sd-dropdown"])
    assert heads.minutes_of(page(prose, folded, box)) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(1, "5 minutes"), (33, "35 minutes"), (95, "95 minutes"), (140, "2.5 hours")],
)
def test_times_are_round(minutes: float, words: str) -> None:
    assert heads.in_words(minutes) == words


def section(title: str) -> nodes.section:
    document = page(nodes.section("", nodes.title("", title), ids=["its-name"]))
    return list(document.findall(nodes.section))[-1]


def test_the_part_that_a_section_plays_is_a_label_and_an_address() -> None:
    found = section("Derivation: three terms")
    heads.name_role(found)
    label, name = found[0].children
    assert label["classes"] == ["role"]
    assert (label.astext(), name.astext()) == ("Derivation: ", "Three terms")
    assert found["ids"] == ["its-name", "derivation"]
    assert found["classes"] == ["role-derivation"]


def test_a_greek_letter_at_the_head_of_a_name_is_a_symbol_and_stays() -> None:
    found = section("Experiment: ε inside or outside the root")
    heads.name_role(found)
    assert found[0][1].astext() == "ε inside or outside the root"


@pytest.mark.parametrize("title", ["Momentum", "Momentum: two meanings", "Checks"])
def test_other_titles_stay(title: str) -> None:
    found = section(title)
    heads.name_role(found)
    assert [child.astext() for child in found[0]] == [title]
    assert found["ids"] == ["its-name"]
