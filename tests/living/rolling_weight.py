"""A weight in front of batch norm, under plain SGD with weight decay."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from normbook.batch_norm import batch_norm_backward, batch_norm_forward


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    rate, start = rng.uniform(-1, 1, 2)
    drawn = {"sides": rng.choice([-1, 1], 100).tolist(), "rate": rate, "start": start}
    return {**drawn, "decay": rng.uniform(0.01, 0.05)}


def step(w: np.ndarray, side: int, rate: float, decay: float) -> np.ndarray:
    """Return w after a step of torch: four examples at the corners of a square."""
    u = np.array([[-1.0, -1], [-1, 1], [1, -1], [1, 1]])
    across = np.array([-w[1], w[0]]) / np.linalg.norm(w)
    _, cache = batch_norm_forward(u @ w[:, None], eps=0.0)
    dl_dx = batch_norm_backward(side * (u @ across[:, None]) / 4, cache).dl_dx
    weight = torch.from_numpy(w.copy()).requires_grad_()
    weight.grad = torch.from_numpy((u.T @ dl_dx)[:, 0])
    torch.optim.SGD([weight], lr=rate, weight_decay=decay).step()
    after: np.ndarray = weight.detach().numpy()
    return after


def turn(w: np.ndarray, after: np.ndarray) -> float:
    """Return the angle between two weights of two numbers."""
    return float(abs(np.angle(complex(*after) / complex(*w))))


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    eta, decay = 2 ** state["rate"], state["decay"]
    path = [2 ** state["start"] * np.array([0.6, 0.8])]
    for side in state["sides"]:
        path.append(step(path[-1], side, eta, decay))
    length = np.linalg.norm(path, axis=1)
    q = 1.0
    for _ in range(4000):  # until growth and decay balance
        q = (1 - eta * decay) ** 2 * q + eta**2 / q
    settled = np.array([0.0, q**0.5])
    return {
        "path": np.array(path),
        "angle": [turn(w, after) for w, after in pairwise(path)],
        "length": length,
        "effective": eta / length**2,
        "balance": q**0.5,
        "turn": turn(settled, step(settled, 1, eta, decay)),
    }
