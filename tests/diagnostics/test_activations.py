"""Layer statistics: against NumPy on a net worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normbook.diagnostics.activations import layer_inputs, layer_statistics

IMAGES = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
X = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def model() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
    return net


def loss(m: nn.Module) -> torch.Tensor:
    total: torch.Tensor = (m(X) ** 2).sum()
    return total


def by_hand() -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs of the three layers and the gradients by them."""
    net, x = model(), X.numpy()
    w1, b1, w2, b2 = (p.detach().numpy() for p in net.parameters())
    a = x @ w1.T + b1
    h = np.tanh(a)
    g_h = 2 * (h @ w2.T + b2) @ w2
    g_a = g_h * (1 - h**2)
    return [(x, g_a @ w1), (a, g_a), (h, g_h)]


def test_inputs_and_gradients_of_every_layer_are_those_of_numpy() -> None:
    found = layer_statistics(model(), loss, quantiles=[0.1, 0.5])
    assert [layer.name for layer in found] == ["0", "1", "2"]
    for layer, expected in zip(found, by_hand(), strict=True):
        for moments, values in zip(layer[1:], expected, strict=True):
            np.testing.assert_allclose(moments.mean, values.mean(0))
            np.testing.assert_allclose(moments.std, values.std(0))
            np.testing.assert_allclose(
                moments.quantiles, np.quantile(values, [0.1, 0.5], axis=0)
            )


def test_positions_of_an_image_count_as_examples() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3))
    (found,) = layer_statistics(net, lambda m: m(IMAGES).sum())
    np.testing.assert_allclose(found.inputs.mean, IMAGES.mean((0, 2, 3)), atol=1e-6)
    assert found.inputs.quantiles.shape == (3, 3)


def test_layers_can_be_chosen_by_name() -> None:
    assert [s.name for s in layer_statistics(model(), loss, layers=["2"])] == ["2"]


def shared() -> nn.Module:
    twice = nn.Tanh()
    return nn.Sequential(nn.Linear(3, 3), twice, nn.Linear(3, 3), twice).double()


def test_a_module_that_is_applied_twice_is_left_out() -> None:
    assert [s.name for s in layer_statistics(shared(), loss)] == ["0", "2"]


@pytest.mark.parametrize("measure", [layer_statistics, layer_inputs])
def test_unknown_layers_and_those_not_applied_once_are_refused(measure: Any) -> None:
    for m in (loss, lambda n: n[0](X).sum()):  # twice, never
        with pytest.raises(ValueError, match="each layer must be applied once"):
            measure(shared(), m, ["1"])
    with pytest.raises(ValueError, match=r"got \['9'\]; known are \['0', '1', '2'\]"):
        measure(model(), loss, ["9"])


# --- inputs themselves


def test_the_inputs_of_layers_are_those_of_numpy() -> None:
    found = layer_inputs(model(), loss, ["2", "0", "1"])
    for name, (expected, _) in zip("012", by_hand(), strict=True):
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=1e-12)


def test_each_position_of_an_image_is_a_row() -> None:
    net = nn.Sequential(nn.Identity(), nn.Conv2d(3, 2, 3))
    rows = layer_inputs(net, lambda m: m(IMAGES).sum(), ["1"])["1"]
    expected = IMAGES.permute(0, 2, 3, 1).flatten(0, 2)  # (positions of all images, 3)
    assert torch.equal(rows, expected)


def test_the_inputs_stay_when_a_layer_works_in_place() -> None:
    net = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    found = layer_inputs(net, lambda m: m(X.clone()).sum(), ["1"])["1"]
    assert torch.equal(found, X)


def test_inputs_need_no_gradient_and_leave_none() -> None:
    net = model()
    found = layer_inputs(net, loss, ["1", "2"])
    assert not any(rows.requires_grad for rows in found.values())
    assert all(p.grad is None for p in net.parameters())


def test_inputs_are_measured_with_the_model_as_it_is() -> None:
    norm = nn.BatchNorm1d(3, dtype=torch.float64)
    layer_inputs(nn.Sequential(norm, nn.Identity()), loss, ["1"])
    moved = norm.get_buffer("running_mean")
    np.testing.assert_allclose(moved, 0.1 * X.mean(0))


def breaks(m: nn.Module) -> torch.Tensor:
    raise RuntimeError("out of memory")


def test_no_hook_stays_behind() -> None:
    net = model()
    layer_inputs(net, loss, ["1"])
    with pytest.raises(RuntimeError, match="out of memory"):
        layer_inputs(net, breaks, ["1"])
    assert not any(m._forward_pre_hooks for m in net.modules())


def test_a_compiled_model_has_the_inputs_of_an_eager_one() -> None:
    net = model()
    compiled = torch.compile(net, backend="eager")
    found = layer_inputs(compiled, loss, ["2"])["2"]  # type: ignore[arg-type]
    assert torch.equal(found, layer_inputs(net, loss, ["2"])["2"])
