"""Right answers to exercises, beside what the texts describe: built, counted, summed.

No closed formula of an answer stands here. Where a mean is asked for, it is a sum over
all cases or over a fine grid, never over draws, so that a small change is seen, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import functional
from torch.utils.flop_counter import FlopCounterMode

from normbook import exercises
from normbook.diagnostics.smoothness import along_gradient
from normbook.exercises.answers import Function, Numbers, Sizes
from normbook.layers.conditional_norm import AdaptiveLayerNorm

DOUBLE: Any = {"dtype": torch.float64}
jacobian: Any = functional.jacobian
hessian: Any = functional.hessian
Z = np.linspace(-12, 12, 200_001)  # a fine grid


def right(name: str, *values: Any) -> Any:
    answer = exercises._EXERCISES[name].answer
    assert isinstance(answer, Function | Numbers | Sizes)
    if not isinstance(answer, Function):
        return answer.right
    return answer.right(*(v.numpy() if torch.is_tensor(v) else v for v in values))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    rand = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rand, **DOUBLE)


def hat(x: Tensor, axes: Any = 0, eps: float = 0.0) -> Tensor:
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(var + eps)


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, dl_dy: Any = None) -> Tensor:
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(f(x), x, dl_dy)[0]


def normal(x: Any, mean: float = 0.0, deviation: float = 1.0) -> Any:
    return np.exp(-(((x - mean) / deviation) ** 2) / 2) / deviation / (2 * np.pi) ** 0.5


def running(start: float, values: Iterable[float], momentum: float) -> float:
    for value in values:
        start = (1 - momentum) * start + momentum * value
    return start


def test_gains_and_variances_keep_the_mean_square() -> None:
    for c in (0.0, 0.1, 0.7):
        y = right("why-leaky", c) * Z
        passed = np.where(y > 0, y, c * y)
        assert np.isclose(np.average(passed**2, weights=normal(Z)), 1)
    up, down = right("why-fan")
    signs = drawn(50, 200).sign()
    h, delta = (n**0.5 * torch.eye(n, **DOUBLE) for n in (200, 50))  # mean square 1
    for var, y in ((up, signs @ h), (down, signs.T @ delta)):
        assert np.isclose((var * y**2).mean(), 1)


def test_steps_to_a_hundredth_for_sixty_offsets_and_for_white_inputs() -> None:
    # Of both signs in each feature: uncorrelated, with variance 1; then mean 1, a bias.
    x = 60**0.5 * np.vstack([np.eye(60), -np.eye(60)]) + 1
    x = np.column_stack([x, np.ones(120)])
    H = x.T @ x / 120
    lowest, *_, highest = np.linalg.eigvalsh(H)
    left = np.linalg.norm(np.eye(61) - 2 / (lowest + highest) * H, 2)
    assert np.isclose(left ** right("why-offset"), 0.01, rtol=1e-9)
    x = (drawn(50, 4) @ drawn(4, 4, seed=1)).numpy()
    lam, V = np.linalg.eigh(np.cov(x, rowvar=False, bias=True))
    white, t, w = (x - x.mean(0)) @ V / lam**0.5, drawn(50).numpy(), np.zeros(4)
    best, steps = np.linalg.lstsq(white, t)[0], 0
    while not np.allclose(w, best):
        w, steps = w - white.T @ (white @ w - t) / 50, steps + 1
    assert right("why-whiten") == steps


def test_how_far_a_value_stands_out_and_where_epsilon_stands() -> None:
    for n in (2, 3, 10):
        assert hat(drawn(n, 10_000)).max() <= right("bn-bound", n) + 1e-9
        outlier = 1e6 * torch.eye(n, **DOUBLE)[0]
        assert np.isclose(hat(outlier).max(), right("bn-bound", n))
    x = drawn(16)
    x[0] = 1e9
    assert np.allclose(hat(x)[:2], right("bng-outlier"))
    z = 0.001 * hat(drawn(9))
    outside = z / (z.std(correction=0) + 1e-5)
    squares = [(y**2).mean() for y in (hat(z, eps=1e-5), outside)]
    assert np.allclose(squares, right("bn-bug-eps"))


def test_batch_sizes_that_leave_a_single_image() -> None:
    last = {size: len(range(1437)[1436 // size * size :]) for size in range(2, 1438)}
    assert right("bn-last") == {size for size in last if last[size] == 1}


def test_gradients_of_batch_norm_are_those_of_autograd() -> None:
    (x, dl_dy), gamma, beta = drawn(2, 8, 3), drawn(3, seed=1), drawn(3, seed=2)
    m, v, gain = torch.tensor([[0.3], [0.7], [1.7]], **DOUBLE)
    x_1, dl_dy_1 = x[:, :1], dl_dy[:, :1]
    found = gradient(lambda x: F.batch_norm(x, m, v, gain, eps=0.1), x_1, dl_dy_1)
    assert np.allclose(right("bng-inference", dl_dy_1, 1.7, 0.7, 0.1), found)
    stored = gamma * hat(x) + beta, 1 / x.std(0, correction=0), gamma, beta
    found = gradient(lambda x: gamma * hat(x) + beta, x, dl_dy)
    assert np.allclose(right("bng-output", dl_dy, *stored), found)
    u, w = drawn(8, 4), drawn(4, 1, seed=1)
    found = gradient(lambda w: 1.7 * hat(u @ w, eps=0.1), w, dl_dy_1)
    x_hat, var = hat(u @ w, eps=0.1), (u @ w).var(correction=0)
    expected = (w * found).sum()
    assert np.isclose(right("bng-weights", dl_dy_1, x_hat, 1.7, var, 0.1), expected)


def test_the_share_along_the_weights_may_be_found_by_the_chain_rule() -> None:
    def by_the_layer(dl_dy: Any, x_hat: Any, gamma: Any, var: Any, eps: Any) -> Any:
        inv_std = (var + eps) ** -0.5
        inside = dl_dy - dl_dy.mean() - x_hat * (dl_dy * x_hat).mean()
        return (x_hat / inv_std * gamma * inv_std * inside).sum()

    assert exercises.check("bng-weights", by_the_layer)


def test_what_running_averages_remember() -> None:
    for alpha, steps in zip((0.9, 0.99, 0.999), right("ma-start"), strict=True):
        assert np.isclose(alpha**steps, 0.01)
    ramp = 0.3 * np.arange(1, 8)
    assert np.isclose(right("ma-cumulative", 0.3, 7), ramp[-1] - ramp.mean())
    momentum = right("split-momentum")
    assert 0 < momentum < 0.1  # eight small updates for one large
    assert np.isclose(running(1, [0] * 8, momentum), running(1, [0], 0.1))
    weight = running(0, [1] * 10, 0.1)
    after = [running(weight, [0] * count, 0.1) for count in range(60)]
    below = next(count for count in range(60) if after[count] < 0.01)
    assert np.allclose(right("gal-ten"), (weight, below), rtol=1e-9)


def test_the_noise_and_the_bias_of_running_averages() -> None:
    batches = np.array(list(product((-1, 1), repeat=4)))  # all, of variance 1
    assert np.isclose(right("ma-bug"), 1 / batches.var(1).mean() ** 0.5)

    def noise(size: int, momentum: float) -> float:
        weights = momentum * (1 - momentum) ** np.arange(9999)
        return float((weights**2).sum() / size)

    assert np.isclose(noise(8, right("ma-batch")), noise(32, 0.1))


def test_answers_on_covariate_shift_are_those_of_weighted_examples() -> None:
    # The grid stands for many inputs, of which a square counts with their density.
    weights = normal(Z, 1.5, 0.5) / normal(Z)
    hers = np.polyfit(Z, Z**2, 1, w=weights * normal(Z) ** 0.5)
    best = np.polyfit(Z, Z**2, 1, w=normal(Z, *right("cs-bug")) ** 0.5)
    assert np.allclose(hers, best)
    for mu, sigma in ((0.7, 0.5), (-0.4, 1.2)):
        square = (normal(Z, mu, sigma) / normal(Z)) ** 2
        expected = np.average(square, weights=normal(Z))
        assert np.isclose(right("cs-cost", mu, sigma), expected)
    given_t = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])  # p(x | t), t down
    train, use = given_t * [[0.6], [0.4]], given_t * [[0.4], [0.6]]
    assert np.allclose(np.array(right("cs-prior"))[:, None] * train, use)


def invariant_loss(w: Tensor) -> Tensor:
    x, t = drawn(16, 5), drawn(16, 3, seed=1)
    return ((hat(x @ w.T) - t) ** 2).mean()


def test_longer_weights_in_front_of_batch_norm() -> None:
    k, w = 10.0, drawn(3, 5, seed=2)
    ratio = gradient(invariant_loss, k * w) / gradient(invariant_loss, w)
    assert np.allclose(right("ics-scale", k), ratio)
    layer, found = nn.Linear(5, 3, bias=False, **DOUBLE), []
    for factor in (1.0, k):
        layer.weight.data = factor * w
        steps = [factor**2 * eta for eta in (0.1, 0.2)]
        found.append(along_gradient(layer, lambda m: invariant_loss(m.weight), steps))
    before, after = found
    assert np.allclose(before.losses, after.losses)  # the same functions
    smoothness = [one.effective_smoothness for one in found]
    assert np.isclose(right("smo-scale", k), smoothness[1] / smoothness[0])


def test_rate_and_decay_are_one_knob_from_other_weights() -> None:
    c, eta, decay = 7.0, 0.5, 0.04
    one = drawn(3, 5, seed=2)
    other = right("si-knobs", c) * one
    for _ in range(5):
        one = (1 - eta * decay) * one - eta * gradient(invariant_loss, one)
        slope = gradient(invariant_loss, other)
        other = (1 - c * eta * decay / c) * other - c * eta * slope
        assert np.allclose(F.normalize(one), F.normalize(other))  # one function


def test_how_far_adam_turns_weights() -> None:
    ends = []
    for factor in (1.0, 10.0):
        w = (factor * drawn(3, 5, seed=2)).requires_grad_()
        rate = 0.1 * factor ** right("si-adam")
        adam = torch.optim.Adam([w], lr=rate, eps=1e-30)
        for _ in range(5):
            w.grad = gradient(invariant_loss, w)
            adam.step()
        ends.append(F.normalize(w.detach()))
    assert np.allclose(ends[0], ends[1])


def test_which_parameters_are_scale_invariant() -> None:
    x, w = drawn(30, 4), drawn(5, 4, seed=1)
    gamma, beta = drawn(2, 5, seed=2)
    v, std = drawn(5, 3, seed=3), (x @ w.T).std(0)
    cases: dict[int, Callable[[float], Tensor]] = {
        1: lambda a: hat(torch.relu(x @ (a * w).T)),
        2: lambda a: hat(torch.sigmoid(x @ (a * w).T)),
        3: lambda a: hat(torch.relu(a * gamma * hat(x @ w.T) + a * beta) @ v),
        4: lambda a: (x @ (a * w).T - 0.1) / std,
    }
    found = {number for number, f in cases.items() if torch.allclose(f(3.0), f(1.0))}
    assert right("si-which") == found
    factors = torch.special.ndtri((torch.arange(2000, **DOUBLE) + 0.5) / 2000)
    units = x @ drawn(4, 2000)
    fails = (hat(factors * units) - hat(units)).abs().amax(0) > 1e-9
    assert fails.double().mean() == right("si-sign")


def test_the_printed_bound_with_the_normalized_values_for_a_gradient() -> None:
    N, gamma, sigma = 9, 1.7, 0.6
    x_hat, g = hat(drawn(N)), drawn(N, seed=1)

    def bound(g: Tensor, divisor: float) -> Tensor:
        rest = (g**2).sum() - g.sum() ** 2 / N - (x_hat @ g) ** 2 / divisor
        return gamma**2 / sigma**2 * rest

    arrived = gradient(lambda x: gamma * hat(x), sigma * x_hat, g)
    assert np.isclose((arrived**2).sum(), bound(g, N))  # as it should be printed
    assert np.isclose(right("smo-print", N, gamma, sigma), bound(x_hat, N**0.5))


def test_how_far_a_network_walks_and_the_units_of_its_smoothness() -> None:
    net, seen = nn.Linear(4, 1, bias=False, **DOUBLE), []
    w, v = (F.normalize(drawn(1, 4, seed=seed)) for seed in (0, 1))
    net.weight.data = 1.3 * w

    def linear(m: nn.Module) -> Tensor:
        seen.append(net.weight.detach().clone())
        return (0.4 * v * net.weight).sum()

    steps = [0.7 * net.weight.detach().norm().item()]  # the lines of the exercise
    along_gradient(net, linear, steps)
    walked = max((weight - 1.3 * w).norm().item() for weight in seen)
    assert np.isclose(right("smo-distance", 0.7, 1.3, 0.4), walked)
    found = [
        along_gradient(net, lambda m, c=c: c * m.weight.cosh().sum(), [0.1 / c])  # type: ignore[misc]
        for c in (1.0, 1000.0)
    ]
    mean, total = (one.effective_smoothness for one in found)
    assert np.isclose(right("smo-units", 1000.0), total / mean)


def test_the_best_target_and_the_largest_rate_of_the_gain() -> None:
    lam = torch.tensor([8.0, 4, 2, 1], **DOUBLE)

    def loss(b: Tensor, w: Tensor) -> Tensor:  # with the best gain, but for a constant
        return -((w @ b) ** 2) / (lam * w * w).sum() / 2

    angles = torch.linspace(0, torch.pi / 2, 100, **DOUBLE)
    turned = angles[:, None].cos() * lam[0] ** 0.5 * torch.eye(4, **DOUBLE)[0]
    turned += angles[:, None].sin() * lam[3] ** 0.5 * torch.eye(4, **DOUBLE)[3]
    targets = torch.cat([turned, drawn(100, 4)])
    curvatures = torch.stack([hessian(partial(loss, b), b / lam) for b in targets])
    mu = torch.linalg.eigvalsh(curvatures)  # the first one is the 0 of the length
    assert np.isclose((mu[:, -1] / mu[:, 1]).min(), right("lsq-targets"))
    x_hat, t = hat(drawn(9)), drawn(9, seed=1)
    for factor in (0.99, 1.01):
        rate, gamma = factor * right("lsq-gain"), torch.zeros(())
        for _ in range(9):
            gamma = gamma - rate * (x_hat * (gamma * x_hat - t)).mean()
        best = (x_hat * t).mean()
        assert (abs(gamma - best) < abs(best)) == (factor < 1)


def test_answers_on_small_batches_are_those_of_integrals() -> None:
    eps, h = 1e-10, np.geomspace(1e-9, 6, 400_001)
    factor = eps / (h**2 + eps) ** 1.5
    expected = 2 * np.trapezoid(factor * normal(h, 0, 0.5**0.5), h)
    assert np.isclose(right("sb-two"), expected, rtol=1e-3)
    u, s = np.linspace(-1, 1, 100_001), np.linspace(0, 60, 100_001)[1:]

    def fourth(N: int) -> float:  # û is a coordinate on a sphere in N − 1 dimensions
        return float(np.average((N - 1) ** 2 * u**4, weights=(1 - u**2) ** (N / 2 - 2)))

    def follows(N: int) -> float:  # s²: a sum of squares, of N − 1 normal numbers
        log_weights = (N - 2) * np.log(s) - s**2 / 2
        weights = np.exp(log_weights - log_weights.max())
        return float(np.average(s / N**0.5, weights=weights) ** 2)

    for f, enough, least in zip(
        (fourth, follows), right("sb-enough"), (2.97, 0.99), strict=True
    ):
        assert f(enough) >= least - 1e-9 > f(enough - 1)


def test_dropout_behind_a_relu() -> None:
    x, weights = np.maximum(0, Z), normal(Z)
    plain = np.cov(x, aweights=weights, ddof=0)
    x, weights = np.append(0 * x, 2 * x), np.append(weights, weights)  # a half is kept
    dropped = np.cov(x, aweights=weights, ddof=0)
    assert np.isclose(right("gal-dropout"), plain / dropped)


def test_sums_over_eight_replicas_that_are_averaged() -> None:
    shares = drawn(8, 3)
    reported = shares.sum(0).expand(8, 3)  # each replica has the sum over all
    assert np.allclose(reported.mean(0) / shares.mean(0), right("split-gamma"))


def test_gains_and_biases_of_layer_norm() -> None:
    (z, dl_dy), gamma = drawn(2, 4, 6), drawn(6, seed=1)
    swapped = (6,), torch.zeros(6, **DOUBLE), torch.ones(6, **DOUBLE)
    output, passed = right("ln-appendix")
    assert (F.layer_norm(z, *swapped) == output).all()
    assert (gradient(lambda z: F.layer_norm(z, *swapped), z, dl_dy) == passed).all()
    once = F.layer_norm(0.001 * hat(z, 1), (6,))
    squares = [(y**2).mean() for y in (once, F.layer_norm(once, (6,)))]
    assert np.allclose(right("ln-twice"), squares)
    found = gradient(lambda z: gamma * hat(z, 1, eps=1e-5), z, dl_dy)
    inv_std = (z.var(1, correction=0, keepdim=True) + 1e-5) ** -0.5
    given = dl_dy, hat(z, 1, eps=1e-5), inv_std, gamma
    assert np.allclose(right("lng-bug", *given), found)


def rank(f: Callable[[Tensor], Tensor], x: Tensor) -> int:
    matrix = jacobian(f, x).reshape(x.numel(), x.numel())
    return int(torch.linalg.matrix_rank(matrix, rtol=1e-9))


def test_directions_that_are_left() -> None:
    z = drawn(2, 4, 2, 3)
    groups = z.shape[0], 2, 2, 2, 3  # two groups, as in the chapter
    methods: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda z: hat(z, (0, 2, 3)),
        lambda z: hat(z, (1, 2, 3)),
        lambda z: hat(z, 1),
        lambda z: z / (z**2).mean(1, keepdim=True).sqrt(),
        lambda z: hat(z, (2, 3)),
        lambda z: hat(z.reshape(groups), (2, 3, 4)).reshape(z.shape),
    )
    assert right("ca-rank") == tuple(rank(f, z) for f in methods)
    ranks = [
        rank(lambda x, gains=gains: gains * hat(x, -1), drawn(7))  # type: ignore[misc]
        for gains in torch.ones(8, 7, **DOUBLE).triu()  # row k has k zeros
    ]
    assert right("lng-gain") == max(k for k in range(8) if ranks[k] == 7 - 2)


def test_answers_on_transformers() -> None:
    last_tosses = [last for *_, last in product((-1, 1), repeat=6)]
    heads = (np.reshape(last_tosses, (32, 2)) == 1).mean(1)  # behind each past
    loss = -heads * np.log(heads) - (1 - heads) * np.log(1 - heads)
    assert np.isclose(right("tr-coin"), loss.mean())
    raw, W = 5**0.5 * hat(drawn(3, 8), 1), drawn(8, 4, seed=1)
    ratio = (raw @ W) / (F.layer_norm(raw, (8,), eps=0.0) @ W)
    assert np.allclose(right("tr-final", 5.0), ratio)


def test_answers_on_lstms() -> None:
    for T in (2, 9):
        ends = np.sum(list(product((-1, 1), repeat=T)), axis=1)
        assert np.isclose(right("lstm-carousel", T), ends.std())
    gate = torch.sigmoid(torch.tensor(right("lstm-noise"), **DOUBLE))
    assert np.isclose(gate**100, 0.5)
    H = 50
    parts = (np.arange(H * H) + 0.5) / H**2  # evenly over (0, 1), in any order
    np.random.default_rng(0).shuffle(parts)
    uniform = (2 * parts.reshape(H, H) - 1) / H**0.5
    orthogonal, _ = np.linalg.qr(uniform)
    lengths = [(W**2).sum(0).mean() ** 0.5 for W in (uniform, orthogonal)]
    assert np.allclose(right("lstm-orthogonal"), lengths, rtol=1e-6)


def test_answers_on_hats_of_states() -> None:
    def slope(k: float) -> float:  # of the hats of (k, r, 0), with a constant r
        state = torch.tensor([k, 4.0, 0.0], **DOUBLE)
        return float(jacobian(hat, state)[:, 0].norm())

    assert np.isclose(right("wh-count"), np.log2(slope(1e4) / slope(2e4)), rtol=1e-3)
    first = hat(drawn(16))
    raw, carried = first, first
    for _ in range(20):
        raw, carried = 0.1 * raw, hat(0.1 * carried)
    left = [(c.norm() / first.norm()).log10() for c in (raw, carried)]
    assert np.allclose(right("wh-forget"), left, atol=1e-9)


def test_passes_of_a_sum_and_its_layer_norm() -> None:
    operators = ({"x", "r"}, {"s"}), ({"s"}, {"y"})  # what each reads, and writes
    apart = sum(len(read | written) for read, written in operators)
    read, written = (set().union(*sets) for sets in zip(*operators, strict=True))
    assert right("fast-residual") == (apart, len(read - written) + len(written))


def work(width: int) -> tuple[int, int]:
    """Count a step of an LSTM: what its products do, and how many numbers have hats."""
    x, h, c = torch.zeros(3, 4, width)
    with FlopCounterMode(display=False) as count:
        p, q = (v @ torch.zeros(width, 4 * width) for v in (x, h))
    return count.get_total_flops(), sum(v.numel() for v in (p, q, c))


def test_the_work_of_a_wider_lstm() -> None:
    narrow, wide = np.array(work(64)), np.array(work(512))
    assert np.array_equal(right("fast-width"), wide / narrow)


def test_a_map_of_dit_in_our_block_and_a_style_of_its_own() -> None:
    (x, c), W = drawn(2, 9, 4), drawn(12, 4, seed=1)
    shift, scale, gate = (c @ W.T).chunk(3, 1)  # the order of DiT
    layer = AdaptiveLayerNorm(4, 4, has_gate=True, **DOUBLE)
    layer.projection.weight.data = torch.as_tensor(right("cn-order", W))
    found = torch.cat(layer(x, c), 1)
    expected = torch.cat([(1 + scale) * hat(x, 1, eps=1e-5) + shift, gate], 1)
    assert torch.allclose(found, expected)
    channel = 0.7**0.5 * hat(drawn(50)) + 3
    y = channel.std(correction=0) * hat(channel, eps=0.2) + channel.mean()
    ratio = (y - y.mean()) / (channel - channel.mean())
    assert np.allclose(right("cn-style", 0.7, 0.2), ratio)


def test_the_updates_in_which_parts_of_dit_wake() -> None:
    x, aim, branch = drawn(3, 4, 4)
    zeros = {part: torch.zeros(4, 4, **DOUBLE) for part in ("last", "gate", "s", "b")}
    zeros["map"] = torch.zeros(8, 4, **DOUBLE)
    parts = {part: v.requires_grad_() for part, v in zeros.items()}
    parts["table"] = drawn(4, 4, seed=1).requires_grad_()
    woke: dict[str, int] = {}
    for update in range(1, 5):
        s, b, g = (parts["table"] @ parts[part] for part in ("s", "b", "gate"))
        stream = x + g * torch.tanh(((1 + s) * hat(x, 1) + b) @ branch)
        s_f, b_f = (parts["table"] @ parts["map"].T).chunk(2, 1)
        y = ((1 + s_f) * hat(stream, 1) + b_f) @ parts["last"]
        slopes = torch.autograd.grad(((y - aim) ** 2).sum(), list(parts.values()))
        for (part, value), slope in zip(parts.items(), slopes, strict=True):
            if slope.any():
                woke.setdefault(part, update)
            value.data -= 0.01 * slope
    assert right("cn-last") == tuple(woke[part] for part in ("map", "gate", "table"))


def test_a_gain_rounded_at_random() -> None:
    spacing = torch.finfo(torch.bfloat16).eps  # from 1 to 2
    up = 0.001 / spacing
    shares = np.ones(1)
    for _ in range(1000):
        shares = np.convolve(shares, [1 - up, up])
    gains = 1 + spacing * np.arange(1001)
    mean = np.average(gains, weights=shares)
    deviation = np.cov(gains, aweights=shares, ddof=0) ** 0.5
    assert np.allclose(right("fb-random"), (mean, deviation), rtol=1e-9)


# What somebody gives who makes the mistake that a reply names, found from the mistake.
def told(name: str, given: Any) -> str:
    return exercises.check(name, given).text


def test_slips_in_answers_on_folding_are_those_that_are_named() -> None:
    def without_eps(m: Any, v: Any, gamma: Any, beta: Any, eps: float) -> Any:
        return right("fold-pad", m, v, gamma, beta, 0.0)

    def without_root(m: Any, v: Any, gamma: Any, beta: Any, eps: float) -> Any:
        k = gamma  # and not over the root
        return right("fold-pad", m, 1.0, k, beta, 0.0)

    assert told("fold-pad", without_eps) == "ε stands in the root."
    assert "the root is missing" in told("fold-pad", without_root)

    def of_all_inputs(w3: Any, w1: Any, k3: Any, k1: Any, k0: Any) -> Any:
        pulse = torch.zeros(4, 4, 5, 5, **DOUBLE)
        pulse[range(4), range(4), 2, 2] = 1  # of one channel each
        three, one = (torch.tensor(w) for w in (w3, w1))
        y = F.conv2d(pulse, three) * torch.tensor(k3)[:, None, None]
        inner = pulse[..., 1:4, 1:4]
        y = y + F.conv2d(inner, one) * torch.tensor(k1)[:, None, None]
        y = y + inner.sum(1, keepdim=True) * torch.tensor(k0)[:, None, None]
        return y.flip(2, 3).transpose(0, 1).numpy()

    assert "not ones" in told("fold-branches", of_all_inputs)


def test_slips_in_answers_on_batches_are_those_that_are_named() -> None:
    def about_the_pivot(S: float, Q: float, c: float, n: int) -> Any:
        return right("split-pivot", S, Q, c, n)[0], Q

    assert "Q is about c" in told("split-pivot", about_the_pivot)

    def without_spread(mu: float, var: float, c: float, p: float) -> Any:
        mean, both = right("vl-value", mu, var, c, p)
        return mean, both - right("vl-value", mu, 0.0, c, p)[1]

    assert "their means spread, too" in told("vl-value", without_spread)

    def by_live_places(mu: float, var: float, p: float) -> Any:
        mean, sum_of_all = right("vl-count", mu, var, p)
        return mean, sum_of_all / (1 - p)

    assert "second mean divides by all" in told("vl-count", by_live_places)


def test_slips_in_answers_on_numbers_are_those_that_are_named() -> None:
    def upside_down(o: Any, c: Any) -> Any:
        return 1 / right("lstm-bug", o, c)

    assert "The other way round" in told("lstm-bug", upside_down)
    gains, weight = right("lt-decay")
    assert "length 8 each" in told("lt-decay", (8 * gains, weight))
    mean, deviation = right("fb-random")
    assert "in spacings" in told("fb-random", (mean, 128 * deviation))
    assert "not longer" in told("wn-fan", lambda n: 1 / right("wn-fan", n))
