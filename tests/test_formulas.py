"""The formulas: values, gradient, numerics, errors."""

from __future__ import annotations

import itertools
import sys
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from normbook.arrays import check_eps, check_float_array, check_same_shape
from normbook.gradient_check import check_gradient, relative_error, survivors
from normbook.normalize import (
    NormalizeCache,
    moments,
    normalize_backward,
    normalize_forward,
    standardize,
)

SHAPE = (5, 3, 4)  # every axis of a different length
EXACT = 1e-12  # float64 with a few hundred additions
AXES = [0, 1, -1, (0, 2), (0, 1), (0, 1, 2)]
values = arrays(np.float64, (6, 2), elements=st.floats(-100, 100, width=16))


def standardize_forward(
    x: Any, axes: Any, eps: Any = 1e-5, *, is_centred: bool = True
) -> tuple[Any, NormalizeCache]:
    return normalize_forward(x, axes=axes, eps=eps, is_centred=is_centred)


def standardize_backward(dl_dx_hat: Any, cache: NormalizeCache) -> Any:
    return normalize_backward(dl_dx_hat, cache).dl_dx


def draw(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(3.0, 2.0, shape)


@pytest.mark.parametrize("axes", AXES)
def test_moments_are_those_of_numpy(axes: Any) -> None:
    x = draw()
    mu, var = moments(x, axes)
    np.testing.assert_allclose(mu, x.mean(axes, keepdims=True), rtol=EXACT)
    np.testing.assert_allclose(var, x.var(axes, keepdims=True), rtol=EXACT)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_gradient_agrees_with_central_differences(axes: Any, eps: float) -> None:
    x, dl_dy = draw(), draw(1)
    _, cache = standardize_forward(x, axes, eps)
    check_gradient(
        lambda x: standardize(x, axes, eps),
        x,
        standardize_backward(dl_dy, cache),
        dl_dy,
    )


@pytest.mark.parametrize("axes", AXES)
def test_without_centring_each_group_is_divided_by_its_root_mean_square(
    axes: Any,
) -> None:
    x, dl_dy = draw(), draw(1)
    x_hat, cache = standardize_forward(x, axes, eps=0.1, is_centred=False)
    mean_square = (x**2).mean(axes, keepdims=True)
    np.testing.assert_allclose(x_hat, x / np.sqrt(mean_square + 0.1), rtol=EXACT)
    np.testing.assert_allclose(cache.var, mean_square, rtol=EXACT)
    assert cache.mu is None
    check_gradient(
        lambda x: standardize(x, axes, 0.1, is_centred=False),
        x, standardize_backward(dl_dy, cache), dl_dy,
    )  # fmt: skip


@given(values)
def test_outputs_have_mean_zero_and_the_stated_mean_square(
    x: np.ndarray[Any, Any],
) -> None:
    x_hat, cache = standardize_forward(x, 0, eps=1e-3)
    expected = cache.var / (cache.var + 1e-3)
    np.testing.assert_allclose(x_hat.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose((x_hat**2).mean(0), expected[0], atol=1e-10)


@given(values, values)
def test_gradient_sums_to_zero_and_leaves_the_stated_part_along_x_hat(
    x: np.ndarray[Any, Any], dl_dy: np.ndarray[Any, Any]
) -> None:
    eps = 1e-2
    x_hat, cache = standardize_forward(x, 0, eps)
    dl_dx = standardize_backward(dl_dy, cache)
    share = eps / (cache.var + eps)
    along = cache.inv_std * share * (dl_dy * x_hat).sum(0)
    np.testing.assert_allclose(dl_dx.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose((dl_dx * x_hat).sum(0), along[0], atol=1e-8)


@given(values, st.floats(-50, 50), st.floats(0.1, 10))
def test_shift_and_scale_of_the_input_are_forgotten(
    x: np.ndarray[Any, Any], shift: float, scale: float
) -> None:
    # a spread of rounding size would turn the comparison into one of noise
    x = x + np.arange(len(x))[:, None] * 300.0
    moved = standardize(scale * x + shift, 0, eps=0.0)
    np.testing.assert_allclose(moved, standardize(x, 0, eps=0.0), atol=1e-9)


@given(values)
def test_a_negative_scale_flips_the_sign(x: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(standardize(-2 * x, 0, 0.4), -standardize(x, 0, 0.1))


@given(values, st.permutations(range(6)))
def test_the_order_of_the_examples_does_not_matter(
    x: np.ndarray[Any, Any], order: list[int]
) -> None:
    np.testing.assert_allclose(
        standardize(x[order], 0), standardize(x, 0)[order], atol=1e-9
    )


def test_groups_do_not_act_on_each_other() -> None:
    x = draw()
    changed = x.copy()
    changed[:, 1] += 100.0
    a, b = standardize(x, (0, 2)), standardize(changed, (0, 2))
    np.testing.assert_array_equal(a[:, [0, 2]], b[:, [0, 2]])


def test_two_values_pass_no_gradient_without_eps() -> None:
    _, cache = standardize_forward(np.array([1.0, 5.0]), 0, eps=0.0)
    np.testing.assert_array_equal(standardize_backward(np.array([0.3, -0.8]), cache), 0)


def test_a_constant_group_gives_zero_with_eps() -> None:
    np.testing.assert_array_equal(standardize(np.full((4, 2), 7.0), 0), 0)


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e5])
def test_a_large_mean_in_float32_costs_no_more_than_in_torch(offset: float) -> None:
    x = draw(shape=(20_000, 2)).astype(np.float32) + np.float32(offset)
    expected = x.astype(np.float64).var(0)
    _, var = moments(x, 0)
    theirs = torch.tensor(x).var(0, correction=0).numpy()
    ours, reference = relative_error(var[0], expected), relative_error(theirs, expected)
    assert ours <= max(10 * reference, 1e-5)


def test_the_textbook_shortcut_would_fail_there() -> None:
    x = draw(shape=(20_000,)).astype(np.float32) + np.float32(1e4)
    shortcut = (x**2).mean() - x.mean() ** 2
    assert abs(shortcut - x.astype(np.float64).var()) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype_and_float32_statistics(
    dtype: torch.dtype,
) -> None:
    x = torch.tensor(draw()).to(dtype)
    x_hat, cache = standardize_forward(x, 0)
    assert x_hat.dtype == dtype
    assert cache.var.dtype == torch.float32
    assert relative_error(x_hat.double(), standardize(x.double(), 0)) < 0.01


def test_numpy_float16_is_taken_too() -> None:
    assert standardize(draw().astype(np.float16), 0).dtype == np.float16


def test_non_contiguous_input_gives_the_same() -> None:
    x = draw(shape=(4, 10))[:, ::3]
    np.testing.assert_array_equal(standardize(x, 0), standardize(x.copy(), 0))


def definition_check() -> None:
    """Compare the forward pass with the definition, on two shapes."""
    choices: list[Any] = [0, (0, 2)]
    for axes, shape in itertools.product(choices, [SHAPE, (2, 3, 7)]):
        x = draw(shape=shape)
        mu, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        x_hat, cache = standardize_forward(x, axes, 0.3)
        np.testing.assert_allclose(cache.mu, mu, rtol=EXACT)
        np.testing.assert_allclose(cache.var, var, rtol=EXACT)
        np.testing.assert_allclose(cache.inv_std * np.sqrt(var + 0.3), 1, rtol=EXACT)
        np.testing.assert_allclose(x_hat * np.sqrt(var + 0.3), x - mu, atol=EXACT)
    for axes in AXES:
        test_without_centring_each_group_is_divided_by_its_root_mean_square(axes)
    # What the second look repairs is seen only where the mean is large: without it the
    # mean errs by 1e-4 and the variance by 0.3.
    x = draw(shape=(20_000, 2)).astype(np.float32) + np.float32(1e4)
    (mu, var), exact = moments(x, 0), x.astype(np.float64)
    np.testing.assert_allclose(mu[0], exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(var[0], exact.var(0), rtol=1e-4)


def backward_check() -> None:
    for is_centred in (True, False):
        x, dl_dy = draw(), draw(1)
        _, cache = standardize_forward(x, 0, 0.3, is_centred=is_centred)
        forward = partial(standardize, axes=0, eps=0.3, is_centred=is_centred)
        check_gradient(forward, x, standardize_backward(dl_dy, cache), dl_dy)


@pytest.mark.parametrize(
    ("formula", "check"),
    [
        ("centre", definition_check),
        ("scale", definition_check),
        ("through", backward_check),
        ("through_scale", backward_check),
    ],
)
def test_every_mutant_of_a_formula_is_caught(
    formula: str, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["normbook.normalize"]

    def check_with(mutant: Any) -> None:
        monkeypatch.setattr(module, formula, mutant)
        check()

    assert survivors(getattr(module, formula), check_with) == []


@pytest.mark.parametrize(
    ("x", "axes", "error", "message"),
    [
        (np.arange(3), 0, TypeError, "real floating-point numbers, got dtype int64"),
        (np.zeros(3, complex), 0, TypeError, "got dtype complex128"),
        (np.zeros(3, bool), 0, TypeError, "got dtype bool"),
        (torch.arange(3), 0, TypeError, "got dtype torch.int64"),
        ([1.0, 2.0], 0, TypeError, "NumPy array or a torch tensor, got list"),
        (np.zeros(3), 1, ValueError, r"lie in -1\.\.0 for x of shape \(3,\), got 1"),
        (np.zeros((3, 2)), -3, ValueError, r"lie in -2\.\.1"),
        (np.zeros(()), 0, ValueError, r"one axis, got shape \(\); use x\[None\]"),
        (np.ma.ones(3), 0, TypeError, "plain dense array, got MaskedArray"),
        (torch.ones(3).to_sparse(), 0, TypeError, "make sparse tensors dense"),
        (np.zeros((3, 2)), (0, -2), ValueError, "must be different axes"),
        (np.zeros((3, 2)), (), ValueError, "at least one axis"),
        (np.zeros((3, 2)), 0.0, TypeError, "int or a tuple of ints, got 0.0"),
        (np.zeros((3, 2)), None, TypeError, "int or a tuple of ints"),
        (np.zeros((0, 2)), 0, ValueError, r"got x of shape \(0, 2\)"),
    ],
)
def test_bad_input_is_refused(
    x: Any, axes: Any, error: type[Exception], message: str
) -> None:
    for function in (moments, standardize, standardize_forward):
        with pytest.raises(error, match=message):
            function(x, axes)


@pytest.mark.parametrize("eps", [-1e-5, float("nan"), float("inf"), "1", None, 10**400])
def test_a_bad_eps_is_refused(eps: Any) -> None:
    with pytest.raises(ValueError, match="eps must be a finite number >= 0, got"):
        standardize(np.zeros(3), 0, eps)
    with pytest.raises(ValueError, match="1e-5 is the usual value"):
        check_eps(eps)


def test_eps_may_be_any_real_number() -> None:
    x = draw()
    expected = standardize(x, 0, 0.25)
    for eps in (Fraction(1, 4), np.float32(0.25)):
        np.testing.assert_array_equal(standardize(x, 0, eps), expected)  # type: ignore[arg-type]


def test_the_helpers_name_the_argument() -> None:
    with pytest.raises(TypeError, match=r"gain must be .* numpy.asarray\(gain"):
        check_float_array("gain", 3.0)
    with pytest.raises(ValueError, match="a must have the shape of b"):
        check_same_shape("a", np.zeros(2), "b", np.zeros(3))
