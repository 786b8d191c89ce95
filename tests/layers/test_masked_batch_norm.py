"""Masked batch norm: it is batch norm of the live entries, and padding is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_pairs import EXACT, assert_equal, distance, draw
from torch import Tensor, nn

from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.sequences import MaskedBatchNorm1d

SHAPES = [(4, 3, 5), (7, 3)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])


def make(kind: Any = MaskedBatchNorm1d, **options: Any) -> Any:
    """Make a layer of 3 channels with a random state, the same for each kind."""
    layer = kind(3, **{"dtype": torch.float64} | options)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2, generator=generator)
    return layer


def problem(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Give an input, padded at the ends of sequences and elsewhere, and its mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand((shape[0], *shape[2:]), generator=generator) < 0.6
    mask.view(-1)[:2] = True
    mask.view(-1)[2] = False
    return draw(*shape, seed=seed), mask


def run(layer: Any, x: Tensor, mask: Tensor | None, dl_dy: Tensor) -> dict[str, Tensor]:
    """Give the output, every gradient, and the buffers afterwards."""
    x = x.detach().clone().requires_grad_()
    y = layer(x) if mask is None else layer(x, mask)
    leaves = {"x": x} | dict(layer.named_parameters())
    slopes = torch.autograd.grad(y, list(leaves.values()), dl_dy)
    found = {f"dl_d{k}": v for k, v in zip(leaves, slopes, strict=True)}
    return {"y": y.detach()} | found | {k: v.clone() for k, v in layer.named_buffers()}


def packed(x: Tensor, mask: Tensor) -> Tensor:
    """Put the live entries together, one by one: (K, C)."""
    places = mask.nonzero().tolist()
    return torch.stack([x[n, :, *rest] for n, *rest in places])


@each_mode
@each_shape
def test_it_is_batch_norm_of_the_packed_values(
    shape: tuple[int, ...], is_training: bool
) -> None:
    x, mask = problem(shape)
    dl_dy = draw(*shape, seed=1)
    found = run(make().train(is_training), x, mask, dl_dy)
    plain = make(BatchNorm1d).train(is_training)
    expected = run(plain, packed(x, mask), None, packed(dl_dy, mask))
    for key in ("y", "dl_dx"):
        found[key] = packed(found[key], mask)
    assert_equal(found, expected)


@each_shape
def test_the_statistics_are_the_sums_of_the_definition(shape: tuple[int, ...]) -> None:
    x, mask = problem(shape)
    layer = make(momentum=1.0)
    layer(x, mask)
    m = mask.unsqueeze(1).double()
    axes = [0, *range(2, x.ndim)]
    K = m.sum()
    mu = (m * x).sum(axes, keepdim=True) / K
    var = (m * (x - mu) ** 2).sum(axes) / K
    assert distance(layer.running_mean, mu.flatten()) < EXACT
    assert distance(layer.running_var, var * K / (K - 1)) < EXACT


@each_mode
@each_shape
def test_padding_becomes_0_and_passes_no_gradient(
    shape: tuple[int, ...], is_training: bool
) -> None:
    x, mask = problem(shape)
    found = run(make().train(is_training), x, mask, draw(*shape, seed=1))
    for key in ("y", "dl_dx"):
        assert (packed(found[key], ~mask) == 0).all()
        assert (packed(found[key], mask) != 0).all()


@each_mode
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e300])
def test_what_stands_in_the_padding_does_not_matter(
    is_training: bool, junk: float
) -> None:
    x, mask = problem((4, 3, 5))
    other = x.masked_fill(~mask.unsqueeze(1), junk)
    dl_dy = draw(4, 3, 5, seed=1)
    found = run(make().train(is_training), other, mask, dl_dy)
    assert_equal(found, run(make().train(is_training), x, mask, dl_dy), 0.0)


@each_mode
@each_shape
def test_with_nothing_padded_it_is_batch_norm(
    shape: tuple[int, ...], is_training: bool
) -> None:
    x, dl_dy = draw(*shape), draw(*shape, seed=1)
    mask = torch.ones(shape[0], *shape[2:], dtype=torch.bool)
    found = run(make().train(is_training), x, mask, dl_dy)
    expected = run(make(BatchNorm1d).train(is_training), x, None, dl_dy)
    assert_equal(found, expected)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 9), st.integers(0, 2**20))
def test_more_padding_changes_nothing(more: int, seed: int) -> None:
    x, mask = problem((4, 3, 5), seed)
    longer = torch.cat([x, torch.zeros(4, 3, more, dtype=x.dtype)], 2)
    mask_longer = torch.cat([mask, torch.zeros(4, more, dtype=torch.bool)], 1)
    y = make()(longer, mask_longer)
    assert torch.equal(y[..., :5], make()(x, mask))
    assert (y[..., 5:] == 0).all()


def test_batch_norm_of_zero_padding_has_the_statistics_that_the_padding_gives_it() -> (
    None
):
    x, mask = problem((4, 3, 5))
    p = 1 - mask.double().mean()
    layer, plain = make(momentum=1.0), make(BatchNorm1d, momentum=1.0)
    layer(x, mask)
    plain(x * mask.unsqueeze(1))
    K, n = int(mask.sum()), mask.numel()
    mu, var = layer.running_mean, layer.running_var * (K - 1) / K
    assert distance(plain.running_mean, (1 - p) * mu) < EXACT
    padded = (1 - p) * var + p * (1 - p) * mu**2
    assert distance(plain.running_var * (n - 1) / n, padded) < EXACT


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
@each_mode
def test_derivatives_equal_differences(check: str, is_training: bool) -> None:
    x, mask = problem((2, 3, 3))
    layer = make().train(is_training)
    leaves = [v.detach().clone() for v in (x, layer.weight, layer.bias)]

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        state = {"weight": weight, "bias": bias}
        y: Tensor = torch.func.functional_call(layer, state, (x, mask))
        return y

    assert getattr(torch.autograd, check)(f, [leaf.requires_grad_() for leaf in leaves])


@each_mode
def test_without_live_entries_the_output_is_0_and_the_statistics_stay(
    is_training: bool,
) -> None:
    layer = make().train(is_training)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    x = draw(4, 3, 5).requires_grad_()
    y = layer(x, torch.zeros(4, 5, dtype=torch.bool))
    (dl_dx,) = torch.autograd.grad(y.sum(), x)
    assert (y == 0).all()
    assert (dl_dx == 0).all()
    for key in ("running_mean", "running_var"):
        assert torch.equal(layer.state_dict()[key], before[key])


def test_checkpoints_go_both_ways() -> None:
    layer, plain = make(), nn.BatchNorm1d(3, dtype=torch.float64)
    layer(*problem((4, 3, 5)))
    plain.load_state_dict(layer.state_dict())
    again = make()
    again.load_state_dict(plain.state_dict())
    assert_equal(again.state_dict(), layer.state_dict(), 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_batch_norm(dtype: torch.dtype) -> None:
    x, mask = problem((4, 3, 5))
    x = x.to(dtype)
    y = make(dtype=torch.float32)(x, mask)
    expected = make(BatchNorm1d, dtype=torch.float32)(packed(x, mask))
    assert y.dtype == dtype
    assert torch.equal(packed(y, mask), expected)


class FromNan(nn.Module):
    """Take NaN for padding, so that the model has one input."""

    def __init__(self, is_by_name: bool) -> None:
        super().__init__()
        self.norm, self.is_by_name = make(), is_by_name

    def forward(self, x: Tensor) -> Tensor:
        mask = ~x.isnan().any(1)
        y: Tensor = self.norm(x, mask=mask) if self.is_by_name else self.norm(x, mask)
        return y


@pytest.mark.parametrize("is_by_name", [True, False])
def test_recalibration_weighs_a_batch_by_its_live_entries(is_by_name: bool) -> None:
    model, batches, parts = FromNan(is_by_name), [], []
    for seed, shape in enumerate([(4, 3, 5), (2, 3, 9)]):
        x, mask = problem(shape, seed)
        batches.append(x.masked_fill(~mask.unsqueeze(1), torch.nan))
        parts.append(packed(x, mask))
    batches.insert(0, torch.full((3, 3, 4), torch.nan, dtype=torch.float64))
    recalibrate(model, batches)
    sizes = torch.tensor([len(part) for part in parts]).double()
    var = sum(n * p.var(0) for n, p in zip(sizes, parts, strict=True)) / sizes.sum()
    assert distance(model.norm.running_mean, torch.cat(parts).mean(0)) < EXACT
    assert distance(model.norm.running_var, var) < EXACT
    assert model.norm.num_batches_tracked == 2


X, MASK = problem((4, 3, 5))
BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (X, MASK.double(), TypeError, "dtype bool, got torch.float64"),
    (X, MASK.tolist(), TypeError, "dtype bool, got list"),
    (X, None, TypeError, "got NoneType"),
    (X, MASK[:, :4], ValueError, r"channels, \(4, 5\), got \(4, 4\)"),
    (X, MASK.T, ValueError, r"got \(5, 4\)"),
    (X, MASK[0], ValueError, r"got \(5,\)"),
    (X[..., 0], MASK, ValueError, r"channels, \(4,\), got \(4, 5\)"),
    (X, MASK.to("meta"), RuntimeError, "on one device, got cpu and meta"),
    (X[:, :2], MASK, RuntimeError, r"num_features = 3 .* got shape \(4, 2, 5\)"),
    (X[..., None], MASK, ValueError, "got 4D input"),
    (X.tolist(), MASK, TypeError, "must be a torch tensor, got list"),
    (X.long(), MASK, NotImplementedError, "real floating-point"),
    (X.float(), MASK, RuntimeError, "no mixed dtype"),
]


@pytest.mark.parametrize(("x", "mask", "error", "match"), BAD)
def test_bad_input_is_refused_and_nothing_is_updated(
    x: Any, mask: Any, error: type[Exception], match: str
) -> None:
    layer = make()
    with pytest.raises(error, match=match):
        layer(x, mask)
    assert_equal(layer.state_dict(), make().state_dict(), 0.0)


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_single_live_entry_is_refused_in_training(is_tracked: bool) -> None:
    layer = make(track_running_stats=is_tracked).train(is_tracked)
    mask = torch.zeros_like(MASK)
    mask[2, 1] = True
    with pytest.raises(ValueError, match=r"more than 1 live entry.*shape \(4, 5\)"):
        layer(X, mask)
    assert_equal(layer.state_dict(), make(track_running_stats=is_tracked).state_dict())


def test_a_single_live_entry_will_do_in_evaluation() -> None:
    mask = torch.zeros_like(MASK)
    mask[2, 1] = True
    y = make().eval()(X, mask)
    assert torch.equal(y[2, :, 1], make(BatchNorm1d).eval()(X)[2, :, 1])
