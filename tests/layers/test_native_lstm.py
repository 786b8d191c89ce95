"""The compiled loop of the LSTM: the numbers of the formulas, and only where it can."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lstm_cases import draw, errors, make, results
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, jvp, vmap
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from normbook.layers import native
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.threads import together

# torch's forward mode loads functions that torch itself still scripts.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)
pytest.importorskip("numba")
from normbook.layers import compiled_lstm as compiled  # noqa: E402

NORMS = "terms", None
each_norm = pytest.mark.parametrize("norm", NORMS)
OTHERS: list[dict[str, Any]] = [
    *({"hats": hats} for hats in ("pq", "pc", "qc", "p", "q", "c", "")),
    {"norm": "sum"},
    {"norm": "sum", "hats": "pq"},
    *({"carried": "normalized", "hats": hats} for hats in ("pqc", "pc", "c")),
    {"carried": "normalized", "norm": "sum"},
]
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls of the loop."""
    monkeypatch.delenv(native.NATIVE, raising=False)
    counted: list[int] = []
    original = native._Run.__init__

    def count(self: Any, *arguments: Any) -> None:
        counted.append(1)
        original(self, *arguments)

    monkeypatch.setattr(native._Run, "__init__", count)
    return counted


@each_norm
@pytest.mark.parametrize(
    ("examples", "features", "units"),
    [(11, 5, 33), (1, 3, 33), (13, 2, 8), (2, 1, 2), (3, 4, 65), (32, 3, 16)],
)
def test_few_steps_with_gain_1_are_those_of_the_formulas(
    norm: Any, examples: int, features: int, units: int, calls: list[int]
) -> None:
    layer = make(features, units, norm=norm)
    formulas = copy.deepcopy(layer)
    formulas.native = False
    x = draw(7, examples, features)
    hx = draw(1, examples, units, seed=8), draw(1, examples, units, seed=9)
    found, rounding = errors(layer, x, hx), errors(formulas, x, hx)
    # Behind hats of two units a gradient cancels: the formulas are off by 2e-5 there.
    assert all(a <= max(1.3e-5, 3 * b) for a, b in zip(found, rounding, strict=True))
    assert len(calls) == 2  # forward and backward


@each_norm
@pytest.mark.parametrize("gain", [0.25, 0.1])
def test_whole_runs_with_small_gains_are_those_of_the_formulas(
    norm: Any, gain: float
) -> None:
    layer = make(3, 40, gain=gain, norm=norm)
    assert max(errors(layer, draw(100, 9, 3))) <= 3.2e-6


def test_steps_with_given_states_are_those_of_the_formulas() -> None:
    """At gain 1 the cell is chaotic: all its steps are one call of one step."""
    layer = make(3, 40)
    exact = make(3, 40, native=False).double()
    x = draw(60, 4, 3)
    with torch.no_grad():
        h = exact(x.double())[0]
        c = torch.stack([exact(x[: t + 1].double())[1][1][0] for t in range(59)])
    hx = [v.reshape(1, -1, 40).float() for v in (h[:59], c)]
    assert max(errors(layer, x[1:].reshape(1, -1, 3), hx)) <= 4e-6


@each_norm
def test_packed_directions_and_layers(norm: Any, calls: list[int]) -> None:
    sequences = [draw(n, 3, seed=n) for n in (3, 6, 1, 5, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    layer = make(3, 6, num_layers=2, bidirectional=True, norm=norm, gain=0.5)
    hx = draw(4, 5, 6, seed=8), draw(4, 5, 6, seed=9)
    assert max(errors(layer, packed, hx)) <= 1e-5
    assert len(calls) == 8
    batched = make(3, 6, num_layers=2, bidirectional=True, batch_first=True, norm=norm)
    assert max(errors(batched, draw(5, 4, 3))) <= 1e-5


@pytest.mark.parametrize("options", OTHERS, ids=str)
def test_other_cells(options: dict[str, Any], calls: list[int]) -> None:
    sequences = [draw(n, 3, seed=n).double() for n in (3, 6, 1, 5, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    layer = make(3, 33, num_layers=2, **options).double()
    hx = draw(2, 5, 33, seed=8).double(), draw(2, 5, 33, seed=9).double()
    assert max(errors(layer, packed, hx)) <= 1e-12
    assert len(calls) == 4
    with torch.no_grad():  # moments of one step at a time
        (h, last), (again, of_inference) = results_of(layer, packed, hx)
    assert torch.equal(h, again)
    assert all(map(torch.equal, last, of_inference))


def results_of(layer: Any, packed: Any, hx: Any) -> Any:
    """Return outputs, kept for backward and not."""
    with torch.enable_grad():
        kept = layer(packed, hx)
    return [(h.data, last) for h, last in (kept, layer(packed, hx))]


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@each_norm
def test_in_float64(norm: Any, options: Any, calls: list[int]) -> None:
    sequences = [draw(n, 3, seed=n).double() for n in (3, 6, 1, 5, 3)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    layer = make(3, 33, norm=norm, **options).double()
    assert max(errors(layer, packed)) <= 1e-13
    assert len(calls) == 2 * len(layer._endings())


LENGTHS = (6, 6, 3, 6, 6)  # two examples alone would have hardly any gradient


@pytest.mark.parametrize("mode", ["train", "eval", "one norm frozen", "one alone"])
@each_dtype
def test_batch_norm(mode: str, dtype: Any, calls: list[int]) -> None:
    lengths = (*LENGTHS, 9) if mode == "one alone" else LENGTHS
    layer = batch_norm_layer(dtype).train(mode != "eval")
    if mode == "one norm frozen":
        layer.norm_c_l0.eval()
    sequences = [draw(n, 3, seed=n).to(layer.b_l0) for n in lengths]
    packed = pack_sequence(sequences, enforce_sorted=False)
    hx = [draw(2, len(lengths), 33, seed=k).to(layer.b_l0) for k in (8, 9)]
    least = 5e-13 if dtype == np.float64 else 1e-4
    assert max(errors(layer, packed, hx)) <= least
    parts = 2 if mode == "one alone" else 1
    assert len(calls) == 4 * parts  # two directions, forward and backward
    exact = batch_norm_layer(np.float64, native=False).train(mode != "eval")
    exact.norm_c_l0.train(mode not in ("eval", "one norm frozen"))
    exact(packed._replace(data=packed.data.double()), [v.double() for v in hx])
    for a, b in zip(layer.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=least, atol=least)


def batch_norm_layer(dtype: Any, **options: Any) -> Any:
    """Return a layer whose statistics are drawn."""
    torch.manual_seed(3)
    layer = BatchNormLSTM(3, 33, 9, bidirectional=True, **options)
    with torch.no_grad():
        for name, value in layer.state_dict().items():
            if value.is_floating_point():
                low = 0.5 if "norm" in name else -0.3
                value.uniform_(low, low + 0.6)
    return layer.double() if dtype == np.float64 else layer


def test_batch_norm_twice_differentiated_and_far_from_0(calls: list[int]) -> None:
    slopes = []
    for is_native in (True, False):
        layer = batch_norm_layer(np.float64, native=is_native)
        x = draw(4, 5, 3).double().requires_grad_()
        (slope,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
        slopes.append(torch.autograd.grad(slope.square().sum(), [x, layer.w_h_l0]))
    assert len(calls) == 2  # forward, in both directions
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b)
    # W_x x lies 1 000 times its spread from 0.
    layer = batch_norm_layer(np.float32)
    with torch.no_grad():
        far = draw(4, 50, 3) + 1000
        exact = batch_norm_layer(np.float64, native=False)
        found, expected = layer(far)[0], exact(far.double())[0]
    assert (found - expected).abs().max() <= 2e-3


def test_a_nan_stays_with_its_example_where_statistics_are_given() -> None:
    layer, x = batch_norm_layer(np.float32).eval(), draw(4, 3, 3)
    x[2, 1] = float("nan")
    x.requires_grad_()
    (slope,) = torch.autograd.grad(layer(x)[0].sum(), x)
    assert slope[:, [0, 2]].isfinite().all()
    assert slope[:, 1].isnan().any()


@each_norm
def test_slopes_of_two_ways_back_are_added(norm: Any) -> None:
    layer, x = make(3, 8, norm=norm), draw(4, 2, 3)
    once = torch.autograd.grad(layer(x)[0].sum(), list(layer.parameters()))
    loss = layer(x)[0].sum()
    loss.backward(retain_graph=True)
    loss.backward()
    for value, slope in zip(layer.parameters(), once, strict=True):
        torch.testing.assert_close(value.grad, 2 * slope)


@each_norm
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("examples", [1, 7, 50])
@pytest.mark.parametrize("has_pool", [True, False])
def test_threads_share_the_work(
    norm: Any,
    threads: int,
    examples: int,
    has_pool: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_pool:
        monkeypatch.setattr("normbook.layers.threads.has_pool", lambda: False)
    began = []

    def note(run: Any, members: int, **options: Any) -> None:
        began.append(members)
        together(run, members, **options)

    monkeypatch.setattr(native, "together", note)
    layer, x = make(3, 320, norm=norm, gain=0.25), draw(20, examples, 3)
    sequences = [draw(n, 3) for n in range(min(examples, 20), 21, 7)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    before = torch.get_num_threads()
    by_threads = []
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            by_threads.append([*results(layer, x), *results(layer, packed)])
    finally:
        torch.set_num_threads(before)
    for one, several in zip(*by_threads, strict=True):
        torch.testing.assert_close(one, several, rtol=1e-5, atol=1e-5)
    assert torch.equal(by_threads[0][0], by_threads[1][0])
    assert {*began} == {1, threads}
    assert began.count(threads) >= 4  # there and back, twice


@each_norm
def test_without_gradients_the_same_bits(norm: Any) -> None:
    layer, x = make(3, 20, norm=norm), draw(30, 5, 3)
    h, (h_last, c_last) = layer(x)
    with torch.no_grad():
        again, (h_again, c_again) = layer(x)
    assert torch.equal(h, again)
    assert torch.equal(h_last, h_again)
    assert torch.equal(c_last, c_again)


def test_missing_parameters() -> None:
    layer = make(3, 8, bias=False, has_redundant_biases=False)
    assert max(errors(layer, draw(5, 2, 3))) <= 1e-5


def test_frozen_parameters_and_inputs_get_no_gradients() -> None:
    layer, x = make(3, 8), draw(5, 2, 3)
    layer.w_h_l0.requires_grad_(False)
    layer(x)[0].sum().backward()
    assert layer.w_h_l0.grad is None
    assert layer.w_x_l0.grad is not None
    outcome = layer(x)[1][1]  # only c_last is used
    outcome.sum().backward()


def test_layouts_do_not_matter() -> None:
    layer, x = make(3, 8), draw(5, 2, 3)
    strange = draw(2, 5, 3).transpose(0, 1).copy_(x)
    assert torch.equal(layer(x)[0], layer(strange)[0])
    h_0 = draw(1, 8, 2, seed=3).transpose(1, 2)
    both = [layer(x, (v, v))[0] for v in (h_0, h_0.contiguous())]
    assert torch.equal(*both)


def test_what_it_leaves_to_the_formulas(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, layer = draw(4, 2, 3), make(3, 8)
    weights = {k: v.detach() for k, v in layer.named_parameters()}
    make(3, 8, native=False)(x)
    make(3, 8, norm="gates")(x)
    make(3, 8).half()(x.half())
    vmap(lambda v: layer(v)[0])(x[None])
    jvp(lambda v: functional_call(layer, weights, v)[0], (x,), (x,))
    with FlopCounterMode(display=False) as flops:
        layer(x)
    assert flops.get_total_flops() > 0
    monkeypatch.setenv(native.NATIVE, "0")
    layer(x)
    assert not calls
    monkeypatch.setenv(native.NATIVE, "1")
    layer(x)
    assert calls


def test_second_derivatives_are_those_of_the_formulas(calls: list[int]) -> None:
    layer = make(3, 5)
    found = []
    for is_native in (True, False):
        layer.native = is_native
        x = draw(3, 2, 3).requires_grad_()
        (slope,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
        found.append(torch.autograd.grad((slope**2).sum(), [x, *layer.parameters()]))
    assert len(calls) == 1  # forward, once
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_autocast_and_checkpoint_change_nothing() -> None:
    layer, x = make(3, 8), draw(4, 2, 3)
    expected = results(layer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results(layer, x)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    layer.zero_grad()
    h: Any = checkpoint(lambda v: layer(v)[0], x, use_reentrant=False)
    h.sum().backward()
    grad = layer.w_h_l0.grad
    layer.zero_grad()
    layer(x)[0].sum().backward()
    assert grad is not None
    assert layer.w_h_l0.grad is not None
    assert torch.equal(grad, layer.w_h_l0.grad)


def test_changes_before_backward_are_refused() -> None:
    layer, x = make(3, 8), draw(4, 2, 3)
    for changed in ("h", "w_h_l0", "gamma_c_l0"):
        h = layer(x)[0]
        with torch.no_grad():
            (h if changed == "h" else getattr(layer, changed)).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            h.sum().backward()


def test_saved_tensors_hooks_see_all() -> None:
    layer, x = make(3, 8), draw(4, 2, 3)
    kept: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value)
        return value

    with saved_tensors_hooks(keep, lambda value: value):
        h = layer(x)[0]
    h.sum().backward()
    assert len(kept) >= 10


def test_weights_that_change_are_seen_without_gradients() -> None:
    layer, x = make(3, 8), draw(4, 2, 3)
    changes: list[Callable[[Any], Any]] = [
        lambda w: w.mul_(2),
        lambda w: w.data.mul_(2),
        lambda w: w.data.numpy().__imul__(np.float32(2)),
    ]
    with torch.no_grad():
        layer(x)
        for change in changes:
            change(layer.w_h_l0)
            fresh = copy.deepcopy(layer)
            assert torch.equal(layer(x)[0], fresh(x)[0])
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x)[0], layer(x)[0])  # noqa: S301


def test_a_layer_may_change_its_dtype_between_calls_without_gradients() -> None:
    layer, x = make(3, 8), draw(4, 2, 3)
    with torch.no_grad():
        expected = layer(x)[0]
        found = layer.double()(x.double())[0]
        assert (found - expected).abs().max() <= 1e-5
        assert torch.equal(layer.float()(x)[0], expected)


def test_nan_and_large_numbers_go_through() -> None:
    layer, x = make(3, 8, norm=None), draw(4, 2, 3)
    x[2, 1, 0] = float("nan")
    h = layer(x)[0]
    assert h[:2].isfinite().all()
    assert h[2:, 1].isnan().all()
    assert h[:, 0].isfinite().all()
    assert layer(1e30 * draw(4, 2, 3))[0].isfinite().all()


@each_dtype
def test_functions_of_the_gates_over_all_sizes(dtype: Any) -> None:
    a = np.linspace(-30, 30, 100_001)
    a = np.concatenate([a, a * 1e-4, [1e30, -1e30, 0]]).astype(dtype)
    exact = a.astype(np.longdouble)
    s, t = a.copy(), a.copy()
    compiled.sigmoid(s)
    compiled.tanh(t)
    largest, few = (80, 3e-7) if dtype == np.float32 else (700, 6e-16)
    expected = 1 / (1 + np.exp(-np.clip(exact, -largest, largest)))
    assert np.abs(s / expected - 1).max() <= few
    is_zero = exact == 0
    assert (t[is_zero] == 0).all()
    expected = np.tanh(exact[~is_zero])
    assert np.abs(t[~is_zero] / expected - 1).max() <= few


@each_dtype
@pytest.mark.parametrize("rows", range(1, 20))
def test_tiles_of_all_sizes(rows: int, dtype: Any) -> None:
    rng = np.random.default_rng(rows)
    for depth, columns in ((1, 1), (7, 33), (33, 132), (5, 64)):
        x, w = (
            rng.standard_normal(shape).astype(dtype)
            for shape in ((rows + 2, depth + 3), (depth, columns))
        )
        to = np.full((rows + 3, compiled.padded(columns, x.dtype)), 7, dtype)
        compiled.product(x, 2, rows, compiled.pack(w, False), depth, to, 1, 0, 1)
        assert (compiled.pack(w, False) == compiled.pack(w.T.copy(), True)).all()
        exact = x[2:, :depth].astype(np.longdouble) @ w
        assert np.abs(to[1:-2, :columns] - exact).max() <= 100 * np.finfo(dtype).eps
        assert (to[0] == 7).all()
        assert (to[-2:] == 7).all()


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
        make(3, 8)(draw(4, 2, 3))
    assert not calls


def test_a_numba_that_cannot_be_imported_is_told_once(
    fresh: None, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    import normbook.layers

    monkeypatch.delattr(normbook.layers, "compiled_lstm")
    monkeypatch.setitem(sys.modules, "normbook.layers.compiled_lstm", None)
    layer, x = make(3, 8), draw(4, 2, 3)
    with pytest.warns(UserWarning, match="must import numba, got .*Install a fitting"):
        layer(x)
    layer(x)
    assert not calls


@pytest.mark.parametrize("has_pool", [True, False])
def test_an_error_in_one_thread_leaves_no_other_waiting(
    has_pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pool:
        monkeypatch.setattr("normbook.layers.threads.has_pool", lambda: False)
    monkeypatch.setattr(native, "LEAST", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    forward: Any = compiled.forward
    for broken in (0, 1):

        def fails(*arguments: Any, broken: int = broken) -> None:
            *_, me, _, _ = arguments
            if me == broken:
                raise KeyboardInterrupt
            forward(*arguments)

        monkeypatch.setattr(compiled, "forward", fails)
        with pytest.raises(KeyboardInterrupt):
            make(3, 40)(draw(4, 9, 3))


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("w_x", (24, 5)),
        ("w_h", (24, 7)),
        ("w_h", (28, 6)),
        ("b", (1,)),
        ("gamma_h", (6,)),
        ("beta_x", (25,)),
        ("gamma_c", (5,)),
        ("beta_c", (6, 1)),
    ],
)
def test_parameters_of_another_shape_are_refused(
    name: str, shape: tuple[int, ...], is_native: bool
) -> None:
    for layer in (make(3, 6, native=is_native), BatchNormLSTM(3, 6, 9)):
        layer.native = is_native
        full = name + "_l0"
        if isinstance(layer, BatchNormLSTM):
            full = IN_BATCH_NORM.get(name, full)
        if full in dict(layer.named_parameters()):
            with pytest.raises(RuntimeError, match=f"{name} must have shape"):
                functional_call(layer, {full: torch.ones(shape)}, draw(4, 2, 3))


IN_BATCH_NORM = {
    "gamma_h": "norm_h_l0.weight",
    "gamma_c": "norm_c_l0.weight",
    "beta_c": "norm_c_l0.bias",
}


@pytest.mark.parametrize(
    "sizes", [[3, 2], [2, 2, 1], [1, 2, 1], [5, -1], [4, 0], [2, 2000]]
)
def test_batch_sizes_that_do_not_fit_are_refused(sizes: list[int]) -> None:
    packed = PackedSequence(draw(4, 3), torch.tensor(sizes))
    for options in ({}, {"bidirectional": True}, {"proj_size": 2}):
        with pytest.raises(ValueError, match="batch_sizes must"):
            make(3, 6, **options)(packed)
    if sizes != [4, 0]:
        with pytest.raises(ValueError, match="batch_sizes must"):
            BatchNormLSTM(3, 6, 9, bidirectional=True)(packed)


def test_another_default_device_changes_nothing() -> None:
    packed = pack_sequence([draw(n, 3, seed=n) for n in (5, 3, 2)])
    layer = make(3, 6, bidirectional=True)
    expected = layer(packed)[0].data
    with torch.device("meta"):
        assert torch.equal(layer(packed)[0].data, expected)


KINDS = [
    *(
        pytest.param({"norm": norm, "native": is_native}, id=f"{norm}-{is_native}")
        for norm in NORMS
        for is_native in (True, False)
    ),
    pytest.param(None, id="batch norm"),
]


@pytest.mark.parametrize("options", KINDS)
def test_tangents_and_what_lies_in_no_memory_on_the_way_back(options: Any) -> None:
    layer = (
        BatchNormLSTM(3, 6, 9) if options is None else make(3, 6, **options)
    ).double()
    x = draw(4, 5, 3).double().requires_grad_()
    slope, tangent = (draw(4, 5, 6, seed=k).double() for k in (8, 9))

    def back(dl_dh: Tensor) -> Tensor:
        return torch.autograd.grad(layer(x)[0], x, dl_dh)[0]

    forward: Any = forward_ad  # without types
    with forward.dual_level():
        dl_dx = forward.unpack_dual(back(forward.make_dual(slope, tangent)))
    torch.testing.assert_close(dl_dx.primal, back(slope))
    torch.testing.assert_close(dl_dx.tangent, back(tangent))
    assert not back(torch._efficientzerotensor((4, 5, 6), dtype=x.dtype)).any()
    conjugate = torch.complex(slope, tangent).conj().imag
    assert conjugate.is_neg()
    torch.testing.assert_close(back(conjugate), back(-tangent))


def test_forward_mode_through_batch_norm() -> None:
    x, tangent = (draw(4, 5, 3, seed=k).double() for k in (8, 9))
    forward: Any = forward_ad  # without types
    found = []
    for is_native in (True, False):
        torch.manual_seed(3)
        layer = BatchNormLSTM(3, 6, 9, native=is_native).double()
        with forward.dual_level():
            h = layer(forward.make_dual(x, tangent))[0]
            found.append(forward.unpack_dual(h).tangent)
    torch.testing.assert_close(*found)
