"""Cells of an LSTM, with some of the hats."""

from __future__ import annotations

from typing import Any

import numpy as np

from normbook.layer_norm_lstm import LayerNormLSTMParameters, layer_norm_lstm_forward

CELLS: list[dict[str, Any]] = [
    {"hats": ""}, {}, {"hats": "c"}, {"norm": "sum"}, {"carried": "normalized"}
]  # fmt: skip


def state(rng: np.random.Generator) -> dict[str, Any]:
    """Draw a state of the figure."""
    x, w_x = rng.normal(size=(2, 12, 2)).tolist()
    of_h, of_x = rng.uniform(-1, 1, 2)
    cell, w_h = int(rng.integers(5)), rng.normal(size=(12, 3)).tolist()
    return {"x": x, "w_x": w_x, "w_h": w_h, "cell": cell, "of_h": of_h, "of_x": of_x}


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Compute what the figure shows of it."""
    x, w_x, w_h = (np.array(state[name]) for name in ("x", "w_x", "w_h"))
    b = np.repeat([1.0, 0.0], [3, 9])
    scaled = 2 ** state["of_x"] * w_x, 2 ** state["of_h"] * w_h, b
    _, cache = layer_norm_lstm_forward(
        x[:, None], LayerNormLSTMParameters(*scaled), **CELLS[state["cell"]]
    )
    return {name: getattr(cache, name)[:, 0] for name in ("f", "i", "o", "c", "h")}
