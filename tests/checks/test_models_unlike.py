"""Models that are unlike others: clouds, losses, norms made anew, ways back."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from test_whole_model import drawn, harms, network
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from normbook.checks import check_norm_layer
from normbook.checks.model.audit import audit
from normbook.checks.model.harms import NOTE, RISK, WRONG, listed
from normbook.checks.model.runs import norms_of, over_tensors
from normbook.checks.model.statistics import _tail

NEIGHBOURS = "an example depends on its neighbours in evaluation"


class Clouds(nn.Module):
    """The mean of each cloud, behind a norm of the whole cloud, or of all rows."""

    def __init__(self, *, is_mixed: bool = False) -> None:
        super().__init__()
        self.norm, self.is_mixed = nn.LayerNorm(4), is_mixed

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        x = self.norm(x)
        of_all = (x - x.mean(0)) / x.std(0)
        if self.is_mixed:
            x = of_all
        return torch.stack(
            [x[batch == k].max(0)[0] for k in range(int(batch.max()) + 1)]
        )


def test_the_first_example_of_numbered_rows_is_all_of_its_rows() -> None:
    x = {"x": drawn(24, 4), "batch": torch.arange(4).repeat_interleave(6)}
    report = audit(Clouds(), x, quiet=True)
    assert report.harms == ()
    assert report.untested == ()
    harm = harms(Clouds(is_mixed=True), x)[NEIGHBOURS]
    assert harm.level == WRONG
    assert harm.reason.startswith("the first example alone has another output")


@pytest.mark.parametrize("is_batch", [False, True])
def test_outputs_may_have_the_examples_on_a_later_axis_behind_a_loss(
    is_batch: bool,
) -> None:
    class Sources(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            batch = nn.BatchNorm1d(4, track_running_stats=False)
            self.norm = batch if is_batch else nn.LayerNorm(4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.norm(x)
            return y.square().mean(), torch.stack([y, -y])

    report = audit(Sources(), drawn(16, 4), quiet=True)
    assert [h.what for h in report.harms] == [NEIGHBOURS] * is_batch
    assert len(report.untested) == is_batch  # one example alone is refused


def test_a_length_that_changes_is_a_change() -> None:
    class Lengths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.length = nn.LayerNorm(4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            count = int(1000 * self.length(x).abs().mean().item()) % 50 + 1
            y: Tensor = self.norm(x).repeat(1, count)
            return y

    report = audit(Lengths(), drawn(16, 4), quiet=True)
    assert not [harm for harm in report.harms if "returns" in harm.what]


def test_norms_that_each_pass_makes_anew_are_told() -> None:
    class Anew(nn.Module):
        def __init__(self, of: Callable[..., nn.Module], **how: Any) -> None:
            super().__init__()
            self.norm, self.of, self.how = nn.LayerNorm(6), of, how

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.of(6, **self.how)(self.norm(x).relu())
            return y

    what = "norms that each pass makes anew"
    of_batch, of_rows = (
        harms(Anew(of), drawn(16, 6)) for of in (nn.BatchNorm1d, nn.LayerNorm)
    )
    assert of_batch[what].level == WRONG
    assert NEIGHBOURS in of_batch
    assert of_rows[what].level == RISK
    assert of_rows[what].place == "the whole model"
    plain = Anew(nn.LayerNorm, elementwise_affine=False)
    assert what not in harms(plain, drawn(16, 6))
    held = Anew(nn.LayerNorm)
    held.of = lambda _: kept  # of somebody else, the same each time
    kept = nn.LayerNorm(6)
    assert what not in harms(held, drawn(16, 6))


def test_parameters_that_nobody_filled_are_told() -> None:
    model: Any = network(nn.GroupNorm(2, 6))
    weight = model[1].weight
    what = "parameters that look as if nobody had filled them"
    for value in (3e-41, 4.7e28):
        weight.data[2:] = torch.zeros(4)
        weight.data[1] = value
        found = harms(model)
        assert found[what].level == RISK
        assert "gains near 0" not in found
    weight.data[1] = 1e-8  # as weight decay leaves it
    assert what not in harms(model)
    weight.data[:] = torch.tensor([1.0, 1.0, 1.0, 1.0, 1e-40, 1e-41])  # and as later
    assert what not in harms(model)
    weight.data[:] = 1.0
    model[1].bias.data[:] = 1e-37  # as a small gradient leaves it
    assert what not in harms(model)
    model[1].bias.data[:] = 1e37
    assert what in harms(model)


class Begun(nn.Module):
    """A shift and a scale that begin with those of the first batch."""

    def __init__(self, *, is_kept: bool, learns: bool = True) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2, 6), requires_grad=learns)
        self.norm = nn.LayerNorm(6)
        self.is_begun: Any = False
        if is_kept:
            del self.is_begun
            self.register_buffer("is_begun", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.is_begun:
            self.first.data = torch.stack([x.mean(0), x.std(0)]).detach()
            self.is_begun = (
                torch.tensor(True) if torch.is_tensor(self.is_begun) else True
            )
        y: Tensor = self.norm((x - self.first[0]) / (self.first[1] + 0.1))
        return y


@pytest.mark.parametrize("learns", [True, False])
def test_what_the_first_batch_sets_is_set_after_loading_without_a_flag(
    learns: bool,
) -> None:
    what = "parameters that the first pass in training sets"
    found = harms(Begun(is_kept=True, learns=learns), drawn(16, 6))
    assert found[what].level == NOTE
    found = harms(Begun(is_kept=False, learns=learns), drawn(16, 6))
    assert found[f"{what}, after loading, too"].level == RISK


def test_what_each_pass_updates_and_nothing_learns_is_no_harm() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(6), requires_grad=False)
            self.norm = nn.LayerNorm(6)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.mean.data = 0.9 * self.mean + 0.1 * x.mean(0)
            y: Tensor = self.norm(x - self.mean)
            return y

    assert audit(Average(), drawn(16, 6), quiet=True).harms == ()


def test_what_torch_cannot_list_is_refused_by_its_name() -> None:
    class Equal(nn.LayerNorm):
        def __eq__(self, other: object) -> bool:
            return True

    with pytest.raises(TypeError, match=r"must be hashable.*got a Equal.*add __hash__"):
        audit(nn.Sequential(nn.Linear(4, 4), Equal(4)), drawn(8, 4))


def test_a_static_method_as_an_attribute_is_shared_with_a_copy() -> None:
    model: Any = nn.Sequential(nn.LayerNorm(4))
    model.rotate = staticmethod(abs)
    assert audit(model, drawn(8, 4), quiet=True).layers == 1


def test_a_norm_under_two_paths_is_looked_at_on_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix = nn.LayerNorm(12), nn.Conv1d(4, 4, 1)
            self.block = nn.Sequential(self.norm, nn.ReLU(), self.mix)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.block(x)
            return y

    report = audit(Twice(), drawn(16, 4, 12), quiet=True)
    assert [h.what for h in report.harms] == ["normalizes positions, not features"]
    assert report.untested == ()


def test_a_norm_that_takes_no_large_x_keeps_none_from_being_checked() -> None:
    class SmallNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            if x.abs().max() > 40:
                raise RuntimeError("too large")
            return super().forward(x)

    report = audit(planted_after(SmallNorm(6)), drawn(16, 6), quiet=True)
    assert any("SmallNorm at 0 by itself" in t for t in report.untested)
    assert any("divides by n" in harm.what for harm in report.harms)


def planted_after(norm: nn.Module) -> nn.Module:
    class Unbiased(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            root = (x.var(-1, keepdim=True) + self.eps).sqrt()
            y: Tensor = (x - x.mean(-1, keepdim=True)) / root * self.weight + self.bias
            return y

    return nn.Sequential(norm, nn.Linear(6, 6), nn.ReLU(), Unbiased(6))


class Recomputed(nn.Module):
    """Blocks that a checkpoint runs again on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0 * self.linear(x)
        y: Tensor = checkpoint(
            lambda z: self.linear(self.norm(z)), x, use_reentrant=True
        )
        return y


def test_norms_that_are_recomputed_get_their_gradient() -> None:
    report = audit(Recomputed(), drawn(16, 6), quiet=True)
    assert report.harms == ()
    (text,) = report.untested
    assert text.startswith("what becomes of outputs: the way back raised RuntimeError")


class OneFunction(torch.autograd.Function):
    """Run a norm without keeping what it made, and again on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: nn.Module, *_: Tensor) -> Tensor:
        ctx.norm, ctx.x = norm, x.detach()
        with torch.no_grad():
            y: Tensor = norm(x)
        return y

    @staticmethod
    def backward(ctx: Any, dl_dy: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            held = [*ctx.norm.parameters()]
            slopes = torch.autograd.grad(ctx.norm(x), [x, *held], dl_dy)
        return slopes[0], None, *slopes[1:]


def test_a_function_that_runs_a_norm_again_gives_it_a_gradient() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(6)

        def forward(self, x: Tensor) -> Tensor:
            apply: Any = OneFunction.apply
            y: Tensor = apply(x, self.norm, *self.norm.parameters())
            return y

    assert "no gradient reaches gain and bias" not in harms(Reversed(), drawn(16, 6))


def test_variances_below_eps_are_a_risk_where_norms_have_learnt() -> None:
    model: Any = network(nn.GroupNorm(2, 6))
    model[0].weight.data.mul_(1e-6)
    model[0].bias.data.zero_()
    assert harms(model)["variances below eps"].level == NOTE
    model[1].weight.data = torch.linspace(0.95, 1.05, 6)  # of a few steps
    assert harms(model)["variances below eps"].level == NOTE
    model[1].weight.data = torch.linspace(0.5, 1.5, 6)
    assert harms(model)["variances below eps"].level == RISK


@pytest.mark.parametrize("count", [99, 100])
def test_variances_below_eps_are_a_risk_after_many_batches(count: int) -> None:
    model: Any = network(nn.BatchNorm1d(6))
    model[0].weight.data.mul_(1e-6)
    model[0].bias.data.zero_()
    model[1].num_batches_tracked += count
    assert harms(model)["variances below eps"].level == (RISK if count > 99 else NOTE)


def test_of_several_places_it_is_said_which_one_the_reason_is_of() -> None:
    model: Any = nn.Sequential(
        *network(nn.GroupNorm(2, 6)), *network(nn.GroupNorm(2, 6))
    )
    for k, size in ((0, 1e-6), (4, 1e-7)):
        model[k].weight.data.mul_(size)
        model[k].bias.data.zero_()
    harm = harms(model)["variances below eps"]
    assert harm.place == "1 and 1 more"
    assert harm.reason.endswith("So it is at 1.")


def test_another_eps_in_another_dtype_is_wrong_and_noted_of_a_model() -> None:
    class LayerNormByDtype(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            eps = 1e-5 if x.dtype == torch.float32 else 1e-3
            return functional.layer_norm(x, (6,), eps=eps) * self.weight

    title = "float32 gives what float64 gives, up to rounding"
    report = check_norm_layer(LayerNormByDtype(), (16, 6), quiet=True)
    reason = next(f.reason for f in report.findings if f.name == title)
    assert reason.startswith("eps is 1e-05 in float32 and 0.001 in float64")
    model, title = (
        nn.Sequential(LayerNormByDtype()),
        f"not true of LayerNormByDtype: {title}",
    )
    assert harms(model, drawn(16, 6))[title].level == NOTE
    assert harms(model.double(), drawn(16, 6).double())[title].level == WRONG


def test_gains_for_each_place_of_an_image_of_one_size_are_noted() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.LayerNorm([4, 8, 8]))
    harm = harms(model, drawn(16, 3, 8, 8))[
        "normalizes positions together with the features"
    ]
    assert (harm.level, harm.place) == (NOTE, "1")


class Whole(nn.BatchNorm2d):
    """One mean for all: batch norm of an image of one channel."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x[:, None])[:, 0]
        return y


class LongestLayerNorm(nn.Module):
    """Lengths from 0 to 1, which is no norm that the checks know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        size = (x.square().sum(1, True) + 1e-9).sqrt()
        low, high = size.amin(-1, True), size.amax(-1, True)
        share = (size - low) / (high - low + 1e-6)
        y: Tensor = x / (size + 1e-6) * share * self.weight
        return y


@pytest.mark.parametrize(
    ("norm", "shape"), [(Whole(1), (16, 5, 6)), (LongestLayerNorm(), (16, 3, 6))]
)
def test_what_no_definition_explains_is_not_wrong(
    norm: nn.Module, shape: tuple[int, ...]
) -> None:
    report = audit(nn.Sequential(nn.Linear(6, 6), norm), drawn(*shape), quiet=True)
    assert [h.what for h in report.harms if h.level == WRONG] == []
    told = "nothing that an audit knows explains its output"
    assert any(told in text for text in report.untested)


def test_a_frozen_norm_that_a_pass_puts_into_evaluation_is_no_risk() -> None:
    class Extractor(nn.Module):
        def __init__(self, *, is_set: bool) -> None:
            super().__init__()
            self.norm, self.head, self.is_set = (
                nn.BatchNorm1d(4),
                nn.Linear(4, 2),
                is_set,
            )
            self.norm.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            if self.is_set:
                self.norm.eval()
            y: Tensor = self.head(self.norm(x))
            return y

    what = "frozen, but in training mode"
    assert what in harms(Extractor(is_set=False), drawn(16, 4))
    assert what not in harms(Extractor(is_set=True), drawn(16, 4))


def test_a_closure_over_the_original_is_told() -> None:
    model: Any = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    first, second = model
    model.forward = lambda x: second(first(x))
    report = audit(model, drawn(16, 4), quiet=True)
    assert report.harms == ()
    assert any("perhaps it runs parts of the original" in t for t in report.untested)


@dataclass
class Both:
    """What a model returns."""

    y: Tensor
    spread: Any


def test_outputs_in_dataclasses_and_distributions_are_opened() -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.scale = nn.LayerNorm(4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Both:
            spread = torch.distributions.Normal(x, self.scale(x).exp())
            return Both(self.norm(x), spread)

    report = audit(Returning(), drawn(16, 4), quiet=True)
    assert report.harms == ()
    assert report.untested == ()


def test_a_text_that_cannot_be_made_keeps_no_norm_from_being_checked() -> None:
    class Untold(nn.LayerNorm):
        def extra_repr(self) -> str:
            raise TypeError("two values for one name")

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x - x.mean(-1, keepdim=True)
            return y / (y.square().mean(-1, keepdim=True).sqrt() + self.eps)

    norm = Untold(4, elementwise_affine=False)
    report = audit(nn.Sequential(norm), drawn(16, 4), quiet=True)
    assert any("inside the root" in harm.what for harm in report.harms)


def test_norms_of_pairs_are_said_to_take_no_tensor() -> None:
    class PairNorm(nn.LayerNorm):
        def forward(self, x: Any) -> Any:
            return super().forward(x[0]), x[1]

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = PairNorm(4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(self.norm((x, 1.0))[0])
            return y

    report = audit(Pairs(), drawn(16, 4), quiet=True)
    told = "no norm is called that takes and returns real tensors."
    assert f"what becomes of outputs: {told}" in report.untested


def test_of_norms_that_hold_norms_the_innermost_are_looked_at() -> None:
    class WrappedLayerNorm(nn.LayerNorm):
        def __init__(self) -> None:
            super().__init__(4)
            self.inner = nn.LayerNorm(4)

    model = nn.Sequential(WrappedLayerNorm(), nn.LayerNorm(4))
    assert [name for name, _ in norms_of(model)] == ["0.inner", "1"]


def test_a_batch_norm_that_is_recomputed_is_given_the_momentum_of_half_a_step() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(6, momentum=0.36), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            call: Any = checkpoint
            y: Tensor = call(self.norm, self.linear(x), use_reentrant=False)
            return y

    harm = harms(Twice(), drawn(16, 6))["running statistics that move twice in a step"]
    assert harm.number == pytest.approx(1 - 0.64**2)
    assert "momentum=0.2." in harm.cure


class Kept(nn.Module):
    """Norms that a pass does not call, and what becomes of them elsewhere."""

    def __init__(self, *, is_drawn: bool = False) -> None:
        super().__init__()
        self.norm, self.further, self.head = (nn.LayerNorm(4) for _ in range(3))
        self.forgotten = nn.LayerNorm(4)
        self.is_drawn = is_drawn
        nn.init.ones_(self.forgotten.weight)

    def renew(self) -> None:
        self.forgotten = nn.LayerNorm(4)

    def features(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return y

    def forward(self, x: Tensor, more: Tensor | None = None) -> Tensor:
        if more is not None:
            x = self.further(more) + x
        y: Tensor = self.norm(x) + torch.randn(4) * self.is_drawn
        return y


def test_a_norm_for_another_argument_or_method_is_no_risk() -> None:
    found = harms(Kept(), drawn(16, 4))
    levels = {
        name: found[f"{name} is never called"].level
        for name in ("further", "head", "forgotten")
    }
    assert levels == {"further": NOTE, "head": NOTE, "forgotten": RISK}
    for name in ("further", "head"):
        assert "Kept uses it in another case" in found[f"{name} is never called"].reason


def test_what_a_model_draws_makes_no_norm_one_that_is_read() -> None:
    report = audit(Kept(is_drawn=True), drawn(16, 4), quiet=True)
    assert "forgotten is never called" in [harm.what for harm in report.harms]
    assert not any("without a call" in text for text in report.untested)


def test_what_is_dropped_is_not_multiplied_by_0() -> None:
    class Dropped(nn.Module):
        def __init__(self, *, is_kept: bool) -> None:
            super().__init__()
            self.norm, self.other = nn.LayerNorm(4), nn.LayerNorm(4)
            self.scale = nn.Parameter(torch.zeros(4))
            self.is_kept = is_kept

        def forward(self, x: Tensor) -> Tensor:
            y = torch.cat([self.norm(x), self.scale * self.other(x)], -1)
            return y if self.is_kept else y[:, :2]

    zero, still = (
        "what a norm returns is multiplied by 0",
        "no output changes with what a norm returns",
    )
    kept = harms(Dropped(is_kept=True), drawn(16, 4))
    assert kept[zero].place == "other"
    assert still not in kept
    dropped = harms(Dropped(is_kept=False), drawn(16, 4))
    assert dropped[still].place == "other"
    assert "dropped" in dropped[still].reason
    assert zero not in dropped


class ClosedBatchNorm(nn.BatchNorm1d):
    """A variance by one pass, of what may be far from 0; evaluation is torch's."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if not self.training:
            return y
        mean = x.mean(0)
        var = x.square().mean(0) - mean.square()
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias


@pytest.mark.parametrize(("mean", "level"), [(10.0, NOTE), (100.0, WRONG)])
def test_one_pass_is_wrong_where_a_mean_is_far_from_0(mean: float, level: str) -> None:
    model = nn.Sequential(ClosedBatchNorm(4), nn.Linear(4, 4))
    found = harms(model, drawn(64, 4) + mean)
    what = "a mean far from 0 costs no precision in float32"
    assert found[f"not true of ClosedBatchNorm: {what}"].level == level


def test_a_biased_running_variance_of_many_values_is_noted() -> None:
    class BiasedBatchNorm(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and self.running_var is not None:
                old, n = self.running_var.clone(), x.numel() / x.shape[1]
                y = super().forward(x)
                new = self.running_var - 0.9 * old
                self.running_var.copy_(0.9 * old + new * (n - 1) / n)
                return y
            return super().forward(x)

    what = "the running variance averages the unbiased variances"
    for count, level in ((29, WRONG), (30, NOTE)):
        model = nn.Sequential(BiasedBatchNorm(4), nn.Linear(4, 4))
        found = harms(model, drawn(count, 4))
        assert found[f"not true of BiasedBatchNorm: {what}"].level == level


def test_one_example_that_gives_nan_is_told_where_it_begins() -> None:
    class RowsNorm(nn.Module):
        """Standardizes each feature over the examples, by a deviation over n - 1."""

        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)) / x.std(0)

    model = nn.Sequential(nn.Linear(4, 4), RowsNorm(), nn.LayerNorm(4))
    found = harms(model, drawn(16, 4))
    alone = found["one example alone gives NaN in evaluation"]
    assert (alone.level, alone.place) == (WRONG, "1")
    assert "it begins here" in alone.reason
    among = found[NEIGHBOURS]
    assert among.place == "1"
    assert "among the first 2 alone" in among.reason
    lost = nn.Sequential(*model, Lost())
    assert "one example alone gives NaN in evaluation" not in harms(lost, drawn(16, 4))


class Lost(nn.Module):
    """Gives NaN, whatever the examples are."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nan * x


def test_a_mask_is_cut_with_its_sequence() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.LayerNorm(8), nn.LayerNorm(8)
            self.mix = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = self.mix(self.norm(x)) * mask.transpose(1, 2)
            y: Tensor = self.last(x)
            return y

    x = {"x": drawn(16, 12, 8), "mask": torch.ones(16, 1, 12)}
    report = audit(Masked(), x, quiet=True)
    assert report.untested == ()
    moved: Any = Masked()
    moved.last = nn.Sequential(Moved(), nn.LayerNorm(12), Moved())
    assert "normalizes positions, not features" in harms(moved, x)


class Moved(nn.Module):
    """Exchanges positions and features."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def test_of_many_norms_that_are_not_tested_it_is_said_how_many_there_are() -> None:
    assert listed(list("abcde")) == "a, b, c, d, e"
    assert listed(list("abcdef")) == "a, b, c, d, e and 1 more"


def test_a_class_that_begins_with_norm_may_be_one() -> None:
    class NormStyle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)

    class NormedLinear(nn.Linear):
        """No norm."""

    model = nn.Sequential(NormStyle(), NormedLinear(4, 4))
    report = audit(model, drawn(16, 4), quiet=True)
    assert report.layers == 1
    assert report.untested == ()


def test_a_norm_that_holds_a_norm_is_no_way_round_it() -> None:
    class VectorLayerNorm(nn.Module):
        """Vectors over their lengths, times the norm of these."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            size = x.norm(dim=1, keepdim=True) + 1e-6
            y: Tensor = x / size * self.norm(size)
            return y

    class Stream(nn.Module):
        def __init__(self, make: Callable[[], nn.Module]) -> None:
            super().__init__()
            self.norms = nn.ModuleList(make() for _ in range(4))
            self.mix = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for norm, mix in zip(self.norms, self.mix, strict=True):
                x = x + mix(norm(x))
            return x

    what = "a residual stream without a norm at its end"
    assert what in harms(Stream(partial(nn.LayerNorm, 8)), drawn(16, 3, 8))
    assert what not in harms(Stream(VectorLayerNorm), drawn(16, 3, 8))


class Row(NamedTuple):
    """What a model takes."""

    x: Tensor
    past: Both | None


@pytest.mark.parametrize("is_mixed", [False, True])
def test_inputs_in_dataclasses_and_named_tuples_are_cut(is_mixed: bool) -> None:
    class Taking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, row: Row) -> Tensor:
            assert row.past is not None
            x: Tensor = self.norm(row.x + row.past.y)
            return x - x.mean(0) if is_mixed else x

    row = Row(drawn(16, 8, 3), Both(drawn(16, 8, 3), None))
    report = audit(Taking(), {"row": row}, quiet=True)
    assert [h.what for h in report.harms] == [NEIGHBOURS] * is_mixed
    assert report.untested == ()
    assert len(row.x) == 16  # the one that was given is as it was


def test_a_norm_that_returns_a_tuple_keeps_no_length_from_being_tried() -> None:
    class PairNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.norm = PairNorm(4), nn.LayerNorm(8)
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.mix(self.pair(x)[0]).transpose(1, 2))
            return y

    assert "normalizes positions, not features" in harms(Model(), drawn(16, 8, 4))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_graph_is_kept_where_a_gradient_comes_to_the_norm(is_first: bool) -> None:
    class ObservedNorm(nn.Module):
        running_mean: Tensor
        running_var: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(4))
            self.register_buffer("running_var", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return (x - self.running_mean) * (self.running_var + 1e-5).rsqrt()
            var, mean = torch.var_mean(x, 0, correction=0)
            n = len(x)
            self.running_mean = 0.9 * self.running_mean + 0.1 * mean
            self.running_var = 0.9 * self.running_var + 0.1 * var * n / (n - 1)
            return (x - mean) * (var + 1e-5).rsqrt()

    parts = [nn.Linear(4, 4), ObservedNorm()]
    model = nn.Sequential(*(parts[::-1] if is_first else parts))
    found = harms(model, drawn(16, 4))
    for what in (
        "the running statistics hold no graph",
        "deepcopy and pickle work after training, and copy the statistics",
    ):
        harm = found[f"not true of ObservedNorm: {what}"]
        assert harm.level == (NOTE if is_first else WRONG)
        assert ("no gradient is wanted" in harm.reason) == is_first


def test_of_a_list_what_is_not_called_has_no_name() -> None:
    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norms[0](x)
            return y

    harm = harms(Some(), drawn(16, 4))["it is never called"]
    assert (harm.level, harm.place) == (NOTE, "norms.1")


def test_what_is_no_batch_norm_in_training_is_told_no_gap() -> None:
    class BeyondBatchNorm(nn.BatchNorm1d):
        """Batch renormalization, twice as far from batch norm as it should be."""

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return super().forward(x)
            assert self.running_mean is not None
            assert self.running_var is not None
            var, mean = torch.var_mean(x.detach(), 0, correction=0)
            old = (self.running_var + self.eps).sqrt()
            r = 2 * ((var + self.eps).sqrt() / old).clamp(1 / 3, 3) - 1
            d = 2 * ((mean - self.running_mean) / old).clamp(-5, 5)
            x_hat = functional.batch_norm(x, None, None, training=True, eps=self.eps)
            super().forward(x.detach())
            return (x_hat * r + d) * self.weight + self.bias

    model = nn.Sequential(nn.Linear(4, 4), BeyondBatchNorm(4), nn.Linear(4, 4))
    for k in range(3):
        model(drawn(256, 4) + k)
    found = harms(model, drawn(256, 4) + 3)
    (wrong,) = (harm for harm in found.values() if harm.level == WRONG)
    assert "multiplied by 2: a warm-up" in wrong.reason
    assert "evaluation differs from training" not in found


def early(count: int, *, spread: float = 0.0) -> Any:
    """Return a network whose batch norm saw some batches, and x of another mean."""
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    x = 5 + drawn(64, 4)
    for _ in range(count):
        model(x)
    model[1].weight.data = torch.linspace(1 - spread, 1 + spread, 6)
    return model, x


@pytest.mark.parametrize(
    ("count", "spread", "is_early"),
    [(1, 0.0, True), (5, 0.0, True), (5, 0.5, False), (40, 0.0, False)],
)
def test_running_statistics_of_few_batches_still_hold_their_start(
    count: int, spread: float, is_early: bool
) -> None:
    model, x = early(count, spread=spread)
    found = harms(model, x if count < 40 else 3 * x)
    what = "running statistics of few batches, far from those of x"
    assert (what in found) == is_early
    assert ("evaluation differs from training" in found) != is_early
    if is_early:
        assert found[what].level == NOTE
        weight = f"{0.9**count:.0%}"
        assert f"of the start still weigh {weight} after {count} " in found[what].reason
        assert found[what].reason.endswith("batch.") == (count == 1)


def test_few_batches_beside_many_are_a_risk() -> None:
    model, x = early(5)
    both: Any = nn.Sequential(*model, nn.BatchNorm1d(2))
    both[-1].num_batches_tracked += 100
    assert harms(both, x)["evaluation differs from training"].level == RISK


@pytest.mark.parametrize(("most", "is_told"), [(0.45, True), (0.6, False)])
def test_gains_that_are_not_small_were_not_drawn(most: float, is_told: bool) -> None:
    model: Any = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    model[1].weight.data = torch.linspace(-most, most, 16)
    assert ("gains drawn around 0" in harms(model, drawn(32, 16))) == is_told


def test_gains_that_began_at_0_and_moved_a_little_were_not_drawn() -> None:
    parts = [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)]
    for part in parts[1::2]:
        part.weight.data = 0.01 * torch.tensor([1.0, -1, 2, -2, 1, -1, 2, -2])
    model = nn.Sequential(*parts)
    what = "gains drawn around 0"
    assert harms(model, drawn(16, 8))[what].level == RISK
    first: Any = parts[1]
    first.weight.data.fill_(1.0)
    assert what not in harms(model, drawn(16, 8))


class Gathering(nn.Module):
    """A model that reads what one of its parts returned by a hook of its own."""

    def __init__(self, *, takes_named: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.seen: Any = None
        if takes_named:
            self.body.register_forward_pre_hook(self._named, with_kwargs=True)
        else:
            self.body.register_forward_hook(self._hook)

    def _hook(self, part: nn.Module, x: Any, y: Tensor) -> None:
        self.seen = y

    def _named(self, part: nn.Module, x: Any, named: Any) -> None:
        self.seen = x[0]

    def forward(self, x: Tensor) -> Tensor:
        self.seen = None
        y: Tensor = self.body(x) + self.seen
        return y


@pytest.mark.parametrize("takes_named", [False, True])
def test_hooks_that_are_methods_of_the_model_go_along(takes_named: bool) -> None:
    model, outer = Gathering(takes_named=takes_named), list[Any]()
    model.body.register_forward_hook(lambda *_: outer.append(0))
    report = audit(model, drawn(16, 4), quiet=True)
    assert report.harms == ()
    assert not outer  # another stays behind
    assert model.seen is None  # and this one is of the copy


def test_what_is_a_script_is_left_out() -> None:
    class MeanNorm(nn.Module):
        running_mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return x - self.running_mean

    trace: Any = torch.jit.trace
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        script = trace(MeanNorm(), drawn(2, 4))
    model = nn.Sequential(OrderedDict(norm=script, last=nn.LayerNorm(4)))
    report = audit(model, drawn(16, 4), quiet=True)
    assert (report.layers, report.harms) == (1, ())
    assert report.untested == ("what torch.jit has made a script of: norm.",)
    with pytest.raises(ValueError, match="must hold a norm"):
        audit(nn.Sequential(OrderedDict(norm=script)), drawn(16, 4), quiet=True)


@pytest.mark.parametrize("is_raw", [True, False])
def test_an_axis_of_x_that_the_model_moves_has_features(is_raw: bool) -> None:
    class Bins(nn.Module):
        """A norm for each of the bins, behind which any number of them does."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(1, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x if is_raw else 2 * x
            y: Tensor = self.conv(self.norm(x.transpose(1, 3)).transpose(1, 3))
            return y

    found = harms(Bins(), drawn(16, 1, 12, 8))
    assert ("normalizes positions, not features" in found) != is_raw


def test_a_block_that_zeros_break_has_no_skip_path() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.linear.weight / self.linear.weight.norm()
            y: Tensor = functional.linear(
                self.norm(functional.linear(x, weight)), weight
            )
            return y + x

    model = nn.Sequential(Block(), Block(), nn.LayerNorm(4))
    assert "a residual path through a norm" not in harms(model, drawn(16, 4))


def test_what_holds_no_parameter_shares_none_under_several_names() -> None:
    class Scaled(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.first, self.again, self.end = norm, norm, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.end(self.again(self.first(x).relu()))
            return y

    what = "one norm under several names"
    bare = nn.LayerNorm(4, elementwise_affine=False)
    assert what not in harms(Scaled(bare), drawn(16, 4))
    assert what in harms(Scaled(nn.LayerNorm(4)), drawn(16, 4))


def test_a_transformer_of_torch_with_padding_is_looked_at() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)  # it nests what is padded
    is_padding = torch.zeros(16, 6, dtype=torch.bool)
    is_padding[:8, 4:] = True
    x = {"src": drawn(16, 6, 8), "src_key_padding_mask": is_padding}
    before = torch.backends.mha.get_fastpath_enabled()
    report = audit(model, x, quiet=True)
    assert report.harms == ()
    assert report.untested == ()
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_nested_tensors_are_left_out() -> None:
    class Nesting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            made = self.norm(torch.nested.as_nested_tensor([*x]))
            return torch.stack(made.unbind())

    report = audit(Nesting(), drawn(16, 5, 4), quiet=True)
    assert report.harms == ()
    assert any("another thing than a real tensor" in t for t in report.untested)


def test_noise_of_few_examples_is_no_difference_of_places() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(256)

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            y: Tensor = self.norm(x) - self.norm(other)
            return y

    what = "one batch norm in several places"
    draw = torch.Generator().manual_seed(3)
    for count, shift in [(4, 0)] * 8 + [(8, 0), (8, 3)]:
        x, other = torch.randn(2, count, 256, generator=draw)
        assert (what in harms(Siamese(), (x, other + shift))) == bool(shift)


def test_the_tail_of_student_is_bounded() -> None:
    for t, count in ((12.92, 4), (4.073, 16), (3.300, 1000)):  # tables have 0.001
        assert 0.001 < _tail(t, count) < 0.0016
    assert _tail(100.0, 2) == 1.0


def test_norms_that_are_called_more_often_saw_no_more_batches() -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.step = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for _ in range(4):
                x = self.step(self.mix(x))
            return x

    model = Unrolled()
    for _ in range(9):
        model(5 + drawn(64, 4))
    found = harms(model, 5 + drawn(64, 4))
    what = "running statistics of few batches, far from those of x"
    assert found[what].place == "first"
    assert "evaluation differs from training" not in found


@pytest.mark.parametrize(("count", "is_few"), [(4, True), (5, False)])
def test_batch_statistics_of_very_few_values_are_noted(
    count: int, is_few: bool
) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    model[0].weight.data.mul_(1e-6)
    model[0].bias.data.zero_()
    found = harms(model, drawn(count, 4))
    assert ("batch statistics of very few values" in found) == is_few
    assert ("variances below eps" in found) != is_few


def test_a_constant_is_wrong_where_it_comes() -> None:
    class RootNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            z = x - x.mean(-1, keepdim=True)
            root = z.square().mean(-1, keepdim=True).sqrt() + self.eps
            return z / root * self.weight + self.bias

    what = "not true of RootNorm: a constant channel stays finite, output and gradient"
    x = drawn(16, 4)
    model = nn.Sequential(RootNorm(4), nn.Linear(4, 4))
    assert harms(model, x)[what].level == NOTE
    x[3] = 0.5
    assert harms(model, x)[what].level == WRONG


def test_a_batch_norm_without_running_statistics_is_told_where_x_is_not_cut() -> None:
    class Nodes(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.norm, self.mix = norm, nn.Linear(4, 4)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            y: Tensor = self.norm(self.mix(x))
            return y + y[edges[0]].mean(0)

    what = "a batch norm without running statistics"
    x = drawn(16, 4), torch.zeros(2, 9, dtype=torch.long)
    plain, bare = nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)
    assert what not in harms(Nodes(plain), x)
    assert harms(Nodes(bare), x)[what].level == NOTE


def test_a_way_round_all_norms_that_is_changed_is_no_stream() -> None:
    class Blocks(nn.Module):
        def __init__(self, *, is_changed: bool) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(4))
            self.mix = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
            self.is_changed = is_changed

        def forward(self, x: Tensor) -> Tensor:
            for k, norm in enumerate(self.norms):
                way = self.mix[k + 4](x).relu() if self.is_changed else x
                x = way + self.mix[k](norm(x))
            return x

    what = "a residual stream without a norm at its end"
    assert what in harms(Blocks(is_changed=False), drawn(16, 8))
    assert what not in harms(Blocks(is_changed=True), drawn(16, 8))


class Closed(nn.Module):
    """Calls its norm by a closure, which a copy shares."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.call: Callable[[Tensor], Tensor] = lambda x: self.norm(x)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.call(x)
        return y


def test_what_reaches_the_original_is_refused_and_given_back_its_state() -> None:
    model = Closed()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    runs: list[Callable[[], Any]] = [
        lambda: check_norm_layer(model, quiet=True),
        lambda: audit(nn.Sequential(model), drawn(16, 4), quiet=True),
    ]
    for run in runs:
        with pytest.raises(ValueError, match="of which a copy changes"):
            run()
        assert model.norm.weight.grad is None
        for key, value in model.state_dict().items():
            assert torch.equal(value, state[key])
    model.norm.weight.grad = torch.ones(4)  # of the user's own last step
    with pytest.raises(ValueError, match="of which a copy changes"):
        check_norm_layer(model, quiet=True)
    assert model.norm.weight.grad.equal(torch.ones(4))


def test_a_copy_that_is_the_original_is_refused() -> None:
    class Shared(nn.BatchNorm1d):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    model = nn.Sequential(nn.Linear(4, 4), Shared(4)).eval()
    with pytest.raises(TypeError, match="holds the same Shared as the original"):
        audit(model, drawn(16, 4), quiet=True)
    assert not model[1].training


def test_a_model_may_write_into_x_and_take_it_apart() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: Tensor, more: Any) -> Tensor:
            x.div_(10)
            y: Tensor = self.norm(self.linear(x + more.pop("shift")))
            return y

    x: Any = {"x": drawn(16, 4), "more": {"shift": drawn(16, 4)}}
    report = audit(Writing(), x, quiet=True)
    assert report.untested == ()
    assert x["x"].equal(drawn(16, 4))
    assert [*x["more"]] == ["shift"]


class Named(dict[str, Tensor]):
    """As batches of text are: its keys are attributes, too."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


@dataclass
class Unset:
    """A field of it is never set."""

    x: Tensor
    more: Any = field(init=False)


class Unusual(NamedTuple):
    """Made in one way alone."""

    x: Tensor
    size: int

    @classmethod
    def of(cls, x: Tensor) -> Unusual:
        return cls(x, len(x))


@pytest.mark.parametrize(
    "x",
    [Named(x=drawn(16, 4)), Unset(drawn(16, 4)), Unusual.of(drawn(16, 4))],
    ids=["attributes", "unset", "named"],
)
def test_containers_stay_what_they_are(x: Any) -> None:
    class Taking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, held: Any) -> Tensor:
            y: Tensor = self.norm(self.linear(held.x))
            return y

    report = audit(Taking(), {"held": x}, quiet=True)
    assert (report.harms, report.untested) == ((), ())
    sorted_ = torch.sort(drawn(16, 4))
    assert type(over_tensors(sorted_, torch.clone)) is type(sorted_)


def test_the_random_numbers_of_numpy_and_python_stay_as_they_are() -> None:
    class Drawing(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            both = random.random() * np.random.rand()  # noqa: NPY002, S311
            return y * (1 + 0 * both)

    runs: list[Callable[[], Any]] = [
        lambda: check_norm_layer(Drawing(4), quiet=True),
        lambda: audit(nn.Sequential(Drawing(4)), drawn(16, 4), quiet=True),
    ]
    for run in runs:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        run()
        assert random.random() == pytest.approx(0.8444218515250481)  # noqa: S311
        assert np.random.rand() == pytest.approx(0.5488135039273248)  # noqa: NPY002


def test_behind_norms_alone_any_axis_may_have_the_features() -> None:
    what = "normalizes positions, not features"
    assert what not in harms(nn.Sequential(nn.LayerNorm(8)), drawn(16, 5, 8))
    conv = nn.Sequential(nn.Conv1d(5, 6, 1), nn.LayerNorm(8))
    assert what in harms(conv, drawn(16, 5, 8))


def test_nan_in_x_is_no_second_pass() -> None:
    x = drawn(16, 4)
    x[3, 2] = torch.nan
    found = harms(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), x)
    assert "running statistics that move twice in a step" not in found


def test_a_loss_alone_is_not_said_to_be_random() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.linear(x)).relu().mean()
            return y

    (text,) = audit(Loss(), drawn(16, 4), quiet=True).untested
    assert text.endswith("the model returns no tensor with an axis for the examples.")


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must hold examples, got a batch of 0"):
        audit(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), drawn(0, 4))


@dataclass
class Log:
    """What somebody else writes down; it has no hash."""

    outs: list[Any] = field(default_factory=list)

    def hook(self, part: nn.Module, x: Any, y: Any) -> None:
        self.outs.append(y)


def test_hooks_of_others_that_have_no_hash_stay_behind() -> None:
    model, log = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), Log()
    model[1].register_forward_hook(log.hook)
    assert audit(model, drawn(16, 4), quiet=True).harms == ()
    assert log.outs == []


def test_a_to_that_returns_nothing_is_no_hindrance() -> None:
    class Silent(nn.LayerNorm):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            super().to(*args, **kwargs)

    assert not check_norm_layer(Silent(8), quiet=True).failed


def test_what_is_to_be_compiled_is_looked_at_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compiled: Any = torch.compile(model, backend="eager")
    both = (audit(one, drawn(16, 4), quiet=True) for one in (model, compiled))
    assert next(both) == next(both)


@pytest.mark.parametrize(
    ("layer", "arguments", "error", "message"),
    [
        (nn.BatchNorm1d(4), {"channel_axis": 7}, ValueError, "of the input"),
        (nn.BatchNorm1d(4), {"channel_axis": -3}, ValueError, "for shape"),
        (nn.BatchNorm1d(4), {"channel_axis": 0}, ValueError, "of the examples"),
        (nn.BatchNorm1d(4), {"channel_axis": "1"}, ValueError, "got '1'"),
        (nn.BatchNorm1d(4), {"channel_axis": True}, ValueError, "got True"),
        (nn.BatchNorm1d(4), {"call": 3}, TypeError, "function of the layer"),
        (nn.BatchNorm1d(4), {"allow": None}, TypeError, "a name of a report"),
        (nn.BatchNorm1d(4), {"allow": [1]}, TypeError, "a name of a report"),
        (nn.BatchNorm1d(4), {"eps": True}, TypeError, "must be a number"),
        (nn.BatchNorm1d(4), {"shape": (10**9, 4, 5)}, ValueError, "at most"),
        (nn.LayerNorm(0), {}, ValueError, "one feature or more"),
        (nn.Sequential(nn.LazyBatchNorm1d()), {}, ValueError, "first input"),
    ],
)
def test_bad_arguments_are_refused_with_a_cure(
    layer: nn.Module, arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_norm_layer(layer, **({"shape": (8, 4, 5)} | arguments), quiet=True)


def test_a_shape_may_be_a_list_and_its_last_axis_have_the_channels() -> None:
    shape: Any = [8, 5, 4]
    layer = nn.Sequential(nn.Identity(), nn.LayerNorm(4))
    assert not check_norm_layer(layer, shape, kind="layer", quiet=True).failed
    given = check_norm_layer(nn.LayerNorm(4), shape, channel_axis=-1, quiet=True)
    assert not given.failed


def test_a_model_that_waits_for_its_first_input_is_refused_with_the_cure() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LayerNorm(4))
    with pytest.raises(ValueError, match="waits for its first input; give it one"):
        audit(model, drawn(16, 4))
