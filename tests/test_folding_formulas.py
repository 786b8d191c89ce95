"""The formulas of folding: against batch norm behind and in front of torch's layers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
Shape = tuple[int, ...]


class Case(NamedTuple):
    """A map of torch with the shapes of x and w, and how folding is told about w."""

    name: str
    f: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    x: Shape
    w: Shape
    told: dict[str, Any]

    @property
    def outputs(self) -> int:
        is_transposed = "is_transposed" in self.told
        return self.w[1] * self.told.get("groups", 1) if is_transposed else self.w[0]


def case(name: str, x: Shape, w: Shape, **options: Any) -> Case:
    f = partial(getattr(functional, name), **options)
    told = {key: value for key, value in options.items() if key == "groups"}
    told |= {"is_transposed": True} if "transpose" in name else {}
    return Case(f"{name} {options}", f, x, w, told)


FOLLOWED = [
    case("linear", (4, 3), (5, 3)),
    case("conv2d", (2, 3, 9, 8), (5, 3, 3, 2), stride=2, padding=(1, 2), dilation=2),
    case("conv1d", (2, 6, 7), (4, 3, 3), padding=1, groups=2),
    case("conv2d", (2, 3, 5, 4), (6, 1, 3, 3), padding=1, groups=3),  # depthwise
    case(
        *("conv_transpose2d", (2, 3, 5, 4), (3, 5, 3, 3)),
        stride=2, padding=1, output_padding=1,
    ),
    case("conv_transpose1d", (2, 6, 5), (6, 4, 3), stride=2, groups=2),
    case("conv_transpose3d", (2, 3, 4, 5, 2), (3, 2, 2, 1, 2), groups=3),
]  # fmt: skip
PRECEDED = [
    case("linear", (4, 3), (5, 3)),
    case("conv2d", (2, 3, 9, 8), (5, 3, 3, 2)),
    case("conv1d", (2, 6, 7), (4, 3, 3), stride=2, groups=2),
    case("conv3d", (2, 3, 5, 4, 6), (6, 1, 3, 2, 1), groups=3),  # depthwise
    case("conv_transpose2d", (2, 3, 5, 4), (3, 5, 1, 1)),
    case("conv_transpose2d", (2, 3, 7, 6), (3, 5, 3, 3), padding=(2, 3)),  # all border
    case("conv_transpose1d", (2, 6, 9), (6, 4, 3), padding=4, groups=2, dilation=2),
]


def draw(case: Case, channels: int) -> tuple[Any, ...]:
    """Return x, w, b, and of batch norm statistics, gain, bias and eps."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=shape) for shape in (case.x, case.w, case.outputs))
    mean, gamma, beta = rng.normal(size=(3, channels))
    gamma[0] = 0.0
    norm = (mean, rng.uniform(0.1, 3, channels), gamma, beta)
    return *(torch.tensor(value) for value in (x, w, b, *norm)), EPS


def check_previous(fold: Callable[..., Any], case: Case) -> None:
    """Demand that a map takes in the batch norm behind it."""
    x, w, b, *norm = draw(case, case.outputs)
    for bias in (b, None):
        y = case.f(x, *fold(w, bias, *norm, **case.told))
        expected = batch_norm_inference(case.f(x, w, bias), *norm)
        assert relative_error(y, expected) < EXACT


def check_next(fold: Callable[..., Any], case: Case) -> None:
    """Demand that a map takes in the batch norm before it."""
    x, w, b, *norm = draw(case, case.x[1])
    for bias in (b, None):
        y = case.f(x, *fold(w, bias, *norm, **case.told))
        expected = case.f(batch_norm_inference(x, *norm), w, bias)
        assert relative_error(y, expected) < EXACT


@pytest.mark.parametrize("case", FOLLOWED, ids=lambda case: case.name)
def test_a_map_takes_in_the_batch_norm_behind_it(case: Case) -> None:
    check_previous(fold_into_previous, case)


@pytest.mark.parametrize("case", PRECEDED, ids=lambda case: case.name)
def test_a_map_takes_in_the_batch_norm_before_it(case: Case) -> None:
    check_next(fold_into_next, case)


def check_all(previous: Callable[..., Any], following: Callable[..., Any]) -> None:
    for case in FOLLOWED:
        check_previous(previous, case)
    for case in PRECEDED:
        check_next(following, case)


def test_without_gain_and_bias_they_are_one_and_zero() -> None:
    *_, mean, var, gamma, beta, eps = draw(FOLLOWED[0], 5)
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
    _, *values, _ = draw(FOLLOWED[0], 5)
    before = [value.clone() for value in values]
    fold_into_previous(*values)
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))


def test_every_mutant_of_a_formula_is_caught() -> None:
    assert survivors(fold_into_previous, lambda f: check_all(f, fold_into_next)) == []
    assert survivors(fold_into_next, lambda f: check_all(fold_into_previous, f)) == []


@pytest.mark.parametrize("name", ["scale_and_shift", "_by_groups", "_as_before"])
def test_every_mutant_of_a_helper_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["normbook.folding"]

    def check(helper: Any) -> None:
        monkeypatch.setattr(module, name, helper)
        check_all(fold_into_previous, fold_into_next)
        mean, var = np.array([3.0]), np.array([4.0])
        assert module.scale_and_shift(mean, var, eps=0.0) == (0.5, -1.5)

    assert survivors(getattr(module, name), check) == []


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"w": np.ones(3)}, r"w must have shape \(C_out, C_in\).*got \(3,\); add"),
        ({"b": np.ones(4)}, r"b must have shape \(C_out,\) = \(5,\), got \(4,\)"),
        ({"running_mean": np.ones(3), "running_var": np.ones(3)}, "output channel of"),
        ({"running_var": np.ones(4)}, "running_var must have the shape of running_me"),
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
