"""Layers and models with one bug each, and correct ones that are written unusually.

They were written without a look at the checks, the way that such code is found in
projects. A comment in front of each names its bug and, where it follows a public
issue, the issue. ``demonstrations.py`` shows what each bug changes for a user,
``expected.txt`` what a right report must say, and ``run.py`` compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- 15 norm layers with a bug -------------------------------------------------------


# In half precision 1e-12 is 0, and so the padding, rows of zeros, becomes NaN.
# https://github.com/deepspeedai/DeepSpeed/issues/581
# https://github.com/pytorch/pytorch/issues/41527
class BertLayerNorm(nn.Module):
    """Layer norm in the style of TensorFlow, epsilon inside the square root."""

    def __init__(self, hidden_size: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        centered = x - x.mean(-1, keepdim=True)
        variance = centered.square().mean(-1, keepdim=True)
        x = centered / torch.sqrt(variance + self.variance_epsilon)
        return self.weight * x + self.bias


# The output stays float32 when a half comes in: one cast is forgotten.
# https://github.com/skyzh/tiny-llm/pull/18 tests for that.
class UpcastRMSNorm(nn.Module):
    """RMS norm, computed in float32."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * self.weight.float()


# float() of a float32 tensor is the tensor itself: *= then changes the residual.
# https://github.com/GeeeekExplorer/nano-vllm/issues/170
class InferenceRMSNorm(nn.Module):
    """RMS norm that saves memory at inference."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        wide *= (mean_square + self.eps).rsqrt()
        return wide.to(x.dtype) * self.weight


# The running variance holds eps already, and evaluation adds it again.
# https://github.com/chainer/chainer/pull/4505
class KerasBatchNorm(nn.Module):
    """Batch norm with the eps of Keras, for (N, C) and (N, C, ...)."""

    def __init__(self, num_features: int, eps: float = 1e-3, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x."""
        axes = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        if self.training:
            mean = x.mean(axes)
            var = x.var(axes, unbiased=False) + self.eps
            n = x.numel() / x.size(1)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * n / (n - 1), self.momentum)
        else:
            mean = self.running_mean
            var = self.running_var + self.eps
        y = (x - mean.view(shape)) * var.rsqrt().view(shape)
        return y * self.weight.view(shape) + self.bias.view(shape)


# The running statistics keep the graph of every batch: memory grows without end.
# https://github.com/pytorch/pytorch/issues/20275
class MyBatchNorm2d(nn.BatchNorm2d):
    """Batch norm of images written out in Python."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x, (N, C, H, W)."""
        if self.training:
            mean = x.mean([0, 2, 3])
            var = x.var([0, 2, 3], unbiased=False)
            n = x.numel() / x.size(1)
            self.running_mean = (
                self.momentum * mean + (1 - self.momentum) * self.running_mean
            )
            self.running_var = (
                self.momentum * var * n / (n - 1)
                + (1 - self.momentum) * self.running_var
            )
        else:
            mean = self.running_mean
            var = self.running_var
        x = (x - mean[None, :, None, None]) / torch.sqrt(
            var[None, :, None, None] + self.eps
        )
        return x * self.weight[None, :, None, None] + self.bias[None, :, None, None]


# The flag is no buffer: after load_state_dict the first training batch replaces the
# statistics that were loaded.
# https://github.com/bayesiains/nflows/issues/4 (of an ActNorm)
class WarmBatchNorm1d(nn.Module):
    """Batch norm whose running statistics start from the first batch."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.initialized = False
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x, (N, C)."""
        if self.training and not self.initialized:
            with torch.no_grad():
                self.running_mean.copy_(x.mean(0))
                self.running_var.copy_(x.var(0))
            self.initialized = True
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


# A single example is not normalized, not in evaluation either, where it could be.
# https://github.com/dreamquark-ai/tabnet/issues/384 proposes the line,
# https://github.com/ludwig-ai/ludwig/pull/3119 has its like.
class GhostBatchNorm(nn.Module):
    """Batch norm over virtual batches (Hoffer et al., 2017)."""

    def __init__(
        self, input_dim: int, virtual_batch_size: int = 128, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.virtual_batch_size = virtual_batch_size
        self.bn = nn.BatchNorm1d(input_dim, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x, (N, C), in chunks of the batch."""
        chunks = x.chunk(-(-x.shape[0] // self.virtual_batch_size), 0)
        res = [self.bn(x_) if x_.shape[0] > 1 else x_ for x_ in chunks]
        return torch.cat(res, dim=0)


# One network makes the changes of gain and bias: both are the same number.
# https://github.com/ap229997/Conditional-Batch-Norm/issues/3
class ConditionalBatchNorm2d(nn.Module):
    """Batch norm of images with gain and bias from an embedding."""

    def __init__(self, channels: int, emb_size: int, hidden_size: int = 32) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, affine=False)
        self.gammas = nn.Parameter(torch.ones(channels))
        self.betas = nn.Parameter(torch.zeros(channels))
        self.fc = nn.Sequential(
            nn.Linear(emb_size, hidden_size),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_size, channels),
        )

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        """Normalize x, (N, C, H, W), and scale it by emb, (N, E)."""
        delta_gammas = self.fc(emb)
        delta_betas = self.fc(emb)
        gammas = self.gammas + delta_gammas
        betas = self.betas + delta_betas
        return self.bn(x) * gammas[:, :, None, None] + betas[:, :, None, None]


# repeat_interleave instead of repeat: with two examples or more, channels have the
# gain and bias of others.
class FastInstanceNorm2d(nn.Module):
    """Instance norm by the fast kernel of batch norm."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of each image of x, (N, C, H, W)."""
        n, c, h, w = x.shape
        out = F.batch_norm(
            x.reshape(1, n * c, h, w),
            None,
            None,
            self.weight.repeat_interleave(n),
            self.bias.repeat_interleave(n),
            training=True,
            eps=self.eps,
        )
        return out.view(n, c, h, w)


# Times dim**-0.5 instead of by it: outputs are smaller by the factor dim.
# https://github.com/kyegomez/zeta/issues/180
class SimpleRMSNorm(nn.Module):
    """RMS norm by the unit vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = dim**-0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        return F.normalize(x, dim=-1) * self.scale * self.g


# eps is added to what was divided by the maximum: it grows with the square of the
# largest value, and a row of zeros is 0/0.
# https://github.com/apple/coremltools/pull/2822
class OverflowSafeRMSNorm(nn.Module):
    """RMS norm whose squares cannot overflow in half precision."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        x = x / x.abs().amax(dim=-1, keepdim=True)
        ms = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + self.eps) * self.weight


# The view has the groups last: channels i, i + G, i + 2G make a group, not neighbours.
class GroupNorm2d(nn.Module):
    """Group norm (Wu and He, 2018) of images."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(1, num_channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, num_channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize groups of channels of x, (N, C, H, W)."""
        n, c, h, w = x.shape
        g = self.num_groups
        x = x.reshape(n, c // g, g, h, w)
        var, mean = torch.var_mean(x, dim=(1, 3, 4), unbiased=False, keepdim=True)
        x = (x - mean) / torch.sqrt(var + self.eps)
        return x.reshape(n, c, h, w) * self.weight + self.bias


# The way back has the wrong order: height and width are swapped, unseen on squares.
class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of images, as in ConvNeXt."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each pixel of x, (N, C, H, W)."""
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 2, 1)


# The last two arguments are swapped: eps is 0.1, and the statistics hardly move.
class BatchNorm1dWithMask(nn.BatchNorm1d):
    """Batch norm of columns; channels that are pruned give 0."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.register_buffer("keep", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x, (N, C)."""
        out = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.eps,
            self.momentum,
        )
        return out * self.keep


# TensorFlow's 0.99 keeps the past; in torch it throws it away at every batch.
# https://github.com/r9y9/tacotron_pytorch/issues/19
# https://github.com/kazuto1011/deeplab-pytorch/issues/79
class TacotronBatchNorm(nn.Module):
    """Batch norm of (N, C, T) with TensorFlow's default parameters."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, momentum=0.99, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x."""
        return self.bn(x)


# --- 7 layer-normalized LSTMs with a bug ---------------------------------------------

State = tuple[Tensor, Tensor]


class LNLSTMCell(nn.Module):
    """A correct cell: norms of both projections together, and of the cell state."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, state: State) -> State:
        """Make a step from state with x, (N, I)."""
        h, c = state
        gates = self.ln_ih(self.ih(x)) + self.ln_hh(self.hh(h))
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.ln_c(c).tanh(), c


def zeros(x: Tensor, hidden_size: int) -> State:
    """Return the state of zeros for x, (T, N, I)."""
    zero = x.new_zeros(x.size(1), hidden_size)
    return zero, zero


def run_cell(cell: nn.Module, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Run a cell over x, (T, N, I)."""
    outputs = []
    for x_t in x:
        state = cell(x_t, state)
        outputs.append(state[0])
    return torch.stack(outputs), state


class _LSTM(nn.Module):
    """An LSTM of one layer, the base of the variants below."""

    def __init__(self, input_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.i2h = nn.Linear(input_size, 4 * hidden_size)
        self.h2h = nn.Linear(hidden_size, 4 * hidden_size)

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        return self.i2h(x) + self.h2h(h)

    def squash(self, c: Tensor) -> Tensor:
        return c.tanh()

    def drop(self, g: Tensor) -> Tensor:
        return g

    def step(self, x: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = self.gates(x, h).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * self.drop(g.tanh())
        return o.sigmoid() * self.squash(c), c

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if state is None:
            state = zeros(x, self.hidden_size)
        else:
            state = state[0][0], state[1][0]
        out, (h, c) = run_cell(self.step, x, state)  # type: ignore[arg-type]
        return out, (h[None], c[None])


class _LayerNormLSTM(_LSTM):
    """An LSTM with layer norm."""

    def __init__(self, input_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__(input_size, hidden_size, dropout)
        self.ln_i2h = nn.LayerNorm(4 * hidden_size)
        self.ln_h2h = nn.LayerNorm(4 * hidden_size)
        self.ln_cell = nn.LayerNorm(hidden_size)

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        return self.ln_i2h(self.i2h(x)) + self.ln_h2h(self.h2h(h))

    def squash(self, c: Tensor) -> Tensor:
        return self.ln_cell(c).tanh()


# It has the wrong base and so no norm at all: an LSTM with recurrent dropout.
# https://github.com/seba-1511/lstms.pth/issues/3
class LayerNormSemeniutaLSTM(_LSTM):
    """An LSTM with layer norm and the recurrent dropout of Semeniuta et al."""

    def drop(self, g: Tensor) -> Tensor:
        """Drop values of the update g."""
        return F.dropout(g, self.dropout, self.training)


# The outputs of the backward direction stay in reversed order.
# https://github.com/keras-team/keras/issues/1431
# https://github.com/sbillburg/CRNN-with-STN/issues/12
class BiLayerNormLSTM(nn.Module):
    """A bidirectional LSTM of one layer with layer norm."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = 1
        self.bidirectional = True
        self.forward_cell = LNLSTMCell(input_size, hidden_size)
        self.backward_cell = LNLSTMCell(input_size, hidden_size)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I), in both directions."""
        if state is None:
            first = last = zeros(x, self.hidden_size)
        else:
            (h, c) = state
            first, last = (h[0], c[0]), (h[1], c[1])
        out_f, (h_f, c_f) = run_cell(self.forward_cell, x, first)
        out_b, (h_b, c_b) = run_cell(self.backward_cell, x.flip(0), last)
        out = torch.cat([out_f, out_b], dim=-1)
        return out, (torch.stack([h_f, h_b]), torch.stack([c_f, c_b]))


# Without a given state it goes on from the last call, from other examples.
# https://github.com/fastai/fastbook/pull/469 shows a module that keeps its state.
class StatefulLayerNormLSTM(nn.Module):
    """An LSTM of one layer with layer norm."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.cell = LNLSTMCell(input_size, hidden_size)
        self.hidden: State | None = None

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I)."""
        if state is not None:
            self.hidden = (state[0][0], state[1][0])
        elif self.hidden is None or self.hidden[0].size(0) != x.size(1):
            self.hidden = zeros(x, self.hidden_size)
        out, (h, c) = run_cell(self.cell, x, self.hidden)
        self.hidden = (h.detach(), c.detach())
        return out, (h[None], c[None])


# shape[1:] of (T, N, 4H) has the batch in it: examples share their statistics.
class PreprojectedLayerNormLSTM(nn.Module):
    """An LSTM with layer norm that projects all steps of the input at once."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.gain = nn.Parameter(torch.ones(4 * hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I)."""
        if state is None:
            h, c = zeros(x, self.hidden_size)
        else:
            h, c = state[0][0], state[1][0]
        projected = self.ih(x)
        projected = F.layer_norm(projected, projected.shape[1:])
        projected = projected * self.gain + self.bias
        outputs = []
        for gates_x in projected:
            gates = gates_x + self.ln_hh(self.hh(h))
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * self.ln_c(c).tanh()
            outputs.append(h)
        return torch.stack(outputs), (h[None], c[None])


# [cell] * n repeats one object: all layers above the first have the same weights.
# https://github.com/zalandoresearch/pytorch-vq-vae/issues/2 (of residual layers)
class DeepLayerNormLSTM(nn.Module):
    """An LSTM of several layers with layer norm."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 3):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.cells = nn.ModuleList(
            [LNLSTMCell(input_size, hidden_size)]
            + [LNLSTMCell(hidden_size, hidden_size)] * (num_layers - 1)
        )

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I)."""
        last = []
        for layer, cell in enumerate(self.cells):
            if state is None:
                first = zeros(x, self.hidden_size)
            else:
                first = state[0][layer], state[1][layer]
            x, end = run_cell(cell, x, first)
            last.append(end)
        h, c = zip(*last, strict=True)
        return x, (torch.stack(h), torch.stack(c))


# The norm comes after the tanh: outputs are no longer between -1 and 1.
class LateNormLSTM(_LayerNormLSTM):
    """An LSTM with layer norm (Ba et al., 2016)."""

    def squash(self, c: Tensor) -> Tensor:
        """Squash the cell state c."""
        return self.ln_cell(c.tanh())


# The last cell state is returned as normalized: going on from it is not the same.
class TruncatedLayerNormLSTM(nn.Module):
    """An LSTM of one layer with layer norm, for truncated backpropagation."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I)."""
        if state is None:
            h, c = zeros(x, self.hidden_size)
        else:
            h, c = state[0][0], state[1][0]
        outputs = []
        c_n = c
        for x_t in x:
            gates = self.ln_ih(self.ih(x_t)) + self.ln_hh(self.hh(h))
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            c_n = self.ln_c(c)
            h = o.sigmoid() * c_n.tanh()
            outputs.append(h)
        return torch.stack(outputs), (h[None], c_n[None])


# --- 3 models with a bug -------------------------------------------------------------


# Tracked statistics make instance norm a batch norm in evaluation: an image is no
# longer normalized by itself.
# https://github.com/junyanz/pytorch-CycleGAN-and-pix2pix/issues/395
class Generator(nn.Module):
    """A small generator of images, as of CycleGAN."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()

        def norm(c: int) -> nn.Module:
            return nn.InstanceNorm2d(c, affine=False, track_running_stats=True)

        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 7, padding=3),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            norm(2 * channels),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 3, 7, padding=3),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Change the style of x, (N, 3, H, W)."""
        return self.net(x)


# The batch norm has the number of regions, after the error that 36 was expected: it
# normalizes each region over the batch and the features.
# https://github.com/ruotianluo/self-critical.pytorch/issues/44
class RegionCaptioner(nn.Module):
    """Embeds 36 regions of an image, and attends over them."""

    def __init__(self, regions: int = 36, features: int = 64, size: int = 32) -> None:
        super().__init__()
        self.embed = nn.Sequential(
            nn.BatchNorm1d(regions), nn.Linear(features, size), nn.ReLU()
        )
        self.score = nn.Linear(size, 1)
        self.out = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify x, (N, regions, features)."""
        x = self.embed(x)
        weights = self.score(x).softmax(1)
        return self.out((weights * x).sum(1))


# One batch norm stands in all blocks: its running statistics mix theirs.
# https://github.com/dreamquark-ai/tabnet/pull/76
class TabularNet(nn.Module):
    """Residual blocks for tables that share a batch norm."""

    def __init__(self, inputs: int = 12, size: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, size)
        norm = nn.BatchNorm1d(size)
        self.blocks = nn.ModuleList(
            nn.Sequential(norm, nn.ReLU(), nn.Linear(size, size)) for _ in range(blocks)
        )
        self.out = nn.Linear(size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Predict a number for each row of x, (N, inputs)."""
        x = self.first(x)
        for block in self.blocks:
            x = x + 3 * block(x)
        return self.out(x)


# --- 10 correct ones, written unusually ----------------------------------------------


class T5LayerNorm(nn.Module):
    """RMS norm, called layer norm in T5, with its way of casting."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        wide = x.float()
        variance = wide.square().mean(-1, keepdim=True)
        wide = wide / torch.sqrt(variance + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class CumulativeBatchNorm(nn.Module):
    """Batch norm of (N, C) whose statistics are plain averages over batches."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column of x."""
        if not self.training:
            std = torch.sqrt(self.running_var + self.eps)
            return (x - self.running_mean) / std * self.weight + self.bias
        var, mean = torch.var_mean(x, 0, correction=0)
        with torch.no_grad():
            self.num_batches_tracked += 1
            step = 1 / self.num_batches_tracked
            correction = x.size(0) / (x.size(0) - 1)
            self.running_mean += step * (mean - self.running_mean)
            self.running_var += step * (var * correction - self.running_var)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class ChannelsLastGroupNorm(nn.Module):
    """Group norm of (N, H, W, C)."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize groups of channels of x."""
        g = x.unflatten(-1, (self.num_groups, -1))
        var, mean = torch.var_mean(g, (1, 2, 4), correction=0, keepdim=True)
        g = (g - mean) * torch.rsqrt(var + self.eps)
        return g.flatten(-2) * self.weight + self.bias


class DoubleLayerNorm(nn.Module):
    """Layer norm that computes in double precision, by the sum of squares."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of x."""
        d = x.double()
        d = d - d.mean(-1, keepdim=True)
        size = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
        d = d / torch.sqrt(size * size / d.size(-1) + self.eps)
        return (d * self.weight.double() + self.bias.double()).to(x.dtype)


class BatchedInstanceNorm2d(nn.Module):
    """Instance norm by batch norm of one large image."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of each image of x, (N, C, H, W)."""
        n, c, h, w = x.shape
        out = F.batch_norm(
            x.reshape(1, n * c, h, w),
            None,
            None,
            self.weight.repeat(n),
            self.bias.repeat(n),
            training=True,
            eps=self.eps,
        )
        return out.view(n, c, h, w)


class PositiveBatchNorm2d(nn.Module):
    """Batch norm whose gain cannot change its sign: it is the exp of a parameter."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(num_features, affine=False)
        self.log_gain = nn.Parameter(torch.zeros(num_features))
        self.offset = nn.Parameter(torch.zeros(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of x, (N, C, H, W)."""
        gain = self.log_gain.exp()[:, None, None]
        return torch.addcmul(self.offset[:, None, None], gain, self.norm(x))


class AdaLayerNorm(nn.Module):
    """Layer norm with gain and bias from a condition, as in diffusion transformers."""

    def __init__(self, dim: int, cond_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(cond_dim, 2 * dim))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """Normalize x, (N, T, D), and scale it by cond, (N, E)."""
        shift, scale = self.modulation(cond)[:, None].chunk(2, dim=-1)
        return self.norm(x) * (1 + scale) + shift


class SplitLayerNormLSTM(nn.Module):
    """An LSTM with layer norm, whose gates have a matrix each; their norm is joint."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        names = ("input", "forget", "cell", "output")
        self.w = nn.ModuleDict(
            {k: nn.Linear(input_size, hidden_size, bias=False) for k in names}
        )
        self.u = nn.ModuleDict(
            {k: nn.Linear(hidden_size, hidden_size, bias=False) for k in names}
        )
        self.norm_w = nn.LayerNorm(4 * hidden_size)
        self.norm_u = nn.LayerNorm(4 * hidden_size)
        self.norm_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (T, N, I)."""
        if state is None:
            h, c = zeros(x, self.hidden_size)
        else:
            h, c = state[0].squeeze(0), state[1].squeeze(0)
        outputs = torch.empty(0, x.size(1), self.hidden_size, dtype=x.dtype)
        for x_t in x.unbind(0):
            gates = self.norm_w(torch.cat([w(x_t) for w in self.w.values()], -1))
            gates = gates + self.norm_u(torch.cat([u(h) for u in self.u.values()], -1))
            i, f, g, o = gates.split(self.hidden_size, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.norm_c(c))
            outputs = torch.cat([outputs, h.unsqueeze(0)])
        return outputs, (h.unsqueeze(0), c.unsqueeze(0))


class DeepBiLayerNormLSTM(nn.Module):
    """A bidirectional LSTM of two layers with layer norm, batch first."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 2):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bidirectional = True
        self.batch_first = True
        sizes = [input_size] + [2 * hidden_size] * (num_layers - 1)
        self.cells = nn.ModuleList(
            LNLSTMCell(size, hidden_size) for size in sizes for _ in range(2)
        )

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run over x, (N, T, I)."""
        x = x.transpose(0, 1)
        last = []
        for layer in range(self.num_layers):
            outs = []
            for direction in range(2):
                k = 2 * layer + direction
                if state is None:
                    first = zeros(x, self.hidden_size)
                else:
                    first = state[0][k], state[1][k]
                seen = x.flip(0) if direction else x
                out, end = run_cell(self.cells[k], seen, first)
                outs.append(out.flip(0) if direction else out)
                last.append(end)
            x = torch.cat(outs, -1)
        h, c = zip(*last, strict=True)
        return x.transpose(0, 1), (torch.stack(h), torch.stack(c))


class Siamese(nn.Module):
    """Compares two images by one encoder, which sees both in one batch."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the distances of a and b, (N, 1, H, W) each."""
        codes = self.encoder(torch.cat([a, b]))
        first, second = codes.chunk(2)
        return (first - second).square().sum(1)


# --- how each is made and checked ----------------------------------------------------


def images(n: int = 16, channels: int = 3, size: int = 16) -> Tensor:
    """Return images of different brightness and contrast."""
    shape = (n, channels, 1, 1)
    contrast = 0.2 + torch.rand(shape)
    return contrast * torch.randn(n, channels, size, size) + torch.randn(shape)


def table(n: int = 64) -> Tensor:
    """Return rows of 12 columns."""
    return torch.randn(n, 12) * torch.linspace(0.5, 2, 12)


def regions(n: int = 32) -> Tensor:
    """Return 36 regions with 64 features of different size."""
    return torch.rand(n, 36, 64).square() * torch.linspace(0.5, 3, 64)


def pairs(n: int = 32) -> tuple[Tensor, Tensor]:
    """Return two batches of images of one kind."""
    return torch.randn(n, 1, 12, 12), torch.randn(n, 1, 12, 12)


def trained(model: nn.Module, batch: Callable[[], Any]) -> nn.Module:
    """Let the running statistics settle on batches, as after a training."""
    model.train()
    with torch.no_grad():
        for _ in range(200):
            x = batch()
            if isinstance(x, tuple):
                model(*x)
            else:
                model(x)
    return model


@dataclass
class Case:
    """A layer, how it is made, and how the check or the audit is called."""

    name: str
    make: Callable[[], nn.Module]
    arguments: dict[str, Any] = field(default_factory=dict)
    batch: Callable[[], Any] | None = None  # for an audit


LSTM = {"kind": "lstm"}

BUGS = [
    Case("bert layer norm", lambda: BertLayerNorm(32)),
    Case("upcast rms norm", lambda: UpcastRMSNorm(32)),
    Case("inference rms norm", lambda: InferenceRMSNorm(32)),
    Case("keras batch norm", lambda: KerasBatchNorm(6)),
    Case("my batch norm", lambda: MyBatchNorm2d(6)),
    Case("warm batch norm", lambda: WarmBatchNorm1d(6)),
    Case("ghost batch norm", lambda: GhostBatchNorm(6)),
    Case("conditional batch norm", lambda: ConditionalBatchNorm2d(6, 10)),
    Case("fast instance norm", lambda: FastInstanceNorm2d(6), {"kind": "instance"}),
    Case("simple rms norm", lambda: SimpleRMSNorm(32), {"kind": "rms"}),
    Case("overflow-safe rms norm", lambda: OverflowSafeRMSNorm(32)),
    Case("group norm of images", lambda: GroupNorm2d(3, 12)),
    Case("layer norm of images", lambda: LayerNorm2d(6), {"shape": (4, 6, 8, 8)}),
    Case("batch norm with mask", lambda: BatchNorm1dWithMask(6)),
    Case("tacotron batch norm", lambda: TacotronBatchNorm(6)),
    Case("semeniuta lstm", lambda: LayerNormSemeniutaLSTM(5, 8, 0.25), LSTM),
    Case("bidirectional lstm", lambda: BiLayerNormLSTM(5, 8), LSTM),
    Case("stateful lstm", lambda: StatefulLayerNormLSTM(5, 8), LSTM),
    Case("preprojected lstm", lambda: PreprojectedLayerNormLSTM(5, 8), LSTM),
    Case("deep lstm", lambda: DeepLayerNormLSTM(5, 8), LSTM),
    Case("late norm lstm", lambda: LateNormLSTM(5, 8), LSTM),
    Case("truncated lstm", lambda: TruncatedLayerNormLSTM(5, 8), LSTM),
    Case("generator", lambda: trained(Generator(), images), batch=images),
    Case("captioner", lambda: trained(RegionCaptioner(), regions), batch=regions),
    Case("tabular net", lambda: trained(TabularNet(), table), batch=table),
]

CONTROLS = [
    Case("t5 layer norm", lambda: T5LayerNorm(32), {"kind": "rms"}),
    Case("cumulative batch norm", lambda: CumulativeBatchNorm(6)),
    Case(
        "channels-last group norm",
        lambda: ChannelsLastGroupNorm(3, 12),
        {"shape": (4, 5, 7, 12), "channel_axis": -1},
    ),
    Case("double layer norm", lambda: DoubleLayerNorm(32)),
    Case("batched instance norm", lambda: BatchedInstanceNorm2d(6)),
    Case("positive batch norm", lambda: PositiveBatchNorm2d(6)),
    Case("adaptive layer norm", lambda: AdaLayerNorm(32, 10)),
    Case("split lstm", lambda: SplitLayerNormLSTM(5, 8), LSTM),
    Case("deep bidirectional lstm", lambda: DeepBiLayerNormLSTM(5, 8), LSTM),
    Case("siamese", lambda: trained(Siamese(), pairs), batch=pairs),
]
