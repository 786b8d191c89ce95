"""What a set of checks found: findings, each with a reason and a cure."""

from __future__ import annotations

import json
import textwrap
from typing import NamedTuple

WIDTH, INDENT = 76, " " * 7


class Finding(NamedTuple):
    """The outcome of one test, named by the claim that was tested.

    ``passed`` is None where the claim does not apply, where it was not tested though it
    does, and where the layer is other on purpose: then ``other`` names the convention.
    ``reason`` says what was seen and what was expected, and names a known bug; ``cure``
    says what to change, or what would allow the test.
    """

    name: str
    passed: bool | None
    reason: str = ""  # may stay empty where the test passed
    cure: str = ""
    other: str = ""  # stays where the convention is allowed and the test passes

    @property
    def verdict(self) -> str:
        """Return "right", "wrong", "other", "not tested" or "does not apply"."""
        if self.passed is None and self.other:
            return "other"
        if self.passed is None:
            return "not tested" if self.cure else "does not apply"
        return "right" if self.passed else "wrong"


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
        return tuple(f.name for f in self.findings if f.verdict == "wrong")

    @property
    def others(self) -> dict[str, str]:
        """Conventions in which it differs, each with the reason; not those allowed."""
        return {f.other: f.reason for f in self.findings if f.verdict == "other"}

    @property
    def untested(self) -> dict[str, str]:
        """Names of the tests that were not made though they apply, with the reason."""
        return {f.name: f.reason for f in self.findings if f.verdict == "not tested"}

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and nothing is other that was not allowed."""
        return not (self.failed or self.others)

    def allowing(self, names: tuple[str, ...]) -> Report:
        """Return the report with conventions, or whole tests, that are meant so."""
        findings = (
            f._replace(passed=True, other=f.other or f.name)
            if f.verdict in ("wrong", "other") and {f.other, f.name} & {*names}
            else f
            for f in self.findings
        )
        return self._replace(findings=tuple(findings))

    def raise_if_failed(self) -> None:
        """Raise an ``AssertionError`` that tells the report, unless it passed."""
        __tracebackhide__ = True  # of pytest: the report, not the way to it
        if not self.passed:
            raise AssertionError(str(self))

    def to_json(self) -> str:
        """Return the report as JSON, each finding with its verdict."""
        rows = [{"verdict": f.verdict, **f._asdict()} for f in self.findings]
        content = {"kind": self.kind, "passed": self.passed, "findings": rows}
        return json.dumps(content, indent=2)

    def __str__(self) -> str:
        """Return one line for the whole, then what failed, is other, was not tested."""
        lines = [f"{self.kind}: {self._summary()}."]
        for word, verdicts in (("FAILS", "wrong"), ("OTHER", "other"), ("NOTE", "")):
            for f in self.findings:
                is_note = f.verdict == "right" and f.other
                if f.verdict == verdicts or (not verdicts and is_note):
                    title, remedy = _title_and_remedy(f)
                    lines += _wrapped(f"{word:5}  {title}", f.reason, remedy)
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.untested.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            lines += _wrapped(f"Not tested, as {reason}: {'; '.join(names)}.")
        return "\n".join(lines)

    def _summary(self) -> str:
        without = ("not tested", "does not apply")
        count = sum(f.verdict not in without for f in self.findings)
        if self.passed:
            return f"all {count} tests pass"
        parts = []
        if self.failed:
            verb = "fails" if len(self.failed) == 1 else "fail"
            parts.append(f"{len(self.failed)} of {count} tests {verb}")
        if self.others:
            parts.append(f"{', '.join(self.others)}: other, perhaps on purpose")
        return "; ".join(parts)


def _title_and_remedy(finding: Finding) -> tuple[str, str]:
    """Return a title, the claim that fails or else what holds, and what to do."""
    name, other = finding.name, finding.other
    if finding.verdict == "wrong":
        return name, f"Cure: {finding.cure}" if finding.cure else ""
    if finding.verdict == "other":
        return other, f'If it is meant: allow="{other}".'
    return f"meant otherwise: {name}" if other == name else other, ""


def _wrapped(first: str, *rest: str) -> list[str]:
    lines = []
    for text in (first, *(f"{INDENT}{text}" for text in rest if text)):
        lines += textwrap.wrap(text, WIDTH, subsequent_indent=INDENT)
    return lines
