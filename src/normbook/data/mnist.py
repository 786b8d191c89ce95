"""MNIST and Fashion-MNIST: 70 000 pictures each, of digits and of clothes.

Fashion-MNIST has the same files, sizes and counts, and is harder to classify.

Their files are in the format idx: two zero bytes, a byte for the type of the numbers
(8: unsigned bytes), a byte for the number of dimensions, one big-endian 32-bit size
per dimension, then the numbers with the last index running fastest.

References
----------
Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998), Gradient-based learning applied
to document recognition, Proceedings of the IEEE 86(11), 2278-2324,
https://doi.org/10.1109/5.726791. H. Xiao, K. Rasul and R. Vollgraf (2017),
Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms,
arXiv:1708.07747.
"""

from __future__ import annotations

import gzip
import struct

import numpy as np
from numpy.typing import NDArray

from normbook.data import Dataset, files
from normbook.data.catalogue import FASHION_MNIST, MNIST, Source

__all__ = ["FASHION_CLASSES", "load", "load_fashion", "read", "scaled"]

# What the labels 0 to 9 of Fashion-MNIST mean, in the authors' words.
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


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
        As :func:`normbook.data.files.read`.

    Examples
    --------
    >>> from normbook.data import mnist
    >>> dataset = mnist.load()  # doctest: +SKIP
    >>> dataset.x_train.shape, dataset.x_train.dtype  # doctest: +SKIP
    ((60000, 28, 28), dtype('float32'))
    """
    return _load(MNIST, is_scaled)


def load_fashion(is_scaled: bool = True) -> Dataset:
    """Load Fashion-MNIST: as :func:`load`, labels are indices of ``FASHION_CLASSES``.

    Examples
    --------
    >>> FASHION_CLASSES[9]
    'Ankle boot'
    """
    return _load(FASHION_MNIST, is_scaled)


def _load(source: Source, is_scaled: bool) -> Dataset:
    """Load the images and labels for training, then those for testing."""
    x_train, y_train, x_test, y_test = (
        read(files.read(source, file)) for file in source.files
    )
    raw = Dataset(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64))
    return scaled(raw) if is_scaled else raw


def read(packed: bytes) -> NDArray[np.uint8]:
    """Unpack an idx file whose hash has matched.

    Parameters
    ----------
    packed : bytes
        Content of the ``.gz`` file, of unsigned bytes.

    Returns
    -------
    ndarray of uint8
        An array of its own, which may be written to.

    Examples
    --------
    Two dimensions of sizes 1 and 3, then three numbers:

    >>> content = bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9])
    >>> read(gzip.compress(content))
    array([[7, 8, 9]], dtype=uint8)
    """
    content = gzip.decompress(packed)
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
    numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    return numbers.reshape(shape).copy()


def scaled(raw: Dataset) -> Dataset:
    """Bring pixels from 0 .. 255 to [0, 1], as float32.

    Parameters
    ----------
    raw : Dataset

    Returns
    -------
    Dataset
    """
    x_train, x_test = (
        np.divide(x, np.float32(255), dtype=np.float32)  # no second array of floats
        for x in (raw.x_train, raw.x_test)
    )
    return raw._replace(x_train=x_train, x_test=x_test)
