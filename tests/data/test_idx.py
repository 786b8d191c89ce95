import gzip
import struct

import numpy as np
import pytest

from normbook.data import idx

SHAPE = (2, 3, 5)
NUMBERS = np.arange(30, dtype=np.uint8).reshape(SHAPE)
HEADER = struct.pack(">BBBBIII", 0, 0, 8, 3, *SHAPE)
CONTENT = HEADER + NUMBERS.tobytes()


def test_the_numbers_come_back_with_the_last_index_running_fastest() -> None:
    array = idx.read(gzip.compress(CONTENT, mtime=0), SHAPE)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, NUMBERS)
    assert array[1, 2, 4] == 29


def test_the_array_may_be_written_to() -> None:
    array = idx.read(gzip.compress(CONTENT, mtime=0), SHAPE)
    array[:] = 1
    assert array.sum() == 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x09" + CONTENT[3:], "magic number 2051, got 2307"),  # signed bytes
        (b"\0\0\x08\1" + CONTENT[4:], "magic number 2051, got 2049"),  # labels
        (CONTENT[:7] + b"\3" + CONTENT[8:], r"sizes \[2, 3, 5\], got \[3, 3, 5\]"),
        (CONTENT[:12], r"sizes \[2, 3, 5\], got \[2, 3\]"),
        (b"", "magic number 2051, got 0"),
        (CONTENT[:-1], "must hold 30 numbers, got 29"),
        (CONTENT + b"\0", "must hold 30 numbers, got 31 or more"),
    ],
)
def test_content_of_another_form_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(idx.IdxError, match=message):
        idx.read(gzip.compress(content, mtime=0), SHAPE)


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (CONTENT, "must be gzip-compressed, got bytes that begin with"),
        (b"<!DOCTYPE html>", "must be gzip-compressed"),
        (b"", "an end that is cut off"),
        (gzip.compress(CONTENT, mtime=0)[:-9], "an end that is cut off"),
        (gzip.compress(CONTENT, mtime=0)[:-1], "an end that is cut off"),
        (gzip.compress(CONTENT, mtime=0) + b"\0", "bytes after the end"),
        (gzip.compress(CONTENT, mtime=0)[:-8] + b"\1" * 8, "incorrect data check"),
        (gzip.compress(CONTENT, mtime=0)[:-4] + b"\1" * 4, "incorrect length check"),
    ],
)
def test_bytes_that_are_not_one_gzip_stream_are_refused(
    packed: bytes, message: str
) -> None:
    with pytest.raises(idx.IdxError, match=message):
        idx.read(packed, SHAPE)


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    import tracemalloc

    bomb = gzip.compress(HEADER + bytes(50_000_000), compresslevel=1)
    tracemalloc.start()
    with pytest.raises(idx.IdxError, match="must hold 30 numbers, got 31 or more"):
        idx.read(bomb, SHAPE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The part of the input that is not read yet is copied once, no more than that.
    assert peak < len(bomb) + 1_000_000
