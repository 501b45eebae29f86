"""A picture becomes crops: one of the whole, and overlapping ones that show more detail.

"exact" resampling is Pillow's Lanczos, which the released models were checked with. "fast" is
OpenCV's, several times as fast (docs/measurements.md), with pixels that differ by 1 of 255 on
average and by much more at sharp edges.
"""

from __future__ import annotations

import math
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photon_ros.core.errors import ImageError, InputError
from photon_ros.engine.interfaces import FrameCrops
from photon_ros.models.moondream.config import VisionConfig

ResizeMethod = Literal["exact", "fast"]
RESIZE_METHODS: tuple[ResizeMethod, ...] = ("exact", "fast")

# Below what Pillow can address, with room for the enlarged picture.
MAX_SIDE_PX = 100_000


def choose_tiling(height_px: int, width_px: int, window_px: int, max_crops: int) -> tuple[int, int]:
    """Return (rows, columns) of local crops, at least 1 each and at most ``max_crops`` together.

    Args:
        height_px, width_px: extent to cover, without the margin around it (may be negative).
        window_px: pixels from one crop to the next.
        max_crops: budget; below 2 the answer is always (1, 1).
    """
    # Both tests: a long thin picture is never tiled.
    if max_crops < 2 or height_px <= window_px or width_px <= window_px:
        return 1, 1
    min_rows, min_columns = math.ceil(height_px / window_px), math.ceil(width_px / window_px)
    if min_rows * min_columns > max_crops:
        shrink = math.sqrt(max_crops / (min_rows * min_columns))
        rows = max(1, math.floor(min_rows * shrink))
        columns = max(1, math.floor(min_columns * shrink))
        # One side held up at 1 would let the other one exceed the budget.
        return min(rows, max_crops), min(columns, max_crops)
    rows = max(math.floor(math.sqrt(max_crops * height_px / width_px)), min_rows)
    columns = max(math.floor(math.sqrt(max_crops * width_px / height_px)), min_columns)
    if rows * columns > max_crops:
        if columns > rows:
            columns = max_crops // rows
        else:
            rows = max_crops // columns
    return max(1, rows), max(1, columns)


def cut(
    image: NDArray[np.uint8],
    config: VisionConfig,
    max_crops: int | None = None,
    resize: ResizeMethod = "exact",
) -> FrameCrops:
    """Cut a picture for the vision encoder.

    A tiling of (1, 1) would repeat the global crop as its only local one, so the global crop
    alone is returned: its features serve for both.

    Args:
        image: (height, width, 3) uint8, RGB.
        config: crop, patch and margin sizes, and the model's own budget of local crops.
        max_crops: lowers that budget; 0 leaves only the global crop.
        resize: how the picture is resampled.

    Raises:
        ImageError: the picture is of the wrong type, empty, or has too long a side.
        InputError: ``max_crops`` is negative, or there is no such resize method.
    """
    if resize not in RESIZE_METHODS:
        raise InputError(f"resize must be one of {', '.join(RESIZE_METHODS)}, got {resize!r}")
    if max_crops is not None and max_crops < 0:
        raise InputError(f"max_crops must be >= 0, got {max_crops}")
    _check(image)
    resized = _resized_exactly if resize == "exact" else _resized_fast
    height_px, width_px = image.shape[:2]
    budget = config.max_crops if max_crops is None else min(max_crops, config.max_crops)
    margins_px = 2 * config.margin_px
    rows, columns = choose_tiling(
        height_px - margins_px, width_px - margins_px, config.window_px, budget
    )
    num_local = rows * columns if rows * columns > 1 else 0
    crop, window = config.crop_size, config.window_px
    pixels = np.empty((1 + num_local, crop, crop, 3), dtype=np.uint8)
    pixels[0] = resized(image, crop, crop)
    if num_local:
        whole = resized(image, columns * window + margins_px, rows * window + margins_px)
        for i in range(rows):
            for j in range(columns):
                top, left = i * window, j * window
                pixels[1 + i * columns + j] = whole[top : top + crop, left : left + crop]
    return FrameCrops(pixels=pixels, tiling=(rows, columns))


def _check(image: NDArray[np.uint8]) -> None:
    if not isinstance(image, np.ndarray):
        raise ImageError(f"image must be a numpy array, got {type(image).__name__}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(
            f"image must be uint8 of shape (height, width, 3), got {image.dtype} "
            f"of shape {image.shape}"
        )
    if 0 in image.shape:
        raise ImageError(f"image has no pixels: shape {image.shape}")
    if max(image.shape) > MAX_SIDE_PX:
        raise ImageError(
            f"image sides must be at most {MAX_SIDE_PX} pixels, got {image.shape[1]}x"
            f"{image.shape[0]}"
        )


def _resized_exactly(image: NDArray[np.uint8], width_px: int, height_px: int) -> NDArray[np.uint8]:
    picture = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(picture.resize((width_px, height_px), Image.Resampling.LANCZOS))


def _resized_fast(image: NDArray[np.uint8], width_px: int, height_px: int) -> NDArray[np.uint8]:
    shrinks_by = max(image.shape[0] / height_px, image.shape[1] / width_px)
    # Only the area filter averages what falls between the samples of a much smaller picture;
    # for anything else the cubic one is nearest to Lanczos.
    method = cv2.INTER_AREA if shrinks_by >= 2 else cv2.INTER_CUBIC
    resized = cv2.resize(image, (width_px, height_px), interpolation=method)
    return np.asarray(resized, dtype=np.uint8)
