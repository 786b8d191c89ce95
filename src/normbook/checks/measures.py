r"""Tests for a measure of smoothness that somebody else wrote.

Three quantities of Santurkar et al. (2018), section 3, are often measured as something
else. Here a measure meets losses whose every value is known in closed form.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from normbook.checks.report import Finding, Report

__all__ = ["Measure", "check_smoothness_measure"]

Array = NDArray[np.float64]
Batch = tuple[Tensor, Tensor]
Pair = tuple[float, float]

RANGE = "the loss range is that of single steps from the present weights"
CHANGE = "the gradient change is that between both ends of a step"
SMOOTHNESS = "the effective smoothness is change divided by distance"
LARGEST = "the effective smoothness is the largest over the steps"
BATCH = "only the first batch counts"
MODE = "the loss is measured in training mode"
UNDISTURBED = "the model is left as it was"

STEPS = (0.05, 0.1, 0.4)
# The closed forms and float64 agree to 1e-12; a measure may work in float32.
TOLERANCE = 1e-4


class Measure(Protocol):
    """Takes a model, ``loss(output, target)``, batches (x, target) and step lengths.

    It measures on the first batch, from the present weights, in the present mode, and
    returns the pair of the lowest and highest loss over the steps, the pair of the
    smallest and largest gradient change, and the effective smoothness; or an object
    that has them as ``loss_range``, ``gradient_predictiveness`` and
    ``effective_smoothness``.
    """

    def __call__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        batches: Sequence[Batch],
        step_sizes: Sequence[float],
        /,
    ) -> Any:
        """Measure."""


def check_smoothness_measure(measure: Measure, *, quiet: bool = False) -> Report:
    r"""Test a function that measures how smooth a loss is along its gradient.

    The quantities are those of
    :class:`~normbook.diagnostics.smoothness.AlongGradient`. The losses are two
    quadratics, whose change is :math:`\eta \lVert Hg \rVert`, a quartic, whose
    curvature differs from step to step, and batch norm, whose training and evaluation
    mode differ. A measure that does not return what :class:`Measure` says is refused
    with a ``TypeError``. Source: Santurkar et al. (2018), section 3.1 and Fig. 4; book,
    chapter *Smoothness*.

    Examples
    --------
    >>> from normbook.diagnostics.smoothness import along_gradient
    >>> def measure(model, loss, batches, step_sizes):
    ...     x, target = batches[0]
    ...     return along_gradient(model, lambda m: loss(m(x), target), step_sizes)
    >>> check_smoothness_measure(measure).passed
    smoothness measure: all 7 tests pass.
    True
    """
    quadratic, other = _quadratic(0), _quadratic(1)
    quartic, norm = _quartic(), _batch_norm()
    same, spared = _run(measure, quadratic, [quadratic] * 3)
    mixed, _ = _run(measure, quadratic, [quadratic, other, other])
    steep, _ = _run(measure, quartic, [quartic] * 3)
    normed, left = _run(measure, norm, [norm] * 3)
    formulas = _formulas(same, quadratic)
    findings = (
        *formulas,
        _largest(steep, quartic, formulas),
        _batch(same, mixed),
        _mode(normed, norm, formulas),
        _undisturbed(*spared, *left),
    )
    report = Report("smoothness measure", findings)
    if not quiet:
        print(report)
    return report


class _Quantities(NamedTuple):
    loss_range: Pair
    change: Pair
    smoothness: float


class _Problem(NamedTuple):
    """A loss on one batch: to be measured, and in closed form."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    batch: Batch
    start: Array
    value: Callable[[Array], float]
    slope: Callable[[Array], Array]

    def along(
        self, points: Callable[[float], Array] | None = None
    ) -> tuple[_Quantities, Array]:
        """Return the quantities and the ratios, at w - eta g or at other points."""
        g = self.slope(self.start)
        to = points or (lambda eta: self.start - eta * g)
        losses = [self.value(to(eta)) for eta in STEPS]
        changes = [_norm(self.slope(to(eta)) - g) for eta in STEPS]
        ratios = np.array(changes) / (np.array(STEPS) * _norm(g))
        return _Quantities(_ends(losses), _ends(changes), float(ratios.max())), ratios

    def descend(self, step_sizes: Sequence[float]) -> Array:
        """Train: each step along the gradient of where it begins."""
        w = self.start
        for eta in step_sizes:
            w = w - eta * self.slope(w)
        return w


class _Free(nn.Module):
    """The output is w - x: the weights alone decide, and the batch moves the origin."""

    def __init__(self, start: Array) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def _quadratic(k: int) -> _Problem:
    """Return half z H z with z = w - x; k chooses x and H, the batch."""
    start = np.array([3.0, -1.0, 0.5])
    x = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, -1.0]][k])
    h = np.array([[1.0, 2.0, 4.0], [2.0, 0.5, 3.0]][k])
    return _Problem(
        _Free(start),
        lambda z, target: 0.5 * (target * z.square()).sum(),
        (torch.tensor(x), torch.tensor(h)),
        start,
        value=lambda w: float(0.5 * (h * (w - x) ** 2).sum()),
        slope=lambda w: h * (w - x),
    )


def _quartic() -> _Problem:
    """Return a sum of w^4 / 4, where a longer step sees less curvature."""
    start = np.array([1.0, -0.5, 0.8])
    zeros = torch.zeros(3, dtype=torch.float64)
    return _Problem(
        _Free(start),
        lambda z, target: (z**4).sum() / 4,
        (zeros, zeros),
        start,
        value=lambda w: float((w**4).sum() / 4),
        slope=lambda w: w**3,
    )


def _batch_norm(*, is_training: bool = True) -> _Problem:
    """Return squared errors behind batch norm, a quadratic in its gain and bias.

    In evaluation mode it sees the running statistics 0 and 1, that is, x as it is.
    """
    x, target = np.array([2.0, 3.0, 7.0, 8.0]), np.array([1.0, 0.0, 2.0, -1.0])
    mean, var = (x.mean(), x.var()) if is_training else (0.0, 1.0)
    x_hat = (x - mean) / np.sqrt(var + 1e-5)
    features = np.stack([x_hat, np.ones_like(x)])  # of gain and bias
    return _Problem(
        nn.BatchNorm1d(1, eps=1e-5, dtype=torch.float64),
        lambda y, t: 0.5 * (y[:, 0] - t).square().mean(),
        (torch.tensor(x)[:, None], torch.tensor(target)),
        np.array([1.0, 0.0]),
        value=lambda w: float(0.5 * ((w @ features - target) ** 2).mean()),
        slope=lambda w: features @ (w @ features - target) / len(target),
    )


def _run(
    measure: Measure, problem: _Problem, batches: Sequence[_Problem]
) -> tuple[_Quantities, list[str]]:
    """Measure on a copy of the model; name what was not left as it was."""
    model = copy.deepcopy(problem.model).train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model).state_dict()
    with torch.enable_grad():
        made = measure(model, problem.loss, [b.batch for b in batches], STEPS)
    after = model.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    changed += ["its mode"] if not model.training else []
    grads = [parameter.grad for parameter in model.parameters()]
    if not all(g is not None and bool((g == 1).all()) for g in grads):
        changed.append(".grad")
    return _quantities(made), changed


def _quantities(made: Any) -> _Quantities:
    names = ("loss_range", "gradient_predictiveness", "effective_smoothness")
    if all(hasattr(made, name) for name in names):
        made = tuple(getattr(made, name) for name in names)
    try:
        (low, high), (small, large), smoothness = made
        ends = (float(low), float(high)), (float(small), float(large))
        return _Quantities(*ends, float(smoothness))
    except (TypeError, ValueError) as error:
        raise TypeError(
            "measure must return (lowest loss, highest loss), (smallest change, "
            f"largest change), effective smoothness, got {made!r}; return a tuple of "
            f"these three, or an object with {', '.join(names)}."
        ) from error


def _formulas(seen: _Quantities, problem: _Problem) -> list[Finding]:
    """Compare with the closed form; look a wrong number up among the known ones."""
    g = problem.slope(problem.start)
    length = _norm(g)
    right, _ = problem.along()
    trained, _ = problem.along(lambda eta: problem.descend([eta] * len(STEPS)))
    moved, _ = problem.along(
        lambda eta: problem.descend([step for step in STEPS if step <= eta])
    )
    ends = _ends([_norm(problem.slope(problem.start - eta * g)) for eta in STEPS])
    losses = _finding(
        RANGE,
        seen.loss_range,
        right.loss_range,
        {
            "separate training runs, one for each step length: their losses are "
            "those of different points": trained.loss_range,
            "steps one after the other: each begins where the last ended": (
                moved.loss_range
            ),
        },
        "Take each step from the same weights, along the same gradient, and put "
        "the weights back after it.",
    )
    change = _finding(
        CHANGE,
        seen.change,
        right.change,
        {
            "the norm of the gradient after the step: the one before it was not "
            "taken off, or both were added up in .grad": ends,
            "nothing: both gradients are the same tensor, which the second "
            "backward pass overwrites; clone the first": (0.0, 0.0),
            "the change behind training runs, not behind one step": trained.change,
            "the change behind steps one after the other": moved.change,
        },
        "Take the norm of (gradient after the step - gradient before it), of the "
        "same batch.",
    )
    smoothness = _finding(
        SMOOTHNESS,
        seen.smoothness,
        right.smoothness,
        {
            "the change itself, not divided by the distance": right.change[1],
            "the change divided by the step length alone; the distance is that "
            "times the norm of the gradient": right.smoothness * length,
            "the change divided by the norm of the gradient alone": (
                right.change[1] / length
            ),
            "the change divided by the square of the distance": (
                right.smoothness / (STEPS[0] * length)
            ),
        },
        "Divide each change by the distance moved, step length times norm of the "
        "gradient.",
    )
    if change.passed is smoothness.passed is False:
        smoothness = Finding(SMOOTHNESS, None, "the change is already another one")
    return [losses, change, smoothness]


def _largest(
    seen: _Quantities, problem: _Problem, formulas: Sequence[Finding]
) -> Finding:
    if not formulas[2].passed:
        return Finding(LARGEST, None, "the ratio is already another one")
    right, ratios = problem.along()
    return _finding(
        LARGEST,
        seen.smoothness,
        right.smoothness,
        {
            # The curvature falls with every step, so these are one number.
            "the smallest of the ratios, or the largest change divided by the largest "
            "distance": ratios.min(),
            "the mean of the ratios": ratios.mean(),
        },
        "Divide step by step, and take the largest ratio then.",
    )


def _batch(same: _Quantities, mixed: _Quantities) -> Finding:
    """Compare two runs, of which only the later batches differ."""
    texts = {
        "loss range": ", as that of training runs would",
        "gradient change": ": it is that between different batches, not that of one "
        "batch after a step",
        "effective smoothness": "",
    }
    wrong = [
        f"the {what} went from {_text(before)} to {_text(after)}{why}"
        for (what, why), before, after in zip(texts.items(), same, mixed, strict=True)
        if not _agree(before, after)
    ]
    if not wrong:
        return Finding(BATCH, True)
    return Finding(
        BATCH,
        False,
        "Only the second and third batch were exchanged, and " + "; ".join(wrong) + ".",
        "Keep to one batch: gradient, step and gradient again on the same examples.",
    )


def _mode(seen: _Quantities, problem: _Problem, formulas: Sequence[Finding]) -> Finding:
    """Look at those quantities that are right where there is one mode only."""
    fields = [k for k, finding in enumerate(formulas) if finding.passed]
    if not fields:
        return Finding(MODE, None, "the quantities are already others")
    (right, _), (other, _) = problem.along(), _batch_norm(is_training=False).along()
    of_mode, of_training, of_evaluation = (
        np.hstack([quantities[k] for k in fields])
        for quantities in (seen, right, other)
    )
    why = "those of evaluation mode: running statistics in place of those of the batch"
    cure = "Leave the model in training mode, in which it is trained."
    return _finding(MODE, of_mode, of_training, {why: of_evaluation}, cure)


def _undisturbed(*changed: str) -> Finding:
    if not changed:
        return Finding(UNDISTURBED, True)
    names = sorted(set(changed))
    reason = f"After the measurement these are not what they were: {', '.join(names)}."
    if any(name.startswith("running_") for name in names):
        reason += " A forward pass in training mode moves the running statistics."
    cure = "Measure on a copy, or put everything back: parameters, buffers, .grad, "
    return Finding(UNDISTURBED, False, reason, f"{cure}mode.")


def _finding(
    name: str, seen: ArrayLike, right: ArrayLike, known: dict[str, Any], cure: str
) -> Finding:
    if _agree(seen, right):
        return Finding(name, True, f"{_text(seen)}, as on paper.")
    reason = f"{_text(seen)}, where the closed form gives {_text(right)}."
    bugs = (f" The numbers are {bug}." for bug in known if _agree(seen, known[bug]))
    return Finding(name, False, reason + next(bugs, ""), cure)


def _agree(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=1e-9))


def _ends(values: Any) -> Pair:
    return float(np.min(values)), float(np.max(values))


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values))


def _text(values: Any) -> str:
    numbers = [f"{v:.4g}" for v in np.atleast_1d(values)]
    return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"
