"""What cannot be folded is refused with its reason, and the model is as it was."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_pairs import Wired
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations, prune

from normbook.lab.architectures import stir
from normbook.layers.folding import FoldingError, fold_batch_norm, folding_plan
from normbook.layers.sequences import MaskedBatchNorm1d, PerStepBatchNorm1d


def refusal(model: nn.Module) -> str:
    """Return the error's text; refuse a model that was changed."""
    before = copy.deepcopy(state_of(model))
    kinds = str(model)
    with pytest.raises(FoldingError) as caught:
        fold_batch_norm(model)
    after = state_of(model)
    same: Any = {"rtol": 0.0, "atol": 0.0, "equal_nan": True}
    assert all(torch.allclose(after[key], before[key], **same) for key in before)
    assert str(model) == kinds
    return str(caught.value)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    values = model.state_dict().items()
    return {k: v for k, v in values if not (is_lazy(v) or v.is_meta)}


def linear(*between: nn.Module, **options: Any) -> Any:
    norm = nn.BatchNorm1d(5, **options)
    return nn.Sequential(nn.Linear(3, 5), *between, norm).eval()


def before_conv(*between: nn.Module, **options: Any) -> Any:
    conv = nn.Conv2d(3, 5, 3, **options)
    return nn.Sequential(nn.BatchNorm2d(3), *between, conv).eval()


def wired(wiring: Callable[..., Any], kind: Any = Wired, **other: nn.Module) -> Any:
    """Return two convolutions and batch norms, wired by a function."""
    layers: dict[str, nn.Module] = {
        "norm": nn.BatchNorm2d(3),
        "norm2": nn.BatchNorm2d(3),
    }
    for name in ("conv", "conv2"):
        layers[name] = nn.Conv2d(3, 3, 3, padding=1)
    return kind(wiring, **layers | other).eval()


def with_arguments(forward: Callable[..., Any]) -> Any:
    return wired(forward, type("Model", (Wired,), {"forward": forward}))


def changed(change: Callable[[Any], Any], model: Any = None) -> Any:
    """Return a linear layer and its batch norm, or another model, with a change."""
    model = model or linear()
    change(model)
    return model


def chain(*layers: nn.Module) -> Any:
    return nn.Sequential(*layers).eval()


# --- models with a forward of their own


def by_functions(self: Any, x: Tensor) -> Any:
    y = self.norm(functional.conv2d(x, self.conv.weight))
    y = functional.batch_norm(y, torch.zeros(3), torch.ones(3))
    return torch.relu(y) + self.norm2(self.conv2(x))


def by_weight(self: Any, x: Tensor) -> Any:
    y = self.norm2(self.conv2(torch.relu(self.norm(self.conv(x)))))
    return functional.conv_transpose2d(y, self.conv.weight)


def by_two(self: Any, x: Tensor, skip: Any = None, twice: bool = False) -> Any:
    y = self.conv(x)
    if skip is not None:
        y = y + skip
    y = self.conv2(torch.relu(self.norm(y)))
    return self.norm2(y * 2 if twice else y)


def by_value(default: Any) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor, mode: Any = default) -> Any:
        y = self.conv(x)
        return self.norm2(self.conv2(self.norm(y) if mode == default else y * 2))

    return forward


def by_type(default: Any) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor, mode: Any = default) -> Any:
        y, is_other = self.conv(x), not isinstance(mode, type(default))
        return self.norm2(self.conv2(self.norm(y * 2 if is_other else y)))

    return forward


def with_second(norm: nn.Module) -> Any:
    """Give the batch norm a second argument."""
    return Wired(lambda m, x: m.norm(m.linear(x), x), linear=nn.Linear(3, 5), norm=norm)


class Standardized(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Any) -> Any:
        return super()._conv_forward(input, weight / weight.std(), bias)


class Loud(nn.BatchNorm1d):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) * 2


def around_batch_norm() -> Any:
    layer = nn.TransformerEncoderLayer(4, 2)
    layer.norm1 = nn.BatchNorm1d(7)  # type: ignore[assignment]
    return nn.Sequential(layer).eval()


def around_block() -> Any:
    """Call layers that a layer of torch calls inside, too."""
    block, norm = nn.TransformerEncoderLayer(4, 2, 6), nn.BatchNorm1d(4)
    return Wired(
        lambda m, x: m.norm(m.block.linear2(m.block.linear1(m.block(x)))),
        block=block,
        norm=norm,
    ).eval()


def tied(share: Callable[[Tensor], Any]) -> Any:
    model = chain(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
    model[3].weight = share(model[0].weight)
    return model


def looking(look: Callable[[Any], Any]) -> Any:
    return wired(
        lambda m, x: m.norm2(m.conv2(m.norm(m.conv(x)))) + 1.0 * look(m),
        conv=nn.Conv2d(3, 3, 3, bias=False),
    )


def hook(which: int, kind: str) -> Callable[[Any], Any]:
    register = f"register_{kind}hook"
    return lambda model: getattr(model[which], register)(lambda *_: None)


def spoil(name: str, value: float) -> Callable[[Any], Any]:
    return lambda model: getattr(model[1], name).data[0].fill_(value)


def overflow(model: Any) -> None:
    model.half()[0].weight.data.fill_(1000.0)
    model[1].running_var.fill_(0.0)  # a scale of 316


PARAMETRIZED = (
    "in front: '0' is parametrized",
    "cure: make the weights plain with torch.nn.utils.parametrize.remove",
)
HOOKS = "has hooks, as weight norm and pruning use them"
ZEROS = (
    "behind: '1' pads with zeros, which batch norm does not shift",
    "the interior would be right and the border wrong",
)
ELSEWHERE = "'0' has its channels elsewhere or another number"
OPTIONAL = "what stands beside it depends on the optional arguments of the model"
FIXED = "fixes the optional arguments"
IDLE = "in front: Dropout '1', no linear layer"
LAZY = "is lazy and has no size yet", "run the model"
SHARED = "'0' shares its weights with another layer"
ANOTHER_WAY = "must go the same way once it is folded"
META = "on the meta device and has no values"
COMPILED: Any = torch.compile(linear(), backend="eager")
# A model, and what is said of it.
CASES: list[tuple[Any, ...]] = [
    # Between the layers.
    (before_conv(padding=1), *ZEROS),
    (before_conv(padding=(0, 1)), *ZEROS),
    (before_conv(padding="same"), *ZEROS),
    (
        before_conv(nn.ReLU()),
        "in front: the input of the model; behind: ReLU '1', no linear",
    ),
    (
        wired(lambda m, x: m.norm2(m.conv2(m.norm(y := m.conv(x)))) + y),
        "the output of 'conv' is used elsewhere, too, by add",
    ),
    (
        wired(lambda m, x: (m.norm(y := m.conv2(m.norm2(m.conv(x)))), y)),
        "'conv2' is used elsewhere, too, by the end",
    ),
    (
        wired(lambda m, x: m.norm2(m.conv(y := m.norm(x)) + m.conv2(y))),
        "behind: its output is used by 'conv', 'conv2'",
        "norm2: in front: add, a function and no layer",
    ),
    (
        wired(lambda m, x: m.norm2(m.conv(m.norm(m.conv(x))))),
        "norm: in front: 'conv' is called 2 times; behind: 'conv' is called",
        "norm2: in front: 'conv' is called 2 times",
    ),
    (
        wired(lambda m, x: m.norm(m.conv2(torch.relu(m.norm(m.conv(x)))))),
        "norm: it is called 2 times; cure: make a layer",
    ),
    (tied(lambda w: w), SHARED),
    (tied(lambda w: nn.Parameter(w.detach().T)), SHARED),
    (wired(by_weight), "the model also reads the weights of 'conv' by itself"),
    (
        wired(lambda m, x: m.norm2(m.conv2(m.norm(m.conv(x)))) + m.norm.weight[0]),
        "norm: the model also reads the weights of it",
    ),
    (
        wired(by_functions),
        "norm: in front: conv2d, a function and no layer",
        "it is a call of torch.nn.functional.batch_norm",
        "got 2 of 3",
    ),
    (chain(nn.Linear(3, 5), nn.BatchNorm1d(7)), ELSEWHERE),
    (chain(nn.Linear(3, 5), nn.BatchNorm2d(5)), ELSEWHERE),
    (around_batch_norm(), "inside of a layer that is not looked into"),
    (around_block(), "reads the weights of 'block.linear2' by itself, or inside"),
    (with_arguments(by_two), f"norm: {OPTIONAL}", f"norm2: {OPTIONAL}"),
    (
        with_arguments(
            lambda m, x, p=False, q=False: m.norm2(
                m.conv2(m.norm(m.conv(x) * 2 if p and q else m.conv(x)))
            )
        ),
        f"norm: {OPTIONAL}",
    ),
    *(
        (with_arguments(by(default)), reason)
        for by, reason in ((by_value, FIXED), (by_type, f"norm: {OPTIONAL}"))
        for default in ("full", 0, 1.5)
    ),
    (
        with_arguments(lambda m, x, a=0, b=0, c=0, d=0, e=0, f=0, g=0: m.norm(x)),
        "at most 6 optional arguments",
    ),
    # The batch norm.
    (changed(lambda m: m[1].train()), "1: it is in training mode and"),
    (changed(lambda m: m[1].train(), linear(nn.Dropout())), IDLE),
    (changed(hook(1, "forward_"), linear(nn.Dropout())), IDLE),
    (
        changed(lambda m: m[1].train(), linear(nn.BatchNorm1d(5))),
        "2: in front: BatchNorm1d '1', no linear layer",
    ),
    (linear(track_running_stats=False), "no running statistics"),
    (
        changed(lambda m: m[1].running_var[:1].fill_(0.0), linear(eps=0.0)),
        "its variance + eps is not positive",
    ),
    *(
        (changed(spoil(name, value)), "not finite")
        for name in ("running_mean", "running_var", "weight", "bias")
        for value in (torch.inf, torch.nan)
        if (name, value) != ("running_var", torch.inf)  # its scale is 0
    ),
    (with_second(MaskedBatchNorm1d(5)).eval(), "it, a MaskedBatchNorm1d, computes"),
    (with_second(PerStepBatchNorm1d(5, 4)).eval(), "a PerStepBatchNorm1d, computes"),
    (
        changed(lambda m: vars(m[1]).update(forward=torch.relu)),
        "1: it, a BatchNorm1d, computes something of its own",
    ),
    (
        chain(Standardized(3, 5, 2), nn.BatchNorm2d(5)),
        "'0', a Standardized, computes something of its own",
    ),
    (chain(nn.Linear(3, 5), Loud(5)), ANOTHER_WAY),
    # The linear layer.
    *(
        (changed(hook(which, kind)), HOOKS)
        for kind in ("forward_", "forward_pre_", "full_backward_")
        for which in (0, 1)
    ),
    (changed(hook(0, "forward_"), chain(linear())), "got some on '0'; remove them"),
    (changed(lambda m: parametrizations.weight_norm(m[0])), *PARAMETRIZED),
    (changed(lambda m: parametrizations.spectral_norm(m[0])), *PARAMETRIZED),
    (
        changed(lambda m: prune.l1_unstructured(m[0], "weight", 0.5)),  # type: ignore[no-untyped-call]
        "copy.deepcopy copies it, got Only Tensors created",
        f"'0' {HOOKS}, remove",
    ),
    (chain(nn.LazyLinear(5), nn.BatchNorm1d(5)), *LAZY),
    (chain(nn.Linear(3, 5), nn.LazyBatchNorm1d()), *LAZY),
    (
        chain(nn.Linear(3, 5, dtype=torch.complex64), nn.BatchNorm1d(5)),
        "the weights of '0' have dtype torch.complex64",
    ),
    (changed(lambda m: m[0].to("meta")), META),
    (changed(lambda m: m[1].to("meta")), META),
    (changed(overflow), "must be finite in torch.float16, got infinity"),
    # What the model looks at.
    (looking(lambda m: isinstance(m.norm, nn.BatchNorm2d)), ANOTHER_WAY),
    (looking(lambda m: m.conv.bias is None), ANOTHER_WAY),
    (looking(lambda m: m.norm.eps), ANOTHER_WAY),
    (looking(lambda m: sum(p.detach().sum() for p in m.parameters())), ANOTHER_WAY),
    # The model.
    (nn.BatchNorm1d(3).eval(), "got a BatchNorm1d alone"),
    (
        wired(lambda m, x: m.norm(m.conv(x)) if x.sum() > 0 else x),
        "torch.fx can trace it",
        "fold its parts, for example model.features =",
    ),
    (nn.DataParallel(linear()).eval(), "a DataParallel around it; fold model.module"),
    (COMPILED.eval(), "of torch.compile; fold model._orig_mod"),
    (changed(lambda m: vars(m).update(forward=torch.relu)), "that was given another"),
    (
        changed(lambda m: vars(m).update(cache=torch.ones(2, requires_grad=True) * 2)),
        "copy.deepcopy copies it",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[-1])
def test_what_cannot_be_folded_is_refused_with_its_reason(case: Any) -> None:
    model, *reasons = case
    text = refusal(model)
    for reason in reasons:
        assert reason in text


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


# --- what changes its input in place


def by_older_view(self: Any, x: Tensor) -> Any:
    view = x.view(-1)
    y = self.norm(x)
    view.add_(1)
    return y


def after(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def before_conv2(self: Any, x: Tensor) -> Any:
        y = self.norm(x)  # as an Identity, this is x
        change(x)
        return y

    return before_conv2


@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (after(torch.relu_), "relu_"),
        (after(lambda x: operator.iadd(x, 1)), "add"),  # type: ignore[no-untyped-call]
        (after(lambda x: x.view(-1).add_(1)), "view"),
        (by_older_view, "add_"),
    ],
)
def test_what_may_be_changed_in_place_under_an_identity_is_refused(
    forward: Callable[..., Any], name: str
) -> None:
    wiring: Any = lambda m, x: m.norm2(m.conv2(forward(m, x)))  # noqa: E731
    model = wired(wiring, conv2=nn.Conv2d(3, 3, 1))
    text = refusal(model)
    assert "runs between the batch norm and 'conv2', and may change" in text
    assert f"norm: in front: the input of the model; behind: {name}" in text


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
    def by_mode(self: Any, x: Tensor) -> Any:
        y = self.conv2(self.norm(self.conv(x)))
        return self.norm2(y) if torch.is_grad_enabled() else 2 * y

    model = stir(wired(by_mode), torch.Generator().manual_seed(0)).to(dtype)
    with pytest.raises(FoldingError, match="difference, as a share of the largest"):
        fold_batch_norm(model, torch.ones(2, 3, 4, 5, dtype=dtype))


@pytest.mark.parametrize("example", [torch.ones(2, 5, 3), torch.ones(2, 7), "text"])
def test_an_example_that_the_model_does_not_take_is_refused(example: Any) -> None:
    with pytest.raises(FoldingError, match="example must be an input of the model"):
        fold_batch_norm(copy.deepcopy(TOKENS).eval(), example)


def test_an_output_that_cannot_be_compared_is_refused() -> None:
    def forward(self: Any, x: Tensor, is_shown: bool = True) -> Any:
        y = self.norm2(self.conv2(self.norm(self.conv(x))))
        return {"y": y, "bad": y * torch.nan} if is_shown else "nothing"

    x = torch.ones(2, 3, 4, 5)
    cases = (x, "nan"), ((x, False), "no output"), (x[:0], "no output")
    for example, found in cases:
        with pytest.raises(FoldingError, match=f"{found} as the difference"):
            fold_batch_norm(with_arguments(forward), example)


# --- more than one batch norm, and none


def test_every_batch_norm_that_cannot_be_folded_is_listed() -> None:
    model = chain(*linear(), nn.ReLU(), *before_conv(nn.ReLU()), nn.BatchNorm2d(5))
    model.append(nn.ReLU()).append(nn.BatchNorm2d(5))
    with pytest.raises(FoldingError, match="got 2 of 4 that cannot be") as caught:
        fold_batch_norm(model.eval())
    assert [folding.norm for folding in caught.value.refused] == ["3", "8"]


def test_what_cannot_be_folded_stays_where_it_is_asked_for() -> None:
    model = chain(*linear(), nn.ReLU(), nn.BatchNorm1d(5))
    folded = fold_batch_norm(model, strict=False)
    kinds = [type(layer).__name__ for layer in folded.children()]
    assert kinds == ["Linear", "FoldedBatchNorm", "ReLU", "BatchNorm1d"]


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(FoldingError, match=r"evaluation mode, got .*model.eval\(\)"):
        fold_batch_norm(linear().train(), strict=False)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, got dict"):
        fold_batch_norm({})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_scripted_models_are_refused() -> None:
    with pytest.raises(FoldingError, match="fold first, and script the folded model"):
        fold_batch_norm(torch.jit.script(linear()))


def test_the_plan_of_a_model_without_batch_norm_is_empty() -> None:
    assert folding_plan(chain(nn.Linear(3, 5), nn.ReLU())) == ()
