"""Run an experiment: with progress and checkpoints, on one process or on many.

Every variant with every seed is a run of its own. Processes that ``torchrun`` started
share the runs among them, and each run gives the same numbers as it would alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed
from tqdm import tqdm

import normbook
from normbook import atomic_file
from normbook.data import Dataset, digits, fashion_mnist, mnist
from normbook.data.catalogue import SOURCES
from normbook.experiments.experiment import Experiment, Run, Scale
from normbook.experiments.record import Record, RunRecord, save

__all__ = ["RunError", "estimate", "load_data", "replay", "run", "variant_settings"]

PLAN = "plan.json"
CHECKPOINT_SECONDS = 20.0
# A checkpoint holds a model, an order of the examples and the curves: some MB. This
# much must be free before a run of hours is begun.
FREE_BYTES = 200_000_000
PACKAGES = ("normbook", "numpy", "scikit-learn", "torch")
# Relative; other machines add up in another order, and each step builds on the last.
TOLERANCES = {"float64": 1e-5, "float32": 1e-3}
LOADERS = {
    "digits": digits.load,
    "mnist": mnist.load,
    "fashion-mnist": fashion_mnist.load,
}


class RunError(RuntimeError):
    """A run cannot be started or continued; the message says why and the cure."""


@dataclass(frozen=True)
class _Ranks:
    """Which process among those that ``torchrun`` started."""

    rank: int = 0
    count: int = 1
    local: int = 0


class _Stop:
    """Turns Ctrl-C, and the signal of torchrun to end, into a wish.

    An update that is under way is finished and saved. A second one ends at once.
    """

    def __init__(self) -> None:
        self.is_wished = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        old = {}
        with contextlib.suppress(ValueError):  # not the main thread: no signals here
            for number in (signal.SIGINT, signal.SIGTERM):
                old[number] = signal.signal(number, self._wish)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _wish(self, *_: object) -> None:
        if self.is_wished:
            raise KeyboardInterrupt
        self.is_wished = True


def run(
    experiment: Experiment,
    scale: str = "live",
    *,
    seeds: Sequence[int] | None = None,
    on: torch.device | str = "cpu",
    out: Path | None = None,
    is_resumed: bool = False,
) -> Record:
    """Run every variant of an experiment with every seed.

    Parameters
    ----------
    experiment : Experiment
    scale : str
        A key of ``experiment.scales``.
    seeds : sequence of int, optional
        Those of the scale if left out.
    on : device
        Under ``torchrun`` with ``"cuda"`` each process takes a GPU of its own.
    out : Path, optional
        Where the record goes. In ``OUT.partial`` beside it are the checkpoints as
        long as the run is not finished. Left out, nothing is written.
    is_resumed : bool
        Whether to go on from the checkpoints.

    Returns
    -------
    Record
        Under ``torchrun`` each process gets the whole record, the first writes it.

    Raises
    ------
    RunError
        If the scale, a seed or the device is wrong, the record is there already,
        there are checkpoints and nobody asked to resume (or the reverse, or they
        belong to something else), or there is no space.
    DataError
        If the data set is nowhere to be had.
    KeyboardInterrupt
        After Ctrl-C, once the update under way is saved.
    """
    chosen = _scale(experiment, scale)
    seeds = _seeds(chosen, seeds)
    with _ranks() as ranks:
        place = _place(on, ranks)
        plan = {
            "name": experiment.name,
            "scale": scale,
            "settings": chosen.settings,
            "seeds": seeds,
            "versions": _versions(),
            "code": _code(),
            **_commit(),
            "device": _describe(place),
        }
        data = load_data(chosen)
        folder = None
        started = _now()
        if out is not None:
            folder = out.with_name(out.name + ".partial")
            if ranks.rank == 0:
                _prepare(out, folder, plan, started, is_resumed)
            _wait(ranks)
            started = json.loads((folder / PLAN).read_text())["started"]
        todo = [(variant, seed) for variant in _variants(chosen) for seed in seeds]
        mine = todo[ranks.rank :: ranks.count]
        stop = _Stop()
        finished = []
        with stop.listening(), _bar(len(mine) * _steps(chosen), ranks) as bar:
            for variant, seed in mine:
                run = _Training(experiment, chosen, variant, seed, folder)
                finished.append(run.finish(data, place, stop, bar))
        everything = _gather(finished, ranks)
        found = {(run.variant, run.seed): run for runs in everything for run in runs}
        record = Record(
            name=experiment.name,
            scale=scale,
            command=_command(experiment.name, scale, seeds, ranks),
            settings=chosen.settings,
            seeds=seeds,
            data=_hashes(chosen, data),
            versions=plan["versions"],
            code=plan["code"],
            commit=plan["commit"],
            is_modified=plan["is_modified"],
            device={**plan["device"], "ranks": ranks.count},
            started=started,
            wall_seconds=max(sum(r.wall_seconds for r in runs) for runs in everything),
            runs=[found[pair] for pair in todo],
        )
        if out is not None and folder is not None:
            if ranks.rank == 0:
                save(record, out)
                shutil.rmtree(folder, ignore_errors=True)
            _wait(ranks)
    return record


def estimate(
    experiment: Experiment, scale: str, *, on: torch.device | str = "cpu"
) -> dict[str, float]:
    """Measure what one run of each variant would take.

    Parameters
    ----------
    experiment : Experiment
    scale : str
    on : device

    Returns
    -------
    dict from variant to seconds
        From a second or so of updates and one of each measurement.

    Raises
    ------
    RunError, DataError
        As :func:`run`.
    """
    chosen = _scale(experiment, scale)
    place = _place(on, _Ranks())
    data = load_data(chosen)
    seconds = {}
    for variant in _variants(chosen):
        run = experiment.begin(variant_settings(chosen, variant), 0, data, place)
        measuring = 0.0
        for every, measure in run.measurements.values():
            begun = time.perf_counter()
            measure(run)
            times = _steps(chosen) // every + 1
            measuring += times * (time.perf_counter() - begun)
        for _ in range(3):  # the first ones are slow
            run.update()
        begun, updates = time.perf_counter(), 0
        while time.perf_counter() - begun < 0.5:
            run.update()
            updates += 1
        update = (time.perf_counter() - begun) / updates
        seconds[variant] = _steps(chosen) * update + measuring
    return seconds


def replay(
    record: Record,
    experiment: Experiment,
    data: Dataset | None,
    *,
    on: torch.device | str = "cpu",
    steps: int = 20,
) -> list[str]:
    """Repeat the first steps of each run of a record, and compare.

    Parameters
    ----------
    record : Record
    experiment : Experiment
        The one that the record says it is of.
    data : Dataset or None
        What :func:`load_data` gives.
    on : device
    steps : int
        Updates to repeat, at most those in ``opening``.

    Returns
    -------
    list of str
        What differs by more than a relative 1e-3 in a loss or a measurement, or
        1e-5 in the first loss; empty if nothing does.
    """
    chosen = experiment.scales[record.scale]
    if record.settings != json.loads(json.dumps(chosen.settings)):
        return ["the settings are no longer those of the record"]
    differences = []
    for kept in record.runs:
        settings = variant_settings(chosen, kept.variant)
        tolerance = TOLERANCES[settings["dtype"]]
        run = experiment.begin(settings, kept.seed, data, torch.device(on))
        for _ in range(steps):
            run.measure(_steps(chosen))
            run.update()
        where = f"{kept.variant}, seed {kept.seed}"
        if not _agree(kept.opening[:steps], run.opening, tolerance):
            differences.append(f"{where}: losses of the first {steps} steps")
        for name, curve in run.curves.items():
            for quantity, values in curve.items():
                stored = kept.curves[name][quantity][: len(values)]
                if not _agree(stored, values, tolerance):
                    differences.append(f"{where}: {name} / {quantity}")
    return differences


def variant_settings(scale: Scale, variant: str) -> dict[str, Any]:
    """Give the settings of one variant: the common ones, and its own over them.

    Parameters
    ----------
    scale : Scale
    variant : str

    Returns
    -------
    dict
    """
    common = {k: v for k, v in scale.settings.items() if k != "variants"}
    return {**common, **scale.settings["variants"][variant]}


def load_data(scale: Scale) -> Dataset | None:
    """Load the data set of a scale; None where it has none.

    Parameters
    ----------
    scale : Scale

    Returns
    -------
    Dataset or None

    Raises
    ------
    DataError
        If the data set is nowhere to be had.
    """
    return LOADERS[scale.data]() if scale.data else None


class _Training(NamedTuple):
    """One run, from its checkpoint or from the start, to its end."""

    experiment: Experiment
    scale: Scale
    variant: str
    seed: int
    folder: Path | None

    @property
    def checkpoint(self) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / f"{self.variant}-{self.seed}.pt"

    def finish(
        self, data: Dataset | None, place: torch.device, stop: _Stop, bar: Any
    ) -> RunRecord:
        steps = _steps(self.scale)
        settings = variant_settings(self.scale, self.variant)
        bar.set_description(f"{self.variant}, seed {self.seed}")
        run = self.experiment.begin(settings, self.seed, data, place)
        spent, is_finished = self._restore(run)
        bar.update(run.step)
        begun = saved = time.monotonic()
        while run.step < steps:
            run.measure(steps)
            loss = run.update()
            bar.update()
            now = time.monotonic()
            if stop.is_wished or now - saved > CHECKPOINT_SECONDS:
                self._save(run, spent + now - begun, is_finished=False)
                saved = now
            if stop.is_wished:
                raise KeyboardInterrupt
            if run.step % 20 == 0:
                bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
        if not is_finished:
            run.measure(steps)
            spent += time.monotonic() - begun
            self._save(run, spent, is_finished=True)
        return RunRecord(
            self.variant, self.seed, round(spent, 3), run.opening, run.curves
        )

    def _restore(self, run: Run) -> tuple[float, bool]:
        """Put the run where its checkpoint is; seconds spent, and whether it ended."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return 0.0, False
        try:
            # On the CPU first: the generators' states belong there.
            kept = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            run.load_state_dict(kept["run"])
        except Exception as error:
            raise RunError(
                f"a checkpoint must be readable, got {self.checkpoint}: {error}; "
                "delete this file, then --resume begins that one run again."
            ) from error
        return kept["seconds"], kept["is_finished"]

    def _save(self, run: Run, seconds: float, *, is_finished: bool) -> None:
        if self.checkpoint is None:
            return
        content = io.BytesIO()
        state = run.state_dict()
        kept = {"run": state, "seconds": seconds, "is_finished": is_finished}
        torch.save(kept, content)
        try:
            atomic_file.write(self.checkpoint, content.getvalue())
        except OSError as error:
            raise RunError(
                "a checkpoint must be written every few seconds, but "
                f"{self.checkpoint} cannot ({error.strerror}); make room, then go on "
                "with --resume: the checkpoint before it is whole."
            ) from error


def _scale(experiment: Experiment, scale: str) -> Scale:
    if scale not in experiment.scales:
        raise RunError(
            f"scale must be one of {', '.join(experiment.scales)}, got {scale!r}."
        )
    return experiment.scales[scale]


def _seeds(scale: Scale, seeds: Sequence[int] | None) -> list[int]:
    chosen = list(scale.seeds if seeds is None else seeds)
    is_whole = all(isinstance(s, int) and s >= 0 for s in chosen)
    if not chosen or not is_whole or len(set(chosen)) < len(chosen):
        raise RunError(
            "seeds must be different whole numbers from 0 on, at least one, got "
            f"{chosen}; try 0 1 2."
        )
    return chosen


def _steps(scale: Scale) -> int:
    steps: int = scale.settings["steps"]
    return steps


def _variants(scale: Scale) -> Mapping[str, Any]:
    variants: Mapping[str, Any] = scale.settings["variants"]
    return variants


def _place(on: torch.device | str, ranks: _Ranks) -> torch.device:
    place = torch.device(on)
    if place.type == "mps":
        raise RunError(
            "the device must have float64, got mps, which has not; take --device cpu."
        )
    if place.type == "cuda" and place.index is None and ranks.count > 1:
        return torch.device("cuda", ranks.local % torch.cuda.device_count())
    return place


def _prepare(
    out: Path,
    folder: Path,
    plan: dict[str, Any],
    started: str,
    is_resumed: bool,
) -> None:
    """Make the folder of the checkpoints, or see that it belongs to this run."""
    plan = json.loads(json.dumps(plan))
    if out.exists():
        raise RunError(
            f"the record must not be there yet, got {out}; name another one with "
            "--out, or delete it."
        )
    if not out.parent.is_dir():
        raise RunError(
            f"--out must be in a folder that exists, got {out}; make {out.parent}."
        )
    if is_resumed:
        if not (folder / PLAN).exists():
            raise RunError(
                f"--resume needs the checkpoints of an unfinished run, got none in "
                f"{folder}; leave --resume out to begin."
            )
        before = json.loads((folder / PLAN).read_text())
        # What the commit is called does not matter where the sources are the same.
        keys = plan.keys() - {"commit", "is_modified"}
        differing = sorted(key for key in keys if plan[key] != before[key])
        if differing:
            raise RunError(
                "--resume must go on with what was begun, but these differ: "
                f"{', '.join(differing)} (see {folder / PLAN}); restore them, or "
                "delete that folder to begin again."
            )
        return
    if folder.exists():
        raise RunError(
            f"an unfinished run must be continued or deleted, got {folder}; add "
            "--resume, or delete that folder."
        )
    try:
        free = shutil.disk_usage(out.parent).free
        if free < FREE_BYTES:
            raise RunError(
                f"at least {FREE_BYTES / 1e6:.0f} MB must be free for checkpoints, "
                f"got {free / 1e6:.0f} MB in {out.parent}; make room."
            )
        folder.mkdir()
        content = json.dumps({**plan, "started": started}, indent=1)
        atomic_file.write(folder / PLAN, content.encode())
    except OSError as error:
        raise RunError(
            f"--out must be in a folder that can be written to, got {out} "
            f"({error.strerror}); take another one."
        ) from error


@contextlib.contextmanager
def _ranks() -> Iterator[_Ranks]:
    """Join the processes of ``torchrun``, if it started this one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield _Ranks()
        return
    # Only records travel between them, so gloo does on GPUs as well.
    distributed.init_process_group("gloo")
    try:
        rank, local = distributed.get_rank(), int(os.environ["LOCAL_RANK"])
        yield _Ranks(rank, count, local)
    finally:
        distributed.destroy_process_group()


def _wait(ranks: _Ranks) -> None:
    if ranks.count > 1:
        distributed.barrier()


def _gather(runs: list[RunRecord], ranks: _Ranks) -> list[list[RunRecord]]:
    """Give every process the runs of all."""
    if ranks.count == 1:
        return [runs]
    gathered: list[list[RunRecord]] = [[] for _ in range(ranks.count)]
    distributed.all_gather_object(gathered, runs)
    return gathered


def _bar(total: int, ranks: _Ranks) -> Any:
    """Progress in steps, with the time left; on a terminal only."""
    return tqdm(total=total, unit="step", disable=True if ranks.rank else None)


def _command(name: str, scale: str, seeds: Sequence[int], ranks: _Ranks) -> str:
    start = "normbook"
    if ranks.count > 1:
        start = f"torchrun --nproc-per-node {ranks.count} -m normbook"
    numbers = " ".join(map(str, seeds))
    return f"{start} run {name} --scale {scale} --seeds {numbers}"


def _hashes(scale: Scale, data: Dataset | None) -> dict[str, dict[str, str]]:
    """SHA-256 of the files, which were compared with it; of the arrays, if embedded."""
    if data is None:
        return {}
    source = SOURCES[scale.data]
    files = {file.name: file.sha256 for file in source.files}
    if not files:
        digest = hashlib.sha256()
        for array in data:
            digest.update(array.tobytes())
        files = {source.package: digest.hexdigest()}
    return {source.name: files}


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in PACKAGES}
    return {**packages, "python": platform.python_version()}


def _code() -> str:
    """SHA-256 over the sources of the package."""
    digest = hashlib.sha256()
    root = Path(normbook.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _commit() -> dict[str, Any]:
    """Commit of the repository, if the sources lie in one."""
    root = Path(normbook.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        is_modified = bool(git("status", "--porcelain", "--", "."))
        return {"commit": git("rev-parse", "HEAD"), "is_modified": is_modified}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "is_modified": False}


def _describe(place: torch.device) -> dict[str, Any]:
    name = platform.machine()
    if place.type == "cuda":
        name = torch.cuda.get_device_name(place)
    return {"type": place.type, "name": name, "threads": torch.get_num_threads()}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _agree(stored: Any, found: Any, tolerance: float) -> bool:
    """Whether two nested lists of numbers are the same up to a relative error.

    null in a record is a number that is not finite.
    """
    if isinstance(found, list):
        return (
            isinstance(stored, list)
            and len(stored) == len(found)
            and all(_agree(a, b, tolerance) for a, b in zip(stored, found, strict=True))
        )
    if stored is None or not math.isfinite(found):
        return stored is None and not math.isfinite(found)
    return math.isclose(stored, found, rel_tol=tolerance, abs_tol=1e-6)
