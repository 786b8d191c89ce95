"""Compare what the checks say of the layers of other hands with what they should.

    python benchmarks/hands.py second_hand
    python benchmarks/hands.py fourth_hand --record recorded/fourth_hand.json

What they said at first was compared with ``expected.txt`` of the folder by hand:
``verdicts.txt``, which ``--record`` stores with the reports. Here a slip is named if
the report has the words of ``words.txt``, chosen when more had been mended; a slip
without words is named by none yet. A sound layer must pass, but for those whose alarms
were seen to be true. `make other-hand`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import runpy
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from normbook.checks import audit, check_norm_layer

HERE = Path(__file__).resolve().parent
ALARM = re.compile(r"^(FAILS|WRONG|RISK) ", re.MULTILINE)
REFUSAL = re.compile(r"^\w+Error: ")


@cache
def layers_of(folder: Path) -> SimpleNamespace:
    """Import the layers of a hand."""
    with as_written():
        return SimpleNamespace(**runpy.run_path(str(folder / "layers.py")))


@contextmanager
def as_written() -> Iterator[None]:
    """Let others use what torch advises against, as torch.jit.script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def table(path: Path) -> dict[str, list[str]]:
    """Read a table: of each case what stands behind its name."""
    rows = [line.split(" | ") for line in path.read_text().splitlines()]
    return {name: rest for name, *rest in rows}


def said(case: Any) -> str:
    """Return what the check or the audit says of a case."""
    torch.manual_seed(0)
    try:
        with as_written():
            subject = case.make()
        if case.batch is not None:
            return str(audit(subject, case.batch(), quiet=True))
        return str(check_norm_layer(subject, quiet=True, **case.arguments))
    except Exception as error:  # noqa: BLE001 - that, too, is what a user is told
        return f"{type(error).__name__}: {error}"


def is_right(case: Any, wanted: list[str], is_control: bool) -> bool:
    """Return whether a report says what it must, and of a sound layer nothing else."""
    report = said(case)
    if is_control and REFUSAL.match(report) and not wanted:
        return False
    alarms = len(ALARM.findall(report))
    if is_control and not REFUSAL.match(report) and alarms != len(wanted):
        return False
    return all(words in " ".join(report.split()) for words in wanted)


def judged(folder: Path) -> list[tuple[str, bool]]:
    """Return of each case but the unnamed its name, and whether its report is right."""
    layers, words = layers_of(folder), table(folder / "words.txt")
    rows = []
    for case in (*layers.BUGS, *layers.CONTROLS):
        is_control = case in layers.CONTROLS
        if is_control or case.name in words:
            right = is_right(case, words.get(case.name, []), is_control)
            rows.append((case.name, right))
    return rows


def record(folder: Path) -> dict[str, Any]:
    """Return what is said now, with the verdicts that were given by hand."""
    layers, verdicts = layers_of(folder), table(folder / "verdicts.txt")
    rows = []
    for group in ("bugs", "controls"):
        for case in getattr(layers, group.upper()):
            verdict, because = verdicts[case.name]
            rows.append(
                {"layer": case.name, "group": group, "verdict": verdict}
                | {"because": because, "said": said(case).splitlines()}
            )
    versions = {name: metadata.version(name) for name in ("normbook", "numpy", "torch")}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version()} | versions,
        "score": Counter(f"{row['group']}: {row['verdict']}" for row in rows),
        "layers": rows,
    }


def main() -> int:
    """Check all; return 1 where one that was named is named no more."""
    parser = argparse.ArgumentParser(description="Check the layers of another hand.")
    parser.add_argument("folder", help="second_hand to thirteenth_hand")
    parser.add_argument("--record", help="store reports and verdicts in this file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = HERE / given.folder
    if given.record:
        text = json.dumps(record(folder), indent=1)
        (HERE / given.record).write_text(text + "\n")
        return 0
    rows = judged(folder)
    for name, right in rows:
        print(f"{name:28} {'right' if right else 'NO LONGER'}")
    return int(not all(right for _, right in rows))


if __name__ == "__main__":
    sys.exit(main())
