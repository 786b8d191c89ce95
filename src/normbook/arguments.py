"""Checks of arguments that are no arrays."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, cure: str) -> int:
    """Return an int; refuse what is none, and True."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}; {cure}.")
    return number


def check_index(shape: tuple[int, ...], index: tuple[int, ...]) -> None:
    """Refuse what is not a place in an array of this shape."""
    if len(index) != len(shape) or not all(
        0 <= i < n for i, n in zip(index, shape, strict=True)
    ):
        raise ValueError(
            f"index must be a place in an array of shape {shape}, got {index}; count "
            "from 0 along each axis."
        )
