"""The directive ``reliability-table``: what was seen of each goal, and when.

It reads ``book/recorded/reliability.json``, which `make reliability` writes. So no
figure of the table is typed, and a goal that was not run says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

RECORD = "book/recorded/reliability.json"
STATES = {"shown": "", "failed": "**failed:** ", "not run": "", "open": ""}


def rows(record: dict[str, Any]) -> list[str]:
    """Return the lines of the table."""
    lines = ["| | what must hold | what was seen | tried |", "|-|-|-|-|"]
    for goal in record["goals"]:
        state = goal["state"]
        if state not in STATES or (state in ("shown", "failed")) != ("shown" in goal):
            raise ExtensionError(
                f"{RECORD}: a goal must be shown or failed, with what was seen, or not "
                f"run or open, got {goal['goal']} {state}; run make reliability"
            )
        seen = {"not run": "not run", "open": "no check yet"}.get(state) or (
            f"{STATES[state]}{goal['shown']} ({goal['date']})"
        )
        lines.append(f"| {goal['goal']} | {goal['says']} | {seen} | {goal['where']} |")
    return lines


class ReliabilityTable(SphinxDirective):
    """Shows the goals with what was seen of them."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the table."""
        path = Path(self.env.srcdir, RECORD)
        self.env.note_dependency(str(path))
        record = json.loads(path.read_text(encoding="utf-8"))
        result = nodes.Element()
        nested_parse_with_titles(
            self.state, StringList(rows(record), source=""), result
        )
        for table in result.findall(nodes.table):
            table["classes"].append("reliability")  # its style gives sentences a width
        return list(result.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("reliability-table", ReliabilityTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
