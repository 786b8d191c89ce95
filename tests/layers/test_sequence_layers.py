"""Masked and per-step batch norm: batch norm of the live entries, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_derivatives import arguments, as_function
from layer_pairs import (
    EXACT,
    HALF,
    Wired,
    assert_checkpoints_go_both_ways,
    assert_equal,
    copy_of,
    distance,
    draw,
    each_copy,
    each_mode,
    run,
    stirred,
)
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d

SHAPES = [(4, 3, 5), (7, 3)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_check = pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])


def make(kind: Any = MaskedBatchNorm1d, **options: Any) -> Any:
    """Make a layer of 3 channels with a random state, the same for each kind."""
    return stirred(kind(3, **{"dtype": torch.float64} | options))


def problem(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return an input, padded at the ends of sequences and elsewhere, and its mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand((shape[0], *shape[2:]), generator=generator) < 0.6
    mask.view(-1)[:2] = True
    mask.view(-1)[2] = False
    return draw(*shape, seed=seed), mask


def packed(x: Tensor, mask: Tensor) -> Tensor:
    """Put the live entries together, one by one: (K, C)."""
    places = mask.nonzero().tolist()
    return torch.stack([x[n, :, *rest] for n, *rest in places])


# --- with a mask


@each_mode
@each_shape
def test_it_is_batch_norm_of_the_packed_values(
    shape: tuple[int, ...], is_training: bool
) -> None:
    (x, mask), dl_dy = problem(shape), draw(*shape, seed=1)
    found = run(make().train(is_training), x, dl_dy, mask)
    plain = make(BatchNorm1d).train(is_training)
    expected = run(plain, packed(x, mask), packed(dl_dy, mask))
    for key in ("y", "dl_dx"):  # padding becomes 0 and passes no gradient
        assert (packed(found[key], ~mask) == 0).all()
        found[key] = packed(found[key], mask)
    assert_equal(found, expected)


@each_check
@each_mode
def test_derivatives_equal_differences(check: str, is_training: bool) -> None:
    x, mask = problem((2, 3, 3))
    layer = make().train(is_training)
    f = as_function(layer, mask)
    assert getattr(torch.autograd, check)(f, arguments(layer, x))


@each_mode
def test_without_live_entries_the_output_is_0_and_the_statistics_stay(
    is_training: bool,
) -> None:
    layer, x = make().train(is_training), draw(4, 3, 5)
    before = copy_of(layer.state_dict())
    found = run(layer, x, torch.ones_like(x), torch.zeros(4, 5, dtype=torch.bool))
    assert not found["y"].any()
    assert not found["dl_dx"].any()
    before["num_batches_tracked"] += is_training
    assert_equal(layer.state_dict(), before, 0.0)


def test_checkpoints_go_both_ways() -> None:
    layer, plain = make(), nn.BatchNorm1d(3, dtype=torch.float64)
    layer(*problem((4, 3, 5)))
    assert_checkpoints_go_both_ways(layer, plain, make())


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_that_of_batch_norm(dtype: torch.dtype) -> None:
    x, mask = problem((4, 3, 5))
    x = x.to(dtype)
    y = make(dtype=torch.float32)(x, mask)
    expected = make(BatchNorm1d, dtype=torch.float32)(packed(x, mask))
    assert y.dtype == dtype
    assert torch.equal(packed(y, mask), expected)


# NaN stands for padding, so that the model has one input.
@pytest.mark.parametrize(
    "wiring",
    [
        lambda m, x: m.norm(x, ~x.isnan().any(1)),
        lambda m, x: m.norm(x, mask=~x.isnan().any(1)),
    ],
)
def test_recalibration_weighs_a_batch_by_its_live_entries(wiring: Any) -> None:
    model: Any = Wired(wiring, norm=make())
    batches, parts = [], []
    for seed, shape in enumerate([(4, 3, 5), (2, 3, 9)]):
        x, mask = problem(shape, seed)
        batches.append(x.masked_fill(~mask.unsqueeze(1), torch.nan))
        parts.append(packed(x, mask))
    batches.insert(0, torch.full((3, 3, 4), torch.nan, dtype=torch.float64))
    recalibrate(model, batches)
    sizes = torch.tensor([len(part) for part in parts]).double()
    var = sum(n * p.var(0) for n, p in zip(sizes, parts, strict=True)) / sizes.sum()
    assert distance(model.norm.running_mean, torch.cat(parts).mean(0)) < EXACT
    assert distance(model.norm.running_var, var) < EXACT
    assert model.norm.num_batches_tracked == 2


def test_a_single_live_entry_will_do_in_evaluation() -> None:
    x, mask = draw(4, 3, 5), torch.zeros(4, 5, dtype=torch.bool)
    mask[2, 1] = True
    y = make().eval()(x, mask)
    assert torch.equal(y[2, :, 1], make(BatchNorm1d).eval()(x)[2, :, 1])


# --- step by step

STEPS = 4
MASK = torch.tensor([True, True, False, True, False, True, True])
ALONE = torch.tensor([False, False, True, False, False, False, False])
NOBODY = torch.zeros(7, dtype=torch.bool)


def make_steps(**options: Any) -> Any:
    """Make a layer of 3 channels with a random state in every row."""
    return make(PerStepBatchNorm1d, max_steps=STEPS, **options)


def one_step(layer: Any, step: int, kind: Any) -> Any:
    """Make an ordinary layer with the state of one step."""
    other = make(kind, momentum=layer.momentum)
    state = {k: v[step] for k, v in layer.named_buffers()}
    other.load_state_dict(dict(layer.named_parameters()) | state)
    return other.train(layer.training)


def slopes(layer: Any, x: Tensor, *rest: Any) -> dict[str, Tensor]:
    found = run(layer, x, draw(7, 3, seed=1), *rest)
    return {k: found[k] for k in ("y", "dl_dx", "dl_dweight", "dl_dbias")}


@each_mode
@pytest.mark.parametrize("mask", [None, MASK, torch.arange(7) < 2])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_a_step_is_batch_norm_with_its_own_statistics(
    is_training: bool, mask: Tensor | None, momentum: float | None
) -> None:
    layer = make_steps(momentum=momentum)
    for step in (0, 1, 1, 2):  # so that the counts differ
        layer(draw(7, 3, seed=step), step)
    layer.train(is_training)
    kind, rest = (BatchNorm1d, ()) if mask is None else (MaskedBatchNorm1d, (mask,))
    for step in range(3):
        other, x = one_step(layer, step, kind), draw(7, 3, seed=9)
        before = copy_of(layer.state_dict())
        assert_equal(slopes(layer, x, step, mask), slopes(other, x, *rest), 0.0)
        row = {k: v[step] for k, v in layer.named_buffers()}
        assert_equal(row, dict(other.named_buffers()), 0.0)
        for key, value in layer.named_buffers():  # the other rows stay
            before[key][step] = value[step]
        assert_equal(layer.state_dict(), before, 0.0)


def test_gain_and_bias_are_shared_over_time() -> None:
    layer = make_steps()
    assert layer.weight.shape == layer.bias.shape == (3,)
    xs, dl_dy = [draw(7, 3, seed=k) for k in range(STEPS)], draw(7, 3, seed=1)
    parts = [slopes(make_steps(), x, k) for k, x in enumerate(xs)]
    losses = [(layer(x, k) * dl_dy).sum() for k, x in enumerate(xs)]
    torch.autograd.backward(losses)
    for name in ("weight", "bias"):
        total = torch.stack([part[f"dl_d{name}"] for part in parts]).sum(0)
        assert distance(getattr(layer, name).grad, total) < EXACT


def trained(*steps: int) -> Any:
    """Train some steps, each on values of another size, and evaluate then."""
    layer = make_steps(momentum=1.0)
    layer.reset_running_stats()
    for step in steps:
        layer(draw(7, 3, seed=step) * (step + 1), step)
    return layer.eval()


@pytest.mark.parametrize(
    ("steps", "asked", "used"),
    [
        ((0, 1, 2), 1, 1),
        ((0, 1, 2), 3, 2),
        ((0, 1, 2), STEPS, 2),
        ((0, 1, 2, 3), 50, 3),
        ((0, 1), 50, 1),
        ((0, 2), 1, 0),
        ((0, 2), 50, 2),
    ],
)
def test_a_step_never_trained_takes_the_statistics_of_the_last_one_before_it(
    steps: tuple[int, ...], asked: int, used: int
) -> None:
    layer, x = trained(*steps), draw(7, 3, seed=7)
    before = copy_of(layer.state_dict())
    expected = one_step(layer, used, BatchNorm1d)(x)
    assert torch.equal(layer(x, asked), expected)
    assert_equal(layer.state_dict(), before, 0.0)


@each_copy
def test_a_copy_knows_which_step_was_last_and_is_independent(copied: Any) -> None:
    layer = trained(0, 1)
    twin, x = copied(layer), draw(7, 3, seed=7)
    before = copy_of(layer.state_dict())
    assert torch.equal(twin(x, 50), layer(x, 50))
    assert twin.num_batches_tracked.tolist() == [1, 1, 0, 0]
    twin.train()(x, 1)
    assert_equal(layer.state_dict(), before, 0.0)
    assert not torch.equal(twin.running_mean, layer.running_mean)


@pytest.mark.parametrize("momentum", [0.3, 0.0, None])
def test_taking_in_moments_is_calling_the_layer_at_each_of_the_first_steps(
    momentum: float | None,
) -> None:
    xs = [draw(n, 3, seed=n) for n in (7, 7, 2)]
    ours, other = (make_steps(momentum=momentum) for _ in range(2))
    for step, x in [(0, draw(7, 3, seed=1)), *enumerate(xs)]:  # so that counts differ
        other(x, step)
    ours(draw(7, 3, seed=1), 0)
    mean = torch.stack([x.mean(0) for x in xs])
    var = torch.stack([x.var(0, correction=0) for x in xs])
    ours.take_in(mean, var, [len(x) for x in xs])
    assert_equal(ours.state_dict(), other.state_dict(), EXACT)


def test_moments_that_cannot_be_taken_in_change_nothing() -> None:
    layer, moments = make_steps(), torch.ones(2, 3, dtype=torch.float64)
    for counts, match in (([7, 1], "count must be"), ([7], "zip")):
        with pytest.raises(ValueError, match=match):
            layer.take_in(moments, moments, counts)
    assert_equal(layer.state_dict(), make_steps().state_dict(), 0.0)


@pytest.mark.parametrize("last", [1, 2])
def test_one_alive_is_normalized_as_in_evaluation_and_nothing_is_updated(
    last: int,
) -> None:
    layer = trained(*range(last + 1)).train()
    before, x = copy_of(layer.state_dict()), draw(7, 3, seed=7)
    found = slopes(layer, x, 2, ALONE)
    assert_equal(layer.state_dict(), before, 0.0)
    other = one_step(layer, last, MaskedBatchNorm1d).eval()
    assert_equal(found, slopes(other, x, ALONE), 0.0)
    assert layer.training
    assert distance(layer(x[ALONE], 2), found["y"][ALONE]) == 0


def test_evaluation_before_any_training_is_by_the_start() -> None:
    layer = PerStepBatchNorm1d(3, STEPS, eps=0.0, dtype=torch.float64).eval()
    for step in (0, 2, 50):
        assert torch.equal(layer(draw(7, 3), step), draw(7, 3))


def test_one_alive_before_any_training_is_refused() -> None:
    layer = make_steps()
    layer(draw(7, 3), 2)
    before = copy_of(layer.state_dict())
    for x, mask in ((draw(7, 3), ALONE), (draw(1, 3), None)):
        with pytest.raises(ValueError, match="more than 1 live example at step 1, got"):
            layer(x, 1, mask)
    assert_equal(layer.state_dict(), before, 0.0)


@each_mode
def test_with_nobody_alive_the_output_is_0_and_nothing_is_counted(
    is_training: bool,
) -> None:
    layer = make_steps().train(is_training)
    before = copy_of(layer.state_dict())
    assert torch.equal(layer(draw(7, 3), 1, NOBODY), torch.zeros(7, 3).double())
    assert layer(draw(0, 3), 1).shape == (0, 3)
    assert_equal(layer.state_dict(), before, 0.0)


@each_mode
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e300])
def test_what_stands_in_the_padding_does_not_matter(
    is_training: bool, junk: float
) -> None:
    many = make, *problem((4, 3, 5)), ()
    for make_one, x, mask, step in (many, (make_steps, draw(7, 3), MASK, (1,))):
        found, expected = (
            run(make_one().train(is_training), v, draw(*x.shape, seed=1), *step, mask)
            for v in (x.masked_fill(~mask.unsqueeze(1), junk), x)
        )
        assert_equal(found, expected, 0.0)
        for key in ("y", "dl_dx"):
            assert (packed(found[key], ~mask) == 0).all()


def test_without_running_statistics_both_modes_go_by_the_batch() -> None:
    layer, x = make_steps(track_running_stats=False), draw(7, 3)
    y = layer(x, 0, MASK)
    assert torch.equal(layer.eval()(x, 50, MASK), y)
    for alone, mask in ((x, ALONE), (x[ALONE], ALONE[ALONE])):
        with pytest.raises(ValueError, match="more than 1 live entry"):
            layer(alone, 0, mask)


@each_check
@each_mode
def test_derivatives_through_two_steps_equal_differences(
    check: str, is_training: bool
) -> None:
    def two_steps(model: Any, x: Tensor) -> Any:
        return model.norm(model.norm(x, 0, MASK).sin() + x, 1)

    layer = Wired(two_steps, norm=make_steps(momentum=0.0)).train(is_training)
    leaves = arguments(layer, draw(7, 3))
    assert getattr(torch.autograd, check)(as_function(layer), leaves)


def test_a_new_layer_has_torch_s_start_in_every_row() -> None:
    layer = make_steps(dtype=torch.float32)
    layer(draw(7, 3, dtype=torch.float32), 1)
    layer.reset_parameters()
    expected = nn.BatchNorm1d(3).state_dict()
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        expected[key] = expected[key].expand(STEPS, *expected[key].shape)
    assert_equal(layer.state_dict(), expected, 0.0)
    assert repr(layer).endswith("max_steps=4)")


def test_recalibrate_refuses_it_and_torch_s_update_bn_treats_it() -> None:
    def over_time(model: Any, x: Tensor) -> Any:
        return [model.norm(x[..., t], t) for t in range(x.shape[-1])]

    model: Any = Wired(over_time, norm=make_steps())
    batches = [draw(7, 3, 4), draw(7, 3, 2, seed=1)]
    before = copy_of(model.state_dict())
    with pytest.raises(TypeError, match="'norm', a PerStepBatchNorm1d; set its"):
        recalibrate(model, batches)
    assert_equal(model.state_dict(), before, 0.0)
    update_bn(batches, model)
    both = torch.stack([batches[0][..., :2], batches[1]]).mean((0, 1)).T
    expected = torch.cat([both, batches[0][..., 2:].mean(0).T])
    assert distance(model.norm.running_mean, expected) < EXACT
    assert model.norm.num_batches_tracked.tolist() == [2, 2, 1, 1]
