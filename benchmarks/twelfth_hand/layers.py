"""Small models of common families, each with a batch: 16 with a slip, and 8 without.

A twelfth set: written without a look at the checks or at the sets of other hands. Each
is trained for a few steps where it is made. ``expected.txt`` says what is wrong with it.
"""

# ruff: noqa: D101, D102, D103, E501, B905, UP035 - as written

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], tuple[nn.Module, Any]]


CASES: list[Case] = []


def case(name: str, seed: int):
    def register(function):
        @functools.wraps(function)
        def make():
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(seed)
                return function()

        CASES.append(Case(name, make))
        return make

    return register


# ---------------------------------------------------------------------------------------------------------------- data


def fit(
    model: nn.Module,
    batches: Callable[[int], tuple],
    loss: Callable,
    steps: int,
    lr: float,
    after=None,
) -> None:
    """Train with Adam and a cosine schedule; ``batches(i)`` gives (inputs, target), inputs a tuple."""
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=lr
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for i in range(steps):
        inputs, target = batches(i)
        optimizer.zero_grad()
        loss(model(*inputs), target).backward()
        optimizer.step()
        schedule.step()
        if after is not None:
            after()
    model.zero_grad(set_to_none=True)


def gratings(
    n: int, classes: int = 4, size: int = 32, contrast: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Colour images of oriented gratings with noise, standardised as photographs are; the class is the orientation."""
    y = (torch.arange(n) % classes)[torch.randperm(n)]
    angle = math.pi * y / classes + 0.1 * torch.randn(n)
    freq = 0.5 + 0.5 * torch.rand(n)
    phase = 2 * math.pi * torch.rand(n)
    r = torch.arange(size, dtype=torch.float32)
    u = (
        r[None, :, None] * angle.cos()[:, None, None]
        + r[None, None, :] * angle.sin()[:, None, None]
    )
    wave = torch.sin(freq[:, None, None] * u + phase[:, None, None])
    tint = 0.6 + 0.4 * torch.rand(n, 3)
    bright = 0.5 * torch.randn(n, 3)
    x = (
        contrast * wave[:, None] * tint[..., None, None]
        + bright[..., None, None]
        + 0.3 * torch.randn(n, 3, size, size)
    )
    return x, y


def discs(n: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Noisy images of a few bright discs, and the masks of the discs."""
    r = torch.arange(size, dtype=torch.float32)
    centre = size * torch.rand(n, 4, 2)
    radius = 2 + 4 * torch.rand(n, 4)
    d = (r[:, None] - centre[..., 0, None, None]) ** 2 + (
        r[None, :] - centre[..., 1, None, None]
    ) ** 2
    mask = (d < radius[..., None, None] ** 2).any(1, keepdim=True).float()
    x = (
        1.5 * mask
        + 0.5 * torch.randn(n, 1, size, size)
        + 0.3 * torch.randn(n, 1, 1, 1)
        - 0.4
    )
    return x, mask


def sentences(n: int, length: int, vocab: int) -> Tensor:
    """Sequences of a noisy Markov chain over tokens 2..vocab-1."""
    step = torch.tensor([1, 3, 7])
    t = [torch.randint(vocab - 2, (n,))]
    for _ in range(length - 1):
        t.append((t[-1] + step[torch.randint(3, (n,))]) % (vocab - 2))
    return torch.stack(t, 1) + 2


def padded(n: int, vocab: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Sentences of differing lengths (mostly short), padded with token 0 to ``high``; and their lengths."""
    lengths = (low + (high - low) * torch.rand(n) ** 3).long()
    lengths[0] = high
    tokens = sentences(n, high, vocab)
    return tokens * (torch.arange(high) < lengths[:, None]), lengths


def conv(i: int, o: int, k: int = 3, s: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, s, k // 2, bias=False)


# ------------------------------------------------------------------------------------------------------------- vision


class Residual(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, i: int, o: int, stride: int = 1):
        super().__init__()
        self.conv1, self.bn1 = conv(i, o, 3, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = conv(o, o), nn.BatchNorm2d(o)
        self.down = None
        if stride != 1 or i != o:
            self.down = nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.down is None else self.down(x)
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + short)


class Backbone(nn.Module):
    """A stem and three residual stages; gives the last two maps."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.stem = nn.Sequential(conv(3, width), nn.BatchNorm2d(width), nn.ReLU())
        self.layer1 = Residual(width, width)
        self.layer2 = Residual(width, 2 * width, 2)
        self.layer3 = Residual(2 * width, 4 * width, 2)
        self.width = width

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer2(self.layer1(self.stem(x)))
        return y, self.layer3(y)


class Classifier(nn.Module):
    def __init__(self, backbone: Backbone, classes: int = 4):
        super().__init__()
        self.backbone = backbone
        self.fc = nn.Linear(4 * backbone.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.backbone(x)[1].mean((2, 3)))


def pretrained(steps: int = 40, width: int = 16) -> Backbone:
    """A backbone trained on the grating images."""
    model = Classifier(Backbone(width))

    def batch(_):
        x, y = gratings(32)
        return (x,), y

    fit(model, batch, F.cross_entropy, steps, 3e-3)
    return model.backbone


class Detector(nn.Module):
    """Dense detector: class scores and boxes at each cell of the coarse map."""

    def __init__(self, backbone: Backbone, classes: int = 2):
        super().__init__()
        self.backbone = backbone
        self.lateral = nn.Conv2d(4 * backbone.width, 64, 1)
        self.tower = nn.Sequential(
            conv(64, 64),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            conv(64, 64),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
        )
        self.cls = nn.Conv2d(64, classes, 1)
        self.box = nn.Conv2d(64, 4, 1)
        for p in self.backbone.parameters():
            p.requires_grad = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.tower(self.lateral(self.backbone(x)[1]))
        return self.cls(y), self.box(y)


@case("shape_detector", 11)
def shape_detector():
    """Detector with a pretrained backbone, in the course of training its head on photographs of discs."""
    model = Detector(pretrained())

    def batch(_):
        x, m = discs(8)
        return (x.repeat(1, 3, 1, 1),), F.max_pool2d(m, 4)

    def loss(out, m):
        return F.cross_entropy(out[0], m[:, 0].long()) + 0.0 * out[1].square().mean()

    model.train()
    fit(model, batch, loss, 10, 1e-3)
    return model, discs(8)[0].repeat(1, 3, 1, 1)


class RoadSegmenter(nn.Module):
    """Segmentation head on a pretrained backbone."""

    def __init__(self, backbone: Backbone, classes: int = 4):
        super().__init__()
        self.backbone = backbone
        w = backbone.width
        self.fuse = nn.Sequential(
            conv(6 * w, 48, 1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            conv(48, 48),
            nn.BatchNorm2d(48),
            nn.ReLU(),
        )
        self.out = nn.Conv2d(48, classes, 1)
        self.backbone.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse = self.backbone(x)
        coarse = F.interpolate(
            coarse, size=fine.shape[2:], mode="bilinear", align_corners=False
        )
        y = self.out(self.fuse(torch.cat([fine, coarse], 1)))
        return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)


@case("road_segmenter", 12)
def road_segmenter():
    """Segmentation model in training, on a backbone trained before on the same kind of images."""
    model = RoadSegmenter(pretrained(60))

    def batch(_):
        x, y = gratings(16)
        return (x,), y[:, None, None].expand(-1, 32, 32)

    model.train()
    fit(model, batch, F.cross_entropy, 50, 2e-3)
    return model, gratings(16)[0]


class BasicBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int = 1):
        super().__init__()
        self.conv1 = conv(i, o, 3, stride)
        self.bn1 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv(o, o)
        self.bn2 = nn.BatchNorm2d(o)
        self.shortcut = nn.Sequential()
        if stride != 1 or i != o:
            self.shortcut = nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn1(out)
        out = out + self.shortcut(x)
        return self.relu(out)


class SmallResNet(nn.Module):
    def __init__(self, classes: int = 4):
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 16), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32))
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2), BasicBlock(64, 64))
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


@case("small_resnet", 13)
def small_resnet():
    """Residual classifier after training, handed over for evaluation."""
    model = SmallResNet()

    def batch(_):
        x, y = gratings(32)
        return (x,), y

    fit(model, batch, F.cross_entropy, 40, 2e-3)
    return model.eval(), gratings(32)[0]


class BottleneckNet(nn.Module):
    """Residual classifier of a large-batch recipe."""

    def __init__(self, classes: int = 4):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(
            Residual(16, 16), Residual(16, 32, 2), Residual(32, 32), Residual(32, 32)
        )
        self.fc = nn.Linear(32, classes)
        for m in self.modules():
            if isinstance(m, Residual):
                nn.init.zeros_(m.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


@case("flower_classifier", 14)
def flower_classifier():
    """Residual classifier early in training."""
    model = BottleneckNet()

    def batch(_):
        x, y = gratings(32, size=24)
        return (x,), y

    model.train()
    fit(model, batch, F.cross_entropy, 70, 5e-4)
    return model, gratings(32, size=24)[0]


def double(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(
        conv(i, o),
        nn.BatchNorm2d(o),
        nn.ReLU(),
        conv(o, o),
        nn.BatchNorm2d(o),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width: int = 12):
        super().__init__()
        self.enc1, self.enc2 = double(1, width), double(width, 2 * width)
        self.mid = double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.dec2 = double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.dec1 = double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([b, self.up2(c)], 1))
        a = self.dec1(torch.cat([a, self.up1(b)], 1))
        return self.out(a)


@case("cell_unet", 15)
def cell_unet():
    """U-Net for segmentation; the average of the weights over training is what is evaluated."""
    model = UNet()
    average = copy.deepcopy(model)

    @torch.no_grad()
    def track():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p, 0.2)

    def batch(_):
        x, m = discs(16)
        return (x,), m

    fit(model, batch, F.binary_cross_entropy_with_logits, 60, 5e-3, track)
    return average.eval(), discs(16)[0]


class Retrieval(nn.Module):
    """Embedding head on the features of a ready-made extractor."""

    def __init__(self, extractor: Backbone, dim: int = 32):
        super().__init__()
        extractor.requires_grad_(False)
        self._extractor = (
            extractor,
        )  # kept out of the checkpoint, which holds the head alone
        self.head = nn.Sequential(
            nn.Linear(4 * extractor.width, 64),
            nn.LayerNorm(64),
            nn.GELU(),
            nn.Linear(64, dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            f = self._extractor[0](x)[1].mean((2, 3))
        return F.normalize(self.head(f), dim=-1)


@case("photo_retrieval", 16)
def photo_retrieval():
    """Image embedding with a pretrained extractor, handed over for evaluation."""
    model = Retrieval(pretrained())
    centres = F.normalize(torch.randn(4, 32), dim=-1)

    def batch(_):
        x, y = gratings(32)
        return (x,), y

    fit(model, batch, lambda z, y: F.cross_entropy(8 * z @ centres.T, y), 30, 3e-3)
    return model.eval(), gratings(16)[0]


class LayerNorm2d(nn.Module):
    """Layer norm over the channels of an image."""

    def __init__(self, channels: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        x = x.reshape(b, h * w, c)
        x = F.layer_norm(x, (c,), self.weight, self.bias, self.eps)
        return x.reshape(b, c, h, w)


class NextBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = LayerNorm2d(dim)
        self.pw1, self.pw2 = nn.Conv2d(dim, 4 * dim, 1), nn.Conv2d(4 * dim, dim, 1)
        self.scale = nn.Parameter(0.1 * torch.ones(dim, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.pw2(F.gelu(self.pw1(self.norm(self.dw(x)))))


class NextNet(nn.Module):
    def __init__(self, classes: int = 4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 4, 4), LayerNorm2d(32))
        self.stage1 = nn.Sequential(NextBlock(32), NextBlock(32))
        self.down = nn.Sequential(LayerNorm2d(32), nn.Conv2d(32, 64, 2, 2))
        self.stage2 = nn.Sequential(NextBlock(64), NextBlock(64))
        self.norm = nn.LayerNorm(64)
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stage2(self.down(self.stage1(self.stem(x))))
        return self.fc(self.norm(y.mean((2, 3))))


@case("leaf_convnet", 17)
def leaf_convnet():
    """Modern convolutional classifier after training."""
    model = NextNet()

    def batch(_):
        x, y = gratings(32, size=64)
        return (x,), y

    fit(model, batch, F.cross_entropy, 30, 2e-3)
    return model.eval(), gratings(16, size=64)[0]


def gn(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels), channels)


class ASPP(nn.Module):
    """Parallel convolutions at several rates, and a branch for the whole image."""

    def __init__(self, i: int, o: int = 32, rates: tuple[int, ...] = (1, 2, 4)):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(i, o, 3, padding=r, dilation=r, bias=False), gn(o), nn.ReLU()
            )
            for r in rates
        )
        self.pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(i, o, 1, bias=False), gn(o), nn.ReLU()
        )
        self.project = nn.Sequential(
            nn.Conv2d(o * (len(rates) + 1), 64, 1, bias=False), gn(64), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = [b(x) for b in self.branches]
        y.append(self.pool(x).expand(-1, -1, *x.shape[2:]))
        return self.project(torch.cat(y, 1))


class SceneNet(nn.Module):
    def __init__(self, classes: int = 4):
        super().__init__()
        self.encoder = nn.Sequential(
            conv(3, 32, 3, 2),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            conv(32, 64, 3, 2),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
        )
        self.aspp = ASPP(64)
        self.out = nn.Conv2d(64, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(self.aspp(self.encoder(x)))
        return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)


@case("scene_parser", 18)
def scene_parser():
    """Scene segmentation without batch statistics, after training."""
    model = SceneNet()

    def batch(_):
        x, y = gratings(8)
        return (x,), y[:, None, None].expand(-1, 32, 32)

    fit(model, batch, F.cross_entropy, 40, 2e-3)
    return model.eval(), gratings(8)[0]


class StyleNet(nn.Module):
    """Feed-forward style transfer."""

    def __init__(self, w: int = 24):
        super().__init__()

        def layer(i, o, k, s=1):
            return nn.Sequential(
                nn.ReflectionPad2d(k // 2),
                nn.Conv2d(i, o, k, s, bias=False),
                nn.GroupNorm(o, o),
            )

        self.encode = nn.Sequential(
            layer(3, w, 5), nn.ReLU(), layer(w, 2 * w, 3, 2), nn.ReLU()
        )
        self.body = nn.ModuleList(
            nn.Sequential(layer(2 * w, 2 * w, 3), nn.ReLU(), layer(2 * w, 2 * w, 3))
            for _ in range(3)
        )
        self.decode = nn.Sequential(
            nn.Upsample(scale_factor=2),
            layer(2 * w, w, 3),
            nn.ReLU(),
            nn.Conv2d(w, 3, 5, padding=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.encode(x)
        for b in self.body:
            y = y + b(y)
        return torch.tanh(self.decode(y))


@case("style_painter", 19)
def style_painter():
    """Style transfer network after training, for evaluation."""
    model = StyleNet()

    def gram(y):
        f = y.flatten(2)
        return f @ f.transpose(1, 2) / f.shape[2]

    style = gram(torch.tanh(gratings(1)[0]))

    def batch(_):
        x = gratings(8)[0]
        return (x,), x

    def loss(y, x):
        return F.mse_loss(y, torch.tanh(x)) + 0.3 * (gram(y) - style).square().mean()

    fit(model, batch, loss, 25, 2e-3)
    return model.eval(), gratings(8)[0]


class Generator(nn.Module):
    """Generator of small sprites from noise."""

    def __init__(self, z: int = 64, w: int = 16):
        super().__init__()

        def up(i, o, k=4, s=2, p=1):
            return nn.Sequential(
                nn.ConvTranspose2d(i, o, k, s, p, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(True),
            )

        self.main = nn.Sequential(
            up(z, 4 * w, 4, 1, 0),
            up(4 * w, 2 * w),
            up(2 * w, w),
            nn.ConvTranspose2d(w, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z[:, :, None, None])


def init_gan(module: nn.Module) -> None:
    for name, p in module.named_parameters():
        if name.endswith("weight"):
            nn.init.normal_(p, 0.0, 0.02)
        else:
            nn.init.zeros_(p)


@case("sprite_generator", 20)
def sprite_generator():
    """Generator of a GAN in training."""
    g = Generator()
    d = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 64, 1),
    )
    init_gan(g)
    og = torch.optim.Adam(g.parameters(), 2e-4, (0.5, 0.999))
    od = torch.optim.Adam(d.parameters(), 2e-4, (0.5, 0.999))
    for _ in range(160):
        real = torch.tanh(gratings(16)[0])
        fake = g(torch.randn(16, 64))
        od.zero_grad()
        (F.softplus(-d(real)) + F.softplus(d(fake.detach()))).mean().backward()
        od.step()
        og.zero_grad()
        F.softplus(-d(fake)).mean().backward()
        og.step()
    g.zero_grad(set_to_none=True)
    return g.train(), torch.randn(16, 64)


class FewShotNet(nn.Module):
    """Four-block network for episodes, with the statistics of the episode at hand."""

    def __init__(self, ways: int = 4, w: int = 32):
        super().__init__()
        blocks, i = [], 3
        for _ in range(4):
            blocks += [
                conv(i, w),
                nn.BatchNorm2d(w, track_running_stats=False),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            i = w
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Linear(w * 4, ways)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


@case("episode_learner", 21)
def episode_learner():
    """Network of a meta-learner, in the inner loop, with one episode's images."""
    model = FewShotNet()

    def batch(_):
        x, y = gratings(20)
        return (x,), y

    model.train()
    fit(model, batch, F.cross_entropy, 30, 2e-3)
    return model, gratings(20)[0]


class SimSiam(nn.Module):
    """Two views through one encoder, with a predictor on one side and no gradient on the other."""

    def __init__(self, dim: int = 64):
        super().__init__()
        self.encoder = nn.Sequential(
            conv(3, 16, 3, 2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            conv(16, 32, 3, 2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(
            nn.Linear(128, dim, bias=False),
            nn.BatchNorm1d(dim),
            nn.ReLU(),
            nn.Linear(dim, dim, bias=False),
            nn.BatchNorm1d(dim, affine=False),
        )
        self.predictor = nn.Sequential(
            nn.Linear(dim, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Linear(16, dim),
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.projector(self.encoder(a)), self.projector(self.encoder(b))
        pa, pb = self.predictor(za), self.predictor(zb)

        def near(p, z):
            return (F.normalize(p, dim=-1) * F.normalize(z.detach(), dim=-1)).sum(-1)

        return -0.5 * (near(pa, zb) + near(pb, za))


@case("view_matcher", 22)
def view_matcher():
    """Self-supervised network in training, with two augmented views of each image."""
    model = SimSiam()

    def views(n):
        x = gratings(n)[0]
        return tuple(
            x * (0.8 + 0.4 * torch.rand(n, 1, 1, 1))
            + 0.2 * torch.randn(n, 3, 1, 1)
            + 0.1 * torch.randn_like(x)
            for _ in range(2)
        )

    model.train()
    fit(model, lambda _: (views(32), None), lambda out, _: out.mean(), 40, 1e-3)
    return model, views(32)


# ----------------------------------------------------------------------------------------------------- text and tokens


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int = 4, causal: bool = False):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            self.qkv(x)
            .view(b, t, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Norm(nn.Module):
    """Standardisation with learned gain and bias."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        var = x.var(1, keepdim=True, unbiased=False)
        return self.gain * (x - mean) / torch.sqrt(var + self.eps) + self.bias


class LMBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm1, self.attn = Norm(dim), Attention(dim, causal=True)
        self.norm2 = Norm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharLM(nn.Module):
    def __init__(
        self, vocab: int = 40, dim: int = 64, length: int = 48, depth: int = 3
    ):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(LMBlock(dim) for _ in range(depth))
        self.norm = Norm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


@case("char_lm", 23)
def char_lm():
    """Character language model after training."""
    model = CharLM()

    def batch(_):
        t = sentences(16, 49, 40)
        return (t[:, :-1],), t[:, 1:]

    fit(
        model,
        batch,
        lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten()),
        50,
        2e-3,
    )
    return model.eval(), sentences(16, 48, 40)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class RankBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm1, self.attn = RMSNorm(dim), Attention(dim)
        self.norm2 = RMSNorm(dim)
        self.up, self.down = (
            nn.Linear(dim, 2 * dim, bias=False),
            nn.Linear(2 * dim, dim, bias=False),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Ranker(nn.Module):
    """Score of a text, from a T5-like encoder (no positions, wide residual stream)."""

    def __init__(
        self, vocab: int = 100, dim: int = 64, depth: int = 3, stream: float = 110.0
    ):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(RankBlock(dim) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.score = nn.Linear(dim, 1)
        nn.init.normal_(self.embed.weight, std=stream)
        for b in self.blocks:
            nn.init.normal_(b.attn.out.weight, std=stream / dim**0.5)
            nn.init.normal_(b.down.weight, std=0.5 * stream / dim**0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        keep = tokens != 0
        x = self.embed(tokens)
        for b in self.blocks:
            x = b(x, keep[:, None, None, :])
        y = self.norm(x) * keep[..., None]
        return self.score(y.sum(1) / keep.sum(1, keepdim=True)).squeeze(1)


@case("text_ranker", 24)
def text_ranker():
    """Ranking model, trained in single precision and served in half."""
    model = Ranker()

    def batch(_):
        t, n = padded(32, 100, 6, 24)
        target = (((t > 50) & (t != 0)).sum(1) / n - 0.5) * 4
        return (t,), target

    fit(model, batch, F.mse_loss, 80, 3e-3)
    return model.eval().half(), padded(32, 100, 6, 24)[0]


class OffsetRMSNorm(nn.Module):
    """Root-mean-square norm; the weight is kept as an offset from one."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class DecoderBlock(nn.Module):
    def __init__(self, dim: int, heads: int = 4):
        super().__init__()
        self.norm1, self.norm2 = OffsetRMSNorm(dim), OffsetRMSNorm(dim)
        self.qkv, self.out = (
            nn.Linear(dim, 3 * dim, bias=False),
            nn.Linear(dim, dim, bias=False),
        )
        self.q_norm, self.k_norm = (
            OffsetRMSNorm(dim // heads),
            OffsetRMSNorm(dim // heads),
        )
        self.gate, self.up = (
            nn.Linear(dim, 2 * dim, bias=False),
            nn.Linear(dim, 2 * dim, bias=False),
        )
        self.down = nn.Linear(2 * dim, dim, bias=False)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(
            self.q_norm(q), self.k_norm(k), v, is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h))


class Decoder(nn.Module):
    def __init__(
        self, vocab: int = 64, dim: int = 64, length: int = 32, depth: int = 3
    ):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(DecoderBlock(dim) for _ in range(depth))
        self.norm = OffsetRMSNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.norm(x) @ self.tok.weight.T * self.tok.embedding_dim**-0.5


@case("story_decoder", 25)
def story_decoder():
    """Decoder-only language model in bfloat16, after training."""
    model = Decoder()

    def batch(_):
        t = sentences(16, 33, 64)
        return (t[:, :-1],), t[:, 1:]

    fit(
        model,
        batch,
        lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten()),
        50,
        2e-3,
    )
    return model.eval().bfloat16(), sentences(16, 32, 64)


class SlotTagger(nn.Module):
    """Tags of the words of an utterance."""

    def __init__(self, vocab: int = 60, dim: int = 32, tags: int = 5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, 32, batch_first=True, bidirectional=True)
        self.bn = nn.BatchNorm1d(64)
        self.out = nn.Linear(64, tags)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        y, _ = self.lstm(packed)
        y, _ = nn.utils.rnn.pad_packed_sequence(
            y, batch_first=True, total_length=tokens.shape[1]
        )
        y = self.bn(y.transpose(1, 2)).transpose(1, 2)
        return self.out(F.relu(y))


def tag_batch(
    n: int, vocab: int = 60, low: int = 4, high: int = 40
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    t, lengths = padded(n, vocab, low, high)
    tags = torch.where(t == 0, torch.full_like(t, -100), t * 5 // vocab)
    return (t, lengths), tags


def tag_loss(out: Tensor, tags: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), tags.flatten(), ignore_index=-100)


@case("slot_tagger", 26)
def slot_tagger():
    """Recurrent tagger in training, with utterances padded to the longest."""
    model = SlotTagger()
    model.train()
    fit(model, lambda _: tag_batch(24), tag_loss, 100, 5e-3)
    tokens, lengths = tag_batch(24)[0]
    return model, {"tokens": tokens, "lengths": lengths}


class TokenBatchNorm(nn.Module):
    """Batch norm of (batch, time, features) over the tokens that the mask keeps."""

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if self.training:
            m = keep[..., None].to(x.dtype)
            n = m.sum()
            mean = (x * m).sum((0, 1)) / n
            var = ((x - mean).square() * m).sum((0, 1)) / n
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * n / (n - 1), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        y = (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return y * keep[..., None]


class EventTagger(nn.Module):
    """Tags of the events of a log."""

    def __init__(self, vocab: int = 60, dim: int = 32, tags: int = 5):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.norm_in = TokenBatchNorm(dim)
        self.gru = nn.GRU(dim, 48, batch_first=True)
        self.norm_out = TokenBatchNorm(48)
        self.out = nn.Linear(48, tags)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        y, _ = self.gru(self.norm_in(self.embed(tokens), keep))
        return self.out(F.relu(self.norm_out(y, keep)))


@case("event_tagger", 27)
def event_tagger():
    """Recurrent tagger in training, with a mask for the padding."""
    model = EventTagger()

    def batch(_):
        (t, _n), tags = tag_batch(24)
        return (t, t != 0), tags

    model.train()
    fit(model, batch, tag_loss, 80, 5e-3)
    (tokens, _n), _ = tag_batch(24)
    return model, {"tokens": tokens, "keep": tokens != 0}


# --------------------------------------------------------------------------------------------- signals, sets and tables


class Forecaster(nn.Module):
    """Next values of several sensors from a window of readings."""

    def __init__(
        self, sensors: int = 9, dim: int = 64, window: int = 64, depth: int = 2
    ):
        super().__init__()
        self.embed = nn.Linear(sensors, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(window, dim))
        self.attn = nn.ModuleList(Attention(dim) for _ in range(depth))
        self.norm1 = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))
            for _ in range(depth)
        )
        self.norm2 = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(depth))
        self.head = nn.Linear(dim, sensors)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.pos
        for attn, norm1, mlp, norm2 in zip(self.attn, self.norm1, self.mlp, self.norm2):
            x = norm1(x + attn(x))
            x = norm2(x + mlp(x))
        return self.head(x[:, -1])


def sensor_windows(n: int, length: int = 65) -> Tensor:
    t = torch.arange(length, dtype=torch.float32)
    scale = torch.tensor([0.2, 0.5, 1.0, 1.0, 2.0, 3.0, 0.3, 1.5, 0.8])
    freq = 0.1 + 0.3 * torch.rand(n, 1, 9)
    x = torch.sin(freq * t[:, None] + 6.3 * torch.rand(n, 1, 9)) + 0.02 * t[
        :, None
    ] * torch.randn(n, 1, 9)
    return scale * (x + 0.1 * torch.randn(n, length, 9)) + torch.linspace(-6, 6, 9)


@case("sensor_forecaster", 28)
def sensor_forecaster():
    """Transformer for multivariate time series after training."""
    model = Forecaster()

    def batch(_):
        x = sensor_windows(32)
        return (x[:, :-1],), x[:, -1]

    fit(model, batch, F.mse_loss, 100, 3e-3)
    return model.eval(), sensor_windows(16)[:, :-1]


class KeywordNet(nn.Module):
    """Spoken keywords from the waveform, by the energies of frequency bands."""

    def __init__(self, bands: int = 32, classes: int = 4):
        super().__init__()
        self.register_buffer("window", torch.hann_window(128), persistent=False)
        self.register_buffer("filters", self._filters(65, bands), persistent=False)
        self.norm = nn.BatchNorm1d(bands, eps=1e-3)
        self.conv1, self.bn1 = (
            nn.Conv1d(bands, 48, 5, padding=2, bias=False),
            nn.BatchNorm1d(48),
        )
        self.conv2, self.bn2 = (
            nn.Conv1d(48, 64, 5, padding=2, bias=False),
            nn.BatchNorm1d(64),
        )
        self.fc = nn.Linear(64, classes)

    @staticmethod
    def _filters(bins: int, bands: int) -> Tensor:
        centre = torch.linspace(1, bins - 2, bands)
        return (1 - (torch.arange(bins) - centre[:, None]).abs() / 2.5).clamp(min=0)

    def forward(self, wave: Tensor) -> Tensor:
        frames = wave.unfold(1, 128, 64) * self.window
        power = torch.fft.rfft(frames).abs().square() / 128
        x = self.norm((power @ self.filters.T).transpose(1, 2))
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean(2))


def waves(n: int) -> tuple[Tensor, Tensor]:
    """Quiet recordings: the hum of a machine, and fainter, two tones that depend on the class; full scale is one."""
    y = (torch.arange(n) % 4)[torch.randperm(n)]
    t = torch.arange(2048, dtype=torch.float32)
    f1 = (0.9 + 0.25 * y + 0.03 * torch.randn(n))[:, None]
    f2 = (2.7 - 0.25 * y + 0.03 * torch.randn(n))[:, None]
    swell = 0.5 + torch.rand(n, 1) + 0.3 * torch.sin(0.01 * t + 6.3 * torch.rand(n, 1))
    hum = 0.03 * swell * torch.sin((0.2 + 0.1 * torch.rand(n, 1)) * t)
    half = (t < 1024).float()
    tones = (
        0.0015
        * (0.5 + torch.rand(n, 1))
        * (torch.sin(f1 * t) * half + torch.sin(f2 * t) * (1 - half))
    )
    return hum + tones + 0.0005 * torch.randn(n, 2048), y


@case("keyword_spotter", 29)
def keyword_spotter():
    """Keyword classifier after training, for evaluation."""
    model = KeywordNet()

    def batch(_):
        x, y = waves(32)
        return (x,), y

    fit(model, batch, F.cross_entropy, 250, 2e-3)
    return model.eval(), waves(32)[0]


class PointMatcher(nn.Module):
    """Unit descriptors of the points of two scans, and the log-probabilities of their matches by cosine."""

    def __init__(self, dim: int = 32, temperature: float = 0.07):
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(3, 64, 1, bias=False),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, 64, 1, bias=False),
            nn.BatchNorm1d(64),
            nn.ReLU(),
        )
        self.point = nn.Sequential(
            nn.Conv1d(128, 64, 1, bias=False),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Conv1d(64, dim, 1),
        )
        self.temperature = temperature

    def describe(self, points: Tensor) -> Tensor:
        y = self.local(points.transpose(1, 2))
        y = self.point(torch.cat([y, y.amax(2, keepdim=True).expand_as(y)], 1))
        return F.normalize(y.transpose(1, 2))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        cosine = self.describe(source) @ self.describe(target).transpose(1, 2)
        return F.log_softmax(cosine / self.temperature, -1)


def scans(n: int, points: int = 128) -> tuple[Tensor, Tensor]:
    """Two noisy scans of each object, the second one turned a little; the points correspond in order."""
    p = F.normalize(torch.randn(n, points, 3), dim=-1) * (0.5 + torch.rand(n, 1, 3))
    a = 0.2 * torch.randn(n)
    turn = torch.stack(
        [torch.stack([a.cos(), -a.sin()], -1), torch.stack([a.sin(), a.cos()], -1)], 1
    )
    q = torch.cat([p[..., :2] @ turn, p[..., 2:]], -1)
    return p + 0.01 * torch.randn_like(p), q + 0.01 * torch.randn_like(q)


@case("point_matcher", 30)
def point_matcher():
    """Registration network for point clouds after training, for evaluation."""
    model = PointMatcher()

    def loss(out, _):
        return -out.diagonal(dim1=1, dim2=2).mean()

    fit(model, lambda _: (scans(16), None), loss, 60, 3e-3)
    return model.eval(), scans(16)


class ShopNet(nn.Module):
    """Several targets of a customer from one trunk."""

    def __init__(self, numeric: int = 12, kinds: int = 20):
        super().__init__()
        self.kind = nn.Embedding(kinds, 8)
        layers, i = [nn.BatchNorm1d(numeric + 8, momentum=0.99)], numeric + 8
        for o in (96, 96, 64):
            layers += [
                nn.Linear(i, o, bias=False),
                nn.BatchNorm1d(o, momentum=0.99),
                nn.ReLU(),
            ]
            i = o
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.ModuleDict(
            {
                "spend": nn.Linear(64, 1),
                "churn": nn.Linear(64, 1),
                "segment": nn.Linear(64, 4),
            }
        )

    def forward(self, numbers: Tensor, kind: Tensor) -> dict[str, Tensor]:
        y = self.trunk(torch.cat([numbers, self.kind(kind)], 1))
        return {k: h(y) for k, h in self.heads.items()}


@case("customer_heads", 31)
def customer_heads():
    """Multi-task network for tables, trained with gradients accumulated over small batches; for evaluation."""
    model = ShopNet()
    w = torch.randn(12)

    def rows(n):
        x = torch.randn(n, 12) * torch.logspace(-1, 1, 12) + torch.linspace(-3, 3, 12)
        return x, torch.randint(20, (n,))

    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for i in range(160):
        x, kind = rows(8)
        s = (
            (x - torch.linspace(-3, 3, 12)) / torch.logspace(-1, 1, 12)
        ) @ w / 3.5 + 0.1 * (kind - 10)
        out = model(x, kind)
        loss = F.mse_loss(out["spend"][:, 0], s) + F.binary_cross_entropy_with_logits(
            out["churn"][:, 0], (s > 0).float()
        )
        loss = loss + F.cross_entropy(out["segment"], ((s + 2).clamp(0, 3.99)).long())
        (loss / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    model.zero_grad(set_to_none=True)
    return model.eval(), rows(32)


class GraphNorm(nn.Module):
    """Standardises the nodes of each graph."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        if batch is None:
            x = x - x.mean()
            return x / (x.square().mean() + self.eps).sqrt() * self.weight + self.bias
        count = torch.bincount(batch).to(x.dtype)[:, None] * x.shape[1]

        def mean(v):
            return (
                torch.zeros(len(count), 1, dtype=v.dtype).index_add(
                    0, batch, v.sum(1, keepdim=True)
                )
                / count
            )[batch]

        x = x - mean(x)
        return x / (mean(x.square()) + self.eps).sqrt() * self.weight + self.bias


class MoleculeNet(nn.Module):
    def __init__(self, dim: int = 48, depth: int = 3):
        super().__init__()
        self.embed = nn.Linear(8, dim)
        self.own = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.near = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(depth))
        self.norms = nn.ModuleList(GraphNorm(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, nodes: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        x = self.embed(nodes)
        for own, near, norm in zip(self.own, self.near, self.norms):
            message = torch.zeros_like(x).index_add(0, edges[1], near(x)[edges[0]])
            x = x + F.relu(norm(own(x) + message))
        total = torch.zeros(int(batch.max()) + 1, x.shape[1]).index_add(0, batch, x)
        return self.out(total / torch.bincount(batch)[:, None]).squeeze(1)


def graphs(n: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Random trees with a few extra edges, with one-hot node types; the target is from types and degrees."""
    nodes, edges, ids, start = [], [], [], 0
    target = []
    for g in range(n):
        size = int(torch.randint(5, 30, ()))
        kind = torch.multinomial(
            torch.softmax(1.5 * torch.randn(8), 0), size, replacement=True
        )
        parent = (torch.rand(size - 1) * torch.arange(1, size)).long()
        extra = torch.randint(size, (2, size // 4))
        e = torch.cat([torch.stack([parent, torch.arange(1, size)]), extra], 1)
        e = torch.cat([e, e.flip(0)], 1)
        degree = torch.bincount(e[1], minlength=size)
        target.append((kind.float() * degree / 8).mean() - 1)
        nodes.append(F.one_hot(kind, 8).float())
        edges.append(e + start)
        ids.append(torch.full((size,), g))
        start += size
    return (torch.cat(nodes), torch.cat(edges, 1), torch.cat(ids)), torch.stack(target)


@case("molecule_net", 32)
def molecule_net():
    """Graph network after training, for evaluation, with sixteen graphs in one batch."""
    model = MoleculeNet()
    fit(model, lambda _: graphs(16), F.mse_loss, 50, 3e-3)
    return model.eval(), graphs(16)[0]


# ----------------------------------------------------------------------------------------------- control and diffusion


class ObservationNorm(nn.Module):
    """Standardises observations by their running mean and variance."""

    def __init__(self, dim: int, momentum: float = 0.05, clip: float = 10.0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.momentum, self.clip = momentum, clip

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        self.mean += self.momentum * (x.mean(0) - self.mean)
        self.var += self.momentum * (x.var(0, unbiased=False) - self.var)

    def forward(self, x: Tensor) -> Tensor:
        self.update(x)
        return ((x - self.mean) / torch.sqrt(self.var + 1e-8)).clamp(
            -self.clip, self.clip
        )


class ActorCritic(nn.Module):
    def __init__(self, obs: int = 17, act: int = 6):
        super().__init__()
        self.norm = ObservationNorm(obs)
        self.actor = nn.Sequential(
            nn.Linear(obs, 64),
            nn.Tanh(),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, act),
        )
        self.critic = nn.Sequential(
            nn.Linear(obs, 64),
            nn.Tanh(),
            nn.Linear(64, 64),
            nn.Tanh(),
            nn.Linear(64, 1),
        )

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(obs)
        return torch.tanh(self.actor(x)), self.critic(x).squeeze(1)


@case("walker_policy", 33)
def walker_policy():
    """Actor-critic after training, for evaluation, with the observations of one rollout."""
    model = ActorCritic()
    scale, shift = torch.logspace(-1, 1, 17), torch.linspace(-4, 4, 17)
    w, v = torch.randn(17, 6) / 4, torch.randn(17)

    def rollout(n):
        z = torch.zeros(17)
        out = []
        for _ in range(n):
            z = 0.9 * z + 0.436 * torch.randn(17)
            out.append(z)
        return torch.stack(out)

    def batch(_):
        z = torch.randn(64, 17)
        return (z * scale + shift,), (torch.tanh(z @ w), z @ v / 4)

    fit(
        model,
        batch,
        lambda o, t: F.mse_loss(o[0], t[0]) + F.mse_loss(o[1], t[1]),
        120,
        3e-3,
    )
    return model.eval(), rollout(32) * scale + shift


class DiTBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        s1, b1, g1, s2, b2, g2 = self.modulation(c)[:, None].chunk(6, -1)
        x = x + g1 * self.attn(self.norm1(x) * (1 + s1) + b1)
        return x + g2 * self.mlp(self.norm2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    """Denoiser of small images, conditioned on the time step."""

    def __init__(self, dim: int = 64, patch: int = 4, size: int = 32, depth: int = 3):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, dim))
        self.time = nn.Sequential(nn.Linear(32, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(DiTBlock(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.out = nn.Linear(dim, 3 * patch * patch)
        for layer in (self.modulation[1], self.out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.fold = nn.PixelShuffle(patch)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        f = t[:, None] * torch.exp(torch.linspace(0, 5, 16))
        c = self.time(torch.cat([f.sin(), f.cos()], 1))
        y = self.patch(x)
        h, w = y.shape[2:]
        y = y.flatten(2).transpose(1, 2) + self.pos
        for b in self.blocks:
            y = b(y, c)
        s, b = self.modulation(c)[:, None].chunk(2, -1)
        y = self.out(self.norm(y) * (1 + s) + b)
        return self.fold(y.transpose(1, 2).unflatten(2, (h, w)))


@case("image_denoiser", 34)
def image_denoiser():
    """Diffusion transformer early in training."""
    model = DiT()

    def batch(n):
        x, e, t = gratings(n)[0], torch.randn(n, 3, 32, 32), torch.rand(n)
        a = (t * math.pi / 2).cos()[:, None, None, None]
        return (a * x + (1 - a * a).sqrt() * e, t), e

    model.train()
    fit(model, lambda _: batch(16), F.mse_loss, 40, 1e-3)
    return model, batch(16)[0]


# --- how each is tried


@dataclass(frozen=True)
class Tried:
    """A model, and how its batch is made."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Any]


def _tried(case: Case) -> Tried:
    made = functools.cache(case.make)
    return Tried(case.name, lambda: copy.deepcopy(made()[0]), lambda: made()[1])


SOUND = (
    *("road_segmenter", "flower_classifier", "style_painter", "episode_learner"),
    *("view_matcher", "story_decoder", "event_tagger", "image_denoiser"),
)
BUGS = [_tried(case) for case in CASES if case.name not in SOUND]
CONTROLS = [_tried(case) for case in CASES if case.name in SOUND]
