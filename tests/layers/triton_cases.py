"""Where the kernels of Triton run in tests: on a GPU, or under Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

WITHOUT = "needs Triton: pip install 'normbook[triton]'"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
HAS_GPU = DEVICE == "cuda"

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
marks = [
    pytest.mark.skipif(
        not (HAS_GPU or INTERPRETED), reason="needs a GPU, or TRITON_INTERPRET=1"
    ),
    # It computes with NumPy, which tells of what a GPU does silently.
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def error(value: Tensor, expected: Tensor) -> float:
    """Return the largest error, as a share of the largest number."""
    difference = value.detach().cpu().double() - expected.detach().cpu().double()
    return float(difference.abs().max() / expected.detach().abs().max())


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter prepare a module once a launch, not at each call."""
    from triton.runtime import interpreter

    prepare: Any = interpreter._patch_lang
    prepared: set[str] = set()

    def once(function: Any) -> Any:
        if function.__module__ in prepared:
            return None
        is_launch = not prepared
        prepared.add(function.__module__)
        scope = prepare(function)
        restore = scope.restore

        def end() -> None:
            prepared.clear()
            restore()

        if is_launch:
            scope.restore = end
        return scope

    patch.setattr(interpreter, "_patch_lang", once)
