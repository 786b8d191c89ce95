"""Running statistics: formulas, conventions, torch's numbers, errors."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normbook import running_statistics as module
from normbook.gradient_check import survivors
from normbook.running_statistics import (
    PopulationStatistics,
    RunningStatistics,
    cumulative_average,
    debias,
    exponential_average,
    merge,
    population_statistics,
    unbiased,
    welford,
)

EXACT = 1e-12
Values = st.lists(st.floats(-100, 100), min_size=1, max_size=12)
KINDS = pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
SIZES = pytest.mark.parametrize(
    "sizes", [[20], [1, 19], [7, 2, 11], [1] * 20, [1, 2, 3, 14]], ids=str
)


def batches() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(k, 2.0, (5, 3)) for k in range(6)]


def gather(parts: list[Any], **options: Any) -> RunningStatistics:
    """Start with these options, and take all batches in."""
    running = RunningStatistics.start(np.zeros(3), **options)
    for x in parts:
        running = running.update(x.mean(0), x.var(0), count=len(x))
    return running


def assert_close(statistics: Any, mean: Any, var: Any) -> None:
    np.testing.assert_allclose(np.asarray(statistics.mean), mean, rtol=EXACT)
    np.testing.assert_allclose(np.asarray(statistics.var), var, rtol=EXACT)


@given(Values, st.floats(0, 0.99))
def test_an_exponential_average_is_a_weighted_sum(
    values: list[float], decay: float
) -> None:
    running, last = 7.0, len(values)
    for value in values:
        running = exponential_average(running, value, decay=decay)
    weighted = sum(
        (1 - decay) * decay ** (last - k) * v for k, v in enumerate(values, 1)
    )
    assert running == pytest.approx(decay**last * 7.0 + weighted, abs=1e-9)


@given(st.floats(0.01, 1))
def test_momentum_and_decay_are_two_names_of_one_weight(momentum: float) -> None:
    a = exponential_average(2.0, 5.0, momentum=momentum)
    assert a == pytest.approx(exponential_average(2.0, 5.0, decay=1 - momentum))
    b = debias(a, steps=3, momentum=momentum)
    assert b == pytest.approx(debias(a, steps=3, decay=1 - momentum))


@given(Values, st.floats(0, 0.99))
def test_a_debiased_average_has_weights_that_sum_to_one(
    values: list[float], decay: float
) -> None:
    running = shifted = 0.0
    for value in values:
        running = exponential_average(running, value, decay=decay)
        shifted = exponential_average(shifted, value + 1.0, decay=decay)
    a = debias(running, steps=len(values), decay=decay)
    assert debias(shifted, steps=len(values), decay=decay) == pytest.approx(a + 1)


def test_a_cumulative_average_is_the_plain_mean() -> None:
    values, running = [3.0, 1.0, 4.0, 1.0, 5.0], math.nan
    for steps, value in enumerate(values):
        running = cumulative_average(running, value, steps)
    assert running == pytest.approx(np.mean(values))


def test_unbiased_is_numpy_with_ddof_one() -> None:
    x = batches()[0]
    np.testing.assert_allclose(unbiased(x.var(0), 5), x.var(0, ddof=1), rtol=EXACT)


@pytest.mark.parametrize("momentum", [0.1, 0.75, 1.0, None])
def test_the_defaults_are_torch(momentum: float | None) -> None:
    layer: Any = torch.nn.BatchNorm1d(3, momentum=momentum, dtype=torch.float64)
    options: Any = {"momentum": momentum} if momentum else {"is_cumulative": True}
    running = gather(batches(), **options)
    for x in batches():
        layer(torch.tensor(x))
    assert_close(running, layer.running_mean, layer.running_var)
    assert running.steps == layer.num_batches_tracked == 6


def test_the_start_is_mean_zero_variance_one_and_momentum_a_tenth() -> None:
    running = RunningStatistics.start(np.array([5.0, np.nan]))
    np.testing.assert_array_equal(running.mean, [0, 0])
    np.testing.assert_array_equal(running.var, [1, 1])
    assert running.decay == 0.9


def test_torch_tensors_give_what_arrays_give() -> None:
    a = gather(batches())
    b = RunningStatistics.start(torch.zeros(3, dtype=torch.float64))
    for x in map(torch.tensor, batches()):
        b = b.update(x.mean(0), x.var(0, correction=0), count=len(x))
    assert_close(b, a.mean, a.var)


def test_averaging_deviations_gives_less_than_averaging_variances() -> None:
    options: Any = {"is_cumulative": True, "is_unbiased": False}
    var = gather(batches(), **options).var
    of_std = gather(batches(), averages="std", **options).var
    right = np.mean([x.var(0) for x in batches()], axis=0)
    np.testing.assert_allclose(var, right, rtol=EXACT)
    right = np.mean([x.std(0) for x in batches()], axis=0) ** 2
    np.testing.assert_allclose(of_std, right, rtol=EXACT)
    assert np.all(of_std < var)


def test_debiased_statistics_of_equal_batches_are_those_of_one() -> None:
    x = batches()[0]
    running = gather([x] * 4, is_debiased=True, is_unbiased=False)
    assert_close(running, x.mean(0), x.var(0))


def test_an_update_leaves_the_old_statistics_as_they_were() -> None:
    running = RunningStatistics.start(np.zeros(3))
    x = batches()[1]
    running.update(x.mean(0), x.var(0), count=5)
    np.testing.assert_array_equal(running.mean, 0)
    assert running.steps == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        running.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize("is_cumulative", [True, False])
def test_statistics_keep_no_array_of_the_caller(is_cumulative: bool) -> None:
    buffer = np.ones(2)
    options: Any = {"is_cumulative": is_cumulative, "is_unbiased": False}
    running = RunningStatistics.start(buffer, **options)
    running = running.update(buffer, buffer, count=2)
    before = running.mean.copy(), running.var.copy()
    buffer[:] = 7
    running.mean[:] = 8
    running.var[:] = 9
    assert_close(running, *before)


def parts_of(x: Any, sizes: list[int], kind: Any = np.asarray) -> list[Any]:
    """Return the statistics of stretches of x, which has shape (N, D)."""
    stretches = np.split(x, np.cumsum(sizes)[:-1])
    return [
        PopulationStatistics(kind(s.mean(0)), kind(s.var(0)), len(s)) for s in stretches
    ]


def stream() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(3, 2, (20, 3))


def assert_statistics(statistics: PopulationStatistics, x: Any) -> None:
    assert_close(statistics, x.mean(0), x.var(0))
    assert statistics.mean.shape == statistics.var.shape == x.shape[1:]
    assert statistics.size == len(x)


@KINDS
@SIZES
def test_merged_parts_are_the_whole(sizes: list[int], kind: Any) -> None:
    x = stream()
    merged = merge(parts_of(x, sizes, kind))
    assert isinstance(merged.mean, type(kind(x)))
    assert_statistics(merged, x)
    images = np.stack([x, x + 1, 2 * x], axis=2)  # 3 values of each channel
    batches = [kind(part) for part in np.split(images, np.cumsum(sizes)[:-1])]
    merged = population_statistics(batches, axes=(0, 2))
    assert_statistics(merged, np.concatenate([x, x + 1, 2 * x]))


@given(st.permutations(range(5)), st.integers(1, 4))
def test_neither_order_nor_grouping_of_the_parts_matters(
    order: list[int], first: int
) -> None:
    x = stream()
    parts = [parts_of(x, [7, 2, 1, 4, 6])[k] for k in order]
    assert_statistics(merge(parts), x)
    assert_statistics(merge([merge(parts[:first]), merge(parts[first:])]), x)


@KINDS
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_part_without_values_changes_nothing_whatever_it_holds(
    place: int, kind: Any
) -> None:
    parts = parts_of(stream(), [7, 2, 11], kind)
    nan = kind(np.full(3, np.nan))
    nothing = PopulationStatistics(nan, nan, 0)
    assert_statistics(merge([*parts[:place], nothing, *parts[place:]]), stream())


def test_a_nan_in_a_part_with_values_is_not_hidden() -> None:
    parts = parts_of(stream(), [7, 13])
    parts[1].mean[1] = np.nan
    assert np.isnan(merge(parts).mean).tolist() == [False, True, False]


def test_parts_may_come_from_a_generator_and_stay_as_they_were() -> None:
    parts = parts_of(stream(), [7, 13])
    before = [(p.mean.copy(), p.var.copy()) for p in parts]
    assert_statistics(merge(p for p in parts), stream())
    np.testing.assert_array_equal([(p.mean, p.var) for p in parts], before)


@KINDS
def test_a_stream_has_the_statistics_of_all_its_values(kind: Any) -> None:
    x = stream()
    assert_statistics(welford(kind(x)), x)
    assert_statistics(welford(kind(row) for row in x), x)
    assert_statistics(welford(kind(x[:1])), x[:1])
    assert_statistics(merge(PopulationStatistics(row, 0 * row, 1) for row in x), x)
    mean, var, size = welford(np.array([1.0, 2.0, 6.0]))  # numbers
    assert (mean, var, size) == (3, pytest.approx(14 / 3), 3)


def test_a_stream_keeps_no_array_of_the_caller() -> None:
    x = stream()
    found = welford(x[:1])
    x[:] = 7
    assert_statistics(found, stream()[:1])


@KINDS
def test_at_a_large_mean_one_pass_fails_where_merge_and_welford_hold(kind: Any) -> None:
    x = np.random.default_rng(0).normal(1e4, 1.0, (4096, 2)).astype(np.float32)
    exact, x32 = x.astype(float).var(0), kind(x)
    of_parts = population_statistics([x32[:33], *np.split(x32[33:], 239)], axes=0)
    for statistics in (welford(x32), of_parts):
        var = np.asarray(statistics.var)
        assert var.dtype == np.float32
        np.testing.assert_allclose(var, exact, rtol=1e-3)
    one_pass = np.asarray((x32**2).mean(0) - x32.mean(0) ** 2)
    assert np.min(np.abs(one_pass / exact - 1)) > 0.5


def test_every_mutant_of_merge_and_welford_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = stream()

    def joined(f: Any) -> None:
        monkeypatch.setattr(module, "_join", f)
        for sizes in ([20], [7, 2, 11], [1, 19]):
            assert_statistics(merge(parts_of(x, sizes)), x)

    def streamed(f: Any) -> None:
        monkeypatch.setattr(module, "one_pass", f)
        for values in (x, x[:1], np.concatenate([0 * x[:1], x])):
            assert_statistics(welford(values), values)

    # Among them is the sum without the spread of the means.
    assert survivors(module._join, joined) == []
    # Wherever the mean begins, the first value takes its place.
    assert survivors(module.one_pass, streamed) == ["0.0 -> 1"]


def test_every_mutant_of_the_averages_is_caught() -> None:
    def exponential(f: Any) -> None:
        assert f(2.0, 10.0, 0.75) == pytest.approx(4)
        assert f(np.array([2.0, 4.0]), np.zeros(2), 0.5).tolist() == [1, 2]

    def cumulative(f: Any) -> None:
        assert f(math.nan, 5.0, 0) == 5
        assert f(2.0, 8.0, 2) == pytest.approx(4)

    def corrected(f: Any) -> None:
        assert f(2.0, 0.5, 3) == pytest.approx(2 / 0.875)
        assert f(2.0, 0.25, 1) == pytest.approx(8 / 3)

    def bessel(f: Any) -> None:
        assert f(3.0, 4) == pytest.approx(4)
        assert f(3.0, 2) == pytest.approx(6)

    assert survivors(module.averaged, exponential) == []
    assert survivors(module.debiased, corrected) == []
    assert survivors(cumulative_average, cumulative) == []
    assert survivors(unbiased, bessel) == []


ZERO, ONE, ROWS = np.zeros(3), np.zeros(1), np.ones((4, 3))
start, CUMULATIVE = RunningStatistics.start, {"is_cumulative": True}
update = start(ZERO).update
PART = PopulationStatistics(ZERO, ZERO + 1, 4)
OF_TORCH = PopulationStatistics(torch.zeros(3), torch.ones(3), 2)
OTHER_SHAPE = r"must have the shape of that of the first, \(3,\), got \(1,\)"
# A function, its arguments (those by name in a dict behind them), the error, its words.
BAD_CALLS: list[tuple[Any, ...]] = [
    (exponential_average, 0, 1, TypeError, "exactly one of momentum"),
    (exponential_average, 0, 1, {"momentum": 0.1, "decay": 0.9}, TypeError, "the same"),
    (exponential_average, 0, 1, {"momentum": 0}, ValueError, "momentum must lie"),
    (exponential_average, 0, 1, {"momentum": 1.5}, ValueError, "got 1.5"),
    (exponential_average, 0, 1, {"momentum": "a"}, ValueError, "got 'a'"),
    (exponential_average, 0, 1, {"momentum": 1e-17}, ValueError, "lost in rounding"),
    (exponential_average, 0, 1, {"decay": 1.0}, ValueError, "nothing is"),
    (exponential_average, 0, 1, {"decay": -0.1}, ValueError, r"lie in \[0, 1\)"),
    (exponential_average, 0, 1, {"decay": math.nan}, ValueError, "got nan"),
    (
        exponential_average,
        ZERO,
        ONE,
        {"decay": 0.5},
        ValueError,
        "the shape of running",
    ),
    (cumulative_average, 0, 1, -1, ValueError, "whole number >= 0, got -1"),
    (cumulative_average, 0, 1, 1.5, ValueError, "got 1.5"),
    (debias, 1.0, {"steps": 0, "decay": 0.5}, ValueError, "whole number >= 1, got 0"),
    (debias, 1.0, {"steps": 1}, TypeError, "exactly one"),
    (unbiased, 1.0, 1, ValueError, "one value is not enough"),
    (unbiased, 1.0, 2.5, ValueError, "got 2.5"),
    (start, np.arange(3), TypeError, "like must hold real"),
    (start, ZERO, {"momentum": 0.1, "decay": 0.9}, TypeError, "exactly one"),
    (start, ZERO, {"averages": "sd"}, ValueError, "got 'sd'"),
    (start, ZERO, {"momentum": 0.1} | CUMULATIVE, TypeError, "has no momentum"),
    (start, ZERO, {"is_debiased": True} | CUMULATIVE, TypeError, "no bias to remove"),
    (update, np.zeros(2), ZERO, 4, ValueError, "mean must have"),
    (update, ZERO, np.zeros((1, 3)), 4, ValueError, "var must have"),
    (update, ZERO, ZERO, 1, ValueError, "one value is not enough"),
    (update, [0.0] * 3, ZERO, 4, TypeError, "mean must be a NumPy array"),
    (update, ZERO, torch.zeros(3), 4, TypeError, "var must be of the kind"),
    (population_statistics, np.ones((5, 2)), 0, TypeError, "put it into a list"),
    (population_statistics, [ROWS, ROWS[:, :1]], 0, ValueError, OTHER_SHAPE),
    (population_statistics, [], 0, ValueError, "at least one batch, got none"),
    (population_statistics, [ROWS[:0]], 0, ValueError, "leave empty"),
    (population_statistics, [ZERO.astype(int)], 0, TypeError, "real floating"),
    (merge, PART, TypeError, "got a single one; put it into a list"),
    (merge, [(ZERO, ZERO, 3)], TypeError, "got tuple"),
    (merge, [], ValueError, "at least one part with values in it, got none"),
    (merge, [PART._replace(size=0)], ValueError, "got none"),
    (merge, [PART._replace(size=-2)], ValueError, "whole number >= 0, got -2"),
    (merge, [PART._replace(size=2.5)], ValueError, "number >= 0, got 2.5"),  # type: ignore[arg-type]
    (merge, [PART._replace(size=True)], ValueError, "got True"),
    (merge, [PART, PART._replace(mean=ONE, var=ONE)], ValueError, OTHER_SHAPE),
    (merge, [PART, OF_TORCH], TypeError, "must be of the kind"),
    (welford, [], ValueError, "at least one value, got none"),
    (welford, ROWS[:0], ValueError, "at least one value, got none"),
    (welford, [1.0, 2.0], TypeError, "a value must be a NumPy array"),
    (welford, ROWS.astype(int), TypeError, "real floating"),
    (welford, [ZERO, ONE], ValueError, r"\(3,\), got \(1,\)"),
    (welford, [ZERO, torch.zeros(3)], TypeError, "must be of the kind"),
]


@pytest.mark.parametrize("case", BAD_CALLS, ids=lambda case: case[-1])
def test_bad_input_is_refused(case: tuple[Any, ...]) -> None:
    function, *arguments, error, message = case
    named = arguments.pop() if isinstance(arguments[-1], dict) else {}
    with pytest.raises(error, match=message):
        function(*arguments, **named)


def test_a_debiased_average_has_no_value_before_its_first_update() -> None:
    running = RunningStatistics.start(ZERO, is_debiased=True)
    with pytest.raises(ValueError, match="before its first update"):
        _ = running.mean
