"""Figures that answer back: ``{living}`` puts one into a page, with its scripts.

The content of the directive is the caption. What stands in the page is a still, drawn
by ``tools/draw_stills.js``: for print, and for readers without scripts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parents[1] / "_static/living"


class Living(SphinxDirective):
    """A figure by the name of its files."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"name": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return a figure that holds the still."""
        (name,) = self.arguments
        path = FOLDER / f"{name}.svg"
        if not path.exists():
            there = ", ".join(sorted(p.stem for p in FOLDER.glob("*.svg")))
            raise self.error(
                f"a living figure must have its files in {FOLDER.name}/, got {name!r}; "
                f"there are {there}."
            )
        self.env.note_dependency(str(path))
        figure = nodes.figure(classes=["living"], living=name)
        still = path.read_text(encoding="utf-8")
        figure += nodes.raw(
            "", f'<div data-living="{name}">{still}</div>', format="html"
        )
        caption = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, caption)
        (paragraph,) = caption.children
        figure += nodes.caption(paragraph.rawsource, "", *paragraph.children)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def add_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Load on a page the scripts of its figures, and nothing on the others."""
    if doctree is None:
        return
    found = {f["living"] for f in doctree.findall(nodes.figure) if "living" in f}
    if found:
        app.add_css_file("living/living.css")
        for name in ("living", *sorted(found)):
            app.add_js_file(f"living/{name}.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_directive("living", Living)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
