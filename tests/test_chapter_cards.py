"""A card shows the first figure of its chapter, small."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import chapter_cards
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image


def figure(colour: str, size: tuple[int, int]) -> str:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def notebook(path: Path, *pictures: str) -> Path:
    cells = [new_markdown_cell("text"), new_code_cell("1")]
    for png in pictures:
        output = new_output("display_data", {"image/png": png})
        cells.append(new_code_cell("plot()", outputs=[output]))
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_the_first_figure_is_taken_and_made_small(tmp_path: Path) -> None:
    pictures = figure("red", (1320, 330)), figure("blue", (10, 10))
    image = chapter_cards.first_figure(notebook(tmp_path / "a.ipynb", *pictures))
    assert image.size == (440, 110)
    assert image.getpixel((0, 0)) == (255, 0, 0)


def test_a_chapter_without_a_figure_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs a figure.* a\.ipynb has none"):
        chapter_cards.first_figure(notebook(tmp_path / "a.ipynb"))
