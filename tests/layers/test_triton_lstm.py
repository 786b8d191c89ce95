"""The layer-normalized LSTM by kernels of Triton: the numbers of the formulas."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import lstm_cases
import pytest
import torch
from lstm_cases import errors, exact, results
from torch import Tensor
from torch.func import functional_call, jvp, vmap
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from triton_cases import (
    DEVICE,
    HAS_GPU,
    WITHOUT,
    draw,
    marks,
    needs_gpu,
    quicken,
)

from normbook.layers import lstm, native
from normbook.layers import triton_lstm as on_gpu

pytest.importorskip("triton", reason=WITHOUT)
pytestmark = [
    *marks,
    # torch's forward mode loads functions that torch itself still scripts.
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the layer take the kernels; count the passes over all steps."""
    monkeypatch.setenv(native.NATIVE, "triton")
    is_paper = property(lambda cell: cell.is_paper)
    monkeypatch.setattr(lstm._Cell, "has_loop", is_paper)
    monkeypatch.setattr(lstm, "can_run", on_gpu.can_run)
    monkeypatch.setattr(lstm, "NativeSequence", on_gpu.TritonSequence)
    counted: list[int] = []
    replay = on_gpu.replay

    def count(*arguments: Any) -> Any:
        counted.append(1)
        return replay(*arguments)

    monkeypatch.setattr(on_gpu, "replay", count)
    return counted


def make(*sizes: int, **options: Any) -> Any:
    return lstm_cases.make(*sizes, **options).to(DEVICE)


def worst(*inputs: Any) -> float:
    return max(errors(*inputs))


# --- numbers: the three ways of judging a chaotic cell


@pytest.mark.parametrize(
    ("examples", "features", "units"), [(11, 5, 33), (1, 3, 33), (3, 4, 65), (4, 2, 8)]
)
def test_few_steps_with_gain_1_are_those_of_the_formulas(
    examples: int, features: int, units: int, calls: list[int]
) -> None:
    layer = make(features, units)
    hx = draw(1, examples, units, seed=8), draw(1, examples, units, seed=9)
    assert worst(layer, draw(7, examples, features), hx) <= 1.3e-5
    assert len(calls) == 2  # forward and backward


@pytest.mark.parametrize("units", [256, 400, 1024, 2048])
def test_rows_of_all_widths(units: int) -> None:
    hx = draw(1, 2, units, seed=8), draw(1, 2, units, seed=9)
    assert worst(make(3, units), draw(2, 2, 3), hx) <= 1.3e-5


@pytest.mark.parametrize("gain", [0.25, 0.1])
def test_whole_runs_with_small_gains_are_those_of_the_formulas(gain: float) -> None:
    x = draw(100, 9, 3) if HAS_GPU else draw(40, 2, 3)
    assert worst(make(3, 40, gain=gain), x) <= 3.2e-6


def test_steps_with_given_states_are_those_of_the_formulas() -> None:
    """At gain 1 the cell is chaotic: all its steps are one call of one step."""
    layer, x = make(3, 40), draw(31, 4, 3)
    twin = exact(layer)
    wide = x.cpu().double()
    with torch.no_grad():
        h = twin(wide)[0]
        c = torch.stack([twin(wide[: t + 1])[1][1][0] for t in range(30)])
    hx = [v.reshape(1, -1, 40).to(x) for v in (h[:30], c)]
    assert worst(layer, x[1:].reshape(1, -1, 3), hx) <= 4e-6


def test_packed_directions_and_layers(calls: list[int]) -> None:
    sequences = [draw(n, 3, seed=n) for n in (2, 4, 1, 4, 2)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    layer = make(3, 6, num_layers=2, bidirectional=True, gain=0.5)
    hx = draw(4, 5, 6, seed=8), draw(4, 5, 6, seed=9)
    assert worst(layer, packed, hx) <= 1e-5
    assert len(calls) == 8


def test_bfloat16_is_near_the_formulas() -> None:
    """Rounded are weights, products, h and gradients; not statistics, nor c."""
    layer = make(3, 33, gain=0.5).bfloat16()
    x = draw(5, 4, 3, dtype=torch.bfloat16)
    hx = [draw(1, 4, 33, seed=k, dtype=torch.bfloat16) for k in (8, 9)]
    assert worst(layer, x, hx) <= 0.04
    assert all(v.dtype == torch.bfloat16 for v in results(layer, x, hx))


def test_without_gradients_the_same_bits() -> None:
    layer, x = make(3, 20), draw(5, 3, 3)
    packed = pack_sequence([x[:, 0], x[:3, 1]])
    for inputs in (x, packed):
        h, last = layer(inputs)
        with torch.no_grad():
            again, last_again = layer(inputs)
        h, again = (getattr(v, "data", v) for v in (h, again))
        assert all(map(torch.equal, (h, *last), (again, *last_again)))


def test_a_program_writes_to_its_own_row() -> None:
    cell, norms = on_gpu.kernels() or (None, None)
    assert cell is not None
    assert norms is not None
    tile = cell.cell_tile(33)
    p, y, gamma_h = (draw(n, 132, seed=n) for n in (3, 4, 1))
    c_prev, dl_dh, at_h, gamma_c = (draw(n, 33, seed=n) for n in (3, 4, 5, 1))

    def untouched(width: int) -> Tensor:
        return torch.full((3, width), 7.0, device=DEVICE)

    def has_one_row(array: Tensor) -> bool:
        return bool((array[0] != 7).all() and (array[1:] == 7).all())

    h, c, moments = untouched(33), untouched(33), untouched(4).T.contiguous()
    outputs = h, c, moments
    inputs: Any = p, y, c_prev, gamma_h, gamma_c, gamma_c
    norms.launch(cell.step_forward, (1,), *inputs, *outputs, 3, 1e-5, **tile)
    assert has_one_row(h)
    assert has_one_row(c)
    assert has_one_row(moments.T)
    at_c, dl_da, dl_dp, dl_du = (untouched(n) for n in (33, 132, 132, 33))
    inputs = dl_dh, at_h, at_c, p, y, c, c_prev, moments, gamma_h, gamma_c, gamma_c
    slopes = dl_da, dl_dp, dl_du
    norms.launch(cell.step_backward, (1,), *inputs, *slopes, 3, **tile)
    assert all(map(has_one_row, (at_c, *slopes)))


# --- the layer around it


def test_missing_parameters() -> None:
    layer = make(3, 8, bias=False, has_redundant_biases=False)
    assert worst(layer, draw(3, 2, 3)) <= 1e-5


def test_frozen_parameters_and_inputs_get_no_gradients() -> None:
    layer, x = make(3, 8), draw(2, 2, 3)
    w_h: Any = layer.w_h_l0
    w_h.requires_grad_(False)
    layer(x)[0].sum().backward()
    assert w_h.grad is None
    assert layer.w_x_l0.grad is not None
    layer(x)[1][1].sum().backward()  # only c_last is used


def test_layouts_do_not_matter() -> None:
    layer, x = make(3, 8), draw(3, 2, 3)
    strange = draw(2, 3, 3).transpose(0, 1).copy_(x)
    assert torch.equal(layer(x)[0], layer(strange)[0])
    h_0 = draw(1, 8, 2, seed=3).transpose(1, 2)
    assert torch.equal(*(layer(x, (v, v))[0] for v in (h_0, h_0.contiguous())))
    expected = results(layer, x)
    for name, value in list(layer.named_parameters()):
        if value.ndim == 1:  # every other number of twice as many
            strided = torch.stack([value, value], 1).detach()[:, 0]
            setattr(layer, name, torch.nn.Parameter(strided))
            assert not getattr(layer, name).is_contiguous()
    assert all(map(torch.equal, results(layer, x), expected))


def test_what_it_leaves_to_others(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = make(3, 8), draw(2, 2, 3)
    weights = {k: v.detach() for k, v in layer.named_parameters()}
    make(3, 8, native=False)(x)
    others: Any = {"norm": "sum"}, {"norm": None}, {"hats": "pc"}
    for options in others:
        make(3, 8, **options)(x)
    make(3, 8).double()(x.double())
    make(3, 8).half()(x.half())
    vmap(lambda v: layer(v)[0])(x[None])
    jvp(lambda v: functional_call(layer, weights, v)[0], (x,), (x,))
    with FlopCounterMode(display=False):
        layer(x)
    monkeypatch.setenv(native.NATIVE, "1")
    layer(x)
    monkeypatch.setenv(native.NATIVE, "triton")
    monkeypatch.setattr(on_gpu, "kernels", lambda: None)
    layer(x)
    assert not calls
    monkeypatch.undo()


def test_what_is_too_wide_for_one_program_is_left_to_others() -> None:
    for units, is_able in ((2048, True), (2049, False)):
        tensors = [draw(1, 1, 1), draw(1, units), draw(1, units)]
        assert on_gpu.can_run(tensors) == is_able


def test_second_derivatives_are_those_of_the_formulas() -> None:
    layer = make(3, 5)
    both = []
    for is_native in (True, False):
        layer.native = is_native
        x = draw(3, 2, 3).requires_grad_()
        (slope,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
        both.append(torch.autograd.grad((slope**2).sum(), [x, *layer.parameters()]))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_autocast_and_checkpoint_change_nothing() -> None:
    layer, x = make(3, 8), draw(3, 2, 3)
    expected = results(layer, x)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert all(map(torch.equal, results(layer, x), expected))
    gradients = []
    runs: Any = layer, lambda v: checkpoint(layer, v, use_reentrant=False)
    for run in runs:
        layer.zero_grad()
        run(x)[0].sum().backward()
        gradients.append([v.grad for v in layer.parameters() if v.grad is not None])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("changed", ["h", "w_h_l0", "gamma_c_l0"])
def test_changes_before_backward_are_refused(changed: str) -> None:
    layer, x = make(3, 8), draw(2, 2, 3)
    h = layer(x)[0]
    with torch.no_grad():
        (h if changed == "h" else getattr(layer, changed)).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_backward_twice_gives_the_same() -> None:
    """What was saved is not written to."""
    layer, x = make(3, 8), draw(3, 2, 3).requires_grad_()
    hx = [draw(1, 2, 8, seed=k).requires_grad_() for k in (8, 9)]
    outputs = layer(x, hx)
    slopes = [draw(*v.shape, seed=7) for v in (outputs[0], *outputs[1])]
    leaves = x, *hx, *layer.parameters()
    arguments = (outputs[0], *outputs[1]), leaves, slopes
    first = torch.autograd.grad(*arguments, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(*arguments)))


# --- graphs


class OnGPU(Tensor):
    """A tensor that says it were on a GPU."""

    device = torch.device("cuda", 0)


class Pretended:
    """GPU and graph of steps that double a and add 1 to b in place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.runs: list[Any] = []
        self.replays = 0
        self.streams = [7]
        for cache in (on_gpu._calls, on_gpu._graph):
            cache.cache_clear()
        patch.setattr(on_gpu, "_stream", lambda _: None)
        cuda = {
            "device": contextlib.nullcontext,
            "graph": lambda *_, **__: contextlib.nullcontext(),
            "is_current_stream_capturing": lambda: False,
            "current_stream": lambda: SimpleNamespace(cuda_stream=self.streams[0]),
            "CUDAGraph": lambda: SimpleNamespace(replay=self.replayer()),
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)

    def steps(self, options: Any, a: Tensor, b: Tensor) -> list[Tensor]:
        b.add_(1)
        self.runs.append([a, b, 2 * a])
        return [self.runs[-1][2], b]

    def replayer(self) -> Any:
        place = len(self.runs) + 1  # behind one run that compiles

        def replay() -> None:
            self.replays += 1
            a, b, doubled = self.runs[place]
            b.add_(1)
            doubled.copy_(2 * a)

        return replay

    def call(self, value: float, size: int = 2, option: Any = 1) -> list[Any]:
        a, b = (torch.full((size,), v).as_subclass(OnGPU) for v in (value, 0.0))
        return [v.tolist() for v in on_gpu.replay(self.steps, (option,), a, b)]


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    yield Pretended(monkeypatch)
    on_gpu._calls.cache_clear()
    on_gpu._graph.cache_clear()


def test_what_comes_again_is_recorded_and_reads_the_new_inputs(
    pretended: Pretended,
) -> None:
    for k, (runs, replays) in enumerate([(1, 0), (3, 1), (3, 2), (3, 3)]):
        assert pretended.call(k) == [[2 * k] * 2, [1, 1]]
        assert (len(pretended.runs), pretended.replays) == (runs, replays)


def test_results_of_a_graph_are_not_overwritten(pretended: Pretended) -> None:
    a, b = (torch.full((2,), v).as_subclass(OnGPU) for v in (3.0, 0.0))
    first = [on_gpu.replay(pretended.steps, (), a, b.clone()) for _ in range(3)][-1]
    on_gpu.replay(pretended.steps, (), a + 1, b)
    assert first[0].tolist() == [6, 6]
    assert first[1].tolist() == [1, 1]


def test_a_graph_belongs_to_shapes_options_settings_and_stream(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        pretended.call(1.0)
    assert pretended.replays == 1
    pretended.call(1.0, size=3)
    pretended.call(1.0, option=2)
    pretended.streams[0] = 8
    pretended.call(1.0)
    pretended.streams[0] = 7
    monkeypatch.setattr(on_gpu, "_settings", lambda: ("tf32", True))
    pretended.call(1.0)
    assert pretended.replays == 1
    monkeypatch.undo()


def test_settings_name_the_precision_of_products() -> None:
    before = on_gpu._settings()
    torch.set_float32_matmul_precision("high")
    try:
        assert on_gpu._settings() != before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_graphs_are_few_and_small(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in range(1, on_gpu.MOST + 4):
        for _ in range(2):
            pretended.call(1.0, size)
    assert on_gpu._graph.cache_info().currsize == on_gpu.MOST
    replays = pretended.replays
    monkeypatch.setattr(on_gpu, "LARGEST", 8)
    for _ in range(3):
        assert pretended.call(1.0, 2) == [[2, 2], [1, 1]]
    assert pretended.replays == replays


def test_others_that_record_get_launches(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(3):
        pretended.call(1.0)
    assert pretended.replays == 0


def test_what_cannot_be_recorded_is_launched(
    pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    @contextlib.contextmanager
    def refuse(*_: Any, **__: Any) -> Iterator[None]:
        tried.append(1)
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    for k in range(4):
        assert pretended.call(k) == [[2 * k] * 2, [1, 1]]
    assert len(tried) == 1
    assert pretended.replays == 0


@needs_gpu
def test_graphs_compute_the_same_bits() -> None:
    on_gpu._calls.cache_clear()
    on_gpu._graph.cache_clear()
    layer, x = make(3, 40), draw(20, 4, 3)
    first = results(layer, x)
    assert on_gpu._graph.cache_info().currsize == 0
    for _ in range(3):
        assert all(map(torch.equal, results(layer, x), first))
    assert on_gpu._graph.cache_info().currsize == 2  # forward and backward
    assert all(v.graph is not None for v in recorded())
    other = draw(20, 4, 3, seed=5)
    assert worst(make(3, 40, gain=0.1), other) <= 3.2e-6
    w_h: Any = layer.w_h_l0
    with torch.no_grad():
        w_h.mul_(0.5)
    fresh = copy.deepcopy(layer)
    assert torch.equal(layer(x)[0], fresh(x)[0])


def recorded() -> list[Any]:
    import gc

    return [v for v in gc.get_objects() if isinstance(v, on_gpu._Graph)]


@needs_gpu
def test_graphs_are_bounded_and_of_their_stream() -> None:
    on_gpu._calls.cache_clear()
    on_gpu._graph.cache_clear()
    layer = make(3, 40)
    with torch.no_grad():
        for steps in range(2, 8 + on_gpu.MOST):
            x = draw(steps, 2, 3)
            h = [layer(x)[0] for _ in range(3)]
            assert torch.equal(h[0], h[2])
    assert len(recorded()) <= on_gpu.MOST
    expected = layer(x)[0]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        h = [layer(x)[0] for _ in range(3)]
    stream.synchronize()
    assert all(torch.equal(v, expected) for v in h)


@needs_gpu
def test_a_graph_of_the_user_records_the_steps() -> None:
    layer, x = make(3, 40), draw(6, 2, 3)
    with torch.no_grad():
        expected = layer(x)[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            h = layer(x)[0]
        h.zero_()
        graph.replay()
    assert torch.equal(h, expected)


@needs_gpu
def test_settings_of_products_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make(64, 256, gain=0.1), draw(10, 32, 64)
    with torch.no_grad():
        h = []
        for precision in ("highest", "high", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            h.append([layer(x)[0] for _ in range(3)][-1])
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(h[0], h[2])
    assert torch.equal(h[1], h[3])
    assert not torch.equal(h[0], h[1])
