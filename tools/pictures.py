"""Whether the picture that a notebook stores is the one that its code draws.

What a figure shows is compared by its record (`normbook.drawn`), number by number. The
picture beside it is what readers see: it could be another one, or an old one. Pixels of
two machines differ, by the rounding of a curve or the hinting of a letter; so both are
compared as mosaics, of which the tiles are larger than letters.

Measured: of four figures, drawn by two versions of Matplotlib that hint letters
otherwise (3.10.8 and 3.11.2), at most 1 % of the tiles differ; of any two figures of a
notebook of the book at least 26 %; and 9 % where, of one figure, a curve of four is
missing. Two curves that exchange their colours (2 %) the record alone finds.
"""

from __future__ import annotations

import base64
import binascii
import io

import numpy as np
from PIL import Image, UnidentifiedImageError

TILE = 48  # pixels
APART = 0.03  # of the range from black to white
MANY = 0.03  # of the tiles
STRETCHED = 0.02  # of a side; how large letters are decides where a picture is cut


def difference(stored: str, drawn: str, *, is_rough: bool = False) -> str:
    """Return in what two pictures differ, PNG in base64, or nothing.

    Of a figure whose curves a rounding moves (`is_rough`) the size alone is compared.
    """
    images = []
    for name, png in (("stored", stored), ("drawn", drawn)):
        try:
            image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
        except (UnidentifiedImageError, binascii.Error, OSError) as error:
            return f"the {name} picture cannot be read: {type(error).__name__}"
        white = Image.new("RGBA", image.size, "white")
        images.append(Image.alpha_composite(white, image).convert("RGB"))
    one, other = (image.size for image in images)
    if any(abs(a - b) > STRETCHED * a for a, b in zip(one, other, strict=True)):
        return "the stored picture has {}x{} pixels, the drawn one {}x{}".format(
            *one, *other
        )
    if is_rough:
        return ""
    size = max(1, one[0] // TILE), max(1, one[1] // TILE)
    tiles = [
        np.asarray(image.resize(size, Image.Resampling.BOX), dtype=float) / 255
        for image in images
    ]
    share = (np.abs(tiles[0] - tiles[1]).max(axis=2) > APART).mean()
    if share > MANY:
        return f"{share:.0%} of the stored picture look otherwise than what is drawn"
    return ""
