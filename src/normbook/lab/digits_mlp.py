"""A small multilayer perceptron on handwritten digits, for the live experiments.

Everything is float64 and drawn from the CPU ``generator`` of the caller, so that a CPU
and a GPU print the same numbers. An argument of the wrong kind is a TypeError, one
outside of its range a ValueError.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from normbook.arguments import whole_number
from normbook.data import Dataset
from normbook.layers.batch_norm import BatchNorm1d

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}
Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # images, labels
CHUNK = 2000  # examples evaluated at once: more take new memory at each layer


class Split(NamedTuple):
    """Tensors on one device: images ``(N, D)`` float64 and labels ``(N,)`` int64."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor

    def batches(
        self, size: int, generator: torch.Generator, epochs: int = 1
    ) -> Iterator[Batch]:
        """Return training images and labels, shuffled, full batches only."""
        _check_size("size", size, len(self.x_train), "60 is usual")
        _check_size("epochs", epochs)
        _check_generator(generator)
        return _epochs(self, size, generator, epochs)


class History(NamedTuple):
    """One run: arrays (T,) with a value for each evaluation, losses in nats."""

    steps: NDArray[np.int64]  # updates done
    train_loss: NDArray[np.float64]  # cross-entropy of the batch before it
    test_loss: NDArray[np.float64]  # of the whole test set, in evaluation mode
    test_accuracy: NDArray[np.float64]  # 0 to 1


def split(data: Dataset, device: torch.device | str = "cpu") -> Split:
    """Bring a data set to a device as tensors."""
    return Split(*(torch.as_tensor(a).to(device) for a in data))


def build(
    *,
    generator: torch.Generator,
    depth: int = 3,
    width: int = 100,
    norm: Callable[[int], nn.Module] | None = BatchNorm1d,
    placement: Literal["before", "after"] = "before",
    activation: Literal["relu", "sigmoid", "tanh", "identity"] = "relu",
    gain: float = 1.0,
    std: float | None = None,
    features: int = 64,
    classes: int = 10,
    device: torch.device | str = "cpu",
) -> nn.Sequential:
    r"""Build ``depth`` hidden layers of ``width`` units and a linear read-out.

    ``norm`` makes a layer from the number of features, to stand before or after the
    activation. Weights are normal with mean 0 and standard deviation ``std``, or
    :math:`g / \sqrt n` with the gain g and n inputs of the layer: ReLU keeps the scale
    of its input with :math:`g = \sqrt2`, identity with 1. Biases start at 0; linear
    layers keep them before a normalization, too.
    """
    _check_generator(generator)
    sizes = {"depth": depth, "width": width, "features": features, "classes": classes}
    for name, size in sizes.items():
        _check_size(name, size)
    _check_scale("gain", gain, "1 is usual")
    if std is not None:
        _check_scale("std", std, "0.1 is small")
    if norm is not None and not callable(norm):
        raise TypeError(
            f"norm must make a layer from the number of features, got {norm!r}; pass "
            "e.g. BatchNorm1d itself, or None for no normalization."
        )
    if placement not in ("before", "after"):
        raise ValueError(f'placement must be "before" or "after", got {placement!r}.')
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}."
        )
    layers: list[nn.Module] = []
    for inputs in [features, *[width] * (depth - 1)]:
        block: list[nn.Module] = [ACTIVATIONS[activation]()]
        if norm is not None:
            layer = norm(width)
            rule = "norm must return a torch.nn.Module"
            _check_type(rule, layer, nn.Module, "pass e.g. BatchNorm1d")
            block.insert(0 if placement == "before" else 1, layer)
        layers += [nn.Linear(inputs, width), *block]
    model = nn.Sequential(*layers, nn.Linear(width, classes)).to(torch.float64)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                scale = gain / layer.in_features**0.5 if std is None else std
                layer.weight.normal_(0.0, scale, generator=generator)
                layer.bias.zero_()
    return model.to(device)


def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Cross-entropy (nats) and accuracy in evaluation mode; every mode is put back."""
    _check_examples(x=x, y=y)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            scores = torch.cat([model(part) for part in torch.split(x, CHUNK)])
    finally:
        for module, mode in modes.items():
            module.training = mode
    loss, accuracy = _judge(scores, y)
    return loss.item(), accuracy.item()


def fit(
    model: nn.Module, batches: Iterable[Batch], learning_rate: float = 0.1
) -> list[float]:
    """Train a model in place with plain SGD, in the mode that it is in.

    Returns the accuracy on each batch, before the step that it leads to: what a log of
    training shows. With the learning rate 0 the weights stay, and running averages
    move all the same.
    """
    _check_scale("learning_rate", learning_rate, "0.1 is usual")
    optimizer, hits = torch.optim.SGD(model.parameters(), lr=learning_rate), []
    for x, y in batches:
        scores = model(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        hits.append((scores.argmax(1) == y).double().mean().item())
    return hits


def train(
    model: nn.Module,
    data: Split,
    *,
    generator: torch.Generator,
    steps: int = 300,
    batch_size: int = 60,
    learning_rate: float = 0.1,
    every: int = 20,
) -> History:
    """Train a model in place with plain SGD; evaluate it every few steps.

    Data and model are on one device. A batch is drawn without replacement. A diverged
    run goes on and shows inf or nan.
    """
    _check_plan(data, steps, batch_size, every, [generator], [learning_rate])
    rows = []
    trained = [p for p in model.parameters() if p.requires_grad]
    model.train()
    for step in range(1, steps + 1):
        batch = _draw(data, batch_size, generator)
        scores = model(data.x_train[batch])
        loss = nn.functional.cross_entropy(scores, data.y_train[batch])
        slopes = torch.autograd.grad(
            loss, trained, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():  # torch.optim.SGD takes a tenth of a step for itself
            for parameter, slope in zip(trained, slopes, strict=True):
                parameter.sub_(slope, alpha=learning_rate)
        if step % every == 0:
            rows.append((loss.item(), *evaluate(model, data.x_test, data.y_test)))
    return History(np.arange(every, steps + 1, every), *np.array(rows).T)


def train_side_by_side(
    models: Sequence[nn.Module],
    data: Split,
    *,
    generators: Sequence[torch.Generator],
    learning_rates: Sequence[float],
    steps: int = 300,
    batch_size: int = 60,
    every: int = 20,
) -> History:
    """Train S models of one kind in place, at once: :func:`train` each, but faster.

    Each has its own generator and learning rate. The results differ by rounding, and
    are stacked as by :func:`repeat`.
    """
    numbers = len(models), len(generators), len(learning_rates)
    if len({*numbers}) > 1 or not models:
        raise ValueError(
            "there must be as many models as generators and learning_rates, got "
            f"{numbers[0]}, {numbers[1]} and {numbers[2]}; give each model its own."
        )
    _check_plan(data, steps, batch_size, every, generators, learning_rates)
    rates = torch.as_tensor(learning_rates, dtype=torch.float64).to(data.x_train)
    state = stack_module_state([model.train() for model in models])
    together = copy.deepcopy(models[0])
    scores = partial(functional_call, together)
    rows = []
    optimizer = torch.optim.SGD(state[0].values(), lr=1.0)
    for step in range(1, steps + 1):
        batches = torch.stack([_draw(data, batch_size, g) for g in generators])
        answers = vmap(scores)(state, data.x_train[batches])
        losses = vmap(nn.functional.cross_entropy)(answers, data.y_train[batches])
        optimizer.zero_grad()
        (rates @ losses).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % every == 0:
            with torch.no_grad():
                together.eval()
                answers = vmap(scores, (0, None))(state, data.x_test)
                tests = vmap(_judge, (0, None))(answers, data.y_test)
                together.train()
            rows.append(torch.stack([losses.detach(), *tests]))
    for i, model in enumerate(models):
        model.load_state_dict({k: v[i] for part in state for k, v in part.items()})
    columns = torch.stack(rows, -1).cpu().numpy()  # (3, S, T)
    return History(np.arange(every, steps + 1, every), *columns)


def repeat(run: Callable[[torch.Generator], History], seeds: Sequence[int]) -> History:
    """Do one experiment with S seeds; stack the histories of shape (T,) to (S, T).

    ``run`` takes a seeded CPU generator. ``steps``, the same in all, keeps its shape.
    """
    histories = [run(torch.Generator().manual_seed(seed)) for seed in seeds]
    if not histories:
        raise ValueError("seeds must hold at least one seed, got none; try range(5).")
    for history in histories:
        rule = "run must return a History"
        _check_type(rule, history, History, "return what train gives")
        if not np.array_equal(history.steps, histories[0].steps):
            raise ValueError(
                "every run must have the same steps, got "
                f"{histories[0].steps.tolist()} and {history.steps.tolist()}; give "
                "each the same steps and every."
            )
    stacked = (np.stack(column) for column in list(zip(*histories, strict=True))[1:])
    return History(histories[0].steps, *stacked)


def _epochs(
    data: Split, size: int, generator: torch.Generator, epochs: int
) -> Iterator[Batch]:
    for _ in range(epochs):
        order = torch.randperm(len(data.x_train), generator=generator)
        for batch in torch.split(order[: len(order) // size * size], size):
            here = batch.to(data.x_train.device)
            yield data.x_train[here], data.y_train[here]


def _judge(scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    accuracy = (scores.argmax(1) == y).double().mean()
    return nn.functional.cross_entropy(scores, y), accuracy


def _draw(data: Split, batch_size: int, generator: torch.Generator) -> torch.Tensor:
    batch = torch.randperm(len(data.x_train), generator=generator)[:batch_size]
    return batch.to(data.x_train.device)


def _check_plan(
    data: Any, steps: Any, batch_size: Any, every: Any, generators: Any, rates: Any
) -> None:
    _check_type("data must be a Split", data, Split, "make one with split(data)")
    _check_examples(x_train=data.x_train, y_train=data.y_train)
    _check_examples(x_test=data.x_test, y_test=data.y_test)
    _check_size("steps", steps)
    _check_size("batch_size", batch_size, len(data.x_train), "60 is usual")
    _check_size("every", every, steps, "steps itself gives one evaluation at the end")
    for generator, rate in zip(generators, rates, strict=True):
        _check_generator(generator)
        _check_scale("learning_rate", rate, "0.1 is usual")


def _check_size(
    name: str, value: Any, most: int | None = None, cure: str = "give a larger number"
) -> None:
    size = whole_number(name, value, "convert it with int()")
    if size < 1 or (most is not None and size > most):
        bounds = "be at least 1" if most is None else f"lie in 1..{most}"
        raise ValueError(f"{name} must {bounds}, got {value}; {cure}.")


def _check_scale(name: str, value: Any, usual: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}; {usual}.")
    if not 0 <= float(value) < math.inf:
        raise ValueError(
            f"{name} must be finite and not negative, got {value}; {usual}."
        )


def _check_type(rule: str, value: Any, kind: type, cure: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{rule}, got {type(value).__name__}; {cure}.")


def _check_generator(generator: Any) -> None:
    cure = "pass e.g. torch.Generator().manual_seed(0)"
    rule = "generator must be a torch.Generator"
    _check_type(rule, generator, torch.Generator, cure)


def _check_examples(**tensors: Any) -> None:
    for name, value in tensors.items():
        rule = f"{name} must be a torch tensor"
        _check_type(rule, value, torch.Tensor, "convert it with torch.as_tensor")
    x, y = tensors.values()
    if len(x) != len(y):
        raise ValueError(
            f"{' and '.join(tensors)} must hold equally many examples, got {len(x)} "
            f"and {len(y)}; give one label for each image."
        )
