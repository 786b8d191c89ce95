"""The books that the layers keep: parameters, buffers, checkpoints, torch's tools."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    PAIRS,
    Pair,
    assert_equal,
    distance,
    draw,
    name,
    run,
    twins,
)
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from normbook.layers import batch_norm as module
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d

each_pair = pytest.mark.parametrize("pair", PAIRS[1:], ids=name)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"affine": False},
    {"bias": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
    {"eps": 0.5, "momentum": None},
    {"dtype": torch.bfloat16},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@each_pair
def test_a_new_layer_has_torch_s_state_and_looks_like_it(
    pair: Pair, options: dict[str, Any]
) -> None:
    ours, theirs = pair.ours(4, **options), pair.theirs(4, **options)
    assert repr(ours) == repr(theirs)
    mine, its = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(its)
    assert mine._metadata == its._metadata  # type: ignore[attr-defined]
    assert_equal(mine, its, 0.0)
    assert [k for k, _ in ours.named_parameters()] == [
        k for k, _ in theirs.named_parameters()
    ]


def test_the_constructor_takes_torch_s_arguments_in_torch_s_order() -> None:
    args = (4, 0.5, 0.25, True, True, "meta", torch.float64)
    for pair in PAIRS:
        ours, theirs = pair.ours(*args, bias=False), pair.theirs(*args, bias=False)
        assert repr(ours) == repr(theirs)
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert (a.device, a.dtype) == (b.device, b.dtype)


@each_pair
def test_checkpoints_go_both_ways_and_training_goes_on_alike(pair: Pair) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    first, other = twins(pair)
    first(x)
    into_torch, into_ours = pair.theirs(3, dtype=x.dtype), pair.ours(3, dtype=x.dtype)
    into_torch.load_state_dict(first.state_dict())
    into_ours.load_state_dict(into_torch.state_dict())
    other(x)
    for layer in (into_torch, into_ours):
        assert_equal(run(layer, x, dl_dy), run(copy.deepcopy(other), x, dl_dy))


def through_pickle(layer: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(layer))  # noqa: S301 - our own bytes
    return copied


def through_a_file(layer: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    copied = type(layer)(3, dtype=torch.float64)
    copied.load_state_dict(torch.load(file, weights_only=True))
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_a_file])
@each_pair
def test_a_copy_computes_the_same_and_is_independent(pair: Pair, copied: Any) -> None:
    layer = twins(pair)[0]
    layer(draw(*pair.shape)).sum().backward()
    twin = copied(layer)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    assert_equal(twin.state_dict(), before, 0.0)
    run(twin, draw(*pair.shape, seed=2), draw(*pair.shape))
    assert_equal(layer.state_dict(), before, 0.0)
    assert not torch.equal(twin.running_mean, before["running_mean"])


def test_a_checkpoint_from_before_num_batches_tracked_loads() -> None:
    ours, theirs = twins(PAIRS[0])
    old = {k: v + 1 for k, v in theirs.state_dict().items()}  # has no version
    del old["num_batches_tracked"]
    for layer in (ours, theirs):
        layer.num_batches_tracked.fill_(7)
        layer.load_state_dict(old)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 7
    assert_equal(ours.state_dict(), theirs.state_dict(), 0.0)
    assert "num_batches_tracked" not in old


def test_a_layer_without_statistics_takes_an_old_checkpoint_without_them() -> None:
    layer = BatchNorm1d(3, track_running_stats=False)
    layer.load_state_dict({"weight": torch.ones(3), "bias": torch.zeros(3)})


def test_a_new_checkpoint_must_have_num_batches_tracked() -> None:
    state = BatchNorm1d(3).state_dict()
    del state["num_batches_tracked"]
    with pytest.raises(RuntimeError, match=r"Missing key.*num_batches_tracked"):
        BatchNorm1d(3).load_state_dict(state)


def test_loading_into_a_layer_on_meta_counts_from_zero() -> None:
    layer = BatchNorm1d(3, device="meta")
    old = {k: v for k, v in BatchNorm1d(3).state_dict().items() if "num" not in k}
    layer.load_state_dict(dict(old), assign=True)
    assert torch.equal(layer.state_dict()["num_batches_tracked"], torch.tensor(0))


def test_reset_makes_a_layer_new_again() -> None:
    for options in SETTINGS:
        layer, new = BatchNorm1d(3, **options), BatchNorm1d(3, **options)
        dtype = options.get("dtype", torch.float32)
        layer(draw(7, 3, dtype=dtype))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(1)
        layer.reset_parameters()
        assert_equal(layer.state_dict(), new.state_dict(), 0.0)
        assert all(p.requires_grad for p in layer.parameters())


def test_reset_running_stats_leaves_the_parameters() -> None:
    layer = twins(PAIRS[0])[0]
    weight = layer.weight.clone()
    layer(draw(7, 3))
    layer.reset_running_stats()
    assert layer.running_mean.tolist() == [0, 0, 0]
    assert layer.running_var.tolist() == [1, 1, 1]
    assert layer.num_batches_tracked == 0
    assert torch.equal(layer.weight, weight)


def test_converting_the_layer_converts_all_but_the_count() -> None:
    for convert in ("half", "bfloat16", "double"):
        ours, theirs = (getattr(m(3), convert)() for m in (BatchNorm1d, nn.BatchNorm1d))
        assert_equal(ours.state_dict(), theirs.state_dict(), 0.0)


@pytest.mark.parametrize("change", ["flag off", "no buffers", "no count", "no weight"])
def test_a_layer_changed_after_it_was_made_does_what_torch_s_does(change: str) -> None:
    layers = twins(PAIRS[0], momentum=0.1)
    for layer in layers:
        if change == "flag off":
            layer.track_running_stats = False
        elif change == "no buffers":
            layer.running_mean = layer.running_var = None
        elif change == "no count":
            layer.num_batches_tracked = None
        else:
            layer.weight = None
    for is_training in (True, False):
        ours, theirs = (
            run(m.train(is_training), draw(7, 3), draw(7, 3, seed=1)) for m in layers
        )
        assert_equal(ours, theirs)


def test_without_a_count_there_is_no_cumulative_average_in_either() -> None:
    layers = twins(PAIRS[0], momentum=None)
    for layer in layers:
        layer.num_batches_tracked = None
    ours, theirs = (run(m, draw(7, 3), draw(7, 3, seed=1)) for m in layers)
    assert_equal(ours, theirs)


# --- torch's tools find the layers by their type


def test_no_method_of_torch_s_class_is_left_in_use() -> None:
    inherited = {k for k, v in vars(_BatchNorm).items() if callable(v)}
    inherited |= {k for k, v in vars(_BatchNorm.__mro__[1]).items() if callable(v)}
    assert {"forward", "_load_from_state_dict"} <= inherited
    for key in inherited:
        assert getattr(module._BatchNorm, key).__module__.startswith("normbook."), key


def test_the_layers_never_call_torch_s_batch_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("torch's batch norm was called")

    for owner, key in (
        (torch, "batch_norm"),
        (torch, "native_batch_norm"),
        (nn.functional, "batch_norm"),
    ):
        monkeypatch.setattr(owner, key, refuse)
    for pair in PAIRS:
        for is_training in (True, False):
            layer = pair.ours(3, dtype=torch.float64).train(is_training)
            run(layer, draw(*pair.shape), draw(*pair.shape))
    with pytest.raises(AssertionError, match="was called"):
        nn.BatchNorm1d(3)(draw(7, 3, dtype=torch.float32))


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
