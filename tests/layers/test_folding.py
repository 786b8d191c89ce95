"""Whole models are folded: the same function, without batch norm, from a copy."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from layer_pairs import Wired, assert_equal
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from normbook.gradient_check import relative_error
from normbook.lab.architectures import ARCHITECTURES, stir
from normbook.layers import batch_norm as ours
from normbook.layers.folding import fold_batch_norm, folding_plan
from normbook.layers.group_norm import GroupNorm
from normbook.layers.layer_norm import LayerNorm
from normbook.layers.small_batches import (
    BatchRenorm1d,
    GhostBatchNorm2d,
    UnbiasedBatchNorm1d,
)
from normbook.layers.sync_batch_norm import SyncBatchNorm

# Of the largest output. Unfolded, float32 is as far from float64 as that.
EQUAL = {torch.float32: 1e-6, torch.float64: 1e-12}
WHOLE = [name for name in ARCHITECTURES if name != "DenseNet"]


def make(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    """Return a model with drawn weights and statistics, and an input."""
    generator = torch.Generator().manual_seed(0)
    model = stir(ARCHITECTURES[name].build(), generator).to(dtype)
    return model, torch.randn(ARCHITECTURES[name].shape, generator=generator).to(dtype)


def chain(*layers: nn.Module, shape: tuple[int, ...]) -> tuple[Any, Tensor]:
    """Return copies of the layers with drawn weights and statistics, and an input."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*copy.deepcopy(layers))
    stir(model, generator).double()
    return model, torch.randn(shape, generator=generator, dtype=torch.float64)


def norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, TorchBatchNorm)]


def assert_folds(model: nn.Module, x: Tensor) -> nn.Module:
    folded = fold_batch_norm(model)
    assert norms(folded) == []
    assert relative_error(folded(x), model(x)) < EQUAL[x.dtype]
    return folded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WHOLE)
def test_a_folded_architecture_computes_the_same_without_batch_norm(
    name: str, dtype: torch.dtype
) -> None:
    model, x = make(name, dtype)
    y = model(x)
    # A network that does not look at its input would be folded by anything.
    assert (y - y[:1]).abs().max() > 0.01 * y.abs().max()
    assert_folds(model, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_a_densenet_half_is_folded(dtype: torch.dtype) -> None:
    model, x = make("DenseNet", dtype)
    folded = fold_batch_norm(model, strict=False)
    assert (len(norms(model)), len(norms(folded))) == (6, 3)
    assert relative_error(folded(x), model(x)) < EQUAL[dtype]


@pytest.mark.parametrize("name", ["U-Net", "MLP"])
def test_the_model_is_not_touched(name: str) -> None:
    model, _ = make(name)
    before, modes = copy.deepcopy(model.state_dict()), str(model)
    fold_batch_norm(model)
    assert_equal(model.state_dict(), before, 0.0)
    assert str(model) == modes


def test_class_and_attributes_stay() -> None:
    model, _ = make("U-Net")
    vars(model)["classes"] = ["cat", "dog"]
    folded: Any = fold_batch_norm(model)
    assert type(folded) is type(model)
    assert folded.classes == ["cat", "dog"]
    assert not any(module.training for module in folded.modules())


def test_names_of_a_state_dict_stay_and_those_of_batch_norm_go() -> None:
    model, x = make("VGG")
    folded = fold_batch_norm(model)
    buffer = io.BytesIO()
    torch.save(folded.state_dict(), buffer)
    buffer.seek(0)
    other, _ = make("VGG", torch.float32)
    loaded = fold_batch_norm(other).double()
    loaded.load_state_dict(torch.load(buffer))
    assert torch.equal(loaded(x), folded(x))
    assert "0.weight" in folded.state_dict()


def test_a_folded_model_can_be_folded_again() -> None:
    folded = fold_batch_norm(make("MLP")[0])
    again = fold_batch_norm(folded)
    assert_equal(again.state_dict(), folded.state_dict(), 0.0)


def test_a_folded_model_can_be_exported() -> None:
    model, x = make("ResNet, bottleneck")
    program = torch.export.export(fold_batch_norm(model), (x,))
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)
    assert relative_error(program.module()(x), model(x)) < EQUAL[x.dtype]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_a_folded_model_can_be_scripted() -> None:
    model, x = make("U-Net")
    scripted = torch.jit.script(fold_batch_norm(model))
    assert relative_error(scripted(x), model(x)) < EQUAL[x.dtype]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_example_for_which_the_output_is_the_same_changes_nothing(
    name: str, dtype: torch.dtype
) -> None:
    model, x = make(name, dtype)
    found, expected = (fold_batch_norm(model, *x) for x in ((x,), ()))
    assert_equal(found.state_dict(), expected.state_dict(), 0.0)
    assert next(model.parameters()).dtype == dtype


def test_a_model_that_draws_random_numbers_is_folded_and_draws_no_others() -> None:
    layers = {"linear": nn.Linear(3, 5), "norm": nn.BatchNorm1d(5)}
    model = Wired(lambda m, x: m.norm(m.linear(x)) + torch.randn(5), **layers).eval()
    before = torch.get_rng_state()
    assert norms(fold_batch_norm(model)) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_an_example_is_not_changed_by_a_model_that_changes_its_input() -> None:
    relu = nn.ReLU(inplace=True)
    model, x = chain(relu, nn.Linear(3, 5), nn.BatchNorm1d(5), shape=(4, 3))
    given = x.clone()
    fold_batch_norm(model, x)
    assert torch.equal(x, given)


def test_an_example_may_be_all_arguments_of_the_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(6, 3), nn.Linear(3, 5)
            self.norm = nn.BatchNorm1d(5)

        def forward(self, token: Tensor, scale: float) -> dict[str, Tensor]:
            y = self.norm(self.linear(self.table(token)))
            return {"y": y, "scaled": y.mul_(scale)}

    model = stir(Model(), torch.Generator().manual_seed(0))
    folded = fold_batch_norm(model, (torch.tensor([5, 0, 2, 2]), 3.0))
    assert norms(folded) == []


def padding_by(mode: Any) -> nn.Conv2d:
    return nn.Conv2d(3, 5, 3, 1, 1, padding_mode=mode)


BEHIND: dict[str, tuple[Any, ...]] = {  # layers, and the shape of an input
    "linear": (nn.Linear(3, 5), nn.BatchNorm1d(5), (4, 3)),
    "conv 1-D": (nn.Conv1d(3, 5, 2), nn.BatchNorm1d(5), (4, 3, 7)),
    "strided": (nn.Conv2d(3, 5, 3, 2, 1, 2), nn.BatchNorm2d(5), (2, 3, 9, 8)),
    "padded": (nn.Conv2d(3, 5, 3, padding="same"), nn.BatchNorm2d(5), (2, 3, 4, 6)),
    "reflected": (padding_by("reflect"), nn.BatchNorm2d(5), (2, 3, 4, 6)),
    "depthwise": (nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6), (2, 3, 4, 5)),
    "grouped 3-D": (nn.Conv3d(4, 6, 2, groups=2), nn.BatchNorm3d(6), (2, 4, 3, 5, 6)),
    "transposed 1-D": (
        nn.ConvTranspose1d(3, 5, 4, 3, 1, 2), nn.BatchNorm1d(5), (2, 3, 7),
    ),
    "transposed grouped": (
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.BatchNorm2d(6), (2, 4, 5, 3),
    ),
    "transposed 3-D": (
        nn.ConvTranspose3d(2, 3, 2), nn.BatchNorm3d(3), (2, 2, 4, 5, 3),
    ),
    "our layer": (nn.Linear(3, 5), ours.BatchNorm1d(5), (4, 3)),
    "our 2-D": (nn.Conv2d(3, 5, 2), ours.BatchNorm2d(5), (2, 3, 4, 6)),
    "our 3-D": (nn.Conv3d(3, 5, 2), ours.BatchNorm3d(5), (2, 3, 4, 6, 5)),
    "synchronized": (nn.Conv2d(3, 5, 2), nn.SyncBatchNorm(5), (2, 3, 4, 6)),
    "our synchronized": (nn.Linear(3, 5), SyncBatchNorm(5), (4, 3)),
    "ghost": (nn.Conv2d(3, 5, 2), GhostBatchNorm2d(5, 2), (2, 3, 4, 6)),
    "renormalized": (nn.Linear(3, 5), BatchRenorm1d(5), (4, 3)),
    "unbiased": (nn.Linear(3, 5), UnbiasedBatchNorm1d(5), (4, 3)),
    "not affine": (nn.Linear(3, 5), nn.BatchNorm1d(5, affine=False), (4, 3)),
    "no bias": (nn.Linear(3, 5), nn.BatchNorm1d(5, bias=False), (4, 3)),
    "large eps": (nn.Linear(3, 5), nn.BatchNorm1d(5, eps=0.5), (4, 3)),
}  # fmt: skip
MODES: tuple[Any, ...] = "reflect", "replicate", "circular"
BEFORE: dict[str, tuple[Any, ...]] = {  # where the layer sees no zeros
    "linear": (nn.BatchNorm1d(3), nn.Linear(3, 5), (4, 3)),
    "conv": (nn.BatchNorm2d(3), nn.Conv2d(3, 5, 2, stride=2), (2, 3, 6, 5)),
    "valid": (nn.BatchNorm1d(3), nn.Conv1d(3, 5, 2, padding="valid"), (2, 3, 6)),
    "same with 1 x 1": (
        nn.BatchNorm2d(3), nn.Conv2d(3, 5, 1, padding="same"), (2, 3, 6, 5),
    ),
    "grouped": (nn.BatchNorm2d(4), nn.Conv2d(4, 6, 2, groups=2), (2, 4, 3, 5)),
    "transposed 1 x 1": (
        nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 5, 1), (2, 3, 4, 5),
    ),
    "transposed, border cut off": (
        nn.BatchNorm2d(3), nn.ConvTranspose2d(3, 5, 3, padding=2), (2, 3, 5, 6),
    ),
    "transposed, dilated, grouped": (
        nn.BatchNorm1d(4),
        nn.ConvTranspose1d(4, 6, 3, padding=5, output_padding=1, groups=2, dilation=2),
        (2, 4, 9),
    ),
    **{mode: (nn.BatchNorm2d(3), padding_by(mode), (2, 3, 6, 5)) for mode in MODES},
}  # fmt: skip
TWO = nn.BatchNorm1d(3), nn.BatchNorm1d(3, eps=0.1)
SEVERAL: dict[str, tuple[Any, ...]] = {
    "one behind another, behind": (nn.Linear(5, 3), *TWO, (4, 5)),
    "one behind another, before": (*TWO, nn.Linear(3, 5), (4, 3)),
    "on both sides": (nn.ReLU(), TWO[0], nn.Linear(3, 5), nn.BatchNorm1d(5), (4, 3)),
}
for idle in (nn.Identity(), nn.Dropout(0.5), nn.AlphaDropout()):  # in evaluation
    SEVERAL |= {
        f"{idle}, behind": (nn.Linear(3, 5), idle, nn.BatchNorm1d(5), (4, 3)),
        f"{idle}, before": (nn.BatchNorm1d(3), idle, nn.Linear(3, 5), (4, 3)),
    }
BESIDE = [*BEHIND.items(), *BEFORE.items(), *SEVERAL.items()]


@pytest.mark.parametrize("case", BESIDE, ids=lambda case: case[0])
def test_batch_norm_behind_and_before_a_layer_is_folded(case: Any) -> None:
    _, (*layers, shape) = case
    assert_folds(*chain(*layers, shape=shape))


def test_with_linear_layers_on_both_sides_the_previous_one_is_taken() -> None:
    model, _ = chain(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2), shape=(4, 3))
    folded: Any = fold_batch_norm(model)
    (found,) = folding_plan(model)
    assert tuple(found) == ("1", "0", "previous", "", "", False)
    assert torch.equal(folded[2].weight, model[2].weight)


def test_other_normalizations_stay() -> None:
    model, x = chain(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4),
        GroupNorm(2, 4), LayerNorm(5), shape=(2, 3, 4, 6),
    )  # fmt: skip
    folded = assert_folds(model, x)
    kinds = [type(m) for m in folded.children()]
    assert kinds[2:] == [nn.GroupNorm, nn.InstanceNorm2d, GroupNorm, LayerNorm]


def sizes_of_output(m: Any, x: Tensor) -> Any:
    x = m.conv(x)
    return m.norm(x).reshape(x.size(0), x.shape[1], -1)


def sizes_of_input(m: Any, x: Tensor) -> Any:
    u = m.norm3(x)
    size = x.size(0), u.shape[1] - 3
    return m.conv(u).reshape(size[0], size[1] - 1)


@pytest.mark.parametrize("wiring", [sizes_of_output, sizes_of_input])
def test_a_question_for_the_shape_is_no_use_of_the_output(wiring: Any) -> None:
    norms = {"norm": nn.BatchNorm2d(5), "norm3": nn.BatchNorm2d(3)}
    used = "norm" if wiring is sizes_of_output else "norm3"
    parts = {"conv": nn.Conv2d(3, 5, 2), used: norms[used]}
    assert_folds(*chain(Wired(wiring, **parts), shape=(2, 3, 4, 6)))


def test_the_input_of_a_batch_norm_may_be_used_before_it_and_after_the_layer() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        double = x * 2
        x += m.linear(m.norm(x))
        return x + double

    layers = {"norm": nn.BatchNorm1d(3), "linear": nn.Linear(3, 3)}
    model, x = chain(Wired(forward, **layers), shape=(4, 3))
    # The model changes its input, as many do.
    assert relative_error(fold_batch_norm(model)(x.clone()), model(x)) < 1e-12


def test_a_batch_norm_with_two_names_goes_from_both() -> None:
    model, x = chain(nn.Linear(3, 5), nn.BatchNorm1d(5), shape=(4, 3))
    model[0].norm = model[1]
    assert_folds(model, x)


def test_what_the_model_keeps_while_it_runs_is_not_a_trace() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        m.last = x
        return m.norm(m.linear(x))

    layers = {"linear": nn.Linear(3, 5), "norm": nn.BatchNorm1d(5)}
    assert not hasattr(fold_batch_norm(Wired(forward, **layers).eval()), "last")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_parameters_keep_dtype_and_requires_grad(dtype: torch.dtype) -> None:
    model, _ = chain(nn.Linear(3, 5), nn.BatchNorm1d(5), shape=(4, 3))
    model.to(dtype)[0].weight.requires_grad_(False)
    layer: Any = next(fold_batch_norm(model).children())
    assert (layer.weight.dtype, layer.bias.dtype) == (dtype, dtype)
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (False, True)


def test_a_new_bias_is_trained_if_the_weights_are() -> None:
    for is_trained in (True, False):
        layer = nn.Conv1d(3, 5, 2, bias=False).requires_grad_(is_trained)
        model, _ = chain(layer, nn.BatchNorm1d(5), shape=(4, 3, 6))
        folded: Any = fold_batch_norm(model)
        assert folded[0].bias.requires_grad is is_trained


def test_half_precision_weights_are_rounded_once() -> None:
    model, _ = chain(nn.Linear(3, 5), nn.BatchNorm1d(5), shape=(4, 3))
    folded: Any = fold_batch_norm(model.half())
    exact: Any = fold_batch_norm(model.double())
    assert torch.equal(folded[0].weight, exact[0].weight.half())


def test_channels_last_weights_stay_so() -> None:
    model, _ = chain(nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), shape=(2, 3, 4, 6))
    folded: Any = fold_batch_norm(model.to(memory_format=torch.channels_last))
    assert folded[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_the_plan_names_every_batch_norm_in_order() -> None:
    model, _ = make("DenseNet")
    plan = folding_plan(model)
    assert [f.norm for f in plan] == [
        name for name, m in model.named_modules() if isinstance(m, TorchBatchNorm)
    ]
    assert str(plan[0]) == "0.1: into 0.0, the previous layer"
    assert "behind: ReLU '1.branch.1'" in str(plan[1])


class Slotted(nn.Linear):
    """A layer that says itself what a copy of it is made from."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return rebuilt, (dict(vars(self)),)


def rebuilt(values: dict[str, Any]) -> Slotted:
    layer = Slotted.__new__(Slotted)
    layer.__dict__.update(values)
    return layer


def test_a_layer_that_is_copied_in_its_own_way_stays() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), Slotted(4, 2)).eval()
    folded: Any = fold_batch_norm(model)
    assert type(folded[2]) is Slotted
    assert folded[2] is not model[2]
    x = torch.ones(5, 3)
    assert torch.allclose(folded(x), model(x))
