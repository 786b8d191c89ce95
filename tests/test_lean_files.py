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


def built(out: Path) -> Sphinx:
    """Return an application that has written a site to a folder."""
    app = SimpleNamespace(outdir=out, builder=SimpleNamespace(format="html"))
    return cast(Sphinx, app)


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
    lean_files.leave_out(built(tmp_path), None)
    expected = f'<img loading="lazy" {sizes} {told} src="a.png">'
    assert page.read_text() == expected.replace("  ", " ")


def test_a_picture_that_is_too_wide_for_a_phone_gets_a_frame(tmp_path: Path) -> None:
    for name, width in {"a": lean_files.WIDE - 1, "b": lean_files.WIDE}.items():
        imsave(tmp_path / f"{name}.png", np.zeros((1, width)))
    page = tmp_path / "page.html"
    page.write_text('<img alt="1 &gt; 0" src="a.png"/>, <img src="b.png"/>!')
    lean_files.leave_out(built(tmp_path), None)
    narrow, wide = page.read_text().split(", ")
    assert "wide-picture" not in narrow
    assert wide.startswith('<div class="wide-picture"><img ')
    assert wide.endswith('src="b.png"/></div>!')


def test_a_page_asks_for_one_style_that_leads_where_the_others_led(
    tmp_path: Path,
) -> None:
    static = tmp_path / "_static"
    for name, text in {
        "basic.css": '@charset "UTF-8"; p { color: red; } .on { x: 1; } .off { x: 1; }',
        "styles/theme.css": '@import "../basic.css"; b { background: url(a.svg); }',
        "katex/katex.css": 'i { src: url("fonts/k.woff2"), url(data:font/a); }',
    }.items():
        (static / name).parent.mkdir(parents=True, exist_ok=True)
        (static / name).write_text(text)
    links = [
        '<link href="../_static/styles/theme.css?digest=1" rel="stylesheet" />',
        '<link rel="stylesheet" type="text/css" href="../_static/katex/katex.css" />',
    ]
    page = tmp_path / "book/page.html"
    page.parent.mkdir()
    named = [*links, '<link rel="icon" href="f.png"/>', '<p class="on">']
    page.write_text("\n".join(["<head>", *named]))
    lean_files.leave_out(built(tmp_path), None)
    (one,) = static.glob("styles/all-*.css")
    text = page.read_text()
    assert text.count("stylesheet") == 1
    assert f'href="../_static/styles/{one.name}"' in text
    assert 'rel="icon"' in text
    style = one.read_text()
    assert style.index("p{color") < style.index("b{b") < style.index("i{src")
    assert ".on{" in style
    assert ".off" not in style
    assert "@" not in style
    assert 'url("../katex/fonts/k.woff2"), url(data:font/a)' in style
    assert "url(a.svg)" in style


def test_scripts_come_after_the_page_and_settings_before_who_reads_them(
    tmp_path: Path,
) -> None:
    names = {
        "scheme": 'data-cfasync="false" src="_static/inline/1.js"',
        "options": 'src="_static/documentation_options.js"',
        "folds": 'defer="defer" src="_static/folds.js"',
        "toggle": 'src="_static/togglebutton.js"',
        "setting": 'src="_static/inline/2.js"',
    }
    page = tmp_path / "page.html"
    tags = (f"<script {told}></script>\n" for told in names.values())
    page.write_text("".join(["<head>", *tags, "</head>"]))
    lean_files.leave_out(built(tmp_path), None)
    text = page.read_text()
    order = ["1.js", "documentation_options", "2.js", "togglebutton", "folds"]
    places = [text.index(name) for name in order]
    assert places == sorted(places)
    late = [line for line in text.splitlines() if " defer" in line]
    assert len(late) == 4
    assert "1.js" not in "".join(late)


def test_a_template_among_the_files_stays(tmp_path: Path) -> None:
    macro = tmp_path / "_static/macros.html"
    macro.parent.mkdir()
    macro.write_text("""<link href="{{ pathto('a.css') }}" rel="stylesheet" />""")
    lean_files.leave_out(built(tmp_path), None)
    assert "pathto" in macro.read_text()
