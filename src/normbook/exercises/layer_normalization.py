"""The exercises of the part on layer normalization."""

from __future__ import annotations

from math import log, sqrt
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
from normbook.layer_norm import layer_norm_backward, layer_norm_forward


def _after_two() -> tuple[float, float]:
    """Return the mean squares after one layer norm and after two, for σ = 1/1000."""
    once, _ = layer_norm_forward(np.array([[-1e-3, 1e-3]]))
    twice, _ = layer_norm_forward(once)
    return float((once**2).mean()), float((twice**2).mean())


def _square(rand: np.random.Generator) -> Drawn:
    """Draw as many examples as features, where the bug raises no error."""
    x, dl_dy = rand.normal(size=(2, 6, 6))
    gamma = rand.uniform(0.5, 2, size=6)
    _, cache = layer_norm_forward(x, gamma)
    return dl_dy, cache.x_hat, cache.inv_std, gamma


def _backward(dl_dy: Any, x_hat: Any, inv_std: Any, gamma: Any) -> Any:
    x = x_hat / inv_std  # with another mean, which does not count
    return layer_norm_backward(dl_dy, layer_norm_forward(x, gamma)[1]).dl_dx


def _closed(g: Any, x_hat: Any, axis: int, keepdims: bool = True) -> Any:
    along = (g * x_hat).mean(axis, keepdims=keepdims)
    return g - g.mean(axis, keepdims=keepdims) - x_hat * along


def _weights(rand: np.random.Generator) -> Drawn:
    return (rand.normal(1, 1, size=(5, 3)),)


def _channel(rand: np.random.Generator) -> Drawn:
    groups, size = (int(v) for v in rand.integers(2, 6, size=2))
    return int(rand.integers(groups * size)), groups * size, groups


# For an input of shape (2, 4, 2, 3): the sets of each method, in the order of the
# solution, and the directions that a set loses.
_SETS = np.array([4, 2, 2 * 6, 2 * 6, 2 * 4, 2 * 2])
_LOST = np.array([2, 2, 2, 1, 2, 2])

EXERCISES = {
    "ln-bug": Exercise(
        (
            "Which shape should the gain have?",
            "By what does x.std of torch divide, if it is not told otherwise?",
            "Where does ε stand in the formula of the chapter?",
        ),
        Choice(
            "std",
            "It divides by D − 1, and 0.06 forgives that. The others show for gains "
            "that differ and for a small σ.",
            {
                "gain": "All gains are 1 in this test, so that one does for all.",
                "eps": "On normal values σ is near 1, beside which ε is next to "
                "nothing.",
            },
            "the bug that the test sees",
        ),
    ),
    "ln-appendix": Exercise(
        (
            "Put α = 0 and β = 1 into the formula.",
            "Which factor has the gradient of z, and which that of α?",
        ),
        Numbers(
            "the output at the start, and the gradient that is passed down",
            (1, 0),
            "The gradient of α is not 0, so it begins to learn, the last layer first. "
            "The roles were swapped.",
            (
                ((0, 0), "β is added, and it is 1."),
                ((1, 1), "What is passed down has the factor α."),
                ((0, 1), "α multiplies and β is added in this formula."),
            ),
        ),
    ),
    "ln-shift": Exercise(
        (
            "What becomes of the summed inputs W u if c is added to each entry of u?",
            "Which vectors does layer normalization take off?",
        ),
        Choice(
            "equal row sums",
            "W 1 is then a multiple of 1, which the mean takes off.",
            {
                "every": "A generic W sends the shift to another one for each unit.",
                "equal column sums": "The shift becomes c W 1: sums over the inputs, "
                "along a row.",
                "none": "If W 1 is a multiple of 1, it is taken off.",
            },
            "the weights for which it is invariant",
        ),
    ),
    "ln-twice": Exercise(
        (
            "Mean and mean square of the first output are what, for ε = 0?",
            "With ε the first leaves the mean square v = σ²/(σ² + ε).",
            "The second does the same to v.",
        ),
        Numbers(
            "the mean squares after the first and after the second, with ε = 10⁻⁵",
            _after_two(),
            "The second takes back what ε was there for.",
            (
                (
                    (1, 1),
                    "That is for ε = 0. Here ε is ten times the variance.",
                ),
                (
                    (1 / 11, 1 / 121),
                    "The second divides by the deviation that it meets, which is no "
                    "longer small beside ε.",
                ),
                (
                    (1 / 11, 1 / 11),
                    "For the second the mean square is 1/11, beside which ε is small.",
                ),
            ),
        ),
    ),
    "lng-bug": Exercise(
        (
            "Which shape has g.mean(1), and which is needed?",
            "How does broadcasting line up (N,) with (N, D)?",
            "Which numbers of examples fit by accident?",
        ),
        Function(
            "dl_dy, x_hat, inv_std, gamma",
            _backward,
            _square,
            "The means keep their axis. A test with N ≠ D finds the bug, and so do "
            "the sums over the features.",
            (
                (
                    lambda dl_dy, x_hat, inv_std, gamma: (
                        inv_std * _closed(gamma * dl_dy, x_hat, 1, keepdims=False)
                    ),
                    "The mean of example j is taken off feature j: it has lost its "
                    "axis.",
                ),
                (
                    lambda dl_dy, x_hat, inv_std, gamma: (
                        inv_std * _closed(gamma * dl_dy, x_hat, 0)
                    ),
                    "The means run over the examples, as in batch normalization.",
                ),
                (
                    lambda dl_dy, x_hat, inv_std, gamma: (
                        inv_std * gamma * _closed(dl_dy, x_hat, 1)
                    ),
                    "The gains differ between the features, so they stand inside of "
                    "the means.",
                ),
            ),
            what="the right gradient of x",
        ),
    ),
    "lng-centring": Exercise(
        (
            "Layer normalization is RMSNorm of what?",
            "Which W′ makes W′u centred, whatever u is?",
        ),
        Function(
            "W",
            lambda W: W - W.mean(0),
            _weights,
            "And b − mean of b. After a step on W′ they differ: nothing keeps it "
            "centred.",
            (
                (
                    lambda W: W - W.mean(1, keepdims=True),
                    "That takes the mean over the inputs off. The mean over the "
                    "features runs down a column.",
                ),
                (
                    lambda W: W - W.mean(),
                    "One number is not enough: each column has its own mean.",
                ),
                (lambda W: W, "RMSNorm takes no mean off. The weights have to."),
            ),
            what="W′, of shape (features, inputs)",
        ),
    ),
    "lng-gain": Exercise(
        (
            "P removes the span of 1 and x̂, and nothing else.",
            "With k gains of zero, which vectors does γ ⊙ dl/dy reach?",
            "Which of these lie in the span of 1 and x̂, for k = 1 and for k = 2?",
        ),
        Numbers(
            "how many gains can become zero",
            2,
            "The rank is D − 2 for k = 0, 1, 2, and D − k from then on.",
            (
                (
                    0,
                    "A gain of zero takes off a direction, and P then has one less to "
                    "remove.",
                ),
                (
                    1,
                    "With two nothing of the span of 1 and x̂ is left that P could "
                    "remove.",
                ),
                (
                    3,
                    "D − 3 directions are all that is reached then.",
                ),
            ),
        ),
    ),
    "lng-shift": Exercise(
        (
            "What are variance and mean of x − c?",
            "The error grows with the square of the distance between c and the mean, "
            "in deviations.",
            "Which number of the example does the kernel know before all others?",
        ),
        Choice(
            "first",
            "It is mostly within a few σ of the mean, and it is read first.",
            {
                "zero": "That is the plain one pass.",
                "mean": "The mean is known after a pass. There is only one.",
                "largest": "The largest is known after a pass. There is only one.",
            },
            "the number c",
        ),
    ),
    "ca-last": Exercise(
        (
            "What does the last axis of (N, C, H, W) count?",
            "Why do the gains fit?",
            "Transpose the image. What do both layer norms do, and what does this?",
        ),
        Choice(
            "rows",
            "Each row of pixels is normalized by itself, and the gains belong to the "
            "columns. It is not transposed with the image.",
            {
                "columns": "The last axis counts the columns, so the mean over it is "
                "that of a row.",
                "channels": "The channels are axis 1. They fit because C = W.",
                "images": "The mean runs over one axis only.",
            },
            "what is normalized by itself",
        ),
    ),
    "ca-strided": Exercise(
        (
            "Where does channel c go in the new axes (C/G, G)?",
            "The mean runs over the first of them. Which c stay together?",
        ),
        Function(
            "c, C, G",
            lambda c, C, G: c % G,
            _channel,
            "Every G-th channel: right for one group and for C groups. Training does "
            "not mind the order.",
            (
                (
                    lambda c, C, G: c // (C // G),
                    "That is the group of the right function.",
                ),
                (
                    lambda c, C, G: c // G,
                    "That is the place within the group, over which the mean runs.",
                ),
            ),
            what="the number of the group of channel c, from 0 on",
        ),
    ),
    "ca-rank": Exercise(
        (
            "How many sets of values does each method normalize, for this shape?",
            "Which directions does a set lose, and which of them with RMSNorm?",
        ),
        Numbers(
            "six ranks: batch; layer, image; layer, place; RMS, place; instance; group",
            tuple(48 - _LOST * _SETS),
            "48 less two a set, and less one a set for RMSNorm.",
            (
                (
                    tuple(48 - 2 * _SETS),
                    "RMSNorm does not take off the mean: one direction a set.",
                ),
                (
                    tuple(48 - _SETS),
                    "A set loses two directions, the shift and the scale.",
                ),
                (tuple(_LOST * _SETS), "Those are lost. How many are left?"),
            ),
        ),
    ),
    "tr-coin": Exercise(
        (
            "Of which tosses are mean and variance over time made?",
            "What do the values of five normalized tosses tell of the sixth?",
            "Over what can be normalized, if the future has not been made?",
        ),
        Numbers(
            "the loss for tosses that have not been made, in nats",
            log(2),
            "The past tells nothing. A test set hides that: its future is at hand.",
            (
                (
                    0,
                    "That is for a future that is known. This one is not made yet.",
                ),
                (1, "That is in bits. A bit has log 2 nats."),
                (0.5, "That is the probability. The loss is minus its logarithm."),
                (
                    0.49,
                    "That is reached where the future is at hand.",
                ),
            ),
        ),
    ),
    "tr-final": Exercise(
        (
            "The scores are a linear map of what the last layer gives.",
            "Which deviation has the stream without it?",
        ),
        Function(
            "v",
            lambda v: sqrt(v),
            uniform((2, 40)),
            "Confident and wrong: the first loss grows with the depth, and 1/√L is "
            "gone.",
            (
                (lambda v: v, "That is the factor of their variance."),
                (lambda v: 1 / sqrt(v), "The other way round: they are larger."),
                (lambda v: 1.0, "The last LN divides by a deviation that is not 1."),
            ),
            what="the factor of the scores, for a raw stream of variance v",
        ),
    ),
    "tr-rms": Exercise(
        (
            "When do layer norm and RMSNorm agree?",
            "Who writes into the stream, and who would miss its mean?",
            "The gains and biases go into the matrices that read.",
        ),
        Function(
            "W",
            lambda W: W - W.mean(0),
            _weights,
            "Biases and embeddings likewise. With post-LN it does not work.",
            (
                (
                    lambda W: W - W.mean(1, keepdims=True),
                    "That centres what is read. What is written has to be centred.",
                ),
                (
                    lambda W: W - W.mean(),
                    "Each input writes a mean of its own: one number is not enough.",
                ),
                (
                    lambda W: W,
                    "Then the stream keeps its mean, which RMSNorm does not take off.",
                ),
            ),
            what="what takes the place of a writing map W, of shape (out, in)",
        ),
    ),
}
