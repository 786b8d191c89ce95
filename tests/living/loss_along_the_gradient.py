"""Two small networks along their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from normbook.diagnostics.smoothness import along_gradient
from normbook.layers.batch_norm import BatchNorm1d


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    x, target, w, v = (rng.normal(size=size) for size in ([6, 2], 6, 6, 3))
    drawn = {"x": x.tolist(), "target": list(target), "w": list(w), "v": list(v)}
    rate, offset, scale = rng.uniform(-1, 1, 3)
    options = {"rate": rate, "offset": offset, "scale": scale}
    return {**drawn, **options, "by_distance": int(rng.integers(2))}


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    x, target, w, v = (
        torch.from_numpy(np.array(state[k])) for k in ["x", "target", "w", "v"]
    )
    found: list[Any] = []
    for norm in (nn.Identity(), BatchNorm1d(3, affine=False)):
        first, last = nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)
        net = nn.Sequential(first, norm, nn.Tanh(), last).double()
        with torch.no_grad():
            first.weight.copy_(2 ** state["scale"] * w.reshape(2, 3).T)
            last.weight.copy_(v)

        def loss(net: nn.Module) -> torch.Tensor:
            y: torch.Tensor = net(x + state["offset"])[:, 0]
            return (y - target).square().mean() / 2

        etas = 2 ** state["rate"] * np.arange(1, 13) / 12
        if found and state["by_distance"]:
            own = along_gradient(net, loss, [1.0]).gradient_norm
            etas *= found[0].gradient_norm / own
        found.append(along_gradient(net, loss, etas.tolist()))
    names = {
        "loss": "loss", "length": "gradient_norm", "losses": "losses",
        "changes": "gradient_changes", "S": "effective_smoothness",
    }  # fmt: skip
    return {k: np.array([getattr(f, name) for f in found]) for k, name in names.items()}
