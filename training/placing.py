"""Patches say where their object is, through the region model's own decoders.

What the text decoder has to do later, to pass on from the patches of an object where it lies,
is easy when a linear map of a patch's embedding already is what the region model understands.
So that is taught early: two maps for the centre and one for the size, which are thrown away
afterwards, and the region model's decoders, which are kept.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from photon_ros.models.moondream.region import RegionModel
from training.cutting import Sample
from training.packing import coord_bin, size_bin
from training.softlabels import COORD_SIGMA_BINS, SIZE_SIGMA_BINS, soft_cross_entropy

# Cells of an object, of sixteen, that make a patch belong to it.
_MIN_CELLS = 3


class PlaceHead(nn.Module):
    """Linear from an image embedding to hidden states that name centre and size.

    Args:
        dim: width of the embeddings, and of the region model's input.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.maps = nn.Linear(dim, 3 * dim)

    def loss(self, region: RegionModel, embeds_FPD: Tensor, samples: list[Sample]) -> Tensor:
        """Return the mean cross entropy of centre and size over the patches that show objects.

        An object counts the square root of its patches: large ones have many, each an easy one.
        """
        owner = np.stack([shown_object(sample) for sample in samples])
        frames, patches = np.nonzero(owner)
        if len(frames) == 0:
            return embeds_FPD.sum() * 0.0
        objects = owner[frames, patches] - 1
        boxes = np.stack([samples[f].boxes[i] for f, i in zip(frames, objects, strict=True)])
        num_patches = (owner[frames] == owner[frames, patches][:, None]).sum(1)
        weights = torch.from_numpy(num_patches.astype(np.float32) ** -0.5)
        seen = embeds_FPD[torch.from_numpy(frames), torch.from_numpy(patches)]
        across, down, extent = self.maps(seen).chunk(3, dim=-1)
        middles = torch.from_numpy(coord_bin((boxes[:, :2] + boxes[:, 2:]) / 2))
        sizes = torch.from_numpy(size_bin(boxes[:, 2:] - boxes[:, :2]))
        size_logits = region.size_logits(extent)
        losses = torch.stack(
            [
                soft_cross_entropy(region.coord_logits(across), middles[:, 0], COORD_SIGMA_BINS),
                soft_cross_entropy(region.coord_logits(down), middles[:, 1], COORD_SIGMA_BINS),
                soft_cross_entropy(size_logits[:, 0], sizes[:, 0], SIZE_SIGMA_BINS),
                soft_cross_entropy(size_logits[:, 1], sizes[:, 1], SIZE_SIGMA_BINS),
            ]
        )
        return (losses.mean(0) * weights).sum() / weights.sum()


def shown_object(sample: Sample) -> NDArray[np.int64]:
    """Return (P,) int64: 1 + the object that a patch shows most of, 0 where there is none.

    The patch that holds an object's centre shows it however small it is, unless another one
    takes more of that patch.
    """
    owner, centre = sample.owners(_MIN_CELLS), sample.centre_patches()
    free = owner[centre] == 0
    owner[centre[free]] = np.flatnonzero(free) + 1
    return owner
