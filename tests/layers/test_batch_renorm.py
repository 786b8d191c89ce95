"""Batch renormalization: by its definition, its limits, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from layer_pairs import EXACT, assert_equal, distance, draw, run
from torch import Tensor, nn

from normbook.gradient_check import survivors
from normbook.layers import small_batches as module
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.small_batches import BatchRenorm1d, BatchRenorm2d, BatchRenorm3d

LAYERS = {2: BatchRenorm1d, 3: BatchRenorm1d, 4: BatchRenorm2d, 5: BatchRenorm3d}
SHAPES = [(7, 3), (5, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)]
# What is clipped: nothing, everything, and some channels.
LIMITS = [(math.inf, math.inf), (1.001, 0.001), (1.5, 0.2)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_limit = pytest.mark.parametrize(("r_max", "d_max"), LIMITS)


def make(shape: tuple[int, ...], **options: Any) -> Any:
    """Make a layer with a random state; the deviation is less than that of draw."""
    options = {"dtype": torch.float64} | options
    layer: Any = LAYERS[len(shape)](shape[1], **options)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2, generator=generator)
        layer.running_var.mul_(torch.tensor([1.0, 4.0, 16.0])[: shape[1]])
    return layer


class Defined(nn.Module):
    """The definition, for autograd to differentiate: r and d are detached."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.r_max, self.d_max = layer.eps, layer.r_max, layer.d_max
        self.mu = layer.running_mean.clone()
        self.sigma = (layer.running_var + layer.eps).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        axes = [0, *range(2, x.ndim)]
        per_channel = (1, -1, *(1,) * (x.ndim - 2))
        var, mu_batch = torch.var_mean(x, axes, correction=0, keepdim=True)
        sigma_batch = (var + self.eps).sqrt()
        mu, sigma, gamma, beta = (
            value.view(per_channel)
            for value in (self.mu, self.sigma, self.weight, self.bias)
        )
        r = (sigma_batch / sigma).detach().clip(1 / self.r_max, self.r_max)
        d = ((mu_batch - mu) / sigma).detach().clip(-self.d_max, self.d_max)
        y: Tensor = gamma * ((x - mu_batch) / sigma_batch * r + d) + beta
        return y


def assert_defined(shape: tuple[int, ...], r_max: float, d_max: float) -> None:
    for sign in (1, -1):  # for d is clipped on both sides
        layer = make(shape, eps=0.1, r_max=r_max, d_max=d_max)
        x, dl_dy = sign * draw(*shape), draw(*shape, seed=1)
        expected = run(Defined(layer), x, dl_dy)
        found = run(layer, x, dl_dy)
        assert_equal({k: found[k] for k in expected}, expected)


def correction(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    statistics = layer.running_mean, layer.running_var
    return module._correction(x, *statistics, layer.eps, layer.r_max, layer.d_max)


@each_limit
@each_shape
def test_output_and_gradients_are_those_of_the_definition(
    shape: tuple[int, ...], r_max: float, d_max: float
) -> None:
    assert_defined(shape, r_max, d_max)


def test_the_limits_of_these_tests_clip_nothing_everything_and_some() -> None:
    x, counts = draw(7, 3), []
    for r_max, d_max in LIMITS:
        r, d = correction(make(x.shape, r_max=r_max, d_max=d_max), x)
        is_clipped = [(r == r_max) | (r == 1 / r_max), d.abs() == d_max]
        counts.append([int(value.sum()) for value in is_clipped])
    assert counts[0] == [0, 0]
    assert counts[1] == [3, 3]
    assert all(0 < count < 3 for count in counts[2])


@pytest.mark.parametrize("owner", [module._BatchRenorm, module], ids=["layer", "r, d"])
def test_every_mutant_is_caught(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_by_batch" if owner is module._BatchRenorm else "_correction"

    def check(function: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, function)
            for limits in LIMITS:
                assert_defined((7, 3), *limits)

    assert survivors(getattr(owner, name), check) == []


@each_shape
def test_with_r_1_and_d_0_it_is_batch_norm_bit_for_bit(shape: tuple[int, ...]) -> None:
    layer = make(shape, r_max=1.0, d_max=0.0)
    plain = type(layer).__mro__[2](3, dtype=torch.float64)
    assert plain.__class__.__name__.startswith("BatchNorm")
    plain.load_state_dict(layer.state_dict())
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    for is_training in (True, True, False):
        layer.train(is_training), plain.train(is_training)
        assert_equal(run(layer, x, dl_dy), run(plain, x, dl_dy), 0.0)


@each_shape
def test_unclipped_training_gives_the_output_of_evaluation_before_it(
    shape: tuple[int, ...],
) -> None:
    layer = make(shape, r_max=math.inf, d_max=math.inf)
    x = draw(*shape)
    expected = layer.eval()(x)
    assert distance(layer.train()(x), expected) < EXACT
    assert distance(layer(x), expected) > 0.01  # the statistics have moved


def test_even_unclipped_the_gradient_is_not_that_of_evaluation() -> None:
    layer = make((7, 3), r_max=math.inf, d_max=math.inf)
    x, dl_dy = draw(7, 3), draw(7, 3, seed=1)
    evaluated = run(layer.eval(), x, dl_dy)["dl_dx"]
    trained = run(layer.train(), x, dl_dy)["dl_dx"]
    assert trained.sum(0).abs().max() < EXACT
    assert evaluated.sum(0).abs().min() > 0.1


def test_the_statistics_are_updated_as_by_batch_norm() -> None:
    layer, plain = make((7, 3)), BatchNorm1d(3, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    for seed in range(3):
        layer(draw(7, 3, seed=seed)), plain(draw(7, 3, seed=seed))
    assert_equal(layer.state_dict(), plain.state_dict(), 0.0)


def test_evaluation_is_batch_norm_s() -> None:
    layer, plain = make((7, 3)), nn.BatchNorm1d(3, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    x, dl_dy = draw(7, 3), draw(7, 3, seed=1)
    assert_equal(run(layer.eval(), x, dl_dy), run(plain.eval(), x, dl_dy))


def test_limits_set_by_a_schedule_count_from_the_next_call() -> None:
    layer = make((7, 3), r_max=1.0, d_max=0.0, momentum=0.0)
    x = draw(7, 3)
    first = layer(x)
    layer.r_max, layer.d_max = 3.0, 5.0
    relaxed = make((7, 3), momentum=0.0)
    assert torch.equal(layer(x), relaxed(x))
    assert distance(layer(x), first) > 0.01


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
def test_derivatives_equal_differences_where_r_and_d_are_clipped(check: str) -> None:
    # Differences know nothing of constants, but clipped values do not move.
    layer = make((5, 2), r_max=1.01, d_max=0.01, momentum=0.0)
    x = draw(5, 2) * 9
    r, d = correction(layer, x)
    assert set(r.tolist()) <= {1.01, 1 / 1.01}
    assert set(d.abs().tolist()) == {0.01}
    leaves = [v.detach().clone() for v in (x, layer.weight, layer.bias)]

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        state = {"weight": weight, "bias": bias}
        y: Tensor = torch.func.functional_call(layer, state, x)
        return y

    assert getattr(torch.autograd, check)(f, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("options", [{"affine": False}, {"bias": False}])
def test_without_gain_or_bias_it_is_the_same_with_1_and_0(options: Any) -> None:
    x = draw(7, 3)
    plain = BatchRenorm1d(3, dtype=torch.float64, **options)
    assert torch.equal(plain(x), BatchRenorm1d(3, dtype=torch.float64)(x))


def test_checkpoints_go_both_ways() -> None:
    layer, plain = make((7, 3)), nn.BatchNorm1d(3, dtype=torch.float64)
    layer(draw(7, 3))
    plain.load_state_dict(layer.state_dict())
    again = make((7, 3))
    again.load_state_dict(plain.state_dict())
    assert_equal(again.state_dict(), layer.state_dict(), 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_mixed", [True, False])
def test_half_precision_is_rounded_once(dtype: torch.dtype, is_mixed: bool) -> None:
    x, state = draw(7, 3, dtype=dtype), torch.float32 if is_mixed else dtype
    layer, exact = make(x.shape).to(state), make(x.shape)
    exact.load_state_dict({k: v.to(v.dtype) for k, v in layer.state_dict().items()})
    y = layer(x)
    assert y.dtype == dtype
    assert distance(y, exact(x.double())) <= torch.finfo(dtype).eps
    assert layer.running_var.dtype == state


def test_recalibration_runs_them_as_batch_norm_and_gives_back_the_limits() -> None:
    def net(layer: Any) -> Any:
        return nn.Sequential(layer(3), nn.Tanh(), layer(3)).double()

    renorm, plain = net(BatchRenorm1d), net(BatchNorm1d)
    batches = [draw(7, 3), draw(7, 3, seed=1), draw(4, 3, seed=2)]
    for model in (renorm, plain):
        recalibrate(model, batches)
    assert_equal(renorm.state_dict(), plain.state_dict(), 0.0)
    assert [(m.r_max, m.d_max, m.momentum) for m in renorm[::2]] == [(3, 5, 0.1)] * 2


def test_it_says_what_it_is() -> None:
    assert repr(BatchRenorm2d(3)).endswith("r_max=3.0, d_max=5.0)")
    assert isinstance(BatchRenorm2d(3), BatchNorm2d)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"r_max": 0.5}, ValueError, "r_max must be at least 1, got 0.5"),
    ({"r_max": math.nan}, ValueError, "got nan"),
    ({"d_max": -1}, ValueError, "d_max must be at least 0, got -1"),
    ({"d_max": math.nan}, ValueError, "got nan"),
    ({"r_max": "3"}, TypeError, "r_max must be a number, got '3'"),
    ({"d_max": None}, TypeError, "d_max must be a number, got None"),
    ({"track_running_stats": False}, ValueError, "needs running statistics"),
]


@pytest.mark.parametrize(("options", "error", "match"), BAD)
def test_bad_settings_are_refused_also_when_set_later(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        BatchRenorm1d(3, **options)
    layer = make((7, 3))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    vars(layer).update(options)
    with pytest.raises(error, match=match):
        layer(draw(7, 3))
    assert_equal(layer.state_dict(), before, 0.0)
