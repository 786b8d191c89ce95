"""Build the site twice, kill builds, and fill the disk: is a build what it was before.

    python tools/builds.py [--kills 20]

All of it happens in copies of the last commit, in a folder that is deleted in the end,
and without a network where the system can take it away. Each line that is printed tells
what was seen; the exit status is 1 if something was not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALONE = ["unshare", "--net"]  # a network of its own, with nothing in it


def copy(folder: Path) -> Path:
    """Clone the last commit."""
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    return folder


def start(folder: Path) -> subprocess.Popen[str]:
    """Begin to build a copy, from its own sources."""
    given = {"SOURCE_DATE_EPOCH": "1700000000", "PYTHONPATH": str(folder / "src")}
    return subprocess.Popen(
        [*ALONE, folder / "tools/book.sh", sys.executable],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def site(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a built site."""
    html = folder / "_build/html"
    return {
        str(path.relative_to(html)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(html.rglob("*"))
        if path.is_file()
    }


def built(folder: Path) -> dict[str, str]:
    """Build a copy to the end."""
    process = start(folder)
    said = process.communicate()[0]
    if process.returncode:
        sys.exit(f"the build of {folder} failed:\n{said}")
    return site(folder)


def kill(folder: Path, seconds: float) -> None:
    """Kill a build so many seconds after it began, with all that it started."""
    process = start(folder)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def outside(folder: Path) -> str:
    """Return what differs in a copy from its commit, but for what is being built."""
    command = ["git", "-C", str(folder), "status", "--porcelain", "--ignored"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return "".join(x for x in done.stdout.splitlines() if x != "!! _build/")


@contextlib.contextmanager
def small_disk(where: Path, megabytes: int) -> Iterator[Path]:
    """Give a disk of a few megabytes, to which who is root may mount it."""
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where)]
    subprocess.run(mount, check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def refusal(folder: Path) -> str:
    """Build where it cannot be done; return what was said and what was left."""
    process = start(folder)
    said = process.communicate()[0]
    left = "half a site" if (folder / "_build/html").exists() else "nothing"
    lines = said.strip().splitlines()
    return (
        f"exit {process.returncode}, {len(lines)} line, {left} left: {lines[-1][:90]}"
    )


def main() -> int:
    """Look at all of it; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        ALONE.clear()
        print("network: it could not be taken away, the builds have it")
    is_good = True
    with tempfile.TemporaryDirectory() as scratch:
        one, other = copy(Path(scratch, "one")), copy(Path(scratch, "the öther"))
        began = time.monotonic()
        first = built(one)
        took = time.monotonic() - began
        second = built(other)
        differ = [
            x for x in first.keys() | second.keys() if first.get(x) != second.get(x)
        ]
        print(f"clean builds: {len(first)} files, {len(differ)} differ")
        for name in sorted(differ)[:5]:
            print(f"  {name}")
        is_good &= not differ

        unchanged = 0
        for number in range(kills):
            kill(other, took * (number + 0.5) / kills)
            unchanged += outside(other) == ""
        again = built(other) == first
        print(
            f"kills: {unchanged} of {kills} left everything outside _build as it was; "
            f"the build after them is {'equal' if again else 'NOT EQUAL'}"
        )
        is_good &= again and unchanged == kills

        if os.geteuid() == 0:
            size = sum(
                p.stat().st_size for p in one.rglob("*") if "_build" not in str(p)
            )
            shutil.rmtree(one / "_build")
            with small_disk(Path(scratch, "small"), size // 2**20 + 12) as disk:
                full = refusal(copy(disk / "copy"))
                print(f"full disk: {full}")
                # Nobody may write there, root included.
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                closed = refusal(disk / "copy")
                print(f"no permission: {closed}")
            wanted = "exit 1, 1 line, nothing left: book: the site could not be written"
            is_good &= full.startswith(wanted) and closed.startswith(wanted)
        else:
            print("full disk: not run, only root may make a small one")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
