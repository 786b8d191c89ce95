"""Passes of a copy of a model, forward and backward, and what its parts did in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import normbook.checks.layer.recognition as recognition
from normbook.checks.calls import LayerError
from normbook.checks.copies import graph_nodes
from normbook.checks.model.runs import (
    Event,
    Watching,
    hidden_norms,
    is_plain,
    parts_of,
    run_on,
    tensors_in,
)

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)  # of nn.functional, too
OURS = 760_531  # a seed of nobody's data: noise that is x moves no norm


class Call(NamedTuple):
    """A call of a norm, with gradients of all outputs by what went in and came out.

    A gradient is None where no path of autograd leads to an output.
    """

    name: str
    x: Tensor
    y: Tensor
    by_x: Tensor | None
    by_y: Tensor | None
    passed_on: Tensor  # what came out, as what follows gets it


class Steps(NamedTuple):
    """What a forward and a backward pass of a model did."""

    calls: list[Call]
    round_all: set[str]  # norms to whose input a path leads through no norm
    between: dict[str, Tensor]  # floating-point buffers after the forward pass


class Pass:
    """What the parts of a model did in its first pass; the model keeps hooks."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self.model, self.names = model, names
        self.modes = {name: part.training for name, part in model.named_modules()}
        self.entered: set[str] = set()
        self.called: dict[str, bool] = {}  # norms, and whether in training mode
        self.functions: list[tuple[str, Any, Any]] = []  # batch_norm outside of norms
        self.weights: dict[str, Tensor] = {}  # of convolutions, and no parameters
        # Places and shapes of functional.normalize along axis 1.
        self.unit: list[tuple[str, tuple[int, ...]]] = []
        self.norms: list[Event] = []
        self.blocks: list[Event] = []
        self.made: list[Tensor] = []
        self.anew: dict[nn.Module, str] = {}  # norms that the model does not hold
        self.error: LayerError | None = None
        self.steps: Steps | None = None
        self.is_through = self.is_random = False
        self._inside: list[str] = []
        for name, part in parts_of(model).items():
            if isinstance(part, torch.jit.ScriptModule):  # it takes none
                continue
            part.register_forward_pre_hook(self._entering(name))
            part.register_forward_hook(self._leaving)
        for name, part in hidden_norms(model).items():
            part.register_forward_pre_hook(lambda *_, n=name: self.entered.add(n))

    def _entering(self, name: str) -> Any:
        def hook(part: nn.Module, _: Any) -> None:
            self._inside.append(name)
            self.entered.add(name)
            if name in self.names:
                self.called.setdefault(name, part.training)

        return hook

    def _leaving(self, part: nn.Module, *_: Any) -> None:
        self._inside.pop()
        self.is_through |= part is self.model

    @property
    def place(self) -> str:
        """Return the part that runs."""
        return self._inside[-1] if self._inside else ""

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        place = self.place
        if func is nn.functional.batch_norm and not {*self.names} & {*self._inside}:
            self.functions.append((place, args, kwargs))
        if func is nn.functional.normalize and kwargs.get("dim", 1) == 1:
            self.unit.append((place, tuple(args[0].shape)))
        if func in CONVOLUTIONS:
            weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
            if isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter):
                self.weights.setdefault(place, weight.detach())

    def outputs(self, x: Any) -> list[Tensor]:
        """Run the model."""
        held = {*self.model.modules(), *hidden_norms(self.model).values()}

        def note(part: nn.Module, _: Any) -> None:
            if part not in held and recognition.kind_of(part):
                self.anew.setdefault(part, self.place)

        watching = nn.modules.module.register_module_forward_pre_hook(note)
        try:
            with Watching(self._note):
                return tensors_in(run_on(self.model, x))
        finally:
            watching.remove()

    def run(self, x: Any, *, back: bool = False) -> Pass:
        """Run the model, or forward and backward; keep what it returns, or raises."""
        before = torch.get_rng_state()
        try:
            if back:
                with Watching(self._note):
                    self.steps = steps_of(self.model, x, self.names)
            else:
                self.made = self.outputs(x)
        except LayerError as error:
            self.error = error
        # What is drawn elsewhere than on the CPU is not known here.
        is_elsewhere = any(not p.is_cpu for p in self.model.parameters())
        self.is_random = is_elsewhere or not before.equal(torch.get_rng_state())
        return self


@contextmanager
def _telling(errors: list[str]) -> Iterator[None]:
    """Keep what a pass raised: autograd raises AssertionError, too."""
    try:
        yield
    except (LayerError, RuntimeError, AssertionError) as error:
        told = f"the way back raised {type(error).__name__}: {error}"
        errors.append(textwrap.shorten(told, 240, placeholder=" ...").rstrip("."))


def _node_of(x: Tensor) -> Any:
    """Return the operation that made a tensor, None of one that writes hide."""
    with suppress(AssertionError):
        return torch.autograd.graph.get_gradient_edge(x).node
    return None


def steps_of(
    model: nn.Module,
    x: Any,
    names: list[str],
    *,
    cut: bool = False,
    errors: list[str] | None = None,
) -> Steps | None:
    """Run a model forward and backward; with ``cut`` gradients end at each norm.

    None where no output depends on a norm by a gradient, or where a pass raises: why,
    goes to ``errors``.
    """
    errors = [] if errors is None else errors
    met: list[tuple[str, Tensor, Tensor, Tensor]] = []
    ends: set[Any] = set()

    def note(name: str) -> Any:
        def hook(norm: nn.Module, inputs: Any, y: Any) -> Any:
            x = inputs[0] if inputs else None
            if x is None or not (is_plain(x) and is_plain(y)):
                return None
            if not y.is_floating_point():
                return None
            y = y.detach() if cut else y
            y = y if y.requires_grad or cut else y.detach().requires_grad_()
            met.append((name, x, y, y.clone()))
            ends.add(met[-1][-1].grad_fn)
            return met[-1][-1]  # what comes next may write into it

        return hook

    def watch(norm: nn.Module, inputs: Any) -> Any:
        first, *rest = inputs or (None,)
        if first is None or not (is_plain(first) and first.is_floating_point()):
            return None
        is_known = first.requires_grad
        return (first if is_known else first.detach().requires_grad_(), *rest)

    parts = parts_of(model)
    for name in names:
        parts[name].register_forward_pre_hook(watch)
        parts[name].register_forward_hook(note(name))
    with _telling(errors), torch.enable_grad():
        made = [t for t in tensors_in(run_on(model, x)) if t.requires_grad]
        between = {n: b.clone() for n, b in model.named_buffers()}
        draw = torch.Generator().manual_seed(OURS)
        loss = sum(
            (t * torch.randn(t.shape, generator=draw).to(t)).sum()
            for t in made
            if t.is_floating_point()
        )
        asked = [t for _, x, y, _ in met for t in (x, y) if t.requires_grad]
        if not met:
            errors.append("no norm is called that takes and returns real tensors")
        if not asked or not isinstance(loss, Tensor):
            return None
        reached = graph_nodes(loss, ends)
        at = ((name, x) for name, x, *_ in met if x.requires_grad)
        round_all = {name for name, x in at if _node_of(x) in reached}
        found = torch.autograd.grad(loss, asked, allow_unused=True)
        by = {id(t): grad for t, grad in zip(asked, found, strict=True)}
        calls = [
            Call(name, x.detach(), y.detach(), by.get(id(x)), by.get(id(y)), out)
            for name, x, y, out in met
        ]
        return Steps(calls, round_all, between)
    return None
