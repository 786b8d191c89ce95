"""What is printed: the failures, with reason and cure."""

from __future__ import annotations

from normbook.checks.report import WIDTH, Finding, Report

GOOD = Finding("gain is used", True)
BAD = Finding("eps is inside the root", False, "0.13 for 0.98. " * 9, "Add it.")
NONE = Finding("it has statistics", None, "it keeps none")


def test_failed_gives_the_names_of_what_failed() -> None:
    report = Report("batch norm", (GOOD, BAD, NONE))
    assert report.failed == ("eps is inside the root",)


def test_passed_is_false_as_soon_as_one_test_fails() -> None:
    assert not Report("batch norm", (GOOD, BAD)).passed


def test_a_test_that_does_not_apply_is_no_failure() -> None:
    assert Report("batch norm", (GOOD, NONE)).passed


def test_without_failures_a_single_line_is_printed() -> None:
    report = Report("batch norm", (GOOD, NONE))
    assert str(report) == "batch norm: all 1 tests pass."


def test_tests_that_do_not_apply_are_not_counted() -> None:
    first = str(Report("batch norm", (GOOD, BAD, NONE))).split("\n")[0]
    assert first == "batch norm: 1 of 2 tests fails."


def test_reason_and_cure_are_printed() -> None:
    shown = str(Report("batch norm", (BAD,)))
    assert shown.count("0.98.") == 9
    assert shown.endswith("Cure: Add it.")


def test_no_line_is_longer_than_the_page() -> None:
    shown = str(Report("batch norm", (BAD,)))
    assert max(map(len, shown.split("\n"))) <= WIDTH
