"""What the book quotes is what the source says.

A quote stands in curly quotes, and the brackets behind it name the source and the
place. The four documents that the book grew from are no part of the repository. Where
they are, in the folder `NORMBOOK_SOURCES` or in `shared/sources` beside the checkout,
each quote from them is looked up, spaces and typesetting aside. Everywhere, a digest
holds each quote to what it was when it was looked up.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(os.environ.get("NORMBOOK_SOURCES") or ROOT.parent / "shared/sources")
DOCUMENTS = {"Barra": "001", "Kim": "002", "Zuo": "003", "Bishop": "004"}
PAPERS = ("Ba", "Cooijmans", "Ioffe", "Santurkar")
NAMES = "|".join([*DOCUMENTS, *PAPERS])
QUOTE = re.compile(rf"“([^“”]+)”\s+\(({NAMES}),\s([^()]+)\)")
TYPESETTING = re.compile(
    r"\\(?:mathbf|mathcal|boldsymbol|text|left|right|quad)(?![A-Za-z])"
    r"|\\[,;!\\]|[\s${}&*]"
)
# The first digits of SHA-256 of a source's name and the quote without typesetting.
DIGESTS = """
    053d6d6b3d 06753becff 0b5ddeb4ea 0fee9dfa39 10c7743014 1111c0d6dc 13153621b8
    1507b858ac 15e8340eda 1e5a211c36 2104e140ce 264ced5752 301fda592d 31ca5c7470
    34e667c135 3b44740f4b 3bb463bfb5 4519d70e00 478ce84ad6 4880db5319 4999d6d047
    573e7878fa 62b2573d16 632365fb4a 648ec4f6cd 65f1bb6f76 65fd1caef8 678b9eab57
    7500ac67ad 78ec6fdfef 7a54b1eae8 7c2740623f 83dce82df9 853d610da7 8fbd11087d
    8fd28a683b 91e5d77934 92fbd2c506 93c6ff9527 95ce50b3de 9e4867b53c a437ad6a12
    a61efffbc7 ac3a747acd ae24de0c42 b632ede82b b7c4a9df40 b8239c3de1 bab14187b9
    c1aea628e9 c4eee3737e c57ee592ae ca8861e32c caa7f88f28 cef7f69a46 cf84a7ba1b
    d9c24f007e daee0a1677 dc70edc450 e29f51010d e3719c0e57 e5f263abe7 ebb22dcbc5
    f578bc826a f94d61d124 fee350f0f9 ffa28dd13e
"""
LOOKED_UP = frozenset(DIGESTS.split())


class Quote(NamedTuple):
    source: str
    text: str


def plain(text: str) -> str:
    """Return a text without spaces and typesetting."""
    text = text.replace(r"\llbracket", "[[").replace(r"\rrbracket", "]]")
    return TYPESETTING.sub("", text).replace("’", "'")


def digest(quote: Quote) -> str:
    named = f"{quote.source}: {plain(quote.text)}"
    return hashlib.sha256(named.encode()).hexdigest()[:10]


def is_in(quote: str, document: str) -> bool:
    """Return whether the parts of a quote stand in a document, in their order."""
    start, where = 0, plain(document)
    for part in quote.split("…"):
        found = where.find(plain(part), start)
        if found < 0:
            return False
        start = found + len(plain(part))
    return True


def altered(quote: str) -> str:
    """Return a quote with another letter, or figure, in its middle."""
    places = [match.start() for match in re.finditer(r"[A-Za-z0-9]", quote)]
    k = places[len(places) // 2]
    return quote[:k] + ("7" if quote[k] != "7" else "8") + quote[k + 1 :]


def prose() -> str:
    """Return the text of all pages, without the marks of indented quotes."""
    book = ROOT / "book"
    parts = [path.read_text("utf-8") for path in sorted(book.glob("*.md"))]
    for path in sorted(book.glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        parts += [cell.source for cell in cells if cell.cell_type == "markdown"]
    return re.sub(r"(?m)^> ?", "", "\n\n".join(parts))


PROSE = prose()
QUOTES = sorted({Quote(match[2], match[1]) for match in QUOTE.finditer(PROSE)})


def document(source: str) -> str:
    """Return the text of one of the four documents."""
    paths = list(SOURCES.glob(f"{DOCUMENTS[source]}_*.txt"))
    if not paths:
        pytest.skip(f"needs the four documents; none in {SOURCES} (NORMBOOK_SOURCES)")
    (path,) = paths
    return path.read_text("utf-8")


def test_every_quote_names_its_source_and_the_place() -> None:
    unnamed = QUOTE.sub("", PROSE)
    assert re.findall("[^\n]*[“”][^\n]*", unnamed) == []


def test_every_source_is_quoted() -> None:
    assert {quote.source for quote in QUOTES} == {*DOCUMENTS, *PAPERS}


@pytest.mark.parametrize("source", DOCUMENTS)
def test_a_document_has_what_is_quoted_from_it(source: str) -> None:
    text = document(source)
    quotes = [quote.text for quote in QUOTES if quote.source == source]
    assert [quote for quote in quotes if not is_in(quote, text)] == []


@pytest.mark.parametrize("source", DOCUMENTS)
def test_an_altered_quote_is_not_found(source: str) -> None:
    text = document(source)
    quotes = [altered(quote.text) for quote in QUOTES if quote.source == source]
    assert [quote for quote in quotes if is_in(quote, text)] == []


def test_every_quote_is_as_it_was_when_it_was_looked_up() -> None:
    """A quote that is new or changed is looked up first, and then its digest added."""
    assert {
        digest(quote): quote for quote in QUOTES if digest(quote) not in LOOKED_UP
    } == {}
    assert {digest(quote) for quote in QUOTES} == LOOKED_UP


def test_an_altered_quote_has_another_digest() -> None:
    changed = {digest(Quote(source, altered(text))) for source, text in QUOTES}
    assert changed.isdisjoint(LOOKED_UP)


def test_the_order_of_the_parts_counts() -> None:
    assert is_in("a … c", "a b c")
    assert not is_in("c … a", "a b c")
