"""What the checks say of the layers by a second hand.

    python benchmarks/second_hand/run.py --out second_hand_mended.json

Every layer is checked once, as its case says. ``verdicts.txt`` compares what was said
at first with ``expected.txt``, by hand, and ``recorded/second_hand.json`` holds both:
that is the number to quote. ``verdicts_mended.txt`` and the record of that name are of
the checks after some of these very bugs were looked at.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import layers
import torch

from normbook.checks import audit, check_norm_layer

FOLDER = Path(__file__).parent


def said(case: layers.Case) -> str:
    """Return what the check or the audit says of a case."""
    torch.manual_seed(0)
    subject = case.make()
    try:
        if case.batch is not None:
            return str(audit(subject, case.batch(), quiet=True))
        return str(check_norm_layer(subject, quiet=True, **case.arguments))
    except Exception as error:  # noqa: BLE001, a refusal is an answer too
        return f"{type(error).__name__}: {error}"


def short(report: str) -> list[str]:
    """Leave out the cures."""
    kept, in_cure = [], False
    for line in report.splitlines():
        in_cure = line.startswith(" ") and (in_cure or line.strip().startswith("Cure:"))
        if not in_cure:
            kept.append(line.strip())
    return kept


def judged(name: str) -> dict[str, dict[str, str]]:
    """Read the verdict on each layer and its reason."""
    rows = (FOLDER / name).read_text().splitlines()
    return {
        name: {"verdict": verdict, "because": because}
        for name, verdict, because in (row.split(" | ") for row in rows)
    }


def git(*arguments: str) -> str:
    """Return what git prints."""
    command = ["git", "-C", str(FOLDER), *arguments]
    return subprocess.run(  # noqa: S603
        command, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    """Check all, compare with the verdicts, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verdicts", default="verdicts_mended.txt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    verdicts, rows = judged(arguments.verdicts), []
    for group in ("bugs", "controls"):
        for case in getattr(layers, group.upper()):
            report = short(said(case))
            print(f"=== {case.name}", *report, "", sep="\n")
            row = {"layer": case.name, "group": group, **verdicts[case.name]}
            rows.append({**row, "said": report})
    score = Counter(f"{r['group']}: {r['verdict']}" for r in rows)
    print(dict(score))
    if arguments.out:
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "commit": git("rev-parse", "HEAD"),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("normbook", "numpy", "torch")},
            },
            "score": dict(score),
            "layers": rows,
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
