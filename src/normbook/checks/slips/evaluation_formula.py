"""Which formula of gain, bias and what is held gives the line of an evaluation.

Each row of a tensor here is one setting of gain and bias, each column one channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from normbook.checks.layer.recognition import MEANS
from normbook.checks.tensors import is_near


class Lines(NamedTuple):
    """The evaluation y = slope * x + height, with the gain and bias of training."""

    gain: Tensor
    bias: Tensor
    slope: Tensor
    height: Tensor
    eps: float


# What stands in the place of the gain, with what to say of it.
GAINS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "gain": ("", lambda g, b: g),
    "1": ("the gain is not used", lambda g, b: torch.ones_like(g)),
    "gain^2": ("the gain acts twice", lambda g, b: g.square()),
    "(1 + gain)": ("1 + gain acts", lambda g, b: 1 + g),
    "(gain - 1)": ("gain - 1 acts", lambda g, b: g - 1),
    "|gain|": ("the gain is used as its absolute value", lambda g, b: g.abs()),
    "1 / gain": ("x is divided by the gain", lambda g, b: 1 / g),
    "exp(gain)": ("the gain is used as exp(gain)", lambda g, b: g.exp()),
    "bias": ("the bias is used in place of the gain", lambda g, b: b),
    "softplus(gain)": (
        "the gain goes through softplus",
        lambda g, b: functional.softplus(g),
    ),
}
# What x is divided by, with the name of the running variance to be filled in.
DIVISORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "sqrt({} + eps)": lambda var, eps: (var + eps).clamp_min(0).sqrt(),
    "({} + eps)": lambda var, eps: var + eps,
    "sqrt({})": lambda var, eps: var.clamp_min(0).sqrt(),
    "{}": lambda var, eps: var,
    "(sqrt({}) + eps)": lambda var, eps: var.clamp_min(0).sqrt() + eps,
    "1": lambda var, eps: torch.ones_like(var),
}


def formula(lines: Lines, held: Mapping[str, Tensor]) -> str:
    """Say which formula it is and where it differs from that of training, or nothing.

    ``held`` are the numbers that training moved, one for each channel.
    """
    for var, mean in itertools.product(held, held):
        if var == mean and len(held) > 1:
            continue
        for (name, (_, acts)), (text, divides) in itertools.product(
            GAINS.items(), DIVISORS.items()
        ):
            gain, root = acts(lines.gain, lines.bias), text.format(var)
            if is_near(lines.slope, gain / (by := divides(held[var], lines.eps))):
                found = _height(lines, held[mean], mean, (name, gain), (root, by))
                if found:
                    slope = name if root == "1" else f"{name} / {root}"
                    return _told(name, root, var, slope, found)
    return ""


def wrong_height(lines: Lines, held: Mapping[str, Tensor]) -> str:
    """Say what is wrong with the mean or the bias, where the slope is right.

    A mean that is multiplied by some number is still a mean, as far as gain and bias
    tell. What is not called a mean may be kept in another form on purpose.
    """
    means = [name for name in held if name.rpartition(".")[2] in MEANS]
    for var, mean in itertools.product(held, means):
        by = (held[var] + lines.eps).clamp_min(0).sqrt()
        if var == mean or not is_near(lines.slope, lines.gain / by):
            continue
        root = f"sqrt({var} + eps)"
        found = _height(lines, held[mean], mean, ("gain", lines.gain), (root, by))
        if found and found[1]:
            return _told("gain", root, var, f"gain / {root}", found)
    return ""


def _told(
    name: str, root: str, var: str, slope: str, height: tuple[str, list[str]]
) -> str:
    text, slips = height
    slips = [*filter(None, [GAINS[name][0]]), *slips]
    if root != f"sqrt({var} + eps)":
        slips.insert(0, f"x is divided by {root}")
    slips = list(dict.fromkeys(slips)) or ["gain or bias are those of another channel"]
    return (
        f"{' and '.join(slips)}: evaluation is a x + c, with a = {slope} and c = "
        f"{text}; expected a = gain / sqrt(var + eps) and c = bias - mean * a"
    )


def _height(
    lines: Lines,
    mean: Tensor,
    name: str,
    gain: tuple[str, Tensor],
    by: tuple[str, Tensor],
) -> tuple[str, list[str]] | None:
    """Find what is added: a share of the bias less a share of the mean."""
    (g, gains), (root, divisor) = gain, by
    ones = torch.ones_like(gains)
    times: dict[str, tuple[Tensor, str, str]] = {
        "a": (gains / divisor, "is multiplied by a, too", ""),
        f"1 / {root}": (ones / divisor, f"is divided by {root}", "without the gain"),
        g: (gains, "is multiplied by the gain", "without the division"),
        "1": (ones, "", "as it is, without gain and division"),
    }
    if g != "1":
        square = gains.square() / divisor
        times[f"{g} * a"] = (square, "is multiplied by gain * a", "with the gain twice")
    signs = {1.0: "", -1.0: "with the wrong sign", 2.0: "twice", 0.0: "not"}
    rows = list(itertools.product(signs, times))
    # A right part and one slip come before two slips.
    pairs = sorted(
        itertools.product(rows, rows),
        key=lambda p: (p[0] != (1.0, "1")) + (p[1] != (1.0, "a")),
    )
    for (s, p), (t, q) in pairs:
        value = s * lines.bias * times[p][0] - t * mean * times[q][0]
        if not is_near(lines.height, value):
            continue
        slips = []
        if s != 1 or p != "1":
            how = f"is added {signs[s]}" if s != 1 else times[p][1]
            slips.append(f"the bias {how}")
        if t != 1 or q != "a":
            how = signs[t] if t != 1 else times[q][2]
            slips.append("the mean is not subtracted" if t == 0 else "")
            slips[-1] = slips[-1] or f"the mean is subtracted {how}"
        text = f"{_part(s, 'bias', p)} - {_part(t, name, q)}"
        return text.replace(" - 0", "").replace("- -", "+ "), slips
    return None


def _part(sign: float, what: str, times: str) -> str:
    if not sign:
        return "0"
    size = {1.0: "", -1.0: "-", 2.0: "2 * "}[sign]
    if times.startswith("1 / "):
        return f"{size}{what} / {times[4:]}"
    return f"{size}{what}" if times == "1" else f"{size}{what} * {times}"
