"""The exercises of the part on what came since then."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np

from normbook.exercises.answers import Choice, Drawn, Exercise, Function, Numbers


def _gains(rand: np.random.Generator) -> Drawn:
    return tuple(rand.normal(size=(2, 6)))


def _by_pairs(gamma_q: Any, gamma_k: Any) -> Any:
    q, k = (np.max(np.abs(np.reshape(g, (2, -1))), axis=0) for g in (gamma_q, gamma_k))
    return sqrt(np.size(gamma_q)) * np.max(q * k)


def _by_feature(gamma_q: Any, gamma_k: Any) -> Any:
    return sqrt(np.size(gamma_q)) * np.max(np.abs(gamma_q * gamma_k))


def _over_all(gamma_q: Any, gamma_k: Any) -> Any:
    return sqrt(np.size(gamma_q)) * np.max(np.abs(gamma_q)) * np.max(np.abs(gamma_k))


def _neighbours(gamma_q: Any, gamma_k: Any) -> Any:
    q, k = (np.max(np.abs(np.reshape(g, (-1, 2))), axis=1) for g in (gamma_q, gamma_k))
    return sqrt(np.size(gamma_q)) * np.max(q * k)


def _one_of(tokens: int, above: float) -> float:
    """Return the weight of a token whose score is so far above that of all others."""
    return 1 / (1 + (tokens - 1) * exp(-above))


def _reader(rand: np.random.Generator) -> Drawn:
    return rand.normal(size=(4, 4)), rand.normal(size=4), float(rand.integers(2))


def _merged(W: Any, w: Any, offset: float) -> Any:
    return W * (w + offset)


_STEPS = 1000
_SPACING = 2.0**-7  # of bfloat16 from 1 to 2
_SHARE = 0.001 / _SPACING  # r of each step
_DEVIATION = sqrt(_STEPS * _SHARE * (1 - _SHARE)) * _SPACING

EXERCISES = {
    "lt-cap": Exercise(
        (
            "What is tanh(−∞)? So what becomes of the score of a future token?",
            "How large is its weight beside that of a token with the score 0?",
            "Change the future, and compare the past.",
        ),
        Choice(
            "minus c",
            "A score like others: the future acts on the past. First the cap, then the "
            "mask.",
            {
                "minus infinity": "tanh lies between −1 and 1.",
                "zero": "That is tanh(0). What is tanh(−∞)?",
            },
            "the capped score of a future token",
        ),
    ),
    "lt-monitor": Exercise(
        (
            "Between which two gains of q and k can a rotation mediate?",
            "Which turn of a pair brings the largest gain of q and the largest of k "
            "together?",
            "With the larger gain of each pair in the place of both the bound holds.",
        ),
        Function(
            "gamma_q, gamma_k",
            _by_pairs,
            _gains,
            "With equal gains on pairs it is the bound without a rotation.",
            (
                (
                    _by_feature,
                    "That holds without a rotation. With one, both features of a pair "
                    "can meet.",
                ),
                (
                    _over_all,
                    "No score exceeds it, but none reaches it: a rotation stays within "
                    "its pair.",
                ),
                (
                    lambda gamma_q, gamma_k: (
                        _by_pairs(gamma_q, gamma_k) / sqrt(np.size(gamma_q))
                    ),
                    "A query has the length √d before its gain, not 1, and a key too: "
                    "d/√d is left.",
                ),
                (_neighbours, "The pairs here are i and i + d/2."),
            ),
            what="the largest score, for pairs i and i + d/2 of d features",
        ),
    ),
    "lt-shared-key": Exercise(
        (
            "Which terms of the sum over all heads has a device?",
            "The key is the same everywhere. Is the gradient that arrives at it?",
        ),
        Choice(
            "both",
            "Other heads, other terms: what arrives at the shared key comes from a "
            "device's own queries.",
            {
                "query": "The key is a copy. But is the gradient complete that arrives "
                "at it?",
                "key": "Other queries are other terms of the sum for γ_q.",
                "neither": "Compare the gradient of one device with that of all heads.",
            },
            "whose gain has a gradient that must be summed",
        ),
    ),
    "lt-decay": Exercise(
        (
            "The bound of a score is √d times the largest product of gains.",
            "With gains of 1 a score lies between −8 and 8.",
            "A softmax: divide by e to the power of the largest score.",
        ),
        Numbers(
            "two numbers: the largest |γ_q γ_k|; with gains of 1, the largest weight "
            "of one token of 1000 where all others have the score 0",
            (50 / 8, _one_of(1000, 8)),
            "With the others at −8 it would be above 0.9998.",
            (
                (
                    (50 / 8, _one_of(1000, 16)),
                    "That is with the others at −8: they point away from the query.",
                ),
                (
                    (50 / 64, _one_of(1000, 8)),
                    "The bound has √64 in it, not 64.",
                ),
                (
                    (50, _one_of(1000, 8)),
                    "A query and a key of 64 features have the length 8 each.",
                ),
            ),
        ),
    ),
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
