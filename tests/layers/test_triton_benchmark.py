"""The benchmark of the kernels of Triton: it refuses what computes something else."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_cases import DEVICE, WITHOUT, draw, marks, quicken

pytest.importorskip("triton", reason=WITHOUT)
pytestmark = [
    *marks,
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
    ),
]
SIZE = 3, 2, 3, 8
PLACE: dict[str, Any] = {"device": torch.device(DEVICE), "dtype": torch.float32}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        patch.setenv("NORMBOOK_NATIVE", "triton")
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module("gpu")


@pytest.mark.parametrize("name", ["nn_lstm", "kernels", "scripted"])
def test_a_variant_that_computes_something_else_is_not_timed(
    name: str, gpu: Any
) -> None:
    size = gpu.Size(*SIZE)
    right = gpu.variants(size, **PLACE)[1][name]
    gpu.check_lstm(name, right, size, 1.3e-5)
    for run in (
        lambda x: right.run(x) * 1.001,
        lambda x: right.run(x + 0.001 * (x - x.detach())),  # the gradient of x alone
    ):
        with pytest.raises(ValueError, match=f"of {name} must .*; nothing is timed"):
            gpu.check_lstm(name, right._replace(run=run), size, 1.3e-5)


def test_one_step_from_any_state_is_checked(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = gpu.Size(*SIZE)
    ours, _ = gpu.variants(size, **PLACE)
    gpu.check_one_step(ours, size, 8e-6)
    sequence = gpu.sequence
    monkeypatch.setattr(gpu, "sequence", lambda *v: sequence(*v) * 1.001)
    with pytest.raises(ValueError, match="one step of kernels must"):
        gpu.check_one_step(ours, size, 8e-6)


def test_a_norm_that_computes_something_else_is_not_timed(gpu: Any) -> None:
    pair = gpu.parameters(33, **PLACE)
    values = draw(11, 33, seed=7), draw(11, 33, seed=8)
    for name, norm in gpu.all_norms(*pair).items():
        gpu.check_norm(name, norm, *values, *pair)
        wrong = norm._replace(axis=1 - norm.axis)
        with pytest.raises(ValueError, match=f"of {name} must .*; nothing is timed"):
            gpu.check_norm(name, wrong, *values, *pair)


def test_inputs_together_exceed_the_cache(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Properties:
        L2_cache_size = 50

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert gpu.beyond_cache(16, PLACE["device"]) * 16 > 100
    assert gpu.beyond_cache(1000, PLACE["device"]) == 2
    assert gpu.beyond_cache(1, PLACE["device"], most=5) == 5
