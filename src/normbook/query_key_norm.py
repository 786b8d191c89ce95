r"""Query-key normalization: attention whose scores have a bound.

Before the scores of attention are taken, queries and keys are divided by their root
mean square, and each feature gets a gain. ``axes`` says over which features: those of a
head, ``-1`` of an array (..., T, D), or those of all heads, ``(-3, -1)`` of (..., H, T,
D). Then no score of what comes out can exceed :func:`largest_score`, whatever weights
made the queries and keys. A rotary embedding behind the norm changes the bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normbook.arrays import (
    Array,
    Axes,
    check_float_array,
    check_like,
    check_same_kind,
    check_same_shape,
)
from normbook.layer_norm import LAST, rms_norm_backward, rms_norm_forward
from normbook.normalize import NormalizeCache, without_cache

__all__ = [
    "largest_score",
    "query_key_norm",
    "query_key_norm_backward",
    "query_key_norm_forward",
]


class QueryKeyCache(NamedTuple):
    """What the backward pass needs."""

    q: NormalizeCache
    k: NormalizeCache


class QueryKeyGradients(NamedTuple):
    """Gradients of the loss; those by the gains have the shape of the gains."""

    dl_dq: Array
    dl_dk: Array
    dl_dgamma_q: Array
    dl_dgamma_k: Array


def query_key_norm_forward(
    q: Array,
    k: Array,
    gamma_q: Array | None = None,
    gamma_k: Array | None = None,
    eps: float = 1e-5,
    *,
    axes: Axes = LAST,
) -> tuple[tuple[Array, Array], QueryKeyCache]:
    r"""Normalize queries and keys by their root mean square, and keep it.

    .. math:: q' = \gamma_q\,\frac{q}{\sqrt{\overline{q^2} + \epsilon}}, \qquad
        k' = \gamma_k\,\frac{k}{\sqrt{\overline{k^2} + \epsilon}}

    ``q`` has shape (..., H, T, D), of H heads with D features, ``k`` the same but for
    the number of tokens T and, where several heads share a key, for H. The gains have
    the shape of q, and of k, along ``axes``. Errors are those of
    :func:`normbook.normalize.normalize_forward`.

    Source: Henry et al. (2020), "Query-key normalization for transformers", there with
    one gain in all, and with the length 1 in the place of the root mean square 1.

    Examples
    --------
    >>> q, k = np.array([[1.0, 7.0]]), np.array([[30.0, 40.0]])
    >>> (q_hat, k_hat), _ = query_key_norm_forward(q, k, eps=0.0)
    >>> q_hat, np.round(k_hat, 4)
    (array([[0.2, 1.4]]), array([[0.8485, 1.1314]]))
    """
    (q_out, q_cache), (k_out, k_cache) = (
        rms_norm_forward(x, gamma, eps, axes=axes)
        for x, gamma in ((q, gamma_q), (k, gamma_k))
    )
    check_same_kind("k", k, "q", q)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"k must have the {q.shape[-1]} features of q on its last axis, got shape "
            f"{tuple(k.shape)}; a score is the product of both."
        )
    return (q_out, k_out), QueryKeyCache(q_cache, k_cache)


query_key_norm = without_cache(query_key_norm_forward)


def query_key_norm_backward(
    dl_dq_out: Array, dl_dk_out: Array, cache: QueryKeyCache
) -> QueryKeyGradients:
    r"""Differentiate through both: what reaches q has no part along q.

    ``dl_dq_out`` and ``dl_dk_out`` are the gradients by :math:`q'` and :math:`k'`, with
    their shapes.

    Examples
    --------
    >>> q, k = np.array([[1.0, 7.0]]), np.array([[3.0, 4.0]])
    >>> _, cache = query_key_norm_forward(q, k, eps=0.0)
    >>> found = query_key_norm_backward(np.array([[2.0, 14.0]]), k, cache)
    >>> np.round(found.dl_dq, 9) + 0.0  # along q: nothing arrives
    array([[0., 0.]])
    """
    check_like("dl_dq_out", dl_dq_out, "q", cache.q.x_hat)
    check_like("dl_dk_out", dl_dk_out, "k", cache.k.x_hat)
    dl_dq, dl_dgamma_q, _ = rms_norm_backward(dl_dq_out, cache.q)
    dl_dk, dl_dgamma_k, _ = rms_norm_backward(dl_dk_out, cache.k)
    return QueryKeyGradients(dl_dq, dl_dk, dl_dgamma_q, dl_dgamma_k)


def largest_score(gamma_q: Array, gamma_k: Array) -> float:
    r"""Return what no score of normalized queries and keys exceeds in size.

    .. math:: \Big|\frac{q'\cdot k'}{\sqrt D}\Big| \le
        \frac{n}{\sqrt D}\,\max_i |\gamma_{q,i}\,\gamma_{k,i}|

    n is the number of features that share a root mean square: D in a head by itself,
    H D in all heads together. A score can reach it where eps is small. The gains
    have shape (D,), or (H, D) of all heads. By Cauchy's inequality, with
    :math:`\lVert\hat q\rVert \le \sqrt n`.

    The scores must be those of :math:`q'` and :math:`k'` as they are. **A rotary
    embedding between norm and score makes it too low**, unless both gains of each pair
    that it turns are equal in size: it can bring the two features of a pair together.
    The bound is then that of gains in which the larger of each pair stands for both. A
    norm behind the rotary embedding keeps the bound as it is.

    Examples
    --------
    >>> largest_score(np.array([1.0, 1.0, 1.0, -3.0]), np.ones(4))
    6.0
    >>> largest_score(np.ones((8, 4)), np.ones((8, 4)))  # all in one of eight heads
    16.0

    Two features, one pair, norm before the rotary embedding: scores reach 12.7.

    >>> gamma_q, gamma_k = np.array([3.0, 0.1]), np.array([0.1, 3.0])
    >>> round(largest_score(gamma_q, gamma_k), 2)
    0.42
    >>> larger = [np.full(2, gamma.max()) for gamma in (gamma_q, gamma_k)]
    >>> round(largest_score(*larger), 1)
    12.7
    """
    for name, gamma in (("gamma_q", gamma_q), ("gamma_k", gamma_k)):
        check_float_array(name, gamma)
        if gamma.ndim not in (1, 2) or math.prod(gamma.shape) == 0:
            raise ValueError(
                f"{name} must have shape (D,) or (H, D), got {tuple(gamma.shape)}; "
                "pass the gains of a head, or those of all heads together."
            )
    check_same_kind("gamma_k", gamma_k, "gamma_q", gamma_q)
    check_same_shape("gamma_k", gamma_k, "gamma_q", gamma_q)
    n, d = math.prod(gamma_q.shape), gamma_q.shape[-1]
    return float(abs(gamma_q * gamma_k).max() * n / math.sqrt(d))
