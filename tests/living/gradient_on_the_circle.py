"""The gradient of batch norm for three examples, and its parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from normbook.batch_norm import batch_norm_backward, batch_norm_forward


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    x, dl_dy = rng.normal(0, 2, (2, 3)).tolist()
    return {"x": x, "dl_dy": dl_dy, "gamma": rng.normal()}


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    x, g = (np.array(state[name])[:, None] for name in ("x", "dl_dy"))
    gamma = np.array([state["gamma"]])
    _, cache = batch_norm_forward(x, gamma)
    dl_dx = batch_norm_backward(g, cache).dl_dx
    factor = gamma * cache.inv_std
    passes = dl_dx / factor
    common = np.full((3, 1), g.mean())
    lost = g - common - passes
    parts = np.hstack([common, lost, passes, dl_dx])
    plane = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
    seen = plane @ np.hstack([x - cache.mu, cache.x_hat, g, lost, passes, dl_dx])
    return {
        "factor": factor[0, 0],
        "dl_dx": dl_dx[:, 0],
        "squares": (parts**2).sum(0),
        "seen": seen.T,
    }
