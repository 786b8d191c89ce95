"""The converters against the frameworks themselves, for those who have them.

The book's environment has torch alone, so that these tests are skipped there. In one
that has a framework, NumPy, array-api-compat, pytest and this package::

    KERAS_BACKEND=jax TF_USE_LEGACY_KERAS=1 \
        python -m pytest --noconftest -c /dev/null \
        tests/test_conventions_elsewhere.py

What came of it, and with which versions, stands in the book, chapter *Framework
conventions*.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from normbook.batch_norm import batch_norm, batch_norm_inference
from normbook.conventions import (
    BATCH_NORM,
    MODEL_NORM,
    BatchNormState,
    batch_norm_from_convention,
    batch_norm_to_convention,
    lstm_from_convention,
    lstm_to_convention,
    norm_gain_from_convention,
    norm_gain_to_convention,
)
from normbook.layer_norm import layer_norm, rms_norm
from normbook.lstm import LSTMParameters, lstm
from normbook.running_statistics import RunningStatistics

# A framework warns of its own affairs, such as a cell that is deprecated.
pytestmark = pytest.mark.filterwarnings("default")

RTOL = 2e-4  # float32, sums in another order
ATOL = 2e-6
NOT_HERE = "is not installed; the converters for it are compared where it is"

N, C = 6, 5
T, D, H = 7, 5, 3

Floats = NDArray[Any]


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def installed(*names: str) -> Any:
    """Return the last of these modules, or skip the test."""
    modules = [
        pytest.importorskip(name, reason=f"{name} {NOT_HERE}", exc_type=ImportError)
        for name in names
    ]
    return modules[-1]


def assert_equal(theirs: Any, own: Any) -> None:
    np.testing.assert_allclose(np.asarray(theirs), own, rtol=RTOL, atol=ATOL)


BATCHES = [3 + 2 * drawn(N, C, seed=seed) for seed in range(4)]


def averaged(momentum: float | None, *, is_unbiased: bool) -> RunningStatistics:
    """Return the statistics of the batches, with the weight of the new value."""
    running = RunningStatistics.start(
        np.zeros(C, np.float32), momentum=momentum, is_unbiased=is_unbiased
    )
    for x in BATCHES:
        running = running.update(x.mean(0), x.var(0), count=N)
    return running


def check_batch_norm(
    framework: str, variables: Any, settings: Any, y_training: Any, y: Any
) -> None:
    """Compare a layer that has seen the batches: averages, and outputs in both modes.

    The outputs are those of the last batch in training and of the first afterwards.
    """
    own = batch_norm_from_convention(framework, variables, settings)
    row = BATCH_NORM[framework]
    running = averaged(own.momentum, is_unbiased=row.is_unbiased)
    other = averaged(own.momentum, is_unbiased=not row.is_unbiased)
    assert_equal(own.running_mean, running.mean)
    assert_equal(own.running_var, running.var)
    assert np.abs(own.running_var - other.var).min() > 10 * RTOL  # it would be seen
    by_batch = batch_norm(BATCHES[-1], own.gamma, own.beta, own.eps)
    assert_equal(y_training, by_batch)
    assert_equal(y, inferred(own, BATCHES[0]))


def inferred(own: BatchNormState, x: Floats) -> Any:
    """Return what the book computes from a state."""
    statistics = own.running_mean, own.running_var
    return batch_norm_inference(x, *statistics, own.gamma, own.beta, own.eps)


def written(framework: str) -> Any:
    """Return gain and bias that show, with statistics of a new layer."""
    mean, var = np.zeros(C, np.float32), np.ones(C, np.float32)
    own = BatchNormState(drawn(C, seed=7), drawn(C, seed=8), mean, var, 0.25, 0.01)
    return batch_norm_to_convention(framework, own)


WEIGHTS = LSTMParameters(drawn(4 * H, D), drawn(4 * H, H), drawn(4 * H))
X = drawn(T, N, D)


def check_lstm(framework: str, variables: Any, h: Any) -> None:
    """Compare what the framework computed from x with what the book does."""
    assert_equal(h, lstm(X, lstm_from_convention(framework, variables)).h)
    assert_equal(h, lstm(X, WEIGHTS).h)


def over_time(step: Callable[[Any, Floats], tuple[Any, Any]], carry: Any = None) -> Any:
    """Run a cell, which returns what it carries and h, over x; return all h."""
    if carry is None:
        carry = np.zeros((N, H), np.float32), np.zeros((N, H), np.float32)
    h = []
    for x_t in X:
        carry, h_t = step(carry, x_t)
        h.append(np.asarray(h_t))
    return np.stack(h)


# --- Keras


@pytest.fixture
def keras() -> Any:
    return installed("keras")


def keras_layer(keras: Any) -> tuple[Any, Any, Any]:
    variables, settings = written("keras")
    layer = keras.layers.BatchNormalization(**settings)
    layer.build((None, C))
    for variable in layer.weights:
        variable.assign(variables[variable.name])
    return layer, variables, settings


def keras_variables(layer: Any) -> dict[str, Any]:
    return {v.name: v for v in layer.weights}


def test_keras_has_the_defaults_of_the_table(keras: Any) -> None:
    layer, row = keras.layers.BatchNormalization(), BATCH_NORM["keras"]
    assert (layer.momentum, layer.epsilon) == (row.default_momentum, row.default_eps)
    layer.build((None, C))
    names = {row.gamma, row.beta, row.running_mean, row.running_var}
    assert {v.name for v in layer.weights} == names
    start = keras_variables(layer)
    assert_equal(start["moving_mean"], np.zeros(C))
    assert_equal(start["moving_variance"], np.ones(C))


def test_batch_norm_of_keras(keras: Any) -> None:
    layer, _, settings = keras_layer(keras)
    for x in BATCHES:
        y_training = layer(x, training=True)
    y = layer(BATCHES[0], training=False)
    check_batch_norm("keras", keras_variables(layer), settings, y_training, y)


def test_images_in_keras_are_averaged_without_bessels_correction(keras: Any) -> None:
    layer = keras.layers.BatchNormalization(momentum=0.0)
    x = drawn(2, 3, 4, C)
    layer(x, training=True)
    assert_equal(keras_variables(layer)["moving_variance"], x.var((0, 1, 2)))


def test_a_frozen_layer_of_keras_runs_as_in_inference(keras: Any) -> None:
    layer, variables, _ = keras_layer(keras)
    layer.trainable = False
    y = layer(BATCHES[0], training=True)
    assert_equal(y, layer(BATCHES[0], training=False))
    for name, value in keras_variables(layer).items():
        assert_equal(value, variables[name])


def test_layer_norm_of_keras_has_an_eps_of_a_thousandth(keras: Any) -> None:
    x = 0.01 * drawn(N, C)
    y = keras.layers.LayerNormalization()(x)
    assert_equal(y, layer_norm(x, eps=1e-3))
    assert np.abs(np.asarray(y) - layer_norm(x, eps=1e-5)).max() > 0.1


def test_group_norm_and_rms_norm_of_keras_have_other_defaults(keras: Any) -> None:
    group, rms = keras.layers.GroupNormalization(), keras.layers.RMSNormalization()
    assert (group.groups, group.epsilon, rms.epsilon) == (32, 1e-3, 1e-6)


def test_rms_scaling_of_keras_divides_by_the_deviation(keras: Any) -> None:
    x = 5 + drawn(N, C)
    with pytest.warns(UserWarning, match="RMSNormalization"):
        y = keras.layers.LayerNormalization(rms_scaling=True)(x)
    assert_equal(y, x / np.sqrt(x.var(1, keepdims=True) + 1e-3))
    assert np.abs(np.asarray(y) - rms_norm(x, eps=1e-3)).max() > 1


def test_kernels_of_keras_have_their_channels_last(keras: Any) -> None:
    image, dense = keras.layers.Conv2D(5, (2, 3)), keras.layers.Dense(5)
    image.build((None, 7, 7, 4))
    dense.build((None, 4))
    assert (*image.kernel.shape, *dense.kernel.shape) == (2, 3, 4, 5, 4, 5)


def test_the_gates_of_keras_use_a_sigmoid_by_default(keras: Any) -> None:
    layer = keras.layers.LSTM(H)
    assert layer.recurrent_activation is keras.activations.sigmoid
    assert layer.activation is keras.activations.tanh


def test_lstm_of_keras(keras: Any) -> None:
    layer = keras.layers.LSTM(H, return_sequences=True)
    layer.build((None, T, D))
    given = lstm_to_convention("keras", WEIGHTS)
    for variable in layer.weights:
        variable.assign(given[variable.name])
    h = np.asarray(layer(X.transpose(1, 0, 2))).transpose(1, 0, 2)
    check_lstm("keras", keras_variables(layer), h)


def test_the_forget_bias_of_keras_is_in_its_variable(keras: Any) -> None:
    layer = keras.layers.LSTM(H)
    layer.build((None, T, D))
    own = lstm_from_convention("keras", keras_variables(layer))
    assert_equal(own.b, [1.0] * H + [0.0] * 3 * H)


def test_the_book_quotes_what_keras_computes(keras: Any) -> None:
    layer = keras.layers.BatchNormalization()
    layer.build((None, 3))
    given = [1.5, -0.5, 2.0, 0.25, 1.0, -1.0, 10.0, 0.02, -3.0, 4.0, 2.5e-4, 0.09]
    layer.set_weights(np.array(given, "f4").reshape(4, 3))
    y = layer(np.array([[12.0, 0.05, -3.3], [9.0, 0.0, -2.4]], "f4"), training=False)
    quoted = [[1.749813, 0.575736, -2.988981], [-0.499906, 1.282843, 2.97796]]
    np.testing.assert_allclose(np.asarray(y), quoted, atol=2e-6)


# --- tf.keras of Keras 2


@pytest.mark.parametrize(("shape", "freedom"), [((2, 3, 4, C), 1), ((N, C), 0)])
def test_images_alone_are_averaged_with_bessels_correction_in_keras_2(
    shape: tuple[int, ...], freedom: int
) -> None:
    keras2 = installed("tensorflow", "tf_keras")
    layer = keras2.layers.BatchNormalization(momentum=0.0)
    x = drawn(*shape)
    y = np.asarray(layer(x, training=True))
    rows = x.reshape(-1, C)
    assert_equal(layer.moving_variance, rows.var(0, ddof=freedom))
    assert_equal(y.reshape(-1, C), batch_norm(rows, eps=1e-3))  # biased, for both


def test_keras_2_has_more_in_its_names() -> None:
    keras2 = installed("tensorflow", "tf_keras")
    layer = keras2.layers.BatchNormalization()
    layer.build((None, C))
    row = BATCH_NORM["keras"]
    names = [row.gamma, row.beta, row.running_mean, row.running_var]
    assert [v.name for v in layer.weights] == [f"{name}:0" for name in names]
    model = keras2.Sequential([keras2.layers.BatchNormalization(name="a")])
    model.build((None, C))
    assert [v.name for v in model.weights] == [f"a/{name}:0" for name in names]


# --- TensorFlow 1


def test_basic_lstm_cell_of_tensorflow_1() -> None:
    if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
        pytest.skip("the cells of TensorFlow 1 need tf_keras, TF_USE_LEGACY_KERAS=1")
    installed("tf_keras")
    tf = installed("tensorflow")
    cell = tf.compat.v1.nn.rnn_cell.BasicLSTMCell(H)
    cell.build((None, D))
    given = lstm_to_convention("tensorflow1", WEIGHTS)
    kernel, bias = cell.trainable_variables
    kernel.assign(given["kernel"])
    bias.assign(given["bias"])
    start = cell.zero_state(N, tf.float32)
    h = over_time(lambda states, x_t: cell(x_t, states)[::-1], start)
    check_lstm("tensorflow1", given, h)


# --- Flax


@pytest.fixture
def linen() -> Any:
    return installed("jax", "flax", "flax.linen")


@pytest.fixture
def nnx() -> Any:
    return installed("jax", "flax", "flax.nnx")


def test_flax_has_the_defaults_of_the_table(linen: Any, nnx: Any) -> None:
    row = BATCH_NORM["flax"]
    for layer in (linen.BatchNorm(), nnx.BatchNorm(C, rngs=nnx.Rngs(0))):
        given = layer.momentum, layer.epsilon
        assert given == (row.default_momentum, row.default_eps)
    assert_equal(layer.mean[...], np.zeros(C))
    assert_equal(layer.var[...], np.ones(C))


def test_images_in_flax_have_their_channels_last(linen: Any) -> None:
    layer = linen.BatchNorm(momentum=0.0, use_running_average=False)
    x = drawn(2, 3, 4, C)
    _, changed = layer.apply(written("flax")[0], x, mutable=["batch_stats"])
    assert_equal(changed["batch_stats"]["var"], x.var((0, 1, 2)))


def test_batch_norm_of_flax_linen(linen: Any) -> None:
    variables, settings = written("flax")
    layer = linen.BatchNorm(**settings)
    for x in BATCHES:
        y_training, changed = layer.apply(
            variables, x, use_running_average=False, mutable=["batch_stats"]
        )
        variables = variables | changed
    y = layer.apply(variables, BATCHES[0], use_running_average=True)
    check_batch_norm("flax", variables, settings, y_training, y)


def test_batch_norm_of_flax_nnx(nnx: Any) -> None:
    given, settings = written("flax")
    layer = nnx.BatchNorm(C, **settings, rngs=nnx.Rngs(0))
    layer.scale[...], layer.bias[...] = given["params"].values()
    for x in BATCHES:
        y_training = layer(x)
    variables = {
        "params": {"scale": layer.scale[...], "bias": layer.bias[...]},
        "batch_stats": {"mean": layer.mean[...], "var": layer.var[...]},
    }
    layer.eval()
    check_batch_norm("flax", variables, settings, y_training, layer(BATCHES[0]))


def test_layer_norm_of_flax_has_an_eps_of_a_millionth(linen: Any) -> None:
    x = 1e-3 * drawn(N, C)
    layer = linen.LayerNorm()
    variables = {"params": {"scale": np.ones(C), "bias": np.zeros(C)}}
    y = layer.apply(variables, x)
    assert_equal(y, layer_norm(x, eps=1e-6))
    assert np.abs(np.asarray(y) - layer_norm(x, eps=1e-5)).max() > 0.1


def test_group_norm_and_rms_norm_of_flax_have_the_eps_of_layer_norm(linen: Any) -> None:
    group, rms = linen.GroupNorm(), linen.RMSNorm()
    assert (group.num_groups, group.epsilon, rms.epsilon) == (32, 1e-6, 1e-6)


def test_flax_computes_variances_in_one_pass_unless_told_not_to(linen: Any) -> None:
    x = 1e4 + drawn(64, C)
    spoiled, good = (
        linen.BatchNorm(momentum=0.0, use_running_average=False, use_fast_variance=fast)
        for fast in (True, False)
    )
    var = {}
    for name, layer in (("spoiled", spoiled), ("good", good)):
        _, changed = layer.apply(written("flax")[0], x, mutable=["batch_stats"])
        var[name] = np.asarray(changed["batch_stats"]["var"])
    assert_equal(var["good"], x.astype(np.float64).var(0))
    assert np.abs(var["spoiled"] - var["good"]).max() > 1


def test_layer_norm_of_flax_computes_variances_in_one_pass_as_well(linen: Any) -> None:
    x = 1e4 + drawn(64, C)
    variables = {"params": {"scale": np.ones(C), "bias": np.zeros(C)}}
    right = layer_norm(x.astype(np.float64), eps=1e-6)
    good = linen.LayerNorm(use_fast_variance=False).apply(variables, x)
    spoiled = linen.LayerNorm().apply(variables, x)
    np.testing.assert_allclose(good, right, atol=0.01)
    assert np.abs(spoiled - right).max() > 100


def test_kernels_of_flax_have_their_channels_last(linen: Any) -> None:
    key = installed("jax").random.key(0)
    image = linen.Conv(5, (2, 3)).init(key, drawn(1, 7, 7, 4))["params"]["kernel"]
    dense = linen.Dense(5).init(key, drawn(1, 4))["params"]["kernel"]
    assert (*image.shape, *dense.shape) == (2, 3, 4, 5, 4, 5)


@pytest.mark.parametrize("name", ["OptimizedLSTMCell", "LSTMCell"])
def test_lstm_cells_of_flax_linen(linen: Any, name: str) -> None:
    cell = getattr(linen, name)(H)
    given = lstm_to_convention("flax", WEIGHTS)
    h = over_time(lambda carry, x_t: cell.apply({"params": given}, carry, x_t))
    check_lstm("flax", given, h)


def test_lstm_cell_of_flax_nnx(nnx: Any) -> None:
    cell = nnx.OptimizedLSTMCell(D, H, rngs=nnx.Rngs(0))
    given = lstm_to_convention("flax_nnx", WEIGHTS)
    cell.dense_i.kernel[...] = given["dense_i"]["kernel"]
    cell.dense_h.kernel[...] = given["dense_h"]["kernel"]
    cell.dense_h.bias[...] = given["dense_h"]["bias"]
    check_lstm("flax_nnx", given, over_time(cell))


def test_the_small_layers_of_flax_nnx_have_one_other_name(nnx: Any) -> None:
    cell = nnx.LSTMCell(D, H, rngs=nnx.Rngs(0))
    given = lstm_to_convention("flax", WEIGHTS)
    for name, variables in given.items():
        layer = getattr(cell, "if_" if name == "if" else name)
        layer.kernel[...] = variables["kernel"]
        if "bias" in variables:
            layer.bias[...] = variables["bias"]
    check_lstm("flax", given, over_time(cell))


# --- ONNX


@pytest.fixture
def onnx() -> Any:
    return installed("onnx.reference", "onnx")


def run(onnx: Any, runtime: str, node: str, given: Any, outputs: int, **kw: Any) -> Any:
    """Run a model of a single node, by the reference or by ONNX Runtime."""
    names = [f"y{k}" for k in range(outputs)]
    single = onnx.TensorProto.FLOAT
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(node, list(given), names, **kw)],
        "one_node",
        [info(k, single, v.shape) for k, v in given.items()],
        [info(k, single, None) for k in names],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    if runtime == "reference":
        return onnx.reference.ReferenceEvaluator(model).run(None, given)
    session = installed("onnxruntime").InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, given)


def test_onnx_has_the_defaults_of_the_table(onnx: Any) -> None:
    row = BATCH_NORM["onnx"]
    given = onnx.defs.get_schema("BatchNormalization")
    defaults = {k: v.default_value for k, v in given.attributes.items()}
    assert np.isclose(defaults["momentum"].f, row.default_momentum)
    assert np.isclose(defaults["epsilon"].f, row.default_eps)
    names = [row.gamma, row.beta, row.running_mean, row.running_var]
    assert [v.name for v in given.inputs] == ["X", *names]
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    assert {v.option for v in given.inputs} == {single}  # none can be left out


def test_batch_norm_of_onnx(onnx: Any) -> None:
    given, settings = written("onnx")
    here = onnx, "reference", "BatchNormalization"
    training = settings | {"training_mode": 1}
    for x in BATCHES:
        y_training, mean, var = run(*here, {"X": x} | given, 3, **training)
        given |= {"input_mean": mean, "input_var": var}
    (y,) = run(*here, {"X": BATCHES[0]} | given, 1, **settings)
    check_batch_norm("onnx", given, settings, y_training, y)


@pytest.mark.parametrize("runtime", ["reference", "onnxruntime"])
def test_images_in_onnx_have_their_channels_on_axis_1(onnx: Any, runtime: str) -> None:
    given, settings = written("onnx")
    x = drawn(2, C, 3, 4)
    (y,) = run(onnx, runtime, "BatchNormalization", {"X": x} | given, 1, **settings)
    assert_equal(y, inferred(batch_norm_from_convention("onnx", given, settings), x))


@pytest.mark.parametrize("runtime", ["reference", "onnxruntime"])
def test_layer_norm_of_onnx_takes_all_axes_from_the_first(
    onnx: Any, runtime: str
) -> None:
    x = 0.01 * drawn(2, 3, 4, 5)
    given = {"X": x, "Scale": np.ones((3, 4, 5), np.float32)}
    (y,) = run(onnx, runtime, "LayerNormalization", given, 1, axis=1)
    assert_equal(y, layer_norm(x, eps=1e-5, axes=(1, 2, 3)))


@pytest.mark.parametrize("node", ["Layer", "Group", "RMS"])
def test_the_norms_of_onnx_have_one_eps(onnx: Any, node: str) -> None:
    given = onnx.defs.get_schema(f"{node}Normalization").attributes
    assert np.isclose(given["epsilon"].default_value.f, 1e-5)


@pytest.mark.parametrize("runtime", ["reference", "onnxruntime"])
def test_lstm_of_onnx(onnx: Any, runtime: str) -> None:
    given = lstm_to_convention("onnx", WEIGHTS)
    (h,) = run(onnx, runtime, "LSTM", {"X": X} | given, 1, hidden_size=H)
    check_lstm("onnx", given, h[:, 0])


def test_an_onnx_file_names_the_weights_of_an_lstm_by_their_places(onnx: Any) -> None:
    given = lstm_to_convention("onnx", WEIGHTS)
    node = onnx.helper.make_node("LSTM", ["X", "a", "b", "c"], ["Y"], hidden_size=H)
    stored = [
        onnx.numpy_helper.from_array(given[k], name)
        for k, name in zip("WRB", "abc", strict=True)
    ]
    info = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, (T, N, D))
    graph = onnx.helper.make_graph([node], "lstm", [info], [], stored)
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    read = {k: arrays[n] for k, n in zip("WRB", node.input[1:], strict=True)}
    (h,) = run(onnx, "onnxruntime", "LSTM", {"X": X} | read, 1, hidden_size=H)
    check_lstm("onnx", read, h[:, 0])


def test_an_lstm_of_onnx_has_attributes_that_no_variable_shows(onnx: Any) -> None:
    given = onnx.defs.get_schema("LSTM", 14)
    of_function = {"activations", "clip", "direction", "input_forget", "layout"}
    assert of_function < {*given.attributes}
    assert [v.name for v in given.inputs][:4] == ["X", *"WRB"]


def wave(*shape: int) -> Floats:
    return np.sin(np.arange(1.0, 1 + np.prod(shape), dtype="f4")).reshape(shape)


def test_the_book_quotes_what_onnxruntime_computes(onnx: Any) -> None:
    given = {"X": wave(4, 1, 2), "W": 2 * wave(1, 8, 2), "R": 2 * wave(1, 8, 2)}
    given["B"] = wave(1, 16)
    (h,) = run(onnx, "onnxruntime", "LSTM", given, 1, hidden_size=2)
    first = [0.036497, 0.188607, 0.206344, 0.034553]
    second = [0.219569, 0.073748, 0.036478, 0.259205]
    np.testing.assert_allclose(h[:, 0, 0].T, [first, second], atol=2e-6)


def test_of_all_orders_onnxruntime_agrees_with_one(onnx: Any) -> None:
    own = lstm(X, WEIGHTS).h
    given = lstm_to_convention("onnx", WEIGHTS)
    found = []
    for order in itertools.permutations(range(4)):
        rows = np.arange(4 * H).reshape(4, H)[list(order)].ravel()
        moved = {k: given[k][:, rows] for k in "WR"}
        moved["B"] = given["B"][:, [*rows, *(rows + 4 * H)]]
        (h,) = run(onnx, "onnxruntime", "LSTM", {"X": X} | moved, 1, hidden_size=H)
        found += [order] if np.abs(h[:, 0] - own).max() < RTOL else []
    assert found == [(0, 1, 2, 3)]


# --- language models: the package transformers, on torch

WIDE = 64


@pytest.fixture
def torch() -> Any:
    installed("transformers")
    return installed("torch")


every_model = pytest.mark.parametrize("model", MODEL_NORM)


def model_norm(model: str, dtype: Any) -> Any:
    """Build the norm of a family of models, with a gain and a bias that show."""
    from torch import nn

    module, _, name = MODEL_NORM[model].layer.partition(".")
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    eps: dict[str, Any] = {} if model == "olmo" else {"eps": MODEL_NORM[model].eps}
    # GPT-NeoX has the layer of torch.
    build = nn.LayerNorm if name == "nn.LayerNorm" else getattr(code, name)
    layer = build(WIDE, **eps).to(dtype)
    start = {k: drawn(WIDE, seed=len(k)) / 4 for k, _ in layer.named_parameters()}
    for key, values in start.items():
        gain = key == "weight" and not MODEL_NORM[model].offset
        parameter = layer.get_parameter(key)
        parameter.data.copy_(parameter.new_tensor(values) + (1.0 if gain else 0.0))
    return layer


def rows(torch: Any) -> Any:
    """Return rows of many sizes, some so small that epsilon shows."""
    sizes = torch.logspace(-4, 2, 50).unsqueeze(1)
    return sizes * torch.tensor(drawn(50, WIDE, seed=3) + 0.5)


@every_model
def test_the_norm_of_a_language_model_is_the_book_s(model: str, torch: Any) -> None:
    row, layer = MODEL_NORM[model], model_norm(model, torch.float32)
    x = rows(torch)
    stored = {k: v.detach().numpy() for k, v in layer.named_parameters()}
    assert ("weight" in stored, "bias" in stored) == (row.has_gain, row.has_bias)
    gain = norm_gain_from_convention(model, stored["weight"]) if row.has_gain else None
    function = layer_norm if row.is_centred else rms_norm
    given = {"beta": stored["bias"]} if row.has_bias else {}
    own = function(x.numpy(), gain, eps=row.eps, **given)
    assert_equal(layer(x).detach(), own)
    if row.has_gain:
        back = norm_gain_to_convention(model, gain)
        np.testing.assert_allclose(back, stored["weight"], rtol=1e-6, atol=1e-7)
    for other in (10 * row.eps, row.eps / 10):  # epsilon would be seen
        moved = np.abs(function(x.numpy(), gain, eps=other, **given) - own)
        assert moved.max() > 10 * RTOL * np.abs(own).max()


@every_model
def test_a_new_layer_has_a_gain_of_one(model: str, torch: Any) -> None:
    module, _, name = MODEL_NORM[model].layer.partition(".")
    code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    if name == "nn.LayerNorm" or not MODEL_NORM[model].has_gain:
        return
    stored = getattr(code, name)(WIDE).weight.detach().numpy()
    if model == "nemotron":  # its models fill the weight later
        stored = stored - 1
    np.testing.assert_array_equal(norm_gain_from_convention(model, stored), 1)


@every_model
def test_the_configuration_begins_with_the_eps_of_the_table(
    model: str, torch: Any
) -> None:
    configs = installed("transformers").CONFIG_MAPPING
    names = [model, f"{model}_text"]
    (name,) = [n for n in names if n in configs][-1:]
    config = configs[name]()
    keys = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")
    found = {getattr(config, key) for key in keys if hasattr(config, key)}
    assert found == ({MODEL_NORM[model].eps} if model != "olmo" else set())


def in_order(torch: Any, model: str, layer: Any, x: Any, rounds: str) -> Any:
    """Compute the norm in float32, rounded where a row of the table says."""
    row = MODEL_NORM[model]
    parameters = dict(layer.named_parameters())
    gain, bias = parameters.get("weight"), parameters.get("bias")
    wide = x.float()
    if row.is_centred:
        wide = wide - wide.mean(-1, keepdim=True)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + row.eps)
    if gain is not None:
        if row.offset:  # Nemotron adds the 1 in the dtype of its weight
            gain = gain if model == "nemotron" else gain.float()
            gain = gain + row.offset
        if rounds == "before":
            y = y.to(x.dtype)
        if rounds == "weight":
            y = y.to(gain.dtype)
        y = y * gain if rounds != "after" else y * gain.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype) if rounds == "after" else y


# They call layer_norm of torch, which sums in another order, and wants one dtype.
BY_A_KERNEL = ("nemotron", "gpt_neox", "olmo")


@every_model
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_language_model_rounds_where_the_table_says(
    model: str, dtype: str, torch: Any
) -> None:
    row, half = MODEL_NORM[model], getattr(torch, dtype)
    layer, x = model_norm(model, half), rows(torch).to(half)
    y = layer(x)
    own = in_order(torch, model, layer, x, row.rounds)
    assert y.dtype == own.dtype == half
    if model in BY_A_KERNEL:  # one number in a hundred lies on the other side
        assert (y != own).float().mean() < 0.01
    else:
        assert torch.equal(y, own)
    if row.has_gain:
        order = "before" if row.rounds == "after" else "after"
        other = in_order(torch, model, layer, x, order).to(half)
        assert (y != other).float().mean() > 0.1


@pytest.mark.parametrize("model", [m for m in MODEL_NORM if m not in BY_A_KERNEL])
def test_under_a_float32_weight_the_output_has_the_dtype_of_the_table(
    model: str, torch: Any
) -> None:
    y = model_norm(model, torch.float32)(rows(torch).bfloat16())
    is_after = MODEL_NORM[model].rounds == "after"
    assert y.dtype == (torch.bfloat16 if is_after else torch.float32)
