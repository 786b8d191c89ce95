"""Which hat does the work: each network has the hats of its name, and no others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import small
import torch
from small import COLOURS, check_median
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from normbook.data.strokes import Drawing
from normbook.data.synthetic import marked
from normbook.errors import RecordError
from normbook.experiments import handwriting, reading, which_hat
from normbook.experiments.catalogue import EXPERIMENTS
from normbook.experiments.which_hat import Counter, counted, spreads
from normbook.lab import experiment as lab
from normbook.lab import tuning
from normbook.lab.record import Record
from normbook.layers.lstm import LayerNormLSTM
from normbook.layers.native import NATIVE

NAME = "which_hat_counting"
VARIANTS = which_hat.variants()
TASKS = (NAME, "which_hat_strokes", "which_hat_qa1")
every_task = pytest.mark.parametrize("name", TASKS)
each_loop = pytest.mark.parametrize("native", ["0", "1"], ids=["formulas", "loop"])
begun = partial(small.begun, NAME, "none", gain=1.0, forget_bias=0.0)


def lstms(run: lab.Run) -> list[LayerNormLSTM]:
    return [m for m in run.model.modules() if isinstance(m, LayerNormLSTM)]


# --- the cells: what has a hat does not notice when it is scaled


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def is_scale_free(lstm: LayerNormLSTM, *names: str) -> bool:
    """Whether h stays the same where these are three times as large."""
    x, scale = drawn(2, 4, lstm.input_size), dict.fromkeys(names, 3.0)
    states = [drawn(1, 2, lstm.hidden_size, seed=k) for k in (1, 2)]

    def h(scale: dict[str, float]) -> Tensor:
        with torch.no_grad():
            weights = {n: v * scale.get(n, 1.0) for n, v in lstm.named_parameters()}
            if "c_0" in scale:  # forget nothing, let nothing in
                units = lstm.hidden_size
                weights["b_l0"] = weights["b_l0"].clone()
                weights["b_l0"][:units], weights["b_l0"][units : 2 * units] = 99, -99
            given = states[0], states[1] * scale.get("c_0", 1.0)
            called: Tensor = torch.func.functional_call(lstm, weights, (x, given))[0]
        return called if "c_0" not in scale else called[:, 0]

    before = h({**scale, **dict.fromkeys(names, 1.0)})
    return bool((h(scale) - before).abs().max() < 1e-3)  # eps is in the way


def hats(run: lab.Run) -> str:
    """Find out which hats a network has, without a look at its options."""
    (lstm,) = lstms(run)
    has_p, has_q = (is_scale_free(lstm, n) for n in ("w_h_l0", "w_x_l0"))
    is_sum = not (has_p or has_q) and is_scale_free(lstm, "w_h_l0", "w_x_l0")
    has_c = is_scale_free(lstm, "c_0")
    return "sum" * is_sum + "p" * has_p + "q" * has_q + "c" * has_c or "none"


def is_carried(run: lab.Run) -> bool:
    """Whether what goes on to the next step has deviation 1."""
    (lstm,) = lstms(run)
    with torch.no_grad():
        for name, value in lstm.named_parameters():
            if "gamma_c" in name:
                value.fill_(1)
        _, (_, c) = lstm(drawn(2, 4, lstm.input_size))
    return bool((c.std(-1, correction=0) - 1).abs().max() < 1e-2)


@each_loop
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_has_the_hats_of_its_name_and_no_others(
    variant: str, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE, native)
    own = VARIANTS[variant]
    run = begun(**own)
    name, _, carried = own["label"].partition(", ")
    assert hats(run) == name
    assert is_carried(run) == (carried == "carried")


@pytest.mark.parametrize("name", ["none", "pc", "pqc", "sumc"])
def test_a_wrong_hat_is_found(name: str) -> None:
    for other, own in VARIANTS.items():
        if own["label"] not in (name, f"{name}, carried"):
            assert hats(begun(**own)) != name, other


def test_there_are_all_subsets_the_sums_and_those_that_carry_each_with_two_gains() -> (
    None
):
    names = {own["label"] for own in VARIANTS.values()}
    assert len(names) == 8 + 2 + 5
    assert len(VARIANTS) == 2 * len(names) - 1  # without a hat there is no gain
    cells = [str(sorted(own["cell"].items())) for own in VARIANTS.values()]
    assert len(set(cells)) == len(names)


@every_task
def test_gains_and_forget_biases_begin_as_told(name: str) -> None:
    run = small.begun(name, "pqc", gain=0.1, forget_bias=2.0)
    for lstm in lstms(run):
        for parameter, value in lstm.named_parameters():
            if parameter.startswith("gamma"):
                assert (value == 0.1).all()
            elif parameter.startswith("b_"):
                units = lstm.hidden_size
                assert (value[:units] == 2).all()
                assert (value[units:] == 0).all()
    assert len(lstms(run)) == 1 + (name == "which_hat_qa1")


# --- deviations, and the gain of the step


def network(**options: Any) -> Any:
    lstm = LayerNormLSTM(3, 5, eps=1e-12, dtype=torch.float64, **options)
    with torch.no_grad():
        for k, (name, value) in enumerate(lstm.named_parameters()):
            value.copy_(drawn(*value.shape, seed=k) + 2 * name.startswith("gamma"))
    return lstm


@pytest.mark.parametrize(
    "options", [{}, {"hats": "qc"}, {"hats": "p"}, {"norm": "sum"}], ids=str
)
def test_the_gain_of_the_step_is_the_norm_of_its_derivative(options: Any) -> None:
    lstm, x = network(**options), drawn(2, 1, 3)
    h = lstm(x[:1])[0][0, 0].detach()
    p, q = (lstm.w_h_l0 @ h).detach(), (lstm.w_x_l0 @ x[1, 0]).detach()

    def a(h: Tensor) -> Any:
        p = lstm.w_h_l0 @ h
        if lstm.norm == "sum":
            return lstm.gamma_h_l0 * standardized(p + q)
        return lstm.gamma_h_l0 * standardized(p) if "p" in lstm.hats else p

    jacobian: Tensor = torch.func.jacrev(a)(h).detach()
    found = spreads(lstm, x)
    assert found["gain"] == pytest.approx(float(torch.linalg.svdvals(jacobian)[0]))
    assert found["sigma_p"] == pytest.approx(float(p.std(correction=0)))
    assert found["sigma_q"] == pytest.approx(float(q.std(correction=0)))
    assert found["h"] == pytest.approx(float(h.square().mean().sqrt()))


def standardized(v: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(v, v.shape, eps=1e-12)


@pytest.mark.parametrize(
    ("hats_of", "carried"), [("pq", "raw"), ("pqc", "raw"), ("pqc", "normalized")]
)
def test_the_deviation_of_c_is_that_of_the_raw_one(hats_of: Any, carried: Any) -> None:
    lstm, x = network(hats=hats_of, carried=carried), drawn(2, 1, 3)
    _, (h, c) = lstm(x[:1])
    raw = network(hats=hats_of)
    _, (_, expected) = raw(x[1:], (h, c))
    found = spreads(lstm, x)["sigma_c"]
    assert found == pytest.approx(float(expected.detach().std(correction=0)))


def test_the_gain_is_pinned_whatever_the_weights_but_not_whatever_the_state() -> None:
    w, h = drawn(20, 5), drawn(5, seed=1)

    def gain(w: Tensor, h: Tensor) -> float:
        p = w @ h
        r = 1 / p.std(correction=0)
        slopes = which_hat._through_hat(w, (p - p.mean()) * r, r)
        return float(torch.linalg.matrix_norm(slopes, 2))

    assert gain(7 * w, h) == pytest.approx(gain(w, h))
    assert gain(w, h / 2) == pytest.approx(2 * gain(w, h))
    wide, h = drawn(4 * 400, 400), drawn(400, seed=1)
    assert gain(wide, h) == pytest.approx(3 / float(h.square().mean().sqrt()), rel=0.05)


def test_packed_sequences_and_batches_measure_the_same() -> None:
    lstm, x = network(), drawn(4, 3, 3)
    packed = pack_sequence(list(x.unbind(1)))
    assert spreads(lstm, packed) == pytest.approx(spreads(lstm, x))
    first = network(batch_first=True)
    first.load_state_dict(lstm.state_dict())
    assert spreads(first, x.transpose(0, 1)) == pytest.approx(spreads(lstm, x))


def test_a_run_that_diverged_is_measured() -> None:
    lstm = network()
    with torch.no_grad():
        lstm.w_h_l0.fill_(torch.nan)
    assert np.isnan(spreads(lstm, drawn(2, 1, 3))["gain"])


# --- the tasks


def test_of_counting_only_the_answers_count() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([[9.0, 1.0, -1.0], [-9.0, 2.0, 3.0]])

    x = torch.zeros(2, 3, dtype=torch.int64)
    y = torch.tensor([[-1, 1, 0], [-1, 1, 0]])
    found = counted(Fixed(), x, y)
    z = np.array([1.0, 1.0, 2.0, -3.0])  # log-odds of what is right
    assert found["loss"].item() == pytest.approx(np.log1p(np.exp(-z)).mean())
    assert found["error"].item() == 0.5  # of sequences with a wrong answer
    assert found["wrong"].item() == 0.25


def test_a_counter_of_one_unit_that_counts_is_right() -> None:
    """A plain cell whose c is the count, by hand: up at a mark, down when asked."""
    model = Counter(
        letters=4, hidden=1, cell={"hats": ""}, generator=torch.Generator()
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        lstm: Any = model.lstm
        lstm.b_l0.copy_(torch.tensor([99.0, -99.0, 99.0, 0.0]))
        lstm.w_x_l0[1, 0] = lstm.w_x_l0[1, 4] = 198.0
        lstm.w_x_l0[3, 0], lstm.w_x_l0[3, 4] = 99.0, -99.0
        model.score.weight.fill_(99.0)
        model.score.bias.fill_(99 * np.tanh(0.5))  # c is n - k at the k-th answer
    x, y = marked(np.random.default_rng(0), count=50, steps=40, least=0, most=20)
    assert counted(model, torch.tensor(x), torch.tensor(y))["error"].item() == 0


def test_longer_sequences_have_more_marks_than_any_of_training() -> None:
    settings = small.experiment(NAME).scales["live"].settings
    letters: Any = which_hat._Letters.of(None, settings, small.CPU)
    marks = {
        name: (getattr(letters, name)[0] == 0).sum(1)
        for name in ("train", "validation", "test", "beyond")
    }
    assert marks["beyond"].min() > max(marks[n].max() for n in ("train", "test"))
    assert letters.beyond[0].shape[1] == 2 * letters.train[0].shape[1]


def test_stories_of_validation_are_not_learned() -> None:
    settings = small.experiment("which_hat_qa1").scales["live"].settings
    chosen = {name: settings[name] for name in reading.STORIES if name in settings}
    with_part: Any = reading._Encoded.of(None, chosen, small.CPU)
    whole: Any = reading._Encoded.of(None, {**chosen, "validated": 0}, small.CPU)
    assert whole.validation is None
    assert len(with_part.validation[0]) == settings["validated"]
    width = whole.train[0].shape[2]
    both = [
        torch.nn.functional.pad(x, (0, width - x.shape[2]))
        for x, _ in (with_part.train, with_part.validation)
    ]
    assert torch.equal(torch.cat(both), whole.train[0])


def test_of_the_strokes_no_person_is_in_two_parts() -> None:
    def drawing(person: int, number: int) -> Drawing:
        """A straight line whose slope tells the person."""
        points = np.array([[0.0, 0.0], [10.0, float(person)]])
        return Drawing("made", number, person, (points,))

    made = [drawing(person, number) for person in range(1, 21) for number in (1, 2)]
    part: Any = handwriting._Written.of(
        made, 2, 1, 100.0, 9, [13, 14], small.CPU, torch.float64
    )

    def people(examples: tuple[Tensor, Tensor]) -> set[float]:
        y = part.scale * examples[1]
        torch.testing.assert_close(y[:, 0, 0], torch.full_like(y[:, 0, 0], 10))
        slopes = y[:, 0, 1] / y[:, 0, 0]
        return {round(10 * float(slope)) for slope in slopes}

    assert people(part.train) == {*range(1, 13), 15, 16}
    assert people(part.validation) == {13, 14}
    assert people(part.test) == {17, 18, 19, 20}


@every_task
def test_validation_and_the_cell_are_measured_and_nothing_is_shown(name: str) -> None:
    measured = {*small.begun(name, "none").measurements}
    assert measured == {"validation", "test", "cell"} | (
        {"beyond"} if name == NAME else set()
    )


# --- records


@cache
def record(name: str = NAME) -> Record:
    return small.record(name)


def test_each_cell_is_tuned_by_validation_on_other_seeds() -> None:
    of = record()
    for variant in of.variants:
        grid = of.grid(variant)
        mean = grid["score"].mean(1)
        best = {n: v[mean.argmin()] for n, v in grid.items() if n != "score"}
        assert of.chosen(variant) == best
        rates = grid["learning_rate"][grid["forget_bias"] == best["forget_bias"]]
        assert rates.min() < best["learning_rate"] < rates.max()
    for run in of.tuning:
        score = tuning.score(of.settings["tuning"], run)
        assert score == pytest.approx(run.curves["validation"]["loss"][-1], rel=1e-6)
    assert {run.seed for run in of.tuning}.isdisjoint(of.seeds)


def test_the_scales_of_a_record_take_seeds_of_their_own_and_three_or_more() -> None:
    for name in which_hat.NAMES:
        for scale, of in EXPERIMENTS[name].scales.items():
            assert len(of.seeds) >= (2 if scale == "live" else 3)
            assert not {*of.seeds} & {*of.settings["tuning"]["seeds"]}
            if scale != "live":
                assert [*of.settings["variants"]] == [*VARIANTS]


def test_the_figure_of_the_end_shows_every_seed_of_every_cell() -> None:
    of = record()
    figure = which_hat.figures(of)["end"]
    for ax, measurement in zip(figure.axes, ("test", "beyond"), strict=True):
        shown = [line.get_xdata() for line in ax.lines]
        assert len(shown) == len(of.variants)
        cells = dict.fromkeys(v["label"] for v in of.settings["variants"].values())
        order = [
            v
            for cell in cells
            for v, own in of.settings["variants"].items()
            if own["label"] == cell
        ]
        for variant, points in zip(order, shown, strict=True):
            expected = which_hat.at_end(of, variant, measurement, "wrong")
            np.testing.assert_array_equal(points, expected)
        gains = [of.settings["variants"][v]["gain"] for v in order]
        marks = [line.get_marker() for line in ax.lines]
        assert marks == ["o" if gain == 1 else "^" for gain in gains]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [*cells]
    plt.close("all")


def test_the_figure_of_the_grid_marks_what_was_chosen() -> None:
    of = record()
    axes = which_hat.figures(of)["grid"].axes
    (points,) = (line for line in axes[0].lines if line.get_marker() == "o")
    assert points.get_color() == COLOURS["none"]
    assert points.get_xdata() == [of.chosen("none")["learning_rate"]]
    assert points.get_ydata() == [of.grid("none")["score"].min()]
    cells = [*dict.fromkeys(v["label"] for v in of.settings["variants"].values())]
    assert cells[0] == "none"
    assert [ax.get_xlabel() for ax in axes] == ["no hat", *cells[1:]]
    plt.close("all")


def test_values_of_another_experiment_are_refused() -> None:
    other = replace(record(), name="tiny")
    with pytest.raises(RecordError, match=r"must be of which_hat_qa1 or .* got one of"):
        which_hat.at_end(other, "none")


def test_the_figure_of_the_cell_has_a_column_for_each_record() -> None:
    tasks = {"counting": record(), "qa1": record("which_hat_qa1")}
    panels = product(which_hat.QUANTITIES, tasks.values())
    axes = which_hat.draw_cell(tasks).axes
    for ax, (quantity, of) in zip(axes, panels, strict=True):
        for variant, (kind, _) in which_hat.FOLLOWED.items():
            if variant in of.variants:
                runs = of.values(variant, "cell", quantity)
                check_median(ax, kind, of.steps("cell", variant), runs)
    with pytest.raises(RecordError, match="must be of which_hat_qa1 or"):
        which_hat.draw_cell({"": replace(record(), name="tiny")})
    plt.close("all")
