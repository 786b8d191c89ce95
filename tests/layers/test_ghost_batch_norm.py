"""Ghost batch norm: by its definition, beside batch norm, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_pairs import EXACT, assert_equal, distance, draw, run
from torch import Tensor, nn

from normbook.gradient_check import survivors
from normbook.layers import small_batches as module
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.small_batches import (
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    GhostBatchNorm3d,
)

LAYERS = {2: GhostBatchNorm1d, 3: GhostBatchNorm1d, 4: GhostBatchNorm2d}
LAYERS |= {5: GhostBatchNorm3d}
# The shape of the batch, virtual_batch_size, and the sizes of the ghosts.
Split = tuple[tuple[int, ...], int, list[int]]
SPLITS: list[Split] = [
    ((6, 5), 3, [3, 3]),
    ((8, 5), 3, [3, 3, 2]),
    ((7, 5), 3, [3, 4]),  # a rest of one value joins
    ((9, 5), 2, [2, 2, 2, 3]),
    ((4, 5), 3, [4]),
    ((3, 5), 7, [3]),
    ((3, 5, 2), 7, [3]),
    ((7, 5, 2), 3, [3, 3, 1]),  # one example, but two values
    ((8, 5, 2), 3, [3, 3, 2]),
    ((3, 5, 2), 1, [1, 1, 1]),
    ((7, 5, 1), 3, [3, 4]),
    ((5, 3, 2, 4), 2, [2, 2, 1]),
    ((3, 6, 2, 4, 5), 2, [2, 1]),
]
each_split = pytest.mark.parametrize(("shape", "size", "ghosts"), SPLITS, ids=str)


def make(shape: tuple[int, ...], size: int, **options: Any) -> Any:
    """Make a layer with a random state."""
    layer: Any = LAYERS[len(shape)](shape[1], size, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2, generator=generator)
    return layer


class Defined(nn.Module):
    """The definition, ghost by ghost, for autograd to differentiate."""

    def __init__(self, layer: Any, ghosts: list[int]) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.ghosts = layer.eps, ghosts

    def forward(self, x: Tensor) -> Tensor:
        axes = [0, *range(2, x.ndim)]
        shape = (1, -1, *(1,) * (x.ndim - 2))
        parts = []
        for part in torch.split(x, self.ghosts):
            var, mu = torch.var_mean(part, axes, correction=0, keepdim=True)
            parts.append((part - mu) / (var + self.eps).sqrt())
        y: Tensor = self.weight.view(shape) * torch.cat(parts) + self.bias.view(shape)
        return y


def assert_defined(shape: tuple[int, ...], size: int, ghosts: list[int]) -> None:
    layer = make(shape, size, eps=0.1)
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    expected = run(Defined(layer, ghosts), x, dl_dy)
    found = run(layer, x, dl_dy)
    assert_equal({k: found[k] for k in expected}, expected)


def assert_averaged(shape: tuple[int, ...], size: int, ghosts: list[int]) -> None:
    layer = make(shape, size, momentum=1.0)
    x, axes = draw(*shape), [0, *range(2, len(shape))]
    layer(x)
    weighted = [(len(p) / len(x), p) for p in torch.split(x, ghosts)]
    mean = torch.stack([w * p.mean(axes) for w, p in weighted]).sum(0)
    var = torch.stack([w * p.var(axes, correction=1) for w, p in weighted]).sum(0)
    assert distance(layer.running_mean, mean) < EXACT
    assert distance(layer.running_var, var) < EXACT


@each_split
def test_output_and_gradients_are_those_of_the_definition(
    shape: tuple[int, ...], size: int, ghosts: list[int]
) -> None:
    assert_defined(shape, size, ghosts)


@each_split
def test_the_statistics_are_averages_over_the_ghosts_weighted_by_their_size(
    shape: tuple[int, ...], size: int, ghosts: list[int]
) -> None:
    assert_averaged(shape, size, ghosts)


@pytest.mark.parametrize("method", ["_by_batch", "_by_ghost"])
def test_every_mutant_is_caught(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(function: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module._GhostBatchNorm, method, function)
            for split in SPLITS:
                assert_defined(*split)
                assert_averaged(*split)

    assert survivors(getattr(module._GhostBatchNorm, method), check) == []


@pytest.mark.parametrize("size", [7, 8, 100])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_ghost_is_batch_norm_bit_for_bit(size: int, momentum: float | None) -> None:
    x, dl_dy = draw(7, 3, 2), draw(7, 3, 2, seed=1)
    ghost = make(x.shape, size, momentum=momentum)
    plain = BatchNorm1d(3, momentum=momentum, dtype=torch.float64)
    plain.load_state_dict(ghost.state_dict())
    for _ in range(2):
        assert_equal(run(ghost, x, dl_dy), run(plain, x, dl_dy), 0.0)


def test_ghosts_of_one_image_are_instance_norm() -> None:
    x = draw(3, 4, 5, 6)
    layer = make(x.shape, 1, affine=False)
    expected = nn.functional.instance_norm(x, eps=layer.eps)
    assert distance(layer(x), expected) < EXACT


def test_evaluation_is_batch_norm_s() -> None:
    x, dl_dy = draw(7, 3), draw(7, 3, seed=1)
    ghost, plain = make(x.shape, 2), BatchNorm1d(3, dtype=torch.float64)
    ghost(x)
    plain.load_state_dict(ghost.state_dict())
    assert_equal(run(ghost.eval(), x, dl_dy), run(plain.eval(), x, dl_dy), 0.0)


def test_without_statistics_evaluation_goes_by_ghosts() -> None:
    x = draw(6, 3)
    layer = make(x.shape, 2, track_running_stats=False)
    assert torch.equal(layer(x), layer.eval()(x))


few = settings(max_examples=20, deadline=None, derandomize=True)


@few
@given(st.integers(2, 12), st.integers(2, 5), st.integers(0, 99))
def test_a_ghost_knows_nothing_of_the_others(count: int, size: int, seed: int) -> None:
    layer = make((count, 3), size)
    x = draw(count, 3, seed=seed)
    other = x.clone()
    other[size + 1 :] *= 50  # the first ghost has size examples, or size + 1
    first = min(size, count)
    assert distance(layer(other)[:first], layer(x)[:first]) < EXACT or count == size + 1


@few
@given(st.integers(4, 12), st.integers(2, 4), st.integers(0, 99))
def test_the_gradient_sums_to_0_in_every_ghost(
    count: int, size: int, seed: int
) -> None:
    layer = make((count, 3), size)
    dl_dx = run(layer, draw(count, 3, seed=seed), draw(count, 3, seed=-1))["dl_dx"]
    first = count if count < 2 * size and count - size == 1 else size
    assert dl_dx[:first].sum(0).abs().max() < EXACT
    assert dl_dx.sum(0).abs().max() < EXACT


def test_the_running_variance_lacks_the_spread_between_ghosts() -> None:
    x = draw(6, 3)
    x[3:] += 100
    layer = make(x.shape, 3, momentum=1.0)
    layer(x)
    assert (layer.running_var < x.var(0) / 50).all()


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 2)])
def test_derivatives_equal_differences(check: str, shape: tuple[int, ...]) -> None:
    layer = make(shape, 2)
    leaves = [draw(*shape), layer.weight.detach(), layer.bias.detach()]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        state = {"weight": weight, "bias": bias}
        y: Tensor = torch.func.functional_call(layer, state, x)
        return y

    assert getattr(torch.autograd, check)(f, leaves)


def test_checkpoints_go_both_ways() -> None:
    ghost, plain = make((6, 3), 2), nn.BatchNorm1d(3, dtype=torch.float64)
    ghost(draw(6, 3))
    plain.load_state_dict(ghost.state_dict())
    again = make((6, 3), 2)
    again.load_state_dict(plain.state_dict())
    assert_equal(again.state_dict(), ghost.state_dict(), 0.0)


def test_recalibration_averages_the_ghosts_of_all_batches() -> None:
    layer = make((6, 3), 3)
    batches = [draw(6, 3), draw(3, 3, seed=1)]
    recalibrate(layer, batches)
    ghosts = [*torch.split(batches[0], 3), batches[1]]
    assert distance(layer.running_mean, torch.cat(batches).mean(0)) < EXACT
    var = torch.stack([g.var(0) for g in ghosts]).mean(0)
    assert distance(layer.running_var, var) < EXACT


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_mixed", [True, False])
def test_half_precision_is_rounded_once(dtype: torch.dtype, is_mixed: bool) -> None:
    x, state = draw(7, 3, dtype=dtype), torch.float32 if is_mixed else dtype
    layer, exact = make(x.shape, 3).to(state), make(x.shape, 3)
    exact.load_state_dict({k: v.to(v.dtype) for k, v in layer.state_dict().items()})
    y = layer(x)
    assert y.dtype == dtype
    assert distance(y, exact(x.double())) <= torch.finfo(dtype).eps
    assert layer.running_var.dtype == state


def test_without_gain_and_bias_it_is_the_same_with_1_and_0() -> None:
    x = draw(8, 3)
    plain = make(x.shape, 3, affine=False)
    gained = GhostBatchNorm1d(3, 3, dtype=torch.float64)
    assert torch.equal(plain(x), gained(x))
    bare = GhostBatchNorm1d(3, 3, dtype=torch.float64, bias=False)
    assert torch.equal(bare(x), gained(x))


@pytest.mark.parametrize("size", [2, 3])
def test_channels_last_stays_so(size: int) -> None:
    x = draw(5, 3, 2, 4).contiguous(memory_format=torch.channels_last)
    y = make(x.shape, size)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert distance(y, make(x.shape, size)(x.contiguous())) < EXACT


def test_an_empty_batch_leaves_the_statistics() -> None:
    layer, plain = make((6, 3), 2), BatchNorm1d(3, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    assert layer(draw(0, 3)).shape == plain(draw(0, 3)).shape == (0, 3)
    assert_equal(layer.state_dict(), plain.state_dict(), 0.0)


def test_vmap_equals_a_loop_over_batches() -> None:
    layer = make((7, 3), 3, track_running_stats=False)
    x = draw(2, 7, 3)
    found = torch.func.vmap(layer)(x)
    assert distance(found, torch.stack([layer(part) for part in x])) < EXACT


def test_it_says_what_it_is() -> None:
    assert "virtual_batch_size=4" in repr(GhostBatchNorm2d(3, 4))
    assert isinstance(GhostBatchNorm2d(3, 4), BatchNorm2d)


@pytest.mark.parametrize(
    ("size", "error", "match"),
    [
        (2.0, TypeError, "must be a whole number, got 2.0"),
        (True, TypeError, "got True"),
        (None, TypeError, "got None"),
        (0, ValueError, "at least 1, got 0"),
        (-3, ValueError, "at least 1, got -3"),
    ],
)
def test_a_bad_size_is_refused_also_when_set_later(
    size: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        GhostBatchNorm1d(3, size)
    layer = make((6, 3), 2)
    layer.virtual_batch_size = size
    with pytest.raises(error, match=match):
        layer(draw(6, 3))
    assert layer.num_batches_tracked == 0


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 1)])
def test_ghosts_of_one_value_are_refused(shape: tuple[int, ...]) -> None:
    layer = make(shape, 1)
    with pytest.raises(ValueError, match="more than 1 value per channel in a ghost"):
        layer(draw(*shape))
    assert layer.num_batches_tracked == 0
    assert layer.eval()(draw(*shape)).shape == shape


def test_a_batch_of_one_is_refused_as_by_batch_norm() -> None:
    with pytest.raises(ValueError, match="GhostBatchNorm1d needs more than 1 value"):
        make((1, 3), 4)(draw(1, 3))
