"""What several experiments measure."""

from __future__ import annotations

from torch import Tensor, nn

from normbook.diagnostics.internal_covariate_shift import gradient_shift
from normbook.diagnostics.smoothness import along_gradient
from normbook.lab.experiment import Run, Values

__all__ = ["judge", "landscape", "shift", "step_sizes"]


def step_sizes(rate: float) -> list[float]:
    """Return half to four times the learning rate, as Santurkar et al. (2018) do."""
    return [rate * k / 2 for k in range(1, 9)]


def landscape(run: Run, rate: float) -> Values:
    """Measure loss and gradient along the gradient of the next batch."""
    path = along_gradient(run.model, run.loss, step_sizes(rate))
    return {
        "loss": path.loss,
        "lowest": path.loss_range[0],
        "highest": path.loss_range[1],
        "gradient_norm": path.gradient_norm,
        "least_change": path.gradient_predictiveness[0],
        "most_change": path.gradient_predictiveness[1],
        "beta": path.effective_smoothness,
    }


def shift(run: Run, rate: float) -> Values:
    """Measure how the update of the layers below moves the gradient of each layer."""
    moved = gradient_shift(run.model, run.loss, rate)
    return {
        "l2": moved.l2.tolist(),
        "cosine": moved.cosine.tolist(),
        "gradient_norm": moved.gradient_norm.tolist(),
    }


def judge(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy (nats) of each example, and 1 where it is wrong."""
    losses = nn.functional.cross_entropy(scores, labels, reduction="none")
    return losses, (scores.detach().argmax(1) != labels).double()
