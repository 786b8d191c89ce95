"""Data sets for the experiments, as NumPy arrays.

Every data set has a function ``load()`` (Fashion-MNIST ``mnist.load_fashion()``), which
keeps the order of its files; those of pictures return a :class:`Dataset`:

>>> from normbook.data import digits
>>> dataset = digits.load()
>>> dataset.x_train.shape, dataset.x_test.shape
((1437, 64), (360, 64))

`digits` comes with scikit-learn and needs no download. The files of the others are
looked for in the folder named by the environment variable ``NORMBOOK_DATA``, then in
the cache, and are downloaded only then (:mod:`normbook.data.files`). Where one is
damaged or nowhere to be had, loading raises ``DataError``, which says what to do.
``normbook data list`` shows what is there, ``normbook data fetch`` whom to cite.

What is made instead of loaded is drawn from a `generator`. A size that is no whole
number or out of its bounds raises ``ValueError`` before anything is drawn.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the command lists data sets where NumPy is not installed
    from numpy.typing import NDArray


class Dataset(NamedTuple):
    """Examples (N, ...) and labels (N,), int64 from 0, to train and to test on."""

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]


def check_size(name: str, value: int, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number, or lies outside of its bounds."""
    with suppress(TypeError):
        if least <= operator.index(value) <= (math.inf if most is None else most):
            return
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise ValueError(
        f"{name} must be a whole number {bounds}, got {value!r}; give {least}, say."
    )
