"""The outline of an object as nano draws it: corners at fixed angles around the centre of its box.

Angles are those of the box stretched to a square, clockwise from straight up, so where a ring
starts and which way it runs is never in question.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_CORNERS = 16
_NUM_STEPS = 96  # along each ray
_ANGLES = 2 * np.pi * np.arange(NUM_CORNERS) / NUM_CORNERS
_DIRECTIONS = np.stack([np.sin(_ANGLES), -np.cos(_ANGLES)], axis=1)
# From the centre of the box to its edge.
_REACH = _DIRECTIONS * (0.5 / np.abs(_DIRECTIONS).max(axis=1, keepdims=True))
_SHARES = (np.arange(_NUM_STEPS) + 0.5) / _NUM_STEPS
_RAYS = 0.5 + _REACH[:, None] * _SHARES[None, :, None]  # (corners, steps, 2)


def corners_of(mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return on each ray from the centre the point furthest out that is covered.

    Args:
        mask: (h, w) bool, what of the box is covered; neither side is 0.

    Returns:
        (NUM_CORNERS, 2) float32 (x, y) in [0, 1] in units of the box. A ray that meets nothing
        ends at the centre.
    """
    size = np.array(mask.shape[::-1])
    columns, rows = np.moveaxis((_RAYS * size).astype(np.int64), -1, 0)
    covered = mask[rows, columns]
    furthest = _NUM_STEPS - covered[:, ::-1].argmax(axis=1)
    shares = np.where(covered.any(axis=1), furthest / _NUM_STEPS, 0.0)
    return np.asarray(0.5 + _REACH * shares[:, None], np.float32)


def mirrored_corners(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return corners (num_objects, NUM_CORNERS, 2) of the same objects seen in a mirror."""
    mirrored: NDArray[np.float32] = corners[:, -np.arange(NUM_CORNERS) % NUM_CORNERS]
    mirrored[..., 0] = 1 - mirrored[..., 0]  # a copy: it was taken by indices
    return mirrored
