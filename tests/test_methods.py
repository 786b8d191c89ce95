"""What every method keeps: torch's values, exact gradients, one rounding, its errors.

What is special to one of them stands in the file of its name. The last part holds the
table of methods: each row is needed, and a wrong row is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from function_pairs import (
    EXACT,
    assert_differences,
    assert_gradients,
    check_scaled_weight_standardization,
    check_weight_norm,
    check_weight_standardization,
    torch_gradients,
)
from torch.nn import functional

from normbook import batch_norm, group_norm, layer_norm
from normbook.gradient_check import relative_error
from normbook.normalize import METHODS, NormalizeCache, NormalizeGradients

EPS = 0.3
ROUNDING = 1e-12
Arrays = tuple[Any, ...]
Shape = tuple[int, ...]


class Case(NamedTuple):
    """A method on x of some shape: the package's and torch's, of (x, gamma, beta, eps).

    `features` is the shape of the gain.
    """

    method: str
    forward: Callable[..., tuple[Any, NormalizeCache]]
    backward: Callable[[Any, NormalizeCache], NormalizeGradients]
    theirs: Callable[..., torch.Tensor]
    shape: Shape
    features: Shape
    has_bias: bool = True

    def y(self, *arguments: Any) -> Any:
        return self.forward(*arguments)[0]

    def draw(self, seed: int = 0) -> Arrays:
        """Return x, gamma, beta and dl_dy; of methods without a bias it is zero."""
        rng = np.random.default_rng(seed)
        gamma, beta = rng.normal(1, 0.5, (2, *self.features))
        x, dl_dy = rng.normal(2, 3, self.shape), rng.normal(size=self.shape)
        return x, gamma, beta * self.has_bias, dl_dy


def batch(shape: Shape) -> Case:
    def theirs(x: Any, gamma: Any, beta: Any, eps: float) -> torch.Tensor:
        return functional.batch_norm(x, None, None, gamma, beta, True, eps=eps)

    ours = batch_norm.batch_norm_forward, batch_norm.batch_norm_backward
    return Case("batch norm", *ours, theirs, shape, shape[1:2])


def layer(shape: Shape, axes: Any = -1) -> Case:
    def theirs(x: Any, gamma: Any, beta: Any, eps: float) -> torch.Tensor:
        return functional.layer_norm(x, shape[-np.size(axes) :], gamma, beta, eps)

    forward = partial(layer_norm.layer_norm_forward, axes=axes)
    ours = forward, layer_norm.layer_norm_backward
    return Case("layer norm", *ours, theirs, shape, shape[-np.size(axes) :])


def rms(shape: Shape, axes: Any = -1) -> Case:
    def forward(x: Any, gamma: Any = None, beta: Any = None, *eps: float) -> Any:
        return layer_norm.rms_norm_forward(x, gamma, *eps, axes=axes)

    def theirs(x: Any, gamma: Any, beta: Any, eps: float) -> torch.Tensor:
        # A bias that is zero, so that autograd finds a gradient for it.
        y = functional.rms_norm(x, shape[-np.size(axes) :], gamma, eps)
        return y if beta is None else y + beta

    ours = forward, layer_norm.rms_norm_backward
    features = shape[-np.size(axes) :]
    return Case("RMSNorm", *ours, theirs, shape, features, has_bias=False)


def instance(shape: Shape) -> Case:
    def theirs(x: Any, gamma: Any, beta: Any, eps: float) -> torch.Tensor:
        return functional.instance_norm(x, weight=gamma, bias=beta, eps=eps)

    ours = group_norm.instance_norm_forward, group_norm.instance_norm_backward
    return Case("instance norm", *ours, theirs, shape, shape[1:2])


def group(shape: Shape, num_groups: int) -> Case:
    def forward(x: Any, *rest: Any) -> Any:
        return group_norm.group_norm_forward(x, num_groups, *rest)

    def theirs(x: Any, *rest: Any) -> torch.Tensor:
        return functional.group_norm(x, num_groups, *rest)

    ours = forward, group_norm.group_norm_backward
    return Case("group norm", *ours, theirs, shape, shape[1:2])


SQUARES: list[tuple[Shape, Any]] = [
    ((7, 3), -1),
    ((5, 3, 4), -1),
    ((2, 5, 3, 4), (1, 2, 3)),
    ((2, 5, 3, 4), (3, 2)),
    ((6,), 0),
]
IMAGES: list[Shape] = [(5, 6, 4), (3, 6, 2, 5), (2, 6, 3, 4, 5)]
CASES = [
    *map(batch, [(7, 3), (5, 3, 4), (4, 3, 2, 5), (2, 3, 4, 2, 5)]),
    *(layer(*where) for where in SQUARES),
    *(rms(*where) for where in SQUARES),
    *map(instance, IMAGES),
    *(group(shape, num_groups) for shape in IMAGES for num_groups in (1, 2, 3, 6)),
    *(group((5, 6), num_groups) for num_groups in (1, 2, 3)),
]
# One of each, with a mean over many values.
ONE_OF_EACH = [
    batch((64, 3)),
    layer((64, 30)),
    rms((64, 30)),
    instance((3, 6, 4, 5)),
    group((3, 6, 4, 5), 2),
]


def named(case: Any) -> str | None:
    return f"{case.method} {case.shape}" if isinstance(case, Case) else None


each_case = pytest.mark.parametrize("case", CASES, ids=named)
each_method = pytest.mark.parametrize("case", ONE_OF_EACH, ids=named)
each_kind = pytest.mark.parametrize("of", [np.asarray, torch.tensor])


def assert_equal_torch(case: Case, of: Callable[..., Any] = np.asarray) -> None:
    *arrays, dl_dy = case.draw()
    y, cache = case.forward(*map(of, arrays), EPS)
    expected, gradients = torch_gradients(
        lambda *leaves: case.theirs(*leaves, EPS), dl_dy, *arrays
    )
    assert relative_error(y, expected) < EXACT
    assert_gradients(case.backward(of(dl_dy), cache), gradients)


@each_kind
@each_case
def test_values_and_gradients_equal_torch(case: Case, of: Callable[..., Any]) -> None:
    assert_equal_torch(case, of)


# These functions choose axes and nothing more, and survivors changes formulas: what
# can go wrong in them is written out, for layer norm of (5, 3, 4).
WRONG_CHOICES: dict[str, Callable[..., Any]] = {
    "without parameters": lambda x, g, b, eps: (
        layer_norm.layer_norm(x, None, None, eps, axes=(1, 2)),
        layer_norm.layer_norm_forward(x, g, b, eps, axes=(1, 2))[1],
    ),
    "statistics of the batch": lambda x, g, b, eps: batch_norm.batch_norm_forward(
        x, g[:, 0], b[:, 0], eps
    ),
    "the usual axis": lambda x, g, b, eps: layer_norm.layer_norm_forward(
        x, g[0], b[0], eps
    ),
    "the usual eps": lambda x, g, b, eps: layer_norm.layer_norm_forward(
        x, g, b, axes=(1, 2)
    ),
    "no mean": lambda x, g, b, eps: layer_norm.rms_norm_forward(x, g, eps, axes=(1, 2)),
}


@pytest.mark.parametrize("name", WRONG_CHOICES)
def test_a_wrong_choice_is_caught(name: str) -> None:
    right = layer((5, 3, 4), (1, 2))
    assert_equal_torch(right)
    with pytest.raises((AssertionError, ValueError)):
        assert_equal_torch(right._replace(forward=WRONG_CHOICES[name]))


@each_method
def test_gradients_agree_with_central_differences(case: Case) -> None:
    small = case._replace(shape=(2, *case.shape[1:]))
    *arrays, dl_dy = small.draw()
    gradients = tuple(case.backward(dl_dy, case.forward(*arrays, EPS)[1]))
    if not case.has_bias:
        arrays, gradients = arrays[:2], gradients[:2]
    beta = () if case.has_bias else (None,)
    assert_differences(
        lambda *given: case.forward(*given, *beta, EPS)[0],
        tuple(arrays), dl_dy, gradients,
    )  # fmt: skip


@each_method
def test_the_usual_eps_is_1e_5(case: Case) -> None:
    x = case.draw()[0] / 1000  # so small that eps matters
    expected = case.theirs(torch.tensor(x), None, None, 1e-5)
    assert relative_error(case.y(x), expected) < EXACT


@each_method
def test_gain_and_bias_default_to_one_and_zero(case: Case) -> None:
    x, _, _, dl_dy = case.draw()
    one, zero = np.ones(case.features), np.zeros(case.features)
    y, cache = case.forward(x, None, None)
    same_y, same_cache = case.forward(x, one, zero)
    np.testing.assert_array_equal(y, same_y)
    gradients = case.backward(dl_dy, cache)
    assert gradients.dl_dgamma.shape == gradients.dl_dbeta.shape == case.features
    for a, b in zip(gradients, case.backward(dl_dy, same_cache), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_method
def test_half_precision_is_rounded_once(case: Case, dtype: torch.dtype) -> None:
    x, gamma, beta, dl_dy = (torch.tensor(a).float() for a in case.draw())
    x, dl_dy = x.to(dtype), dl_dy.to(dtype)
    y, cache = case.forward(x, gamma, beta, EPS)
    exact, exact_cache = case.forward(x.float(), gamma, beta, EPS)
    gradients = case.backward(dl_dy, cache)
    expected = case.backward(dl_dy.float(), exact_cache)
    assert y.dtype == gradients.dl_dx.dtype == dtype
    assert torch.equal(y, exact.to(dtype))
    assert torch.equal(gradients.dl_dx, expected.dl_dx.to(dtype))
    # Sums over many values stay in float32.
    assert torch.equal(gradients.dl_dgamma, expected.dl_dgamma)
    assert torch.equal(gradients.dl_dbeta, expected.dl_dbeta)


@each_method
def test_a_large_mean_in_float32_costs_no_more_than_in_torch(case: Case) -> None:
    x = (case.draw()[0] / 3 + 1e4).astype(np.float32)  # mean / std is 1e4
    exact = case.y(x.astype(np.float64))
    theirs = case.theirs(torch.tensor(x), None, None, 1e-5)
    reference = relative_error(theirs, exact)
    assert relative_error(case.y(x), exact) <= max(2 * reference, 1e-5)


@each_method
def test_views_with_gaps_give_the_same(case: Case) -> None:
    x, gamma, beta, dl_dy = map(torch.tensor, case.draw())
    order = (*range(1, x.ndim), 0)
    turned = [a.permute(order).contiguous().movedim(-1, 0) for a in (x, dl_dy)]
    assert not turned[0].is_contiguous()
    y, cache = case.forward(turned[0], gamma, beta, EPS)
    expected, dense = case.forward(x, gamma, beta, EPS)
    assert relative_error(y, expected) < ROUNDING
    dl_dx = case.backward(turned[1], cache).dl_dx
    assert relative_error(dl_dx, case.backward(dl_dy, dense).dl_dx) < ROUNDING


@pytest.mark.parametrize("case", ONE_OF_EACH[1:], ids=named)
def test_an_example_does_not_act_on_another(case: Case) -> None:
    x, gamma, beta, dl_dy = case.draw()
    y, cache = case.forward(x, gamma, beta, EPS)
    alone, alone_cache = case.forward(x[2:3], gamma, beta, EPS)
    dl_dx = case.backward(dl_dy, cache).dl_dx[2:3]
    np.testing.assert_allclose(y[2:3], alone, rtol=ROUNDING, atol=ROUNDING)
    alone_dl_dx = case.backward(dl_dy[2:3], alone_cache).dl_dx
    np.testing.assert_allclose(dl_dx, alone_dl_dx, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("case", ONE_OF_EACH[1:], ids=named)
def test_an_empty_batch_gives_an_empty_result_and_gradients_of_zero(case: Case) -> None:
    empty = case._replace(shape=(0, *case.shape[1:]))
    *arrays, dl_dy = empty.draw()
    y, cache = case.forward(*arrays, EPS)
    dl_dx, dl_dgamma, dl_dbeta = case.backward(dl_dy, cache)
    assert y.shape == dl_dx.shape == empty.shape
    zero = np.zeros((2, *case.features))
    np.testing.assert_array_equal([dl_dgamma, dl_dbeta], zero)


# --- errors of them all: what x, gamma, beta and eps become, and the message

Refusal = tuple[Callable[..., Arrays], type[Exception], str]
BAD_ARGUMENTS: dict[str, Refusal] = {
    "list": (lambda x, g: (x.tolist(), g), TypeError, "^x must be .* got list"),
    "int": (lambda x, g: (x.astype(int), g), TypeError, "^x must hold real.* int64"),
    "gain of another length": (
        lambda x, g: (x, np.ones(99)),
        ValueError,
        r"gamma must have shape .*, got \(99,\); pass \d+ values, one per feature",
    ),
    "gain of too many axes": (
        lambda x, g: (x, g[None]),
        ValueError,
        r"gamma must have shape .* got \(1, \d+\)",
    ),
    "gain a number": (lambda x, g: (x, 2.0), TypeError, "gamma must be a NumPy array"),
    "gain of torch": (
        lambda x, g: (x, torch.tensor(g)),
        TypeError,
        "gamma must be of the kind of x",
    ),
    "gain of int": (
        lambda x, g: (x, g.astype(int)),
        TypeError,
        "gamma must hold real floating-point",
    ),
    "bias of x's shape": (
        lambda x, g: (x, g, x),
        ValueError,
        "beta must have shape",
    ),
    "bias of torch": (
        lambda x, g: (x, g, torch.tensor(g)),
        TypeError,
        "beta must be of the kind of x",
    ),
    "eps": (lambda x, g: (x, g, None, -1.0), ValueError, "^eps must be a finite"),
}
OTHER_SHAPE = r"dl_dy must have the shape of y, \(.*got \("
BAD_GRADIENTS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "shape": (lambda d: d[:2], ValueError, OTHER_SHAPE + "2, "),
    "axes": (lambda d: d[0], ValueError, OTHER_SHAPE),
    "dtype": (lambda d: d.astype(int), TypeError, "dl_dy must hold real"),
    "kind": (torch.tensor, TypeError, "dl_dy must be of the kind of y"),
}


EMPTY_GROUPS = [
    (batch((64, 3)), (0, 3)),
    (layer((64, 30)), (64, 0)),
    (rms((64, 30)), (64, 0)),
    (instance((3, 6, 4, 5)), (3, 6, 0, 5)),
    (group((3, 6, 4, 5), 2), (3, 6, 0, 5)),
    (group((3, 6, 4, 5), 2), (3, 0, 4, 5)),
]


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (case, name)
        for case in ONE_OF_EACH
        for name in BAD_ARGUMENTS
        if case.has_bias or not name.startswith("bias")
    ],
    ids=named,
)
def test_a_bad_argument_is_refused(case: Case, name: str) -> None:
    change, error, message = BAD_ARGUMENTS[name]
    with pytest.raises(error, match=message):
        case.y(*change(*case.draw()[:2]))


@pytest.mark.parametrize(("case", "shape"), EMPTY_GROUPS, ids=named)
def test_a_group_without_values_is_refused(case: Case, shape: Shape) -> None:
    with pytest.raises(ValueError, match="at least one value in each group, got x of"):
        case.y(np.zeros(shape))


@each_method
@pytest.mark.parametrize("name", BAD_GRADIENTS)
def test_a_bad_gradient_is_refused(case: Case, name: str) -> None:
    change, error, message = BAD_GRADIENTS[name]
    x, gamma, _, dl_dy = case.draw()
    _, cache = case.forward(x, gamma, None)
    with pytest.raises(error, match=message):
        case.backward(change(dl_dy), cache)


# --- the table of methods

SHAPE = (5, 4, 3, 2)  # every axis of a different length
CHECKS: dict[str, Callable[[], None]] = {
    "batch norm": partial(assert_equal_torch, batch(SHAPE)),
    "layer norm": partial(assert_equal_torch, layer(SHAPE)),
    "RMSNorm": partial(assert_equal_torch, rms(SHAPE)),
    "instance norm": partial(assert_equal_torch, instance(SHAPE)),
    "group norm": partial(assert_equal_torch, group(SHAPE, 2)),
    "weight norm": check_weight_norm,
    "weight standardization": check_weight_standardization,
    "scaled weight standardization": check_scaled_weight_standardization,
}
AXES: list[tuple[Any, ...]] = [(0, 2, ...), (2, ...), (1, ...), (0, 1), (-1,), (1,)]
# Layer norm and RMSNorm take their axes as an argument; the row is its default.
BY_ROW = [name for name in METHODS if METHODS[name].axes != (-1,)]


def test_every_method_is_held() -> None:
    assert CHECKS.keys() == METHODS.keys()
    for check in CHECKS.values():
        check()


def test_axes_are_counted_from_0() -> None:
    of_layer = {"axes": (3,), "parameter_axes": (3,), "is_centred": True}
    assert METHODS["layer norm"].of(4) == of_layer
    of_batch = {"axes": (0, 2, 3), "parameter_axes": (1,), "is_centred": True}
    assert METHODS["batch norm"].of(4) == of_batch


@pytest.mark.parametrize("method", BY_ROW)
def test_other_axes_are_noticed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = METHODS[method]
    for axes in AXES:
        if axes != right.axes:
            monkeypatch.setitem(METHODS, method, right._replace(axes=axes))
            with pytest.raises(AssertionError):  # by value, and not by an error
                CHECKS[method]()


@pytest.mark.parametrize("method", [*BY_ROW, "RMSNorm"])
def test_a_mean_too_many_or_too_few_is_noticed(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = METHODS[method]
    wrong = right._replace(is_centred=not right.is_centred)
    monkeypatch.setitem(METHODS, method, wrong)
    with pytest.raises(AssertionError):
        CHECKS[method]()
