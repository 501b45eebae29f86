"""Patches say where their objects are and how they are shaped, for the text decoder to pass on.

What the text decoder has to do later, to pass on from the patches of an object where it lies,
is easy when a linear map of a patch's embedding already is what the region model understands.
So that is taught early: maps for centre and size, which are thrown away afterwards, and the
region model's decoders, which are kept. People in a group share patches, so a patch also says
where the second object is that it shows; and an outline can only be drawn of what the patches
know, so each says the corners of its object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from photon_ros.models.moondream.region import RegionModel
from training.cutting import Sample
from training.outline import NUM_CORNERS
from training.packing import coord_bin, size_bin
from training.softlabels import COORD_SIGMA_BINS, SIZE_SIGMA_BINS, soft_cross_entropy

# Cells of an object, of sixteen, that make a patch belong to it.
_MIN_CELLS = 3
# Of the second object of a patch less must be seen.
_MIN_CELLS_BESIDE = 2
_BESIDE_WEIGHT = 0.5
# Corners are told in units of the box; errors below this count squared.
_CORNER_BETA = 0.05
# Brings the sum over the corners to the size of the other losses.
_CORNERS_WEIGHT = 0.3


@dataclass(frozen=True, eq=False, slots=True)
class Shown:
    """Which patches of a batch show which objects, and the truth about those; N pairs, or none.

    Attributes:
        frames, patches: (N,) int64 where.
        boxes: (N, 4) float32 (x_min, y_min, x_max, y_max) of the object in [0, 1].
        corners: (N, NUM_CORNERS, 2) float32 its outline in units of the box.
        weights: (N,) float32. An object counts the square root of its patches: large ones
            have many, each an easy one.
    """

    frames: NDArray[np.int64]
    patches: NDArray[np.int64]
    boxes: NDArray[np.float32]
    corners: NDArray[np.float32]
    weights: NDArray[np.float32]

    @classmethod
    def by(cls, owner: NDArray[np.int64], samples: list[Sample]) -> Shown:
        """Return the pairs of (F, P): 1 + the object of each patch, 0 where there is none."""
        frames, patches = np.nonzero(owner)
        objects = owner[frames, patches]
        num_patches = (owner[frames] == objects[:, None]).sum(1)
        # Object 1 of a scene is the first of its rows.
        rows = np.cumsum([0, *(len(sample.kinds) for sample in samples)])[frames] + objects - 1
        return cls(
            frames,
            patches,
            np.concatenate([sample.boxes for sample in samples])[rows],
            np.concatenate([sample.corners for sample in samples])[rows],
            num_patches.astype(np.float32) ** np.float32(-0.5),
        )

    def embeddings(self, embeds_FPD: Tensor) -> Tensor:
        """Return (N, D): the embedding of each patch."""
        return embeds_FPD[torch.from_numpy(self.frames), torch.from_numpy(self.patches)]

    def mean(self, losses: Tensor) -> Tensor:
        """Return the weighted mean of losses (N,); 0 where nothing is shown."""
        weights = torch.from_numpy(self.weights)
        return (losses * weights).sum() / weights.sum().clamp(min=1e-6)


def shown_in(samples: list[Sample]) -> tuple[Shown, Shown]:
    """Return what the patches of a batch show most of, and what second most."""
    first = [shown_object(sample) for sample in samples]
    beside = [object_beside(sample, owner) for sample, owner in zip(samples, first, strict=True)]
    return Shown.by(np.stack(first), samples), Shown.by(np.stack(beside), samples)


class PlaceHead(nn.Module):
    """Linear from an image embedding to hidden states that name centre and size.

    Args:
        dim: width of the embeddings, and of the region model's input.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.maps = nn.Linear(dim, 3 * dim)
        self.maps_beside = nn.Linear(dim, 3 * dim)

    def loss(self, region: RegionModel, embeds_FPD: Tensor, first: Shown, beside: Shown) -> Tensor:
        """Return the mean cross entropy of centre and size over the patches that show objects.

        Half as much is added for the second object of the patches that show two.
        """
        one = _place_loss(region, self.maps, embeds_FPD, first)
        other = _place_loss(region, self.maps_beside, embeds_FPD, beside)
        return one + _BESIDE_WEIGHT * other


class OutlineHead(nn.Module):
    """Linear from an image embedding to the corners of the outline of what its patch shows."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, 2 * NUM_CORNERS)

    def loss(self, embeds_FPD: Tensor, shown: Shown) -> Tensor:
        """Return the mean smooth L1 loss, summed over the corners of an object."""
        target = torch.from_numpy(shown.corners).flatten(1) - 0.5
        out = self.out(shown.embeddings(embeds_FPD)).float()
        losses = F.smooth_l1_loss(out, target, reduction="none", beta=_CORNER_BETA)
        return _CORNERS_WEIGHT * shown.mean(losses.sum(-1))


def _place_loss(region: RegionModel, maps: nn.Linear, embeds_FPD: Tensor, shown: Shown) -> Tensor:
    """Return the mean cross entropy of x, y, width and height."""
    across, down, extent = maps(shown.embeddings(embeds_FPD)).chunk(3, dim=-1)
    low, high = shown.boxes[:, :2], shown.boxes[:, 2:]
    middles = torch.from_numpy(coord_bin(np.asarray((low + high) / 2, np.float32)))
    sizes = torch.from_numpy(size_bin(high - low))
    size_logits = region.size_logits(extent)
    losses = torch.stack(
        [
            soft_cross_entropy(region.coord_logits(across), middles[:, 0], COORD_SIGMA_BINS),
            soft_cross_entropy(region.coord_logits(down), middles[:, 1], COORD_SIGMA_BINS),
            soft_cross_entropy(size_logits[:, 0], sizes[:, 0], SIZE_SIGMA_BINS),
            soft_cross_entropy(size_logits[:, 1], sizes[:, 1], SIZE_SIGMA_BINS),
        ]
    )
    return shown.mean(losses.mean(0))


def shown_object(sample: Sample) -> NDArray[np.int64]:
    """Return (P,) int64: 1 + the object that a patch shows most of, 0 where there is none.

    The patch that holds an object's centre shows it however small it is, unless another one
    takes more of that patch.
    """
    owner, centre = sample.owners(_MIN_CELLS), sample.centre_patches()
    free = owner[centre] == 0
    owner[centre[free]] = np.flatnonzero(free) + 1
    return owner


def object_beside(sample: Sample, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (P,) int64: 1 + the object that a patch shows second most of, 0 where none is.

    Args:
        sample: the scene.
        first: (P,) as of :func:`shown_object`.
    """
    counts = sample.cells_shown()
    if len(counts) == 0:
        return np.zeros(counts.shape[1], np.int64)
    owned = np.flatnonzero(first)
    counts[first[owned] - 1, owned] = 0
    counts[:, first == 0] = 0
    return np.where(counts.max(0) >= _MIN_CELLS_BESIDE, counts.argmax(0) + 1, 0)
