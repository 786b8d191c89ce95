"""The checker itself: it must agree with the right and reject the wrong."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from normbook.errors import GradientMismatchError
from normbook.gradient_check import (
    check_gradient,
    mutants,
    numerical_gradient,
    relative_error,
    survivors,
)
from normbook.normalize import without_cache

X = np.array([[0.3, -1.2, 4.0], [2.0, 0.1, -0.5]])
G = np.array([[1.0, 0.5, -2.0], [0.2, 0.0, 3.0]])


def cube(x: Any) -> Any:
    return x**3


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_central_differences_find_a_known_gradient(kind: Any) -> None:
    found = numerical_gradient(cube, kind(X), kind(G))
    assert type(found) is type(kind(X))
    np.testing.assert_allclose(np.asarray(found), 3 * X**2 * G, rtol=1e-8)


@pytest.mark.parametrize(
    ("f", "g", "right"),
    [
        (cube, None, 3 * X**2),  # all ones
        (lambda x: x @ np.ones((3, 2)), np.ones((2, 2)), 0 * X + 2),
        (lambda x: (x**2).sum(), None, 2 * X),
    ],
    ids=["no upstream gradient", "another shape", "one number"],
)
def test_outputs_may_have_any_shape_and_the_input_is_left_alone(
    f: Any, g: Any, right: Any
) -> None:
    x = X.copy()
    np.testing.assert_allclose(numerical_gradient(f, x, g), right, atol=1e-8)
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_function_may_write_into_its_argument(kind: Any) -> None:
    def doubles(x: Any) -> Any:
        x *= 2
        return x**2

    x = kind([3.0], dtype=torch.float64 if kind is torch.tensor else float)
    assert float(numerical_gradient(doubles, x)[0]) == pytest.approx(24)
    assert float(x[0]) == 3


def test_a_tensor_that_requires_gradients_is_taken() -> None:
    x = torch.tensor(X, requires_grad=True)
    (dl_dx,) = torch.autograd.grad(cube(x), x, torch.tensor(G))
    assert check_gradient(cube, x, dl_dx, torch.tensor(G)) < 1e-8


def test_relative_error_counts_against_the_largest_value() -> None:
    assert relative_error(np.array([4.0, 0.0]), np.array([4.0, 1.0])) == 0.25
    assert relative_error(np.zeros(3), np.zeros(3)) == 0.0
    assert relative_error(np.zeros(0), np.zeros(0)) == 0.0
    inf = np.array([math.inf, 1.0])
    assert relative_error(inf, inf) == 0.0
    low, high = np.array([127, -128], np.int8), np.array([-128, 127], np.int8)
    assert relative_error(low, high) == 255 / 128  # no wrap-around
    half = torch.tensor([1.0], dtype=torch.bfloat16)
    assert relative_error(half, 2 * half) == 0.5
    assert math.isnan(relative_error(np.array([math.nan]), np.ones(1)))


@pytest.mark.parametrize("factor", [0.999999, 1.000001, -1.0, 0.0])
def test_a_wrong_gradient_is_refused(factor: float) -> None:
    with pytest.raises(GradientMismatchError, match="must agree with central differ"):
        check_gradient(cube, X, factor * 3 * X**2 * G, G)


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ((1, 2), 1.0, r"at index \(1, 2\) it is 1.75, .* 0.75"),
        ((0, 1), math.nan, r"error of nan: at index \(0, 1\)"),
    ],
)
def test_the_worst_place_is_named(
    place: tuple[int, int], error: float, message: str
) -> None:
    wrong = 3 * X**2
    wrong[place] += error
    with pytest.raises(GradientMismatchError, match=message):
        check_gradient(cube, X, wrong)


def test_a_mismatch_counts_as_a_failed_assertion() -> None:
    assert issubclass(GradientMismatchError, AssertionError)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((cube, X.astype(np.float32)), TypeError, "must be float64"),
        ((cube, [1.0]), TypeError, "got list"),
        ((cube, X, G[0]), ValueError, r"dl_dy must have the shape of f\(x\)"),
        ((cube, X, 1.0), TypeError, "dl_dy must be a NumPy array"),
        ((cube, X, torch.tensor(G)), TypeError, "dl_dy must be of the kind"),
        ((lambda x: None, X), TypeError, r"f\(x\) must be a NumPy array"),
        ((lambda x: x.astype(int), X), TypeError, r"f\(x\) must hold real"),
        ((cube, X, G, 0.0), ValueError, "step must be a positive number, got 0.0"),
        ((cube, X, G, math.nan), ValueError, "step must be a positive"),
    ],
)
def test_bad_input_is_refused(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        numerical_gradient(*arguments)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf])
def test_a_tolerance_that_decides_nothing_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance must be a positive number"):
        check_gradient(cube, X, 3 * X**2, tolerance=tolerance)


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="dl_dx must have the shape of x"):
        check_gradient(cube, X, X[0])
    with pytest.raises(ValueError, match="a must have the shape of b"):
        relative_error(X, X[0])


def formula(x: Any, scale: float = 2.0) -> Any:
    """Text with 3 numbers + signs, which are not code."""
    if scale < 0:
        raise ValueError(f"scale must be >= 0, got {scale - 1 + 1}")
    centred = x - x.mean(0, keepdims=True)
    return -scale * centred / (1 + centred**2)


def test_each_kind_of_change_is_made_once_for_each_place() -> None:
    found = [m.description for m in mutants(formula)]
    assert len(found) == len(set(found))
    for change in [
        "x - x.mean(0, keepdims=True) -> x + x.mean(0, keepdims=True)",  # sign
        "x - x.mean(0, keepdims=True) -> x",  # term left out
        "x.mean -> x.sum",  # reduction
        "-scale -> scale",  # minus dropped
        "centred ** 2 -> centred ** 3",  # exponent
        "1 + centred ** 2 -> centred ** 2",
        "-scale * centred -> -scale / centred",
        "2 -> 4",
    ]:
        assert change in found
    assert not any("1 + 1" in change or "2.0" in change for change in found)


def test_each_change_names_the_line_it_was_made_in() -> None:
    lines = {m.description: m.line for m in mutants(formula)}
    assert set(lines.values()) == {
        "centred = x - x.mean(0, keepdims=True)",
        "return -scale * centred / (1 + centred**2)",
    }
    assert lines["x.mean -> x.sum"].startswith("centred =")
    assert lines["2 -> 4"].startswith("return")


def test_a_line_is_found_below_a_decorator_and_inside_a_loop() -> None:
    assert mutants(Formula.static)[-1].line == "y = y - x"


def test_mutants_differ_from_the_formula_and_leave_it_alone() -> None:
    before = formula(X)
    for mutant in mutants(formula):
        assert not np.allclose(mutant.function(X), before), mutant.description
    np.testing.assert_array_equal(formula(X), before)


def test_a_sharp_check_leaves_no_survivor_and_a_blunt_one_does() -> None:
    def sharp(f: Any) -> None:
        np.testing.assert_allclose(f(2.0), 8.0)

    def blunt(f: Any) -> None:
        assert f(0.0) == 0.0

    assert survivors(cube, sharp) == []
    assert survivors(cube, blunt) == ["x ** 3 -> x ** 4", "3 -> 6"]


def test_a_check_that_rejects_the_right_formula_is_reported() -> None:
    def wrong(f: Any) -> None:
        assert f(2.0) == 9.0

    with pytest.raises(AssertionError):
        survivors(cube, wrong)


def test_variables_and_default_values_are_those_of_the_function() -> None:
    factor = local = 3.0

    def scaled(x: float, power: float = local, *, shift: float = local) -> float:
        return factor * x + power + shift

    local = 100.0
    assert scaled(1.0) == 9
    by_change = {m.description: m.function(1.0) for m in mutants(scaled)}
    assert by_change["factor * x -> factor / x"] == 9
    assert by_change["factor * x -> x"] == 7
    assert by_change["factor * x + power -> factor * x - power"] == 3


class Formula:
    """Functions that compiled again would be others."""

    def bound(self, x: float) -> float:
        return 2 * x

    def with_super(self, x: float) -> float:
        return super().__hash__() * 0 + 2 * x

    @contextlib.contextmanager
    def decorated(self) -> Iterator[float]:
        yield 1 + 1

    @staticmethod
    def static(x: float) -> float:
        y = 0.0
        for _ in range(2):
            y = y - x
        return y


@pytest.mark.parametrize(
    "function",
    [Formula().bound, Formula.with_super, Formula.decorated, len, lambda x: x, np.sin],
)
def test_what_cannot_be_rewritten_or_would_be_another_function_is_refused(
    function: Any,
) -> None:
    with pytest.raises(TypeError, match=r"function must be (a plain|written with def)"):
        survivors(function, lambda f: None)


def test_a_static_method_is_a_plain_function() -> None:
    def check(f: Any) -> None:
        assert f(3.0) == -6

    assert survivors(Formula.static, check) == []


def doubled_forward(x: float) -> tuple[float, str]:
    return x + x, "cache"


def test_mutants_of_a_plain_form_are_those_of_the_function_behind_it() -> None:
    def check(f: Any) -> None:
        assert f(3.0) == 6

    doubled = without_cache(doubled_forward)
    descriptions = [mutant.description for mutant in mutants(doubled_forward)]
    assert [mutant.description for mutant in mutants(doubled)] == descriptions
    assert [m.function(3.0) for m in mutants(doubled)] == [0, 3, 3]
    assert survivors(doubled, check) == []


def test_a_function_without_anything_to_change_is_refused() -> None:
    def identity(x: Any) -> Any:
        return x

    with pytest.raises(ValueError, match="must hold something that can be changed"):
        survivors(identity, lambda f: None)
