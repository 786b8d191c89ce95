"""The one function of the family: against the definition, differences, and broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import (
    EXACT,
    assert_differences,
    assert_gradients,
    torch_gradients,
)

from normbook.gradient_check import relative_error, survivors
from normbook.normalize import (
    NormalizeCache,
    normalize,
    normalize_backward,
    normalize_forward,
)

SHAPE = (5, 3, 4)  # every axis of a different length
EPS = 0.3  # large, so that a wrong place for it is seen
ROUNDING = 1e-12
# Which values share statistics, and along which axes gain and bias differ.
CHOICES: list[tuple[Any, Any]] = [
    (0, 1),
    (-1, -1),
    ((1, 2), (2, 1)),
    ((0, 2), 1),
    (2, (0, 1, 2)),
    ((0, 1, 2), 0),
    (1, (0, 2)),
]
Arrays = tuple[np.ndarray[Any, Any], ...]
each_choice = pytest.mark.parametrize(("axes", "parameter_axes"), CHOICES)
with_and_without_mean = pytest.mark.parametrize("is_centred", [True, False])


def draw(parameter_axes: Any, seed: int = 0) -> Arrays:
    """Return x, gamma, beta and dl_dy."""
    rng = np.random.default_rng(seed)
    named = np.atleast_1d(parameter_axes) % len(SHAPE)
    shape = tuple(length for axis, length in enumerate(SHAPE) if axis in named)
    parameters = rng.normal(size=shape), rng.normal(size=shape)
    return rng.normal(2, 3, SHAPE), *parameters, rng.normal(size=SHAPE)


def spread(value: Any, parameter_axes: Any) -> Any:
    """Return a gain or bias in the shape of x, spread along the other axes."""
    named = np.atleast_1d(parameter_axes) % len(SHAPE)
    whole = np.empty(SHAPE)
    for place in np.ndindex(*SHAPE):
        whole[place] = value[tuple(place[axis] for axis in sorted(named))]
    return whole


def definition(x: Any, gamma: Any, beta: Any, axes: Any, is_centred: bool) -> Any:
    """Normalize with numpy's mean and variance; gamma and beta in the shape of x."""
    mu = x.mean(axes, keepdims=True) if is_centred else 0.0
    var = ((x - mu) ** 2).mean(axes, keepdims=True)
    return (x - mu) / np.sqrt(var + EPS) * gamma + beta


@each_choice
@with_and_without_mean
def test_the_output_is_the_definition(
    axes: Any, parameter_axes: Any, is_centred: bool
) -> None:
    x, gamma, beta, _ = draw(parameter_axes)
    choice: Any = {"axes": axes, "parameter_axes": parameter_axes, "eps": EPS}
    y = normalize(x, gamma, beta, is_centred=is_centred, **choice)
    whole = spread(gamma, parameter_axes), spread(beta, parameter_axes)
    expected = definition(x, *whole, axes, is_centred)
    np.testing.assert_allclose(y, expected, atol=ROUNDING)


@each_choice
@with_and_without_mean
def test_gradients_agree_with_central_differences(
    axes: Any, parameter_axes: Any, is_centred: bool
) -> None:
    *arrays, dl_dy = draw(parameter_axes)
    choice: Any = {"axes": axes, "parameter_axes": parameter_axes, "eps": EPS}
    choice["is_centred"] = is_centred
    _, cache = normalize_forward(*arrays, **choice)
    gradients = normalize_backward(dl_dy, cache)
    assert_differences(
        lambda *given: normalize(*given, **choice), tuple(arrays), dl_dy, gradients
    )


@each_choice
@with_and_without_mean
def test_gradients_agree_with_autograd_on_numpy_and_torch(
    axes: Any, parameter_axes: Any, is_centred: bool
) -> None:
    *arrays, dl_dy = draw(parameter_axes)
    choice: Any = {"axes": axes, "parameter_axes": parameter_axes, "eps": EPS}
    choice["is_centred"] = is_centred
    expected = torch_gradients(
        lambda *leaves: normalize(*leaves, **choice), dl_dy, *arrays
    )
    for of in (np.asarray, torch.tensor):
        y, cache = normalize_forward(*map(of, arrays), **choice)
        assert relative_error(y, expected[0]) < EXACT
        assert_gradients(normalize_backward(of(dl_dy), cache), expected[1])


def test_gamma_and_beta_default_to_one_and_zero() -> None:
    x, gamma, _, dl_dy = draw((1, 2))
    choice: Any = {"axes": 0, "parameter_axes": (1, 2)}
    y, cache = normalize_forward(x, **choice)
    one, zero = np.ones_like(gamma), np.zeros_like(gamma)
    same_y, same_cache = normalize_forward(x, one, zero, **choice)
    np.testing.assert_array_equal(y, same_y)
    gradients = normalize_backward(dl_dy, cache)
    same = normalize_backward(dl_dy, same_cache)
    for a, b in zip(gradients, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert gradients.dl_dgamma.shape == (3, 4)


@each_choice
def test_without_eps_the_gradient_has_no_part_along_one_or_x_hat(
    axes: Any, parameter_axes: Any
) -> None:
    x, gamma, beta, dl_dy = draw(parameter_axes)
    _, cache = normalize_forward(
        x, gamma, beta, axes=axes, parameter_axes=parameter_axes, eps=0.0
    )
    dl_dx = normalize_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose(dl_dx.sum(axes), 0, atol=ROUNDING)
    np.testing.assert_allclose((dl_dx * cache.x_hat).sum(axes), 0, atol=ROUNDING)


def test_without_centring_the_gradient_loses_its_part_along_x_alone() -> None:
    x, *_, dl_dy = draw(0)
    _, cache = normalize_forward(
        x, axes=(1, 2), parameter_axes=0, eps=0.0, is_centred=False
    )
    dl_dx = normalize_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose((dl_dx * x).sum((1, 2)), 0, atol=ROUNDING)
    assert abs(dl_dx.sum((1, 2))).min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@with_and_without_mean
def test_half_precision_is_rounded_once(dtype: torch.dtype, is_centred: bool) -> None:
    x, gamma, beta, dl_dy = (torch.tensor(a).float() for a in draw(1))
    x, dl_dy = x.to(dtype), dl_dy.to(dtype)
    choice: Any = {"axes": (1, 2), "parameter_axes": 1, "is_centred": is_centred}
    y, cache = normalize_forward(x, gamma, beta, **choice)
    exact, exact_cache = normalize_forward(x.float(), gamma, beta, **choice)
    gradients = normalize_backward(dl_dy, cache)
    expected = normalize_backward(dl_dy.float(), exact_cache)
    assert torch.equal(y, exact.to(dtype))
    assert torch.equal(gradients.dl_dx, expected.dl_dx.to(dtype))
    # Sums over many values stay in float32.
    assert torch.equal(gradients.dl_dgamma, expected.dl_dgamma)
    assert torch.equal(gradients.dl_dbeta, expected.dl_dbeta)


def test_the_input_is_left_alone() -> None:
    arrays = draw(1)
    before = [a.copy() for a in arrays]
    _, cache = normalize_forward(*arrays[:3], axes=0, parameter_axes=1)
    normalize_backward(arrays[3], cache)
    for now, then in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(now, then)


def forward_check(function: Any) -> None:
    for axes, parameter_axes in CHOICES:
        x, gamma, beta, _ = draw(parameter_axes)
        choice: Any = {"axes": axes, "parameter_axes": parameter_axes, "eps": EPS}
        y, _ = function(x, gamma, beta, **choice)
        whole = spread(gamma, parameter_axes), spread(beta, parameter_axes)
        expected = definition(x, *whole, axes, True)
        np.testing.assert_allclose(y, expected, atol=ROUNDING)


def backward_check(function: Any) -> None:
    for axes, parameter_axes in CHOICES[:4]:
        *arrays, dl_dy = draw(parameter_axes)
        choice: Any = {"axes": axes, "parameter_axes": parameter_axes, "eps": EPS}
        cache = normalize_forward(*arrays, **choice)[1]
        _, expected = torch_gradients(
            lambda *leaves, choice=choice: normalize(*leaves, **choice), dl_dy, *arrays
        )
        assert_gradients(function(dl_dy, cache), expected)


@pytest.mark.parametrize("name", ["affine", "affine_gradients", "broadcast_along"])
def test_every_mutant_of_a_helper_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["normbook.normalize"]
    # Autograd through a broken forward pass would agree with it: ask it now.
    *arrays, dl_dy = draw((1, 2))
    choice: Any = {"axes": (0, 1), "parameter_axes": (1, 2), "eps": EPS}
    _, expected = torch_gradients(
        lambda *leaves: normalize(*leaves, **choice), dl_dy, *arrays
    )

    def check(helper: Any) -> None:
        monkeypatch.setattr(module, name, helper)
        forward_check(normalize_forward)
        backward_check(normalize_backward)
        cache = normalize_forward(*arrays, **choice)[1]
        assert_gradients(normalize_backward(dl_dy, cache), expected)

    assert survivors(getattr(module, name), check) == []


X, ONE = np.ones((4, 3, 2)), np.ones(3)
FORWARD: Any = {"axes": (0, 2), "parameter_axes": 1}
CACHE: NormalizeCache = normalize_forward(X, **FORWARD)[1]
Case = tuple[Callable[[], object], type[Exception], str]
BAD_CALLS: list[Case] = [
    (lambda: normalize([[1.0]], **FORWARD), TypeError, "x must be a NumPy array"),
    (lambda: normalize(X.astype(int), **FORWARD), TypeError, "x must hold real"),
    (
        lambda: normalize(X, np.ones(2), **FORWARD),
        ValueError,
        r"gamma must have shape \(3,\), got \(2,\); pass 3 values, one per feature: "
        r"axes \(1,\) of x with shape \(4, 3, 2\)\.",
    ),
    (
        lambda: normalize(X, np.ones((2, 3)), axes=0, parameter_axes=(2, 1)),
        ValueError,
        r"gamma must have shape \(3, 2\), got \(2, 3\); pass 6 values",
    ),
    (lambda: normalize(X, ONE, X, **FORWARD), ValueError, "beta must have shape"),
    (lambda: normalize(X, 2.0, **FORWARD), TypeError, "gamma must be a NumPy array"),
    (
        lambda: normalize(X, torch.ones(3), **FORWARD),
        TypeError,
        "gamma must be of the kind of x, ndarray, got Tensor",
    ),
    (lambda: normalize(X, axes=3, parameter_axes=3), ValueError, r"^axes must lie in"),
    (
        lambda: normalize(X, axes=0, parameter_axes=-4),
        ValueError,
        r"parameter_axes must lie in -3\.\.2 for x of shape \(4, 3, 2\), got -4",
    ),
    (
        lambda: normalize(X, axes=0, parameter_axes=(1, -2)),
        ValueError,
        "parameter_axes must be different axes",
    ),
    (
        lambda: normalize(X, axes=(), parameter_axes=()),
        ValueError,
        "^axes must name at least one axis",
    ),
    (
        lambda: normalize(X, axes=0, parameter_axes=None),  # type: ignore[arg-type]
        TypeError,
        "parameter_axes must be an int or a tuple of ints, got None",
    ),
    (lambda: normalize(X, eps=-1.0, **FORWARD), ValueError, "eps must be"),
    (lambda: normalize(X[:0], **FORWARD), ValueError, "at least one value"),
    (
        lambda: normalize_backward(X[:2], CACHE),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 3, 2\), got \(2, 3, 2\)",
    ),
    (lambda: normalize_backward(X > 0, CACHE), TypeError, "dl_dy must hold real"),
    (
        lambda: normalize_backward(torch.tensor(X), CACHE),
        TypeError,
        "dl_dy must be of the kind of y, ndarray, got Tensor",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
