"""The gallery of failures is found by its symptoms, and every entry of it has run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
CELLS = nbformat.read(ROOT / "book/train_and_eval.ipynb", as_version=4).cells
ENTRY = re.compile(r"(?m)^\((gal-[a-z-]+)\)=\n### +\S.*$")
ROW = re.compile(r"(?m)^\| \{ref\}`(gal-[a-z-]+)` \| +\S.* \|$")


def entries(cells: Any) -> dict[str, list[Any]]:
    """Return the code cells of each entry by its label, up to the next heading."""
    found: dict[str, list[Any]] = {}
    label = None
    for cell in cells:
        if cell.cell_type == "markdown":
            if re.search(r"(?m)^##+ ", cell.source):
                starts = ENTRY.findall(cell.source)
                label = starts[-1] if starts else None
                found.update((start, []) for start in starts)
        elif label is not None:
            found[label].append(cell)
    return found


def index(cells: Any) -> list[str]:
    """Return the labels that the table of symptoms links to, in its order."""
    return [m for cell in cells for m in ROW.findall(cell.source)]


def test_the_gallery_has_entries() -> None:
    assert entries(CELLS), "without entries the tests below check nothing"


def test_every_entry_stands_in_the_index_once_and_in_order() -> None:
    assert index(CELLS) == list(entries(CELLS))


def test_every_label_of_the_gallery_heads_an_entry() -> None:
    text = "\n".join(c.source for c in CELLS if c.cell_type == "markdown")
    assert re.findall(r"(?m)^\((gal-[\w-]+)\)=", text) == list(entries(CELLS))


@pytest.mark.parametrize("label", entries(CELLS))
def test_an_entry_shows_what_it_says(label: str) -> None:
    assert any(cell.outputs for cell in entries(CELLS)[label])


@pytest.mark.parametrize("label", entries(CELLS))
def test_an_entry_has_a_test_that_fails_on_the_bad_code(label: str) -> None:
    code = "\n".join(cell.source for cell in entries(CELLS)[label])
    assert re.search(r"(?m)^ *assert not |\.failed\b", code)


def test_an_entry_without_output_is_noticed() -> None:
    text = nbformat.v4.new_markdown_cell("(gal-x)=\n### It fails")
    code = nbformat.v4.new_code_cell("x = 1")
    (cell,) = entries([text, code])["gal-x"]
    assert not cell.outputs


def test_the_table_carries_the_class_that_the_filter_looks_for() -> None:
    script = (ROOT / "book/_static/symptom_index.js").read_text(encoding="utf-8")
    assert "table.symptom-index" in script
    assert any(":class: symptom-index" in cell.source for cell in CELLS)
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    assert '"symptom_index.js"' in config
