"""The exercises of the part on what came since then."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from normbook.exercises.answers import (
    Choice,
    Drawn,
    Exercise,
    Function,
    Numbers,
    uniform,
)


def _map(rand: np.random.Generator) -> Drawn:
    features = int(rand.integers(2, 6))
    return (rand.normal(size=(3 * features, 4)),)


def _ordered(W: Any, order: tuple[int, int, int]) -> Any:
    parts = np.split(np.asarray(W), 3)
    return np.concatenate([parts[k] for k in order])


EXERCISES = {
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
}
