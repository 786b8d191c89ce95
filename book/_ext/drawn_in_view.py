"""Lay out a section when it comes near: a page of formulas then stands much sooner.

The style is in ``custom.css`` (content-visibility). Two scripts of the theme would ask
for the place of every section and the width of every block, and so have all of them
laid out at once. They are switched off here; ``in_view.js`` does what they did.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

PLACES = re.compile(r'(<body\b[^>]*?) data-bs-spy="scroll"')
WIDTHS = re.compile(r'\["pre",[^\]]*"\.pst-scrollable-table-container"\]')
SCRIPT = Path("_static/scripts/pydata-sphinx-theme.js")


def switch_off(app: Sphinx, exception: Exception | None) -> None:
    """Take from pages and from the theme's script what asks for all places."""
    if exception is not None or app.builder.format != "html":
        return
    script = Path(app.outdir) / SCRIPT
    text, count = WIDTHS.subn('["[data-none]"]', script.read_text(encoding="utf-8"))
    if count == 0 and '["[data-none]"]' not in text:
        raise ExtensionError(
            f"{SCRIPT} has to hold the list of blocks whose width it asks for, "
            "which is not there; the theme has changed: mend WIDTHS in drawn_in_view.py"
        )
    script.write_text(text, encoding="utf-8")
    for path in Path(app.outdir).rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if (quick := PLACES.sub(r"\1", page)) != page:
            path.write_text(quick, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_js_file("in_view.js", loading_method="defer")
    app.connect("build-finished", switch_off)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
