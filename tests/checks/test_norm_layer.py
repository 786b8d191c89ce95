"""check_norm_layer: right layers pass, variants say how they differ, bad input."""

from __future__ import annotations

import threading
from typing import Any

import planted_bugs as bugs
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from normbook.checks import check_norm_layer
from normbook.layers import (
    batch_norm,
    group_norm,
    layer_norm,
    lp_norm,
    sequences,
    small_batches,
    sync_batch_norm,
)

OUTPUT = "the output is x normalized over the right axes"
BIASED = "the variance divides by n, not by n - 1"
EPS = "eps is added to the variance, inside the root"


def made(places: tuple[Any, Any, Any]) -> list[nn.Module]:
    """Make layers of every kind, of torch.nn or of this package."""
    batch, layer, group = places
    return [
        batch.BatchNorm1d(3),
        batch.BatchNorm1d(1),
        batch.BatchNorm1d(3, affine=False),
        batch.BatchNorm1d(3, bias=False),
        batch.BatchNorm1d(3, momentum=None),
        batch.BatchNorm1d(3, momentum=1.0),
        batch.BatchNorm1d(3, momentum=0.0),
        batch.BatchNorm1d(3, track_running_stats=False),
        batch.BatchNorm1d(3, eps=0.1),
        batch.BatchNorm1d(3, eps=1e-9, dtype=torch.float64),
        batch.BatchNorm2d(3),
        batch.BatchNorm2d(3, affine=False, momentum=0.7),
        batch.BatchNorm3d(2),
        layer.LayerNorm(8),
        layer.LayerNorm((3, 4)),
        layer.LayerNorm((3, 4, 5)),
        layer.LayerNorm(8, elementwise_affine=False),
        layer.LayerNorm(8, bias=False),
        layer.LayerNorm(8, eps=1e-2),
        group.GroupNorm(1, 6),
        group.GroupNorm(2, 6),
        group.GroupNorm(6, 6),
        group.GroupNorm(2, 6, affine=False),
        group.InstanceNorm1d(3),
        group.InstanceNorm1d(3, affine=True, track_running_stats=True),
        group.InstanceNorm2d(3, affine=True),
        group.InstanceNorm2d(3, track_running_stats=True, momentum=0.3),
        group.InstanceNorm3d(2),
        layer.RMSNorm(8),
        layer.RMSNorm((3, 4), eps=1e-5),
        layer.RMSNorm(8, elementwise_affine=False),
    ]


PLACES = [(nn, nn, nn), (batch_norm, layer_norm, group_norm)]


@pytest.mark.parametrize("layer", [x for of in PLACES for x in made(of)], ids=str)
def test_layers_of_torch_and_of_this_package_pass(layer: nn.Module) -> None:
    assert check_norm_layer(layer, quiet=True).failed == ()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_layer_passes_where_gradients_are_off(context: Any) -> None:
    with context():
        assert check_norm_layer(nn.BatchNorm1d(3), quiet=True).passed
        frozen = nn.BatchNorm1d(3).eval().requires_grad_(False)
        assert check_norm_layer(frozen, quiet=True).passed


class ChannelsFirst(nn.Module):
    """Layer norm over axis 1 at each position of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype.itemsize == 2:
            return self.forward(x.float()).to(x.dtype)
        mean = x.mean(1, keepdim=True)
        var = ((x - mean) ** 2).mean(1, keepdim=True)
        return self.weight * (x - mean) / (var + 1e-6).sqrt() + self.bias


class SaysItsShape(ChannelsFirst):
    """The same, with the attribute that layer norm of the last axis has in torch."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.normalized_shape = (channels,)


class TransposedInside(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.transpose(1, 2))
        return y.transpose(1, 2)


class Instance(nn.Module):
    """Instance norm under a name that does not say so."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.instance_norm(x)
        return y * self.scale.reshape(1, -1, 1, 1)


Instance.__name__ = "Statistics"


@pytest.mark.parametrize(
    ("layer", "shape", "kind"),
    [
        (ChannelsFirst(6), (2, 6, 3, 4), "layer norm of (N, 6, 3, 4)"),
        (Instance(4), (2, 4, 5, 6), "instance norm of (N, 4, 5, 6)"),
        (nn.LSTM(3, 4), None, "LSTM"),
    ],
    ids=["by channels", "by the shape of the gain", "recurrent"],
)
def test_the_kind_is_told(layer: nn.Module, shape: Any, kind: str) -> None:
    report = check_norm_layer(layer, shape, quiet=True)
    assert report.kind == kind
    assert kind == "LSTM" or report.failed == ()


class SingleInside(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.group_norm(x.float(), self.num_groups, eps=self.eps)
        return y.to(x.dtype)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.BatchNorm1d])
def test_a_layer_that_is_silent_in_evaluation_is_found(kind: Any) -> None:
    class Silent(kind):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) * self.training

    report = check_norm_layer(Silent(8), quiet=True)
    assert any("evaluation" in name for name in report.failed), report


def test_hooks_are_not_run() -> None:
    layer = nn.BatchNorm1d(3)
    seen: list[Any] = []
    layer.register_forward_hook(lambda *of: seen.append(of))
    layer.register_forward_pre_hook(lambda *of: seen.append(of))
    layer.register_full_backward_hook(lambda *of: seen.append(of))
    assert check_norm_layer(layer, quiet=True).passed
    assert seen == []
    assert len(layer._forward_hooks) == 1


class FixedGain(nn.LayerNorm):
    def __init__(self, features: int) -> None:
        super().__init__(features, elementwise_affine=False)
        self.gain = nn.Buffer(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * super().forward(x)


class OneParameter(nn.Module):
    """Batch norm whose gain and bias lie in a parameter with a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.tensor([[2.0, 0.5, -1.0], [0.1, -3.0, 1.0]]))
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y * self.both[0] + self.both[1]


COMPILED: Any = torch.compile(nn.LayerNorm(8), backend="eager")
NARROW = SingleInside(2, 4, eps=1e-12, affine=False)  # the gradient is nearly 0
RIGHT: list[tuple[str, nn.Module, dict[str, Any]]] = [
    ("synchronized, of torch, one process", nn.SyncBatchNorm(3), {}),
    ("synchronized, our own, one process", sync_batch_norm.SyncBatchNorm(3), {}),
    ("no positions", nn.BatchNorm1d(3), {"shape": (4, 3)}),
    ("positions", nn.BatchNorm1d(3), {"shape": (4, 3, 5)}),
    ("one example", nn.BatchNorm1d(3), {"shape": (1, 3, 64)}),
    ("wrapped", nn.Sequential(nn.BatchNorm1d(3)), {}),
    ("float16", nn.BatchNorm1d(3, dtype=torch.float16), {}),
    ("bfloat16", nn.BatchNorm1d(3, dtype=torch.bfloat16), {}),
    ("float64", nn.BatchNorm1d(3, dtype=torch.float64), {}),
    ("images", SaysItsShape(6), {"kind": "layer"}),
    ("images of a shape", SaysItsShape(6), {"kind": "layer", "shape": (2, 6, 3, 4)}),
    ("cubic images", SaysItsShape(6), {"kind": "layer", "shape": (2, 6, 6, 6)}),
    ("as many channels as examples", SaysItsShape(16), {"kind": "layer"}),
    ("transposed", TransposedInside(nn.LayerNorm(5)), {}),
    ("as many channels as positions", TransposedInside(nn.LayerNorm(6)), {}),
    # Of two values the gradient is rounding.
    ("two values", nn.GroupNorm(2, 4), {"shape": (16, 4)}),
    ("two values, one position", nn.GroupNorm(2, 4), {"shape": (2, 4, 1)}),
    ("two values, images", nn.GroupNorm(2, 4), {"shape": (2, 4, 1, 1)}),
    ("two values, float32 inside", NARROW, {"shape": (16, 4)}),
    *(
        (f"{n} wrapped groups", nn.Sequential(nn.GroupNorm(n, 2 * n)), {})
        for n in (1, 2, 4, 5, 8)
    ),
    ("compiled", COMPILED, {}),
    ("fixed gain in a buffer", FixedGain(8), {}),
    ("gain and bias under another name", OneParameter(), {"shape": (4, 3)}),
]


@pytest.mark.parametrize(
    ("layer", "arguments"), [row[1:] for row in RIGHT], ids=[row[0] for row in RIGHT]
)
def test_a_right_layer_passes(layer: nn.Module, arguments: dict[str, Any]) -> None:
    assert check_norm_layer(layer, quiet=True, **arguments).failed == ()


class ShiftedBatchNorm(OneParameter):
    def forward(self, x: Tensor) -> Tensor:
        y = (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()  # unbiased
        return super().forward(x) if not self.training else y * self.both[0]


def test_a_bug_is_found_where_the_gain_has_another_name() -> None:
    report = check_norm_layer(ShiftedBatchNorm(), (4, 3), kind="batch", quiet=True)
    assert BIASED in report.failed


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (small_batches.UnbiasedBatchNorm1d(3), "the unbiased variance normalizes"),
        (small_batches.GhostBatchNorm1d(3, 4), "up to rounding: parts of 4"),
        (small_batches.GhostBatchNorm2d(3, 2), "up to rounding: parts of 2"),
        (small_batches.BatchRenorm1d(3), "the running statistics take part"),
        (lp_norm.LpNorm1d(3, 2), "the rest divided by the root mean square of x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_deliberate_variant_says_how_it_differs(
    layer: nn.Module, reason: str
) -> None:
    kind = "batch" if isinstance(layer, lp_norm.LpNorm1d) else None
    report = check_norm_layer(layer, kind=kind, quiet=True)
    assert reason in str(report).replace("\n       ", " ")


class Silent(nn.Module):
    """Layer norm with a gain of 0 under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.strength * nn.functional.layer_norm(x, (8,))


class Constant(nn.LayerNorm):
    """The output is the bias, whatever the gain is."""

    def __init__(self) -> None:
        super().__init__(8)

    def forward(self, x: Tensor) -> Tensor:
        return 0 * x + self.bias


def test_a_gain_of_0_without_a_known_name_is_moved_and_noted() -> None:
    report = check_norm_layer(Silent(), kind="layer", quiet=True)
    assert (report.passed, report.others) == (True, {})


def poisoned() -> nn.Module:
    layer = nn.BatchNorm1d(3)
    layer.running_mean = torch.full((3,), torch.nan)
    return layer


class Flattened(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten()


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (sequences.PerStepBatchNorm1d(3, 2), {}, "missing 1 required positional arg"),
        (nn.Sequential(nn.LayerNorm(8), nn.Dropout(0.5)), {}, "is random; take dropo"),
        (nn.Linear(3, 3), {}, "got a Linear, which multiplies it by weights"),
        (nn.Sequential(nn.Linear(3, 3)), {}, "must normalize in training, got a Sequ"),
        (
            nn.Sequential(nn.Linear(3, 3)),
            {"kind": "batch"},
            "must normalize in training",
        ),
        (nn.LayerNorm(1), {}, "a mean must be over two values or more"),
        (
            nn.Sequential(nn.Linear(3, 4)),
            {},
            "to one of the same shape, got from Sequential",
        ),
        (nn.Identity(), {"shape": (4, 3)}, "must normalize"),
        (nn.Softmax(-1), {"shape": (4, 3)}, "the kind of norm must be kno"),
        (Flattened(), {"shape": (4, 3)}, r"the output is \(48,\)"),
        (poisoned(), {}, "must be finite, got NaN or infinity in running_m"),
        (Constant(), {"shape": (4, 8)}, "must depend on the input"),
        (nn.BatchNorm1d(5, eps=0.0), {}, "eps.*or mend what it says"),
        (nn.LazyBatchNorm1d(), {}, "waits for its first input"),
        (nn.BatchNorm1d(3), {"shape": (4, 5)}, "pass the shape of an input"),
        (nn.BatchNorm1d(3), {"shape": 4}, "positive whole numbers, got 4"),
        (nn.BatchNorm1d(3), {"shape": (4, 0)}, "positive whole numbers"),
        (nn.BatchNorm1d(3), {"kind": "bn"}, "kind must be one of batch,"),
        (nn.BatchNorm1d(3), {"eps": -1.0}, "eps must be a finite number"),
        (nn.BatchNorm1d(3), {"eps": "1"}, "eps must be a finite number"),
        (nn.BatchNorm1d(3, device="meta"), {}, "on the CPU.*on meta; pass"),
        (nn.BatchNorm1d(3), {"kind": "instance", "shape": (4, 3)}, "must have an axis"),
    ],
)
def test_bad_input_is_refused_with_rule_and_cure(
    layer: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_norm_layer(layer, **arguments)


@pytest.mark.parametrize("seed", [0, 20, 26, 28])
def test_dropout_is_no_activation_even_where_two_draws_are_alike(seed: int) -> None:
    torch.manual_seed(seed)  # with these the first four of eight masks are
    with pytest.raises(ValueError, match="is random; take dropout"):
        check_norm_layer(nn.Sequential(nn.LayerNorm(8), nn.Dropout(0.5)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "must be a torch.nn.Module, got None; pass a layer"),
        (lambda: nn.BatchNorm1d, "call the class first"),
        (
            lambda: torch.jit.script(nn.BatchNorm1d(3)),
            "must be Python code.*before it was scr",
        ),
    ],
    ids=["None", "class", "script"],
)
def test_what_is_no_layer_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_norm_layer(make())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.LSTM(3, 4)], ids=str)
def test_a_layer_that_cannot_be_copied_is_refused_with_the_reason(layer: Any) -> None:
    layer.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"must allow a copy.*thread\.lock"):
        check_norm_layer(layer)


def test_channels_on_the_last_axis_are_named() -> None:
    layer = TransposedInside(nn.BatchNorm1d(8))
    report = check_norm_layer(layer, (4, 5, 8), kind="batch", quiet=True)
    assert (
        "the statistics run over axes 0 and 1, expected axes 0 and 2"
        in report.findings[0].reason
    )


@pytest.mark.parametrize(
    ("layer", "arguments", "failed"),
    [
        (nn.BatchNorm1d(3), {"eps": 1e-4}, EPS),
        (nn.GroupNorm(1, 6), {"kind": "instance"}, OUTPUT),
        (small_batches.UnbiasedBatchNorm1d(3), {}, BIASED),
    ],
    ids=["eps", "kind", "unbiased"],
)
def test_what_is_demanded_alone_is_missed(
    layer: nn.Module, arguments: dict[str, Any], failed: str
) -> None:
    assert check_norm_layer(layer, quiet=True, **arguments).failed == (failed,)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_layer_is_never_changed(is_training: bool) -> None:
    layer = bugs.BatchEvaluationUpdates(3).train(is_training)
    before = [value.clone() for value in layer.state_dict().values()]
    check_norm_layer(layer, quiet=True)
    assert all(map(torch.equal, before, layer.state_dict().values()))
    assert layer.training == is_training
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_the_global_random_numbers_are_not_touched() -> None:
    before = torch.get_rng_state()
    check_norm_layer(bugs.BatchRandom(3), quiet=True)
    assert torch.equal(before, torch.get_rng_state())


def test_a_layer_that_deepcopy_refuses_is_checked_and_that_is_a_finding() -> None:
    layer = nn.BatchNorm1d(3)
    layer.running_mean = 3 * layer.weight
    report = check_norm_layer(layer, quiet=True)
    assert report.failed == (
        "deepcopy and pickle work after training, and copy the statistics",
    )
    assert layer.running_mean.grad_fn is not None


def test_a_trained_layer_passes() -> None:
    layer = nn.BatchNorm1d(3, momentum=None)
    for _ in range(3):
        layer(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    assert check_norm_layer(layer, quiet=True).passed


def test_the_report_is_printed_unless_quiet(capsys: Any) -> None:
    report = check_norm_layer(bugs.BatchScalarGain(3))
    assert capsys.readouterr().out == f"{report}\n"
    check_norm_layer(nn.BatchNorm1d(3), quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm2d(64), (8, 64, 56, 56)),
        (nn.LayerNorm(768), (8, 512, 768)),
        (bugs.HandBatchNorm(256), (32, 256)),
        (bugs.BatchUnbiasedForward(64), (8, 64, 14, 14)),
        (nn.LayerNorm((64, 56, 56)), None),
        (nn.BatchNorm2d(10_000), None),
    ],
    ids=str,
)
def test_a_large_layer_is_not_run_on_more_values_than_take_seconds(
    layer: nn.Module, shape: tuple[int, ...] | None
) -> None:
    computed: list[int] = []
    handle = register_module_forward_hook(lambda _, x, y: computed.append(y.numel()))
    with handle:
        check_norm_layer(layer, shape, quiet=True)
    assert 0 < sum(computed) < 1e8
