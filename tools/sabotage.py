"""Draw every figure wrongly, and tell which wrong ones would be found.

    python tools/sabotage.py                     # every notebook of the book
    python tools/sabotage.py book/batch_norm.ipynb

Notebooks are run once, and stay as they are. Of each panel that a figure shows, what is
drawn is changed in one way after the other and back again: upside down, exchanged with
a neighbour, one value off, moved along x, labels exchanged, in another colour. Each
change has to be among the differences from the record of the figure as it was. The
exit status is 1 if one is not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from kernels import prepare_environment
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from nbclient import NotebookClient

from normbook import drawn

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


def trials(figure: Any) -> Iterator[tuple[str, bool]]:
    """Draw a figure wrongly in every way, and say of each whether it is seen."""
    right = drawn.record(figure)
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        for name, way in WAYS.items():
            for do, undo in list(way(axes)):
                do()
                is_seen = bool(drawn.differences(right, drawn.record(figure)))
                undo()
                yield name, is_seen
    if other := drawn.differences(right, drawn.record(figure)):
        raise AssertionError(f"a figure is not what it was: {other}")


def watch(path: str) -> None:
    """In a kernel: try each figure that is shown, and write down what is seen."""
    ipython = sys.modules["IPython"]
    from matplotlib.figure import Figure

    from normbook import figures

    def try_figure(figure: Any) -> dict[str, Any]:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(list(trials(figure))) + "\n")
        return {}

    def use_style(original: Any = figures.use_style) -> None:
        original()
        bundles = ipython.get_ipython().display_formatter.mimebundle_formatter
        bundles.for_type(Figure, try_figure)

    figures.use_style = use_style


def tried(path: Path) -> list[list[tuple[str, bool]]]:
    """Run a notebook, and return for each figure what was tried and seen."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        found.touch()
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r})\n"
        code += f"import sabotage; sabotage.watch({str(found)!r})"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(code))
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=None,
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute()
        return [json.loads(line) for line in found.read_text("utf-8").splitlines()]


def main(arguments: list[str]) -> int:
    """Try the notebooks named, or all; return the exit status."""
    prepare_environment()
    paths = [Path(name) for name in arguments] or sorted(
        (ROOT / "book").glob("*.ipynb")
    )
    total, seen = Counter[str](), Counter[str]()
    unseen = 0
    for path in paths:
        for number, results in enumerate(tried(path.resolve()), start=1):
            for name, is_seen in results:
                total[name] += 1
                seen[name] += is_seen
            blind = Counter(name for name, is_seen in results if not is_seen)
            told = ", ".join(f"{n} {name}" for name, n in blind.items())
            print(
                f"{path.stem}, figure {number}: {len(results)} tried"
                + (f", NOT SEEN: {told}" if told else "")
            )
            unseen += bool(blind)
    for name in WAYS:
        print(f"{name}: {seen[name]} of {total[name]} seen")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
