"""Each barrier of the theme is mended, and nothing else changes."""

from __future__ import annotations

import pytest
from accessible_theme import mended

BARRIERS = {
    "a button's name lacks what stands on it": (
        '<button class="btn search-button-field x" aria-label="Search" title="a">',
        '<button class="btn search-button-field x" title="a">',
    ),
    "a side bar in no landmark": (
        '<div class="bd-sidebar-primary bd-sidebar">',
        '<div role="region" aria-label="Book" class="bd-sidebar-primary bd-sidebar">',
    ),
    "a role that was given up": (
        '<div class="citation" id="a" role="doc-biblioentry">',
        '<div class="citation" id="a">',
    ),
    "a list without items": (
        '<div role="list" class="citation-list">',
        '<div class="citation-list">',
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
