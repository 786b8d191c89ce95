"""The attentive reader."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import small
import torch
from luminance import luminance
from matplotlib.colors import to_rgb
from small import CPU, EXACT, check_circles, check_median, same
from torch import Tensor

from normbook.data.stories import Stories, Story
from normbook.diagnostics.undisturbed import undisturbed
from normbook.errors import RecordError
from normbook.experiments import published, reading
from normbook.experiments.reading import AttentiveReader
from normbook.lab.record import Record
from normbook.looks import STYLES

every_variant = pytest.mark.parametrize("variant", reading.VARIANTS)
# Texts of 5, 2, 4 and 3 words with questions of 2, 1, 3 and 2.
TEXTS = torch.tensor(
    [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [3, 3, 1, 2, 0], [5, 1, 6, 0, 0]]
)
QUESTIONS = torch.tensor([[2, 7, 0], [4, 0, 0], [1, 1, 5], [6, 2, 0]])


def reader(variant: str, is_bidirectional: bool = False) -> AttentiveReader:
    """A reader whose running statistics and biases are not as at the start."""
    model = AttentiveReader(
        variant, words=7, answers=4, embedding=3, hidden=5, max_steps=6,
        generator=torch.Generator().manual_seed(0), is_bidirectional=is_bidirectional,
    ).double()  # fmt: skip
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "b_l0" in name or name.endswith("bias"):
                parameter.normal_(generator=drawn)
    for _ in range(3):
        model(TEXTS, QUESTIONS)
    return model


begun = partial(small.begun, "reading")


# --- the reader


def step(model: Any, part: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """One step of the plain LSTM, by its formula."""
    get = dict(getattr(model, part).named_parameters())
    a = get["w_x_l0"] @ x + get["w_h_l0"] @ h + get["b_l0"]
    f, i, o, g = a.chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def by_hand(model: Any, text: list[int], question: list[int]) -> tuple[Tensor, Tensor]:
    """Scores and weights of one text, word by word."""
    states: dict[str, list[Tensor]] = {"text": [], "question": []}
    for part, words in (("text", text), ("question", question)):
        h = c = torch.zeros(5, dtype=torch.float64)
        for word in words:
            h, c = step(model, part, model.embedding.weight[word], h, c)
            states[part].append(h)
    y, u = torch.stack(states["text"]), states["question"][-1]
    m = torch.tanh(
        y @ model.text_to_match.weight.T + model.question_to_match.weight @ u
    )
    s = torch.exp(m @ model.match_to_weight.weight[0])
    s = s / s.sum()
    r = s @ y
    g = model.text_to_answer.weight @ r + model.question_to_answer.weight @ u
    return model.scores.weight @ torch.tanh(g) + model.scores.bias, s


def test_scores_and_weights_are_those_of_the_formulas_word_by_word() -> None:
    model = reader("none")
    with torch.no_grad():
        scores, weights = model.read(TEXTS, QUESTIONS)
        for i, (text, question) in enumerate(zip(TEXTS, QUESTIONS, strict=True)):
            words = (text[text > 0].tolist(), question[question > 0].tolist())
            expected, attention = by_hand(model, *words)
            same(scores[i], expected)
            same(weights[i, : len(attention)], attention)


@pytest.mark.parametrize("is_bidirectional", [False, True])
@every_variant
def test_the_weights_of_a_text_add_up_to_one_and_padding_has_none(
    variant: str, is_bidirectional: bool
) -> None:
    weights = reader(variant, is_bidirectional).read(TEXTS, QUESTIONS).weights.detach()
    assert torch.equal(weights == 0, TEXTS == 0)
    same(weights.sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("is_bidirectional", [False, True])
@every_variant
def test_padding_has_no_influence(variant: str, is_bidirectional: bool) -> None:
    model = reader(variant, is_bidirectional).train()
    with undisturbed(model) as reset, torch.no_grad():
        before = model(TEXTS, QUESTIONS)
        reset()
        model.embedding.weight[0] = torch.nan
        longer = [torch.nn.functional.pad(x, (0, 4)) for x in (TEXTS, QUESTIONS)]
        same(model(*longer), before)


@pytest.mark.parametrize("is_bidirectional", [False, True])
@every_variant
def test_in_evaluation_mode_a_text_scores_the_same_alone(
    variant: str, is_bidirectional: bool
) -> None:
    model = reader(variant, is_bidirectional).eval()
    with torch.no_grad():
        together = model(TEXTS, QUESTIONS)
        for i in range(4):
            text = TEXTS[i : i + 1]
            alone = model(text[:, text[0] > 0], QUESTIONS[i : i + 1])
            same(alone[0], together[i])


@every_variant
def test_in_training_mode_only_batch_norm_looks_at_the_company(variant: str) -> None:
    model = reader(variant).train()
    order = torch.tensor([2, 0, 3, 1])
    with undisturbed(model) as reset, torch.no_grad():
        together = model(TEXTS, QUESTIONS)
        reset()
        same(model(TEXTS[order], QUESTIONS[order]), together[order])
        reset()
        moved = (model(TEXTS[:3], QUESTIONS[:3]) - together[:3]).abs().max()
    assert (float(moved) > 1e-4) == (variant == "batch_norm")
    assert float(moved) < EXACT or variant == "batch_norm"


@every_variant
def test_the_normalization_is_inside_the_lstms_and_nowhere_else(variant: str) -> None:
    others = {n for n, _ in reader(variant).named_parameters() if "_l0" not in n}
    assert others == {n for n, _ in reader("none").named_parameters() if "_l0" not in n}
    gains = [
        parameter.detach()
        for name, parameter in begun(variant).model.named_parameters()
        if "gamma" in name or ("norm" in name and name.endswith("weight"))
    ]
    assert len(gains) == (0 if variant == "none" else 6)
    expected = 0.1 if variant == "batch_norm" else 1.0
    for gain in gains:  # made in float32
        torch.testing.assert_close(gain, torch.full_like(gain, expected))


# --- the runs


@every_variant
def test_all_variants_begin_with_the_same_weights_and_biases(variant: str) -> None:
    one, other = begun("none"), begun(variant)
    for name, value in one.model.named_parameters():
        assert torch.equal(value, other.model.get_parameter(name)), name


def test_seeds_differ_in_weights_and_batches_but_not_in_the_texts() -> None:
    first, second = begun("none", seed=0), begun("none", seed=1)
    assert not torch.equal(first.batch[0], second.batch[0])
    assert torch.equal(first.batches.x, second.batches.x)
    weights = [run.model.get_parameter("embedding.weight") for run in (first, second)]
    assert not torch.equal(*weights)


def some_stories(*lengths: int, task: str = "qa1") -> tuple[Story, ...]:
    """Stories of facts of two words."""
    fact = ("mary", "left")
    return tuple(
        Story(task, (fact,) * n, ("who", "left"), "mary", (0,)) for n in lengths
    )


def test_stories_that_are_too_long_are_left_out() -> None:
    data = Stories(some_stories(1, 2, 3, 4), some_stories(4, 5, 1, 4, 4, task="qa2"))
    run = begun("none", on=data, longest=8, tasks=["qa1", "qa2"], batch_size=2)
    assert run.batches.x.shape == (4, 2, 8)
    chosen = reading._stories({"longest": 8, "tasks": ["qa1", "qa2"]}, data)
    assert [len(s.facts) for s in chosen.test] == [4, 1, 4, 4]
    assert reading._stories({"longest": 8, "tasks": ["qa1"]}, data).test == ()


@every_variant
def test_what_is_measured_are_the_errors_of_each_task(variant: str) -> None:
    run = begun(variant)
    run.update()
    found = run.measurements["test"].measure(run)
    stories = reading._stories(
        small.experiment("reading").scales["live"].settings, None
    )
    encoding = reading._Encoding.of(stories.train, ["cloze"])
    x, y = encoding.tensors(stories.test, CPU)
    with torch.no_grad():
        scores = run.model.eval()(x[:, 0], x[:, 1])
    wrong = (scores.argmax(1) != y[:, 0]).double().mean()
    assert found["error"] == pytest.approx(float(wrong), rel=EXACT)
    assert found["error_by_task"] == [found["error"]]
    p = scores.softmax(1)[torch.arange(30), y[:, 0]]
    assert found["loss"] == pytest.approx(-float(p.log().mean()), rel=EXACT)


def test_a_text_and_its_attention_can_be_had_from_the_record(record: Record) -> None:
    stories = reading._stories(record.settings, None)
    expected = reading._shown(record.settings, stories)[1]
    seen = reading.attention(record, "layer_norm", 1)
    assert tuple(map(tuple, seen.facts)) == expected.facts
    assert tuple(seen.question) == expected.question
    assert seen.answer == expected.answer
    assert seen.weights.shape == (2, len(expected.words))
    np.testing.assert_allclose(seen.weights.sum(1), 1, rtol=EXACT)
    assert seen.probability.shape == (2,)


def test_first_steps_are_those_at_which_an_error_is_reached(record: Record) -> None:
    errors = record.values("none", "test", "error_by_task")[:, :, 0]
    level = float(errors[0].min())
    first = record.steps("test", "none")[int(errors[0].argmin())]
    assert reading.first_steps(record, "none", "cloze", level)[0] == first
    assert np.isnan(reading.first_steps(record, "none", "cloze", level=-1.0)).all()


@pytest.mark.parametrize("of", [reading.EXPERIMENT, reading.TUNED])
def test_measurements_and_averages_fall_on_the_last_step(of: Any) -> None:
    for scale in of.scales.values():
        settings = scale.settings
        assert settings["steps"] % settings["test_every"] == 0
        assert settings["steps"] % settings["average_over"] == 0


# --- each at its own best rate

TUNED = partial(small.begun, "reading_tuned")
every_tuned = pytest.mark.parametrize("variant", reading.TUNED_VARIANTS)


@every_tuned
def test_gains_begin_as_the_variant_says(variant: str) -> None:
    own = reading.TUNED_VARIANTS[variant]
    model = TUNED(variant).model
    found = reading.gains(model)
    assert len(found) == (0 if variant == "none" else 6)
    for gain in found:
        torch.testing.assert_close(gain, torch.full_like(gain, own["gain"]))
    plain, batch = begun("none").model, TUNED("batch_norm").model
    others = {n for n, _ in plain.named_parameters()}
    new = {n for n, _ in batch.named_parameters()} - others
    assert len([n for n in new if n.endswith("weight")]) == 6


def test_both_normalizations_begin_with_both_gains() -> None:
    pairs = {(v["norm"], v.get("gain")) for v in reading.TUNED_VARIANTS.values()}
    norms = ("layer_norm", "batch_norm")
    assert pairs == {("none", None)} | {(n, g) for n in norms for g in (0.1, 1.0)}


def test_each_task_has_as_many_stories_for_validation_which_are_not_learned() -> None:
    one, two = some_stories(1, 2, 3, 4), some_stories(1, 2, 3, 4, 5, task="qa2")
    data = Stories(one + two, some_stories(4))
    settings = {"longest": 20, "tasks": ["qa1", "qa2"], "validated": 2, "seen": 1}
    of: Any = reading._Encoded.of(data, settings, CPU)

    def lengths(examples: tuple[Tensor, Tensor]) -> list[tuple[int, int]]:
        facts = (examples[0][:, 0] != 0).sum(1) // 2
        return list(zip(examples[1][:, 1].tolist(), facts.tolist(), strict=True))

    assert lengths(of.validation) == [(0, 3), (0, 4), (1, 4), (1, 5)]
    assert lengths(of.train) == [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]
    assert lengths(of.seen) == [(0, 2), (1, 3)]


def test_the_rate_is_chosen_by_the_error_of_validation() -> None:
    record = small.record("reading_tuned")
    for variant in record.variants:
        grid = record.grid(variant)
        best = grid["learning_rate"][grid["score"].mean(1).argmin()]
        assert record.chosen(variant) == {"learning_rate": best}
        runs = [run for run in record.tuning if run.variant == variant]
        errors = [run.curves["validation"]["error"][-1] for run in runs]
        np.testing.assert_allclose(grid["score"][:, 0], errors, rtol=1e-6)


def test_the_tuned_figures_have_the_runs() -> None:
    record = small.record("reading_tuned")
    drawn = reading.tuned_figures(record)
    for name, measurement in (("error", "test"), ("seen", "seen")):
        shown = zip(drawn[name].axes, reading.BY_GAIN.values(), strict=True)
        for ax, looks in shown:
            for variant, (kind, _) in looks.items():
                errors = record.values(variant, measurement, "error_by_task")[:, :, 0]
                check_median(ax, kind, record.steps(measurement, variant), errors)


# --- the figures


def test_the_figure_of_errors_has_the_runs_and_the_published_points(
    record: Record,
) -> None:
    ours, theirs = reading.figures(record)["error"].axes
    for variant, (kind, _) in reading.LOOKS.items():
        errors = record.values(variant, "test", "error_by_task")[:, :, 0]
        check_median(ours, kind, record.steps("test", variant), errors)
        points = published.READING_ERROR[variant]
        thousands = tuple(x / 1000 for x in points.x)
        check_circles(theirs, kind, points._replace(x=thousands))


def test_the_figure_of_attention_has_all_words_in_reading_order(record: Record) -> None:
    axes = reading.figures(record)["attention_0"].axes
    assert len(axes) == len(reading.LOOKS)
    for ax, variant in zip(axes, reading.LOOKS, strict=True):
        seen = reading.attention(record, variant, 0)
        texts = [text.get_text() for text in ax.texts]
        words = [word for fact in seen.facts for word in fact]
        assert [text for text in texts if not text.isdigit()] == words
        shades = np.array([patch.get_alpha() for patch in ax.patches], dtype=float)
        np.testing.assert_allclose(shades, 0.7 * seen.weights[0])


SENTENCES = [["mary", "left"], ["who", "went", "where"]]
WEIGHTS = [0.5, 0.0, 0.04, 0.06, 0.4]


def test_shaded_words_stand_in_reading_order_and_each_sentence_begins_a_line() -> None:
    (ax,) = reading.shaded_words({"a text": ("layer", SENTENCES, WEIGHTS)}).axes
    words = [text for text in ax.texts if not text.get_text().isdigit()]
    assert [text.get_text() for text in words] == [
        word for sentence in SENTENCES for word in sentence
    ]
    places = [text.get_position() for text in words]
    assert [line for _, line in places] == [0.28, 0.28, 1.28, 1.28, 1.28]
    assert places[0][0] < places[1][0]
    assert places[2][0] < places[3][0] < places[4][0]
    assert ax.get_title(loc="left") == "a text"


def test_the_shade_of_a_word_is_its_weight_and_black_can_be_read_on_it() -> None:
    for kind, style in STYLES.items():
        (ax,) = reading.shaded_words({"a text": (kind, SENTENCES, WEIGHTS)}).axes
        shades: list[Any] = [patch.get_alpha() for patch in ax.patches]
        np.testing.assert_allclose(shades, 0.7 * np.array(WEIGHTS))
        darkest = [1 - 0.7 * (1 - part) for part in to_rgb(style["color"])]
        assert (luminance(darkest) + 0.05) / 0.05 >= 4.5


def test_weights_of_five_percent_and_more_are_written_below_their_words() -> None:
    (ax,) = reading.shaded_words({"a text": ("layer", SENTENCES, WEIGHTS)}).axes
    numbers = [text for text in ax.texts if text.get_text().isdigit()]
    assert [text.get_text() for text in numbers] == ["50", "6", "40"]
    words = {text.get_text(): text.get_position() for text in ax.texts}
    for number, word in (("50", "mary"), ("6", "went"), ("40", "where")):
        assert words[number][0] == words[word][0]
        assert words[number][1] > words[word][1]


def test_a_sentence_that_is_too_long_goes_on_in_the_next_line() -> None:
    long = [["word"] * 20, ["end"]]
    (ax,) = reading.shaded_words({"a text": ("layer", long, [0.0] * 21)}).axes
    lines = [text.get_position()[1] for text in ax.texts]
    assert [lines.count(line) for line in sorted(set(lines))] == [8, 8, 4, 1]
    ends = [patch.get_extents().x1 for patch in ax.patches]
    assert max(ends) <= ax.transData.transform((44, 0))[0]


@pytest.mark.parametrize("wrong", [1.5, -0.1, np.nan])
def test_weights_that_no_softmax_gives_are_refused(wrong: float) -> None:
    weights = [0.5, 0, 0, wrong, 0.5]
    with pytest.raises(ValueError, match=r"must lie in 0..1, got .* a softmax"):
        reading.shaded_words({"": ("layer", SENTENCES, weights)})
    assert plt.get_fignums() == []


@pytest.mark.parametrize("weights", [WEIGHTS[1:], [*WEIGHTS, 0.0], [WEIGHTS]])
def test_another_number_of_weights_than_words_is_refused(weights: Any) -> None:
    message = r"one weight for each of 5 words, got shape \(.*\) for 'a text'; give"
    with pytest.raises(ValueError, match=message):
        reading.shaded_words({"a text": ("layer", SENTENCES, weights)})
    assert plt.get_fignums() == []


def test_a_record_of_another_experiment_is_refused(record: Record) -> None:
    other = replace(record, name="vgg")
    with pytest.raises(RecordError, match="must be of reading or reading_tuned, got"):
        reading.attention(other, "none", 0)
    with pytest.raises(RecordError, match="must be of reading or reading_tuned, got"):
        reading.first_steps(other, "none", "cloze", 0.5)


def test_a_task_that_a_record_has_not_is_refused(record: Record) -> None:
    with pytest.raises(ValueError, match="task must be one of cloze, got 'qa1'; take"):
        reading.first_steps(record, "none", "qa1", 0.5)


# --- what was published


@pytest.mark.parametrize("name", published.READING_ERROR)
def test_a_published_error_lies_between_0_and_1_at_growing_steps(name: str) -> None:
    source, x, y = published.READING_ERROR[name]
    assert list(x) == sorted(set(x))
    assert len(x) == len(y)
    assert all(0.4 < error <= 1 for error in y)
    assert source.startswith(("Ba et al. (2016)", "Cooijmans et al. (2016)"))


@pytest.mark.parametrize("name", published.READING_ERROR)
def test_published_steps_to_an_error_fit_the_published_errors(name: str) -> None:
    first = published.READING_STEPS[name]
    _, x, y = published.READING_ERROR[name]
    assert all(
        (error <= 0.55) == (step >= first) for step, error in zip(x, y, strict=True)
    )
