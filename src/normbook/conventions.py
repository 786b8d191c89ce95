r"""Conventions of others: weights of batch norm, LSTMs and language models.

The same layer is stored in many ways, and numbers in the wrong convention load without
an error wherever the shapes fit. The tables ``BATCH_NORM``, ``LSTM`` and
``NORMALIZED_LSTM`` hold what differs, one row for each convention; `framework` is the
key of one. ``MODEL_NORM`` has a row for each family of language models.
``..._from_convention`` turns what is stored into the form of this book,
``..._to_convention`` goes back.

`variables` maps the framework's names of one layer to anything that ``numpy.asarray``
takes; a name with a slash stands for nested mappings: ``"ii/kernel"`` is
``variables["ii"]["kernel"]``. Returned are new NumPy arrays of the same dtype.

What is no mapping or no floating-point number, or has another dtype than the rest of an
LSTM, is a ``TypeError``; an unknown framework or name, a missing name, a wrong shape or
a number out of its range a ``ValueError``. What was read, and in which version, stands
in the book, chapter *Framework conventions*.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from normbook.arrays import check_eps
from normbook.layer_norm_lstm import Carried, LayerNormLSTMParameters, Normed
from normbook.lstm import GATES, LSTMParameters
from normbook.running_statistics import unbiased

Floats = NDArray[Any]
Convention = TypeVar("Convention")


# --- batch norm


class BatchNormConvention(NamedTuple):
    """Names and meanings of what a framework keeps of a batch norm layer."""

    gamma: str
    beta: str
    running_mean: str
    running_var: str
    eps: str
    momentum_weighs: Literal["new", "old"]  # the value that momentum is the weight of
    is_unbiased: bool  # whether the running variance averages unbiased variances
    default_momentum: float
    default_eps: float
    may_lack: tuple[int, ...] = (0, 1, 2)  # how many of gain and bias
    dropped: tuple[str, ...] = ()  # variables that no other framework has: read past


class BatchNormState(NamedTuple):
    """A batch norm layer in the convention of this book, which is that of torch."""

    gamma: Floats | None  # (C,), or None where the layer has none
    beta: Floats | None
    running_mean: Floats
    running_var: Floats
    momentum: float | None  # weight of the new value; None for a plain average
    eps: float


# fmt: off
BATCH_NORM = {
    "book": BatchNormConvention(
        "gamma", "beta", "running_mean", "running_var", "eps",
        momentum_weighs="new", is_unbiased=True,
        default_momentum=0.1, default_eps=1e-5),
    "torch": BatchNormConvention(
        "weight", "bias", "running_mean", "running_var", "eps",
        momentum_weighs="new", is_unbiased=True,
        default_momentum=0.1, default_eps=1e-5,
        may_lack=(0, 2), dropped=("num_batches_tracked",)),
    "keras": BatchNormConvention(
        "gamma", "beta", "moving_mean", "moving_variance", "epsilon",
        momentum_weighs="old", is_unbiased=False,
        default_momentum=0.99, default_eps=1e-3),
    "flax": BatchNormConvention(
        "params/scale", "params/bias", "batch_stats/mean", "batch_stats/var", "epsilon",
        momentum_weighs="old", is_unbiased=False,
        default_momentum=0.99, default_eps=1e-5),
    "onnx": BatchNormConvention(
        "scale", "B", "input_mean", "input_var", "epsilon",
        momentum_weighs="old", is_unbiased=False,
        default_momentum=0.9, default_eps=1e-5,
        may_lack=(0,)),
}
# fmt: on


def batch_norm_from_convention(
    framework: str,
    variables: Mapping[str, Any],
    settings: Mapping[str, float | None],
    *,
    count: int | None = None,
) -> BatchNormState:
    r"""Read a batch norm layer of another framework.

    Mean and variance are kept as they are stored: at inference every framework computes
    with them, however they were estimated. Only to train on, or to compare statistics,
    it matters that one framework averages biased and another unbiased variances. With
    ``count``, the number n of values behind each mean of a training batch (its size
    times the places of an image), a biased running variance becomes an unbiased one, n
    / (n - 1) times as large. That is exact if every batch had this number and the start
    at 1 is forgotten.

    Arrays have shape (C,); gain and bias may be missing. ``settings`` has ``momentum``
    and ε, both, under the framework's names and in its meaning, since they are not
    stored with the variables and the defaults differ.

    Examples
    --------
    >>> keras = {"moving_mean": [2.0], "moving_variance": [0.75]}
    >>> settings = {"momentum": 0.99, "epsilon": 0.001}
    >>> state = batch_norm_from_convention("keras", keras, settings, count=4)
    >>> state.running_var, state.momentum, state.eps
    (array([1.]), 0.01, 0.001)
    """
    row = _row(BATCH_NORM, framework)
    names = {field: getattr(row, field) for field in BatchNormState._fields[:4]}
    statistics = [row.running_mean, row.running_var]
    flat = _flat("variables", variables)
    _check_names("variables", flat, statistics, [*names.values(), *row.dropped])
    chosen = _flat("settings", settings)
    _check_names("settings", chosen, ["momentum", row.eps], ["momentum", row.eps])
    arrays: dict[str, Any] = {
        field: _floats(name, flat[name]) if name in flat else None
        for field, name in names.items()
    }
    shapes = {names[f]: a.shape for f, a in arrays.items() if a is not None}
    if arrays["running_var"].ndim != 1 or len({*shapes.values()}) > 1:
        raise ValueError(
            f"the variables must have shape (C,), all the same, got {shapes}; pass "
            "those of one layer, flattened."
        )
    var = arrays["running_var"]
    if not np.all(var >= 0):
        raise ValueError(
            f"{row.running_var} must hold numbers >= 0, got {var}; is it another "
            "variable of the layer?"
        )
    if count is not None:
        corrected = unbiased(var, count)  # checks the count for all
        arrays["running_var"] = var if row.is_unbiased else corrected
    return BatchNormState(
        **arrays,
        momentum=_turned(row, framework, chosen["momentum"]),
        eps=check_eps(chosen[row.eps]),
    )


def batch_norm_to_convention(
    framework: str, state: BatchNormState, *, count: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a batch norm layer as another framework stores it: variables and settings.

    Arguments are those of :func:`batch_norm_from_convention`; with ``count`` an
    unbiased running variance becomes a biased one where the framework averages such. A
    gain or bias that the layer does not have is left out, or is ones or zeros where the
    framework cannot be without. A momentum of None, a plain average, raises
    ``ValueError`` for all but the book and torch.

    Examples
    --------
    >>> state = BatchNormState(None, None, np.zeros(2), np.ones(2), 0.1, 1e-5)
    >>> batch_norm_to_convention("onnx", state)[1]
    {'momentum': 0.9, 'epsilon': 1e-05}
    """
    row = _row(BATCH_NORM, framework)
    if not isinstance(state, BatchNormState):
        raise TypeError(
            f"state must be a BatchNormState, got {type(state).__name__}; "
            "batch_norm_from_convention makes one."
        )
    settings = {"momentum": state.momentum, "eps": state.eps}
    # The row of the book knows what a good state is.
    state = batch_norm_from_convention("book", _arrays(state), settings)
    var = state.running_var
    if count is not None:
        factor = unbiased(1.0, count)
        state = state._replace(running_var=var if row.is_unbiased else var / factor)
    if (state.gamma is None) + (state.beta is None) not in row.may_lack:
        gamma = np.ones_like(var) if state.gamma is None else state.gamma
        beta = np.zeros_like(var) if state.beta is None else state.beta
        state = state._replace(gamma=gamma, beta=beta)
    variables = {getattr(row, field): a for field, a in _arrays(state).items()}
    momentum = _turned(row, framework, state.momentum)
    return _nested(variables), {"momentum": momentum, row.eps: state.eps}


def _arrays(state: BatchNormState) -> dict[str, Floats]:
    fields = zip(state._fields[:4], state[:4], strict=True)
    return {field: array for field, array in fields if array is not None}


def _turned(row: BatchNormConvention, framework: str, momentum: Any) -> float | None:
    """Turn a weight of the old value into one of the new value, or back."""
    if momentum is None:
        if row.momentum_weighs == "new":
            return None
        raise ValueError(
            f"momentum must be a number for {framework}, got None; torch alone knows a "
            "plain average of all batches, choose a weight in its place."
        )
    weight: Any = momentum if isinstance(momentum, Real) else math.nan
    if not 0 <= weight <= 1:
        raise ValueError(
            f"momentum must lie in [0, 1], got {momentum!r}; it is the weight of the "
            f"{row.momentum_weighs} value in {framework}, which has "
            f"{row.default_momentum} by default."
        )
    if row.momentum_weighs == "new":
        return float(weight)
    return round(1 - float(weight), 15)  # without dust: 1 - 0.99 is 0.01


# --- LSTMs


class Part(NamedTuple):
    """A variable of a framework, or a part of one, that holds rows of a field of ours.

    Parts that hold the same rows are added.
    """

    variable: str
    gates: str = ""  # whose rows it holds; empty: all four, in the row's order
    shape: tuple[str, ...] = ()  # as ("D + H", "4H"); empty: that of the rows
    at: tuple[Any, ...] = ()  # index of the part, letters for lengths: [:"D"]

    def __str__(self) -> str:
        if not self.at:
            return self.variable
        inside = (
            f"{i.start or ''}:{i.stop or ''}" if isinstance(i, slice) else f"{i}"
            for i in self.at
        )
        return f"{self.variable}[{','.join(inside)}]"

    def of(self, array: Floats, lengths: Mapping[str, int]) -> Floats:
        """Return a view of this part of the variable."""
        at = (
            slice(*map(lengths.get, (i.start, i.stop))) if isinstance(i, slice) else i
            for i in self.at
        )
        part: Floats = array[(*at, ...)]
        return part


Parts = Mapping[str, tuple[Part, ...]]


class LSTMConvention(NamedTuple):
    """Order of the gates and places of the weights."""

    gates: str  # their order, with g for the candidate, which others call c or j
    parts: Parts  # of each field of ours
    has_gates_last: bool = False  # as columns, of a matrix (D, 4H), in place of rows
    forget_bias: float = 0.0  # that the cell adds at run time and does not store
    norm: Normed | None = None  # from here on as in layer_norm_lstm_forward
    carried: Carried | None = None
    eps: float | None = None


def _whole(**variables: str) -> Parts:
    """Return fields that are one variable each."""
    return {field: (Part(variable),) for field, variable in variables.items()}


def _blocks(gates: str, *variables: str) -> tuple[Part, ...]:
    """Return a field that has a variable for each gate."""
    return tuple(Part(v, gate) for gate, v in zip(gates, variables, strict=True))


_KERNELS = _whole(w_x="kernel", w_h="recurrent_kernel", b="bias")
_OF_BOTH = ("D + H", "4H")  # one matrix for x and h
_X_AND_H = {
    "w_x": (Part("kernel", shape=_OF_BOTH, at=np.index_exp[:"D"]),),
    "w_h": (Part("kernel", shape=_OF_BOTH, at=np.index_exp["D":]),),
}

# fmt: off
LSTM = {
    "book": LSTMConvention(GATES, _whole(w_x="w_x", w_h="w_h", b="b")),
    "torch": LSTMConvention(
        "ifgo",
        {**_whole(w_x="weight_ih_l0", w_h="weight_hh_l0"),
         "b": (Part("bias_ih_l0"), Part("bias_hh_l0"))}),
    "keras": LSTMConvention("ifgo", _KERNELS, has_gates_last=True),
    "flax": LSTMConvention(  # linen.OptimizedLSTMCell, linen.LSTMCell
        "ifgo",
        {"w_x": _blocks("ifgo", "ii/kernel", "if/kernel", "ig/kernel", "io/kernel"),
         "w_h": _blocks("ifgo", "hi/kernel", "hf/kernel", "hg/kernel", "ho/kernel"),
         "b": _blocks("ifgo", "hi/bias", "hf/bias", "hg/bias", "ho/bias")},
        has_gates_last=True),
    "flax_nnx": LSTMConvention(  # nnx.OptimizedLSTMCell
        "ifgo", _whole(w_x="dense_i/kernel", w_h="dense_h/kernel", b="dense_h/bias"),
        has_gates_last=True),
    "onnx": LSTMConvention(
        "iofg",
        {"w_x": (Part("W", shape=("1", "4H", "D"), at=(0,)),),
         "w_h": (Part("R", shape=("1", "4H", "H"), at=(0,)),),
         "b": (Part("B", shape=("1", "8H"), at=np.index_exp[0, :"4H"]),
               Part("B", shape=("1", "8H"), at=np.index_exp[0, "4H":]))}),
    "tensorflow1": LSTMConvention(  # BasicLSTMCell, LSTMCell without its options
        "igfo", {**_X_AND_H, **_whole(b="bias")},
        has_gates_last=True, forget_bias=1.0),
    "haste": LSTMConvention("igfo", _KERNELS, has_gates_last=True),
    "kiros": LSTMConvention(  # the code of Ba, Kiros and Hinton (2016) adds b twice
        "ifog", {**_whole(w_x="W", w_h="U"), "b": (Part("b"), Part("b"))},
        has_gates_last=True),
}

NORMALIZED_LSTM = {
    "kiros": LSTMConvention(
        "ifog",
        _whole(
            w_x="W", w_h="U", b="b", gamma_h="s2", beta_h="b2",
            gamma_x="s1", beta_x="b1", gamma_c="s3", beta_c="b3"),
        has_gates_last=True, norm="terms", carried="raw", eps=1e-5),
    "haste": LSTMConvention(  # its gamma_h and beta_h belong to the cell, not to W_h h
        "igfo",
        {**_KERNELS,
         "gamma_h": (Part("gamma", shape=("2", "4H"), at=(1,)),),
         "gamma_x": (Part("gamma", shape=("2", "4H"), at=(0,)),),
         **_whole(gamma_c="gamma_h", beta_c="beta_h")},
        has_gates_last=True, norm="terms", carried="raw", eps=1e-5),
    "torch_custom_lstms": LSTMConvention(  # benchmarks/fastrnns in the sources of torch
        "ifgo",
        _whole(
            w_x="weight_ih", w_h="weight_hh",
            gamma_h="layernorm_h.weight", beta_h="layernorm_h.bias",
            gamma_x="layernorm_i.weight", beta_x="layernorm_i.bias",
            gamma_c="layernorm_c.weight", beta_c="layernorm_c.bias"),
        norm="terms", carried="normalized", eps=1e-5),
    "tensorflow_addons": LSTMConvention(
        "ifgo",
        {**_KERNELS,
         **_whole(
             gamma_h="recurrent_norm/gamma", beta_h="recurrent_norm/beta",
             gamma_x="kernel_norm/gamma", beta_x="kernel_norm/beta",
             gamma_c="state_norm/gamma", beta_c="state_norm/beta")},
        has_gates_last=True, norm="terms", carried="normalized", eps=1e-3),
    "tensorflow1_contrib": LSTMConvention(  # LayerNormBasicLSTMCell
        "igfo",
        {**_X_AND_H,
         "gamma_h": _blocks(
             "igfo", "input/gamma", "transform/gamma", "forget/gamma", "output/gamma"),
         "beta_h": _blocks(
             "igfo", "input/beta", "transform/beta", "forget/beta", "output/beta"),
         **_whole(gamma_c="state/gamma", beta_c="state/beta")},
        has_gates_last=True, forget_bias=1.0,
        norm="gates", carried="normalized", eps=1e-12),
    "cooijmans": LSTMConvention(  # hats over the batch: layers.batch_norm_lstm
        "gfio",
        _whole(
            w_x="Wx", w_h="Wa", b="ab_betas", gamma_h="a_gammas", gamma_x="b_gammas",
            gamma_c="h_gammas", beta_c="h_betas"),
        has_gates_last=True, norm="terms", carried="raw", eps=1e-5),
}
# fmt: on


def lstm_from_convention(
    framework: str, variables: Mapping[str, Any], *, forget_bias: float | None = None
) -> LSTMParameters:
    """Read the weights of an LSTM of another framework, into rows of f, i, o, g.

    ``variables`` are those of one direction. Biases may be missing, all of them: then
    ``b`` is None. For layer k of torch rename ``weight_ih_lk`` to ``weight_ih_l0``, and
    so on. An ONNX node in both directions has an axis for them: pass ``W[:1]`` and so
    on, then ``W[1:]``. ``forget_bias`` is what the cell of TensorFlow 1 adds at run
    time, 1 if left out; all others store their bias and refuse one.

    Examples
    --------
    >>> keras = {"kernel": [[1.0, 2, 3, 4]], "recurrent_kernel": [[5.0, 6, 7, 8]]}
    >>> lstm_from_convention("keras", keras).w_x.T  # f, i, o, g from i, f, g, o
    array([[2., 1., 4., 3.]])
    """
    row = _row(LSTM, framework)
    added = _forget_bias(row, framework, forget_bias)
    return LSTMParameters(**_read(row, variables, added))


def lstm_to_convention(
    framework: str, parameters: LSTMParameters, *, forget_bias: float | None = None
) -> dict[str, Any]:
    """Write the weights of a plain LSTM as another framework stores them.

    Without a bias, zeros are written. A bias that comes in two halves is shared between
    them. The rest is as in :func:`lstm_from_convention`.

    Examples
    --------
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> lstm_to_convention("tensorflow1", zeros)["bias"]  # i, g, f, o: it will add 1
    array([ 0.,  0., -1.,  0.])
    """
    row = _row(LSTM, framework)
    if not isinstance(parameters, LSTMParameters):
        raise TypeError(
            f"parameters must be LSTMParameters, got {type(parameters).__name__}; "
            "build LSTMParameters(w_x=..., w_h=...)."
        )
    added = _forget_bias(row, framework, forget_bias)
    present = {k: v for k, v in parameters._asdict().items() if v is not None}
    fields = _read(LSTM["book"], present)
    lengths = _lengths(fields["w_h"].shape[1], fields["w_x"].shape[1])
    fields.setdefault("b", np.zeros_like(fields["w_h"][:, 0]))
    fields["b"][: lengths["H"]] -= added
    written = {
        name: np.empty([lengths[n] for n in shape], fields["b"].dtype)
        for name, shape in _shapes(row, row.parts).items()
    }
    places = [*_blocks_of(row, written, lengths)]
    terms = Counter((field, gate) for field, gate, _ in places)
    for field, gate, place in places:
        block = np.split(fields[field], 4)[GATES.index(gate)]
        place[...] = block / terms[field, gate]
    return _nested(written)


def normalized_lstm_from_convention(
    framework: str, variables: Mapping[str, Any], *, forget_bias: float | None = None
) -> LayerNormLSTMParameters:
    r"""Read the weights, gains and biases of an LSTM with normalization.

    What is normalized differs between these cells too, and no converter can change
    that: ``NORMALIZED_LSTM[framework]`` has the ``norm``, ``carried`` and ``eps`` with
    which :func:`normbook.layer_norm_lstm.layer_norm_lstm` is the same cell. The hats of
    "cooijmans" run over the batch, as in
    :class:`normbook.layers.batch_norm_lstm.BatchNormLSTM`.

    The rest is as in :func:`lstm_from_convention`, but that gains and biases of the
    norms must be there; what the cell does not have is None. A bias inside a layer norm
    that does not cancel is refused: "kiros" standardizes :math:`W_x x + b`, and adds b
    once more outside. The first is :math:`\widehat{W_x x}` only if all entries of b are
    equal.

    Examples
    --------
    >>> ones = np.ones((2, 8))
    >>> haste = {"kernel": ones, "recurrent_kernel": ones, "bias": ones[0]}
    >>> haste |= {"gamma": np.arange(16.0).reshape(2, 8)}  # of W_x x, of W_h h
    >>> haste |= {"gamma_h": ones[0, :2], "beta_h": ones[0, :2]}
    >>> normalized_lstm_from_convention("haste", haste).gamma_x  # from i, g, f, o
    array([4., 5., 0., 1., 6., 7., 2., 3.])
    """
    row = _row(NORMALIZED_LSTM, framework)
    added = _forget_bias(row, framework, forget_bias)
    fields = _read(row, variables, added)
    b = fields.get("b", np.zeros(1))
    if framework == "kiros" and np.any(b != b[0]):
        raise ValueError(
            "all entries of b must be equal, since this code also adds b inside the "
            f"layer norm of W_x x, got entries from {b.min()} to {b.max()}; append b "
            "to W as a further row, for a feature of x that is always 1, add b to b1, "
            "and pass a b of zeros."
        )
    return LayerNormLSTMParameters(**fields)


def _read(
    row: LSTMConvention, variables: Mapping[str, Any], added: float = 0.0
) -> dict[str, Floats]:
    """Return our fields, in our order, of all that is there and of a forget bias."""
    flat = _flat("variables", variables)
    has_bias = any(part.variable in flat for part in row.parts.get("b", ()))
    fields = [field for field in row.parts if field != "b" or has_bias]
    shapes = _shapes(row, fields)
    _check_names("variables", flat, shapes, _shapes(row, row.parts))
    arrays = {name: _floats(name, flat[name]) for name in shapes}
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    if len({*dtypes.values()}) > 1:
        raise TypeError(
            f"the variables must have one dtype, got {dtypes}; convert them with "
            "astype."
        )
    lengths = _solved(row, shapes, arrays)
    blocks: dict[str, dict[str, Floats]] = {field: {} for field in fields}
    for field, gate, block in _blocks_of(row, arrays, lengths):
        of_field = blocks[field]
        of_field[gate] = of_field[gate] + block if gate in of_field else block
    result = {
        field: np.concatenate([of_field[k] for k in GATES + "c" if k in of_field])
        for field, of_field in blocks.items()
    }
    if added:
        result.setdefault("b", np.zeros_like(result["w_h"][:, 0]))
        result["b"][: lengths["H"]] += added
    return result


def _blocks_of(
    row: LSTMConvention, arrays: Mapping[str, Floats], lengths: Mapping[str, int]
) -> Iterator[tuple[str, str, Floats]]:
    """Yield each field and gate with a view of the H rows that a variable has of it."""
    for field, parts in row.parts.items():
        for part in parts:
            if part.variable in arrays:
                rows = part.of(arrays[part.variable], lengths)
                gates = _gates(row, field, part)
                blocks = np.split(rows.T if row.has_gates_last else rows, len(gates))
                for gate, block in zip(gates, blocks, strict=True):
                    yield field, gate, block


def _gates(row: LSTMConvention, field: str, part: Part) -> str:
    """Return the blocks of this part in turn; gain and bias of the cell have one."""
    return part.gates or ("c" if field.endswith("_c") else row.gates)


def _shapes(row: LSTMConvention, fields: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the variables behind these fields, and the shape of each in letters."""
    shapes = {}
    for field in fields:
        for part in row.parts[field]:
            rows = "4H" if len(_gates(row, field, part)) == 4 else "H"
            shape = (rows, *{"w_x": "D", "w_h": "H"}.get(field, ""))
            usual = shape[::-1] if row.has_gates_last else shape
            shapes[part.variable] = part.shape or usual
    return shapes


def _lengths(units: int, inputs: int) -> dict[str, int]:
    """Return what the letters of a shape stand for."""
    of_units = {"H": units, "4H": 4 * units, "8H": 8 * units}
    return of_units | {"D": inputs, "D + H": inputs + units, "1": 1, "2": 2}


def _solved(
    row: LSTMConvention,
    shapes: Mapping[str, tuple[str, ...]],
    arrays: Mapping[str, Floats],
) -> dict[str, int]:
    """Find H and D, and refuse a variable whose shape does not fit them."""
    recurrent, inputs = (row.parts[field][0].variable for field in ("w_h", "w_x"))
    # Not strict: a wrong number of axes is refused below.
    of_h = dict(zip(shapes[recurrent], arrays[recurrent].shape, strict=False))
    of_x = dict(zip(shapes[inputs], arrays[inputs].shape, strict=False))
    h = max(1, of_h.get("H", of_h.get("4H", 0) // 4))
    d = max(1, of_x.get("D", of_x.get("D + H", 0) - h))
    lengths = _lengths(h, d)
    for name in dict.fromkeys([recurrent, inputs, *shapes]):
        shape, actual = shapes[name], arrays[name].shape
        if actual != tuple(lengths[n] for n in shape):
            letters = str(shape).replace("'", "")
            cure = "are the gates on the other axis, or is it of another layer?"
            if "1" in shape:
                cure = "of two directions pass [:1] of each variable, then [1:]."
            raise ValueError(
                f"{name} must have shape {letters} with H = {h} by {recurrent} and "
                f"D = {d} by {inputs}, both at least 1, got {actual}; {cure}"
            )
    return lengths


def _forget_bias(
    row: LSTMConvention, framework: str, forget_bias: float | None
) -> float:
    """Return what is added at run time."""
    if forget_bias is None:
        return row.forget_bias
    if not row.forget_bias:
        raise ValueError(
            f"forget_bias must be left out for {framework}, which stores all its bias, "
            f"got {forget_bias!r}; only the cells of TensorFlow 1 add one at run time."
        )
    if not (isinstance(forget_bias, Real) and abs(forget_bias) <= sys.float_info.max):
        raise ValueError(
            f"forget_bias must be a finite number, got {forget_bias!r}; the cell "
            f"has {row.forget_bias} by default."
        )
    return float(forget_bias)


# --- norms of language models


class ModelNormConvention(NamedTuple):
    """What a family of language models stores of a norm, and where it rounds.

    Each computes in float32, whatever the dtype of its input, and rounds at one place:
    "before" the gain, to the dtype of the input; "after" it, to the same; or before it
    to the dtype of the weight ("weight"), float32 included. With "before" and a weight
    of float32, and with "weight", the output has the dtype of the weight.
    """

    layer: str  # module and class in the package transformers
    eps: float  # of its configuration; a checkpoint has its own
    rounds: Literal["before", "after", "weight"] = "before"
    offset: float = 0.0  # the gain is what is stored plus this
    is_centred: bool = False  # layer norm: the mean is taken off; else RMS norm
    has_gain: bool = True
    has_bias: bool = False


# fmt: off
MODEL_NORM = {
    "llama": ModelNormConvention("llama.LlamaRMSNorm", 1e-6),
    "mistral": ModelNormConvention("mistral.MistralRMSNorm", 1e-6),
    "mixtral": ModelNormConvention("mixtral.MixtralRMSNorm", 1e-5),
    "qwen2": ModelNormConvention("qwen2.Qwen2RMSNorm", 1e-6),
    "qwen3": ModelNormConvention("qwen3.Qwen3RMSNorm", 1e-6),
    "deepseek_v3": ModelNormConvention("deepseek_v3.DeepseekV3RMSNorm", 1e-6),
    "phi3": ModelNormConvention("phi3.Phi3RMSNorm", 1e-5),
    "glm4": ModelNormConvention("glm4.Glm4RMSNorm", 1.5625e-7),
    "mamba2": ModelNormConvention("mamba2.Mamba2RMSNorm", 1e-5),
    "llama4": ModelNormConvention("llama4.Llama4TextRMSNorm", 1e-5),
    "t5": ModelNormConvention("t5.T5LayerNorm", 1e-6, rounds="weight"),
    "olmo2": ModelNormConvention("olmo2.Olmo2RMSNorm", 1e-5, rounds="after"),
    "gpt_oss": ModelNormConvention("gpt_oss.GptOssRMSNorm", 1e-5, rounds="after"),
    "gemma": ModelNormConvention("gemma.GemmaRMSNorm", 1e-6, "after", offset=1.0),
    "gemma2": ModelNormConvention("gemma2.Gemma2RMSNorm", 1e-6, "after", offset=1.0),
    "gemma3": ModelNormConvention("gemma3.Gemma3RMSNorm", 1e-6, "after", offset=1.0),
    "gemma3n": ModelNormConvention("gemma3n.Gemma3nRMSNorm", 1e-6, "after"),
    "gemma4": ModelNormConvention("gemma4.Gemma4RMSNorm", 1e-6, "after"),
    "qwen3_next": ModelNormConvention(
        "qwen3_next.Qwen3NextRMSNorm", 1e-6, "after", offset=1.0),
    "nemotron": ModelNormConvention(
        "nemotron.NemotronLayerNorm1P", 1e-5, "after", offset=1.0,
        is_centred=True, has_bias=True),
    "cohere": ModelNormConvention(
        "cohere.CohereLayerNorm", 1e-5, "after", is_centred=True),
    "olmo": ModelNormConvention(
        "olmo.OlmoLayerNorm", 1e-5, "after", is_centred=True, has_gain=False),
    "gpt_neox": ModelNormConvention(  # nn.LayerNorm itself
        "gpt_neox.nn.LayerNorm", 1e-5, "after", is_centred=True, has_bias=True),
}
# fmt: on


def norm_gain_from_convention(model: str, weight: Any) -> Floats:
    """Read the gain of a norm of a language model: what is stored, or 1 more.

    Of a float16 weight that lacks the 1 comes a float32 gain: near 1 the numbers of
    float16 lie a thousand times as far apart as near 0.001. NumPy has no bfloat16:
    pass ``weight.float()`` of such a tensor. An unknown model, or one whose norm has no
    gain, is a ``ValueError``.

    Examples
    --------
    >>> norm_gain_from_convention("gemma", np.array([-0.5, 0.25]))
    array([0.5 , 1.25])
    >>> norm_gain_from_convention("llama", np.array([0.5, 1.25]))
    array([0.5 , 1.25])
    """
    return _moved_gain("weight", model, weight, +1)


def norm_gain_to_convention(model: str, gain: Any) -> Floats:
    """Write the gain of a norm as a language model stores it.

    Arguments are those of :func:`norm_gain_from_convention`.

    Examples
    --------
    >>> norm_gain_to_convention("gemma", np.array([0.5, 1.25]))
    array([-0.5 ,  0.25])
    """
    return _moved_gain("gain", model, gain, -1)


def _moved_gain(name: str, model: str, values: Any, sign: int) -> Floats:
    row = _row(MODEL_NORM, model, "model")
    if not row.has_gain:
        raise ValueError(
            f"model must be one whose norm has a gain, got {model!r}, which has none; "
            "leave the gain out, or take one of ones."
        )
    array: Floats = _floats(name, values)
    if row.offset and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    return np.asarray(array + sign * array.dtype.type(row.offset))


# --- mappings and arrays

_FORMS = {
    "variables": "for torch it is layer.state_dict(), for Keras "
    "{v.name: v for v in layer.weights}",
    "settings": "for torch it is {'momentum': layer.momentum, 'eps': layer.eps}, for "
    "Keras {'momentum': layer.momentum, 'epsilon': layer.epsilon}",
}
_CURES = {
    "variables": "what one layer has, in one direction, under these names",
    "settings": "both as the layer has them, since they are not stored with its "
    "variables",
}


def _row(
    table: Mapping[str, Convention], framework: str, name: str = "framework"
) -> Convention:
    if not (isinstance(framework, str) and framework in table):
        raise ValueError(
            f"{name} must be one of {', '.join(table)}, got {framework!r}; for "
            "another one bring its variables into the form of one of these."
        )
    return table[framework]


def _flat(what: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Write nested mappings as one, with slashes in the names."""
    if not isinstance(variables, Mapping):
        raise TypeError(
            f"{what} must be a mapping from names to values, got "
            f"{type(variables).__name__}; {_FORMS[what]}."
        )
    pairs: list[tuple[str, Any]] = []
    for key, value in variables.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}/{k}", v) for k, v in _flat(what, value).items()]
        else:
            pairs.append((str(key), value))
    flat = dict(pairs)
    if len(flat) < len(pairs):
        raise ValueError(
            f"{what} must have each name once, got {', '.join(n for n, _ in pairs)}; a "
            "name with a slash and nested mappings are the same."
        )
    return flat


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Write names with slashes as nested mappings."""
    result: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split("/")
        place = result
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return result


def _check_names(
    what: str, flat: Mapping[str, Any], needed: Iterable[str], known: Iterable[str]
) -> None:
    """Refuse a mapping that lacks a name, or has one that nobody knows."""
    known = list(known)
    missing = ", ".join(name for name in needed if name not in flat)
    unknown = ", ".join(name for name in flat if name not in known)
    if missing or unknown:
        faults = [f"missing {missing}"] * bool(missing)
        faults += [f"unknown {unknown}"] * bool(unknown)
        raise ValueError(
            f"{what} must have the names {', '.join(known)}, got "
            f"{', '.join(flat) or 'none'}: {'; '.join(faults)}. Pass {_CURES[what]}."
        )


def _floats(name: str, value: Any) -> Floats:
    """Return a copy of anything that NumPy can read, if it holds floats."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be something that numpy.asarray takes, got "
            f"{type(value).__name__} ({error}); of a torch tensor pass "
            "tensor.detach().cpu(), of bfloat16 .float() as well."
        ) from None
    if array.dtype.kind != "f":
        raise TypeError(
            f"{name} must hold real floating-point numbers that NumPy knows, got dtype "
            f"{array.dtype}; convert it, bfloat16 and whole numbers to float32."
        )
    return array.copy()
