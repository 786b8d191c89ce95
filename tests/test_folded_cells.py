"""Code that a reader can do without is folded, and the fold says what it holds."""

from __future__ import annotations

import folded_cells as folds
import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

FORMULA = "def f(x):\n    return x\n\n\nassert f(1) == 1"

# The code, its section, whether it draws, whether it prints, and what the fold says.
CELLS: dict[str, tuple[str, str, bool, bool, str | None]] = {
    "imports": ("import a\nfrom b import c", "Setup", False, False, folds.IMPORTS),
    "set-up": ("dev = pick()", "Setup", False, False, folds.SETUP),
    "a figure": ("plot(x)\nplt.show()", "Derivation", True, True, folds.FIGURE),
    "an experiment": ("train()", "Experiment: rates", False, True, folds.RUN),
    "a check": ("assert f(1) == 1", "Checks", False, False, folds.CHECK),
    "a check after sums": ("y = 2\nassert y == 2", "Checks", False, False, folds.CHECK),
    "a check that prints": ("assert y\ny", "Checks", False, True, folds.CHECK),
    "a formula with a check": ("assert f(y)\ny", "By hand", False, True, None),
    "a formula": (FORMULA, "By hand", False, False, None),
    "numbers of it": ("f(2)", "By hand", False, True, None),
    "a solution": ("plot(x)", "Exercises", True, True, None),
    "a magic command": ("%load a", "Derivation", False, False, None),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_fold_says_what_it_holds(name: str) -> None:
    code, section, has_picture, has_output, expected = CELLS[name]
    assert folds.label(code, section, has_picture, has_output) == expected


def page(**attributes: object) -> nodes.document:
    """Return a page with a cell of an experiment."""
    document = new_document("a page", get_default_settings())
    cell = nodes.container("", nb_element="cell_code", **attributes)
    code = nodes.container("", nb_element="cell_code_source")
    code += nodes.literal_block("train()", "train()")
    cell += code
    section = nodes.section("", nodes.title("", "Experiment"), cell)
    document += nodes.section("", nodes.title("", "A chapter"), section)
    return document


def test_the_section_of_a_cell_counts() -> None:
    document = page()
    folds.fold(None, document)  # type: ignore[arg-type]
    cell = next(document.findall(nodes.container))
    assert (cell["hide_mode"], cell["prompt_show"]) == ("input", folds.RUN)


def test_an_author_can_keep_code_in_view() -> None:
    document = page(classes=["tag_show-input"])
    folds.fold(None, document)  # type: ignore[arg-type]
    assert "hide_mode" not in next(document.findall(nodes.container))
