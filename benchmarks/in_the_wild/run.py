"""Compare what `check_norm_layer` says of public norm layers with their source.

What each layer computes was read from its source and written to `expected.txt` before
the check ran on it; this prints how often the report says the same: kind, conventions,
bugs. `make in-the-wild` runs it in an environment of its own. A record that holds what
the first run said keeps it, and what is said now is written beside it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import json
import pathlib
import platform
import re
import sys
import time
import warnings
from collections import Counter
from typing import Any, NamedTuple

import torch

from normbook.checks import check_norm_layer

HERE = pathlib.Path(__file__).parent
# Imported by these packages for reading data, and of no use to a layer.
ABSENT = "torchvision torchaudio torchao tiktoken numba datasets ema_pytorch ftfy "
ABSENT += "omegaconf accelerate blobfile kagglehub asteroid_filterbanks tensorly "
ABSENT += (
    "tltorch pytorch_lightning torch_optimizer pb_bss_eval torch_stoi h5py zarr wandb "
)
ABSENT += "torch_harmonics configmypy librosa soundfile pandas addict coqpit cv2 ray "
ABSENT += "coreforecast encodec fairseq fastdownload fasthtml gateloop_transformer "
ABSENT += "gensim hyper_connections linear_attention_transformer local_attention "
ABSENT += "memory_efficient_attention_pytorch pydantic_settings pypinyin rjieba skbase "
ABSENT += "pytorch_msssim pytorch_warmup skrub spacy termcolor torchcodec torchdiffeq "
ABSENT += "torchinfo trainer vector_quantize_pytorch wfdb yapf "
ABSENT += "adam_atan2_pytorch ase axial_positional_embedding assoc_scan backoff "
ABSENT += "classifier_free_guidance_pytorch deprecate hl_gauss_pytorch iopath "
ABSENT += "lie_learn modelindex monty natsort numerize nvtx pkg_resources "
ABSENT += "pytorch_custom_utils "
ABSENT += "rotary_embedding_torch s3fs spear_tts_pytorch submitit "
ABSENT += "taylor_series_linear_attention toolz torch_complex warp "
ABSENT += "fairscale six hydra_slayer coca_pytorch skimage jsonmerge dctorch "
ABSENT += "torchsde cleanfid clip misaki jaraco more_itertools num2words "
ABSENT += "num_to_words pyworld unfoldNd pyonmttok ahocorasick rapidfuzz fasttext "
ABSENT += "configargparse colt5_attention munch torch_sparse torchode "
ABSENT += "onnxruntime audioread diffq yamlargparse cpuinfo mcli coolname pretab "
ABSENT += "skopt properscoring gdown wget boto3 botocore ot benchpots ai4ts "
ABSENT += "cached_path bettermap "
ABSENT += "lion_pytorch funcy faiss autofaiss easytorch easydict setproctitle "
ABSENT += "memmap_replay_buffer evolutionary_policy_optimization x_evolution "
ABSENT += "x_mlps_pytorch cryptography"
TESTS = {
    "float16": "float16 and bfloat16 give what float32 gives",
    "dtype": "the output has the dtype of the input",
    "one pass": "a mean far from 0 costs no precision in float32",
    "graph": "the running statistics hold no graph",
    "copies": "deepcopy and pickle work after training, and copy the statistics",
    "unbiased": "the variance divides by n, not by n - 1",
    "running variance": "the running variance averages the unbiased variances",
    "untrained": "evaluation works before any training",
    "layout": "the memory layout of the input does not matter",
    "eps": "eps is added to the variance, inside the root",
    "one value": "a batch with one value for each channel is refused in training",
    "others": "evaluation of an example does not depend on the others",
    "factor": "gain and bias act on the output as they are",
    "constant": "a constant channel stays finite, output and gradient",
    "float64": "float32 gives what float64 gives, up to rounding",
    "neighbours": "an example does not depend on the others in the batch",
    "positions": "a position does not depend on the other positions",
    "one example": "a batch of one works, and gives the same",
}
SHORT = {name: short for short, name in TESTS.items()}


class Row(NamedTuple):
    """What is expected of one layer."""

    package: str
    is_new: bool
    path: str
    arguments: str
    settings: str
    kind: str
    other: frozenset[str]
    wrong: frozenset[str]
    source: str


class _Absent(type):
    """A class that stands for anything in a package that is absent."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ == "absent":  # a decorator, perhaps
            return lambda function: function
        return super().__call__(*args, **kwargs)


def _stand_in(name: str) -> Any:
    return _Absent(name, (), {"__module__": "absent"})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Let packages be imported that read data by others, which are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT.split():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: Any) -> None:
        def get(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _stand_in(name)

        module.__getattr__ = get


def expected(text: str) -> list[Row]:
    """Read the table."""
    rows, package, is_new = [], "", False
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        if line.startswith("["):
            package, _, new = line.strip("[]").partition(", ")
            is_new = new == "new"
            continue
        path, arguments, settings, kind, other, wrong, source = (
            part.strip() for part in line.split("|", 6)
        )
        sets = (
            frozenset(filter(None, map(str.strip, part.split(","))))
            for part in (other, wrong)
        )
        rows.append(
            Row(package, is_new, path, arguments, settings, kind, *sets, source)
        )
    return rows


def row(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return a condition, the same for every example of x."""
    return torch.linspace(-1, 1, size).to(x).expand(len(x), size)


def bare(text: str) -> str:
    """Return a text without spaces."""
    return re.sub(r"\s", "", text)


def judged(line: Row) -> dict[str, Any]:
    """Check one layer; return what was seen, and whether it was expected."""
    module, _, name = line.path.rpartition(".")
    result: dict[str, Any] = {
        "package": line.package,
        "is_new": line.is_new,
        "layer": f"{line.path}({line.arguments})",
        "source": line.source,
        "expected": {
            "kind": line.kind,
            "other": sorted(line.other),
            "wrong": sorted(line.wrong),
        },
    }
    try:
        kind = getattr(importlib.import_module(module), name)
        file = pathlib.Path(inspect.getsourcefile(kind) or "")
        if bare(line.source) not in bare(file.read_text()):
            raise LookupError(f"{file.name} does not hold the line of source")
        names = {"row": row, "torch": torch}
        layer = eval(f"kind({line.arguments})", {"kind": kind})  # noqa: S307 - our table
        settings = eval(f"dict({line.settings})", names)  # noqa: S307 - our table
    except Exception as error:  # noqa: BLE001 - another version may raise anything
        return result | {"verdict": "not judged", "why": f"{error!r:.300}"}
    start = time.process_time()
    try:
        report = check_norm_layer(layer, quiet=True, **settings)
    except ValueError as error:
        result["seconds"] = round(time.process_time() - start, 2)
        wanted = {"unknown": "must"}.get(line.kind, line.kind.partition(": ")[2])
        is_right = bool(wanted) and wanted in str(error)
        verdict = "right" if is_right else "not judged"
        return result | {"verdict": verdict, "why": str(error)}
    except Exception as error:  # noqa: BLE001 - the check is at fault
        return result | {"verdict": "wrong", "why": f"it raised {error!r:.300}"}
    seen = {
        "kind": report.kind,
        "other": sorted({o for f in report.findings for o in f.other.split(", ") if o}),
        "wrong": sorted(SHORT.get(name, name) for name in report.failed),
    }
    result |= {"seconds": round(time.process_time() - start, 2), "seen": seen}
    result["untested"] = [*report.untested]
    is_right = (
        report.kind.startswith(line.kind)
        and line.other == {*seen["other"]}
        and line.wrong == {*seen["wrong"]}
    )
    reasons = {
        f.name: f.reason
        for f in report.findings
        if f.verdict in ("wrong", "other") or f.other
    }
    verdict = "right" if is_right else "wrong"
    return result | {"verdict": verdict, "reasons": reasons}


def main() -> int:
    """Run; return 1 where a verdict is not right."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, help="where the record goes")
    parser.add_argument("--table", default="expected.txt", help="what is expected")
    parser.add_argument("--only", default="", help="part of the name of a class")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = expected((HERE / chosen.table).read_text())
    results = []
    for line in rows:
        asks = line.package in ("transformers", "diffusers")  # what is installed
        if not asks and not isinstance(sys.meta_path[-1], _Finder):
            sys.meta_path.append(_Finder())
        if chosen.only in line.path:
            results.append(judged(line))
            one = results[-1]
            if one["verdict"] != "right":
                wanted, seen = one["expected"], one.get("seen", one.get("why"))
                print(f"{one['verdict']}: {one['layer']}\n  {wanted}\n  {seen}")
    packages = dict.fromkeys(line.package for line in rows)
    print(f"\n{'package':30} right wrong not judged")
    for package in [*packages, None]:
        of = [r for r in results if package in (None, r["package"])]
        counts = Counter(r["verdict"] for r in of)
        numbers = [counts[verdict] for verdict in ("right", "wrong", "not judged")]
        print(
            f"{package or 'together':30} {numbers[0]:5} {numbers[1]:5} {numbers[2]:10}"
        )
    slowest = max(results, key=lambda r: r.get("seconds", 0))
    print(f"slowest: {slowest.get('seconds')} s of CPU, {slowest['layer']}")
    if chosen.out:
        versions = {p: importlib.metadata.version(p) for p in (*packages, "torch")}
        record: dict[str, Any] = {
            "python": platform.python_version(),
            "versions": versions,
        }
        old = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        if "first" in old:
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            record = {"date": today} | record | {"first": old["first"], "now": results}
        else:
            record["layers"] = results
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(r["verdict"] != "right" for r in results))


if __name__ == "__main__":
    sys.exit(main())
