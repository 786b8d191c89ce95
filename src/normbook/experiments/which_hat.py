r"""Which hat does the work: layer-normalized LSTMs with some of the hats, and tuned.

The cell of Ba et al. (2016) standardizes three things at each step:
:math:`p = W_h h_{t-1}`, :math:`q = W_x x_t` and :math:`c_t`
(:mod:`normbook.layer_norm_lstm`). Here are the cells with a hat on each subset of
{p, q, c}; with one hat of the sum p + q; and those that carry the normalized c on. The
subset {c} is the paper's second cell (equations 29 to 31), the empty one the plain
LSTM. Each has its own best learning rate and forget bias
(:mod:`normbook.lab.tuning`), with all gains beginning at 1 and at 0.1, on four tasks:
two of bAbI (:mod:`normbook.experiments.reading`), pen strokes
(:mod:`normbook.experiments.handwriting`), and marks that have to be counted
(:func:`normbook.data.synthetic.marked`), in longer sequences than those of training,
too.

Beside the scores stand the deviations :math:`\sigma_p, \sigma_q, \sigma_c` over
training, and what a hat on p makes of the way from state to state: a small change of
:math:`h_{t-1}` arrives at :math:`a_t = \gamma_h \hat p_t + \dots` multiplied by

.. math::
    J = \operatorname{diag}(\gamma_h)\, N_p W_h, \qquad
    N_p = \frac{1}{\sigma_p}\Bigl(I - \frac{1}{n} 1 1^\top
        - \frac{1}{n} \hat p\, \hat p^\top\Bigr), \quad n = 4H,

since :math:`N_p` is the derivative of the hat. Let :math:`C = I - 1 1^\top / n`. Then
:math:`\sigma_p = \|C W_h h\| / \sqrt n`, up to :math:`\epsilon`, so

.. math::
    \|J\| = \sqrt n\, \frac{\|\operatorname{diag}(\gamma_h)
        (I - \hat p\, \hat p^\top / n)\, C W_h\|}{\|C W_h h\|} .

The weights are in numerator and denominator: :math:`W_h \to \alpha W_h` changes
nothing. The gain of the step is pinned whatever :math:`\|W_h\|`, and learnt by
:math:`\gamma_h` alone. But :math:`h` is in the denominator: half the state has twice
the gain. For a :math:`W_h` of independent entries with variance :math:`w^2` and H
units, :math:`\|C W_h h\| \approx w \sqrt n \|h\|` and :math:`\|C W_h\| \approx
w (\sqrt n + \sqrt H) = \tfrac32 w \sqrt n`, so :math:`\|J\| \approx \tfrac32 \gamma
\sqrt n / \|h\| = 3 \gamma / \operatorname{rms}(h)`. A state has
:math:`\operatorname{rms}(h) < 1`: with :math:`\gamma = 1` the gain of such weights is 3
or more before the gates, whose slopes are at most 1/4 (of g: 1); with :math:`\gamma =
0.1` it is 1 at :math:`\operatorname{rms}(h) = 0.3`. Training may turn it down by the
shape of :math:`W_h` (where all columns are alike J is 0), never by its size. With a hat
of the sum :math:`\sigma` is that of p + q, and a small h finds q there; without a hat
of p the gain is :math:`\|W_h\|`.

What the scale ``cpu`` leaves open: one layer of at most 64 units and 250 to 600
updates, so that a verdict is one on small networks and on how fast they learn; one seed
for the tuning; and the scale of the first weights, which is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from normbook import through_time
from normbook.data.synthetic import marked
from normbook.experiments import handwriting, reading
from normbook.experiments.measures import through_best
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layer_norm_lstm import LayerNormLSTMParameters, layer_norm_lstm_forward
from normbook.layers.lstm import LayerNormLSTM
from normbook.looks import STYLES, Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Ba et al. (2016), equations 20-22 and 29-31; Zeineldeen et al. (2020)"
MEASURED = ("validation", "test", "beyond")
PROBE = 16  # training examples on which the cell is measured
ROWS = 16  # steps of them for the gain, which takes singular values


# --- the task that needs counting


class Counter(nn.Module):
    """An LSTM that reads letters and gives a score at each step.

    Letters 0 to ``letters`` come as rows of the unit matrix. Weights, from a CPU
    generator, are uniform up to 1 over the root of the units; the ``cell`` has options
    of :class:`~normbook.layers.lstm.LayerNormLSTM`.
    """

    def __init__(
        self,
        *,
        letters: int,
        hidden: int,
        cell: Mapping[str, Any],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.letters = letters
        options = {"batch_first": True, "has_redundant_biases": False, **cell}
        self.lstm = LayerNormLSTM(letters + 1, hidden, **options)
        self.score = nn.Linear(hidden, 1)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    parameter.uniform_(-1, 1, generator=generator)
                    parameter.div_(hidden**0.5)
                else:
                    parameter.fill_(float("gamma" in name))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, (N, T), of letters, (N, T)."""
        letters = nn.functional.one_hot(x, self.letters + 1)
        h, _ = self.lstm(letters.to(self.score.weight.dtype))
        scores: Tensor = self.score(h)[:, :, 0]
        return scores


def counted(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Mean cross-entropy of an answer (nats), and shares of what is wrong.

    "error" is the share of sequences with a wrong answer, "wrong" that of answers. x
    and y are those of :func:`normbook.data.synthetic.marked`.
    """
    scores = model(x)
    is_asked = y >= 0
    labels = y[is_asked].to(scores.dtype)
    loss = nn.functional.binary_cross_entropy_with_logits(scores[is_asked], labels)
    is_wrong = ((scores.detach() > 0) != (y > 0)) & is_asked
    wrong = is_wrong.to(scores.dtype)
    return {
        "loss": loss,
        "error": wrong.amax(1).mean(),
        "wrong": wrong[is_asked].mean(),
    }


@dataclass(frozen=True)
class _Letters:
    """Sequences, the same for all seeds; ``beyond`` are longer, with more marks."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    beyond: tuple[Tensor, Tensor]

    @staticmethod
    @lab.shared_by_runs
    def of(data: None, settings: lab.Settings, device: torch.device) -> _Letters:
        drawn = np.random.default_rng(0)
        steps, most, letters, train, tested = (settings[k] for k in SIZES)

        def draw(count: int, times: int = 1) -> tuple[Tensor, Tensor]:
            least = 0 if times == 1 else most + 1
            sizes = {"steps": times * steps, "least": least, "most": times * most}
            x, y = marked(drawn, count=count, letters=letters, **sizes)
            return torch.as_tensor(x, device=device), torch.as_tensor(y, device=device)

        return _Letters(draw(train), draw(tested), draw(tested), draw(tested, 2))


SIZES = ("letters", "most", "alphabet", "train", "tested")


def _begin_counting(
    settings: lab.Settings, seed: int, data: None, device: torch.device
) -> lab.Run:
    letters: _Letters = _Letters.of(data, {k: settings[k] for k in SIZES}, device)
    model = Counter(
        letters=settings["alphabet"],
        hidden=settings["hidden"],
        cell=settings["cell"],
        generator=lab.generator(seed, "weights"),
    ).to(device, getattr(torch, settings["dtype"]))
    rate, size = settings["learning_rate"], settings["batch_size"]

    def test(run: lab.Run, examples: tuple[Tensor, Tensor]) -> lab.Values:
        with torch.no_grad():
            return {k: float(v) for k, v in counted(run.model, *examples).items()}

    def measured(examples: tuple[Tensor, Tensor]) -> lab.Measurement:
        return lab.Measurement(settings["test_every"], partial(test, examples=examples))

    return lab.Run(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=rate, fused=True),
        objective=counted,
        batches=lab.Batches(*letters.train, size, lab.generator(seed, "batches")),
        measurements={
            name: measured(getattr(letters, name))
            for name in ("validation", "test", "beyond")
        },
        every=settings["average_over"],
        shared=letters,
    )


# --- all tasks


def begin(
    settings: lab.Settings, seed: int, data: Any, device: torch.device
) -> lab.Run:
    """Make one network of a task, with the gain and the forget bias of the settings."""
    task = settings["task"]
    of_task: Any = {"reading": reading.begin, "strokes": handwriting.begin}
    make = of_task.get(task, _begin_counting)
    run: lab.Run = make({**settings, "norm": "layer_norm"}, seed, data, device)
    lstms = [m for m in run.model.modules() if isinstance(m, LayerNormLSTM)]
    with torch.no_grad():
        for lstm in lstms:
            for name, parameter in lstm.named_parameters():
                if name.startswith("gamma"):
                    parameter.fill_(settings["gain"])
                elif name.startswith("b_"):
                    parameter[: lstm.hidden_size] = settings["forget_bias"]
    x = run.batches.x[:PROBE]

    def cell(run: lab.Run) -> lab.Values:
        run.model.eval()
        inputs = x.unbind(1) if task == "reading" else (x,)
        with torch.no_grad():
            return spreads(lstms[0], first_input(run.model, lstms[0], *inputs))

    run.measurements = {  # not those that show attention, or lines
        **{n: run.measurements[n] for n in MEASURED if n in run.measurements},
        "cell": lab.Measurement(settings["test_every"], cell),
    }
    return run


def first_input(model: nn.Module, layer: nn.Module, *inputs: Tensor) -> Any:
    """Return what a layer is given where the model is called so."""
    seen: list[Any] = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        model(*inputs)
    finally:
        hook.remove()
    return seen[0]


@torch.no_grad()
def spreads(lstm: LayerNormLSTM, x: Tensor | PackedSequence) -> lab.Values:
    r"""Measure the first layer of an LSTM on some sequences, from the second step on.

    "sigma_p", "sigma_q" and "sigma_c" are deviations over the units, "h" the root mean
    square of the state that a step begins with: medians over steps and examples. "gain"
    is the median of :math:`\|J\|`, see above, for some of them, spread over all.
    """
    options: dict[str, Any] = {"norm": lstm.norm, "carried": lstm.carried}
    options |= {"hats": lstm.hats, "eps": lstm.eps}
    if isinstance(x, PackedSequence):
        options["batch_sizes"] = x.batch_sizes.tolist()
        x = x.data
    elif lstm.batch_first:
        x = x.transpose(0, 1)
    names = LayerNormLSTMParameters._fields
    weights = LayerNormLSTMParameters(*(getattr(lstm, f"{n}_l0") for n in names))
    _, cache = layer_norm_lstm_forward(x, weights, **options)
    rows, h, c, p_hat, r_p, r_c = through_time.as_rows(
        x, x, cache.h, cache.c, cache.p_hat, cache.inv_std_p, cache.inv_std_c
    )
    sizes = cache.batch_sizes
    later = slice(sizes[0], None)  # before the first step h is 0
    h_prev = through_time.before(h, cache.h_0, sizes)[later]
    sigma_c = 1 / r_c if "c" in lstm.hats else _deviation(c)
    gains = 1.0 if weights.gamma_h is None else weights.gamma_h[:, None]
    few = torch.linspace(0, len(h_prev) - 1, min(ROWS, len(h_prev))).long()
    slopes = gains * weights.w_h
    if "p" in lstm.hats:
        slopes = torch.stack([
            gains * _through_hat(weights.w_h, p_hat[later][k], r_p[later][k])
            for k in few
        ])  # fmt: skip
    quantities = {
        "sigma_p": _deviation(h_prev @ weights.w_h.T),
        "sigma_q": _deviation((rows @ weights.w_x.T)[later]),
        "sigma_c": sigma_c[later],
        "gain": _spectral_norms(slopes),
        "h": h_prev.square().mean(1).sqrt(),
    }
    return {name: float(values.median()) for name, values in quantities.items()}


def _deviation(rows: Tensor) -> Tensor:
    return rows.std(1, correction=0)


def _spectral_norms(slopes: Tensor) -> Tensor:
    if not slopes.isfinite().all():  # after a run that diverged
        return slopes.new_tensor(torch.nan)
    norms: Tensor = torch.linalg.matrix_norm(slopes, 2)
    return norms


def _through_hat(w: Tensor, v_hat: Tensor, inv_std: Tensor) -> Tensor:
    """Return the derivative of the hat times w, whose rows belong to the units."""
    centred = w - w.mean(0)
    return inv_std * (centred - torch.outer(v_hat, v_hat @ w) / len(v_hat))


# --- records


def at_end(
    record: Record, variant: str, measurement: str = "test", quantity: str = "loss"
) -> NDArray[np.float64]:
    """Return what was measured at the end of the runs of a variant, (S,)."""
    record.require(*NAMES)
    return record.values(variant, measurement, quantity)[:, -1]


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of one task.

    "end": what the test gives at the end, a row for each cell, a point for each seed,
    with gains that begin at 1 and at 0.1; of the counting also in longer sequences.
    "grid": the criterion against the learning rate, at the best forget bias, with the
    chosen points. "cell": see :func:`draw_cell`.
    """
    record.require(*NAMES)
    return {
        "end": _draw_end(record),
        "grid": _draw_grid(record),
        "cell": draw_cell({record.settings["task"]: record}),
    }


GAINS: dict[float, tuple[Kind, str]] = {
    1.0: ("layer", "gains from 1"), 0.1: ("other", "gains from 0.1")
}  # fmt: skip


def _cells(record: Record) -> dict[str, dict[float, str]]:
    """Variants by their cell and gain."""
    cells: dict[str, dict[float, str]] = {}
    for variant, own in record.settings["variants"].items():
        cells.setdefault(own["label"], {})[own["gain"]] = variant
    return cells


def _look(record: Record, variant: str) -> tuple[Kind, str]:
    own = record.settings["variants"][variant]
    return GAINS[own["gain"]] if own["cell"]["hats"] else ("none", "no hat")


def _draw_end(record: Record) -> Figure:
    from normbook.figures import legend_above, panels

    shown = {"test": "test"}
    if record.settings["task"] == "counting":
        shown["beyond"] = "longer sequences"
    quantity = record.settings["shown"]
    cells = _cells(record)
    fig, axes = panels(len(shown), sharey=True)
    fig.set_size_inches(8.4, 1.5 + 0.3 * len(cells))
    for ax, (measurement, title) in zip(axes, shown.items(), strict=True):
        for row, variants in enumerate(cells.values()):
            for place, (gain, variant) in enumerate(variants.items()):
                kind, label = _look(record, variant)
                runs = at_end(record, variant, measurement, quantity)
                is_new = label not in ax.get_legend_handles_labels()[1]
                ax.plot(
                    runs,
                    np.full(len(runs), row + 0.3 * place),
                    "o" if gain == 1 else "^",
                    color=STYLES[kind]["color"],
                    fillstyle="none",
                    label=label if is_new else None,
                )
        ax.set(xlabel=f"{quantity} at the end\n\n{title}")
    axes[0].set(ylabel="hats")
    axes[0].set_yticks(range(len(cells)), list(cells))
    axes[0].invert_yaxis()
    legend_above(fig, axes[0])
    return fig


def _draw_grid(record: Record) -> Figure:
    from normbook.figures import legend_above, panels

    cells = _cells(record)
    columns = min(5, len(cells))
    rows = -(-len(cells) // columns)
    fig, axes = panels(rows * columns, rows=rows, sharex=True, sharey=True)
    fig.set_size_inches(8.4, 1 + 1.9 * rows)
    for ax in axes[len(cells) :]:
        ax.remove()
    for ax, (name, variants) in zip(axes, cells.items(), strict=False):
        for variant in variants.values():
            kind, label = _look(record, variant)
            rates, scores = through_best(record, variant)
            style: dict[str, Any] = STYLES[kind]
            ax.plot(rates, scores.mean(0), **style, label=label)
            at = rates == record.chosen(variant)["learning_rate"]
            ax.plot(rates[at], scores.mean(0)[at], "o", color=style["color"])
        ax.set(xscale="log", xlabel="no hat" if name == "none" else name)
    for ax in axes[::columns]:
        ax.set(ylabel="validation loss")
    legend_above(fig, axes[len(cells) - 1])  # the first has no gain
    return fig


QUANTITIES = {
    "gain": "$\\|J\\|$",
    "sigma_p": "$\\sigma_p$", "sigma_q": "$\\sigma_q$", "sigma_c": "$\\sigma_c$",
}  # fmt: skip
FOLLOWED: dict[str, tuple[Kind, str]] = {
    "none": ("none", "no hat"), "pqc": ("layer", "p, q, c"),
    "c": ("other", "c alone"), "sum": ("reference", "sum"),
}  # fmt: skip


def draw_cell(records: Mapping[str, Record]) -> Figure:
    """Draw the gain of the step and deviations over training, with gains from 1.

    A column for each record, which is given by its title, a row for each quantity.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    from normbook.figures import curve_grid

    for record in records.values():
        record.require(*NAMES)
    fig, grid = curve_grid(
        {
            label: {
                f"training steps\n\n{title}": {
                    name: (
                        kind,
                        record.steps("cell", variant),
                        record.values(variant, "cell", quantity),
                    )
                    for variant, (kind, name) in FOLLOWED.items()
                    if variant in record.variants
                }
                for title, record in records.items()
            }
            for quantity, label in QUANTITIES.items()
        },
        yscale="log",
    )
    for ax, *_ in grid:
        low, high = ax.get_ylim()
        few = (1,) if high > 100 * low else (1, 2, 5)
        ax.yaxis.set_major_locator(LogLocator(subs=few))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
    return fig


# --- settings

SUBSETS = ("", "p", "q", "c", "pq", "pc", "qc", "pqc")


def variants(
    hats: Iterable[str] = SUBSETS,
    sums: Sequence[str] = ("pq", "pqc"),
    carrying: Sequence[str] = ("c", "pc", "qc", "pqc"),
    gains: Sequence[float] = tuple(GAINS),
) -> dict[str, lab.Settings]:
    """Name cells with hats, with a hat of the sum, and carrying the normalized c."""
    carried = {"carried": "normalized"}
    cells: dict[str, dict[str, str]] = {
        **{of or "none": {"hats": of} for of in hats},
        **{f"sum{of[2:]}": {"hats": of, "norm": "sum"} for of in sums},
        **{f"{of}, carried": {"hats": of, **carried} for of in carrying},
        **{
            f"sum{of[2:]}, carried": {"hats": of, "norm": "sum", **carried}
            for of in sums
            if of in carrying
        },
    }
    named: dict[str, lab.Settings] = {}
    for (name, cell), gain in product(cells.items(), gains):
        if gain == gains[0] or cell["hats"]:  # without a hat there is no gain
            ending = "" if gain == gains[0] else f" gain={gain:g}"
            named[name + ending] = {"label": name, "cell": cell, "gain": gain}
    return named


CHOICE: lab.Settings = {}  # a choice of the values, with nothing beyond


def _tuning(
    rates: Sequence[float], quantity: str = "loss", bias: lab.Settings = CHOICE
) -> dict[str, Any]:
    return {
        "seeds": [100],
        "criterion": {"measurement": "validation", "quantity": quantity},
        "grid": {
            "learning_rate": {
                "values": list(rates), "factor": 3.0, "limits": [1e-6, 10.0]
            },
            "forget_bias": {"values": [0.0, 2.0], **bias},
        },
    }  # fmt: skip


RATES = (0.001, 0.003, 0.009)
HIGHER = (0.003, 0.009, 0.027)
HIGHEST = (0.009, 0.027, 0.081)
BIASES: dict[str, Any] = {"step": 2.0, "limits": [-30.0, 30.0]}
FEW = variants(("", "pqc"), (), (), (1.0,))
FEW_POINTS = {"tuning": _tuning((0.003, 0.009))}
READING: dict[str, Any] = {
    "task": "reading", "shown": "error", "dtype": "float64", "variants": variants(),
    "tuning": _tuning(RATES, bias=BIASES), "longest": 60, "validated": 1000,
    "batch_size": 32,
}  # fmt: skip
CLOZE: dict[str, Any] = {
    "task": "reading", "shown": "error", "dtype": "float64", "tasks": ["cloze"],
    "train": 1000, "tested": 200, "validated": 200, "embedding": 16, "hidden": 24,
    "batch_size": 32, "steps": 30, "average_over": 10, "test_every": 15,
    "variants": FEW, **FEW_POINTS,
}  # fmt: skip
READING_CPU = READING | {  # later the stories are learned, with hats and without
    "embedding": 32, "hidden": 64, "steps": 600, "average_over": 100,
    "test_every": 100,
}  # fmt: skip
READING_PAPER = READING | {
    "dtype": "float32",
    "longest": 200, "embedding": 240, "hidden": 240, "batch_size": 64,
    "steps": 20_000, "average_over": 500, "test_every": 1000,
}  # fmt: skip
SEEDS = (0, 1, 2)


def _reading(task: str, about: str) -> lab.Experiment:
    return lab.Experiment(
        name=f"which_hat_{task}",
        title=f"Which hat does the work in an LSTM? {about}",
        source=SOURCE,
        scales={
            "live": lab.Scale(CLOZE, (0, 1), "", "drawn texts with a gap, two cells"),
            "cpu": lab.Scale({**READING_CPU, "tasks": [task]}, SEEDS, "babi",
                f"task {task} of bAbI, 64 units"),
            "paper": lab.Scale({**READING_PAPER, "tasks": [task]}, SEEDS, "babi",
                f"task {task} of bAbI, 240 units (GPU)"),
        },
        begin=begin,
        figures=figures,
    )  # fmt: skip


QA1 = _reading("qa1", "Where is Mary? One fact tells")
QA5 = _reading("qa5", "Who gave what to whom? One fact of many tells")
PEN: dict[str, Any] = {
    "task": "strokes", "shown": "per_step", "dtype": "float64", "components": 20,
    "clip": 10.0, "batch_size": 8, "samples": 1, "layers": 1,
    "validated": [13, 14, 15, 16], "tuning": _tuning(HIGHER, "per_step", BIASES),
    "variants": variants(),
}  # fmt: skip
STROKES = lab.Experiment(
    name="which_hat_strokes",
    title="Which hat does the work in an LSTM? Strokes of a pen",
    source=SOURCE,
    scales={
        "live": lab.Scale({
            **PEN, "characters": 4, "repeats": 4, "length": 8.0, "cut": 40,
            "hidden": 24, "steps": 30, "average_over": 10, "test_every": 15,
            "sample_steps": 1, "variants": FEW,
            "tuning": _tuning((0.01, 0.03), "per_step"),
        }, (0, 1), "", "synthetic lines of four characters, two cells"),
        "cpu": lab.Scale({
            **PEN, "characters": 4, "repeats": 8, "length": 3.0, "cut": 120,
            "hidden": 64, "steps": 400, "average_over": 100, "test_every": 100,
            "sample_steps": 1,
        }, SEEDS, "omniglot-strokes", "four characters of Omniglot, 64 units"),
        "paper": lab.Scale({
            **PEN, "dtype": "float32", "characters": 8, "repeats": 8, "length": 3.0,
            "cut": 500, "hidden": 400, "steps": 20_000, "average_over": 500,
            "test_every": 1000, "sample_steps": 1,
        }, SEEDS, "omniglot-strokes", "eight characters, 400 units (GPU)"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
COUNTS: dict[str, Any] = {
    "task": "counting", "shown": "wrong", "dtype": "float64", "alphabet": 4,
    "batch_size": 32, "tuning": _tuning(HIGHEST, bias=BIASES), "variants": variants(),
}  # fmt: skip
COUNTING = lab.Experiment(
    name="which_hat_counting",
    title="Which hat does the work in an LSTM? Marks to be counted",
    source=SOURCE,
    scales={
        "live": lab.Scale({
            **COUNTS, "letters": 8, "most": 4, "train": 500, "tested": 100,
            "hidden": 12, "steps": 60, "average_over": 20, "test_every": 20,
            "variants": FEW, **FEW_POINTS,
        }, (0, 1), "", "at most 4 marks in 8 letters, two cells"),
        "cpu": lab.Scale({
            **COUNTS, "letters": 120, "most": 60, "train": 10_000, "tested": 500,
            "hidden": 16, "steps": 250, "average_over": 50, "test_every": 50,
        }, (0, 1, 2, 3, 4), "", "60 marks or less in 120 letters, then twice both"),
        "paper": lab.Scale({
            **COUNTS, "letters": 100, "most": 50, "train": 50_000, "tested": 1000,
            "hidden": 128, "steps": 20_000, "average_over": 500, "test_every": 1000,
        }, (0, 1, 2, 3, 4), "", "at most 50 marks in 100 letters (GPU)"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
NAMES = tuple(e.name for e in (QA1, QA5, STROKES, COUNTING))
