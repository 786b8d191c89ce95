"""MNIST: 70 000 handwritten digits of 28 x 28 pixels.

References
----------
Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998), Gradient-based
learning applied to document recognition, Proceedings of the IEEE 86(11),
2278-2324, https://doi.org/10.1109/5.726791.
"""

from __future__ import annotations

from normbook.data import Dataset
from normbook.data.catalogue import MNIST
from normbook.data.idx import load_images


def load(is_scaled: bool = True) -> Dataset:
    """Load MNIST from a folder of yours, the cache, or the network.

    Parameters
    ----------
    is_scaled : bool, optional
        Whether pixels are scaled from 0 .. 255 to [0, 1], as float32. Without
        scaling they are uint8, a quarter of the memory.

    Returns
    -------
    Dataset
        `x_train` ``(60000, 28, 28)`` and `x_test` ``(10000, 28, 28)``, 0 is the
        background; `y_train` ``(60000,)`` and `y_test` ``(10000,)``, int64, the
        digit 0 to 9. The order is that of the files.

    Raises
    ------
    DataError
        If a file is damaged in the folder named by ``NORMBOOK_DATA``, or is
        nowhere to be had; the message lists each place and the cure. See
        :func:`normbook.data.files.read` for the places.

    Examples
    --------
    >>> from normbook.data import mnist
    >>> dataset = mnist.load()  # doctest: +SKIP
    >>> dataset.x_train.shape, dataset.x_train.dtype  # doctest: +SKIP
    ((60000, 28, 28), dtype('float32'))
    """
    return load_images(MNIST, is_scaled)
