"""Each change that `make mutants` makes is one, and none touches what does not run."""

from __future__ import annotations

import ast

import mutants
import pytest

SOURCE = '''\
"""Text of 3 words."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
def function(x: int = 4) -> Literal[5]:
    if x < 2 and x != 3:
        print(x)
    return x + True
'''


def changed(source: str) -> list[str]:
    """Return what each change makes of a source."""
    found = []
    for place in range(len(list(mutants.changes(ast.parse(source))))):
        tree = ast.parse(source)
        _, _, change = list(mutants.changes(tree))[place]
        change()
        found.append(ast.unparse(ast.fix_missing_locations(tree)))
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x: int=4", "x: int=5"),
        ("x < 2 and x != 3", "not (x < 2 and x != 3)"),
        ("x < 2 and x != 3", "x < 2 or x != 3"),
        ("x < 2", "x <= 2"),
        ("x < 2", "x < 3"),
        ("x != 3", "x == 3"),
        ("x != 3", "x != 4"),
        ("print(x)", "None"),
        ("return x + True", "return"),
        ("x + True", "x - True"),
        ("x + True", "x + False"),
    ],
)
def test_each_change_is_made_once(old: str, new: str) -> None:
    whole = ast.unparse(ast.parse(SOURCE))
    assert old in whole
    assert changed(SOURCE).count(whole.replace(old, new)) == 1


def test_there_are_no_other_changes() -> None:
    assert len(changed(SOURCE)) == 11
