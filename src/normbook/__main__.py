"""The `normbook` command; `python -m normbook` is the same.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

# Only what every call needs: `normbook --help` shall come at once. The commands
# import the rest.
import argparse
import contextlib
import importlib
import io
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normbook.errors import (
    DataError,
    MissingPackageError,
    OtherProcessError,
    RecordError,
    RunError,
)

if TYPE_CHECKING:
    import torch

    from normbook.data.catalogue import Source
    from normbook.lab.experiment import Experiment, Scale

ALL = "all"
DRAWABLE = 1e300  # beyond, the ends of an axis overflow


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process; return the exit code.

    Examples
    --------
    >>> main(["data", "fetch", "digits"])
    digits: embedded in scikit-learn, nothing to fetch
    0
    """
    if sys.stdout is None:  # `normbook ... >&-`
        _tell("standard output is closed; open it")
        return 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may have any letter
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            options = _parser().parse_args(arguments)
            code: int = options.run(options)
        finally:  # also after --help, which exits
            sys.stdout.flush()
    except KeyboardInterrupt:
        _tell("interrupted")
        return 130
    except OtherProcessError:  # that one has said why
        return 1
    except (DataError, MissingPackageError, RecordError, RunError) as error:
        _tell(error)
        return 1
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # `normbook ... | head`
            _tell(error)  # the disk that the output goes to is full
        _give_up_output()
        return 1
    return code


def _tell(message: object) -> None:
    print(f"normbook: {message}", file=sys.stderr)


def _give_up_output() -> None:
    """Drop what is not yet written, so that Python does not try again at its end."""
    with contextlib.suppress(OSError):  # a stream of a notebook or a test has no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="normbook",
        description="Data, experiments and checks for the book Normalization in Deep "
        "Learning.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version and exit"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    data = commands.add_parser("data", help="list, fetch and verify the data sets")
    actions = data.add_subparsers(metavar="ACTION", required=True)
    _command(actions, _list, "show the data sets and where they are")
    for run, count, text in (
        (_fetch, "+", "download data sets into the cache"),
        (_verify, "*", "check files against their SHA-256"),
    ):
        action = _command(actions, run, text)
        action.add_argument("names", metavar="NAME", nargs=count, type=_sources)
        action.epilog = (
            f"NAME is a data set, or {ALL} for all of them; normbook data list shows "
            "their sizes."
        )

    _command(commands, _experiments, "show the experiments")

    command = _command(commands, _run, "run an experiment and keep its record")
    command.epilog = (
        "After Ctrl-C, or if the machine fails, the same command with --resume goes "
        "on. Under torchrun the processes share the runs, or with --data-parallel "
        "every batch of every run."
    )
    option = command.add_argument
    option("name", metavar="NAME", type=_experiment)
    option("--scale", default="live", help="live (seconds, the default), paper, ...")
    option(
        "--seeds", metavar="N", nargs="+", type=int, help="instead of the usual ones"
    )
    option(
        "--device", help="cpu, cuda or cuda:NUMBER; by default CUDA where there is one"
    )
    text = "the record, by default NAME.json here; checkpoints go into FILE.partial"
    option("--out", metavar="FILE", type=Path, help=text)
    option("--resume", action="store_true", help="go on from the last checkpoints")
    text = "under torchrun: the processes share every batch, not the runs"
    option("--data-parallel", action="store_true", help=text)
    text = "with --data-parallel: normalize each process's part of a batch by itself"
    option("--local-statistics", action="store_true", help=text)
    text = "with --data-parallel: wait so long for other processes, by default 600"
    option("--timeout", metavar="SECONDS", type=float, help=text)
    text = "show the configuration and the estimated time, and run nothing"
    option("--dry-run", action="store_true", help=text)

    command = _command(commands, _plot, "draw a record beside the published points")
    option = command.add_argument
    option("name", metavar="NAME", type=_experiment)
    option("--record", metavar="FILE", type=Path, help="by default NAME.json here")
    text = "where the pictures go, by default here"
    option("--out", metavar="FOLDER", type=Path, default=Path(), help=text)

    command = _command(commands, _audit, "look at every norm of a model")
    command.epilog = (
        "FACTORY is a function without arguments, found from here, that returns "
        "(model, x): a torch.nn.Module and a batch of its inputs. Exit code 1: "
        "something is wrong, or a risk."
    )
    command.add_argument("factory", metavar="MODULE:FACTORY", type=_factory)
    command.add_argument("--json", action="store_true", help="print JSON")

    text = "show a hint to an exercise of the book"
    command = _command(commands, _exercise, text)
    command.add_argument("name", metavar="NAME", help="its label without ex-")
    command.add_argument("--hint", metavar="N", type=int, default=1, help="which one")

    _command(commands, _doctor, "show versions, device and data, and what is missing")
    return parser


def _command(to: Any, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
    """Add the command that has the name of the function that runs it."""
    name = run.__name__.removeprefix("_")
    command: argparse.ArgumentParser = to.add_parser(name, help=text)
    command.set_defaults(run=run)
    return command


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from normbook.doctor import version

        print(f"normbook {version('normbook') or '(not installed)'}")
        parser.exit()


def _sources(name: str) -> list[Source]:
    """Return the data sets that a NAME on the command line stands for."""
    from normbook.data.catalogue import SOURCES

    if name == ALL:
        return list(SOURCES.values())
    key = name.lower().replace("_", "-")
    if key not in SOURCES:
        raise _unknown(name, (*SOURCES, ALL), "data list")
    return [SOURCES[key]]


def _unknown(
    name: str, known: Iterable[str], listing: str
) -> argparse.ArgumentTypeError:
    names = ", ".join(known)
    return argparse.ArgumentTypeError(
        f"must be one of {names}, got {name!r}; see: normbook {listing}"
    )


def _named(options: argparse.Namespace) -> list[Source]:
    """Return the data sets that were named, each once."""
    sources = [source for names in options.names for source in names]
    return list({source.name: source for source in sources}.values())


def _list(_: argparse.Namespace) -> int:
    from normbook.data.catalogue import SOURCES
    from normbook.data.files import whereabouts

    rows = [("name", "size", "licence", "where")]
    for source in SOURCES.values():
        size = _megabytes(source.size) if source.files else "embedded"
        rows.append((source.name, size, source.licence, whereabouts(source)[1]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, size, licence, where in rows:
        print(
            f"{name:{widths[0]}}  {size:>{widths[1]}}  {licence:{widths[2]}}  {where}"
        )
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from normbook.data.files import fetch

    code = 0
    for source in _named(options):
        if not source.files:
            print(f"{source.name}: embedded in {source.package}, nothing to fetch")
            continue
        try:
            paths = fetch(source)
        except DataError as error:
            _tell(error)
            code = 1
            continue
        folders = ", ".join(dict.fromkeys(str(path.parent) for path in paths))
        print(
            f"{source.name}: {len(paths)} file{'s' * (len(paths) > 1)}, "
            f"{_megabytes(source.size)}, verified, in {folders}"
        )
        print(f"  licence  {source.licence}")
        print(f"  cite     {source.citation}")
    return code


def _verify(options: argparse.Namespace) -> int:
    """Check each copy; a data set that is wholly absent fails only if named."""
    from normbook.data.catalogue import SOURCES
    from normbook.data.files import copies

    named = _named(options)
    is_failed = is_forbidden = False
    for source in named or SOURCES.values():
        if not source.files:
            print(f"embedded  {source.name} in {source.package}")
            continue
        missing = []
        for file in source.files:
            present = [c for c in copies(source, file) if c.content is not None]
            for copy in present:
                if copy.is_good:
                    print(f"ok        {copy.path}")
                elif copy.is_permitted:
                    print(f"DIFFERS   {copy.path}: {copy.fault}")
                    is_failed = True
                else:
                    print(f"FORBIDDEN {copy.path}: {copy.fault}")
                    is_forbidden = True
            if not present:
                missing.append(file)
        for file in missing:
            print(f"missing   {source.name}/{file.name}")
        is_partial = len(missing) < len(source.files)
        is_failed |= bool(missing) and (is_partial or bool(named))
    if is_failed:
        _tell(
            "files differ or are missing; normbook data fetch NAME gets those of the "
            "cache, those in NORMBOOK_DATA are yours to replace"
        )
    if is_forbidden:
        _tell(
            "files may not be read; change the permissions of the files and of the "
            "folders that hold them"
        )
    return int(is_failed or is_forbidden)


def _experiment(name: str) -> Experiment:
    from normbook.experiments.catalogue import EXPERIMENTS

    key = name.replace("-", "_")
    if key not in EXPERIMENTS:
        raise _unknown(name, EXPERIMENTS, "experiments")
    return EXPERIMENTS[key]


def _experiments(_: argparse.Namespace) -> int:
    from normbook.experiments.catalogue import EXPERIMENTS
    from normbook.lab import tuning

    for experiment in EXPERIMENTS.values():
        print(f"{experiment.name}: {experiment.title}")
        print(f"  after {experiment.source}")
        for name, scale in experiment.scales.items():
            lengths = _lengths(scale)
            runs = sum(tuning.at_least(scale.settings, scale.seeds).values())
            steps = " to ".join(map(str, sorted({min(lengths), max(lengths)})))
            print(f"  --scale {name:7}  {runs} runs of {steps} steps; {scale.about}")
    return 0


def _lengths(scale: Scale) -> list[int]:
    """Steps of a run of each variant."""
    from normbook.lab.runner import variant_settings

    variants = scale.settings["variants"]
    return [variant_settings(scale, variant)["steps"] for variant in variants]


def _run(options: argparse.Namespace) -> int:
    from normbook import device
    from normbook.lab import ranks, runner

    out = options.out or Path(f"{options.name.name}.json")
    choices: dict[str, Any] = {"seeds": options.seeds, "out": out}
    choices["is_resumed"] = options.resume
    if options.data_parallel:
        choices["parallel"] = "local batches" if options.local_statistics else "batches"
        if options.timeout is not None:
            choices["timeout"] = options.timeout
    elif options.local_statistics or options.timeout is not None:
        _tell("--local-statistics and --timeout need --data-parallel")
        return 2
    try:
        choices["on"] = runner.pick_device(options.device)
        if choices["on"].type == "cuda":
            device.make_deterministic()
        if options.dry_run:
            seeds = runner.check(options.name, options.scale, **choices)
            _show_plan(options, seeds, choices["on"])
            return 0
        with _ended_like_ctrl_c():
            record = runner.run(options.name, options.scale, **choices)
    except KeyboardInterrupt:
        if ranks.is_first():
            folder = f"{out}.partial"
            way_on = f"the same command with --resume goes on from {folder}"
            state = way_on if Path(folder).exists() else "nothing was begun"
            _tell(f"interrupted; {state}")
        return 130
    if ranks.is_first():
        print(f"{out}: {len(record.runs)} runs in {_duration(record.wall_seconds)}")
    return 0


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let the signal to end, which torchrun and batch systems send, act like Ctrl-C."""
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def _show_plan(
    options: argparse.Namespace, seeds: Sequence[int], place: torch.device
) -> None:
    from normbook.data.catalogue import SOURCES
    from normbook.data.files import whereabouts
    from normbook.lab import ranks, runner, tuning

    experiment = options.name
    scale = experiment.scales[options.scale]
    is_here, where = True, ""
    if scale.data:  # nothing is downloaded for a guess
        is_here, where = whereabouts(SOURCES[scale.data])
    if not ranks.is_first():
        return
    print(f"{experiment.name}, --scale {options.scale}: {scale.about}")
    for key, value in scale.settings.items():
        if key != "variants":
            print(f"  {key} = {value}")
    print(f"  seeds = {' '.join(map(str, seeds))}, device = {place}")
    if (count := ranks.Ranks.started().count) > 1:
        shared = "every batch" if options.data_parallel else "the runs"
        own = ", each with statistics of its own" if options.local_statistics else ""
        print(f"  {count} processes share {shared}{own}")
    seconds = {}
    if is_here:
        seconds = runner.estimate(experiment, options.scale, on=place)
    for variant, settings in scale.settings["variants"].items():
        pairs = ", ".join(f"{k} = {v}" for k, v in settings.items())
        time = f"; about {_duration(seconds[variant])} a run" if is_here else ""
        print(f"  {variant}: {pairs}{time}")
    # Before a grid is extended, if there is one.
    planned = tuning.at_least(scale.settings, seeds)
    runs = sum(planned.values())
    lengths = dict(zip(planned, _lengths(scale), strict=True))
    steps = sum(planned[v] * lengths[v] for v in planned)
    spent = sum(planned[v] * seconds.get(v, 0.0) for v in planned)
    time = f"about {_duration(spent)} with one process"
    if not is_here:
        time = f"time unknown without the data set {scale.data} ({where})"
    least = "at least " if runs > len(planned) * len(seeds) else ""
    print(f"{least}{runs} runs, {steps} steps, {time}")


def _plot(options: argparse.Namespace) -> int:
    from normbook.figures import use_style
    from normbook.lab import record

    experiment = options.name
    path = options.record or Path(f"{experiment.name}.json")
    if not options.out.is_dir():
        raise RecordError(
            f"--out must be a folder that exists, got {options.out}; make it."
        )
    try:
        found = record.load(path)
    except FileNotFoundError:
        raise RecordError(
            f"the record must be a file, but there is no {path}; make it with normbook "
            f"run {experiment.name}, or name another one with --record"
        ) from None
    except OSError as error:
        raise RecordError(str(error)) from error
    if found.name != experiment.name:
        raise RecordError(
            f"the record must be of {experiment.name}, got one of {found.name} in "
            f"{path}; give another --record."
        )
    largest = _largest([[*run.curves.values(), run.opening] for run in found.runs])
    if largest > DRAWABLE:
        raise RecordError(
            f"values must be at most {DRAWABLE:g} to be drawn, got {largest:g} in "
            f"{path}; leave out the run that diverged."
        )
    use_style()
    for name, figure in experiment.figures(found).items():
        picture = options.out / f"{experiment.name}-{name}.png"
        try:
            figure.savefig(picture, dpi=150)
        except OSError as error:  # not of the output: that is given up
            raise RecordError(str(error)) from error
        print(picture)
    return 0


def _largest(values: Any) -> float:
    """Return the largest size of a finite number, however deep in lists it stands."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list):
        return max(map(_largest, values), default=0.0)
    is_number = isinstance(values, int | float) and math.isfinite(values)
    return abs(values) if is_number else 0.0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _factory(name: str) -> Callable[[], Any]:
    """Import what makes a model; the module may lie in the present folder."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise argparse.ArgumentTypeError(f"must be MODULE:FACTORY, got {name!r}")
    sys.path.insert(0, "")
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{name!r} is not found: {error}") from None
    return found


def _audit(options: argparse.Namespace) -> int:
    from normbook.checks.model.audit import audit

    made = options.factory()
    if not (isinstance(made, tuple) and len(made) == 2):
        _tell(f"the factory must return (model, x), got {type(made).__name__}")
        return 2
    try:
        report = audit(*made, quiet=True)
    except (TypeError, ValueError) as error:
        _tell(error)
        return 2
    print(report.to_json() if options.json else report)
    return int(not report.passed)


def _exercise(options: argparse.Namespace) -> int:
    from normbook import exercises

    try:
        print(exercises.hint(options.name, options.hint))
    except ValueError as error:
        _tell(error)
        return 2
    return 0


def _doctor(_: argparse.Namespace) -> int:
    from normbook.doctor import examine

    report = examine()
    print("\n".join(report.lines))
    return 0 if report.can_run else 1


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
