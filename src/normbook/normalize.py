r"""Normalize: the formulas of the book, of which every method is a choice of axes.

Standardize along some axes, then multiply by a gain and add a bias:

.. math::

    y = \gamma\,\hat x + \beta, \qquad
    \hat x = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} .

``axes`` says which values share one mean and one variance; ``parameter_axes`` along
which axes gain and bias have values of their own; ``is_centred`` whether the mean is
taken off. The methods of :data:`METHODS` are such choices and nothing more.

First stand the formulas, in the names of the chapters, which check nothing; then the
public functions, which check their arguments once and call them. What the whole family
shares is told in :func:`normalize_forward`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from normbook.arrays import (
    Array,
    Axes,
    as_dtype,
    as_float32,
    check_eps,
    check_float_array,
    check_groups,
    check_like,
    check_parameters,
    sorted_axes,
)

Arguments = ParamSpec("Arguments")
Y = TypeVar("Y")


class NormalizeCache(NamedTuple):
    """What the backward pass needs; statistics keep the reduced axes, with length 1."""

    x_hat: Array  # float32 of half precision, as the statistics
    mu: Array  # None where the mean was not taken off
    var: Array  # biased, without eps; the mean square where mu is None
    inv_std: Array  # 1 / sqrt(var + eps)
    axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]
    gamma: Array | None


class NormalizeGradients(NamedTuple):
    """Gradients of the loss; ``dl_dgamma`` and ``dl_dbeta`` have gamma's shape."""

    dl_dx: Array
    dl_dgamma: Array
    dl_dbeta: Array


class Method(NamedTuple):
    """The axes of a method, where ``2, ...`` stands for axis 2 and all after.

    To add one: its row in :data:`METHODS`, functions that name it as those of
    ``group_norm`` do, its case in ``tests/test_methods.py``; for the book's table of
    axes its line in ``axes``, for a layer a class in ``layers``.
    """

    axes: tuple[Any, ...]
    parameter_axes: tuple[int, ...]
    is_centred: bool = True
    shapes: str = ""  # that x may have, where layout checks them
    least: int = 1  # axes
    cure: str = "x[None]"  # for one with fewer

    def of(self, ndim: int) -> dict[str, Any]:
        """Return the arguments of :func:`normalize` for x with so many axes."""
        axes = self.axes
        if axes[-1] is ...:
            *firsts, start, _ = axes
            axes = (*firsts, *range(start, ndim))
        return {
            "axes": tuple(axis % ndim for axis in axes),
            "parameter_axes": tuple(axis % ndim for axis in self.parameter_axes),
            "is_centred": self.is_centred,
        }


# Each row of weights has its own statistics.
_BY_ROW = Method(
    (1, ...),
    (),
    shapes="(D_out, D_in) or (C_out, C_in, ...)",
    least=2,
    cure="weights[None]",
)

#: The methods by name. The axes of group norm are those of x split into G groups.
METHODS = {
    "batch norm": Method(
        (0, 2, ...), (1,), shapes="(N, D) or (N, C, ...)", least=2, cure="x[:, None]"
    ),
    "layer norm": Method((-1,), (-1,)),
    "RMSNorm": Method((-1,), (-1,), is_centred=False),
    "instance norm": Method((2, ...), (1,), shapes="(N, C, L) or more axes", least=3),
    "group norm": Method((2, ...), (1, 2), shapes="(N, C) or (N, C, ...)", least=2),
    "weight norm": _BY_ROW._replace(parameter_axes=(0,), is_centred=False),
    "weight standardization": _BY_ROW,
    "scaled weight standardization": _BY_ROW._replace(parameter_axes=(0,)),
}


# --- the formulas ---------------------------------------------------------------------


def centre(x: Array, axes: Axes) -> tuple[Array, Array]:
    """Take the mean off; return also the mean."""
    mu = x.mean(axes, keepdims=True)
    centred = x - mu
    rest = centred.mean(axes, keepdims=True)  # what rounding left of the mean
    return centred - rest, mu + rest


def scale(centred: Array, axes: Axes, eps: float) -> tuple[Array, Array, Array]:
    """Divide by the root mean square; return also the mean square, and 1 / root."""
    var = (centred * centred).mean(axes, keepdims=True)
    inv_std = (var + eps) ** -0.5
    return centred * inv_std, var, inv_std


def through(g: Array, x_hat: Array, inv_std: Array, axes: Axes) -> Array:
    """Take a gradient through mean and root, in closed form."""
    along = (g * x_hat).mean(axes, keepdims=True)
    return inv_std * (g - g.mean(axes, keepdims=True) - x_hat * along)


def through_scale(g: Array, x_hat: Array, inv_std: Array, axes: Axes) -> Array:
    """Take a gradient through the root alone: the same where no mean was taken off."""
    along = (g * x_hat).mean(axes, keepdims=True)
    return inv_std * (g - x_hat * along)


def broadcast_along(value: Array, axes: tuple[int, ...], ndim: int) -> Array:
    """Return an array with these axes with length 1 along all others."""
    shape = [1] * ndim
    for axis, length in zip(axes, value.shape, strict=True):
        shape[axis] = length
    return value.reshape(shape)


def affine(
    x_hat: Array,
    gamma: Array | None,
    beta: Array | None,
    parameter_axes: tuple[int, ...],
) -> Array:
    """Multiply by the gain and add the bias, each along its axes."""
    y = x_hat
    if gamma is not None:
        y = y * broadcast_along(gamma, parameter_axes, x_hat.ndim)
    if beta is not None:
        y = y + broadcast_along(beta, parameter_axes, x_hat.ndim)
    return y


def affine_gradients(
    dl_dy: Array, x_hat: Array, parameter_axes: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return what reaches gain and bias: sums over all that they act on."""
    others = tuple(axis for axis in range(dl_dy.ndim) if axis not in parameter_axes)
    dl_dgamma, dl_dbeta = dl_dy * x_hat, dl_dy
    if others:  # in torch a sum over no axis is a sum over all
        dl_dgamma, dl_dbeta = dl_dgamma.sum(others), dl_dbeta.sum(others)
    return dl_dgamma, dl_dbeta


def forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    axes: tuple[int, ...],
    parameter_axes: tuple[int, ...],
    eps: float,
    is_centred: bool,
) -> tuple[Array, NormalizeCache]:
    """Normalize, as :func:`normalize_forward` does, with nothing checked."""
    values, mu = as_float32(x), None
    if is_centred:
        values, mu = centre(values, axes)
    x_hat, var, inv_std = scale(values, axes, eps)
    y = as_dtype(affine(x_hat, gamma, beta, parameter_axes), x.dtype)
    return y, NormalizeCache(x_hat, mu, var, inv_std, axes, parameter_axes, gamma)


def backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    """Differentiate, as :func:`normalize_backward` does, with nothing checked."""
    x_hat, mu, _, inv_std, axes, parameter_axes, gamma = cache
    dl_dy_32 = as_float32(dl_dy)
    g = affine(dl_dy_32, gamma, None, parameter_axes)
    back = through_scale if mu is None else through
    dl_dx = as_dtype(back(g, x_hat, inv_std, axes), dl_dy.dtype)
    return NormalizeGradients(dl_dx, *affine_gradients(dl_dy_32, x_hat, parameter_axes))


# --- what checks its arguments, once, and then calls them -----------------------------


def layout(method: str, x: Array, name: str = "x") -> dict[str, Any]:
    """Return the axes of a method for x; refuse x where one is missing."""
    return method_for(method, x, name).of(x.ndim)


def method_for(method: str, x: Array, name: str = "x") -> Method:
    """Return the row of a method; refuse x where one of its axes is missing."""
    check_float_array(name, x)
    row = METHODS[method]
    if x.ndim < row.least:
        raise ValueError(
            f"{name} must have shape {row.shapes}, got {tuple(x.shape)}; add the "
            f"missing axis, e.g. {row.cure}."
        )
    return row


def checked_forward(
    x: Array, gamma: Array | None, beta: Array | None, eps: float, **layout: Any
) -> tuple[Array, NormalizeCache]:
    """Normalize x, of which the layout is known, after a check of all the rest."""
    check_groups(x, layout["axes"])
    check_parameters(x, layout["parameter_axes"], gamma=gamma, beta=beta)
    return forward(x, gamma, beta, eps=check_eps(eps), **layout)


def without_cache(
    function: Callable[Arguments, tuple[Y, Any]],
) -> Callable[Arguments, Y]:
    """Return the plain form of a function ``..._forward``, named without the ending."""
    forward: Any = function
    name = forward.__name__.removesuffix("_forward")
    # The same code under the name that was called, for errors to tell.
    parts = forward.__code__, forward.__globals__, name, forward.__defaults__
    called = FunctionType(*parts, forward.__closure__)
    called.__kwdefaults__, called.__qualname__ = forward.__kwdefaults__, name

    @wraps(function)
    def plain(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
        return called(*args, **kwargs)[0]

    plain.__name__ = plain.__qualname__ = name
    plain.__doc__ = f"Return the first result of :func:`{name}_forward`, uncached."
    # What help and editors show would else be the results of both.
    y, _ = get_args(get_type_hints(function)["return"])
    plain.__annotations__ = {**function.__annotations__, "return": y}
    signature = inspect.signature(function).replace(return_annotation=y)
    vars(plain)["__signature__"] = signature
    return plain


def moments(x: Array, axes: Axes) -> tuple[Array, Array]:
    r"""Return mean and biased variance of each group, in two passes.

    The textbook shortcut :math:`\overline{x^2} - \bar x^2` subtracts two large
    numbers and can even turn negative. Here the mean is taken off first, and a second
    look repairs what rounding left in it: the *corrected two-pass algorithm* of Chan,
    Golub and LeVeque (1983), eq. 1.7.

    Both have the shape of ``x`` with length 1 along ``axes``; of half precision they
    are float32.

    Examples
    --------
    >>> moments(np.array([[1.0, 10.0], [3.0, 10.0]]), axes=0)
    (array([[ 2., 10.]]), array([[1., 0.]]))
    """
    check_float_array("x", x)
    axes = sorted_axes(x, axes)
    check_groups(x, axes)
    centred, mu = centre(as_float32(x), axes)
    return mu, (centred * centred).mean(axes, keepdims=True)


def standardize(
    x: Array, axes: Axes, eps: float = 1e-5, *, is_centred: bool = True
) -> Array:
    r"""Shift and scale each group to mean 0 and (almost) variance 1.

    The variance of the result is :math:`\sigma^2 / (\sigma^2 + \epsilon)`.
    :func:`normalize` without gain and bias.
    """
    return normalize_forward(x, axes=axes, eps=eps, is_centred=is_centred)[0]


def normalize_forward(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    axes: Axes,
    parameter_axes: Axes = (),
    eps: float = 1e-5,
    is_centred: bool = True,
) -> tuple[Array, NormalizeCache]:
    r"""Normalize along some axes, and keep what the backward pass needs.

    Arrays are all of NumPy or all of torch; y has shape and dtype of ``x``. Of half
    precision the statistics are float32, and the result is rounded once, at the end.

    Parameters
    ----------
    gamma, beta : arrays, optional
        Their shape is that of ``x`` along ``parameter_axes``, in the order of the axes
        of ``x``; ``None`` stands for 1 and 0.
    eps : float
        Added to the variance, inside the root; unit of x squared. With 0 a group of
        equal values gives 0/0: NaN, and no error, because looking at the values would
        halt a GPU.
    is_centred : bool
        Without it a group is divided by its root mean square, as in RMSNorm.

    Raises
    ------
    TypeError
        If an argument is no array of real floating-point numbers, or not of the kind of
        ``x``.
    ValueError
        If an axis does not exist or is named twice, a shape does not fit, a group has
        no value, or eps is negative or not finite.

    Notes
    -----
    Source: Wu and He (2018), section 3.1: the methods as sets of values that share
    statistics; book, chapters *Batch normalization* and *Choosing the axes*.

    Examples
    --------
    Each row has its own statistics, each column its own gain:

    >>> x, gamma = np.array([[1.0, 3.0], [10.0, 50.0]]), np.array([1.0, 5.0])
    >>> y, cache = normalize_forward(x, gamma, axes=1, parameter_axes=1, eps=0.0)
    >>> y
    array([[-1.,  5.],
           [-1.,  5.]])
    >>> cache.mu.ravel(), cache.var.ravel()
    (array([ 2., 30.]), array([  1., 400.]))
    """
    check_float_array("x", x)
    layout = {
        "axes": sorted_axes(x, axes),
        "parameter_axes": sorted_axes(x, parameter_axes, "parameter_axes"),
        "is_centred": is_centred,
    }
    return checked_forward(x, gamma, beta, eps, **layout)


normalize = without_cache(normalize_forward)


def normalize_backward(dl_dy: Array, cache: NormalizeCache) -> NormalizeGradients:
    r"""Differentiate through a normalization, statistics included, in closed form.

    With :math:`g = \gamma\,\partial\ell/\partial y` and means over the values that
    share statistics,

    .. math::

        \frac{\partial\ell}{\partial x} = \frac1{\sqrt{\sigma^2+\epsilon}}
        \Big(g - \bar g - \hat x\,\overline{g\hat x}\Big), \qquad
        \frac{\partial\ell}{\partial\gamma} = \sum \frac{\partial\ell}{\partial y}
        \,\hat x, \qquad
        \frac{\partial\ell}{\partial\beta} = \sum \frac{\partial\ell}{\partial y},

    the sums over all values that a gain acts on; exact for every
    :math:`\epsilon \ge 0`. Without centring, :math:`\bar g` is missing.

    ``dl_dy`` has shape and kind of ``y``, or else it is refused; ``dl_dx`` has its
    dtype. The others have the shape of gain and bias, also where these were left out.

    Source: book, chapters *The gradient of batch normalization* and *The gradient of
    layer normalization*.

    Examples
    --------
    >>> _, cache = normalize_forward(np.array([[0.0, 3.0, 3.0]]), axes=1, eps=0.0)
    >>> dl_dx, *_ = normalize_backward(np.array([[1.0, 2.0, 0.0]]), cache)
    >>> np.round(dl_dx * np.sqrt(2), 9)  # sigma is the root of 2
    array([[ 0.,  1., -1.]])
    """
    check_like("dl_dy", dl_dy, "y", cache.x_hat)
    return backward(dl_dy, cache)
