"""The exercises of the part on what came since then."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from normbook.exercises.answers import Choice, Drawn, Exercise, Function, Numbers


def _reader(rand: np.random.Generator) -> Drawn:
    return rand.normal(size=(4, 4)), rand.normal(size=4), float(rand.integers(2))


def _merged(W: Any, w: Any, offset: float) -> Any:
    return W * (w + offset)


_STEPS = 1000
_SPACING = 2.0**-7  # of bfloat16 from 1 to 2
_SHARE = 0.001 / _SPACING  # r of each step
_DEVIATION = sqrt(_STEPS * _SHARE * (1 - _SHARE)) * _SPACING

EXERCISES = {
    "fb-merge": Exercise(
        (
            "What is the gain where a family stores it less 1?",
            "What has to be stored afterwards, so that the norm has the gain 1?",
            "What does the second layer that reads this norm find in it?",
        ),
        Function(
            "W, w, offset",
            _merged,
            _reader,
            "And 1 − offset is left in the norm, once all its readers are done.",
            (
                (
                    lambda W, w, offset: W * w,
                    "The gain is w + offset, and offset is 1 in some families.",
                ),
                (
                    lambda W, w, offset: W * (w + 1),
                    "The 1 is missing in some families only: it is called offset.",
                ),
                (
                    lambda W, w, offset: W * (w + offset)[:, None],
                    "That multiplies the outputs. A gain belongs to an input, the last "
                    "axis of W.",
                ),
                (
                    lambda W, w, offset: W,
                    "So a reader keeps its weights, and the norm has lost its gain: "
                    "the fault of the second one.",
                ),
            ),
            what="the weights of a reader after the merge",
        ),
    ),
    "fb-random": Exercise(
        (
            "What is the expectation of one rounding?",
            "Which share r of a spacing is the step of 0.001?",
            "The variance of one rounding is r(1 − r) squared spacings.",
        ),
        Numbers(
            "two numbers, expectation and standard deviation",
            (2, _DEVIATION),
            "To nearest the gain would stay at 1, with deviation 0.",
            (
                ((1, 0), "That is what rounding to nearest does."),
                (
                    (2, sqrt(_STEPS / 6) * _SPACING),
                    "One sixth is the mean of r(1 − r) over all r. Here r is known.",
                ),
                ((2, _DEVIATION**2), "That is the variance."),
                (
                    (2, _DEVIATION / _SPACING),
                    "That is in spacings; one of them is 1/128.",
                ),
                ((2, 0), "Right on average, and each time up or down."),
            ),
        ),
    ),
    "fb-mean": Exercise(
        (
            "When is P Q = Q P, with P what takes off the mean?",
            "Where do P and Q send the vector of ones?",
        ),
        Choice(
            "ones",
            "P takes off the part along the ones. It commutes with Q if Q leaves this "
            "direction where it is.",
            {
                "all": "RMSNorm lets all of them through. Layer norm sends the vector "
                "of ones to 0, and what Q makes of it mostly not.",
                "none": "Try a permutation of the features.",
                "permutations": "Those, and more: the directions beside the ones can "
                "be turned among themselves.",
            },
            "the rotations that layer norm lets through",
        ),
    ),
}
