"""What the rings of an outline enclose, by the one rule for ~/mask, overlays and scores.

A point is inside when the rings wind around it (non-zero winding, SVG's default fill rule): a ring
within another is a hole only if it runs the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SAMPLES = 4


def mask_of(
    rings: Sequence[Sequence[tuple[float, float]]],
    *,
    width_px: int,
    height_px: int,
    samples: int = SAMPLES,
) -> NDArray[np.bool_]:
    """Return (height, width) bool: pixels of which more than half lies inside.

    Args:
        rings: closed rings of (x, y), normalised to the image; may lie outside of it in part.
        width_px, height_px: size of the image.
        samples: points looked at along each side of a pixel; 1 looks at its centre only, and is
            enough under an outline that is drawn on top.
    """
    mask = np.zeros((height_px, width_px), np.bool_)
    all_points = [np.asarray(ring, dtype=np.float64).reshape(-1, 2) for ring in rings]
    drawn = [ring for ring in all_points if len(ring) >= 3 and np.isfinite(ring).all()]
    if not drawn:
        return mask
    size = np.array([width_px, height_px])
    # Only where the rings are: a picture is large, and most of what is found in it is small.
    places = np.concatenate(drawn) * size
    left, top = np.clip(np.floor(places.min(axis=0)), 0, size).astype(int)
    right, bottom = np.clip(np.ceil(places.max(axis=0)), 0, size).astype(int)
    if left >= right or top >= bottom:
        return mask
    rows, columns = (bottom - top) * samples, (right - left) * samples
    # How the winding number changes from one sample to the next, along each row of samples.
    change = np.zeros((rows, columns + 1), dtype=np.int16)
    for ring in drawn:
        _add_ring(change, (ring * size - (left, top)) * samples)
    is_inside = change[:, :columns].cumsum(axis=1, dtype=np.int16) != 0
    parts = is_inside.reshape(bottom - top, samples, right - left, samples)
    mask[top:bottom, left:right] = parts.sum(axis=(1, 3)) > samples * samples / 2
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
