"""CIFAR-10: 60 000 colour pictures of 32 x 32 pixels, of things and animals.

The author publishes one archive, in which the pictures are Python pickles, and a
pickle may call any function of Python while it is read. Those of this data set
need three names of NumPy. Here only these three are let through, and each stands
for a class of ours that keeps what it is given: a pickle calls nothing else, not
even NumPy. Before that, the SHA-256 of the archive has been checked, and nothing of
it is written to the disk.

References
----------
A. Krizhevsky (2009), Learning multiple layers of features from tiny images,
technical report, University of Toronto,
https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normbook.data import Dataset, files
from normbook.data.catalogue import CIFAR_10

# What the labels 0 to 9 mean, in the author's words.
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

FOLDER = "cifar-10-batches-py"  # in the archive
TRAINING = tuple(f"data_batch_{k}" for k in range(1, 6))
TEST = "test_batch"
COUNT = 10_000  # pictures in each of the six
IMAGE_SHAPE = (3, 32, 32)
MAX_PIXEL = 255
# Bytes that are unpacked at most. Pixels, labels and names of 10 000 pictures take
# 31 036 000, and besides these six files there is little in the archive.
MAX_MEMBER = 32_000_000
MAX_ARCHIVE = 200_000_000

# The names that a pickle of an array of NumPy asks for, as Python 2 wrote it.
NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class Cifar10Error(ValueError):
    """The bytes are not the archive that was expected."""


def load(is_scaled: bool = True) -> Dataset:
    """Load CIFAR-10 from a folder of yours, the cache, or the network.

    The download is 170 MB, from one server, which can take an hour for it. In memory
    the scaled pictures are 740 MB.

    Parameters
    ----------
    is_scaled : bool, optional
        Whether pixels are scaled from 0 .. 255 to [0, 1], as float32. Without
        scaling they are uint8, a quarter of the memory.

    Returns
    -------
    Dataset
        `x_train` ``(50000, 3, 32, 32)`` and `x_test` ``(10000, 3, 32, 32)``: the
        channels are red, green and blue, the rows begin at the top; `y_train`
        ``(50000,)`` and `y_test` ``(10000,)``, int64, the index into ``CLASSES``.
        The order is that of the files.

    Raises
    ------
    DataError
        If the file is damaged in the folder named by ``NORMBOOK_DATA``, or is
        nowhere to be had; the message lists each place and the cure. See
        :func:`normbook.data.files.read` for the places.

    Examples
    --------
    >>> from normbook.data import cifar10
    >>> cifar10.CLASSES[6]
    'frog'
    >>> dataset = cifar10.load()  # doctest: +SKIP
    >>> dataset.x_train.shape, dataset.x_train.dtype  # doctest: +SKIP
    ((50000, 3, 32, 32), dtype('float32'))
    """
    (file,) = CIFAR_10.files
    raw = read(files.read(CIFAR_10, file), COUNT)
    if not is_scaled:
        return raw
    return raw._replace(x_train=_scale(raw.x_train), x_test=_scale(raw.x_test))


def read(packed: bytes, count: int) -> Dataset:
    """Read the pictures and labels in the archive, without unpacking it to disk.

    Parameters
    ----------
    packed : bytes
        Content of the ``.tar.gz`` file.
    count : int
        Pictures that each of its six files must hold.

    Returns
    -------
    Dataset
        Pictures ``(5 * count, 3, 32, 32)`` and ``(count, 3, 32, 32)``, uint8;
        labels as int64.

    Raises
    ------
    Cifar10Error
        If the bytes are not such an archive, a file in it is missing or is not a
        regular file, or has other pictures or labels than it must; or if a pickle
        asks for anything but arrays.

    Examples
    --------
    >>> read(b"<!DOCTYPE html>", count=10_000)
    Traceback (most recent call last):
        ...
    normbook.data.cifar10.Cifar10Error: the archive must be gzip-compressed, got
    bytes that begin with b'<!DO' (Not a gzipped file (b'<!')); get the file anew.
    """
    try:
        with gzip.open(io.BytesIO(packed)) as stream:
            content = stream.read(MAX_ARCHIVE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Cifar10Error(
            "the archive must be gzip-compressed, got bytes that begin with "
            f"{packed[:4]!r} ({error}); get the file anew."
        ) from None
    if len(content) > MAX_ARCHIVE:
        raise Cifar10Error(
            f"the archive must have at most {MAX_ARCHIVE} bytes unpacked, got more; "
            "is it the right file?"
        )
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            batches = [
                _batch(name, _member(archive, name), count)
                for name in (*TRAINING, TEST)
            ]
    except tarfile.TarError as error:
        raise Cifar10Error(
            f"the archive must be a tar file, got another one ({error}); is it the "
            "right file?"
        ) from None
    x_test, y_test = batches.pop()
    x_train = np.concatenate([x for x, _ in batches])
    y_train = np.concatenate([y for _, y in batches])
    return Dataset(x_train, y_train, x_test, y_test)


def _scale(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bring pixels to [0, 1], without a second array of floats."""
    return np.divide(x, np.float32(MAX_PIXEL), dtype=np.float32)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """Return the content of one file of the archive."""
    path = f"{FOLDER}/{name}"
    try:
        member = archive.getmember(path)
    except KeyError:
        found = "none"
    else:
        found = f"one of {member.size} bytes and of the type {member.type!r}"
        if member.isreg() and member.size <= MAX_MEMBER:
            handle = archive.extractfile(member)
            if handle is not None:
                return handle.read()
    raise Cifar10Error(
        f"the archive must hold a regular file {path} of at most {MAX_MEMBER} bytes, "
        f"got {found}; is it the right file?"
    )


def _batch(
    name: str, content: bytes, count: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the pictures and labels in the pickle of one file."""
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # bytes at random can make a pickle raise anything
        raise Cifar10Error(
            f"{name} must be a pickle of lists and arrays, got one that cannot be "
            f"read ({error}); get the file anew."
        ) from error
    if not isinstance(found, dict):
        raise Cifar10Error(
            f"{name} must hold a dictionary, got {type(found).__name__}; is it the "
            "right file?"
        )
    return (
        _pictures(name, found.get(b"data"), count),
        _labels(name, found.get(b"labels"), count),
    )


class _Kept:
    """Stands for an array or a type of NumPy, and keeps what a pickle says of it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Reads numbers, strings, lists, dictionaries, and arrays as :class:`_Kept`."""

    def find_class(self, module: str, name: str) -> type[_Kept]:
        if (module, name) in NAMES:
            return _Kept
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _pictures(name: str, kept: Any, count: int) -> NDArray[np.uint8]:
    """Return the pictures that an array in a pickle holds, (count, 3, 32, 32)."""
    sizes = (count, math.prod(IMAGE_SHAPE))
    found = "none"
    match kept:
        # As numpy.ndarray.__reduce__ gives it; "u1" is one unsigned byte.
        case _Kept(
            state=(_, shape, _Kept(arguments=(kind, *_)), is_fortran, bytes(content))
        ):
            if (kind, shape, len(content)) == (b"u1", sizes, math.prod(sizes)):
                x = np.frombuffer(content, np.uint8)
                x = x.reshape(sizes, order="F" if is_fortran else "C")
                return x.reshape(count, *IMAGE_SHAPE).copy()
            found = f"{shape} of the type {kind!r} in {len(content)} bytes"
    raise Cifar10Error(
        f"{name} must hold data of the shape {sizes} and of the type b'u1', got "
        f"{found}; is it the right file?"
    )


def _labels(name: str, found: Any, count: int) -> NDArray[np.int64]:
    """Return the labels in a list, (count,)."""
    if not isinstance(found, list) or len(found) != count:
        what = f"{len(found)} of them" if isinstance(found, list) else "no list"
    else:
        wrong = [
            label
            for label in found
            if type(label) is not int or not 0 <= label < len(CLASSES)
        ]
        if not wrong:
            return np.array(found, np.int64)
        what = f"{wrong[0]!r}"
    raise Cifar10Error(
        f"{name} must hold {count} labels, whole numbers from 0 to "
        f"{len(CLASSES) - 1}, got {what}; is it the right file?"
    )
