"""The exercises of the part on why batch normalization works."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import numpy as np

from normbook.exercises.answers import Choice, Exercise, Function, Numbers, Sizes


def _factor(rand: np.random.Generator) -> tuple[Any, ...]:
    return (rand.uniform(2, 20),)


def _three(rand: np.random.Generator) -> tuple[Any, ...]:
    return tuple(rand.uniform(0.2, 3, 3))


def _bound(rand: np.random.Generator) -> tuple[Any, ...]:
    return int(rand.integers(3, 50)), rand.uniform(0.5, 2), rand.uniform(0.5, 2)


def _use(rand: np.random.Generator) -> tuple[Any, ...]:
    return rand.uniform(0.2, 2), rand.uniform(0.3, 1.3)


EXERCISES = {
    "cs-bug": Exercise(
        (
            "Read in the manual of np.polyfit what its weights multiply.",
            "They multiply residuals, which are squared afterwards. As if drawn from "
            "which density do the inputs count?",
            "Complete the square in the exponent of p_use² / p_train.",
        ),
        Numbers(
            "mean and standard deviation of the inputs for which the line is best",
            (12 / 7, 1 / sqrt(7)),
            "The call lacks a root; its line has the slope 24/7.",
            (
                ((1.5, 0.5), "For these the right weights are best. Hers are squared."),
                ((12 / 7, 1 / 7), "1/7 is the variance. Take the root."),
                (
                    (1.5, sqrt(1 / 8)),
                    "That is p_use² alone. It is divided by p_train once.",
                ),
            ),
        ),
    ),
    "cs-prior": Exercise(
        (
            "Write the ratio of the joint densities, each split as p(x | t) p(t).",
            "What stays cancels. What is left does not depend on x.",
        ),
        Numbers(
            "two weights, for t = 0 and for t = 1",
            (2 / 3, 3 / 2),
            "They depend on the target alone.",
            (
                ((3 / 2, 2 / 3), "They are exchanged: use has more of t = 1."),
                ((0.4, 0.6), "Those are the new probabilities. Divide by the old."),
            ),
        ),
    ),
    "cs-cost": Exercise(
        (
            "The mean under p_train of the squared ratio is the integral of "
            "p_use² / p_train.",
            "Complete the square in x. The factor of x² is 1/2 − 1/σ².",
        ),
        Function(
            "mu, sigma",
            lambda mu, sigma: exp(mu**2 / (2 - sigma**2)) / sigma / sqrt(2 - sigma**2),
            _use,
            "From σ² = 2 on it is infinite.",
            (
                (
                    lambda mu, sigma: exp(mu**2 / (2 - sigma**2)),
                    "The factor in front is missing: at μ = 0 it is 1/(σ √(2 − σ²)).",
                ),
                (
                    lambda mu, sigma: 1.0,
                    "That is the mean of the weight. Its square is asked for.",
                ),
                (
                    lambda mu, sigma: (
                        exp(mu**2 / (2 - sigma**2)) * sigma * sqrt(2 - sigma**2)
                    ),
                    "The factor in front is turned over.",
                ),
            ),
            what="the mean square of the weights",
        ),
    ),
    "ics-bug": Exercise(
        (
            "How often does gradient_shift call loss, and what does each call draw?",
            "With the learning rate 0 nothing moves, so every shift has to be 0.",
        ),
        Choice(
            "batch",
            "Before and after are of different batches. Draw once, outside.",
            {
                "step": "With a step of 0 she would still find shifts.",
                "loss": "Cross-entropy is the loss that is trained, and right.",
            },
            "what is at fault",
        ),
    ),
    "ics-shape": Exercise(
        (
            "Mean and deviation behind the layer are β and |γ|, up to ε.",
            "Pass a function as step that leaves vectors as they are.",
        ),
        Choice(
            "shape",
            "In one step nearly all of it. Over a training γ and β do count.",
            {
                "location": "The mean is β, and one step hardly moves it.",
                "scale": "The deviation is |γ| up to ε, and one step hardly moves it.",
            },
            "what nearly all of the shift is, in one step",
        ),
    ),
    "ics-scale": Exercise(
        (
            "What does the layer behind the first matrix do with a factor of its "
            "input?",
            "The same loss, written in weights that are k times as long: "
            "differentiate.",
        ),
        Function(
            "k",
            lambda k: 1 / k,
            _factor,
            "And both shifts are 0 up to ε: the layer divides the factor out.",
            (
                (
                    lambda k: k,
                    "The loss does not change while the weights do: less, not more.",
                ),
                (lambda k: 1.0, "γ and β keep their gradients; the matrix does not."),
                (lambda k: 1 / k**2, "That is what becomes of the effective rate."),
            ),
            what="the factor of the gradient of the first matrix",
        ),
    ),
    "smo-bug": Exercise(
        (
            "For a linear loss the gradient is the same everywhere, on one batch.",
            "What does noise do when steps get shorter, and what a change that is "
            "not divided?",
        ),
        Choice(
            "distance",
            "The change is not divided by η‖g‖, and falls with it. The other bug is "
            "noise.",
            {
                "batch": "The noise of new batches stays as it is, however short the "
                "step.",
            },
            "the bug that shorter steps show",
        ),
    ),
    "smo-scale": Exercise(
        (
            "The gradient at kW is 1/k of that at W.",
            "To pass through the same functions, a step has to be k times as long.",
            "S is a change of the gradient by a distance.",
        ),
        Function(
            "k",
            lambda k: 1 / k**2,
            _factor,
            "And ηS stays: compare that, or nothing.",
            (
                (
                    lambda k: 1 / k,
                    "That is the gradient alone. The distance grows, too.",
                ),
                (lambda k: k**2, "That is the factor of η."),
                (lambda k: 1.0, "The function is the same, its gradient by W is not."),
            ),
            what="the factor of S",
        ),
    ),
    "smo-print": Exercise(
        (
            "The exact length has 1/N where the print has its root. Take the "
            "difference.",
            "It is a positive factor times the square of ⟨x̂, g⟩.",
            "For g = x̂ the mean of g is 0, and ⟨x̂, g⟩ is N.",
        ),
        Function(
            "N, gamma, sigma",
            lambda N, gamma, sigma: gamma**2 / sigma**2 * (N - N**1.5),
            _bound,
            "It is below zero, where the length is 0. Only g orthogonal to x̂ keep it.",
            (
                (
                    lambda N, gamma, sigma: 0.0,
                    "That is the left side, the true length.",
                ),
                (lambda N, gamma, sigma: N - N**1.5, "The factor γ²/σ² is missing."),
                (
                    lambda N, gamma, sigma: gamma**2 / sigma**2 * (N - N**0.5),
                    "⟨x̂, g⟩ is squared: N² by the root of N.",
                ),
            ),
            what="the side as printed for g = x̂",
        ),
    ),
    "smo-distance": Exercise(
        (
            "along_gradient takes step lengths η, and walks η times the gradient.",
            "Which of the two networks has the longer gradient?",
        ),
        Function(
            "share, w_norm, v_norm",
            lambda share, w_norm, v_norm: share * w_norm * v_norm,
            _three,
            "The one with the longer gradient goes farther. Divide by it.",
            (
                (
                    lambda share, w_norm, v_norm: share * w_norm,
                    "That is how far it was to walk.",
                ),
                (
                    lambda share, w_norm, v_norm: share * w_norm / v_norm,
                    "That is the step length that would have been right.",
                ),
            ),
            what="how far a network with a gradient of length v_norm walks",
        ),
    ),
    "smo-units": Exercise(
        (
            "The gradient grows by c and the step length shrinks by c: what of the "
            "path?",
            "Along the same path, what becomes of the change of the gradient?",
        ),
        Function(
            "c",
            lambda c: c,
            _factor,
            "So ηS stays the same. It has no unit, and 2 is what to compare it with.",
            (
                (lambda c: 1.0, "ηS stays, and η is divided by c."),
                (lambda c: c**2, "The change grows by c, and the distance stays."),
                (lambda c: 1 / c, "That is what becomes of the learning rate."),
            ),
            what="the factor of S",
        ),
    ),
    "si-bug": Exercise(
        (
            "What does the backward pass know of statistics under no_grad?",
            "Multiply the weights by 3: what becomes of x̂, and of s?",
            "Which property needs the routes through mean and deviation?",
        ),
        Choice(
            "orthogonality",
            "The gradient is no longer orthogonal to the weights: two routes are cut.",
            {
                "loss": "The function is right, so the loss stays.",
                "third": "The gradient does become a third: x̂ stays, and s is three "
                "times as large.",
            },
            "the test that fails",
        ),
    ),
    "si-sign": Exercise(
        (
            "Try a factor of −1.",
            "How often is a normal number negative?",
        ),
        Numbers(
            "the expected share of the units that fail",
            0.5,
            "Those with negative factors: their outputs have the other sign.",
            (
                (0, "x̂ has a sign: a negative factor turns it."),
                (1, "A positive factor does cancel."),
            ),
        ),
    ),
    "si-knobs": Exercise(
        (
            "Write ω for the weights of the second training, and w = ω/√c.",
            "Put it into the update; the gradient at ω/√c is √c times that at ω.",
        ),
        Function(
            "c",
            sqrt,
            _factor,
            "After the start is forgotten, only the product ηλ counts.",
            (
                (lambda c: c, "A step of c η on weights c times as long turns less."),
                (
                    lambda c: 1 / sqrt(c),
                    "With a larger rate the weights have to be longer.",
                ),
                (
                    lambda c: 1.0,
                    "From the same weights the first step is c times as long.",
                ),
            ),
            what="the factor of the first weights",
        ),
    ),
    "si-adam": Exercise(
        (
            "Multiply all weights by a. What becomes of the gradients, and of Adam's "
            "step?",
            "To turn as much, a step has to grow as the weights do.",
        ),
        Numbers(
            "the power p, if the effective rate is η divided by ‖w‖ to the power of p",
            1,
            "And no Pythagoras: the step is not orthogonal to the weights.",
            (
                (2, "That is for plain SGD, where the gradient is shorter, too."),
                (
                    0,
                    "The step keeps its length, on weights that are longer: it turns "
                    "less.",
                ),
            ),
        ),
    ),
    "si-which": Exercise(
        (
            "Does the function between the parameter and the next layer pass a "
            "factor on?",
            "max(a x, 0) is a max(x, 0) for a > 0. And a sigmoid?",
            "In evaluation the statistics do not know the weights of now.",
        ),
        Sizes(
            "the numbers of the invariant ones",
            frozenset((1, 3)),
            "ReLU and linear maps pass a factor on, and the next layer divides it out.",
            (
                (
                    frozenset((1, 2, 3)),
                    lambda given: 2 in given,
                    "A sigmoid does not pass a factor on.",
                ),
                (
                    frozenset((1, 3, 4)),
                    lambda given: 4 in given,
                    "In evaluation the statistics are constants, and the factor stays.",
                ),
                (
                    frozenset((1,)),
                    lambda given: given == {1},
                    "Gain and bias together pass a factor through ReLU and the "
                    "linear layer.",
                ),
            ),
        ),
    ),
    "lsq-bug": Exercise(
        (
            "Along which direction does the loss not change at all?",
            "Look at the eigenvalues one by one, with their eigenvectors.",
        ),
        Choice(
            "length",
            "The eigenvalue 0 belongs to the length of w. The ratio of the others "
            "counts.",
            {
                "data": "The condition of the data is that of the covariance, and "
                "small here.",
                "gain": "The gain is not part of this matrix.",
            },
            "what the smallest eigenvalue belongs to",
        ),
    ),
    "lsq-targets": Exercise(
        (
            "The eigenvalues that count lie between those of Σ, one in each gap.",
            "There are three of them. Which ends of the gaps bring the outer two "
            "together?",
        ),
        Numbers(
            "the smallest possible effective condition number",
            2,
            "It is λ₂/λ₃, reached with cos² α = 2/7.",
            (
                (
                    8,
                    "That is the largest one, for b without its first and last "
                    "entries.",
                ),
                (4, "Both ends can be brought in: to λ₂ from above, to λ₃ from below."),
                (1, "The gaps meet in λ₂ and λ₃, which differ."),
            ),
        ),
    ),
    "lsq-gain": Exercise(
        (
            "What is the curvature in γ, by the first step of the derivation?",
            "Gradient descent on a parabola of curvature 1 converges below which rate?",
        ),
        Numbers(
            "the rate from which on the gain does not converge",
            2,
            "The length of w protects w and not γ.",
            (
                (
                    1,
                    "At 1 it arrives in one step. Above, it swings, and still "
                    "converges.",
                ),
                (0.5, "The curvature is 1: the limit is 2 by it."),
            ),
        ),
    ),
}
