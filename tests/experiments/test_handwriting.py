"""Handwriting: the density is one, samples follow it, and padding is not looked at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import small
import torch
from small import check_circles, check_median
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    MixtureSameFamily,
    MultivariateNormal,
)

from normbook.data import strokes
from normbook.data.synthetic import drawings
from normbook.errors import RecordError
from normbook.experiments import handwriting, published
from normbook.experiments.handwriting import (
    Mixture,
    PenNetwork,
    log_density,
    mixture,
    sample,
)
from normbook.lab.record import Record, RunRecord

# Sums of a few numbers in float64, in another order.
EXACT = 1e-10
K = 4
COUNT = 100_000
every_variant = pytest.mark.parametrize("variant", ["none", "layer_norm"])
begun = partial(small.begun, "handwriting_tuned")


@pytest.fixture
def record() -> Record:
    return small.record("handwriting_tuned")


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outputs(*lead: int, seed: int = 0, components: int = K) -> Tensor:
    """Outputs of a network as they may come: deviations from 0.2 to 5 or so."""
    shape = (*lead, 6 * components + 1)
    return torch.randn(shape, generator=drawn(seed), dtype=torch.float64)


def steps(*lead: int) -> Tensor:
    found = torch.randn((*lead, 3), generator=drawn(1), dtype=torch.float64)
    found[..., 2] = (found[..., 2] > 0).double()
    return found


def network(variant: str, **changed: int) -> PenNetwork:
    sizes: dict[str, Any] = {"hidden": 5, "layers": 1, "components": K, **changed}
    return PenNetwork(variant, **sizes, generator=drawn()).double()


# --- the density


def test_the_density_integrates_to_one_over_both_offsets_and_the_pen() -> None:
    of = mixture(outputs(seed=2))
    side = torch.linspace(-20, 20, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side, torch.tensor([0.0, 1.0]).double())
    whole = log_density(of, grid).exp().sum() * (side[1] - side[0]) ** 2
    assert float(whole) == pytest.approx(1, abs=1e-6)


def by_torch(of: Mixture, at: Tensor) -> Tensor:
    """The same density from torch.distributions."""
    one, two = of.log_sigmas.exp().unbind(-1)
    both = of.rhos * one * two
    rows = [torch.stack([one**2, both], -1), torch.stack([both, two**2], -1)]
    normals = MultivariateNormal(of.means, torch.stack(rows, -2))
    offset = MixtureSameFamily(Categorical(logits=of.log_weights), normals)
    pen = Bernoulli(logits=of.lift)
    normal = offset.log_prob(at[..., :2])  # type: ignore[no-untyped-call]
    found: Tensor = normal + pen.log_prob(at[..., 2])  # type: ignore[no-untyped-call]
    return found


def test_the_density_is_the_one_of_torch_distributions() -> None:
    of, at = mixture(outputs(5, 7)), steps(5, 7)
    expected = by_torch(of, at)
    torch.testing.assert_close(log_density(of, at), expected, rtol=EXACT, atol=EXACT)


def test_its_derivative_is_the_one_of_torch_distributions() -> None:
    at = steps(5)
    one, other = (outputs(5).requires_grad_() for _ in range(2))
    log_density(mixture(one), at).sum().backward()  # type: ignore[no-untyped-call]
    by_torch(mixture(other), at).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(one.grad, other.grad, rtol=EXACT, atol=EXACT)


WRONG: dict[str, Callable[[Mixture], tuple[Mixture, Any]]] = {
    "no determinant": lambda of: (of, -0.5 * torch.log(1 - of.rhos**2)),
    "half of it": lambda of: (of, -0.25 * torch.log(1 - of.rhos**2)),
    "the wrong sign of rho": lambda of: (of._replace(rhos=-of.rhos), 0.0),
    "no deviations": lambda of: (of, of.log_sigmas.sum(-1)),
    "the wrong pen": lambda of: (of._replace(lift=-of.lift), 0.0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_formula_is_caught(wrong: str) -> None:
    of, at = mixture(outputs(5, 7)), steps(5, 7)
    changed, factor = WRONG[wrong](of)
    weights = changed._replace(log_weights=of.log_weights - factor)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            log_density(weights, at), by_torch(of, at), rtol=1e-3, atol=1e-3
        )


def test_parameters_stay_in_their_bounds_for_any_output() -> None:
    of = mixture(torch.cat([1e4 * outputs(9), -1e4 * outputs(9)]).float())
    assert float(of.log_sigmas.abs().max()) <= 3
    assert float(of.rhos.abs().max()) <= 0.9900001  # float32
    torch.testing.assert_close(of.log_weights.exp().sum(-1), torch.ones(18))
    assert log_density(of, 30 * steps(18).float()).isfinite().all()


def test_near_zero_a_deviation_is_the_exponential_of_graves() -> None:
    small = 1e-3 * outputs(9)
    _, _, _, sx, sy, _ = small[:, :-1].chunk(6, -1)
    found = mixture(small).log_sigmas
    torch.testing.assert_close(found, torch.stack([sx, sy], -1), rtol=1e-5, atol=0)


# --- padding and clipping


@every_variant
def test_what_stands_in_the_padding_has_no_influence(variant: str) -> None:
    run = begun(variant, cut=100)
    x, y = (values.clone() for values in run.batch)
    dead = y[..., 3] == 0
    assert dead.any()
    with torch.no_grad():
        expected = float(run.objective(run.model, x, y)["loss"])
        x[dead], y[dead] = 7.0, torch.tensor([5.0, -5, 1, 0]).double()
        found = float(run.objective(run.model, x, y)["loss"])
    assert found == pytest.approx(expected, rel=1e-12)


@every_variant
def test_the_loss_is_the_mean_over_the_steps_of_each_line_alone(variant: str) -> None:
    run = begun(variant, cut=70)
    x, y = run.batch
    total, count = 0.0, 0
    with torch.no_grad():
        for row, after in zip(x, y, strict=True):
            own = int(after[:, 3].sum())
            found = log_density(mixture(run.model(row[None, :own])), after[None, :own])
            total, count = total - float(found.sum()), count + own
        loss = float(run.objective(run.model, x, y)["loss"])
    assert loss == pytest.approx(total / count, rel=EXACT)


def test_inputs_are_the_steps_and_targets_the_ones_after_them() -> None:
    x, y = begun("none").batch
    assert not x[:, 0, :2].any()  # a line begins at its first point
    live = y[:, :-1, 3] * y[:, 1:, 3] > 0
    assert torch.equal(x[:, 1:][live], y[:, :-1, :3][live])


@pytest.mark.parametrize("clip", [1e-3, 1e9])
def test_the_derivative_by_each_output_is_clipped(clip: float) -> None:
    model = network("none")
    given, x, y = [], steps(2, 6), torch.ones(2, 6, 4).double()
    y[..., :2] = 20.0  # far away
    model.outputs.register_full_backward_hook(lambda *own: given.append(own[2][0]))
    loss = handwriting.objective(model, x, y, clip)["loss"]
    loss.backward()  # type: ignore[no-untyped-call]
    largest = 12 * float(given[0].abs().max())  # of one step, of 12
    assert (largest == pytest.approx(clip)) if clip < 1 else (10 < largest < clip)


# --- samples


def test_samples_have_the_moments_of_the_density() -> None:
    of = mixture(outputs(components=2, seed=5))
    many = Mixture(*(value.expand(COUNT, *value.shape) for value in of))
    dx, dy, lift = handwriting._draw(many, drawn(3)).unbind(-1)
    mean, sigma = of.means, of.log_sigmas.exp()
    both = of.rhos * sigma.prod(-1) + mean.prod(-1)
    parts = torch.stack([mean.T, (sigma**2 + mean**2).T]).flatten(0, 1)
    expected = torch.cat([parts, both[None]]) @ of.log_weights.exp()
    expected = torch.cat([expected, torch.sigmoid(of.lift)[None]])
    found = torch.stack([dx, dy, dx**2, dy**2, dx * dy, lift])
    allowed = 5 * found.std(1) / COUNT**0.5  # five standard errors
    assert ((found.mean(1) - expected).abs() < allowed).all()


def test_a_bias_of_zero_is_plain_sampling_and_a_large_one_gives_the_likeliest() -> None:
    given = outputs(6)
    plain, likeliest = mixture(given), mixture(given, bias=50.0)
    assert all(map(torch.equal, plain, mixture(given, bias=0.0)))
    drawn_ones = handwriting._draw(likeliest, drawn())
    best = plain.log_weights.argmax(-1)
    torch.testing.assert_close(
        drawn_ones[:, :2], plain.means[torch.arange(6), best], rtol=1e-9, atol=1e-9
    )


def test_a_bias_divides_deviations_and_multiplies_scores() -> None:
    given = outputs(6)
    plain, biased = mixture(given), mixture(given, bias=0.7)
    torch.testing.assert_close(
        biased.log_sigmas.exp(), plain.log_sigmas.exp() / math.exp(0.7)
    )
    scores = given[:, :K]
    torch.testing.assert_close(biased.log_weights, (1.7 * scores).log_softmax(-1))
    assert torch.equal(biased.means, plain.means)
    assert torch.equal(biased.lift, plain.lift)


@every_variant
def test_each_step_is_drawn_from_the_density_after_those_before(variant: str) -> None:
    model = network(variant)
    found = sample(model, 9, 0.0, drawn(4), count=2)
    read = torch.cat([torch.zeros(2, 1, 3).double(), found[:, :-1]], dim=1)
    generator, again = drawn(4), []
    with torch.no_grad():
        given = model(read)
        for t in range(9):
            of = mixture(given[:, t : t + 1])
            again.append(handwriting._draw(of, generator))
    torch.testing.assert_close(found, torch.cat(again, 1), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("bias", [-0.1, math.inf, math.nan])
def test_a_bias_below_zero_is_refused(bias: float) -> None:
    with pytest.raises(ValueError, match="bias must be a number from 0 on, got"):
        sample(network("none"), 2, bias, drawn())


# --- the runs


def test_the_test_loss_is_that_of_the_lines_of_other_people() -> None:
    run = begun("none")
    drawn = drawings(fixed := np.random.default_rng(0))
    own = [d for d in drawn if d.drawer not in (13, 14, 15, 16)]  # of validation
    written = strokes.lines(own, fixed, characters=4, repeats=4, length=8.0)
    total, count = 0.0, 0
    with torch.no_grad():
        for line in map(torch.as_tensor, written.test):
            x, y = line[:40], line[1:41]
            x = x[: len(y)]
            found = log_density(mixture(run.model(x[None])), y[None])
            total, count = total - float(found.sum()), count + len(y)
    measured = run.measurements["test"].measure(run)
    expected = {"per_step": total / count, "line": 500 * total / count}
    assert measured == pytest.approx(expected, rel=EXACT)


def test_both_variants_begin_with_the_same_weights_and_biases() -> None:
    one, other = begun("none"), begun("layer_norm")
    for name, value in one.model.named_parameters():
        assert torch.equal(value, other.model.get_parameter(name)), name


@every_variant
def test_the_network_learns(variant: str) -> None:
    run = begun(variant, hidden=32, components=20, steps=60)
    losses = [run.update() for _ in range(30)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


def test_the_record_has_lines_written_before_and_after_training(record: Record) -> None:
    for variant in record.variants:
        for bias in (0, 1, 3):
            found = handwriting.written(record, variant, bias)
            assert found.shape == (2, 2, 2, 7, 3)
            assert set(found[..., 2].flat) <= {0, 1}
            assert (found[:, 0] != found[:, 1]).any()


# --- each at its own best rate


def falling(*rates: float, every: int = 10) -> Record:
    """Losses that fall on a line from 100: of no normalization, then of others."""
    runs = []
    for variant, rate in zip(handwriting.LOOKS, rates, strict=False):
        for seed in (0, 1):
            losses = [100 - (seed + 1) * rate * s for s in range(0, 101, every)]
            curve = {"step": [*range(0, 101, every)], "test": losses, "train": losses}
            runs.append(RunRecord(variant, seed, 1.0, [1.0], {"heights": curve}))
    return small.invented("handwriting_tuned", {}, runs)


def test_the_quotient_of_updates_is_not_cut_off_by_the_measurements() -> None:
    record, heights = falling(0.7, 2.9, every=20), [75, 50, 33.3]
    for seed in (0, 1):
        for variant, rate in (("none", 0.7), ("layer_norm", 2.9)):
            found = handwriting.updates_to_heights(record, variant, "test", heights)
            expected = (100 - np.array(heights)) / ((seed + 1) * rate)
            np.testing.assert_allclose(found[seed], expected)
    for part in ("test", "train"):
        found = handwriting.quotients(record, part, heights)
        np.testing.assert_allclose(found, np.full((2, 3), 2.9 / 0.7))


def test_updates_to_a_height_need_losses_on_both_sides() -> None:
    found = handwriting.updates_to_heights(falling(1, 2), "none", "test", [100, 99, -1])
    np.testing.assert_array_equal(np.isnan(found), [[1, 0, 1], [1, 0, 0]])


def test_common_heights_are_all_that_every_run_comes_through() -> None:
    heights = handwriting.common_heights(falling(0.7, 0.2), "test", every=10)
    assert heights == [90, 80]  # the slowest run ends at 80, all begin at 100
    found = handwriting.quotients(falling(0.7, 0.2), "test", [*heights, 100, 70])
    assert np.isnan(found).any(0).tolist() == [False, False, True, True]
    assert handwriting.common_heights(falling(0.7, 0.0), "train") == []


def test_the_lines_that_are_measured_often_are_of_the_test_and_of_training() -> None:
    run = begun("none", few=3)
    found = run.measurements["heights"].measure(run)
    settings = small.experiment("handwriting_tuned").scales["live"].settings
    sizes = [settings[k] for k in ("characters", "repeats", "length", "cut")]
    of: Any = handwriting._Written.of(
        None, *sizes, settings["validated"], small.CPU, torch.float64
    )
    assert torch.equal(of.train[0], run.batches.x)
    for part, (x, y) in (("train", of.train), ("test", of.test)):
        chosen = torch.tensor([0, (len(x) - 1) // 2, len(x) - 1])
        with torch.no_grad():
            loss = handwriting.objective(run.model, x[chosen], y[chosen])["loss"]
        assert found[part] == pytest.approx(500 * float(loss), rel=EXACT)


def test_gains_of_a_setting_are_those_of_the_network() -> None:
    run = begun("layer_norm", gain=0.1)
    gains = [p for n, p in run.model.named_parameters() if "gamma" in n]
    assert len(gains) == 3
    assert all(torch.equal(p, torch.full_like(p, 0.1)) for p in gains)


def test_the_quotients_drawn_are_those_of_the_record() -> None:
    record = falling(0.9, 2.9, 0.3)
    whole = replace(small.record("handwriting_tuned"), runs=record.runs)
    whole = replace(whole, runs=[*with_samples(whole.runs)])
    axes = handwriting.figures(whole)["quotient"].axes
    for ax, part in zip(axes, ("test", "train"), strict=True):
        for variant, heights in (
            ("layer_norm", [75, 50, 25]),
            ("layer_norm gain=0.1", [75]),
        ):
            kind, _ = handwriting.LOOKS[variant]
            found = handwriting.quotients(record, part, heights, variant)
            check_median(ax, kind, heights, found)


def with_samples(runs: list[RunRecord]) -> list[RunRecord]:
    """Put into runs what another record has of lines that were written."""
    kept = {(r.variant, r.seed): r for r in small.record("handwriting_tuned").runs}
    return [
        replace(kept[r.variant, r.seed], curves={
            **kept[r.variant, r.seed].curves, **r.curves
        })
        for r in runs
    ]  # fmt: skip


def test_the_rate_that_is_best_at_the_end_need_not_be_the_fastest_to_a_height() -> None:
    def run(variant: str, seed: int, falls: float) -> RunRecord:
        losses = [100 - falls * s for s in range(0, 101, 10)]
        curve = {"step": [*range(0, 101, 10)], "test": losses, "train": losses}
        return RunRecord(variant, seed, 1.0, [1.0], {"heights": curve})

    never = 0.0  # at one rate; a network that gets nowhere is not the fastest
    falls = {"none": (0.5, 0.8, never), "layer_norm": (2.0, 1.6)}
    tuning = [run(v, s, s * f) for v, of in falls.items() for f in of for s in (1, 2)]
    record = replace(falling(0.1, 0.2), tuning=tuning)
    found = handwriting.quotients_of_best_rates(record, "train", [75, 50])
    np.testing.assert_allclose(found, np.full((2, 2), 2.0 / 0.8))
    assert np.isnan(handwriting.quotients_of_best_rates(record, "test", [-200])).all()


# --- the figures


def test_the_curves_drawn_are_those_of_the_record(record: Record) -> None:
    *ours, theirs = handwriting.figures(record)["loss"].axes
    for ax, part in zip(ours, ("test", "train"), strict=True):
        for variant, (kind, _) in handwriting.LOOKS.items():
            steps = record.steps("heights", variant)[1:]
            runs = record.values(variant, "heights", part)[:, 1:]
            check_median(ax, kind, steps, runs)
    assert ours[0].get_ylim() == ours[1].get_ylim()
    for variant, curve in published.HANDWRITING_LOSS.items():
        check_circles(theirs, handwriting.LOOKS[variant][0], curve)


def test_every_panel_says_what_runs_along_it(record: Record) -> None:
    for figure in handwriting.figures(record).values():
        assert all(ax.get_xlabel() for ax in figure.axes)


def test_a_record_of_another_experiment_is_refused(record: Record) -> None:
    other = replace(record, name="vgg")
    with pytest.raises(RecordError, match="of handwriting_tuned, got one of vgg"):
        handwriting.written(other, "none", 0)


def test_the_published_curves_fall_and_layer_norm_is_ahead() -> None:
    none, layer = published.HANDWRITING_LOSS.values()
    for points in (none, layer):
        assert all(a > b for a, b in zip(points.y, points.y[1:], strict=False))
    assert none.x[:5] == layer.x
    assert all(a > b for a, b in zip(none.y, layer.y, strict=False))
