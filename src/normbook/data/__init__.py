"""Data sets for the experiments, as NumPy arrays.

Every data set has a module with one function ``load()`` that returns a
:class:`Dataset`:

>>> from normbook.data import digits
>>> dataset = digits.load()
>>> dataset.x_train.shape, dataset.x_test.shape
((1437, 64), (360, 64))

`digits` comes with scikit-learn and needs no download. The files of the others
are looked for in the folder named by the environment variable
``NORMBOOK_DATA``, then in the cache, and are downloaded only then
(:mod:`normbook.data.files`). ``normbook data list`` shows what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the command lists data sets where NumPy is not installed
    from numpy.typing import NDArray


class Dataset(NamedTuple):
    """Examples and their labels, split for training and testing.

    Attributes
    ----------
    x_train, x_test : ndarray, shape (N, ...)
        One example per row.
    y_train, y_test : ndarray of int64, shape (N,)
        The class of each example, from 0.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
