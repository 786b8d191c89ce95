"""MNIST and Fashion-MNIST: 70 000 pictures each, of digits and of clothes.

Fashion-MNIST (Xiao et al. 2017) has the files, sizes and counts of MNIST (LeCun et al.
1998), and is harder to classify.

The files are in the format idx: two zero bytes, a byte for the type of the numbers
(8: unsigned bytes), a byte for the number of dimensions, one big-endian 32-bit size
per dimension, then the numbers with the last index running fastest.
"""

from __future__ import annotations

import gzip
import struct

import numpy as np
from numpy.typing import NDArray

from normbook.data import Dataset, files
from normbook.data.catalogue import FASHION_MNIST, MNIST, Source

# What the labels 0 to 9 of Fashion-MNIST mean, in the authors' words.
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
    "Bag", "Ankle boot",
)  # fmt: skip


def load(is_scaled: bool = True) -> Dataset:
    """Load MNIST: images ``(60000, 28, 28)`` and ``(10000, 28, 28)``, labels the digit.

    0 is the background. Pixels are scaled from 0 .. 255 to [0, 1], as float32; without
    scaling they are uint8, a quarter of the memory.
    """
    return _load(MNIST, is_scaled)


def load_fashion(is_scaled: bool = True) -> Dataset:
    """Load Fashion-MNIST: as :func:`load`; labels are indices of FASHION_CLASSES."""
    return _load(FASHION_MNIST, is_scaled)


def _load(source: Source, is_scaled: bool) -> Dataset:
    """Load the images and labels for training, then those for testing."""
    x_train, y_train, x_test, y_test = (
        read(files.read(source, file)) for file in source.files
    )
    raw = Dataset(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64))
    return scaled(raw) if is_scaled else raw


def read(packed: bytes) -> NDArray[np.uint8]:
    """Return the numbers in a gzip-compressed idx file whose hash has matched.

    Two dimensions of sizes 1 and 3, then three numbers:

    >>> content = bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9])
    >>> read(gzip.compress(content))
    array([[7, 8, 9]], dtype=uint8)
    """
    content = gzip.decompress(packed)
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
    numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    return numbers.reshape(shape).copy()  # which may be written to


def scaled(raw: Dataset) -> Dataset:
    """Return the data set with pixels from 0 .. 255 brought to [0, 1], as float32."""
    x_train, x_test = (
        np.divide(x, np.float32(255), dtype=np.float32)  # no second array of floats
        for x in (raw.x_train, raw.x_test)
    )
    return raw._replace(x_train=x_train, x_test=x_test)
