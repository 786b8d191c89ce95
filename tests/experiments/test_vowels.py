"""The recurrent network on sequences of several lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import small
import torch
from numpy.typing import NDArray
from small import CPU, EXACT, curves, medians, same
from torch import Tensor

from normbook.data.sequences import Sequences, pad
from normbook.data.synthetic import sequences
from normbook.diagnostics.undisturbed import undisturbed
from normbook.experiments import vowels
from normbook.lab import runner
from normbook.lab.experiment import Run
from normbook.lab.record import Record

BATCH = (
    "per_step",
    "per_step_small_gain",
    "per_step_padded",
    "shared_statistics",
    "sequence_wise",
)
every_variant = pytest.mark.parametrize("variant", vowels.VARIANTS)


@pytest.fixture
def record() -> Record:
    return small.record("vowels_tuned")


@pytest.fixture(scope="module")
def data() -> Sequences:
    """Training sequences of at most 6 steps, test sequences of up to 9."""
    drawn = sequences(
        np.random.default_rng(7), train=30, test=17, classes=3, features=4,
        shortest=2, longest=9,
    )  # fmt: skip
    return drawn._replace(x_train=tuple(x[:6] for x in drawn.x_train))


def begun(variant: str, data: Sequences, updates: int = 0, **changed: Any) -> Run:
    """A run after some updates, so that the running statistics are not 0 and 1."""
    settings = {"bounds": [4, 7], "batch_size": 8, **changed}
    run = small.begun("vowels_tuned", variant, on=data, **settings)
    for _ in range(updates):
        run.update()
    return run


def tensors(data: Sequences) -> tuple[Tensor, Tensor]:
    x, lengths = pad(data.x_test)
    return torch.as_tensor(x), torch.as_tensor(lengths)


def plain(model: Any, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of one sequence in evaluation mode: a loop over its own steps."""
    get = {name: value.numpy() for name, value in model.state_dict().items()}
    gain = get.get("normalize.weight")
    bias = get.get("normalize.bias", get.get("bias"))
    mean: Any = get.get("normalize.running_mean")
    var: Any = get.get("normalize.running_var")
    trained: Any = get.get("normalize.num_batches_tracked")
    h = np.zeros(len(get["hidden_weight"]))
    for t, x_t in enumerate(x):
        wx, wh = get["input_weight"] @ x_t, get["hidden_weight"] @ h
        if model.norm == "none":
            a = wx + wh + bias
        elif model.norm == "layer_norm":
            a = wx + wh
            a = gain * (a - a.mean()) / np.sqrt(a.var() + 1e-5) + bias
        elif model.norm == "sequence_wise":
            a = wh + gain * (wx - mean) / np.sqrt(var + 1e-5) + bias
        else:
            k = np.flatnonzero(trained[: t + 1])[-1]  # the last trained step
            a = gain * (wx + wh - mean[k]) / np.sqrt(var[k] + 1e-5) + bias
        h = np.tanh(a)
    return np.asarray(get["score_weight"] @ h + get["score_bias"])


# --- the network


@every_variant
def test_scores_are_those_of_a_plain_loop_over_the_steps_of_one_sequence(
    variant: str, data: Sequences
) -> None:
    model = begun(variant, data, updates=5).model.eval()
    x, lengths = tensors(data)
    assert len(set(lengths.tolist())) > 5
    with torch.no_grad():
        scores = model(x, lengths).numpy()
    for row, sequence in zip(scores, data.x_test, strict=True):
        np.testing.assert_allclose(row, plain(model, sequence), EXACT, EXACT)


@every_variant
def test_in_training_mode_only_batch_norm_looks_at_the_company(
    variant: str, data: Sequences
) -> None:
    model = begun(variant, data, updates=2).model.train()
    x, lengths = tensors(data)
    with undisturbed(model), torch.no_grad():
        moved = (model(x[:9], lengths[:9])[:3] - model(x[:7], lengths[:7])[:3]).abs()
    if variant in BATCH:
        assert float(moved.max()) > 1e-3
    else:
        assert float(moved.max()) < 1e-12


@every_variant
def test_in_training_mode_one_variant_alone_takes_padding_for_data(
    variant: str, data: Sequences
) -> None:
    model = begun(variant, data, updates=2).model.train()
    x, lengths = tensors(data)
    live = torch.arange(x.shape[1]) < lengths[:, None]
    other = torch.where(live[:, :, None], x, 5.0)
    with undisturbed(model) as reset, torch.no_grad():
        scores = model(x, lengths)
        reset()
        moved = (model(other, lengths) - scores).abs().max()
    assert (float(moved) > 1e-3) == (variant == "per_step_padded")
    assert float(moved) < 1e-12 or variant == "per_step_padded"


@every_variant
def test_steps_behind_the_longest_sequence_are_not_looked_at(
    variant: str, data: Sequences
) -> None:
    model = begun(variant, data, updates=2).model.train()
    x, lengths = tensors(data)
    longer = torch.cat([x, torch.full((17, 3, 4), torch.nan)], dim=1)
    with undisturbed(model) as reset, torch.no_grad():
        scores = model(x, lengths)
        reset()
        assert torch.equal(model(longer, lengths), scores)


def test_per_step_statistics_are_those_of_the_live_examples(data: Sequences) -> None:
    run = begun("per_step", data)
    model: Any = run.model.train()
    model.normalize.momentum = 1.0
    x, y = run.batch
    model(x, y[:, 1])
    first = x[:, 0] @ model.input_weight.mT  # h is 0 before the first step
    same(model.normalize.running_mean[0], first.mean(0))
    same(model.normalize.running_var[0], first.var(0))
    live = int((y[:, 1] > 3).sum())
    assert 1 < live < len(x)
    assert model.normalize.num_batches_tracked.tolist()[:4] == [1, 1, 1, 1]


def test_shared_statistics_are_moved_by_every_step(data: Sequences) -> None:
    run = begun("shared_statistics", data)
    model: Any = run.model.train()
    x, y = run.batch
    model(x, y[:, 1])
    alive = [int((y[:, 1] > t).sum()) for t in range(x.shape[1])]
    steps = sum(count > 1 for count in alive)  # one value has no variance
    assert model.normalize.num_batches_tracked.tolist() == [steps]


def test_sequence_wise_statistics_are_those_of_all_live_inputs(data: Sequences) -> None:
    run = begun("sequence_wise", data)
    model: Any = run.model.train()
    model.normalize.momentum = 1.0
    x, y = run.batch
    model(x, y[:, 1])
    live = torch.arange(x.shape[1]) < y[:, 1, None]
    inputs = x[live] @ model.input_weight.mT
    same(model.normalize.running_mean, inputs.mean(0))


def test_weights_have_the_variance_of_one_over_the_inputs() -> None:
    model = vowels.Recurrent(
        "none", features=50, hidden=200, classes=40, max_steps=1,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    for weight, inputs in (
        (model.input_weight, 50),
        (model.hidden_weight, 200),
        (model.score_weight, 200),
    ):
        found = float(weight.detach().std()) * inputs**0.5
        assert found == pytest.approx(1, abs=5 / (2 * weight.numel()) ** 0.5)
        assert weight.dtype == torch.float64


def test_gains_begin_where_the_variant_says(data: Sequences) -> None:
    for variant in list(vowels.VARIANTS)[1:]:
        gains = begun(variant, data).model.get_parameter("normalize.weight")
        expected = 0.1 if variant == "per_step_small_gain" else 1.0
        assert gains.tolist() == [expected] * 5


# --- the runs


def test_a_batch_has_labels_and_lengths_beside_its_sequences(data: Sequences) -> None:
    x, y = begun("none", data).batch
    for row, (label, length) in zip(x, y.tolist(), strict=True):
        fits = [
            own == label and np.array_equal(sequence, row[:length])
            for sequence, own in zip(data.x_train, data.y_train, strict=True)
        ]
        assert sum(fits) == 1
        assert not row[length:].any()


def test_what_is_trained_on_is_cross_entropy_and_what_is_counted_are_errors(
    data: Sequences,
) -> None:
    run = begun("none", data)
    x, y = run.batch
    with torch.no_grad():
        scores = run.model(x, y[:, 1]).numpy()
        found = run.objective(run.model, x, y)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    labels = y[:, 0].numpy()
    by_hand = -np.log(p[np.arange(len(p)), labels]).mean()
    assert float(found["loss"]) == pytest.approx(by_hand, rel=1e-12)
    assert float(found["error"]) == (p.argmax(1) != labels).mean()


@every_variant
def test_what_is_measured_in_evaluation_mode_is_what_a_plain_loop_finds(
    variant: str, data: Sequences
) -> None:
    run = begun(variant, data, updates=3)
    found = run.measurements["test"].measure(run)
    groups: list[list[tuple[float, bool]]] = [[], [], []]
    for x, label in zip(data.x_test, data.y_test, strict=True):
        scores = plain(run.model, x)
        loss = float(np.log(np.exp(scores).sum()) - scores[label])
        group = 0 if len(x) <= 4 else 1 if len(x) <= 7 else 2
        groups[group].append((loss, scores.argmax() != label))
    loss, error = np.mean([pair for group in groups for pair in group], axis=0)
    assert (found["loss"], found["error"]) == pytest.approx((loss, error), rel=1e-9)
    by_length = np.transpose([np.mean(group, axis=0) for group in groups])
    np.testing.assert_allclose(found["loss_by_length"], by_length[0], rtol=1e-9)
    np.testing.assert_allclose(found["error_by_length"], by_length[1], rtol=1e-9)


@every_variant
def test_company_matters_to_batch_norm_alone(variant: str, data: Sequences) -> None:
    run = begun(variant, data, updates=3, batch_size=4)
    with undisturbed(run.model):
        run.model.eval()
        found = run.measurements["company"].measure(run)
    error = run.measurements["test"].measure(run)["error"]
    assert list(found) == ["mixed", "by_length", "by_class"]
    is_same = [value == error for value in found.values()]
    assert all(is_same) == (variant not in BATCH)


def test_mixed_company_is_mixed_also_where_the_data_are_sorted(
    data: Sequences,
) -> None:
    order = np.argsort(data.y_test, kind="stable")
    x_test = tuple(data.x_test[i] for i in order)
    by_class = data._replace(x_test=x_test, y_test=data.y_test[order])
    run = begun("sequence_wise", by_class, updates=20, batch_size=4)
    found = run.measurements["company"].measure(run)
    assert found["mixed"] != found["by_class"]


def test_only_training_sequences_are_cut(data: Sequences) -> None:
    run = begun("per_step", data, cut=3)
    is_aside = vowels.set_aside(data.y_train, 5)
    learned = [len(x) for x, out in zip(data.x_train, is_aside, strict=True) if not out]
    assert run.batches.x.shape == (len(learned), 3, 4)
    assert run.batches.y[:, 1].tolist() == [min(n, 3) for n in learned]
    model: Any = run.model
    assert model.normalize.max_steps == max(len(x) for x in data.x_test)


def test_a_live_run_needs_no_data_and_differs_between_seeds(record: Record) -> None:
    assert record.variants == list(vowels.VARIANTS)
    for variant in record.variants:
        errors = record.values(variant, "test", "error_by_length")
        assert errors.shape == (2, 2, 3)
        assert ((errors >= 0) & (errors <= 1)).all()
        loss = record.values(variant, "test", "train_loss")
        assert (loss[0] != loss[1]).all()
        assert record.values(variant, "company", "by_class").shape == (2, 2)


@every_variant
def test_the_network_learns(variant: str) -> None:
    scale = vowels.EXPERIMENT.scales["live"]
    settings = runner.variant_settings(scale, variant) | {"learning_rate": 0.01}
    run = vowels.begin(settings, 0, None, CPU)
    losses = [run.update() for _ in range(60)]  # in training mode
    assert np.mean(losses[-8:]) < 0.6 * np.mean(losses[:8])


def test_the_scale_of_the_paper_fits_the_real_data() -> None:
    for experiment, cut in ((vowels.EXPERIMENT, 26), (vowels.LONGER, 12)):
        scale = experiment.scales["paper"]
        assert scale.data in runner.LOADERS
        assert scale.settings["bounds"] == [12, 16, 20]
        assert min(scale.settings["cut"], 26) == cut  # 26: the longest for training


# --- each at its own best rate


@every_variant
def test_sequences_of_validation_are_cut_and_not_learned(
    variant: str, data: Sequences
) -> None:
    run = small.begun(
        "vowels_longer_tuned", variant, on=data, batch_size=8, cut=3, bounds=[4, 7]
    )
    is_aside = vowels.set_aside(data.y_train, 5)
    learned = [len(x) for x, out in zip(data.x_train, is_aside, strict=True) if not out]
    assert run.batches.y[:, 1].tolist() == [min(n, 3) for n in learned]
    assert run.batches.y[:, 0].tolist() == data.y_train[~is_aside].tolist()
    for _ in range(3):
        run.update()
    found = run.measurements["validation"].measure(run)
    losses, wrong = [], []
    for i in np.flatnonzero(is_aside):
        scores = plain(run.model, data.x_train[i][:3])
        losses.append(np.log(np.exp(scores).sum()) - scores[data.y_train[i]])
        wrong.append(scores.argmax() != data.y_train[i])
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    assert found["error"] == pytest.approx(np.mean(wrong), rel=1e-9)


def test_every_speaker_has_as_many_sequences_for_validation() -> None:
    labels = np.repeat(np.arange(9), 30)
    is_aside = vowels.set_aside(labels, 5)
    assert np.bincount(labels[is_aside]).tolist() == [6] * 9
    assert np.flatnonzero(is_aside)[:6].tolist() == [4, 9, 14, 19, 24, 29]


def test_the_figure_of_the_grid_shows_what_was_chosen(record: Record) -> None:
    axes = vowels.figures(record)["grid"].axes
    for ax, own in zip(axes, BATCH, strict=True):
        (dot,) = small.circles(ax, KIND[own])
        assert dot.get_xdata() == [record.chosen(own)["learning_rate"]]


# --- the figures


KIND = {"none": "none", "layer_norm": "layer", **dict.fromkeys(BATCH, "batch")}


def test_the_curves_drawn_are_those_of_the_record(record: Record) -> None:
    axes = vowels.figures(record)["training"].axes
    assert len(axes) == 2 * len(BATCH)
    for row, quantity in enumerate(("error", "train_loss")):
        for ax, own in zip(axes[row * 5 : row * 5 + 5], BATCH, strict=True):
            shown = ("none", "layer_norm", own)
            runs = {KIND[v]: record.values(v, "test", quantity) for v in shown}
            assert curves(ax) == medians(runs)


def test_each_panel_of_the_last_row_says_what_runs_along_it(record: Record) -> None:
    for figure in vowels.figures(record).values():
        assert figure.axes[0].get_ylabel()
        assert all(ax.get_xlabel() for ax in figure.axes[-len(BATCH) :])


def test_the_errors_drawn_by_length_are_those_at_the_end(record: Record) -> None:
    axes = vowels.figures(record)["lengths"].axes
    for ax, own in zip(axes, BATCH, strict=True):
        shown = ("none", "layer_norm", own)
        ends = {
            KIND[v]: record.values(v, "test", "error_by_length")[:, -1] for v in shown
        }
        assert curves(ax) == medians(ends)
        names = [tick.get_text() for tick in ax.get_xticklabels()]
        assert names == ["6", "9", ">9"]
