"""Padding of sequences of several lengths."""

import numpy as np
import pytest

from normbook.data.sequences import pad

LENGTHS = (3, 5, 1, 4)
STEPS = [np.arange(1.0, 2 * n + 1).reshape(n, 2) for n in LENGTHS]


def test_every_step_keeps_its_place_and_behind_a_sequence_there_are_zeros() -> None:
    x, lengths = pad(STEPS)
    assert x.shape == (4, 5, 2)
    assert lengths.tolist() == list(LENGTHS)
    for row, sequence in zip(x, STEPS, strict=True):
        np.testing.assert_array_equal(row[: len(sequence)], sequence)
        assert not row[len(sequence) :].any()


def test_the_longest_is_not_padded_and_the_array_is_a_copy() -> None:
    x, _ = pad(STEPS)
    x[1, 0, 0] = -7.0
    assert STEPS[1][0, 0] == 1.0


def test_a_padded_array_has_the_type_of_the_sequences() -> None:
    assert pad([np.ones((2, 3), np.float32)])[0].dtype == np.float32
    assert pad([np.ones((2, 3)), np.ones((4, 3), np.float32)])[0].dtype == np.float64
    assert pad(STEPS)[1].dtype == np.int64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "at least one sequence, got none"),
        ([*STEPS, np.ones(2)], r"shape \(T, D\) .*, got \(2,\) at place 4"),
        ([STEPS[0], np.ones((0, 2))], r"got \(0, 2\) at place 1; give one row"),
        ([np.ones((3, 4, 2))], r"got \(3, 4, 2\) at place 0"),
        ([*STEPS, np.ones((3, 5))], "got 2 at place 0 and 5 at place 4"),
    ],
)
def test_what_cannot_be_padded_is_refused(
    wrong: list[np.ndarray], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pad(wrong)
