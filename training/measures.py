"""Figures: how well what was found agrees with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from photon_ros.core.mask import mask_of
from training.answering import Found
from training.scene import Box, SceneObject

MIN_IOU = 0.5


def iou(first: Box, second: Box) -> float:
    """Return intersection over union of two boxes."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (first, second))
    return common / (areas - common)


def matched_boxes(found: list[Found], truth: list[Box]) -> list[tuple[int, int, float]]:
    """Return (index found, index of truth, IoU) of pairs of at least MIN_IOU, best first."""
    table = [
        (iou(thing.box, box), i, j) for i, thing in enumerate(found) for j, box in enumerate(truth)
    ]
    pairs: list[tuple[int, int, float]] = []
    for overlap, i, j in sorted(table, reverse=True):
        if overlap < MIN_IOU:
            break
        if all(i != a and j != b for a, b, _ in pairs):
            pairs.append((i, j, overlap))
    return pairs


def matched_points(found: list[Found], truth: list[Box]) -> list[tuple[int, int]]:
    """Return (index found, index of truth): each point in a box that no other one took."""
    pairs: list[tuple[int, int]] = []
    for i, thing in enumerate(found):
        inside = [
            (abs(thing.x - (box[0] + box[2]) / 2) + abs(thing.y - (box[1] + box[3]) / 2), j)
            for j, box in enumerate(truth)
            if box[0] <= thing.x <= box[2] and box[1] <= thing.y <= box[3]
        ]
        free = [(distance, j) for distance, j in inside if all(j != taken for _, taken in pairs)]
        if free:
            pairs.append((i, min(free)[1]))
    return pairs


@dataclass(slots=True)
class Tally:
    """Counts of right, wrong and missed over many answers."""

    num_right: int = 0
    num_found: int = 0
    num_truth: int = 0
    overlaps: list[float] = field(default_factory=list)

    def add(self, right: int, found: int, truth: int) -> None:
        """Count one answer."""
        self.num_right += right
        self.num_found += found
        self.num_truth += truth

    @property
    def precision(self) -> float:
        """Share of what was found that is right."""
        return self.num_right / max(1, self.num_found)

    @property
    def recall(self) -> float:
        """Share of the truth that was found."""
        return self.num_right / max(1, self.num_truth)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.num_right / max(1, self.num_found + self.num_truth)

    @property
    def mean_iou(self) -> float:
        """Mean overlap of the matched boxes."""
        return float(np.mean(self.overlaps)) if self.overlaps else 0.0


def count_boxes(tally: Tally, found: list[Found], truth: NDArray[np.float32]) -> list[int]:
    """Count one answer of detect; return the indices of the truth that were found."""
    pairs = matched_boxes(found, [tuple(box) for box in truth.tolist()])
    tally.add(len(pairs), len(found), len(truth))
    tally.overlaps += [overlap for _, _, overlap in pairs]
    return [j for _, j, _ in pairs]


def count_points(tally: Tally, found: list[Found], truth: NDArray[np.float32]) -> None:
    """Count one answer of point."""
    pairs = matched_points(found, [tuple(box) for box in truth.tolist()])
    tally.add(len(pairs), len(found), len(truth))


@dataclass(slots=True)
class OutlineTally:
    """What is measured on outlines.

    Attributes:
        with_point, without_point: overlap of each mask asked for with a point on the object,
            and without; 0 where nothing was found.
        num_absent, num_false_alarms: prompts of what is not there, and those answered.
    """

    with_point: list[float] = field(default_factory=list)
    without_point: list[float] = field(default_factory=list)
    num_absent: int = 0
    num_false_alarms: int = 0


def mask_iou(
    ring: Sequence[tuple[float, float]], truth: SceneObject, shape: tuple[int, ...]
) -> float:
    """Return intersection over union of a drawn outline and the mask of an object.

    Args:
        ring: corners (x, y) normalised to the picture; drawn as the product draws a mask.
        truth: the object; its whole mask counts, hidden parts too.
        shape: (height, width) of the picture, pixels.
    """
    height, width = shape
    drawn = mask_of([ring], width_px=width, height_px=height)
    x_min, y_min, x_max, y_max = (int(value) for value in truth.box)
    common = int((drawn[y_min:y_max, x_min:x_max] & truth.mask).sum())
    return common / max(1, int(drawn.sum()) + int(truth.mask.sum()) - common)
