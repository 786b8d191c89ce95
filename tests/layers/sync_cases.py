"""What processes do to test SyncBatchNorm, each with its shard of a batch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

import torch
from layer_pairs import draw, run, stirred
from torch import Tensor, distributed, nn

from normbook.layers import sync_batch_norm as module
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.sync_batch_norm import SyncBatchNorm
from normbook.running_statistics import PopulationStatistics, merge

CHANNELS = 4
COLLECTIVES = [
    *("all_gather", "all_gather_object", "all_reduce", "all_to_all", "barrier"),
    *("broadcast", "broadcast_object_list", "gather", "isend", "recv", "reduce"),
    *("reduce_scatter", "scatter", "send"),
]


class Case(NamedTuple):
    sizes: tuple[int, ...]  # examples of each process
    rest: tuple[int, ...] = ()  # axes after the channels
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    dtype: torch.dtype = torch.float64
    is_far: bool = False  # x: mean / deviation = 1e4, in digits that float32 holds

    def whole(self, seed: int) -> Tensor:
        """Return the batch: two of x (0 and 1), two of dl_dy (2 and 3)."""
        values = draw(sum(self.sizes), CHANNELS, *self.rest, seed=seed)
        if self.is_far and seed < 2:
            values = (values * 8).round() / 8 + 30_000
        return values.to(self.dtype)

    def shard(self, seed: int) -> Tensor:
        return self.own(self.whole(seed))

    def own(self, whole: Tensor) -> Tensor:
        rank = distributed.get_rank()
        start = sum(self.sizes[:rank])
        return whole[start : start + self.sizes[rank]]


def with_state(layer: Any, case: Case) -> Any:
    """Set gains, biases and running statistics of the layer to values of its own."""
    layer = stirred(layer(CHANNELS, **case.options).double())
    return layer.to(case.options.get("dtype", torch.float64))


def two_steps(layer: Any, x: list[Tensor], dl_dy: list[Tensor]) -> dict[str, Tensor]:
    """Outputs, gradients and buffers of the second of two steps."""
    run(layer, x[0], dl_dy[0])
    return run(layer, x[1], dl_dy[1])


def share(case: Case) -> dict[str, Tensor]:
    layer = with_state(SyncBatchNorm, case)
    shards = [case.shard(seed) for seed in range(4)]
    return two_steps(layer, shards[:2], shards[2:])


# --- cases for three processes


def three(cases: dict[str, Case]) -> dict[str, Any]:
    found: dict[str, Any] = {name: share(case) for name, case in cases.items()}
    return found | {
        "groups": groups(),
        "foreign": foreign(),
        "calls": calls(),
        "single": refusal((1, 0, 0)),
        "none": none(),
        "recalibrated": recalibrated(),
        "twice": twice(),
        "missing": missing(),
    }


GROUPS = Case((2, 3, 4))  # processes 0 and 1 share a batch, process 2 has its own


def error_of(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - told there
        return f"{type(error).__name__}: {error}"
    return ""


def groups() -> dict[str, Tensor]:
    options = {"process_group": own_and_other()[0]}
    return share(GROUPS._replace(options=options))


def foreign() -> str:
    """Use a group to which the process does not belong."""
    layer = SyncBatchNorm(CHANNELS, process_group=own_and_other()[1])
    return error_of(layer, torch.ones(2, CHANNELS))


def own_and_other() -> list[Any]:
    groups = [distributed.new_group([0, 1]), distributed.new_group([2])]
    return groups[:: -1 if distributed.get_rank() == 2 else 1]


@contextlib.contextmanager
def counted() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """List the collective calls, each with the shape of what is sent."""
    found: list[tuple[str, tuple[int, ...]]] = []

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(distributed, name)

        def call(*args: Any, **options: Any) -> Any:
            sent = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
            found.append((name, *sent))  # type: ignore[arg-type]
            return function(*args, **options)

        return call

    with contextlib.ExitStack() as stack:
        for name in COLLECTIVES:
            stack.enter_context(mock.patch.object(distributed, name, counting(name)))
        yield found


def calls() -> dict[str, list[Any]]:
    """Collective calls by what the layer does; process 1 has no example."""
    case = Case((3, 0, 2), (2,))
    layer = with_state(SyncBatchNorm, case)
    found = {}
    x = case.shard(0).requires_grad_()
    with counted() as found["forward"]:
        y = layer(x)
    with counted() as found["backward"]:
        y.sum().backward()
    with counted() as found["without gradient of x"]:
        layer(x.detach()).sum().backward()
    layer.eval()
    with counted() as found["evaluation"]:
        layer(x).sum().backward()
    layer.running_mean = layer.running_var = None
    filled = case.whole(0)
    with counted() as found["evaluation by the batch"]:
        layer(filled)
    return found


def refusal(sizes: tuple[int, ...]) -> tuple[str, bool]:
    """Error of a batch with a single value, and whether the layer is as before."""
    case = Case(sizes)
    layer = with_state(SyncBatchNorm, case)
    before = [buffer.clone() for buffer in layer.buffers()]
    error = error_of(layer, case.shard(0))
    return error, all(map(torch.equal, before, layer.buffers()))


def none() -> dict[str, Tensor]:
    return share(Case((0, 0, 0), (2,)))


RECALIBRATION = Case((4, 1, 0)), Case((0, 3, 6))


def recalibrated() -> dict[str, Tensor]:
    layer = with_state(SyncBatchNorm, Case(()))
    recalibrate(layer, [case.shard(0) for case in RECALIBRATION])
    return dict(layer.state_dict())


def twice() -> str:
    """Ask for a second derivative."""
    case = Case((2, 2, 2))
    x = case.shard(0).requires_grad_()
    y = with_state(SyncBatchNorm, case)(x)
    (slope,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    return error_of(slope.sum().backward)


PATIENCE = 2.0  # seconds


def missing() -> dict[str, tuple[str, float]]:
    """Process 1 raises before it sends anything, the others wait for it."""
    found = {}
    case = Case((2, 3, 4))
    x = case.shard(0).requires_grad_()
    is_bad = distributed.get_rank() == 1
    for where in ("forward", "backward"):
        options = {"process_group": impatient()}
        layer = with_state(SyncBatchNorm, case._replace(options=options))
        distributed.barrier()
        if where == "backward":
            y = layer(x)
        start = time.monotonic()
        if where == "forward":
            error = error_of(layer, x[:, 1:] if is_bad else x)
        else:
            error = "a bad loss" if is_bad else error_of(y.sum().backward)
        found[where] = error, time.monotonic() - start
        distributed.barrier()
    return found


# --- cases for two processes


def two(cases: dict[str, Case]) -> dict[str, Any]:
    found: dict[str, Any] = {name: share(case) for name, case in cases.items()}
    return found | {
        "mutants": {name: mutated(name) for name in MUTATIONS},
        "ddp": ddp(),
    }


def average_variances(parts: Any) -> PopulationStatistics:
    """Leave out the spread of the means."""
    parts = [part for part in parts if part.size]
    size = sum(part.size for part in parts)
    mean = sum(part.mean * part.size for part in parts) / size
    return PopulationStatistics(
        mean, sum(part.var * part.size for part in parts) / size, size
    )


def ignore_sizes(parts: Any) -> PopulationStatistics:
    """Let every shard count the same."""
    parts = [part for part in parts if part.size]
    size = sum(part.size for part in parts)
    merged = merge([part._replace(size=1) for part in parts])
    return merged._replace(size=size)


def first_only(parts: Any) -> PopulationStatistics:
    first: PopulationStatistics = next(iter(parts))
    return first


def not_at_all(tensor: Tensor, group: Any = None) -> None:
    pass


MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "variances averaged": (module, "merge", average_variances),
    "sizes ignored": (module, "merge", ignore_sizes),
    "one shard alone": (module, "merge", first_only),
    "no exchange backward": (distributed, "all_reduce", not_at_all),
}
UNEQUAL = Case((3, 4), (5,))


def mutated(name: str) -> dict[str, Tensor]:
    with mock.patch.object(*MUTATIONS[name]):
        return share(UNEQUAL)


def network() -> nn.Sequential:
    first, last = nn.Linear(3, CHANNELS), nn.Linear(CHANNELS, 2)
    model = nn.Sequential(first, BatchNorm1d(CHANNELS), nn.Tanh(), last)
    stirred(model.double(), -1, 1)[1].reset_running_stats()
    return model


def train(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model.state_dict()


def batch() -> tuple[Tensor, Tensor]:
    return draw(6, 3, seed=0), draw(6, 2, seed=1)


def ddp() -> dict[str, Tensor]:
    model = SyncBatchNorm.convert_sync_batchnorm(network())
    model = nn.parallel.DistributedDataParallel(model)
    rank = distributed.get_rank()
    return train(model, *(values.chunk(2)[rank] for values in batch()))


# --- processes that do not go on


def impatient() -> Any:
    return distributed.new_group(timeout=timedelta(seconds=PATIENCE))


def end(signal_number: int, where: str) -> None:
    """Process 1 is struck by a signal before it sends its part."""
    case = Case((2, 3), options={"process_group": impatient()})
    layer = with_state(SyncBatchNorm, case)
    x = case.shard(0).requires_grad_()
    distributed.barrier()
    strike(signal_number, where == "forward")
    y = layer(x)
    strike(signal_number, where == "backward")
    y.sum().backward()


def strike(signal_number: int, is_time: bool) -> None:
    if is_time and distributed.get_rank() == 1:
        os.kill(os.getpid(), signal_number)
