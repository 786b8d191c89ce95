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
}
