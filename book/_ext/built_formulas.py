"""Set formulas when the site is built: pages need no script for them, and no network.

KaTeX draws them, with MathML beside it for screen readers. Its script comes from the
PyPI package ``sphinxcontrib-katex`` and runs in ``mini-racer``; its style and fonts are
those of the same version, in ``book/_static/katex``.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import files
from typing import Any

from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

LOGGER = logging.getLogger(__name__)


@cache
def katex() -> MiniRacer:
    """Load KaTeX into an engine of its own."""
    scripts = [
        file
        for file in files("sphinxcontrib-katex") or ()
        if file.name == "katex.min.js"
    ]
    if not scripts:
        raise FileNotFoundError(
            "sphinxcontrib-katex is installed without its script; reinstall it: "
            "pip install --force-reinstall sphinxcontrib-katex"
        )
    engine = MiniRacer()
    engine.eval(scripts[0].read_text(encoding="utf-8"))
    return engine


class Formulas:
    """Formulas of one site, with its macros; equal ones are drawn once."""

    def __init__(self, macros: dict[str, Any]) -> None:
        # A macro with arguments is a list of its text and their number.
        texts = (text if isinstance(text, str) else text[0] for text in macros.values())
        self.macros = {f"\\{n}": t for n, t in zip(macros, texts, strict=True)}
        self.drawn = cache(self.draw)

    def draw(self, tex: str, is_displayed: bool) -> str:
        """Return the HTML of a formula; JSEvalException where it is none."""
        options = {"displayMode": is_displayed, "macros": self.macros, "strict": False}
        html: str = katex().call("katex.renderToString", tex, options)
        return html

    def html(self, writer: Any, node: Any, is_displayed: bool = False) -> str:
        """Return the HTML of a node, or warn, and return its text."""
        tex = node.astext().strip()
        if is_displayed and "\\\\" in tex and not tex.startswith("\\begin"):
            tex = f"\\begin{{aligned}}{tex}\\end{{aligned}}"
        try:
            return self.drawn(tex, is_displayed)
        except JSEvalException as error:
            reason = str(error).partition("\n")[0]
            LOGGER.warning("no formula: %s", reason, location=node, type="formula")
            return f"<code>{writer.encode(tex)}</code>"


def visit_inline(self: Any, node: nodes.math) -> None:
    """Write a formula of a line."""
    self.body.append(self.starttag(node, "span", "", CLASS="math"))
    self.body.append(self.builder.app.formulas.html(self, node) + "</span>")
    raise nodes.SkipNode


def visit_displayed(self: Any, node: nodes.math_block) -> None:
    """Write a formula of its own line, with its number."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    html = self.builder.app.formulas.html(self, node, is_displayed=True)
    self.body.append(html + "</div>\n")
    raise nodes.SkipNode


def begin(app: Sphinx) -> None:
    """Keep what a build draws beside it."""
    app.formulas = Formulas(app.config.formula_macros)  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("formula_macros", {}, "html")
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_displayed, None))
    app.add_css_file("katex/katex.min.css")
    app.connect("builder-inited", begin)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
