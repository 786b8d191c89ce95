"""What a user of the installed package writes first: see `tools/dist.sh`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normbook.checks import audit
from normbook.layers.folding import fold_batch_norm
from normbook.pytest_plugin import AssertNormLayer


class Slow(nn.BatchNorm1d):
    """Takes the variance without bias into the normalization: a bug."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        super().forward(x)
        return (x - x.mean(0)) / torch.sqrt(x.var(0) + self.eps)


def test_a_right_layer_passes(assert_norm_layer: AssertNormLayer) -> None:
    assert_norm_layer(nn.BatchNorm1d(16), shape=(8, 16))


def test_a_wrong_layer_fails(assert_norm_layer: AssertNormLayer) -> None:
    with pytest.raises(AssertionError, match="variance"):
        assert_norm_layer(Slow(16), shape=(8, 16))


def test_a_model_is_looked_at_and_folded() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
    model(torch.randn(32, 4))
    audit(model, torch.randn(32, 4), quiet=True)
    folded = fold_batch_norm(model.eval())
    assert not any(isinstance(m, nn.BatchNorm1d) for m in folded.modules())


def test_what_only_the_book_needs_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'normbook\[book\]'"):
        import normbook.figures  # noqa: F401
