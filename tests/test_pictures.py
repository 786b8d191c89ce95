"""A stored picture is the drawn one, but for what machines and versions change."""

from __future__ import annotations

import base64
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from pictures import difference
from PIL import Image, ImageDraw

BOOK = Path(__file__).resolve().parent.parent / "book"
WITH_FIGURES = [p for p in sorted(BOOK.glob("*.ipynb")) if "image/png" in p.read_text()]


def png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def drawn(*curves: int, moved: int = 0, size: tuple[int, int] = (900, 500)) -> str:
    """Draw sines of some frequencies, moved by some pixels."""
    image = Image.new("RGB", size, "white")
    x = np.arange(40.0, size[0] - 40)
    for k in curves:
        y = 250 + 150 * np.sin(k * x / 100)
        points = np.stack([x, y], 1) + moved
        ImageDraw.Draw(image).line([*points.ravel()], fill="#0072b2", width=4)
    return png(image)


def test_the_same_picture_is_the_same_whether_opaque_is_said_or_not() -> None:
    image = Image.open(io.BytesIO(base64.b64decode(drawn(1, 2))))
    assert difference(drawn(1, 2), png(image.convert("RGBA"))) == ""


def test_what_moves_by_a_pixel_is_the_same() -> None:
    assert difference(drawn(1, 2, 3), drawn(1, 2, 3, moved=1)) == ""


@pytest.mark.parametrize("other", [(1, 2), (1, 2, 4), (3,)])
def test_another_picture_is_found(other: Any) -> None:
    assert "look otherwise" in difference(drawn(1, 2, 3), drawn(*other))


def test_another_size_is_found_even_where_curves_are_rough() -> None:
    one, other = drawn(1), drawn(1, size=(900, 540))
    expected = "the stored picture has 900x500 pixels, the drawn one 900x540"
    assert difference(one, other) == difference(one, other, is_rough=True) == expected


def test_rough_curves_may_run_elsewhere() -> None:
    assert difference(drawn(1), drawn(2), is_rough=True) == ""


@pytest.mark.parametrize("what", ["", "iVBORw0KGgo=", "no base64"])
def test_what_is_no_picture_is_told(what: str) -> None:
    assert difference(what, drawn(1)).startswith("the stored picture cannot be read: ")
    assert difference(drawn(1), what).startswith("the drawn picture cannot be read: ")


@pytest.mark.parametrize("path", WITH_FIGURES, ids=lambda path: path.stem)
def test_the_pictures_of_the_book_are_not_taken_for_their_neighbours(
    path: Path,
) -> None:
    shown = [
        output.data["image/png"]
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert all(difference(one, other) for one, other in pairwise(shown))
