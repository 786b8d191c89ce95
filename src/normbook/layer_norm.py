r"""Layer normalization and RMSNorm: each example by its own statistics.

Mean and variance are taken over the features of one example, so no example acts on
another, and training and inference are one function. Gain and bias still have one value
for each feature. ``axes`` are those of the features: the last one of (..., D), or
``(1, 2, 3)`` on (N, C, H, W) for the whole image, or ``1`` there for the channels of
each pixel. With several axes gamma and beta have the shape of ``x`` along these. What
all methods share is told in :func:`normbook.normalize.normalize_forward`. Book,
chapters *Layer normalization* and *The gradient of layer normalization*.
"""

from __future__ import annotations

from normbook.arrays import Array, Axes
from normbook.normalize import (
    METHODS,
    NormalizeCache,
    normalize_backward,
    normalize_forward,
    without_cache,
)

__all__ = [
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_forward",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
]

LAST = METHODS["layer norm"].axes


def layer_norm_forward(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
    *,
    axes: Axes = LAST,
) -> tuple[Array, NormalizeCache]:
    r"""Normalize each example by its own mean and variance, and keep them.

    With a single feature the result is ``beta``; with two, and eps = 0, it is
    :math:`\pm\gamma + \beta` whatever the values.

    Source: Ba, Kiros and Hinton (2016), equations 3 and 4.

    Examples
    --------
    >>> x, gamma = np.array([[1.0, 3.0], [10.0, 50.0]]), np.array([1.0, 5.0])
    >>> layer_norm_forward(x, gamma, eps=0.0)[0]
    array([[-1.,  5.],
           [-1.,  5.]])
    """
    return normalize_forward(x, gamma, beta, axes=axes, parameter_axes=axes, eps=eps)


layer_norm = without_cache(layer_norm_forward)


def rms_norm_forward(
    x: Array, gamma: Array | None = None, eps: float = 1e-5, *, axes: Axes = LAST
) -> tuple[Array, NormalizeCache]:
    r"""Divide each example by its root mean square, and keep that.

    .. math:: y = \gamma\,\frac{x}{\sqrt{\overline{x^2} + \epsilon}}, \qquad
        \overline{x^2} = \frac1D \sum_i x_i^2

    Layer norm without the mean; usually without the bias too, so there is none. In the
    cache ``mu`` is None and ``var`` the mean square; in the gradients ``dl_dbeta`` is
    that of a bias which would be added to y. Source: Zhang and Sennrich (2019), "Root
    mean square layer normalization", equation 4, there without eps.

    Examples
    --------
    >>> y, cache = rms_norm_forward(np.array([[1.0, 7.0]]), eps=0.0)
    >>> y, cache.var  # the mean of 1 and 49 is 25
    (array([[0.2, 1.4]]), array([[25.]]))
    """
    is_centred = METHODS["RMSNorm"].is_centred
    return normalize_forward(
        x, gamma, axes=axes, parameter_axes=axes, eps=eps, is_centred=is_centred
    )


rms_norm = without_cache(rms_norm_forward)
layer_norm_backward = normalize_backward
rms_norm_backward = normalize_backward
