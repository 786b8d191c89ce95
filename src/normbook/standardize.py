r"""Standardize an array over chosen axes, and differentiate through it.

Batch, layer, instance and group normalization are this one function over
different axes. It is written against the Python array API standard, so the same
lines run on NumPy arrays and on torch tensors, on any device.

Along the chosen axes, :math:`n` values form a *group*. Each group is shifted and
scaled by its own two numbers:

.. math::

    \mu = \frac1n \sum_i x_i, \qquad
    \sigma^2 = \frac1n \sum_i (x_i - \mu)^2, \qquad
    \hat x_i = \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} .
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any, NamedTuple

from array_api_compat import array_namespace, is_numpy_namespace

__all__ = [
    "StandardizeCache",
    "moments",
    "standardize",
    "standardize_backward",
    "standardize_forward",
]

# NumPy arrays and torch tensors share no base class; what they share is the standard.
Array = Any
Axes = int | tuple[int, ...]


class StandardizeCache(NamedTuple):
    """What the backward pass needs from the forward pass.

    The statistics keep the reduced axes with length 1. They are float32 when
    ``x`` is float16 or bfloat16, which are too coarse to hold them. ``mu`` is None
    where the mean was not taken off; ``var`` is then the mean square.
    """

    x_hat: Array
    mu: Array  # or None
    var: Array
    inv_std: Array
    axes: tuple[int, ...]


def moments(x: Array, axes: Axes) -> tuple[Array, Array]:
    r"""Mean and biased variance of each group, in two passes.

    The textbook shortcut :math:`\overline{x^2} - \bar x^2` subtracts two large
    numbers and can even turn negative. Here the mean is taken off first. A second
    look at the centred values then repairs what rounding left in the mean: the
    *corrected two-pass algorithm*.

    Parameters
    ----------
    x : array of floats, any shape
    axes : int or tuple of int
        The axes along which one group lies.

    Returns
    -------
    mu, var : arrays
        Shape of ``x`` with length 1 along ``axes``; unit of x, and its square.
        ``var`` divides by the number of values n (biased); eps is not inside.

    Raises
    ------
    TypeError
        If ``x`` is not an array of real floating-point numbers.
    ValueError
        If an axis does not exist, is named twice, or a group has no value.

    Notes
    -----
    Source: Chan, Golub and LeVeque (1983), "Algorithms for computing the sample
    variance", eq. 1.7.

    Examples
    --------
    >>> import numpy as np
    >>> mu, var = moments(np.array([[1.0, 10.0], [3.0, 10.0]]), axes=0)
    >>> mu, var
    (array([[ 2., 10.]]), array([[1., 0.]]))
    """
    axes = _checked(x, axes)
    _, mu, var = centre(accumulation_dtype(x), axes, is_centred=True)
    return mu, var


def standardize_forward(
    x: Array, axes: Axes, eps: float = 1e-5, *, is_centred: bool = True
) -> tuple[Array, StandardizeCache]:
    r"""Standardize, and keep what the backward pass needs.

    Parameters
    ----------
    x : array of floats, any shape
    axes : int or tuple of int
        The axes along which one group lies: ``0`` for batch norm on ``(N, D)``,
        ``(0, 2, 3)`` on ``(N, C, H, W)``, ``-1`` for layer norm.
    eps : float
        Added to the variance, inside the root; unit of x squared.
    is_centred : bool
        Whether the mean is taken off first. Without it, as in RMSNorm, each group is
        only scaled: :math:`\mu` is 0 and :math:`\sigma^2` the mean square.

    Returns
    -------
    x_hat : array
        Shape and dtype of ``x``.
    cache : StandardizeCache

    Raises
    ------
    TypeError
        If ``x`` is not an array of real floating-point numbers.
    ValueError
        If ``eps`` is negative or not finite, an axis does not exist or is named
        twice, or a group has no value.

    Notes
    -----
    With ``eps=0`` a group of equal values gives 0/0: NaN, and no error, because
    looking at the values would halt a GPU.

    Source: Ioffe and Szegedy (2015), Algorithm 1; book, chapter *Batch
    normalization*.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 10.0], [3.0, 10.0]])
    >>> x_hat, cache = standardize_forward(x, axes=0, eps=0.25)
    >>> cache.mu, cache.var
    (array([[ 2., 10.]]), array([[1., 0.]]))
    >>> x_hat[:, 0] * np.sqrt(1.25)
    array([-1.,  1.])
    """
    axes = _checked(x, axes)
    eps = check_eps(eps)
    xp = array_namespace(x)
    centred, mu, var = centre(accumulation_dtype(x), axes, is_centred)
    inv_std = 1 / xp.sqrt(var + eps)
    x_hat = xp.astype(centred * inv_std, x.dtype, copy=False)
    return x_hat, StandardizeCache(x_hat, mu, var, inv_std, axes)


def standardize(
    x: Array, axes: Axes, eps: float = 1e-5, *, is_centred: bool = True
) -> Array:
    r"""Shift and scale each group to mean 0 and (almost) variance 1.

    .. math:: \hat x_i = (x_i - \mu) / \sqrt{\sigma^2 + \epsilon}

    The variance of the result is :math:`\sigma^2 / (\sigma^2 + \epsilon)`.
    Parameters, errors and source are those of :func:`standardize_forward`.

    Returns
    -------
    x_hat : array
        Shape and dtype of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> standardize(np.array([[2.0, 4.0], [6.0, 8.0]]), axes=0, eps=0.0)
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    return standardize_forward(x, axes, eps, is_centred=is_centred)[0]


def standardize_backward(dl_dx_hat: Array, cache: StandardizeCache) -> Array:
    r"""Gradient with respect to x, in closed form.

    .. math::

        \frac{\partial\ell}{\partial x_i} = \frac1{\sqrt{\sigma^2+\epsilon}}
        \Big(g_i - \bar g - \hat x_i\,\overline{g \hat x}\Big),
        \qquad g = \frac{\partial\ell}{\partial\hat x},

    with means over the group. It is exact for every :math:`\epsilon \ge 0`: what
    arrives loses its mean and its part along :math:`\hat x`, then is scaled. Where
    the forward pass took no mean off, :math:`\bar g` is missing here too.

    Parameters
    ----------
    dl_dx_hat : array
        Shape of ``x_hat``.
    cache : StandardizeCache
        From :func:`standardize_forward`.

    Returns
    -------
    dl_dx : array
        Shape and dtype of ``dl_dx_hat``.

    Raises
    ------
    TypeError
        If ``dl_dx_hat`` is no float array of the kind of ``x_hat``.
    ValueError
        If ``dl_dx_hat`` has another shape than ``x_hat``.

    Notes
    -----
    Source: derived in the book, chapter *The gradient of batch normalization*.

    Examples
    --------
    With two values and ``eps=0``, nothing passes:

    >>> import numpy as np
    >>> _, cache = standardize_forward(np.array([1.0, 5.0]), axes=0, eps=0.0)
    >>> standardize_backward(np.array([0.3, -0.8]), cache)
    array([0., 0.])
    """
    x_hat, mu, _, inv_std, axes = cache
    check_float_array("dl_dx_hat", dl_dx_hat)
    check_same_kind("dl_dx_hat", dl_dx_hat, "x_hat", x_hat)
    check_same_shape("dl_dx_hat", dl_dx_hat, "x_hat", x_hat)
    return through(dl_dx_hat, x_hat, inv_std, axes, is_centred=mu is not None)


def through(
    dl_dx_hat: Array,
    x_hat: Array,
    inv_std: Array,
    axes: tuple[int, ...],
    *,
    is_centred: bool = True,
) -> Array:
    """Take a gradient through the standardization, with nothing checked.

    For loops in which the same arrays come by at each step.
    """
    xp = array_namespace(dl_dx_hat, x_hat)
    g = xp.astype(dl_dx_hat, inv_std.dtype, copy=False)
    z = xp.astype(x_hat, inv_std.dtype, copy=False)
    if is_centred:
        g = g - xp.mean(g, axis=axes, keepdims=True)
    along = xp.mean(g * z, axis=axes, keepdims=True)
    return xp.astype(inv_std * (g - z * along), dl_dx_hat.dtype, copy=False)


def centre(
    x: Array, axes: tuple[int, ...], is_centred: bool
) -> tuple[Array, Array, Array]:
    """Centre each group unless told not to; give its mean and biased variance."""
    xp = array_namespace(x)
    if not is_centred:
        return x, None, xp.mean(x * x, axis=axes, keepdims=True)
    mu = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mu
    # What is left of the mean is rounding of the first pass; it matters where the
    # mean is large beside the spread.
    rest = xp.mean(centred, axis=axes, keepdims=True)
    centred = centred - rest
    var = xp.mean(centred * centred, axis=axes, keepdims=True)
    return centred, mu + rest, var


def accumulation_dtype(x: Array) -> Array:
    """Raise half precision to float32: a mean of many float16 loses its digits."""
    xp = array_namespace(x)
    if xp.finfo(x.dtype).bits < 32:
        return xp.astype(x, xp.float32)
    return x


def check_eps(eps: float) -> float:
    """Refuse an eps that is negative or not finite; give it as a float."""
    try:
        value = float(eps) if isinstance(eps, Real) else math.nan
    except OverflowError:
        value = math.inf
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"eps must be a finite number >= 0, got {eps!r}; it is added to the "
            "variance to keep the division defined, 1e-5 is the usual value."
        )
    return value


def check_float_array(name: str, x: Array) -> None:
    """Refuse what is not an array of real floating-point numbers."""
    try:
        xp = array_namespace(x)
    except TypeError:
        raise TypeError(
            f"{name} must be a NumPy array or a torch tensor, got "
            f"{type(x).__name__}; convert it, e.g. numpy.asarray({name}, dtype=float)."
        ) from None
    if is_numpy_namespace(xp):
        is_real_float = x.dtype.kind == "f"
        # Both change what *, mean or sum mean.
        is_plain = type(x).__name__ not in ("MaskedArray", "matrix")
    else:
        is_real_float = xp.isdtype(x.dtype, "real floating")
        is_plain = not getattr(x, "is_sparse", False)
    if not is_plain:
        raise TypeError(
            f"{name} must be a plain dense array, got {type(x).__name__}; leave masked "
            "values out or fill them, and make sparse tensors dense."
        )
    if not is_real_float:
        raise TypeError(
            f"{name} must hold real floating-point numbers, got dtype {x.dtype}; "
            "convert it first, for example to float64."
        )


def check_same_kind(name: str, a: Array, other: str, b: Array) -> None:
    """Refuse a NumPy array beside a torch tensor."""
    if array_namespace(a) is not array_namespace(b):
        raise TypeError(
            f"{name} must be of the kind of {other}, {type(b).__name__}, got "
            f"{type(a).__name__}; convert one of them."
        )


def check_same_shape(name: str, a: Array, other: str, b: Array) -> None:
    """Refuse two arrays of different shape, before broadcasting hides it."""
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(
            f"{name} must have the shape of {other}, {tuple(b.shape)}, got "
            f"{tuple(a.shape)}; pass one value for each value of {other}."
        )


def sorted_axes(x: Array, axes: Axes, name: str = "axes") -> tuple[int, ...]:
    """Check that these are different axes of x; count them from 0, in order."""
    try:
        given = tuple(map(operator.index, axes if isinstance(axes, tuple) else (axes,)))
    except TypeError:
        raise TypeError(
            f"{name} must be an int or a tuple of ints, got {axes!r}; pass e.g. (0, 2)."
        ) from None
    if not given:
        raise ValueError(f"{name} must name at least one axis, got (); pass e.g. 0.")
    if x.ndim == 0:
        raise ValueError("x must have at least one axis, got shape (); use x[None].")
    for axis in given:
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(
                f"{name} must lie in {-x.ndim}..{x.ndim - 1} for x of shape "
                f"{tuple(x.shape)}, got {axis}; count the axes of x from 0."
            )
    found = tuple(sorted(axis % x.ndim for axis in given))
    if len(set(found)) != len(found):
        raise ValueError(f"{name} must be different axes, got {axes}; name each once.")
    return found


def _checked(x: Array, axes: Axes) -> tuple[int, ...]:
    """Check x and axes, and return the axes as sorted non-negative numbers."""
    check_float_array("x", x)
    found = sorted_axes(x, axes)
    if math.prod([x.shape[axis] for axis in found]) == 0:
        raise ValueError(
            "a mean needs at least one value in each group, got x of shape "
            f"{tuple(x.shape)} with axes {axes}; leave empty batches out."
        )
    return found
