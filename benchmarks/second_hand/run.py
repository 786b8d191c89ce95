"""Compare what the checks say of the layers of a second hand with what they should.

What they said at first was compared with ``expected.txt`` by hand: ``verdicts.txt``,
and ``recorded/second_hand.json`` with the reports. Here a slip is named if the report
has the words of ``words.txt``, chosen when eight more had been mended. A sound layer
must pass, but for those whose alarm was seen to be true. `make other-hand` runs it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import layers
import torch

from normbook.checks import audit, check_norm_layer

WORDS = Path(__file__).with_name("words.txt")
OPEN = "not yet"
ALARM = re.compile(r"^(FAILS|WRONG|RISK) ", re.MULTILINE)


def said(case: layers.Case) -> str:
    """Return what the check or the audit says of a case."""
    torch.manual_seed(0)
    subject = case.make()
    if case.batch is not None:
        return str(audit(subject, case.batch(), quiet=True))
    return str(check_norm_layer(subject, quiet=True, **case.arguments))


def words() -> dict[str, str]:
    """Read the table: by which words a report names a slip."""
    lines = WORDS.read_text().splitlines()
    return dict(line.split(" | ") for line in lines)  # type: ignore[misc]


def is_right(case: layers.Case) -> bool:
    """Return whether a report says what it must, and of a sound layer nothing else."""
    report, wanted = said(case), words().get(case.name)
    if case in layers.CONTROLS:
        alarms = len(ALARM.findall(report))
        return alarms == (0 if wanted is None else 1) and (wanted or "") in report
    return wanted is not None and wanted in " ".join(report.split())


def main() -> int:
    """Check all; return 1 where one that was named is named no more."""
    torch.set_num_threads(1)
    worse = 0
    for case in (*layers.BUGS, *layers.CONTROLS):
        right, is_open = is_right(case), words().get(case.name) == OPEN
        worse += not right and not is_open
        state = "right" if right else OPEN if is_open else "NO LONGER"
        print(f"{case.name:28} {state}")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
