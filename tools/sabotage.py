"""Draw every figure wrongly, and tell which wrong ones would be found.

    python tools/sabotage.py                     # every notebook of the book
    python tools/sabotage.py book/batch_norm.ipynb

Notebooks are run once, and stay as they are. Of each panel that a figure shows, what is
drawn is changed in one way after the other and back again: upside down, exchanged with
a neighbour, one value off, moved along x, labels exchanged, in another colour. Each
change has to be among the differences from the record of the figure as it was, found
as `pytest --nbval` finds them. The exit status is 1 if one is not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from execute import UnixSocketKernel
from kernels import prepare_environment
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from nbclient import NotebookClient

from normbook import drawn
from normbook.drawn import differences, record

ROOT = Path(__file__).resolve().parent.parent
Change = tuple[Callable[[], Any], Callable[[], Any]]  # do, and undo


def lines_of(axes: Axes) -> list[Line2D]:
    """Return the lines with data that vary along y."""
    return [
        line
        for line in axes.get_lines()
        if line.get_transform().contains_branch(axes.transData)
        and np.ptp(np.nan_to_num(np.asarray(line.get_ydata(), dtype=float)))
    ]


def of_line(line: Line2D, xy: Any) -> Change:
    """Give a line other data."""
    before = line.get_data()
    return lambda: line.set_data(*xy), lambda: line.set_data(*before)


def upside_down(axes: Axes) -> Iterator[Change]:
    """Turn each line, image and bar round."""
    for line in lines_of(axes):
        x, y = (np.asarray(v, dtype=float) for v in line.get_data())
        yield of_line(line, (x, np.nanmax(y) + np.nanmin(y) - y))
    for image in axes.get_images():
        yield from upside_down_image(image)
    for bar in axes.patches:
        if isinstance(bar, Rectangle) and bar.get_height():
            yield of_bar(bar, bar.get_height())


def of_bar(bar: Rectangle, height: float) -> Change:
    """Make a bar larger by a half."""
    return lambda: bar.set_height(1.5 * height), lambda: bar.set_height(height)


def upside_down_image(image: AxesImage) -> Iterator[Change]:
    """Turn an image round, if that is another one."""
    values: Any = image.get_array()
    turned = values[::-1]
    if not np.array_equal(np.asarray(values), np.asarray(turned), equal_nan=True):
        yield lambda: image.set_data(turned), lambda: image.set_data(values)


def exchanged(axes: Axes) -> Iterator[Change]:
    """Let a line and the next one show each other's data."""
    for one, other in pairwise(lines_of(axes)):
        a, b = one.get_data(), other.get_data()
        if np.array_equal(one.get_xydata(), other.get_xydata()):
            continue
        yield exchange(one.set_data, other.set_data, a, b)


def exchange(set_one: Any, set_other: Any, a: Any, b: Any) -> Change:
    """Give to each of two what the other had."""

    def put(first: Any, second: Any) -> None:
        set_one(*first) if isinstance(first, tuple) else set_one(first)
        set_other(*second) if isinstance(second, tuple) else set_other(second)

    return lambda: put(b, a), lambda: put(a, b)


def one_value_off(axes: Axes) -> Iterator[Change]:
    """Move one value of each line by a tenth of what the line covers."""
    for line in lines_of(axes):
        x, y = (np.array(v, dtype=float) for v in line.get_data())
        k = len(y) // 3
        if axes.get_yscale() == "log":
            span = np.nanmax(y) / np.nanmin(y[y > 0])
            y[k] *= span**0.1
        else:
            y[k] += 0.1 * np.ptp(y[np.isfinite(y)])
        if np.isfinite(y[k]):
            yield of_line(line, (x, y))


def moved_along_x(axes: Axes) -> Iterator[Change]:
    """Move each line by a twentieth of what it covers along x."""
    for line in lines_of(axes):
        x, y = (np.array(v, dtype=float) for v in line.get_data())
        if np.ptp(x):
            is_log = axes.get_xscale() == "log"
            moved = x * (x.max() / x.min()) ** 0.05 if is_log else x + 0.05 * np.ptp(x)
            yield of_line(line, (moved, y))


def labels_exchanged(axes: Axes) -> Iterator[Change]:
    """Exchange neighbours in the legend, and the labels of both axes."""
    legend = axes.get_legend()
    for one, other in pairwise(legend.get_texts() if legend else []):
        yield exchange(one.set_text, other.set_text, one.get_text(), other.get_text())
    x, y = axes.get_xlabel(), axes.get_ylabel()
    if x != y:
        yield exchange(axes.set_xlabel, axes.set_ylabel, x, y)


def other_colour(axes: Axes) -> Iterator[Change]:
    """Draw each line in a colour that the book does not use."""
    for line in lines_of(axes):
        yield recolour(line, line.get_color())


def recolour(line: Line2D, colour: Any) -> Change:
    """Draw a line in another colour."""
    return lambda: line.set_color("#123456"), lambda: line.set_color(colour)


WAYS = {
    "upside down": upside_down,
    "exchanged": exchanged,
    "one value off": one_value_off,
    "moved along x": moved_along_x,
    "labels exchanged": labels_exchanged,
    "other colour": other_colour,
}


def trials(figure: Any) -> Iterator[tuple[str, bool, bool]]:
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
    drawn.record = lambda figure: list(trials(figure))  # type: ignore[arg-type]


def tried(path: Path) -> Iterator[list[tuple[str, bool]]]:
    """Run a notebook, and yield for each figure what was tried, and whether seen."""
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
                yield [
                    (name, rough if is_rough else fine) for name, fine, rough in results
                ]


def main(arguments: list[str]) -> int:
    """Try the notebooks named, or all; return the exit status."""
    prepare_environment()
    paths = [Path(name) for name in arguments]
    paths = paths or sorted((ROOT / "book").glob("*.ipynb"))
    total, seen = Counter[str](), Counter[str]()
    for path in paths:
        for number, results in enumerate(tried(path.resolve()), start=1):
            total.update(name for name, _ in results)
            seen.update(name for name, is_seen in results if is_seen)
            unseen = Counter(name for name, is_seen in results if not is_seen)
            told = ", ".join(f"{count} {name}" for name, count in unseen.items())
            told = f", NOT SEEN: {told}" if told else ""
            print(f"{path.stem}, figure {number}: {len(results)} tried{told}")
    for name in WAYS:
        print(f"{name}: {seen[name]} of {total[name]} seen")
    return int(seen != total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
