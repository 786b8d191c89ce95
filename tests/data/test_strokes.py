"""Strokes: the archives are read as they are, and lines go where the pens went."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stand_ins import DRAWING, needs, path, put, zipped

from normbook.data import strokes
from normbook.data.catalogue import OMNIGLOT_STROKES
from normbook.data.strokes import Drawing
from normbook.data.synthetic import drawings

# Sums of up to 900 numbers of the size of a few.
ROUNDING = 1e-9


# --- the archives


def test_a_drawing_has_its_strokes_without_the_times() -> None:
    (drawing,) = strokes.read(zipped({path("Korean", 3, 20): DRAWING}))
    assert drawing[:3] == ("Korean", 3, 20)
    assert [stroke.tolist() for stroke in drawing.strokes] == [
        [[1.0, -2.0], [4.0, -2.0], [4.0, -6.5]],
        [[7.0, -1.0]],
    ]


def test_what_macos_adds_and_folders_are_passed_over() -> None:
    foreign = ("__MACOSX/small/._x.txt", "small/.DS_Store", ".DS_Store", "small/")
    members = {**dict.fromkeys(foreign, b"?"), path(): DRAWING}
    assert len(strokes.read(zipped(members))) == 1


def test_windows_line_ends_and_no_end_of_the_last_line_are_read_too() -> None:
    changed = DRAWING.replace(b"\n", b"\r\n").rstrip()
    (drawing,) = strokes.read(zipped({path(): changed}))
    assert [len(stroke) for stroke in drawing.strokes] == [3, 1]


def test_a_drawing_that_is_in_both_archives_counts_once_and_all_are_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("omniglot-strokes", tmp_path, monkeypatch)
    keys = [drawing[:3] for drawing in strokes.load()]
    greek = [("Greek", c, d) for c in (1, 2) for d in (6, 7)]
    assert keys == [("Balinese", 1, 6), *greek, ("Latin", 1, 6)]


# --- resampling


def curve() -> NDArray[np.float64]:
    t = np.linspace(0, 5, 400)
    return np.stack([10 * t + 4 * np.sin(3 * t), 9 * np.cos(2 * t)], axis=1)


def test_resampled_points_lie_on_the_stroke_at_equal_distances_along_it() -> None:
    stroke = curve()
    way = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(stroke, axis=0).T))])
    points = strokes.resample(stroke, 3.0)
    distances = np.linspace(0, way[-1], len(points))
    assert abs(distances[1] - 3.0) < 3.0 / len(points)
    for column, found in zip(stroke.T, points.T, strict=True):
        np.testing.assert_allclose(found, np.interp(distances, way, column))


def test_the_ends_of_a_stroke_stay_where_they_are() -> None:
    for length in (0.1, 3.0, 1000.0):
        points = strokes.resample(curve(), length)
        np.testing.assert_array_equal(points[[0, -1]], curve()[[0, -1]])


@pytest.mark.parametrize(
    ("stroke", "message"),
    [
        (np.zeros((0, 2)), r"shape \(K, 2\) with a point or more, got \(0, 2\); give"),
        (np.zeros(4), r"shape \(K, 2\) with a point or more, got \(4,\)"),
        (np.zeros((4, 3)), r"shape \(K, 2\) with a point or more, got \(4, 3\)"),
        ([[0, 0], [np.nan, 1]], "must hold finite numbers, got nan"),
        ([[0, 0], [1, np.inf]], r"must hold finite numbers, got 0\.0 to inf; leave"),
    ],
)
def test_what_is_no_stroke_is_refused(stroke: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strokes.resample(stroke, 3.0)


def test_a_stroke_that_does_not_move_is_one_point() -> None:
    assert strokes.resample(np.full((4, 2), 7.0), 3.0).tolist() == [[7.0, 7.0]]


@pytest.mark.parametrize("length", [0.0, -1.0, float("nan")])
def test_a_length_that_is_not_above_zero_is_refused(length: float) -> None:
    with pytest.raises(ValueError, match="length must be above 0, got"):
        strokes.resample(curve(), length)


# --- lines


def made(seed: int = 0, **changed: Any) -> strokes.Lines:
    options: dict[str, Any] = {"characters": 5, "length": 4.0, "gap": 9.0, **changed}
    own = drawings(np.random.default_rng(1))
    return strokes.lines(own, np.random.default_rng(seed), **options)


def test_the_way_of_a_line_is_that_of_its_characters_side_by_side() -> None:
    bar, bow = np.array([[3.0, 0], [3, 8]]), np.array([[6.0, -5], [2, -9], [1, -5]])
    characters = [(1, (bar,)), (2, (bow, bar))]
    own = [Drawing("two", c, d, s) for d in (1, 17) for c, s in characters]
    found = strokes.lines(
        own, np.random.default_rng(0), characters=2, length=100, gap=7
    )
    (line,) = found.test
    # The bar, and 7 to its right the bow, which ends furthest to the left.
    expected = [[0, 0], [0, 8], [12, -5], [7, -5], [9, 0], [9, 8]]
    if line[1, 0]:  # the other order; the bow reaches further right than its bar
        expected = [[0, 0], [-5, 0], [-3, 5], [-3, 13], [7, 5], [7, 13]]
    way = np.cumsum(line[:, :2], axis=0) * found.scale
    np.testing.assert_allclose(way, expected, atol=ROUNDING)
    assert line[:, 2].tolist() == [0, 1] * 3


def test_lines_are_split_by_the_person() -> None:
    found = made(test_drawers=[3, 4, 5])
    assert (len(found.train), len(found.test)) == (17 * 2, 3 * 2)


def test_the_mean_square_of_training_offsets_is_one_and_shapes_are_kept() -> None:
    found = made()
    offsets = np.concatenate([line[1:, :2] for line in found.train])
    assert np.mean(offsets**2) == pytest.approx(1, rel=ROUNDING)
    within = offsets[np.hypot(*offsets.T) * found.scale < 8.9]  # not to another stroke
    assert np.median(np.hypot(*within.T)) * found.scale == pytest.approx(4, rel=0.05)


def test_another_generator_gives_other_lines_and_the_same_one_the_same() -> None:
    one, same, other = made(0), made(0), made(1)
    assert all(map(np.array_equal, one.train, same.train))
    assert not all(map(np.array_equal, one.train, other.train))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"characters": 13}, "one for testing, got 0 and 0 from 240 drawings"),
        ({"test_drawers": [21]}, "one for testing, got 40 and 0"),
        ({"test_drawers": range(1, 21)}, "one for testing, got 0 and 40"),
        ({"characters": 0}, "characters must be a whole number of at least 1, got 0"),
        ({"characters": 2.0}, r"characters must be a whole .* at least 1, got 2\.0"),
        ({"length": 0}, "length must be above 0, got 0"),
        ({"gap": float("nan")}, "gap must be finite, got nan; give"),
    ],
)
def test_settings_that_give_no_lines_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changed)


@pytest.mark.parametrize(
    ("strokes_of", "message"),
    [
        ((), r"must have a stroke, got none in \('dots', 1, 1\); leave"),
        ((np.zeros((1, 2)),), "pen must move in a line for training, got points alone"),
    ],
)
def test_drawings_without_a_way_are_refused(strokes_of: Any, message: str) -> None:
    own = [Drawing("dots", 1, drawer, strokes_of) for drawer in (1, 17)]
    with pytest.raises(ValueError, match=message):
        strokes.lines(own, np.random.default_rng(0), characters=1)


# --- the real files


@pytest.fixture(scope="module")
def real() -> tuple[Drawing, ...]:
    return strokes.load()


@needs(OMNIGLOT_STROKES)
def test_the_real_drawings_are_what_is_known_of_them(real: tuple[Drawing, ...]) -> None:
    assert len(real) == 4840
    alphabets = Counter(drawing.alphabet for drawing in real)
    assert len(alphabets) == 8
    assert alphabets["Latin"] == 26 * 20
    assert alphabets["Greek"] == 24 * 20
    points = [sum(map(len, drawing.strokes)) for drawing in real]
    assert np.percentile(points, [5, 50, 95, 100]) == pytest.approx(
        [45, 136, 288, 535], abs=1
    )


@needs(OMNIGLOT_STROKES)
def test_the_real_lines_have_about_five_hundred_steps(
    real: tuple[Drawing, ...],
) -> None:
    found = strokes.lines(real, np.random.default_rng(0))
    assert (len(found.train), len(found.test)) == (448, 112)
    steps = [len(line) for line in found.train + found.test]
    low, middle, high = np.percentile(steps, [5, 50, 95])
    assert (350 < low < 400) & (480 < middle < 540) & (680 < high < 740)


@pytest.mark.parametrize(
    ("end", "length", "expected"),
    [(4.0, 1.0, [0, 1, 2, 3, 4]), (4.0, 1.9, [0, 2, 4]), (0.2, 1.0, [0, 0.2])],
)
def test_pieces_of_a_straight_stroke_are_alike(
    end: float, length: float, expected: list[float]
) -> None:
    found = strokes.resample(np.array([[0.0, 0.0], [0.3 * end, 0], [end, 0]]), length)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-12)
    assert not found[:, 1].any()
