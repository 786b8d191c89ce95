"""Living figures compute what normbook does, and begin as their stills show."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "book/_static/living"
NAMES = sorted(p.stem for p in FOLDER.glob("*.js") if p.stem != "living")
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="scripts of pages need node")

Numbers = dict[str, Any]
State = dict[str, Any]


def in_node(script: str, given: Any = None) -> Any:
    """Run a script that has `given`, and return what it prints as JSON."""
    begin = "const given = JSON.parse(require('fs').readFileSync(0));"
    command = [str(NODE), "-e", begin + script]
    done = subprocess.run(
        command, cwd=FOLDER, input=json.dumps(given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers_of(code: str, states: list[State]) -> list[Numbers]:
    """Return what the script of a figure computes of some states."""
    script = """
    const of = new module.constructor();
    of._compile(given.code, "figure.js");
    console.log(JSON.stringify(given.states.map((s) => of.exports.numbers(s))));
    """
    found: list[Numbers] = in_node(script, {"code": code, "states": states})
    return found


def code_of(name: str) -> str:
    return (FOLDER / f"{name}.js").read_text(encoding="utf-8")


def case(name: str) -> Any:
    """Load `tests/living/NAME.py`: states of a figure, and its numbers by normbook."""
    path = ROOT / "tests/living" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"living_{name}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_is_tested_here() -> None:
    cases = sorted(p.stem for p in (ROOT / "tests/living").glob("*.py"))
    assert cases == NAMES


def agree(name: str, code: str) -> bool:
    """Whether a script computes what normbook does, in twenty states."""
    of = case(name)
    states = [of.state(np.random.default_rng(seed)) for seed in range(20)]
    try:
        for state, found in zip(states, numbers_of(code, states), strict=True):
            wanted = of.numbers(state)
            assert wanted.keys() == found.keys()
            for key, value in wanted.items():
                computed = np.array(found[key], dtype=float)  # null is NaN
                np.testing.assert_allclose(computed, value, rtol=1e-9, atol=1e-9)
    except AssertionError:
        return False
    return True


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_computes_what_normbook_does(name: str) -> None:
    assert agree(name, code_of(name))


OPERATOR = re.compile(r" ([-+*/]) ")
OTHER = {"+": "-", "-": "+", "*": "/", "/": "*"}


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_each_wrong_operator_in_its_formulas_is_found(name: str) -> None:
    code = code_of(name)
    body = re.search(r"(?s)\n  numbers\(.*?\n  \},", code)
    assert body
    places = list(OPERATOR.finditer(code, *body.span()))
    wrong = [code[: m.start(1)] + OTHER[m[1]] + code[m.end(1) :] for m in places]
    assert wrong
    assert [w for w in wrong if agree(name, w)] == []


@needs_node
def test_numbers_of_examples_do_not_overprint_and_a_clipped_bar_is_marked() -> None:
    script = """
    const living = require("./living.js");
    const figure = require("./batch_on_a_line.js");
    const drawn = (s) => figure.draw(s, figure.numbers(s), living.pen);
    console.log(JSON.stringify(given.map((x) =>
      drawn({...figure.initial(), x, count: x.length}))));
    """
    apart, equal, near, chain = in_node(
        script, [[-3.0, 0.0, 3.0], [1.0, 1.0], [0.0, 0.1, 3.0], [0.0, 0.5, 1.0, 1.5]]
    )

    def labels(picture: str, y: int) -> list[tuple[float, str]]:
        """Return places and texts of a row of numbers."""
        pattern = rf'x="([-\d.]+)" y="{y}">([^<]*)<'
        return sorted((float(x), words) for x, words in re.findall(pattern, picture))

    assert [words for _, words in labels(apart, 26)] == ["1", "2", "3"]
    assert [words for _, words in labels(equal, 26)] == ["1,2"]
    assert [words for _, words in labels(near, 111)] == ["1,2", "3"]
    for picture, count in ((apart, 3), (equal, 2), (near, 3), (chain, 4)):
        for y in (26, 111):
            row = labels(picture, y)
            named = ",".join(words for _, words in row).split(",")
            assert sorted(named) == [str(i + 1) for i in range(count)]
            for (a, left), (b, right) in itertools.pairwise(row):
                assert b - a >= 5 * (left.count(",") + right.count(",") + 2)
    assert equal.count("<polyline") == 2  # both bars reach beyond the picture
    assert apart.count("<polyline") == 0


# --- how each of them is written


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_the_still_shows_how_a_figure_begins(name: str) -> None:
    script = "const l = require('./living.js');"
    script += f"console.log(JSON.stringify(l.still(require('./{name}.js'))));"
    still = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert still == in_node(script), "run node tools/draw_stills.js"


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_all_controls_give_numbers_and_words(name: str) -> None:
    script = f"""
    const {{ pen, words }} = require("./living.js"), f = require("./{name}.js");
    const ends = [];
    for (const c of f.controls)
      for (const end of [c.min, c.max]) ends.push({{ ...f.initial(), [c.name]: end }});
    for (const state of [f.initial(), ...ends])
      f.handles(state).forEach((h) => ends.push(h.set(h.min), h.set(h.max)));
    const all = (s) => words(f, s) + f.draw(s, f.numbers(s), pen);
    console.log(JSON.stringify(ends.map(all)));
    """
    drawn = in_node(script)
    assert drawn
    assert not [text for text in drawn if re.search("NaN|Infinity|undefined", text)]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.js")), ids=lambda p: p.stem)
def test_a_script_is_small(path: Path) -> None:
    most = 3000 if path.stem == "living" else 2000
    assert len(gzip.compress(path.read_bytes())) <= most


def test_every_figure_stands_on_a_page() -> None:
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "book").glob("*.ipynb")]
    text = "\n".join(p.read_text(encoding="utf-8") for p in pages)
    assert {*re.findall(r"\{living\} (\w+)", text)} == {*NAMES}
