r"""The LSTM, plain and with layer norm: over a sequence, forward and backward in time.

A sequence of T steps with N examples is an array ``x`` of shape (T, N, D); the state
``h`` of H units has shape (T, N, H). Rows of a pre-activation ``a`` of 4H numbers
belong to the gates in the order f, i, o, g: forget, input, output, candidate.

The *layer-normalized LSTM* of Ba, Kiros and Hinton (2016) is

.. math::

    a_t &= \gamma_h\,\widehat{W_h h_{t-1}} + \beta_h
         + \gamma_x\,\widehat{W_x x_t} + \beta_x + b, \\
    f, i, o &= \sigma(a_f), \sigma(a_i), \sigma(a_o), \qquad g = \tanh(a_g), \\
    c_t &= f\,c_{t-1} + i\,g, \qquad
    h_t = o\,\tanh(\gamma_c\,\hat c_t + \beta_c),

where a hat standardizes one example: over all 4H numbers of a pre-activation, over
the H numbers of c. The raw c goes on to the next step. Without hats, gains and betas
it is the plain LSTM. Other cells that bear the name in widely used code normalize the
sum, or each gate of it, or carry the normalized c on; they are here as options, since
with the same weights they compute something else.

Sequences of several lengths come *packed*: sorted by length, the longest first, the
steps one after the other, so that x has shape (M, D) with M the number of all steps,
and ``batch_sizes`` tells how many sequences are alive at each step.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from array_api_compat import array_namespace, device

from normbook.arrays import (
    Array,
    as_dtype,
    as_float32,
    check_eps,
    check_float_array,
    check_same_kind,
    check_same_shape,
)
from normbook.normalize import centre, scale, through

__all__ = [
    "Carried",
    "LSTMCache",
    "LSTMGradients",
    "LSTMOutput",
    "LSTMParameters",
    "LayerNormLSTMParameters",
    "LayerNormRNNParameters",
    "Normed",
    "RNNCache",
    "RNNGradients",
    "RNNOutput",
    "layer_norm_lstm",
    "layer_norm_lstm_backward",
    "layer_norm_lstm_forward",
    "layer_norm_lstm_step",
    "layer_norm_rnn",
    "layer_norm_rnn_backward",
    "layer_norm_rnn_forward",
    "layer_norm_rnn_step",
    "lstm",
    "lstm_backward",
    "lstm_forward",
    "lstm_step",
]

# What layer norm is applied to before the gates.
Normed = Literal["terms", "sum", "gates"]
Carried = Literal["raw", "normalized"]


class LSTMParameters(NamedTuple):
    """Weights of the plain LSTM; the rows belong to the gates f, i, o, g in turn."""

    w_x: Array  # (4H, D)
    w_h: Array  # (4H, H)
    b: Array | None = None  # (4H,), None stands for 0


class LayerNormLSTMParameters(NamedTuple):
    """Weights, gains and biases; None stands for a gain of 1 and a bias of 0.

    b, beta_h and beta_x are added to the same place: one of them is enough.
    """

    w_x: Array  # (4H, D)
    w_h: Array  # (4H, H)
    b: Array | None = None  # (4H,)
    gamma_h: Array | None = None  # (4H,), gain of W_h h, or of the sum
    beta_h: Array | None = None  # (4H,)
    gamma_x: Array | None = None  # (4H,), gain of W_x x
    beta_x: Array | None = None  # (4H,)
    gamma_c: Array | None = None  # (H,)
    beta_c: Array | None = None  # (H,)


class LayerNormRNNParameters(NamedTuple):
    """Weights, gain and bias; None stands for a gain of 1 and a bias of 0."""

    w_x: Array  # (H, D)
    w_h: Array  # (H, H)
    gamma: Array | None = None  # (H,)
    beta: Array | None = None  # (H,)


class LSTMOutput(NamedTuple):
    """States at each step, and behind the last step of each sequence."""

    h: Array  # (T, N, H), or (M, H) packed
    h_last: Array  # (N, H)
    c_last: Array  # (N, H)


class LSTMCache(NamedTuple):
    """What the backward pass needs; also what one likes to look at.

    Shapes are (T, N, ...), or (M, ...) packed. Without layer norm the hats and their
    inverse standard deviations are None.
    """

    x: Array
    h_0: Array
    c_0: Array
    h: Array  # (..., H)
    c: Array  # (..., H), the state that goes on to the next step
    f: Array  # (..., H)
    i: Array  # (..., H)
    o: Array  # (..., H)
    g: Array  # (..., H)
    tanh_u: Array  # (..., H), what o lets through
    p_hat: Array | None  # (..., 4H), of W_h h, or of the sum
    q_hat: Array | None  # (..., 4H), of W_x x
    c_hat: Array | None  # (..., H)
    inv_std_p: Array | None
    inv_std_q: Array | None
    inv_std_c: Array | None
    parameters: LSTMParameters | LayerNormLSTMParameters
    norm: Normed | None
    carried: Carried
    batch_sizes: tuple[int, ...]


class LSTMGradients(NamedTuple):
    """Gradients of the loss, each of the shape of what it belongs to.

    A gain or bias that was left out has its gradient too; only ``gamma_x`` and
    ``beta_x`` have none where the sum is normalized.
    """

    dl_dx: Array
    dl_dparameters: LSTMParameters | LayerNormLSTMParameters
    dl_dh_0: Array
    dl_dc_0: Array


class RNNOutput(NamedTuple):
    """States at each step, and behind the last step."""

    h: Array  # (T, N, H)
    h_last: Array  # (N, H)


class RNNCache(NamedTuple):
    """What the backward pass needs from the forward pass."""

    x: Array
    h_0: Array
    h: Array  # (T, N, H)
    a_hat: Array  # (T, N, H)
    inv_std: Array  # (T, N, 1)
    parameters: LayerNormRNNParameters


class RNNGradients(NamedTuple):
    """Gradients of the loss, each of the shape of what it belongs to."""

    dl_dx: Array
    dl_dparameters: LayerNormRNNParameters
    dl_dh_0: Array


def lstm_forward(
    x: Array,
    parameters: LSTMParameters,
    h_0: Array | None = None,
    c_0: Array | None = None,
    *,
    batch_sizes: Sequence[int] | None = None,
) -> tuple[LSTMOutput, LSTMCache]:
    r"""Run the plain LSTM over a sequence, and keep what the backward pass needs.

    .. math::

        a_t = W_h h_{t-1} + W_x x_t + b, \quad
        f, i, o = \sigma(a_f), \sigma(a_i), \sigma(a_o), \quad g = \tanh(a_g), \quad
        c_t = f\,c_{t-1} + i\,g, \quad h_t = o\,\tanh(c_t)

    Parameters
    ----------
    x : array of floats, shape (T, N, D)
        With ``batch_sizes`` of shape (M, D), packed.
    parameters : LSTMParameters
    h_0, c_0 : arrays, shape (N, H), optional
        The state before the first step; ``None`` stands for 0.
    batch_sizes : sequence of int, optional
        Sequences alive at each step: it never grows, begins with N and adds to M.

    Returns
    -------
    output : LSTMOutput
        ``h`` of shape (T, N, H), or (M, H) packed; ``h_last`` and ``c_last`` of
        shape (N, H) behind the last step of each sequence.
    cache : LSTMCache

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers, or they are of
        different kinds or dtypes.
    ValueError
        If a shape does not fit, there is no step, or batch_sizes is not what
        it must be.

    Notes
    -----
    Source: Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al.
    (2000); book, chapter *The LSTM*.

    Examples
    --------
    With all weights 0 each gate is half open and nothing comes in:

    >>> import numpy as np
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> x, c_0 = np.zeros((2, 1, 1)), np.array([[8.0]])
    >>> output, cache = lstm_forward(x, zeros, c_0=c_0)
    >>> cache.c.ravel(), cache.f.ravel()
    (array([4., 2.]), array([0.5, 0.5]))
    >>> bool(output.h_last == np.tanh(2.0) / 2)
    True
    """
    _check_kind(parameters, LSTMParameters)
    return _forward(x, parameters, h_0, c_0, batch_sizes, None, "raw", eps=0.0)


def lstm(
    x: Array,
    parameters: LSTMParameters,
    h_0: Array | None = None,
    c_0: Array | None = None,
    *,
    batch_sizes: Sequence[int] | None = None,
) -> LSTMOutput:
    r"""Run the plain LSTM over a sequence.

    Parameters, errors and source are those of :func:`lstm_forward`.

    Returns
    -------
    LSTMOutput

    Examples
    --------
    >>> import numpy as np
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> lstm(np.zeros((3, 1, 1)), zeros, c_0=np.array([[8.0]])).c_last
    array([[1.]])
    """
    return lstm_forward(x, parameters, h_0, c_0, batch_sizes=batch_sizes)[0]


def lstm_step(
    x_t: Array, parameters: LSTMParameters, h_prev: Array, c_prev: Array
) -> tuple[Array, Array]:
    r"""Run the plain LSTM one step on.

    The backward pass of a step is :func:`lstm_backward` of a sequence of one step.

    Parameters
    ----------
    x_t : array, shape (N, D)
    parameters : LSTMParameters
    h_prev, c_prev : arrays, shape (N, H)

    Returns
    -------
    h_t, c_t : arrays, shape (N, H)

    Raises
    ------
    TypeError, ValueError
        As :func:`lstm_forward`.

    Examples
    --------
    >>> import numpy as np
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> h_t, c_t = lstm_step(np.ones((1, 1)), zeros, np.ones((1, 1)), np.ones((1, 1)))
    >>> c_t
    array([[0.5]])
    """
    _check_rows("x_t", x_t)
    _, h_t, c_t = lstm(x_t[None, ...], parameters, h_prev, c_prev)
    return h_t, c_t


def lstm_backward(
    dl_dh: Array,
    cache: LSTMCache,
    dl_dh_last: Array | None = None,
    dl_dc_last: Array | None = None,
) -> LSTMGradients:
    r"""Gradients through the plain LSTM, backward through time.

    With :math:`\delta h_t` and :math:`\delta c_t` what arrives at step t from the
    loss and from the step behind it,

    .. math::

        \delta c_t &\mathrel{+}= \delta h_t\,o\,(1 - \tanh^2 c_t), \\
        \delta a_t &= \big[\delta c_t\,c_{t-1}\,f(1-f);\ \delta c_t\,g\,i(1-i);\
        \delta h_t \tanh c_t\,o(1-o);\ \delta c_t\,i\,(1-g^2)\big], \\
        \delta h_{t-1} &= W_h^\top \delta a_t, \qquad
        \delta c_{t-1} = \delta c_t\,f, \qquad
        \frac{\partial\ell}{\partial x_t} = W_x^\top \delta a_t, \\
        \frac{\partial\ell}{\partial W_h} &= \sum_t \delta a_t\,h_{t-1}^\top, \qquad
        \frac{\partial\ell}{\partial W_x} = \sum_t \delta a_t\,x_t^\top, \qquad
        \frac{\partial\ell}{\partial b} = \sum_t \delta a_t .

    Parameters
    ----------
    dl_dh : array
        Shape of ``h``: what the loss sends to the state of each step.
    cache : LSTMCache
        From :func:`lstm_forward`.
    dl_dh_last, dl_dc_last : arrays, shape (N, H), optional
        What arrives besides at the states behind the last step; ``None`` stands for 0.

    Returns
    -------
    LSTMGradients

    Raises
    ------
    TypeError
        If a gradient is no float array of the kind and dtype of x.
    ValueError
        If a gradient has another shape than its state, or the cache is of another
        cell.

    Notes
    -----
    Source: derived in the book, chapter *The LSTM*.

    Examples
    --------
    With all weights 0, half of what arrives at c goes back at each step:

    >>> import numpy as np
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> _, cache = lstm_forward(np.zeros((3, 1, 1)), zeros)
    >>> none, one = np.zeros((3, 1, 1)), np.ones((1, 1))
    >>> lstm_backward(none, cache, dl_dc_last=one).dl_dc_0
    array([[0.125]])
    """
    _check_cache(cache, LSTMParameters, "lstm_forward")
    return _backward(dl_dh, cache, dl_dh_last, dl_dc_last)


def layer_norm_lstm_forward(
    x: Array,
    parameters: LayerNormLSTMParameters,
    h_0: Array | None = None,
    c_0: Array | None = None,
    eps: float = 1e-5,
    *,
    norm: Normed = "terms",
    carried: Carried = "raw",
    batch_sizes: Sequence[int] | None = None,
) -> tuple[LSTMOutput, LSTMCache]:
    r"""Run the layer-normalized LSTM, and keep what the backward pass needs.

    .. math::

        a_t &= \gamma_h\,\hat p_t + \beta_h + \gamma_x\,\hat q_t + \beta_x + b, \qquad
        p_t = W_h h_{t-1}, \quad q_t = W_x x_t, \\
        f, i, o &= \sigma(a_f), \sigma(a_i), \sigma(a_o), \qquad g = \tanh(a_g), \\
        c_t &= f\,c_{t-1} + i\,g, \qquad
        h_t = o\,\tanh(\gamma_c\,\hat c_t + \beta_c)

    Parameters
    ----------
    x : array of floats, shape (T, N, D)
        With ``batch_sizes`` of shape (M, D), packed.
    parameters : LayerNormLSTMParameters
    h_0, c_0 : arrays, shape (N, H), optional
        The state before the first step; ``None`` stands for 0.
    eps : float
        Added to each variance, inside the root. With ``h_0`` = 0 the first
        :math:`W_h h` has variance 0, so it must not be 0 there.
    norm : "terms", "sum" or "gates"
        What is standardized before the gates: the two terms :math:`W_h h` and
        :math:`W_x x` each by itself, over all 4H numbers; their sum over all 4H
        numbers; or the H numbers of each gate in the sum. The last two have one gain
        and one bias, ``gamma_h`` and ``beta_h``.
    carried : "raw" or "normalized"
        What the next step takes for c: c itself, or
        :math:`\gamma_c\,\hat c_t + \beta_c`.
    batch_sizes : sequence of int, optional
        Sequences alive at each step: it never grows, begins with N and adds to M.

    Returns
    -------
    output : LSTMOutput
        ``h`` of shape (T, N, H), or (M, H) packed; ``h_last`` and ``c_last`` of
        shape (N, H) behind the last step of each sequence. ``c_last`` is what would
        be carried on.
    cache : LSTMCache

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers, or they are of
        different kinds or dtypes.
    ValueError
        If a shape does not fit, there is no step, eps is negative, an option is
        unknown, ``gamma_x`` or ``beta_x`` is given where the sum is normalized, or
        batch_sizes is not what it must be.

    Notes
    -----
    The statistics are those of one example at one step, so neither the other examples
    nor the length of the sequence have an influence.

    Source: Ba, Kiros and Hinton (2016), equations 20 to 22; book, chapter *Layer
    normalization in an LSTM*, for the other options too.

    Examples
    --------
    With weights of 0 each term is its own mean, and the hats are 0. Only c has
    a spread; at each step it halves, and h does not notice:

    >>> import numpy as np
    >>> zeros = LayerNormLSTMParameters(w_x=np.zeros((8, 1)), w_h=np.zeros((8, 2)))
    >>> c_0 = np.array([[8.0, 16.0]])
    >>> _, cache = layer_norm_lstm_forward(np.ones((2, 1, 1)), zeros, c_0=c_0)
    >>> cache.c[:, 0]
    array([[4., 8.],
           [2., 4.]])
    >>> np.round(cache.h[:, 0] / np.tanh(1.0), 4)
    array([[-0.5,  0.5],
           [-0.5,  0.5]])
    """
    _check_kind(parameters, LayerNormLSTMParameters)
    eps = check_eps(eps)
    for name, value, options in (
        ("norm", norm, get_args(Normed)),
        ("carried", carried, get_args(Carried)),
    ):
        if value not in options:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}."
            )
    if norm != "terms" and not (parameters.gamma_x is None is parameters.beta_x):
        raise ValueError(
            f"gamma_x and beta_x must be None with norm={norm!r}, which normalizes the "
            "sum of both terms, got an array; gamma_h and beta_h act on the sum."
        )
    return _forward(x, parameters, h_0, c_0, batch_sizes, norm, carried, eps)


def layer_norm_lstm(
    x: Array,
    parameters: LayerNormLSTMParameters,
    h_0: Array | None = None,
    c_0: Array | None = None,
    eps: float = 1e-5,
    *,
    norm: Normed = "terms",
    carried: Carried = "raw",
    batch_sizes: Sequence[int] | None = None,
) -> LSTMOutput:
    r"""Run the layer-normalized LSTM over a sequence.

    Parameters, errors and source are those of :func:`layer_norm_lstm_forward`.

    Returns
    -------
    LSTMOutput

    Examples
    --------
    >>> import numpy as np
    >>> zeros = LayerNormLSTMParameters(w_x=np.zeros((8, 1)), w_h=np.zeros((8, 2)))
    >>> c_0 = np.array([[8.0, 16.0]])
    >>> x = np.ones((3, 1, 1))
    >>> layer_norm_lstm(x, zeros, c_0=c_0).c_last
    array([[1., 2.]])
    >>> output = layer_norm_lstm(x, zeros, c_0=c_0, carried="normalized")
    >>> np.round(output.c_last, 3)
    array([[-1.,  1.]])
    """
    return layer_norm_lstm_forward(
        x,
        parameters,
        h_0,
        c_0,
        eps,
        norm=norm,
        carried=carried,
        batch_sizes=batch_sizes,
    )[0]


def layer_norm_lstm_step(
    x_t: Array,
    parameters: LayerNormLSTMParameters,
    h_prev: Array,
    c_prev: Array,
    eps: float = 1e-5,
    *,
    norm: Normed = "terms",
    carried: Carried = "raw",
) -> tuple[Array, Array]:
    r"""Run the layer-normalized LSTM one step on.

    The backward pass of a step is :func:`layer_norm_lstm_backward` of a sequence of
    one step. Options, errors and source are those of :func:`layer_norm_lstm_forward`.

    Parameters
    ----------
    x_t : array, shape (N, D)
    parameters : LayerNormLSTMParameters
    h_prev, c_prev : arrays, shape (N, H)
    eps : float
    norm : "terms", "sum" or "gates"
    carried : "raw" or "normalized"

    Returns
    -------
    h_t, c_t : arrays, shape (N, H)
        ``c_t`` is what the next step takes for ``c_prev``.

    Examples
    --------
    >>> import numpy as np
    >>> zeros = LayerNormLSTMParameters(w_x=np.zeros((8, 1)), w_h=np.zeros((8, 2)))
    >>> c_prev = np.array([[8.0, 16.0]])
    >>> layer_norm_lstm_step(np.ones((1, 1)), zeros, np.zeros((1, 2)), c_prev)[1]
    array([[4., 8.]])
    """
    _check_rows("x_t", x_t)
    _, h_t, c_t = layer_norm_lstm(
        x_t[None, ...], parameters, h_prev, c_prev, eps, norm=norm, carried=carried
    )
    return h_t, c_t


def layer_norm_lstm_backward(
    dl_dh: Array,
    cache: LSTMCache,
    dl_dh_last: Array | None = None,
    dl_dc_last: Array | None = None,
) -> LSTMGradients:
    r"""Gradients through the layer-normalized LSTM, backward through time.

    Let :math:`N_z^\top v = (v - \bar v - \hat z\,\overline{v\hat z})/s_z`, with s the
    root of variance plus eps: the way back through a hat. With :math:`u_t = \gamma_c
    \hat c_t + \beta_c`, and :math:`\delta h_t`, :math:`\delta c_t` what arrives at
    step t from the loss and from the step behind it,

    .. math::

        \delta u_t &= \delta h_t\,o\,(1 - \tanh^2 u_t), \qquad
        \delta c_t \mathrel{+}= N_c^\top(\gamma_c\,\delta u_t), \\
        \delta a_t &= \big[\delta c_t\,c_{t-1}\,f(1-f);\ \delta c_t\,g\,i(1-i);\
        \delta h_t \tanh u_t\,o(1-o);\ \delta c_t\,i\,(1-g^2)\big], \\
        \delta p_t &= N_p^\top(\gamma_h\,\delta a_t), \qquad
        \delta q_t = N_q^\top(\gamma_x\,\delta a_t), \\
        \delta h_{t-1} &= W_h^\top \delta p_t, \qquad
        \delta c_{t-1} = \delta c_t\,f, \qquad
        \frac{\partial\ell}{\partial x_t} = W_x^\top \delta q_t, \\
        \frac{\partial\ell}{\partial W_h} &= \sum_t \delta p_t\,h_{t-1}^\top, \qquad
        \frac{\partial\ell}{\partial W_x} = \sum_t \delta q_t\,x_t^\top, \qquad
        \frac{\partial\ell}{\partial\gamma_h} = \sum_t \delta a_t\,\hat p_t, \qquad
        \frac{\partial\ell}{\partial\gamma_x} = \sum_t \delta a_t\,\hat q_t, \\
        \frac{\partial\ell}{\partial\beta_h} &= \frac{\partial\ell}{\partial\beta_x}
        = \frac{\partial\ell}{\partial b} = \sum_t \delta a_t, \qquad
        \frac{\partial\ell}{\partial\gamma_c} = \sum_t \delta u_t\,\hat c_t, \qquad
        \frac{\partial\ell}{\partial\beta_c} = \sum_t \delta u_t .

    Where the sum is normalized, :math:`\delta q_t = \delta p_t`. Where the normalized
    c is carried, what comes from the step behind arrives at u and not at c.

    Parameters
    ----------
    dl_dh : array
        Shape of ``h``: what the loss sends to the state of each step.
    cache : LSTMCache
        From :func:`layer_norm_lstm_forward`.
    dl_dh_last, dl_dc_last : arrays, shape (N, H), optional
        What arrives besides at the states behind the last step; ``None`` stands for 0.

    Returns
    -------
    LSTMGradients

    Raises
    ------
    TypeError
        If a gradient is no float array of the kind and dtype of x.
    ValueError
        If a gradient has another shape than its state, or the cache is of another
        cell.

    Notes
    -----
    Source: derived in the book, chapter *Layer normalization in an LSTM*.

    Examples
    --------
    What arrives at the raw c goes back as in the plain LSTM: half at each step.

    >>> import numpy as np
    >>> zeros = LayerNormLSTMParameters(w_x=np.zeros((8, 1)), w_h=np.zeros((8, 2)))
    >>> _, cache = layer_norm_lstm_forward(np.ones((3, 1, 1)), zeros)
    >>> none, some = np.zeros((3, 1, 2)), np.array([[8.0, 0.0]])
    >>> layer_norm_lstm_backward(none, cache, dl_dc_last=some).dl_dc_0
    array([[1., 0.]])
    """
    _check_cache(cache, LayerNormLSTMParameters, "layer_norm_lstm_forward")
    return _backward(dl_dh, cache, dl_dh_last, dl_dc_last)


def layer_norm_rnn_forward(
    x: Array,
    parameters: LayerNormRNNParameters,
    h_0: Array | None = None,
    eps: float = 1e-5,
) -> tuple[RNNOutput, RNNCache]:
    r"""Run the simple recurrent network with layer norm of the sum.

    .. math:: h_t = \tanh(\gamma\,\hat a_t + \beta), \qquad a_t = W_h h_{t-1} + W_x x_t

    Parameters
    ----------
    x : array of floats, shape (T, N, D)
    parameters : LayerNormRNNParameters
    h_0 : array, shape (N, H), optional
        The state before the first step; ``None`` stands for 0.
    eps : float
        Added to the variance, inside the root.

    Returns
    -------
    output : RNNOutput
        ``h`` of shape (T, N, H), ``h_last`` of shape (N, H).
    cache : RNNCache

    Raises
    ------
    TypeError
        If an argument is not an array of real floating-point numbers, or they are of
        different kinds or dtypes.
    ValueError
        If a shape does not fit, there is no step, or eps is negative.

    Notes
    -----
    Source: Ba, Kiros and Hinton (2016), equation 4; book, chapter *Layer normalization
    in an LSTM*.

    Examples
    --------
    Two units that get 1 and 3 are one standard deviation below and above their mean:

    >>> import numpy as np
    >>> parameters = LayerNormRNNParameters(np.array([[1.0], [3.0]]), np.zeros((2, 2)))
    >>> output, _ = layer_norm_rnn_forward(np.ones((1, 1, 1)), parameters, eps=0.0)
    >>> output.h_last / np.tanh(1.0)
    array([[-1.,  1.]])
    """
    _check_kind(parameters, LayerNormRNNParameters)
    eps = check_eps(eps)
    x, h_0, _, sizes = _checked(x, parameters, h_0, None, None)
    xp = array_namespace(x)
    w_x, w_h, gamma, beta = parameters
    q = _rows(x) @ xp.matrix_transpose(w_x)
    w_h_t = xp.matrix_transpose(w_h)
    h = h_0
    kept: list[tuple[Array, ...]] = []
    for rows in _steps(sizes):
        a_hat, inv_std = _standardize(h @ w_h_t + q[rows, :], eps)
        h = xp.tanh(_affine(a_hat, gamma, beta))
        kept.append((h, a_hat, inv_std))
    states, a_hat, inv_std = (xp.stack(values) for values in zip(*kept, strict=True))
    cache = RNNCache(x, h_0, states, a_hat, inv_std, parameters)
    return RNNOutput(cache.h, h), cache


def layer_norm_rnn(
    x: Array,
    parameters: LayerNormRNNParameters,
    h_0: Array | None = None,
    eps: float = 1e-5,
) -> RNNOutput:
    r"""Run the simple recurrent network with layer norm of the sum.

    Parameters, errors and source are those of :func:`layer_norm_rnn_forward`.

    Returns
    -------
    RNNOutput

    Examples
    --------
    >>> import numpy as np
    >>> parameters = LayerNormRNNParameters(np.array([[1.0], [3.0]]), np.zeros((2, 2)))
    >>> layer_norm_rnn(np.ones((5, 1, 1)), parameters, eps=0.0).h.shape
    (5, 1, 2)
    """
    return layer_norm_rnn_forward(x, parameters, h_0, eps)[0]


def layer_norm_rnn_step(
    x_t: Array,
    parameters: LayerNormRNNParameters,
    h_prev: Array,
    eps: float = 1e-5,
) -> Array:
    r"""Run the simple recurrent network with layer norm one step on.

    Parameters
    ----------
    x_t : array, shape (N, D)
    parameters : LayerNormRNNParameters
    h_prev : array, shape (N, H)
    eps : float

    Returns
    -------
    h_t : array, shape (N, H)

    Raises
    ------
    TypeError, ValueError
        As :func:`layer_norm_rnn_forward`.

    Examples
    --------
    >>> import numpy as np
    >>> parameters = LayerNormRNNParameters(np.array([[1.0], [3.0]]), np.zeros((2, 2)))
    >>> h_t = layer_norm_rnn_step(np.ones((1, 1)), parameters, np.zeros((1, 2)), 0.0)
    >>> h_t / np.tanh(1.0)
    array([[-1.,  1.]])
    """
    _check_rows("x_t", x_t)
    return layer_norm_rnn(x_t[None, ...], parameters, h_prev, eps).h_last


def layer_norm_rnn_backward(
    dl_dh: Array, cache: RNNCache, dl_dh_last: Array | None = None
) -> RNNGradients:
    r"""Gradients through the simple recurrent network with layer norm.

    With :math:`\delta h_t` what arrives at step t from the loss and from the step
    behind it, and :math:`N^\top` the way back through the hat,

    .. math::

        \delta u_t = \delta h_t\,(1 - h_t^2), \qquad
        \delta a_t = N^\top(\gamma\,\delta u_t), \qquad
        \delta h_{t-1} = W_h^\top\delta a_t, \qquad
        \frac{\partial\ell}{\partial\gamma} = \sum_t \delta u_t\,\hat a_t .

    Parameters
    ----------
    dl_dh : array
        Shape of ``h``: what the loss sends to the state of each step.
    cache : RNNCache
        From :func:`layer_norm_rnn_forward`.
    dl_dh_last : array, shape (N, H), optional
        What arrives besides at the last state; ``None`` stands for 0.

    Returns
    -------
    RNNGradients

    Raises
    ------
    TypeError
        If a gradient is no float array of the kind and dtype of x.
    ValueError
        If a gradient has another shape than its state, or the cache is of another
        cell.

    Examples
    --------
    Two units and eps = 0: nothing reaches the weights, but the biases do learn.

    >>> import numpy as np
    >>> parameters = LayerNormRNNParameters(np.array([[1.0], [3.0]]), np.zeros((2, 2)))
    >>> _, cache = layer_norm_rnn_forward(np.ones((1, 1, 1)), parameters, eps=0.0)
    >>> gradients = layer_norm_rnn_backward(np.ones((1, 1, 2)), cache)
    >>> float(abs(gradients.dl_dparameters.w_x).max())
    0.0
    >>> gradients.dl_dparameters.beta / (1 - np.tanh(1.0) ** 2)
    array([1., 1.])
    """
    _check_cache(cache, LayerNormRNNParameters, "layer_norm_rnn_forward")
    x, h_0, h, a_hat, inv_std, parameters = cache
    _check_gradient("dl_dh", dl_dh, "h", h)
    arriving = 0
    if dl_dh_last is not None:
        _check_gradient("dl_dh_last", dl_dh_last, "h_last", h_0)
        arriving = dl_dh_last
    xp = array_namespace(x)
    w_x, w_h, gamma, _ = parameters
    dl_das, dl_dus = [], []
    for t in reversed(range(h.shape[0])):
        dl_du = (dl_dh[t, ...] + arriving) * (1 - h[t, ...] ** 2)
        dl_da = _through(dl_du, gamma, a_hat[t, ...], inv_std[t, ...])
        arriving = dl_da @ w_h
        dl_dus.append(dl_du)
        dl_das.append(dl_da)
    dl_da = xp.concat(dl_das[::-1])
    dl_du = xp.concat(dl_dus[::-1])
    before = xp.concat([h_0, _rows(h[:-1, ...])])
    dl_da_t = xp.matrix_transpose(dl_da)
    own = LayerNormRNNParameters(
        w_x=dl_da_t @ _rows(x),
        w_h=dl_da_t @ before,
        gamma=xp.sum(dl_du * _rows(a_hat), axis=0),
        beta=xp.sum(dl_du, axis=0),
    )
    return RNNGradients(xp.reshape(dl_da @ w_x, x.shape), own, arriving)


def _forward(
    x: Array,
    parameters: LSTMParameters | LayerNormLSTMParameters,
    h_0: Array | None,
    c_0: Array | None,
    batch_sizes: Sequence[int] | None,
    norm: Normed | None,
    carried: Carried,
    eps: float,
) -> tuple[LSTMOutput, LSTMCache]:
    """Run any of the cells; without ``norm``, the plain one."""
    x, h_0, c_0, sizes = _checked(x, parameters, h_0, c_0, batch_sizes)
    xp = array_namespace(x)
    units = parameters.w_h.shape[1]
    own = _with_all_fields(parameters)
    # All that does not wait for h is done for all steps at once.
    q = _rows(x) @ xp.matrix_transpose(own.w_x)
    q_hat = inv_std_q = None
    bias = _total(own.b, own.beta_h, own.beta_x)
    if norm == "terms":
        q_hat, inv_std_q = _standardize(q, eps)
        q = _affine(q_hat, own.gamma_x, bias)
    elif norm is None:
        q = _affine(q, None, bias)
    w_h_t = xp.matrix_transpose(own.w_h)
    h, c = h_0, c_0
    h_last, c_last = [], []
    kept: list[tuple[Array, ...]] = []
    for rows in _steps(sizes):
        alive = rows.stop - rows.start
        if alive < h.shape[0]:  # those behind have ended
            h_last.append(h[alive:, :])
            c_last.append(c[alive:, :])
            h, c = h[:alive, :], c[:alive, :]
        p_hat = inv_std_p = c_hat = inv_std_c = None
        a = h @ w_h_t
        if norm == "terms":
            p_hat, inv_std_p = _standardize(a, eps)
            a = _affine(p_hat, own.gamma_h, q[rows, :])
        else:
            a = a + q[rows, :]
            if norm is not None:
                p_hat, inv_std_p = _standardize(a, eps, 4 if norm == "gates" else 1)
                a = _affine(p_hat, own.gamma_h, bias)
        fio, g = _sigmoid(a[:, : 3 * units]), xp.tanh(a[:, 3 * units :])
        f, i, o = (fio[:, k * units : (k + 1) * units] for k in range(3))
        c = f * c + i * g
        u = c
        if norm is not None:
            c_hat, inv_std_c = _standardize(c, eps)
            u = _affine(c_hat, own.gamma_c, own.beta_c)
            c = u if carried == "normalized" else c
        tanh_u = xp.tanh(u)
        h = o * tanh_u
        kept.append((h, c, f, i, o, g, tanh_u, p_hat, c_hat, inv_std_p, inv_std_c))
    lead = tuple(x.shape[:-1])

    def whole(values: Sequence[Array | None]) -> Array | None:
        return None if values[0] is None else _shaped(xp.concat(values), lead)

    h_all, c_all, f, i, o, g, tanh_u, p_hat, c_hat, inv_std_p, inv_std_c = (
        whole(values) for values in zip(*kept, strict=True)
    )
    cache = LSTMCache(
        x=x,
        h_0=h_0,
        c_0=c_0,
        h=h_all,
        c=c_all,
        f=f,
        i=i,
        o=o,
        g=g,
        tanh_u=tanh_u,
        p_hat=p_hat,
        q_hat=None if q_hat is None else _shaped(q_hat, lead),
        c_hat=c_hat,
        inv_std_p=inv_std_p,
        inv_std_q=None if inv_std_q is None else _shaped(inv_std_q, lead),
        inv_std_c=inv_std_c,
        parameters=parameters,
        norm=norm,
        carried=carried,
        batch_sizes=sizes,
    )
    h_last, c_last = (xp.concat([s, *e[::-1]]) for s, e in ((h, h_last), (c, c_last)))
    return LSTMOutput(h_all, h_last, c_last), cache


def _backward(
    dl_dh: Array,
    cache: LSTMCache,
    dl_dh_last: Array | None,
    dl_dc_last: Array | None,
) -> LSTMGradients:
    """Go back in time through any of the cells."""
    _check_gradient("dl_dh", dl_dh, "h", cache.h)
    xp = array_namespace(dl_dh, cache.h)
    ends: dict[str, Array] = {"dl_dh_last": dl_dh_last, "dl_dc_last": dl_dc_last}
    for name, value in ends.items():
        if value is None:
            ends[name] = xp.zeros_like(cache.h_0)
        else:
            _check_gradient(name, value, name.removeprefix("dl_d"), cache.h_0)
    own = _with_all_fields(cache.parameters)
    x, h, c, dl_dh = (_rows(value) for value in (cache.x, cache.h, cache.c, dl_dh))
    f, i, o, g = (_rows(value) for value in (cache.f, cache.i, cache.o, cache.g))
    tanh_u = _rows(cache.tanh_u)
    has_norm = cache.norm is not None
    is_normalized_carried = cache.carried == "normalized"
    if has_norm:
        p_hat, inv_std_p = _rows(cache.p_hat), _rows(cache.inv_std_p, cache.norm)
        c_hat, inv_std_c = _rows(cache.c_hat), _rows(cache.inv_std_c)
    sizes = cache.batch_sizes
    h_prev, c_prev = _before(h, cache.h_0, sizes), _before(c, cache.c_0, sizes)
    # The derivatives of the gates wait for nothing: all steps at once.
    through_u = o * (1 - tanh_u * tanh_u)
    through_a = xp.concat(
        [
            c_prev * f * (1 - f),
            g * i * (1 - i),
            tanh_u * o * (1 - o),
            i * (1 - g * g),
        ],
        axis=1,
    )
    kept: list[tuple[Array, ...]] = []
    alive = sizes[-1]
    from_h, from_c = (value[:alive, :] for value in ends.values())
    for rows in reversed(list(_steps(sizes))):
        size = rows.stop - rows.start
        if size > alive:  # here others end
            last_h, last_c = (value[alive:size, :] for value in ends.values())
            from_h, from_c = xp.concat([from_h, last_h]), xp.concat([from_c, last_c])
            alive = size
        dl_dh_t = dl_dh[rows, :] + from_h
        dl_du = dl_dh_t * through_u[rows, :]
        dl_dc = from_c
        if has_norm:
            if is_normalized_carried:
                dl_du, dl_dc = dl_du + from_c, 0
            dl_dc = dl_dc + _through(
                dl_du, own.gamma_c, c_hat[rows, :], inv_std_c[rows, :]
            )
        else:
            dl_dc = dl_dc + dl_du
        dl_da = through_a[rows, :] * xp.concat([dl_dc, dl_dc, dl_dh_t, dl_dc], axis=1)
        dl_dp = dl_da
        if has_norm:
            dl_dp = _through(dl_da, own.gamma_h, p_hat[rows, :], inv_std_p[rows, ...])
        from_h, from_c = dl_dp @ own.w_h, dl_dc * f[rows, :]
        kept.append((dl_da, dl_dp, dl_du))
    dl_da, dl_dp, dl_du = (
        xp.concat(values[::-1]) for values in zip(*kept, strict=True)
    )
    dl_dq = dl_dp
    if cache.norm == "terms":
        dl_dq = _through(dl_da, own.gamma_x, _rows(cache.q_hat), _rows(cache.inv_std_q))
    dl_db = xp.sum(dl_da, axis=0)
    gradients: LSTMParameters | LayerNormLSTMParameters = LSTMParameters(
        w_x=xp.matrix_transpose(dl_dq) @ x,
        w_h=xp.matrix_transpose(dl_dp) @ h_prev,
        b=dl_db,
    )
    if has_norm:
        has_terms = cache.norm == "terms"
        gradients = LayerNormLSTMParameters(
            w_x=gradients.w_x,
            w_h=gradients.w_h,
            b=dl_db,
            gamma_h=xp.sum(dl_da * p_hat, axis=0),
            beta_h=dl_db,
            gamma_x=xp.sum(dl_da * _rows(cache.q_hat), axis=0) if has_terms else None,
            beta_x=dl_db if has_terms else None,
            gamma_c=xp.sum(dl_du * c_hat, axis=0),
            beta_c=xp.sum(dl_du, axis=0),
        )
    dl_dx = _shaped(dl_dq @ own.w_x, tuple(cache.x.shape[:-1]))
    return LSTMGradients(dl_dx, gradients, from_h, from_c)


def _standardize(x: Array, eps: float, groups: int = 1) -> tuple[Array, Array]:
    """Standardize each row, or each of so many equal parts of a row.

    Gives the hats and 1 / sqrt(var + eps), of shape (M, 1), or (M, groups, 1).
    """
    xp = array_namespace(x)
    shape = (x.shape[0], groups, x.shape[1] // groups)
    parts = x if groups == 1 else xp.reshape(x, shape)
    x_hat, _, inv_std = scale(centre(as_float32(parts), -1)[0], -1, eps)
    return xp.reshape(as_dtype(x_hat, x.dtype), x.shape), inv_std


def _through(dl_dy: Array, gamma: Array | None, x_hat: Array, inv_std: Array) -> Array:
    """Go back through gain and hat; the parts are those that inv_std has."""
    dl_dx_hat = dl_dy if gamma is None else dl_dy * gamma
    if inv_std.ndim == 2:
        return as_dtype(through(dl_dx_hat, x_hat, inv_std, -1), dl_dy.dtype)
    xp = array_namespace(dl_dy)
    groups = inv_std.shape[1]
    shape = (dl_dy.shape[0], groups, dl_dy.shape[1] // groups)
    dl_dx_hat, x_hat = xp.reshape(dl_dx_hat, shape), xp.reshape(x_hat, shape)
    dl_dx = as_dtype(through(dl_dx_hat, x_hat, inv_std, -1), dl_dy.dtype)
    return xp.reshape(dl_dx, dl_dy.shape)


def _affine(x_hat: Array, gamma: Array | None, beta: Array | None) -> Array:
    y = x_hat if gamma is None else gamma * x_hat
    return y if beta is None else y + beta


def _total(*biases: Array | None) -> Array | None:
    """Add the biases that there are."""
    given = [bias for bias in biases if bias is not None]
    return sum(given[1:], given[0]) if given else None


def _sigmoid(a: Array) -> Array:
    """Give 1 / (1 + exp(-a)), which overflows for no a."""
    xp = array_namespace(a)
    # torch has a faster one; the array API standard has none.
    own = getattr(xp, "sigmoid", None)
    return 0.5 + 0.5 * xp.tanh(0.5 * a) if own is None else own(a)


def _steps(batch_sizes: tuple[int, ...]) -> Iterator[slice]:
    """Give the rows of each step in turn."""
    ends = itertools.accumulate(batch_sizes)
    for size, end in zip(batch_sizes, ends, strict=True):
        yield slice(end - size, end)


def _before(states: Array, first: Array, batch_sizes: tuple[int, ...]) -> Array:
    """Give in each row the state that its step began with."""
    xp = array_namespace(states)
    parts = [first]
    for rows, alive in zip(_steps(batch_sizes), batch_sizes[1:], strict=False):
        parts.append(states[rows.start : rows.start + alive, :])
    return xp.concat(parts)


def _rows(value: Array, norm: Normed | None = None) -> Array:
    """Put the steps one after the other; per gate, a statistic has an axis more."""
    xp = array_namespace(value)
    own = 2 if norm == "gates" else 1
    return xp.reshape(value, (-1, *value.shape[-own:]))


def _shaped(rows: Array, lead: tuple[int, ...]) -> Array:
    """Give rows the leading axes of x again."""
    xp = array_namespace(rows)
    return xp.reshape(rows, (*lead, *rows.shape[1:]))


def _with_all_fields(
    parameters: LSTMParameters | LayerNormLSTMParameters,
) -> LayerNormLSTMParameters:
    return LayerNormLSTMParameters(*parameters)


def _check_kind(parameters: object, kind: type) -> None:
    """Refuse the weights of another cell."""
    if not isinstance(parameters, kind):
        raise TypeError(
            f"parameters must be {kind.__name__}, got {type(parameters).__name__}; "
            f"build {kind.__name__}(w_x=..., w_h=...)."
        )


def _checked(
    x: Array,
    parameters: LSTMParameters | LayerNormLSTMParameters | LayerNormRNNParameters,
    h_0: Array | None,
    c_0: Array | None,
    batch_sizes: Sequence[int] | None,
) -> tuple[Array, Array, Array, tuple[int, ...]]:
    """Check all that comes in; give x, both states and the batch sizes."""
    check_float_array("x", x)
    axes = "(T, N, D)" if batch_sizes is None else "(M, D)"
    if x.ndim != axes.count(",") + 1:
        raise ValueError(
            f"x must have shape {axes}, got {tuple(x.shape)}; "
            + (
                "a single sequence is x[:, None, :]."
                if batch_sizes is None
                else "with batch_sizes the steps come one after the other."
            )
        )
    sizes = _sizes(x, batch_sizes)
    features, examples = x.shape[-1], sizes[0]
    if features == 0:
        raise ValueError(
            f"x must have at least one feature, got shape {tuple(x.shape)}; the last "
            "axis holds the features."
        )
    check_float_array("w_h", parameters.w_h)
    if parameters.w_h.ndim != 2 or parameters.w_h.shape[1] == 0:
        raise ValueError(
            "w_h must have two axes, the second with the H >= 1 units, got shape "
            f"{tuple(parameters.w_h.shape)}."
        )
    units = parameters.w_h.shape[1]
    is_rnn = isinstance(parameters, LayerNormRNNParameters)
    rows = units if is_rnn else 4 * units
    name = "H" if is_rnn else "4H"
    for field, value in parameters._asdict().items():
        if value is None and field not in ("w_x", "w_h"):
            continue
        expected, meaning = {
            "w_x": ((rows, features), f"({name}, D)"),
            "w_h": ((rows, units), f"({name}, H)"),
            "gamma_c": ((units,), "(H,)"),
            "beta_c": ((units,), "(H,)"),
        }.get(field, ((rows,), f"({name},)"))
        _check_like(field, value, x, expected, meaning)
    xp = array_namespace(x)
    zeros = xp.zeros((examples, units), dtype=x.dtype, device=device(x))
    states = []
    for field, value in (("h_0", h_0), ("c_0", c_0)):
        if value is None:
            value = zeros
        else:
            _check_like(field, value, x, (examples, units), "(N, H)")
        states.append(value)
    return x, states[0], states[1], sizes


def _sizes(x: Array, batch_sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Give the number of sequences alive at each step."""
    if batch_sizes is None:
        sizes: tuple[int, ...] = (x.shape[1],) * x.shape[0]
    else:
        try:
            sizes = tuple(operator.index(size) for size in batch_sizes)
        except TypeError:
            raise TypeError(
                "batch_sizes must be a sequence of whole numbers, got "
                f"{batch_sizes!r}; the steps at which each sequence ends are counted."
            ) from None
        if (
            any(a < b for a, b in itertools.pairwise(sizes))
            or min(sizes, default=1) < 1
        ):
            raise ValueError(
                f"batch_sizes must not grow and be at least 1, got {sizes}; sort the "
                "sequences by length, the longest first."
            )
        if sum(sizes) != x.shape[0]:
            raise ValueError(
                f"batch_sizes must add to the rows of x, {x.shape[0]}, got {sizes}, "
                f"which adds to {sum(sizes)}; count the sequences alive at each step."
            )
    if not sizes:
        raise ValueError(
            f"x must hold at least one step, got shape {tuple(x.shape)}; leave empty "
            "sequences out."
        )
    return sizes


def _check_like(
    name: str, value: Array, x: Array, expected: tuple[int, ...], meaning: str
) -> None:
    """Refuse what is not of the kind and dtype of x, or has not this shape."""
    check_float_array(name, value)
    check_same_kind(name, value, "x", x)
    _check_same_dtype(name, value, "x", x)
    if tuple(value.shape) != expected:
        raise ValueError(
            f"{name} must have shape {meaning} = {expected}, got {tuple(value.shape)}; "
            "w_h has H columns, x has D features."
        )


def _check_same_dtype(name: str, a: Array, other: str, b: Array) -> None:
    if a.dtype != b.dtype:
        raise TypeError(
            f"{name} must have the dtype of {other}, {b.dtype}, got {a.dtype}; convert "
            "one of them."
        )


def _check_rows(name: str, x: Array) -> None:
    check_float_array(name, x)
    if x.ndim != 2:
        raise ValueError(
            f"{name} must have shape (N, D), got {tuple(x.shape)}; a single example is "
            f"{name}[None, :]."
        )


def _check_gradient(name: str, value: Array, other: str, state: Array) -> None:
    check_float_array(name, value)
    check_same_kind(name, value, other, state)
    check_same_shape(name, value, other, state)
    _check_same_dtype(name, value, other, state)


def _check_cache(cache: object, kind: type, maker: str) -> None:
    """Refuse the cache of another cell."""
    parameters = getattr(cache, "parameters", cache)
    if not isinstance(parameters, kind):
        raise ValueError(
            f"cache must come from {maker}, got one of {type(parameters).__name__}; "
            "take the backward pass of its cell."
        )
