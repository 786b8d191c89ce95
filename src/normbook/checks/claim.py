"""One claim about a layer, as a function that looks for a fault."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from normbook.checks.calls import LayerError
from normbook.checks.report import Finding

Subject = TypeVar("Subject")
Bug = TypeVar("Bug")
Told = TypeVar("Told")


class Fault(NamedTuple):
    """Why a claim is false, and what to change.

    ``other`` names a convention, where that is what the layer may follow on purpose.
    """

    reason: str
    cure: str
    other: str = ""


class Note(NamedTuple):
    """What was seen where there is no fault, and the convention that it is."""

    reason: str
    other: str = ""


class DoesNotApply(Exception):
    """Raised by a claim that has no meaning for this layer."""


class NotTested(DoesNotApply):
    """Raised where a claim has a meaning, and could not be tested.

    The second argument says what would let it.
    """


class Claim(NamedTuple, Generic[Subject]):
    """A sentence, and the function that looks for a fault in it.

    Where there is none the function may return what it saw, or a note.
    """

    name: str
    fault: Callable[[Subject], Fault | Note | str | None]

    def __call__(self, subject: Subject) -> Finding:
        """Look for a fault; an error of the user's layer is one, no other error."""
        try:
            fault = self.fault(subject)
        except DoesNotApply as why:
            return Finding(self.name, None, *why.args)
        except LayerError as error:
            cure = "Make the layer take this input."
            if "inplace operation" in str(error):
                cure = "Write nothing in place: x = x - mean, not x -= mean."
            fault = Fault(f"the layer raises {error}.", cure)
        if isinstance(fault, Fault):
            return Finding(self.name, None if fault.other else False, *fault)
        if isinstance(fault, Note):
            return Finding(self.name, True, fault.reason, "", fault.other)
        return Finding(self.name, True, fault or "")


def claim(
    name: str, among: list[Any] | None = None
) -> Callable[[Callable[[Subject], Fault | Note | str | None]], Claim[Subject]]:
    """Make a claim of a function that looks for a fault; put it among others."""

    def made(fault: Callable[[Subject], Fault | Note | str | None]) -> Claim[Subject]:
        new = Claim(name, fault)
        if among is not None:
            among.append(new)
        return new

    return made


def once(function: Callable[[Subject], Told]) -> Callable[[Subject], Told]:
    """Let what several claims ask of a subject be computed once, and kept with it."""

    @functools.wraps(function)
    def kept(subject: Subject) -> Told:
        told: dict[Any, Told] = vars(subject).setdefault("_told", {})
        if function not in told:
            told[function] = function(subject)
        return told[function]

    return kept


def named(known: Mapping[str, Bug], fits: Callable[[Bug], bool]) -> str:
    """Return the first known bug that fits, with a colon behind it, or nothing."""
    return next((f"{name}: " for name, bug in known.items() if fits(bug)), "")
