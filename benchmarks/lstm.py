"""What a norm in an LSTM costs beside ``torch.nn.LSTM``, which has none.

Run it on a machine that does nothing else:

    python benchmarks/lstm.py --out lstm.json

Timed are the forward pass without gradients, and forward and backward with the
gradients of x and of all weights, in rounds in which the variants take turns:

- ``nn_lstm``: torch's layer, without layer norm; the yardstick.
- ``plain``: our layer with ``norm=None``, which computes the same as it.
- ``layer_norm``: our layer with layer norm. Where numba is installed, both run in the
  compiled loop.
- ``formulas``: the same layer without the compiled loop.
- ``batch_norm``: our LSTM with batch norm at each step; left out with one example.
- ``eager``: the usual way to write a cell with layer norm, a loop over the steps in
  Python around torch's layer norm. It has the structure of the cell in PyTorch's own
  LSTM benchmark. Like that one it carries the normalized c to the next step: for about
  the same arithmetic it computes another function than ``layer_norm``.
- ``indexed``: the same with ``x[t]`` in place of one ``x.unbind(0)``.
- ``scripted``: ``eager`` in TorchScript.
- ``hoisted``: ``scripted`` with all that waits for no state in front of the loop.
- ``products``: what is left of an LSTM without gates: products of the same sizes by
  ``torch.mm``, h the first quarter of each.
- ``packed``: the same with the product of our compiled loop, if numba is installed.
- ``jax_scan``: the layer as one writes it in JAX, compiled by XLA, with all that waits
  for no state in front of ``lax.scan``; left out, with a word, where JAX is missing.

With one thread the time is that of the processor, with several that of the clock.
Before anything is timed, the output and every gradient of each variant are compared
with the formula in float64. With gains of 1 the cell is chaotic, and rounding grows
from step to step: so over a few steps, and over all of them with gains of a quarter.
(Batch norm, by few examples chaotic with any gain, over a few steps alone.)
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import importlib.util
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from normbook.lab import provenance
from normbook.layer_norm_lstm import LayerNormLSTMParameters, layer_norm_lstm
from normbook.layers import native
from normbook.layers.batch_norm_lstm import BatchNormLSTM
from normbook.layers.lstm import LayerNormLSTM
from normbook.lstm import LSTMParameters, lstm

ROUNDS = 15
WARM_UP = 2
EPS = 1e-5
# float32 against float64, as a share of the largest value.
TOLERANCE = 5e-5
FEW = 7  # steps over which rounding hardly grows


class Size(NamedTuple):
    """Lengths of the axes."""

    steps: int
    examples: int
    features: int
    units: int


SIZES = {
    "s1": Size(100, 32, 256, 256),
    "s2": Size(400, 8, 3, 400),  # strokes of handwriting
    "s3": Size(100, 1, 256, 256),
    "s4": Size(400, 1, 3, 400),  # one sequence of strokes
}
SWEEP = (
    *(Size(100, 32, units, units) for units in (64, 128, 512)),
    *(Size(100, examples, 256, 256) for examples in (4, 128)),
    *(Size(steps, 32, 256, 256) for steps in (10, 400)),
)
SIZES |= {"T={} N={} D={} H={}".format(*size): size for size in SWEEP}


class Variant(NamedTuple):
    """One way to compute h from x, and what it should give in float64."""

    run: Callable[[Tensor], Tensor]
    definition: Callable[..., Any]
    parameters: dict[str, Tensor]  # named as those of the definition


def advance(
    a: Tensor, c: Tensor, gamma_c: Tensor, beta_c: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return h and c of the next step, the latter normalized."""
    f, i, o, g = a.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    c = layer_norm(c, c.shape[1:], gamma_c, beta_c, eps)
    return torch.sigmoid(o) * torch.tanh(c), c


def cells(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gamma_h: Tensor,
    beta_h: Tensor,
    gamma_x: Tensor,
    beta_x: Tensor,
    gamma_c: Tensor,
    beta_c: Tensor,
    eps: float,
    is_indexed: bool = False,
) -> Tensor:
    """Go through the steps with torch's layer norm; the normalized c is carried."""
    rows, units = w_h.shape
    h = torch.zeros([x.shape[1], units], dtype=x.dtype, device=x.device)
    c = h
    states = []
    steps = [x[t] for t in range(len(x))] if is_indexed else x.unbind(0)
    for x_t in steps:
        a = layer_norm(torch.mm(h, w_h.t()), [rows], gamma_h, beta_h, eps)
        a = a + layer_norm(torch.mm(x_t, w_x.t()), [rows], gamma_x, beta_x, eps)
        h, c = advance(a, c, gamma_c, beta_c, eps)
        states.append(h)
    return torch.stack(states)


def hoisted(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gamma_h: Tensor,
    beta_h: Tensor,
    gamma_x: Tensor,
    beta_x: Tensor,
    gamma_c: Tensor,
    beta_c: Tensor,
    eps: float,
) -> Tensor:
    """Compute the same, with all steps of x at once in front of the loop."""
    rows, units = w_h.shape
    h = torch.zeros([x.shape[1], units], dtype=x.dtype, device=x.device)
    c = h
    states = []
    q = layer_norm(torch.matmul(x, w_x.t()), [rows], gamma_x, beta_x, eps)
    for q_t in q.unbind(0):
        a = q_t + layer_norm(torch.mm(h, w_h.t()), [rows], gamma_h, beta_h, eps)
        h, c = advance(a, c, gamma_c, beta_c, eps)
        states.append(h)
    return torch.stack(states)


class Products(torch.autograd.Function):
    """h, the first quarter of W_h h + W_x x, over all steps and back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_x: Tensor, w_h: Tensor, is_packed: bool
    ) -> Tensor:
        """Go through the steps."""
        steps, examples, _ = x.shape
        h = x.new_zeros(steps + 1, examples, w_h.shape[1])
        multiply = multiplier(w_h.t(), examples, is_packed)
        for q_t, h_prev, h_t in zip(x @ w_x.t(), h, h[1:], strict=False):
            torch.add(
                multiply(h_prev)[:, : len(h_t[0])], q_t[:, : len(h_t[0])], out=h_t
            )
        ctx.save_for_backward(x, w_x, w_h, h)
        ctx.is_packed = is_packed
        return h[1:]

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        """Go back through the steps."""
        x, w_x, w_h, h = ctx.saved_tensors
        units = w_h.shape[1]
        slope = x.new_zeros(*x.shape[:2], len(w_h))
        multiply = multiplier(w_h, x.shape[1], ctx.is_packed)
        later = torch.zeros_like(h[0])
        pairs = zip(slope.unbind(0), arriving[0].unbind(0), strict=True)
        for dl_dp, dl_dh in reversed(list(pairs)):
            torch.add(later, dl_dh, out=dl_dp[:, :units])
            later = multiply(dl_dp)[:, :units]
        rows = slope.flatten(0, 1).t()
        return slope @ w_x, rows @ x.flatten(0, 1), rows @ h[:-1].flatten(0, 1), None


def multiplier(w: Tensor, examples: int, is_packed: bool) -> Callable[[Tensor], Tensor]:
    """Return what multiplies rows with w, each time into the same memory."""
    depth, columns = w.shape
    loop = native.loop() if is_packed else None
    if loop is None:
        to = w.new_empty(examples, columns)
        return lambda rows: torch.mm(rows, w, out=to)
    to = w.new_empty(examples, loop.padded(columns, np.dtype(np.float32)))
    panels = loop.pack(w.detach().contiguous().numpy(), False)

    def multiply(rows: Tensor) -> Tensor:
        loop.product(rows.numpy(), 0, examples, panels, depth, to.numpy(), 0, 0, 1)
        return to

    return multiply


def variants(size: Size, gain: float = 1.0) -> dict[str, Variant]:
    """Make all variants with fresh weights."""
    torch.manual_seed(0)
    features, units = size.features, size.units
    ours = LayerNormLSTM(features, units, bias=False, eps=EPS)
    plain = LayerNormLSTM(features, units, norm=None)
    theirs = plain.as_lstm()
    own = _named(ours)
    with torch.no_grad():  # equal gains and biases of 0 would hide an exchange
        for name, value in own.items():
            if name.startswith(("gamma", "beta")):
                value.add_(torch.rand_like(value) / 4).mul_(gain)
    slow = copy.deepcopy(ours)
    slow.native = False
    batch = BatchNormLSTM(features, units, max_steps=size.steps, eps=EPS)
    with warnings.catch_warnings():  # torch advises against its TorchScript
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted, scripted_hoisted = map(torch.jit.script, (cells, hoisted))
    order = [name for name in cells.__annotations__ if name in own]
    weights = {name: own[name] for name in ("w_x", "w_h")}

    def of_cells(run: Any, *options: Any) -> Variant:
        return Variant(
            lambda x: run(x, *(own[name] for name in order), EPS, *options),
            lambda x, **p: by_formula(x, "normalized", **p),
            own,
        )

    def of_products(is_packed: bool) -> Variant:
        run = Products.apply
        return Variant(lambda x: run(x, *weights.values(), is_packed), linear, weights)

    def by_formula(x: Tensor, carried: Any, **parameters: Tensor) -> Tensor:
        given = LayerNormLSTMParameters(**parameters)
        h: Tensor = layer_norm_lstm(x, given, eps=EPS, carried=carried).h
        return h

    def of_batch(x: Tensor, **parameters: Tensor) -> Tensor:
        twin = copy.deepcopy(batch).double()
        twin.native = False
        h: Tensor = torch.func.functional_call(twin, parameters, x)[0]
        return h

    values = own.values()
    found = {
        "nn_lstm": Variant(
            lambda x: theirs(x)[0], _plain, dict(theirs.named_parameters())
        ),
        "plain": Variant(lambda x: plain(x)[0], _plain, _named(plain)),
        "layer_norm": Variant(
            lambda x: ours(x)[0], lambda x, **p: by_formula(x, "raw", **p), own
        ),
        "formulas": Variant(
            lambda x: slow(x)[0],
            lambda x, **p: by_formula(x, "raw", **p),
            _named(slow),
        ),
        "batch_norm": Variant(
            lambda x: batch(x)[0], of_batch, dict(batch.named_parameters())
        ),
        "eager": of_cells(cells),
        "indexed": of_cells(cells, True),
        "scripted": of_cells(scripted),
        "hoisted": of_cells(scripted_hoisted),
        "products": of_products(False),
        "packed": of_products(True),
    }
    if native.loop() is None:
        del found["packed"]
    if size.examples == 1:  # alone, an example has no variance
        del found["batch_norm"]
    if importlib.util.find_spec("jax") is not None:
        found["jax_scan"] = found["layer_norm"]._replace(
            run=lambda x: _Scan.apply(torch.is_grad_enabled(), tuple(own), x, *values)
        )
    return found


def linear(x: Tensor, w_x: Tensor, w_h: Tensor) -> Tensor:
    """Return h of the cell without gates, step by step."""
    units = w_h.shape[1]
    states = [x.new_zeros(x.shape[1], units)]
    for x_t in x.unbind(0):
        states.append((x_t @ w_x.t() + states[-1] @ w_h.t())[:, :units])
    return torch.stack(states[1:])


class _Scan(torch.autograd.Function):
    """The layer in JAX, on memory of torch."""

    @staticmethod
    def forward(
        ctx: Any, is_kept: bool, names: tuple[str, ...], *values: Tensor
    ) -> Tensor:
        """Return h; keep what the way back needs if there is one."""
        jax, run, run_and_keep, _ = scan(names)
        arrays = [jax.dlpack.from_dlpack(v.detach()) for v in values]
        if is_kept:
            h, ctx.kept = run_and_keep(*arrays)
        else:
            h = run(*arrays)
        ctx.names = names
        return torch.from_dlpack(h.block_until_ready())

    @staticmethod
    def backward(ctx: Any, *arriving: Any) -> Any:
        """Return the gradients of x and of the parameters."""
        jax, _, _, back = scan(ctx.names)
        slopes = back(ctx.kept, jax.dlpack.from_dlpack(arriving[0].contiguous()))
        slopes = jax.block_until_ready(slopes)
        return None, None, *map(torch.from_dlpack, slopes)


@functools.cache
def scan(names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return JAX and, compiled: forward, forward with what is kept, and backward."""
    if torch.get_num_threads() == 1:
        one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {one}"
    jax = importlib.import_module("jax")
    numpy, nn = jax.numpy, jax.nn

    def hat(v: Any) -> Any:
        centred = v - v.mean(-1, keepdims=True)
        return centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + EPS)

    def run(x: Any, *values: Any) -> Any:
        p = dict(zip(names, values, strict=True))
        q = p["gamma_x"] * hat(x @ p["w_x"].T) + p["beta_x"] + p["beta_h"]

        def step(states: Any, q_t: Any) -> Any:
            h, c = states
            a = p["gamma_h"] * hat(h @ p["w_h"].T) + q_t
            f, i, o, g = numpy.split(a, 4, -1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * numpy.tanh(g)
            h = nn.sigmoid(o) * numpy.tanh(p["gamma_c"] * hat(c) + p["beta_c"])
            return (h, c), h

        zeros = numpy.zeros((x.shape[1], p["w_h"].shape[1]), x.dtype)
        return jax.lax.scan(step, (zeros, zeros), q)[1]

    forth = jax.jit(lambda *values: jax.vjp(run, *values))
    return jax, jax.jit(run), forth, jax.jit(lambda kept, dl_dh: kept(dl_dh))


def _named(layer: LayerNormLSTM) -> dict[str, Tensor]:
    pairs = layer.named_parameters()
    return {name.removesuffix("_l0"): value for name, value in pairs}


def _plain(x: Tensor, **parameters: Tensor) -> Tensor:
    """Return h of the plain LSTM, with our names of the weights or with torch's."""
    if "weight_ih_l0" in parameters:
        units = len(parameters["bias_ih_l0"]) // 4
        i, f, g, o = (torch.arange(units) + k * units for k in range(4))
        w_x, w_h, *biases = (v[torch.cat([f, i, o, g])] for v in parameters.values())
        parameters = {"w_x": w_x, "w_h": w_h, "b": biases[0] + biases[1]}
    h: Tensor = lstm(x, LSTMParameters(**parameters)).h
    return h


def inputs(size: Size, seed: int) -> tuple[Tensor, Tensor]:
    """Return x and what arrives at h."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size[:3], generator=generator)
    return x, torch.randn((*size[:2], size.units), generator=generator)


def check(name: str, variant: Variant, size: Size) -> None:
    """Refuse, by a ValueError, to time what does not compute its formula.

    Compared are the output and every gradient.
    """
    x, dl_dh = inputs(size, seed=1)
    given = {"x": x, **variant.parameters}
    exact = {k: v.detach().double().requires_grad_() for k, v in given.items()}
    given["x"] = x.requires_grad_()
    found = step(variant.run(x), list(given.values()), dl_dh)
    expected = step(variant.definition(**exact), list(exact.values()), dl_dh.double())
    for key, a, b in zip(("h", *given), found, expected, strict=True):
        error = float((a - b).detach().abs().max() / b.detach().abs().max())
        if not error <= TOLERANCE:
            raise ValueError(
                f"{key} of {name} must be that of the formula to {TOLERANCE}, got an "
                f"error of {error:.1e} for {size}; nothing is timed."
            )


def step(h: Tensor, leaves: list[Tensor], dl_dh: Tensor) -> list[Tensor]:
    """Return h and the gradients."""
    return [h, *torch.autograd.grad(h, leaves, dl_dh)]


def measure(size: Size, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Time all variants; return seconds of each round, by kind and variant."""
    for some, gain in (size._replace(steps=min(size.steps, FEW)), 1.0), (size, 0.25):
        for name, variant in variants(some, gain).items():
            if name != "batch_norm" or some.steps <= FEW:
                check(name, variant, some)
    all_variants = variants(size)
    # One thread is charged for its own work alone, whatever else runs beside it.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in all_variants} for kind in ("forward", "both")
    }
    x, dl_dh = inputs(size, seed=2)
    leaf = x.clone().requires_grad_()
    for number in range(WARM_UP + rounds):
        for name, variant in all_variants.items():
            leaves = [leaf, *variant.parameters.values()]
            start = clock()
            with torch.no_grad():
                variant.run(x)
            middle = clock()
            step(variant.run(leaf), leaves, dl_dh)
            end = clock()
            if number >= WARM_UP:
                seconds["forward"][name].append(middle - start)
                seconds["both"][name].append(end - middle)
    return seconds


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return quartiles, and the speed as a share of that of the yardstick.

    The ratio is the median over the rounds.
    """
    row = {}
    for name, values in seconds.items():
        low, median, high = statistics.quantiles(values, n=4)
        pairs = zip(seconds["nn_lstm"], values, strict=True)
        row[name] = {
            "lower_quartile": low,
            "median": median,
            "upper_quartile": high,
            "speed_over_nn_lstm": statistics.median(a / b for a, b in pairs),
        }
    return row


def main() -> None:
    """Time, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    if options.rounds < 15:
        parser.error(f"--rounds must be at least 15, got {options.rounds}")
    torch.set_num_threads(options.threads)
    started = provenance.now()
    if importlib.util.find_spec("jax") is None:
        print("jax_scan is left out: JAX is not installed")
    rows = []
    for name in options.sizes:
        size = SIZES[name]
        found = measure(size, options.rounds)
        row = {kind: summary(seconds) for kind, seconds in found.items()}
        rows.append({"size": name, **size._asdict(), **row})
        for kind, part in row.items():
            print(f"{name} {kind}: median in ms, speed / that of nn_lstm")
            for variant, value in part.items():
                ratio = value["speed_over_nn_lstm"]
                print(f"  {variant:10} {1e3 * value['median']:8.2f} {ratio:5.2f}")
    record = {
        "command": f"python benchmarks/lstm.py --rounds {options.rounds} "
        f"--threads {options.threads} --sizes {' '.join(options.sizes)}",
        "started": started,
        "threads": options.threads,
        "dtype": "float32",
        "rounds": options.rounds,
        "capability": torch.backends.cpu.get_cpu_capability(),
        **provenance.origin(torch.device("cpu")),
        "rows": rows,
    }
    if importlib.util.find_spec("jax") is not None:
        record["versions"]["jax"] = version("jax")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
