"""Exercises that answer back: hints in steps, and answers checked.

>>> from normbook import exercises
>>> print(exercises.hint("bn-bound"))
They sum to 0: the large one is minus the sum of the rest.
>>> print(exercises.check("bn-bound", lambda n: n**0.5))  # doctest: +ELLIPSIS
Not so. The squares add up to n, but the others, which sum to minus it, ...
>>> bool(exercises.check("bn-bound", lambda n: (n - 1) ** 0.5))
True

The name of an exercise is its label in the book without ``ex-``.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

from normbook.exercises import (
    batch_normalization,
    in_practice,
    layer_normalization,
    recurrent_networks,
    since_then,
    when_the_batch_fails,
    why_it_works,
)
from normbook.exercises.answers import Exercise

__all__ = ["Verdict", "check", "hint", "names"]

_EXERCISES: dict[str, Exercise] = {
    **batch_normalization.EXERCISES,
    **why_it_works.EXERCISES,
    **when_the_batch_fails.EXERCISES,
    **layer_normalization.EXERCISES,
    **recurrent_networks.EXERCISES,
    **in_practice.EXERCISES,
    **since_then.EXERCISES,
}


class Verdict(NamedTuple):
    """What is said of an answer; true where it is right."""

    is_right: bool
    text: str

    def __bool__(self) -> bool:
        return self.is_right

    def __str__(self) -> str:
        return f"{'Right' if self.is_right else 'Not so'}. {self.text}"

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows


def names() -> list[str]:
    """Return the names of the exercises, in the order of the book."""
    return list(_EXERCISES)


def _named(name: str) -> Exercise:
    if name not in _EXERCISES:
        near = get_close_matches(str(name), _EXERCISES, n=3) or list(_EXERCISES)[:3]
        raise ValueError(
            f"name must be that of an exercise, got {name!r}; near it are "
            f"{', '.join(near)}, and exercises.names() lists all."
        )
    return _EXERCISES[name]


def hint(name: str, step: int = 1) -> str:
    """Return a hint to an exercise, the first or a later one.

    Raises
    ------
    ValueError
        If there is no such exercise, or no such hint.
    """
    hints = _named(name).hints
    if not 1 <= step <= len(hints):
        raise ValueError(
            f"step must be from 1 to {len(hints)} for {name!r}, got {step!r}; the "
            "solution stands under the exercise."
        )
    return hints[step - 1]


def check(name: str, answer: object) -> Verdict:
    """Compare an answer with the right one, and name the slip where it is known.

    Parameters
    ----------
    name
        The exercise.
    answer
        A number, numbers, a function or a word: the exercise says which.

    Raises
    ------
    TypeError, ValueError
        If there is no such exercise, if its answer cannot be checked, or if this one
        has another form: says which.
    """
    exercise = _named(name)
    if exercise.answer is None:
        raise ValueError(
            f"answer of {name!r} cannot be checked by a machine, got {answer!r}; "
            f"compare it with the solution, and exercises.hint({name!r}) helps."
        )
    why = exercise.answer.slip(answer)
    if why is None:
        return Verdict(True, exercise.answer.why)
    return Verdict(False, why or f"A hint: {exercise.hints[0]}")
