r"""Reading: an attentive reader answers questions about a text, normalized or not.

One LSTM reads the words :math:`1, \dots, T` of a text, another one the question;
:math:`y_t` is the state of the first at word t, and u the last state of the second.
Attention gives each word a weight :math:`s_t`, and from the average of the states come
the scores of the answers:

.. math::
    m_t &= \tanh(W_{ym} y_t + W_{um} u), &
    s_t &= \frac{e^{w_{ms}^\top m_t}}{\sum_{k=1}^T e^{w_{ms}^\top m_k}}, \\
    r &= \sum_{t=1}^T s_t y_t, &
    g &= \tanh(W_{rg} r + W_{ug} u),

and the scores are a linear function of g. The normalization is inside the two LSTMs and
nowhere else: ``none``, the ``layer_norm`` of Ba et al., whose gains begin at 1, or the
recurrent ``batch_norm`` of Cooijmans et al., with statistics for each step, whose gains
begin at 0.1.

The tasks are a gap to fill in a drawn text (:mod:`normbook.data.cloze`), and three of
bAbI, which one network learns together (:mod:`normbook.data.babi`). Neither is the task
of the papers (arXiv:1506.03340, 1603.09025 and 1607.06450, section 6.2): they took news
with 65 829 different words. Nor is there dropout here, gradients are not clipped, and
the LSTM with layer norm has one bias where the formulas have three that add up.

``reading`` compares normalizations with their own gains, at one rate. In
``reading_tuned`` both normalizations begin with gains of 1 and of 0.1, and each variant
has its own best learning rate (:mod:`normbook.lab.tuning`): that with the lowest error
at the end on stories for validation, the last ones for training of each task, equally
many of each, which are not learned. One seed of the tuning, others for the report; the
tested stories choose nothing. Its scale ``cpu``, stories of at most 60 words, leaves
open what longer ones, wider readers and more updates would show.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from normbook.data import cloze
from normbook.data.stories import Stories, Story
from normbook.experiments import published
from normbook.experiments.measures import Looks, draw_grid, errors, judge
from normbook.lab import experiment as lab
from normbook.lab.record import Record
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.lstm import LayerNormLSTM
from normbook.looks import STYLES, Kind, looks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    from normbook.figures import Line

# Stories that are looked at together in evaluation.
TOGETHER = 250
# The settings that choose the stories.
STORIES = ("tasks", "longest", "train", "tested", "validated", "seen")


class Reading(NamedTuple):
    """What a reader makes of N texts with their questions."""

    scores: Tensor  # (N, answers)
    weights: Tensor  # (N, T): what a word counts, 0 for padding; a row adds up to 1


class AttentiveReader(nn.Module):
    r"""Answers questions about texts, see above.

    The norm is "none", "layer_norm" or "batch_norm", else ValueError. There are so many
    different ``words``, whose numbers count from 1, and so many ``answers``. A word has
    ``embedding`` numbers; each LSTM, m and g have ``hidden`` units; a longest text in
    training ``max_steps`` words. If it is bidirectional, each LSTM is a pair, one for
    each direction. The ``cell`` has options of
    :class:`~normbook.layers.lstm.LayerNormLSTM` that take the place of those of layer
    norm.

    From a CPU generator words are drawn normal with variance 1, all matrices uniform in
    :math:`\pm 1/\sqrt{n}`, n the number of inputs (of units of the LSTM for both of its
    matrices). Biases begin at 0.

    Examples
    --------
    >>> drawn = torch.Generator().manual_seed(0)
    >>> sizes = {"words": 9, "answers": 3, "embedding": 4, "hidden": 5, "max_steps": 6}
    >>> model = AttentiveReader("layer_norm", **sizes, generator=drawn)
    >>> texts = torch.tensor([[4, 1, 7], [5, 9, 0]])
    >>> scores, weights = model.read(texts, torch.tensor([[2], [3]]))
    >>> scores.shape, weights.shape
    (torch.Size([2, 3]), torch.Size([2, 3]))
    >>> weights[1, 2].item()  # padding
    0.0
    """

    def __init__(
        self,
        norm: str,
        *,
        words: int,
        answers: int,
        embedding: int,
        hidden: int,
        max_steps: int,
        generator: torch.Generator,
        is_bidirectional: bool = False,
        cell: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        directions = 2 if is_bidirectional else 1

        def lstm() -> nn.Module:
            options: dict[str, Any] = {
                "batch_first": True, "bidirectional": is_bidirectional
            }  # fmt: skip
            if norm == "batch_norm":
                options["max_steps"] = max_steps
                return BatchNormLSTM(embedding, hidden, **options)
            terms = {"none": None, "layer_norm": "terms"}
            if norm in terms:
                options |= {"norm": terms[norm], "has_redundant_biases": False}
                return LayerNormLSTM(embedding, hidden, **options | dict(cell or {}))
            raise ValueError(
                f"norm must be none, layer_norm or batch_norm, got {norm!r}."
            )

        def matrix(inputs: int, outputs: int) -> nn.Linear:
            layer = nn.Linear(inputs, outputs, bias=False)
            nn.init.uniform_(layer.weight, *_bounds(inputs), generator=generator)
            return layer

        # Row 0 is for padding, which no state that counts has seen.
        self.embedding = nn.Embedding(words + 1, embedding)
        nn.init.normal_(self.embedding.weight, generator=generator)
        self.text, self.question = lstm(), lstm()
        for part in (self.text, self.question):
            for name, parameter in part.named_parameters():
                if name.startswith("w_"):
                    nn.init.uniform_(parameter, *_bounds(hidden), generator=generator)
                elif name.startswith("b"):
                    nn.init.zeros_(parameter)
        states = directions * hidden
        self.text_to_match = matrix(states, hidden)
        self.question_to_match = matrix(states, hidden)
        self.match_to_weight = matrix(hidden, 1)
        self.text_to_answer = matrix(states, hidden)
        self.question_to_answer = matrix(states, hidden)
        self.scores = nn.Linear(hidden, answers)
        nn.init.uniform_(self.scores.weight, *_bounds(hidden), generator=generator)
        nn.init.zeros_(self.scores.bias)

    def forward(self, texts: Tensor, questions: Tensor) -> Tensor:
        """Return the scores of the answers, (N, answers); the rest as :meth:`read`."""
        return self.read(texts, questions).scores

    def read(self, texts: Tensor, questions: Tensor) -> Reading:
        """Read texts (N, T) with their questions (N, Q).

        Numbers of words from 1, at least one in each row, and zeros behind them.
        """
        y, _ = self._read(self.text, texts)  # (N, up to T, D)
        _, u = self._read(self.question, questions)  # (N, D)
        m = torch.tanh(self.text_to_match(y) + self.question_to_match(u)[:, None])
        is_padding = texts[:, : y.shape[1]] == 0
        logits = self.match_to_weight(m)[:, :, 0].masked_fill(is_padding, -torch.inf)
        weights = logits.softmax(dim=1)
        r = (weights[:, :, None] * y).sum(dim=1)
        g = torch.tanh(self.text_to_answer(r) + self.question_to_answer(u))
        rest = texts.shape[1] - y.shape[1]  # behind the longest text
        return Reading(self.scores(g), nn.functional.pad(weights, (0, rest)))

    def _read(self, lstm: nn.Module, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states at all words, and the last one (of each direction)."""
        lengths = (words != 0).sum(dim=1)
        packed = pack_padded_sequence(
            self.embedding(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, (last, _) = lstm(packed)
        padded, _ = pad_packed_sequence(states, batch_first=True)
        return padded, last.transpose(0, 1).flatten(1)


def gains(model: nn.Module) -> list[nn.Parameter]:
    """Return the gains of the normalizations inside the LSTMs of a reader."""
    named = model.named_parameters()
    return [p for n, p in named if "gamma" in n or (".norm_" in n and "weight" in n)]


def _bounds(inputs: int) -> tuple[float, float]:
    return -(inputs**-0.5), inputs**-0.5


def _stories(settings: lab.Settings, data: Stories | None) -> Stories:
    """Return the stories of the tasks that are short; draw them without a data set."""
    if data is None:
        drawn = np.random.default_rng(0)  # the same texts for all seeds
        return cloze.stories(drawn, train=settings["train"], test=settings["tested"])

    def chosen(stories: Sequence[Story]) -> tuple[Story, ...]:
        asked = (s for s in stories if s.task in settings["tasks"])
        return tuple(s for s in asked if len(s.words) <= settings["longest"])

    return Stories(chosen(data.train), chosen(data.test))


def _shown(settings: lab.Settings, stories: Stories) -> list[Story]:
    """Return the stories whose attention is recorded: the first two with four facts."""
    shown: list[Story] = []
    for task in settings["tasks"]:
        few = [s for s in stories.test if s.task == task and len(s.facts) == 4]
        shown += few[:2]
    return shown


class _Encoding(NamedTuple):
    """Numbers for words from 1, for answers from 0, for tasks from 0."""

    words: dict[str, int]
    answers: dict[str, int]
    tasks: dict[str, int]

    @classmethod
    def of(cls, stories: Sequence[Story], tasks: Sequence[str]) -> _Encoding:
        words = {word for s in stories for word in (*s.words, *s.question)}
        answers = {s.answer for s in stories}
        return cls(
            {word: i for i, word in enumerate(sorted(words), start=1)},
            {word: i for i, word in enumerate(sorted(answers))},
            {task: i for i, task in enumerate(tasks)},
        )

    def tensors(
        self, stories: Sequence[Story], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Texts and questions (N, 2, T), padded; answers and tasks (N, 2)."""
        longest = max(len(text) for s in stories for text in (s.words, s.question))

        def padded(text: Sequence[str]) -> list[int]:
            return [self.words[word] for word in text] + [0] * (longest - len(text))

        x = [[padded(s.words), padded(s.question)] for s in stories]
        y = [[self.answers[s.answer], self.tasks[s.task]] for s in stories]
        return torch.tensor(x, device=device), torch.tensor(y, device=device)


@dataclass(frozen=True)
class _Encoded:
    """Stories as tensors: to learn from, to test with, and to show the attention on.

    Of each task so many of the last ones of training may be set aside, for validation,
    and the errors on so many of those that are learned may be measured, as ``seen``.
    """

    encoding: _Encoding
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor] | None
    seen: tuple[Tensor, Tensor] | None
    test: tuple[Tensor, Tensor]
    examples: list[Story]
    shown: tuple[Tensor, Tensor]

    @staticmethod
    @lab.shared_by_runs
    def of(
        data: Stories | None, settings: lab.Settings, device: torch.device
    ) -> _Encoded:
        stories = _stories(settings, data)
        encoding = _Encoding.of(stories.train, settings["tasks"])
        examples = _shown(settings, stories)
        aside, learned = _last(stories.train, settings.get("validated", 0))
        seen, _ = _last(learned, settings.get("seen", 0))

        def tensors(stories: Sequence[Story]) -> tuple[Tensor, Tensor]:
            return encoding.tensors(stories, device)

        return _Encoded(
            encoding,
            train=tensors(learned),
            validation=tensors(aside) if aside else None,
            seen=tensors(seen) if seen else None,
            test=tensors(stories.test),
            examples=examples,
            shown=tensors(examples),
        )


def _last(stories: Sequence[Story], count: int) -> tuple[list[Story], list[Story]]:
    """Split off the last ones of each task: these, and the others, in their order."""
    left = Counter(story.task for story in stories)
    last, others = list[Story](), list[Story]()
    for story in stories:
        (last if left[story.task] <= count else others).append(story)
        left[story.task] -= 1
    return last, others


def begin(
    settings: lab.Settings, seed: int, data: Stories | None, device: torch.device
) -> lab.Run:
    """Make one reader, its stories and its measurements."""
    dtype = getattr(torch, settings["dtype"])
    chosen = {name: settings[name] for name in STORIES if name in settings}
    encoded: _Encoded = _Encoded.of(data, chosen, device)
    encoding, (x, y) = encoded.encoding, encoded.train
    model = AttentiveReader(
        settings["norm"],
        words=len(encoding.words),
        answers=len(encoding.answers),
        **{name: settings[name] for name in ("embedding", "hidden")},
        max_steps=x.shape[2],
        generator=lab.generator(seed, "weights"),
        cell=settings.get("cell"),
    ).to(device, dtype)
    if "gain" in settings:
        for gain in gains(model):
            nn.init.constant_(gain, settings["gain"])
    rate, size = settings["learning_rate"], settings["batch_size"]

    def judged(run: lab.Run, examples: tuple[Tensor, Tensor]) -> lab.Values:
        run.model.eval()
        x_test, y_test = examples
        parts = torch.split(x_test, TOGETHER)
        with torch.no_grad():
            scores = torch.cat([run.model(*part.unbind(1)) for part in parts])
        loss, wrong = judge(scores, y_test[:, 0])
        tasks = encoding.tasks.values()
        return {
            "loss": float(loss.mean()),
            "error": float(wrong.mean()),
            "error_by_task": [float(wrong[y_test[:, 1] == t].mean()) for t in tasks],
        }

    def attention(run: lab.Run) -> lab.Values:
        run.model.eval()
        x_shown, y_shown = encoded.shown
        with torch.no_grad():
            scores, weights = model.read(*x_shown.unbind(1))
        right = scores.softmax(1).gather(1, y_shown[:, :1])[:, 0]
        values: lab.Values = {"probability": right.tolist()}
        for i, story in enumerate(encoded.examples):
            values[f"weights_{i}"] = weights[i, : len(story.words)].tolist()
            lines = [" ".join(line) for line in (*story.facts, story.question)]
            values[f"story_{i}"] = "\n".join([*lines, story.answer])
        return values

    every = settings["test_every"]
    measurements = {
        "test": lab.Measurement(every, partial(judged, examples=encoded.test)),
        "attention": lab.Measurement(settings["steps"], attention),
    }
    for name in ("validation", "seen"):
        if (examples := getattr(encoded, name)) is not None:
            seldom = settings.get("others_every", every)
            measure = partial(judged, examples=examples)
            measurements[name] = lab.Measurement(seldom, measure)
    return lab.Run(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=rate, fused=True),
        objective=_objective,
        batches=lab.Batches(x, y, size, lab.generator(seed, "batches")),
        measurements=measurements,
        every=settings["average_over"],
        shared=encoded,
    )


def _objective(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return errors(model(*x.unbind(1)), y[:, 0])


class Attention(NamedTuple):
    """What a reader, trained with S seeds, looked at in one text of the test."""

    facts: list[list[str]]  # the words of each sentence
    question: list[str]
    answer: str  # the right one
    probability: NDArray[np.float64]  # of the right answer, shape (S,)
    weights: NDArray[np.float64]  # of each word, in reading order, shape (S, T)


def attention(record: Record, variant: str, place: int) -> Attention:
    """Return the attention at the end of training, with the words.

    The place is that of a recorded text, from 0: two of each task.
    """
    record.require(*NAMES)
    text = record.texts(variant, "attention", f"story_{place}")[0][-1]
    *facts, question, answer = (line.split() for line in text.split("\n"))
    weights = record.values(variant, "attention", f"weights_{place}")[:, -1]
    right = record.values(variant, "attention", "probability")[:, -1, place]
    return Attention(facts, question, answer[0], right, weights)


def first_steps(
    record: Record, variant: str, task: str, level: float
) -> NDArray[np.float64]:
    """Find when the test error of a task is at most `level` for the first time.

    Shape (S,): steps for each seed, of those measured; NaN where the error never gets
    so low. ValueError if the record has no such task.
    """
    record.require(*NAMES)
    tasks = record.settings["tasks"]
    if task not in tasks:
        raise ValueError(
            f"task must be one of {', '.join(tasks)}, got {task!r}; take one of the "
            "record."
        )
    place = tasks.index(task)
    is_low = record.values(variant, "test", "error_by_task")[:, :, place] <= level
    return record.first_steps(variant, "test", is_low)


LOOKS = looks("none", "layer_norm", "batch_norm")
LEVELS = np.array([0.5, 0.4, 0.3, 0.2, 0.1, 0.05])


def figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``reading``.

    "error": test error against training steps, a column for each task; the last column
    has points of Ba et al. (2016), Fig. 2, on another task. "steps": when each error is
    reached first; a curve ends where not all runs get further. "attention_0" and so on:
    the words of one text of each task, with their weights at the end of the first run.
    """
    from normbook.figures import curve_grid, points

    record.require(EXPERIMENT.name)
    beside = "thousands of steps\n\nBa et al. (2016):\nnews, validation"
    columns = _by_task(record, LOOKS, "test")
    error, ((*_, last),) = curve_grid({"test error": {**columns, beside: {}}})
    for variant, (kind, _) in LOOKS.items():
        of = published.READING_ERROR[variant]
        points(last, np.divide(of.x, 1000), of.y, kind=kind)
    last.set(ylim=(0, 1.05))
    return {
        "error": error,
        "steps": _draw_steps(record, LOOKS),
        **_draw_attention(record, LOOKS),
    }


def _by_task(
    record: Record, looks: Looks, measurement: str
) -> dict[str, dict[str, Line]]:
    """Return the errors of each task against the steps, for a panel each."""
    columns: dict[str, dict[str, Line]] = {}
    for place, task in enumerate(record.settings["tasks"]):
        curves = columns.setdefault(f"training steps\n\n{task}", {})
        for variant, (kind, label) in looks.items():
            runs = record.values(variant, measurement, "error_by_task")[:, :, place]
            curves[label] = (kind, record.steps(measurement, variant), runs)
    return columns


def _draw_steps(record: Record, looks: Looks) -> Figure:
    from normbook.figures import curve_grid

    reached: dict[str, dict[str, Line]] = {}
    for task in record.settings["tasks"]:
        firsts = reached.setdefault(f"test error\n\n{task}", {})
        for variant, (kind, label) in looks.items():
            counts = [first_steps(record, variant, task, level) for level in LEVELS]
            firsts[label] = (kind, LEVELS, np.transpose(counts))
    fig, (axes,) = curve_grid({"training steps": reached})
    for ax in axes:
        ax.invert_xaxis()  # errors fall as training goes on
    return fig


def _draw_attention(record: Record, looks: Looks) -> dict[str, Figure]:
    drawn = {}
    for i in range(len(record.settings["tasks"])):
        panels = {}
        for variant, (kind, label) in looks.items():
            seen = attention(record, variant, 2 * i)
            title = f"{label}: {' '.join(seen.question)}? "
            title += f"P({seen.answer}) = {seen.probability[0]:.2f}"
            panels[title] = (kind, seen.facts, seen.weights[0])
        drawn[f"attention_{i}"] = shaded_words(panels)
    return drawn


# A row for each gain; without a normalization there is none.
BY_GAIN: dict[str, Looks] = {
    "gains from 1": {
        "none": LOOKS["none"],
        "layer_norm": LOOKS["layer_norm"],
        "batch_norm gain=1": LOOKS["batch_norm"],
    },
    "gains from 0.1": {
        "none": LOOKS["none"],
        "layer_norm gain=0.1": LOOKS["layer_norm"],
        "batch_norm": LOOKS["batch_norm"],
    },
}


def tuned_figures(record: Record) -> dict[str, Figure]:
    """Draw a record of ``reading_tuned``.

    "grid": the error of the criterion against the learning rate, with the chosen one.
    "error": test error (line) against training steps, a row for each gain and a column
    for each task; "seen" the same on texts that are learned. "steps gains from 1" and
    "steps gains from 0.1": when each test error is reached first.
    """
    from normbook.figures import curve_grid

    record.require(TUNED.name)
    drawn = {
        "grid": draw_grid(
            record,
            {
                f"learning rate\n\n{title}": ("learning_rate", shown)
                for title, shown in BY_GAIN.items()
            },
            ylabel="validation error at the end",
        )
    }
    for name, measurement in (("error", "test"), ("seen", "seen")):
        drawn[name], _ = curve_grid(
            {
                f"{measurement} error,\n{title}": _by_task(record, shown, measurement)
                for title, shown in BY_GAIN.items()
            }
        )
    for title, shown in BY_GAIN.items():
        drawn[f"steps {title}"] = _draw_steps(record, shown)
    return drawn


# Letters in a line of words, and its height (inches): legible on a telephone.
LETTERS = 44
HEIGHT = 0.5


def shaded_words(
    texts: Mapping[str, tuple[Kind, Sequence[Sequence[str]], ArrayLike]],
) -> Figure:
    """Show the weights of words: in reading order, the more weight the darker.

    A text has a title, a kind, sentences, each of which begins a line, and a weight for
    each word, from 0 to 1, written below it in percent from 0.05 on.
    """
    from normbook.figures import panels

    for title, (_, sentences, weights) in texts.items():
        words = sum(map(len, sentences))
        if np.shape(weights) != (words,):
            raise ValueError(
                f"weights must be one weight for each of {words} words, got shape "
                f"{np.shape(weights)} for {title!r}; give those of all sentences."
            )
        least, most = np.min(weights), np.max(weights)
        if not 0 <= least <= most <= 1:
            raise ValueError(
                f"weights must lie in 0..1, got {least:g} to {most:g}; give those of a "
                "softmax."
            )
    fig, axes = panels(len(texts), rows=len(texts))
    heights = []
    for ax, (title, text) in zip(axes, texts.items(), strict=True):
        heights.append(_draw_words(ax, *text))
        ax.set_title(title, loc="left")
    grid = axes[0].get_gridspec()
    if grid is not None:
        grid.set_height_ratios(heights)
    width, _ = fig.get_size_inches()
    fig.set_size_inches(width, HEIGHT * (sum(heights) + len(axes)))
    return fig


def _draw_words(
    ax: Axes, kind: Kind, sentences: Sequence[Sequence[str]], weights: ArrayLike
) -> int:
    """Write words in lines, each on its shade; return the number of lines."""
    from matplotlib.patches import Rectangle

    words = [(word, i == 0) for s in sentences for i, word in enumerate(s)]
    centred: dict[str, Any] = {"ha": "center", "va": "center", "family": "monospace"}
    column, line = 0, -1
    for (word, is_first), weight in zip(words, np.asarray(weights), strict=True):
        size = len(word) + 1
        if is_first or column + size > LETTERS:
            column, line = 0, line + 1
        # Not darker than black letters allow.
        shade = {"facecolor": STYLES[kind]["color"], "alpha": 0.7 * weight}
        ax.add_patch(Rectangle((column, line), size, 0.55, linewidth=0, **shade))
        middle = column + size / 2
        ax.text(middle, line + 0.28, word, **centred)
        if weight >= 0.05:
            ax.text(middle, line + 0.74, f"{100 * weight:.0f}", fontsize=9, **centred)
        column += size
    ax.set(xlim=(0, LETTERS), ylim=(line + 1, 0))
    ax.set_axis_off()
    return line + 1


VARIANTS = {name: {"norm": name} for name in LOOKS}
BABI: dict[str, Any] = {"tasks": ["qa1", "qa2", "qa5"], "variants": VARIANTS}
EXPERIMENT = lab.Experiment(
    name="reading",
    title="An attentive reader: layer norm, batch norm or none inside the LSTM",
    source="Ba et al. (2016), Fig. 2; Cooijmans et al. (2016); Hermann et al. (2015)",
    scales={
        "live": lab.Scale({
            "dtype": "float64", "tasks": ["cloze"], "train": 2000, "tested": 200,
            "embedding": 16, "hidden": 24, "batch_size": 32, "learning_rate": 0.01,
            "steps": 240, "average_over": 20, "test_every": 40, "variants": VARIANTS,
        }, (0, 1), "", "drawn texts of 2-4 sentences with a gap"),
        "full": lab.Scale({
            **BABI, "dtype": "float32", "longest": 200, "embedding": 240, "hidden": 240,
            "batch_size": 64, "learning_rate": 8e-5, "steps": 40_000,
            "average_over": 200, "test_every": 1000,
        }, (0, 1, 2), "babi",
            "three tasks of bAbI, stories of at most 200 words, 240 units (GPU)"),
    },
    begin=begin,
    figures=figures,
)  # fmt: skip

# Each at its own best rate, with both gains.
TUNED_VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"norm": "none"},
    "layer_norm": {"norm": "layer_norm", "gain": 1.0},
    "layer_norm gain=0.1": {"norm": "layer_norm", "gain": 0.1},
    "batch_norm": {"norm": "batch_norm", "gain": 0.1},
    "batch_norm gain=1": {"norm": "batch_norm", "gain": 1.0},
}


def _tuning(*rates: float) -> dict[str, Any]:
    rate = {"values": list(rates), "factor": 3.0, "limits": [1e-5, 1.0]}
    return {
        "seeds": [100],
        "criterion": {"measurement": "validation", "quantity": "error"},
        "grid": {"learning_rate": rate},
    }


TUNED_BABI: dict[str, Any] = {
    **BABI, "variants": TUNED_VARIANTS, "validated": 300, "seen": 300,
}  # fmt: skip
TUNED = lab.Experiment(
    name="reading_tuned",
    title="The same readers, with gains from 1 and from 0.1, each at its best rate",
    source=EXPERIMENT.source,
    scales={
        "live": lab.Scale({
            "dtype": "float64", "tasks": ["cloze"], "train": 1000, "tested": 200,
            "embedding": 16, "hidden": 24, "batch_size": 32, "validated": 200,
            "seen": 100, "steps": 60, "average_over": 20, "test_every": 30,
            "variants": TUNED_VARIANTS, "tuning": _tuning(0.01, 0.03),
        }, (0, 1), "", "drawn texts of 2-4 sentences with a gap"),
        "cpu": lab.Scale({
            **TUNED_BABI, "dtype": "float64", "longest": 60, "embedding": 32,
            "hidden": 64, "batch_size": 32, "steps": 5000, "average_over": 100,
            "test_every": 200, "others_every": 500,
            "tuning": _tuning(0.002, 0.006),
        }, (0, 1, 2), "babi",
            "three tasks of bAbI, stories of at most 60 words, 64 units"),
        "full": lab.Scale({
            **TUNED_BABI, "dtype": "float32", "longest": 200, "embedding": 240,
            "hidden": 240, "batch_size": 64, "steps": 40_000, "average_over": 200,
            "test_every": 1000, "tuning": _tuning(0.0003, 0.001, 0.003),
        }, (0, 1, 2), "babi",
            "three tasks of bAbI, stories of at most 200 words, 240 units (GPU)"),
    },
    begin=begin,
    figures=tuned_figures,
)  # fmt: skip
NAMES = EXPERIMENT.name, TUNED.name
