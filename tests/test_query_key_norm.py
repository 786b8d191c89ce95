"""Query-key norm: torch's RMSNorm of both, exact gradients, a bound that is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from function_pairs import EXACT, assert_differences, refusals, torch_gradients
from torch.nn import functional

from normbook.gradient_check import relative_error
from normbook.query_key_norm import (
    largest_score,
    query_key_norm,
    query_key_norm_backward,
    query_key_norm_forward,
)

EPS = 0.3
Arrays = tuple[Any, Any, Any, Any]
PER_HEAD: Any = -1
ALL_HEADS: Any = (-3, -1)
each_way = pytest.mark.parametrize("axes", [PER_HEAD, ALL_HEADS])
each_kind = pytest.mark.parametrize("of", [np.asarray, torch.tensor])


def draw(axes: Any) -> tuple[Arrays, list[Any]]:
    """Return q (2, 3, 5, 4), k (2, 3, 7, 4) and their gains; and gradients of both."""
    rng = np.random.default_rng(0)
    features = (4,) if axes == PER_HEAD else (3, 4)
    shapes = (2, 3, 5, 4), (2, 3, 7, 4), features, features
    q, k, gamma_q, gamma_k = (rng.normal(1, 2, s) for s in shapes)
    return (q, k, gamma_q, gamma_k), [rng.normal(size=s) for s in shapes]


def theirs(x: Any, gamma: Any, axes: Any) -> torch.Tensor:
    if axes == PER_HEAD:
        return functional.rms_norm(x, (4,), gamma, EPS)
    return functional.rms_norm(x.transpose(1, 2), (3, 4), gamma, EPS).transpose(1, 2)


@each_way
@each_kind
def test_values_and_gradients_equal_torch(of: Callable[..., Any], axes: Any) -> None:
    arrays, (dl_dq_out, dl_dk_out, *_) = draw(axes)
    q, k, gamma_q, gamma_k = map(of, arrays)
    ours, cache = query_key_norm_forward(q, k, gamma_q, gamma_k, EPS, axes=axes)
    found = query_key_norm_backward(of(dl_dq_out), of(dl_dk_out), cache)
    for i, (y, dl_dy) in enumerate(zip(ours, (dl_dq_out, dl_dk_out), strict=True)):
        x, gamma = arrays[i], arrays[i + 2]
        expected, gradients = torch_gradients(
            lambda x, gamma: theirs(x, gamma, axes), dl_dy, x, gamma
        )
        assert relative_error(y, expected) < EXACT
        for a, b in zip((found[i], found[i + 2]), gradients, strict=True):
            assert relative_error(a, b) < EXACT


@each_way
@pytest.mark.parametrize("which", [0, 1])
def test_gradients_agree_with_central_differences(which: int, axes: Any) -> None:
    arrays, gradients = draw(axes)
    _, cache = query_key_norm_forward(*arrays, EPS, axes=axes)
    found = query_key_norm_backward(gradients[0], gradients[1], cache)

    def one(x: Any, gamma: Any) -> Any:
        q, k, *gains = arrays
        given = (x, k, gamma, gains[1]) if which == 0 else (q, x, gains[0], gamma)
        return query_key_norm(*given, EPS, axes=axes)[which]

    pick = slice(which, None, 2)
    assert_differences(one, tuple(arrays[pick]), gradients[which], tuple(found[pick]))


@each_way
def test_nothing_arrives_along_the_query_itself(axes: Any) -> None:
    arrays, gradients = draw(axes)
    _, cache = query_key_norm_forward(*arrays, 0.0, axes=axes)
    found = query_key_norm_backward(gradients[0], gradients[1], cache)
    for x, dl_dx in zip(arrays[:2], found[:2], strict=True):
        np.testing.assert_allclose((x * dl_dx).sum(axes), 0, atol=1e-12)


@each_way
def test_no_score_is_above_the_bound_whatever_the_size_of_the_queries(
    axes: Any,
) -> None:
    (q, k, gamma_q, gamma_k), _ = draw(axes)
    for size in (1e-3, 1.0, 1e6):
        a, b = query_key_norm(size * q, size * k, gamma_q, gamma_k, 1e-12, axes=axes)
        scores = a @ np.swapaxes(b, -1, -2) / 2.0
        assert abs(scores).max() <= largest_score(gamma_q, gamma_k)


@each_way
def test_a_score_reaches_the_bound(axes: Any) -> None:
    (q, k, gamma_q, gamma_k), _ = draw(axes)
    place = np.unravel_index(abs(gamma_q * gamma_k).argmax(), gamma_q.shape)
    q, k = np.zeros_like(q), np.zeros_like(k)
    head = place[0] if len(place) == 2 else 0
    q[0, head, 0, place[-1]], k[0, head, 0, place[-1]] = 5.0, 5.0
    a, b = query_key_norm(q, k, gamma_q, gamma_k, 1e-15, axes=axes)
    score = abs(a[0, head, 0] @ b[0, head, 0]) / 2.0
    assert score == pytest.approx(largest_score(gamma_q, gamma_k), rel=1e-9)


def rotated(x: Any, angle: float) -> Any:
    """Turn pairs (i, i + D/2) of the last axis, as a rotary embedding does."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def largest_over_angles(gamma_q: Any, gamma_k: Any, *, is_norm_first: bool) -> float:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 400, len(gamma_q)))
    q[: len(gamma_q)] = k[: len(gamma_q)] = np.eye(len(gamma_q))
    found = []
    for angle in np.linspace(0, 2 * np.pi, 73):
        if is_norm_first:
            a, b = query_key_norm(q, k, gamma_q, gamma_k, 1e-15)
            a = rotated(a, angle)
        else:
            a, b = query_key_norm(rotated(q, angle), k, gamma_q, gamma_k, 1e-15)
        found.append(abs(a @ b.T).max() / np.sqrt(len(gamma_q)))
    return float(max(found))


UNEVEN = np.array([3.0, 1.0, 0.1, 1.0]), np.array([0.1, 1.0, 3.0, 1.0])  # pairs 02, 13


def test_a_rotary_embedding_behind_the_norm_breaks_the_bound() -> None:
    reached = largest_over_angles(*UNEVEN, is_norm_first=True)
    assert reached > 5 * largest_score(*UNEVEN)
    larger = [np.tile(np.maximum(*np.split(gamma, 2)), 2) for gamma in UNEVEN]
    assert reached == pytest.approx(largest_score(*larger), rel=1e-9)


def test_the_bound_holds_beside_a_rotary_embedding_otherwise() -> None:
    bound = largest_score(*UNEVEN) * (1 + 1e-9)
    assert largest_over_angles(*UNEVEN, is_norm_first=False) <= bound
    gamma_q, gamma_k = (np.tile(gamma[:2], 2) for gamma in UNEVEN)  # equal on pairs
    bound = largest_score(gamma_q, gamma_k) * (1 + 1e-9)
    reached = largest_over_angles(gamma_q, gamma_k, is_norm_first=True)
    assert 0.999 * bound < reached <= bound


X = np.ones((2, 3, 5, 4))
test_bad_input_is_refused = refusals(
    (lambda: query_key_norm(X, X[..., :2]), ValueError, "^k must have the 4 features"),
    (lambda: query_key_norm(X, torch.ones(2, 4)), TypeError, "^k must be of the kind"),
    (lambda: query_key_norm(X, X, np.ones(3)), ValueError, "^gamma must have shape"),
    (lambda: largest_score(np.ones(4), np.ones(3)), ValueError, "^gamma_k must have"),
    (lambda: largest_score(np.ones(()), np.ones(())), ValueError, "^gamma_q must have"),
    (lambda: largest_score([1.0], np.ones(1)), TypeError, "^gamma_q must be a NumPy"),
)


def test_the_gradient_must_fit() -> None:
    _, cache = query_key_norm_forward(X, X)
    with pytest.raises(ValueError, match=r"^dl_dk_out must have the shape of k"):
        query_key_norm_backward(X, X[:1], cache)


def test_eps_is_1e_5_if_none_is_given() -> None:
    (q, k, *_), _ = draw(PER_HEAD)
    for found, expected in zip(
        query_key_norm(q, k), query_key_norm(q, k, eps=1e-5), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_gains_of_two_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match="gamma_k must be"):
        largest_score(np.ones(4), torch.ones(4, dtype=torch.float64))
