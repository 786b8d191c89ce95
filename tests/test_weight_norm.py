"""Weight norm and weight standardization: against torch, and broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import (
    check_weight_norm,
    check_weight_standardization,
    draw_weights,
    refusals,
)

from normbook.gradient_check import relative_error, survivors
from normbook.normalize import normalize_forward
from normbook.weight_norm import (
    power_iteration,
    scaled_weight_standardization_forward,
    weight_norm,
    weight_norm_backward,
    weight_norm_forward,
    weight_standardization,
)

ROUNDING = 1e-12
each_kind = pytest.mark.parametrize("of", [np.asarray, torch.tensor])


@each_kind
def test_weight_norm_equals_torch(of: Callable[..., Any]) -> None:
    check_weight_norm(of=of)


@each_kind
def test_weight_standardization_equals_autograd_through_its_definition(
    of: Callable[..., Any],
) -> None:
    check_weight_standardization(of=of)


def test_every_mutant_of_weight_norm_is_caught() -> None:
    assert survivors(weight_norm_forward, check_weight_norm) == []
    assert (
        survivors(weight_norm_backward, lambda f: check_weight_norm(backward=f)) == []
    )


def test_every_mutant_of_the_gain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["normbook.weight_norm"]

    def check(gain_of_rows: Any) -> None:
        monkeypatch.setattr(module, "gain_of_rows", gain_of_rows)
        check_weight_norm()

    assert survivors(module.gain_of_rows, check) == []


@pytest.mark.parametrize("axes", [0, 1, (0, 1)])
def test_weight_standardization_over_other_axes_is_caught(axes: Any) -> None:
    def broken(w: Any, eps: float) -> Any:
        return normalize_forward(w, axes=axes, eps=eps)

    with pytest.raises(AssertionError):
        check_weight_standardization(broken)


def test_the_rows_of_weight_norm_have_the_lengths_g() -> None:
    v, g, _ = draw_weights((3, 5, 4))
    lengths = np.sqrt((weight_norm(v, g) ** 2).sum((1, 2)))
    np.testing.assert_allclose(lengths, abs(g), rtol=ROUNDING)


def test_the_length_of_v_does_not_matter() -> None:
    v, g, _ = draw_weights((3, 5, 4))
    longer = v * np.array([0.01, 7.0, 300.0])[:, None, None]
    np.testing.assert_allclose(weight_norm(longer, g), weight_norm(v, g), rtol=ROUNDING)


def test_the_gradient_in_v_has_no_part_along_v() -> None:
    v, g, dl_dw = draw_weights((3, 5, 4))
    dl_dv, _ = weight_norm_backward(dl_dw, weight_norm_forward(v, g)[1])
    np.testing.assert_allclose((dl_dv * v).sum((1, 2)), 0, atol=ROUNDING)


def test_the_rows_of_weight_standardization_have_mean_zero_and_variance_one() -> None:
    w_hat = weight_standardization(draw_weights((3, 5, 4))[0])
    np.testing.assert_allclose(w_hat.mean((1, 2)), 0, atol=ROUNDING)
    np.testing.assert_allclose(w_hat.var((1, 2)), 1, rtol=1e-9)  # eps is 1e-10


def test_the_code_of_the_authors_gives_weights_smaller_by_the_stated_factor() -> None:
    w = torch.tensor(draw_weights((3, 5, 4))[0] / 50)  # as small as weights are
    std, mean = torch.std_mean(w, dim=(1, 2), keepdim=True)
    theirs = (w - mean) / (std + 1e-5)
    ours = weight_standardization(w)
    assert relative_error(ours * np.sqrt(19 / 20), theirs) < 1e-3
    assert relative_error(ours, theirs) > 0.02


@each_kind
def test_half_precision_is_rounded_once(of: Callable[..., Any]) -> None:
    v, g, dl_dw = (of(a.astype(np.float16)) for a in draw_weights((3, 5, 4)))
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
test_bad_input_is_refused = refusals(
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
)


def test_an_iteration_on_what_has_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights must have shape .*got \(3,\)"):
        power_iteration(np.ones(3), np.ones(3))


def test_the_scaled_one_has_an_eps_of_1e_10_if_none_is_given() -> None:
    w, g = 1e-5 * np.arange(6.0).reshape(2, 3), np.ones(2)
    found, expected = (
        scaled_weight_standardization_forward(w, g, **more)[0]
        for more in ({}, {"eps": 1e-10})
    )
    np.testing.assert_array_equal(found, expected)
