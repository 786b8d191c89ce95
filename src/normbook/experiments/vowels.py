r"""Who speaks: a recurrent network on sequences of several lengths, normalized or not.

The network is the plain one in which layer norm was first written for sequences,

.. math::
    a_t = W_h h_{t-1} + W_x x_t, \qquad h_t = \tanh(N(a_t)), \qquad h_0 = 0,

and the scores of the classes are a linear function of h at the last live step of each
sequence. The normalization N differs between the variants:

- ``none``: a bias is added, that is all;
- ``layer_norm``: over the units of one sequence at one step;
- ``per_step``: batch norm, each step with statistics of its own, live examples only;
- ``per_step_small_gain``: the same with gains that begin at 0.1, the paper's number;
- ``per_step_padded``: as ``per_step`` with the padding taken for data. Behind its end a
  sequence goes on with input 0, and what becomes of it counts as an example;
- ``shared_statistics``: in training each step by its live examples, in evaluation all
  steps by one pair of running statistics;
- ``sequence_wise``: batch norm of W_x x alone, over all live steps of the batch.

A gain and a bias for each unit, shared by all steps, belong to every normalization.
Gains begin at 1 where nothing else is said. Inputs are not standardized: they are as in
the files.

Each has its own best learning rate (:mod:`normbook.lab.tuning`): that with the lowest
mean loss at the end, over three seeds of the tuning, on every fifth training sequence
of each speaker, 6 of 30, which is not learned. In ``vowels_longer_tuned`` training
sequences are cut, those of validation too. The 370 test sequences choose nothing; nor
are the gains, the width and the number of updates chosen.

Sources: arXiv:1607.06450, equation 4; arXiv:1603.09025; arXiv:1510.01378.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data.sequences import Sequences, pad
from normbook.data.synthetic import sequences
from normbook.diagnostics.undisturbed import undisturbed
from normbook.experiments.measures import draw_grid, errors, judge, row
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d
from normbook.looks import LOOKS as ALL_LOOKS
from normbook.looks import looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Ba et al. (2016), eq. 4; Cooijmans et al. (2016); Laurent et al. (2016)"


class Recurrent(nn.Module):
    """A recurrent classifier of sequences, normalized or not; float64.

    The norm is one of the variants above, but for the small gain, else ValueError; its
    gains begin at ``gain``. ``max_steps`` has the longest sequence, for testing too.
    Weights, from a CPU generator, are normal with mean 0 and variance 1/n, n the number
    of inputs; biases begin at 0.
    """

    def __init__(
        self,
        norm: str,
        *,
        features: int,
        hidden: int,
        classes: int,
        max_steps: int,
        generator: torch.Generator,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {
            "none": nn.Identity(),
            "layer_norm": LayerNorm(hidden),
            "per_step": PerStepBatchNorm1d(hidden, max_steps),
            "per_step_padded": PerStepBatchNorm1d(hidden, max_steps),
            # To this layer every step is the first.
            "shared_statistics": PerStepBatchNorm1d(hidden, max_steps=1),
            "sequence_wise": MaskedBatchNorm1d(hidden),
        }
        if norm not in layers:
            raise ValueError(f"norm must be one of {', '.join(layers)}, got {norm!r}.")
        self.norm = norm
        self.normalize = layers[norm]
        # A normalization has a bias of its own.
        self.bias = nn.Parameter(torch.zeros(hidden)) if norm == "none" else None

        def weight(rows: int, columns: int) -> nn.Parameter:
            drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            return nn.Parameter(drawn / columns**0.5)

        self.input_weight = weight(hidden, features)
        self.hidden_weight = weight(hidden, hidden)
        self.score_weight = weight(classes, hidden)
        self.score_bias = nn.Parameter(torch.zeros(classes))
        self.double()
        if norm != "none":
            nn.init.constant_(self.normalize.get_parameter("weight"), gain)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores of the classes, shape (N, classes).

        Sequences x, shape (N, T, D), have zeros behind the end of each. Lengths, shape
        (N,), are 1 to T; steps behind the longest are not looked at.
        """
        x = x[:, : int(lengths.max())]
        steps = torch.arange(x.shape[1], device=x.device)
        live = steps < lengths[:, None]  # (N, T)
        inputs = x @ self.input_weight.mT  # (N, T, H)
        if self.norm == "sequence_wise":
            inputs = self.normalize(inputs.mT, live).mT
        h = x.new_zeros(len(x), self.hidden_weight.shape[0])
        states = []
        for t in range(x.shape[1]):
            a = h @ self.hidden_weight.mT + inputs[:, t]
            h = torch.tanh(self._normalized(a, t, live[:, t]))
            states.append(h)
        rows = torch.arange(len(x), device=x.device)
        last = torch.stack(states, dim=1)[rows, lengths - 1]  # (N, H)
        return nn.functional.linear(last, self.score_weight, self.score_bias)

    def _normalized(self, a: Tensor, step: int, live: Tensor) -> Tensor:
        arguments: dict[str, tuple[Any, ...]] = {
            "layer_norm": (),
            "per_step": (step, live),
            "per_step_padded": (step,),
            "shared_statistics": (0, live),
        }
        if self.norm in arguments:
            a = self.normalize(a, *arguments[self.norm])
        return a if self.bias is None else a + self.bias


def begin(
    settings: lab.Settings, seed: int, data: Sequences | None, device: torch.device
) -> lab.Run:
    """Make one network, its data and its measurements."""
    if data is None:
        data = sequences(
            np.random.default_rng(seed),
            shortest=settings["shortest"],
            longest=settings["longest"],
        )
    dtype = getattr(torch, settings["dtype"])
    cut = [x[: settings["cut"]] for x in data.x_train]
    is_aside = set_aside(data.y_train, settings["validated_every"])
    (x, y), (x_aside, y_aside) = (
        _tensors([cut[i] for i in np.flatnonzero(of)], data.y_train[of], device, dtype)
        for of in (~is_aside, is_aside)
    )
    x_test, y_test = _tensors(data.x_test, data.y_test, device, dtype)
    model = Recurrent(
        settings["norm"],
        features=x.shape[2],
        hidden=settings["hidden"],
        classes=int(data.y_train.max()) + 1,
        max_steps=max(x.shape[1], x_test.shape[1]),
        generator=lab.generator(seed, "weights"),
        gain=settings["gain"],
    ).to(device, dtype)
    size = settings["batch_size"]
    bounds = torch.tensor(settings["bounds"], device=device)
    groups = torch.bucketize(y_test[:, 1].contiguous(), bounds)
    mixed = torch.randperm(len(x_test), generator=lab.generator(seed, "company"))
    orders = {
        "mixed": mixed.to(device),
        "by_length": y_test[:, 1].argsort(stable=True),
        "by_class": y_test[:, 0].argsort(stable=True),
    }

    def test(run: lab.Run) -> lab.Values:
        with undisturbed(run.model), torch.no_grad():
            run.model.eval()
            train_loss, train_wrong = judge(run.model(x, y[:, 1]), y[:, 0])
            loss, wrong = judge(run.model(x_test, y_test[:, 1]), y_test[:, 0])
        return {
            "train_loss": float(train_loss.mean()),
            "train_error": float(train_wrong.mean()),
            "loss": float(loss.mean()),
            "error": float(wrong.mean()),
            "loss_by_length": _means(loss, groups),
            "error_by_length": _means(wrong, groups),
        }

    def validate(run: lab.Run) -> lab.Values:
        with undisturbed(run.model), torch.no_grad():
            run.model.eval()
            scores = run.model(x_aside, y_aside[:, 1])
            return {k: float(v) for k, v in errors(scores, y_aside[:, 0]).items()}

    def company(run: lab.Run) -> lab.Values:
        errors: lab.Values = {}
        for name, order in orders.items():
            wrong = []
            with undisturbed(run.model), torch.no_grad():
                run.model.train()
                for part in torch.split(order, size):
                    scores = run.model(x_test[part], y_test[part, 1])
                    wrong.append(judge(scores, y_test[part, 0])[1])
            errors[name] = float(torch.cat(wrong).mean())
        return errors

    every = settings["measure_every"]
    measurements = {
        "test": lab.Measurement(every, test),
        "validation": lab.Measurement(every, validate),
        "company": lab.Measurement(settings["steps"], company),
    }
    return lab.Run(
        model=model,
        optimizer=torch.optim.Adam(
            model.parameters(), lr=settings["learning_rate"], fused=True
        ),
        objective=_objective,
        batches=lab.Batches(x, y, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=every,
    )


def set_aside(labels: NDArray[np.int64], every: int) -> NDArray[np.bool_]:
    """Tell which sequences are for validation: every so-many-th one of each class.

    >>> set_aside(np.array([0, 0, 1, 0, 1, 0]), every=2).tolist()
    [False, True, False, False, True, True]
    """
    is_aside = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        is_aside[np.flatnonzero(labels == label)[every - 1 :: every]] = True
    return is_aside


def _tensors(
    x: Any, labels: Any, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Padded sequences (N, T, D); labels and lengths as columns of (N, 2)."""
    padded, lengths = pad(x)
    y = torch.stack([torch.as_tensor(labels), torch.as_tensor(lengths)], dim=1)
    return torch.as_tensor(padded).to(device, dtype), y.to(device)


def _objective(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return errors(model(x, y[:, 1]), y[:, 0])


def _means(values: Tensor, groups: Tensor) -> list[float]:
    return [float(values[groups == g].mean()) for g in range(int(groups.max()) + 1)]


# Each kind of batch norm has a panel, in which the first two stand for comparison.
PANELS = {
    "per_step": "per step",
    "per_step_small_gain": "per step,\ngain from 0.1",
    "per_step_padded": "per step,\npadding counted",
    "shared_statistics": "one pair of\nrunning statistics",
    "sequence_wise": "sequence-wise,\ninputs only",
}
LOOKS = looks("none", "layer_norm") | dict.fromkeys(PANELS, ALL_LOOKS["batch_norm"])


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of one of the two experiments.

    "grid": validation loss at the end against the learning rate, with the chosen one; a
    panel for each kind of batch norm. "training": test error (above) and training loss
    (below) in evaluation mode against training steps. "lengths": test error at the end,
    for the groups of test sequences by length.
    """
    from normbook.figures import band, curve_grid, legend_above, panels

    record.require(*NAMES)
    columns = {
        title: {variant: LOOKS[variant] for variant in ("none", "layer_norm", own)}
        for own, title in PANELS.items()
    }
    grid = draw_grid(
        record,
        {
            f"learning rate\n\n{title}": ("learning_rate", shown)
            for title, shown in columns.items()
        },
        ylabel="validation loss (nats)",
        yscale="log",
    )
    rates = np.concatenate([record.grid(v)["learning_rate"] for v in LOOKS])
    for ax in grid.axes:  # one scale for all: the ends of their grids differ
        ax.set_xlim(rates.min() / 2, rates.max() * 2)
    grid.set_size_inches(8.4, grid.get_size_inches()[1])
    rows = {
        "test error": row(record, columns, "test", "error"),
        "training loss (nats)": row(record, columns, "test", "train_loss"),
    }
    training, _ = curve_grid(rows, yscale="log")

    bounds = record.settings["bounds"]
    names = [*map(str, bounds), f">{bounds[-1]}"]
    lengths, axes = panels(len(PANELS), sharey=True)
    lengths.set_size_inches(8.4, lengths.get_size_inches()[1])  # as wide as the other
    places = np.arange(len(names))
    for ax, (title, shown) in zip(axes, columns.items(), strict=True):
        for variant, (kind, label) in shown.items():
            runs = record.values(variant, "test", "error_by_length")[:, -1]
            band(ax, places, runs, kind=kind, label=label)
        ax.set_xticks(places, names)
        ax.set(xlabel=f"steps, up to\n\n{title}")
    axes[0].set(ylabel="test error")
    legend_above(lengths, axes[0])
    return {"grid": grid, "training": training, "lengths": lengths}


VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"norm": name, "gain": 1.0} for name in LOOKS},
    "per_step_small_gain": {"norm": "per_step", "gain": 0.1},
}
COMMON: dict[str, Any] = {
    "dtype": "float64", "hidden": 32, "cut": 1000, "variants": VARIANTS,
    "validated_every": 5,
}  # fmt: skip


def _tuned(*rates: float, seeds: int) -> dict[str, Any]:
    rate = {"values": list(rates), "factor": 3.0, "limits": [1e-6, 10.0]}
    tuning = {
        "seeds": list(range(100, 100 + seeds)),
        "criterion": {"measurement": "validation", "quantity": "loss"},
        "grid": {"learning_rate": rate},
    }
    return {**COMMON, "tuning": tuning}


LIVE: dict[str, Any] = {
    **_tuned(0.01, 0.03, 0.09, seeds=1), "batch_size": 30, "shortest": 4,
    "longest": 12, "bounds": [6, 9], "steps": 40, "measure_every": 20,
}  # fmt: skip
# Losses of so few sequences scatter, hence three seeds.
PAPER: dict[str, Any] = {
    **_tuned(0.003, 0.009, 0.027, seeds=3), "batch_size": 27, "bounds": [12, 16, 20],
    "steps": 1500, "measure_every": 50,
}  # fmt: skip
DRAWN = "synthetic sequences of 4-12 steps"


def _paper(about: str, **others: int) -> lab.Scale:
    settings = {**PAPER, **others}
    return lab.Scale(settings, (0, 1, 2, 3, 4), "japanese-vowels", about)


EXPERIMENT = lab.Experiment(
    name="vowels_tuned",
    title="A recurrent network on sequences of several lengths, normalized or not",
    source=SOURCE,
    scales={
        "live": lab.Scale(LIVE, (0, 1), "", DRAWN),
        "paper": _paper("Japanese Vowels, all sequences"),
    },
    begin=begin,
    figures=figures,
)
# Test sequences that are longer than all of training.
LONGER = lab.Experiment(
    name="vowels_longer_tuned",
    title="The same, with training sequences cut short and test sequences whole",
    source=SOURCE,
    scales={
        "live": lab.Scale(
            {**LIVE, "cut": 6}, (0, 1), "", f"{DRAWN}, at most 6 in training"
        ),
        "paper": _paper("Japanese Vowels, training sequences cut to 12 steps", cut=12),
    },
    begin=begin,
    figures=figures,
)
NAMES = EXPERIMENT.name, LONGER.name
