"""The exercises of the part on recurrent networks."""

from __future__ import annotations

from math import log, sqrt, tanh

from normbook.exercises.answers import (
    Choice,
    Exercise,
    Function,
    Numbers,
    uniform,
    whole,
)

EXERCISES = {
    "lstm-bug": Exercise(
        (
            "What is h_t in an LSTM, and what was it in the simple network?",
            "Of which function is 1 − tanh² the derivative, and where does its tanh "
            "stand?",
            "Compare 1 − o² tanh² with 1 − tanh², for o < 1.",
        ),
        Function(
            "o, c",
            lambda o, c: (1 - o**2 * tanh(c) ** 2) / (1 - tanh(c) ** 2),
            uniform((0.1, 0.9), (0.2, 2)),
            "It is at least 1 and never negative: the signs are right, so the loss may "
            "fall.",
            (
                (
                    lambda o, c: (1 - tanh(c) ** 2) / (1 - o**2 * tanh(c) ** 2),
                    "The other way round: 1 − h² is too large.",
                ),
                (
                    lambda o, c: (1 - o * tanh(c) ** 2) / (1 - tanh(c) ** 2),
                    "h is squared, and o with it.",
                ),
                (lambda o, c: 1.0, "h is o tanh(c), and o is below 1."),
            ),
            what="the factor between her derivative and the right one",
        ),
    ),
    "lstm-quadratic": Exercise(
        (
            "Which shape has the gradient that the node of x[t] returns?",
            "How many such nodes are there, and what happens to what they return?",
        ),
        Function(
            "T, N, D",
            lambda T, N, D: T * T * N * D,
            whole((2, 50), (2, 9), (2, 9)),
            "x.unbind(0) is one node, which stacks T gradients once: T N D numbers.",
            (
                (
                    lambda T, N, D: T * N * D,
                    "So with unbind. Each x[t] returns an array of the shape of all "
                    "of x.",
                ),
                (
                    lambda T, N, D: T * T,
                    "Right in T. Each array has N D numbers a step.",
                ),
            ),
            what="how many numbers the nodes of all x[t] return",
        ),
    ),
    "lstm-carousel": Exercise(
        (
            "c_T is a sum of T independent terms. Which variance has it?",
            "By which factor does a gradient enter a cell that is far from 0?",
        ),
        Function(
            "T",
            lambda T: sqrt(T),
            whole((2, 900)),
            "1 − tanh² is nearly 0 out there: the carousel keeps gradients, and lets "
            "hardly any on.",
            (
                (
                    lambda T: T,
                    "That is the variance, or the state if all signs agree.",
                ),
                (
                    lambda T: 1.0,
                    "With a forget gate it is bounded. Here nothing is forgotten.",
                ),
                (lambda T: 0.0, "That is the mean. How far from it is c_T?"),
            ),
            what="the standard deviation of c_T",
        ),
    ),
    "lstm-noise": Exercise(
        (
            "The gate is constant: after k steps f^k is left. Let it be 1/2.",
            "1/f is 1 + exp(−b). Solve for b.",
            "For the noise: ln σ is concave. What does Jensen's inequality say?",
        ),
        Numbers(
            "the forget bias with a half-life of 100 steps",
            -log(2 ** (1 / 100) - 1),
            "And noise shortens the memory: a few steps with a closed gate undo many.",
            (
                (
                    log(100),
                    "There 1/e is left after 100 steps, nearly, and not a half.",
                ),
                (2 ** (-1 / 100), "That is the gate. The bias is behind a sigmoid."),
                (
                    log(2 ** (1 / 100) - 1),
                    "The sign: a large gate has a positive bias.",
                ),
            ),
            rtol=0.005,
        ),
    ),
    "lstm-orthogonal": Exercise(
        (
            "Which variance has a uniform number between ±u?",
            "Each entry of W_h v is a sum. Add up the variances of its terms, then "
            "those of the entries.",
            "What does an orthogonal matrix do to a length?",
        ),
        Numbers(
            "the length of W_h v for the uniform and for the orthogonal matrix",
            (sqrt(1 / 3), 1),
            "So 42 % go a step, or nothing. The factors 1 − h² need small inputs, too.",
            (
                ((1 / 3, 1), "That is the square of the length."),
                ((1, 1), "The variance of a uniform number is u²/3, not u²."),
                ((1 / 2, 1), "Add squares, not sizes: the mean size is u/2."),
            ),
        ),
    ),
    "lnl-time": Exercise(
        (
            "q has the axes (steps, examples, features). Which two run in the mean?",
            "May the first state depend on the last input?",
        ),
        Choice(
            "steps",
            "Change the last input, and the first state moves; padding moves all. "
            "The axes are (2,).",
            {
                "examples": "The examples are axis 1, over which nothing runs here.",
                "features": "Over the features layer normalization has to average.",
            },
            "over what the mean must not run",
        ),
    ),
    "lnl-twice": Exercise(
        (
            "Over what does batch norm take the mean, and over what layer norm?",
            "Which part of b is the same for all features of an example?",
            "Let the input be 0, or very large. What is the hat of W_x x + b?",
        ),
        Choice(
            "its mean",
            "The differences between the features stay. For small inputs the hat is "
            "that of b.",
            {
                "all": "So it is with batch norm, of which the mean runs over the "
                "examples.",
                "nothing": "What all features have in common goes with their mean.",
            },
            "what of the inner b the layer takes off",
        ),
    ),
    "lnl-units": Exercise(
        (
            "What is the hat of a single number?",
            "Then what is h, with β_c for the hat?",
            "With H = 2, which values can the hat have?",
        ),
        Choice(
            "o",
            "h = o tanh(β_c): the state is computed, and never shown. Two units show "
            "one bit.",
            {
                "f": "It acts on c, of which the hat is 0 whatever c is.",
                "i": "It acts on c, of which the hat is 0 whatever c is.",
                "g": "It acts on c, of which the hat is 0 whatever c is.",
            },
            "the gate that reaches the output",
        ),
    ),
    "hw-factor": Exercise(
        (
            "Which outputs of the network does the factor in front hold?",
            "Let σ grow without end. What becomes of Z / (2 d)?",
            "Which check compares with something that does not come from this code?",
        ),
        Choice(
            "torch",
            "The density of torch has the factor. Without it, σ → ∞ makes Z vanish.",
            {
                "gradient check": "It differentiates the same wrong loss, and agrees.",
                "mutants": "They are wrong versions of the right code, and need a "
                "check that finds them.",
            },
            "what finds it without training",
        ),
    ),
    "hw-padding": Exercise(
        (
            "Over which steps does losses.mean() run?",
            "How easy is a step (0, 0, 0) to predict?",
            "What does a network write that has learned to predict zeros?",
        ),
        Choice(
            "padding",
            "A narrow component at 0 earns several nats on each. With the mask the "
            "length hardly matters.",
            {
                "the long line": "With the mask the loss hardly depends on the longest "
                "line.",
                "the others": "Their steps are as hard to predict as before.",
            },
            "what makes the mean loss fall",
        ),
    ),
    "hw-bias": Exercise(
        (
            "What becomes of the weights of the components for a large bias, and what "
            "of their deviations?",
            "Left and right had nearly equal weights. And now?",
        ),
        Choice(
            "one side",
            "All weight goes to the largest component: one of the two, and not their "
            "mean.",
            {
                "both sides": "The bias gives all the weight to the larger of two that "
                "were nearly equal.",
                "the middle": "That is what the squared error writes.",
            },
            "where the pen jumps, with a very large bias",
        ),
    ),
    "rd-mask": Exercise(
        (
            "What is exp(0)?",
            "The sum in the softmax has n more terms. Which share have they?",
            "Behind a second mask, to what do the weights of the words add up?",
        ),
        Function(
            "n, Z",
            lambda n, Z: Z / (Z + n),
            uniform((1, 9), (0.5, 9)),
            "The second mask does not repair it: the weights of the words have the "
            "same sum.",
            (
                (lambda n, Z: n / (Z + n), "That is the share q that is lost."),
                (lambda n, Z: 1.0, "exp(0) is 1: each place of padding counts."),
                (lambda n, Z: (Z + n) / Z, "That would repair it. r is too small."),
            ),
            what="the factor of r, for n places of padding and the sum Z over the "
            "words",
        ),
    ),
    "wh-monitor": Exercise(
        (
            "What does a hat do to a factor of W_h?",
            "The gradient is orthogonal to W_h. How long is W_h after a step?",
        ),
        Choice(
            "the length of w_h",
            "It has no part in what the cell computes, and can only grow. The gain of "
            "the step needs h.",
            {
                "exploding gradients": "A hat divides the length out: the gain is the "
                "same for 0.1 W_h.",
                "a large rate": "With any rate the length grows, since the gradient "
                "is orthogonal to W_h.",
            },
            "what they see",
        ),
    ),
    "wh-count": Exercise(
        (
            "What is the hat of (k, 0) for k > 0?",
            "With three units, let one keep a constant r. What does the hat of "
            "(k, r, 0) depend on?",
            "How does the hat of r near its limit, as k grows? Differentiate.",
        ),
        Numbers(
            "the power p: with H = 3 the slope in k falls like 1/k^p",
            2,
            "With H = 2 there is nothing to see. A power is not exponential, as for "
            "tanh k.",
            (
                (1, "So the hat nears its limit. The slope has a power more."),
                (0, "Large counts crowd: the ratio k/r matters, not k."),
            ),
        ),
    ),
    "wh-forget": Exercise(
        (
            "By what is the raw state multiplied in each of the 20 steps?",
            "What is the hat of 0.1 u?",
        ),
        Numbers(
            "two powers of ten of what is left: in the raw cell and in the other",
            (-20, 0),
            "The hat undoes a common factor. It forgets where the gates differ, or by "
            "writing over.",
            (
                ((-20, -20), "The hat of 0.1 u is the hat of u."),
                ((-1, 0), "0.1 comes in with each of the 20 steps."),
                ((0, -20), "They are exchanged."),
            ),
        ),
    ),
}
