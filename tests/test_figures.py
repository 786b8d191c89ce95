"""Figures draw the data they are given, in the colours that mean one thing."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from luminance import luminance
from matplotlib.colors import to_rgb

from normbook import figures
from normbook.axes import sharing
from normbook.group_norm import instance_norm_forward
from normbook.looks import Kind


@pytest.mark.parametrize("kind", list(figures.STYLES))
def test_every_colour_can_be_told_from_white(kind: Kind) -> None:
    contrast = 1.05 / (luminance(figures.STYLES[kind]["color"]) + 0.05)
    assert contrast >= 3


def test_no_two_kinds_share_a_colour_or_a_line_style() -> None:
    for key in ("color", "linestyle"):
        assert len({str(style[key]) for style in figures.STYLES.values()}) == 5


def test_the_style_cycles_through_the_same_colours() -> None:
    with plt.rc_context():
        figures.use_style()
        cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    assert cycle == [s["color"] for s in figures.STYLES.values()]


def test_a_band_is_the_median_and_the_whole_range() -> None:
    _, ax = plt.subplots()
    runs = np.array([[1.0, 5.0], [2.0, 4.0], [9.0, 3.0]])
    figures.band(ax, [0, 1], runs, kind="batch", label="ours")
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_ydata(), [2, 4])
    corners = ax.collections[0].get_paths()[0].vertices
    assert {tuple(v) for v in np.asarray(corners)} >= {(0, 1), (0, 9), (1, 3), (1, 5)}
    assert line.get_color() == figures.STYLES["batch"]["color"]


def test_curves_label_each_method() -> None:
    runs = {"with": ("batch", np.ones((2, 3))), "without": ("none", np.zeros((2, 3)))}
    _, ax = figures.curves([1, 2, 3], runs, xlabel="step", ylabel="loss")  # type: ignore[arg-type]
    legend = ax.get_legend()
    assert legend is not None
    assert [t.get_text() for t in legend.get_texts()] == ["with", "without"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss")


def test_a_depth_profile_has_one_panel_for_each_quantity() -> None:
    lines = {
        "batch": ("batch", np.array([1.0, 10.0])),
        "none": ("none", np.ones((3, 2))),
    }
    fig, axes = figures.depth_profile({"forward": lines, "backward": lines})  # type: ignore[dict-item]
    assert [ax.get_ylabel() for ax in axes] == ["forward", "backward"]
    np.testing.assert_array_equal(axes[1].lines[0].get_xdata(), [1, 2])
    assert len(fig.legends[0].get_texts()) == 2


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ([[1.0, -3.0]], 3),
        ([[0.0]], 1),
        ([[1.0, -2.0, np.nan, np.inf]], 2),  # the largest finite value
        ([[np.nan]], 1),
        (np.array([[-128, 5]], dtype=np.int8), 128),  # abs(-128) is -128 in int8
    ],
)
def test_a_signed_map_is_symmetric_about_zero(values: Any, most: float) -> None:
    _, ax = plt.subplots()
    options = {"xlabel": "i", "ylabel": "j", "label": "value"}
    for where in (None, ax):
        _, drawn = figures.signed_map(values, **options, ax=where)
        assert drawn.images[0].get_clim() == (-most, most)
    assert drawn is ax


def test_a_sweep_has_the_setting_on_a_log_axis() -> None:
    lines = {"with": ("batch", np.array([[1.0, 2.0, 9.0], [3.0, 4.0, 9.0]]))}
    fig, axes = figures.sweep(
        [0.1, 1, 10],
        {"first (nats)": lines, "second (nats)": lines},  # type: ignore[dict-item]
        xlabel="learning rate",
        ylim=(0, 5),
    )
    assert [ax.get_ylabel() for ax in axes] == ["first (nats)", "second (nats)"]
    assert {(ax.get_xscale(), ax.get_ylim()) for ax in axes} == {("log", (0, 5))}
    assert [t.get_text() for t in axes[0].get_xticklabels()] == ["0.1", "1", "10"]
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), [2, 3, 9])
    assert len(fig.legends[0].get_texts()) == 1


def test_a_grid_of_curves_has_a_row_for_each_y_label() -> None:
    lines = {
        "level": ("reference", [0, 2], [[5.0, 5.0]]),
        "with": ("batch", [0, 2], np.array([[1.0, 2.0], [3.0, 4.0]])),
        "_silent": ("other", [0, 2], [[0.5, 0.5]]),
    }
    rows: Any = {"first": {"a": lines, "b": lines}, "second": {"a": lines, "b": lines}}
    fig, axes = figures.curve_grid(rows, yscale="log")
    assert [[ax.get_ylabel() for ax in row] for row in axes] == [
        ["first", ""],
        ["second", ""],
    ]
    assert [ax.get_xlabel() for ax in axes[1]] == ["a", "b"]
    assert not axes[0][0].get_xlabel()
    for ax in (ax for row in axes for ax in row):
        np.testing.assert_array_equal(ax.lines[1].get_ydata(), [2, 3])
        assert ax.get_yscale() == "log"
    assert axes[0][0].get_ylim() == axes[0][1].get_ylim()
    # a reference comes last, an underscore stays out
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["with", "level"]


def test_a_grid_without_a_legend_has_none() -> None:
    rows: Any = {"first": {"a": {"_one": ("batch", [0, 1], [[1.0, 2.0]])}}}
    fig, _ = figures.curve_grid(rows)
    assert fig.legends == []


def test_marked_cells_stand_where_their_image_stands() -> None:
    mask = np.zeros((2, 3, 1, 2), dtype=bool)
    mask[1, 2, 0, 1] = True
    _, (ax,) = figures.marked_cells({"one": mask})
    drawn: Any = np.ma.asarray(ax.collections[0].get_array())
    # 2 rows of 1 pixel with 1 gap between; 3 columns of 2 pixels with 2 gaps.
    assert drawn.shape == (3, 8)
    assert drawn[2, 7] == 1
    assert drawn.sum() == 1
    assert drawn.mask.sum() == 3 * 8 - mask.size
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", "2"]
    # A number stands at the middle of its images.
    assert ax.get_xticks().tolist() == [1, 4, 7]
    assert ax.get_yticks().tolist() == [0.5, 2.5]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("channel\n\none", "example")


def test_no_stroke_is_drawn_where_the_pen_is_lifted() -> None:
    # A bar of three points, a dot, and a stroke that the line ends in.
    steps = [[0, 0, 0], [0, 2, 0], [0, 3, 1], [4, -1, 1], [2, 0, 0], [1, 1, 0]]
    _, (ax,) = figures.pen_lines({"one": ("layer", [np.array(steps)])})
    ways = [np.asarray(line.get_xydata()).tolist() for line in ax.lines]
    assert ways == [
        [[0, -5], [0, -3], [0, 0]],  # the highest point of all stands at 0
        [[4, -1]],
        [[4, -1]],  # the dot itself: a line of one point is not seen
        [[6, -1], [7, 0]],
    ]
    assert {line.get_color() for line in ax.lines} == {figures.STYLES["layer"]["color"]}
    assert ax.get_aspect() == 1


def test_lines_of_handwriting_stand_below_each_other() -> None:
    steps = np.array([[0.0, 0, 0], [5, 7, 1]])
    _, (ax, _) = figures.pen_lines(
        {"two": ("layer", [steps] * 2), "none": ("other", [])}, columns=2
    )
    heights = [np.asarray(line.get_ydata()) for line in ax.lines]
    one, two = (height for height in heights if len(height))
    assert two.max() < one.min()


SHAPE = (2, 6, 3, 5)
INDEX = (1, 4, 0, 2)


def drawn_sharing(ax: Any) -> tuple[Any, Any]:
    """Read from a picture which squares are coloured and which have a dot."""
    n, c, h, w = np.indices(SHAPE)
    y, x = n * (SHAPE[2] + 1) + h, c * (SHAPE[3] + 1) + w
    squares = ax.collections[0]
    squares.update_scalarmappable()
    count = squares.get_array().shape
    colours = squares.get_facecolors().reshape(*count, 4)[y, x]
    is_grey = np.isclose(colours[..., :3], to_rgb("#E4E4E4")).all(-1)
    dots = {tuple(place) for place in ax.lines[0].get_xydata()}
    middles = zip((x + 0.5).flat, (y + 0.5).flat, strict=True)
    has_dot = [place in dots for place in middles]
    assert len(dots) == sum(has_dot)  # none stands between the squares
    return ~is_grey, np.reshape(has_dot, SHAPE)


def draw_sharing() -> dict[str, Any]:
    """Draw what the code of the book shares; give the panels by name."""
    kinds: list[Kind] = ["batch", "layer", "layer", "other", "other", "other"]
    found = zip(kinds, sharing(SHAPE, 3, INDEX).items(), strict=True)
    methods = {name: (kind, *masks) for kind, (name, masks) in found}
    _, axes = figures.shared_cells(methods, INDEX)
    return dict(zip(methods, axes, strict=True))


def test_shared_cells_follow_the_code() -> None:
    masks = sharing(SHAPE, 3, INDEX)
    for name, ax in draw_sharing().items():
        np.testing.assert_array_equal(drawn_sharing(ax), masks[name], err_msg=name)
        assert name in ax.get_xlabel()


def test_a_function_that_shares_otherwise_changes_the_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = drawn_sharing(draw_sharing()["batch norm"])
    monkeypatch.setattr("normbook.batch_norm.batch_norm_forward", instance_norm_forward)
    after = drawn_sharing(draw_sharing()["batch norm"])
    assert (before[0].sum(), after[0].sum()) == (30, 15)
    np.testing.assert_array_equal(before[1], after[1])


def test_shared_cells_have_the_colour_of_their_method_and_frame_the_value() -> None:
    for name, ax in draw_sharing().items():
        kind: Kind = (
            "batch" if "batch" in name else "layer" if "layer" in name else "other"
        )
        assert to_rgb(ax.collections[0].cmap(1.0)) == to_rgb(
            figures.STYLES[kind]["color"]
        )
        (frame,) = ax.patches
        # Columns are 6 apart and rows 4: 5 and 3 squares, and a gap.
        assert frame.get_bbox().bounds == (4 * 6 + 2, 1 * 4 + 0, 1, 1)
        assert not frame.get_fill()


def test_an_odd_number_of_methods_leaves_no_empty_panel() -> None:
    mask = np.ones((1, 1, 2, 2), dtype=bool)
    methods: Any = dict.fromkeys("abc", ("other", mask, mask))
    fig, axes = figures.shared_cells(methods, (0, 0, 0, 0))
    assert len(fig.axes) == len(axes) == 3
    assert axes[0].get_position().y0 > axes[2].get_position().y0
    short, _ = figures.shared_cells(dict([*methods.items()][:2]), (0, 0, 0, 0))
    assert fig.get_size_inches()[1] > 1.5 * short.get_size_inches()[1]
    assert len(fig.legends[0].get_texts()) == 3


def shared(statistics: Any, parameters: Any, place: int = 0) -> Any:
    methods: Any = {"": ("other", statistics, parameters)}
    return figures.shared_cells(methods, (0, 0, place, 0))


ONE = np.ones((1, 1, 2, 2))
AXES: Any = {"xlabel": "", "ylabel": ""}
BLUE: Any = {"": ("blue", [[1.0]])}
FLAT: Any = {"": ("batch", [1.0, 2.0])}
SHORT: Any = {"": ("batch", [0], [1.0])}


def written(*shape: int) -> Any:
    return figures.pen_lines({"": ("layer", [np.zeros(shape)])})


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda bad: figures.curves([0], bad, **AXES), "runs must hold"),
        (lambda _: figures.curves([0], FLAT, **AXES), r"\(S, T\).* got \(2,\)"),
        (lambda _: figures.curves([0], BLUE, **AXES), "kind must be one of batch, la"),
        (lambda bad: figures.depth_profile({"": bad}), "at least one run"),
        (lambda bad: figures.sweep([1], {"": bad}, xlabel=""), "at least one run"),
        (lambda _: figures.depth_profile({}), "at least one panel"),
        (lambda _: figures.sweep([1], {}, xlabel=""), "at least one panel"),
        (lambda _: figures.marked_cells({}), "at least one panel"),
        (lambda _: figures.shared_cells({}, (0, 0, 0, 0)), "at least one panel"),
        (lambda _: shared(ONE, ONE[:, :, :1]), "parameters must have the shape of s"),
        (lambda _: shared(ONE, ONE, place=2), "index must be a place"),
        (lambda _: shared(np.eye(2), np.eye(2)), "masks must have shape"),
        (lambda _: figures.curve_grid({}), "at least one panel"),
        (lambda _: figures.curve_grid({"": {}}), "at least one panel"),
        (lambda _: figures.curve_grid({"": {"a": {}}, "_": {}}), "the same x labels"),
        (lambda _: figures.curve_grid({"": {"a": SHORT}}), "runs must"),
        (lambda _: figures.marked_cells({"": np.eye(2)}), r"masks .* got \(2, 2\)"),
        (lambda _: figures.panels(0), "count must be a positive multiple of rows"),
        (lambda _: figures.panels(3, rows=2), "positive multiple of rows"),
        (lambda _: figures.panels(2, rows=0), "positive multiple of rows"),
        (lambda _: written(4), r"must have shape \(T, 3\) .*, got \("),
        (lambda _: written(4, 2), r"must have shape \(T, 3\) .*, got \("),
        (lambda _: written(1, 4, 3), r"must have shape \(T, 3\) .*, got \("),
        (lambda _: written(0, 3), r"must have shape \(T, 3\) .*, got \("),
        (lambda _: figures.signed_map([1.0], **AXES, label=""), "must be a matrix"),
        (lambda _: figures.signed_map([[], []], **AXES, label=""), "not empty"),
    ],
)
def test_a_failed_figure_is_not_left_open(draw: Any, message: str) -> None:
    bad = {"good": ("none", [[1.0]]), "bad": ("batch", np.empty((0, 1)))}
    with pytest.raises(ValueError, match=message):
        draw(bad)
    assert plt.get_fignums() == []


def test_published_points_are_open_circles_in_the_colour_of_the_method() -> None:
    _, ax = plt.subplots()
    figures.points(ax, [1, 2], [3.0, 5.0], kind="none", label="published")
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), [[1, 3], [2, 5]])
    assert (line.get_linestyle(), line.get_fillstyle()) == ("None", "none")
    assert line.get_color() == figures.STYLES["none"]["color"]


def test_points_of_different_length_are_refused() -> None:
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match=r"one shape \(T,\), got \(1,\) and \(2,\)"):
        figures.points(ax, [1], [1.0, 2.0], kind="batch")


def test_panels_stand_row_by_row_and_each_row_adds_its_height() -> None:
    one, _ = figures.panels(2)
    two, axes = figures.panels(6, rows=2)
    assert len(axes) == 6
    places = [ax.get_position().bounds[:2] for ax in axes]
    assert places[2][0] > places[1][0] > places[0][0]  # right of the first
    assert places[3][1] < places[2][1] == places[0][1]  # below it
    assert two.get_size_inches()[1] == 2 * one.get_size_inches()[1]
