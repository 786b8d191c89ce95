r"""Conventions of other frameworks: batch norm and LSTM weights, read and written.

The same layer is stored in many ways. The names differ, the constant of the running
average is the weight of the old value here and of the new one there, the variance that
is averaged is biased or not, the four gates of an LSTM come in any order, as rows or as
columns. Numbers in the wrong convention load without an error wherever the shapes fit.

The tables ``BATCH_NORM``, ``LSTM`` and ``NORMALIZED_LSTM`` hold what differs, one row
for each convention. The functions read a row: ``..._from_convention`` turns what a
framework stores into the form of this book, ``..._to_convention`` goes back. They take
anything that ``numpy.asarray`` takes, and give new NumPy arrays of the same dtype.

A name with a slash stands for nested mappings: ``"ii/kernel"`` is
``variables["ii"]["kernel"]``. What was read, and in which version, stands in the book,
chapter *Framework conventions*.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from normbook.layer_norm_lstm import Carried, LayerNormLSTMParameters, Normed
from normbook.lstm import LSTMParameters
from normbook.running_statistics import unbiased
from normbook.standardize import check_eps

__all__ = [
    "BATCH_NORM",
    "LSTM",
    "NORMALIZED_LSTM",
    "BatchNormConvention",
    "BatchNormState",
    "LSTMConvention",
    "batch_norm_from_convention",
    "batch_norm_to_convention",
    "lstm_from_convention",
    "lstm_to_convention",
    "normalized_lstm_from_convention",
]

Floats = NDArray[Any]
Convention = TypeVar("Convention")

Shape = tuple[str, ...]  # such as ("4H", "D")

GATES = "fiog"  # the book's order


# --- batch norm


class BatchNormConvention(NamedTuple):
    """Names and meanings of what a framework keeps of a batch norm layer.

    Attributes
    ----------
    gamma, beta, running_mean, running_var, eps : str
        What the framework calls them.
    momentum_weighs : "new" or "old"
        Which value ``momentum`` is the weight of.
    is_unbiased : bool
        Whether the running variance averages unbiased variances.
    default_momentum, default_eps : float
        What its layer has if nothing is said.
    may_lack : "gamma or beta", "gamma and beta" or "nothing"
        Whether a layer can be without one of gain and bias, without both at once, or
        has both always.
    dropped : tuple of str
        Variables that no other framework has. They are read past.
    """

    gamma: str
    beta: str
    running_mean: str
    running_var: str
    eps: str
    momentum_weighs: Literal["new", "old"]
    is_unbiased: bool
    default_momentum: float
    default_eps: float
    may_lack: Literal["gamma or beta", "gamma and beta", "nothing"] = "gamma or beta"
    dropped: tuple[str, ...] = ()


class BatchNormState(NamedTuple):
    """A batch norm layer in the convention of this book, which is that of torch.

    Attributes
    ----------
    gamma, beta : arrays, shape (C,), or None
        Gain and bias; None where the layer has none.
    running_mean, running_var : arrays, shape (C,)
    momentum : float or None
        Weight of the new value in the running averages; None: they are plain averages.
    eps : float
    """

    gamma: Floats | None
    beta: Floats | None
    running_mean: Floats
    running_var: Floats
    momentum: float | None
    eps: float


BATCH_NORM = {
    "book": BatchNormConvention(
        gamma="gamma",
        beta="beta",
        running_mean="running_mean",
        running_var="running_var",
        eps="eps",
        momentum_weighs="new",
        is_unbiased=True,
        default_momentum=0.1,
        default_eps=1e-5,
    ),
    "torch": BatchNormConvention(
        gamma="weight",
        beta="bias",
        running_mean="running_mean",
        running_var="running_var",
        eps="eps",
        momentum_weighs="new",
        is_unbiased=True,
        default_momentum=0.1,
        default_eps=1e-5,
        may_lack="gamma and beta",
        dropped=("num_batches_tracked",),
    ),
    "keras": BatchNormConvention(
        gamma="gamma",
        beta="beta",
        running_mean="moving_mean",
        running_var="moving_variance",
        eps="epsilon",
        momentum_weighs="old",
        is_unbiased=False,
        default_momentum=0.99,
        default_eps=1e-3,
    ),
    "flax": BatchNormConvention(
        gamma="params/scale",
        beta="params/bias",
        running_mean="batch_stats/mean",
        running_var="batch_stats/var",
        eps="epsilon",
        momentum_weighs="old",
        is_unbiased=False,
        default_momentum=0.99,
        default_eps=1e-5,
    ),
    "onnx": BatchNormConvention(
        gamma="scale",
        beta="B",
        running_mean="input_mean",
        running_var="input_var",
        eps="epsilon",
        momentum_weighs="old",
        is_unbiased=False,
        default_momentum=0.9,
        default_eps=1e-5,
        may_lack="nothing",
    ),
}


def batch_norm_from_convention(
    framework: str,
    variables: Mapping[str, Any],
    settings: Mapping[str, float | None],
    *,
    count: int | None = None,
) -> BatchNormState:
    r"""Read a batch norm layer of another framework.

    At inference every framework computes

    .. math::

        y = \gamma\,\frac{x - m}{\sqrt{v + \epsilon}} + \beta

    with the m and v that are stored. So for equal outputs they are kept as they are,
    however they were estimated. Only for training on, or to compare statistics, it
    matters that one framework averages biased and another unbiased variances.

    Parameters
    ----------
    framework : key of ``BATCH_NORM``
    variables : mapping of str to arrays of shape (C,)
        Of one layer, under the framework's names. Gain and bias may be missing.
    settings : mapping of str to float
        ``momentum`` and ε, both, under the framework's names and in its meaning. They
        are not stored with the variables, and the defaults differ.
    count : int, optional
        Number of values behind each mean of a training batch, the batch size times the
        places of an image. With it a biased running variance becomes an unbiased one,
        n / (n - 1) times as large. That is exact if every batch had this number and the
        start at 1 is forgotten.

    Returns
    -------
    BatchNormState

    Raises
    ------
    TypeError
        If ``variables`` or ``settings`` is no mapping, or a value no array of
        floating-point numbers.
    ValueError
        If the framework is unknown, a name is missing or unknown, a shape is not (C,),
        a variance negative, or a setting or ``count`` no number in its range.

    Notes
    -----
    The ``num_batches_tracked`` of torch is read past: no other framework counts.

    Source: the frameworks' documentation, see the book, chapter *Framework
    conventions*.

    Examples
    --------
    >>> keras = {"moving_mean": [2.0], "moving_variance": [0.75]}
    >>> settings = {"momentum": 0.99, "epsilon": 0.001}
    >>> state = batch_norm_from_convention("keras", keras, settings)
    >>> state.running_var, state.momentum, state.eps
    (array([0.75]), 0.01, 0.001)
    >>> batch_norm_from_convention("keras", keras, settings, count=4).running_var
    array([1.])
    """
    convention = _of(BATCH_NORM, framework)
    names = {field: getattr(convention, field) for field in BatchNormState._fields[:4]}
    needed = [names["running_mean"], names["running_var"]]
    flat = _flat("variables", variables)
    _check_names("variables", flat, needed, [*names.values(), *convention.dropped])
    given = _flat("settings", settings)
    _check_names("settings", given, ["momentum", convention.eps])
    arrays: dict[str, Any] = {
        field: _floats(name, flat[name]) if name in flat else None
        for field, name in names.items()
    }
    _check_channels({names[f]: a for f, a in arrays.items() if a is not None})
    var = arrays["running_var"]
    if not np.all(var >= 0):
        raise ValueError(
            f"{names['running_var']} must hold numbers >= 0, got {var}; is it another "
            "variable of the layer?"
        )
    if count is not None:
        corrected = unbiased(var, count)
        if not convention.is_unbiased:
            arrays["running_var"] = corrected
    return BatchNormState(
        **arrays,
        momentum=_turned(convention, framework, given["momentum"]),
        eps=check_eps(given[convention.eps]),
    )


def batch_norm_to_convention(
    framework: str, state: BatchNormState, *, count: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    r"""Write a batch norm layer as another framework stores it.

    Parameters
    ----------
    framework : key of ``BATCH_NORM``
    state : BatchNormState
    count : int, optional
        As in :func:`batch_norm_from_convention`; an unbiased running variance becomes
        a biased one where the framework averages such.

    Returns
    -------
    variables : dict
        Under the framework's names. A gain or bias that the layer does not have is
        left out, or is ones or zeros where the framework cannot be without.
    settings : dict
        ``momentum`` and ε as the framework's layer takes them.

    Raises
    ------
    TypeError, ValueError
        As :func:`batch_norm_from_convention`, and if the momentum is None, a plain
        average, which torch alone has.

    Examples
    --------
    >>> state = BatchNormState(None, None, np.zeros(2), np.ones(2), 0.1, 1e-5)
    >>> batch_norm_to_convention("onnx", state)[1]
    {'momentum': 0.9, 'epsilon': 1e-05}
    """
    convention = _of(BATCH_NORM, framework)
    if not isinstance(state, BatchNormState):
        raise TypeError(
            f"state must be a BatchNormState, got {type(state).__name__}; "
            "batch_norm_from_convention makes one."
        )
    own = {field: v for field, v in state._asdict().items() if v is not None}
    settings = {"momentum": state.momentum, "eps": own.pop("eps", None)}
    own.pop("momentum", None)
    # The book's own row knows what a good state is.
    good = batch_norm_from_convention("book", own, settings)
    if count is not None:
        factor = unbiased(1.0, count)
        if not convention.is_unbiased:
            good = good._replace(running_var=good.running_var / factor)
    lacking = (good.gamma is None) + (good.beta is None)
    allowed = {"gamma or beta": (0, 1, 2), "gamma and beta": (0, 2), "nothing": (0,)}
    if lacking not in allowed[convention.may_lack]:
        ones = np.ones_like(good.running_var)
        gamma = ones if good.gamma is None else good.gamma
        beta = 0 * ones if good.beta is None else good.beta
        good = good._replace(gamma=gamma, beta=beta)
    variables = {
        getattr(convention, field): value
        for field, value in zip(good._fields[:4], good[:4], strict=True)
        if value is not None
    }
    momentum = _turned(convention, framework, good.momentum)
    return _nested(variables), {"momentum": momentum, convention.eps: good.eps}


def _turned(
    convention: BatchNormConvention, framework: str, momentum: Any
) -> float | None:
    """Turn a weight of the old value into one of the new value, or back."""
    if momentum is None:
        if convention.momentum_weighs == "new":
            return None
        raise ValueError(
            f"momentum must be a number for {framework}, got None; torch alone knows a "
            "plain average of all batches, choose a weight in its place."
        )
    weight: Any = momentum if isinstance(momentum, Real) else math.nan
    if not 0 <= weight <= 1:
        raise ValueError(
            f"momentum must lie in [0, 1], got {momentum!r}; it is the weight of the "
            f"{convention.momentum_weighs} value in {framework}, which has "
            f"{convention.default_momentum} by default."
        )
    if convention.momentum_weighs == "new":
        return float(weight)
    return round(1 - float(weight), 15)  # without dust: 1 - 0.99 is 0.01


def _check_channels(arrays: Mapping[str, Floats]) -> None:
    """Refuse what is not one number for each channel."""
    shapes = {name: value.shape for name, value in arrays.items()}
    if {len(shape) for shape in shapes.values()} != {1} or len({*shapes.values()}) > 1:
        raise ValueError(
            f"the variables must have shape (C,), all the same, got {shapes}; pass "
            "those of one layer, flattened."
        )


# --- LSTMs


class LSTMConvention(NamedTuple):
    """Order of the gates and places of the weights.

    Attributes
    ----------
    gates : str
        Order of the four blocks: forget, input, output, and g for the candidate, which
        others call c or j.
    names : dict of str to str
        From our field to the variables that make it up. ``"a, b"`` are blocks, one
        behind the other; ``"a + b"`` are added; ``"a[:D]"`` is a part of one.
    has_gates_last : bool
        Whether the blocks are columns, of a matrix (D, 4H), in place of rows.
    forget_bias : float
        What the cell adds to the forget gate at run time, and does not store, by
        default.
    shapes : mapping of str to tuple of str
        Of variables that have further axes or hold more than one field; of all others
        the field tells the shape.
    norm, carried, eps
        Of cells with normalization: what is standardized before the gates and which c
        is carried on, as in
        :func:`normbook.layer_norm_lstm.layer_norm_lstm_forward`, and its ε.
    """

    gates: str
    names: dict[str, str]
    has_gates_last: bool = False
    forget_bias: float = 0.0
    shapes: Mapping[str, Shape] = MappingProxyType({})
    norm: Normed | None = None
    carried: Carried | None = None
    eps: float | None = None


LSTM = {
    "book": LSTMConvention("fiog", {"w_x": "w_x", "w_h": "w_h", "b": "b"}),
    "torch": LSTMConvention(
        "ifgo",
        {
            "w_x": "weight_ih_l0",
            "w_h": "weight_hh_l0",
            "b": "bias_ih_l0 + bias_hh_l0",
        },
    ),
    "keras": LSTMConvention(
        "ifgo",
        {"w_x": "kernel", "w_h": "recurrent_kernel", "b": "bias"},
        has_gates_last=True,
    ),
    # linen.OptimizedLSTMCell, linen.LSTMCell
    "flax": LSTMConvention(
        "ifgo",
        {
            "w_x": "ii/kernel, if/kernel, ig/kernel, io/kernel",
            "w_h": "hi/kernel, hf/kernel, hg/kernel, ho/kernel",
            "b": "hi/bias, hf/bias, hg/bias, ho/bias",
        },
        has_gates_last=True,
    ),
    # nnx.OptimizedLSTMCell
    "flax_nnx": LSTMConvention(
        "ifgo",
        {"w_x": "dense_i/kernel", "w_h": "dense_h/kernel", "b": "dense_h/bias"},
        has_gates_last=True,
    ),
    "onnx": LSTMConvention(
        "iofg",
        {"w_x": "W[0]", "w_h": "R[0]", "b": "B[0,:4H] + B[0,4H:]"},
        shapes={"W": ("1", "4H", "D"), "R": ("1", "4H", "H"), "B": ("1", "8H")},
    ),
    # nn.rnn_cell.BasicLSTMCell, and LSTMCell without its options
    "tensorflow1": LSTMConvention(
        "igfo",
        {"w_x": "kernel[:D]", "w_h": "kernel[D:]", "b": "bias"},
        has_gates_last=True,
        forget_bias=1.0,
        shapes={"kernel": ("D + H", "4H")},
    ),
    "haste": LSTMConvention(
        "igfo",
        {"w_x": "kernel", "w_h": "recurrent_kernel", "b": "bias"},
        has_gates_last=True,
    ),
    # The code of Ba, Kiros and Hinton (2016) adds its bias twice.
    "kiros": LSTMConvention(
        "ifog", {"w_x": "W", "w_h": "U", "b": "b + b"}, has_gates_last=True
    ),
}

NORMALIZED_LSTM = {
    "kiros": LSTMConvention(
        "ifog",
        {
            "w_x": "W",
            "w_h": "U",
            "b": "b",
            "gamma_h": "s2",
            "beta_h": "b2",
            "gamma_x": "s1",
            "beta_x": "b1",
            "gamma_c": "s3",
            "beta_c": "b3",
        },
        has_gates_last=True,
        norm="terms",
        carried="raw",
        eps=1e-5,
    ),
    # Its gamma_h and beta_h belong to the cell, not to W_h h.
    "haste": LSTMConvention(
        "igfo",
        {
            "w_x": "kernel",
            "w_h": "recurrent_kernel",
            "b": "bias",
            "gamma_h": "gamma[1]",
            "gamma_x": "gamma[0]",
            "gamma_c": "gamma_h",
            "beta_c": "beta_h",
        },
        has_gates_last=True,
        shapes={"gamma": ("2", "4H")},
        norm="terms",
        carried="raw",
        eps=1e-5,
    ),
    # benchmarks/fastrnns in the sources of torch
    "torch_custom_lstms": LSTMConvention(
        "ifgo",
        {
            "w_x": "weight_ih",
            "w_h": "weight_hh",
            "gamma_h": "layernorm_h.weight",
            "beta_h": "layernorm_h.bias",
            "gamma_x": "layernorm_i.weight",
            "beta_x": "layernorm_i.bias",
            "gamma_c": "layernorm_c.weight",
            "beta_c": "layernorm_c.bias",
        },
        norm="terms",
        carried="normalized",
        eps=1e-5,
    ),
    "tensorflow_addons": LSTMConvention(
        "ifgo",
        {
            "w_x": "kernel",
            "w_h": "recurrent_kernel",
            "b": "bias",
            "gamma_h": "recurrent_norm/gamma",
            "beta_h": "recurrent_norm/beta",
            "gamma_x": "kernel_norm/gamma",
            "beta_x": "kernel_norm/beta",
            "gamma_c": "state_norm/gamma",
            "beta_c": "state_norm/beta",
        },
        has_gates_last=True,
        norm="terms",
        carried="normalized",
        eps=1e-3,
    ),
    # LayerNormBasicLSTMCell
    "tensorflow1_contrib": LSTMConvention(
        "igfo",
        {
            "w_x": "kernel[:D]",
            "w_h": "kernel[D:]",
            "gamma_h": "input/gamma, transform/gamma, forget/gamma, output/gamma",
            "beta_h": "input/beta, transform/beta, forget/beta, output/beta",
            "gamma_c": "state/gamma",
            "beta_c": "state/beta",
        },
        has_gates_last=True,
        forget_bias=1.0,
        shapes={"kernel": ("D + H", "4H")},
        norm="gates",
        carried="normalized",
        eps=1e-12,
    ),
    # Its hats run over the batch: normbook.layers.batch_norm_lstm.
    "cooijmans": LSTMConvention(
        "gfio",
        {
            "w_x": "Wx",
            "w_h": "Wa",
            "b": "ab_betas",
            "gamma_h": "a_gammas",
            "gamma_x": "b_gammas",
            "gamma_c": "h_gammas",
            "beta_c": "h_betas",
        },
        has_gates_last=True,
        norm="terms",
        carried="raw",
        eps=1e-5,
    ),
}


def lstm_from_convention(
    framework: str, variables: Mapping[str, Any], *, forget_bias: float | None = None
) -> LSTMParameters:
    """Read the weights of an LSTM of another framework.

    Parameters
    ----------
    framework : key of ``LSTM``
    variables : mapping of str to arrays
        Of one layer in one direction, under the framework's names; mappings may be
        nested. Biases may be missing, all of them. An ONNX node in both directions has
        an axis for them: pass ``W[:1]`` and so on, then ``W[1:]``.
    forget_bias : float, optional
        What the cell of TensorFlow 1 adds at run time; 1, its default, if left out.
        All others store their bias.

    Returns
    -------
    LSTMParameters
        With rows in the order f, i, o, g.

    Raises
    ------
    TypeError
        If ``variables`` is no mapping, a value no array of floating-point numbers, or
        the dtypes differ.
    ValueError
        If the framework is unknown, a name is missing or unknown, a shape does not
        fit, or ``forget_bias`` is given where the cell adds none.

    Notes
    -----
    For layer k of torch rename ``weight_ih_lk`` to ``weight_ih_l0``, and so on. Two
    biases in the same place are added; a bias that is left out is None.

    Examples
    --------
    >>> keras = {
    ...     "kernel": [[1.0, 2.0, 3.0, 4.0]],  # i, f, g, o
    ...     "recurrent_kernel": [[5.0, 6.0, 7.0, 8.0]],
    ... }
    >>> lstm_from_convention("keras", keras).w_x.T  # f, i, o, g
    array([[2., 1., 4., 3.]])
    """
    convention = _of(LSTM, framework)
    return LSTMParameters(**_read(convention, framework, variables, forget_bias))


def lstm_to_convention(
    framework: str, parameters: LSTMParameters, *, forget_bias: float | None = None
) -> dict[str, Any]:
    """Write the weights of a plain LSTM as another framework stores them.

    Parameters
    ----------
    framework : key of ``LSTM``
    parameters : LSTMParameters
        Without a bias, zeros are written.
    forget_bias : float, optional
        As in :func:`lstm_from_convention`.

    Returns
    -------
    dict
        Under the framework's names, nested where a name has a slash. A bias that comes
        in two halves is shared between them.

    Raises
    ------
    TypeError, ValueError
        As :func:`lstm_from_convention`.

    Examples
    --------
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> lstm_to_convention("tensorflow1", zeros)["bias"]  # i, g, f, o: it will add 1
    array([ 0.,  0., -1.,  0.])
    """
    convention = _of(LSTM, framework)
    if not isinstance(parameters, LSTMParameters):
        raise TypeError(
            f"parameters must be LSTMParameters, got {type(parameters).__name__}; "
            "build LSTMParameters(w_x=..., w_h=...)."
        )
    added = _forget_bias(convention, framework, forget_bias)
    given = {k: v for k, v in parameters._asdict().items() if v is not None}
    own = _read(LSTM["book"], "book", given, None)
    lengths = _lengths(own["w_h"].shape[1], own["w_x"].shape[1])
    own.setdefault("b", np.zeros_like(own["w_h"][:, 0]))
    own["b"][: lengths["H"]] -= added
    shapes = _shapes(convention, convention.names)
    written = {
        name: np.empty([lengths[n] for n in shape], own["b"].dtype)
        for name, shape in shapes.items()
    }
    for field, value in own.items():
        rows = _reordered(value, GATES, convention.gates)
        columns = rows.T if convention.has_gates_last else rows
        terms = _terms(convention.names[field])
        for term in terms:
            blocks = np.split(columns / len(terms), len(term), axis=-1)
            for name, block in zip(term, blocks, strict=True):
                variable, place = _place(name, lengths)
                written[variable][place] = block
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

    Parameters
    ----------
    framework : key of ``NORMALIZED_LSTM``
    variables : mapping of str to arrays
        As in :func:`lstm_from_convention`; gains and biases of the norms must be there.
    forget_bias : float, optional
        What the cell of TensorFlow 1 adds at run time; 1, its default, if left out.

    Returns
    -------
    LayerNormLSTMParameters
        With rows in the order f, i, o, g, gains and biases included. What the cell
        does not have is None.

    Raises
    ------
    TypeError, ValueError
        As :func:`lstm_from_convention`, and for a bias inside a layer norm that does
        not cancel, in "kiros".

    Notes
    -----
    "kiros" standardizes :math:`W_x x + b`, and adds b once more outside. The first is
    :math:`\widehat{W_x x}` only if all entries of b are equal.

    Examples
    --------
    >>> variables = {
    ...     "kernel": np.ones((1, 8)),
    ...     "recurrent_kernel": np.ones((2, 8)),
    ...     "bias": np.zeros(8),
    ...     "gamma": np.arange(16.0).reshape(2, 8),  # of W_x x, of W_h h
    ...     "gamma_h": np.ones(2),
    ...     "beta_h": np.zeros(2),
    ... }
    >>> normalized_lstm_from_convention("haste", variables).gamma_x  # from i, g, f, o
    array([4., 5., 0., 1., 6., 7., 2., 3.])
    """
    convention = _of(NORMALIZED_LSTM, framework)
    own = _read(convention, framework, variables, forget_bias)
    if framework == "kiros" and "b" in own and np.any(own["b"] != own["b"][0]):
        raise ValueError(
            "all entries of b must be equal, since this code also adds b inside the "
            f"layer norm of W_x x, got entries from {own['b'].min()} to "
            f"{own['b'].max()}; append b to W as a further row, for a feature of x "
            "that is always 1, add b to b1, and pass a b of zeros."
        )
    return LayerNormLSTMParameters(**own)


def _read(
    convention: LSTMConvention,
    framework: str,
    variables: Mapping[str, Any],
    forget_bias: float | None,
) -> dict[str, Floats]:
    """Give our fields, in our order, of all that is there."""
    added = _forget_bias(convention, framework, forget_bias)
    flat = _flat("variables", variables)
    known = _shapes(convention, convention.names)
    of_bias = _shapes(convention, {"b"} & {*convention.names})
    has_bias = any(name in flat for name in of_bias)
    fields = [f for f in convention.names if f != "b" or has_bias]
    shapes = _shapes(convention, fields)
    _check_names("variables", flat, shapes, known)
    arrays = {name: _floats(name, flat[name]) for name in shapes}
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    if len({*dtypes.values()}) > 1:
        raise TypeError(
            f"the variables must have one dtype, got {dtypes}; convert them with "
            "astype."
        )
    lengths = _solved(convention, shapes, arrays)

    own = {}
    for field in fields:
        terms = []
        for term in _terms(convention.names[field]):
            places = [_place(name, lengths) for name in term]
            blocks = [arrays[variable][place] for variable, place in places]
            # Blocks are listed only where the gates come last.
            terms.append(np.concatenate(blocks, axis=-1))
        total = sum(terms[1:], terms[0])
        rows = total.T if convention.has_gates_last else total
        is_of_gates = not field.endswith("_c")
        own[field] = _reordered(rows, convention.gates, GATES) if is_of_gates else rows
    if added:
        own.setdefault("b", np.zeros_like(own["w_h"][:, 0]))
        own["b"][: lengths["H"]] += added
    return own


def _terms(names: str) -> list[list[str]]:
    """Read "a, b + c, d": two terms that are added, of two blocks each."""
    return [term.split(", ") for term in names.split(" + ")]


def _place(name: str, lengths: Mapping[str, int]) -> tuple[str, Any]:
    """Split "kernel[:D]" into the variable and the index of a part of it."""
    variable, _, inside = name.partition("[")
    inputs, rows = lengths["D"], lengths["4H"]
    return variable, {
        "": ...,
        "0]": 0,
        "1]": 1,
        ":D]": slice(inputs),
        "D:]": slice(inputs, None),
        "0,:4H]": (0, slice(rows)),
        "0,4H:]": (0, slice(rows, None)),
    }[inside]


def _shapes(convention: LSTMConvention, fields: Iterable[str]) -> dict[str, Shape]:
    """Give the variables behind these fields, and the shape of each in letters."""
    shapes: dict[str, Shape] = {}
    for field in fields:
        for term in _terms(convention.names[field]):
            gates = "H" if field.endswith("_c") or len(term) == 4 else "4H"
            shape: Shape = (gates, *{"w_x": ("D",), "w_h": ("H",)}.get(field, ()))
            for name in term:
                variable = name.partition("[")[0]
                usual = shape[::-1] if convention.has_gates_last else shape
                shapes[variable] = convention.shapes.get(variable, usual)
    return shapes


def _lengths(units: int, inputs: int) -> dict[str, int]:
    """Give what the letters of a shape stand for."""
    of_units = {"H": units, "4H": 4 * units, "8H": 8 * units}
    return of_units | {"D": inputs, "D + H": inputs + units, "1": 1, "2": 2}


def _solved(
    convention: LSTMConvention,
    shapes: Mapping[str, Shape],
    arrays: Mapping[str, Floats],
) -> dict[str, int]:
    """Find H and D, and refuse a variable whose shape does not fit them."""
    recurrent, *_ = _shapes(convention, ["w_h"])
    inputs, *_ = _shapes(convention, ["w_x"])
    # Not strict: a wrong number of axes is refused below.
    of_h = dict(zip(shapes[recurrent], arrays[recurrent].shape, strict=False))
    of_x = dict(zip(shapes[inputs], arrays[inputs].shape, strict=False))
    h = max(1, of_h.get("H", of_h.get("4H", 0) // 4))
    d = max(1, of_x.get("D", of_x.get("D + H", 0) - h))
    lengths = _lengths(h, d)
    for name in dict.fromkeys([recurrent, inputs, *shapes]):
        shape, given = shapes[name], arrays[name].shape
        if given != tuple(lengths[n] for n in shape):
            letters = str(shape).replace("'", "")
            cure = (
                "of two directions pass [:1] of each variable, then [1:]."
                if "1" in shape
                else "are the gates on the other axis, or is it of another layer?"
            )
            raise ValueError(
                f"{name} must have shape {letters} with H = {h} by {recurrent} and "
                f"D = {d} by {inputs}, both at least 1, got {given}; {cure}"
            )
    return lengths


def _forget_bias(
    convention: LSTMConvention, framework: str, forget_bias: float | None
) -> float:
    """Give what is added at run time."""
    if forget_bias is None:
        return convention.forget_bias
    if not convention.forget_bias:
        raise ValueError(
            f"forget_bias must be left out for {framework}, which stores all its bias, "
            f"got {forget_bias!r}; only the cells of TensorFlow 1 add one at run time."
        )
    if not (isinstance(forget_bias, Real) and abs(forget_bias) <= sys.float_info.max):
        raise ValueError(
            f"forget_bias must be a finite number, got {forget_bias!r}; the cell "
            f"has {convention.forget_bias} by default."
        )
    return float(forget_bias)


def _reordered(rows: Floats, source: str, target: str) -> Floats:
    """Bring the four blocks of rows from one order of the gates into another."""
    blocks = dict(zip(source, np.split(rows, 4), strict=True))
    return np.concatenate([blocks[gate] for gate in target])


# --- mappings and arrays


def _of(table: Mapping[str, Convention], framework: str) -> Convention:
    """Give a row of a table."""
    if not (isinstance(framework, str) and framework in table):
        raise ValueError(
            f"framework must be one of {', '.join(table)}, got {framework!r}; for "
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
        names = [name for name, _ in pairs]
        raise ValueError(
            f"{what} must have each name once, got {', '.join(names)}; a name with a "
            "slash and nested mappings are the same."
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


def _check_names(
    what: str,
    given: Mapping[str, Any],
    needed: Iterable[str],
    known: Iterable[str] | None = None,
) -> None:
    """Refuse a mapping that lacks a name, or has one that nobody knows."""
    needed = list(needed)
    allowed = list(dict.fromkeys(needed if known is None else known))
    missing = [name for name in needed if name not in given]
    unknown = [name for name in given if name not in allowed]
    faults = [
        f"{word} {', '.join(names)}"
        for word, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    if faults:
        raise ValueError(
            f"{what} must have the names {', '.join(allowed)}, got "
            f"{', '.join(given) or 'none'}: {'; '.join(faults)}. Pass "
            f"{_CURES[what]}."
        )


def _floats(name: str, value: Any) -> Floats:
    """Give a copy of anything that NumPy can read, if it holds floats."""
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
