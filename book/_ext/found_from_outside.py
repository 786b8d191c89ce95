"""What other sites, search engines and lost visitors see: descriptions, robots, 404."""

from __future__ import annotations

import html
import textwrap
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SHORTEST = 40  # characters: "Derived, coded, measured." says little
LONGEST = 160  # what a page of results shows of a description
LOST = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>No such page &#8212; {title}</title>
<style>
:root {{ color-scheme: light dark; background: Canvas; }}
body {{ font: 1.1rem/1.6 sans-serif; max-width: 34rem; margin: 15vh auto; }}
</style>
</head>
<body>
<main>
<h1>No such page</h1>
<p>The book has no page of this address; it may have got another name.</p>
<p><a href="{address}book/index.html">The first page</a>,
<a href="{address}search.html">search</a></p>
</main>
</body>
</html>
"""


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give a page its first paragraph that is a sentence as its description."""
    paragraphs = doctree.findall(nodes.paragraph) if doctree else []
    texts = (paragraph.astext() for paragraph in paragraphs)
    first = next((text for text in texts if len(text) >= SHORTEST), None)
    if first is not None:
        text = textwrap.shorten(first, LONGEST, placeholder=" …")
        tag = f'<meta name="description" content="{html.escape(text)}" />'
        context["metatags"] = context.get("metatags", "") + tag


def add_files(app: Sphinx, exception: Exception | None) -> None:
    """Write the page for lost visitors, and what tells robots where all pages are."""
    if exception is not None or app.builder.format != "html":
        return
    out, address = Path(app.outdir), app.config.html_baseurl
    robots = "User-agent: *\nAllow: /\n"
    if address:
        robots += f"Sitemap: {address}sitemap.xml\n"
    (out / "robots.txt").write_text(robots, encoding="utf-8")
    lost = LOST.format(title=html.escape(app.config.project), address=address)
    (out / "404.html").write_text(lost, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", describe)
    app.connect("build-finished", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
