"""The forms that an answer can have, and how each is compared with the right one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Answer(Protocol):
    """A right answer, and what is said of it and of others."""

    @property
    def why(self) -> str:
        """Say why it is right."""

    @property
    def form(self) -> str:
        """Say what is to be given."""

    def slip(self, given: object) -> str | None:
        """Return None for the right answer, else the slip, or "" for an unknown one."""


@dataclass(frozen=True)
class Exercise:
    """Hints, and the answer where a machine can judge one."""

    hints: Sequence[str]
    answer: Answer | None = None


Drawn = tuple[Any, ...]
Draw = Callable[[np.random.Generator], Drawn]


def uniform(*bounds: tuple[float, float]) -> Draw:
    """Draw one number between each pair of bounds."""
    return lambda rand: tuple(rand.uniform(*pair) for pair in bounds)


def whole(*bounds: tuple[int, int]) -> Draw:
    """Draw one whole number between each pair of bounds, the upper one excluded."""
    return lambda rand: tuple(int(rand.integers(*pair)) for pair in bounds)


def _close(given: Any, right: Any, rtol: float) -> bool:
    if np.shape(given) != np.shape(right):
        return False
    scale = np.max(np.abs(right), initial=0.0)  # a zero among numbers of size 1 is one
    return bool(np.allclose(given, right, rtol=rtol, atol=1e-9 * scale))


def _numbers(given: object, rule: str) -> Any:
    try:
        found = np.asarray(given, dtype=float)
    except (TypeError, ValueError, RuntimeError):  # that of a tensor with a graph
        found = None
    if found is None or not np.isfinite(found).all():
        raise ValueError(f"answer must be {rule}, finite, got {given!r}.")
    return found


@dataclass(frozen=True)
class Numbers:
    """One number, or some in a given order."""

    what: str
    right: float | Sequence[float]
    why: str
    slips: Sequence[tuple[Any, str]] = ()
    rtol: float = 0.01

    @property
    def form(self) -> str:
        """Say what is to be given."""
        return self.what

    def slip(self, given: object) -> str | None:
        """Compare numbers, to within `rtol`."""
        found = _numbers(given, self.what)
        if np.shape(found) != np.shape(self.right):
            raise ValueError(
                f"answer must be {self.what}, got {given!r}, which has another shape."
            )
        if _close(found, self.right, self.rtol):
            return None
        return next((w for a, w in self.slips if _close(found, a, self.rtol)), "")


@dataclass(frozen=True)
class Sizes:
    """Whole numbers of which the order does not count."""

    what: str
    right: frozenset[int]
    why: str
    # An example, the test of its kind, and what is said.
    slips: Sequence[tuple[frozenset[int], Callable[[frozenset[int]], bool], str]] = ()

    @property
    def form(self) -> str:
        """Say what is to be given."""
        return self.what

    def slip(self, given: object) -> str | None:
        """Compare sets."""
        found = _numbers(list(given) if isinstance(given, set) else given, self.what)
        if (found % 1).any():
            raise ValueError(f"answer must be {self.what}, whole, got {given!r}.")
        sizes = frozenset(found.ravel().astype(int).tolist())
        if sizes == self.right:
            return None
        return next((why for _, is_it, why in self.slips if is_it(sizes)), "")


@dataclass(frozen=True)
class Function:
    """A function, compared at arguments that are drawn for it."""

    arguments: str
    right: Callable[..., Any]
    draw: Draw
    why: str
    slips: Sequence[tuple[Callable[..., Any], str]] = ()
    what: str = ""
    trials: int = 5

    @property
    def form(self) -> str:
        """Say what is to be given."""
        what = self.what and f": {self.what}"
        return f"a function of {self.arguments}{what}"

    def slip(self, given: object) -> str | None:
        """Compare values; an error inside the function is told with its argument."""
        if not callable(given):
            raise TypeError(
                f"answer must be {self.form}, got {given!r}; "
                f"write lambda {self.arguments}: ..."
            )
        rand = np.random.default_rng(0)
        drawn = [self.draw(rand) for _ in range(self.trials)]
        found = []
        for values in drawn:
            try:
                value = given(*deepcopy(values))  # it may write into its arguments
            except Exception as error:
                raise ValueError(
                    f"answer must be {self.form}, and it raised "
                    f"{type(error).__name__}: {error}."
                ) from error
            found.append(_numbers(value, f"{self.form}, in numbers"))

        def is_close(other: Callable[..., Any]) -> bool:
            pairs = zip(found, drawn, strict=True)
            return all(_close(f, np.asarray(other(*v)), 1e-6) for f, v in pairs)

        if is_close(self.right):
            return None
        return next((why for other, why in self.slips if is_close(other)), "")


@dataclass(frozen=True)
class Choice:
    """One of some words, each with what it would mean."""

    right: str
    why: str
    others: Mapping[str, str]
    what: str = ""

    @property
    def form(self) -> str:
        """Say what is to be given."""
        words = ", ".join(repr(w) for w in sorted([self.right, *self.others]))
        return f"{self.what and f'{self.what}: '}one of {words}"

    def slip(self, given: object) -> str | None:
        """Look the word up."""
        word = str(given).strip().lower()
        if word == self.right:
            return None
        if word not in self.others:
            raise ValueError(f"answer must be {self.form}, got {given!r}.")
        return self.others[word]
