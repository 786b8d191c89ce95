"""Formulas are set when the site is built, and what is none stops the build."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import built_formulas
import pytest
from docutils import nodes
from py_mini_racer import JSEvalException

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "book/_static/katex"
FORMULAS = built_formulas.Formulas({"E": r"\mathbb{E}", "two": ["#1 + #2", 2]})


@pytest.mark.parametrize("tex", [r"\Covv[x]", r"\frac{1}{2", r"x_\max", "a & b"])
def test_what_is_no_formula_is_refused(tex: str) -> None:
    with pytest.raises(JSEvalException, match="KaTeX parse error"):
        FORMULAS.draw(tex, is_displayed=False)


def test_a_formula_is_drawn_and_can_be_read_out() -> None:
    html = FORMULAS.draw(r"\E[x] = \two{a}{b}", is_displayed=False)
    assert '<span class="katex-html" aria-hidden="true">' in html
    assert '<mi mathvariant="double-struck">E</mi>' in html
    assert "<mi>a</mi><mo>+</mo><mi>b</mi>" in html
    assert "<script" not in html


def test_a_formula_of_its_own_line_is_larger() -> None:
    line, own = (FORMULAS.draw(r"\sum_i x_i", displayed) for displayed in (False, True))
    assert "katex-display" not in line
    assert "katex-display" in own


@pytest.mark.parametrize(
    ("tex", "text", "kept"),
    [
        ("x_i", ", and so on", ","),
        ("x", "). So", ")."),
        ("x", " and", ""),
        ("x" * 40, ", and", ""),
    ],
)
def test_a_comma_stays_on_the_line_of_a_short_formula(
    tex: str, text: str, kept: str
) -> None:
    line = nodes.paragraph("", "", nodes.math("", tex), nodes.Text(text))
    page = nodes.section("", line)
    built_formulas.keep_punctuation(None, page, "")  # type: ignore[arg-type]
    assert line.astext() == tex + text
    found = [n.astext().removeprefix(tex) for n in line.findall(nodes.inline)]
    assert found == ([kept] if kept else [])
    assert all(child.parent is line for child in line)


@pytest.mark.parametrize(("tex", "kept"), [("a = b", True), ("a = b" * 9, False)])
def test_a_short_formula_is_not_broken(tex: str, kept: bool) -> None:
    writer = SimpleNamespace(
        body=[],
        starttag=lambda node, tag, end, CLASS: f'<{tag} class="{CLASS}">',
        builder=SimpleNamespace(app=SimpleNamespace(formulas=FORMULAS)),
    )
    with pytest.raises(nodes.SkipNode):
        built_formulas.visit_inline(writer, nodes.math("", tex))
    assert ("kept" in writer.body[0]) is kept


def test_script_style_and_fonts_are_of_one_version() -> None:
    style = (FOLDER / "katex.min.css").read_text(encoding="utf-8")
    (version,) = re.findall(r'\.katex-version:after\{content:"([\d.]+)"', style)
    assert built_formulas.katex().eval("katex.version") == version


def test_every_font_that_the_style_names_is_there_and_no_other() -> None:
    style = (FOLDER / "katex.min.css").read_text(encoding="utf-8")
    named = set(re.findall(r"url\(fonts/([^)]+)\)", style))
    assert named == {path.name for path in (FOLDER / "fonts").iterdir()}
