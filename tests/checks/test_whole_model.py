"""An audit finds what was planted, at its place, and leaves the model alone."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import planted_bugs
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks import check_norm_layer
from normbook.checks.layer.definitions import Definition
from normbook.checks.model.audit import audit
from normbook.checks.model.harms import NOTE, RISK, WRONG, Harm
from normbook.checks.model.runs import batch_in, look, narrowed

planted: Any = planted_bugs


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def network(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 6, 3), norm, nn.ReLU(), nn.Conv1d(6, 4, 3))


def trained(model: nn.Module, x: Tensor, steps: int = 60) -> nn.Module:
    with torch.no_grad():
        for _ in range(steps):
            model(x)
    return model.eval()


def harms(model: nn.Module, x: Any = None) -> dict[str, Harm]:
    x = drawn(16, 4, 12) if x is None else x
    return {harm.what: harm for harm in audit(model, x, quiet=True).harms}


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(6), nn.GroupNorm(2, 6), nn.InstanceNorm1d(6)], ids=str
)
def test_a_right_model_passes(norm: nn.Module) -> None:
    x = drawn(16, 4, 12)
    assert audit(trained(network(norm), x), x, quiet=True).harms == ()


def test_an_audit_runs_the_model_few_times() -> None:
    examples = []

    class Counting(nn.Identity):
        def forward(self, x: Tensor) -> Tensor:
            examples.append(len(x))
            return x

    model = nn.Sequential(Counting(), *network(nn.BatchNorm1d(6)))
    audit(model, drawn(16, 4, 12), quiet=True)
    assert len(examples) <= 11
    assert sum(examples) < 7 * 16


def drifted(norm: nn.BatchNorm1d) -> nn.Module:
    model = trained(network(norm), drawn(16, 4, 12))
    assert norm.running_mean is not None
    norm.running_mean += 5.0
    return model


def frozen() -> nn.Module:
    model = trained(network(nn.BatchNorm1d(6)), drawn(16, 4, 12))
    return model.requires_grad_(False).train()


class Freezing(nn.Sequential):
    """Norms are frozen when it is made; only if it keeps them so it says how."""

    keeps = False

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        return self.freeze() if self.keeps else self

    def freeze(self) -> Any:
        self.get_submodule("1").eval().requires_grad_(False)
        return self


@pytest.mark.parametrize("keeps", [True, False])
def test_an_eval_that_the_next_train_undoes_is_noted(*, keeps: bool) -> None:
    what, x = "frozen until the next train()", drawn(16, 4, 12)
    model = Freezing(nn.Conv1d(4, 6, 1), nn.BatchNorm1d(6), nn.Conv1d(6, 2, 1))
    model.keeps = keeps
    trained(model, x).train()
    found = harms(model.freeze(), x)
    assert {*found} == ({*()} if keeps else {what})
    assert keeps or (found[what].level, found[what].place) == (NOTE, "1")
    assert what not in harms(model.eval(), x)


def test_running_statistics_of_the_last_batch_are_noted() -> None:
    x = drawn(16, 4, 12)
    found = harms(trained(network(nn.BatchNorm1d(6, momentum=0.99)), x), x)
    harm = found.pop("running statistics of only the last batch")
    assert (harm.level, found) == (NOTE, {})
    assert "Keras's 0.99 is 0.01 here" in harm.reason


@pytest.mark.parametrize(("place", "is_told"), [(2, True), (3, False)])
@pytest.mark.parametrize("is_module", [True, False])
def test_dropout_in_front_of_a_batch_norm_is_noted(
    place: int, *, is_told: bool, is_module: bool
) -> None:
    class Functional(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5, self.training)

    torch.manual_seed(0)
    parts = [nn.Linear(6, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 2)]
    parts.insert(place, nn.Dropout(0.5) if is_module else Functional())
    x = 1 + drawn(256, 6)
    found = harms(trained(nn.Sequential(*parts), x), x)
    harm = found.get("dropout in front, which makes variances larger")
    assert (harm is not None) == is_told
    assert harm is None or (harm.place, harm.number > 1.5) == ("3", True)


def test_a_model_that_refuses_x_in_training_is_audited() -> None:
    class Strict(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            if self.training:
                raise RuntimeError("targets are needed in training")
            for part in self:
                x = part(x)
            return x

    report = audit(Strict(nn.Linear(6, 6), nn.BatchNorm1d(6)), drawn(64, 6), quiet=True)
    assert "dropout: in training the model refuses x." in report.untested


def constant() -> Any:
    model: Any = network(nn.GroupNorm(2, 6))
    with torch.no_grad():
        model[0].weight.mul_(1e-6)
        model[0].bias.zero_()
    return model


def silent() -> nn.Module:
    norm = nn.GroupNorm(2, 6)
    nn.init.zeros_(norm.weight)
    return network(norm)


class OverTime(nn.Module):
    """Layer norm of (N, D, T), where T stands for the features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(4, 6, 1), nn.Conv1d(6, 2, 1)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.norm(self.first(x)))


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        keep = (torch.arange(x.shape[-1]) < 8).to(x)
        y: Tensor = self.norm(x * keep)
        return y


MODELS: list[tuple[Callable[[], nn.Module], str, str, str, float]] = [
    (
        lambda: drifted(nn.BatchNorm1d(6)),
        "evaluation differs from training",
        RISK,
        "1",
        9.0,
    ),
    (frozen, "frozen, but in training mode", RISK, "1", 1),
    (constant, "variances below eps", NOTE, "1", 1.0),
    (silent, "gains near 0", NOTE, "1", 1.0),
    (OverTime, "normalizes positions, not features", WRONG, "norm", 12),
    (Padded, "padding inside the statistics", RISK, "norm", 1 / 3),
    (
        lambda: network(planted.BatchAlwaysByBatch(6)),
        "an example depends on its neighbours in evaluation",
        WRONG,
        "1",
        0.2,
    ),
    (
        lambda: network(planted.BatchOnePassVariance(6)),
        "not true of BatchOnePassVariance: a mean far from 0 costs no precision in "
        "float32",
        NOTE,  # what comes to it is not far from 0 here
        "1",
        1,
    ),
    (
        lambda: network(nn.BatchNorm1d(6)),
        "running statistics that saw no batch",
        NOTE,
        "1",
        1,
    ),
]


@pytest.mark.parametrize(
    ("make", "what", "level", "place", "number"),
    MODELS,
    ids=[m[1][:40] for m in MODELS],
)
def test_what_was_planted_is_found_at_its_place(
    make: Callable[[], nn.Module], what: str, level: str, place: str, number: float
) -> None:
    harm = harms(make())[what]
    assert (harm.level, harm.place) == (level, place)
    assert harm.number == pytest.approx(number, rel=0.5)
    assert all((harm.reason, harm.cure, harm.page))


def test_one_value_is_wrong_and_stands_before_what_is_a_risk() -> None:
    model: Any = nn.Sequential(network(nn.GroupNorm(2, 6)), nn.AdaptiveAvgPool1d(1))
    model.append(nn.GroupNorm(4, 4))
    with torch.no_grad():
        model[0][0].weight.mul_(1e-6)
        model[0][0].bias.zero_()
    found = audit(model, drawn(16, 4, 12), quiet=True).harms
    assert (found[0].what, found[0].place) == ("a mean over one value", "2")
    assert [harm.level for harm in found] == sorted(
        (harm.level for harm in found), key=(WRONG, RISK, NOTE).index
    )


@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_the_hooks_and_the_random_numbers_stay(is_training: bool) -> None:
    model = network(nn.BatchNorm1d(6)).append(nn.Dropout(0.5)).train(is_training)
    model[1].eval()
    seen: list[Any] = []
    model[1].register_forward_hook(lambda *of: seen.append(of))
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model]
    hooks = {name: len(m._forward_hooks) for name, m in model.named_modules()}
    x, numbers = drawn(16, 4, 12), torch.get_rng_state()
    before = x.clone()
    audit(model, x, quiet=True)
    assert all(map(torch.equal, state.values(), model.state_dict().values()))
    assert [m.training for m in model] == modes
    assert {name: len(m._forward_hooks) for name, m in model.named_modules()} == hooks
    assert seen == []
    assert torch.equal(numbers, torch.get_rng_state())
    assert torch.equal(x, before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_what_is_alike_is_told_once() -> None:
    norms = [nn.GroupNorm(2, 6) for _ in range(3)]
    for norm in norms:
        nn.init.zeros_(norm.weight)
    (harm,) = audit(nn.Sequential(*norms), drawn(16, 6, 12), quiet=True).harms[-1:]
    assert (harm.what, harm.place) == ("gains near 0", "0 and 2 more")


def test_places_of_several_settings_are_counted_together() -> None:
    class Rms(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.square().mean(-1, True).add(1e-8).rsqrt() * self.weight

    settings = [{}, {}, {"eps": 1e-8}, {"eps": 1e-8}, {"eps": 1e-8}]
    norms = [Rms(12, **setting) for setting in settings]  # type: ignore[arg-type]
    found = harms(nn.Sequential(*norms), drawn(16, 6, 12))
    (harm,) = (harm for what, harm in found.items() if "float16" in what)
    assert re.fullmatch(r"\d and 4 more", harm.place)


class OnePlus(nn.RMSNorm):
    """RMS norm whose gain is 1 + weight, as that of Gemma."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), 1 + self.weight)


def test_a_weight_of_0_beside_1_is_no_gain_of_0() -> None:
    report = audit(nn.Sequential(nn.Linear(4, 6), OnePlus(6)), drawn(16, 4), quiet=True)
    assert report.harms == ()


@pytest.mark.parametrize(
    ("gain", "share", "reason", "cure"),
    [
        (0.0, 1, "all gains are 0", "Nothing, if a branch begins at 0"),
        (1e-5, 1, "of 100% of the channels is the bias", "Prune the channels"),
        ([1e-5, 1, 1, 0, 1, 1], 1 / 3, "of 33% of the channels is the bias", "Prune"),
    ],
)
def test_gains_that_begin_at_0_are_told_from_those_that_fell_to_it(
    gain: Any, share: float, reason: str, cure: str
) -> None:
    norm = nn.LayerNorm(6)
    norm.weight.data.copy_(torch.as_tensor(gain))
    model = nn.Sequential(nn.Linear(4, 6), norm)
    (harm,) = audit(model, drawn(16, 4), quiet=True).harms
    assert harm.what == "gains near 0"
    assert harm.number == pytest.approx(share)
    assert reason in harm.reason
    assert cure in harm.cure


class NoLayerNormConv(nn.Module):
    """A convolution without a norm, under a name as that in Wav2Vec2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 6, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def test_what_changes_the_shape_is_no_norm_whatever_its_name() -> None:
    model = nn.Sequential(NoLayerNormConv(), nn.GroupNorm(2, 6))
    report = audit(model, drawn(16, 4, 12), quiet=True)
    assert (report.layers, report.harms) == (1, ())
    (text,) = report.untested
    assert text.startswith("NoLayerNormConv at 0: its output has another shape")
    with pytest.raises(ValueError, match="must hold a norm"):
        audit(nn.Sequential(NoLayerNormConv()), drawn(16, 4, 12))


class WithAct(nn.BatchNorm1d):
    """Printed in several lines, as the batch norm of timm that holds an activation."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(super().forward(x))
        return y


def test_each_class_with_its_setting_is_checked_once(monkeypatch: Any) -> None:
    checked: list[nn.Module] = []

    def counted(layer: nn.Module, *of: Any, **settings: Any) -> Any:
        checked.append(layer)
        return check_norm_layer(layer, *of, **settings)

    name = "normbook.checks.model.values.check_norm_layer"
    monkeypatch.setattr(name, counted)
    norms = [nn.LayerNorm(8) for _ in range(9)] + [nn.LayerNorm(8, eps=1e-3)]
    audit(nn.Sequential(*norms), drawn(16, 5, 8), quiet=True)
    assert len(checked) == 2
    parts = [WithAct(4), nn.Conv1d(4, 8, 1), WithAct(8)]
    audit(nn.Sequential(*parts), drawn(16, 4, 8), quiet=True)
    assert len(checked) == 3


def test_what_cannot_be_looked_at_is_said() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.unused = nn.LayerNorm(4), nn.LayerNorm(4)

        def forward(self, x: Tensor, scale: Tensor) -> Any:
            return self.norm(x * scale)

    report = audit(Two(), (drawn(8, 4), torch.ones(())), quiet=True)
    assert [harm.what for harm in report.harms] == ["unused is never called"]
    assert "neighbours in evaluation: x must hold tensors" in str(report)


def test_the_audit_is_printed_raises_and_is_json(capsys: Any) -> None:
    report = audit(OverTime(), drawn(16, 4, 12))
    assert capsys.readouterr().out == f"{report}\n"
    assert "Cure: Move the features" in str(report).replace("\n       ", " ")
    # A number is told where the reason says what it is, as "this share".
    assert "not features\n" in str(report)
    harms = (report.harms[0]._replace(reason="This share."),)
    assert "not features, 12\n" in str(report._replace(harms=harms))
    with pytest.raises(AssertionError, match="normalizes positions"):
        report.raise_if_failed()
    assert json.loads(report.to_json())["passed"] is False


@pytest.mark.parametrize(
    ("model", "x", "error", "match"),
    [
        (None, None, TypeError, "must be a torch.nn.Module, got None"),
        (nn.Linear(3, 3), torch.ones(2, 3), ValueError, "must hold a norm, got a Lin"),
        (nn.LayerNorm(3), torch.ones(2, 4), ValueError, "must take x, got RuntimeErr"),
    ],
)
def test_bad_input_is_refused(model: Any, x: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        audit(model, x)


class Branches(nn.Module):
    """Two inputs of unlike sizes, by one batch norm or by two."""

    def __init__(self, is_shared: bool, scale: float = 20.0) -> None:
        super().__init__()
        self.scale, self.a = scale, nn.BatchNorm1d(4)
        self.b = self.a if is_shared else nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x) + self.b(self.scale * x + self.scale - 1)
        return y


@pytest.mark.parametrize(
    ("is_shared", "scale", "expected"),
    [(True, 20.0, True), (False, 20.0, False), (True, 1.0, False)],
)
def test_a_batch_norm_in_two_places_is_told_where_their_inputs_differ(
    is_shared: bool, scale: float, expected: bool
) -> None:
    x = drawn(32, 4)
    torch.manual_seed(0)
    found = harms(trained(Branches(is_shared, scale), x), x)
    what = "one batch norm in several places"
    assert (what in found) == expected
    if expected:
        assert (found[what].number, found[what].place) == (2, "a")
        assert "evaluation differs from training" not in found  # nor its cure


class Listed(nn.Module):
    """Batch norms in a list of Python, beside one that is registered."""

    def __init__(self, *, has_other: bool, is_used: bool = True) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(4) if has_other else nn.Identity()
        self.more = [nn.BatchNorm1d(4), nn.BatchNorm1d(4)]
        self.is_used = is_used

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm in self.more if self.is_used else ():
            x = norm(x * x)
        return x


def test_norms_in_a_list_of_python_are_found() -> None:
    x = drawn(32, 4)
    found = harms(trained(Listed(has_other=True), x), x)
    harm = found["norms that are not registered"]
    assert (harm.level, harm.number, harm.place) == (WRONG, 2, "more[0] and 1 more")
    assert "2 of them normalize by the batch in evaluation" in harm.reason
    # One example alone raises; several show it.
    assert "an example depends on its neighbours in evaluation" in found
    by_example = Listed(has_other=True)
    by_example.more = [nn.LayerNorm(4)]  # type: ignore[list-item]
    harm = harms(trained(by_example, x), x)["norms that are not registered"]
    assert harm.level == WRONG
    assert "by the batch" not in harm.reason
    teacher = Listed(has_other=True)
    for norm in teacher.more:
        trained(norm, x)
    harm = harms(trained(teacher, x), x)["norms that are not registered"]
    assert harm.level == NOTE
    unused = harms(trained(Listed(has_other=True, is_used=False), x), x)
    assert "norms that are not registered" not in unused
    with pytest.raises(ValueError, match=r"in lists of Python: more\[0\]"):
        audit(Listed(has_other=False), x, quiet=True)


def test_the_same_harm_in_many_places_is_told_once_by_the_worst() -> None:
    x = drawn(32, 4)
    norms: list[Any] = [nn.BatchNorm1d(4) for _ in range(5)]
    model = trained(nn.Sequential(*norms), x)
    for k, norm in enumerate(norms):
        norm.running_mean += 1.0 + (k == 3)
    found = [h for h in audit(model, x, quiet=True).harms if h.level == RISK]
    assert [(h.what, h.place) for h in found] == [
        ("evaluation differs from training", "3 and 4 more")
    ]


class BehindTorchs(nn.Module):
    """A layer norm over positions behind an encoder of torch, which has a fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.encoder(x).transpose(1, 2)).mean(-1)
        return y


def test_positions_are_found_behind_an_encoder_of_torch() -> None:
    found = harms(BehindTorchs(), drawn(16, 6, 8))
    assert found["normalizes positions, not features"].place == "norm"


class Named(nn.Module):
    """Takes two inputs by name; evaluates by the batch, if told so."""

    def __init__(self, *, is_by_batch: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=not is_by_batch)

    def forward(self, x: Tensor, weight: Tensor) -> dict[str, Tensor]:
        return {"y": self.norm(x) * weight}


@pytest.mark.parametrize("is_by_batch", [True, False])
@pytest.mark.parametrize("is_dict", [True, False])
def test_several_inputs_are_cut_together(is_by_batch: bool, is_dict: bool) -> None:
    x: Any = {"x": drawn(16, 4), "weight": drawn(16, 1)}
    x = x if is_dict else tuple(x.values())
    what = "an example depends on its neighbours in evaluation"
    assert (what in harms(Named(is_by_batch=is_by_batch), x)) == is_by_batch


def test_an_instance_norm_that_evaluates_as_batch_norm_is_a_risk() -> None:
    x = drawn(16, 4, 12) * (1 + drawn(16, 1, 1).square()) + drawn(16, 4, 1)
    what = "instance norm that evaluates by running statistics"
    tracked = trained(network(nn.InstanceNorm1d(6, track_running_stats=True)), x)
    assert harms(tracked, x)[what].level == RISK
    assert what not in harms(trained(network(nn.InstanceNorm1d(6)), x), x)


class Attention(nn.Module):
    """Keys by a norm of their own, by that of the queries, or by one for both."""

    def __init__(self, keys_by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.q_norm, self.keys_by = nn.RMSNorm(8, eps=1e-6), keys_by
        if keys_by != "one":
            self.k_norm = nn.RMSNorm(8, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.k_norm if self.keys_by == "own" else self.q_norm
        q, k = self.q_norm(self.q(x)), norm(self.k(x))
        y: Tensor = torch.softmax(q @ k.mT, -1) @ x
        return y


def test_a_norm_that_nothing_calls_is_named_with_the_one_in_its_place() -> None:
    x = drawn(16, 5, 8)
    harm = harms(Attention("other"), x)["k_norm is never called"]
    assert (harm.level, harm.place) == (RISK, "k_norm")
    text = "q_norm, with parameters of the same size, is called 2 times"
    assert text in harm.reason
    inside = harms(nn.Sequential(Attention("other")), x)["k_norm is never called"]
    assert f"0.{text}" in inside.reason
    assert harms(Attention("own"), x) == harms(Attention("one"), x) == {}


class Branched(nn.Module):
    """A norm in a branch: idle, called in training only, or its gain is read."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first = how, nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        self.branch = nn.Sequential(nn.LayerNorm(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.how == "training" and self.training:
            return torch.as_tensor(self.branch(x))
        norm: Any = self.branch[0]
        return x * norm.weight if self.how == "read" else x


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("never", "The part that holds it is not called, either"),
        ("training", "norms called in training only"),
        ("read", "norms whose parameters are used without a call: branch.0"),
    ],
)
def test_a_norm_of_a_branch_is_no_risk(how: str, text: str) -> None:
    report = audit(Branched(how), drawn(16, 5, 8), quiet=True)
    assert report.passed
    assert text in " ".join(str(report).split())


class Twins(nn.Module):
    """Two batch norms with one memory for their running statistics, or two."""

    def __init__(self, *, is_shared: bool, scale: float = 20.0) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.BatchNorm1d(4), nn.BatchNorm1d(4), scale
        if is_shared:
            self.b.running_mean = self.a.running_mean
            self.b.running_var = self.a.running_var

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x) + self.b(self.scale * x + self.scale - 1)
        return y


def test_running_statistics_in_one_memory_are_wrong_where_places_differ() -> None:
    x = drawn(32, 4)
    what = "norms that write into the same running statistics"
    found = harms(trained(Twins(is_shared=True), x), x)
    assert (found[what].level, found[what].place) == (WRONG, "a and b")
    assert "running_mean and running_var are the same memory" in found[what].reason
    assert "evaluation differs from training" not in found  # nor its cure
    assert harms(trained(Twins(is_shared=True, scale=1.0), x), x)[what].level == RISK
    assert what not in harms(trained(Twins(is_shared=False), x), x)


class Teacher(nn.Module):
    """A student, and a copy of it with the statistics of its birth."""

    def __init__(self, *, is_frozen: bool, mean: float = 3.0) -> None:
        super().__init__()
        self.student, self.teacher = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.teacher.requires_grad_(not is_frozen)
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        self.teacher.eval()
        y: Tensor = self.student(x) + self.teacher(x + self.mean)
        return y


def test_forgotten_statistics_far_from_the_data_are_a_risk() -> None:
    x = drawn(64, 4)
    what = "running statistics that saw no batch, far from those of x"
    frozen = trained(Teacher(is_frozen=True), x).train()
    harm = harms(frozen, x)[what]
    assert (harm.level, harm.place) == (RISK, "teacher")
    assert "It is frozen, while other norms" in harm.reason
    assert what in harms(trained(Teacher(is_frozen=False), x), x)
    # What is near, yet to be trained, or new as a whole is to note at most.
    near = trained(Teacher(is_frozen=True, mean=0.0), (x - x.mean(0)) / x.std(0))
    assert what not in harms(near, (x - x.mean(0)) / x.std(0))
    assert what not in harms(trained(Teacher(is_frozen=False), x).train(), x)
    assert what not in harms(Teacher(is_frozen=False).eval(), x)


class Recurrent(nn.Module):
    """A norm of a state that is 0 at first, or small at every step."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.norm, self.size = nn.LayerNorm(8), size

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for x_t in x.unbind(1):
            h = self.size * (x_t + self.norm(h)).tanh()
        return h


def test_variances_are_those_of_all_calls() -> None:
    harm = harms(Recurrent(1e-4), drawn(16, 5, 8))["variances below eps"]
    assert (harm.level, harm.number) == (NOTE, 1)
    assert "in 5 calls" in harm.reason


def test_a_state_that_begins_with_0_has_no_variance_that_is_too_small() -> None:
    assert "variances below eps" not in harms(Recurrent(1.0), drawn(16, 5, 8))


def test_an_instance_norm_that_takes_rows_for_channels_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.InstanceNorm1d(8))
    report = audit(model, drawn(16, 4), quiet=True)
    (harm,) = report.harms
    assert (harm.level, harm.what) == (
        WRONG,
        "takes the examples for the channels of one",
    )
    assert "normalizes each row over its 8 values" in harm.reason
    assert report.untested == ()
    images = nn.Sequential(nn.Linear(5, 5), nn.InstanceNorm2d(6))
    (harm,) = audit(images, drawn(16, 6, 5), quiet=True).harms
    assert "each example over all its 6 x 5 values" in harm.reason


def test_one_example_without_a_batch_is_no_slip() -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.InstanceNorm1d(6))
    assert not [h for h in harms(model, drawn(6, 12)).values() if h.level == WRONG]


class Standardized(nn.Conv2d):
    """A convolution that standardizes its weight over some axes."""

    axes: tuple[int, ...] = (1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, self.axes, keepdim=True)
        w = (self.weight - mean) / (var + 1e-10).sqrt()
        y: Tensor = self._conv_forward(x, w, self.bias)
        return y


class OfInputs(Standardized):
    axes = (0, 2, 3)


@pytest.mark.parametrize("is_right", [True, False])
def test_weights_standardized_for_input_channels_are_told(*, is_right: bool) -> None:
    torch.manual_seed(0)
    conv = (Standardized if is_right else OfInputs)(3, 8, 3)
    found = harms(nn.Sequential(conv, nn.GroupNorm(2, 8)), drawn(16, 3, 8, 8))
    what = "weights standardized over the wrong axes"
    assert (what in found) != is_right
    if not is_right:
        assert (found[what].level, found[what].place) == (WRONG, "0")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda w, var: w / (var + 1e-6).rsqrt(), "multiplied by their deviations"),
        (lambda w, var: w / (var + 1e-6), "divided by their variances"),
        (lambda w, var: w * (var + 1e-6).rsqrt(), ""),
        (lambda w, var: w, ""),  # centred alone
        (lambda w, var: w * (var + 1e-6).rsqrt() * torch.arange(1, 9.0)[:, None], ""),
    ],
)
def test_filters_that_are_divided_by_something_else_are_told(
    rule: Callable[[Tensor, Tensor], Tensor], text: str
) -> None:
    class Conv(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            w = self.weight.flatten(1)
            var, mean = torch.var_mean(w, 1, correction=0, keepdim=True)
            made = rule(w - mean, var).view_as(self.weight)
            y: Tensor = self._conv_forward(x, made, self.bias)
            return y

    torch.manual_seed(0)
    model = nn.Sequential(Conv(3, 8, 3), nn.GroupNorm(2, 8))
    harm = harms(model, drawn(16, 3, 8, 8)).get(
        "weights that are centred, and not standardized"
    )
    assert (harm is not None) == bool(text)
    assert harm is None or text in harm.reason


def test_half_precision_is_a_risk_where_it_is_used() -> None:
    class Square(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
            return torch.as_tensor(y * self.weight)

    what = "not true of Square: float16 and bfloat16 give what float32 gives"
    model = nn.Sequential(nn.Linear(8, 8), Square(8, eps=1e-6))
    x = drawn(16, 5, 8)
    assert harms(model, x)[what].level == NOTE
    assert harms(model.bfloat16(), x.bfloat16())[what].level == RISK


class IdleBuffersBatchNorm(nn.Module):
    """Normalizes by the batch in every mode, whatever it holds."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.eps, self.weight = 1e-5, nn.Parameter(torch.ones(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = nn.functional.batch_norm(x, None, None, self.weight, training=True)
        return y


def test_buffers_that_a_norm_does_not_use_are_no_forgotten_statistics() -> None:
    found = harms(network(IdleBuffersBatchNorm(6)))
    assert "an example depends on its neighbours in evaluation" in found
    assert "running statistics that saw no batch" not in found


class Nested(nn.Module):
    """A model that takes tensors in a dict, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(nn.BatchNorm1d(6))

    def forward(self, x: dict[str, Tensor], steps: int = 1) -> Tensor:
        for _ in range(steps):
            y: Tensor = self.net(x["signal"])
        return y


def test_tensors_in_dicts_beside_numbers_are_cut_and_lists_are_told() -> None:
    x = {"x": {"signal": drawn(16, 4, 12)}, "steps": 2}
    model = Nested()
    trained(model.net, x["x"]["signal"])  # type: ignore[index]
    assert audit(model.eval(), x, quiet=True).untested == ()

    class OfAList(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model.net

        def forward(self, x: list[Tensor]) -> Tensor:
            y: Tensor = self.net(torch.stack(x))
            return y

    told = audit(OfAList(), ([*drawn(16, 4, 12)],), quiet=True).untested
    assert {line.partition(": ")[2] for line in told} >= {
        "x must hold tensors of one length, of two or more, and no lists."
    }


def test_three_quarters_of_the_positions_are_tried_too() -> None:
    class Picky(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] == 6:
                raise ValueError("too short")
            y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return y

    model = Picky(nn.Conv1d(4, 6, 1), nn.LayerNorm(12))
    assert harms(model)["normalizes positions, not features"].place == "1"


def test_outputs_without_a_number_tell_nothing_of_norms() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(nn.GroupNorm(2, 6))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.net(x)
            return y[y > 100]  # as boxes with a score

    report = audit(Picks(), drawn(16, 4, 12), quiet=True)
    assert report.harms == ()
    assert any("the model returns no number" in t for t in report.untested)


class Coded(nn.Module):
    """What the first norm returns becomes a code, of which all are alike yet."""

    def __init__(self, is_dropped: bool) -> None:
        super().__init__()
        self.first, self.last = nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)
        self.is_dropped = is_dropped
        self.register_buffer("codes", torch.ones(8, 12))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.is_dropped:
            return self.last(x)  # type: ignore[no-any-return]
        y = self.codes[y.mean(-1).argmax(-1)]  # type: ignore[index]
        return self.last(x + y[:, None])  # type: ignore[no-any-return]


def test_what_becomes_a_code_is_not_called_unused() -> None:
    found = harms(Coded(is_dropped=False))
    assert found["no output changes with what a norm returns"].level == NOTE
    found = harms(Coded(is_dropped=True))
    assert found["what a norm returns is not used"].level == RISK


def test_batch_norms_that_never_move_or_saw_one_batch_are_told_apart() -> None:
    never = harms(network(nn.BatchNorm1d(6, momentum=0.0)))
    assert never["running statistics that never move"].level == RISK
    x = 5 + drawn(16, 4, 12)
    model = trained(network(nn.BatchNorm1d(6)), 0 * x, steps=1)
    found = harms(model, x)
    assert found["running statistics of few batches, far from those of x"].level == NOTE
    assert "evaluation differs from training" not in found
    found = harms(trained(network(nn.BatchNorm1d(6)), 0 * x, steps=40), x)
    assert found["evaluation differs from training"].level == RISK


def test_what_the_dtype_or_the_number_of_values_makes_harmless_is_a_note() -> None:
    class Single(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    norm = Single(6)
    title = "not true of Single: the output has the dtype of the input"
    x = drawn(16, 12, 6)
    assert harms(nn.Sequential(norm), x)[title].level == NOTE
    assert harms(nn.Sequential(norm), x.double())[title].level == WRONG

    class Unbiased(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            root = (x.var(0) + self.eps).sqrt()
            y: Tensor = (x - x.mean(0)) / root * self.weight + self.bias
            return y

    title = "not true of Unbiased: the variance divides by n, not by n - 1"
    assert harms(nn.Sequential(Unbiased(6)), drawn(16, 6))[title].level == WRONG
    assert harms(nn.Sequential(Unbiased(6)), drawn(64, 6))[title].level == NOTE


def test_gains_of_a_weight_plus_one_in_heads_are_not_near_zero() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(12))

        def forward(self, x: Tensor) -> Tensor:  # (N, heads, T, 4) to (N, T, 12)
            y = functional.layer_norm(x, (4,)).transpose(1, 2).flatten(2)
            y = (y * (1 + self.weight)).tanh()
            return y.view(*y.shape[:2], 3, 4).transpose(1, 2)

    class MultiHeadLayerNorm(Heads):
        pass

    model = nn.Sequential(nn.Linear(4, 4), MultiHeadLayerNorm())
    assert "gains near 0" not in harms(model, drawn(8, 3, 5, 4))


def test_a_second_norm_of_a_class_is_what_the_first_is() -> None:
    class GlobalNorm(nn.LayerNorm):  # over channels and steps
        def forward(self, x: Tensor) -> Tensor:
            y = functional.group_norm(x, 1, eps=self.eps).movedim(1, -1)
            y = y * self.weight + self.bias
            return y.movedim(-1, 1)

    model = nn.Sequential(*network(GlobalNorm(6)), *network(GlobalNorm(6)))
    assert audit(model, drawn(16, 4, 12), quiet=True).harms == ()
    with torch.no_grad():
        first, second = look(model, drawn(16, 4, 12))
    assert first.definition == second.definition == Definition("group")
    assert first.is_sure
    assert second.is_sure


def test_a_named_tuple_is_cut_and_stays_one() -> None:
    class Pair(NamedTuple):
        a: Tensor
        b: Tensor

    pair = Pair(drawn(4, 2), drawn(4, 2))
    assert batch_in(pair) is pair.a
    assert narrowed(pair, 0, 3).b.equal(pair.b[:3])
