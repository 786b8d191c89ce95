"""A copy of a model, and what its norms see of the data."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError, evaluating
from normbook.checks.copies import copy_of
from normbook.checks.model.harms import listed, place_of
from normbook.checks.model.kernels import kernels_of
from normbook.checks.model.passes import OURS, Pass, Steps, steps_of
from normbook.checks.model.runs import (
    batch_in,
    buffers_of,
    hidden_norms,
    look,
    norms_of,
    noting,
    run_on,
    tensors_in,
)

LEARNT = 0.05  # of gains, their spread: some 50 steps of Adam at a rate of 1e-3


class Subject:
    """A copy of a model, and what its norms see."""

    def __init__(self, model: nn.Module, x: Any) -> None:
        self.name, self.original = type(model).__name__, model
        self.model = evaluating(copy_of(model))
        self.x = x
        self.shared: set[str] = set()  # batch norms whose inputs differ by the place
        self.unsound: set[str] = set()  # norms that hold, or make, no numbers
        self.misfits: set[str] = set()  # norms with another output than they say
        self.again: dict[str, list[Tensor]] = {}  # what norms saw when called again
        self.plain: tuple[nn.Module, list[Tensor]] | None = None  # with its outputs
        self.looks = 0  # runs with noise
        self.untested: list[str] = []
        self.not_back: list[str] = []  # why a way back is not known
        self.names = [name for name, _ in norms_of(self.model)]
        parts = self.model.named_modules()
        scripts = [n for n, part in parts if isinstance(part, torch.jit.ScriptModule)]
        if scripts:
            self.untested.append(
                f"what torch.jit has made a script of: {listed(scripts)}."
            )
        self._must_hold_a_norm()
        by_batch = copy_of(self.model)
        for _, norm in norms_of(by_batch):
            norm.train()
        before = {path: b.clone() for path, b in buffers_of(by_batch)}
        self.seen = [*look(by_batch, x, self.again)]
        self._leave_out_the_unknown()
        # Where two norms hold one buffer, it is one in the copy, too.
        self.moved = {
            path: buffer
            for path, buffer in buffers_of(by_batch)
            if path not in before or not buffer.equal(before[path])
        }
        self._leave_out()

    @property
    def is_time_first(self) -> bool:
        """Return whether the model itself says that x is (T, N, D)."""
        says = getattr(self.original, "batch_first", None) is False
        whole = batch_in(self.x)
        return says and whole is not None and whole.dim() == 3

    @cached_property
    def still(self) -> Pass:
        """A pass in evaluation, with all calls of norms, and of what holds them."""
        one = Pass(copy_of(self.model), self.names)
        one.norms = noting(one.model, [name for name, _ in norms_of(one.model)])
        paths = dict.fromkeys(name.rpartition(".")[0] for name in self.names if name)
        one.blocks = noting(one.model, paths, are_blocks=True)
        return one.run(self.x)

    @cached_property
    def steps(self) -> Steps | None:
        """A pass in evaluation, and the way back."""
        names, errors = self.names, self.not_back
        return steps_of(copy_of(self.model), self.x, names, errors=errors)

    @cached_property
    def woken(self) -> set[str]:
        """The norms that outputs depend on where no parameter is 0 throughout."""
        model = copy_of(self.model)
        draw = torch.Generator().manual_seed(OURS)
        for p in model.parameters():
            if not p.any():
                p.copy_(0.1 * torch.randn(p.shape, generator=draw))
        steps = steps_of(model, self.x, self.names)
        calls = steps.calls if steps else []
        return {c.name for c in calls if c.by_y is not None and c.by_y.any()}

    @cached_property
    def training(self) -> Pass:
        """A pass in training, and the way back where it has one."""
        for back in (True, False):  # it may write into what needs a gradient
            model = copy_of(self.original)
            model.train()  # its own may return nothing
            with torch.random.fork_rng(enabled=not back):
                one = Pass(model, self.names).run(self.x, back=back)
            if one.is_through:
                break
        return one

    @cached_property
    def graded(self) -> set[str]:
        """The parameters that a whole way back in training gives a gradient.

        One that recomputes what a forward pass has not kept has no other.
        """
        model = copy_of(self.original)
        model.train()  # its own may return nothing
        with suppress(LayerError, RuntimeError), torch.enable_grad():
            made = [t for t in tensors_in(run_on(model, self.x)) if t.requires_grad]
            draw = torch.Generator().manual_seed(OURS)
            slopes = [torch.randn(t.shape, generator=draw).to(t) for t in made]
            torch.autograd.backward(made, slopes)
        held = model.named_parameters()
        return {name for name, p in held if p.grad is not None and p.grad.any()}

    def _must_hold_a_norm(self) -> None:
        if not self.names and not any(kernels_of(self.still)):
            hidden = ", ".join(hidden_norms(self.model))
            where = (
                f" but in lists of Python: {hidden:.160}; use nn.ModuleList"
                if hidden
                else " that is known by its type or name; of weights, those are "
                "looked at that a convolution standardizes in its forward"
            )
            raise ValueError(
                f"the model must hold a norm, got a {self.name} without{where}."
            )

    def _leave_out_the_unknown(self) -> None:
        """Take what no definition explains, and no name, for no norm that is known."""
        met = {seen.name for seen in self.seen}
        self.unknown = [
            name
            for name in self.names
            if name not in met
            and not recognition.kind_of(self.model.get_submodule(name))
        ]
        if self.unknown:
            of = type(self.model.get_submodule(self.unknown[0])).__name__
            self.untested.append(
                f"{of} at {place_of(self.unknown)}: none of the norms that an audit "
                "looks at explains its output, or it was not called; "
                "check_norm_layer knows more kinds."
            )
            self.names = [name for name in self.names if name not in self.unknown]

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


def gain_of(norm: nn.Module) -> Tensor:
    """Return the gain of a norm, as 1 where it has none of a usual name."""
    name = recognition.only_parameter(norm, recognition.GAINS)
    return norm.get_parameter(name).detach() if name else torch.ones(())


def has_learnt(norm: nn.Module) -> bool:
    """Return whether gains differ as after many steps: a few move them by less."""
    gain = gain_of(norm)
    return gain.numel() > 1 and float(gain.std()) > LEARNT


def is_frozen(norm: nn.Module) -> bool:
    """Return whether a norm has gain or bias, and learns neither."""
    held = [*norm.parameters(recurse=False)]
    return bool(held) and not any(p.requires_grad for p in held)
