"""The shape of the package: which way imports point, and what they cost."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from compilers import MISSING

import normbook
from normbook.errors import NormbookError

ROOT = Path(normbook.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages([str(ROOT)], "normbook."))
LEFT_OUT = {"normbook.__main__", *(f"normbook.layers.{m}" for m in MISSING)}
LIBRARY = [m for m in MODULES if m not in LEFT_OUT]

# Lower layers never import higher ones.
ORDER = [
    "errors",
    "arguments",
    "atomic_file",
    "looks",
    "arrays",
    "normalize",
    "batch_norm",
    "folding",
    "layer_norm",
    "through_time",
    "lstm",
    "layer_norm_lstm",
    "layer_norm_rnn",
    "group_norm",
    "weight_norm",
    "axes",
    "running_statistics",
    "conventions",
    "comparison",
    "gradient_check",
    "figures",
    "device",
    "data",
    "layers",
    "diagnostics",
    "checks",
    "lab",
    "experiments",
    "doctor",
    "__main__",
]
MAY_IMPORT = {
    "torch": {"layers", "diagnostics", "checks", "lab", "experiments"},
    "matplotlib": {"figures"},
}


def imports(module: str, *, is_deep: bool = False) -> set[str]:
    """Modules imported when the module is loaded; if deep, inside functions too."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found: set[str] = set()
    tree = ast.parse(Path(spec.origin).read_text())
    for node in ast.walk(tree) if is_deep else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    rank = ORDER.index(part(module))
    for name in imports(module):
        if name.startswith("normbook.") and part(name) != part(module):
            assert ORDER.index(part(name)) < rank, f"{module} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows = {m: (imports(m, is_deep=True) - {m}) & {*MODULES} for m in MODULES}
    TopologicalSorter(arrows).prepare()  # CycleError names one


@pytest.mark.parametrize("module", MODULES)
def test_torch_and_matplotlib_are_imported_only_where_they_belong(module: str) -> None:
    for name in imports(module):
        allowed = MAY_IMPORT.get(name.split(".")[0])
        assert allowed is None or part(module) in allowed, f"{module} imports {name}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import normbook, sys; print({'numpy', 'torch', 'matplotlib'} & {*sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "set()"


def public(module: str) -> list[tuple[str, object]]:
    loaded = importlib.import_module(module)
    return [
        (f"{module}.{name}", value)
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module
        and (inspect.isfunction(value) or inspect.isclass(value))
    ]


@pytest.mark.parametrize("module", LIBRARY)
def test_everything_public_has_a_docstring(module: str) -> None:
    assert importlib.import_module(module).__doc__
    assert [name for name, value in public(module) if not inspect.getdoc(value)] == []


def test_errors_are_one_tree_and_each_has_a_builtin_type() -> None:
    errors = {
        name: value.__mro__
        for module in LIBRARY
        for name, value in public(module)
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    usual = {AssertionError, RuntimeError, ValueError}
    outside = {
        name
        for name, mro in errors.items()
        if NormbookError not in mro or not usual & {*mro}
    }
    # The signals between the checks of a layer, and the root.
    assert outside == {
        "normbook.checks.calls.LayerError",
        "normbook.checks.claim.DoesNotApply",
        "normbook.checks.claim.NotTested",
        "normbook.errors.NormbookError",
    }


def test_experiments_are_listed_without_drawing() -> None:
    """Pictures are for `plot`; each process of a run would load what draws them."""
    code = (
        "import normbook.experiments.catalogue, sys; "
        "print({'normbook.figures', 'matplotlib'} & {*sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("module", LIBRARY)
def test_names_in_all_exist(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [n for n in getattr(loaded, "__all__", ()) if not hasattr(loaded, n)] == []
