"""Slips in models: each is told at its place, and its sound twin is not blamed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from normbook.checks.model.audit import audit
from normbook.checks.model.harms import NOTE, RISK, WRONG


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


IMAGES, SEQUENCES, TABLE = drawn(16, 3, 6, 6), drawn(16, 6, 8), drawn(64, 8)


def trained(model: nn.Module, x: Any, steps: int = 60) -> nn.Module:
    model.train()
    with torch.no_grad():
        for _ in range(steps):
            model(*x) if isinstance(x, tuple) else model(x)
    model.eval()  # its own may return nothing
    return model


class Block(nn.Module):
    """A residual block, right before or behind its norms, or with a slip."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.norm1, self.norm2 = how, nn.LayerNorm(8), nn.LayerNorm(8)
        self.f = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.g = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        match self.how:
            case "post":
                x = self.norm1(x + self.f(x))
                y = self.norm2(x + self.g(x))
            case "overwriting":
                x = self.norm1(x)
                x = x + self.f(x)
                x = self.norm2(x)
                y = x + self.g(x)
            case "unused":
                self.norm1(x)
                x = x + self.f(x)
                y = x + self.g(self.norm2(x))
            case "twice":
                x = x + self.f(self.norm1(x))
                y = x + self.g(self.norm2(self.norm2(x)))
            case _:
                x = x + self.f(self.norm1(x))
                y = x + self.g(self.norm2(x))
        return torch.as_tensor(y)


def blocks(how: str, *, last: bool = True) -> nn.Module:
    """Return a stack of blocks; those with the norms first end with another one."""
    torch.manual_seed(0)
    end = [nn.LayerNorm(8)] if last and how != "post" else []
    return nn.Sequential(Block(how), Block(how), *end, nn.Linear(8, 3))


def of_one(how: str) -> nn.Module:
    torch.manual_seed(0)
    block = Block("pre")
    many = [block] * 3 if how == "repeated" else [Block("pre") for _ in range(3)]
    if how == "tied":
        many[1].norm1.weight = many[0].norm1.weight
    return nn.Sequential(*many, nn.LayerNorm(8))


def net(make: Callable[[int], nn.Module] = nn.BatchNorm2d, *rest: Any) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 16, 3), make(16, *rest), nn.ReLU(), nn.Conv2d(16, 4, 3)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(16, 4))


def pooled(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True)
    parts = [nn.Conv2d(3, 4, 3), norm, activation, nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(4, 2))


class Wrapped(nn.Module):
    """A network that a pass runs in some way."""

    def __init__(self, how: str, body: nn.Module | None = None) -> None:
        super().__init__()
        self.how, self.body = how, body or net()
        self.head = nn.Linear(4, 2)

    def train(self, mode: bool = True) -> Any:
        if self.how == "deaf":
            self.training = mode
            return self
        super().train(mode)
        if self.how == "returning nothing":
            return None
        if self.how == "frozen":
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        match self.how:
            case "checkpointed" if self.training:
                y = checkpoint(self.body, x, use_reentrant=False)
            case "no gradient" | "frozen":
                with torch.no_grad():
                    y = self.body(x)
            case "in parts":
                y = torch.cat([self.body(part) for part in x.chunk(8)])
            case "training":
                y = self.body.train()(x)
            case "evaluating":
                y = self.body.eval()(x)
            case "over examples":
                y = self.body(x)
                return y * (1 + self.head(y)[:, :1].mean(0))
            case _:
                y = self.body(x)
        return self.head(y)


def wrapped(how: str, make: Any = nn.BatchNorm2d) -> nn.Module:
    return trained(Wrapped(how, net(make)), IMAGES)


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def frozen(how: str) -> nn.Module:
    model: Any = wrapped("plain")
    model.body.requires_grad_(False)
    model.how = how
    model.train()
    made: nn.Module = model
    return made


class Modulated(nn.Module):
    """A scale of 0 at the start, beside 1 or alone."""

    def __init__(self, one: float) -> None:
        super().__init__()
        self.one, self.scale = one, nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8, elementwise_affine=False)
        nn.init.zeros_(self.scale.weight)
        nn.init.zeros_(self.scale.bias)

    def forward(self, x: Tensor) -> Any:
        return self.norm(x) * (self.one + self.scale(x))


class InPlace(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight -= self.weight.mean((1, 2, 3), keepdim=True)
        return super().forward(x)


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        y: Tensor = self._conv_forward(x, weight, self.bias)
        return y


def learnt(norm: Any) -> None:
    draw = torch.Generator().manual_seed(3)
    norm.weight.data.uniform_(0.5, 1.5, generator=draw)
    norm.bias.data.normal_(0, 0.3, generator=draw)


def loaded(*, with_buffers: bool) -> nn.Module:
    model = net()
    learnt(model[1])
    trained(model, 2 + 3 * IMAGES)
    norm: Any = model[1]
    if not with_buffers:
        norm.reset_running_stats()
    return model


def folded(*, is_left: bool) -> nn.Module:
    model: Any = net()
    learnt(model[1])
    trained(model, 2 + 3 * IMAGES)
    conv, norm = model[0], model[1]
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    conv.bias.data = (conv.bias.data - norm.running_mean) * scale + norm.bias.data
    conv.weight.data *= scale[:, None, None, None]
    if not is_left:
        model[1] = nn.Identity()
    made: nn.Module = model.append(nn.LayerNorm(4))
    return made


def initialized(*, with_norms: bool) -> nn.Module:
    model = blocks("pre")
    torch.manual_seed(1)
    for part in model.modules():
        if with_norms or isinstance(part, nn.Linear):
            for p in part.parameters(recurse=False):
                nn.init.normal_(p, 0, 0.02)
    return model


def replaced(*, by_path: bool) -> nn.Module:
    model = Wrapped("plain")
    if by_path:
        setattr(model, "body.1", nn.GroupNorm(2, 16))
    else:
        model.set_submodule("body.1", nn.GroupNorm(2, 16))
    return trained(model, IMAGES)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)]
        self.body = nn.Sequential(*parts)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.body(torch.cat([x, y])).chunk(2)


class Words(nn.Module):
    """Batch norm of all positions, with those of padding or without."""

    def __init__(self, *, is_masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.is_masked = nn.Embedding(20, 8, padding_idx=0), is_masked
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, ids: Tensor) -> Tensor:
        x, keep = self.linear(self.embed(ids)), ids > 0
        y = torch.zeros_like(x)
        if self.is_masked:
            y[keep] = self.norm(x[keep])
        else:
            y = self.norm(x.flatten(0, 1)).view_as(x) * keep[..., None]
        return y.sum(1)


def ids() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(1, 20, (16, 12), generator=draw)
    lengths = torch.randint(4, 13, (16, 1), generator=draw)
    return words * (torch.arange(12) < lengths)


class AsFunction(nn.Module):
    """Batch norm as a function, which is told the mode, another, or none."""

    def __init__(self, training: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.told, self.linear, self.norm = training, nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Any:
        told = self.training if self.told is None else self.told
        mean, var = self.get_buffer("mean"), self.get_buffer("var")
        y = functional.batch_norm(self.linear(x), mean, var, training=told)
        return self.norm(y.relu())


class Frozen(nn.Module):
    """Batch norm by fixed statistics, with eps or without."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("running_mean", torch.zeros(16))
        self.register_buffer("running_var", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.get_buffer("running_mean"), self.get_buffer("running_var")
        rows = ((x - mean.view(-1, 1, 1)).mT, (var + self.eps).rsqrt().view(-1, 1, 1))
        return rows[0].mT * rows[1]


class FrozenBatchNorm2d(Frozen):
    """The same, by a name that tells a batch norm."""


def dead(make: Callable[[int], nn.Module], var: float) -> nn.Module:
    """Return a network whose filter 0 is 0, with that running variance."""
    model = net(make)
    with torch.no_grad():
        for p in model[0].parameters():
            p[0] = 0
    trained(model, IMAGES).get_buffer("1.running_var")[0] = var
    return model


class Slip(NamedTuple):
    what: str
    level: str
    place: str
    words: str  # of its reason
    bug: Callable[[], nn.Module]
    twin: Callable[[], nn.Module]
    x: Any = IMAGES
    of_twin: Any = None  # where it gets another x


PAIR = drawn(32, 8), 3 + 0.3 * drawn(32, 8, seed=1)
VIEWS = drawn(32, 8), drawn(32, 8, seed=1)
NEIGHBOURS = "an example depends on its neighbours in evaluation"
TRAINING = "in training mode while the model evaluates"

SLIPS = [
    Slip(
        "a residual path through a norm",
        RISK,
        "0.norm2 and 1 more",
        "what 0.norm1 and 0.norm2 returned",
        partial(blocks, "overwriting"),
        partial(blocks, "pre"),
        SEQUENCES,
    ),
    Slip(
        "a residual path through a norm",
        RISK,
        "0.norm2 and 1 more",
        "x = norm(x); x = x + f(x)",
        partial(blocks, "overwriting"),
        partial(blocks, "post"),
        SEQUENCES,
    ),
    Slip(
        "what a norm returns is not used",
        RISK,
        "0.norm1 and 1 more",
        "changes no output",
        partial(blocks, "unused"),
        partial(blocks, "pre"),
        SEQUENCES,
    ),
    Slip(
        "normalizes what a norm has just normalized",
        NOTE,
        "0.norm2 and 1 more",
        "what itself returned",
        partial(blocks, "twice"),
        partial(blocks, "pre"),
        SEQUENCES,
    ),
    Slip(
        "a residual stream without a norm at its end",
        NOTE,
        "1.norm2",
        "leads from 0.norm2 to the outputs",
        partial(blocks, "pre", last=False),
        partial(blocks, "pre"),
        SEQUENCES,
    ),
    Slip(
        "one norm under several names",
        NOTE,
        "0.norm1 and 1 more",
        "0.norm1, 1.norm1, 2.norm1 are one module, called 3 times",
        partial(of_one, "repeated"),
        partial(of_one, "own"),
        SEQUENCES,
    ),
    Slip(
        "gains or biases that norms share",
        NOTE,
        "0.norm1",
        "0.norm1.weight, 1.norm1.weight are one parameter",
        partial(of_one, "tied"),
        partial(of_one, "own"),
        SEQUENCES,
    ),
    Slip(
        "what follows undoes all that a norm lets through",
        WRONG,
        "1",
        "leaves the bias alone",
        partial(pooled, nn.Identity()),
        partial(pooled, nn.ReLU()),
    ),
    Slip(
        "what a norm returns is multiplied by 0",
        NOTE,
        "norm",
        "a factor behind it is 0",
        partial(Modulated, 0.0),
        partial(Modulated, 1.0),
        SEQUENCES,
    ),
    Slip(
        "running statistics that move twice in a step",
        NOTE,
        "body.1",
        "weighs this much, not 0.1",
        partial(wrapped, "checkpointed"),
        partial(wrapped, "plain"),
    ),
    Slip(
        "no gradient reaches gain and bias",
        RISK,
        "body.1",
        "Its running statistics move on",
        lambda: wrapped("no gradient").train(),
        partial(frozen, "frozen"),
    ),
    Slip(
        TRAINING,
        WRONG,
        "body.1",
        "model.eval() leaves it in training mode",
        partial(wrapped, "deaf"),
        partial(wrapped, "returning nothing"),
    ),
    Slip(
        TRAINING,
        WRONG,
        "body.1",
        "a pass of the model puts it into training mode, after eval()",
        partial(wrapped, "training"),
        partial(wrapped, "plain"),
    ),
    Slip(
        "in evaluation mode while the model trains",
        RISK,
        "body.1",
        "a pass of the model puts it into evaluation mode, after train()",
        partial(wrapped, "evaluating"),
        partial(frozen, "frozen"),
    ),
    Slip(
        "parameters that a forward pass changes",
        RISK,
        "0.weight",
        "without an optimizer",
        lambda: nn.Sequential(InPlace(3, 8, 3), nn.GroupNorm(2, 8)),
        lambda: nn.Sequential(Standardized(3, 8, 3), nn.GroupNorm(2, 8)),
    ),
    Slip(
        "an eps as large as a momentum",
        RISK,
        "1",
        "BatchNorm2d(C, 0.8) has eps=0.8",
        lambda: trained(net(nn.BatchNorm2d, 0.8), IMAGES),
        lambda: trained(net(nn.BatchNorm2d, 1e-3), IMAGES),
    ),
    Slip(
        "running statistics that never move",
        RISK,
        "1",
        "momentum is 0.0",
        lambda: trained(net(nn.BatchNorm2d, 1e-5, 0.0), IMAGES),
        lambda: trained(net(nn.BatchNorm2d, 1e-5, None), IMAGES),
    ),
    Slip(
        "running statistics that saw no batch, far from those of x",
        RISK,
        "1",
        "Its gain and bias differ by the channel",
        partial(loaded, with_buffers=False),
        partial(loaded, with_buffers=True),
        2 + 3 * IMAGES,
    ),
    Slip(
        "normalizes again what is normalized already",
        RISK,
        "1",
        "as if it were folded",
        partial(folded, is_left=True),
        partial(folded, is_left=False),
        2 + 3 * IMAGES,
    ),
    Slip(
        "gains drawn around 0",
        RISK,
        "0.norm2 and 4 more",
        "of the gains are below 0",
        partial(initialized, with_norms=True),
        partial(initialized, with_norms=False),
        SEQUENCES,
    ),
    Slip(
        "as many groups as channels",
        NOTE,
        "1",
        "this is instance norm",
        lambda: net(partial(nn.GroupNorm, 16)),
        lambda: net(partial(nn.GroupNorm, 4)),
    ),
    Slip(
        "norms under a name with a dot",
        RISK,
        "body.1",
        "the new norm is never called",
        partial(replaced, by_path=True),
        partial(replaced, by_path=False),
    ),
    Slip(
        "a batch norm that gets a batch in parts",
        RISK,
        "body.1",
        "called 8 times",
        partial(wrapped, "in parts"),
        partial(wrapped, "plain"),
    ),
    Slip(
        "one batch of several inputs",
        NOTE,
        "body.1",
        "it gets 64 examples, where x has 32",
        lambda: trained(Discriminator(), PAIR),
        lambda: trained(Discriminator(), VIEWS),
        PAIR,
        VIEWS,
    ),
    Slip(
        "padding inside the statistics",
        RISK,
        "norm",
        "part of the mean and the variance",
        lambda: trained(Words(is_masked=False), ids()),
        lambda: trained(Words(is_masked=True), ids()),
        ids(),
    ),
    Slip(
        "a function that never normalizes by the batch",
        RISK,
        "the whole model",
        "training=False, its default",
        lambda: trained(AsFunction(training=False), TABLE),
        lambda: trained(AsFunction(), TABLE),
        TABLE,
    ),
    Slip(
        "a function that evaluates by the batch",
        WRONG,
        "the whole model",
        "training=True in evaluation",
        lambda: trained(AsFunction(training=True), TABLE),
        lambda: trained(AsFunction(), TABLE),
        TABLE,
    ),
    Slip(
        "evaluation gives NaN or infinity",
        WRONG,
        "1",
        "running_var is negative, which has no root, in 1 of 16 channels",
        partial(dead, nn.BatchNorm2d, -0.1),
        partial(dead, nn.BatchNorm2d, 0.0),
    ),
    Slip(
        "evaluation gives NaN or infinity",
        WRONG,
        "1",
        "running_var is 0, and no eps is added to it, in 1 of 16 channels",
        partial(dead, lambda _: FrozenBatchNorm2d(0), 0.0),
        partial(dead, lambda _: FrozenBatchNorm2d(1e-5), 0.0),
    ),
    Slip(
        "evaluation gives the bias, whatever the input",
        WRONG,
        "1",
        "running_var is infinite in 1 of 16 channels",
        partial(dead, nn.BatchNorm2d, torch.inf),
        partial(dead, nn.BatchNorm2d, 0.0),
    ),
    Slip(
        NEIGHBOURS,
        NOTE,  # who passes that asks for it
        "1",
        "has no running statistics (running_mean is None",
        lambda: net(partial(nn.BatchNorm2d, track_running_stats=False)),
        lambda: net(partial(nn.InstanceNorm2d, affine=True)),
    ),
    Slip(
        NEIGHBOURS,
        WRONG,
        "the whole model",
        "no norm that the model registers, but an axis",
        lambda: wrapped("over examples", groups),
        lambda: wrapped("plain", groups),
    ),
]


@pytest.mark.parametrize("slip", SLIPS, ids=[s.what[:40] for s in SLIPS])
def test_a_slip_is_told_at_its_place_and_its_twin_is_sound(slip: Slip) -> None:
    found = {h.what: h for h in audit(slip.bug(), slip.x, quiet=True).harms}
    harm = found[slip.what]
    assert (harm.level, harm.place) == (slip.level, slip.place)
    assert slip.words in harm.reason
    x = slip.x if slip.of_twin is None else slip.of_twin
    report = audit(slip.twin(), x, quiet=True)
    assert report.passed, report
    assert slip.what not in {h.what for h in report.harms}


class Contrastive(nn.Module):
    """Compares the examples of a batch, as it should."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        z = functional.normalize(self.body(x), dim=-1)
        return z @ z.mT


def test_logits_of_all_pairs_of_a_batch_are_no_slip() -> None:
    report = audit(Contrastive(), TABLE, quiet=True)
    assert report.harms == ()
    assert "of shape (1, 1), that of all is of shape (64, 64)" in str(report.untested)


def test_an_instance_norm_without_parameters_takes_any_number_of_series() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(4), nn.Linear(12, 6))
    assert audit(model, drawn(16, 4, 12), quiet=True).harms == ()
