"""Run the layers once, so that numba compiles their loops and keeps them."""

import torch

from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.lstm import LayerNormLSTM


def main() -> None:
    """Go forward and back in each dtype."""
    for dtype in torch.float32, torch.float64:
        x = torch.zeros(2, 2, 1, dtype=dtype)
        for layer in LayerNormLSTM(1, 1), BatchNormLSTM(1, 1, max_steps=2):
            layer.to(dtype)(x)[0].sum().backward()
        for norm in LayerNorm(2), BatchNorm1d(2):  # loops over rows, over columns
            norm.to(dtype)(x.reshape(2, 2)).sum().backward()


if __name__ == "__main__":
    main()
