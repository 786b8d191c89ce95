"""The search leads those who type a symbol or an abbreviation to its section."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import search_words
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from sphinx import addnodes

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "book/_static/search_results.js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="the script of a page needs node")


def app(to: str = "html", **words: str) -> Any:
    std = {
        "labels": {"sec-axes": ("book/a", "axes", "Axes")},
        "objects": {("term", "gain"): ("book/glossary", "term-gain")},
    }
    env = SimpleNamespace(
        docname=search_words.NOTATION,
        domaindata={"std": std},
        metadata={search_words.NOTATION: {}, "book/a": {}},
    )
    config, builder = SimpleNamespace(search_words=words), SimpleNamespace(format=to)
    return SimpleNamespace(env=env, config=config, builder=builder)


def page(*children: nodes.Node) -> nodes.document:
    document = new_document("a page", get_default_settings())
    document += list(children)
    return document


def led(document: nodes.document) -> list[tuple[str, str]]:
    """Return the words that lead to a page, with their addresses."""
    found = document.findall(addnodes.index)
    return [(e[1], e[2]) for node in found for e in node["entries"]]


def test_words_lead_to_labels_and_to_the_glossary() -> None:
    site = app(conv="sec-axes", scale="gain")
    for name, expected in (
        ("book/a", [("conv", "axes")]),
        ("book/glossary", [("scale", "term-gain")]),
        ("book/b", []),
    ):
        document = page()
        search_words.add_words(site, document, name)
        assert led(document) == expected


def row(*cells: nodes.Node) -> nodes.row:
    texts = (nodes.paragraph("", "", cell) for cell in cells)
    return nodes.row("", *(nodes.entry("", text) for text in texts))


def test_words_of_a_symptom_lead_to_its_entry() -> None:
    def link(kind: str, target: str) -> nodes.Node:
        return addnodes.pending_xref("", reftype=kind, reftarget=target)

    words = nodes.Text("channels last; expected 4D input")
    rows = [
        row(nodes.Text("symptom"), nodes.Text("also met as")),
        row(link("ref", "sec-axes"), words),
        row(link("doc", "gain"), nodes.Text("no label")),
    ]
    site = app()
    for table in (nodes.table("", *rows), nodes.table("", *rows, classes=["a"])):
        search_words.keep_symptoms(site, page(table))
        assert site.env.metadata[search_words.NOTATION] == {}
    index = nodes.table("", *rows, classes=["symptom-index", "longtable"])
    search_words.keep_symptoms(site, page(index))
    for name, expected in (
        ("book/a", ["channels last", "expected 4D input"]),
        ("b", []),
    ):
        document = page()
        search_words.add_words(site, document, name)
        assert led(document) == [(word, "axes") for word in expected]


def test_names_in_code_lead_to_their_rows() -> None:
    named = row(nodes.math("", "γ"), nodes.literal("", "gamma"), nodes.Text("the gain"))
    other = row(nodes.math("", "g"), nodes.Text(""), nodes.literal("", "not_this"))
    document = page(other, named)
    search_words.mark_rows(app(), document)
    assert led(document) == [("gamma", "row-1")]
    assert named["ids"] == ["row-1"]


def test_the_index_of_a_book_on_paper_has_none_of_them() -> None:
    named = nodes.row("", nodes.entry("", nodes.literal("", "gamma")))
    document, site = page(named), app("latex", conv="sec-axes")
    search_words.mark_rows(site, document)
    search_words.add_words(site, document, "book/a")
    assert led(document) == []
    assert not named["ids"]


def in_script(call: str, *arguments: Any) -> Any:
    """Call a function of the script of the page."""
    code = f"const {{ bestSection, excerpt }} = require('{SCRIPT}');"
    code += f"console.log(JSON.stringify({call}(...{json.dumps(arguments)})))"
    done = subprocess.run(
        [str(NODE), "-e", code], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@needs_node
def test_a_result_is_the_section_that_holds_most_of_the_words() -> None:
    page = {"title": "Page", "text": "eps here, gain there"}
    one = {"title": "One", "text": "eps here"}
    two = {"title": "Two", "text": "gain there, eps, too"}
    named = {"title": "The gain", "text": "the gain"}
    assert in_script("bestSection", [one, two], ["gain", "eps"]) == two
    assert in_script("bestSection", [one, two, named], ["gain"]) == named
    assert in_script("bestSection", [page], ["zebra"]) is None


@needs_node
def test_an_excerpt_begins_near_the_word() -> None:
    text = "a " * 300 + "zebra" + " b" * 300
    found = in_script("excerpt", text, ["zebra"])
    assert "zebra" in found
    assert found.startswith("…a")
    assert found.endswith("b…")
    assert len(found) < 250
    assert in_script("excerpt", "short", ["gone"]) == "short"
