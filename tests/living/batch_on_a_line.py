"""Batch norm of a few numbers, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from normbook.batch_norm import batch_norm_backward, batch_norm_forward


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    x, dl_dy = rng.normal(0, 3, (2, 6)).tolist()
    count, exponent = int(rng.integers(2, 7)), int(rng.integers(-5, 2))
    return {"x": x, "dl_dy": dl_dy, "count": count, "exponent": exponent}


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    x, dl_dy = (np.array(state[k][: state["count"]])[:, None] for k in ("x", "dl_dy"))
    _, cache = batch_norm_forward(x, eps=10.0 ** state["exponent"])
    return {
        "mu": cache.mu[0, 0],
        "sigma": cache.var[0, 0] ** 0.5,
        "x_hat": cache.x_hat[:, 0],
        "dl_dx": batch_norm_backward(dl_dy, cache).dl_dx[:, 0],
    }
