"""The font of the icons holds what the pages show, and little else."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lean_files
import pydata_sphinx_theme
import pytest
from fontTools.ttLib import TTFont
from PIL import Image

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


@pytest.mark.parametrize("words", ["a curve", "a curve, by the width"])
def test_a_picture_keeps_its_place_whatever_its_description_says(
    words: str, tmp_path: Path
) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    page = tmp_path / "page.html"
    page.write_text(f'<img alt="{words}" src="a.png" />')
    app: Any = SimpleNamespace(
        builder=SimpleNamespace(format="html"), outdir=str(tmp_path)
    )
    lean_files.leave_out(app, None)
    assert 'width="30" height="20"' in page.read_text("utf-8")
