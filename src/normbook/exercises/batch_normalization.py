"""The exercises of the part on batch normalization."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np

from normbook.batch_norm import batch_norm_backward, batch_norm_forward
from normbook.exercises.answers import Choice, Exercise, Function, Numbers, Sizes

Drawn = tuple[Any, ...]


def _share(rand: np.random.Generator) -> Drawn:
    return (rand.uniform(0.05, 0.95),)


def _count(rand: np.random.Generator) -> Drawn:
    return (int(rand.integers(3, 200)),)


def _steps(condition: float) -> float:
    """Return the steps to a hundredth, at the best step size."""
    return log(0.01) / log((condition - 1) / (condition + 1))


_OFFSET = (62 + sqrt(62**2 - 4)) / 2  # the larger eigenvalue, for D = 60 and m = 1


def _at_inference(rand: np.random.Generator) -> Drawn:
    return rand.normal(size=8), rand.uniform(0.5, 2), rand.uniform(0.1, 4), 0.01


def _output(rand: np.random.Generator) -> Drawn:
    x, dl_dy = rand.normal(size=(2, 8, 3))
    gamma, beta = rand.uniform(0.5, 2, 3), rand.normal(size=3)
    y, _ = batch_norm_forward(x, gamma, beta, eps=0.0)
    return dl_dy, y, 1 / x.std(0), gamma, beta


def _by_the_layer(dl_dy: Any, y: Any, inv_std: Any, gamma: Any, beta: Any) -> Any:
    x = (y - beta) / gamma / inv_std  # with another mean, which does not count
    _, cache = batch_norm_forward(x, gamma, beta, eps=0.0)
    return batch_norm_backward(dl_dy, cache).dl_dx


def _closed(dl_dy: Any, x_hat: Any, factor: Any) -> Any:
    return factor * (dl_dy - dl_dy.mean(0) - x_hat * (dl_dy * x_hat).mean(0))


def _weights(rand: np.random.Generator) -> Drawn:
    x, dl_dy = rand.normal(size=(2, 8)) * rand.uniform(0.3, 2)
    x_hat = (x - x.mean()) / sqrt(x.var() + 0.1)  # of a batch, for the chain rule
    return dl_dy, x_hat, rand.uniform(0.5, 2), x.var(), 0.1


def _drift(rand: np.random.Generator) -> Drawn:
    return rand.uniform(0.1, 2), int(rand.integers(3, 100))


EXERCISES = {
    "why-leaky": Exercise(
        (
            "Half of the values are positive. What becomes of the mean square of the "
            "rest?",
            "The layer multiplies the mean square by g² (1 + c²) / 2. Let it be 1.",
        ),
        Function(
            "c",
            lambda c: sqrt(2 / (1 + c**2)),
            _share,
            "At c = 0 it is √2, and at c = 1, where nothing is cut, it is 1.",
            (
                (
                    lambda c: sqrt(2),
                    "That is the gain for c = 0: the negative half passes.",
                ),
                (lambda c: 2 / (1 + c**2), "That is g². The gain is its root."),
                (
                    lambda c: sqrt(2 / (1 + c)),
                    "The negative half is multiplied by c, and its mean square by c².",
                ),
            ),
        ),
    ),
    "why-fan": Exercise(
        (
            "An activation is a sum over the inputs of the layer, a derivative one "
            "over its outputs.",
            "A sum of n independent terms has n times the mean square of a term.",
        ),
        Numbers(
            "two variances, for the activations and for the derivatives",
            (1 / 200, 1 / 50),
            "Both at once are impossible here. 1/125 keeps neither: 1.6 and 0.4.",
            (
                (
                    (1 / 50, 1 / 200),
                    "They are exchanged: an activation is a sum of 200 terms.",
                ),
                ((1 / 125, 1 / 125), "That is the compromise, which keeps neither."),
                (
                    (sqrt(1 / 200), sqrt(1 / 50)),
                    "Those are deviations; the variance is asked for.",
                ),
            ),
        ),
    ),
    "why-bug": Exercise(
        (
            "Does the answer to one image depend on the other images of the test set?",
            "Try a test set of a single class, and one of a single image.",
        ),
        Choice(
            "statistics",
            "The test images are standardized with their own; those of training "
            "belong to the model.",
            {
                "axes": "The axis is that of the images, as it must be: one a pixel.",
                "pixels": "A pixel that is never lit has no deviation. To leave it "
                "out is right, and by the training images.",
            },
        ),
    ),
    "why-offset": Exercise(
        (
            "Only the plane of the offset direction and the bias has eigenvalues "
            "other than 1.",
            "In that plane the determinant is 1: the eigenvalues are λ and 1/λ, and "
            "their sum is u.",
            "At the best step size an error shrinks by (κ − 1)/(κ + 1) a step.",
        ),
        Numbers(
            "the number of steps before centring",
            _steps(_OFFSET**2),
            "And one after centring, where all eigenvalues are 1.",
            (
                (
                    _steps(_OFFSET),
                    "That is for κ = λ. The eigenvalues are λ and 1/λ, and κ is their "
                    "quotient.",
                ),
                (
                    log(0.01) / log(1 - 1 / _OFFSET**2),
                    "That is with the step 1/λ. The best one is 2/(λ + 1/λ), twice as "
                    "quick.",
                ),
            ),
        ),
    ),
    "why-whiten": Exercise(
        (
            "Which matrix turns the covariance VΛVᵀ into a diagonal one?",
            "Then each direction is divided by its own deviation, the root of its "
            "variance.",
        ),
        Numbers(
            "the number of steps",
            1,
            "All eigenvalues are 1, so one step with η = 1 arrives. The price is paid "
            "on unseen data.",
            ((0, "The start need not be the minimum."),),
        ),
    ),
    "bn-bound": Exercise(
        (
            "They sum to 0: the large one is minus the sum of the rest.",
            "Bound the square of that sum by Cauchy and Schwarz, with n − 1 terms.",
            "All squares together are at most n. Put the two together.",
        ),
        Function(
            "n",
            lambda n: sqrt(n - 1),
            _count,
            "It is reached when all others are equal.",
            (
                (
                    lambda n: sqrt(n),
                    "The squares add up to n, but the others, which sum to minus it, "
                    "cannot all be 0.",
                ),
                (lambda n: n - 1, "That bounds its square. Take the root."),
                (lambda n: n, "That bounds the sum of all squares."),
            ),
        ),
    ),
    "bn-bug-axes": Exercise(
        (
            "Which shape does each of the three lines give for images (N, C, H, W)?",
            "Test with something of which the positions differ, as in an image.",
        ),
        Choice(
            "var",
            "It averages over the images only, and broadcasting hides it.",
            {
                "mu": "It averages over images and positions: one mean a channel, as "
                "it should.",
                "y": "Here ε stands in the root, where it belongs.",
            },
        ),
    ),
    "bn-bug-eps": Exercise(
        (
            "Write both divisors for σ = 0.001 and ε = 0.00001.",
            "The variance is 10⁻⁶, a tenth of ε. The deviation is a hundred times ε.",
        ),
        Numbers(
            "the mean squares of the normalized feature, with ε inside and outside",
            (1 / 11, 1 / 1.01**2),
            "So the two differ by a factor of eleven where the variance is small.",
            (
                ((1 / 1.01**2, 1 / 11), "They are exchanged."),
                (
                    (1 / sqrt(11), 1 / 1.01),
                    "Those are root mean squares; square them.",
                ),
            ),
        ),
    ),
    "bn-last": Exercise(
        (
            "With the size B, what is left over behind the last full batch of 1437 "
            "images?",
            "One is left over where B divides 1436 and is larger than 1.",
        ),
        Sizes(
            "all batch sizes that leave a single image",
            frozenset((2, 4, 359, 718, 1436)),
            "1436 = 4 · 359. Two are left for the divisors of 1435 that are larger "
            "than 2.",
            (
                (
                    frozenset((1, 2)),
                    lambda sizes: 1 in sizes,
                    "With the size 1 every batch is a single image, and nothing is "
                    "left over.",
                ),
                (
                    frozenset((3,)),
                    lambda sizes: any(1437 % size == 0 for size in sizes),
                    "What divides 1437 leaves nothing over.",
                ),
                (
                    frozenset((5,)),
                    lambda sizes: any(1435 % size == 0 for size in sizes),
                    "What divides 1435 leaves two over.",
                ),
                (
                    frozenset((2,)),
                    lambda sizes: all(1436 % size == 0 for size in sizes),
                    "These are right, and some are missing: all divisors of 1436 but "
                    "1.",
                ),
            ),
        ),
    ),
    "bn-gain": Exercise(
        (
            "Train the plain network with gain=1 and gain=4, and the one with the "
            "layer, from the same seeds.",
            "Divide what is left of the difference by what it was.",
        ),
    ),
    "bng-bug": Exercise(
        (
            "Let N be 1: which of the two readings of n can a batch of one tell apart?",
            "Sum the result over the examples. What must it be?",
        ),
        Choice(
            "n",
            "It is the root of the batch size. The gradients of x no longer sum to 0.",
            {
                "kept": "This line is the closed form times N, if n is N.",
                "return": "The factor is right, if n is N.",
            },
        ),
    ),
    "bng-inference": Exercise(
        (
            "Which of the three routes from x to y does still exist, if m and v are "
            "given numbers?",
            "Only the direct one: y is a straight line in x.",
        ),
        Function(
            "dl_dy, gamma, v, eps",
            lambda dl_dy, gamma, v, eps: gamma / sqrt(v + eps) * dl_dy,
            _at_inference,
            "Examples are independent, and a bias in front learns: its gradient is "
            "the sum.",
            (
                (
                    lambda dl_dy, gamma, v, eps: gamma / (v + eps) * dl_dy,
                    "The layer divides by the root of v + ε.",
                ),
                (
                    lambda dl_dy, gamma, v, eps: gamma / sqrt(v) * dl_dy,
                    "ε stands in the root.",
                ),
                (
                    lambda dl_dy, gamma, v, eps: (
                        gamma / sqrt(v + eps) * (dl_dy - dl_dy.mean())
                    ),
                    "m does not depend on this batch: no mean is taken off.",
                ),
                (
                    lambda dl_dy, gamma, v, eps: dl_dy / sqrt(v + eps),
                    "The gain is missing.",
                ),
            ),
        ),
    ),
    "bng-output": Exercise(
        (
            "Everything in the closed form is there but the normalized x.",
            "Turn y = γ x̂ + β round.",
        ),
        Function(
            "dl_dy, y, inv_std, gamma, beta",
            _by_the_layer,
            _output,
            "For γ = 0 the normalized values, and with them the gradient of γ, are "
            "lost.",
            (
                (
                    lambda dl_dy, y, inv_std, gamma, beta: _closed(
                        dl_dy, y / gamma, gamma * inv_std
                    ),
                    "β has to be taken off before the division by γ.",
                ),
                (
                    lambda dl_dy, y, inv_std, gamma, beta: _closed(
                        dl_dy, (y - beta) / gamma, inv_std
                    ),
                    "The factor γ of the closed form is missing.",
                ),
                (
                    lambda dl_dy, y, inv_std, gamma, beta: gamma * inv_std * dl_dy,
                    "That is the direct route alone; mean and deviation depend on x, "
                    "too.",
                ),
            ),
        ),
    ),
    "bng-weights": Exercise(
        (
            "Multiply the gradient of w by w: which sum over x comes out?",
            "Write x as μ + s x̂. The part with μ vanishes, since the gradients sum "
            "to 0.",
            "What is left is the rule for the scale, with its ε.",
        ),
        Function(
            "dl_dy, x_hat, gamma, var, eps",
            lambda dl_dy, x_hat, gamma, var, eps: (
                gamma * eps / (var + eps) * (dl_dy * x_hat).sum()
            ),
            _weights,
            "For ε = 0 it is 0: gradient descent can only make w longer.",
            (
                (
                    lambda dl_dy, x_hat, gamma, var, eps: 0.0,
                    "That is so for ε = 0. Here ε is not 0, and it leaves a rest.",
                ),
                (
                    lambda dl_dy, x_hat, gamma, var, eps: gamma * (dl_dy * x_hat).sum(),
                    "The share ε/(σ² + ε) is missing.",
                ),
                (
                    lambda dl_dy, x_hat, gamma, var, eps: (
                        gamma * var / (var + eps) * (dl_dy * x_hat).sum()
                    ),
                    "That is what the projection takes away; asked for is what is "
                    "left.",
                ),
            ),
        ),
    ),
    "bng-outlier": Exercise(
        (
            "For large a the mean is about a/N. How far are the broken value and the "
            "others from it, in deviations?",
            "The normalized values sum to 0, and their squares to N.",
        ),
        Numbers(
            "the limits of the broken and of another normalized value, for N = 16",
            (sqrt(15), -1 / sqrt(15)),
            "And all gradients go to 0 with 1/s, the broken one's the fastest.",
            (
                (
                    (4, -1 / 4),
                    "Fifteen times 1/4 is not 4: the values must sum to 0.",
                ),
                (
                    (4, 0),
                    "The others are not 0: together they are minus the broken one.",
                ),
                ((sqrt(15), 0), "The values must sum to 0."),
            ),
        ),
    ),
    "ma-start": Exercise(
        (
            "In each step the start is multiplied by α.",
            "Solve α^τ = 0.01 for τ.",
        ),
        Numbers(
            "three numbers of steps, for α = 0.9, 0.99 and 0.999",
            tuple(log(0.01) / log(alpha) for alpha in (0.9, 0.99, 0.999)),
            "After 500 steps with 0.999 the start has still 61 %: recalibrate.",
            (
                (
                    (10, 100, 1000),
                    "1/(1 − α) steps leave 1/e of the start, not a hundredth.",
                ),
                (
                    tuple(log(0.99) / log(alpha) for alpha in (0.9, 0.99, 0.999)),
                    "That is where the start has lost 1 %.",
                ),
            ),
            rtol=0.02,
        ),
    ),
    "ma-bug": Exercise(
        (
            "By what does each of the two variances divide, and which one is averaged?",
            "In training with N = 4 the biased variance is 3/4 of the other, on "
            "average.",
        ),
        Numbers(
            "the factor of the activations, without noise",
            sqrt(4 / 3),
            "The last line averages the biased variance. With noise it is a little "
            "more.",
            (
                (
                    4 / 3,
                    "That is the factor of the variance; the layer takes its root.",
                ),
                (sqrt(3 / 4), "The activations are too large: the factor is above 1."),
                (3 / 4, "That is the factor of the variance, and the other way round."),
            ),
        ),
    ),
    "ma-graph": Exercise(
        (
            "Does x.mean(0) know how it was computed?",
            "Look at running_mean.grad_fn after two steps.",
        ),
        Choice(
            "graph",
            "The buffer carries the graph of every step so far. Detach what enters it.",
            {
                "momentum": "0.9 and 0.1 are the usual weights, and cost no memory.",
                "axis": "The mean over the examples is the one that is meant.",
            },
        ),
    ),
    "ma-cumulative": Exercise(
        (
            "The values are d, 2d, up to τd, and each counts as much. What is their "
            "mean?",
            "The lag is what the newest value is ahead of it.",
        ),
        Function(
            "d, tau",
            lambda d, tau: d * (tau - 1) / 2,
            _drift,
            "It grows without end, where that of an exponential average is constant.",
            (
                (
                    lambda d, tau: d * (tau + 1) / 2,
                    "That is the average itself; the newest value is τd.",
                ),
                (
                    lambda d, tau: d * tau / 2,
                    "Nearly: the mean of 1 to τ is (τ + 1)/2.",
                ),
            ),
        ),
    ),
    "ma-batch": Exercise(
        (
            "The variance of the running mean is σ²/(N K) with K = (1 + α)/(1 − α).",
            "N falls to a quarter, so K must grow fourfold, from 19 to 76.",
        ),
        Numbers(
            "the momentum 1 − α that keeps the noise",
            2 / 77,
            "α is 75/77. The lag in examples stays nearly the same, in steps it is "
            "fourfold.",
            (
                (
                    0.025,
                    "Nearly: a quarter of the momentum. K = (1 + α)/(1 − α) gives "
                    "2/77.",
                ),
                (75 / 77, "That is α; its momentum is 1 − α."),
                (0.05, "The variance, not the deviation, goes with 1/(N K)."),
                (0.4, "Smaller batches are noisier: average for longer, not shorter."),
            ),
        ),
    ),
}
