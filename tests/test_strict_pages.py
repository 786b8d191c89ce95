"""A built page holds no script and no handler, and says so in a policy."""

import pytest
import strict_pages
from sphinx.errors import ExtensionError

HEAD = '<html><head><meta charset="utf-8" /><title>t</title></head>'


def test_a_script_moves_into_a_file() -> None:
    page, files = strict_pages.strict(HEAD + "<script>let a = 1 < 2;</script>", "../")
    ((name, code),) = files.items()
    assert code == "let a = 1 < 2;"
    assert page.endswith(f'<script src="../_static/inline/{name}"></script>')


def test_equal_scripts_share_a_file() -> None:
    script = "<script>let a;</script>"
    assert len(strict_pages.strict(HEAD + script + script, "")[1]) == 1


@pytest.mark.parametrize(
    "script",
    [
        '<script src="a.js"></script>',
        '<script defer="defer" src="a.js"></script>',
        '<script type="application/json">{"on": "x"}</script>',
        "<script> </script>",
    ],
)
def test_files_and_data_stay(script: str) -> None:
    page, files = strict_pages.strict(HEAD + script, "")
    assert page.endswith(script)
    assert files == {}


def test_a_handler_is_called_from_a_file() -> None:
    page, files = strict_pages.strict(HEAD + '<button onclick="window.print()">', "")
    assert '<button data-calls="print">' in page
    assert list(files.values()) == [strict_pages.CLICKS]
    assert (
        f'<script src="_static/inline/{next(iter(files))}"></script>\n</head>' in page
    )


def test_an_unknown_handler_stops_the_build() -> None:
    with pytest.raises(ExtensionError, match="inline handler onload='steal"):
        strict_pages.strict(HEAD + '<img src="a.png" onload="steal()">', "")


def test_text_that_speaks_of_handlers_stays() -> None:
    text = '<pre>button onclick="steal()"</pre>'
    assert strict_pages.strict(HEAD + text, "")[0].endswith(text)


def test_the_policy_stands_before_anything_that_it_governs() -> None:
    page, _ = strict_pages.strict(HEAD, "")
    assert page.index("Content-Security-Policy") < page.index("<title>")
    assert "script-src 'self' file:;" in page


def test_a_page_without_charset_is_refused() -> None:
    with pytest.raises(ExtensionError, match="no <meta charset>"):
        strict_pages.strict("<html><head></head></html>", "")


def test_ids_that_every_box_has_go_and_others_stay() -> None:
    box = '<div class="proof admonition" id="proof"><section id="proof-content">'
    page, _ = strict_pages.strict(HEAD + box + '<div id="proof-of-life">', "")
    assert '<div class="proof admonition"><section>' in page
    assert '<div id="proof-of-life">' in page
