r"""A transformer that adds numbers: where the normalization stands, and warm-up.

A *block* has two branches F, causal self-attention and a feed-forward net. With a
normalization N there are two ways to add a branch:

- post-LN (Vaswani et al. 2017, arXiv:1706.03762): :math:`x \leftarrow N(x + F(x))`;
- pre-LN (Xiong et al. 2020, arXiv:2002.04745): :math:`x \leftarrow x + F(N(x))`, and
  one more normalization before the read-out.

N is layer norm or root mean square norm (arXiv:1910.07467). The task is the sum of two
numbers, written digit by digit: "47+85=" goes on with "231", the least significant
digit first, so that each digit needs the carry of the one before it. Only digits of the
sum count. The hundred sums of one digit, scale "live", are too few to learn others
from: there the training loss speaks, and the test does not.

Adam with beta of 0.9 and 0.999, at a constant learning rate, which is reached in equal
steps over the *warm-up*, or at once. Xiong et al. let the rate fall afterwards; here it
stays, so that the variants of a rate differ in their first updates only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data import Dataset
from normbook.diagnostics.undisturbed import Loss, gradients
from normbook.experiments.measures import Looks, row
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.looks import LOOKS as ALL_LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.figures import Line

# Two symbols beside the ten digits.
PLUS, EQUALS = 10, 11
EPS = 1e-5
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": nn.Identity,
    "post": partial(LayerNorm, eps=EPS),
    "post_rms": partial(RMSNorm, eps=EPS),
    "pre": partial(LayerNorm, eps=EPS),
    "pre_rms": partial(RMSNorm, eps=EPS),
}


class Block(nn.Module):
    """Self-attention and a feed-forward net, each beside the identity.

    The norm is "post", "post_rms", "pre", "pre_rms" or "none", and the ``width`` D a
    multiple of ``heads``, else ValueError. The feed-forward net has 4 D hidden units
    (ReLU). Matrices, from a CPU generator, are uniform after Glorot; queries, keys and
    values have one each. Biases begin at 0, gains at 1.
    """

    def __init__(
        self, norm: str, *, width: int, heads: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}.")
        if width % heads:
            raise ValueError(
                f"width must be a multiple of heads = {heads}, got {width}; every head "
                "takes an equal part."
            )
        self.heads, self.is_pre = heads, norm.startswith("pre")
        self.attention_norm = NORMS[norm](width)
        self.feed_forward_norm = NORMS[norm](width)
        self.query = _linear(width, width, generator)
        self.key = _linear(width, width, generator)
        self.value = _linear(width, width, generator)
        self.mix = _linear(width, width, generator)
        self.up = _linear(width, 4 * width, generator)
        self.down = _linear(4 * width, width, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state of each position, from those up to it: (N, T, D)."""
        for branch, norm in (
            (self._attention, self.attention_norm),
            (self._feed_forward, self.feed_forward_norm),
        ):
            x = x + branch(norm(x)) if self.is_pre else norm(x + branch(x))
        return x

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (N, heads, T, -1)
            for part in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.mix(attended.transpose(1, 2).flatten(2))
        return mixed

    def _feed_forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


class Transformer(nn.Module):
    """Symbols and their positions, blocks, and scores for the digit that comes next.

    ``depth`` blocks, made as :class:`Block` is, and so many positions as ``steps``.
    Symbols and positions are drawn normal with variance 1.
    """

    def __init__(
        self,
        norm: str,
        *,
        depth: int,
        width: int,
        heads: int,
        steps: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()

        def normal(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, width, generator=generator))

        self.symbols, self.positions = normal(EQUALS + 1), normal(steps)
        block = partial(Block, norm, width=width, heads=heads, generator=generator)
        self.blocks = nn.Sequential(*(block() for _ in range(depth)))
        is_pre = norm.startswith("pre")
        self.last_norm = NORMS[norm](width) if is_pre else nn.Identity()
        self.scores = _linear(width, 10, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (N, T, 10) of the next digit after each symbol (N, T)."""
        states = self.blocks(self.symbols[x] + self.positions[: x.shape[1]])
        scores: Tensor = self.scores(self.last_norm(states))
        return scores


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class Additions(NamedTuple):
    """Sums of two numbers of k digits."""

    # "a + b =" and the sum without its last digit, which nothing follows; (N, 3k + 2)
    x: Tensor
    # Digits of the sum, the least significant one first: what comes next at each of the
    # last k + 1 positions of x; (N, k + 1)
    y: Tensor


def additions(a: Tensor, b: Tensor, digits: int) -> Additions:
    """Write sums digit by digit.

    a and b, tensors (N,) of int64, have at most that many digits; zeros fill them up.

    Examples
    --------
    47 + 85 = 132, with 10 for "+" and 11 for "=":

    >>> additions(torch.tensor([47]), torch.tensor([85]), digits=2)
    Additions(x=tensor([[ 4,  7, 10,  8,  5, 11,  2,  3]]), y=tensor([[2, 3, 1]]))
    """

    def written(number: Tensor, count: int) -> Tensor:
        return torch.stack([number // 10**i % 10 for i in range(count)], dim=1)

    y = written(a + b, digits + 1)
    plus, equals = (torch.full((len(a), 1), symbol) for symbol in (PLUS, EQUALS))
    first, second = (written(number, digits).flip(1) for number in (a, b))
    return Additions(torch.cat([first, plus, second, equals, y[:, :-1]], dim=1), y)


def warmed_up(step: int, rate: float, warmup: int) -> float:
    r"""Learning rate after t updates: :math:`\eta \min(1, (t + 1) / w)`.

    With a warm-up w of 0 it is :math:`\eta`, the rate, at once.

    Examples
    --------
    >>> [warmed_up(step, 0.1, warmup=4) for step in (0, 1, 3, 9)]
    [0.025, 0.05, 0.1, 0.1]
    >>> warmed_up(0, 0.1, warmup=0)
    0.1
    """
    return rate * min(1.0, (step + 1) / warmup) if warmup else rate


def gradient_norms(model: Transformer, loss: Loss) -> NDArray[np.float64]:
    """Norm of the gradient, block by block, shape (L,), lowest first.

    By the second matrix of the feed-forward net, the one that Theorem 1 of Xiong et al.
    (2020) is about. The loss (nats) is on one fixed batch. The model is left as it was.
    """
    matrices = [block.get_parameter("down.weight") for block in model.blocks]
    _, slopes = gradients(model, loss, matrices)
    return np.array([gradient.double().norm().item() for gradient in slopes])


def begin(
    settings: lab.Settings, seed: int, _: Dataset | None, device: torch.device
) -> lab.Run:
    """Make one network, its sums and its measurements."""
    dtype = getattr(torch, settings["dtype"])
    digits, tested = settings["digits"], settings["tested"]
    # Every pair of numbers has one place, so that no sum of the test is trained on.
    pairs = torch.randperm(100**digits, generator=lab.generator(seed, "sums"))
    pairs = pairs[: tested + settings["examples"]]
    x, y = additions(pairs // 10**digits, pairs % 10**digits, digits)
    x, y = x.to(device), y.to(device)
    model = Transformer(
        settings["norm"],
        **{name: settings[name] for name in ("depth", "width", "heads")},
        steps=x.shape[1],
        generator=lab.generator(seed, "weights"),
    ).to(device, dtype)
    begun = {name: p.detach().clone() for name, p in model.named_parameters()}
    rate, size = settings["learning_rate"], settings["batch_size"]
    batches = lab.Batches(x[tested:], y[tested:], size, lab.generator(seed, "batches"))

    def test(run: lab.Run) -> lab.Values:
        with torch.no_grad():
            values = objective(run.model, x[:tested], y[:tested])
        return {name: value.item() for name, value in values.items()}

    def blocks(run: lab.Run) -> lab.Values:
        moved = []
        for block in range(settings["depth"]):
            name = f"blocks.{block}.down.weight"
            now, before = run.model.get_parameter(name).detach(), begun[name]
            moved.append(float((now - before).norm() / before.norm()))
        norms = gradient_norms(model, run.loss)
        return {"gradient_norm": norms.tolist(), "moved": moved}

    return lab.Run(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=rate, fused=True),
        objective=objective,
        batches=batches,
        measurements={
            "test": lab.Measurement(settings["test_every"], test),
            "blocks": lab.Measurement(settings["average_over"], blocks),
        },
        every=settings["average_over"],
        schedule=partial(warmed_up, rate=rate, warmup=settings["warmup"]),
    )


def objective(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Mean cross-entropy of a digit of the sum (nats); x, y as in :class:`Additions`.

    "accuracy" is the part of the sums of which all digits are right, when those before
    it are given; "digits" the part of the digits.
    """
    scores = model(x)[:, -y.shape[1] :]  # (N, K, 10)
    is_right = scores.detach().argmax(2) == y
    return {
        "loss": nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()),
        "accuracy": is_right.all(1).double().mean(),
        "digits": is_right.double().mean(),
    }


LOOKS = dict.fromkeys(("post", "pre"), ALL_LOOKS["layer_norm"])
LOOKS |= dict.fromkeys(("post_rms", "pre_rms"), ALL_LOOKS["rms_norm"])


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of this experiment: columns for post-LN and pre-LN, and warm-up.

    "training": loss of a digit in training, a row for each learning rate. "accuracy",
    if there are several: sums of the test that are right at the end, with layer norm,
    against the rate. "blocks", at the rate in the middle: norm of the gradient of each
    block at the start and after some updates, and how far these have moved its weights.
    """
    from normbook.figures import curve_grid

    record.require(EXPERIMENT.name)
    variants = record.settings["variants"].values()
    columns = {
        rate: _columns(record, rate)
        for rate in sorted({settings["learning_rate"] for settings in variants})
    }
    training = {
        f"training loss (nats)\nrate {rate:g}": row(record, column, "training", "loss")
        for rate, column in columns.items()
    }
    blocks: dict[str, dict[str, dict[str, Line]]] = {}
    early = record.steps("blocks")[1]
    rows = {
        "gradient norm\nat the start": ("gradient_norm", 0),
        f"gradient norm\nafter {early} updates": ("gradient_norm", 1),
        f"relative move\nin {early} updates": ("moved", 1),
    }
    for ylabel, (quantity, place) in rows.items():
        across = blocks.setdefault(ylabel, {})
        for title, column in list(columns.values())[len(columns) // 2].items():
            lines = across.setdefault(f"block\n\n{title}", {})
            for variant, (kind, label) in column.items():
                runs = record.values(variant, "blocks", quantity)[:, place]
                lines[label] = (kind, np.arange(1, runs.shape[1] + 1), runs)
    drawn = {
        "training": curve_grid(training)[0],
        "blocks": curve_grid(blocks, yscale="log")[0],
    }
    if len(columns) > 1:
        drawn["accuracy"] = _draw_accuracy(record, columns)
    return drawn


def _columns(record: Record, rate: float) -> dict[str, Looks]:
    """Variants of a learning rate and their looks, by place and warm-up."""
    variants = record.settings["variants"]
    warmups = sorted({settings["warmup"] for settings in variants.values()})
    return {
        f"{place}-LN,\n{f'warm-up {warmup}' if warmup else 'no warm-up'}": {
            name: LOOKS[settings["norm"]]
            for name, settings in variants.items()
            if settings["learning_rate"] == rate
            and settings["warmup"] == warmup
            and settings["norm"].startswith(place)
        }
        for place in ("post", "pre")
        for warmup in warmups
    }


def _draw_accuracy(record: Record, columns: dict[float, dict[str, Looks]]) -> Figure:
    """Draw the end of the runs with layer norm, which have all rates."""
    from normbook.figures import band, panels, tick

    rates = list(columns)
    titles = list(columns[rates[0]])
    fig, axes = panels(len(titles), sharey=True)
    fig.set_size_inches(8.4, fig.get_size_inches()[1])
    for ax, title in zip(axes, titles, strict=True):
        last = [
            record.values(variant, "test", "accuracy")[:, -1]
            for rate in rates
            for variant, (kind, _) in columns[rate][title].items()
            if kind == "layer"
        ]
        band(ax, rates, np.transpose(last), kind="layer", label="layer norm")
        ax.set(xlabel=f"learning rate\n\n{title}", xscale="log", ylim=(-0.05, 1.05))
        ax.margins(x=0.2)  # room for the numbers of two panels side by side
        tick(ax, rates)
    axes[0].set(ylabel="sums that are right")
    return fig


def _grid(
    rates: list[float], warmup: int, *, has_rms: bool = True
) -> dict[str, dict[str, Any]]:
    """Both places of layer norm at all rates; RMS norm at the one in the middle."""
    middle = [rates[len(rates) // 2]]
    chosen = {"post": rates, "pre": rates}
    if has_rms:
        chosen |= {"post_rms": middle, "pre_rms": middle}
    return {
        f"{norm}, rate={rate:g}, warmup={steps}": {"norm": norm, "learning_rate": rate}
        | {"warmup": steps}
        for norm, chosen_rates in chosen.items()
        for rate in chosen_rates
        for steps in (0, warmup)
    }


EXPERIMENT = lab.Experiment(
    name="transformer",
    title="A transformer that adds: post-LN and pre-LN, with and without warm-up",
    source="Xiong et al. (2020), Figs. 2-4; Vaswani et al. (2017)",
    scales={
        "live": lab.Scale({
            "dtype": "float64", "depth": 4, "width": 32, "heads": 4, "digits": 1,
            "examples": 80, "tested": 20, "batch_size": 32, "steps": 300,
            "average_over": 10, "test_every": 50,
            "variants": _grid([0.01], warmup=100, has_rms=False),
        }, (0, 1), "", "numbers of one digit, 4 blocks of width 32"),
        "cpu": lab.Scale({
            "dtype": "float64", "depth": 6, "width": 64, "heads": 4, "digits": 2,
            "examples": 9500, "tested": 500, "batch_size": 64, "steps": 1200,
            "average_over": 20, "test_every": 100,
            "variants": _grid([1e-3, 2e-3, 4e-3], warmup=400),
        }, (0, 1, 2), "", "numbers of two digits, 6 blocks of width 64"),
        "full": lab.Scale({
            "dtype": "float32", "depth": 12, "width": 256, "heads": 8, "digits": 3,
            "examples": 900_000, "tested": 10_000, "batch_size": 256, "steps": 10_000,
            "average_over": 100, "test_every": 500,
            "variants": _grid([1e-4, 3e-4, 1e-3], warmup=2000),
        }, (0, 1, 2), "", "numbers of three digits, 12 blocks of width 256 (GPU)"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
