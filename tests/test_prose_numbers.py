"""The decimals of prose are those of the outputs that they repeat."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import prose_numbers
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from prose_numbers import agrees, mark, numbers_hold, printed, written

from normbook import drawn

BOOK = Path(__file__).resolve().parent.parent / "book"
NOTEBOOKS = sorted(BOOK.glob("**/*.ipynb"))


def code(text: str) -> Any:
    return new_code_cell("x", outputs=[new_output("stream", text=text)])


@pytest.fixture
def notebook() -> Any:
    cells = [
        code("loss 2.413 and 7.8e-05\n"),
        code("other 0.551"),
        new_markdown_cell("It ends at 2.4, with an error of 7.8e-5 at rate 0.15."),
        code("later 0.62"),
    ]
    made = new_notebook(cells=cells)
    mark(made)
    return made


def test_prose_is_linked_to_what_prints_it(notebook: Any) -> None:
    assert notebook.cells[2].metadata["numbers"] == {
        "2.4": "-2 2.413",
        "7.8e-5": "-2 7.8e-05",
        "0.15": "",
    }
    assert [*numbers_hold(notebook)] == []


@pytest.mark.parametrize(
    ("cell", "old", "new", "told"),
    [
        (0, "2.413", "2.481", "2.4 repeats 2.413, which cell 0 has to print"),
        (0, "7.8e-05", "7.8e-06", "7.8e-5 repeats 7.8e-05"),
        (2, "2.4,", "2.5,", "these came or went: 2.4, 2.5; run"),
        (2, "0.15", "0.16", "these came or went: 0.15, 0.16; run"),
    ],
)
def test_a_change_is_told(
    cell: int, old: str, new: str, told: str, notebook: Any
) -> None:
    if cell == 0:
        output = notebook.cells[0].outputs[0]
        output.text = output.text.replace(old, new)
    else:
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)
    (complaint,) = numbers_hold(notebook)
    assert told in complaint
    if cell == 0:  # marking does not hide that the sentence is wrong now
        mark(notebook)
        assert [*numbers_hold(notebook)] == [complaint]


def test_other_figures_behind_and_cells_between_are_found_again(notebook: Any) -> None:
    notebook.cells[0].outputs[0].text = "loss 2.409 and 7.8e-05"
    notebook.cells.insert(1, code("nothing"))
    assert len([*numbers_hold(notebook)]) == 2
    mark(notebook)
    links = notebook.cells[3].metadata["numbers"]
    assert links["7.8e-5"] == "-3 7.8e-05"
    assert links["2.4"] == "-2 2.413"  # both at once are left to people
    notebook.cells.pop(1)
    mark(notebook)
    assert notebook.cells[2].metadata["numbers"]["2.4"] == "-2 2.409"
    assert [*numbers_hold(notebook)] == []


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("of 0.37 and .42, or 1.2e-5", ["0.37", ".42", "1.2e-5"]),
        ("$0.37$, `0.38`, [x](0.39) and {eq}`eq-0.40`", []),
        ("version 2.13.0, 3 of 0.1", []),
        ("```python\nx = 0.37\n```\n0.41", ["0.41"]),
        ("0.37 is 0.37", ["0.37"]),
        ("12e-5 to -0.25", ["12e-5"]),
    ],
)
def test_decimals_of_prose(source: str, numbers: list[str]) -> None:
    assert written(new_markdown_cell(source)) == numbers


@pytest.fixture
def figure() -> Any:
    """Return a notebook of a figure that draws 0.328 and whose caption says 0.33."""
    record = ["x\tstep, linear\tlimits 0 1", "line\t#000000, -\ty 5000\tat -7.25 0.328"]
    cell = new_code_cell(
        "draw",
        metadata={
            "mystnb": {
                "figure": {"caption": "Ends at 0.33, after 0.55."},
                "image": {"alt": "A line from −7.2 to 0.33, `0.99`."},
            }
        },
        outputs=[new_output("display_data", {drawn.MIME: record})],
    )
    made = new_notebook(cells=[cell, new_markdown_cell("It is 0.33.")])
    mark(made)
    return made


def test_a_caption_is_linked_to_what_its_figure_draws(figure: Any) -> None:
    links = figure.cells[0].metadata["numbers"]
    assert links == {"0.33": "0 0.328", "0.55": "", "7.2": "0 7.25"}
    assert figure.cells[1].metadata["numbers"] == {"0.33": ""}  # prose is not
    assert [*numbers_hold(figure)] == []
    figure.cells[0].outputs[0].data[drawn.MIME][1] = "line\t#000000, -\tat 0.4 7.25"
    (complaint,) = numbers_hold(figure)
    assert "0.33 repeats 0.328, which cell 0 has to print" in complaint


def test_a_caption_may_not_say_otherwise(figure: Any) -> None:
    figure.cells[0].metadata["mystnb"]["figure"]["caption"] = (
        "Ends at 0.34, after 0.55."
    )
    figure.cells[0].metadata["mystnb"]["image"]["alt"] = "From 7.2."
    (complaint,) = numbers_hold(figure)
    assert "came or went: 0.33, 0.34" in complaint


def test_numbers_of_outputs() -> None:
    cell = code("a=0.5 [1., -2.5e-3] 12.5% v2.13.0 x1.5")
    assert printed(cell) == ["0.5", "1.", "2.5e-3", "12.5"]
    cell = new_code_cell(
        outputs=[new_output("execute_result", {"text/plain": "array([0.25])"})]
    )
    assert printed(cell) == ["0.25"]


@pytest.mark.parametrize(
    ("prose", "output", "same"),
    [
        ("2.4", "2.449", True),
        ("2.4", "2.451", False),
        ("2.4", "2.350", True),
        ("2.4e-3", "0.00241", True),
        (".40", "0.41", False),
        ("0.40", "0.4", True),
    ],
)
def test_prose_may_round(prose: str, output: str, same: bool) -> None:
    assert agrees(prose, output) is same


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_numbers_of_the_book_hold(path: Path) -> None:
    assert [*numbers_hold(nbformat.read(path, as_version=4))] == []


def test_every_output_that_changes_is_noticed() -> None:
    """Each number that prose repeats is printed otherwise, one at a time."""
    tried, unseen = 0, []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        for position, cell in enumerate(notebook.cells):
            for number, text in cell.metadata.get(prose_numbers.KEY, {}).items():
                if not (link := prose_numbers.link_of(text)):
                    continue
                tried += 1
                outputs = notebook.cells[position + link.away].outputs
                kept = deepcopy(outputs)
                for output in outputs:
                    for part in (output, output.get("data", {})):
                        for key in {"text", "text/plain"} & part.keys():
                            part[key] = part[key].replace(link.printed, "99e9")
                    if record := output.get("data", {}).get(drawn.MIME):
                        record[:] = [r.replace(link.printed, "99e9") for r in record]
                if prose_numbers.holds(notebook, position, number, link):
                    unseen.append((path.stem, position, number))
                notebook.cells[position + link.away].outputs = kept
    assert tried > 0
    assert unseen == []
