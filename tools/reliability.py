"""Show for each goal of reliability the command that shows it, and what it found.

    python tools/reliability.py              # the goals that take little: 10 minutes
    python tools/reliability.py --all        # all of them: hours
    python tools/reliability.py D3 S1        # these

What was found is kept in `book/recorded/reliability.json`, from which the page *How it
is checked* makes its table. A goal that was never run says so: no figure is typed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "book/recorded/reliability.json"
QUICK = 2.0  # minutes: what takes longer runs with --all
CHANGE, WEEK, HAND = "every change", "every week", "by hand"
PYTEST = "python -m pytest -q -p no:cacheprovider "
NBVAL = PYTEST + "--nbval -n 2 --dist loadfile book"


class Goal(NamedTuple):
    """A goal and what shows it.

    Of a command that runs tests, `found` is a text with {passed} and {total}; of others
    it is a pattern, and what it matches in the output is the figure: without one only
    that all of it went well. Without a command a goal is open: nothing shows it.
    """

    says: str
    command: str = ""
    found: str = ""
    minutes: float = 1.0  # on two free cores
    where: str = HAND
    times: int = 1


STEPS = "tests/test_make_steps.py"
FILES = "tests/data/test_files.py"
GOALS = {
    "N1": Goal(
        "Notebooks are green again: all twice, strictly, and in N2 and N6 seven times",
        NBVAL,
        "{passed} of {total} checks of cells, without a repeat",
        25,
        times=2,
    ),
    "N2": Goal(
        "Notebooks print the same on other CPUs and with more threads",
        "make cpus",
        r"(?:\d+ failed, )?\d+ passed|avx512 left out",
        70,
        where=WEEK,
    ),
    "N3": Goal(
        "Every cell has run, in order; nothing is skipped, or a reason is written",
        PYTEST + "tests/test_notebook_rules.py tests/test_notebooks.py",
        "{passed} of {total} notebooks and planted defects",
        0.5,
        CHANGE,
    ),
    "N4": Goal(
        "Figures drawn wrongly are noticed: all, but for some of the rough ones",
        "make sabotage",
        r"\w.*: \d+ of \d+ seen",
        40,
        WEEK,
    ),
    "N5": Goal(
        "A kernel that is killed, hangs or raises is red within two minutes",
        PYTEST + STEPS + " -k 'nbval or hanging or timeout or asserts'",
        "{passed} of {total} planted faults and sound notebooks judged rightly",
        1,
        CHANGE,
    ),
    "N6": Goal(
        "Notebooks run in an empty home, without network, in a path with odd letters",
        "tools/cold_start.sh",
        r"cold start: .*",
        5,
    ),
    "N7": Goal(
        "A decimal of two figures or more in a text is what an output prints or draws",
        "python tools/prose_numbers.py",
        r"\d+ of \d+ decimals.*",
        0.2,
        CHANGE,
    ),
    "B1": Goal(
        "A cell that raises makes the build red, the first time and the second",
        PYTEST + STEPS + " -k 'builds or build_red or nothing_is_red'",
        "{passed} of {total} builds judged rightly",
        1,
        CHANGE,
    ),
    "B2": Goal(
        "The build needs no network",
        "python tools/builds.py --kills 0",
        r"clean builds: .* differ",
        7,
    ),
    "B3": Goal(
        "Two builds are equal byte by byte, and so is one after others were killed",
        "python tools/builds.py --kills 20",
        r"clean builds: .* differ|kills: .*?equal|"
        r"(?:full disk|no permission): exit \d+, \d+ line, \w+ left",
        25,
        WEEK,
    ),
    "B4": Goal(
        "A full disk, a closed folder, a wrong Python: one clear line",
        PYTEST + STEPS + " -k 'setup_says or setup_leaves or cannot_write'",
        "{passed} of {total} faults told in one line",
        0.5,
        CHANGE,
    ),
    "L1": Goal(
        "The layers agree with those of PyTorch: values, gradients, state, copies",
        PYTEST + "tests/layers/test_base.py",
        "{passed} of {total} comparisons",
        1,
        CHANGE,
    ),
    "L2": Goal(
        "On hard inputs they lose no more than ten times what PyTorch loses",
        PYTEST + "tests/layers/test_base.py -k hard_inputs",
        "{passed} of {total} layers and inputs",
        0.3,
        CHANGE,
    ),
    "L3": Goal(
        "Where the package is changed in one place, its tests notice",
        "python tools/mutants.py --record benchmarks/recorded/mutants.json",
        r"mutants: .*",
        120,
    ),
    "L4": Goal(
        "Properties hold for inputs that are drawn at random",
        PYTEST + "tests -m hypothesis",
        "{passed} of {total} tests of properties",
        2,
        CHANGE,
    ),
    "L5": Goal(
        "Wrong calls are refused, and told what was wanted and what came",
        PYTEST + "tests -k 'refused or refuses or is_told'",
        "{passed} of {total} tests of wrong calls",
        3,
        CHANGE,
    ),
    "D1": Goal(
        "A download is kept only if its SHA-256 is right; bad servers cost seconds",
        PYTEST + FILES + " -k 'mirror or socket or host or address or full_disk'",
        "{passed} of {total} hostile servers and disks",
        1,
        CHANGE,
    ),
    "D2": Goal(
        "What is killed leaves nothing corrupt, and goes on to an equal result",
        PYTEST + FILES + " tests/lab -k 'kill or disturbed'",
        "{passed} of {total} kills",
        2,
        CHANGE,
    ),
    "D2 long": Goal(
        "The same under torchrun, where one of two processes is killed",
        "python tools/killed_runs.py",
        r"\d+ of \d+ experiments.*",
        5,
    ),
    "D3": Goal(
        "Hostile archives are contained: links, bombs, damage",
        PYTEST + FILES + " -k 'archive or bomb'",
        "{passed} of {total} archives contained",
        0.5,
        CHANGE,
    ),
    "D4": Goal(
        "No file is loaded by running what is in it",
        PYTEST + "tests/test_package.py tests/data/test_cifar10.py -k 'pickle'",
        "{passed} of {total} checks",
        0.3,
        CHANGE,
    ),
    "S1": Goal(
        "Workflows pin what they run and are permitted nothing that they do not need",
        PYTEST + "tests/test_workflows.py",
        "{passed} of {total} checks",
        0.2,
        CHANGE,
    ),
    "S2": Goal(
        "All is installed from a lock, each file by its hash",
        "make locked",
        r"\d+ passed, \d+ skipped",
        5,
        WEEK,
    ),
    "S2 audit": Goal(
        "What is installed has no known fault",
        "make audit",
        r"No known vulnerabilities.*",
        5,
        WEEK,
    ),
    "P1": Goal(
        "Every page works in a browser under a strict content policy",
        "make test-site",
        minutes=10,
        where=WEEK,
    ),
    "P2": Goal(
        "No page asks another host for anything, and no link leads nowhere",
        "make book && " + PYTEST + "tests/test_pages.py",
        "{passed} of {total} checks of the built pages",
        4,
        CHANGE,
    ),
}


def counts(output: str) -> tuple[int, int]:
    """Return how many tests passed, and how many ran, by the last lines of pytest."""
    found = dict.fromkeys(("passed", "failed", "error"), 0)
    for number, word in re.findall(r"(\d+) (passed|failed|error)", output):
        found[word] += int(number)
    return found["passed"], sum(found.values())


def figure(goal: Goal, outputs: list[str]) -> str:
    """Return what the outputs of a command show."""
    if "pytest" in goal.command:
        each = [counts(output) for output in outputs]
        passed, total = (sum(column) for column in zip(*each, strict=True))
        if not total:
            return "no test was run"
        return goal.found.format(passed=passed, total=total)
    if not goal.found:
        return "no fault"
    found = re.findall(goal.found, "\n".join(outputs).strip())
    return "; ".join(found) or "nothing was found"


def show(goal: Goal) -> dict[str, Any]:
    """Run the command of a goal and return what is kept of it."""
    began = time.monotonic()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    outputs, is_good = [], True
    for _ in range(goal.times):
        done = subprocess.run(
            ["bash", "-c", goal.command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        outputs.append(done.stdout)
        is_good &= done.returncode == 0
    if not is_good:
        print("\n".join(outputs)[-100_000:], file=sys.stderr)
    shown = figure(goal, outputs)
    return {
        "is_good": is_good and shown not in ("no test was run", "nothing was found"),
        "shown": shown,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
        },
    }


def commit() -> str:
    """Return the commit, with a mark where files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def entry(key: str, seen: dict[str, Any]) -> dict[str, Any]:
    """Return what the record holds of a goal, with what was seen if it ran."""
    goal = GOALS[key]
    command = goal.command or None
    if seen.get("command") != command:  # what was seen was shown by something else
        seen = {}
    state = "run" if seen else ("not run" if command else "open")
    told = {"goal": key, "says": goal.says, "command": command, "where": goal.where}
    return seen | told | {"state": seen.get("state", state)}


def main() -> int:
    """Run goals and keep what they showed; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("goals", nargs="*", metavar="GOAL")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.goals) - set(GOALS):
        parser.error(f"GOAL must be one of {', '.join(GOALS)}, got {unknown.pop()}")
    chosen = options.goals or [
        key for key, goal in GOALS.items() if options.all or goal.minutes <= QUICK
    ]
    failed = 0
    for key in chosen:
        goal = GOALS[key]
        if not goal.command:
            continue
        found = show(goal)
        state = "shown" if found.pop("is_good") else "failed"
        # Read now: another run may have kept something meanwhile.
        kept = json.loads(RECORD.read_text("utf-8"))
        seen = {old["goal"]: old for old in kept["goals"]}
        seen[key] = {"command": goal.command, "state": state, **found}
        failed += state == "failed"
        print(f"{key} {state}: {found['shown']} ({found['minutes']} min)", flush=True)
        goals = [entry(name, seen.get(name, {})) for name in GOALS]
        text = json.dumps({"goals": goals}, indent=1, ensure_ascii=False)
        RECORD.write_text(text + "\n", encoding="utf-8")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
