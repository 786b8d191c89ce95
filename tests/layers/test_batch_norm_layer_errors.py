"""Bad calls: refused with torch's type of exception, and nothing has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from layer_pairs import assert_equal, draw, let_fail
from torch import Tensor, nn

from normbook.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d

THEIRS: dict[type[nn.Module], Callable[..., nn.Module]] = {
    BatchNorm1d: nn.BatchNorm1d,
    BatchNorm2d: nn.BatchNorm2d,
    BatchNorm3d: nn.BatchNorm3d,
}


class Bad(NamedTuple):
    layer: type[nn.Module]
    options: dict[str, Any]
    x: Any
    match: str  # names the argument, what came and what was wanted


def zeros(
    *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


WRONG_SHAPES = [
    Bad(layer, {}, zeros(*shape), rf"must have shape \(N.*got {len(shape)}D input")
    for layer, good in ((BatchNorm1d, (2, 3)), (BatchNorm2d, (4,)), (BatchNorm3d, (5,)))
    for ndim in range(7)
    if ndim not in good
    for shape in [(3,) * ndim]
]
WRONG_CHANNELS = [
    Bad(
        layer,
        options,
        zeros(2, 4, *rest),
        r"num_features = 3 channels.*\(2, 4.*num_features=4",
    )
    for layer, rest in (
        (BatchNorm1d, ()),
        (BatchNorm1d, (5,)),
        (BatchNorm2d, (5, 6)),
        (BatchNorm3d, (2, 2, 2)),
    )
    for options in ({}, {"affine": False}, {"track_running_stats": False})
]
WRONG_DTYPES = [
    Bad(
        BatchNorm1d,
        {"dtype": state},
        zeros(4, 3, dtype=given),
        f"dtype of its input.*got input {given}.*weight {state}",
    )
    for state in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for given in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if state != given and not (state == torch.float32 and given.itemsize == 2)
]
NO_FLOATS = [
    Bad(
        BatchNorm1d,
        {},
        zeros(4, 3, dtype=given),
        f"real floating-point numbers, got {given}",
    )
    for given in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
]
OTHER_DEVICES = [
    Bad(
        BatchNorm1d, {"device": "meta"}, zeros(4, 3), "on one device, got cpu and meta"
    ),
    Bad(BatchNorm1d, {}, zeros(4, 3, device="meta"), "on one device, got meta and cpu"),
]
IN_BOTH_MODES = [
    *WRONG_SHAPES,
    *WRONG_CHANNELS,
    *WRONG_DTYPES,
    *NO_FLOATS,
    *OTHER_DEVICES,
    Bad(BatchNorm1d, {"eps": -1.0}, zeros(4, 3), r"eps must be.*got -1\.0"),
    Bad(BatchNorm2d, {"eps": -1e-9}, zeros(4, 3, 2, 2), "eps must be.*got -1e-09"),
    Bad(BatchNorm1d, {"eps": "tiny"}, zeros(4, 3), "eps must be a number, got 'tiny'"),
    Bad(BatchNorm1d, {"eps": None}, zeros(4, 3), "eps must be a number, got None"),
    Bad(BatchNorm1d, {"momentum": "1"}, zeros(4, 3), "momentum must be a.*got '1'"),
]
IN_TRAINING = [
    Bad(
        BatchNorm1d,
        {},
        zeros(1, 3),
        r"more than 1 value per channel.*got shape \(1, 3\)",
    ),
    Bad(BatchNorm1d, {}, zeros(1, 3, 1), r"more than 1 value per channel.*\(1, 3, 1\)"),
    Bad(
        BatchNorm2d, {}, zeros(1, 3, 1, 1), r"more than 1 value per channel.*drop_last"
    ),
    Bad(BatchNorm3d, {}, zeros(1, 3, 1, 1, 1), r"more than 1 value per channel.*eval"),
    Bad(BatchNorm1d, {"eps": 0.0}, zeros(4, 3), r"eps must be positive.*got 0\.0"),
    Bad(BatchNorm2d, {"eps": 0}, zeros(4, 3, 2, 2), "eps must be positive.*got 0"),
    Bad(BatchNorm3d, {"eps": 0.0}, zeros(4, 3, 2, 2, 2), "eps must be positive"),
]


def check(bad: Bad, is_training: bool) -> None:
    """Demand torch's exception type, our message, and an untouched layer."""
    ours = bad.layer(3, **bad.options).train(is_training)
    theirs = THEIRS[bad.layer](3, **bad.options).train(is_training)
    with pytest.raises(Exception) as torch_s:  # noqa: PT011 - its type is the question
        theirs(bad.x)
    before = copy.deepcopy(ours.state_dict())
    with pytest.raises(torch_s.type, match=bad.match):
        ours(bad.x)
    if "device" not in bad.options:
        assert_equal(ours.state_dict(), before, 0.0)


@pytest.mark.parametrize("is_training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("bad", IN_BOTH_MODES, ids=lambda bad: bad.match)
def test_what_torch_refuses_in_both_modes_is_refused_alike(
    bad: Bad, is_training: bool
) -> None:
    check(bad, is_training)


@pytest.mark.parametrize("bad", IN_TRAINING, ids=lambda bad: bad.match)
def test_what_torch_refuses_in_training_is_refused_alike(bad: Bad) -> None:
    check(bad, is_training=True)


@pytest.mark.parametrize("bad", IN_TRAINING, ids=lambda bad: bad.match)
def test_without_running_statistics_evaluation_refuses_it_too(bad: Bad) -> None:
    options = bad.options | {"track_running_stats": False}
    check(bad._replace(options=options), is_training=False)


@pytest.mark.parametrize("size", [-1, 2.5, "3", None, True])
@pytest.mark.parametrize("layer", THEIRS)
def test_a_bad_number_of_features_is_refused_with_torch_s_type(
    layer: type[nn.Module], size: Any
) -> None:
    with pytest.raises(Exception) as torch_s:  # noqa: PT011 - its type is the question
        THEIRS[layer](size)
    with pytest.raises(torch_s.type, match=f"num_features must.*got {size!r}"):
        layer(size)


# --- stricter than torch, which goes on or fails by accident


@pytest.mark.parametrize(
    "x", [[[1.0, 2.0, 3.0]], None, "x", draw(4, 3).numpy()], ids=type
)
def test_what_is_no_tensor_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match=f"torch tensor, got {type(x).__name__}"):
        BatchNorm1d(3)(x)


@pytest.mark.parametrize("eps", [float("nan"), float("inf")])
def test_an_eps_that_is_not_finite_is_refused(eps: float) -> None:
    with pytest.raises(ValueError, match=f"eps must be a finite number.*got {eps}"):
        BatchNorm1d(3, eps=eps)(zeros(4, 3))


@pytest.mark.parametrize("momentum", [-0.1, 1.5, 2, float("nan")])
def test_a_momentum_outside_0_to_1_is_refused_and_nothing_is_updated(
    momentum: float,
) -> None:
    layer = BatchNorm1d(3, momentum=momentum)
    before = copy.deepcopy(layer.state_dict())
    message = rf"momentum must lie in 0\.\.1, where 0 freezes.*got {momentum}"
    with pytest.raises(ValueError, match=message):
        layer(draw(4, 3, dtype=torch.float32))
    assert_equal(layer.state_dict(), before, 0.0)


def test_wrong_channels_are_refused_by_a_layer_that_holds_no_state() -> None:
    with pytest.raises(RuntimeError, match=r"num_features = 3 .*\(2, 4\)"):
        BatchNorm1d(3, affine=False, track_running_stats=False)(zeros(2, 4))


def test_one_running_statistic_without_the_other_is_refused() -> None:
    layer = BatchNorm1d(3)
    layer.running_mean = None
    with pytest.raises(ValueError, match="must both be tensors or both be None"):
        layer(zeros(4, 3))


@pytest.mark.parametrize("key", ["weight", "bias", "running_mean", "running_var"])
def test_state_of_a_wrong_shape_is_refused_by_name(key: str) -> None:
    layer = BatchNorm1d(3)
    getattr(layer, key).data = torch.ones(4)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(
        RuntimeError, match=rf"{key} must have shape \(3,\), got \(4,\)"
    ):
        layer(zeros(5, 3))
    assert_equal(layer.state_dict(), before, 0.0)


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("function.formulas.forward", 1),
        ("base.unbiased", 1),
        ("base.averaged", 1),
        ("base.averaged", 2),  # the mean is averaged, the variance not yet
        ("batch_norm.laid_out", 1),
    ],
)
def test_an_error_in_the_computation_itself_leaves_the_statistics(
    step: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = BatchNorm1d(3)
    before = copy.deepcopy(layer.state_dict())
    let_fail(monkeypatch, f"normbook.layers.{step}", call)
    with pytest.raises(MemoryError):
        layer(draw(4, 3, dtype=torch.float32))
    assert_equal(layer.state_dict(), before, 0.0)


@pytest.mark.parametrize("name", ["eps", "momentum"])
def test_a_number_too_large_for_a_float_is_refused(name: str) -> None:
    layer = BatchNorm1d(3, **{name: 10**400})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{name} must be a finite number, got int"):
        layer(zeros(4, 3))


def test_fractions_will_do() -> None:
    x = draw(4, 3, dtype=torch.float32)
    ours = BatchNorm1d(3, eps=Fraction(1, 4), momentum=Fraction(1, 2))  # type: ignore[arg-type]
    other = BatchNorm1d(3, eps=0.25, momentum=0.5)
    assert torch.equal(ours(x), other(x))
    assert_equal(ours.state_dict(), other.state_dict(), 0.0)


def expanded(key: str) -> Tensor:
    return torch.tensor(2.0 if key != "num_batches_tracked" else 2).expand(3)


def of_inference(key: str) -> Tensor:
    with torch.inference_mode():
        return torch.tensor(2) if key == "num_batches_tracked" else torch.ones(3)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("running_mean", expanded, "single memory location"),
        ("running_var", expanded, "single memory location"),
        ("num_batches_tracked", expanded, "single memory location"),
        ("running_mean", of_inference, "inference tensor"),
        ("running_var", of_inference, "inference tensor"),
        ("num_batches_tracked", of_inference, "inference tensor"),
        ("num_batches_tracked", lambda _: torch.tensor(True), "cast to .*Bool"),
    ],
)
def test_a_buffer_that_cannot_be_written_leaves_the_others_as_they_were(
    key: str, value: Callable[[str], Tensor], match: str
) -> None:
    layer = BatchNorm1d(3)
    setattr(layer, key, value(key))
    before = {k: v.clone() for k, v in layer.named_buffers()}
    with pytest.raises(RuntimeError, match=match):
        layer(draw(4, 3, dtype=torch.float32))
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, before[name]), name
