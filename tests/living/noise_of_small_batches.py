"""Statistics of small batches of normal numbers."""

from __future__ import annotations

from math import exp, lgamma
from typing import Any

import numpy as np

from normbook.batch_norm import batch_norm_forward


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    exponent, x = int(rng.integers(1, 7)), rng.normal()
    return {"values": rng.normal(1, 2, 128).tolist(), "exponent": exponent, "x": x}


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    N = 2 ** state["exponent"]
    batches = np.array(state["values"]).reshape(-1, N).T
    _, cache = batch_norm_forward(batches, eps=0.0)
    with_x = np.vstack([np.full_like(batches[0], state["x"]), batches[1:]])
    of_mu = N**-0.5  # and N var is chi-square with N - 1 degrees of freedom
    expected = of_mu * 2**0.5 * exp(lgamma(N / 2) - lgamma((N - 1) / 2))
    return {
        "mu": cache.mu[0],
        "sigma": cache.var[0] ** 0.5,
        "x_hat": batch_norm_forward(with_x, eps=0.0)[1].x_hat[0],
        "expected": expected,
        "spread": ((N - 1) / N - expected**2) ** 0.5,
        "of_mu": of_mu,
    }
