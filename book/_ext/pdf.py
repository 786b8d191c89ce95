"""Make of the site a book on paper: what the builder for LaTeX has to be told.

The captions of the table of contents become parts, the first page its own short
chapter, living figures their stills, and code that the site folds stays away, as does
the code reference. On the site there is one thing: ``{on-paper}``, a link to the PDF
where there is one.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PDF = Path(__file__).parents[2] / "_pdf/normbook.pdf"  # written by tools/pdf.sh
LEFT_OUT = re.compile(r"(^|%|/)book/code_")  # the code reference
FIRST = "About this book"
APPENDIX = "Using the book"  # from this part on, chapters have letters
LINE = 90  # letters of a line
STYLE = Path(__file__).parents[1] / "_static/living/living.css"


def latex(text: str) -> nodes.raw:
    """Return a node of LaTeX."""
    return nodes.raw("", text, format="latex")


def shorten_contents(app: Sphinx, doctree: nodes.document) -> None:
    """Leave the code reference out of the contents, and head their groups as parts."""
    for tree in list(doctree.findall(addnodes.toctree)):
        tree["includefiles"] = [
            f for f in tree["includefiles"] if not LEFT_OUT.search(f)
        ]
        tree["entries"] = [
            (title, name)
            for title, name in tree["entries"]
            if not LEFT_OUT.search(name)
        ]
        # LaTeX takes the first caption that is left for the title of the contents.
        if caption := tree.attributes.pop("caption", None):
            begin = "\\appendix" if caption == APPENDIX else ""
            place = tree.parent  # a wrapper with a class, which means nothing on paper
            place.insert(place.index(tree), latex(f"{begin}\\part{{{caption}}}"))


def shorten_first_page(doctree: nodes.document) -> None:
    """Keep of the first page what it says before its first section."""
    page = doctree.next_node(nodes.section)
    if page is None:
        return
    trees = list(doctree.findall(addnodes.toctree))
    boxes = [tree.parent for tree in trees]
    for section in list(page.findall(nodes.section))[1:]:
        if section.parent is not None:
            section.parent.remove(section)
    page.insert(1, latex(f"\\chapter*{{{FIRST}}}"))
    for box in boxes:
        if box not in page.children:
            page += box


def unfold(doctree: nodes.document) -> None:
    """Take away the code of cells that the site folds; what it gave stays."""
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") == "cell_code" and cell.get("hide_mode") == "input":
            del cell["hide_mode"]
            for child in list(cell.children):
                if child.get("nb_element") == "cell_code_source":
                    cell.remove(child)
            if not cell.children:
                cell.parent.remove(cell)
    for section in list(doctree.findall(nodes.section)):
        if len(section) == 1 and isinstance(
            section[0], nodes.title
        ):  # imports were all
            section.parent.remove(section)


def break_tables(doctree: nodes.document) -> None:
    """Let tables run over pages, with columns as wide as what is in them."""
    for table in list(doctree.findall(nodes.table)):
        if nested_in(table, nodes.entry):
            continue  # LaTeX breaks none of these
        rows = [list(row.findall(nodes.entry)) for row in table.findall(nodes.row)]
        columns = list(table.findall(nodes.colspec))
        if any(len(row) != len(columns) for row in rows):
            continue  # cells that span, or a table in one
        for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
            column["colwidth"] = width_of([cell.astext() for cell in cells])
        if sum(column["colwidth"] for column in columns) > LINE / 2:
            table["classes"] += ["longtable", "colwidths-given"]
        elif len(rows) > 15:
            table["classes"] += ["longtable"]


def width_of(texts: list[str]) -> int:
    """Return how many letters wide a column of these texts should be.

    It holds the longest word; beyond that, width grows as the root of the text.
    """
    word = max((len(w) for text in texts for w in text.split()), default=1)
    line = max(map(len, texts))
    return max(min(line, 12), min(word, 30), round(math.sqrt(line * LINE / 4)))


def nested_in(node: nodes.Node, kind: type[nodes.Node]) -> bool:
    """Say whether a node stands in one of some kind."""
    while node := node.parent:
        if isinstance(node, kind):
            return True
    return False


def open_solutions(doctree: nodes.document) -> None:
    """Take the frame from solutions: a framed code in a frame breaks over no page."""
    for box in list(doctree.findall(nodes.Admonition)):
        if type(box).__name__ == "solution_node":
            title, *rest = box.children
            for link in list(title.findall(nodes.reference)):
                link.replace_self(link.children)
            label = f"{box['docname']}:{box['label']}"
            head = nodes.paragraph("", "", nodes.strong("", "", *title.children))
            begin = latex(f"\\phantomsection\\label{{{label}}}")
            box.replace_self([begin, head, *rest])


def style_of_stills(css: str) -> str:
    """Return the rules for what is drawn, in the light colours, without variables.

    A program that converts a drawing has no page around it.
    """
    colours = dict(re.findall(r"(--\w+): (#\w+)", css.partition("}")[0]))
    rules = re.findall(r"\.living ((?:line|text|\.[a-z])[^{]*\{[^}]*\})", css)

    def colour(use: re.Match[str]) -> str:
        return colours.get(use[1]) or use[2]

    told = re.sub(r"var\((--[\w-]+)(?:, *(#\w+))?\)", colour, " ".join(rules))
    return told.replace(".living ", "").replace("currentcolor", "#000")


def draw_still(app: Sphinx, figure: nodes.figure) -> None:
    """Put the still of a living figure into it, as a PDF of the same lines."""
    (drawing,) = figure.findall(nodes.raw)
    svg = drawing.astext().partition(">")[2].rpartition("</div>")[0]
    rules = style_of_stills(STYLE.read_text("utf-8"))
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
    svg = svg.replace("<svg ", head, 1).replace(">", f"><style>{rules}</style>", 1)
    path = Path(app.doctreedir).parent / "stills" / f"{figure['living']}.pdf"
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["rsvg-convert", "-f", "pdf", "-o", str(path)], input=svg.encode(), check=True
    )
    image = nodes.image(uri=str(path), candidates={"*": str(path)}, width="80%")
    app.env.images.add_file(app.env.docname, str(path))
    drawing.replace_self(image)


def adapt(app: Sphinx, doctree: nodes.document) -> None:
    """Change a page for paper."""
    if app.builder.format != "latex":
        return
    shorten_contents(app, doctree)
    if app.env.docname == app.config.root_doc:
        shorten_first_page(doctree)
    unfold(doctree)
    break_tables(doctree)
    for figure in list(doctree.findall(nodes.figure)):
        if "living" in figure:
            draw_still(app, figure)
    if any("bibliography" in type(node).__name__ for node in doctree.findall()):
        # LaTeX writes a chapter of that name for it.
        doctree.children = doctree.next_node(nodes.section).children[1:]


def mend_links(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Turn links into what is left out to plain text, and number those to exercises.

    An exercise has a label of its own in LaTeX, and its number from the site.
    """
    if app.builder.format != "latex":
        return
    open_solutions(doctree)
    for link in list(doctree.findall(nodes.reference)):
        if LEFT_OUT.search(link.get("refuri", "")):
            link.replace_self(link.children)
    for link in list(doctree.findall(nodes.reference)):
        target, _, label = link.get("refuri", "").lstrip("%").partition("#")
        label = label or link.get("refid", "")
        numbers = app.env.toc_fignumbers.get(target or page, {}).get("exercise", {})
        if label in numbers:
            told = link.children
            if isinstance(link, addnodes.number_reference):
                told = [latex("Exercise " + ".".join(map(str, numbers[label])))]
            begin = latex(f"\\hyperref[exercise:{label}]{{")
            link.replace_self([begin, *told, latex("}")])


class OnPaper(SphinxDirective):
    """A sentence that leads to the PDF, where there is one, and nothing elsewhere."""

    def run(self) -> list[nodes.Node]:
        """Return a paragraph, or nothing."""
        self.env.note_dependency(str(PDF))
        if self.env.app.builder.format != "html" or not PDF.exists():
            return []
        up = "../" * self.env.docname.count("/")
        link = nodes.reference("", "one PDF", refuri=up + PDF.name, internal=False)
        size = f" ({PDF.stat().st_size / 1e6:.0f} MB), "
        rest = "with the code that carries an argument and without the code reference."
        words = [nodes.Text("The whole book is also "), link, nodes.Text(size + rest)]
        return [nodes.paragraph("", "", *words)]


def add_pdf(app: Sphinx, error: Exception | None) -> None:
    """Put the PDF beside the pages."""
    if error is None and app.builder.format == "html" and PDF.exists():
        shutil.copy2(PDF, app.outdir)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_directive("on-paper", OnPaper)
    app.connect("doctree-read", adapt, priority=900)  # after folds are marked
    app.connect("doctree-resolved", mend_links, priority=900)
    app.connect("build-finished", add_pdf)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
