"""Fold the models of public libraries, and compare them with what they were.

Each model of `fold_models.txt` is built with random weights, and its running statistics
are drawn around those of its own data, gains and biases around 1 and 0. Ours and
`torch.fx` fold it; both are compared with the model, in float64 on one small input.
`make fold-in-the-wild` runs it in an environment of its own.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import importlib
import importlib.metadata
import json
import multiprocessing
import pathlib
import platform
import statistics
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

HERE = pathlib.Path(__file__).parent
EPS = torch.finfo(torch.float64).eps
# A share of the largest output. What the model makes of rounding of its input has room.
TOLERANCE, FIRST_DIGITS, AMPLIFIED = 1e-8, 1e-3, 100
SECONDS = 240  # for one model, all together
SIDES = "3x64x64", "3x128x128", "3x224x224", "3x256x256"
OUTCOMES = "whole", "partly", "none", "refused", "wrong"


class Row(NamedTuple):
    """One model to build, and the shapes of its input to try."""

    package: str
    is_new: bool
    name: str
    shapes: tuple[str, ...]


def models(text: str) -> list[Row]:
    """Read the table: a package in brackets, then its models, with a shape perhaps."""
    rows, package, is_new = [], "", False
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        if line.startswith("["):
            package, _, new = line.strip("[]").partition(", ")
            is_new = new == "new"
            continue
        name, *shapes = map(str.strip, line.split("|"))
        rows.append(Row(package, is_new, name, tuple(shapes) or SIDES))
    return rows


def import_torchvision() -> Any:
    """Import torchvision beside a torch of another build: its kernels are absent."""
    real = torch.library.register_fake
    torch.library.register_fake = lambda *args, **kwargs: lambda function: function
    try:
        module = importlib.import_module("torchvision")
    finally:
        torch.library.register_fake = real
    return module


def imported(package: str) -> Any:
    """Import a package, and torchvision before it."""
    import_torchvision()
    return importlib.import_module(package.replace("-", "_"))


def _torchvision(name: str) -> nn.Module:
    tv = import_torchvision()
    make = tv.models.get_model_builder(name)
    kwargs: dict[str, Any] = {"weights": None}
    if hasattr(tv.models.segmentation, name):
        kwargs["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        kwargs["init_weights"] = False
    model: nn.Module = make(**kwargs)
    return model


def _unet(package: Any, name: str) -> nn.Module:
    kind, _, encoder = name.partition(" ")
    model: nn.Module = getattr(package, kind)(encoder, encoder_weights=None)
    return model


def build(row: Row) -> nn.Module:
    """Build a model with random weights."""
    if row.package == "torchvision":
        return _torchvision(row.name)
    module = imported(row.package)
    ways: dict[str, Callable[[], Any]] = {
        "timm": lambda: module.create_model(row.name),
        "pytorchcv": lambda: importlib.import_module(
            "pytorchcv.model_provider"
        ).get_model(row.name),
        "efficientnet-pytorch": lambda: module.EfficientNet.from_name(row.name),
        "facenet-pytorch": lambda: getattr(module, row.name)(),
        "segmentation-models-pytorch": lambda: _unet(module, row.name),
    }
    model: nn.Module = ways[row.package]()
    return model


def inputs(row: Row, shape: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Draw an input, two for optical flow."""
    sizes = [int(size) for size in shape.split("x")]
    draws = [
        torch.randn(1, *sizes, generator=generator, dtype=torch.float64)
        for _ in range(2)
    ]
    if "raft" in row.name:
        return tuple(draws)
    return (draws[0],)


@torch.no_grad()
def stir(
    model: nn.Module, args: tuple[Any, ...], generator: torch.Generator
) -> list[_BatchNorm]:
    """Move all that may be at its start; return the batch norms that are called.

    Statistics are drawn around those of the data that a layer gets, so that no output
    grows or vanishes with depth.
    """
    for p in model.parameters():
        if p.numel() > 1 and bool((p == p.flatten()[0]).all()):
            p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p))

    def uniform(like: Tensor) -> Tensor:
        return 0.5 + torch.rand(like.shape, generator=generator).to(like)

    called: list[_BatchNorm] = []

    def hook(norm: Any, given: Any) -> None:
        if norm in called or norm.running_mean is None:
            return
        called.append(norm)
        rows = given[0].transpose(0, 1).flatten(1)
        size = rows.square().mean(1) + 1e-6
        noise = torch.randn(size.shape, generator=generator).to(size)
        norm.running_mean.copy_(rows.mean(1) + 0.3 * noise * size.sqrt())
        norm.running_var.copy_(size * uniform(size))
        if norm.weight is not None:
            norm.weight.copy_(uniform(norm.weight) * noise.sign())
            norm.bias.copy_(0.3 * torch.randn(noise.shape, generator=generator))

    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    hooks = [m.register_forward_pre_hook(hook) for m in norms]
    try:
        model(*args)
    finally:
        for one in hooks:
            one.remove()
    return called


class Norms(TorchFunctionMode):
    """Count the batch norms that are computed, by their running means."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is nn.functional.batch_norm:
            mean = args[1] if len(args) > 1 else (kwargs or {})["running_mean"]
            self.seen.add(0 if mean is None else mean.data_ptr())
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def outputs(model: nn.Module, args: tuple[Any, ...]) -> tuple[list[Tensor], int]:
    """Return all tensors of real numbers that a model gives, and its batch norms."""
    torch.manual_seed(0)
    with Norms() as norms:
        leaves = tree_leaves(model(*tree_map(lambda x: x.clone(), args)))
    return [x for x in map(_tensor, leaves) if x is not None], len(norms.seen)


def _tensor(x: Any) -> Tensor | None:
    return x if isinstance(x, Tensor) and x.is_floating_point() else None


def error(seen: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference, as a share of the largest output."""
    if [x.shape for x in seen] != [x.shape for x in expected]:
        return float("inf")
    worst = 0.0
    for x, y in zip(seen, expected, strict=True):
        if y.numel():
            off = float((x - y).abs().max() / y.abs().max())
            worst = max(worst, off if off == off else float("inf"))
    return worst


def fold_from(folder: pathlib.Path) -> Callable[[nn.Module], nn.Module]:
    """Import `fold_batch_norm` of the package in a folder, whatever was before it."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "normbook"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    module = importlib.import_module("normbook.layers.folding")
    sys.path.remove(str(folder))
    if folder.resolve() not in pathlib.Path(module.__file__ or "").resolve().parents:
        raise ImportError(f"normbook must be in {folder}, got {module.__file__}")
    return lambda model: module.fold_batch_norm(model, strict=False)


def tried(
    tool: Callable[[nn.Module], nn.Module],
    model: nn.Module,
    args: tuple[Any, ...],
    expected: list[Tensor],
    called: int,
    room: float,
) -> dict[str, Any]:
    """Fold a model by one tool, and say what came of it."""
    start = time.process_time()
    try:
        folded = tool(model)
    except Exception as why:  # noqa: BLE001 - a tool may raise anything
        return {"outcome": "refused", "folded": 0, "why": f"{why!r:.400}"}
    seconds = round(time.process_time() - start, 3)
    result: dict[str, Any] = {"folded": 0, "seconds": seconds}
    try:
        y, stay = outputs(folded, args)
    except Exception as why:  # noqa: BLE001
        return result | {"outcome": "wrong", "why": f"{why!r:.400}"}
    off, result["folded"] = error(y, expected), called - stay
    outcome = "partly" if stay else "whole"
    outcome = "none" if stay == called else outcome
    result["error"] = float(f"{off:.1e}")
    return result | {"outcome": outcome if off < room else "wrong"}


def seen_of(row: Row, before: pathlib.Path | None) -> dict[str, Any]:
    """Build, stir, fold, compare."""
    generator = torch.Generator().manual_seed(zlib.crc32(row.name.encode()))
    torch.manual_seed(0)
    model = build(row).double().eval()
    failure: Exception = ValueError("no shape")
    for shape in row.shapes:
        args = inputs(row, shape, generator)
        try:
            called = stir(model, args, generator)
            break
        except Exception as why:  # noqa: BLE001 - too small, perhaps
            failure = why
    else:
        raise failure
    kept = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    if not called:
        raise ValueError("it calls no batch norm")
    y, count = outputs(model, args)
    moved = tree_map(lambda x: x * (1 + 4 * EPS), args)
    own = error(outputs(model, moved)[0], y)
    if AMPLIFIED * own > FIRST_DIGITS:
        raise ValueError(f"rounding of its input alone moves its outputs by {own:.1e}")
    room = max(TOLERANCE, AMPLIFIED * own)
    # Would a wrong first layer be seen?
    other = copy.deepcopy(model)
    first = other.get_submodule(
        next(name for name, m in model.named_modules() if m is called[0])
    )
    with torch.no_grad():
        first.running_var.mul_(1.01)  # type: ignore[union-attr, operator]
    notice = error(outputs(other, args)[0], y)
    result: dict[str, Any] = {
        "shape": shape,
        "batch_norms": len(kept),
        "called": count,
        "own": float(f"{own:.1e}"),
        "room": float(f"{room:.1e}"),
        "one_per_cent_of_the_first_variance": float(f"{notice:.1e}"),
    }
    sources = {"now": HERE.parents[1] / "src"}
    if before:
        sources = {"before": before, **sources}
    tools = {name: fold_from(folder) for name, folder in sources.items()}
    # Its import warns, which those who only read this file need not hear.
    tools["fx"] = importlib.import_module("torch.fx.experimental.optimization").fuse
    for name, tool in tools.items():
        result[name] = tried(tool, model, args, y, count, room)
    return result


def one(row: Row, before: pathlib.Path | None, sender: Any) -> None:
    """Send what one model gives, from a process of its own."""
    torch.set_num_threads(1)
    start = time.process_time()
    try:
        result = seen_of(row, before)
    except Exception as why:  # noqa: BLE001 - a model may fail in any way
        result = {"not_judged": f"{why!r:.400}"}
    sender.send(result | {"cpu_seconds": round(time.process_time() - start, 1)})


def judged(row: Row, before: pathlib.Path | None) -> dict[str, Any]:
    """Judge a model in a process of its own, within its time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=one, args=(row, before, sender), daemon=True)
    process.start()
    sender.close()
    head = {"package": row.package, "is_new": row.is_new, "model": row.name}
    try:
        result = receiver.recv() if receiver.poll(SECONDS) else {}
    except EOFError:
        result = {"not_judged": "its process ended"}
    process.kill()
    process.join()
    return head | (result or {"not_judged": f"more than {SECONDS} s"})


def table(rows: list[dict[str, Any]]) -> str:
    """Return how often each tool did what."""
    lines = [f"{'':28} {'':6} " + " ".join(f"{o:>7}" for o in OUTCOMES) + "  layers"]
    packages = dict.fromkeys(row["package"] for row in rows)
    for package in packages:
        of = [r for r in rows if r["package"] == package and "now" in r]
        for tool in ("before", "first", "now", "fx"):
            some = [r[tool] for r in of if tool in r]
            if not some:
                continue
            counts = Counter(r["outcome"] for r in some)
            numbers = " ".join(f"{counts[o]:7}" for o in OUTCOMES)
            layers = sum(r["folded"] for r in some if r["outcome"] != "wrong")
            total = sum(r["called"] for r in of)
            lines.append(f"{package:28} {tool:6} {numbers}  {layers} of {total}")
    ratios = [
        r["now"]["seconds"] / r["fx"]["seconds"]
        for r in rows
        if all(r.get(tool, {}).get("seconds") for tool in ("now", "fx"))
    ]
    if ratios:
        median = statistics.median(ratios)
        lines.append(f"time over fx: median {median:.2f}, {len(ratios)} models")
    return "\n".join(lines)


def main() -> int:
    """Run; return 1 where ours is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, help="where the record goes")
    parser.add_argument("--only", default="", help="part of package/model")
    parser.add_argument(
        "--before", type=pathlib.Path, help="a folder with an earlier normbook in it"
    )
    parser.add_argument(
        "--rows", type=pathlib.Path, help="rows, one a line: added to, and gone on from"
    )
    parser.add_argument("--no-run", action="store_true", help="only sum up these rows")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = {}
    if chosen.rows and chosen.rows.exists():
        held = map(json.loads, chosen.rows.read_text().splitlines())
        done = {(r["package"], r["model"]): r for r in held}
    results = []
    for row in models((HERE / "fold_models.txt").read_text()):
        if chosen.only not in f"{row.package}/{row.name}":
            continue
        result = done.get((row.package, row.name))
        if result is None and chosen.no_run:
            continue
        if result is None:
            imported(row.package)  # here once, and not in each process
            result = judged(row, chosen.before)
            if chosen.rows:
                with chosen.rows.open("a") as file:
                    file.write(json.dumps(result) + "\n")
        results.append(result)
        if "not_judged" in result or result["now"]["outcome"] in ("wrong", "refused"):
            why = result.get("not_judged") or result["now"]
            print(f"{row.package}/{row.name}: {why}", flush=True)
    print(table(results))
    if chosen.out:
        kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        first = {
            (r["package"], r["model"]): r["first"]
            for r in kept.get("models", ())
            if "first" in r
        }
        for r in results:
            if held := first.get((r["package"], r["model"])):
                r["first"] = held
        packages = (*dict.fromkeys(r["package"] for r in results), "torch")
        record = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "python": platform.python_version(),
            "versions": {p: importlib.metadata.version(p) for p in packages},
            "threads": 1,
            "dtype": "float64",
            "tolerance": TOLERANCE,
            "seconds_for_a_model": SECONDS,
            "commits": kept.get("commits", {}),
            "models": results,
        }
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    wrong = [r for r in results if r.get("now", {}).get("outcome") == "wrong"]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
