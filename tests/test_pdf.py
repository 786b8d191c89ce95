"""The site as a book on paper: its parts, what is left out, stills and links."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pdf
import pytest
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from sphinx.testing.util import SphinxTestApp

ROOT = Path(__file__).parents[1]
STILLS = sorted((ROOT / "book/_static/living").glob("*.svg"))

CONF = """
import sys
sys.path.insert(0, {extensions!r})
extensions = ["living_figures", "pdf", "sphinx_exercise"]
root_doc = "book/index"
numfig = True
"""
PAGES = {
    "index": """
A book
======

What it is.

Where to begin
--------------

Nowhere.

.. toctree::
   :caption: First part
   :numbered: 2

   one

.. toctree::
   :caption: Using the book

   two
   code_all

.. on-paper::
""",
    "one": """
Chapter one
===========

.. living:: batch_on_a_line
   :name: fig-line

   A caption.

.. exercise:: Easy
   :label: ex-one

   Do it.

.. solution:: ex-one
   :label: sol-one

   Done::

      a = 1

To :doc:`code_all`, and :ref:`the function <sec-function>`.
""",
    "two": """
Chapter two
===========

See :numref:`ex-one`, which :ref:`asks little <ex-one>`.
""",
    "code_all": """
Code
====

.. _sec-function:

A function
----------

Words of the reference.
""",
}


@pytest.fixture
def build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], SphinxTestApp]:
    """Return a function that builds a small book; what is drawn goes to files."""
    real = subprocess.run

    def draw(command: list[str], **settings: Any) -> Any:
        if command[0] != "rsvg-convert":
            return real(command, **settings)
        return Path(command[-1]).write_bytes(settings["input"])

    monkeypatch.setattr(subprocess, "run", draw)
    folder = tmp_path / "src"
    (folder / "book").mkdir(parents=True)
    (folder / "conf.py").write_text(CONF.format(extensions=str(ROOT / "book/_ext")))
    for name, text in PAGES.items():
        (folder / "book" / f"{name}.rst").write_text(text)

    def run(builder: str) -> SphinxTestApp:
        app = SphinxTestApp(builder, srcdir=folder, builddir=tmp_path / builder)
        app.build()
        app.cleanup()
        return app

    return run


def written(app: SphinxTestApp) -> str:
    (path,) = Path(app.outdir).glob("*.tex")
    return path.read_text(encoding="utf-8")


def test_captions_are_parts_and_the_last_ones_appendices(build: Any) -> None:
    text = written(build("latex"))
    order = [
        "\\chapter*{About this book}",
        "What it is.",
        "\\part{First part}",
        "\\chapter{Chapter one}",
        "\\appendix\\part{Using the book}",
        "\\chapter{Chapter two}",
    ]
    assert [text.find(words) for words in order] == sorted(map(text.find, order))
    assert all(words in text for words in order)
    assert "Nowhere" not in text
    # A caption that is left would be the title of the contents.
    assert "\\renewcommand{\\contentsname}" not in text


def test_the_code_reference_is_left_out_with_the_links_to_it(build: Any) -> None:
    text = written(build("latex"))
    assert "Words of the reference" not in text
    assert "the function" in text
    assert not re.search(r"hyperref\[[^]]*code_all", text)


def test_an_exercise_is_whole_and_a_link_to_it_has_its_label_and_number(
    build: Any,
) -> None:
    text = written(build("latex"))
    assert "Do it." in text
    assert "\\hyperref[exercise:ex-one]{Exercise 1.1}" in text
    told = r"\\hyperref\[exercise:ex-one\]\{.*asks little.*\}"
    assert re.search(told, text)
    assert "one:ex-one}" not in text
    assert "\\label{exercise:ex-one}" in text


def test_a_solution_stands_in_no_frame_and_links_to_it_lead_there(build: Any) -> None:
    text = written(build("latex"))
    solution = text.partition("\\label{book/one:sol-one}")[2]
    assert "{Solution to Exercise 1.1 (Easy)}" in solution
    before, _, after = solution.partition("\\begin{sphinxVerbatim}")
    code, end, _ = after.partition("\\end{sphinxVerbatim}")
    assert "{a}" in code
    assert end
    assert "sphinxadmonition" not in before + code
    assert "hyperref" not in before  # its title leads nowhere


def table(*rows: tuple[str, ...]) -> nodes.document:
    """Return a page with a table, and one in a cell of it."""
    document = new_document("a page", get_default_settings())
    group = nodes.tgroup(cols=len(rows[0]))
    group += [nodes.colspec(colwidth=50) for _ in rows[0]]
    body = nodes.tbody()
    for row in rows:
        cells = [nodes.entry("", nodes.paragraph(text=text)) for text in row]
        body += nodes.row("", *cells)
    group += body
    document += nodes.table("", group)
    return document


LONG = "a word and " * 40


@pytest.mark.parametrize(
    ("rows", "classes"),
    [
        ([("a", "b")] * 15, []),
        ([("a", "b")] * 16, ["longtable"]),
        ([("a", LONG)], ["longtable", "colwidths-given"]),
    ],
)
def test_tables_that_are_long_or_wide_run_over_pages(
    rows: list[tuple[str, ...]], classes: list[str]
) -> None:
    document = table(*rows)
    pdf.break_tables(document)
    (found,) = document.findall(nodes.table)
    assert found["classes"] == classes


def test_a_table_in_a_table_and_cells_that_span_stay_as_they_are() -> None:
    document = table(("a", LONG), ("b", "c"))
    outer, inner = document[0], table(("d", LONG))[0]
    cells = list(document.findall(nodes.entry))
    cells[3] += inner
    pdf.break_tables(document)
    assert outer["classes"] == inner["classes"] == []
    spanning = table(("a", LONG), ("b", "c"))
    row = list(spanning.findall(nodes.row))[1]
    row.pop()
    pdf.break_tables(spanning)
    assert spanning[0]["classes"] == []


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    assert pdf.width_of(["a", "b"]) < 6
    assert pdf.width_of(["in_one_piece_of_25_letters", ""]) == 26
    few, many = pdf.width_of(["a word " * 10]), pdf.width_of(["a word " * 40])
    assert many == pytest.approx(2 * few, abs=1)


def test_a_living_figure_is_its_still(build: Any) -> None:
    app = build("latex")
    assert "{batch_on_a_line}.pdf" in written(app)
    drawn = (Path(app.outdir) / "batch_on_a_line.pdf").read_text(encoding="utf-8")
    still = (pdf.STYLE.parent / "batch_on_a_line.svg").read_text(encoding="utf-8")
    assert drawn.strip().endswith(still.partition(">")[2].strip())


def test_every_still_has_colours_without_a_page_around_it() -> None:
    rules = pdf.style_of_stills(pdf.STYLE.read_text("utf-8"))
    assert "var(" not in rules
    assert "currentcolor" not in rules
    text = "".join(path.read_text("utf-8") for path in STILLS)
    used = {
        name for names in re.findall('class="(.*?)"', text) for name in names.split()
    }
    assert len(used) > 5
    unknown = {name for name in used if not re.search(rf"\.{name}\b", rules)}
    assert unknown == {"start"}  # how text is set without a rule


@pytest.mark.skipif(not shutil.which("rsvg-convert"), reason="rsvg-convert is missing")
@pytest.mark.parametrize("still", STILLS, ids=lambda path: path.stem)
def test_every_still_is_drawn(still: Path, tmp_path: Path) -> None:
    app: Any = type("App", (), {"doctreedir": tmp_path / "trees"})
    app.env = type("Env", (), {"docname": "a", "images": type("I", (), {})})
    app.env.images.add_file = lambda *_: None
    figure = nodes.figure(living=still.stem)
    text = f"<div>{still.read_text('utf-8')}</div>"
    figure += nodes.raw("", text, format="html")
    pdf.draw_still(app, figure)
    image = figure[0]
    assert isinstance(image, nodes.image)
    assert Path(image["uri"]).read_bytes().startswith(b"%PDF")


def cell(hide_mode: str | None, has_output: bool) -> nodes.container:
    attributes = {"hide_mode": hide_mode} if hide_mode else {}
    result = nodes.container("", nb_element="cell_code", **attributes)
    result += nodes.container("code", nb_element="cell_code_source")
    if has_output:
        result += nodes.container("", nodes.Text("output"), nb_element="cell_output")
    return result


def test_folded_code_goes_and_what_it_gave_stays() -> None:
    document = new_document("a page", get_default_settings())
    setup = nodes.section("", nodes.title(text="Setup"), cell("input", False))
    checks = nodes.section("", nodes.title(text="Checks"), cell("input", True))
    shown = nodes.section("", nodes.title(text="By hand"), cell(None, True))
    document += [setup, checks, shown]
    pdf.unfold(document)
    assert document.children == [checks, shown]
    assert checks[1].astext() == "output"
    assert len(checks[1]) == 1
    assert len(shown[1]) == 2


@pytest.mark.parametrize("is_there", [True, False])
def test_the_site_leads_to_the_pdf_where_there_is_one(
    is_there: bool, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "normbook.pdf"
    if is_there:
        path.write_bytes(b"%PDF" + bytes(2_000_000))
    monkeypatch.setattr(pdf, "PDF", path)
    folder = Path(build("html").outdir)
    page = (folder / "book/index.html").read_text(encoding="utf-8")
    assert ('href="../normbook.pdf"' in page) == is_there
    assert ("(2 MB)" in page) == is_there
    assert (folder / "normbook.pdf").exists() == is_there
    assert "Nowhere" in page  # the site is as it was


def test_the_readme_names_the_packages() -> None:
    (packages,) = re.findall(
        r"^PDF_PACKAGES = (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M
    )
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"`{packages}`" in readme
