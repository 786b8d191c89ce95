"""What a set of checks found: findings, each with a reason and a cure."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

__all__ = ["Finding", "Report"]

WIDTH, INDENT = 76, " " * 7


class Finding(NamedTuple):
    """The outcome of one test.

    Attributes
    ----------
    name : str
        The claim that was tested, such as ``"the running variance is unbiased"``.
    passed : bool or None
        ``None`` where the test does not apply.
    reason : str
        What was seen and what was expected, with numbers; where the numbers match
        those of a known bug, its name. May stay empty for a test that passed.
    cure : str
        What to change.
    """

    name: str
    passed: bool | None
    reason: str = ""
    cure: str = ""


class Report(NamedTuple):
    """All findings on one object; ``str`` gives what is printed.

    Attributes
    ----------
    kind : str
        What was checked, such as ``"batch norm of (N, 8)"``.
    findings : tuple of Finding
        In the order of the tests.

    Examples
    --------
    >>> good = Finding("gain and bias are used", True)
    >>> bad = Finding("eps is inside the root", False, "0.13 for 0.98.", "Add it.")
    >>> report = Report("batch norm", (good, bad))
    >>> report.failed, report.passed
    (('eps is inside the root',), False)
    >>> print(report)
    batch norm: 1 of 2 tests fails.
    FAILS  eps is inside the root
           0.13 for 0.98.
           Cure: Add it.
    """

    kind: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the tests that failed."""
        return tuple(f.name for f in self.findings if f.passed is False)

    @property
    def passed(self) -> bool:
        """Whether no test failed."""
        return not self.failed

    def __str__(self) -> str:
        """Return one line for the whole, and name, reason and cure of each failure."""
        count = sum(f.passed is not None for f in self.findings)
        if self.passed:
            return f"{self.kind}: all {count} tests pass."
        verb = "fails" if len(self.failed) == 1 else "fail"
        lines = [f"{self.kind}: {len(self.failed)} of {count} tests {verb}."]
        for finding in self.findings:
            if finding.passed is False:
                lines += _lines("FAILS  ", finding.name)
                lines += _lines(INDENT, finding.reason)
                lines += _lines(INDENT, f"Cure: {finding.cure}" if finding.cure else "")
        return "\n".join(lines)


def _lines(first: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=INDENT)
