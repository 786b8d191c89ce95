"""Residual branches and attention without a norm: the networks, and the clipping."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import small
import torch
from torch import nn

from normbook.adaptive_clipping import clip_by_unit
from normbook.experiments import without_norm, without_norm_attention
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.experiments.without_norm import ALPHA, METHODS, Block, build
from normbook.lab.experiment import generator
from normbook.layers.batch_norm import BatchNorm2d
from normbook.layers.dynamic_tanh import DynamicTanh

begun = partial(small.begun, "without_norm")
every_method = pytest.mark.parametrize("method", METHODS)
attention = pytest.mark.parametrize("method", without_norm_attention.NORMS)


def network(method: str, depth: int = 6, size: int = 32) -> nn.Sequential:
    stem = [(size, 1), (size, 1)]
    drawn = generator(0, "weights")
    return build(method, stem=stem, depth=depth, generator=drawn).double()


@torch.no_grad()
def variances(method: str) -> Any:
    """Return the mean variance over images and places of the state at each block."""
    images = torch.randn(16, 1, 8, 8, generator=generator(0, "images")).double()
    x, found = images, []
    for module in network(method):
        if isinstance(module, Block):
            found.append(x.var((0, 2, 3)).mean().item())
        x = module(x)
    return np.array(found)


def test_without_a_norm_the_variance_grows_with_every_block() -> None:
    growth = variances("none")[1:] / variances("none")[:-1]
    assert growth.min() > 1.2  # zeros beyond the rim keep it from 2
    np.testing.assert_allclose(variances("weight_norm"), variances("none"))


@pytest.mark.parametrize("method", ["gate", "fixup"])
def test_a_closed_branch_leaves_the_state_alone(method: str) -> None:
    assert np.ptp(variances(method)) == 0


def test_each_block_of_an_nf_network_meets_the_variance_that_it_expects() -> None:
    betas = [m.beta for m in network("nf") if isinstance(m, Block)]
    np.testing.assert_allclose(betas, np.sqrt(1 + ALPHA**2 * np.arange(6)))
    # Zeros beyond the rim take from the variance, in the stem too.
    measured = variances("nf")
    np.testing.assert_allclose(measured / measured[0], np.square(betas), rtol=0.05)


def test_fixup_begins_with_smaller_first_matrices_and_a_read_out_of_zero() -> None:
    plain, fixup = (
        [p for p in network(m).parameters() if p.ndim > 1] for m in ("none", "fixup")
    )
    factors = [(b.norm() / a.norm()).item() for a, b in zip(plain, fixup, strict=True)]
    told = [1.0, 1.0, *[6**-0.5, 0.0] * 6, 0.0]
    np.testing.assert_allclose(factors, told, rtol=1e-6)


@every_method
def test_only_batch_norm_looks_at_other_images_in_training(method: str) -> None:
    run = begun(method)
    x = run.batch[0]
    with torch.no_grad():
        for parameter in run.model.parameters():  # branches and read-out of 0, too
            parameter.add_(0.1)
        moved = (run.model.train()(x)[:2] - run.model(x[:2])).abs().max()
    assert (float(moved) > 1e-3) == (method == "batch_norm")


@pytest.mark.parametrize(("variant", "slope"), [("half", 0.5), ("two", 2.0)])
def test_dynamic_tanh_stands_where_batch_norm_does(variant: str, slope: float) -> None:
    model: Any = small.begun("without_norm_tanh", variant).model
    kinds = {BatchNorm2d: "norm", without_norm.ChannelTanh: "norm"}
    names = [
        [kinds.get(type(m), type(m).__name__) for m in net.modules()]
        for net in (model, small.begun("without_norm", "batch_norm").model)
    ]
    assert names[0] == names[1]
    slopes = [p for name, p in model.named_parameters() if name.endswith("alpha")]
    assert len(slopes) == names[0].count("norm")
    assert all(p.item() == slope for p in slopes)
    x = torch.randn(2, 3, 4, 5, generator=generator(0, "images"))
    layer = without_norm.ChannelTanh(3, slope)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        told = layer.weight[:, None, None] * torch.tanh(slope * x)
        torch.testing.assert_close(layer(x), told)


@pytest.mark.parametrize("method", ["nf", "nf_clipped"])
def test_gradients_are_clipped_by_unit_but_not_those_of_the_read_out(
    method: str,
) -> None:
    run = begun(method, most=0.01)
    assert [g["most"] for g in run.optimizer.param_groups] == [0.01, 0.0]
    if method == "nf":
        run.optimizer.param_groups[0]["most"] = 0.0
    before = [p.detach().clone() for p in run.model.parameters()]
    values = run.objective(run.model, *run.batch)
    slopes = torch.autograd.grad(values["loss"], [*run.model.parameters()])
    run.schedule = None
    run.update()
    rate = run.optimizer.param_groups[0]["lr"]
    last = len(before) - 2  # weight and bias of the read-out
    for k, (p, old, slope) in enumerate(
        zip(run.model.parameters(), before, slopes, strict=True)
    ):
        flat = (-1,) if old.numel() == len(old) else old.shape
        told = clip_by_unit(slope.reshape(flat), old.reshape(flat), 0.01)
        is_clipped = method == "nf_clipped" and k < last
        step = told.reshape(old.shape) if is_clipped else slope
        torch.testing.assert_close(p.detach(), old - rate * step, rtol=1e-9, atol=1e-12)


@attention
def test_a_reader_has_what_its_method_says(method: str) -> None:
    model: Any = small.begun("without_norm_attention", method).model
    kinds = {type(m) for m in model.modules()}
    assert (DynamicTanh in kinds) == (method == "dynamic_tanh")
    names = [n for n, _ in model.named_parameters() if "gates" in n]
    assert len(names) == (2 if method == "gate" else 0)


@attention
def test_a_reader_sees_rows_from_above(method: str) -> None:
    """Row t of the states does not depend on the rows below it."""
    model: Any = small.begun("without_norm_attention", method).model
    x = torch.randn(3, 1, 8, 8, generator=generator(0, "images")).double()
    other = x.clone()
    other[:, :, 5:] += 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
        model.last_norm = nn.Identity()
        states = [
            model.blocks(z[:, 0] @ model.rows + model.positions) for z in (x, other)
        ]
    assert torch.equal(states[0][:, :5], states[1][:, :5])
    assert not torch.allclose(states[0][:, 5:], states[1][:, 5:])


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        ("without_norm", without_norm.LOOKS),
        ("without_norm_tanh", without_norm.TANH_LOOKS),
        ("without_norm_attention", without_norm_attention.LOOKS),
    ],
)
def test_the_end_shows_a_circle_for_each_seed(name: str, looks: Any) -> None:
    record = small.record(name)
    axes = EXPERIMENTS[name].figures(record)["end"].axes
    for ax, quantity in zip(axes, without_norm.SHOWN, strict=True):
        circles = small.circles(ax)
        for line, method in zip(circles, looks, strict=True):
            ends = without_norm.at_end(record, method, quantity)
            np.testing.assert_array_equal(line.get_xdata(), ends)
