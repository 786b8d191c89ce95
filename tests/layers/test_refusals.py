"""What each layer refuses: with which error, which words, and nothing is updated."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from layer_pairs import (
    AVERAGED,
    HALF,
    LAYERS,
    Pair,
    assert_equal,
    copy_of,
    draw,
    each_layer,
    each_mode,
    name,
    stirred,
    twins,
    zeros,
)
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.group_norm import (
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from normbook.layers.layer_norm import LayerNorm, RMSNorm
from normbook.layers.lp_norm import LpNorm1d
from normbook.layers.lstm import LayerNormLSTM
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d
from normbook.layers.small_batches import (
    BatchRenorm1d,
    GhostBatchNorm1d,
    UnbiasedBatchNorm1d,
)
from normbook.layers.sync_batch_norm import SyncBatchNorm


def twin(kind: Any) -> Any:
    return nn.LSTM if kind is LayerNormLSTM else getattr(nn, kind.__name__)


new: Any = partial  # of arguments of any type
BY_BATCH: tuple[Any, ...] = BatchNorm1d, BatchNorm2d, BatchNorm3d
BY_IMAGE: tuple[Any, ...] = InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
TORCH = None  # the type of error that torch's twin raises
Error = type[Exception] | None


def torch_s_error(theirs: Callable[[], Any]) -> type[Exception]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its type is the question
        theirs()
    return caught.type


def whole(name: str, got: Any) -> str:
    return f"{name} must be a whole number, got {got!r}; "


def at_least(least: int, name: str, got: Any) -> str:
    return f"{name} must be at least {least}, got {got}; "


def switch(name: str, got: Any) -> str:
    return f"{name} must be True or False, got {got!r}"


# --- settings

lstm, recurrent = new(LayerNormLSTM, 3, 4), new(BatchNormLSTM, 3, 4)
outside = r"dropout must be a number in 0\.\.1, got "
NO_SIZES = [-1, 2.5, "3", None, True]
NO_SHAPES: list[tuple[Any, str]] = [
    (2.5, "whole number, got 2.5"),
    ((2, 2.5), "whole number, got 2.5"),
    ("5", "whole number, got '5'"),
    (None, "whole number, got None"),
    (True, "whole number, got True"),
    (-1, "not be negative, got -1"),
    ((3, -2), "not be negative, got -2"),
]
SETTINGS: list[tuple[partial[Any], Error, str]] = [
    *(
        (new(kind, size, affine=True), TORCH, f"num_features must.*got {size!r}")
        for kind in (*BY_BATCH, *BY_IMAGE)
        for size in NO_SIZES
    ),
    *(
        (new(kind, shape), TORCH, f"normalized_shape must.*{match}")
        for kind in (LayerNorm, RMSNorm)
        for shape, match in NO_SHAPES
    ),
    # torch refuses the call.
    (new(LayerNorm, ()), RuntimeError, r"at least one axis, got \(\)"),
    (new(RMSNorm, ()), RuntimeError, r"at least one axis, got \(\)"),
    (new(GroupNorm, 2, 3), TORCH, "a divisor of num_channels = 3, got 2"),
    (new(GroupNorm, "2", 4), TORCH, whole("num_groups", "2")),
    (new(GroupNorm, 2, "4"), TORCH, whole("num_channels", "4")),
    (new(GroupNorm, 2, 4.0), TORCH, whole("num_channels", 4.0)),
    (new(GroupNorm, 1, -2), TORCH, "num_channels must not be negative, got -2"),
    (new(GroupNorm, 0, 3), ValueError, "divisor .*got 0"),
    (new(GroupNorm, -1, 3), ValueError, "divisor .*got -1"),
    (new(PerStepBatchNorm1d, 3, 0), ValueError, at_least(1, "max_steps", 0)),
    (new(PerStepBatchNorm1d, 3, 2.0), TypeError, whole("max_steps", 2.0)),
    (new(PerStepBatchNorm1d, 3, True), TypeError, whole("max_steps", True)),
    (new(LpNorm1d, 0, 2.0), ValueError, at_least(1, "num_features", 0)),
    (new(LpNorm1d, 3, 0.5), ValueError, at_least(1, "p", 0.5)),
    (new(LpNorm1d, 3, math.nan), ValueError, at_least(1, "p", math.nan)),
    (new(LpNorm1d, 3, 2.0, -1.0), ValueError, "finite and not negative, got -1.0"),
    (new(LpNorm1d, 3, 2.0, math.inf), ValueError, "eps must be finite"),
    (new(LayerNormLSTM, 0, 4), TORCH, at_least(1, "input_size", 0)),
    (new(LayerNormLSTM, 3, -2), TORCH, at_least(1, "hidden_size", -2)),
    (new(LayerNormLSTM, 3.0, 4), TORCH, whole("input_size", 3.0)),
    (new(lstm, num_layers=0), TORCH, at_least(1, "num_layers", 0)),
    (new(lstm, num_layers=1.5), TORCH, whole("num_layers", 1.5)),
    (new(lstm, bias=1), TORCH, switch("bias", 1)),
    (new(lstm, batch_first=1), TORCH, switch("batch_first", 1)),
    (new(lstm, dropout=1.5), TORCH, outside + "1.5; it is"),
    (new(lstm, dropout=True), TORCH, outside + "True; it is"),
    (new(lstm, dropout="a"), TORCH, outside + "'a'; it is"),
    (new(lstm, proj_size=-1), TORCH, at_least(1, "proj_size", -1)),
    (new(LayerNormLSTM, 3, True), TypeError, whole("hidden_size", True)),
    (new(lstm, bidirectional=1), TypeError, switch("bidirectional", 1)),
    (new(lstm, has_redundant_biases=0), TypeError, switch("has_redundant_biases", 0)),
    (new(lstm, proj_size=4), TORCH, "proj_size must be smaller than hidden_size = 4"),
    (new(lstm, proj_size=True), TypeError, whole("proj_size", True)),
    (new(lstm, norm="a"), ValueError, "'terms', 'sum', 'gates', None, got 'a'"),
    (new(lstm, norm=["sum"]), ValueError, r"got \['sum'\]"),
    (new(lstm, carried=None), ValueError, "one of 'raw', 'normalized', got None"),
    (new(lstm, eps=-1.0), ValueError, "eps must be a finite number >= 0, got -1.0"),
    (new(BatchNormLSTM, 0, 4, 6), ValueError, at_least(1, "input_size", 0)),
    (new(BatchNormLSTM, 3, 0, 6), ValueError, at_least(1, "hidden_size", 0)),
    (new(BatchNormLSTM, 2.0, 4, 6), TypeError, whole("input_size", 2.0)),
    (new(BatchNormLSTM, 3, True, 6), TypeError, whole("hidden_size", True)),
    (new(recurrent, 0), ValueError, at_least(1, "max_steps", 0)),
    (new(recurrent, 1.5), TypeError, whole("max_steps", 1.5)),
    (new(recurrent, 6, batch_first=1), TypeError, switch("batch_first", 1)),
    (new(recurrent, 6, bidirectional="a"), TypeError, switch("bidirectional", "a")),
    (new(recurrent, 6, eps=0.0), ValueError, "eps must be positive, got 0"),
    (new(recurrent, 6, eps="a"), ValueError, "eps must be a finite number"),
]


@pytest.mark.parametrize(("make", "error", "match"), SETTINGS)
def test_a_bad_setting_is_refused(make: partial[Any], error: Error, match: str) -> None:
    if error is TORCH:
        error = torch_s_error(new(twin(make.func), *make.args, **make.keywords))
    with pytest.raises(error, match=match):
        make()


ghost = new(GhostBatchNorm1d, 3, virtual_batch_size=2)
renorm = new(BatchRenorm1d, 3)
CHANGED: list[tuple[partial[Any], str, Any, type[Exception], str]] = [
    (ghost, "virtual_batch_size", 2.0, TypeError, whole("virtual_batch_size", 2.0)),
    (ghost, "virtual_batch_size", True, TypeError, "whole number, got True"),
    (ghost, "virtual_batch_size", None, TypeError, "whole number, got None"),
    (ghost, "virtual_batch_size", 0, ValueError, "at least 1, got 0"),
    (ghost, "virtual_batch_size", -3, ValueError, "at least 1, got -3"),
    (renorm, "r_max", 0.5, ValueError, "r_max must be at least 1, got 0.5"),
    (renorm, "r_max", math.nan, ValueError, "got nan"),
    (renorm, "r_max", "3", TypeError, "r_max must be a number, got '3'"),
    (renorm, "d_max", -1, ValueError, "d_max must be at least 0, got -1"),
    (renorm, "d_max", math.nan, ValueError, "got nan"),
    (renorm, "d_max", None, TypeError, "d_max must be a number, got None"),
    (renorm, "track_running_stats", False, ValueError, "needs running statistics"),
]


@pytest.mark.parametrize(("make", "name", "value", "error", "match"), CHANGED)
def test_a_bad_setting_is_refused_also_when_set_later(
    make: partial[Any], name: str, value: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(**{name: value})
    layer = stirred(make())
    before = copy_of(layer.state_dict())
    setattr(layer, name, value)
    with pytest.raises(error, match=match):
        layer(draw(6, 3, dtype=torch.float32))
    assert_equal(layer.state_dict(), before, 0.0)


# --- calls

# One argument or a tuple; the match names what came and what was wanted.
Row = tuple[Any, Error, str]
Call = tuple[partial[Any], Any, Error, str]


def calls(layer: partial[Any], *rows: Row) -> list[Call]:
    return [(layer, *row) for row in rows]


def packed(*shapes: tuple[int, ...]) -> PackedSequence:
    return pack_sequence([zeros(*shape) for shape in shapes], enforce_sorted=False)


def rows(*sizes: int) -> PackedSequence:
    return PackedSequence(STEPS[0, : 5 if sizes else 0], torch.tensor(sizes).long())


X, IMAGES = (draw(*shape, dtype=torch.float32) for shape in ((7, 3), (4, 3, 5)))
LIVE, MASK = draw(7) > 0, draw(4, 5) > 0
ONE = torch.arange(20).reshape(4, 5) == 11
STEPS, STATE = draw(6, 5, 3, dtype=torch.float32), zeros(1, 5, 4)
HX = STATE, STATE
no_pair = r"hx must be a pair of tensors \(h_0, c_0\), got "
wrong = r"num_features = 3 channels.*\(2, 4.*num_features=4"
single = r"more than 1 value per channel.*got shape \(1, 3"
recurrent = new(recurrent, 6)
masked, per_step = new(MaskedBatchNorm1d, 3), new(PerStepBatchNorm1d, 3, 4)
in_ghost = "more than 1 value per channel in a ghost"
several = "more than 1 value in a "
stateless: Any = {"affine": False, "track_running_stats": False}
affine = new(InstanceNorm1d, 3, 1e-5, 0.1, True)
IN_BOTH_MODES: list[Call] = [
    *(
        (new(kind, 3), zeros(*(3,) * n), TORCH, rf"shape \(N.*got {n}D input")
        for kind, good in zip(BY_BATCH, ((2, 3), (4,), (5,)), strict=True)
        for n in range(7)
        if n not in good
    ),
    *(
        (new(kind, 3, **options), zeros(2, 4, *rest), TORCH, wrong)
        for kind, rest in zip(BY_BATCH, ((5,), (5, 6), (2, 2, 2)), strict=True)
        for options in ({}, {"affine": False}, {"track_running_stats": False})
    ),
    (new(BatchNorm1d, 3), zeros(2, 4), TORCH, wrong),
    (new(BatchNorm1d, 3, **stateless), zeros(2, 4), RuntimeError, wrong),
    (new(BatchNorm1d, 3, momentum="1"), X, TORCH, "momentum must be a.*got '1'"),
    (new(BatchNorm1d, 3, momentum=10**400), X, ValueError, "momentum .* got int too"),
    *(
        (new(kind, 5), zeros(*shape), TORCH, rf"= \(5,\), got shape \({match}\)")
        for kind in (LayerNorm, RMSNorm)
        for shape, match in (((2, 4), "2, 4"), ((5, 2), "5, 2"), ((), ""))
    ),
    (new(LayerNorm, [3, 5]), zeros(5), TORCH, r"= \(3, 5\), got .*5,"),
    (new(RMSNorm, [3, 5]), zeros(5), TORCH, r"= \(3, 5\), got .*5,"),
    *calls(
        new(GroupNorm, 1, 6),
        (zeros(2, 4), TORCH, r"num_channels = 6 .*\(2, 4\).*num_channels=4"),
        (zeros(6), TORCH, r"must have shape \(N, C\).*got \(6,\)"),
        (zeros(), TORCH, r"must have shape \(N, C\).*got \(\)"),
    ),
    (new(GroupNorm, 3, 6, 1e-5, False), zeros(2, 4), TORCH, r"= 3 must .*\(2, 4\)"),
    (new(GroupNorm, 6, 6), zeros(1, 6), TORCH, rf"{several}group.*\(1, 6\).*ups=6"),
    (new(GroupNorm, 6, 6), zeros(1, 6, 1), TORCH, rf"{several}group.*\(1, 6, 1\)"),
    *calls(
        new(InstanceNorm1d, 3),
        (zeros(7, 3, 5, 4), TORCH, r"\(C, L\) or \(N, C, L\), got 4D"),
        (zeros(3), TORCH, r"\(C, L\) or \(N, C, L\), got 1D"),
        (zeros(7, 3, 1), TORCH, rf"{several}channel.*\(7, 3, 1\)"),
        (zeros(3, 1), TORCH, rf"{several}channel.*\(3, 1\)"),
    ),
    (affine, zeros(7, 4, 5), TORCH, "num_features = 3 channels on axis 1"),
    (affine, zeros(4, 5), TORCH, "num_features = 3 channels on axis 0"),
    *calls(
        new(SyncBatchNorm, 4),
        (zeros(), TORCH, r"shape \(N, C, ...\) .* got \(\)"),
        (zeros(4), TORCH, r"shape \(N, C, ...\) .* got \(4,\)"),
        (zeros(3, 0), TORCH, r"C at least 1, got \(3, 0\)"),
        (zeros(3, 5), TORCH, r"num_features = 4 channels .* \(3, 5\)"),
    ),
    *calls(
        masked,
        ((IMAGES, MASK.double()), TypeError, "dtype bool, got torch.float64"),
        ((IMAGES, MASK.tolist()), TypeError, "dtype bool, got list"),
        ((IMAGES, None), TypeError, "got NoneType"),
        ((IMAGES, MASK[:, :4]), ValueError, r"channels, \(4, 5\), got \(4, 4\)"),
        ((IMAGES, MASK.T), ValueError, r"got \(5, 4\)"),
        ((IMAGES, MASK[0]), ValueError, r"got \(5,\)"),
        ((IMAGES[..., 0], MASK), ValueError, r"channels, \(4,\), got \(4, 5\)"),
        ((IMAGES, MASK.to("meta")), RuntimeError, "on one device, got cpu and meta"),
        ((IMAGES[:, :2], MASK), RuntimeError, r"num_features = 3 .* shape \(4, 2, 5\)"),
        ((IMAGES[..., None], MASK), ValueError, "got 4D input"),
        ((IMAGES.tolist(), MASK), TypeError, "must be a torch tensor, got list"),
        ((IMAGES.long(), MASK), NotImplementedError, "real floating-point"),
        ((IMAGES.double(), MASK), RuntimeError, "no mixed dtype"),
    ),
    *calls(
        per_step,
        ((X, -1), ValueError, at_least(0, "step", -1)),
        ((X, 1.0), TypeError, whole("step", 1.0)),
        ((X, LIVE), TypeError, "step must be a whole number"),
        ((X, 0, LIVE[:5]), ValueError, r"channels, \(7,\), got \(5,\)"),
        ((X, 0, LIVE.long()), TypeError, "dtype bool, got torch.int64"),
        ((X, 0, LIVE.tolist()), TypeError, "dtype bool, got list"),
        ((IMAGES, 0), ValueError, r"PerStepBatchNorm1d must have shape \(N, D\)"),
        ((X[:, :2], 0), RuntimeError, "num_features = 3"),
        ((X.double(), 0), RuntimeError, "no mixed dtype"),
        ((X.tolist(), 0), TypeError, "must be a torch tensor"),
    ),
    *(
        (new(LpNorm1d, 3, 2.0), zeros(*shape), ValueError, r"\(N, 3\) with N >= 1")
        for shape in ((4,), (4, 2), (0, 3), (4, 3, 2))
    ),
    *calls(
        lstm,
        (STEPS[:0], TORCH, r"at least one step, got shape \(0, 5, 3\); leave"),
        (STEPS[..., :2], TORCH, r"input_size = 3 features .* got .*\(6, 5, 2\)"),
        (STEPS[None], TORCH, r"\(T, N, D\), or \(T, D\) .* got 4D input"),
        (STEPS[0, 0], TORCH, "got 1D input"),
        (STEPS.double(), TORCH, "of the weights, torch.float32, got torch.float"),
        (STEPS.long(), TORCH, "got torch.int64; convert"),
        (STEPS.to("meta"), TORCH, "on one device, got meta and cpu; move"),
        ((STEPS, (STATE[:, 1:],) * 2), TORCH, r"h_0 .* = \(1, 5, 4\) .* 4, 4\)"),
        ((STEPS, (STATE, STATE[:, 1:])), TORCH, r"c_0 .* shape \(layers, N, H\)"),
        ((STEPS, (STATE[0],) * 2), TORCH, r"h_0 must have shape .* got \(5, 4\)"),
        ((STEPS[:, 0], HX), TORCH, r"h_0 .* shape \(layers, H\) = \(1, 4\)"),
        ((STEPS, (STATE.double(), STATE)), TORCH, "h_0 .* dtype .*torch.float64"),
        ((STEPS, 3), TORCH, no_pair + "int; leave it out"),
        ([1.0], TypeError, "tensor or a PackedSequence, got list; convert"),
        ((STEPS, STATE), TypeError, no_pair + "Tensor; leave it out"),
        ((STEPS, (STATE,)), TypeError, no_pair + "1 values; leave it out"),
        ((STEPS, (STATE, 0.0)), TypeError, "c_0 must be a torch tensor, got float"),
        (packed((2, 4), (3, 4)), RuntimeError, r"input_size = 3 .* \(5, 4\)"),
        (packed((2,), (3,)), ValueError, r"shape \(M, D\), got 1D input"),
        ((packed((2, 3), (3, 3)), HX), RuntimeError, r"= \(1, 2, 4\) .* \(1, 5, 4\)"),
        (rows(), RuntimeError, "one step, got an empty PackedSequence; leave"),
    ),
    *calls(
        recurrent,
        (STEPS.tolist(), TypeError, "must be a torch tensor, got list"),
        (STEPS.long(), NotImplementedError, "real floating-point .*got torch.int64"),
        (STEPS.double(), RuntimeError, "torch.float32 on cpu, got torch.float64"),
        (STEPS[0], ValueError, r"\(T, N, D\), got \(5, 3\); a single sequence"),
        (STEPS[..., :2], RuntimeError, r"input_size = 3 features .* \(6, 5, 2\)"),
        (STEPS[:0], ValueError, "at least one step, got none"),
        (packed((2, 1), (3, 1)), RuntimeError, "packed data must have input_size"),
        ((STEPS, STATE), TypeError, no_pair + "Tensor"),
        ((STEPS, (*HX, STATE)), TypeError, no_pair + "3 values"),
        ((STEPS, (STATE, None)), TypeError, "must be a torch tensor, got NoneType"),
        ((STEPS, (STATE[0], STATE)), RuntimeError, r"h_0.* \(1, 5, 4\).*got \(5, 4\)"),
        ((STEPS, (STATE, STATE[:, :4])), RuntimeError, r"c_0 must .* got \(1, 4, 4\)"),
        ((STEPS, (STATE, STATE.double())), RuntimeError, "c_0 must have the dtype"),
        (rows(2, 3), ValueError, "never grow"),
        (rows(3, 1), ValueError, "add to the rows, 5"),
    ),
]
IN_TRAINING: list[Call] = [  # and in evaluation without running statistics
    *(
        (new(kind, 3), zeros(1, 3, *rest), TORCH, single + match)
        for kind, rest, match in (
            (BatchNorm1d, (), r"\)"),
            (BatchNorm1d, (1,), r", 1\)"),
            (BatchNorm2d, (1, 1), ".*drop_last"),
            (BatchNorm3d, (1, 1, 1), ".*eval"),
        )
    ),
    *(
        (new(kind, 3, eps=eps), zeros(4, 3, *rest), TORCH, match)
        for kind, eps, rest, match in (
            (BatchNorm1d, 0.0, (), r"eps must be positive.*got 0\.0"),
            (BatchNorm2d, 0, (2, 2), "eps must be positive.*got 0"),
            (BatchNorm3d, 0.0, (2, 2, 2), "eps must be positive"),
        )
    ),
    (new(SyncBatchNorm, 3), X[:1], TORCH, single),
    (new(GhostBatchNorm1d, 3, 4), X[:1], ValueError, f"GhostBatchNorm1d .*{single}"),
    (new(GhostBatchNorm1d, 3, 1), X, ValueError, in_ghost),
    (new(GhostBatchNorm1d, 3, 1), X[..., None], ValueError, in_ghost),
    (new(UnbiasedBatchNorm1d, 3), X[:1], ValueError, f"UnbiasedBatch.*{single}"),
    (masked, (IMAGES, ONE), ValueError, r"more than 1 live entry.*shape \(4, 5\)"),
]
averaged = new(InstanceNorm1d, 3, track_running_stats=True)
momenta = r"momentum must lie in 0\.\.1, where 0 freezes.*got "
IN_TRAINING_ALONE: list[Call] = [
    *(
        (new(kind, momentum=value), x, ValueError, f"{momenta}{value}")
        for kind, x in ((new(BatchNorm1d, 3), X), (averaged, IMAGES))
        for value in (-0.1, 1.5, 2, math.nan)
    ),
    (new(averaged, momentum="1"), IMAGES, TORCH, "momentum must be a.*got '1'"),
    (averaged, zeros(7, 4, 5), TORCH, r"num_features = 3 .*\(7, 4, 5\)"),
    (per_step, (X, 4), ValueError, "below max_steps = 4 in training, got 4"),
    (per_step, (X, 4, LIVE & ~LIVE), ValueError, "below max_steps = 4"),
    (recurrent, zeros(7, 5, 3), ValueError, "max_steps = 6 steps in training, got 7"),
]


def assert_refused(call: Call, is_training: bool) -> None:
    make, args, error, match = call
    args = args if type(args) is tuple else (args,)
    layer = stirred(make()).train(is_training)
    before = copy_of(layer.state_dict())
    if error is TORCH:
        theirs = twin(make.func)(*make.args, **make.keywords).train(is_training)
        error = torch_s_error(lambda: theirs(*args))
    with pytest.raises(error, match=match):
        layer(*args)
    assert_equal(layer.state_dict(), before, 0.0)


# torch warns of the channels of a layer without parameters before it refuses them.
@pytest.mark.filterwarnings("ignore:input's size:UserWarning")
@each_mode
@pytest.mark.parametrize("call", IN_BOTH_MODES, ids=lambda call: call[-1])
def test_a_bad_call_is_refused_in_both_modes(call: Call, is_training: bool) -> None:
    assert_refused(call, is_training)


@pytest.mark.filterwarnings("ignore:input's size:UserWarning")
@pytest.mark.parametrize(
    "call", [*IN_TRAINING, *IN_TRAINING_ALONE], ids=lambda call: call[-1]
)
def test_a_bad_call_is_refused_in_training_and_nothing_is_updated(call: Call) -> None:
    assert_refused(call, is_training=True)


@pytest.mark.parametrize("call", IN_TRAINING, ids=lambda call: call[-1])
def test_without_running_statistics_evaluation_refuses_it_too(call: Call) -> None:
    layer, *rest = call
    without: Any = new(layer, track_running_stats=False), *rest
    assert_refused(without, is_training=False)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]
)
@each_layer
def test_what_is_no_real_float_is_refused(pair: Pair, dtype: torch.dtype) -> None:
    x = zeros(*pair.shape, dtype=dtype)
    match = f"{pair.ours.__name__} must hold real floating-point numbers, got {dtype}"
    with pytest.raises(NotImplementedError, match=match):
        pair.ours(*pair.size)(x)
    if pair.ours is RMSNorm and dtype.is_complex:  # torch goes on
        return
    with pytest.raises(RuntimeError):  # of which the other is a kind
        pair.theirs(*pair.size)(x)


@pytest.mark.parametrize("x", [[[1.0, 2.0]], None, "x", draw(4, 3).numpy()], ids=type)
@each_layer
def test_what_is_no_tensor_is_refused(pair: Pair, x: Any) -> None:
    with pytest.raises(TypeError, match=f"torch tensor, got {type(x).__name__}"):
        pair.ours(*pair.size)(x)


@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")  # of torch's RMSNorm
@each_mode
@pytest.mark.parametrize("state", [*HALF, torch.float32, torch.float64])
@pytest.mark.parametrize("given", [*HALF, torch.float32, torch.float64])
@each_layer
def test_mixed_dtypes_are_refused_as_in_torch(
    pair: Pair, given: torch.dtype, state: torch.dtype, is_training: bool
) -> None:
    x = zeros(*pair.shape, dtype=given)
    is_half = given.itemsize == 2 and state == torch.float32
    if state == given or is_half or pair.ours is RMSNorm:
        ours, theirs = (m(*pair.size, dtype=state) for m in (pair.ours, pair.theirs))
        assert ours(x).dtype == theirs(x).dtype
        return
    match = f"dtype of its input.*got input {given}.*weight {state}"
    layer = new(pair.ours, *pair.size, dtype=state)
    assert_refused((layer, x, TORCH, match), is_training)


@each_mode
@each_layer
def test_another_device_is_refused(pair: Pair, is_training: bool) -> None:
    x = zeros(*pair.shape)
    ours, theirs = (
        kind(*pair.size, device="meta").train(is_training)
        for kind in (pair.ours, pair.theirs)
    )
    error = torch_s_error(lambda: theirs(x))
    with pytest.raises(error, match="on one device, got cpu and meta"):
        ours(x)
    layer = new(pair.ours, *pair.size)
    match = "on one device, got meta and cpu"
    assert_refused((layer, x.to("meta"), RuntimeError, match), is_training)


SHAPE = torch.ones(11, dtype=torch.float64)
ATTRIBUTES: list[tuple[str, Any, type[Exception], str]] = [
    *(
        ("eps", eps, TypeError, f"eps must be a number, got {re.escape(repr(eps))}")
        for eps in ("tiny", [1e-5], None)
    ),
    *(
        ("eps", eps, ValueError, f"eps must be (a finite|positive).*got {eps}")
        for eps in (-1.0, -1e-9, math.nan, math.inf)
    ),
    ("eps", 10**400, ValueError, "eps must be a finite number, got int too large"),
    *(
        (key, SHAPE, RuntimeError, rf"{key} must have shape {{}}, got \(11,\)")
        for key in ("weight", "bias", "running_mean", "running_var")
    ),
    ("running_mean", None, ValueError, "must both be tensors or both be None"),
    ("running_var", None, ValueError, "must both be tensors or both be None"),
]


def has_it(pair: Pair, key: str, value: Any) -> bool:
    if key == "eps":
        return value is not None or pair.ours is not RMSNorm  # which may be without
    return getattr(pair.ours(*pair.size), key, None) is not None


UNFIT = [
    pytest.param(pair, *row, id=f"{name(pair)}-{row[0]}-{type(row[1]).__name__}")
    for pair in (*LAYERS, AVERAGED[1])
    for row in ATTRIBUTES
    if has_it(pair, *row[:2])
]


@each_mode
@pytest.mark.parametrize(("pair", "key", "value", "error", "match"), UNFIT)
def test_an_attribute_that_does_not_fit_is_refused(
    pair: Pair,
    key: str,
    value: Any,
    error: type[Exception],
    match: str,
    is_training: bool,
) -> None:
    layers = [layer.train(is_training) for layer in twins(pair)]
    if value is SHAPE:
        match = match.format(re.escape(str(tuple(getattr(layers[0], key).shape))))
    for layer in layers:
        is_parameter = key in ("weight", "bias")
        setattr(layer, key, nn.Parameter(value) if is_parameter else value)
    before = copy_of(layers[0].state_dict())
    with pytest.raises(error, match=match):
        layers[0](draw(*pair.shape))
    assert_equal(layers[0].state_dict(), before, 0.0)
    if error is TypeError:
        with pytest.raises(TypeError):
            layers[1](draw(*pair.shape))


def test_evaluation_without_the_buffers_it_needs_is_refused_as_in_torch() -> None:
    ours, theirs = (m.eval() for m in twins(AVERAGED[1]))
    for layer in (ours, theirs):
        layer.running_mean = layer.running_var = None
    with pytest.raises(RuntimeError, match="running_mean and running_var"):
        theirs(draw(7, 3, 5))
    with pytest.raises(RuntimeError, match="must be tensors in evaluation"):
        ours(draw(7, 3, 5))
