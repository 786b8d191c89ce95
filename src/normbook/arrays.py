"""Arrays of NumPy and tensors of torch: checks of arguments, and what the two lack.

Both share the operators and the methods ``mean``, ``sum`` and ``reshape``, on any
device, and the formulas are written with these alone. A public function checks its
arguments here, once, and then calls formulas that check nothing.
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

# NumPy arrays and torch tensors share no base class.
Array = Any
Axes = int | tuple[int, ...]


def as_dtype(x: Array, dtype: Any) -> Array:
    """Return x in this dtype; x itself where it has it already."""
    if x.dtype == dtype:
        return x
    return array_namespace(x).astype(x, dtype)


def as_float32(x: Array) -> Array:
    """Return half precision as float32: a mean of many float16 loses its digits."""
    return x if x.dtype.itemsize >= 4 else as_dtype(x, array_namespace(x).float32)


def check_eps(eps: float) -> float:
    """Refuse an eps that is negative or not finite; return it as a float."""
    try:
        is_real = type(eps) is float or isinstance(eps, Real)  # the latter takes longer
        value = float(eps) if is_real else math.nan
    except OverflowError:
        value = math.inf
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(
            f"eps must be a finite number >= 0, got {eps!r}; it is added to the "
            "variance to keep the division defined, 1e-5 is the usual value."
        )
    return value


def check_float_array(name: str, x: Array) -> None:
    """Refuse what is not a dense array of real floating-point numbers."""
    if isinstance(x, (np.ndarray, np.generic)):  # a sum of all values is the latter
        is_real_float = x.dtype.kind == "f"
        # Both change what *, mean or sum mean.
        is_plain = type(x).__name__ not in ("MaskedArray", "matrix")
    elif is_torch_array(x):
        is_real_float = x.dtype.is_floating_point
        is_plain = not x.is_sparse
    else:
        raise TypeError(
            f"{name} must be a NumPy array or a torch tensor, got "
            f"{type(x).__name__}; convert it, e.g. numpy.asarray({name}, dtype=float)."
        )
    if not is_plain:
        raise TypeError(
            f"{name} must be a plain dense array, got {type(x).__name__}; leave masked "
            "values out or fill them, and make sparse tensors dense."
        )
    if not is_real_float:
        raise TypeError(
            f"{name} must hold real floating-point numbers, got dtype {x.dtype}; "
            "convert it first, for example to float64."
        )


def check_same_kind(name: str, a: Array, other: str, b: Array) -> None:
    """Refuse a NumPy array beside a torch tensor."""
    if type(a) is not type(b) and array_namespace(a) is not array_namespace(b):
        raise TypeError(
            f"{name} must be of the kind of {other}, {type(b).__name__}, got "
            f"{type(a).__name__}; convert one of them."
        )


def check_same_shape(name: str, a: Array, other: str, b: Array) -> None:
    """Refuse two arrays, or numbers, of different shape: broadcasting hides it."""
    shape, wished = (tuple(getattr(value, "shape", ())) for value in (a, b))
    if shape != wished:
        raise ValueError(
            f"{name} must have the shape of {other}, {wished}, got {shape}; pass one "
            f"value for each value of {other}."
        )


def check_like(name: str, a: Array, other: str, b: Array) -> None:
    """Refuse what is no float array of the kind and the shape of another."""
    check_float_array(name, a)
    check_same_kind(name, a, other, b)
    check_same_shape(name, a, other, b)


def check_parameters(
    x: Array, parameter_axes: tuple[int, ...], **values: Array | None
) -> None:
    """Refuse a gain or bias that has not one value for each place on its axes."""
    expected = tuple(x.shape[axis] for axis in parameter_axes)
    for name, value in values.items():
        if value is None:
            continue
        check_float_array(name, value)
        check_same_kind(name, value, "x", x)
        if tuple(value.shape) != expected:
            raise ValueError(
                f"{name} must have shape {expected}, got {tuple(value.shape)}; pass "
                f"{math.prod(expected)} values, one per feature: "
                f"axes {parameter_axes} of x with shape {tuple(x.shape)}."
            )


def check_groups(x: Array, axes: tuple[int, ...]) -> None:
    """Refuse a mean over no axis, and one over no value."""
    if not axes:
        raise ValueError("axes must name at least one axis, got (); pass e.g. 0.")
    if math.prod([x.shape[axis] for axis in axes]) == 0:
        raise ValueError(
            "a mean needs at least one value in each group, got x of shape "
            f"{tuple(x.shape)} with axes {axes}; leave empty batches out."
        )


def sorted_axes(x: Array, axes: Axes, name: str = "axes") -> tuple[int, ...]:
    """Refuse what are no different axes of x; count them from 0, in order."""
    try:
        numbers = [*map(operator.index, axes if isinstance(axes, tuple) else (axes,))]
    except TypeError:
        raise TypeError(
            f"{name} must be an int or a tuple of ints, got {axes!r}; pass e.g. (0, 2)."
        ) from None
    if x.ndim == 0:
        raise ValueError("x must have at least one axis, got shape (); use x[None].")
    for axis in numbers:
        if not -x.ndim <= axis < x.ndim:
            raise ValueError(
                f"{name} must lie in {-x.ndim}..{x.ndim - 1} for x of shape "
                f"{tuple(x.shape)}, got {axis}; count the axes of x from 0."
            )
    counted = tuple(sorted(axis % x.ndim for axis in numbers))
    if len(set(counted)) != len(counted):
        raise ValueError(f"{name} must be different axes, got {axes}; name each once.")
    return counted
