"""Slips that a third hand found unnamed, and others of their kinds, are named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from planted_bugs import HandBatchNorm, along
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.layers.lstm import LayerNormLSTM

Statistics = tuple[Tensor, Tensor]


def said(layer: nn.Module, **settings: Any) -> str:
    return " ".join(str(check_norm_layer(layer, quiet=True, **settings)).split())


def held(layer: nn.Module) -> Statistics:
    return layer.get_buffer("running_mean"), layer.get_buffer("running_var")


# --- what torch does not reach, and what it takes ------------------------------------


class Listed(nn.Module):
    """A batch norm in a list, a dictionary, or parameters in a list."""

    def __init__(self, where: str) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(6, affine=where != "gain")
        self.parts: Any = {"norm": norm} if where == "dict" else [norm]
        self.gains = [nn.Parameter(torch.ones(6))] if where == "gain" else []
        if where == "gain":
            self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts.values() if isinstance(self.parts, dict) else self.parts
        (norm,) = parts
        y: Tensor = norm(x)
        return y * self.gains[0] if self.gains else y


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("list", "parts holds 1 BatchNorm1d, not registered"),
        ("dict", "parts holds 1 BatchNorm1d, not registered"),
        ("gain", "gains holds 1 Parameter, not registered"),
    ],
)
def test_what_is_out_of_reach_is_named_first(where: str, text: str) -> None:
    report = check_norm_layer(Listed(where), (8, 6), kind="batch", quiet=True)
    assert report.failed == ("torch reaches all that the layer holds",)
    assert text in report.findings[0].reason
    kind = "nn.ParameterList" if where == "gain" else "nn.ModuleList"
    assert kind in report.findings[0].cure


class Deaf(nn.Module):
    """Says one layout and takes another."""

    def __init__(self, *, says: bool, takes: bool) -> None:
        super().__init__()
        self.input_size, self.batch_first = 3, says
        self.lstm = LayerNormLSTM(3, 4, has_redundant_biases=False, batch_first=takes)

    def forward(self, x: Any, state: Any = None) -> Any:
        return self.lstm(x, state)


@pytest.mark.parametrize("says", [True, False])
def test_a_batch_first_that_is_not_used_is_named(says: bool) -> None:
    report = check_norm_layer(Deaf(says=says, takes=not says), kind="lstm", quiet=True)
    assert report.failed == ("batch_first says which axis is the time",)
    assert f"batch_first is {says}" in report.findings[0].reason
    sound = check_norm_layer(Deaf(says=says, takes=says), kind="lstm", quiet=True)
    assert not sound.failed


class Narrow(LayerNormLSTM):
    """Takes no states of more than one example."""

    def forward(self, x: Any, state: Any = None) -> Any:
        if state is not None:
            state = tuple(s.reshape(1, 1, self.hidden_size) for s in state)
        return super().forward(x, state)


class Float32(LayerNormLSTM):
    """Adds a tensor that is no buffer."""

    def __init__(self, features: int, units: int) -> None:
        super().__init__(features, units)
        self.mixing = torch.eye(features)

    def forward(self, x: Any, state: Any = None) -> Any:
        return super().forward(x @ self.mixing, state)


def test_shapes_and_dtypes_are_not_taken_for_each_other() -> None:
    with pytest.raises(TypeError, match=r"it runs in float32; register.*: mixing"):
        check_norm_layer(Float32(3, 4), kind="lstm")
    with pytest.raises(TypeError, match=r"with states, x of shape .6, 5, 3. and h_0"):
        check_norm_layer(Narrow(3, 4), kind="lstm")


# --- the start -----------------------------------------------------------------------


class Started(nn.Module):
    """RMS norm times a gain of which a rule is taken."""

    def __init__(self, start: float, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.eps, self.rule = 1e-6, rule
        self.weight = nn.Parameter(torch.full((12,), start))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.rule(self.weight.to(wide))).to(x.dtype)


def test_the_gain_that_acts_at_the_start_is_looked_at() -> None:
    doubled = said(Started(1.0, lambda w: 1 + w), kind="rms")
    assert "from the start all outputs are doubled" in doubled
    sound = check_norm_layer(Started(0.0, lambda w: 1 + w), kind="rms", quiet=True)
    assert list(sound.others) == ["1 + gain"]
    small = check_norm_layer(Started(0.1, lambda w: w), kind="rms", quiet=True)
    assert small.passed
    assert "multiplied by 0.1 in every channel" in str(small)


def test_gain_and_bias_that_are_exchanged_at_the_start_are_named() -> None:
    layer = HandBatchNorm(6)
    nn.init.zeros_(layer.gamma)
    assert "the output is the bias" in said(layer)
    nn.init.ones_(layer.beta)
    assert "The two are exchanged" in said(layer)


# --- evaluation ----------------------------------------------------------------------


class Evaluated(HandBatchNorm):
    """Batch norm whose evaluation is a rule of x, gain, bias, mean and sigma."""

    def __init__(self, rule: Callable[..., Tensor]) -> None:
        super().__init__(6)
        self.rule = rule

    def forward(self, x: Tensor) -> Tensor:
        if self.training or x.dtype.itemsize == 2:
            return super().forward(x)
        mean, var = held(self)
        values = self.gamma, self.beta, mean, (var + self.eps).sqrt()
        return self.rule(x, *(along(value, x) for value in values))


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            lambda x, g, b, m, s: x * g / s + b - m / s,
            "the mean is subtracted without the gain",
        ),
        (
            lambda x, g, b, m, s: x * g / s + b - m * g,
            "the mean is subtracted without the division",
        ),
        (
            lambda x, g, b, m, s: g * ((x - m) / s + b),
            "the bias is multiplied by the gain",
        ),
        (lambda x, g, b, m, s: x * g / s + b + m * g / s, "with the wrong sign"),
        (lambda x, g, b, m, s: g * x / s + b, "the mean is not subtracted"),
        (lambda x, g, b, m, s: (x - m) / s + b, "the gain is not used"),
        (lambda x, g, b, m, s: (1 + g) * (x - m) / s + b, "1 + gain acts"),
        (lambda x, g, b, m, s: g * (x - m) / s - b, "is added with the wrong sign"),
    ],
)
def test_the_formula_of_an_evaluation_is_told(
    rule: Callable[..., Tensor], text: str
) -> None:
    report = said(Evaluated(rule), shape=(8, 6, 5))
    assert text in report
    assert "evaluation is a x + c, with a = " in report


class Corrected(HandBatchNorm):
    """Running statistics from 0, that a factor of the count of batches divides."""

    steps: Tensor

    def __init__(self, factor: Callable[[float, Tensor], Tensor]) -> None:
        super().__init__(6)
        self.factor = factor
        nn.init.zeros_(held(self)[1])
        self.register_buffer("steps", torch.tensor(0))

    def update(self, mean: Tensor, var: Tensor, n: int) -> None:
        super().update(mean, var, n)
        self.steps += 1

    def forward(self, x: Tensor) -> Tensor:
        if self.training or x.dtype.itemsize == 2:
            return super().forward(x)
        mean, var = held(self)
        if self.steps:
            f = self.factor(self.momentum, self.steps)
            mean, var = mean / f, var / f
        else:
            var = torch.ones_like(var)
        x_hat = self.normalized(x, along(mean, x), along(var, x))
        return along(self.gamma, x) * x_hat + along(self.beta, x)


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (lambda m, k: 1 - m**k, "that is 1 - momentum^k, k batches"),
        (lambda m, k: 1 - (1 - m) ** (k + 1), "that is 1 - (1 - momentum)^(k + 1)"),
        (lambda m, k: 1 / k, "that is 1 / k"),
    ],
)
def test_a_wrong_correction_of_the_start_is_told(factor: Any, text: str) -> None:
    report = said(Corrected(factor), shape=(8, 6))
    assert "Of the mean and the variance: evaluation uses running_mean / f" in report
    assert text in report
    right = said(Corrected(lambda m, k: 1 - (1 - m) ** k), shape=(8, 6))
    assert "corrected for its start, as in Adam" in right


class Loads(HandBatchNorm):
    """Changes what it loads."""

    def __init__(self, name: str, rule: Callable[[Tensor], Tensor]) -> None:
        super().__init__(6)
        self.name, self.rule = name, rule

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        key = prefix + self.name
        state_dict[key] = self.rule(state_dict[key])
        super()._load_from_state_dict(state_dict, prefix, *args)


@pytest.mark.parametrize(
    ("name", "rule", "text"),
    [
        ("running_var", lambda v: v - 1e-5, "value of eps, is taken off it"),
        ("running_var", lambda v: 0.9 * v, "it is multiplied by 0.9"),
        ("running_var", torch.sqrt, "its root is taken"),
        ("running_mean", torch.zeros_like, "stays what it was, and is not loaded"),
        ("gamma", lambda v: v + 1, "gamma is .* is added to it"),
    ],
)
def test_what_loading_changes_is_told(name: str, rule: Any, text: str) -> None:
    report = check_norm_layer(Loads(name, rule), (8, 6, 5), quiet=True)
    (finding,) = (f for f in report.findings if f.name.startswith("state_dict"))
    assert finding.passed is False
    assert all(part in finding.reason for part in [name, *text.split(".*")])


class Kept(HandBatchNorm):
    """Keeps one of the running statistics of its first evaluation."""

    kept: Tensor | None = None

    def __init__(self, index: int) -> None:
        super().__init__(6)
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        if self.training or x.dtype.itemsize == 2:
            return super().forward(x)
        values = [*held(self)]
        if self.kept is None:
            self.kept = values[self.index].clone()
        values[self.index] = self.kept
        x_hat = self.normalized(x, *(along(value, x) for value in values))
        return along(self.gamma, x) * x_hat + along(self.beta, x)


@pytest.mark.parametrize(("index", "name"), [(0, "running_mean"), (1, "running_var")])
def test_which_of_the_statistics_is_an_old_one_is_told(index: int, name: str) -> None:
    assert f"by the {name} that it held before" in said(Kept(index), shape=(8, 6))


# --- renormalization -----------------------------------------------------------------


class Renormalized(HandBatchNorm):
    """Batch renormalization, with a rule for slope and height."""

    def __init__(self, rule: Callable[..., Tensor], *, is_detached: bool = True):
        super().__init__(6)
        self.rule, self.is_detached = rule, is_detached

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.dtype.itemsize == 2:
            return super().forward(x)
        mean, var = self.statistics(x)
        old, old_var = (along(value, x).clone() for value in held(self))
        sigma, old_sigma = (var + self.eps).sqrt(), (old_var + self.eps).sqrt()
        r, d = (sigma / old_sigma).clamp(1 / 3, 3), ((mean - old) / old_sigma)
        r, d = (r.detach(), d.detach()) if self.is_detached else (r, d)
        self.update(mean, var, x.numel() // x.shape[1])
        gain, bias = along(self.gamma, x), along(self.beta, x)
        return self.rule((x - mean) / sigma, gain, bias, r, d.clamp(-5, 5))


def right(z: Tensor, g: Tensor, b: Tensor, r: Tensor, d: Tensor) -> Tensor:
    return g * (z * r + d) + b


def weighted(k: float, z: Tensor, g: Tensor, b: Tensor, r: Tensor, d: Tensor) -> Tensor:
    return g * (z * (1 + k * (r - 1)) + k * d) + b


@pytest.mark.parametrize("rule", [right, partial(weighted, 0.4)])
def test_a_sound_renormalization_is_named_so(rule: Callable[..., Tensor]) -> None:
    report = check_norm_layer(Renormalized(rule), (16, 6), kind="batch", quiet=True)
    assert "batch renormalization" in report.others
    assert ("multiplied by 0.4, as in a warm-up" in str(report)) == (rule is not right)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda z, g, b, r, d: (g * z + b) * r + d, "gain and bias act before r and d"),
        (lambda z, g, b, r, d: g * z * r + d + b, "d is not multiplied by the gain"),
        (lambda z, g, b, r, d: g * (z / r + d) + b, "x_hat is multiplied by gain / r"),
        (lambda z, g, b, r, d: g * (z * r - d) + b, "bias - gain * d is added"),
        (partial(weighted, 2.5), "multiplied by 2.5: a warm-up, which brings"),
        (partial(weighted, -1.0), "multiplied by -1, expected between 0 and 1"),
    ],
)
def test_a_slip_in_a_renormalization_is_named(
    rule: Callable[..., Tensor], text: str
) -> None:
    assert text in said(Renormalized(rule), shape=(16, 6), kind="batch")


def test_a_renormalization_with_a_gradient_through_r_and_d_is_named() -> None:
    layer = Renormalized(right, is_detached=False)
    assert "goes through r and d" in said(layer, shape=(16, 6), kind="batch")


def test_the_title_has_the_shape_that_the_layer_takes() -> None:
    class Last(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    report = check_norm_layer(Last(6), (8, 5, 6), channel_axis=-1, quiet=True)
    assert (report.kind, report.passed) == ("batch norm of (N, 5, 6)", True)
