r"""Folding: batch norm with given statistics, written into the weights beside it.

With given statistics batch norm is a scale and a shift for each channel. Beside a
linear map these can be *folded* into the weights of the map. Gain and bias left out
stand for 1 and 0; what no function of the family takes is told in
:func:`normbook.normalize.normalize_forward`. Book, chapter *Folding*.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normbook.arrays import (
    Array,
    as_dtype,
    as_float32,
    check_eps,
    check_float_array,
    check_like,
    check_same_kind,
)


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
    r"""Return the two numbers of each channel that batch norm is in inference.

    .. math:: y = k x + c, \qquad k = \frac{\gamma}{\sqrt{v + \epsilon}}, \qquad
        c = \beta - k m

    All arrays have shape (C,); v is ``running_var``, a variance, not a deviation. The
    result has the dtype of ``running_mean``, m, half precision as float32. Source:
    Ioffe and Szegedy (2015), Algorithm 2, step 11.

    Examples
    --------
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
    check_like("running_var", running_var, "running_mean", running_mean)
    for name, value in {"gamma": gamma, "beta": beta}.items():
        if value is not None:
            check_like(name, value, "running_mean", running_mean)
    scale = (as_float32(running_var) + eps) ** -0.5
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

    .. math:: W' = k W, \qquad b' = k (b - m) + \beta, \qquad
        k = \frac{\gamma}{\sqrt{v + \epsilon}},

    with k along the output channels. The new map alone is what map and batch norm were
    together in inference, whatever the padding, the stride or the dilation: batch norm
    acts on the finished outputs.

    ``w`` has shape (C_out, C_in) of a linear layer, (C_out, C_in / groups, ...) of a
    convolution, (C_in, C_out / groups, ...) of a transposed one; ``b`` has shape
    (C_out,) or is None. The result has the dtype of ``w``, and a bias also where there
    was none. The other arguments are those of :func:`scale_and_shift`, with C = C_out.

    Source: Jacob et al. (2018), section 3.2.

    Examples
    --------
    >>> mean, var = np.array([3.0]), np.array([4.0])
    >>> gamma, beta = np.array([6.0]), np.array([1.0])
    >>> w, b = np.array([[1.0, 2.0]]), np.array([5.0])
    >>> fold_into_previous(w, b, mean, var, gamma, beta, eps=0.0)  # k: 3; 3 (5 - 3) + 1
    LinearMap(w=array([[3., 6.]]), b=array([7.]))
    """
    channels = _check_map(w, b, groups, is_transposed)
    scale, shift = scale_and_shift(running_mean, running_var, gamma, beta, eps)
    _check_channels(w, running_mean, channels, "output")
    grouped = _by_groups(w, groups, is_transposed)
    grouped = grouped * scale.reshape((*grouped.shape[:2], 1, 1))
    new_b = shift if b is None else scale * b + shift
    return _as_before(w, grouped, new_b, is_transposed)


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

    .. math:: W' = W k, \qquad b' = b + W (\beta - k m)

    with k along the input channels, and in :math:`b'` a sum over all inputs of an
    output, those under the kernel included. A convolution that pads with zeros has
    fewer inputs at the border: there the result is wrong. Reflected, replicated and
    circular padding do no harm. The outputs of a transposed convolution meet all
    weights only if its stride is 1 and, along each axis, its padding less its output
    padding is at least dilation (kernel - 1); else the result is wrong.

    Arguments and result are those of :func:`fold_into_previous`, with C = C_in.

    Examples
    --------
    >>> mean, var = np.array([3.0, 2.0]), np.array([4.0, 1.0])
    >>> gamma, beta = np.array([6.0, 1.0]), np.array([1.0, 0.0])
    >>> w, b = np.array([[1.0, 2.0]]), np.array([5.0])
    >>> fold_into_next(w, b, mean, var, gamma, beta, eps=0.0)  # k: 3, 1; c: -8, -2
    LinearMap(w=array([[3., 2.]]), b=array([-7.]))
    """
    _check_map(w, b, groups, is_transposed)
    scale, shift = scale_and_shift(running_mean, running_var, gamma, beta, eps)
    channels = w.shape[0] if is_transposed else w.shape[1] * groups
    _check_channels(w, running_mean, channels, "input")
    grouped = _by_groups(w, groups, is_transposed)
    scale, shift = (
        value.reshape((groups, 1, grouped.shape[2], 1)) for value in (scale, shift)
    )
    new_b = (grouped * shift).sum((2, 3)).reshape((-1,))
    if b is not None:
        new_b = b + new_b
    return _as_before(w, grouped * scale, new_b, is_transposed)


def _by_groups(w: Array, groups: int, is_transposed: bool) -> Array:
    """Return any w as (groups, outputs and inputs of one group, places)."""
    size = w.shape[0] // groups
    grouped = w.reshape((groups, size, w.shape[1], math.prod(w.shape[2:])))
    return grouped.swapaxes(1, 2) if is_transposed else grouped


def _as_before(w: Array, grouped: Array, b: Array, is_transposed: bool) -> LinearMap:
    """Return weights in shape and dtype of w, with their bias."""
    new_w = grouped.swapaxes(1, 2) if is_transposed else grouped
    return LinearMap(as_dtype(new_w.reshape(w.shape), w.dtype), as_dtype(b, w.dtype))


def _check_map(w: Array, b: Array | None, groups: int, is_transposed: bool) -> int:
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
