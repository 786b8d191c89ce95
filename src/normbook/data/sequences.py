"""Sequences of several lengths, and the array into which they are padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Sequences(NamedTuple):
    """As :class:`normbook.data.Dataset`, of N sequences of several lengths.

    `x_train` and `x_test` are tuples of arrays (T_i, D), float64: T_i steps of D
    features.
    """

    x_train: tuple[NDArray[np.float64], ...]
    y_train: NDArray[np.int64]
    x_test: tuple[NDArray[np.float64], ...]
    y_test: NDArray[np.int64]


def pad(sequences: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Put N sequences (T_i, D) into one array (N, T, D), with zeros behind each.

    T is the length of the longest. The lengths T_i come with it, shape (N,): without
    them a step of zeros and padding look the same. No sequence, one without a step, or
    other features in one of them are a ``ValueError``.

    Examples
    --------
    >>> x, lengths = pad([np.array([[1.0], [2.0], [3.0]]), np.array([[4.0]])])
    >>> x[:, :, 0]
    array([[1., 2., 3.],
           [4., 0., 0.]])
    >>> lengths
    array([3, 1])
    """
    arrays = [np.asarray(sequence) for sequence in sequences]
    if not arrays:
        raise ValueError("sequences must hold at least one sequence, got none.")
    for i, array in enumerate(arrays):
        if array.ndim != 2 or len(array) == 0:
            raise ValueError(
                "each sequence must have shape (T, D) with at least one step, got "
                f"{array.shape} at place {i}; give one row for each step."
            )
        if array.shape[1] != arrays[0].shape[1]:
            raise ValueError(
                "all sequences must have the same number of features, got "
                f"{arrays[0].shape[1]} at place 0 and {array.shape[1]} at place {i}."
            )
    lengths = np.array([len(array) for array in arrays], np.int64)
    shape = (len(arrays), int(lengths.max()), arrays[0].shape[1])
    x = np.zeros(shape, np.result_type(*arrays))
    for row, array in zip(x, arrays, strict=True):
        row[: len(array)] = array
    return x, lengths
