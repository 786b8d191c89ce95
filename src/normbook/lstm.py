r"""The LSTM, forward and backward through time.

.. math::

    a_t &= W_h h_{t-1} + W_x x_t + b, \qquad
    f, i, o = \sigma(a_f), \sigma(a_i), \sigma(a_o), \quad g = \tanh(a_g), \\
    c_t &= f\,c_{t-1} + i\,g, \qquad h_t = o\,\tanh(c_t)

T steps of N examples with D features are an array ``x`` of shape (T, N, D), or packed
(:mod:`normbook.through_time`) one of shape (M, D) with ``batch_sizes``. ``h_0`` and
``c_0``, the states of H units before the first step, have shape (N, H); ``None`` stands
for 0. The 4H rows of the weights belong to the gates f, i, o, g: forget, input, output,
candidate.

:func:`step`, :func:`local_slopes` and :func:`step_backward` are the formulas of the
chapter, word for word, and check nothing. The others run over a sequence. To them what
is no array of floating-point numbers, or not of the kind and dtype of x, is a
``TypeError``, a wrong shape, sequence or cache a ``ValueError``.

Source: Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (2000);
book, chapter *The LSTM*.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from normbook import through_time
from normbook.arrays import Array
from normbook.normalize import without_cache

__all__ = [
    "LSTMCache",
    "LSTMGradients",
    "LSTMOutput",
    "LSTMParameters",
    "local_slopes",
    "lstm",
    "lstm_backward",
    "lstm_forward",
    "lstm_step",
    "step",
    "step_backward",
]

# The order of the gates in weights and pre-activations. Converters read this; every
# cell spells it out, as its chapter does.
GATES = "fiog"


class LSTMParameters(NamedTuple):
    """Weights of the plain LSTM."""

    w_x: Array  # (4H, D)
    w_h: Array  # (4H, H)
    b: Array | None = None  # (4H,), None stands for 0


class LSTMOutput(NamedTuple):
    """States at each step, and behind the last step of each sequence."""

    h: Array  # (T, N, H), or (M, H) packed
    h_last: Array  # (N, H)
    c_last: Array  # (N, H)


class LSTMCache(NamedTuple):
    """What the backward pass needs; from h on of shape (T, N, H), or (M, H) packed."""

    x: Array
    h_0: Array
    c_0: Array
    h: Array
    c: Array
    f: Array
    i: Array
    o: Array
    g: Array
    tanh_c: Array  # what o lets through
    parameters: LSTMParameters
    batch_sizes: tuple[int, ...]


class LSTMGradients(NamedTuple):
    """Gradients of the loss, also by what was left out."""

    dl_dx: Array
    dl_dparameters: Any  # of the kind of the parameters
    dl_dh_0: Array
    dl_dc_0: Array


def sigmoid(a: Array) -> Array:
    """Logistic function 1 / (1 + exp(-a)), which overflows for no a."""
    return a.sigmoid() if hasattr(a, "sigmoid") else 0.5 + 0.5 * tanh(0.5 * a)


def tanh(a: Array) -> Array:
    """Hyperbolic tangent, of NumPy or of torch."""
    return a.tanh() if hasattr(a, "tanh") else np.tanh(a)


def split(a: Array, parts: int) -> list[Array]:
    """Columns in equal parts."""
    size = a.shape[1] // parts
    return [a[:, k * size : (k + 1) * size] for k in range(parts)]


def concat(parts: list[Array]) -> Array:
    """Columns of all parts."""
    return array_namespace(*parts).concat(parts, axis=1)


def step(q_t: Array, h_prev: Array, c_prev: Array, w_h: Array) -> tuple[Array, ...]:
    """Next h and c, from q_t = W_x x_t + b, and what the way back needs."""
    a = h_prev @ w_h.T + q_t  # (N, 4H)
    a_f, a_i, a_o, a_g = split(a, 4)
    f, i, o, g = sigmoid(a_f), sigmoid(a_i), sigmoid(a_o), tanh(a_g)
    c_t = f * c_prev + i * g
    tanh_c = tanh(c_t)
    return o * tanh_c, c_t, f, i, o, g, tanh_c


def local_slopes(
    c_prev: Array, f: Array, i: Array, o: Array, g: Array, tanh_c: Array
) -> tuple[Array, Array]:
    """Slopes of h by c, and of c and h by a; they wait for no gradient."""
    slope_c = o * (1 - tanh_c**2)
    slope_a = [
        c_prev * f * (1 - f),
        g * i * (1 - i),
        tanh_c * o * (1 - o),  # of h by a_o; the others are of c
        i * (1 - g**2),
    ]
    return slope_c, concat(slope_a)


def step_backward(
    dl_dh_t: Array,
    dl_dc_after: Array,
    slope_c: Array,
    slope_a: Array,
    f: Array,
    w_h: Array,
) -> tuple[Array, ...]:
    """What goes to h and c before the step, and what arrives at a."""
    dl_dc = dl_dh_t * slope_c + dl_dc_after
    dl_da = concat([dl_dc, dl_dc, dl_dh_t, dl_dc]) * slope_a
    return dl_da @ w_h, dl_dc * f, dl_da


def lstm_forward(
    x: Array,
    parameters: LSTMParameters,
    h_0: Array | None = None,
    c_0: Array | None = None,
    *,
    batch_sizes: Sequence[int] | None = None,
) -> tuple[LSTMOutput, LSTMCache]:
    """Run the plain LSTM over a sequence, and keep what the backward pass needs.

    Examples
    --------
    With all weights 0 each gate is half open and nothing comes in:

    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> _, cache = lstm_forward(np.zeros((2, 1, 1)), zeros, c_0=np.array([[8.0]]))
    >>> cache.c.ravel(), cache.f.ravel()
    (array([4., 2.]), array([0.5, 0.5]))
    """
    states, sizes = through_time.check_inputs(
        x, parameters, LSTMParameters, batch_sizes, h_0=h_0, c_0=c_0
    )
    w_x, w_h, b = through_time.complete(parameters)
    (rows,) = through_time.as_rows(x, x)
    q = rows @ w_x.T + b  # waits for no state: all steps at once
    last, results = through_time.over_steps(partial(step, w_h=w_h), q, states, sizes)
    results = through_time.like_steps(x, *results)
    cache = LSTMCache._make((x, *states, *results, parameters, sizes))
    return LSTMOutput(cache.h, *last), cache


lstm = without_cache(lstm_forward)


def lstm_step(
    x_t: Array, parameters: LSTMParameters, h_prev: Array, c_prev: Array
) -> tuple[Array, Array]:
    """Run the plain LSTM one step on, from x_t of shape (N, D); return h and c."""
    _, h_t, c_t = lstm(through_time.as_step(x_t), parameters, h_prev, c_prev)
    return h_t, c_t


def lstm_backward(
    dl_dh: Array,
    cache: LSTMCache,
    dl_dh_last: Array | None = None,
    dl_dc_last: Array | None = None,
) -> LSTMGradients:
    r"""Return the gradients through the plain LSTM, backward through time.

    :func:`step_backward` over all steps. The weights act at every step, so they get
    sums: :math:`\sum_t \delta a_t\,h_{t-1}^\top` for :math:`W_h`, and likewise with
    :math:`x_t` for :math:`W_x` and with 1 for b. ``dl_dh`` is what the loss sends to
    the state of each step; ``dl_dh_last`` and ``dl_dc_last``, (N, H), arrive besides
    behind the last step, ``None`` for 0.

    Examples
    --------
    >>> zeros = LSTMParameters(w_x=np.zeros((4, 1)), w_h=np.zeros((4, 1)))
    >>> _, cache = lstm_forward(np.zeros((3, 1, 1)), zeros)  # each gate is half open
    >>> lstm_backward(cache.h, cache, dl_dc_last=np.ones((1, 1))).dl_dc_0
    array([[0.125]])
    """
    last = through_time.check_gradients(
        cache, LSTMCache, dl_dh, dl_dh_last=dl_dh_last, dl_dc_last=dl_dc_last
    )
    x, h_0, c_0, *of_steps, (w_x, w_h, _), sizes = cache
    dl_dh, rows, h, c, f, *others = through_time.as_rows(x, dl_dh, x, *of_steps)
    h_prev = through_time.before(h, h_0, sizes)
    slopes = local_slopes(through_time.before(c, c_0, sizes), f, *others)
    (dl_dh_0, dl_dc_0), (dl_da,) = through_time.back_over_steps(
        partial(step_backward, w_h=w_h), dl_dh, (*slopes, f), last, sizes
    )
    (dl_dx,) = through_time.like_steps(x, dl_da @ w_x)
    gradients = LSTMParameters(dl_da.T @ rows, dl_da.T @ h_prev, dl_da.sum(0))
    return LSTMGradients(dl_dx, gradients, dl_dh_0, dl_dc_0)
