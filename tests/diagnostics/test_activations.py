"""Layer statistics: against NumPy on a net worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from normbook.diagnostics.activations import layer_statistics

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
    x = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(3, 2, 3))
    (found,) = layer_statistics(net, lambda m: m(x).sum())
    np.testing.assert_allclose(found.inputs.mean, x.mean((0, 2, 3)), atol=1e-6)
    assert found.inputs.quantiles.shape == (3, 3)


def test_layers_can_be_chosen_by_name() -> None:
    assert [s.name for s in layer_statistics(model(), loss, layers=["2"])] == ["2"]


def test_a_module_that_is_applied_twice_is_left_out() -> None:
    shared = nn.Tanh()
    net = nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 3), shared).double()
    names = [s.name for s in layer_statistics(net, loss)]
    assert names == ["0", "2"]
    with pytest.raises(ValueError, match="each layer must be applied once"):
        layer_statistics(net, loss, layers=["1"])


def test_unknown_layers_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"got \['relu'\]; known are \['0', '1', '2'\]"
    ):
        layer_statistics(model(), loss, layers=["relu"])
