"""The exercises of the part on why batch normalization works."""

from __future__ import annotations

import numpy as np

from normbook.exercises.answers import (
    Choice,
    Drawn,
    Exercise,
    Function,
    Numbers,
    uniform,
)


def _spectrum(rand: np.random.Generator) -> Drawn:
    return (np.array([1e-15, *np.sort(rand.uniform(1, 9, size=4))]),)


def _printed(rand: np.random.Generator) -> Drawn:
    return int(rand.integers(2, 50)), *rand.uniform(0.5, 2, 2)


_EIGENVALUES = (8, 4, 2, 1)  # of the exercise on targets

EXERCISES = {
    "ics-bug": Exercise(
        (
            "How often is loss called, and what does it do each time?",
            "Two gradients are compared. May anything but the parameters differ "
            "between them?",
            "What must every shift be if no parameter moves?",
        ),
        Choice(
            "zero",
            "Nothing moves, so every shift must be 0. Here two batches differ.",
            {
                "small": "Nearly: the true shifts are small then. Only where nothing "
                "moves it is known what they must be.",
                "large": "With a large rate the true shifts are large as well, and "
                "hide the bug.",
            },
        ),
    ),
    "ics-shape": Exercise(
        (
            "step may be a function of a parameter and its gradient. Which "
            "parameters are vectors?",
            "Return 0 times the gradient for γ and β, and divide the two shifts.",
        ),
        Choice(
            "nearly all",
            "In one step γ and β hardly move the input. Over a whole training they do.",
            {
                "about half": "With γ and β held, nearly the same shift is left: "
                "measure one step.",
                "nearly nothing": "That the layers below move only the shape does not "
                "say that they move it little.",
            },
        ),
    ),
    "ics-scale": Exercise(
        (
            "What does batch normalization do to a factor of its input?",
            "The loss has f(10 W) = f(W). Differentiate both sides by W.",
            "Of the gradient of layer i definition (b) asks only what the layers "
            "below i do to it.",
        ),
        Numbers(
            "the factor by which the gradient of the first matrix changes",
            1 / 10,
            "Both shifts are 0, up to ε. What a layer does to its own gradient is no "
            "shift.",
            (
                (
                    1,
                    "The function stays the same, its slope does not: f(10 W) = f(W), "
                    "differentiated by W.",
                ),
                (10, "The other way round: 10 ∇f(10 W) = ∇f(W)."),
                (
                    1 / 100,
                    "That is the gradient beside the length of the weights. The "
                    "gradient alone falls less.",
                ),
            ),
        ),
    ),
    "smo-bug": Exercise(
        (
            "β-smoothness compares two gradients of one function. Is it one function "
            "here?",
            "By what should the change of the gradient be divided?",
            "Let the loss be ⟨a, w⟩ with another a for each batch.",
        ),
        Choice(
            "distance",
            "The change is not divided by the distance, so it falls with the steps.",
            {
                "batch": "The noise of new batches does not depend on the step "
                "length. It shows for a linear loss, where 0 is right.",
            },
        ),
    ),
    "smo-scale": Exercise(
        (
            "f(k W) = f(W). Differentiate both sides by W.",
            "The path is to be k times as long, and the gradient is 1/k of what it "
            "was. By what must η be multiplied?",
            "S is a change of the gradient, divided by a distance.",
        ),
        Function(
            "S, k",
            lambda S, k: S / k**2,
            uniform((0.1, 9), (2, 20)),
            "η is multiplied by k², so η S stays. S alone tells nothing about "
            "two networks.",
            (
                (
                    lambda S, k: S,
                    "The function is the same, but its gradient and the distances are "
                    "not.",
                ),
                (
                    lambda S, k: S / k,
                    "The gradients are divided by k, and the distances multiplied by "
                    "k as well.",
                ),
                (
                    lambda S, k: S * k**2,
                    "The other way round: that is the factor of η.",
                ),
            ),
            gives="the smoothness for the weights k W",
        ),
    ),
    "smo-print": Exercise(
        (
            "Subtract the printed right side from the left one. Which terms stay?",
            "What are ⟨x̂, x̂⟩ and ⟨1, x̂⟩?",
        ),
        Function(
            "N, gamma, sigma",
            lambda N, gamma, sigma: (gamma / sigma) ** 2 * (N - N**1.5),
            _printed,
            "The left side is 0 there. The printed bound holds only for g orthogonal "
            "to x̂.",
            (
                (
                    lambda N, gamma, sigma: 0.0,
                    "That is the left side. The printed one has 1/√N in place of 1/N.",
                ),
                (
                    lambda N, gamma, sigma: (gamma / sigma) ** 2 * (N - N**0.5),
                    "⟨x̂, x̂⟩ is N, and it comes in squared.",
                ),
                (
                    lambda N, gamma, sigma: N - N**1.5,
                    "The factor γ²/σ² is missing.",
                ),
            ),
            gives="the printed side for g = x̂",
        ),
    ),
    "smo-distance": Exercise(
        (
            "Is the third argument of along_gradient a distance or a step length?",
            "A step of length η along the gradient v moves the weights by η ‖v‖.",
        ),
        Function(
            "share, w, v",
            lambda share, w, v: share * w * v,
            uniform((0.001, 0.1), (1, 20), (0.1, 5)),
            "So the twin, whose gradient is longer, goes farther. Divide the steps by "
            "‖v‖.",
            (
                (
                    lambda share, w, v: share * w,
                    "That is what was meant. The step is still multiplied by the "
                    "gradient.",
                ),
                (
                    lambda share, w, v: share * w / v,
                    "That is the step length that would be right.",
                ),
                (lambda share, w, v: share * v, "steps has the factor ‖w‖ as well."),
            ),
            gives="the distance walked, for a share and the lengths of weights and "
            "gradient",
        ),
    ),
    "smo-units": Exercise(
        (
            "The gradient is c times as long, and η is divided by c. What becomes of "
            "the path?",
            "Along one and the same path the losses, and their gradients, are "
            "multiplied by c.",
            "S is the change of the gradient, divided by the distance.",
        ),
        Numbers(
            "four factors for c = 1000: of loss range, gradient change, S and η S",
            (1000, 1000, 1000, 1),
            "η S has no unit. The number to compare it with is 2.",
            (
                (
                    (1, 1, 1, 1),
                    "The path is the same; the loss along it is 1000 times as large.",
                ),
                (
                    (1000, 1000, 1e6, 1000),
                    "The distance is not divided by c: the longer gradient makes up "
                    "for the smaller η.",
                ),
                (
                    (1000, 1000, 1, 1 / 1000),
                    "The distance is not multiplied by c: the smaller η makes up for "
                    "the longer gradient.",
                ),
            ),
        ),
    ),
    "si-bug": Exercise(
        (
            "What does the backward pass know of μ and σ under no_grad?",
            "With μ and s held, the gradient of x is 1/s times that of x̂. How does it "
            "change when the weights are multiplied by 3?",
            "The growth of the length follows from a property that neither of his "
            "tests looks at.",
        ),
        Choice(
            "orthogonality",
            "The statistics are constants for the backward pass, and the gradient "
            "has a part along the weights.",
            {
                "loss": "The function is right, and its values with it.",
                "a third": "x̂ stays and s is three times as large, so that even the "
                "wrong gradient becomes a third.",
            },
        ),
    ),
    "si-sign": Exercise(
        (
            "What is the standard deviation of a x, if a is negative?",
            "How many of 2000 normal numbers are negative?",
        ),
        Numbers(
            "the number of units that you expect",
            1000,
            "The negative factors turn the sign. A negative γ can undo it.",
            (
                (0, "The deviation is |a| times as large: the sign of a is left over."),
                (2000, "For positive factors the sentence is true."),
            ),
            rtol=0.1,
        ),
    ),
    "si-knobs": Exercise(
        (
            "Write w = ω/√c, and put it into the update.",
            "The gradient at ω/√c is √c times that at ω.",
            "What differs between the two settings at the start, and what does weight "
            "decay do to that?",
        ),
        Choice(
            "product",
            "Only ηλ decides how far an update turns, once the initial scale is "
            "forgotten.",
            {
                "quotient": "c multiplies the one and divides the other. What stays?",
                "both": "Two settings with the same product differ in the initial "
                "scale only, which weight decay forgets.",
            },
        ),
    ),
    "si-adam": Exercise(
        (
            "What happens to the gradient when the weights are multiplied by a, and "
            "what to Adam's step?",
            "How far does a step of a given length turn a vector that is a times as "
            "long?",
        ),
        Function(
            "eta, length",
            lambda eta, length: eta / length,
            uniform((0.01, 1), (2, 20)),
            "And the step is no longer orthogonal to the weights: their growth obeys "
            "another rule.",
            (
                (
                    lambda eta, length: eta / length**2,
                    "That is gradient descent. Adam divides the length of the gradient "
                    "out, and one power goes with it.",
                ),
                (
                    lambda eta, length: eta,
                    "A step is as long as before, but it turns long weights less.",
                ),
                (
                    lambda eta, length: eta * length,
                    "The other way round: longer weights turn less.",
                ),
            ),
            gives="the effective learning rate",
        ),
    ),
    "si-which": Exercise(
        (
            "Multiply the parameters by a > 0. Does what stands behind them pass a "
            "common factor on?",
            "ReLU does: max(a x, 0) = a max(x, 0).",
            "In evaluation mode, who divides the factor out?",
        ),
        Numbers(
            "four numbers, 1 for scale invariant and 0 for not",
            (1, 0, 1, 0),
            "Scale invariance is a property of training; the running statistics "
            "belong to the old weights.",
            (
                (
                    (1, 0, 0, 0),
                    "Multiply γ and β both: ReLU passes the factor on, and the second "
                    "batch normalization divides it out.",
                ),
                (
                    (1, 0, 1, 1),
                    "The running statistics belong to the old weights, and stay.",
                ),
                ((1, 1, 1, 0), "A sigmoid does not pass a factor on."),
                ((0, 0, 1, 0), "ReLU passes a positive factor on."),
            ),
        ),
    ),
    "lsq-bug": Exercise(
        (
            "Which direction does the loss not depend on at all?",
            "cond divides the largest singular value by the smallest one. Which is "
            "that?",
        ),
        Function(
            "lam",
            lambda lam: lam[-1] / lam[1],
            _spectrum,
            "The eigenvalue 0 along u belongs to the length of w, and no gradient "
            "points there.",
            (
                (
                    lambda lam: lam[-1] / lam[0],
                    "That was measured: a rounding error stands below. Leave the "
                    "eigenvalue along u out.",
                ),
                (
                    lambda lam: lam[-2] / lam[1],
                    "The largest one stays. Only the smallest has to go.",
                ),
            ),
            gives="the right ratio, for the eigenvalues of the Hessian in rising order",
        ),
    ),
    "lsq-targets": Exercise(
        (
            "Interlacing: each of the three numbers that stay lies between two "
            "neighbours of 8, 4, 2, 1.",
            "κ stays if b is orthogonal to the first and to the last eigenvector.",
            "For the smallest one, let the largest that stays be 4 and the smallest 2.",
        ),
        Numbers(
            "the smallest possible condition number",
            _EIGENVALUES[1] / _EIGENVALUES[2],
            "The third number has to fall between 4 and 2. For 3, cos²α is 2/7.",
            (
                (8, "That is the largest one, for (0, 1, 1, 0)."),
                (
                    4,
                    "So it is when b is an eigenvector at one end. A b with parts at "
                    "both ends is better.",
                ),
                (1, "Interlacing: one number is at least 4, and one at most 2."),
            ),
        ),
    ),
    "lsq-gain": Exercise(
        (
            "Write the loss as a function of γ alone. What is its curvature?",
            "Gradient descent on a parabola with curvature 1 needs which η?",
        ),
        Choice(
            "below 2",
            "The curvature in γ is 1 whatever w is, and no growth of weights helps.",
            {
                "every": "That is so with the best gain in each step. A gain that is "
                "learned is not protected.",
                "none": "The solution runs two rates that converge, 1 and 1.9.",
            },
        ),
    ),
}
