"""Omniglot: how people draw characters (Lake et al. 2015), and lines of them.

Each character of an alphabet was drawn once by each of 20 people, in a box of 105 x
105 units, with a mouse or a finger. What is kept is the path of the pen. The authors
publish two zip archives of five alphabets each; Greek and Latin are in both and count
once: eight alphabets, 4 840 drawings.

A file in the archive is one drawing, such as ``Greek/character01/0394_06.txt`` by the
sixth person. It is text: a line ``START``, a line ``x,y,time`` for each point (the
time in ms is not used here), and ``BREAK`` behind each stroke. x grows to the right, y
upwards, so that the box reaches from (0, -105) to (105, 0).

A network that is to write takes the pen's way in steps, as in Graves (2013,
arXiv:1308.0850, section 4): how far to the next point, and whether the pen is lifted
there. :func:`lines` makes lines of several characters of such steps.
"""

from __future__ import annotations

import io
import math
import operator
import zipfile
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normbook.data import check_size, files
from normbook.data.catalogue import OMNIGLOT_STROKES


class Drawing(NamedTuple):
    """One character as one person drew it.

    ``character``, the number in the alphabet, and ``drawer``, that of the person, count
    from 1. ``strokes``, (K_i, 2), are the points (x, y) of each stroke in the order in
    which they were drawn, at least one; y grows upwards.
    """

    alphabet: str
    character: int
    drawer: int
    strokes: tuple[NDArray[np.float64], ...]


class Lines(NamedTuple):
    """Lines of characters as steps of the pen, an array (T_i, 3) each.

    A step is (dx, dy, lift): how far from the last point to the next one, and 1 where
    the stroke ends there, else 0. The first one leads to the first point, from nowhere:
    it has dx = dy = 0. ``scale`` counts the units of the box in one of dx and dy.
    """

    train: tuple[NDArray[np.float64], ...]
    test: tuple[NDArray[np.float64], ...]
    scale: float


def load() -> tuple[Drawing, ...]:
    """Load the 4 840 drawings of Omniglot, by alphabet, character and drawer."""
    # A drawing that is in both archives is kept once.
    drawings = {
        drawing[:3]: drawing
        for file in OMNIGLOT_STROKES.files
        for drawing in read(files.read(OMNIGLOT_STROKES, file))
    }
    return tuple(drawings[key] for key in sorted(drawings))


def read(content: bytes) -> tuple[Drawing, ...]:
    """Return the drawings in a zip archive whose hash has matched."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return tuple(
            _drawing(name, archive.read(name))
            for name in archive.namelist()
            # not a folder, nor what macOS adds
            if name.endswith(".txt") and not name.startswith("__MACOSX/")
        )


def _drawing(name: str, content: bytes) -> Drawing:
    """Return the drawing in one file."""
    _, alphabet, character, person = name.removesuffix(".txt").split("/")
    strokes = [
        np.array([point.split(",")[:2] for point in stroke.split()], float)
        for stroke in content.decode("ascii").removeprefix("START").split("BREAK")
    ]
    number, drawer = character.removeprefix("character"), person.split("_")[1]
    return Drawing(alphabet, int(number), int(drawer), tuple(strokes[:-1]))


def resample(stroke: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """Place points on a stroke (K, 2) at equal distances along it.

    Between its points, at least one, all finite, the pen went straight. The distance,
    ``length`` above 0, is changed a little so that a whole number of pieces, at least
    one, makes up the stroke: the ends stay where they are. Where the pen did not move
    it is one point.

    Examples
    --------
    Two units to the right and two up, in pieces of about 1.2:

    >>> corner = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0]])
    >>> resample(corner, 1.2).round(2).tolist()
    [[0.0, 0.0], [1.33, 0.0], [2.0, 0.67], [2.0, 2.0]]
    """
    if not length > 0:
        raise ValueError(f"length must be above 0, got {length}; give 3.0, say.")
    stroke = np.asarray(stroke, dtype=np.float64)
    if stroke.ndim != 2 or stroke.shape[1] != 2 or len(stroke) == 0:
        raise ValueError(
            f"stroke must have shape (K, 2) with a point or more, got {stroke.shape}; "
            "give x and y of each point, and leave empty strokes out."
        )
    if not np.isfinite(stroke).all():
        raise ValueError(
            f"stroke must hold finite numbers, got {stroke.min()} to {stroke.max()}; "
            "leave such points out."
        )
    pieces = np.hypot(*np.diff(stroke, axis=0).T)
    way = np.concatenate([[0.0], np.cumsum(pieces)])  # from the first point
    if way[-1] == 0:
        return stroke[:1].copy()
    places = np.linspace(0.0, way[-1], max(1, round(way[-1] / length)) + 1)
    x, y = (np.interp(places, way, column) for column in stroke.T)
    return np.stack([x, y], axis=1)


def lines(
    drawings: Sequence[Drawing],
    generator: np.random.Generator,
    *,
    characters: int = 8,
    repeats: int = 1,
    length: float = 3.0,
    gap: float = 15.0,
    test_drawers: Collection[int] = (17, 18, 19, 20),
) -> Lines:
    """Write lines: some characters of one alphabet beside each other, by one person.

    The characters that one person drew of one alphabet are shuffled and taken in
    groups; what is left over at the end is dropped. The lines of the ``test_drawers``
    are for testing, those of the others for training: of Omniglot, 112 and 448. For
    training this is repeated, so that a character stands beside several others.

    Along a stroke points have a distance of ``length`` (units of the box), see
    :func:`resample`. Characters keep their height in the box. The leftmost point of
    each stands ``gap`` to the right of the rightmost point of the one before it. All
    offsets are divided by one number, the root mean square of dx and dy over the steps
    for training, so that shapes stay as they are.

    Without a line for each, or where the pen never moves, it is a ``ValueError``.

    Examples
    --------
    >>> bar = (np.array([[0.0, 0.0], [0.0, 6.0]]),)
    >>> drawings = [Drawing("bars", c, d, bar) for d in (1, 2) for c in (1, 2)]
    >>> made = lines(
    ...     drawings, np.random.default_rng(0), characters=2, gap=4, test_drawers=[2]
    ... )
    >>> (made.test[0] * [made.scale, made.scale, 1]).round(2) + 0.0
    array([[ 0.,  0.,  0.],
           [ 0.,  3.,  0.],
           [ 0.,  3.,  1.],
           [ 4., -6.,  0.],
           [ 0.,  3.,  0.],
           [ 0.,  3.,  1.]])
    """
    check_size("characters", characters, 1)
    check_size("repeats", repeats, 1)
    if not math.isfinite(gap):
        raise ValueError(f"gap must be finite, got {gap}; give 15.0, say.")
    by_person: dict[tuple[str, int], list[Drawing]] = {}
    for drawing in sorted(drawings, key=operator.itemgetter(0, 1, 2)):
        if not drawing.strokes:
            raise ValueError(
                f"each drawing must have a stroke, got none in {drawing[:3]}; leave it "
                "out."
            )
        by_person.setdefault((drawing.alphabet, drawing.drawer), []).append(drawing)
    train: list[NDArray[np.float64]] = []
    test: list[NDArray[np.float64]] = []
    for (_, drawer), drawn in by_person.items():
        is_test = drawer in test_drawers
        written = [[resample(s, length) for s in drawing.strokes] for drawing in drawn]
        for _ in range(1 if is_test else repeats):
            order = generator.permutation(len(drawn))
            for start in range(0, len(drawn) - characters + 1, characters):
                chosen = [written[i] for i in order[start : start + characters]]
                line = _line(chosen, gap)
                (test if is_test else train).append(line)
    if not train or not test:
        raise ValueError(
            "there must be a line for training and one for testing, got "
            f"{len(train)} and {len(test)} from {len(drawings)} drawings; give more "
            "of them, fewer characters a line, or other test_drawers."
        )
    # The first step of a line leads nowhere.
    offsets = np.concatenate([line[1:, :2] for line in train])
    if not offsets.any():
        raise ValueError(
            "the pen must move in a line for training, got points alone; give drawings "
            "with longer strokes, or more characters a line."
        )
    scale = float(np.sqrt(np.mean(offsets**2)))
    for line in train + test:
        line[:, :2] /= scale
    return Lines(tuple(train), tuple(test), scale)


def _line(
    characters: Sequence[Sequence[NDArray[np.float64]]], gap: float
) -> NDArray[np.float64]:
    """Steps of one line, in units of the box."""
    points, lifts = [], []
    left = 0.0
    for strokes in characters:
        character = np.concatenate(strokes)
        points.append(character + np.array([left - character[:, 0].min(), 0.0]))
        left = points[-1][:, 0].max() + gap
        lifts += [np.arange(len(stroke)) == len(stroke) - 1 for stroke in strokes]
    way = np.concatenate(points)
    offsets = np.diff(way, axis=0, prepend=way[:1])
    return np.column_stack([offsets, np.concatenate(lifts)])
