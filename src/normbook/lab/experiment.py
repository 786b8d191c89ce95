"""What an experiment is: networks in training, compared over several seeds.

An :class:`Experiment` has a few *variants* (with and without batch norm, say). A
variant with a seed is one :class:`Run`. Everything random in it comes from generators
of its own, so that it can be saved, continued elsewhere, and repeated.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from normbook.data import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normbook.lab.record import Record

Settings = Mapping[str, Any]
Values = dict[str, Any]  # numbers, lists of numbers, or texts, by name

PROGRESS = "step", "opening", "curves", "sums"  # of a run
OPENING = 20  # first updates whose losses are kept one by one, to check a record


def generator(
    seed: int, purpose: str, on: torch.device | str = "cpu"
) -> torch.Generator:
    """Generator for one purpose of the run with a seed, independent of its others.

    Variants that ask for the same purpose, such as "weights", get the same numbers; on
    another kind of device these are others.
    """
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return torch.Generator(on).manual_seed(int.from_bytes(digest[:7]))


class Batches:
    """Mini-batches of inputs and targets (N, ...), shuffled anew in each pass.

    These are on the device of the model, the generator is on the CPU. What is left over
    at the end of a pass is dropped. With ``size`` N every batch is all, in its order.
    """

    def __init__(
        self, x: Tensor, y: Tensor, size: int, generator: torch.Generator
    ) -> None:
        if not 1 <= size <= len(x):
            raise ValueError(
                f"size must lie in 1..{len(x)}, the number of examples, got {size}; "
                "give a smaller one."
            )
        self.x, self.y, self.size, self.generator = x, y, size, generator
        self.order = torch.arange(0)
        self.place = 0

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return the next batch: inputs and targets."""
        if self.size == len(self.x):
            return self.x, self.y
        if self.place + self.size > len(self.order):
            self.order = torch.randperm(len(self.x), generator=self.generator)
            self.place = 0
        chosen = self.order[self.place : self.place + self.size].to(self.x.device)
        self.place += self.size
        return self.x[chosen], self.y[chosen]

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to draw on from here."""
        state = self.generator.get_state()
        return {"order": self.order, "place": self.place, "generator": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Draw on from a state that :meth:`state_dict` returned."""
        self.order, self.place = state["order"], state["place"]
        self.generator.set_state(state["generator"])


class Measurement(NamedTuple):
    """What is measured every so many steps, at step 0 and at the end."""

    every: int
    measure: Callable[[Run], Values]  # before an update; must not disturb the run


@dataclass
class Run:
    """One network in training; its ``batch`` is that of the next update.

    The ``objective`` takes the model, inputs and targets of a batch, and returns
    scalars by name: "loss" is differentiated, all are recorded, averaged over ``every``
    steps. The ``generators`` are those that model or measurements draw from in
    training, the ``stand_in`` computes updates in place of the model, with its
    parameters, and the ``schedule`` gives the learning rate after so many steps.
    ``shared`` is what it was made of by :func:`shared_by_runs`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Callable[..., dict[str, Tensor]]
    batches: Batches
    measurements: Mapping[str, Measurement]
    every: int
    generators: Mapping[str, torch.Generator] = field(default_factory=dict)
    stand_in: nn.Module | None = None  # see data_parallel
    schedule: Callable[[int], float] | None = None
    shared: Any = None  # held here for the next run
    step: int = 0  # updates done
    opening: list[float] = field(default_factory=list)  # as in a RunRecord
    curves: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Draw the batch of the next update."""
        self._before_draw = self.batches.state_dict()
        self.batch = self.batches.draw()

    def loss(self, model: nn.Module) -> Tensor:
        """Loss of a model on the batch of the next update (scalar, nats)."""
        return self.objective(model, *self.batch)["loss"]

    def measure(self, steps: int) -> None:
        """Take the measurements that are due, all of them at the last of the steps."""
        for name, (every, measure) in self.measurements.items():
            if self.step % every == 0 or self.step == steps:
                self._keep(name, measure(self))

    def update(self) -> float:
        """Train on the next batch; return its loss before the update."""
        self.model.train()
        model = self.model if self.stand_in is None else self.stand_in.train()
        values = self.objective(model, *self.batch)
        self.optimizer.zero_grad()
        values["loss"].backward()  # type: ignore[no-untyped-call]
        if self.schedule is not None:  # of the step alone: a resumed run needs no more
            for group in self.optimizer.param_groups:
                group["lr"] = self.schedule(self.step)
        self.optimizer.step()
        self.step += 1
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.item()
        if self.step % self.every == 0:
            self._keep("training", {k: s / self.every for k, s in self.sums.items()})
            self.sums = {}
        loss = values["loss"].item()
        if len(self.opening) < OPENING:
            self.opening.append(loss)
        self.__post_init__()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return all that :meth:`load_state_dict` needs to go on, bit for bit."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "batches": self._before_draw,
            "generators": {k: g.get_state() for k, g in self.generators.items()},
            **{name: getattr(self, name) for name in PROGRESS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that :meth:`state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        for name, rand in self.generators.items():
            rand.set_state(state["generators"][name])
        for name in PROGRESS:
            setattr(self, name, state[name])
        self.__post_init__()

    def _keep(self, name: str, values: Values) -> None:
        curve = self.curves.setdefault(name, {"step": []})
        curve["step"].append(self.step)
        for key, value in values.items():
            curve.setdefault(key, []).append(value)


@dataclass(frozen=True)
class Scale:
    """An experiment in one size.

    ``settings`` are all that defines a run, in numbers, strings and lists: "steps" is
    its length; "variants" maps each name to what differs, its own "steps" perhaps;
    "tuning" says which are chosen first, see :mod:`normbook.lab.tuning`.
    ``data`` names the data set; it is empty for numbers that the run draws itself.
    """

    settings: Settings
    seeds: tuple[int, ...]  # unless others are asked for
    data: str
    about: str  # one line for ``normbook experiments``


@dataclass(frozen=True)
class Experiment:
    """A comparison of variants of a network, to be run at one of several scales.

    The scale "live" takes embedded data and seconds; "paper" is what the source did.
    ``begin`` takes the settings of one variant, a seed, what
    :func:`~normbook.lab.runner.load_data` returns, and the device; it returns the
    :class:`Run` at step 0. ``figures`` draws a record of this experiment, RecordError
    if it is of another one. With ``is_steady`` another machine repeats the first losses
    in float32, too.
    """

    name: str
    title: str
    source: str  # the publication and figure that it repeats
    scales: Mapping[str, Scale]
    begin: Callable[[Settings, int, Any, torch.device], Run]
    figures: Callable[[Record], dict[str, Figure]]
    is_steady: bool = True  # see runner.PRECISIONS


def required(data: Dataset | None) -> Dataset:
    """Return the data set, which must be there."""
    if data is None:
        raise TypeError("data must be a Dataset, got None; pass load_data(scale).")
    return data


def shared_by_runs(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Let runs share what is made of the very same data set with equal settings.

    The last result is kept as long as a run holds it; none may change it.
    """
    last: dict[str, Any] = {}

    @functools.wraps(prepare)
    def prepared(data: Any, *settings: Any) -> Any:
        if last and last["data"] is data and last["settings"] == settings:
            return last["result"]()
        result = prepare(data, *settings)
        weak = weakref.ref(result, lambda _: last.clear())
        last.update(data=data, settings=settings, result=weak)
        return result

    return prepared


def classification(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Objective of a classifier: mean cross-entropy (nats), and accuracy (0 to 1).

    The model returns one score for each class; y holds int64 labels, shape (N,).
    """
    scores = model(x)
    accuracy = (scores.detach().argmax(1) == y).double().mean()
    return {"loss": nn.functional.cross_entropy(scores, y), "accuracy": accuracy}
