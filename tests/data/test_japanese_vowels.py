"""Japanese Vowels: stand-ins of the same form, and the real files."""

from pathlib import Path

import numpy as np
import pytest
from stand_ins import END, needs, put, recordings

from normbook.data import vowels
from normbook.data.catalogue import JAPANESE_VOWELS

CONTENT = recordings(2, 1, 3)


def test_every_number_and_the_order_are_kept_and_the_ends_are_no_steps() -> None:
    found = vowels.read(CONTENT)
    assert [x.shape for x in found] == [(2, 12), (1, 12), (3, 12)]
    assert {x.dtype for x in found} == {np.dtype("f8")}
    assert np.concatenate(found)[:, 0].tolist() == [2, 3, 4, 5, 6, 7]
    assert found[2][1, :5].tolist() == [6, 0.5, -0.25, 1e-3, 2]


def test_the_twelve_ones_may_be_written_otherwise() -> None:
    # So stands one of them in the file for training.
    other = b"1.00 1.00 1.00 1.00 1.0 1.0 1.0 1.0 1.0 1.0 1.0 1.0\r\n"
    assert len(vowels.read(CONTENT.replace(END, other, 1))) == 3


@pytest.mark.parametrize("blank", [b"\r\n", b"\n", b"  \r\n"])
def test_blank_lines_mean_nothing(blank: bytes) -> None:
    changed = CONTENT.replace(END, blank + END + blank)
    for x, y in zip(vowels.read(changed), vowels.read(CONTENT), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_step_with_some_ones_is_a_step() -> None:
    first, last = END.replace(b"1.0", b"0.0", 1), b"1.0 " * 11 + b"0.0\r\n"
    assert [len(x) for x in vowels.read(first + last + END)] == [2]


def test_the_speakers_follow_each_other_as_the_authors_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("japanese-vowels", tmp_path, monkeypatch)
    dataset = vowels.load()
    assert dataset.y_train.dtype == dataset.y_test.dtype == np.int64
    assert (np.diff(dataset.y_train) >= 0).all()
    assert np.bincount(dataset.y_train).tolist() == [30] * 9
    assert dataset.y_test[[0, 30, 31, 65, 66, 341, 369]].tolist() == [
        0, 0, 1, 1, 2, 8, 8
    ]  # fmt: skip
    assert [x[0, 0] for x in dataset.x_test[:3]] == [2, 3, 4]


@needs(JAPANESE_VOWELS)
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
