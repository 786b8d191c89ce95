"""Small files of the form of each data set, which can be put in its place."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from normbook.data.catalogue import BABI, SOURCES, DataFile, Source
from normbook.data.files import CACHE, DATA, whereabouts
from normbook.lab.runner import LOADERS

Test = TypeVar("Test", bound=Callable[..., None])

# --- MNIST and Fashion-MNIST

IMAGES = (np.arange(300 * 28 * 28).reshape(300, 28, 28) // 7 % 256).astype(np.uint8)


def idx(numbers: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">HBB{numbers.ndim}I", 0, 8, numbers.ndim, *numbers.shape)
    return gzip.compress(header + numbers.tobytes(), compresslevel=1, mtime=0)


def mnist_like() -> dict[str, bytes]:
    """300 images for training and the last 40 of them for testing."""
    labels = (np.arange(300) % 10).astype(np.uint8)
    return {
        "train-images": idx(IMAGES),
        "train-labels": idx(labels),
        "t10k-images": idx(IMAGES[-40:]),
        "t10k-labels": idx(labels[-40:]),
    }


# --- CIFAR-10: pickles as Python 2.7 and NumPy 1.13 write them

COUNT = 4  # pictures in each of the six files


def text(value: bytes) -> bytes:
    if len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    return b"T" + struct.pack("<i", len(value)) + value


def whole(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 65_536:
        return b"M" + struct.pack("<H", value)
    return b"J" + struct.pack("<i", value)


def remembered(value: bytes, place: int) -> bytes:
    return value + b"q" + bytes([place])


def pictures(k: int) -> NDArray[np.uint8]:
    """Pictures of the file number k, each row with its own numbers, (N, 3072)."""
    pixels = np.arange(COUNT * 3072).reshape(COUNT, 3072)
    return ((7 * pixels + pixels // 251 + 31 * k) % 256).astype(np.uint8)


def labels(k: int) -> list[int]:
    return [(3 * i + k) % 10 for i in range(COUNT)]


def batch(k: int, *, is_fortran: bool = False) -> bytes:
    """The file number k, with the opcodes in the order of cPickle."""
    return b"".join(
        [
            remembered(b"\x80\x02}", 1) + b"(",
            remembered(text(b"data"), 2),
            remembered(b"cnumpy.core.multiarray\n_reconstruct\n", 3),
            remembered(b"cnumpy\nndarray\n", 4),
            remembered(whole(0) + b"\x85" + text(b"b") + b"\x87R", 5),
            b"(" + whole(1) + whole(COUNT) + whole(3072) + b"\x86",
            remembered(b"cnumpy\ndtype\n", 6),
            remembered(text(b"u1") + whole(0) + whole(1) + b"\x87R", 7),
            b"(" + whole(3) + text(b"|") + b"NNN" + 2 * whole(-1) + whole(0) + b"tb",
            b"\x88" if is_fortran else b"\x89",
            text(pictures(k).tobytes(order="F" if is_fortran else "C")) + b"tb",
            remembered(text(b"labels"), 8),
            remembered(b"]", 9) + b"(" + b"".join(map(whole, labels(k))) + b"e",
            remembered(text(b"batch_label"), 10) + text(b"training batch 1 of 5"),
            remembered(text(b"filenames"), 11) + remembered(b"]", 12) + b"(",
            *(remembered(text(b"frog_s_%06d.png" % i), 13 + i) for i in range(COUNT)),
            b"eu.",
        ]
    )


def cifar10_like(**changed: bytes) -> dict[str, bytes]:
    """The archive; files in it may have another content."""
    members = {f"data_batch_{k + 1}": batch(k) for k in range(5)}
    members["test_batch"] = batch(5)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in {"batches.meta": b"", **members, **changed}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return {"cifar-10-python.tar.gz": gzip.compress(packed.getvalue(), 1, mtime=0)}


# --- Japanese Vowels

END = b"1.0 " * 12 + b"\r\n"


def recordings(*lengths: int) -> bytes:
    """Steps whose first number is 2, 3, ... and the line behind each sequence."""
    steps = (b"%d 0.5 -0.25 1e-3" % k + b" 2.0" * 8 + b" \r\n" for k in range(2, 999))
    return b"".join(
        b"".join(next(steps) for _ in range(length)) + END for length in lengths
    )


def vowels_like() -> dict[str, bytes]:
    """As many sequences as there are, of one step."""
    return {"ae.train": recordings(*[1] * 270), "ae.test": recordings(*[1] * 370)}


# --- Omniglot

# Two strokes: a corner of three points, and a dot.
DRAWING = b"START\n1.0,-2.0,0\n4.0,-2.0,15\n4.0,-6.5,30\nBREAK\n7.0,-1.0,99\nBREAK\n"


def path(alphabet: str = "Greek", character: int = 1, drawer: int = 6) -> str:
    return f"small/{alphabet}/character{character:02}/0394_{drawer:02}.txt"


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def omniglot_like() -> dict[str, bytes]:
    """Two archives: Greek is in both, and neither is in order."""
    greek = {path("Greek", c, d): DRAWING for c in (1, 2) for d in (6, 7)}
    latin, balinese = {path("Latin"): DRAWING}, {path("Balinese"): DRAWING}
    return {
        "one.zip": zipped({**latin, **greek}),
        "two.zip": zipped({**greek, **balinese}),
    }


# --- bAbI

STORIES = b"""\
1 Ann went out.
2 Bob took the hat there.
3 Where is Ann? \tout\t1
4 Ann took it.
5 Who has the hat?\tAnn\t2 4
1 Cid sat.
2 Who sat? \tCid\t1
"""


def babi_like() -> dict[str, bytes]:
    """Six files; each has a word of its own."""
    return {
        file.name: STORIES.replace(
            b"hat", f"{file.name[:3]}{file.name[-9:-4]}".encode()
        )
        for file in BABI.files
    }


CONTENTS = {
    "mnist": mnist_like,
    "fashion-mnist": mnist_like,
    "cifar-10": cifar10_like,
    "japanese-vowels": vowels_like,
    "omniglot-strokes": omniglot_like,
    "babi": babi_like,
}


def put(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    contents: dict[str, bytes] | None = None,
) -> Source:
    """Let small files be a data set, in a folder that NORMBOOK_DATA names."""
    made = []
    for file, content in (contents or CONTENTS[name]()).items():
        (folder / file).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        made.append(DataFile(file, len(content), sha256, urls=()))
    source = Source(name, SOURCES[name].title, "none", "none", tuple(made))
    module = inspect.getmodule(LOADERS[name])
    monkeypatch.setattr(module, name.upper().replace("-", "_"), source)
    monkeypatch.setitem(SOURCES, name, source)
    monkeypatch.setenv(DATA, str(folder))
    monkeypatch.setenv(CACHE, str(folder / "cache"))
    return source


def needs(source: Source) -> Callable[[Test], Test]:
    """Skip where the real files are not on this machine: tests download nothing."""

    def decorate(test: Test) -> Test:
        @wraps(test)
        def skip_or_test(*arguments: Any, **fixtures: Any) -> None:
            is_here, where = whereabouts(source)  # reads them: not for each collection
            if not is_here:
                pytest.skip(f"{source.title} is {where}")
            test(*arguments, **fixtures)

        return cast(Test, skip_or_test)

    return decorate
