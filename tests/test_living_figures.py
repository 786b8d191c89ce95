"""Living figures compute what normbook computes, and begin as their stills show them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normbook.batch_norm import batch_norm_backward, batch_norm_forward

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "book/_static/living"
NAMES = sorted(p.stem for p in FOLDER.glob("*.js") if p.stem != "living")
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="scripts of pages need node")

Numbers = dict[str, Any]
State = dict[str, Any]
SEEDS = range(20)


def in_node(script: str, given: Any = None) -> Any:
    """Run a script that has `given`, and return what it prints as JSON."""
    begin = "const given = JSON.parse(require('fs').readFileSync(0));"
    command = [str(NODE), "-e", begin + script]
    done = subprocess.run(
        command, cwd=FOLDER, input=json.dumps(given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def numbers_of(name: str, states: list[State]) -> list[Numbers]:
    """Return what a figure computes of some states."""
    script = f"const f = require('./{name}.js');"
    script += "console.log(JSON.stringify(given.map((s) => f.numbers(s))));"
    found: list[Numbers] = in_node(script, states)
    return found


# --- what each of them computes: states, and the same by normbook


def batches(rng: np.random.Generator) -> State:
    count = int(rng.integers(2, 7))
    x, dl_dy = rng.normal(0, 3, (2, 6)).tolist()
    exponent = int(rng.integers(-5, 2))
    return {"x": x, "dl_dy": dl_dy, "count": count, "exponent": exponent}


def batch_on_a_line(state: State) -> Numbers:
    x, dl_dy = (np.array(state[k][: state["count"]])[:, None] for k in ("x", "dl_dy"))
    _, cache = batch_norm_forward(x, eps=10.0 ** state["exponent"])
    return {
        "mu": cache.mu[0, 0],
        "sigma": cache.var[0, 0] ** 0.5,
        "x_hat": cache.x_hat[:, 0],
        "dl_dx": batch_norm_backward(dl_dy, cache).dl_dx[:, 0],
    }


CASES: dict[str, tuple[Callable[..., State], Callable[[State], Numbers]]] = {
    "batch_on_a_line": (batches, batch_on_a_line),
}


def test_every_figure_is_tested_here() -> None:
    assert [*CASES] == NAMES


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_computes_what_normbook_does(name: str) -> None:
    draw, expected = CASES[name]
    states = [draw(np.random.default_rng(seed)) for seed in SEEDS]
    for state, found in zip(states, numbers_of(name, states), strict=True):
        wanted = expected(state)
        assert wanted.keys() == found.keys()
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9)


@needs_node
def test_a_wrong_formula_is_found() -> None:
    draw, expected = CASES["batch_on_a_line"]
    state = draw(np.random.default_rng(0))
    (found,) = numbers_of("batch_on_a_line", [{**state, "exponent": -1}])
    assert not np.allclose(found["dl_dx"], expected(state)["dl_dx"])


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
    console.log(JSON.stringify(ends.map((s) => words(f, s) + f.draw(s, f.numbers(s), pen))));
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
