"""The books of SyncBatchNorm, and how models are converted; in a single process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from layer_pairs import assert_checkpoints_go_both_ways, assert_equal, draw, run
from sync_cases import CHANNELS, Case, counted, with_state
from torch import distributed, nn

from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normbook.layers.small_batches import UnbiasedBatchNorm1d
from normbook.layers.sync_batch_norm import SyncBatchNorm

SETTINGS: list[dict[str, Any]] = [
    {},
    {"affine": False},
    {"bias": False},
    {"track_running_stats": False},
    {"eps": 0.5, "momentum": None, "dtype": torch.bfloat16},
]
OURS: list[Any] = [BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm]
KINDS = [*OURS, *(getattr(nn, kind.__name__) for kind in OURS)]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    place = (tmp_path / "store").as_uri()
    distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_go_both_ways(kind: type[nn.Module]) -> None:
    ours, other = with_state(SyncBatchNorm, Case(())), kind(CHANNELS).double()
    assert_checkpoints_go_both_ways(ours, other, SyncBatchNorm(CHANNELS).double())


@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 6, 5), (2, 6, 5, 3)])
def test_without_other_processes_it_is_the_local_layer(shape: tuple[int, ...]) -> None:
    kind = {1: BatchNorm1d, 2: BatchNorm1d, 3: BatchNorm2d, 4: BatchNorm3d}[len(shape)]
    x, dl_dy = (draw(shape[0], CHANNELS, *shape[1:], seed=seed) for seed in (0, 1))
    ours, local = (with_state(layer, Case(())) for layer in (SyncBatchNorm, kind))
    assert_equal(run(ours, x, dl_dy), run(local, x, dl_dy), 0.0)
    assert_equal(run(ours.eval(), x, dl_dy), run(local.eval(), x, dl_dy), 0.0)


@pytest.mark.usefixtures("alone")
def test_in_a_group_of_one_it_is_the_local_layer_and_sends_nothing() -> None:
    x, dl_dy = draw(5, CHANNELS), draw(5, CHANNELS, seed=1)
    ours, local = (with_state(kind, Case(())) for kind in (SyncBatchNorm, BatchNorm1d))
    with counted() as calls:
        assert_equal(run(ours, x, dl_dy), run(local, x, dl_dy), 0.0)
    assert calls == []


def test_gradcheck_passes() -> None:
    layer = with_state(SyncBatchNorm, Case(()))
    assert torch.autograd.gradcheck(layer, draw(5, CHANNELS).requires_grad_())


def parts(layer: nn.Module) -> list[Any]:
    names = "weight bias running_mean running_var num_batches_tracked num_features eps"
    names += " momentum affine track_running_stats training"
    return [getattr(layer, name) for name in names.split()]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_layer_has_the_very_parts_of_the_old_one(
    kind: type[nn.Module], options: dict[str, Any]
) -> None:
    old = kind(CHANNELS, **options).eval()
    new = SyncBatchNorm.convert_sync_batchnorm(old)
    assert type(new) is SyncBatchNorm
    assert new is not old
    for mine, its in zip(parts(new), parts(old), strict=True):
        assert mine is its or mine == its
    assert list(new.state_dict()) == list(old.state_dict())


def test_layers_anywhere_in_a_model_are_converted_and_others_stay() -> None:
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model = nn.ModuleDict({"a": inner, "b": BatchNorm2d(3), "c": nn.LayerNorm(4)})
    linear, norm = inner[0], model["c"]
    assert SyncBatchNorm.convert_sync_batchnorm(model) is model
    assert (inner[0], model["c"]) == (linear, norm)
    assert [type(layer) for layer in (inner[1], model["b"])] == [SyncBatchNorm] * 2


def test_a_layer_in_two_places_stays_one_layer() -> None:
    norm = BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Tanh(), norm)
    SyncBatchNorm.convert_sync_batchnorm(model)
    assert type(model[0]) is SyncBatchNorm
    assert model[2] is model[0]


def test_the_process_group_goes_to_all_layers() -> None:
    model = nn.Sequential(BatchNorm1d(4), nn.BatchNorm2d(3))
    group: Any = mock.sentinel.group
    SyncBatchNorm.convert_sync_batchnorm(model, group)
    assert [layer.process_group for layer in model] == [group, group]


def test_a_layer_of_another_rule_is_not_converted() -> None:
    class Halved(BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) / 2

    for layer in (UnbiasedBatchNorm1d(4), Halved(4), nn.InstanceNorm1d(4, affine=True)):
        assert SyncBatchNorm.convert_sync_batchnorm(layer) is layer


def test_a_layer_of_one_s_own_with_the_usual_rule_is_converted() -> None:
    class Named(BatchNorm1d):
        name = "mine"

    assert type(SyncBatchNorm.convert_sync_batchnorm(Named(4))) is SyncBatchNorm
