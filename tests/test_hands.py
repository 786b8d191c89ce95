"""The blind trials of other hands: records are as judged, and what was named still is.

That of the first hand has a script and tests of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import hands
import pytest

BENCHMARKS = Path(hands.__file__).parent
FIRST = {  # verdicts on the bugs when the checks had not seen them
    "second_hand": {"right": 14, "wrong reason": 7, "missed": 4},
    "third_hand": {"right": 15, "wrong reason": 7, "missed": 3},
    "fourth_hand": {"right": 15, "wrong reason": 4, "missed": 6},
    "fifth_hand": {"right": 15, "wrong reason": 5, "missed": 5},
    "sixth_hand": {"right": 21, "wrong reason": 3, "missed": 1},
    "seventh_hand": {"right": 19, "wrong reason": 2, "missed": 4},
    "eighth_hand": {"right": 13, "wrong reason": 5, "missed": 7},
    "ninth_hand": {"right": 23, "wrong reason": 1, "missed": 1},
    "tenth_hand": {},  # of sound layers alone, as the next
    "eleventh_hand": {},
    "twelfth_hand": {"right": 8, "right, with untrue lines": 4, "missed": 4},
    "thirteenth_hand": {"right": 8, "wrong reason": 2, "missed": 2},
}
TOLD = {  # of sets whose row is another
    "tenth_hand": "| tenth, easily misjudged | 25 | 7 | 7 | 1 |",
    "eleventh_hand": "| eleventh, as many projects write them | 25 | 5 | 1 | 6 |",
    "twelfth_hand": "| twelfth, 16 models | 12 | 0 | 4 |",
    "thirteenth_hand": "| thirteenth, 12 models | 8 | 2 | 2 |",
}
UNNAMED = {  # and those that no report names yet
    "fifth_hand": {"key-value transformer"},
    "eighth_hand": {
        *("spade", "masked_seq", "fused_conv_bn", "switch_norm", "lrn"),
        *("stacked_ln_lstm", "multi_layer_cell", "peephole_ln_lstm"),
    },
}
pytestmark = pytest.mark.parametrize("name", FIRST)


def test_the_record_has_the_verdicts_by_hand(name: str) -> None:
    record = json.loads((BENCHMARKS / f"recorded/{name}.json").read_text())
    rows = {r["layer"]: [r["verdict"], r["because"]] for r in record["layers"]}
    assert hands.table(BENCHMARKS / name / "verdicts.txt") == rows
    bugs = Counter(r["verdict"] for r in record["layers"] if r["group"] == "bugs")
    assert bugs == FIRST[name]


def test_what_was_named_is_named_still_and_sound_layers_pass(name: str) -> None:
    folder = BENCHMARKS / name
    bugs = {case.name for case in hands.layers_of(folder).BUGS}
    words = hands.table(folder / "words.txt")
    assert bugs - words.keys() == UNNAMED.get(name, set())
    assert [case for case, is_right in hands.judged(folder) if not is_right] == []


def test_a_report_without_the_words_is_not_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BENCHMARKS / name
    monkeypatch.setattr(hands, "said", lambda case: "FAILS  another test\nfor a reason")
    assert not any(is_right for _, is_right in hands.judged(folder))
    monkeypatch.setattr(hands, "said", lambda case: "all 31 tests pass.")
    bugs = {case.name for case in hands.layers_of(folder).BUGS}
    assert not any(right for case, right in hands.judged(folder) if case in bugs)


def test_an_error_is_what_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no such layer")

    for name_of in ("check_norm_layer", "audit"):
        monkeypatch.setattr(hands, name_of, fails)
    layers = hands.layers_of(BENCHMARKS / name)
    case = [*layers.BUGS, *layers.CONTROLS][0]
    assert hands.said(case) == "ValueError: no such layer"


def test_readers_are_told_what_was_found_at_first(name: str) -> None:
    page = (BENCHMARKS.parent / "book/how_it_is_checked.md").read_text("utf-8")
    row = " | ".join([name.removesuffix("_hand"), *map(str, FIRST[name].values())])
    assert TOLD.get(name, f"\n| {row} |\n") in " ".join(page.split(" ")).replace(
        "\n", " " if name in TOLD else "\n"
    )
