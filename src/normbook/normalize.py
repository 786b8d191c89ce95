r"""Normalize: one function of which every normalization is a choice of axes.

Standardize along some axes, then multiply by a gain and add a bias:

.. math::

    y = \gamma\,\hat x + \beta, \qquad
    \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} .

Two choices make the method. ``axes`` says which values share one mean and one
variance; ``parameter_axes`` says along which axes gain and bias have values of their
own. Batch norm, layer norm, RMSNorm, instance norm and group norm in the modules
beside this one are such choices and nothing more; :mod:`normbook.axes` lists them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from array_api_compat import array_namespace

from normbook.standardize import (
    Array,
    Axes,
    StandardizeCache,
    accumulation_dtype,
    check_float_array,
    check_same_kind,
    check_same_shape,
    sorted_axes,
    standardize_backward,
    standardize_forward,
)

__all__ = [
    "NormalizeCache",
    "NormalizeGradients",
    "normalize",
    "normalize_backward",
    "normalize_forward",
]


class NormalizeCache(NamedTuple):
    """What the backward pass needs from the forward pass.

    ``mu``, ``var`` (biased) and ``inv_std`` keep the reduced axes with length 1;
    ``mu`` is None where the mean was not taken off.
    """

    x_hat: Array
    mu: Array  # or None
    var: Array
    inv_std: Array
    axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]
    gamma: Array | None


class NormalizeGradients(NamedTuple):
    """Gradients of the loss; ``dl_dgamma`` and ``dl_dbeta`` have gamma's shape."""

    dl_dx: Array
    dl_dgamma: Array
    dl_dbeta: Array


def normalize_forward(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    axes: Axes,
    parameter_axes: Axes,
    eps: float = 1e-5,
    is_centred: bool = True,
) -> tuple[Array, NormalizeCache]:
    r"""Normalize along some axes, and keep what the backward pass needs.

    Parameters
    ----------
    x : array of floats, any shape
    gamma, beta : arrays, optional
        Gain and bias. Their shape is that of ``x`` along ``parameter_axes``, in the
        order of the axes of ``x``; ``None`` stands for 1 and 0.
    axes : int or tuple of int
        The axes along which the values share one mean and one variance.
    parameter_axes : int or tuple of int
        The axes along which gain and bias have values of their own.
    eps : float
        Added to the variance, inside the root; unit of x squared.
    is_centred : bool
        Whether the mean is taken off first; RMSNorm leaves it.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.
    cache : NormalizeCache

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If an axis does not exist or is named twice, a shape does not fit, a group
        has no value, or eps is negative.

    Notes
    -----
    Source: Wu and He (2018), section 3.1, for the methods as sets of values that
    share statistics; book, chapter *Choosing the axes*.

    Examples
    --------
    Each row has its own statistics, each column its own gain:

    >>> import numpy as np
    >>> x = np.array([[1.0, 3.0], [10.0, 50.0]])
    >>> gamma = np.array([1.0, 5.0])
    >>> y, cache = normalize_forward(x, gamma, axes=1, parameter_axes=1, eps=0.0)
    >>> y
    array([[-1.,  5.],
           [-1.,  5.]])
    >>> cache.mu.ravel(), cache.var.ravel()
    (array([ 2., 30.]), array([  1., 400.]))
    """
    check_float_array("x", x)
    axes = sorted_axes(x, axes)
    parameter_axes = sorted_axes(x, parameter_axes, "parameter_axes")
    check_parameters(x, parameter_axes, gamma=gamma, beta=beta)
    # Half precision is rounded once, at the end: x_hat stays in float32.
    x_hat, cache = standardize_forward(
        accumulation_dtype(x), axes, eps, is_centred=is_centred
    )
    y = affine(x_hat, gamma, beta, parameter_axes)
    xp = array_namespace(x)
    y = xp.astype(y, x.dtype, copy=False)
    return y, NormalizeCache(*cache, parameter_axes, gamma)


def normalize(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    axes: Axes,
    parameter_axes: Axes,
    eps: float = 1e-5,
    is_centred: bool = True,
) -> Array:
    r"""Normalize along some axes.

    .. math:: y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Parameters, errors and source are those of :func:`normalize_forward`.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[3.0, 4.0, 12.0]])  # mean square 169 / 3
    >>> y = normalize(x, axes=1, parameter_axes=1, eps=0.0, is_centred=False)
    >>> y * 13 / np.sqrt(3)
    array([[ 3.,  4., 12.]])
    """
    return normalize_forward(
        x,
        gamma,
        beta,
        axes=axes,
        parameter_axes=parameter_axes,
        eps=eps,
        is_centred=is_centred,
    )[0]


def normalize_backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    r"""Gradients through a normalization, statistics included, in closed form.

    With :math:`g = \gamma\,\partial\ell/\partial y` and means over the values that
    share statistics,

    .. math::

        \frac{\partial\ell}{\partial x} = \frac1{\sqrt{\sigma^2+\epsilon}}
        \Big(g - \bar g - \hat x\,\overline{g\hat x}\Big), \qquad
        \frac{\partial\ell}{\partial\gamma} = \sum \frac{\partial\ell}{\partial y}
        \,\hat x, \qquad
        \frac{\partial\ell}{\partial\beta} = \sum \frac{\partial\ell}{\partial y},

    the sums over all values that a gain has a part in. Without centring,
    :math:`\bar g` is missing.

    Parameters
    ----------
    dl_dy : array
        Shape of ``y``.
    cache : NormalizeCache
        From :func:`normalize_forward`.

    Returns
    -------
    NormalizeGradients
        ``dl_dx`` in shape and dtype of ``dl_dy``; ``dl_dgamma`` and ``dl_dbeta`` in
        the shape of gain and bias, also where these were left out.

    Raises
    ------
    TypeError
        If ``dl_dy`` is no float array of the kind of ``y``.
    ValueError
        If ``dl_dy`` has another shape than ``y``.

    Notes
    -----
    Source: derived in the book, chapters *The gradient of batch normalization* and
    *The gradient of layer normalization*.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0, 3.0, 3.0]])  # mean 2, variance 2
    >>> gamma = np.array([2.0, 2.0, 2.0])
    >>> _, cache = normalize_forward(x, gamma, axes=1, parameter_axes=1, eps=0.0)
    >>> dl_dx, dl_dgamma, dl_dbeta = normalize_backward(
    ...     np.array([[1.0, 2.0, 0.0]]), cache
    ... )
    >>> np.round(dl_dx / np.sqrt(2), 9)  # gamma / sigma is the root of 2
    array([[ 0.,  1., -1.]])
    >>> dl_dgamma * np.sqrt(2), dl_dbeta
    (array([-2.,  2.,  0.]), array([1., 2., 0.]))
    """
    check_float_array("dl_dy", dl_dy)
    check_same_kind("dl_dy", dl_dy, "y", cache.x_hat)
    check_same_shape("dl_dy", dl_dy, "y", cache.x_hat)
    g = accumulation_dtype(dl_dy)
    dl_dx_hat = affine(g, cache.gamma, None, cache.parameter_axes)
    dl_dx = standardize_backward(dl_dx_hat, StandardizeCache(*cache[:5]))
    return affine_gradients(dl_dy, dl_dx, cache.x_hat, cache.parameter_axes)


def affine(
    x_hat: Array,
    gamma: Array | None,
    beta: Array | None,
    parameter_axes: tuple[int, ...],
) -> Array:
    """Multiply by the gain and add the bias, each along its axes."""
    y = x_hat
    if gamma is not None:
        y = y * along(gamma, parameter_axes, x_hat.ndim)
    if beta is not None:
        y = y + along(beta, parameter_axes, x_hat.ndim)
    return y


def affine_gradients(
    dl_dy: Array, dl_dx: Array, x_hat: Array, parameter_axes: tuple[int, ...]
) -> NormalizeGradients:
    """Sum what reaches gain and bias, beside a gradient of x that is known."""
    xp = array_namespace(dl_dy, x_hat)
    g = accumulation_dtype(dl_dy)
    others = tuple(axis for axis in range(g.ndim) if axis not in parameter_axes)

    def total(values: Array) -> Array:
        # A sum over no axis would be, in torch, a sum over all.
        return xp.sum(values, axis=others) if others else values

    return NormalizeGradients(
        dl_dx=xp.astype(dl_dx, dl_dy.dtype, copy=False),
        dl_dgamma=total(g * x_hat),
        dl_dbeta=total(g),
    )


def along(value: Array, axes: tuple[int, ...], ndim: int) -> Array:
    """Give an array with these axes length 1 along all others, so it broadcasts."""
    xp = array_namespace(value)
    lengths = dict(zip(axes, value.shape, strict=True))
    return xp.reshape(value, tuple(lengths.get(axis, 1) for axis in range(ndim)))


def check_parameters(
    x: Array, parameter_axes: tuple[int, ...], **values: Array | None
) -> None:
    """Refuse a gain or bias that has not one value for each place on its axes."""
    expected = tuple(x.shape[axis] for axis in parameter_axes)
    for name, value in values.items():
        if value is None:
            continue
        check_float_array(name, value)
        check_same_kind(name, value, "x", x)
        if tuple(value.shape) != expected:
            raise ValueError(
                f"{name} must have shape {expected}, got {tuple(value.shape)}; pass "
                f"{math.prod(expected)} values, one per feature: "
                f"axes {parameter_axes} of x with shape {tuple(x.shape)}."
            )
