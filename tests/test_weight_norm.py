"""Weight norm and weight standardization: against torch, differences, and broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import EXACT

from normbook.gradient_check import check_gradient, relative_error, survivors
from normbook.normalize import normalize_forward
from normbook.weight_norm import (
    row_axes,
    weight_norm,
    weight_norm_backward,
    weight_norm_forward,
    weight_standardization,
    weight_standardization_backward,
    weight_standardization_forward,
)

SHAPES = [(3, 7), (3, 5, 4), (6, 3, 2, 5), (7, 1)]
EPS = 0.3
ROUNDING = 1e-12
Arrays = tuple[np.ndarray[Any, Any], ...]
each_shape = pytest.mark.parametrize("shape", SHAPES)
each_kind = pytest.mark.parametrize("of", [np.asarray, torch.tensor])


def draw(shape: tuple[int, ...], seed: int = 0) -> Arrays:
    """Give v, g and dl_dw."""
    rng = np.random.default_rng(seed)
    lengths = rng.normal(size=shape[0])
    return rng.normal(0.3, 1, shape), lengths, rng.normal(size=shape)


def torch_weight_norm(v: Any, g: Any, dl_dw: Any) -> list[torch.Tensor]:
    """Give w, dl_dv and dl_dg of torch."""
    leaves = [torch.tensor(a, requires_grad=True) for a in (v, g)]
    column = leaves[1].reshape(-1, *(1,) * (v.ndim - 1))
    w = torch._weight_norm(leaves[0], column, 0)
    return [w, *torch.autograd.grad(w, leaves, torch.tensor(dl_dw))]


def by_hand(w: torch.Tensor, eps: float) -> torch.Tensor:
    var, mu = torch.var_mean(w, row_axes(w), correction=0, keepdim=True)
    return (w - mu) / torch.sqrt(var + eps)


def torch_standardization(w: Any, dl_dw_hat: Any, eps: float) -> list[torch.Tensor]:
    leaf = torch.tensor(w, requires_grad=True)
    w_hat = by_hand(leaf, eps)
    return [w_hat, *torch.autograd.grad(w_hat, leaf, torch.tensor(dl_dw_hat))]


def weight_norm_check(
    forward: Any = weight_norm_forward,
    backward: Any = weight_norm_backward,
    of: Callable[..., Any] = np.asarray,
) -> None:
    for shape in SHAPES:
        v, g, dl_dw = draw(shape)
        w, cache = forward(of(v), of(g))
        ours = [w, *backward(of(dl_dw), cache)]
        for a, b in zip(ours, torch_weight_norm(v, g, dl_dw), strict=True):
            assert tuple(a.shape) == tuple(b.shape)
            # Rows of one weight pass nothing back: both are rounding there.
            np.testing.assert_allclose(a, b.detach(), rtol=EXACT, atol=ROUNDING)


def standardization_check(
    forward: Any = weight_standardization_forward,
    backward: Any = weight_standardization_backward,
    of: Callable[..., Any] = np.asarray,
) -> None:
    for shape in SHAPES:
        w, _, dl_dw_hat = draw(shape)
        w_hat, cache = forward(of(w), EPS)
        ours = [w_hat, backward(of(dl_dw_hat), cache)]
        theirs = torch_standardization(w, dl_dw_hat, EPS)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b.detach(), rtol=EXACT, atol=ROUNDING)


@each_kind
def test_weight_norm_equals_torch(of: Callable[..., Any]) -> None:
    weight_norm_check(of=of)


@each_kind
def test_weight_standardization_equals_autograd_through_its_definition(
    of: Callable[..., Any],
) -> None:
    standardization_check(of=of)


@each_shape
def test_gradients_of_weight_norm_agree_with_central_differences(
    shape: tuple[int, ...],
) -> None:
    v, g, dl_dw = draw(shape)
    dl_dv, dl_dg = weight_norm_backward(dl_dw, weight_norm_forward(v, g)[1])
    check_gradient(lambda g: weight_norm(v, g), g, dl_dg, dl_dw)
    if v[0].size > 1:  # a row of one weight has no direction to change
        check_gradient(lambda v: weight_norm(v, g), v, dl_dv, dl_dw)


@each_shape
def test_the_gradient_of_weight_standardization_agrees_with_central_differences(
    shape: tuple[int, ...],
) -> None:
    w, _, dl_dw_hat = draw(shape)
    _, cache = weight_standardization_forward(w, EPS)
    dl_dw = weight_standardization_backward(dl_dw_hat, cache)
    check_gradient(lambda w: weight_standardization(w, EPS), w, dl_dw, dl_dw_hat)


def test_every_mutant_of_weight_norm_is_caught() -> None:
    assert survivors(weight_norm_forward, weight_norm_check) == []
    assert (
        survivors(weight_norm_backward, lambda f: weight_norm_check(backward=f)) == []
    )


def test_every_mutant_of_the_gain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["normbook.weight_norm"]

    def check(gain_of_rows: Any) -> None:
        monkeypatch.setattr(module, "gain_of_rows", gain_of_rows)
        weight_norm_check()

    assert survivors(module.gain_of_rows, check) == []


@pytest.mark.parametrize("axes", [0, 1, (0, 1)])
def test_weight_standardization_over_other_axes_is_caught(axes: Any) -> None:
    def broken(w: Any, eps: float) -> Any:
        return normalize_forward(w, axes=axes, eps=eps)

    with pytest.raises(AssertionError):
        standardization_check(broken)


def test_the_rows_of_weight_norm_have_the_lengths_g() -> None:
    v, g, _ = draw((3, 5, 4))
    lengths = np.sqrt((weight_norm(v, g) ** 2).sum((1, 2)))
    np.testing.assert_allclose(lengths, abs(g), rtol=ROUNDING)


def test_the_length_of_v_does_not_matter() -> None:
    v, g, _ = draw((3, 5, 4))
    longer = v * np.array([0.01, 7.0, 300.0])[:, None, None]
    np.testing.assert_allclose(weight_norm(longer, g), weight_norm(v, g), rtol=ROUNDING)


def test_the_gradient_in_v_has_no_part_along_v() -> None:
    v, g, dl_dw = draw((3, 5, 4))
    dl_dv, _ = weight_norm_backward(dl_dw, weight_norm_forward(v, g)[1])
    np.testing.assert_allclose((dl_dv * v).sum((1, 2)), 0, atol=ROUNDING)


def test_the_rows_of_weight_standardization_have_mean_zero_and_variance_one() -> None:
    w_hat = weight_standardization(draw((3, 5, 4))[0])
    np.testing.assert_allclose(w_hat.mean((1, 2)), 0, atol=ROUNDING)
    np.testing.assert_allclose(w_hat.var((1, 2)), 1, rtol=1e-9)  # eps is 1e-10


def test_the_code_of_the_authors_gives_weights_smaller_by_the_stated_factor() -> None:
    w = torch.tensor(draw((3, 5, 4))[0] / 50)  # as small as weights are
    std, mean = torch.std_mean(w, dim=(1, 2), keepdim=True)
    theirs = (w - mean) / (std + 1e-5)
    ours = weight_standardization(w)
    assert relative_error(ours * np.sqrt(19 / 20), theirs) < 1e-3
    assert relative_error(ours, theirs) > 0.02


@each_kind
def test_half_precision_is_rounded_once(of: Callable[..., Any]) -> None:
    v, g, dl_dw = (of(a.astype(np.float16)) for a in draw((3, 5, 4)))
    exact = [of(np.asarray(a, dtype=np.float32)) for a in (v, g, dl_dw)]
    w, cache = weight_norm_forward(v, g)
    expected, exact_cache = weight_norm_forward(*exact[:2])
    np.testing.assert_array_equal(w, np.asarray(expected).astype(np.float16))
    dl_dv, dl_dg = weight_norm_backward(dl_dw, cache)
    exact_dl_dv, exact_dl_dg = weight_norm_backward(exact[2], exact_cache)
    np.testing.assert_array_equal(dl_dv, np.asarray(exact_dl_dv).astype(np.float16))
    np.testing.assert_array_equal(dl_dg, exact_dl_dg)
    assert w.dtype == dl_dv.dtype == v.dtype


def test_a_row_of_zeros_has_no_direction() -> None:
    # The division warns in NumPy, which is right; in torch nothing looks at values.
    w = weight_norm(torch.zeros(2, 3), torch.ones(2))
    assert w.isnan().all()
    np.testing.assert_array_equal(weight_standardization(np.zeros((2, 3))), 0)


W, G = np.ones((4, 3)), np.ones(4)
Case = tuple[Callable[[], object], type[Exception], str]
BAD_CALLS: list[Case] = [
    (lambda: weight_norm([[1.0]], G), TypeError, "weights must be a NumPy array"),
    (lambda: weight_norm(W.astype(int), G), TypeError, "weights must hold real"),
    (lambda: weight_norm(G, G), ValueError, r"\(D_out, D_in\) or .* got \(4,\)"),
    (
        lambda: weight_standardization(G),
        ValueError,
        r"got \(4,\); add the missing axis, e.g. weights",
    ),
    (lambda: weight_norm(W, W), ValueError, r"g must have shape \(4,\), got \(4, 3\)"),
    (lambda: weight_norm(W, torch.ones(4)), TypeError, "g must be of the kind of x"),
    (lambda: weight_norm(W[:, :0], G), ValueError, "at least one value in each group"),
    (lambda: weight_standardization(W, -1.0), ValueError, "eps must be"),
    (
        lambda: weight_norm_backward(W.T, weight_norm_forward(W, G)[1]),
        ValueError,
        r"dl_dy must have the shape of y, \(4, 3\), got \(3, 4\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
