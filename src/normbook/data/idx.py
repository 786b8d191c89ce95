"""Reading idx files, the format of MNIST and of what mirrors it.

An idx file is two zero bytes, a byte for the type of the numbers (8: unsigned
bytes), a byte for the number of dimensions, one big-endian 32-bit size per
dimension, then the numbers with the last index running fastest.

References
----------
Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of
handwritten digits, section "File formats".
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normbook.data import Dataset, files
from normbook.data.catalogue import Source

UNSIGNED_BYTE = 8
IMAGE_SHAPE = (28, 28)
MAX_PIXEL = 255


class IdxError(ValueError):
    """The bytes are not the idx file that was expected."""


def read(packed: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Unpack a gzip-compressed idx file of unsigned bytes.

    Parameters
    ----------
    packed : bytes
        Content of the ``.gz`` file.
    shape : tuple of int
        The shape that the array must have. It bounds what is unpacked, so that
        a small file cannot fill the memory.

    Returns
    -------
    ndarray of uint8, shape `shape`
        The numbers; an array of its own, which may be written to.

    Raises
    ------
    IdxError
        If the bytes are not gzip, the header is not that of unsigned bytes in
        `shape`, or there are fewer or more numbers than that.

    Examples
    --------
    Two dimensions of sizes 1 and 3, then three numbers:

    >>> import gzip
    >>> content = bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9])
    >>> read(gzip.compress(content), shape=(1, 3))
    array([[7, 8, 9]], dtype=uint8)
    """
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, UNSIGNED_BYTE, len(shape), *shape)
    content = _gunzip(packed, limit=len(header) + math.prod(shape))
    if content[:4] != header[:4]:
        raise IdxError(
            f"an idx file of unsigned bytes in {len(shape)} dimensions must begin "
            f"with the magic number {int.from_bytes(header[:4], 'big')}, got "
            f"{int.from_bytes(content[:4], 'big')}; is it the right file?"
        )
    if content[: len(header)] != header:
        sizes = content[4 : len(header)]
        found = [
            int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4)
        ]
        raise IdxError(
            f"the idx file must have the sizes {list(shape)}, got {found}; is it the "
            "right file?"
        )
    count = len(content) - len(header)
    if count != math.prod(shape):
        more = " or more" if count > math.prod(shape) else ""
        raise IdxError(
            f"an idx file of the sizes {list(shape)} must hold {math.prod(shape)} "
            f"numbers, got {count}{more}; get the file anew."
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def load_images(
    source: Source, is_scaled: bool, counts: tuple[int, int] = (60_000, 10_000)
) -> Dataset:
    """Load the four files of MNIST, or of a data set in the same form.

    Parameters
    ----------
    source : Source
        The data set; its files are the images and labels for training, then
        those for testing.
    is_scaled : bool
        Whether pixels are scaled from 0 .. 255 to [0, 1], as float32.
    counts : tuple of int, optional
        How many images there are for training and for testing.

    Returns
    -------
    Dataset
        Images ``(N, 28, 28)``, labels ``(N,)`` as int64.

    Raises
    ------
    DataError
        As :func:`normbook.data.files.read`.
    IdxError
        If a file does not hold as many images or labels as `counts` states.
    """
    arrays: list[NDArray[Any]] = []
    for i, count in enumerate(counts):
        images, labels = source.files[2 * i : 2 * i + 2]
        x = read(files.read(source, images), (count, *IMAGE_SHAPE))
        y = read(files.read(source, labels), (count,))
        arrays.append(_scale(x) if is_scaled else x)
        arrays.append(y.astype(np.int64))
    return Dataset(*arrays)


def _scale(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bring pixels to [0, 1], without a second array of floats."""
    return np.divide(x, np.float32(MAX_PIXEL), dtype=np.float32)


def _gunzip(packed: bytes, limit: int) -> bytes:
    """Unpack a gzip stream, as far as one byte over the limit."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # 16: with gzip header
    try:
        content = stream.decompress(packed, limit + 1)
    except zlib.error as error:
        raise IdxError(
            f"an idx file must be gzip-compressed, got bytes that begin with "
            f"{packed[:4]!r} ({error}); get the file anew."
        ) from None
    is_cut_off = not stream.eof and len(content) <= limit
    if is_cut_off or stream.unused_data:
        what = "an end that is cut off" if is_cut_off else "bytes after the end"
        raise IdxError(
            f"an idx file must be one complete gzip stream, got {what}, after "
            f"{len(content)} of {limit} bytes; get the file anew."
        )
    return content
