"""Soft labels: a bin and, less so, its neighbours are right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

COORD_SIGMA_BINS = 1.3
SIZE_SIGMA_BINS = 1.0


def soft_cross_entropy(logits: Tensor, target_bins: Tensor, sigma: float) -> Tensor:
    """Return (R,) cross entropies against a Gaussian around real-valued target bins.

    Args:
        logits: (R, bins).
        target_bins: (R,) float32.
        sigma: width of the Gaussian in bins.
    """
    bins = torch.arange(logits.shape[-1], dtype=torch.float32)
    label = torch.softmax(-0.5 * ((bins - target_bins[:, None]) / sigma) ** 2, dim=-1)
    return -(label * F.log_softmax(logits.float(), dim=-1)).sum(-1)
