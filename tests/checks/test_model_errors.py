"""What the audit itself raises is told, and is not taken for an error of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from normbook.checks.model import flow, subject, values
from normbook.checks.model import functional as functions
from normbook.checks.model.audit import audit


class Branch(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.batch_norm(
            self.linear(self.norm(x)), None, None, None, None, True
        )


def table() -> Tensor:
    return torch.randn((16, 8), generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Sequential(Branch()))


def untested() -> str:
    return "\n".join(audit(net(), table(), quiet=True).untested)


def of_the_audit(code: str) -> Any:
    """Make a function that stands in the audit's own files."""
    made: dict[str, Any] = {}
    exec(compile(code, values.__file__, "exec"), made)  # noqa: S102
    return made["planted"]


BROKEN = of_the_audit("def planted(*_, **__): raise KeyError('a slip of our own')")
HOOKS_BROKEN = of_the_audit(
    "def planted(model, names, **_):\n"
    " def hook(*_): raise KeyError('a slip of our own')\n"
    " for n in names: model.get_submodule(n).register_forward_hook(hook)\n return []"
)


def test_nothing_is_raised_of_a_sound_audit() -> None:
    assert "the audit raised" not in untested()


@pytest.mark.parametrize(
    ("where", "name", "planted", "level"),
    [
        (values, "kernels_of", BROKEN, "look at the weights that convolutions make"),
        (flow, "noting", HOOKS_BROKEN, "look for blocks that add their branch"),
        (subject, "noting", HOOKS_BROKEN, "look for blocks that add their branch"),
        (functions, "signature", BROKEN, "compare how the function is called"),
    ],
)
def test_an_error_of_the_audit_is_told_with_what_it_left_undone(
    where: Any, name: str, planted: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, planted)
    report = untested()
    assert level in report
    assert "as the audit raised KeyError: 'a slip of our own'" in report


class Wide(nn.Module):
    """Takes another width in training, for which the next layer has no weights."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], 1) if self.training else x


def test_an_error_that_the_model_raises_under_a_mode_is_the_models() -> None:
    report = audit(nn.Sequential(Wide(), net()), table(), quiet=True)
    assert "the audit raised" not in "\n".join(report.untested)


class Cache:
    """What language models return beside the output; its parts are made when used."""

    def __iter__(self) -> Any:
        raise AttributeError("'Cache' object has no attribute 'keys'")


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Cache, ...]]:
        return self.net(x), (Cache(),)


def test_what_cannot_be_walked_through_in_an_output_is_left_alone() -> None:
    assert "the audit raised" not in "".join(audit(Cached(), table()).untested)
