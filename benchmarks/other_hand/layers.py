"""Layers and models with one slip each, as people write them by hand, and sound ones.

They were written, and what a right report must say in `expected.txt`, before their
author had read how the checks work. None is copied: the slips are those of the
issues that `expected.txt` links.
"""

# ruff: noqa: D102 - what a forward does is said of its class

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- norm layers with a slip


class SquaredNotRooted(nn.Module):
    """Divide by the square of the variance where the root was meant."""

    def __init__(self, input_dim: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(input_dim))
        self.beta = nn.Parameter(torch.zeros(input_dim))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs - torch.mean(inputs, dim=-1, keepdim=True)
        variance = torch.mean(outputs**2, dim=-1, keepdim=True)
        std = (variance + self.epsilon) ** 2
        return outputs / std * self.gamma + self.beta


class DividesByRsqrt(nn.Module):
    """An RMS norm that divides by the reciprocal of the root."""

    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        mean_square = x.float().pow(2).mean(-1, keepdim=True)
        output = x / torch.rsqrt(mean_square + self.eps)
        return (output * self.weight).to(x.dtype)


class OverTheSequence(nn.Module):
    """A layer norm of (N, T, D) whose mean and variance are over T."""

    def __init__(self, d_hid: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.a_2 = nn.Parameter(torch.ones(d_hid))
        self.b_2 = nn.Parameter(torch.zeros(d_hid))

    def forward(self, z: Tensor) -> Tensor:
        mu = torch.mean(z, keepdim=True, dim=1)
        var = torch.var(z, keepdim=True, dim=1, unbiased=False)
        return (z - mu) / torch.sqrt(var + self.eps) * self.a_2 + self.b_2


class GroupsWithoutTranspose(nn.Module):
    """A group norm of (N, H, W, C) that reshapes as if C came first."""

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        n, h, w, c = inputs.shape
        grouped = inputs.reshape(n, self.groups, h, w, c // self.groups)
        var, mean = torch.var_mean(grouped, (2, 3, 4), correction=0, keepdim=True)
        grouped = (grouped - mean) * torch.rsqrt(var + self.eps)
        return grouped.reshape(n, h, w, c) * self.gamma + self.beta


class GainPerGroup(nn.Module):
    """A group norm whose gain and bias are one for each group, not each channel."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = nn.Parameter(torch.ones(1, num_groups, 1))
        self.bias = nn.Parameter(torch.zeros(1, num_groups, 1))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(shape[0], self.num_groups, -1)
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        x = (x - mean) / (var + self.eps).sqrt()
        return (x * self.weight + self.bias).reshape(shape)


class MomentumReversed(nn.BatchNorm2d):
    """A batch norm that keeps `momentum`, 0.1, of its running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            var, mean = torch.var_mean(x, (0, 2, 3))
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                self.running_mean.copy_(
                    self.momentum * self.running_mean + (1 - self.momentum) * mean
                )
                self.running_var.copy_(
                    self.momentum * self.running_var + (1 - self.momentum) * var
                )
            return F.batch_norm(
                x, None, None, self.weight, self.bias, training=True, eps=self.eps
            )
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


class FirstBatchAgain(nn.Module):
    """A batch norm that starts from its first batch, by a flag that is not saved."""

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.initialized = False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.initialized:
            with torch.no_grad():
                dims = [d for d in range(x.dim()) if d != 1]
                var, mean = torch.var_mean(x, dims)
                self.running_mean.copy_(mean)
                self.running_var.copy_(var)
            self.initialized = True
            return F.batch_norm(
                x, None, None, self.weight, self.bias, training=True, eps=self.eps
            )
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


class GhostsInEvaluation(nn.Module):
    """A ghost batch norm that cuts the batch into ghosts in evaluation too."""

    def __init__(self, num_features: int, virtual_batch_size: int = 4) -> None:
        super().__init__()
        self.virtual_batch_size = virtual_batch_size
        self.eps, self.momentum = 1e-5, 0.1
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        n, c = x.shape
        ghosts = x.view(-1, min(n, self.virtual_batch_size), c)
        if self.training:
            mean = ghosts.mean(1, keepdim=True)
            var = ghosts.var(1, keepdim=True, unbiased=False)
            with torch.no_grad():
                self.running_mean.lerp_(mean.mean((0, 1)), self.momentum)
                size = ghosts.shape[1]
                unbiased = var.mean((0, 1)) * size / (size - 1)
                self.running_var.lerp_(unbiased, self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        y = (ghosts - mean) / torch.sqrt(var + self.eps)
        return y.view(n, c) * self.weight + self.bias


class MeanOfVariances(nn.Module):
    """A synchronized batch norm that averages the variances of the devices.

    The devices are parts of the batch here.
    """

    def __init__(self, num_features: int, devices: int = 2) -> None:
        super().__init__()
        self.devices, self.eps, self.momentum = devices, 1e-5, 0.1
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        if self.training:
            parts = x.chunk(self.devices)
            mean = torch.stack([p.mean((0, 2, 3)) for p in parts]).mean(0)
            var = torch.stack([p.var((0, 2, 3), correction=0) for p in parts]).mean(0)
            count = x.numel() / x.shape[1]
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * count / (count - 1), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        x = (x - mean.view(shape)) * torch.rsqrt(var.view(shape) + self.eps)
        return x * self.weight.view(shape) + self.bias.view(shape)


class SumOfSquaresInHalf(nn.Module):
    """An RMS norm that adds the squares up in the dtype of its input."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        total = (x * x).sum(-1, keepdim=True)
        rms = torch.sqrt(total.float() / x.shape[-1] + self.eps)
        return (self.weight.float() * (x.float() / rms)).to(x.dtype)


class StyleOverTheBatch(nn.Module):
    """An adaptive instance norm whose statistics are those of the batch."""

    def __init__(self, style_dim: int, num_features: int) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, 1e-5
        self.fc = nn.Linear(style_dim, 2 * num_features)

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        gamma, beta = self.fc(s)[:, :, None, None].chunk(2, dim=1)
        out = F.batch_norm(x, None, None, training=True, eps=self.eps)
        return (1 + gamma) * out + beta


class MaskCountedOnce(nn.Module):
    """A masked batch norm that forgets how far the mask is broadcast."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:  # (N, 1, H, 1): which rows are there
            mask = x.new_ones(x.shape[0], 1, x.shape[2], 1)
        shape = (1, -1, 1, 1)
        if self.training:
            count = mask.sum()
            mean = (x * mask).sum((0, 2, 3)) / count
            var = ((x - mean.view(shape)).square() * mask).sum((0, 2, 3)) / count
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * count / (count - 1), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        x = (x - mean.view(shape)) / (var.view(shape) + self.eps).sqrt()
        return x * self.weight.view(shape) + self.bias.view(shape)


class ModeFromGradients(nn.Module):
    """A batch norm that takes `torch.no_grad` for evaluation, not `eval()`."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, num_features, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, num_features, 1, 1))
        self.register_buffer("moving_mean", torch.zeros(1, num_features, 1, 1))
        self.register_buffer("moving_var", torch.ones(1, num_features, 1, 1))
        self.eps, self.momentum = 1e-5, 0.1

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            x_hat = (x - self.moving_mean) / torch.sqrt(self.moving_var + self.eps)
        else:
            mean = x.mean(dim=(0, 2, 3), keepdim=True)
            var = ((x - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
            x_hat = (x - mean) / torch.sqrt(var + self.eps)
            n = x.numel() / x.shape[1]
            m = self.momentum
            with torch.no_grad():
                self.moving_mean.mul_(1 - m).add_(m * mean)
                self.moving_var.mul_(1 - m).add_(m * var * n / (n - 1))
        return self.gamma * x_hat + self.beta


class ReshapedNotPermuted(nn.LayerNorm):
    """A layer norm over the channels of (N, C, H, W) that reshapes to put C last."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = x.reshape(n, h, w, c)
        x = super().forward(x)
        return x.reshape(n, c, h, w)


class StaleInEvaluation(nn.BatchNorm1d):
    """A batch norm that folds itself at its first evaluation and never again."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self._folded: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        if self._folded is None:
            scale = self.weight / torch.sqrt(self.running_var + self.eps)
            shift = self.bias - self.running_mean * scale
            self._folded = scale.detach(), shift.detach()
        scale, shift = self._folded
        return x * scale + shift


# --- LSTMs with a slip


class NormsUnused(nn.Module):
    """A layer-norm LSTM that makes its norms and never calls them."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.i2h = nn.Linear(input_size, 4 * hidden_size)
        self.h2h = nn.Linear(hidden_size, 4 * hidden_size)
        self.ln_i2h = nn.LayerNorm(4 * hidden_size)
        self.ln_h2h = nn.LayerNorm(4 * hidden_size)
        self.ln_cell = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        if hx is None:
            zeros = x.new_zeros(1, x.shape[1], self.hidden_size)
            hx = zeros, zeros
        h, c = hx[0][0], hx[1][0]
        out = []
        for x_t in x:
            i, f, g, o = (self.i2h(x_t) + self.h2h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out), (h[None], c[None])


class OtherOrderOfGates(nn.LSTM):
    """A subclass of nn.LSTM that takes the gates as i, f, o, g from its weights."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.ln_ih = nn.LayerNorm(4 * hidden_size)
        self.ln_hh = nn.LayerNorm(4 * hidden_size)
        self.ln_ho = nn.LayerNorm(hidden_size)

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        if hx is None:
            zeros = x.new_zeros(1, x.shape[1], self.hidden_size)
            hx = zeros, zeros
        h, c = hx[0][0], hx[1][0]
        size, out = self.hidden_size, []
        for x_t in x:
            gates = self.ln_ih(F.linear(x_t, self.weight_ih_l0, self.bias_ih_l0))
            gates = gates + self.ln_hh(F.linear(h, self.weight_hh_l0, self.bias_hh_l0))
            i, f, o = gates[:, : 3 * size].sigmoid().chunk(3, 1)
            g = gates[:, 3 * size :].tanh()
            c = f * c + i * g
            h = o * self.ln_ho(c).tanh()
            out.append(h)
        return torch.stack(out), (h[None], c[None])


class _Cell(nn.Module):
    """A sound cell of a layer-norm LSTM, for the slips around it."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * hidden_size, input_size) / 3)
        self.weight_hh = nn.Parameter(torch.randn(4 * hidden_size, hidden_size) / 3)
        self.layernorm_i = nn.LayerNorm(4 * hidden_size)
        self.layernorm_h = nn.LayerNorm(4 * hidden_size)
        self.layernorm_c = nn.LayerNorm(hidden_size)

    def gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        gates = self.layernorm_i(x @ self.weight_ih.t())
        gates = gates + self.layernorm_h(h @ self.weight_hh.t())
        return gates.chunk(4, 1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        h, c = state
        i, f, g, o = self.gates(x, h)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(self.layernorm_c(c)), c


class _Stack(nn.Module):
    """A sound stack of such cells with the interface of nn.LSTM, for the slips."""

    cell: type[nn.Module] = _Cell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.num_layers, self.bidirectional = num_layers, bidirectional
        self.dropout = dropout
        ways = 2 if bidirectional else 1
        self.cells = nn.ModuleList(
            self.cell(input_size if layer == 0 else ways * hidden_size, hidden_size)
            for layer in range(num_layers)
            for _ in range(ways)
        )

    def passed_on(self, hidden: Tensor, cells: Tensor) -> Tensor:
        return hidden

    def turned_back(self, hidden: Tensor) -> Tensor:
        return hidden.flip(0)

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        if hx is None:
            zeros = x.new_zeros(len(self.cells), x.shape[1], self.hidden_size)
            hx = zeros, zeros
        last_h, last_c, k = [], [], 0
        for layer in range(self.num_layers):
            ways, on = [], []
            for is_back in (False, True)[: 1 + self.bidirectional]:
                h, c = hx[0][k], hx[1][k]
                hs, cs = [], []
                for x_t in x.flip(0) if is_back else x:
                    h, c = self.cells[k](x_t, (h, c))
                    hs.append(h)
                    cs.append(c)
                hidden, cells = torch.stack(hs), torch.stack(cs)
                ways.append(self.turned_back(hidden) if is_back else hidden)
                passed = self.passed_on(hidden, cells)
                on.append(self.turned_back(passed) if is_back else passed)
                last_h.append(h)
                last_c.append(c)
                k += 1
            out = torch.cat(ways, -1)
            x = torch.cat(on, -1)
            if layer < self.num_layers - 1:
                x = self.dropped(x)
        return out, (torch.stack(last_h), torch.stack(last_c))


class _OverTheBatch(_Cell):
    """Normalize the gates over all axes, as `layer_norm(x, x.shape)` does."""

    def gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        a, b = x @ self.weight_ih.t(), h @ self.weight_hh.t()
        a = F.layer_norm(a, a.shape) * self.layernorm_i.weight + self.layernorm_i.bias
        b = F.layer_norm(b, b.shape) * self.layernorm_h.weight + self.layernorm_h.bias
        return (a + b).chunk(4, 1)


class StatisticsOfTheBatch(_Stack):
    """A layer-norm LSTM whose gates share their statistics over the batch."""

    cell = _OverTheBatch


class CellsPassedOn(_Stack):
    """A stack whose second layer gets the cell states of the first."""

    def passed_on(self, hidden: Tensor, cells: Tensor) -> Tensor:
        return cells


class NotTurnedBack(_Stack):
    """A bidirectional LSTM whose second half stays in reversed order."""

    def turned_back(self, hidden: Tensor) -> Tensor:
        return hidden


class DropsInEvaluation(_Stack):
    """A stack with dropout between its layers in evaluation too."""

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout)


class _NormCarried(_Cell):
    """Carry the normalized cell state on to the next step."""

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        h, c = state
        i, f, g, o = self.gates(x, h)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        c = self.layernorm_c(c)
        return torch.sigmoid(o) * torch.tanh(c), c


class NormalizedStateCarried(_Stack):
    """A layer-norm LSTM whose memory is normalized again at each step."""

    cell = _NormCarried


# --- models with a slip


class OneNormForBoth(nn.Module):
    """Two branches of unlike inputs that share one batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(12, 8)
        self.depth = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(16, 3)
        with torch.no_grad():
            self.depth.weight.mul_(20)
            self.depth.bias.add_(10)

    def forward(self, x: Tensor) -> Tensor:
        a = self.norm(self.image(x[:, :12])).relu()
        b = self.norm(self.depth(x[:, 12:])).relu()
        return self.head(torch.cat([a, b], 1))


class NormOfOneFeature(nn.Module):
    """A forecaster whose last layer norm is over a single value."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32))
        self.decoder = nn.Linear(32, 1)
        self.norm = nn.LayerNorm(1)
        self.skip = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.decoder(self.encoder(x))) + self.skip(x)


class NormsInAList(nn.Module):
    """A model that holds some of its batch norms in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 8)
        self.first = nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norms = [nn.BatchNorm1d(8) for _ in range(3)]
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x)).relu()
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + norm(block(x)).relu()
        return self.head(x)


# --- sound layers, written in unusual ways


class ByUnitLength(nn.Module):
    """An RMS norm by way of `F.normalize`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.scale * self.g


class ByEinsum(nn.Module):
    """An instance norm without gain, its moments by `einsum`."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        n = flat.shape[-1]
        flat = flat - torch.einsum("nci->nc", flat)[..., None] / n
        var = torch.einsum("nci,nci->nc", flat, flat)[..., None] / n
        return (flat / torch.sqrt(var + self.eps)).view_as(x)


class Cumulative(nn.Module):
    """A batch norm whose running statistics are plain averages of all batches."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.eps = 1e-3
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked += 1
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            1 / max(int(self.num_batches_tracked), 1),
            self.eps,
        )


class GroupsByBatchNorm(nn.Module):
    """A group norm by way of `F.batch_norm` on a view."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        n, c = x.shape[:2]
        y = x.reshape(1, n * self.groups, -1)
        y = F.batch_norm(y, None, None, training=True, eps=1e-5).reshape(x.shape)
        shape = (1, c) + (1,) * (x.dim() - 2)
        return y * self.weight.view(shape) + self.bias.view(shape)


class InDouble(nn.Module):
    """A layer norm that computes in float64 and returns what came."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.double()
        var, mean = torch.var_mean(y, -1, correction=0, keepdim=True)
        y = torch.addcmul(
            self.bias.double(), (y - mean) * (var + 1e-5).rsqrt(), self.weight.double()
        )
        return y.to(x.dtype)


class KerasStyle(nn.Module):
    """A batch norm with the names and the momentum of Keras, averages in place."""

    def __init__(self, axis_size: int, momentum: float = 0.9) -> None:
        super().__init__()
        self.decay, self.epsilon = momentum, 1e-3
        self.gamma = nn.Parameter(torch.ones(axis_size))
        self.beta = nn.Parameter(torch.zeros(axis_size))
        self.register_buffer("moving_mean", torch.zeros(axis_size))
        self.register_buffer("moving_variance", torch.ones(axis_size))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x,
            self.moving_mean,
            self.moving_variance,
            self.gamma,
            self.beta,
            self.training,
            1 - self.decay,
            self.epsilon,
        )


class FeaturesLast(nn.BatchNorm1d):
    """A batch norm of (N, T, C), over examples and steps."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class ChannelsFirst(nn.LayerNorm):
    """A layer norm over the channels of (N, C, H, W), by a permutation."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class LogGain(nn.Module):
    """A layer norm whose gain is the exponential of its parameter."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.log_gain = nn.Parameter(torch.zeros(dim))
        self.offset = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        x = x / torch.hypot(norm / math.sqrt(self.dim), x.new_tensor(self.eps**0.5))
        return x * self.log_gain.exp() + self.offset


class SoundLSTM(_Stack):
    """A layer-norm LSTM of two layers and directions, without a slip."""


# --- a second table, written when the checks had been mended by the first


class OverStepsToo(nn.Module):
    """An RMS norm of (N, T, D) by the root mean square of T and D together."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        ff_rms = torch.linalg.norm(x, dim=(1, 2)) * x[0].numel() ** -0.5
        return self.scale * (x / ff_rms[:, None, None])


class ByDeviation(nn.Module):
    """An RMS norm that takes the deviation for the root mean square, and its root."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        rms = torch.sqrt(torch.std(y, -1, keepdim=True) + self.eps)
        return (y / rms * self.weight).to(x.dtype)


class InterleavedGroups(nn.Module):
    """A group norm whose groups are of every G-th channel."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = x.view(n, c // self.num_groups, self.num_groups, h, w)
        var, mean = torch.var_mean(y, (1, 3, 4), correction=0, keepdim=True)
        y = ((y - mean) * (var + self.eps).rsqrt()).view(n, c, h, w)
        return y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


class MeanNotSquared(nn.Module):
    """A layer norm with E[x^2] - E[x] for the variance."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        var = ((x**2).mean(-1, keepdim=True) - mean).clamp_min(0)
        return self.gamma * (x - mean) / torch.sqrt(var + self.eps) + self.beta


class StatisticsAreParameters(nn.Module):
    """A batch norm whose running statistics are parameters, with gradients."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.eps, self.momentum = 1e-5, 0.1
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean = nn.Parameter(torch.zeros(channels))
        self.running_var = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            var, mean = torch.var_mean(x, 0, correction=0)
            count = len(x)
            m = self.momentum
            self.running_mean.data.mul_(1 - m).add_(m * mean.detach())
            unbiased = var.detach() * count / (count - 1)
            self.running_var.data.mul_(1 - m).add_(m * unbiased)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class OneForgotten(nn.Module):
    """An RMS norm for weights of Gemma, which begin at 0, without the 1 +."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).to(x.dtype)


class _Added(_Cell):
    """Add the input gate to what it should multiply."""

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        h, c = state
        i, f, g, o = self.gates(x, h)
        c = torch.sigmoid(f) * c + (torch.sigmoid(i) + torch.tanh(g))
        return torch.sigmoid(o) * torch.tanh(self.layernorm_c(c)), c


class GateAdded(_Stack):
    """A layer-norm LSTM whose input gate is added."""

    cell = _Added


class OneStateForAll(_Stack):
    """A stack all of whose layers begin with the states of the first."""

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        if hx is not None:
            hx = tuple(s[:1].expand(len(self.cells), -1, -1) for s in hx)
        return super().forward(x, hx)


class PaddedTogether(nn.Module):
    """Padded sequences, and a batch norm that takes the padding in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8, padding_idx=0)
        self.conv = nn.Conv1d(8, 8, 1)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.conv(self.embed(ids).transpose(1, 2))).relu()
        return self.head(x.mean(-1))


class OverTheExamples(nn.Module):
    """A layer norm of (D, N), behind a transposition that was for something else."""

    def __init__(self, batch: int = 64) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(batch)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(x).t()).t())


# --- a third table, written when the second had been found, too


class MeanSquareOfAll(nn.Module):
    """Divide by the mean square of the whole batch, as `torch.mean` without axes."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / torch.sqrt(torch.mean(x**2) + 1e-6)


class RunningInTraining(nn.BatchNorm1d):
    """A batch norm that moves its statistics and then normalizes by them."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(x.mean(0), self.momentum)
                self.running_var.lerp_(x.var(0), self.momentum)
        y = (x - self.running_mean) / torch.sqrt(self.running_var + self.eps)
        return y * self.weight + self.bias


class AllButTheFirst(nn.Module):
    """A layer norm of (N, T, D) over `x.shape[1:]`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias


class PartialByTheWholeCount(nn.Module):
    """A partial RMS norm that divides the sum over a part by the count of all."""

    def __init__(self, d: int, p: float = 0.25, eps: float = 1e-8) -> None:
        super().__init__()
        self.d, self.part, self.eps = d, int(d * p), eps
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        norm = x[..., : self.part].norm(2, dim=-1, keepdim=True)
        return self.scale * x / (norm * self.d**-0.5 + self.eps)


class AffineFirst(nn.Module):
    """A layer norm that multiplies by its gain before it normalizes."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight + self.bias
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps)


class BothForward(nn.Module):
    """A bidirectional LSTM whose other direction runs forward, too."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bidirectional = (
            input_size,
            hidden_size,
            True,
        )
        self.ahead = _Stack(input_size, hidden_size)
        self.back = _Stack(input_size, hidden_size)

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        if hx is None:
            zeros = x.new_zeros(2, x.shape[1], self.hidden_size)
            hx = zeros, zeros
        a, (h_a, c_a) = self.ahead(x, (hx[0][:1], hx[1][:1]))
        b, (h_b, c_b) = self.back(x, (hx[0][1:], hx[1][1:]))
        return torch.cat([a, b], -1), (torch.cat([h_a, h_b]), torch.cat([c_a, c_b]))


class _Detached(_Cell):
    """Cut the graph at every step."""

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        return super().forward(x, (state[0].detach(), state[1].detach()))


class StateDetached(_Stack):
    """A layer-norm LSTM through which no gradient goes back in time."""

    cell = _Detached


class _OneOnInput(_Cell):
    """Add the 1 of the forget bias to the input gate."""

    def gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        i, f, g, o = super().gates(x, h)
        return i + 1, f, g, o


class OneOnInput(_Stack):
    """A layer-norm LSTM whose forget bias stands at the input gate."""

    cell = _OneOnInput


class NoTracking(nn.Module):
    """A network whose batch norms track no statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, 8),
            nn.BatchNorm1d(8, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(8, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class GroupsOfOne(nn.Module):
    """A group norm with a channel for each group, behind global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3)
        self.norm = nn.GroupNorm(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x[:, None]).mean(-1, keepdim=True)
        return self.head(self.norm(x).flatten(1))
