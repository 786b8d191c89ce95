"""The LSTM and its layer-normalized cells: against equations in torch, and broken."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook import layer_norm_lstm, layer_norm_rnn, lstm, through_time
from normbook.gradient_check import relative_error, survivors
from normbook.layer_norm_lstm import LayerNormLSTMParameters
from normbook.layer_norm_rnn import LayerNormRNNParameters
from normbook.lstm import LSTMParameters

# By their names, since mutants take the places of their functions.
plain: Any = lstm
normed: Any = layer_norm_lstm
rnn: Any = layer_norm_rnn
loop: Any = through_time
T, N, D, H = 4, 5, 2, 3
SIZES = (5, 5, 3, 2)  # of 15 steps in all; two sequences end at once
EPS = 0.1  # so large that it matters
EXACT = 1e-10  # float64 against torch, which adds in another order
ROUNDING = 1e-14
Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Cell:
    """A cell with its functions, all called in one way."""

    name: str
    module: Any
    kind: Any  # of its parameters
    norm: Any = None
    carried: Any = None
    hats: Any = None

    def call(self, ending: str, *arguments: Any, **more: Any) -> Any:
        """Call the function of this name, the cell's with an ending."""
        name = self.module.__name__.split(".")[-1]
        return getattr(self.module, name + ending)(*arguments, **more)

    @property
    def options(self) -> dict[str, Any]:
        options = {"norm": self.norm, "carried": self.carried, "hats": self.hats}
        options = {k: v for k, v in options.items() if v is not None}
        return options if self.module is plain else options | {"eps": EPS}

    def forward(self, x: Any, parameters: Any, *states: Any, sizes: Any = None) -> Any:
        packed = {} if sizes is None else {"batch_sizes": sizes}
        return self.call("_forward", x, parameters, *states, **self.options, **packed)

    def step(self, x_t: Any, parameters: Any, *states: Any) -> Arrays:
        states = self.call("_step", x_t, parameters, *states, **self.options)
        return states if isinstance(states, tuple) else (states,)

    def backward(self, cache: Any, dl_dh: Any, *dl_dlast: Any) -> Any:
        return self.call("_backward", dl_dh, cache, *dl_dlast)

    def parameters(self, rng: Any) -> Any:
        """Draw parameters, all that the cell can have."""
        rows = H if self.module is rnn else 4 * H
        sizes = {"w_x": (rows, D), "w_h": (rows, H), "gamma_c": H, "beta_c": H}
        fields = self.kind._fields
        parameters = self.kind(*(rng.normal(size=sizes.get(k, rows)) for k in fields))
        if self.norm in ("sum", "gates"):
            parameters = parameters._replace(gamma_x=None, beta_x=None)
        if self.hats is not None:
            refused = dict.fromkeys(normed.without_hat(self.hats))
            parameters = parameters._replace(**refused)
        return parameters


PLAIN = Cell("lstm", plain, LSTMParameters)
RNN = Cell("rnn", rnn, LayerNormRNNParameters)
NORMED = [
    Cell(f"{norm}-{carried}", normed, LayerNormLSTMParameters, norm, carried)
    for norm in ("terms", "sum", "gates")
    for carried in ("raw", "normalized")
]
TERMS = NORMED[0]
# Fewer hats than all.
BARE = [
    Cell(
        f"{norm}-{carried}-{hats}", normed, LayerNormLSTMParameters, norm, carried, hats
    )
    for norm, carried, of_hats in (
        ("terms", "raw", ("pq", "pc", "qc", "p", "q", "c", "")),
        ("terms", "normalized", ("pc", "qc", "c")),
        ("sum", "raw", ("pq",)),
        ("gates", "raw", ("pq",)),
    )
    for hats in of_hats
]
LSTMS = [PLAIN, *NORMED, *BARE]
# A cell, and the sequences alive at each of its steps; None: not packed.
CASES: list[tuple[Cell, Any]] = [(cell, None) for cell in [*LSTMS, RNN]]
CASES += [(cell, SIZES) for cell in LSTMS]


def case_name(value: Any) -> str:
    return value.name if isinstance(value, Cell) else "packed" if value else "whole"


each_cell = pytest.mark.parametrize("cell", [*LSTMS, RNN], ids=case_name)
each_normed = pytest.mark.parametrize("cell", NORMED, ids=case_name)
each_case = pytest.mark.parametrize(("cell", "sizes"), CASES, ids=case_name)


class Drawn(NamedTuple):
    """What goes into a cell, and what arrives at its outputs."""

    x: Any
    parameters: Any
    states: Arrays
    slopes: Arrays


def draw(cell: Cell, sizes: Any = None) -> Drawn:
    rng = np.random.default_rng(0)
    lead = (T, N) if sizes is None else (sum(sizes),)
    states = tuple(rng.normal(size=(N, H)) for _ in range(1 if cell is RNN else 2))
    slopes = rng.normal(size=(*lead, H)), *(rng.normal(size=(N, H)) for _ in states)
    return Drawn(rng.normal(size=(*lead, D)), cell.parameters(rng), states, slopes)


def mapped(of: Callable[..., Any], values: Any) -> Any:
    """Convert arrays, also inside a tuple of parameters; None stays."""
    if values is None:
        return None
    if isinstance(values, tuple):
        parts = (mapped(of, value) for value in values)
        return type(values)(*parts) if hasattr(values, "_fields") else tuple(parts)
    return of(values)


def hat(a: Tensor) -> Tensor:
    return functional.layer_norm(a, a.shape[-1:], eps=EPS)


def affine(a: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    a = a if gamma is None else a * gamma
    return a if beta is None else a + beta


def by_formulas(cell: Cell, x_t: Tensor, p: Any, h: Tensor, *c: Tensor) -> Arrays:
    """Run one step of one sequence by the equations; give h and what is carried."""
    wh, wx = p.w_h @ h, p.w_x @ x_t
    hats = "" if cell.norm is None else "pqc" if cell.hats is None else cell.hats
    if cell is RNN:
        return (torch.tanh(affine(hat(wh + wx), p.gamma, p.beta)),)
    if cell.norm in (None, "terms"):
        a = affine(hat(wh), p.gamma_h, p.beta_h) if "p" in hats else wh
        a = a + (affine(hat(wx), p.gamma_x, p.beta_x) if "q" in hats else wx)
    else:
        parts = (wh + wx).chunk(4 if cell.norm == "gates" else 1)
        a = affine(torch.cat([hat(part) for part in parts]), p.gamma_h, p.beta_h)
    f, i, o, g = affine(a, None, p.b).chunk(4)
    raw = f.sigmoid() * c[0] + i.sigmoid() * g.tanh()
    u = affine(hat(raw), p.gamma_c, p.beta_c) if "c" in hats else raw
    return o.sigmoid() * u.tanh(), u if cell.carried == "normalized" else raw


@functools.cache
def expected(cell: Cell, sizes: Any) -> list[Any]:
    """Return outputs and gradients of each sequence by itself, and by autograd."""
    x, parameters, states, slopes = mapped(torch.tensor, draw(cell, sizes))
    leaves = [v for v in (x, *parameters, *states) if v is not None]
    for leaf in leaves:
        leaf.requires_grad_()
    rows, h = x.reshape(-1, D), list[Tensor]()
    of_examples = [tuple(state[n] for state in states) for n in range(N)]
    for alive in sizes or (N,) * T:
        for n in range(alive):
            x_t = rows[len(h)]
            of_examples[n] = by_formulas(cell, x_t, parameters, *of_examples[n])
            h.append(of_examples[n][0])
    last = [torch.stack(state) for state in zip(*of_examples, strict=True)]
    outputs = [torch.stack(h).reshape(slopes[0].shape), *last]
    of_leaves = torch.autograd.grad(outputs, leaves, slopes)
    return [value.detach().numpy() for value in (*outputs, *of_leaves)]


def gradients(cell: Cell, cache: Any, slopes: Arrays) -> list[Any]:
    """Return the gradients of all that is there, in the order of the arguments."""
    dl_dx, of_parameters, *of_states = cell.backward(cache, *slopes)
    return [v for v in (dl_dx, *of_parameters, *of_states) if v is not None]


def both_ways(cell: Cell, drawn: Any, sizes: Any) -> list[Any]:
    """Return all outputs and gradients."""
    x, parameters, states, slopes = drawn
    outputs, cache = cell.forward(x, parameters, *states, sizes=sizes)
    return [*outputs, *gradients(cell, cache, slopes)]


def assert_equal(ours: Any, right: Any, tolerance: float = EXACT) -> None:
    for k, (a, b) in enumerate(zip(ours, right, strict=True)):
        assert relative_error(a, b) <= tolerance, k


def strided_and_read_only(value: Any) -> Any:
    twice = np.repeat(value, 2, axis=-1)[..., ::2]
    assert not twice.flags.c_contiguous
    twice.flags.writeable = False
    return twice


# Kind of array -> function that makes it, and the largest error.
KINDS: dict[str, tuple[Callable[..., Any], float]] = {
    "numpy": (np.asarray, EXACT),
    "torch": (torch.tensor, EXACT),
    "strided and read-only": (strided_and_read_only, EXACT),
    # Rounding of 1e-3 in all that goes in, over some steps.
    "half precision": (lambda v: v.astype(np.float16), 0.03),
    "half precision in torch": (lambda v: torch.tensor(v).half(), 0.03),
}


@each_case
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_each_sequence_by_itself(
    cell: Cell, sizes: Any, kind: str
) -> None:
    of, tolerance = KINDS[kind]
    drawn = mapped(of, draw(cell, sizes))
    results = both_ways(cell, drawn, sizes)
    assert {value.dtype for value in results} == {drawn.x.dtype}
    assert_equal(results, expected(cell, sizes), tolerance)


@each_case
def test_numpy_and_torch_agree_to_the_last_digits(cell: Cell, sizes: Any) -> None:
    drawn = draw(cell, sizes)
    of_torch = both_ways(cell, mapped(torch.tensor, drawn), sizes)
    assert all(isinstance(value, Tensor) for value in of_torch)
    assert_equal(both_ways(cell, drawn, sizes), of_torch, ROUNDING)


def assert_right(cases: Any) -> None:
    for cell, sizes, of in cases:
        x, parameters, states, slopes = mapped(of, draw(cell, sizes))
        outputs, cache = cell.forward(x, parameters, *states, sizes=sizes)
        by_all = gradients(cell, cache, slopes)
        assert_equal([*outputs, *by_all], expected(cell, sizes))
        zeros = [0 * slope for slope in slopes[1:]]
        by_h = gradients(cell, cache, (slopes[0], *zeros))
        assert_equal(gradients(cell, cache, slopes[:1]), by_h)


# Between them they go through every line; in torch a length of -2 is an error.
FEW = [
    (PLAIN, None, np.asarray),
    (TERMS, SIZES, np.asarray),
    (TERMS, (N,), np.asarray),
    (NORMED[3], SIZES, np.asarray),  # of the sum, carrying u
    (NORMED[4], SIZES, torch.tensor),  # of the gates
    (BARE[3], SIZES, np.asarray),  # a hat on p alone
]
FORMULAS = {
    loop: "over_steps back_over_steps steps before as_rows like_steps",
    plain: "sigmoid split concat step local_slopes step_backward lstm_forward "
    "lstm_backward",
    normed: "hat through by_gates update step step_backward of_parameters step_of_sum "
    "step_of_some update_with_bare_c step_with_bare_c_backward with_one_bias "
    "step_carrying_u step_carrying_u_backward layer_norm_lstm_forward "
    "layer_norm_lstm_backward",
    rnn: "step step_backward layer_norm_rnn_backward",
}


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in FORMULAS.items() for name in names.split()],
)
def test_no_changed_formula_survives(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(function: Any) -> None:
        monkeypatch.setattr(module, name, function)
        assert_right([(RNN, None, torch.tensor)] if module is rnn else FEW)

    assert survivors(getattr(module, name), check) == []


def test_the_plain_lstm_is_torch_s_with_its_gates_in_another_order() -> None:
    theirs: Any = nn.LSTM(D, H, dtype=torch.float64)

    def ours(value: Tensor) -> Any:
        i, f, g, o = value.detach().chunk(4)
        return torch.cat([f, i, o, g]).numpy()

    b = theirs.bias_ih_l0 + theirs.bias_hh_l0
    p = LSTMParameters(*map(ours, (theirs.weight_ih_l0, theirs.weight_hh_l0, b)))
    drawn = draw(PLAIN)
    x, (h_0, c_0) = torch.tensor(drawn.x), map(torch.tensor, drawn.states)
    h, last = theirs(x, (h_0[None], c_0[None]))
    outputs = plain.lstm(drawn.x, p, *drawn.states)
    assert_equal(outputs, [h.detach(), *(state[0].detach() for state in last)])


@each_cell
def test_steps_one_by_one_are_the_sequence(cell: Cell) -> None:
    x, parameters, states, _ = draw(cell)
    outputs, _ = cell.forward(x, parameters, *states)
    for t in range(T):
        states = cell.step(x[t], parameters, *states)
        assert relative_error(states[0], outputs.h[t]) <= ROUNDING
    assert_equal(states, outputs[1:], ROUNDING)


@each_cell
def test_two_parts_of_a_sequence_and_their_gradients_make_the_whole(cell: Cell) -> None:
    x, parameters, states, (dl_dh, *dl_dlast) = draw(cell)
    whole, cache = cell.forward(x, parameters, *states)
    first, cache_1 = cell.forward(x[:1], parameters, *states)
    second, cache_2 = cell.forward(x[1:], parameters, *first[1:])
    assert_equal(second[1:], whole[1:], ROUNDING)
    assert relative_error(np.concatenate([first.h, second.h]), whole.h) <= ROUNDING
    late = cell.backward(cache_2, dl_dh[1:], *dl_dlast)
    early = cell.backward(cache_1, dl_dh[:1], *late[2:])
    slopes = cell.backward(cache, dl_dh, *dl_dlast)
    assert_equal(early[2:], slopes[2:])
    for a, b, both in zip(early[1], late[1], slopes[1], strict=True):
        assert both is None or relative_error(a + b, both) < EXACT


@each_case
def test_what_is_left_out_is_a_gain_of_1_and_a_bias_or_state_of_0(
    cell: Cell, sizes: Any
) -> None:
    x, full, states, slopes = draw(cell, sizes)
    zeros = [0 * state for state in states]
    neutral = {
        name: 0 * value + ("gamma" in name)
        for name, value in full._asdict().items()
        if value is not None and not name.startswith("w_")
    }
    written = x, full._replace(**neutral), zeros, slopes
    left_out = x, cell.kind(*full[:2]), (), slopes
    ours, theirs = (both_ways(cell, drawn, sizes) for drawn in (left_out, written))
    assert_equal(ours, theirs, ROUNDING)


def test_the_usual_eps_is_that_of_torch() -> None:
    x, parameters, states, _ = draw(TERMS)
    tiny = parameters._replace(w_x=parameters.w_x / 1000)  # so that eps matters
    h, same, other = (
        normed.layer_norm_lstm(x, tiny, *states, *eps).h
        for eps in ((), (1e-5,), (2e-5,))
    )
    assert relative_error(h, same) == 0
    assert relative_error(h, other) > 0.01


@each_normed
def test_biases_in_one_place_have_one_gradient(cell: Cell) -> None:
    x, parameters, states, slopes = draw(cell)
    _, cache = cell.forward(x, parameters, *states)
    of_parameters = cell.backward(cache, *slopes).dl_dparameters
    np.testing.assert_array_equal(of_parameters.b, of_parameters.beta_h)
    if cell.norm == "terms":
        np.testing.assert_array_equal(of_parameters.b, of_parameters.beta_x)
    else:  # one hat has one gain and one bias
        assert of_parameters.gamma_x is of_parameters.beta_x is None


@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_from_a_state_of_0_the_first_term_is_its_bias_and_its_gradient_long(
    eps: float,
) -> None:
    x, p, _, slopes = draw(TERMS)
    other = p._replace(w_h=3 * p.w_h[::-1])
    h, h_other = (normed.layer_norm_lstm(x, q, eps=eps).h for q in (p, other))
    np.testing.assert_array_equal(h[0], h_other[0])
    assert relative_error(h[1], h_other[1]) > 0.01
    _, cache = normed.layer_norm_lstm_forward(x[:1, :1], p, eps=eps)
    _, of_parameters, dl_dh_0, _ = TERMS.backward(cache, slopes[0][:1, :1])
    # One step of one example: what arrives at a is the gradient of b.
    slope = p.gamma_h * of_parameters.b
    right = (slope - slope.mean()) @ p.w_h / np.sqrt(eps)
    assert relative_error(dl_dh_0[0], right) < EXACT


@each_case
def test_an_example_depends_on_no_other_and_not_on_what_comes_later(
    cell: Cell, sizes: Any
) -> None:
    x, parameters, states, _ = draw(cell, sizes)
    outputs, _ = cell.forward(x, parameters, *states, sizes=sizes)
    starts = np.cumsum((0, *(sizes or (N,) * T)))[:3]  # of the first three steps
    steps, h = x.reshape(-1, D)[starts + 1], outputs.h.reshape(-1, H)[starts + 1]
    alone, _ = cell.forward(steps[:, None], parameters, *(s[1:2] for s in states))
    assert relative_error(alone.h[:, 0], h) <= ROUNDING


def test_the_raw_c_grows_and_the_normalized_one_does_not() -> None:
    p = draw(TERMS).parameters
    b = np.repeat([9.0, 9.0, 0.0, 0.0], H)  # remember all, let all in
    p = LayerNormLSTMParameters(p.w_x, p.w_h, b)
    x = np.ones((60, 1, D))
    raw = normed.layer_norm_lstm_forward(x, p)[1].c
    carried = normed.layer_norm_lstm_forward(x, p, carried="normalized")[1].c
    assert raw[-1].std() > 5 * raw[5].std()
    np.testing.assert_allclose(carried.std(-1), 1, atol=1e-3)  # eps takes some


@each_normed
def test_one_unit_forgets_its_c(cell: Cell) -> None:
    rng = np.random.default_rng(0)
    w_x, w_h, x = rng.normal(size=(4, D)), rng.normal(size=(4, 1)), rng.normal(size=D)
    p = LayerNormLSTMParameters(w_x, w_h, gamma_c=np.ones(1), beta_c=np.full(1, 0.3))
    zero, one = np.zeros((1, 1)), np.ones((1, 1, 1))
    _, cache = cell.forward(x[None, None], p, zero, zero + 7)
    np.testing.assert_array_equal(cache.h, cache.o * np.tanh(0.3))
    slopes = cell.backward(cache, one)
    assert slopes.dl_dc_0 == slopes.dl_dparameters.gamma_c == 0


def test_in_float32_a_large_mean_of_c_costs_no_digits() -> None:
    noise = np.random.default_rng(0).normal(size=(1, H)).astype(np.float32)
    c_0 = np.float32(1e4) + noise  # whatever it was rounded to
    hats: list[Any] = []
    for dtype in (np.float32, np.float64):
        w_x, w_h = np.zeros((4 * H, D), dtype), np.zeros((4 * H, H), dtype)
        p = LayerNormLSTMParameters(w_x, w_h)  # each gate is half open
        x = np.zeros((1, 1, D), dtype)
        cache = normed.layer_norm_lstm_forward(x, p, c_0=c_0.astype(dtype))[1]
        hats.append(cache.c_hat)
    assert hats[0].dtype == np.float32
    assert relative_error(*hats) < 1e-6


@each_normed
def test_in_half_precision_the_statistics_do_not_overflow(cell: Cell) -> None:
    half = np.float16
    w_x = np.tile(np.array([[-300.0], [0.0], [300.0]], half), (4, 1))  # 300**2 is inf
    p = LayerNormLSTMParameters(w_x, np.zeros((12, 3), half))
    _, cache = cell.forward(np.ones((1, 1, 1), half), p)
    hats = cache.q_hat if cell.norm == "terms" else cache.p_hat
    assert hats.dtype == half
    np.testing.assert_allclose(hats.std(), 1, rtol=1e-3)


@each_cell
@pytest.mark.parametrize("of", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_batch_without_examples_gives_gradients_of_0(cell: Cell, of: Any) -> None:
    drawn = draw(cell)
    x, *slopes = (of(v[..., :0, :]) for v in (drawn.x, *drawn.slopes))
    outputs, cache = cell.forward(x, mapped(of, drawn.parameters))
    assert tuple(outputs.h.shape) == (T, 0, H)
    sums = cell.backward(cache, *slopes).dl_dparameters
    assert all(float(abs(v).max()) == 0 for v in sums if v is not None)


@each_case
def test_a_nan_spoils_its_own_sequence_from_its_step_on_and_no_other(
    cell: Cell, sizes: Any
) -> None:
    x, parameters, states, _ = draw(cell, sizes)
    rows = x.reshape(-1, D)
    rows[N + 1, 0] = np.nan  # step 1 of example 1
    outputs, _ = cell.forward(x, parameters, *states, sizes=sizes)
    h = outputs.h.reshape(-1, H)
    spoilt = np.isnan(h).all(-1)
    ends = np.cumsum(sizes or (N,) * T)
    assert np.flatnonzero(spoilt).tolist() == [end + 1 for end in ends[:-1]]
    assert np.isnan(outputs.h_last).all(-1).tolist() == [False, True] + [False] * 3


@pytest.mark.parametrize(
    "of", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"]
)
def test_batch_sizes_may_be_any_sequence_of_whole_numbers(of: Any) -> None:
    x, parameters, states, _ = draw(PLAIN, SIZES)
    _, cache = PLAIN.forward(x, parameters, *states, sizes=of(SIZES))
    assert cache.batch_sizes == SIZES


X, P, (H_0, C_0), SLOPES = draw(TERMS)
M, ZEROS = X.reshape(-1, D), np.zeros((N, H))
GOOD: dict[str, Any] = {"x": X, "parameters": P, "h_0": H_0, "c_0": C_0}


def with_(**changed: Any) -> dict[str, Any]:
    return {"parameters": P._replace(**changed)}


def packed(*sizes: Any, x: Any = M) -> dict[str, Any]:
    return {"x": x, "batch_sizes": sizes}


SUM = P._replace(gamma_x=None, beta_x=None)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X.tolist()}, TypeError, "x must be a NumPy array or a torch tensor"),
    ({"x": X.astype(int)}, TypeError, "real floating-point numbers, got dtype int64"),
    ({"x": np.ma.array(X)}, TypeError, "plain dense array, got MaskedArray"),
    ({"x": X[0]}, ValueError, r"shape \(T, N, D\), got \(5, 2\); .* x\[:, None, :\]"),
    ({"x": X[:0]}, ValueError, "x must hold at least one step and"),
    ({"x": X[..., :0]}, ValueError, "at least one feature, got shape"),
    ({"x": np.ones((T, N, 7))}, ValueError, r"w_x .* \(4H, D\) = \(12, 7\), got"),
    ({"x": torch.tensor(X)}, TypeError, "w_x must be of the kind of x, Tensor"),
    ({"x": X.astype("f4")}, TypeError, "w_x must have the dtype of x, float32, got"),
    ({"parameters": P[:3]}, TypeError, "LayerNormLSTMParameters, got tuple; build"),
    ({"parameters": LSTMParameters(*P[:3])}, TypeError, "got LSTMParameters"),
    (with_(w_x=None), TypeError, "w_x must be a NumPy array .* got NoneType"),
    (with_(w_x=P.w_x.T), ValueError, r"w_x .* \(4H, D\) = \(12, 2\), got \(2, 12\)"),
    (with_(w_h=P.w_h[0]), ValueError, r"w_h must have two axes.* got shape \(3,\)"),
    (with_(w_h=P.w_h[:, :0]), ValueError, r"H >= 1 units, got shape \(12, 0\)"),
    (with_(w_h=P.w_h[:9]), ValueError, r"w_h .* = \(12, 3\), got \(9, 3\)"),
    (with_(b=P.b[:H]), ValueError, r"b must have shape \(4H,\) = \(12,\), got \(3,\)"),
    (with_(b=P.b.tolist()), TypeError, "b must be a NumPy array"),
    (with_(gamma_h=P.gamma_h[None]), ValueError, r"gamma_h .* got \(1, 12\)"),
    (with_(gamma_c=P.b), ValueError, r"gamma_c .* \(H,\) = \(3,\), got \(12,\)"),
    (with_(beta_c=P.beta_c * 1j), TypeError, "beta_c must hold real"),
    ({"h_0": H_0[:1]}, ValueError, r"h_0 .* \(N, H\) = \(5, 3\), got \(1, 3\)"),
    ({"h_0": H_0.astype("f4")}, TypeError, "h_0 must have the dtype of x"),
    ({"c_0": C_0.T}, ValueError, r"c_0 .* got \(3, 5\)"),
    ({"c_0": 0.0}, TypeError, "c_0 must be a NumPy array .* got float"),
    ({"eps": -1.0}, ValueError, "eps must be a finite number >= 0, got -1.0"),
    ({"eps": None}, ValueError, "eps must be a finite number >= 0, got None"),
    ({"norm": "both"}, ValueError, "one of 'terms', 'sum', 'gates', got 'both'"),
    ({"norm": None}, ValueError, "norm must be one of .* got None"),
    ({"carried": "c"}, ValueError, "carried must be one of 'raw', 'normalized', got"),
    ({"norm": "sum"}, ValueError, "gamma_x and beta_x must be None with norm='sum'"),
    ({"hats": "cp"}, ValueError, "hats must be one of 'pqc', .* got 'cp'"),
    ({"hats": "pc", "norm": "sum"}, ValueError, "p and q with norm='sum'.* got 'pc'"),
    ({"hats": "pq", "carried": "normalized"}, ValueError, "must have c .* got 'pq'"),
    ({"hats": "qc"}, ValueError, "gamma_h must be None with hats='qc', got an array"),
    (
        {"norm": "gates", "parameters": SUM._replace(beta_x=P.b)},
        ValueError, "must be None with norm='gates'.* and beta_h act on the sum",
    ),
    (packed(*SIZES, x=X), ValueError, r"\(M, D\), got \(4, 5, 2\); with batch_sizes"),
    (packed(5, 4, 5, 6), ValueError, r"must not grow .* got \(5, 4, 5, 6\); sort"),
    (packed(10, 10, 0), ValueError, r"at least 1, got \(10, 10, 0\)"),
    (packed(10, 12, -2), ValueError, "must not grow and be at least 1"),
    (packed(5, 5, 5), ValueError, r"add to the rows of x, 20, got .* adds to 15"),
    (packed(), ValueError, "add to the rows of x, 20"),
    (packed(x=M[:0]), ValueError, "at least one step"),
    (packed(10.0, 10.0), TypeError, "whole numbers, got"),
    ({"x": M, "batch_sizes": 20}, TypeError, "whole numbers, got 20"),
    (packed(15, 5), ValueError, r"h_0 .* = \(15, 3\), got \(5, 3\)"),
]  # fmt: skip


OF_PLAIN = GOOD | {"parameters": LSTMParameters(*P[:3])}
R = draw(RNN).parameters
OF_RNN = {"x": X, "parameters": R, "h_0": H_0}
NOT_ITS_OWN: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    (OF_PLAIN, {"parameters": P}, TypeError, "LSTMParameters, got LayerNormLSTM"),
    (OF_PLAIN, {"x": X[0]}, ValueError, r"x must have shape \(T, N, D\)"),
    (OF_PLAIN, {"h_0": C_0.T}, ValueError, r"h_0 must have shape \(N, H\)"),
    (OF_PLAIN, packed(5, 4, 5, 6), ValueError, "batch_sizes must not grow"),
    (OF_RNN, {"parameters": P}, TypeError, "LayerNormRNNParameters, got LayerNormLSTM"),
    (OF_RNN, {"parameters": R._replace(w_x=P.w_x)}, ValueError, r"\(H, D\) = \(3, 2\)"),
    (OF_RNN, {"parameters": R._replace(w_h=P.w_h)}, ValueError, r"\(H, H\) = \(3, 3\)"),
    (OF_RNN, {"parameters": R._replace(gamma=P.b)}, ValueError, r"gamma .* \(H,\) = "),
    (OF_RNN, {"h_0": H_0[0]}, ValueError, r"h_0 .* got \(3,\)"),
    (OF_RNN, {"eps": float("nan")}, ValueError, "eps must be a finite number"),
    (OF_RNN, {"x": M}, ValueError, r"x must have shape \(T, N, D\)"),
]


@pytest.mark.parametrize(
    ("good", "changed", "error", "match"),
    [*((GOOD, *bad) for bad in BAD), *NOT_ITS_OWN],
)
def test_bad_input_is_refused(
    good: Any, changed: dict[str, Any], error: type[Exception], match: str
) -> None:
    cell = TERMS if good is GOOD else PLAIN if good is OF_PLAIN else RNN
    with pytest.raises(error, match=match):
        cell.call("_forward", **good | changed)


@each_cell
@pytest.mark.parametrize("x_t", [X, X[0, 0], X[0].tolist()], ids=["3", "1", "list"])
def test_a_step_takes_one_row_for_each_example(cell: Cell, x_t: Any) -> None:
    drawn = draw(cell)
    with pytest.raises((TypeError, ValueError), match=r"x_t must (have shape|be a)"):
        cell.step(x_t, drawn.parameters, *drawn.states)


BAD_SLOPES: list[tuple[int, Any, type[Exception], str]] = [
    (0, None, TypeError, "dl_dh must be a NumPy array"),
    (0, SLOPES[0][1:], ValueError, r"dl_dh must have the shape of h, \(4, 5, 3\), got"),
    (0, torch.tensor(SLOPES[0]), TypeError, "dl_dh must be of the kind of h"),
    (0, SLOPES[0].astype("f4"), TypeError, "dl_dh must have the dtype of h, float64"),
    (0, SLOPES[0].astype(int), TypeError, "dl_dh must hold real floating-point"),
    (1, ZEROS[None], ValueError, r"dl_dh_last .* shape of h_last, \(5, 3\), got \(1, "),
    (1, 0.0, TypeError, "dl_dh_last must be a NumPy array"),
    (1, ZEROS.astype("f4"), TypeError, "dl_dh_last must have the dtype of h_last"),
    (2, ZEROS[:1], ValueError, "dl_dc_last must have the shape of c_last"),
    (2, torch.tensor(ZEROS), TypeError, "dl_dc_last must be of the kind of c_last"),
]


@pytest.mark.parametrize(
    ("cell", "place", "slope", "error", "match"),
    [
        (cell, *bad)
        for cell in (PLAIN, TERMS, RNN)
        for bad in BAD_SLOPES
        if bad[0] < len(draw(cell).slopes)  # the simple cell has no c
    ],
)
def test_a_bad_slope_is_refused(
    cell: Cell, place: int, slope: Any, error: type[Exception], match: str
) -> None:
    x, parameters, states, slopes = draw(cell)
    _, cache = cell.forward(x, parameters, *states)
    with pytest.raises(error, match=match):
        cell.backward(cache, *slopes[:place], slope, *slopes[place + 1 :])


@pytest.mark.parametrize(
    ("cell", "other"), [*itertools.permutations([PLAIN, TERMS, RNN], 2), (TERMS, None)]
)
def test_the_cache_of_another_cell_is_refused(cell: Cell, other: Cell | None) -> None:
    cache: Any = ()
    if other is not None:
        x, parameters, states, _ = draw(other)
        _, cache = other.forward(x, parameters, *states)
    with pytest.raises(ValueError, match=r"cache must be \w+Cache, got \w+; take"):
        cell.backward(cache, SLOPES[0])
