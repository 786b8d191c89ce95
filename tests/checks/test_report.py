"""What is printed: the failures, with reason and cure."""

from __future__ import annotations

import pytest

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


WRONG = Finding("eps is inside the root", False, "0.13 for 0.98.", "Add it.")
OTHER = Finding("gain and bias are used", None, "1 + gain.", "", "1 + gain")


@pytest.mark.parametrize(
    ("names", "passed"),
    [
        (("eps is inside the root", "1 + gain"), True),
        (("eps is inside the root", "gain and bias are used"), True),
        (("1 + gain",), False),
        (("eps is inside the root",), False),
        (("1 + bias",), False),
        ((), False),
    ],
)
def test_what_is_meant_so_is_allowed_by_its_name_or_that_of_its_test(
    names: tuple[str, ...], passed: bool
) -> None:
    report = Report("batch norm", (WRONG, OTHER))
    assert report.allowing(names).passed == passed
    assert not report.passed
    right = Report("batch norm", (Finding("1 + gain", True),))
    assert right.allowing(("1 + gain",)) == right


def test_a_note_is_what_passed_with_a_convention() -> None:
    note = Finding("gain", True, "one for each head.", other="gain per head")
    report = Report("batch norm", (note, Finding("bias", True, "a word."), OTHER))
    shown = str(report)
    assert "NOTE   gain per head\n       one for each head." in shown
    assert "bias" not in shown.replace("gain and bias", "")
    assert shown.count("1 + gain.\n") == shown.count("one for each head.") == 1


def test_what_is_told_is_titled_by_what_holds() -> None:
    report = Report("batch norm", (BAD, OTHER))
    assert f"FAILS  {BAD.name}" in str(report)
    assert f"OTHER  {OTHER.other}\n" in str(report)
    allowed = str(report.allowing((BAD.name, OTHER.other)))
    assert f"NOTE   meant otherwise: {BAD.name}" in allowed
    assert f"NOTE   {OTHER.other}\n" in allowed


def test_what_was_not_tested_is_told_once_for_each_reason() -> None:
    rest = [Finding(name, None, "x is small", "Take more.") for name in ("eps", "mean")]
    other = Finding("dtype", None, "it has no parameter", "Give it one.")
    shown = str(Report("batch norm", (GOOD, *rest, other, NONE)))
    assert "Not tested, as x is small: eps; mean.\n" in shown
    assert shown.endswith("Not tested, as it has no parameter: dtype.")


def test_what_fails_is_shown_without_the_way_to_it() -> None:
    with pytest.raises(AssertionError, match="1 of 1 tests fails") as caught:
        Report("batch norm", (BAD,)).raise_if_failed()
    frames = [entry.frame.f_locals for entry in caught.traceback]
    assert frames[-1]["__tracebackhide__"]
