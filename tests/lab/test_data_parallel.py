"""Several processes train as one does, up to rounding; bit for bit when resumed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny
import torch
from test_ranks import ended, start, together
from torch import Tensor, nn

from normbook.__main__ import main
from normbook.errors import RunError
from normbook.experiments import catalogue
from normbook.lab import processes, record, tuning
from normbook.lab.data_parallel import DataParallel, share_batches
from normbook.lab.experiment import Run
from normbook.lab.ranks import Ranks
from normbook.lab.record import Record
from normbook.lab.runner import check, load_data, run, variant_settings
from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.group_norm import GroupNorm
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.layers.small_batches import GhostBatchNorm1d

STEPS = 4
# Sums in another order, and what a few steps make of that.
ROUNDING = 1e-9
# Not divisible by the number of processes, nor the 15 examples of deep_linear.
SIZE = 7
# At least one variant of each experiment, and each layer that mixes examples.
VARIANTS = {
    "sigmoid_net": ["none", "noisy_batch_norm"],
    "vgg": ["noisy_batch_norm"],
    "deep_linear": ["batch_norm rate=1e-07", "l2 rate=1e-07", "linf rate=1e-07"],
    "batch_128": ["layer_norm", "batch_norm_on_scores"],
    "batch_4": ["unbiased_batch_norm"],
    "vowels_longer_tuned": ["per_step_padded", "sequence_wise"],
    # With batch norm the first word of all questions, one and the same, has a gradient
    # of rounding errors alone, and Adam divides it by its size.
    "reading": ["layer_norm"],
    "reading_tuned": ["layer_norm gain=0.1"],
}
CASES = [
    (name, variant)
    for name in catalogue.EXPERIMENTS
    for variant in VARIANTS.get(
        name, [*catalogue.EXPERIMENTS[name].scales["live"].settings["variants"]][-1:]
    )
]
SMALL = [("tiny", "noisy, rate=0.1"), ("fewer", "plain"), ("ghosts", "plain")]
LOCAL = ("local", "plain")
Case = tuple[str, str]


class Trained(NamedTuple):
    """What is left of a run."""

    losses: list[float]
    curves: dict[str, Any]
    state: dict[str, Tensor]


def begin(name: str, variant: str) -> Run:
    """Begin a run in float64, so that other sums differ by rounding only."""
    if name in CHANGES:
        settings = variant_settings(tiny.EXPERIMENT.scales["live"], variant)
        return CHANGES[name](tiny.begin(settings, 0, None, torch.device("cpu")))
    scale = catalogue.EXPERIMENTS[name].scales["live"]
    settings = variant_settings(scale, variant)
    settings |= tuning.first_point(scale.settings, variant)
    settings |= {"batch_size": SIZE, "steps": STEPS, "average_over": 2}
    if name == "deep_linear":
        settings["examples"] = 15
    experiment, cpu = catalogue.EXPERIMENTS[name], torch.device("cpu")
    begun = experiment.begin(settings, 0, load_data(scale), cpu)
    if settings["dtype"] == "float32":
        begun.model.double()
        begun.batches.x = begun.batches.x.double()
        begun.batch = begun.batch[0].double(), begun.batch[1]
        begun.measurements = {}  # its test images are in float32
    cheap = {"test", "recalibrated"} & begun.measurements.keys()
    begun.measurements = {key: begun.measurements[key] for key in cheap}
    return begun


def with_layers(begun: Run, norm: nn.Module, size: int = 5) -> Run:
    begun.batches.size = size
    drawn = torch.Generator().manual_seed(0)
    first, last = nn.Linear(3, 4), nn.Linear(4, 1)
    model = nn.Sequential(first, norm, nn.Tanh(), last).double()
    for layer in (first, last):
        nn.init.normal_(layer.weight, generator=drawn)
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    begun = replace(begun, model=model, optimizer=optimizer, measurements={})
    begun.batch = begun.batches.draw()
    return begun


CHANGES: dict[str, Callable[[Run], Run]] = {
    "tiny": lambda begun: begun,
    # Batches of two examples: of three processes one has none.
    "fewer": lambda begun: with_layers(begun, BatchNorm1d(4), size=2),
    # The statistics are those of groups, which no shard has.
    "ghosts": lambda begun: with_layers(begun, GhostBatchNorm1d(4, 2)),
    # A batch of which two processes have two and three.
    "local": lambda begun: with_layers(begun, BatchNorm1d(4)),
}


def train(begun: Run, rank: int = 0) -> Trained:
    while begun.step < STEPS:
        begun.update()
    if rank == 0:  # the others do not answer: a measurement must not ask them
        begun.measure(STEPS)
    return Trained(begun.opening, begun.curves, begun.model.state_dict())


def train_all(cases: list[Case]) -> dict[Case, Trained]:
    """Train with all processes."""
    ranks = Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    found = {}
    for case in cases:
        begun = begin(*case)
        share_batches(begun, ranks, has_local_statistics=case == LOCAL)
        found[case] = train(begun, ranks.rank)
    return found


@pytest.fixture(scope="module")
def by_two() -> list[dict[Case, Trained]]:
    return processes.run(train_all, 2, [*CASES, LOCAL], timeout=200)


@pytest.fixture(scope="module")
def by_three() -> list[dict[Case, Trained]]:
    return processes.run(train_all, 3, SMALL, timeout=100)


def assert_equal(found: Trained, expected: Trained) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=ROUNDING)
    assert found.curves.keys() == expected.curves.keys()
    for name, curve in expected.curves.items():
        for quantity, values in curve.items():
            one, other = np.array(found.curves[name][quantity]), np.array(values)
            if other.dtype.kind == "U":  # a text
                assert one.tolist() == values
                continue
            allowed = ROUNDING * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=0, atol=allowed)
    largest = max(t.abs().max().item() for t in expected.state.values())
    for key, tensor in expected.state.items():
        distance = (found.state[key] - tensor).abs().max().item()
        assert distance <= ROUNDING * largest, key


# --- the same result


def test_every_experiment_of_the_book_is_tried() -> None:
    assert {name for name, _ in CASES} == {*catalogue.EXPERIMENTS}


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_two_processes_train_as_one_does(
    case: Case, by_two: list[dict[Case, Trained]]
) -> None:
    assert_equal(by_two[0][case], train(begin(*case)))


@pytest.mark.parametrize("case", SMALL, ids=" ".join)
def test_three_processes_train_as_one_does(
    case: Case, by_three: list[dict[Case, Trained]]
) -> None:
    assert_equal(by_three[0][case], train(begin(*case)))


def test_all_processes_have_the_same_bits(
    by_two: list[dict[Case, Trained]], by_three: list[dict[Case, Trained]]
) -> None:
    for first, *others in (by_two, by_three):
        for case in first.keys() - {LOCAL}:
            expected = first[case]
            for other in others:
                assert other[case].losses == expected.losses
                for key, tensor in expected.state.items():
                    assert torch.equal(other[case].state[key], tensor), (case, key)


def test_what_treats_each_example_by_itself_is_given_the_shard_only() -> None:
    layers = [LayerNorm(4), RMSNorm(4), GroupNorm(2, 4)]
    shared: Any = DataParallel(nn.Sequential(*layers), Ranks(0, 2)).model
    assert [*shared] == layers


# --- statistics of each process alone


class Halves(nn.Module):
    """Applies a model to the first two examples and to the others."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.model(x[:2]), self.model(x[2:])])


def test_local_statistics_are_those_of_each_shard(
    by_two: list[dict[Case, Trained]],
) -> None:
    found, begun = by_two[0][LOCAL], begin(*LOCAL)
    assert found.losses != pytest.approx(train(begin(*LOCAL)).losses, rel=1e-3)
    begun.stand_in = Halves(begun.model)
    expected = train(begun)
    assert found.losses == pytest.approx(expected.losses, rel=ROUNDING)
    for name, _ in begun.model.named_parameters():
        torch.testing.assert_close(found.state[name], expected.state[name])


@pytest.mark.parametrize(
    ("name", "variant", "count", "message"),
    [
        (*LOCAL, 3, "two examples .* in every process, got a batch of 5 for 3 proc"),
        (
            "vowels_longer_tuned",
            "per_step",
            2,
            "made of nn.Sequential, got a Recurrent",
        ),
    ],
)
def test_what_cannot_have_local_statistics_is_refused(
    name: str, variant: str, count: int, message: str
) -> None:
    with pytest.raises(RunError, match=f"--local-statistics needs .*{message}"):
        share_batches(begin(name, variant), Ranks(0, count), has_local_statistics=True)


# --- the command


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--data-parallel"], 1, "--data-parallel needs several processes, got one"),
        (["--local-statistics"], 2, "--timeout need --data-parallel"),
        (["--timeout", "3"], 2, "--timeout need --data-parallel"),
    ],
)
@pytest.mark.parametrize("is_dry", [[], ["--dry-run"]])
def test_options_that_make_no_sense_are_refused(
    options: list[str],
    code: int,
    message: str,
    is_dry: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "vgg", *options, *is_dry]) == code
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("as_one_of_two")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "the runs"),
        (["--data-parallel"], "every batch"),
        (
            ["--data-parallel", "--local-statistics"],
            "every batch, each with statistics of its own",
        ),
    ],
)
def test_a_dry_run_tells_what_the_processes_share(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "tiny", *options, "--dry-run"]) == 0
    assert f"  2 processes share {words}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("as_one_of_two")
def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(RunError, match=r"--timeout must be .* above 0, got 0; 600"):
        check(tiny.EXPERIMENT, parallel="batches", timeout=0)


@pytest.fixture
def as_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look like the first of two processes of torchrun."""
    monkeypatch.setitem(catalogue.EXPERIMENTS, "tiny", tiny.EXPERIMENT)
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
        monkeypatch.setenv(f"LOCAL_{name}", str(value))


def run_tiny(out: Path, *options: str) -> tuple[str, ...]:
    seeds = ("--seeds", "0", "1", "2")
    return "tiny.py", *options, *seeds, "--data-parallel", "--out", str(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of two processes that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "tiny.json"
    (code, text), other = together(*run_tiny(out))
    assert code == 0, text
    assert text.startswith(f"{out}: 6 runs in ")
    assert other == (0, "")
    assert list(out.parent.iterdir()) == [out]
    return record.load(out)


def test_the_record_is_that_of_one_process_and_says_how_it_was_made(
    whole: Record,
) -> None:
    alone = run(tiny.EXPERIMENT, seeds=[0, 1, 2])
    for one, other in zip(whole.runs, alone.runs, strict=True):
        assert (one.variant, one.seed) == (other.variant, other.seed)
        # A record keeps seven digits.
        assert one.opening == pytest.approx(other.opening, rel=1e-6)
    made = {"threads": 1, "ranks": 2, "parallel": "batches"}
    assert whole.device == {**alone.device, **made}
    command = f"torchrun --nproc-per-node 2 -m {alone.command} --data-parallel"
    assert whole.command == command


def disturb(out: Path, wait: str, number: int, *options: str) -> list[tuple[int, str]]:
    """Send a signal to the second of two processes, once a run is finished."""
    started = start(*run_tiny(out, "--slow"), *options)
    deadline = time.monotonic() + 100
    while not Path(f"{out}.partial/{wait}.pt").exists():
        assert time.monotonic() < deadline, ended(started)
        time.sleep(0.02)
    started[1].send_signal(number)
    first = ended(started[:1])
    if number == signal.SIGSTOP:
        started[1].kill()
    return [*first, *ended(started[1:])]


def test_a_run_that_is_disturbed_ends_and_goes_on_bit_for_bit(
    whole: Record, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.json"
    (code, text), (other, _) = disturb(out, "plain-0", signal.SIGTERM)
    assert (code, other) == (130, 130)
    assert text.startswith("normbook: interrupted; the same command with --resume")
    noisy, soon = "noisy, rate=0.1", ("--resume", "--timeout", "8")
    assert disturb(out, "plain-2", signal.SIGKILL, "--resume")[0] == (1, "")
    (code, text), _ = disturb(out, f"{noisy}-0", signal.SIGSTOP, *soon)
    assert "no process may keep the others waiting for more than 8 s" in text
    with pytest.raises(RunError, match="these differ: device"):
        run(tiny.EXPERIMENT, seeds=[0, 1, 2], out=out, is_resumed=True)
    assert together(*run_tiny(out), "--resume")[0][0] == 0
    again = record.load(out)
    assert [(r.opening, r.curves) for r in again.runs] == [
        (r.opening, r.curves) for r in whole.runs
    ]
