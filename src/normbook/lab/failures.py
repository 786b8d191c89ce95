"""What the pages of failures share: the text of an error, and the state of a layer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

LONGEST = 220  # characters of an error that are printed


def error_of(action: Callable[[], object]) -> str:
    """Run an action and return its error as text, lines wrapped, cut.

    >>> print(error_of(lambda: [0][1]))
    IndexError: list index out of range
    >>> error_of(list)
    'no error'
    """
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is
        text = f"{type(error).__name__}: {error}"
        return textwrap.fill(textwrap.shorten(text, LONGEST, placeholder=" ..."), 70)
    return "no error"


def observe(
    layer: Any, context: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> tuple[str, str, str]:
    """Ask a batch norm of three channels for its state, by a call on drawn numbers.

    Returns which statistics normalize ("batch" or "averages"), whether the running
    averages "move" or "rest", and whether its parameters have a gradient ("learns" or
    "-"). The call is one like any other: what moves has moved.

    Source: book, chapter *Training and evaluation*.

    >>> observe(torch.nn.BatchNorm1d(3).eval(), torch.no_grad)
    ('averages', 'rest', '-')
    """
    rand = torch.Generator().manual_seed(0)
    x = 5 + 2 * torch.randn(8, 3, generator=rand)
    before = None if layer.running_mean is None else layer.running_mean + 0
    with context():
        y = layer(x)
    shift = y.mean(0).abs().max().item()
    has_moved = before is not None and (layer.running_mean != before).any()
    if y.requires_grad:
        y.square().sum().backward()
    source = "batch" if shift < 1e-5 else "averages"
    moves = "move" if has_moved else "rest"
    return source, moves, "-" if layer.weight.grad is None else "learns"
