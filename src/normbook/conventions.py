r"""Conventions of other frameworks: batch norm and LSTM weights, read and written.

The same layer is stored in many ways. The names differ, the constant of the running
average is the weight of the old value here and of the new one there, the variance that
is averaged is biased or not, the four gates of an LSTM come in any order, as rows or as
columns. Numbers in the wrong convention load without an error wherever the shapes fit.

The tables `BATCH_NORM`, `LSTM` and `NORMALIZED_LSTM` hold what differs, one row for
each convention. The functions read a row: ``..._from_convention`` turns what a
framework stores into the form of this book, ``..._to_convention`` goes back. They take
anything that :func:`numpy.asarray` takes, and give new NumPy arrays of the same dtype.

A name with a slash stands for nested mappings: ``"ii/kernel"`` is
``variables["ii"]["kernel"]``. What was read, and in which version, stands in the book,
chapter *Framework conventions*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from normbook.lstm import Carried, LayerNormLSTMParameters, LSTMParameters, Normed
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
    framework : key of `BATCH_NORM`
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
        If ``variables`` or ``settings`` is no mapping, a value no array of
        floating-point numbers, or a setting no number.
    ValueError
        If the framework is unknown, a name is missing or unknown, a shape is not (C,),
        a variance negative, or a setting or ``count`` out of its range.

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
    arrays = {
        field: _floats(name, flat[name]) if name in flat else None
        for field, name in names.items()
    }
    _check_channels({names[f]: a for f, a in arrays.items() if a is not None})
    var = arrays["running_var"]
    assert var is not None  # noqa: S101  # its name was needed
    if not np.all(var >= 0):
        raise ValueError(
            f"{names['running_var']} must hold numbers >= 0, got {var}; is it another "
            "variable of the layer?"
        )
    if count is not None and not convention.is_unbiased:
        arrays["running_var"] = unbiased(var, count)
    return BatchNormState(
        **arrays,  # type: ignore[arg-type]
        momentum=_turned(convention, framework, given["momentum"]),
        eps=check_eps(given[convention.eps]),
    )


def batch_norm_to_convention(
    framework: str, state: BatchNormState, *, count: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    r"""Write a batch norm layer as another framework stores it.

    Parameters
    ----------
    framework : key of `BATCH_NORM`
    state : BatchNormState
    count : int, optional
        As in :func:`batch_norm_from_convention`; an unbiased running variance becomes
        a biased one where the framework averages such.

    Returns
    -------
    variables : dict
        Under the framework's names. Gain and bias are left out if the layer has none.
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
    if count is not None and not convention.is_unbiased:
        factor = unbiased(np.ones_like(good.running_var), count)
        good = good._replace(running_var=good.running_var / factor)
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
    weight = float(momentum) if isinstance(momentum, Real) else math.nan
    if not 0 <= weight <= 1:
        raise ValueError(
            f"momentum must lie in [0, 1], got {momentum!r}; it is the weight of the "
            f"{convention.momentum_weighs} value in {framework}, which has "
            f"{convention.default_momentum} by default."
        )
    # Without the dust of rounding: 1 - 0.99 is 0.01.
    return weight if convention.momentum_weighs == "new" else round(1 - weight, 15)


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
    norm, carried, eps
        Of cells with normalization: what is standardized before the gates and which c
        is carried on, as in :func:`normbook.lstm.layer_norm_lstm_forward`, and its ε.
    """

    gates: str
    names: dict[str, str]
    has_gates_last: bool = False
    forget_bias: float = 0.0
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
        "iofg", {"w_x": "W[0]", "w_h": "R[0]", "b": "B[:4H] + B[4H:]"}
    ),
    # nn.rnn_cell.BasicLSTMCell, and LSTMCell without its options
    "tensorflow1": LSTMConvention(
        "igfo",
        {"w_x": "kernel[:D]", "w_h": "kernel[D:]", "b": "bias"},
        has_gates_last=True,
        forget_bias=1.0,
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
    framework : key of `LSTM`
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
    framework : key of `LSTM`
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
    units = own["w_h"].shape[1]
    own.setdefault("b", np.zeros_like(own["w_h"][:, 0]))
    own["b"][:units] -= added
    parts: dict[str, Floats] = {}
    for field, value in own.items():
        rows = _reordered(value, GATES, convention.gates)
        if convention.has_gates_last:
            rows = rows.T
        terms = _terms(convention.names[field])
        for term in terms:
            blocks = np.split(rows / len(terms), len(term), axis=-1)
            parts |= dict(zip(term, blocks, strict=True))
    return _nested(_pack(framework, parts))


def normalized_lstm_from_convention(
    framework: str, variables: Mapping[str, Any], *, forget_bias: float | None = None
) -> LayerNormLSTMParameters:
    r"""Read the weights, gains and biases of an LSTM with normalization.

    What is normalized differs between these cells too, and no converter can change
    that: ``NORMALIZED_LSTM[framework]`` has the ``norm``, ``carried`` and ``eps`` with
    which :func:`normbook.lstm.layer_norm_lstm` is the same cell. The hats of
    "cooijmans" run over the batch, as in
    :class:`normbook.layers.batch_norm_lstm.BatchNormLSTM`.

    Parameters
    ----------
    framework : key of `NORMALIZED_LSTM`
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
    if framework == "kiros" and "b" in own and np.ptp(own["b"]) > 0:
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
    stored = {
        field: sorted({_stored(n) for term in _terms(names) for n in term})
        for field, names in convention.names.items()
    }
    has_bias = any(name in flat for name in stored.get("b", ()))
    used = {k: v for k, v in convention.names.items() if k != "b" or has_bias}
    needed = [name for field in used for name in stored[field]]
    _check_names("variables", flat, needed, [n for ns in stored.values() for n in ns])
    arrays = {name: _floats(name, value) for name, value in flat.items()}
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    if len(set(dtypes.values())) > 1:
        raise TypeError(
            f"the variables must have one dtype, got {dtypes}; convert them with "
            "astype."
        )
    parts = _unpack(framework, convention, arrays)
    units = _units(convention, parts)
    own = {}
    for field, names in used.items():
        terms = [
            np.concatenate(
                [_checked(convention, field, n, parts[n], units, term) for n in term],
                axis=-1,  # blocks are listed only where the gates come last
            )
            for term in _terms(names)
        ]
        total = sum(terms[1:], terms[0])
        rows = total.T if convention.has_gates_last else total
        is_of_gates = not field.endswith("_c")
        own[field] = _reordered(rows, convention.gates, GATES) if is_of_gates else rows
    if added:
        own.setdefault("b", np.zeros_like(own["w_h"][:, 0]))
        own["b"][:units] += added
    return own


def _units(convention: LSTMConvention, parts: Mapping[str, Floats]) -> int:
    """Give H, the length of the axis of the recurrent matrix that has no gates."""
    term = _terms(convention.names["w_h"])[0]
    name = term[0]
    if parts[name].ndim != 2 or 0 in parts[name].shape:
        raise ValueError(
            f"{name} must have two axes, and at least one unit, got shape "
            f"{parts[name].shape}; it is the recurrent matrix of one layer."
        )
    units = int(parts[name].shape[0 if convention.has_gates_last else 1])
    _checked(convention, "w_h", name, parts[name], units, term)
    return units


def _checked(
    convention: LSTMConvention,
    field: str,
    name: str,
    value: Floats,
    units: int,
    term: list[str],
) -> Floats:
    """Refuse a variable whose shape does not fit H units."""
    blocks = 1 if field.endswith("_c") else 4 // len(term)
    sizes: tuple[int | None, ...] = (blocks * units,)
    words = "H" if blocks == 1 else f"{blocks}H"
    meaning = f"({words},)"
    if field in ("w_x", "w_h"):
        other, letter = (None, "D") if field == "w_x" else (units, "H")
        sizes, meaning = (*sizes, other), f"({words}, {letter})"
        if convention.has_gates_last:
            sizes, meaning = sizes[::-1], f"({letter}, {words})"
    fits = value.ndim == len(sizes) and all(
        size in (None, length) for size, length in zip(sizes, value.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name} must have shape {meaning}, with H = {units} units by the "
            f"recurrent matrix, got {value.shape}; are the gates on the other axis, or "
            "is it of another layer?"
        )
    return value


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
    if not isinstance(forget_bias, Real):
        raise TypeError(f"forget_bias must be a number, got {forget_bias!r}.")
    return float(forget_bias)


def _reordered(rows: Floats, source: str, target: str) -> Floats:
    """Bring the four blocks of rows from one order of the gates into another."""
    blocks = dict(zip(source, np.split(rows, 4), strict=True))
    return np.concatenate([blocks[gate] for gate in target])


def _terms(names: str) -> list[list[str]]:
    """Read "a, b + c, d": two terms that are added, of two blocks each."""
    return [term.split(", ") for term in names.split(" + ")]


def _stored(name: str) -> str:
    """Give the variable of which a name like "kernel[:D]" is a part."""
    return name.partition("[")[0]


def _unpack(
    framework: str, convention: LSTMConvention, arrays: Mapping[str, Floats]
) -> dict[str, Floats]:
    """Cut the parts out that the table names."""
    parts = dict(arrays)
    if framework == "onnx":
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != 1:
                raise ValueError(
                    f"{name} must have a first axis of one direction, got shape "
                    f"{array.shape}; take [:1] of each variable, then [1:]."
                )
            parts[f"{name}[0]"] = array[0]
        if "B" in arrays:
            if arrays["B"].size % 8 or arrays["B"].ndim != 2:
                raise ValueError(
                    f"B must have shape (1, 8H), got {arrays['B'].shape}; the biases "
                    "of W come first, then those of R."
                )
            parts["B[:4H]"], parts["B[4H:]"] = np.split(arrays["B"][0], 2)
    if "kernel[:D]" in _terms(convention.names["w_x"])[0]:
        kernel = arrays["kernel"]
        inputs = kernel.shape[0] - kernel.shape[1] // 4 if kernel.ndim == 2 else 0
        if inputs < 1 or kernel.shape[1] % 4:
            raise ValueError(
                f"kernel must have shape (D + H, 4H), got {kernel.shape}; it has the "
                "rows of x first, then those of h."
            )
        parts["kernel[:D]"], parts["kernel[D:]"] = kernel[:inputs], kernel[inputs:]
    if convention.names.get("gamma_h") == "gamma[1]":
        gamma = arrays["gamma"]
        if gamma.ndim != 2 or len(gamma) != 2:
            raise ValueError(
                f"gamma must have shape (2, 4H), got {gamma.shape}; it has the gain of "
                "W_x x first, then that of W_h h."
            )
        parts["gamma[0]"], parts["gamma[1]"] = gamma
    return parts


def _pack(framework: str, parts: dict[str, Floats]) -> dict[str, Floats]:
    """Put the parts of a variable together again."""
    if framework == "onnx":
        b = np.concatenate([parts["B[:4H]"], parts["B[4H:]"]])
        return {"W": parts["W[0]"][None], "R": parts["R[0]"][None], "B": b[None]}
    if framework == "tensorflow1":
        kernel = np.concatenate([parts["kernel[:D]"], parts["kernel[D:]"]])
        return {"kernel": kernel, "bias": parts["bias"]}
    return parts


# --- mappings and arrays


def _of(table: Mapping[str, Convention], framework: str) -> Convention:
    """Give a row of a table."""
    if framework not in table:
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
            f"{type(variables).__name__}; for Keras that is "
            "{v.name: v.numpy() for v in layer.weights}."
        )
    flat: dict[str, Any] = {}
    for key, value in variables.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{k}": v for k, v in _flat(what, value).items()}
        else:
            flat[str(key)] = value
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
    if missing or unknown:
        raise ValueError(
            f"{what} must have the names {', '.join(allowed)}, got "
            f"{', '.join(given) or 'none'}: {_listed('missing', missing)}"
            f"{'; ' if missing and unknown else ''}{_listed('unknown', unknown)}. Pass "
            "what one layer has, in one direction, under these names."
        )


def _listed(word: str, names: list[str]) -> str:
    return f"{word} {', '.join(names)}" if names else ""


def _floats(name: str, value: Any) -> Floats:
    """Give a copy of anything that NumPy can read, if it holds floats."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be something that numpy.asarray takes, got "
            f"{type(value).__name__} ({error}); of a torch tensor pass "
            "tensor.detach().cpu()."
        ) from None
    if array.dtype.kind != "f":
        raise TypeError(
            f"{name} must hold real floating-point numbers that NumPy knows, got dtype "
            f"{array.dtype}; convert it, bfloat16 and whole numbers to float32."
        )
    return array.copy()
