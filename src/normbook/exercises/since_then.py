"""The exercises of the part on what came since then."""

from __future__ import annotations

from math import atan, exp, pi, sqrt
from typing import Any

import numpy as np

from normbook.exercises.answers import (
    Choice,
    Drawn,
    Exercise,
    Function,
    Numbers,
    uniform,
    whole,
)


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


def _map(rand: np.random.Generator) -> Drawn:
    features = int(rand.integers(2, 6))
    return (rand.normal(size=(3 * features, 4)),)


def _ordered(W: Any, order: tuple[int, int, int]) -> Any:
    parts = np.split(np.asarray(W), 3)
    return np.concatenate([parts[k] for k in order])


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
            "The norm stores w and multiplies by w + offset. With offset 1, is w the "
            "gain?",
            "After the merge the norm has to multiply by 1. Which w does it, with "
            "offset 0 and with offset 1?",
            "Three layers read one norm, and the function is called for each of them. "
            "Which gain does the second call find?",
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
            "Rounding at random is right on average. So where is the gain on average, "
            "after 1000 steps of 0.001?",
            "From 1 to 2 the numbers of bfloat16 are 1/128 apart. Which share r of it "
            "is a step of 0.001?",
            "One rounding ends 1/128 higher with probability r and else where it was: "
            "the variance is r(1 − r)/128². Those of 1000 independent steps add up.",
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
            "Let P take off the mean. Layer norm is RMSNorm of P x, and RMSNorm lets "
            "every rotation Q through. So for which Q are Q P x and P Q x the same for "
            "all x?",
            "Try x = (1, 1, ..., 1). P sends it to 0. What must P do with Q x?",
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
    "cn-gate": Exercise(
        (
            "Write the gradient of each matrix as a product. Which factors are zero?",
            "Put the two matrices into the rule of the waking times.",
        ),
        Choice(
            "never",
            "Each has the other as a factor. Zero the last one alone: the gate is zero "
            "all the same.",
            {
                "update 1": "A matrix gets what comes in times what comes back. In the "
                "first update one of the two is zero for each.",
                "update 2": "So it is if one of them is drawn. Which of them moves in "
                "the first update here?",
                "update 3": "That would be a chain: one wakes the next. Who is first?",
            },
            "when the two matrices get their first gradient",
        ),
    ),
    "cn-order": Exercise(
        (
            "Name the three blocks of rows of DiT's matrix, from the top.",
            "Which block does ours read first?",
        ),
        Function(
            "W",
            lambda W: _ordered(W, (1, 0, 2)),
            _map,
            "Scale and shift change places. Of rows of zeros any order is right.",
            (
                (
                    lambda W: W,
                    "Then the shift multiplies and the scale is added.",
                ),
                (
                    lambda W: _ordered(W, (2, 1, 0)),
                    "The gate is the last in both.",
                ),
                (
                    lambda W: _ordered(W, (1, 2, 0)),
                    "The gate is the last in both.",
                ),
            ),
            what="the matrix (3D, K) for our block, W that of DiT",
        ),
    ),
    "cn-style": Exercise(
        (
            "What is the deviation of the normalized content?",
            "It is below 1, by ε in the root. Then comes the deviation of the style.",
        ),
        Function(
            "v, eps",
            lambda v, eps: sqrt(v / (v + eps)),
            uniform((0.1, 2), (0.1, 1)),
            "A channel with a variance near ε fades, and faster with each layer.",
            (
                (lambda v, eps: v / (v + eps), "That is the factor of the variance."),
                (lambda v, eps: 1.0, "So it is with ε in both roots, or in none."),
                (
                    lambda v, eps: sqrt((v + eps) / v),
                    "The other way round: the content is divided by more.",
                ),
            ),
            what="the factor of the deviations from the mean",
        ),
    ),
    "cn-last": Exercise(
        (
            "Which of the parts need nobody?",
            "What multiplies the gradient of the map before the last layer?",
            "The table has several ways to the loss. Which zeros are on the shortest?",
        ),
        Numbers(
            "three numbers: the updates of the map, of the gates and of the table",
            (2, 2, 3),
            "The last layer wakes first, what it multiplies next, and then the rest.",
            (
                (
                    (1, 1, 2),
                    "That is without a last layer of zero.",
                ),
                (
                    (2, 3, 4),
                    "The gates do not need the map: 1 + s is not zero at the start.",
                ),
                (
                    (2, 2, 2),
                    "The table acts through the map or a gate, and both are zero yet.",
                ),
            ),
        ),
    ),
    "wn-fan": Exercise(
        (
            "Which of the four sizes belong to one row?",
            "The row has the length sqrt(n / fan), with n weights and the fan that is "
            "counted.",
        ),
        Function(
            "c_out",
            lambda c_out: c_out**-0.5,
            whole((2, 500)),
            "The fan counts the outputs as well: a signal of 64 channels loses a "
            "factor of 8 in each layer.",
            (
                (
                    lambda c_out: 1 / c_out,
                    "The fan stands under a root: how much shorter is the row, not "
                    "its square?",
                ),
                (
                    lambda c_out: c_out**0.5,
                    "A fan that is too large makes the weights shorter, not longer.",
                ),
                (
                    lambda c_out: 1.0,
                    "That is the length that is meant. shape[0:] begins with the "
                    "outputs.",
                ),
            ),
            "the length of a row of the result, but for the unbiased variance",
        ),
    ),
    "wn-leaky": Exercise(
        (
            "Find the mean of y and of y squared; half of all z are negative.",
            "The mean is (1 - a) / sqrt(2 pi), that of the square (1 + a²) / 2.",
        ),
        Function(
            "a",
            lambda a: ((1 + a**2) / 2 - (1 - a) ** 2 / (2 * pi)) ** -0.5,
            uniform((0.0, 0.9)),
            "With a = 0 it is the gain of ReLU, with a = 1 it is 1.",
            (
                (
                    lambda a: ((1 + a**2) / 2) ** -0.5,
                    "That is the gain for the mean square. The variance lacks the "
                    "square of the mean.",
                ),
                (
                    lambda a: ((1 + a**2) / 2 - (1 + a) ** 2 / (2 * pi)) ** -0.5,
                    "The negative half lowers the mean: which sign has a?",
                ),
                (
                    lambda a: (1 + a**2) / 2 - (1 - a) ** 2 / (2 * pi),
                    "That is the variance. Which factor makes it 1?",
                ),
            ),
            "the gain",
        ),
    ),
    "wn-stuck": Exercise(
        (
            "How long are the weights of the read-out at the start?",
            "Which step does the rule allow to a unit of length 0?",
        ),
        Choice(
            "read-out",
            "A unit of length 0 may take a step of length 0, and while the read-out is "
            "0 nothing below it has a gradient.",
            {
                "first matrices": "Their gradients are 0 at first, in Fixup without "
                "clipping, too. What should move before them?",
                "added numbers": "They begin at 0 as well. But would the loss fall if "
                "they alone stood still?",
                "nothing": "The loss does not fall at all: something never moves.",
            },
            "what never moves, so that nothing below it does",
        ),
    ),
    "wn-angle": Exercise(
        (
            "w and the step are orthogonal: draw the triangle.",
            "The length 1 and the step are the two short sides.",
        ),
        Function(
            "rate, norm_g",
            lambda rate, norm_g: atan(rate * norm_g),
            uniform((0.05, 2.0), (0.1, 3.0)),
            "The growth of each step is taken back, so that the next one turns as far.",
            (
                (
                    lambda rate, norm_g: rate * norm_g,
                    "That is its tangent, the same for small steps only.",
                ),
                (
                    lambda rate, norm_g: (
                        rate * norm_g / (1 + (rate * norm_g) ** 2) ** 0.5
                    ),
                    "That is its sine.",
                ),
            ),
            "the angle, in radians",
        ),
    ),
}
