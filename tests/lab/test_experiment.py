"""The parts of a run: generators, batches, measurements, and their states."""

from __future__ import annotations

import copy
import io
import weakref
from hashlib import sha256

import numpy as np
import pytest
import tiny
import torch

from normbook.data import Dataset
from normbook.lab.experiment import (
    OPENING,
    Batches,
    Run,
    classification,
    generator,
    required,
    shared_by_runs,
)

X = torch.arange(7.0)[:, None]


def batches(size: int, seed: int = 0) -> Batches:
    return Batches(X, 10 * X[:, 0], size, generator(seed, "batches"))


def begin() -> Run:
    settings = {"is_noisy": True, "learning_rate": 0.1, "measure_every": 2}
    return tiny.begin(settings, 0, None, torch.device("cpu"))


def on_the_disk(state: object) -> dict[str, object]:
    """Write a state and read it as a checkpoint is read."""
    content = io.BytesIO()
    torch.save(state, content)
    content.seek(0)
    loaded: dict[str, object] = torch.load(content, weights_only=True)
    return loaded


# --- generators


def test_other_seeds_and_other_purposes_give_other_numbers() -> None:
    names = [(s, p) for s in range(20) for p in ("weights", "noise", "batches")]
    names += [(1, "1 noise"), (11, "noise")]
    drawn = {torch.rand(1, generator=generator(*n)).item() for n in names}
    assert len(drawn) == len(names) - 1  # (11, "noise") stands there twice


def test_the_numbers_are_those_of_the_records() -> None:
    seed = generator(0, "weights").initial_seed()
    assert seed == int.from_bytes(sha256(b"0 weights").digest()[:7])


# --- batches


def test_a_pass_gives_each_example_once_in_an_order_of_its_own_and_drops_the_rest() -> (
    None
):
    found, orders = batches(3), set()
    for _ in range(5):
        drawn = torch.cat([found.draw()[0] for _ in range(2)])[:, 0].tolist()
        assert len(set(drawn)) == 6
        orders.add(tuple(drawn))
    assert len(orders) == 5


def test_targets_belong_to_their_inputs() -> None:
    x, y = batches(4).draw()
    assert torch.equal(y, 10 * x[:, 0])


def test_the_whole_set_is_a_batch_in_its_own_order() -> None:
    found = batches(7)
    before = found.generator.get_state()
    assert torch.equal(found.draw()[0], X)
    assert torch.equal(found.generator.get_state(), before)


def test_a_batch_may_be_one_example() -> None:
    assert batches(1).draw()[0].shape == (1, 1)


@pytest.mark.parametrize("size", [0, 8, -1])
def test_a_batch_that_the_set_cannot_fill_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"must lie in 1\.\.7, .*got {size}; give"):
        batches(size)


# --- runs


def test_the_opening_holds_the_first_losses_and_no_more() -> None:
    run = begin()
    losses = [run.update() for _ in range(OPENING + 3)]
    assert run.opening == losses[:OPENING]


def test_measurements_are_taken_when_they_are_due_and_at_the_end() -> None:
    run = begin()
    for _ in range(5):
        run.measure(5)
        run.update()
    run.measure(5)
    assert run.curves["weights"]["step"] == [0, 2, 4, 5]
    assert np.shape(run.curves["weights"]["each"]) == (4, 3)


def test_the_loss_of_a_run_is_that_of_the_next_batch() -> None:
    run = begin()
    expected = run.loss(copy.deepcopy(run.model)).item()
    assert run.update() == expected


@pytest.mark.parametrize("updates", [0, 1, 2, 7, 10, 13])
def test_a_run_goes_on_from_a_state_bit_for_bit(updates: int) -> None:
    one, other = begin(), begin()
    for run, count in ((one, updates), (other, 4)):
        for _ in range(count):
            run.measure(30)
            run.update()
    other.load_state_dict(on_the_disk(one.state_dict()))
    for _ in range(15):
        one.measure(30)
        other.measure(30)
        assert one.update() == other.update()
    assert repr(one.curves) == repr(other.curves)
    assert one.opening == other.opening


def test_a_state_lacks_nothing_that_the_next_steps_need() -> None:
    state = begin().state_dict()
    assert {"model", "optimizer", "batches", "generators", "step"} <= state.keys()
    for key in state:
        with pytest.raises(KeyError):
            begin().load_state_dict({k: v for k, v in state.items() if k != key})


# --- the rest


def test_the_objective_of_a_classifier_is_its_cross_entropy_and_accuracy() -> None:
    scores = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([1, 1, 0])
    found = classification(torch.nn.Identity(), scores, y)
    p = np.exp(scores.numpy()) / np.exp(scores.numpy()).sum(1, keepdims=True)
    by_hand = -np.log(p[range(3), y]).mean()
    assert found["loss"].item() == pytest.approx(by_hand, rel=1e-12)
    assert found["accuracy"].item() == pytest.approx(2 / 3)


def test_data_that_are_needed_must_be_given() -> None:
    with pytest.raises(TypeError, match=r"must be a Dataset, got None; pass load_data"):
        required(None)
    data = Dataset(*(np.zeros(1) for _ in Dataset._fields))
    assert required(data) is data


def test_runs_share_what_is_made_of_the_same_data_with_the_same_settings() -> None:
    @shared_by_runs
    def scaled(data: list[float], factor: float) -> torch.Tensor:
        return factor * torch.tensor(data)

    data = [1.0, 2.0]
    one = scaled(data, 2.0)
    assert scaled(data, 2.0) is one
    assert scaled([*data], 2.0) is not one
    other = scaled(data, 3.0)
    assert other.tolist() == [3.0, 6.0]
    assert scaled(data, 2.0).tolist() == one.tolist() == [2.0, 4.0]
    assert scaled([5.0], 2.0).tolist() == [10.0]


def test_what_runs_share_goes_with_the_last_of_them() -> None:
    made = []

    @shared_by_runs
    def zeros(data: list[float]) -> torch.Tensor:
        made.append(len(data))
        return torch.zeros(len(data))

    data = [1.0, 2.0]
    first = zeros(data)
    second = zeros(data)
    weak = weakref.ref(first)
    del first
    assert zeros(data) is second
    del second
    assert weak() is None
    zeros(data)
    assert made == [2, 2]


def test_what_is_trained_on_is_averaged_over_the_updates_of_a_measurement() -> None:
    run = begin()
    run.every = 2
    losses = [run.update() for _ in range(5)]
    kept = run.curves["training"]
    assert kept["step"] == [2, 4]
    assert kept["loss"] == pytest.approx([np.mean(losses[:2]), np.mean(losses[2:4])])
