"""Change the package in one place at a time, and see whether its tests notice.

    python tools/mutants.py     # 10 changes of each below, 20 of folders at the top
    python tools/mutants.py figures lab/record --count 3 --seed 7
    python tools/mutants.py --record benchmarks/recorded/mutants.json

A change exchanges an operator, a comparison or a truth value, moves a number, drops a
call or a returned value, or reads a condition the other way round. It is made in a copy
of the package, and the tests of the module run with that. A line for each change, and
one for each module; the exit status is 1 where fewer than 95 % of those that a test
could notice were noticed, or where one lives and nobody wrote down why.

All takes hours. A record keeps what was found of each module, with the changes that
lived; a module that has not changed since, nor its tests, is not tried again. Why a
change of the record lived stands in `tools/mutants.txt`, and whether any test could
notice it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from normbook import atomic_file

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/normbook"
REASONS = ROOT / "tools/mutants.txt"
# A change may make an endless loop, or a wait without an end: seconds beside a multiple
# of what the tests take, of a processor and by the clock.
LOOP, WAIT = 60, 300
# What a page shows of a record, and its runs, of which the first steps are repeated.
OF_RECORDS = (
    "tests/experiments/test_shown_figures.py",
    "tests/experiments/test_records.py",
)
# What is wrong in a formula is noticed where it is compared with its definition, with
# its gradient by differences, or with a layer.
FORMULAS = [
    *("tests/test_gradient_check.py", "tests/test_formulas.py"),
    *("tests/test_scaled_weights.py", "tests/layers/test_base.py"),
]
OF_LAYERS = (
    *("planted_bugs", "diagnosis", "slips_of_others", "slips_unseen", "norm_layer"),
    *("explanations", "recognition", "wild_layers", "definitions", "calls", "copies"),
    *("another_way", "any_layer", "backward", "condition_claims", "padding", "weights"),
    *("relatives", "relative_slips"),
)
TESTS = {
    "figures": ["tests/test_figures.py"],
    "__main__": ["tests/test_main.py", "tests/lab/test_command.py"],
    **{
        f"lab/{name}": [f"tests/lab/test_{name}.py"]
        for name in (
            *("architectures", "checkpoints", "data_parallel", "digits_mlp"),
            *("experiment", "failures", "processes", "provenance", "ranks"),
            "tuning",
        )
    },
    "lab/runner": [
        f"tests/lab/test_{name}.py" for name in ("runner", "replay", "checkpoints")
    ],
    **{
        f"experiments/{name}": [
            *(f"tests/experiments/test_{name}.py", *OF_RECORDS),
            *("-k", f"not test_records or {name.replace('batch_size', 'batch_')}"),
        ]
        for name in (
            *("batch_size", "conv_norms", "deep_linear", "handwriting", "published"),
            *("reading", "sigmoid_net", "smoothness_rates", "transformer", "vgg"),
            *("vowels", "which_hat"),
        )
    },
    **{
        f"experiments/{name}": [
            *("tests/experiments/test_networks_without_norm.py", *OF_RECORDS),
            *("-k", f"not test_records or {name}"),
        ]
        for name in ("without_norm", "without_norm_attention")
    },
    # What a record tells of a search is tested beside the search.
    "lab/record": ["tests/lab/test_record.py", "tests/lab/test_tuning.py"],
    "experiments/measures": [
        "tests/experiments/test_what_is_measured.py",
        "tests/experiments/test_networks_without_norm.py",
        "tests/experiments/test_shown_figures.py",
        *(f"tests/experiments/test_{name}.py" for name in ("batch_size", "vgg")),
    ],
    **{
        f"data/{name}": [f"tests/data/test_{name}.py", "tests/data/test_loaders.py"]
        for name in (
            *("babi", "cifar10", "cloze", "digits", "files", "mnist"),
            *("sequences", "strokes", "synthetic"),
        )
    },
    "data/vowels": ["tests/data/test_japanese_vowels.py"],
    "data/catalogue": ["tests/data/test_catalogue.py", "tests/data/test_files.py"],
    **{
        name: [f"tests/test_{name}.py"]
        for name in (
            *("adaptive_clipping", "atomic_file", "axes", "conventions", "device"),
            "drawn",
        )
    },
    # A copy of the package is no checkout.
    "doctor": ["tests/test_doctor.py", "-k", "not a_checkout_is_where"],
    **{
        name: [f"tests/test_{name}.py", *FORMULAS]
        for name in (
            *("batch_norm", "conditional_norm", "dynamic_tanh", "group_norm"),
            *("layer_norm", "lstm", "normalize", "query_key_norm"),
            *("running_statistics", "weight_norm"),
        )
    },
    **{
        name: ["tests/test_lstm.py", *FORMULAS]
        for name in ("layer_norm_lstm", "layer_norm_rnn")
    },
    "through_time": ["tests/test_lstm.py", "tests/layers/test_lstm_layer.py"],
    **dict.fromkeys(("arrays", "comparison", "gradient_check"), FORMULAS),
    "folding": ["tests/test_folding_formulas.py", "tests/layers/test_folding.py"],
    "exercises": ["tests/test_exercise_answers.py", "tests/test_exercises.py"],
    **{name: [f"tests/{name}"] for name in ("diagnostics", "layers")},
    **{
        f"checks/{name}": [f"tests/checks/test_{test}.py" for test in tests]
        for name, tests in {
            "model": (
                *("whole_model", "models_unlike", "model_slips", "model_errors"),
                "model_reach",
            ),
            "recurrent": (
                *("recurrent", "recurrent_layers", "recurrent_ways"),
                "recurrent_handling",
            ),
            **dict.fromkeys(("claims", "layer", "slips", "norm_layer"), OF_LAYERS),
            "unusual": OF_LAYERS[::-1],
            "measures": ("measures",),
            "report": ("report",),
        }.items()
    },
}
MORE = 2  # times as many changes of a folder at the top
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
}
Change = Callable[[], object]


def changes(tree: ast.AST) -> Iterator[tuple[int, str, Change]]:
    """Yield the line, a description and the making of each change of a module."""
    for node in runs(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
            new = SWAPPED[type(node.op)]()
            text = f"{type(node.op).__name__} becomes {type(new).__name__}"
            yield line, text, partial(setattr, node, "op", new)
        elif isinstance(node, ast.Compare):
            new = SWAPPED[type(node.ops[0])]()
            text = f"{type(node.ops[0]).__name__} becomes {type(new).__name__}"
            yield line, text, partial(node.ops.__setitem__, 0, new)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            flipped = not node.value
            text = f"{node.value} becomes {flipped}"
            yield line, text, partial(setattr, node, "value", flipped)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            other = node.value + 1
            text = f"{node.value} becomes {other}"
            yield line, text, partial(setattr, node, "value", other)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            test = ast.UnaryOp(ast.Not(), node.test)
            text = f"not ({ast.unparse(node.test)})"
            yield line, text, partial(setattr, node, "test", test)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield line, "returns None", partial(setattr, node, "value", None)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            nothing = ast.Constant(None)
            text = f"without {ast.unparse(node.value)[:50]}"
            yield line, text, partial(setattr, node, "value", nothing)


def runs(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what a program runs: no annotations, and nothing for types alone."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            is_for_types = isinstance(node, ast.If) and (
                ast.unparse(node.test) == "TYPE_CHECKING"
            )
            if isinstance(node, ast.AST) and not is_for_types:
                yield node
                yield from runs(node)


def verdict(package: Path, tests: list[str], took: float = 900) -> str:
    """Run tests with a copy of the package; tell whether they noticed.

    They notice an endless loop, too, as they take far longer than they took before.
    """
    seconds = LOOP + 3 * int(took)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, *tests],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (seconds, seconds)),
    )
    try:
        wait = WAIT + 10 * took
        return "LIVES" if process.wait(wait) == 0 else "noticed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "too slow"


def try_module(name: str, count: int, seed: int) -> dict[str, Any]:
    """Try changes of a module; return how many were noticed, and which lived."""
    found: dict[str, Any] = {"tried": 0, "lives": []}
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch, "normbook")
        shutil.copytree(PACKAGE, package)
        sources = {path: path.read_text("utf-8") for path in modules(package / name)}
        count *= MORE if (package / name).is_dir() and "/" not in name else 1
        places = [
            (path, place)
            for path, source in sources.items()
            for place in range(len(list(changes(ast.parse(source)))))
        ]
        for path, source in sources.items():
            path.write_text(ast.unparse(ast.parse(source)), encoding="utf-8")
        began = time.monotonic()
        if verdict(package, TESTS[name]) != "LIVES":
            sys.exit(f"{name}: its tests fail without any change; mend that first")
        took = time.monotonic() - began
        drawn = random.Random(f"{name} {seed}")  # noqa: S311 - no secret
        for path, place in sorted(drawn.sample(places, min(count, len(places)))):
            tree = ast.parse(sources[path])
            line, text, change = list(changes(tree))[place]
            change()
            ast.fix_missing_locations(tree)
            path.write_text(ast.unparse(tree), encoding="utf-8")
            seen = verdict(package, TESTS[name], took)
            path.write_text(sources[path], encoding="utf-8")
            where = f"{path.relative_to(package)}, line {line}, {text}"
            found["tried"] += 1
            if seen == "LIVES":
                found["lives"].append(where)
            print(f"  {seen}: {where}", flush=True)
    return found


def modules(path: Path) -> list[Path]:
    """Return the files of Python in a folder, or that of a module, in order.

    Without those whose tests need an environment of their own (`make triton`).
    """
    files = (file for file in path.rglob("*.py") if "triton" not in file.name)
    return sorted(files) or [path.with_suffix(".py")]


def digest(name: str) -> str:
    """Return the SHA-256 of a module and the tests that are to notice its changes."""
    named = (test for test in TESTS[name] if test.startswith("tests/"))
    tests = (ROOT / test.split("::")[0] for test in named)
    files = [file for path in (PACKAGE / name, *tests) for file in modules(path)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def main() -> int:
    """Try changes of modules; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", default=[*TESTS], metavar="MODULE")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, metavar="FILE")
    options = parser.parse_args()
    kept: dict[str, Any] = {}
    if options.record and options.record.exists():
        kept = json.loads(options.record.read_text(encoding="utf-8"))
    for name in options.modules:
        of = {"of": digest(name), "count": options.count, "seed": options.seed}
        if kept.get(name, {}).items() >= of.items():
            print(f"{name}: as it was", flush=True)
        else:
            kept[name] = of | try_module(name, options.count, options.seed)
        if options.record:
            text = json.dumps(dict(sorted(kept.items())), indent=1) + "\n"
            atomic_file.write(options.record, text.encode())
        alive, count = len(kept[name]["lives"]), kept[name]["tried"]
        print(f"{name}: {count - alive} of {count} noticed", flush=True)
    text, is_enough = summary([kept[name] for name in options.modules])
    print(f"mutants: {text}, seed {options.seed}")
    return int(not is_enough)


def reasons() -> dict[str, str]:
    """Return why changes lived, by their places.

    A reason that begins with "same: " tells why no test could notice the change.
    """
    lines = REASONS.read_text("utf-8").splitlines() if REASONS.exists() else []
    return dict(
        line.split(" | ", 1) for line in lines if line and not line.startswith("#")
    )


def summary(found: list[dict[str, Any]]) -> tuple[str, bool]:
    """Return what was found of all modules in words, and whether it is enough."""
    told = reasons()
    lives = [place for module in found for place in module["lives"]]
    tried = sum(module["tried"] for module in found)
    same = sum(told.get(place, "").startswith("same: ") for place in lives)
    unknown = sum(place not in told for place in lives)
    noticed, possible = tried - len(lives), tried - same
    text = f"{noticed} of {tried} noticed, {same} cannot be"
    if unknown:
        text += f", {unknown} live without a reason"
    return text, not unknown and noticed >= 0.95 * possible


if __name__ == "__main__":
    sys.exit(main())
