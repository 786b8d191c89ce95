"""Batch norm of padded sequences: of the live values, and of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from normbook.batch_norm import batch_norm_forward


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    x, lengths = rng.normal(size=(4, 8)).tolist(), rng.integers(1, 9, 4).tolist()
    is_per_step, shift = int(rng.integers(2)), rng.normal()
    return {"x": x, "lengths": lengths, "shift": shift, "is_per_step": is_per_step}


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    mask = np.arange(8) < np.array(state["lengths"])[:, None]  # (N, T)
    x = np.where(mask, np.array(state["x"]) + state["shift"], 0.0)
    parts = np.split(np.arange(8), 8) if state["is_per_step"] else [np.arange(8)]
    found, of_live, of_all = [], np.zeros_like(x), np.zeros_like(x)
    for steps in parts:
        is_live, values = mask[:, steps], x[:, steps]
        if not is_live.any():
            continue
        packed = batch_norm_forward(values[is_live][:, None])[1]
        padded = batch_norm_forward(values.reshape(-1, 1))[1]
        np.place(here := np.zeros_like(values), is_live, packed.x_hat)
        of_live[:, steps], of_all[:, steps] = here, padded.x_hat.reshape(values.shape)
        moments = *packed[1:3], *padded[1:3], padded.mu * -padded.inv_std
        found.append([1 - is_live.mean(), *(float(v.item()) for v in moments)])
    p, mu, var, m, v, zeros = np.array(found).T
    return {
        "p": p, "mu": mu, "m": m, "sigma": var**0.5, "s": v**0.5,
        "x_hat": of_live[mask], "with_zeros": of_all[mask], "zeros": zeros,
    }  # fmt: skip
