"""Layer norm and RMSNorm as functions: against torch, differences, and broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from function_pairs import (
    EXACT,
    assert_differences,
    assert_gradients,
    torch_gradients,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from normbook.batch_norm import batch_norm, batch_norm_backward, batch_norm_forward
from normbook.gradient_check import relative_error
from normbook.layer_norm import (
    layer_norm,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
)

EPS = 0.1
ROUNDING = 1e-12
# The shape of x, and its last axes: those of the features.
SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((7, 3), -1),
    ((5, 3, 4), -1),
    ((2, 5, 3, 4), (1, 2, 3)),
    ((2, 5, 3, 4), (3, 2)),
    ((6,), 0),
]
each_shape = pytest.mark.parametrize(("shape", "axes"), SHAPES)
Arrays = tuple[np.ndarray[Any, Any], ...]


class Pair(NamedTuple):
    """A function of the book, its backward pass, and torch's."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    theirs: Callable[..., torch.Tensor]


def rms_forward(x: Any, gamma: Any, beta: Any, eps: float, *, axes: Any = -1) -> Any:
    """RMSNorm with a bias, as the others have one."""
    y, cache = rms_norm_forward(x, gamma, eps, axes=axes)
    return y + beta, cache


def torch_rms(
    x: torch.Tensor, shape: Any, gamma: torch.Tensor, beta: torch.Tensor, eps: float
) -> torch.Tensor:
    return functional.rms_norm(x, shape, gamma, eps) + beta


LAYER = Pair(layer_norm_forward, layer_norm_backward, functional.layer_norm)
RMS = Pair(rms_forward, rms_norm_backward, torch_rms)
each_pair = pytest.mark.parametrize("pair", [LAYER, RMS], ids=["layer", "rms"])


def draw(shape: tuple[int, ...], axes: Any = -1, seed: int = 0) -> Arrays:
    """Return x, gamma, beta and dl_dy."""
    rng = np.random.default_rng(seed)
    features = shape[-np.size(axes) :]
    parameters = rng.normal(size=features), rng.normal(size=features)
    return rng.normal(2, 3, shape), *parameters, rng.normal(size=shape)


@each_pair
@each_shape
@pytest.mark.parametrize("of", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_values_and_gradients_equal_torch(
    of: Callable[..., Any], pair: Pair, shape: tuple[int, ...], axes: Any
) -> None:
    x, gamma, beta, dl_dy = draw(shape, axes)
    y, cache = pair.forward(*map(of, (x, gamma, beta)), EPS, axes=axes)
    expected, gradients = torch_gradients(
        lambda x, g, b: pair.theirs(x, g.shape, g, b, EPS), dl_dy, x, gamma, beta
    )
    assert relative_error(y, expected) < EXACT
    assert_gradients(pair.backward(of(dl_dy), cache), gradients)


@each_pair
@each_shape
def test_gradients_agree_with_central_differences(
    pair: Pair, shape: tuple[int, ...], axes: Any
) -> None:
    x, gamma, beta, dl_dy = draw(shape, axes)
    _, cache = pair.forward(x, gamma, beta, EPS, axes=axes)
    gradients = pair.backward(dl_dy, cache)
    assert_differences(
        lambda x, g, b: pair.forward(x, g, b, EPS, axes=axes)[0],
        (x, gamma, beta), dl_dy, gradients,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_the_channels_of_each_pixel_are_those_of_torch_moved_last(name: str) -> None:
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(2, 3, (2, 3, 4, 5)), rng.normal(size=3)
    ours: Any = {"layer_norm": layer_norm, "rms_norm": rms_norm}[name]
    last = torch.tensor(x).movedim(1, -1)
    theirs = getattr(functional, name)(last, (3,), torch.tensor(gamma), eps=EPS)
    y = ours(x, gamma, eps=EPS, axes=1)
    assert relative_error(y, theirs.movedim(-1, 1)) < EXACT


def test_the_short_form_gives_what_the_long_one_gives() -> None:
    x, gamma, beta, _ = draw((2, 5, 3, 4), (2, 3))
    y = layer_norm(x, gamma, beta, EPS, axes=(2, 3))
    expected, _ = layer_norm_forward(x, gamma, beta, EPS, axes=(2, 3))
    np.testing.assert_array_equal(y, expected)
    y = rms_norm(x, gamma, EPS, axes=(2, 3))
    expected, _ = rms_norm_forward(x, gamma, EPS, axes=(2, 3))
    np.testing.assert_array_equal(y, expected)


def test_the_usual_axis_is_the_last_and_the_usual_eps_that_of_torch() -> None:
    x = draw((7, 3))[0] / 1000  # so small that eps matters
    expected = functional.layer_norm(torch.tensor(x), (3,))
    assert relative_error(layer_norm(x), expected) < EXACT
    expected = functional.rms_norm(torch.tensor(x), (3,), eps=1e-5)
    assert relative_error(rms_norm(x), expected) < EXACT


@each_pair
def test_an_example_does_not_act_on_another(pair: Pair) -> None:
    x, gamma, beta, dl_dy = draw((7, 3))
    y, cache = pair.forward(x, gamma, beta, EPS)
    alone, alone_cache = pair.forward(x[2:3], gamma, beta, EPS)
    np.testing.assert_array_equal(y[2:3], alone)
    dl_dx = pair.backward(dl_dy, cache).dl_dx
    alone_dl_dx = pair.backward(dl_dy[2:3], alone_cache).dl_dx
    np.testing.assert_array_equal(dl_dx[2:3], alone_dl_dx)


@each_shape
def test_without_eps_the_gradient_has_no_part_along_one_or_x_hat(
    shape: tuple[int, ...], axes: Any
) -> None:
    x, gamma, beta, dl_dy = draw(shape, axes)
    _, cache = layer_norm_forward(x, gamma, beta, 0.0, axes=axes)
    dl_dx = layer_norm_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose(dl_dx.sum(axes), 0, atol=ROUNDING)
    np.testing.assert_allclose((dl_dx * cache.x_hat).sum(axes), 0, atol=ROUNDING)


scales = st.one_of(st.floats(0.01, 100), st.floats(-100, -0.01))


@given(scales, st.floats(-50, 50), st.integers(0, 100))
def test_layer_norm_keeps_only_the_sign_of_a_scale_and_forgets_a_shift(
    scale: float, shift: float, seed: int
) -> None:
    x, *_ = draw((7, 3), seed=seed)
    expected = np.sign(scale) * layer_norm(x, eps=0.0)
    # A shift that is large beside the spread costs digits.
    y = layer_norm(scale * x + shift, eps=0.0)
    np.testing.assert_allclose(y, expected, atol=1e-7)


@given(scales, st.integers(0, 100))
def test_rms_norm_keeps_only_the_sign_of_a_scale(scale: float, seed: int) -> None:
    x, *_ = draw((7, 3), seed=seed)
    expected = np.sign(scale) * rms_norm(x, eps=0.0)
    np.testing.assert_allclose(rms_norm(scale * x, eps=0.0), expected, atol=ROUNDING)


def test_rms_norm_does_not_forget_a_shift() -> None:
    x, *_ = draw((7, 3))
    assert abs(rms_norm(x + 1.0) - rms_norm(x)).min() > 1e-3


def test_rms_norm_of_centred_values_is_layer_norm() -> None:
    x, *_ = draw((7, 3))
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(rms_norm(centred), layer_norm(x), atol=ROUNDING)


def test_batch_norm_of_the_transpose_is_layer_norm_without_gain_and_bias() -> None:
    x, _, _, dl_dy = draw((7, 3))
    y, cache = layer_norm_forward(x, eps=EPS)
    turned, turned_cache = batch_norm_forward(x.T, eps=EPS)
    np.testing.assert_allclose(turned.T, y, atol=ROUNDING)
    dl_dx = layer_norm_backward(dl_dy, cache).dl_dx
    turned_dl_dx = batch_norm_backward(dl_dy.T, turned_cache).dl_dx
    np.testing.assert_allclose(turned_dl_dx.T, dl_dx, atol=ROUNDING)


def test_with_gain_and_bias_batch_norm_of_the_transpose_is_another_function() -> None:
    x, gamma, beta, _ = draw((3, 3))  # square: else the gain would not even fit
    turned = batch_norm(x.T, gamma, beta, EPS).T
    assert relative_error(turned, layer_norm(x, gamma, beta, EPS)) > 0.1


def test_equal_features_give_the_bias() -> None:
    _, gamma, beta, _ = draw((7, 3))
    y = layer_norm(np.full((7, 3), 4.25), gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (7, 3)))


def test_a_single_feature_gives_the_bias_and_passes_no_gradient() -> None:
    x, gamma, beta, dl_dy = draw((7, 1))
    y, cache = layer_norm_forward(x, gamma, beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, (7, 1)))
    np.testing.assert_array_equal(layer_norm_backward(dl_dy, cache).dl_dx, 0)


def test_two_features_give_plus_and_minus_one_and_pass_no_gradient() -> None:
    x, gamma, beta, dl_dy = draw((7, 2))
    x_hat = layer_norm(x, eps=0.0)
    np.testing.assert_allclose(abs(x_hat), 1, rtol=ROUNDING)
    np.testing.assert_array_equal(x_hat[:, 0] > 0, x[:, 0] > x[:, 1])
    _, cache = layer_norm_forward(x, gamma, beta, 0.0)
    dl_dx = layer_norm_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose(dl_dx, 0, atol=ROUNDING)


def test_a_single_feature_gives_its_sign_in_rms_norm() -> None:
    x = np.array([[3.0], [-0.5]])
    np.testing.assert_array_equal(rms_norm(x, eps=0.0), [[1.0], [-1.0]])


def test_a_large_mean_in_float32_costs_no_more_than_in_torch() -> None:
    x = (draw((50, 768))[0] / 3 + 1e4).astype(np.float32)  # mean / std is 1e4
    exact = layer_norm(x.astype(np.float64))
    ours = relative_error(layer_norm(x), exact)
    theirs = relative_error(functional.layer_norm(torch.tensor(x), (768,)), exact)
    assert ours <= max(2 * theirs, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_pair
def test_half_precision_is_rounded_once(dtype: torch.dtype, pair: Pair) -> None:
    x, gamma, _, dl_dy = (torch.tensor(a).float() for a in draw((64, 3)))
    none = torch.zeros(3, dtype=dtype)  # a bias would be rounded a second time
    x, dl_dy = x.to(dtype), dl_dy.to(dtype)
    y, cache = pair.forward(x, gamma, none, EPS)
    exact, exact_cache = pair.forward(x.float(), gamma, none.float(), EPS)
    dl_dx = pair.backward(dl_dy, cache).dl_dx
    assert y.dtype == dl_dx.dtype == dtype
    assert torch.equal(y, exact.to(dtype))
    exact_dl_dx = pair.backward(dl_dy.float(), exact_cache).dl_dx
    assert torch.equal(dl_dx, exact_dl_dx.to(dtype))


@each_pair
def test_an_empty_batch_gives_an_empty_result_and_gradients_of_zero(pair: Pair) -> None:
    x, gamma, beta, dl_dy = draw((0, 3))
    y, cache = pair.forward(x, gamma, beta, EPS)
    dl_dx, dl_dgamma, dl_dbeta = pair.backward(dl_dy, cache)
    assert y.shape == dl_dx.shape == (0, 3)
    np.testing.assert_array_equal([dl_dgamma, dl_dbeta], np.zeros((2, 3)))


@each_pair
def test_a_view_with_gaps_gives_the_same(pair: Pair) -> None:
    x, gamma, beta, dl_dy = draw((4, 10))
    view, gap = torch.tensor(x).T[::3], torch.tensor(dl_dy).T[::3]
    parameters = torch.tensor(gamma)[:4], torch.tensor(beta)[:4]
    y, cache = pair.forward(view, *parameters, EPS)
    expected, dense = pair.forward(view.contiguous(), *parameters, EPS)
    assert relative_error(y, expected) < ROUNDING
    dl_dx = pair.backward(gap, cache).dl_dx
    assert relative_error(dl_dx, pair.backward(gap, dense).dl_dx) < ROUNDING


def pair_check(pair: Pair) -> None:
    for shape, axes in SHAPES[1:3]:
        x, gamma, beta, dl_dy = draw(shape, axes)
        y, cache = pair.forward(x, gamma, beta, EPS, axes=axes)
        expected, gradients = torch_gradients(
            lambda x, g, b: pair.theirs(x, g.shape, g, b, EPS), dl_dy, x, gamma, beta
        )
        assert relative_error(y, expected) < EXACT
        assert_gradients(pair.backward(dl_dy, cache), gradients)


# These functions choose axes and nothing more, and survivors changes formulas: what
# can go wrong in them is written out.
def without_parameters(x: Any, gamma: Any, beta: Any, eps: float, *, axes: Any) -> Any:
    y, cache = layer_norm_forward(x, None, None, eps, axes=axes)
    return y, cache._replace(gamma=gamma)


def with_a_gain_of_the_examples(
    x: Any, gamma: Any, beta: Any, eps: float, *, axes: Any
) -> Any:
    return batch_norm_forward(x, np.resize(gamma, x.shape[1]), None, eps)


def with_the_usual_axis(x: Any, gamma: Any, beta: Any, eps: float, *, axes: Any) -> Any:
    return layer_norm_forward(x, gamma.ravel(), beta.ravel(), eps)


def with_the_usual_eps(x: Any, gamma: Any, beta: Any, eps: float, *, axes: Any) -> Any:
    return layer_norm_forward(x, gamma, beta, axes=axes)


@pytest.mark.parametrize(
    "broken",
    [
        without_parameters,
        with_a_gain_of_the_examples,
        with_the_usual_axis,
        with_the_usual_eps,
        rms_forward,
    ],
)
def test_a_wrong_choice_is_caught(broken: Callable[..., Any]) -> None:
    pair_check(LAYER)
    with pytest.raises((AssertionError, ValueError)):
        pair_check(LAYER._replace(forward=broken))


def test_the_mean_taken_off_is_caught_in_rms_norm() -> None:
    pair_check(RMS)
    with pytest.raises(AssertionError):
        pair_check(RMS._replace(forward=layer_norm_forward))


X, D = np.ones((4, 3)), np.ones(3)
Case = tuple[Callable[[], object], type[Exception], str]
BAD_CALLS: list[Case] = [
    (lambda: layer_norm([[1.0]]), TypeError, "x must be .* got list"),
    (lambda: layer_norm(X.astype(int)), TypeError, "x must hold real.* dtype int64"),
    (lambda: rms_norm(X.astype(int)), TypeError, "x must hold real.* dtype int64"),
    (
        lambda: layer_norm(X, np.ones(4)),
        ValueError,
        r"gamma must have shape \(3,\), got \(4,\); pass 3 values, one per feature",
    ),
    (lambda: rms_norm(X, X), ValueError, r"gamma must have shape .* got \(4, 3\)"),
    (lambda: layer_norm(X, D, X), ValueError, "beta must have shape"),
    (lambda: layer_norm(X, D, torch.ones(3)), TypeError, "beta must be of the kind"),
    (lambda: rms_norm(X, 1.0), TypeError, "gamma must be a NumPy array"),  # eps there
    (lambda: layer_norm(X, axes=2), ValueError, r"^axes must lie in -2\.\.1"),
    (lambda: rms_norm(X, axes=(0, -2)), ValueError, "^axes must be different"),
    (lambda: layer_norm(np.array(1.0)), ValueError, "x must have at least one axis"),
    (lambda: layer_norm(X[:, :0]), ValueError, r"one value in each group.* \(4, 0\)"),
    (lambda: rms_norm(X, eps=-1.0), ValueError, "eps must be"),
    (
        lambda: layer_norm_backward(D, layer_norm_forward(X)[1]),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 3\), got \(3,\)",
    ),
    (
        lambda: rms_norm_backward(X.astype(int), rms_norm_forward(X)[1]),
        TypeError,
        "dl_dy must hold real floating-point",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
