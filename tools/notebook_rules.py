"""The rules that every notebook of the book keeps, as functions that list violations.

``tests/test_notebooks.py`` demands that the lists are empty. The site build applies
`stored_as_run`, so that a page never shows a traceback or an output of other code.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import nbformat

Notebook: TypeAlias = Any  # nbformat.NotebookNode, which carries no types
Cell: TypeAlias = Any

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CELL_METADATA = (
    "mystnb",
    "numbers",
    "reason",
    "tags",
)  # everything else differs by editor
MAX_LINES = 15
MAX_COLUMNS = 76
MAX_PROSE = 90
MAX_BYTES = 1_000_000
MIN_ALT = 40
MIN_REASON = 4  # different words that say why an output is not compared
FIGURE = "application/vnd.normbook.figure+json"  # drawn.MIME
SECTIONS = (
    "You will",
    "You need",
    "Setup",
    "The problem, seen",
    "Definition",
    "By hand",
    "Derivation",
    "Checks",
    "Experiment",
    "What we know",
    "Takeaways",
    "Exercises",
)
REQUIRED_SECTIONS = ("You will", "Setup", "What we know", "Takeaways", "Exercises")
GLOBAL_SEEDS = (
    "np.random.seed",
    "numpy.random.seed",
    "torch.manual_seed",
    "random.seed",
)
CLOCKS = (
    "time.time(",
    "perf_counter(",
    "process_time(",
    "monotonic(",
    "datetime.now(",
    "%time",
    "%%time",
)


# --- the normal form


def pages(part: dict[str, Any]) -> Iterator[str]:
    """Yield the files of a part of ``_toc.yml``, those under a page behind it."""
    for page in part.get("chapters") or part.get("sections") or ():
        yield page["file"]
        yield from pages(page)


def pages_under_chapters(part: dict[str, Any]) -> list[str]:
    """Return the files of a part that stand under a chapter of it."""
    chapters = {page["file"] for page in part["chapters"]}
    return [page for page in pages(part) if page not in chapters]


def source_digest(notebook: Notebook) -> str:
    """Return the SHA-256 of the code, by which edits after the last run are seen."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def normalize(notebook: Notebook, stem: str) -> Notebook:
    """Return a copy without anything that differs from run to run or by editor."""
    result = copy.deepcopy(notebook)
    result.nbformat, result.nbformat_minor = 4, 5
    digest = notebook.metadata.get("normbook", {}).get("source_sha256", "")
    result.metadata = nbformat.from_dict(
        {
            "kernelspec": KERNEL,
            "language_info": {"name": "python"},
            "normbook": {"source_sha256": digest},
        }
    )
    for number, cell in enumerate(result.cells):
        cell.id = f"{stem}-{number:03d}"[-64:]
        cell.metadata = nbformat.from_dict(
            {key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata}
        )
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
    return result


def merge_streams(outputs: list[Any]) -> list[Any]:
    """Join neighbouring pieces of one stream: where they break is chance."""
    merged: list[Any] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.output_type == output.output_type == "stream"
            and last.name == output.name
        ):
            last.text += output.text
        else:
            merged.append(output)
    return merged


def dumps(notebook: Notebook) -> str:
    """Return the text of a notebook's file."""
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


# --- the rules: each takes a notebook and yields one sentence per violation


def code_cells(notebook: Notebook) -> Iterator[tuple[int, Cell]]:
    """Yield the code cells with their positions among all cells, from 0."""
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            yield position, cell


def tags(cell: Cell) -> list[str]:
    """Return a cell's tags."""
    return list(cell.metadata.get("tags", []))


def executed_in_order(notebook: Notebook) -> Iterator[str]:
    """Every code cell has run, from top to bottom, in a fresh kernel."""
    for count, (position, cell) in enumerate(code_cells(notebook), start=1):
        if cell.execution_count != count:
            yield (
                f"cell {position}: execution count is {cell.execution_count}, "
                f"must be {count}"
            )


def unchanged_since_run(notebook: Notebook) -> Iterator[str]:
    """The outputs were computed by the code that stands above them."""
    stored = notebook.metadata.get("normbook", {}).get("source_sha256")
    if stored != source_digest(notebook):
        yield "the code was changed after it was last run"


def no_errors_stored(notebook: Notebook) -> Iterator[str]:
    """No traceback is stored but where a cell announces one, and there it is."""
    for position, cell in code_cells(notebook):
        is_stored = any(output.output_type == "error" for output in cell.outputs)
        is_announced = "raises-exception" in tags(cell)
        if is_stored and not is_announced:
            yield f"cell {position}: an error is stored"
        if is_announced and not is_stored:
            yield f"cell {position}: tagged raises-exception, but no error is stored"


def no_stderr(notebook: Notebook) -> Iterator[str]:
    """No warning, progress bar or log line is stored."""
    for position, cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                yield f"cell {position}: wrote to stderr: {output.text[:60]!r}"


def outputs_present(notebook: Notebook) -> Iterator[str]:
    """A cell that ends on a value shows it, so that there is something to compare."""
    for position, cell in code_cells(notebook):
        if ends_on_value(cell.source) and not cell.outputs:
            yield f"cell {position}: ends on a value, but no output is stored"


def ends_on_value(source: str) -> bool:
    """Return whether the last statement shows a value or prints one."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a magic command; nbval runs it all the same
        return False
    if not body or not isinstance(body[-1], ast.Expr):
        return False
    value = body[-1].value
    if isinstance(value, ast.Call):  # f() may return None; these show something
        name = ast.unparse(value.func)
        return name in ("print", "plt.show", "display")
    return not isinstance(value, ast.Constant) or value.value is not None


def statements(cell: Cell) -> list[ast.stmt]:
    """Return the statements of a cell: none of one that is no plain Python."""
    with contextlib.suppress(SyntaxError):  # a magic command
        body: list[ast.stmt] = ast.parse(cell.source).body
        return body
    return []


def imports(cell: Cell) -> list[ast.stmt]:
    """Return the imports among the statements of a cell."""
    return [s for s in statements(cell) if isinstance(s, ast.Import | ast.ImportFrom)]


def one_import_cell(notebook: Notebook) -> Iterator[str]:
    """What a notebook needs stands in its first code cell, folded, and only there."""
    for number, (position, cell) in enumerate(code_cells(notebook)):
        if number > 0 and imports(cell):
            yield f"cell {position}: imports belong in the first code cell"
        elif 0 < len(imports(cell)) < len(statements(cell)):
            yield f"cell {position}: the cell of imports holds something else"
        elif imports(cell) and "hide-input" not in tags(cell):
            yield f"cell {position}: the cell of imports needs the tag hide-input"


def short_cells(notebook: Notebook) -> Iterator[str]:
    """A cell fits beside its explanation on a narrow page; imports are folded."""
    for position, cell in code_cells(notebook):
        lines = cell.source.splitlines()
        filled = sum(1 for line in lines if line.strip())
        if filled > MAX_LINES and not imports(cell):
            yield f"cell {position}: {filled} lines, at most {MAX_LINES}"
        for number, line in enumerate(lines, start=1):
            if len(line) > MAX_COLUMNS:
                yield (
                    f"cell {position}, line {number}: {len(line)} columns, "
                    f"at most {MAX_COLUMNS}"
                )


def nothing_skipped(notebook: Notebook) -> Iterator[str]:
    """Nbval compares every output, or a reason is written down."""
    for position, cell in notebook_cells(notebook):
        marks = {tag.lower().replace("_", "-") for tag in tags(cell)}
        # However indented, and with however many hashes: so nbval reads them.
        comments = re.findall(r"(?mi)^\s*#+\s*(NBVAL_\w+|PYTEST_\w+)", cell.source)
        marks |= {comment.lower().replace("_", "-") for comment in comments}
        if marks & {"nbval-skip", "pytest-validate-ignore-output", "skip-execution"}:
            yield f"cell {position}: is skipped; a skipped cell is an untested cell"
        reason = str(cell.metadata.get("reason", ""))
        if "nbval-ignore-output" in marks and len(set(reason.split())) < MIN_REASON:
            yield (
                f"cell {position}: its output is not compared and its metadata "
                f'give no "reason" of {MIN_REASON} words, got {reason!r}'
            )


def notebook_cells(notebook: Notebook) -> Iterator[tuple[int, Cell]]:
    """Yield all code cells (nbval looks at no others)."""
    return code_cells(notebook)


def figures_described(notebook: Notebook) -> Iterator[str]:
    """Every figure has a name, a caption and a text for those who cannot see it."""
    for position, cell in code_cells(notebook):
        pictures = sum(
            any(kind.startswith("image/") for kind in output.get("data", {}))
            for output in cell.outputs
        )
        if pictures == 0:
            continue
        if pictures > 1:
            yield f"cell {position}: {pictures} figures, one a cell"
        if "remove-cell" in tags(cell) or "remove-output" in tags(cell):
            yield f"cell {position}: draws a figure that nobody sees"
        settings = cell.metadata.get("mystnb", {})
        figure, image = settings.get("figure", {}), settings.get("image", {})
        caption, alt = figure.get("caption", ""), image.get("alt", "")
        if not re.fullmatch(r"fig-[a-z0-9-]+", figure.get("name", "")):
            yield f"cell {position}: the figure has no name of the form fig-depth"
        if not caption.strip():
            yield f"cell {position}: the figure has no caption"
        if len(alt.strip()) < MIN_ALT:
            yield (
                f"cell {position}: the figure's text alternative has "
                f"{len(alt.strip())} characters, at least {MIN_ALT}"
            )
        elif alt.strip() == caption.strip():
            yield f"cell {position}: the figure's text alternative repeats its caption"


def figures_recorded(notebook: Notebook) -> Iterator[str]:
    """What a figure shows is stored beside its picture, so that it is compared."""
    for position, cell in code_cells(notebook):
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data and FIGURE not in data:
                yield (
                    f"cell {position}: a figure without a record of what it shows; "
                    "draw it after `figures.use_style()`"
                )


def steady_source(notebook: Notebook) -> Iterator[str]:
    """No cell installs, seeds a global generator, ends on `;` or prints the time."""
    for position, cell in code_cells(notebook):
        for line in cell.source.splitlines():
            bare = line.strip()
            if re.match(r"[!%]\s*(pip|conda|apt)\b|!", bare):
                yield f"cell {position}: a shell command: {bare!r}"
            if bare.endswith(";"):
                yield f"cell {position}: a line ends on `;`: {bare!r}"
            for seed in GLOBAL_SEEDS:
                if re.search(rf"(?<![\w.]){re.escape(seed)}\s*\(", bare):
                    yield f"cell {position}: a global seed: {bare!r}"
            if any(clock in bare for clock in CLOCKS):
                reason = cell.metadata.get("reason")
                if not ("nbval-ignore-output" in tags(cell) and reason):
                    yield f"cell {position}: reads the clock: {bare!r}"


def stays_to_the_end(notebook: Notebook) -> Iterator[str]:
    """No cell ends the kernel: what would be checked behind it looks green."""
    enders = {"quit", "exit", "_exit", "abort", "ask_exit", "do_shutdown"}
    for position, cell in code_cells(notebook):
        for statement in statements(cell):
            for node in ast.walk(statement):
                name = getattr(node, "id", getattr(node, "attr", ""))
                if name in enders:
                    yield f"cell {position}: ends the kernel: {ast.unparse(node)!r}"


def asserts_can_fail(notebook: Notebook) -> Iterator[str]:
    """An assert looks at something that a cell computed, not only at typed numbers."""
    trees = []
    for position, cell in code_cells(notebook):
        with contextlib.suppress(SyntaxError):  # a magic command
            trees.append((position, ast.parse(cell.source)))
    nodes = [node for _, tree in trees for node in ast.walk(tree)]
    constant = set(dir(builtins)) | {
        name.asname or name.name
        for node in nodes
        if (isinstance(node, ast.Import) and node.names[0].name in ("math", "numpy"))
        or (isinstance(node, ast.ImportFrom) and node.module == "math")
        for name in node.names
    }
    stored = [n for n in nodes if isinstance(n, ast.Name | ast.FunctionDef)]
    constant -= {
        n.id if isinstance(n, ast.Name) else n.name
        for n in stored
        if isinstance(n, ast.FunctionDef) or isinstance(n.ctx, ast.Store)
    }
    for position, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                if names <= constant:
                    text = ast.unparse(node)
                    yield f"cell {position}: compares typed numbers only: {text!r}"


def python3_kernel(notebook: Notebook) -> Iterator[str]:
    """The kernel's name is the one that every machine has."""
    name = notebook.metadata.get("kernelspec", {}).get("name")
    if name != "python3":
        yield f"the kernel must be python3, is {name}"


# --- rules for chapters: their headings and exercises


def all_markdown(notebook: Notebook) -> str:
    """Return the text of all markdown cells."""
    return "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def markdown(notebook: Notebook) -> str:
    """Return the prose, with fenced code left out."""
    return re.sub(r"(?ms)^(`{3,}).*?^\1\s*$", "", all_markdown(notebook))


def headings(notebook: Notebook) -> list[str]:
    """Return the second-level headings."""
    return re.findall(r"(?m)^## +(.*?)\s*$", markdown(notebook))


def sections_in_order(notebook: Notebook) -> Iterator[str]:
    """The known sections stand in the book's order, the required ones are there."""
    found = []
    for heading in headings(notebook):
        name = heading.partition(":")[0]  # "Experiment: placement" is an Experiment
        if name in SECTIONS:
            found.append(name)
    for name in REQUIRED_SECTIONS:
        if name not in found:
            yield f'the section "{name}" is missing'
    for before, after in itertools.pairwise(found):
        if SECTIONS.index(before) > SECTIONS.index(after):
            yield f'the section "{after}" must stand before "{before}"'


def measured_with_settings(notebook: Notebook) -> Iterator[str]:
    """The list of what was measured names seeds and, where a net learns, rates."""
    found = re.search(
        r"(?ms)^\*\*Measured here.*?(?=^\*\*|^## |\Z)", markdown(notebook)
    )
    if not found:
        return
    if not re.search(r"\bseeds?\b|\bdraws?\b", found[0]):
        yield "the list *Measured here* names no seeds (or draws)"
    learns = r"\blr=|learning_rate|\boptim\.|\brecord\.load\("
    is_learning = any(re.search(learns, c.source) for _, c in code_cells(notebook))
    if is_learning and not re.search(r"\brates?\b", found[0]):
        yield "the list *Measured here* names no learning rate"


def titles(notebook: Notebook) -> list[str]:
    """Return the first-level headings."""
    return re.findall(r"(?m)^# +(.*?)\s*$", markdown(notebook))


def one_title(notebook: Notebook) -> Iterator[str]:
    """The first cell holds the only first-level heading."""
    found = titles(notebook)
    if len(found) != 1:
        yield f"one first-level heading, found {len(found)}"
    elif f"# {found[0]}" not in notebook.cells[0].source:
        yield "the title must stand in the first cell"


def exercises(notebook: Notebook) -> list[tuple[str, str]]:
    """Return the title and the label of every exercise, in their order."""
    return re.findall(
        r"(?m)^[:`]{3,}\{exercise(?:-start)?\} *(.*)\n:label: *(\S+)",
        all_markdown(notebook),
    )


def exercises_solved(notebook: Notebook) -> Iterator[str]:
    """Every exercise has a folded solution."""
    text = all_markdown(notebook)
    found = exercises(notebook)
    solutions = re.findall(
        r"(?m)^[:`]{3,}\{solution-start\} *(\S+)\n((?::[\w-]+:.*\n)*)", text
    )
    solved = {}
    for label, options in solutions:
        solved[label] = options
        own = re.search(r"(?m)^:label: *(\S+)", options)
        if own is None or own[1] != re.sub(r"^ex-", "sol-", label):
            yield f"the solution of {label} must have the label sol-{label[3:]}"
        if not re.search(r"(?m)^:class: .*\bdropdown\b", options):
            yield f"the solution of {label} is not folded (:class: dropdown)"
    for title, label in found:
        if not label.startswith("ex-"):
            yield f"the exercise {label!r} ({title}) needs a label of the form ex-name"
        if label not in solved:
            yield f"the exercise {label} has no solution"
    for label in solved.keys() - {label for _, label in found}:
        yield f"a solution to {label}, which is no exercise here"


def a_bug_to_spot(notebook: Notebook) -> Iterator[str]:
    """There are exercises, and one of them is to spot a bug."""
    found = exercises(notebook)
    if not found:
        yield "no exercise"
    elif not any("spot the bug" in title.lower() for title, _ in found):
        yield 'no exercise is called "Spot the bug"'


def prose_lines(notebook: Notebook) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose, without code and formulas, with their cell."""
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            fenced = r"(?ms)^ *(`{3,}).*?^ *\1 *$|\$\$.*?\$\$"
            for line in re.sub(fenced, "", cell.source).splitlines():
                yield position, line


def narrow_prose(notebook: Notebook) -> Iterator[str]:
    """A line of prose is short enough that a diff of it can be read."""
    for position, line in prose_lines(notebook):
        # Rows of tables, addresses, titles of boxes and formulas cannot be broken.
        if re.match(r"\s*(\||:::|\[[^\]]+\]:)", line):
            continue
        words = re.sub(r"\$[^$]*\$|`[^`]*`|\[[^\]]*\]\([^)]*\)", "", line)
        if len(line) > MAX_PROSE and len(words.split()) > 2:
            yield (
                f"cell {position}: a line of prose has {len(line)} columns, "
                f"at most {MAX_PROSE}: {line.strip()[:40]!r}"
            )


def no_line_is_a_comment(notebook: Notebook) -> Iterator[str]:
    """A line of prose that begins with % is a comment of MyST: no page shows it."""
    for position, line in prose_lines(notebook):
        if line.lstrip().startswith("%"):
            yield (
                f"cell {position}: a line begins with %, which hides it: "
                f"{line.strip()[:40]!r}"
            )


Rule: TypeAlias = Callable[[Notebook], Iterator[str]]
STORED_AS_RUN: tuple[Rule, ...] = (
    executed_in_order,
    unchanged_since_run,
    no_errors_stored,
    no_stderr,
)
NOTEBOOK_RULES: tuple[Rule, ...] = (
    *STORED_AS_RUN,
    outputs_present,
    one_import_cell,
    short_cells,
    narrow_prose,
    no_line_is_a_comment,
    nothing_skipped,
    stays_to_the_end,
    asserts_can_fail,
    figures_described,
    figures_recorded,
    steady_source,
    python3_kernel,
)
# A page to look things up in, or one under a chapter.
REFERENCE_RULES: tuple[Rule, ...] = (one_title, exercises_solved)
CHAPTER_RULES: tuple[Rule, ...] = (
    *REFERENCE_RULES,
    sections_in_order,
    measured_with_settings,
    a_bug_to_spot,
)


def file_rules(path: Path) -> Iterator[str]:
    """Check the file itself: its size and its normal form."""
    size = path.stat().st_size
    if size >= MAX_BYTES:
        yield f"{size} bytes, at most {MAX_BYTES}"
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    if text != dumps(normalize(notebook, path.stem)):
        yield "not in the form that `make execute` writes"


def violations(path: Path, rules: tuple[Rule, ...] = CHAPTER_RULES) -> list[str]:
    """Return every violation in one notebook, each with the notebook's name."""
    notebook = nbformat.read(path, as_version=4)
    found = [v for rule in (*NOTEBOOK_RULES, *rules) for v in rule(notebook)]
    return [f"{path.name}: {v}" for v in (*found, *file_rules(path))]


# --- the extension of the site build


def stored_as_run(app: Any) -> None:
    """Stop the build if a notebook's page would not show what its code computes."""
    from sphinx.errors import ExtensionError

    found = []
    for document in sorted(app.project.discover(app.config.exclude_patterns, ["**"])):
        path = Path(app.env.doc2path(document))
        if path.suffix == ".ipynb" and document in app.env.external_site_map:
            notebook = nbformat.read(path, as_version=4)
            found += [f"{path.name}: {v}" for r in STORED_AS_RUN for v in r(notebook)]
    if found:
        raise ExtensionError(
            "stored outputs are missing, stale or wrong; run `make execute`:\n  "
            + "\n  ".join(found)
        )


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.connect("env-before-read-docs", lambda app, env, names: stored_as_run(app))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
