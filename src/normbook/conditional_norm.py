r"""Conditional normalization: gain and bias of each example, made from a condition.

Conditional batch and instance norm, FiLM behind a norm, SPADE, adaptive layer norm and
adaptive RMSNorm are one function,

.. math:: y = (1 + s)\,\hat x + b,

with scale s and shift b that something else computes: from a class, a text, a time, a
map of labels. They differ in what shares statistics (the ``method``) and in what shares
s and b (their shape). So it is :func:`normbook.normalize.normalize_forward` with gain
1 + s, and ``parameter_axes`` among which are those of the examples. AdaIN takes gain
and bias from the statistics of another image.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normbook.arrays import (
    Array,
    as_dtype,
    as_float32,
    check_float_array,
    check_same_kind,
)
from normbook.group_norm import instance_norm_forward
from normbook.normalize import (
    NormalizeCache,
    broadcast_along,
    checked_forward,
    layout,
    normalize_backward,
    without_cache,
)

__all__ = [
    "CONDITIONAL",
    "AdainCache",
    "AdainGradients",
    "ConditionalGradients",
    "adain",
    "adain_backward",
    "adain_forward",
    "conditional_norm",
    "conditional_norm_backward",
    "conditional_norm_forward",
]

#: The methods that a condition can modulate here, by their names in ``METHODS``.
CONDITIONAL = ("batch norm", "instance norm", "layer norm", "RMSNorm")


class ConditionalGradients(NamedTuple):
    """Gradients of the loss, in the shapes of x, scale and shift."""

    dl_dx: Array
    dl_dscale: Array
    dl_dshift: Array


class AdainCache(NamedTuple):
    """What the backward pass needs of the content, x, and of the style."""

    content: NormalizeCache
    style: NormalizeCache


class AdainGradients(NamedTuple):
    """Gradients of the loss, in the shapes of x and of the style."""

    dl_dx: Array
    dl_dstyle: Array


def conditional_norm_forward(
    x: Array,
    scale: Array | None = None,
    shift: Array | None = None,
    eps: float = 1e-5,
    *,
    method: str = "layer norm",
) -> tuple[Array, NormalizeCache]:
    r"""Normalize, then scale and shift each example by values of its own.

    .. math:: y_{n\cdot f} = (1 + s_{nf})\,\hat x_{n\cdot f} + b_{nf}

    Parameters
    ----------
    scale, shift : arrays, optional
        Of shape (N, F), F the length of axis 1 in batch and instance norm and of the
        last axis in layer norm and RMSNorm; spread over all other axes. Or of the shape
        of x, as in SPADE: every place has its own. ``None`` stands for 0.
    method : {"batch norm", "instance norm", "layer norm", "RMSNorm"}
        What shares mean and variance; of a batch, always those of this batch.

    Raises
    ------
    TypeError, ValueError
        As in :func:`normbook.normalize.normalize_forward`; if the method is another.

    Notes
    -----
    In the cache ``gamma`` is 1 + s, float32 where s is of half precision. Source: de
    Vries et al. (2017) (batch norm); Dumoulin, Shlens and Kudlur (2017) (instance
    norm); Park et al. (2019), SPADE (maps); Peebles and Xie (2023) (layer norm). The
    sum with 1 is that of the code of the last two.

    Examples
    --------
    >>> x = np.array([[1.0, 3.0], [1.0, 3.0]])
    >>> scale = np.array([[0.0, 1.0], [2.0, 0.0]])
    >>> conditional_norm_forward(x, scale, eps=0.0)[0]  # one row, two conditions
    array([[-1.,  2.],
           [-3.,  1.]])
    """
    axes = _layout(method, x, scale=scale, shift=shift)
    gain = None if scale is None else as_float32(scale) + 1
    return checked_forward(x, gain, shift, eps, **axes)


conditional_norm = without_cache(conditional_norm_forward)


def conditional_norm_backward(
    dl_dy: Array, cache: NormalizeCache
) -> ConditionalGradients:
    r"""Differentiate through a conditional norm, statistics included.

    With :math:`g = (1 + s)\,\partial\ell/\partial y` the gradient in x is that of
    :func:`normbook.normalize.normalize_backward`, and

    .. math::

        \frac{\partial\ell}{\partial s} = \sum \frac{\partial\ell}{\partial y}\,\hat x,
        \qquad
        \frac{\partial\ell}{\partial b} = \sum \frac{\partial\ell}{\partial y},

    the sums over the places that share a value of s and b, never over the examples.

    Examples
    --------
    >>> x, zero = np.array([[1.0, 3.0], [1.0, 3.0]]), np.zeros((2, 2))
    >>> _, cache = conditional_norm_forward(x, zero, eps=0.0)
    >>> conditional_norm_backward(np.array([[5.0, 7.0], [0.0, 1.0]]), cache).dl_dscale
    array([[-5.,  7.],
           [-0.,  1.]])
    """
    return ConditionalGradients(*normalize_backward(dl_dy, cache))


def adain_forward(
    x: Array, style: Array, eps: float = 1e-5
) -> tuple[Array, AdainCache]:
    r"""Give each channel of x the mean and the deviation that the style has there.

    .. math:: y_{nc\cdot} = \sigma(z_{nc})\,\hat x_{nc\cdot} + \mu(z_{nc}), \qquad
        \sigma(z) = \sqrt{\operatorname{Var} z + \epsilon}

    for x of shape (N, C, ...) and a style z of shape (N, C, ...), of any number of
    places. With eps in both roots the style of x itself gives x back. Source: Huang and
    Belongie (2017).

    Examples
    --------
    >>> x, style = np.array([[[1.0, 3.0]]]), np.array([[[10.0, 20.0, 30.0, 40.0]]])
    >>> y, _ = adain_forward(x, style, eps=0.0)
    >>> y.mean().round(9), y.var().round(9), style.var()
    (np.float64(25.0), np.float64(125.0), np.float64(125.0))
    """
    axes = layout("instance norm", x)
    layout("instance norm", style, "style")
    check_same_kind("style", style, "x", x)
    if style.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"style must have the examples and channels of x, {tuple(x.shape[:2])}, "
            f"got shape {tuple(style.shape)}; pass one style for each example."
        )
    _, of_style = instance_norm_forward(style, eps=eps)
    own = tuple(x.shape[:2])
    std, mean = (1 / of_style.inv_std).reshape(own), of_style.mu.reshape(own)
    y, content = checked_forward(x, std, mean, eps, **axes | {"parameter_axes": (0, 1)})
    return y, AdainCache(content, of_style)


adain = without_cache(adain_forward)


def adain_backward(dl_dy: Array, cache: AdainCache) -> AdainGradients:
    r"""Differentiate through AdaIN, to the content and to the style.

    With :math:`\hat z` the normalized style, of n places,

    .. math:: \frac{\partial\ell}{\partial z} = \frac1n \Big(
        \frac{\partial\ell}{\partial\sigma}\,\hat z + \frac{\partial\ell}{\partial\mu}
        \Big),

    since :math:`\partial\sigma/\partial z = \hat z/n` for every eps. In x it is the
    gradient of instance norm with gain :math:`\sigma(z)`.

    Examples
    --------
    >>> x, style = np.array([[[1.0, 3.0]]]), np.array([[[10.0, 30.0]]])
    >>> _, cache = adain_forward(x, style, eps=0.0)
    >>> adain_backward(np.array([[[1.0, 2.0]]]), cache).dl_dstyle
    array([[[1., 2.]]])
    """
    dl_dx, dl_dstd, dl_dmean = normalize_backward(dl_dy, cache.content)
    z_hat = cache.style.x_hat
    n = math.prod(z_hat.shape[2:])
    dl_dstd, dl_dmean = (
        broadcast_along(value, (0, 1), z_hat.ndim) for value in (dl_dstd, dl_dmean)
    )
    dl_dstyle = (dl_dstd * z_hat + dl_dmean) / n
    return AdainGradients(dl_dx, as_dtype(dl_dstyle, dl_dy.dtype))


def _layout(method: str, x: Array, **values: Array | None) -> dict[str, object]:
    """Return the axes of a method, those of scale and shift by their shape."""
    if method not in CONDITIONAL:
        raise ValueError(
            f"method must be one of {', '.join(CONDITIONAL)}, got {method!r}; scale "
            "and shift by hand what another one gives."
        )
    axes = layout(method, x)
    if x.ndim < 2:
        raise ValueError(
            f"x must have an axis of examples and one of features, got {tuple(x.shape)}"
            "; add the missing axis, e.g. x[None]."
        )
    own, every = (0, *axes["parameter_axes"]), tuple(range(x.ndim))
    short, full = tuple(x.shape[axis] for axis in own), tuple(x.shape)
    shapes = []
    for name, value in values.items():
        if value is None:
            continue
        check_float_array(name, value)
        check_same_kind(name, value, "x", x)
        shapes.append(tuple(value.shape))
        if shapes[-1] not in (short, full) or shapes[-1] != shapes[0]:
            raise ValueError(
                f"{name} must have shape {short}, or that of x, {full}, and scale and "
                f"shift the same, got {shapes[-1]}; pass one row for each example."
            )
    is_full = bool(shapes) and shapes[0] == full
    return axes | {"parameter_axes": every if is_full else own}
