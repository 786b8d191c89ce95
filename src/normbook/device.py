"""Where torch computes, and how it computes the same twice."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported in the functions: torch takes seconds to import
    import torch

DEVICE = "NORMBOOK_DEVICE"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
# The settings with which cuBLAS is deterministic; the second is slower and smaller.
DETERMINISTIC_WORKSPACES = (":4096:8", ":16:8")


def pick(asked: str | None = None) -> torch.device:
    """Return the device to compute on: CUDA where there is one, else the CPU.

    The environment variable ``NORMBOOK_DEVICE``, or ``asked`` in its place, overrides
    the choice: ``cpu``, ``cuda``, ``cuda:1`` (a GPU by its number, from 0) or ``mps``
    (the GPU of an Apple computer, taken only when it is asked for, since it has no
    float64, in which the checks of the book compute), or the name of another device
    that is registered with torch. What is no such name is a ``ValueError``, what this
    machine, or this torch, does not have a ``RuntimeError``.

    Examples
    --------
    >>> import os
    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, NORMBOOK_DEVICE="cpu"):
    ...     pick()
    device(type='cpu')
    """
    import torch

    setting, drop, cure = "the device", "leave it out", "take cpu"
    if asked is None:
        setting, drop, cure = DEVICE, "unset it", f"set {DEVICE}=cpu"
    name = (os.environ.get(DEVICE, "") if asked is None else asked).strip().lower()
    if not name and asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        other = torch.accelerator
        if other.is_available() and str(other.current_accelerator()) == name:
            return torch.device(name)
        raise ValueError(
            f"{setting} must be cpu, cuda, cuda:NUMBER or mps, got {name!r}; correct "
            f"it, or {drop} to take CUDA where there is one."
        )
    is_cuda = name.startswith("cuda")
    count = torch.cuda.device_count() if is_cuda and torch.cuda.is_available() else 0
    if name == "mps" and not torch.backends.mps.is_available():
        found = "no Apple GPU"
    elif is_cuda and int(name.partition(":")[2] or 0) >= count:
        found = {0: "no CUDA GPU", 1: "one CUDA GPU, cuda:0"}.get(
            count, f"{count} CUDA GPUs, cuda:0 to cuda:{count - 1}"
        )
    else:
        return torch.device(name)
    raise RuntimeError(
        f"{setting} must name a device that is there, got {name!r}, but torch finds "
        f"{found}; {cure}, or {drop} to take CUDA where there is one."
    )


def make_deterministic() -> None:
    """Make torch compute the same result each time, bit for bit, on one machine.

    Sets ``CUBLAS_WORKSPACE_CONFIG`` to ``:4096:8`` unless it has a deterministic value
    already, demands deterministic algorithms (an operation that has none then raises),
    and turns off the search for the fastest convolution, which may choose another one
    in each run. Products and convolutions in float32 keep all 24 bits of it on a GPU,
    too: torch's convolutions would round to 11 there (TF32). New memory is not filled
    before it is written, as torch would do then: it takes up to a quarter of the time
    of a small network. If CUDA is in use before the variable is right, cuBLAS may have
    read it: nothing is changed then, and a ``RuntimeError`` raised. Source: PyTorch
    documentation, "Reproducibility".
    """
    import torch

    if os.environ.get(WORKSPACE) not in DETERMINISTIC_WORKSPACES:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise RuntimeError(
                "make_deterministic() must be called before the first use of CUDA, "
                f"got a CUDA that is in use and {WORKSPACE}="
                f"{os.environ.get(WORKSPACE, '')!r}; call it in the first cell and "
                "restart."
            )
        os.environ[WORKSPACE] = DETERMINISTIC_WORKSPACES[0]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
