"""Batch norm by the unbiased variance: its definition, and all else as batch norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_pairs import EXACT, assert_equal, distance, draw, run
from torch import Tensor, nn

from normbook.gradient_check import survivors
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.small_batches import UnbiasedBatchNorm1d

SHAPES = [(7, 3), (2, 3), (5, 3, 4)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def make(kind: Any = UnbiasedBatchNorm1d, **options: Any) -> Any:
    """Make a layer of 3 channels with a random state, the same for each kind."""
    layer = kind(3, **{"dtype": torch.float64} | options)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2, generator=generator)
    return layer


class Defined(nn.Module):
    """The definition, for autograd to differentiate."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        axes = [0, *range(2, x.ndim)]
        per_channel = (1, -1, *(1,) * (x.ndim - 2))
        var, mu = torch.var_mean(x, axes, correction=1, keepdim=True)
        x_hat = (x - mu) / (var + self.eps).sqrt()
        gamma, beta = (v.view(per_channel) for v in (self.weight, self.bias))
        y: Tensor = gamma * x_hat + beta
        return y


def assert_defined(shape: tuple[int, ...], eps: float) -> None:
    layer = make(eps=eps)
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    found, expected = run(layer, x, dl_dy), run(Defined(layer), x, dl_dy)
    assert_equal({k: found[k] for k in expected}, expected)


@pytest.mark.parametrize("eps", [0.1, 2.0])  # at N = 2 the slope is eps's alone
@each_shape
def test_output_and_gradients_are_those_of_the_definition(
    shape: tuple[int, ...], eps: float
) -> None:
    assert_defined(shape, eps)


def test_every_mutant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(function: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(UnbiasedBatchNorm1d, "_by_batch", function)
            for shape in SHAPES:
                assert_defined(shape, 2.0)

    assert survivors(UnbiasedBatchNorm1d._by_batch, check) == []


@pytest.mark.parametrize(("count", "expected"), [(2, 0.5), (4, 0.75), (128, 127 / 128)])
def test_the_mean_square_of_the_output_is_that_of_the_biased_share(
    count: int, expected: float
) -> None:
    y = UnbiasedBatchNorm1d(3, eps=1e-12, dtype=torch.float64)(draw(count, 3))
    assert distance((y**2).mean(0), torch.full((3,), expected)) < 1e-9


@each_shape
def test_statistics_and_evaluation_are_batch_norm_s(shape: tuple[int, ...]) -> None:
    unbiased, plain = make(), make(BatchNorm1d)
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    unbiased(x), plain(x)
    assert_equal(unbiased.state_dict(), plain.state_dict(), 0.0)
    assert_equal(run(unbiased.eval(), x, dl_dy), run(plain.eval(), x, dl_dy), 0.0)


def test_with_momentum_1_training_and_evaluation_agree_on_the_batch() -> None:
    layer, x = make(momentum=1.0), draw(4, 3)
    y = layer(x)
    assert distance(layer.eval()(x), y) < EXACT
    plain = make(BatchNorm1d, momentum=1.0, affine=False)
    y = plain(x)
    assert distance(plain.eval()(x), (3 / 4) ** 0.5 * y) < 1e-4  # up to eps


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
def test_derivatives_equal_differences(check: str) -> None:
    layer = make()
    leaves = [v.detach().clone() for v in (draw(4, 3), layer.weight, layer.bias)]

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        state = {"weight": weight, "bias": bias}
        y: Tensor = torch.func.functional_call(layer, state, x)
        return y

    assert getattr(torch.autograd, check)(f, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("options", [{"affine": False}, {"bias": False}])
def test_without_gain_or_bias_it_is_the_same_with_1_and_0(options: Any) -> None:
    plain = UnbiasedBatchNorm1d(3, dtype=torch.float64, **options)
    whole = UnbiasedBatchNorm1d(3, dtype=torch.float64)
    assert torch.equal(plain(draw(7, 3)), whole(draw(7, 3)))


def test_checkpoints_go_both_ways() -> None:
    layer, plain = make(), nn.BatchNorm1d(3, dtype=torch.float64)
    layer(draw(7, 3))
    plain.load_state_dict(layer.state_dict())
    again = make()
    again.load_state_dict(plain.state_dict())
    assert_equal(again.state_dict(), layer.state_dict(), 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_mixed", [True, False])
def test_half_precision_keeps_its_dtype(dtype: torch.dtype, is_mixed: bool) -> None:
    x, state = draw(7, 3, dtype=dtype), torch.float32 if is_mixed else dtype
    layer, exact = make().to(state), make()
    exact.load_state_dict({k: v.to(v.dtype) for k, v in layer.state_dict().items()})
    y = layer(x)
    assert y.dtype == dtype
    # The gain is rounded once more, where it is of half precision itself.
    assert distance(y, exact(x.double())) <= 2 * torch.finfo(dtype).eps
    assert layer.running_var.dtype == state


def test_recalibration_gives_batch_norm_s_statistics() -> None:
    unbiased, plain = make(), make(BatchNorm1d)
    for layer in (unbiased, plain):
        recalibrate(layer, [draw(7, 3), draw(4, 3, seed=1)])
    assert_equal(unbiased.state_dict(), plain.state_dict(), 0.0)


def test_a_single_value_is_refused_and_nothing_is_updated() -> None:
    layer = make()
    with pytest.raises(ValueError, match="UnbiasedBatchNorm1d needs more than 1 value"):
        layer(draw(1, 3))
    assert_equal(layer.state_dict(), make().state_dict(), 0.0)
