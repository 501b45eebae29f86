"""The labels of an overlay: text and score on a chip of the label's colour, beside its object.

A label stands where it hides the least of the others; one that fits nowhere is shortened or left
out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from photon_ros.core.result import Detection, DetectionKind

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
_Box = tuple[float, float, float, float]
_Rect = tuple[int, int, int, int]

# Bright enough to stand out on asphalt and on grass, far enough apart to tell two labels apart.
_PALETTE: Final[tuple[Color, ...]] = (
    (255, 99, 71),
    (64, 196, 255),
    (255, 202, 40),
    (124, 220, 90),
    (213, 120, 255),
    (255, 138, 196),
    (38, 222, 196),
    (255, 158, 64),
    (140, 158, 255),
    (205, 220, 57),
    (240, 98, 146),
    (77, 208, 225),
)
_CHIP_ALPHA: Final = 0.88
_MIN_FONT_PX: Final = 10
_MAX_LABEL_CHARS: Final = 40


def label_color(label: str) -> Color:
    """Return the RGB colour of a label: the same in every process and every run."""
    digest = hashlib.sha256(label.strip().lower().encode("utf-8", "replace")).digest()
    return _PALETTE[digest[0] % len(_PALETTE)]


def draw_labels(
    canvas: Pixels, detections: Sequence[Detection], boxes: Sequence[_Box], width_px: int
) -> None:
    """Draw the labels with their scores onto ``canvas``, (height, width, 3) uint8 RGB.

    Args:
        boxes: where each detection was drawn, (x_min, y_min, x_max, y_max) in pixels.
        width_px: of the strokes.
    """
    font_px = max(_MIN_FONT_PX, round(0.019 * math.sqrt(canvas.shape[0] * canvas.shape[1])))
    placed: list[_Rect] = []
    # The surest label is placed first and so gets the best place.
    pairs = zip(detections, boxes, strict=True)
    for detection, box in sorted(pairs, key=lambda pair: -pair[0].score):
        chip = _chip(detection, font_px, canvas.shape[1])
        if chip.shape[0] > canvas.shape[0] or chip.shape[1] > canvas.shape[1]:
            continue
        gap = width_px * (3 if detection.kind is DetectionKind.POINT else 1)
        rect = _place(canvas, box, gap, chip, placed, width_px)
        placed.append(rect)
        _paste_chip(canvas, chip, rect, label_color(detection.label))


def _chip(detection: Detection, font_px: int, max_width_px: int) -> NDArray[np.float32]:
    """Return the text's coverage on its chip, (height, width) in [0, 1]."""
    label = " ".join(detection.label.split())
    score = f"{detection.score:.2f}" if math.isfinite(detection.score) else "?"
    for num_chars in range(min(len(label), _MAX_LABEL_CHARS), -1, -1):
        short = label if num_chars == len(label) else label[:num_chars] + "…"
        chip = _rendered(f"{short} {score}" if num_chars else score, font_px)
        if chip.shape[1] <= max_width_px:
            break
    return chip


@lru_cache(maxsize=512)
def _rendered(text: str, font_px: int) -> NDArray[np.float32]:
    font = ImageFont.load_default(font_px)
    left, _, right, _ = font.getbbox(text)
    pad = max(2, round(font_px * 0.3))
    # One height for all chips of a picture: neighbouring labels line up.
    size = (math.ceil(right - left) + 2 * pad, round(font_px * 1.45))
    page = Image.new("L", size, 0)
    ImageDraw.Draw(page).text((pad - left, size[1] / 2), text, fill=255, font=font, anchor="lm")
    return np.asarray(page, np.float32) / 255.0


def _place(
    canvas: Pixels,
    box: _Box,
    gap: int,
    chip: NDArray[np.float32],
    placed: Sequence[_Rect],
    width_px: int,
) -> _Rect:
    """Return the chip's (left, top, right, bottom), inside the picture, least overlap first."""
    chip_h, chip_w = chip.shape
    height, width = canvas.shape[:2]
    x_min, y_min, x_max, y_max = box
    places = [
        (x_min - width_px / 2, y_min - chip_h - gap / 2),
        (x_min - width_px / 2, y_max + gap / 2 + 1),
        (x_max + width_px / 2 - chip_w, y_min - chip_h - gap / 2),
        (x_max + gap, y_min),
        (x_min - gap - chip_w, y_min),
        (x_max + width_px / 2 - chip_w, y_max + gap / 2 + 1),
        (x_max + gap, y_max - chip_h),
        (x_min - gap - chip_w, y_max - chip_h),
        (x_min + width_px, y_min + width_px),
    ]
    best, best_cost = (0, 0, chip_w, chip_h), math.inf
    for order, (left, top) in enumerate(places):
        x = min(max(round(left), 0), width - chip_w)
        y = min(max(round(top), 0), height - chip_h)
        rect = (x, y, x + chip_w, y + chip_h)
        pushed = abs(x - left) + abs(y - top)
        cost = 100.0 * sum(_overlap_px(rect, other) for other in placed) / (chip_w * chip_h)
        cost += 2.0 * pushed / chip_h + 0.3 * order
        if cost < best_cost:
            best, best_cost = rect, cost
    return best


def _overlap_px(a: _Rect, b: _Rect) -> int:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0


def _paste_chip(canvas: Pixels, chip: NDArray[np.float32], rect: _Rect, color: Color) -> None:
    left, top, right, bottom = rect
    region = canvas[top:bottom, left:right].astype(np.float32)
    alpha = _rounded(chip.shape[0], chip.shape[1])[:, :, None] * np.float32(_CHIP_ALPHA)
    background = np.array(color, np.float32)
    # Rec. 709 luma decides between dark and light ink.
    luma = 0.2126 * color[0] + 0.7152 * color[1] + 0.0722 * color[2]
    ink = np.float32(12.0 if luma > 110 else 250.0)
    backed = region * (1 - alpha) + background * alpha
    text = chip[:, :, None]
    canvas[top:bottom, left:right] = np.rint(backed * (1 - text) + ink * text).astype(np.uint8)


@lru_cache(maxsize=512)
def _rounded(height: int, width: int) -> NDArray[np.float32]:
    """Return the coverage of a rectangle with round corners, (height, width) in [0, 1]."""
    radius = min(height, width) * 0.22
    y = np.abs(np.arange(height) - (height - 1) / 2) - (height / 2 - radius)
    x = np.abs(np.arange(width) - (width - 1) / 2) - (width / 2 - radius)
    distance = np.hypot(np.maximum(x[None, :], 0), np.maximum(y[:, None], 0))
    coverage: NDArray[np.float32] = np.clip(radius - distance + 0.5, 0, 1).astype(np.float32)
    return coverage
