"""Query-key normalization as a layer, to stand before the scores of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normbook.arguments import whole_number
from normbook.layers.layer_norm import ModelRMSNorm


class QueryKeyNorm(nn.Module):
    """RMSNorm of queries and of keys, of each head or over all heads.

    Queries and keys are (..., H, T, D), as ``scaled_dot_product_attention`` takes them.
    Each head is normalized by itself, with gains of shape ``(head_size,)`` that all
    heads share; with ``num_heads`` all heads together, with gains ``(num_heads,
    head_size)``. Where several heads share a key, ``num_key_heads`` is the number of
    those of the keys. ``eps``, ``offset`` and ``rounds`` are those of
    :class:`~normbook.layers.layer_norm.ModelRMSNorm`.

    Source: :func:`normbook.query_key_norm.query_key_norm_forward`.

    >>> layer = QueryKeyNorm(2, eps=0.0)
    >>> q, k = layer(torch.tensor([[1.0, 7.0]]), torch.tensor([[10.0, 70.0]]))
    >>> q.detach(), k.detach()
    (tensor([[0.2000, 1.4000]]), tensor([[0.2000, 1.4000]]))
    """

    def __init__(
        self,
        head_size: int,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        *,
        num_heads: int | None = None,
        num_key_heads: int | None = None,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_heads is None and num_key_heads is not None:
            raise ValueError(
                f"num_key_heads must come with num_heads, got {num_key_heads!r} alone; "
                "heads that are normalized each by itself are not counted."
            )
        self.is_per_head = num_heads is None
        rest = (eps, elementwise_affine, device, dtype)
        of_keys = num_heads if num_key_heads is None else num_key_heads
        for name, heads in (("q", num_heads), ("k", of_keys)):
            shape: tuple[int, ...] = (head_size,)
            if heads is not None:
                about = "pass how many heads there are, e.g. 8"
                shape = (whole_number("a number of heads", heads, about), head_size)
            self.add_module(f"{name}_norm", ModelRMSNorm(shape, *rest, **options))

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize both; each keeps its shape."""
        return self._of(self.q_norm, query), self._of(self.k_norm, key)

    def _of(self, norm: Any, x: Tensor) -> Tensor:
        if self.is_per_head:
            return norm(x)  # type: ignore[no-any-return]
        norm._check_tensor(x)
        if x.ndim < 3:
            raise ValueError(
                "queries and keys of all heads must have shape (..., H, T, D), got "
                f"{tuple(x.shape)}; split the heads and move them before the tokens."
            )
        return norm(x.transpose(-3, -2)).transpose(-3, -2)  # type: ignore[no-any-return]
