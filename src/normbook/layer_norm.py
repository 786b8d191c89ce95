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

import math
from numbers import Real
from typing import Literal, get_args

from normbook.arrays import Array, Axes, as_dtype, as_float32, check_float_array
from normbook.normalize import (
    METHODS,
    NormalizeCache,
    affine,
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
# Where half precision is rounded: after the gain, or before it and once more after it.
Rounds = Literal["after", "before"]


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


def check_rms_options(offset: float, rounds: Rounds) -> tuple[float, Rounds]:
    """Refuse what :func:`rms_norm_forward` cannot take; return both."""
    if not (isinstance(offset, Real) and math.isfinite(offset)):
        raise ValueError(
            f"offset must be a finite number, got {offset!r}; it is added to gamma: 0, "
            "or 1 where the gain is stored less 1."
        )
    if rounds not in get_args(Rounds):
        raise ValueError(
            f"rounds must be 'after' or 'before', got {rounds!r}; torch rounds after "
            "the gain."
        )
    return float(offset), rounds


def rms_norm_forward(
    x: Array,
    gamma: Array | None = None,
    eps: float = 1e-5,
    *,
    axes: Axes = LAST,
    offset: float = 0.0,
    rounds: Rounds = "after",
) -> tuple[Array, NormalizeCache]:
    r"""Divide each example by its root mean square, and keep that.

    .. math:: y = (\gamma + \text{offset})\,\frac{x}{\sqrt{\overline{x^2} + \epsilon}},
        \qquad \overline{x^2} = \frac1D \sum_i x_i^2

    Layer norm without the mean; usually without the bias too, so there is none. In the
    cache ``mu`` is None and ``var`` the mean square; in the gradients ``dl_dbeta`` is
    that of a bias which would be added to y. Source: Zhang and Sennrich (2019), "Root
    mean square layer normalization", equation 4, there without eps; book, chapter *The
    gradient of layer normalization*.

    Parameters
    ----------
    offset : float
        What is added to ``gamma``, in float32 where gamma has half precision: 1 in the
        models that store the gain less 1.
    rounds : {"after", "before"}
        Where x of half precision is rounded: once, after the gain; or before it and
        again after it, as the product of x_hat and gamma has it. With a gamma of
        float32 the second gives float32; an offset does not change the dtype.

    Examples
    --------
    >>> y, cache = rms_norm_forward(np.array([[1.0, 7.0]]), eps=0.0)
    >>> y, cache.var  # the mean of 1 and 49 is 25
    (array([[0.2, 1.4]]), array([[25.]]))

    The same weights, in two orders:

    >>> x, gamma = np.array([[1.0, 7.0], [1.0, 1.3]], dtype=np.float16)
    >>> rms_norm_forward(x, gamma, rounds="after")[0]
    array([0.2  , 1.819], dtype=float16)
    >>> rms_norm_forward(x, gamma, rounds="before")[0]
    array([0.2 , 1.82], dtype=float16)
    """
    offset, rounds = check_rms_options(offset, rounds)
    stored = gamma
    if gamma is not None and offset:
        check_float_array("gamma", gamma)
        gamma = as_float32(gamma) + offset
    is_centred = METHODS["RMSNorm"].is_centred
    y, cache = normalize_forward(
        x, gamma, axes=axes, parameter_axes=axes, eps=eps, is_centred=is_centred
    )
    if rounds == "before":
        y = affine(as_dtype(cache.x_hat, x.dtype), gamma, None, cache.parameter_axes)
        if stored is not None and stored.dtype == x.dtype:
            y = as_dtype(y, x.dtype)  # 1 + w is float32
    return y, cache


rms_norm = without_cache(rms_norm_forward)
layer_norm_backward = normalize_backward
rms_norm_backward = normalize_backward
