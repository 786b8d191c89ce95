"""The lp normalization: its formula by hand, its derivative, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from layer_pairs import assert_every_mutant_is_caught, draw, stirred

from normbook.gradient_check import check_gradient
from normbook.layers.lp_norm import LpNorm1d

ORDERS = [1.0, 2.0, 3.0, math.inf]
# One column with mean 1 and entries -2, 1, 4: sizes 2, 1, 4.
X = torch.tensor([[-2.0], [1.0], [4.0]], dtype=torch.float64)
BY_HAND = {
    1.0: 7 / 3,  # (2 + 1 + 4) / 3
    2.0: 7**0.5,  # the root of (4 + 1 + 16) / 3
    3.0: (73 / 3) ** (1 / 3),  # the cube root of (8 + 1 + 64) / 3
    math.inf: 4.0,
}


def layer(size: int, p: float, eps: float = 0.0, **options: Any) -> LpNorm1d:
    return LpNorm1d(size, p, eps=eps, dtype=torch.float64, **options)


@pytest.mark.parametrize("p", ORDERS)
def test_it_is_the_formula_on_paper(p: float) -> None:
    y = layer(1, p)(X)
    expected = torch.tensor([[-3.0], [0.0], [3.0]], dtype=torch.float64) / BY_HAND[p]
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=0)


def test_every_unit_has_its_own_mean_norm_gain_and_bias() -> None:
    x = draw(7, 3) - 2  # where the largest size is that of a negative number, too
    for p in ORDERS:
        norm: Any = stirred(layer(3, p, eps=0.5), -2, 1)
        columns = []
        for gain, bias, column in zip(norm.weight, norm.bias, x.T, strict=True):
            length = torch.linalg.vector_norm(column, p)
            s = length if p == math.inf else length / 7 ** (1 / p)
            columns.append(gain * (column - sum(column) / 7) / (s + 0.5) + bias)
        torch.testing.assert_close(norm(x), torch.stack(columns, 1))


def test_every_mutant_is_caught() -> None:
    check = test_every_unit_has_its_own_mean_norm_gain_and_bias
    assert_every_mutant_is_caught(LpNorm1d, "forward", check)


def test_with_centred_data_and_p_2_it_is_batch_norm() -> None:
    x = draw(7, 3)
    x = x - x.mean(0)
    batch_norm = torch.nn.BatchNorm1d(3, eps=0.0, dtype=torch.float64)
    # torch 2.13 refuses eps = 0 in training
    batch_norm.eps = 1e-30
    torch.testing.assert_close(layer(3, 2.0)(x), batch_norm(x))


def test_without_centring_the_variance_is_not_fixed() -> None:
    x = draw(50, 1)
    for p in ORDERS:
        near, far = (layer(1, p)(x + shift).var(correction=0) for shift in (0.0, 30.0))
        assert far < near / 10


@pytest.mark.parametrize("p", ORDERS)
def test_the_derivative_agrees_with_differences(p: float) -> None:
    x, dl_dy, norm = draw(5, 2), draw(4, 5, 2)[3], layer(2, p)
    x.requires_grad_()
    (dl_dx,) = torch.autograd.grad(norm(x), x, dl_dy)
    check_gradient(norm, x.detach(), dl_dx, dl_dy)


def test_evaluation_uses_the_batch_too_and_there_is_no_state() -> None:
    norm, x = layer(3, 1.0), draw(7, 3)
    torch.testing.assert_close(norm.eval()(x), norm.train()(x), rtol=0, atol=0)
    assert sorted(norm.state_dict()) == ["bias", "weight"]
    assert not layer(3, 1.0, affine=False).state_dict()


def test_a_constant_unit_gives_the_bias() -> None:
    y = layer(1, 2.0, eps=1e-5)(torch.zeros(4, 1, dtype=torch.float64))
    assert y.tolist() == [[0.0]] * 4


def test_it_says_what_it_is() -> None:
    assert repr(LpNorm1d(3, math.inf)) == "LpNorm1d(3, p=inf, eps=1e-05)"
