"""Running statistics: formulas, conventions, torch's numbers, errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
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


def batches(count: int = 6, n: int = 5, d: int = 3) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(k, 2.0, (n, d)) for k in range(count)]


def gather(running: RunningStatistics, parts: list[Any]) -> RunningStatistics:
    for x in parts:
        running = running.update(x.mean(0), x.var(0), count=len(x))
    return running


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.floats(0, 0.99))
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


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.floats(0, 0.99))
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
    layer = torch.nn.BatchNorm1d(3, momentum=momentum, dtype=torch.float64)
    options: Any = (
        {"is_cumulative": True} if momentum is None else {"momentum": momentum}
    )
    running = gather(RunningStatistics.start(np.zeros(3), **options), batches())
    for x in batches():
        layer(torch.tensor(x))
    assert layer.running_mean is not None
    assert layer.running_var is not None
    np.testing.assert_allclose(running.mean, layer.running_mean, rtol=EXACT)
    np.testing.assert_allclose(running.var, layer.running_var, rtol=EXACT)
    assert running.steps == layer.num_batches_tracked == 6


def test_momentum_is_a_tenth_unless_said_otherwise() -> None:
    assert RunningStatistics.start(np.zeros(2)).decay == 0.9


def test_torch_tensors_give_what_arrays_give() -> None:
    a = gather(RunningStatistics.start(np.zeros(3)), batches())
    b = RunningStatistics.start(torch.zeros(3, dtype=torch.float64))
    for x in map(torch.tensor, batches()):
        b = b.update(x.mean(0), x.var(0, correction=0), count=len(x))
    np.testing.assert_allclose(b.mean.numpy(), a.mean, rtol=EXACT)
    np.testing.assert_allclose(b.var.numpy(), a.var, rtol=EXACT)


def test_biased_variances_are_averaged_on_request() -> None:
    biased = RunningStatistics.start(np.zeros(3), is_cumulative=True, is_unbiased=False)
    expected = np.mean([x.var(0) for x in batches()], axis=0)
    np.testing.assert_allclose(gather(biased, batches()).var, expected, rtol=EXACT)


def test_averaging_deviations_gives_less_than_averaging_variances() -> None:
    options: Any = {"is_cumulative": True, "is_unbiased": False}
    std = RunningStatistics.start(np.zeros(3), averages="std", **options)
    expected = np.mean([x.std(0) for x in batches()], axis=0) ** 2
    found = gather(std, batches()).var
    np.testing.assert_allclose(found, expected, rtol=EXACT)
    var = gather(RunningStatistics.start(np.zeros(3), **options), batches()).var
    assert np.all(found < var)


def test_debiased_statistics_of_equal_batches_are_those_of_one() -> None:
    x = batches()[0]
    running = RunningStatistics.start(np.zeros(3), is_debiased=True, is_unbiased=False)
    running = gather(running, [x] * 4)
    np.testing.assert_allclose(running.mean, x.mean(0), rtol=EXACT)
    np.testing.assert_allclose(running.var, x.var(0), rtol=EXACT)


def test_the_start_is_mean_zero_and_variance_one() -> None:
    running = RunningStatistics.start(np.array([5.0, np.nan]))
    np.testing.assert_array_equal(running.mean, [0, 0])
    np.testing.assert_array_equal(running.var, [1, 1])


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
    running = RunningStatistics.start(
        buffer, is_cumulative=is_cumulative, is_unbiased=False
    )
    running = running.update(buffer, buffer, count=2)
    before = running.mean.copy(), running.var.copy()
    buffer[:] = 7
    running.mean[:] = 8
    running.var[:] = 9
    np.testing.assert_array_equal(running.mean, before[0])
    np.testing.assert_array_equal(running.var, before[1])


@pytest.mark.parametrize("sizes", [[20], [1, 19], [7, 2, 11], [1] * 20])
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_parts_of_any_size_join_to_the_whole(sizes: list[int], kind: Any) -> None:
    x = np.random.default_rng(0).normal(3, 2, (20, 3, 4))
    parts = [kind(p) for p in np.split(x, np.cumsum(sizes)[:-1])]
    mean, var, size = population_statistics(parts, axes=(0, 2))
    np.testing.assert_allclose(np.asarray(mean), x.mean((0, 2)), rtol=EXACT)
    np.testing.assert_allclose(np.asarray(var), x.var((0, 2)), rtol=EXACT)
    assert size == 80


def test_joining_keeps_its_digits_at_a_large_mean() -> None:
    x = np.random.default_rng(0).normal(1e4, 1.0, (4096, 2)).astype(np.float32)
    _, var, _ = population_statistics(np.split(x, 64), axes=0)
    np.testing.assert_allclose(var, x.astype(float).var(0), rtol=1e-3)


def test_population_variance_is_mean_of_variances_plus_variance_of_means() -> None:
    parts = batches()
    within = np.mean([x.var(0) for x in parts], axis=0)
    between = np.var([x.mean(0) for x in parts], axis=0)
    _, var, _ = population_statistics(parts, axes=0)
    np.testing.assert_allclose(var, within + between, rtol=EXACT)


KINDS = pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
SIZES = pytest.mark.parametrize(
    "sizes", [[20], [1, 19], [7, 2, 11], [1] * 20, [1, 2, 3, 14]], ids=str
)


def parts_of(x: Any, sizes: list[int], kind: Any = np.asarray) -> list[Any]:
    """Return the statistics of stretches of x, which has shape (N, D)."""
    stretches = np.split(x, np.cumsum(sizes)[:-1])
    return [
        PopulationStatistics(kind(s.mean(0)), kind(s.var(0)), len(s)) for s in stretches
    ]


def stream(mean: float = 3.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(mean, 2, (20, 3))


def assert_statistics(found: PopulationStatistics, x: Any) -> None:
    np.testing.assert_allclose(np.asarray(found.mean), x.mean(0), rtol=EXACT)
    np.testing.assert_allclose(np.asarray(found.var), x.var(0), rtol=EXACT)
    assert found.mean.shape == found.var.shape == x.shape[1:]
    assert found.size == len(x)


@KINDS
@SIZES
def test_merged_parts_are_the_whole(sizes: list[int], kind: Any) -> None:
    x = stream()
    found = merge(parts_of(x, sizes, kind))
    assert isinstance(found.mean, type(kind(x)))
    assert_statistics(found, x)


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


def test_a_stream_is_a_merge_of_single_values() -> None:
    x = stream()
    ones = [PopulationStatistics(row, 0 * row, 1) for row in x]
    found, expected = welford(x), merge(ones)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=EXACT)
    np.testing.assert_allclose(found.var, expected.var, rtol=EXACT)


def test_a_stream_keeps_no_array_of_the_caller() -> None:
    x = stream()
    found = welford(x[:1])
    x[:] = 7
    assert_statistics(found, stream()[:1])


@KINDS
def test_at_a_large_mean_one_pass_fails_where_merge_and_welford_hold(kind: Any) -> None:
    x = np.random.default_rng(0).normal(1e4, 1.0, (2048, 2)).astype(np.float32)
    exact, x32 = x.astype(float).var(0), kind(x)
    one_pass = np.asarray((x32**2).mean(0) - x32.mean(0) ** 2)
    found = [
        np.asarray(welford(x32).var),
        np.asarray(population_statistics([x32[:33], x32[33:]], axes=0).var),
    ]
    for var in found:
        assert var.dtype == np.float32
        np.testing.assert_allclose(var, exact, rtol=1e-3)
    assert np.min(np.abs(one_pass / exact - 1)) > 0.5


def test_welford_takes_a_stream_of_numbers() -> None:
    mean, var, size = welford(np.array([1.0, 2.0, 6.0]))
    assert (mean, var, size) == (3, pytest.approx(14 / 3), 3)


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


ZERO = np.zeros(3)
START = RunningStatistics.start(ZERO)
PART = PopulationStatistics(ZERO, ZERO + 1, 4)
Case = tuple[Callable[[], object], type[Exception], str]
BAD_CALLS: list[Case] = [
    (lambda: exponential_average(0, 1), TypeError, "exactly one of momentum"),
    (lambda: exponential_average(0, 1, momentum=0.1, decay=0.9), TypeError, "the same"),
    (lambda: exponential_average(0, 1, momentum=0), ValueError, "momentum must lie"),
    (lambda: exponential_average(0, 1, momentum=1.5), ValueError, "got 1.5"),
    (lambda: exponential_average(0, 1, momentum="a"), ValueError, "got 'a'"),  # type: ignore[arg-type]
    (lambda: exponential_average(0, 1, decay=1.0), ValueError, "nothing is"),
    (lambda: exponential_average(0, 1, decay=-0.1), ValueError, r"lie in \[0, 1\)"),
    (lambda: exponential_average(0, 1, decay=math.nan), ValueError, "got nan"),
    (
        lambda: exponential_average(ZERO, np.zeros(1), decay=0.5),
        ValueError,
        "the shape of running",
    ),
    (lambda: cumulative_average(0, 1, -1), ValueError, "whole number >= 0, got -1"),
    (lambda: cumulative_average(0, 1, 1.5), ValueError, "got 1.5"),  # type: ignore[arg-type]
    (lambda: debias(1.0, steps=0, decay=0.5), ValueError, "whole number >= 1, got 0"),
    (lambda: debias(1.0, steps=1), TypeError, "exactly one"),
    (lambda: unbiased(1.0, 1), ValueError, "one value is not enough"),
    (lambda: unbiased(1.0, 2.5), ValueError, "got 2.5"),  # type: ignore[arg-type]
    (lambda: RunningStatistics.start(np.arange(3)), TypeError, "like must hold real"),
    (lambda: RunningStatistics.start(ZERO, momentum=0.1, decay=0.9), TypeError, "one"),
    (lambda: RunningStatistics.start(ZERO, averages="sd"), ValueError, "got 'sd'"),  # type: ignore[arg-type]
    (
        lambda: RunningStatistics.start(ZERO, momentum=0.1, is_cumulative=True),
        TypeError,
        "has no momentum",
    ),
    (
        lambda: RunningStatistics.start(ZERO, is_debiased=True, is_cumulative=True),
        TypeError,
        "no bias to remove",
    ),
    (lambda: START.update(np.zeros(2), ZERO, 4), ValueError, "mean must have"),
    (lambda: START.update(ZERO, np.zeros((1, 3)), 4), ValueError, "var must have"),
    (lambda: START.update(ZERO, ZERO, 1), ValueError, "one value is not enough"),
    (
        lambda: RunningStatistics.start(ZERO, is_debiased=True).mean,
        ValueError,
        "before its first update",
    ),
    (lambda: START.update([0.0] * 3, ZERO, 4), TypeError, "mean must be a NumPy array"),
    (
        lambda: START.update(ZERO, torch.zeros(3), 4),
        TypeError,
        "var must be of the kind",
    ),
    (lambda: exponential_average(0, 1, momentum=1e-17), ValueError, "lost in rounding"),
    (
        lambda: population_statistics(np.ones((5, 2)), 0),
        TypeError,
        "put it into a list",
    ),
    (
        lambda: population_statistics([np.ones((4, 3)), np.ones((4, 1))], 0),
        ValueError,
        r"must have the shape of that of the first, \(3,\), got \(1,\)",
    ),
    (lambda: merge(PART), TypeError, "got a single one; put it into a list"),  # type: ignore[arg-type]
    (lambda: merge([(ZERO, ZERO, 3)]), TypeError, "got tuple"),  # type: ignore[list-item]
    (lambda: merge([]), ValueError, "at least one part with values in it, got none"),
    (lambda: merge([PART._replace(size=0)]), ValueError, "got none"),
    (lambda: merge([PART._replace(size=-2)]), ValueError, "whole number >= 0, got -2"),
    (lambda: merge([PART._replace(size=2.0)]), ValueError, "whole number >= 0, got 2.0"),  # type: ignore[arg-type]
    (lambda: merge([PART._replace(size=True)]), ValueError, "got True"),
    (
        lambda: merge([PART, PopulationStatistics(np.zeros(1), np.ones(1), 2)]),
        ValueError,
        r"that of the first, \(3,\), got \(1,\)",
    ),
    (
        lambda: merge([PART, PopulationStatistics(torch.zeros(3), torch.ones(3), 2)]),
        TypeError,
        "must be of the kind",
    ),
    (lambda: welford([]), ValueError, "at least one value, got none"),
    (lambda: welford(np.zeros((0, 3))), ValueError, "at least one value, got none"),
    (lambda: welford([1.0, 2.0]), TypeError, "a value must be a NumPy array"),
    (lambda: welford(np.arange(6).reshape(2, 3)), TypeError, "real floating"),
    (lambda: welford([ZERO, np.zeros(1)]), ValueError, r"\(3,\), got \(1,\)"),
    (lambda: welford([ZERO, torch.zeros(3)]), TypeError, "must be of the kind"),
    (lambda: population_statistics([], 0), ValueError, "at least one batch, got none"),
    (lambda: population_statistics([np.zeros((0, 3))], 0), ValueError, "leave empty"),
    (lambda: population_statistics([ZERO.astype(int)], 0), TypeError, "real floating"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
