"""What is printed: the failures, with reason and cure."""

from __future__ import annotations

from normbook.checks.report import WIDTH, Finding, Report

GOOD = Finding("gain is used", True)
BAD = Finding("eps is inside the root", False, "0.13 for 0.98. " * 9, "Add it.")
NONE = Finding("it has statistics", None, "it keeps none")


def test_a_failure_is_named_and_what_does_not_apply_is_neither_failed_nor_counted() -> (
    None
):
    report = Report("batch norm", (GOOD, BAD, NONE))
    assert not report.passed
    assert report.failed == ("eps is inside the root",)
    assert str(report).split("\n")[0] == "batch norm: 1 of 2 tests fails."


def test_without_failures_a_single_line_is_printed() -> None:
    report = Report("batch norm", (GOOD, NONE))
    assert report.passed
    assert str(report) == "batch norm: all 1 tests pass."


def test_reason_and_cure_are_printed_in_lines_as_long_as_the_page() -> None:
    shown = str(Report("batch norm", (BAD,)))
    assert shown.count("0.98.") == 9
    assert shown.endswith("Cure: Add it.")
    assert max(map(len, shown.split("\n"))) <= WIDTH
