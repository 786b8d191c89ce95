"""Recurrent batch norm: against a loop over padded steps, formulas and differences."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_pairs import (
    EXACT,
    assert_equal,
    copy_of,
    distance,
    draw,
    each_mode,
    through_a_file,
)
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.native import NATIVE

T, N, D, H = 6, 5, 3, 2
LENGTHS = [3, 6, 2, 5, 6]  # at the last step two are alive
LONG = [3, 6, 2, 4, 5]  # from step 5 on one


@pytest.fixture(autouse=True, params=["0", "1"], ids=["formulas", "compiled"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by the formulas and, where numba is installed, in the compiled loop."""
    if request.param == "1":
        pytest.importorskip("numba")
    monkeypatch.setenv(NATIVE, request.param)


each_way = pytest.mark.parametrize("both_ways", [False, True], ids=["one", "both"])


def make(both_ways: bool = False, **options: Any) -> Any:
    """Make a layer with random parameters and statistics; two rows are untrained."""
    options = {"dtype": torch.float64} | options
    layer = BatchNormLSTM(D, H, T, bidirectional=both_ways, **options)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, value in layer.state_dict().items():
            if value.is_floating_point():
                low = 0.5 if "norm" in name else -1
                value.uniform_(low, 1, generator=generator)
            else:
                value[:4] = torch.arange(1, 5)
    return layer


def states(layer: BatchNormLSTM, seed: int = 5) -> tuple[Tensor, Tensor]:
    ways = 2 if layer.bidirectional else 1
    h_0, c_0 = (draw(ways, N, H, seed=seed + k) / 9 for k in range(2))
    return h_0, c_0


def packed(x: Tensor, lengths: list[int] = LENGTHS) -> Any:
    return pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)


def turned(x: Tensor, lengths: list[int]) -> Tensor:
    """Turn each sequence around, and leave its padding behind it."""
    columns = [torch.cat([x[:n, k].flip(0), x[n:, k]]) for k, n in enumerate(lengths)]
    return torch.stack(columns, 1)


def plain(layer: Any, x: Tensor, hx: Any, lengths: list[int], suffix: str) -> Any:
    """Loop over padded steps, each norm called as a layer with a mask."""
    names = "w_x", "w_h", "b", "norm_h", "norm_x", "norm_c"
    w_x, w_h, b, norm_h, norm_x, norm_c = (getattr(layer, n + suffix) for n in names)
    (h, c), hs = hx, []
    for t in range(max(lengths)):
        mask = torch.tensor(lengths) > t
        a = norm_h(h @ w_h.T, t, mask) + norm_x(x[t] @ w_x.T, t, mask) + b
        f, i, o, g = a.split(H, 1)
        c_t = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h_t = o.sigmoid() * norm_c(c_t, t, mask).tanh()
        h, c = (
            torch.where(mask[:, None], new, old) for new, old in ((h_t, h), (c_t, c))
        )
        hs.append(torch.where(mask[:, None], h, 0.0))
    return torch.stack(hs), h, c


def by_loop(layer: Any, x: Tensor, hx: Any, lengths: list[int]) -> list[Tensor]:
    """Return output, h_n and c_n of the plain loop, in each direction."""
    h_0, c_0 = hx
    found = [plain(layer, x, (h_0[0], c_0[0]), lengths, "_l0")]
    if layer.bidirectional:
        around = turned(x, lengths)
        h, *last = plain(layer, around, (h_0[1], c_0[1]), lengths, "_l0_reverse")
        found.append((turned(h, lengths), *last))
    hs, h_n, c_n = zip(*found, strict=True)
    return [torch.cat(hs, 2), torch.stack(h_n), torch.stack(c_n)]


def by_layer(layer: Any, x: Tensor, hx: Any, lengths: list[int]) -> list[Tensor]:
    output, (h_n, c_n) = layer(packed(x, lengths), hx)
    return [pad_packed_sequence(output)[0], h_n, c_n]


def all_of(run: Any, layer: Any, lengths: list[int]) -> dict[str, Tensor]:
    """Return values, gradients and statistics after one call."""
    leaves = [v.requires_grad_() for v in (draw(max(lengths), N, D), *states(layer))]
    values = run(layer, leaves[0], leaves[1:], lengths)
    losses = [(v * draw(*v.shape, seed=k)).sum() for k, v in enumerate(values, 20)]
    torch.autograd.backward(losses)
    found = dict(zip(("h", "h_n", "c_n"), values, strict=True))
    found |= {f"d{k}": leaf.grad for k, leaf in enumerate(leaves)}
    found |= {f"d{name}": p.grad for name, p in layer.named_parameters()}
    return found | dict(layer.named_buffers())


@each_mode
@each_way
@pytest.mark.parametrize("lengths", [[T] * N, LENGTHS, LONG], ids=["all", "2", "1"])
@pytest.mark.parametrize("momentum", [0.3, None])
def test_values_gradients_and_statistics_are_those_of_a_loop_over_the_norms(
    momentum: float | None, lengths: list[int], both_ways: bool, is_training: bool
) -> None:
    found, expected = (
        all_of(run, make(both_ways, momentum=momentum).train(is_training), lengths)
        for run in (by_layer, by_loop)
    )
    assert_equal(found, expected, EXACT)


def hat(x: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.sum(0) / len(x)
    return centred / (centred.square().sum(0) / len(x) + eps).sqrt()


def test_a_step_follows_the_formulas() -> None:
    layer, x = make(), draw(1, N, D)
    h_0, c_0 = (state[0] for state in states(layer))
    a = layer.norm_h_l0.weight * hat(h_0 @ layer.w_h_l0.T) + layer.b_l0
    a = a + layer.norm_x_l0.weight * hat(x[0] @ layer.w_x_l0.T)
    f, i, o = (1 / (1 + (-a[:, k * H : (k + 1) * H]).exp()) for k in range(3))
    c = f * c_0 + i * a[:, 3 * H :].tanh()
    h = o * (layer.norm_c_l0.weight * hat(c) + layer.norm_c_l0.bias).tanh()
    output, (h_n, c_n) = layer(x, states(layer))
    for found, expected in ((output, h), (h_n, h), (c_n, c)):
        assert distance(found[0], expected) < EXACT


@each_way
def test_evaluation_equals_training_but_for_the_unbiased_factor(
    both_ways: bool,
) -> None:
    layer, x = make(both_ways, momentum=None), packed(draw(T, N, D))
    layer.reset_parameters()  # gives up the statistics too
    y = layer(x)[0].data
    assert distance(layer.eval()(x)[0].data, y) > 1e-4
    n = x.batch_sizes[:, None].double()
    for name, buffer in layer.named_buffers():
        if name.endswith("running_var"):
            buffer *= (n - 1) / n
    assert distance(layer(x)[0].data, y) < EXACT


@each_way
def test_sequences_of_one_length_need_no_packing(both_ways: bool) -> None:
    x, layers = draw(T, N, D), [make(both_ways) for _ in range(2)]
    output, last = layers[0](x, states(layers[0]))
    expected = by_layer(layers[1], x, states(layers[1]), [T] * N)
    for a, b in zip((output, *last), expected, strict=True):
        assert distance(a, b) < EXACT
    assert_equal(layers[0].state_dict(), layers[1].state_dict(), EXACT)


@each_way
def test_batch_first_moves_the_axes_of_input_and_output_alone(both_ways: bool) -> None:
    x, hx = draw(T, N, D), states(make(both_ways))
    output, last = make(both_ways)(x, hx)
    other, other_last = make(both_ways, batch_first=True)(x.transpose(0, 1), hx)
    assert torch.equal(other, output.transpose(0, 1))
    assert all(map(torch.equal, other_last, last))


def test_a_batch_packed_in_order_gives_what_one_packed_in_any_order_gives() -> None:
    order = torch.tensor(LENGTHS).argsort(descending=True, stable=True)
    x, hx = draw(T, N, D), states(make())
    lengths = torch.tensor(LENGTHS)[order]
    sorted_x = pack_padded_sequence(x[:, order], lengths)  # knows of no other order
    y, (h_n, _) = make()(sorted_x, (hx[0][:, order], hx[1][:, order]))
    expected, (h_last, _) = make()(packed(x), hx)
    assert y.sorted_indices is None
    assert torch.equal(y.data, expected.data)
    assert torch.equal(h_n, h_last[:, order])


def test_a_packed_output_carries_the_packing_of_its_input() -> None:
    x = packed(draw(T, N, D))
    y, _ = make()(x)
    assert isinstance(y, PackedSequence)
    assert y.data.shape == (sum(LENGTHS), H)
    for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(y, name), getattr(x, name))


def test_states_left_out_are_0() -> None:
    x = draw(T, N, D)
    zeros = torch.zeros(1, N, H, dtype=torch.float64)
    assert torch.equal(make()(x)[0], make()(x, (zeros, zeros))[0])


def test_without_h_0_its_gradient_is_divided_by_the_root_of_eps() -> None:
    slopes: list[Any] = []
    for eps in (1e-5, 4e-5):
        layer = make(eps=eps)
        h_0, c_0 = (state.mul(0).requires_grad_() for state in states(layer))
        output, _ = layer(draw(1, N, D), (h_0, c_0))
        (output * draw(*output.shape, seed=1)).sum().backward()
        slopes.append(h_0.grad)
    # The other norms feel eps too, by some 1e-5.
    assert distance(slopes[0], 2 * slopes[1]) < 1e-3


@each_way
def test_evaluation_goes_on_beyond_max_steps(both_ways: bool) -> None:
    layer, x, hx = make(both_ways).eval(), draw(T + 3, N, D), states(make(both_ways))
    lengths = [T + 3, 2, T + 2, 4, T + 3]
    found, expected = (run(layer, x, hx, lengths) for run in (by_layer, by_loop))
    for a, b in zip(found, expected, strict=True):
        assert distance(a, b) < EXACT


def test_a_new_layer_has_gains_of_a_tenth_and_no_other_statistics_than_the_start() -> (
    None
):
    layer = make()
    layer.reset_parameters()
    for name in ("norm_h_l0", "norm_x_l0", "norm_c_l0"):
        norm = getattr(layer, name)
        assert (norm.weight == 0.1).all()
        assert norm.num_batches_tracked.tolist() == [0] * T
        assert (norm.running_mean == 0).all()
    for name in ("w_x_l0", "w_h_l0", "b_l0"):
        assert 0 < getattr(layer, name).abs().max() <= H**-0.5


@each_way
def test_parameters_and_buffers_have_these_names(both_ways: bool) -> None:
    rows = ["running_mean", "running_var", "num_batches_tracked"]
    names = ["w_x_{}", "w_h_{}", "b_{}", "norm_c_{}.bias"]
    for norm in ("norm_h_{}", "norm_x_{}", "norm_c_{}"):
        names += [f"{norm}.{key}" for key in ("weight", *rows)]
    ways = ["l0", "l0_reverse"] if both_ways else ["l0"]
    expected = {name.format(way) for name in names for way in ways}
    assert set(make(both_ways).state_dict()) == expected


@each_way
def test_a_state_dict_carries_everything(both_ways: bool) -> None:
    layer, x = make(both_ways), draw(T, N, D)
    layer(packed(x))
    other = through_a_file(layer)
    assert torch.equal(other.eval()(x)[0], layer.eval()(x)[0])


def test_a_frozen_norm_goes_by_its_running_statistics_and_keeps_them() -> None:
    layer, x, hx = make(), draw(T, N, D), states(make())
    layer.norm_c_l0.eval()
    before = copy_of(layer.norm_c_l0.state_dict())
    expected = by_loop(copy.deepcopy(layer), x, hx, LENGTHS)
    assert distance(by_layer(layer, x, hx, LENGTHS)[0], expected[0]) < EXACT
    assert_equal(layer.norm_c_l0.state_dict(), before, 0.0)


@each_mode
def test_a_batch_without_examples_gives_none(is_training: bool) -> None:
    layer = make(True).train(is_training)
    before = copy_of(layer.state_dict())
    output, (h_n, c_n) = layer(draw(T, 0, D))
    assert output.shape == (T, 0, 2 * H)
    assert h_n.shape == c_n.shape == (2, 0, H)
    assert_equal(layer.state_dict(), before, 0.0)


def test_it_says_what_it_is() -> None:
    text = "BatchNormLSTM(\n  3, 2, max_steps=6, bidirectional=True\n"
    assert repr(make(True)).startswith(text)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"momentum": 2.0}, r"momentum must lie in 0\.\.1"),
        ({"momentum": "much"}, "momentum must be a number, got 'much'"),
        ({}, "1 live example"),
    ],
)
def test_a_call_that_cannot_be_trained_on_leaves_no_trace(
    change: dict[str, Any], match: str
) -> None:
    layer = make(True, **change)
    layer.reset_parameters()
    before, x = copy_of(layer.state_dict()), draw(T, N, D)
    with pytest.raises((TypeError, ValueError), match=match):
        layer(x if change else x[:, :1])
    assert_equal(layer.state_dict(), before, 0.0)
