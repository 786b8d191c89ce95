r"""Weight normalization and weight standardization: the weights, not the activations.

Both treat each row of a weight array, the weights of one output, by its own statistics:
the axes of one group are all but axis 0, of (D_out, D_in) or (C_out, C_in, ...). Weight
norm is RMSNorm of the rows, with eps = 0 and a gain for each; weight standardization is
layer norm of the rows, without gain and bias. Neither needs statistics of a batch. What
all methods share is told in :func:`normbook.normalize.normalize_forward`. Book, chapter
*Choosing the axes*.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normbook.arrays import Array, as_float32, check_parameters
from normbook.normalize import (
    NormalizeCache,
    checked_forward,
    layout,
    normalize_backward,
    without_cache,
)


class WeightNormGradients(NamedTuple):
    """Gradients of the loss, in the shapes of v and g."""

    dl_dv: Array
    dl_dg: Array


def row_axes(weights: Array) -> tuple[int, ...]:
    """Return the axes of the weights of one output: all but axis 0."""
    axes: tuple[int, ...] = layout("weight norm", weights, "weights")["axes"]
    return axes


def gain_of_rows(v: Array, g: Array) -> Array:
    r"""Return :math:`g/\sqrt n`: the gain of rows of root mean square 1."""
    n = math.prod([v.shape[axis] for axis in row_axes(v)])
    check_parameters(v, (0,), g=g)
    return as_float32(g) / math.sqrt(max(n, 1))


def weight_norm_forward(v: Array, g: Array) -> tuple[Array, NormalizeCache]:
    r"""Scale each row of v to the length g, and keep what the backward pass needs.

    .. math:: w_i = g_i \, \frac{v_i}{\lVert v_i \rVert}

    In the cache ``x_hat`` is v with rows of root mean square 1, and ``gamma`` is
    :func:`gain_of_rows`. A row of zeros has no direction and gives NaN, as in torch.

    Source: Salimans and Kingma (2016), "Weight normalization", equation 2.

    Examples
    --------
    >>> weight_norm_forward(np.array([[3.0, 4.0]]), np.array([10.0]))[0]
    array([[6., 8.]])
    """
    axes = layout("weight norm", v, "weights")
    return checked_forward(v, gain_of_rows(v, g), None, 0.0, **axes)


weight_norm = without_cache(weight_norm_forward)


def weight_norm_backward(dl_dw: Array, cache: NormalizeCache) -> WeightNormGradients:
    r"""Gradients through weight norm, in closed form.

    .. math::

        \frac{\partial\ell}{\partial g_i} = \frac{\partial\ell}{\partial w_i} \cdot
        \frac{v_i}{\lVert v_i \rVert}, \qquad
        \frac{\partial\ell}{\partial v_i} = \frac{g_i}{\lVert v_i \rVert} \Big(
        \frac{\partial\ell}{\partial w_i} - \frac{\partial\ell}{\partial g_i}
        \frac{v_i}{\lVert v_i \rVert} \Big)

    What reaches v has lost its part along v: a step changes the direction alone.
    Source: Salimans and Kingma (2016), equation 3.

    Examples
    --------
    >>> _, cache = weight_norm_forward(np.array([[3.0, 4.0]]), np.array([10.0]))
    >>> weight_norm_backward(np.array([[5.0, 0.0]]), cache).dl_dv.round(9)
    array([[ 6.4, -4.8]])
    """
    n = math.prod([cache.x_hat.shape[axis] for axis in cache.axes])
    dl_dv, dl_dgain, _ = normalize_backward(dl_dw, cache)
    return WeightNormGradients(dl_dv, dl_dgain / math.sqrt(n))


def weight_standardization_forward(
    w: Array, eps: float = 1e-10
) -> tuple[Array, NormalizeCache]:
    r"""Standardize each row of w, and keep what the backward pass needs.

    Summaries of the paper differ on eps: inside the root, as here, or added to the
    deviation. The code of its authors divides by the *unbiased* deviation plus 1e-5:
    its weights are smaller by :math:`\sqrt{(n-1)/n}` with n weights in a row, which a
    normalization behind the layer undoes. The usual eps here is the square of that
    1e-5, because weights are small: 1e-5 beside their variance would count.

    Source: Qiao et al. (2019), "Micro-batch training with batch-channel normalization
    and weight standardization", and the repository
    joe-siyuan-qiao/WeightStandardization.

    Examples
    --------
    >>> weight_standardization_forward(np.array([[1.0, 3.0], [10.0, 50.0]]), eps=0.0)[0]
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    axes = layout("weight standardization", w, "weights")
    return checked_forward(w, None, None, eps, **axes)


weight_standardization = without_cache(weight_standardization_forward)


def weight_standardization_backward(dl_dw_hat: Array, cache: NormalizeCache) -> Array:
    """Return the ``dl_dx`` of :func:`normbook.normalize.normalize_backward`."""
    return normalize_backward(dl_dw_hat, cache).dl_dx
