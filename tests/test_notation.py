"""The page of the notation has every symbol of the tables in the chapters."""

import re
from pathlib import Path

import nbformat
import notebook_rules
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTATION = (ROOT / "book/notation.md").read_text("utf-8")
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))
# fmt: off
GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε",
    "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ",
    "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "varphi": "φ",
    "chi": "χ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Lambda": "Λ",
    "Sigma": "Σ",
}
# fmt: on


def letters(text: str) -> set[str]:
    """Return the letters of the formulas in a text, Greek ones by their names."""
    formulas = " ".join(re.findall(r"\$([^$]+)\$", text))
    formulas = re.sub(r"\\(?:text|operatorname)\{[^}]*\}", "", formulas)
    commands = re.compile(r"\\([A-Za-z]+)")
    named = GREEK.keys() & set(commands.findall(formulas))
    written = {name for name, letter in GREEK.items() if letter in text}
    return named | written | set(re.findall("[A-Za-z]", commands.sub("", formulas)))


def table_symbols(text: str) -> set[str]:
    """Return the letters in the first columns of the tables of symbols."""
    tables = re.findall(r"(?m)^\| symbol \|.*\n\|[-| ]+\n((?:\|.*\n?)+)", text)
    rows = [row for table in tables for row in table.splitlines()]
    return set().union(*(letters(row.split(" | ")[0]) for row in rows))


def known(chapter: str) -> set[str]:
    """Return the letters that the page explains, for all chapters or for this one."""
    of_all, _, local = NOTATION.partition("(sec-notation-local)=")
    rows = dict(re.findall(r"(?m)^\| \{doc\}`(\w+)` \| (.*) \|$", local))
    row = rows.get(chapter, "")
    named = [rows.get(other, "") for other in re.findall(r"\{doc\}`(\w+)`", row)]
    return letters(of_all).union(*map(letters, [row, *named]))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_page_has_every_symbol_of_a_table(path: Path) -> None:
    text = notebook_rules.all_markdown(nbformat.read(path, as_version=4))
    assert table_symbols(text) - known(path.stem) == set()


def test_the_letters_of_a_formula_are_found() -> None:
    assert letters(r"$\hat x_{ij}$ and $\dl{\gamma}$, η") == set("xij") | {
        "gamma",
        "eta",
    }
    assert table_symbols("| symbol | code |\n|---|---|\n| $Q$ | `q` |\n") == {"Q"}
    assert "Q" not in known("batch_norm")
