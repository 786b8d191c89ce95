"""Weights that should be standardized: whether their scale and mean are forgotten."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from normbook.checks.calls import LayerError, of_the_layer
from normbook.checks.copies import copy_of
from normbook.checks.tensors import draw, largest

STANDARDIZED = re.compile("weight_?stand|standardi[sz]ed|^ws_?(conv|linear)|stdconv")
# Beside the largest output; eps has a part of the variance of a small weight.
MUCH = 0.05
SCALE = 4.0


def weight_slip(layer: nn.Module) -> str:
    """Say what of its weight a layer keeps that has its weight standardized by name."""
    name = type(layer).__name__.lower()
    weight = getattr(layer, "weight", None)
    is_known = isinstance(layer, nn.Linear | nn.modules.conv._ConvNd)
    if not is_known or not STANDARDIZED.search(name):
        return ""
    if not isinstance(weight, Tensor) or weight.dim() < 2 or not weight.numel():
        return ""
    made = copy_of(layer).double()
    held = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
    size = int(str(held))
    x = draw((4, size, *[9] * (weight.dim() - 2)), 0, 1.0)
    generator = torch.Generator().manual_seed(0)
    # As large as those of a large sigma, where no eps shows.
    drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    try:
        one = drawn.clone()
        one[0] *= SCALE
        weights = (drawn, SCALE * drawn, drawn / SCALE, drawn + 1, one)
        y, large, small, moved, of_one = (_with(made, w, x) for w in weights)
    except LayerError:
        return ""
    told = " But the weight is not standardized here: with "
    if largest(large - y) > MUCH * largest(y) and largest(small - y) > MUCH * largest(
        y
    ):
        grows = largest(large) / largest(y)
        why = ""
        if largest(large - SCALE**2 * y) < MUCH * largest(large):
            why = ", as if it were multiplied by its deviation, not divided by it"
        if largest(large - SCALE * y) < MUCH * largest(large):
            why = ", as if it were not divided by its deviation"
        return (
            f"{told}a weight {SCALE:g} times as large the output is {grows:.3g} times "
            f"as large{why}."
        )
    if largest(moved - y) > MUCH * largest(y):
        return f"{told}1 added to the weight the output changes: its mean has a part."
    if largest(of_one - y) > MUCH * largest(y):
        return (
            f"{told}the weight of one output {SCALE:g} times as large the output "
            "changes: outputs share a mean or a variance, or have none of their own."
        )
    return ""


def _with(layer: nn.Module, weight: Tensor, x: Tensor) -> Tensor:
    """Return the output with a weight, and no bias."""
    made = copy_of(layer)
    with torch.no_grad(), of_the_layer():
        for name, p in made.named_parameters():
            if name == "weight":
                p.copy_(weight)
            elif name.rpartition(".")[2] == "bias":
                p.zero_()
        y: Tensor = made(x)
    return y
