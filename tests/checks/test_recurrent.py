"""A layer-normalized LSTM of anybody: right ones pass, each slip has its name."""

from __future__ import annotations

import copy
from typing import Any

import planted_recurrent_bugs as planted
import pytest
import torch
from torch import Tensor, nn

from normbook.checks import check_norm_layer
from normbook.checks.recurrent import claims as recurrent
from normbook.checks.recurrent import gradients
from normbook.checks.recurrent.claims import recurrent_findings
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.lstm import LayerNormLSTM

D, H = 3, 8


def failures(layer: nn.Module, sizes: Any = None) -> dict[str, str]:
    found = recurrent_findings(layer, sizes)
    assert all(f.reason and f.cure for f in found if f.passed is False)
    return {f.name: f.reason for f in found if f.passed is False}


def others(layer: nn.Module) -> dict[str, str]:
    return {f.name: f.reason for f in recurrent_findings(layer) if f.other}


def ours(**settings: Any) -> LayerNormLSTM:
    return LayerNormLSTM(D, H, has_redundant_biases=False, **settings)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (ours, None),
        (lambda: ours(bias=False), (7, 2, D)),
        (ours, (1, 1, D)),
        (lambda: ours(batch_first=True), (2, 7, D)),
        (lambda: ours(num_layers=2, dropout=0.5), None),
        (lambda: ours(bidirectional=True), None),
        (lambda: ours(num_layers=2, bidirectional=True), None),
        (lambda: ours(dtype=torch.float64), None),
        (lambda: LayerNormLSTM(1, 1, has_redundant_biases=False), None),
        (lambda: planted.Right(D, H), None),
        (lambda: planted.BatchFirst(D, H), (5, 7, D)),
        (lambda: planted.Cell(D, H), (5, D)),
        (lambda: planted.Cell(D, H), (7, 5, D)),
        (lambda: planted.PlainStates(D, H), (7, 5, D)),
        (lambda: planted.HasDropout(D, H), None),
        (lambda: planted.IgnoresTheState(D, H), None),
    ],
)
def test_a_right_layer_passes(layer: Any, sizes: Any) -> None:
    assert failures(layer(), sizes) == {}


def test_of_our_own_layer_every_test_is_made() -> None:
    found = recurrent_findings(ours())
    assert [f.name for f in found if f.verdict == "not tested"] == [recurrent.REST]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (planted.NormalizedStateIsCarried, {recurrent.RAW: "LN(c) stored as the st"}),
        (planted.ClippedState, {recurrent.RAW: "is linear in c_0; here it is not"}),
        (planted.OnlyInputIsNormalized, {recurrent.NORMED: "only W_x x is normalized"}),
        (planted.OutputIsNotCentred, {recurrent.OUTPUT: "c is not normalized"}),
        (
            planted.OutputIsOnlyCentred,
            {
                recurrent.OUTPUT: "c is not normalized",
                recurrent.CELL: "the mean of c_1 is subtracted, and nothing is divided",
            },
        ),
        (
            planted.TimeIsNormalized,
            {
                recurrent.LATER: "The statistics run over time",
                recurrent.PADDING: "The padding has a part in the statistics",
            },
        ),
        (planted.BatchIsNormalized, {recurrent.OTHERS: "changes h of the others by"}),
        (planted.CandidateWithoutTanh, {recurrent.CELL: "g has no tanh"}),
        (planted.InputGateIsTheRest, {recurrent.CELL: "the input gate is 1 - f"}),
        (planted.OutputWithoutTanh, {recurrent.CELL: "has no tanh behind LN(c_1)"}),
        (planted.GatesAreUnbiased, {recurrent.CELL: "unbiased variance, over n - 1"}),
        (planted.StateIsKept, {recurrent.CALLS: "in which the first one, another b"}),
        (planted.StatesAreIgnored, {recurrent.PIECES: "what is given is not used"}),
        (planted.StatesAreSwapped, {recurrent.PIECES: "differs from the last output"}),
        (planted.TakesPlainStates, {recurrent.LAYOUTS: "one of them is broadcast"}),
        (planted.BackwardIsWrong, {gradients.GRADIENTS: "w_x.weight: "}),
        (planted.StatisticsAreDetached, {gradients.GRADIENTS: "c_0: "}),
        (planted.EpsIsZero, {gradients.ZEROS: "outputs are not finite"}),
        (planted.EpsIsBehindTheRoot, {gradients.ZEROS: "gradients are not finite"}),
        (planted.EpsOfInputIsZero, {gradients.ZEROS: "outputs are not finite"}),
        (planted.EpsOfStateIsZero, {gradients.ZEROS: "outputs are not finite"}),
    ],
)
def test_each_slip_fails_its_own_test_only(layer: Any, expected: Any) -> None:
    found = failures(layer(D, H))
    assert found.keys() == expected.keys()
    for name, reason in expected.items():
        assert reason in found[name]


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (lambda: LayerNormLSTM(D, H), "b_l0, beta_h_l0 and beta_x_l0 have"),
        (lambda: planted.BiasIsThereThrice(D, H), "sum 3 times as fast"),
        (lambda: nn.LSTM(D, H), "sum 2 times as fast"),
    ],
)
def test_biases_that_are_there_twice_are_a_remark(layer: Any, names: str) -> None:
    report = check_norm_layer(layer(), kind="lstm", quiet=True)
    assert gradients.BIASES not in report.failed
    (note,) = (f for f in report.findings if f.name == gradients.BIASES)
    assert (note.passed, note.other) == (True, "redundant biases")
    assert names in note.reason
    assert "NOTE   redundant biases" in str(report)


def test_a_forget_gate_with_one_added_may_be_meant() -> None:
    layer = planted.ForgetsWithOne(D, H)
    report = check_norm_layer(layer, kind="lstm", quiet=True)
    assert (report.failed, [*report.others]) == ((), ["forget bias"])
    assert check_norm_layer(layer, kind="lstm", allow="forget bias", quiet=True).passed


def test_the_old_state_is_told_where_h_reads_it() -> None:
    found = failures(planted.OldStateIsRead(D, H))
    assert "h_1 reads the c before the step" in found[recurrent.CELL]


@pytest.mark.parametrize(
    ("layer", "cell"),
    [
        (
            lambda: ours(),
            "layer norm of W_x x and of W_h h; c_1 = f c + i tanh(g); h_1",
        ),
        (lambda: ours(norm="sum"), "layer norm of W_x x + W_h h;"),
        (lambda: ours(norm="gates"), "layer norm of each gate, of the sum;"),
        (lambda: nn.LSTM(D, H), "no norm of W_x x + W_h h;"),
        (lambda: nn.LSTMCell(D, H), "no norm of W_x x + W_h h;"),
    ],
)
def test_a_step_is_compared_with_the_cell_that_it_fits(layer: Any, cell: str) -> None:
    (step,) = (f for f in recurrent_findings(layer()) if f.name == recurrent.CELL)
    assert step.passed
    assert cell in step.reason


def test_what_was_not_tested_is_said() -> None:
    layer = LayerNormLSTM(D, H, num_layers=2, bidirectional=True)
    report = check_norm_layer(layer, quiet=True)
    assert recurrent.PIECES in report.untested
    assert not {recurrent.CELL, recurrent.UPPER} & {*report.untested}
    assert "Not tested, as the runs are in float64" in str(report)


def test_our_other_cells_fail_by_name() -> None:
    assert list(failures(ours(carried="normalized"))) == [recurrent.RAW]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ours(norm="sum"), {"norm of the sum": "it is the sum W_h h + W_x x"}),
        (
            ours(norm="gates"),
            {"norm of the sum": "it is the sum", "norm of each gate": "Each gate is"},
        ),
        (planted.EachGateIsNormalized(D, H), {"norm of each gate": "Each gate is"}),
        (planted.SumIsNormalized(D, H), {"norm of the sum": "it is the sum W_h h"}),
        (planted.OutputIsNotNormalized(D, H), {"no norm of c": "c is not normalized"}),
    ],
)
def test_other_places_of_the_norm_are_other_on_purpose(
    layer: nn.Module, expected: dict[str, str]
) -> None:
    report = check_norm_layer(layer, kind="lstm", quiet=True)
    assert not report.failed
    assert report.others.keys() >= expected.keys()
    for name, reason in expected.items():
        assert reason in report.others[name]
    assert check_norm_layer(layer, kind="lstm", allow=[*report.others]).passed


@pytest.mark.parametrize("kind", [nn.LSTM, nn.LSTMCell])
def test_the_plain_lstm_has_no_normalization(kind: Any) -> None:
    found = failures(kind(D, H))
    assert list(found) == [recurrent.NORMED, recurrent.OUTPUT]
    assert "no normalization was found" in found[recurrent.NORMED]


def test_batch_norm_is_told_by_its_evaluation_mode() -> None:
    layer = BatchNormLSTM(D, H, max_steps=6)
    assert failures(layer) == {}
    reason = others(layer)[recurrent.OTHERS]
    assert "this is batch norm, with running statistics" in reason
    other = failures(planted.BatchIsNormalized(D, H))
    assert "batch norm" not in other[recurrent.OTHERS]


def test_all_but_the_looks_at_evaluation_mode_are_in_training_mode() -> None:
    planted.RemembersModes.modes.clear()
    recurrent_findings(planted.RemembersModes(D, H))
    # Two for a second call, one each for both modes and the last h, and twice two
    # where it is asked whether it is a batch norm: of others, and before all tests.
    assert planted.RemembersModes.modes.count(False) == 8
    assert planted.RemembersModes.modes.count(True) > 50


@pytest.mark.parametrize(
    "layer",
    [BatchNormLSTM(D, H, max_steps=6).eval(), planted.BatchNormBehindDropout(D, H)],
)
def test_batch_norm_hides_behind_no_mode_and_no_dropout(layer: nn.Module) -> None:
    assert recurrent.OTHERS in {**failures(layer), **others(layer)}


def test_what_a_wrong_cell_does_beside_its_slip_is_told() -> None:
    found = failures(planted.NormBehindTheSigmoid(D, H))
    assert "a norm behind the sigmoids, perhaps" in found[recurrent.NORMED]
    found = failures(planted.GoesOverTheExamples(D, H))
    assert "the recurrence runs over the examples" in found[recurrent.OTHERS]


def test_gates_with_gains_of_their_own_are_found_too() -> None:
    layer = ours(norm="gates")
    with torch.no_grad():
        layer.get_parameter("gamma_h_l0").uniform_(0.5, 2.0)
    assert "weights 1 / gain" in others(layer)[recurrent.TOGETHER]


def test_weights_of_zero_and_large_biases_hide_nothing() -> None:
    layer = planted.EachGateIsNormalized(D, H)
    nn.init.zeros_(layer.w_x.weight)
    nn.init.zeros_(layer.w_h.weight)
    layer.norm_h.bias = nn.Parameter(torch.full((4 * H,), 5.0))
    assert recurrent.TOGETHER in others(layer)
    assert failures(layer) == {}


def test_the_claimed_spread_of_the_carried_state_is_the_one_measured() -> None:
    reason = failures(ours(carried="normalized"))[recurrent.RAW]
    assert "a deviation of 10 leaves a c_1 with a deviation of 1.00" in reason
    assert "one of 100 leaves 1.00;" in reason


def test_frozen_parameters_are_tested_and_stay_frozen() -> None:
    layer = planted.BackwardIsWrong(D, H).requires_grad_(False)
    assert "w_x.weight" in failures(layer)[gradients.GRADIENTS]
    assert not any(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("is_training", [True, False])
def test_the_layer_is_left_alone(is_training: bool) -> None:
    layer = BatchNormLSTM(D, H, max_steps=6).train(is_training)
    layer.w_x_l0.grad = torch.ones_like(layer.w_x_l0)
    before = copy.deepcopy(layer.state_dict())
    recurrent_findings(layer)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())
    assert layer.training is is_training
    assert bool((layer.w_x_l0.grad == 1).all())


def test_the_findings_are_the_same_each_time_and_random_numbers_are_given_back() -> (
    None
):
    layer = planted.HasDropout(D, H)
    first, numbers = recurrent_findings(layer), torch.manual_seed(1).get_state()
    assert recurrent_findings(layer) == first
    assert torch.equal(numbers, torch.get_rng_state())


def test_the_gradient_of_an_initial_state_of_zeros_is_noted() -> None:
    def note(layer: nn.Module, **settings: Any) -> str:
        found = recurrent_findings(layer, **settings)
        return next(f.reason for f in found if f.name == gradients.ZEROS)

    assert "1 / sqrt(eps) is 316" in note(ours())
    assert "1 / sqrt(eps) is 10." in note(ours(), eps=0.01)
    assert "1 / sqrt(eps)" not in note(planted.Right(D, H))
    assert "1 / sqrt(eps)" not in note(ours(), eps=0.0)


@pytest.mark.parametrize(
    ("layer", "sizes", "error", "match"),
    [
        (nn.Linear(D, H), (7, 5, D), TypeError, "must be called as .* got .Tensor. "),
        (nn.GRU(D, H), None, TypeError, "got .Tensor, Tensor. for"),
        (nn.LSTM(D, H), (7, 5, 4), TypeError, "RuntimeError: input.size"),
        (planted.SinglePrecision(D, H), None, TypeError, "run in float64, got Run"),
        (nn.Linear(D, H), None, ValueError, "shape of one input is needed"),
        (nn.LSTM(D, H), (7, 5, 2, D), ValueError, "one input must be .T, N, D."),
    ],
)
def test_bad_input_is_refused(layer: Any, sizes: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        recurrent_findings(layer, sizes)


class SixSteps(LayerNormLSTM):
    """Refuses any other number of steps."""

    def forward(self, x: Any, states: Any = None) -> Any:
        assert len(x) == 6, f"six steps, got {len(x)}"
        return super().forward(x, states)


class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dl_dy: Tensor) -> Tensor:
        raise RuntimeError("no way back")


class WithoutGradient(LayerNormLSTM):
    def forward(self, x: Any, states: Any = None) -> Any:
        h, last = super().forward(x, states)
        return NoWayBack.apply(h), last  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("kind", "claim", "raised"),
    [
        (SixSteps, recurrent.PADDING, "AssertionError: six steps, got 5"),
        (SixSteps, recurrent.RAW, "AssertionError: six steps, got 1"),
        (WithoutGradient, gradients.GRADIENTS, "RuntimeError: no way back"),
    ],
)
def test_an_error_of_the_layer_is_a_finding(kind: Any, claim: str, raised: str) -> None:
    layer = kind(3, 4, has_redundant_biases=False)
    (finding,) = (f for f in recurrent_findings(layer) if f.name == claim)
    assert finding.passed is False
    assert raised in finding.reason


class Stack(nn.Module):
    """Two layers, each forward or in both directions; ``slip`` is what is wrong."""

    def __init__(self, slip: str = "", ways: int = 1, layers: int = 2) -> None:
        super().__init__()
        self.slip, self.ways, self.layers = slip, ways, layers
        self.input_size, self.hidden_size, self.dropout = D, H, 0.0
        self.parts = nn.ModuleList(
            LayerNormLSTM(D if k == 0 else ways * H, H, has_redundant_biases=False)
            for k in range(layers)
            for _ in range(ways)
        )

    def forward(self, x: Tensor, states: Any = None) -> Any:
        if states is None:
            zero = x.new_zeros(len(self.parts), x.shape[1], H)
            states = zero, zero
        ends = []
        for layer in range(self.layers):
            outs, passed = [], []
            for way in range(self.ways):
                k = layer * self.ways + way
                given = 0 if self.slip == "states" else k
                h, c = (s[given, None] for s in states)
                y, cells = [], []
                is_turned = way and self.slip != "forward"
                for x_t in x.flip(0) if is_turned else x:
                    _, (h, c) = self.parts[k](x_t[None], (h, c))
                    y.append(h[0])
                    cells.append(c[0])
                ends.append((h[0], c[0]))
                if way and self.slip == "last":
                    ends[-1] = y[0], c[0]
                turn = is_turned and self.slip != "reversed"
                whole = torch.stack(y).flip(0) if turn else torch.stack(y)
                outs.append(whole)
                passed.append(torch.stack(cells) if self.slip == "cells" else whole)
            out, x = torch.cat(outs, -1), torch.cat(passed, -1)
            if self.slip == "dropout":
                x = nn.functional.dropout(x, self.dropout)
        h, c = (torch.stack(s) for s in zip(*ends, strict=True))
        return out, (h, c)


@pytest.mark.parametrize("ways", [1, 2])
def test_layers_one_above_the_other_pass(ways: int) -> None:
    assert failures(Stack(ways=ways)) == {}


@pytest.mark.parametrize(
    ("slip", "settings", "name", "reason"),
    [
        ("states", {}, recurrent.UPPER, "Another h_0[1] changes nothing"),
        ("cells", {}, recurrent.UPPER, "the cell state c is passed on"),
        ("cells", {"ways": 2}, recurrent.UPPER, "the cell state c is passed on"),
        ("reversed", {"ways": 2, "layers": 1}, recurrent.UPPER, "in reversed order"),
        ("reversed", {"ways": 2}, recurrent.UPPER, "in reversed order"),
        ("forward", {"ways": 2}, recurrent.UPPER, "both directions run forward"),
        ("last", {"ways": 2}, recurrent.UPPER, "is its output at the last step of x"),
        ("dropout", {}, recurrent.SAME, "dropout acts in evaluation"),
    ],
)
def test_a_slip_above_the_first_layer_is_named(
    slip: str, settings: dict[str, int], name: str, reason: str
) -> None:
    found = failures(Stack(slip, **settings))
    assert reason in found[name]
    assert {*found} == {name}


class OtherOrder(nn.LSTM):
    """The cell of the paper with the weights of torch, in an order of its own."""

    def __init__(self, order: str) -> None:
        super().__init__(D, H)
        self.order = order
        self.w_x: Any = self.weight_ih_l0
        self.w_h: Any = self.weight_hh_l0
        self.norm_x, self.norm_h = nn.LayerNorm(4 * H), nn.LayerNorm(4 * H)
        self.norm_c = nn.LayerNorm(H)

    def forward(self, x: Tensor, states: Any = None) -> Any:  # type: ignore[override]
        zero = x.new_zeros(1, x.shape[1], H)
        h, c = (s[0] for s in states or (zero, zero))
        out = []
        for x_t in x:
            a = self.norm_x(nn.functional.linear(x_t, self.w_x))
            a = a + self.norm_h(nn.functional.linear(h, self.w_h))
            gate = dict(zip(self.order, a.chunk(4, -1), strict=True))
            c = gate["f"].sigmoid() * c + gate["i"].sigmoid() * gate["g"].tanh()
            h = gate["o"].sigmoid() * self.norm_c(c).tanh()
            out.append(h)
        return torch.stack(out), (h[None], c[None])


def test_weights_of_torch_need_the_order_of_torch() -> None:
    right = check_norm_layer(OtherOrder("ifgo"), kind="lstm", quiet=True)
    other = check_norm_layer(OtherOrder("ifog"), kind="lstm", quiet=True)
    assert "order of gates" not in right.others
    assert "order of gates" in other.others
    reasons = " ".join(f.reason for f in other.findings)
    assert "in the order i, f, o, g; torch" in reasons


@pytest.mark.parametrize(
    ("opened", "verdict"), [(0, "other"), (1, "wrong"), (2, "right"), (3, "other")]
)
def test_a_forget_bias_at_another_gate_is_named(opened: int, verdict: str) -> None:
    layer = OtherOrder("igfo")
    with torch.no_grad():
        layer.norm_h.bias[opened * H : (opened + 1) * H] = 1.0
    report = check_norm_layer(
        layer, kind="lstm", allow=["order of gates", gradients.USED], quiet=True
    )
    (step,) = (f for f in report.findings if f.name == recurrent.CELL)
    assert step.verdict == verdict
    name = "igfo"[opened]
    assert (f"the bias of {name} alone begins above 0" in step.reason) == (name != "f")


class OtherCell(OtherOrder):
    """Writes to c, and reads from it, by rules of its own."""

    def __init__(self, rule: Any) -> None:
        super().__init__("ifgo")
        self.rule = rule

    def forward(self, x: Tensor, states: Any = None) -> Any:  # type: ignore[override]
        zero = x.new_zeros(1, x.shape[1], H)
        h, c = (s[0] for s in states or (zero, zero))
        out = []
        for x_t in x:
            a = self.norm_x(nn.functional.linear(x_t, self.w_x))
            a = a + self.norm_h(nn.functional.linear(h, self.w_h))
            i, f, g, o = a.chunk(4, -1)
            c = f.sigmoid() * c + self.rule(i, g)
            h = o.sigmoid() * self.norm_c(c).tanh()
            out.append(h)
        return torch.stack(out), (h[None], c[None])


def test_what_is_written_to_c_is_named_or_told_to_be_of_another_cell() -> None:
    added = OtherCell(lambda i, g: i.sigmoid() + g.tanh())
    found = failures(added)
    assert "the input gate is added to tanh(g)" in found[recurrent.CELL]
    one = failures(OtherCell(lambda i, g: (1 + i).sigmoid() * g.tanh()))
    assert "1 is added to the input gate" in one[recurrent.CELL]
    strange = OtherCell(lambda i, g: i.sigmoid() * (g.tanh() - 0.3 * g.sin()))
    report = check_norm_layer(strange, kind="lstm", quiet=True)
    assert "another cell" in report.others
    assert not report.passed


def test_states_that_are_detached_are_named() -> None:
    class Detached(LayerNormLSTM):
        def forward(self, x: Any, states: Any = None) -> Any:
            zero = x.new_zeros(1, x.shape[1], H)
            h, c = states or (zero, zero)
            return super().forward(x, (h.detach(), c.detach()))

    found = others(Detached(D, H, has_redundant_biases=False))
    assert "No gradient reaches h_0 or c_0" in found[gradients.GRADIENTS]
