"""Records: what they must hold, and that nothing is lost on the disk."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from normbook.errors import RecordError
from normbook.lab import record
from normbook.lab.record import Record
from normbook.lab.runner import run


@pytest.fixture(scope="module")
def made() -> Record:
    return run(tiny.EXPERIMENT)


@pytest.fixture(scope="module")
def path(made: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "tiny.json"
    record.save(made, path)
    return path


@pytest.fixture
def content(path: Path) -> Any:
    return json.loads(path.read_text())


EACH = ("plain", "weights", "each")


def load(content: Any, folder: Path) -> Record:
    path = folder / "changed.json"
    path.write_text(json.dumps(content))
    return record.load(path)


# --- on the disk and back


def test_what_was_saved_is_loaded_to_seven_digits(made: Record, path: Path) -> None:
    loaded = record.load(path)
    for variant in made.variants:
        for measurement, quantity in (("weights", "each"), ("training", "loss")):
            wanted = made.values(variant, measurement, quantity)
            found = loaded.values(variant, measurement, quantity)
            np.testing.assert_allclose(found, wanted, rtol=5e-7)
            assert not np.array_equal(found, wanted)
            np.testing.assert_array_equal(loaded.steps(measurement), [*steps(wanted)])


def steps(values: Any) -> range:
    return range(0 if values.ndim == 3 else 10, 31, 10)


def test_all_but_the_numbers_is_loaded_as_it_was(made: Record, path: Path) -> None:
    loaded = record.load(path)
    for name in set(vars(made)) - {"runs"}:
        assert getattr(loaded, name) == getattr(made, name), name


def test_saving_what_was_loaded_gives_the_same_bytes(path: Path) -> None:
    again = path.with_name("again.json")
    record.save(record.load(path), again)
    assert again.read_bytes() == path.read_bytes()


def test_what_is_not_finite_is_null_in_the_file_and_nan_again(
    made: Record, path: Path
) -> None:
    assert '"angle": [null, ' in path.read_text()
    angles = record.load(path).values("plain", "weights", "angle")
    np.testing.assert_array_equal(np.isnan(angles), [[True, False, False, False]] * 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_makes_a_file_that_is_not_json(
    value: float, made: Record, tmp_path: Path
) -> None:
    changed = copy.deepcopy(made)
    changed.runs[0].opening[0] = value
    record.save(changed, tmp_path / "tiny.json")
    (tmp_path / "tiny.json").read_text().index('"opening": [null, ')
    assert record.load(tmp_path / "tiny.json").runs[0].opening[0] is None


def test_a_list_of_numbers_is_one_line(path: Path) -> None:
    text = path.read_text()
    assert '\n "seeds": [0, 3],\n' in text
    assert text.count('"step": [0, 10, 20, 30],\n') == 4
    assert not re.search(r"^ *(-|\d|null)", text, re.M)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [[]],
        [[1, 2], [], [-3.5, None]],
        ["a", 1, "2", [3], "["],
        {"a": [1e-7, 2], "b": "[", "c": "1,"},
        [True, 1, False],
        [1, [2, [3, 4], 5], 6],
    ],
)
def test_joining_numbers_changes_no_content(value: Any) -> None:
    text = json.dumps(value, indent=1)
    assert json.loads(record._join_numbers(text)) == value


def test_a_record_that_breaks_the_schema_is_not_written(
    made: Record, tmp_path: Path
) -> None:
    changed = copy.deepcopy(made)
    changed.seeds.append(-1)
    with pytest.raises(RecordError, match=r"got .*tiny.json, where \$\.seeds"):
        record.save(changed, tmp_path / "tiny.json")
    assert list(tmp_path.iterdir()) == []


# --- what is refused


KEYS = [
    "schema", "name", "scale", "command", "settings", "seeds", "data", "versions",
    "code", "commit", "is_modified", "device", "started", "wall_seconds", "runs",
]  # fmt: skip
INNER = {
    "settings": ["steps", "variants"],
    "versions": ["normbook", "numpy", "python", "torch"],
    "device": ["type", "name", "threads", "ranks"],
}
OF_A_RUN = ["variant", "seed", "wall_seconds", "opening", "curves"]
PLACES: list[tuple[str | int, ...]] = [
    *((key,) for key in KEYS),
    *((key, inner) for key, inners in INNER.items() for inner in inners),
    *(("runs", 1, key) for key in OF_A_RUN),
    ("runs", 1, "curves", "weights", "step"),
]


def load_changed(
    content: Any, place: tuple[str | int, ...], folder: Path, *value: Any
) -> Record:
    """Load the content with another value at one place, or without any."""
    *outer, key = place
    holder = content
    for name in outer:
        holder = holder[name]
    if value:
        (holder[key],) = value
    else:
        del holder[key]
    return load(content, folder)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_record_without_one_of_its_parts_is_refused(
    place: tuple[str | int, ...], content: Any, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=rf"must contain \[.*'{place[-1]}'"):
        load_changed(content, place, tmp_path)


def test_steps_may_stand_in_every_variant_instead(content: Any, tmp_path: Path) -> None:
    steps = content["settings"].pop("steps")
    for variant in content["settings"]["variants"].values():
        variant["steps"] = steps
    assert load(content, tmp_path).settings == content["settings"]
    variant["steps"] = 0
    with pytest.raises(RecordError, match=r"steps must be bigger than or equal to 1"):
        load(content, tmp_path)
    del variant["steps"]
    with pytest.raises(RecordError, match=r"must contain \['steps'\] properties"):
        load(content, tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((place, ["?"]) for place in PLACES),  # of the wrong type
        (("schema",), 2),
        (("name",), "Tiny Net"),
        (("command",), "rm -rf /"),
        (("seeds",), []),
        (("seeds",), [0, 0]),
        (("seeds",), [0, 3.5]),
        (("code",), "0" * 63),
        (("commit",), "HEAD"),
        (("started",), "yesterday"),
        (("wall_seconds",), 0),
        (("wall_seconds",), "3 s"),
        (("device", "type"), "tpu"),
        (("device", "threads"), 0),
        (("device", "colour"), "green"),
        (("data",), {"mnist": {"file.gz": "0" * 63}}),
        (("runs",), []),
        (("runs", 0, "seed"), "0"),
        (("runs", 0, "opening"), []),
        (("runs", 0, "opening", 0), "0.1"),
        (("runs", 0, "curves"), {}),
        (("runs", 0, "curves", "weights", "each", 0), {"a": 1}),
        (("runs", 0, "curves", "weights", "each", 0, 0), True),
        (("runs", 0, "curves", "weights", "step", 0), 0.5),
        (("extra",), 1),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_and_named(
    place: tuple[str | int, ...], value: Any, content: Any, tmp_path: Path
) -> None:
    message = r"schema.json, got .*changed.json, where \$.*run the experiment"
    with pytest.raises(RecordError, match=message):
        load_changed(content, place, tmp_path, value)


@pytest.mark.parametrize(
    "change",
    [
        lambda runs: runs.pop(),
        lambda runs: runs.append(runs[0]),
        lambda runs: runs.reverse(),
        lambda runs: runs[0].update(seed=7),
        lambda runs: runs[0].update(variant="other"),
    ],
)
def test_there_is_one_run_for_each_variant_and_seed(
    change: Callable[[Any], object], content: Any, tmp_path: Path
) -> None:
    change(content["runs"])
    with pytest.raises(RecordError, match="one run for each variant and seed"):
        load(content, tmp_path)


@pytest.mark.parametrize("quantity", ["each", "angle", "step"])
def test_a_curve_has_a_value_for_each_step(
    quantity: str, content: Any, tmp_path: Path
) -> None:
    message = r"as many values as steps, got .* in noisy, rate=0.1, seed 0: weights"
    with pytest.raises(RecordError, match=message):
        load_changed(content, ("runs", 2, "curves", "weights", quantity, -1), tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "\0\0", "[NaN]", "\xff\xfe", "[" * 100_000, "PK\x03\x04"]
)
def test_a_file_that_is_not_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=r"must be a JSON file, got .*broken.json"):
        record.load(path)


@pytest.mark.parametrize("value", [[], 7, None, "record", {}])
def test_json_that_is_no_record_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"must follow record.schema.json, got"):
        load(value, tmp_path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        record.load(tmp_path / "tiny.json")


# --- reading it


def test_values_have_one_row_for_each_seed(made: Record) -> None:
    values = made.values("plain", "weights", "each")
    for row, run_of_seed in zip(values, made.runs[:2], strict=True):
        np.testing.assert_array_equal(row, run_of_seed.curves["weights"]["each"])


def test_the_first_step_of_each_seed_is_nan_where_there_is_none(made: Record) -> None:
    steps = made.steps("weights", "plain")
    is_there = np.zeros((2, len(steps)), dtype=bool)
    is_there[1, [1, -1]] = True
    found = made.first_steps("plain", "weights", is_there)
    np.testing.assert_array_equal(found, [np.nan, steps[1]])


def test_texts_are_as_they_were_recorded(path: Path) -> None:
    read = record.load(path)
    signs = ["".join("+-"[int(w < 0)] for w in row) for row in read.values(*EACH)[1]]
    assert read.texts("plain", "weights", "signs")[1] == signs
    with pytest.raises(
        RecordError, match=r"signs of weights must be numbers, got text"
    ):
        read.values("plain", "weights", "signs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none", "weights", "each"), r"variant must be .*plain, .*got 'none'"),
        (("plain", "test", "each"), r"must be one of training / loss.*got test / each"),
        (("plain", "weights", "loss"), r"weights / angle.*got weights / loss"),
    ],
)
def test_a_value_that_the_record_lacks_is_named(
    arguments: tuple[str, str, str], message: str, made: Record
) -> None:
    with pytest.raises(RecordError, match=message):
        made.values(*arguments)
    with pytest.raises(RecordError, match=r"weights / step.*got test / step"):
        made.steps("test")
