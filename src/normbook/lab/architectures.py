"""Small networks with the structure of well-known large ones.

What a tool does to a network depends on what stands beside what: branches, groups,
transposed convolutions. Here are thirteen patterns of a few channels to try it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm


class Architecture(NamedTuple):
    """A network to build, and the shape of its input for a batch of three."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


@torch.no_grad()
def stir(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Draw all that training changes, in place, statistics too; return the model.

    The first gain of each batch norm is 0 and the second negative, as training may
    leave them. The generator is on the CPU, the model in evaluation mode then.

    Examples
    --------
    >>> layer = stir(nn.BatchNorm1d(3), torch.Generator().manual_seed(0))
    >>> layer.weight[0] == 0, layer.weight[1] < 0, layer.training
    (tensor(True), tensor(True), False)
    """
    for module in model.modules():
        if isinstance(module, TorchBatchNorm):
            _stir_norm(module, generator)
            continue
        for value in module.parameters(recurse=False):
            inputs = max(1, value[0].numel())
            value.normal_(0.0, (2 / inputs) ** 0.5, generator=generator)
    return model.eval()


def _stir_norm(norm: TorchBatchNorm, generator: torch.Generator) -> None:
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.normal_(0.0, 0.5, generator=generator)
        norm.running_var.uniform_(0.1, 3.0, generator=generator)
    if norm.weight is not None:
        norm.weight.uniform_(0.5, 2.0, generator=generator)
        norm.weight[0] = 0.0
        norm.weight[1:2] *= -1
    if norm.bias is not None:
        norm.bias.normal_(0.0, 0.5, generator=generator)


class _Residual(nn.Module):
    """Add a branch to its input, or to a projection of it."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x) + self.shortcut(x)
        return out


class _Dense(nn.Module):
    """Put new channels beside the old ones."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], dim=1)


class _UNet(nn.Module):
    """Go down and up again, with the fine picture beside the coarse one."""

    def __init__(self) -> None:
        super().__init__()
        self.down = _conv(3, 4)
        self.bottom = nn.Sequential(nn.MaxPool2d(2), _conv(4, 6), _conv(6, 6))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(6, 5, 2, stride=2), nn.BatchNorm2d(5), nn.ReLU()
        )
        self.out = nn.Sequential(_conv(9, 4), nn.Conv2d(4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.up(self.bottom(fine))
        out: Tensor = self.out(torch.cat([fine, coarse], dim=1))
        return out


def _linear_conv(
    c_in: int, c_out: int, size: int = 3, *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution and batch norm; with stride 1 the picture keeps its size."""
    convolution = nn.Conv2d(
        c_in, c_out, size, stride, padding=size // 2, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(c_out))


def _conv(c_in: int, c_out: int, size: int = 3, **options: int) -> nn.Sequential:
    return _linear_conv(c_in, c_out, size, **options).append(nn.ReLU())


def _head(channels: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)


PICTURE = (3, 3, 8, 8)
# fmt: off
ARCHITECTURES = {
    "MLP": Architecture(lambda: nn.Sequential(
        nn.Linear(7, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(),
        nn.Linear(9, 8, bias=False), nn.BatchNorm1d(8), nn.Sigmoid(),
        nn.Linear(8, 5),
    ), (3, 7)),
    "VGG": Architecture(lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), _conv(4, 6),
        nn.MaxPool2d(2), _conv(6, 8), nn.Flatten(),
        nn.Linear(8 * 4 * 4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 5),
    ), PICTURE),
    "ResNet, basic block": Architecture(lambda: nn.Sequential(
        _conv(3, 4),
        _Residual(nn.Sequential(_conv(4, 4), *_linear_conv(4, 4))),
        nn.ReLU(), *_head(4),
    ), PICTURE),
    "ResNet, bottleneck": Architecture(lambda: nn.Sequential(
        _conv(3, 4),
        _Residual(
            nn.Sequential(
                _conv(4, 3, 1), _conv(3, 3, stride=2), *_linear_conv(3, 8, 1)
            ),
            nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.BatchNorm2d(8)),
        ),
        nn.ReLU(), *_head(8),
    ), PICTURE),
    "ResNeXt, grouped": Architecture(lambda: nn.Sequential(
        _conv(3, 4),
        _Residual(nn.Sequential(
            _conv(4, 6, 1), _conv(6, 6, groups=3), *_linear_conv(6, 4, 1)
        )),
        nn.ReLU(), *_head(4),
    ), PICTURE),
    "MobileNet, depthwise": Architecture(lambda: nn.Sequential(
        _conv(3, 4, stride=2), _conv(4, 4, groups=4), _conv(4, 6, 1), *_head(6)
    ), PICTURE),
    "MobileNet, inverted residual": Architecture(lambda: nn.Sequential(
        _conv(3, 4),
        _Residual(nn.Sequential(
            _conv(4, 12, 1), _conv(12, 12, groups=12), *_linear_conv(12, 4, 1)
        )),
        *_head(4),
    ), PICTURE),
    "DenseNet": Architecture(lambda: nn.Sequential(
        _conv(3, 4),
        *(_Dense(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 6, 1),
            nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 3, padding=1),
        ) for channels in (4, 6)),
        nn.BatchNorm2d(8), *_head(8),
    ), PICTURE),
    "U-Net": Architecture(_UNet, PICTURE),
    "1-D convolutions": Architecture(lambda: nn.Sequential(
        nn.Conv1d(2, 4, 5, dilation=2, padding="same"), nn.BatchNorm1d(4), nn.GELU(),
        nn.Conv1d(4, 6, 3, stride=2, padding=1, padding_mode="circular", bias=False),
        nn.BatchNorm1d(6), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 6, 5),
    ), (3, 2, 11)),
    "3-D convolutions": Architecture(lambda: nn.Sequential(
        nn.Conv3d(2, 4, (2, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(4), nn.ReLU(),
        nn.Conv3d(4, 6, 1, bias=False), nn.BatchNorm3d(6), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 5),
    ), (3, 2, 4, 6, 5)),
    "GAN generator": Architecture(lambda: nn.Sequential(
        nn.Linear(7, 6 * 4, bias=False), nn.BatchNorm1d(24), nn.ReLU(),
        nn.Unflatten(1, (6, 2, 2)),
        nn.ConvTranspose2d(6, 4, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4), nn.ReLU(),
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1), nn.Tanh(),
    ), (3, 7)),
    "autoencoder": Architecture(lambda: nn.Sequential(
        _conv(3, 4, stride=2), _conv(4, 6, stride=2), nn.Conv2d(6, 2, 1),
        nn.BatchNorm2d(2), nn.ConvTranspose2d(2, 5, 2, stride=2),
        nn.BatchNorm2d(5, affine=False), nn.LeakyReLU(),
        nn.ConvTranspose2d(5, 3, 2, stride=2),
    ), PICTURE),
}
# fmt: on
