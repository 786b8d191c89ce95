"""Sound norm layers and normalized recurrent layers, as real projects have them.

A tenth set, without a slip: written without a look at the checks or at the layers of other
hands, of what a checker may misjudge. ``expected.txt`` says what is unusual of each.
"""

# ruff: noqa: B905, D102, E501, RUF005, S101 - as it was written
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """One layer: its name, how to make it, and what a caller has to know."""

    name: str
    make: Callable[[], nn.Module]
    batch: None = None
    arguments: dict = field(default_factory=dict)


# --------------------------------------------------------------------------------------
# norms
# --------------------------------------------------------------------------------------


class KerasBatchNormalization(nn.Module):
    """Batch norm over the last axis by Keras 3's conventions: momentum is the share KEPT, epsilon 1e-3, the moving variance averages the population variance."""

    def __init__(self, dim: int, momentum: float = 0.99, epsilon: float = 1e-3):
        super().__init__()
        self.momentum = momentum
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))
        self.register_buffer("moving_mean", torch.zeros(dim))
        self.register_buffer("moving_variance", torch.ones(dim))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            axes = tuple(range(inputs.dim() - 1))
            if inputs.numel() // inputs.shape[-1] < 2:
                raise ValueError(
                    f"more than one value per channel is needed to train, got {tuple(inputs.shape)}"
                )
            mean = inputs.mean(axes)
            variance = torch.mean((inputs - mean) ** 2, axes)
            with torch.no_grad():
                self.moving_mean.copy_(
                    self.moving_mean * self.momentum + mean * (1.0 - self.momentum)
                )
                self.moving_variance.copy_(
                    self.moving_variance * self.momentum
                    + variance * (1.0 - self.momentum)
                )
        else:
            mean, variance = self.moving_mean, self.moving_variance
        # tf.nn.batch_normalization
        inv = torch.rsqrt(variance + self.epsilon) * self.gamma
        return (inputs - mean) * inv + self.beta


class PooledBatchNorm3d(nn.Module):
    """Batch norm for (N, C, D, H, W) whose evaluation statistics are the exact ones of ALL data seen in training (count, sum and sum of squared deviations are kept), not a moving average."""

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("total", torch.zeros(channels))
        self.register_buffer("deviation", torch.zeros(channels))

    @torch.no_grad()
    def _absorb(self, n: int, mean: Tensor, m2: Tensor) -> None:
        seen = int(self.count)
        if seen:
            gap = mean - self.total / seen
            m2 = m2 + gap.square() * (seen * n / (seen + n))
        self.deviation += m2
        self.total += mean * n
        self.count += n

    def _pooled(self) -> tuple[Tensor, Tensor]:
        seen = int(self.count)
        if seen < 2:  # nothing seen yet: as fresh running statistics
            return torch.zeros_like(self.total), torch.ones_like(self.deviation)
        return self.total / seen, self.deviation / (seen - 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 5 or x.size(1) != self.channels:
            raise ValueError(
                f"expected (N, {self.channels}, D, H, W), got {tuple(x.shape)}"
            )
        if self.training:
            n = x.numel() // self.channels
            if n < 2:
                raise ValueError("cannot train on one value per channel")
            mean = x.mean((0, 2, 3, 4))
            m2 = (x - mean.view(1, -1, 1, 1, 1)).square().sum((0, 2, 3, 4))
            self._absorb(n, mean.detach(), m2.detach())
            var = m2 / n
        else:
            mean, var = self._pooled()
        scale = self.weight / (var + self.eps).sqrt()
        return (x - mean.view(1, -1, 1, 1, 1)) * scale.view(
            1, -1, 1, 1, 1
        ) + self.bias.view(1, -1, 1, 1, 1)


class _BatchNormRows(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps) * w + b over the rows of (M, C), with its own backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w, b, eps):
        mean = x.mean(0)
        inv = ((x - mean).square().mean(0) + eps).rsqrt()
        return (x - mean) * inv * w + b

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, _, ctx.eps = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        centred = x - x.mean(
            0
        )  # made again from x, so that a second derivative is right too
        inv = (centred.square().mean(0) + ctx.eps).rsqrt()
        hat = centred * inv
        gb = g.sum(0)
        gw = (g * hat).sum(0)
        gx = w * inv * (g - gb / x.shape[0] - hat * (gw / x.shape[0]))
        return gx, gw, gb, None


class FunctionBatchNorm1d(nn.Module):
    """Batch norm for (N, C) or (N, C, L) as a custom autograd function with float32 (or wider) arithmetic inside; takes bfloat16."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (2, 3):
            raise ValueError(f"expected 2D or 3D input (got {x.dim()}D input)")
        wide = torch.promote_types(x.dtype, torch.float32)
        rows = x.movedim(1, -1)
        lead = rows.shape[:-1]
        rows = rows.reshape(-1, self.num_features).to(wide)
        w, b = self.weight.to(wide), self.bias.to(wide)
        if self.training:
            if rows.shape[0] < 2:
                raise ValueError(
                    f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}"
                )
            with torch.no_grad():
                var, mean = torch.var_mean(rows, 0, correction=1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
                self.num_batches_tracked += 1
            y = _BatchNormRows.apply(rows, w, b, self.eps)
        else:
            y = (rows - self.running_mean.to(wide)) * torch.rsqrt(
                self.running_var.to(wide) + self.eps
            ) * w + b
        return y.reshape(*lead, -1).movedim(-1, 1).to(x.dtype)


class GhostBatchNorm(nn.Module):
    """Ghost batch norm: in training each run of at least `virtual` consecutive examples is normalized by its own statistics; the running ones average the ghosts', once a batch."""

    def __init__(
        self, channels: int, virtual: int = 4, momentum: float = 0.05, eps: float = 1e-5
    ):
        super().__init__()
        assert virtual >= 2
        self.virtual, self.momentum, self.eps = virtual, momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        axes = [0, *range(2, x.dim())]
        column = [1, -1] + [1] * (x.dim() - 2)
        if not self.training:
            y = (x - self.running_mean.view(column)) / torch.sqrt(
                self.running_var.view(column) + self.eps
            )
            return y * self.weight.view(column) + self.bias.view(column)
        if x.numel() <= x.size(1):
            raise ValueError(
                "ghost batch norm cannot train on a single value per channel"
            )
        # floor, so that no ghost is smaller than `virtual` unless the whole batch is
        ghosts = x.tensor_split(max(1, x.size(0) // self.virtual))
        done, mean_sum, var_sum = [], 0.0, 0.0
        for ghost in ghosts:
            var, mean = torch.var_mean(ghost, axes, correction=0, keepdim=True)
            n = ghost.numel() // ghost.size(1)
            share = ghost.size(0) / x.size(0)
            mean_sum = mean_sum + share * mean.detach().flatten()
            var_sum = var_sum + share * var.detach().flatten() * (n / (n - 1))
            done.append((ghost - mean) * torch.rsqrt(var + self.eps))
        with torch.no_grad():
            self.running_mean += self.momentum * (mean_sum - self.running_mean)
            self.running_var += self.momentum * (var_sum - self.running_var)
        return torch.cat(done) * self.weight.view(column) + self.bias.view(column)


class BatchRenorm2d(nn.Module):
    """Batch renormalization (Ioffe 2017) after its warm-up: the training output is corrected by r and d (no gradient through them) towards the running statistics; keeps a running standard deviation (eps within)."""

    def __init__(
        self,
        channels: int,
        eps: float = 1e-3,
        momentum: float = 0.01,
        r_max: float = 3.0,
        d_max: float = 5.0,
    ):
        super().__init__()
        self.eps, self.momentum, self.r_max, self.d_max = eps, momentum, r_max, d_max
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_std", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, -1)  # channels last for broadcasting
        if self.training:
            if x[..., 0].numel() < 2:
                raise ValueError("Expected more than 1 value per channel when training")
            dims = tuple(range(x.dim() - 1))
            mean = x.mean(dims)
            std = (x.var(dims, correction=0) + self.eps).sqrt()
            with torch.no_grad():
                r = (std / self.running_std).clamp(1 / self.r_max, self.r_max)
                d = ((mean - self.running_mean) / self.running_std).clamp(
                    -self.d_max, self.d_max
                )
                self.running_mean += self.momentum * (mean - self.running_mean)
                self.running_std += self.momentum * (std - self.running_std)
                self.num_batches_tracked += 1
            x = (x - mean) / std * r + d
        else:
            x = (x - self.running_mean) / self.running_std
        return (x * self.weight + self.bias).transpose(1, -1)


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose backward is the all-reduce of the gradients."""

    @staticmethod
    def forward(ctx, t):
        t = t.clone()
        dist.all_reduce(t)
        return t

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class CrossReplicaBatchNorm(nn.Module):
    """Synchronized batch norm: statistics over all ranks when torch.distributed runs, else over the batch; two passes; momentum None would be a cumulative average."""

    def __init__(self, features: int, eps: float = 1e-5, momentum: float | None = 0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    @staticmethod
    def _everywhere(t: Tensor) -> Tensor:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return _SumOverRanks.apply(t)
        return t

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        if self.training:
            dims = [d for d in range(x.dim()) if d != 1]
            local = torch.tensor(
                x.numel() // x.size(1), dtype=torch.long, device=x.device
            )
            with torch.no_grad():
                n = int(self._everywhere(local))
            if n < 2:
                raise ValueError(
                    f"Expected more than 1 value per channel over all ranks when training, got {n}"
                )
            mean = self._everywhere(x.sum(dims)) / n
            centred = x - mean.view(shape)
            var = self._everywhere(centred.square().sum(dims)) / n
            with torch.no_grad():
                self.num_batches_tracked += 1
                m = (
                    1.0 / int(self.num_batches_tracked)
                    if self.momentum is None
                    else self.momentum
                )
                self.running_mean.mul_(1 - m).add_(mean, alpha=m)
                self.running_var.mul_(1 - m).add_(var, alpha=m * n / (n - 1))
        else:
            centred, var = x - self.running_mean.view(shape), self.running_var
        return centred * (self.weight * torch.rsqrt(var + self.eps)).view(
            shape
        ) + self.bias.view(shape)


class FrozenBatchNorm2d(nn.Module):
    """Batch norm with fixed statistics and fixed affine (all buffers, as loaded from a checkpoint): the same in training and evaluation, nothing is learned."""

    def __init__(self, n: int, eps: float = 1e-5, seed: int | None = None):
        super().__init__()
        self.eps = eps
        rand = torch.Generator().manual_seed(seed or 0)
        fresh = seed is None
        self.register_buffer(
            "weight", torch.ones(n) if fresh else 0.5 + torch.rand(n, generator=rand)
        )
        self.register_buffer(
            "bias", torch.zeros(n) if fresh else torch.randn(n, generator=rand)
        )
        self.register_buffer(
            "running_mean", torch.zeros(n) if fresh else torch.randn(n, generator=rand)
        )
        self.register_buffer(
            "running_var",
            torch.ones(n) - eps if fresh else 0.3 + torch.rand(n, generator=rand),
        )

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


class ChannelsFirstLayerNorm(nn.Module):
    """ConvNeXt's layer norm for (N, C, H, W): over the channels alone, at each place by itself; float32 inside, takes bfloat16."""

    def __init__(self, channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.promote_types(dtype, torch.float32))
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return x.to(dtype)


class OffsetRMSNorm(nn.Module):
    """Gemma's RMS norm over the last axis: the gain is 1 + weight with weight starting at 0, multiplied before the cast back; takes bfloat16."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        output = self._norm(x.to(wide)) * (1.0 + self.weight.to(wide))
        return output.type_as(x)


class FlaxGroupNorm(nn.Module):
    """Group norm in Flax's convention: channels on the last axis in contiguous groups, parameters `scale` and `bias`, epsilon 1e-6, statistics of a group over all its places."""

    def __init__(self, features: int, num_groups: int = 32, epsilon: float = 1e-6):
        super().__init__()
        if features % num_groups:
            raise ValueError("num_groups must divide features")
        self.num_groups, self.epsilon = num_groups, epsilon
        self.scale = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (self.num_groups, -1))  # n ... g c
        over = tuple(range(1, grouped.dim() - 2)) + (grouped.dim() - 1,)
        mean = grouped.mean(over, keepdim=True)
        var = (grouped - mean).square().mean(over, keepdim=True)
        mul = torch.rsqrt(var + self.epsilon) * self.scale.unflatten(
            0, (self.num_groups, -1)
        )
        y = (grouped - mean) * mul
        return y.flatten(-2) + self.bias


class TrackingInstanceNorm1d(nn.Module):
    """Instance norm for (N, C, L) with tracked statistics as torch's track_running_stats=True: an example's own in training, the running ones in evaluation."""

    def __init__(self, c: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = (
            nn.Parameter(torch.ones(c)),
            nn.Parameter(torch.zeros(c)),
        )
        self.register_buffer("running_mean", torch.zeros(c))
        self.register_buffer("running_var", torch.ones(c))

    def forward(self, x: Tensor) -> Tensor:
        n, c, length = x.shape
        if self.training:
            if length < 2:
                raise ValueError("Expected more than 1 spatial element when training")
            mu = x.mean(2)
            var = (
                torch.einsum("ncl,ncl->nc", x - mu[..., None], x - mu[..., None])
                / length
            )
            with torch.no_grad():
                self.running_mean.lerp_(mu.mean(0), self.momentum)
                self.running_var.lerp_(
                    var.mean(0) * length / (length - 1), self.momentum
                )
        else:
            mu, var = self.running_mean.expand(n, c), self.running_var.expand(n, c)
        return torch.addcmul(
            self.bias[:, None],
            (x - mu[..., None]) * (var + self.eps).rsqrt()[..., None],
            self.weight[:, None],
        )


class AdaIN(nn.Module):
    """Adaptive instance norm (Huang & Belongie): the content takes the style features' mean and standard deviation; no parameters, unbiased variances as in the authors' code."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def _mean_std(self, feat: Tensor) -> tuple[Tensor, Tensor]:
        n, c = feat.shape[:2]
        flat = feat.reshape(n, c, -1)
        if flat.size(2) < 2:
            raise ValueError("AdaIN needs more than one place in a feature map")
        return flat.mean(2)[..., None, None], (flat.var(2) + self.eps).sqrt()[
            ..., None, None
        ]

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        style_mean, style_std = self._mean_std(style)
        content_mean, content_std = self._mean_std(content)
        return (content - content_mean) / content_std * style_std + style_mean


class AdaLayerNorm(nn.Module):
    """Adaptive layer norm as in DiT: layer norm without affine over the last axis, then (1 + scale) and shift made from a condition by SiLU and a linear layer."""

    def __init__(self, dim: int, cond_dim: int, eps: float = 1e-6):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(cond_dim, 2 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.modulation(c).chunk(2, dim=-1)
        x = F.layer_norm(x, (self.dim,), eps=self.eps)
        return torch.addcmul(shift[:, None], x, 1 + scale[:, None])


class SPADEBatchNorm(nn.Module):
    """SPADE: batch norm without affine, then a gain 1 + gamma and an offset beta that convolutions make from a segmentation map for each place."""

    def __init__(
        self,
        channels: int,
        labels: int,
        hidden: int = 8,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.shared = nn.Conv2d(labels, hidden, 3, padding=1)
        self.gamma = nn.Conv2d(hidden, channels, 3, padding=1)
        self.beta = nn.Conv2d(hidden, channels, 3, padding=1)

    def _param_free(self, x: Tensor) -> Tensor:
        if not self.training:
            mean, var = (
                self.running_mean[:, None, None],
                self.running_var[:, None, None],
            )
            return (x - mean) / (var + self.eps).sqrt()
        n = x.size(0) * x.size(2) * x.size(3)
        if n == 1:
            raise ValueError("Expected more than 1 value per channel when training")
        mean = x.mean((0, 2, 3), keepdim=True)
        var = x.var((0, 2, 3), correction=0, keepdim=True)
        keep = 1 - self.momentum
        self.running_mean.mul_(keep).add_(self.momentum * mean.detach().reshape(-1))
        self.running_var.mul_(keep).add_(
            self.momentum * var.detach().reshape(-1) * (n / (n - 1))
        )
        return (x - mean) / (var + self.eps).sqrt()

    def forward(self, x: Tensor, segmap: Tensor) -> Tensor:
        segmap = F.interpolate(segmap, size=x.shape[2:], mode="nearest")
        act = F.relu(self.shared(segmap))
        return self._param_free(x) * (1 + self.gamma(act)) + self.beta(act)


class MaskedBatchNorm(nn.Module):
    """Batch norm for padded sequences (N, T, C) with a mask (N, T): padding counts in no statistic, whatever stands there, and comes out as zero."""

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            mask = x.new_ones(x.shape[:2], dtype=torch.bool)
        pad = ~mask.unsqueeze(-1)
        x = x.masked_fill(pad, 0)
        if self.training:
            n = int(mask.sum())
            if n < 2:
                raise ValueError(
                    f"Expected more than 1 valid value per channel when training, got {n}"
                )
            mean = x.sum((0, 1)) / n
            var = (x - mean).masked_fill(pad, 0).square().sum((0, 1)) / n
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * n / (n - 1), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        y = (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return y.masked_fill(pad, 0)


class MultiHeadQKNorm(nn.Module):
    """RMS norm of queries or keys (B, heads, T, dim) for each head by L2-normalizing and sqrt(dim), with a gain of its own for each head and feature, stored as its logarithm."""

    def __init__(self, heads: int, dim: int):
        super().__init__()
        self.root = math.sqrt(dim)
        self.log_gain = nn.Parameter(torch.zeros(heads, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1, eps=1e-12) * (self.log_gain.exp() * self.root)


# --------------------------------------------------------------------------------------
# recurrent layers
# --------------------------------------------------------------------------------------


class ZoneoutLayerNormLSTM(nn.Module):
    """LSTM (T, N, D) with layer norm (Ba et al.: on both projections, on the cell for the output alone) and zoneout: random in training, its expectation in evaluation; gates f, i, o, g."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        zoneout_h: float = 0.1,
        zoneout_c: float = 0.2,
    ):
        super().__init__()
        self.hidden_size = hidden_size
        self.zoneout_h, self.zoneout_c = zoneout_h, zoneout_c
        self.weight_x = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_h = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.gain_x = nn.Parameter(torch.ones(4 * hidden_size))
        self.gain_h = nn.Parameter(torch.ones(4 * hidden_size))
        self.norm_c = nn.LayerNorm(hidden_size)
        nn.init.xavier_uniform_(self.weight_x)
        for block in self.weight_h.data.chunk(4):
            nn.init.orthogonal_(block)
        self.bias.data[:hidden_size] = 1.0

    def _zone(self, new: Tensor, old: Tensor, p: float) -> Tensor:
        if self.training:
            return torch.where(torch.rand_like(new) < p, old, new)
        return p * old + (1 - p) * new

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        size = self.weight_x.shape[:1]
        if state is None:
            h = x.new_zeros(x.size(1), self.hidden_size)
            c = torch.zeros_like(h)
        else:
            h, c = state[0][0], state[1][0]
        drive = F.layer_norm(F.linear(x, self.weight_x), size, self.gain_x) + self.bias
        steps = []
        for step in drive:
            gates = step + F.layer_norm(F.linear(h, self.weight_h), size, self.gain_h)
            f, i, o, g = gates.chunk(4, -1)
            c_new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h_new = torch.sigmoid(o) * torch.tanh(self.norm_c(c_new))
            c = self._zone(c_new, c, self.zoneout_c)
            h = self._zone(h_new, h, self.zoneout_h)
            steps.append(h)
        return torch.stack(steps), (h.unsqueeze(0), c.unsqueeze(0))


class LayerNormBasicLSTMCell(nn.Module):
    """TensorFlow's LayerNormBasicLSTMCell: one kernel for [x, h] and no bias, gates i, j, f, o each with its own layer norm, forget bias 1 added after it, and the NORMALIZED cell is carried on; optional dropout of the candidate."""

    def __init__(
        self,
        input_size: int,
        num_units: int,
        forget_bias: float = 1.0,
        dropout_keep_prob: float = 1.0,
        eps: float = 1e-5,
    ):
        super().__init__()
        self.num_units, self.forget_bias, self.keep, self.eps = (
            num_units,
            forget_bias,
            dropout_keep_prob,
            eps,
        )
        self.kernel = nn.Parameter(torch.empty(input_size + num_units, 4 * num_units))
        nn.init.xavier_uniform_(self.kernel)
        names = ("input", "transform", "forget", "output", "state")
        self.gamma = nn.ParameterDict(
            {k: nn.Parameter(torch.ones(num_units)) for k in names}
        )
        self.beta = nn.ParameterDict(
            {k: nn.Parameter(torch.zeros(num_units)) for k in names}
        )

    def _norm(self, t: Tensor, scope: str) -> Tensor:
        mean = t.mean(-1, keepdim=True)
        variance = (t - mean).square().mean(-1, keepdim=True)
        return (t - mean) * (variance + self.eps).rsqrt() * self.gamma[
            scope
        ] + self.beta[scope]

    def forward(self, inputs: Tensor, state: tuple[Tensor, Tensor] | None = None):
        if state is None:
            zero = inputs.new_zeros(inputs.size(0), self.num_units)
            state = (zero, zero)
        h, c = state
        i, j, f, o = (torch.cat([inputs, h], 1) @ self.kernel).chunk(4, 1)
        i, j = self._norm(i, "input"), self._norm(j, "transform")
        f, o = self._norm(f, "forget"), self._norm(o, "output")
        g = F.dropout(torch.tanh(j), 1 - self.keep, self.training)
        new_c = c * torch.sigmoid(f + self.forget_bias) + torch.sigmoid(i) * g
        new_c = self._norm(new_c, "state")
        new_h = torch.tanh(new_c) * torch.sigmoid(o)
        return new_h, (new_h, new_c)


class _RMSDirection(nn.Module):
    """One direction of the bidirectional RMS LSTM."""

    def __init__(self, d: int, h: int, eps: float):
        super().__init__()
        self.h, self.eps = h, eps
        self.w = nn.Linear(d, 4 * h, bias=False)
        self.u = nn.Linear(h, 4 * h, bias=False)
        self.g = nn.Parameter(torch.ones(4, h))
        self.b = nn.Parameter(torch.zeros(4, h))
        with torch.no_grad():
            self.b[1].fill_(1.0)

    def forward(self, x: Tensor, h: Tensor, c: Tensor):
        wx, out = self.w(x), []
        for t in range(x.size(1)):
            z = (wx[:, t] + self.u(h)).view(-1, 4, self.h)
            z = (
                z * (z.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.g
                + self.b
            )
            i, f, g, o = z.unbind(1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out.append(h)
        return torch.stack(out, 1), h, c


class BiRMSLSTM(nn.Module):
    """Bidirectional batch-first LSTM (N, T, D) -> (N, T, 2H) with RMS norm of each gate's summed pre-activation and the bias after it; states (2, N, H)."""

    def __init__(self, d: int, h: int, eps: float = 1e-6):
        super().__init__()
        self.h = h
        self.there = _RMSDirection(d, h, eps)
        self.back = _RMSDirection(d, h, eps)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        if state is None:
            state = (x.new_zeros(2, x.size(0), self.h),) * 2
        (h1, h2), (c1, c2) = state
        out1, h1, c1 = self.there(x, h1, c1)
        out2, h2, c2 = self.back(x.flip(1), h2, c2)
        return torch.cat([out1, out2.flip(1)], -1), (
            torch.stack([h1, h2]),
            torch.stack([c1, c2]),
        )


class SequenceBatchNormLSTM(nn.Module):
    """LSTM (T, N, D) with sequence-wise batch norm of the input projection alone (Laurent et al. 2016, Deep Speech 2): statistics over time and batch together, running ones in evaluation."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ):
        super().__init__()
        self.hidden_size, self.eps, self.momentum = hidden_size, eps, momentum
        four = 4 * hidden_size
        bound = hidden_size**-0.5
        self.weight_ih = nn.Parameter(
            torch.empty(four, input_size).uniform_(-bound, bound)
        )
        self.weight_hh = nn.Parameter(
            torch.empty(four, hidden_size).uniform_(-bound, bound)
        )
        self.bn_weight = nn.Parameter(torch.full((four,), 0.5))
        self.bias = nn.Parameter(torch.zeros(four))
        self.register_buffer("running_mean", torch.zeros(four))
        self.register_buffer("running_var", torch.ones(four))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        steps, n, _ = x.shape
        if self.training and steps * n < 2:
            raise ValueError("Expected more than 1 value per channel when training")
        z = F.batch_norm(
            F.linear(x, self.weight_ih).flatten(0, 1),
            self.running_mean,
            self.running_var,
            self.bn_weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        ).unflatten(0, (steps, n))
        if state is None:
            h, c = x.new_zeros(n, self.hidden_size), x.new_zeros(n, self.hidden_size)
        else:
            h, c = state
        output = []
        for z_t in z.unbind(0):
            i, f, g, o = (z_t + h @ self.weight_hh.T).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            output.append(h)
        return torch.stack(output), (h, c)


class StackedVariationalLSTM(nn.Module):
    """Stacked batch-first LSTM with one layer norm over the four summed gates together, and variational dropout: one mask a sequence for each layer's input and for its recurrent state; states (layers, N, H)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 2,
        dropout: float = 0.25,
    ):
        super().__init__()
        self.hidden_size, self.num_layers, self.dropout = (
            hidden_size,
            num_layers,
            dropout,
        )
        sizes = [input_size] + [hidden_size] * (num_layers - 1)
        self.ih = nn.ModuleList(
            nn.Linear(s, 4 * hidden_size, bias=False) for s in sizes
        )
        self.hh = nn.ModuleList(
            nn.Linear(hidden_size, 4 * hidden_size, bias=False) for s in sizes
        )
        self.ln = nn.ModuleList(nn.LayerNorm(4 * hidden_size) for s in sizes)

    def _mask(self, like: Tensor) -> Tensor | None:
        if not self.training or self.dropout == 0:
            return None
        return like.new_empty(like.shape).bernoulli_(1 - self.dropout) / (
            1 - self.dropout
        )

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        batch = x.size(0)
        if state is None:
            zeros = x.new_zeros(self.num_layers, batch, self.hidden_size)
            state = (zeros, zeros)
        last_h, last_c = [], []
        seq = x
        for layer in range(self.num_layers):
            h, c = state[0][layer], state[1][layer]
            in_mask, rec_mask = self._mask(seq[:, :1]), self._mask(h)
            if in_mask is not None:
                seq = seq * in_mask
            outputs = []
            for x_t in seq.unbind(1):
                rec = h if rec_mask is None else h * rec_mask
                gates = self.ln[layer](self.ih[layer](x_t) + self.hh[layer](rec))
                ifo, g = gates.split([3 * self.hidden_size, self.hidden_size], -1)
                i, f, o = ifo.sigmoid().chunk(3, -1)
                c = f * c + i * g.tanh()
                h = o * c.tanh()
                outputs.append(h)
            seq = torch.stack(outputs, 1)
            last_h.append(h)
            last_c.append(c)
        return seq, (torch.stack(last_h), torch.stack(last_c))


class CoupledPeepholeLSTM(nn.Module):
    """LSTM (T, N, D) with coupled gates (the input gate is 1 - f, so three blocks f, o, g), diagonal peepholes after the layer norm (f sees the old cell, o the new), and a layer-normalized cell in the output."""

    def __init__(self, d: int, h: int, eps: float = 1e-5):
        super().__init__()
        self.d, self.h, self.eps = d, h, eps
        self.kernel = nn.Parameter(torch.randn(3, d + h, h) / math.sqrt(d + h))
        self.gain = nn.Parameter(torch.ones(3, 1, h))
        self.shift = nn.Parameter(torch.zeros(3, 1, h))
        self.peep = nn.Parameter(0.1 * torch.randn(2, h))
        self.cell_gain = nn.Parameter(torch.ones(h))
        self.cell_shift = nn.Parameter(torch.zeros(h))
        self.shift.data[0].fill_(1.0)

    def _ln(self, z: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        var, mean = torch.var_mean(z, -1, correction=0, keepdim=True)
        return (z - mean) / torch.sqrt(var + self.eps) * gain + shift

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        h, c = (
            state
            if state is not None
            else (x.new_zeros(x.size(1), self.h), x.new_zeros(x.size(1), self.h))
        )
        ys = []
        for t in range(x.size(0)):
            z = torch.matmul(torch.cat((x[t], h), -1), self.kernel)  # gate, batch, unit
            zf, zo, zg = self._ln(z, self.gain, self.shift)
            f = torch.sigmoid(zf + self.peep[0] * c)
            c = torch.lerp(torch.tanh(zg), c, f)  # f * c + (1 - f) * tanh(zg)
            o = torch.sigmoid(zo + self.peep[1] * c)
            h = o * torch.tanh(self._ln(c, self.cell_gain, self.cell_shift))
            ys.append(h)
        return torch.stack(ys), (h, c)


class ProjectedLayerNormLSTM(nn.Module):
    """LSTMP (T, N, D) -> (T, N, P): the hidden state is projected from H to P (so h and c differ in width), each gate's sum has its own layer norm, separate linear layers for the gates."""

    def __init__(self, d: int, hidden: int, proj: int):
        super().__init__()
        self.hidden, self.proj = hidden, proj
        gates = ("input", "forget", "cell", "output")
        self.from_x = nn.ModuleDict(
            {g: nn.Linear(d, hidden, bias=False) for g in gates}
        )
        self.from_h = nn.ModuleDict(
            {g: nn.Linear(proj, hidden, bias=False) for g in gates}
        )
        self.norms = nn.ModuleDict({g: nn.LayerNorm(hidden, eps=1e-3) for g in gates})
        self.projection = nn.Linear(hidden, proj, bias=False)

    def _gate(self, name: str, x: Tensor, h: Tensor) -> Tensor:
        return self.norms[name](self.from_x[name](x) + self.from_h[name](h))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        if state is None:
            state = (
                x.new_zeros(x.size(1), self.proj),
                x.new_zeros(x.size(1), self.hidden),
            )
        h, c = state
        result = []
        for frame in x:
            keep = torch.sigmoid(self._gate("forget", frame, h))
            write = torch.sigmoid(self._gate("input", frame, h)) * torch.tanh(
                self._gate("cell", frame, h)
            )
            show = torch.sigmoid(self._gate("output", frame, h))
            c = keep * c + write
            h = self.projection(show * torch.tanh(c))
            result.append(h)
        return torch.stack(result, 0), (h, c)


class LayerNormGRU(nn.Module):
    """GRU (T, N, D) with layer norm of both projections, r and z normalized together and n by itself, reset applied after the recurrent one (cuDNN's form); update gate keeps the OLD state."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size
        self.x_proj = nn.Linear(input_size, 3 * hidden_size, bias=False)
        self.h_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.ln_x_rz, self.ln_h_rz = (
            nn.LayerNorm(2 * hidden_size),
            nn.LayerNorm(2 * hidden_size, bias=False),
        )
        self.ln_x_n, self.ln_h_n = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, h0: Tensor | None = None):
        h = x.new_zeros(x.size(1), self.hidden_size) if h0 is None else h0
        two = 2 * self.hidden_size
        px = self.x_proj(x)
        x_rz, x_n = self.ln_x_rz(px[..., :two]), self.ln_x_n(px[..., two:])
        out = []
        for a, b in zip(x_rz, x_n):
            ph = self.h_proj(h)
            r, z = torch.sigmoid(a + self.ln_h_rz(ph[:, :two])).chunk(2, 1)
            n = torch.tanh(b + r * self.ln_h_n(ph[:, two:]))
            h = n + z * (h - n)
            out.append(h)
        return torch.stack(out), h


class RMSMinimalGatedUnit(nn.Module):
    """Minimal gated unit (Zhou et al. 2016), batch first: one gate that both forgets and resets, RMS norm without mean of both pre-activations, biases after it."""

    def __init__(self, d: int, h: int, eps: float = 1e-6):
        super().__init__()
        self.h, self.eps = h, eps
        self.wf, self.wn = (
            nn.Linear(d + h, h, bias=False),
            nn.Linear(d + h, h, bias=False),
        )
        self.scale_f, self.scale_n = (
            nn.Parameter(torch.ones(h)),
            nn.Parameter(torch.ones(h)),
        )
        self.bias_f, self.bias_n = (
            nn.Parameter(torch.zeros(h)),
            nn.Parameter(torch.zeros(h)),
        )

    def forward(self, x: Tensor, h: Tensor | None = None):
        if h is None:
            h = x.new_zeros(x.shape[0], self.h)
        outs = []
        for x_t in x.transpose(0, 1):
            f = F.rms_norm(
                self.wf(torch.cat([x_t, h], 1)), (self.h,), self.scale_f, self.eps
            )
            f = torch.sigmoid(f + self.bias_f)
            n = F.rms_norm(
                self.wn(torch.cat([x_t, f * h], 1)), (self.h,), self.scale_n, self.eps
            )
            h = (1 - f) * h + f * torch.tanh(n + self.bias_n)
            outs.append(h)
        return torch.stack(outs, 1), h


# --------------------------------------------------------------------------------------
# conditions
# --------------------------------------------------------------------------------------

_rand = torch.Generator().manual_seed(10)
STYLE = torch.randn(1, 4, 7, 6, generator=_rand) * 1.7 + 0.4
COND = torch.randn(1, 5, generator=_rand)
SEGMAP = (
    F.one_hot(torch.randint(0, 3, (1, 10, 10), generator=_rand), 3)
    .permute(0, 3, 1, 2)
    .float()
)


def _for(x: Tensor, condition: Tensor) -> Tensor:
    """The condition, once for each example of x."""
    return condition.to(x).expand(x.size(0), *condition.shape[1:])


def _lengths_mask(x: Tensor) -> Tensor:
    """All examples two steps shorter than the padded length."""
    return (torch.arange(x.size(1)) < max(1, x.size(1) - 2)).expand(x.size(0), -1)


BUGS = []
CONTROLS = [
    Case(
        "keras_batch_norm",
        lambda: KerasBatchNormalization(6),
        arguments={"shape": (8, 5, 4, 6), "kind": "batch", "channel_axis": 3},
    ),
    Case(
        "pooled_sums_bn3d",
        lambda: PooledBatchNorm3d(4),
        arguments={"shape": (5, 4, 3, 4, 2), "kind": "batch"},
    ),
    Case(
        "autograd_function_bn1d",
        lambda: FunctionBatchNorm1d(7),
        arguments={"shape": (16, 7), "kind": "batch"},
    ),
    Case(
        "ghost_bn",
        lambda: GhostBatchNorm(6, virtual=4),
        arguments={"shape": (8, 6, 4, 5), "kind": "batch"},
    ),
    Case(
        "batch_renorm",
        lambda: BatchRenorm2d(5),
        arguments={"shape": (8, 5, 4, 6), "kind": "batch"},
    ),
    Case(
        "cross_replica_bn",
        lambda: CrossReplicaBatchNorm(6),
        arguments={"shape": (6, 6, 9), "kind": "batch"},
    ),
    Case(
        "frozen_bn",
        lambda: FrozenBatchNorm2d(6, seed=3),
        arguments={"shape": (4, 6, 5, 5), "kind": "batch"},
    ),
    Case(
        "convnext_ln",
        lambda: ChannelsFirstLayerNorm(8),
        arguments={"shape": (3, 8, 4, 5), "kind": "layer"},
    ),
    Case(
        "gemma_rms",
        lambda: OffsetRMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2},
    ),
    Case(
        "flax_group_norm",
        lambda: FlaxGroupNorm(12, num_groups=3),
        arguments={"shape": (4, 5, 3, 12), "kind": "group", "channel_axis": 3},
    ),
    Case(
        "tracking_instance_norm",
        lambda: TrackingInstanceNorm1d(5),
        arguments={"shape": (6, 5, 11), "kind": "instance"},
    ),
    Case(
        "adain",
        lambda: AdaIN(),
        arguments={
            "shape": (5, 4, 6, 5),
            "kind": "instance",
            "call": lambda layer, x: layer(x, _for(x, STYLE)),
        },
    ),
    Case(
        "ada_layer_norm",
        lambda: AdaLayerNorm(10, 5),
        arguments={
            "shape": (4, 6, 10),
            "kind": "layer",
            "channel_axis": 2,
            "call": lambda layer, x: layer(x, _for(x, COND)),
        },
    ),
    Case(
        "spade_bn",
        lambda: SPADEBatchNorm(4, 3),
        arguments={
            "shape": (6, 4, 5, 5),
            "kind": "batch",
            "call": lambda layer, x: layer(x, _for(x, SEGMAP)),
        },
    ),
    Case(
        "masked_bn",
        lambda: MaskedBatchNorm(6),
        arguments={
            "shape": (7, 8, 6),
            "kind": "batch",
            "channel_axis": 2,
            "call": lambda layer, x: layer(x, _lengths_mask(x)),
        },
    ),
    Case(
        "qk_log_gain_rms",
        lambda: MultiHeadQKNorm(3, 8),
        arguments={"shape": (4, 3, 6, 8), "kind": "rms", "channel_axis": 3, "eps": 0.0},
    ),
    Case(
        "zoneout_ln_lstm",
        lambda: ZoneoutLayerNormLSTM(5, 6),
        arguments={"shape": (7, 3, 5), "kind": "lstm"},
    ),
    Case(
        "tf_ln_lstm_cell",
        lambda: LayerNormBasicLSTMCell(5, 6),
        arguments={"shape": (4, 5), "kind": "lstm"},
    ),
    Case(
        "bi_rms_lstm",
        lambda: BiRMSLSTM(5, 6),
        arguments={"shape": (4, 7, 5), "kind": "lstm"},
    ),
    Case(
        "sequence_bn_lstm",
        lambda: SequenceBatchNormLSTM(5, 6),
        arguments={"shape": (7, 4, 5), "kind": "lstm"},
    ),
    Case(
        "stacked_variational_lstm",
        lambda: StackedVariationalLSTM(5, 6),
        arguments={"shape": (3, 7, 5), "kind": "lstm"},
    ),
    Case(
        "coupled_peephole_lstm",
        lambda: CoupledPeepholeLSTM(5, 6),
        arguments={"shape": (6, 3, 5), "kind": "lstm"},
    ),
    Case(
        "projected_ln_lstm",
        lambda: ProjectedLayerNormLSTM(5, 8, 3),
        arguments={"shape": (7, 4, 5), "kind": "lstm"},
    ),
    Case("ln_gru", lambda: LayerNormGRU(5, 6), arguments={"shape": (7, 3, 5)}),
    Case("rms_mgu", lambda: RMSMinimalGatedUnit(5, 6), arguments={"shape": (3, 7, 5)}),
]
