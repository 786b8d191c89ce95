"""What may go wrong with the norms of a model, and how an audit tells it."""

from __future__ import annotations

import json
import re
import textwrap
from typing import NamedTuple

import torch
from torch import Tensor

from normbook.checks.report import INDENT, WIDTH

WRONG, RISK, NOTE = LEVELS = ("WRONG", "RISK", "NOTE")


class Harm(NamedTuple):
    """What may go wrong at one place; ``number`` is "this share" in the reason."""

    level: str  # one of LEVELS
    what: str
    number: float
    place: str  # path of the module, with how many more
    reason: str
    cure: str
    page: str = "Training and evaluation"  # chapter of the book


class Audit(NamedTuple):
    """What was found in a model, the worst first; ``print`` shows it."""

    model: str
    layers: int
    harms: tuple[Harm, ...]
    untested: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong, or a risk."""
        return all(harm.level == NOTE for harm in self.harms)

    def raise_if_failed(self) -> None:
        """Raise an ``AssertionError`` that tells the audit, unless it passed."""
        if not self.passed:
            raise AssertionError(str(self))

    def to_json(self) -> str:
        """Return the audit as JSON."""
        content = self._asdict() | {"passed": self.passed}
        return json.dumps(content | {"harms": [h._asdict() for h in self.harms]})

    def __str__(self) -> str:
        """Return a line for the whole, then place, number, cure and page of each."""
        counts = [sum(h.level == level for h in self.harms) for level in LEVELS]
        lines = [
            f"{self.model}: {self.layers} norm{'s' * (self.layers != 1)}; "
            f"{counts[0]} wrong, {counts[1]} at risk, {counts[2]} to note."
        ]
        for harm in self.harms:
            # The reason tells what it is: "by this share of the output".
            is_told = "this" in harm.reason.casefold().split()
            number = f", {harm.number:.3g}" if is_told else ""
            texts = (
                f"{harm.level:5}  {harm.place}: {harm.what}{number}",
                f"{INDENT}{harm.reason}",
                f"{INDENT}Cure: {harm.cure} Book: {harm.page}.",
            )
            for text in texts:
                lines += textwrap.wrap(text, WIDTH, subsequent_indent=INDENT)
        for text in self.untested:
            lines += textwrap.wrap(f"Not tested: {text}", WIDTH, subsequent_indent="  ")
        return "\n".join(lines)


def place_of(names: list[str], first: str | None = None) -> str:
    """Name one place, and say how many more there are, with those behind a name."""
    more = [re.fullmatch(r"(.+) and (\d+) more", name) for name in names]
    count = len(names) + sum(int(m[2]) for m in more if m) - 1
    first = re.sub(r" and \d+ more$", "", first or names[0])
    return f"{first} and {count} more" if count else first


def listed(names: list[str], most: int = 5) -> str:
    """Name the first of several, and say how many more there are."""
    more = len(names) - most
    return f"{', '.join(names[:most])}{f' and {more} more' if more > 0 else ''}"


def equal(a: Tensor, b: Tensor, *, rounds: bool = True) -> bool:
    """Return whether two outputs are the same, but for rounding or altogether."""
    tolerance = {} if rounds else {"rtol": 0.0, "atol": 0.0}
    return a.shape == b.shape and torch.allclose(a, b, equal_nan=True, **tolerance)


def share_of(change: Tensor, whole: Tensor, of: str = "max") -> float:
    """Return the size of a change as a share of the whole."""
    if of == "norm":
        return float(change.norm() / whole.norm().clamp_min(1e-12))
    return float(change.abs().max() / whole.abs().max().clamp_min(1e-12))
