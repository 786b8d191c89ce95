r"""Batch normalization: forward, backward, inference and folding.

The statistics are those of :mod:`normbook.standardize`, taken over every axis but
the channel axis, which is axis 1: over N for ``(N, D)``, over N, H and W for
``(N, C, H, W)``. A gain and a bias for each channel follow.

With given statistics batch norm is a scale and a shift for each channel. Beside a
linear map these can be *folded* into the weights of the map.
"""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import array_namespace

from normbook.normalize import (
    NormalizeCache,
    NormalizeGradients,
    affine,
    affine_gradients,
    along,
    check_parameters,
    normalize_backward,
    normalize_forward,
)
from normbook.standardize import (
    Array,
    accumulation_dtype,
    check_eps,
    check_float_array,
    check_same_kind,
    check_same_shape,
)

__all__ = [
    "LinearMap",
    "ScaleAndShift",
    "batch_axes",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_forward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
    "fold_into_next",
    "fold_into_previous",
    "scale_and_shift",
]

# Gain, bias and running statistics have one value for each channel.
CHANNEL = (1,)


def batch_axes(x: Array) -> tuple[int, ...]:
    """Axes over which batch norm averages: all but axis 1, the channel axis.

    Examples
    --------
    >>> import numpy as np
    >>> batch_axes(np.zeros((8, 3))), batch_axes(np.zeros((8, 3, 5, 7)))
    ((0,), (0, 2, 3))
    """
    check_float_array("x", x)
    if x.ndim < 2:
        raise ValueError(
            "x must have shape (N, D) or (N, C, ...), got "
            f"{tuple(x.shape)}; add the missing axis, e.g. x[:, None]."
        )
    return (0, *range(2, x.ndim))


def batch_norm_forward(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
) -> tuple[Array, NormalizeCache]:
    r"""Normalize with the statistics of this batch, and keep them.

    .. math::

        y = \gamma \hat x + \beta, \qquad
        \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}

    Parameters
    ----------
    x : array of floats, shape (N, D) or (N, C, ...)
    gamma, beta : arrays, shape (D,) or (C,), optional
        Gain and bias of each channel; ``None`` stands for 1 and 0.
    eps : float
        Added to the variance, inside the root; unit of x squared.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.
    cache : NormalizeCache
        Its ``mu`` and ``var`` (biased) keep the reduced axes with length 1.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, the batch is empty, or eps is negative.

    Notes
    -----
    Source: Ioffe and Szegedy (2015), Algorithm 1; book, chapter *Batch
    normalization*.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 10.0], [3.0, 50.0]])
    >>> gamma, beta = np.array([2.0, 2.0]), np.array([0.0, 7.0])
    >>> y, cache = batch_norm_forward(x, gamma, beta, eps=0.0)
    >>> y
    array([[-2.,  5.],
           [ 2.,  9.]])
    >>> cache.mu, cache.var
    (array([[ 2., 30.]]), array([[  1., 400.]]))
    """
    return normalize_forward(
        x, gamma, beta, axes=batch_axes(x), parameter_axes=CHANNEL, eps=eps
    )


def batch_norm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    r"""Normalize with the statistics of this batch (training).

    .. math:: y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Parameters, errors and source are those of :func:`batch_norm_forward`.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> batch_norm(np.array([[1.0], [5.0]]), eps=0.0)
    array([[-1.],
           [ 1.]])
    """
    return batch_norm_forward(x, gamma, beta, eps)[0]


def batch_norm_backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    r"""Gradients through batch norm, statistics included.

    .. math::

        \frac{\partial\ell}{\partial\gamma} = \sum_b \frac{\partial\ell}{\partial
        y_b}\,\hat x_b, \qquad
        \frac{\partial\ell}{\partial\beta} = \sum_b \frac{\partial\ell}{\partial y_b}

    and, with :math:`g = \partial\ell/\partial y` and means over the batch,

    .. math::

        \frac{\partial\ell}{\partial x_b} = \frac{\gamma}{\sqrt{\sigma^2+\epsilon}}
        \Big(g_b - \bar g - \hat x_b\,\overline{g\hat x}\Big).

    Parameters
    ----------
    dl_dy : array
        Shape of ``y``.
    cache : NormalizeCache
        From :func:`batch_norm_forward`.

    Returns
    -------
    NormalizeGradients
        ``dl_dx`` in the shape of x; ``dl_dgamma``, ``dl_dbeta`` of shape (D,),
        also where gamma and beta were left out.

    Raises
    ------
    ValueError
        If ``dl_dy`` has another shape than ``y``.

    Notes
    -----
    Source: derived in the book, chapter *The gradient of batch normalization*.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0], [3.0], [3.0]])  # mean 2, variance 2
    >>> _, cache = batch_norm_forward(x, gamma=np.array([2.0]), eps=0.0)
    >>> dl_dx, dl_dgamma, dl_dbeta = batch_norm_backward(
    ...     np.array([[0.0], [1.0], [-1.0]]), cache
    ... )
    >>> np.round(dl_dx / np.sqrt(2), 9).ravel()  # gamma / sigma is the root of 2
    array([ 0.,  1., -1.])
    >>> dl_dgamma, dl_dbeta
    (array([0.]), array([0.]))
    """
    return normalize_backward(dl_dy, cache)


def batch_norm_inference(
    x: Array,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    r"""Normalize with given statistics (inference).

    .. math:: y = \gamma (x - m) / \sqrt{v + \epsilon} + \beta

    with m and v constants: an affine function of each value on its own.

    Parameters
    ----------
    x : array of floats, shape (N, D) or (N, C, ...)
    running_mean, running_var : arrays, shape (D,) or (C,)
        The statistics to use; ``running_var`` is a variance, not a deviation.
    gamma, beta : arrays, shape (D,) or (C,), optional
    eps : float
        Unit of x squared.

    Returns
    -------
    y : array
        Shape and dtype of ``x``. An empty batch gives an empty result.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, or eps is negative.

    Notes
    -----
    Source: Ioffe and Szegedy (2015), Algorithm 2, step 11.

    Examples
    --------
    >>> import numpy as np
    >>> mean, var = np.array([3.0]), np.array([4.0])
    >>> batch_norm_inference(np.array([[7.0]]), mean, var, eps=0.0)
    array([[2.]])
    """
    x_hat, _ = _standardize_with(x, running_mean, running_var, eps)
    check_parameters(x, CHANNEL, gamma=gamma, beta=beta)
    xp = array_namespace(x)
    return xp.astype(affine(x_hat, gamma, beta, CHANNEL), x.dtype, copy=False)


def batch_norm_inference_backward(
    dl_dy: Array,
    x: Array,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None = None,
    eps: float = 1e-5,
) -> NormalizeGradients:
    r"""Gradients through batch norm in inference mode: one term, not three.

    .. math::

        \frac{\partial\ell}{\partial x_b} =
        \frac{\gamma}{\sqrt{v + \epsilon}} \frac{\partial\ell}{\partial y_b}

    The statistics are constants, so no example acts on another.

    Parameters
    ----------
    dl_dy : array
        Shape of ``x``.
    x, running_mean, running_var, gamma, eps
        As given to :func:`batch_norm_inference`.

    Returns
    -------
    NormalizeGradients

    Raises
    ------
    TypeError, ValueError
        As :func:`batch_norm_inference`, and for a ``dl_dy`` of another shape.

    Examples
    --------
    >>> import numpy as np
    >>> dl_dx, dl_dgamma, dl_dbeta = batch_norm_inference_backward(
    ...     np.array([[1.0]]), np.array([[7.0]]), np.array([3.0]), np.array([4.0]),
    ...     eps=0.0,
    ... )
    >>> dl_dx, dl_dgamma, dl_dbeta  # 1 / 2, (7 - 3) / 2 and 1
    (array([[0.5]]), array([2.]), array([1.]))
    """
    x_hat, inv_std = _standardize_with(x, running_mean, running_var, eps)
    check_parameters(x, CHANNEL, gamma=gamma)
    check_float_array("dl_dy", dl_dy)
    check_same_kind("dl_dy", dl_dy, "y", x)
    check_same_shape("dl_dy", dl_dy, "y", x)
    g = accumulation_dtype(dl_dy)
    dl_dx = affine(g, gamma, None, CHANNEL) * inv_std
    return affine_gradients(dl_dy, dl_dx, x_hat, CHANNEL)


class ScaleAndShift(NamedTuple):
    """Batch norm with given statistics, as y = scale * x + shift; shape (C,) each."""

    scale: Array
    shift: Array


class LinearMap(NamedTuple):
    """Weights and bias of a linear layer, in the shapes of ``torch.nn``."""

    w: Array
    b: Array


def scale_and_shift(
    running_mean: Array,
    running_var: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
) -> ScaleAndShift:
    r"""Give the two numbers of each channel that batch norm is in inference.

    .. math::

        y = k x + c, \qquad k = \frac{\gamma}{\sqrt{v + \epsilon}}, \qquad
        c = \beta - k m

    Parameters
    ----------
    running_mean, running_var : arrays of floats, shape (C,)
        m and v; ``running_var`` is a variance, not a deviation.
    gamma, beta : arrays, shape (C,), optional
        ``None`` stands for 1 and 0.
    eps : float
        Unit of x squared.

    Returns
    -------
    ScaleAndShift
        In the dtype of ``running_mean``, half precision as float32.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, or eps is negative.

    Notes
    -----
    Source: Ioffe and Szegedy (2015), Algorithm 2, step 11; book, chapter *Folding*.

    Examples
    --------
    >>> import numpy as np
    >>> mean, var = np.array([3.0]), np.array([4.0])
    >>> gamma, beta = np.array([6.0]), np.array([1.0])
    >>> scale_and_shift(mean, var, gamma, beta, eps=0.0)  # 6 / 2 and 1 - 3 * 3
    ScaleAndShift(scale=array([3.]), shift=array([-8.]))
    """
    eps = check_eps(eps)
    check_float_array("running_mean", running_mean)
    if running_mean.ndim != 1:
        raise ValueError(
            f"running_mean must have shape (C,), got {tuple(running_mean.shape)}; "
            "pass one value per channel."
        )
    given = {"running_var": running_var, "gamma": gamma, "beta": beta}
    for name, value in given.items():
        if value is not None or name == "running_var":
            check_float_array(name, value)
            check_same_kind(name, value, "running_mean", running_mean)
            check_same_shape(name, value, "running_mean", running_mean)
    xp = array_namespace(running_mean)
    scale = 1 / xp.sqrt(accumulation_dtype(running_var) + eps)
    if gamma is not None:
        scale = gamma * scale
    shift = -scale * running_mean
    return ScaleAndShift(scale, shift if beta is None else beta + shift)


def fold_into_previous(
    w: Array,
    b: Array | None,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
    *,
    is_transposed: bool = False,
    groups: int = 1,
) -> LinearMap:
    r"""Fold batch norm that *follows* a linear map into the weights of that map.

    .. math::

        W' = k W, \qquad b' = k (b - m) + \beta, \qquad
        k = \frac{\gamma}{\sqrt{v + \epsilon}},

    with k along the output channels. The new map alone is what map and batch norm were
    together in inference, whatever the padding, the stride or the dilation: batch norm
    acts on the finished outputs.

    Parameters
    ----------
    w : array of floats
        (C_out, C_in) of a linear layer, (C_out, C_in / groups, ...) of a convolution,
        (C_in, C_out / groups, ...) of a transposed convolution.
    b : array, shape (C_out,), or None
        ``None`` stands for 0.
    running_mean, running_var, gamma, beta, eps
        As in :func:`scale_and_shift`, with C = C_out.
    is_transposed : bool
        Whether ``w`` belongs to a transposed convolution.
    groups : int
        Groups of the convolution; in a depthwise one as many as channels.

    Returns
    -------
    LinearMap
        In the dtype of ``w``; it has a bias also where there was none.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, or eps is negative.

    Notes
    -----
    Source: Jacob et al. (2018), section 3.2; book, chapter *Folding*.

    Examples
    --------
    >>> import numpy as np
    >>> w, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([5.0, 6.0])
    >>> mean, var = np.array([3.0, 2.0]), np.array([4.0, 1.0])
    >>> gamma, beta = np.array([6.0, 1.0]), np.array([1.0, 0.0])
    >>> folded = fold_into_previous(w, b, mean, var, gamma, beta, eps=0.0)  # k: 3, 1
    >>> folded.w
    array([[3., 6.],
           [3., 4.]])
    >>> folded.b  # 3 * (5 - 3) + 1 and 6 - 2
    array([7., 4.])
    """
    channels = _check_map(w, b, groups, is_transposed)
    scale, shift = scale_and_shift(running_mean, running_var, gamma, beta, eps)
    _check_channels(w, running_mean, channels, "output")
    if is_transposed:
        new_w = _across_rows(scale, w, groups) * w
    else:
        new_w = along(scale, (0,), w.ndim) * w
    return _rounded(w, new_w, shift if b is None else scale * b + shift)


def fold_into_next(
    w: Array,
    b: Array | None,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
    *,
    is_transposed: bool = False,
    groups: int = 1,
) -> LinearMap:
    r"""Fold batch norm that *precedes* a linear map into the weights of that map.

    .. math::

        W' = W k, \qquad b' = b + W (\beta - k m), \qquad
        k = \frac{\gamma}{\sqrt{v + \epsilon}},

    with k along the input channels, and in :math:`b'` a sum over all inputs of an
    output, those under the kernel included. A convolution that pads with zeros has
    fewer inputs at the border: there the result is wrong. Reflected, replicated and
    circular padding do no harm. The outputs of a transposed convolution meet all
    weights only if its stride is 1 and, along each axis, its padding less its output
    padding is at least dilation (kernel - 1); else the result is wrong.

    Parameters
    ----------
    w : array of floats
        (C_out, C_in) of a linear layer, (C_out, C_in / groups, ...) of a convolution,
        (C_in, C_out / groups, ...) of a transposed convolution.
    b : array, shape (C_out,), or None
        ``None`` stands for 0.
    running_mean, running_var, gamma, beta, eps
        As in :func:`scale_and_shift`, with C = C_in.
    is_transposed : bool
        Whether ``w`` belongs to a transposed convolution.
    groups : int
        Groups of the convolution.

    Returns
    -------
    LinearMap
        In the dtype of ``w``; it has a bias also where there was none.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, or eps is negative.

    Notes
    -----
    Source: book, chapter *Folding*.

    Examples
    --------
    >>> import numpy as np
    >>> w, b = np.array([[1.0, 2.0]]), np.array([5.0])
    >>> mean, var = np.array([3.0, 2.0]), np.array([4.0, 1.0])
    >>> gamma, beta = np.array([6.0, 1.0]), np.array([1.0, 0.0])
    >>> fold_into_next(w, b, mean, var, gamma, beta, eps=0.0)  # k: 3, 1; c: -8, -2
    LinearMap(w=array([[3., 2.]]), b=array([-7.]))
    """
    _check_map(w, b, groups, is_transposed)
    scale, shift = scale_and_shift(running_mean, running_var, gamma, beta, eps)
    channels = w.shape[0] if is_transposed else w.shape[1] * groups
    _check_channels(w, running_mean, channels, "input")
    xp = array_namespace(w)
    if is_transposed:
        new_w = along(scale, (0,), w.ndim) * w
        shifts = along(shift, (0,), w.ndim) * w
        shifts = xp.reshape(shifts, (groups, w.shape[0] // groups, w.shape[1], -1))
        new_b = xp.reshape(xp.sum(shifts, axis=(1, 3)), (-1,))
    else:
        new_w = _across_rows(scale, w, groups) * w
        shifts = _across_rows(shift, w, groups) * w
        new_b = xp.sum(shifts, axis=tuple(range(1, w.ndim)))
    return _rounded(w, new_w, new_b if b is None else b + new_b)


def _across_rows(value: Array, w: Array, groups: int) -> Array:
    """Lay one value per channel along axis 1 of w: each group of rows has its own."""
    xp = array_namespace(value, w)
    rows, columns = w.shape[0], w.shape[1]
    parts = xp.reshape(value, (groups, 1, columns))
    parts = xp.broadcast_to(parts, (groups, rows // groups, columns))
    return along(xp.reshape(parts, (rows, columns)), (0, 1), w.ndim)


def _rounded(w: Array, new_w: Array, new_b: Array) -> LinearMap:
    xp = array_namespace(w)
    return LinearMap(
        xp.astype(new_w, w.dtype, copy=False), xp.astype(new_b, w.dtype, copy=False)
    )


def _check_map(
    w: Array, b: Array | None, groups: int, is_transposed: bool = False
) -> int:
    """Refuse what is no linear map; count its output channels."""
    check_float_array("w", w)
    if w.ndim < 2:
        raise ValueError(
            "w must have shape (C_out, C_in) or that of a kernel, (C_out, C_in, ...), "
            f"got {tuple(w.shape)}; add the missing axis."
        )
    if groups < 1 or w.shape[0] % groups:
        raise ValueError(
            f"groups must divide the length of axis 0 of w, {w.shape[0]}, got "
            f"{groups}; pass the groups of the convolution."
        )
    channels = int(w.shape[1] * groups if is_transposed else w.shape[0])
    if b is not None:
        check_float_array("b", b)
        check_same_kind("b", b, "w", w)
        if tuple(b.shape) != (channels,):
            raise ValueError(
                f"b must have shape (C_out,) = ({channels},), got {tuple(b.shape)}; "
                "pass one value per output channel."
            )
    return channels


def _check_channels(w: Array, running_mean: Array, channels: int, side: str) -> None:
    check_same_kind("running_mean", running_mean, "w", w)
    if tuple(running_mean.shape) != (channels,):
        raise ValueError(
            f"running_mean must have one value for each {side} channel of w, shape "
            f"({channels},) for w of shape {tuple(w.shape)}, got "
            f"{tuple(running_mean.shape)}; take the batch norm that belongs to it."
        )


def _standardize_with(
    x: Array, mean: Array, var: Array, eps: float
) -> tuple[Array, Array]:
    batch_axes(x)
    eps = check_eps(eps)
    # A gain may be None, a statistic may not.
    check_float_array("running_mean", mean)
    check_float_array("running_var", var)
    check_parameters(x, CHANNEL, running_mean=mean, running_var=var)
    xp = array_namespace(x)
    mean, var = (along(value, CHANNEL, x.ndim) for value in (mean, var))
    # In half precision eps would be lost beside the variance.
    inv_std = 1 / xp.sqrt(accumulation_dtype(var) + eps)
    return (accumulation_dtype(x) - mean) * inv_std, inv_std
