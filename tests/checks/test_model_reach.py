"""What a model's norms see that they should not, and models that are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.model.audit import audit
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm

LENGTH, WIDTH = 16, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def harms(model: nn.Module, x: Any) -> dict[str, Harm]:
    return {harm.what: harm for harm in audit(model, x, quiet=True).harms}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def trained(model: nn.Module, *batches: Any) -> nn.Module:
    model.train()
    with torch.no_grad():
        for x in batches * 40:
            model(*x) if isinstance(x, tuple) else model(x)
    return model.eval()


# --- later steps


class Norm(nn.Module):
    """Nothing in its name says which it is."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis, self.eps = axis, 1e-5
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, self.axis, correction=0, keepdim=True)
        return (x - mean) / (var + self.eps).sqrt() * self.gain + self.bias


class Sequence(nn.Module):
    """Mixes the steps before, or all of them, or none."""

    def __init__(self, norm: nn.Module, mixes: str) -> None:
        super().__init__()
        self.norm, self.mixes = norm, mixes
        self.up, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x)
        if self.mixes == "before":
            y = y.cumsum(1) / torch.arange(1, 1 + y.shape[1])[:, None]
        elif self.mixes == "all":
            y = y + y.mean(1, keepdim=True)
        y = self.out(self.norm(y))
        return y + y.mean(1, keepdim=True) if self.mixes == "all behind" else y


AHEAD = "sees later steps, where the model sees none"


@pytest.mark.parametrize(
    ("axis", "mixes", "is_told"),
    [
        (1, "before", True),
        (2, "before", False),
        (1, "all", False),
        (1, "none", False),
        (1, "all behind", False),
    ],
)
def test_a_norm_over_the_steps_of_a_causal_model_is_told(
    axis: int, mixes: str, is_told: bool
) -> None:
    found = harms(Sequence(Norm(axis), mixes), drawn(16, LENGTH, WIDTH))
    assert (AHEAD in found) == is_told
    if is_told:
        assert (found[AHEAD].level, found[AHEAD].place) == (RISK, "norm")
        assert found[AHEAD].number > 0.1


class Convolution(nn.Module):
    """A causal convolution of (N, C, T)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, WIDTH, 3), norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(functional.pad(x, (2, 0))))
        return y


@pytest.mark.parametrize(
    ("norm", "is_told"),
    [(nn.GroupNorm(2, WIDTH), True), (nn.BatchNorm1d(WIDTH), False)],
    ids=str,
)
def test_group_norm_in_a_causal_convolution_is_told(
    norm: nn.Module, is_told: bool
) -> None:
    x = drawn(16, 4, LENGTH)
    assert (AHEAD in harms(trained(Convolution(norm), x), x)) == is_told


# --- other axes


class GraphNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        if batch is None:
            batch = torch.zeros(len(x), dtype=torch.long)
        one = functional.one_hot(batch).to(x)
        one = one / one.sum(0)
        x = x - one.mT.matmul(x).mean(1)[batch][:, None]
        size = one.mT.matmul(x.square()).mean(1)[batch][:, None]
        return self.weight * x / (size + 1e-5).sqrt()


class Graphs(nn.Module):
    def __init__(self, told: str) -> None:
        super().__init__()
        self.up, self.norm, self.told = nn.Linear(4, WIDTH), GraphNorm(), told

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        ways = {"": (), "none": (None,), "batch": (batch,)}
        y: Tensor = self.norm(self.up(x), *ways[self.told])
        return y


@pytest.mark.parametrize("told", ["", "none", "batch"])
def test_a_norm_of_graphs_must_be_told_which_nodes_make_one(told: str) -> None:
    x = drawn(20, 4), torch.arange(20) // 5
    what = "all graphs of a batch are normalized as one"
    found = harms(Graphs(told), x)
    assert (what in found) == (told != "batch")
    if told != "batch":
        assert (found[what].level, found[what].place) == (RISK, "norm")


class Points(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.f, self.dim = nn.Sequential(nn.Linear(3, WIDTH), nn.LayerNorm(WIDTH)), dim

    def forward(self, x: Tensor) -> Tensor:
        y = functional.normalize(self.f(x), dim=self.dim)
        return y @ y.mT


@pytest.mark.parametrize("dim", [1, 2])
def test_lengths_along_positions_are_told(dim: int) -> None:
    what = "unit length along positions, not features"
    found = harms(Points(dim), drawn(16, 20, 3))
    assert (what in found) == (dim == 1)
    if dim == 1:
        assert found[what].number == 20


class Square(nn.Module):
    """As many steps as features."""

    def __init__(self, *, turns: bool) -> None:
        super().__init__()
        self.norm, self.turns = nn.BatchNorm1d(WIDTH), turns
        self.out = nn.Linear(WIDTH, 3)
        self.place = nn.Parameter(drawn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.place
        y: Tensor = self.norm(x.mT).mT if self.turns else self.norm(x)
        y = self.out(y)
        return y


@pytest.mark.parametrize("turns", [False, True])
def test_axes_of_one_length_are_told_where_the_last_has_the_features(
    turns: bool,
) -> None:
    x = drawn(16, WIDTH, WIDTH)
    what = "the axes have one length, and the last may be the features"
    found = harms(trained(Square(turns=turns), x), x)
    assert (what in found) != turns
    if not turns:
        assert found[what].level == RISK
        assert "out, which gets the output of norm as it is" in found[what].reason


# --- what is not registered, or is no norm of a batch


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self._body = (body,)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self._body[0](x))
        return y


def test_norms_in_a_tuple_under_a_private_name_are_the_cause_that_is_told() -> None:
    found = harms(trained(Apart(), drawn(16, WIDTH)), drawn(16, WIDTH))
    assert found["norms that are not registered"].place == "_body[0].1"
    harm = found["an example depends on its neighbours in evaluation"]
    assert "norms that are not registered normalize by the batch" in harm.reason
    assert len(found) == 2


class ObservationNorm(nn.Module):
    mean: Tensor
    var: Tensor

    def __init__(self, *, is_leaky: bool) -> None:
        super().__init__()
        self.is_leaky = is_leaky
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.is_leaky:
            with torch.no_grad():
                self.mean += 0.1 * (x.mean(0) - self.mean)
                self.var += 0.1 * (x.var(0, correction=0) - self.var)
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-10, 10)


@pytest.mark.parametrize("is_leaky", [False, True])
def test_a_norm_of_observations_is_no_batch_norm_gone_wrong(is_leaky: bool) -> None:
    model = nn.Sequential(ObservationNorm(is_leaky=is_leaky), nn.Linear(WIDTH, 2))
    trained(model, 50 + 3 * drawn(16, WIDTH))
    report = audit(model, 50 + 3 * drawn(16, WIDTH), quiet=True)
    assert [harm.level for harm in report.harms] == [WRONG] * is_leaky
    if is_leaky:
        assert "a call in evaluation mode changes mean and var" in str(
            report.harms[0].reason
        )


class MaskedBatchNorm(nn.Module):
    """Of (N, T, C)."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.register_buffer("running_var", torch.ones(WIDTH))

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if self.training:
            var, mean = torch.var_mean(x[keep], 0, correction=0)
            n = int(keep.sum())
            if n < 2:
                raise ValueError("one value for each channel")
            with torch.no_grad():
                self.running_mean.lerp_(mean, 0.1)
                self.running_var.lerp_(var * n / (n - 1), 0.1)
        y = (x - mean) / (var + 1e-5).sqrt() * self.weight + self.bias
        return y * keep[..., None]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(4, WIDTH), MaskedBatchNorm()

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        y: Tensor = self.norm(self.up(x), keep)
        return y


def test_a_masked_batch_norm_with_the_channels_last_is_sound() -> None:
    keep = torch.arange(LENGTH) < torch.arange(1, 17)[:, None]
    x = drawn(16, LENGTH, 4), keep
    assert [h for h in harms(trained(Masked(), x), x).values() if h.level != NOTE] == []


# --- what the noise of a batch explains, and what is meant


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return functional.cosine_similarity(
            self.f(x).mean((2, 3)), self.f(other).mean((2, 3))
        )


def tinted(count: int, seed: int, shift: float = 0.0) -> Tensor:
    """Images that are each of a colour of their own."""
    colours = drawn(count, 3, 1, 1, seed=seed)
    return shift + colours + 0.3 * drawn(count, 3, 12, 12, seed=seed + 1)


@pytest.mark.parametrize(("shift", "is_told"), [(0.0, False), (3.0, True)])
def test_views_that_differ_by_their_noise_alone_may_share_a_batch_norm(
    shift: float, is_told: bool
) -> None:
    x = tinted(32, 0), tinted(32, 7, shift)
    what = "one batch norm in several places"
    assert (what in harms(trained(Views(), x), x)) == is_told


@pytest.mark.parametrize(("shift", "is_told"), [(0.0, False), (3.0, True)])
def test_a_gap_that_the_noise_of_few_images_explains_is_none(
    shift: float, is_told: bool
) -> None:
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH))
    trained(model, tinted(512, 3))
    found = harms(model, tinted(24, 9, shift))
    assert ("evaluation differs from training" in found) == is_told


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.norm1 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.g, self.norm2 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.norm2(self.g(self.norm1(self.f(x)).relu()))
        return y


@pytest.mark.parametrize("is_drawn", [False, True])
def test_last_gains_that_began_with_0_were_not_drawn(is_drawn: bool) -> None:
    model = nn.Sequential(Branch(), Branch())
    for part in model.modules():
        for name in ("norm1", "norm2") if isinstance(part, Branch) else ():
            if is_drawn or name == "norm2":
                nn.init.normal_(getattr(part, name).weight, 0, 0.02)
    assert ("gains drawn around 0" in harms(model, drawn(16, WIDTH))) == is_drawn


class TimeFirst(nn.Module):
    batch_first = False

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rnn = (
            nn.LayerNorm(WIDTH),
            nn.GRU(WIDTH, WIDTH, bidirectional=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rnn(self.norm(x))[0]
        return y


@pytest.mark.parametrize("says", [False, True])
def test_a_model_that_has_the_time_first_mixes_no_examples(says: bool) -> None:
    model = TimeFirst()
    model.batch_first = not says
    found = harms(model, drawn(9, 12, WIDTH))
    assert ("an example depends on its neighbours in evaluation" in found) != says


class LayerNormRNN(nn.Module):
    """A cell of its own, whose norm is a function: it is no norm itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.gain = nn.Linear(4, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = functional.layer_norm(self.w(x), (WIDTH,), self.gain).tanh()
        return h


def test_a_recurrent_layer_is_no_norm_whatever_its_name_is() -> None:
    with pytest.raises(ValueError, match="the model must hold a norm"):
        audit(LayerNormRNN(), drawn(16, 5, 4), quiet=True)


# --- what a second set of models showed


class RMS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = RMS(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.up(self.norm(x))
        return y


def test_a_norm_may_be_known_by_the_name_of_its_place() -> None:
    report = audit(nn.Sequential(Residual(), Residual()), drawn(16, WIDTH), quiet=True)
    assert report.layers == 2
    assert report.passed


class FeatureNorm(nn.Module):
    """By the batch in every mode; its name ends in no renorm."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, 0, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.gain + self.shift


def test_a_norm_by_the_batch_alone_is_the_cause_at_its_place() -> None:
    model = nn.Sequential(nn.Linear(4, WIDTH), FeatureNorm(), nn.Linear(WIDTH, 2))
    found = harms(model.eval(), drawn(16, 4))
    what = "evaluation of an example does not depend on the others"
    assert found[f"not true of FeatureNorm: {what}"].place == "1"
    assert found["an example depends on its neighbours in evaluation"].place == "1"
    report = check_norm_layer(FeatureNorm(), (16, WIDTH), quiet=True)
    assert report.kind == f"batch norm of (N, {WIDTH})"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_gain_of_0_that_is_frozen_is_told(is_frozen: bool) -> None:
    model = Branch()
    nn.init.zeros_(model.norm2.weight)
    model.norm2.weight.requires_grad_(not is_frozen)
    assert ("gains of 0 that are frozen" in harms(model, drawn(16, WIDTH))) == is_frozen


class Levels(nn.Module):
    """A batch norm for three sizes of one image."""

    def __init__(self, *, is_far: bool) -> None:
        super().__init__()
        self.norm, self.is_far = nn.BatchNorm2d(3), is_far

    def forward(self, x: Tensor) -> list[Tensor]:
        sizes = (x, functional.avg_pool2d(x, 2), functional.avg_pool2d(x, 4))
        return [self.norm(y + 2 * k * self.is_far) for k, y in enumerate(sizes)]


@pytest.mark.parametrize("is_far", [False, True])
def test_levels_of_the_same_images_are_compared_image_by_image(is_far: bool) -> None:
    x = 3 * drawn(8, 3, 1, 1) + drawn(8, 3, 1, 1, seed=1) * drawn(8, 3, 16, 16, seed=2)
    what = "one batch norm in several places"
    assert (what in harms(Levels(is_far=is_far), x)) == is_far


def test_a_teacher_that_saw_few_batches_is_told_so() -> None:
    norms = [nn.BatchNorm1d(WIDTH) for _ in range(2)]
    model = nn.Sequential(*norms)
    trained(model, *(5 + drawn(16, WIDTH, seed=k) for k in range(3)))
    state = nn.BatchNorm1d(WIDTH).state_dict()
    state["running_mean"] += 1
    state["num_batches_tracked"] += 4
    norms[0].load_state_dict(state)
    reason = harms(model, 5 + drawn(16, WIDTH))["evaluation differs from training"]
    assert "It saw 4 batches, and others of the model 120" in reason.reason


class Shared(nn.Module):
    """A layer with its norms behind, used again and again."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.times = PostNorm(), times
        self.first = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = self.layer(x)
        return x


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.norm1 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.g, self.norm2 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.f(x))
        y: Tensor = self.norm2(x + self.g(x))
        return y


@pytest.mark.parametrize("times", [1, 4])
def test_norms_behind_a_layer_that_is_used_again_are_sound(times: int) -> None:
    assert audit(Shared(times), drawn(16, 5, WIDTH), quiet=True).passed


class Quantized(nn.Module):
    """The scale of activations is that of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.f(x)
        scale = y.abs().amax() / 127
        z: Tensor = self.norm((y / scale).round() * scale)
        return z


def test_a_scale_of_the_batch_that_rounds_is_a_note() -> None:
    harm = harms(Quantized(), drawn(16, WIDTH))[
        "an example depends on its neighbours in evaluation"
    ]
    assert harm.level == NOTE


class LastGroupNorm(nn.GroupNorm):
    """Group norm of (N, T, C), or (wrongly) of what it gets."""

    is_right = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_right:
            return super().forward(x)
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class WrongGroupNorm(LastGroupNorm):
    is_right = False


@pytest.mark.parametrize("steps", [12, WIDTH])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_group_norm_may_have_its_channels_last(groups: int, steps: int) -> None:
    parts = nn.Linear(4, WIDTH), LastGroupNorm(groups, WIDTH), nn.Linear(WIDTH, 4)
    assert not harms(nn.Sequential(*parts), drawn(16, steps, 4))


def test_a_group_norm_of_positions_is_told() -> None:
    parts = nn.Linear(4, WIDTH), WrongGroupNorm(1, WIDTH), nn.Linear(WIDTH, 4)
    found = harms(nn.Sequential(*parts), drawn(16, WIDTH, 4))
    assert found["normalizes positions, not features"].level == WRONG


class Modulated(nn.Module):
    """A layer norm whose gain and bias come from a condition, as in adaLN."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.make = nn.Linear(4, 2 * WIDTH)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        gain, bias = self.make(c)[:, None].chunk(2, -1)
        y: Tensor = self.norm(x) * (1 + gain) + bias
        return y


class ModulatedBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Modulated() for _ in range(3))
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x, c))
        return x


def test_a_norm_that_modulates_is_no_block_with_a_path_through_it() -> None:
    x = drawn(16, 12, WIDTH), drawn(16, 4)
    found = harms(ModulatedBlocks(), x)
    assert "a residual path through a norm" not in found
