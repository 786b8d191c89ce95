r"""How the loss and its gradient change along the gradient.

Three quantities of Santurkar et al. (2018), section 3, measured as defined there: on
*one* batch, in training mode, along the step that gradient descent would take,

.. math:: w(\eta) = w - \eta\, g, \qquad g = \nabla\ell(w).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.diagnostics.undisturbed import Loss, gradients, undisturbed

__all__ = ["AlongGradient", "along_gradient"]


class AlongGradient(NamedTuple):
    r"""Loss and gradient at K step lengths :math:`\eta_k` along the gradient.

    There are K ``step_sizes``, ``losses`` :math:`\ell(w - \eta_k g)` (nats) and
    ``gradient_changes`` :math:`\lVert \nabla\ell(w - \eta_k g) - g \rVert_2`, one
    ``loss`` :math:`\ell(w)` and one ``gradient_norm`` :math:`\lVert g \rVert_2`.
    """

    step_sizes: NDArray[np.float64]
    losses: NDArray[np.float64]
    gradient_changes: NDArray[np.float64]
    loss: float
    gradient_norm: float

    @property
    def loss_range(self) -> tuple[float, float]:
        """Lowest and highest loss over the steps (Fig. 4a of the paper)."""
        return float(self.losses.min()), float(self.losses.max())

    @property
    def gradient_predictiveness(self) -> tuple[float, float]:
        """Smallest and largest change of the gradient over the steps (Fig. 4b)."""
        return float(self.gradient_changes.min()), float(self.gradient_changes.max())

    @property
    def effective_smoothness(self) -> float:
        r"""Largest ratio of gradient change to distance moved (Fig. 4c).

        .. math:: \beta = \max_k
            \frac{\lVert \nabla\ell(w - \eta_k g) - g \rVert}{\eta_k \lVert g \rVert}

        Mind the level :math:`1 / \eta_{\min}` (:attr:`floor`): where the smallest step
        already turns the gradient into something small, the ratio of that step is about
        this, whatever the curvature. Where the ratios of all steps are equal instead,
        they are a curvature. The largest of ``gradient_changes`` over the smallest
        tells the two apart: 1 at a kink, the quotient of the step sizes for a parabola.

        It depends on the step sizes, and so on the learning rate that they are taken
        from: compare networks at the same distances, or each at its own best rate.
        """
        where = self.step_sizes, self.gradient_norm
        return float(effective_smoothness(self.gradient_changes, *where))

    @property
    def floor(self) -> float:
        r"""Return :math:`1 / \eta_{\min}`, which S meets at a kink, and no bound."""
        return float(1 / self.step_sizes.min())


def effective_smoothness(changes: Any, etas: Any, length: Any) -> Any:
    """Largest change over the distance moved; ``length`` is that of the gradient."""
    return (changes / (etas * length)).max()


def along_gradient(
    model: nn.Module, loss: Loss, step_sizes: Sequence[float]
) -> AlongGradient:
    r"""Walk along the gradient of one batch and look at loss and gradient.

    For ``step_sizes`` the paper takes the learning rate times 1/2 to 4; none, or one
    that is not positive and finite, is a ``ValueError``, as is a gradient of zero.
    Dropout draws the same mask at every step. Source: Santurkar et al. (2018), section
    3.1 and Fig. 4; there in training mode.

    Examples
    --------
    For :math:`\ell = w^2 / 2` the gradient is w, so the effective smoothness is 1:

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False).double()
    >>> _ = torch.nn.init.constant_(model.weight, 3.0)
    >>> found = along_gradient(model, lambda m: (m.weight**2).sum() / 2, [0.5, 1.0])
    >>> found.loss, found.losses, found.effective_smoothness
    (4.5, array([1.125, 0.   ]), 1.0)
    """
    etas = np.asarray(step_sizes, dtype=np.float64)
    if etas.ndim != 1 or etas.size == 0 or not np.all(np.isfinite(etas) & (etas > 0)):
        raise ValueError(
            "step_sizes must be a non-empty sequence of positive numbers, got "
            f"{step_sizes!r}; take the learning rate times 0.5 to 4."
        )
    losses, changes = [], []
    with undisturbed(model) as reset:
        start, g = gradients(model, loss)
        norm = _norm(g)
        if norm == 0:
            raise ValueError(
                "the gradient must not be zero, got a norm of 0; there is no "
                "direction to walk along."
            )
        for eta in etas:
            reset()
            parameters = [p for p in model.parameters() if p.requires_grad]
            with torch.no_grad():
                for parameter, slope in zip(parameters, g, strict=True):
                    parameter.sub_(slope, alpha=float(eta))
            value, moved = gradients(model, loss)
            losses.append(value)
            changes.append(_norm([b - a for a, b in zip(g, moved, strict=True)]))
    return AlongGradient(etas, np.array(losses), np.array(changes), start, norm)


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    """Euclidean norm of all entries together."""
    return float(sum(t.double().square().sum().item() for t in tensors) ** 0.5)
