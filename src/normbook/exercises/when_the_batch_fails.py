"""The exercises of the part on batches that are small, split or padded."""

from __future__ import annotations

from math import exp, lgamma, pi, sqrt
from typing import Any

import numpy as np

from normbook.batch_norm import batch_norm_backward, batch_norm_forward
from normbook.exercises.answers import (
    Drawn,
    Exercise,
    Function,
    Numbers,
    uniform,
    whole,
)


def _renormalized(rand: np.random.Generator) -> Drawn:
    x, dl_dy = rand.normal(size=(2, 6, 3))
    return dl_dy, x, rand.normal(size=3), rand.uniform(0.5, 2, size=3), 1e-5


def _detached(dl_dy: Any, x: Any, mean: Any, var: Any, eps: Any) -> Any:
    _, cache = batch_norm_forward(x, eps=eps)
    r = np.sqrt((x.var(0) + eps) / (var + eps))
    return batch_norm_backward(r * dl_dy, cache).dl_dx


def _follows(N: int, power: int) -> float:
    """Return a power of the expected deviation of N normal numbers."""
    return (sqrt(2 / N) * exp(lgamma(N / 2) - lgamma((N - 1) / 2))) ** power


def _first(is_enough: Any) -> int:
    return next(N for N in range(2, 999) if is_enough(N))


_NORMAL = _first(lambda N: (N - 1) / (N + 1) >= 0.99)  # by the fourth moment
_MISMATCH = _first(lambda N: _follows(N, 2) >= 0.99)


def _sums(rand: np.random.Generator) -> Drawn:
    x, c = rand.normal(3, 2, size=7), rand.uniform(0, 6)
    return (x - c).sum(), ((x - c) ** 2).sum(), c, len(x)


_SHIFTED = uniform((0.5, 2), (0.5, 2), (0.1, 0.9))  # mean, variance, share of padding


def _live(mu: float, var: float, p: float) -> tuple[float, float]:
    padded = (1 - p) * var + p * (1 - p) * mu**2
    return p * mu / sqrt(padded), var / padded


EXERCISES = {
    "sb-bug": Exercise(
        (
            "Put r and d into y where nothing is clipped. What is left of the batch "
            "statistics?",
            "Which two quantities does autograd see here and must not see?",
        ),
        Function(
            "dl_dy, x, mean, var, eps",
            lambda dl_dy, x, mean, var, eps: dl_dy / np.sqrt(var + eps),
            _renormalized,
            "r and d are not detached, and the batch statistics cancel. The sums over "
            "the batch are no longer 0.",
            (
                (
                    _detached,
                    "That is batch renormalization, with r and d detached. Here they "
                    "are not.",
                ),
                (
                    lambda dl_dy, x, mean, var, eps: dl_dy / np.sqrt(x.var(0) + eps),
                    "The statistics of the batch cancel; the running ones are left.",
                ),
                (
                    lambda dl_dy, x, mean, var, eps: dl_dy / (var + eps),
                    "The layer divides by the root of var + eps.",
                ),
            ),
            what="the gradient of x, for running mean and var",
        ),
    ),
    "sb-two": Exercise(
        (
            "Put h = v √ε into the integral of the factor. What becomes of ε?",
            "The factor is the derivative of a function that goes from −1 to 1. So "
            "what is the area under it?",
            "As ε → 0 all the area lies near h = 0. Which density has h there?",
        ),
        Numbers(
            "the expectation as ε → 0",
            2 / sqrt(pi),
            "It comes in rare blows: for ε = 10⁻⁵ the rarest 1 % of the pairs hold "
            "94 % of it.",
            (
                (
                    0,
                    "Nearly every pair passes nothing. The rest pass up to 1/√ε.",
                ),
                (2, "That is the area under the factor. The density of h is missing."),
                (
                    1 / sqrt(pi),
                    "That is the density at 0. The area under the factor is 2.",
                ),
                (
                    2 / sqrt(2 * pi),
                    "The variance of h is 1/2: it is half of a difference.",
                ),
            ),
        ),
    ),
    "sb-enough": Exercise(
        (
            "The fourth moment is 3 (N − 1)/(N + 1).",
            "The share of the variance that follows training is the square of the "
            "expected deviation.",
            "For large N that square is about 1 − 3/(2 N).",
        ),
        Numbers(
            "two numbers of examples, for the fourth moment and for the mismatch",
            (_NORMAL, _MISMATCH),
            "Batch normalization was ahead with 8 or 16 examples: it needs no normal "
            "look.",
            (
                ((_MISMATCH, _NORMAL), "They are exchanged."),
                (
                    (_NORMAL, _first(lambda N: _follows(N, 1) >= 0.99)),
                    "What follows training is the square of the expected deviation.",
                ),
                (
                    (_NORMAL, 100),
                    "1 − 1/N is the expected variance. What counts is the square of "
                    "the expected deviation.",
                ),
            ),
        ),
    ),
    "split-average": Exercise(
        (
            "The variance of a whole is the mean of the variances, and what else?",
            "How far do the means of shards of m independent values lie apart?",
        ),
        Function(
            "m",
            lambda m: 1 - 1 / m,
            whole((4, 200)),
            "With m = 128 that is 0.8 %, which the tolerance forgives. Unequal shards "
            "count equally, too.",
            (
                (lambda m: 1 / m, "That is the share that is missing."),
                (
                    lambda m: sqrt(1 - 1 / m),
                    "That is the factor of the deviation.",
                ),
                (
                    lambda m: 1.0,
                    "The means of the shards differ by chance, and their spread is "
                    "missing.",
                ),
                (
                    lambda m: 1 - 1 / (2 * m),
                    "One batch of 2 m values loses 1/(2 m). A shard of m loses 1/m.",
                ),
            ),
            what="the factor of the variance, for m independent values a shard",
        ),
    ),
    "split-gamma": Exercise(
        (
            "What does DistributedDataParallel do with the gradients of all replicas?",
            "What is the average of eight equal numbers?",
        ),
        Numbers(
            "the factor of the learning rate of γ and β beside that of other weights",
            8,
            "Each layer has to report its own share, before the sum.",
            (
                (
                    1,
                    "All other weights get the sum divided by eight. What do γ and β "
                    "get?",
                ),
                (64, "The sum is taken once. The average leaves it as it is."),
                (1 / 8, "The other way round: γ and β get too much."),
            ),
        ),
    ),
    "split-pivot": Exercise(
        (
            "The mean of x − c is μ − c.",
            "A sum of squares about c is that about the mean, and n times what?",
        ),
        Function(
            "S, Q, c, n",
            lambda S, Q, c, n: (c + S / n, Q - S**2 / n),
            _sums,
            "Ten deviations from the mean cost nothing to speak of, in float32; a "
            "thousand cost several per cent.",
            (
                (
                    lambda S, Q, c, n: (S / n, Q - S**2 / n),
                    "S/n is the mean of x − c.",
                ),
                (
                    lambda S, Q, c, n: (c + S / n, Q),
                    "Q is about c, and M about the mean: n (μ − c)² is between them.",
                ),
                (
                    lambda S, Q, c, n: (c + S / n, Q / n - (S / n) ** 2),
                    "That is the variance. M is the sum of squares.",
                ),
                (
                    lambda S, Q, c, n: (c + S / n, Q - (c + S / n) ** 2 * n),
                    "Take off n (μ − c)², not n μ².",
                ),
            ),
            what="μ and M, for the sums S of x − c and Q of (x − c)²",
        ),
    ),
    "split-momentum": Exercise(
        (
            "With momentum 0.1 and one update a step, which weight has the old value "
            "after a step?",
            "The same after eight updates: (1 − m)⁸ is what?",
        ),
        Numbers(
            "the momentum",
            1 - 0.9 ** (1 / 8),
            "The noise is nearly the same: the eight parts of a step weigh almost "
            "equally.",
            (
                (0.1 / 8, "Nearly. Weights multiply: (1 − m)⁸ = 0.9."),
                (0.1, "Then after one step 0.9⁸ = 0.43 of the old value is left."),
                (
                    1 - 0.9**8,
                    "The other way round: eight small updates are to make one large.",
                ),
                (0.9 ** (1 / 8), "That is 1 − m."),
            ),
            rtol=0.005,
        ),
    ),
    "vl-value": Exercise(
        (
            "Subtract c from everything. What is the padding then, and what the live "
            "mean?",
            "Take the formulas for padding with 0, and move the mean back by c.",
            "What is left of the variance for c = μ?",
        ),
        Function(
            "mu, var, c, p",
            lambda mu, var, c, p: (
                (1 - p) * mu + p * c,
                (1 - p) * var + p * (1 - p) * (mu - c) ** 2,
            ),
            uniform((0.5, 2), (0.5, 2), (-2, 3), (0.1, 0.9)),
            "For c = μ the mean is right, but the variance is still (1 − p) σ²: no "
            "number is harmless.",
            (
                (
                    lambda mu, var, c, p: (
                        (1 - p) * mu,
                        (1 - p) * var + p * (1 - p) * mu**2,
                    ),
                    "That is for c = 0.",
                ),
                (
                    lambda mu, var, c, p: ((1 - p) * mu + p * c, (1 - p) * var),
                    "Live values and padding lie apart: their means spread, too.",
                ),
                (
                    lambda mu, var, c, p: (
                        (1 - p) * mu + p * c,
                        (1 - p) * var + p * (1 - p) * mu**2,
                    ),
                    "Padding lies at c: its distance from the live mean is μ − c.",
                ),
            ),
            what="m and v",
        ),
    ),
    "vl-count": Exercise(
        (
            "By how many places does each of the two means divide, and by how many "
            "should it?",
            "var is about the wrong mean: its live values lie p μ from it.",
        ),
        Function(
            "mu, var, p",
            lambda mu, var, p: ((1 - p) * mu, (1 - p) * (var + (p * mu) ** 2)),
            _SHIFTED,
            "NaN stays NaN, since 0 · NaN is NaN. np.where takes it out.",
            (
                (
                    lambda mu, var, p: (
                        (1 - p) * mu,
                        (1 - p) * var + p * (1 - p) * mu**2,
                    ),
                    "That is the variance of all places. Here the mask takes the "
                    "padding out of the squares.",
                ),
                (
                    lambda mu, var, p: (mu, (1 - p) * var),
                    "mu is wrong as well: it divides by all places.",
                ),
                (
                    lambda mu, var, p: ((1 - p) * mu, var + (p * mu) ** 2),
                    "The second mean divides by all places, too.",
                ),
                (
                    lambda mu, var, p: ((1 - p) * mu, (1 - p) * var),
                    "The squares are about the wrong mean.",
                ),
            ),
            what="the two wrong numbers, for live values with mu and var and the "
            "share p of padding",
        ),
    ),
    "vl-group": Exercise(
        (
            "Over which axes does GroupNorm with one group average?",
            "The padding of this example is among its values, with the share p.",
            "Take off m = (1 − p) μ, and divide by the deviation of all places.",
        ),
        Function(
            "mu, var, p",
            _live,
            _SHIFTED,
            "Move the channels to the end, and take nn.LayerNorm(D).",
            (
                (
                    lambda mu, var, p: (0.0, 1.0),
                    "So it were if the padding were not among the values.",
                ),
                (
                    lambda mu, var, p: (
                        _live(mu, var, p)[0],
                        sqrt(_live(mu, var, p)[1]),
                    ),
                    "The second is the deviation. The variance is its square.",
                ),
                (
                    lambda mu, var, p: (
                        (1 - p) * mu,
                        (1 - p) * var + p * (1 - p) * mu**2,
                    ),
                    "Those are taken off and divided by. What becomes of the live "
                    "values?",
                ),
            ),
            what="mean and variance of the live values after the layer, for ε = 0, "
            "and p = 1 − T_i/T",
        ),
    ),
}
