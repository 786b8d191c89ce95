"""What a run leaves behind: its curves, and all that is needed to repeat it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normbook import atomic_file
from normbook.errors import RecordError, RunError
from normbook.extra import of_the_book
from normbook.lab import tuning
from normbook.lab.tuning import rounded, settings_of

with of_the_book():
    import fastjsonschema

# A list of numbers, each on a line of its own.
NUMBERS = re.compile(r"\[\n((?: *(?:null|[-\d]).*\n)+) *\]")


@dataclass(frozen=True)
class RunRecord:
    """One variant with one seed.

    ``opening`` is the loss (nats) at each of the first updates. In ``curves`` each
    measurement, and "training" for the averages of the objective, has a list by
    quantity; "step" counts the updates before. ``tuned`` are settings that were put
    over those of the variant, see :mod:`normbook.lab.tuning`.
    """

    variant: str
    seed: int
    wall_seconds: float  # measurements included
    opening: list[float]
    curves: Mapping[str, Mapping[str, list[Any]]]
    tuned: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """An experiment that was run, with where it comes from.

    The ``command`` repeats it. ``data`` has the SHA-256 of each file of a data set,
    ``code`` is that over the sources of the package; ``is_modified`` says whether they
    differed from the ``commit``. The ``device`` has "type", "name", "threads" of one
    process, "ranks" (processes) and "parallel", what these shared; older records lack
    it: "runs". The ``tuning`` has the runs by which settings were chosen; no other
    values come from them. A variant, measurement or quantity that it lacks is a
    RecordError.
    """

    name: str
    scale: str
    command: str
    settings: Mapping[str, Any]  # the whole configuration
    seeds: list[int]
    data: Mapping[str, Mapping[str, str]]
    versions: Mapping[str, str]  # of packages
    code: str
    commit: str | None  # of the repository, if there is one
    is_modified: bool
    device: Mapping[str, Any]
    started: str  # date and time (UTC)
    wall_seconds: float  # interruptions left out
    runs: list[RunRecord]  # every variant with every seed
    tuning: list[RunRecord] = field(default_factory=list)  # in the order of the grid

    @property
    def variants(self) -> list[str]:
        """Names of the variants, in order."""
        return list(dict.fromkeys(run.variant for run in self.runs))

    def chosen(self, variant: str) -> Mapping[str, Any]:
        """Return the settings of a variant that were tuned, at their best."""
        return next(run.tuned for run in self.runs if run.variant == variant)

    def grid(self, variant: str) -> dict[str, NDArray[np.float64]]:
        """Return the points of a variant that were tried, in their order, and scores.

        Each setting has its values, (P,); "score" what the criterion gave each point
        with each seed of the tuning, (P, S): less is better.
        """
        of = settings_of(self.settings, variant)["tuning"]
        runs = [run for run in self.tuning if run.variant == variant]
        scores = np.array([tuning.score(of, run) for run in runs])
        firsts = runs[:: len(of["seeds"])]
        points = {n: np.array([run.tuned[n] for run in firsts]) for n in of["grid"]}
        return {**points, "score": scores.reshape(len(firsts), -1)}

    def require(self, *names: str) -> None:
        """Refuse to be taken for the record of an experiment of another name."""
        if self.name not in names:
            raise RecordError(
                f"the record must be of {' or '.join(names)}, got one of {self.name}; "
                "draw it with the figures of that experiment."
            )

    def steps(self, measurement: str, variant: str | None = None) -> NDArray[np.int64]:
        """Return the steps of a measurement, (T,); of the first variant by default."""
        name = self.variants[0] if variant is None else variant
        return np.array(self._columns(name, measurement, "step")[0], dtype=np.int64)

    def first_steps(
        self, variant: str, measurement: str, is_there: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return the first step of each seed where ``is_there``, (S, T), else NaN."""
        steps = self.steps(measurement, variant).astype(np.float64)
        return np.where(is_there.any(1), steps[is_there.argmax(1)], np.nan)

    def values(
        self, variant: str, measurement: str, quantity: str
    ) -> NDArray[np.float64]:
        """Return a quantity, (S, T, ...) for S seeds; NaN where it was not finite."""
        columns = self._columns(variant, measurement, quantity)
        try:
            return np.array(columns, dtype=np.float64)
        except ValueError:
            raise RecordError(
                f"{quantity} of {measurement} must be numbers, got text; read it with "
                "texts()."
            ) from None

    def texts(self, variant: str, measurement: str, quantity: str) -> list[list[str]]:
        """Return what was recorded as text: for each seed a list over time."""
        return self._columns(variant, measurement, quantity)

    def _columns(
        self, variant: str, measurement: str, quantity: str
    ) -> list[list[Any]]:
        runs = [run for run in self.runs if run.variant == variant]
        if not runs:
            raise RecordError(
                f"variant must be one of {', '.join(self.variants)}, got {variant!r}."
            )
        for run in runs:
            if quantity not in run.curves.get(measurement, {}):
                known = [f"{m} / {q}" for m, curve in run.curves.items() for q in curve]
                raise RecordError(
                    "measurement and quantity must be one of "
                    f"{', '.join(sorted(known))}, got {measurement} / {quantity}."
                )
        return [run.curves[measurement][quantity] for run in runs]


def save(record: Record, path: Path) -> None:
    """Write a record as JSON, whole or not at all; RecordError if not of the schema."""
    content: dict[str, Any] = {"schema": 1, **asdict(record)}
    for run in content["runs"] + content["tuning"]:
        run["opening"] = _rounded(run["opening"])
        run["curves"] = _rounded(run["curves"])
        if not run["tuned"]:
            del run["tuned"]
    if not content["tuning"]:
        del content["tuning"]
    _check(content, str(path))
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    atomic_file.write(path, (_join_numbers(text) + "\n").encode())


def load(path: str | Path) -> Record:
    """Read a record and check it against the schema; RecordError if it is none."""
    try:
        content = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"a record must be a JSON file, got {path}: {error}; run the experiment "
            "again."
        ) from error
    _check(content, str(path))
    del content["schema"]
    for name in {"runs", "tuning"} & {*content}:
        content[name] = [RunRecord(**run) for run in content[name]]
    return Record(**content)


@cache
def _validator() -> Callable[[Any], Any]:
    schema = files("normbook.lab").joinpath("record.schema.json").read_text()
    compiled: Callable[[Any], Any] = fastjsonschema.compile(json.loads(schema))
    return compiled


def _check(content: Any, where: str) -> None:
    try:
        _validator()(content)
    except fastjsonschema.JsonSchemaValueException as error:
        raise RecordError(
            f"a record must follow record.schema.json, got {where}, where "
            f"{error.message.replace('data', '$', 1)[:200]}; run the experiment again."
        ) from error
    variants, seeds = content["settings"]["variants"], content["seeds"]
    expected = [(variant, seed) for variant in variants for seed in seeds]
    pairs = [(run["variant"], run["seed"]) for run in content["runs"]]
    if pairs != expected:
        raise RecordError(
            "a record must have one run for each variant and seed, in this order: "
            f"{expected}; got {pairs} in {where}; run the experiment again."
        )
    _check_tuning(content, where)
    for run in content["runs"] + content.get("tuning", []):
        for name, curve in run["curves"].items():
            lengths = {quantity: len(values) for quantity, values in curve.items()}
            if len(set(lengths.values())) > 1:
                raise RecordError(
                    f"a curve must have as many values as steps, got {lengths} in "
                    f"{run['variant']}, seed {run['seed']}: {name} of {where}; run "
                    "the experiment again."
                )


def _check_tuning(content: Any, where: str) -> None:
    """Search again: the grid must be whole, without more, and its best point chosen."""
    settings = content["settings"]
    runs, tried = (
        [RunRecord(**run) for run in content.get(name, [])]
        for name in ("runs", "tuning")
    )
    try:
        found = {v: tuning.search(settings, v, tried) for v in settings["variants"]}
    except (RunError, KeyError) as error:
        reason = str(error)
    else:
        asked = [
            (variant, seed, point)
            for variant, of in found.items()
            for point in of.tried
            for seed in settings_of(settings, variant)["tuning"]["seeds"]
        ]
        if sorted(map(repr, asked)) != sorted(
            repr((run.variant, run.seed, run.tuned)) for run in tried
        ):
            reason = f"it has {len(tried)} runs where the search asks for {len(asked)}"
        elif other := [r for r in runs if r.tuned != found[r.variant].best]:
            best = found[other[0].variant].best
            reason = f"the best point of {other[0].variant} is {best}"
        else:
            return
    raise RecordError(
        "a record must have the runs of its tuning, and then those at the best point, "
        f"got {where}: {reason}; run the experiment again."
    )


def _refuse(constant: str) -> None:
    """NaN and Infinity, which Python would read though JSON lacks them."""
    raise ValueError(f"{constant} is no JSON")


def _rounded(value: Any) -> Any:
    """Shorten numbers; null stands for what is not finite, which JSON lacks."""
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value


def _join_numbers(text: str) -> str:
    """Put a list of numbers on one line: a change of a curve is one line then."""
    return NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
