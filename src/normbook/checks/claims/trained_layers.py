"""Layers that have seen some batches, and what their evaluation tells of these.

What a layer averaged is read from its evaluation, not from its buffers: there the
output is a straight line in x, whose slope and height tell the mean and the variance,
whatever they are called and wherever they are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from normbook.checks.calls import call, evaluating
from normbook.checks.claim import DoesNotApply, once
from normbook.checks.claims.output import need_right_statistics
from normbook.checks.copies import copy_of
from normbook.checks.layer.subject import Subject
from normbook.checks.tensors import TOLERANCE, draw, largest, rows

# Batches of 4: there the biased variance is three quarters of the unbiased one.
EXAMPLES = 4
STEPS = 4

NOT_FIXED = "evaluation does not normalize by fixed statistics"


def need_statistics(subject: Subject) -> None:
    """Leave a claim about running statistics where a layer says it has none."""
    if subject.claims_no_statistics:
        raise DoesNotApply("the layer keeps no running statistics")


def batch_for(
    subject: Subject, seed: int, scale: float = 1.0, size: int = EXAMPLES
) -> Tensor:
    """Draw a batch of few examples, in the dtype of the layer."""
    size = subject.shape[0] if subject.kind == "none" else size
    return draw(subject.sized(size), seed, scale).to(subject.dtype)


def by_channel(x: Tensor) -> Tensor:
    """Return the mean of each channel."""
    return rows(x).mean(0)


def evaluate(layer: nn.Module, x: Tensor, *, is_recorded: bool = False) -> Tensor:
    """Return the output of a copy in evaluation mode."""
    with torch.set_grad_enabled(is_recorded):
        return call(evaluating(copy_of(layer)), x).detach().double()


def trained(
    subject: Subject, count: int = STEPS, layer: nn.Module | None = None
) -> nn.Module:
    """Let a layer, or a copy, see some batches, each with a backward pass to come."""
    layer = subject.fresh() if layer is None else layer
    for k in range(count):
        x = batch_for(subject, 20 + k)
        call(layer, x.requires_grad_(torch.is_grad_enabled()))
    return layer


class Averages(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    var: Tensor


def averages(subject: Subject, layer: nn.Module) -> Averages:
    """Read from evaluation which mean and variance it normalizes by."""
    at_0, slope = line_of(subject, layer)
    a, b = (value.flatten() for value in subject.affine)
    if (slope.abs() < 1e-6 * a.abs()).any():
        raise DoesNotApply(NOT_FIXED)
    return Averages((b - at_0) / slope, (a / slope) ** 2 - subject.eps)


def line_of(
    subject: Subject, layer: nn.Module, step: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return height at x = 0 and slope of the evaluation, for each channel."""
    zeros = torch.zeros(subject.sized(EXAMPLES), dtype=subject.dtype)
    at_0, at_step = (by_channel(evaluate(layer, x)) for x in (zeros, zeros + step))
    return at_0, (at_step - at_0) / step


class Step(NamedTuple):
    """One batch of n values a channel, and the averages before and after it."""

    n: int
    batch: Averages
    before: Averages
    after: Averages
    x: Tensor
    held: dict[str, Tensor]  # what is kept of each channel, after it

    @property
    def _way(self) -> Tensor:
        return self.batch.mean - self.before.mean

    @property
    def weight(self) -> float:
        """Return the share of the new mean in the running mean."""
        moved = self.after.mean - self.before.mean
        return ((moved * self._way).sum() / self._way.square().sum()).item()

    @property
    def is_average(self) -> bool:
        """Return whether the running mean moved straight towards the batch's."""
        error = self.after.mean - self.before.mean - self.weight * self._way
        return largest(error) < TOLERANCE * largest(self._way)

    @property
    def taken(self) -> Tensor:
        """Return the variance that the running variance took in."""
        return self.before.var + (self.after.var - self.before.var) / self.weight


@once
def need_fixed_statistics(subject: Subject) -> None:
    """Leave a claim that reads the statistics from evaluation, where it cannot."""
    need_statistics(subject)
    need_right_statistics(subject)
    layer = evaluating(trained(subject))
    x = batch_for(subject, 9, size=2 * EXAMPLES)
    with torch.no_grad():
        together = call(layer, x)[:EXAMPLES]
        if largest(together - call(layer, x[:EXAMPLES])) > 1e-4:
            raise DoesNotApply(NOT_FIXED)


def alike(first: Tensor, second: Tensor) -> bool:
    """Return whether two evaluations are the same, up to rounding in float32."""
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)
