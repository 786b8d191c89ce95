"""Check a gradient by central differences, and check the check by wrong formulas.

A comparison that agrees proves something only if it would have disagreed with a
wrong formula. :func:`mutants` makes such formulas, with one thing changed at a time. A
good check rejects every one of them.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import copy
import inspect
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from normbook.arrays import Array, check_float_array, check_like, check_same_shape
from normbook.comparison import as_numpy, detached, relative_error
from normbook.errors import GradientMismatchError
from normbook.normalize import without_cache

__all__ = [
    "Mutant",
    "check_gradient",
    "mutants",
    "numerical_gradient",
    "relative_error",
    "survivors",
]


def numerical_gradient(
    f: Callable[[Array], Array],
    x: Array,
    dl_dy: Array | None = None,
    step: float = 1e-5,
) -> Array:
    r"""Differentiate :math:`\ell = \sum_k g_k f_k(x)` by central differences.

    .. math:: \frac{\partial\ell}{\partial x_i} \approx
        \frac{\ell(x + h_i e_i) - \ell(x - h_i e_i)}{2 h_i},
        \qquad h_i = h \max(1, |x_i|),

    with h the ``step``. The error is of order :math:`h^2` from the formula and of order
    :math:`10^{-16}/h` from rounding. x must be of float64, else a ``TypeError``: in
    float32 half the digits would be noise. ``dl_dy`` is g, of the shape of f(x), what
    arrives from above. Left out, it is all ones; that hides errors in a normalization,
    whose outputs have a constant sum.

    Examples
    --------
    >>> numerical_gradient(lambda x: x**2, np.array([3.0])).round(6)
    array([6.])
    """
    check_float_array("x", x)
    xp = array_namespace(x)
    if x.dtype != xp.float64:
        raise TypeError(
            f"x must be float64 for central differences, got {x.dtype}; convert it."
        )
    _check_positive("step", step, "1e-5")
    # f gets a copy each time: it may write into its argument.
    start, slopes = as_numpy(x).copy(), np.empty(x.shape)
    y = detached(f(xp.asarray(start.copy(), device=device(x))))
    check_float_array("f(x)", y)
    g = xp.ones_like(y) if dl_dy is None else dl_dy
    check_like("dl_dy", g, "f(x)", y)
    for place in np.ndindex(*x.shape):
        h = step * max(1.0, abs(start[place]))
        sides = []
        for signed_h in (h, -h):
            moved = start.copy()
            moved[place] += signed_h
            y = detached(f(xp.asarray(moved, device=device(x))))
            sides.append(float(xp.sum(y * g)))
        slopes[place] = (sides[0] - sides[1]) / (2 * h)
    return xp.asarray(slopes, device=device(x))


def check_gradient(
    f: Callable[[Array], Array],
    x: Array,
    dl_dx: Array,
    dl_dy: Array | None = None,
    *,
    tolerance: float = 1e-7,
    step: float = 1e-5,
) -> float:
    """Compare a gradient with central differences, and return the relative error.

    ``dl_dx``, of the shape of ``x``, is compared with :func:`numerical_gradient` of the
    other arguments. A :func:`relative_error` above ``tolerance``, or NaN, raises a
    :exc:`~normbook.errors.GradientMismatchError` that names the worst place. In float64
    the differences themselves err by some 1e-10, a wrong formula by 1e-3 or more: 1e-7
    lies far from both.

    Examples
    --------
    >>> check_gradient(lambda x: x**2, np.ones(2), np.array([2.0, 3.0]))
    Traceback (most recent call last):
        ...
    normbook.errors.GradientMismatchError: the gradient must agree with central \
    differences to 1e-07, got a relative error of 0.333: at index (1,) it is 3, the \
    differences give 2
    """
    _check_positive("tolerance", tolerance, "1e-7")
    expected = as_numpy(numerical_gradient(f, x, dl_dy, step))
    gradient = as_numpy(dl_dx)
    check_same_shape("dl_dx", gradient, "x", expected)
    error = relative_error(gradient, expected)
    if not error <= tolerance:  # NaN must fail too
        gap = np.nan_to_num(np.abs(gradient - expected), nan=np.inf)
        worst = tuple(int(k) for k in np.unravel_index(np.argmax(gap), gap.shape))
        raise GradientMismatchError(
            f"the gradient must agree with central differences to {tolerance:g}, got "
            f"a relative error of {error:.3g}: at index {worst} it is "
            f"{gradient[worst]:.6g}, the differences give {expected[worst]:.6g}"
        )
    return error


def _check_positive(name: str, value: float, usual: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"{name} must be a positive number, got {value!r}; {usual} is usual in "
            "float64."
        )


class Mutant(NamedTuple):
    """A function with one thing changed, what was changed, and in which line."""

    description: str
    function: Callable[..., Any]
    line: str


def mutants(function: Callable[..., Any]) -> list[Mutant]:
    """Rewrite a function, one change at a time.

    The changes: ``+`` and ``-`` swapped, ``*`` and ``/`` swapped, one side of a
    sum, difference, product or quotient left out, a minus sign dropped, a number
    doubled (0 becomes 1, an exponent grows by 1), ``mean`` and ``sum`` swapped.
    Docstrings, default values and guards (an ``if`` that only raises) are left alone.
    A mutant of a loop may never end; prefer formulas without loops. Of a plain form,
    ``lstm`` say, the body is that of ``lstm_forward``.

    What is no function written with ``def`` in a file or a notebook is a ``TypeError``,
    as is one that is bound, decorated, or uses ``super`` or ``nonlocal``: compiled
    again, it would be another function.

    Examples
    --------
    >>> def debias(running, decay):
    ...     return running / (1 - decay)
    >>> mutant = mutants(debias)[1]
    >>> mutant.description, mutant.function(3.0, 0.5)
    ('running / (1 - decay) -> running', 3.0)
    """
    definition, lines = _definition(function)
    changed = []
    for node in itertools.chain.from_iterable(map(_expressions, definition.body)):
        for new in _changes(node):
            mutant = copy.deepcopy(definition, {id(node): new})  # new in its place
            change = f"{ast.unparse(node)} -> {ast.unparse(new)}"
            line = lines[node.lineno - 1].strip()
            changed.append(Mutant(change, _compiled(mutant, function), line))
    return changed


def survivors(
    function: Callable[..., Any], check: Callable[[Callable[..., Any]], object]
) -> list[str]:
    """Name the mutants of a function that a check lets pass: none, if it is sharp.

    ``check`` takes a function and raises where it finds it wrong; any ``Exception``
    counts, since a mutant that cannot even run has been caught. What it raises on
    ``function`` itself goes on to the caller: a check that rejects the right formula
    says nothing about wrong ones. A function without a mutant is a ``ValueError``.

    Examples
    --------
    >>> def cube(x):
    ...     return x**3
    >>> def check(function):
    ...     assert function(1.0) == 1.0
    >>> survivors(cube, check)  # at 1 no power shows
    ['x ** 3 -> x ** 4', '3 -> 6']
    """
    check(function)
    # Compiled again without a change it must pass too, or else each mutant might fail
    # for reasons that have nothing to do with its change.
    check(_compiled(_definition(function)[0], function))
    changed = mutants(function)
    if not changed:
        raise ValueError(
            f"function must hold something that can be changed, got {function!r} "
            "without a number, an operator or a mean; test another one."
        )
    passed = []
    for mutant in changed:
        with contextlib.suppress(Exception):  # whatever it raises, it was caught
            check(mutant.function)
            passed.append(mutant.description)
    return passed


_SWAPS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_REDUCTIONS = {"mean": "sum", "sum": "mean"}


def _definition(function: Any) -> tuple[ast.FunctionDef, list[str]]:
    """Parse the source of a function; give it in lines too."""
    function = _with_cache(function)
    source, definition = "", None
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
    if not (
        isinstance(definition, ast.FunctionDef)
        and definition.name == getattr(function, "__name__", None)
    ):  # the source of a lambda is the statement around it
        raise TypeError(
            "function must be written with def and its source be at hand, got "
            f"{function!r}; define it in a file or a notebook cell."
        )
    decorators = [ast.unparse(d) for d in definition.decorator_list]
    if (
        not inspect.isfunction(function)
        or set(decorators) - {"staticmethod"}
        or "__class__" in function.__code__.co_freevars
        or any(isinstance(node, ast.Nonlocal) for node in ast.walk(definition))
    ):
        raise TypeError(
            "function must be a plain function, got one that is bound, decorated, or "
            f"uses super or nonlocal: {function!r}; move the formula into a function "
            "of its own."
        )
    definition.decorator_list = []
    # What stands in the signature was evaluated when the function was made.
    arguments = definition.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [d and ast.Constant(None) for d in arguments.kw_defaults]
    return definition, source.splitlines()


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Every expression below a statement, guards left out."""
    match node:
        case ast.Raise() | ast.If(body=[ast.Raise()], orelse=[]):
            return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _expressions(child)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """What to put in the place of an expression."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in _SWAPS:
            yield ast.BinOp(left, _SWAPS[type(op)](), right)
            yield left
            if isinstance(op, ast.Sub):
                yield ast.UnaryOp(ast.USub(), right)
            elif not isinstance(op, ast.Div):
                yield right
        case ast.BinOp(left, ast.Pow() as op, ast.Constant(int(value))):
            yield ast.BinOp(left, op, ast.Constant(value + 1))
        case ast.UnaryOp(ast.USub(), operand):
            yield operand
        case ast.Constant(bool()):
            pass
        case ast.Constant(int(value) | float(value)):
            yield ast.Constant(2 * value if value else 1)
        case ast.Attribute(value, name, context) if name in _REDUCTIONS:
            yield ast.Attribute(value, _REDUCTIONS[name], context)


def _compiled(definition: ast.FunctionDef, function: Any) -> Callable[..., Any]:
    module = ast.fix_missing_locations(ast.Module([definition], type_ignores=[]))
    forward = _with_cache(function)
    # The source is that of a function already loaded, with one expression changed.
    space = forward.__globals__ | inspect.getclosurevars(forward).nonlocals
    flags = __future__.annotations.compiler_flag  # leave annotations unevaluated
    name = f"<mutant of {function.__name__}>"
    exec(compile(module, name, "exec", flags, dont_inherit=True), space)  # noqa: S102
    mutant = space[definition.name]
    mutant.__defaults__ = forward.__defaults__
    mutant.__kwdefaults__ = forward.__kwdefaults__
    changed: Callable[..., Any] = mutant
    return changed if forward is function else without_cache(changed)


def _with_cache(function: Any) -> Any:
    """Return what a plain form runs, any other function itself."""
    name = getattr(function, "__name__", "")
    forward = getattr(function, "__wrapped__", None)
    is_plain = getattr(forward, "__name__", "") == f"{name}_forward"
    return forward if is_plain else function
