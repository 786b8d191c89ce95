"""What would have a whole page laid out at once is switched off, or a build says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import drawn_in_view
import pydata_sphinx_theme
import pytest
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme"


@pytest.fixture
def app(tmp_path: Path) -> Sphinx:
    """Return an application that has written a page and the theme's script."""
    script = tmp_path / drawn_in_view.SCRIPT
    script.parent.mkdir(parents=True)
    shutil.copy(THEME / "static/scripts" / script.name, script)
    page = '<body data-bs-spy="scroll" data-bs-target=".nav">text</body>'
    (tmp_path / "page.html").write_text(page)
    return cast(
        Sphinx, SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(format="html"))
    )


def test_pages_and_script_ask_for_no_place(app: Sphinx) -> None:
    for _ in range(2):  # a build over an older one finds its work done
        drawn_in_view.switch_off(app, None)
        page = (Path(app.outdir) / "page.html").read_text()
        assert page == '<body data-bs-target=".nav">text</body>'
        script = (Path(app.outdir) / drawn_in_view.SCRIPT).read_text("utf-8")
        assert script.count("[data-none]") == 1
        assert '"pre",' not in script


def test_a_script_of_another_theme_is_an_error(app: Sphinx) -> None:
    (Path(app.outdir) / drawn_in_view.SCRIPT).write_text("another();")
    with pytest.raises(ExtensionError, match="the theme has changed"):
        drawn_in_view.switch_off(app, None)
