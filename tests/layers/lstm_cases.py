"""An LSTM layer with all outputs and gradients, beside its formulas in float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
from layer_pairs import stirred
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from normbook.layers.lstm import LayerNormLSTM


def make(features: int, units: int, gain: float = 1.0, **options: Any) -> Any:
    layer = stirred(LayerNormLSTM(features, units, **options), -0.3, 0.3)
    with torch.no_grad():
        for name, value in layer.named_parameters():
            if name.startswith("gamma"):
                value.add_(1).mul_(1.0 if name.startswith("gamma_c") else gain)
    return layer


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def results(layer: Any, x: Any, hx: Any = None) -> list[Tensor]:
    """Return outputs and all gradients of a loss that draws on every output."""
    rows = x.data if isinstance(x, PackedSequence) else x
    leaf = rows.detach().clone().requires_grad_()
    asked = x._replace(data=leaf) if isinstance(x, PackedSequence) else leaf
    states = None if hx is None else [v.detach().clone().requires_grad_() for v in hx]
    h, last = layer(asked, states)
    h = h.data if isinstance(h, PackedSequence) else h
    outputs = h, *last
    leaves = [leaf, *(states or []), *layer.parameters()]
    slopes = [draw(*v.shape, seed=k + 1).to(v) for k, v in enumerate(outputs)]
    return [*outputs, *torch.autograd.grad(outputs, leaves, slopes)]


def exact(layer: Any) -> Any:
    """Return the layer that computes by the formulas, in float64 on a CPU."""
    twin = copy.deepcopy(layer).cpu().double()
    twin.native = False
    return twin


def errors(layer: Any, x: Any, hx: Any = None) -> list[float]:
    """Return the largest errors against float64, as shares of the largest value."""
    twin = exact(layer)  # before a call writes running statistics
    wide = x.to("cpu", torch.float64)
    states = None if hx is None else [v.cpu().double() for v in hx]
    pairs = zip(results(layer, x, hx), results(twin, wide, states), strict=True)
    return [
        float(((a.cpu() - b).abs().max() / b.abs().max()).detach()) for a, b in pairs
    ]
