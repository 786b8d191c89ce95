import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from normbook import device


def found(monkeypatch: pytest.MonkeyPatch, cuda: int = 0, mps: bool = False) -> None:
    """Let torch find so many GPUs, whatever this machine has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize("wanted", [None, "", " "])
@pytest.mark.parametrize(("cuda", "picked"), [(0, "cpu"), (1, "cuda"), (2, "cuda")])
def test_cuda_is_picked_where_there_is_one(
    wanted: str | None, cuda: int, picked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, cuda, mps=True)  # never picked by itself: no float64
    monkeypatch.delenv(device.DEVICE, raising=False)
    if wanted is not None:
        monkeypatch.setenv(device.DEVICE, wanted)
    assert device.pick() == torch.device(picked)


def pick(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Ask for a device by the setting, or by the argument, which overrides it."""
    if way == "setting":
        monkeypatch.setenv(device.DEVICE, name)
        return device.pick()
    monkeypatch.delenv(device.DEVICE, raising=False)
    picked = device.pick(name)
    monkeypatch.setenv(device.DEVICE, "quantum")
    assert device.pick(name) == picked
    return picked


WAYS = {
    "setting": ("NORMBOOK_DEVICE must", "unset it", "set NORMBOOK_DEVICE=cpu, or"),
    "argument": ("the device must", "leave it out", "take cpu, or"),
}
either_way = pytest.mark.parametrize("way", WAYS)


@either_way
@pytest.mark.parametrize(
    "name", ["cpu", "cuda", "cuda:0", "cuda:1", "mps", " CPU ", " CUDA:0 "]
)
def test_the_setting_or_what_is_asked_for_overrides_the_choice(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, cuda=2, mps=True)
    assert pick(name, way, monkeypatch) == torch.device(name.strip().lower())


@either_way
@pytest.mark.parametrize("is_there", [True, False])
def test_the_device_of_another_backend_is_picked_where_it_is_there(
    is_there: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_there)
    other = torch.device("xpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: other)
    if is_there:
        assert pick("XPU", way, monkeypatch) == other
    with pytest.raises(ValueError, match="got 'xpu:0'" if is_there else "got 'xpu'"):
        pick("xpu:0" if is_there else "xpu", way, monkeypatch)


@either_way
@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:-1", "cuda:a", "cuda1", "cpu:0"]
)
def test_a_misspelt_device_is_refused(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, cuda=2)
    head, drop, _ = WAYS[way]
    message = rf"^{head} be .*, got '{name}'; correct it, or {drop}"
    with pytest.raises(ValueError, match=message):
        pick(name, way, monkeypatch)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_that_was_asked_for_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^the device must .*, got ''; correct"):
        device.pick(name)


@either_way
@pytest.mark.parametrize(
    ("name", "cuda", "what"),
    [
        ("cuda", 0, "no CUDA GPU"),
        ("cuda:0", 0, "no CUDA GPU"),
        ("cuda:1", 1, "one CUDA GPU, cuda:0"),
        ("cuda:2", 2, "2 CUDA GPUs, cuda:0 to cuda:1"),
        ("mps", 2, "no Apple GPU"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    name: str, cuda: int, what: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch, cuda)
    head, _, cure = WAYS[way]
    message = rf"^{head} name .*got '{name}', but torch finds {what}; {cure}"
    with pytest.raises(RuntimeError, match=message):
        pick(name, way, monkeypatch)


@pytest.fixture
def torch_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(device.WORKSPACE, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    parts: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul]
    before = [part.allow_tf32 for part in parts]
    for part in parts:
        part.allow_tf32 = True
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    yield
    torch.use_deterministic_algorithms(False)
    for part, value in zip(parts, before, strict=True):
        part.allow_tf32 = value


@pytest.mark.usefixtures("torch_as_it_starts")
def test_determinism_is_demanded_of_torch_cudnn_and_cublas() -> None:
    device.make_deterministic()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert os.environ[device.WORKSPACE] == ":4096:8"


@pytest.mark.usefixtures("torch_as_it_starts")
@pytest.mark.parametrize(("before", "after"), [(":16:8", ":16:8"), (":0:0", ":4096:8")])
def test_a_setting_of_cublas_is_kept_if_it_is_deterministic(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(device.WORKSPACE, before)
    device.make_deterministic()
    assert os.environ[device.WORKSPACE] == after


@pytest.mark.usefixtures("torch_as_it_starts")
def test_too_late_a_call_is_refused_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match=r"before the first use of CUDA, got .*call"):
        device.make_deterministic()
    assert not torch.are_deterministic_algorithms_enabled()
    assert device.WORKSPACE not in os.environ


@pytest.mark.usefixtures("torch_as_it_starts")
def test_a_second_call_is_fine_while_cuda_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device.make_deterministic()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    device.make_deterministic()
    assert torch.are_deterministic_algorithms_enabled()


def test_the_module_does_not_import_torch_before_it_is_needed() -> None:
    code = "import normbook.device, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
