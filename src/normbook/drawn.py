"""What a figure shows, as numbers and words: so that a stored figure can be compared.

A picture of another machine differs in pixels. Here a figure is what its artists hold:
lines, bars, bands, images, words, limits. Where a notebook shows a figure, the record
of it is stored beside the picture, and compared when the notebook is run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from normbook.extra import of_the_book

with of_the_book():
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import Collection
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.spines import Spine
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator

MIME = "application/vnd.normbook.figure+json"
CLOSE = 2e-3  # of the span of the numbers: less than a line is wide
SAMPLES = 5  # of an array are kept as they are
NUMBERS = ("x", "y", "at", "limits", "values", "range")


def store_with_figures() -> None:
    """Let a notebook store the record of each figure that it shows."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell:
        bundles = shell.display_formatter.mimebundle_formatter
        bundles.for_type(Figure, lambda figure: {MIME: record(figure)})


def record(figure: Figure) -> list[str]:
    """Return what a figure shows, a line of JSON for each thing in it.

    They are the words of the figure, then for each panel its title and legend, its
    axes, and its artists in their order.
    """
    titles = [figure.get_suptitle(), figure.get_supxlabel(), figure.get_supylabel()]
    parts: list[dict[str, Any]] = [{"titles": titles}]
    parts += [{"legend": _legend(legend)} for legend in figure.legends]
    parts += [_words(text) for text in figure.texts if text.get_text() not in titles]
    for axes in figure.axes:
        if axes.get_visible():
            parts += _panel(axes)
    return [_line(part) for part in parts]


def _line(part: dict[str, Any]) -> str:
    """Return a line of JSON without what is empty."""
    told = {
        key: value for key, value in part.items() if value not in (None, "", "None")
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), default=str)


def _panel(axes: Axes) -> Iterator[dict[str, Any]]:
    place = axes.get_subplotspec()
    legend = axes.get_legend()
    logs = [axis.get_scale() == "log" for axis in (axes.xaxis, axes.yaxis)]
    yield {
        "panel": place and [place.rowspan.start, place.colspan.start],
        "title": axes.get_title() or axes.get_title("left"),
        "legend": legend and _legend(legend),
    }
    yield {"axis": "x", **_axis(axes.xaxis)}
    yield {"axis": "y", **_axis(axes.yaxis)}
    for artist in axes.get_children():
        yield from _artist(artist, axes, logs)


def _axis(axis: Axis) -> dict[str, Any]:
    low, high = axis.get_view_interval()
    is_log = axis.get_scale() == "log"
    ends = np.log10([low, high]) if is_log else np.array([low, high])
    ticks = None
    if isinstance(axis.get_major_locator(), FixedLocator):
        ticks = axis.get_major_formatter().format_ticks(list(axis.get_majorticklocs()))
    return {
        "label": axis.get_label().get_text(),
        "scale": axis.get_scale(),
        "limits": _numbers(ends) if axis.get_visible() else None,
        "ticks": ticks,
    }


def _artist(artist: Artist, axes: Axes, logs: Sequence[bool]) -> Iterator[Any]:
    """Yield the record of an artist that carries something, or nothing."""
    if not artist.get_visible() or artist is axes.patch:
        return
    if isinstance(artist, Spine | Axis | Legend):
        return
    shape: dict[str, Any] = {"kind": type(artist).__name__, **_look(artist)}
    in_data = artist.get_transform().contains_branch(axes.transData)
    if isinstance(artist, Line2D):
        yield shape | _pairs(artist.get_xydata(), logs)
    elif isinstance(artist, Collection):
        paths = [path.vertices for path in artist.get_paths()]
        offsets = _filled(artist.get_offsets())
        moved = artist.get_offset_transform().contains_branch(axes.transData)
        points = offsets if moved and len(offsets) else np.concatenate(paths or [[]])
        colours = artist.get_array()
        if colours is not None:
            shape["values"] = _numbers(_filled(colours))
        yield shape | _pairs(points, logs)
    elif isinstance(artist, AxesImage):
        values = _filled(artist.get_array())
        extent = np.reshape(artist.get_extent(), (2, 2)).T
        norm = [artist.norm.vmin, artist.norm.vmax]
        yield (
            shape
            | {"values": _numbers(values), "range": _numbers(norm)}
            | _pairs(extent, [False, False])
        )
    elif isinstance(artist, Patch):
        path = artist.get_path().transformed(artist.get_patch_transform())
        yield shape | _pairs(path.vertices, logs if in_data else [False, False])
    elif isinstance(artist, Text) and artist.get_text().strip():
        if artist not in (axes.title, axes._left_title, axes._right_title):  # type: ignore[attr-defined]
            here = np.array([artist.get_position()], dtype=float)
            yield shape | _pairs(here, logs if in_data else [False, False])
    elif isinstance(artist, Axes):
        yield from _panel(artist)


def _look(artist: Artist) -> dict[str, Any]:
    """Return the words and colours of an artist."""
    label = str(artist.get_label())
    found: dict[str, Any] = {"label": "" if label.startswith("_") else label}
    if isinstance(artist, Line2D):
        found |= {
            "colour": to_hex(artist.get_color()),
            "line": str(artist.get_linestyle()),
            "marker": str(artist.get_marker()),
        }
    elif isinstance(artist, Collection):
        if artist.get_array() is None:
            colours = [*artist.get_facecolor(), *artist.get_edgecolor()]
            found["colours"] = sorted({to_hex(c) for c in colours})
    elif isinstance(artist, Patch):
        found["colour"] = to_hex(artist.get_facecolor())
    elif isinstance(artist, Text):
        found["text"] = artist.get_text()
    return found


def _words(text: Text) -> dict[str, Any]:
    return {"text": text.get_text(), "at": _numbers(text.get_position())}


def _legend(legend: Legend) -> list[Any]:
    """Return each word of a legend with the look of what stands before it."""
    handles = [
        [_look(handle), *[_look(h) for h in _inside(handle)]]
        for handle in legend.legend_handles
        if handle is not None
    ]
    words = [text.get_text() for text in legend.get_texts()]
    return [legend.get_title().get_text(), words, handles]


def _inside(handle: Artist) -> list[Artist]:
    return list(handle.get_children())


def _filled(values: Any) -> Any:
    """Return numbers with nan in place of those that are masked."""
    return np.ma.filled(np.ma.asarray(values, dtype=float), np.nan)


def _pairs(points: Any, logs: Sequence[bool]) -> dict[str, Any]:
    points = np.asarray(points, dtype=float).reshape(-1, 2)
    found = {}
    for name, values, is_log in zip("xy", points.T, logs, strict=True):
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = _numbers(np.log10(values) if is_log else values)
    return found


def _numbers(values: Any) -> Any:
    """Return a print of an array: the values, or some and sums in which all count."""
    values = np.asarray(values, dtype=float)
    flat, finite = values.ravel(), np.isfinite(values.ravel())
    if flat.size <= SAMPLES:
        return [_short(v) if f else None for v, f in zip(flat, finite, strict=True)]
    size = list(values.shape) if values.ndim > 1 else flat.size
    found = {"n": size} | ({} if finite.all() else {"finite": int(finite.sum())})
    if not finite.any():
        return found
    span, flat = float(np.ptp(flat[finite])), np.where(finite, flat, 0.0)
    places = np.linspace(0, flat.size - 1, SAMPLES).round().astype(int)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(2, flat.size))
    sums = signs @ (flat - flat.mean()) / np.sqrt(flat.size)
    return found | {
        "span": _short(span),
        "sums": [_short(v) for v in (flat.mean(), *sums, *flat[places])],
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def differences(
    stored: Sequence[str], found: Sequence[str], *, is_rough: bool = False
) -> list[str]:
    """Return in what two records differ, a line for each thing that does.

    Parameters
    ----------
    stored, found
        Two records.
    is_rough
        Compare words, looks and sizes alone, not numbers: for what a rounding moves.
    """
    if len(stored) != len(found):
        return [f"{len(stored)} things are stored, {len(found)} are drawn"]
    spans: dict[str, float] = {}
    lines = []
    for a, b in zip(map(json.loads, stored), map(json.loads, found), strict=True):
        if "axis" in a and a.get("limits"):
            spans[a["axis"]] = abs(a["limits"][1] - a["limits"][0])
        if why := _difference(a, b, spans, is_rough):
            lines.append(why)
    return lines


def _difference(a: Any, b: Any, spans: dict[str, float], is_rough: bool) -> str:
    """Return what is other in two things of a record, or nothing."""
    name = f"{a.get('axis', a.get('kind', 'words'))} {a.get('label', '')}".strip()
    for key in {**a, **b}:
        one, other = a.get(key), b.get(key)
        if key in NUMBERS and one is not None and other is not None:
            span = spans.get(a["axis"] if key == "limits" else key, 0.0)
            why = _apart(one, other, span, is_rough)
        else:
            why = "" if one == other else f"stored {one!r}, drawn {other!r}"
        if why:
            return f"{name}, {key}: {why}"
    return ""


def _apart(a: Any, b: Any, span: float, is_rough: bool) -> str:
    """Compare two prints of arrays, in a panel of some span."""
    told = f"stored {a}, drawn {b}"
    if isinstance(a, list) and isinstance(b, list):
        one, other = a, b
        is_other = len(a) != len(b)
    else:
        if not isinstance(a, dict) or not isinstance(b, dict) or a["n"] != b["n"]:
            return told
        one, other = a.get("sums", []), b.get("sums", [])
        is_other = a.get("finite") != b.get("finite")
    if is_rough:
        return told if isinstance(a, list) and len(a) != len(b) else ""
    if is_other or [v is None for v in one] != [v is None for v in other]:
        return told
    one, other = ([v for v in values if v is not None] for values in (one, other))
    if not one:
        return ""
    if isinstance(a, list):
        size = span or max(np.ptp(one), np.max(np.abs(one)))
    else:
        size = max(a["span"], b["span"], span / 10)
    return told if np.max(np.abs(np.subtract(one, other))) > CLOSE * size else ""
