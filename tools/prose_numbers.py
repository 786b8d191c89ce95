"""Hold the decimal numbers of prose and captions to the outputs that they repeat.

    python tools/prose_numbers.py                  # numbers that no longer hold
    python tools/prose_numbers.py --mark [FILE]    # mark those that are new

A cell of prose keeps in its metadata, for each decimal of two figures or more, how many
cells away the output stands that prints it, and as what: "2.4": "-2 2.413". One
that no output nearby prints is kept too, with nothing behind it: it is a setting, a
figure from a source or arithmetic, and only people read it. What a caption or a text
alternative says may also stand in the figure: "0.33": "0 0.328". Of two figures, one
link in four may be a coincidence; of one figure (0.1) most were, so there is none.
Marking leaves alone what was marked before: where an output changed, the sentence has
to.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import nbformat
from notebook_rules import Cell, Notebook, dumps, normalize

from normbook import drawn

ROOT = Path(__file__).resolve().parent.parent
KEY = "numbers"  # of a cell's metadata
NEAR = 8  # cells of code around the prose; farther, two figures agree by chance
# No prose: code, formulas, addresses, names of roles and directives.
REST = re.compile(
    r"(?ms)^ *(`{3,}).*?^ *\1 *$|^:::.*?$|\$\$.*?\$\$|\$[^$]*\$"
    r"|`[^`]*`|\]\([^)]*\)|<[^>]*>"
)
WRITTEN = re.compile(r"(?<![\w.^{/-])(?:\d*\.\d+|\d+(?=e))(?:e-?\d+)?(?!\w|\.\d)")
PRINTED = re.compile(r"(?<![\w.])(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?![\w.]*\d)")


class Link(NamedTuple):
    """How many cells away a number is printed, and as what."""

    away: int
    printed: str

    def __str__(self) -> str:
        return f"{self.away} {self.printed}"


def link_of(text: str) -> Link | None:
    """Return what the metadata say of a number; None if nothing prints it."""
    away, _, printed = text.partition(" ")
    return Link(int(away), printed) if text else None


def prose(cell: Cell) -> str:
    """Return the text of a cell; of one with code the caption and alternative."""
    if cell.cell_type == "markdown":
        return str(cell.source)
    own = cell.metadata.get("mystnb", {})
    told = own.get("figure", {}).get("caption", ""), own.get("image", {}).get("alt", "")
    return "\n\n".join(told)


def written(cell: Cell) -> list[str]:
    """Return the decimals of two figures or more in the prose of a cell, each once."""
    found = WRITTEN.findall(REST.sub(" ", prose(cell)))
    return list(dict.fromkeys(number for number in found if figures(number) > 1))


def figures(number: str) -> int:
    """Return how many significant figures a number is written with."""
    return len(number.partition("e")[0].replace(".", "").lstrip("0"))


def printed(cell: Cell) -> list[str]:
    """Return the numbers that the stored outputs of a cell print."""
    texts = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.get("outputs", ())
    ]
    return PRINTED.findall("\n".join(texts))


def shown(notebook: Notebook, place: int, position: int) -> list[str]:
    """Return the numbers that a cell prints; to its caption also those it draws."""
    cell = notebook.cells[place]
    found = printed(cell)
    if place == position:
        for output in cell.outputs:
            record = output.get("data", {}).get(drawn.MIME, ())
            found += [value.lstrip("-") for value in drawn.read_off(record)]
    return found


def agrees(prose: str, output: str) -> bool:
    """Return whether a printed number is the one in prose, rounded as there."""
    wanted = Decimal(prose)
    unit = Decimal(1).scaleb(int(wanted.as_tuple().exponent))
    return abs(Decimal(output) - wanted) <= unit / 2


def search(notebook: Notebook, position: int, number: str) -> Link | None:
    """Return the nearest output that prints a number of prose; before one behind."""
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    code.sort(key=lambda i: (abs(i - position), i > position))
    for i in code if figures(number) > 2 else code[:NEAR]:
        # The one with most figures: it repeats by chance least.
        found = [p for p in shown(notebook, i, position) if agrees(number, p)]
        if found:
            return Link(i - position, max(found, key=len))
    return None


def again(notebook: Notebook, position: int, number: str, link: Link) -> Link:
    """Return where a number is printed now: other figures behind it, or cells between.

    The old link where it is printed no more.
    """
    place = position + link.away
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    for i in sorted(code, key=lambda i: abs(i - place)):
        found = shown(notebook, i, position)
        if i == place and (same := [p for p in found if agrees(number, p)]):
            return Link(link.away, max(same, key=len))
        if link.printed in found and agrees(number, link.printed):
            return Link(i - position, link.printed)
    return link


def holds(notebook: Notebook, position: int, number: str, link: Link) -> bool:
    """Return whether the output still prints what the prose repeats."""
    place = position + link.away
    return (
        0 <= place < len(notebook.cells)
        and link.printed in shown(notebook, place, position)
        and agrees(number, link.printed)
    )


def mark(notebook: Notebook) -> None:
    """Mark the numbers of prose that are new, and find again outputs that moved."""
    for position, cell in enumerate(notebook.cells):
        old = cell.metadata.pop(KEY, {})
        links = {}
        for number in written(cell):
            link = link_of(old.get(number, ""))
            if number not in old:
                link = search(notebook, position, number)
            elif link and not holds(notebook, position, number, link):
                link = again(notebook, position, number, link)
            links[number] = str(link or "")
        if links:
            cell.metadata[KEY] = links


def numbers_hold(notebook: Notebook) -> Iterator[str]:
    """What prose repeats of an output is what the output prints."""
    for position, cell in enumerate(notebook.cells):
        links = cell.metadata.get(KEY, {})
        if set(links) != set(written(cell)):
            news = ", ".join(sorted(set(links) ^ set(written(cell))))
            yield (
                f"cell {position}: the decimals of prose must be marked, but these "
                f"came or went: {news}; run `python tools/prose_numbers.py --mark`"
            )
        for number, text in links.items():
            link = link_of(text)
            if link and not holds(notebook, position, number, link):
                yield (
                    f"cell {position}: {number} repeats {link.printed}, which cell "
                    f"{position + link.away} has to print and does not; write what it "
                    "prints now, then mark the numbers again"
                )


def main() -> int:
    """Check or mark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mark", action="store_true")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    all_links, failed = [], False
    for path in options.files or sorted((ROOT / "book").glob("**/*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if options.mark:
            mark(notebook)
            path.write_text(dumps(normalize(notebook, path.stem)), encoding="utf-8")
        for complaint in numbers_hold(notebook):
            failed = True
            print(f"{path.name}: {complaint}")
        for cell in notebook.cells:
            all_links += cell.metadata.get(KEY, {}).values()
    held = sum(map(bool, all_links))
    print(f"{held} of {len(all_links)} decimals of texts are held to an output")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
