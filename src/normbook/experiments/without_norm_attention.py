r"""Attention without a norm: Dynamic Tanh and gates in a small transformer.

The rows of an image, or of one of half the resolution, are read as a sequence, the
first from above: each row is mapped to a state, a position is added, and L blocks
follow, with causal self-attention and a
feed-forward net as branches (:class:`normbook.experiments.transformer.Block`), then the
mean over the rows and a linear read-out. A branch F is added in one of these ways:

- "layer_norm": :math:`x + F(N(x))`, pre-LN, one more N before the mean;
- "dynamic_tanh": the same with Dynamic Tanh for N (Zhu et al. 2025), which begins with
  :math:`\alpha = 0.5`;
- "gate": :math:`x + \alpha F(x)`, ReZero (Bachlechner et al. 2021), with one trained
  number for each branch, from 0; its authors share one between the two of a block;
- "none": :math:`x + F(x)`.

Each has its own best learning rate, as in :mod:`normbook.experiments.without_norm`, and
the same schedule, with Adam. What this leaves open: one width and depth, less than one
pass, no dropout, no weight decay.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.experiments import without_norm
from normbook.experiments.transformer import EPS, Block
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layers.dynamic_tanh import DynamicTanh
from normbook.layers.layer_norm import LayerNorm
from normbook.looks import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer_norm": partial(LayerNorm, eps=EPS),
    "dynamic_tanh": DynamicTanh,
    "gate": nn.Identity,
    "none": nn.Identity,
}


class GatedBlock(Block):
    """Attention and a feed-forward net, each behind its norm, if there is one.

    With gates, each branch is multiplied by a number that begins at 0.
    """

    def __init__(self, method: str, *, width: int, **others: Any) -> None:
        super().__init__("none", width=width, **others)
        self.attention_norm = NORMS[method](width)
        self.feed_forward_norm = NORMS[method](width)
        has_gates = method == "gate"
        self.gates = nn.Parameter(torch.zeros(2)) if has_gates else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state of each position, from those up to it: (N, T, D)."""
        alphas = (1.0, 1.0) if self.gates is None else self.gates
        x = x + alphas[0] * self._attention(self.attention_norm(x))
        return x + alphas[1] * self._feed_forward(self.feed_forward_norm(x))


class Reader(nn.Module):
    """Rows of images as a sequence, and scores for the classes.

    ``pool`` squares the pixels of an image (N, 1, H, W) give one, their mean; ``rows``
    are how many rows and columns there are then. The method is a key of ``NORMS``, else
    ValueError. Matrices, from a CPU generator, are uniform after Glorot in the blocks
    and normal elsewhere; biases begin at 0.
    """

    def __init__(
        self,
        method: str,
        *,
        rows: tuple[int, int],
        pool: int,
        depth: int,
        width: int,
        heads: int,
        generator: torch.Generator,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if method not in NORMS:
            known = ", ".join(NORMS)
            raise ValueError(f"norm must be one of {known}, got {method!r}.")

        def normal(count: int, std: float) -> nn.Parameter:
            drawn = torch.randn(count, width, generator=generator)
            return nn.Parameter(std * drawn)

        self.pool = pool
        self.rows = normal(rows[1], rows[1] ** -0.5)
        self.positions = normal(rows[0], 1.0)
        make = partial(GatedBlock, method, width=width, heads=heads)
        blocks = (make(generator=generator) for _ in range(depth))
        self.blocks = nn.Sequential(*blocks)
        self.last_norm = NORMS[method](width)
        self.read_out = nn.Linear(width, classes)
        nn.init.normal_(self.read_out.weight, std=width**-0.5, generator=generator)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (N, classes)."""
        seen = nn.functional.avg_pool2d(x, self.pool)[:, 0]
        states = self.blocks(seen @ self.rows + self.positions)
        scores: Tensor = self.read_out(self.last_norm(states).mean(1))
        return scores


def begin(
    settings: lab.Settings, seed: int, data: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    dtype = getattr(torch, settings["dtype"])
    model = Reader(
        settings["norm"],
        rows=tuple(settings["rows"]),
        **{name: settings[name] for name in ("pool", "depth", "width", "heads")},
        generator=lab.generator(seed, "weights"),
    ).to(device, dtype)
    rate = settings["learning_rate"]
    adam = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    return without_norm.classifier(settings, seed, data, device, model, adam)


LOOKS: dict[str, tuple[Kind, str]] = {
    "layer_norm": ("layer", "layer norm"),
    "dynamic_tanh": ("other", "Dynamic Tanh"),
    "gate": ("other", "gates from 0"),
    "none": ("none", "nothing"),
}


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record, as :func:`normbook.experiments.without_norm.figures` does."""
    record.require(EXPERIMENT.name)
    return without_norm.drawn(record, LOOKS)


EXPERIMENT = lab.Experiment(
    name="without_norm_attention",
    title="Attention without a norm, each way at its own best rate",
    source="Zhu et al. (2025); Bachlechner et al. (2021)",
    scales={
        "live": lab.Scale({
            **without_norm.DIGITS, "rows": [8, 8], "pool": 1, "depth": 2, "width": 16,
            "heads": 2,
            "variants": without_norm.tuned([*NORMS], (0.003, 0.009), 60),
        }, (0, 1), "digits", "rows of embedded digits, two blocks of width 16"),
        "cpu": lab.Scale({
            **without_norm.FASHION, "rows": [14, 14], "pool": 2, "depth": 4,
            "width": 32, "heads": 4,
            "variants": without_norm.tuned([*NORMS], (0.001, 0.003, 0.009), 200),
        }, (0, 1, 2), "fashion-mnist", "rows of Fashion-MNIST, 4 blocks of width 32"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
