"""One page leads to every exercise of the book and to its solution."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import list_of_exercises as listing
import nbformat
import notebook_rules
import yaml
from bs4 import BeautifulSoup
from sphinx_external_toc.api import Document, FileItem, SiteMap, TocTree

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build/html/book"
CHAPTER = """\
# The title

:::{exercise} The first, with $x$
:label: ex-a-first
Why?
:::

::::{exercise-start} Spot the bug
:label: ex-a-bug
::::
"""


def notebook(text: str) -> notebook_rules.Notebook:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def labels() -> Iterator[tuple[str, str]]:
    """Yield the chapter and the label of every exercise, in the book's order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    for chapter in (f for part in toc["parts"] for f in notebook_rules.pages(part)):
        path = (ROOT / chapter).with_suffix(".ipynb")
        if path.exists():
            text = path.read_text("utf-8")
            for label in re.findall(r':label: (ex-[\w-]+)\\n"', text):
                yield path.stem, label


def test_a_chapter_is_a_heading_and_a_line_for_each_exercise() -> None:
    heading, _, first, bug, _ = listing.chapter_lines("book/a", notebook(CHAPTER))
    assert heading == "### {doc}`The title </book/a>`"
    assert first == (
        "- {ref}`ex-a-first`: The first, with $x$ ({ref}`solution <sol-a-first>`)"
    )
    assert bug == "- {ref}`ex-a-bug`: Spot the bug ({ref}`solution <sol-a-bug>`)"


def test_a_chapter_without_exercises_is_left_out() -> None:
    assert listing.chapter_lines("book/a", notebook("# The title")) == []


def test_the_chapters_stand_under_their_parts(tmp_path: Path) -> None:
    for name in "ac":
        nbformat.write(notebook(CHAPTER), tmp_path / f"{name}.ipynb")
    (tmp_path / "b.md").write_text("# A page")

    def trees(**items: str) -> list[TocTree]:
        found = items.items()
        return [TocTree([FileItem(i) for i in ii], caption=c) for c, ii in found]

    under = {"index": trees(P="a", Q="b"), "a": trees(R="c"), "b": [], "c": []}
    first, *others = (Document(name, found) for name, found in under.items())
    site_map = SiteMap(first)
    site_map.update({page.docname: page for page in others})
    read: list[str] = []
    env = SimpleNamespace(
        external_site_map=site_map,
        doc2path=lambda name: tmp_path / (name + (".md" if name == "b" else ".ipynb")),
        note_dependency=read.append,
    )
    lines = [*listing.book_lines(env)]
    assert [line for line in lines if line.startswith("## ")] == ["## P"]
    assert read == [str(tmp_path / f"{name}.ipynb") for name in "ac"]


def test_the_built_page_has_all_of_them_in_order() -> None:
    path = SITE / "solutions.html"
    assert path.exists(), "there is no built site; run `make book` first"
    article = BeautifulSoup(path.read_text("utf-8"), "html.parser").select_one(
        "article"
    )
    assert article
    found = [str(link["href"]) for link in article.select("li a")]
    expected = [
        f"{chapter}.html#{name}"
        for chapter, label in labels()
        for name in (label, label.replace("ex-", "sol-", 1))
    ]
    assert expected
    assert found == expected
