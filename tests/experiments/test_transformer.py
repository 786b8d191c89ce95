"""The transformer that adds."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import small
import torch
from small import CPU, EXACT, curves, medians, same
from torch import Tensor, nn

from normbook.experiments import transformer
from normbook.experiments.transformer import (
    EQUALS,
    NORMS,
    PLUS,
    Block,
    Transformer,
    additions,
    gradient_norms,
    warmed_up,
)
from normbook.lab import runner
from normbook.lab.record import Record
from normbook.layers.layer_norm import LayerNorm, RMSNorm

every_norm = pytest.mark.parametrize("norm", NORMS)


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(norm: str, seed: int = 0) -> Transformer:
    """Width 6 in two heads, three blocks, up to 8 symbols; float64."""
    return Transformer(
        norm, depth=3, width=6, heads=2, steps=8, generator=drawn(seed)
    ).double()


def some_sums(count: int = 5) -> transformer.Additions:
    """Sums of two digits."""
    a, b = torch.randint(100, (2, count), generator=drawn(1))
    return additions(a, b, digits=2)


begun = partial(small.begun, "transformer")


# --- the network


def torchs(block: Block, norm: str) -> nn.TransformerEncoderLayer:
    """torch's block with the same weights and norms."""
    width = block.mix.in_features
    layer = nn.TransformerEncoderLayer(
        width, block.heads, 4 * width, dropout=0, batch_first=True,
        norm_first=norm.startswith("pre"), dtype=torch.float64,
    )  # fmt: skip
    parts = (block.query, block.key, block.value)
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
    layer.self_attn.out_proj, layer.linear1, layer.linear2 = (  # type: ignore[assignment]
        copy.deepcopy(part) for part in (block.mix, block.up, block.down)
    )
    of_torch: dict[type, Any] = {LayerNorm: nn.LayerNorm, RMSNorm: nn.RMSNorm}
    for name, own in (("1", block.attention_norm), ("2", block.feed_forward_norm)):
        if type(own) in of_torch:
            theirs = of_torch[type(own)](width, eps=1e-5, dtype=torch.float64)
            theirs.load_state_dict(own.state_dict())
        setattr(layer, f"norm{name}", nn.Identity() if norm == "none" else theirs)
    return layer


@every_norm
def test_a_block_is_that_of_torch(norm: str) -> None:
    block = Block(norm, width=6, heads=2, generator=drawn()).double()
    for parameter in block.parameters():  # biases and gains too
        nn.init.normal_(parameter, generator=drawn(len(parameter)))
    layer = torchs(block, norm)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    x, dl_dy = torch.randn(2, 3, 5, 6, dtype=torch.float64, generator=drawn(1))
    found = []
    computes: list[Any] = [block, partial(layer, src_mask=mask, is_causal=True)]
    for compute in computes:
        own = x.clone().requires_grad_()
        y = compute(own)
        y.backward(dl_dy)
        assert own.grad is not None
        found.append((y.detach(), own.grad))
    for actual, expected in zip(*found, strict=True):
        same(actual, expected)


@every_norm
def test_a_symbol_acts_on_no_position_before_it(norm: str) -> None:
    model, x = network(norm), some_sums().x
    for place in range(x.shape[1]):
        other = x.clone()
        other[:, place] = (other[:, place] + 1) % 12
        moved = (model(other) - model(x)).abs().amax((0, 2)).detach()
        assert not moved[:place].any()
        assert (moved[place:] > 0).all()


@every_norm
def test_only_pre_ln_normalizes_once_more_before_the_read_out(norm: str) -> None:
    model, x = network(norm), some_sums().x
    states = model.blocks(model.symbols[x] + model.positions[: x.shape[1]])
    expected = NORMS[norm](6).double()(states) if norm.startswith("pre") else states
    same(model(x), model.scores(expected))


@every_norm
def test_the_norms_are_those_of_this_book(norm: str) -> None:
    kinds = {type(m) for m in network(norm).modules()} & {LayerNorm, RMSNorm}
    assert kinds == {
        "none": set(), "post": {LayerNorm}, "pre": {LayerNorm},
        "post_rms": {RMSNorm}, "pre_rms": {RMSNorm},
    }[norm]  # fmt: skip


@every_norm
def test_every_parameter_but_the_biases_of_keys_has_a_gradient(norm: str) -> None:
    model, sums = network(norm), some_sums(60)
    transformer.objective(model, *sums)["loss"].backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        # A number added to all scores of a query changes no weight.
        is_moved = float(parameter.grad.abs().max()) > EXACT
        assert is_moved != name.endswith("key.bias"), name


def test_matrices_are_uniform_after_glorot_and_symbols_normal() -> None:
    model = Transformer("pre", depth=1, width=80, heads=4, steps=50, generator=drawn())
    block: Any = model.blocks[0]
    for layer, ends in ((block.query, 160), (block.up, 400), (block.down, 400)):
        bound = (6 / ends) ** 0.5
        assert float(layer.weight.detach().abs().max()) == pytest.approx(
            bound, rel=0.01
        )
        assert not layer.bias.any()
    assert float(model.positions.detach().std()) == pytest.approx(
        1, abs=0.05
    )  # 4000 numbers


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a multiple of heads = 4, got 6; every head"):
        Block("pre", width=6, heads=4, generator=drawn())


# --- the task


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_targets_are_the_right_sums(digits: int) -> None:
    a, b = torch.randint(10**digits, (2, 31), generator=drawn())
    for i, (x, y) in enumerate(zip(*additions(a, b, digits), strict=True)):
        text = "".join("0123456789+="[symbol] for symbol in x.tolist())
        total = "".join(map(str, y.tolist()))
        question, _, begun = text.partition("=")
        assert question == f"{a[i]:0{digits}d}+{b[i]:0{digits}d}"
        assert begun == total[:-1]
        assert int(total[::-1]) == a[i] + b[i]


def test_no_sum_of_the_test_is_trained_on_and_all_others_may_be() -> None:
    run = begun("post, rate=0.01, warmup=0")
    trained = {tuple(x[:4]) for x in run.batches.x.tolist()}
    assert len(trained) == 80
    pairs = {(a, PLUS, b, EQUALS) for a in range(10) for b in range(10)}
    assert trained < pairs


def test_the_objective_looks_at_the_digits_of_the_sum_only() -> None:
    model, (x, y) = network("pre"), some_sums(9)
    found = transformer.objective(model, x, y)
    scores = model(x).detach().numpy()
    p = np.exp(scores) / np.exp(scores).sum(2, keepdims=True)
    # The digit that follows "=" is the first one of the sum.
    rows, places = np.arange(9)[:, None], np.arange(5, 8)
    assert (x[:, 5] == EQUALS).all()
    right = p.argmax(2)[:, 5:] == y.numpy()
    by_hand = -np.log(p[rows, places, y.numpy()]).mean()
    assert found["loss"].item() == pytest.approx(by_hand, rel=1e-12)
    assert float(found["digits"]) == pytest.approx(right.mean())
    assert float(found["accuracy"]) == pytest.approx(right.all(1).mean())


# --- the learning rate


def test_the_rate_grows_in_equal_steps_and_stays() -> None:
    rates = [warmed_up(step, 0.5, warmup=5) for step in range(9)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, *[0.5] * 5], rel=1e-15)
    assert [warmed_up(step, 0.5, warmup=0) for step in range(3)] == [0.5] * 3


@pytest.mark.parametrize(("warmup", "part"), [(0, 1.0), (4, 0.25)])
def test_the_first_update_of_adam_is_as_long_as_the_rate(
    warmup: int, part: float
) -> None:
    run = begun(f"post, rate=0.02, warmup={warmup}")
    before = run.model.get_parameter("scores.weight").detach().clone()
    run.update()
    moved = (run.model.get_parameter("scores.weight") - before).detach().abs()
    expected = torch.full_like(moved, 0.02 * part)
    # Adam divides by |g| + 1e-8.
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=0)


def test_each_update_takes_the_rate_of_its_step() -> None:
    run = begun("pre, rate=0.04, warmup=4")
    rates = []
    for _ in range(6):
        run.update()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates == [0.01, 0.02, 0.03, 0.04, 0.04, 0.04]


# --- the runs


def test_variants_differ_after_one_update(record: Record) -> None:
    after = {tuple(run.opening[1:3]) for run in record.runs if run.seed == 0}
    assert len(after) == len(record.variants) == 16


def test_seeds_differ_in_weights_and_sums() -> None:
    one, other = (begun("pre, rate=0.02, warmup=0", seed=seed) for seed in (0, 1))
    assert not torch.equal(one.batches.x, other.batches.x)
    weights = (run.model.get_parameter("symbols") for run in (one, other))
    assert not torch.equal(*weights)


@every_norm
def test_gradient_norms_are_those_of_the_second_matrix_of_each_block(norm: str) -> None:
    model, sums = network(norm), some_sums(60)

    def loss(model: nn.Module) -> Tensor:
        return transformer.objective(model, *sums)["loss"]

    found = gradient_norms(model, loss)
    assert all(p.grad is None for p in model.parameters())
    loss(model).backward()  # type: ignore[no-untyped-call]
    blocks: Any = model.blocks
    expected = [float(np.linalg.norm(b.down.weight.grad.numpy())) for b in blocks]
    np.testing.assert_allclose(found, expected, rtol=EXACT)


def test_blocks_are_measured_on_the_batch_of_the_next_update() -> None:
    run = begun("post, rate=0.02, warmup=0")
    before = run.model.get_parameter("blocks.1.down.weight").detach().clone()
    run.update()
    found = run.measurements["blocks"].measure(run)
    model: Any = run.model
    norms = gradient_norms(model, run.loss)
    assert found["gradient_norm"] == norms.tolist()
    after = model.get_parameter("blocks.1.down.weight").detach()
    moved: Any = found["moved"]
    assert moved[1] == pytest.approx(float((after - before).norm() / before.norm()))


def test_what_is_tested_are_the_sums_held_out() -> None:
    run = begun("post, rate=0.02, warmup=0")
    found = run.measurements["test"].measure(run)
    trained = {tuple(x[:4]) for x in run.batches.x.tolist()}
    left = [
        (a, b) for a in range(10) for b in range(10)
        if (a, PLUS, b, EQUALS) not in trained
    ]  # fmt: skip
    a, b = torch.tensor(left).T
    sums = additions(a, b, digits=1)
    expected = transformer.objective(run.model, *sums)["loss"].item()
    assert len(left) == 20
    assert found["loss"] == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("norm", ["post", "post_rms", "pre", "pre_rms"])
def test_the_network_learns_to_add(norm: str) -> None:
    live = transformer.EXPERIMENT.scales["live"].settings
    settings = {**live, "norm": norm, "learning_rate": 3e-3, "warmup": 0, "depth": 2}
    run = transformer.begin(settings, 0, None, CPU)
    losses = [run.update() for _ in range(150)]
    assert np.mean(losses[-8:]) < 0.1 * np.mean(losses[:8])


@pytest.mark.parametrize("scale", ["live", "cpu", "full"])
def test_there_are_as_many_sums_as_a_scale_takes(scale: str) -> None:
    settings = transformer.EXPERIMENT.scales[scale].settings
    assert settings["examples"] + settings["tested"] <= 100 ** settings["digits"]
    warmups = {own["warmup"] for own in settings["variants"].values()}
    assert 0 in warmups
    assert max(warmups) < settings["steps"] / 2


# --- the figures


COLUMNS = [("post", 0), ("post", 4), ("pre", 0), ("pre", 4)]
RATES = ("0.01", "0.02", "0.04")


def test_training_has_a_row_for_each_rate(record: Record) -> None:
    axes = transformer.figures(record)["training"].axes
    assert len(axes) == 12
    for k, ax in enumerate(axes):
        (place, warmup), rate = COLUMNS[k % 4], RATES[k // 4]
        variants = {"layer": f"{place}, rate={rate}, warmup={warmup}"}
        if rate == "0.02":
            variants["other"] = f"{place}_rms, rate={rate}, warmup={warmup}"
        runs = {k: record.values(v, "training", "loss") for k, v in variants.items()}
        assert curves(ax) == medians(runs)


def test_accuracy_is_that_of_the_last_test_by_rate(record: Record) -> None:
    for (place, warmup), ax in zip(
        COLUMNS, transformer.figures(record)["accuracy"].axes, strict=True
    ):
        variants = [f"{place}, rate={rate}, warmup={warmup}" for rate in RATES]
        last = [record.values(v, "test", "accuracy")[:, -1] for v in variants]
        assert curves(ax) == medians({"layer": np.transpose(last)})


def test_blocks_are_those_of_the_rate_in_the_middle(record: Record) -> None:
    axes = transformer.figures(record)["blocks"].axes
    rows = [("gradient_norm", 0), ("gradient_norm", 1), ("moved", 1)]
    assert len(axes) == 12
    for k, ax in enumerate(axes):
        (place, warmup), (quantity, when) = COLUMNS[k % 4], rows[k // 4]
        runs = {
            kind: record.values(
                f"{norm}, rate=0.02, warmup={warmup}", "blocks", quantity
            )[:, when]
            for kind, norm in (("layer", place), ("other", f"{place}_rms"))
        }
        assert curves(ax) == medians(runs)


def test_columns_say_where_the_norm_stands_and_whether_the_rate_grows(
    record: Record,
) -> None:
    for name in ("training", "accuracy", "blocks"):
        labels = [ax.get_xlabel() for ax in transformer.figures(record)[name].axes[-4:]]
        assert [label.split("\n\n")[1] for label in labels] == [
            "post-LN,\nno warm-up", "post-LN,\nwarm-up 4",
            "pre-LN,\nno warm-up", "pre-LN,\nwarm-up 4",
        ]  # fmt: skip


def test_with_one_rate_there_is_nothing_to_draw_against_it() -> None:
    variants = transformer._grid([0.02], warmup=4, has_rms=False)
    experiment = small.experiment("transformer", variants=variants)
    record = runner.run(experiment, "live", seeds=[0])
    assert transformer.figures(record).keys() == {"training", "blocks"}
