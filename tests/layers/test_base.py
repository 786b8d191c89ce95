"""What the layers that treat each example by itself have in common, beside torch's."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    EXAMPLES,
    FEATURES,
    GROUPS,
    INSTANCES,
    Pair,
    assert_alike,
    assert_equal,
    assert_refused_alike,
    distance,
    draw,
    name,
    run,
    twins,
    zeros,
)
from torch import Tensor, nn

each_pair = pytest.mark.parametrize("pair", EXAMPLES, ids=name)
each_layer = pytest.mark.parametrize(
    "pair",
    [FEATURES[2], FEATURES[5], GROUPS[2], *INSTANCES[1::2]],
    ids=name,
)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that torch can use"
)
HALF = [torch.float16, torch.bfloat16]


@each_mode
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 1e-6)]
)
@each_pair
def test_output_and_every_gradient_are_torch_s(
    pair: Pair, dtype: torch.dtype, tolerance: float, is_training: bool
) -> None:
    ours, theirs = (m.train(is_training) for m in twins(pair, dtype=dtype))
    x = draw(*pair.shape, dtype=dtype)
    dl_dy = draw(*pair.shape, seed=1, dtype=dtype)
    # torch's in float64 for both: its own float32 is off by 4e-6 on some CPUs.
    exact = run(theirs.double(), x.double(), dl_dy.double())
    expected = {key: value.to(dtype) for key, value in exact.items()}
    assert_equal(run(ours, x, dl_dy), expected, tolerance)


# --- input that is hard


def hard_inputs(shape: tuple[int, ...]) -> dict[str, Tensor]:
    x = draw(*shape, dtype=torch.float32)
    constant = x.clone()
    constant[0] = 3.7
    return {
        "mean 1e4 deviations": x + 3e4,
        "scale 1e6": x * 1e6,
        "scale 1e-6": x * 1e-6,
        "a constant example": constant,
        "one example": x[:1],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", hard_inputs((2, 3)))
@each_layer
def test_hard_inputs_lose_no_more_than_ten_times_what_torch_loses(
    pair: Pair, kind: str, dtype: torch.dtype
) -> None:
    x = hard_inputs(pair.shape)[kind].to(dtype)
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
ROUNDED[torch.float32] = 8 * torch.finfo(torch.float32).eps


# torch's RMSNorm warns that it is slow then.
mixed = pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")


@mixed
@pytest.mark.parametrize("state", ["float32 layer", "half layer"])
@pytest.mark.parametrize("dtype", HALF)
@each_layer
def test_half_precision_is_rounded_once(
    pair: Pair, dtype: torch.dtype, state: str
) -> None:
    layer_dtype = torch.float32 if state == "float32 layer" else dtype
    x, dl_dy = draw(*pair.shape, dtype=dtype), draw(*pair.shape, seed=1, dtype=dtype)
    layers = twins(pair, dtype=layer_dtype)
    truth = run(copy.deepcopy(layers[1]).double(), x.double(), dl_dy.double())
    ours, theirs = (run(m, x, dl_dy) for m in layers)
    for key, expected in theirs.items():
        assert ours[key].dtype == expected.dtype, key
        assert distance(ours[key], truth[key]) <= ROUNDED[expected.dtype], key


@pytest.mark.parametrize("kind", ["no example", "no value"])
@each_layer
def test_empty_input_gives_empty_output_and_parameters_no_gradient(
    pair: Pair, kind: str
) -> None:
    shape = (0, *pair.shape[1:]) if kind == "no example" else (*pair.shape[:-1], 0)
    if pair.ours in (FEATURES[0].ours, FEATURES[4].ours) and kind == "no value":
        pair = pair._replace(args=(0,))
    layer = twins(pair)[0]
    found = run(layer, draw(*shape), draw(*shape))
    assert found["y"].shape == found["dl_dx"].shape == shape
    assert not found["dl_dweight"].any()


@each_layer
def test_one_nan_spoils_what_it_is_averaged_with_and_no_more(pair: Pair) -> None:
    x = draw(*pair.shape)
    x.view(-1)[-1] = torch.nan
    dl_dy = draw(*pair.shape, seed=1)
    ours, theirs = (run(m, x, dl_dy) for m in twins(pair))
    for key in ("y", "dl_dx", "dl_dweight"):
        assert torch.equal(ours[key].isnan(), theirs[key].isnan()), key
    assert not ours["y"][0].isnan().any()


# --- in memory and on devices


def layouts(pair: Pair) -> dict[str, Tensor]:
    shape, last = pair.shape, len(pair.shape) - 1
    turned = draw(*shape[::-1]).permute(*range(last, -1, -1))
    found = {
        "transposed": turned,
        "every other": draw(*shape[:-1], 2 * shape[-1])[..., ::2],
        "backwards": draw(*shape).flip(0),
        "expanded": draw(1, *shape[1:]).expand(shape),
    }
    if last in (3, 4):
        kind = torch.channels_last if last == 3 else torch.channels_last_3d
        found["channels last"] = draw(*shape).to(memory_format=kind)
    return found


LAYOUTS = [
    (pair, kind) for pair in EXAMPLES if len(pair.shape) > 1 for kind in layouts(pair)
]


@pytest.mark.parametrize(("pair", "kind"), LAYOUTS)
def test_any_layout_in_memory_gives_torch_s_numbers_and_layout(
    pair: Pair, kind: str
) -> None:
    x, dl_dy = layouts(pair)[kind], draw(*pair.shape, seed=1)
    found, expected = (run(m, x, dl_dy) for m in twins(pair))
    assert_equal(found, expected)
    assert found["y"].stride() == expected["y"].stride()


@each_mode
@each_pair
def test_shapes_come_out_on_the_meta_device(pair: Pair, is_training: bool) -> None:
    layer = twins(pair)[0].to("meta").train(is_training)
    y = layer(torch.empty(pair.shape, dtype=torch.float64, device="meta"))
    assert y.is_meta
    assert y.shape == pair.shape


@mixed
@pytest.mark.parametrize("dtype", HALF)
@each_layer
def test_autocast_on_the_cpu_gives_torch_s_dtype(
    pair: Pair, dtype: torch.dtype
) -> None:
    layers = twins(pair, dtype=torch.float32)
    for given in (dtype, torch.float32):
        x = draw(*pair.shape, dtype=given)
        with torch.autocast("cpu", dtype):
            ours, theirs = (layer(x) for layer in layers)
        assert ours.dtype == theirs.dtype
        # Rounded once from nearly the same number: at most to the neighbour.
        assert distance(ours, theirs) <= torch.finfo(dtype).eps


@needs_cuda
@pytest.mark.parametrize("dtype", HALF)
@each_layer
def test_autocast_on_a_gpu_gives_torch_s_dtype(pair: Pair, dtype: torch.dtype) -> None:
    layers = [m.cuda() for m in twins(pair, dtype=torch.float32)]
    x = draw(*pair.shape, dtype=dtype).cuda()
    with torch.autocast("cuda", dtype):
        ours, theirs = (layer(x) for layer in layers)
    assert ours.dtype == theirs.dtype
    assert distance(ours, theirs) <= torch.finfo(dtype).eps


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@each_pair
def test_a_gpu_gives_what_the_cpu_gives(pair: Pair, dtype: torch.dtype) -> None:
    layers = twins(pair, dtype=dtype)
    x, dl_dy = draw(*pair.shape, dtype=dtype), draw(*pair.shape, seed=1, dtype=dtype)
    here = run(copy.deepcopy(layers[0]), x, dl_dy)
    ours, theirs = (run(m.cuda(), x.cuda(), dl_dy.cuda()) for m in layers)
    assert ours["y"].is_cuda
    # Sums in another order: some roundings of the dtype.
    tolerance = 8 * torch.finfo(dtype).eps
    assert_equal({k: v.cpu() for k, v in ours.items()}, here, tolerance)
    assert_equal(ours, theirs, tolerance)


# --- the books


@each_pair
def test_a_new_layer_has_torch_s_state_and_looks_like_it(pair: Pair) -> None:
    size = pair.args or (pair.shape[1],)
    ours, theirs = pair.ours(*size), pair.theirs(*size)
    assert repr(ours) == repr(theirs)
    mine, its = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(its)
    assert mine._metadata == its._metadata  # type: ignore[attr-defined]
    assert_equal(mine, its, 0.0)
    assert [k for k, _ in ours.named_parameters()] == [
        k for k, _ in theirs.named_parameters()
    ]
    assert set(vars(ours)) == set(vars(theirs))


@each_pair
def test_checkpoints_go_both_ways(pair: Pair) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    first = twins(pair)[0]
    into_torch = pair.theirs(*pair.args, dtype=x.dtype)
    into_ours = pair.ours(*pair.args, dtype=x.dtype)
    into_torch.load_state_dict(first.state_dict())
    into_ours.load_state_dict(into_torch.state_dict())
    expected = run(first, x, dl_dy)
    assert_equal(run(into_torch, x, dl_dy), expected)
    assert_equal(run(into_ours, x, dl_dy), expected, 0.0)


def through_pickle(layer: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(layer))  # noqa: S301 - our own bytes
    return copied


def through_a_file(layer: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    copied = copy.deepcopy(layer)
    for parameter in copied.parameters():
        nn.init.zeros_(parameter)
    copied.load_state_dict(torch.load(file, weights_only=True))
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_a_file])
@each_layer
def test_a_copy_computes_the_same_and_is_independent(
    pair: Pair, copied: Callable[[Any], Any]
) -> None:
    layer = twins(pair)[0]
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    expected = run(layer, x, dl_dy)
    layer(x).sum().backward()
    twin = copied(layer)
    assert_equal(run(twin, x, dl_dy), expected, 0.0)
    nn.init.zeros_(twin.weight)
    assert_equal(run(layer, x, dl_dy), expected, 0.0)


@each_layer
def test_reset_begins_at_gain_1_and_bias_0_again(pair: Pair) -> None:
    layer = twins(pair)[0]
    layer.reset_parameters()
    assert_equal(layer.state_dict(), pair.theirs(*pair.args).double().state_dict(), 0.0)
    assert all(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "double"])
@each_layer
def test_converting_the_layer_converts_what_torch_converts(
    pair: Pair, dtype: str
) -> None:
    ours, theirs = (getattr(m(*pair.args), dtype)() for m in (pair.ours, pair.theirs))
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


# --- torch's tools find the layers by their type, and nothing of torch computes


@each_layer
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


@each_layer
def test_the_layers_never_call_torch_s_normalization(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("torch's normalization was called")

    ours, theirs = twins(pair)
    for kind in ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm"):
        for owner in (torch, nn.functional):
            monkeypatch.setattr(owner, kind, refuse)
    run(ours, draw(*pair.shape), draw(*pair.shape))
    with pytest.raises(AssertionError, match="was called"):
        theirs(draw(*pair.shape))


# --- refusals


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64]
)
@each_layer
def test_what_is_no_real_float_is_refused(pair: Pair, dtype: torch.dtype) -> None:
    x = zeros(*pair.shape, dtype=dtype)
    match = f"{pair.ours.__name__} must hold real floating-point numbers, got {dtype}"
    if pair.ours is FEATURES[5].ours and dtype.is_complex:  # torch goes on
        with pytest.raises(NotImplementedError, match=match):
            pair.ours(*pair.args)(x)
        return
    with pytest.raises(NotImplementedError, match=match):
        pair.ours(*pair.args)(x)
    with pytest.raises(RuntimeError):  # of which the other is a kind
        pair.theirs(*pair.args)(x)


@pytest.mark.parametrize("x", [[[1.0, 2.0]], None, "x", draw(4, 3).numpy()], ids=type)
@each_layer
def test_what_is_no_tensor_is_refused(pair: Pair, x: Any) -> None:
    with pytest.raises(TypeError, match=f"torch tensor, got {type(x).__name__}"):
        pair.ours(*pair.args)(x)


@mixed
@pytest.mark.parametrize("state", [*HALF, torch.float32, torch.float64])
@pytest.mark.parametrize("given", [*HALF, torch.float32, torch.float64])
@each_layer
def test_mixed_dtypes_are_refused_as_in_torch(
    pair: Pair, state: torch.dtype, given: torch.dtype
) -> None:
    x = zeros(*pair.shape, dtype=given)
    is_half = given.itemsize == 2 and state == torch.float32
    if state == given or is_half or pair.ours is FEATURES[5].ours:
        ours, theirs = (m(*pair.args, dtype=state) for m in (pair.ours, pair.theirs))
        assert ours(x).dtype == theirs(x).dtype
        return
    match = f"dtype of its input.*got input {given}.*weight {state}"
    assert_refused_alike(pair, {"dtype": state}, x, match)


@each_layer
def test_another_device_is_refused(pair: Pair) -> None:
    match = "on one device, got cpu and meta"
    assert_refused_alike(pair, {"device": "meta"}, zeros(*pair.shape), match)
    with pytest.raises(RuntimeError, match="on one device, got meta and cpu"):
        pair.ours(*pair.args)(zeros(*pair.shape, device="meta"))


@each_layer
def test_parameters_of_a_wrong_shape_are_refused_by_name(pair: Pair) -> None:
    for key in ("weight", "bias"):
        layer = twins(pair)[0]
        if hasattr(layer, key):
            getattr(layer, key).data = torch.ones(11, dtype=torch.float64)
            with pytest.raises(RuntimeError, match=rf"{key} must have.*got \(11,\)"):
                layer(draw(*pair.shape))


@pytest.mark.parametrize("eps", ["tiny", [1e-5]])
@each_layer
def test_an_eps_that_is_no_number_is_refused(pair: Pair, eps: Any) -> None:
    layers = twins(pair)
    for layer in layers:
        layer.eps = eps
    with pytest.raises(TypeError, match="eps"):
        layers[1](draw(*pair.shape))
    with pytest.raises(TypeError, match="eps must be a number, got"):
        layers[0](draw(*pair.shape))


@pytest.mark.parametrize("eps", [-1e-9, float("nan"), float("inf"), 10**400])
@each_layer
def test_an_eps_that_is_negative_or_not_finite_is_refused(
    pair: Pair, eps: float
) -> None:
    layer = twins(pair)[0]
    layer.eps = eps
    with pytest.raises(ValueError, match="eps must be a finite number"):
        layer(draw(*pair.shape))


@each_layer
def test_eps_may_be_0(pair: Pair) -> None:
    layers = twins(pair)
    for layer in layers:
        layer.eps = 0.0
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    assert_alike(layers, x, dl_dy)
