"""Formulas are set when the site is built, and what is none stops the build."""

from __future__ import annotations

import re
from pathlib import Path

import built_formulas
import pytest
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


def test_script_style_and_fonts_are_of_one_version() -> None:
    style = (FOLDER / "katex.min.css").read_text(encoding="utf-8")
    (version,) = re.findall(r'\.katex-version:after\{content:"([\d.]+)"', style)
    assert built_formulas.katex().eval("katex.version") == version


def test_every_font_that_the_style_names_is_there_and_no_other() -> None:
    style = (FOLDER / "katex.min.css").read_text(encoding="utf-8")
    named = set(re.findall(r"url\(fonts/([^)]+)\)", style))
    assert named == {path.name for path in (FOLDER / "fonts").iterdir()}
