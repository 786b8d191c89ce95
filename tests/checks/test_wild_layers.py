"""Layers as libraries have them, rebuilt: named for what they are, no false alarm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbook.checks import audit, check_norm_layer
from normbook.checks.report import Report
from normbook.layers import conditional_norm, dynamic_tanh, weight_norm
from normbook.layers.layer_norm import ModelRMSNorm
from normbook.layers.query_key_norm import QueryKeyNorm

FORMULA = "it computes the formula of its name"


def check(layer: nn.Module, shape: Any = None, **settings: Any) -> Report:
    return check_norm_layer(layer, shape, quiet=True, **settings)


def text(report: Report) -> str:
    return " ".join(str(report).split())


class Affine(nn.Module):
    """Gain and bias of a shape."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sizes))
        self.bias = nn.Parameter(torch.zeros(sizes))

    def end(self, x_hat: Tensor, x: Tensor) -> Tensor:
        return self.weight * x_hat.to(x.dtype) + self.bias


def wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize == 2 else x


def standard(x: Tensor, axes: tuple[int, ...], eps: float = 1e-5) -> Tensor:
    x = wide(x)
    centred = x - x.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True) + eps).sqrt()


# --- kinds under other names, at other axes


class GlobalLayerNorm(Affine):
    """Over all but the batch; other numbers of axes pass through, as in dual paths."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.weight.dim() + 1:
            return x
        return self.end(standard(x, tuple(range(1, x.dim())), 1e-8), x)


class NarrowGlobalLayerNorm(Affine):
    """The same for (N, C, L), with a gain that fits longer inputs, too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.end(standard(x, (1, 2), 1e-8), x)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (NarrowGlobalLayerNorm(6, 1), "group norm of (N, 6, 6)"),
        (GlobalLayerNorm(6, 1), "group norm of (N, 6, 6)"),
        (GlobalLayerNorm(6, 1, 1), "group norm of (N, 6, 3, 4)"),
    ],
)
def test_a_global_layer_norm_needs_no_shape(layer: nn.Module, kind: str) -> None:
    report = check(layer)
    assert (report.kind, report.failed, [*report.others]) == (kind, (), ["group norm"])


class ByChannels(nn.LayerNorm):
    """Layer norm of each position, under a name that says another thing."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (3, 4):
            return x
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


ByChannels.__name__ = "CumulativeLayerNorm"


def test_a_name_that_is_untrue_says_nothing_untrue() -> None:
    report = check(ByChannels(6))
    assert report.kind == "layer norm of (N, 6, 3, 4)"
    assert report.passed, report


class EachFrame(nn.Module):
    """Group norm of the frames of a film, some at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_layer = nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.transpose(1, 2).flatten(0, 1)
        y = torch.cat([self.norm_layer(some) for some in torch.split(frames, 8)])
        return y.reshape(x.transpose(1, 2).shape).transpose(1, 2)


@pytest.mark.parametrize("shape", [None, (2, 6, 3, 4, 5)])
def test_a_norm_of_each_frame_is_told(shape: Any) -> None:
    report = check(EachFrame(), shape)
    assert report.kind.startswith("group norm of (N, 6, ")
    assert (report.failed, [*report.others]) == ((), ["positions apart"]), report
    assert "each position of axis 2" in report.others["positions apart"]


def test_query_key_norm_of_a_head_and_of_all_heads_are_told_apart() -> None:
    def query(layer: nn.Module, x: Tensor) -> Any:
        return layer(x, x)[0]

    each = check(QueryKeyNorm(6), (2, 3, 5, 6), call=query)
    assert (each.kind, each.passed) == ("RMS norm of (N, 3, 5, 6)", True)
    every = check(QueryKeyNorm(6, num_heads=3), (2, 3, 5, 6), call=query)
    assert (every.failed, [*every.others]) == ((), ["positions apart"])
    assert every.kind == "RMS norm of (N, 3, 5, 6)"


# --- relatives, right and wrong


class GraphNorm(Affine):
    """Cai et al. (2021): less a share of the mean; ``batch`` is the graph of a node."""

    def __init__(self) -> None:
        super().__init__(6)
        self.mean_scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        out = wide(x) - wide(x).mean(0) * self.mean_scale
        return self.end(out / (out.square().mean(0) + 1e-5).sqrt(), x)


class NodesNorm(Affine):
    """Each channel over the nodes of a graph, with an error on demand."""

    axes: tuple[int, ...] = (0,)
    power = 2

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        y = standard(x, self.axes)
        return self.end(y if self.power == 2 else y.sign() * y.abs() ** 1.5, x)


class InstanceNorm(NodesNorm):
    pass


class LayerNorm(NodesNorm):
    axes = (0, 1)


class WrongGraphNorm(NodesNorm):
    power = 3


class GraphSizeNorm(nn.Module):
    root = 0.5

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        y: Tensor = x / len(x) ** self.root
        return y


class WrongGraphSizeNorm(GraphSizeNorm):
    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return x / wide(x).square().mean(0).sqrt().to(x.dtype)


class DiffGroupNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_channels = 6
        self.lin = nn.Linear(6, 3, bias=False)
        self.norm = nn.BatchNorm1d(18)

    def forward(self, x: Tensor) -> Tensor:
        soft = self.lin(x).softmax(-1)
        parts = self.norm((soft[..., None] * x[:, None]).reshape(-1, 18))
        y: Tensor = x + 0.1 * parts.reshape(-1, 3, 6).sum(1)
        return y


class PairNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        centred = wide(x) - wide(x).mean(0)
        size = (centred.square() / 2**12).sum(-1).mean().sqrt() * 2**6 + 1e-6
        y: Tensor = 2 * centred / size
        return y.to(x.dtype)


class MessageNorm(nn.Module):
    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.scale, self.power = nn.Parameter(torch.ones(1)), power

    def forward(self, x: Tensor, msg: Tensor) -> Tensor:
        way = F.normalize(wide(msg), dim=-1)
        length = wide(x).square().sum(-1, keepdim=True).sqrt() ** self.power
        y: Tensor = (way * length).to(x.dtype) * self.scale
        return y


def message(layer: nn.Module, x: Tensor) -> Any:
    node = torch.linspace(1, 2, x.numel()).reshape(x.shape).to(x)
    return layer(node, x)


class SplitBatchNorm2d(nn.Module):
    """Each part of a batch has a layer of its own."""

    def __init__(self, parts: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(parts))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            y: Tensor = self.norms[0](x)
            return y
        parts = zip(self.norms, x.chunk(len(self.norms)), strict=True)
        return torch.cat([norm(part) for norm, part in parts])


class WrongSplitBatchNorm2d(SplitBatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.1 * x.mean((2, 3), keepdim=True)


class EstimatedBatchNorm(Affine):
    """By running statistics, in training too, after the batch has moved them."""

    momentum = 0.1

    def __init__(self) -> None:
        super().__init__(6, 1, 1)
        self.exp_mean = nn.Buffer(torch.zeros(6, 1, 1))
        self.exp_var = nn.Buffer(torch.ones(6, 1, 1))

    def spread(self, x: Tensor) -> Tensor:
        return x.var((0, 2, 3), keepdim=True, correction=0)[0]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                mean = wide(x).mean((0, 2, 3), keepdim=True)[0]
                self.exp_mean.lerp_(mean.to(self.exp_mean), self.momentum)
                self.exp_var.lerp_(self.spread(wide(x)).to(self.exp_var), self.momentum)
        root = (wide(self.exp_var) + 1e-5).sqrt()
        x_hat: Tensor = (wide(x) - wide(self.exp_mean)) / root
        return self.weight * x_hat.to(x.dtype) + self.bias


class WrongEstimatedBatchNorm(EstimatedBatchNorm):
    def spread(self, x: Tensor) -> Tensor:
        return super().spread(x).sqrt()


class EvoNorm2dS0(nn.Module):
    groups = 2

    def __init__(self) -> None:
        super().__init__()
        self.v, self.weight = (nn.Parameter(torch.ones(6, 1, 1)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(6, 1, 1))

    def normalize(self, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), self.groups, -1)
        root = (grouped.var(2, correction=0) + 1e-5).sqrt()
        root = root.repeat_interleave(6 // self.groups, 1)[..., None, None]
        return x * (self.v * x).sigmoid() / root

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.normalize(wide(x)).to(x.dtype) + self.bias


class EvoNorm2dB0(EvoNorm2dS0):
    def normalize(self, x: Tensor) -> Tensor:
        of_batch = (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        own = (x.var((2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
        return x / of_batch.maximum(self.v * x + own)


class CumulativeNorm(nn.Module):
    """Over the features of all steps so far, (N, T, F, C) or (N, T, C)."""

    def __init__(self, *, is_exact: bool = True) -> None:
        super().__init__()
        self.weight, self.is_exact = nn.Parameter(torch.ones(6)), is_exact

    def so_far(self, x: Tensor) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1).reshape(-1, *[1] * (x.dim() - 2))
        axes = tuple(range(2, x.dim()))
        return x.mean(axes, keepdim=True).cumsum(1) / steps.to(x)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.so_far(wide(x).double())
        if self.is_exact:
            var = self.so_far(wide(x).double().square()) - mean.square()
        else:
            var = self.so_far((wide(x) - mean).square())
        x_hat = (wide(x) - mean) / (var + 1e-3).sqrt()
        return self.weight * x_hat.to(x.dtype)


class WrongCumulativeNorm(CumulativeNorm):
    """The mean of the step itself."""

    def so_far(self, x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True) + 0.3 * super().so_far(x)


class CBatchNorm(nn.Module):
    """Trabelsi et al. (2018): pairs made white; real parts first, then imaginary."""

    has_covariance = True

    def __init__(self) -> None:
        super().__init__()
        self.gamma_rr, self.gamma_ii = (nn.Parameter(torch.ones(3)) for _ in range(2))
        self.gamma_ri, self.beta = (nn.Parameter(torch.zeros(n)) for n in (3, 6))

    def forward(self, x: Tensor) -> Tensor:
        axes = tuple(range(x.dim() - 1))
        re, im = (wide(x) - wide(x).mean(axes)).chunk(2, -1)
        rr, ii = (part.square().mean(axes) + 1e-4 for part in (re, im))
        ri = (re * im).mean(axes) * self.has_covariance
        # The inverse root of a 2 x 2 matrix, by its trace and determinant.
        s = (rr * ii - ri.square()).sqrt()
        over = s * (rr + ii + 2 * s).sqrt()
        real = ((ii + s) * re - ri * im) / over
        imag = ((rr + s) * im - ri * re) / over
        parts = [
            self.gamma_rr * real + self.gamma_ri * imag,
            self.gamma_ri * real + self.gamma_ii * imag,
        ]
        return torch.cat(parts, -1).to(x.dtype) + self.beta


class WrongCBatchNorm(CBatchNorm):
    has_covariance = False


class QBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_features = 2
        self.gamma = nn.Parameter(torch.ones(2))
        self.beta = nn.Parameter(torch.zeros(8))

    def square(self, centred: Tensor) -> Tensor:
        return sum(p.square() for p in centred.chunk(4, -1)).mean(0)  # type: ignore

    def forward(self, x: Tensor) -> Tensor:
        centred = wide(x) - wide(x).mean(0)
        root = (self.square(centred) + 1e-5).sqrt().repeat(*[1] * (x.dim() - 2), 4)
        return self.gamma.repeat(4) * (centred / root).to(x.dtype) + self.beta


class WrongQBatchNorm(QBatchNorm):
    def square(self, centred: Tensor) -> Tensor:
        return centred.square().chunk(4, -1)[0].mean(0)


class SplitBN(nn.BatchNorm2d):
    """Each half of the batch that lies every second example, as on two devices."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        z = x.reshape(-1, 2 * x.shape[1], *x.shape[2:])
        z = F.batch_norm(z, None, None, None, None, training=True)
        z = z.reshape(x.shape) * self.weight[:, None, None]
        return z + self.bias[:, None, None]


class Whitening(nn.Module):
    """By the inverse of a root of the covariance, or (wrongly) of what is above it."""

    is_right = True

    def forward(self, x: Tensor) -> Tensor:
        rows = x.movedim(1, -1).flatten(0, -2)
        rows = rows - rows.mean(0)
        cov = rows.T @ rows / len(rows)
        root = torch.linalg.cholesky(cov if self.is_right else 1 + cov)
        white: Tensor = torch.linalg.solve_triangular(root, rows.T, upper=False).T
        return white.reshape(x.movedim(1, -1).shape).movedim(-1, 1)


class WrongWhitening(Whitening):
    is_right = False


class BiasFree_LayerNorm(Affine):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt() * self.weight


class WrongBiasFree(BiasFree_LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.var((0, -1), keepdim=True) + 1e-5).sqrt() * self.weight


IMAGES, STEPS = (4, 6, 5, 3), (4, 7, 4, 6)


@pytest.mark.parametrize(
    ("layer", "shape", "name", "seen"),
    [
        (GraphNorm(), None, "graph norm", "less a share of their mean"),
        (InstanceNorm(6), None, "graph norm", "each channel by the nodes"),
        (LayerNorm(6), None, "graph norm", "one mean and one variance for all"),
        (GraphSizeNorm(), None, "graph size norm", "root of the number of nodes"),
        (PairNorm(), (9, 6), "pair norm", "up to rounding, times 2."),
        (SplitBatchNorm2d(), None, "ghost batch norm", "parts of 8"),
        (SplitBatchNorm2d(4), IMAGES, "ghost batch norm", "parts of 4"),
        (
            EstimatedBatchNorm().double(),
            None,
            "batch norm by running statistics",
            "no gradient",
        ),
        (SplitBN(3), (4, 3, 5, 3), "ghost batch norm", "dealt out in turn"),
        (Whitening(), IMAGES, "whitening", "made uncorrelated"),
        (EvoNorm2dS0(), None, "EvoNorm", "EvoNorm-S0 in 2 groups"),
        (EvoNorm2dB0(), None, "EvoNorm", "EvoNorm-B0"),
        (CumulativeNorm(), STEPS, "cumulative norm", "steps so far"),
        (CumulativeNorm(is_exact=False), STEPS, "cumulative norm", "up to that step"),
        (CBatchNorm(), (5, 6), "complex norm", "their covariance"),
        (QBatchNorm(), None, "quaternion norm", "one deviation of all four"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_relative_is_told_by_its_formula(
    layer: nn.Module, shape: Any, name: str, seen: str
) -> None:
    report = check(layer, shape)
    assert report.kind.startswith(f"{name} of (N, "), report
    assert (report.failed, [*report.others], report.untested) == ((), [name], {})
    assert "The formula holds up to" in report.others[name]
    assert seen in report.others[name]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (WrongGraphNorm(6), None),
        (WrongGraphSizeNorm(), None),
        (WrongSplitBatchNorm2d(), None),
        (WrongEstimatedBatchNorm(), None),
        (WrongCumulativeNorm(is_exact=False), STEPS),
        (WrongCBatchNorm(), (5, 6)),
        (WrongQBatchNorm(), None),
        (WrongBiasFree(6), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_relative_with_another_formula_is_not_passed(
    layer: nn.Module, shape: Any
) -> None:
    report = check(layer, shape)
    told = {"group norm", "unexplained"} & {*report.others}
    assert report.failed or told, report
    assert "The formula holds" not in text(report)


def test_a_relative_without_a_formula_is_named() -> None:
    report = check(DiffGroupNorm())
    assert [*report.others] == ["differentiable group norm"]
    assert FORMULA not in report.untested
    assert "its name" not in report.failed


def test_a_layer_norm_of_nodes_is_a_layer_norm() -> None:
    class NodeNorm(nn.LayerNorm):
        def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
            return super().forward(x)

    report = check(NodeNorm(6))
    assert (report.kind, report.passed) == ("layer norm of (N, 5, 6)", True)


@pytest.mark.parametrize("settings", [{"call": message}, {}])
def test_a_message_norm_is_no_rms_norm(settings: Any) -> None:
    report = check(MessageNorm(), (9, 6), **settings)
    assert (report.kind, report.failed) == ("message norm of (N, 6)", ()), report
    assert "The formula holds up to rounding" in report.others["message norm"]
    assert FORMULA in check(MessageNorm(2.0), (9, 6)).failed


def test_a_graph_held_by_a_relative_is_told() -> None:
    class EstimatedBatchNormWithGraph(EstimatedBatchNorm):
        def forward(self, x: Tensor) -> Tensor:
            self.kept: Any = getattr(self, "kept", 0.0) + x.sum()
            return super().forward(x)

    report = check(EstimatedBatchNormWithGraph())
    assert "the running statistics hold no graph" in report.failed


# --- a condition beside x


class Embedded(nn.Module):
    """Conditional batch norm by classes, of a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6, affine=False)
        self.embed = nn.Embedding(10, 12)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        gain, bias = self.embed(label)[..., None, None].chunk(2, 1)
        y: Tensor = (1 + gain) * self.norm(x) + bias
        return y


class AdaIN(nn.Module):
    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        var, mean = torch.var_mean(style, (2, 3), keepdim=True)
        return standard(x, (2, 3)).to(x.dtype) * var.sqrt() + mean


class Modulated(nn.Module):
    """FiLM: gain and bias come from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 6, affine=False)

    def forward(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        y: Tensor = gamma[..., None, None] * self.norm(x) + beta[..., None, None]
        return y


class Optional(nn.Module):
    """Gain, bias and a gate of what may be left out by the signature alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 36)
        self.norm = nn.LayerNorm(12, elementwise_affine=False, eps=1e-6)

    def forward(
        self, x: Tensor, time: Tensor | None = None, emb: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        gain, bias, gate = self.linear(emb)[:, None].chunk(3, -1)
        return self.norm(x) * (1 + gain) + bias, gate


@pytest.mark.parametrize(
    ("layer", "kind", "argument"),
    [
        (conditional_norm.AdaptiveLayerNorm(6, 4), "layer norm of (N, 5, 6)", "con"),
        (
            conditional_norm.AdaptiveLayerNorm(6, 4, has_gate=True),
            "layer norm of (N, 5, 6)",
            "condition",
        ),
        (conditional_norm.AdaptiveRMSNorm(6, 4), "RMS norm of (N, 5, 6)", "condition"),
        (
            conditional_norm.ConditionalBatchNorm1d(6, 4),
            "batch norm of (N, 6)",
            "condition",
        ),
        (
            conditional_norm.ConditionalBatchNorm2d(6, 4),
            "batch norm of (N, 6, 3, 4)",
            "condition",
        ),
        (
            conditional_norm.ConditionalInstanceNorm2d(6, 4),
            "instance norm of (N, 6, 3, 4)",
            "condition",
        ),
        (Embedded(), "batch norm of (N, 6, 3, 4)", "label"),
        (Modulated(), "group norm of (N, 6, 3, 4)", "gamma, beta"),
        (Optional(), "layer norm of (N, 5, 12)", "emb"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_norm_that_takes_a_condition_is_told_without_help(
    layer: nn.Module, kind: str, argument: str
) -> None:
    report = check(layer)
    assert (report.kind, report.failed) == (kind, ()), report
    assert [*report.others] == ["conditional"]
    assert f"from a condition, {argument}" in report.others["conditional"]
    assert check(layer, allow="conditional").passed


def test_adain_is_an_instance_norm_with_a_condition() -> None:
    report = check(AdaIN(), (4, 6, 5, 3), eps=1e-5)
    assert report.kind == "instance norm of (N, 6, 5, 3)"
    assert (report.failed, [*report.others]) == ((), ["conditional"]), report


def test_a_condition_that_is_given_is_taken_as_it_is() -> None:
    def with_condition(layer: nn.Module, x: Tensor) -> Any:
        return layer(x, emb=torch.linspace(-1, 1, 5).expand(len(x), 5).to(x))[0]

    report = check(Optional(), call=with_condition)
    assert report.passed, report
    assert report.kind == "layer norm of (N, 5, 12)"


def test_a_condition_that_cannot_be_made_is_asked_for() -> None:
    class NeedsText(Optional):
        def forward(self, x: Tensor, words: Any) -> Any:  # type: ignore[override]
            return super().forward(x, emb=torch.tensor([len(words.split())]))

    with pytest.raises(ValueError, match=r"it takes words, too: pass call=lambda"):
        check(NeedsText())


class Gated(Affine):
    """A gate for each number, as behind a scan over states."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide_x = wide(x)
        root = (wide_x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return self.weight * (wide_x / root).to(x.dtype) * F.silu(gate)


class SpatialNorm(nn.Module):
    """Gain and bias of each place come from a map (Park et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)
        self.gain, self.shift = (nn.Conv2d(4, 6, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        y: Tensor = self.norm(x) * self.gain(places) + self.shift(places)
        return y


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(Gated(12), "RMS norm"), (SpatialNorm(), "group norm")],
    ids=lambda value: type(value).__name__,
)
def test_a_condition_may_make_a_gain_for_each_position(
    layer: nn.Module, kind: str
) -> None:
    report = check(layer)
    assert report.kind.startswith(f"{kind} of (N, "), report
    assert (report.failed, [*report.others]) == ((), ["conditional"]), report


# --- the gain, and where half precision is rounded


class Rounds(nn.Module):
    """RMS norm that multiplies in float32, in the given dtype, or rounds throughout."""

    def __init__(self, where: str, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((64,), 1 - offset))
        self.where, self.offset = where, offset

    def forward(self, x: Tensor) -> Tensor:
        is_inside = self.where == "inside" and x.dtype == torch.bfloat16
        own = x if is_inside else wide(x)
        root = (own.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        if self.where == "after":
            return (own / root * (wide(self.weight) + self.offset)).to(x.dtype)
        return (own / root).to(x.dtype) * (self.weight + self.offset)


@pytest.mark.parametrize(
    ("layer", "note"),
    [
        (Rounds("after"), ""),
        (Rounds("before"), "rounds before the gain"),
        (ModelRMSNorm(64), ""),
        (ModelRMSNorm(64, rounds="before"), "rounds before the gain"),
        (ModelRMSNorm(64, offset=1.0), ""),
        (Rounds("before", 1.0), "rounds before the gain"),
        (nn.LayerNorm(64), ""),
        (Rounds("inside"), "rounds inside"),
    ],
    ids=str,
)
def test_the_place_of_rounding_is_noted(layer: nn.Module, note: str) -> None:
    report = check(layer)
    assert report.failed == ()
    notes = {finding.other for finding in report.findings if finding.passed}
    assert notes - {""} == ({note} if note else set())
    is_less_one = getattr(layer, "offset", 0) == 1
    assert [*report.others] == (["1 + gain"] if is_less_one else [])
    assert ("NOTE" in str(report)) == bool(note)


# --- what the sweep over new libraries showed


class HiddenGain(nn.Module):
    """Unbiased, with a gain by another name: the factor is not the gain's."""

    def __init__(self) -> None:
        super().__init__()
        self.unconstrained = nn.Parameter(torch.zeros(8))
        self.bias = nn.Parameter(torch.zeros(8))
        self.running_mean = nn.Buffer(torch.zeros(8))
        self.running_var = nn.Buffer(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1 and self.training:
            raise ValueError("one value")
        var: Tensor = self.running_var
        mean: Tensor = self.running_mean
        if self.training:
            var, mean = torch.var_mean(wide(x), 0)
            self.running_mean.lerp_(mean.detach().to(self.running_mean), 0.1)
            self.running_var.lerp_(var.detach().to(self.running_var), 0.1)
        y = F.softplus(self.unconstrained) * ((x - mean) / (var + 1e-5).sqrt())
        return y.to(x.dtype) + self.bias


def test_an_unbiased_variance_is_told_from_a_gain_that_is_not_known() -> None:
    report = check(HiddenGain(), (16, 8), kind="batch", eps=1e-5)
    assert report.failed == ("the variance divides by n, not by n - 1",), report


class ActNorm(Affine):
    """Gain and bias are set by the first batch, and then stay."""

    def __init__(self) -> None:
        super().__init__(8)
        self.initialized = nn.Buffer(torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if not self.initialized:
            with torch.no_grad():
                self.weight.copy_(1 / x.std(0))
                self.bias.copy_(-x.mean(0) / x.std(0))
                self.initialized.fill_(True)
        return self.weight * x + self.bias


def test_a_layer_set_by_its_first_batch_is_no_norm_layer() -> None:
    with pytest.raises(ValueError, match="as in ActNorm, it is no norm layer"):
        check(ActNorm(), (16, 8), kind="batch")


class GBN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.bn(part) for part in torch.split(x, 4)])


def test_a_batch_norm_that_is_called_for_parts_needs_no_name() -> None:
    report = check(GBN(), (16, 8))
    assert (report.failed, [*report.others]) == ((), ["ghost batch norm"])


class FrozenBatchNormAct2d(Affine):
    def __init__(self) -> None:
        super().__init__(6, 1, 1)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.weight * x + self.bias)
        return y


def test_an_activation_behind_a_relative_is_told() -> None:
    report = check(FrozenBatchNormAct2d())
    assert report.failed == ()
    assert {*report.others} == {"frozen batch norm", "activation"}


class GainPerGroup(Affine):
    def forward(self, x: Tensor) -> Tensor:
        parts = standard(x.reshape(len(x), 2, -1), (2,)).to(x.dtype)
        y = self.weight[:, None] * parts + self.bias[:, None]
        return y.reshape(x.shape)


def test_a_gain_for_each_group_is_a_convention() -> None:
    layer: Any = GainPerGroup(2)
    layer.channels = 6
    report = check(layer)
    assert report.kind == "group norm of (N, 6, 6)"
    assert (report.failed, [*report.others]) == ((), ["gain per group"]), report


class Times(nn.Module):
    """The length that the scale tells, though no parameter has its size."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.g = 20**0.5, nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.g * (F.normalize(wide(x), dim=-1) * self.scale).to(x.dtype)


def test_the_root_of_the_size_tells_the_size() -> None:
    report = check(Times())
    assert report.kind == "RMS norm of (N, 5, 20)"
    assert (report.failed, [*report.others]) == ((), ["one gain"]), report


class Irreps(nn.Module):
    """Scalars as in batch norm, vectors of three over their mean length."""

    irreps = "2x0e+2x1o"

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        vectors = wide(x)[:, 2:].reshape(-1, 2, 3)
        root = (vectors.square().mean((0, 2), keepdim=True) + 1e-5).sqrt()
        parts = [self.norm(x[:, :2]), (vectors / root).flatten(1).to(x.dtype)]
        return torch.cat(parts, 1)


Irreps.__name__ = "BatchNorm"


def test_a_norm_of_vectors_is_named_and_not_called_wrong() -> None:
    report = check(Irreps(), (16, 8))
    assert (report.failed, [*report.others]) == ((), ["equivariant norm"]), report
    assert FORMULA in report.untested


# --- what is no norm layer


class ScaledStdConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = standard(self.weight, (1, 2, 3))
        return F.conv2d(x, w.to(x.dtype), self.bias, padding=1)


@pytest.mark.parametrize(
    "layer",
    [
        ScaledStdConv2d(6, 6, 3),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        weight_norm.ScaledWeightStandardization(),
        weight_norm.WeightNorm(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_normalizes_a_weight_is_no_norm_layer(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match="weight standardization and spectral norm"):
        check(layer)


def test_the_dynamic_tanh_of_this_package_is_one() -> None:
    report = check(dynamic_tanh.DynamicTanh(6))
    assert (report.failed, [*report.others]) == ((), ["Dynamic Tanh"])


def test_what_whitens_in_another_way_is_not_tested() -> None:
    report = check(WrongWhitening(), IMAGES)
    assert "its outputs go together" in report.untested[FORMULA]
    assert report.failed == ()


def test_a_layer_norm_that_subtracts_nothing_is_told_by_its_name_and_formula() -> None:
    report = check(BiasFree_LayerNorm(6))
    assert [*report.others] == ["scale alone"]
    assert "The formula holds" in report.others["scale alone"]


class Clamped(nn.Module):
    """x over its root mean square or a floor, by the size that it was made with."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.eps = size**-0.5, 1e-5
        self.g = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * self.scale
        return x / norm.clamp(min=self.eps) * self.g


def test_a_floor_of_the_deviation_is_other_and_the_size_is_that_of_the_layer() -> None:
    report = check(Clamped(24))
    assert report.kind == "RMS norm of (N, 5, 24)"
    assert {*report.others} == {"one gain", "floor of the deviation"}
    assert report.failed == ()


class RevIN(nn.Module):
    """Instance norm of (N, C, T) that keeps the statistics to undo it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.affine_weight = nn.Parameter(torch.ones(channels, 1))
        self.affine_bias = nn.Parameter(torch.zeros(channels, 1))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x.float(), -1, keepdim=True, correction=0)
        self.mean, self.std = mean.to(x.dtype), (var + self.eps).sqrt().to(x.dtype)
        return (x - self.mean) / self.std * self.affine_weight + self.affine_bias


def test_statistics_that_are_kept_to_undo_a_norm_are_no_running_ones() -> None:
    report = check(RevIN(6), (4, 6, 9))
    assert report.kind == "instance norm of (N, 6, 9)"
    assert "running" not in text(report)
    assert "evaluation" not in " ".join(report.failed)


class LastGroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


class LastBatchNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(-1, 1)).movedim(1, -1)


class OverPositions(nn.BatchNorm1d):
    """Its statistics are those of positions, its gain is that of channels."""

    def forward(self, x: Tensor) -> Tensor:
        over = F.batch_norm(x.mT, None, None, training=True).mT
        return over * self.weight[:, None] + self.bias[:, None]


@pytest.mark.parametrize(
    ("layer", "shape", "title"),
    [
        (LastGroupNorm(2, 8), None, "group norm of (N, 6, 8)"),
        (LastGroupNorm(1, 8), (4, 7, 8), "group norm of (N, 7, 8)"),
        (LastBatchNorm(6), (4, 7, 6), "batch norm of (N, 7, 6)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_norm_of_torch_may_have_its_channels_last(
    layer: nn.Module, shape: Any, title: str
) -> None:
    report = check(layer, shape)
    assert report.passed, report
    assert report.kind == title
    assert "NOTE channels last they are last" in text(report)
    given = check(layer, shape, channel_axis=-1)
    assert "channels last" not in text(given)


def test_a_norm_of_torch_over_the_positions_is_wrong() -> None:
    report = check(OverPositions(6), (4, 6, 7))
    assert not report.passed
    assert "channels last" not in text(report)


class Unnamed(nn.Module):
    """A layer norm over axis 1 whose eps has no name."""

    def __init__(self, divided: Any) -> None:
        super().__init__()
        self.gamma, self.divided = nn.Parameter(torch.ones(1, 8, 1)), divided

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        y: Tensor = (x - mean) / self.divided(var) * self.gamma
        return y


@pytest.mark.parametrize(
    ("divided", "others"),
    [
        (lambda var: (var + 1.19e-7).sqrt(), []),
        (lambda var: (var + 3.7e-4).sqrt(), []),
        (lambda var: var.clamp(min=1e-4).sqrt(), ["floor of the variance"]),
        (lambda var: var.clamp(min=2.3e-4).sqrt(), ["floor of the variance"]),
    ],
)
def test_an_eps_without_a_name_may_have_any_value(
    divided: Any, others: list[str]
) -> None:
    report = check(Unnamed(divided), (4, 8, 5))
    assert [*report.others] == others
    assert {*report.failed} <= {"float16 and bfloat16 give what float32 gives"}


def test_an_eps_without_a_name_beside_the_root_is_wrong() -> None:
    report = check(Unnamed(lambda var: var.sqrt() + 2.3e-4), (4, 8, 5))
    assert "sigma + eps gives" in text(report)


class LogEps(nn.Module):
    """RMS norm that learns the logarithm of its eps, as BasicNorm of icefall."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.tensor(0.25).log())

    def forward(self, x: Tensor) -> Tensor:
        return x * (wide(x).square().mean(-1, True) + self.eps.exp()).rsqrt().to(x)


def test_a_negative_eps_is_its_logarithm() -> None:
    report = check(LogEps(), (4, 5, 16))
    assert report.failed == ()
    assert {"large eps"} == {f.other for f in report.findings} - {""}


class Wrapper(nn.Module):
    """A relative, called for images."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x.movedim(1, -1)).movedim(-1, 1)
        return y


def test_a_relative_is_known_by_the_name_of_what_is_wrapped() -> None:
    report = check(Wrapper(BiasFree_LayerNorm(8)), (4, 8, 3, 5))
    assert [*report.others] == ["scale alone"]


class InstanceNorm2dPlus(nn.Module):
    """Instance norm, and a share of the means, normalized over the channels."""

    def __init__(self, channels: int, share: float = 1.0) -> None:
        super().__init__()
        self.share = share
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        m, v = means.mean(1, keepdim=True), means.var(1, keepdim=True)
        means = (means - m) / (v + 1e-5).sqrt()
        return self.gamma * (standard(x, (2, 3)).to(x) + self.share * means)


def test_what_no_formula_explains_is_not_called_wrong() -> None:
    report = check(InstanceNorm2dPlus(6), (4, 6, 5, 3))
    assert report.kind.startswith("unexplained norm of")
    assert [*report.others] == ["unexplained"]
    assert not report.passed
    assert "no norm and no slip that is known here explains it" in text(report)
    # Nothing is said of a gain, or of other examples, as it may be any norm.
    assert len(report.findings) > 20
    assert sum(f.passed is not None for f in report.findings) < 8
    # Whoever says what it is gets it measured by that.
    report = check(InstanceNorm2dPlus(6), (4, 6, 5, 3), kind="instance")
    assert report.failed[0] == "the output is x normalized over the right axes"
    assert check(InstanceNorm2dPlus(6, 0.0), (4, 6, 5, 3)).others == {}


def test_an_audit_tells_what_it_cannot_explain() -> None:
    model = nn.Sequential(InstanceNorm2dPlus(6), nn.Conv2d(6, 4, 1))
    report = audit(model, torch.randn(8, 6, 5, 3), quiet=True)
    assert report.passed
    (line,) = (line for line in report.untested if "explains" in line)
    assert line.startswith("InstanceNorm2dPlus at 0 by itself: no norm and no slip")


class PackedLayerNorm(nn.GroupNorm):
    """Layer norm of the parts of a last axis, as of an ensemble."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        y = F.group_norm(flat, self.num_groups, self.weight, self.bias, self.eps)
        return y.view_as(x)


def test_a_group_norm_may_act_on_each_position() -> None:
    report = check(PackedLayerNorm(4, 64), (2, 5, 64))
    assert report.kind == "layer norm in 4 groups of (N, 5, 64)"
    assert report.passed


def test_a_floor_of_the_deviation_is_other_in_a_layer_norm() -> None:
    layer = Unnamed(lambda var: var.sqrt().clamp(min=1e-3))
    layer.register_buffer("eps", torch.tensor(1e-3))
    assert [*check(layer, (4, 8, 5)).others] == ["floor of the deviation"]


class LayerNorm2d(Affine):
    """Layer norm of images over their channels, as its name does not say."""

    def forward(self, x: Tensor) -> Tensor:
        return self.end(standard(x.movedim(1, -1), (-1,)), x).movedim(-1, 1)


class GlobLN(LayerNorm2d):
    """Over channels and steps, with a gain for each channel."""

    def forward(self, x: Tensor) -> Tensor:
        x_hat = standard(x, (1, 2))
        return self.end(x_hat.movedim(1, -1), x).movedim(-1, 1)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(LayerNorm2d(8), (16, 3, 12, 12)), (GlobLN(8), (16, 3, 12))],
    ids=lambda value: type(value).__name__,
)
def test_an_audit_sees_where_the_gain_of_another_class_acts(
    norm: nn.Module, shape: tuple[int, ...]
) -> None:
    conv = nn.Conv2d if len(shape) == 4 else nn.Conv1d
    model = nn.Sequential(conv(3, 8, 3), norm, conv(8, 4, 3))
    report = audit(model, torch.randn(shape), quiet=True)
    assert not [harm for harm in report.harms if harm.level == "WRONG"]
    # What torch has is taken at its word: here the last axis is no feature.
    model[1] = nn.LayerNorm(10)
    (harm,) = audit(model, torch.randn(shape), quiet=True).harms[:1]
    assert harm.what == "normalizes positions, not features"


class RecurrentModelRMSNorm(Affine):
    """A norm for a model whose name says recurrent, as that of Gemma."""

    def forward(self, x: Tensor) -> Tensor:
        x_hat = wide(x) * (wide(x).square().mean(-1, True) + 1e-6).rsqrt()
        return x_hat.to(x) * self.weight + self.bias


def test_a_norm_of_a_recurrent_model_is_no_recurrent_layer() -> None:
    report = check(RecurrentModelRMSNorm(8), (4, 5, 8))
    assert report.kind == "RMS norm of (N, 5, 8)"
    assert report.failed == ()


def test_an_audit_says_that_evonorms_are_not_tested() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), EvoNorm2dS0())
    report = audit(model, torch.randn(8, 3, 9, 9), quiet=True)
    assert report.harms == ()
    assert report.untested[0].startswith("EvoNorm2dS0 at 1: none of the norms")


class StableLayerNorm(nn.Module):
    """Layer norm of what was divided by its largest value, as of several projects."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x / x.amax(-1, keepdim=True).detach())  # type: ignore


def test_a_sign_that_is_wrong_for_few_examples_is_named() -> None:
    report = check(StableLayerNorm(), (4, 5, 16))
    assert "x_hat has the wrong sign in" in text(report)
    assert "those whose values are all negative" in text(report)


class OneGainPerHead(nn.Module):
    """RMS norm of queries and keys with one gain for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x_hat = wide(x) * (wide(x).square().mean(-1, True) + 1e-6).rsqrt()
        return x_hat.to(x) * self.scale[:, None, None]


def test_one_gain_for_each_head_is_a_convention() -> None:
    report = check(OneGainPerHead(), (2, 3, 5, 16))
    assert {*report.others} == {"gain per head", "one gain"}
    assert report.failed == ()


class TimestepNorm(nn.Module):
    """x over its deviation, of no name that tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight * (x.var(-1, keepdim=True) + 1e-5).rsqrt())


class InFront(nn.Module):
    """RMS norm of gain * x, or of (1 + gain) * x."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset, self.eps = offset, 1e-6
        self.weight = nn.Parameter(torch.ones(16) - offset)

    def forward(self, x: Tensor) -> Tensor:
        x = wide(x) * (self.offset + wide(self.weight))
        y = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return y.to(self.weight.dtype)


class InFrontRMSNorm(InFront):
    """By its name an RMS norm."""


class HeteroLayerNorm(nn.Module):
    """A gain for each type of node."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 6))
        self.bias = nn.Parameter(torch.zeros(2, 6))

    def forward(self, x: Tensor, types: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, (6,)) * self.weight[types] + self.bias[types]


class PositionsRMSNorm(nn.Module):
    """Each channel over the root mean square of its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        size = (wide(x).square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
        return (wide(x) / size).to(x) * self.scale[:, None, None]


class RMSGroupNorm(nn.Module):
    """RMS norm of the last axis in groups, of a name that says another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.num_groups, self.eps = 2, 1e-5
        self.gamma = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        parts: Tensor = wide(x).unflatten(-1, (2, 8))  # type: ignore[no-untyped-call]
        size = (parts.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return (parts / size).flatten(-2).to(x) * self.gamma


class SpaceNorm(nn.Module):
    """Each channel at each step by itself, over one axis of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma_s = nn.Parameter(torch.ones(8, 1, 1))
        self.beta_s = nn.Parameter(torch.zeros(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        z, mean = wide(x), wide(x).mean(2, keepdim=True)
        z = (z - mean) * (z.var(2, keepdim=True) + 1e-5).rsqrt()
        return z.to(x) * self.gamma_s + self.beta_s


class DeviationNorm2d(nn.Module):
    """Each channel over the deviation of its positions, without a mean taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.linspace(0.9, 1.1, 6))

    def forward(self, x: Tensor) -> Tensor:
        root = (wide(x).var((2, 3), keepdim=True) + 1e-5).sqrt()
        return (wide(x) / root).to(x) * self.alpha[:, None, None]


def of_ones(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, torch.ones(len(x), dtype=torch.long))


@pytest.mark.parametrize(
    ("layer", "settings", "other"),
    [
        (TimestepNorm(), {"shape": (4, 16)}, "scale alone"),
        (InFrontRMSNorm(0.0), {"shape": (4, 16)}, "gain in front"),
        (InFrontRMSNorm(1.0), {"shape": (4, 16)}, "gain in front"),
        (HeteroLayerNorm(), {"shape": (9, 6), "call": of_ones}, "gain per type"),
        (PositionsRMSNorm(), {"shape": (4, 8, 5, 3)}, "FRN"),
        (SpaceNorm(), {"shape": (4, 8, 6, 5)}, "positions apart"),
        (DeviationNorm2d(), {"shape": (4, 6, 5, 3)}, "scale alone"),
    ],
)
def test_what_a_formula_explains_is_on_purpose(
    layer: nn.Module, settings: Any, other: str
) -> None:
    report = check(layer, **settings)
    assert other in report.others
    assert {*report.failed} <= {"float16 and bfloat16 give what float32 gives"}


class SingleL2Norm(nn.Module):
    """Unit length in float32, of what has no parameter that tells it."""

    def forward(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        y: Tensor = x / size.type_as(x)
        return y


class OwnTo(nn.LayerNorm):
    """A layer whose ``to`` takes a device first."""

    def to(self, device: Any = None, dtype: Any = None) -> Any:  # type: ignore
        return super().to(device=torch.device(device or "cpu"), dtype=dtype)


class OwnDevice(OwnTo):
    """A layer whose ``to`` takes a device alone."""

    def to(self, device: Any) -> Any:  # type: ignore
        return super().to(torch.device(device))


def test_a_layer_of_one_dtype_without_parameters_is_checked() -> None:
    report = check(SingleL2Norm(), (2, 5, 16), kind="rms")
    assert "unit length" in report.others
    assert "the output has the dtype of the input" in report.failed


@pytest.mark.parametrize("of", [OwnTo, OwnDevice])
def test_a_to_of_its_own_is_no_hindrance(of: type[nn.LayerNorm]) -> None:
    report = check(of(8))
    assert not report.failed
    assert not report.others


class Length(nn.Module):
    """Unit length times a gain; eps is added to the length, or a floor of it."""

    def __init__(self, *, is_floor: bool) -> None:
        super().__init__()
        self.is_floor, self.eps = is_floor, 1e-10
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        size = x.square().sum(1, keepdim=True).sqrt()
        size = size.clamp_min(self.eps) if self.is_floor else size + self.eps
        return x / size * self.weight[:, None, None]


def test_eps_beside_the_length_is_told_from_a_floor() -> None:
    floor, beside = (
        check(Length(is_floor=is_floor), (4, 8, 5, 3), kind="rms")
        for is_floor in (True, False)
    )
    assert "floor of the length" in floor.others
    assert "floor of the length" not in beside.others
    assert "eps is added to the length that divides" in text(beside)


class ByBatchLayerNorm2d(nn.Module):
    """Says layer norm of the channels; the batch shares its statistics."""

    gamma: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gamma", torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gamma * F.batch_norm(x, None, None, training=True)
        return y


def test_a_gain_that_is_no_parameter_tells_the_axis_of_the_channels() -> None:
    report = check(ByBatchLayerNorm2d(), (4, 8, 5, 3))
    assert "the statistics run over axes 0, 2 and 3, expected axis 1" in text(report)
    assert "Take the statistics over dim=(1,)" in text(report)


class RootedNorm(nn.Module):
    """Instance norm whose gradient is that of the root of 0 where x is constant."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        root = (x - mean).square().mean(-1, keepdim=True).sqrt()
        return (x - mean) / root.clamp_min(1e-10)


def test_a_constant_whose_mean_is_exact_is_tried() -> None:
    report = check(RootedNorm(), (4, 6, 9), kind="instance")
    assert "a constant channel stays finite, output and gradient" in report.failed


def test_an_rms_norm_in_groups_may_say_group_norm() -> None:
    report = check(RMSGroupNorm(), (2, 5, 16))
    assert report.kind.startswith("RMS norm in 2 groups")
    assert report.failed == ()


def test_a_factor_that_is_the_root_of_the_unbiased_variance_is_told_so() -> None:
    report = check(SpaceNorm(), (4, 8, 6, 5))
    assert "the root of (n - 1) / n" in text(report)


class OfTheChannels(OneGainPerHead):
    """Unit length along the last axis, times the root of the channels."""

    def forward(self, x: Tensor) -> Tensor:
        z = F.normalize(wide(x), dim=-1) * len(self.scale) ** 0.5
        y: Tensor = z.to(x) * self.scale[:, None, None]
        return y


def test_a_factor_of_another_axis_is_seen_with_one_gain_for_each_head() -> None:
    assert "gain and bias act on the output as they are" not in (
        check(OneGainPerHead(), (2, 3, 5, 16)).failed
    )
    report = check(OfTheChannels(), (2, 3, 5, 16))
    assert "gain and bias act on the output as they are" in report.failed
    assert "times the root of 3, the length of axis 1" in text(report)


class PowerPerHead(OneGainPerHead):
    """The gain of each head is a power of e."""

    def forward(self, x: Tensor) -> Tensor:
        x_hat = wide(x) * (wide(x).square().mean(-1, True) + 1e-6).rsqrt()
        y: Tensor = x_hat.to(x) * self.scale.exp()[:, None, None]
        return y


def test_a_power_of_what_is_held_for_each_head_may_be_the_gain() -> None:
    report = check(PowerPerHead(), (2, 3, 5, 16))
    assert {*report.others} == {"gain per head", "one gain"}
    assert report.failed == ()
