r"""Writing by hand: an LSTM predicts the next step of the pen, normalized or not.

A line of handwriting is a sequence of steps (dx, dy, lift): how far the pen goes, and
1 where it is lifted then. At each step an LSTM gives the density of the next one, a
mixture of K bivariate normal densities for the offset and a probability for the pen:

.. math::
    \ell_t = -\log \sum_{k=1}^K \pi_k\,
        \mathcal N(dx, dy \mid \mu_k, \sigma_k, \rho_k) - \log p(\mathrm{lift}).

These are equations 18 to 26 of Graves (2013, arXiv:1308.0850), with two bounds of ours:
:math:`\log \sigma = 3 \tanh(a / 3)` and :math:`\rho = 0.99 \tanh(r)`. So a deviation is
no less than 0.05, a third of a unit of the box. So far are coordinates rounded, and one
step in five has dx = 0 exactly: without a bound the density there would grow for ever.

The variants: ``none`` is the plain LSTM, ``layer_norm`` that with the layer norm of Ba
et al. (2016, arXiv:1607.06450), equations 20 to 22, with gains that begin at 1 or at
0.1. The paper gives no learning rate, and which network is ahead by how much depends on
it. So each has its own best one (:mod:`normbook.lab.tuning`): that with the lowest loss
at the end, when the rate has fallen to 0, on lines for validation. Their drawers, 13 to
16, are neither those of training nor of the test. One seed is for the tuning, others
for the report. How many times as many updates the one needs as the other is asked at
every height of the loss, on a few lines of the test and of training that are measured
often. Between two measurements the loss is taken for a straight line.

Characters are not given to the network: it writes what looks like writing. In Ba et
al. it is told the text, and the lines are of IAM-OnDB, which may not be passed on; here
they are made of the characters of Omniglot. Layers are stacked as they are, where
Graves connects input and output with each. Derivatives by the outputs are clipped, at
10 where he has 100. All but the scale ``paper`` is in float64: the first updates, at
high rates, multiply a rounding error of float32 until it is seen in the loss.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normbook.data.sequences import pad
from normbook.data.strokes import Drawing, lines
from normbook.data.synthetic import drawings
from normbook.experiments import published
from normbook.experiments.measures import draw_grid
from normbook.lab import experiment as lab
from normbook.lab.record import Record, RunRecord
from normbook.layers.lstm import LayerNormLSTM
from normbook.looks import Kind, looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Steps of a line in the paper: the loss is given for so many.
LINE = 500
# Bounds of log sigma, both ways, and of the correlation.
LOG_SIGMA = 3.0
RHO = 0.99
BIASES = (0, 1, 3)
Lines = tuple[Tensor, Tensor]


class Mixture(NamedTuple):
    """Densities of the next step: K normal ones, and a probability for the pen.

    ``log_weights``, of weights that sum to 1, and ``rhos``, correlations of dx and dy,
    have shape (..., K), ``means`` and ``log_sigmas``, of standard deviations, (..., K,
    2); ``lift``, the log-odds that the pen is lifted, (...).
    """

    log_weights: Tensor
    means: Tensor
    log_sigmas: Tensor
    rhos: Tensor
    lift: Tensor


def mixture(outputs: Tensor, bias: float = 0.0) -> Mixture:
    r"""Read the outputs of the network, shape (..., 6K + 1), as a mixture.

    For each of the K components: a score of its weight, two means, two numbers for the
    deviations and one for the correlation; at the end the log-odds of a lift. The bias,
    from 0 on, is b of Graves (2013), equations 61 and 62: how much more likely than
    learnt the likely shall be. Deviations are divided by :math:`e^b`, scores of the
    weights multiplied by 1 + b.
    """
    scores, mx, my, sx, sy, r = outputs[..., :-1].chunk(6, dim=-1)
    log_sigmas = LOG_SIGMA * torch.tanh(torch.stack([sx, sy], -1) / LOG_SIGMA)
    return Mixture(
        log_weights=torch.log_softmax(scores * (1 + bias), dim=-1),
        means=torch.stack([mx, my], -1),
        log_sigmas=log_sigmas - bias,
        rhos=RHO * torch.tanh(r),
        lift=outputs[..., -1],
    )


def log_density(of: Mixture, steps: Tensor) -> Tensor:
    r"""Logarithm of the density of a step.

    .. math::
        \mathcal N = \frac{1}{2 \pi \sigma_x \sigma_y \sqrt{1 - \rho^2}}
            \exp\left(-\frac{Z}{2 (1 - \rho^2)}\right), \qquad
        Z = z_x^2 + z_y^2 - 2 \rho z_x z_y, \quad z = \frac{(dx, dy) - \mu}{\sigma}

    Steps (dx, dy, lift), lift 0 or 1, have the shape (..., 3), logarithms (nats) the
    shape (...).

    Examples
    --------
    One component at 0 with deviations of 1, and a pen that may or may not be lifted:

    >>> found = log_density(mixture(torch.zeros(7)), torch.tensor([0.0, 0.0, 1.0]))
    >>> bool(torch.isclose(found.exp(), torch.tensor(1 / (2 * torch.pi) / 2)))
    True
    """
    z = (steps[..., None, :2] - of.means) / of.log_sigmas.exp()  # (..., K, 2)
    left = 1 - of.rhos**2
    distance = (z**2).sum(-1) - 2 * of.rhos * z.prod(-1)  # Z
    log_normals = (
        -distance / (2 * left)
        - of.log_sigmas.sum(-1)
        - 0.5 * torch.log(left)
        - math.log(2 * math.pi)
    )
    # Of the sum of exponentials only the logarithm: each of them may be 0 in floats.
    offset = torch.logsumexp(of.log_weights + log_normals, dim=-1)
    log_odds = torch.where(steps[..., 2] > 0.5, of.lift, -of.lift)
    return offset + nn.functional.logsigmoid(log_odds)


class PenNetwork(nn.Module):
    """An LSTM, normalized or not, that gives a mixture for the next step.

    The norm is "none" or "layer_norm", else ValueError. Weights, from a CPU generator,
    are uniform up to 1 over the root of the units of a layer, as in PyTorch; biases
    begin at 0, gains at 1. There are K ``components``. The ``cell`` has options of
    :class:`~normbook.layers.lstm.LayerNormLSTM` that take the place of those of layer
    norm.

    Examples
    --------
    >>> sizes = {"hidden": 5, "layers": 1, "components": 2}
    >>> model = PenNetwork("none", **sizes, generator=torch.Generator())
    >>> model(torch.zeros(4, 6, 3)).shape
    torch.Size([4, 6, 13])
    """

    def __init__(
        self,
        norm: str,
        *,
        hidden: int,
        layers: int,
        components: int,
        generator: torch.Generator,
        cell: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        norms = {"none": None, "layer_norm": "terms"}
        if norm not in norms:
            raise ValueError(f"norm must be one of {', '.join(norms)}, got {norm!r}.")
        # One bias in both variants: three that add up would learn faster.
        options: dict[str, Any] = {"norm": norms[norm], "has_redundant_biases": False}
        options |= cell or {}
        self.lstm = LayerNormLSTM(3, hidden, layers, batch_first=True, **options)
        self.outputs = nn.Linear(hidden, 6 * components + 1)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    parameter.uniform_(-1, 1, generator=generator)
                    parameter.div_(hidden**0.5)
                else:
                    parameter.fill_(float("gamma" in name))

    def forward(self, x: Tensor) -> Tensor:
        """Return what :func:`mixture` reads, (N, T, 6K + 1), for the step after each.

        Steps (dx, dy, lift) have the shape (N, T, 3).
        """
        h, _ = self.lstm(x)
        outputs: Tensor = self.outputs(h)
        return outputs


def sample(
    model: PenNetwork,
    steps: int,
    bias: float,
    generator: torch.Generator,
    *,
    count: int = 1,
) -> Tensor:
    """Let the network write: each step is drawn from its density, and read next.

    The lines, written side by side with a CPU generator, have the shape (count, steps,
    3): steps (dx, dy, lift) in the units of what the network was trained on. The bias,
    see :func:`mixture`, is finite and not negative, else ValueError; 0 draws from the
    density as it is.
    """
    if not 0 <= bias < math.inf:
        raise ValueError(f"bias must be a number from 0 on, got {bias}; give 1, say.")
    like = model.outputs.weight
    written: list[Tensor] = []
    x = like.new_zeros(count, 1, 3)  # how every line begins
    state = None
    with torch.no_grad():
        for _ in range(steps):
            h, state = model.lstm(x, state)
            x = _draw(mixture(model.outputs(h), bias), generator)
            written.append(x)
    return torch.cat(written, dim=1)


def _draw(of: Mixture, generator: torch.Generator) -> Tensor:
    """Draw a step (..., 3) from each mixture."""
    lead = of.lift.shape

    def drawn(kind: Any, *shape: int) -> Tensor:
        numbers: Tensor = kind(*lead, *shape, generator=generator, dtype=torch.float64)
        return numbers.to(of.lift)

    # The first component at which the sum of the weights exceeds a uniform number.
    sums = of.log_weights.exp().cumsum(-1)
    chosen = (sums[..., :-1] <= drawn(torch.rand, 1)).sum(-1, keepdim=True)
    rho = of.rhos.gather(-1, chosen)[..., 0]
    pair = chosen[..., None].expand(*lead, 1, 2)
    mean = of.means.gather(-2, pair)[..., 0, :]
    sigma = of.log_sigmas.gather(-2, pair)[..., 0, :].exp()
    one, two = drawn(torch.randn, 2).unbind(-1)
    z = torch.stack([one, rho * one + torch.sqrt(1 - rho**2) * two], -1)
    lift = drawn(torch.rand) < torch.sigmoid(of.lift)
    return torch.cat([mean + sigma * z, lift[..., None].to(mean)], -1)


def objective(
    model: nn.Module, x: Tensor, y: Tensor, clip: float = math.inf
) -> dict[str, Tensor]:
    """Mean negative log-likelihood of a step (nats).

    x, shape (N, T, 3), are steps, zeros behind the end of a line; y, shape (N, T, 4),
    the step after each, and 1 where there is one, else 0. ``clip`` bounds, both ways,
    the derivative of the loss of one step by each output of the network; what is
    differentiated further is the bounded one.
    """
    live = y[..., 3]
    outputs = model(x)
    if outputs.requires_grad:
        bound = clip / live.sum()  # the loss is a mean
        outputs.register_hook(lambda gradient: gradient.clamp(-bound, bound))
    losses = -log_density(mixture(outputs), y[..., :3])
    return {"loss": (losses * live).sum() / live.sum()}


def falling(step: int, rate: float, steps: int) -> float:
    """Learning rate after so many updates: from `rate` to 0 in so many equal steps.

    >>> [falling(step, rate=1.0, steps=4) for step in (0, 1, 2)]
    [1.0, 0.75, 0.5]
    """
    return rate * (1 - step / steps)


def begin(
    settings: lab.Settings,
    seed: int,
    data: Sequence[Drawing] | None,
    device: torch.device,
) -> lab.Run:
    """Make one network, its lines and its measurements."""
    dtype = getattr(torch, settings["dtype"])
    sizes = (settings[name] for name in ("characters", "repeats", "length", "cut"))
    written: _Written = _Written.of(data, *sizes, settings["validated"], device, dtype)
    model = PenNetwork(
        settings["norm"],
        **{name: settings[name] for name in ("hidden", "layers", "components")},
        generator=lab.generator(seed, "weights"),
        cell=settings.get("cell"),
    ).to(device, dtype)
    if "gain" in settings:
        for name, parameter in model.named_parameters():
            if "gamma" in name:
                nn.init.constant_(parameter, settings["gain"])
    rate, steps, size = (settings[k] for k in ("learning_rate", "steps", "batch_size"))

    def test(run: lab.Run, examples: Lines) -> lab.Values:
        with torch.no_grad():
            loss = objective(run.model, *examples)["loss"].item()
        return {"per_step": loss, "line": LINE * loss}

    def samples(_: lab.Run) -> lab.Values:
        # In float64, so that another machine draws the same from the same weights.
        exact = copy.deepcopy(model).double()
        length, count = settings["sample_steps"], settings["samples"]
        strokes: lab.Values = {}
        for bias in BIASES:
            rand = lab.generator(seed, "samples")
            drawn = sample(exact, length, bias, rand, count=count)
            drawn[..., :2] *= written.scale
            strokes[f"bias_{bias}"] = drawn.mT.cpu().numpy().round(1).tolist()
        return strokes

    every = settings["test_every"]
    measurements = {
        "test": lab.Measurement(every, partial(test, examples=written.test)),
        "samples": lab.Measurement(steps, samples),
        "validation": lab.Measurement(
            every, partial(test, examples=written.validation)
        ),
    }
    if "few" in settings:
        few = {
            "test": _some(written.test, settings["few"]),
            "train": _some(written.train, settings["few"]),
        }

        def heights(run: lab.Run) -> lab.Values:
            return {name: test(run, lines)["line"] for name, lines in few.items()}

        often = settings["few_every"]
        measurements["heights"] = lab.Measurement(often, heights)
    return lab.Run(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=rate, fused=True),
        objective=partial(objective, clip=settings["clip"]),
        batches=lab.Batches(*written.train, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=settings["average_over"],
        schedule=partial(falling, rate=rate, steps=steps),
        shared=written,
    )


@dataclass(frozen=True)
class _Written:
    """Lines as tensors: the same for every seed, so that losses can be compared.

    The lines of some drawers, who are not those of the test, are for validation.
    """

    train: Lines
    validation: Lines
    test: Lines
    scale: float

    @staticmethod
    @lab.shared_by_runs
    def of(
        data: Sequence[Drawing] | None,
        characters: int,
        repeats: int,
        length: int,
        cut: int,
        validated: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> _Written:
        fixed = np.random.default_rng(0)
        drawn = drawings(fixed) if data is None else data
        options: dict[str, Any] = {
            "characters": characters,
            "repeats": repeats,
            "length": length,
        }
        written = lines(
            [d for d in drawn if d.drawer not in validated], fixed, **options
        )
        train, test = (
            _tensors(part, cut, device, dtype) for part in (written.train, written.test)
        )
        others = lines(drawn, fixed, test_drawers=validated, **options)
        unit = np.array([*2 * [others.scale / written.scale], 1.0])
        aside = [line * unit for line in others.test]
        validation = _tensors(aside, cut, device, dtype)
        return _Written(train, validation, test, written.scale)


def _tensors(
    written: Sequence[NDArray[np.float64]],
    cut: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Lines:
    """Steps (N, T, 3), and the next ones with what is live (N, T, 4); T = cut."""
    x, y = [], []
    for line in written:
        here = line[: cut + 1]
        x.append(here[:-1])
        y.append(np.column_stack([here[1:], np.ones(len(here) - 1)]))
    padded = (torch.as_tensor(pad(rows)[0]).to(device, dtype) for rows in (x, y))
    return next(padded), next(padded)


def _some(examples: Lines, count: int) -> Lines:
    """Take so many lines, evenly spread over all."""
    x, y = examples
    chosen = torch.linspace(0, len(x) - 1, count).long()
    return x[chosen], y[chosen]


def updates_to_heights(
    record: Record, variant: str, part: str, heights: Sequence[float]
) -> NDArray[np.float64]:
    """Find the updates of each seed to losses of a line, (S, heights).

    The part is "test" or "train", of which a few lines are measured often. Between two
    measurements the loss is a straight line; NaN where it begins below or never gets
    there.
    """
    record.require(EXPERIMENT.name)
    runs = [run for run in record.runs if run.variant == variant]
    return _updates(runs, part, heights)


def _updates(
    runs: Sequence[RunRecord], part: str, heights: Sequence[float]
) -> NDArray[np.float64]:
    found = [
        [_crossing(run.curves["heights"], part, height) for height in heights]
        for run in runs
    ]
    return np.array(found).reshape(len(runs), len(heights))


def _crossing(curve: Mapping[str, Sequence[Any]], part: str, height: float) -> float:
    steps = curve["step"]
    losses = np.array(curve[part], dtype=np.float64)  # not a number: NaN, never there
    k = int((losses <= height).argmax())
    if k == 0:  # from the start, or never
        return math.nan
    share = (losses[k - 1] - height) / (losses[k - 1] - losses[k])
    return float(steps[k - 1] + share * (steps[k] - steps[k - 1]))


def common_heights(
    record: Record, part: str, variant: str = "layer_norm", every: float = 25
) -> list[float]:
    """Return the multiples of ``every`` nats, falling, that two networks come through.

    They are those without normalization and of the variant, in all their runs.
    """
    losses = [record.values(v, "heights", part) for v in ("none", variant)]
    first = min(float(values[:, 0].min()) for values in losses)
    last = max(float(values.min(1).max()) for values in losses)
    whole = range(math.ceil(first / every) - 1, math.ceil(last / every) - 1, -1)
    return [every * k for k in whole]


def quotients(
    record: Record, part: str, heights: Sequence[float], variant: str = "layer_norm"
) -> NDArray[np.float64]:
    """Divide the updates without normalization by those with it, seed by seed.

    Shape (S, heights): runs of a seed begin with the same weights and batches.
    """
    plain, normed = (
        updates_to_heights(record, v, part, heights) for v in ("none", variant)
    )
    return plain / normed


def quotients_of_best_rates(
    record: Record, part: str, heights: Sequence[float], variant: str = "layer_norm"
) -> NDArray[np.float64]:
    """Divide as :func:`quotients` does, each network at its best rate for the height.

    Of the runs of the tuning, shape (S, heights) for its S seeds: the rate that is best
    at the end need not be the one that gets to a height soonest.
    """
    record.require(EXPERIMENT.name)
    plain, normed = (
        _updates_at_best(record, v, part, heights) for v in ("none", variant)
    )
    return plain / normed


def _updates_at_best(
    record: Record, variant: str, part: str, heights: Sequence[float]
) -> NDArray[np.float64]:
    runs = [run for run in record.tuning if run.variant == variant]
    seeds = list(dict.fromkeys(run.seed for run in runs))
    found = [
        _updates([run for run in runs if run.seed == seed], part, heights)
        for seed in seeds
    ]
    return np.array([np.fmin.reduce(updates, axis=0) for updates in found])


def written(record: Record, variant: str, bias: int) -> NDArray[np.float64]:
    """Return the lines that the networks wrote, before training and after it.

    Shape (S, 2, M, T, 3): S seeds, before and after, M lines of T steps (dx, dy, lift),
    in units of the box of a character, whose side is 105. The bias is 0, 1 or 3.
    """
    record.require(EXPERIMENT.name)
    return np.swapaxes(record.values(variant, "samples", f"bias_{bias}"), -1, -2)


LOOKS: dict[str, tuple[Kind, str]] = {
    **looks("none", "layer_norm"),
    "layer_norm gain=0.1": ("other", "layer norm, gains from 0.1"),
}


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of this experiment.

    "grid": validation loss of a line at the end against the learning rate, with the
    chosen one. "loss": loss of a line against updates, on a few lines of the test and
    of training, and the published points, which are of other lines. "quotient": updates
    without normalization over those with it, seed by seed, at all heights of that loss
    that both come through; dotted with the best rate for each height. "samples": lines
    that the networks of the first seed wrote after training.
    """
    from matplotlib.ticker import MultipleLocator

    from normbook.figures import band, legend_above, panels, pen_lines, points

    record.require(EXPERIMENT.name)
    parts = {"test": "test lines", "train": "training lines"}
    drawn = {
        "grid": draw_grid(
            record,
            {"learning rate": ("learning_rate", LOOKS)},
            ylabel="validation loss (nats a line)",
        )
    }
    drawn["loss"], (*ours, theirs) = panels(len(parts) + 1)
    drawn["loss"].set_size_inches(8.4, 3.2)
    ours[1].sharey(ours[0])  # before anything is drawn: each widens it
    for ax, (part, title) in zip(ours, parts.items(), strict=True):
        for variant, (kind, label) in LOOKS.items():
            # No logarithm of 0: the first measurement is left out.
            steps = record.steps("heights", variant)[1:]
            losses = record.values(variant, "heights", part)[:, 1:]
            band(ax, steps, losses, kind=kind, label=label)
        ax.set(xlabel=f"updates\n\n{title}", xscale="log")
    for norm, curve in published.HANDWRITING_LOSS.items():
        points(theirs, curve.x, curve.y, kind=LOOKS[norm][0])
    theirs.set(xlabel=f"updates\n\n{curve.source},\ndigitised", xscale="log")
    ours[0].set(ylabel="loss of a line (nats)")
    legend_above(drawn["loss"], ours[0])

    drawn["quotient"], axes = panels(len(parts), sharey=True)
    drawn["quotient"].set_size_inches(7.2, 3.8)
    for ax, (part, title) in zip(axes, parts.items(), strict=True):
        for variant, (kind, label) in list(LOOKS.items())[1:]:
            heights = common_heights(record, part, variant)
            found = quotients(record, part, heights, variant)
            band(ax, heights, found, kind=kind, label=label)
            if variant == "layer_norm":
                fewest = quotients_of_best_rates(record, part, heights)
                label = "the same, best rate for each height"
                band(ax, heights, fewest, kind="reference", label=label)
        ax.axhline(1, color="black", lw=0.8)
        ax.set(xlabel=f"loss of a line (nats)\n\n{title}")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_major_locator(MultipleLocator(1000))
        ax.invert_xaxis()
    axes[0].set(ylabel="updates without\nover updates with it", ylim=(0.5, 10))
    legend_above(drawn["quotient"], axes[0], columns=2)

    samples = {
        f"{LOOKS[norm][1]}, bias {bias}": (
            LOOKS[norm][0], list(written(record, norm, bias)[0, -1])
        )
        for bias in BIASES
        for norm in ("none", "layer_norm")
    }  # fmt: skip
    drawn["samples"], _ = pen_lines(samples, columns=2)
    return drawn


COMMON: dict[str, Any] = {
    "components": 20, "clip": 10.0, "batch_size": 8, "dtype": "float64", "samples": 2,
}  # fmt: skip
LINES = {"characters": 8, "repeats": 8, "length": 3.0, "cut": LINE, "sample_steps": 400}
DRAWERS = {"validated": [13, 14, 15, 16]}


def _tuned(*rates: float) -> dict[str, Any]:
    """Give each network, also with small gains, its own best rate."""
    rate = {"values": list(rates), "factor": 3.0, "limits": [1e-5, 10.0]}
    tuning = {
        "seeds": [100],
        "criterion": {"measurement": "validation", "quantity": "line"},
        "grid": {"learning_rate": rate},
    }
    variants: dict[str, dict[str, Any]] = {
        "none": {"norm": "none"},
        "layer_norm": {"norm": "layer_norm"},
        "layer_norm gain=0.1": {"norm": "layer_norm", "gain": 0.1},
    }
    return {**COMMON, "variants": variants, "tuning": tuning}


EXPERIMENT = lab.Experiment(
    name="handwriting_tuned",
    title="The LSTM that writes, with and without layer norm, each at its best rate",
    source="Ba et al. (2016), Fig. 5; Graves (2013), section 4",
    scales={
        "live": lab.Scale({
            **_tuned(0.01, 0.03), **DRAWERS, "characters": 4, "repeats": 4,
            "length": 8.0, "cut": 40, "hidden": 24, "layers": 1, "steps": 40,
            "average_over": 10, "test_every": 20, "few": 4, "few_every": 2,
            "sample_steps": 80,
        }, (0, 1), "", "synthetic lines of four characters, 24 units"),
        "cpu": lab.Scale({
            **_tuned(0.01, 0.03), **LINES, **DRAWERS, "samples": 1, "hidden": 128,
            "layers": 1, "steps": 2400, "average_over": 20, "test_every": 400,
            "few": 16, "few_every": 10,
        }, (0, 1, 2), "omniglot-strokes",
            "lines of eight characters of Omniglot, 128 units"),
        "paper": lab.Scale({
            **_tuned(0.0003, 0.001, 0.003), **LINES, **DRAWERS, "dtype": "float32",
            "hidden": 400, "layers": 3, "steps": 190_000, "average_over": 200,
            "test_every": 1000, "few": 16, "few_every": 50,
        }, (0, 1, 2), "omniglot-strokes",
            "the same lines, three layers of 400 units as in the paper (GPU)"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip
