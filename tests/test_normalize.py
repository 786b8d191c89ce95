"""The one function of the family: against the definition in torch, and broken.

What needs no gain and bias is tested in test_formulas.py, what all methods keep in
test_methods.py.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from function_pairs import EXACT, assert_gradients, torch_gradients

from normbook.gradient_check import relative_error, survivors
from normbook.normalize import (
    layout,
    normalize,
    normalize_backward,
    normalize_forward,
    standardize,
    without_cache,
)

SHAPE = (5, 3, 4)  # every axis of a different length
EPS = 0.3  # large, so that a wrong place for it is seen
ROUNDING = 1e-12
# Which values share statistics, and along which axes gain and bias differ.
CHOICES: list[tuple[Any, Any]] = [
    (0, 1),
    (-1, -1),
    ((1, 2), (2, 1)),
    ((0, 2), 1),
    (2, (0, 1, 2)),
    ((0, 1, 2), 0),
    (1, (0, 2)),
]
Arrays = tuple[np.ndarray[Any, Any], ...]
each_choice = pytest.mark.parametrize(("axes", "parameter_axes"), CHOICES)
with_and_without_mean = pytest.mark.parametrize("is_centred", [True, False])


def lengths(parameter_axes: Any) -> list[int]:
    """Return the lengths of gain and bias along all axes of x; 1 where shared."""
    named = np.atleast_1d(parameter_axes) % len(SHAPE)
    return [length if axis in named else 1 for axis, length in enumerate(SHAPE)]


def draw(parameter_axes: Any, seed: int = 0) -> Arrays:
    """Return x, gamma, beta and dl_dy."""
    rng = np.random.default_rng(seed)
    shape = [length for length in lengths(parameter_axes) if length > 1]
    parameters = rng.normal(size=shape), rng.normal(size=shape)
    return rng.normal(2, 3, SHAPE), *parameters, rng.normal(size=SHAPE)


def check(
    axes: Any, parameter_axes: Any, is_centred: bool, of: Callable[..., Any]
) -> None:
    """Compare output and gradients with those of the definition in torch."""

    def definition(x: Any, gamma: Any, beta: Any) -> Any:
        mu = x.mean(axes, keepdim=True) if is_centred else 0.0
        var = ((x - mu) ** 2).mean(axes, keepdim=True)
        gamma, beta = (v.reshape(lengths(parameter_axes)) for v in (gamma, beta))
        return (x - mu) / torch.sqrt(var + EPS) * gamma + beta

    *arrays, dl_dy = draw(parameter_axes)
    choice: Any = {"axes": axes, "parameter_axes": parameter_axes, "eps": EPS}
    choice["is_centred"] = is_centred
    y, cache = normalize_forward(*map(of, arrays), **choice)
    np.testing.assert_array_equal(normalize(*map(of, arrays), **choice), y)
    expected, gradients = torch_gradients(definition, dl_dy, *arrays)
    assert relative_error(y, expected) < EXACT
    assert_gradients(normalize_backward(of(dl_dy), cache), gradients)


@each_choice
@with_and_without_mean
@pytest.mark.parametrize("of", [np.asarray, torch.tensor])
def test_output_and_gradients_are_those_of_the_definition(
    axes: Any, parameter_axes: Any, is_centred: bool, of: Callable[..., Any]
) -> None:
    check(axes, parameter_axes, is_centred, of)


@each_choice
def test_without_eps_the_gradient_has_no_part_along_one_or_x_hat(
    axes: Any, parameter_axes: Any
) -> None:
    x, gamma, beta, dl_dy = draw(parameter_axes)
    _, cache = normalize_forward(
        x, gamma, beta, axes=axes, parameter_axes=parameter_axes, eps=0.0
    )
    dl_dx = normalize_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose(dl_dx.sum(axes), 0, atol=ROUNDING)
    np.testing.assert_allclose((dl_dx * cache.x_hat).sum(axes), 0, atol=ROUNDING)


def test_without_centring_the_gradient_loses_its_part_along_x_alone() -> None:
    x, *_, dl_dy = draw(0)
    _, cache = normalize_forward(x, axes=(1, 2), eps=0.0, is_centred=False)
    dl_dx = normalize_backward(dl_dy, cache).dl_dx
    np.testing.assert_allclose((dl_dx * x).sum((1, 2)), 0, atol=ROUNDING)
    assert abs(dl_dx.sum((1, 2))).min() > 1e-3


def test_the_input_is_left_alone() -> None:
    arrays = draw(1)
    before = [a.copy() for a in arrays]
    _, cache = normalize_forward(*arrays[:3], axes=0, parameter_axes=1)
    normalize_backward(arrays[3], cache)
    for now, then in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("name", ["affine", "affine_gradients", "broadcast_along"])
def test_every_mutant_of_a_helper_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["normbook.normalize"]

    def check_with(helper: Any) -> None:
        monkeypatch.setattr(module, name, helper)
        for axes, parameter_axes in CHOICES:
            for is_centred in (True, False):
                check(axes, parameter_axes, is_centred, np.asarray)

    assert survivors(getattr(module, name), check_with) == []


# Each plain form, by its module.
FORMS = {
    "normalize": ["normalize"],
    "batch_norm": ["batch_norm"],
    "layer_norm": ["layer_norm", "rms_norm"],
    "group_norm": ["group_norm", "instance_norm"],
    "weight_norm": ["weight_norm", "weight_standardization"],
    "lstm": ["lstm"],
    "layer_norm_lstm": ["layer_norm_lstm"],
    "layer_norm_rnn": ["layer_norm_rnn"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in FORMS for name in FORMS[module]]
)
def test_a_plain_form_is_the_forward_function_of_its_name(
    module: str, name: str
) -> None:
    functions = vars(importlib.import_module(f"normbook.{module}"))
    form, forward = functions[name], functions[f"{name}_forward"]
    assert (form.__wrapped__, form.__name__, form.__qualname__) == (forward, name, name)
    assert form.__module__ == f"normbook.{module}"
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing .* required pos"):
        form()


def test_a_form_without_cache_passes_all_on_and_gives_the_first_result() -> None:
    def both_forward(x: int, *, y: int = 2) -> tuple[tuple[int, int], str]:
        return (x, y), "cache"

    both = without_cache(both_forward)
    assert (both(1), both(x=3, y=4)) == ((1, 2), (3, 4))
    assert both.__name__ == "both"
    first, signature = tuple[int, int], inspect.signature(both_forward)
    assert inspect.signature(both) == signature.replace(return_annotation=first)
    assert get_type_hints(both) == get_type_hints(both_forward) | {"return": first}


def test_standardize_takes_the_mean_off_with_an_eps_of_1e_5() -> None:
    x = draw(1)[0] / 1000  # so small that eps matters
    y, _ = normalize_forward(x, axes=0, eps=1e-5, is_centred=True)
    np.testing.assert_array_equal(standardize(x, axes=0), y)
    np.testing.assert_array_equal(normalize(x, axes=0), y)


X, ONE = np.ones((4, 3, 2)), np.ones(3)
FORWARD: Any = {"axes": (0, 2), "parameter_axes": 1}
# Changed arguments of a good call, the error, its words; test_methods.py has more.
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"gamma": np.ones(2)},
        ValueError,
        r"gamma must have shape \(3,\), got \(2,\); pass 3 values, one per feature: "
        r"axes \(1,\) of x with shape \(4, 3, 2\)\.",
    ),
    (
        {"gamma": np.ones((2, 3)), "axes": 0, "parameter_axes": (2, 1)},
        ValueError,
        r"gamma must have shape \(3, 2\), got \(2, 3\); pass 6 values",
    ),
    ({"gamma": torch.ones(3)}, TypeError, "of the kind of x, ndarray, got Tensor"),
    (
        {"parameter_axes": -4},
        ValueError,
        r"parameter_axes must lie in -3\.\.2 for x of shape \(4, 3, 2\), got -4",
    ),
    ({"parameter_axes": (1, -2)}, ValueError, "parameter_axes must be different axes"),
    ({"axes": ()}, ValueError, "^axes must name at least one axis"),
    (
        {"parameter_axes": None},
        TypeError,
        "parameter_axes must be an int or a tuple of ints, got None",
    ),
]
BAD_GRADIENTS: list[tuple[Any, type[Exception], str]] = [
    (X[:2], ValueError, r"the shape of y, \(4, 3, 2\), got \(2, 3, 2\)"),
    (torch.tensor(X), TypeError, "dl_dy must be of the kind of y, ndarray, got Tensor"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD)
def test_bad_input_is_refused(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        normalize(**{"x": X, "gamma": ONE, **FORWARD, **changed})


@pytest.mark.parametrize(("dl_dy", "error", "message"), BAD_GRADIENTS)
def test_a_bad_gradient_is_refused(
    dl_dy: Any, error: type[Exception], message: str
) -> None:
    _, cache = normalize_forward(X, **FORWARD)
    with pytest.raises(error, match=message):
        normalize_backward(dl_dy, cache)


@pytest.mark.parametrize(
    ("method", "axes", "parameter_axes"),
    [
        ("batch norm", (0, 2, 3), (1,)),
        ("layer norm", (3,), (3,)),
        ("RMSNorm", (3,), (3,)),
        ("instance norm", (2, 3), (1,)),
        ("group norm", (2, 3), (1, 2)),  # of (N, G, C / G, L)
        ("weight norm", (1, 2, 3), (0,)),
        ("weight standardization", (1, 2, 3), ()),
        ("scaled weight standardization", (1, 2, 3), (0,)),
    ],
)
def test_each_method_has_its_axes(
    method: str, axes: tuple[int, ...], parameter_axes: tuple[int, ...]
) -> None:
    found = layout(method, np.ones((2, 3, 4, 5)))
    assert (found["axes"], found["parameter_axes"]) == (axes, parameter_axes)
    assert found["is_centred"] == (method not in ("RMSNorm", "weight norm"))
