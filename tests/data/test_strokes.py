"""Strokes: the archives are read as they are, and lines go where the pens went."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from normbook.data import strokes
from normbook.data.catalogue import SOURCES, DataFile, Source
from normbook.data.files import CACHE, DATA, DataError, whereabouts
from normbook.data.strokes import Drawing, StrokesError
from normbook.data.synthetic import drawings
from normbook.lab.provenance import data_hashes
from normbook.lab.runner import LOADERS

# Two strokes: a corner of three points, and a dot.
TEXT = b"START\n1.0,-2.0,0\n4.0,-2.0,15\n4.0,-6.5,30\nBREAK\n7.0,-1.0,99\nBREAK\n"
# Sums of up to 900 numbers of the size of a few.
ROUNDING = 1e-9


def name(alphabet: str = "Greek", character: int = 1, drawer: int = 6) -> str:
    return f"small/{alphabet}/character{character:02}/0394_{drawer:02}.txt"


def archive(members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as written:
        for path, text in members.items():
            written.writestr(path, text)
    return content.getvalue()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Two archives in NORMBOOK_DATA: Greek is in both."""
    greek = {name("Greek", c, d): TEXT for c in (1, 2) for d in (6, 7)}
    contents = {
        "one.zip": archive(greek),
        "two.zip": archive({**greek, name("Latin", 1, 6): TEXT}),
    }
    folder = tmp_path / "omniglot-strokes"
    folder.mkdir()
    files = []
    for file, content in contents.items():
        (folder / file).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files.append(DataFile(file, len(content), sha256, ("https://a.invalid/",)))
    made = Source("omniglot-strokes", "Omniglot", "none", "none", tuple(files))
    monkeypatch.setattr(strokes, "OMNIGLOT_STROKES", made)
    monkeypatch.setitem(SOURCES, "omniglot-strokes", made)
    monkeypatch.setenv(DATA, str(tmp_path))
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return made


# --- the archives


def test_a_drawing_has_its_strokes_without_the_times() -> None:
    (drawing,) = strokes.read(archive({name("Korean", 3, 20): TEXT}))
    assert drawing[:3] == ("Korean", 3, 20)
    assert [stroke.tolist() for stroke in drawing.strokes] == [
        [[1.0, -2.0], [4.0, -2.0], [4.0, -6.5]],
        [[7.0, -1.0]],
    ]


def test_what_macos_adds_and_folders_are_passed_over() -> None:
    foreign = ("__MACOSX/small/._x.txt", "small/.DS_Store", ".DS_Store", "small/")
    members = {**dict.fromkeys(foreign, b"?"), name(): TEXT}
    assert len(strokes.read(archive(members))) == 1


def test_windows_line_ends_and_no_end_of_the_last_line_are_read_too() -> None:
    changed = TEXT.replace(b"\n", b"\r\n").rstrip()
    (drawing,) = strokes.read(archive({name(): changed}))
    assert [len(stroke) for stroke in drawing.strokes] == [3, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"first line must be START, got b'' in small/Greek.*; get the file anew"),
        (TEXT.replace(b"START", b"BEGIN"), "must be START, got b'BEGIN'"),
        (TEXT.replace(b"START\n", b""), "must be START, got b'1.0,-2.0,0'"),
        (
            TEXT.replace(b"15", b"x"),
            "hold x,y,time or BREAK, got b'4.0,-2.0,x' in l.*3",
        ),
        (
            TEXT.replace(b",15", b""),
            "hold x,y,time or BREAK, got b'4.0,-2.0' in line 3",
        ),
        (TEXT.replace(b",15", b",15,1"), "x,y,time or BREAK, got b'4.0,-2.0,15,1'"),
        (
            TEXT.replace(b"7.0", b"nan"),
            "x,y,time or BREAK, got b'nan,-1.0,99' in line 6",
        ),
        (TEXT.replace(b"7.0", b"inf"), "x,y,time or BREAK, got b'inf,-1.0,99'"),
        (TEXT.replace(b"7.0", b"1001"), r"within 1000 units of \(0, 0\), got b'1001,"),
        (TEXT.replace(b"-1.0", b"-1001"), "within 1000 units .*-1001,99' in line 6"),
        (TEXT + b"BREAK\n", "BREAK must stand behind points, got none before line 8"),
        (
            TEXT + b"1,2,3\n",
            "BREAK must stand behind each stroke, got the end behind 1",
        ),
        (b"START\n", "BREAK must stand behind each stroke, got the end behind 0"),
        (b"x" * 100_001, "at most 100000 bytes, got more"),
    ],
)
def test_a_damaged_drawing_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(StrokesError, match=message):
        strokes.read(archive({name(): text}))


@pytest.mark.parametrize(
    "path",
    [
        "readme.txt",
        "small/Greek/character01/0394_21.txt",
        "small/Greek/character01/0394_00.txt",
        "small/Greek/character1/0394_01.txt",
        "small/Greek/character00/0394_01.txt",
        "small/Greek/character\u0661\u0662/0394_01.txt",
        "small/../character01/0394_01.txt",
        "../Greek/character01/0394_01.txt",
        f"small/{'G' * 101}/character01/0394_01.txt",
        "small/Greek/x/character01/0394_01.txt",
        "small/Greek/character01/0394_01.txt.bak",
    ],
)
def test_a_file_that_is_no_drawing_is_refused(path: str) -> None:
    with pytest.raises(StrokesError, match=r"must be named FOLDER.*, got '"):
        strokes.read(archive({name(): TEXT, path: TEXT}))


def test_no_archive_and_an_empty_one_are_refused() -> None:
    with pytest.raises(StrokesError, match="must be a zip archive, got File is not"):
        strokes.read(TEXT)
    with pytest.raises(StrokesError, match="must hold drawings, got none"):
        strokes.read(archive({"small/": b""}))


def test_whatever_is_changed_in_an_archive_no_other_error_comes() -> None:
    content = archive({name(): TEXT})
    damaged = [content[:k] for k in range(len(content))]
    for k in range(len(content)):
        byte = content[k] ^ (1 << k % 8)
        damaged.append(content[:k] + bytes([byte]) + content[k + 1 :])
    refused = 0
    for bad in damaged:
        try:
            (drawing,) = strokes.read(bad)
            assert drawing.strokes[1].tolist() == [[7.0, -1.0]]
        except StrokesError:
            refused += 1
    assert refused > len(damaged) / 2  # the rest are dates and the like


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strokes, "MEMBERS", 2)
    members = {name(drawer=d): TEXT for d in (1, 2, 3)}
    with pytest.raises(StrokesError, match="at most 2 entries, got 3"):
        strokes.read(archive(members))


def test_a_drawing_twice_in_one_archive_is_refused() -> None:
    members = {name(): TEXT, name().replace("small", "other"): TEXT}
    with pytest.raises(StrokesError, match="in the archive once, got 'other/Greek"):
        strokes.read(archive(members))


# --- load


@pytest.mark.usefixtures("source")
def test_a_drawing_that_is_in_both_archives_counts_once_and_all_are_in_order() -> None:
    keys = [drawing[:3] for drawing in strokes.load()]
    greek = [("Greek", c, d) for c in (1, 2) for d in (6, 7)]
    assert keys == [*greek, ("Latin", 1, 6)]


def test_a_damaged_file_of_ones_own_is_an_error(source: Source, tmp_path: Path) -> None:
    path = tmp_path / source.name / "two.zip"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"two\.zip"):
        strokes.load()


def test_a_run_takes_them_and_keeps_the_hashes_of_the_files(source: Source) -> None:
    found = data_hashes("omniglot-strokes", LOADERS["omniglot-strokes"]())
    hashes = {file.name: file.sha256 for file in source.files}
    assert found == {"omniglot-strokes": hashes}


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
        ({"characters": 0}, "characters must be a whole number from 1 on, got 0"),
        ({"characters": 2.0}, r"characters must be a whole number from 1 on, got 2\.0"),
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
    is_here, where = whereabouts(SOURCES["omniglot-strokes"])
    if not is_here:
        pytest.skip(f"needs omniglot-strokes ({where}), or its folder in {DATA}")
    return strokes.load()


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


def test_the_real_lines_have_about_five_hundred_steps(
    real: tuple[Drawing, ...],
) -> None:
    found = strokes.lines(real, np.random.default_rng(0))
    assert (len(found.train), len(found.test)) == (448, 112)
    steps = [len(line) for line in found.train + found.test]
    low, middle, high = np.percentile(steps, [5, 50, 95])
    assert (350 < low < 400) & (480 < middle < 540) & (680 < high < 740)
