"""Small models of common families, each with a batch: 12 with a slip, and 12 without.

A thirteenth set, of another hand than the twelfth: written without a look at the checks
or at the sets of others. ``expected.txt`` says what is wrong with each.
"""

# ruff: noqa: B905, C408, D101, D102, D103, E501, E731, RUF007, S610, UP035 - as was

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], tuple[nn.Module, Any]]


CASES: list[Case] = []


def case(seed: int):
    def deco(fn):
        @functools.wraps(fn)
        def make():
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(seed)
                return fn()

        CASES.append(Case(fn.__name__, make))
        return make

    return deco


# --- data
def images(n, c=3, s=32, k=5):
    """Textured pictures: oriented waves, a blob, shading, own exposure, sensor noise."""
    y = torch.randint(k, (n,))
    g = torch.linspace(-1, 1, s)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    ang = math.pi * y / k + 0.08 * torch.randn(n)
    ph = 6.28 * torch.rand(n)
    f = 7 + torch.randn(n)
    v = lambda t: t.view(-1, 1, 1)
    wave = torch.sin(v(f) * (v(ang.cos()) * xx + v(ang.sin()) * yy) + v(ph))
    cx, cy = torch.rand(n) - 0.5, torch.rand(n) - 0.5
    blob = torch.exp(-8 * ((xx - v(cx)) ** 2 + (yy - v(cy)) ** 2))
    base = 0.5 * wave + blob
    mix = 0.6 + 0.4 * torch.rand(n, c, 1, 1)
    img = base[:, None] * mix
    low = F.interpolate(
        torch.randn(n, c, 4, 4), size=(s, s), mode="bilinear", align_corners=False
    )
    expo = 1 + 0.25 * torch.randn(n, 1, 1, 1)
    img = (
        expo * (img + 0.3 * low)
        + 0.2 * torch.randn(n, 1, 1, 1)
        + 0.15 * torch.randn(n, c, s, s)
    )
    return img, y, (blob > 0.5).long()


def tokens(n, t, v=48):
    """Text-like ids of a sparse Markov chain."""
    g = torch.Generator().manual_seed(7)
    p = torch.softmax(2.5 * torch.randn(v, v, generator=g), -1)
    out = [torch.randint(v, (n,))]
    for _ in range(t - 1):
        out.append(torch.multinomial(p[out[-1]], 1)[:, 0])
    return torch.stack(out, 1)


def series(n, t, c, k=4):
    """Sensor channels (n, t, c): own periods, offsets, trend, red noise."""
    y = torch.randint(k, (n,))
    time = torch.arange(t).float()[None, :, None]
    ch = torch.arange(c).float()[None, None]
    per = 6 + 4 * y.view(-1, 1, 1) + 0.7 * ch
    sig = torch.sin(6.283 * time / per + 6.28 * torch.rand(n, 1, c)) * (
        0.7 + 0.6 * torch.rand(n, 1, c)
    )
    noise = torch.randn(n, t, c)
    for i in range(1, t):
        noise[:, i] = 0.7 * noise[:, i - 1] + 0.6 * noise[:, i]
    level = 0.5 * torch.randn(n, 1, c) + 0.2 * ch.cos()
    return sig + 0.4 * noise + level + 0.01 * torch.randn(n, 1, c) * time, y


def frames(n, t, c, k=4, lo=0.35):
    """Log-mel-like frames (n, c, t), of differing lengths, zero after the end."""
    lengths = (t * (lo + (1 - lo) * torch.rand(n))).long().clamp(8, t)
    lengths[0] = t
    s, y = series(n, t, 1, k)
    band = torch.linspace(0, 3, c)[None, :, None]
    env = torch.cos(band * (1 + y.view(-1, 1, 1)) * 0.6 + s.transpose(1, 2))
    x = 1.5 * env + 0.8 * s.transpose(1, 2) - 1.0 + 0.4 * torch.randn(n, c, t)
    mask = torch.arange(t)[None] < lengths[:, None]
    return x * mask[:, None], lengths, y


def fit(model, batch, loss, steps, lr=3e-3, hook=None):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for i in range(steps):
        for g in opt.param_groups:
            g["lr"] = lr * (1 - 0.9 * i / steps)
        opt.zero_grad()
        value = loss(batch())
        value.backward()
        opt.step()
        if hook is not None:
            hook(i)
    opt.zero_grad()
    return model


# --- language, decoder
class ChanNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        return (x - u) / torch.sqrt(s + self.eps) * self.weight + self.bias


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(o.transpose(1, 2).reshape(b, t, d))


class DecoderBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln1, self.ln2 = ChanNorm(dim), ChanNorm(dim)
        self.attn = CausalAttention(dim, 4)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class CharLM(nn.Module):
    def __init__(self, vocab=48, dim=64, depth=2, ctx=40):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.blocks = nn.ModuleList(DecoderBlock(dim) for _ in range(depth))
        self.ln_f = ChanNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln_f(x))


def lm_loss(m):
    return lambda ids: F.cross_entropy(
        m(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten()
    )


@case(1)
def char_lm():
    m = CharLM()
    fit(m, lambda: tokens(16, 33), lm_loss(m), 40)
    return m.eval(), tokens(12, 32)


# --- point clouds
def clouds(n, pts=96, k=4, scale=1.0):
    y = torch.randint(k, (n,))
    d = F.normalize(torch.randn(n, 3, pts), dim=1)
    shape = torch.stack(
        [
            d,
            d * torch.tensor([1.0, 1.0, 0.1]).view(3, 1),
            d.abs().sqrt() * d.sign(),
            d * torch.rand(n, 1, pts),
        ]
    )[y, torch.arange(n)]
    size = scale * (0.8 + 0.4 * torch.rand(n, 1, 1))
    return shape * size + 0.03 * torch.randn(n, 3, pts) + (scale - 1) * 0.3, y


class PointNet(nn.Module):
    def __init__(self, widths=(3, 32, 64, 128)):
        super().__init__()
        self.mlp = nn.Sequential(
            *[
                nn.Sequential(
                    nn.Conv1d(a, b, 1, bias=False), nn.BatchNorm1d(b), nn.ReLU()
                )
                for a, b in zip(widths, widths[1:])
            ]
        )

    def forward(self, x):
        return self.mlp(x).amax(-1)


class CloudClassifier(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.backbone = PointNet()
        self.head = nn.Sequential(
            nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, k)
        )

    def freeze_backbone(self):
        for p in self.backbone.parameters():
            p.requires_grad_(False)
        self.backbone.eval()

    def forward(self, x):
        return self.head(self.backbone(x))


@case(2)
def cloud_finetune():
    m = CloudClassifier(4)
    ce = lambda b: F.cross_entropy(m(b[0]), b[1])
    fit(m, lambda: clouds(24), ce, 50)
    m.head[-1] = nn.Linear(64, 4)
    m.freeze_backbone()
    m.train()
    fit(m, lambda: clouds(24, scale=1.8), ce, 25)
    return m, clouds(16, scale=1.8)[0]


# --- audio tagging
class Tagger(nn.Module):
    def __init__(self, c=24, k=4, w=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(c, w, 5, padding=2, bias=False),
            nn.BatchNorm1d(w),
            nn.ReLU(),
            nn.Conv1d(w, w, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm1d(w),
            nn.ReLU(),
            nn.Conv1d(w, w, 3, padding=1, bias=False),
            nn.BatchNorm1d(w),
            nn.ReLU(),
        )
        self.fc = nn.Linear(w, k)

    def forward(self, x):
        return self.fc(self.body(x).mean(-1))


class TeacherStudent(nn.Module):
    def __init__(self, student, decay=0.95):
        super().__init__()
        self.student = student
        self.teacher = copy.deepcopy(student).requires_grad_(False)
        self.decay = decay
        self.train()

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def update(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 1 - self.decay)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x).softmax(-1)
        return self.student(x), target


@case(3)
def audio_teacher():
    s = Tagger()
    batch = lambda: (lambda f: (f[0] * 2 - 1.5, f[2]))(frames(24, 48, 24, lo=1.0))
    fit(s, batch, lambda b: F.cross_entropy(s(b[0]), b[1]), 4)
    m = TeacherStudent(s)

    def loss(b):
        out, target = m(b[0])
        return F.cross_entropy(out, b[1]) + 0.1 * F.cross_entropy(out, target)

    fit(m, batch, loss, 80, hook=lambda i: m.update())
    return m, batch()[0]


# --- detection
def cbr(a, b, k=3, s=1):
    return nn.Sequential(
        nn.Conv2d(a, b, k, s, k // 2, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(inplace=True),
    )


class Pyramid(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.c1, self.c2, self.c3, self.c4 = (
            cbr(3, 16, s=2),
            cbr(16, w, s=2),
            cbr(w, w, s=2),
            cbr(w, 48, s=2),
        )
        self.l2, self.l3, self.l4 = (
            nn.Conv2d(w, w, 1),
            nn.Conv2d(w, w, 1),
            nn.Conv2d(48, w, 1),
        )

    def forward(self, x):
        c2 = self.c2(self.c1(x))
        c3 = self.c3(c2)
        c4 = self.c4(c3)
        p4 = self.l4(c4)
        p3 = self.l3(c3) + F.interpolate(p4, scale_factor=2)
        p2 = self.l2(c2) + F.interpolate(p3, scale_factor=2)
        return p2, p3, p4


class DenseHead(nn.Module):
    def __init__(self, w=32, k=5):
        super().__init__()
        self.tower = nn.Sequential(cbr(w, w), cbr(w, w))
        self.cls, self.box = (
            nn.Conv2d(w, k, 3, padding=1),
            nn.Conv2d(w, 4, 3, padding=1),
        )

    def forward(self, levels):
        out = []
        for p in levels:
            t = self.tower(p)
            out.append(torch.cat([self.cls(t), self.box(t)], 1).flatten(2))
        return torch.cat(out, 2)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.pyramid, self.head = Pyramid(), DenseHead()

    def forward(self, x):
        return self.head(self.pyramid(x))


@case(4)
def one_stage_detector():
    m = Detector()

    def loss(b):
        o = m(b[0])
        at = [o[..., :64], o[..., 64:80], o[..., 80:]]
        cls = sum(F.cross_entropy(a[:, :5].mean(-1), b[1]) for a in at)
        t = F.interpolate(b[2][:, None].float(), size=8, mode="area").flatten(1)
        return cls + F.mse_loss(o[:, 5, :64], t) + 0.1 * o[:, 6:].abs().mean()

    fit(m, lambda: images(12), loss, 50)
    return m.eval(), images(8)[0]


# --- mobile classifier
BN = dict(momentum=0.99, eps=1e-3)


class MBConv(nn.Module):
    def __init__(self, a, b, expand=4, s=1):
        super().__init__()
        h = a * expand
        self.expand = nn.Sequential(
            nn.Conv2d(a, h, 1, bias=False), nn.BatchNorm2d(h, **BN), nn.SiLU()
        )
        self.depth = nn.Sequential(
            nn.Conv2d(h, h, 3, s, 1, groups=h, bias=False),
            nn.BatchNorm2d(h, **BN),
            nn.SiLU(),
        )
        self.project = nn.Sequential(
            nn.Conv2d(h, b, 1, bias=False), nn.BatchNorm2d(b, **BN)
        )
        self.skip = a == b and s == 1

    def forward(self, x):
        y = self.project(self.depth(self.expand(x)))
        return x + y if self.skip else y


class MobileNet(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16, **BN), nn.SiLU()
        )
        self.blocks = nn.Sequential(
            MBConv(16, 16), MBConv(16, 24, s=2), MBConv(24, 24), MBConv(24, 40, s=2)
        )
        self.fc = nn.Linear(40, k)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


@case(5)
def mobile_classifier():
    m = MobileNet()
    fit(m, lambda: images(8), lambda b: F.cross_entropy(m(b[0]), b[1]), 60)
    return m.eval(), images(16)[0]


# --- scene segmentation
def conv_gn(a, b, k=3, s=1, d=1):
    return nn.Sequential(
        nn.Conv2d(a, b, k, s, d * (k // 2), d, bias=False),
        nn.GroupNorm(32, b),
        nn.ReLU(),
    )


class ASPP(nn.Module):
    def __init__(self, a, b, pooled=32):
        super().__init__()
        self.b1, self.b2, self.b3 = (
            conv_gn(a, b, 1),
            conv_gn(a, b, d=2),
            conv_gn(a, b, d=4),
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_gn(a, pooled, 1))
        self.fuse = conv_gn(3 * b + pooled, b, 1)

    def forward(self, x):
        p = self.pool(x).expand(-1, -1, *x.shape[2:])
        return self.fuse(torch.cat([self.b1(x), self.b2(x), self.b3(x), p], 1))


class SceneSeg(nn.Module):
    def __init__(self, k=2):
        super().__init__()
        self.enc = nn.Sequential(conv_gn(3, 64, s=2), conv_gn(64, 64, s=2))
        self.aspp = ASPP(64, 64)
        self.out = nn.Conv2d(64, k, 1)

    def forward(self, x):
        return F.interpolate(
            self.out(self.aspp(self.enc(x))),
            size=x.shape[2:],
            mode="bilinear",
            align_corners=False,
        )


@case(6)
def scene_segmentation():
    m = SceneSeg()
    fit(m, lambda: images(8), lambda b: F.cross_entropy(m(b[0]), b[2]), 20)
    return m.eval(), images(8)[0]


# --- image generator
class Generator(nn.Module):
    def __init__(self, z=32, w=64):
        super().__init__()
        self.w = w
        self.l1 = nn.Linear(z, w * 16)
        self.net = nn.Sequential(
            nn.BatchNorm2d(w),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(w, w, 3, padding=1),
            nn.BatchNorm2d(w, 0.8),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(w, w // 2, 3, padding=1),
            nn.BatchNorm2d(w // 2, 0.8),
            nn.LeakyReLU(0.2),
            nn.Conv2d(w // 2, 1, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.l1(z).view(-1, self.w, 4, 4))


def dcgan_init(m):
    if isinstance(m, nn.Conv2d):
        nn.init.normal_(m.weight, 0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1, 0.02)
        nn.init.zeros_(m.bias)


@case(7)
def image_generator():
    g = Generator().apply(dcgan_init)
    d = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 16, 1),
    ).apply(dcgan_init)
    og = torch.optim.Adam(g.parameters(), 2e-4, (0.5, 0.999))
    od = torch.optim.Adam(d.parameters(), 2e-4, (0.5, 0.999))
    for _ in range(25):
        real, fake = images(16, 1, 16)[0].tanh(), g(torch.randn(16, 32))
        od.zero_grad()
        (F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()).backward()
        od.step()
        og.zero_grad()
        F.softplus(-d(fake)).mean().backward()
        og.step()
    og.zero_grad()
    with torch.no_grad():
        for _ in range(40):
            g(torch.randn(16, 32))
    return g, torch.randn(16, 32)


# --- vision transformer
class ViTBlock(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        )

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        h = self.norm1(x)
        x = x + self.mlp(h)
        return x


class ViT(nn.Module):
    def __init__(self, dim=64, depth=3, k=5):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, 8)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, dim))
        self.blocks = nn.ModuleList(ViTBlock(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, k)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x)[:, 0])


@case(8)
def patch_classifier():
    m = ViT()
    fit(m, lambda: images(16), lambda b: F.cross_entropy(m(b[0]), b[1]), 50, 1e-3)
    return m.eval(), images(12)[0]


# --- activity recognition
class ActivityNet(nn.Module):
    def __init__(self, c=6, hidden=32, k=4):
        super().__init__()
        self.lstm = nn.LSTM(c, hidden, batch_first=True)
        self.bn = nn.BatchNorm1d(hidden)
        self.lstm2 = nn.LSTM(hidden, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, k)

    def forward(self, x):
        h, _ = self.lstm(x)
        h, _ = self.lstm2(self.bn(h))
        return self.fc(h.mean(1))


def activities(n):
    x, y = series(n, 32, 6)
    return x + 0.9 * torch.cos(1.7 * y.view(-1, 1, 1) + torch.arange(6.0)), y


@case(9)
def activity_lstm():
    m = ActivityNet()
    fit(m, lambda: activities(24), lambda b: F.cross_entropy(m(b[0]), b[1]), 80, 1e-2)
    return m.eval(), activities(16)[0]


# --- speech commands
class TCNBlock(nn.Module):
    def __init__(self, w, d):
        super().__init__()
        self.inp, self.norm1 = nn.Conv1d(w, 2 * w, 1), nn.GroupNorm(1, 2 * w, eps=1e-8)
        self.depth = nn.Conv1d(2 * w, 2 * w, 3, padding=d, dilation=d, groups=2 * w)
        self.norm2, self.out = nn.GroupNorm(1, 2 * w, eps=1e-8), nn.Conv1d(2 * w, w, 1)
        self.a1, self.a2 = nn.PReLU(), nn.PReLU()

    def forward(self, x, mask):
        h = self.norm1(self.a1(self.inp(x)) * mask) * mask
        h = self.norm2(self.a2(self.depth(h)) * mask) * mask
        return x + self.out(h) * mask


class CommandNet(nn.Module):
    def __init__(self, c=24, w=32, k=4):
        super().__init__()
        self.stem = nn.Conv1d(c, w, 1)
        self.blocks = nn.ModuleList(TCNBlock(w, 2**i) for i in range(3))
        self.fc = nn.Linear(w, k)

    def forward(self, feats, lengths):
        mask = (
            torch.arange(feats.shape[-1], device=feats.device)[None] < lengths[:, None]
        )[:, None].to(feats.dtype)
        x = self.stem(feats) * mask
        for b in self.blocks:
            x = b(x, mask)
        return self.fc(x.sum(-1) / mask.sum(-1))


@case(10)
def speech_commands():
    m = CommandNet()
    fit(
        m,
        lambda: frames(16, 64, 24),
        lambda b: F.cross_entropy(m(b[0], b[1]), b[2]),
        40,
    )
    f = frames(12, 64, 24)
    return m.eval(), {"feats": f[0], "lengths": f[1]}


# --- residual network
class ResGN(nn.Module):
    def __init__(self, w, zero_last=False):
        super().__init__()
        self.conv1, self.norm1 = (
            nn.Conv2d(w, w, 3, padding=1, bias=False),
            nn.GroupNorm(8, w),
        )
        self.conv2, self.norm2 = (
            nn.Conv2d(w, w, 3, padding=1, bias=False),
            nn.GroupNorm(8, w),
        )
        if zero_last:
            nn.init.zeros_(self.norm2.weight)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResTrunk(nn.Module):
    def __init__(self, w=32, k=5):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, w, 3, 2, 1, bias=False),
            nn.GroupNorm(8, w),
            nn.ReLU(),
            nn.AvgPool2d(2),
        )
        self.stages = nn.Sequential(ResGN(w), ResGN(w))
        self.extra = nn.Identity()
        self.fc = nn.Linear(w, k)

    def forward(self, x):
        return self.fc(self.extra(self.stages(self.stem(x))).mean((2, 3)))


@case(11)
def extended_resnet():
    m = ResTrunk()
    ce = lambda b: F.cross_entropy(m(b[0]), b[1])
    fit(m, lambda: images(16), ce, 25)
    m.extra = nn.Sequential(ResGN(32, zero_last=True), ResGN(32, zero_last=True))
    for n, p in m.named_parameters():
        if "norm" in n or n.startswith("stem.1"):
            p.requires_grad_(False)
    fit(m, lambda: images(16), ce, 20)
    return m, images(16)[0]


# --- recommender
class FeatureNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.gain, self.shift, self.eps = (
            nn.Parameter(torch.ones(n)),
            nn.Parameter(torch.zeros(n)),
            eps,
        )

    def forward(self, x):
        mu, var = x.mean(0, keepdim=True), x.var(0, keepdim=True, unbiased=False)
        return (x - mu) * torch.rsqrt(var + self.eps) * self.gain + self.shift


class ClickModel(nn.Module):
    def __init__(self, users=200, items=300, d=16, nums=6):
        super().__init__()
        self.user, self.item = nn.Embedding(users, d), nn.Embedding(items, d)
        self.num_norm = FeatureNorm(nums)
        self.mlp = nn.Sequential(
            nn.Linear(2 * d + nums, 64), nn.ReLU(), FeatureNorm(64), nn.Linear(64, 1)
        )

    def forward(self, user, item, numeric):
        h = torch.cat([self.user(user), self.item(item), self.num_norm(numeric)], -1)
        return self.mlp(h).squeeze(-1)


def clicks(n):
    u, i = torch.randint(200, (n,)), torch.randint(300, (n,))
    x = torch.randn(n, 6)
    num = torch.stack(
        [
            x[:, 0].exp().log1p(),
            3 + x[:, 1],
            x[:, 2].abs(),
            0.5 * x[:, 3] - 1,
            (x[:, 4] > 0).float(),
            2 * x[:, 5],
        ],
        -1,
    )
    p = torch.sigmoid(
        1.2 * x[:, 0] - 0.8 * x[:, 2].abs() + 0.4 * x[:, 5] + ((u + i) % 7 - 3) * 0.2
    )
    return {"user": u, "item": i, "numeric": num}, torch.bernoulli(p)


@case(12)
def click_ranker():
    m = ClickModel()
    fit(
        m,
        lambda: clicks(64),
        lambda b: F.binary_cross_entropy_with_logits(m(**b[0]), b[1]),
        80,
    )
    return m.eval(), clicks(16)[0]


# --- contrastive
class Contrastive(nn.Module):
    def __init__(self, w=32, d=48):
        super().__init__()
        self.encoder = nn.Sequential(
            cbr(3, 16, s=2),
            cbr(16, w, s=2),
            cbr(w, 64, s=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(
            nn.Linear(64, 64, bias=False),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Linear(64, d, bias=False),
            nn.BatchNorm1d(d, affine=False),
        )
        self.predictor = nn.Sequential(
            nn.Linear(d, 24, bias=False),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Linear(24, d),
        )

    def forward(self, v1, v2):
        z = self.projector(self.encoder(torch.cat([v1, v2])))
        p = self.predictor(z)
        z1, z2 = z.detach().chunk(2)
        p1, p2 = p.chunk(2)
        return -0.5 * (F.cosine_similarity(p1, z2) + F.cosine_similarity(p2, z1))


def views(n):
    x = images(n)[0]
    aug = lambda t: t * (1 + 0.2 * torch.randn(n, 1, 1, 1)) + 0.1 * torch.randn_like(t)
    return aug(x), aug(x.flip(-1))


@case(13)
def two_views():
    m = Contrastive()
    fit(m, lambda: views(24), lambda b: m(*b).mean(), 70)
    return m, views(24)


# --- quantisation-aware
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        return (x / scale).round().clamp(-128, 127) * scale

    @staticmethod
    def backward(ctx, g):
        return g, None


class QConvBN(nn.Module):
    def __init__(self, a, b, s=1):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 3, s, 1, bias=False)
        self.bn = nn.BatchNorm2d(b)
        self.quant = False

    def forward(self, x):
        if not self.quant:
            return F.relu(self.bn(self.conv(x)))
        f = (self.bn.weight / (self.bn.running_var + self.bn.eps).sqrt()).view(
            -1, 1, 1, 1
        )
        w = self.conv.weight * f
        w = Round.apply(w, w.detach().abs().amax((1, 2, 3), keepdim=True) / 127) / f
        y = F.relu(self.bn(F.conv2d(x, w, None, self.conv.stride, self.conv.padding)))
        return Round.apply(y, y.detach().amax() / 127)


class QNet(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.layers = nn.Sequential(
            QConvBN(3, 16, 2), QConvBN(16, 32, 2), QConvBN(32, 48, 2)
        )
        self.fc = nn.Linear(48, k)
        self.bn_frozen = False

    def train(self, mode=True):
        super().train(mode)
        if self.bn_frozen:
            for q in self.layers:
                q.bn.eval()
        return self

    def forward(self, x):
        return self.fc(self.layers(x).mean((2, 3)))


@case(14)
def int8_training():
    m = QNet()
    ce = lambda b: F.cross_entropy(m(b[0]), b[1])
    fit(m, lambda: images(16), ce, 90)
    for q in m.layers:
        q.quant = True
    m.bn_frozen = True
    m.train()
    fit(m, lambda: images(16), ce, 15, 1e-4)
    return m, images(16)[0]


# --- semi-supervised segmentation
class TinyUNet(nn.Module):
    def __init__(self, k=2):
        super().__init__()
        self.d1, self.d2, self.mid = cbr(1, 16), cbr(16, 32, s=2), cbr(32, 32, s=2)
        self.u2, self.u1 = cbr(64, 32), cbr(48, 16)
        self.out = nn.Conv2d(16, k, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(a)
        h = F.interpolate(self.mid(b), scale_factor=2)
        h = F.interpolate(self.u2(torch.cat([h, b], 1)), scale_factor=2)
        return self.out(self.u1(torch.cat([h, a], 1)))


class MeanTeacher(nn.Module):
    def __init__(self, net, decay=0.9):
        super().__init__()
        self.student, self.teacher, self.decay = (
            net,
            copy.deepcopy(net).requires_grad_(False),
            decay,
        )

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def update(self):
        src = self.student.state_dict()
        for n, t in self.teacher.state_dict().items():
            if t.is_floating_point():
                t.lerp_(src[n], 1 - self.decay)
            else:
                t.copy_(src[n])

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        return self.student(x), target


@case(15)
def organ_segmentation():
    m = MeanTeacher(TinyUNet()).train()

    def loss(b):
        o, t = m(b[0])
        return F.cross_entropy(o, b[2]) + 0.1 * F.mse_loss(o.softmax(1), t.softmax(1))

    fit(m, lambda: images(8, 1, 24), loss, 70, hook=lambda i: m.update())
    return m, images(8, 1, 24)[0]


# --- averaged sequence model
class ResTS(nn.Module):
    def __init__(self, c=5, w=32, k=4):
        super().__init__()
        cb = lambda a, b, ks: nn.Sequential(
            nn.Conv1d(a, b, ks, padding=ks // 2, bias=False), nn.BatchNorm1d(b)
        )
        self.a, self.b, self.c, self.short = (
            cb(c, w, 7),
            cb(w, w, 5),
            cb(w, w, 3),
            cb(c, w, 1),
        )
        self.fc = nn.Linear(w, k)

    def forward(self, x):
        h = F.relu(self.b(F.relu(self.a(x))))
        return self.fc(F.relu(self.c(h) + self.short(x)).mean(-1))


@case(16)
def averaged_sensor_net():
    m = ResTS()
    avg = AveragedModel(m)
    batch = lambda: (lambda s: (s[0].transpose(1, 2), s[1]))(series(24, 48, 5))
    fit(
        m,
        batch,
        lambda b: F.cross_entropy(m(b[0]), b[1]),
        60,
        hook=lambda i: avg.update_parameters(m) if i >= 30 and i % 3 == 0 else None,
    )
    update_bn([batch()[0] for _ in range(30)], avg)
    return avg.eval(), batch()[0]


# --- diffusion
class TimeRes(nn.Module):
    def __init__(self, a, b, e):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1)
        self.n2, self.c2 = (
            nn.GroupNorm(8, b, affine=False),
            nn.Conv2d(b, b, 3, padding=1),
        )
        self.emb = nn.Linear(e, 2 * b)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()
        for p in (*self.emb.parameters(), *self.c2.parameters()):
            nn.init.zeros_(p)

    def forward(self, x, e):
        scale, shift = self.emb(e)[..., None, None].chunk(2, 1)
        h = self.c1(F.silu(self.n1(x)))
        h = self.n2(h) * (1 + scale) + shift
        return self.skip(x) + self.c2(F.silu(h))


class Denoiser(nn.Module):
    def __init__(self, w=24, e=32):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.linspace(0, 5, e // 2)))
        self.time = nn.Sequential(
            nn.Linear(e, e), nn.SiLU(), nn.Linear(e, e), nn.SiLU()
        )
        self.inp = nn.Conv2d(1, w, 3, padding=1)
        self.d1, self.d2, self.mid = (
            TimeRes(w, w, e),
            TimeRes(w, 2 * w, e),
            TimeRes(2 * w, 2 * w, e),
        )
        self.u1 = TimeRes(3 * w, w, e)
        self.norm, self.out = nn.GroupNorm(8, w), nn.Conv2d(w, 1, 3, padding=1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, t):
        a = t[:, None] * self.freq
        e = self.time(torch.cat([a.sin(), a.cos()], -1))
        h1 = self.d1(self.inp(x), e)
        h = self.mid(self.d2(F.avg_pool2d(h1, 2), e), e)
        h = self.u1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), e)
        return self.out(F.silu(self.norm(h)))


def noised(n):
    x, t = images(n, 1, 16)[0], torch.rand(n)
    a, eps = torch.cos(t * 1.57).view(-1, 1, 1, 1), torch.randn(n, 1, 16, 16)
    return a * x + (1 - a * a).sqrt() * eps, t, eps


@case(17)
def denoiser():
    m = Denoiser()
    fit(m, lambda: noised(16), lambda b: F.mse_loss(m(b[0], b[1]), b[2]), 30, 3e-3)
    return m, noised(12)[:2]


# --- language, decoder
class RMS(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)


class GatedBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.attn_norm, self.ffn_norm = RMS(d), RMS(d)
        self.q_norm, self.k_norm = RMS(d // heads), RMS(d // heads)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w3, self.w2 = (
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(2 * d, d, bias=False),
        )

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            self.qkv(self.attn_norm(x))
            .view(b, t, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        a = F.scaled_dot_product_attention(
            self.q_norm(q), self.k_norm(k), v, is_causal=True
        )
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class GatedLM(nn.Module):
    def __init__(self, v=48, d=64, depth=3):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.pos = nn.Parameter(0.02 * torch.randn(48, d))
        self.layers = nn.ModuleList(GatedBlock(d) for _ in range(depth))
        self.norm, self.head = RMS(d), nn.Linear(d, v, bias=False)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        for b in self.layers:
            x = b(x)
        return self.head(self.norm(x))


@case(18)
def gated_lm():
    m = GatedLM()
    fit(m, lambda: tokens(16, 33), lm_loss(m), 35)
    return m.to(torch.bfloat16).eval(), tokens(8, 32)


# --- several scanners
class ScannerNorm(nn.Module):
    def __init__(self, c, sites=2):
        super().__init__()
        self.bns = nn.ModuleList(nn.BatchNorm2d(c) for _ in range(sites))

    def forward(self, x, site):
        out = torch.empty_like(x)
        for i, bn in enumerate(self.bns):
            pick = site == i
            if pick.any():
                out[pick] = bn(x[pick])
        return out


class ScannerNet(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        ws = (1, 16, 32, 48)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, 2, 1, bias=False) for a, b in zip(ws, ws[1:])
        )
        self.norms = nn.ModuleList(ScannerNorm(b) for b in ws[1:])
        self.fc = nn.Linear(48, k)

    def forward(self, x, site):
        for c, n in zip(self.convs, self.norms):
            x = F.relu(n(c(x), site))
        return self.fc(x.mean((2, 3)))


def scans(n):
    x, y, _ = images(n, 1)
    site = torch.arange(n) % 2
    s = site.view(-1, 1, 1, 1).float()
    return x * (1 + 1.5 * s) + 0.8 * s, site, y


@case(19)
def scanner_classifier():
    m = ScannerNet()
    fit(m, lambda: scans(24), lambda b: F.cross_entropy(m(b[0], b[1]), b[2]), 70)
    return m.eval(), scans(16)[:2]


# --- speech utterances
class MaskedBN(nn.Module):
    def __init__(self, c, eps=1e-5, momentum=0.1):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(c)),
            nn.Parameter(torch.zeros(c)),
        )
        self.register_buffer("running_mean", torch.zeros(c))
        self.register_buffer("running_var", torch.ones(c))
        self.eps, self.momentum = eps, momentum

    def forward(self, x, mask):
        if self.training:
            sums = torch.cat(
                [mask.sum().view(1), (x * mask).sum((0, 2)), (x * x * mask).sum((0, 2))]
            )
            if dist.is_available() and dist.is_initialized():
                from torch.distributed.nn.functional import all_reduce

                sums = all_reduce(sums)
            n, s1, s2 = sums.split([1, x.shape[1], x.shape[1]])
            mean = s1 / n
            var = (s2 / n - mean * mean).clamp(min=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * n / (n - 1), self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        scale = self.weight * torch.rsqrt(var + self.eps)
        return ((x - mean[:, None]) * scale[:, None] + self.bias[:, None]) * mask


class PhoneNet(nn.Module):
    def __init__(self, c=24, w=48, k=4):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(a, w, 5, padding=2, bias=False) for a in (c, w, w)
        )
        self.norms = nn.ModuleList(MaskedBN(w) for _ in range(3))
        self.ln = nn.LayerNorm(w)
        self.fc = nn.Linear(w, k)

    def forward(self, feats, lengths):
        mask = (
            torch.arange(feats.shape[-1], device=feats.device)[None] < lengths[:, None]
        )[:, None].to(feats.dtype)
        x = feats * mask
        for c, n in zip(self.convs, self.norms):
            x = F.relu(n(c(x), mask))
        return self.fc(self.ln(x.sum(-1) / mask.sum(-1)))


@case(20)
def utterance_classifier():
    m = PhoneNet()
    fit(
        m,
        lambda: frames(24, 56, 24),
        lambda b: F.cross_entropy(m(b[0], b[1]), b[2]),
        70,
    )
    f = frames(12, 56, 24)
    return m.eval(), {"feats": f[0], "lengths": f[1]}


# --- forecasting
class ChannelBN(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.bn = nn.BatchNorm1d(d)

    def forward(self, x):
        return self.bn(x.transpose(1, 2)).transpose(1, 2)


class PatchForecaster(nn.Module):
    def __init__(self, c=5, ctx=48, patch=8, d=32, horizon=12):
        super().__init__()
        self.gain, self.shift = (
            nn.Parameter(torch.ones(c)),
            nn.Parameter(torch.zeros(c)),
        )
        self.patch = patch
        self.embed = nn.Linear(patch, d)
        self.pos = nn.Parameter(0.02 * torch.randn(ctx // patch, d))
        self.attn = nn.ModuleList(
            nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(2)
        )
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))
            for _ in range(2)
        )
        self.n1, self.n2 = (
            nn.ModuleList(ChannelBN(d) for _ in range(2)),
            nn.ModuleList(ChannelBN(d) for _ in range(2)),
        )
        self.head = nn.Linear(d * (ctx // patch), horizon)

    def forward(self, x):
        mu = x.mean(1, keepdim=True).detach()
        sd = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        z = (x - mu) / sd * self.gain + self.shift
        b, t, c = z.shape
        h = (
            self.embed(z.transpose(1, 2).reshape(b * c, t // self.patch, self.patch))
            + self.pos
        )
        for a, m, n1, n2 in zip(self.attn, self.mlp, self.n1, self.n2):
            h = n1(h + a(h, h, h, need_weights=False)[0])
            h = n2(h + m(h))
        y = self.head(h.flatten(1)).view(b, c, -1).transpose(1, 2)
        return (y - self.shift) / (self.gain + 1e-8) * sd + mu


@case(21)
def load_forecast():
    m = PatchForecaster()
    unit = torch.tensor([1.0, 5.0, 0.5, 2.0, 20.0])
    batch = lambda: (lambda s: (s[:, :48], s[:, 48:]))(
        series(16, 60, 5)[0] * unit + 3 * unit
    )
    fit(m, batch, lambda b: ((m(b[0]) - b[1]) / unit).pow(2).mean(), 60)
    return m.eval(), batch()[0]


# --- sets
class SetNorm(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.weight, self.bias, self.eps = (
            nn.Parameter(torch.ones(d)),
            nn.Parameter(torch.zeros(d)),
            eps,
        )

    def forward(self, x, mask):
        m = mask[..., None].to(x.dtype)
        n = m.sum((1, 2), keepdim=True) * x.shape[-1]
        mean = (x * m).sum((1, 2), keepdim=True) / n
        var = ((x - mean).pow(2) * m).sum((1, 2), keepdim=True) / n
        return ((x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias) * m


class SetBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = SetNorm(d), SetNorm(d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        h = self.n1(x, mask)
        x = x + self.attn(h, h, h, key_padding_mask=~mask, need_weights=False)[0]
        return x + self.ff(self.n2(x, mask))


class ParticleSets(nn.Module):
    def __init__(self, c=4, d=32, k=3):
        super().__init__()
        self.embed = nn.Linear(c, d)
        self.blocks = nn.ModuleList(SetBlock(d) for _ in range(2))
        self.norm = SetNorm(d)
        self.fc = nn.Linear(d, k)

    def forward(self, members, mask):
        x = self.embed(members)
        for b in self.blocks:
            x = b(x, mask)
        m = mask[..., None].to(x.dtype)
        return self.fc((self.norm(x, mask) * m).sum(1) / m.sum(1))


def jets(n, size=20):
    y = torch.randint(3, (n,))
    count = torch.randint(8, size + 1, (n,))
    axis = torch.randn(n, 1 + 2, 4) * 0.8
    prong = torch.randint(0, 3, (n, size)) % (y[:, None] + 1)
    x = axis[torch.arange(n)[:, None], prong] + 0.25 * torch.randn(n, size, 4)
    mask = torch.arange(size)[None] < count[:, None]
    return x * mask[..., None], mask, y


@case(22)
def jet_sets():
    m = ParticleSets()
    fit(m, lambda: jets(24), lambda b: F.cross_entropy(m(b[0], b[1]), b[2]), 50)
    j = jets(16)
    return m.eval(), {"members": j[0], "mask": j[1]}


# --- control
class ObsNorm(nn.Module):
    def __init__(self, n, clip=10.0, eps=1e-8):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n, dtype=torch.float64))
        self.register_buffer("var", torch.ones(n, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))
        self.clip, self.eps = clip, eps

    @torch.no_grad()
    def update(self, x):
        x = x.double()
        bm, bv, bc = x.mean(0), x.var(0, unbiased=False), x.shape[0]
        delta, tot = bm - self.mean, self.count + bc
        m2 = self.var * self.count + bv * bc + delta**2 * self.count * bc / tot
        self.mean.copy_(self.mean + delta * bc / tot)
        self.var.copy_(m2 / tot)
        self.count.copy_(tot)

    def forward(self, x):
        if self.training:
            self.update(x)
        z = (x - self.mean.float()) / (self.var.float() + self.eps).sqrt()
        return z.clamp(-self.clip, self.clip)


class ActorCritic(nn.Module):
    def __init__(self, obs=8, act=3, w=64):
        super().__init__()
        self.obs_norm = ObsNorm(obs)
        self.trunk = nn.Sequential(
            nn.Linear(obs, w),
            nn.LayerNorm(w),
            nn.Tanh(),
            nn.Linear(w, w),
            nn.LayerNorm(w),
            nn.Tanh(),
        )
        self.pi, self.v = nn.Linear(w, act), nn.Linear(w, 1)

    def forward(self, obs):
        h = self.trunk(self.obs_norm(obs))
        return self.pi(h), self.v(h).squeeze(-1)


def observations(n):
    unit = torch.tensor([1.0, 0.01, 50.0, 3.0, 0.2, 1.0, 10.0, 0.5])
    z = torch.randn(n, 8)
    z[:, 1:] = 0.7 * z[:, 1:] + 0.4 * z[:, :-1]
    return (z + torch.tensor([0.0, 1.0, 2.0, -1.0, 0.0, 3.0, 0.5, 0.0])) * unit, z


@case(23)
def actor_critic():
    m = ActorCritic()

    def loss(b):
        pi, v = m(b[0])
        return F.mse_loss(v, b[1][:, 0] - b[1][:, 3]) + F.mse_loss(
            pi, b[1][:, 4:7].tanh()
        )

    fit(m, lambda: observations(64), loss, 60)
    return m.eval(), observations(16)[0]


# --- text encoder
class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


class EncoderLayer(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.attn_norm, self.out_norm = (
            nn.LayerNorm(d, eps=1e-12),
            nn.LayerNorm(d, eps=1e-12),
        )
        self.up, self.down, self.drop = (
            nn.Linear(d, 4 * d),
            nn.Linear(4 * d, d),
            nn.Dropout(0.1),
        )

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.heads, -1).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = self.attn_norm(x + self.drop(self.o(a.transpose(1, 2).reshape(b, t, d))))
        return self.out_norm(x + self.drop(self.down(F.gelu(self.up(x)))))


class SharedEncoder(nn.Module):
    def __init__(self, v=50, d=64, repeats=4, k=3):
        super().__init__()
        self.tok, self.pos, self.norm = (
            nn.Embedding(v, d, padding_idx=0),
            nn.Embedding(32, d),
            nn.LayerNorm(d, eps=1e-12),
        )
        self.layer, self.repeats = EncoderLayer(d), repeats
        self.head = nn.Linear(d, k)

    def forward(self, ids, mask):
        x = self.norm(self.tok(ids) + self.pos.weight[: ids.shape[1]])
        for _ in range(self.repeats):
            x = self.layer(x, mask)
        return self.head(x[:, 0])


def sentences(n, t=24):
    ids = tokens(n, t) + 2
    y = torch.randint(3, (n,))
    mask = torch.arange(t)[None] < torch.randint(10, t + 1, (n, 1))
    where = torch.rand(n, t) < 0.25
    ids = torch.where(where, 10 + 5 * y[:, None], ids)
    ids[:, 0] = 1
    return ids * mask, mask, y


@case(24)
def text_adapter():
    m = SharedEncoder()
    ce = lambda b: F.cross_entropy(m(b[0], b[1]), b[2])
    fit(m, lambda: sentences(16), ce, 40, 1e-3)
    m.requires_grad_(False)
    for n in ("q", "v"):
        setattr(m.layer, n, LoRALinear(getattr(m.layer, n)))
    m.head = nn.Linear(64, 3)
    fit(m, lambda: sentences(16), ce, 25, 3e-3)
    return m, sentences(12)[:2]


CASES.sort(key=lambda c: c.name)


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
    "actor_critic",
    "averaged_sensor_net",
    "denoiser",
    "gated_lm",
    "int8_training",
    "jet_sets",
    "load_forecast",
    "organ_segmentation",
    "scanner_classifier",
    "text_adapter",
    "two_views",
    "utterance_classifier",
)
BUGS = [_tried(case) for case in CASES if case.name not in SOUND]
CONTROLS = [_tried(case) for case in CASES if case.name in SOUND]
