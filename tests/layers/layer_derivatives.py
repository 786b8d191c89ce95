"""Derivatives of a layer of any kind, of first and second order, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from layer_pairs import EXACT, distance, draw
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call


def as_function(layer: nn.Module, *rest: Any) -> Callable[..., Tensor]:
    """Return the layer as a function of x and its parameters; the rest is constant."""
    names = [key for key, _ in layer.named_parameters()]

    def f(x: Tensor, *values: Tensor) -> Tensor:
        own = dict(zip(names, values, strict=True))
        y: Tensor = functional_call(layer, own, (x, *rest))
        return y

    return f


def arguments(layer: Any, x: Tensor) -> list[Tensor]:
    values = (x, *layer.parameters())
    return [v.detach().clone().requires_grad_() for v in values]


def penalty(layer: Any, x: Tensor, dl_dy: Tensor) -> list[Tensor]:
    """Gradients of a gradient penalty: second derivatives in every pair of inputs."""
    x = x.clone().requires_grad_()
    leaves = [x, dl_dy.clone().requires_grad_(), *layer.parameters()]
    y = layer(leaves[0])
    slopes = torch.autograd.grad(y, [x, *layer.parameters()], leaves[1], True, True)
    size = sum((slope**3).sum() for slope in slopes)
    assert isinstance(size, Tensor)
    return list(torch.autograd.grad(size, leaves, allow_unused=True))


def tangent_of(value: Tensor) -> Tensor | None:
    return forward_ad.unpack_dual(value).tangent  # type: ignore[no-untyped-call, no-any-return]


def tangents(layer: Any, x: Tensor, dl_dy: Tensor, chosen: list[int]) -> list[Tensor]:
    """Differentiate y and its slope in x along some of x and the parameters."""
    point = arguments(layer, x)
    x = point[0]
    with forward_ad.dual_level():
        for k in chosen:
            direction = draw(*point[k].shape, seed=2)
            point[k] = forward_ad.make_dual(point[k], direction)  # type: ignore[no-untyped-call]
        y = as_function(layer)(*point)
        (slope,) = torch.autograd.grad(y, x, dl_dy, create_graph=True)
        found = [tangent_of(value) for value in (y, slope)]
    return [torch.zeros_like(x) if value is None else value for value in found]


def assert_same_derivatives(
    layers: Sequence[nn.Module], x: Tensor, dl_dy: Tensor
) -> None:
    """Compare first and second derivatives of two layers, forward and backward."""
    found, expected = (penalty(m, x, dl_dy) for m in layers)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or distance(a, b) < EXACT
    everything = range(1 + len(list(layers[0].parameters())))
    for chosen in (*([k] for k in everything), list(everything)):
        found, expected = (tangents(m, x, dl_dy, chosen) for m in layers)
        for a, b in zip(found, expected, strict=True):
            assert distance(a, b) < EXACT
