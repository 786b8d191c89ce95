r"""The simple recurrent network with layer norm of the sum.

.. math:: h_t = \tanh(\gamma\,\hat a_t + \beta), \qquad a_t = W_h h_{t-1} + W_x x_t

The hat standardizes the H numbers of one example at one step. Arguments and errors are
those of :mod:`normbook.layer_norm_lstm`, without c and without packing.

Source: Ba, Kiros and Hinton (2016), equation 4; book, chapter *Layer normalization in
an LSTM*.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from normbook import through_time
from normbook.arrays import Array, check_eps
from normbook.layer_norm_lstm import hat, through
from normbook.lstm import tanh
from normbook.normalize import without_cache


class LayerNormRNNParameters(NamedTuple):
    """Weights, gain and bias; None stands for a gain of 1 and a bias of 0."""

    w_x: Array  # (H, D)
    w_h: Array  # (H, H)
    gamma: Array | None = None  # (H,)
    beta: Array | None = None  # (H,)


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


def step(
    q_t: Array, h_prev: Array, weights: LayerNormRNNParameters, eps: float
) -> tuple[Array, ...]:
    """Next h, from q_t = W_x x_t, and what the way back needs."""
    a_hat, inv_std = hat(h_prev @ weights.w_h.T + q_t, eps)
    return tanh(weights.gamma * a_hat + weights.beta), a_hat, inv_std


def step_backward(
    dl_dh_t: Array, h_t: Array, a_hat: Array, inv_std: Array, weights: Any
) -> tuple[Array, ...]:
    """What goes to h before the step, and what arrives at a and behind its hat."""
    dl_du = dl_dh_t * (1 - h_t**2)
    dl_da = through(weights.gamma * dl_du, a_hat, inv_std)
    return dl_da @ weights.w_h, dl_da, dl_du


def layer_norm_rnn_forward(
    x: Array,
    parameters: LayerNormRNNParameters,
    h_0: Array | None = None,
    eps: float = 1e-5,
) -> tuple[RNNOutput, RNNCache]:
    """Run the network over a sequence, and keep what the backward pass needs.

    Examples
    --------
    >>> parameters = LayerNormRNNParameters(np.array([[1.0], [3.0]]), np.zeros((2, 2)))
    >>> output, _ = layer_norm_rnn_forward(np.ones((1, 1, 1)), parameters, eps=0.0)
    >>> output.h_last / np.tanh(1.0)  # 1 and 3 are one deviation from their mean
    array([[-1.,  1.]])
    """
    states, sizes = through_time.check_inputs(
        x, parameters, LayerNormRNNParameters, h_0=h_0
    )
    weights = through_time.complete(parameters)
    (rows,) = through_time.as_rows(x, x)
    cell = partial(step, weights=weights, eps=check_eps(eps))
    last, results = through_time.over_steps(cell, rows @ weights.w_x.T, states, sizes)
    results = through_time.like_steps(x, *results)
    cache = RNNCache._make((x, *states, *results, parameters))
    return RNNOutput(cache.h, *last), cache


layer_norm_rnn = without_cache(layer_norm_rnn_forward)


def layer_norm_rnn_step(
    x_t: Array, parameters: LayerNormRNNParameters, h_prev: Array, eps: float = 1e-5
) -> Array:
    """Run the network one step on, from x_t of shape (N, D); return h."""
    return layer_norm_rnn(through_time.as_step(x_t), parameters, h_prev, eps).h_last


def layer_norm_rnn_backward(
    dl_dh: Array, cache: RNNCache, dl_dh_last: Array | None = None
) -> RNNGradients:
    """Return the gradients: :func:`step_backward` over all steps, and sums."""
    last = through_time.check_gradients(cache, RNNCache, dl_dh, dl_dh_last=dl_dh_last)
    x, h_0, *of_steps, parameters = cache
    weights, sizes = through_time.complete(parameters), (x.shape[1],) * x.shape[0]
    dl_dh, rows, h, a_hat, inv_std = through_time.as_rows(x, dl_dh, x, *of_steps)
    (dl_dh_0,), (dl_da, dl_du) = through_time.back_over_steps(
        partial(step_backward, weights=weights), dl_dh, (h, a_hat, inv_std), last, sizes
    )
    gradients = LayerNormRNNParameters(
        w_x=dl_da.T @ rows,
        w_h=dl_da.T @ through_time.before(h, h_0, sizes),
        gamma=(dl_du * a_hat).sum(0),
        beta=dl_du.sum(0),
    )
    (dl_dx,) = through_time.like_steps(x, dl_da @ weights.w_x)
    return RNNGradients(dl_dx, gradients, dl_dh_0)
