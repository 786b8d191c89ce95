"""Draw every figure wrongly, and tell which wrong ones would be found.

    python tools/sabotage.py                     # every notebook of the book
    python tools/sabotage.py book/batch_norm.ipynb

Notebooks are run once, and stay as they are. Of each panel that a figure shows, what is
drawn is changed in one way after the other and back again: upside down, exchanged with
a neighbour, one value off, moved along x, labels or words exchanged, arrows turned
round, in another colour. Each change has to be among the differences from the record of
the figure as it was, found as `pytest --nbval` finds them. The exit status is 1 if one
is not, but in a figure whose cell has the tag `rough-figure`, where misses are only
told.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from execute import UnixSocketKernel
from kernels import prepare_environment
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from nbclient import NotebookClient

from normbook import drawn
from normbook.drawn import differences, record

ROOT = Path(__file__).resolve().parent.parent
Change = tuple[Callable[[], Any], Callable[[], Any]]  # do, and undo


SEEN = 0.02  # of a panel, twice the width of a line: no smaller change is tried


def lines_of(axes: Axes) -> list[Line2D]:
    """Return the lines with data."""
    return [
        line
        for line in axes.lines
        if line.get_transform().contains_branch(axes.transData)
        and np.size(line.get_xydata())
    ]


def places(line: Line2D, axes: Axes) -> Any:
    """Return the points of a line as fractions of a panel."""
    return (line.get_transform() - axes.transAxes).transform(line.get_xydata())


def extent(values: Any) -> float:
    """Return how far these reach within the panel."""
    seen = values[np.isfinite(values)].clip(0, 1)
    return float(np.ptp(seen)) if seen.size else 0.0


def moved(line: Line2D, axes: Axes, to: Any) -> Change:
    """Draw a line at other places of its panel."""
    before = line.get_data()
    after = (axes.transAxes - line.get_transform()).transform(to).T
    return change(partial(set_data, line), before, after)


def turned(values: Any) -> Any:
    """Turn numbers upside down."""
    return np.nanmax(values) + np.nanmin(values) - values


def upside_down(axes: Axes) -> Iterator[Change]:
    """Turn each line, area and image round, and make bars higher by a half."""
    for line in lines_of(axes):
        at = places(line, axes)
        if extent(at[:, 1]) > SEEN:
            at[:, 1] = turned(at[:, 1])
            yield moved(line, axes, at)
    for area in axes.collections:
        yield from area_upside_down(area, axes)
    for image in axes.images:
        yield from shades_turned(image)
    for bar in axes.patches:
        to_panel = bar.get_transform() - axes.transAxes
        height = extent(to_panel.transform(bar.get_path().vertices)[:, 1])
        if isinstance(bar, Rectangle) and height > 2 * SEEN:
            yield change(bar.set_height, bar.get_height(), 1.5 * bar.get_height())


def area_upside_down(area: Collection, axes: Axes) -> Iterator[Change]:
    """Turn points, bands or bars of errors round."""
    if area.get_array() is not None:
        yield from shades_turned(area)
        return
    paths = area.get_paths()
    if area.get_offset_transform().contains_branch(axes.transData):
        before: list[Any] = [area.get_offsets()]
        put: Callable[[Any], Any] = partial(set_offsets, area)
        to_panel = area.get_offset_transform() - axes.transAxes
    else:
        before = [path.vertices for path in paths]
        put = partial(set_vertices, paths)
        to_panel = area.get_transform() - axes.transAxes
    if not before:
        return
    height = np.concatenate([to_panel.transform(xy) for xy in before])[:, 1]
    low, high = np.nanmin(height), np.nanmax(height)
    after = []
    for xy in before:
        at = to_panel.transform(xy)
        at[:, 1] = high + low - at[:, 1]
        after.append(to_panel.inverted().transform(at))
    if np.ptp(height.clip(0, 1)) > SEEN:
        yield change(put, before, after)


def set_offsets(area: Collection, offsets: list[Any]) -> None:
    """Place points elsewhere."""
    area.set_offsets(offsets[0])


def set_vertices(paths: Any, vertices: list[Any]) -> None:
    """Let paths lead elsewhere."""
    for path, xy in zip(paths, vertices, strict=True):
        path.vertices = xy


def shades_turned(area: Any) -> Iterator[Change]:
    """Exchange the colours of an image from the first to the last, if they differ."""
    before = area.get_array()
    after = before.ravel()[::-1].reshape(before.shape)
    if not np.array_equal(before, after):
        yield change(area.set_array, before, after)


def change(put: Callable[[Any], Any], before: Any, after: Any) -> Change:
    """Put something in the place of what was there."""
    return lambda: put(after), lambda: put(before)


def exchanged(axes: Axes) -> Iterator[Change]:
    """Let a line and the next one show each other's data, if they look different."""
    for one, other in pairwise(lines_of(axes)):
        a, b = places(one, axes), places(other, axes)
        is_other = a.shape != b.shape or np.nanmax(np.abs(a - b)) > SEEN
        if is_other and looks(one) != looks(other):
            put, put_other = partial(set_data, one), partial(set_data, other)
            yield exchange(put, put_other, one.get_data(), other.get_data())


def looks(line: Line2D) -> tuple[Any, ...]:
    """Return by what a reader tells a line from others."""
    label = str(line.get_label())
    style = line.get_linestyle(), line.get_marker(), line.get_color()
    return "" if label.startswith("_") else label, *style


def set_data(line: Line2D, xy: Any) -> None:
    """Give a line other data."""
    line.set_data(*xy)


def exchange(put_one: Any, put_other: Any, a: Any, b: Any) -> Change:
    """Give to each of two what the other had."""
    return lambda: (put_one(b), put_other(a)), lambda: (put_one(a), put_other(b))


def one_value_off(axes: Axes) -> Iterator[Change]:
    """Move one value of each line by a tenth of what it covers, or a bit."""
    for line in lines_of(axes):
        at = places(line, axes)
        k = len(at) // 3
        at[k, 1] += max(0.1 * extent(at[:, 1]), SEEN)
        if 0 <= at[k, 1] <= 1:
            yield moved(line, axes, at)


def moved_along_x(axes: Axes) -> Iterator[Change]:
    """Move each line by a twentieth of what it covers along x, or a bit."""
    for line in lines_of(axes):
        at = places(line, axes)
        at[:, 0] += max(0.05 * extent(at[:, 0]), SEEN)
        yield moved(line, axes, at)


def labels_exchanged(axes: Axes) -> Iterator[Change]:
    """Exchange neighbours in legends, and the labels of both axes."""
    legends = [axes.get_legend()]
    if axes is axes.figure.axes[0]:
        legends += axes.figure.legends
    for legend in filter(None, legends):
        for a, b in pairwise(legend.get_texts()):
            yield exchange(a.set_text, b.set_text, a.get_text(), b.get_text())
    x, y = axes.get_xlabel(), axes.get_ylabel()
    if x != y:
        yield exchange(axes.set_xlabel, axes.set_ylabel, x, y)


def words_exchanged(axes: Axes) -> Iterator[Change]:
    """Exchange texts that are neighbours in a panel, and turn arrows round."""
    for one, other in pairwise(text for text in axes.texts if text.get_text()):
        a, b = one.get_text(), other.get_text()
        if a != b:
            yield exchange(one.set_text, other.set_text, a, b)
    for arrow in axes.texts:
        if isinstance(arrow, Annotation) and arrow.arrow_patch:
            tail, head = arrow.get_position(), arrow.xy
            yield change(partial(set_ends, arrow), (tail, head), (head, tail))


def set_ends(arrow: Annotation, ends: tuple[Any, Any]) -> None:
    """Let an arrow lead from the first place to the second."""
    arrow.set_position(ends[0])
    arrow.xy = ends[1]


def other_colour(axes: Axes) -> Iterator[Change]:
    """Draw each line in a colour that the book does not use."""
    for line in lines_of(axes):
        yield change(line.set_color, line.get_color(), "#123456")


WAYS = {
    "upside down": upside_down,
    "exchanged": exchanged,
    "one value off": one_value_off,
    "moved along x": moved_along_x,
    "labels exchanged": labels_exchanged,
    "words exchanged": words_exchanged,
    "other colour": other_colour,
}


def try_all(figure: Any) -> Iterator[tuple[str, bool, bool]]:
    """Draw a figure wrongly in every way, and say of each whether it is seen.

    That is, once as figures are compared, and once as those that a rounding moves.
    """
    right = record(figure)
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        for name, way in WAYS.items():
            for do, undo in list(way(axes)):
                do()
                wrong = record(figure)
                undo()
                is_seen = bool(differences(right, wrong))
                yield name, is_seen, bool(differences(right, wrong, is_rough=True))
    if other := differences(right, record(figure)):
        raise AssertionError(f"a figure is not what it was: {other}")


def watch() -> None:
    """In a kernel: store what is seen of each figure that is shown, not its record."""
    drawn.record = lambda figure: list(try_all(figure))  # type: ignore[arg-type]


def tried(path: Path) -> Iterator[tuple[bool, list[tuple[str, bool]]]]:
    """Run a notebook, and yield for each figure whether it is rough, and the trials.

    A trial is the way in which the figure was wrong, and whether that is seen.
    """
    notebook = nbformat.read(path, as_version=4)
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r})\n"
    notebook.cells.insert(
        0, nbformat.v4.new_code_cell(code + "import sabotage; sabotage.watch()")
    )
    NotebookClient(
        notebook,
        kernel_name="python3",
        kernel_manager_class=UnixSocketKernel,
        timeout=None,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    for cell in notebook.cells:
        is_rough = drawn.ROUGH in cell.metadata.get("tags", [])
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                results = output.data[drawn.MIME]  # KeyError: a figure without record
                trials = [(way, b if is_rough else a) for way, a, b in results]
                yield is_rough, trials


def main(arguments: list[str]) -> int:
    """Try the notebooks named, or all; return the exit status."""
    prepare_environment()
    paths = [Path(name) for name in arguments]
    paths = paths or sorted((ROOT / "book").glob("*.ipynb"))
    total, seen = Counter[str](), Counter[str]()
    is_blind = False
    for path in paths:
        for number, (is_rough, trials) in enumerate(tried(path.resolve()), start=1):
            total.update(way for way, _ in trials)
            seen.update(way for way, is_seen in trials if is_seen)
            unseen = Counter(way for way, is_seen in trials if not is_seen)
            told = ", ".join(f"{count} {way}" for way, count in unseen.items())
            told = f", NOT SEEN: {told}" if told else ""
            told += ", a rough figure" if is_rough else ""
            print(f"{path.stem}, figure {number}: {len(trials)} tried{told}")
            is_blind |= not trials or (bool(unseen) and not is_rough)
    for way in WAYS:
        print(f"{way}: {seen[way]} of {total[way]} seen")
    return int(is_blind)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
