"""Conditional layers: the formulas with their books, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_pairs import EXACT, distance, draw, each_copy, stirred
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.conditional_norm import (
    conditional_norm_backward,
    conditional_norm_forward,
)
from normbook.layers.conditional_norm import (
    AdaptiveLayerNorm,
    AdaptiveRMSNorm,
    ConditionalBatchNorm1d,
    ConditionalBatchNorm2d,
    ConditionalInstanceNorm1d,
    ConditionalInstanceNorm2d,
)

EPS = 0.3
CASES: list[tuple[Any, str, tuple[int, ...]]] = [
    (AdaptiveLayerNorm, "layer norm", (7, 3)),
    (AdaptiveLayerNorm, "layer norm", (4, 5, 3)),
    (AdaptiveRMSNorm, "RMSNorm", (4, 5, 3)),
    (ConditionalBatchNorm1d, "batch norm", (7, 3)),
    (ConditionalBatchNorm1d, "batch norm", (4, 3, 5)),
    (ConditionalBatchNorm2d, "batch norm", (4, 3, 2, 5)),
    (ConditionalInstanceNorm1d, "instance norm", (4, 3, 5)),
    (ConditionalInstanceNorm2d, "instance norm", (4, 3, 2, 5)),
]
each_layer = pytest.mark.parametrize(("kind", "method", "shape"), CASES)


def made(kind: Any, **options: Any) -> Any:
    return kind(3, 2, EPS, dtype=torch.float64, **options)


@each_layer
def test_a_layer_computes_the_formula_and_its_gradients(
    kind: Any, method: str, shape: tuple[int, ...]
) -> None:
    layer, x, c = stirred(made(kind)), draw(*shape), draw(shape[0], 2, seed=1)
    x.requires_grad_()
    y, dl_dy = layer(x, c), draw(*shape, seed=2)
    slopes = torch.autograd.grad(y, [x, *layer.projection.parameters()], dl_dy)
    scale, *shift = layer.projection(c).detach().split(3, 1)
    b = shift[0] if shift else None
    expected, cache = conditional_norm_forward(x.detach(), scale, b, EPS, method=method)
    dl_dx, dl_dscale, dl_dshift = conditional_norm_backward(dl_dy, cache)
    dl_dparts = torch.cat([dl_dscale, *[dl_dshift] * len(shift)], 1)
    found = (y, *slopes), (expected, dl_dx, dl_dparts.T @ c, dl_dparts.sum(0))
    for ours, theirs in zip(*found, strict=True):
        assert distance(ours, theirs) < EXACT


@each_layer
def test_at_the_start_it_is_the_plain_norm_for_every_condition(
    kind: Any, method: str, shape: tuple[int, ...]
) -> None:
    x, c = draw(*shape), draw(shape[0], 2, seed=1)
    expected, _ = conditional_norm_forward(x, eps=EPS, method=method)
    assert distance(made(kind)(x, c), expected) < EXACT


@pytest.mark.parametrize("kind", [AdaptiveLayerNorm, AdaptiveRMSNorm])
def test_behind_a_gate_of_zero_only_the_gate_gets_a_gradient(kind: Any) -> None:
    layer, x, c = made(kind, has_gate=True), draw(4, 5, 3), draw(4, 2)
    branch: Any = nn.Linear(3, 3, dtype=torch.float64)
    y, gate = layer(x, c)
    (x + gate * branch(y)).square().sum().backward()
    *others, by_gate = layer.projection.weight.grad.split(3)
    assert by_gate.abs().min() > 0
    assert not any(slope.any() for slope in others)
    assert not any(p.grad.any() for p in branch.parameters())
    assert gate.shape == (4, 1, 3)


@each_copy
def test_a_copy_computes_the_same(copied: Any) -> None:
    for kind in (AdaptiveLayerNorm, ConditionalBatchNorm1d):
        layer, x, c = stirred(made(kind)), draw(7, 3), draw(7, 2)
        layer(x, c)
        assert torch.equal(copied(layer).eval()(x, c), layer.eval()(x, c))


def test_batch_norm_averages_over_all_conditions_and_evaluates_by_that() -> None:
    layer, x, c = stirred(made(ConditionalBatchNorm1d)), draw(7, 3), draw(7, 2)
    theirs = nn.BatchNorm1d(3, EPS, affine=False, dtype=torch.float64)
    theirs.load_state_dict(layer.norm.state_dict())
    for model in (layer, theirs):
        model(x, c) if model is layer else model(x)
        model.eval()
    scale, shift = layer.projection(c).split(3, 1)
    assert distance(layer(x, c), (1 + scale) * theirs(x) + shift) < EXACT


def test_after_a_refusal_the_running_statistics_are_as_before() -> None:
    layer = made(ConditionalBatchNorm1d)
    with pytest.raises(RuntimeError, match="condition must have shape"):
        layer(draw(7, 3), draw(6, 2))
    assert layer.norm.num_batches_tracked == 0


def test_resetting_begins_again() -> None:
    layer = stirred(made(ConditionalBatchNorm1d))
    layer.reset_parameters()
    assert not layer.projection.weight.any()
    assert layer.norm.running_mean.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("kind", "shape"), [(AdaptiveLayerNorm, (6, 3)), (ConditionalBatchNorm1d, (6, 3))]
)
def test_with_one_condition_for_all_the_checker_finds_the_norm(
    kind: Any, shape: tuple[int, ...]
) -> None:
    def call(layer: Any, x: Tensor) -> Any:
        return layer(x, torch.ones(len(x), 2, dtype=x.dtype))

    report = check_norm_layer(stirred(kind(3, 2)), shape, call=call, quiet=True)
    assert report.passed, report


@pytest.mark.parametrize(
    ("x", "c", "error", "message"),
    [
        ([[1.0]], draw(7, 2), TypeError, "input of AdaptiveLayerNorm must be a torch"),
        (draw(7, 3), 1, TypeError, "condition of AdaptiveLayerNorm must be a torch"),
        (draw(3), draw(1, 2), ValueError, r"an axis of examples .* got shape \(3,\)"),
        (draw(7, 3), draw(7, 3), RuntimeError, r"= \(7, 2\), got \(7, 3\)"),
        (draw(7, 3), draw(2), RuntimeError, r"= \(7, 2\), got \(2,\)"),
        (draw(7, 3), draw(7, 2).to("meta"), RuntimeError, "must be on one device"),
    ],
)
def test_bad_input_is_refused(x: Any, c: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        made(AdaptiveLayerNorm)(x, c)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="condition_size must be at least 1, got 0"):
        AdaptiveLayerNorm(3, 0)
    with pytest.raises(TypeError, match="normalized_shape must be a whole"):
        AdaptiveLayerNorm("3", 2)  # type: ignore[arg-type]


def test_the_settings_are_named() -> None:
    layer = AdaptiveLayerNorm(3, 2, has_gate=True)
    assert "3, 2, has_gate=True" in repr(layer)
