"""The search leads those who type a symbol or an abbreviation to its section."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import search_words
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "book/_static/search_results.js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="the script of a page needs node")


def app(**words: str) -> Any:
    domains = {
        "index": {"entries": defaultdict(list)},
        "std": {
            "labels": {"sec-axes": ("book/a", "axes", "Axes")},
            "objects": {("term", "gain"): ("book/glossary", "term-gain")},
        },
    }
    env = SimpleNamespace(docname=search_words.NOTATION, domaindata=domains)
    return SimpleNamespace(env=env, config=SimpleNamespace(search_words=words))


def entries(site: Any) -> list[tuple[str, str, str]]:
    """Return words with the pages and addresses that they lead to."""
    found = site.env.domaindata["index"]["entries"]
    return [(e[1], page, e[2]) for page, all_ in found.items() for e in all_]


def test_words_lead_to_labels_and_to_the_glossary() -> None:
    site = app(conv="sec-axes", scale="gain")
    search_words.add_words(site, site.env)
    search_words.add_words(site, site.env)  # a page is read again: nothing stands twice
    assert entries(site) == [
        ("conv", "book/a", "axes"),
        ("scale", "book/glossary", "term-gain"),
    ]


def test_a_word_that_leads_nowhere_is_told(caplog: pytest.LogCaptureFixture) -> None:
    site = app(conv="sec-gone")
    warned: list[Any] = []
    original = search_words.LOGGER.warning
    search_words.LOGGER.warning = lambda *a: warned.append(a)  # type: ignore[method-assign]
    try:
        search_words.add_words(site, site.env)
    finally:
        search_words.LOGGER.warning = original  # type: ignore[method-assign]
    assert warned[0][1:] == ("conv", "sec-gone")
    assert entries(site) == []


def test_names_in_code_lead_to_their_rows() -> None:
    def row(*cells: nodes.Node) -> nodes.row:
        return nodes.row(
            "", *(nodes.entry("", nodes.paragraph("", "", c)) for c in cells)
        )

    named = row(nodes.math("", "γ"), nodes.literal("", "gamma"), nodes.Text("the gain"))
    other = row(nodes.math("", "g"), nodes.Text(""), nodes.literal("", "not_this"))
    document = new_document("notation", get_default_settings())
    document += [other, named]
    site = app()
    search_words.mark_rows(site, document)
    assert entries(site) == [("gamma", search_words.NOTATION, "row-1")]
    assert named["ids"] == ["row-1"]


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
