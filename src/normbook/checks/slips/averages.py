"""What a running statistic took in, and how evaluation corrects it for its start.

What it took in is found by fitting its steps, each as a share of what it was, and a
share of some number of the batch. Corrections are looked for in what is held after each
of the first batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normbook.checks.tensors import TOLERANCE, is_near, largest, rows

OTHER = {"mean": "the variance of the batch", "variance": "the mean of the batch"}


class Taken(NamedTuple):
    """A step: kept * what it was + taken * a number of the batch."""

    kept: float
    taken: float
    what: str


def statistics_of(x: Tensor, moved_mean: Tensor) -> dict[str, Tensor]:
    """Return what may be averaged of a batch: values of each channel (axis 1).

    ``moved_mean`` is the running mean after the batch.
    """
    each = rows(x.double())
    mean, var = each.mean(0), each.var(0, correction=0)
    return {
        "the mean of the batch": mean,
        "the variance of the batch": var,
        "the standard deviation of the batch": var.sqrt(),
        "the mean square E[x^2] of the batch, not the variance,": each.square().mean(0),
        "the square of the mean of the batch": mean.square(),
        "the variance of the batch about the running mean, already moved,": (
            (each - moved_mean).square().mean(0)
        ),
        "the mean of the absolute values of the batch": each.abs().mean(0),
        "the mean of all channels of the batch": each.mean().expand_as(mean),
        "the variance of all channels together": each.var(correction=0).expand_as(var),
        "the variance over the examples alone": _over_axis(x, 0),
        "the variance over the positions alone": _over_axis(x, *range(2, x.dim())),
        "the first example's mean": x[0].double().reshape(len(mean), -1).mean(1),
        "the sum of the batch": each.sum(0),
        "1": torch.ones_like(mean),
    }


def _over_axis(x: Tensor, *axes: int) -> Tensor:
    if not axes:
        return x.new_zeros(x.shape[1]).double()
    var = x.double().var(axes, correction=0, keepdim=True)
    return rows(var).mean(0)


def explained(
    before: list[Tensor], after: list[Tensor], batches: list[dict[str, Tensor]]
) -> Taken | None:
    """Find the two shares, and of what, that give every step of every channel."""
    old, new = torch.stack(before), torch.stack(after)
    ok = new.isfinite().all(0) & old.isfinite().all(0)
    if not ok.any():
        return None
    old, new = old[:, ok], new[:, ok]
    if is_near(new, old, 1e-9, 1.0):
        return Taken(1.0, 0.0, "nothing")
    for what in batches[0]:
        of = torch.stack([batch[what][ok] for batch in batches])
        columns = torch.stack([old.flatten(), of.flatten()], -1)
        shares = torch.linalg.lstsq(columns, new.reshape(-1, 1)).solution
        error = largest((columns @ shares).reshape(new.shape) - new)
        if error < TOLERANCE * largest(new - old):
            kept, taken = (round(v, 9) + 0.0 for v in shares.flatten().tolist())
            return Taken(kept, taken, what)
    return None


def in_words(of: Taken, name: str, momentum: object, sizes: tuple[int, int]) -> str:
    """Say what is kept and what taken in, with the usual slip where it is one.

    ``sizes`` are the number n of values of a channel, and that of examples.
    """
    kept, taken, what = of
    if what == "nothing":
        return "it never changes"
    weight = momentum if isinstance(momentum, float | int) and momentum else None
    n, examples = sizes
    factors = {
        "": 1.0,
        f", divided by n - 1 = {n - 1}, not by n": n / (n - 1),
        f", divided by n = {n}, once too often": 1 / n,
        f", by n = {n}": float(n),
        f", by the N / (N - 1) of N = {examples} examples, not of n = {n} values": (
            examples / max(examples - 1, 1)
        ),
        ", with the wrong sign": -1.0,
        f", times the root of n / (n - 1), n = {n}": math.sqrt(n / (n - 1)),
    }
    share = 1 - kept if abs(1 - kept) > TOLERANCE else (weight or taken)
    factors[f", times (n - 1) / n of n = {n}, not n / (n - 1)"] = (n - 1) / n
    ratio = taken / share
    # Nearest first: near 1 many are alike.
    near = sorted(factors, key=lambda k: abs(ratio / factors[k] - 1))
    how = near[0] if abs(ratio / factors[near[0]] - 1) < 0.1 / n else _counted(ratio, n)
    if not how and abs(ratio / factors[near[0]] - 1) < 0.01:
        how = near[0]
    rules = {
        "mean and variance are exchanged": what == OTHER.get(name),
        "the last batch replaces the average": abs(kept) < TOLERANCE,
        "it is added to the whole old value, and grows without end": (
            abs(kept - 1) < TOLERANCE
        ),
    }
    if weight:
        rules |= {
            "it moves twice in each call": abs(kept - (1 - weight) ** 2) < TOLERANCE,
            "momentum is the weight of the old value, both have each other's weight": (
                abs(kept - weight) < TOLERANCE < abs(1 - 2 * weight)
            ),
        }
    rule = next((f"{text}: " for text, holds in rules.items() if holds), "")
    return (
        f"{rule}the running {name} becomes {kept:.3g} times what it was, "
        f"and {taken:.3g} times {what}{how}"
    )


def _counted(ratio: float, n: int) -> str:
    """Name the count of a correction N / (N - 1) that is another one than n."""
    if not 1 + 1e-4 < ratio < 3:
        return ""
    count = ratio / (ratio - 1)
    if abs(count - round(count)) > 0.02 * count or round(count) == n:
        return ""
    return f", by the N / (N - 1) of N = {round(count)}, not of n = {n} values"


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
