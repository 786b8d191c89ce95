"""What must hold for any input: properties of the layers on generated batches."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_pairs import PAIRS, Pair, assert_equal, distance, draw, run, twins
from torch import Tensor

# float64. The largest factor and shift below are 1e3: three of 16 digits.
CLOSE = 1e-9
few = settings(max_examples=20, deadline=None, derandomize=True)


@st.composite
def problems(draw_from: st.DrawFn, /, **options: Any) -> tuple[Any, Tensor, Tensor]:
    """Return a layer with a random state, an input and a gradient from above."""
    pair = draw_from(st.sampled_from(PAIRS))
    N, C = draw_from(st.integers(2, 6)), draw_from(st.integers(1, 4))
    rest = [draw_from(st.integers(1, 4)) for _ in pair.shape[2:]]
    shape, seed = (N, C, *rest), draw_from(st.integers(0, 2**20))
    layer = twins(Pair(pair.ours, pair.theirs, shape), **options)[0]
    return layer, draw(*shape, seed=seed), draw(*shape, seed=seed + 1)


factors = st.floats(1e-3, 1e3)
shifts = st.floats(-1e3, 1e3)


@few
@given(problems(), shifts)
def test_a_shift_of_the_input_changes_only_the_running_mean(
    problem: tuple[Any, Tensor, Tensor], shift: float
) -> None:
    layer, x, dl_dy = problem
    layer.momentum = 1.0
    before, after = run(layer, x, dl_dy), run(layer, x + shift, dl_dy)
    after["running_mean"] -= shift
    after["num_batches_tracked"] -= 1
    assert_equal(after, before, 1e-7)  # differences of numbers near 1e3


@few
@given(problems(), factors, st.booleans())
def test_a_factor_on_the_input_leaves_the_output_and_divides_the_gradient(
    problem: tuple[Any, Tensor, Tensor], factor: float, is_negative: bool
) -> None:
    layer, x, dl_dy = problem
    a = -factor if is_negative else factor
    layer.eps = 1e-3
    before = run(layer, x, dl_dy)
    layer.eps = 1e-3 * a * a  # eps has the unit of the variance
    sign = -1 if is_negative else 1
    bias = layer.bias.detach().reshape(1, -1, *(1,) * (x.ndim - 2))
    after = run(layer, a * x, dl_dy)
    assert distance(after["y"] - bias, sign * (before["y"] - bias)) < CLOSE
    scale = before["dl_dx"].abs().max() + 1  # may all but vanish at N = 2
    assert ((after["dl_dx"] * a - sign * before["dl_dx"]) / scale).abs().max() < CLOSE


@few
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_examples_does_not_matter(
    problem: tuple[Any, Tensor, Tensor], random: Any
) -> None:
    layer, x, dl_dy = problem
    layer.momentum = 1.0
    order = random.sample(range(len(x)), len(x))
    before, after = run(layer, x, dl_dy), run(layer, x[order], dl_dy[order])
    for key in ("y", "dl_dx"):
        before[key] = before[key][order]
    before["num_batches_tracked"] += 1
    before["dl_dx"] += 1  # compared with 1, for it all but vanishes at N = 2
    after["dl_dx"] += 1
    assert_equal(after, before, CLOSE)


@few
@given(problems(), st.booleans())
def test_a_channel_knows_nothing_of_the_others(
    problem: tuple[Any, Tensor, Tensor], is_training: bool
) -> None:
    layer, x, dl_dy = problem
    layer.train(is_training).momentum = 1.0
    other = x.clone()
    other[:, 1:] = draw(*other[:, 1:].shape, seed=7) * 50
    before, after = run(layer, x, dl_dy), run(layer, other, dl_dy)
    for key in ("y", "dl_dx"):
        assert torch.equal(before[key][:, :1], after[key][:, :1])
    for key in ("dl_dweight", "running_mean", "running_var"):
        assert torch.equal(before[key][:1], after[key][:1])


@few
@given(problems())
def test_in_evaluation_an_example_knows_nothing_of_the_others(
    problem: tuple[Any, Tensor, Tensor],
) -> None:
    layer, x, dl_dy = problem
    whole = run(layer.eval(), x, dl_dy)
    alone = run(layer, x[:1], dl_dy[:1])
    assert distance(alone["y"], whole["y"][:1]) < CLOSE
    assert distance(alone["dl_dx"], whole["dl_dx"][:1]) < CLOSE


@few
@given(problems(affine=False))
def test_evaluation_after_momentum_1_shrinks_the_output_by_the_unbiased_variance(
    problem: tuple[Any, Tensor, Tensor],
) -> None:
    layer, x, _ = problem
    layer.momentum, layer.eps = 1.0, 1e-12
    y = layer(x)
    n = x.numel() / x.shape[1]
    # sigma_hat^2 = n / (n - 1) sigma^2, up to eps beside the variance
    assert distance(layer.eval()(x), ((n - 1) / n) ** 0.5 * y) < 1e-6


@few
@given(problems(affine=False))
def test_the_output_has_mean_0_and_the_variance_that_eps_leaves(
    problem: tuple[Any, Tensor, Tensor],
) -> None:
    layer, x, _ = problem
    layer.eps = 0.5
    axes = [0, *range(2, x.ndim)]
    var, y_var = x.var(axes, correction=0), layer(x).var(axes, correction=0)
    assert layer(x).mean(axes).abs().max() < CLOSE
    assert distance(y_var, var / (var + 0.5)) < CLOSE


@few
@given(problems())
def test_the_gradient_sums_to_0_and_nearly_forgets_the_direction_of_the_input(
    problem: tuple[Any, Tensor, Tensor],
) -> None:
    layer, x, dl_dy = problem
    layer.eps = 0.5
    found = run(layer, x, dl_dy)
    axes = [0, *range(2, x.ndim)]
    var, mu = torch.var_mean(x, axes, correction=0, keepdim=True)
    inv_std = (var + 0.5) ** -0.5
    along = (found["dl_dx"] * (x - mu) * inv_std).sum(axes)
    # What is left along x_hat is the share eps / (var + eps).
    share = 0.5 * (inv_std**3).flatten() * layer.weight.detach() * found["dl_dweight"]
    assert found["dl_dx"].sum(axes).abs().max() < CLOSE
    assert (along - share).abs().max() < CLOSE


@few
@given(problems(), st.integers(0, 4))
def test_state_goes_through_a_state_dict_unchanged(
    problem: tuple[Any, Tensor, Tensor], steps: int
) -> None:
    layer, x, dl_dy = problem
    for _ in range(steps):
        layer(x)
    other = type(layer)(layer.num_features, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert_equal(other.state_dict(), layer.state_dict(), 0.0)
    for is_training in (True, False):
        layer.train(is_training), other.train(is_training)
        assert_equal(run(other, x, dl_dy), run(layer, x, dl_dy), 0.0)


@few
@given(problems(momentum=None), st.integers(1, 5))
def test_without_momentum_the_running_statistics_are_the_plain_average(
    problem: tuple[Any, Tensor, Tensor], steps: int
) -> None:
    layer, x, _ = problem
    layer.reset_running_stats()
    axes = [0, *range(2, x.ndim)]
    batches = [x * (k + 1) for k in range(steps)]
    for batch in batches:
        layer(batch)
    means = torch.stack([b.mean(axes) for b in batches])
    variances = torch.stack([b.var(axes) for b in batches])
    assert distance(layer.running_mean, means.mean(0)) < CLOSE
    assert distance(layer.running_var, variances.mean(0)) < CLOSE
