"""Weight normalization and weight standardization as parametrizations of torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normbook.layers.native_norms import normalize
from normbook.normalize import METHODS, layout
from normbook.weight_norm import gain_of_rows, row_axes


class WeightNorm(nn.Module):
    """Train the length and the direction of the weights of each output.

    In the place of its weight a layer then has ``parametrizations.weight.original0``,
    the lengths g, of shape (D_out, 1, ...), and ``original1``, the directions v, which
    begin with the weight it has. A ``state_dict`` of
    ``torch.nn.utils.parametrizations.weight_norm`` with its usual ``dim=0`` fits.

    Source: Salimans and Kingma (2016), equation 2.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer.weight.data = torch.tensor([[3.0, 4.0]])
    >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", WeightNorm())
    >>> layer.parametrizations.weight.original0.tolist()
    [[5.0]]
    """

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        """Scale each row of v to the length g."""
        gain = gain_of_rows(v, g.reshape(-1))
        w = normalize(v, gain, None, **METHODS["weight norm"].of(v.ndim), eps=0.0)
        return w

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Find lengths and directions that give this weight."""
        axes = row_axes(weight)
        return torch.linalg.vector_norm(weight, dim=axes, keepdim=True), weight


class WeightStandardization(nn.Module):
    """Standardize the weights of each output before they are used.

    A normalization should follow the layer, for its outputs are large: n weights of
    variance 1 add up.

    Source: Qiao et al. (2019); on eps see
    :func:`normbook.weight_norm.weight_standardization_forward`.

    >>> WeightStandardization()(torch.tensor([[1.0, 3.0]]))
    tensor([[-1.,  1.]])
    """

    def __init__(self, eps: float = 1e-10) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, weight: Tensor) -> Tensor:
        """Standardize each row."""
        axes = layout("weight standardization", weight, "weights")
        w_hat = normalize(weight, None, None, **axes, eps=self.eps)
        return w_hat

    def extra_repr(self) -> str:
        """Name the setting."""
        return f"eps={self.eps}"
