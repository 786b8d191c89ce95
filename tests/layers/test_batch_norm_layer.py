"""The layers against torch's: outputs, gradients and buffers, on all kinds of input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_pairs import (
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

from normbook.layers.batch_norm import BatchNorm1d

each_pair = pytest.mark.parametrize("pair", PAIRS, ids=name)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
HALF = [torch.float16, torch.bfloat16]


@each_pair
def test_five_batches_and_then_evaluation_agree_with_torch(pair: Pair) -> None:
    ours, theirs = twins(pair)
    for seed in range(6):
        if seed == 5:
            ours.eval(), theirs.eval()
        x, dl_dy = draw(*pair.shape, seed=seed), draw(*pair.shape, seed=seed + 50)
        assert_equal(run(ours, x, dl_dy), run(theirs, x, dl_dy))


@pytest.mark.parametrize("momentum", [None, 0.0, 0.1, 1.0])
@pytest.mark.parametrize("is_tracked", [True, False])
@pytest.mark.parametrize(
    ("affine", "bias"), [(True, True), (True, False), (False, True)]
)
@each_pair
def test_every_combination_of_settings_agrees_with_torch(
    pair: Pair, affine: bool, bias: bool, is_tracked: bool, momentum: float | None
) -> None:
    size = pair.shape[1]
    layers = twins(pair, size, 0.3, momentum, affine, is_tracked, bias=bias)
    for is_training in (True, True, False, True):
        ours, theirs = (
            run(m.train(is_training), draw(*pair.shape), draw(*pair.shape, seed=1))
            for m in layers
        )
        assert_equal(ours, theirs)


Sample = tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]
# The constructor arguments and input shapes that torch tests its own layers with
# (torch/testing/_internal/common_modules.py of 2.13).
ONE: list[Sample] = [
    ((10,), {}, (4, 10)),
    ((5,), {}, (4, 5, 3)),
    ((10, 1e-3, None), {}, (4, 10)),
    ((10, 1e-3, 0.3, False), {}, (4, 10)),
    ((10, 1e-3, 0.3, True, False), {}, (4, 10)),
    ((5, 1e-3, 0.3, False), {}, (4, 5, 3)),
    ((5, 1e-3, 0.3, False), {}, (0, 5, 9)),
    ((10,), {"bias": False}, (4, 10)),
]


def more(momentum: float, *rest: int) -> list[Sample]:
    shape = (2, 3, *rest)
    empty = (0, 5, *(2 for _ in rest))
    return [
        ((3,), {}, shape),
        ((3, 1e-3, None), {}, shape),
        ((3, 1e-3, momentum), {}, shape),
        ((3, 1e-3, momentum, False), {}, shape),
        ((3, 1e-3, momentum, True, False), {}, shape),
        ((5, 1e-3, 0.3, False), {}, empty),
        ((3,), {"bias": False}, shape),
    ]


SAMPLES = [
    *((PAIRS[0], *sample) for sample in ONE),
    *((PAIRS[2], *sample) for sample in more(0.8, 6, 6)),
    *((PAIRS[3], *sample) for sample in more(0.7, 4, 4, 4)),
]


@each_mode
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # float32: the sums of torch run in float64, ours do not; 128 values at most
    # lose some 10 units of 1.2e-7.
    [(torch.float64, 1e-10), (torch.float32, 2e-6)],
)
@pytest.mark.parametrize(("pair", "args", "options", "shape"), SAMPLES)
def test_the_samples_of_torch_s_own_tests_agree(
    pair: Pair,
    args: tuple[Any, ...],
    options: dict[str, Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
    is_training: bool,
) -> None:
    layers = twins(pair, *args, **options, dtype=dtype)
    x, dl_dy = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)
    ours, theirs = (run(m.train(is_training), x, dl_dy) for m in layers)
    assert_equal(ours, theirs, tolerance)


@each_mode
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4), (5, 3, 0)])
def test_an_empty_batch_gives_an_empty_output_and_leaves_the_statistics(
    shape: tuple[int, ...], is_training: bool
) -> None:
    ours, theirs = (m.train(is_training) for m in twins(PAIRS[0], 3))
    found = run(ours, draw(*shape), draw(*shape))
    assert_equal(found, run(theirs, draw(*shape), draw(*shape)))
    assert found["y"].shape == shape
    assert not found["dl_dweight"].any()


def hard_inputs() -> dict[str, Tensor]:
    x = draw(64, 5, 7, dtype=torch.float32)
    constant, distant = x.clone(), x.clone()
    constant[:, 2], distant[:, 2] = 3.7, 1e5
    return {
        "offset 1e4": x + 1e4,
        "offset 1e5": x + 1e5,
        "scale 1e6": x * 1e6,
        "scale 1e-6": x * 1e-6,
        "constant channel": constant,
        "distant constant channel": distant,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", hard_inputs())
def test_hard_inputs_lose_no_more_than_ten_times_what_torch_loses(
    kind: str, dtype: torch.dtype
) -> None:
    x, dl_dy = hard_inputs()[kind].to(dtype), draw(64, 5, 7, seed=1).to(dtype)
    truth = run(nn.BatchNorm1d(5, dtype=torch.float64), x.double(), dl_dy.double())
    ours, theirs = (run(m(5), x, dl_dy) for m in (BatchNorm1d, nn.BatchNorm1d))
    for key, exact in truth.items():
        # Where torch's sums in float64 lose next to nothing, ours in float32 may
        # lose the rounding of a few operations.
        allowed = max(10 * distance(theirs[key], exact), 4 * torch.finfo(dtype).eps)
        assert distance(ours[key], exact) <= allowed, key


@each_pair
def test_one_nan_spoils_its_channel_and_no_other(pair: Pair) -> None:
    ours, theirs = twins(pair)
    x = draw(*pair.shape)
    x.reshape(pair.shape[0], 3, -1)[1, 2, 0] = torch.nan
    found, expected = (run(m, x, draw(*pair.shape, seed=1)) for m in (ours, theirs))
    for key in ("y", "dl_dx", "dl_dweight", "running_mean", "running_var"):
        assert torch.equal(found[key].isnan(), expected[key].isnan()), key
    assert found["running_var"].isnan().tolist() == [False, False, True]


# Half a unit in the last place, with 10 % for the float32 arithmetic before; what
# stays in float32 (gradients of a float32 layer) loses a few roundings of its sums.
ROUNDED = {dtype: 0.55 * torch.finfo(dtype).eps for dtype in HALF}
ROUNDED[torch.float32] = 4 * torch.finfo(torch.float32).eps


@each_mode
@pytest.mark.parametrize("state", ["float32 layer", "half layer"])
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_rounded_once(
    dtype: torch.dtype, state: str, is_training: bool
) -> None:
    layer_dtype = torch.float32 if state == "float32 layer" else dtype
    x, dl_dy = draw(6, 3, 5, dtype=dtype), draw(6, 3, 5, seed=1, dtype=dtype)
    layers = [m.train(is_training) for m in twins(PAIRS[1], 3, dtype=layer_dtype)]
    truth = run(copy.deepcopy(layers[1]).double(), x.double(), dl_dy.double())
    ours, theirs = (run(m, x, dl_dy) for m in layers)
    for key, expected in theirs.items():
        assert ours[key].dtype == expected.dtype, key
        if expected.is_floating_point():
            assert distance(ours[key], truth[key]) <= ROUNDED[expected.dtype], key


@pytest.mark.parametrize("dtype", HALF)
def test_running_averages_in_half_precision_are_rounded_once_a_batch(
    dtype: torch.dtype,
) -> None:
    ours, theirs = twins(PAIRS[0], 50, dtype=dtype)
    exact = copy.deepcopy(theirs).double()
    x = draw(6, 50, dtype=dtype)
    ours(x), exact(x.double())
    for key in ("running_mean", "running_var"):
        a, b = getattr(ours, key).double(), getattr(exact, key)
        assert ((a - b).abs() <= ROUNDED[dtype] * b.abs()).all()


def test_in_evaluation_eps_may_be_0() -> None:
    ours, theirs = (m.eval() for m in twins(PAIRS[0], eps=0.0))
    x, dl_dy = draw(7, 3), draw(7, 3, seed=1)
    assert_equal(run(ours, x, dl_dy), run(theirs, x, dl_dy))
