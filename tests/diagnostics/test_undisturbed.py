"""A measurement leaves no trace, whatever it does and however it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from normbook.diagnostics.activations import layer_statistics
from normbook.diagnostics.internal_covariate_shift import (
    gradient_shift,
    input_shift_of_update,
)
from normbook.diagnostics.landscape import landscape, random_direction
from normbook.diagnostics.noise import DistributionNoise
from normbook.diagnostics.sharpness import curvature
from normbook.diagnostics.smoothness import along_gradient
from normbook.diagnostics.undisturbed import gradients, undisturbed
from normbook.layers.batch_norm import BatchNorm1d

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def model_with_everything() -> Any:
    """Parameters, buffers, randomness, a frozen layer and stored gradients."""
    with torch.random.fork_rng():
        model = nn.Sequential(
            nn.Linear(5, 4), BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3),
        )  # fmt: skip
    model[4].weight.requires_grad_(False)
    cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    model[5].eval()
    return model


def loss(model: nn.Module) -> torch.Tensor:
    return cross_entropy(model(X), Y)


def noisy() -> Any:
    """Two layers of noise that share a generator, each with a hold of it."""
    generator = torch.Generator().manual_seed(3)
    return nn.Sequential(
        nn.Linear(5, 4), DistributionNoise(generator=generator),
        nn.Linear(4, 3), DistributionNoise(generator=generator),
    )  # fmt: skip


def fingerprint(model: nn.Module) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers()]
    grads = [p.grad for p in model.parameters()]
    noise = [m for m in model.modules() if isinstance(m, DistributionNoise)]
    return [
        [t.clone() for t in tensors],
        [None if g is None else g.clone() for g in grads],
        [m.training for m in model.modules()],
        torch.get_rng_state(),
        [m.generator.get_state() for m in noise if m.generator is not None],
        [len(m._forward_pre_hooks) for m in model.modules()],
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


CALLED_ONCE = "layer_statistics", "curvature"  # the loss
MEASURES: dict[str, Callable[[nn.Module, Any], object]] = {
    "along_gradient": lambda m, loss: along_gradient(m, loss, [0.1, 0.2]),
    "curvature": lambda m, loss: curvature(m, loss, most=3),
    "gradient_shift": lambda m, loss: gradient_shift(m, loss, 0.1),
    "input_shift_of_update": lambda m, loss: input_shift_of_update(m, loss, 0.1, ["2"]),
    "layer_statistics": lambda m, loss: layer_statistics(m, loss),
    "landscape": lambda m, loss: landscape(
        m, loss, [random_direction(m, torch.Generator().manual_seed(0))], [-1, 1]
    ),
}


@pytest.mark.parametrize("make", [model_with_everything, noisy])
@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_leaves_the_model_bit_for_bit_and_gives_the_same_twice(
    name: str, make: Any
) -> None:
    model = make()
    before = fingerprint(model)
    result = MEASURES[name](model, loss)
    assert same(fingerprint(model), before)
    assert repr(MEASURES[name](model, loss)) == repr(result)


@pytest.mark.parametrize("make", [model_with_everything, noisy])
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_that_fails_halfway_leaves_no_trace(name: str, make: Any) -> None:
    model, calls = make(), 0

    def breaks(m: nn.Module) -> torch.Tensor:
        nonlocal calls
        calls += 1
        value = loss(m)
        if calls == (1 if name in CALLED_ONCE else 2):
            m.eval()
            raise RuntimeError("out of memory")
        return value

    before = fingerprint(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        MEASURES[name](model, breaks)
    assert same(fingerprint(model), before)


def test_stored_gradients_are_put_back_in_value_and_in_place() -> None:
    model = model_with_everything()
    before, stored = fingerprint(model), model[0].weight.grad
    with undisturbed(model):
        loss(model).backward()  # type: ignore[no-untyped-call]
        model[0].weight.grad = None
    assert same(fingerprint(model), before)
    assert model[0].weight.grad is stored


@pytest.mark.parametrize("name", MEASURES)
def test_a_compiled_model_is_measured_like_an_eager_one(name: str) -> None:
    eager = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    compiled: Any = torch.compile(eager, backend="eager")
    assert repr(MEASURES[name](compiled, loss)) == repr(MEASURES[name](eager, loss))


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.5), noisy])
def test_reset_draws_the_same_mask_and_the_same_noise_of_a_module(make: Any) -> None:
    model = make()
    with undisturbed(model) as reset:
        a, other = model(X), model(X)
        reset()
        b = model(X)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_gradients_by_unused_parameters_are_zero() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(2, 2))
    value, found = gradients(model, lambda m: m[0](X).sum())
    assert value == pytest.approx(model[0](X).sum().item())
    assert [bool(g.any()) for g in found] == [True, True, False, False]


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        (nn.ReLU(), lambda m: m(X).sum(), "must have a parameter that requires"),
        (nn.Linear(5, 1), lambda m: m(X)[:, 0], r"return a scalar, got shape \(12,\)"),
    ],
)
def test_no_parameters_and_a_loss_for_each_example_are_refused(
    model: nn.Module, objective: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gradients(model, objective)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_generator_of_a_gpu_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)).cuda()
    before = torch.cuda.get_rng_state()
    along_gradient(model, lambda m: m(X.cuda()).square().sum(), [0.1])
    assert torch.equal(torch.cuda.get_rng_state(), before)
