"""Layers and models with one bug each, and correct ones that are written unusually.

A fifth set, by the same rules as ``fourth_hand``: written without a look at the checks
or at the layers of the other hands. Each bug was told in public; its address stands in
front of it. ``expected.txt`` says what a right report must say.
"""

# ruff: noqa: D102 - what a forward does is said by its class
from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

State = tuple[Tensor, Tensor]


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

    def affine(self, normed: Tensor) -> Tensor:
        """Apply gain and bias to axis 1."""
        shape = (1, -1, *[1] * (normed.dim() - 2))
        return normed * self.weight.view(shape) + self.bias.view(shape)


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

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalize x by the statistics."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        return (x - mean.view(shape)) * (var.view(shape) + self.eps).rsqrt()


class _Grouped(_Scale):
    """Gain, bias and a number of groups."""

    def __init__(self, num_groups: int, num_channels: int) -> None:
        super().__init__(num_channels)
        self.num_groups = num_groups
        self.num_channels = num_channels


# Norm layers ---------------------------------------------------------------------


# A kernel takes a row of a power of two and fills it with zeros. Of the filled places
# x - mean is -mean, and its square counts in the variance.
# https://github.com/triton-lang/triton/issues/9838
# https://github.com/unslothai/unsloth/pull/1867
class PaddedLayerNorm(_Scale):
    """A layer norm of rows that are padded to a power of two."""

    def forward(self, x: Tensor) -> Tensor:
        columns = x.shape[-1]
        lanes = 1 << (columns - 1).bit_length()
        row = F.pad(x, (0, lanes - columns))
        centred = row - row.sum(-1, keepdim=True) / columns
        var = centred.square().sum(-1, keepdim=True) / columns
        normed = centred * (var + self.eps).rsqrt()
        return normed[..., :columns] * self.weight + self.bias


# A kernel takes the channels of a group in a block of a power of two, and its mask
# ends with the channels, not with the group: for groups of 3 the first channel of the
# next group counts in the statistics, which are still divided by the size of the group.
# https://github.com/flagos-ai/FlagGems/pull/4985
class BlockGroupNorm(_Grouped):
    """A group norm of blocks of channels."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        size = self.num_channels // self.num_groups
        block = 1 << (size - 1).bit_length()
        count = size * flat.shape[2]
        parts = []
        for group in range(self.num_groups):
            lanes = flat[:, group * size : group * size + block]
            centred = lanes - lanes.sum((1, 2), keepdim=True) / count
            var = centred.square().sum((1, 2), keepdim=True) / count
            parts.append((centred * (var + self.eps).rsqrt())[:, :size])
        return self.affine(torch.cat(parts, 1)).view_as(x)


# The axes of the statistics are chosen when the groups have an axis of their own: all
# but the first, the groups too.
# https://github.com/brainpy/BrainPy/issues/765
class WholeGroupNorm(_Grouped):
    """A group norm by a reshape."""

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.view(x.shape[0], self.num_groups, -1)
        axes = tuple(range(1, grouped.dim()))
        var, mean = torch.var_mean(grouped, axes, correction=0, keepdim=True)
        normed = (grouped - mean) * (var + self.eps).rsqrt()
        return self.affine(normed.view_as(x))


# With rms_scaling x is divided by the root of its variance, about a mean that is not
# taken off x; it should be that of the mean square.
# https://github.com/keras-team/keras/pull/22393
class ScalingLayerNorm(_Scale):
    """A layer norm that becomes an RMS norm with rms_scaling."""

    def __init__(self, size: int, rms_scaling: bool = False) -> None:
        super().__init__(size, 1e-3, bias=not rms_scaling)
        self.rms_scaling = rms_scaling

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        if self.rms_scaling:
            return x * (var + self.eps).rsqrt() * self.weight
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias


# The correction N / (N - 1) of the running variance is infinite for a batch of one
# value, whose variance is 0: the running variance is NaN from then on.
# https://github.com/FluxML/Flux.jl/issues/1992
# https://github.com/torch/nn/pull/1271
class TrackingBatchNorm(_Tracked):
    """A batch norm that takes a batch of any size."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            normed = self.normalize(x, self.running_mean, self.running_var)
            return self.affine(normed)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        var, mean = torch.var_mean(x, axes, correction=0)
        count = x.new_tensor(x.numel() / x.shape[1])
        self.track(mean, count / (count - 1) * var)
        return self.affine(self.normalize(x, mean, var))


# Gain and bias are plain tensors that need no gradient: no optimizer finds them, and
# the state has none of them.
# https://github.com/harvard-edge/cs249r_book/pull/1504
class PlainLayerNorm(nn.Module):
    """A layer norm from scratch."""

    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.normalized_shape = normalized_shape
        self.eps = eps
        self.gamma = torch.ones(normalized_shape)
        self.beta = torch.zeros(normalized_shape)

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return (x - mean) / torch.sqrt(var + self.eps) * self.gamma + self.beta


# The register of the second product still holds the mean of dy * gain: that mean is
# taken off twice in the gradient by x.
# https://github.com/tenstorrent/tt-metal/issues/53204
class _RegisterFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        r = (var + eps).rsqrt()
        hat = (x - mean) * r
        ctx.save_for_backward(hat, weight, r)
        return hat * weight + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (dy,) = grads
        hat, weight, r = ctx.saved_tensors
        rows = tuple(range(dy.dim() - 1))
        dhat = dy * weight
        register = dhat.mean(-1, keepdim=True)
        dx = dhat - register
        register = register + hat * (dhat * hat).mean(-1, keepdim=True)
        dx = (dx - register) * r
        return dx, (dy * hat).sum(rows), dy.sum(rows), None


class RegisterLayerNorm(_Scale):
    """A layer norm with a backward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _RegisterFunction.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return y


# The backward pass writes the gradient by x into the gradient that it gets. A residual
# beside the layer gets the same one, and so a wrong one.
# https://github.com/linkedin/Liger-Kernel/pull/1305
class _InPlaceFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, r)
        return x * r * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        dy = grads[0].contiguous()
        x, weight, r = ctx.saved_tensors
        hat = x * r
        dw = (dy * hat).sum(tuple(range(dy.dim() - 1)))
        dy.mul_(weight)
        dy.sub_(hat * (dy * hat).mean(-1, keepdim=True)).mul_(r)
        return dy, dw, None


class InPlaceRMSNorm(_Scale):
    """An RMS norm whose backward pass takes no memory."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 1e-6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _InPlaceFunction.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return y


# The gain is taken without its sign, so that the backward pass may divide by it: the
# channels of a pretrained batch norm with a gain below 0 come out upside down.
# https://github.com/mapillary/inplace_abn/issues/92
class PositiveBatchNorm(_Tracked):
    """A batch norm whose output can be turned back into its input."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight.abs() + self.eps,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )


# A pixel norm of images (N, C, H, W) over the last axis: the width, not the channels.
# https://github.com/lucidrains/lightweight-gan/issues/17
class PixelNorm(nn.Module):
    """Divide each pixel by the root of the mean square of its channels."""

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


# The statistics of an instance by x.var(), which divides by one less than the number
# of positions: one position (N, C, 1, 1) gives NaN.
# https://github.com/switchablenorms/Switchable-Normalization/issues/5
class PositionsInstanceNorm(_Scale):
    """The instance norm of a switchable norm."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(x.shape[0], x.shape[1], -1)
        mean, var = flat.mean(-1, keepdim=True), flat.var(-1, keepdim=True)
        normed = (flat - mean) / (var + self.eps).sqrt()
        return self.affine(normed).view_as(x)


# LSTMs ---------------------------------------------------------------------------


class NormLSTMCell(nn.Module):
    """A cell with layer norms of both projections and of the new cell state."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * hidden, bias=False)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        self.norm_input = nn.LayerNorm(4 * hidden)
        self.norm_hidden = nn.LayerNorm(4 * hidden)
        self.norm_cell = nn.LayerNorm(hidden)

    def gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """Return what goes into the input, forget, candidate and output gates."""
        gates = self.norm_input(self.from_input(x))
        gates = gates + self.norm_hidden(self.from_hidden(h))
        return torch.chunk(gates, 4, -1)

    def forward(self, x: Tensor, state: State) -> State:
        h, c = state
        i, f, g, o = self.gates(x, h)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_cell(c).tanh(), c


class NormLSTM(nn.Module):
    """Layers of cells over (T, N, D), in one direction or both, as in nn.LSTM."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        cell: Callable[[int, int], nn.Module] = NormLSTMCell,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = inputs, hidden
        self.num_layers, self.bidirectional = num_layers, bidirectional
        self.directions = 2 if bidirectional else 1
        widths = [inputs] + [hidden * self.directions] * (num_layers - 1)
        self.cells = nn.ModuleList(
            cell(width, hidden) for width in widths for _ in range(self.directions)
        )

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if state is None:
            zeros = x.new_zeros(len(self.cells), x.shape[1], self.hidden_size)
            state = zeros, zeros
        last = []
        y = x
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                steps = self.below(x, y)
                steps = self.turn(steps) if direction else steps
                output, end = self.run(index, steps, (state[0][index], state[1][index]))
                outputs.append(self.turn_back(output) if direction else output)
                last.append(end)
            y = torch.cat(outputs, -1)
        h, c = zip(*last, strict=True)
        return y, (torch.stack(h), torch.stack(c))

    def run(self, index: int, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one cell over all steps."""
        outputs = []
        for step in x:
            state = self.cells[index](step, state)
            outputs.append(state[0])
        return torch.stack(outputs), state

    def below(self, x: Tensor, y: Tensor) -> Tensor:
        """Return of the input and the last layer's output what a layer gets."""
        return y

    def turn(self, x: Tensor) -> Tensor:
        """Return the steps that the backward direction takes."""
        return x.flip(0)

    def turn_back(self, y: Tensor) -> Tensor:
        """Return the outputs of the backward direction in the order of time."""
        return y.flip(0)


# The outputs of the backward direction are turned back along axis 1, the time of a
# batch-first input; here that is the batch.
# https://github.com/tensorflow/tensorflow/issues/39635
class MajorLSTM(NormLSTM):
    """A bidirectional LSTM of (T, N, D)."""

    def turn_back(self, y: Tensor) -> Tensor:
        return y.flip(1)


# Both directions get the same input: the second reads forward, too.
# https://github.com/stanfordmlgroup/nlc/issues/8
class DoubleLSTM(NormLSTM):
    """A bidirectional LSTM of an encoder."""

    def turn(self, x: Tensor) -> Tensor:
        return x

    def turn_back(self, y: Tensor) -> Tensor:
        return y


# The output is that of the plain cell; the zoned-out h goes to the next step only, so
# that the last output is not h_n.
# https://github.com/rwth-i6/returnn/issues/1313
class ZonedLSTM(NormLSTM):
    """An LSTM with zoneout: its mean in evaluation, a mask in training."""

    def __init__(self, inputs: int, hidden: int, zoneout: float = 0.1) -> None:
        super().__init__(inputs, hidden)
        self.zoneout = zoneout

    def zoned(self, old: Tensor, new: Tensor) -> Tensor:
        """Keep a part of the old values."""
        if self.training:
            return torch.where(torch.rand_like(new) < self.zoneout, old, new)
        return self.zoneout * old + (1 - self.zoneout) * new

    def run(self, index: int, x: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for step in x:
            h, c = self.cells[index](step, state)
            state = self.zoned(state[0], h), self.zoned(state[1], c)
            outputs.append(h)
        return torch.stack(outputs), state


# The third norm stands at the candidate; the one of the new cell state in front of the
# last tanh, which it was meant to be, is missing.
# https://github.com/iassael/torch-bnlstm/issues/1
class CandidateCell(nn.Module):
    """A cell with batch norms."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        self.bn_input = nn.BatchNorm1d(4 * hidden)
        self.bn_hidden = nn.BatchNorm1d(4 * hidden)
        self.bn_cell = nn.BatchNorm1d(hidden)
        for norm in (self.bn_input, self.bn_hidden, self.bn_cell):
            nn.init.constant_(norm.weight, 0.1)

    def forward(self, x: Tensor, state: State) -> State:
        h, c = state
        gates = self.bn_input(self.from_input(x))
        gates = gates + self.bn_hidden(self.from_hidden(h))
        i, f, g, o = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * self.bn_cell(g).tanh()
        return o.sigmoid() * c.tanh(), c


# The peephole of the output gate is added behind the sigmoid: the gate leaves (0, 1).
# https://github.com/Lasagne/Lasagne/issues/448
class PeepholeCell(NormLSTMCell):
    """A cell whose gates see the cell state."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden)
        self.peepholes = nn.Parameter(0.5 * torch.randn(3, hidden))

    def forward(self, x: Tensor, state: State) -> State:
        h, c = state
        to_input, to_forget, to_output = self.peepholes
        i, f, g, o = self.gates(x, h)
        i = (i + to_input * c).sigmoid()
        f = (f + to_forget * c).sigmoid()
        o = o.sigmoid()
        c = f * c + i * g.tanh()
        o = o + to_output * c
        return o * self.norm_cell(c).tanh(), c


# Every layer gets the input, not the output of the layer below. It was told when the
# sizes did not fit; where both are the same, nothing fails. (There with batch norms.)
# https://github.com/jihunchoi/recurrent-batch-normalization-pytorch/issues/6
class SideLSTM(NormLSTM):
    """Two layers of cells."""

    def below(self, x: Tensor, y: Tensor) -> Tensor:
        return x


# Models --------------------------------------------------------------------------


def images() -> Tensor:
    """Return 32 images of three channels."""
    return 2 * torch.randn(32, 3, 8, 8) + 1


def sequences() -> Tensor:
    """Return 16 sequences of 10 vectors."""
    return torch.randn(16, 10, 16)


def train(
    model: nn.Module, batch: Callable[[], Tensor], steps: int = 40, rate: float = 0.02
) -> nn.Module:
    """Train a few steps on noise from a generator of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        target = torch.randn(3)
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, rate)
        model.train()
        for _ in range(steps):
            optimizer.zero_grad()
            y = model(batch())
            (y - target[: y.shape[-1]]).square().mean().backward()
            optimizer.step()
    return model


class ConvNet(nn.Module):
    """Two convolutions with norms, and a linear layer on the means of the channels."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1 = norm(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = norm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        x = self.norm2(self.conv2(x)).relu()
        y: Tensor = self.head(x.mean((2, 3)))
        return y


def batch_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the batch norms of a model."""
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


# A batch norm of Caffe has three blobs: sums of the moving mean and variance, and the
# factor by which both are to be divided. The conversion reads the first two alone.
# https://github.com/apache/mxnet/pull/6176
# https://github.com/pierluigiferrari/caffe_weight_converter/issues/7
def caffe_blobs(norm: nn.BatchNorm2d, batches: int = 2000) -> tuple[Tensor, ...]:
    """Return the blobs that Caffe would have: it sums, with a fraction of 0.999."""
    assert norm.running_mean is not None  # noqa: S101 - for mypy
    assert norm.running_var is not None  # noqa: S101 - for mypy
    scale = torch.tensor((1 - 0.999**batches) / (1 - 0.999))
    return norm.running_mean * scale, norm.running_var * scale, scale


def converted() -> nn.Module:
    """Return a network that was trained in Caffe and converted."""
    source = train(ConvNet(), images)
    model = copy.deepcopy(source)
    for norm, old in zip(batch_norms(model), batch_norms(source), strict=True):
        blobs = caffe_blobs(old)
        norm.load_state_dict(
            {"running_mean": blobs[0], "running_var": blobs[1]}, strict=False
        )
    return model


# The parameters of the first convolution are large, so the variances behind it are
# some 5e5. In half precision, in which the state was kept, they are infinite, and
# the channels come out as the bias.
# https://github.com/PaddlePaddle/PaddleOCR/issues/5317
# https://github.com/apple/coreai-torch/pull/54
def kept_in_half() -> nn.Module:
    """Return a network whose checkpoint was kept in half precision."""
    model = ConvNet()
    with torch.no_grad():
        model.conv1.weight.mul_(600)
    train(model, images, steps=60)
    state = {
        name: value.half() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    model = ConvNet()
    model.load_state_dict(state)
    return model


# The server of a federation takes the mean of the clients' states as a step of Adam,
# the running variances with all else: where they fall, the momentum carries some below
# 0, whose root is NaN.
# https://github.com/VectorInstitute/FL4Health/pull/39
def federated(rounds: int = 8, clients: int = 2) -> nn.Module:
    """Return a network that was trained in a federation by FedAdam."""
    server = ConvNet()
    with torch.no_grad():
        spread = torch.linspace(0.2, 4, 8).view(-1, 1, 1, 1)
        server.conv1.weight.mul_(spread)
        server.conv2.weight.mul_(spread.flip(0))
    first = {k: torch.zeros_like(v) for k, v in server.state_dict().items()}
    second = {k: torch.zeros_like(v) for k, v in server.state_dict().items()}
    for _ in range(rounds):
        states = [
            train(copy.deepcopy(server), images, steps=10).state_dict()
            for _ in range(clients)
        ]
        state = server.state_dict()
        for name, value in state.items():
            if not value.is_floating_point():
                continue
            change = torch.stack([s[name] for s in states]).mean(0) - value
            first[name] = 0.9 * first[name] + 0.1 * change
            second[name] = 0.99 * second[name] + 0.01 * change.square()
            value.add_(0.1 * first[name] / (second[name].sqrt() + 1e-3))
    return server


# In training the block runs again in the backward pass: each batch moves the running
# statistics twice, and counts twice.
# https://github.com/pytorch/pytorch/issues/96136
# https://github.com/Tencent/YOLO-Master/issues/262
class CheckpointedNet(ConvNet):
    """The same, its second block recomputed in the backward pass."""

    def block(self, x: Tensor) -> Tensor:
        """Return what the second convolution makes of x."""
        return F.relu(self.norm2(self.conv2(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        if self.training:
            x = checkpoint(self.block, x, use_reentrant=False)
        else:
            x = self.block(x)
        y: Tensor = self.head(x.mean((2, 3)))
        return y


# Called QK normalization, but it is keys and values that are normalized; the queries
# are not.
# https://github.com/kyegomez/MegaVIT/issues/17
class Attention(nn.Module):
    """Attention of heads with norms of what is compared."""

    def __init__(self, size: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(size, 3 * size, bias=False)
        self.add_norms(size // heads)
        self.to_out = nn.Linear(size, size)

    def add_norms(self, size: int) -> None:
        """Add the norms of the heads."""
        self.norm_k = nn.LayerNorm(size)
        self.norm_v = nn.LayerNorm(size)

    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Apply the norms of the heads."""
        return q, self.norm_k(k), self.norm_v(v)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        qkv = self.to_qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = self.normed(*qkv.unbind(0))
        y = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.to_out(y.transpose(1, 2).reshape(n, t, -1))
        return out


class Transformer(nn.Module):
    """Two blocks with pre-norms and a last norm."""

    def __init__(self, attention: Callable[[], nn.Module] = Attention) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            for _ in range(2)
        )
        self.norms1 = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.norms2 = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in range(2):
            x = x + self.attentions[block](self.norms1[block](x))
            x = x + self.mlps[block](self.norms2[block](x))
        y: Tensor = self.head(self.norm(x).mean(1))
        return y


# With a linear projection the norm is applied twice, one application behind the other.
# https://github.com/huggingface/diffusers/pull/1381
# https://github.com/huggingface/diffusers/issues/1379
class SpatialTransformer(nn.Module):
    """Attention among the positions of a feature map."""

    def __init__(self, channels: int = 16, use_linear_projection: bool = True) -> None:
        super().__init__()
        self.use_linear_projection = use_linear_projection
        self.norm = nn.GroupNorm(4, channels, eps=1e-6)
        linear = nn.Linear(channels, channels)
        conv = nn.Conv2d(channels, channels, 1)
        self.proj_in = linear if use_linear_projection else conv
        self.norm1 = nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)
        self.proj_out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.norm(x)
        if self.use_linear_projection:
            x = self.norm(x)
            x = self.proj_in(x.flatten(2).transpose(1, 2))
        else:
            x = self.proj_in(x).flatten(2).transpose(1, 2)
        y = self.norm1(x)
        x = self.proj_out(x + self.attention(y, y, y, need_weights=False)[0])
        y = x.transpose(1, 2).reshape(residual.shape) + residual
        return y


class Denoiser(nn.Module):
    """A small network of a diffusion model, here with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, 2)
        self.transformer = SpatialTransformer()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.transformer(self.stem(x)).mean((2, 3)))
        return y


# Instance norms are taken for batch norms, of which they were a subclass, and become
# synchronized batch norms without running statistics: an image's output depends on the
# batch that it comes in.
# https://github.com/NVIDIA/apex/issues/437
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm1d, nn.InstanceNorm2d)


def synchronized(module: nn.Module) -> nn.Module:
    """Replace all batch norms by synchronized ones."""
    if isinstance(module, BATCH_NORMS):
        norm = nn.SyncBatchNorm(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
        )
        norm.load_state_dict(module.state_dict())
        return norm
    for name, child in module.named_children():
        setattr(module, name, synchronized(child))
    return module


def stylized() -> nn.Module:
    """Return a network for styles, ready for several devices."""
    return train(synchronized(ConvNet(nn.InstanceNorm2d)), images)


# The frozen batch norm of a detector has no eps, unlike the one whose statistics it
# takes: a filter that is dead has a variance of 0, and its channel becomes 0 * inf.
# https://github.com/pytorch/vision/issues/2169
# https://github.com/facebookresearch/maskrcnn-benchmark/pull/941
class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose statistics, gain and bias are fixed."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(size))
        self.register_buffer("bias", torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * self.running_var.rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


def detector() -> nn.Module:
    """Return a network with a pretrained backbone that is frozen."""
    source = ConvNet()
    train(source, images)
    with torch.no_grad():
        source.conv1.weight[2] = 0  # a filter that weight decay has brought to nothing
        for norm in batch_norms(source):
            norm.reset_running_stats()
            norm.momentum = None  # exact statistics of the training data
        for _ in range(10):
            source(images())
    model = ConvNet(FrozenBatchNorm2d)
    model.load_state_dict(source.state_dict(), strict=False)
    return model


LSTM = {"kind": "lstm"}
IMAGES = {"shape": (8, 4, 3, 3)}
GROUPS = {"shape": (4, 6, 3, 3), "kind": "group"}
INSTANCES = {"shape": (4, 4, 5, 5), "kind": "instance"}

BUGS = (
    Case("padded layer norm", lambda: PaddedLayerNorm(6)),
    Case("block group norm", lambda: BlockGroupNorm(2, 6), arguments=GROUPS),
    Case("whole group norm", lambda: WholeGroupNorm(2, 6), arguments=GROUPS),
    Case("rms scaling layer norm", lambda: ScalingLayerNorm(8, rms_scaling=True)),
    Case(
        "tracking batch norm", lambda: TrackingBatchNorm(4), arguments={"shape": (8, 4)}
    ),
    Case("plain layer norm", lambda: PlainLayerNorm(8)),
    Case("register layer norm", lambda: RegisterLayerNorm(8)),
    Case("in-place rms norm", lambda: InPlaceRMSNorm(8)),
    Case("positive batch norm", lambda: PositiveBatchNorm(4), arguments=IMAGES),
    Case("pixel norm", PixelNorm, arguments={"shape": (4, 5, 6, 7)}),
    Case(
        "positions instance norm", lambda: PositionsInstanceNorm(4), arguments=INSTANCES
    ),
    Case("major lstm", lambda: MajorLSTM(5, 6, 1, True), arguments=LSTM),
    Case("double lstm", lambda: DoubleLSTM(5, 6, 1, True), arguments=LSTM),
    Case("zoned lstm", lambda: ZonedLSTM(5, 6), arguments=LSTM),
    Case("candidate lstm", lambda: NormLSTM(5, 6, cell=CandidateCell), arguments=LSTM),
    Case("peephole lstm", lambda: NormLSTM(5, 6, cell=PeepholeCell), arguments=LSTM),
    Case("side lstm", lambda: SideLSTM(6, 6, 2), arguments=LSTM),
    Case("converted net", converted, images),
    Case("half net", kept_in_half, images),
    Case("federated net", federated, images),
    Case("checkpointed net", lambda: train(CheckpointedNet(), images), images),
    Case("key-value transformer", lambda: train(Transformer(), sequences), sequences),
    Case("denoiser", lambda: train(Denoiser(), images), images),
    Case("style net", stylized, images),
    Case("detector", detector, images),
)


# Controls: nothing is wrong with these -------------------------------------------


class MaskedLayerNorm(_Scale):
    """A layer norm of rows that are padded to a power of two, and masked twice."""

    def forward(self, x: Tensor) -> Tensor:
        columns = x.shape[-1]
        lanes = 1 << (columns - 1).bit_length()
        mask = torch.arange(lanes, device=x.device) < columns
        row = F.pad(x, (0, lanes - columns))
        centred = row - row.sum(-1, keepdim=True) / columns
        centred = torch.where(mask, centred, torch.zeros_like(centred))
        var = centred.square().sum(-1, keepdim=True) / columns
        normed = centred * (var + self.eps).rsqrt()
        return normed[..., :columns] * self.weight + self.bias


class _UnevenFunction(torch.autograd.Function):
    """A batch norm of parts of unlike size, each as on a device of its own."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, part: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = [p.transpose(0, 1).flatten(1) for p in torch.split(x, part)]
        counts = x.new_tensor([float(p.shape[1]) for p in parts])[:, None]
        shares = counts / counts.sum()
        means = torch.stack([p.mean(1) for p in parts])
        mean = (shares * means).sum(0)
        within = torch.stack([p.var(1, correction=0) for p in parts])
        var = (shares * (within + (means - mean).square())).sum(0)
        r = (var + eps).rsqrt()
        shape = (1, -1, *[1] * (x.dim() - 2))
        hat = (x - mean.view(shape)) * r.view(shape)
        ctx.save_for_backward(hat, weight, r, shares)
        ctx.part = part
        ctx.mark_non_differentiable(mean, var)
        return hat * weight.view(shape) + bias.view(shape), mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        dy = grads[0]
        hat, weight, r, shares = ctx.saved_tensors
        axes = [axis for axis in range(dy.dim()) if axis != 1]
        shape = (1, -1, *[1] * (dy.dim() - 2))
        pairs = list(
            zip(torch.split(dy, ctx.part), torch.split(hat, ctx.part), strict=True)
        )
        by_bias = torch.stack([d.mean(axes) for d, _ in pairs])
        by_gain = torch.stack([(d * h).mean(axes) for d, h in pairs])
        mean_dy = (shares * by_bias).sum(0).view(shape)
        mean_dyhat = (shares * by_gain).sum(0).view(shape)
        dx = (dy - mean_dy - hat * mean_dyhat) * (weight * r).view(shape)
        return dx, (dy * hat).sum(axes), dy.sum(axes), None, None


class UnevenBatchNorm(_Tracked):
    """A batch norm synchronized among parts of 3, 3 and what is left."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            normed = self.normalize(x, self.running_mean, self.running_var)
            return self.affine(normed)
        parameters = self.weight, self.bias, self.eps
        y: Tensor
        y, mean, var = _UnevenFunction.apply(x, *parameters, 3)  # type: ignore[no-untyped-call]
        count = x.numel() // x.shape[1]
        self.track(mean, var * count / (count - 1))
        return y


class JointLSTM(nn.Module):
    """A bidirectional LSTM whose directions take each step together, by einsum."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = inputs, hidden
        self.num_layers, self.bidirectional = 1, True
        bound = hidden**-0.5
        size = 4 * hidden
        self.w_x = nn.Parameter(torch.empty(2, size, inputs).uniform_(-bound, bound))
        self.w_h = nn.Parameter(torch.empty(2, size, hidden).uniform_(-bound, bound))
        self.gain_x = nn.Parameter(torch.ones(2, 1, size))
        self.gain_h = nn.Parameter(torch.ones(2, 1, size))
        self.gain_c = nn.Parameter(torch.ones(2, 1, hidden))
        self.bias = nn.Parameter(torch.zeros(2, 1, size))
        self.bias_c = nn.Parameter(torch.zeros(2, 1, hidden))

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if state is None:
            zeros = x.new_zeros(2, x.shape[1], self.hidden_size)
            state = zeros, zeros
        h, c = state
        both = torch.stack([x, x.flip(0)], 1)
        projected = torch.einsum("tdni,dgi->tdng", both, self.w_x)
        projected = F.layer_norm(projected, projected.shape[-1:]) * self.gain_x
        outputs = []
        for step in projected:
            recurrent = torch.einsum("dnh,dgh->dng", h, self.w_h)
            recurrent = F.layer_norm(recurrent, recurrent.shape[-1:]) * self.gain_h
            i, f, g, o = (step + recurrent + self.bias).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            cell = F.layer_norm(c, c.shape[-1:]) * self.gain_c + self.bias_c
            h = o.sigmoid() * cell.tanh()
            outputs.append(h)
        forward, backward = torch.stack(outputs, 1)
        return torch.cat([forward, backward.flip(0)], -1), (h, c)


class PairedAttention(Attention):
    """Attention with RMS norms of queries and keys, both by one call."""

    def add_norms(self, size: int) -> None:
        self.gains = nn.Parameter(torch.ones(2, 1, 1, 1, size))

    def normed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        pair = torch.stack([q, k])
        q, k = F.rms_norm(pair, pair.shape[-1:], eps=1e-6) * self.gains
        return q, k, v


def averaged() -> nn.Module:
    """Return a mean of weights, its running statistics taken anew from the data."""
    student = ConvNet()
    teacher = copy.deepcopy(student)
    for _ in range(8):
        train(student, images, steps=5)
        with torch.no_grad():
            pairs = zip(teacher.parameters(), student.parameters(), strict=True)
            for mean, new in pairs:
                mean.lerp_(new, 0.2)
    for norm in batch_norms(teacher):
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        for _ in range(30):
            teacher.train()(images())
    for norm in batch_norms(teacher):
        norm.momentum = 0.1
    return teacher


CONTROLS = (
    Case("masked layer norm", lambda: MaskedLayerNorm(6)),
    Case("uneven batch norm", lambda: UnevenBatchNorm(4), arguments=IMAGES),
    Case("joint lstm", lambda: JointLSTM(5, 6), arguments=LSTM),
    Case(
        "paired transformer",
        lambda: train(Transformer(PairedAttention), sequences),
        sequences,
    ),
    Case("averaged net", averaged, images),
)
