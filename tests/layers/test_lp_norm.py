"""The lp normalization: its formula by hand, its derivative, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from normbook.gradient_check import check_gradient, survivors
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


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=generator) + 0.3


@pytest.mark.parametrize("p", ORDERS)
def test_it_is_the_formula_on_paper(p: float) -> None:
    y = layer(1, p)(X)
    expected = torch.tensor([[-3.0], [0.0], [3.0]], dtype=torch.float64) / BY_HAND[p]
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=0)


def test_gain_bias_and_eps_stand_where_the_formula_has_them() -> None:
    norm = layer(1, 1.0, eps=2 / 3)
    with torch.no_grad():
        norm.weight.fill_(5.0)  # type: ignore[union-attr]
        norm.bias.fill_(7.0)  # type: ignore[union-attr]
    # s + eps = 7/3 + 2/3 = 3
    torch.testing.assert_close(norm(X).flatten().tolist(), [2.0, 7.0, 12.0])


def check(function: Any) -> None:
    x = draw(7, 3)
    for p in ORDERS:
        norm = layer(3, p, eps=0.5)
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([2.0, -1.0, 0.5]))  # type: ignore[union-attr]
            norm.bias.copy_(torch.tensor([0.1, 0.0, -3.0]))  # type: ignore[union-attr]
        columns = []
        for j, column in enumerate(x.T):
            length = torch.linalg.vector_norm(column, p)
            s = length if p == math.inf else length / 7 ** (1 / p)
            centred = column - sum(column) / 7
            columns.append(
                [2.0, -1.0, 0.5][j] * centred / (s + 0.5) + [0.1, 0.0, -3.0][j]
            )
        torch.testing.assert_close(function(norm, x), torch.stack(columns, 1))


def test_every_unit_has_its_own_mean_and_norm() -> None:
    check(LpNorm1d.forward)


def test_every_mutant_is_caught() -> None:
    assert survivors(LpNorm1d.forward, check) == []


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
        near, far = (layer(1, p)(x + shift).var(correction=0) for shift in (0.0, 9.0))
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
