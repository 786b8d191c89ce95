r"""Batch norm over a batch that is split among processes.

Each process holds a *shard* of the batch. Forward takes one all-gather: every process
sends mean, variance and number of values of its shard, in float64, and all merge what
arrives (:func:`normbook.running_statistics.merge`). Backward takes one all-reduce, of
the sums of :math:`\partial\ell/\partial y` and :math:`\hat x\,\partial\ell/\partial y`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.arrays import as_float32
from normbook.batch_norm import CHANNEL, batch_axes, inference
from normbook.layers.batch_norm import Batch, _BatchNorm
from normbook.layers.function import Slopes, as_needed
from normbook.normalize import broadcast_along, moments
from normbook.running_statistics import PopulationStatistics, merge

__all__ = ["SyncBatchNorm"]

EXACT = torch.float64  # of what all processes need to the last digit


class _Synchronized(torch.autograd.Function):
    """Batch norm with the statistics of all shards, of which x is one."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, gamma, beta, total, eps, group = inputs
        ctx.save_for_backward(x, gamma, total.mean, total.var)
        ctx.size, ctx.eps, ctx.group = total.size, eps, group
        y: Tensor = inference(*_shifted(x, total.mean, total.var), gamma, beta, eps)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dl_dy: Tensor) -> Slopes:
        x, gamma, mean, var = ctx.saved_tensors
        x_hat = inference(*_shifted(x, mean, var), None, None, ctx.eps)
        g = as_float32(dl_dy)
        axes = batch_axes(x)
        # Of this shard alone: whoever trains adds up the gradients of parameters.
        dl_dbeta, dl_dgamma = g.sum(axes), (g * x_hat).sum(axes)
        totals = torch.stack([dl_dbeta, dl_dgamma])  # (2, C)
        distributed.all_reduce(totals, group=ctx.group)
        scale = (var + ctx.eps).rsqrt() * (1.0 if gamma is None else gamma)
        per_channel = *(totals / ctx.size), scale.to(g.dtype)
        g_bar, along, scale = (
            broadcast_along(value, CHANNEL, x.ndim) for value in per_channel
        )
        dl_dx = scale * (g - g_bar - x_hat * along)
        # All of them are computed everywhere: a process that left the sums out, since
        # nobody asked it for dl_dx, would let the others wait.
        return as_needed(ctx, dl_dx.to(x.dtype), dl_dgamma, dl_dbeta)


def _shifted(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move x and its mean by about the mean, for which float32 has no digits."""
    x = as_float32(x)
    near = mean.to(x.dtype)
    shifted = x - broadcast_along(near, CHANNEL, x.ndim)
    return shifted, (mean - near).to(x.dtype), var.to(x.dtype)


def _of_all_shards(
    x: Tensor, group: distributed.ProcessGroup
) -> PopulationStatistics | None:
    """Statistics of all shards together, the same in every process; None if empty."""
    channels = x.shape[1]
    # Mean, biased variance and number of values of this shard.
    message = torch.zeros(2 * channels + 1, dtype=EXACT, device=x.device)
    if x.numel():
        axes, values = batch_axes(x), as_float32(x)
        start = values.mean(axes, keepdim=True)
        rest, var = moments(values - start, axes)
        message[:channels] = (start.to(EXACT) + rest).flatten()
        message[channels:-1] = var.flatten()
        message[-1] = x.numel() // channels
    received = [torch.empty_like(message) for _ in range(group.size())]
    distributed.all_gather(received, message, group=group)
    # The one moment at which a GPU is waited for.
    sizes = torch.stack(received)[:, -1].long().tolist()
    if not any(sizes):
        return None
    return merge(
        PopulationStatistics(shard[:channels], shard[channels:-1], size)
        for shard, size in zip(received, sizes, strict=True)
    )


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of a batch whose shards lie in several processes.

    A drop-in for :class:`torch.nn.SyncBatchNorm` that runs on CPUs (backend gloo) as
    well as on GPUs (NCCL). Outputs, gradients, running statistics, ``state_dict``,
    options and errors are those of a :class:`~normbook.layers.batch_norm.BatchNorm1d`
    in one process that holds the whole batch; a single value in all shards together is
    refused in every process. The processes are those of ``process_group``, from
    ``torch.distributed.new_group``, by default all.

    Shards may differ in size, and some may be empty. In evaluation, or with a single
    process, nothing is sent. Every process of the group must call the layer, forward
    and backward, in the same mode; else the others end with a ``RuntimeError`` after
    the timeout of the process group.

    The gradients of ``weight`` and ``bias`` are those of the own shard, as in torch:
    ``DistributedDataParallel`` averages them over the processes afterwards. Second
    derivatives are not supported where statistics are shared.

    Source: Chan, Golub and LeVeque (1983), eq. 2.1; book, chapter *Split batches*.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: distributed.ProcessGroup | None = None,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        args = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*args, bias=bias)
        self.process_group = process_group
        self._last_count = 0

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: distributed.ProcessGroup | None = None
    ) -> nn.Module:
        """Replace the batch norm layers of a model, in place, by layers of this class.

        Returned is ``module``, or the new layer if it was one itself. Parameters,
        buffers and modes are those of the old layers, the very same objects. Layers
        that normalize by something else than the batch they see (ghost batch norm, say)
        stay: to replace them would change the model.

        >>> model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        >>> type(SyncBatchNorm.convert_sync_batchnorm(model)[1]).__name__
        'SyncBatchNorm'
        """
        new = {
            old: cls._converted(old, process_group)
            for old in module.modules()
            if _is_plain(old)
        }
        for parent in list(module.modules()):
            # Not named_children: it leaves out a layer's second place in the model.
            for name, child in parent._modules.items():
                if child in new:
                    setattr(parent, name, new[child])
        return new.get(module, module)

    @classmethod
    def _converted(
        cls, old: nn.Module, process_group: distributed.ProcessGroup | None
    ) -> SyncBatchNorm:
        names = "num_features", "eps", "momentum", "affine", "track_running_stats"
        settings = {name: getattr(old, name) for name in names}
        new = cls(**settings, process_group=process_group, device="meta")
        parts = "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
        for name in (*parts, "training"):
            setattr(new, name, getattr(old, name))
        return new

    def _by_any_batch(self, input: Tensor, eps: float) -> Batch:
        group = self._group()
        # From here to the end of the exchange, nothing may depend on the shard.
        total = None if group is None else _of_all_shards(input.detach(), group)
        if total is None:
            batch = super()._by_any_batch(input, eps)
        elif total.size == 1:
            raise ValueError(
                "SyncBatchNorm needs more than 1 value per channel in all processes "
                f"together, got 1, of shape {tuple(input.shape)} here; make the batch "
                "larger, or call eval() to use the running statistics."
            )
        else:
            inputs = input, self.weight, self.bias, total, eps, group
            batch = _Synchronized.apply(*inputs), *total  # type: ignore[no-untyped-call]
        self._last_count = batch[-1]
        return batch

    def _size(self, input: Tensor) -> int:
        return self._last_count  # of all shards, so that all processes agree

    def _group(self) -> distributed.ProcessGroup | None:
        """Processes to share statistics with; None if there are no others."""
        is_joined = distributed.is_available() and distributed.is_initialized()
        if not (self.training and is_joined):
            return None
        group = self.process_group or distributed.group.WORLD
        count = distributed.get_world_size(group)
        if count < 1:
            raise ValueError(
                "process_group must be one of this process, got one of others; make "
                "the layer in the processes of its group only, or give each its own."
            )
        return group if count > 1 else None

    def _check_count(self, input: Tensor) -> None:
        if self._group() is None:
            super()._check_count(input)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] == 0:
            raise ValueError(
                "input of SyncBatchNorm must have shape (N, C, ...) with C at least 1, "
                f"got {tuple(input.shape)}; add the missing axis, e.g. input[None]."
            )


def _is_plain(module: nn.Module) -> bool:
    """Whether it is a batch norm by the batch it sees."""
    if isinstance(module, SyncBatchNorm) or not isinstance(module, _BatchNorm):
        return isinstance(module, TorchBatchNorm)
    return all(
        getattr(type(module), name) is getattr(_BatchNorm, name)
        for name in ("forward", "_by_batch", "_by_any_batch")
    )
