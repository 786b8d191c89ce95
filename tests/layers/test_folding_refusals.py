"""What cannot be folded is refused with its reason, and the model is as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from normbook.lab.architectures import stir
from normbook.layers.folding import FoldingError, fold_batch_norm, folding_plan
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d


class Wired(nn.Module):
    """Two convolutions and batch norms, wired by a function that a test gives."""

    def __init__(self, wiring: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.conv2, self.norm2 = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.wiring = wiring

    def forward(self, x: Tensor) -> Any:
        assert self.wiring is not None
        return self.wiring(self, x)


def refusal(model: nn.Module) -> str:
    """Give the error's text; refuse a model that was changed."""
    before = copy.deepcopy(model.state_dict())
    kinds = str(model)
    with pytest.raises(FoldingError) as caught:
        fold_batch_norm(model)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert str(model) == kinds
    return str(caught.value)


def linear(**options: Any) -> Any:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, **options)).eval()


def before_conv(*between: nn.Module, **options: Any) -> Any:
    conv = nn.Conv2d(3, 5, 3, **options)
    return nn.Sequential(nn.BatchNorm2d(3), *between, conv).eval()


# --- between the layers


def test_batch_norm_before_padding_with_zeros_is_refused() -> None:
    for padding in (1, (0, 1), "same"):
        text = refusal(before_conv(padding=padding))
        assert "behind: '1' pads with zeros, which batch norm does not shift" in text
        assert "the interior would be right and the border wrong" in text


# Kernel, stride, padding, output padding, groups, bias, dilation: each of them with an
# output that some weight of the kernel does not reach.
TRANSPOSED: tuple[tuple[Any, ...], ...] = (
    (3,),
    (3, 1, 1),
    (1, 2),
    (2, 2),
    (3, 2, 2),
    (3, 1, 3, 0, 1, True, 2),
    (3, 1, 4, 1, 1, True, 2),
    (1, 1, 0, 1, 1, True, 2),
    ((1, 3),),
    ((3, 1), 1, (1, 0)),
    (1, (1, 2)),
)


@pytest.mark.parametrize("options", TRANSPOSED)
def test_batch_norm_before_a_transposed_convolution_is_refused(
    options: tuple[Any, ...],
) -> None:
    layer = nn.ConvTranspose2d(3, 5, *options)
    model = nn.Sequential(nn.BatchNorm2d(3), layer).double().eval()
    text = refusal(stir(model, torch.Generator().manual_seed(0)))
    assert "'1' is transposed, and not all of its outputs meet all" in text
    # The reason is true: what a constant input adds differs from output to output.
    x = torch.ones(1, 3, 7, 7, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x) - layer(0 * x)
    assert (y - y[..., 3:4, 3:4]).abs().max() > 1e-3


def test_batch_norm_relu_convolution_is_refused() -> None:
    text = refusal(before_conv(nn.ReLU()))
    assert "in front: the input of the model; behind: ReLU '1', no linear" in text


def test_a_residual_branch_that_needs_the_output_is_named() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.conv(x)
        return self.norm2(self.conv2(self.norm(y))) + y

    text = refusal(Wired(forward).eval())
    assert "the output of 'conv' is used elsewhere, too, by add" in text


def test_an_output_that_the_model_returns_too_is_used_elsewhere() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.norm2(self.conv(x))
        z = self.conv2(y)
        return self.norm(z), z

    assert "'conv2' is used elsewhere, too, by the end" in refusal(
        Wired(forward).eval()
    )


def test_batch_norm_with_two_linear_layers_behind_it_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.norm(x)
        return self.norm2(self.conv(y) + self.conv2(y))

    text = refusal(Wired(forward).eval())
    assert "behind: its output is used by 'conv', 'conv2'" in text
    assert "norm2: in front: add, a function and no layer" in text


def add_to(x: Any) -> None:
    x += 1


CHANGES: dict[str, Callable[[Any], Any]] = {
    "itself": torch.relu_,
    "by an operator": add_to,
    "through a view": lambda x: x.view(-1).add_(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_may_be_changed_in_place_under_an_identity_is_refused(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.norm(x)  # as an Identity, this is x
        CHANGES[name](x)
        return self.norm2(self.conv2(y))

    model = Wired(forward).eval()
    model.conv2 = nn.Conv2d(3, 3, 1)
    assert "runs between the batch norm and 'conv2', and may change" in refusal(model)


def test_a_view_that_is_older_than_the_batch_norm_may_change_it_too() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        view = x.view(-1)
        y = self.norm(x)
        view.add_(1)
        return self.norm2(self.conv2(y))

    model = Wired(forward).eval()
    model.conv2 = nn.Conv2d(3, 3, 1)
    assert "norm: in front: the input of the model; behind: add_ runs" in refusal(model)


def test_a_layer_that_is_called_twice_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.norm2(self.conv(self.norm(self.conv(x))))

    text = refusal(Wired(forward).eval())
    assert "norm: in front: 'conv' is called 2 times; behind: 'conv' is called" in text
    assert "norm2: in front: 'conv' is called 2 times" in text


def test_a_batch_norm_that_is_called_twice_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.norm(self.conv2(torch.relu(self.norm(self.conv(x)))))

    assert "norm: it is called 2 times; cure: make a layer" in refusal(
        Wired(forward).eval()
    )


def test_tied_weights_are_refused() -> None:
    model: Any = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4)
    ).eval()
    model[3].weight = model[0].weight
    assert "'0' shares its weights with another layer" in refusal(model)
    model[3].weight = nn.Parameter(model[0].weight.detach().T)  # one memory
    assert "'0' shares its weights with another layer" in refusal(model)


def test_weights_that_the_model_uses_by_itself_are_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.norm2(self.conv2(torch.relu(self.norm(self.conv(x)))))
        return functional.conv_transpose2d(y, self.conv.weight)

    text = refusal(Wired(forward).eval())
    assert "the model also reads the weights of 'conv' by itself" in text


def test_statistics_that_the_model_reads_by_itself_are_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.norm2(self.conv2(self.norm(self.conv(x))))
        return y + self.norm.weight[:, None, None]

    assert "norm: the model also reads the weights of it" in refusal(
        Wired(forward).eval()
    )


def test_functions_are_no_layers() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = functional.conv2d(x, self.conv.weight)
        y = self.norm(y)
        m, v = torch.zeros(3), torch.ones(3)
        return torch.relu(functional.batch_norm(y, m, v)) + self.norm2(self.conv2(x))

    text = refusal(Wired(forward).eval())
    assert "norm: in front: conv2d, a function and no layer" in text
    assert "it is a call of torch.nn.functional.batch_norm" in text
    assert "got 2 of 3" in text


def test_a_layer_of_other_channels_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(7)).eval()  # (N, 7, 5)
    assert "'0' has its channels elsewhere or another number" in refusal(model)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm2d(5)).eval()  # (N, 5, H, 5)
    assert "'0' has its channels elsewhere or another number" in refusal(model)


def test_batch_norm_that_is_not_called_is_refused() -> None:
    text = refusal(Wired(lambda self, x: self.norm(self.conv(x))).eval())
    assert "norm2: the model does not call it" in text


def test_batch_norm_inside_of_a_layer_of_torch_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(4, 2)
    layer.norm1 = nn.BatchNorm1d(7)  # type: ignore[assignment]
    model = nn.Sequential(layer).eval()
    assert "inside of a layer that is not looked into" in refusal(model)


def test_a_route_that_depends_on_an_optional_argument_is_refused() -> None:
    class Model(Wired):
        def forward(self, x: Tensor, skip: Any = None, twice: bool = False) -> Any:
            y = self.conv(x)
            if skip is not None:
                y = y + skip
            y = self.conv2(torch.relu(self.norm(y)))
            return self.norm2(y * 2 if twice else y)

    text = refusal(Model().eval())
    assert text.count("depends on the optional arguments of the model") == 2


@pytest.mark.parametrize("default", ["full", 0, 1.5])
def test_a_route_that_depends_on_another_argument_is_refused(default: Any) -> None:
    class Model(Wired):
        def forward(self, x: Tensor, mode: Any = default) -> Any:
            y = self.conv(x)
            return self.norm2(self.conv2(self.norm(y) if mode == default else y * 2))

    assert "fixes the optional arguments" in refusal(Model().eval())


@pytest.mark.parametrize("default", ["full", 0, 1.5])
def test_a_route_that_depends_on_the_type_of_an_argument_is_refused(
    default: Any,
) -> None:
    class Model(Wired):
        def forward(self, x: Tensor, mode: Any = default) -> Any:
            y = self.conv(x)
            is_given = not isinstance(mode, type(default))
            return self.norm2(self.conv2(self.norm(y * 2 if is_given else y)))

    assert "norm: what stands beside it depends" in refusal(Model().eval())


def test_a_route_that_depends_on_two_arguments_together_is_refused() -> None:
    class Model(Wired):
        def forward(self, x: Tensor, p: bool = False, q: bool = False) -> Any:
            y = self.conv(x)
            return self.norm2(self.conv2(self.norm(y * 2 if p and q else y)))

    assert "norm: what stands beside it depends on the optional" in refusal(
        Model().eval()
    )


def test_more_optional_arguments_than_can_be_combined_are_refused() -> None:
    class Model(Wired):
        def forward(
            self, x: Tensor, a: int = 0, b: int = 0, c: int = 0, d: int = 0,
            e: int = 0, f: int = 0, g: int = 0,
        ) -> Any:  # fmt: skip
            return self.norm2(self.conv2(self.norm(self.conv(x))))

    assert "at most 6 optional arguments" in refusal(Model().eval())


LOOKS: dict[str, Callable[[Any], Any]] = {
    "at the kind of a layer": lambda self: isinstance(self.norm, nn.BatchNorm2d),
    "at the bias": lambda self: self.conv.bias is None,
    "at eps": lambda self: self.norm.eps,
    "at all weights": lambda self: sum(p.detach().sum() for p in self.parameters()),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_model_that_looks_at_what_folding_changes_is_refused(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        return self.norm2(self.conv2(y)) + 1.0 * LOOKS[name](self)

    model = Wired(forward).eval()
    model.conv = nn.Conv2d(3, 3, 3, bias=False)
    assert "must go the same way once it is folded" in refusal(model)


def test_a_layer_that_another_calls_inside_is_refused() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.TransformerEncoderLayer(4, 2, 6)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Any:
            return self.norm(self.block.linear2(self.block.linear1(self.block(x))))

    text = refusal(Model().eval())
    assert "reads the weights of 'block.linear2' by itself, or inside" in text


# --- the example

TOKENS = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))  # right for (N, D) only


UNBATCHED = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("model", "shape"), [(TOKENS, (2, 4, 3)), (TOKENS, (3,)), (UNBATCHED, (3, 4))]
)
def test_a_folded_model_refuses_another_number_of_axes(
    model: nn.Module, shape: tuple[int, ...]
) -> None:
    x, model = torch.ones(shape), copy.deepcopy(model).eval()
    with pytest.raises(AssertionError, match="got another number of axes"):
        fold_batch_norm(model)(x)
    if x.dim() > 1:  # which the model itself does not refuse
        with pytest.raises(FoldingError, match=r"must take the example.*axes"):
            fold_batch_norm(model, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_example_for_which_the_output_is_another_is_refused(dtype: Any) -> None:
    class Model(Wired):
        def forward(self, x: Tensor) -> Any:
            y = self.conv2(self.norm(self.conv(x)))
            return self.norm2(y) if torch.is_grad_enabled() else 2 * y

    model = stir(Model(), torch.Generator().manual_seed(0)).to(dtype)
    with pytest.raises(FoldingError, match="difference, as a share of the largest"):
        fold_batch_norm(model, torch.ones(2, 3, 4, 5, dtype=dtype))


@pytest.mark.parametrize("example", [torch.ones(2, 5, 3), torch.ones(2, 7), "text"])
def test_an_example_that_the_model_does_not_take_is_refused(example: Any) -> None:
    with pytest.raises(FoldingError, match="example must be an input of the model"):
        fold_batch_norm(copy.deepcopy(TOKENS).eval(), example)


def test_an_output_that_cannot_be_compared_is_refused() -> None:
    class Model(Wired):
        def forward(self, x: Tensor, is_shown: bool = True) -> Any:
            y = self.norm2(self.conv2(self.norm(self.conv(x))))
            return {"y": y, "bad": y * torch.nan} if is_shown else "nothing"

    x = torch.ones(2, 3, 4, 5)
    cases = (x, "nan"), ((x, False), "no output"), (x[:0], "no output")
    for example, found in cases:
        with pytest.raises(FoldingError, match=f"{found} as the difference"):
            fold_batch_norm(Model().eval(), example)


# --- the batch norm itself


def test_every_batch_norm_that_cannot_be_folded_is_listed() -> None:
    model = nn.Sequential(
        *linear(), nn.ReLU(), *before_conv(nn.ReLU()), nn.BatchNorm2d(5)
    )
    model.append(nn.ReLU()).append(nn.BatchNorm2d(5))
    with pytest.raises(FoldingError, match="got 2 of 4 that cannot be") as caught:
        fold_batch_norm(model.eval())
    assert [folding.norm for folding in caught.value.refused] == ["3", "8"]


def test_what_cannot_be_folded_stays_where_it_is_asked_for() -> None:
    model = nn.Sequential(*linear(), nn.ReLU(), nn.BatchNorm1d(5)).eval()
    folded = fold_batch_norm(model, strict=False)
    kinds = [type(layer).__name__ for layer in folded.children()]
    assert kinds == ["Linear", "FoldedBatchNorm", "ReLU", "BatchNorm1d"]


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(FoldingError, match=r"evaluation mode, got .*model.eval\(\)"):
        fold_batch_norm(linear().train(), strict=False)


def test_a_batch_norm_in_training_mode_is_refused() -> None:
    model = linear()
    model[1].train()
    assert "1: it is in training mode and uses" in refusal(model)


def test_dropout_in_training_mode_between_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.BatchNorm1d(5)).eval()
    model[1].train()
    assert "in front: Dropout '1', no linear layer" in refusal(model)


def test_a_hook_on_what_does_nothing_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.BatchNorm1d(5)).eval()
    model[1].register_forward_hook(lambda module, args, y: y + 1)
    assert "in front: Dropout '1', no linear layer" in refusal(model)


def test_nothing_is_folded_through_a_batch_norm_that_stays() -> None:
    model = nn.Sequential(*linear(), nn.BatchNorm1d(5)).eval()
    model[1].train()
    assert "2: in front: BatchNorm1d '1', no linear layer" in refusal(model)


def test_batch_norm_without_running_statistics_is_refused() -> None:
    assert "no running statistics" in refusal(linear(track_running_stats=False))


@pytest.mark.parametrize("name", ["running_mean", "running_var", "weight", "bias"])
def test_values_that_are_not_finite_are_refused(name: str) -> None:
    for value in (torch.inf, torch.nan):
        model = linear()
        getattr(model[1], name).data[0] = value
        if (name, value) == ("running_var", torch.inf):
            continue  # its scale is 0
        with pytest.raises(FoldingError, match="not finite"):
            fold_batch_norm(model)


def test_a_variance_of_zero_without_eps_is_refused() -> None:
    model = linear(eps=0.0)
    model[1].running_var[0] = 0.0
    assert "its variance + eps is not positive" in refusal(model)


@pytest.mark.parametrize("kind", [MaskedBatchNorm1d, PerStepBatchNorm1d])
def test_batch_norm_with_a_formula_of_its_own_is_refused(kind: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            is_masked = kind is MaskedBatchNorm1d
            self.linear, self.norm = (
                nn.Linear(3, 5),
                kind(5, *([] if is_masked else [4])),
            )

        def forward(self, x: Tensor, second: Any) -> Tensor:
            y: Tensor = self.norm(self.linear(x), second)
            return y

    assert f"norm: it, a {kind.__name__}, computes" in refusal(Model().eval())


def test_a_batch_norm_whose_method_was_replaced_is_refused() -> None:
    model = linear()
    vars(model[1])["forward"] = torch.relu
    assert "1: it, a BatchNorm1d, computes something of its own" in refusal(model)


def test_a_convolution_with_a_formula_of_its_own_is_refused() -> None:
    class Standardized(nn.Conv2d):
        def _conv_forward(self, input: Tensor, weight: Tensor, bias: Any) -> Any:
            return super()._conv_forward(input, weight / weight.std(), bias)

    model = nn.Sequential(Standardized(3, 5, 2), nn.BatchNorm2d(5)).eval()
    assert "'0', a Standardized, computes something of its own" in refusal(model)


def test_a_batch_norm_that_is_called_in_its_own_way_is_refused() -> None:
    class Loud(nn.BatchNorm1d):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args) * 2

    model = nn.Sequential(nn.Linear(3, 5), Loud(5)).eval()
    assert "must go the same way once it is folded" in refusal(model)


# --- the linear layer


@pytest.mark.parametrize("which", [0, 1])
def test_hooks_are_refused(which: int) -> None:
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook"):
        model = linear()
        getattr(model[which], f"register_{register}")(lambda *_: None)
        assert "has hooks, as weight norm and pruning use them" in refusal(model)


def test_hooks_of_modules_that_hold_others_are_refused() -> None:
    model = nn.Sequential(linear()).eval()
    model[0].register_forward_hook(lambda *_: None)
    assert "got some on '0'; remove them" in refusal(model)


@pytest.mark.parametrize(
    "parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm]
)
def test_parametrized_weights_are_refused(parametrize: Any) -> None:
    model = linear()
    parametrize(model[0])
    text = refusal(model)
    assert "in front: '0' is parametrized" in text
    assert "cure: make the weights plain with torch.nn.utils.parametrize.remove" in text


def test_pruned_weights_are_refused() -> None:
    model = linear()
    prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    assert "copy.deepcopy copies it, got Only Tensors created" in refusal(model)
    assert "'0' has hooks, as weight norm and pruning use them, remove" in refusal(
        model
    )


@pytest.mark.parametrize("which", [0, 1])
def test_lazy_layers_are_refused(which: int) -> None:
    model = linear()
    model[which] = (nn.LazyLinear(5), nn.LazyBatchNorm1d())[which].eval()
    with pytest.raises(
        FoldingError, match=r"is lazy and has no size yet.*run the model"
    ):
        fold_batch_norm(model)


def test_complex_weights_are_refused() -> None:
    model = linear()
    model[0] = nn.Linear(3, 5, dtype=torch.complex64).eval()
    assert "the weights of '0' have dtype torch.complex64" in refusal(model)


@pytest.mark.parametrize("which", [0, 1])
def test_layers_without_values_are_refused(which: int) -> None:
    model = linear()
    model[which].to("meta")
    with pytest.raises(FoldingError, match="on the meta device and has no values"):
        fold_batch_norm(model)


def test_folded_weights_that_overflow_are_refused() -> None:
    model = linear().half()
    model[0].weight.data.fill_(1000.0)
    model[1].running_var.fill_(0.0)  # a scale of 316
    assert "must be finite in torch.float16, got infinity" in refusal(model)


# --- the model


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, got dict"):
        fold_batch_norm({})  # type: ignore[arg-type]


def test_a_batch_norm_alone_is_refused() -> None:
    assert "got a BatchNorm1d alone" in refusal(nn.BatchNorm1d(3).eval())


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        return self.norm(self.conv(x)) if x.sum() > 0 else x

    text = refusal(Wired(forward).eval())
    assert "torch.fx can trace it" in text
    assert "fold its parts, for example model.features =" in text


def test_wrapped_models_are_refused() -> None:
    model = nn.DataParallel(linear()).eval()
    assert "got a DataParallel around it; fold model.module" in refusal(model)


def test_compiled_models_are_refused() -> None:
    model: Any = torch.compile(linear(), backend="eager")
    with pytest.raises(FoldingError, match=r"of torch.compile; fold model._orig_mod"):
        fold_batch_norm(model.eval())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_scripted_models_are_refused() -> None:
    with pytest.raises(FoldingError, match="fold first, and script the folded model"):
        fold_batch_norm(torch.jit.script(linear()))


def test_a_model_whose_forward_was_replaced_is_refused() -> None:
    model = linear()
    vars(model)["forward"] = torch.relu
    assert "got one that was given another" in refusal(model)


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = linear()
    vars(model)["cache"] = torch.ones(2, requires_grad=True) * 2
    assert "copy.deepcopy copies it" in refusal(model)


def test_the_plan_of_a_model_without_batch_norm_is_empty() -> None:
    assert folding_plan(nn.Sequential(nn.Linear(3, 5), nn.ReLU()).eval()) == ()
