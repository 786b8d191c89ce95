"""Checks of arguments that are no arrays."""

from __future__ import annotations

from numbers import Integral
from typing import Any

__all__ = ["check_index", "check_whole"]


def check_whole(name: str, value: Any, cure: str) -> None:
    """Refuse what is no whole number, and True."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}; {cure}.")


def check_index(shape: tuple[int, ...], index: tuple[int, ...]) -> None:
    """Refuse what is not a place in an array of this shape."""
    if len(index) != len(shape) or not all(
        0 <= i < n for i, n in zip(index, shape, strict=True)
    ):
        raise ValueError(
            f"index must be a place in an array of shape {shape}, got {index}; count "
            "from 0 along each axis."
        )
