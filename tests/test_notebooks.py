"""Every notebook of the book keeps the rules of `tools/notebook_rules.py`."""

from pathlib import Path

import nbformat
import notebook_rules
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "book").glob("**/*.ipynb"))
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
# The chapters keep more rules than the pages under them and those of the reference.
REFERENCE = {
    Path(page).name
    for part in TOC["parts"]
    for page in (
        notebook_rules.pages(part)
        if part["caption"] == "Reference"
        else notebook_rules.pages_under_chapters(part)
    )
}


def test_the_book_has_notebooks() -> None:
    assert NOTEBOOKS, "without notebooks the rules below check nothing"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_the_rules(path: Path) -> None:
    is_reference = path.stem in REFERENCE
    rules = (
        notebook_rules.REFERENCE_RULES if is_reference else notebook_rules.CHAPTER_RULES
    )
    assert notebook_rules.violations(path, rules) == []


def test_pages_with_fewer_rules_are_found() -> None:
    assert {"notation", "sources_kim", "failures_modes"} <= REFERENCE
    assert REFERENCE.isdisjoint({"train_and_eval", "batch_norm"})


def test_every_notebook_is_a_chapter() -> None:
    listed = {page for part in TOC["parts"] for page in notebook_rules.pages(part)}
    found = {path.relative_to(ROOT).with_suffix("").as_posix() for path in NOTEBOOKS}
    assert found <= listed


def test_names_of_figures_are_unique_in_the_book() -> None:
    names = [
        cell.metadata["mystnb"]["figure"]["name"]
        for path in NOTEBOOKS
        for cell in nbformat.read(path, as_version=4).cells
        if "figure" in cell.metadata.get("mystnb", {})
    ]
    assert len(names) == len(set(names))


def test_nbval_compares_nearly_every_output() -> None:
    cells = [
        cell
        for path in NOTEBOOKS
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code" and cell.outputs
    ]
    ignored = [c for c in cells if "nbval-ignore-output" in notebook_rules.tags(c)]
    assert len(ignored) <= 0.05 * len(cells)
