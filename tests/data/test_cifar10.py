"""CIFAR-10, with archives of the same form that hold a few pictures."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from normbook import doctor
from normbook.__main__ import main
from normbook.data import Dataset, cifar10
from normbook.data.catalogue import CIFAR_10, SOURCES, DataFile, Source
from normbook.data.files import CACHE, DATA, DataError, read, whereabouts

COUNT = 4  # pictures in each of the six files
NAMES = (*cifar10.TRAINING, cifar10.TEST)
FOLDER = "cifar-10-batches-py"


# --- pickles as Python 2.7 and NumPy 1.13 write them


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


def batch(
    shape: tuple[int, int],
    content: bytes,
    labels: list[int],
    *,
    kind: bytes = b"u1",
    is_fortran: bool = False,
) -> bytes:
    """A file of the archive, with the opcodes in the order of cPickle."""
    return b"".join(
        [
            remembered(b"\x80\x02}", 1) + b"(",
            remembered(text(b"data"), 2),
            remembered(b"cnumpy.core.multiarray\n_reconstruct\n", 3),
            remembered(b"cnumpy\nndarray\n", 4),
            remembered(whole(0) + b"\x85" + text(b"b") + b"\x87R", 5),
            b"(" + whole(1) + b"".join(map(whole, shape)) + b"\x86",
            remembered(b"cnumpy\ndtype\n", 6),
            remembered(text(kind) + whole(0) + whole(1) + b"\x87R", 7),
            b"(" + whole(3) + text(b"|") + b"NNN" + 2 * whole(-1) + whole(0) + b"tb",
            (b"\x88" if is_fortran else b"\x89") + text(content) + b"tb",
            remembered(text(b"labels"), 8),
            remembered(b"]", 9) + b"(" + b"".join(map(whole, labels)) + b"e",
            remembered(text(b"batch_label"), 10) + text(b"training batch 1 of 5"),
            remembered(text(b"filenames"), 11) + remembered(b"]", 12) + b"(",
            *(
                remembered(text(b"frog_s_%06d.png" % i), 13 + i)
                for i in range(len(labels))
            ),
            b"eu.",
        ]
    )


def pictures(k: int) -> NDArray[np.uint8]:
    """Pictures of the file number k, each row with its own numbers, (N, 3072)."""
    pixels = np.arange(COUNT * 3072).reshape(COUNT, 3072)
    return ((7 * pixels + pixels // 251 + 31 * k) % 256).astype(np.uint8)


def labels(k: int) -> list[int]:
    return [(3 * i + k) % 10 for i in range(COUNT)]


def good(k: int) -> bytes:
    return batch((COUNT, 3072), pictures(k).tobytes(), labels(k))


def archive(**changed: bytes | tarfile.TarInfo | None) -> bytes:
    """An archive; a file may have another content, be of another type, or lack."""
    members = {name: good(k) for k, name in enumerate(NAMES)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in {"batches.meta": b"", **members, **changed}.items():
            if isinstance(content, bytes):
                info = tarfile.TarInfo(f"{FOLDER}/{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            elif content is not None:
                tar.addfile(content)
    return gzip.compress(packed.getvalue(), compresslevel=1, mtime=0)


def put(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this content be CIFAR-10, in a folder that NORMBOOK_DATA names."""
    name = CIFAR_10.files[0].name
    sha256 = hashlib.sha256(content).hexdigest()
    file = DataFile(name, len(content), sha256, urls=())
    source = Source("cifar-10", "CIFAR-10", "none stated", "none", (file,))
    monkeypatch.setattr(cifar10, "CIFAR_10", source)
    monkeypatch.setitem(SOURCES, "cifar-10", source)
    monkeypatch.setenv(DATA, str(folder))
    monkeypatch.setenv(CACHE, str(folder / "cache"))
    (folder / name).write_bytes(content)
    return folder / name


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive in the place of the real one."""
    monkeypatch.setattr(cifar10, "COUNT", COUNT)
    return put(tmp_path, archive(), monkeypatch)


def refused(content: bytes, message: str) -> None:
    with pytest.raises(cifar10.Cifar10Error, match=message):
        cifar10.read(content, COUNT)


# --- what is read


def test_the_pickles_of_these_tests_are_those_of_python_2() -> None:
    # cPickle.dumps(batch, 2) of Python 2.7.18 with NumPy 1.13.3 gave bytes of this
    # hash for the pictures and labels number 0.
    known = "eb95376a794344a3eaa8811126298b109007208f93ba7cd39cdf42067a5da096"
    assert hashlib.sha256(good(0)).hexdigest() == known


def test_numpy_itself_reads_the_same_from_such_a_pickle() -> None:
    with warnings.catch_warnings():  # of what Python 2 wrote, in some versions
        warnings.simplefilter("ignore")
        found = pickle.loads(good(2), encoding="bytes")  # noqa: S301 - our own bytes
    x, y = cifar10._batch("data_batch_3", good(2), COUNT)
    np.testing.assert_array_equal(x.reshape(COUNT, 3072), found[b"data"])
    assert y.tolist() == found[b"labels"]


def test_raw_pictures_keep_every_pixel_and_the_order(stand_in: Path) -> None:
    dataset = cifar10.load(is_scaled=False)
    x = np.concatenate([dataset.x_train, dataset.x_test])
    y = np.concatenate([dataset.y_train, dataset.y_test])
    assert dataset.x_train.shape == (5 * COUNT, 3, 32, 32)
    assert dataset.x_test.shape == (COUNT, 3, 32, 32)
    assert x.dtype == np.uint8
    assert dataset.y_train.dtype == dataset.y_test.dtype == np.int64
    for k in range(6):
        part = slice(k * COUNT, (k + 1) * COUNT)
        np.testing.assert_array_equal(x[part].reshape(COUNT, -1), pictures(k))
        assert y[part].tolist() == labels(k)


def test_channels_come_first_then_rows(stand_in: Path) -> None:
    x = cifar10.load(is_scaled=False).x_test
    assert x[2, 1, 5, 9] == pictures(5)[2, 1 * 1024 + 5 * 32 + 9]


def test_pictures_are_scaled_to_float32_from_0_to_1(stand_in: Path) -> None:
    scaled, raw = cifar10.load(), cifar10.load(is_scaled=False)
    for x, pixels in ((scaled.x_train, raw.x_train), (scaled.x_test, raw.x_test)):
        assert x.dtype == np.float32
        assert x[pixels == 255].tolist() == [1] * (pixels == 255).sum()
        assert set(x[pixels == 51].tolist()) == {np.float32(0.2)}
        np.testing.assert_array_equal(np.rint(x * 255), pixels)


def test_the_arrays_may_be_written_to(stand_in: Path) -> None:
    for is_scaled in (True, False):
        assert all(array.flags.writeable for array in cifar10.load(is_scaled))


def test_an_array_in_the_order_of_fortran_is_read_as_numpy_reads_it() -> None:
    content = pictures(0).tobytes(order="F")
    found = batch((COUNT, 3072), content, labels(0), is_fortran=True)
    x, _ = cifar10._batch("data_batch_1", found, COUNT)
    np.testing.assert_array_equal(x.reshape(COUNT, 3072), pictures(0))


def test_nothing_is_written_anywhere(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stand_in.parent)
    cifar10.load()
    assert list(stand_in.parent.rglob("*")) == [stand_in]


def test_the_data_set_is_ten_thousand_pictures_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, archive(), monkeypatch)
    message = r"shape \(10000, 3072\) .*, got \(4, 3072\) of the type b'u1' in 12288"
    with pytest.raises(cifar10.Cifar10Error, match=message):
        cifar10.load()


# --- the command


def test_fetching_tells_of_one_file_and_that_no_licence_is_stated(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", "cifar-10"]) == 0
    first, licence, _ = capsys.readouterr().out.splitlines()
    assert first == f"cifar-10: 1 file, 0.0 MB, verified, in {stand_in.parent}"
    assert licence.split() == ["licence", "none", "stated"]


def test_only_a_damaged_file_or_a_missing_one_that_was_asked_for_is_a_fault(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify"]) == 0
    assert f"ok        {stand_in}\n" in capsys.readouterr().out
    stand_in.write_bytes(b"damaged")
    assert main(["data", "verify"]) == 1
    assert f"DIFFERS   {stand_in}: " in capsys.readouterr().out
    stand_in.unlink()
    assert main(["data", "verify"]) == 0
    assert f"missing   cifar-10/{stand_in.name}\n" in capsys.readouterr().out
    assert main(["data", "verify", "cifar-10"]) == 1


def test_the_doctor_gives_a_hint_where_it_is_missing(stand_in: Path) -> None:
    hint = "cifar-10: missing: normbook data fetch cifar-10"
    assert hint not in doctor.examine().hints
    stand_in.unlink()
    report = doctor.examine()
    assert hint in report.hints
    assert report.can_run


# --- what is refused


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_a_command_is_refused_and_runs_nothing(
    protocol: int, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    evil = pickle.dumps({"data": Evil(f'echo > "{mark}"')}, protocol)
    refused(archive(data_batch_4=evil), r"data_batch_4 must .* asks for \w+\.system\)")
    assert not mark.exists()
    pickle.loads(evil)  # noqa: S301 - our own bytes: they do what they must not do
    assert mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "__builtin__\neval",
        "numpy\nload",
        "numpy.core.multiarray\nscalar",
        "numpy\nndarray.tofile",
        "_codecs\nencode",
        "copyreg\n_reconstructor",
        "normbook.data.cifar10\n_Kept",
    ],
)
def test_a_pickle_that_asks_for_another_name_is_refused(name: str) -> None:
    content = b"\x80\x02c" + name.encode() + b"\n."
    refused(archive(test_batch=content), f"asks for {name.replace(chr(10), '.')}")


def test_a_pickle_cannot_make_numpy_take_memory() -> None:
    # ndarray((10**9,)), which is a call of a name that is let through.
    content = b"\x80\x02cnumpy\nndarray\n" + whole(10**9) + b"\x85\x85R."
    tracemalloc.start()
    with pytest.raises(cifar10.Cifar10Error, match="a dictionary, got _Kept"):
        cifar10._batch("data_batch_1", content, COUNT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_an_archive_of_another_hash_is_refused_before_it_is_looked_at(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "read", lambda *_: pytest.fail("it was read"))
    stand_in.write_bytes(stand_in.read_bytes()[:-1] + b"\1")
    with pytest.raises(DataError, match=r"must be the file of CIFAR-10 .*SHA-256"):
        cifar10.load()


@pytest.mark.parametrize(
    ("shape", "kind", "content", "message"),
    [
        ((3, 3072), b"u1", bytes(3 * 3072), r"got \(3, 3072\) of the type b'u1'"),
        ((3072, 4), b"u1", bytes(4 * 3072), r"got \(3072, 4\)"),
        ((4, 3072), b"i1", bytes(4 * 3072), "of the type b'i1'"),
        ((4, 3072), b"f4", bytes(16 * 3072), "of the type b'f4' in 49152 bytes"),
        ((4, 3072), b"u1", bytes(4 * 3072 - 1), "b'u1' in 12287 bytes"),
    ],
)
def test_pictures_of_another_form_are_refused(
    shape: tuple[int, int], kind: bytes, content: bytes, message: str
) -> None:
    changed = batch(shape, content, labels(1), kind=kind)
    message = rf"data_batch_2 must hold data of the shape \(4, 3072\) .*{message}"
    refused(archive(data_batch_2=changed), message)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([0, 1, 2], "got 3 of them"),
        ([0, 1, 2, 3, 4], "got 5 of them"),
        ([0, 1, 10, 3], "whole numbers from 0 to 9, got 10"),
        ([0, -1, 2, 3], "got -1"),
    ],
)
def test_labels_that_are_none_are_refused(found: list[int], message: str) -> None:
    changed = batch((COUNT, 3072), pictures(5).tobytes(), found)
    refused(archive(test_batch=changed), f"test_batch must hold 4 labels, .*{message}")


def test_labels_must_be_numbers_in_a_list() -> None:
    before = b"".join(map(whole, labels(0))) + b"e"
    for after, message in ((b"\x88KKKe", "True"), (b"KKK}e", "{}")):
        changed = after.replace(b"K", b"K\1")
        refused(archive(data_batch_1=good(0).replace(before, changed)), message)
    with pytest.raises(cifar10.Cifar10Error, match="got no list"):
        cifar10._labels("test_batch", None, COUNT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (good(0)[:-1], "cannot be read"),
        (good(0)[:5000], "cannot be read"),
        (b"\x80\x02]. ", "must hold a dictionary, got list"),
        (b"\x80\x02}.", "must hold data .*, got none"),
        (b"\x80\x63}.", "cannot be read .*unsupported pickle protocol: 99"),
    ],
)
def test_a_file_that_is_no_such_pickle_is_refused(content: bytes, message: str) -> None:
    refused(archive(data_batch_1=content), message)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_refused(name: str) -> None:
    message = f"must hold a regular file {FOLDER}/{name} of at most .*, got none"
    refused(archive(**{name: None}), message)


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE],
    ids=["symlink", "hardlink", "folder", "pipe"],
)
def test_what_is_no_regular_file_is_refused(kind: bytes) -> None:
    info = tarfile.TarInfo(f"{FOLDER}/data_batch_3")
    info.type = kind
    info.linkname = f"{FOLDER}/data_batch_1"
    message = f"must hold a regular file .*data_batch_3 .*the type {kind!r}"
    refused(archive(data_batch_3=info), message)


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "MAX_MEMBER", len(good(0)) - 1)
    refused(archive(), rf"of at most {len(good(0)) - 1} bytes, got one of \d+ bytes")
    monkeypatch.setattr(cifar10, "MAX_MEMBER", len(good(0)))
    assert isinstance(cifar10.read(archive(), COUNT), Dataset)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"<!DOCTYPE html>", "must be gzip-compressed, got bytes that begin with"),
        (b"", "must be a tar file"),
        (archive()[:-9], "must be gzip-compressed"),
        (archive()[:1000], "must be gzip-compressed"),
        (archive()[:-8] + b"\1" * 8, "CRC check failed"),
        (archive()[:10] + b"\xff" * 9, "invalid block type"),
        (archive() + b"\1", "must be gzip-compressed"),
        (gzip.compress(b"no tar", mtime=0), "must be a tar file"),
        (gzip.compress(gzip.decompress(archive())[:30_000], mtime=0), "a tar file"),
    ],
)
def test_bytes_that_are_no_whole_archive_are_refused(
    packed: bytes, message: str
) -> None:
    refused(packed, message)


def test_a_bomb_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cifar10, "MAX_ARCHIVE", 1_000_000)
    bomb = gzip.compress(bytes(50_000_000), compresslevel=1)
    tracemalloc.start()
    refused(bomb, "must have at most 1000000 bytes unpacked, got more")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(bomb) + 3_000_000


# --- the real one

is_here, where = whereabouts(CIFAR_10)


@pytest.mark.skipif(not is_here, reason=f"CIFAR-10 is {where}")
def test_cifar_10_is_what_is_known_of_it() -> None:
    x_train, y_train, x_test, y_test = cifar10.load()
    assert x_train.shape == (50_000, 3, 32, 32)
    assert x_test.shape == (10_000, 3, 32, 32)
    assert np.bincount(y_train).tolist() == [5000] * 10
    assert np.bincount(y_test).tolist() == [1000] * 10
    assert [cifar10.CLASSES[k] for k in y_train[:3]] == ["frog", "truck", "truck"]
    # The numbers that everybody normalizes CIFAR-10 with.
    mean = x_train.mean(axis=(0, 2, 3), dtype=np.float64)
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


@pytest.mark.skipif(not is_here, reason=f"CIFAR-10 is {where}")
def test_the_classes_are_those_of_the_archive() -> None:
    packed = io.BytesIO(read(CIFAR_10, CIFAR_10.files[0]))
    with tarfile.open(fileobj=packed, mode="r:gz") as tar:
        handle = tar.extractfile(f"{FOLDER}/batches.meta")
        assert handle is not None
        found = cifar10._Unpickler(handle, encoding="bytes").load()
    assert [name.decode() for name in found[b"label_names"]] == list(cifar10.CLASSES)
