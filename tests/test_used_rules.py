"""A style is left with the rules that some page or script of the site can call up."""

from __future__ import annotations

from pathlib import Path

import pytest
import used_rules

USED = {"a", "b", "top"}


@pytest.mark.parametrize(
    ("style", "left"),
    [
        (".a{x:1}.c{x:2}", ".a{x:1}"),
        (".a,.c .b{x:1}", ".a{x:1}"),
        (".a .c{x:1}#top{x:2}#gone{x:3}", "#top{x:2}"),
        (".a.c{x:1}", ""),
        # one of several, or none of them
        (".a:not(.c){x:1}:is(.a,.c){x:2}", ".a:not(.c){x:1}\n:is(.a,.c){x:2}"),
        ('p > b[x=".c"]{x:1}', 'p > b[x=".c"]{x:1}'),
        ("@media (width<9px){.a{x:1}.c{x:2}}", "@media (width<9px){.a{x:1}}"),
        ("@media print{.c{x:1}}", ""),
        ("@supports (x:y){@media print{.c{x:1}}b{x:1}}", "@supports (x:y){b{x:1}}"),
        ("@keyframes c{0%{x:1}}", "@keyframes c{0%{x:1}}"),
        ("@font-face{src:url(c.woff)}", "@font-face{src:url(c.woff)}"),
        # colours are no names, nor is what stands in a text
        ('.a{color:#c0ffee;x:".c{"}', '.a{color:#c0ffee;x:".c{"}'),
        ("/* .c */.a/*,*/{x:1}", ".a{x:1}"),
        # scripts put these together from parts
        (".bs-tooltip-top .a{x:1}", ".bs-tooltip-top .a{x:1}"),
        # rules within rules go with the outer one
        (".a{x:1;.c &{x:2}}.c{.a &{x:2}}", ".a{x:1;.c &{x:2}}"),
    ],
)
def test_a_rule_is_left_whose_names_are_all_used(style: str, left: str) -> None:
    assert used_rules.keep_used(style, USED) == left


def test_names_come_from_pages_and_scripts_not_from_text(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p class="x y-1" id="z">word</p>')
    (tmp_path / "b.js").write_text("e.classList.add('is-on', `at-${side}`);")
    (tmp_path / "searchindex.js").write_text('Search.setIndex({"carousel": 1})')
    words = used_rules.words_of(tmp_path)
    assert words >= {"x", "y-1", "z", "is-on"}
    assert not words & {"word", "p", "carousel"}


def test_a_style_that_cannot_be_read_is_told() -> None:
    with pytest.raises(ValueError, match=r"can be read, got .* in line 2 .*; mend"):
        used_rules.keep_used(".a{x:1}\n}", set())
