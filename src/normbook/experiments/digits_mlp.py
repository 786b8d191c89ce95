"""A small multilayer perceptron on handwritten digits, for the live experiments.

Everything is float64 and every random number comes from a CPU generator that the
caller passes in, so that a CPU and a GPU print the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normbook.data import Dataset
from normbook.layers.batch_norm import BatchNorm1d

__all__ = ["History", "Split", "build", "evaluate", "repeat", "split", "train"]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}


class Split(NamedTuple):
    """Tensors on one device: images ``(N, D)`` float64 and labels ``(N,)`` int64."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


class History(NamedTuple):
    """One run: each array has one value for each evaluation, shape (T,).

    ``train_loss`` is the cross-entropy in nats of the last batch before the
    evaluation; ``test_loss`` (nats) and ``test_accuracy`` (0 to 1) are measured in
    evaluation mode on the whole test set. ``steps`` counts updates.
    """

    steps: NDArray[np.int64]
    train_loss: NDArray[np.float64]
    test_loss: NDArray[np.float64]
    test_accuracy: NDArray[np.float64]


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
    features: int = 64,
    classes: int = 10,
    device: torch.device | str = "cpu",
) -> nn.Sequential:
    r"""Build ``depth`` hidden layers of ``width`` units and a linear read-out.

    Weights are normal with mean 0 and variance :math:`g^2 / n`, n the number of
    inputs of the layer; biases start at 0. Linear layers keep their bias also
    before a normalization, so that both networks have the same modules.

    Parameters
    ----------
    generator : torch.Generator
        CPU generator for the weights.
    depth, width, features, classes : int
        Sizes.
    norm : callable or None
        Makes a layer from the number of features; None for no normalization.
    placement : "before" or "after"
        The normalization stands before or after the activation.
    activation : "relu", "sigmoid", "tanh" or "identity"
    gain : float
        g. ReLU keeps the scale of its input with :math:`\sqrt2`, identity with 1.
    device : torch.device or str

    Returns
    -------
    nn.Sequential
        float64, in training mode.

    Raises
    ------
    ValueError
        If ``placement`` or ``activation`` is unknown.
    """
    if placement not in ("before", "after"):
        raise ValueError(f'placement must be "before" or "after", got {placement!r}.')
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}."
        )
    layers: list[nn.Module] = []
    size = features
    for _ in range(depth):
        block: list[nn.Module] = [ACTIVATIONS[activation]()]
        if norm is not None:
            block.insert(0 if placement == "before" else 1, norm(width))
        layers += [nn.Linear(size, width), *block]
        size = width
    layers.append(nn.Linear(size, classes))
    model = nn.Sequential(*layers).to(torch.float64)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                scale = gain / layer.in_features**0.5
                layer.weight.normal_(0.0, scale, generator=generator)
                layer.bias.zero_()
    return model.to(device)


def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Cross-entropy (nats) and accuracy in evaluation mode; the mode is put back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            scores = model(x)
    finally:
        model.train(was_training)
    loss = nn.functional.cross_entropy(scores, y)
    return loss.item(), (scores.argmax(1) == y).double().mean().item()


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
    """Train with plain SGD, and evaluate every few steps.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    data : Split
        On the device of the model.
    generator : torch.Generator
        CPU generator that draws the batches, without replacement within each.
    steps, batch_size, every : int
        Updates, examples in a batch, updates between two evaluations.
    learning_rate : float

    Returns
    -------
    History
        A diverged run goes on and shows inf or nan.

    Raises
    ------
    ValueError
        If ``batch_size`` exceeds the training set, or ``every`` exceeds ``steps``.
    """
    n = len(data.x_train)
    if not 1 <= batch_size <= n:
        raise ValueError(f"batch_size must lie in 1..{n}, got {batch_size}.")
    if not 1 <= every <= steps:
        raise ValueError(f"every must lie in 1..steps = {steps}, got {every}.")
    rows: list[tuple[float, ...]] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    model.train()
    for step in range(1, steps + 1):
        batch = torch.randperm(n, generator=generator)[:batch_size]
        batch = batch.to(data.x_train.device)
        scores = model(data.x_train[batch])
        loss = nn.functional.cross_entropy(scores, data.y_train[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % every == 0:
            rows.append((loss.item(), *evaluate(model, data.x_test, data.y_test)))
    columns = np.array(rows).T
    return History(np.arange(every, steps + 1, every), *columns)


def repeat(run: Callable[[torch.Generator], History], seeds: Sequence[int]) -> History:
    """Do one experiment with several seeds; curves get the shape (S, T).

    Parameters
    ----------
    run : callable
        Takes a seeded CPU generator, returns a :class:`History`.
    seeds : sequence of int

    Returns
    -------
    History
        ``steps`` of shape (T,), everything else (S, T).
    """
    histories = [run(torch.Generator().manual_seed(seed)) for seed in seeds]
    stacked = (np.stack(column) for column in list(zip(*histories, strict=True))[1:])
    return History(histories[0].steps, *stacked)
