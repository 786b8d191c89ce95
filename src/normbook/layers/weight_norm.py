"""Weight normalization and its kin as parametrizations of torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normbook.layers.native_norms import normalize
from normbook.normalize import METHODS, layout
from normbook.weight_norm import gain_of_rows, power_iteration, row_axes, spectral_norm


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


class ScaledWeightStandardization(nn.Module):
    """Give the weights of each output mean 0, and a length that is trained.

    As in :class:`WeightNorm`, ``original0`` are the lengths g, (D_out, 1, ...), which
    begin with ``gain``, and ``original1`` the weight as it was.

    Source: Brock, De and Smith (2021); on the gain see
    :func:`normbook.weight_norm.scaled_weight_standardization_forward`.

    >>> layer = nn.Linear(4, 1, bias=False)
    >>> layer.weight.data = torch.tensor([[1.0, 3.0, 1.0, 3.0]])
    >>> ours = ScaledWeightStandardization(2.0)
    >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", ours)
    >>> layer.weight.tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

    def __init__(self, gain: float = 1.0, eps: float = 1e-10) -> None:
        super().__init__()
        self.gain, self.eps = gain, eps

    def forward(self, g: Tensor, w: Tensor) -> Tensor:
        """Standardize each row and scale it to the length g."""
        gain = gain_of_rows(w, g.reshape(-1))
        axes = METHODS["scaled weight standardization"].of(w.ndim)
        w_hat = normalize(w, gain, None, **axes, eps=self.eps)
        return w_hat

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Begin with the gain as every length."""
        axes = row_axes(weight)
        g = torch.full_like(weight.detach().sum(axes, keepdim=True), self.gain)
        return g, weight

    def extra_repr(self) -> str:
        """Name the settings."""
        return f"gain={self.gain}, eps={self.eps}"


class SpectralNorm(nn.Module):
    """Divide a weight by its largest singular value.

    ``steps`` power iterations are done at each use in training, and 15 at the start,
    which is drawn from ``generator``. A ``state_dict`` of
    ``torch.nn.utils.parametrizations.spectral_norm`` with its usual ``dim=0`` fits.

    Source: Miyato et al. (2018).

    >>> w = torch.diag(torch.tensor([4.0, 1.0]))
    >>> SpectralNorm(w, generator=torch.Generator().manual_seed(0))(w)
    tensor([[1.0000, 0.0000],
            [0.0000, 0.2500]])
    """

    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, steps: int = 1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        row_axes(weight)
        self.steps = steps
        with torch.no_grad():
            v = torch.randn(weight[0].numel(), generator=generator).to(weight)
            u, v = power_iteration(weight, v / torch.linalg.vector_norm(v), 15)
        self.register_buffer("_u", u)
        self.register_buffer("_v", v)

    def forward(self, weight: Tensor) -> Tensor:
        """Divide; in training, first look for the singular vectors once more."""
        if self.training:
            with torch.no_grad():
                u, v = power_iteration(weight, self._v, self.steps)
                self._u.copy_(u)
                self._v.copy_(v)
        # Clones: a later use may change the buffers before the backward pass of this.
        w_hat: Tensor = spectral_norm(weight, self._u.clone(), self._v.clone())
        return w_hat

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Take the weight as it is."""
        return weight

    def extra_repr(self) -> str:
        """Name the setting."""
        return f"steps={self.steps}"
