"""CIFAR-10: 60 000 colour pictures of 32 x 32 pixels (Krizhevsky 2009).

The author publishes one archive, in which the pictures are Python pickles, and a
pickle may call any function of Python while it is read. Those of this data set
need three names of NumPy. Here only these three are let through, and each stands
for a class of ours that keeps what it is given: a pickle calls nothing else, not
even NumPy. Before that, the SHA-256 of the archive has been checked, and nothing of
it is written to the disk.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from typing import IO, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from normbook.data import Dataset, files
from normbook.data.catalogue import CIFAR_10
from normbook.data.mnist import scaled

# What the labels 0 to 9 mean, in the author's words.
CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
    "truck",
)  # fmt: skip
# Five files in the archive for training, one for testing, of 10 000 pictures each.
FOLDER = "cifar-10-batches-py"
BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
# The names that a pickle of an array of NumPy asks for, as Python 2 wrote it.
NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def load(is_scaled: bool = True) -> Dataset:
    """Load CIFAR-10: pictures ``(50000, 3, 32, 32)`` and ``(10000, 3, 32, 32)``.

    Channels are red, green and blue, rows begin at the top, labels are indices into
    ``CLASSES``; `is_scaled` is that of :func:`normbook.data.mnist.load`. The download
    is 170 MB, from one server, which can take an hour for it. In memory the scaled
    pictures are 740 MB.
    """
    (file,) = CIFAR_10.files
    content = gzip.decompress(files.read(CIFAR_10, file))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = (archive.extractfile(f"{FOLDER}/{name}") for name in BATCHES)
        *train, (x_test, y_test) = [
            _batch(cast("IO[bytes]", m).read()) for m in members
        ]
    x_train, y_train = map(np.concatenate, zip(*train, strict=True))
    raw = Dataset(x_train, y_train, x_test, y_test)
    return scaled(raw) if is_scaled else raw


def _batch(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pictures (N, 3, 32, 32) and labels (N,) of a pickle in the archive."""
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    # The state of an array, as numpy.ndarray.__reduce__ returns it.
    _, shape, _, is_fortran, pixels = batch[b"data"].state
    order: Literal["C", "F"] = "F" if is_fortran else "C"
    x = np.frombuffer(pixels, np.uint8).reshape(shape, order=order)
    return x.reshape(-1, 3, 32, 32).copy(), np.array(batch[b"labels"], np.int64)


class _Kept:
    """Stands for an array or a type of NumPy, and keeps what a pickle says of it."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Reads numbers, strings, lists, dictionaries, and arrays as :class:`_Kept`."""

    def find_class(self, module: str, name: str) -> type[_Kept]:
        if (module, name) in NAMES:
            return _Kept
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
