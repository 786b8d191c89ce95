r"""Weight normalization and its kin: the weights, not the activations.

Most treat each row of a weight array, the weights of one output, by its own statistics:
the axes of one group are all but axis 0, of (D_out, D_in) or (C_out, C_in, ...). Weight
norm is RMSNorm of the rows, with eps = 0 and a gain for each; weight standardization is
layer norm of the rows, without gain and bias, and with a gain where it is *scaled*.
Spectral norm divides all rows by one number, the largest singular value. None needs
statistics of a batch. What all methods share is told in
:func:`normbook.normalize.normalize_forward`. Book, chapter *Choosing the axes*.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normbook.arrays import Array, as_float32, check_like, check_parameters
from normbook.normalize import (
    NormalizeCache,
    checked_forward,
    layout,
    normalize_backward,
    without_cache,
)

#: The gain by which ReLU of normal numbers has variance 1 again.
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))


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


def scaled_weight_standardization_forward(
    w: Array, g: Array, eps: float = 1e-10
) -> tuple[Array, NormalizeCache]:
    r"""Give each row of w mean 0 and length g, and keep what the backward pass needs.

    .. math:: \hat w_{ij} = \frac{g_i}{\sqrt n}\, \frac{w_{ij} - \mu_i}{\sigma_i}

    with n weights in a row. Independent inputs of variance 1 then give sums of variance
    :math:`g_i^2`, and their mean, if all have the same, does not come through. Behind
    ReLU the inputs want ``RELU_GAIN`` as g. The code of the authors adds no eps. It
    divides by the root of :math:`n \sigma_i^2`, or of 1e-4 where that is larger.

    Source: Brock, De and Smith (2021), "Characterizing signal propagation to close the
    performance gap in unnormalized ResNets", and ``nfnets/base.py`` of the repository
    google-deepmind/deepmind-research.

    Examples
    --------
    >>> w = np.array([[1.0, 3.0, 1.0, 3.0]])
    >>> scaled_weight_standardization_forward(w, np.array([2.0]), eps=0.0)[0]
    array([[-1.,  1., -1.,  1.]])
    """
    axes = layout("scaled weight standardization", w, "weights")
    return checked_forward(w, gain_of_rows(w, g), None, eps, **axes)


scaled_weight_standardization = without_cache(scaled_weight_standardization_forward)


def scaled_weight_standardization_backward(
    dl_dw_hat: Array, cache: NormalizeCache
) -> WeightNormGradients:
    """Gradients in w and in the lengths g, those of weight norm with centred rows."""
    return weight_norm_backward(dl_dw_hat, cache)


class SpectralNormCache(NamedTuple):
    """What the backward pass needs: the matrix and its first singular vectors."""

    w_hat: Array
    sigma: Array
    u: Array  # (D_out,)
    v: Array  # (n,), for n weights in a row


def power_iteration(w: Array, v: Array, steps: int = 1) -> tuple[Array, Array]:
    r"""Bring v nearer to the first right singular vector of w; return u and v.

    .. math:: u = W v / \lVert W v \rVert, \qquad
        v \leftarrow W^\top u / \lVert W^\top u \rVert

    The part of v along the second singular vector shrinks by
    :math:`(\sigma_2 / \sigma_1)^2` a step, beside that along the first.

    Source: Miyato et al. (2018), "Spectral normalization for generative adversarial
    networks".

    Examples
    --------
    >>> u, v = power_iteration(np.diag([3.0, 1.0]), np.array([0.6, 0.8]), steps=9)
    >>> v.round(6)
    array([1., 0.])
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}; 1 is usual.")
    row_axes(w)
    matrix = w.reshape(w.shape[0], -1)
    check_like("v", v, "a row of w", matrix[0])
    for _ in range(steps):
        u = matrix @ v
        u = u / (u * u).sum() ** 0.5
        v = u @ matrix
        v = v / (v * v).sum() ** 0.5
    return u, v


def spectral_norm_forward(
    w: Array, u: Array, v: Array
) -> tuple[Array, SpectralNormCache]:
    r"""Divide w by its largest singular value, and keep what the backward pass needs.

    .. math:: \hat W = W / \sigma, \qquad \sigma = u^\top W v

    u and v, of :func:`power_iteration`, are taken as fixed. W has a row for each
    output: (D_out, D_in), or (C_out, C_in, ...), flattened.

    Source: Miyato et al. (2018).

    Examples
    --------
    >>> w = np.diag([4.0, 1.0])
    >>> spectral_norm_forward(w, *power_iteration(w, np.array([1.0, 0.0])))[0]
    array([[1.  , 0.  ],
           [0.  , 0.25]])
    """
    row_axes(w)
    matrix = w.reshape(w.shape[0], -1)
    check_like("u", u, "a column of w", matrix[:, 0])
    check_like("v", v, "a row of w", matrix[0])
    sigma = (u * (matrix @ v)).sum()
    w_hat = w / sigma
    return w_hat, SpectralNormCache(w_hat, sigma, u, v)


spectral_norm = without_cache(spectral_norm_forward)


def spectral_norm_backward(dl_dw_hat: Array, cache: SpectralNormCache) -> Array:
    r"""Gradient through spectral norm, in closed form.

    .. math::

        \frac{\partial\ell}{\partial W} = \frac1\sigma \Big(
        \frac{\partial\ell}{\partial \hat W} - \Big\langle
        \frac{\partial\ell}{\partial \hat W}, \hat W \Big\rangle\, u v^\top \Big)

    It is exact where u and v are the first singular vectors: then their own change
    moves :math:`\sigma` in second order only.

    Examples
    --------
    >>> w = np.diag([4.0, 1.0])
    >>> _, cache = spectral_norm_forward(w, *power_iteration(w, np.array([1.0, 0.0])))
    >>> spectral_norm_backward(np.ones((2, 2)), cache)
    array([[-0.0625,  0.25  ],
           [ 0.25  ,  0.25  ]])
    """
    w_hat, sigma, u, v = cache
    check_like("dl_dw_hat", dl_dw_hat, "w_hat", w_hat)
    along = (dl_dw_hat * w_hat).sum()
    outer = (u[:, None] * v).reshape(w_hat.shape)
    return (dl_dw_hat - along * outer) / sigma
