"""The record of a figure: equal where it is drawn again, other where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import sabotage
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook

from normbook import drawn

X = np.linspace(1, 5, 40)


pytestmark = pytest.mark.usefixtures("plain_style")


def figure(change: Callable[[Axes, Axes], Any] = lambda *_: None) -> Figure:
    """Return a figure with something of each kind, after a change."""
    fig, (left, right) = plt.subplots(1, 2)
    left.plot(X, np.sin(X), label="sine")
    left.plot(X, np.exp(X), "--", label="growth")
    left.fill_between(X, np.sin(X) - 0.1, np.sin(X) + 0.1, alpha=0.2)
    left.scatter(X[::8], X[::8], c=["#ff0000"])
    left.axhline(1.5)
    left.set(xlabel="step", ylabel="loss", yscale="log", title="Training")
    left.text(2, 3, "here")
    left.legend(title="what")
    image = right.imshow(np.arange(12.0).reshape(3, 4) + 1, norm=LogNorm())
    fig.colorbar(image)
    right.bar([0, 1], [1, 2], color="#00ff00")
    right.set_xticks([0, 1], ["no", "yes"])
    right.inset_axes((0.5, 0.5, 0.4, 0.4)).plot(X, X)
    right.annotate("high", (1, 2))
    right.text(0, 1, "low")
    right.annotate("", (1, 2), (0, 1), arrowprops={"arrowstyle": "->"})
    fig.suptitle("Two panels")
    fig.legend(left.lines[:1], ["wave"])
    change(left, right)
    return fig


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a line": lambda a, b: a.lines[0].set_ydata(np.cos(X)),
    "one value": lambda a, b: a.lines[0].set_ydata(np.sin(X) + 0.2 * (X[17] == X)),
    "a missing value": lambda a, b: a.lines[0].set_ydata(
        np.where(X[17] == X, np.nan, np.sin(X))
    ),
    "a band": lambda a, b: a.collections[0].set_data(X, np.sin(X), np.sin(X) + 0.2),
    "points": lambda a, b: a.collections[1].set_offsets(np.stack([X[:5], X[:5]], 1)),
    "their colour": lambda a, b: a.collections[1].set_color("#00ff00"),
    "a level": lambda a, b: a.lines[2].set_ydata([2, 2]),
    "a colour": lambda a, b: a.lines[0].set_color("#123456"),
    "dashes": lambda a, b: a.lines[1].set_linestyle("-"),
    "a label": lambda a, b: a.set_xlabel("update"),
    "a title": lambda a, b: a.set_title("Test"),
    "a title above both": lambda a, b: a.figure.suptitle("Two"),
    "a word": lambda a, b: a.texts[0].set_text("there"),
    "its place": lambda a, b: a.texts[0].set_position((3, 3)),
    "the legend": lambda a, b: a.legend(["growth", "sine"], title="what"),
    "a colour in the legend": lambda a, b: (
        a.get_legend().legend_handles[0].set_color("#123456")
    ),
    "the legend above both": lambda a, b: (
        a.figure.legends[0].texts[0].set_text("growth")
    ),
    "no legend": lambda a, b: a.get_legend().remove(),
    "limits": lambda a, b: a.set_xlim(0, 9),
    "a scale": lambda a, b: a.set_yscale("linear"),
    "an image": lambda a, b: b.images[0].set_data(np.ones((3, 4))),
    "its range": lambda a, b: b.images[0].set_clim(1, 5),
    "a bar": lambda a, b: b.patches[1].set_height(1.5),
    "its colour": lambda a, b: b.patches[1].set_color("#000000"),
    "what a word points at": lambda a, b: setattr(b.texts[0], "xy", (0, 1)),
    "where an arrow begins": lambda a, b: b.texts[2].set_position((0, 2)),
    "where it ends": lambda a, b: setattr(b.texts[2], "xy", (0, 2)),
    "its direction": lambda a, b: sabotage.set_ends(b.texts[2], ((1, 2), (0, 1))),
    "the colour of an arrow": lambda a, b: b.texts[2].arrow_patch.set_color("#123456"),
    "an arrow less": lambda a, b: b.texts[2].remove(),
    "a panel in a panel": lambda a, b: b.child_axes[0].lines[0].set_ydata(-X),
    "words at ticks": lambda a, b: b.set_xticks([0, 1], ["yes", "no"]),
    "a line less": lambda a, b: a.lines[0].remove(),
    "a panel less": lambda a, b: b.set_visible(False),
}


def test_the_same_figure_has_the_same_record() -> None:
    one, other = drawn.record(figure()), drawn.record(figure())
    assert one == other
    assert drawn.differences(one, other) == []


def test_what_stands_there_again_is_not_repeated() -> None:
    fig, axes = plt.subplots()
    for power in (1, 2, 3):
        axes.plot(X, X**power, color="#0072b2", label="")
    axes.plot(X, X, ":", color="#0072b2")
    axes.plot(X, 2 * X, "--", color="#0072b2")
    x, _, solid, dotted, dashed = drawn.record(fig)
    assert x == "x\tlinear\tlimits 0.8 5.2"
    assert solid.startswith("line\t#0072b2, -\tx 120: 455 9545 5000 ")
    assert dotted.startswith("line\t#0072b2, :\tx 40: 455 9545 5000 ")
    assert dashed.startswith("line\t#0072b2, --\t=\ty 40: ")
    (line,) = drawn.differences([x, dotted, dashed], [x, dotted, dotted])
    assert line == "stored 'line #0072b2, --', drawn 'line #0072b2, :'"
    assert drawn.differences([dotted, "line\t=\t=\t=\t="], [dotted] * 2) == []


def test_what_readers_take_from_scales_is_listed() -> None:
    fig, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2, 3], [0.1234, np.nan, 20000])
    left.plot(X, 1 / X)  # of many points the ends, lowest and highest
    left.axhline(0.5, color="#000000")
    right.bar([0, 1], [0.25, 0.75], width=1)
    right.text(0.5, 0.5, "here", transform=right.transAxes)
    found = drawn.read_off(drawn.record(fig))
    assert (
        found
        == (
            "0.123 1 2 3 2e4" + " 0.2 1 5" + " 0.5" + " -0.5 0 0.25 0.5 0.75 1.5"
        ).split()
    )


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("0.123 0.5 20", True),
        ("0.124 0.499 0.501 20", True),
        ("0.9 0.5 20", False),
        ("0.123 20", False),
        ("0.123 0.5 10 20", False),
        ("", False),
    ],
)
def test_what_is_read_off_is_compared_but_for_rounding(
    other: str, is_same: bool
) -> None:
    stored, found = (
        [f"line\t-\tx 0 1\tat {values}"] for values in ("0.123 0.5 20", other)
    )
    assert (drawn.differences(stored, found) == []) == is_same
    assert drawn.differences(stored, found, is_rough=True) == []


def test_the_number_of_missing_values_counts() -> None:
    stored, found = ["line\t-\tx 7: 0 1 2 3 4"], ["line\t-\tx 7 of 8: 0 1 2 3 4"]
    assert drawn.differences(stored, found)
    assert drawn.differences(stored, found, is_rough=True) == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    stored, found = drawn.record(figure()), drawn.record(figure(CHANGES[name]))
    assert drawn.differences(stored, found)


def wobble(size: float) -> Callable[[Axes, Axes], None]:
    """Return a change that moves each value of a line by such a part of it, or less."""
    parts = 1 + size * np.random.default_rng(0).uniform(-1, 1, X.shape)
    return lambda left, right: left.lines[1].set_ydata(np.exp(X) * parts)


def test_a_rounding_is_no_difference() -> None:
    stored, found = drawn.record(figure()), drawn.record(figure(wobble(1e-3)))
    assert stored != found
    assert drawn.differences(stored, found) == []


def test_what_can_be_seen_is_a_difference_but_where_a_rounding_moves_curves() -> None:
    stored, found = drawn.record(figure()), drawn.record(figure(wobble(0.2)))
    assert drawn.differences(stored, found)
    assert drawn.differences(stored, found, is_rough=True) == []


def told(weights: str, probability: float) -> list[str]:
    fig, ax = plt.subplots()
    for k, weight in enumerate(weights.split()):
        ax.text(k / 10, 0.5, weight)
    ax.set_title(f"P(@entity4) = {probability}")
    plt.close(fig)
    return drawn.record(fig)


@pytest.mark.parametrize(
    ("weights", "is_same"), [("31 5 Anna", True), ("29 29 Anna", True), ("29", False)]
)
def test_of_numbers_that_are_written_a_rough_figure_does_not_tell(
    weights: str, is_same: bool
) -> None:
    stored, found = told("29 6 Anna", 0.95), told(weights, 0.93)
    assert drawn.differences(stored, found)
    assert (drawn.differences(stored, found, is_rough=True) == []) == is_same


GROSS = [
    "a line",
    "limits",
    "a colour",
    "a line less",
    "a label",
    "the legend",
]


@pytest.mark.parametrize("name", GROSS)
def test_gross_changes_are_seen_there_too(name: str) -> None:
    stored, found = drawn.record(figure()), drawn.record(figure(CHANGES[name]))
    assert drawn.differences(stored, found, is_rough=True)


def test_a_difference_says_where_it_is() -> None:
    stored, found = (drawn.record(figure(CHANGES[n])) for n in ("a line", "a label"))
    lines = drawn.differences(stored, found)
    assert any(line.startswith("line sine, #1f77b4, -: y stored ") for line in lines)
    assert "stored 'x step, linear', drawn 'x update, linear'" in lines


def test_a_figure_of_every_kind_is_seen_in_every_way() -> None:
    results = list(sabotage.try_all(figure()))
    assert {name for name, *_ in results} == set(sabotage.WAYS)
    assert all(is_seen for _, is_seen, _ in results)


SMALL = """import matplotlib.pyplot as plt
from normbook import figures
figures.use_style()
plt.plot([1, 2, 4, 8])
plt.show()"""


def test_figures_of_a_notebook_are_drawn_wrongly_and_misses_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fine, rough = new_code_cell(SMALL), new_code_cell(SMALL)
    rough.metadata["tags"] = [drawn.ROUGH]
    path = tmp_path / "small.ipynb"
    nbformat.write(new_notebook(cells=[fine, rough]), path)
    assert sabotage.main([str(path)]) == 0
    printed = capfd.readouterr().out
    assert "small, figure 1: 4 tried\n" in printed
    told = (
        "small, figure 2: 4 tried, NOT SEEN: 1 one value off, 1 moved along x, a rough"
    )
    assert told in printed
    assert "moved along x: 1 of 2 seen" in printed


@pytest.mark.parametrize(
    ("is_rough", "trials", "status"),
    [
        (False, [("exchanged", True)], 0),
        (False, [("exchanged", True), ("exchanged", False)], 1),
        (True, [("exchanged", False)], 0),
        (False, [], 1),
    ],
)
def test_a_miss_or_a_figure_without_a_trial_is_red(
    is_rough: bool, trials: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sabotage, "tried", lambda path: iter([(is_rough, trials)]))
    assert sabotage.main(["small.ipynb"]) == status


def test_a_blind_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sabotage, "record", lambda figure: [])
    assert not any(is_seen for _, is_seen, _ in sabotage.try_all(figure()))


def test_how_far_outside_the_panel_something_lies_is_not_seen() -> None:
    near, far, farther = (drawn._numbers(np.array([v])) for v in (1.9, 2.1, 9.0))
    assert near != far
    assert far == farther
