"""One claim about a layer, as a function that looks for a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from normbook.checks.calls import LayerError
from normbook.checks.report import Finding
from normbook.checks.subject import Subject

__all__ = ["Claim", "DoesNotApply", "Fault", "claim"]


class Fault(NamedTuple):
    """Why a claim is false, and what to change."""

    reason: str
    cure: str


class DoesNotApply(Exception):
    """Raised by a claim that has no meaning for this layer."""


class Claim(NamedTuple):
    """A sentence, and the function that looks for a fault in it."""

    name: str
    fault: Callable[[Subject], Fault | None]

    def __call__(self, subject: Subject) -> Finding:
        """Look for a fault; an error of the user's layer is one, no other error."""
        try:
            fault = self.fault(subject)
        except DoesNotApply as why:
            return Finding(self.name, None, str(why))
        except LayerError as error:
            cure = "Make the layer take this input."
            if "inplace operation" in str(error):
                cure = "Write nothing in place: x = x - mean, not x -= mean."
            fault = Fault(f"the layer raises {error}.", cure)
        return Finding(self.name, fault is None, *(fault or ()))


def claim(name: str) -> Callable[[Callable[[Subject], Fault | None]], Claim]:
    """Make a claim of a function that looks for a fault."""
    return lambda fault: Claim(name, fault)
