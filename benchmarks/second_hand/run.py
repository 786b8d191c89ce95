"""What the checks say of the layers by a second hand.

    python benchmarks/second_hand/run.py --out benchmarks/recorded/second_hand.json

Every layer is checked once, as its case says. ``verdicts.txt`` compares what is said
with ``expected.txt``, by hand: the record holds both, and the run fails if a report is
no longer the one that was judged.
"""

from __future__ import annotations

import argparse
import hashlib
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
VERDICTS = ("right", "wrong reason", "missed", "passes", "false alarm")


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


def short(report: str) -> str:
    """Leave out the cures and pages, and all lines of tests that pass."""
    kept = [
        line
        for line in report.splitlines()
        if not line.strip().startswith(("Cure:", "Book:"))
    ]
    return "\n".join(kept)


def judged() -> dict[str, dict[str, str]]:
    """Read the verdicts: name, verdict, reason and the report that they are about."""
    path = FOLDER / "verdicts.txt"
    rows = path.read_text().splitlines() if path.exists() else []
    keys = ("verdict", "because", "report")
    return {
        name.strip(): dict(zip(keys, map(str.strip, rest), strict=True))
        for name, *rest in (row.split("|") for row in rows if row.strip())
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    verdicts, rows, unknown = judged(), [], []
    for group in ("bugs", "controls"):
        for case in getattr(layers, group.upper()):
            report = short(said(case))
            digest = hashlib.sha256(report.encode()).hexdigest()[:12]
            verdict = verdicts.get(case.name, {})
            row = {"layer": case.name, "group": group, "said": report.splitlines()}
            rows.append({**row, **verdict, "report": digest})
            print(f"=== {case.name} {digest}\n{report}\n")
            if verdict.get("report") != digest:
                unknown.append(case.name)
    score = Counter(f"{r['group']}: {r.get('verdict', 'not judged')}" for r in rows)
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
    if unknown:
        raise SystemExit(f"to be judged (again): {', '.join(unknown)}")


if __name__ == "__main__":
    main()
