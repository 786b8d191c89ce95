"""Finding and downloading, against a server on this very machine."""

import gzip
import hashlib
import io
import lzma
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import requests
from stand_ins import zipped

from normbook import atomic_file
from normbook.data import files
from normbook.data.catalogue import (
    DIGITS,
    FASHION_MNIST,
    MNIST,
    SOURCES,
    Archive,
    DataFile,
    Source,
)

CONTENT = bytes(i * i % 251 for i in range(5 * files.PIECE))
NAME = "numbers.gz"
Patch = pytest.MonkeyPatch
# Seconds, instead of 10, so that a server that hangs is soon left; where none hangs
# the tests wait as long as the readers do, and a slow machine fails none of them.
PATIENCE = 1.5
SLACK = 60.0  # seconds: how much later a busy machine may notice
HANGING = ("stall", "hang", "drip", "slow")


def tarred(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar archive; of the last member the type can be chosen."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, (name, content) in enumerate(members.items(), start=1):
            header = tarfile.TarInfo(name)
            if number == len(members):
                header.type, header.linkname = kind, "other"
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


FLAT = Archive(limit=50_000)
NESTED = Archive(50_000, "inside/", names=("odd.zip", "odd.tar.gz", "odd.tar.xz"))
INSIDE = f"inside/{NAME}"
MEMBERS = {f"other/{NAME}": b"a decoy", INSIDE: CONTENT, "inside/text": b"text"}
ZIP, TAR = zipped(MEMBERS), tarred(MEMBERS)
XZ = lzma.compress(gzip.decompress(TAR))
PACKED = {"odd.zip": ZIP, "odd.tar.gz": TAR, "odd.tar.xz": XZ}
LONGER = {INSIDE: CONTENT + bytes(10**7)}
NO_ARCHIVE = "it is no archive with numbers.gz in it"
# Archives that do not give the file, and why.
DAMAGED = {
    "text": (b"text", rf"{NO_ARCHIVE} \(.*ot a gzipped"),
    "unpacked": (CONTENT, NO_ARCHIVE),
    "cut-zip": (ZIP[:-30], rf"{NO_ARCHIVE} \(.*not a zip file\)"),
    "cut-tar": (TAR[:-100], NO_ARCHIVE),
    "elsewhere-zip": (zipped({NAME: CONTENT}), f"no item named '{INSIDE}'"),
    "elsewhere-tar": (tarred({NAME: CONTENT}), NO_ARCHIVE),
    "changed-zip": (zipped({INSIDE: CONTENT[::-1]}), "its SHA-256 is"),
    "changed-tar": (tarred({INSIDE: CONTENT[::-1]}), "its SHA-256 is"),
    "flipped-zip": (ZIP[:200] + bytes([ZIP[200] ^ 255]) + ZIP[201:], NO_ARCHIVE),
    "longer-zip": (zipped(LONGER), "it is larger than the 20480 bytes"),
    "longer-tar": (tarred(LONGER), "it is larger than the 20480 bytes"),
    "link": (tarred({INSIDE: b""}, tarfile.SYMTYPE), NO_ARCHIVE),
    "directory": (tarred({INSIDE: b""}, tarfile.DIRTYPE), NO_ARCHIVE),
    "heavy": (ZIP + bytes(50_000), "the archive is larger than 50000 bytes"),
}
# Body, status and headers of what a mirror answers at once.
ANSWERS: dict[str, tuple[bytes, int, dict[str, str]]] = {
    "good": (CONTENT, 200, {}),
    "wrong": (CONTENT[::-1], 200, {}),
    "announced": (b"", 200, {"Content-Length": "17"}),
    "html": (b"<!DOCTYPE html>", 200, {"Content-Type": "text/html; charset=utf-8"}),
    "forbidden": (b"", 403, {}),
    "broken": (b"", 500, {}),
    "moved": (b"", 302, {"Location": f"/good/{NAME}"}),
    "unencrypted": (b"", 302, {"Location": f"http://example.org/{NAME}"}),
    "circle": (b"", 302, {"Location": f"/circle/{NAME}"}),
    "flat": (zipped({"about": b"text", NAME: CONTENT}), 200, {}),
    **{name: (content, 200, {}) for name, content in PACKED.items()},
    **{name: (content, 200, {}) for name, (content, _) in DAMAGED.items()},
}


class Mirror(BaseHTTPRequestHandler):
    """A server whose behaviour is the first part of the address."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        behaviour = self.path.split("/")[1]
        self.server.asked.append(behaviour)
        self.server.headers_seen.append(dict(self.headers))
        if behaviour in ANSWERS:
            body, code, headers = ANSWERS[behaviour]
            self.send(body, code=code, **{"Content-Length": len(body), **headers})
        else:
            getattr(self, f"send_{behaviour}")()

    def send(self, *pieces: bytes, code: int = 200, **headers: Any) -> None:
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)

    def send_truncated(self) -> None:
        self.send(CONTENT[:9000], Content_Length=len(CONTENT))
        self.close_connection = True

    def send_short(self) -> None:  # without a length the end looks regular
        self.send(CONTENT[:9000], Connection="close")
        self.close_connection = True

    def send_endless(self) -> None:
        self.send(Connection="close")
        while not self.server.is_over.is_set():
            self.wfile.write(bytes(65_536))

    def send_colourful(self) -> None:  # an answer that would clear the terminal
        self.send_response(418, "\x1b[31mOwned\x07\x9b\x1b[2J" + 1000 * "a")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_stall(self) -> None:
        self.server.is_over.wait()

    def send_hang(self) -> None:
        self.send(CONTENT[:9000], Content_Length=len(CONTENT))
        self.server.is_over.wait()

    def send_drip(self) -> None:  # each byte comes long before a socket times out
        self.send(Content_Length=len(CONTENT))
        while not self.server.is_over.wait(PATIENCE / 10):
            self.wfile.write(b"a")

    def send_slow(self) -> None:
        self.send(Content_Length=len(CONTENT))
        for start in range(0, len(CONTENT), files.PIECE):
            self.wfile.write(CONTENT[start : start + files.PIECE])
            time.sleep(PATIENCE / 4)  # five times: longer than PATIENCE in all

    def log_message(self, *_: Any) -> None:
        pass


def source_of(*files: DataFile) -> Source:
    return Source("odd-numbers", "Odd Numbers", "none", "none", files)


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Mirror)
        self.asked: list[str] = []
        self.headers_seen: list[dict[str, str]] = []
        self.is_over = threading.Event()
        self.client_left = threading.Event()

    def handle_error(self, *_: Any) -> None:
        self.client_left.set()

    def source(self, *behaviours: str) -> Source:
        """A data set of one file, with one mirror of each behaviour."""
        address = f"http://127.0.0.1:{self.server_port}"
        urls = tuple(f"{address}/{behaviour}/{NAME}" for behaviour in behaviours)
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        return source_of(DataFile(NAME, len(CONTENT), sha256, urls))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.is_over.set()
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Where the file will lie in an empty cache; no other place to look at."""
    monkeypatch.setenv(files.CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(files.DATA, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "odd-numbers" / NAME


@pytest.fixture
def folder(tmp_path: Path, cache: Path, monkeypatch: Patch) -> Path:
    """A folder that NORMBOOK_DATA names, empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv(files.DATA, str(folder))
    return folder


@pytest.fixture
def behaviour(request: pytest.FixtureRequest, monkeypatch: Patch) -> str:
    """A behaviour of the mirror, and the patience that suits it."""
    behaviour: str = request.param
    if behaviour in HANGING:
        monkeypatch.setattr(files, "PATIENCE", PATIENCE)
    return behaviour


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def forbid(path: Path, function: str, monkeypatch: Patch) -> None:
    """Let this method fail for this path; permissions do not stop root."""
    real = getattr(Path, function)

    def checked(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, function, checked)


def read(source: Source) -> bytes:
    return files.read(source, source.files[0])


def check_whereabouts(source: Source, is_here: bool, start: str) -> None:
    found, text = files.whereabouts(source)
    assert found == is_here
    assert text.startswith(start)


@pytest.fixture
def other(monkeypatch: Patch) -> bytes:
    """The content of a file of the same name, of another data set."""
    file = DataFile(NAME, 5, hashlib.sha256(b"other").hexdigest(), urls=())
    monkeypatch.setitem(SOURCES, "other", replace(source_of(file), name="other"))
    return b"other"


# --- where a file is looked for


def test_a_download_is_kept_and_the_next_reading_asks_nobody(
    server: Server, cache: Path
) -> None:
    source = server.source("good")
    assert read(source) == CONTENT
    assert list(cache.parent.iterdir()) == [cache]
    assert cache.read_bytes() == CONTENT
    assert read(source) == CONTENT
    assert server.asked == ["good"]


@pytest.mark.parametrize("where", ["odd-numbers/", "odd_numbers/", ""])
def test_the_folder_of_the_reader_comes_first(
    where: str, server: Server, folder: Path, cache: Path
) -> None:
    put(cache, CONTENT)
    path = put(folder / f"{where}{NAME}", CONTENT)
    assert files.fetch(server.source("good")) == [path]
    assert server.asked == []


def test_a_file_that_the_folder_lacks_comes_from_cache_or_network(
    server: Server, folder: Path, cache: Path
) -> None:
    assert files.fetch(server.source("good")) == [cache]
    assert files.fetch(server.source("broken")) == [cache]
    assert server.asked == ["good"]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("content", [CONTENT[::-1], CONTENT[1:], CONTENT + b"a", b""])
def test_a_damaged_file_in_the_folder_is_an_error_and_stays_as_it_is(
    content: bytes, server: Server, folder: Path, cache: Path
) -> None:
    put(cache, CONTENT)
    path = put(folder / NAME, content)
    before = path.stat()
    with pytest.raises(files.DataError, match=r"must be the file of Odd .*replace or"):
        read(server.source("good"))
    assert path.read_bytes() == content
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert server.asked == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_in_the_place_of_the_file_is_an_error_at_once(
    make: Callable[[Path], None], server: Server, folder: Path
) -> None:
    make(folder / NAME)
    with pytest.raises(files.DataError, match="it is not a regular file; replace or"):
        read(server.source("good"))


@pytest.mark.parametrize("function", ["stat", "open"])  # of a folder, of the file
def test_a_file_that_may_not_be_read_is_no_damaged_one(
    function: str, server: Server, folder: Path, monkeypatch: Patch
) -> None:
    path = put(folder / "odd-numbers" / NAME, CONTENT)
    forbid(path, function, monkeypatch)
    with pytest.raises(files.DataError, match=r"permissions .* forbid .*; change them"):
        read(server.source("good"))
    text = f"not readable: {path}: the permissions of the file or"
    check_whereabouts(server.source("good"), False, text)
    assert server.asked == []


def test_the_file_of_another_data_set_is_passed_over_not_called_damaged(
    server: Server, folder: Path, other: bytes
) -> None:
    put(folder / NAME, other)
    with pytest.raises(files.DataError, match="it is the file of other"):
        read(server.source("broken"))
    assert read(server.source("good")) == CONTENT


@pytest.mark.parametrize("name", ["odd-numbers", "odd_numbers"])
def test_the_file_of_another_data_set_in_the_folder_of_this_one_is_an_error(
    name: str, server: Server, folder: Path, other: bytes
) -> None:
    path = put(folder / name / NAME, other)
    with pytest.raises(files.DataError, match=r"it is the file of other; replace or"):
        read(server.source("good"))
    text = f"damaged: {path}: it is the file of other"
    assert files.whereabouts(server.source("good")) == (False, text)
    assert server.asked == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no-such-folder", ""), ("file", ""), ("closed", r" \(Permission denied\)")],
)
def test_a_folder_that_is_none_is_an_error(
    name: str, reason: str, server: Server, folder: Path, monkeypatch: Patch
) -> None:
    put(folder / "file", b"")
    forbid(folder / "closed", "stat", monkeypatch)
    monkeypatch.setenv(files.DATA, str(folder / name))
    message = rf"must name a folder .* got .*{reason}; correct"
    with pytest.raises(files.DataError, match=message):
        read(server.source("good"))
    check_whereabouts(MNIST, False, "NORMBOOK_DATA must name a folder")


@pytest.mark.parametrize("setting", [files.DATA, files.CACHE])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("~no-such-user/x", "whose home folder is unknown; write .* or unset"),
        ("/" + "a" * 5000, "File name too long.*; (correct it|make room or set)"),
    ],
    ids=["home", "long"],
)
def test_a_setting_that_can_be_no_folder_is_an_error_of_one_short_line(
    setting: str, value: str, reason: str, server: Server, monkeypatch: Patch
) -> None:
    monkeypatch.setenv(setting, value)
    with pytest.raises(files.DataError, match=reason) as caught:
        read(server.source("good"))
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)
    assert not files.whereabouts(server.source("good"))[0]
    assert server.asked == []


def test_an_empty_setting_is_as_none(monkeypatch: Patch) -> None:
    monkeypatch.setenv(files.DATA, "")
    monkeypatch.setenv(files.CACHE, "")
    assert files.data_folder() is None
    assert files.cache_folder().name == "normbook"
    assert files.cache_folder().is_absolute()


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("content", [CONTENT[::-1], b"other", None])
def test_a_damaged_file_or_a_pipe_in_the_cache_is_downloaded_anew(
    content: bytes | None, server: Server, cache: Path
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content) if content else os.mkfifo(cache)
    assert read(server.source("good")) == CONTENT
    assert cache.read_bytes() == CONTENT


# --- mirrors that fail

FAILURES = {
    "truncated": "after 8192 of 20480 bytes",
    "short": "it has 9000 bytes instead of 20480",
    "announced": "the server announces 17 bytes instead of 20480",
    "wrong": "its SHA-256 is",
    "endless": "it is larger than the 20480 bytes it must have",
    "html": "a web page came instead of the file",
    "forbidden": "HTTP 403 Forbidden",
    "broken": "HTTP 500 Internal Server Error",
    "stall": f"no answer within {PATIENCE:g} s",
    "hang": f"no answer within {PATIENCE:g} s",
    "drip": f"no answer within {PATIENCE:g} s",
    "unencrypted": "not an https address: http://example.org/",
    "circle": "more than 5 redirects",
    "colourful": "HTTP 418 [31mOwned[2Ja",
}


@pytest.mark.parametrize("behaviour", FAILURES, indirect=True)
def test_a_mirror_that_fails_is_an_error_the_old_file_is_kept_and_the_next_is_asked(
    behaviour: str, server: Server, cache: Path
) -> None:
    put(cache, b"old")
    start = time.monotonic()
    with pytest.raises(files.DataError) as caught:
        read(server.source(behaviour))
    assert f"/{behaviour}/{NAME}: " in str(caught.value)
    assert FAILURES[behaviour] in str(caught.value)
    assert all(line.isprintable() for line in str(caught.value).split("\n"))
    assert max(map(len, str(caught.value).split("\n"))) < files.MESSAGE + 100
    assert time.monotonic() - start < files.PATIENCE + SLACK
    assert cache.read_bytes() == b"old"
    assert list(cache.parent.iterdir()) == [cache]
    server.asked.clear()
    assert read(server.source(behaviour, "good")) == CONTENT
    assert (server.asked[0], server.asked[-1]) == (behaviour, "good")
    assert cache.read_bytes() == CONTENT


@pytest.mark.parametrize("behaviour", ["hang"], indirect=True)
def test_a_socket_that_times_out_before_the_reader_does_tells_the_same(
    behaviour: str, server: Server, monkeypatch: Patch
) -> None:
    get = requests.get
    monkeypatch.setattr(
        requests, "get", lambda *a, **b: get(*a, **{**b, "timeout": 0.2})
    )
    with pytest.raises(files.DataError, match=FAILURES["hang"]):
        read(server.source(behaviour))


def test_a_mirror_that_sends_too_much_is_hung_up_on(server: Server) -> None:
    assert read(server.source("endless", "good")) == CONTENT
    assert server.client_left.wait(10)


@pytest.mark.parametrize("behaviour", ["slow", "moved"], indirect=True)
def test_a_mirror_that_is_slow_or_redirects_is_fine(
    behaviour: str, server: Server
) -> None:
    assert read(server.source(behaviour)) == CONTENT


def test_a_mirror_is_left_that_is_too_slow_on_average(
    server: Server, cache: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(files, "GRACE", PATIENCE / 2)  # `slow` takes 5/4 PATIENCE
    monkeypatch.setattr(files, "SLOWEST", 100_000)  # and sends at 11 kB/s
    with pytest.raises(files.DataError, match=r"slower than 100 kB/s: \d+ of 20480 b"):
        read(server.source("slow"))
    assert not cache.exists()
    monkeypatch.setattr(files, "SLOWEST", 1000)
    assert read(server.source("slow")) == CONTENT


def test_a_host_that_refuses_connections_is_named_with_the_reason() -> None:
    with socket.socket() as deaf:  # has a port, but does not listen
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/a"
        with pytest.raises(files.DataError, match=f"{url}: .*refused"):
            read(source_of(DataFile(NAME, 1, "0", (url,))))


@pytest.mark.parametrize("url", ["http://example.org/a", "ftp://127.0.0.1/a", "a"])
def test_an_address_without_encryption_is_not_asked(url: str) -> None:
    with pytest.raises(files.DataError, match=f"{url}: not an https address"):
        read(source_of(DataFile(NAME, 1, "0", (url,))))


def test_the_bytes_are_asked_for_as_they_are_stored(server: Server) -> None:
    read(server.source("good"))
    assert server.headers_seen[0]["Accept-Encoding"] == "identity"


def test_the_error_names_each_place_and_what_to_do(server: Server, cache: Path) -> None:
    source = server.source("broken", "forbidden")
    with pytest.raises(files.DataError) as caught:
        read(source)
    message = str(caught.value)
    for part in (
        "Odd Numbers: numbers.gz is not on this machine",
        "NORMBOOK_DATA: not set",
        f"cache: {cache}: no such file",
        f"{source.files[0].urls[0]}: HTTP 500",
        f"{source.files[0].urls[1]}: HTTP 403",
        "normbook data fetch odd-numbers",
        "NORMBOOK_DATA=FOLDER",
        "20480 bytes",
        source.files[0].sha256,
    ):
        assert part in message


def test_progress_is_shown_in_a_terminal(
    server: Server, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "_is_watched", lambda: True)
    read(server.source("slow"))
    shown = capsys.readouterr().err
    assert NAME in shown
    assert "/20.5k" in shown


def test_no_progress_is_shown_where_nobody_looks() -> None:
    code = "import sys; from normbook.data.files import _is_watched as w; print(w())"
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert shown.stdout == "False\n"


# --- a cache that cannot be written to


@pytest.mark.parametrize("reason", ["", "Permission denied"], ids=["file", "closed"])
def test_a_cache_that_is_no_folder_or_closed_is_an_error_before_any_download(
    reason: str, server: Server, cache: Path, monkeypatch: Patch
) -> None:
    if reason:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    else:
        put(cache.parents[1], b"")
    message = rf"must be one that .*{reason}.*set NORMBOOK_CACHE"
    with pytest.raises(files.DataError, match=message):
        read(server.source("good"))
    assert server.asked == []


def test_a_full_disk_is_an_error_and_the_old_file_is_kept(
    server: Server, cache: Path, monkeypatch: Patch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    put(cache, b"old")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(files.DataError, match=r"No space left.*make room or set"):
        read(server.source("good"))
    assert list(cache.parent.iterdir()) == [cache]
    assert cache.read_bytes() == b"old"


# --- processes that are killed or interrupted

DOWNLOAD = """
import os, signal, sys
from normbook.data import catalogue, files

files.PATIENCE = 1000.0  # so that it is the signal that ends it
# A shell starts what is in the background with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
url, size, sha256, fatal = sys.argv[1:]
if fatal:  # die when this function of os is called
    setattr(os, fatal, lambda *a: os.kill(os.getpid(), 9))
file = catalogue.DataFile(url.split("/")[-1], int(size), sha256, (url,))
source = catalogue.Source("odd-numbers", "Odd Numbers", "none", "none", (file,))
catalogue.SOURCES["odd-numbers"] = source
from normbook.__main__ import main
sys.exit(main(["data", "fetch", "odd-numbers"]))
"""


def start_download(source: Source, fatal: str = "") -> "subprocess.Popen[str]":
    file = source.files[0]
    arguments = (file.urls[0], str(file.size), file.sha256, fatal)
    command = [sys.executable, "-c", DOWNLOAD, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until_asked(server: Server) -> None:
    deadline = time.monotonic() + SLACK
    while not server.asked:
        assert time.monotonic() < deadline, "the process asked for nothing"
        time.sleep(0.01)
    time.sleep(0.1)  # some bytes arrive


def test_a_download_that_is_killed_leaves_nothing_behind(
    server: Server, cache: Path
) -> None:
    put(cache, b"old")
    with start_download(server.source("hang")) as process:
        wait_until_asked(server)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert list(cache.parent.iterdir()) == [cache]
    assert cache.read_bytes() == b"old"
    assert read(server.source("good")) == CONTENT


@pytest.mark.parametrize("fatal", ["fsync", "replace"])
def test_a_process_killed_while_it_writes_leaves_the_old_file(
    fatal: str, server: Server, cache: Path
) -> None:
    put(cache, b"old")
    with start_download(server.source("good"), fatal) as process:
        process.wait(timeout=SLACK)
    assert process.returncode == -signal.SIGKILL
    assert cache.read_bytes() == b"old"
    (orphan,) = set(cache.parent.iterdir()) - {cache}
    assert atomic_file.is_temporary(orphan)  # which is removed an hour later
    assert read(server.source("good")) == CONTENT


def test_ctrl_c_ends_a_download_at_once_with_130_and_no_traceback(
    server: Server, cache: Path
) -> None:
    with start_download(server.source("hang")) as process:
        wait_until_asked(server)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SLACK)  # far less than its patience
    assert process.returncode == 130
    assert errors == "normbook: interrupted\n"
    assert list(cache.parent.iterdir()) == []


def test_processes_that_download_at_the_same_time_agree(
    server: Server, cache: Path
) -> None:
    processes = [start_download(server.source("slow")) for _ in range(3)]
    for process in processes:
        with process:
            assert process.wait(timeout=SLACK) == 0
    assert cache.read_bytes() == CONTENT
    assert list(cache.parent.iterdir()) == [cache]


# --- where a data set is, in words


def test_whereabouts_name_the_folders_of_what_is_here(
    server: Server, folder: Path, cache: Path
) -> None:
    source = server.source("good")
    missing = "missing: normbook data fetch odd-numbers"
    assert files.whereabouts(source) == (False, missing)
    put(cache, CONTENT)
    assert files.whereabouts(source) == (True, str(cache.parent))
    put(folder / NAME, CONTENT)
    assert files.whereabouts(source) == (True, str(folder))
    put(folder / NAME, b"bad")
    check_whereabouts(source, False, f"damaged: {folder / NAME}: it has 3 bytes")


def test_whereabouts_name_the_files_that_lack(server: Server, cache: Path) -> None:
    more = DataFile("more.gz", 1, "0", urls=())
    put(cache, CONTENT)
    text = f"in {cache.parent}, but more.gz missing: normbook data fetch odd-numbers"
    source = source_of(*server.source("good").files, more)
    assert files.whereabouts(source) == (False, text)


@pytest.mark.parametrize("source", [MNIST, FASHION_MNIST], ids=lambda s: s.name)
def test_a_file_that_belongs_to_no_data_set_is_damaged_for_each_that_has_its_name(
    source: Source, folder: Path
) -> None:
    path = put(folder / source.files[0].name, b"neither")
    check_whereabouts(source, False, f"damaged: {path}: it has 7 bytes")


def test_whereabouts_of_an_embedded_data_set_are_its_package(
    monkeypatch: Patch,
) -> None:
    version = metadata.version("scikit-learn")
    assert files.whereabouts(DIGITS) == (True, f"in scikit-learn {version}")
    absent = Source("absent", "", "", "", package="no-such-package")
    text = "missing: python -m pip install no-such-package"
    assert files.whereabouts(absent) == (False, text)


# --- files in an archive


def packed(source: Source, archive: Archive = NESTED) -> Source:
    """The same data set, from mirrors that have it in an archive."""
    return replace(source, files=(replace(source.files[0], archive=archive),))


@pytest.mark.parametrize("behaviour", PACKED)
def test_one_download_gives_all_files_of_an_archive_and_they_are_kept(
    behaviour: str, server: Server, cache: Path
) -> None:
    source = packed(server.source(behaviour))
    (file,) = source.files
    sha256 = hashlib.sha256(b"text").hexdigest()
    text = replace(file, name="text", size=4, sha256=sha256)
    source = replace(source, files=(file, text))
    paths = files.fetch(source)
    assert [path.read_bytes() for path in paths] == [CONTENT, b"text"]
    assert paths[0] == cache
    assert set(cache.parent.iterdir()) == {*paths}
    assert read(source) == CONTENT
    assert server.asked == [behaviour]


def test_an_archive_without_folders_gives_the_one_file(
    server: Server, cache: Path
) -> None:
    assert read(packed(server.source("flat"), FLAT)) == CONTENT
    assert list(cache.parent.iterdir()) == [cache]


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("place", ["", "odd-numbers", "odd_numbers"])
def test_the_folder_of_the_reader_may_hold_the_archive(
    name: str, place: str, server: Server, folder: Path
) -> None:
    path = put(folder / place / name, PACKED[name])
    source = packed(server.source(name))
    assert read(source) == CONTENT
    found = files.copies(source, source.files[0])
    assert [copy.path for copy in found if copy.is_good] == [path]
    assert server.asked == []


@pytest.mark.parametrize("place", ["", "inside", "odd-numbers/inside"])
def test_the_folder_of_the_reader_may_hold_the_unpacked_archive(
    place: str, server: Server, folder: Path
) -> None:
    path = put(folder / place / NAME, CONTENT)
    assert files.fetch(packed(server.source("odd.zip"))) == [path]
    assert server.asked == []


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_archive_is_passed_over_of_a_mirror_and_refused_of_the_reader(
    name: str, server: Server, cache: Path, monkeypatch: Patch
) -> None:
    content, reason = DAMAGED[name]
    with pytest.raises(files.DataError, match=f"{NAME}: what came .*{reason}"):
        read(packed(server.source(name)))
    assert not cache.exists()
    assert read(packed(server.source(name, "odd.zip"))) == CONTENT
    server.asked.clear()
    path = put(cache.parents[2] / "odd.tar.gz", content)
    monkeypatch.setenv(files.DATA, str(path.parent))
    with pytest.raises(files.DataError, match=rf"{path.name} must be .*{reason}"):
        read(packed(server.source("odd.zip")))
    assert server.asked == []


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("html", "a web page came instead of"), ("truncated", r"after \d+ bytes")],
)
def test_where_no_archive_came_the_names_of_it_are_told(
    behaviour: str, reason: str, server: Server
) -> None:
    names = "odd.zip or odd.tar.gz or odd.tar.xz, or from it"
    with pytest.raises(files.DataError, match=f"(?s){reason}.*{names}"):
        read(packed(server.source(behaviour)))


def headed(kind: bytes) -> bytes:
    """A tar archive whose first header says that much follows of what is kept."""
    header = tarfile.TarInfo("long")
    header.type, header.size = kind, 10**7
    if kind == tarfile.GNUTYPE_SPARSE:
        text = bytearray(header.tobuf(tarfile.GNU_FORMAT))
        text[482] = 1  # a list of holes follows, of 42 numbers a block
        text[148:156] = b"%06o\0 " % (sum(text[:148]) + sum(text[156:]) + 8 * 32)
        block = b"00000000001\0" * 42 + b"\1" + bytes(7)
        return gzip.compress(bytes(text) + block * 20_000, mtime=0)
    text = bytearray(header.tobuf(tarfile.GNU_FORMAT)) + b"a" * 10**7
    return gzip.compress(bytes(text), mtime=0)


MANY = {str(number): b"" for number in range(1001)}
BOMBS = {
    "zip": (zipped(LONGER), "larger than the 20480 bytes"),
    "tar": (tarred({"0": bytes(10**7), INSIDE: CONTENT}), "more than 1048576 bytes"),
    "name": (headed(tarfile.GNUTYPE_LONGNAME), "a name has more than 10000 bytes"),
    "pax": (headed(tarfile.XHDTYPE), "a name has more than 10000 bytes"),
    "holes": (headed(tarfile.GNUTYPE_SPARSE), "a file with holes is in it"),
    "many-tar": (tarred(MANY), "more than 1000 files are in it"),
    "many-zip": (zipped(MANY), "more than 1000 files are in it"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_an_archive_is_no_bomb(
    kind: str, server: Server, folder: Path, monkeypatch: Patch
) -> None:
    bomb, reason = BOMBS[kind]
    if kind == "tar":  # what follows a header is refused before it is unpacked
        monkeypatch.setattr(files, "UNPACKED", 2**20)
    monkeypatch.setattr(files, "MEMBERS", 1000)
    put(folder / "odd.zip", bomb)
    archive = replace(NESTED, limit=200_000)
    tracemalloc.start()
    with pytest.raises(files.DataError, match=reason):
        read(packed(server.source("odd.zip"), archive))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7 / 2
