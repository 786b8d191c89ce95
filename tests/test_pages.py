"""The built site: `make book` first. Links, figures, formulas, requests, solutions."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import lean_files
import notebook_rules
import pytest
import yaml
from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from fontTools.ttLib import TTFont

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build/html"
REMEDY = "there is no built site in _build/html; run `make book` first"
# Pages of the search and the indices have no author: they are the theme's. One is ours.
GENERATED = (
    "404.html",
    "genindex.html",
    "prf-prf.html",
    "py-modindex.html",
    "search.html",
)
# A coloured word of code, with nothing that is looked at here. There are so many that
# to parse them takes four fifths of the time.
COLOURED = '<span class="[a-z][a-z0-9]?">([^<]*)</span>'

# The drawing of a formula, beside which its MathML stands: most of a page's tags.
DRAWING = '<span class="katex-html"'
SPAN = re.compile("<span|</span>")

Pages = dict[Path, BeautifulSoup]


def without_drawings(text: str) -> str:
    """Leave out the drawings of formulas; what is read out stays."""
    kept, place = [], 0
    while (start := text.find(DRAWING, place)) >= 0:
        kept.append(text[place:start])
        depth = 0
        for tag in SPAN.finditer(text, start):
            depth += 1 if tag[0] == "<span" else -1
            if depth == 0:
                place = tag.end()
                break
    return "".join([*kept, text[place:]])


@pytest.fixture(scope="module")
def pages() -> Pages:
    """Return every page of the book, parsed."""
    assert SITE.is_dir(), REMEDY
    found = {}
    for path in sorted(SITE.rglob("*.html")):
        is_page = not path.is_relative_to(SITE / "_static")
        if is_page and path != SITE / "index.html":
            text = without_drawings(path.read_text(encoding="utf-8"))
            text = re.sub(COLOURED, r"\1", text)
            found[path] = BeautifulSoup(text, "html.parser")
    assert found, REMEDY
    return found


def written(pages: Pages) -> Iterator[tuple[Path, BeautifulSoup]]:
    """Yield the pages that someone wrote: all but indices and listings of code."""
    for path, page in pages.items():
        if path.name not in GENERATED and "_modules" not in path.parts:
            yield path, page


def attribute(tag: Tag, name: str) -> str:
    return str(tag.get(name) or "")


def test_every_page_of_the_contents_is_built_from_the_sources(pages: Pages) -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [f for part in toc["parts"] for f in notebook_rules.pages(part)]
    for name in [toc["root"], *listed]:
        assert SITE / f"{name}.html" in pages
    assert 'url=book/index.html"' in (SITE / "index.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_another_host(pages: Pages) -> None:
    loading = {"icon", "modulepreload", "preconnect", "preload", "stylesheet"}
    for path, page in pages.items():
        tags = page.find_all(["script", "img", "iframe", "source", "video"])
        tags += [t for t in page.find_all("link") if loading & set(t.get("rel") or [])]
        for tag in tags:
            address = urlsplit(attribute(tag, "src") or attribute(tag, "href"))
            assert address.netloc == "", f"{path}: {tag}"


def test_no_style_sheet_loads_from_another_host(pages: Pages) -> None:
    for sheet in SITE.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        loaded = re.findall(r"""(?:@import\s+|url\(\s*)["']?(https?:|//)""", text)
        assert loaded == [], sheet


def test_no_page_loads_more_than_450_kilobytes(pages: Pages) -> None:
    """As a server sends it, text compressed; without pictures, which come when seen."""

    @cache
    def sent(path: Path) -> int:
        raw = path.read_bytes()
        is_text = path.suffix in (".html", ".css", ".js")
        return len(gzip.compress(raw, 6)) if is_text else len(raw)

    fonts = sum(map(sent, (SITE / "_static/katex/fonts").glob("*Main-Regular*")))
    heavy = {}
    for path, page in written(pages):
        tags = [*page.find_all("script"), *page.find_all("link", rel="stylesheet")]
        names = {attribute(t, "src") or attribute(t, "href") for t in tags} - {""}
        loaded = [path.parent / unquote(urlsplit(name).path) for name in names]
        kilobytes = (sent(path) + fonts + sum(map(sent, loaded))) / 1000
        if kilobytes > 450:
            heavy[path.name] = round(kilobytes)
    assert heavy == {}


def test_every_chapter_says_how_long_it_takes_and_how_hard_it_is(pages: Pages) -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    parts = [part for part in toc["parts"] if part["numbered"]]
    chapters = [c["file"] for part in parts for c in part["chapters"]]
    listed = [page for part in parts for page in notebook_rules.pages(part)]
    assert sorted(config["sphinx"]["config"]["chapter_levels"]) == sorted(listed)
    cards = [
        attribute(link, "href").partition("#")[0]
        for link in pages[SITE / "book/index.html"].select(".chapter-cards strong a")
    ]
    assert cards == [f"{name.removeprefix('book/')}.html" for name in chapters]
    for name in listed:
        (head,) = pages[SITE / f"{name}.html"].select("article p.at-a-glance")
        assert re.match(r"About [\d.]+ (minutes|hours) · \w", head.text), name


def test_every_page_carries_the_policy_and_no_inline_script(pages: Pages) -> None:
    for path, page in pages.items():
        assert page.find("meta", {"http-equiv": "Content-Security-Policy"}), path
        for tag in page.find_all("script"):
            is_data = tag.get("type") not in (None, "text/javascript", "module")
            assert tag.get("src") or is_data or not tag.text.strip(), path
        for tag in page.find_all(True):
            assert not [name for name in tag.attrs if name.startswith("on")], path


def test_every_link_inside_the_site_leads_somewhere(pages: Pages) -> None:
    anchors = {
        path: {attribute(tag, "id") for tag in page.find_all(id=True)}
        for path, page in pages.items()
    }
    dead = []
    for path, page in pages.items():
        for tag in page.find_all(["a", "img", "script", "link"]):
            address = urlsplit(attribute(tag, "href") or attribute(tag, "src"))
            if (
                address.scheme
                or address.netloc
                or not (address.path or address.fragment)
            ):
                continue
            target = path
            if address.path:
                target = (path.parent / unquote(address.path)).resolve()
                if target.is_dir():
                    target /= "index.html"
            is_there = target.exists()
            fragment = unquote(address.fragment)
            if is_there and fragment and target in anchors and tag.name == "a":
                is_there = fragment in anchors[target]
            if not is_there:
                dead.append(f"{path.relative_to(SITE)}: {address.geturl()}")
    assert dead == []


def test_every_word_for_the_search_leads_to_a_place(pages: Pages) -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    for word in [*config["sphinx"]["config"]["search_words"], "running_var", "gamma"]:
        (number, address, _), *_ = index["indexentries"].get(
            word.lower(), [(-1, "", 0)]
        )
        assert number >= 0, f"{word!r} leads nowhere"
        page = pages[SITE / f"{index['docnames'][number]}.html"]
        assert not address or page.find(id=address), f"{word!r}: #{address}"


def test_no_id_stands_twice_in_a_page(pages: Pages) -> None:
    for path, page in pages.items():
        counts = Counter(attribute(tag, "id") for tag in page.find_all(id=True))
        assert [name for name, count in counts.items() if count > 1] == [], path


def test_every_picture_has_a_text_alternative(pages: Pages) -> None:
    for path, page in written(pages):
        article = page.find("article") or page
        for image in article.find_all("img"):
            alt = attribute(image, "alt")
            if "card-picture" in (image.get("class") or []):
                assert alt == "", "it shows no more than the title beside it"
                continue
            assert len(alt) >= notebook_rules.MIN_ALT, f"{path}: {image}"


def test_every_picture_waits_until_it_is_seen_and_keeps_its_place(pages: Pages) -> None:
    for path, page in written(pages):
        for picture in page.select("article img[src$='.png']"):
            assert picture.get("loading") == "lazy", path
            assert picture.get("width"), path
            assert picture.get("height"), path


def test_every_figure_is_numbered_and_captioned(pages: Pages) -> None:
    for path, page in written(pages):
        for figure in page.find_all("figure"):
            caption = figure.find("figcaption")
            assert caption, path
            assert re.match(r"\s*Fig\. \d", caption.text), f"{path}: {caption.text}"


def test_every_solution_is_folded(pages: Pages) -> None:
    for path, page in written(pages):
        for solution in page.select("div.solution"):
            assert "dropdown" in (solution.get("class") or []), path


def test_no_markup_is_left_in_the_text(pages: Pages) -> None:
    for path, page in written(pages):
        article = page.find("article")
        assert isinstance(article, Tag), path
        assert markup_in("".join(prose_of(article))) == [], path


def prose_of(tag: Tag) -> Iterator[str]:
    """Yield the text of a part of a page, without code and formulas."""
    for child in tag.children:
        if isinstance(child, Tag):
            is_math = "math" in (child.get("class") or [])
            if child.name not in ("pre", "code", "script") and not is_math:
                yield from prose_of(child)
        elif type(child) is NavigableString:  # no comment
            yield child


def markup_in(text: str) -> list[str]:
    return re.findall(r":{3,}|\{[a-z:]+\}`|\$\$|(?m:^\s*:[a-z]+: \S+)", text)


def test_markup_in_the_text_is_noticed_and_in_code_and_formulas_is_none() -> None:
    page = """<p>{doc}`a` <b>:::</b> $$</p><p>
      :width: 3</p><pre>{doc}`a`</pre><!-- ::: --><div class="math x">$$</div>"""
    text = "".join(prose_of(BeautifulSoup(page, "html.parser")))
    assert markup_in(text) == ["{doc}`", ":::", "$$", "      :width: 3"]


def test_no_output_shows_a_traceback_but_an_announced_one(pages: Pages) -> None:
    for path, page in written(pages):
        for output in page.select(".cell_output .traceback"):
            cell = output.find_parent(class_="cell")
            assert cell is not None
            assert "tag_raises-exception" in (cell.get("class") or []), path


def test_macros_are_the_same_on_the_site_and_in_print() -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    settings = config["sphinx"]["config"]
    preamble = settings["latex_elements"]["preamble"]
    printed = {}
    for name, count, body in re.findall(
        r"\\newcommand\{\\(\w+)\}(?:\[(\d)\])?\{(.*)\}", preamble
    ):
        printed[name] = [body, int(count)] if count else body
    assert printed == settings["formula_macros"]


def test_nothing_is_set_that_only_an_execution_would_read() -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert config["execute"] == {"execute_notebooks": "off", "stderr_output": "warn"}


def test_nothing_of_this_machine_stands_in_a_page(pages: Pages) -> None:
    home, folder = str(Path.home()), str(ROOT)
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert folder not in text, path
        assert home == "/" or f"{home}/" not in text, path


def test_every_page_says_what_it_is_about(pages: Pages) -> None:
    for path, page in written(pages):
        description = page.find("meta", {"name": "description"})
        assert isinstance(description, Tag), path
        assert 30 < len(attribute(description, "content")) <= 160, path


def test_lost_visitors_and_robots_find_the_way(pages: Pages) -> None:
    links = pages[SITE / "404.html"].find_all("a")
    assert [attribute(link, "href") for link in links] == [
        "book/index.html",
        "search.html",
    ]
    assert (SITE / "robots.txt").read_text(encoding="utf-8").startswith("User-agent: *")


def test_every_icon_of_the_pages_is_in_the_font() -> None:
    used = lean_files.icons_of(SITE)
    kept = set(TTFont((SITE / lean_files.ICONS).with_suffix(".woff")).getBestCmap())
    assert len(kept) > 20
    assert used - kept <= {0xF09B, 0xF296}  # those of two companies, in another font
