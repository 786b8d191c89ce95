"""What each bug changes for a user, shown without the checks.

    python benchmarks/second_hand/demonstrations.py

A demonstration returns what was seen and whether that is wrong. The controls are
compared with torch, or with another way to compute the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import layers as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Seen = tuple[str, bool]
DEMONSTRATIONS: dict[str, Callable[[nn.Module], Seen]] = {}


def of(name: str) -> Callable[[Callable[[nn.Module], Seen]], None]:
    """Register the demonstration of a case."""

    def register(function: Callable[[nn.Module], Seen]) -> None:
        DEMONSTRATIONS[name] = function

    return register


def far(a: Tensor, b: Tensor, factor: float = 1e-3) -> bool:
    """Say whether a differs from b by more than rounding."""
    return not torch.allclose(a, b, rtol=factor, atol=factor)


def gap(a: Tensor, b: Tensor) -> str:
    """Write the largest difference."""
    return f"differs by {float((a - b).detach().abs().max()):.2g}"


def settle(layer: nn.Module, batch: Callable[[], Tensor], steps: int = 100) -> None:
    """Train the running statistics."""
    layer.train()
    for _ in range(steps):
        layer(batch())


@of("bert layer norm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 7, 32).half()
    x[:, 5:] = 0  # padding
    y = layer.half()(x)
    return f"{int(y.isnan().sum())} NaN of {y.numel()}", bool(y.isnan().any())


@of("upcast rms norm")
def _(layer: nn.Module) -> Seen:
    y = layer.half()(torch.randn(4, 32).half())
    return f"half in, {y.dtype} out", y.dtype != torch.half


@of("inference rms norm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 32)
    before = x.clone()
    layer(x)
    return "the input " + gap(x, before), far(x, before)


@of("keras batch norm")
def _(layer: nn.Module) -> Seen:
    settle(layer, lambda: 0.03 * torch.randn(256, 6))
    x = 0.03 * torch.randn(256, 6)
    train, evaluation = layer(x), layer.eval()(x)
    ratio = float(evaluation.detach().std() / train.detach().std())
    return f"evaluation gives {ratio:.2f} of the size in training", ratio < 0.9


@of("my batch norm")
def _(layer: nn.Module) -> Seen:
    def depth() -> int:
        seen, todo = set(), [layer.running_mean.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.add(node)
                todo += [f for f, _ in node.next_functions]
        return len(seen)

    conv = nn.Conv2d(3, 6, 1)
    layer(conv(torch.randn(4, 3, 5, 5)))
    first = depth()
    settle(layer, lambda: conv(torch.randn(4, 3, 5, 5)), 9)
    return f"graph of {first} nodes, then {depth()}", depth() > 5 * first


@of("warm batch norm")
def _(layer: nn.Module) -> Seen:
    settle(layer, lambda: torch.randn(64, 6) + 2)
    fresh = type(layer)(6)
    fresh.load_state_dict(layer.state_dict())
    x = torch.randn(16, 6)
    layer(x)
    fresh(x)
    a, b = fresh.running_mean, layer.running_mean
    return "after loading, the mean " + gap(a, b), far(a, b)


@of("ghost batch norm")
def _(layer: nn.Module) -> Seen:
    settle(layer, lambda: 5 * torch.randn(64, 6) + 2)
    x = 5 * torch.randn(8, 6) + 2
    layer.eval()
    a, b = layer(x)[:1], layer(x[:1])
    return "one example alone " + gap(a, b), far(a, b)


@of("conditional batch norm")
def _(layer: nn.Module) -> Seen:
    x, emb = torch.randn(8, 6, 5, 5), torch.randn(1, 10).expand(8, 10)
    y = layer(x, emb)
    gain = (y.amax((0, 2, 3)) - y.amin((0, 2, 3))) / (
        layer.bn(x).amax((0, 2, 3)) - layer.bn(x).amin((0, 2, 3))
    )
    bias = y.mean((0, 2, 3))
    return "gain - 1 and bias: " + gap(gain - 1, bias), not far(gain - 1, bias)


def gains(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the outputs of a layer and of torch's instance norm, with gains."""
    torch_norm = nn.InstanceNorm2d(6, affine=True)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6) + 1.0)
        torch_norm.weight.copy_(torch.arange(6) + 1.0)
    x = torch.randn(4, 6, 5, 5)
    return layer(x), torch_norm(x)


@of("fast instance norm")
def _(layer: nn.Module) -> Seen:
    a, b = gains(layer)
    return gap(a, b), far(a, b)


@of("simple rms norm")
def _(layer: nn.Module) -> Seen:
    y = layer(torch.randn(8, 32)).detach()
    rms = float(y.square().mean().sqrt())
    return f"outputs have RMS {rms:.3g}", rms < 0.1


@of("overflow-safe rms norm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 32)
    x[2:] = 0
    y = layer(x)
    return f"{int(y.isnan().sum())} NaN from padding", bool(y.isnan().any())


@of("group norm of images")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 12, 5, 5) * torch.arange(1, 13)[:, None, None]
    a, b = layer(x), F.group_norm(x, 3)
    return gap(a, b), far(a, b)


@of("layer norm of images")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 6, 8, 8)
    a = layer(x)
    b = F.layer_norm(x.permute(0, 2, 3, 1), (6,)).permute(0, 3, 1, 2)
    return gap(a, b), far(a, b) and not far(a, b.transpose(2, 3))


@of("batch norm with mask")
def _(layer: nn.Module) -> Seen:
    settle(layer, lambda: 0.5 * torch.randn(64, 6) + 3)
    x = 0.5 * torch.randn(64, 6) + 3
    train, evaluation = layer(x), layer.eval()(x)
    return "evaluation " + gap(train, evaluation), far(train, evaluation, 0.5)


@of("tacotron batch norm")
def _(layer: nn.Module) -> Seen:
    settle(layer, lambda: torch.randn(16, 6, 4) + 3)
    layer(torch.randn(4, 6, 4) - 3)
    mean = float(layer.bn.running_mean.mean())
    return f"one odd batch of 101 makes the mean of 3 to {mean:.2f}", mean < 0


@of("semeniuta lstm")
def _(layer: nn.Module) -> Seen:
    norms = [m for m in layer.modules() if isinstance(m, nn.LayerNorm)]
    layer.eval()
    lstm = nn.LSTM(5, 8)
    state = {
        "weight_ih_l0": layer.i2h.weight,
        "weight_hh_l0": layer.h2h.weight,
        "bias_ih_l0": layer.i2h.bias,
        "bias_hh_l0": layer.h2h.bias,
    }
    lstm.load_state_dict(state)
    x = torch.randn(6, 3, 5)
    a, b = layer(x)[0], lstm(x)[0]
    return f"{len(norms)} norms; torch's LSTM " + gap(a, b), not far(a, b)


@of("bidirectional lstm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(6, 3, 5)
    other = x.clone()
    other[-1] += 1
    early = layer(x)[0][0, :, 8:], layer(other)[0][0, :, 8:]
    alone = L.run_cell(layer.backward_cell, x[-1:], L.zeros(x, 8))[0][0]
    first = layer(x)[0][0, :, 8:]
    return "step 0 has the last step alone: " + gap(*early), not far(first, alone)


@of("stateful lstm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(6, 3, 5)
    a, b = layer(x)[0], layer(x)[0]
    return "the second call " + gap(a, b), far(a, b)


@of("preprojected lstm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(6, 3, 5)
    other = x.clone()
    other[:, 1:] *= 10
    a, b = layer(x)[0][:, 0], layer(other)[0][:, 0]
    return "example 0, other neighbours: " + gap(a, b), far(a, b)


@of("deep lstm")
def _(layer: nn.Module) -> Seen:
    numbers = sum(p.numel() for p in layer.parameters())
    own = sum(sum(p.numel() for p in c.parameters()) for c in layer.cells)
    return f"{numbers} parameters instead of {own}", numbers < own


@of("late norm lstm")
def _(layer: nn.Module) -> Seen:
    y = layer(torch.randn(20, 8, 5))[0]
    top = float(y.detach().abs().max())
    return f"outputs up to {top:.2f}", top > 1


@of("truncated lstm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(8, 3, 5)
    whole = layer(x)[0]
    half, state = layer(x[:4])
    a = torch.cat([half, layer(x[4:], state)[0]])
    return "in two parts " + gap(a, whole), far(a, whole)


@of("generator")
def _(model: nn.Module) -> Seen:
    x = L.images()
    a, b = model.train()(x), model.eval()(x)
    scaled = model(2 * x + 1)  # instance norm takes brightness and contrast away
    inner = float((scaled - b).detach().abs().mean())
    return f"evaluation {gap(a, b)}; contrast changes it by {inner:.2g}", far(a, b, 0.1)


@of("captioner")
def _(model: nn.Module) -> Seen:
    x = L.regions()
    y = model.embed[0].train()(x)
    means = y.detach().mean((0, 1))
    order = torch.randperm(36)
    model.embed[0].weight.data.uniform_(0.5, 2)  # as after a training
    model.eval()
    a, b = model(x), model(x[:, order])
    text = f"features have means {float(means.min()):.2f} to {float(means.max()):.2f}"
    return text + "; another order of regions " + gap(a, b), far(a, b, 1e-2)


@of("tabular net")
def _(model: nn.Module) -> Seen:
    x = L.table(256)
    a, b = model.train()(x), model.eval()(x)
    error = float((a - b).detach().std() / a.detach().std())
    return f"evaluation is off by {error:.2f} of the spread", error > 0.1


def same(a: Tensor, b: Tensor) -> Seen:
    """Return that a control is right."""
    return gap(a, b), not far(a, b, 1e-5)


@of("t5 layer norm")
def _(layer: nn.Module) -> Seen:
    x = 300 * torch.randn(4, 32)
    half = layer.half()(x.half())
    close = not far(half.float(), F.rms_norm(x, (32,)), 1e-2)
    text, right = same(layer.float()(x), F.rms_norm(x, (32,)))
    return text, right and close and half.dtype == torch.half


@of("cumulative batch norm")
def _(layer: nn.Module) -> Seen:
    other = nn.BatchNorm1d(6, momentum=None)
    for _ in range(3):
        x = 2 * torch.randn(8, 6) + 1
        if far(layer(x), other(x), 1e-5):
            return "training", False
    return same(layer.eval()(x), other.eval()(x))


@of("channels-last group norm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 5, 7, 12) + torch.arange(12)
    b = F.group_norm(x.permute(0, 3, 1, 2), 3).permute(0, 2, 3, 1)
    return same(layer(x), b)


@of("double layer norm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 32) + 3
    return same(layer(x), F.layer_norm(x, (32,)))


@of("batched instance norm")
def _(layer: nn.Module) -> Seen:
    return same(*gains(layer))


@of("positive batch norm")
def _(layer: nn.Module) -> Seen:
    x, other = torch.randn(4, 6, 5, 5), nn.BatchNorm2d(6)
    with torch.no_grad():
        layer.log_gain.uniform_()
        other.weight.copy_(layer.log_gain.exp())
    return same(layer(x), other(x))


@of("adaptive layer norm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(4, 7, 32)
    return same(layer(x, torch.randn(4, 10)), F.layer_norm(x, (32,), eps=1e-6))


@of("split lstm")
def _(layer: nn.Module) -> Seen:
    cell = L.LNLSTMCell(5, 8)
    with torch.no_grad():
        cell.ih.weight.copy_(torch.cat([w.weight for w in layer.w.values()]))
        cell.hh.weight.copy_(torch.cat([u.weight for u in layer.u.values()]))
    x = torch.randn(6, 3, 5)
    return same(layer(x)[0], L.run_cell(cell, x, L.zeros(x, 8))[0])


@of("deep bidirectional lstm")
def _(layer: nn.Module) -> Seen:
    x = torch.randn(3, 6, 5)
    one = torch.cat([layer(e[None])[0] for e in x])
    lower = copy.deepcopy(layer)
    lower.num_layers = 1
    first_step = x[:, -1:].transpose(0, 1)  # of the backward direction
    alone = L.run_cell(layer.cells[1], first_step, L.zeros(first_step, 8))[0][0]
    text, right = same(layer(x)[0], one)
    return text, right and not far(lower(x)[0][:, -1, 8:], alone, 1e-5)


@of("siamese")
def _(model: nn.Module) -> Seen:
    a, b = L.pairs(64)
    train, evaluation = model.train()(a, b), model.eval()(a, b)
    ratio = float(evaluation.detach().mean() / train.detach().mean())
    return f"evaluation gives {ratio:.2f} of training", 0.9 < ratio < 1.1


def main() -> None:
    """Show all of them, and fail if one shows nothing."""
    failed = []
    for case in [*L.BUGS, *L.CONTROLS]:
        torch.manual_seed(0)
        text, shown = DEMONSTRATIONS[case.name](case.make())
        print(f"{'ok ' if shown else 'NOT'} {case.name}: {text}")
        if not shown:
            failed.append(case.name)
    if failed:
        raise SystemExit(f"not shown: {', '.join(failed)}")


if __name__ == "__main__":
    main()
