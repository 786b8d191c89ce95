"""Audit ten models of public libraries, and three that are broken on purpose.

The weights are random and so is the data; nothing is downloaded. `--out FILE` writes
what was found, with the seconds of each. It needs timm, torchvision and transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import pathlib
import platform
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Of torchvision for another torch only the names of operators are missing.
_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # it is there
        _LIBRARY.define(f"{_name}(Tensor boxes, Tensor scores, float least) -> Tensor")

import timm  # noqa: E402 - behind what lets it be imported
import transformers  # noqa: E402

from normbook.checks import audit  # noqa: E402

PACKAGES = ("torch", "torchvision", "timm", "transformers")
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def images(name: str, size: int = 64, examples: int = 16, **settings: Any) -> Any:
    """Return a model of timm, and images."""
    model = timm.create_model(name, pretrained=False, num_classes=10, **settings)
    return model, torch.randn(examples, 3, size, size)


def tokens(kind: str, head: str = "Model", **settings: Any) -> Any:
    """Return a small model of transformers, and tokens."""
    config = getattr(transformers, f"{kind}Config")(vocab_size=100, **settings)
    model = getattr(transformers, f"{kind}{head}")(config)
    ids = torch.randint(3, 100, (16, 12))
    return model, {"input_ids": ids}


def t5() -> Any:
    """Return an encoder and decoder."""
    small = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    model, x = tokens("T5", "Model", **small)
    return model, x | {"decoder_input_ids": x["input_ids"][:, :5]}


def many() -> Any:
    """Return a model of 300 batch norms."""
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        for _ in range(300)
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 1), *blocks), torch.randn(16, 3, 16, 16)


class FrozenAndDrifted(nn.Module):
    """A backbone whose batch norms keep the statistics of other data."""

    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model("resnet18", num_classes=0)
        self.head = nn.Linear(512, 10)
        for part in self.body.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()  # type: ignore[union-attr]
                part.num_batches_tracked.fill_(1000)  # type: ignore[union-attr]
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten numbers."""
        y: Tensor = self.head(self.body(x))
        return y


class OverPositions(nn.Module):
    """A transformer whose last layer norm stands behind a transposition."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        """Return one vector for each example."""
        y: Tensor = self.norm(self.encoder(x).transpose(1, 2)).mean(-1)
        return y


class OwnNorm(nn.Module):
    """A norm of (N, C, H, W) that forgets evaluation, inside a network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by the batch in every mode."""
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        x = (x - mean) / torch.sqrt(var + 1e-5)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def own_norm() -> Any:
    """Return a small network with that norm."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), OwnNorm(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    return model, torch.randn(16, 3, 12, 12)


MODELS: dict[str, Callable[[], Any]] = {
    "resnet18": lambda: images("resnet18"),
    "efficientnet_b0": lambda: images("efficientnet_b0"),
    "mobilenetv3_small_100": lambda: images("mobilenetv3_small_100"),
    "convnext_atto": lambda: images("convnext_atto"),
    "vit_tiny_patch16_224": lambda: images("vit_tiny_patch16_224", img_size=64),
    "swin_tiny_patch4_window7_224": lambda: images("swin_tiny_patch4_window7_224", 224),
    "Llama": lambda: tokens("Llama", intermediate_size=128, **SIZES),
    "Bert": lambda: tokens("Bert", intermediate_size=128, **SIZES),
    "T5": t5,
    "Mamba": lambda: tokens("Mamba", hidden_size=64, num_hidden_layers=2),
    "300 batch norms": many,
    "broken: drifted": lambda: (FrozenAndDrifted(), torch.randn(16, 3, 64, 64)),
    "broken: positions": lambda: (OverPositions(), torch.randn(16, 12, 32)),
    "broken: own norm": own_norm,
}


def arguments(about: str | None) -> argparse.Namespace:
    """Return what was asked for on the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=pathlib.Path, help="where the record goes")
    parser.add_argument("--only", default="", help="part of the name of a model")
    return parser.parse_args()


def audited(models: dict[str, Callable[[], Any]], only: str) -> list[dict[str, Any]]:
    """Audit the models that are asked for; print and return what was found."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = []
    for name, build in models.items():
        if only not in name:
            continue
        torch.manual_seed(0)
        model, x = build()
        start, cpu = time.perf_counter(), time.process_time()
        try:
            report = audit(model, x, quiet=True)
        except (TypeError, ValueError) as error:  # refused
            print(f"\n=== {name}: {error}")
            found.append({"name": name, "cpu_seconds": 0.0, "refused": str(error)})
            continue
        seconds, of_cpu = time.perf_counter() - start, time.process_time() - cpu
        print(f"\n=== {name}: {seconds:.1f} s, {of_cpu:.1f} s of CPU\n{report}")
        content = json.loads(report.to_json())
        found.append({"name": name, "cpu_seconds": round(of_cpu, 1)} | content)
    return found


def origin(packages: Iterable[str]) -> dict[str, Any]:
    """Return when and with what a record is made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {p: importlib.metadata.version(p) for p in packages},
    }


def compare(
    doc: str | None, models: dict[str, Callable[[], Any]], packages: Iterable[str]
) -> None:
    """Audit models, and write what was found beside what was found first."""
    chosen = arguments(doc)
    now = audited(models, chosen.only)
    for one in now:
        del one["cpu_seconds"]
    if chosen.out:
        old = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        kept = {"first": old["first"]} if "first" in old else {}
        record = origin(packages) | kept | {"now": now}
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Audit the models, and write what was found."""
    chosen = arguments(__doc__)
    found = audited(MODELS, chosen.only)
    if chosen.out:
        record = origin(PACKAGES) | {"models": found}
        chosen.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
