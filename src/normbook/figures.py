"""Figures of the book: one style, and every plot that is drawn more than once.

A `kind` is a key of ``STYLES``; what its colour means stands in :mod:`normbook.looks`.
`runs` are an array of shape (S, T), one row for each of S runs (seeds), at least one,
and `x` one of shape (T,). What opens a figure returns it with its axes, one for each
panel; a mapping of panels is one from the label of an axis, in lower case and with the
unit. A kind that is unknown, an array of another shape than stated, or a figure without
a panel raises ``ValueError``, and no figure is left open then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from normbook import drawn
from normbook.arguments import check_index
from normbook.arrays import check_same_shape
from normbook.extra import of_the_book
from normbook.looks import STYLES as STYLES
from normbook.looks import Kind

with of_the_book():
    import matplotlib.pyplot as plt
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle

Scale = Literal["linear", "log"]
Line = tuple[Kind, ArrayLike, ArrayLike]
Runs = Mapping[str, tuple[Kind, ArrayLike]]


def use_style() -> None:
    """Take on the book's look for every figure that follows.

    In a notebook, each figure is stored with a record of what it shows.
    """
    with as_file(files("normbook") / "book.mplstyle") as path:
        plt.style.use(path)
    drawn.store_with_figures()


def band(
    ax: Axes, x: ArrayLike, runs: ArrayLike, *, kind: Kind, label: str | None = None
) -> None:
    """Draw the median of several runs, and shade from the lowest to the highest."""
    x, runs = np.asarray(x), np.asarray(runs)
    if runs.ndim != 2 or x.shape != runs.shape[1:]:
        raise ValueError(
            "runs must have shape (S, T) with x of shape (T,), got "
            f"{runs.shape} and {x.shape}; stack one row for each run."
        )
    if len(runs) == 0:
        raise ValueError(
            f"runs must hold at least one run, got shape {runs.shape}; stack one row "
            "for each run."
        )
    style = _style(kind)
    ax.plot(x, np.median(runs, axis=0), label=label, **style)
    low, high = runs.min(axis=0), runs.max(axis=0)
    ax.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def points(
    ax: Axes, x: ArrayLike, y: ArrayLike, *, kind: Kind, label: str | None = None
) -> None:
    """Draw points (x, y) of a published figure: open circles in the method's colour."""
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(
            f"x and y must have one shape (T,), got {x.shape} and {y.shape}; give one "
            "value for each point."
        )
    colour = _style(kind)["color"]
    ax.plot(x, y, "o", color=colour, fillstyle="none", label=label)


def legend_above(fig: Figure, ax: Axes, *, columns: int | None = None) -> None:
    """Name the lines of one panel above all, side by side."""
    handles, labels = ax.get_legend_handles_labels()
    columns = columns or len(labels)
    fig.legend(handles, labels, loc="outside upper center", ncols=columns)


def tick(ax: Axes, x: ArrayLike, digits: int = 6) -> None:
    """Mark these values on the axis below, and no others."""
    ax.set_xticks(np.asarray(x), [f"{value:.{digits}g}" for value in np.asarray(x)])
    ax.minorticks_off()


def panels(
    count: int,
    *,
    rows: int = 1,
    sharex: bool = False,
    sharey: bool | Literal["row"] = False,
) -> tuple[Figure, list[Axes]]:
    """Open a figure with empty panels, row by row: ``count`` in all.

    That is a multiple of ``rows``, each of which adds the height of one figure. All
    panels may share one scale, or vertically those of a row.
    """
    if count < 1 or rows < 1 or count % rows:
        raise ValueError(
            f"count must be a positive multiple of rows, got {count} and {rows}; give "
            "each row the same number of panels."
        )
    shared = {"sharex": sharex, "sharey": sharey}
    with _figure(count, columns=count // rows, **shared) as (fig, axes):
        width, height = fig.get_size_inches()
        fig.set_size_inches(width, height * rows)
    return fig, axes


def bands(ax: Axes, lines: Mapping[str, Line]) -> None:
    """Draw a :func:`band` for each label, of (kind, x, runs)."""
    for label, (kind, x, runs) in lines.items():
        band(ax, x, runs, kind=kind, label=label)


def _bands(ax: Axes, x: ArrayLike, runs: Runs) -> None:
    bands(ax, {label: (kind, x, values) for label, (kind, values) in runs.items()})


def curves(
    x: ArrayLike, runs: Runs, *, xlabel: str, ylabel: str, yscale: Scale = "linear"
) -> tuple[Figure, Axes]:
    """Compare training curves: one :func:`band` for each label, of (kind, runs)."""
    with _figure() as (fig, (ax,)):
        _bands(ax, x, runs)
        ax.set(xlabel=xlabel, ylabel=ylabel, yscale=yscale)
        ax.legend()
    return fig, ax


def curve_grid(
    rows: Mapping[str, Mapping[str, Mapping[str, Line]]], *, yscale: Scale = "linear"
) -> tuple[Figure, list[list[Axes]]]:
    """Compare training curves in several panels; each row shares its vertical scale.

    Rows map a y label to panels, and these an x label to lines; each row has the same x
    labels, which stand below the lowest. The lines of a panel map a label to (kind, x,
    runs) of a :func:`band`; one that begins with an underscore is not in the legend,
    and those of a reference stand last. There is one list of axes for each row.
    """
    columns = list(next(iter(rows.values()), []))
    if any(list(row) != columns for row in rows.values()) or not columns:
        raise ValueError(
            "rows must hold at least one panel, and each the same x labels, got "
            f"{[list(row) for row in rows.values()]}; give every row every column."
        )
    wide, high = len(columns), len(rows)
    shared: Any = {"sharex": "col", "sharey": "row"}
    with _figure(wide * high, columns=wide, **shared) as (fig, axes):
        # No wider: on a page the type must not fall below 8 pt.
        fig.set_size_inches(min(max(6.4, 1.8 * wide), 8.4), 1.1 + 2.3 * high)
        grid = [axes[k : k + wide] for k in range(0, wide * high, wide)]
        known: dict[str, Artist] = {}
        references: set[str] = set()
        for row_axes, (ylabel, row) in zip(grid, rows.items(), strict=True):
            row_axes[0].set_ylabel(ylabel)
            for ax, lines in zip(row_axes, row.values(), strict=True):
                bands(ax, lines)
                references.update(k for k, v in lines.items() if v[0] == "reference")
                ax.set(yscale=yscale)
                handles, names = ax.get_legend_handles_labels()
                known |= dict(zip(names, handles, strict=True))
        for ax, xlabel in zip(grid[-1], columns, strict=True):
            ax.set_xlabel(xlabel)
        labels = sorted(known, key=lambda label: label in references)
        if labels:
            handles = [known[label] for label in labels]
            per_row = min(len(labels), wide + 1)  # what fits beside each other
            fig.legend(handles, labels, loc="outside upper center", ncols=per_row)
    return fig, grid


def depth_profile(
    panels: Mapping[str, Runs], *, xlabel: str = "layer", yscale: Scale = "log"
) -> tuple[Figure, Sequence[Axes]]:
    """Draw quantities through depth side by side, one panel a quantity.

    A panel maps a label to (kind, values) of shape (L,), or (S, L) for S runs; layers
    count from 1.
    """
    with _figure(len(panels)) as (fig, axes):
        for ax, (ylabel, lines) in zip(axes, panels.items(), strict=True):
            for label, (kind, values) in lines.items():
                rows = np.atleast_2d(np.asarray(values))
                layers = np.arange(1, rows.shape[1] + 1)
                band(ax, layers, rows, kind=kind, label=label)
            ax.set(xlabel=xlabel, ylabel=ylabel, yscale=yscale)
        legend_above(fig, axes[0])
    return fig, axes


def sweep(
    x: ArrayLike,
    panels: Mapping[str, Runs],
    *,
    xlabel: str,
    yscale: Scale = "linear",
    ylim: tuple[float, float] | None = None,
) -> tuple[Figure, Sequence[Axes]]:
    """Draw results against a setting on a log axis, one panel a network or data set.

    A panel maps a label to (kind, runs) of a :func:`band`; all have one vertical scale.
    `x` is positive. What lies outside of `ylim` is not seen, so say so.
    """
    with _figure(len(panels), sharey=True) as (fig, axes):
        for ax, (ylabel, lines) in zip(axes, panels.items(), strict=True):
            _bands(ax, x, lines)
            ax.set(xlabel=xlabel, ylabel=ylabel, xscale="log", yscale=yscale, ylim=ylim)
            tick(ax, x)
        legend_above(fig, axes[0])
    return fig, axes


def marked_cells(
    masks: Mapping[str, ArrayLike], *, kind: Kind = "batch"
) -> tuple[Figure, Sequence[Axes]]:
    """Show which values of an array (N, C, H, W) are marked, one panel a mask.

    Each image is a block of H x W squares. The examples stand one below the other,
    their channels side by side. The marked values have the colour of the kind, the
    others are light grey.
    """
    with _figure(len(masks)) as (fig, axes):
        for ax, (label, values) in zip(axes, masks.items(), strict=True):
            _draw_images(ax, _image_mask(values), kind)
            ax.set(xlabel=f"channel\n\n{label}", ylabel="example")
    return fig, axes


# Seen on every colour: white with a dark rim.
_DOT: dict[str, Any] = {"marker": "o", "ms": 4, "mfc": "white", "mec": "black"}


def shared_cells(
    methods: Mapping[str, tuple[Kind, ArrayLike, ArrayLike]],
    index: tuple[int, int, int, int],
) -> tuple[Figure, Sequence[Axes]]:
    """Show what each method shares with the value at one place of an array.

    The array (N, C, H, W) is drawn as by :func:`marked_cells`, two methods side by
    side. The value itself has a frame; what shares its mean and variance has the colour
    of the method, what shares its gain and bias a dot: two arrays of bool for each, as
    :func:`normbook.axes.sharing` finds them.
    """
    rows = -(-len(methods) // 2)
    with _figure(len(methods), columns=2) as (fig, axes):
        width, height = fig.get_size_inches()
        fig.set_size_inches(width, 0.9 + 0.64 * height * rows)
        for ax, (label, (kind, *masks)) in zip(axes, methods.items(), strict=True):
            statistics, parameters = map(_image_mask, masks)
            check_same_shape("parameters", parameters, "statistics", statistics)
            _draw_images(ax, statistics, kind)
            check_index(statistics.shape, index)
            x, y = _corners(statistics.shape, np.argwhere(parameters))
            ax.plot(x + 0.5, y + 0.5, ls="none", **_DOT)
            ((x,), (y,)) = _corners(statistics.shape, np.array([index]))
            ax.add_patch(Rectangle((x, y), 1, 1, fill=False, ec="black", lw=2.2))
            # The empty line sets it apart from the panel below.
            ax.set(xlabel=f"channel\n{label}\n", ylabel="example")
        kinds = dict.fromkeys(kind for kind, *_ in methods.values())
        colours = tuple(Patch(color=_style(kind)["color"]) for kind in kinds)
        frame = Line2D([], [], ls="none", marker="s", mec="black", mfc="none", mew=2.2)
        handles: list[Any] = [frame, colours, Line2D([], [], ls="none", **_DOT)]
        fig.legend(
            handles,
            ["one value", "shares its mean and variance", "shares its gain and bias"],
            handler_map={tuple: HandlerTuple(ndivide=None)},
            loc="outside upper center",
        )
    return fig, axes


def pen_lines(
    lines: Mapping[str, tuple[Kind, Sequence[ArrayLike]]], *, columns: int = 1
) -> tuple[Figure, Sequence[Axes]]:
    """Draw handwriting from the steps of the pen, one panel a label.

    Each line is an array of shape (T, 3) of steps (dx, dy, lift): how far to the next
    point, and 1 where the pen is lifted there. y grows upwards. The lines of a panel
    stand one below the other; no stroke is drawn where the pen is lifted.
    """
    with _figure(len(lines), columns=columns) as (fig, axes):
        fig.set_size_inches(8.4, 0.4 + 1.5 * -(-len(lines) // columns))
        for ax, (label, (kind, written)) in zip(axes, lines.items(), strict=True):
            colour, top = _style(kind)["color"], 0.0
            for line in written:
                steps = np.asarray(line, dtype=float)
                if steps.ndim != 2 or steps.shape[1] != 3 or len(steps) == 0:
                    raise ValueError(
                        "each line must have shape (T, 3) with a step or more, got "
                        f"{steps.shape}; give dx, dy and lift of each step."
                    )
                way = np.cumsum(steps[:, :2], axis=0)
                way[:, 1] += top - way[:, 1].max()
                top = way[:, 1].min() - 20
                ends = np.flatnonzero(steps[:, 2]) + 1
                for stroke in np.split(way, ends):
                    # A dot is a stroke of one point. Behind the last one may be none.
                    ax.plot(*stroke.T, "-", lw=1, solid_capstyle="round", color=colour)
                    if len(stroke) == 1:
                        ax.plot(*stroke.T, ".", ms=2, color=colour)
            ax.set(aspect="equal", xlabel=label, xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            ax.grid(visible=False)
    return fig, axes


def signed_map(
    values: ArrayLike, *, xlabel: str, ylabel: str, label: str, ax: Axes | None = None
) -> tuple[Figure | SubFigure, Axes]:
    """Show a matrix of signed numbers: red above 0, blue below, white at 0.

    The colours reach to the largest finite value; NaN is left blank, infinity gets the
    last colour. ``label`` is that of the colour bar. Without ``ax`` a figure is opened.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(
            f"values must be a matrix that is not empty, got shape {values.shape}; "
            "use values[None, :] for a single row."
        )
    if ax is None:
        _, ax = plt.subplots()
    most = np.abs(values[np.isfinite(values)]).max(initial=0.0) or 1.0
    image = ax.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    ax.grid(visible=False)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax.figure, ax


def _image_mask(values: ArrayLike) -> Any:
    mask = np.asarray(values)
    if mask.ndim != 4:
        raise ValueError(
            f"masks must have shape (N, C, H, W), got {mask.shape}; reshape it."
        )
    return mask


def _draw_images(ax: Axes, mask: Any, kind: Kind) -> None:
    """Draw each image as a block of squares, the marked ones in the colour of a kind.

    One empty row and column after each image, left blank, sets it apart.
    """
    n, c, h, w = mask.shape
    gaps = ((0, 0), (0, 0), (0, 1), (0, 1))
    blocks = np.pad(mask.astype(float), gaps, constant_values=np.nan)
    picture = blocks.transpose(0, 2, 1, 3).reshape(n * (h + 1), c * (w + 1))
    colours = ListedColormap(["#E4E4E4", _style(kind)["color"]])
    ax.pcolormesh(picture[:-1, :-1], cmap=colours, vmin=0, vmax=1, edgecolors="white")
    ax.set_aspect("equal")
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xticks(np.arange(c) * (w + 1) + w / 2, np.arange(c))
    ax.set_yticks(np.arange(n) * (h + 1) + h / 2, np.arange(n))


def _corners(shape: tuple[int, ...], places: Any) -> tuple[Any, Any]:
    """Find where the squares of these places (K, 4) begin in such a picture."""
    n, c, h, w = places.T
    return c * (shape[3] + 1) + w, n * (shape[2] + 1) + h


@contextmanager
def _figure(
    panels: int = 1, *, columns: int | None = None, **shared: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a figure with panels side by side; after an error it is not left open."""
    if panels == 0:
        raise ValueError("a figure must have at least one panel, got none; give one.")
    columns = columns or panels
    fig = plt.figure()
    try:
        rows = -(-panels // columns)
        axes = list(fig.subplots(rows, columns, squeeze=False, **shared).flat)
        for ax in axes[panels:]:
            ax.remove()
        yield fig, axes[:panels]
    except BaseException:
        plt.close(fig)
        raise


def _style(kind: Kind) -> dict[str, Any]:
    if kind not in STYLES:
        known: Iterable[str] = STYLES
        raise ValueError(
            f"kind must be one of {', '.join(known)}, got {kind!r}; a colour means "
            "one thing in the whole book."
        )
    return STYLES[kind]
