"""The table of methods: each row is right, and a wrong row is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import EXACT
from torch.nn import functional

from normbook.batch_norm import batch_norm_forward
from normbook.gradient_check import relative_error
from normbook.group_norm import (
    group_norm_backward,
    group_norm_forward,
    instance_norm_forward,
)
from normbook.layer_norm import layer_norm_forward, rms_norm_forward
from normbook.normalize import METHODS, normalize_backward
from normbook.weight_norm import (
    weight_norm_backward,
    weight_norm_forward,
    weight_standardization_forward,
)

EPS = 0.3
SHAPE = (5, 4, 3, 2)  # every axis of a different length


def with_parameters(forward: Any) -> Any:
    """Return y and gradients of a forward pass of the package."""

    def both(x: Any, gamma: Any, beta: Any, dl_dy: Any) -> tuple[Any, ...]:
        y, cache = forward(x, gamma, beta)
        return y, *normalize_backward(dl_dy, cache)

    return both


def weight_norm_both(v: Any, g: Any, _: Any, dl_dw: Any) -> tuple[Any, ...]:
    w, cache = weight_norm_forward(v, g)
    return w, *weight_norm_backward(dl_dw, cache)


def group_norm_both(x: Any, gamma: Any, beta: Any, dl_dy: Any) -> tuple[Any, ...]:
    y, cache = group_norm_forward(x, 2, gamma, beta, EPS)
    return y, *group_norm_backward(dl_dy, cache)


def by_torch(function: Any, *, has_bias: bool = True, has_gain: bool = True) -> Any:
    """Return y and the gradients that autograd finds."""

    def both(x: Any, gamma: Any, beta: Any, dl_dy: Any) -> tuple[Any, ...]:
        parameters = (gamma,) * has_gain + (beta,) * has_bias
        leaves = [torch.tensor(a, requires_grad=True) for a in (x, *parameters)]
        y = function(*leaves)
        return y, *torch.autograd.grad(y, leaves, torch.tensor(dl_dy))

    return both


def standardized_rows(w: torch.Tensor) -> torch.Tensor:
    rows = w.flatten(1)
    var = rows.var(1, correction=0, keepdim=True)
    return ((rows - rows.mean(1, keepdim=True)) / (var + EPS).sqrt()).reshape(w.shape)


def scaled_rows(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch._weight_norm(v, g.reshape(-1, 1, 1, 1), 0)


# Ours, torch's, and the axis of the gain.
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "batch norm": (
        with_parameters(lambda x, g, b: batch_norm_forward(x, g, b, EPS)),
        by_torch(
            lambda x, g, b: functional.batch_norm(x, None, None, g, b, True, eps=EPS)
        ),
        1,
    ),
    "layer norm": (
        with_parameters(lambda x, g, b: layer_norm_forward(x, g, b, EPS)),
        by_torch(lambda x, g, b: functional.layer_norm(x, g.shape, g, b, EPS)),
        3,
    ),
    "RMSNorm": (
        with_parameters(lambda x, g, b: rms_norm_forward(x, g, EPS)),
        by_torch(lambda x, g: functional.rms_norm(x, g.shape, g, EPS), has_bias=False),
        3,
    ),
    "instance norm": (
        with_parameters(lambda x, g, b: instance_norm_forward(x, g, b, EPS)),
        by_torch(
            lambda x, g, b: functional.instance_norm(x, weight=g, bias=b, eps=EPS)
        ),
        1,
    ),
    "group norm": (
        group_norm_both,
        by_torch(lambda x, g, b: functional.group_norm(x, 2, g, b, EPS)),
        1,
    ),
    "weight norm": (
        weight_norm_both,
        by_torch(scaled_rows, has_bias=False),
        0,
    ),
    "weight standardization": (
        with_parameters(lambda w, g, b: weight_standardization_forward(w, EPS)),
        by_torch(standardized_rows, has_bias=False, has_gain=False),
        0,
    ),
}


def check(method: str) -> None:
    """Compare output and gradients with those of torch."""
    ours, theirs, axis = PAIRS[method]
    rng = np.random.default_rng(0)
    gamma, beta = rng.normal(1, 0.5, (2, SHAPE[axis]))
    arrays = rng.normal(2, 3, SHAPE), gamma, beta, rng.normal(size=SHAPE)
    for a, b in zip(ours(*arrays), theirs(*arrays), strict=False):
        assert relative_error(a, b) < EXACT


def test_every_method_is_held() -> None:
    assert PAIRS.keys() == METHODS.keys()


@pytest.mark.parametrize("method", PAIRS)
def test_each_method_is_that_of_torch(method: str) -> None:
    check(method)


def test_axes_are_counted_from_0() -> None:
    of_layer = {"axes": (3,), "parameter_axes": (3,), "is_centred": True}
    assert METHODS["layer norm"].of(4) == of_layer
    of_batch = {"axes": (0, 2, 3), "parameter_axes": (1,), "is_centred": True}
    assert METHODS["batch norm"].of(4) == of_batch


AXES: list[tuple[Any, ...]] = [(0, 2, ...), (2, ...), (1, ...), (0, 1), (-1,), (1,)]
# Layer norm and RMSNorm take their axes as an argument; the row is its default.
BY_ROW = [name for name in METHODS if METHODS[name].axes != (-1,)]


@pytest.mark.parametrize("method", BY_ROW)
def test_other_axes_are_noticed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = METHODS[method]
    for axes in AXES:
        if axes != right.axes:
            monkeypatch.setitem(METHODS, method, right._replace(axes=axes))
            with pytest.raises((AssertionError, ValueError)):
                check(method)


@pytest.mark.parametrize("method", [*BY_ROW, "RMSNorm"])
def test_a_mean_too_many_or_too_few_is_noticed(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = METHODS[method]
    wrong = right._replace(is_centred=not right.is_centred)
    monkeypatch.setitem(METHODS, method, wrong)
    with pytest.raises(AssertionError):
        check(method)
