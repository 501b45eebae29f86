"""Rings of points to a raster mask: non-zero winding, 4x4 samples a pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SAMPLES = 4  # along each side of a pixel


def mask_of(
    rings: Sequence[Sequence[tuple[float, float]]], *, width_px: int, height_px: int
) -> NDArray[np.bool_]:
    """Return (height, width) bool: pixels of which more than half lies inside.

    Args:
        rings: closed rings of (x, y), normalised to the image; may lie outside of it in part.
        width_px, height_px: size of the image.
    """
    rows, columns = height_px * SAMPLES, width_px * SAMPLES
    # How the winding number changes from one sample to the next, along each row of samples.
    change = np.zeros((rows, columns + 1), dtype=np.int16)
    for ring in rings:
        points = np.asarray(ring, dtype=np.float64).reshape(-1, 2) * (columns, rows)
        if len(points) >= 3 and np.isfinite(points).all():
            _add_ring(change, points)
    is_inside = change[:, :columns].cumsum(axis=1, dtype=np.int16) != 0
    covered = is_inside.reshape(height_px, SAMPLES, width_px, SAMPLES).sum(axis=(1, 3))
    mask: NDArray[np.bool_] = covered > SAMPLES * SAMPLES / 2
    return mask


def _add_ring(change: NDArray[np.int16], points: NDArray[np.float64]) -> None:
    """Add one ring's edges; ``points`` in samples, whose centres are at n + 1/2."""
    num_rows, num_columns = change.shape
    starts, ends = points, np.roll(points, -1, axis=0)
    for (x1, y1), (x2, y2) in zip(starts, ends, strict=True):
        direction = 1 if y2 > y1 else -1
        (x_top, y_top), (x_low, y_low) = ((x1, y1), (x2, y2))[::direction]
        first = max(0, int(np.ceil(y_top - 0.5)))
        last = min(num_rows, int(np.ceil(y_low - 0.5)))  # exclusive: no edge counts twice
        if first >= last:
            continue
        rows = np.arange(first, last)
        crossings = x_top + (rows + 0.5 - y_top) * ((x_low - x_top) / (y_low - y_top))
        # The first sample at or right of the crossing; all of them when it is left of the image.
        columns = np.clip(np.ceil(crossings - 0.5), 0, num_columns - 1).astype(np.int64)
        change[rows, columns] += direction
