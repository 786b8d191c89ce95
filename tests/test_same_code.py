"""The code of the page is the code of the package.

Where a chapter derives a function that the package holds too, both are the same text,
up to docstring, comments and annotations. Here the pairs are listed and their syntax
trees compared.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

BOOK = Path(__file__).parent.parent / "book"

SHIFT = "diagnostics.internal_covariate_shift"
# Chapter, module of the package, function. In both it has the same name.
PAIRS: list[tuple[str, str, str]] = [
    ("batch_norm_gradient", "normalize", "through"),
    ("layer_norm_gradient", "normalize", "through"),
    ("layer_norm_gradient", "normalize", "through_scale"),
    ("layer_norm_gradient", "normalize", "centre"),
    ("layer_norm_gradient", "normalize", "scale"),
    ("choosing_axes", "normalize", "broadcast_along"),
    ("choosing_axes", "normalize", "affine"),
    ("choosing_axes", "normalize", "affine_gradients"),
    ("choosing_axes", "normalize", "forward"),
    ("choosing_axes", "normalize", "backward"),
    ("choosing_axes", "group_norm", "split_channels"),
    ("lstm", "lstm", "step"),
    ("lstm", "lstm", "local_slopes"),
    ("lstm", "lstm", "step_backward"),
    ("layer_norm_lstm", "layer_norm_lstm", "hat"),
    ("layer_norm_lstm", "layer_norm_lstm", "through"),
    ("layer_norm_lstm", "layer_norm_lstm", "update"),
    ("layer_norm_lstm", "layer_norm_lstm", "step"),
    ("layer_norm_lstm", "layer_norm_lstm", "step_backward"),
    ("layer_norm_lstm", "layer_norm_lstm", "of_parameters"),
    ("moving_averages", "running_statistics", "averaged"),
    ("moving_averages", "running_statistics", "debiased"),
    ("split_batches", "running_statistics", "one_pass"),
    ("internal_covariate_shift", SHIFT, "quantile_shift"),
    ("internal_covariate_shift", SHIFT, "after_those_below"),
    ("smoothness", "diagnostics.smoothness", "effective_smoothness"),
    ("train_and_eval", "lab.failures", "observe"),
]


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """Functions of a module or a cell by name; where two have one name, the last."""
    return {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }


def in_chapter(chapter: str) -> dict[str, ast.FunctionDef]:
    notebook = nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4)
    found: dict[str, ast.FunctionDef] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and not cell.source.startswith("%"):
            for name, node in functions(cell.source).items():
                found.setdefault(name, node)  # exercises may break it later
    return found


def in_package(module: str) -> dict[str, ast.FunctionDef]:
    spec = find_spec(f"normbook.{module}")
    assert spec is not None
    assert spec.origin is not None
    return functions(Path(spec.origin).read_text(encoding="utf-8"))


def bare(function: ast.FunctionDef) -> str:
    """Return the syntax tree without docstring and annotations, as text."""
    function = ast.parse(ast.unparse(function)).body[0]  # type: ignore[assignment]
    function.returns = None
    arguments = function.args
    for argument in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
    ):
        argument.annotation = None
    if ast.get_docstring(function) is not None:
        del function.body[0]
    for node in ast.walk(function):
        for field, statements in ast.iter_fields(node):
            if field == "body" and isinstance(statements, list):
                node.body = [plain(one) for one in statements]  # type: ignore[attr-defined]
    return ast.dump(function)


def plain(statement: ast.stmt) -> ast.stmt:
    """Return ``name: type = value`` as ``name = value``."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return ast.Assign([statement.target], statement.value)
    return statement


@pytest.mark.parametrize(("chapter", "module", "name"), PAIRS)
def test_the_code_of_the_page_is_the_code_of_the_package(
    chapter: str, module: str, name: str
) -> None:
    assert bare(in_chapter(chapter)[name]) == bare(in_package(module)[name])


def test_only_docstring_comments_and_annotations_may_differ() -> None:
    page = "def f(x, eps=1):\n    y = x + eps  # why\n    return y"
    package = (
        'def f(x: int, eps: int = 1) -> int:\n    """Add."""\n    y: int = x + eps\n'
    )
    same, other = f"{package}    return y", f"{package}    return 2 * y"
    of_page = bare(functions(page)["f"])
    assert bare(functions(same)["f"]) == of_page
    assert bare(functions(other)["f"]) != of_page
    assert bare(functions(page.replace("x + eps", "eps + x"))["f"]) != of_page
    assert bare(functions(page.replace("eps=1", "eps=2"))["f"]) != of_page
