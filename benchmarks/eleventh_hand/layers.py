"""Sound norm layers and normalized recurrent layers, as many projects write them.

An eleventh set, without a slip: written without a look at the checks or at the layers of
other hands. ``expected.txt`` says what each computes. The cases at the end say how each
was tried; recurrent layers without the interface of nn.LSTM were tried in two ways.
"""

# ruff: noqa: D101, D102, D103, D205, D209, D400, E501, UP006, UP035, UP045 - as written

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


# ---- 1 --------------------------------------------------------------------------------
class MaskedBatchNorm1d(nn.Module):
    """Batch norm for padded token sequences.

    x: (B, L, C), mask: (B, L) with True on real tokens. Mean and variance are taken per channel over
    the real tokens of the whole batch, so padding has no influence. Padded positions come out as zero.
    Without a mask all tokens count. Running statistics as in torch (momentum 0.1, unbiased variance).
    """

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
        dtype = x.dtype
        if dtype in (torch.float16, torch.bfloat16):
            x = x.float()
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        pad = ~mask.bool().unsqueeze(-1)  # (B, L, 1)

        if self.training:
            n = mask.sum().clamp(min=1).to(x.dtype)
            mean = x.masked_fill(pad, 0).sum(dim=(0, 1)) / n
            var = (x - mean).masked_fill(pad, 0).pow(2).sum(dim=(0, 1)) / n
            with torch.no_grad():
                unbiased = var * (n / (n - 1).clamp(min=1))
                self.running_mean += self.momentum * (
                    mean.to(self.running_mean.dtype) - self.running_mean
                )
                self.running_var += self.momentum * (
                    unbiased.to(self.running_var.dtype) - self.running_var
                )
        else:
            mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)

        out = (x - mean) / torch.sqrt(var + self.eps)
        out = out * self.weight.to(x.dtype) + self.bias.to(x.dtype)
        return out.masked_fill(pad, 0).to(dtype)


# ---- 2 --------------------------------------------------------------------------------
@dataclass
class NormConfig:
    channels: int
    eps: float = 1e-3
    decay: float = 0.99  # share of the OLD running value that is kept (TF convention)
    affine: bool = True


class BatchNorm2d(nn.Module):
    """Spatial batch norm for NCHW maps with TensorFlow's conventions.

    moving = decay * moving + (1 - decay) * batch, and the moving variance is the population variance.
    """

    def __init__(self, cfg: NormConfig):
        super().__init__()
        self.cfg = cfg
        if cfg.affine:
            self.gamma = nn.Parameter(torch.ones(cfg.channels))
            self.beta = nn.Parameter(torch.zeros(cfg.channels))
        else:
            self.register_parameter("gamma", None)
            self.register_parameter("beta", None)
        self.register_buffer("moving_mean", torch.zeros(cfg.channels))
        self.register_buffer("moving_var", torch.ones(cfg.channels))

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor):
        w = 1.0 - self.cfg.decay
        self.moving_mean.lerp_(mean.to(self.moving_mean.dtype), w)
        self.moving_var.lerp_(var.to(self.moving_var.dtype), w)

    def forward(self, x: Tensor) -> Tensor:
        compute = torch.promote_types(x.dtype, torch.float32)
        h = x.to(compute)
        if self.training:
            var, mean = torch.var_mean(h, dim=(0, 2, 3), correction=0)
            self._track(mean, var)
        else:
            mean, var = self.moving_mean.to(compute), self.moving_var.to(compute)
        inv = torch.rsqrt(var + self.cfg.eps)
        if self.gamma is not None:
            inv = inv * self.gamma.to(compute)
        h = (h - mean[None, :, None, None]) * inv[None, :, None, None]
        if self.beta is not None:
            h = h + self.beta.to(compute)[None, :, None, None]
        return h.to(x.dtype)


# ---- 3 --------------------------------------------------------------------------------
class ConditionalBatchNorm3d(nn.Module):
    """Class-conditional batch norm for videos (B, C, T, H, W): the normalized video is scaled and shifted
    by a gain and a bias looked up per class label y (B,). Gains start around one, biases at zero."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.num_features = num_features
        self.bn = nn.BatchNorm3d(num_features, affine=False)
        self.embed = nn.Embedding(num_classes, num_features * 2)
        self.embed.weight.data[:, :num_features].normal_(1, 0.02)
        self.embed.weight.data[:, num_features:].zero_()

    def forward(self, x, y):
        out = self.bn(x)
        gamma, beta = self.embed(y).chunk(2, 1)
        gamma = gamma.view(-1, self.num_features, 1, 1, 1)
        beta = beta.view(-1, self.num_features, 1, 1, 1)
        return (gamma * out + beta).type_as(x)


# ---- 4 --------------------------------------------------------------------------------
class LayerNorm2d(nn.Module):
    """LayerNorm over the channel dimension of (N, C, H, W), separately at every pixel."""

    def __init__(self, num_channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        orig = x.dtype
        if orig != torch.float64:
            x = x.float()
        u = x.mean(1, keepdim=True)
        xc = x - u
        s = xc.pow(2).mean(1, keepdim=True)
        x = xc / torch.sqrt(s + self.eps)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return x.to(orig)


# ---- 5 --------------------------------------------------------------------------------
@torch.jit.script
def _rms_norm_impl(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = hidden.to(torch.float32)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (weight.to(torch.float32) * h).to(hidden.dtype)


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, computed in float32 whatever comes in."""

    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return _rms_norm_impl(hidden_states, self.weight, self.variance_epsilon)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


# ---- 6 --------------------------------------------------------------------------------
class GroupNormNHWC(nn.Module):
    """Group norm for channels-last tensors (N, H, W, C) (any number of spatial dims), optional SiLU."""

    def __init__(self, channels, groups=8, eps=1e-5, silu=False):
        super().__init__()
        if channels % groups:
            raise ValueError(f"{channels} channels do not divide into {groups} groups")
        self.groups = groups
        self.eps = eps
        self.silu = silu
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        n, c = x.shape[0], x.shape[-1]
        # n ... (g d) -> n s g d
        y = x.reshape(n, -1, self.groups, c // self.groups)
        y = y.to(torch.promote_types(y.dtype, torch.float32))
        var, mean = torch.var_mean(y, dim=(1, 3), unbiased=False, keepdim=True)
        y = (y - mean) * (var + self.eps).rsqrt()
        # n s g d -> n ... (g d)
        y = y.reshape(x.shape) * self.scale + self.shift
        if self.silu:
            y = F.silu(y)
        return y.to(x.dtype)


# ---- 7 --------------------------------------------------------------------------------
def length_mask(lengths: Tensor, max_len: int) -> Tensor:
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


class UtteranceNorm(nn.Module):
    """Per-utterance mean and variance normalization of speech features (B, T, F).

    Each feature of each utterance is brought to zero mean and unit variance over its own valid frames
    (first `lengths[b]` frames). No parameters. Frames behind the end are zero. The variance has a floor
    of `floor` in place of an added epsilon.
    """

    def __init__(self, norm_vars: bool = True, floor: float = 1e-5):
        super().__init__()
        self.norm_vars = norm_vars
        self.floor = floor

    def forward(self, feats: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        b, t, _ = feats.shape
        if lengths is None:
            lengths = torch.full((b,), t, device=feats.device, dtype=torch.long)
        valid = length_mask(lengths, t)[..., None]
        count = lengths.clamp(min=1)[:, None, None]

        x = feats.float() if feats.dtype in (torch.half, torch.bfloat16) else feats
        x = torch.where(valid, x, 0.0)
        mean = x.sum(1, keepdim=True) / count
        x = torch.where(valid, x - mean, 0.0)
        if self.norm_vars:
            var = x.square().sum(1, keepdim=True) / count
            x = x * var.clamp(min=self.floor).rsqrt()
        return x.to(feats.dtype)


# ---- 8 --------------------------------------------------------------------------------
class ScaledWSConv2d(nn.Conv2d):
    """Conv2d with scaled weight standardization (NF-ResNets): every filter is brought to zero mean and
    variance 1 / fan_in over (in, kh, kw), then multiplied by a learned gain per output channel."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        eps=1e-4,
    ):
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
        )
        self.gain = nn.Parameter(torch.ones(out_channels, 1, 1, 1))
        self.eps = eps

    def get_weight(self):
        w = self.weight
        if w.dtype in (torch.float16, torch.bfloat16):
            w = w.float()
        fan_in = w[0].numel()
        var, mean = torch.var_mean(w, dim=(1, 2, 3), unbiased=False, keepdim=True)
        scale = torch.rsqrt((var * fan_in).clamp(min=self.eps)) * self.gain
        return ((w - mean) * scale).to(self.weight.dtype)

    def forward(self, x):
        return F.conv2d(
            x,
            self.get_weight(),
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )


# ---- 9 --------------------------------------------------------------------------------
class WNLinear(nn.Module):
    """Linear layer with weight normalization: W = exp(log_g) * V / ||V||, one length per output unit."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.V = nn.Parameter(torch.randn(d_out, d_in) * 0.05)
        self.log_g = nn.Parameter(torch.zeros(d_out))
        self.b = nn.Parameter(torch.zeros(d_out))

    @property
    def W(self):
        v = self.V if self.V.dtype == torch.float64 else self.V.float()
        w = (
            v
            / v.norm(dim=1, keepdim=True).clamp_min(1e-12)
            * self.log_g.to(v.dtype).exp()[:, None]
        )
        return w.to(self.V.dtype)

    def forward(self, x):
        return x @ self.W.t() + self.b


# ---- 10 --------------------------------------------------------------------------------
class SNConv2d(nn.Conv2d):
    """Conv2d whose kernel, seen as an (out, in*kh*kw) matrix, is divided by its largest singular value.
    The singular value is estimated by power iteration on a stored vector, `n_iter` steps per training
    forward; in eval mode the stored vector is left alone."""

    def __init__(self, *args, n_iter=1, eps=1e-12, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_iter = n_iter
        self.sn_eps = eps
        self.register_buffer("u", F.normalize(torch.randn(self.out_channels), dim=0))
        self._iterate(30)

    def _matrix(self):
        w = self.weight.flatten(1)
        return w if w.dtype == torch.float64 else w.float()

    @torch.no_grad()
    def _iterate(self, steps):
        mat = self._matrix()
        u = self.u.to(mat.dtype)
        for _ in range(steps):
            v = F.normalize(mat.t() @ u, dim=0, eps=self.sn_eps)
            u = F.normalize(mat @ v, dim=0, eps=self.sn_eps)
        self.u.copy_(u)

    def normalized_weight(self):
        if self.training:
            self._iterate(self.n_iter)
        mat = self._matrix()
        with torch.no_grad():
            u = F.normalize(self.u.to(mat.dtype), dim=0, eps=self.sn_eps)
            v = F.normalize(mat.t() @ u, dim=0, eps=self.sn_eps)
        sigma = torch.dot(u, mat @ v)
        return (mat / sigma).view_as(self.weight).to(self.weight.dtype)

    def forward(self, x):
        return self._conv_forward(x, self.normalized_weight(), self.bias)


# ---- 11 --------------------------------------------------------------------------------
class ScaleNorm(nn.Module):
    """ScaleNorm (Nguyen & Salazar 2019): g * x / ||x||, a single learned scalar g, initially sqrt(dim)."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(float(dim)).sqrt())
        self.eps = eps

    def forward(self, x):
        xf = x.float() if x.dtype in {torch.float16, torch.bfloat16} else x
        norm = torch.linalg.vector_norm(xf, dim=-1, keepdim=True).clamp(min=self.eps)
        return (xf / norm * self.g).to(x.dtype)


# ---- 12 --------------------------------------------------------------------------------
class BatchRenorm1d(nn.Module):
    """Batch renormalization (Ioffe 2017) for (N, C) features.

    Training: x_hat = (x - mu_B) / sigma_B * r + d, r = sigma_B / sigma and d = (mu_B - mu) / sigma, both
    clipped and without gradient. The clipping is relaxed over the first `warmup` training steps from
    (r_max, d_max) = (1, 0), which is plain batch norm, to (3, 5). Evaluation: the running statistics.
    """

    r_limit, d_limit = 3.0, 5.0

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-3,
        momentum: float = 0.01,
        warmup: int = 10_000,
    ):
        super().__init__()
        self.eps, self.momentum, self.warmup = eps, momentum, warmup
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_std", torch.ones(num_features))
        self.register_buffer("steps", torch.tensor(0, dtype=torch.long))

    def _limits(self) -> Tuple[float, float]:
        done = min(1.0, int(self.steps) / self.warmup)
        return 1.0 + done * (self.r_limit - 1.0), done * self.d_limit

    def forward(self, x: Tensor) -> Tensor:
        inputs, x = x, x.to(torch.promote_types(x.dtype, torch.float32))
        run_mean, run_std = self.running_mean.to(x.dtype), self.running_std.to(x.dtype)
        if self.training:
            mean = x.mean(0)
            std = (x.var(0, unbiased=False) + self.eps).sqrt()
            r_max, d_max = self._limits()
            r = (std.detach() / run_std).clamp(1 / r_max, r_max)
            d = ((mean.detach() - run_mean) / run_std).clamp(-d_max, d_max)
            x = (x - mean) / std * r + d
            with torch.no_grad():
                self.running_mean.copy_(
                    run_mean + self.momentum * (mean.detach() - run_mean)
                )
                self.running_std.copy_(
                    run_std + self.momentum * (std.detach() - run_std)
                )
                self.steps += 1
        else:
            x = (x - run_mean) / run_std
        return (self.weight * x + self.bias).to(inputs.dtype)


# ---- 13 --------------------------------------------------------------------------------
class RunningNorm(nn.Module):
    """Observation normalizer for RL. Keeps mean and variance of everything seen in training (Chan's
    parallel update, equal weight for every sample), and normalizes with them, the current batch included;
    the result is clipped to [-clip, clip]. Frozen in eval mode. No learned parameters."""

    def __init__(self, shape: int, clip: float = 10.0, eps: float = 1e-8):
        super().__init__()
        self.clip = clip
        self.eps = eps
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        obs = obs.reshape(-1, obs.shape[-1]).double()
        n = obs.shape[0]
        if n == 0:
            return
        old = int(self.count)
        total = old + n
        batch_var, batch_mean = torch.var_mean(obs, dim=0, unbiased=False)
        mean, var = self.mean.double(), self.var.double()
        delta = batch_mean - mean
        m2 = var * old + batch_var * n + delta**2 * (old * n / total)
        self.mean.copy_(mean + delta * (n / total))
        self.var.copy_(m2 / total)
        self.count.fill_(total)

    def forward(self, obs: Tensor) -> Tensor:
        if self.training:
            self.update(obs)
        dt = torch.promote_types(obs.dtype, torch.float32)
        z = (obs.to(dt) - self.mean.to(dt)) / torch.sqrt(self.var.to(dt) + self.eps)
        return z.clamp(-self.clip, self.clip).to(obs.dtype)


# ---- 14 --------------------------------------------------------------------------------
class AdaLayerNorm(nn.Module):
    """Adaptive LayerNorm as in DiT: LN(x) * (1 + scale(c)) + shift(c), x (B, N, D), c (B, D_c).
    The LayerNorm has no parameters of its own; the projection of c starts at zero, so that the layer
    starts as a plain LayerNorm."""

    def __init__(self, dim: int, cond_dim: int, eps: float = 1e-6):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=eps)
        self.to_shift_scale = nn.Sequential(nn.SiLU(), nn.Linear(cond_dim, 2 * dim))
        nn.init.zeros_(self.to_shift_scale[-1].weight)
        nn.init.zeros_(self.to_shift_scale[-1].bias)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        shift, scale = self.to_shift_scale(cond).unsqueeze(1).chunk(2, dim=-1)
        return self.norm(x) * (1 + scale) + shift


# ---- 15 --------------------------------------------------------------------------------
class QKNorm(nn.Module):
    """RMS norm of queries and keys over the head dimension, before the dot product.
    q, k: (batch, heads, tokens, head_dim). Gains are separate for q and k and shared by the heads."""

    def __init__(self, head_dim: int, eps: float = 1e-6):
        super().__init__()
        self.q_scale = nn.Parameter(torch.ones(head_dim))
        self.k_scale = nn.Parameter(torch.ones(head_dim))
        self.eps = eps

    def _rms(self, t: Tensor, scale: Tensor) -> Tensor:
        return F.rms_norm(t, t.shape[-1:], scale.to(t.dtype), self.eps)

    def forward(self, q: Tensor, k: Tensor) -> Tuple[Tensor, Tensor]:
        return self._rms(q, self.q_scale), self._rms(k, self.k_scale)


# ---- 16 --------------------------------------------------------------------------------
class AddLayerNorm(nn.Module):
    """Fused "add, then LayerNorm" for pre-norm transformers.

    Takes the output of the last block and the residual stream, returns (LN(x + residual), x + residual).
    The residual stream stays in float32 (or higher) even if the blocks run in half precision.
    """

    def __init__(self, dim, eps=1e-5, bias=True):
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x, residual=None):
        stream = x.to(torch.promote_types(x.dtype, torch.float32))
        if residual is not None:
            stream = stream + residual.to(stream.dtype)
        bias = None if self.bias is None else self.bias.to(stream.dtype)
        normed = F.layer_norm(
            stream, (self.dim,), self.weight.to(stream.dtype), bias, self.eps
        )
        return normed.to(x.dtype), stream


# ---- 17 --------------------------------------------------------------------------------
class DyT(nn.Module):
    """Dynamic Tanh (Zhu et al. 2025): gamma * tanh(alpha * x) + beta, in place of a LayerNorm.
    No statistics are computed; alpha is one learned scalar."""

    def __init__(
        self,
        normalized_shape: int,
        channels_last: bool = True,
        alpha_init_value: float = 0.5,
    ):
        super().__init__()
        self.channels_last = channels_last
        self.alpha = nn.Parameter(torch.ones(1) * alpha_init_value)
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x):
        x = torch.tanh(self.alpha * x)
        if self.channels_last:
            return x * self.weight + self.bias
        return x * self.weight[:, None, None] + self.bias[:, None, None]


# ---- 18 --------------------------------------------------------------------------------
class LayerNormLSTMCell(nn.Module):
    """LSTM cell with layer normalization (Ba et al. 2016):

        i, f, g, o = LN(W_x x) + LN(W_h h)
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(LN(c'))

    The biases sit in the layer norms; that of the forget gate starts at one. Returns (h', c').
    """

    def __init__(self, input_size, hidden_size, forget_bias=1.0):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.ih = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.hh = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_c = nn.LayerNorm(hidden_size)
        self.reset_parameters(forget_bias)

    def reset_parameters(self, forget_bias):
        for gate in self.hh.weight.chunk(4, 0):
            nn.init.orthogonal_(gate)
        nn.init.xavier_uniform_(self.ih.weight)
        with torch.no_grad():
            self.ln_ih.bias[self.hidden_size : 2 * self.hidden_size].fill_(forget_bias)

    def forward(self, x, state=None):
        if state is None:
            zeros = x.new_zeros(x.size(0), self.hidden_size)
            state = (zeros, zeros)
        h, c = state
        gates = self.ln_ih(self.ih(x)) + self.ln_hh(self.hh(h))
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.ln_c(c))
        return h, c


# ---- 19 --------------------------------------------------------------------------------
class NormGRUCell(nn.Module):
    """The GRU cell of the Dreamer world models.

        reset, cand, update = split(LN(W [x, h]))
        h' = u * tanh(sigmoid(reset) * cand) + (1 - u) * h,   u = sigmoid(update + update_bias)

    update_bias = -1 makes the state persist at the start. One layer norm over all 3 * size units.
    """

    def __init__(
        self, inp_size: int, size: int, update_bias: float = -1.0, eps: float = 1e-3
    ):
        super().__init__()
        self._size = size
        self._update_bias = update_bias
        self.layer = nn.Linear(inp_size + size, 3 * size, bias=False)
        self.norm = nn.LayerNorm(3 * size, eps=eps)

    @property
    def state_size(self):
        return self._size

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        parts = self.norm(self.layer(torch.cat([inputs, state], -1)))
        reset, cand, update = torch.split(parts, [self._size] * 3, -1)
        reset = torch.sigmoid(reset)
        cand = torch.tanh(reset * cand)
        update = torch.sigmoid(update + self._update_bias)
        return update * cand + (1 - update) * state


# ---- 20 --------------------------------------------------------------------------------
class _LNGRUDirection(nn.Module):
    def __init__(self, d_in, d_hidden):
        super().__init__()
        self.d_hidden = d_hidden
        self.x2zr = nn.Linear(d_in, 2 * d_hidden, bias=False)
        self.h2zr = nn.Linear(d_hidden, 2 * d_hidden, bias=False)
        self.x2n = nn.Linear(d_in, d_hidden, bias=False)
        self.h2n = nn.Linear(d_hidden, d_hidden, bias=False)
        self.norm_x2zr = nn.LayerNorm(2 * d_hidden)
        self.norm_h2zr = nn.LayerNorm(2 * d_hidden)
        self.norm_x2n = nn.LayerNorm(d_hidden)
        self.norm_h2n = nn.LayerNorm(d_hidden)

    def forward(self, x, mask, reverse: bool):
        b, t, _ = x.shape
        # the input side does not depend on the state: all steps at once
        xzr = self.norm_x2zr(self.x2zr(x))
        xn = self.norm_x2n(self.x2n(x))
        h = x.new_zeros(b, self.d_hidden)
        outs = [None] * t
        order = range(t - 1, -1, -1) if reverse else range(t)
        for s in order:
            z, r = torch.sigmoid(xzr[:, s] + self.norm_h2zr(self.h2zr(h))).chunk(2, -1)
            n = torch.tanh(xn[:, s] + r * self.norm_h2n(self.h2n(h)))
            new = (1 - z) * n + z * h
            m = mask[:, s, None]
            h = torch.where(m, new, h)  # padding does not move the state
            outs[s] = torch.where(m, new, torch.zeros_like(new))
        return torch.stack(outs, 1), h


class BiLayerNormGRU(nn.Module):
    """Bidirectional layer-normalized GRU over padded sequences, batch first.

    x (B, T, D), mask (B, T) True on real steps (padding anywhere is skipped).
    Returns outputs (B, T, 2H), zero on padding, and the last states (2, B, H), as nn.GRU does.
    """

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.batch_first = True
        self.fwd = _LNGRUDirection(input_size, hidden_size)
        self.bwd = _LNGRUDirection(input_size, hidden_size)

    def forward(self, x, mask=None):
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        out_f, h_f = self.fwd(x, mask, reverse=False)
        out_b, h_b = self.bwd(x, mask, reverse=True)
        return torch.cat([out_f, out_b], dim=-1), torch.stack([h_f, h_b])


# ---- 21 --------------------------------------------------------------------------------
class StepwiseBatchNorm(nn.Module):
    """Batch norm with its own running statistics for every time step and shared parameters.
    Steps past max_length use the statistics of the last one."""

    def __init__(
        self,
        num_features,
        max_length,
        gamma_init=0.1,
        bias=True,
        eps=1e-5,
        momentum=0.1,
    ):
        super().__init__()
        self.max_length, self.eps, self.momentum = max_length, eps, momentum
        self.weight = nn.Parameter(torch.full((num_features,), gamma_init))
        if bias:
            self.bias = nn.Parameter(torch.zeros(num_features))
        else:
            self.register_parameter("bias", None)
        self.register_buffer("running_mean", torch.zeros(max_length, num_features))
        self.register_buffer("running_var", torch.ones(max_length, num_features))

    def forward(self, x, time):
        t = min(time, self.max_length - 1)
        return F.batch_norm(
            x,
            self.running_mean[t],
            self.running_var[t],
            self.weight,
            self.bias,
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )


class BNLSTM(nn.Module):
    """Recurrent batch normalization (Cooijmans et al. 2017), one layer, time first.

        f, i, o, g = BN(W_h h; t) + BN(W_x x; t) + b
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(BN(c; t))

    Input (T, B, D); returns (T, B, H) and (h, c), each (1, B, H).
    """

    def __init__(self, input_size: int, hidden_size: int, max_length: int = 32):
        super().__init__()
        self.batch_first = False
        self.input_size, self.hidden_size, self.max_length = (
            input_size,
            hidden_size,
            max_length,
        )
        self.weight_ih = nn.Parameter(torch.empty(input_size, 4 * hidden_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, 4 * hidden_size))
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.bn_ih = StepwiseBatchNorm(4 * hidden_size, max_length, bias=False)
        self.bn_hh = StepwiseBatchNorm(4 * hidden_size, max_length, bias=False)
        self.bn_c = StepwiseBatchNorm(hidden_size, max_length)
        nn.init.orthogonal_(self.weight_ih)
        with torch.no_grad():
            self.weight_hh.copy_(torch.eye(hidden_size).repeat(1, 4))
            self.bias[:hidden_size] = 1.0

    def forward(self, input_, hx=None):
        if hx is None:
            zero = input_.new_zeros(input_.size(1), self.hidden_size)
            h, c = zero, zero
        else:
            h, c = (s.squeeze(0) for s in hx)
        output = []
        for time, x in enumerate(input_):
            pre = (
                self.bn_hh(h @ self.weight_hh, time)
                + self.bn_ih(x @ self.weight_ih, time)
                + self.bias
            )
            f, i, o, g = pre.split(self.hidden_size, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * self.bn_c(c, time).tanh()
            output.append(h)
        return torch.stack(output, 0), (h.unsqueeze(0), c.unsqueeze(0))


# ---- 22 --------------------------------------------------------------------------------
@dataclass
class RMSLSTMConfig:
    d_input: int
    d_hidden: int
    n_layers: int = 2
    eps: float = 1e-5
    forget_bias: float = 1.0


@torch.jit.script
def _rms_lstm_step(
    xg: Tensor,
    h: Tensor,
    c: Tensor,
    w_hh: Tensor,
    gain: Tensor,
    bias: Tensor,
    eps: float,
) -> Tuple[Tensor, Tensor]:
    # gates: (B, 4, H); each gate has its own root mean square
    gates = (xg + torch.mm(h, w_hh.t())).view(h.size(0), 4, h.size(1))
    g32 = gates if gates.dtype == torch.float64 else gates.float()
    g32 = g32 * torch.rsqrt(g32.pow(2).mean(dim=-1, keepdim=True) + eps)
    gates = g32.to(xg.dtype) * gain + bias
    i, f, o, j = gates.unbind(1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(j)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h, c


class RMSLSTM(nn.Module):
    """Stack of LSTM layers whose four gate pre-activations W x + U h are each RMS-normalized over the
    hidden units, then given a gain and a bias (so biases come after the norm). Batch first.

    x (B, T, D) -> (B, T, H), (h_n, c_n) with shape (layers, B, H). Gate order i, f, o, j.
    """

    def __init__(self, config: RMSLSTMConfig):
        super().__init__()
        self.config = config
        self.batch_first = True
        n, d, h = config.n_layers, config.d_input, config.d_hidden
        self.w_ih = nn.ParameterList(
            nn.Parameter(torch.empty(4 * h, d if k == 0 else h)) for k in range(n)
        )
        self.w_hh = nn.ParameterList(
            nn.Parameter(torch.empty(4 * h, h)) for _ in range(n)
        )
        self.gain = nn.ParameterList(nn.Parameter(torch.ones(4, h)) for _ in range(n))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(4, h)) for _ in range(n))
        for k in range(n):
            nn.init.normal_(self.w_ih[k], std=1 / math.sqrt(self.w_ih[k].size(1)))
            nn.init.normal_(self.w_hh[k], std=1 / math.sqrt(h))
            nn.init.constant_(self.bias[k].data[1], config.forget_bias)

    def forward(self, x: Tensor, state: Optional[Tuple[Tensor, Tensor]] = None):
        cfg = self.config
        if state is None:
            zeros = x.new_zeros(cfg.n_layers, x.size(0), cfg.d_hidden)
            state = (zeros, zeros)
        h_n, c_n = [], []
        for k in range(cfg.n_layers):
            h, c = state[0][k], state[1][k]
            ys = []
            for xg in F.linear(x, self.w_ih[k]).unbind(1):
                h, c = _rms_lstm_step(
                    xg, h, c, self.w_hh[k], self.gain[k], self.bias[k], cfg.eps
                )
                ys.append(h)
            x = torch.stack(ys, 1)
            h_n.append(h)
            c_n.append(c)
        return x, (torch.stack(h_n), torch.stack(c_n))


# ---- 23 --------------------------------------------------------------------------------
class BatchRNN(nn.Module):
    """Recurrent block of a Deep Speech 2 acoustic model: sequence-wise batch norm on the input, then a
    bidirectional GRU whose two directions are added up.

    x (T, B, D), lengths (B,). The batch norm sees the real frames only. Returns (T, B, H), zero on padding.
    """

    def __init__(self, input_size, hidden_size, rnn_type=nn.GRU, batch_norm=True):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.batch_first = False
        self.batch_norm = nn.BatchNorm1d(input_size) if batch_norm else None
        self.rnn = rnn_type(
            input_size=input_size,
            hidden_size=hidden_size,
            bidirectional=True,
            bias=True,
        )

    def flatten_parameters(self):
        self.rnn.flatten_parameters()

    def forward(self, x, lengths=None):
        t, b, _ = x.shape
        if lengths is None:
            lengths = torch.full((b,), t, dtype=torch.long)
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), enforce_sorted=False
        )
        if self.batch_norm is not None:
            packed = packed._replace(data=self.batch_norm(packed.data))
        y, _ = self.rnn(packed)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, total_length=t)
        return y.view(t, b, 2, self.hidden_size).sum(2)  # (T, B, 2H) -> (T, B, H)


# ---- 24 --------------------------------------------------------------------------------
class LiGRU(nn.Module):
    """Light GRU (Ravanelli et al. 2018): no reset gate, ReLU candidate, batch norm on the feed-forward part.

        a, z = BN(W x_t) + U h_{t-1}
        h_t = sigmoid(z) * h_{t-1} + (1 - sigmoid(z)) * relu(a)

    Batch norm statistics run over batch and time. Bidirectional: the time-flipped sequences are put
    behind the others along the batch and share all weights. x (B, T, D) -> (B, T, H * dirs), (dirs, B, H).
    """

    def __init__(self, input_size, hidden_size, bidirectional=False):
        super().__init__()
        self.hidden_size = hidden_size
        self.bidirectional = bidirectional
        self.batch_first = True
        self.w = nn.Linear(input_size, 2 * hidden_size, bias=False)
        self.u = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.norm = nn.BatchNorm1d(2 * hidden_size, momentum=0.05)
        with torch.no_grad():
            for block in self.u.weight.split(hidden_size):
                nn.init.orthogonal_(block)

    def _recur(self, w: Tensor) -> Tensor:
        ht = w.new_zeros(w.shape[0], self.hidden_size)
        hiddens = []
        for k in range(w.shape[1]):
            at, zt = (w[:, k] + self.u(ht)).chunk(2, 1)
            zt = torch.sigmoid(zt)
            ht = zt * ht + (1 - zt) * torch.relu(at)
            hiddens.append(ht)
        return torch.stack(hiddens, dim=1)

    def forward(self, x: Tensor):
        if self.bidirectional:
            x = torch.cat([x, x.flip(1)], dim=0)
        w = self.w(x)
        w = self.norm(w.reshape(-1, w.shape[2])).view_as(w)
        h = self._recur(w)
        if not self.bidirectional:
            return h, h[:, -1].unsqueeze(0)
        h_f, h_b = h.chunk(2, dim=0)
        last = torch.stack([h_f[:, -1], h_b[:, -1]])
        return torch.cat([h_f, h_b.flip(1)], dim=2), last


# ---- 25 --------------------------------------------------------------------------------
class RNNOutput(NamedTuple):
    sequence: Tensor
    last: Tensor


class LayerNormRNN(nn.Module):
    """Elman network with one layer norm on the summed inputs, h_t = tanh(LN(W x_t + U h_{t-1})).

    x (B, T, D). Returns the states of all steps (B, T, H) and the last one (B, H).
    The initial state is learned.
    """

    def __init__(self, n_in: int, n_hid: int):
        super().__init__()
        self.W = nn.Linear(n_in, n_hid, bias=False)
        self.U = nn.Linear(n_hid, n_hid, bias=False)
        self.ln_gain = nn.Parameter(torch.ones(n_hid))
        self.ln_bias = nn.Parameter(torch.zeros(n_hid))
        self.h0 = nn.Parameter(torch.zeros(n_hid))
        nn.init.orthogonal_(self.U.weight)

    def step(self, x_t: Tensor, h: Tensor) -> Tensor:
        a = self.W(x_t) + self.U(h)
        return torch.tanh(F.layer_norm(a, a.shape[-1:], self.ln_gain, self.ln_bias))

    def forward(self, x: Tensor) -> RNNOutput:
        h = self.h0.expand(x.shape[0], -1)
        states = []
        for x_t in x.unbind(dim=1):
            h = self.step(x_t, h)
            states.append(h)
        return RNNOutput(torch.stack(states, dim=1), h)


# --- how each was tried: by who wrote no layer


@dataclass(frozen=True)
class Case:
    """One layer: its name, how to make it, and what a caller has to know."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], object] | None = None  # of a model that is audited
    arguments: dict = field(default_factory=dict)


def _for(x, condition):
    """The condition, once for each example of x."""
    return condition.to(x).expand(x.size(0), *condition.shape[1:])


COND = torch.linspace(-1, 1, 8)[None]
LABEL = torch.tensor([3])


def _short_last(x):
    """A mask in which every example ends one step before the last."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[:, -1] = False
    return mask


BUGS = []
CONTROLS = [
    Case(
        "masked_batch_norm_1d",
        lambda: MaskedBatchNorm1d(12),
        arguments={"shape": (6, 9, 12), "channel_axis": -1},
    ),
    Case(
        "masked_batch_norm_1d_with_mask",
        lambda: MaskedBatchNorm1d(12),
        arguments={
            "shape": (6, 9, 12),
            "channel_axis": -1,
            "call": lambda layer, x: layer(x, _short_last(x)),
        },
    ),
    Case(
        "batch_norm_2d",
        lambda: BatchNorm2d(NormConfig(channels=8)),
        arguments={"shape": (6, 8, 5, 7)},
    ),
    Case(
        "conditional_batch_norm_3d",
        lambda: ConditionalBatchNorm3d(8, num_classes=5),
        arguments={
            "shape": (4, 8, 3, 5, 6),
            "call": lambda layer, x: layer(x, LABEL.expand(x.size(0))),
        },
    ),
    Case("layer_norm_2d", lambda: LayerNorm2d(16), arguments={"shape": (4, 16, 6, 5)}),
    Case("rms_norm", lambda: RMSNorm(24), arguments={"shape": (4, 7, 24)}),
    Case(
        "group_norm_nhwc",
        lambda: GroupNormNHWC(16, groups=4),
        arguments={"shape": (4, 6, 5, 16), "channel_axis": -1},
    ),
    Case(
        "utterance_norm",
        UtteranceNorm,
        arguments={"shape": (5, 20, 10), "channel_axis": -1},
    ),
    Case(
        "scaled_ws_conv_2d",
        lambda: ScaledWSConv2d(6, 10, 3, padding=1),
        lambda: torch.randn(4, 6, 8, 8),
    ),
    Case("wn_linear", lambda: WNLinear(14, 9), lambda: torch.randn(6, 14)),
    Case(
        "sn_conv_2d",
        lambda: SNConv2d(6, 10, 3, padding=1),
        lambda: torch.randn(4, 6, 8, 8),
    ),
    Case("scale_norm", lambda: ScaleNorm(20), arguments={"shape": (4, 6, 20)}),
    Case("batch_renorm_1d", lambda: BatchRenorm1d(12), arguments={"shape": (16, 12)}),
    Case("running_norm", lambda: RunningNorm(10), arguments={"shape": (16, 10)}),
    Case(
        "ada_layer_norm",
        lambda: AdaLayerNorm(16, cond_dim=8),
        arguments={
            "shape": (4, 6, 16),
            "call": lambda layer, x: layer(x, _for(x, COND)),
        },
    ),
    Case(
        "qk_norm",
        lambda: QKNorm(16),
        arguments={
            "shape": (3, 4, 6, 16),
            "call": lambda layer, x: layer(x, x)[0],
        },
    ),
    Case(
        "add_layer_norm",
        lambda: AddLayerNorm(18),
        arguments={"shape": (4, 6, 18), "call": lambda layer, x: layer(x)[0]},
    ),
    Case("dyt", lambda: DyT(16), arguments={"shape": (4, 6, 16)}),
    Case(
        "layer_norm_lstm_cell",
        lambda: LayerNormLSTMCell(10, 12),
        arguments={"shape": (5, 10)},
    ),
    Case("norm_gru_cell", lambda: NormGRUCell(10, 12), arguments={"shape": (5, 10)}),
    Case(
        "bi_layer_norm_gru",
        lambda: BiLayerNormGRU(8, 10),
        arguments={"shape": (5, 7, 8)},
    ),
    Case(
        "bn_lstm",
        lambda: BNLSTM(8, 10, max_length=32),
        arguments={"shape": (6, 12, 8)},
    ),
    Case(
        "rms_lstm",
        lambda: RMSLSTM(RMSLSTMConfig(d_input=8, d_hidden=10)),
        arguments={"shape": (5, 7, 8)},
    ),
    Case("batch_rnn", lambda: BatchRNN(8, 10), arguments={"shape": (9, 5, 8)}),
    Case(
        "li_gru",
        lambda: LiGRU(8, 10, bidirectional=True),
        arguments={"shape": (5, 7, 8)},
    ),
    Case("layer_norm_rnn", lambda: LayerNormRNN(8, 12), arguments={"shape": (5, 7, 8)}),
    Case(
        "audit_gru_cell",
        lambda: NormGRUCell(10, 12),
        lambda: (torch.randn(8, 10), torch.randn(8, 12)),
    ),
    Case("audit_gru", lambda: BiLayerNormGRU(8, 10), lambda: torch.randn(8, 7, 8)),
    Case("audit_batch_rnn", lambda: BatchRNN(8, 10), lambda: torch.randn(9, 12, 8)),
    Case(
        "audit_li_gru",
        lambda: LiGRU(8, 10, bidirectional=True),
        lambda: torch.randn(8, 7, 8),
    ),
    Case("audit_rnn", lambda: LayerNormRNN(8, 12), lambda: torch.randn(8, 7, 8)),
]
