"""Batch norms that a model calls as functions, outside of its norms."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from normbook.checks.model.harms import RISK, WRONG, Harm
from normbook.checks.model.passes import Pass
from normbook.checks.model.subject import Subject


class Use(NamedTuple):
    """A call of the function: where, and with which statistics."""

    place: str
    by_batch: bool
    mean: Tensor | None
    var: Tensor | None

    @property
    def is_fresh(self) -> bool:
        """Return whether it has running statistics, and they saw no batch."""
        if self.mean is None or self.var is None:
            return False
        return not self.mean.any() and bool((self.var == 1).all())


def _uses(of: Pass) -> list[Use]:
    """Return the first call at each place."""
    found: dict[str, Use] = {}
    for place, args, kwargs in of.functions:
        given = signature(functional.batch_norm).bind(*args, **kwargs).arguments
        by_batch = bool(given.get("training", False))
        statistics = given["running_mean"], given["running_var"]
        if len(given["input"]) > 1:  # of one it may be that of a weight
            found.setdefault(place, Use(place, by_batch, *statistics))
    return [*found.values()]


def as_functions(subject: Subject) -> Iterator[Harm]:
    """Compare how the function is called in training and in evaluation."""
    stuck = {u.place for u in _uses(subject.training) if not u.by_batch}
    for use in _uses(subject.still):
        place = use.place or "the whole model"
        if use.by_batch:
            yield Harm(
                WRONG,
                "a function that evaluates by the batch",
                1,
                place,
                "functional.batch_norm is called with training=True in evaluation.",
                "Pass training=self.training, and running statistics.",
            )
        elif use.place in stuck and use.is_fresh:
            yield Harm(
                RISK,
                "a function that never normalizes by the batch",
                1,
                place,
                "functional.batch_norm is called with training=False, its default, in "
                "training, too: its running statistics stay at mean 0 and variance 1, "
                "and nothing is normalized.",
                "Pass training=self.training.",
            )
