r"""The layer-normalized LSTM, forward and backward through time.

.. math::

    a_t &= \gamma_h\,\hat p_t + \beta_h + \gamma_x\,\hat q_t + \beta_x + b, \qquad
    p_t = W_h h_{t-1}, \quad q_t = W_x x_t, \\
    f, i, o &= \sigma(a_f), \sigma(a_i), \sigma(a_o), \qquad g = \tanh(a_g), \\
    c_t &= f\,c_{t-1} + i\,g, \qquad u_t = \gamma_c\,\hat c_t + \beta_c, \qquad
    h_t = o\,\tanh(u_t)

A hat standardizes one example at one step: over all 4H numbers of p or q, over the H
numbers of c. Arguments, the order of gates and errors are those of
:mod:`normbook.lstm`. Other cells that bear the name in widely used code normalize the
sum p + q, or each gate of it, or carry u on in place of c, or have a hat on c alone;
they are here as options, since with the same weights they compute something else.

:func:`update`, :func:`step`, :func:`step_backward` and :func:`of_parameters` are the
formulas of the chapter, word for word, and check nothing.

Source: Ba, Kiros and Hinton (2016), equations 20 to 22; book, chapter *Layer
normalization in an LSTM*.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from array_api_compat import array_namespace

from normbook import normalize, through_time
from normbook.arrays import Array, as_dtype, as_float32, check_eps
from normbook.lstm import (
    LSTMGradients,
    LSTMOutput,
    concat,
    local_slopes,
    sigmoid,
    split,
    tanh,
)
from normbook.lstm import step as plain_step
from normbook.normalize import without_cache

__all__ = [
    "Carried",
    "Hats",
    "LayerNormLSTMCache",
    "LayerNormLSTMParameters",
    "Normed",
    "layer_norm_lstm",
    "layer_norm_lstm_backward",
    "layer_norm_lstm_forward",
    "layer_norm_lstm_step",
    "of_parameters",
    "step",
    "step_backward",
    "update",
]

# What layer norm is applied to before the gates.
Normed = Literal["terms", "sum", "gates"]
Carried = Literal["raw", "normalized"]
# Which of p, q and c have one.
Hats = Literal["pqc", "pq", "pc", "qc", "p", "q", "c", ""]


# Gain and bias of each hat.
OF_HAT = {
    "p": ("gamma_h", "beta_h"), "q": ("gamma_x", "beta_x"), "c": ("gamma_c", "beta_c")
}  # fmt: skip


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


class LayerNormLSTMCache(NamedTuple):
    """What the backward pass needs; from h on of shape (T, N, ...), or (M, ...)."""

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
    c_hat: Array  # (..., H); what has no hat stands here itself, with 1 / s = 1
    inv_std_c: Array  # (..., 1)
    p_hat: Array  # (..., 4H), of W_h h, or of the sum
    inv_std_p: Array  # (..., 1), or (..., 4, 1) for each gate
    q_hat: Array | None  # (..., 4H), of W_x x; None where it has no hat of its own
    inv_std_q: Array | None
    parameters: LayerNormLSTMParameters
    norm: Normed
    carried: Carried
    hats: Hats
    batch_sizes: tuple[int, ...]


# What the way back needs of one step, or of all in rows; r_p is 1 / s of p.
Kept = namedtuple(
    "Kept", "x_t h_prev c_prev q_hat r_q f i o g tanh_u c_hat r_c p_hat r_p"
)


def hat(v: Array, eps: float) -> tuple[Array, Array]:
    """Standardize each row; return it with 1 / s, s the root of variance plus eps."""
    centred, _ = normalize.centre(as_float32(v), -1)
    v_hat, _, inv_std = normalize.scale(centred, -1, eps)
    return as_dtype(v_hat, v.dtype), inv_std


def through(w: Array, v_hat: Array, inv_std: Array) -> Array:
    """Take w, the gradient that arrives at a hat, back through it."""
    w_32, v_hat = as_float32(w), as_float32(v_hat)
    return as_dtype(normalize.through(w_32, v_hat, inv_std, -1), w.dtype)


def update(a: Array, c_prev: Array, weights: Any, eps: float) -> tuple[Array, ...]:
    """Next h and c, from a, and what the way back needs."""
    a_f, a_i, a_o, a_g = split(a, 4)
    f, i, o, g = sigmoid(a_f), sigmoid(a_i), sigmoid(a_o), tanh(a_g)
    c_t = f * c_prev + i * g
    c_hat, r_c = hat(c_t, eps)
    tanh_u = tanh(weights.gamma_c * c_hat + weights.beta_c)
    return o * tanh_u, c_t, f, i, o, g, tanh_u, c_hat, r_c


def step(
    q_t: Array, h_prev: Array, c_prev: Array, weights: Any, eps: float
) -> tuple[Array, ...]:
    """Next h and c; q_t has its hat, its gain and all biases already."""
    p_hat, r_p = hat(h_prev @ weights.w_h.T, eps)
    a = weights.gamma_h * p_hat + q_t
    return *update(a, c_prev, weights, eps), p_hat, r_p


def step_backward(
    dl_dh_t: Array, dl_dc_after: Array, kept: Any, weights: Any, through_p: Any
) -> tuple[Array, ...]:
    """What goes to h and c before the step, and what arrives at a, p and u.

    ``kept`` has the slopes within the step and what its forward pass computed.
    """
    slope_u, slope_a, f, c_hat, r_c, p_hat, r_p = kept
    dl_du = dl_dh_t * slope_u  # 1
    dl_dc = dl_dc_after + through(weights.gamma_c * dl_du, c_hat, r_c)  # 2
    dl_da = concat([dl_dc, dl_dc, dl_dh_t, dl_dc]) * slope_a  # 3
    dl_dp = through_p(weights.gamma_h * dl_da, p_hat, r_p)  # 4
    return dl_dp @ weights.w_h, dl_dc * f, dl_da, dl_dp, dl_du  # 5


def of_parameters(
    dl_da: Array, dl_dp: Array, dl_dq: Array, dl_du: Array, s: Kept
) -> LayerNormLSTMParameters:
    """Gradients of the parameters: sums over examples, and over steps."""
    b = dl_da.sum(0)
    return LayerNormLSTMParameters(
        w_x=dl_dq.T @ s.x_t,
        w_h=dl_dp.T @ s.h_prev,
        b=b,
        gamma_h=(dl_da * s.p_hat).sum(0),
        beta_h=b,
        gamma_x=(dl_da * s.q_hat).sum(0),
        beta_x=b,
        gamma_c=(dl_du * s.c_hat).sum(0),
        beta_c=dl_du.sum(0),
    )


# --- the other cells of the name ------------------------------------------------------


def by_gates(v: Array) -> Array:
    """Rows of 4H numbers as four of H."""
    return v.reshape((v.shape[0], 4, v.shape[1] // 4))


def hat_of_gates(v: Array, eps: float) -> tuple[Array, Array]:
    """Standardize each of the four gates by itself."""
    v_hat, inv_std = hat(by_gates(v), eps)
    return v_hat.reshape(v.shape), inv_std


def through_gates(w: Array, v_hat: Array, inv_std: Array) -> Array:
    """Way of w back through the hats of the gates."""
    return through(by_gates(w), by_gates(v_hat), inv_std).reshape(w.shape)


def bare(v: Array, eps: float) -> tuple[Array, Array]:
    """Leave rows without a hat as they are."""
    return v, array_namespace(v).ones_like(v[:, :1])


def through_bare(w: Array, v: Array, inv_std: Array) -> Array:
    """Way of w back where there is no hat."""
    return w


def update_with_bare_c(
    a: Array, c_prev: Array, weights: Any, eps: float
) -> tuple[Array, ...]:
    """Next h and c without a hat of c: those of the plain LSTM, from a."""
    nothing = c_prev[:, :0], c_prev, weights.w_h[:, :0]  # a has W_h h already
    h_t, c_t, *gates_and_u = plain_step(a, *nothing)
    return h_t, c_t, *gates_and_u, *bare(c_t, eps)


def step_with_bare_c_backward(
    dl_dh_t: Array, dl_dc_after: Array, kept: Any, weights: Any, through_p: Any
) -> tuple[Array, ...]:
    """One step back; what arrives at u is at c, and has no hat to go through."""
    slope_u, *others = kept
    kept = array_namespace(slope_u).zeros_like(slope_u), *others
    dl_dc = dl_dc_after + dl_dh_t * slope_u
    return step_backward(dl_dh_t, dl_dc, kept, weights, through_p)


def step_of_some(
    q_t: Array,
    h_prev: Array,
    c_prev: Array,
    weights: Any,
    eps: float,
    hat: Any,
    update: Any,
) -> tuple[Array, ...]:
    """One step on, with some of the hats."""
    p_hat, r_p = hat(h_prev @ weights.w_h.T, eps)
    a = weights.gamma_h * p_hat + q_t
    return *update(a, c_prev, weights, eps), p_hat, r_p


def step_of_sum(
    q_t: Array,
    h_prev: Array,
    c_prev: Array,
    weights: Any,
    eps: float,
    hat: Any,
    update: Any,
) -> tuple[Array, ...]:
    """One step on, with one hat of the sum p + q; b has all biases."""
    p_hat, r_p = hat(h_prev @ weights.w_h.T + q_t, eps)
    a = weights.gamma_h * p_hat + weights.b
    return *update(a, c_prev, weights, eps), p_hat, r_p


def step_carrying_u(
    q_t: Array, h_prev: Array, u_prev: Array, weights: Any, eps: float, step: Any
) -> tuple[Array, ...]:
    """One step on that carries u, the normalized c, to the next."""
    h_t, _, *gates, c_hat, r_c, p_hat, r_p = step(q_t, h_prev, u_prev, weights, eps)
    u_t = weights.gamma_c * c_hat + weights.beta_c
    return h_t, u_t, *gates, c_hat, r_c, p_hat, r_p


def step_carrying_u_backward(
    dl_dh_t: Array, dl_du_after: Array, kept: Any, weights: Any, through_p: Any
) -> tuple[Array, ...]:
    """One step back; what the next step sends reaches u, and through its hat c."""
    _, _, _, c_hat, r_c, _, _ = kept
    dl_dc_after = through(weights.gamma_c * dl_du_after, c_hat, r_c)
    *others, dl_du = step_backward(dl_dh_t, dl_dc_after, kept, weights, through_p)
    return *others, dl_du + dl_du_after


# --- over a sequence ------------------------------------------------------------------


def with_one_bias(parameters: LayerNormLSTMParameters) -> Any:
    """Put in 1 and 0 where a gain or bias was left out; b becomes the sum of all."""
    full = through_time.complete(parameters)
    return full._replace(b=full.b + full.beta_h + full.beta_x)


def layer_norm_lstm_forward(
    x: Array,
    parameters: LayerNormLSTMParameters,
    h_0: Array | None = None,
    c_0: Array | None = None,
    eps: float = 1e-5,
    *,
    norm: Normed = "terms",
    carried: Carried = "raw",
    hats: Hats = "pqc",
    batch_sizes: Sequence[int] | None = None,
) -> tuple[LSTMOutput, LayerNormLSTMCache]:
    r"""Run the layer-normalized LSTM, and keep what the backward pass needs.

    ``norm`` says what is standardized before the gates: p and q each by itself
    ("terms"); their "sum", over all 4H numbers; or the H numbers of each of its
    "gates". The last two have one gain, ``gamma_h``, and refuse ``gamma_x`` and
    ``beta_x``. ``carried`` is what the next step takes for c, and ``c_last``: "raw" c,
    or u, "normalized". ``hats`` names those of p, q and c that are standardized, and
    refuses the gain and the bias of the others, which are added as they are: with ""
    this is the plain LSTM, with "c" equations 29 to 31 of the paper. A sum takes p and
    q. ``eps``, added to each variance inside the root, must not be 0 where ``h_0`` is,
    since :math:`W_h h` has variance 0 there.

    Examples
    --------
    With weights of 0 all gates are half open: c halves, and h does not notice.

    >>> zeros = LayerNormLSTMParameters(w_x=np.zeros((8, 1)), w_h=np.zeros((8, 2)))
    >>> x, c_0 = np.ones((2, 1, 1)), np.array([[8.0, 16.0]])
    >>> _, cache = layer_norm_lstm_forward(x, zeros, c_0=c_0)
    >>> cache.c[:, 0].tolist()
    [[4.0, 8.0], [2.0, 4.0]]
    >>> np.round(cache.h[:, 0] / np.tanh(1.0), 4).tolist()
    [[-0.5, 0.5], [-0.5, 0.5]]
    """
    states, sizes = through_time.check_inputs(
        x, parameters, LayerNormLSTMParameters, batch_sizes, h_0=h_0, c_0=c_0
    )
    eps = check_eps(eps)
    check_hats(norm, carried, hats)
    if norm != "terms" and not (parameters.gamma_x is None is parameters.beta_x):
        raise ValueError(
            f"gamma_x and beta_x must be None with norm={norm!r}, which normalizes the "
            "sum of both terms, got an array; gamma_h and beta_h act on the sum."
        )
    for name in without_hat(hats):
        if getattr(parameters, name) is not None:
            raise ValueError(
                f"{name} must be None with hats={hats!r}, got an array; a gain and its "
                "bias belong to a hat."
            )
    weights = with_one_bias(parameters)
    (rows,) = through_time.as_rows(x, x)
    q, q_hat, r_q = rows @ weights.w_x.T, None, None
    hat_p = hat if "p" in hats else bare
    parts = {"update": update if "c" in hats else update_with_bare_c}
    cell: Any = partial(step_of_sum, hat=hat if norm == "sum" else hat_of_gates)
    if norm == "terms":
        cell = step if hats == "pqc" else partial(step_of_some, hat=hat_p)
        if "q" in hats:
            q_hat, r_q = hat(q, eps)
            q = weights.gamma_x * q_hat
            q_hat, r_q = through_time.like_steps(x, q_hat, r_q)
        q = q + weights.b
    if cell is not step:
        cell = partial(cell, **parts)
    if carried == "normalized":
        cell = partial(step_carrying_u, step=cell)
    cell = partial(cell, weights=weights, eps=eps)
    last, results = through_time.over_steps(cell, q, states, sizes)
    arrays = x, *states, *through_time.like_steps(x, *results), q_hat, r_q
    options = parameters, norm, carried, hats, sizes
    cache = LayerNormLSTMCache._make((*arrays, *options))
    return LSTMOutput(cache.h, *last), cache


layer_norm_lstm = without_cache(layer_norm_lstm_forward)


def layer_norm_lstm_step(
    x_t: Array,
    parameters: LayerNormLSTMParameters,
    h_prev: Array,
    c_prev: Array,
    eps: float = 1e-5,
    *,
    norm: Normed = "terms",
    carried: Carried = "raw",
    hats: Hats = "pqc",
) -> tuple[Array, Array]:
    """Run it one step on, from x_t of shape (N, D); return h and what is carried on."""
    x = through_time.as_step(x_t)
    _, h_t, c_t = layer_norm_lstm(
        x, parameters, h_prev, c_prev, eps, norm=norm, carried=carried, hats=hats
    )
    return h_t, c_t


def layer_norm_lstm_backward(
    dl_dh: Array,
    cache: LayerNormLSTMCache,
    dl_dh_last: Array | None = None,
    dl_dc_last: Array | None = None,
) -> LSTMGradients:
    r"""Return the gradients through the layer-normalized LSTM, backward through time.

    As :func:`normbook.lstm.lstm_backward`; for :math:`\gamma_h` the sum is
    :math:`\sum_t \delta a_t\,\hat p_t`. Gains and biases that the cell refuses have no
    gradient.
    """
    last = through_time.check_gradients(
        cache, LayerNormLSTMCache, dl_dh, dl_dh_last=dl_dh_last, dl_dc_last=dl_dc_last
    )
    x, h_0, c_0, *of_steps, q_hat, r_q, parameters, norm, carried, hats, sizes = cache
    has_q = norm == "terms" and "q" in hats
    if not has_q:  # in its place, for a gradient that is dropped
        q_hat, r_q = cache.p_hat, cache.inv_std_p
    dl_dh, x_t, q_hat, r_q, h, c, *gates_and_hats = through_time.as_rows(
        x, dl_dh, x, q_hat, r_q, *of_steps
    )
    h_prev = through_time.before(h, h_0, sizes)
    c_prev = through_time.before(c, c_0, sizes)
    s = Kept(x_t, h_prev, c_prev, q_hat, r_q, *gates_and_hats)
    weights = with_one_bias(parameters)
    back: Any = step_backward if "c" in hats else step_with_bare_c_backward
    if carried == "normalized":
        back = step_carrying_u_backward
    through_p: Any = through_gates if norm == "gates" else through
    if "p" not in hats:
        through_p = through_bare
    slopes = local_slopes(s.c_prev, s.f, s.i, s.o, s.g, s.tanh_u)
    (dl_dh_0, dl_dc_0), (dl_da, dl_dp, dl_du) = through_time.back_over_steps(
        lambda dl_dh_t, dl_dc_after, *kept: back(
            dl_dh_t, dl_dc_after, kept, weights, through_p
        ),
        dl_dh,
        (*slopes, s.f, s.c_hat, s.r_c, s.p_hat, s.r_p),
        last,
        sizes,
    )
    dl_dq = dl_da if norm == "terms" else dl_dp
    if has_q:
        dl_dq = through(weights.gamma_x * dl_da, s.q_hat, s.r_q)
    gradients = of_parameters(dl_da, dl_dp, dl_dq, dl_du, s)
    refused = (
        without_hat(hats) if norm == "terms" else [*without_hat(hats), *OF_HAT["q"]]
    )
    gradients = gradients._replace(**dict.fromkeys(refused))
    (dl_dx,) = through_time.like_steps(x, dl_dq @ weights.w_x)
    return LSTMGradients(dl_dx, gradients, dl_dh_0, dl_dc_0)


def without_hat(hats: Hats) -> list[str]:
    """Name gains and biases that have no hat to act on."""
    return [name for part in OF_HAT if part not in hats for name in OF_HAT[part]]


def check_hats(
    norm: Any, carried: Any, hats: Any, norms: tuple[Any, ...] = get_args(Normed)
) -> None:
    """Refuse options that there are not, or not together."""
    check_option("norm", norm, norms)
    check_option("carried", carried, get_args(Carried))
    check_option("hats", hats, get_args(Hats))
    if norm in ("sum", "gates") and not {"p", "q"} <= {*hats}:
        raise ValueError(
            f"hats must have p and q with norm={norm!r}, which normalizes their sum, "
            f"got {hats!r}; take 'pqc' or 'pq'."
        )
    if carried == "normalized" and "c" not in hats:
        raise ValueError(
            f"hats must have c with carried='normalized', got {hats!r}; carry the raw "
            "c, or add its hat."
        )


def check_option(name: str, value: object, options: tuple[Any, ...]) -> None:
    """Refuse what is none of the options."""
    if value not in options:
        known = ", ".join(map(repr, options))
        raise ValueError(f"{name} must be one of {known}, got {value!r}.")
