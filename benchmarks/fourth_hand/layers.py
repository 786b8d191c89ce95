"""Layers and models with one bug each, and correct ones that are written unusually.

A fourth set, by the same rules as ``third_hand``: written without a look at the
checks or at the layers of the other hands. A comment in front of each names its bug
and, where one of the kind was told in public, the issue. ``expected.txt`` says what a
right report must say.
"""

# ruff: noqa: D102 - what a forward does is said by its class
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A layer for ``check_norm_layer`` or, with a batch, a model for ``audit``."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Any] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


class _Scale(nn.Module):
    """A gain of ones, a bias of zeros where wanted, and eps."""

    def __init__(self, size: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        if bias:
            self.bias = nn.Parameter(torch.zeros(size))


class _Tracked(_Scale):
    """The same with running statistics: a batch norm of (N, C, ...)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(size, eps)
        self.num_features = size
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    @torch.no_grad()
    def track(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)

    def finish(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalize x by the statistics; apply gain and bias."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        normed = (x - mean.view(shape)) * (var.view(shape) + self.eps).rsqrt()
        return normed * self.weight.view(shape) + self.bias.view(shape)


# Norm layers ---------------------------------------------------------------------


# The input gradient has the gain twice in its second term.
# https://github.com/NVIDIA/Megatron-LM/pull/6859
class _TwiceFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, r)
        return x * r * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, r = ctx.saved_tensors
        s = (g * x * weight).mean(-1, keepdim=True)
        grad_x = g * weight * r - weight * r**3 * x * s
        grad_weight = (g * x * r).reshape(-1, weight.numel()).sum(0)
        return grad_x, grad_weight, None


class InvariantRMSNorm(_Scale):
    """An RMS norm with a backward pass of its own."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 1e-6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return _TwiceFunction.apply(x, self.weight, self.eps)


# What is saved for the backward pass is normalized already, and normalized again there.
# https://github.com/state-spaces/mamba/pull/939
class _AgainFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return x * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        r = (x.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        normed = x * r
        gw = g * weight
        grad_x = r * (gw - normed * (gw * normed).mean(-1, keepdim=True))
        grad_weight = (g * normed).reshape(-1, weight.numel()).sum(0)
        return grad_x, grad_weight, None


class RecomputedRMSNorm(_Scale):
    """An RMS norm that computes its statistics once more in the backward pass."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 1e-6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return _AgainFunction.apply(x, self.weight, self.eps)


# The backward pass takes the first axis for the rows, as if the input had two axes.
# https://github.com/flagos-ai/FlagGems/issues/5392
class _RowsFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        m, d = x.shape[0], weight.numel()
        rows, gw = x.reshape(m, -1), (g * weight).reshape(m, -1)
        mean = rows.mean(1, keepdim=True)
        rstd = (rows.var(1, correction=0, keepdim=True) + ctx.eps).rsqrt()
        normed = (rows - mean) * rstd
        inner = gw.mean(1, keepdim=True) + normed * (gw * normed).mean(1, keepdim=True)
        grad_x = (rstd * (gw - inner)).view_as(x)
        grad_weight = (g.reshape(-1, d) * normed.reshape(-1, d)).sum(0)
        return grad_x, grad_weight, g.reshape(-1, d).sum(0), None


class KernelLayerNorm(_Scale):
    """A layer norm of sequences with a backward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return _RowsFunction.apply(x, self.weight, self.bias, self.eps)


# (N, H, W, C) is reshaped to (N, G, H, W, C / G) without a transpose.
# https://github.com/tensorflow/addons/issues/751
class LastGroupNorm(_Scale):
    """A group norm of (N, H, W, C)."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__(channels)
        self.num_groups, self.num_channels = groups, channels

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        y = x.reshape(n, self.num_groups, h, w, c // self.num_groups)
        mean = y.mean((2, 3, 4), keepdim=True)
        var = y.var((2, 3, 4), correction=0, keepdim=True)
        y = (y - mean) * (var + self.eps).rsqrt()
        return y.reshape(x.shape) * self.weight + self.bias


# The correction of the running variance counts the examples, not the values.
# https://github.com/bayesflow-org/bayesflow/pull/525
class CountingBatchNorm(_Tracked):
    """A batch norm of images."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.finish(x, self.running_mean, self.running_var)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        count = x.shape[0]
        self.track(mean, var * count / (count - 1))
        return self.finish(x, mean, var)


# The sums run over the positions too, the mask that they are divided by has none.
# https://github.com/keras-team/keras/issues/19848
class MaskedBatchNorm(_Tracked):
    """A batch norm of images that can leave out examples."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training:
            return self.finish(x, self.running_mean, self.running_var)
        if mask is None:
            mask = x.new_ones(x.shape[0], 1, 1, 1)
        count = mask.sum()
        mean = (x * mask).sum((0, 2, 3)) / count
        centred = x - mean.view(1, -1, 1, 1)
        var = (centred.square() * mask).sum((0, 2, 3)) / count
        self.track(mean, var * count / (count - 1))
        return self.finish(x, mean, var)


# Rows are read as they lie in memory, so a transposed input is taken for another.
# https://github.com/microsoft/DirectML/issues/588
class StorageLayerNorm(_Scale):
    """A layer norm over the last axis that reads rows of memory."""

    def forward(self, x: Tensor) -> Tensor:
        d = self.weight.numel()
        rows = torch.as_strided(x, (x.numel() // d, d), (d, 1), x.storage_offset())
        y = F.layer_norm(rows, (d,), self.weight, self.bias, self.eps)
        return y.reshape(x.shape)


# The halves of the projection are taken in the other order than they were made in.
# https://github.com/leejet/stable-diffusion.cpp/pull/1707
class ModulatedLayerNorm(nn.Module):
    """A layer norm whose gain and bias are projected from a condition."""

    def __init__(self, size: int, cond: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size, elementwise_affine=False)
        self.proj = nn.Linear(cond, 2 * size)
        nn.init.zeros_(self.proj.weight)
        with torch.no_grad():  # gain, then bias
            self.proj.bias.copy_(torch.cat([torch.ones(size), torch.zeros(size)]))

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        shift, scale = self.proj(cond).unsqueeze(1).chunk(2, dim=-1)
        return self.norm(x) * scale + shift


def modulated(layer: nn.Module, x: Tensor) -> Tensor:
    """Call a conditional layer with the same condition for all examples."""
    return layer(x, x.new_ones(x.shape[0], 5))


# The mean square is computed in float32, but rounded to half precision under the root.
# https://github.com/xlite-dev/LeetCUDA/pull/335
class RoundedRMSNorm(_Scale):
    """An RMS norm for half precision."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 1e-6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean_square = y.square().mean(-1, keepdim=True).to(x.dtype)
        return self.weight.to(x.dtype) * (x * (mean_square + self.eps).rsqrt())


# Examples become channels of a batch norm that, in evaluation, takes the running
# statistics: copies are what is updated, so they stay 0 and 1.
# https://github.com/NVlabs/FUNIT/issues/26
class AdaptiveInstanceNorm(_Tracked):
    """An instance norm of images by means of a batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        n, c = x.shape[:2]
        y = F.batch_norm(
            x.reshape(1, n * c, *x.shape[2:]),
            self.running_mean.repeat(n),
            self.running_var.repeat(n),
            self.weight.repeat(n),
            self.bias.repeat(n),
            self.training,
            self.momentum,
            self.eps,
        )
        return y.view(x.shape)


# Without gradients the output is always the same memory: the next call overwrites it.
class ReusingLayerNorm(_Scale):
    """A layer norm that allocates its output once."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.out: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        if y.requires_grad:
            return y
        if self.out is None or self.out.shape != y.shape or self.out.dtype != y.dtype:
            self.out = torch.empty_like(y)
        return self.out.copy_(y)


# Layer-normalized LSTMs ----------------------------------------------------------


class _Cell(nn.Module):
    """One step, with a norm of each projection and of the cell state put out."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        bound = size**-0.5
        self.weight_ih = nn.Parameter(
            torch.empty(4 * size, inputs).uniform_(-bound, bound)
        )
        self.weight_hh = nn.Parameter(
            torch.empty(4 * size, size).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.zeros(4 * size))
        self.norm_ih = self.norm(4 * size)
        self.norm_hh = self.norm(4 * size)
        self.norm_c = self.norm(size)

    def norm(self, size: int) -> nn.Module:
        return nn.LayerNorm(size)

    def gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        total = self.norm_ih(x @ self.weight_ih.t()) + self.norm_hh(
            h @ self.weight_hh.t()
        )
        i, f, g, o = (total + self.bias).chunk(4, dim=-1)
        return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = self.gates(x, h)
        c = f * c + i * g
        return o * self.norm_c(c).tanh(), c


class NormLSTM(nn.Module):
    """Layers of such cells with the interface of ``nn.LSTM``."""

    cell: type[_Cell] = _Cell

    def __init__(
        self, inputs: int, size: int, layers: int = 1, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = inputs, size, layers
        self.bidirectional, self.batch_first = bidirectional, False
        self.ways = 2 if bidirectional else 1
        self.cells = nn.ModuleList(
            self.cell(inputs if k == 0 else self.ways * size, size)
            for k in range(layers)
            for _ in range(self.ways)
        )

    def start(self, state: tuple[Tensor, Tensor], place: int) -> tuple[Tensor, Tensor]:
        """Return the first state of a cell."""
        return state[0][place], state[1][place]

    def last(self, out: Tensor, h: Tensor, back: bool) -> Tensor:
        """Return the last hidden state of a cell with these outputs."""
        return h

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None:
            zeros = x.new_zeros(len(self.cells), x.shape[1], self.hidden_size)
            state = zeros, zeros
        hs, cs = [], []
        for layer in range(self.num_layers):
            outs = []
            for way in range(self.ways):
                place = layer * self.ways + way
                h, c = self.start(state, place)
                steps = []
                for t in reversed(range(len(x))) if way else range(len(x)):
                    h, c = self.cells[place](x[t], h, c)
                    steps.append(h)
                out = torch.stack(steps[::-1] if way else steps)
                outs.append(out)
                hs.append(self.last(out, h, bool(way)))
                cs.append(c)
            x = torch.cat(outs, dim=-1)
        return x, (torch.stack(hs), torch.stack(cs))


# The input gate is added to the candidate.
# https://github.com/MartinuzziFrancesco/torchrecurrent/issues/22
class _AddingCell(_Cell):
    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = self.gates(x, h)
        c = f * c + (i + g)
        return o * self.norm_c(c).tanh(), c


class AddingLSTM(NormLSTM):
    """Of cells with an input gate."""

    cell = _AddingCell


# All layers start from the state of the first.
# https://github.com/jihunchoi/recurrent-batch-normalization-pytorch/pull/7
class StackedLSTM(NormLSTM):
    """Of two layers."""

    def start(self, state: tuple[Tensor, Tensor], place: int) -> tuple[Tensor, Tensor]:
        return state[0][0], state[1][0]


# There is no eps: the projection of the first hidden state, zeros, gives 0 / 0.
# https://github.com/jihunchoi/recurrent-batch-normalization-pytorch/issues/5
class _BareNorm(_Scale):
    def __init__(self, size: int) -> None:
        super().__init__(size, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        std = centred.square().mean(-1, keepdim=True).sqrt()
        return centred / std * self.weight + self.bias


class _BareCell(_Cell):
    def norm(self, size: int) -> nn.Module:
        return _BareNorm(size)


class BareLSTM(NormLSTM):
    """Of cells with a norm written in place."""

    cell = _BareCell


# The bias of 1 is meant for the forget gate, but the order here is i, g, f, o.
# https://github.com/hardmaru/supercell/issues/7
class _OrderedCell(_Cell):
    def __init__(self, inputs: int, size: int) -> None:
        super().__init__(inputs, size)
        with torch.no_grad():
            self.bias[size : 2 * size] = 1.0  # the forget gate

    def gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        total = self.norm_ih(x @ self.weight_ih.t()) + self.norm_hh(
            h @ self.weight_hh.t()
        )
        i, g, f, o = (total + self.bias).chunk(4, dim=-1)
        return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


class OrderedLSTM(NormLSTM):
    """Of cells with a forget bias."""

    cell = _OrderedCell


# The last hidden state of the way back is its output at the last position, which has
# seen one step alone.
class BothLSTM(NormLSTM):
    """Of both directions."""

    def last(self, out: Tensor, h: Tensor, back: bool) -> Tensor:
        return out[-1]


# The variant with dropout inherits the step without norms: they are held, not used.
# https://github.com/seba-1511/lstms.pth/issues/3
class _UnusedCell(_Cell):
    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        total = x @ self.weight_ih.t() + h @ self.weight_hh.t() + self.bias
        i, f, g, o = total.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * F.dropout(g.tanh(), 0.1, self.training)
        return o.sigmoid() * c.tanh(), c


class DropoutLSTM(NormLSTM):
    """Of cells with recurrent dropout."""

    cell = _UnusedCell


# Models --------------------------------------------------------------------------


def images() -> Tensor:
    """Return 32 images of three channels."""
    return 2 * torch.randn(32, 3, 8, 8) + 1


def vectors() -> Tensor:
    """Return 64 vectors."""
    return 2 * torch.randn(64, 16) + 1


def sequences() -> Tensor:
    """Return 16 sequences."""
    return torch.randn(16, 10, 16)


def settled(model: nn.Module, batch: Callable[[], Tensor]) -> nn.Module:
    """Let the running statistics settle on such batches."""
    model.train()
    with torch.no_grad():
        for _ in range(100):
            model(batch())
    return model


# Weights are divided by the reciprocal of their standard deviation.
# https://github.com/huggingface/blog/pull/2484
class StandardConv2d(nn.Conv2d):
    """A convolution with standardized weights."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        var = self.weight.var((1, 2, 3), correction=0, keepdim=True)
        weight = (self.weight - mean) / (var + 1e-5).rsqrt()
        return self._conv_forward(x, weight, self.bias)


def standardized(conv: type[nn.Conv2d]) -> nn.Module:
    """Return a small network of convolutions with standardized weights."""
    return nn.Sequential(
        conv(3, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        conv(8, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


class Attention(nn.Module):
    """Self-attention with a norm of queries and one of keys, for each head."""

    def __init__(self, size: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.q_norm = nn.RMSNorm(size // heads, eps=1e-6)
        self.k_norm = nn.RMSNorm(size // heads, eps=1e-6)
        self.out = nn.Linear(size, size)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.normed(q, k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(n, t, d))


# A slip of copying: keys go through the norm of the queries.
class CopiedAttention(Attention):
    """The same."""

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.q_norm(k)


class Block(nn.Module):
    """A transformer block with the norms first."""

    def __init__(self, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


# What is added is the normalized input, not the input: no path leads round the norms.
# https://github.com/Howuhh/faster-trajectory-transformer/issues/3
class OverwritingBlock(Block):
    """The same."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attention(x)
        x = self.norm2(x)
        return x + self.mlp(x)


def transformer(block: Callable[[], nn.Module]) -> nn.Module:
    """Return a small transformer."""
    return nn.Sequential(block(), block(), nn.LayerNorm(16), nn.Linear(16, 5))


def conv_net(momentum: float = 0.1) -> nn.Sequential:
    """Return a small network with batch norms."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8, momentum=momentum),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8, momentum=momentum),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


# The norms are frozen once, when the model is made: train() sets them loose.
# https://github.com/poppinace/indexnet_matting/issues/35
class FrozenNet(nn.Module):
    """A pretrained backbone with frozen norms, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = settled(conv_net()[:-1], images)
        self.head = nn.Linear(8, 5)
        self.freeze_bn()

    def freeze_bn(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
                module.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


# After the pooling a group of one channel is one value: what comes out is the bias.
class SqueezeNet(nn.Module):
    """Channels are weighted by their means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(8, 8, 1),
            nn.GroupNorm(8, 8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 1),
            nn.Sigmoid(),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        return self.head((x * self.squeeze(x)).mean((2, 3)))


# Parameters are averaged into the teacher, running statistics are not.
# https://github.com/CuriousAI/mean-teacher/issues/9
class MeanTeacher(nn.Module):
    """A student and a teacher that is the average of students."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = conv_net(), conv_net()
        self.teacher.requires_grad_(False)
        for _ in range(100):
            with torch.no_grad():
                self.student.train()(images())
            self.average(0.9)

    @torch.no_grad()
    def average(self, decay: float) -> None:
        pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
        for mean, new in pairs:
            mean.lerp_(new, 1 - decay)

    def train(self, mode: bool = True) -> MeanTeacher:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(x), self.teacher(x)


# Dropout in front of a batch norm makes the variance larger in training alone.
# https://arxiv.org/abs/1801.05134
def dropout_net() -> nn.Module:
    """Return a small network with dropout."""
    net = nn.Sequential(
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.BatchNorm1d(32),
        nn.Linear(32, 5),
    )
    return settled(net, vectors)


# 0.99 is what another framework calls the momentum: here the last batch is all.
def moving_net() -> nn.Module:
    """Return a small network with slow running statistics."""
    return settled(conv_net(momentum=0.99), images)


BUGS = (
    Case("invariant rms norm", lambda: InvariantRMSNorm(8)),
    Case("recomputed rms norm", lambda: RecomputedRMSNorm(8)),
    Case(
        "kernel layer norm",
        lambda: KernelLayerNorm(8),
        arguments={"shape": (4, 3, 8), "kind": "layer"},
    ),
    Case(
        "last group norm",
        lambda: LastGroupNorm(2, 6),
        arguments={"shape": (4, 4, 4, 6), "kind": "group", "channel_axis": -1},
    ),
    Case(
        "counting batch norm",
        lambda: CountingBatchNorm(4),
        arguments={"shape": (8, 4, 3, 3)},
    ),
    Case(
        "masked batch norm",
        lambda: MaskedBatchNorm(4),
        arguments={"shape": (8, 4, 3, 3)},
    ),
    Case(
        "storage layer norm",
        lambda: StorageLayerNorm(8),
        arguments={"shape": (4, 3, 8), "kind": "layer"},
    ),
    Case(
        "modulated layer norm",
        lambda: ModulatedLayerNorm(8, 5),
        arguments={"shape": (4, 3, 8), "kind": "layer", "call": modulated},
    ),
    Case("rounded rms norm", lambda: RoundedRMSNorm(8)),
    Case(
        "adaptive instance norm",
        lambda: AdaptiveInstanceNorm(4),
        arguments={"shape": (4, 4, 5, 5), "kind": "instance"},
    ),
    Case("reusing layer norm", lambda: ReusingLayerNorm(8)),
    Case("adding lstm", lambda: AddingLSTM(5, 6), arguments={"kind": "lstm"}),
    Case("stacked lstm", lambda: StackedLSTM(5, 6, 2), arguments={"kind": "lstm"}),
    Case("bare lstm", lambda: BareLSTM(5, 6), arguments={"kind": "lstm"}),
    Case("ordered lstm", lambda: OrderedLSTM(5, 6), arguments={"kind": "lstm"}),
    Case("both lstm", lambda: BothLSTM(5, 6, 1, True), arguments={"kind": "lstm"}),
    Case("dropout lstm", lambda: DropoutLSTM(5, 6), arguments={"kind": "lstm"}),
    Case("standard conv", lambda: standardized(StandardConv2d), images),
    Case(
        "copied attention",
        lambda: transformer(lambda: Block(CopiedAttention)),
        sequences,
    ),
    Case("overwriting block", lambda: transformer(OverwritingBlock), sequences),
    Case("frozen net", FrozenNet, images),
    Case("squeeze net", SqueezeNet, images),
    Case("mean teacher", MeanTeacher, images),
    Case("dropout net", dropout_net, vectors),
    Case("moving net", moving_net, images),
)


# Sound ones ----------------------------------------------------------------------


class ChunkedBatchNorm(_Tracked):
    """A batch norm whose statistics are merged from those of parts of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.finish(x, self.running_mean, self.running_var)
        count, mean, square = 0, x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
        for part in x.split(3):
            axes = (0, 2, 3)
            n = part.numel() // part.shape[1]
            delta = part.mean(axes) - mean
            square = square + part.var(axes, correction=0) * n
            square = square + delta.square() * count * n / (count + n)
            mean = mean + delta * n / (count + n)
            count += n
        self.track(mean, square / (count - 1))
        return self.finish(x, mean, square / count)


class HeadRMSNorm(_Scale):
    """An RMS norm that divides by the largest value first: no square overflows."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 1e-6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        largest = y.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
        z = y / largest
        r = (z.square().mean(-1, keepdim=True) + self.eps / largest.square()).rsqrt()
        return (z * r * self.weight.to(y.dtype)).to(x.dtype)


class StandardizedConv2d(nn.Conv2d):
    """A convolution with standardized weights, by means of a batch norm of them."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        rows = F.batch_norm(rows, None, None, training=True, eps=1e-5)
        return self._conv_forward(x, rows.view_as(self.weight), self.bias)


class EmbeddedTransformer(nn.Module):
    """Patches by a convolution with a batch norm, then blocks with norms of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 2, 2), nn.BatchNorm2d(16))
        self.blocks = transformer(Block)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1)


CONTROLS = (
    Case(
        "chunked batch norm",
        lambda: ChunkedBatchNorm(4),
        arguments={"shape": (8, 4, 3, 3)},
    ),
    Case("head rms norm", lambda: HeadRMSNorm(8)),
    Case("sound lstm", lambda: NormLSTM(5, 6, 2, True), arguments={"kind": "lstm"}),
    Case("sound standard conv", lambda: standardized(StandardizedConv2d), images),
    Case("sound transformer", lambda: settled(EmbeddedTransformer(), images), images),
)
