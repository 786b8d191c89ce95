"""The exercises of the part on normalization in practice."""

from __future__ import annotations

from math import ceil, log, pi, sqrt
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
from normbook.folding import fold_into_previous, scale_and_shift


def _until(weight: float) -> int:
    """Return how many batches bring a weight below 1 % of the average."""
    return ceil(log(0.01 / weight) / log(0.9))


_TEN = 1 - 0.9**10

_MEAN_SQUARE = 1 / 2  # of max(0, z)
_VAR = _MEAN_SQUARE - 1 / (2 * pi)
_DROPPED = 2 * _MEAN_SQUARE - 1 / (2 * pi)  # with half of it kept, times 2


def _kernel(rand: np.random.Generator) -> Drawn:
    return rand.normal(size=(3, 3, 3, 3)), rand.uniform(0.5, 2, size=3)


def _transposed(w: Any, k: Any) -> Any:
    zeros = np.zeros(3)
    statistics = zeros, np.ones(3), k, zeros
    return fold_into_previous(w, None, *statistics, eps=0.0, is_transposed=True).w


def _branches(rand: np.random.Generator) -> Drawn:
    w3, w1 = rand.normal(size=(4, 4, 3, 3)), rand.normal(size=(4, 4, 1, 1))
    return w3, w1, *rand.uniform(0.5, 2, size=(3, 4))


def _merged(w3: Any, w1: Any, k3: Any, k1: Any, k0: Any) -> Any:
    w = k3[:, None, None, None] * w3
    w[:, :, 1, 1] += k1[:, None] * w1[:, :, 0, 0] + np.diag(k0)
    return w


def _without_factors(w3: Any, w1: Any, k3: Any, k1: Any, k0: Any) -> Any:
    ones = np.ones(4)
    return _merged(w3, w1, ones, ones, ones)


def _without_input(w3: Any, w1: Any, k3: Any, k1: Any, k0: Any) -> Any:
    return _merged(w3, w1, k3, k1, 0 * k0)


def _all_inputs(w3: Any, w1: Any, k3: Any, k1: Any, k0: Any) -> Any:
    w = _merged(w3, w1, k3, k1, 0 * k0)
    w[:, :, 1, 1] += k0[:, None]
    return w


def _padding(m: Any, v: Any, gamma: Any, beta: Any, eps: float) -> Any:
    mean, var, gain, bias = np.array([[m], [v], [gamma], [beta]])
    k, c = scale_and_shift(mean, var, gain, bias, eps)
    return (-c / k)[0]


EXERCISES = {
    "gal-bug": Exercise(
        (
            "In which mode is the model in the second epoch?",
            "What belongs to a trained batch norm besides its parameters?",
        ),
        Choice(
            "train and weights",
            "train() belongs into the loop; the best weights need their buffers, as "
            "state_dict has them.",
            {
                "train and eval": "eval() is right before a validation. What is kept "
                "of the best model?",
                "eval and weights": "eval() is right before a validation. Who calls "
                "train() after it?",
                "no_grad and weights": "no_grad only spares memory. Who calls train() "
                "after eval()?",
            },
            "the two lines",
        ),
    ),
    "gal-ten": Exercise(
        (
            "Which share do ten updates leave to everything before them?",
            "After k more batches the weight is multiplied by 0.9^k.",
        ),
        Numbers(
            "two numbers: the weight, and the batches until it is below 1 %",
            (_TEN, _until(_TEN)),
            "A running average forgets quickly, and so the order of an epoch counts.",
            (
                (
                    (1, _until(1)),
                    "The weights do not add up to 10 · 0.1: each update leaves 0.9 of "
                    "those before.",
                ),
                (
                    (1 - _TEN, _until(1 - _TEN)),
                    "That is the weight of everything before the ten.",
                ),
                (
                    (1 - _TEN, _until(_TEN)),
                    "The first is the weight of everything before the ten.",
                ),
            ),
        ),
    ),
    "gal-dropout": Exercise(
        (
            "What are mean and mean square of max(0, z)?",
            "Dropout that keeps half doubles the mean square, and leaves the mean.",
            "Divide the variance without dropout by that with it.",
        ),
        Numbers(
            "the variance that the layer gives in evaluation mode",
            _VAR / _DROPPED,
            "With the mean forgotten it would be a half.",
            (
                (1 / 2, "That is without a mean. Behind ReLU there is one."),
                (_DROPPED / _VAR, "The other way round: it is below 1."),
                (sqrt(_VAR / _DROPPED), "That is the deviation."),
                (1, "Dropout is off then, and the running variance is that with it."),
            ),
        ),
    ),
    "gal-evaluate": Exercise(
        (
            "Which layers does model.train() put into training mode?",
            "What has to be known before eval() to put it back?",
        ),
        Choice(
            "all",
            "The frozen ones thaw. Remember the mode of each module, and put it back.",
            {
                "those that were": "train() does not remember who was in which mode.",
                "the outer one": "train() goes through all children.",
            },
            "the layers that train() puts into training mode",
        ),
    ),
    "fold-bug": Exercise(
        (
            "Which axis of the weights counts the outputs of a transposed convolution?",
            "Why do the shapes fit in the test?",
            "Which values has k in the test?",
        ),
        Function(
            "w, k",
            _transposed,
            _kernel,
            "A test with three inputs, five outputs and drawn statistics finds it.",
            (
                (
                    lambda w, k: w * k[:, None, None, None],
                    "That goes along the inputs, which axis 0 is here.",
                ),
                (
                    lambda w, k: w / k[:, None, None],
                    "The layer multiplies by k = γ/√(v + ε).",
                ),
                (lambda w, k: w * k, "That goes along the last axis, of the pixels."),
            ),
            what="the folded weights",
        ),
    ),
    "fold-square": Exercise(
        (
            "Which shape does the linear layer give here?",
            "Which axis does BatchNorm1d take for the channels?",
            "What would happen with five steps?",
        ),
        Choice(
            "time",
            "There are four steps and four features. One comparison on a real input "
            "notices it.",
            {
                "features": "They are the last axis. BatchNorm1d takes axis 1.",
                "examples": "They are axis 0. BatchNorm1d takes axis 1.",
            },
            "what axis 1 counts here",
        ),
    ),
    "fold-branches": Exercise(
        (
            "What is the sum of two convolutions of the same size and padding?",
            "Which 3 × 3 kernel does what a 1 × 1 kernel does?",
            "Which 1 × 1 kernel gives the input itself?",
        ),
        Function(
            "w3, w1, k3, k1, k0",
            _merged,
            _branches,
            "All batch normalizations stand behind, so that zero padding does no harm.",
            (
                (
                    _without_factors,
                    "Each branch has the factors of its own batch normalization.",
                ),
                (_without_input, "The branch of the input itself is missing."),
                (
                    _all_inputs,
                    "A channel gets its own input only: the identity matrix, not ones.",
                ),
            ),
            what="the weights, with k = γ/√(v + ε) for the three norms, k0 for that "
            "of the input",
        ),
    ),
    "fold-pad": Exercise(
        (
            "Which value should the padding have after batch normalization?",
            "Batch normalization is k p + c in evaluation mode. Solve for p.",
            "When has k p + c = 0 no solution?",
        ),
        Function(
            "m, v, gamma, beta, eps",
            _padding,
            uniform((-2, 2), (0.5, 2), (0.5, 2), (0.5, 2), (0.01, 0.1)),
            "A channel with gain 0 has none, unless its bias is 0 as well.",
            (
                (
                    lambda m, v, gamma, beta, eps: m,
                    "That gives β after batch normalization, and 0 is wanted.",
                ),
                (
                    lambda m, v, gamma, beta, eps: m - beta / gamma,
                    "k is γ/√(v + ε): the root is missing.",
                ),
                (
                    lambda m, v, gamma, beta, eps: m + beta * sqrt(v + eps) / gamma,
                    "The sign: k p + c = 0.",
                ),
                (
                    lambda m, v, gamma, beta, eps: 0.0,
                    "That is the padding that cannot be folded.",
                ),
                (
                    lambda m, v, gamma, beta, eps: m - beta * sqrt(v) / gamma,
                    "ε stands in the root.",
                ),
            ),
            what="the number for one channel",
        ),
    ),
    "fast-one-pass": Exercise(
        (
            "Subtract two numbers that agree in their first six digits. What is left?",
            "From where does the second loop read a row that has just been read?",
        ),
        Choice(
            "a large mean",
            "Two large numbers are subtracted. And nothing is saved: the second loop "
            "reads the cache.",
            {
                "a long row": "One that does not fit into the cache would save a "
                "pass; it is no more wrong for it.",
                "an outlier": "It makes the deviation large as well, and the error is "
                "small beside it.",
            },
            "where it goes wrong",
        ),
    ),
    "fast-residual": Exercise(
        (
            "Count what each operator reads and writes, in units of x.",
            "What has to be read at least, and what has to be written?",
        ),
        Numbers(
            "two numbers of passes, of the two operators and of one kernel",
            (5, 4),
            "A product of many rows waits for arithmetic, so it gains little from a "
            "read less.",
            (
                ((5, 3), "s is needed later: it has to be written, too."),
                ((4, 4), "The sum reads two and writes one; the norm, one and one."),
                (
                    (4, 3),
                    "The sum reads two and writes one; and the kernel has to write s, "
                    "too.",
                ),
                ((6, 4), "The norm reads s alone: one and one."),
            ),
        ),
    ),
    "fast-width": Exercise(
        (
            "Which sizes has the matrix of a product, and which a hat or a gate?",
            "Both D and H grow 8 times.",
        ),
        Numbers(
            "two factors, of the products and of hats and gates",
            (64, 8),
            "What calls cost stays: all ways come nearer to torch.nn.LSTM.",
            (
                ((8, 8), "A matrix has two sides, and both grow."),
                ((64, 64), "Hats and gates have one number a unit."),
                ((8, 64), "They are exchanged."),
            ),
        ),
    ),
}
