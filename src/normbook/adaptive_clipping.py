"""Adaptive gradient clipping: the step of a unit beside the length of its weights."""

from __future__ import annotations

from array_api_compat import array_namespace

from normbook.arrays import Array, as_dtype, as_float32, check_float_array, check_like


def unit_lengths(w: Array) -> Array:
    """Return the length of the weights of each output, (D_out, 1, ...).

    Of a vector, a bias or gains, it is that of all, (1,).
    """
    check_float_array("w", w)
    axes = tuple(range(1, w.ndim)) or (0,)
    values = as_float32(w)
    return (values * values).sum(axes, keepdims=True) ** 0.5


def clip_by_unit(dl_dw: Array, w: Array, most: float, eps: float = 1e-3) -> Array:
    r"""Shorten the gradient of a unit that is long beside the unit's weights.

    .. math::

        g_i \leftarrow g_i \min\Big(1,\, \lambda\,
        \frac{\max(\lVert w_i \rVert, \epsilon)}{\lVert g_i \rVert}\Big)

    with :math:`\lambda` for ``most``, and a row :math:`w_i` for each output. The length
    ``eps`` lets weights that begin at 0 move. ``dl_dw`` has shape and kind of w; a
    ``most`` or ``eps`` that is not positive is a ValueError.

    Source: Brock et al. (2021), "High-performance large-scale image recognition without
    normalization"; the eps is that of ``nfnets/optim.py`` in the repository
    google-deepmind/deepmind-research, where ``most`` is 0.01 by default.

    Examples
    --------
    The first gradient has length 5 beside weights of length 1:

    >>> w, dl_dw = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 4.0], [0.1, 0]])
    >>> clip_by_unit(dl_dw, w, most=0.5)
    array([[0.3, 0.4],
           [0.1, 0. ]])
    """
    for name, value in (("most", most), ("eps", eps)):
        if not value > 0:
            raise ValueError(
                f"{name} must be a positive number, got {value!r}; with 0 no unit "
                "would move."
            )
    check_like("dl_dw", dl_dw, "w", w)
    xp = array_namespace(w)
    lengths, slopes = unit_lengths(w), unit_lengths(dl_dw)
    allowed = most * lengths.clip(eps)
    is_long = slopes > allowed
    # No 0/0 where a gradient is 0: what is not long is divided by itself.
    factor = allowed / xp.where(is_long, slopes, allowed)
    return as_dtype(as_float32(dl_dw) * factor, dl_dw.dtype)
