"""Calls of the layer under test, so that its errors are told from the checks' own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Way = Callable[[nn.Module, Tensor], Any]

_way: ContextVar[Way] = ContextVar("way", default=lambda layer, x: layer(x))


class LayerError(Exception):
    """What the user's layer raised; the error itself is the ``__cause__``."""

    def __str__(self) -> str:
        """Return type and first line of the layer's error."""
        text = str(self.__cause__).strip().split("\n")[0]
        text = text if len(text) <= 160 else f"{text[:157]}..."
        return f"{type(self.__cause__).__name__}: {text}"


@contextmanager
def of_the_layer() -> Iterator[None]:
    """Report whatever is raised inside as the layer's error."""
    try:
        yield
    except Exception as error:
        raise LayerError from error


@contextmanager
def called(way: Way | None, channel_axis: int = 1) -> Iterator[None]:
    """Call layers in a way of their own, and with the channels on another axis.

    All tests have the channels on axis 1.
    """
    plain = way or _way.get()

    def moved(layer: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = plain(layer, x.movedim(1, channel_axis).contiguous())
        return y.movedim(channel_axis, 1)

    token = _way.set(plain if channel_axis == 1 else moved)
    try:
        yield
    finally:
        _way.reset(token)


@contextmanager
def same_generators() -> Iterator[None]:
    """Leave the random numbers of Python and NumPy as they are."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - a layer's own
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def run(layer: nn.Module, x: Tensor) -> Any:
    """Run a layer on x itself, in the way that holds."""
    with of_the_layer():
        return _way.get()(layer, x)


def call(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer on a copy of x; the output must have the shape of x."""
    with of_the_layer():
        y = _way.get()(layer, x.clone())
        got: Any = type(y).__name__
        if isinstance(y, Tensor):
            if y.shape == x.shape and y.is_floating_point():
                return y
            got = tuple(y.shape) if y.is_floating_point() else y.dtype
        raise TypeError(f"for input of shape {tuple(x.shape)} the output is {got}")


def evaluating(layer: nn.Module) -> nn.Module:
    """Put a layer into evaluation mode; its own ``eval`` may return nothing."""
    layer.eval()
    return layer


def backward(y: Tensor, dl_dy: Tensor) -> None:
    """Run the backward pass of a layer, if its output has one, on a copy of dl_dy."""
    if y.requires_grad:
        with of_the_layer():  # a gradient that is given makes torch import sympy
            torch.autograd.backward((y * dl_dy.to(y.dtype)).sum())
