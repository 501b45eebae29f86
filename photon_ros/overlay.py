"""Detections drawn onto a picture: boxes, points, masks and labels with their scores.

Drawing never fails on odd geometry: what lies outside the picture is clipped, what has no
finite place is left out, a label that fits nowhere is shortened or left out. The input image
is not changed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from photon_ros.core.errors import ImageError
from photon_ros.core.result import Detection, DetectionKind

Pixels = NDArray[np.uint8]
Color = tuple[int, int, int]
Box = tuple[float, float, float, float]
"""(x_min, y_min, x_max, y_max), normalised to the image."""
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
_TRUTH_COLOR: Final[Color] = (255, 255, 255)
_HALO_COLOR: Final[Color] = (16, 16, 16)
_MASK_ALPHA: Final = 0.40
_CHIP_ALPHA: Final = 0.88
_MIN_FONT_PX: Final = 10
_MAX_LABEL_CHARS: Final = 40
_SUBPIXEL_BITS: Final = 4


def label_color(label: str) -> Color:
    """Return the RGB colour of a label: the same in every process and every run."""
    digest = hashlib.sha256(label.strip().lower().encode("utf-8", "replace")).digest()
    return _PALETTE[digest[0] % len(_PALETTE)]


def line_width_px(image: Pixels) -> int:
    """Return the stroke width that suits the size of ``image``."""
    return max(1, round(0.003 * math.sqrt(image.shape[0] * image.shape[1])))


def draw(image: Pixels, detections: Sequence[Detection], *, truth: Sequence[Box] = ()) -> Pixels:
    """Return a copy of ``image`` with the detections, and true boxes dashed in white.

    Args:
        image: (height, width, 3) uint8 RGB.
        detections: drawn masks first, then large boxes before small ones, points last, so that
            nothing small is hidden; a label stands beside its object where there is room.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ImageError(f"cannot draw on {image.dtype} of shape {image.shape}")
    canvas = np.array(image, order="C")
    width_px = line_width_px(canvas)
    shown = [detection for detection in detections if _is_visible(detection)]
    for detection in shown:
        if detection.kind is DetectionKind.MASK:
            _fill_mask(canvas, detection)
    for box in truth:
        _dashed_box(canvas, box, width_px)
    shown.sort(key=lambda d: (d.kind is DetectionKind.POINT, -d.width * d.height))
    for detection in shown:
        _outline(canvas, detection, width_px)
    _draw_labels(canvas, shown, width_px)
    return canvas


def _is_visible(detection: Detection) -> bool:
    corners = detection.corners()
    if detection.kind is DetectionKind.POINT:
        corners = (detection.x, detection.y, detection.x, detection.y)
    if not all(math.isfinite(value) for value in corners):
        return False
    return corners[2] >= 0 and corners[3] >= 0 and corners[0] <= 1 and corners[1] <= 1


# --- shapes ---------------------------------------------------------------------------------


def _outline(canvas: Pixels, detection: Detection, width_px: int) -> None:
    color = label_color(detection.label)
    if detection.kind is DetectionKind.POINT:
        _dot(canvas, detection, color, width_px)
    elif detection.kind is DetectionKind.MASK and detection.polygon:
        rings = _rings_px(canvas, detection)
        for ink, extra in ((_HALO_COLOR, 2), (color, 0)):
            cv2.polylines(canvas, rings, True, ink, width_px + extra, cv2.LINE_AA, _SUBPIXEL_BITS)
    else:
        rect = _box_px(canvas, detection.corners(), width_px)
        for ink, extra in ((_HALO_COLOR, 2), (color, 0)):
            _rectangle(canvas, rect, ink, width_px + extra)


def _rectangle(canvas: Pixels, rect: Box, ink: Color, width_px: int) -> None:
    start, end = _fixed(rect[0], rect[1]), _fixed(rect[2], rect[3])
    cv2.rectangle(canvas, start, end, ink, width_px, cv2.LINE_AA, _SUBPIXEL_BITS)


def _dot(canvas: Pixels, detection: Detection, color: Color, width_px: int) -> None:
    height, width = canvas.shape[:2]
    centre = _fixed(detection.x * width - 0.5, detection.y * height - 0.5)
    for ink, radius_px in ((_HALO_COLOR, 4.0), (_TRUTH_COLOR, 3.4), (color, 2.4)):
        radius = round(radius_px * max(1.0, width_px) * 2**_SUBPIXEL_BITS * 0.6)
        cv2.circle(canvas, centre, radius, ink, cv2.FILLED, cv2.LINE_AA, _SUBPIXEL_BITS)


def _fill_mask(canvas: Pixels, detection: Detection) -> None:
    rings = _rings_px(canvas, detection)
    if not rings:
        return
    filled = canvas.copy()
    # All rings in one call: a ring inside another is a hole (even-odd rule).
    cv2.fillPoly(filled, rings, label_color(detection.label), cv2.LINE_AA, _SUBPIXEL_BITS)
    cv2.addWeighted(filled, _MASK_ALPHA, canvas, 1 - _MASK_ALPHA, 0, dst=canvas)


def _rings_px(canvas: Pixels, detection: Detection) -> list[NDArray[np.int32]]:
    size = np.array([canvas.shape[1], canvas.shape[0]], np.float64)
    rings = []
    for ring in detection.polygon:
        points = np.asarray(ring, np.float64).reshape(-1, 2)
        # Far outside is as good as just outside, and keeps fixed point numbers within range.
        points = np.clip(points[np.isfinite(points).all(axis=1)], -1.0, 2.0)
        if len(points) >= 3:
            rings.append(np.rint((points * size - 0.5) * 2**_SUBPIXEL_BITS).astype(np.int32))
    return rings


def _dashed_box(canvas: Pixels, box: Box, width_px: int) -> None:
    if not all(math.isfinite(value) for value in box):
        return
    x_min, y_min, x_max, y_max = _box_px(canvas, box, width_px)
    corners = [(x_min, y_min), (x_max, y_min), (x_max, y_max), (x_min, y_max)]
    for ink, extra in ((_HALO_COLOR, 2), (_TRUTH_COLOR, 0)):
        for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
            _dashed_line(canvas, start, end, ink, width_px, extra)


def _dashed_line(
    canvas: Pixels,
    start: tuple[float, float],
    end: tuple[float, float],
    ink: Color,
    width_px: int,
    extra_px: int,
) -> None:
    length = math.dist(start, end)
    num_dashes = max(1, round(length / (6.0 * width_px)))
    for dash in range(num_dashes):
        # Half a dash at each end, so that the corners are always drawn.
        first, last = max(0.0, (dash - 0.25) / num_dashes), (dash + 0.25) / num_dashes
        _segment(canvas, start, end, first, last, ink, width_px + extra_px)
    _segment(canvas, start, end, 1 - 0.25 / num_dashes, 1.0, ink, width_px + extra_px)


def _segment(
    canvas: Pixels,
    start: tuple[float, float],
    end: tuple[float, float],
    first: float,
    last: float,
    ink: Color,
    width_px: int,
) -> None:
    (x0, y0), (x1, y1) = start, end
    here = _fixed(x0 + (x1 - x0) * first, y0 + (y1 - y0) * first)
    there = _fixed(x0 + (x1 - x0) * last, y0 + (y1 - y0) * last)
    cv2.line(canvas, here, there, ink, width_px, cv2.LINE_AA, _SUBPIXEL_BITS)


def _box_px(canvas: Pixels, box: Box, width_px: int) -> Box:
    """Return the corners in whole pixels, pulled in so that the stroke stays in the picture.

    OpenCV counts pixel centres as whole numbers; normalised 0 is the picture's very edge. Whole
    pixels keep the strokes crisp: between two rows a thin one would be half its halo.
    """
    height, width = canvas.shape[:2]
    inset = (width_px - 1) / 2
    x_min, x_max = (_clamp(x * width - 0.5, inset, width - 1 - inset) for x in (box[0], box[2]))
    y_min, y_max = (_clamp(y * height - 0.5, inset, height - 1 - inset) for y in (box[1], box[3]))
    return x_min, y_min, x_max, y_max


def _clamp(value: float, least: float, most: float) -> float:
    return max(0.0, round(min(max(value, least), most)))


def _fixed(x: float, y: float) -> tuple[int, int]:
    return round(x * 2**_SUBPIXEL_BITS), round(y * 2**_SUBPIXEL_BITS)


# --- labels ---------------------------------------------------------------------------------


def _draw_labels(canvas: Pixels, detections: Sequence[Detection], width_px: int) -> None:
    font_px = max(_MIN_FONT_PX, round(0.019 * math.sqrt(canvas.shape[0] * canvas.shape[1])))
    placed: list[_Rect] = []
    # The surest label is placed first and so gets the best place.
    for detection in sorted(detections, key=lambda d: -d.score):
        chip = _chip(detection, font_px, canvas.shape[1])
        if chip.shape[0] > canvas.shape[0] or chip.shape[1] > canvas.shape[1]:
            continue
        rect = _place(canvas, detection, chip, placed, width_px)
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
    detection: Detection,
    chip: NDArray[np.float32],
    placed: Sequence[_Rect],
    width_px: int,
) -> _Rect:
    """Return the chip's (left, top, right, bottom), inside the picture, least overlap first."""
    chip_h, chip_w = chip.shape
    height, width = canvas.shape[:2]
    x_min, y_min, x_max, y_max = _box_px(canvas, detection.corners(), width_px)
    gap = width_px * (3 if detection.kind is DetectionKind.POINT else 1)
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
        x = int(_clamp(round(left), 0, width - chip_w))
        y = int(_clamp(round(top), 0, height - chip_h))
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
