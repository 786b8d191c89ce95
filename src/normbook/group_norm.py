r"""Group normalization and instance normalization: statistics within one image.

Group norm splits the channels of an example into groups and standardizes each group
over its channels and all places. With one group that is layer norm over the whole
image; with one channel a group it is instance norm. Gain and bias have one value for
each channel. What all methods share is told in
:func:`normbook.normalize.normalize_forward`. Book, chapter *Choosing the axes*.
"""

from __future__ import annotations

import math

from normbook.arguments import whole_number
from normbook.arrays import Array, check_eps, check_like, check_parameters
from normbook.normalize import (
    NormalizeCache,
    NormalizeGradients,
    backward,
    checked_forward,
    forward,
    layout,
    method_for,
    normalize_backward,
    without_cache,
)

__all__ = [
    "group_norm",
    "group_norm_backward",
    "group_norm_forward",
    "instance_norm",
    "instance_norm_backward",
    "instance_norm_forward",
]


def group_norm_forward(
    x: Array,
    num_groups: int,
    gamma: Array | None = None,
    beta: Array | None = None,
    eps: float = 1e-5,
) -> tuple[Array, NormalizeCache]:
    r"""Normalize each group of channels of each example, and keep its statistics.

    .. math:: y_{nc\cdot} = \gamma_c\,\frac{x_{nc\cdot} - \mu_{ng}}
        {\sqrt{\sigma_{ng}^2 + \epsilon}} + \beta_c

    with c in group g, for x of shape (N, C) or (N, C, ...). ``num_groups`` is G, a
    divisor of C; channels that follow each other form a group. In the cache ``x_hat``
    has shape (N, G, C/G, ...), ``mu`` and ``var`` (N, G, 1, ...), ``gamma`` (G, C/G).
    Source: Wu and He (2018), "Group normalization", equations 1, 2, 6 and 7.

    Examples
    --------
    >>> x = np.array([[1.0, 3.0, 10.0, 50.0]])  # one example, two groups of two
    >>> group_norm_forward(x, 2, gamma=np.arange(4.0), eps=0.0)[0]
    array([[-0.,  1., -2.,  3.]])
    """
    # Before the channels are split, or an error would tell of shapes nobody gave.
    method = method_for("group norm", x)
    groups = _groups(x, num_groups)
    check_parameters(x, (1,), gamma=gamma, beta=beta)
    grouped = split_channels(x, groups[0])
    gamma, beta = (
        None if value is None else value.reshape(groups) for value in (gamma, beta)
    )
    of_groups = method.of(grouped.ndim)
    y, cache = forward(grouped, gamma, beta, eps=check_eps(eps), **of_groups)
    return y.reshape(x.shape), cache


def split_channels(x: Array, num_groups: int) -> Array:
    """Return (N, C, ...) as (N, G, C/G, ...); nothing is checked."""
    size = x.shape[1] // num_groups
    return x.reshape((x.shape[0], num_groups, size, *x.shape[2:]))


group_norm = without_cache(group_norm_forward)


def group_norm_backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    """Differentiate through group norm: :func:`~normbook.normalize.normalize_backward`.

    Examples
    --------
    >>> _, cache = group_norm_forward(np.array([[1.0, 3.0, 10.0, 50.0]]), 2, eps=0.0)
    >>> gradients = group_norm_backward(np.array([[1.0, 2.0, 3.0, 4.0]]), cache)
    >>> gradients.dl_dx, gradients.dl_dgamma  # pairs pass nothing back
    (array([[0., 0., 0., 0.]]), array([-1.,  2., -3.,  4.]))
    """
    grouped = cache.x_hat
    n, groups, size, *places = grouped.shape
    check_like("dl_dy", dl_dy, "y", grouped.reshape((n, groups * size, *places)))
    dl_dx, *parameters = backward(split_channels(dl_dy, groups), cache)
    dl_dgamma, dl_dbeta = (gradient.reshape(groups * size) for gradient in parameters)
    return NormalizeGradients(dl_dx.reshape(dl_dy.shape), dl_dgamma, dl_dbeta)


def instance_norm_forward(
    x: Array, gamma: Array | None = None, beta: Array | None = None, eps: float = 1e-5
) -> tuple[Array, NormalizeCache]:
    """Normalize each channel of each example over its places, and keep the statistics.

    Group norm with a group for each channel, of (N, C, L), (N, C, H, W) or (N, C, T, H,
    W); batch norm on one image: the contrast of each channel is taken out. Source:
    Ulyanov, Vedaldi and Lempitsky (2016), "Instance normalization", equation 3.

    Examples
    --------
    >>> x = np.array([[[1.0, 3.0], [10.0, 50.0]]])  # one example, two channels
    >>> instance_norm_forward(x, gamma=np.array([1.0, 5.0]), eps=0.0)[0]
    array([[[-1.,  1.],
            [-5.,  5.]]])
    """
    return checked_forward(x, gamma, beta, eps, **layout("instance norm", x))


instance_norm = without_cache(instance_norm_forward)
instance_norm_backward = normalize_backward


def _groups(x: Array, num_groups: int) -> tuple[int, int]:
    """Return the number of groups, a divisor of the channels, and the size of each."""
    channels = int(x.shape[1])
    cure = f"pass a divisor of the number of channels, {channels}"
    groups = whole_number("num_groups", num_groups, cure)
    if groups < 1 or channels % groups:
        raise ValueError(
            f"num_groups must be a divisor of the number of channels, {channels}, got "
            f"{groups}; groups have equally many channels."
        )
    if math.prod(x.shape[1:]) == 0:
        raise ValueError(
            "a mean needs at least one value in each group, got x of shape "
            f"{tuple(x.shape)}; give it channels and places."
        )
    return groups, channels // groups
