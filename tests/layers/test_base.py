"""What the layers with a twin in torch have in common, beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_pairs import (
    AVERAGED,
    EVERY,
    EXACT,
    EXAMPLES,
    FEATURES,
    GROUPS,
    HALF,
    INSTANCES,
    PAIRS,
    Pair,
    assert_alike,
    assert_checkpoints_go_both_ways,
    assert_equal,
    copy_of,
    distance,
    draw,
    each_case,
    each_copy,
    each_layer,
    each_mode,
    each_pair,
    name,
    needs_cuda,
    run,
    twins,
)
from torch import Tensor, nn

from normbook.layers.sync_batch_norm import SyncBatchNorm

SYNC = Pair(SyncBatchNorm, nn.SyncBatchNorm, (5, 3))
SET = [  # to what torch's own tests set its layers
    pair._replace(args=(3, 1e-3, *rest))
    for pair in PAIRS
    for rest in ((None,), (0.8,), (0.3, False), (0.3, True, False))
]


@each_mode
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 1e-6)]
)
@pytest.mark.parametrize("pair", [*EVERY, *SET])
def test_output_and_every_gradient_are_torch_s(
    pair: Pair, dtype: torch.dtype, tolerance: float, is_training: bool
) -> None:
    ours, theirs = (m.train(is_training) for m in twins(pair, dtype=dtype))
    x = draw(*pair.shape, dtype=dtype)
    dl_dy = draw(*pair.shape, seed=1, dtype=dtype)
    # torch's in float64 for both: its own float32 is off by 4e-6 on some CPUs.
    exact = run(theirs.double(), x.double(), dl_dy.double())
    expected = {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in exact.items()
    }
    if pair not in EXAMPLES and dtype == torch.float32:
        tolerance *= 2
    assert_equal(run(ours, x, dl_dy), expected, tolerance)


def hard_inputs(pair: Pair) -> dict[str, Tensor]:
    x = draw(*pair.shape, dtype=torch.float32)
    is_by_batch = pair in MANY
    constant, distant = x.clone(), x.clone()
    group = (slice(None), 2) if is_by_batch else 0
    constant[group], distant[group] = 3.7, 1e5
    found = {
        "mean 1e4 deviations": x + 3e4,
        "scale 1e6": x * 1e6,
        "scale 1e-6": x * 1e-6,
        "a constant group": constant,
    }
    if is_by_batch:
        return found | {"mean 3e4 deviations": x + 1e5, "constant and far": distant}
    return found | {"one example": x[:1]}


MANY = [Pair(PAIRS[1].ours, PAIRS[1].theirs, (64, 5, 7))]
HARD = [
    (pair, kind)
    for pair in (*MANY, FEATURES[2], FEATURES[5], GROUPS[2], *INSTANCES[1::2])
    for kind in hard_inputs(pair)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("pair", "kind"), HARD)
def test_hard_inputs_lose_no_more_than_ten_times_what_torch_loses(
    pair: Pair, kind: str, dtype: torch.dtype
) -> None:
    x = hard_inputs(pair)[kind].to(dtype)
    dl_dy = draw(*x.shape, seed=1).to(dtype)
    layers = twins(pair, dtype=dtype)
    truth = run(copy.deepcopy(layers[1]).double(), x.double(), dl_dy.double())
    ours, theirs = (run(m, x, dl_dy) for m in layers)
    for key, exact in truth.items():
        # Where torch happens to lose next to nothing, ours may lose the rounding of
        # a few operations.
        allowed = max(10 * distance(theirs[key], exact), 4 * torch.finfo(dtype).eps)
        assert distance(ours[key], exact) <= allowed, key


# Half a unit in the last place, with 10 % for the float32 arithmetic before; what
# stays in float32 (gradients of a float32 layer) loses a few roundings of its sums.
ROUNDED = {dtype: 0.55 * torch.finfo(dtype).eps for dtype in HALF}
ROUNDED[torch.float32] = 4 * torch.finfo(torch.float32).eps


# torch's RMSNorm warns that it is slow then.
mixed = pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")


@mixed
@pytest.mark.parametrize("state", ["float32 layer", "half layer"])
@pytest.mark.parametrize("dtype", HALF)
@each_mode
@each_layer
def test_half_precision_is_rounded_once(
    pair: Pair, is_training: bool, dtype: torch.dtype, state: str
) -> None:
    layer_dtype = torch.float32 if state == "float32 layer" else dtype
    x, dl_dy = draw(*pair.shape, dtype=dtype), draw(*pair.shape, seed=1, dtype=dtype)
    layers = [m.train(is_training) for m in twins(pair, dtype=layer_dtype)]
    truth = run(copy.deepcopy(layers[1]).double(), x.double(), dl_dy.double())
    ours, theirs = (run(m, x, dl_dy) for m in layers)
    for key, expected in theirs.items():
        assert ours[key].dtype == expected.dtype, key
        if expected.is_floating_point():
            allowed = ROUNDED[expected.dtype]
            if expected.dtype == torch.float32 and pair not in PAIRS[:3]:
                allowed *= 2  # sums over more values
            assert distance(ours[key], truth[key]) <= allowed, key


IMAGES = [*PAIRS, *GROUPS, *INSTANCES[1::2], *AVERAGED[1::2]]
EMPTY = [
    *((pair, (0, *pair.shape[1:])) for pair in (*IMAGES, FEATURES[2], FEATURES[5])),
    *((pair, (*pair.shape[:-1], 0)) for pair in IMAGES if len(pair.shape) > 2),
    *((pair._replace(args=(0,)), (7, 3, 0)) for pair in (FEATURES[2], FEATURES[5])),
    (PAIRS[1]._replace(args=(3, 1e-3, 0.3, False)), (0, 3, 4)),
]


@each_mode
@pytest.mark.parametrize(("pair", "shape"), EMPTY)
def test_empty_input_gives_empty_output_and_leaves_the_statistics(
    pair: Pair, shape: tuple[int, ...], is_training: bool
) -> None:
    ours, theirs = (m.train(is_training) for m in twins(pair))
    before = copy_of(ours.state_dict())
    found = run(ours, draw(*shape), draw(*shape))
    assert found["y"].shape == found["dl_dx"].shape == shape
    assert not found.get("dl_dweight", found["y"]).any()
    if issubclass(pair.ours, nn.modules.batchnorm._BatchNorm):  # torch counts the batch
        assert_equal(found, run(theirs, draw(*shape), draw(*shape)))
        before["num_batches_tracked"] += is_training
    assert_equal(ours.state_dict(), before, 0.0)


@each_pair
def test_one_nan_spoils_what_it_is_averaged_with_and_no_more(pair: Pair) -> None:
    x = draw(*pair.shape)
    x.view(-1)[-1] = torch.nan
    ours, theirs = (run(m, x, draw(*pair.shape, seed=1)) for m in twins(pair))
    for key, expected in theirs.items():
        assert torch.equal(ours[key].isnan(), expected.isnan()), key
    if x.ndim > 1:
        clean = ours["y"][:, :2] if pair in PAIRS else ours["y"][0]
        assert not clean.isnan().any()


@pytest.mark.parametrize("pair", [FEATURES[2], FEATURES[5], *GROUPS[:2]], ids=name)
def test_the_other_examples_do_not_matter(pair: Pair) -> None:
    x, layer = draw(7, *pair.shape[1:]), twins(pair)[0]
    assert torch.equal(layer(x)[:2], layer(x[:2]))


# --- in memory and on devices


def layouts(pair: Pair) -> dict[str, Tensor]:
    shape, last = pair.shape, len(pair.shape) - 1
    turned = draw(*shape[::-1]).permute(*range(last, -1, -1))
    found = {
        "transposed": turned,
        "last two axes swapped": draw(*shape).mT.contiguous().mT,
        "every other": draw(*shape[:-1], 2 * shape[-1])[..., ::2],
        "every other channel": draw(shape[0], 2 * shape[1], *shape[2:])[:, ::2],
        "backwards": draw(*shape).flip(0),
    }
    # Along one axis that leaves each group with several values.
    for axis in (1, last) if pair in PAIRS else (0,):
        short = (*shape[:axis], 1, *shape[axis + 1 :])
        found[f"expanded along {axis}"] = draw(*short).expand(shape)
    if last in (3, 4):
        kind = torch.channels_last if last == 3 else torch.channels_last_3d
        found["channels last"] = draw(*shape).to(memory_format=kind)
        twice = draw(2 * shape[0], *shape[1:]).to(memory_format=kind)
        found["part of channels last"] = twice[::2]
    return found


LAYOUTS = [
    (pair, kind) for pair in EVERY if len(pair.shape) > 1 for kind in layouts(pair)
]


@pytest.mark.parametrize(("pair", "kind"), LAYOUTS)
def test_any_layout_in_memory_gives_torch_s_numbers_and_layout(
    pair: Pair, kind: str
) -> None:
    x, dl_dy = layouts(pair)[kind], draw(*pair.shape, seed=1)
    for is_training in (True, False) if pair in PAIRS else (True,):
        found, expected = (run(m.train(is_training), x, dl_dy) for m in twins(pair))
        assert_equal(found, expected)
        assert found["y"].stride() == expected["y"].stride()


@each_mode
@each_pair
def test_shapes_come_out_on_the_meta_device(pair: Pair, is_training: bool) -> None:
    layer = twins(pair)[0].to("meta").train(is_training)
    y = layer(torch.empty(pair.shape, dtype=torch.float64, device="meta"))
    assert y.is_meta
    assert y.shape == pair.shape


def assert_autocast_alike(
    layers: list[Any], x: Tensor, device: str, dtype: torch.dtype
) -> None:
    with torch.autocast(device, dtype):
        ours, theirs = (layer(x) for layer in layers)
    assert ours.dtype == theirs.dtype
    # Rounded once from nearly the same number: at most to the neighbour.
    assert distance(ours, theirs) <= torch.finfo(dtype).eps
    states = (layer.state_dict().values() for layer in layers)
    assert all(a.dtype == b.dtype for a, b in zip(*states, strict=True))


@mixed
@pytest.mark.parametrize("dtype", HALF)
@each_layer
def test_autocast_on_the_cpu_gives_torch_s_dtype(
    pair: Pair, dtype: torch.dtype
) -> None:
    layers = list(twins(pair, dtype=torch.float32))
    for given in (dtype, torch.float32):
        assert_autocast_alike(layers, draw(*pair.shape, dtype=given), "cpu", dtype)


@needs_cuda
@pytest.mark.parametrize("dtype", HALF)
@each_layer
def test_autocast_on_a_gpu_gives_torch_s_dtype(pair: Pair, dtype: torch.dtype) -> None:
    layers = [m.cuda() for m in twins(pair, dtype=torch.float32)]
    assert_autocast_alike(layers, draw(*pair.shape, dtype=dtype).cuda(), "cuda", dtype)


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@each_case
def test_a_gpu_gives_what_the_cpu_gives(
    pair: Pair, is_training: bool, dtype: torch.dtype
) -> None:
    layers = [m.train(is_training) for m in twins(pair, dtype=dtype)]
    x, dl_dy = draw(*pair.shape, dtype=dtype), draw(*pair.shape, seed=1, dtype=dtype)
    here = run(copy.deepcopy(layers[0]), x, dl_dy)
    ours, theirs = (run(m.cuda(), x.cuda(), dl_dy.cuda()) for m in layers)
    assert ours["y"].is_cuda
    # Sums in another order: some roundings of the dtype.
    tolerance = 8 * torch.finfo(dtype).eps
    assert_equal({k: v.cpu() for k, v in ours.items()}, here, tolerance)
    assert_equal(ours, theirs, tolerance)


@needs_cuda
def test_on_a_gpu_channels_last_stays_so() -> None:
    x = draw(2, 3, 4, 5).to("cuda", memory_format=torch.channels_last)
    found, expected = (run(m.cuda(), x, torch.ones_like(x)) for m in twins(PAIRS[2]))
    assert found["y"].stride() == expected["y"].stride()
    assert found["dl_dx"].stride() == expected["dl_dx"].stride()


SETTINGS: list[dict[str, Any]] = [
    {},
    {"affine": False},
    {"bias": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
    {"eps": 0.5, "momentum": None},
    {"dtype": torch.bfloat16},
]
NEW = [(pair, options) for pair in (*PAIRS[1:], SYNC) for options in SETTINGS]
NEW += [(pair, {}) for pair in AVERAGED + FEATURES + GROUPS + INSTANCES]
NEW += [(pair._replace(args=(4,)), {}) for pair in INSTANCES]  # torch's defaults
NEW += [(pair, {"bias": False}) for pair in (*FEATURES[:4], *GROUPS, *INSTANCES)]


@pytest.mark.parametrize(("pair", "options"), NEW)
def test_a_new_layer_has_torch_s_state_and_looks_like_it(
    pair: Pair, options: dict[str, Any]
) -> None:
    ours, theirs = (kind(*pair.size, **options) for kind in (pair.ours, pair.theirs))
    assert repr(ours) == repr(theirs)
    mine, its = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(its)
    assert mine._metadata == its._metadata  # type: ignore[attr-defined]
    assert_equal(mine, its, 0.0)
    assert [k for k, _ in ours.named_parameters()] == [
        k for k, _ in theirs.named_parameters()
    ]
    assert set(vars(ours)) - {"_last_count"} == set(vars(theirs))


ON_META = "meta", torch.float64
CONSTRUCTED: list[tuple[Pair, tuple[Any, ...], dict[str, Any]]] = [
    *((pair, (4, 0.5, 0.25, True, True, *ON_META), {"bias": False}) for pair in PAIRS),
    *((pair, (4, 0.5, 0.25, True, True, *ON_META), {}) for pair in INSTANCES),
    (SYNC, (4, 0.5, 0.25, True, True, "a group", *ON_META), {"bias": False}),
    (FEATURES[0], (4, 0.5, True, False, *ON_META), {}),
    (FEATURES[4], (4, 0.5, True, *ON_META), {}),
    (GROUPS[0], (2, 6, 0.5, True, *ON_META), {}),
]


@pytest.mark.parametrize(("pair", "args", "options"), CONSTRUCTED)
def test_the_constructor_takes_torch_s_arguments_in_torch_s_order(
    pair: Pair, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    ours, theirs = (kind(*args, **options) for kind in (pair.ours, pair.theirs))
    assert repr(ours) == repr(theirs)
    mine, its = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(its)
    for a, b in zip(mine.values(), its.values(), strict=True):
        assert (a.device, a.dtype, a.shape) == (b.device, b.dtype, b.shape)
    assert getattr(ours, "process_group", 0) == getattr(theirs, "process_group", 0)


@pytest.mark.parametrize("pair", [*EVERY, *AVERAGED], ids=name)
def test_checkpoints_go_both_ways_and_training_goes_on_alike(pair: Pair) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    first, other = twins(pair)
    first(x), other(x)
    into_torch, into_ours = (
        kind(*pair.size, dtype=x.dtype) for kind in (pair.theirs, pair.ours)
    )
    assert_checkpoints_go_both_ways(first, into_torch, into_ours)
    expected = run(other, x, dl_dy)
    for layer in (into_torch, into_ours):
        assert_equal(run(layer, x, dl_dy), expected)
    assert_equal(run(first, x, dl_dy), run(into_ours, x, dl_dy) | expected)


@each_copy
@each_layer
def test_a_copy_computes_the_same_and_is_independent(
    pair: Pair, copied: Callable[[Any], Any]
) -> None:
    layer = twins(pair)[0]
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    layer(x).sum().backward()
    twin = copied(layer)
    assert_equal(run(twin, x, dl_dy), run(layer, x, dl_dy), 0.0)
    before = copy_of(layer.state_dict())
    twin(10 * x)
    nn.init.zeros_(twin.weight)
    assert_equal(layer.state_dict(), before, 0.0)
    for key, buffer in twin.named_buffers():
        assert not torch.equal(buffer, before[key])


@pytest.mark.parametrize(
    ("pair", "options"),
    [
        *((PAIRS[0], options) for options in SETTINGS),
        *((pair, {}) for pair in (*EXAMPLES, *AVERAGED)),
    ],
)
def test_reset_makes_a_layer_new_again(pair: Pair, options: dict[str, Any]) -> None:
    layer: Any = pair.ours(*pair.size, **options)
    new = copy.deepcopy(layer)
    layer(draw(*pair.shape, dtype=options.get("dtype", torch.float32)))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    layer.reset_parameters()
    assert_equal(layer.state_dict(), new.state_dict(), 0.0)
    assert all(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "double"])
@each_layer
def test_converting_the_layer_converts_what_torch_converts(
    pair: Pair, dtype: str
) -> None:
    ours, theirs = (getattr(m(*pair.size), dtype)() for m in (pair.ours, pair.theirs))
    assert_equal(ours.state_dict(), theirs.state_dict(), 0.0)


@each_layer
def test_a_layer_whose_parameters_were_taken_off_does_what_torch_s_does(
    pair: Pair,
) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    # The weight alone is no test: torch's group norm then has no gradient.
    for keys in (["bias"], ["weight", "bias"]):
        layers = twins(pair)
        for layer in layers:
            for key in keys:
                layer.register_parameter(key, None)
        assert_alike(layers, x, dl_dy)


@each_layer
def test_eps_may_be_0(pair: Pair) -> None:
    layers = twins(pair)
    for layer in layers:
        layer.eps = 0.0
        layer.train(pair not in PAIRS)  # where torch refuses it in training
    assert_alike(layers, draw(*pair.shape), draw(*pair.shape, seed=1))


# --- torch's tools find the layers by their type, and nothing of torch computes


@pytest.mark.parametrize("pair", EXAMPLES, ids=name)
def test_the_layers_are_of_torch_s_type(pair: Pair) -> None:
    assert issubclass(pair.ours, pair.theirs)
    # Or they would be turned into SyncBatchNorm, say.
    assert not issubclass(pair.ours, torch.nn.modules.batchnorm._BatchNorm)


@each_layer
def test_no_method_of_torch_s_class_is_left_in_use(pair: Pair) -> None:
    own = pair.theirs.__mro__[: pair.theirs.__mro__.index(nn.Module)]
    methods = {k for kind in own for k, v in vars(kind).items() if callable(v)}
    methods -= {"__annotate_func__", "__annotate__"}
    unused = {"_get_no_batch_dim", "_handle_no_batch_input", "_apply_instance_norm"}
    assert "forward" in methods
    for key in methods - unused:
        assert getattr(pair.ours, key).__module__.startswith("normbook."), key


@each_mode
@each_layer
def test_the_layers_never_call_torch_s_normalization(
    pair: Pair, is_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("torch's normalization was called")

    ours, theirs = (m.train(is_training) for m in twins(pair))
    for kind in ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"):
        for owner in (torch, nn.functional):
            monkeypatch.setattr(owner, kind, refuse)
    monkeypatch.setattr(torch, "native_batch_norm", refuse)
    run(ours, draw(*pair.shape), draw(*pair.shape))
    with pytest.raises(AssertionError, match="was called"):
        theirs(draw(*pair.shape))
