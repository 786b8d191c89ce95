"""The layers in memory, on devices, under autocast and torch.compile."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from layer_derivatives import assert_same_under_checkpointing
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

from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d

each_pair = pytest.mark.parametrize("pair", PAIRS, ids=name)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that torch can use"
)
# torch.compile warns of its own inner workings, of no interest here.
quiet = pytest.mark.filterwarnings("ignore")

LAYOUTS: dict[str, tuple[Pair, Callable[[], Tensor]]] = {
    "transposed 2D": (PAIRS[0], lambda: draw(3, 7).T),
    "transposed 3D": (PAIRS[1], lambda: draw(5, 4, 3).transpose(1, 2)),
    "every other channel": (PAIRS[0], lambda: draw(7, 6)[:, ::2]),
    "backwards": (PAIRS[0], lambda: draw(7, 3).flip(0)),
    "expanded": (PAIRS[1], lambda: draw(5, 3, 1).expand(5, 3, 4)),
    "width before height": (PAIRS[2], lambda: draw(2, 5, 4, 3).permute(0, 3, 2, 1)),
    "expanded channels": (PAIRS[2], lambda: draw(2, 1, 4, 5).expand(2, 3, 4, 5)),
    "channels last": (
        PAIRS[2],
        lambda: draw(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ),
    "part of channels last": (
        PAIRS[2],
        lambda: draw(4, 3, 4, 5).to(memory_format=torch.channels_last)[::2],
    ),
    "channels last 3d": (
        PAIRS[3],
        lambda: draw(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    ),
}


@each_mode
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_in_memory_gives_torch_s_numbers_and_layout(
    layout: str, is_training: bool
) -> None:
    pair, make = LAYOUTS[layout]
    x, dl_dy = make(), draw(*make().shape, seed=1)
    ours, theirs = (m.train(is_training) for m in twins(pair))
    found, expected = run(ours, x, dl_dy), run(theirs, x, dl_dy)
    assert_equal(found, expected)
    assert found["y"].stride() == expected["y"].stride()


@each_pair
def test_without_gradients_nothing_is_recorded_and_statistics_move(pair: Pair) -> None:
    ours, theirs = twins(pair)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y, expected = ours(draw(*pair.shape)), theirs(draw(*pair.shape))
        assert y.grad_fn is None
        assert distance(y, expected) < 1e-10
        assert_equal(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_torch_s_dtype_and_keeps_float32_statistics(
    dtype: torch.dtype,
) -> None:
    x = draw(8, 3, 5, 6, dtype=torch.float32)
    conv = nn.Conv2d(3, 4, 3)
    pair = twins(PAIRS[2], 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        ours, theirs = (nn.Sequential(conv, norm)(x) for norm in pair)
    assert ours.dtype == theirs.dtype == dtype
    # Rounded once from nearly the same number: at most to the neighbour.
    assert distance(ours, theirs) <= torch.finfo(dtype).eps
    assert pair[0].running_mean.dtype == torch.float32


@each_mode
def test_shapes_come_out_on_the_meta_device(is_training: bool) -> None:
    layer = BatchNorm2d(3, device="meta").train(is_training)
    y = layer(torch.empty(2, 3, 4, 5, device="meta"))
    assert y.is_meta
    assert y.shape == (2, 3, 4, 5)


@quiet
@pytest.mark.parametrize(
    ("backend", "is_training"), [("aot_eager", True), ("eager", False)]
)
def test_compiled_in_one_graph_it_computes_the_same(
    backend: str,
    is_training: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNorm2d(4), nn.ReLU())
    model.train(is_training)
    compiled = copy.deepcopy(model)
    forward = torch.compile(compiled.forward, backend=backend, fullgraph=True)
    monkeypatch.setattr(compiled, "forward", forward)
    for seed in (0, 1):
        x = draw(5, 3, 6, 7, seed=seed, dtype=torch.float32)
        dl_dy = draw(5, 4, 4, 5, seed=seed + 5, dtype=torch.float32)
        # The compiler may order sums in another way.
        assert_equal(run(compiled, x, dl_dy), run(model, x, dl_dy), 1e-5)


@pytest.mark.parametrize("use_reentrant", [True, False])
@each_pair
def test_under_checkpointing_the_gradients_are_the_same(
    pair: Pair, use_reentrant: bool
) -> None:
    x, dl_dy = draw(*pair.shape), draw(*pair.shape, seed=1)
    assert_same_under_checkpointing(twins(pair), x, dl_dy, use_reentrant)


@needs_cuda
@each_mode
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@each_pair
def test_a_gpu_gives_what_the_cpu_gives(
    pair: Pair, dtype: torch.dtype, is_training: bool
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
def test_on_a_gpu_a_layer_left_on_the_cpu_is_refused() -> None:
    with pytest.raises(RuntimeError, match="on one device, got cuda"):
        BatchNorm1d(3)(draw(4, 3, dtype=torch.float32).cuda())


@needs_cuda
def test_on_a_gpu_channels_last_stays_so() -> None:
    x = draw(2, 3, 4, 5).to("cuda", memory_format=torch.channels_last)
    found, expected = (run(m.cuda(), x, torch.ones_like(x)) for m in twins(PAIRS[2]))
    assert found["y"].stride() == expected["y"].stride()
    assert found["dl_dx"].stride() == expected["dl_dx"].stride()
