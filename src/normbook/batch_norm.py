r"""Batch normalization: forward, backward and inference.

The choice of axes that takes the statistics over the batch and, of images, over all
places: over N of (N, D), over N, H and W of (N, C, H, W). Gain, bias and running
statistics have one value for each channel, axis 1: shape (D,) or (C,). What all methods
share is told in :func:`normbook.normalize.normalize_forward`.

Source: Ioffe and Szegedy (2015), Algorithms 1 and 2; book, chapter *Batch
normalization*.
"""

from __future__ import annotations

from normbook.arrays import (
    Array,
    as_dtype,
    as_float32,
    check_eps,
    check_float_array,
    check_like,
    check_parameters,
)
from normbook.normalize import (
    METHODS,
    NormalizeCache,
    NormalizeGradients,
    affine,
    affine_gradients,
    broadcast_along,
    checked_forward,
    layout,
    normalize_backward,
    without_cache,
)

__all__ = [
    "batch_axes",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_forward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
]

CHANNEL = METHODS["batch norm"].parameter_axes


def batch_axes(x: Array) -> tuple[int, ...]:
    """Return the axes over which batch norm averages: all but axis 1."""
    axes: tuple[int, ...] = layout("batch norm", x)["axes"]
    return axes


def batch_norm_forward(
    x: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5
) -> tuple[Array, NormalizeCache]:
    """Normalize with the statistics of this batch, and keep them.

    Examples
    --------
    >>> x, gamma = np.array([[1.0, 10.0], [3.0, 50.0]]), np.array([2.0, 5.0])
    >>> batch_norm_forward(x, gamma, eps=0.0)[0]
    array([[-2., -5.],
           [ 2.,  5.]])
    """
    return checked_forward(x, gamma, beta, eps, **layout("batch norm", x))


batch_norm = without_cache(batch_norm_forward)
batch_norm_backward = normalize_backward


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

    with m and v constants: an affine function of each value on its own, also of an
    empty batch. ``running_var`` is a variance, not a deviation.

    Examples
    --------
    >>> mean, var = np.array([3.0]), np.array([4.0])
    >>> batch_norm_inference(np.array([[7.0]]), mean, var, eps=0.0)
    array([[2.]])
    """
    _check(x, running_mean, running_var, gamma, beta)
    return inference(x, running_mean, running_var, gamma, beta, check_eps(eps))


def batch_norm_inference_backward(
    dl_dy: Array,
    x: Array,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None = None,
    eps: float = 1e-5,
) -> NormalizeGradients:
    r"""Differentiate through batch norm in inference mode: one term, not three.

    .. math:: \frac{\partial\ell}{\partial x_i} =
        \frac{\gamma}{\sqrt{v + \epsilon}} \frac{\partial\ell}{\partial y_i}

    The statistics are constants, so no example acts on another.

    Examples
    --------
    >>> dl_dy, x = np.array([[1.0]]), np.array([[7.0]])
    >>> mean, var = np.array([3.0]), np.array([4.0])
    >>> [*batch_norm_inference_backward(dl_dy, x, mean, var, eps=0.0)]
    [array([[0.5]]), array([2.]), array([1.])]
    """
    _check(x, running_mean, running_var, gamma)
    check_like("dl_dy", dl_dy, "y", x)
    eps = check_eps(eps)
    return inference_backward(dl_dy, x, running_mean, running_var, gamma, eps)


def inference(
    x: Array,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
) -> Array:
    """Normalize, as :func:`batch_norm_inference` does, with nothing checked."""
    x_hat, _ = _standardized(x, running_mean, running_var, eps)
    return as_dtype(affine(x_hat, gamma, beta, CHANNEL), x.dtype)


def inference_backward(
    dl_dy: Array,
    x: Array,
    running_mean: Array,
    running_var: Array,
    gamma: Array | None,
    eps: float,
) -> NormalizeGradients:
    """Differentiate, as :func:`batch_norm_inference_backward`, with nothing checked."""
    x_hat, inv_std = _standardized(x, running_mean, running_var, eps)
    g = as_float32(dl_dy)
    dl_dx = as_dtype(affine(g, gamma, None, CHANNEL) * inv_std, dl_dy.dtype)
    return NormalizeGradients(dl_dx, *affine_gradients(g, x_hat, CHANNEL))


def _standardized(x: Array, mean: Array, var: Array, eps: float) -> tuple[Array, Array]:
    mean, var = (broadcast_along(value, CHANNEL, x.ndim) for value in (mean, var))
    # In half precision eps would be lost beside the variance.
    inv_std = (as_float32(var) + eps) ** -0.5
    return (as_float32(x) - mean) * inv_std, inv_std


def _check(x: Array, mean: Array, var: Array, *parameters: Array | None) -> None:
    batch_axes(x)
    statistics = {"running_mean": mean, "running_var": var}
    for name, value in statistics.items():  # a gain may be None, a statistic may not
        check_float_array(name, value)
    named = zip(("gamma", "beta"), parameters, strict=False)
    check_parameters(x, CHANNEL, **statistics, **dict(named))
