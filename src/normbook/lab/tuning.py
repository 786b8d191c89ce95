"""Every network at its own best: settings are tuned first, on a grid that is bracketed.

Where the settings of a variant have "tuning", its runs take two parts. First, with
"seeds" of their own, a grid: all combinations of the "values" of each setting in
"grid". Where the best point is the smallest or the largest that was tried of a setting,
the others being equal, the next value is tried too, further by a "factor" or by a
"step": so long as until the best one lies *inside*. A setting without either is a
choice, with nothing beyond. Then come the runs that are reported: at this point, with
the seeds of the scale. So nothing is told of the seeds by which something was chosen::

    "tuning": {
        "seeds": [100],
        "criterion": {"measurement": "validation", "quantity": "loss"},
        "grid": {
            "learning_rate": {"values": [0.001, 0.003], "factor": 3.0,
                              "limits": [1e-6, 1.0]},
            "forget_bias": {"values": [0.0, 1.0], "step": 1.0, "limits": [-3, 5]},
        },
    }

The criterion takes the value at the end, and less is better; with "is_higher_better"
more is. With a "level" it counts the steps to it. What is not finite, or a level that
is never reached, is worse than all else. Of several seeds the mean counts, of equal
points the one that was tried first. RunError where the best point lies at a limit, or
where no point has a finite value. All of this is a function of the settings and of
the runs done so far: a run that was killed goes on, and who reads a record can see that
it holds the whole grid, and what was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from normbook.errors import RunError

DIGITS = 7  # significant, in a record: more than a figure shows
Settings = Mapping[str, Any]
Point = dict[str, Any]  # values of the tuned settings, by name


class Finished(Protocol):
    """A run that is done: what is looked at of a ``RunRecord``."""

    @property
    def variant(self) -> str: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def tuned(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def curves(self) -> Mapping[str, Mapping[str, list[Any]]]: ...  # noqa: D102


class Planned(NamedTuple):
    """A run to be done: a variant with a seed, at a point of its grid."""

    variant: str
    seed: int
    tuned: Point  # empty where nothing is tuned

    @classmethod
    def of(cls, run: Finished) -> Planned:
        """Return what was done by a run."""
        return cls(run.variant, run.seed, dict(run.tuned))

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what tells it from others."""
        return self.variant, self.seed, *self.tuned.items()

    @property
    def title(self) -> str:
        """Variant and point."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.tuned.items())])


class Search(NamedTuple):
    """Where the search for the best point of a variant is."""

    tried: list[Point]  # in their order
    missing: list[Point]  # those of them that have to be run next
    best: Point | None  # when none is missing


def settings_of(settings: Settings, variant: str) -> dict[str, Any]:
    """Return the settings of one variant: the common ones, and its own over them."""
    common = {k: v for k, v in settings.items() if k != "variants"}
    return {**common, **settings["variants"][variant]}


def rounded(value: float) -> float:
    """Return a number as a record has it."""
    return float(f"{value:.{DIGITS}g}")


def is_tuned(settings: Settings, variant: str) -> bool:
    """Whether settings of this variant are tuned."""
    return "tuning" in settings_of(settings, variant)


def planned(
    settings: Settings, seeds: Sequence[int], done: Sequence[Finished]
) -> list[Planned]:
    """Return the runs to do next, given all that are done; none at the end.

    Those of all variants together: the missing points of the grid, or, where the best
    one is known, what is reported.
    """
    known = {Planned.of(run).key for run in done}
    return [run for run in _asked(settings, seeds, done) if run.key not in known]


def search(settings: Settings, variant: str, done: Sequence[Finished]) -> Search:
    """Find the best point of a variant, as far as the runs that are done tell it."""
    if not is_tuned(settings, variant):
        return Search([], [], {})
    tuning = settings_of(settings, variant)["tuning"]
    own = [
        run for run in done if run.variant == variant and run.seed in tuning["seeds"]
    ]
    known = {Planned.of(run).key: score(tuning, run) for run in own}
    grid, seeds = tuning["grid"], tuning["seeds"]

    def key(seed: int, point: Point) -> tuple[Any, ...]:
        return Planned(variant, seed, point).key

    def mean(point: Point) -> float:
        return float(np.mean([known[key(seed, point)] for seed in seeds]))

    tried = [
        dict(zip(grid, values, strict=True))
        for values in product(*(axis["values"] for axis in grid.values()))
    ]
    while True:
        missing = [p for p in tried if any(key(s, p) not in known for s in seeds)]
        if missing:
            return Search(tried, missing, None)
        best = min(tried, key=mean)
        if not math.isfinite(mean(best)):
            raise RunError(
                f"at least one point must give a finite {_named(tuning)}, but "
                f"none of {len(tried)} does for {variant}; begin with others."
            )
        beyond = list(_beyond(variant, grid, tried, best))
        if not beyond:
            return Search(tried, [], best)
        tried += beyond


def score(tuning: Settings, run: Finished) -> float:
    """Return what the criterion gives a run: less is better."""
    criterion = tuning["criterion"]
    curve = run.curves[criterion["measurement"]]
    sign = -1.0 if criterion.get("is_higher_better", False) else 1.0
    # As in the file of a record, so that who reads it chooses the same.
    values = [
        math.inf if v is None or not math.isfinite(v) else sign * rounded(v)
        for v in curve[criterion["quantity"]]
    ]
    if "level" not in criterion:
        return values[-1]
    there = (
        step
        for step, value in zip(curve["step"], values, strict=True)
        if value <= sign * criterion["level"]
    )
    return float(next(there, math.inf))


def first_point(settings: Settings, variant: str) -> Point:
    """Return the first point of a grid, empty where nothing is tuned."""
    asked = search(settings, variant, []).missing
    return asked[0] if asked else {}


def at_least(settings: Settings, seeds: Sequence[int]) -> dict[str, int]:
    """Count the runs of each variant, if no grid is extended."""
    counts = {}
    for variant in settings["variants"]:
        counts[variant] = len(seeds)
        if is_tuned(settings, variant):
            of_tuning = settings_of(settings, variant)["tuning"]["seeds"]
            points = search(settings, variant, []).missing
            counts[variant] += len(points) * len(of_tuning)
    return counts


def check(settings: Settings, seeds: Sequence[int]) -> None:
    """Refuse a tuning that takes the seeds of the report, or a grid that never ends."""
    for variant in settings["variants"]:
        if not is_tuned(settings, variant):
            continue
        tuning = settings_of(settings, variant)["tuning"]
        if both := sorted({*seeds} & {*tuning["seeds"]}):
            raise RunError(
                "the seeds of a report must be others than those of the tuning, got "
                f"{both} in both; take other --seeds."
            )
        for name, axis in tuning["grid"].items():
            is_growing = axis.get("factor", 2) > 1 and axis.get("step", 1) > 0
            if len({"factor", "step"} & {*axis}) > 1 or not is_growing:
                raise RunError(
                    f"the grid of {name} must have a factor above 1, or a step above "
                    f"0, or neither, got {axis}."
                )


def _asked(
    settings: Settings, seeds: Sequence[int], done: Sequence[Finished]
) -> Iterator[Planned]:
    for variant in settings["variants"]:
        found = search(settings, variant, done)
        for point in found.missing:
            for seed in settings_of(settings, variant)["tuning"]["seeds"]:
                yield Planned(variant, seed, point)
        if found.best is not None:
            yield from (Planned(variant, seed, found.best) for seed in seeds)


def _beyond(
    variant: str, grid: Mapping[str, Any], tried: Sequence[Point], best: Point
) -> Iterator[Point]:
    """Points further on, in each setting of which the best one lies at an edge."""
    for name, axis in grid.items():
        ways = _ways(axis)
        line = [p[name] for p in tried if {**p, name: best[name]} == best]
        for edge, way in zip((min(line), max(line)), ways, strict=False):
            if best[name] != edge:
                continue
            value = float(f"{way(edge):.6g}")
            least, most = axis.get("limits", (-math.inf, math.inf))
            if not least <= value <= most:
                raise RunError(
                    "the best point must lie inside its grid, got "
                    f"{Planned(variant, 0, best).title}, and {name} = {value:g} is "
                    f"beyond the limits {least:g} and {most:g}; widen them, or begin "
                    "elsewhere."
                )
            yield {**best, name: value}


def _ways(axis: Mapping[str, Any]) -> list[Callable[[float], float]]:
    """Return the way to the next smaller value, and to the next larger one."""
    if "factor" in axis:
        return [lambda v: v / axis["factor"], lambda v: v * axis["factor"]]
    if "step" in axis:
        return [lambda v: v - axis["step"], lambda v: v + axis["step"]]
    return []


def _named(tuning: Settings) -> str:
    criterion = tuning["criterion"]
    return f"{criterion['measurement']} / {criterion['quantity']}"
