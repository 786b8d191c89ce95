"""Batch norms that a model calls as functions, outside of its norms."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

from torch import Tensor
from torch.nn import functional

from normbook.checks.model.harms import RISK, WRONG, Harm
from normbook.checks.model.passes import Pass
from normbook.checks.model.runs import hidden_norms
from normbook.checks.model.subject import Subject


def _uses(of: Pass) -> dict[str, dict[str, Any]]:
    """Return the arguments of the first call at each place."""
    found: dict[str, dict[str, Any]] = {}
    for place, args, kwargs in of.functions:
        given = signature(functional.batch_norm).bind(*args, **kwargs).arguments
        if len(given["input"]) > 1:  # of one it may be that of a weight
            found.setdefault(place, given)
    return found


def _is_fresh(mean: Tensor | None, var: Tensor | None) -> bool:
    """Return whether there are running statistics, and they saw no batch."""
    if mean is None or var is None:
        return False
    return not mean.any() and bool((var == 1).all())


def as_functions(subject: Subject) -> Iterator[Harm]:
    """Compare how the function is called in training and in evaluation."""
    in_training = _uses(subject.training)
    stuck = {at for at, given in in_training.items() if not given.get("training")}
    hidden = hidden_norms(subject.still.model)
    if any(name in subject.still.entered for name in hidden):  # these call it
        return
    for at, given in _uses(subject.still).items():
        place = at or "the whole model"
        if given.get("training"):
            yield Harm(
                WRONG,
                "a function that evaluates by the batch",
                1,
                place,
                "functional.batch_norm is called with training=True in evaluation.",
                "Pass training=self.training, and running statistics.",
            )
        elif at in stuck and _is_fresh(given["running_mean"], given["running_var"]):
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
