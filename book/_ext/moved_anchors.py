"""Old addresses lead on: what stood on one page, and now stands on several.

``moved_anchors`` in ``_config.yml`` names for such a page those that took its parts.
``_static/moved.js`` goes on to the part that an address names.
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def keep_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the addresses of a page that took over a part."""
    page = app.env.docname
    if any(page in parts for parts in app.config.moved_anchors.values()):
        ids = (i for element in doctree.findall(nodes.Element) for i in element["ids"])
        app.env.metadata[page]["anchors"] = sorted(set(ids))


def moved(app: Sphinx, page: str) -> dict[str, str]:
    """Return where the anchors of a page are now, as addresses from that page."""
    found: dict[str, str] = {}
    for part in app.config.moved_anchors.get(page, []):
        address = app.builder.get_relative_uri(page, part)
        for anchor in app.env.metadata[part]["anchors"]:
            found.setdefault(anchor, address)
    return found


def add_script(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Write into an old page where its parts are."""
    if anchors := moved(app, page):
        data = json.dumps(anchors, separators=(",", ":"))
        context["body"] += (
            f'<script type="application/json" id="moved">{data}</script>\n'
        )
        app.add_js_file("moved.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("moved_anchors", {}, "env", dict)
    app.connect("doctree-read", keep_anchors, priority=900)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
