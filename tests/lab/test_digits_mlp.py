"""The small network of the live experiments."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.data import digits
from normbook.lab.digits_mlp import (
    History,
    Split,
    build,
    evaluate,
    fit,
    repeat,
    split,
    train,
    train_side_by_side,
)
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.small_batches import GhostBatchNorm1d


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def data() -> Split:
    return split(digits.load())


def made(seed: int = 0, **options: Any) -> Any:
    return build(generator=seeded(seed), **options)


def test_any_norm_stands_where_it_is_asked_to() -> None:
    def kinds(model: nn.Sequential) -> list[str]:
        return [type(layer).__name__ for layer in model]

    before = made(depth=1, norm=lambda n: BatchNorm1d(n, eps=1.0))
    after = made(depth=1, placement="after", activation="tanh")
    assert kinds(before) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds(after) == ["Linear", "Tanh", "BatchNorm1d", "Linear"]
    assert kinds(made(depth=2, norm=None)) == ["Linear", "ReLU"] * 2 + ["Linear"]
    assert before[1].eps == 1.0


def test_weights_have_the_stated_scale_and_biases_are_zero() -> None:
    model = made(depth=2, width=400, gain=2.0, features=900)
    # 360 000 and 160 000 draws: the standard error is below 0.2 %
    assert model[0].weight.std().item() == pytest.approx(2 / 30, rel=0.01)
    assert model[3].weight.std().item() == pytest.approx(2 / 20, rel=0.01)
    assert not model[0].bias.any()
    stated = made(depth=1, width=400, std=0.5, features=900)[0]
    assert stated.weight.std().item() == pytest.approx(0.5, rel=0.01)


def test_everything_is_float64() -> None:
    values = made().state_dict().items()
    assert {v.dtype for name, v in values if "num" not in name} == {torch.float64}


def test_equal_seeds_give_equal_networks_whatever_the_norm() -> None:
    assert torch.equal(made(3)[0].weight, made(3, norm=None)[0].weight)


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


def test_batches_of_an_epoch_are_full_and_hold_no_image_twice(data: Split) -> None:
    found = list(data.batches(60, seeded(), epochs=2))
    each = len(data.x_train) // 60
    assert len(found) == 2 * each
    for epoch in (found[:each], found[each:]):
        images = torch.cat([x for x, _ in epoch])
        rows = (images[:, None] == data.x_train).all(2)
        assert rows.any(0).sum() == rows.any(1).sum() == 60 * each
        labels = torch.cat([y for _, y in epoch])
        assert torch.equal(labels, data.y_train[rows.int().argmax(1)])
    assert not torch.equal(found[0][0], found[each][0])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must lie in"),
        ({"size": 10_000}, ValueError, "60 is usual"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"size": 1.5}, TypeError, "size"),
        ({"generator": 0}, TypeError, "generator"),
    ],
)
def test_bad_batches_are_refused_at_once(
    given: dict[str, Any], error: type[Exception], message: str, data: Split
) -> None:
    with pytest.raises(error, match=message):
        data.batches(**{"size": 60, "generator": seeded(), **given})


def test_a_fit_takes_plain_steps_and_tells_the_accuracy_before_each(
    data: Split,
) -> None:
    model, twin = made(depth=1), made(depth=1)
    feed = list(data.batches(60, seeded(1)))[:3]
    hits = fit(model, feed, 0.5)
    for (x, y), hit in zip(feed, hits, strict=True):
        scores = twin(x)
        assert hit == pytest.approx((scores.argmax(1) == y).double().mean().item())
        loss = nn.functional.cross_entropy(scores, y)
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for p, g in zip(twin.parameters(), gradients, strict=True):
                p -= 0.5 * g
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_a_fit_keeps_the_mode_and_at_the_rate_0_the_weights(data: Split) -> None:
    model = made(depth=1)
    before = [p.clone() for p in model.parameters()]
    fit(model, data.batches(60, seeded()), 0.0)
    assert all(map(torch.equal, before, model.parameters()))
    assert model[1].num_batches_tracked == len(data.x_train) // 60
    fit(model.eval(), data.batches(60, seeded()), 0.0)
    assert not model.training
    assert model[1].num_batches_tracked == len(data.x_train) // 60
    with pytest.raises(ValueError, match="learning_rate must be finite"):
        fit(model, [], -1.0)


def test_equal_seeds_train_equally(data: Split) -> None:
    def run(generator: torch.Generator) -> History:
        model = build(generator=generator, depth=1)
        return train(model, data, generator=generator, steps=20, every=10)

    first, again = repeat(run, seeds=[0, 1]), repeat(run, seeds=[0, 1])
    assert first.train_loss.shape == (2, 2)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.test_loss[0, 0] != first.test_loss[1, 0]


@pytest.mark.parametrize(
    "norm",
    [None, BatchNorm1d, nn.BatchNorm1d, LayerNorm, lambda n: GhostBatchNorm1d(n, 20)],
)
def test_models_side_by_side_train_as_each_alone(data: Split, norm: Any) -> None:
    plan: dict[str, Any] = {"steps": 20, "every": 10}
    rates, generators = (0.1, 0.5), [seeded(0), seeded(1)]
    alone = [made(seed, depth=2, width=20, norm=norm) for seed in range(2)]
    models = [made(seed, depth=2, width=20, norm=norm).eval() for seed in range(2)]
    together = train_side_by_side(
        models, data, generators=generators, learning_rates=rates, **plan
    )
    for i, twin in enumerate(alone):
        options = {"generator": seeded(i), "learning_rate": rates[i], **plan}
        history = train(twin, data, **options)
        np.testing.assert_array_equal(together.steps, history.steps)
        for runs, run in zip(together[1:], history[1:], strict=True):
            np.testing.assert_allclose(runs[i], run, rtol=1e-9)
        torch.testing.assert_close(
            models[i].state_dict(), twin.state_dict(), rtol=1e-9, atol=1e-12
        )
        assert models[i].training


@pytest.mark.parametrize("numbers", [(2, 2, 1), (2, 1, 2), (1, 2, 2), (0, 0, 0)])
def test_side_by_side_each_model_has_a_generator_and_a_rate(
    numbers: tuple[int, int, int], data: Split
) -> None:
    models, generators, rates = numbers
    options: dict[str, Any] = {"generators": [seeded()] * generators}
    options["learning_rates"] = [0.1] * rates
    came = "{}, {} and {}".format(*numbers)
    with pytest.raises(ValueError, match=f"as many models .* got {came}; give each"):
        train_side_by_side([made() for _ in range(models)], data, **options)


def test_evaluation_uses_the_running_statistics_and_changes_nothing(data: Any) -> None:
    model = build(generator=seeded(), depth=1)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    loss, accuracy = evaluate(model, data.x_test, data.y_test)
    model.eval()
    scores = model(data.x_test)
    assert loss == nn.functional.cross_entropy(scores, data.y_test).item()
    assert accuracy == (scores.argmax(1) == data.y_test).double().mean().item()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("features", [64, 63])
def test_evaluation_puts_each_mode_back_that_of_a_frozen_layer_too(
    data: Split, features: int
) -> None:
    model = build(generator=seeded(), features=features)
    model[1].eval()
    modes = [module.training for module in model.modules()]
    assert model.training
    fails = contextlib.nullcontext() if features == 64 else pytest.raises(RuntimeError)
    with fails:
        evaluate(model, data.x_test, data.y_test)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 2.5}, TypeError, r"every must be a whole number, got 2\.5"),
        ({"steps": 10, "every": 11}, ValueError, r"every must lie in 1\.\.10, got 11"),
        ({"batch_size": 60.0}, TypeError, r"batch_size must be a whole.*got 60\.0"),
        ({"batch_size": 0}, ValueError, r"batch_size must lie in 1\.\.1437, got 0"),
        ({"batch_size": 1438}, ValueError, "got 1438"),
        ({"steps": True}, TypeError, "steps must be a whole number, got True"),
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"learning_rate": np.nan}, ValueError, "learning_rate must be.*got nan"),
        ({"learning_rate": -0.1}, ValueError, r"learning_rate must.*got -0\.1"),
        ({"learning_rate": "0.1"}, TypeError, "learning_rate must be a number"),
        ({"generator": None}, TypeError, "generator must be.*got NoneType"),
        ({"data": digits.load()}, TypeError, r"must be a Split, got Dataset.*split\("),
    ],
)
def test_what_cannot_be_trained_with_is_refused(
    data: Split, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = build(generator=seeded()).eval()
    arguments: dict[str, Any] = {"data": data, "generator": seeded()} | options
    with pytest.raises(error, match=message):
        train(model, **arguments)
    assert not model.training


@pytest.mark.parametrize("name", ["train", "test"])
def test_images_and_labels_of_different_number_are_refused(
    data: Split, name: str
) -> None:
    fewer = data._replace(**{f"y_{name}": getattr(data, f"y_{name}")[:-1]})
    message = f"x_{name} and y_{name} must hold equally many"
    with pytest.raises(ValueError, match=message):
        train(build(generator=seeded()), fewer, generator=seeded())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"depth": 0}, ValueError, "depth must be at least 1, got 0"),
        ({"width": 2.0}, TypeError, r"width must be a whole number, got 2\.0"),
        ({"features": -1}, ValueError, "features must be at least 1, got -1"),
        ({"classes": 0}, ValueError, "classes must be at least 1, got 0"),
        ({"gain": -1.0}, ValueError, r"gain must be finite.*got -1\.0"),
        ({"gain": np.inf}, ValueError, "gain must be finite.*got inf"),
        ({"norm": 3}, TypeError, "norm must make a layer.*got 3"),
        ({"norm": lambda n: n}, TypeError, "norm must return.*got int"),
        ({"generator": None}, TypeError, "generator must be.*got NoneType"),
        ({"placement": "around"}, ValueError, '"before" or "after", got \'around\''),
        ({"activation": "gelu"}, ValueError, "activation must be one of relu, sigmoid"),
    ],
)
def test_bad_networks_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(**{"generator": seeded()} | options)


def test_runs_that_cannot_be_stacked_are_refused() -> None:
    lengths = iter([1, 2])

    def run(_: torch.Generator) -> History:
        steps = np.arange(next(lengths))
        return History(steps, *(steps.astype(float),) * 3)

    with pytest.raises(ValueError, match=r"same steps, got \[0\] and \[0, 1\]"):
        repeat(run, [0, 1])
    with pytest.raises(ValueError, match="at least one seed, got none"):
        repeat(run, [])
    with pytest.raises(TypeError, match="must return a History, got int"):
        repeat(lambda _: 3, [0])  # type: ignore[arg-type, return-value]


def test_the_scale_of_the_input_is_kept_by_a_gain_of_1_if_none_is_given() -> None:
    model = made(depth=1, width=400, features=900)
    assert model[0].weight.std().item() == pytest.approx(1 / 30, rel=0.01)


def test_what_does_not_matter_to_the_loss_stays_in_training(data: Any) -> None:
    model = made(depth=1)
    model.register_parameter("idle", nn.Parameter(torch.ones(2)))
    train(model, data, generator=seeded(1), steps=1, every=1)
    assert model.idle.tolist() == [1, 1]
