"""Moving averages of values that scatter and drift, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from normbook.running_statistics import debias, exponential_average


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    drift, start = rng.normal(size=2)
    nines, scatter = rng.uniform(0.3, 2, 2)
    drawn = {"noise": rng.normal(size=200).tolist(), "step": int(rng.integers(1, 201))}
    return {**drawn, "nines": nines, "drift": drift, "scatter": scatter, "start": start}


def follow(values: np.ndarray, first: Any, momentum: float) -> np.ndarray:
    """Return the average after each value."""
    average, path = first, []
    for v in values:
        average = exponential_average(average, v, momentum=momentum)
        path.append(average)
    return np.array(path)


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    step, scatter, start = (state[name] for name in ("step", "scatter", "start"))
    noise, momentum = scatter * np.array(state["noise"]), 10 ** -state["nines"]
    truth = 3 + state["drift"] / 100 * np.arange(200)
    now = truth[step - 1]
    sources = np.stack([0 * truth, truth - now, noise], axis=1)[:step]
    parts = follow(sources, np.array([start - now, 0, 0]), momentum)[-1]
    weights = follow(np.eye(step), np.zeros(step), momentum)[-1]
    spread = scatter * np.linalg.norm(weights)

    def cured(value: Any, steps: int = step) -> Any:
        return debias(value, steps=steps, momentum=momentum)

    from_0 = follow(truth + noise, 0.0, momentum)
    return {
        "truth": truth,
        "values": truth + noise,
        "as_is": follow(truth + noise, start, momentum),
        "debiased": [cured(v, t) for t, v in enumerate(from_0, start=1)],
        "parts": parts,
        "cured": cured(parts * np.array([0, 1, 1])),
        "spread": spread,
        "cured_spread": cured(spread),
    }
