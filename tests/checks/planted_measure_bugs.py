"""Measures of smoothness as one finds them: one that is right, and each slip."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Quantities = tuple[tuple[float, float], tuple[float, float], float]


def slope(model: nn.Module, loss: Loss, batch: Batch) -> tuple[float, Tensor]:
    x, target = batch
    value = loss(model(x), target)
    found = torch.autograd.grad(value, list(model.parameters()))
    return value.item(), torch.cat([g.flatten() for g in found])


@torch.no_grad()
def move(model: nn.Module, by: Tensor) -> None:
    parameters = list(model.parameters())
    w = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(w + by, parameters)


def summary(
    losses: list[float], changes: list[float], ratios: list[float]
) -> Quantities:
    return (min(losses), max(losses)), (min(changes), max(changes)), max(ratios)


def right(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Batch],
    step_sizes: Sequence[float],
    *,
    behind: int = 0,
    divide: Callable[[float, float, float], float] = lambda d, eta, g: d / eta / g,
) -> Quantities:
    """Measure on a copy; ``behind`` is the batch of the second gradient."""
    losses, changes, ratios = [], [], []
    for eta in step_sizes:
        twin = copy.deepcopy(model)
        _, g = slope(twin, loss, batches[0])
        move(twin, -eta * g)
        losses.append(slope(twin, loss, batches[0])[0])
        change = (slope(twin, loss, batches[behind])[1] - g).norm().item()
        changes.append(change)
        ratios.append(divide(change, eta, g.norm().item()))
    return summary(losses, changes, ratios)


# The second gradient is that of the next mini-batch.
consecutive_batches = partial(right, behind=1)
not_divided = partial(right, divide=lambda d, eta, g: d)
divided_by_the_step_alone = partial(right, divide=lambda d, eta, g: d / eta)
divided_by_the_norm_alone = partial(right, divide=lambda d, eta, g: d / g)
divided_twice = partial(right, divide=lambda d, eta, g: d / (eta * g) ** 2)


def separate_runs(
    model: nn.Module, loss: Loss, batches: Sequence[Batch], step_sizes: Sequence[float]
) -> Quantities:
    """The losses are those of training runs, one for each learning rate."""
    losses = []
    for eta in step_sizes:
        twin = copy.deepcopy(model)
        for batch in batches:
            move(twin, -eta * slope(twin, loss, batch)[1])
        losses.append(slope(twin, loss, batches[0])[0])
    _, changes, smoothness = right(model, loss, batches, step_sizes)
    return (min(losses), max(losses)), changes, smoothness


def steps_from_other_weights(
    model: nn.Module, loss: Loss, batches: Sequence[Batch], step_sizes: Sequence[float]
) -> Quantities:
    """Nobody puts the weights back: each step begins where the last one ended."""
    losses, changes, ratios = [], [], []
    twin = copy.deepcopy(model)
    _, g_0 = slope(twin, loss, batches[0])
    for eta in step_sizes:
        _, g = slope(twin, loss, batches[0])
        move(twin, -eta * g)
        value, after = slope(twin, loss, batches[0])
        losses.append(value)
        changes.append((after - g_0).norm().item())
        ratios.append(changes[-1] / (eta * g_0.norm().item()))
    return summary(losses, changes, ratios)


def in_evaluation_mode(model: nn.Module, *given: Any) -> Quantities:
    return right(copy.deepcopy(model).eval(), *given)


def with_grad(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Batch],
    step_sizes: Sequence[float],
    keep: Callable[[Tensor], Tensor],
    zero: bool,
) -> Quantities:
    losses, changes, ratios = [], [], []
    for eta in step_sizes:
        twin = copy.deepcopy(model)
        twin.zero_grad()
        x, target = batches[0]
        torch.autograd.backward(loss(twin(x), target))
        first = [keep(p.grad) for p in twin.parameters() if p.grad is not None]
        norm = torch.cat([g.flatten() for g in first]).norm().item()
        move(twin, torch.cat([g.flatten() for g in first]) * -eta)
        twin.zero_grad(set_to_none=False) if zero else None
        value = loss(twin(x), target)
        torch.autograd.backward(value)
        second = [p.grad for p in twin.parameters() if p.grad is not None]
        gaps = [b - a for a, b in zip(first, second, strict=True)]
        losses.append(value.item())
        changes.append(torch.cat([d.flatten() for d in gaps]).norm().item())
        ratios.append(changes[-1] / (eta * norm))
    return summary(losses, changes, ratios)


# The first gradient is not cloned, and .grad is zeroed in place.
same_tensor_twice = partial(with_grad, keep=lambda g: g, zero=True)
# Between both backward passes .grad is not set to zero.
accumulated = partial(with_grad, keep=Tensor.clone, zero=False)


def norm_of_the_second(
    model: nn.Module, loss: Loss, batches: Sequence[Batch], step_sizes: Sequence[float]
) -> Quantities:
    """The gradient after the step, from which the first was not taken off."""
    losses, _, smoothness = right(model, loss, batches, step_sizes)
    changes = []
    for eta in step_sizes:
        twin = copy.deepcopy(model)
        move(twin, -eta * slope(twin, loss, batches[0])[1])
        changes.append(slope(twin, loss, batches[0])[1].norm().item())
    return losses, (min(changes), max(changes)), smoothness


def of_all_ratios(pick: Callable[[list[float]], float], *given: Any) -> Quantities:
    ratios: list[float] = []

    def divide(change: float, eta: float, norm: float) -> float:
        ratios.append(change / eta / norm)
        return ratios[-1]

    losses, changes, _ = right(*given, divide=divide)
    return losses, changes, pick(ratios)


smallest_ratio = partial(of_all_ratios, min)
mean_ratio = partial(of_all_ratios, fmean)


def largest_over_largest(
    model: nn.Module, loss: Loss, batches: Sequence[Batch], step_sizes: Sequence[float]
) -> Quantities:
    losses, changes, _ = right(model, loss, batches, step_sizes)
    norm = slope(copy.deepcopy(model), loss, batches[0])[1].norm().item()
    return losses, changes, changes[1] / (max(step_sizes) * norm)


def leaves_the_last_step(model: nn.Module, *given: Any) -> Quantities:
    """The numbers are right, but the model has moved."""
    found = right(model, *given)
    move(model, -0.1 * torch.ones(sum(p.numel() for p in model.parameters())))
    return found


def leaves_the_statistics(model: nn.Module, loss: Loss, *given: Any) -> Quantities:
    """The weights are put back, the running statistics are not."""
    found = right(model, loss, *given)
    slope(model, loss, given[0][0])
    return found


def leaves_gradients(model: nn.Module, *given: Any) -> Quantities:
    found = right(model, *given)
    model.zero_grad()
    return found


def leaves_evaluation_mode(model: nn.Module, *given: Any) -> Quantities:
    found = right(model, *given)
    model.eval()
    return found
