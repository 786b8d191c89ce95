"""What a figure shows, as words and numbers: so that a stored figure can be compared.

A picture of another machine differs in pixels. Here a figure is what its artists hold.
Each panel has a line of text for each axis, and one for all artists that look alike::

    line; batch normalization, #0072b2, -; x 0 9545; y 9: 455 9545 3000 -60 39; at 1 2.3

That is (with tabs in place of the semicolons) a kind, words, and numbers by name.
Places (x, y) are fractions of a panel, and colours (c) of a colour map, in ten
thousandths. Few numbers stand there as they are, more as their count, lowest, highest,
mean, and two weighted sums of each 32, in which each counts. What a reader takes from
the scales, ``at`` lists to three figures: all coordinates of few points, of more the
first, last, lowest and highest. ``=`` stands for what the last line of this kind has in
this place.

Where a notebook shows a figure, this record is stored beside the picture, and compared
when the notebook is run again. What captions and text alternatives say in numbers is
held to ``at`` (`tools/prose_numbers.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from normbook.extra import of_the_book

with of_the_book():
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import Collection, QuadMesh
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.spines import Spine
    from matplotlib.text import Annotation, Text
    from matplotlib.ticker import FixedLocator

MIME = "application/vnd.normbook.figure+json"
ROUGH = "rough-figure"  # the tag of a cell whose curves a rounding moves
UNIT = 10_000  # the width or height of a panel
FEW = 6  # numbers that stand in a record as they are
MANY = 16  # points of which a record has no coordinates but those of a few
READ = "at"  # their name
CLOSE = 0.001  # of what the numbers span, a tenth of the panel or more: below a line
BLOCK = 32  # numbers of which a record has sums
# Two for each, less 2: whatever number moves, or run of numbers, one of the sums does.
DIGITS = "11001001043011010441030010303030", "03404130103404330030444303134033"
WEIGHTS = np.array([[*digits] for digits in DIGITS], dtype=float).T - 2
WIDE = 0.2  # of the panel: where a rounding moves a curve
DECIMAL = re.compile(r"\d+\.\d+")
NUMBER = re.compile(r"text [\d.]+")  # a thing that is drawn: a text, and it a number


def store_with_figures() -> None:
    """Let a notebook store the record of each figure that it shows."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell:
        bundles = shell.display_formatter.mimebundle_formatter
        bundles.for_type(Figure, lambda figure: {MIME: record(figure)})


def record(figure: Figure) -> list[str]:
    """Return what a figure shows: its words, then its panels with what is in them."""
    lines = []
    for part in (figure, *figure.subfigs):
        lines += [_words("text", text.get_text()) for text in part.texts]
        lines += [_legend(legend) for legend in part.legends]
    for axes in figure.axes:
        for panel in (axes, *axes.child_axes):
            if isinstance(panel, Axes) and panel.get_visible():
                lines += _panel(panel)
    return list(_shortened(lines))


def _panel(axes: Axes) -> Iterator[str]:
    yield _axis("x", axes.xaxis)
    yield _axis("y", axes.yaxis)
    titles = [axes.get_title(where) for where in ("left", "center", "right")]
    if any(titles):
        yield _words("title", *titles)
    if legend := axes.get_legend():
        yield _legend(legend)
    looks: dict[str, list[dict[str, Any]]] = {}
    for artist in axes.get_children():
        is_frame = artist is axes.patch or isinstance(artist, Spine | Axis | Legend)
        is_told = isinstance(artist, Text) and artist.get_text() in ("", *titles)
        is_told &= _arrow(artist) is None
        if artist.get_visible() and not is_frame and not is_told:
            looks.setdefault(_look(artist), []).append(_places(artist, axes))
    for look, places in looks.items():
        parts = {k: np.concatenate([place[k] for place in places]) for k in places[0]}
        told = {k: _numbers(v) for k, v in parts.items() if k != READ}
        if READ in parts:
            told[READ] = " ".join(_figures(parts[READ]))
        yield "\t".join([look, *(f"{k} {text}" for k, text in told.items())])


def _axis(name: str, axis: Axis) -> str:
    """Return the label of an axis, its limits (of a log axis the exponents), ticks."""
    low, high = axis.get_view_interval()
    is_log = axis.get_scale() == "log"
    ends = np.log10([low, high]) if is_log else (low, high)
    ticks: list[str] = []
    if isinstance(axis.get_major_locator(), FixedLocator):
        ticks = axis.get_major_formatter().format_ticks(list(axis.get_majorticklocs()))
    words = _words(name, axis.get_label().get_text(), axis.get_scale(), *ticks)
    return f"{words}\tlimits {ends[0]:.5g} {ends[1]:.5g}"


def _legend(legend: Legend) -> str:
    """Return the words of a legend, each with the look of what stands before it."""
    words = [legend.get_title().get_text()]
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        parts: Sequence[Any] = [handle, *handle.get_children()] if handle else []
        words += [_look(part).replace("\t", " ") for part in parts]
        words.append(text.get_text())
    return _words("legend", *words)


def _words(kind: str, *words: object) -> str:
    return f"{kind}\t" + ", ".join(
        str(word) for word in words if word not in ("", "None")
    )


def _look(artist: Artist) -> str:
    """Return the kind of an artist, then its label and colours."""
    label = str(artist.get_label())
    label = "" if label.startswith("_") else label
    if isinstance(artist, Line2D):
        style, marker = str(artist.get_linestyle()), str(artist.get_marker())
        return _words("line", label, to_hex(artist.get_color()), style, marker)
    if isinstance(artist, Collection):
        colours = [*artist.get_facecolor(), *artist.get_edgecolor()]
        if artist.get_array() is None:
            return _words("area", label, *sorted({to_hex(c) for c in colours}))
        return _words("area", label, artist.get_cmap().name)
    if isinstance(artist, AxesImage):
        return _words("image", label, artist.get_cmap().name)
    if isinstance(artist, Patch):
        filled = to_hex(artist.get_facecolor()) if artist.get_fill() else ""
        return _words("patch", label, filled, to_hex(artist.get_edgecolor()))
    if isinstance(artist, Text):
        if arrow := _arrow(artist):
            return _words("arrow", artist.get_text(), to_hex(arrow.get_edgecolor()))
        return _words("text", artist.get_text())
    return _words(type(artist).__name__, label)


def _arrow(artist: Artist) -> Patch | None:
    return artist.arrow_patch if isinstance(artist, Annotation) else None


def _places(artist: Artist, axes: Axes) -> dict[str, Any]:
    """Return where an artist is drawn in its panel, and in which colours of a map."""
    transform, colours = artist.get_transform(), None
    points: Any = np.empty((0, 2))
    if isinstance(artist, Line2D):
        points = artist.get_xydata()
    elif isinstance(artist, QuadMesh):
        points = np.reshape(artist.get_coordinates(), (-1, 2))
        colours = artist.get_array()
    elif isinstance(artist, Collection):
        points = [path.vertices for path in artist.get_paths()]
        points = np.concatenate(points or [np.empty((0, 2))])
        if artist.get_offset_transform().contains_branch(axes.transData):
            points, transform = artist.get_offsets(), artist.get_offset_transform()
        colours = artist.get_array()
    elif isinstance(artist, AxesImage):
        left, right, bottom, top = artist.get_extent()
        points, colours = [(left, bottom), (right, top)], artist.get_array()
    elif isinstance(artist, Patch):
        path = artist.get_path().transformed(artist.get_patch_transform())
        points, transform = path.vertices, artist.get_data_transform()
    elif isinstance(artist, Annotation):
        points = [artist.xy]
        if _arrow(artist) and artist.anncoords == artist.xycoords:
            points = [artist.get_position(), artist.xy]  # from its tail to its head
        transform = axes.transData if artist.xycoords == "data" else axes.transAxes
    elif isinstance(artist, Text):
        points = [artist.get_position()]
    with np.errstate(invalid="ignore", divide="ignore"):
        raw = _filled(points)
        points = (transform - axes.transAxes).transform(raw)
    found = {"x": points[:, 0], "y": points[:, 1]}
    scales = transform.contains_branch_seperately(axes.transData)
    if read := [
        _read_off(v) for v, is_read in zip(raw.T, scales, strict=True) if is_read
    ]:
        found[READ] = np.concatenate(read)
    if isinstance(artist, Collection | AxesImage) and colours is not None:
        found["c"] = _filled(artist.norm(colours)).ravel()
    return found


def _read_off(values: Any) -> Any:
    """Return coordinates that a reader may take from a scale."""
    known = values[np.isfinite(values)]
    if known.size > MANY:
        known = np.array([known[0], known[-1], known.min(), known.max()])
    return known


def _figures(values: Any) -> list[str]:
    """Return numbers to three figures, each once."""
    texts = dict.fromkeys(f"{value:.3g}" for value in np.unique(values))
    return [text.replace("e+0", "e").replace("e-0", "e-") for text in texts]


def read_off(record: Sequence[str]) -> list[str]:
    """Return what a reader can take from the scales of a recorded figure."""
    return [
        value for _, numbers in _read(record) for value in numbers.get(READ, "").split()
    ]


def _filled(values: Any) -> Any:
    """Return numbers with nan in place of those that are masked."""
    return np.ma.filled(np.ma.asarray(values, dtype=float), np.nan)


def _numbers(values: Any) -> str:
    """Return numbers, or their count, lowest, highest, mean and sums."""
    values = np.clip(values, -1.0, 2.0) * UNIT  # what is farther away is not seen
    if values.size <= FEW:
        return " ".join(f"{v:.0f}" for v in values)
    known = np.isfinite(values)
    count = f"{known.sum()}:" if known.all() else f"{known.sum()} of {values.size}:"
    if not known.any():
        return count
    low, high, mean = (f(values[known]) for f in (np.min, np.max, np.mean))
    apart = np.where(known, values - mean, 0.0)
    blocks = np.pad(apart, (0, -apart.size % BLOCK)).reshape(-1, BLOCK)
    sums = blocks @ WEIGHTS / min(values.size, BLOCK) ** 0.5
    return " ".join([count, *(f"{v:.0f}" for v in (low, high, mean, *sums.ravel()))])


def differences(
    stored: Sequence[str], found: Sequence[str], *, is_rough: bool = False
) -> list[str]:
    """Return in what two records differ, a line for each thing that does.

    Parameters
    ----------
    stored, found
        Two records.
    is_rough
        For curves that a rounding moves: words and looks are compared as ever, but of
        the numbers only where things begin and end and their mean, to a fifth of the
        panel; of decimals in words that they are there, and texts that are a number
        not at all.
    """
    rows, others = (
        [
            (DECIMAL.sub("#", look) if is_rough else look, numbers)
            for look, numbers in _read(record)
            if not (is_rough and NUMBER.fullmatch(look))
        ]
        for record in (stored, found)
    )
    if len(rows) != len(others):
        return [f"{len(rows)} things are stored, {len(others)} are drawn"]
    lines = []
    for (look, one), (other_look, other) in zip(rows, others, strict=True):
        if look != other_look or [*one] != [*other]:
            lines.append(f"stored {look!r}, drawn {other_look!r}")
            continue
        lines += [
            f"{look}: {name} stored {one[name]!r}, drawn {other[name]!r}"
            for name in one
            if (
                not is_rough and _is_read_otherwise(one[name], other[name])
                if name == READ
                else _is_apart(one[name], other[name], name == "limits", is_rough)
            )
        ]
    return lines


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    """Write ``=`` where a line has the same as the last one of its kind."""
    before: dict[str, list[str]] = {}
    for kind, *fields in (line.split("\t") for line in lines):
        pairs = zip_longest(fields, before.get(kind, [])[: len(fields)])
        yield "\t".join([kind, *("=" if a == b else a for a, b in pairs)])
        before[kind] = fields


def _read(lines: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the kind and words of each line of a record, and its numbers by names."""
    before: dict[str, list[str]] = {}
    for kind, *fields in (line.split("\t") for line in lines):
        pairs = zip_longest(fields, before.get(kind, [])[: len(fields)], fillvalue="=")
        words, *numbers = before[kind] = [b if a == "=" else a for a, b in pairs]
        yield f"{kind} {words}", dict(n.split(" ", 1) for n in numbers)


def _is_apart(one: str, other: str, is_limits: bool, is_rough: bool) -> bool:
    """Return whether numbers differ by more than what cannot be seen."""
    (count, a), (other_count, b) = _parse(one), _parse(other)
    if len(a) != len(b) or (count != other_count and not is_rough):
        return True
    known = a[:2] if count else a[np.isfinite(a)]
    span = np.ptp(known) if known.size else 0.0
    if is_rough:
        limit = WIDE * (span if is_limits else UNIT)
        a, b = (values[:3] if count else values for values in (a, b))
    else:
        limit = CLOSE * (span if is_limits else np.clip(span, UNIT / 10, UNIT))
    return not np.allclose(a, b, rtol=0, atol=limit, equal_nan=True)


def _is_read_otherwise(one: str, other: str) -> bool:
    """Return whether either has a value that is not among those of the other.

    Three figures are rounded: a hundredth is the same. Values may be as close to each
    other, and then be one or two.
    """
    a, b = (np.array([float(word) for word in words.split()]) for words in (one, other))
    if not a.size or not b.size:
        return a.size != b.size
    apart = np.abs(a[:, None] - b)
    limit = 0.01 * np.maximum(np.abs(a)[:, None], np.abs(b)) + CLOSE * np.ptp(a)
    near = apart <= limit
    return not (near.any(axis=0).all() and near.any(axis=1).all())


def _parse(numbers: str) -> tuple[str, Any]:
    """Return the count of many numbers or nothing, and the numbers."""
    count, _, rest = numbers.rpartition(":")
    return count, np.array([float(word) for word in rest.split()])
