"""What a set of checks found: findings, each with a reason and a cure."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

WIDTH, INDENT = 76, " " * 7


class Finding(NamedTuple):
    """The outcome of one test, named by the claim that was tested.

    ``passed`` is None where the test does not apply. ``reason`` says what was seen and
    what was expected, and names a known bug; ``cure`` says what to change.
    """

    name: str
    passed: bool | None
    reason: str = ""  # may stay empty where the test passed
    cure: str = ""


class Report(NamedTuple):
    """All findings on one object, in the order of the tests; ``print`` shows them.

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

    kind: str  # what was checked, such as "batch norm of (N, 8)"
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
        for name, passed, reason, cure in self.findings:
            if passed is False:
                cure = f"{INDENT}Cure: {cure}" if cure else ""
                for text in (f"FAILS  {name}", f"{INDENT}{reason}", cure):
                    lines += textwrap.wrap(text, WIDTH, subsequent_indent=INDENT)
        return "\n".join(lines)
