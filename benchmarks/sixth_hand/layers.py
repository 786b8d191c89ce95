"""Norm layers and normalized LSTMs with one bug each, and correct unusual ones.

A sixth set, of layers alone: written without a look at the checks or at the layers of
the other hands. Each bug was told in public; its address stands in front of it.
``expected.txt`` says what a right report must say.
"""

# ruff: noqa: D102 - what a forward does is said by its class
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

States = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """One layer: its name, how to make it, and what a caller has to know."""

    name: str
    make: Callable[[], nn.Module]
    batch: None = None
    arguments: dict = field(default_factory=dict)


# --------------------------------------------------------------------------
# Norm layers
# --------------------------------------------------------------------------


# https://github.com/harvardnlp/annotated-transformer/pull/119
class SublayerNorm(nn.Module):
    """Layer norm over the last axis, as in the sublayers of a transformer."""

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = torch.sqrt(x.var(-1, keepdim=True) + self.eps)
        return self.a_2 * (x - mean) / std + self.b_2


# https://github.com/tensorflow/addons/issues/751
class ChannelsLastGroupNorm(nn.Module):
    """Group norm of inputs (batch, height, width, channels)."""

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups = groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        grouped = x.reshape(n, self.groups, h, w, c // self.groups)
        var, mean = torch.var_mean(grouped, dim=(2, 3, 4), keepdim=True, correction=0)
        normed = (grouped - mean) * torch.rsqrt(var + self.eps)
        return normed.reshape(n, h, w, c) * self.weight + self.bias


# https://github.com/Oneflow-Inc/oneflow/pull/4848
class DetectionGroupNorm(nn.Module):
    """Group norm of inputs (batch, channels, height, width)."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError("num_channels must be divisible by num_groups")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(1, num_groups, 1))
        self.beta = nn.Parameter(torch.zeros(1, num_groups, 1))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(x.size(0), self.num_groups, -1)
        mean = flat.mean(dim=2, keepdim=True)
        var = flat.var(dim=2, keepdim=True, unbiased=False)
        flat = (flat - mean) / torch.sqrt(var + self.eps)
        return (flat * self.gamma + self.beta).reshape(x.shape)


# https://github.com/r9y9/tacotron_pytorch/issues/19
class ConvBankBatchNorm(nn.BatchNorm1d):
    """Batch norm after the 1d convolutions of a text to speech encoder."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.99
    ) -> None:
        # following tensorflow's default parameters
        super().__init__(num_features, eps=eps, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
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


# https://github.com/tenstorrent/tt-metal/issues/55438
class CenteredBatchNorm2d(nn.Module):
    """Batch norm 2d from its parts: mean, centered input, mean of squares."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.mean(dim=(0, 2, 3))
            centered = x - mean[:, None, None]
            var = centered.square().mean(dim=(0, 2, 3))
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var, self.momentum)
        else:
            centered = x - self.running_mean[:, None, None]
            var = self.running_var
        scale = self.weight * torch.rsqrt(var + self.eps)
        return centered * scale[:, None, None] + self.bias[:, None, None]


# https://github.com/GeeeekExplorer/nano-vllm/issues/170
class DecodingRMSNorm(nn.Module):
    """RMS norm that computes in float32 at least and saves memory while decoding."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        orig_dtype = x.dtype
        x = x.to(torch.promote_types(orig_dtype, torch.float32))
        var = x.pow(2).mean(dim=-1, keepdim=True)
        if torch.is_grad_enabled():
            return (x * torch.rsqrt(var + self.eps) * self.weight).to(orig_dtype)
        x.mul_(torch.rsqrt(var + self.eps))
        x.mul_(self.weight)
        return x.to(orig_dtype)


# https://github.com/pytorch/pytorch/pull/134106
class HalfRMSNorm(nn.Module):
    """RMS norm that returns the type of its input."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        rrms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * rrms * self.weight).type_as(x)


# https://github.com/keras-team/keras-contrib/pull/287
class BatchRenorm(nn.Module):
    """Batch renormalization of inputs (batch, features)."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-3,
        momentum: float = 0.01,
        r_max: float = 3.0,
        d_max: float = 5.0,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.r_max = r_max
        self.d_max = d_max
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        running_sigma = torch.sqrt(self.running_var + self.eps)
        if not self.training:
            normed = (x - self.running_mean) / running_sigma
            return normed * self.weight + self.bias
        mean = x.mean(0)
        sigma = torch.sqrt(x.var(0, unbiased=False) + self.eps)
        with torch.no_grad():
            r = (sigma / running_sigma).clamp(1 / self.r_max, self.r_max)
            d = (mean - self.running_mean) / running_sigma
            d = d.clamp(-self.d_max, self.d_max)
            self.running_mean += self.momentum * (mean - self.running_mean)
            self.running_var += self.momentum * (sigma - self.running_var)
        normed = (x - mean) / sigma * r + d
        return normed * self.weight + self.bias


# https://github.com/gupta-abhay/pytorch-frn/issues/6
class FilterResponseNorm(nn.Module):
    """Filter response norm with its thresholded linear unit."""

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        super().__init__()
        shape = (1, num_features, 1, 1)
        self.eps = eps
        self.register_buffer("gamma", torch.ones(shape))
        self.register_buffer("beta", torch.zeros(shape))
        self.register_buffer("tau", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        nu2 = torch.mean(x**2, dim=(2, 3), keepdim=True)
        x = x * torch.rsqrt(nu2 + abs(self.eps))
        return torch.max(self.gamma * x + self.beta, self.tau)


# https://github.com/facebookresearch/ConvNeXt-V2/issues/86
class FlatGRN(nn.Module):
    """Global response norm (batch, height, width, channels) on flattened points."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, dim))
        self.beta = nn.Parameter(torch.zeros(1, dim))

    def forward(self, x: Tensor) -> Tensor:
        points = x.flatten(0, 2)
        gx = torch.norm(points, p=2, dim=0, keepdim=True)
        nx = gx / (gx.mean(dim=-1, keepdim=True) + 1e-6)
        return (self.gamma * (points * nx) + self.beta + points).reshape(x.shape)


# https://github.com/lucidrains/lightweight-gan/issues/17
class PixelNorm(nn.Module):
    """Pixel norm of feature maps (batch, channels, height, width)."""

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)


# https://github.com/huggingface/blog/pull/2484
class WeightStandardizedConv2d(nn.Conv2d):
    """Convolution with standardized weights."""

    def forward(self, x: Tensor) -> Tensor:
        eps = 1e-5 if x.dtype == torch.float32 else 1e-3
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        var = self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) / (var + eps).rsqrt()
        return F.conv2d(
            x,
            weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )


# https://github.com/pytorch/pytorch/pull/18233
class _LayerNormFunction(torch.autograd.Function):
    """Layer norm over the last axis with a backward pass of its own."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        rstd = torch.rsqrt(var + eps)
        normed = (x - mean) * rstd
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return normed * weight + bias

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        x, weight = ctx.saved_tensors
        var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        rstd = torch.rsqrt(var + ctx.eps)
        normed = (x - mean) * rstd
        grad_normed = grad_output * weight
        grad_x = rstd * (
            grad_normed
            - grad_normed.mean(-1, keepdim=True)
            - normed * (grad_normed * normed).mean(-1, keepdim=True)
        )
        grad_weight = (grad_output * weight).sum_to_size(weight.shape)
        grad_bias = grad_output.sum_to_size(weight.shape)
        return grad_x, grad_weight, grad_bias, None


class FusedLayerNorm(nn.Module):
    """Layer norm that keeps only its input and gain for its backward pass."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return _LayerNormFunction.apply(x, self.weight, self.bias, self.eps)


# https://github.com/keras-team/keras/issues/15790
class GhostBatchNorm1d(nn.Module):
    """Batch norm over virtual batches; a batch holds a whole number of them."""

    def __init__(
        self,
        num_features: int,
        virtual_batch_size: int = 4,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.virtual_batch_size = virtual_batch_size
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        size = self.virtual_batch_size
        ghosts = x.reshape(x.shape[0] // size, size, x.shape[1])
        if self.training:
            var, mean = torch.var_mean(ghosts, dim=1, keepdim=True, correction=0)
            with torch.no_grad():
                unbiased = var * size / (size - 1)
                self.running_mean.lerp_(mean.mean(dim=(0, 1)), self.momentum)
                self.running_var.lerp_(unbiased.mean(dim=(0, 1)), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        normed = (ghosts - mean) * torch.rsqrt(var + self.eps)
        return (normed * self.weight + self.bias).reshape(x.shape)


# https://github.com/junyanz/pytorch-CycleGAN-and-pix2pix/issues/395
class StyleInstanceNorm2d(nn.Module):
    """Instance norm 2d of a style transfer network."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )


# https://github.com/d2l-ai/d2l-zh/pull/1265
class TextbookBatchNorm(nn.Module):
    """Batch norm from scratch for two or four axes."""

    def __init__(self, num_features: int, num_dims: int) -> None:
        super().__init__()
        shape = (1, num_features) if num_dims == 2 else (1, num_features, 1, 1)
        self.gamma = nn.Parameter(torch.ones(shape))
        self.beta = nn.Parameter(torch.zeros(shape))
        self.moving_mean = torch.zeros(shape)
        self.moving_var = torch.ones(shape)

    def forward(self, x: Tensor) -> Tensor:
        if self.moving_mean.device != x.device:
            self.moving_mean = self.moving_mean.to(x.device)
            self.moving_var = self.moving_var.to(x.device)
        if self.training:
            dims = [d for d in range(x.dim()) if d != 1]
            mean = x.mean(dim=dims, keepdim=True)
            var = x.var(dim=dims, keepdim=True, unbiased=False)
            n = x.numel() / x.size(1)
            with torch.no_grad():
                self.moving_mean = 0.9 * self.moving_mean + 0.1 * mean
                self.moving_var = 0.9 * self.moving_var + 0.1 * var * n / (n - 1)
        else:
            mean, var = self.moving_mean, self.moving_var
        x_hat = (x - mean) / torch.sqrt(var + 1e-5)
        return self.gamma * x_hat + self.beta


# https://github.com/tenstorrent/tt-metal/issues/45968
class OnePassBatchNorm3d(nn.Module):
    """Batch norm 3d that reads its input once for both moments."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            count = x.numel() // x.size(1)
            mean = x.sum(dim=(0, 2, 3, 4)) / count
            var = (x * x).sum(dim=(0, 2, 3, 4)) / count - mean * mean
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * count / (count - 1), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        view = (1, -1, 1, 1, 1)
        normed = (x - mean.view(view)) * torch.rsqrt(var + self.eps).view(view)
        return normed * self.weight.view(view) + self.bias.view(view)


# --------------------------------------------------------------------------
# Recurrent layers
# --------------------------------------------------------------------------


class LayerNormCell(nn.Module):
    """LSTM cell with norms on both projections and on the cell for the output."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        bound = 1 / math.sqrt(hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        nn.init.uniform_(self.weight_ih, -bound, bound)
        nn.init.uniform_(self.weight_hh, -bound, bound)
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_ho = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, states: States | None = None) -> States:
        if states is None:
            zeros = x.new_zeros(x.size(0), self.hidden_size)
            states = (zeros, zeros)
        h, c = states
        gates = self.ln_ih(F.linear(x, self.weight_ih))
        gates = gates + self.ln_hh(F.linear(h, self.weight_hh))
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * self.ln_ho(c).tanh()
        return h, c


# https://github.com/seba-1511/lstms.pth/issues/3
class DropoutLayerNormCell(LayerNormCell):
    """Layer-normalized LSTM cell with dropout on its new hidden state."""

    def __init__(self, input_size: int, hidden_size: int, dropout: float = 0.0):
        super().__init__(input_size, hidden_size)
        self.dropout = dropout
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))

    def forward(self, x: Tensor, states: States | None = None) -> States:
        if states is None:
            zeros = x.new_zeros(x.size(0), self.hidden_size)
            states = (zeros, zeros)
        h, c = states
        gates = F.linear(x, self.weight_ih, self.bias) + F.linear(h, self.weight_hh)
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return F.dropout(h, self.dropout, self.training), c


# https://github.com/sbillburg/CRNN-with-STN/issues/12
class BidirectionalLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM of two layers and both directions, time first."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 2) -> None:
        super().__init__()
        sizes = [input_size] + [2 * hidden_size] * (num_layers - 1)
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.forwards = nn.ModuleList(LayerNormCell(s, hidden_size) for s in sizes)
        self.backwards = nn.ModuleList(LayerNormCell(s, hidden_size) for s in sizes)

    def _run(self, cell: nn.Module, x: Tensor, h: Tensor, c: Tensor):
        outputs = []
        for step in x.unbind(0):
            h, c = cell(step, (h, c))
            outputs.append(h)
        return torch.stack(outputs), h, c

    def forward(self, x: Tensor, states: States | None = None):
        if states is None:
            zeros = x.new_zeros(2 * self.num_layers, x.size(1), self.hidden_size)
            states = (zeros, zeros)
        h0, c0 = states
        hs, cs = [], []
        pairs = zip(self.forwards, self.backwards, strict=True)
        for k, (ahead, back) in enumerate(pairs):
            out_f, h_f, c_f = self._run(ahead, x, h0[2 * k], c0[2 * k])
            out_b, h_b, c_b = self._run(back, x.flip(0), h0[2 * k + 1], c0[2 * k + 1])
            x = torch.cat([out_f, out_b], dim=-1)
            hs += [h_f, h_b]
            cs += [c_f, c_b]
        return x, (torch.stack(hs), torch.stack(cs))


# https://github.com/macanv/BERT-BiLSTM-CRF-NER/issues/252
class StackedLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM of several layers as wide as its input, batch first."""

    batch_first = True

    def __init__(self, hidden_size: int, num_layers: int = 2) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        cell = LayerNormCell(hidden_size, hidden_size)
        self.cells = nn.ModuleList([cell] * num_layers)

    def forward(self, x: Tensor, states: States | None = None):
        if states is None:
            zeros = x.new_zeros(self.num_layers, x.size(0), self.hidden_size)
            states = (zeros, zeros)
        hs, cs = list(states[0]), list(states[1])
        outputs = []
        for t in range(x.size(1)):
            step = x[:, t]
            for k, cell in enumerate(self.cells):
                hs[k], cs[k] = cell(step, (hs[k], cs[k]))
                step = hs[k]
            outputs.append(step)
        return torch.stack(outputs, dim=1), (torch.stack(hs), torch.stack(cs))


# https://github.com/pclucas14/GansFallingShort/pull/2
class DecoderLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM of several layers that starts from given states."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 2) -> None:
        super().__init__()
        sizes = [input_size] + [hidden_size] * (num_layers - 1)
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.cells = nn.ModuleList(LayerNormCell(s, hidden_size) for s in sizes)

    def forward(self, x: Tensor, states: States | None = None):
        if states is None:
            zeros = x.new_zeros(self.num_layers, x.size(1), self.hidden_size)
            states = (zeros, zeros)
        h0, c0 = states
        hs, cs = [], []
        for cell in self.cells:
            h, c = h0[0], c0[0]
            outputs = []
            for step in x.unbind(0):
                h, c = cell(step, (h, c))
                outputs.append(h)
            x = torch.stack(outputs)
            hs.append(h)
            cs.append(c)
        return x, (torch.stack(hs), torch.stack(cs))


# https://github.com/ddbourgin/numpy-ml/issues/42
class GateByGateCell(nn.Module):
    """LSTM cell written gate by gate, each with weights, a norm and a bias."""

    def __init__(self, input_size: int, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.eps = eps
        for gate in "fico":
            linear = nn.Linear(input_size + hidden_size, hidden_size, bias=False)
            self.add_module(f"W{gate}", linear)
            self.register_parameter(f"g{gate}", nn.Parameter(torch.ones(hidden_size)))
            self.register_parameter(f"b{gate}", nn.Parameter(torch.zeros(hidden_size)))

    def _norm(self, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (self.hidden_size,), gain, bias, self.eps)

    def forward(self, x: Tensor, states: States | None = None) -> States:
        if states is None:
            zeros = x.new_zeros(x.size(0), self.hidden_size)
            states = (zeros, zeros)
        h, c = states
        z = torch.cat([x, h], dim=1)
        o = torch.sigmoid(self._norm(self.Wo(z), self.go, self.bo))
        f = torch.sigmoid(self._norm(self.Wf(z), self.gf, self.bo))
        i = torch.sigmoid(self._norm(self.Wi(z), self.gi, self.bi))
        g = torch.tanh(self._norm(self.Wc(z), self.gc, self.bc))
        c = f * c + i * g
        return o * torch.tanh(c), c


# https://github.com/lmnt-com/haste/issues/1
class ScriptedLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM of one layer in the style of scripted cells."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.randn(4 * hidden_size, input_size) / 4)
        self.weight_hh = nn.Parameter(torch.randn(4 * hidden_size, hidden_size) / 4)
        self.layernorm_i = nn.LayerNorm(4 * hidden_size)
        self.layernorm_h = nn.LayerNorm(4 * hidden_size)
        self.layernorm_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, states: States | None = None):
        if states is None:
            zeros = x.new_zeros(1, x.size(1), self.hidden_size)
            states = (zeros, zeros)
        hx, cx = states[0][0], states[1][0]
        outputs = []
        for step in x.unbind(0):
            igates = self.layernorm_i(torch.mm(step, self.weight_ih.t()))
            hgates = self.layernorm_h(torch.mm(hx, self.weight_hh.t()))
            ingate, forgetgate, cellgate, outgate = (igates + hgates).chunk(4, 1)
            ingate = torch.sigmoid(ingate)
            forgetgate = torch.sigmoid(forgetgate)
            cellgate = torch.tanh(cellgate)
            outgate = torch.sigmoid(outgate)
            cx = self.layernorm_c((forgetgate * cx) + (ingate * cellgate))
            hx = outgate * torch.tanh(cx)
            outputs.append(hx)
        return torch.stack(outputs), (hx.unsqueeze(0), cx.unsqueeze(0))


# https://github.com/jihunchoi/recurrent-batch-normalization-pytorch/issues/1
class BatchNormLSTM(nn.Module):
    """LSTM with batch norm on both projections and on the cell for the output."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(input_size, 4 * hidden_size))
        self.weight_hh = nn.Parameter(torch.eye(hidden_size).repeat(1, 4))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        nn.init.orthogonal_(self.weight_ih)
        self.bn_ih = nn.BatchNorm1d(4 * hidden_size)
        self.bn_hh = nn.BatchNorm1d(4 * hidden_size)
        self.bn_c = nn.BatchNorm1d(hidden_size)
        for norm in (self.bn_ih, self.bn_hh, self.bn_c):
            nn.init.constant_(norm.weight, 0.1)

    def forward(self, x: Tensor, states: States | None = None):
        if states is None:
            zeros = x.new_zeros(1, x.size(1), self.hidden_size)
            states = (zeros, zeros)
        h, c = states[0][0], states[1][0]
        outputs = []
        for step in x.unbind(0):
            wi = self.bn_ih(torch.mm(step, self.weight_ih))
            wh = self.bn_hh(torch.mm(h, self.weight_hh))
            f, i, o, g = (wi + wh + self.bias).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.bn_c(c))
            outputs.append(h)
        return torch.stack(outputs), (h.unsqueeze(0), c.unsqueeze(0))


# https://github.com/ray-project/ray/issues/21392
class PaddedLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM of one layer for padded sequences with their lengths."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.cell = LayerNormCell(input_size, hidden_size)

    def forward(
        self,
        x: Tensor,
        states: States | None = None,
        lengths: Tensor | None = None,
    ):
        if states is None:
            zeros = x.new_zeros(1, x.size(1), self.hidden_size)
            states = (zeros, zeros)
        h, c = states[0][0], states[1][0]
        outputs = []
        for step in x.unbind(0):
            h, c = self.cell(step, (h, c))
            outputs.append(h)
        output = torch.stack(outputs)
        if lengths is not None:
            time = torch.arange(x.size(0), device=x.device)
            mask = time[:, None] < lengths.to(x.device)[None, :]
            output = output * mask.unsqueeze(-1)
        return output, (h.unsqueeze(0), c.unsqueeze(0))


def lengths_of(x: Tensor) -> Tensor:
    """Lengths of a padded batch (time, batch, features): full, one less, and so on."""
    return x.size(0) - torch.arange(x.size(1)) % x.size(0)


# --------------------------------------------------------------------------
# Controls
# --------------------------------------------------------------------------


class BatchedGroupNorm(nn.Module):
    """Group norm as a batch norm of one sample with batch times groups channels."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        folded = x.reshape(1, x.size(0) * self.num_groups, -1)
        normed = F.batch_norm(folded, None, None, training=True, eps=self.eps)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return torch.addcmul(
            self.bias.view(shape), normed.reshape(x.shape), self.weight.view(shape)
        )


class FoldedBatchNorm2d(nn.Module):
    """Batch norm 2d with its gain folded into one scale a channel."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if self.training:
            rows = x.transpose(0, 1).flatten(1)
            var, mean = torch.var_mean(rows, dim=1, correction=0)
            bessel = rows.size(1) / (rows.size(1) - 1)
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * bessel, self.momentum)
        scale = self.weight * (var + self.eps).rsqrt()
        scaled = torch.einsum("nchw,c->nchw", x - mean[:, None, None], scale)
        return scaled + self.bias[:, None, None]


def _normed_rows(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = x.reshape(-1, x.size(-1))
    centered = rows - rows.mean(1, keepdim=True)
    rstd = (centered.square().mean(1, keepdim=True) + eps).rsqrt()
    return centered * rstd, rstd


class _RightLayerNormFunction(torch.autograd.Function):
    """Layer norm over the last axis, both passes by hand, on rows."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        normed, _ = _normed_rows(x, eps)
        return (normed * weight + bias).reshape(x.shape)

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        x, weight = ctx.saved_tensors
        normed, rstd = _normed_rows(x, ctx.eps)
        grad = grad_output.reshape(normed.shape)
        grad_normed = grad * weight
        n = normed.size(1)
        total = grad_normed.sum(1, keepdim=True)
        inner = (grad_normed * normed).sum(1, keepdim=True)
        grad_x = (n * grad_normed - total - normed * inner) * rstd / n
        return grad_x.reshape(x.shape), (grad * normed).sum(0), grad.sum(0), None


class HandLayerNorm(nn.Module):
    """Layer norm over the last axis with both passes by hand."""

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return _RightLayerNormFunction.apply(x, self.weight, self.bias, self.eps)


class BatchNormedWeightConv2d(nn.Conv2d):
    """Convolution whose weights are standardized by a batch norm call."""

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            training=True,
            momentum=0.0,
            eps=1e-5,
        ).reshape_as(self.weight)
        return F.conv2d(
            x,
            weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )


class HoistedLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM, two layers, both directions, projections hoisted."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 2) -> None:
        super().__init__()
        sizes = [input_size] + [2 * hidden_size] * (num_layers - 1)
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.cells = nn.ModuleList(
            LayerNormCell(size, hidden_size) for size in sizes for _ in range(2)
        )

    def _run(self, cell: LayerNormCell, x: Tensor, h: Tensor, c: Tensor, back: bool):
        projected = cell.ln_ih(F.linear(x, cell.weight_ih))
        outputs: list[Tensor] = [h] * x.size(0)
        order = range(x.size(0))
        for t in reversed(order) if back else order:
            gates = projected[t] + cell.ln_hh(F.linear(h, cell.weight_hh))
            i, f, g, o = gates.unflatten(1, (4, -1)).unbind(1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = o.sigmoid() * cell.ln_ho(c).tanh()
            outputs[t] = h
        return torch.stack(outputs), h, c

    def forward(self, x: Tensor, states: States | None = None):
        if states is None:
            zeros = x.new_zeros(2 * self.num_layers, x.size(1), self.hidden_size)
            states = (zeros, zeros)
        hs, cs = [], []
        for layer in range(self.num_layers):
            both = []
            for k in (2 * layer, 2 * layer + 1):
                h, c = states[0][k], states[1][k]
                out, h, c = self._run(self.cells[k], x, h, c, back=k % 2 == 1)
                both.append(out)
                hs.append(h)
                cs.append(c)
            x = torch.cat(both, dim=2)
        return x, (torch.stack(hs), torch.stack(cs))


class EinsumLayerNormCell(nn.Module):
    """Layer-normalized LSTM cell with one axis for its gates: forget first."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        bound = hidden_size**-0.5
        w_x = torch.empty(4, hidden_size, input_size).uniform_(-bound, bound)
        w_h = torch.empty(4, hidden_size, hidden_size).uniform_(-bound, bound)
        self.w_x = nn.Parameter(w_x)
        self.w_h = nn.Parameter(w_h)
        self.norm_x = nn.LayerNorm([4, hidden_size])
        self.norm_h = nn.LayerNorm([4, hidden_size])
        self.norm_c = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, states: States | None = None) -> States:
        if states is None:
            h = c = torch.zeros_like(x[:, :1]).expand(-1, self.hidden_size)
        else:
            h, c = states
        from_x = self.norm_x(torch.einsum("bi,khi->bkh", x, self.w_x))
        from_h = self.norm_h(torch.einsum("bj,khj->bkh", h, self.w_h))
        f, o, g, i = (from_x + from_h).unbind(dim=1)
        c = torch.lerp(c.new_zeros(()), c, f.sigmoid()) + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


BUGS = (
    Case("sublayer norm", lambda: SublayerNorm(6), None, {"shape": (4, 5, 6)}),
    Case(
        "channels-last group norm",
        lambda: ChannelsLastGroupNorm(2, 6),
        None,
        {"shape": (3, 4, 5, 6), "channel_axis": -1},
    ),
    Case(
        "detection group norm",
        lambda: DetectionGroupNorm(2, 6),
        None,
        {"shape": (3, 6, 4, 5)},
    ),
    Case(
        "convolution bank batch norm",
        lambda: ConvBankBatchNorm(5),
        None,
        {"shape": (8, 5, 7)},
    ),
    Case(
        "centered batch norm 2d",
        lambda: CenteredBatchNorm2d(4),
        None,
        {"shape": (4, 4, 3, 3)},
    ),
    Case("decoding RMS norm", lambda: DecodingRMSNorm(8), None, {"shape": (3, 5, 8)}),
    Case("half RMS norm", lambda: HalfRMSNorm(8), None, {"shape": (3, 5, 8)}),
    Case("batch renorm", lambda: BatchRenorm(5), None, {"shape": (16, 5)}),
    Case(
        "filter response norm",
        lambda: FilterResponseNorm(4),
        None,
        {"shape": (3, 4, 5, 5)},
    ),
    Case(
        "flat global response norm",
        lambda: FlatGRN(6),
        None,
        {"shape": (3, 4, 5, 6), "channel_axis": -1},
    ),
    Case("pixel norm", lambda: PixelNorm(), None, {"shape": (3, 6, 4, 5)}),
    Case(
        "weight-standardized convolution",
        lambda: WeightStandardizedConv2d(4, 6, 3, padding=1),
        None,
        {"shape": (3, 4, 6, 6)},
    ),
    Case("fused layer norm", lambda: FusedLayerNorm(6), None, {"shape": (4, 5, 6)}),
    Case("ghost batch norm", lambda: GhostBatchNorm1d(5), None, {"shape": (8, 5)}),
    Case(
        "style instance norm",
        lambda: StyleInstanceNorm2d(4),
        None,
        {"shape": (3, 4, 5, 5)},
    ),
    Case(
        "textbook batch norm",
        lambda: TextbookBatchNorm(4, 4),
        None,
        {"shape": (4, 4, 5, 5)},
    ),
    Case(
        "one-pass batch norm 3d",
        lambda: OnePassBatchNorm3d(4),
        None,
        {"shape": (3, 4, 3, 4, 4)},
    ),
    Case(
        "layer-normalized cell with dropout",
        lambda: DropoutLayerNormCell(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
    Case(
        "bidirectional layer-normalized LSTM",
        lambda: BidirectionalLayerNormLSTM(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
    Case(
        "stacked layer-normalized LSTM",
        lambda: StackedLayerNormLSTM(6),
        None,
        {"shape": (5, 4, 6)},
    ),
    Case(
        "decoder layer-normalized LSTM",
        lambda: DecoderLayerNormLSTM(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
    Case(
        "gate-by-gate cell",
        lambda: GateByGateCell(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
    Case(
        "scripted layer-normalized LSTM",
        lambda: ScriptedLayerNormLSTM(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
    Case(
        "batch-normalized LSTM",
        lambda: BatchNormLSTM(5, 7),
        None,
        {"shape": (6, 8, 5)},
    ),
    Case(
        "padded layer-normalized LSTM",
        lambda: PaddedLayerNormLSTM(5, 7),
        None,
        {
            "shape": (6, 4, 5),
            "call": lambda layer, x: layer(x, None, lengths_of(x)),
        },
    ),
)

CONTROLS = (
    Case(
        "batched group norm",
        lambda: BatchedGroupNorm(2, 6),
        None,
        {"shape": (3, 6, 4, 5)},
    ),
    Case(
        "folded batch norm 2d",
        lambda: FoldedBatchNorm2d(4),
        None,
        {"shape": (4, 4, 3, 3)},
    ),
    Case("hand layer norm", lambda: HandLayerNorm(6), None, {"shape": (4, 5, 6)}),
    Case(
        "batch-normed weight convolution",
        lambda: BatchNormedWeightConv2d(4, 6, 3, padding=1),
        None,
        {"shape": (3, 4, 6, 6)},
    ),
    Case(
        "hoisted layer-normalized LSTM",
        lambda: HoistedLayerNormLSTM(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
    Case(
        "einsum layer-normalized cell",
        lambda: EinsumLayerNormCell(5, 7),
        None,
        {"shape": (6, 4, 5)},
    ),
)
