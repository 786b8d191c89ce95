"""The formulas of folding: against batch norm behind and in front of torch's layers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normbook.batch_norm import batch_norm_inference
from normbook.folding import fold_into_next, fold_into_previous, scale_and_shift
from normbook.gradient_check import relative_error, survivors

EXACT = 1e-13  # float64, sums of a hundred terms
EPS = 0.1
Map = Callable[[Tensor, Tensor, Tensor | None], Tensor]

# The map, the shapes of x and w, and how fold_into_previous is told about w.
FOLLOWED: dict[str, tuple[Map, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "linear": (functional.linear, (4, 3), (5, 3), {}),
    "conv": (
        lambda x, w, b: functional.conv2d(x, w, b, 2, (1, 2), 2),
        (2, 3, 9, 8),
        (5, 3, 3, 2),
        {},
    ),
    "grouped": (
        lambda x, w, b: functional.conv1d(x, w, b, padding=1, groups=2),
        (2, 6, 7),
        (4, 3, 3),
        {"groups": 2},
    ),
    "depthwise": (
        lambda x, w, b: functional.conv2d(x, w, b, padding=1, groups=3),
        (2, 3, 5, 4),
        (6, 1, 3, 3),
        {"groups": 3},
    ),
    "transposed": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1, 1),
        (2, 3, 5, 4),
        (3, 5, 3, 3),
        {"is_transposed": True},
    ),
    "grouped transposed": (
        lambda x, w, b: functional.conv_transpose1d(x, w, b, 2, groups=2),
        (2, 6, 5),
        (6, 4, 3),
        {"is_transposed": True, "groups": 2},
    ),
    "grouped transposed volume": (
        lambda x, w, b: functional.conv_transpose3d(x, w, b, groups=3),
        (2, 3, 4, 5, 2),
        (3, 2, 2, 1, 2),
        {"is_transposed": True, "groups": 3},
    ),
}
PRECEDED: dict[str, tuple[Map, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "linear": (functional.linear, (4, 3), (5, 3), {}),
    "conv": (functional.conv2d, (2, 3, 9, 8), (5, 3, 3, 2), {}),
    "grouped": (
        lambda x, w, b: functional.conv1d(x, w, b, 2, groups=2),
        (2, 6, 7),
        (4, 3, 3),
        {"groups": 2},
    ),
    "depthwise": (
        lambda x, w, b: functional.conv3d(x, w, b, groups=3),
        (2, 3, 5, 4, 6),
        (6, 1, 3, 2, 1),
        {"groups": 3},
    ),
    "transposed 1 x 1": (
        functional.conv_transpose2d,
        (2, 3, 5, 4),
        (3, 5, 1, 1),
        {"is_transposed": True},
    ),
    "transposed, all of the border cut off": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, padding=(2, 3)),
        (2, 3, 7, 6),
        (3, 5, 3, 3),
        {"is_transposed": True},
    ),
    "grouped transposed, dilated": (
        lambda x, w, b: functional.conv_transpose1d(
            x, w, b, padding=4, groups=2, dilation=2
        ),
        (2, 6, 9),
        (6, 4, 3),
        {"is_transposed": True, "groups": 2},
    ),
}


def draw(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], c_out: int, channels: int
) -> tuple[Any, ...]:
    """Give x, w, b, and of batch norm statistics, gain, bias and eps."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=shape) for shape in (x_shape, w_shape, (c_out,)))
    mean, gamma, beta = rng.normal(size=(3, channels))
    gamma[0] = 0.0
    norm = (mean, rng.uniform(0.1, 3, channels), gamma, beta)
    return *(torch.tensor(value) for value in (x, w, b, *norm)), EPS


def outputs(w_shape: tuple[int, ...], told: dict[str, Any]) -> int:
    is_transposed = told.get("is_transposed", False)
    return w_shape[1] * told.get("groups", 1) if is_transposed else w_shape[0]


def followed(name: str) -> tuple[Map, tuple[Any, ...], dict[str, Any]]:
    f, x_shape, w_shape, told = FOLLOWED[name]
    c_out = outputs(w_shape, told)
    return f, draw(x_shape, w_shape, c_out, c_out), told


def preceded(name: str) -> tuple[Map, tuple[Any, ...], dict[str, Any]]:
    f, x_shape, w_shape, told = PRECEDED[name]
    return f, draw(x_shape, w_shape, outputs(w_shape, told), x_shape[1]), told


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_map_takes_in_the_batch_norm_behind_it(name: str, has_bias: bool) -> None:
    f, (x, w, b, *norm), told = followed(name)
    b = b if has_bias else None
    folded = fold_into_previous(w, b, *norm, **told)
    expected = batch_norm_inference(f(x, w, b), *norm)
    assert relative_error(f(x, *folded), expected) < EXACT


@pytest.mark.parametrize("name", PRECEDED)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_map_takes_in_the_batch_norm_before_it(name: str, has_bias: bool) -> None:
    f, (x, w, b, *norm), told = preceded(name)
    b = b if has_bias else None
    folded = fold_into_next(w, b, *norm, **told)
    expected = f(batch_norm_inference(x, *norm), w, b)
    assert relative_error(f(x, *folded), expected) < EXACT


def test_without_gain_and_bias_they_are_one_and_zero() -> None:
    *_, mean, var, gamma, beta, eps = draw((4, 3), (5, 3), 5, 5)
    ours = scale_and_shift(mean, var, eps=eps)
    expected = scale_and_shift(mean, var, gamma * 0 + 1, beta * 0, eps)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_a_gain_alone_and_a_bias_alone_count() -> None:
    mean, var, gamma, beta = (np.array([v]) for v in (3.0, 4.0, 6.0, 1.0))
    assert scale_and_shift(mean, var, gamma, None, 0.0) == ([3.0], [-9.0])
    assert scale_and_shift(mean, var, None, beta, 0.0) == ([0.5], [-0.5])


@pytest.mark.parametrize("fold", [fold_into_previous, fold_into_next])
def test_folded_weights_have_the_dtype_of_the_weights(fold: Callable[..., Any]) -> None:
    values = [np.ones(shape, np.float16) for shape in ((3, 3), (3,), (3,), (3,))]
    assert {value.dtype for value in fold(*values)} == {np.dtype(np.float16)}


def test_half_precision_is_rounded_once() -> None:
    # In float16 alone, 1 / sqrt(4 + 1e-5) and its product would each be rounded.
    w, mean, var = (np.array(v, np.float16) for v in ([[0.1]], [0.0], [0.3]))
    k = 1 / np.sqrt(np.float32(var) + np.float32(1e-5))
    expected = (k * np.float32(w)).astype(np.float16)
    assert fold_into_previous(w, None, mean, var).w == expected


def test_the_arguments_are_not_changed() -> None:
    _, (_, *values, _), _ = followed("linear")
    before = [value.clone() for value in values]
    fold_into_previous(*values)
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))


def check_previous(fold: Callable[..., Any]) -> None:
    for name in FOLLOWED:
        f, (x, w, b, *norm), told = followed(name)
        for bias in (b, None):
            y = f(x, *fold(w, bias, *norm, **told))
            expected = batch_norm_inference(f(x, w, bias), *norm)
            assert relative_error(y, expected) < EXACT


def check_next(fold: Callable[..., Any]) -> None:
    for name in PRECEDED:
        f, (x, w, b, *norm), told = preceded(name)
        for bias in (b, None):
            y = f(x, *fold(w, bias, *norm, **told))
            expected = f(batch_norm_inference(x, *norm), w, bias)
            assert relative_error(y, expected) < EXACT


def test_every_mutant_of_a_formula_is_caught() -> None:
    assert survivors(fold_into_previous, check_previous) == []
    assert survivors(fold_into_next, check_next) == []


@pytest.mark.parametrize("name", ["scale_and_shift", "_across_rows"])
def test_every_mutant_of_a_helper_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["normbook.folding"]

    def check(helper: Any) -> None:
        monkeypatch.setattr(module, name, helper)
        check_previous(fold_into_previous)
        check_next(fold_into_next)
        mean, var = np.array([3.0]), np.array([4.0])
        assert module.scale_and_shift(mean, var, eps=0.0) == (0.5, -1.5)

    assert survivors(getattr(module, name), check) == []


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"w": np.ones(3)}, r"w must have shape \(C_out, C_in\).*got \(3,\); add"),
        ({"b": np.ones(4)}, r"b must have shape \(C_out,\) = \(5,\), got \(4,\)"),
        (
            {"running_mean": np.ones(3), "running_var": np.ones(3)},
            "output channel of w",
        ),
        (
            {"running_var": np.ones(4)},
            "running_var must have the shape of running_mean",
        ),
        ({"gamma": np.ones((5, 1))}, "gamma must have the shape of running_mean"),
        ({"beta": np.ones(4)}, "beta must have the shape of running_mean"),
        ({"running_mean": np.ones((5, 1))}, r"running_mean must have shape \(C,\)"),
        ({"eps": -1.0}, "eps must be a finite number >= 0, got -1.0"),
        ({"groups": 2}, "groups must divide the length of axis 0 of w, 5, got 2"),
        ({"groups": 0}, "groups must divide .*, got 0; pass the groups"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], match: str) -> None:
    fitting: dict[str, Any] = {"w": np.ones((5, 3)), "b": np.ones(5)}
    statistics = {"running_mean": np.ones(5), "running_var": np.ones(5)}
    with pytest.raises(ValueError, match=match):
        fold_into_previous(**{**fitting, **statistics, **arguments})


def test_batch_norm_of_the_outputs_does_not_fit_the_inputs() -> None:
    w, five = np.ones((5, 3)), np.ones(5)
    with pytest.raises(ValueError, match=r"each input channel of w, shape \(3,\)"):
        fold_into_next(w, None, five, five)
    with pytest.raises(ValueError, match=r"each input channel of w, shape \(5,\)"):
        fold_into_next(w, None, np.ones(3), np.ones(3), is_transposed=True)


@pytest.mark.parametrize("name", ["w", "running_mean", "running_var"])
def test_what_is_no_float_array_is_refused(name: str) -> None:
    values: dict[str, Any] = {"w": np.ones((5, 3)), "b": None}
    values |= {"running_mean": np.ones(5), "running_var": np.ones(5)}
    for wrong in (None, [1.0], np.ones(5, int)):
        with pytest.raises(TypeError, match=f"{name} must"):
            fold_into_previous(**{**values, name: wrong})


def test_a_numpy_array_beside_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="running_mean must be of the kind of w"):
        fold_into_previous(torch.ones(5, 3), None, np.ones(5), np.ones(5))
