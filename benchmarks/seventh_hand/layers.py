"""Norm layers and normalized recurrent layers with one bug each, and correct ones.

A seventh set, of layers alone: written without a look at the checks or at the layers of
the other hands. Each bug was told in public; its address stands in front of it.
``expected.txt`` says what a right report must say. Of 17 norm layers of a first author
six had slips of the sixth set, and were exchanged for those of another author.
"""

# ruff: noqa: C408, D101, D102, D103, E501 - as it was written
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """One layer: its name, how to make it, and what a caller has to know."""

    name: str
    make: Callable[[], nn.Module]
    batch: None = None
    arguments: dict = field(default_factory=dict)


def _upcast(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _track(buffer, value, factor):
    with torch.no_grad():
        buffer.copy_(torch.lerp(buffer.to(value.dtype), value.detach(), factor))


def _need_two(count):
    if count < 2:
        raise ValueError("Expected more than 1 value per channel when training")


# https://github.com/d2l-ai/d2l-en/blob/master/chapter_convolutional-modern/batch-norm.md
# (copied in github.com/SimonTengnn/ml, chapter7/7.5_batch_norm.py, and many others)
class BatchNorm1d(nn.Module):
    """Batch normalization of (N, C) or (N, C, L) inputs, as torch.nn.BatchNorm1d."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, input):
        x = _upcast(input)
        dims = (0,) if x.dim() == 2 else (0, 2)
        shape = (1, -1) if x.dim() == 2 else (1, -1, 1)
        if not torch.is_grad_enabled():
            mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        else:
            n = x.numel() // x.shape[1]
            _need_two(n)
            mean = x.mean(dims)
            var = x.var(dims, unbiased=False)
            _track(self.running_mean, mean, self.momentum)
            _track(self.running_var, var * n / (n - 1), self.momentum)
            self.num_batches_tracked += 1
        x = (x - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        x = x * self.weight.to(x.dtype).view(shape) + self.bias.to(x.dtype).view(shape)
        return x.to(input.dtype)


# https://github.com/keras-team/keras/pull/19102
class BatchNorm2d(nn.Module):
    """Batch normalization of (N, C, H, W) inputs, as torch.nn.BatchNorm2d."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def moments(self, x):
        mean = x.mean((0, 2, 3)).detach()
        var = (x - mean[:, None, None]).square().mean((0, 2, 3))
        return mean, var

    def forward(self, input):
        x = _upcast(input)
        if self.training:
            n = x.numel() // x.shape[1]
            _need_two(n)
            mean, var = self.moments(x)
            _track(self.running_mean, mean, self.momentum)
            _track(self.running_var, var * n / (n - 1), self.momentum)
            self.num_batches_tracked += 1
        else:
            mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        scale = self.weight.to(x.dtype) * torch.rsqrt(var + self.eps)
        x = (x - mean[:, None, None]) * scale[:, None, None] + self.bias.to(x.dtype)[
            :, None, None
        ]
        return x.to(input.dtype)


# https://github.com/nttcslab/byol-a/issues/13
class BatchNorm3d(nn.Module):
    """Batch normalization of (N, C, D, H, W) inputs; momentum=None keeps a cumulative average, as in torch."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def update(self, mean, var):
        if self.momentum is None:
            factor = 1.0 / max(int(self.num_batches_tracked), 1)
        else:
            factor = self.momentum
        _track(self.running_mean, mean, factor)
        _track(self.running_var, var, factor)
        self.num_batches_tracked += 1

    def forward(self, input):
        x = _upcast(input)
        if self.training:
            n = x.numel() // x.shape[1]
            _need_two(n)
            mean = x.mean((0, 2, 3, 4))
            var = x.var((0, 2, 3, 4), unbiased=False)
            self.update(mean, var * n / (n - 1))
        else:
            mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        shape = (1, -1, 1, 1, 1)
        x = (x - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        x = x * self.weight.to(x.dtype).view(shape) + self.bias.to(x.dtype).view(shape)
        return x.to(input.dtype)


# https://github.com/flagos-ai/FlagGems/issues/5392
class LayerNormFunction(torch.autograd.Function):
    @staticmethod
    def normalize(x, eps):
        x = _upcast(x)
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        rstd = torch.rsqrt(var + eps)
        return (x - mean) * rstd, rstd

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = eps
        x_hat, _ = LayerNormFunction.normalize(x, eps)
        return (x_hat * weight.to(x_hat.dtype) + bias.to(x_hat.dtype)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        x_hat, rstd = LayerNormFunction.normalize(x, ctx.eps)
        grad = grad.to(x_hat.dtype)
        g = grad * weight.to(x_hat.dtype)
        dims = tuple(range(1, x.dim()))
        c1 = (g * x_hat).mean(dims, keepdim=True)
        c2 = g.mean(dims, keepdim=True)
        dx = (g - c2 - x_hat * c1) * rstd
        dw = (grad * x_hat).reshape(-1, x.shape[-1]).sum(0)
        db = grad.reshape(-1, x.shape[-1]).sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype), db.to(bias.dtype), None


class FusedLayerNorm(nn.Module):
    """Layer normalization over the last axis with a hand-written backward, as torch.nn.LayerNorm."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return LayerNormFunction.apply(x, self.weight, self.bias, self.eps)


# https://github.com/flagos-ai/FlagGems/pull/4955
class InstanceNorm2d(nn.Module):
    """Instance normalization with running statistics, as torch.nn.InstanceNorm2d(affine=True, track_running_stats=True)."""

    def __init__(self, num_features, eps=1e-3, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, input):
        x = _upcast(input)
        if self.training:
            n = x.shape[2] * x.shape[3]
            _need_two(n)
            mean = x.mean((2, 3), keepdim=True)
            rstd = torch.rsqrt(x.var((2, 3), unbiased=False, keepdim=True) + self.eps)
            var = (1 / rstd.square() + self.eps).clamp(min=0) * n / (n - 1)
            _track(self.running_mean, mean.mean(0).flatten(), self.momentum)
            _track(self.running_var, var.mean(0).flatten(), self.momentum)
            self.num_batches_tracked += 1
        else:
            mean = self.running_mean.to(x.dtype)[:, None, None]
            rstd = torch.rsqrt(self.running_var.to(x.dtype)[:, None, None] + self.eps)
        x = (x - mean) * rstd
        x = (
            x * self.weight.to(x.dtype)[:, None, None]
            + self.bias.to(x.dtype)[:, None, None]
        )
        return x.to(input.dtype)


# https://github.com/grey-eye/talking-heads/issues/32
class AdaptiveInstanceNorm2d(nn.Module):
    """AdaIN: instance normalization of (N, C, H, W), scale and shift predicted from a style vector."""

    def __init__(self, num_features, style_dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine = nn.Linear(style_dim, 2 * num_features)

    def forward(self, input, style):
        x = _upcast(input)
        gamma, beta = self.affine(style).to(x.dtype)[:, :, None, None].chunk(2, dim=1)
        mean = x.mean((2, 3), keepdim=True)
        std = x.var((2, 3), unbiased=False, keepdim=True).sqrt() + self.eps
        x = (x - mean) / std
        return (x * (1 + gamma) + beta).to(input.dtype)


# https://github.com/vllm-project/vllm-omni/pull/1537
class AdaLayerNorm(nn.Module):
    """adaLN: layer normalization of (N, T, C) with scale and shift predicted per sample from a condition (N, D)."""

    def __init__(self, dim, cond_dim, eps=1e-6):
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.modulation = nn.Linear(cond_dim, 2 * dim)

    def forward(self, x, cond):
        x32 = _upcast(x)
        shift, scale = self.modulation(F.silu(cond)).to(x32.dtype).chunk(2, dim=-1)
        out = F.layer_norm(x32, (self.dim,), 1 + scale[0], shift[0], self.eps)
        return out.to(x.dtype)


# https://github.com/tensorpack/tensorpack/issues/1065
class BatchRenorm1d(nn.Module):
    """Batch renormalization (Ioffe 2017) of (N, C) inputs with fixed r_max and d_max."""

    def __init__(self, num_features, eps=1e-3, momentum=0.1, r_max=3.0, d_max=5.0):
        super().__init__()
        self.eps, self.momentum, self.r_max, self.d_max = eps, momentum, r_max, d_max
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, input):
        x = _upcast(input)
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        running_mean = self.running_mean.to(x.dtype)
        running_std = (self.running_var.to(x.dtype) + self.eps).sqrt()
        if self.training:
            n = x.shape[0]
            _need_two(n)
            var, mean = torch.var_mean(x, 0, correction=0)
            std = (var + self.eps).sqrt()
            r = (std.detach() / running_std).clamp(1 / self.r_max, self.r_max)
            d = ((mean.detach() - running_mean) / running_std).clamp(
                -self.d_max, self.d_max
            )
            out = ((x - mean) / std * weight + bias) * r + d
            _track(self.running_mean, mean, self.momentum)
            _track(self.running_var, var * n / (n - 1), self.momentum)
            self.num_batches_tracked += 1
        else:
            out = (x - running_mean) / running_std * weight + bias
        return out.to(input.dtype)


# https://github.com/espnet/espnet/pull/6571
class MaskedBatchNorm1d(nn.Module):
    """Batch normalization of padded (N, C, T) sequences: statistics over the valid frames, padding stays zero."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, input, mask):
        x = _upcast(input)
        pad = ~mask[:, None, :]
        x = x.masked_fill(pad, 0)
        if self.training:
            n = int(mask.sum())
            _need_two(n)
            mean = x.sum((0, 2)) / n
            x = x - mean[:, None]
            var = x.square().sum((0, 2)) / n
            _track(self.running_mean, mean, self.momentum)
            _track(self.running_var, var * n / (n - 1), self.momentum)
            self.num_batches_tracked += 1
        else:
            var = self.running_var.to(x.dtype)
            x = x - self.running_mean.to(x.dtype)[:, None]
        x = x * torch.rsqrt(var + self.eps)[:, None]
        x = x * self.weight.to(x.dtype)[:, None] + self.bias.to(x.dtype)[:, None]
        return x.masked_fill(pad, 0).to(input.dtype)


# https://github.com/pytorch/vision/issues/2169 and https://github.com/pytorch/vision/pull/1947
class FrozenBatchNorm2d(nn.Module):
    """BatchNorm2d whose statistics and affine parameters are fixed buffers; equals nn.BatchNorm2d in eval mode."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(num_features))
        self.register_buffer("bias", torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict.pop(prefix + "num_batches_tracked", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, input):
        x = _upcast(input)
        scale = self.weight.to(x.dtype) * self.running_var.to(x.dtype).rsqrt()
        shift = self.bias.to(x.dtype) - self.running_mean.to(x.dtype) * scale
        return (x * scale[:, None, None] + shift[:, None, None]).to(input.dtype)

    def extra_repr(self):
        return f"{self.weight.numel()}, eps={self.eps}"


# https://github.com/bayesiains/nflows/issues/4
class ActNorm(nn.Module):
    """Activation normalization (Glow): per-channel scale and shift, set from the first training batch, then learned."""

    def __init__(self, num_features, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.log_scale = nn.Parameter(torch.zeros(1, num_features, 1, 1))
        self.shift = nn.Parameter(torch.zeros(1, num_features, 1, 1))
        self.initialized = False

    @torch.no_grad()
    def initialize(self, x):
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        self.log_scale.copy_(-0.5 * torch.log(var + self.eps))
        self.shift.copy_(-mean)
        self.initialized = True

    def forward(self, input):
        x = _upcast(input)
        if self.training and not self.initialized:
            self.initialize(x)
        x = (x + self.shift.to(x.dtype)) * self.log_scale.to(x.dtype).exp()
        return x.to(input.dtype)


class GemmaRMSNorm(nn.Module):
    """RMS normalization as in Gemma: the weight is kept as its difference from one."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        out = _upcast(x)
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + self.eps)
        return (out * (1 + self.weight.to(out.dtype))).to(x.dtype)


class GlobalResponseNorm(nn.Module):
    """Global response normalization (ConvNeXt V2) of (N, H, W, C) inputs; the identity at the start."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.zeros(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, input):
        x = _upcast(input)
        g = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        n = g / (g.mean(-1, keepdim=True) + self.eps)
        return (self.gamma.to(x.dtype) * (x * n) + self.beta.to(x.dtype) + x).to(
            input.dtype
        )


class BatchNormChannelsLast(nn.Module):
    """Batch normalization over the last axis, as in Keras: running = decay * running + (1 - decay) * batch."""

    def __init__(self, num_features, eps=1e-3, decay=0.99):
        super().__init__()
        self.eps = eps
        self.decay = decay
        self.gamma = nn.Parameter(torch.ones(num_features))
        self.beta = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("moving_mean", torch.zeros(num_features))
        self.register_buffer("moving_var", torch.ones(num_features))

    def forward(self, input):
        x = _upcast(input)
        if self.training:
            n = x.numel() // x.shape[-1]
            _need_two(n)
            var, mean = torch.var_mean(x.reshape(n, -1), 0, correction=0)
            _track(self.moving_mean, mean, 1 - self.decay)
            _track(self.moving_var, var * n / (n - 1), 1 - self.decay)
        else:
            mean, var = self.moving_mean.to(x.dtype), self.moving_var.to(x.dtype)
        x = (x - mean) * torch.rsqrt(var + self.eps)
        return (x * self.gamma.to(x.dtype) + self.beta.to(x.dtype)).to(input.dtype)


class ConditionalBatchNorm2d(nn.Module):
    """Class-conditional batch normalization (BigGAN): scale and shift looked up by label."""

    def __init__(self, num_features, num_classes, eps=1e-5, momentum=0.1):
        super().__init__()
        self.bn = nn.BatchNorm2d(num_features, eps=eps, momentum=momentum, affine=False)
        self.embed = nn.Embedding(num_classes, 2 * num_features)
        nn.init.normal_(self.embed.weight[:, :num_features].detach(), 1, 0.02)
        nn.init.zeros_(self.embed.weight[:, num_features:].detach())

    def forward(self, x, y):
        gamma, beta = self.embed(y)[:, :, None, None].chunk(2, dim=1)
        out = _upcast(self.bn(x))
        return (out * gamma.to(out.dtype) + beta.to(out.dtype)).to(x.dtype)


class CumulativeLayerNorm(nn.Module):
    """Causal layer normalization (Conv-TasNet cLN) of (N, C, T): frame t uses the channels of frames 0..t."""

    def __init__(self, num_channels, eps=1e-8):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels, 1))
        self.bias = nn.Parameter(torch.zeros(num_channels, 1))

    def forward(self, input):
        x = input.double()
        c, t = x.shape[1:]
        count = torch.arange(1, t + 1, device=x.device, dtype=x.dtype) * c
        mean = x.sum(1, keepdim=True).cumsum(-1) / count
        mean_square = x.square().sum(1, keepdim=True).cumsum(-1) / count
        var = (mean_square - mean.square()).clamp(min=0)
        x = (x - mean) / (var + self.eps).sqrt()
        return (x * self.weight.double() + self.bias.double()).to(input.dtype)


def _call_adain(layer, x):
    weight = layer.affine.weight
    style = torch.linspace(
        -1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device
    )
    return layer(x, style.expand(x.shape[0], -1))


def _call_adaln(layer, x):
    return layer(
        x, x[:, 0].to(layer.modulation.weight.dtype)
    )  # the condition is the first token


def _call_masked(layer, x):
    n, _, t = x.shape
    lengths = t - 2 * (torch.arange(n, device=x.device) % 3)
    return layer(x, torch.arange(t, device=x.device) < lengths[:, None])


def _call_conditional(layer, x):
    return layer(
        x, torch.arange(x.shape[0], device=x.device) % layer.embed.num_embeddings
    )


def full(t):
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


# https://github.com/facebookresearch/synsin/pull/20
# https://github.com/pytorch/pytorch/issues/20275
class OtherBatchNorm2d(nn.Module):
    """Batch norm over (N, C, H, W) with running statistics for evaluation, as nn.OtherBatchNorm2d."""

    def __init__(self, channels, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x):
        h = full(x)
        if self.training:
            n = h.numel() // h.shape[1]
            if n < 2:
                raise ValueError(
                    "batch norm needs more than one value per channel in training"
                )
            mean = h.mean((0, 2, 3))
            var = h.var((0, 2, 3), unbiased=False)
            m = self.momentum
            kept = self.running_mean.dtype
            self.num_batches_tracked += 1
            self.running_mean = (1 - m) * self.running_mean + m * mean.to(kept)
            self.running_var = (1 - m) * self.running_var + m * (var * n / (n - 1)).to(
                kept
            )
        else:
            mean, var = full(self.running_mean), full(self.running_var)
        c = (1, -1, 1, 1)
        h = (h - mean.view(c)) * torch.rsqrt(var.view(c) + self.eps)
        return (h * full(self.weight).view(c) + full(self.bias).view(c)).to(x.dtype)


# https://github.com/lucidrains/DALLE2-pytorch/blob/main/dalle2_pytorch/dalle2_pytorch.py
class StableLayerNorm(nn.Module):
    """Layer norm over the last axis that rescales each row before squaring, so that large rows do not overflow."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = full(x)
        top = h.amax(dim=-1, keepdim=True).detach()
        h = h / top
        mean = h.mean(dim=-1, keepdim=True)
        var = h.var(dim=-1, unbiased=False, keepdim=True)
        h = (h - mean) * torch.rsqrt(var + self.eps / top**2)
        return (h * full(self.weight) + full(self.bias)).to(x.dtype)


# https://github.com/huggingface/transformers/pull/40796
# https://github.com/huggingface/transformers/pull/40449
class DecoderRMSNorm(nn.Module):
    """RMS norm over the last axis whose gain is stored as its distance from one."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x):
        h = full(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + full(self.weight))).to(x.dtype)


# https://github.com/brainpy/BrainPy/issues/765
class GroupNorm(nn.Module):
    """Group norm over (N, C, ...) with a gain and a bias per channel, as nn.GroupNorm."""

    def __init__(self, num_groups, num_channels, eps=1e-5):
        super().__init__()
        if num_channels % num_groups:
            raise ValueError("num_channels must be divisible by num_groups")
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x):
        n, c = x.shape[:2]
        h = full(x).reshape(n, self.num_groups, c // self.num_groups, *x.shape[2:])
        axes = tuple(range(1, h.dim()))
        mean = h.mean(axes, keepdim=True)
        var = h.var(axes, unbiased=False, keepdim=True)
        h = ((h - mean) * torch.rsqrt(var + self.eps)).reshape(x.shape)
        per_channel = (1, c) + (1,) * (x.dim() - 2)
        h = h * full(self.weight).view(per_channel) + full(self.bias).view(per_channel)
        return h.to(x.dtype)


# https://github.com/NVlabs/FUNIT/issues/26
# https://github.com/paiml/aprender/pull/2166
class OtherInstanceNorm2d(nn.Module):
    """Instance norm that evaluates with running statistics, as nn.OtherInstanceNorm2d(affine=True, track_running_stats=True)."""

    def __init__(self, channels, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        b, c = x.shape[:2]
        h = full(x)
        running_mean = self.running_mean.to(h.dtype).repeat(b)
        running_var = self.running_var.to(h.dtype).repeat(b)
        h = F.batch_norm(
            h.reshape(1, b * c, *x.shape[2:]),
            running_mean,
            running_var,
            self.weight.to(h.dtype).repeat(b),
            self.bias.to(h.dtype).repeat(b),
            self.training,
            self.momentum,
            self.eps,
        )
        return h.reshape(x.shape).to(x.dtype)


# https://github.com/d2l-ai/d2l-en/pull/1591
# https://github.com/google-deepmind/sonnet/issues/174
class FeatureNorm(nn.Module):
    """Batch norm of feature vectors (N, C) with running statistics for evaluation, as nn.BatchNorm1d."""

    def __init__(self, features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.zeros(features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x):
        h = full(x)
        if self.training:
            n = h.shape[0]
            if n < 2:
                raise ValueError("batch norm needs more than one row in training")
            mean, var = h.mean(0), h.var(0, unbiased=False)
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(
                    (var * n / (n - 1)).to(self.running_var.dtype), self.momentum
                )
        else:
            mean, var = full(self.running_mean), full(self.running_var)
        h = (h - mean) * torch.rsqrt(var + self.eps)
        return (h * full(self.weight) + full(self.bias)).to(x.dtype)


# https://github.com/Lasagne/Lasagne/issues/448
class LayerNormPeepholeLSTMCell(nn.Module):
    """LSTM cell with peephole connections and layer normalization (Ba et al., 2016): (h, c) = cell(x, (h, c))."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.w_ci = nn.Parameter(torch.empty(hidden_size))
        self.w_cf = nn.Parameter(torch.empty(hidden_size))
        self.w_co = nn.Parameter(torch.empty(hidden_size))
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)
        bound = 1.0 / math.sqrt(hidden_size)
        for p in (self.weight_ih, self.weight_hh, self.w_ci, self.w_cf, self.w_co):
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x, state=None):
        if state is None:
            zeros = x.new_zeros(x.size(0), self.hidden_size)
            state = (zeros, zeros)
        hx, cx = state
        gates = self.ln_ih(F.linear(x, self.weight_ih)) + self.ln_hh(
            F.linear(hx, self.weight_hh)
        )
        ig, fg, cg, og = gates.chunk(4, dim=1)

        ingate = torch.sigmoid(ig + self.w_ci * cx)
        forgetgate = torch.sigmoid(fg + self.w_cf * cx)
        outgate = torch.sigmoid(og)
        cy = forgetgate * cx + ingate * torch.tanh(cg)
        outgate = outgate + self.w_co * cy
        hy = outgate * torch.tanh(self.ln_c(cy))
        return hy, cy


# https://github.com/rwth-i6/returnn/issues/1313
class ZoneoutRMSNormLSTM(nn.Module):
    """RMS-normalized LSTM with zoneout (Krueger et al., 2016) on h and c, batch first, called like nn.LSTM."""

    def __init__(self, input_size, hidden_size, zoneout_h=0.1, zoneout_c=0.2):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.zoneout_h = zoneout_h
        self.zoneout_c = zoneout_c
        self.x2g = nn.Linear(input_size, 4 * hidden_size)
        self.h2g = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_x = nn.RMSNorm(4 * hidden_size, eps=1e-5)
        self.norm_h = nn.RMSNorm(4 * hidden_size, eps=1e-5)

    def zoneout(self, old, new, p):
        if self.training:
            keep = torch.empty_like(new).bernoulli_(p)
            return keep * old + (1 - keep) * new
        return p * old + (1 - p) * new

    def cell(self, x, h, c):
        gates = (
            self.norm_x(F.linear(x, self.x2g.weight))
            + self.norm_h(self.h2g(h))
            + self.x2g.bias
        )
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, x, state=None):
        if state is None:
            h = c = x.new_zeros(x.size(0), self.hidden_size)
        else:
            h, c = (s.squeeze(0) for s in state)
        outputs = []
        for x_t in x.unbind(1):
            new_h, new_c = self.cell(x_t, h, c)
            h = self.zoneout(h, new_h, self.zoneout_h)
            c = self.zoneout(c, new_c, self.zoneout_c)
            outputs.append(new_h)
        return torch.stack(outputs, dim=1), (h.unsqueeze(0), c.unsqueeze(0))


# https://github.com/tensorflow/tensorflow/issues/39635
class BiLNLSTM(nn.Module):
    """Stacked bidirectional layer-normalized LSTM on (time, batch, feature), with the states of nn.LSTM."""

    def __init__(self, input_size, hidden_size, num_layers=1):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.ih, self.hh = nn.ModuleList(), nn.ModuleList()
        self.ln_ih, self.ln_hh, self.ln_c = (
            nn.ModuleList(),
            nn.ModuleList(),
            nn.ModuleList(),
        )
        for k in range(2 * num_layers):
            size = input_size if k < 2 else 2 * hidden_size
            self.ih.append(nn.Linear(size, 4 * hidden_size, bias=False))
            self.hh.append(nn.Linear(hidden_size, 4 * hidden_size, bias=False))
            self.ln_ih.append(nn.LayerNorm(4 * hidden_size))
            self.ln_hh.append(nn.LayerNorm(4 * hidden_size))
            self.ln_c.append(nn.LayerNorm(hidden_size))

    def run_direction(self, k, x, h, c):
        projected = self.ln_ih[k](self.ih[k](x))
        outputs = []
        for t in range(x.size(0)):
            gates = projected[t] + self.ln_hh[k](self.hh[k](h))
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * self.ln_c[k](c).tanh()
            outputs.append(h)
        return torch.stack(outputs), h, c

    def forward(self, x, hx=None):
        if hx is None:
            zeros = x.new_zeros(2 * self.num_layers, x.size(1), self.hidden_size)
            hx = (zeros, zeros)
        h0, c0 = hx
        h_n, c_n = [], []
        for layer in range(self.num_layers):
            fw, bw = 2 * layer, 2 * layer + 1
            y_fw, h_fw, c_fw = self.run_direction(fw, x, h0[fw], c0[fw])
            y_bw, h_bw, c_bw = self.run_direction(bw, x.flip(0), h0[bw], c0[bw])
            x = torch.cat([y_fw, y_bw.flip(1)], dim=-1)
            h_n += [h_fw, h_bw]
            c_n += [c_fw, c_bw]
        return x, (torch.stack(h_n), torch.stack(c_n))


# https://github.com/ml-explore/mlx/pull/3252
class LNGRU(nn.Module):
    """Layer-normalized GRU (reset gate after the recurrent product, as nn.GRU), input (batch, time, feature)."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.n_in = n_in
        self.n_hidden = n_hidden
        self.wx = nn.Linear(n_in, 3 * n_hidden, bias=False)
        self.wh = nn.Linear(n_hidden, 3 * n_hidden, bias=False)
        self.ln_x = nn.LayerNorm(3 * n_hidden)
        self.ln_h = nn.LayerNorm(3 * n_hidden, bias=False)
        self.b_hn = nn.Parameter(torch.empty(n_hidden))
        bound = 1.0 / math.sqrt(n_hidden)
        nn.init.uniform_(self.b_hn, -bound, bound)

    def forward(self, inputs, hidden=None):
        d = self.n_hidden
        x = self.ln_x(self.wx(inputs))
        x_rz, x_n = x[..., : 2 * d], x[..., 2 * d :]
        outputs = []
        for t in range(inputs.shape[1]):
            rz, n = x_rz[:, t], x_n[:, t]
            if hidden is not None:
                h = self.ln_h(self.wh(hidden))
                rz = rz + h[:, : 2 * d]
            r, z = torch.sigmoid(rz).chunk(2, dim=-1)
            if hidden is not None:
                n = n + r * (h[:, 2 * d :] + self.b_hn)
            n = torch.tanh(n)
            hidden = (1 - z) * n if hidden is None else (1 - z) * n + z * hidden
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), hidden


class StepBatchNorm(nn.Module):
    """Batch normalization over a time step's batch, with population statistics kept for each time step."""

    def __init__(self, features, max_length, bias=True, momentum=0.1, eps=1e-5):
        super().__init__()
        self.max_length, self.momentum, self.eps = max_length, momentum, eps
        self.weight = nn.Parameter(torch.full((features,), 0.1))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None
        self.register_buffer("running_mean", torch.zeros(max_length, features))
        self.register_buffer("running_var", torch.ones(max_length, features))

    def forward(self, x, step):
        step = min(step, self.max_length - 1)
        if self.training and x.size(0) < 2:
            raise ValueError("batch statistics need more than one sequence in training")
        mean, var = x.mean(0), x.var(0, unbiased=False)
        if self.training:
            n = x.size(0)
            with torch.no_grad():
                self.running_mean[step] += self.momentum * (
                    mean - self.running_mean[step]
                )
                self.running_var[step] += self.momentum * (
                    var * n / (n - 1) - self.running_var[step]
                )
        y = (x - mean) / torch.sqrt(var + self.eps) * self.weight
        return y if self.bias is None else y + self.bias


# https://github.com/OlavHN/bnlstm/issues/2
class BNLSTM(nn.Module):
    """Batch-normalized LSTM (Cooijmans et al., 2017), input (time, batch, feature), returns out, h, c."""

    def __init__(self, input_size, hidden_size, max_length):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(input_size, 4 * hidden_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, 4 * hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.bn_ih = StepBatchNorm(4 * hidden_size, max_length, bias=False)
        self.bn_hh = StepBatchNorm(4 * hidden_size, max_length, bias=False)
        self.bn_c = StepBatchNorm(hidden_size, max_length)
        nn.init.orthogonal_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)

    def forward(self, x, hx=None):
        if hx is None:
            h = c = x.new_zeros(x.size(1), self.hidden_size)
        else:
            h, c = hx
        out = []
        for t in range(x.size(0)):
            wx = self.bn_ih(x[t] @ self.weight_ih, t)
            wh = self.bn_hh(h @ self.weight_hh, t)
            f, i, o, g = (wx + wh + self.bias).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.bn_c(c, t))
            out.append(h)
        return torch.stack(out), h, c


# https://github.com/tensorflow/tensorflow/issues/29391
class VariationalLNLSTMLayer(nn.Module):
    """One layer-normalized LSTM layer with variational recurrent dropout (one mask per sequence, Gal, 2016)."""

    def __init__(self, input_size, hidden_size, dropout):
        super().__init__()
        self.hidden_size = hidden_size
        self.dropout = dropout
        self.mask = None
        self.linear_x = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.linear_h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_x = nn.LayerNorm(4 * hidden_size)
        self.norm_h = nn.LayerNorm(4 * hidden_size)

    def recurrent_mask(self, h):
        if self.mask is None or self.mask.shape != h.shape:
            self.mask = F.dropout(torch.ones_like(h), self.dropout)
        return self.mask

    def forward(self, x, h, c):
        xs = self.norm_x(self.linear_x(x))
        ys = []
        for t in range(x.size(1)):
            dropped = (
                h * self.recurrent_mask(h) if self.training and self.dropout > 0 else h
            )
            i, f, g, o = (xs[:, t] + self.norm_h(self.linear_h(dropped))).chunk(
                4, dim=-1
            )
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys, dim=1), h, c


class VariationalLNLSTM(nn.Module):
    """Stacked layer-normalized LSTM with variational recurrent dropout, input (batch, time, feature)."""

    def __init__(self, input_size, hidden_size, num_layers=2, dropout=0.3):
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = (
            input_size,
            hidden_size,
            num_layers,
        )
        self.layers = nn.ModuleList(
            VariationalLNLSTMLayer(
                input_size if k == 0 else hidden_size, hidden_size, dropout
            )
            for k in range(num_layers)
        )

    def forward(self, x, state: tuple[Tensor, Tensor] | None = None):
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.size(0), self.hidden_size)
            state = (zeros, zeros)
        hs, cs = [], []
        for k, layer in enumerate(self.layers):
            x, h, c = layer(x, state[0][k], state[1][k])
            hs.append(h)
            cs.append(c)
        return x, (torch.stack(hs), torch.stack(cs))


# https://github.com/flagos-ai/FlagGems/issues/5392
class ItsLayerNormFunction(torch.autograd.Function):
    """Layer normalization over the last dimension with a hand-written backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, rstd, weight)
        return xhat * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        xhat, rstd, weight = ctx.saved_tensors
        m = grad.size(0)
        g = (grad * weight).reshape(m, -1)
        xh = xhat.reshape(m, -1)
        gx = g - g.mean(1, keepdim=True) - xh * (g * xh).mean(1, keepdim=True)
        n = weight.numel()
        gw = (grad * xhat).reshape(-1, n).sum(0)
        gb = grad.reshape(-1, n).sum(0)
        return gx.view_as(grad) * rstd, gw, gb, None


class FastLayerNorm(nn.Module):
    """Layer normalization over the last dimension."""

    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return ItsLayerNormFunction.apply(x, self.weight, self.bias, self.eps)


class FastLayerNormLSTM(nn.Module):
    """Layer-normalized LSTM with a memory-saving layer norm, input (time, batch, feature), called like nn.LSTM."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.ln_i = FastLayerNorm(4 * hidden_size)
        self.ln_h = FastLayerNorm(4 * hidden_size)
        self.ln_c = FastLayerNorm(hidden_size)
        for w in (self.weight_ih_l0, self.weight_hh_l0):
            nn.init.xavier_uniform_(w)
        with torch.no_grad():
            self.ln_i.bias[hidden_size : 2 * hidden_size].fill_(1.0)

    def forward(self, input, hx=None):
        if hx is None:
            h = c = input.new_zeros(input.size(1), self.hidden_size)
        else:
            h, c = hx[0][0], hx[1][0]
        igates = self.ln_i(input @ self.weight_ih_l0.t())
        output = []
        for ig in igates:
            i, f, g, o = (ig + self.ln_h(h @ self.weight_hh_l0.t())).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.ln_c(c))
            output.append(h)
        return torch.stack(output), (h[None], c[None])


class RMSNorm(nn.Module):
    """Root mean square normalization over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.g


# https://github.com/Lizhen0628/text_classification/issues/12
class RMSNormLSTMEncoder(nn.Module):
    """RMS-normalized LSTM over padded sequences of any order of lengths: out, (h_n, c_n) = layer(x, lengths)."""

    def __init__(self, embed_dim, hidden_dim):
        super().__init__()
        self.embed_dim = embed_dim
        self.hidden_dim = hidden_dim
        self.ih = nn.Linear(embed_dim, 4 * hidden_dim, bias=False)
        self.hh = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * hidden_dim))
        self.norm_i = RMSNorm(4 * hidden_dim)
        self.norm_h = RMSNorm(4 * hidden_dim)

    def forward(self, x, lengths):
        # longest first, so that the running sequences are always the first rows
        lengths, order = torch.as_tensor(lengths).sort(descending=True, stable=True)
        restore = order.argsort()
        x = x[order]
        h = x.new_zeros(x.size(0), self.hidden_dim)
        c = torch.zeros_like(h)
        out = []
        for t in range(x.size(1)):
            n = int((lengths > t).sum())
            gates = (
                self.norm_i(self.ih(x[:n, t])) + self.norm_h(self.hh(h[:n])) + self.bias
            )
            i, f, g, o = gates.chunk(4, dim=1)
            c_t = torch.sigmoid(f) * c[:n] + torch.sigmoid(i) * torch.tanh(g)
            h_t = torch.sigmoid(o) * torch.tanh(c_t)
            h, c = torch.cat([h_t, h[n:]]), torch.cat([c_t, c[n:]])
            out.append(F.pad(h_t, (0, 0, 0, x.size(0) - n)))
        out = torch.stack(out, dim=1)[restore]
        return out, (h, c)


def with_lengths(layer, x):
    """Calls the layer with lengths in no order: 3, 5, 2, 4, 1, ... at five time steps."""
    batch, time = x.shape[:2]
    return layer(x, (2 * torch.arange(batch) + 2) % time + 1)


# After GRUCell of https://github.com/danijar/dreamerv2/blob/main/dreamerv2/common/nets.py
class NormGRUCell(nn.Module):
    """GRU cell of Dreamer: one layer norm over all gates of [x, h], reset on the whole candidate, update bias -1."""

    def __init__(self, inp_size, size, update_bias=-1.0):
        super().__init__()
        self.inp_size, self.size, self.update_bias = inp_size, size, update_bias
        self.layer = nn.Linear(inp_size + size, 3 * size, bias=False)
        self.norm = nn.LayerNorm(3 * size, eps=1e-3)

    def forward(self, inputs, state):
        parts = self.norm(self.layer(torch.cat([inputs, state], -1)))
        reset, cand, update = parts.split(self.size, -1)
        cand = torch.tanh(torch.sigmoid(reset) * cand)
        update = torch.sigmoid(update + self.update_bias)
        return update * cand + (1 - update) * state


# After LayerNormBasicLSTMCell of tensorflow.contrib.rnn (own norm for each gate; here c is carried unnormalized)
class LayerNormBasicLSTM(nn.Module):
    """LSTM with one layer norm a gate, gates i, j, f, o from one kernel, forget bias 1; returns out, (c, h)."""

    def __init__(self, input_depth, num_units, forget_bias=1.0):
        super().__init__()
        self.input_depth, self.num_units, self.forget_bias = (
            input_depth,
            num_units,
            forget_bias,
        )
        self.kernel = nn.Parameter(torch.empty(input_depth + num_units, 4 * num_units))
        nn.init.xavier_uniform_(self.kernel)
        self.norms = nn.ModuleDict(
            {
                k: nn.LayerNorm(num_units)
                for k in ("input", "transform", "forget", "output")
            }
        )
        self.norm_state = nn.LayerNorm(num_units)

    def forward(self, inputs, state=None):
        if state is None:
            state = (inputs.new_zeros(inputs.shape[0], self.num_units),) * 2
        c, h = state
        outputs = []
        for t in range(inputs.shape[1]):
            parts = (torch.cat([inputs[:, t], h], 1) @ self.kernel).split(
                self.num_units, 1
            )
            i, j, f, o = (
                norm(part)
                for norm, part in zip(self.norms.values(), parts, strict=True)
            )
            c = c * torch.sigmoid(f + self.forget_bias) + torch.sigmoid(i) * torch.tanh(
                j
            )
            h = torch.tanh(self.norm_state(c)) * torch.sigmoid(o)
            outputs.append(h)
        return torch.stack(outputs, 1), (c, h)


@torch.jit.script
def cell_update(i: Tensor, f: Tensor, g: Tensor, c: Tensor) -> Tensor:
    return torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)


class LayerNormLSTMP(nn.Module):
    """Layer-normalized LSTM with recurrent projection and learned initial state, scripted update, time first."""

    def __init__(self, input_size, hidden_size, proj_size):
        super().__init__()
        self.input_size, self.hidden_size, self.proj_size = (
            input_size,
            hidden_size,
            proj_size,
        )
        self.w_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.w_hh = nn.Parameter(torch.empty(4 * hidden_size, proj_size))
        self.w_hr = nn.Parameter(torch.empty(proj_size, hidden_size))
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.h0 = nn.Parameter(torch.empty(1, proj_size))
        self.c0 = nn.Parameter(torch.empty(1, hidden_size))
        for p in (self.w_ih, self.w_hh, self.w_hr, self.h0, self.c0):
            nn.init.uniform_(p, -0.4, 0.4)

    def forward(self, x, hx: tuple[Tensor, Tensor] | None = None):
        if hx is None:
            h, c = self.h0.expand(x.size(1), -1), self.c0.expand(x.size(1), -1)
        else:
            h, c = hx[0].squeeze(0), hx[1].squeeze(0)
        out = []
        for x_t in x:
            gates = self.ln_ih(F.linear(x_t, self.w_ih)) + self.ln_hh(
                F.linear(h, self.w_hh)
            )
            i, f, g, o = gates.chunk(4, dim=1)
            c = cell_update(i, f, g, c)
            h = F.linear(torch.sigmoid(o) * torch.tanh(c), self.w_hr)
            out.append(h)
        return torch.stack(out), (h.unsqueeze(0), c.unsqueeze(0))


BUGS = [
    Case("batch norm 1d", lambda: BatchNorm1d(6), arguments=dict(shape=(8, 6))),
    Case("batch norm 2d", lambda: BatchNorm2d(4), arguments=dict(shape=(8, 4, 5, 5))),
    Case(
        "batch norm 3d with cumulative average",
        lambda: BatchNorm3d(3, momentum=None),
        arguments=dict(shape=(4, 3, 2, 3, 3)),
    ),
    Case(
        "fused layer norm", lambda: FusedLayerNorm(16), arguments=dict(shape=(4, 7, 16))
    ),
    Case(
        "instance norm 2d with running statistics",
        lambda: InstanceNorm2d(4),
        arguments=dict(shape=(6, 4, 5, 5)),
    ),
    Case(
        "adaptive instance norm",
        lambda: AdaptiveInstanceNorm2d(4, 6),
        arguments=dict(shape=(6, 4, 5, 5), kind="instance", call=_call_adain),
    ),
    Case(
        "adaptive layer norm",
        lambda: AdaLayerNorm(16, 16),
        arguments=dict(shape=(4, 7, 16), kind="layer", call=_call_adaln),
    ),
    Case("batch renorm", lambda: BatchRenorm1d(6), arguments=dict(shape=(8, 6))),
    Case(
        "masked batch norm",
        lambda: MaskedBatchNorm1d(3),
        arguments=dict(shape=(6, 3, 8), kind="batch", call=_call_masked),
    ),
    Case(
        "frozen batch norm",
        lambda: FrozenBatchNorm2d(4),
        arguments=dict(shape=(4, 4, 5, 5)),
    ),
    Case("activation norm", lambda: ActNorm(4), arguments=dict(shape=(8, 4, 5, 5))),
    Case(
        "encoder batch norm",
        lambda: OtherBatchNorm2d(4),
        arguments={"shape": (8, 4, 5, 5)},
    ),
    Case(
        "stable layer norm",
        lambda: StableLayerNorm(16),
        arguments={"shape": (4, 7, 16), "channel_axis": -1},
    ),
    Case(
        "decoder rms norm",
        lambda: DecoderRMSNorm(16),
        arguments={"shape": (4, 7, 16), "channel_axis": -1},
    ),
    Case(
        "channel group norm", lambda: GroupNorm(2, 8), arguments={"shape": (4, 8, 5, 5)}
    ),
    Case(
        "tracked instance norm",
        lambda: OtherInstanceNorm2d(4),
        arguments={"shape": (6, 4, 5, 5)},
    ),
    Case(
        "feature batch norm",
        lambda: FeatureNorm(6),
        arguments={"shape": (8, 6), "kind": "batch"},
    ),
    Case(
        "layer-normalized peephole LSTM cell",
        lambda: LayerNormPeepholeLSTMCell(6, 5),
        arguments={"shape": (4, 6)},
    ),
    Case(
        "RMS-normalized LSTM with zoneout",
        lambda: ZoneoutRMSNormLSTM(6, 5),
        arguments={"shape": (4, 5, 6)},
    ),
    Case(
        "stacked bidirectional layer-normalized LSTM",
        lambda: BiLNLSTM(6, 4, num_layers=2),
        arguments={"shape": (5, 4, 6)},
    ),
    Case("layer-normalized GRU", lambda: LNGRU(6, 5), arguments={"shape": (4, 5, 6)}),
    Case(
        "batch-normalized LSTM",
        lambda: BNLSTM(6, 5, max_length=8),
        arguments={"shape": (5, 4, 6)},
    ),
    Case(
        "layer-normalized LSTM with variational dropout",
        lambda: VariationalLNLSTM(6, 5),
        arguments={"shape": (4, 5, 6)},
    ),
    Case(
        "layer-normalized LSTM with its own norm function",
        lambda: FastLayerNormLSTM(6, 5),
        arguments={"shape": (5, 4, 6)},
    ),
    Case(
        "RMS-normalized LSTM over padded sequences",
        lambda: RMSNormLSTMEncoder(6, 5),
        arguments={"shape": (4, 5, 6), "call": with_lengths},
    ),
]

CONTROLS = [
    Case("gemma rms norm", lambda: GemmaRMSNorm(16), arguments=dict(shape=(4, 7, 16))),
    Case(
        "global response norm",
        lambda: GlobalResponseNorm(8),
        arguments=dict(shape=(4, 3, 5, 8), channel_axis=3),
    ),
    Case(
        "channels-last batch norm",
        lambda: BatchNormChannelsLast(6),
        arguments=dict(shape=(8, 3, 4, 6), kind="batch", channel_axis=3),
    ),
    Case(
        "class-conditional batch norm",
        lambda: ConditionalBatchNorm2d(4, 3),
        arguments=dict(shape=(8, 4, 5, 5), kind="batch", call=_call_conditional),
    ),
    Case(
        "cumulative layer norm",
        lambda: CumulativeLayerNorm(5),
        arguments=dict(shape=(4, 5, 9)),
    ),
    Case(
        "Dreamer GRU cell",
        lambda: NormGRUCell(6, 5),
        arguments={
            "shape": (4, 6),
            "call": lambda layer, x: layer(x, x.new_zeros(x.size(0), layer.size)),
        },
    ),
    Case(
        "TensorFlow-style layer-normalized LSTM",
        lambda: LayerNormBasicLSTM(6, 5),
        arguments={"shape": (4, 5, 6)},
    ),
    Case(
        "layer-normalized LSTM with projection",
        lambda: LayerNormLSTMP(6, 5, 3),
        arguments={"shape": (5, 4, 6)},
    ),
]
