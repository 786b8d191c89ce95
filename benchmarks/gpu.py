"""What the kernels of Triton take on a GPU: a step of an LSTM, and a norm by its bytes.

Run it on a GPU that does nothing else:

    python benchmarks/gpu.py --out gpu.json

Without a GPU its checks run under the interpreter of Triton, at tiny sizes:

    TRITON_INTERPRET=1 python benchmarks/gpu.py --check-only

Timed by events of the device are the forward pass without gradients, and forward and
backward with the gradients of x and of all weights, in rounds in which the variants
take turns. Inputs alternate and together exceed the L2 cache.

An LSTM, in microseconds a step:

- ``nn_lstm``: torch's layer (cuDNN), without layer norm; the yardstick.
- ``kernels``: our layer-normalized LSTM.
- ``scripted``: the cell of ``benchmarks/lstm.py`` in TorchScript. It carries the
  normalized c on, so for about the same arithmetic it computes another function.
- ``product``: nothing but the product with W_h of each step, forward; what a step with
  one product cannot be faster than.

A norm, in bytes that must be moved, as a share of the bandwidth of a copy of x in the
same round: ours, and that of ``torch.nn.functional``.

Before anything is timed, outputs and all gradients are compared with the formulas in
float64. At gain 1 the cell is chaotic: compared are a few steps, and then all steps as
one step from the states of the float64 run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from lstm import SIZES, Size, Variant, _named, _plain, cells, step
from torch import Tensor, nn
from torch.nn import functional

from normbook import normalize
from normbook.layer_norm_lstm import (
    LayerNormLSTMParameters,
    layer_norm_lstm,
    layer_norm_lstm_forward,
)
from normbook.layers import lstm as layers
from normbook.layers import triton_norms as norms
from normbook.layers.lstm import LayerNormLSTM
from normbook.layers.native import NATIVE
from normbook.layers.triton_lstm import TritonSequence, can_run

ROUNDS = 15
WARM_UP = 3
CALLS = 3  # in a round
EPS = 1e-5
FEW = 7  # steps
TINY = {"tiny": Size(3, 2, 3, 33)}
SHAPES = (4096, 1024), (65536, 256), (8192, 4096)
# Largest errors, as shares of the largest number: float32, TF32, bfloat16; of a few
# steps, and of one step from given states. The formulas in float32 on a CPU are off by
# 2.6e-6 in one step with 512 units, the kernels on an H200 by 5.6e-6.
TOLERANCES = {"float32": (1.3e-5, 8e-6), "tf32": (2e-2, 5e-3), "bfloat16": (0.1, 0.05)}
OF_NORMS = {torch.float32: 5e-6, torch.bfloat16: 1e-2}


class Norm(NamedTuple):
    """One way to normalize: ``y, *kept = forward(x)``."""

    forward: Callable[[Tensor], Any]
    backward: Callable[..., Any]  # of dl_dy, x, y, *kept
    axis: int
    is_centred: bool = True


def dtype_of(precision: str) -> torch.dtype:
    """Return what numbers are stored in."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


# --- the LSTM


def sequence(layer: LayerNormLSTM, x: Tensor, hx: Any = None) -> Tensor:
    """Return h by the kernels, with the weights of a layer."""
    weights = [getattr(layer, name + "_l0") for name in layers.FIELDS]
    zeros = x.new_zeros(x.shape[1], layer.hidden_size)
    h_0, c_0 = hx or (zeros, zeros)
    tensors = [v for v in (x, h_0, c_0, *weights) if v is not None]
    if not can_run(tensors):
        raise RuntimeError(
            f"the kernels must run on {x.device.type}, but cannot; install Triton, and "
            "take a GPU or TRITON_INTERPRET=1."
        )
    how = layer.norm, layer.carried, layer.hats
    cell = layers._Cell(*how, EPS, None, True)
    is_kept = torch.is_grad_enabled() and any(v.requires_grad for v in tensors)
    h, *_ = TritonSequence.apply(cell, is_kept, x, h_0, c_0, *weights)
    return h


def variants(
    size: Size, device: torch.device, dtype: torch.dtype
) -> tuple[LayerNormLSTM, dict[str, Variant]]:
    """Make all variants with fresh weights; return also our layer."""
    options: Any = {"device": device, "dtype": dtype}
    ours = LayerNormLSTM(size.features, size.units, bias=False, eps=EPS, **options)
    theirs = nn.LSTM(size.features, size.units, **options)
    own = _named(ours)
    with torch.no_grad():  # gains of 1 and biases of 0 would hide an exchange
        for name, value in own.items():
            if name.startswith(("gamma", "beta")):
                value.add_(torch.rand_like(value) / 4)
    with warnings.catch_warnings():  # torch advises against its TorchScript
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(cells)
    order = [name for name in cells.__annotations__ if name in own]

    def formula(carried: Any) -> Callable[..., Tensor]:
        def h(x: Tensor, **parameters: Tensor) -> Tensor:
            weights = LayerNormLSTMParameters(**parameters)
            return layer_norm_lstm(x, weights, eps=EPS, carried=carried).h

        return h

    return ours, {
        "nn_lstm": Variant(
            lambda x: theirs(x)[0], _plain, dict(theirs.named_parameters())
        ),
        "kernels": Variant(lambda x: sequence(ours, x), formula("raw"), own),
        "scripted": Variant(
            lambda x: scripted(x, *(own[name] for name in order), EPS),
            formula("normalized"),
            own,
        ),
    }


def draw(
    *shape: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return normal numbers, the same on each device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def refuse_errors(
    name: str, values: Any, expected: Any, tolerance: float, where: Any
) -> None:
    """Raise a ValueError if any value differs from what is expected."""
    for number, (a, b) in enumerate(zip(values, expected, strict=True)):
        exact = b.detach().cpu()
        error = (a.detach().cpu().double() - exact).abs().max() / exact.abs().max()
        if not error <= tolerance:
            raise ValueError(
                f"value {number} of {name} must be that of the formula to {tolerance}, "
                f"got an error of {float(error):.1e} for {where}; nothing is timed."
            )


def check_lstm(name: str, variant: Variant, size: Size, tolerance: float) -> None:
    """Refuse a variant whose output or gradients differ in the first few steps."""
    like = next(iter(variant.parameters.values()))
    steps = min(size.steps, FEW)
    options: Any = {"device": like.device, "dtype": like.dtype}
    x = draw(steps, size.examples, size.features, seed=1, **options)
    dl_dh = draw(steps, size.examples, size.units, seed=2, **options)
    given = {"x": x.requires_grad_(), **variant.parameters}
    exact = {k: v.detach().cpu().double() for k, v in given.items()}
    exact = {k: v.requires_grad_() for k, v in exact.items()}
    values = step(variant.run(x), list(given.values()), dl_dh)
    wide = dl_dh.cpu().double()
    expected = step(variant.definition(**exact), list(exact.values()), wide)
    refuse_errors(name, values, expected, tolerance, size)


def check_one_step(ours: LayerNormLSTM, size: Size, tolerance: float) -> None:
    """Refuse the kernels if one step from any state of the exact run differs."""
    own = _named(ours)
    like = next(iter(own.values()))
    options: Any = {"device": like.device, "dtype": like.dtype}
    x = draw(size.steps, size.examples, size.features, seed=3, **options)
    exact = {k: v.detach().cpu().double().requires_grad_() for k, v in own.items()}
    weights = LayerNormLSTMParameters(**exact)
    with torch.no_grad():
        _, run = layer_norm_lstm_forward(x.cpu().double(), weights, eps=EPS)
    states = [
        torch.cat([v.new_zeros(1, *v.shape[1:]), v[:-1]]).flatten(0, 1).to(**options)
        for v in (run.h, run.c)
    ]
    leaves = [v.requires_grad_() for v in (x.reshape(1, -1, size.features), *states)]
    dl_dh = draw(1, len(states[0]), size.units, seed=4, **options)
    h = sequence(ours, leaves[0], leaves[1:])
    values = step(h, [*leaves, *own.values()], dl_dh)
    wide = [v.detach().cpu().double().requires_grad_() for v in leaves]
    h = layer_norm_lstm(wide[0], weights, *wide[1:], eps=EPS).h
    expected = step(h, [*wide, *exact.values()], dl_dh.cpu().double())
    refuse_errors("one step of kernels", values, expected, tolerance, size)


# --- norms


def all_norms(gamma: Tensor, beta: Tensor) -> dict[str, Norm]:
    """Return ours and torch's by name."""
    leaves = gamma.clone().requires_grad_(), beta.clone().requires_grad_()
    wide = gamma.shape

    def torchs(function: Any, count: int, *how: Any) -> Norm:
        used = leaves[:count]
        return Norm(
            lambda x: (function(x, *used),),
            lambda g, x, y: torch.autograd.grad(y, [x, *used], g, retain_graph=True),
            *how,
        )

    def of_rows(g: Tensor, x: Tensor, _: Tensor, *kept: Any) -> Any:
        return norms.normalize_rows_backward(g, x, gamma, *kept)

    def of_columns(
        g: Tensor, x: Tensor, _: Tensor, mean: Tensor, var: Tensor, inv_std: Tensor
    ) -> Any:
        return norms.normalize_columns_backward(g, x, gamma, mean, inv_std)

    return {
        "layer_norm": Norm(
            lambda x: norms.normalize_rows(x, gamma, beta, EPS), of_rows, 1
        ),
        "torch.layer_norm": torchs(
            lambda x, *p: functional.layer_norm(x, wide, *p, eps=EPS), 2, 1
        ),
        "rms_norm": Norm(
            lambda x: norms.normalize_rows(x, gamma, None, EPS, is_centred=False),
            of_rows,
            1,
            False,
        ),
        "torch.rms_norm": torchs(
            lambda x, *p: functional.rms_norm(x, wide, *p, eps=EPS), 1, 1, False
        ),
        "batch_norm": Norm(
            lambda x: norms.normalize_columns(x, gamma, beta, EPS), of_columns, 0
        ),
        "torch.batch_norm": torchs(
            lambda x, *p: functional.batch_norm(
                x, None, None, *p, training=True, eps=EPS
            ),
            2,
            0,
        ),
    }


def parameters(width: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return gain and bias."""
    return [draw(width, seed=k, device=device, dtype=dtype) for k in (5, 6)]


def check_norm(
    name: str, norm: Norm, x: Tensor, dl_dy: Tensor, gamma: Tensor, beta: Tensor
) -> None:
    """Refuse a norm whose y or gradients differ from the formula."""
    x = x.detach().requires_grad_()
    y, *kept = norm.forward(x)
    values = y, *norm.backward(dl_dy, x, y, *kept)
    has_bias = norm.is_centred
    values = values if has_bias else values[:3]
    given = x, gamma, beta if has_bias else None, dl_dy
    wide = [v if v is None else v.detach().cpu().double() for v in given]
    x, gamma, beta, dl_dy = wide
    axes = (norm.axis,), (1,)
    y, cache = normalize.forward(x, gamma, beta, *axes, EPS, norm.is_centred)
    slopes = normalize.backward(dl_dy, cache)
    expected = (y, *slopes)[: len(values)]
    refuse_errors(name, values, expected, OF_NORMS[given[0].dtype], tuple(x.shape))


# --- time


def seconds(run: Callable[[], Any]) -> float:
    """Return the time between events of the device before and behind a run."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def beyond_cache(bytes_of_one: int, device: torch.device, most: int = 64) -> int:
    """Return how many inputs together are twice as large as the L2 cache."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(max(2 * cache // bytes_of_one + 1, 2), most)


def recorded(calls: list[Callable[[], Any]], stream: Any = None) -> Callable[[], None]:
    """Return calls as one graph, so that none waits to be launched.

    A way back has to be recorded on the stream of its way forward.
    """
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)

    def replay(held: Any = calls) -> None:  # the graph reads what the calls hold
        graph.replay()

    return replay


def in_turns(
    runs: dict[str, Callable[[], None]], rounds: int
) -> dict[str, list[float]]:
    """Time all variants in each round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM_UP + rounds):
        for name, run in runs.items():
            time = seconds(run)
            if number >= WARM_UP:
                times[name].append(time)
    return times


def quartiles(values: list[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"lower_quartile": low, "median": median, "upper_quartile": high}


def measure_lstm(
    size: Size, all_variants: dict[str, Variant], rounds: int
) -> dict[str, Any]:
    """Return the microseconds a step of each variant, and its speed over nn_lstm's."""
    like = all_variants["nn_lstm"].parameters["weight_hh_l0"]
    options: Any = {"device": like.device, "dtype": like.dtype}
    of_x = like.element_size() * size.steps * size.examples * size.features
    count = beyond_cache(of_x, like.device)
    inputs = [draw(*size[:3], seed=k, **options).requires_grad_() for k in range(count)]
    dl_dh = draw(*size[:2], size.units, seed=count, **options)

    def forward(variant: Variant) -> Callable[[], None]:
        turn = itertools.cycle(inputs)

        def run() -> None:
            with torch.no_grad():
                for x in itertools.islice(turn, CALLS):
                    variant.run(x)

        return run

    def both(variant: Variant) -> Callable[[], None]:
        turn = itertools.cycle(inputs)

        def run() -> None:
            for x in itertools.islice(turn, CALLS):
                step(variant.run(x), [x, *variant.parameters.values()], dl_dh)

        return run

    h = draw(size.examples, size.units, seed=0, **options)
    w_h, p = like.detach().T, h.new_empty(size.examples, 4 * size.units)
    product = recorded([lambda: torch.mm(h, w_h, out=p)] * size.steps * CALLS)
    row: dict[str, Any] = {}
    for kind, kind_of_run in ("forward", forward), ("both", both):
        runs = {name: kind_of_run(v) for name, v in all_variants.items()}
        times = in_turns(runs | {"product": product}, rounds)
        row[kind] = {
            name: quartiles([1e6 * v / CALLS / size.steps for v in values])
            | {
                "speed_over_nn_lstm": statistics.median(
                    a / b for a, b in zip(times["nn_lstm"], values, strict=True)
                )
            }
            for name, values in times.items()
        }
    return row


def measure_norms(
    shape: tuple[int, int], variants: dict[str, Norm], like: Tensor, rounds: int
) -> dict[str, Any]:
    """Return of each norm the bandwidth as a share of that of a copy."""
    options: Any = {"device": like.device, "dtype": like.dtype}
    size = shape[0] * shape[1] * like.element_size()
    count = beyond_cache(size, like.device)
    inputs = [draw(*shape, seed=k, **options).requires_grad_() for k in range(count)]
    dl_dy = [draw(*shape, seed=count + k, **options) for k in range(count)]
    to = torch.empty_like(dl_dy[0])
    row: dict[str, Any] = {}
    # x to y; then x and dl_dy to dl_dx. A copy reads and writes.
    for kind, moved in ("forward", 2), ("backward", 3):
        runs = {"copy": recorded([lambda x=x: to.copy_(x.detach()) for x in inputs])}
        for name, norm in variants.items():
            if kind == "forward":
                with torch.no_grad():
                    calls = [lambda x=x, n=norm: n.forward(x) for x in inputs]
                    runs[name] = recorded(calls)
            else:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    kept = [norm.forward(x) for x in inputs]
                triples = zip(dl_dy, inputs, kept, strict=True)
                calls = [
                    lambda g=g, x=x, k=k, n=norm: n.backward(g, x, *k)
                    for g, x, k in triples
                ]
                runs[name] = recorded(calls, stream)
        times = in_turns(runs, rounds)
        row[kind] = {
            name: quartiles([v / count for v in values])
            | {
                "share_of_copy": statistics.median(
                    moved / 2 * a / b
                    for a, b in zip(times["copy"], values, strict=True)
                )
            }
            for name, values in times.items()
            if name != "copy"
        }
        median = statistics.median(times["copy"]) / count
        row[kind]["copy"] = {"bytes_per_second": 2 * size / median}
    return row


def product_rate(like: Tensor) -> float:
    """Return the operations a second of a large product."""
    a, b = (
        draw(8192, 8192, seed=k, device=like.device, dtype=like.dtype) for k in range(2)
    )
    times = [seconds(lambda: torch.mm(a, b)) for _ in range(WARM_UP + ROUNDS)]
    return 2 * 8192**3 / statistics.median(times[WARM_UP:])


# --- the command


def checked(
    device: torch.device, precision: str, sizes: dict[str, Size], shapes: Any
) -> Iterator[tuple[str, Any, Any]]:
    """Give, of each size, its variants, all of which were compared with formulas."""
    dtype = dtype_of(precision)
    few, one = TOLERANCES[precision]
    for name, size in sizes.items():
        ours, all_variants = variants(size, device, dtype)
        for variant_name, variant in all_variants.items():
            check_lstm(variant_name, variant, size, few)
        check_one_step(ours, size, one)
        yield name, size, all_variants
    for shape in shapes:
        pair = parameters(shape[1], device, dtype)
        all_variants = all_norms(*pair)
        x, dl_dy = (draw(*shape, seed=k, device=device, dtype=dtype) for k in (7, 8))
        for variant_name, norm in all_variants.items():
            check_norm(variant_name, norm, x, dl_dy, *pair)
        yield "x".join(map(str, shape)), shape, all_variants


def main() -> None:
    """Check, time, print a table, write JSON."""
    os.environ[NATIVE] = "triton"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--check-only", action="store_true", help="time nothing")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--precision", choices=TOLERANCES, default="float32")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    if options.rounds < 15:
        parser.error(f"--rounds must be at least 15, got {options.rounds}")
    if options.check_only == (options.out is not None):
        parser.error("--out FILE or --check-only must be given, one of them")
    has_gpu = torch.cuda.is_available()
    if not (has_gpu or options.check_only):
        parser.error("a GPU is needed, torch finds none; --check-only takes none")
    device = torch.device("cuda" if has_gpu else "cpu")
    chosen = {name: SIZES[name] for name in options.sizes}
    sizes, shapes = (chosen, SHAPES) if has_gpu else (TINY, ((11, 33),))
    tf32 = options.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    cases = checked(device, options.precision, sizes, shapes)
    if options.check_only:
        for name, _, all_variants in cases:
            print(f"{name}: {', '.join(all_variants)} are the formulas")
        return
    from normbook.lab import provenance  # only a record needs it

    rows: list[dict[str, Any]] = []
    record = {
        "command": f"python benchmarks/gpu.py --precision {options.precision} "
        f"--rounds {options.rounds} --sizes {shlex.join(options.sizes)}",
        "started": provenance.now(),
        "precision": options.precision,
        "rounds": options.rounds,
        "triton": triton.__version__,
        **provenance.origin(device),
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, size, all_variants in cases:
        if isinstance(size, Size):
            row = measure_lstm(size, all_variants, options.rounds)
            about = {"size": name, **size._asdict()}
            shown, scale, unit = "speed_over_nn_lstm", 1.0, "us a step"
        else:
            like = torch.empty(0, device=device, dtype=dtype_of(options.precision))
            row = measure_norms(size, all_variants, like, options.rounds)
            about = {"shape": size}
            shown, scale, unit = "share_of_copy", 1e6, "us"
        rows.append(about | row)
        for kind, part in row.items():
            print(f"{name} {kind}: median in {unit}, {shown}")
            for variant, value in part.items():
                if shown in value:
                    median = scale * value["median"]
                    print(f"  {variant:16} {median:9.2f} {value[shown]:6.2f}")
        # After each case: a machine that is lent may be gone before the last.
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    like = torch.empty(0, device=device, dtype=dtype_of(options.precision))
    record["product_operations_per_second"] = product_rate(like)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
