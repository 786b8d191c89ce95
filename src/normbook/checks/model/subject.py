"""A copy of a model, and what its norms see of the data."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbook.checks.calls import evaluating
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import place_of
from normbook.checks.model.runs import buffers_of, hidden_norms, look, norms_of


class Subject:
    """A copy of a model, and what its norms see."""

    def __init__(self, model: nn.Module, x: Any) -> None:
        self.name, self.original = type(model).__name__, model
        self.model = evaluating(copy_of(model))
        self.x = x
        self.shared: set[str] = set()  # batch norms whose inputs differ by the place
        self.unsound: set[str] = set()  # norms that hold, or make, no numbers
        self.again: dict[str, list[Tensor]] = {}  # what norms saw when called again
        self.plain: tuple[nn.Module, list[Tensor]] | None = None  # with its outputs
        self.steps: list[Any] = []  # of a pass in evaluation: flow.py
        self.looks = 0  # runs with noise
        self.untested: list[str] = []
        self.names = [name for name, _ in norms_of(self.model)]
        self._must_hold_a_norm()
        by_batch = copy_of(self.model)
        for _, norm in norms_of(by_batch):
            norm.train()
        before = {path: b.clone() for path, b in buffers_of(by_batch)}
        self.seen = [*look(by_batch, x, self.again)]
        # Where two norms hold one buffer, it is one in the copy, too.
        self.moved = {
            path: buffer
            for path, buffer in buffers_of(by_batch)
            if path not in before or not buffer.equal(before[path])
        }
        self._leave_out()

    def _must_hold_a_norm(self) -> None:
        if not self.names:
            hidden = ", ".join(hidden_norms(self.model))
            where = f" but in lists of Python: {hidden:.160}; use nn.ModuleList"
            raise ValueError(
                f"the model must hold a norm, got a {self.name} without"
                f"{where if hidden else ''}."
            )

    def _leave_out(self) -> None:
        """Take what changes the shape of its input for no norm, whatever its name."""
        others = [seen.name for seen in self.seen if seen.x.shape != seen.y.shape]
        if not others:
            return
        self.untested.append(
            f"{type(self.model.get_submodule(others[0])).__name__} at "
            f"{place_of(others)}: its output has another shape than its input, so that "
            "it is taken for no norm."
        )
        self.seen = [seen for seen in self.seen if seen.name not in others]
        self.names = [name for name in self.names if name not in others]
        self._must_hold_a_norm()


def is_frozen(norm: nn.Module) -> bool:
    """Return whether a norm has gain or bias, and learns neither."""
    held = [*norm.parameters(recurse=False)]
    return bool(held) and not any(p.requires_grad for p in held)
