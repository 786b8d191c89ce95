"""Japanese Vowels: stand-ins of the same form, planted defects, and the real files."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from normbook.__main__ import main
from normbook.data import vowels
from normbook.data.catalogue import JAPANESE_VOWELS, SOURCES, DataFile, Source
from normbook.data.files import CACHE, DATA, DataError, whereabouts
from normbook.lab.provenance import data_hashes
from normbook.lab.runner import LOADERS

END = b"1.0 " * 12 + b"\r\n"
LENGTHS = (2, 1, 3)


def line(number: int) -> bytes:
    """A step whose first number is the number of the line."""
    return b"%d 0.5 -0.25 1e-3" % number + b" 2.0" * 8 + b" \r\n"


def content(lengths: tuple[int, ...] = LENGTHS) -> bytes:
    steps = iter(range(2, 10_000))
    return b"".join(
        b"".join(line(next(steps)) for _ in range(length)) + END for length in lengths
    )


def put(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Let two files of a step for each sequence be Japanese Vowels."""
    files = []
    for name, count in (("ae.train", 270), ("ae.test", 370)):
        written = content((1,) * count)
        (folder / name).write_bytes(written)
        sha256 = hashlib.sha256(written).hexdigest()
        files.append(DataFile(name, len(written), sha256, urls=()))
    source = Source("japanese-vowels", "Vowels", "none", "none", tuple(files))
    monkeypatch.setattr(vowels, "JAPANESE_VOWELS", source)
    monkeypatch.setitem(SOURCES, "japanese-vowels", source)
    monkeypatch.setenv(DATA, str(folder))
    monkeypatch.setenv(CACHE, str(folder / "cache"))
    return source


# --- what is read


def test_every_number_and_the_order_are_kept_and_the_ends_are_no_steps() -> None:
    found = vowels.read(content(), count=3)
    assert [x.shape for x in found] == [(2, 12), (1, 12), (3, 12)]
    assert {x.dtype for x in found} == {np.dtype("f8")}
    assert np.concatenate(found)[:, 0].tolist() == [2, 3, 4, 5, 6, 7]
    assert found[2][1, :5].tolist() == [6, 0.5, -0.25, 1e-3, 2]


def test_the_twelve_ones_may_be_written_otherwise() -> None:
    # So stands one of them in the file for training.
    other = b"1.00 1.00 1.00 1.00 1.0 1.0 1.0 1.0 1.0 1.0 1.0 1.0\r\n"
    assert len(vowels.read(content().replace(END, other, 1), count=3)) == 3


@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"  \r\n"])
def test_blank_lines_mean_nothing(blank: bytes) -> None:
    changed = content().replace(END, blank + END + blank)
    for x, y in zip(vowels.read(changed, 3), vowels.read(content(), 3), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_step_with_some_ones_is_a_step() -> None:
    step = END.replace(b"1.0", b"0.0", 1)
    assert [len(x) for x in vowels.read(step + END, count=1)] == [1]


def test_the_speakers_follow_each_other_as_the_authors_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch)
    dataset = vowels.load()
    assert dataset.y_train.dtype == dataset.y_test.dtype == np.int64
    assert (np.diff(dataset.y_train) >= 0).all()
    assert np.bincount(dataset.y_train).tolist() == [30] * 9
    assert dataset.y_test[[0, 30, 31, 65, 66, 341, 369]].tolist() == [
        0, 0, 1, 1, 2, 8, 8
    ]  # fmt: skip
    assert [x[0, 0] for x in dataset.x_test[:3]] == [2, 3, 4]


# --- what is refused


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (content()[: -len(END)], "got the end of the file behind 3 steps; get the"),
        (content()[:-20], r"12 finite numbers, got b'1.0.* in line 9 \(8 words\)"),
        (content().replace(END, b"", 1), "must hold 3 sequences, got 2; is it the"),
        (content() + content((1,)), "must hold 3 sequences, got 4"),
        (content().replace(b" 2.0", b"", 1), r"got b'2 0.5 .* in line 1 \(11 words\)"),
        (content().replace(b"4 ", b"4 4 "), r"in line 4 \(13 words\)"),
        (content().replace(b"\n3", b"\nx"), r"got b'x 0.5.* in line 2 \(12 words\)"),
        (content().replace(b"\n3", b"\nnan"), r"finite numbers, got b'nan .* line 2"),
        (content().replace(b"\n3", b"\n1e999"), r"finite numbers, got b'1e999 "),
        (END + content(), "got one behind no step in line 1; get the file anew"),
        (content().replace(END, END + END, 1), "behind no step in line 4"),
        (b"", "must hold 3 sequences, got 0"),
        (b"<!DOCTYPE html>", r"got b'<!DOCTYPE html>' in line 1 \(2 words\)"),
        (bytes(range(128, 256)), "12 finite numbers, got b'"),
    ],
)
def test_a_file_of_another_form_is_refused(changed: bytes, message: str) -> None:
    with pytest.raises(vowels.VowelsError, match=message):
        vowels.read(changed, count=3)


def test_a_file_of_another_hash_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch)
    path = tmp_path / "ae.test"
    path.write_bytes(path.read_bytes().replace(b"-0.25", b"-0.26", 1))
    monkeypatch.setattr(vowels, "read", lambda *_: ())
    with pytest.raises(DataError, match=r"ae.test must be the file .*SHA-256 is"):
        vowels.load()


def test_a_file_that_was_cut_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch)
    path = tmp_path / "ae.train"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"ae.train must be .* bytes instead of"):
        vowels.load()


def test_a_file_that_is_nowhere_is_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch)
    (tmp_path / "ae.train").unlink()
    message = r"(?s)ae.train is not on this machine.*ae.train .*ae.test .*SHA-256"
    with pytest.raises(DataError, match=message):
        vowels.load()


# --- the command, the records


def test_the_command_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, monkeypatch)
    assert main(["data", "verify", "japanese-vowels"]) == 0
    assert main(["data", "fetch", "japanese_vowels"]) == 0
    assert "japanese-vowels: 2 files, " in capsys.readouterr().out


def test_a_record_names_the_hashes_of_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = put(tmp_path, monkeypatch)
    found = data_hashes("japanese-vowels", LOADERS["japanese-vowels"]())
    assert found == {
        "japanese-vowels": {file.name: file.sha256 for file in source.files}
    }


# --- the real ones

is_here, where = whereabouts(JAPANESE_VOWELS)


@pytest.mark.skipif(not is_here, reason=f"Japanese Vowels is {where}")
def test_japanese_vowels_is_what_is_known_of_it() -> None:
    x_train, y_train, x_test, y_test = vowels.load()
    assert (len(x_train), len(x_test)) == (270, 370)
    lengths = [[len(x) for x in part] for part in (x_train, x_test)]
    assert [(min(part), max(part)) for part in lengths] == [(7, 26), (7, 29)]
    assert [sum(part) for part in lengths] == [4274, 5687]
    assert np.bincount(y_train).tolist() == [30] * 9
    assert np.bincount(y_test).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    assert x_train[0][0, :3].tolist() == [1.860936, -0.207383, 0.261557]
    assert x_test[-1][-1, -2:].tolist() == [-0.016634, 0.224688]
