"""Converters of batch norm, LSTMs and language models, by running both sides.

Frameworks that are not installed here stand as their published equations: the cells
below. ``test_conventions_elsewhere.py`` runs the frameworks themselves.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.batch_norm import batch_norm_inference
from normbook.conventions import (
    BATCH_NORM,
    LSTM,
    MODEL_NORM,
    NORMALIZED_LSTM,
    BatchNormState,
    Part,
    batch_norm_from_convention,
    batch_norm_to_convention,
    lstm_from_convention,
    lstm_to_convention,
    norm_gain_from_convention,
    norm_gain_to_convention,
    normalized_lstm_from_convention,
)
from normbook.layer_norm_lstm import (
    Carried,
    LayerNormLSTMParameters,
    Normed,
    layer_norm_lstm,
)
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.lstm import LayerNormLSTM
from normbook.lstm import LSTMParameters, lstm

RTOL = 1e-10  # two ways to compute the same, float64
DUST = 1e-14  # rounding of a product or two
FAR = 0.05  # weights in a wrong order change h by more than this

N, C = 6, 5
T, D, H = 7, 5, 3
G = 4 * H  # rows of all gates

Arrays = dict[str, Any]
Variables = Mapping[str, Any]
Floats = NDArray[Any]
Step = tuple[Floats, Floats]


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def state(**changes: Any) -> Any:
    mean, var = drawn(C, seed=3), drawn(C, seed=4) ** 2 + 0.1
    good = BatchNormState(drawn(C, seed=1), drawn(C, seed=2), mean, var, 0.2, 1e-3)
    return good._replace(**changes)


def weights(**changes: Any) -> Any:
    good = LSTMParameters(drawn(G, D), drawn(G, H), drawn(G))
    return good._replace(**changes)


def keras_batch_norm(**changes: Any) -> Arrays:
    return batch_norm_to_convention("keras", state())[0] | changes


KERAS_SETTINGS = {"momentum": 0.99, "epsilon": 1e-3}
TORCH_SETTINGS = {"momentum": 0.1, "eps": 1e-5}


def loaded(layer: Any, arrays: Arrays) -> Any:
    """Return a layer of torch, in evaluation, with these arrays as its state."""
    layer.load_state_dict({name: torch.tensor(value) for name, value in arrays.items()})
    return layer.eval()


# --- batch norm


@pytest.mark.parametrize("count", [None, 8])
@pytest.mark.parametrize("framework", BATCH_NORM)
def test_a_batch_norm_layer_survives_the_way_there_and_back_and_goes_on_in_torch(
    framework: str, count: int | None
) -> None:
    own, x = state(), drawn(N, C)
    there = batch_norm_to_convention(framework, own, count=count)
    read = batch_norm_from_convention(framework, *there, count=count)
    for field, value in own._asdict().items():
        np.testing.assert_allclose(
            getattr(read, field), value, rtol=DUST, err_msg=field
        )
    variables, settings = batch_norm_to_convention("torch", read)
    layer = loaded(nn.BatchNorm1d(C, **settings, dtype=torch.float64), variables)
    hat = (x - own.running_mean) / np.sqrt(own.running_var + own.eps)
    y = layer(torch.tensor(x)).detach()
    np.testing.assert_allclose(y, own.gamma * hat + own.beta, rtol=RTOL)
    assert layer.momentum == own.momentum


@pytest.mark.parametrize("framework", ["keras", "flax", "onnx"])
def test_the_momentum_of_others_is_the_weight_of_the_old_value(framework: str) -> None:
    _, settings = batch_norm_to_convention(framework, state(momentum=0.2))
    layer: Any = nn.BatchNorm1d(1, momentum=0.2)
    layer(torch.tensor([[8.0], [12.0]]))
    by_hand = settings["momentum"] * 0 + (1 - settings["momentum"]) * 10
    assert math.isclose(layer.running_mean.item(), by_hand, rel_tol=1e-6)


def test_the_defaults_in_the_row_of_torch_are_those_of_its_layer() -> None:
    layer, row = nn.BatchNorm1d(C), BATCH_NORM["torch"]
    assert (layer.momentum, layer.eps) == (row.default_momentum, row.default_eps)
    names = {row.gamma, row.beta, row.running_mean, row.running_var, *row.dropped}
    assert {*layer.state_dict()} == names


def test_with_a_count_a_biased_variance_becomes_the_one_that_torch_averages() -> None:
    x = drawn(N, C)
    layer: Any = nn.BatchNorm1d(C, momentum=1.0, dtype=torch.float64)
    layer(torch.tensor(x))
    keras = keras_batch_norm(moving_variance=x.var(0))
    read = batch_norm_from_convention("keras", keras, KERAS_SETTINGS, count=N)
    np.testing.assert_allclose(read.running_var, layer.running_var, rtol=RTOL)


@pytest.mark.parametrize("framework", ["book", "torch"])
def test_a_count_changes_nothing_where_both_sides_are_unbiased(framework: str) -> None:
    variables, settings = batch_norm_to_convention(framework, state(), count=4)
    read = batch_norm_from_convention(framework, variables, settings, count=4)
    np.testing.assert_array_equal(read.running_var, state().running_var)


def test_a_bad_count_is_refused_even_where_it_changes_nothing() -> None:
    message = "count must be a whole number >= 2, got 1"
    with pytest.raises(ValueError, match=message):
        batch_norm_to_convention("torch", state(), count=1)
    there = batch_norm_to_convention("torch", state())
    with pytest.raises(ValueError, match=message):
        batch_norm_from_convention("torch", *there, count=1)


def test_a_layer_without_gain_and_bias_stays_one() -> None:
    there = batch_norm_to_convention("flax", state(gamma=None, beta=None))
    assert set(there[0]) == {"batch_stats"}
    assert batch_norm_from_convention("flax", *there)[:2] == (None, None)


@pytest.mark.parametrize("lacking", ["gamma", "beta"])
def test_torch_gets_both_of_gain_and_bias_where_one_is_missing(lacking: str) -> None:
    own = state(**{lacking: None})
    there = batch_norm_to_convention("keras", own)
    variables, settings = batch_norm_to_convention(
        "torch", batch_norm_from_convention("keras", *there)
    )
    layer = loaded(nn.BatchNorm1d(C, **settings, dtype=torch.float64), variables)
    x = drawn(N, C)
    y = layer(torch.tensor(x)).detach()
    statistics = own.running_mean, own.running_var
    right = batch_norm_inference(x, *statistics, own.gamma, own.beta, own.eps)
    np.testing.assert_allclose(y, right, rtol=RTOL)


def test_torch_gets_neither_gain_nor_bias_where_both_are_missing() -> None:
    there, _ = batch_norm_to_convention("torch", state(gamma=None, beta=None))
    assert {*there} == {"running_mean", "running_var"}
    loaded(nn.BatchNorm1d(C, affine=False), there)


def test_onnx_always_gets_gain_and_bias_since_its_node_needs_them() -> None:
    there, _ = batch_norm_to_convention("onnx", state(gamma=None, beta=None))
    np.testing.assert_array_equal(there["scale"], np.ones(C))
    np.testing.assert_array_equal(there["B"], np.zeros(C))


def test_the_plain_average_of_torch_is_kept_where_it_exists() -> None:
    variables, settings = batch_norm_to_convention("torch", state(momentum=None))
    assert nn.BatchNorm1d(C, **settings).momentum is None
    assert batch_norm_from_convention("torch", variables, settings).momentum is None


def test_the_number_of_batches_is_read_past() -> None:
    layer: Any = nn.BatchNorm1d(C)
    assert "num_batches_tracked" in layer.state_dict()
    read = batch_norm_from_convention("torch", layer.state_dict(), TORCH_SETTINGS)
    assert "num_batches_tracked" not in batch_norm_to_convention("torch", read)[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_batch_norm_keeps_the_dtype(dtype: type) -> None:
    given = {k: v.astype(dtype) for k, v in keras_batch_norm().items()}
    read = batch_norm_from_convention("keras", given, KERAS_SETTINGS, count=4)
    there, _ = batch_norm_to_convention("onnx", read, count=3)
    assert {v.dtype for v in (*read[:4], *there.values())} == {np.dtype(dtype)}


def test_what_was_read_shares_no_memory_with_its_source() -> None:
    layer: Any = nn.BatchNorm1d(C)
    read = batch_norm_from_convention("torch", layer.state_dict(), TORCH_SETTINGS)
    layer(torch.tensor(drawn(N, C), dtype=torch.float32))
    np.testing.assert_array_equal(read.running_mean, np.zeros(C))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"framework": "kears"}, ValueError, "must be one of book, torch.*got 'kears'"),
        ({"framework": ["keras"]}, ValueError, r"must be one of.*got \['keras'\]"),
        ({"variables": [1.0]}, TypeError, "must be a mapping.*got list; .*state_dict"),
        ({"settings": 0.99}, TypeError, "settings must be a mapping.*layer.momentum"),
        ({"settings": {"momentum": 0.9}}, ValueError, "missing epsilon"),
        ({"settings": {"eps": 1, **KERAS_SETTINGS}}, ValueError, "unknown eps"),
        ({"variables": {}}, ValueError, "got none: missing moving_mean, moving_var"),
        ({"weight": drawn(C)}, ValueError, "names gamma, beta, .*: unknown weight"),
        ({"gamma": drawn(C + 1)}, ValueError, re.escape("(C,), all the same, got")),
        ({"beta": drawn(1, C)}, ValueError, re.escape("'beta': (1, 5)")),
        ({"moving_variance": -np.ones(C)}, ValueError, "numbers >= 0, got"),
        ({"moving_variance": np.full(C, np.nan)}, ValueError, "numbers >= 0, got"),
        ({"gamma": np.arange(C)}, TypeError, "gamma must hold.*got dtype int64"),
        ({"gamma": [[1.0], 2.0]}, TypeError, "gamma must be something that numpy"),
        ({"momentum": None}, ValueError, "a number for keras, got None; torch alone"),
        ({"momentum": 1.5}, ValueError, r"in \[0, 1\], got 1.5.*weight of the old"),
        ({"momentum": "0.9"}, ValueError, r"momentum must lie in \[0, 1\], got '0.9'"),
        ({"momentum": 10**400}, ValueError, r"momentum must lie in \[0, 1\], got 10+"),
        ({"gamma": torch.ones(C, dtype=torch.bfloat16)}, TypeError, r"\.float\(\)"),
        ({"epsilon": -1.0}, ValueError, "eps must be a finite number >= 0, got -1.0"),
        ({"count": 1}, ValueError, "count must be a whole number >= 2, got 1"),
    ],
)
def test_batch_norm_of_a_bad_form_is_refused(
    given: Arrays, error: type[Exception], message: str
) -> None:
    arguments: Arrays = {
        "framework": "keras",
        "variables": keras_batch_norm(),
        "settings": dict(KERAS_SETTINGS),
        "count": None,
    }
    for name, value in given.items():
        place = "settings" if name in KERAS_SETTINGS else "variables"
        (arguments if name in arguments else arguments[place])[name] = value
    with pytest.raises(error, match=message):
        batch_norm_from_convention(**arguments)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (state(running_mean=None), ValueError, "missing running_mean"),
        (state(eps=None), ValueError, "eps must be a finite number"),
        (state(momentum=None), ValueError, "for keras, got None"),
        (state(running_var=-np.ones(C)), ValueError, "numbers >= 0"),
        ({"gamma": 1.0}, TypeError, "must be a BatchNormState, got dict"),
    ],
)
def test_a_bad_state_is_not_written(
    given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        batch_norm_to_convention("keras", given)


def test_parameters_of_torch_that_autograd_follows_are_refused_with_the_cure() -> None:
    layer: Any = nn.BatchNorm1d(C)
    variables = dict(layer.named_parameters()) | dict(layer.named_buffers())
    with pytest.raises(TypeError, match=r"got Parameter .*tensor.detach\(\).cpu\(\)"):
        batch_norm_from_convention("torch", variables, TORCH_SETTINGS)


# --- the plain LSTM


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("framework", LSTM)
def test_lstm_weights_survive_the_way_there_and_back_and_go_on_in_torch(
    framework: str, has_bias: bool
) -> None:
    own = weights() if has_bias else weights(b=None)
    read = lstm_from_convention(framework, lstm_to_convention(framework, own))
    for field, value in own._asdict().items():
        if value is not None:  # a forget bias is taken off and added again
            np.testing.assert_allclose(
                getattr(read, field), value, rtol=DUST, atol=DUST, err_msg=field
            )
    layer = loaded(
        nn.LSTM(D, H, dtype=torch.float64), lstm_to_convention("torch", read)
    )
    x = drawn(T, N, D)
    h = layer(torch.tensor(x))[0].detach()
    np.testing.assert_allclose(h, lstm(x, own).h, rtol=RTOL)


def sigmoid(a: Any) -> Any:
    return 1 / (1 + np.exp(-a))


def update(order: str, a: Floats, c: Floats, added: float = 0.0) -> Step:
    """Return o and the next c, from four blocks before the nonlinearities."""
    blocks = dict(zip(order, np.split(a, 4, axis=1), strict=True))
    f, i, o = sigmoid(blocks["f"] + added), sigmoid(blocks["i"]), sigmoid(blocks["o"])
    return o, f * c + i * np.tanh(blocks["g"])


def plain(order: str, a: Floats, c: Floats, added: float = 0.0) -> Step:
    """Return the next h and c of an LSTM without normalization."""
    o, c = update(order, a, c, added)
    return o * np.tanh(c), c


def over_time(cell: Callable[..., Step], variables: Any, x: Floats) -> Floats:
    """Run a cell from states of zeros; give all h."""
    h, c = np.zeros((x.shape[1], H)), np.zeros((x.shape[1], H))
    states = []
    for x_t in x:
        h, c = cell(variables, x_t, h, c)
        states.append(h)
    return np.stack(states)


def keras(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = x_t @ v["kernel"] + h @ v["recurrent_kernel"] + v["bias"]
    return plain("ifgo", a, c)


def haste(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = x_t @ v["kernel"] + h @ v["recurrent_kernel"] + v["bias"]
    return plain("igfo", a, c)


def flax(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    blocks = [
        x_t @ v["i" + k]["kernel"] + h @ v["h" + k]["kernel"] + v["h" + k]["bias"]
        for k in "ifgo"
    ]
    return plain("ifgo", np.concatenate(blocks, axis=1), c)


def flax_nnx(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = x_t @ v["dense_i"]["kernel"] + h @ v["dense_h"]["kernel"]
    return plain("ifgo", a + v["dense_h"]["bias"], c)


def onnx(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    b = v["B"][0, :G] + v["B"][0, G:]
    return plain("iofg", x_t @ v["W"][0].T + h @ v["R"][0].T + b, c)


def tensorflow1(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = np.concatenate([x_t, h], axis=1) @ v["kernel"] + v["bias"]
    return plain("igfo", a, c, added=1.0)


def kiros(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    return plain("ifog", (x_t @ v["W"] + v["b"]) + h @ v["U"] + v["b"], c)


CELLS = {
    f.__name__: f for f in (keras, haste, flax, flax_nnx, onnx, tensorflow1, kiros)
}


@pytest.mark.parametrize("framework", CELLS)
def test_the_cell_of_a_framework_computes_the_same_with_written_weights(
    framework: str,
) -> None:
    x = drawn(T, N, D)
    theirs = over_time(CELLS[framework], lstm_to_convention(framework, weights()), x)
    np.testing.assert_allclose(theirs, lstm(x, weights()).h, rtol=RTOL)


def test_the_cells_above_leave_out_only_the_book_and_torch() -> None:
    assert {*CELLS, "book", "torch"} == {*LSTM}


def test_every_wrong_order_computes_something_else() -> None:
    x, right = drawn(T, N, D), lstm(drawn(T, N, D), weights()).h
    written = lstm_to_convention("keras", weights())
    for order in itertools.permutations(range(4)):
        wrong = {
            name: np.concatenate([np.split(v, 4, -1)[k] for k in order], -1)
            for name, v in written.items()
        }
        error = np.abs(lstm(x, lstm_from_convention("keras", wrong)).h - right).max()
        assert (error > FAR) == (order != (0, 1, 2, 3)), order


def test_a_forget_bias_at_run_time_goes_into_the_bias() -> None:
    there = lstm_to_convention("tensorflow1", weights(), forget_bias=0.0)
    read = lstm_from_convention("tensorflow1", there, forget_bias=2.5)
    assert read.b is not None
    added = read.b - weights().b
    np.testing.assert_allclose(added, [2.5] * H + [0.0] * 3 * H, atol=DUST)


def test_no_bias_is_read_as_none() -> None:
    there = lstm_to_convention("onnx", weights())
    del there["B"]
    assert lstm_from_convention("onnx", there).b is None


@pytest.mark.parametrize("framework", LSTM)
def test_lstm_weights_keep_their_dtype_and_leave_their_source_alone(
    framework: str,
) -> None:
    single: Any = LSTMParameters(*(np.float32(v) for v in weights()))
    kept = [v.copy() for v in single]
    read = lstm_from_convention(framework, lstm_to_convention(framework, single))
    for value in read:
        assert value is not None
        assert value.dtype == np.float32
        value += 1
    for before, after in zip(kept, single, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("framework", "changes", "error", "message"),
    [
        ("pytorch", {}, ValueError, "must be one of book, torch, keras"),
        ("keras", {"kernel": None}, ValueError, ": missing kernel. Pass what one"),
        ("keras", {"beta": drawn(3)}, ValueError, ": unknown beta. Pass what one"),
        ("torch", {"bias_hh_l0": None}, ValueError, ": missing bias_hh_l0"),
        ("flax", {"ii": None}, ValueError, ": missing ii/kernel"),
        ("onnx", {"P": drawn(1, 3 * H)}, ValueError, ": unknown P"),
        ("keras", {"kernel": drawn(G, D)}, ValueError, r"\(D, 4H\) with H = 3"),
        ("torch", {"weight_ih_l0": drawn(D, G)}, ValueError, r"\(4H, D\) .*axis"),
        ("torch", {"weight_hh_l0": drawn(G)}, ValueError, r"shape \(4H, H\)"),
        ("torch", {"weight_hh_l0": drawn(G, 4)}, ValueError, r"weight_hh.*\(12, 4"),
        ("keras", {"bias": drawn(H)}, ValueError, r"bias must have shape \(4H,\)"),
        ("flax", {"hi": {"kernel": drawn(H, H)}}, ValueError, "missing hi/bias"),
        ("torch", {"weight_ih_l0": drawn(G, 0)}, ValueError, r"h_l0.*1, got \(12, 0\)"),
        ("torch", {"weight_hh_l0": drawn(0, 0)}, ValueError, r"^weight_hh.* \(0, 0"),
        ("flax", {"io": {"kernel": drawn(2, H)}}, ValueError, r"io/kernel .*\(2, 3\)"),
        ("flax", {"ii/kernel": drawn(D, H)}, ValueError, "each name once, got .*ii/k"),
        ("onnx", {"W": drawn(2, G, D)}, ValueError, r"got \(2, 12, 5\).*\[:1\]"),
        ("onnx", {"W": drawn(G, D)}, ValueError, r"W must .*\(1, 4H, D\)"),
        ("onnx", {"R": drawn(G, H)}, ValueError, r"R must .*\(1, 4H, H\)"),
        ("onnx", {"B": drawn(1, G + 1)}, ValueError, r"B must have shape \(1, 8H"),
        ("tensorflow1", {"kernel": drawn(2, G)}, ValueError, r"\(D \+ H, 4H\)"),
        ("keras", {"bias": np.zeros(G, "f4")}, TypeError, "one dtype.*float32"),
        ("keras", {"bias": np.zeros(G, int)}, TypeError, "bias must hold.*int64"),
    ],
)
def test_lstm_weights_of_a_bad_form_are_refused(
    framework: str, changes: Arrays, error: type[Exception], message: str
) -> None:
    known = framework if framework in LSTM else "torch"
    given = lstm_to_convention(known, weights()) | changes
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(error, match=message):
        lstm_from_convention(framework, given)


def test_a_forget_bias_is_refused_where_it_is_stored() -> None:
    with pytest.raises(ValueError, match="left out for keras"):
        lstm_from_convention(
            "keras", lstm_to_convention("keras", weights()), forget_bias=1.0
        )


@pytest.mark.parametrize("bad", ["one", math.nan, math.inf, 10**400])
def test_a_forget_bias_that_is_no_finite_number_is_refused(bad: Any) -> None:
    message = f"forget_bias must be a finite number, got {bad!r}; the cell has 1.0"
    with pytest.raises(ValueError, match=message):
        lstm_to_convention("tensorflow1", weights(), forget_bias=bad)


def test_a_written_lstm_of_zero_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"w_x must have shape .*got \(12, 0\)"):
        lstm_to_convention("tensorflow1", weights(w_x=drawn(G, 0)))


def test_written_weights_are_arrays_of_their_own() -> None:
    for value in lstm_to_convention("keras", weights()).values():
        assert value.flags.c_contiguous
        assert value.flags.owndata


def test_the_layer_of_the_book_sorts_the_gates_of_torch_in_the_same_way() -> None:
    state = nn.LSTM(D, H, dtype=torch.float64).state_dict()
    layer = LayerNormLSTM(D, H, norm=None, dtype=torch.float64)
    layer.load_state_dict(dict(state))
    read = lstm_from_convention("torch", state)
    for field, value in read._asdict().items():
        own = getattr(layer, f"{field}_l0").detach()
        np.testing.assert_array_equal(own, value, err_msg=field)


def test_only_the_weights_of_a_plain_lstm_are_written() -> None:
    with pytest.raises(TypeError, match="must be LSTMParameters, got LayerNormLSTM"):
        lstm_to_convention("torch", LayerNormLSTMParameters(*weights()))  # type: ignore[arg-type]


# --- LSTMs with normalization

BOTH = ("gamma", "beta")
SHAPES: dict[str, dict[str, Any]] = {
    "kiros": {"W": (D, G), "U": (H, G), "b": (G,), "b3": (H,), "s3": (H,)}
    | {f"{k}{n}": (G,) for k in "bs" for n in "12"},
    "haste": {"kernel": (D, G), "recurrent_kernel": (H, G), "bias": (G,)}
    | {"gamma": (2, G), "gamma_h": (H,), "beta_h": (H,)},
    "torch_custom_lstms": {"weight_ih": (G, D), "weight_hh": (G, H)}
    | {f"layernorm_{k}.{n}": (G,) for k in "ih" for n in ("weight", "bias")}
    | {f"layernorm_c.{n}": (H,) for n in ("weight", "bias")},
    "tensorflow_addons": {"kernel": (D, G), "recurrent_kernel": (H, G), "bias": (G,)}
    | {f"{k}_norm/{n}": (G,) for k in ("kernel", "recurrent") for n in BOTH}
    | {f"state_norm/{n}": (H,) for n in BOTH},
    "tensorflow1_contrib": {"kernel": (D + H, G)}
    | {
        f"{k}/{n}": (H,)
        for k in ("input", "transform", "forget", "output", "state")
        for n in BOTH
    },
    "cooijmans": {"Wx": (D, G), "Wa": (H, G), "ab_betas": (G,), "a_gammas": (G,)}
    | {"b_gammas": (G,), "h_gammas": (H,), "h_betas": (H,)},
}


def variables(framework: str) -> dict[str, Floats]:
    drawn_ = {
        name: drawn(*shape, seed=seed)
        for seed, (name, shape) in enumerate(SHAPES[framework].items())
    }
    if framework == "kiros":
        drawn_["b"] = np.full(G, 0.7)  # the only kind that can be read
    return drawn_


def hat(a: Floats, eps: float, axis: int = -1) -> Any:
    mean, var = a.mean(axis, keepdims=True), a.var(axis, keepdims=True)
    return (a - mean) / np.sqrt(var + eps)


def normalized_kiros(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = hat(x_t @ v["W"] + v["b"], 1e-5) * v["s1"] + v["b1"]
    a = a + hat(h @ v["U"], 1e-5) * v["s2"] + v["b2"] + v["b"]
    o, c = update("ifog", a, c)
    return o * np.tanh(hat(c, 1e-5) * v["s3"] + v["b3"]), c


def normalized_haste(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = hat(x_t @ v["kernel"], 1e-5) * v["gamma"][0] + v["bias"]
    a = a + hat(h @ v["recurrent_kernel"], 1e-5) * v["gamma"][1]
    o, c = update("igfo", a, c)
    return o * np.tanh(hat(c, 1e-5) * v["gamma_h"] + v["beta_h"]), c


def custom_lstms(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    def ln(name: str, a: Floats) -> Any:
        name = f"layernorm_{name}"
        return hat(a, 1e-5) * v[f"{name}.weight"] + v[f"{name}.bias"]

    a = ln("i", x_t @ v["weight_ih"].T) + ln("h", h @ v["weight_hh"].T)
    o, c = update("ifgo", a, c)
    c = ln("c", c)
    return o * np.tanh(c), c


def addons(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    def ln(name: str, a: Floats) -> Any:
        return hat(a, 1e-3) * v[f"{name}_norm/gamma"] + v[f"{name}_norm/beta"]

    a = ln("kernel", x_t @ v["kernel"]) + ln("recurrent", h @ v["recurrent_kernel"])
    o, c = update("ifgo", a + v["bias"], c)
    c = ln("state", c)
    return o * np.tanh(c), c


def contrib(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    def ln(name: str, a: Floats) -> Any:
        return hat(a, 1e-12) * v[f"{name}/gamma"] + v[f"{name}/beta"]

    blocks = np.split(np.concatenate([x_t, h], axis=1) @ v["kernel"], 4, axis=1)
    names = ("input", "transform", "forget", "output")
    a = np.concatenate(list(map(ln, names, blocks)), axis=1)
    o, c = update("igfo", a, c, added=1.0)
    c = ln("state", c)
    return o * np.tanh(c), c


def cooijmans(v: Variables, x_t: Floats, h: Floats, c: Floats) -> Step:
    a = hat(h @ v["Wa"], 1e-5, axis=0) * v["a_gammas"] + v["ab_betas"]
    a = a + hat(x_t @ v["Wx"], 1e-5, axis=0) * v["b_gammas"]
    o, c = update("gfio", a, c)
    return o * np.tanh(hat(c, 1e-5, axis=0) * v["h_gammas"] + v["h_betas"]), c


NORMALIZED_CELLS = {
    "kiros": normalized_kiros,
    "haste": normalized_haste,
    "torch_custom_lstms": custom_lstms,
    "tensorflow_addons": addons,
    "tensorflow1_contrib": contrib,
}


@pytest.mark.parametrize("framework", NORMALIZED_CELLS)
def test_the_book_computes_what_a_cell_with_layer_norm_computes(framework: str) -> None:
    given, x = variables(framework), drawn(T, N, D)
    row: Any = NORMALIZED_LSTM[framework]
    read = normalized_lstm_from_convention(framework, given)
    own = layer_norm_lstm(x, read, eps=row.eps, norm=row.norm, carried=row.carried)
    theirs = over_time(NORMALIZED_CELLS[framework], given, x)
    np.testing.assert_allclose(own.h, theirs, rtol=RTOL)


def test_the_cell_with_batch_norm_is_that_of_the_layer() -> None:
    given, x = variables("cooijmans"), drawn(T, N, D)
    read = normalized_lstm_from_convention("cooijmans", given)
    layer = BatchNormLSTM(D, H, max_steps=T, dtype=torch.float64)
    own = {f"{k}_l0": read._asdict()[k] for k in ("w_x", "w_h", "b")}
    own |= {f"norm_{k}_l0.weight": read._asdict()[f"gamma_{k}"] for k in "hxc"}
    own["norm_c_l0.bias"] = read.beta_c
    layer.load_state_dict({k: torch.tensor(v) for k, v in own.items()}, strict=False)
    h = layer(torch.tensor(x))[0].detach()
    np.testing.assert_allclose(h, over_time(cooijmans, given, x), rtol=RTOL)


def test_the_normalized_cells_above_leave_nothing_out() -> None:
    assert {*NORMALIZED_CELLS, "cooijmans"} == {*NORMALIZED_LSTM} == {*SHAPES}


@pytest.mark.parametrize("framework", NORMALIZED_LSTM)
def test_the_options_of_a_row_are_those_of_the_book(framework: str) -> None:
    row = NORMALIZED_LSTM[framework]
    assert row.norm in get_args(Normed)
    assert row.carried in get_args(Carried)


@pytest.mark.parametrize("framework", NORMALIZED_LSTM)
def test_a_missing_gain_is_refused_with_its_name(framework: str) -> None:
    given = variables(framework)
    gain = str(*NORMALIZED_LSTM[framework].parts["gamma_c"])
    del given[gain]
    with pytest.raises(ValueError, match=f": missing {gain}. Pass"):
        normalized_lstm_from_convention(framework, given)


@pytest.mark.parametrize(
    ("b", "ends"),
    [(np.arange(4.0 * H), "0.0 to 11.0"), (np.full(4 * H, np.nan), "nan to nan")],
)
def test_a_bias_inside_a_layer_norm_that_does_not_cancel_is_refused(
    b: Floats, ends: str
) -> None:
    message = rf"all entries of b must be equal.*from {ends}; append b to W"
    with pytest.raises(ValueError, match=message):
        normalized_lstm_from_convention("kiros", variables("kiros") | {"b": b})


def test_the_cure_for_such_a_bias_computes_the_same() -> None:
    given, x = variables("kiros") | {"b": drawn(G)}, drawn(T, N, D)
    cured = given | {
        "W": np.concatenate([given["W"], given["b"][None]]),
        "b1": given["b1"] + given["b"],
        "b": np.zeros(G),
    }
    ones = np.ones((T, N, 1))
    read = normalized_lstm_from_convention("kiros", cured)
    own = layer_norm_lstm(np.concatenate([x, ones], axis=-1), read)
    np.testing.assert_allclose(own.h, over_time(normalized_kiros, given, x), rtol=RTOL)


@pytest.mark.parametrize(
    ("framework", "changes", "message"),
    [
        ("haste", {"gamma": drawn(3, G)}, r"gamma must have shape \(2, 4H\) "),
        ("haste", {"gamma_h": drawn(G)}, r"gamma_h must have shape \(H,\)"),
        ("tensorflow1_contrib", {"forget/beta": drawn(G)}, r"^forget/.*\(H,\).*\(12,"),
        ("cooijmans", {"h0": drawn(H)}, ": unknown h0. Pass"),
        ("labml", {}, "must be one of kiros, haste"),
    ],
)
def test_normalized_weights_of_a_bad_form_are_refused(
    framework: str, changes: Arrays, message: str
) -> None:
    given = variables(framework if framework in SHAPES else "haste") | changes
    with pytest.raises(ValueError, match=message):
        normalized_lstm_from_convention(framework, given)


# --- norms of language models


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("model", [m for m, row in MODEL_NORM.items() if row.has_gain])
def test_a_gain_survives_the_way_there_and_back(model: str, dtype: type) -> None:
    stored: Any = drawn(C).astype(dtype)
    gain = norm_gain_from_convention(model, stored)
    np.testing.assert_allclose(gain - stored, MODEL_NORM[model].offset, atol=1e-6)
    back: Any = norm_gain_to_convention(model, gain).astype(dtype)
    np.testing.assert_allclose(back, stored, rtol=1e-6, atol=1e-7)
    assert gain.dtype == dtype or (dtype == np.float16 and MODEL_NORM[model].offset)
    assert not np.shares_memory(gain, stored)


def test_a_small_weight_of_half_precision_is_not_lost_beside_the_one() -> None:
    stored = np.full(C, 1e-4, np.float16)
    assert np.all(1 + stored == 1)  # in float16
    assert np.all(norm_gain_from_convention("gemma", stored) > 1)


@pytest.mark.parametrize("move", [norm_gain_from_convention, norm_gain_to_convention])
def test_a_bad_gain_of_a_language_model_is_refused(move: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"model must be one of llama, .*got 'lama'"):
        move("lama", np.ones(C))
    with pytest.raises(ValueError, match="got 'olmo', which has none; leave the gain"):
        move("olmo", np.ones(C))
    with pytest.raises(TypeError, match=r"bfloat16 \.float\(\) as well"):
        move("gemma", torch.ones(C, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="got dtype int64"):
        move("gemma", np.arange(C))


def test_a_part_is_written_as_it_would_be_indexed() -> None:
    assert str(Part("w")) == "w"
    assert str(Part("w", at=(slice("D"),))) == "w[:D]"
    assert str(Part("w", at=(1, slice("D", "H")))) == "w[1,D:H]"


@pytest.mark.parametrize("model", MODEL_NORM)
def test_the_norms_of_models_have_a_small_eps_and_add_1_or_nothing(model: str) -> None:
    of = MODEL_NORM[model]
    assert 1e-7 < of.eps <= 1e-5
    assert of.offset in (0.0, 1.0)
