"""Batch norm per time step: each step as a layer of its own, and what lies beyond."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from layer_pairs import EXACT, assert_equal, distance, draw
from test_masked_batch_norm import make as make_other
from test_masked_batch_norm import run as run_other
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from normbook.layers.batch_norm import BatchNorm1d
from normbook.layers.recalibrate import recalibrate
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d

STEPS = 4
MASK = torch.tensor([True, True, False, True, False, True, True])
ALONE = torch.tensor([False, False, True, False, False, False, False])
NOBODY = torch.zeros(7, dtype=torch.bool)
each_mode = pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])


def make(**options: Any) -> Any:
    """Make a layer of 3 channels with a random state in every row."""
    layer = PerStepBatchNorm1d(3, STEPS, **{"dtype": torch.float64} | options)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for value in layer.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.5, 2, generator=generator)
    return layer


class AtStep(nn.Module):
    """A layer at one step, with one argument."""

    def __init__(self, layer: Any, step: int) -> None:
        super().__init__()
        self.layer, self.step = layer, step
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.layer(x, self.step, mask)
        return y


def one_step(layer: Any, step: int, kind: Any) -> Any:
    """Make an ordinary layer with the state of one step."""
    other = make_other(kind, momentum=layer.momentum)
    state = {k: v[step] for k, v in layer.named_buffers()}
    other.load_state_dict(dict(layer.named_parameters()) | state)
    return other.train(layer.training)


def slopes(layer: Any, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    found = run_other(layer, x, mask, draw(7, 3, seed=1))
    return {k: found[k] for k in ("y", "dl_dx", "dl_dweight", "dl_dbias")}


@each_mode
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "some"])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_a_step_is_batch_norm_with_its_own_statistics(
    is_training: bool, mask: Tensor | None, momentum: float | None
) -> None:
    layer = make(momentum=momentum)
    for step in (0, 1, 1, 2):  # so that the counts differ
        layer(draw(7, 3, seed=step), step)
    layer.train(is_training)
    kind = BatchNorm1d if mask is None else MaskedBatchNorm1d
    for step in range(3):
        other, x = one_step(layer, step, kind), draw(7, 3, seed=9)
        found = slopes(AtStep(layer, step), x, mask)
        assert_equal(found, slopes(other, x, mask), 0.0)
        row = {k: v[step] for k, v in layer.named_buffers()}
        assert_equal(row, dict(other.named_buffers()), 0.0)


def test_a_step_changes_no_statistics_but_its_own() -> None:
    layer = make()
    before = copy.deepcopy(layer.state_dict())
    layer(draw(7, 3), 2)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        is_changed = layer.state_dict()[key] != before[key]
        rows = is_changed.reshape(STEPS, -1).any(1)
        assert rows.tolist() == [False, False, True, False]


def test_gain_and_bias_are_shared_over_time() -> None:
    layer = make()
    assert layer.weight.shape == layer.bias.shape == (3,)
    xs, dl_dy = [draw(7, 3, seed=k) for k in range(STEPS)], draw(7, 3, seed=1)
    parts = [slopes(AtStep(make(), k), x, None) for k, x in enumerate(xs)]
    losses = [(layer(x, k) * dl_dy).sum() for k, x in enumerate(xs)]
    torch.autograd.backward(losses)
    for name in ("weight", "bias"):
        total = torch.stack([part[f"dl_d{name}"] for part in parts]).sum(0)
        assert distance(getattr(layer, name).grad, total) < EXACT


def trained(*steps: int) -> Any:
    """Train some steps, each on values of another size, and evaluate then."""
    layer = make(momentum=1.0)
    layer.reset_running_stats()
    for step in steps:
        layer(draw(7, 3, seed=step) * (step + 1), step)
    return layer.eval()


@pytest.mark.parametrize(
    ("steps", "asked", "used"),
    [
        ((0, 1, 2), 1, 1),
        ((0, 1, 2), 3, 2),
        ((0, 1, 2), STEPS, 2),
        ((0, 1, 2, 3), 50, 3),
        ((0, 1), 50, 1),
        ((0, 2), 1, 0),
        ((0, 2), 50, 2),
    ],
)
def test_a_step_never_trained_takes_the_statistics_of_the_last_one_before_it(
    steps: tuple[int, ...], asked: int, used: int
) -> None:
    layer, x = trained(*steps), draw(7, 3, seed=7)
    expected = one_step(layer, used, BatchNorm1d)(x)
    assert torch.equal(layer(x, asked), expected)
    before = copy.deepcopy(layer.state_dict())
    layer(x, asked)
    assert_equal(layer.state_dict(), before, 0.0)


def test_which_step_was_last_goes_through_a_state_dict() -> None:
    layer, x = trained(0, 1), draw(7, 3, seed=7)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make().eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, 50), layer(x, 50))
    assert other.num_batches_tracked.tolist() == [1, 1, 0, 0]


def through_pickle(layer: nn.Module) -> nn.Module:
    copied: nn.Module = pickle.loads(pickle.dumps(layer))  # noqa: S301 - our own bytes
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_is_independent(copied: Any) -> None:
    layer = trained(0, 1)
    twin = copied(layer).train()
    before = copy.deepcopy(layer.state_dict())
    twin(draw(7, 3), 1)
    assert_equal(layer.state_dict(), before, 0.0)
    assert not torch.equal(twin.running_mean, layer.running_mean)


@pytest.mark.parametrize("momentum", [0.3, 0.0, None])
def test_taking_in_moments_is_calling_the_layer_at_each_of_the_first_steps(
    momentum: float | None,
) -> None:
    xs = [draw(n, 3, seed=n) for n in (7, 7, 2)]
    ours, other = make(momentum=momentum), make(momentum=momentum)
    for step, x in [(0, draw(7, 3, seed=1)), *enumerate(xs)]:  # so that counts differ
        other(x, step)
    ours(draw(7, 3, seed=1), 0)
    mean = torch.stack([x.mean(0) for x in xs])
    var = torch.stack([x.var(0, correction=0) for x in xs])
    ours.take_in(mean, var, [len(x) for x in xs])
    assert_equal(ours.state_dict(), other.state_dict(), EXACT)


def test_moments_that_cannot_be_taken_in_change_nothing() -> None:
    layer, moments = make(), torch.ones(2, 3, dtype=torch.float64)
    for counts, match in (([7, 1], "count must be"), ([7], "zip")):
        with pytest.raises(ValueError, match=match):
            layer.take_in(moments, moments, counts)
    assert_equal(layer.state_dict(), make().state_dict(), 0.0)


@pytest.mark.parametrize("last", [1, 2])
def test_one_alive_is_normalized_as_in_evaluation_and_nothing_is_updated(
    last: int,
) -> None:
    layer = trained(*range(last + 1)).train()
    before, x = copy.deepcopy(layer.state_dict()), draw(7, 3, seed=7)
    found = slopes(AtStep(layer, 2), x, ALONE)
    assert_equal(layer.state_dict(), before, 0.0)
    other = one_step(layer, last, MaskedBatchNorm1d).eval()
    assert_equal(found, slopes(other, x, ALONE), 0.0)
    assert layer.training
    assert distance(layer(x[ALONE], 2), found["y"][ALONE]) == 0


def test_two_alive_are_normalized_by_the_batch() -> None:
    layer, x = make(), draw(7, 3)
    mask = torch.arange(7) < 2
    other = one_step(layer, 1, MaskedBatchNorm1d)
    assert_equal(slopes(AtStep(layer, 1), x, mask), slopes(other, x, mask), 0.0)
    assert layer.num_batches_tracked.tolist() == [0, 1, 0, 0]


def test_evaluation_before_any_training_is_by_the_start() -> None:
    layer = PerStepBatchNorm1d(3, STEPS, eps=0.0, dtype=torch.float64).eval()
    for step in (0, 2, 50):
        assert torch.equal(layer(draw(7, 3), step), draw(7, 3))


def test_one_alive_before_any_training_is_refused() -> None:
    layer = make()
    layer(draw(7, 3), 2)
    before = copy.deepcopy(layer.state_dict())
    for x, mask in ((draw(7, 3), ALONE), (draw(1, 3), None)):
        with pytest.raises(ValueError, match="more than 1 live example at step 1, got"):
            layer(x, 1, mask)
    assert_equal(layer.state_dict(), before, 0.0)


@each_mode
def test_with_nobody_alive_the_output_is_0_and_nothing_is_counted(
    is_training: bool,
) -> None:
    layer = make().train(is_training)
    before = copy.deepcopy(layer.state_dict())
    assert torch.equal(layer(draw(7, 3), 1, NOBODY), torch.zeros(7, 3).double())
    assert layer(draw(0, 3), 1).shape == (0, 3)
    assert_equal(layer.state_dict(), before, 0.0)


@each_mode
def test_padding_does_not_matter_and_becomes_0(is_training: bool) -> None:
    x, layers = draw(7, 3), [make().train(is_training) for _ in range(2)]
    other = x.masked_fill(~MASK[:, None], torch.nan)
    found = [
        slopes(AtStep(layer, 1), value, MASK)
        for layer, value in zip(layers, (x, other), strict=True)
    ]
    assert_equal(found[1], found[0], 0.0)
    assert_equal(layers[0].state_dict(), layers[1].state_dict(), 0.0)
    assert (found[0]["y"][~MASK] == 0).all()
    assert (found[0]["dl_dx"][~MASK] == 0).all()


def test_without_running_statistics_both_modes_go_by_the_batch() -> None:
    layer, x = make(track_running_stats=False), draw(7, 3)
    y = layer(x, 0, MASK)
    assert torch.equal(layer.eval()(x, 50, MASK), y)
    with pytest.raises(ValueError, match="more than 1 live entry"):
        layer(x, 0, ALONE)


@pytest.mark.parametrize("check", ["gradcheck", "gradgradcheck"])
@each_mode
def test_derivatives_through_two_steps_equal_differences(
    check: str, is_training: bool
) -> None:
    layer = make(momentum=0.0).train(is_training)
    leaves = [draw(7, 3), layer.weight.detach().clone(), layer.bias.detach().clone()]

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        state = {"weight": weight, "bias": bias}
        h: Tensor = torch.func.functional_call(layer, state, (x, 0, MASK))
        y: Tensor = torch.func.functional_call(layer, state, (h.sin() + x, 1))
        return y

    assert getattr(torch.autograd, check)(f, [leaf.requires_grad_() for leaf in leaves])


def test_a_new_layer_has_torch_s_start_in_every_row() -> None:
    layer = PerStepBatchNorm1d(3, STEPS)
    plain = nn.BatchNorm1d(3)
    layer(torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), 1)
    layer.reset_parameters()
    state = layer.state_dict()
    for key, value in plain.state_dict().items():
        shared = key in ("weight", "bias")
        expected = value if shared else value.expand(STEPS, *value.shape)
        assert torch.equal(state[key], expected)
        assert state[key].dtype == value.dtype


class Recurrent(nn.Module):
    """Call one layer at every step of (N, C, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = make()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.norm(x[..., t], t) for t in range(x.shape[-1])], -1)


def test_recalibrate_refuses_it_and_torch_s_update_bn_treats_it() -> None:
    model, batches = Recurrent(), [draw(7, 3, 4), draw(7, 3, 2, seed=1)]
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TypeError, match="'norm', a PerStepBatchNorm1d; set its"):
        recalibrate(model, batches)
    assert_equal(model.state_dict(), before, 0.0)
    update_bn(batches, model)
    both = torch.stack([batches[0][..., :2], batches[1]]).mean((0, 1)).T
    expected = torch.cat([both, batches[0][..., 2:].mean(0).T])
    assert distance(model.norm.running_mean, expected) < EXACT
    assert model.norm.num_batches_tracked.tolist() == [2, 2, 1, 1]


def test_it_says_what_it_is() -> None:
    assert repr(PerStepBatchNorm1d(3, 4)).endswith("max_steps=4)")


@pytest.mark.parametrize(
    ("max_steps", "error", "match"),
    [
        (0, ValueError, "max_steps must be at least 1, got 0"),
        (2.0, TypeError, "max_steps must be a whole number, got 2.0"),
        (True, TypeError, "got True"),
    ],
)
def test_a_bad_number_of_steps_is_refused(
    max_steps: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        PerStepBatchNorm1d(3, max_steps)


X = draw(7, 3)
BAD: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((X, STEPS), ValueError, "below max_steps = 4 in training, got 4"),
    ((X, STEPS, NOBODY), ValueError, "below max_steps = 4"),
    ((X, -1), ValueError, "step must be at least 0, got -1"),
    ((X, 1.0), TypeError, "step must be a whole number, got 1.0"),
    ((X, MASK), TypeError, "step must be a whole number"),
    ((X, 0, MASK[:5]), ValueError, r"channels, \(7,\), got \(5,\)"),
    ((X, 0, MASK.long()), TypeError, "dtype bool, got torch.int64"),
    ((X, 0, MASK.tolist()), TypeError, "dtype bool, got list"),
    ((draw(7, 3, 2), 0), ValueError, r"PerStepBatchNorm1d must have shape \(N, D\)"),
    ((draw(7, 2), 0), RuntimeError, "num_features = 3"),
    ((X.float(), 0), RuntimeError, "no mixed dtype"),
    ((X.tolist(), 0), TypeError, "must be a torch tensor"),
]


@pytest.mark.parametrize(("arguments", "error", "match"), BAD)
def test_bad_input_is_refused_and_nothing_is_updated(
    arguments: tuple[Any, ...], error: type[Exception], match: str
) -> None:
    layer = make()
    with pytest.raises(error, match=match):
        layer(*arguments)
    assert_equal(layer.state_dict(), make().state_dict(), 0.0)
