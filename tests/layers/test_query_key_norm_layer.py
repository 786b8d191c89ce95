"""The layer of query-key norm: torch's RMSNorm of each, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_pairs import EXACT, draw, stirred
from torch.nn import functional

from normbook.layers.query_key_norm import QueryKeyNorm

Q, K = draw(2, 6, 5, 4), draw(2, 3, 7, 4, seed=1)  # three heads of keys for six


def make(*args: Any, **options: Any) -> Any:
    return stirred(QueryKeyNorm(*args, dtype=torch.float64, **options))


def test_each_head_is_normalized_as_torch_does() -> None:
    layer = make(4)
    for x, y, norm in zip((Q, K), layer(Q, K), layer.children(), strict=True):
        expected = functional.rms_norm(x, (4,), norm.weight, 1e-6)
        torch.testing.assert_close(y, expected, rtol=EXACT, atol=EXACT)


def test_all_heads_are_normalized_as_torch_does_before_they_are_split() -> None:
    layer = make(4, num_heads=6, num_key_heads=3)
    for x, y, norm in zip((Q, K), layer(Q, K), layer.children(), strict=True):
        whole = x.transpose(1, 2).flatten(2)
        expected = functional.rms_norm(
            whole, whole.shape[-1:], norm.weight.flatten(), 1e-6
        )
        assert y.shape == x.shape
        torch.testing.assert_close(
            y.transpose(1, 2).flatten(2), expected, rtol=EXACT, atol=EXACT
        )


@pytest.mark.parametrize("options", [{}, {"num_heads": 6, "num_key_heads": 3}])
def test_gradients_reach_input_and_gains(options: dict[str, int]) -> None:
    layer = make(4, **options)

    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, k = layer(q, k)
        return torch.einsum("nhid,nhjd->nhij", q, k.repeat_interleave(2, 1))

    leaves = Q.clone().requires_grad_(), K.clone().requires_grad_()
    assert torch.autograd.gradcheck(scores, leaves)
    found = torch.autograd.grad(scores(*leaves).sum(), [*layer.parameters()])
    assert all(gradient.abs().min() > 0 for gradient in found)


def test_options_reach_both_norms() -> None:
    layer: Any = QueryKeyNorm(4, offset=1.0, rounds="before", eps=0.25)
    for norm in layer.children():
        assert (norm.offset, norm.rounds, norm.eps) == (1.0, "before", 0.25)
        assert norm.weight.tolist() == [0.0] * 4


def test_state_travels_by_state_dict_and_by_copy() -> None:
    layer = make(4)
    assert list(layer.state_dict()) == ["q_norm.weight", "k_norm.weight"]
    other = make(4)
    other.load_state_dict(layer.state_dict())
    for twin in (other, copy.deepcopy(layer)):
        assert all(map(torch.equal, twin(Q, K), layer(Q, K)))
    assert list(QueryKeyNorm(4, elementwise_affine=False).parameters()) == []


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_key_heads must come with num_heads"):
        QueryKeyNorm(4, num_key_heads=2)
    with pytest.raises(TypeError, match=r"^a number of heads must be a whole number"):
        QueryKeyNorm(4, num_heads=2.5)  # type: ignore[arg-type]
    layer = QueryKeyNorm(4, num_heads=6)
    with pytest.raises(ValueError, match=r"must have shape \(\.\.\., H, T, D\), got"):
        layer(torch.ones(6, 4), torch.ones(6, 4))
    with pytest.raises(RuntimeError, match="must end on the axes of normalized_shape"):
        layer(torch.ones(2, 5, 7, 4), torch.ones(2, 6, 7, 4))
    with pytest.raises(TypeError, match="must be a torch tensor"):
        layer([1.0], torch.ones(2, 6, 7, 4))
