"""The exercises of the part on what came since then."""

from __future__ import annotations

from math import atan, pi

from normbook.exercises.answers import Choice, Exercise, Function, uniform, whole

EXERCISES = {
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
