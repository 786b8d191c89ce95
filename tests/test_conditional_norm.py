"""Conditional norms and AdaIN: torch's values, every gradient, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import (
    EXACT,
    assert_differences,
    refusals,
    torch_gradients,
)
from torch.nn import functional

from normbook.conditional_norm import (
    CONDITIONAL,
    adain,
    adain_backward,
    adain_forward,
    conditional_norm,
    conditional_norm_backward,
    conditional_norm_forward,
)
from normbook.gradient_check import relative_error, survivors
from normbook.normalize import normalize

EPS = 0.3
THEIRS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "batch norm": lambda x: functional.batch_norm(
        x, None, None, training=True, eps=EPS
    ),
    "instance norm": lambda x: functional.instance_norm(x, eps=EPS),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:], eps=EPS),
    "RMSNorm": lambda x: functional.rms_norm(x, x.shape[-1:], eps=EPS),
}
# Every axis of another length.
CASES = [
    *(("batch norm", shape) for shape in [(7, 3), (4, 3, 2, 5)]),
    *(("instance norm", shape) for shape in [(7, 3, 5), (4, 3, 2, 5)]),
    *(("layer norm", shape) for shape in [(7, 3), (4, 5, 3)]),
    *(("RMSNorm", shape) for shape in [(7, 3), (4, 5, 3)]),
]
each_case = pytest.mark.parametrize(("method", "shape"), CASES)
each_kind = pytest.mark.parametrize("of", [np.asarray, torch.tensor])
each_sharing = pytest.mark.parametrize("is_map", [False, True], ids=["vector", "map"])


def draw(method: str, shape: Any, is_map: bool = False) -> tuple[Any, ...]:
    """Return x, scale, shift and dl_dy."""
    rng = np.random.default_rng(0)
    axis = 1 if method in ("batch norm", "instance norm") else -1
    own = shape if is_map else (shape[0], shape[axis])
    scale, shift = rng.normal(size=(2, *own))
    return rng.normal(2, 3, shape), scale, shift, rng.normal(size=shape)


def by_torch(method: str, x: Any, scale: Any, shift: Any) -> torch.Tensor:
    if scale.ndim < x.ndim:
        is_first = method in ("batch norm", "instance norm")
        ones = (1,) * (x.ndim - 2)
        own = (*scale.shape, *ones) if is_first else (len(x), *ones, scale.shape[1])
        scale, shift = scale.reshape(own), shift.reshape(own)
    y: torch.Tensor = (1 + scale) * THEIRS[method](x) + shift
    return y


def check(
    method: str,
    shape: Any,
    is_map: bool = False,
    of: Callable[..., Any] = np.asarray,
    forward: Any = conditional_norm_forward,
) -> None:
    *arrays, dl_dy = draw(method, shape, is_map)
    y, cache = forward(*map(of, arrays), EPS, method=method)
    expected, gradients = torch_gradients(
        lambda *leaves: by_torch(method, *leaves), dl_dy, *arrays
    )
    assert relative_error(y, expected) < EXACT
    ours = conditional_norm_backward(of(dl_dy), cache)
    for name, a, b in zip(ours._fields, ours, gradients, strict=True):
        assert relative_error(a, b) < EXACT, name


@each_kind
@each_sharing
@each_case
def test_values_and_gradients_equal_torch(
    method: str, shape: Any, is_map: bool, of: Any
) -> None:
    check(method, shape, is_map, of)


@each_sharing
@each_case
def test_gradients_agree_with_differences(
    method: str, shape: Any, is_map: bool
) -> None:
    x, scale, shift, dl_dy = draw(method, shape, is_map)
    arrays = x, scale, shift
    _, cache = conditional_norm_forward(*arrays, EPS, method=method)
    assert_differences(
        lambda x, s, b: conditional_norm(x, s, b, EPS, method=method),
        arrays, dl_dy, conditional_norm_backward(dl_dy, cache),
    )  # fmt: skip


def _check_formula(is_map: bool, forward: Any) -> None:
    check("layer norm", (4, 5, 3), is_map, forward=forward)


def test_every_mutant_is_caught() -> None:
    for is_map in (False, True):
        check_with = partial(_check_formula, is_map)
        assert not survivors(conditional_norm_forward, check_with)


def test_a_gain_without_the_one_is_caught() -> None:
    def wrong(x: Any, scale: Any, *rest: Any, **named: Any) -> Any:
        return conditional_norm_forward(x, scale - 1, *rest, **named)

    with pytest.raises(AssertionError):
        check("layer norm", (4, 5, 3), forward=wrong)


@each_case
def test_without_scale_and_shift_it_is_the_norm(method: str, shape: Any) -> None:
    x, scale, shift, dl_dy = draw(method, shape)
    y, cache = conditional_norm_forward(x, method=method)
    zeros = 0 * scale, 0 * shift
    np.testing.assert_array_equal(y, conditional_norm(x, *zeros, method=method))
    _, dl_dscale, dl_dshift = conditional_norm_backward(dl_dy, cache)
    assert dl_dscale.shape == dl_dshift.shape == scale.shape


def test_one_condition_for_all_is_an_ordinary_gain_and_bias() -> None:
    x, scale, shift, _ = draw("layer norm", (4, 5, 3))
    same = [np.broadcast_to(value[0], value.shape) for value in (scale, shift)]
    expected = normalize(x, 1 + scale[0], shift[0], axes=-1, parameter_axes=-1)
    np.testing.assert_allclose(
        conditional_norm(x, same[0], same[1]), expected, rtol=1e-13
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_the_sum_with_one_is_not_rounded(dtype: torch.dtype) -> None:
    values, *_ = draw("layer norm", (4, 5, 3))
    x, scale = torch.tensor(values).to(dtype), torch.full((4, 3), 1e-5, dtype=dtype)
    assert torch.equal(1 + scale, torch.ones_like(scale))
    y, cache = conditional_norm_forward(x, scale)
    assert y.dtype == dtype
    assert cache.gamma is not None
    assert (cache.gamma > 1).all()


@pytest.mark.parametrize("method", CONDITIONAL)
def test_the_usual_eps_is_1e_5(method: str) -> None:
    x, scale, shift, _ = draw(method, (4, 3, 5))
    y = conditional_norm(x / 1000, scale, shift, method=method)
    exact = conditional_norm(x / 1000, scale, shift, 1e-5, method=method)
    np.testing.assert_array_equal(y, exact)


def adain_by_torch(x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
    axes = tuple(range(2, x.ndim))
    var, mean = torch.var_mean(style, axes, correction=0, keepdim=True)
    return torch.sqrt(var + EPS) * functional.instance_norm(x, eps=EPS) + mean


def check_adain(
    forward: Any = adain_forward,
    backward: Any = adain_backward,
    of: Callable[..., Any] = np.asarray,
) -> None:
    rng = np.random.default_rng(0)
    for places, others in [((5,), (7,)), ((2, 5), (3, 4))]:
        x, style = rng.normal(2, 3, (4, 3, *places)), rng.normal(1, 2, (4, 3, *others))
        dl_dy = rng.normal(size=x.shape)
        y, cache = forward(of(x), of(style), EPS)
        expected, gradients = torch_gradients(adain_by_torch, dl_dy, x, style)
        found = y, *backward(of(dl_dy), cache)
        for a, b in zip(found, (expected, *gradients), strict=True):
            assert tuple(a.shape) == tuple(b.shape)
            assert relative_error(a, b) < EXACT


@each_kind
def test_adain_and_its_gradients_equal_the_definition(of: Any) -> None:
    check_adain(of=of)


def test_the_gradients_of_adain_agree_with_differences() -> None:
    rng = np.random.default_rng(0)
    x, style, dl_dy = rng.normal(2, 3, (3, 2, 3, 5))
    _, cache = adain_forward(x, style, EPS)
    gradients = adain_backward(dl_dy, cache)
    assert_differences(lambda a, b: adain(a, b, EPS), (x, style), dl_dy, gradients)


def test_every_mutant_of_adain_is_caught() -> None:
    assert not survivors(adain_forward, lambda f: check_adain(forward=f))
    assert not survivors(adain_backward, lambda f: check_adain(backward=f))


@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_the_style_of_x_itself_gives_x_back(eps: float) -> None:
    x, *_ = draw("instance norm", (4, 3, 5))
    np.testing.assert_allclose(adain(x, x, eps), x, rtol=1e-12, atol=1e-12)


X, S = np.ones((4, 3, 5)), np.ones((4, 5))
test_bad_input_is_refused = refusals(
    (
        lambda: conditional_norm(X, method="group norm"),
        ValueError,
        "method must be one of batch norm, .* got 'group norm'",
    ),
    (lambda: conditional_norm(X[0, 0]), ValueError, r"an axis of examples .* \(5,\)"),
    (
        lambda: conditional_norm(X, S[0]),
        ValueError,
        r"scale must have shape \(4, 5\), or that of x, \(4, 3, 5\), .* got \(5,\)",
    ),
    (lambda: conditional_norm(X, S, X), ValueError, "^shift must have .* the same"),
    (lambda: conditional_norm(X, S, 1.0), TypeError, "shift must be a NumPy array"),
    (lambda: conditional_norm(X, torch.ones(4, 5)), TypeError, "scale must be of the"),
    (lambda: conditional_norm(X, S, S, -1.0), ValueError, "eps must be"),
    (lambda: adain(X, X[:, :2]), ValueError, r"style must have .* got shape \(4, 2, 5"),
    (lambda: adain(X, S), ValueError, "style must have shape"),
    (lambda: adain(X, torch.ones(4, 3, 5)), TypeError, "style must be of the kind of"),
)
