"""Region model: coordinates and sizes in and out of the text decoder.

A value enters as Fourier features and a linear (:meth:`RegionModel.embed_coords`,
:meth:`RegionModel.embed_sizes`) and leaves as a distribution over bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from photon_ros.models.moondream.config import RegionConfig
from photon_ros.models.moondream.layers import Mlp, linear

SIZE_OCTAVES = 10  # the smallest size is 2^-10 of the image


class RegionModel(nn.Module):
    """Encoders and decoders of normalised coordinates and sizes."""

    def __init__(self, config: RegionConfig) -> None:
        super().__init__()
        self.config = config
        self.coord_features = nn.Parameter(torch.empty(1, config.coord_feat_dim // 2))
        self.size_features = nn.Parameter(torch.empty(2, config.size_feat_dim // 2))
        self.coord_encoder = nn.Linear(config.coord_feat_dim, config.dim)
        self.size_encoder = nn.Linear(config.size_feat_dim, config.dim)
        self.coord_decoder = Mlp(config.dim, config.inner_dim, config.coord_out_dim)
        self.size_decoder = Mlp(config.dim, config.inner_dim, config.size_out_dim)
        nn.init.normal_(self.coord_features)
        nn.init.normal_(self.size_features)

    def embed_coords(self, values: Tensor) -> Tensor:
        """Return (..., D) of coordinates (..., 1) in [0, 1)."""
        return linear(fourier(values, self.coord_features), self.coord_encoder)

    def embed_sizes(self, values: Tensor) -> Tensor:
        """Return (..., D) of (width, height) pairs (..., 2) in (0, 1]."""
        return linear(fourier(values, self.size_features), self.size_encoder)

    def coord_logits(self, hidden: Tensor) -> Tensor:
        """Return (..., num_coord_bins) of the residual stream (..., D)."""
        logits: Tensor = self.coord_decoder(hidden)
        return logits

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Return (..., 2, num_size_bins) of the residual stream (..., D): width, height."""
        logits: Tensor = self.size_decoder(hidden)
        return logits.view(*logits.shape[:-1], 2, self.config.num_size_bins)


def fourier(values: Tensor, features: Tensor) -> Tensor:
    """Return [cos f | sin f] of f = 2 pi values @ features."""
    angles = (2 * math.pi * values) @ features
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def coord_values(num_bins: int) -> tuple[float, ...]:
    """Return the value of each coordinate bin b: b / num_bins."""
    return tuple(b / num_bins for b in range(num_bins))


def size_values(num_bins: int) -> tuple[float, ...]:
    """Return the value of each size bin b: 2^(10 b / (num_bins - 1) - 10)."""
    return tuple(2.0 ** (SIZE_OCTAVES * b / (num_bins - 1) - SIZE_OCTAVES) for b in range(num_bins))
