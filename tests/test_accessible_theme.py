"""Each barrier of the theme is mended, and nothing else changes."""

from __future__ import annotations

import pytest
from accessible_theme import mended

BARRIERS = {
    "a button's name lacks what stands on it": (
        '<button class="search-button-field x" title="a" aria-label="Search" id="b">',
        '<button class="search-button-field x" title="a" id="b">',
    ),
    "a side bar in no landmark": (
        '<div id="pst-primary-sidebar">',
        '<div role="region" aria-label="Book" id="pst-primary-sidebar">',
    ),
    "a part of the contents without a name": (
        '<summary><span class="toctree-toggle" role="presentation">',
        '<summary aria-label="Pages of this part">'
        '<span class="toctree-toggle" role="presentation">',
    ),
    "a role that was given up": (
        '<div class="citation" id="a" role="doc-biblioentry">',
        '<div class="citation" id="a">',
    ),
    "a list without items": (
        '<div role="list" class="citation-list">',
        '<div class="citation-list">',
    ),
    "an underlined blank": (
        'Solution to<a class="reference internal" href="#ex-a"> Exercise 1',
        'Solution to <a class="reference internal" href="#ex-a">Exercise 1',
    ),
    "a head without a word": ('<th class="head"><p></p></th>', "<td></td>"),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_a_barrier_is_mended(name: str) -> None:
    before, after = BARRIERS[name]
    assert mended(before) == after
    assert mended(after) == after


def test_a_head_with_a_word_stays() -> None:
    head = '<th class="head"><p>symbol</p></th>'
    assert mended(head) == head
