"""How evaluation corrects a running statistic for its start, from what is held.

Both are looked at after each of the first batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

NEAR = 0.01
TINY = 1e-9

# By the momentum and the number of batches.
RULES: dict[str, Callable[[float, int], float]] = {
    "1 - momentum^k": lambda m, k: 1 - m**k,
    "1 - (1 - momentum)^k": lambda m, k: 1 - (1 - m) ** k,
    "1 - (1 - momentum)^(k + 1)": lambda m, k: 1 - (1 - m) ** (k + 1),
    "1 - (1 - momentum)^(k - 1)": lambda m, k: 1 - (1 - m) ** (k - 1),
    "1 - momentum^(k + 1)": lambda m, k: 1 - m ** (k + 1),
    "(1 - momentum)^k": lambda m, k: (1 - m) ** k,
    "momentum^k": lambda m, k: m**k,
    "the root of 1 - (1 - momentum)^k": lambda m, k: (1 - (1 - m) ** k) ** 0.5,
    "the square of 1 - (1 - momentum)^k": lambda m, k: (1 - (1 - m) ** k) ** 2,
    "1 / k": lambda m, k: 1 / k,
    "k": lambda m, k: float(k),
    "momentum * k": lambda m, k: m * k,
}


def correction(
    acting: Sequence[Tensor],
    held: Sequence[Mapping[str, Tensor]],
    batches: Sequence[Tensor],
    momentum: object,
) -> str:
    """Say by which factor evaluation divides what is held, if it is no right one.

    Each sequence has an entry for each batch, the first one first; ``batches`` are the
    statistics that are averaged.
    """
    names = [name for name in held[0] if all(name in values for values in held)]
    for name in names:
        seen = [_factor(h[name], a) for h, a in zip(held, acting, strict=True)]
        if not all(abs(f) > TINY for f in seen):
            continue
        if all(abs(f - seen[0]) < NEAR * abs(seen[0]) for f in seen):
            continue  # that corrects no start
        text = f"evaluation uses {name} / f, where f is {_listed(seen)} in the first "
        text += f"{len(seen)} batches"
        text += _rule(seen, momentum)
        share = _factor(held[0][name], batches[0])  # of an average that begins at 0
        if not 0 < share < 1:
            return text
        right = [1 - (1 - share) ** k for k in range(1, len(seen) + 1)]
        if all(abs(f / r - 1) < NEAR for f, r in zip(seen, right, strict=True)):
            return ""
        size = right[0] / seen[0]
        return (
            f"{text}. The average begins at 0, and 1 - (1 - {share:.3g})^k = "
            f"{_listed(right)} would correct that. So after the first batch it is "
            f"{size:.3g} times that of the batch, "
            f"{'far too small' if size < 0.8 else 'too large'}"
        )
    return ""


def _factor(value: Tensor, of: Tensor) -> float:
    """Return the one number by which ``of`` must be multiplied; NaN for several."""
    ok = of.abs() > 1e-3 * of.abs().max()
    if value.shape != of.shape or not ok.any():
        return math.nan
    ratio = value[ok] / of[ok]
    is_one = (ratio - ratio.mean()).abs().max() < NEAR * ratio.abs().max()
    return float(ratio.mean()) if is_one else math.nan


def _rule(seen: Sequence[float], momentum: object) -> str:
    if not isinstance(momentum, float) or not 0 < momentum < 1:
        return ""
    for text, rule in RULES.items():
        values = [rule(momentum, k) for k in range(1, len(seen) + 1)]
        if all(abs(f - v) < NEAR * abs(v) for f, v in zip(seen, values, strict=True)):
            return f": that is {text}, k batches"
    return ""


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
