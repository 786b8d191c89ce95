"""Data-parallel training: several processes take part in every update of a run.

Each process gets the whole batch and computes the scores of its part, its *shard*. The
scores of all are put together, so that the objective is that of the whole batch.
Backward, each process follows its own scores, and the gradients are summed.

Batch norm sends its statistics
(:class:`~normbook.layers.sync_batch_norm.SyncBatchNorm`). Every other module that may
mix examples is given the whole batch in each process: that is right for any, and saves
no time. Measurements see the model itself, which is not changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn

from normbook.errors import RunError
from normbook.lab.experiment import Run
from normbook.lab.ranks import Ranks
from normbook.layers.group_norm import GroupNorm
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.layers.lp_norm import LpNorm1d
from normbook.layers.sync_batch_norm import SyncBatchNorm

# Exactly these types: a subclass may compute something else.
PER_EXAMPLE = {
    nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.Flatten,
    nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Identity,
    LayerNorm, RMSNorm, GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm,
}  # fmt: skip
# What plain data-parallel training leaves to each shard, subclasses as well.
LOCAL = (nn.modules.batchnorm._BatchNorm, LpNorm1d)


class DataParallel(nn.Module):
    """A model that computes one shard of a batch, and gets the scores of all shards.

    Every process must call it with the same batch. The model takes tensors and returns
    one, all with the examples on axis 0; its parameters and buffers are shared. With
    local statistics normalizations take those of the shard; RunError if some are inside
    a module of an unknown class.
    """

    def __init__(
        self, model: nn.Module, ranks: Ranks, *, has_local_statistics: bool = False
    ) -> None:
        super().__init__()
        self.shards = _Shards(ranks)
        self.model = _distributed(model, self.shards, has_local_statistics)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the model returns for the whole batch."""
        self.shards.count = len(inputs[0])
        scores: Tensor = self.model(*map(self.shards.take, inputs))
        with torch.no_grad():
            whole = self.shards.join(scores)
        part = self.shards.part
        return torch.cat([whole[: part.start], scores, whole[part.stop :]])


def share_batches(
    run: Run, ranks: Ranks, *, has_local_statistics: bool = False
) -> None:
    """Let several processes take part in every update of a run, the same in all.

    With local statistics the running ones differ between the processes; RunError if a
    shard has fewer than two examples.
    """
    if ranks.count == 1:
        return
    size = run.batches.size
    if has_local_statistics and size // ranks.count < 2:
        raise RunError(
            "--local-statistics needs two examples of each batch in every process, "
            f"got a batch of {size} for {ranks.count} processes; take fewer."
        )
    run.stand_in = DataParallel(
        run.model, ranks, has_local_statistics=has_local_statistics
    )
    _share_gradients(run.optimizer)


def _share_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Sum the gradients of all processes before each step.

    Once a step: that of a subclass calls that of its base, and torch calls the hooks
    of both.
    """
    depth = 0

    def before(*_: Any) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            _sum_gradients(optimizer)

    def after(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


# In place of torch's DistributedDataParallel, which averages the gradients of one
# objective for each shard, and orders them anew after its first step: with three
# processes or more the sums, and the last bits after --resume, depend on the order.
def _sum_gradients(optimizer: torch.optim.Optimizer) -> None:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view(gradient.shape))


class _Shards:
    """How a batch is cut: into consecutive parts, as equal as can be, some empty."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.count = 0  # examples in the batch

    @property
    def part(self) -> slice:
        rank, ranks = self.ranks.rank, self.ranks.count
        return slice(self.count * rank // ranks, self.count * (rank + 1) // ranks)

    def take(self, whole: Tensor) -> Tensor:
        return whole[self.part]

    def join(self, shard: Tensor) -> Tensor:
        """Put the shards together; the derivative sums over the processes."""
        if shard.dtype == torch.bool:  # which gloo does not add up
            return self.join(shard.byte()).bool()
        before, after = self.part.start, self.count - self.part.stop
        if before + len(shard) + after != self.count:
            raise ValueError(
                "what mixes examples must be given one row for each example, got shape "
                f"{tuple(shard.shape)} for {self.part.stop - before} examples; reshape "
                "inside of that module."
            )
        padding = [0, 0] * (shard.dim() - 1) + [before, after]
        whole: Tensor = _Sum.apply(nn.functional.pad(shard, padding))  # type: ignore[no-untyped-call]
        return whole


class _Sum(torch.autograd.Function):
    """Sum over the processes: each has a part of its derivative, too."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    backward = forward


class _Whole(nn.Module):
    """Applies a module to the whole batch, and returns the shard of the result."""

    def __init__(self, module: nn.Module, shards: _Shards) -> None:
        super().__init__()
        self.module, self.shards = module, shards

    def forward(self, *inputs: Any) -> Tensor:
        join = self.shards.join
        whole = (join(x) if isinstance(x, Tensor) else x for x in inputs)
        return self.shards.take(self.module(*whole))


def _distributed(module: nn.Module, shards: _Shards, is_local: bool) -> nn.Module:
    """Return a module for shards with the parameters and buffers of another one."""
    if type(module) is nn.Sequential:
        return nn.Sequential(*(_distributed(m, shards, is_local) for m in module))
    if type(module) in PER_EXAMPLE or (is_local and isinstance(module, LOCAL)):
        return module
    if is_local and any(isinstance(part, LOCAL) for part in module.modules()):
        raise RunError(
            "--local-statistics needs a model made of nn.Sequential, got a "
            f"{type(module).__name__} with normalizations inside; leave it out."
        )
    if any(module.children()):
        return _Whole(module, shards)
    converted: nn.Module = SyncBatchNorm.convert_sync_batchnorm(module)
    return _Whole(module, shards) if converted is module else converted
