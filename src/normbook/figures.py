"""Figures of the book: one style, and every plot that is drawn more than once.

A colour means one thing throughout: batch norm is blue and solid, layer norm
orange and dashed, other methods green and dash-dotted, a reference purple and
dotted, no normalization grey.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import as_file, files
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import ArrayLike

__all__ = ["STYLES", "band", "curves", "depth_profile", "signed_map", "use_style"]

Kind = Literal["batch", "layer", "other", "reference", "none"]

STYLES: dict[Kind, dict[str, Any]] = {
    "batch": {"color": "#0072B2", "linestyle": "-"},
    "layer": {"color": "#D55E00", "linestyle": "--"},
    "other": {"color": "#009E73", "linestyle": "-."},
    "reference": {"color": "#CC79A7", "linestyle": ":"},
    "none": {"color": "#595959", "linestyle": (0, (5, 1))},
}


def use_style() -> None:
    """Take on the book's look for every figure that follows."""
    with as_file(files("normbook") / "book.mplstyle") as path:
        plt.style.use(path)


def band(
    ax: Axes, x: ArrayLike, runs: ArrayLike, *, kind: Kind, label: str | None = None
) -> None:
    """Draw the median of several runs, and shade from the lowest to the highest.

    Parameters
    ----------
    ax : matplotlib axes
    x : array, shape (T,)
    runs : array, shape (S, T)
        One row for each of S runs (seeds).
    kind : key of ``STYLES``
    label : str, optional
        For the legend.

    Raises
    ------
    ValueError
        If the shapes do not fit, or ``kind`` is unknown.
    """
    x, runs = np.asarray(x), np.asarray(runs)
    if runs.ndim != 2 or x.shape != runs.shape[1:]:
        raise ValueError(
            "runs must have shape (S, T) with x of shape (T,), got "
            f"{runs.shape} and {x.shape}; stack one row for each run."
        )
    style = _style(kind)
    ax.plot(x, np.median(runs, axis=0), label=label, **style)
    low, high = runs.min(axis=0), runs.max(axis=0)
    ax.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def curves(
    x: ArrayLike,
    runs: Mapping[str, tuple[Kind, ArrayLike]],
    *,
    xlabel: str,
    ylabel: str,
    yscale: Literal["linear", "log"] = "linear",
) -> tuple[Figure, Axes]:
    """Compare training curves: one band for each method.

    Parameters
    ----------
    x : array, shape (T,)
    runs : mapping from label to (kind, array of shape (S, T))
        What :func:`band` draws.
    xlabel, ylabel : str
        Lower case, with the unit.
    yscale : "linear" or "log"

    Returns
    -------
    fig, ax
    """
    fig, ax = plt.subplots()
    for label, (kind, values) in runs.items():
        band(ax, x, values, kind=kind, label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel, yscale=yscale)
    ax.legend()
    return fig, ax


def depth_profile(
    panels: Mapping[str, Mapping[str, tuple[Kind, ArrayLike]]],
    *,
    xlabel: str = "layer",
    yscale: Literal["linear", "log"] = "log",
) -> tuple[Figure, Sequence[Axes]]:
    """Draw quantities through depth side by side, one panel a quantity.

    Parameters
    ----------
    panels : mapping from y label to (mapping from label to (kind, values))
        ``values`` has shape (L,), or (S, L) for S runs; layers count from 1.
    xlabel : str
    yscale : "linear" or "log"

    Returns
    -------
    fig, axes
        One axes for each panel.
    """
    fig, grid = plt.subplots(1, len(panels), squeeze=False)
    axes = list(grid[0])
    for ax, (ylabel, lines) in zip(axes, panels.items(), strict=True):
        for label, (kind, values) in lines.items():
            rows = np.atleast_2d(np.asarray(values))
            layers = np.arange(1, rows.shape[1] + 1)
            band(ax, layers, rows, kind=kind, label=label)
        ax.set(xlabel=xlabel, ylabel=ylabel, yscale=yscale)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return fig, axes


def signed_map(
    values: ArrayLike,
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    ax: Axes | None = None,
) -> tuple[Figure | SubFigure, Axes]:
    """Show a matrix of signed numbers: red above 0, blue below, white at 0.

    Parameters
    ----------
    values : array, shape (R, C)
    xlabel, ylabel, label : str
        Of the columns, the rows and the colour bar.
    ax : matplotlib axes, optional
        Where to draw; a new figure if left out.

    Returns
    -------
    fig, ax

    Raises
    ------
    ValueError
        If ``values`` is no matrix.
    """
    values = np.asarray(values)
    if values.ndim != 2:
        raise ValueError(
            f"values must be a matrix, got shape {values.shape}; use values[None, :] "
            "for a single row."
        )
    if ax is None:
        _, ax = plt.subplots()
    most = np.abs(values).max() or 1.0
    image = ax.imshow(values, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    ax.grid(visible=False)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax.figure, ax


def _style(kind: Kind) -> dict[str, Any]:
    if kind not in STYLES:
        known: Iterable[str] = STYLES
        raise ValueError(
            f"kind must be one of {', '.join(known)}, got {kind!r}; a colour means "
            "one thing in the whole book."
        )
    return STYLES[kind]
