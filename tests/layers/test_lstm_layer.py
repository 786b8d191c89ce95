"""The layer-normalized LSTM as a layer: beside nn.LSTM, beside the core, and alone."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from layer_pairs import assert_equal, distance, each_copy, stirred, zeros
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from normbook.layer_norm_lstm import LayerNormLSTMParameters, layer_norm_lstm
from normbook.layers import torch_lstm
from normbook.layers.lstm import LayerNormLSTM
from normbook.layers.native import NATIVE
from normbook.layers.torch_lstm import TorchSequence
from normbook.lstm import LSTMParameters, lstm

# float64, the same sums in another order, over 6 steps and 3 layers.
EXACT = 1e-12
assert_same = functools.partial(assert_equal, tolerance=EXACT)
T, N, D, H = 6, 5, 3, 4
LENGTHS = [3, 6, 1, 5, 3]  # of N sequences
SIZES = (5, 4, 4, 2, 2, 1)  # sequences alive at each step
KINDS = ["steps first", "batch first", "one", "one, batch first", "sorted", "unsorted"]
NORMS = [None, "terms", "sum", "gates"]
OPTIONS = [
    {"norm": norm, "carried": carried}
    for norm in NORMS
    for carried in ("raw", "normalized")
    if norm is not None or carried == "raw"
]
OPTIONS += [
    {"norm": "terms", "carried": "raw", "hats": "qc"},
    {"norm": "terms", "carried": "normalized", "hats": "c"},
    {"norm": "sum", "carried": "raw", "hats": "pq"},
]
each_cell = pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: "-".join(map(str, o.values()))
)
each_packing = pytest.mark.parametrize("is_packed", [False, True], ids=["", "packed"])
# torch's forward mode loads functions that torch itself still scripts.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def by_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the compiled loop to test_native_lstm."""
    monkeypatch.setenv(NATIVE, "0")


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return values of the size at which no gate is quite open or shut."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def make(**options: Any) -> Any:
    """Return a layer in which each parameter acts: gains and biases are drawn."""
    return stirred(LayerNormLSTM(D, H, **{"dtype": torch.float64} | options), -1, 1)


def twins(**options: Any) -> tuple[Any, Any]:
    """Return our plain LSTM and torch's, with the same weights."""
    options = {"dtype": torch.float64} | options
    ours = LayerNormLSTM(D, H, norm=None, **options)
    theirs = stirred(nn.LSTM(D, H, **options), -1, 1)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def is_batch_first(kind: str) -> bool:
    return kind.endswith("batch first")


def sequences(kind: str, x: Tensor) -> Tensor | PackedSequence:
    """Arrange x of shape (T, N, D) in one of the ways that the layers take."""
    if kind == "batch first":
        return x.transpose(0, 1)
    if kind.startswith("one"):
        return x[:, 0]
    if kind == "steps first":
        return x
    lengths = sorted(LENGTHS, reverse=True) if kind == "sorted" else LENGTHS
    parts = [x[:length, k] for k, length in enumerate(lengths)]
    return pack_sequence(parts, enforce_sorted=kind == "sorted")


def first_states(layer: Any, kind: str) -> tuple[Tensor, Tensor]:
    layers = layer.num_layers * (2 if layer.bidirectional else 1)
    shape = (layers,) if kind.startswith("one") else (layers, N)
    sizes = layer.proj_size or H, H
    h_0, c_0 = (draw(*shape, size, seed=size) for size in sizes)
    return h_0.requires_grad_(), c_0.requires_grad_()


def as_ours(name: str, value: Tensor) -> tuple[str, Tensor]:
    """Return the name and the order of the gates that we use for a value of nn.LSTM."""
    kind, _, ending = name.partition("_l")
    if kind == "weight_hr":
        return f"w_r_l{ending}", value
    if kind not in ("weight_ih", "weight_hh", "bias_ih"):
        return name, value
    i, f, g, o = value.chunk(4)
    ours = {"weight_ih": "w_x", "weight_hh": "w_h", "bias_ih": "b"}[kind]
    return f"{ours}_l{ending}", torch.cat([f, i, o, g])


def run(layer: Any, kind: str, has_states: bool = False) -> dict[str, Tensor]:
    """Return the outputs and every gradient."""
    x = draw(T, N, D, seed=1).requires_grad_()
    states = first_states(layer, kind) if has_states else None
    h, last = layer(sequences(kind, x), states)
    if isinstance(h, PackedSequence):
        h = pad_packed_sequence(h)[0]
    found = {"h": h, "h_last": last[0], "c_last": last[1]}
    loss = sum(
        (value * draw(*value.shape, seed=k)).sum()
        for k, value in enumerate(found.values(), start=2)
    )
    leaves = {"x": x, **dict(layer.named_parameters())}
    if states is not None:
        leaves |= {"h_0": states[0], "c_0": states[1]}
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    pairs = zip(leaves, slopes, strict=True)
    found |= dict(as_ours(name, slope) for name, slope in pairs)
    return {name: v for name, v in found.items() if not name.startswith("bias_hh")}


# --- beside nn.LSTM


@pytest.mark.parametrize("has_states", [False, True], ids=["", "states"])
@pytest.mark.parametrize("bias", [True, False], ids=["", "no bias"])
@pytest.mark.parametrize("both_ways", [False, True], ids=["", "both ways"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_without_layer_norm_outputs_and_gradients_are_those_of_torch(
    kind: str, num_layers: int, both_ways: bool, bias: bool, has_states: bool
) -> None:
    options = {"num_layers": num_layers, "bidirectional": both_ways, "bias": bias}
    layers = twins(batch_first=is_batch_first(kind), **options)
    ours, theirs = (run(layer, kind, has_states) for layer in layers)
    assert_same(ours, theirs)


@pytest.mark.parametrize("has_states", [False, True], ids=["", "states"])
@pytest.mark.parametrize("both_ways", [False, True], ids=["", "both ways"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_a_projection_too(kind: str, both_ways: bool, has_states: bool) -> None:
    options = {"num_layers": 2, "bidirectional": both_ways, "proj_size": 3}
    layers = twins(batch_first=is_batch_first(kind), **options)
    ours, theirs = (run(layer, kind, has_states) for layer in layers)
    assert_same(ours, theirs)
    assert repr(layers[0].as_lstm()) == repr(layers[1])
    assert_same(run(layers[0].as_lstm(), kind, has_states), theirs)


@each_cell
def test_what_is_projected_is_what_the_next_step_takes(options: dict[str, Any]) -> None:
    layer = make(proj_size=2, **options)
    whole = LayerNormLSTM(D, H, dtype=torch.float64, **options)
    for name, value in layer.named_parameters():
        if name not in ("w_h_l0", "w_r_l0"):
            getattr(whole, name).data = value.data
    x, h, c = draw(T, N, D), draw(1, N, 2, seed=8), draw(1, N, H, seed=9)
    found, (h_last, c_last) = layer(x, (h, c))
    for t in range(T):  # W_h v for v of four numbers, the last two of which are 0
        whole.w_h_l0.data = nn.functional.pad(layer.w_h_l0.data, (0, 2))
        _, (h, c) = whole(x[t : t + 1], (nn.functional.pad(h, (0, 2)), c))
        h = h @ layer.w_r_l0.T
        assert distance(found[t], h[0]) < EXACT
    assert distance(h_last, h) < EXACT
    assert distance(c_last, c) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_sets_the_values_to_0_that_torch_does(kind: str) -> None:
    layers = twins(num_layers=3, dropout=0.4, batch_first=is_batch_first(kind))
    found = []
    for layer in layers:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            found.append(run(layer, kind))
    assert_same(found[0], found[1])
    still = [run(layer.eval(), kind) for layer in layers]
    assert_same(still[0], still[1])
    assert distance(still[0]["h"], found[0]["h"]) > 0.01


def test_without_dropout_no_random_number_is_drawn() -> None:
    layer, before = make(num_layers=3), torch.get_rng_state()
    layer(draw(T, N, D))
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_of_everything_leaves_the_next_layer_its_bias() -> None:
    layer = make(num_layers=2, dropout=1.0)
    h = [layer(draw(T, N, D, seed=seed))[0] for seed in (1, 2)]
    assert torch.equal(*h)
    assert not torch.equal(layer.eval()(draw(T, N, D, seed=1))[0], h[0])


@pytest.mark.parametrize(("n", "device"), [(0, "cpu"), (N, "meta")])
def test_no_sequences_and_those_on_the_meta_device_give_shapes(
    n: int, device: str
) -> None:
    layer, x = make(num_layers=2, device=device), draw(T, n, D).to(device)
    h, (h_last, c_last) = layer(x)
    assert (h.shape, h_last.shape, c_last.shape) == ((T, n, H), (2, n, H), (2, n, H))
    assert h.device.type == device


def test_the_constructor_takes_torch_s_arguments_in_torch_s_order() -> None:
    args = (7, 5, 3, False, True, 0.5, True, 2, "meta", torch.float64)
    ours, theirs = LayerNormLSTM(*args, norm=None), nn.LSTM(*args)
    expected = repr(theirs).replace("LSTM", "LayerNormLSTM")
    assert repr(ours) == f"{expected[:-1]}, norm=None)"
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (p.shape, p.device, p.dtype) == (q.shape, q.device, torch.float64)


def test_the_representation_names_the_settings_of_the_layer_norm() -> None:
    assert repr(LayerNormLSTM(7, 5, carried="normalized")) == (
        "LayerNormLSTM(7, 5, norm='terms', eps=1e-05, carried='normalized', "
        "has_redundant_biases=True)"
    )


def test_weights_start_as_in_torch_and_gains_at_1() -> None:
    layer = LayerNormLSTM(D, 16, bidirectional=True)
    with torch.no_grad():
        for value in layer.parameters():
            value.fill_(7)
    layer.reset_parameters()
    for name, value in layer.named_parameters():
        if name.startswith(("gamma", "beta")):
            assert bool((value == name.startswith("gamma")).all()), name
        else:
            # Uniform within a quarter, 64 or more of them.
            assert 0.2 < value.abs().max() <= 0.25, name
            assert value.mean().abs() < 0.08, name


# --- the state of nn.LSTM


@pytest.mark.parametrize("norm", NORMS)
def test_the_state_of_torch_s_layer_leaves_gains_and_their_biases_alone(
    norm: Any,
) -> None:
    theirs = nn.Sequential(nn.LSTM(D, H, 2, bidirectional=True)).double()
    ours = nn.Sequential(make(num_layers=2, bidirectional=True, norm=norm))
    before = copy.deepcopy(ours.state_dict())
    given = theirs.state_dict()
    assert not any(ours.load_state_dict(given))
    assert given.keys() == theirs.state_dict().keys()  # they are the caller's
    for name, value in ours.state_dict().items():
        is_kept = torch.equal(value, before[name])
        assert is_kept == name.startswith(("0.gamma", "0.beta")), name


def state(**options: Any) -> dict[str, Any]:
    return nn.LSTM(**{"input_size": D, "hidden_size": H} | options).state_dict()


@pytest.mark.parametrize(
    ("given", "bias", "match"),
    [
        (state(bias=False), True, 'Missing key.*"b_l0"'),
        (state(), False, 'Unexpected key.*"bias_ih_l0"'),
        (state(hidden_size=6), True, "size mismatch for w_x_l0"),
        (state(num_layers=2), True, 'Unexpected key.*"weight_ih_l1"'),
        (state(proj_size=2), True, 'Unexpected key.*"weight_hr_l0"'),
        (state(proj_size=2), True, "size mismatch for w_h_l0"),
        *(
            (state() | {name: zeros(*shape)}, True, f"mismatch for {ours}: .*{match}")
            for name, shape, ours, match in (
                ("bias_hh_l0", (1,), "b_l0", r" torch.Size\(\[1\]\)"),
                ("bias_ih_l0", (3,), "b_l0", r" torch.Size\(\[3\]\)"),
                ("weight_ih_l0", (17, D), "w_x_l0", r"\[17, 3\]"),
                ("weight_hh_l0", (), "w_h_l0", r" torch.Size\(\[\]\)"),
            )
        ),
        (state() | {"weight_hh_l0": 3}, True, "w_h_l0.* torch.Tensor .*class 'int'>"),
    ],
)
def test_the_state_of_an_lstm_of_another_form_is_refused(
    given: dict[str, Any], bias: bool, match: str
) -> None:
    with pytest.raises(RuntimeError, match=match):
        LayerNormLSTM(D, H, bias=bias).load_state_dict(given)


@pytest.mark.parametrize("bias", [True, False])
def test_without_layer_norm_it_can_become_torch_s_layer(bias: bool) -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "bias": bias}
    ours = make(norm=None, dropout=0.5, **options).eval()
    theirs = ours.as_lstm()
    assert type(theirs) is nn.LSTM
    assert theirs.dropout == 0.5
    assert_same(run(ours, "unsorted", True), run(theirs, "unsorted", True))
    with torch.no_grad():
        theirs.get_parameter("weight_ih_l0").zero_()  # a copy
    assert bool(ours.w_x_l0.all())
    with pytest.raises(ValueError, match=r"no layer norm, got .*norm='sum'; only"):
        make(norm="sum").as_lstm()


# --- beside the core


def arguments(layer: Any, is_packed: bool) -> dict[str, Tensor]:
    """Return all that one layer in one direction depends on, as leaves."""
    x = draw(sum(SIZES), D) if is_packed else draw(T, N, D)
    values = {"x": x, "h_0": draw(N, H, seed=1), "c_0": draw(N, H, seed=2)}
    values |= {name[:-3]: p.detach().clone() for name, p in layer.named_parameters()}
    return {name: value.requires_grad_() for name, value in values.items()}


def by_layer(
    layer: Any, is_packed: bool, x: Tensor, h_0: Tensor, c_0: Tensor, **own: Tensor
) -> list[Tensor]:
    input = PackedSequence(x, torch.tensor(SIZES)) if is_packed else x
    parameters = {f"{name}_l0": value for name, value in own.items()}
    h, last = functional_call(layer, parameters, (input, (h_0[None], c_0[None])))
    return [h.data if is_packed else h, last[0][0], last[1][0]]


def by_core(
    layer: Any, is_packed: bool, x: Tensor, h_0: Tensor, c_0: Tensor, **own: Tensor
) -> list[Tensor]:
    """Let torch differentiate the forward pass."""
    options: Any = {"batch_sizes": SIZES if is_packed else None}
    if layer.norm is None:
        return list(lstm(x, LSTMParameters(**own), h_0, c_0, **options))
    options |= {
        "eps": layer.eps,
        "norm": layer.norm,
        "carried": layer.carried,
        "hats": layer.hats,
    }
    return list(layer_norm_lstm(x, LayerNormLSTMParameters(**own), h_0, c_0, **options))


def outputs_of(
    f: Callable[..., list[Tensor]], layer: Any, is_packed: bool, *frozen: str
) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
    """Return the leaves, the outputs, and gradients that arrive there."""
    given = arguments(layer, is_packed)
    for name in frozen:
        given[name].requires_grad_(False)
    outputs = f(layer, is_packed, **given)
    arriving = [draw(*v.shape, seed=7 + k) for k, v in enumerate(outputs)]
    return given, outputs, arriving


def first_order(*way: Any) -> dict[str, Tensor]:
    given, outputs, arriving = outputs_of(*way)
    slopes = torch.autograd.grad(outputs, list(given.values()), arriving)
    found = dict(zip(("h", "h_last", "c_last"), outputs, strict=True))
    return found | dict(zip(given, slopes, strict=True))


def second_order(*way: Any) -> dict[str, Tensor]:
    """Differentiate a penalty of all gradients in all that they depend on."""
    given, outputs, arriving = outputs_of(*way)
    leaves = given | {f"arriving {k}": v for k, v in enumerate(arriving)}
    inputs, everything = list(given.values()), list(leaves.values())
    for value in arriving:
        value.requires_grad_()
    slopes = torch.autograd.grad(outputs, inputs, arriving, create_graph=True)
    size = torch.stack([(slope**3).sum() for slope in slopes]).sum()
    return dict(zip(leaves, torch.autograd.grad(size, everything), strict=True))


@pytest.mark.parametrize("few", [100, 4], ids=["at once", "in parts"])
@pytest.mark.parametrize("order", [first_order, second_order])
@each_packing
@each_cell
def test_derivatives_are_those_of_the_forward_pass(
    options: dict[str, Any],
    is_packed: bool,
    order: Callable[..., dict[str, Tensor]],
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ROWS", "FEW"):
        monkeypatch.setattr(torch_lstm, name, few)
    layer = make(eps=0.1, **options)
    found, expected = (order(f, layer, is_packed) for f in (by_layer, by_core))
    assert_same(found, expected)


@each_packing
@each_cell
def test_derivatives_are_those_of_finite_differences(
    options: dict[str, Any], is_packed: bool
) -> None:
    layer = make(eps=0.1, **options)
    given = arguments(layer, is_packed)

    def f(*values: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(given, values, strict=True))
        return tuple(by_layer(layer, is_packed, **named))

    values = tuple(given.values())
    assert gradcheck(f, values, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(f, values, fast_mode=True)


@pytest.mark.parametrize("field", [*LayerNormLSTMParameters._fields, "x", "h_0", "c_0"])
def test_an_error_of_one_part_in_a_million_in_any_gradient_is_seen(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, right = make(), TorchSequence.backward
    place = ("x", "h_0", "c_0", *LayerNormLSTMParameters._fields).index(field)

    def wrong(*args: Any) -> Any:
        slopes: list[Any] = list(right(*args))
        slopes[2 + place] = slopes[2 + place] * (1 + 1e-6)  # behind two options
        return tuple(slopes)

    expected = first_order(by_core, layer, False)
    monkeypatch.setattr(TorchSequence, "backward", staticmethod(wrong))
    with pytest.raises(AssertionError, match=field):
        assert_same(first_order(by_layer, layer, False), expected)


@pytest.mark.parametrize("norm", ["terms", "sum", "gates"])
def test_two_layers_and_directions_are_put_together_of_the_core(norm: Any) -> None:
    layer, x = make(num_layers=2, bidirectional=True, norm=norm), draw(T, N, D)

    def one(x: Tensor, ending: str) -> Any:
        names = {k: k + ending for k in LayerNormLSTMParameters._fields}
        own = {key: getattr(layer, name) for key, name in names.items()}
        return layer_norm_lstm(x, LayerNormLSTMParameters(**own), norm=norm)

    h, lasts = x, []
    for k in "01":
        forth, back = one(h, f"_l{k}"), one(h.flip(0), f"_l{k}_reverse")
        h = torch.cat([forth.h, back.h.flip(0)], dim=-1)
        lasts += [forth.c_last, back.c_last]
    found, (_, c_last) = layer(x)
    assert distance(found, h) < EXACT
    assert distance(c_last, torch.stack(lasts)) < EXACT


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("has_redundant_biases", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_it_has_the_parameters_of_its_cell(
    norm: Any, has_redundant_biases: bool, bias: bool
) -> None:
    fields = {"w_x", "w_h"} | ({"b"} if bias else set())
    if norm is not None:
        fields |= {"gamma_h", "gamma_c", "beta_c"}
        fields |= {"beta_h"} if has_redundant_biases else set()
    if norm == "terms":
        fields |= {"gamma_x"} | ({"beta_x"} if has_redundant_biases else set())
    layer = make(norm=norm, bias=bias, has_redundant_biases=has_redundant_biases)
    names = {name.removesuffix("_l0") for name, _ in layer.named_parameters()}
    assert names == fields
    found, expected = (first_order(f, layer, False) for f in (by_layer, by_core))
    assert_same(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("norm", NORMS)
def test_other_sequences_and_later_steps_change_no_bit(
    norm: Any, dtype: torch.dtype
) -> None:
    layer, x = make(num_layers=2, norm=norm, dtype=dtype), draw(T, N, D, dtype=dtype)
    others, later = x.clone(), x.clone()
    others[:, 1:] = draw(T, N - 1, D, seed=1, dtype=dtype) * 100
    later[3:] = 99
    h = layer(x)[0]
    assert torch.equal(layer(others)[0][:, 0], h[:, 0])
    assert torch.equal(layer(later)[0][:3], h[:3])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_a_sequence_in_a_packed_batch_is_as_if_it_were_alone(
    norm: Any, bidirectional: bool
) -> None:
    layer = make(num_layers=2, norm=norm, bidirectional=bidirectional)
    x = draw(T, N, D)
    packed, (h_last, c_last) = layer(sequences("unsorted", x))
    h, _ = pad_packed_sequence(packed)
    for k, length in enumerate(LENGTHS):
        alone, last = layer(x[:length, k])
        assert distance(h[:length, k], alone) < EXACT
        assert distance(h_last[:, k], last[0]) < EXACT
        assert distance(c_last[:, k], last[1]) < EXACT


def test_frozen_parts_get_no_gradient_and_the_others_get_theirs() -> None:
    layer = make()
    expected = first_order(by_layer, layer, False)
    frozen = "x", "c_0", "w_h", "gamma_x", "beta_c"
    given, outputs, arriving = outputs_of(by_layer, layer, False, *frozen)
    torch.autograd.backward(outputs, arriving)
    for name, value in given.items():
        assert (value.grad is not None) == value.requires_grad, name
        assert value.grad is None or distance(value.grad, expected[name]) < EXACT


def test_the_gradient_of_x_is_computed_only_if_asked_for() -> None:
    counts = []
    for is_needed in (True, False):
        h, _ = make()(draw(T, N, D).requires_grad_(is_needed))
        with FlopCounterMode(display=False) as counter:
            h.sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] - counts[1] == 2 * T * N * D * 4 * H  # one product with W_x


@pytest.mark.parametrize("which", [0, 1, 2], ids=["h", "h_last", "c_last"])
def test_a_loss_of_one_output_alone_has_its_gradient(which: int) -> None:
    layer, found = make(), []
    for f in (by_layer, by_core):
        given, outputs, _ = outputs_of(f, layer, True)
        slopes = torch.autograd.grad(outputs[which].sum(), list(given.values()))
        found.append(dict(zip(given, slopes, strict=True)))
    assert_same(found[0], found[1])


# --- what torch does with layers


@each_cell
@pytest.mark.parametrize("steps", [1, T])
def test_gradients_of_two_passes_add_up(options: dict[str, Any], steps: int) -> None:
    layer, x = make(**options), draw(steps, N, D).requires_grad_()
    h_0, c_0 = (draw(1, N, H, seed=k).requires_grad_() for k in (1, 2))
    leaves = {"x": x, "h_0": h_0, "c_0": c_0, **dict(layer.named_parameters())}

    def gradients() -> dict[str, Tensor]:
        h, last = layer(x, (h_0, c_0))
        (h.square().sum() + last[0].sum() + last[1].square().sum()).backward()
        return {name: leaf.grad.clone() for name, leaf in leaves.items()}

    once = gradients()
    assert_same(gradients(), {name: 2 * slope for name, slope in once.items()})


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_no_gradient(use_reentrant: bool) -> None:
    layer, found = make(num_layers=2, bidirectional=True), []
    again = functools.partial(checkpoint, layer, use_reentrant=use_reentrant)
    for f in (layer, again):
        x = draw(T, N, D).requires_grad_()
        layer.zero_grad()
        f(x)[0].pow(2).sum().backward()
        grads = {name: p.grad for name, p in layer.named_parameters()}
        found.append({"x": x.grad, **grads})
    assert_equal(found[1], found[0], 0.0)


@each_copy
def test_a_copy_computes_the_same_and_lives_by_itself(
    copied: Callable[[Any], Any],
) -> None:
    layer = make(num_layers=2, bidirectional=True)
    before = run(layer, "unsorted")
    other = copied(layer)
    assert_equal(run(other, "unsorted"), before, 0.0)
    other.reset_parameters()
    assert_equal(run(layer, "unsorted"), before, 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_dtypes_stay_and_come_close(dtype: torch.dtype) -> None:
    layer, x = make(num_layers=2), draw(T, N, D, seed=1)
    expected, _ = layer(x)
    h, (h_last, c_last) = layer.to(dtype)(x.to(dtype))
    h.float().sum().backward()
    assert {h.dtype, h_last.dtype, c_last.dtype} == {dtype}
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    # Values below 1; each step and layer adds some roundings.
    assert (h.double() - expected).abs().max() < 20 * torch.finfo(dtype).eps


def test_under_autocast_it_runs_in_float32() -> None:
    layer, x = make(num_layers=2, dtype=torch.float32), draw(T, N, D).bfloat16()
    expected, _ = layer(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        h, states = layer(x)
        again, _ = layer(x, states)
        h.sum().backward()
    assert torch.equal(h, expected)
    assert {v.dtype for v in (h, *states, again)} == {torch.float32}
    assert layer.w_x_l0.grad.dtype == torch.float32


def test_gradients_of_each_sequence_by_itself_come_from_vmap() -> None:
    layer, x = make(), draw(N, T, D)
    own = dict(layer.named_parameters())

    def loss(own: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(layer, own, (x,))[0].pow(2).sum()

    found = vmap(grad(loss), in_dims=(None, 0))(own, x)
    for k in range(N):
        expected = torch.autograd.grad(loss(own, x[k]), list(own.values()))
        for name, value in zip(own, expected, strict=True):
            assert distance(found[name][k], value) < EXACT


def total(layer: Any, x: Tensor) -> Tensor:
    y: Tensor = layer(x)[0].pow(2).sum()
    return y


@each_cell
def test_forward_mode_of_torch_func_agrees_with_the_gradient(
    options: dict[str, Any],
) -> None:
    layer, x = make(num_layers=2, bidirectional=True, **options), draw(2, 1, D)
    loss, direction = functools.partial(total, layer), draw(2, 1, D, seed=1)
    slope = grad(loss)(x)
    assert distance(jacfwd(loss)(x), slope) < EXACT
    along = jvp(loss, (x,), (direction,))[1]
    assert distance(along, (slope * direction).sum()) < EXACT


def test_all_ways_to_a_hessian_agree() -> None:
    layer, x = make(), draw(2, 1, D)
    loss = functools.partial(total, layer)
    expected = torch.autograd.functional.hessian(loss, x)  # type: ignore[no-untyped-call]
    for outer in (jacrev, jacfwd):
        assert distance(outer(jacrev(loss))(x), expected) < EXACT


def test_tangents_of_the_weights_reach_the_gradient() -> None:
    layer, x = make(), draw(2, 1, D).requires_grad_()
    direction = draw(*layer.w_h_l0.shape, seed=1)

    def slope(w_h: Tensor) -> Tensor:
        h, _ = functional_call(layer, {"w_h_l0": w_h}, (x,))
        return torch.autograd.grad(h.pow(2).sum(), x, create_graph=True)[0]

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(layer.w_h_l0, direction)  # type: ignore[no-untyped-call]
        found = forward_ad.unpack_dual(slope(dual)).tangent  # type: ignore[no-untyped-call]
    step = 1e-5
    ends = [slope(layer.w_h_l0 + sign * step * direction) for sign in (1, -1)]
    # Central differences: an error of step squared.
    assert distance(found, (ends[0] - ends[1]) / (2 * step)) < 1e-7


def test_batches_of_gradients_are_refused() -> None:
    x = draw(T, N, D).requires_grad_()
    h, _ = make()(x)
    with pytest.raises(RuntimeError, match="Batching rule"):
        torch.autograd.grad(h, x, draw(2, T, N, H), is_grads_batched=True)


# torch.compile warns of its own inner workings, of no interest here.
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_run_the_layer_outside_of_their_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.compiler.reset()
    right, seen = LayerNormLSTM._run, []

    def watched(self: Any, *args: Any) -> Any:
        seen.append(torch.compiler.is_compiling())
        return right(self, *args)

    monkeypatch.setattr(LayerNormLSTM, "_run", watched)
    layer, x = make(), draw(T, N, D)
    compiled: Any = torch.compile(copy.deepcopy(layer), backend="eager")
    found, expected = (run(f, "unsorted") for f in (compiled, layer))
    found = {name.removeprefix("_orig_mod."): v for name, v in found.items()}
    assert_equal(found, expected, 0.0)
    assert distance(compiled(x)[0], layer(x)[0]) == 0
    assert not any(seen)


@each_cell
def test_which_cells_are_one_function(options: dict[str, Any]) -> None:
    """The others are differentiated operator by operator."""
    h, _ = make(**options)(draw(T, N, D))
    is_usual = options["norm"] is None or options == {"norm": "terms", "carried": "raw"}
    assert (type(h.grad_fn).__name__ == "TorchSequenceBackward") == is_usual


def test_modes_of_torch_see_small_sequences_too() -> None:
    layer, x = make().requires_grad_(False), draw(T, N, D)
    counts = []
    for small, steps in ((layer, x), (copy.deepcopy(layer).float(), x.float())):
        with FlopCounterMode(display=False) as counter:
            small(steps)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    traced = make_fx(lambda steps: layer(steps)[0])(x)
    other = draw(T, N, D, seed=1)
    assert distance(traced(other), layer(other)[0]) <= EXACT


def test_inference_mode_and_flattening_give_the_same_numbers() -> None:
    layer, x = make(), draw(T, N, D)
    with torch.inference_mode():
        layer.flatten_parameters()  # as nn.LSTM may be asked to
        h, _ = layer(x)
    assert torch.equal(h, layer(x)[0])


class Box:
    """What torch keeps for the backward pass, in a place that can be watched."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Let a cycle of references stay where it is."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("has_backward", [False, True])
def test_nothing_that_was_kept_outlives_a_step(has_backward: bool) -> None:
    layer, boxes = make(num_layers=2, bidirectional=True), list[weakref.ref[Box]]()

    def pack(value: Tensor) -> Box:
        box = Box(value)
        boxes.append(weakref.ref(box))
        return box

    with saved_tensors_hooks(pack, lambda box: box.value):
        h = layer(draw(T, N, D))[0]
        if has_backward:
            h.sum().backward()
    del h
    assert len(boxes) > 4 * 16  # of 4 runs through the core
    assert [box for box in boxes if box() is not None] == []


@pytest.mark.usefixtures("without_collector")
def test_no_tensor_outlives_second_derivatives() -> None:
    # Without torch's hooks, under which its own tanh leaves something behind.
    layer, x = make(num_layers=2, bidirectional=True), draw(T, N, D).requires_grad_()
    h = layer(x)[0]
    slopes = torch.autograd.grad(h.pow(2).sum(), [x, layer.w_h_l0], create_graph=True)
    kept = [weakref.ref(value) for value in (x, h, *slopes)]
    del x, h, slopes
    assert [ref for ref in kept if ref() is not None] == []


def test_after_the_backward_pass_what_it_needed_is_gone() -> None:
    x = draw(T, N, D).requires_grad_()
    h, _ = make()(x)
    h.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        h.sum().backward()


def test_a_change_in_place_of_what_the_backward_pass_needs_is_refused() -> None:
    h = make()(draw(T, N, D))[0].relu_()
    with pytest.raises(RuntimeError, match="inplace"):
        h.sum().backward()


def test_dropout_with_one_layer_warns_as_torch_does() -> None:
    with pytest.warns(UserWarning, match=r"dropout=0\.5 and num_layers=1"):
        nn.LSTM(D, H, dropout=0.5)
    with pytest.warns(UserWarning, match=r"dropout=0\.5 .*num_layers=1") as found:
        LayerNormLSTM(D, H, dropout=0.5)
    assert found[0].filename == __file__
