"""The shape of the package: which way imports point, and what they cost."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
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
    "extra",
    "arguments",
    "atomic_file",
    "looks",
    "arrays",
    "normalize",
    "batch_norm",
    "folding",
    "layer_norm",
    "query_key_norm",
    "through_time",
    "lstm",
    "layer_norm_lstm",
    "layer_norm_rnn",
    "group_norm",
    "conditional_norm",
    "weight_norm",
    "dynamic_tanh",
    "adaptive_clipping",
    "axes",
    "running_statistics",
    "conventions",
    "comparison",
    "gradient_check",
    "drawn",
    "figures",
    "device",
    "data",
    "layers",
    "diagnostics",
    "exercises",
    "checks",
    "pytest_plugin",
    "lab",
    "experiments",
    "doctor",
    "__main__",
]
MAY_IMPORT = {
    "torch": {"layers", "diagnostics", "checks", "lab", "experiments"},
    "matplotlib": {"drawn", "figures"},
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


def test_the_list_of_the_modules_of_the_checks_is_in_the_order_of_imports() -> None:
    source = (ROOT / "checks/__init__.py").read_text()
    order = re.findall("^#   ([a-z_.]+) ", source, re.MULTILINE)
    names = [f"normbook.checks.{name}" for name in order]
    parts = {name.rpartition(".")[0] for name in names}
    inside = {name for name in MODULES if name.startswith("normbook.checks.")}
    assert {*names} == inside - parts
    for k, name in enumerate(names):
        assert not imports(name) & {*names[k:]}, name


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
    usual = {AssertionError, ModuleNotFoundError, RuntimeError, ValueError}
    outside = {
        name
        for name, mro in errors.items()
        if NormbookError not in mro or not usual & {*mro}
    }
    # The signals between the checks of a layer or a model, and the root.
    assert outside == {
        "normbook.checks.calls.LayerError",
        "normbook.checks.claim.DoesNotApply",
        "normbook.checks.claim.NotTested",
        "normbook.checks.model.runs.OwnError",
        "normbook.checks.recurrent.forms.Ragged",
        "normbook.errors.NormbookError",
    }


def test_experiments_are_listed_without_drawing() -> None:
    """Pictures are for `plot`; each process of a run would load what draws them."""
    code = (
        "from normbook.experiments.catalogue import EXPERIMENTS; import sys; "
        "assert all(name == found.name for name, found in EXPERIMENTS.items()); "
        "print({'normbook.figures', 'matplotlib'} & {*sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "set()"


# Where pickle reads what the same program has written: between its processes, and of
# the layer that is looked at.
OWN = {"lab/processes.py", "checks/claims/state.py"}
# What could run what is in a file, and how it may be called, if at all.
LOADERS = {
    "torch.load": "weights_only=True",
    "np.load": "allow_pickle=False",
    "pickle.load": None,
    "pickle.loads": None,
    "cloudpickle.load": None,
    "cloudpickle.loads": None,
    "torch.hub.load": None,
    "torch.hub.load_state_dict_from_url": None,
    "load_state_dict_from_url": None,
    "joblib.load": None,
}


def pickles(source: str) -> list[str]:
    """Return the calls that read a file by running what is in it."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (name := ast.unparse(node.func)) in LOADERS
        and LOADERS[name] not in [ast.unparse(word) for word in node.keywords]
    ]


def test_no_file_is_read_by_pickle() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        if str(path.relative_to(ROOT)) not in OWN:
            assert pickles(path.read_text("utf-8")) == [], path


@pytest.mark.parametrize(
    "call",
    [
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "pickle.load(file)",
        "torch.hub.load_state_dict_from_url(url)",
    ],
)
def test_a_call_of_pickle_is_noticed(call: str) -> None:
    assert pickles(f"def f(): return {call}") == [call]
    assert pickles("torch.load(file, weights_only=True)") == []


@pytest.mark.parametrize("module", LIBRARY)
def test_names_in_all_exist(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [n for n in getattr(loaded, "__all__", ()) if not hasattr(loaded, n)] == []


# Run where no package of the extra `book` can be imported.
WITHOUT_THE_BOOK = """
import importlib.abc, sys

class Nowhere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(name, name=name.partition(".")[0])

sys.meta_path.insert(0, Nowhere())
"""


def the_book() -> set[str]:
    """What the modules of the extra `book` are called in an import."""
    extras = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    names = {
        re.split("[>=<]", line)[0] for line in extras["optional-dependencies"]["book"]
    }
    assert "matplotlib" in names
    return names - {"scikit-learn"} | {"sklearn"}


def without_the_book(code: str) -> str:
    program = WITHOUT_THE_BOOK.replace("{blocked}", repr(the_book())) + code
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_formulas_layers_checks_and_folding_need_no_package_of_the_book() -> None:
    needs = {"drawn", "figures", "lab", "experiments"}
    small = [m for m in LIBRARY if part(m) not in needs]
    assert (
        without_the_book(
            f"""
import importlib
for module in {small}:
    importlib.import_module(module)
import torch
from torch import nn
from normbook.checks import audit, check_norm_layer
from normbook.layers.folding import fold_batch_norm
check_norm_layer(nn.BatchNorm1d(4), shape=(8, 4), quiet=True).raise_if_failed()
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
audit(model, torch.randn(32, 4), quiet=True)
fold_batch_norm(model.eval())
print("done")
"""
        )
        == "done"
    )


@pytest.mark.parametrize(
    ("code", "package"),
    [
        ("import normbook.figures", "matplotlib"),
        ("import normbook.lab.record", "fastjsonschema"),
        ("import normbook.lab.runner", "fastjsonschema"),
        ("import normbook.lab.processes", "cloudpickle"),
        ("from normbook.data import digits; digits.load()", "sklearn"),
        ("from normbook.data import files; files.cache_folder()", "platformdirs"),
    ],
)
def test_a_part_that_needs_the_book_says_what_to_install(
    code: str, package: str
) -> None:
    told = without_the_book(
        f"""
from normbook.errors import MissingPackageError
try:
    exec({code!r})
except MissingPackageError as error:
    print(error)
"""
    )
    assert f"needs the package {package}, " in told
    assert told.endswith("pip install 'normbook[book]'")


def test_a_command_that_needs_the_book_says_so_in_one_line() -> None:
    told = without_the_book(
        """
import contextlib, io
from normbook.__main__ import main
with contextlib.redirect_stderr(io.StringIO()) as told:
    code = main(["experiments"])
print(code, told.getvalue())
"""
    )
    assert told.startswith("1 normbook: this part of normbook needs the package ")
    assert len(told.splitlines()) == 1


# --- the plugin of pytest


def test_the_fixture_of_the_plugin_fails_with_the_report_of_a_broken_layer(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_layers.py").write_text(
        """
import torch
from torch import nn

class Wrong(nn.LayerNorm):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)

def test_right(assert_norm_layer):
    assert_norm_layer(nn.LayerNorm(8), (4, 8))

def test_wrong(assert_norm_layer):
    assert_norm_layer(Wrong(8), shape=(4, 8))
"""
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-c", "/dev/null", "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in run.stdout
    assert "FAILS" in run.stdout
    assert "raise_if_failed" not in run.stdout  # the report, not the way to it


def test_the_plugin_costs_pytest_no_torch() -> None:
    code = "import normbook.pytest_plugin, sys; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
