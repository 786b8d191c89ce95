"""Ghost, renormalized and unbiased batch norm: definitions, limits, and batch norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from layer_derivatives import arguments, as_function
from layer_pairs import (
    EXACT,
    HALF,
    assert_checkpoints_go_both_ways,
    assert_equal,
    assert_every_mutant_is_caught,
    distance,
    draw,
    run,
    stirred,
)
from torch import Tensor, nn

from normbook.layers import small_batches as module
from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.small_batches import (
    BatchRenorm1d,
    BatchRenorm2d,
    BatchRenorm3d,
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    GhostBatchNorm3d,
    UnbiasedBatchNorm1d,
)

GHOST: Any = {2: GhostBatchNorm1d, 3: GhostBatchNorm1d, 4: GhostBatchNorm2d}
GHOST |= {5: GhostBatchNorm3d}
RENORM: Any = {2: BatchRenorm1d, 3: BatchRenorm1d, 4: BatchRenorm2d, 5: BatchRenorm3d}
PLAIN: Any = {2: BatchNorm1d, 3: BatchNorm1d, 4: BatchNorm2d, 5: BatchNorm3d}


DOUBLE: Any = {"dtype": torch.float64}


def ghost(shape: tuple[int, ...], size: int = 3, **options: Any) -> Any:
    """Make a layer with a random state."""
    return stirred(GHOST[len(shape)](shape[1], size, **DOUBLE | options))


def renorm(shape: tuple[int, ...], **options: Any) -> Any:
    """Make a layer with a random state; the deviation is less than that of draw."""
    layer: Any = stirred(RENORM[len(shape)](shape[1], **DOUBLE | options))
    layer.running_var.mul_(torch.tensor([1.0, 4.0, 16.0])[: shape[1]])
    return layer


def unbiased(shape: tuple[int, ...], **options: Any) -> Any:
    return stirred(UnbiasedBatchNorm1d(shape[1], **DOUBLE | options))


def twin(layer: Any) -> Any:
    """Make the plain layer with the same state and settings."""
    settings = layer.num_features, layer.eps, layer.momentum
    plain = PLAIN[max(layer._ndims)](*settings, **DOUBLE)
    plain.load_state_dict(layer.state_dict())
    return plain.train(layer.training)


each_kind = pytest.mark.parametrize("make", [ghost, renorm, unbiased])


class Defined(nn.Module):
    """Gain and bias behind a definition of x_hat, for autograd to differentiate."""

    def __init__(self, layer: Any, x_hat: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.x_hat = layer.weight, layer.bias, x_hat

    def forward(self, x: Tensor) -> Tensor:
        gamma, beta = (per_channel(v, x.ndim) for v in (self.weight, self.bias))
        y: Tensor = gamma * self.x_hat(x) + beta
        return y


def per_channel(value: Tensor, ndim: int) -> Tensor:
    return value.view(1, -1, *(1,) * (ndim - 2))


def standardized(x: Tensor, eps: float, correction: int = 0) -> Tensor:
    axes = [0, *range(2, x.ndim)]
    var, mu = torch.var_mean(x, axes, correction=correction, keepdim=True)
    return (x - mu) / (var + eps).sqrt()


def assert_defined(layer: Any, x_hat: Callable[[Tensor], Tensor], x: Tensor) -> None:
    dl_dy = draw(*x.shape, seed=1)
    expected = run(Defined(layer, x_hat), x, dl_dy)
    found = run(layer, x, dl_dy)
    assert_equal({k: found[k] for k in expected}, expected)


# --- what the three have in common with batch norm


@each_kind
def test_evaluation_and_empty_batches_are_batch_norm_s(make: Any) -> None:
    layer = make((7, 3))
    layer(draw(7, 3))
    plain, x, dl_dy = twin(layer), draw(7, 3), draw(7, 3, seed=1)
    assert layer(draw(0, 3)).shape == plain(draw(0, 3)).shape == (0, 3)
    assert_equal(layer.state_dict(), plain.state_dict(), 0.0)
    assert_equal(run(layer.eval(), x, dl_dy), run(plain.eval(), x, dl_dy), 0.0)


@pytest.mark.parametrize("make", [renorm, unbiased])
@pytest.mark.parametrize("shape", [(7, 3), (2, 3), (5, 3, 4)], ids=str)
def test_the_statistics_are_updated_as_by_batch_norm(
    shape: tuple[int, ...], make: Any
) -> None:
    layer = make(shape)
    plain = twin(layer)
    for seed in range(3):
        layer(draw(*shape, seed=seed)), plain(draw(*shape, seed=seed))
    assert_equal(layer.state_dict(), plain.state_dict(), 0.0)


@pytest.mark.parametrize("kind", [BatchRenorm1d, UnbiasedBatchNorm1d])
def test_recalibration_gives_batch_norm_s_statistics(kind: Any) -> None:
    def net(layer: Any) -> Any:
        return nn.Sequential(layer(3), nn.Tanh(), layer(3)).double()

    def settings(model: Any) -> list[dict[str, Any]]:
        own = [vars(layer).items() for layer in model[::2]]
        return [{k: v for k, v in pairs if not k.startswith("_")} for pairs in own]

    special, plain = net(kind), net(BatchNorm1d)
    if kind is UnbiasedBatchNorm1d:  # the next layer sees another input
        special, plain = special[:1], plain[:1]
    before = settings(special)
    for model in (special, plain):
        recalibrate(model, [draw(7, 3), draw(7, 3, seed=1), draw(4, 3, seed=2)])
    assert_equal(special.state_dict(), plain.state_dict(), 0.0)
    assert settings(special) == before


@each_kind
def test_checkpoints_go_both_ways(make: Any) -> None:
    layer, plain = make((7, 3)), nn.BatchNorm1d(3, **DOUBLE)
    layer(draw(7, 3))
    assert_checkpoints_go_both_ways(layer, plain, make((7, 3)))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("is_mixed", [True, False])
@each_kind
def test_half_precision_is_rounded_once(
    make: Any, is_mixed: bool, dtype: torch.dtype
) -> None:
    x, state = draw(7, 3, dtype=dtype), torch.float32 if is_mixed else dtype
    layer, exact = make(x.shape).to(state), make(x.shape)
    exact.load_state_dict({k: v.to(v.dtype) for k, v in layer.state_dict().items()})
    y = layer(x)
    assert y.dtype == dtype
    # The gain of the unbiased one is rounded once more, where it is half itself.
    allowed = torch.finfo(dtype).eps * (2 if make is unbiased else 1)
    assert distance(y, exact(x.double())) <= allowed
    assert layer.running_var.dtype == state


@pytest.mark.parametrize("options", [{"affine": False}, {"bias": False}])
@each_kind
def test_without_gain_or_bias_it_is_the_same_with_1_and_0(
    make: Any, options: Any
) -> None:
    bare, whole = make((8, 3), **options), make((8, 3))
    for layer in (bare, whole):
        layer.reset_parameters()
    assert torch.equal(bare(draw(8, 3)), whole(draw(8, 3)))


def test_it_says_what_it_is() -> None:
    layers = GhostBatchNorm2d(3, 4), BatchRenorm2d(3)
    settings = "virtual_batch_size=4)", "r_max=3.0, d_max=5.0)"
    for layer, text in zip(layers, settings, strict=True):
        assert repr(layer).endswith(text)
        assert isinstance(layer, BatchNorm2d)


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 2)])
@pytest.mark.parametrize("make", [ghost, unbiased, renorm])
def test_derivatives_equal_differences(
    make: Any, shape: tuple[int, ...], check: str
) -> None:
    # Differences know nothing of constants, but clipped values of r and d do not move.
    limits = {"r_max": 1.01, "d_max": 0.01, "momentum": 0.0} if make is renorm else {}
    layer, x = make(shape, **limits), draw(*shape) * 9
    if make is renorm:
        r, d = correction(layer, x)
        assert set(r.tolist()) <= {1.01, 1 / 1.01}
        assert set(d.abs().tolist()) == {0.01}
    assert getattr(torch.autograd, check)(as_function(layer), arguments(layer, x))


# --- ghosts

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


@pytest.mark.parametrize(("shape", "size", "ghosts"), SPLITS, ids=str)
def test_ghosts_are_normalized_by_themselves_and_averaged_by_their_size(
    shape: tuple[int, ...], size: int, ghosts: list[int]
) -> None:
    def by_ghost(x: Tensor) -> Tensor:
        return torch.cat([standardized(part, 0.1) for part in torch.split(x, ghosts)])

    layer, x = ghost(shape, size, eps=0.1, momentum=1.0), draw(*shape)
    assert_defined(layer, by_ghost, x)
    axes = [0, *range(2, len(shape))]
    weighted = [(len(p) / len(x), p) for p in torch.split(x, ghosts)]
    mean = torch.stack([w * p.mean(axes) for w, p in weighted]).sum(0)
    var = torch.stack([w * p.var(axes, correction=1) for w, p in weighted]).sum(0)
    assert distance(layer.running_mean, mean) < EXACT
    assert distance(layer.running_var, var) < EXACT


@pytest.mark.parametrize("method", ["_by_batch", "_by_ghost"])
def test_every_mutant_of_the_ghosts_is_caught(method: str) -> None:
    def check() -> None:
        for split in SPLITS:
            test_ghosts_are_normalized_by_themselves_and_averaged_by_their_size(*split)

    assert_every_mutant_is_caught(module._GhostBatchNorm, method, check)


@pytest.mark.parametrize("size", [7, 8, 100])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_ghost_is_batch_norm_bit_for_bit(size: int, momentum: float | None) -> None:
    x, dl_dy = draw(7, 3, 2), draw(7, 3, 2, seed=1)
    layer = ghost(x.shape, size, momentum=momentum)
    plain = twin(layer)
    for _ in range(2):
        assert_equal(run(layer, x, dl_dy), run(plain, x, dl_dy), 0.0)


def test_without_statistics_evaluation_goes_by_ghosts() -> None:
    layer, x = ghost((6, 3), 2, track_running_stats=False), draw(6, 3)
    assert torch.equal(layer(x), layer.eval()(x))


def test_recalibration_averages_the_ghosts_of_all_batches() -> None:
    layer = ghost((6, 3))
    batches = [draw(6, 3), draw(3, 3, seed=1)]
    recalibrate(layer, batches)
    ghosts = [*torch.split(batches[0], 3), batches[1]]
    assert distance(layer.running_mean, torch.cat(batches).mean(0)) < EXACT
    var = torch.stack([g.var(0) for g in ghosts]).mean(0)
    assert distance(layer.running_var, var) < EXACT


@pytest.mark.parametrize("size", [2, 3])
def test_channels_last_stays_so(size: int) -> None:
    x = draw(5, 3, 2, 4).contiguous(memory_format=torch.channels_last)
    y = ghost(x.shape, size)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert distance(y, ghost(x.shape, size)(x.contiguous())) < EXACT


def test_vmap_equals_a_loop_over_batches() -> None:
    layer, x = ghost((7, 3), track_running_stats=False), draw(2, 7, 3)
    found = torch.func.vmap(layer)(x)
    assert distance(found, torch.stack([layer(part) for part in x])) < EXACT


def test_ghosts_of_one_value_will_do_in_evaluation() -> None:
    assert ghost((6, 3), 1).eval()(draw(6, 3)).shape == (6, 3)


# --- renormalization

SHAPES = [(7, 3), (5, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)]
# What is clipped: nothing, everything, and some channels.
LIMITS = [(math.inf, math.inf), (1.001, 0.001), (1.5, 0.2)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.mark.parametrize(("r_max", "d_max"), LIMITS)
@each_shape
def test_renormalization_is_its_definition(
    shape: tuple[int, ...], r_max: float, d_max: float
) -> None:
    layer = renorm(shape, eps=0.1, momentum=0.0, r_max=r_max, d_max=d_max)
    mu, var = (per_channel(v, len(shape)) for v in list(layer.buffers())[:2])
    sigma = (var + 0.1).sqrt()

    def corrected(x: Tensor) -> Tensor:
        axes = [0, *range(2, x.ndim)]
        var_batch, mu_batch = torch.var_mean(x, axes, correction=0, keepdim=True)
        sigma_batch = (var_batch + 0.1).sqrt()
        r = (sigma_batch / sigma).detach().clip(1 / r_max, r_max)
        d = ((mu_batch - mu) / sigma).detach().clip(-d_max, d_max)
        return (x - mu_batch) / sigma_batch * r + d

    for sign in (1, -1):  # for d is clipped on both sides
        assert_defined(layer, corrected, sign * draw(*shape))


def correction(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    statistics = layer.running_mean, layer.running_var
    return module._correction(x, *statistics, layer.eps, layer.r_max, layer.d_max)


def test_the_limits_of_these_tests_clip_nothing_everything_and_some() -> None:
    x, counts = draw(7, 3), []
    for r_max, d_max in LIMITS:
        r, d = correction(renorm(x.shape, r_max=r_max, d_max=d_max), x)
        is_clipped = [(r == r_max) | (r == 1 / r_max), d.abs() == d_max]
        counts.append([int(value.sum()) for value in is_clipped])
    assert counts[0] == [0, 0]
    assert counts[1] == [3, 3]
    assert all(0 < count < 3 for count in counts[2])


@pytest.mark.parametrize(
    ("owner", "name"), [(module._BatchRenorm, "_by_batch"), (module, "_correction")]
)
def test_every_mutant_of_the_renormalization_is_caught(owner: Any, name: str) -> None:
    def check() -> None:
        for limits in LIMITS:
            test_renormalization_is_its_definition((7, 3), *limits)

    assert_every_mutant_is_caught(owner, name, check)


@each_shape
def test_with_r_1_and_d_0_it_is_batch_norm_bit_for_bit(shape: tuple[int, ...]) -> None:
    layer = renorm(shape, r_max=1.0, d_max=0.0)
    plain, x, dl_dy = twin(layer), draw(*shape), draw(*shape, seed=1)
    for is_training in (True, True, False):
        layer.train(is_training), plain.train(is_training)
        assert_equal(run(layer, x, dl_dy), run(plain, x, dl_dy), 0.0)


@each_shape
def test_unclipped_training_gives_the_output_of_evaluation_but_not_its_gradient(
    shape: tuple[int, ...],
) -> None:
    layer = renorm(shape, r_max=math.inf, d_max=math.inf)
    x, dl_dy, axes = draw(*shape), draw(*shape, seed=1), (0, *range(2, len(shape)))
    evaluated, trained = (
        run(layer.train(is_training), x, dl_dy) for is_training in (False, True)
    )
    assert distance(trained["y"], evaluated["y"]) < EXACT
    assert distance(layer(x), evaluated["y"]) > 0.01  # the statistics have moved
    assert trained["dl_dx"].sum(axes).abs().max() < EXACT
    assert evaluated["dl_dx"].sum(axes).abs().min() > 0.1


def test_limits_set_by_a_schedule_count_from_the_next_call() -> None:
    layer = renorm((7, 3), r_max=1.0, d_max=0.0, momentum=0.0)
    x = draw(7, 3)
    first = layer(x)
    layer.r_max, layer.d_max = 3.0, 5.0
    relaxed = renorm((7, 3), momentum=0.0)
    assert torch.equal(layer(x), relaxed(x))
    assert distance(layer(x), first) > 0.01


# --- the unbiased variance


@pytest.mark.parametrize("eps", [0.1, 2.0])  # at N = 2 the slope is eps's alone
def test_unbiased_batch_norm_is_its_definition(eps: float) -> None:
    for shape in ((7, 3), (2, 3), (5, 3, 4)):
        layer, x = unbiased(shape, eps=eps), draw(*shape)
        assert_defined(layer, lambda x: standardized(x, eps, correction=1), x)


def test_every_mutant_of_the_unbiased_layer_is_caught() -> None:
    check = partial(test_unbiased_batch_norm_is_its_definition, 2.0)
    assert_every_mutant_is_caught(UnbiasedBatchNorm1d, "_by_batch", check)
