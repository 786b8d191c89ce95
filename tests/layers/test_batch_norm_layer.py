"""Batch norm as a layer: generated batches, torch's tools."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_pairs import (
    EXACT,
    PAIRS,
    assert_alike,
    assert_equal,
    distance,
    draw,
    run,
    twins,
)
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_, vmap
from torch.optim.swa_utils import update_bn

from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d

few = settings(max_examples=20, deadline=None, derandomize=True)


@st.composite
def problems(draw_from: st.DrawFn, /) -> tuple[Any, Tensor, Tensor]:
    """Return both layers with a random state, an input and a gradient from above."""
    pair = draw_from(st.sampled_from(PAIRS))
    N, C = draw_from(st.integers(2, 6)), draw_from(st.integers(1, 4))
    rest = [draw_from(st.integers(1, 4)) for _ in pair.shape[2:]]
    shape, seed = (N, C, *rest), draw_from(st.integers(0, 2**20))
    layers = twins(pair._replace(shape=shape), eps=0.5)
    return layers, draw(*shape, seed=seed), draw(*shape, seed=seed + 1)


@few
@given(problems(), st.sampled_from([None, 0.1, 1.0]), st.integers(1, 4))
def test_any_training_and_then_evaluation_agree_with_torch(
    problem: tuple[Any, Tensor, Tensor], momentum: float | None, steps: int
) -> None:
    layers, x, dl_dy = problem
    for step in range(1 + steps):
        for layer in layers:
            layer.train(step < steps).momentum = momentum
        assert_alike(layers, (step + 1) * x, dl_dy)


@few
@given(problems(), st.booleans())
def test_a_channel_knows_nothing_of_the_others(
    problem: tuple[Any, Tensor, Tensor], is_training: bool
) -> None:
    (layer, _), x, dl_dy = problem
    layer.train(is_training).momentum = 1.0
    other = x.clone()
    other[:, 1:] = draw(*other[:, 1:].shape, seed=7) * 50
    before, after = run(layer, x, dl_dy), run(layer, other, dl_dy)
    for key in ("y", "dl_dx"):
        assert torch.equal(before[key][:, :1], after[key][:, :1])
    for key in ("dl_dweight", "running_mean", "running_var"):
        assert torch.equal(before[key][:1], after[key][:1])


def test_fractions_will_do() -> None:
    x = draw(4, 3, dtype=torch.float32)
    ours = BatchNorm1d(3, eps=Fraction(1, 4), momentum=Fraction(1, 2))  # type: ignore[arg-type]
    other = BatchNorm1d(3, eps=0.25, momentum=0.5)
    assert torch.equal(ours(x), other(x))
    assert_equal(ours.state_dict(), other.state_dict(), 0.0)


def test_update_bn_finds_the_layers() -> None:
    batches = [draw(7, 3, seed=k) for k in range(3)]
    ours, theirs = twins(PAIRS[0])
    for layer in (ours, theirs):
        update_bn(batches, layer)
    assert_equal(ours.state_dict(), theirs.state_dict())
    assert ours.num_batches_tracked == 3


def test_the_layers_turn_into_torch_s_synchronized_ones() -> None:
    model = nn.Sequential(twins(PAIRS[2])[0])
    state = copy.deepcopy(model.state_dict())
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    assert isinstance(model[0], nn.SyncBatchNorm)
    assert_equal(model.state_dict(), state, 0.0)


def test_the_layers_are_prepared_for_vmap_by_torch_func() -> None:
    layer = replace_all_batch_norm_modules_(BatchNorm2d(3, dtype=torch.float64))
    xs = draw(4, 2, 3, 4, 5)
    expected = torch.stack([layer(x) for x in xs])
    assert distance(vmap(layer)(xs), expected) < EXACT
