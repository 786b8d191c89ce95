"""Run an experiment: with progress and checkpoints, on one process or on many."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from normbook import device
from normbook.data import Dataset, babi, cifar10, digits, mnist, strokes, vowels
from normbook.data.sequences import Sequences
from normbook.errors import OtherProcessError, RunError
from normbook.extra import of_the_book
from normbook.lab import provenance, tuning
from normbook.lab.checkpoints import Checkpoints
from normbook.lab.data_parallel import share_batches
from normbook.lab.experiment import OPENING, Experiment, Run, Scale
from normbook.lab.ranks import PATIENCE, Ranks, Sharing, join
from normbook.lab.record import Record, RunRecord
from normbook.lab.tuning import Planned, settings_of

with of_the_book():
    from tqdm import tqdm

CHECKPOINT_SECONDS = 20.0
# So many starts are moved, one after the other, to see what rounding comes to. Where a
# ReLU opens for one start and not for the next, about one in three shows it.
MOVED_STARTS = 6
TIMEOUT_SECONDS = 600.0  # that processes which share every batch wait for each other


class _Precision(NamedTuple):
    """How far another machine repeats a run, where each sum has another order."""

    losses: tuple[float, ...]  # relative, of each step
    measurements: float  # relative to the largest of the numbers measured together
    zero: float  # what is 0 but for rounding
    start: float  # what a start is moved by, relative to each weight


# Seen with other instruction sets and numbers of threads: in float64 1e-6 after all
# steps, in float32 5e-7 in the first loss and 3e-5 in the twentieth. Moved starts
# decide where a ReLU opens for the one and not for the other (5e-4), and where an error
# grows at each step: starting weights, drawn in float32 for float64 too, have another
# last digit on some CPUs. An unsteady network, deep and with batch norm, multiplies an
# error by ten or more at each step: 3e-4 in the second loss, 2e-2 in the measurements
# before it, and hardly a digit in common in the tenth loss.
PRECISIONS = {
    "float64": _Precision((1e-5,) * OPENING, 1e-5, 1e-9, 1e-7),
    "float32": _Precision((1e-5, *(3e-4,) * (OPENING - 1)), 1e-2, 1e-6, 1e-6),
    "float32, unsteady": _Precision((1e-5, 2e-3), 1e-2, 1e-6, 1e-6),
}
LOADERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "digits": digits.load,
    "mnist": mnist.load,
    "fashion-mnist": mnist.load_fashion,
    "cifar-10": cifar10.load,
    "japanese-vowels": vowels.load,
    "babi": babi.load,
    "omniglot-strokes": strokes.load,
}


def run(
    experiment: Experiment,
    scale: str = "live",
    *,
    seeds: Sequence[int] | None = None,
    on: torch.device | str = "cpu",
    out: Path | None = None,
    is_resumed: bool = False,
    parallel: Sharing = "runs",
    timeout: float = TIMEOUT_SECONDS,
) -> Record:
    """Run every variant of an experiment with every seed, by default of the scale.

    The record goes to ``out``, the checkpoints of an unfinished run to ``OUT.partial``
    beside it; nothing is written without. Processes that share the runs need it on a
    disk that they share, too; else the first one writes alone.

    Where settings are tuned, the runs of the grid come first, and those with the seeds
    at the points that were chosen.

    Processes of ``torchrun`` share the runs, with the numbers that each would give
    alone. With "batches" all take part in every update, with the statistics of the
    whole batch: the same up to rounding. With "local batches" these are of each part:
    the result is another one, and the running statistics of the first count. Each
    process returns the whole record, takes a GPU of its own on ``"cuda"``, and waits
    ``timeout`` seconds for the others if they share the batches.

    RunError if an option is wrong, the record is there already, the checkpoints do not
    fit or are damaged, there is no space, a best point lies at the limit of its grid,
    or the processes cannot share the work;
    OtherProcessError if another process has failed; DataError if the data set is
    nowhere to be had; KeyboardInterrupt after Ctrl-C, with the update under way saved.
    """
    task = _Task(experiment, scale, seeds, on, out, parallel, timeout)
    chosen, plan, kept = task.scale, task.plan, task.kept
    with join(**task.joining) as ranks:
        if kept is not None:
            earlier = ranks.first(lambda: kept.check(is_resumed=is_resumed))
            if earlier is not None:  # it was killed after its last step
                ranks.first(lambda: kept.tidy(earlier))
                return earlier
        data = load_data(chosen)
        hashes = provenance.data_hashes(chosen.data, data)
        _check_same(ranks, {"code": plan["code"], "data": hashes})
        started = provenance.now() if kept is None else ranks.first(kept.open)
        # Who takes part in one run: all, or each process in its own.
        team = Ranks() if parallel == "runs" else ranks
        done: list[RunRecord] = []
        spent = 0.0
        # Progress is shown by one process, on a terminal only.
        bar = tqdm(total=0, unit="step", disable=True if ranks.rank else None)
        with _stop() as is_wished, bar:
            # What is tuned comes in several rounds.
            while todo := tuning.planned(chosen.settings, plan["seeds"], done):
                mine = ranks.share(todo) if parallel == "runs" else todo
                bar.total += sum(
                    variant_settings(chosen, of.variant)["steps"] for of in mine
                )
                finished = list[RunRecord]()
                for of in mine:
                    if team.any(is_wished()):
                        raise KeyboardInterrupt
                    finished.append(task.train(of, data, team, is_wished, bar))
                everything = ranks.gather(team.first(finished.copy))
                found = {Planned.of(r).key: r for part in everything for r in part}
                done += [found[of.key] for of in todo]
                spent += max(
                    sum(run.wall_seconds for run in part) for part in everything
                )
        reported = {(run.variant, run.seed): run for run in done}
        record = Record(
            **{**plan, "device": {**plan["device"], "ranks": ranks.count}},
            command=provenance.command(
                experiment.name, scale, plan["seeds"], task.place, ranks, parallel
            ),
            data=hashes,
            started=started,
            wall_seconds=round(spent, 3),
            runs=[reported[v, s] for v in task.variants for s in plan["seeds"]],
            tuning=[run for run in done if run.seed not in plan["seeds"]],
        )
        if kept is not None:
            ranks.first(lambda: kept.close(record))
    return record


def check(
    experiment: Experiment,
    scale: str = "live",
    *,
    is_resumed: bool = False,
    **options: Any,
) -> list[int]:
    """Refuse what :func:`run` would, without a download or a file; return the seeds."""
    task = _Task(experiment, scale, **options)
    if task.kept is not None:
        task.kept.check(is_resumed=is_resumed)
    return list(task.plan["seeds"])


def estimate(
    experiment: Experiment, scale: str, *, on: torch.device | str = "cpu"
) -> dict[str, float]:
    """Estimate the seconds a run of each variant takes; errors as in :func:`run`.

    Of what is tuned, at the first point of its grid.
    """
    chosen, place = _scale(experiment, scale), _place(on)
    data = load_data(chosen)
    seconds = {}
    for variant in chosen.settings["variants"]:
        point = tuning.first_point(chosen.settings, variant)
        settings = variant_settings(chosen, variant) | point
        run = experiment.begin(settings, 0, data, place)
        steps, measuring = settings["steps"], 0.0
        for every, measure in run.measurements.values():
            begun = time.perf_counter()
            measure(run)
            measuring += (steps // every + 1) * (time.perf_counter() - begun)
        for _ in range(3):  # the first ones are slow
            run.update()
        begun, updates = time.perf_counter(), 0
        while time.perf_counter() - begun < 0.5:
            run.update()
            updates += 1
        seconds[variant] = measuring + steps * (time.perf_counter() - begun) / updates
    return seconds


def replay(
    record: Record,
    experiment: Experiment,
    data: Dataset | Sequences | None,
    *,
    on: torch.device | str = "cpu",
    steps: int | None = None,
    at_most: int = OPENING,
    is_measured: bool = True,
) -> list[str]:
    """Repeat the first steps of each run of a record; list what differs.

    What may be off is in ``PRECISIONS``; with ``steps`` all losses must be as close as
    the first. Without, what comes after the first update may also be off by ten times
    what moving the start has made of it by that step; where the experiment is not
    steady, this holds for measurements alone, and from the start.

    Of the 20 ``steps`` that a record keeps one by one, another machine repeats all, or
    2 where the experiment is not steady: so many by default, and not more than
    ``at_most``. On the machine of the record all agree. The measurements that fall into
    these steps are repeated too, unless ``is_measured`` is false. A record of another
    experiment, or of fewer ``steps``, is a RunError.
    """
    if record.name != experiment.name:
        raise RunError(
            f"the record must be of {experiment.name}, got one of {record.name}; give "
            "the experiment that it names."
        )
    chosen = _scale(experiment, record.scale)
    # As on the disk, where JSON has turned tuples into lists.
    before, now = (json.loads(json.dumps(of.settings)) for of in (record, chosen))
    if before != now:
        return ["the settings are no longer those of the record"]
    lengths = [variant_settings(chosen, v)["steps"] for v in record.variants]
    longest = min([OPENING, *lengths])
    if steps is not None and not 1 <= steps <= longest:
        raise RunError(
            f"steps must lie in 1..{longest}, the losses in the record, got {steps}."
        )
    differences = []
    for kept in record.runs + record.tuning:
        settings = variant_settings(chosen, kept.variant) | dict(kept.tuned)
        name = settings["dtype"]
        if name == "float32" and not experiment.is_steady:
            name += ", unsteady"
        precision = PRECISIONS[name]
        losses = precision.losses[: min(longest, at_most)]
        if steps is not None:
            losses = precision.losses[:1] * steps
        last = settings["steps"] if is_measured else None

        begin = partial(experiment.begin, settings, kept.seed, data, torch.device(on))
        run, moved = _repeat(begin(), len(losses), last), list[Run]()
        differ = partial(_differ, kept, run, losses, precision, experiment.is_steady)
        # What moved starts never excuse: other starts, and losses that are not steady.
        is_same_start = _close(kept.opening[0], run.opening[0], losses[0], 0)
        can_excuse = is_same_start and (experiment.is_steady or is_measured)
        tries = MOVED_STARTS if steps is None and can_excuse else 0
        while (quantities := differ(moved)) and len(moved) < tries:
            start = _moved(begin(), precision.start, seed=len(moved))
            # What agrees needs no excuse.
            names = {quantity.partition(" / ")[0] for quantity in quantities}
            start.measurements = {
                k: m for k, m in start.measurements.items() if k in names
            }
            moved.append(_repeat(start, len(losses), last))
        differences += [f"{kept.variant}, seed {kept.seed}: {q}" for q in quantities]
    return differences


def variant_settings(scale: Scale, variant: str) -> dict[str, Any]:
    """Return the settings of one variant: the common ones, and its own over them."""
    return settings_of(scale.settings, variant)


def load_data(scale: Scale) -> Any:
    """Load the data set of a scale, None where it has none; DataError if it cannot."""
    return LOADERS[scale.data]() if scale.data else None


class _Task:
    """What is to be run, checked but not begun."""

    def __init__(
        self,
        experiment: Experiment,
        scale: str,
        seeds: Sequence[int] | None = None,
        on: torch.device | str = "cpu",
        out: Path | None = None,
        parallel: Sharing = "runs",
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.experiment, self.parallel = experiment, parallel
        self.scale = _scale(experiment, scale)
        seeds = list(self.scale.seeds if seeds is None else seeds)
        is_whole = all(type(s) is int and s >= 0 for s in seeds)  # True is an int too
        if not seeds or not is_whole or len(set(seeds)) < len(seeds):
            raise RunError(
                "seeds must be different whole numbers from 0 on, at least one, got "
                f"{seeds}; try 0 1 2."
            )
        tuning.check(self.scale.settings, seeds)
        self.place, self.joining = _together(on, parallel, timeout)
        origin = provenance.origin(self.place)
        origin["device"]["parallel"] = parallel
        if parallel != "runs":  # the number of shards changes the last bits
            origin["device"]["ranks"] = Ranks.started().count
        self.plan: dict[str, Any] = {  # a part of the record
            "name": experiment.name,
            "scale": scale,
            "settings": self.scale.settings,
            "seeds": seeds,
            **origin,
        }
        self.variants = list(self.scale.settings["variants"])
        self.kept = None if out is None else Checkpoints(out, self.plan)

    def train(
        self,
        of: Planned,
        data: Dataset | Sequences | None,
        team: Ranks,
        is_wished: Callable[[], bool],
        bar: Any,
    ) -> RunRecord:
        """Do one run, from its checkpoint or from the start, to its end."""
        kept = self.kept
        settings = variant_settings(self.scale, of.variant) | of.tuned
        bar.set_description(f"{of.title}, seed {of.seed}")
        run = self.experiment.begin(settings, of.seed, data, self.place)
        share_batches(run, team, has_local_statistics=self.parallel == "local batches")
        spent, is_finished = 0.0, False
        if kept is not None:
            spent, is_finished = kept.restore(run, of, team)
        bar.update(run.step)
        begun = saved = time.monotonic()

        def save(*, is_finished: bool) -> float:
            seconds = spent + time.monotonic() - begun
            if kept is not None and team.rank == 0:
                kept.save(run, of, seconds, is_finished=is_finished)
            return seconds

        while run.step < settings["steps"]:
            run.measure(settings["steps"])
            loss = run.update()
            bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
            bar.update()
            is_ending = team.any(is_wished())
            if is_ending or time.monotonic() - saved > CHECKPOINT_SECONDS:
                save(is_finished=False)
                saved = time.monotonic()
            if is_ending:
                raise KeyboardInterrupt
        if not is_finished:
            run.measure(settings["steps"])
            spent = save(is_finished=True)
        seconds = max(round(spent, 3), 0.001)
        return RunRecord(
            of.variant, of.seed, seconds, run.opening, run.curves, of.tuned
        )


@contextlib.contextmanager
def _stop() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C, and torchrun's signal to end, into a wish; a second ends at once."""
    wishes: list[int] = []

    def wish(number: int, _: object) -> None:
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)

    old = {}
    with contextlib.suppress(ValueError):  # not the main thread: no signals here
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, wish)
    try:
        yield lambda: bool(wishes)
    finally:
        for number, handler in old.items():
            if handler is not None:  # one that Python knows
                signal.signal(number, handler)


def _scale(experiment: Experiment, scale: str) -> Scale:
    if scale not in experiment.scales:
        raise RunError(
            f"scale must be one of {', '.join(experiment.scales)}, got {scale!r}."
        )
    return experiment.scales[scale]


def _together(
    on: torch.device | str, parallel: Sharing, timeout: float
) -> tuple[torch.device, dict[str, Any]]:
    """Find the device of this process, and how it joins the others."""
    place, ranks = _place(on), Ranks.started()
    if parallel == "runs":
        return place, {"timeout": PATIENCE}
    if ranks.count == 1:
        raise RunError(
            "--data-parallel needs several processes, got one; start them with "
            "torchrun --nproc-per-node NUMBER -m normbook run ..."
        )
    if not 0 < timeout < PATIENCE.total_seconds():
        raise RunError(
            f"--timeout must be a number of seconds, above 0, got {timeout:g}; "
            f"{TIMEOUT_SECONDS:g} is usual."
        )
    if place.type == "cuda":
        gpus = torch.cuda.device_count()
        if place != _own_gpu(ranks) or ranks.local_count > gpus:
            raise RunError(
                "--data-parallel needs a GPU for each process, got "
                f"{ranks.local_count} processes for {gpus} and --device {on}; start "
                "fewer, with --device cuda."
            )
        torch.cuda.set_device(place)
    return place, {"tensors_on": place.type, "timeout": timedelta(seconds=timeout)}


def pick_device(on: torch.device | str | None) -> torch.device:
    """Pick a device that has float64, by default the best; RunError without one."""
    try:
        place = device.pick(None if on is None else str(on))
    except (ValueError, RuntimeError) as error:
        raise RunError(str(error)) from error
    if place.type == "mps":
        raise RunError(
            "the device must have float64, got mps, which has not; take --device cpu."
        )
    return place


def _place(on: torch.device | str) -> torch.device:
    """Pick the device of this process."""
    place, ranks = pick_device(on), Ranks.started()
    if place.type == "cuda" and place.index is None and ranks.count > 1:
        return _own_gpu(ranks)
    return place


def _own_gpu(ranks: Ranks) -> torch.device:
    return torch.device("cuda", ranks.local % torch.cuda.device_count())


def _check_same(ranks: Ranks, here: Mapping[str, Any]) -> None:
    """Refuse to share work between processes with other code or data."""
    everywhere = ranks.gather(here)
    differing = [
        f"{key} in process {rank}"
        for rank, other in enumerate(everywhere)
        for key in here
        if other[key] != everywhere[0][key]
    ]
    if differing and ranks.rank:
        raise OtherProcessError("the first process says what is wrong.")
    if differing:
        raise RunError(
            "all processes must have the same code and data, but there are others than "
            f"in the first: {', '.join(differing)}; install the same on all machines."
        )


def _repeat(run: Run, count: int, last: int | None) -> Run:
    for _ in range(count):
        if last is not None:
            run.measure(last)
        run.update()
    return run


def _differ(
    kept: RunRecord,
    run: Run,
    losses: Sequence[float],
    precision: _Precision,
    is_steady: bool,
    moved: Sequence[Run],
) -> list[str]:
    """Name what is off by more than rounding, and than the moved starts make it."""
    begins = int(is_steady)  # the first step at which they count

    def agree(
        stored: Sequence[Any],
        values: Sequence[Any],
        others: Iterable[Sequence[Any]],
        steps: Iterable[int],
        relative: Iterable[float],
    ) -> bool:
        free = 0.0  # ten times the most that a moved start has made of it
        rows = zip(stored, values, steps, relative, *others, strict=False)
        for kept_value, value, step, allowed, *elsewhere in rows:
            if step >= begins and not isinstance(value, str):
                free = max([free, *(10 * _apart(other, value) for other in elsewhere)])
            if not _close(kept_value, value, allowed, precision.zero + free):
                return False
        return len(stored) >= len(values)

    quantities = []
    others = [other.opening for other in moved if is_steady]
    if not agree(kept.opening, run.opening, others, range(OPENING), losses):
        quantities.append(f"losses of the first {len(losses)} steps")
    for name, curve in run.curves.items():
        for quantity, values in curve.items():
            stored = kept.curves.get(name, {}).get(quantity, [])
            others = [m.curves[name][quantity] for m in moved if name in m.curves]
            relative = [precision.measurements] * len(values)
            if not agree(stored, values, others, curve["step"], relative):
                quantities.append(f"{name} / {quantity}")
    return quantities


def _moved(run: Run, relative: float, seed: int) -> Run:
    """Move each weight by a few times what float32 rounds off."""
    rand = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in run.model.parameters():
            draw = torch.randn(weight.shape, generator=rand)
            weight.mul_(1 + relative * draw.to(weight))
    return run


def _apart(a: Any, b: Any) -> float:
    apart = np.array(a, float) - np.array(b, float)
    return float(np.abs(apart[np.isfinite(apart)]).max(initial=0.0))


def _close(stored: Any, repeated: Any, relative: float, zero: float) -> bool:
    if isinstance(repeated, str):
        return bool(stored == repeated)
    try:  # null in a record is a number that is not finite
        a, b = (np.array(value, dtype=np.float64) for value in (stored, repeated))
    except ValueError:  # rows of several lengths
        return False
    is_finite = np.isfinite(b)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), is_finite):
        return False
    a, b = a[is_finite], b[is_finite]
    allowed = relative * np.abs(b).max(initial=0.0) + zero
    return bool((np.abs(a - b) <= allowed).all())
