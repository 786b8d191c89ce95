"""What is kept of a goal is what a run has shown, and the page says it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import reliability
import reliability_table
from reliability import GOALS, Goal
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / reliability_table.RECORD
TESTS = Goal("It holds", "python -m pytest", "{passed} of {total} held", times=2)
OTHER = Goal("It holds", "make it", r"\d+ of \d+ seen")


def test_what_is_found_is_what_pytest_and_others_say() -> None:
    said = ["...\n1 failed, 3 passed, 2 skipped in 1.2s\n", "4 passed, 1 error in 3s\n"]
    assert reliability.figure(TESTS, said) == "7 of 9 held"
    assert reliability.figure(TESTS, ["2 deselected in 1s"] * 2) == "no test was run"
    assert reliability.figure(OTHER, ["a\n3 of 4 seen\n"]) == "3 of 4 seen"
    assert reliability.figure(OTHER, ["nothing"]) == "nothing was found"
    assert reliability.figure(Goal("It holds", "make it"), ["a"]) == "no fault"


@pytest.mark.parametrize(
    ("goal", "is_good"),
    [
        (Goal("", "echo 3 of 4 seen", r"\d of \d"), True),
        (Goal("", "echo 3 of 4 seen; exit 1", r"\d of \d"), False),
        (Goal("", "echo nothing", r"\d of \d"), False),
        (Goal("", "echo pytest: 2 deselected", "{passed} of {total}"), False),
    ],
)
def test_a_command_that_fails_or_shows_nothing_is_not_good(
    goal: Goal, is_good: bool
) -> None:
    assert reliability.show(goal)["is_good"] is is_good


def test_what_another_command_has_shown_counts_no_more() -> None:
    key = "D3"
    seen = {"command": GOALS[key].command, "state": "shown", "shown": "2 of 2"}
    assert reliability.entry(key, seen)["shown"] == "2 of 2"
    stale = reliability.entry(key, seen | {"command": "other"})
    assert (stale["state"], "shown" in stale) == ("not run", False)
    assert reliability.entry(key, {})["state"] == "not run"


def test_the_record_has_every_goal_with_the_command_of_today() -> None:
    goals = json.loads(RECORD.read_text("utf-8"))["goals"]
    assert [goal["goal"] for goal in goals] == [*GOALS]
    for goal in goals:
        assert goal == reliability.entry(goal["goal"], goal), goal["goal"]


def test_what_a_goal_says_of_where_it_runs_is_so() -> None:
    weekly = (ROOT / ".github/workflows/weekly.yml").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for key, goal in GOALS.items():
        if goal.where == reliability.WEEK:
            steps = re.findall(r"(?:make |tools/)([\w-]+)", goal.command)
            assert steps, key
            assert all(f"make {step}" in weekly for step in steps), key
        for name in re.findall(r"tests/[\w/]+\.py|tools/[\w.]+", goal.command):
            assert (ROOT / name).exists(), (key, name)
        for step in re.findall(r"make (\w[\w-]*)", goal.command):
            assert f"\n{step}:" in makefile, (key, step)


SEEN = {"goal": "D3", "says": "It holds", "where": "by hand", "command": "make it"}
SHOWN = {"state": "shown", "shown": "2 of 2", "date": "2026-11-27"}


@pytest.mark.parametrize(
    ("found", "row"),
    [
        (SHOWN, "| D3 | It holds | 2 of 2 (2026-11-27) | by hand |"),
        (
            SHOWN | {"state": "failed", "shown": "1 of 2"},
            "| D3 | It holds | **failed:** 1 of 2 (2026-11-27) | by hand |",
        ),
        ({"state": "not run"}, "| D3 | It holds | not run | by hand |"),
        ({"state": "open"}, "| D3 | It holds | no check yet | by hand |"),
    ],
)
def test_the_page_says_what_was_seen(found: dict[str, Any], row: str) -> None:
    assert reliability_table.rows({"goals": [SEEN | found]})[2:] == [row]


@pytest.mark.parametrize("state", ["shown", "failed", "good"])
def test_a_figure_that_no_run_has_shown_stops_the_build(state: str) -> None:
    with pytest.raises(ExtensionError, match=f"got D3 {state}; run make reliability"):
        reliability_table.rows({"goals": [SEEN | {"state": state}]})
    with pytest.raises(ExtensionError, match="got D3 not run"):
        reliability_table.rows({"goals": [SEEN | SHOWN | {"state": "not run"}]})


def test_the_tool_names_the_goals_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reliability.py", "D9"])
    with pytest.raises(SystemExit):
        reliability.main()
    assert "GOAL must be one of N1, N2" in capsys.readouterr().err
