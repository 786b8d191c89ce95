"""Finding, downloading and checking the files of the data sets.

A file is looked for in this order:

1. the folder named by the environment variable ``NORMBOOK_DATA``, as
   ``FOLDER/mnist/FILE`` or as ``FOLDER/FILE``, for some in the archive that the
   authors publish; nothing is ever written there;
2. the cache: the folder named by ``NORMBOOK_CACHE``, or else the user's cache
   folder of the operating system; as ``FOLDER/mnist/FILE``;
3. the mirrors, one after the other; what comes is kept in the cache.

Every file is checked against its known size and SHA-256 each time that it is read, and
no byte of it is used before; one that a mirror has in an archive after it has been
unpacked in memory, with the others of the data set in there. A damaged file in
``NORMBOOK_DATA`` is an error: the reader chose that folder. One in the cache is
downloaded again, and replaced only by a good one.

A file that cannot be had, a setting that names no folder, or a cache that cannot be
written to raises ``DataError``; the message lists each place and the cure.

Why `requests` and not `pooch`: that asks a single address for each file, reads what
comes without a limit of size, waits without an end for a server that sends a byte now
and then, and leaves its temporary file behind when it is killed. Here a download is
held in memory (170 MB at most) until it is known to be right, and only then written.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import lzma
import os
import queue
import stat
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit

from normbook import atomic_file
from normbook.data.catalogue import SOURCES, Archive, DataFile, Source
from normbook.errors import DataError as DataError  # what loaders raise
from normbook.extra import of_the_book

if TYPE_CHECKING:
    from requests import Response

DATA = "NORMBOOK_DATA"
CACHE = "NORMBOOK_CACHE"

# Seconds that a mirror may take to send the next piece, the time to connect
# included: two mirrors that hang cost 20 s before the error comes.
PATIENCE = 10.0
# Bytes in a piece. Small, so that a slow line still fills one within PATIENCE.
PIECE = 4096
# Bytes per second that a mirror must send on average, once it had GRACE seconds:
# a piece within PATIENCE each time would be a download of hours or days. No more is
# demanded, since the one server of CIFAR-10 has been seen to send 50 000.
SLOWEST = 10_000
GRACE = 30.0
# Redirects that are followed; GitHub needs one.
REDIRECTS = 5
# Bytes of a tar archive that are unpacked at most, in search of a file.
UNPACKED = 500_000_000
# Members that an archive has at most, and bytes that the name of one may have: both are
# kept in memory.
MEMBERS = 10_000
LONGEST_NAME = 10_000
# Letters of a path or of a server's answer that an error message shows at most.
MESSAGE = 300


class _MirrorError(Exception):
    """One mirror did not give the file; the message is the reason."""


class _ArchiveError(Exception):
    """An archive does not give the file; the message is the reason."""


@dataclass(frozen=True)
class Copy:
    """A place on this machine where a file may lie, and what lies there."""

    place: str  # "NORMBOOK_DATA" or "cache"
    path: Path
    content: bytes | None  # None if there is no such file; to be used if it is good
    fault: str  # what is wrong with it; empty if it is the file as published
    is_permitted: bool = True  # whether the permissions allow to look at it

    @property
    def is_good(self) -> bool:
        """Whether this is the file as published."""
        return not self.fault


def data_folder() -> Path | None:
    """Return the folder that the reader named, None if there is none."""
    folder = _setting(DATA)
    try:
        if folder is None or stat.S_ISDIR(folder.stat().st_mode):
            return folder
        reason = "not a folder"
    except OSError as error:
        reason = error.strerror or str(error)
    raise DataError(
        f"{DATA} must name a folder that exists, got {_short(str(folder))} "
        f"({reason}); correct it, or unset {DATA} to use the cache and downloads."
    )


def cache_folder() -> Path:
    """Return the folder in which downloads are kept; it need not exist yet."""
    with of_the_book():
        import platformdirs

    folder = _setting(CACHE)
    return folder or Path(platformdirs.user_cache_dir("normbook", appauthor=False))


def _setting(name: str) -> Path | None:
    """Return the folder that an environment variable names, None if it is unset."""
    value = os.environ.get(name, "")
    try:
        return Path(value).expanduser() if value else None
    except RuntimeError as error:  # ~user of a user that there is not
        raise DataError(
            f"{name} must name a folder, got {_short(value)}, whose home folder is "
            f"unknown; write the path in full, or unset {name}."
        ) from error


def _short(text: str) -> str:
    """Quote a text, or its beginning where it is too long for a message."""
    return repr(text) if len(text) <= MESSAGE else f"{text[:MESSAGE]!r}..."


def copies(source: Source, file: DataFile) -> Iterator[Copy]:
    """Read and check a file in each place on this machine, best first."""
    folder, archive = data_folder(), file.archive
    unpacked = archive.folder + file.name if archive else file.name
    if folder is not None:
        own = dict.fromkeys((source.name, source.name.replace("-", "_")))
        for base in (*(folder / name for name in own), folder):
            for name in dict.fromkeys((file.name, unpacked)):
                yield _inspect(DATA, base / name, source, file, base == folder)
            for name in archive.names if archive else ():
                yield _inspect(DATA, base / name, source, file, archive=archive)
    yield _inspect("cache", _cached(source, file), source, file)


def _cached(source: Source, file: DataFile) -> Path:
    return cache_folder() / source.name / file.name


def _inspect(
    place: str,
    path: Path,
    source: Source,
    file: DataFile,
    is_shared: bool = False,
    archive: Archive | None = None,
) -> Copy:
    """Read a file, perhaps from an archive, and compare it with what it must be."""
    # MNIST and Fashion-MNIST have files of the same names. In a folder that all data
    # sets share there can be only one of the two, and for the other it is no damaged
    # file; in the folder of one data set it is.
    others = {
        same: other
        for other in SOURCES.values()
        for same in other.files
        if other is not source and same.name == path.name
    }
    limit = archive.limit if archive else max(f.size for f in (file, *others))
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait
            return Copy(place, path, b"", "it is not a regular file")
        with path.open("rb") as handle:
            content = handle.read(limit + 1)
        if archive is not None:
            content = _unpack(content, archive, [file])[file]
    except (FileNotFoundError, NotADirectoryError):
        return Copy(place, path, None, "no such file")
    except PermissionError:
        reason = "the permissions of the file or of its folders forbid to read it"
        return Copy(place, path, b"", reason, is_permitted=False)
    except OSError as error:
        return Copy(place, path, b"", f"it cannot be read ({error.strerror})")
    except _ArchiveError as error:
        return Copy(place, path, b"", str(error))
    fault = file.fault(content)
    owner = next((o for same, o in others.items() if not same.fault(content)), None)
    if not fault or owner is None:
        return Copy(place, path, content, fault)
    fault = f"it is the file of {owner.name}"
    return Copy(place, path, None if is_shared else content, fault)


def whereabouts(source: Source) -> tuple[bool, str]:
    """Return whether all of a data set is here, and in one line where, or why not."""
    if source.package:
        try:
            return True, f"in {source.package} {metadata.version(source.package)}"
        except metadata.PackageNotFoundError:
            return False, f"missing: python -m pip install {source.package}"
    folders, absent = [], []
    try:
        for file in source.files:
            present = (c for c in copies(source, file) if c.content is not None)
            # As in _obtain: a damaged file in NORMBOOK_DATA is not passed over.
            copy = next(present, None)
            if copy is None:
                absent.append(file.name)
            elif copy.is_good:
                folders.append(str(copy.path.parent))
            else:
                state = "damaged" if copy.is_permitted else "not readable"
                return False, f"{state}: {copy.path}: {copy.fault}"
    except DataError as error:
        return False, str(error)
    where = ", ".join(dict.fromkeys(folders))
    cure = f"missing: normbook data fetch {source.name}"
    if absent and folders:
        return False, f"in {where}, but {', '.join(absent)} {cure}"
    return not absent, cure if absent else where


def read(source: Source, file: DataFile) -> bytes:
    """Return the content of a file, as published; download it if it is nowhere yet."""
    return _obtain(source, file)[1]


def fetch(source: Source) -> list[Path]:
    """Make sure that all files of a data set are here; return where each lies."""
    return [_obtain(source, file)[0] for file in source.files]


def _obtain(source: Source, file: DataFile) -> tuple[Path, bytes]:
    """Return where a file lies and its content, downloaded if need be."""
    tried = [] if data_folder() else [f"{DATA}: not set"]
    for copy in copies(source, file):
        if copy.content is not None and copy.is_good:
            return copy.path, copy.content
        if copy.content is not None and copy.place == DATA:
            cure = "replace or remove it" if copy.is_permitted else "change them"
            raise DataError(
                f"{copy.path} must be the file of {source.title} as published, but "
                f"{copy.fault}; {cure}, or unset {DATA}."
            )
        tried.append(f"{copy.place}: {copy.path}: {copy.fault}")

    path = _cached(source, file)
    with _writing(path.parent):  # before anything is downloaded for it
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # One download of an archive gives all files that are in it.
    wanted = [f for f in source.files if file.archive and f.urls == file.urls] or [file]
    for url in file.urls:
        try:
            contents = _download(url, file, wanted)
        except _MirrorError as error:
            # A server's words may contain what makes a terminal do things.
            reason = "".join(filter(str.isprintable, str(error)))
            tried.append(f"{url}: {reason[:MESSAGE]}")
            continue
        with _writing(path.parent):
            for other, content in contents.items():
                atomic_file.write(_cached(source, other), content)
        return path, contents[file]
    raise DataError(_nowhere(source, file, tried))


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Say what to do where the cache cannot be written to."""
    try:
        yield
    except OSError as error:
        raise DataError(
            "the cache folder must be one that can be written to, but "
            f"{_short(str(folder))} is not ({error.strerror}); make room or set "
            f"{CACHE} to another folder."
        ) from error


def _nowhere(source: Source, file: DataFile, tried: list[str]) -> str:
    """Say where a file was looked for, and what the reader can do."""
    names = file.archive.names if file.archive else ()
    width = max(len(other.name) for other in source.files)
    return "\n".join(
        [
            f"{source.title}: {file.name} is not on this machine and could not be "
            "downloaded. Tried:",
            *(f"  - {line}" for line in tried),
            "What to do, one of:",
            f"  - with a network: normbook data fetch {source.name}",
            "  - get the files below elsewhere and put them into "
            f"FOLDER/{source.name}/ or FOLDER/, then set {DATA}=FOLDER:",
            *([f"      {' or '.join(names)}, or from it"] if names else []),
            *(
                f"      {other.name:{width}}  {other.size:>10} bytes\n"
                f"        SHA-256 {other.sha256}"
                for other in source.files
            ),
        ]
    )


# --- downloads


def _download(
    url: str, file: DataFile, wanted: list[DataFile]
) -> dict[DataFile, bytes]:
    """Return the contents of the files that one mirror has at an address, checked."""
    contents = {file: _transfer(url, file)}
    if file.archive:
        try:
            contents = _unpack(contents[file], file.archive, wanted)
        except _ArchiveError as error:
            raise _MirrorError(f"what came cannot be unpacked: {error}") from error
    for other, content in contents.items():
        if fault := other.fault(content):
            raise _MirrorError(f"what came is not the file: {fault}")
    return contents


def _transfer(url: str, file: DataFile) -> bytes:
    """Return what one mirror sends, at most a piece more than it may."""
    with of_the_book():
        import requests  # noqa: F401  # here, not in the thread while the clock ticks
        from tqdm import tqdm

    pieces: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
    is_over = threading.Event()
    # Timeouts of sockets hold for one address and one packet: a host with eight of them
    # behind a firewall, a name that is not resolved, or a byte now and then would make
    # the reader wait for minutes.
    arguments = (url, file, pieces, is_over)
    threading.Thread(target=_receive, args=arguments, daemon=True).start()
    received = bytearray()
    start = time.monotonic()
    total = None if file.archive else file.size

    def progress() -> str:
        return f"{len(received)}{f' of {total}' if total else ''} bytes"

    options = {"desc": file.name, "unit": "B", "unit_scale": True, "leave": False}
    try:
        with tqdm(total=total, disable=not _is_watched(), **options) as bar:
            while piece := pieces.get(timeout=PATIENCE):
                if isinstance(piece, Exception):
                    raise piece
                received += piece
                bar.update(len(piece))
                if len(received) > file.limit:
                    break
                seconds = time.monotonic() - start
                least = min(file.limit, SLOWEST * seconds)
                if seconds > GRACE and len(received) < least:
                    raise _MirrorError(
                        f"slower than {SLOWEST / 1000:g} kB/s: {progress()} in "
                        f"{seconds:.0f} s"
                    )
    except _MirrorError:
        raise
    except Exception as error:
        after = f", after {progress()}" if received else ""
        raise _MirrorError(_reason(error) + after) from error
    finally:
        is_over.set()
    return bytes(received)


def _receive(
    url: str,
    file: DataFile,
    pieces: queue.SimpleQueue[bytes | Exception],
    is_over: threading.Event,
) -> None:
    """Put what the server sends into `pieces`, b"" at the end, or the error."""
    import requests

    try:
        for _ in range(REDIRECTS + 1):
            _demand_https(url)
            with requests.get(
                url,
                stream=True,
                timeout=PATIENCE,
                allow_redirects=False,  # each address is looked at first
                # As it is stored: the .gz must not be unpacked on the way.
                headers={"Accept-Encoding": "identity"},
            ) as response:
                if response.is_redirect:
                    url = urljoin(url, response.headers["Location"])
                    continue
                _check_answer(response, file)
                for piece in response.iter_content(PIECE):
                    pieces.put(piece)
                    if is_over.is_set():
                        break
            pieces.put(b"")
            return
        raise _MirrorError(f"more than {REDIRECTS} redirects")
    except Exception as error:  # noqa: BLE001 - any error is raised by the other thread
        pieces.put(error)


def _demand_https(url: str) -> None:
    """Refuse an address without encryption, unless it is this very machine."""
    parts = urlsplit(url)
    is_here = parts.hostname in ("127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here):
        raise _MirrorError(f"not an https address: {url}")


def _check_answer(response: Response, file: DataFile) -> None:
    """Refuse an answer that its header shows not to be the file."""
    if response.status_code != 200:
        raise _MirrorError(f"HTTP {response.status_code} {response.reason}")
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise _MirrorError("a web page came instead of the file")
    length = response.headers.get("Content-Length", str(file.size))
    if not file.archive and length != str(file.size):
        raise _MirrorError(
            f"the server announces {length} bytes instead of {file.size}"
        )


def _reason(error: Exception) -> str:
    """Say in a few words why a download failed."""
    import requests

    # requests wraps urllib3, which wraps what the operating system said; what timed out
    # in the middle of a file is no Timeout to requests.
    root: BaseException = error
    while root.__context__ is not None:
        root = root.__context__
    if isinstance(error, (queue.Empty, requests.Timeout)) or type(root) is TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    return str(root) or type(root).__name__


def _is_watched() -> bool:
    """Whether somebody sees a progress bar: in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


# --- archives


def _unpack(
    packed: bytes, archive: Archive, wanted: list[DataFile]
) -> dict[DataFile, bytes]:
    """Return files of an archive, or of each a byte more than it may have."""
    if len(packed) > archive.limit:
        raise _ArchiveError(f"the archive is larger than {archive.limit} bytes")
    sizes = {archive.folder + file.name: file.size + 1 for file in wanted}
    take = _from_zip if packed.startswith(b"PK") else _from_tar
    try:
        contents = dict(take(packed, sizes))
        return {file: contents[archive.folder + file.name] for file in wanted}
    except Exception as error:  # bytes at random can make it raise anything
        names = ", ".join(file.name for file in wanted)
        raise _ArchiveError(f"it is no archive with {names} in it ({error})") from error


# Each yields the beginnings, of these sizes, of files in an archive.
def _from_zip(packed: bytes, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    if packed.count(b"PK\1\2") > MEMBERS:  # the entries of its list, read as a whole
        raise _ArchiveError(f"more than {MEMBERS} files are in it")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        for name, size in sizes.items():
            with archive.open(name) as handle:
                yield name, handle.read(size)


def _from_tar(packed: bytes, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    unpack = lzma.open if packed.startswith(b"\xfd7zXZ") else gzip.open
    left = set(sizes)
    # As a stream, which is read once and no further than to the last of the files.
    with (
        unpack(io.BytesIO(packed)) as stream,
        tarfile.open(fileobj=_Bounded(stream), mode="r|", tarinfo=_Header) as archive,
    ):
        for _ in range(MEMBERS):
            if not left or not (member := archive.next()):
                return
            if member.name in left and (handle := archive.extractfile(member)):
                yield member.name, handle.read(sizes[member.name])
                left.remove(member.name)
        raise _ArchiveError(f"more than {MEMBERS} files are in it")


class _Header(tarfile.TarInfo):
    """A header of a member that stays small when it is read."""

    @classmethod
    def frombuf(cls, *arguments: Any) -> Self:
        header = super().frombuf(*arguments)
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise _ArchiveError("a file with holes is in it")
        if not header.isreg() and header.size > LONGEST_NAME:
            raise _ArchiveError(f"a name has more than {LONGEST_NAME} bytes")
        return header


class _Bounded(io.RawIOBase):
    """A stream that refuses to go on behind so many bytes: a few may unpack to many."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self.stream, self.left = stream, UNPACKED

    def read(self, size: int | None = -1) -> bytes:
        content = self.stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise _ArchiveError(f"more than {UNPACKED} bytes are packed in it")
        return content
