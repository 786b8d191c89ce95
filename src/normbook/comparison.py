"""Compare arrays of any kind: NumPy or torch, of any dtype, on any device."""

from __future__ import annotations

from typing import Any

import numpy as np

from normbook.arrays import Array, check_same_shape


def relative_error(a: Array, b: Array) -> float:
    r"""Return the largest difference, as a share of the largest value.

    .. math:: \max_i |a_i - b_i| \,/\, \max_i \max(|a_i|, |b_i|)

    One scale for the whole array: an entry that is 0 up to rounding does not count as
    wrong by 100 %. It is 0.0 if both are equal everywhere, infinities included, and
    NaN if either holds a NaN. Different shapes raise a ``ValueError``.

    Examples
    --------
    >>> relative_error(np.array([1.0, 0.0]), np.array([1.0, 0.5]))
    0.5
    """
    a, b = as_numpy(a), as_numpy(b)
    check_same_shape("a", a, "b", b)
    if np.array_equal(a, b):
        return 0.0
    scale = max(np.max(np.abs(a)), np.max(np.abs(b)))  # above 0, as they differ
    return float(np.max(np.abs(a - b)) / scale)


def detached(y: Array) -> Array:
    """Return a tensor without its graph; any other array as it is."""
    return y.detach() if hasattr(y, "detach") else y


def as_numpy(a: Array) -> Any:
    """Return an array as NumPy in float64, from any device and dtype."""
    a = detached(a)
    return np.asarray(a.double().cpu() if hasattr(a, "cpu") else a, dtype=np.float64)
