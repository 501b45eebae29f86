"""A head for training only: it names class, colour and box of what each cell shows.

It gives the vision encoder a signal at every cell, long before the text decoder can.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.cutting import CELL_SIDE, CELLS_PER_PATCH, NO_COLOUR, Sample

BACKGROUND_WEIGHT = 0.12
BOX_WEIGHT = 0.5
_NUM_CLASSES = 1 + len(CLASSES)  # 0 is the backdrop
_NUM_COLOURS = len(COLOURS)
_CHANNELS = _NUM_CLASSES + _NUM_COLOURS + 4
_UNKNOWN = -100
_SIDE = CELL_SIDE // CELLS_PER_PATCH


class DenseHead(nn.Module):
    """Linear from an image embedding to the cells of its patch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, CELLS_PER_PATCH**2 * _CHANNELS)

    def forward(self, embeds_FPD: Tensor) -> Tensor:
        """Return (F, CELL_SIDE, CELL_SIDE, channels) of embeddings (F, P, D)."""
        cells, side = CELLS_PER_PATCH, _SIDE
        out: Tensor = self.out(embeds_FPD).view(-1, side, side, cells, cells, _CHANNELS)
        return out.permute(0, 1, 3, 2, 4, 5).reshape(-1, CELL_SIDE, CELL_SIDE, _CHANNELS)

    def directions(self) -> tuple[Tensor, Tensor]:
        """Return what the head looks for: classes (num_classes, D), colours (num_colours, D)."""
        weight = self.out.weight.detach().view(-1, _CHANNELS, self.out.in_features).mean(dim=0)
        return weight[1:_NUM_CLASSES], weight[_NUM_CLASSES : _NUM_CLASSES + _NUM_COLOURS]


class DenseTarget:
    """What the cells of a batch of scenes truly show.

    Attributes:
        kinds: (F, CELL_SIDE, CELL_SIDE) int64; 0 backdrop, 1 + class.
        colours: the same shape, index of the colour or -100 where there is none.
        boxes: (F, CELL_SIDE, CELL_SIDE, 4) float32: offset of the box's centre in eighths of
            the image, and log2 of its size.
        weights: (F, CELL_SIDE, CELL_SIDE) float32, 0 for the backdrop and 1 on average over
            the rest. Cells of small objects weigh more: most cells lie within large objects,
            far from any edge, where the class is hardest to tell.
    """

    def __init__(self, samples: list[Sample]) -> None:
        targets = [_target(sample) for sample in samples]
        self.kinds = torch.from_numpy(np.stack([target[0] for target in targets]))
        self.colours = torch.from_numpy(np.stack([target[1] for target in targets]))
        self.boxes = torch.from_numpy(np.stack([target[2] for target in targets]))
        weights = torch.from_numpy(np.stack([_weights(sample) for sample in samples]))
        seen = weights > 0
        self.weights = weights * (seen.sum() / weights.sum().clamp(min=1e-6))


def _target(
    sample: Sample,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    cells = sample.cells
    colours = np.where(sample.colours == NO_COLOUR, _UNKNOWN, sample.colours)
    kind_of = np.concatenate([[0], sample.kinds + 1])
    colour_of = np.concatenate([[_UNKNOWN], colours])
    low, high = sample.boxes[:, :2], sample.boxes[:, 2:]
    box_of = np.zeros((len(sample.kinds) + 1, 4), np.float32)
    box_of[1:, :2] = (low + high) / 2
    box_of[1:, 2:] = np.log2(np.maximum(high - low, 1 / 1024))
    boxes = box_of[cells]
    middles = (np.arange(CELL_SIDE, dtype=np.float32) + 0.5) / CELL_SIDE
    boxes[..., 0] = (boxes[..., 0] - middles[None, :]) * 8
    boxes[..., 1] = (boxes[..., 1] - middles[:, None]) * 8
    return kind_of[cells].astype(np.int64), colour_of[cells].astype(np.int64), boxes


def _weights(sample: Sample) -> NDArray[np.float32]:
    num_cells = np.bincount(sample.cells.ravel(), minlength=len(sample.kinds) + 1)
    weight_of = np.maximum(num_cells, 1).astype(np.float32) ** np.float32(-0.5)
    weight_of[0] = 0
    return np.asarray(weight_of[sample.cells], np.float32)


def dense_loss(out: Tensor, target: DenseTarget) -> Tensor:
    """Return the loss of (F, CELL_SIDE, CELL_SIDE, channels), normalised by the foreground.

    Most cells show backdrop; dividing by the number of foreground cells keeps their signal
    the same however few they are.
    """
    flat = out.float().flatten(0, 2)
    kinds, colours = target.kinds.flatten(), target.colours.flatten()
    seen = kinds > 0
    num_seen = seen.sum().clamp(min=1)
    cell_weights = torch.where(seen, target.weights.flatten(), BACKGROUND_WEIGHT)
    kind_losses = F.cross_entropy(flat[:, :_NUM_CLASSES], kinds, reduction="none")
    kind_loss = (kind_losses * cell_weights).sum()
    fore, boxes, weights = flat[seen], target.boxes.flatten(0, 2)[seen], cell_weights[seen]
    colour_out = fore[:, _NUM_CLASSES : _NUM_CLASSES + _NUM_COLOURS]
    colour_losses = F.cross_entropy(
        colour_out, colours[seen], ignore_index=_UNKNOWN, reduction="none"
    )
    box_losses = F.smooth_l1_loss(fore[:, -4:], boxes, reduction="none", beta=0.25).sum(-1)
    weighted = ((colour_losses + BOX_WEIGHT * box_losses) * weights).sum()
    return (kind_loss + weighted) / num_seen


def dense_accuracy(out: Tensor, target: DenseTarget) -> tuple[float, float]:
    """Return the share of foreground cells of the right class, and of the right colour."""
    seen = target.kinds > 0
    kinds = out[..., :_NUM_CLASSES].argmax(-1)
    colours = out[..., _NUM_CLASSES : _NUM_CLASSES + _NUM_COLOURS].argmax(-1)
    known = target.colours >= 0
    right_kind = (kinds == target.kinds)[seen].sum() / seen.sum().clamp(min=1)
    right_colour = (colours == target.colours)[known].sum() / known.sum().clamp(min=1)
    return float(right_kind), float(right_colour)
