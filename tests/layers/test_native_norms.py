"""Normalization in compiled loops: the numbers of the formulas, where they can run."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layer_derivatives import penalty
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.utils.flop_counter import FlopCounterMode

from normbook.layers import native, native_norms
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normbook.layers.group_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.layers.threads import together

# torch's forward mode loads functions that torch itself still scripts.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)
pytest.importorskip("numba")

LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    *((BatchNorm1d(d), (n, d)) for n, d in ((2, 1), (65, 33), (300, 7), (2, 100))),
    (BatchNorm1d(3), (5, 3, 4)),
    (BatchNorm1d(1), (5, 1, 3)),
    (BatchNorm2d(3), (2, 3, 7, 5)),
    (BatchNorm3d(3), (2, 3, 1, 2, 5)),
    *((LayerNorm(d), (n, d)) for n, d in ((1, 2), (7, 33), (131, 5), (2, 5000))),
    (LayerNorm(3), (3,)),
    (LayerNorm((3, 4, 5)), (2, 3, 4, 5)),
    (RMSNorm(1, 1e-5), (4, 1)),
    (RMSNorm(33, 1e-5), (7, 2, 33)),
    (GroupNorm(2, 6), (7, 6)),
    (GroupNorm(6, 6), (5, 6, 3)),
    (GroupNorm(3, 6), (2, 6, 4, 5)),
    (InstanceNorm1d(3, affine=True), (7, 3, 5)),
    (InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
]
each_layer = pytest.mark.parametrize(
    ("layer", "shape"),
    LAYERS,
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
FEW = [LAYERS[k] for k in (1, 6, 9, 13, 16)]
each_of_few = pytest.mark.parametrize(("layer", "shape"), FEW)
DTYPES = {torch.float32: 2e-6, torch.float64: 1e-14}


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the calls of the loops: 0 forward, 1 back."""
    monkeypatch.delenv(native.NATIVE, raising=False)
    counted: list[int] = []
    share = native_norms.share

    def count(place: Any, way: int, *arguments: Any) -> None:
        counted.append(way)
        share(place, way, *arguments)

    monkeypatch.setattr(native_norms, "share", count)
    return counted


def draw(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) * 3 + 2
    )


def stir(layer: nn.Module) -> None:
    """Draw the parameters, the same in any dtype."""
    layer.float()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in layer.parameters():
            value.uniform_(0.5, 2, generator=generator)


def results(layer: nn.Module, x: Tensor, dl_dy: Tensor) -> list[Tensor]:
    """Return y, every gradient, and what training wrote to the buffers."""
    stir(layer)
    layer.to(x.dtype)
    if isinstance(layer, nn.modules.batchnorm._NormBase):
        layer.reset_running_stats()
    leaf = x.detach().requires_grad_()
    y = layer(leaf)
    slopes = torch.autograd.grad(y, [leaf, *layer.parameters()], dl_dy)
    return [y.detach(), *slopes, *(v.clone() for v in layer.buffers())]


def by_formulas(layer: nn.Module, x: Tensor, dl_dy: Tensor) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.NATIVE, "0")
        return results(layer, x.double(), dl_dy.double())


def errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Largest differences, as shares of the largest values, or of 1."""
    pairs = zip(found, expected, strict=True)
    return [float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs]


@pytest.mark.parametrize("dtype", DTYPES)
@each_layer
def test_results_are_those_of_the_formulas(
    layer: nn.Module, shape: tuple[int, ...], dtype: Any, calls: list[int]
) -> None:
    x, dl_dy = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)
    found = results(layer, x, dl_dy)
    assert calls == [0, 1]  # forward, and back
    assert max(errors(found, by_formulas(layer, x, dl_dy))) <= DTYPES[dtype]
    assert len(calls) == 2


@each_of_few
def test_a_mean_of_10_000_deviations_costs_no_digits(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    x, dl_dy = draw(*shape) + 30_000, draw(*shape, seed=1)
    found = results(layer, x, dl_dy)
    expected = by_formulas(layer, x, dl_dy)
    assert max(errors(found[:4], expected[:4])) <= DTYPES[torch.float32]


def layouts(shape: tuple[int, ...]) -> Iterator[Any]:
    yield lambda v: v.transpose(0, -1).contiguous().transpose(0, -1)
    yield lambda v: v.repeat_interleave(2, -1)[..., ::2]
    if len(shape) == 4:
        yield lambda v: v.contiguous(memory_format=torch.channels_last)


@each_of_few
def test_layouts_do_not_matter(
    layer: nn.Module, shape: tuple[int, ...], calls: list[int]
) -> None:
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    expected = results(layer, x, dl_dy)
    for lay in layouts(shape):
        for a, b in ((lay(x), dl_dy), (x, lay(dl_dy)), (lay(x), lay(dl_dy))):
            assert max(errors(results(layer, a, b), expected)) <= 2e-6
    assert calls == [0, 1] * (len(calls) // 2)


@pytest.mark.parametrize("missing", [("bias",), ("weight", "bias")])
@each_of_few
def test_missing_gain_and_bias(
    layer: nn.Module, shape: tuple[int, ...], missing: tuple[str, ...]
) -> None:
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    kept = dict(layer._parameters)
    try:
        for name in {*missing} & {*kept}:
            setattr(layer, name, None)
        expected = by_formulas(layer, x, dl_dy)
        assert max(errors(results(layer, x, dl_dy), expected)) <= 2e-6
    finally:
        layer._parameters.update(kept)
        layer.float()


@each_of_few
def test_frozen_parameters_change_no_other_gradient(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    _, dl_dx, *_ = results(layer, x, dl_dy)
    layer.requires_grad_(False)
    leaf = x.requires_grad_()
    layer(leaf).backward(dl_dy)
    layer.requires_grad_(True)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, dl_dx)
    assert layer.weight.grad is None


@each_of_few
def test_without_gradients_the_same_bits(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    x = draw(*shape)
    y = layer.float()(x.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(layer(x), y)


def test_a_nan_stays_in_its_group() -> None:
    every = slice(None)
    for layer, shape, group, place in (
        (LayerNorm(9), (5, 9), (2,), (2, 4)),
        (GroupNorm(2, 4), (3, 4, 5), (2, slice(0, 2)), (2, 1, 3)),
        (BatchNorm1d(9), (70, 9), (every, 4), (66, 4)),
        (BatchNorm2d(4), (3, 4, 2, 5), (every, 2), (1, 2, 0, 0)),
    ):
        x = draw(*shape)
        x[place] = float("nan")
        y = layer(x.requires_grad_())
        (slope,) = torch.autograd.grad(y.sum(), x)
        for value in (y.detach(), slope):
            assert value[group].isnan().all()
            value[group] = 0
            assert value.isfinite().all()


def test_equal_values_and_large_ones_are_as_in_the_formulas() -> None:
    for value, eps in ((7.0, 1e-5), (7.0, 0.0), (1e30, 1e-5), (float("inf"), 1e-5)):
        for layer in (LayerNorm(5, eps), RMSNorm(5, eps), GroupNorm(1, 5, eps)):
            x = torch.full((2, 5), value)
            found = layer(x)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(native.NATIVE, "0")
                torch.testing.assert_close(found, layer(x), equal_nan=True)


@each_of_few
def test_second_derivatives_are_those_of_the_formulas(
    layer: nn.Module, shape: tuple[int, ...], calls: list[int]
) -> None:
    stir(layer)
    layer.double()
    x, dl_dy = (draw(*shape, seed=k, dtype=torch.float64) for k in (0, 1))
    found = penalty(layer, x, dl_dy)
    assert calls == [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.NATIVE, "0")
        expected = penalty(layer, x, dl_dy)
    layer.float()
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_gradients_of_many_directions_at_a_time(calls: list[int]) -> None:
    layer, x = LayerNorm(5), draw(3, 5).requires_grad_()
    y, directions = layer(x), draw(4, 3, 5, seed=1)
    leaves = [x, layer.weight]
    found = torch.autograd.grad(y, leaves, directions, True, is_grads_batched=True)
    each = [torch.autograd.grad(y, leaves, d, retain_graph=True) for d in directions]
    for a, b in zip(found, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(a, torch.stack(b))


@pytest.mark.parametrize("threads", [2, 3])
@each_of_few
def test_threads_share_the_work(
    layer: nn.Module,
    shape: tuple[int, ...],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_norms, "LEAST", 1)
    began = []

    def note(run: Any, members: int) -> None:
        began.append(members)
        together(run, members)

    monkeypatch.setattr(native_norms, "together", note)
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            found.append(results(layer, x, dl_dy))
    finally:
        torch.set_num_threads(before)
    assert len(began) == 2  # both ways
    assert torch.equal(found[0][0], found[1][0])
    assert max(errors(found[1], found[0])) <= 2e-6


def test_what_is_left_to_the_formulas(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = LayerNorm(8), draw(4, 8)
    weights = {k: v.detach() for k, v in layer.named_parameters()}
    vmap(layer)(x[None])
    jvp(lambda v: functional_call(layer, weights, v), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        layer(x)
    LayerNorm(8).half()(x.half())
    layer(x.half())
    LayerNorm(8)(x[:0])
    with FlopCounterMode(display=False):
        layer(x)
    conjugate = torch.view_as_complex(draw(4, 8, 2)).conj().imag
    assert conjugate.is_neg()
    layer(conjugate)
    monkeypatch.setenv(native.NATIVE, "0")
    layer(x)
    assert not calls
    monkeypatch.delenv(native.NATIVE)
    layer(x)
    assert calls == [0]


def test_a_slope_that_is_not_in_memory_is_left_to_the_formulas(
    calls: list[int],
) -> None:
    layer, x = LayerNorm(8), draw(4, 8).requires_grad_()
    slope = torch.view_as_complex(draw(4, 8, 2)).conj().imag
    expected = torch.autograd.grad(layer(x), x, slope.resolve_neg())[0]
    found = torch.autograd.grad(layer(x), x, slope)[0]
    torch.testing.assert_close(found, expected)
    nothing = torch._efficientzerotensor((4, 8))
    assert not torch.autograd.grad(layer(x), x, nothing)[0].any()
    assert calls == [0, 1, 0, 0]


def test_changes_before_backward_are_refused() -> None:
    layer, x = LayerNorm(8), draw(4, 8)
    for changed in (x, layer.weight):
        loss = layer(x).sum()
        with torch.no_grad():
            changed.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, layer.weight)


def test_the_output_may_be_changed_in_place() -> None:
    images = draw(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for layer, x in ((LayerNorm(5), draw(2, 5)), (BatchNorm2d(3), images)):
        torch.autograd.grad(torch.relu_(layer(x)).sum(), layer.weight)


@pytest.fixture
def fresh() -> Iterator[None]:
    native.loop.cache_clear()
    yield
    native.loop.cache_clear()


def test_without_numba_the_formulas_run(
    fresh: None, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LayerNorm(8)(draw(4, 8))
    assert not calls


def test_another_default_device_changes_nothing() -> None:
    layer, x = LayerNorm(9, elementwise_affine=False), draw(4, 9)
    native_norms._constant.cache_clear()
    with torch.device("meta"):
        y = layer(x)
    torch.testing.assert_close(y, nn.functional.layer_norm(x, (9,)))


def test_saved_tensors_of_another_kind_are_left_to_the_formulas(
    calls: list[int],
) -> None:
    layer, x, dl_dy = LayerNorm(8), draw(4, 8).requires_grad_(), draw(4, 8, seed=1)
    (expected,) = torch.autograd.grad(layer(x), x, dl_dy)
    with torch.autograd.graph.saved_tensors_hooks(Tensor.bfloat16, lambda v: v):
        y = layer(x)
    (found,) = torch.autograd.grad(y, x, dl_dy)
    assert calls == [0, 1, 0]
    assert errors([found], [expected])[0] <= 0.02


def test_a_number_of_threads_that_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_norms, "LEAST", 1)
    shared: list[tuple[int, Tensor]] = []

    def note(_: Any, way: int, members: int, *arguments: Any) -> None:
        shared.append((members, arguments[-1]))

    monkeypatch.setattr(native_norms, "share", note)
    counts = iter([2, 1, 3, 3, 3])
    monkeypatch.setattr(torch, "get_num_threads", lambda: next(counts))
    layer, x = LayerNorm(8), draw(400, 8)
    torch.autograd.grad(layer(x).sum(), layer.weight)
    (_, _), (members, by_gains) = shared
    assert by_gains.numel() == members * 2 * 8


def test_threads_hold_their_memory_when_the_wait_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_norms, "LEAST", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr("normbook.layers.threads.has_pool", lambda: False)
    may_run, made = threading.Event(), []
    empty_like = torch.empty_like

    class Thread(threading.Thread):
        def run(self) -> None:
            may_run.wait()
            super().run()

        def join(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    def note(*arguments: Any, **options: Any) -> Tensor:
        value = empty_like(*arguments, **options)
        made.append(weakref.ref(value))
        return value

    monkeypatch.setattr("normbook.layers.threads.Thread", Thread)
    monkeypatch.setattr(torch, "empty_like", note)
    before = threading.active_count()
    with contextlib.suppress(KeyboardInterrupt):  # and no frame holds anything
        LayerNorm(8)(draw(4, 8))
    assert [is_there() is not None for is_there in made] == [True]
    may_run.set()
    for _ in range(1000):
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert made[0]() is None
