"""The directive ``chapters``: a card for each chapter, with its first figure, small.

Each line of its content is ``name: question``. The pictures are made from the outputs
that the notebooks store, so they are those of the chapters.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SIZE = 440, 220  # pixels: on a card they are half as large
FOLDER = "_images/cards"


class Chapters(SphinxDirective):
    """Cards of chapters, which stand beside this page."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the list of cards."""
        cards = nodes.bullet_list(classes=["chapter-cards"])
        for line in self.content:
            name, colon, question = line.partition(": ")
            if not colon:
                raise self.error(f"a card must be 'name: question', got {line!r}.")
            cards += self.card(name, question)
        return [cards]

    def card(self, name: str, question: str) -> nodes.list_item:
        """Return a picture, the title with a link, the question and the time."""
        folder = self.env.docname.rpartition("/")[0]
        path = Path(self.env.doc2path(f"{folder}/{name}"))
        self.env.note_dependency(str(path))
        image = first_figure(path)
        source = "../" * self.env.docname.count("/") + f"{FOLDER}/{name}.png"
        width, height = image.size
        picture = (
            f'<img class="card-picture" src="{source}" alt="" loading="lazy" '
            f'width="{width // 2}" height="{height // 2}">'
        )
        kept(self.env)[name] = image
        head, _ = self.parse_inline(f"**{{doc}}`{name}`** {question}")
        time, _ = self.parse_inline(f"{{minutes}}`{name}`")
        return nodes.list_item(
            "",
            nodes.raw("", picture, format="html"),
            nodes.paragraph("", "", *head),
            nodes.paragraph("", "", *time, classes=["card-time"]),
        )


def kept(env: Any) -> dict[str, Image.Image]:
    """Return the pictures by the names of their chapters."""
    if not hasattr(env, "card_pictures"):
        env.card_pictures = {}
    pictures: dict[str, Image.Image] = env.card_pictures
    return pictures


def first_figure(path: Path) -> Image.Image:
    """Return the first picture that a notebook stores, small."""
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png"):
                image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
                image.thumbnail(SIZE)
                return image
    raise ValueError(f"a chapter needs a figure for its card, {path.name} has none")


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the pictures, with few colours: a tenth of their size."""
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in kept(app.env).items():
            image.quantize(32).save(folder / f"{name}.png", optimize=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("chapters", Chapters)
    app.connect("build-finished", write)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
