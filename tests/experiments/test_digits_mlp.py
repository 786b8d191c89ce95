"""The small network of the live experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.data import digits
from normbook.experiments.digits_mlp import (
    History,
    Split,
    build,
    evaluate,
    repeat,
    split,
    train,
)
from normbook.layers.batch_norm import BatchNorm1d


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def data() -> Split:
    return split(digits.load())


def kinds(model: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in model]


def test_the_norm_stands_where_it_is_asked_to() -> None:
    before = build(generator=seeded(), depth=1)
    after = build(generator=seeded(), depth=1, placement="after", activation="tanh")
    without = build(generator=seeded(), depth=2, norm=None)
    assert kinds(before) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds(after) == ["Linear", "Tanh", "BatchNorm1d", "Linear"]
    assert kinds(without) == ["Linear", "ReLU"] * 2 + ["Linear"]


def test_weights_have_the_stated_scale_and_biases_are_zero() -> None:
    model = build(generator=seeded(), depth=2, width=400, gain=2.0, features=900)
    first, second = model[0], model[3]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    # 360 000 and 160 000 draws: the standard error is below 0.2 %
    assert first.weight.std().item() == pytest.approx(2 / 30, rel=0.01)
    assert second.weight.std().item() == pytest.approx(2 / 20, rel=0.01)
    assert not first.bias.any()


def test_everything_is_float64() -> None:
    model = build(generator=seeded())
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert {b.dtype for n, b in model.named_buffers() if "num" not in n} == {
        torch.float64
    }


def test_equal_seeds_give_equal_networks_whatever_the_norm() -> None:
    a, b = build(generator=seeded(3)), build(generator=seeded(3), norm=None)
    assert isinstance(a[0], nn.Linear)
    assert isinstance(b[0], nn.Linear)
    assert torch.equal(a[0].weight, b[0].weight)


def test_training_learns_the_digits(data: Split) -> None:
    model = build(generator=seeded())
    history = train(model, data, generator=seeded(1), steps=120, every=40)
    np.testing.assert_array_equal(history.steps, [40, 80, 120])
    assert history.test_accuracy[-1] > 0.9
    assert history.test_loss[-1] < history.test_loss[0]


def test_a_step_is_plain_gradient_descent(data: Split) -> None:
    model = build(generator=seeded(), depth=1, norm=None)
    twin = build(generator=seeded(), depth=1, norm=None)
    train(model, data, generator=seeded(1), steps=1, every=1, learning_rate=0.5)
    batch = torch.randperm(len(data.x_train), generator=seeded(1))[:60]
    loss = nn.functional.cross_entropy(twin(data.x_train[batch]), data.y_train[batch])
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for p, q, g in zip(model.parameters(), twin.parameters(), gradients, strict=True):
        torch.testing.assert_close(p, q - 0.5 * g)


def test_equal_seeds_train_equally(data: Split) -> None:
    def run(generator: torch.Generator) -> History:
        model = build(generator=generator, depth=1)
        return train(model, data, generator=generator, steps=20, every=10)

    first, again = repeat(run, seeds=[0, 1]), repeat(run, seeds=[0, 1])
    assert first.train_loss.shape == (2, 2)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.test_loss[0, 0] != first.test_loss[1, 0]


def test_evaluation_uses_the_running_statistics_and_puts_the_mode_back(
    data: Split,
) -> None:
    model = build(generator=seeded(), depth=1)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    loss, accuracy = evaluate(model, data.x_test, data.y_test)
    model.eval()
    scores = model(data.x_test)
    assert loss == nn.functional.cross_entropy(scores, data.y_test).item()
    assert accuracy == (scores.argmax(1) == data.y_test).double().mean().item()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    model.train()
    evaluate(model, data.x_test, data.y_test)
    assert model.training


def test_a_broken_network_leaves_its_mode_as_it_was(data: Split) -> None:
    model = build(generator=seeded(), features=63)
    with pytest.raises(RuntimeError):
        evaluate(model, data.x_test, data.y_test)
    assert model.training


def test_any_norm_can_be_asked_for() -> None:
    model = build(generator=seeded(), depth=1, norm=lambda n: BatchNorm1d(n, eps=1.0))
    assert isinstance(model[1], BatchNorm1d)
    assert model[1].eps == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"batch_size must lie in 1\.\.1437, got 0"),
        ({"batch_size": 1438}, "got 1438"),
        ({"steps": 10, "every": 11}, r"every must lie in 1\.\.steps = 10, got 11"),
    ],
)
def test_bad_training_options_are_refused(
    data: Split, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(build(generator=seeded()), data, generator=seeded(), **options)


def test_bad_networks_are_refused() -> None:
    with pytest.raises(ValueError, match='"before" or "after", got \'around\''):
        build(generator=seeded(), placement="around")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="activation must be one of relu, sigmoid"):
        build(generator=seeded(), activation="gelu")  # type: ignore[arg-type]
