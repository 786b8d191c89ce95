"""Layers as other people write them: what they are is told, and nothing untrue."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbook.checks import check_norm_layer
from normbook.checks.report import Report
from normbook.checks.unusual.relatives import relatives_of


def check(layer: nn.Module, shape: Any = None, **settings: Any) -> Report:
    return check_norm_layer(layer, shape, quiet=True, **settings)


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Return x over its root mean square, in float32 at least."""
    wide = x.float() if x.dtype.itemsize == 2 else x
    hat: Tensor = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return hat.to(x.dtype)


class Weighted(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sizes or (12,)))


class RightRMSNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * rms(x)


class NormalizeAndScale(Weighted):
    """No eps anywhere, but a floor of 1e-12 under the length."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        unit: Tensor = F.normalize(wide, dim=-1) * x.shape[-1] ** 0.5
        return self.weight * unit.to(x.dtype)


class NormalizeWithTinyEps(NormalizeAndScale):
    eps = 1e-12


def test_a_tiny_floor_under_the_length_is_no_wrong_eps() -> None:
    report = check(NormalizeWithTinyEps())
    assert report.passed, report
    assert "eps is a floor" in str(report)


def test_no_eps_is_invented_where_none_is_told_and_none_is_seen() -> None:
    report = check(NormalizeAndScale())
    assert report.passed, report
    assert "none shows for sigma down to 1e-6" in str(report)
    assert [*report.untested] == ["eps is added to the variance, inside the root"]


class SaysLayerNorm(RightRMSNorm):
    pass


SaysLayerNorm.__name__ = "LayerNorm"


class OnePlus(Weighted):
    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.weight) * rms(x)


OnePlus.__name__ = "RMSNormOfOnePlus"


class Groups(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * rms(x.reshape(*x.shape[:-1], 3, -1)).flatten(-2)


class GroupsCentred(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        parts = x.reshape(*x.shape[:-1], 3, -1)
        return self.weight * F.layer_norm(parts, parts.shape[-1:]).flatten(-2)


class Heads(Weighted):
    """A gain for each of 3 heads; the statistics are those of the last axis."""

    def __init__(self) -> None:
        super().__init__(3, 1, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * rms(x)


class GlobalLayerNorm(nn.Module):
    """That of Conv-TasNet (Luo and Mesgarani 2019): a gain for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(6, 1))
        self.beta = nn.Parameter(torch.zeros(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        centred = wide - wide.mean((1, 2), keepdim=True)
        var = centred.square().mean((1, 2), keepdim=True)
        x_hat: Tensor = (centred * torch.rsqrt(var + 1e-8)).to(x.dtype)
        return self.gamma * x_hat + self.beta


class NormAct(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(super().forward(x))
        return y


class ReluBehind(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class OneGain(Weighted):
    """A fixed length, times one number."""

    def __init__(self) -> None:
        super().__init__(1)
        self.features = nn.Buffer(torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        return self.weight * (F.normalize(wide, dim=-1) * 12**0.5).to(x.dtype)


class UnitLength(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        return F.normalize(wide, dim=-1).to(x.dtype)


@pytest.mark.parametrize(
    ("layer", "convention", "reason"),
    [
        (SaysLayerNorm(), "RMS norm", "says layer norm, and computes RMS norm"),
        (OnePlus(), "1 + gain", "a weight of 0 is a gain of 1"),
        (Groups(), "groups", "normalized in 3 groups"),
        (Heads(), "gain per head", "a norm for each head"),
        (NormAct(4), "activation", "SiLU follows the norm. All other tests are made"),
        (ReluBehind(4), "activation", "ReLU follows the norm"),
        (OneGain(), "one gain", "one scalar for the whole layer"),
        (UnitLength(), "unit length", "the root of the sum of squares"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_convention_is_told_as_one_and_may_be_allowed(
    layer: nn.Module, convention: str, reason: str
) -> None:
    report = check(layer)
    assert report.failed == (), report
    assert [*report.others] == [convention]
    assert reason in report.others[convention]
    assert f'allow="{convention}"' in str(report)
    assert check(layer, allow=convention).passed


def test_layer_norm_in_groups_at_each_position_is_told() -> None:
    report = check(GroupsCentred(), (8, 5, 12))
    assert (report.failed, [*report.others]) == ((), ["groups"])
    assert report.kind == "layer norm in 3 groups of (N, 5, 12)"


def test_the_global_layer_norm_of_speech_is_told() -> None:
    report = check(GlobalLayerNorm(), (4, 6, 9))
    assert (report.failed, [*report.others]) == ((), ["group norm"]), report
    assert "says layer norm, and computes group norm" in report.others["group norm"]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.full((6,), v)) for v in (1.5, 0.1))


class DynamicTanh(Named):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(0.5 * x) + self.bias


class Derf(Named):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.erf(0.5 * x + 0.2) + self.bias


class DyISRU(Named):
    def forward(self, x: Tensor) -> Tensor:
        # In float16 the square of x overflows.
        share = x / torch.hypot(x, x.new_tensor(3.0).sqrt())
        return self.weight * share + self.bias


class DerfTanh(Derf):  # another curve
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(0.5 * x + 0.2) + self.bias


class DyISRUOfChannels(DyISRU):  # a beta for each channel that is not told
    def forward(self, x: Tensor) -> Tensor:
        beta = 1 + torch.arange(6, dtype=x.dtype)
        return self.weight * x / torch.sqrt(beta + x**2) + self.bias


class GRN(Named):
    def forward(self, x: Tensor) -> Tensor:
        size: Tensor = torch.linalg.vector_norm(x.float(), dim=1, keepdim=True)
        share: Tensor = (size / (size.mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return self.weight * (x * share) + self.bias + x


class FrozenBatchNorm2d(Named):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None, None] + self.bias[:, None, None]


@pytest.mark.parametrize(
    ("layer", "shape", "name", "seen"),
    [
        (DynamicTanh(), (8, 5, 6), "Dynamic Tanh", "eval() do not."),
        (GRN(), (8, 5, 6), "GRN", "another scale of x, a constant added to x change"),
        (FrozenBatchNorm2d(), None, "frozen batch norm", "the other examples, eval()"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_norm_is_told_with_its_properties(
    layer: nn.Module, shape: Any, name: str, seen: str
) -> None:
    report = check(layer, shape)
    assert report.kind.startswith(f"{name} of (N, ")
    assert report.failed == ()
    assert seen in report.others[name]


class FilterResponseNorm(Named):
    """Singh and Krishnan (2020), with its threshold; the right one and wrong ones."""

    def __init__(self, of: str = "square", *, has_threshold: bool = True) -> None:
        super().__init__()
        self.tau, self.of = nn.Parameter(torch.zeros(6)), of
        self.has_threshold = has_threshold

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        size = {
            "square": wide.square().mean((2, 3), keepdim=True),
            "deviation": wide.var((2, 3), keepdim=True),
            "batch": wide.square().mean((0, 2, 3), keepdim=True),
        }[self.of]
        scaled = (wide * torch.rsqrt(size + 1e-6)).to(x.dtype)
        gain, bias, tau = (p[:, None, None] for p in (self.weight, self.bias, self.tau))
        return torch.maximum(gain * scaled + bias, tau)


class GlobalResponseNorm(nn.Module):
    """Woo et al. (2023), channels last, gain and bias from 0; right and wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.gamma, self.beta = (nn.Parameter(torch.zeros(6)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        order = 1 if self.wrong == "order" else 2
        size = torch.linalg.vector_norm(wide, order, dim=(1, 2), keepdim=True)
        over = 0 if self.wrong == "axis" else -1
        share = (size / (size.mean(over, keepdim=True) + 1e-6)).to(x.dtype)
        y: Tensor = self.gamma * (x * share) + self.beta + x
        return y


class PairNorm(nn.Module):
    def __init__(self, *, by_each: bool, is_centred: bool = True) -> None:
        super().__init__()
        self.by_each, self.is_centred = by_each, is_centred

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        wide = wide - wide.mean(0) if self.is_centred else wide
        square = wide.square().sum(-1, keepdim=True)
        square = square if self.by_each else square.mean()
        return (wide * torch.rsqrt(square + 1e-6)).to(x.dtype)


class MeanSubtractionNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class DyTSoftsign(Named):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.softsign(0.5 * x) + self.bias


class Evonorm(Named):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.sigmoid(x) + self.bias


FORMULA = "it computes the formula of its name"


@pytest.mark.parametrize(
    ("layer", "shape", "name"),
    [
        (DynamicTanh(), (8, 5, 6), "Dynamic Tanh"),
        (Derf(), (8, 5, 6), "Derf"),
        (DyISRU(), (8, 5, 6), "DyISRU"),
        (FilterResponseNorm(), (4, 6, 5, 3), "FRN"),
        (FilterResponseNorm(has_threshold=False), (4, 6, 5, 3), "FRN"),
        (GRN(), (8, 5, 6), "GRN"),
        (GlobalResponseNorm(), (4, 5, 3, 6), "GRN"),
        (PairNorm(by_each=True), (9, 6), "pair norm"),
        (PairNorm(by_each=False), (9, 6), "pair norm"),
        (MeanSubtractionNorm(), (9, 6), "mean subtraction"),
        (FrozenBatchNorm2d(), (4, 6, 5, 3), "frozen batch norm"),
    ],
)
def test_a_relative_computes_the_formula_of_its_name(
    layer: nn.Module, shape: tuple[int, ...], name: str
) -> None:
    report = check(layer, shape)
    assert report.kind.startswith(f"{name} of (N, ")
    assert (report.failed, [*report.others]) == ((), [name]), report
    assert FORMULA not in report.untested


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (DyTSoftsign(), (8, 5, 6)),
        (DerfTanh(), (8, 5, 6)),
        (DyISRUOfChannels(), (8, 5, 6)),
        (FilterResponseNorm("deviation"), (4, 6, 5, 3)),
        (FilterResponseNorm("batch"), (4, 6, 5, 3)),
        (GlobalResponseNorm("order"), (4, 5, 3, 6)),
        (GlobalResponseNorm("axis"), (4, 5, 3, 6)),
        (PairNorm(by_each=False, is_centred=False), (9, 6)),
    ],
)
def test_a_relative_that_computes_something_else_is_wrong(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    report = check(layer, shape)
    assert FORMULA in report.failed, report
    assert "of each channel the formula is off by" in " ".join(str(report).split())


def test_a_relative_without_a_known_formula_is_not_tested_for_it() -> None:
    report = check(Evonorm(), (8, 6))
    assert report.failed == ()
    assert (
        "none of S0 to B2, and no formula of another EvoNorm"
        in report.untested[FORMULA]
    )


class ChannelsLast(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


def test_channels_on_another_axis_are_tested_there() -> None:
    report = check(ChannelsLast(6), (8, 5, 6), channel_axis=-1)
    assert (report.kind, report.failed) == ("batch norm of (N, 5, 6)", ())


class Wrapped(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


class SilentModes(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> Any:
        super().train(mode)

    def eval(self) -> Any:
        super().eval()


class SingleOnly(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return self.weight * rms(x, 0.5)


class NothingTold(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return rms(x)


class Sequences(nn.InstanceNorm1d):
    """It refuses all but (N, C, L)."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, length = x.shape
        return super().forward(x.reshape(n, c, length))


@pytest.mark.parametrize(
    "layer",
    [
        Wrapped(nn.InstanceNorm2d(4, track_running_stats=True)),
        Wrapped(nn.InstanceNorm1d(4, affine=True)),
        SilentModes(3),
        NothingTold(),
        Sequences(4, affine=True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_false_alarm(layer: nn.Module) -> None:
    report = check(layer)
    assert report.passed, report


def test_a_layer_of_one_precision_has_no_false_gradient() -> None:
    report = check(SingleOnly())
    assert not any("gradient" in name for name in report.failed)


def test_a_report_raises_and_is_json() -> None:
    report = check(OnePlus())
    with pytest.raises(AssertionError, match=r"OTHER  1 \+ gain"):
        report.raise_if_failed()
    check(OnePlus(), allow=["1 + gain"]).raise_if_failed()
    content = json.loads(report.to_json())
    assert content["passed"] is False
    assert {row["verdict"] for row in content["findings"]} >= {"right", "other"}


def test_a_graph_in_a_name_is_no_graph_norm() -> None:
    class InGraph(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    class MyGraphNorm(InGraph):
        pass

    assert [*relatives_of(InGraph())] == []
    assert [found.name for found, _ in relatives_of(MyGraphNorm())] == ["graph norm"]


class Evo(Named):
    """The six forms of Liu et al. (2020), two groups; the class says which it is."""

    def __init__(self, form: str, computes: str = "") -> None:
        super().__init__()
        self.form, self.v = computes or form, nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.__class__ = type(f"EvoNorm2d{form.upper()}", (Evo,), {})

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        gain, bias, v = (p[:, None, None] for p in (self.weight, self.bias, self.v))
        own = wide.var((2, 3), correction=0, keepdim=True).add(1e-5).sqrt()
        size = wide.square().mean((2, 3), keepdim=True).add(1e-5).sqrt()
        batch = wide.var((0, 2, 3), correction=0, keepdim=True).add(1e-5).sqrt()
        parts = wide.reshape(len(x), 2, 3, *x.shape[2:])
        groups = parts.var((2, 3, 4), correction=0, keepdim=True).add(1e-5).sqrt()
        sizes = parts.square().mean((2, 3, 4), keepdim=True).add(1e-5).sqrt()
        groups, sizes = (s.expand_as(parts).flatten(1, 2) for s in (groups, sizes))
        z = {
            "s0": wide * (v * wide).sigmoid() / groups,
            "s1": F.silu(wide) / groups,
            "s2": F.silu(wide) / sizes,
            "b0": wide / batch.maximum(v * wide + own),
            "b1": wide / batch.maximum((wide + 1) * size),
            "b2": wide / batch.maximum(size - wide),
        }[self.form]
        y: Tensor = gain * z.to(x.dtype) + bias
        return y


class BatchRenorm(Named):
    """Ioffe (2017), with limits for r and d; the right one and wrong ones."""

    def __init__(self, wrong: str = "", limits: tuple[float, float] = (3, 5)) -> None:
        super().__init__()
        self.wrong, self.limits, self.eps = wrong, limits, 1e-5
        self.running_mean = nn.Buffer(torch.linspace(-0.5, 0.5, 6))
        self.running_var = nn.Buffer(torch.linspace(0.5, 2.0, 6))

    def forward(self, x: Tensor) -> Tensor:
        axes, per = (0, *range(2, x.dim())), (-1, *[1] * (x.dim() - 2))
        wide = x.float() if x.dtype.itemsize == 2 else x
        mean, var = self.running_mean.to(wide), self.running_var.to(wide)
        if self.training:
            own_var, own_mean = torch.var_mean(wide, axes, correction=0)
            if self.wrong == "update first":
                mean, var = mean.lerp(own_mean, 0.1), var.lerp(own_var, 0.1)
            sigma, own = (var + self.eps).sqrt(), (own_var + self.eps).sqrt()
            most, far = self.limits
            r = (own / sigma).clamp(1 / most, most)
            d = ((own_mean - mean) / sigma).clamp(-far, far)
            if self.wrong != "gradient":
                r, d = r.detach(), d.detach()
            d = 0 * d if self.wrong == "no d" else d
            r = 1 / r if self.wrong == "one over r" else r
            z = (wide - own_mean.reshape(per)) / own.reshape(per)
            z = z * r.reshape(per) + d.reshape(per)
            self.running_mean.lerp_(own_mean.detach().to(self.running_mean), 0.1)
            self.running_var.lerp_(own_var.detach().to(self.running_var), 0.1)
        else:
            z = (wide - mean.reshape(per)) / (var + self.eps).sqrt().reshape(per)
        gain, bias = self.weight.reshape(per), self.bias.reshape(per)
        y: Tensor = gain * z.to(x.dtype) + bias
        return y


class DiffGroupNorm(nn.Module):
    """Zhou et al. (2020); the right one, and one whose shares are no shares."""

    def __init__(self, share: str = "softmax") -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(6, 3, bias=False), nn.BatchNorm1d(18)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        scores = self.lin(x)
        s = scores.softmax(-1) if self.share == "softmax" else scores.sigmoid()
        parts = (s.unsqueeze(-1) * x.unsqueeze(-2)).flatten(1)
        y: Tensor = x + 0.01 * self.norm(parts).reshape(-1, 3, 6).sum(-2)
        return y


@pytest.mark.parametrize("seed", range(6))
def test_a_soft_group_that_hardly_any_node_is_in_has_an_eps(seed: int) -> None:
    torch.manual_seed(seed)
    report = check(DiffGroupNorm(), (20, 6))
    assert FORMULA not in (*report.untested, *report.failed), report


class Irrep:
    def __init__(self, dim: int) -> None:
        self.dim = dim

    def is_scalar(self) -> bool:
        return self.dim == 1


class Equivariant(nn.Module):
    """Two scalars and two vectors; the right one, and one that moves its vectors."""

    def __init__(self, *, is_centred: bool = False) -> None:
        super().__init__()
        self.irreps, self.is_centred = [(2, Irrep(1)), (2, Irrep(3))], is_centred
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        scalars, vectors = wide[:, :2, None], wide[:, 2:].reshape(-1, 2, 3)
        scalars = scalars - scalars.mean(0)
        vectors = vectors - vectors.mean(0) if self.is_centred else vectors
        out = []
        for v, gain in ((scalars, self.weight[:2]), (vectors, self.weight[2:])):
            size = v.square().mean(-1, keepdim=True).mean(0).add(1e-5).sqrt()
            out.append((v / size).to(x.dtype).mul(gain[:, None]).flatten(1))
        return torch.cat(out, 1)


class NormSoFar(nn.Module):
    """A cumulative norm, which its class calls a layer norm."""

    def __init__(self, *, is_shifted: bool = False) -> None:
        super().__init__()
        self.is_shifted = is_shifted

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        steps = torch.arange(1, x.shape[-1] + 1, device=x.device)
        mean = wide.mean(1, keepdim=True).cumsum(-1) / steps
        square = wide.square().mean(1, keepdim=True).cumsum(-1) / steps
        if self.is_shifted:
            mean = mean.roll(1, -1)
        z: Tensor = (wide - mean) * torch.rsqrt((square - mean.square()).abs() + 1e-8)
        return z.to(x.dtype)


NormSoFar.__name__ = "LayerNorm"


class CumulativeNorm(nn.Module):
    """Each step from the mean up to it: no large numbers are subtracted."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        steps = torch.arange(1, x.shape[-1] + 1, device=x.device)
        centred = wide - wide.mean(1, keepdim=True).cumsum(-1) / steps
        var = centred.square().mean(1, keepdim=True).cumsum(-1) / steps
        return (centred * torch.rsqrt(var + 1e-8)).to(x.dtype)


FORMS = ("s0", "s1", "s2", "b0", "b1", "b2")
IMAGES = (4, 6, 5, 3)


@pytest.mark.parametrize(
    ("layer", "shape", "name"),
    [
        *((Evo(form), IMAGES, "EvoNorm") for form in FORMS),
        (BatchRenorm(), IMAGES, "batch renormalization"),
        (BatchRenorm(), (16, 6), "batch renormalization"),
        (BatchRenorm(limits=(1, 0)), IMAGES, "batch renormalization"),
        (BatchRenorm(limits=(1.3, 0.3)), IMAGES, "batch renormalization"),
        (DiffGroupNorm(), (20, 6), "differentiable group norm"),
        (Equivariant(), (16, 8), "equivariant norm"),
        (NormSoFar(), (4, 8, 5), "cumulative norm"),
    ],
)
def test_more_relatives_compute_the_formula_of_their_name(
    layer: nn.Module, shape: tuple[int, ...], name: str
) -> None:
    report = check(layer, shape)
    assert report.kind.startswith(f"{name} of (N, "), report
    assert FORMULA not in (*report.untested, *report.failed), report
    assert name in report.others


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        *(
            (Evo(form, other), IMAGES)
            for form, other in zip(FORMS, FORMS[::-1], strict=True)
        ),
        (DiffGroupNorm("sigmoid"), (20, 6)),
        (Equivariant(is_centred=True), (16, 8)),
    ],
)
def test_more_relatives_that_compute_something_else_are_wrong(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    assert FORMULA in check(layer, shape).failed


@pytest.mark.parametrize("wrong", ["update first", "no d", "one over r"])
def test_a_batch_renormalization_gone_wrong_is_a_batch_norm_gone_wrong(
    wrong: str,
) -> None:
    report = check(BatchRenorm(wrong), IMAGES)
    assert report.kind.startswith("batch norm of"), report
    assert report.failed


@pytest.mark.parametrize("kind", [None, "batch"])
def test_r_and_d_with_a_gradient_are_named(kind: Any) -> None:
    report = check_norm_layer(BatchRenorm("gradient"), IMAGES, kind=kind, quiet=True)
    assert "the gradient goes through r and d" in " ".join(str(report).split())


class FrozenBatchNorm(Named):
    """Fixed statistics in every mode; its train() may return nothing."""

    def __init__(self, *, is_right: bool) -> None:
        super().__init__()
        self.is_right = is_right
        self.running_mean = nn.Buffer(torch.linspace(-0.5, 0.5, 6))
        self.running_var = nn.Buffer(torch.linspace(0.5, 2.0, 6))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        return self if self.is_right else None

    def forward(self, x: Tensor) -> Tensor:
        per = (-1, *[1] * (x.dim() - 2))
        gain = self.weight / (self.running_var + 1e-5).sqrt()
        bias = self.bias - self.running_mean * gain
        return x * gain.reshape(per) + bias.reshape(per)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_relative_by_name_is_one_whatever_kind_is_given(is_right: bool) -> None:
    layer = FrozenBatchNorm(is_right=is_right)
    report = check_norm_layer(layer, IMAGES, kind="batch", quiet=True)
    assert "frozen batch norm" in report.others
    name = "train() and eval() return the layer"
    assert report.failed == (() if is_right else (name,))


def test_an_equivariant_norm_of_scalars_is_a_batch_norm() -> None:
    layer: Any = nn.BatchNorm1d(6)
    layer.irreps = [(6, Irrep(1))]
    report = check(layer, (16, 6))
    assert (report.kind, report.passed) == ("batch norm of (N, 6)", True)


def test_a_variance_in_one_pass_of_a_cumulative_norm_is_noticed() -> None:
    name = "a mean far from 0 costs no precision in float32"
    for layer, failed in ((NormSoFar(), (name,)), (CumulativeNorm(), ())):
        assert check(layer, (4, 8, 5)).failed == failed


def test_a_cumulative_norm_gone_wrong_is_no_other_norm() -> None:
    report = check(NormSoFar(is_shifted=True), (4, 8, 5))
    assert report.failed
    assert report.kind.startswith("layer norm")


def test_eps_in_a_tensor_is_read() -> None:
    class LayerNorm(Weighted):
        def __init__(self) -> None:
            super().__init__()
            self.eps = nn.Buffer(torch.tensor(1e-10))

        def forward(self, x: Tensor) -> Tensor:
            wide = x.float() if x.dtype.itemsize == 2 else x
            y = F.layer_norm(wide, x.shape[-1:], eps=1e-10)
            return self.weight * y.to(x.dtype)

    assert check(LayerNorm()).passed


class OneGraph(nn.Module):
    """Normalizes each channel over the nodes of a graph, of which one is too few."""

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return F.instance_norm(x.t()[None])[0].t()


def test_nodes_are_no_batch_of_which_any_size_is_taken() -> None:
    report = check(OneGraph(), (16, 6))
    assert report.kind.startswith("graph norm")
    assert report.failed == ()
