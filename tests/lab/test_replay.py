"""A record is checked by repeating its first steps; a false one is found out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from normbook.errors import RunError
from normbook.lab import record, runner
from normbook.lab.experiment import Experiment
from normbook.lab.record import Record
from normbook.lab.runner import replay, run

TINY = tiny.EXPERIMENT


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record as it is read from the disk."""
    path = tmp_path_factory.mktemp("record") / "tiny.json"
    run(TINY, out=path)
    return record.load(path)


def test_a_true_record_repeats(kept: Record) -> None:
    assert replay(kept, TINY, None) == []


def test_a_tuple_in_the_settings_repeats_in_memory_and_from_the_disk(
    tmp_path: Path,
) -> None:
    with_tuple = tiny.with_settings(TINY, layers=(1, 2))  # a list on the disk
    assert replay(run(with_tuple, out=tmp_path / "a.json"), with_tuple, None) == []
    assert replay(record.load(tmp_path / "a.json"), with_tuple, None) == []


def test_a_run_shorter_than_the_opening_repeats() -> None:
    short = tiny.with_settings(TINY, steps=4)
    assert replay(run(short), short, None, steps=4) == []


# --- false records


def change_run(kept: Record, change: Callable[[Any], Any]) -> Record:
    """Copy the record and change its third run: noisy, seed 0."""
    false = copy.deepcopy(kept)
    change(false.runs[2])
    return false


def with_loss(kept: Record, step: int, factor: float) -> Record:
    """Change one loss of that run."""
    return change_run(kept, lambda false: scale(false.opening, step, factor))


def with_weight(kept: Record, factor: float) -> Record:
    """Change the largest weight that it measured first."""

    def change(false: Any) -> None:
        each = false.curves["weights"]["each"][0]
        scale(each, int(np.argmax(np.abs(each))), factor)

    return change_run(kept, change)


def scale(values: list[Any], place: int, factor: float) -> None:
    values[place] = tiny.scaled(values[place], factor)


@pytest.mark.parametrize("step", [0, 10, 19])
@pytest.mark.parametrize("factor", [1.0001, -1.0, 0.0])
def test_a_changed_loss_is_found(step: int, factor: float, kept: Record) -> None:
    found = replay(with_loss(kept, step, factor), TINY, None)
    assert found == ["noisy, rate=0.1, seed 0: losses of the first 20 steps"]


@pytest.mark.parametrize(
    ("measurement", "quantity", "place"),
    [("weights", "each", 0), ("weights", "each", 1), ("training", "loss", 0)],
)
def test_a_changed_measurement_is_found(
    measurement: str, quantity: str, place: int, kept: Record
) -> None:
    def change(false: Any) -> None:
        scale(false.curves[measurement][quantity], place, 1.0001)

    found = replay(change_run(kept, change), TINY, None)
    assert found == [f"noisy, rate=0.1, seed 0: {measurement} / {quantity}"]


@pytest.mark.parametrize(
    "change",
    [
        lambda false: false.curves["weights"].pop("each"),
        lambda false: false.curves.pop("weights"),
        lambda false: false.curves["weights"]["each"].__delitem__(slice(1, None)),
        lambda false: false.curves["weights"]["each"].__setitem__(1, 0.5),
        lambda false: false.curves["weights"]["angle"].__setitem__(0, 0.5),
        lambda false: false.curves["weights"]["angle"].__setitem__(1, [0.5]),
        lambda false: false.curves["weights"]["angle"].__setitem__(1, None),
        lambda false: false.curves["weights"]["signs"].__setitem__(1, "0"),
        lambda false: false.curves["weights"]["step"].__setitem__(1, 11),
        lambda false: false.opening.__delitem__(slice(10, None)),
    ],
)
def test_what_is_missing_or_of_another_shape_is_found(
    change: Callable[[Any], Any], kept: Record
) -> None:
    found = replay(change_run(kept, change), TINY, None)
    assert found
    assert all(line.startswith("noisy, rate=0.1, seed 0: ") for line in found)


def test_another_seed_or_learning_rate_is_found(kept: Record) -> None:
    runs = [replace(of, seed=of.seed + 1) for of in kept.runs]
    for of, experiment in ((replace(kept, runs=runs), TINY), (kept, tiny.faster(TINY))):
        found = replay(of, experiment, None)
        assert len([line for line in found if "losses" in line]) == 4


@pytest.mark.parametrize("name", ["steps", "learning_rate", "variants"])
def test_other_settings_are_found(name: str, kept: Record) -> None:
    settings = {**kept.settings, name: 7}
    found = replay(replace(kept, settings=settings), TINY, None)
    assert found == ["the settings are no longer those of the record"]


def in_float32(of: Record) -> tuple[Record, Experiment]:
    """Say that the experiment computes in float32."""
    settings = {**of.settings, "dtype": "float32"}
    return replace(of, settings=settings), tiny.with_settings(TINY, dtype="float32")


@pytest.mark.parametrize(
    ("is_steady", "place", "factor", "default"),
    [
        (True, 0, 1.0001, 1),
        (True, 1, 1.0001, 0),
        (True, 1, 1.0010, 1),
        (True, 9, 1.0010, 1),
        (False, 0, 1.0001, 1),
        (False, 1, 1.0010, 0),
        (False, 1, 1.0030, 1),
        (False, 9, 1.1000, 0),
    ],
)
def test_in_float32_later_losses_agree_less_closely_unless_more_is_asked_for(
    is_steady: bool, place: int, factor: float, default: int, kept: Record
) -> None:
    of, experiment = in_float32(with_loss(kept, place, factor))
    experiment = replace(experiment, is_steady=is_steady)
    assert len(replay(of, experiment, None)) == default
    assert len(replay(of, experiment, None, steps=20)) == 1


@pytest.fixture
def moved_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move starts so far, as if rounding were as large."""
    for name, precision in runner.PRECISIONS.items():
        moved = precision._replace(start=request.param)
        monkeypatch.setitem(runner.PRECISIONS, name, moved)


@pytest.mark.usefixtures("moved_by")
@pytest.mark.parametrize(
    ("place", "moved_by", "count"),
    [(9, 1e-6, 1), (9, 1e-2, 0), (1, 1e-2, 0), (0, 1e-2, 1)],
    indirect=["moved_by"],
)
def test_a_later_loss_may_be_off_by_what_a_moved_start_makes_of_it(
    place: int, count: int, kept: Record
) -> None:
    of, experiment = in_float32(with_loss(kept, place, 1.001))
    assert len(replay(of, experiment, None)) == count
    assert len(replay(of, experiment, None, steps=20)) == 1


@pytest.mark.usefixtures("moved_by")
@pytest.mark.parametrize("moved_by", [1e-2], indirect=True)
@pytest.mark.parametrize("is_steady", [True, False])
def test_of_an_unsteady_network_measurements_may_be_off_by_that_but_not_losses(
    is_steady: bool, kept: Record
) -> None:
    for false, count in ((with_loss(kept, 1, 1.003), 0), (with_weight(kept, 1.02), 1)):
        of, experiment = in_float32(false)
        experiment = replace(experiment, is_steady=is_steady)
        assert len(replay(of, experiment, None)) == (count if is_steady else 1 - count)


@pytest.mark.parametrize(("factor", "count"), [(1.009, 0), (1.011, 1)])
def test_measurements_in_float32_agree_to_a_hundredth_of_the_largest(
    factor: float, count: int, kept: Record
) -> None:
    of, experiment = in_float32(with_weight(kept, factor))
    assert len(replay(of, experiment, None)) == count


def test_fewer_losses_can_be_compared(kept: Record) -> None:
    false = with_loss(kept, 4, 9.0)
    assert len(replay(false, TINY, None, at_most=5)) == 1
    assert replay(false, TINY, None, at_most=4) == []


def test_losses_alone_can_be_compared(kept: Record) -> None:
    false = change_run(kept, lambda false: false.curves["weights"].pop("each"))
    assert replay(false, TINY, None, steps=5, is_measured=False) == []
    false.runs[0].opening[4] *= 1.0001
    assert len(replay(false, TINY, None, steps=5, is_measured=False)) == 1
    assert replay(false, TINY, None, steps=4, is_measured=False) == []


# --- what is refused


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"name": "vgg"}, {}, "record must be of tiny, got one of vgg; give the exp"),
        ({"scale": "huge"}, {}, "scale must be one of live, got 'huge'"),
        ({}, {"steps": 21}, r"steps must lie in 1\.\.20, the losses .*got 21"),
        ({}, {"steps": 0}, r"steps must lie in 1\.\.20, the losses .*got 0"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    change: dict[str, Any], options: dict[str, Any], message: str, kept: Record
) -> None:
    with pytest.raises(RunError, match=message):
        replay(replace(kept, **change), TINY, None, **options)
