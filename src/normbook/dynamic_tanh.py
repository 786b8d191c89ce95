r"""Dynamic Tanh: a bounded curve in the place of a norm, without statistics.

It treats each number by itself: nothing is shared between features or examples.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from normbook.arrays import (
    Array,
    as_dtype,
    as_float32,
    check_float_array,
    check_like,
    check_parameters,
)
from normbook.normalize import affine, affine_gradients, without_cache


class DynamicTanhCache(NamedTuple):
    """What the backward pass needs; float32 of half precision."""

    x: Array
    t: Array  # tanh(alpha x)
    alpha: Array
    gamma: Array | None


class DynamicTanhGradients(NamedTuple):
    """Gradients of the loss, in the shapes of x, alpha, gamma and beta."""

    dl_dx: Array
    dl_dalpha: Array
    dl_dgamma: Array
    dl_dbeta: Array


def dynamic_tanh_forward(
    x: Array, alpha: Array, gamma: Array | None = None, beta: Array | None = None
) -> tuple[Array, DynamicTanhCache]:
    r"""Squash each number, and keep what the backward pass needs.

    .. math:: y = \gamma\,\tanh(\alpha x) + \beta

    x has shape (..., D), gain and bias have (D,) and may be left out; ``alpha`` is one
    number for all of x, an array of shape (1,). Errors are those of
    :func:`normbook.normalize.normalize_forward`.

    Source: Zhu et al. (2025), "Transformers without normalization".

    Examples
    --------
    >>> dynamic_tanh_forward(np.array([0.0, 50.0, -50.0]), np.array([0.5]))[0]
    array([ 0.,  1., -1.])
    """
    check_float_array("x", x)
    check_parameters(x.reshape(-1)[:1], (0,), alpha=alpha)
    last = (x.ndim - 1,)
    check_parameters(x, last, gamma=gamma, beta=beta)
    values, slope = as_float32(x), as_float32(alpha)
    t = array_namespace(x).tanh(slope * values)
    y = as_dtype(affine(t, gamma, beta, last), x.dtype)
    return y, DynamicTanhCache(values, t, slope, gamma)


dynamic_tanh = without_cache(dynamic_tanh_forward)


def dynamic_tanh_backward(
    dl_dy: Array, cache: DynamicTanhCache
) -> DynamicTanhGradients:
    r"""Gradients through Dynamic Tanh, in closed form.

    With :math:`t = \tanh(\alpha x)` and :math:`g = \gamma\,\partial\ell/\partial y`,

    .. math::

        \frac{\partial\ell}{\partial x} = \alpha\,g\,(1 - t^2), \qquad
        \frac{\partial\ell}{\partial\alpha} = \sum g\,x\,(1 - t^2),

    those of gain and bias as behind a norm, with t for :math:`\hat x`. Nothing is
    projected away: each number passes its own gradient, made smaller.

    Examples
    --------
    >>> _, cache = dynamic_tanh_forward(np.array([0.0, 50.0]), np.array([0.5]))
    >>> dynamic_tanh_backward(np.array([1.0, 1.0]), cache).dl_dx
    array([0.5, 0. ])
    """
    x, t, alpha, gamma = cache
    check_like("dl_dy", dl_dy, "y", t)
    last, dl_dy_32 = (x.ndim - 1,), as_float32(dl_dy)
    through = affine(dl_dy_32, gamma, None, last) * (1 - t * t)
    dl_dx = as_dtype(alpha * through, dl_dy.dtype)
    dl_dalpha = (through * x).sum().reshape(1)
    return DynamicTanhGradients(dl_dx, dl_dalpha, *affine_gradients(dl_dy_32, t, last))
