"""Norm layers and normalized recurrent layers with one bug each, and correct ones.

An eighth set, of layers alone: written without a look at the checks or at the layers of
the other hands, and without the slips of the sixth and the seventh. Most bugs were told
in public; their addresses stand in front of them. ``expected.txt`` says what a right
report must say.
"""

# ruff: noqa: B905, D102, D103, E501, RUF005, RUF059 - as it was written
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """One layer: its name, how to make it, and what a caller has to know."""

    name: str
    make: Callable[[], nn.Module]
    batch: None = None
    arguments: dict = field(default_factory=dict)


def up(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def per_channel(v, x):
    return v.view(1, -1, *([1] * (x.dim() - 2)))


def fixed(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# no public case found quickly (an override of train() that breaks its contract:
# https://github.com/roytseng-tw/Detectron.pytorch/issues/104)
class FrozenBatchNorm2d(nn.Module):
    """BatchNorm2d whose statistics, scale and shift are fixed buffers."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(num_features))
        self.register_buffer("bias", torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.train(False)

    def train(self, mode=True):
        super().train(False)

    def forward(self, x):
        h = up(x)
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return (h * per_channel(scale, x) + per_channel(shift, x)).to(x.dtype)


def make_frozen():
    layer = FrozenBatchNorm2d(4)
    layer.weight.copy_(1 + 0.2 * fixed(1, 4))
    layer.bias.copy_(0.3 * fixed(2, 4))
    layer.running_mean.copy_(0.5 * fixed(3, 4))
    layer.running_var.copy_(0.5 + fixed(4, 4).abs())
    return layer


# https://github.com/huggingface/transformers/issues/30236
class RMSNorm(nn.Module):
    """Root mean square norm over the last axis."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        h = up(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(dtype)


# https://github.com/kyegomez/zeta/issues/180
# (the same sign: https://github.com/lucidrains/x-transformers/issues/246)
class UnitRMSNorm(nn.Module):
    """RMS norm over the last axis, written as unit vector times scale times gain."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.scale = dim**-0.5
        self.eps = eps * dim
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = up(x)
        h = h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + self.eps)
        return (h * self.scale * self.g).to(x.dtype)


# https://github.com/ap229997/Conditional-Batch-Norm/issues/3
class ConditionalBatchNorm2d(nn.Module):
    """Batch norm whose gain and bias get offsets predicted from a condition vector."""

    def __init__(self, num_features, cond_dim, hidden=8):
        super().__init__()
        self.bn = nn.BatchNorm2d(num_features, affine=False)
        self.gamma = nn.Parameter(torch.ones(num_features))
        self.beta = nn.Parameter(torch.zeros(num_features))
        mlp = nn.Sequential(
            nn.Linear(cond_dim, hidden), nn.ReLU(), nn.Linear(hidden, num_features)
        )
        self.fc_gamma = mlp
        self.fc_beta = mlp

    def forward(self, x, cond):
        h = self.bn(x.to(self.bn.running_mean.dtype))
        cond = cond.to(self.gamma.dtype)
        gamma = self.gamma + self.fc_gamma(cond)
        beta = self.beta + self.fc_beta(cond)
        return (h * gamma[:, :, None, None] + beta[:, :, None, None]).to(x.dtype)


COND = fixed(11, 1, 5)


# https://github.com/donnyyou/torchcv/issues/11 (the same order of sizes at F.interpolate)
class SPADE(nn.Module):
    """Spatially adaptive instance norm: gain and bias maps come from a segmentation map."""

    def __init__(self, num_features, label_nc, hidden=8):
        super().__init__()
        self.mlp_shared = nn.Conv2d(label_nc, hidden, 3, padding=1)
        self.mlp_gamma = nn.Conv2d(hidden, num_features, 3, padding=1)
        self.mlp_beta = nn.Conv2d(hidden, num_features, 3, padding=1)
        self.eps = 1e-5

    def forward(self, x, segmap):
        n, c, h, w = x.shape
        y = up(x)
        mean = y.mean((2, 3), keepdim=True)
        var = y.var((2, 3), unbiased=False, keepdim=True)
        y = (y - mean) * torch.rsqrt(var + self.eps)
        segmap = F.interpolate(
            segmap.to(self.mlp_shared.weight.dtype), size=(w, h), mode="nearest"
        )
        actv = F.relu(self.mlp_shared(segmap))
        out = y * (1 + self.mlp_gamma(actv)) + self.mlp_beta(actv)
        return out.to(x.dtype)


SEGMAP = (fixed(12, 1, 3, 8, 8) > 0).float()


# https://github.com/pytorch/pytorch/issues/1381
# https://github.com/FluxML/Flux.jl/issues/1992
class BatchNorm1d(nn.Module):
    """Batch norm for (N, C) or (N, C, L) with running statistics."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x):
        h = up(x)
        if self.training:
            dims = [0] + list(range(2, x.dim()))
            mean = h.mean(dims)
            var = h.var(dims, unbiased=False)
            n = h.numel() // h.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                correction = torch.tensor(float(n)) / (n - 1)
                self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
                self.running_var.mul_(1 - self.momentum).add_(
                    self.momentum * var * correction
                )
        else:
            mean, var = self.running_mean, self.running_var
        h = (h - per_channel(mean, x)) * torch.rsqrt(per_channel(var, x) + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# https://github.com/fyu/drn/issues/26
class SyncBatchNorm2d(nn.Module):
    """Batch norm over the whole batch, computed in shards as on several devices and then merged."""

    def __init__(self, num_features, num_shards=2, eps=1e-5, momentum=0.1):
        super().__init__()
        self.num_shards = num_shards
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def merge(self, h):
        shards = h.chunk(self.num_shards)
        sizes = [s.shape[0] / h.shape[0] for s in shards]
        means = [s.mean((0, 2, 3)) for s in shards]
        mean = sum(k * m for k, m in zip(sizes, means))
        variances = [s.var((0, 2, 3), unbiased=False) for s in shards]
        var = sum(k * v for k, v in zip(sizes, variances))
        return mean, var

    def forward(self, x):
        h = up(x)
        if self.training:
            mean, var = self.merge(h)
            n = h.numel() // h.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
                self.running_var.mul_(1 - self.momentum).add_(
                    self.momentum * var * (n / max(n - 1, 1))
                )
        else:
            mean, var = self.running_mean, self.running_var
        h = (h - per_channel(mean, x)) * torch.rsqrt(per_channel(var, x) + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# https://github.com/athon2/BraTS2018_NvNet/issues/5 (number of groups taken for the size of a group)
class GroupNorm(nn.Module):
    """Group norm: the channels are split into num_groups groups, as torch.nn.GroupNorm(num_groups, num_channels)."""

    def __init__(self, num_groups, num_channels, eps=1e-5):
        super().__init__()
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x):
        n, c = x.shape[:2]
        g = self.num_groups
        h = up(x).reshape(n, c // g, g, -1)
        mean = h.mean((2, 3), keepdim=True)
        var = h.var((2, 3), unbiased=False, keepdim=True)
        h = ((h - mean) * torch.rsqrt(var + self.eps)).reshape(x.shape)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# https://github.com/pytorch/examples/issues/836 (the same call on a tensor that isn't contiguous)
class InstanceNorm2d(nn.Module):
    """Instance norm with gain and bias, without running statistics."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x):
        n, c = x.shape[:2]
        h = up(x).view(n * c, -1)
        mean = h.mean(-1, keepdim=True)
        var = h.var(-1, unbiased=False, keepdim=True)
        h = ((h - mean) * torch.rsqrt(var + self.eps)).reshape(x.shape)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# no public case found quickly (paper: stop_gradient, arXiv 1702.03275, algorithm 1)
class BatchRenorm2d(nn.Module):
    """Batch renormalization (Ioffe 2017)."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1, r_max=3.0, d_max=5.0):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.r_max = r_max
        self.d_max = d_max
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x):
        h = up(x)
        running_std = torch.sqrt(self.running_var + self.eps)
        if self.training:
            mean = h.mean((0, 2, 3))
            var = h.var((0, 2, 3), unbiased=False)
            std = torch.sqrt(var + self.eps)
            r = (std / running_std).clamp(1 / self.r_max, self.r_max)
            d = ((mean - self.running_mean) / running_std).clamp(
                -self.d_max, self.d_max
            )
            h = (h - per_channel(mean, x)) / per_channel(std, x) * per_channel(
                r, x
            ) + per_channel(d, x)
            n = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
                self.running_var.mul_(1 - self.momentum).add_(
                    self.momentum * var * (n / max(n - 1, 1))
                )
        else:
            h = (h - per_channel(self.running_mean, x)) / per_channel(running_std, x)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# https://github.com/verl-project/verl/pull/782 (masked mean where everything is masked)
class MaskedSequenceNorm(nn.Module):
    """Norm of (N, T, C) per sequence over all valid frames and channels; frames of zeros are padding and stay zero."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = up(x)
        mask = (h != 0).any(-1, keepdim=True).to(h.dtype)
        count = mask.sum((1, 2), keepdim=True) * h.shape[-1]
        mean = (h * mask).sum((1, 2), keepdim=True) / count
        centred = (h - mean) * mask
        var = centred.pow(2).sum((1, 2), keepdim=True) / count
        h = centred * torch.rsqrt(var + self.eps)
        return ((h * self.weight + self.bias) * mask).to(x.dtype)


# no public case found quickly (asked about in https://github.com/joe-siyuan-qiao/WeightStandardization/issues/11)
class WSConv2d(nn.Conv2d):
    """Conv2d with weight standardization: the kernel of each output channel has mean 0 and variance 1."""

    eps = 1e-5

    def forward(self, x):
        with torch.no_grad():
            mean = self.weight.mean((1, 2, 3), keepdim=True)
            var = self.weight.var((1, 2, 3), unbiased=False, keepdim=True)
            self.weight.copy_((self.weight - mean) * torch.rsqrt(var + self.eps))
        weight = self.weight
        return self._conv_forward(x.to(weight.dtype), weight, self.bias).to(x.dtype)


# https://github.com/Tencent/ncnn/issues/1339
class FusedConvBatchNorm2d(nn.Module):
    """Convolution followed by batch norm; in evaluation both run as one convolution."""

    def __init__(self, in_channels, out_channels, kernel_size=3, padding=1, eps=1e-5):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding)
        self.bn = nn.BatchNorm2d(out_channels, eps=eps)

    def forward(self, x):
        h = x.to(self.conv.weight.dtype)
        if self.training:
            return self.bn(self.conv(h)).to(x.dtype)
        scale = self.bn.weight * torch.rsqrt(self.bn.running_var + self.bn.eps)
        weight = self.conv.weight * scale[:, None, None, None]
        bias = self.bn.bias - self.bn.running_mean * scale + self.conv.bias
        return F.conv2d(h, weight, bias, padding=self.conv.padding).to(x.dtype)


# no public case found quickly (layer: https://github.com/switchablenorms/Switchable-Normalization/issues/11)
class SwitchNorm2d(nn.Module):
    """Switchable norm: learned softmax mixtures of instance, layer and batch means and variances."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.mean_weight = nn.Parameter(torch.ones(3))
        self.var_weight = nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x):
        h = up(x)
        stats = [
            (h.mean(d, keepdim=True), h.var(d, unbiased=False, keepdim=True))
            for d in ((2, 3), (1, 2, 3))
        ]
        if self.training:
            mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=False)
            n = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
                self.running_var.mul_(1 - self.momentum).add_(
                    self.momentum * var * (n / max(n - 1, 1))
                )
        else:
            mean, var = self.running_mean, self.running_var
        stats.append((per_channel(mean, x), per_channel(var, x)))
        mean_weight = F.softmax(self.mean_weight, 0)
        var_weight = F.softmax(self.mean_weight, 0)
        mean = sum(w * m for w, (m, _) in zip(mean_weight, stats))
        var = sum(w * v for w, (_, v) in zip(var_weight, stats))
        h = (h - mean) * torch.rsqrt(var + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# no public case found quickly (borders of the window discussed in https://github.com/FluxML/Flux.jl/pull/720)
class LocalResponseNorm(nn.Module):
    """Local response normalization over `size` neighbouring channels, as torch.nn.LocalResponseNorm."""

    def __init__(self, size=5, alpha=0.5, beta=0.75, k=1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x):
        h = up(x)
        square = h.pow(2)
        half = self.size // 2
        channels = h.shape[1]
        sums = []
        for c in range(channels):
            lo, hi = max(0, c - half), min(channels, c + half)
            sums.append(square[:, lo:hi].sum(1))
        denom = (self.k + self.alpha / self.size * torch.stack(sums, 1)).pow(self.beta)
        return (h / denom).to(x.dtype)


# https://github.com/keras-team/keras/issues/23075
class L2Norm(nn.Module):
    """SSD's L2Norm: unit length over the channels at every place, times a learned scale."""

    def __init__(self, num_channels, scale=20.0, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.full((num_channels,), scale))

    def forward(self, x):
        h = up(x)
        norm = h.pow(2).sum(1, keepdim=True).sqrt().clamp(min=self.eps)
        return (h / norm * per_channel(self.weight, x)).to(x.dtype)


# https://discuss.pytorch.org/t/parameter-grad-of-conv-weight-is-none-after-virtual-batch-normalization/9036
# https://github.com/dansuh17/segan-pytorch/blob/938b6c837b6f091d0ad1e67fad9db32045a90151/vbnorm.py
# (the widely copied VirtualBatchNorm1d, which takes its mean over the whole batch)
class VirtualBatchNorm2d(nn.Module):
    """Virtual batch norm (Salimans 2016): each example is normalized by a fixed reference batch plus itself."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("ref_mean", torch.zeros(1, num_features, 1, 1))
        self.register_buffer("ref_var", torch.ones(1, num_features, 1, 1))
        self.register_buffer("ref_size", torch.tensor(1.0))

    def set_reference(self, x):
        self.ref_mean.copy_(x.mean((0, 2, 3), keepdim=True))
        self.ref_var.copy_(x.var((0, 2, 3), unbiased=False, keepdim=True))
        self.ref_size.fill_(x.shape[0])

    def forward(self, x):
        h = up(x)
        mean = h.mean((0, 2, 3), keepdim=True)
        var = (h - mean).pow(2).mean((0, 2, 3), keepdim=True)
        new = 1 / (self.ref_size + 1)
        total = new * mean + (1 - new) * self.ref_mean
        var = new * (var + (mean - total) ** 2) + (1 - new) * (
            self.ref_var + (self.ref_mean - total) ** 2
        )
        h = (h - total) * torch.rsqrt(var + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


def make_virtual():
    layer = VirtualBatchNorm2d(5)
    layer.set_reference(1.5 * fixed(21, 4, 5, 4, 4) + 0.5)
    return layer


class ConvNeXtLayerNorm(nn.Module):
    """Layer norm over the channels of (N, C, H, W), at every place."""

    def __init__(self, num_channels, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x):
        h = up(x)
        mean = h.mean(1, keepdim=True)
        var = (h - mean).pow(2).mean(1, keepdim=True)
        h = (h - mean) / torch.sqrt(var + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


class CumulativeBatchNorm2d(nn.Module):
    """Batch norm whose running statistics are plain averages over all batches (momentum=None)."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x):
        h = up(x)
        if self.training:
            mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=False)
            n = x.numel() // x.shape[1]
            with torch.no_grad():
                self.num_batches_tracked += 1
                factor = 1 / self.num_batches_tracked.item()
                self.running_mean.mul_(1 - factor).add_(factor * mean)
                self.running_var.mul_(1 - factor).add_(
                    factor * var * (n / max(n - 1, 1))
                )
        else:
            mean, var = self.running_mean, self.running_var
        h = (h - per_channel(mean, x)) * torch.rsqrt(per_channel(var, x) + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


class GRN(nn.Module):
    """Global response normalization of ConvNeXt V2 for (N, H, W, C)."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.zeros(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = up(x)
        gx = torch.linalg.vector_norm(h, dim=(1, 2), keepdim=True)
        nx = gx / (gx.mean(-1, keepdim=True) + self.eps)
        return (self.gamma * (h * nx) + self.beta + h).to(x.dtype)


class GemmaRMSNorm(nn.Module):
    """RMS norm over the last axis with gain 1 + weight, weight starting at zero."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = up(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1 + self.weight)).to(x.dtype)


class CumulativeLayerNorm(nn.Module):
    """Causal layer norm of (N, C, T): step t is normalized over all channels of the steps up to t."""

    def __init__(self, num_channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x):
        h = up(x)
        c, t = h.shape[1:]
        past = torch.ones(t, t, dtype=h.dtype, device=h.device).tril()
        count = past.sum(1) * c
        mean = (h.sum(1) @ past.T / count)[:, None]
        square = (h[:, :, None, :] - mean[:, :, :, None]).pow(2) * past
        var = (square.sum((1, 3)) / count)[:, None]
        h = (h - mean) * torch.rsqrt(var + self.eps)
        return (h * per_channel(self.weight, x) + per_channel(self.bias, x)).to(x.dtype)


# https://github.com/jihunchoi/recurrent-batch-normalization-pytorch/issues/13
class LayerNormCell(nn.Module):
    """LSTM cell with layer normalization (Ba et al. 2016)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.weight_hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)

    def forward(self, x, state):
        h, c = state
        gates = self.ln_ih(self.weight_ih(x)) + self.ln_hh(self.weight_hh(h))
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.ln_c(c))
        return h, c


class StackedLayerNormLSTM(nn.Module):
    """Stacked layer-normalized LSTM, called like nn.LSTM, with dropout on the output of each layer but the last."""

    def __init__(self, input_size, hidden_size, num_layers=2, dropout=0.0):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.dropout = dropout
        self.cells = nn.ModuleList(
            LayerNormCell(input_size if k == 0 else hidden_size, hidden_size)
            for k in range(num_layers)
        )
        self.dropout_layer = nn.Dropout(dropout)

    def forward(self, input, hx=None):
        if hx is None:
            zeros = input.new_zeros(self.num_layers, input.size(1), self.hidden_size)
            hx = (zeros, zeros)
        h_n, c_n = [], []
        output = input
        for k, cell in enumerate(self.cells):
            state = (hx[0][k], hx[1][k])
            steps = []
            for x in output.unbind(0):
                state = cell(x, state)
                steps.append(state[0])
            output = torch.stack(steps)
            if k < self.num_layers - 1:
                input = self.dropout_layer(output)
            h_n.append(state[0])
            c_n.append(state[1])
        return output, (torch.stack(h_n), torch.stack(c_n))


# https://github.com/tflearn/tflearn/pull/522
class BiLayerNormLSTM(nn.Module):
    """Bidirectional layer-normalized LSTM, batch first; returns output and (h_n, c_n), each (2, batch, hidden)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.batch_first = True
        self.bidirectional = True
        self.fw_cell = LayerNormCell(input_size, hidden_size)
        self.bw_cell = LayerNormCell(input_size, hidden_size)

    @staticmethod
    def _run(cell, steps, state):
        outputs = []
        for x in steps:
            state = cell(x, state)
            outputs.append(state[0])
        return outputs, state

    def forward(self, x, states=None):
        if states is None:
            zeros = x.new_zeros(2, x.size(0), self.hidden_size)
            states = (zeros, zeros)
        h_0, c_0 = states
        steps = list(x.unbind(1))
        out_fw, state_fw = self._run(self.fw_cell, steps, (h_0[0], c_0[0]))
        out_bw, state_bw = self._run(self.bw_cell, steps[::-1], (h_0[1], c_0[1]))
        output = torch.cat(
            [torch.stack(out_fw, 1), torch.stack(out_bw[::-1], 1)], dim=-1
        )
        h_n, c_n = (torch.stack(pair) for pair in zip(state_fw, state_fw))
        return output, (h_n, c_n)


# https://github.com/131250208/TPlinker-joint-extraction/issues/37
class Normalize(nn.Module):
    """Layer normalization over the last axis."""

    def __init__(self, size, epsilon=1e-5):
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(size))
        self.beta = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        std = (variance + self.epsilon) ** 2
        return (x - mean) / std * self.gamma + self.beta


class LNLSTMCell(nn.Module):
    """Layer-normalized LSTM cell (Ba et al. 2016), called like nn.LSTMCell: h, c = cell(x, (h, c))."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        bound = hidden_size**-0.5
        self.w_x = nn.Parameter(
            torch.empty(4 * hidden_size, input_size).uniform_(-bound, bound)
        )
        self.w_h = nn.Parameter(
            torch.empty(4 * hidden_size, hidden_size).uniform_(-bound, bound)
        )
        self.b = nn.Parameter(torch.zeros(4 * hidden_size))
        self.norm_x = Normalize(4 * hidden_size)
        self.norm_h = Normalize(4 * hidden_size)
        self.norm_c = Normalize(hidden_size)

    def forward(self, x, hx=None):
        if hx is None:
            zeros = x.new_zeros(x.size(0), self.hidden_size)
            hx = (zeros, zeros)
        h, c = hx
        z = self.norm_x(x @ self.w_x.t()) + self.norm_h(h @ self.w_h.t()) + self.b
        i, f, g, o = z.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * self.norm_c(c).tanh()
        return h, c


# https://github.com/microsoft/nni/issues/2839
class MultiLayerLNLSTMCell(nn.Module):
    """Several layer-normalized LSTM cells on top of each other, for one time step; state is a list of (h, c)."""

    def __init__(self, input_size, hidden_size, layers=2):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.layers = nn.ModuleList(
            LayerNormCell(input_size if k == 0 else hidden_size, hidden_size)
            for k in range(layers)
        )

    def init_state(self, x) -> list[tuple[Tensor, Tensor]]:
        zeros = x.new_zeros(x.size(0), self.hidden_size)
        return [(zeros, zeros) for _ in self.layers]

    def forward(self, x, state=None):
        if state is None:
            state = self.init_state(x)
        new_state = []
        for layer, previous in zip(self.layers, state):
            curr_c, curr_h = layer(x, previous)
            new_state.append((curr_c, curr_h))
            x = curr_h
        return x, new_state


# https://github.com/jihunchoi/recurrent-batch-normalization-pytorch/blob/61736ecd2547bdb43e193ac6aa28545e3918ff9b/bnlstm.py
class SeparatedBatchNorm(nn.Module):
    """Batch normalization with running statistics of its own for each time step."""

    def __init__(self, num_features, max_length, eps=1e-5, momentum=0.1, bias=True):
        super().__init__()
        self.max_length = max_length
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.full((num_features,), 0.1))
        self.bias = nn.Parameter(torch.zeros(num_features)) if bias else None
        self.register_buffer("running_mean", torch.zeros(max_length, num_features))
        self.register_buffer("running_var", torch.ones(max_length, num_features))

    def forward(self, x, time):
        time = min(time, self.max_length - 1)
        return F.batch_norm(
            x,
            self.running_mean[time],
            self.running_var[time],
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )


class BatchNormLSTM(nn.Module):
    """Batch-normalized LSTM (Cooijmans et al. 2016); (time, batch, feature), the initial state is zero if none is given."""

    def __init__(self, input_size, hidden_size, max_length=20):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(input_size, 4 * hidden_size))
        self.weight_hh = nn.Parameter(torch.eye(hidden_size).repeat(1, 4))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        nn.init.orthogonal_(self.weight_ih)
        self.bn_ih = SeparatedBatchNorm(4 * hidden_size, max_length, bias=False)
        self.bn_hh = SeparatedBatchNorm(4 * hidden_size, max_length, bias=False)
        self.bn_c = SeparatedBatchNorm(hidden_size, max_length)

    def initial_state(self, x):
        shape = (x.size(1), self.hidden_size)
        return (
            nn.init.xavier_uniform_(x.new_empty(shape)),
            nn.init.xavier_uniform_(x.new_empty(shape)),
        )

    def forward(self, x, hx=None):
        h, c = self.initial_state(x) if hx is None else hx
        output = []
        for time in range(x.size(0)):
            gates = (
                self.bn_ih(x[time] @ self.weight_ih, time)
                + self.bn_hh(h @ self.weight_hh, time)
                + self.bias
            )
            f, i, o, g = gates.chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.bn_c(c, time))
            output.append(h)
        return torch.stack(output), (h, c)


# https://github.com/ikostrikov/pytorch-a3c/issues/76
class RMSNormLSTMP(nn.Module):
    """LSTM with RMS normalization of the gates and a recurrent projection of h; (time, batch, feature)."""

    def __init__(self, input_size, hidden_size, proj_size):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.proj_size = proj_size
        self.i2h = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.h2h = nn.Linear(proj_size, 4 * hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.proj = nn.Linear(hidden_size, proj_size, bias=False)
        self.gain_x = nn.Parameter(torch.ones(4 * hidden_size))
        self.gain_h = nn.Parameter(torch.ones(4 * hidden_size))

    @staticmethod
    def rms(x, gain):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain

    def forward(self, x, state=None):
        if state is None:
            state = (
                x.new_zeros(x.size(1), self.proj_size),
                x.new_zeros(x.size(1), self.hidden_size),
            )
        h, c = state
        x_gates = self.rms(self.i2h(x), self.gain_x) + self.bias
        outputs = []
        for step in x_gates:
            h, c = h.detach(), c.detach()
            i, f, g, o = (step + self.rms(self.h2h(h), self.gain_h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = self.proj(torch.sigmoid(o) * torch.tanh(c))
            outputs.append(h)
        return torch.stack(outputs), (h, c)


# https://github.com/tensorflow/tensorflow/issues/35466 (the same in https://github.com/LaurentMazare/tch-rs/pull/624)
class PeepholeLNLSTM(nn.Module):
    """Scripted layer-normalized LSTM with peepholes (Gers), (time, batch, feature); state None means zeros."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_ih = nn.LayerNorm(4 * hidden_size)
        self.norm_hh = nn.LayerNorm(4 * hidden_size)
        self.norm_c = nn.LayerNorm(hidden_size)
        self.peep_i = nn.Parameter(torch.empty(hidden_size).uniform_(-0.5, 0.5))
        self.peep_f = nn.Parameter(torch.empty(hidden_size).uniform_(-0.5, 0.5))
        self.peep_o = nn.Parameter(torch.empty(hidden_size).uniform_(-0.5, 0.5))

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None:
            h = torch.zeros(x.size(1), self.hidden_size, device=x.device)
            c = torch.zeros(x.size(1), self.hidden_size, device=x.device)
        else:
            h, c = state
        outputs: list[Tensor] = []
        for t in range(x.size(0)):
            gates = self.norm_ih(self.ih(x[t])) + self.norm_hh(self.hh(h))
            i, f, g, o = gates.chunk(4, 1)
            i = torch.sigmoid(i + self.peep_i * c)
            f = torch.sigmoid(f + self.peep_f * c)
            c = f * c + i * torch.tanh(g)
            o = torch.sigmoid(o + self.peep_o * c)
            h = o * torch.tanh(self.norm_c(c))
            outputs.append(h)
        return torch.stack(outputs), (h, c)


# no public case found quickly for an LSTM; the same mistake in another layer: https://github.com/reczoo/FuxiCTR/issues/23
class LayerNormLSTMEncoder(nn.Module):
    """Causal layer-normalized LSTM (Ba et al. 2016), batch first, input part computed at once; returns out, h, c."""

    def __init__(self, input_dim, hidden_dim):
        super().__init__()
        self.input_dim = input_dim
        self.hidden_dim = hidden_dim
        self.batch_first = True
        self.wx = nn.Linear(input_dim, 4 * hidden_dim, bias=False)
        self.wh = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)
        self.x_scale = nn.Parameter(torch.ones(4 * hidden_dim))
        self.x_shift = nn.Parameter(torch.zeros(4 * hidden_dim))
        self.h_scale = nn.Parameter(torch.ones(4 * hidden_dim))
        self.h_shift = nn.Parameter(torch.zeros(4 * hidden_dim))
        self.c_norm = nn.LayerNorm(hidden_dim)

    def forward(self, x, h=None, c=None):
        if h is None:
            h = x.new_zeros(x.size(0), self.hidden_dim)
        if c is None:
            c = x.new_zeros(x.size(0), self.hidden_dim)
        x = self.wx(x)
        x = F.layer_norm(x, x.shape[1:]) * self.x_scale + self.x_shift
        out = []
        for t in range(x.size(1)):
            r = self.wh(h)
            r = F.layer_norm(r, r.shape[1:]) * self.h_scale + self.h_shift
            i, f, g, o = (x[:, t] + r).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.c_norm(c))
            out.append(h)
        return torch.stack(out, dim=1), h, c


class CoupledLNLSTM(nn.Module):
    """Layer-normalized LSTM with coupled gates (input gate is 1 - forget gate), each gate with a norm of its own; (time, batch, feature)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.linear = nn.Linear(input_size + hidden_size, 3 * hidden_size, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(3))
        self.norm_cell = nn.LayerNorm(hidden_size)

    def forward(self, x, state=None):
        if state is None:
            zeros = x.new_zeros(x.size(1), self.hidden_size)
            state = (zeros, zeros)
        h, c = state
        outputs = []
        for step in x:
            parts = self.linear(torch.cat([step, h], dim=-1)).chunk(3, dim=-1)
            f, o, g = (norm(part) for norm, part in zip(self.norms, parts))
            f = torch.sigmoid(f + 1.0)
            c = f * c + (1 - f) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.norm_cell(c))
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class LearnedStateLNLSTM(nn.Module):
    """Layer-normalized LSTM, batch first, that starts from a learned state if none is given and adds its input to its output."""

    def __init__(self, size):
        super().__init__()
        self.input_size = size
        self.hidden_size = size
        self.batch_first = True
        self.cell = LayerNormCell(size, size)
        self.h0 = nn.Parameter(0.3 * torch.randn(1, size))
        self.c0 = nn.Parameter(0.3 * torch.randn(1, size))

    def forward(self, x, state=None):
        if state is None:
            n = x.size(0)
            state = (self.h0.expand(n, -1), self.c0.expand(n, -1))
        outputs = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(step + state[0])
        return torch.stack(outputs, 1), state


class BiRMSNormLSTM(nn.Module):
    """Bidirectional RMS-normalized LSTM over padded sequences, batch first; the directions are added, padding gives zeros."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.w = nn.ModuleList(nn.Linear(input_size, 4 * hidden_size) for _ in range(2))
        self.u = nn.ModuleList(
            nn.Linear(hidden_size, 4 * hidden_size, bias=False) for _ in range(2)
        )
        self.gain_w = nn.Parameter(torch.ones(2, 4 * hidden_size))
        self.gain_u = nn.Parameter(torch.ones(2, 4 * hidden_size))

    @staticmethod
    def norm(x, gain):
        return gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def run(self, k, x, valid, times):
        h = c = x.new_zeros(x.size(0), self.hidden_size)
        out = [h] * x.size(1)
        for t in times:
            a = self.norm(self.w[k](x[:, t]), self.gain_w[k]) + self.norm(
                self.u[k](h), self.gain_u[k]
            )
            o, f, i, g = a.chunk(4, -1)
            new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            new_h = o.sigmoid() * new_c.tanh()
            on = valid[:, t, None]
            c = torch.where(on, new_c, c)
            h = torch.where(on, new_h, h)
            out[t] = torch.where(on, new_h, torch.zeros_like(new_h))
        return torch.stack(out, 1), h, c

    def forward(self, x, lengths):
        steps = x.size(1)
        valid = (
            torch.arange(steps, device=x.device)[None, :]
            < lengths.to(x.device)[:, None]
        )
        out_f, h_f, c_f = self.run(0, x, valid, range(steps))
        out_b, h_b, c_b = self.run(1, x, valid, reversed(range(steps)))
        return out_f + out_b, (torch.stack([h_f, h_b]), torch.stack([c_f, c_b]))


def _with_lengths(layer, x):
    lengths = torch.tensor(
        [x.size(1) - k % min(3, x.size(1)) for k in range(x.size(0))]
    )
    return layer(x, lengths)[0]


BUGS = [
    Case("frozen_bn", make_frozen, arguments={"shape": (4, 4, 5, 5), "kind": "batch"}),
    Case(
        "rms_llama",
        lambda: RMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2, "eps": 1e-6},
    ),
    Case(
        "rms_unit",
        lambda: UnitRMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2, "eps": 1e-6},
    ),
    Case(
        "cond_bn",
        lambda: ConditionalBatchNorm2d(4, 5),
        arguments={
            "shape": (6, 4, 5, 5),
            "kind": "batch",
            "call": lambda layer, x: layer(x, COND),
        },
    ),
    Case(
        "spade",
        lambda: SPADE(4, 3),
        arguments={
            "shape": (4, 4, 6, 6),
            "kind": "instance",
            "call": lambda layer, x: layer(x, SEGMAP),
        },
    ),
    Case("bn1d", lambda: BatchNorm1d(6), arguments={"shape": (8, 6), "kind": "batch"}),
    Case(
        "sync_bn",
        lambda: SyncBatchNorm2d(4),
        arguments={"shape": (6, 4, 3, 3), "kind": "batch"},
    ),
    Case(
        "group_norm",
        lambda: GroupNorm(3, 12),
        arguments={"shape": (4, 12, 4, 4), "kind": "group"},
    ),
    Case(
        "instance_norm",
        lambda: InstanceNorm2d(4),
        arguments={"shape": (4, 4, 5, 5), "kind": "instance"},
    ),
    Case(
        "batch_renorm",
        lambda: BatchRenorm2d(4),
        arguments={"shape": (8, 4, 4, 4), "kind": "batch"},
    ),
    Case(
        "masked_seq",
        lambda: MaskedSequenceNorm(8),
        arguments={"shape": (4, 7, 8), "kind": "layer", "channel_axis": 2},
    ),
    Case(
        "ws_conv",
        lambda: WSConv2d(3, 4, 3, padding=1),
        arguments={"shape": (4, 3, 5, 5)},
    ),
    Case(
        "fused_conv_bn",
        lambda: FusedConvBatchNorm2d(3, 4),
        arguments={"shape": (6, 3, 5, 5), "kind": "batch"},
    ),
    Case("switch_norm", lambda: SwitchNorm2d(4), arguments={"shape": (6, 4, 5, 5)}),
    Case("lrn", lambda: LocalResponseNorm(), arguments={"shape": (4, 8, 4, 4)}),
    Case("l2norm_ssd", lambda: L2Norm(6), arguments={"shape": (4, 6, 4, 4)}),
    Case("virtual_bn", make_virtual, arguments={"shape": (6, 5, 4, 4)}),
    Case(
        "stacked_ln_lstm",
        lambda: StackedLayerNormLSTM(6, 5, num_layers=2, dropout=0.5),
        arguments={"shape": (5, 4, 6)},
    ),
    Case("bi_ln_lstm", lambda: BiLayerNormLSTM(6, 5), arguments={"shape": (4, 5, 6)}),
    Case("ln_lstm_cell", lambda: LNLSTMCell(6, 5), arguments={"shape": (4, 6)}),
    Case(
        "multi_layer_cell",
        lambda: MultiLayerLNLSTMCell(6, 5),
        arguments={"shape": (4, 6), "kind": "lstm"},
    ),
    Case("bn_lstm", lambda: BatchNormLSTM(6, 5), arguments={"shape": (5, 4, 6)}),
    Case(
        "rms_lstm_proj", lambda: RMSNormLSTMP(6, 5, 3), arguments={"shape": (5, 4, 6)}
    ),
    Case(
        "peephole_ln_lstm",
        lambda: torch.jit.script(PeepholeLNLSTM(6, 5)),
        arguments={"shape": (5, 4, 6), "kind": "lstm"},
    ),
    Case(
        "ln_lstm_encoder",
        lambda: LayerNormLSTMEncoder(6, 5),
        arguments={"shape": (4, 5, 6)},
    ),
]

CONTROLS = [
    Case(
        "convnext_ln",
        lambda: ConvNeXtLayerNorm(8),
        arguments={
            "shape": (4, 8, 5, 5),
            "kind": "layer",
            "channel_axis": 1,
            "eps": 1e-6,
        },
    ),
    Case(
        "cumulative_bn",
        lambda: CumulativeBatchNorm2d(4),
        arguments={"shape": (6, 4, 4, 4), "kind": "batch"},
    ),
    Case("grn", lambda: GRN(6), arguments={"shape": (4, 5, 5, 6), "channel_axis": 3}),
    Case(
        "gemma_rms",
        lambda: GemmaRMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2, "eps": 1e-6},
    ),
    Case(
        "causal_ln",
        lambda: CumulativeLayerNorm(6),
        arguments={"shape": (4, 6, 9), "channel_axis": 1},
    ),
    Case(
        "coupled_ln_lstm", lambda: CoupledLNLSTM(6, 5), arguments={"shape": (5, 4, 6)}
    ),
    Case(
        "learned_state_ln_lstm",
        lambda: LearnedStateLNLSTM(6),
        arguments={"shape": (4, 5, 6)},
    ),
    Case(
        "bi_rms_lstm",
        lambda: BiRMSNormLSTM(6, 5),
        arguments={"shape": (4, 5, 6), "kind": "lstm", "call": _with_lengths},
    ),
]
