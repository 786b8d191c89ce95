"""Batch norm over shards in several processes equals that of one whole batch."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
import sync_cases
import torch
from layer_pairs import assert_equal, distance
from sync_cases import CHANNELS, UNEQUAL, Case, with_state
from torch import Tensor, nn

from normbook.errors import ProcessError
from normbook.lab.processes import run as run_processes
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.recalibrate import recalibrate

# float64; the same sums in another order.
EXACT = 1e-12
# Half a unit in the last place, and some roundings of float32 on the way.
FLOAT32 = 1e-6
BFLOAT16 = 2**-8 + FLOAT32
# Seconds. Nothing here takes that long;
LONG = 300.0
# and this is what a loaded machine may need for work of milliseconds.
SLACK = 30.0
ALL = slice(None)

Found = list[dict[str, Any]]

THREE = {
    "equal": Case((3, 3, 3)),
    "unequal": Case((4, 1, 2), (5,)),
    "one value a shard": Case((1, 1, 1)),
    "empty": Case((3, 0, 2), (5, 6)),
    "5D": Case((1, 2, 2), (5, 6, 7)),
    "6D": Case((1, 2, 2), (2, 3, 5, 1)),
    "no affine": Case((4, 1, 2), options={"affine": False}),
    "no bias": Case((4, 1, 2), options={"bias": False}),
    "cumulative": Case((4, 0, 2), options={"momentum": None}),
    "frozen": Case((4, 1, 2), options={"momentum": 0.0}),
    "untracked": Case((4, 1, 2), options={"track_running_stats": False}),
}
TWO = {
    "equal": Case((3, 3), (5,)),
    "unequal": UNEQUAL,
    "empty first": Case((0, 5)),
    "far": Case((30, 70), (5,), {"dtype": torch.float32}, torch.float32, is_far=True),
    "half": Case((3, 6), (5,), {"dtype": torch.float32}, torch.bfloat16),
}


@pytest.fixture(scope="module")
def three() -> Found:
    return run_processes(sync_cases.three, 3, THREE, timeout=LONG)


@pytest.fixture(scope="module")
def two() -> Found:
    return run_processes(sync_cases.two, 2, TWO, timeout=LONG)


def of_torch(case: Case, part: slice = ALL) -> dict[str, Tensor]:
    """What torch computes in float64 on the whole batch, or on a part of it."""
    batches = [case.whole(seed)[part].double() for seed in range(4)]
    if len(case.rest) > 3:  # torch has no layer for so many axes
        batches = [values.flatten(4) for values in batches]
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    options = {
        k: v for k, v in case.options.items() if k not in ("dtype", "process_group")
    }
    layer = with_state(kinds[batches[0].ndim], case._replace(options=options))
    found = sync_cases.two_steps(layer, batches[:2], batches[2:])
    for name in ("y", "dl_dx"):
        found[name] = found[name].reshape(-1, CHANNELS, *case.rest)
    return found


def joined(shards: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Outputs side by side, gradients of parameters added up, buffers of the first."""
    found = {}
    for name in shards[0]:
        values = [shard[name] for shard in shards]
        if name in ("y", "dl_dx"):
            found[name] = torch.cat(values)
        else:
            is_gradient = name.startswith("dl_d")
            found[name] = torch.stack(values).sum(0) if is_gradient else values[0]
    return found


def largest_distance(
    shards: list[dict[str, Tensor]], case: Case, part: slice = ALL
) -> float:
    found, expected = joined(shards), of_torch(case, part)
    assert found.keys() == expected.keys()
    return max(distance(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", THREE)
def test_three_shards_equal_one_batch(three: Found, name: str) -> None:
    assert largest_distance([found[name] for found in three], THREE[name]) <= EXACT
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        first, *others = (found[name].get(buffer) for found in three)
        # To the last bit.
        assert first is None or all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("name", ["equal", "unequal", "empty first"])
def test_two_shards_equal_one_batch(two: Found, name: str) -> None:
    assert largest_distance([found[name] for found in two], TWO[name]) <= EXACT


@pytest.mark.parametrize("name", sync_cases.MUTATIONS)
def test_a_wrong_exchange_is_found(two: Found, name: str) -> None:
    shards = [found["mutants"][name] for found in two]
    assert largest_distance(shards, UNEQUAL) > 1e-3


def test_far_from_0_float32_is_as_exact_as_in_one_batch(two: Found) -> None:
    case = TWO["far"]
    found, exact = joined([found["far"] for found in two]), of_torch(case)
    whole = [case.whole(seed) for seed in range(4)]
    local = sync_cases.two_steps(with_state(BatchNorm1d, case), whole[:2], whole[2:])
    for name in exact:
        allowed = max(distance(local[name], exact[name]), FLOAT32)
        assert distance(found[name], exact[name]) <= allowed, name


def test_half_precision_is_rounded_once(two: Found) -> None:
    found, exact = joined([found["half"] for found in two]), of_torch(TWO["half"])
    assert found["y"].dtype == found["dl_dx"].dtype == torch.bfloat16
    for name, value in exact.items():
        allowed = BFLOAT16 if found[name].dtype == torch.bfloat16 else FLOAT32
        assert distance(found[name], value) <= allowed, name


def test_with_ddp_two_steps_equal_those_of_one_process(two: Found) -> None:
    expected = sync_cases.train(sync_cases.network(), *sync_cases.batch())
    for rank in range(2):
        found = two[rank]["ddp"]
        for name, value in expected.items():
            assert distance(found[f"module.{name}"], value) <= EXACT, name


def test_a_group_shares_its_own_batch_also_if_it_is_a_group_of_one(
    three: Found,
) -> None:
    for ranks, part in ((three[:2], slice(5)), (three[2:], slice(5, None))):
        shards = [found["groups"] for found in ranks]
        assert largest_distance(shards, sync_cases.GROUPS, part) <= EXACT


def test_a_group_of_others_is_refused(three: Found) -> None:
    for found in three:
        assert "process_group must be one of this process" in found["foreign"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("forward", [("all_gather", (2 * CHANNELS + 1,))]),
        ("backward", [("all_reduce", (2, CHANNELS))]),
        ("evaluation", []),
        ("evaluation by the batch", []),
    ],
)
def test_one_message_is_sent_in_each_direction(
    three: Found, what: str, expected: list[Any]
) -> None:
    assert [found["calls"][what] for found in three] == [expected] * 3


def test_messages_do_not_depend_on_who_asks_for_a_gradient(three: Found) -> None:
    names = ["all_gather", "all_reduce"]
    for found in three:
        assert [call[0] for call in found["calls"]["without gradient of x"]] == names


def test_empty_shards_everywhere_count_as_a_batch_and_change_nothing(
    three: Found,
) -> None:
    expected = with_state(BatchNorm1d, Case((0, 0, 0))).state_dict()
    for found in three:
        assert found["none"]["y"].shape == (0, CHANNELS, 2)
        assert found["none"]["num_batches_tracked"] == 2
        for name in ("running_mean", "running_var"):
            assert torch.equal(found["none"][name], expected[name])


def test_recalibrated_shards_equal_recalibrated_batches(three: Found) -> None:
    layer = with_state(BatchNorm1d, Case(()))
    recalibrate(layer, [case.whole(0) for case in sync_cases.RECALIBRATION])
    for found in three:
        assert_equal(found["recalibrated"], layer.state_dict(), EXACT)


def test_a_single_value_in_all_is_refused_by_every_process(three: Found) -> None:
    for found in three:
        error, is_same = found["single"]
        assert error.startswith("ValueError")
        assert "more than 1 value per channel in all processes" in error
        assert is_same


def test_a_second_derivative_is_refused(three: Found) -> None:
    for found in three:
        assert "once_differentiable" in found["twice"]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_nobody_waits_longer_than_the_timeout_for_one_that_raised(
    three: Found, where: str
) -> None:
    for rank in (0, 2):
        error, seconds = three[rank]["missing"][where]
        assert error.startswith("RuntimeError")
        assert seconds < sync_cases.PATIENCE + SLACK
    own = {"forward": "num_features = 4", "backward": "a bad loss"}[where]
    assert own in three[1]["missing"][where][0]


@pytest.mark.parametrize(
    ("number", "where", "call"),
    [
        (signal.SIGSTOP, "forward", "all_gather"),  # it never arrives
        (signal.SIGKILL, "backward", "all_reduce"),
    ],
)
def test_nobody_waits_for_one_that_was_stopped_or_killed(
    number: int, where: str, call: str
) -> None:
    with pytest.raises(ProcessError) as caught:
        run_processes(sync_cases.end, 2, number, where, timeout=LONG)
    pattern = rf"process 0 of 2 raised.*in {call}\n.*RuntimeError"
    assert re.search(pattern, str(caught.value), re.S)
