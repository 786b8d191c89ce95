r"""Layer normalization and RMSNorm: each example by its own statistics.

The mean and the variance are taken over the features of one example, so no example
acts on another, there is nothing to average over batches, and training and inference
are one function. Gain and bias still have one value for each feature.

RMSNorm leaves the mean alone: it divides by the root mean square.
"""

from __future__ import annotations

from normbook.normalize import (
    NormalizeCache,
    NormalizeGradients,
    normalize_backward,
    normalize_forward,
)
from normbook.standardize import Array, Axes

__all__ = [
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_forward",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
]


def layer_norm_forward(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
    *,
    axes: Axes = -1,
) -> tuple[Array, NormalizeCache]:
    r"""Normalize each example by its own mean and variance, and keep them.

    .. math::

        y = \gamma\,\hat x + \beta, \qquad
        \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}, \qquad
        \mu = \frac1D \sum_i x_i, \qquad \sigma^2 = \frac1D \sum_i (x_i - \mu)^2

    Parameters
    ----------
    x : array of floats, shape (..., D)
    gamma, beta : arrays, shape (D,), optional
        Gain and bias of each feature; ``None`` stands for 1 and 0. With several axes
        they have the shape of ``x`` along these.
    eps : float
        Added to the variance, inside the root; unit of x squared.
    axes : int or tuple of int
        The axes of the features: the last one, or ``(1, 2, 3)`` on ``(N, C, H, W)``
        for the whole image, or ``1`` there for the channels of each pixel.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.
    cache : NormalizeCache
        Its ``mu`` and ``var`` (biased) have shape ``(..., 1)``.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, an example has no feature, or eps is negative.

    Notes
    -----
    With a single feature the result is ``beta``; with two, and eps = 0, it is
    :math:`\pm\gamma + \beta` whatever the values.

    Source: Ba, Kiros and Hinton (2016), equations 3 and 4; book, chapter *Layer
    normalization*.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 3.0], [10.0, 50.0]])
    >>> y, cache = layer_norm_forward(x, gamma=np.array([1.0, 5.0]), eps=0.0)
    >>> y
    array([[-1.,  5.],
           [-1.,  5.]])
    >>> cache.mu, cache.var
    (array([[ 2.],
           [30.]]), array([[  1.],
           [400.]]))
    """
    return normalize_forward(x, gamma, beta, axes=axes, parameter_axes=axes, eps=eps)


def layer_norm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
    *,
    axes: Axes = -1,
) -> Array:
    r"""Normalize each example by its own mean and variance.

    .. math:: y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta

    Parameters, errors and source are those of :func:`layer_norm_forward`.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> layer_norm(np.array([[1.0, 5.0], [7.0, 6.0]]), eps=0.0)
    array([[-1.,  1.],
           [ 1., -1.]])
    """
    return layer_norm_forward(x, gamma, beta, eps, axes=axes)[0]


def layer_norm_backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    r"""Gradients through layer norm, statistics included, in closed form.

    With :math:`g = \gamma\,\partial\ell/\partial y` and means over the features of
    one example,

    .. math::

        \frac{\partial\ell}{\partial x} = \frac1{\sqrt{\sigma^2+\epsilon}}
        \Big(g - \bar g - \hat x\,\overline{g\hat x}\Big), \qquad
        \frac{\partial\ell}{\partial\gamma} = \sum_n \frac{\partial\ell}{\partial y_n}
        \,\hat x_n, \qquad
        \frac{\partial\ell}{\partial\beta} = \sum_n \frac{\partial\ell}{\partial y_n},

    the sums over all examples: each gain acts on its feature in every one of them.

    Parameters
    ----------
    dl_dy : array
        Shape of ``y``.
    cache : NormalizeCache
        From :func:`layer_norm_forward`.

    Returns
    -------
    NormalizeGradients
        ``dl_dx`` in the shape of x; ``dl_dgamma`` and ``dl_dbeta`` of shape (D,),
        also where gamma and beta were left out.

    Raises
    ------
    TypeError
        If ``dl_dy`` is no float array of the kind of ``y``.
    ValueError
        If ``dl_dy`` has another shape than ``y``.

    Notes
    -----
    Source: derived in the book, chapter *The gradient of layer normalization*.

    Examples
    --------
    Two features and ``eps=0``: nothing reaches x, but the gains do learn.

    >>> import numpy as np
    >>> _, cache = layer_norm_forward(np.array([[1.0, 5.0]]), eps=0.0)
    >>> dl_dx, dl_dgamma, dl_dbeta = layer_norm_backward(
    ...     np.array([[0.25, -0.5]]), cache
    ... )
    >>> dl_dx, dl_dgamma, dl_dbeta
    (array([[0., 0.]]), array([-0.25, -0.5 ]), array([ 0.25, -0.5 ]))
    """
    return normalize_backward(dl_dy, cache)


def rms_norm_forward(
    x: Array, gamma: Array | None = None, eps: float = 1e-5, *, axes: Axes = -1
) -> tuple[Array, NormalizeCache]:
    r"""Divide each example by its root mean square, and keep that.

    .. math::

        y = \gamma\,\hat x, \qquad
        \hat x = \frac{x}{\sqrt{\overline{x^2} + \epsilon}}, \qquad
        \overline{x^2} = \frac1D \sum_i x_i^2

    Layer norm without the mean; usually without the bias too, so there is none.

    Parameters
    ----------
    x : array of floats, shape (..., D)
    gamma : array, shape (D,), optional
        Gain of each feature; ``None`` stands for 1.
    eps : float
        Added to the mean square, inside the root; unit of x squared.
    axes : int or tuple of int
        The axes of the features, as in :func:`layer_norm_forward`.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.
    cache : NormalizeCache
        Its ``mu`` is None and its ``var`` the mean square, shape ``(..., 1)``.

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers.
    ValueError
        If a shape does not fit, an example has no feature, or eps is negative.

    Notes
    -----
    Source: Zhang and Sennrich (2019), "Root mean square layer normalization",
    equation 4, there without eps; book, chapter *The gradient of layer
    normalization*.

    Examples
    --------
    >>> import numpy as np
    >>> y, cache = rms_norm_forward(np.array([[1.0, 7.0]]), eps=0.0)
    >>> y, cache.var  # the mean of 1 and 49 is 25
    (array([[0.2, 1.4]]), array([[25.]]))
    """
    return normalize_forward(
        x, gamma, axes=axes, parameter_axes=axes, eps=eps, is_centred=False
    )


def rms_norm(
    x: Array, gamma: Array | None = None, eps: float = 1e-5, *, axes: Axes = -1
) -> Array:
    r"""Divide each example by its root mean square.

    .. math:: y = \gamma\,x / \sqrt{\overline{x^2} + \epsilon}

    Parameters, errors and source are those of :func:`rms_norm_forward`.

    Returns
    -------
    y : array
        Shape and dtype of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.array([1.0, 7.0]), eps=0.0)
    array([0.2, 1.4])
    """
    return rms_norm_forward(x, gamma, eps, axes=axes)[0]


def rms_norm_backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    r"""Gradients through RMSNorm: those of layer norm with one term less.

    With :math:`g = \gamma\,\partial\ell/\partial y`,

    .. math::

        \frac{\partial\ell}{\partial x} = \frac1{\sqrt{\overline{x^2}+\epsilon}}
        \Big(g - \hat x\,\overline{g\hat x}\Big) .

    Parameters
    ----------
    dl_dy : array
        Shape of ``y``.
    cache : NormalizeCache
        From :func:`rms_norm_forward`.

    Returns
    -------
    NormalizeGradients
        As :func:`layer_norm_backward`; ``dl_dbeta`` is that of a bias which would be
        added to y.

    Raises
    ------
    TypeError, ValueError
        As :func:`layer_norm_backward`.

    Examples
    --------
    What arrives loses its part along x, and keeps its mean:

    >>> import numpy as np
    >>> _, cache = rms_norm_forward(np.array([[1.0, 7.0]]), eps=0.0)
    >>> rms_norm_backward(np.array([[7.0, -1.0]]), cache).dl_dx
    array([[ 1.4, -0.2]])
    """
    return normalize_backward(dl_dy, cache)
