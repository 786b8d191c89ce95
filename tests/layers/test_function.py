"""The Functions of all layers: derivatives of first and second order, both ways."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_derivatives import (
    arguments,
    as_function,
    assert_same_derivatives,
    penalty,
    tangent_of,
)
from layer_pairs import (
    AVERAGED,
    EVERY,
    EXACT,
    EXAMPLES,
    FEATURES,
    GROUPS,
    HALF,
    INSTANCES,
    PAIRS,
    Pair,
    assert_equal,
    assert_every_mutant_is_caught,
    distance,
    draw,
    each_case,
    each_pair,
    name,
    run,
    twins,
)
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from normbook.layers import function as module
from normbook.layers.function import normalize
from normbook.layers.native import NATIVE

# torch's forward mode loads functions that torch itself still scripts.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True, params=["1", "0"], ids=["native", "formulas"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the compiled loops, where they can, and without."""
    monkeypatch.setenv(NATIVE, request.param)


# torch.compile warns of its own inner workings, of no interest here.
quiet = pytest.mark.filterwarnings("ignore")
SMALL = [
    *((PAIRS[1]._replace(shape=(3, 2)), is_training) for is_training in (True, False)),
    *((PAIRS[2]._replace(shape=(2, 3, 1, 2)), is_it) for is_it in (True, False)),
    (FEATURES[1]._replace(shape=(2, 3), args=(3,)), True),
    (FEATURES[3]._replace(shape=(2, 3, 1, 2), args=((3, 1, 2),)), True),
    (FEATURES[5]._replace(shape=(2, 3), args=(3,)), True),
    (GROUPS[0]._replace(shape=(2, 4), args=(2, 4)), True),
    (GROUPS[2]._replace(shape=(2, 2, 1, 3), args=(1, 2)), True),
    (INSTANCES[0]._replace(shape=(3, 2)), True),
    (INSTANCES[3]._replace(shape=(1, 3, 1, 2)), True),
]
small = pytest.mark.parametrize(("pair", "is_training"), SMALL)


@pytest.mark.parametrize(
    ("check", "modes"),
    [
        (gradcheck, ("check_forward_ad", "check_batched_forward_grad")),
        (gradgradcheck, ("check_fwd_over_rev",)),
    ],
)
@small
def test_derivatives_equal_differences_in_every_mode_of_autograd(
    pair: Pair, is_training: bool, check: Any, modes: tuple[str, ...]
) -> None:
    layer = twins(pair)[0].train(is_training)
    f, leaves = as_function(layer), arguments(layer, draw(*pair.shape))
    assert check(f, leaves, check_batched_grad=True, **dict.fromkeys(modes, True))


@each_case
def test_a_gradient_penalty_has_torch_s_gradients(
    pair: Pair, is_training: bool
) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    ours, theirs = (penalty(m.train(is_training), x, dl_dy) for m in twins(pair))
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None) or pair in PAIRS
        zero = torch.zeros(())
        assert distance(zero if a is None else a, zero if b is None else b) < EXACT


@pytest.mark.parametrize("pair", [*EVERY, *AVERAGED], ids=name)
def test_vmap_equals_a_loop_over_batches(pair: Pair) -> None:
    xs = draw(6, *pair.shape)
    # What training would write to the statistics, vmap refuses.
    options = {"track_running_stats": False} if pair in PAIRS else {}
    layers = [twins(pair)[0].eval()]
    layers += [] if pair in AVERAGED else [twins(pair, **options)[0]]
    for layer in layers:
        expected = torch.stack([layer(x) for x in xs])
        assert distance(vmap(layer)(xs), expected) < EXACT


@pytest.mark.parametrize("pair", EXAMPLES, ids=name)
def test_func_grad_gives_the_gradients_of_each_example(pair: Pair) -> None:
    ours, theirs = twins(pair)
    xs, dl_dy = draw(4, *pair.shape), draw(*pair.shape, seed=1)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = functional_call(ours, values, x)
        return (y * dl_dy).sum()

    values = {k: v.detach() for k, v in ours.named_parameters()}
    found = vmap(grad(loss), (None, 0))(values, xs)
    for k, x in enumerate(xs):
        for key, expected in run(theirs, x, dl_dy).items():
            if key[4:] in found:
                assert distance(found[key[4:]][k], expected) < EXACT


def test_func_grad_with_buffers_passed_in_updates_those() -> None:
    layer, other = twins(PAIRS[0])
    x, dl_dy = draw(7, 3), draw(7, 3, seed=1)

    def loss(values: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        y: Tensor = functional_call(layer, values | buffers, x)
        return (y * dl_dy).sum()

    (other(x) * dl_dy).sum().backward()
    values = {k: v.detach().clone() for k, v in layer.named_parameters()}
    buffers = {k: v.clone() for k, v in layer.named_buffers()}
    found = grad(loss)(values, buffers)
    assert distance(found["weight"], other.weight.grad) < EXACT
    assert distance(buffers["running_mean"], other.running_mean) < EXACT


def in_a_net(pair: Pair) -> nn.Module:
    layer = twins(pair)[0]
    # A bias before batch norm would have the gradient 0, of which rounding is all.
    return nn.Sequential(nn.Conv2d(3, 3, 1, bias=False).double(), layer, nn.ReLU())


@quiet
@pytest.mark.parametrize(
    ("pair", "is_training"),
    [
        (PAIRS[2], True),
        (PAIRS[2], False),
        (FEATURES[2], True),
        (FEATURES[5], True),
        (GROUPS[2], True),
        (INSTANCES[3], True),
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_compiled_in_one_graph_it_computes_the_same(
    backend: str, pair: Pair, is_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    model = in_a_net(pair) if pair in PAIRS else twins(pair)[0]
    compiled = copy.deepcopy(model.train(is_training))
    forward = torch.compile(compiled.forward, backend=backend, fullgraph=True)
    monkeypatch.setattr(compiled, "forward", forward)
    for seed in (0, 1):
        x, dl_dy = draw(*pair.shape, seed=seed), draw(*pair.shape, seed=seed + 5)
        # The compiler may order sums in another way.
        assert_equal(run(compiled, x, dl_dy), run(model, x, dl_dy), EXACT)


@pytest.mark.parametrize("use_reentrant", [True, False])
@each_pair
def test_under_checkpointing_the_gradients_are_the_same(
    pair: Pair, use_reentrant: bool
) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    found: list[dict[str, Any]] = []
    for layer in twins(pair):
        leaf = x.clone().requires_grad_()
        checkpoint(layer, leaf, use_reentrant=use_reentrant).backward(dl_dy)
        slopes = {key: p.grad for key, p in layer.named_parameters()}
        found.append({"x": leaf.grad} | slopes)
    assert_equal(found[0], found[1])


@each_pair
def test_without_gradients_nothing_is_recorded_and_statistics_move(pair: Pair) -> None:
    ours, theirs = twins(pair)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y, expected = ours(draw(*pair.shape)), theirs(draw(*pair.shape))
        assert y.grad_fn is None
        assert distance(y, expected) < EXACT
        assert_equal(ours.state_dict(), theirs.state_dict())


@each_pair
def test_frozen_parameters_get_no_gradient_and_change_none(pair: Pair) -> None:
    layer = twins(pair)[0]
    x, dl_dy = draw(*pair.shape).requires_grad_(), draw(*pair.shape, seed=1)
    expected = torch.autograd.grad(layer(x), x, dl_dy)[0]
    layer.requires_grad_(False)
    layer(x).backward(dl_dy)
    assert torch.equal(x.grad, expected)  # type: ignore[arg-type]
    assert layer.weight.grad is None


@each_pair
def test_backward_twice_needs_retain_graph_and_then_gives_the_same(pair: Pair) -> None:
    x, dl_dy = draw(*pair.shape).requires_grad_(), draw(*pair.shape, seed=1)
    y = twins(pair)[0](x)
    first, second = (
        torch.autograd.grad(y, x, dl_dy, retain_graph=keep)[0] for keep in (True, False)
    )
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, dl_dy)


@pytest.mark.parametrize("pair", [PAIRS[0], AVERAGED[1]], ids=name)
def test_training_on_before_backward_leaves_an_evaluation_s_gradient_right(
    pair: Pair,
) -> None:
    layer = pair.ours(*pair.size, dtype=torch.float64).eval()
    x = draw(*pair.shape).requires_grad_()
    y = layer(x)
    layer.train()(draw(*pair.shape) * 100)
    (dl_dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert distance(dl_dx, torch.full_like(x, (1 + 1e-5) ** -0.5)) < EXACT


@pytest.mark.parametrize("dtype", HALF)
@each_case
def test_in_half_precision_every_derivative_has_the_dtype_of_its_input(
    pair: Pair, is_training: bool, dtype: torch.dtype
) -> None:
    layer = twins(pair, dtype=dtype)[0].train(is_training)
    x = draw(*pair.shape, dtype=dtype)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)  # type: ignore[no-untyped-call]
        direction = tangent_of(layer(dual))
    weights = {k: v.detach() for k, v in layer.named_parameters()}
    buffers = dict(layer.named_buffers())
    slopes = grad(lambda w, b: functional_call(layer, w | b, x).sum())(weights, buffers)
    assert direction is not None
    assert {direction.dtype, *(v.dtype for v in slopes.values())} == {dtype}


def test_the_statistics_take_no_gradient_and_no_tangent() -> None:
    options: Any = {"axes": (1,), "parameter_axes": (1,), "eps": 1e-5}
    x = draw(7, 5).requires_grad_()
    _, statistics = normalize(x, None, None, **options)
    assert not any(value.requires_grad for value in statistics)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(draw(7, 5), draw(7, 5))  # type: ignore[no-untyped-call]
        y, statistics = normalize(dual, None, None, **options)
        assert tangent_of(y) is not None
        assert [tangent_of(value) for value in statistics] == [None, None]


def test_running_statistics_stay_out_of_the_graph_and_the_graph_does_not_grow() -> None:
    layer = twins(PAIRS[0])[0]
    for seed in range(3):
        layer(draw(7, 3, seed=seed).requires_grad_()).sum().backward()
    for buffer in layer.buffers():
        assert not buffer.requires_grad
        assert buffer.grad_fn is None
    with forward_ad.dual_level():
        x = forward_ad.make_dual(draw(7, 3), draw(7, 3))  # type: ignore[no-untyped-call]
        seen = [tangent_of(value) for value in (layer(x), *layer.buffers())]
    assert [tangent is not None for tangent in seen] == [True, False, False, False]


MUTATED = [PAIRS[2], FEATURES[2], FEATURES[6], GROUPS[1], INSTANCES[3]]


@pytest.mark.parametrize(
    ("owner", "method", "pairs", "is_training"),
    [
        (module._Normalize, "forward", MUTATED, True),
        (module._Normalize, "backward", MUTATED, True),
        (module._NormalizeWithTangents, "jvp", MUTATED, True),
        (module._NormalizeByWithTangents, "jvp", [PAIRS[2]], False),
        (module, "_saved", MUTATED, True),
        (module, "_plus", MUTATED, True),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("way", ["0"], indirect=True)
def test_torch_s_derivatives_reject_every_changed_formula(
    owner: Any, method: str, pairs: list[Pair], is_training: bool
) -> None:
    def check() -> None:
        for pair in pairs:
            x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
            layers = [m.train(is_training) for m in twins(pair)]
            assert_same_derivatives(layers, x, dl_dy)

    assert_every_mutant_is_caught(owner, method, check)
