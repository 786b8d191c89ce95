"""The font of the icons holds what the pages show, and little else."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import lean_files
import numpy as np
import pydata_sphinx_theme
import pytest
from fontTools.ttLib import TTFont
from matplotlib.image import imsave
from sphinx.application import Sphinx

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static"
SUN, ROCKET, DRAGON = 0xF185, 0xF135, 0xF6D5


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a site of one page with the files of the theme."""
    for name in ("styles", "vendor"):
        shutil.copytree(THEME / name, tmp_path / "_static" / name)
    (tmp_path / "page.html").write_text('<i class="fa-solid fa-sun"></i>')
    (tmp_path / "_static/some.js").write_text('icon.className = "fas fa-rocket";')
    return tmp_path


def test_icons_of_pages_scripts_and_styles_are_kept_and_no_others(site: Path) -> None:
    (site / "own.css").write_text('.mine::before { content: "\\f0c1"; }')
    lean_files.keep_icons(site)
    path = (site / lean_files.ICONS).with_suffix(".woff")
    kept = TTFont(path).getBestCmap()
    assert {SUN, ROCKET, 0xF0C1} <= set(kept)
    assert DRAGON not in kept
    assert path.stat().st_size < 20_000


def test_the_style_asks_for_the_font_that_is_there(site: Path) -> None:
    lean_files.keep_icons(site)
    text = (site / "_static/styles/pydata-sphinx-theme.css").read_text("utf-8")
    assert text.count("fa-solid-900") == 1
    assert 'webfonts/fa-solid-900.woff) format("woff")' in text
    assert not (site / lean_files.ICONS).with_suffix(".woff2").exists()
    assert "fa-regular-400.woff2" in text  # another font stays as it is


@pytest.mark.parametrize(
    ("told", "sizes"),
    [
        ('alt="a line of some width"', 'width="5" height="3"'),
        ('alt="a line" width="2"', ""),
    ],
)
def test_a_picture_has_its_size_where_the_page_gives_none(
    told: str, sizes: str, tmp_path: Path
) -> None:
    imsave(tmp_path / "a.png", np.zeros((3, 5)))
    page = tmp_path / "page.html"
    page.write_text(f'<img {told} src="a.png">')
    app = SimpleNamespace(outdir=tmp_path, builder=SimpleNamespace(format="html"))
    lean_files.leave_out(cast(Sphinx, app), None)
    expected = f'<img loading="lazy" {sizes} {told} src="a.png">'
    assert page.read_text() == expected.replace("  ", " ")
