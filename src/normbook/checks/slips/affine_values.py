"""Which gain and bias act, told by their values under two settings of the parameters.

Each row of a tensor here is one setting, each column one channel.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from normbook.checks.claim import named
from normbook.checks.tensors import is_near

# Of values found from large inputs, beside the largest of them.
NEAR = 0.01


def acting(seen: Tensor, gain: Tensor, bias: Tensor, role: str) -> str:
    """Name what acts in place of the gain or the bias, or return nothing.

    ``seen`` is what multiplies x_hat or is added to the product.
    """
    values, gain, bias = (v.flatten(1) for v in (seen, gain, bias))
    own, other = (gain, bias) if role == "gain" else (bias, gain)
    known = {
        f"the {role} is not used": torch.ones_like(own) * (role == "gain"),
        f"1 + {role} acts": 1 + own,
        f"the {role} is used as exp({role})": own.exp(),
        f"the {role} is used as its absolute value": own.abs(),
        f"a negative {role} is used as 0": own.clamp_min(0),
        f"the {role} is squared": own.square(),
        f"the {role} goes through a sigmoid": own.sigmoid(),
        f"the {role} goes through tanh": own.tanh(),
        f"1 + tanh({role}) acts": 1 + own.tanh(),
        f"the {role} goes through softplus": functional.softplus(own),
        f"1 / {role} acts, x_hat is divided by it": 1 / own,
        f"the {role} has the wrong sign": -own,
        f"the {role} acts twice": 2 * own,
        f"the mean of the {role} over all channels acts": own.mean(1, keepdim=True),
        "gain and bias are exchanged": other,
        "gain and bias are exchanged, and 1 is added to the gain": 1 + other,
        "the bias is multiplied by the gain, as it is added before it": gain * bias,
        "the bias is multiplied by the gain, and has the wrong sign": -gain * bias,
        "the gain is added, too": gain + bias,
        "the gain is added, not multiplied": gain,
    }
    if not bias.any():  # there is none
        known = {name: v for name, v in known.items() if "exchanged" not in name}
    if role == "bias":
        known["the gain acts on the bias, too, and both are added"] = bias + gain * bias

    if name := named(known, lambda value: is_near(values, value, NEAR, 1e-9)):
        return name.removesuffix(": ")
    if own.shape[1] != values.shape[1]:
        return ""
    # The value of which channel acts on each, in both settings?
    order = nearest(values, own)
    if not is_near(values, own[:, order], NEAR, 1e-9):
        return ""
    return f"each channel should have its own {role}, {described(order)}"


def nearest(seen: Tensor, own: Tensor) -> Tensor:
    """Return for each column of ``seen`` the column of ``own`` that is nearest."""
    return (seen[:, :, None] - own[:, None, :]).abs().amax(0).argmin(1)


def described(order: Tensor) -> str:
    """Say which value each channel has, and the rule, if it is a usual one."""
    count = len(order)
    own = torch.arange(count)
    first = ", ".join(map(str, order[:8].tolist()))
    text = f"and channels 0, 1, 2, ... have that of {first}{', ...' * (count > 8)}"
    rules = {"in reversed order": own.flip(0)}
    rules |= {f"shifted by {k}": own.roll(k) for k in (1, -1)}
    if (order == order[0]).all():
        return f"and channel {int(order[0])} gives that of all channels"
    for parts in range(2, count):
        if count % parts == 0:
            turned = own.view(parts, -1).T.flatten()
            rules[f"the order is that of a transpose of {parts} parts"] = turned
            each = count // parts
            rules[f"repeated by {each}, as by repeat_interleave"] = own // each
            rules[f"repeated as a whole, each {parts} channels"] = own % parts
    rule = next((name for name, values in rules.items() if order.equal(values)), "")
    return f"{text}{': ' * bool(rule)}{rule}"
