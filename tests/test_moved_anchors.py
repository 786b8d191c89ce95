"""Old addresses of a page that was split lead to its parts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import moved_anchors
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

SPLIT = {"book/old": ["book/first", "book/second"]}


def app() -> Any:
    metadata: dict[str, dict[str, Any]] = {"book/first": {}, "book/second": {}}
    return SimpleNamespace(
        config=SimpleNamespace(moved_anchors=SPLIT),
        env=SimpleNamespace(docname="", metadata=metadata),
        builder=SimpleNamespace(
            get_relative_uri=lambda _, page: f"{page.removeprefix('book/')}.html"
        ),
        files=[],
        add_js_file=lambda name, **_: site.files.append(name),
    )


site = app()


def read(page: str, *ids: str) -> None:
    document = new_document(page, get_default_settings())
    document += nodes.section("", nodes.title("", "Title"), ids=list(ids))
    site.env.docname = page
    moved_anchors.keep_anchors(site, document)


def test_old_addresses_lead_to_the_parts() -> None:
    read("book/first", "title", "f.x")
    read("book/second", "title", "g.y")
    found = moved_anchors.moved(site, "book/old")
    assert found == {"title": "first.html", "f.x": "first.html", "g.y": "second.html"}
    context = {"body": "text"}
    moved_anchors.add_script(site, "book/old", "", context, None)
    data = context["body"].removeprefix(
        'text<script type="application/json" id="moved">'
    )
    assert json.loads(data.removesuffix("</script>\n")) == found
    assert site.files == ["moved.js"]


def test_other_pages_have_no_script() -> None:
    context = {"body": "text"}
    moved_anchors.add_script(site, "book/first", "", context, None)
    assert context["body"] == "text"
