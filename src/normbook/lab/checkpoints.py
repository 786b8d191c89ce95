"""Where an unfinished run waits: FILE.partial, beside the record that it will be.

Whenever the process is killed, one of these is on the disk: no folder with a plan, so
nothing was begun; a folder with a plan, so that the run can go on; or the record.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from normbook import atomic_file
from normbook.errors import RecordError, RunError
from normbook.lab import provenance, record
from normbook.lab.experiment import Run
from normbook.lab.ranks import Ranks
from normbook.lab.record import Record
from normbook.lab.tuning import Planned

PLAN = "plan.json"
RECORD = "record.json"  # until it gets its name; what a kill leaves of it lies here too
FREE_BYTES = 200_000_000  # before a run of hours; one checkpoint takes some MB
# torch does not notice a changed bit in a file, so a SHA-256 follows the content.
DIGEST_BYTES = hashlib.sha256().digest_size


class Checkpoints:
    """The checkpoints of one experiment, and the record ``out`` that comes of them."""

    def __init__(self, out: Path, plan: Mapping[str, Any]) -> None:
        self.out = out
        self.folder = Path(f"{out}.partial")
        self.plan = json.loads(json.dumps(plan))  # must be the same on --resume

    def check(self, *, is_resumed: bool) -> Record | None:
        """Refuse what would lose or mix something; return the record if it is there."""
        with self._usable():
            if self.out.exists():
                return self._finished(is_resumed)
            if not self.out.parent.is_dir():
                raise RunError(
                    f"--out must be in a folder that exists, got {self.out}; make "
                    f"{self.out.parent}."
                )
            if is_resumed:
                self._compare()
            else:
                self._check_empty()
        return None

    def open(self) -> str:
        """Make the folder, unless it is there; return when the run was begun."""
        with self._usable():
            path = self.folder / PLAN
            if not path.exists():
                self.folder.mkdir(exist_ok=True)
                content = {**self.plan, "started": provenance.now()}
                atomic_file.write(path, json.dumps(content, indent=1).encode())
        return str(self._read_plan()["started"])

    def save(self, run: Run, of: Planned, seconds: float, *, is_finished: bool) -> None:
        """Write the checkpoint of a run that took so many seconds so far."""
        path = self._path(of)
        kept = {"of": _name(of), "run": run.state_dict()}
        saved = io.BytesIO()
        torch.save({**kept, "seconds": seconds, "is_finished": is_finished}, saved)
        content = saved.getvalue()
        with _told(
            f"a checkpoint must be written every few seconds, but {path} cannot",
            "make room, then go on with --resume: the checkpoint before it is whole",
        ):
            atomic_file.write(path, content + hashlib.sha256(content).digest())

    def restore(self, run: Run, of: Planned, team: Ranks) -> tuple[float, bool]:
        """Put a run where its checkpoint is; return seconds so far, and if finished."""
        path = self._path(of)
        content = team.first(lambda: _content(path))
        if content is None:
            return 0.0, False
        with _readable(path):
            # On the CPU first: the generators' states belong there.
            saved = io.BytesIO(content)
            kept = torch.load(saved, map_location="cpu", weights_only=True)
            if kept["of"] != _name(of):
                raise ValueError(f"it is of {kept['of']}")
            run.load_state_dict(kept["run"])
            return kept["seconds"], kept["is_finished"]

    def close(self, finished: Record) -> None:
        """Write the record, then remove the folder."""
        rule = f"the record must be written, but {self.out} cannot"
        with _told(rule, "make room, then go on with --resume"):
            record.save(finished, self.folder / RECORD)
            (self.folder / RECORD).replace(self.out)
        self.tidy(finished)

    def tidy(self, finished: Record) -> None:
        """Remove the folder, if the record is there and nothing else is in it."""
        with contextlib.suppress(OSError):  # not there, or files of somebody else
            for path in filter(atomic_file.is_temporary, self.folder.iterdir()):
                path.unlink()
            for run in finished.runs + finished.tuning:
                self._path(Planned.of(run)).unlink(missing_ok=True)
            (self.folder / PLAN).unlink(missing_ok=True)
            self.folder.rmdir()

    def _path(self, of: Planned) -> Path:
        return self.folder / f"{of.title}-{of.seed}.pt"

    def _finished(self, is_resumed: bool) -> Record:
        if is_resumed:
            with contextlib.suppress(RecordError, OSError):
                finished = record.load(self.out)
                plan = {key: getattr(finished, key) for key in self.plan}
                # Records older than data-parallel training do not say "runs".
                device = {"parallel": "runs", **finished.device}
                plan["device"] = {k: device[k] for k in self.plan["device"]}
                if not _differences(plan, self.plan):
                    return finished
        raise RunError(
            f"the record must not be there yet, got {self.out}; name another one with "
            "--out, or delete it."
        )

    def _compare(self) -> None:
        if not (self.folder / PLAN).exists():
            raise RunError(
                "--resume needs the checkpoints of an unfinished run, got none in "
                f"{self.folder}; leave --resume out to begin."
            )
        if differing := _differences(self._read_plan(), self.plan):
            raise RunError(
                "--resume must go on with what was begun, but these differ: "
                f"{'; '.join(differing)}; restore them, or delete {self.folder} to "
                "begin again."
            )

    def _check_empty(self) -> None:
        if (self.folder / PLAN).exists():
            raise RunError(
                f"an unfinished run must be continued or deleted, got {self.folder}; "
                "add --resume, or delete that folder."
            )
        # A folder without a plan: the process was killed as it began.
        files = self.folder.iterdir() if self.folder.exists() else ()
        if not all(map(atomic_file.is_temporary, files)):
            raise RunError(
                f"the folder of the checkpoints must be new, got {self.folder} with "
                "other files; name another record with --out."
            )
        free = shutil.disk_usage(self.out.parent).free
        if free < FREE_BYTES:
            raise RunError(
                f"at least {FREE_BYTES / 1e6:.0f} MB must be free for checkpoints, "
                f"got {free / 1e6:.0f} MB in {self.out.parent}; make room."
            )

    def _read_plan(self) -> dict[str, Any]:
        path = self.folder / PLAN
        rule = f"the plan of a run must be readable, got {path}"
        cure = f"delete {self.folder} to begin again"
        with _told(rule, cure, (ValueError, TypeError)):
            plan = json.loads(path.read_bytes())
            if missing := {*self.plan, "started"} - {*plan}:
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            return dict(plan)

    def _usable(self) -> contextlib.AbstractContextManager[None]:
        rule = f"--out must be in a folder that can be written to, got {self.out}"
        return _told(rule, "take another one")


@contextlib.contextmanager
def _told(rule: str, cure: str, kind: Any = OSError) -> Iterator[None]:
    """Make a RunError of one of this kind, by default of the disk."""
    try:
        yield
    except kind as error:
        reason = getattr(error, "strerror", None) or _short(error)
        raise RunError(f"{rule}: {reason}; {cure}.") from error


def _readable(path: Path) -> contextlib.AbstractContextManager[None]:
    cure = "delete this file, then --resume begins that one run again"
    return _told(f"a checkpoint must be readable, got {path}", cure, Exception)


def _content(path: Path) -> bytes | None:
    if not path.exists():
        return None
    with _readable(path):
        content = path.read_bytes()
        content, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("its SHA-256 is another one")
        return content


def _name(of: Planned) -> str:
    return f"{of.title}, seed {of.seed}"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs; the name of the commit may, where the sources do not."""
    return [
        f"{key} (was {_short(before[key])}, is {_short(now[key])})"
        for key in sorted(now.keys() - {"commit", "is_modified"})
        if before[key] != now[key]
    ]


def _short(value: object) -> str:
    """Return the first line of what is to be said, or its beginning."""
    text = (str(value).strip() or type(value).__name__).split("\n")[0]
    return text if len(text) <= 100 else f"{text[:100]}..."
