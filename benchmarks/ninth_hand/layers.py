"""Norm layers and normalized recurrent layers with one slip each, and sound ones.

A ninth set, of the slips that its author thinks people make most, none excluded: written
without a look at the checks or at the layers of other hands. ``expected.txt`` says what a
right report must say.
"""

# ruff: noqa: B905, D102, E501, S101 - as it was written
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
# norm layers
# --------------------------------------------------------------------------------------


class TemporalBatchNorm(nn.Module):
    """Batch normalization of (N, C) or (N, C, L), with running averages for inference."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        dims = [d for d in range(x.dim()) if d != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        xf = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.training:
            mean = xf.mean(dims)
            var = xf.var(dims, unbiased=False)
            n = x.numel() // x.size(1)
            with torch.no_grad():
                self.running_mean.mul_(self.momentum).add_((1 - self.momentum) * mean)
                self.running_var.mul_(self.momentum).add_(
                    (1 - self.momentum) * var * n / max(n - 1, 1)
                )
        else:
            mean, var = self.running_mean.to(xf.dtype), self.running_var.to(xf.dtype)
        xf = (xf - mean.view(shape)) / torch.sqrt(var.view(shape) + self.eps)
        return (xf * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)


class MyBatchNorm2d(nn.Module):
    """Batch normalization of images (N, C, H, W)."""

    def __init__(self, channels, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.moving_mean = torch.zeros(1, channels, 1, 1)
        self.moving_var = torch.ones(1, channels, 1, 1)

    def forward(self, X):
        Y = X.float() if X.dtype in (torch.float16, torch.bfloat16) else X
        if self.training:
            mean = Y.mean(dim=(0, 2, 3), keepdim=True)
            var = ((Y - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
            n = X.shape[0] * X.shape[2] * X.shape[3]
            unbiased = var.detach() * (n / max(n - 1, 1))
            self.moving_mean = (
                1 - self.momentum
            ) * self.moving_mean + self.momentum * mean.detach().to(
                self.moving_mean.dtype
            )
            self.moving_var = (
                1 - self.momentum
            ) * self.moving_var + self.momentum * unbiased.to(self.moving_var.dtype)
            X_hat = (Y - mean) / torch.sqrt(var + self.eps)
        else:
            mean, var = self.moving_mean.to(Y.dtype), self.moving_var.to(Y.dtype)
            X_hat = (Y - mean) / torch.sqrt(var + self.eps)
        return (self.gamma * X_hat + self.beta).type_as(X)


class SpatialBN(nn.Module):
    """Batch norm over N, H and W of each channel (NCHW)."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True):
        super().__init__()
        self.num_features, self.eps, self.momentum, self.affine = (
            num_features,
            eps,
            momentum,
            affine,
        )
        if affine:
            self.weight = nn.Parameter(torch.ones(num_features))
            self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    @torch.no_grad()
    def _statistics(self, x):
        if not self.training:
            return self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        flat = x.transpose(0, 1).flatten(1)
        var, mean = torch.var_mean(flat, dim=1, unbiased=False)
        n = flat.size(1)
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(
            (var * n / max(n - 1, 1)).to(self.running_var.dtype), self.momentum
        )
        return mean, var

    def forward(self, x):
        dtype = x.dtype
        if dtype in (torch.half, torch.bfloat16):
            x = x.float()
        mean, var = self._statistics(x)
        out = (x - mean[:, None, None]) * torch.rsqrt(var + self.eps)[:, None, None]
        if self.affine:
            out = out * self.weight[:, None, None] + self.bias[:, None, None]
        return out.to(dtype)


class BatchNormNHWC(nn.Module):
    """Batch norm for channels-last tensors (N, H, W, C)."""

    def __init__(self, dim: int, eps: float = 1e-3, momentum: float = 0.01):
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.momentum = momentum
        self.scale = nn.Parameter(torch.ones(dim))
        self.offset = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def _track(self, old: Tensor, new: Tensor) -> Tensor:
        return (1.0 - self.momentum) * old + self.momentum * new.to(old.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.to(torch.promote_types(inputs.dtype, torch.float32)).reshape(
            -1, self.dim
        )
        if self.training:
            mu = x.mean(0)
            sigma2 = (x - mu).square().mean(0)
            bessel = x.size(0) / max(x.size(0) - 1, 1)
            self.running_mean = self._track(self.running_mean, mu)
            self.running_var = self._track(self.running_var, sigma2 * bessel)
        else:
            mu, sigma2 = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        y = (x - mu) * torch.rsqrt(sigma2 + self.eps) * self.scale + self.offset
        return y.reshape(inputs.shape).to(inputs.dtype)


class FeatureBatchNorm(nn.Module):
    """Batch norm for feature vectors (N, C): batch statistics in training, running ones in eval."""

    def __init__(self, n_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(n_features))
        self.bias = nn.Parameter(torch.zeros(n_features))
        self.register_buffer("running_mean", torch.zeros(n_features))
        self.register_buffer("running_var", torch.ones(n_features))

    @torch.no_grad()
    def update_running(self, mean, var, n):
        self.running_mean += self.momentum * (mean - self.running_mean)
        self.running_var += self.momentum * (var * n / max(n - 1, 1) - self.running_var)

    def forward(self, x):
        h = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = h.mean(dim=0)
        var = h.var(dim=0, correction=0)
        self.update_running(mean, var, x.shape[0])
        if not self.training:
            mean, var = self.running_mean.to(h.dtype), self.running_var.to(h.dtype)
        h = (h - mean) / (var + self.eps).sqrt()
        return torch.addcmul(self.bias.to(h.dtype), h, self.weight.to(h.dtype)).to(
            x.dtype
        )


def _all_sum(t: Tensor) -> Tensor:
    """Sum over all processes, with gradient; the tensor itself where there is one process."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(t)
    return t


class SyncedBatchNorm(nn.Module):
    """Batch norm with statistics over the batches of all processes, (N, C, ...)."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).reshape(self.num_features, -1)
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if self.training:
            total = _all_sum(rows.new_tensor(float(rows.size(1))))
            mean = _all_sum(rows.sum(1)) / total
            centered = rows - mean[:, None]
            var = _all_sum(centered.square().sum(1)) / total
            n = _all_sum(rows.new_tensor(float(x.size(0))))
            with torch.no_grad():
                unbiased = var * n / (n - 1).clamp(min=1)
                self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
                self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased)
        else:
            var = self.running_var.to(rows.dtype)
            centered = rows - self.running_mean[:, None]
        rows = (
            centered * (self.weight * (var + self.eps).rsqrt())[:, None]
            + self.bias[:, None]
        )
        swapped = (x.size(1), x.size(0), *x.shape[2:])
        return rows.reshape(swapped).transpose(0, 1).to(x.dtype)


class MaskedBatchNorm1d(nn.Module):
    """Batch norm of padded sequences (N, T, C): statistics over the valid steps only, padding set to zero."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x, mask=None):
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        valid = mask.unsqueeze(-1)
        h = x.to(torch.promote_types(x.dtype, torch.float32)).masked_fill(~valid, 0.0)
        if self.training:
            n = mask.sum()
            mean = h.mean(dim=(0, 1))
            var = (h - mean).square().masked_fill(~valid, 0.0).sum(dim=(0, 1)) / n
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                unbiased = var * n / (n - 1).clamp(min=1)
                self.running_var.lerp_(
                    unbiased.to(self.running_var.dtype), self.momentum
                )
        else:
            mean, var = self.running_mean.to(h.dtype), self.running_var.to(h.dtype)
        h = (h - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias
        return h.masked_fill(~valid, 0.0).to(x.dtype)


class BatchRenorm2d(nn.Module):
    """Batch renormalization (Ioffe 2017) of images (N, C, H, W)."""

    def __init__(self, num_features, eps=1e-3, momentum=0.01, r_max=3.0, d_max=5.0):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.r_max = r_max
        self.d_max = d_max
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x):
        inp = x
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        running_std = torch.sqrt(self.running_var.to(x.dtype) + self.eps)
        if self.training:
            var, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
            std = torch.sqrt(var + self.eps)
            r = (std / running_std).clamp(1 / self.r_max, self.r_max)
            d = ((mean - self.running_mean) / running_std).clamp(
                -self.d_max, self.d_max
            )
            x = (x - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
            x = x * r.view(1, -1, 1, 1) + d.view(1, -1, 1, 1)
            n = x.numel() / x.size(1)
            with torch.no_grad():
                self.running_mean.copy_(
                    self.running_mean + self.momentum * (mean - self.running_mean)
                )
                self.running_var.copy_(
                    self.running_var
                    + self.momentum * (var * n / max(n - 1, 1) - self.running_var)
                )
        else:
            x = (x - self.running_mean.view(1, -1, 1, 1)) / running_std.view(
                1, -1, 1, 1
            )
        x = x * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return x.to(inp.dtype)


class LayerNorm(nn.Module):
    """Construct a layernorm module (over the last axis)."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        h = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = h.mean(-1, keepdim=True)
        var = h.var(-1, keepdim=True)
        return (self.a_2 * (h - mean) / torch.sqrt(var + self.eps) + self.b_2).to(
            x.dtype
        )


class TokenNorm(nn.Module):
    """Layer norm of every token's features in a sequence (N, T, D)."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.d_model = d_model
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x, x.shape[1:], eps=self.eps)
        return (normed * self.weight + self.bias).to(x.dtype)


class LlamaStyleRMSNorm(nn.Module):
    """RMS norm over the last axis, computed in float32 for half-precision inputs."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        compute = torch.promote_types(input_dtype, torch.float32)
        variance = hidden_states.pow(2).to(compute).mean(-1, keepdim=True)
        hidden_states = hidden_states.to(compute) * torch.rsqrt(
            variance + self.variance_epsilon
        )
        return (self.weight * hidden_states).to(input_dtype)


class GemmaStyleRMSNorm(nn.Module):
    """RMS norm over the last axis with an offset weight; starts out as the plain RMS norm."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.to(torch.promote_types(x.dtype, torch.float32)))
        output = output * (1.0 + self.weight)
        return output.type_as(x)


class QKNorm(nn.Module):
    """RMS norm of queries or keys over the head dimension, (B, heads, T, head_dim)."""

    def __init__(self, head_dim: int, eps: float = 1e-6):
        super().__init__()
        self.head_dim = head_dim
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(head_dim))

    def forward(self, t: Tensor) -> Tensor:
        t = t.to(torch.promote_types(t.dtype, torch.float32))
        rms = t.square().mean(dim=-1, keepdim=True).add(self.eps).sqrt()
        return (t / rms * self.scale).to(t.dtype)


class GroupNormNHWC(nn.Module):
    """Group norm for channels-last tensors (N, H, W, C), groups of neighbouring channels."""

    def __init__(self, num_groups, num_channels, eps=1e-5):
        super().__init__()
        assert num_channels % num_groups == 0
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x):
        h = x.to(torch.promote_types(x.dtype, torch.float32))
        h = h.reshape(x.shape[0], self.num_groups, -1)
        mean = h.mean(dim=-1, keepdim=True)
        var = h.var(dim=-1, keepdim=True, unbiased=False)
        h = ((h - mean) / torch.sqrt(var + self.eps)).reshape(x.shape)
        return (h * self.weight + self.bias).to(x.dtype)


class StyleInstanceNorm(nn.Module):
    """Instance norm of images (N, C, H, W) with a learned scale and shift."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_features, 1, 1))
        self.shift = nn.Parameter(torch.zeros(num_features, 1, 1))
        self.eps = eps

    def forward(self, x):
        h = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = h.mean((2, 3), keepdim=True)
        var = h.square().mean((2, 3), keepdim=True) - mean.square()
        h = (h - mean) * torch.rsqrt(var + self.eps)
        return (h * self.scale + self.shift).to(x.dtype)


class AdaLayerNorm(nn.Module):
    """Layer norm whose scale and shift come from a condition (DiT style); the plain norm at the start."""

    def __init__(self, dim, cond_dim, eps=1e-6):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(cond_dim, 2 * dim))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x, cond):
        shift, scale = self.modulation(cond).unsqueeze(1).chunk(2, dim=-1)
        return self.norm(x) * scale + shift


# --------------------------------------------------------------------------------------
# recurrent layers
# --------------------------------------------------------------------------------------


class LayerNormLSTM(nn.Module):
    """LSTM with layer norm (Ba et al. 2016), (T, N, D); the forget gate starts with a bias of one."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.ln_ih = nn.LayerNorm(4 * hidden_size, bias=False)
        self.ln_hh = nn.LayerNorm(4 * hidden_size, bias=False)
        self.ln_c = nn.LayerNorm(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        nn.init.uniform_(self.weight_ih, -bound, bound)
        nn.init.uniform_(self.weight_hh, -bound, bound)
        with torch.no_grad():
            self.bias.zero_()
            self.bias[: self.hidden_size].fill_(1.0)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None):
        if state is None:
            zeros = x.new_zeros(x.size(1), self.hidden_size)
            state = (zeros, zeros)
        h, c = state
        wx = self.ln_ih(F.linear(x, self.weight_ih))
        out = []
        for t in range(x.size(0)):
            gates = wx[t] + self.ln_hh(F.linear(h, self.weight_hh)) + self.bias
            i, f, g, o = gates.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.ln_c(c))
            out.append(h)
        return torch.stack(out), (h, c)


class BNLSTM(nn.Module):
    """Recurrent batch normalization (Cooijmans et al. 2017), (T, N, D), own statistics for every step."""

    def __init__(self, input_size, hidden_size, max_length):
        super().__init__()
        self.hidden_size = hidden_size
        self.max_length = max_length
        self.linear_x = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.linear_h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.bn_x = self._norms(4 * hidden_size)
        self.bn_h = self._norms(4 * hidden_size)
        self.bn_c = self._norms(hidden_size)
        nn.init.orthogonal_(self.linear_h.weight)

    def _norms(self, size):
        norms = [nn.BatchNorm1d(size) for _ in range(self.max_length)]
        for bn in norms:
            nn.init.constant_(bn.weight, 0.1)
        return norms

    def forward(self, x, state=None):
        if state is None:
            state = (
                x.new_zeros(x.size(1), self.hidden_size),
                x.new_zeros(x.size(1), self.hidden_size),
            )
        h, c = state
        outputs = []
        for t, x_t in enumerate(x):
            k = min(t, self.max_length - 1)
            gates = self.bn_x[k](self.linear_x(x_t)) + self.bn_h[k](self.linear_h(h))
            i, f, o, g = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * self.bn_c[k](c).tanh()
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class NormedLSTM(nn.Module):
    """LSTM with layer norm on the gates and on the cell, (T, N, D)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.h2h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.norm_i2h = nn.LayerNorm(4 * hidden_size)
        self.norm_h2h = nn.LayerNorm(4 * hidden_size)
        self.norm_cell = nn.LayerNorm(hidden_size)

    def init_state(self, x):
        h = torch.zeros(x.size(1), self.hidden_size, device=x.device)
        c = torch.zeros(x.size(1), self.hidden_size, device=x.device)
        return h, c

    def forward(self, x, state=None):
        h, c = self.init_state(x) if state is None else state
        hidden = []
        for step in x.unbind(0):
            gates = self.norm_i2h(self.i2h(step)) + self.norm_h2h(self.h2h(h))
            in_gate, forget_gate, candidate, out_gate = gates.chunk(4, dim=-1)
            c = torch.sigmoid(forget_gate) * c + torch.sigmoid(in_gate) * torch.tanh(
                candidate
            )
            h = torch.sigmoid(out_gate) * torch.tanh(self.norm_cell(c))
            hidden.append(h)
        return torch.stack(hidden, dim=0), (h, c)


class _StackCell(nn.Module):
    """One step of a layer-normalized LSTM."""

    def __init__(self, n_in, n_hidden):
        super().__init__()
        self.proj_x = nn.Linear(n_in, 4 * n_hidden, bias=False)
        self.proj_h = nn.Linear(n_hidden, 4 * n_hidden, bias=False)
        self.norm_x = nn.LayerNorm(4 * n_hidden)
        self.norm_h = nn.LayerNorm(4 * n_hidden, bias=False)
        self.norm_c = nn.LayerNorm(n_hidden)

    def forward(self, x, h, c):
        i, f, g, o = (self.norm_x(self.proj_x(x)) + self.norm_h(self.proj_h(h))).chunk(
            4, dim=1
        )
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


class StackedLNLSTM(nn.Module):
    """Several layer-normalized LSTM layers on top of each other, (T, N, D), states (layers, N, H)."""

    def __init__(self, input_size, hidden_size, num_layers=2):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        sizes = [input_size] + [hidden_size] * (num_layers - 1)
        self.cells = nn.ModuleList(_StackCell(n, hidden_size) for n in sizes)

    def forward(self, x, state=None):
        h = c = x.new_zeros(x.size(1), self.hidden_size)
        last_h, last_c = [], []
        for k, cell in enumerate(self.cells):
            if state is not None:
                h, c = state[0][k], state[1][k]
            outputs = []
            for x_t in x:
                h, c = cell(x_t, h, c)
                outputs.append(h)
            x = torch.stack(outputs)
            last_h.append(h)
            last_c.append(c)
        return x, (torch.stack(last_h), torch.stack(last_c))


class BiLNLSTM(nn.Module):
    """Bidirectional layer-normalized LSTM, (T, N, D) -> (T, N, 2H), aligned in time; states (2, N, H)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.w_x = nn.ModuleList(
            nn.Linear(input_size, 4 * hidden_size, bias=False) for _ in range(2)
        )
        self.w_h = nn.ModuleList(
            nn.Linear(hidden_size, 4 * hidden_size, bias=False) for _ in range(2)
        )
        self.ln_x = nn.ModuleList(nn.LayerNorm(4 * hidden_size) for _ in range(2))
        self.ln_h = nn.ModuleList(nn.LayerNorm(4 * hidden_size) for _ in range(2))
        self.ln_c = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(2))

    def run_direction(self, d, x, h, c):
        xs = self.ln_x[d](self.w_x[d](x))
        hs = []
        for x_t in xs:
            i, f, g, o = (x_t + self.ln_h[d](self.w_h[d](h))).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.ln_c[d](c))
            hs.append(h)
        return torch.stack(hs), h, c

    def forward(self, x, state=None):
        if state is None:
            zeros = x.new_zeros(2, x.size(1), self.hidden_size)
            state = (zeros, zeros)
        h0, c0 = state
        fwd, h_f, c_f = self.run_direction(0, x, h0[0], c0[0])
        bwd, h_b, c_b = self.run_direction(1, x.flip(0), h0[1], c0[1])
        output = torch.cat([fwd, bwd], dim=-1)
        return output, (torch.stack([h_f, h_b]), torch.stack([c_f, c_b]))


class LayerNormGRU(nn.Module):
    """GRU with layer norm on input and hidden projections, (T, N, D)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.x2g = nn.Linear(input_size, 3 * hidden_size, bias=False)
        self.h2g = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.ln_x = nn.LayerNorm(3 * hidden_size)
        self.ln_h = nn.LayerNorm(3 * hidden_size)

    def forward(self, x, h=None):
        if h is None:
            h = x.new_zeros(x.size(1), self.hidden_size)
        gates_x = self.ln_x(self.x2g(x))
        outputs = []
        for gx in gates_x.unbind(0):
            h = h.detach()
            xr, xz, xn = gx.chunk(3, dim=-1)
            hr, hz, hn = self.ln_h(self.h2g(h)).chunk(3, dim=-1)
            r = torch.sigmoid(xr + hr)
            z = torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = (1 - z) * n + z * h
            outputs.append(h)
        return torch.stack(outputs), h


class LNLSTMCell(nn.Module):
    """One step of a layer-normalized LSTM: forward(x, (h, c)) -> (h, c)."""

    def __init__(self, input_size: int, hidden_size: int, eps: float = 1e-5):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.fc_x = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.fc_h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln_x = nn.LayerNorm(4 * hidden_size, eps=eps)
        self.ln_h = nn.LayerNorm(4 * hidden_size, eps=eps)
        self.ln_cell = nn.LayerNorm(hidden_size, eps=eps)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        gates = self.ln_x(self.fc_x(x)) + self.ln_h(self.fc_h(h))
        i, f, g, o = gates.chunk(4, dim=-1)
        c_next = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h_next = torch.sigmoid(o) * torch.tanh(self.ln_cell(c))
        return h_next, c_next


class BatchFirstLNLSTM(nn.Module):
    """Layer-normalized LSTM for batch-first input, (N, T, D) -> (N, T, H)."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.batch_first = True
        self.hidden_size = hidden_size
        self.W = nn.Parameter(
            torch.randn(input_size, 4 * hidden_size) / math.sqrt(input_size)
        )
        self.U = nn.Parameter(
            torch.randn(hidden_size, 4 * hidden_size) / math.sqrt(hidden_size)
        )
        self.ln_w = nn.LayerNorm(4 * hidden_size)
        self.ln_u = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)

    def forward(self, x, state=None):
        n, steps, dim = x.shape
        if state is None:
            state = (x.new_zeros(n, self.hidden_size), x.new_zeros(n, self.hidden_size))
        h, c = state
        seq = x.reshape(steps, n, dim)
        outputs = []
        for t in range(steps):
            z = self.ln_w(seq[t] @ self.W) + self.ln_u(h @ self.U)
            i, f, o = torch.sigmoid(z[:, : 3 * self.hidden_size]).chunk(3, dim=1)
            g = torch.tanh(z[:, 3 * self.hidden_size :])
            c = f * c + i * g
            h = o * torch.tanh(self.ln_c(c))
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, c)


class DropLNLSTM(nn.Module):
    """Layer-normalized LSTM with recurrent dropout on the candidate (Semeniuta et al. 2016), (T, N, D)."""

    def __init__(self, input_size, hidden_size, recurrent_dropout=0.25):
        super().__init__()
        self.hidden_size = hidden_size
        self.recurrent_dropout = recurrent_dropout
        self.input_proj = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hidden_proj = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.gate_norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(4))
        self.cell_norm = nn.LayerNorm(hidden_size)

    def step(self, x, h, c):
        pre = self.input_proj(x) + self.hidden_proj(h)
        i, f, g, o = (norm(p) for norm, p in zip(self.gate_norms, pre.chunk(4, dim=1)))
        g = F.dropout(torch.tanh(g), p=self.recurrent_dropout)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * g
        return torch.sigmoid(o) * torch.tanh(self.cell_norm(c)), c

    def forward(self, x, state=None):
        if state is None:
            h = x.new_zeros(x.size(1), self.hidden_size)
            c = torch.zeros_like(h)
        else:
            h, c = state
        ys = []
        for x_t in x:
            h, c = self.step(x_t, h, c)
            ys.append(h)
        return torch.stack(ys), (h, c)


# --------------------------------------------------------------------------------------
# further norm layers
# --------------------------------------------------------------------------------------


class KerasBatchNorm(nn.Module):
    """Batch norm with Keras's names and conventions, (N, H, W, C): momentum is the share that is kept."""

    def __init__(self, axis_size: int, momentum: float = 0.99, epsilon: float = 1e-3):
        super().__init__()
        self.momentum = momentum
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(axis_size))
        self.beta = nn.Parameter(torch.zeros(axis_size))
        self.register_buffer("moving_mean", torch.zeros(axis_size))
        self.register_buffer("moving_variance", torch.ones(axis_size))

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        if self.training:
            axes = tuple(range(x.dim() - 1))
            variance, mean = torch.var_mean(x, dim=axes, correction=0)
            n = x.numel() // x.shape[-1]
            with torch.no_grad():
                # the sample variance, as the fused kernel has it
                sample = variance * n / max(n - 1, 1)
                self.moving_mean.mul_(self.momentum).add_(mean * (1 - self.momentum))
                self.moving_variance.mul_(self.momentum).add_(
                    sample * (1 - self.momentum)
                )
        else:
            mean = self.moving_mean.to(x.dtype)
            variance = self.moving_variance.to(x.dtype)
        inv = torch.rsqrt(variance + self.epsilon) * self.gamma
        return ((x - mean) * inv + self.beta).to(inputs.dtype)


class OffsetRMSNorm(nn.Module):
    """RMS norm whose weight is kept as the distance from one, so that weight decay pulls it to the plain norm."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return torch.addcmul(y, y, self.weight.to(y.dtype)).to(x.dtype)


class LastAxisGroupNorm(nn.Module):
    """Group norm for (N, ..., C), groups of neighbouring channels, without moving the axes."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-6):
        super().__init__()
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        per_group = self.num_channels // self.num_groups
        g = x.reshape(x.size(0), -1, self.num_groups, per_group)
        g = g.to(torch.promote_types(g.dtype, torch.float32))
        var, mean = torch.var_mean(g, dim=(1, 3), keepdim=True, unbiased=False)
        scale = self.weight.view(self.num_groups, per_group) * torch.rsqrt(
            var + self.eps
        )
        g = (g - mean) * scale + self.bias.view(self.num_groups, per_group)
        return g.reshape(x.shape).to(x.dtype)


class _LayerNormFunction(torch.autograd.Function):
    """Layer norm over the last axis that keeps only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        h = x.to(torch.promote_types(x.dtype, torch.float32))
        h = h - h.mean(-1, keepdim=True)
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
        return (h * weight + bias).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        high = torch.promote_types(x.dtype, torch.float32)
        h = x.to(high)
        h = h - h.mean(-1, keepdim=True)
        inv = torch.rsqrt(h.square().mean(-1, keepdim=True) + ctx.eps)
        h = h * inv
        g = grad.to(high)
        flat = tuple(range(g.dim() - 1))
        d_weight = (g * h).sum(flat).to(weight.dtype)
        d_bias = g.sum(flat).to(weight.dtype)
        g = g * weight
        d_x = inv * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))
        return d_x.to(x.dtype), d_weight, d_bias, None


class LeanLayerNorm(nn.Module):
    """Layer norm over the last axis with a backward pass of its own."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return _LayerNormFunction.apply(x, self.weight, self.bias, self.eps)


class ConditionalInstanceNorm(nn.Module):
    """Instance norm of images with scale and shift from a style vector; the plain norm at the start."""

    def __init__(self, channels: int, style_dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.to_scale = nn.Linear(style_dim, channels)
        self.to_shift = nn.Linear(style_dim, channels)
        for head in (self.to_scale, self.to_shift):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        n, c, height, width = x.shape
        planes = x.reshape(n * c, height * width)
        planes = F.layer_norm(planes, (height * width,), eps=self.eps).view(
            n, c, height, width
        )
        scale = self.to_scale(style)[..., None, None]
        shift = self.to_shift(style)[..., None, None]
        return planes + scale * planes + shift


# --------------------------------------------------------------------------------------
# further recurrent layers
# --------------------------------------------------------------------------------------


class PerGateLNLSTMCell(nn.Module):
    """LSTM step with one layer norm a gate, gates ordered f, i, o, g: forward(x, (h, c)) -> (h, (h, c))."""

    def __init__(self, input_size: int, hidden_size: int, forget_bias: float = 1.0):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.linear = nn.Linear(input_size + hidden_size, 4 * hidden_size, bias=False)
        self.gain = nn.Parameter(torch.ones(4, hidden_size))
        self.shift = nn.Parameter(torch.zeros(4, hidden_size))
        self.cell_norm = nn.LayerNorm(hidden_size)
        self.forget_bias = forget_bias

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]):
        h, c = state
        pre = self.linear(torch.cat([x, h], dim=-1)).unflatten(
            -1, (4, self.hidden_size)
        )
        pre = F.layer_norm(pre, (self.hidden_size,)) * self.gain + self.shift
        f, i, o, g = pre.unbind(-2)
        c = torch.sigmoid(f + self.forget_bias) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.cell_norm(c))
        return h, (h, c)


class StepwiseBNLSTM(nn.Module):
    """LSTM with recurrent batch norm, (T, N, D): shared gains, running statistics of each step's own."""

    def __init__(self, input_size, hidden_size, max_steps=10, eps=1e-5, momentum=0.1):
        super().__init__()
        self.hidden_size = hidden_size
        self.max_steps = max_steps
        self.eps = eps
        self.momentum = momentum
        self.weight_x = nn.Parameter(
            torch.randn(4 * hidden_size, input_size) / math.sqrt(input_size)
        )
        self.weight_h = nn.Parameter(
            nn.init.orthogonal_(torch.empty(4 * hidden_size, hidden_size))
        )
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.bias_c = nn.Parameter(torch.zeros(hidden_size))
        for name, size in (
            ("x", 4 * hidden_size),
            ("h", 4 * hidden_size),
            ("c", hidden_size),
        ):
            self.register_parameter(
                f"gain_{name}", nn.Parameter(torch.full((size,), 0.1))
            )
            self.register_buffer(f"mean_{name}", torch.zeros(max_steps, size))
            self.register_buffer(f"var_{name}", torch.ones(max_steps, size))

    def _bn(self, name, value, step, bias=None):
        step = min(step, self.max_steps - 1)
        return F.batch_norm(
            value,
            getattr(self, f"mean_{name}")[step],
            getattr(self, f"var_{name}")[step],
            getattr(self, f"gain_{name}"),
            bias,
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )

    def forward(self, x, state=None):
        if state is None:
            state = (
                x.new_zeros(x.size(1), self.hidden_size),
                x.new_zeros(x.size(1), self.hidden_size),
            )
        h, c = state
        outputs = []
        for t, x_t in enumerate(x):
            gates = (
                self._bn("x", F.linear(x_t, self.weight_x), t)
                + self._bn("h", F.linear(h, self.weight_h), t)
                + self.bias
            )
            i, f, g, o = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * self._bn("c", c, t, self.bias_c).tanh()
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class BatchFirstLNGRU(nn.Module):
    """Layer-normalized GRU, (N, T, D) -> (N, T, H), in Cho's form: z is the share that is renewed."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.batch_first = True
        self.hidden_size = hidden_size
        self.gates_x = nn.Linear(input_size, 2 * hidden_size, bias=False)
        self.gates_h = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.cand_x = nn.Linear(input_size, hidden_size, bias=False)
        self.cand_h = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm_gates_x = nn.LayerNorm(2 * hidden_size)
        self.norm_gates_h = nn.LayerNorm(2 * hidden_size)
        self.norm_cand_x = nn.LayerNorm(hidden_size)
        self.norm_cand_h = nn.LayerNorm(hidden_size)

    def forward(self, x, h=None):
        if h is None:
            h = x.new_zeros(x.size(0), self.hidden_size)
        gates_x = self.norm_gates_x(self.gates_x(x))
        cand_x = self.norm_cand_x(self.cand_x(x))
        outputs = []
        for t in range(x.size(1)):
            gates = torch.sigmoid(gates_x[:, t] + self.norm_gates_h(self.gates_h(h)))
            r, z = gates.chunk(2, dim=-1)
            candidate = torch.tanh(cand_x[:, t] + self.norm_cand_h(self.cand_h(r * h)))
            h = torch.lerp(h, candidate, z)
            outputs.append(h)
        return torch.stack(outputs, dim=1), h


# --------------------------------------------------------------------------------------
# cases
# --------------------------------------------------------------------------------------


def _padding_mask(x: Tensor) -> Tensor:
    """A mask (N, T), True on valid steps: sample k is k % 3 steps short."""
    lengths = x.size(1) - torch.arange(x.size(0)) % 3
    return torch.arange(x.size(1))[None, :] < lengths[:, None]


def _condition(x: Tensor, size: int) -> Tensor:
    """A fixed condition (N, size) for a batch."""
    return torch.linspace(-1.0, 1.0, x.size(0) * size, dtype=x.dtype).view(
        x.size(0), size
    )


BUGS = [
    Case(
        "temporal_bn",
        lambda: TemporalBatchNorm(6),
        arguments={"shape": (8, 6, 10), "kind": "batch"},
    ),
    Case(
        "my_bn2d",
        lambda: MyBatchNorm2d(8),
        arguments={"shape": (8, 8, 5, 5), "kind": "batch"},
    ),
    Case(
        "spatial_bn",
        lambda: SpatialBN(6),
        arguments={"shape": (6, 6, 5, 4), "kind": "batch"},
    ),
    Case(
        "bn_nhwc",
        lambda: BatchNormNHWC(6),
        arguments={"shape": (6, 5, 4, 6), "kind": "batch", "channel_axis": 3},
    ),
    Case(
        "feature_bn",
        lambda: FeatureBatchNorm(9),
        arguments={"shape": (16, 9), "kind": "batch"},
    ),
    Case(
        "synced_bn",
        lambda: SyncedBatchNorm(5),
        arguments={"shape": (4, 5, 6, 6), "kind": "batch"},
    ),
    Case(
        "masked_bn",
        lambda: MaskedBatchNorm1d(6),
        arguments={
            "shape": (6, 8, 6),
            "kind": "batch",
            "channel_axis": 2,
            "call": lambda layer, x: layer(x, _padding_mask(x)),
        },
    ),
    Case(
        "batch_renorm",
        lambda: BatchRenorm2d(5),
        arguments={"shape": (8, 5, 4, 4), "kind": "batch"},
    ),
    Case(
        "encoder_ln",
        lambda: LayerNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "layer", "channel_axis": 2},
    ),
    Case(
        "token_ln",
        lambda: TokenNorm(12),
        arguments={"shape": (4, 7, 12), "kind": "layer", "channel_axis": 2},
    ),
    Case(
        "llama_rms",
        lambda: LlamaStyleRMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2},
    ),
    Case(
        "gemma_rms",
        lambda: GemmaStyleRMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2},
    ),
    Case(
        "qk_norm",
        lambda: QKNorm(8),
        arguments={"shape": (3, 4, 6, 8), "kind": "rms", "channel_axis": 3},
    ),
    Case(
        "gn_nhwc",
        lambda: GroupNormNHWC(4, 8),
        arguments={"shape": (4, 5, 4, 8), "kind": "group", "channel_axis": 3},
    ),
    Case(
        "style_in",
        lambda: StyleInstanceNorm(5),
        arguments={"shape": (4, 5, 6, 6), "kind": "instance"},
    ),
    Case(
        "ada_ln",
        lambda: AdaLayerNorm(12, 5),
        arguments={
            "shape": (4, 7, 12),
            "kind": "layer",
            "channel_axis": 2,
            "call": lambda layer, x: layer(x, _condition(x, 5)),
        },
    ),
    Case(
        "ln_lstm",
        lambda: LayerNormLSTM(5, 6),
        arguments={"shape": (7, 3, 5), "kind": "lstm"},
    ),
    Case(
        "bn_lstm",
        lambda: BNLSTM(5, 6, max_length=7),
        arguments={"shape": (7, 6, 5), "kind": "lstm"},
    ),
    Case(
        "normed_lstm",
        lambda: NormedLSTM(4, 6),
        arguments={"shape": (6, 3, 4), "kind": "lstm"},
    ),
    Case(
        "stacked_ln_lstm",
        lambda: StackedLNLSTM(5, 6),
        arguments={"shape": (6, 3, 5), "kind": "lstm"},
    ),
    Case(
        "bi_ln_lstm",
        lambda: BiLNLSTM(5, 6),
        arguments={"shape": (6, 3, 5), "kind": "lstm"},
    ),
    Case("ln_gru", lambda: LayerNormGRU(5, 6), arguments={"shape": (6, 3, 5)}),
    Case(
        "ln_lstm_cell",
        lambda: LNLSTMCell(5, 6),
        arguments={"shape": (4, 5), "kind": "lstm"},
    ),
    Case(
        "batch_first_ln_lstm",
        lambda: BatchFirstLNLSTM(5, 6),
        arguments={"shape": (3, 6, 5), "kind": "lstm"},
    ),
    Case(
        "drop_ln_lstm",
        lambda: DropLNLSTM(5, 8),
        arguments={"shape": (6, 3, 5), "kind": "lstm"},
    ),
]

CONTROLS = [
    Case(
        "keras_bn",
        lambda: KerasBatchNorm(6),
        arguments={
            "shape": (8, 5, 5, 6),
            "kind": "batch",
            "channel_axis": 3,
            "eps": 1e-3,
        },
    ),
    Case(
        "offset_rms",
        lambda: OffsetRMSNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "rms", "channel_axis": 2},
    ),
    Case(
        "last_axis_gn",
        lambda: LastAxisGroupNorm(3, 12),
        arguments={"shape": (4, 5, 4, 12), "kind": "group", "channel_axis": 3},
    ),
    Case(
        "lean_ln",
        lambda: LeanLayerNorm(16),
        arguments={"shape": (4, 7, 16), "kind": "layer", "channel_axis": 2},
    ),
    Case(
        "cond_in",
        lambda: ConditionalInstanceNorm(4, 5),
        arguments={
            "shape": (6, 4, 5, 5),
            "kind": "instance",
            "call": lambda layer, x: layer(x, _condition(x, 5)),
        },
    ),
    Case(
        "per_gate_cell",
        lambda: PerGateLNLSTMCell(5, 6),
        arguments={"shape": (4, 5), "kind": "lstm"},
    ),
    Case(
        "stepwise_bn_lstm",
        lambda: StepwiseBNLSTM(5, 6),
        arguments={"shape": (7, 6, 5), "kind": "lstm"},
    ),
    Case(
        "batch_first_ln_gru",
        lambda: BatchFirstLNGRU(5, 6),
        arguments={"shape": (3, 6, 5)},
    ),
]
