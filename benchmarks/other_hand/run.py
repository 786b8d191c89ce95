"""Compare what the checks say of slips made by another hand with what they should.

What a right report says of each layer was written to `expected.txt` before the checks
ran on it; this prints for how many the report says so. `make other-hand` runs it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import re
import sys
import time
import warnings
from collections import Counter
from typing import Any, NamedTuple

import layers
import torch

from normbook.checks import audit, check_norm_layer

HERE = pathlib.Path(__file__).parent
KINDS = ("right", "wrong reason", "missed", "quiet", "true alarm", "false alarm")
GOOD = ("right", "quiet", "true alarm")


class Row(NamedTuple):
    """What is expected of one layer or model."""

    part: str
    name: str
    arguments: str
    settings: str
    issue: str
    says: str
    words: str


def expected(text: str) -> list[Row]:
    """Read the table."""
    rows, part = [], ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            part = line.strip("[]")
        elif not line.startswith("#"):
            rows.append(Row(part, *(cell.strip() for cell in line.split("|", 5))))
    return rows


def alarms(row: Row) -> list[str]:
    """Return what the check says against a layer, each with its reason."""
    torch.manual_seed(0)
    made = eval(  # noqa: S307 - our table
        f"kind({row.arguments})", {"kind": getattr(layers, row.name)}
    )
    settings = eval(f"dict({row.settings})", {})  # noqa: S307 - our table
    if row.part == "models":
        for _ in range(settings.get("trained", 0)):
            made(_batch(**settings))
        found = audit(made, _batch(**settings), quiet=True)
        return [
            f"{h.level}: {h.what}: {h.number:.2g} at {h.place}. {h.reason} {h.cure}"
            for h in found.harms
        ]
    report = check_norm_layer(made, quiet=True, **settings)
    return [
        f"{f.verdict}: {f.name}: {f.other} {f.reason} {f.cure}"
        for f in report.findings
        if f.verdict in ("wrong", "other")
        or f.other not in ("", "redundant biases")  # those of torch.nn.LSTM, too
    ]


def _batch(*, ids: bool = False, **_: Any) -> torch.Tensor:
    """Draw an input of a model; sequences of any length are padded with 0."""
    if not ids:
        return torch.randn(64, 16)
    lengths = torch.randint(3, 17, (64, 1))
    return torch.randint(1, 50, (64, 16)) * (torch.arange(16) < lengths)


def judged(row: Row) -> dict[str, Any]:
    """Check one; return what was said, and whether that was expected."""
    start = time.process_time()
    try:
        said = alarms(row)
    except (TypeError, ValueError) as error:
        said = [f"refused: {error}"]
    seconds = round(time.process_time() - start, 2)
    if row.words.startswith("-"):  # what is said behind it is true, as was seen later
        true = row.words[1:].strip()
        against = [t for t in said if t.startswith(("wrong", "refused"))]
        wrong = [text for text in against if not true or not re.search(true, text)]
        verdict = "false alarm" if wrong else "true alarm" if against else "quiet"
    elif not said:
        verdict = "missed"
    elif any(re.search(row.words, s, re.IGNORECASE | re.DOTALL) for s in said):
        verdict = "right"
    else:
        verdict = "wrong reason"
    return {
        "part": row.part,
        "name": row.name,
        "issue": row.issue,
        "should_say": row.says,
        "verdict": verdict,
        "said": said,
        "seconds": seconds,
    }


def main() -> int:
    """Run; return 1 where a verdict is not good."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, help="where the record goes")
    parser.add_argument("--only", default="", help="part of the name of a class")
    parser.add_argument(
        "--table", default="expected.txt", help="or second.txt, third.txt"
    )
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = expected((HERE / chosen.table).read_text())
    results = [judged(row) for row in rows if chosen.only in row.name]
    for one in results:
        print(f"{one['verdict']}: {one['name']}, {one['seconds']} s")
        if one["verdict"] not in GOOD or chosen.only:
            print(f"  should say: {one['should_say']}")
            print(*(f"  says: {said}" for said in one["said"]), sep="\n")
    print(f"\n{'':12} " + " ".join(f"{kind:>12}" for kind in KINDS))
    for part in [*dict.fromkeys(row.part for row in rows), None]:
        of = [r["verdict"] for r in results if part in (None, r["part"])]
        counts = " ".join(f"{Counter(of)[kind]:12}" for kind in KINDS)
        print(f"{part or 'together':12} {counts}")
    if chosen.out:
        record = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "layers": results,
        }
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(r["verdict"] not in GOOD for r in results))


if __name__ == "__main__":
    sys.exit(main())
