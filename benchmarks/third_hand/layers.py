"""Layers and models with one bug each, and correct ones that are written unusually.

A third set, by the same rules as ``second_hand``: written without a look at the
checks, of other bugs. A comment in front of each names its bug and, where it follows
a public issue, the issue. ``expected.txt`` says what a right report must say.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


class _Affine(nn.Module):
    """A gain of ones, a bias of zeros, eps; with running statistics if tracked."""

    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int, eps: float = 1e-5, tracked: bool = False) -> None:
        super().__init__()
        self.num_features = size
        self.eps = eps
        self.momentum = 0.1
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        if tracked:
            self.register_buffer("running_mean", torch.zeros(size))
            self.register_buffer("running_var", torch.ones(size))

    @torch.no_grad()
    def track(self, mean: Tensor, var: Tensor, n: float) -> None:
        """Update the running statistics by those of n values (var biased)."""
        if n < 2:
            raise ValueError("one value per channel has no variance")
        var = (var * (n / (n - 1))).to(self.running_var.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var, self.momentum)

    def scale(self, normed: Tensor, x: Tensor) -> Tensor:
        """Apply gain and bias of each channel, in the dtype of x, the input."""
        y = normed * column(self.weight, x) + column(self.bias, x)
        return y.to(x.dtype)


def column(v: Tensor, x: Tensor) -> Tensor:
    """View v, (C,), so that it broadcasts against x, (N, C, ...)."""
    return v.view(1, -1, *[1] * (x.dim() - 2))


def wide(x: Tensor) -> Tensor:
    """Return x in float32, if it is of half precision."""
    return x.float() if x.dtype in (torch.half, torch.bfloat16) else x


# --- 14 norm layers with a bug -------------------------------------------------------


# The mean square is over the positions too: a token sees those after it.
# https://github.com/bkitano/llama-from-scratch/issues/4
class SequenceRMSNorm(nn.Module):
    """RMS norm of (N, T, D)."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the tokens of x."""
        mean_square = wide(x).square().mean((1, 2), keepdim=True)
        y = wide(x) * torch.rsqrt(mean_square + self.eps)
        return y.to(x.dtype) * self.scale


# The gradient of x lacks the gain: dy should be dy * weight in dx. At the start, with
# gains of 1, nothing shows.
class _FusedLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Any:
        var, mean = torch.var_mean(wide(x), -1, correction=0, keepdim=True)
        rstd = torch.rsqrt(var + eps)
        normed = (wide(x) - mean) * rstd
        ctx.save_for_backward(normed, rstd)
        return (normed * weight + bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        normed, rstd = ctx.saved_tensors
        rows = tuple(range(dy.dim() - 1))
        a = dy.mean(-1, keepdim=True)
        b = (dy * normed).mean(-1, keepdim=True)
        dx = (dy - a - normed * b) * rstd
        dw = (dy * normed).sum(rows)
        return dx.to(dy.dtype), dw.to(dy.dtype), dy.sum(rows), None


class FusedLayerNorm(_Affine):
    """Layer norm with its own backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        return _FusedLayerNorm.apply(x, self.weight, self.bias, self.eps)


# Gain and bias come before r and d: the bias is multiplied by r, and d lacks the gain.
# https://github.com/tensorpack/tensorpack/issues/1065
class BatchRenorm1d(_Affine):
    """Batch renormalization (Ioffe, 2017) of (N, C)."""

    def __init__(self, size: int, r_max: float = 3.0, d_max: float = 5.0) -> None:
        super().__init__(size, 1e-3, tracked=True)
        self.r_max = r_max
        self.d_max = d_max

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x."""
        running_std = torch.sqrt(self.running_var + self.eps)
        if not self.training:
            return self.scale((wide(x) - self.running_mean) / running_std, x)
        var, mean = torch.var_mean(wide(x), 0, correction=0)
        std = torch.sqrt(var + self.eps)
        r = (std / running_std).detach().clamp(1 / self.r_max, self.r_max)
        d = ((mean - self.running_mean) / running_std).detach()
        d = d.clamp(-self.d_max, self.d_max)
        y = self.scale((wide(x) - mean) / std, x)
        self.track(mean.detach(), var.detach(), len(x))
        return (y * r + d).to(x.dtype)


# Old checkpoints hold running_var + eps; the test for their version is missing, and
# every load takes eps off. https://github.com/facebookresearch/detectron2/pull/3160
class VersionedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that loads checkpoints of Caffe2."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        key = prefix + "running_var"
        if key in state_dict:
            state_dict[key] = state_dict[key] - self.eps
        super()._load_from_state_dict(state_dict, prefix, *args)


# The variances of the replicas are averaged; that of their means is forgotten.
class ReplicaBatchNorm3d(_Affine):
    """Batch norm of (N, C, D, H, W), reduced over replicas."""

    def __init__(self, size: int, replicas: int = 2) -> None:
        super().__init__(size, tracked=True)
        self.replicas = replicas

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = torch.zeros_like(mean), torch.zeros_like(var)
            for part in wide(x).chunk(self.replicas):
                share = len(part) / len(x)
                part_var, part_mean = torch.var_mean(part, (0, 2, 3, 4), correction=0)
                mean = mean + share * part_mean
                var = var + share * part_var
            self.track(mean.detach(), var.detach(), x.numel() / x.size(1))
        y = (wide(x) - column(mean, x)) * torch.rsqrt(column(var, x) + self.eps)
        return self.scale(y, x)


# reshape instead of transpose: "channels" are pieces of the sequence.
class SequenceBatchNorm(nn.Module):
    """Batch norm of (N, T, C)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(size)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each feature of x."""
        n, t, c = x.shape
        return self.bn(x.reshape(n, c, t)).reshape(n, t, c)


# The halves of the embedding are taken in the other order than they are initialized:
# the gain is 0 and the bias 1.
class ClassBatchNorm2d(nn.Module):
    """Batch norm of images with gain and bias of a class, as in BigGAN."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(size, affine=False)
        self.embed = nn.Embedding(classes, 2 * size)
        nn.init.normal_(self.embed.weight[:, :size].data, 1.0, 0.02)
        nn.init.zeros_(self.embed.weight[:, size:].data)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Normalize x, (N, C, H, W), and scale it by the classes y, (N,)."""
        beta, gamma = self.embed(y)[:, :, None, None].chunk(2, 1)
        return gamma * self.bn(x) + beta


# The cast comes after the square: in half precision values above 255 overflow, and
# the whole row becomes 0.
class MixedRMSNorm(nn.Module):
    """RMS norm that sums in float32."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        variance = wide(x.pow(2)).mean(-1, keepdim=True)
        y = wide(x) * torch.rsqrt(variance + self.eps)
        return y.to(x.dtype) * self.weight


# E[x^2] - E[x]^2 cancels where the mean is large, down to negative numbers and NaN.
class OnePassGroupNorm(_Affine):
    """Group norm that reads its input once."""

    def __init__(self, num_groups: int, num_channels: int) -> None:
        super().__init__(num_channels)
        self.num_groups = num_groups
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        """Normalize groups of channels of x, (N, C, ...)."""
        g = wide(x).reshape(len(x), self.num_groups, -1)
        mean = g.mean(-1, keepdim=True)
        var = g.square().mean(-1, keepdim=True) - mean.square()
        return self.scale(((g - mean) * torch.rsqrt(var + self.eps)).view_as(x), x)


# Gemma's weight is the gain less 1 and starts from zeros; from ones all outputs are
# doubled. https://github.com/linkedin/Liger-Kernel/issues/74 (the reverse)
class GemmaRMSNorm(nn.Module):
    """RMS norm in the way of Gemma."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        y = wide(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + wide(self.weight))).type_as(x)


# The cached factor is never dropped: after more training, or after load_state_dict,
# evaluation divides by the old deviation.
class CachedBatchNorm1d(_Affine):
    """Batch norm of (N, C) that saves the square root in evaluation."""

    def __init__(self, size: int) -> None:
        super().__init__(size, tracked=True)
        self._rstd: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x."""
        if self.training:
            var, mean = torch.var_mean(wide(x), 0, correction=0)
            self.track(mean.detach(), var.detach(), len(x))
            y = (wide(x) - mean) * torch.rsqrt(var + self.eps)
        else:
            if self._rstd is None:
                self._rstd = torch.rsqrt(self.running_var + self.eps)
            y = (wide(x) - self.running_mean) * self._rstd
        return self.scale(y, x)


# The statistics start from 0 and are divided by 1 - momentum**steps; it should be
# 1 - (1 - momentum)**steps. They are far too small for the first 30 batches or so.
class DebiasedBatchNorm1d(_Affine):
    """Batch norm of (N, C) with running statistics corrected as Adam's."""

    steps: Tensor

    def __init__(self, size: int) -> None:
        super().__init__(size, tracked=True)
        self.running_var.zero_()
        self.register_buffer("steps", torch.tensor(0))

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance for evaluation."""
        if self.steps == 0:
            return self.running_mean, torch.ones_like(self.running_var)
        factor = 1 - self.momentum**self.steps
        return self.running_mean / factor, self.running_var / factor

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x."""
        if self.training:
            var, mean = torch.var_mean(wide(x), 0, correction=0)
            self.track(mean.detach(), var.detach(), len(x))
            self.steps += 1
        else:
            mean, var = self.statistics()
        return self.scale((wide(x) - mean) * torch.rsqrt(var + self.eps), x)


# mode is not passed on: eval(), which calls train(False), leaves it in training mode.
class FreezableBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that stays in evaluation mode while it is frozen."""

    frozen = False

    def train(self, mode: bool = True) -> Self:
        """Set the mode, unless frozen."""
        super().train()
        if self.frozen:
            self.training = False
        return self


# The shift lacks the gain: it should be bias - running_mean * scale.
# https://github.com/ultralytics/yolov3/issues/807 (its like, of the bias)
class FoldedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that is one multiplication and one addition in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x, (N, C, H, W)."""
        if self.training:
            return super().forward(x)
        mean, var = self.get_buffer("running_mean"), self.get_buffer("running_var")
        rstd = torch.rsqrt(var + self.eps)
        scale = self.weight * rstd
        shift = self.bias - mean * rstd
        return x * column(scale, x) + column(shift, x)


# --- 5 normalized LSTMs with a bug ---------------------------------------------------

State = tuple[Tensor, Tensor]


class Cell(nn.Module):
    """A correct layer-normalized LSTM cell (Ba et al., 2016)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_ih = nn.LayerNorm(4 * hidden_size)
        self.norm_hh = nn.LayerNorm(4 * hidden_size)
        self.norm_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, state: State) -> State:
        """Make a step from state with x, (N, I)."""
        h, c = state
        gates = self.norm_ih(self.ih(x)) + self.norm_hh(self.hh(h))
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class _LSTM(nn.Module):
    """A layer-normalized LSTM of one layer, right by itself, for (T, N, I)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell: nn.Module = Cell(input_size, hidden_size)

    def first(self, x: Tensor, state: State | None) -> State:
        if state is None:
            zero = x.new_zeros(x.size(1), self.hidden_size)
            return zero, zero
        return state[0][0], state[1][0]

    def step(self, x: Tensor, state: State) -> State:
        return self.cell(x, state)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        h, c = self.first(x, state)
        outputs = []
        for x_t in x:
            h, c = self.step(x_t, (h, c))
            outputs.append(h)
        return torch.stack(outputs), (h[None], c[None])


# batch_first is stored and not read: the recurrence runs over the examples.
class BatchFirstLSTM(_LSTM):
    """A layer-normalized LSTM for (N, T, I)."""

    def __init__(
        self, input_size: int, hidden_size: int, batch_first: bool = True
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.batch_first = batch_first


# F.dropout has training=True by default: evaluation is random.
class ZoneoutLSTM(_LSTM):
    """A layer-normalized LSTM with zoneout (Krueger et al., 2017)."""

    def __init__(self, input_size: int, hidden_size: int, zoneout: float = 0.1) -> None:
        super().__init__(input_size, hidden_size)
        self.zoneout = zoneout

    def step(self, x: Tensor, state: State) -> State:
        """Make a step, in which some units keep their value."""
        h, c = self.cell(x, state)
        keep = 1 - self.zoneout
        h = state[0] + keep * F.dropout(h - state[0], self.zoneout)
        return h, c


# Every layer starts from the state of the first.
class StackedLSTM(nn.Module):
    """A layer-normalized LSTM of several layers."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 2) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        sizes = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(_LSTM(size, hidden_size) for size in sizes)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I)."""
        last = []
        for layer in self.layers:
            x, end = layer(x, state)
            last.append(end)
        h, c = zip(*last, strict=True)
        return x, (torch.cat(h), torch.cat(c))


# The state is detached at every step, not between segments: nothing is learnt through
# time.
class SegmentLSTM(_LSTM):
    """A layer-normalized LSTM for truncated backpropagation."""

    def step(self, x: Tensor, state: State) -> State:
        """Make a step from state."""
        h, c = state
        return self.cell(x, (h.detach(), c.detach()))


# A plain list: eval(), state_dict() and parameters() do not reach the norms in it.
class BatchNormLSTM(_LSTM):
    """An LSTM with recurrent batch norm (Cooijmans et al., 2017)."""

    def __init__(self, input_size: int, hidden_size: int, max_length: int = 10) -> None:
        super().__init__(input_size, hidden_size)
        self.ih = nn.Linear(input_size, 4 * hidden_size)
        self.cell = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norms = [nn.BatchNorm1d(4 * hidden_size) for _ in range(max_length)]

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I), with statistics of each step."""
        h, c = self.first(x, state)
        outputs = []
        for t, x_t in enumerate(x):
            norm = self.norms[min(t, len(self.norms) - 1)]
            gates = self.ih(x_t) + norm(self.cell(h))
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs), (h[None], c[None])


# --- 6 models with a bug -------------------------------------------------------------


# The mask is within the difference: each padded position adds mean**2 to the variance.
# https://github.com/cooijmanstim/recurrent-batch-normalization/issues/2
class MaskedInstanceNorm1d(_Affine):
    """Instance norm of (N, C, T) over the positions that mask, (N, 1, T), has."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Normalize each channel of each example of x."""
        n = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / n
        var = (x * mask - mean).square().sum(-1, keepdim=True) / n
        y = (x - mean) * torch.rsqrt(var + self.eps)
        return self.scale(y, x) * mask


class RightMaskedInstanceNorm1d(_Affine):
    """The same without the bug, for a control."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Normalize each channel of each example of x."""
        n = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / n
        centred = (x - mean) * mask
        var = centred.square().sum(-1, keepdim=True) / n
        y = centred * torch.rsqrt(var + self.eps)
        return self.scale(y, x) * mask


class SpeechEncoder(nn.Module):
    """Encodes utterances of different lengths."""

    def __init__(self, norm: type[_Affine], features: int = 8, size: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv1d(features, size, 1)
        self.norm = norm(size)
        self.out = nn.Linear(size, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Classify x, (N, F, T), whose examples have the lengths, (N,)."""
        mask = torch.arange(x.size(2), device=x.device) < lengths[:, None]
        weight = mask[:, None].to(x.dtype)
        h = self.norm(self.first(x), weight).relu() * weight
        return self.out(h.sum(2) / lengths[:, None])


# The keys go through the norm of the queries; k_norm is never used.
class Attention(nn.Module):
    """Self-attention with norms of queries and keys."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.k_norm = nn.RMSNorm(dim // heads, eps=1e-6)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within x, (N, T, D)."""
        n, t, d = x.shape
        qkv = self.qkv(x).view(n, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q = self.q_norm(q)
        k = self.q_norm(k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, t, d))


# InstanceNorm1d takes (N, D) for one example of N channels: each row is normalized
# over its features, with no gain.
class Mapping(nn.Module):
    """Maps latent vectors to styles."""

    def __init__(self, dim: int = 12, size: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, size),
            nn.InstanceNorm1d(size),
            nn.LeakyReLU(0.2),
            nn.Linear(size, size),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Map z, (N, dim)."""
        return self.net(z)


# The cached tensors are the buffers themselves: all norms of a size write into one.
@cache
def _filled(size: int, value: float) -> Tensor:
    return torch.full((size,), value)


class LeanBatchNorm2d(_Affine):
    """Batch norm of images that is quick to build."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("running_mean", _filled(size, 0.0))
        self.register_buffer("running_var", _filled(size, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x, (N, C, H, W)."""
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )


class LeanNet(nn.Module):
    """A small classifier of images."""

    def __init__(self, size: int = 20) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, size, 3, padding=1, bias=False),
            LeanBatchNorm2d(size),
            nn.ReLU(),
            nn.Conv2d(size, size, 3, padding=1, bias=False),
            LeanBatchNorm2d(size),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(size, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Classify x, (N, 3, H, W)."""
        return self.net(x)


# The parameters are averaged, the buffers are not: the teacher, always in evaluation
# mode, keeps the running statistics of its birth.
# https://github.com/CuriousAI/mean-teacher/issues/9
class MeanTeacher(nn.Module):
    """A student and the moving average of it."""

    def __init__(self, size: int = 32, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.student = nn.Sequential(
            nn.Linear(12, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, 5)
        )
        self.teacher = deepcopy(self.student).requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the student; the teacher is never trained."""
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def update(self) -> None:
        """Let the teacher follow, after a step of the optimizer."""
        pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
        for old, new in pairs:
            old.lerp_(new, 1 - self.decay)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what student and teacher say of x, (N, 12)."""
        return self.student(x), self.teacher(x)


# The axes of a filter are (1, 2, 3), those of an output channel; (0, 2, 3) is what one
# writes for activations, and standardizes by input channels.
class StdConv2d(nn.Conv2d):
    """Convolution with weight standardization (Qiao et al., 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x, (N, C, H, W)."""
        w = self.weight
        var, mean = torch.var_mean(w, (0, 2, 3), correction=0, keepdim=True)
        w = (w - mean) / torch.sqrt(var + 1e-10)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


class BiT(nn.Module):
    """A small residual net with standardized weights and group norm."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.stem = StdConv2d(3, size, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, size)
        self.conv = StdConv2d(size, size, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, size)
        self.out = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify x, (N, 3, H, W)."""
        x = self.stem(x)
        x = x + self.conv(self.norm1(x).relu())
        return self.out(self.norm2(x).relu().mean((2, 3)))


# --- 10 correct ones, written unusually ----------------------------------------------


class MergedBatchNorm(_Affine):
    """Batch norm of (N, C, ...) whose statistics are merged from halves (Chan)."""

    def __init__(self, size: int) -> None:
        super().__init__(size, tracked=True)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            values = wide(x).transpose(0, 1).flatten(1)
            n, mean, m2 = 0, torch.zeros_like(mean), torch.zeros_like(var)
            for part in values.chunk(2, 1):
                k = part.size(1)
                part_var, part_mean = torch.var_mean(part, 1, correction=0)
                delta = part_mean - mean
                m2 = m2 + k * part_var + delta.square() * (n * k / (n + k))
                mean = mean + delta * (k / (n + k))
                n += k
            var = m2 / n
            self.track(mean.detach(), var.detach(), n)
        y = (wide(x) - column(mean, x)) * torch.rsqrt(column(var, x) + self.eps)
        return self.scale(y, x)


class AdaIN(nn.Module):
    """Adaptive instance norm by the kernel of batch norm, as in FUNIT."""

    def __init__(self, size: int, style_dim: int) -> None:
        super().__init__()
        self.num_features = size
        self.fc = nn.Linear(style_dim, 2 * size)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Normalize x, (N, C, H, W), and scale it by style, (N, S)."""
        gamma, beta = self.fc(style).chunk(2, 1)
        one = x.reshape(1, -1, *x.shape[2:])
        gain, bias = (1 + gamma).flatten(), beta.flatten()
        return F.batch_norm(one, None, None, gain, bias, True).view_as(x)


class _FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Any:
        rstd = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return (wide(x) * rstd * weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        normed = x.to(rstd.dtype) * rstd
        dn = dy * weight
        dx = (dn - normed * (dn * normed).mean(-1, keepdim=True)) * rstd
        rows = tuple(range(dy.dim() - 1))
        return dx.to(x.dtype), (dy * normed).sum(rows).to(weight.dtype), None


class FusedRMSNorm(nn.Module):
    """RMS norm with its own backward pass, which recomputes the output."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        return _FusedRMSNorm.apply(x, self.weight, self.eps)


class MatrixLayerNorm(_Affine):
    """Layer norm that centres by a matrix, for hardware without reductions."""

    centre: Tensor

    def __init__(self, size: int) -> None:
        super().__init__(size)
        matrix = torch.eye(size) - 1 / size
        self.register_buffer("centre", matrix, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        c = wide(x) @ wide(self.centre)
        var = torch.linalg.vecdot(c, c)[..., None] / x.size(-1)
        normed = (c * (var + self.eps).rsqrt()).to(x.dtype)
        return torch.addcmul(self.bias, normed, self.weight)


class LayerwiseGroupNorm(_Affine):
    """Group norm by the kernel of layer norm."""

    def __init__(self, num_groups: int, num_channels: int) -> None:
        super().__init__(num_channels)
        self.num_groups = num_groups
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        """Normalize groups of channels of x, (N, C, ...)."""
        g = x.unflatten(1, (self.num_groups, -1))
        return self.scale(F.layer_norm(g, g.shape[2:], eps=self.eps).flatten(1, 2), x)


class DroppedCacheBatchNorm1d(CachedBatchNorm1d):
    """The cached batch norm, whose cache is dropped by training and by loading."""

    def train(self, mode: bool = True) -> Self:
        """Set the mode."""
        self._rstd = None
        return super().train(mode)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._rstd = None
        super()._load_from_state_dict(*args)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._rstd = None
        return super()._apply(*args, **kwargs)


class CheckpointedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm that is recomputed in the backward pass, but tracked once."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x, (N, C, H, W)."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(x)
        with torch.no_grad():
            super().forward(x)
        return checkpoint(self._normalize, x, use_reentrant=False)

    def _normalize(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


class GatewiseLSTM(_LSTM):
    """An LSTM with a layer norm of each gate, as in TensorFlow, in another order."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = nn.Linear(input_size + hidden_size, 4 * hidden_size, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(5))

    def step(self, x: Tensor, state: State) -> State:
        """Make a step from state."""
        h, c = state
        gates = self.cell(torch.cat([x, h], 1)).chunk(4, 1)
        o, g, f, i = (norm(gate) for norm, gate in zip(self.norms, gates, strict=False))
        c = torch.sigmoid(f + 1) * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norms[4](c).tanh(), c


class GRUClassifier(nn.Module):
    """Classifies padded sentences by a layer-normalized GRU, from its last state."""

    def __init__(self, words: int = 50, size: int = 16) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Embedding(words, size, padding_idx=0)
        self.ih = nn.Linear(size, 3 * size, bias=False)
        self.hh = nn.Linear(size, 3 * size, bias=False)
        self.norm_ih = nn.LayerNorm(3 * size)
        self.norm_hh = nn.LayerNorm(3 * size)
        self.out = nn.Linear(size, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Classify words, (N, T), padded by 0."""
        h = self.embed.weight.new_zeros(len(words), self.size)
        inputs = self.norm_ih(self.ih(self.embed(words)))
        for x, real in zip(inputs.unbind(1), (words != 0).unbind(1), strict=True):
            x_r, x_z, x_n = x.chunk(3, 1)
            h_r, h_z, h_n = self.norm_hh(self.hh(h)).chunk(3, 1)
            z = torch.sigmoid(x_z + h_z)
            new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
            h = torch.where(real[:, None], torch.lerp(new, h, z), h)
        return self.out(h)


# --- how each is made and checked ----------------------------------------------------


def images(n: int = 16) -> Tensor:
    """Return images of different brightness and contrast."""
    shape = (n, 3, 1, 1)
    return (0.2 + torch.rand(shape)) * torch.randn(n, 3, 12, 12) + torch.randn(shape)


def table(n: int = 64) -> Tensor:
    """Return rows of 12 columns of different mean and size."""
    scale = torch.linspace(0.5, 3, 12)
    return torch.randn(n, 12) * scale + 2 * scale


def tokens(n: int = 16) -> Tensor:
    """Return sequences of 10 vectors."""
    return torch.randn(n, 10, 32)


def speech(n: int = 16) -> tuple[Tensor, Tensor]:
    """Return padded utterances, of mean 1, and their lengths."""
    lengths = torch.randint(6, 21, (n,))
    lengths[0] = 20
    mask = torch.arange(20) < lengths[:, None]
    return (torch.randn(n, 8, 20) + 1) * mask[:, None], lengths


def sentences(n: int = 16) -> Tensor:
    """Return sentences of up to 12 words, padded by 0."""
    words = torch.randint(1, 50, (n, 12))
    lengths = torch.randint(4, 13, (n, 1))
    return words * (torch.arange(12) < lengths)


def trained(model: nn.Module, batch: Callable[[], Any]) -> nn.Module:
    """Let the running statistics settle on batches, as after a training."""
    model.train()
    with torch.no_grad():
        for _ in range(100):
            x = batch()
            if isinstance(x, tuple):
                model(*x)
            else:
                model(x)
    return model


def with_class(layer: nn.Module, x: Tensor) -> Tensor:
    """Call a layer with class 1 for every example."""
    return layer(x, torch.ones(len(x), dtype=torch.long))


@dataclass
class Case:
    """A layer, how it is made, and how the check or the audit is called."""

    name: str
    make: Callable[[], nn.Module]
    arguments: dict[str, Any] = field(default_factory=dict)
    batch: Callable[[], Any] | None = None  # for an audit


LSTM = {"kind": "lstm"}
RMS = {"kind": "rms"}

BUGS = [
    Case("sequence rms norm", lambda: SequenceRMSNorm(32), RMS | {"shape": (4, 6, 32)}),
    Case("fused layer norm", lambda: FusedLayerNorm(32), {"kind": "layer"}),
    Case("batch renorm", lambda: BatchRenorm1d(6), {"kind": "batch"}),
    Case("versioned batch norm", lambda: VersionedBatchNorm2d(6, eps=1e-3)),
    Case(
        "replica batch norm", lambda: ReplicaBatchNorm3d(6), {"shape": (4, 6, 3, 4, 5)}
    ),
    Case(
        "sequence batch norm",
        lambda: SequenceBatchNorm(6),
        {"kind": "batch", "shape": (8, 5, 6), "channel_axis": -1},
    ),
    Case("class batch norm", lambda: ClassBatchNorm2d(6, 4), {"call": with_class}),
    Case("mixed rms norm", lambda: MixedRMSNorm(32), RMS),
    Case("one-pass group norm", lambda: OnePassGroupNorm(3, 12)),
    Case("gemma rms norm", lambda: GemmaRMSNorm(32), RMS),
    Case("cached batch norm", lambda: CachedBatchNorm1d(6)),
    Case("debiased batch norm", lambda: DebiasedBatchNorm1d(6)),
    Case("freezable batch norm", lambda: FreezableBatchNorm2d(6)),
    Case("folded batch norm", lambda: FoldedBatchNorm2d(6)),
    Case("batch-first lstm", lambda: BatchFirstLSTM(5, 8), LSTM),
    Case("zoneout lstm", lambda: ZoneoutLSTM(5, 8), LSTM),
    Case("stacked lstm", lambda: StackedLSTM(5, 8), LSTM),
    Case("segment lstm", lambda: SegmentLSTM(5, 8), LSTM),
    Case("batch norm lstm", lambda: BatchNormLSTM(5, 8), LSTM),
    Case("speech encoder", lambda: SpeechEncoder(MaskedInstanceNorm1d), batch=speech),
    Case("attention", Attention, batch=tokens),
    Case("mapping", Mapping, batch=table),
    Case("lean net", lambda: trained(LeanNet(), images), batch=images),
    Case("mean teacher", lambda: trained(MeanTeacher(), table), batch=table),
    Case("standardized net", BiT, batch=images),
]

CONTROLS = [
    Case("merged batch norm", lambda: MergedBatchNorm(6), {"shape": (4, 6, 5)}),
    Case("adain", lambda: AdaIN(6, 10), {"kind": "instance", "shape": (4, 6, 7, 7)}),
    Case("fused rms norm", lambda: FusedRMSNorm(32), RMS),
    Case("matrix layer norm", lambda: MatrixLayerNorm(32), {"kind": "layer"}),
    Case("layerwise group norm", lambda: LayerwiseGroupNorm(3, 12)),
    Case("dropped-cache batch norm", lambda: DroppedCacheBatchNorm1d(6)),
    Case("checkpointed batch norm", lambda: CheckpointedBatchNorm2d(6)),
    Case("gatewise lstm", lambda: GatewiseLSTM(5, 8), LSTM),
    Case("gru classifier", GRUClassifier, batch=sentences),
    Case(
        "right speech encoder",
        lambda: SpeechEncoder(RightMaskedInstanceNorm1d),
        batch=speech,
    ),
]
