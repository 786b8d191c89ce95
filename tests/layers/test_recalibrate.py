"""Recomputing the running statistics of a model over given batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    PAIRS,
    Wired,
    assert_equal,
    assert_every_mutant_is_caught,
    copy_of,
    distance,
    draw,
    stirred,
    twins,
)
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from normbook.layers import recalibrate as module
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.layers.recalibrate import recalibrate

SIZES = (6, 6, 3)


def batches(sizes: tuple[int, ...] = SIZES, width: int = 4) -> list[Tensor]:
    return [draw(size, width, seed=k) for k, size in enumerate(sizes)]


def plain() -> Any:
    return BatchNorm1d(4, dtype=torch.float64)


def settings_of(model: nn.Module) -> list[tuple[bool, Any]]:
    return [(m.training, getattr(m, "momentum", 0)) for m in model.modules()]


def net(layer: type[nn.Module] = BatchNorm1d) -> Any:
    """Make a net with two batch norms and a dropout, after some training."""
    first, last = (stirred(nn.Linear(*size), -1, 1) for size in ((4, 5), (5, 2)))
    model = nn.Sequential(first, layer(5), nn.ReLU(), nn.Dropout(), last, layer(2))
    model = model.double()
    for x in batches():
        model(x)
    return model


def expected_statistics(model: Any) -> list[Tensor]:
    """Follow Ioffe and Szegedy's Algorithm 2, batch by batch, in plain steps."""
    count, sums = 0, [torch.zeros(())] * 4
    for x in batches():
        a = model[0](x)
        b = model[4](model[2](normalized(a, model[1])))
        found = [a.mean(0), a.var(0), b.mean(0), b.var(0)]
        count += len(x)
        sums = [old + len(x) * new for old, new in zip(sums, found, strict=True)]
    return [value / count for value in sums]


def normalized(x: Tensor, layer: Any) -> Tensor:
    x_hat = (x - x.mean(0)) / (x.var(0, correction=0) + layer.eps).sqrt()
    y: Tensor = layer.weight * x_hat + layer.bias
    return y


@pytest.mark.parametrize("layer", [BatchNorm1d, nn.BatchNorm1d])
def test_it_follows_algorithm_2_with_batches_weighted_by_their_size(
    layer: type[nn.Module],
) -> None:
    model = net(layer)
    recalibrate(model, batches())
    found = [
        model[k].state_dict()[f"running_{s}"] for k in (1, 5) for s in ("mean", "var")
    ]
    for a, b in zip(found, expected_statistics(model), strict=True):
        assert distance(a, b) < EXACT
    assert model[1].num_batches_tracked == 3


def test_with_equal_batches_it_equals_torch_s_update_bn() -> None:
    ours, theirs = net(), net()
    theirs[3].p = 0.0  # update_bn leaves dropout on
    recalibrate(ours, batches((5, 5)))
    update_bn(batches((5, 5)), theirs)
    assert_equal(ours.state_dict(), theirs.state_dict())


def test_modes_momenta_hooks_and_weights_are_left_as_they_were() -> None:
    model = net()
    model.eval()
    model[2].train()
    model[1].momentum = None
    before = settings_of(model)
    weights = copy_of(dict(model.named_parameters()))
    recalibrate(model, batches())
    assert settings_of(model) == before
    assert_equal(dict(model.named_parameters()), weights, 0.0)
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("wrap", [tuple, list])
def test_pairs_of_input_and_target_will_do(wrap: Any) -> None:
    model, other = net(), net()
    recalibrate(model, batches())
    recalibrate(other, (wrap((x, "target")) for x in batches()))
    assert_equal(model.state_dict(), other.state_dict(), 0.0)


def test_inputs_are_sent_to_the_device_asked_for() -> None:
    layer = BatchNorm1d(4, device="meta")
    with pytest.raises(RuntimeError, match="on one device, got cpu and meta"):
        recalibrate(layer, [torch.zeros(3, 4)])
    # On "meta" the layer runs, and has no values to look at.
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        recalibrate(layer, [torch.zeros(3, 4)], device="meta")


def test_statistics_in_half_precision_are_averaged_in_float32() -> None:
    layer = BatchNorm1d(4, dtype=torch.bfloat16)
    # Once at 258, an average in bfloat16 would stay there: the next value is 260,
    # and a fraction of the difference of 2 rounds back to 258.
    values = [256.0, *[260.0] * 99]
    recalibrate(layer, [torch.full((2, 4), v).bfloat16() for v in values])
    assert layer.state_dict()["running_mean"].tolist() == [260.0] * 4


def test_statistics_that_were_spoiled_by_a_nan_are_healed() -> None:
    model, spoiled = net(), net()
    spoiled(torch.full((3, 4), torch.nan, dtype=torch.float64))
    assert spoiled[1].running_var.isnan().all()
    for each in (model, spoiled):
        recalibrate(each, batches())
    assert_equal(spoiled.state_dict(), model.state_dict(), 0.0)


def test_a_layer_that_is_not_called_keeps_its_statistics() -> None:
    used, unused = plain(), twins(PAIRS[0])[0]
    before = copy_of(unused.state_dict())
    recalibrate(Wired(lambda m, x: m.used(x), used=used, unused=unused), batches())
    assert_equal(unused.state_dict(), before, 0.0)
    assert used.num_batches_tracked == 3


def test_a_layer_called_twice_in_a_model_averages_both_calls() -> None:
    model: Any = Wired(lambda m, x: m.norm(x) + m.norm(x + 10), norm=plain())
    (x,) = batches((6,))
    recalibrate(model, [x])
    assert distance(model.norm.running_mean, x.mean(0) + 5) < EXACT


def test_no_gradient_is_recorded_meanwhile() -> None:
    model, seen = net(), []
    model[0].register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    recalibrate(model, batches())
    assert seen == [False] * 3
    assert torch.is_grad_enabled()


def test_images_count_by_their_pixels() -> None:
    layer = BatchNorm2d(3, dtype=torch.float64)
    x = [draw(2, 3, 4, 5), draw(2, 3, 7, 5, seed=1)]
    recalibrate(layer, x)
    exact = torch.cat([v.transpose(0, 1).reshape(3, -1) for v in x], 1).mean(1)
    assert distance(layer.running_mean, exact) < EXACT  # type: ignore[arg-type]


def test_empty_batches_among_others_do_not_count() -> None:
    model, other = net(), net()
    recalibrate(model, batches())
    recalibrate(other, [torch.zeros(0, 4, dtype=torch.float64), *batches()])
    assert_equal(model.state_dict(), other.state_dict(), 0.0)


def interrupted() -> Iterator[Tensor]:
    yield batches()[0]
    raise KeyboardInterrupt("stop")


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ([], ValueError, "at least one batch.*got none"),
        ([torch.zeros(0, 4, dtype=torch.float64)], ValueError, "at least one batch"),
        ([{"x": torch.zeros(3, 4)}], TypeError, "begins with one, got dict"),
        ([()], TypeError, "begins with one, got tuple"),
        ([batches()[0], "text"], TypeError, "begins with one, got str"),
        ([batches()[0], draw(1, 4)], ValueError, "more than 1 value per channel"),
        ([draw(6, 4) * torch.nan], ValueError, "finite, got NaN or inf.*layer '1'"),
        ([draw(6, 4), draw(6, 9)], RuntimeError, "shapes cannot be multiplied"),
        (interrupted(), KeyboardInterrupt, "stop"),
    ],
)
def test_after_any_error_everything_is_as_before(
    given: Any, error: type[BaseException], match: str
) -> None:
    model = net()
    before, settings = copy_of(model.state_dict()), settings_of(model)
    with pytest.raises(error, match=match):
        recalibrate(model, given)
    assert_equal(model.state_dict(), before, 0.0)
    assert settings_of(model) == settings
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    "model", [nn.Linear(4, 2), BatchNorm1d(4, track_running_stats=False)], ids=repr
)
def test_a_model_without_running_statistics_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"got {type(model).__name__} with none"):
        recalibrate(model, [torch.zeros(3, 4)])


def test_every_change_to_the_averaging_is_noticed() -> None:
    def check() -> None:
        test_it_follows_algorithm_2_with_batches_weighted_by_their_size(BatchNorm1d)
        test_images_count_by_their_pixels()
        test_empty_batches_among_others_do_not_count()

    assert_every_mutant_is_caught(module._Tally, "take", check)


class FrozenNorm(BatchNorm1d):
    """Normalize by the running statistics in every mode."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.batch_norm(input, self.running_mean, self.running_var)


@pytest.mark.parametrize("is_by_call", [True, False])
def test_a_frozen_layer_keeps_its_statistics_and_normalizes_by_them(
    is_by_call: bool,
) -> None:
    frozen, free = twins(PAIRS[0], 4, affine=False)
    if not is_by_call:
        state, frozen = frozen.state_dict(), FrozenNorm(4, affine=False).double()
        frozen.load_state_dict(state)
    wiring: Any = lambda m, x: free((frozen.eval() if is_by_call else frozen)(x))  # noqa: E731
    before, (x,) = copy_of(frozen.state_dict()), batches((6,))
    h = copy.deepcopy(frozen).eval()(x)
    recalibrate(Wired(wiring, frozen=frozen, free=free), [x])
    assert_equal(frozen.state_dict(), before, 0.0)
    assert distance(free.running_mean, h.mean(0)) < EXACT
    assert distance(free.running_var, h.var(0)) < EXACT


def test_if_all_layers_are_frozen_it_says_so() -> None:
    with pytest.raises(ValueError, match="a frozen layer takes no statistics"):
        recalibrate(FrozenNorm(4).double(), batches())


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((None, []), "model must be a torch.nn.Module, got NoneType"),
        (([torch.zeros(3, 4)], BatchNorm1d(4)), r"got list; the order is recalibrate"),
        ((BatchNorm1d(4), None), "batches must be an iterable.*got NoneType"),
        ((BatchNorm1d(4), 3), "batches must be an iterable.*got int"),
    ],
)
def test_missing_and_swapped_arguments_are_refused(args: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        recalibrate(*args)
